#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/mem.h"

int tok_grow(void *v, size_t n, size_t *cap, size_t each_bytes)
{
	uint64_t want, bytes;
	void *old, *p;

	if (n < *cap)
		return OD_OK;
	if (!od_mul(n + 8, 2, &want) || !od_mul(want, each_bytes, &bytes))
		return OD_ERR_NOMEM;
	memcpy(&old, v, sizeof(old)); /* v points to a pointer of some type */
	p = realloc(old, bytes);
	if (p == NULL)
		return OD_ERR_NOMEM;
	memcpy(v, &p, sizeof(p));
	*cap = want;
	return OD_OK;
}

int tok_buf_reserve(struct tok_buf *b, size_t more)
{
	uint64_t need, want;
	char *p;

	if (!od_add(b->len, more, &need))
		return OD_ERR_NOMEM;
	if (b->max_bytes > 0 && need > b->max_bytes)
		return OD_ERR_RANGE;
	if (need <= b->cap && b->data != NULL)
		return OD_OK;
	if (!od_add(need, need / 2 + 64, &want))
		return OD_ERR_NOMEM;
	p = realloc(b->data, want);
	if (p == NULL)
		return OD_ERR_NOMEM;
	b->data = p;
	b->cap = want;
	return OD_OK;
}

int tok_buf_add(struct tok_buf *b, const void *data, size_t len)
{
	int rc = tok_buf_reserve(b, len);

	if (rc != OD_OK)
		return rc;
	if (len > 0)
		memcpy(b->data + b->len, data, len);
	b->len += len;
	return OD_OK;
}

void tok_buf_fini(struct tok_buf *b)
{
	free(b->data);
	memset(b, 0, sizeof(*b));
}

size_t tok_max_grown(size_t len)
{
	const size_t most = ((size_t)1 << 20) + 64 * len;

	return most < TOK_MAX_TEXT_BYTES ? most : TOK_MAX_TEXT_BYTES;
}

size_t tok_char(const char *s, size_t len, int32_t *cp)
{
	utf8proc_ssize_t n;

	if ((unsigned char)*s < 0x80) {
		*cp = (unsigned char)*s;
		return 1;
	}
	n = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, cp);
	if (n > 0)
		return (size_t)n;
	*cp = (unsigned char)*s; /* unreachable for valid text; still makes progress */
	return 1;
}

bool tok_utf8_valid(const char *s, size_t len, size_t *bad)
{
	size_t at = 0;
	int32_t cp;

	while (at < len) {
		utf8proc_ssize_t n = 1;

		if ((unsigned char)s[at] >= 0x80)
			n = utf8proc_iterate((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)(len - at), &cp);
		if (n <= 0) {
			*bad = at;
			return false;
		}
		at += (size_t)n;
	}
	*bad = len;
	return true;
}

bool tok_is_space(int32_t cp)
{
	return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
	       (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
	       cp == 0x3000;
}

int tok_spans_add(struct tok_spans *s, size_t begin, size_t end, bool match)
{
	int rc = tok_grow(&s->v, s->n, &s->cap, sizeof(*s->v));

	if (rc == OD_OK)
		s->v[s->n++] = (struct tok_span){ begin, end, match };
	return rc;
}

int tok_trace_made(struct tok_trace *t, const struct tok_buf *out, size_t begin, size_t end)
{
	const size_t n = t == NULL ? 0 : out->len - t->to.len;

	if (n == 0)
		return OD_OK;
	if (tok_buf_reserve(&t->to, n) != OD_OK)
		return OD_ERR_NOMEM;
	/* Text that was made of nothing is not the template's. */
	memset(t->to.data + t->to.len, begin == end || memchr(t->from + begin, 1, end - begin) != NULL, n);
	t->to.len += n;
	return OD_OK;
}

int tok_trace_kept(struct tok_trace *t, size_t begin, size_t end)
{
	return t == NULL ? OD_OK : tok_buf_add(&t->to, t->from + begin, end - begin);
}

int tok_pieces_add(struct tok_pieces *p, const char *s, size_t len, int32_t id, bool first)
{
	int rc = tok_grow(&p->v, p->n, &p->cap, sizeof(*p->v));

	if (rc != OD_OK)
		return rc;
	p->v[p->n] = (struct tok_piece){ p->text.len, len, id, first };
	rc = tok_buf_add(&p->text, s, len);
	if (rc == OD_OK)
		p->n++;
	return rc;
}

void tok_pieces_clear(struct tok_pieces *p)
{
	p->n = 0;
	p->text.len = 0;
}

void tok_pieces_fini(struct tok_pieces *p)
{
	tok_buf_fini(&p->text);
	free(p->v);
	memset(p, 0, sizeof(*p));
}

int tok_ids_add(struct tok_ids *ids, int32_t id)
{
	int rc = tok_grow(&ids->v, ids->n, &ids->cap, sizeof(*ids->v));

	if (rc == OD_OK)
		ids->v[ids->n++] = id;
	return rc;
}
