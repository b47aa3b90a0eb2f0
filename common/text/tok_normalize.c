/* Normalisers: text to text, in the order of the file. */
#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/json.h"
#include "common/text/tok_unicode.h"

enum norm_kind { NORM_UNICODE, NORM_LOWERCASE, NORM_PREPEND, NORM_REPLACE, NORM_STRIP, NORM_STRIP_ACCENTS };

struct tok_norm {
	enum norm_kind kind;
	utf8proc_option_t options; /* NORM_UNICODE */
	char *content; /* prepended, or put instead of a match */
	size_t content_len;
	struct tok_regex *re;
	bool left, right; /* NORM_STRIP */
};

/* ---- loading ---- */

static bool unicode_form(const char *type, utf8proc_option_t *options)
{
	static const struct {
		const char *type;
		int options;
	} forms[] = {
		{ "NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE },
		{ "NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE },
		{ "NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT },
		{ "NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (strcmp(type, forms[i].type) == 0) {
			*options = (utf8proc_option_t)forms[i].options;
			return true;
		}
	}
	return false;
}

static int parse_one(void *arg, const char *type, const json_t *obj, const char *where, struct od_err *err)
{
	struct tok_norms *all = arg;
	struct tok_norm *n = &all->v[all->n];
	const char *literal;
	size_t len;
	int rc = OD_OK;

	if (all->n == TOK_MAX_STEPS)
		return od_fail(err, OD_ERR_RANGE, "%s: expected at most %u normalizers", where, TOK_MAX_STEPS);
	all->n++; /* from here on it is freed with the others */
	if (unicode_form(type, &n->options)) {
		n->kind = NORM_UNICODE;
	} else if (strcmp(type, "Lowercase") == 0) {
		n->kind = NORM_LOWERCASE;
	} else if (strcmp(type, "StripAccents") == 0) {
		n->kind = NORM_STRIP_ACCENTS;
	} else if (strcmp(type, "Strip") == 0) {
		n->kind = NORM_STRIP;
		rc = od_json_bool_or(obj, "strip_left", true, &n->left, where, err);
		if (rc == OD_OK)
			rc = od_json_bool_or(obj, "strip_right", true, &n->right, where, err);
	} else if (strcmp(type, "Prepend") == 0) {
		n->kind = NORM_PREPEND;
		rc = tok_content_parse(&n->content, &n->content_len, obj, "prepend", where, err);
	} else if (strcmp(type, "Replace") == 0) {
		n->kind = NORM_REPLACE;
		rc = tok_content_parse(&n->content, &n->content_len, obj, "content", where, err);
		if (rc == OD_OK)
			rc = tok_regex_parse(&n->re, &literal, &len, obj, where, err);
	} else {
		rc = tok_unsupported(
			err, where, "normalizer", type,
			"Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents");
	}
	return rc;
}

int tok_norms_parse(struct tok_norms *out, const json_t *obj, const char *where, struct od_err *err)
{
	out->n = 0;
	out->v = calloc(TOK_MAX_STEPS, sizeof(*out->v));
	if (out->v == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: normalizers", where);
	return tok_walk(obj, "normalizer", "normalizers", where, parse_one, out, err);
}

void tok_norms_fini(struct tok_norms *all)
{
	for (size_t i = 0; i < all->n; i++) {
		free(all->v[i].content);
		tok_regex_free(all->v[i].re);
	}
	free(all->v);
	memset(all, 0, sizeof(*all));
}

/* ---- Unicode forms ---- */

struct code_points {
	int32_t *v;
	size_t n, cap;
};

static int decompose(struct code_points *c, const char *text, size_t len, utf8proc_option_t options)
{
	int32_t cp;

	for (size_t at = 0; at < len;) {
		utf8proc_ssize_t n;
		int boundclass = 0;

		at += tok_char(text + at, len - at, &cp);
		do { /* no character has more than 18 code points */
			if (tok_grow(&c->v, c->n + 32, &c->cap, sizeof(*c->v)) != OD_OK)
				return OD_ERR_NOMEM;
			n = utf8proc_decompose_char(cp, c->v + c->n, (utf8proc_ssize_t)(c->cap - c->n), options,
						    &boundclass);
		} while (n > (utf8proc_ssize_t)(c->cap - c->n));
		if (n < 0)
			return OD_ERR_INTERNAL;
		c->n += (size_t)n;
	}
	return OD_OK;
}

static unsigned combining_class(int32_t cp)
{
	utf8proc_propval_t c = utf8proc_get_property(cp)->combining_class;

	return c < 0 || c > 254 ? 254 : (unsigned)c;
}

/* Stable order by combining class within each run of marks. utf8proc_decompose would sort by insertion, which
 * takes minutes for a text that is one long run; counting takes linear time. */
static int order_marks(struct code_points *c)
{
	int32_t *sorted = NULL;
	size_t begin = 0, end, count[256];

	for (; begin < c->n; begin = end) {
		end = begin + 1;
		if (combining_class(c->v[begin]) == 0)
			continue;
		while (end < c->n && combining_class(c->v[end]) != 0)
			end++;
		if (end - begin < 2)
			continue;
		if (sorted == NULL)
			sorted = malloc(c->n * sizeof(*sorted));
		if (sorted == NULL)
			return OD_ERR_NOMEM;
		memset(count, 0, sizeof(count));
		for (size_t i = begin; i < end; i++)
			count[combining_class(c->v[i]) + 1]++;
		for (size_t i = 1; i < 256; i++)
			count[i] += count[i - 1];
		for (size_t i = begin; i < end; i++)
			sorted[count[combining_class(c->v[i])]++] = c->v[i];
		memcpy(c->v + begin, sorted, (end - begin) * sizeof(*sorted));
	}
	free(sorted);
	return OD_OK;
}

static int put_char(struct tok_buf *out, int32_t cp)
{
	utf8proc_uint8_t b[4];

	return tok_buf_add(out, b, (size_t)utf8proc_encode_char(cp, b));
}

/* Text without inert characters, appended to out. */
static int add_piece(struct code_points *c, utf8proc_option_t options, const char *text, size_t len,
		     struct tok_buf *out)
{
	utf8proc_ssize_t left;
	int rc;

	c->n = 0;
	rc = decompose(c, text, len, options);
	if (rc == OD_OK)
		rc = order_marks(c);
	if (rc != OD_OK || c->n == 0)
		return rc;
	left = (options & UTF8PROC_COMPOSE) != 0 ? utf8proc_normalize_utf32(c->v, (utf8proc_ssize_t)c->n, options) :
						   (utf8proc_ssize_t)c->n;
	if (left < 0)
		return OD_ERR_INTERNAL;
	for (utf8proc_ssize_t i = 0; i < left && rc == OD_OK; i++)
		rc = put_char(out, c->v[i]);
	return rc;
}

/* One in front of the first trailing consonant: no character of Hangul, but utf8proc 2.8 takes it for one and drops it
 * behind a syllable. Nothing is composed with it, and nothing goes past it. */
#define HANGUL_T_BASE 0x11a7

/* No form changes two ASCII characters in a row, or what is on both sides of them together: with a trace, pieces end
 * there, too. */
static bool ends_piece(const struct tok_trace *trace, const char *text, size_t at, size_t len, int32_t cp)
{
	if (trace != NULL && cp < 0x80 && at + 1 < len && (unsigned char)text[at + 1] < 0x80)
		return true;
	return cp >= 0x300 && (cp == HANGUL_T_BASE || tok_is_inert(cp));
}

static int add_form(struct code_points *c, utf8proc_option_t options, const char *text, size_t len, struct tok_buf *out,
		    struct tok_trace *trace)
{
	size_t begin = 0;
	int32_t cp;
	int rc = OD_OK;

	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		n = tok_char(text + at, len - at, &cp);
		if (!ends_piece(trace, text, at, len, cp))
			continue;
		rc = add_piece(c, options, text + begin, at - begin, out);
		if (rc == OD_OK)
			rc = tok_trace_made(trace, out, begin, at);
		if (rc == OD_OK)
			rc = tok_buf_add(out, text + at, n);
		if (rc == OD_OK)
			rc = tok_trace_kept(trace, at, at + n);
		begin = at + n;
	}
	if (rc == OD_OK)
		rc = add_piece(c, options, text + begin, len - begin, out);
	return rc == OD_OK ? tok_trace_made(trace, out, begin, len) : rc;
}

/* Text [begin, end) was appended to out in its composed form: as a rule its first character is still what it was. */
static int trace_composed(struct tok_trace *trace, const char *text, size_t begin, size_t end,
			  const struct tok_buf *out)
{
	const size_t at = trace == NULL ? 0 : trace->to.len;
	int32_t cp;
	size_t n;
	int rc = OD_OK;

	if (trace == NULL || begin == end)
		return OD_OK;
	n = tok_char(text + begin, end - begin, &cp);
	if (out->len - at < n || memcmp(out->data + at, text + begin, n) != 0)
		n = 0;
	rc = tok_trace_kept(trace, begin, begin + n);
	return rc == OD_OK ? tok_trace_made(trace, out, begin + n, end) : rc;
}

/* NFC: most of a text has the form already. Only what stands from the character before one that may move to the next
 * that does not is looked at. */
static int add_composed(struct code_points *c, utf8proc_option_t options, const char *text, size_t len,
			struct tok_buf *out, struct tok_trace *trace)
{
	size_t done = 0, before = 0, at = 0;
	int32_t cp;
	int rc = OD_OK;

	while (at < len && rc == OD_OK) {
		size_t n = tok_char(text + at, len - at, &cp);

		if ((tok_class[cp] & TOK_C_MOVES) == 0) {
			before = at;
			at += n;
			continue;
		}
		rc = tok_buf_add(out, text + done, before - done);
		if (rc == OD_OK)
			rc = tok_trace_kept(trace, done, before);
		for (; at < len; at += n) {
			n = tok_char(text + at, len - at, &cp);
			if ((tok_class[cp] & TOK_C_MOVES) == 0)
				break;
		}
		if (rc == OD_OK)
			rc = add_form(c, options, text + before, at - before, out, NULL);
		if (rc == OD_OK)
			rc = trace_composed(trace, text, before, at, out);
		done = before = at;
	}
	if (rc == OD_OK)
		rc = tok_buf_add(out, text + done, len - done);
	return rc == OD_OK ? tok_trace_kept(trace, done, len) : rc;
}

static int unicode(const struct tok_norm *n, const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace)
{
	const bool nfc = n->options == (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	struct code_points c = { 0 };
	int rc = nfc ? add_composed(&c, n->options, text, len, out, trace) :
		       add_form(&c, n->options, text, len, out, trace);

	free(c.v);
	return rc;
}

/* ---- the others ---- */

static int lowercase(const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace)
{
	int32_t cp;
	int rc = OD_OK;

	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		n = tok_char(text + at, len - at, &cp);
		if (cp == 0x130) /* the only character whose lower case is always two: i and a dot above */
			rc = tok_buf_add(out, "i\xcc\x87", 3);
		else
			rc = put_char(out, tok_tolower(cp));
		if (rc == OD_OK)
			rc = tok_trace_made(trace, out, at, at + n);
	}
	return rc;
}

static int strip_accents(const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace, bool *dropped)
{
	int32_t cp;
	int rc = OD_OK;

	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		n = tok_char(text + at, len - at, &cp);
		if (!tok_is_mark(cp))
			rc = tok_buf_add(out, text + at, n);
		else if (at == 0)
			*dropped = true;
		if (rc == OD_OK)
			rc = tok_trace_made(trace, out, at, at + n);
	}
	return rc;
}

static int strip(const struct tok_norm *s, const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace,
		 bool *dropped)
{
	size_t begin = 0, end = 0, n;
	int32_t cp;
	int rc;

	while (s->left && begin < len) {
		n = tok_char(text + begin, len - begin, &cp);
		if (!tok_is_space(cp))
			break;
		begin += n;
	}
	for (size_t at = begin; at < len; at += n) { /* end: behind the last character that stays */
		n = tok_char(text + at, len - at, &cp);
		if (!s->right || !tok_is_space(cp))
			end = at + n;
	}
	*dropped |= begin > 0;
	if (end <= begin)
		return OD_OK;
	rc = tok_buf_add(out, text + begin, end - begin);
	return rc == OD_OK ? tok_trace_kept(trace, begin, end) : rc;
}

static int replace(const struct tok_norm *r, const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace,
		   bool *dropped, struct od_err *err)
{
	int rc = tok_regex_replace(r->re, r->content, r->content_len, text, len, out, trace, err);
	int32_t a, b;

	/* Replaced by nothing at the very beginning: seen by the first character not being there any more. */
	if (rc == OD_OK && r->content_len == 0 && len > 0 && out->len < len) {
		if (out->len == 0)
			*dropped = true;
		else {
			tok_char(text, len, &a);
			tok_char(out->data, out->len, &b);
			*dropped |= a != b;
		}
	}
	return rc;
}

static int run_one(const struct tok_norm *n, const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace,
		   bool *dropped, struct od_err *err)
{
	int rc = OD_OK;

	switch (n->kind) {
	case NORM_UNICODE: rc = unicode(n, text, len, out, trace); break;
	case NORM_LOWERCASE: rc = lowercase(text, len, out, trace); break;
	case NORM_PREPEND:
		if (len == 0)
			break;
		rc = tok_buf_add(out, n->content, n->content_len);
		if (rc == OD_OK)
			rc = tok_trace_made(trace, out, 0, 0);
		if (rc == OD_OK)
			rc = tok_buf_add(out, text, len);
		if (rc == OD_OK)
			rc = tok_trace_kept(trace, 0, len);
		break;
	case NORM_REPLACE: return replace(n, text, len, out, trace, dropped, err);
	case NORM_STRIP: rc = strip(n, text, len, out, trace, dropped); break;
	case NORM_STRIP_ACCENTS: rc = strip_accents(text, len, out, trace, dropped); break;
	}
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "normalising a text of %zu bytes", len);
}

int tok_norms_run(const struct tok_norms *all, const char *text, size_t len, bool first, struct tok_buf *out,
		  struct tok_buf *users, bool *dropped, struct od_err *err)
{
	struct tok_buf next = { 0 }, swap;
	struct tok_trace trace = { 0 };
	int rc;

	*dropped = false;
	out->len = 0;
	out->max_bytes = next.max_bytes = tok_max_grown(len);
	rc = tok_buf_add(out, text, len);
	if (rc != OD_OK)
		return od_fail(err, rc, "normalising a text of %zu bytes", len);
	for (size_t i = 0; i < all->n && rc == OD_OK; i++) {
		if (all->v[i].kind == NORM_PREPEND && all->prepend_first && !first)
			continue;
		next.len = trace.to.len = 0;
		trace.from = users != NULL ? users->data : NULL;
		rc = tok_buf_reserve(&next, 0); /* its data is never NULL */
		if (rc == OD_OK)
			rc = run_one(&all->v[i], out->data, out->len, &next, users != NULL ? &trace : NULL, dropped,
				     err);
		else
			od_fail(err, rc, "normalising a text of %zu bytes", len);
		swap = *out;
		*out = next;
		next = swap;
		if (users != NULL) {
			swap = *users;
			*users = trace.to;
			trace.to = swap;
		}
	}
	tok_buf_fini(&next);
	tok_buf_fini(&trace.to);
	return rc;
}
