/* Added tokens: what is cut out of a text before (or after) normalisation and never reaches the BPE. */
#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/text/tok_controls.h"

static int by_content(const void *x, const void *y)
{
	const struct tok_added *a = x, *b = y;
	size_t n = a->len < b->len ? a->len : b->len;
	int d = memcmp(a->content, b->content, n);

	if (d != 0)
		return d;
	if (a->len != b->len)
		return a->len < b->len ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* White space, or what stands for it in SentencePiece's vocabularies. */
static bool is_blank(int32_t cp)
{
	return tok_is_space(cp) || cp == 0x2581;
}

static void find_core(struct tok_added *a)
{
	size_t begin = 0, end = 0;
	int32_t cp;

	for (size_t at = 0, n; at < a->len; at += n) {
		n = tok_char(a->content + at, a->len - at, &cp);
		if (!is_blank(cp))
			end = at + n;
		else if (end == 0)
			begin = at + n;
	}
	a->core_begin = end > 0 ? begin : 0;
	a->core_end = end > 0 ? end : a->len;
}

static void finish_matcher(struct tok_matcher *m)
{
	uint32_t i = 0;

	for (uint32_t k = 0; k < m->n; k++)
		find_core(&m->v[k]);

	if (m->n > 0)
		qsort(m->v, m->n, sizeof(*m->v), by_content);
	for (unsigned b = 0; b <= 256; b++) {
		while (i < m->n && (unsigned char)m->v[i].content[0] < b)
			i++;
		m->first[b] = i;
	}
}

void tok_matcher_fini(struct tok_matcher *m)
{
	for (uint32_t i = 0; i < m->n; i++)
		free(m->v[i].content);
	free(m->v);
	memset(m, 0, sizeof(*m));
}

/* ---- loading ---- */

static int parse_fields(struct tok_added *a, const json_t *obj, const char **content, uint32_t *id, const char *where,
			struct od_err *err)
{
	int rc;

	memset(a, 0, sizeof(*a));
	rc = od_json_str(obj, "content", content, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(obj, "id", 0, TOK_MAX_IDS - 1, id, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "single_word", false, &a->single_word, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "lstrip", false, &a->lstrip, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "rstrip", false, &a->rstrip, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "special", false, &a->special, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "normalized", !a->special, &a->normalized, where, err);
	if (rc == OD_OK)
		a->len = json_string_length(json_object_get(obj, "content"));
	if (rc == OD_OK && a->len > TOK_MAX_ADDED_BYTES)
		return od_fail(err, OD_ERR_RANGE, "%s: added token %u: expected at most %u bytes, found %zu", where,
			       *id, TOK_MAX_ADDED_BYTES, a->len);
	a->id = (int32_t)*id;
	return rc;
}

/* The reference numbers added tokens itself: the vocabulary's id, else the next behind all others. A file that
 * says something else was edited by hand, and nobody knows which of the two its model was trained with. */
static int number(struct od_tokenizer *t, const struct tok_added *a, const char *content, uint32_t n_model,
		  uint32_t *next, const char *where, struct od_err *err)
{
	struct tok_vocab *v = &t->vocab;
	int32_t have = tok_vocab_find(v, content, a->len);
	uint32_t expected = have >= 0 ? (uint32_t)have : *next < n_model ? n_model : *next;
	int rc = OD_OK;

	if (have >= 0 && (v->entry[have].flags & TOK_ADDED) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: added token \"%.64s\": found twice", where, content);
	if ((uint32_t)a->id != expected)
		return od_fail(err, OD_ERR_FORMAT, "%s: added token \"%.64s\": expected id %u (%s), found %d", where,
			       content, expected, have >= 0 ? "as in the vocabulary" : "the next free one", a->id);
	if (have < 0 && v->entry[a->id].flags != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: added token \"%.64s\": id %d belongs to another token", where,
			       content, a->id);
	if (have < 0)
		rc = tok_vocab_add(v, content, a->len, (uint32_t)a->id, 0);
	if (rc != OD_OK)
		return od_fail(err, rc, "%s: added tokens", where);
	v->entry[a->id].flags |= TOK_ADDED | (a->special ? TOK_SPECIAL : 0);
	if ((uint32_t)a->id >= *next)
		*next = (uint32_t)a->id + 1;
	return OD_OK;
}

/* The content as it is searched for, and as the reference decodes it (since its 0.23). */
static int fill_content(struct tok_added *a, struct od_tokenizer *t, const char *content, const char *where,
			struct od_err *err)
{
	struct tok_entry *e = &t->vocab.entry[a->id];
	struct tok_buf norm = { 0 };
	bool dropped;
	int rc = OD_OK;

	if (a->normalized)
		rc = tok_norms_run(&t->norms, content, a->len, true, &norm, NULL, &dropped, err);
	if (rc == OD_ERR_RANGE)
		od_fail(err, rc, "%s: added token \"%.64s\": the normalizer turns it into more than %zu bytes", where,
			content, tok_max_grown(a->len));
	if (!a->normalized && tok_buf_add(&norm, content, a->len) != OD_OK)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: added tokens", where);
	if (rc == OD_OK && norm.len == 0)
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s: added token \"%.64s\": the normalizer turns it into an empty string", where, content);
	if (rc == OD_OK && norm.len > TOK_MAX_TOKEN_BYTES)
		rc = od_fail(err, OD_ERR_RANGE,
			     "%s: added token \"%.64s\": expected at most %u bytes once normalised, found %zu", where,
			     content, TOK_MAX_TOKEN_BYTES, norm.len);
	if (rc == OD_OK && a->normalized) {
		e->shown_at = (uint32_t)t->vocab.bytes.len;
		e->shown_len = (uint32_t)norm.len;
		rc = tok_buf_add(&t->vocab.bytes, norm.data, norm.len);
		if (rc != OD_OK)
			od_fail(err, rc, "%s: added tokens: their normalized text is too long", where);
	}
	if (rc != OD_OK) {
		tok_buf_fini(&norm);
		return rc;
	}
	a->content = norm.data;
	a->len = norm.len;
	return OD_OK;
}

static int parse_one(struct od_tokenizer *t, const json_t *obj, uint32_t order, uint32_t n_model, uint32_t *next,
		     const char *where, struct od_err *err)
{
	struct tok_added a;
	struct tok_matcher *m;
	const char *content;
	uint32_t id;
	int rc;

	rc = parse_fields(&a, obj, &content, &id, where, err);
	if (rc != OD_OK || a.len == 0) /* the reference ignores an empty one */
		return rc;
	rc = number(t, &a, content, n_model, next, where, err);
	if (rc == OD_OK)
		rc = fill_content(&a, t, content, where, err);
	if (rc != OD_OK)
		return rc;
	a.order = a.special ? order : order + (1u << 30);
	m = a.normalized ? &t->normalized : &t->raw;
	m->v[m->n++] = a;
	return OD_OK;
}

int tok_added_parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err)
{
	uint32_t n_model = t->vocab.n_present, next = 0;
	json_t *list, *obj;
	size_t i, n, given = 0;
	int rc;

	if (!od_json_has(root, "added_tokens"))
		return OD_OK;
	rc = od_json_arr(root, "added_tokens", &list, where, err);
	if (rc != OD_OK)
		return rc;
	n = json_array_size(list);
	t->raw.v = calloc(n > 0 ? n : 1, sizeof(*t->raw.v));
	t->normalized.v = calloc(n > 0 ? n : 1, sizeof(*t->normalized.v));
	if (t->raw.v == NULL || t->normalized.v == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: %zu added tokens", where, n);
	json_array_foreach(list, i, obj) given += json_string_length(json_object_get(obj, "content"));
	/* Below 4 GiB: offsets have 32 bits, and the file is no longer than TOK_MAX_FILE_BYTES. */
	t->vocab.bytes.max_bytes = t->vocab.bytes.len + given + tok_max_grown(given);
	json_array_foreach(list, i, obj)
	{
		rc = parse_one(t, obj, (uint32_t)i, n_model, &next, where, err);
		if (rc != OD_OK)
			return rc;
	}
	finish_matcher(&t->raw);
	finish_matcher(&t->normalized);
	return OD_OK;
}

int tok_added_as_they_are(struct od_tokenizer *t, const struct tok_ids *ids)
{
	struct tok_matcher *m = &t->normalized;
	size_t cap = m->n;
	int rc = OD_OK;

	for (size_t i = 0; i < ids->n && rc == OD_OK; i++) {
		const struct tok_entry *e = &t->vocab.entry[ids->v[i]];
		struct tok_added a = { .len = e->len, .id = ids->v[i], .order = (1u << 30) + (uint32_t)i };

		rc = tok_grow(&m->v, m->n, &cap, sizeof(*m->v));
		a.content = rc == OD_OK ? malloc(e->len) : NULL;
		if (a.content == NULL)
			return OD_ERR_NOMEM;
		memcpy(a.content, t->vocab.bytes.data + e->at, e->len);
		m->v[m->n++] = a;
	}
	finish_matcher(m);
	return rc;
}

/* ---- matching ---- */

/* The first entry in [lo, hi) whose byte at depth is at least b; entries shorter than that come first. */
static uint32_t lower(const struct tok_matcher *m, uint32_t lo, uint32_t hi, size_t depth, unsigned b)
{
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		const struct tok_added *a = &m->v[mid];

		if (a->len <= depth || (unsigned char)a->content[depth] < b)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* A walk along the entries that text begins with, from the shortest on. */
struct tok_added_walk {
	const struct tok_matcher *m;
	const char *text;
	size_t len, depth;
	uint32_t lo, hi;
};

static struct tok_added_walk walk_from(const struct tok_matcher *m, const char *text, size_t len)
{
	const unsigned b = (unsigned char)text[0];

	return (struct tok_added_walk){
		.m = m, .text = text, .len = len, .depth = 1, .lo = m->first[b], .hi = m->first[b + 1]
	};
}

/* NULL: there are no more. Of equal ones in the reference's order. */
static const struct tok_added *walk_next(struct tok_added_walk *w)
{
	while (w->lo < w->hi) {
		unsigned b;

		if (w->m->v[w->lo].len == w->depth)
			return &w->m->v[w->lo++];
		if (w->depth >= w->len)
			break;
		b = (unsigned char)w->text[w->depth];
		w->lo = lower(w->m, w->lo, w->hi, w->depth, b);
		w->hi = lower(w->m, w->lo, w->hi, w->depth, b + 1);
		w->depth++;
	}
	return NULL;
}

/* A control token at this position of the text would have a byte of a user in it. */
static bool is_barred(struct tok_users *u, const struct tok_added *a, size_t at)
{
	if (u == NULL || !od_controls_has(u->controls, a->id))
		return false;
	while (u->next < u->n && u->v[u->next].end <= at)
		u->next++;
	for (size_t i = u->next; i < u->n && u->v[i].begin < at + a->core_end; i++)
		if (u->v[i].end > at + a->core_begin)
			return true;
	return false;
}

/* The longest entry at this position, the first of the reference's order among equals. */
static const struct tok_added *longest(const struct tok_matcher *m, struct tok_users *users, const char *text,
				       size_t len, size_t at)
{
	struct tok_added_walk w = walk_from(m, text + at, len - at);
	const struct tok_added *best = NULL, *a;

	while ((a = walk_next(&w)) != NULL)
		if ((best == NULL || a->len > best->len) && !is_barred(users, a, at))
			best = a;
	return best;
}

void tok_added_find(const struct tok_matcher *m, const char *text, size_t len,
		    void (*found)(void *arg, const struct tok_added *a), void *arg)
{
	if (m->n > 0)
		for (size_t at = 0; at < len; at++) {
			struct tok_added_walk w = walk_from(m, text + at, len - at);
			const struct tok_added *a;

			while ((a = walk_next(&w)) != NULL)
				found(arg, a);
		}
}

static size_t char_before(const char *text, size_t at, int32_t *cp)
{
	size_t begin = at - 1;

	while (begin > 0 && ((unsigned char)text[begin] & 0xc0) == 0x80)
		begin--;
	tok_char(text + begin, at - begin, cp);
	return begin;
}

static bool stands_alone(const char *text, size_t len, size_t begin, size_t end)
{
	int32_t cp;

	if (begin > 0) {
		char_before(text, begin, &cp);
		if (tok_is_word(cp))
			return false;
	}
	if (end < len) {
		tok_char(text + end, len - end, &cp);
		if (tok_is_word(cp))
			return false;
	}
	return true;
}

/* Take in the spaces that the token swallows; those before done belong to another token already. */
static void widen(const struct tok_added *a, const char *text, size_t len, size_t done, size_t *begin, size_t *end)
{
	int32_t cp;

	if (a->lstrip && *begin < done)
		*begin = done;
	while (a->lstrip && *begin > done) {
		size_t at = char_before(text, *begin, &cp);

		if (!tok_is_space(cp))
			break;
		*begin = at;
	}
	while (a->rstrip && *end < len) {
		size_t n = tok_char(text + *end, len - *end, &cp);

		if (!tok_is_space(cp))
			break;
		*end += n;
	}
}

int tok_added_split(const struct tok_matcher *m, bool parse_special, struct tok_users *users, const char *text,
		    size_t len, bool first, struct tok_pieces *out)
{
	size_t done = 0, at = 0;
	int rc = OD_OK;

	while (m->n > 0 && at < len && rc == OD_OK) {
		const struct tok_added *a = longest(m, users, text, len, at);
		size_t begin = at, end;

		if (a == NULL) {
			at++; /* a content begins with a whole character, so no match begins inside one */
			continue;
		}
		/* A match that does not count still hides what it overlaps; so it is in the reference. */
		at += a->len;
		end = at;
		if ((a->special && !parse_special) || (a->single_word && !stands_alone(text, len, begin, end)))
			continue;
		widen(a, text, len, done, &begin, &end);
		if (begin >= end) /* the token before has swallowed it */
			continue;
		if (done < begin)
			rc = tok_pieces_add(out, text + done, begin - done, -1, first && done == 0);
		if (rc == OD_OK)
			rc = tok_pieces_add(out, text + begin, end - begin, a->id, false);
		done = end;
	}
	if (rc == OD_OK && done < len)
		rc = tok_pieces_add(out, text + done, len - done, -1, first && done == 0);
	return rc;
}
