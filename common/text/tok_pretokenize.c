/* Pre-tokenisers: cut pieces into smaller ones (words, as a rule), some of them rewriting the text. */
#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/json.h"
#include "common/text/tok_scan.h"

enum pre_kind { PRE_BYTE_LEVEL, PRE_SPLIT, PRE_SCAN, PRE_CHARS, PRE_METASPACE };
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

struct tok_pre {
	enum pre_kind kind;
	struct tok_regex *re; /* PRE_SPLIT */
	enum tok_scan_kind scan; /* PRE_SCAN; PRE_BYTE_LEVEL: NONE without its regex */
	unsigned stage; /* PRE_SPLIT: which of DeepSeek-V3's three; 0: another */
	enum behavior behavior;
	bool invert;
	bool prefix_space; /* PRE_BYTE_LEVEL */
	/* PRE_CHARS: spans of characters of one class; class 0 is what does not match. */
	unsigned (*class_of)(int32_t cp);
	bool single; /* each matching character on its own */
	char rep[4]; /* PRE_METASPACE */
	size_t rep_len;
	enum tok_prepend scheme;
	bool split;
};

/* ---- the byte alphabet of GPT-2 ---- */

/* Printable Latin-1 stands for itself; the 68 others follow from U+0100 in order of the byte. */
static bool shows_itself(int32_t b)
{
	return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

int32_t tok_byte_to_char(uint8_t b)
{
	if (shows_itself(b))
		return b;
	if (b <= 0x20)
		return 0x100 + b;
	if (b == 0xad)
		return 0x143;
	return 0x121 + (b - 0x7f); /* 7f to a0 */
}

int tok_char_to_byte(int32_t cp)
{
	if (cp < 0x100)
		return shows_itself(cp) ? (int)cp : -1;
	if (cp <= 0x120)
		return (int)(cp - 0x100);
	if (cp <= 0x142)
		return (int)(cp - 0x121 + 0x7f);
	return cp == 0x143 ? 0xad : -1;
}

/* ---- loading ---- */

static int parse_behavior(const json_t *obj, enum behavior fallback, enum behavior *out, const char *where,
			  struct od_err *err)
{
	static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
					     "Contiguous" };
	const char *s;
	int rc;

	*out = fallback;
	if (!od_json_has(obj, "behavior"))
		return OD_OK;
	rc = od_json_str(obj, "behavior", &s, where, err);
	if (rc != OD_OK)
		return rc;
	for (int i = 0; i < 5; i++) {
		if (strcmp(s, names[i]) == 0) {
			*out = (enum behavior)i;
			return OD_OK;
		}
	}
	return tok_unsupported(err, where, "pre_tokenizer Split with behavior", s,
			       "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

static unsigned class_space(int32_t cp)
{
	return tok_is_space(cp);
}

static unsigned class_numeric(int32_t cp)
{
	return tok_is_numeric(cp);
}

static unsigned class_punctuation(int32_t cp)
{
	return tok_is_punctuation(cp);
}

static unsigned class_word(int32_t cp) /* space, word, other */
{
	return tok_is_space(cp) ? 0 : tok_is_word(cp) ? 1 : 2;
}

int tok_metaspace_parse(const json_t *obj, char rep[4], size_t *rep_len, enum tok_prepend *scheme, bool *split,
			const char *where, struct od_err *err)
{
	const char *s, *name = "always";
	bool has = od_json_has(obj, "prepend_scheme"), old;
	int32_t cp;
	int rc;

	rc = od_json_str(obj, "replacement", &s, where, err);
	if (rc == OD_OK && (*s == 0 || tok_char(s, strlen(s), &cp) != strlen(s)))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: Metaspace: field \"replacement\": expected one character, found \"%s\"", where, s);
	if (rc == OD_OK && has)
		rc = od_json_str(obj, "prepend_scheme", &name, where, err);
	if (rc == OD_OK) /* its name before there were schemes */
		rc = od_json_bool_or(obj, "add_prefix_space", has ? strcmp(name, "never") != 0 : true, &old, where,
				     err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "split", true, split, where, err);
	if (rc != OD_OK)
		return rc;
	*rep_len = strlen(s);
	memcpy(rep, s, *rep_len);
	if (!old && !has)
		name = "never";
	if (!old && strcmp(name, "never") != 0)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: Metaspace: field \"add_prefix_space\" is false, but \"prepend_scheme\" is \"%s\"",
			       where, name);
	if (strcmp(name, "always") == 0)
		*scheme = TOK_PREPEND_ALWAYS;
	else if (strcmp(name, "first") == 0)
		*scheme = TOK_PREPEND_FIRST;
	else if (strcmp(name, "never") == 0)
		*scheme = TOK_PREPEND_NEVER;
	else
		return tok_unsupported(err, where, "Metaspace with prepend_scheme", name, "always, first, never");
	return OD_OK;
}

static int parse_byte_level(struct tok_pre *p, const json_t *obj, const char *where, struct od_err *err)
{
	bool use_regex;
	int rc;

	p->kind = PRE_BYTE_LEVEL;
	p->behavior = ISOLATED;
	rc = od_json_bool_or(obj, "add_prefix_space", true, &p->prefix_space, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "use_regex", true, &use_regex, where, err);
	p->scan = rc == OD_OK && use_regex ? TOK_SCAN_GPT2 : TOK_SCAN_NONE;
	return rc;
}

static int parse_split(struct tok_pre *p, const json_t *obj, const char *where, struct od_err *err)
{
	const json_t *pattern = json_object_get(json_object_get(obj, "pattern"), "Regex");
	const char *literal;
	size_t len;
	int rc;

	p->kind = PRE_SPLIT;
	rc = parse_behavior(obj, ISOLATED, &p->behavior, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(obj, "invert", false, &p->invert, where, err);
	/* The known patterns match all of a text (but for DeepSeek-V3's), so to keep only the matches is to isolate
	 * them. */
	if (rc == OD_OK && (p->behavior == ISOLATED || (p->behavior == REMOVED && p->invert)) &&
	    json_is_string(pattern))
		p->scan = tok_scan_find(json_string_value(pattern), json_string_length(pattern), &p->stage);
	if (p->behavior != ISOLATED && p->stage != 0) {
		p->stage = 0;
		p->scan = TOK_SCAN_NONE;
	}
	if (p->scan != TOK_SCAN_NONE && p->stage == 0)
		p->kind = PRE_SCAN;
	else if (rc == OD_OK)
		rc = tok_regex_parse(&p->re, &literal, &len, obj, where, err);
	return rc;
}

static int parse_chars(struct tok_pre *p, unsigned (*class_of)(int32_t), enum behavior behavior, bool single)
{
	p->kind = PRE_CHARS;
	p->class_of = class_of;
	p->behavior = behavior;
	p->single = single;
	return OD_OK;
}

static int parse_digits(struct tok_pre *p, const json_t *obj, const char *where, struct od_err *err)
{
	bool individual;
	int rc = od_json_bool_or(obj, "individual_digits", false, &individual, where, err);

	if (rc != OD_OK)
		return rc;
	return parse_chars(p, class_numeric, individual ? ISOLATED : CONTIGUOUS, true);
}

static int parse_one(void *arg, const char *type, const json_t *obj, const char *where, struct od_err *err)
{
	struct tok_pres *all = arg;
	struct tok_pre *p = &all->v[all->n];
	int rc;

	if (all->n == TOK_MAX_STEPS)
		return od_fail(err, OD_ERR_RANGE, "%s: expected at most %u pre-tokenizers", where, TOK_MAX_STEPS);
	all->n++;
	if (strcmp(type, "ByteLevel") == 0)
		return parse_byte_level(p, obj, where, err);
	if (strcmp(type, "Split") == 0)
		return parse_split(p, obj, where, err);
	if (strcmp(type, "Digits") == 0)
		return parse_digits(p, obj, where, err);
	if (strcmp(type, "Punctuation") == 0) {
		rc = parse_chars(p, class_punctuation, ISOLATED, true);
		return rc == OD_OK ? parse_behavior(obj, ISOLATED, &p->behavior, where, err) : rc;
	}
	if (strcmp(type, "Whitespace") == 0) /* runs of word characters, runs of others */
		return parse_chars(p, class_word, REMOVED, false);
	if (strcmp(type, "WhitespaceSplit") == 0)
		return parse_chars(p, class_space, REMOVED, true);
	if (strcmp(type, "Metaspace") == 0) {
		p->kind = PRE_METASPACE;
		return tok_metaspace_parse(obj, p->rep, &p->rep_len, &p->scheme, &p->split, where, err);
	}
	return tok_unsupported(
		err, where, "pre_tokenizer", type,
		"Sequence, ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace");
}

/* Steps that together are one that we know. */
static void unite(struct tok_pres *all)
{
	struct tok_pre *last = &all->v[all->n > 0 ? all->n - 1 : 0];

	for (size_t i = 0; i + 2 < all->n; i++) {
		struct tok_pre *p = &all->v[i];

		if (p[0].stage != 1 || p[1].stage != 2 || p[2].stage != 3)
			continue;
		for (int k = 0; k < 3; k++)
			tok_regex_free(p[k].re);
		*p = (struct tok_pre){ .kind = PRE_SCAN, .scan = TOK_SCAN_DEEPSEEK_V3 };
		memmove(p + 1, p + 3, (all->n - i - 3) * sizeof(*p));
		all->n -= 2;
		memset(&all->v[all->n], 0, 2 * sizeof(*p));
	}
	last = &all->v[all->n > 0 ? all->n - 1 : 0];
	if (all->n == 0 || last->kind != PRE_BYTE_LEVEL || last->prefix_space)
		return;
	all->raw = true;
	if (last->scan != TOK_SCAN_NONE)
		last->kind = PRE_SCAN;
	else
		all->n--;
}

int tok_pres_parse(struct tok_pres *out, const json_t *obj, const char *where, struct od_err *err)
{
	int rc;

	out->n = 0;
	out->v = calloc(TOK_MAX_STEPS, sizeof(*out->v));
	if (out->v == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: pre-tokenizers", where);
	rc = tok_walk(obj, "pre_tokenizer", "pretokenizers", where, parse_one, out, err);
	if (rc == OD_OK)
		unite(out);
	return rc;
}

enum tok_scan_kind tok_pres_scan(const struct tok_pres *all)
{
	return all->n > 0 && all->v[all->n - 1].kind == PRE_SCAN ? all->v[all->n - 1].scan : TOK_SCAN_NONE;
}

void tok_pres_fini(struct tok_pres *all)
{
	for (size_t i = 0; i < all->n; i++)
		tok_regex_free(all->v[i].re);
	free(all->v);
	memset(all, 0, sizeof(*all));
}

/* ---- splitting ---- */

/* Applies the behaviour to the matches: spans become the pieces that stay; match now means "leave it out". */
static void apply(enum behavior behavior, struct tok_spans *s)
{
	bool previous = false;
	size_t n = 0;

	if (behavior == MERGED_WITH_NEXT) { /* as with the previous, from the end */
		n = s->n;
		for (size_t i = s->n; i-- > 0;) {
			bool match = s->v[i].match;

			if (match && !previous && n < s->n)
				s->v[n].begin = s->v[i].begin;
			else
				s->v[--n] = s->v[i];
			s->v[n].match = false;
			previous = match;
		}
		memmove(s->v, s->v + n, (s->n - n) * sizeof(*s->v));
		s->n -= n;
		return;
	}
	for (size_t i = 0; i < s->n; i++) {
		bool match = s->v[i].match, join = false;

		if (behavior == MERGED_WITH_PREVIOUS)
			join = match && !previous && n > 0;
		else if (behavior == CONTIGUOUS)
			join = match == previous && n > 0;
		if (join)
			s->v[n - 1].end = s->v[i].end;
		else
			s->v[n++] = s->v[i];
		if (behavior != REMOVED)
			s->v[n - 1].match = false;
		previous = match;
	}
	s->n = n;
}

static int char_spans(const struct tok_pre *p, const char *text, size_t len, struct tok_spans *out)
{
	size_t begin = 0;
	unsigned current = 0;
	int32_t cp;
	int rc = OD_OK;

	out->n = 0;
	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		unsigned class;

		n = tok_char(text + at, len - at, &cp);
		class = p->class_of(cp);
		if (at > begin && (class != current || (p->single && class != 0))) {
			rc = tok_spans_add(out, begin, at, current != 0);
			begin = at;
		}
		current = class;
	}
	return rc == OD_OK && begin < len ? tok_spans_add(out, begin, len, current != 0) : rc;
}

static int add_piece(struct tok_pieces *dst, struct tok_piece added)
{
	int rc = tok_grow(&dst->v, dst->n, &dst->cap, sizeof(*dst->v));

	if (rc == OD_OK)
		dst->v[dst->n++] = added;
	return rc;
}

/* A piece whose text begins at `at` of dst, or of the source where that keeps its text, cut by spans. */
static int emit(size_t at, const struct tok_spans *s, bool first, struct tok_pieces *dst)
{
	int rc = OD_OK;

	for (size_t i = 0; i < s->n && rc == OD_OK; i++) {
		size_t begin = s->v[i].begin, end = s->v[i].end;

		if (!s->v[i].match && end > begin)
			rc = add_piece(dst, (struct tok_piece){ at + begin, end - begin, -1, first && begin == 0 });
	}
	return rc;
}

static int run_split(const struct tok_pre *p, const struct tok_piece *piece, const char *text, struct tok_spans *spans,
		     struct tok_pieces *dst, struct od_err *err)
{
	int rc = p->kind == PRE_SPLIT ? tok_regex_spans(p->re, text, piece->len, spans, err) :
					char_spans(p, text, piece->len, spans);

	if (rc != OD_OK)
		return rc;
	/* Whitespace keeps the runs and drops the spaces between them. */
	if (p->invert || p->class_of == class_word)
		for (size_t i = 0; i < spans->n; i++)
			spans->v[i].match = !spans->v[i].match;
	apply(p->behavior, spans);
	return emit(piece->at, spans, piece->first, dst);
}

/* The whole text of the span in the byte alphabet. */
static int add_mapped(struct tok_pieces *dst, const char *text, size_t len, bool first)
{
	size_t at = dst->text.len;
	int rc = tok_pieces_add(dst, "", 0, -1, first);

	if (rc == OD_OK)
		rc = tok_buf_reserve(&dst->text, 2 * len);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < len; i++)
		dst->text.len += (size_t)utf8proc_encode_char(tok_byte_to_char((uint8_t)text[i]),
							      (utf8proc_uint8_t *)dst->text.data + dst->text.len);
	dst->v[dst->n - 1].len = dst->text.len - at;
	return OD_OK;
}

static int run_byte_level(const struct tok_pre *p, const struct tok_piece *piece, const char *text, struct tok_buf *tmp,
			  struct tok_pieces *dst)
{
	size_t len = piece->len, begin, end;
	struct tok_scan s;
	int rc = OD_OK;

	if (p->prefix_space && (len == 0 || text[0] != ' ')) {
		tmp->len = 0;
		rc = tok_buf_add(tmp, " ", 1);
		if (rc == OD_OK)
			rc = tok_buf_add(tmp, text, len);
		text = tmp->data;
		len = tmp->len;
	}
	if (rc != OD_OK)
		return rc;
	s = (struct tok_scan){ .kind = p->scan, .text = text, .len = len };
	while (rc == OD_OK && tok_scan_next(&s, &begin, &end))
		rc = add_mapped(dst, text + begin, end - begin, piece->first && begin == 0);
	return rc;
}

static int run_metaspace(const struct tok_pre *p, const struct tok_piece *piece, const char *text, struct tok_buf *tmp,
			 struct tok_spans *spans, struct tok_pieces *dst)
{
	bool starts, wanted = p->scheme == TOK_PREPEND_ALWAYS || (p->scheme == TOK_PREPEND_FIRST && piece->first);
	size_t begin = 0;
	int rc = OD_OK;

	tmp->len = 0;
	starts = piece->len > 0 &&
		 (text[0] == ' ' || (piece->len >= p->rep_len && memcmp(text, p->rep, p->rep_len) == 0));
	if (wanted && !starts)
		rc = tok_buf_add(tmp, p->rep, p->rep_len);
	for (size_t i = 0; i < piece->len && rc == OD_OK; i++)
		rc = text[i] == ' ' ? tok_buf_add(tmp, p->rep, p->rep_len) : tok_buf_add(tmp, text + i, 1);
	if (rc != OD_OK)
		return rc;
	spans->n = 0;
	if (p->split)
		for (size_t at = 0; at + p->rep_len <= tmp->len && rc == OD_OK;) {
			if (memcmp(tmp->data + at, p->rep, p->rep_len) != 0) {
				at++;
				continue;
			}
			if (at > begin)
				rc = tok_spans_add(spans, begin, at, false);
			if (rc == OD_OK)
				rc = tok_spans_add(spans, at, at + p->rep_len, true);
			begin = at += p->rep_len;
		}
	if (rc == OD_OK && begin < tmp->len)
		rc = tok_spans_add(spans, begin, tmp->len, false);
	if (rc != OD_OK)
		return rc;
	apply(MERGED_WITH_NEXT, spans);
	begin = dst->text.len;
	rc = tok_buf_add(&dst->text, tmp->data, tmp->len);
	return rc == OD_OK ? emit(begin, spans, piece->first, dst) : rc;
}

static int run_scan(const struct tok_pre *p, const struct tok_piece *piece, const char *text, struct tok_pieces *dst)
{
	struct tok_scan s = { .kind = p->scan, .text = text, .len = piece->len };
	size_t begin, end;
	int rc = OD_OK;

	while (rc == OD_OK && tok_scan_next(&s, &begin, &end))
		rc = add_piece(dst,
			       (struct tok_piece){ piece->at + begin, end - begin, -1, piece->first && begin == 0 });
	return rc;
}

static bool rewrites(const struct tok_pre *p)
{
	return p->kind == PRE_BYTE_LEVEL || p->kind == PRE_METASPACE;
}

static int run_one(const struct tok_pre *p, const struct tok_pieces *src, struct tok_pieces *dst, struct tok_buf *tmp,
		   struct tok_spans *spans, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; i < src->n && rc == OD_OK; i++) {
		const struct tok_piece *piece = &src->v[i];
		const char *text = src->text.data + piece->at;

		if (piece->id >= 0) {
			rc = add_piece(dst, (struct tok_piece){ 0, 0, piece->id, false });
			continue;
		}
		switch (p->kind) {
		case PRE_BYTE_LEVEL: rc = run_byte_level(p, piece, text, tmp, dst); break;
		case PRE_SPLIT:
		case PRE_CHARS: rc = run_split(p, piece, text, spans, dst, err); break;
		case PRE_SCAN: rc = run_scan(p, piece, text, dst); break;
		case PRE_METASPACE: rc = run_metaspace(p, piece, text, tmp, spans, dst); break;
		}
	}
	return rc;
}

/* Steps that only cut keep the text where it is. */
int tok_pres_run(const struct tok_pres *all, struct tok_pieces *pieces, struct od_err *err)
{
	const size_t n = all->n - (tok_pres_scan(all) != TOK_SCAN_NONE ? 1 : 0);
	struct tok_pieces next = { 0 }, swap;
	struct tok_spans spans = { 0 };
	struct tok_buf tmp = { 0 };
	int rc = all->slices ? tok_slices_cut(pieces) : OD_OK;

	next.text.max_bytes = tmp.max_bytes = pieces->text.max_bytes;
	for (size_t i = 0; i < n && rc == OD_OK; i++) {
		tok_pieces_clear(&next);
		rc = run_one(&all->v[i], pieces, &next, &tmp, &spans, err);
		swap = *pieces;
		*pieces = next;
		next = swap;
		if (!rewrites(&all->v[i])) {
			struct tok_buf text = pieces->text;

			pieces->text = next.text;
			next.text = text;
		}
	}
	if (rc == OD_ERR_NOMEM)
		od_fail(err, rc, "a text of %zu bytes", pieces->text.len);
	tok_pieces_fini(&next);
	free(spans.v);
	tok_buf_fini(&tmp);
	return rc;
}
