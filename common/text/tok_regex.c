/* Oniguruma patterns (Ruby syntax, which tokenizer.json is written in) on PCRE2.
 *
 * The two agree on most of what such patterns use. What they read differently is rewritten here (\w, \s, \h,
 * POSIX classes, scripts, {n,m}+, {n}?); what cannot be is refused by name. */
#include "common/text/tok_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define MATCH_LIMIT 20000000u /* backtracking steps of one match: under a second, enough for 1 MB of spaces */
#define HEAP_LIMIT_KIB 131072u /* for PCRE2's interpreter */
#define MAX_PATTERN_BYTES 65536u
#define MAX_GROUPS 200

struct tok_regex {
	pcre2_code *code;
	pcre2_match_context *limits;
};

/* ---- rewriting ---- */

#if PCRE2_MAJOR == 10 && PCRE2_MINOR < 40 /* as in Ubuntu 22.04 */
/* A bare name is the script alone. There are no properties but categories: patterns that name others are refused.
 * In a class a set ends with a range, so that a hyphen behind it is a hyphen, as behind \p{...}. */
#define SCRIPT ""
#define SPACE_IN_CLASS \
	"\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{2000}-\\x{200a}"
#define OTHER_IN_CLASS \
	"\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}" \
	"\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define SPACE "[" SPACE_IN_CLASS "]"
#define OTHER "[" OTHER_IN_CLASS "]"
/* but marks */
#define ALPHABETIC "\\p{L}\\p{Nl}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#else
#define SCRIPT "sc:"
#define SPACE "\\p{White_Space}"
#define OTHER "\\P{White_Space}"
#define SPACE_IN_CLASS SPACE
#define OTHER_IN_CLASS OTHER
#define ALPHABETIC "\\p{Alphabetic}"
#endif

/* Oniguruma's \w in a class and on its own, found by asking it for every code point: on its own it also takes
 * the superscripts and fractions of Latin-1. */
#define WORD_IN_CLASS ALPHABETIC "\\p{M}\\p{Nd}\\p{Pc}"
#define WORD WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

struct rewrite {
	const char *in;
	size_t len, at;
	struct tok_buf out;
	size_t atom; /* where in out the last atom begins */
	size_t group[MAX_GROUPS]; /* where open groups begin */
	unsigned n_groups;
	const char *where;
	struct od_err *err;
};

static int refuse(struct rewrite *r, const char *what)
{
	return od_fail(r->err, OD_ERR_UNSUPPORTED,
		       "%s: regular expression \"%.200s\": %s (at byte %zu) is not supported", r->where, r->in, what,
		       r->at);
}

static int put(struct rewrite *r, const char *s, size_t len)
{
	int rc = tok_buf_add(&r->out, s, len);

	return rc == OD_OK ? OD_OK : od_fail(r->err, rc, "%s: regular expression", r->where);
}

static int put_text(struct rewrite *r, const char *s)
{
	return put(r, s, strlen(s));
}

static int peek(const struct rewrite *r, size_t ahead)
{
	return r->at + ahead < r->len ? (unsigned char)r->in[r->at + ahead] : -1;
}

static bool alpha(int c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool digit(int c)
{
	return c >= '0' && c <= '9';
}

static bool one_of(int c, const char *set)
{
	return c > 0 && strchr(set, c) != NULL;
}

/* \p{Name}: general categories are the same; a longer name is one of a few properties or a script (PCRE2 would
 * read a bare script name as script extensions). */
static int rewrite_property(struct rewrite *r)
{
	static const char *const props[][2] = {
		{ "Any", "Any" },
		{ "Letter", "L" },
		{ "Mark", "M" },
		{ "Number", "N" },
		{ "Punctuation", "P" },
		{ "Symbol", "S" },
		{ "Separator", "Z" },
		{ "Other", "C" },
		{ "Alpha", "Alphabetic" },
		{ "Alphabetic", "Alphabetic" },
		{ "Upper", "Uppercase" },
		{ "Uppercase", "Uppercase" },
		{ "Lower", "Lowercase" },
		{ "Lowercase", "Lowercase" },
		{ "Digit", "Nd" },
		{ "Space", "White_Space" },
		{ "White_Space", "White_Space" },
		{ "Cntrl", "Cc" },
	};
	const char *end, *name, *prefix = SCRIPT;
	char buf[64];
	size_t n;
	int rc;

	if (peek(r, 2) != '{')
		return refuse(r, "\\p without braces");
	end = memchr(r->in + r->at, '}', r->len - r->at);
	name = r->in + r->at + 3;
	n = end == NULL ? 0 : (size_t)(end - name);
	rc = put(r, r->in + r->at, 3);
	if (rc == OD_OK && n > 0 && *name == '^') {
		rc = put_text(r, "^");
		name++;
		n--;
	}
	if (rc != OD_OK)
		return rc;
	if (n == 0 || n >= sizeof(buf))
		return refuse(r, "this \\p{...}");
	memcpy(buf, name, n);
	buf[n] = 0;
	for (size_t i = 0; i < n; i++)
		if (!alpha(buf[i]) && buf[i] != '_')
			return refuse(r, "this \\p{...}");
	if (n <= 2)
		prefix = "";
	r->at = (size_t)(end - r->in) + 1;
	for (size_t i = 0; i < sizeof(props) / sizeof(props[0]); i++) {
		if (strcmp(buf, props[i][0]) == 0) {
			rc = put_text(r, props[i][1]);
			return rc == OD_OK ? put_text(r, "}") : rc;
		}
	}
	rc = put_text(r, prefix);
	if (rc == OD_OK)
		rc = put(r, buf, n);
	return rc == OD_OK ? put_text(r, "}") : rc;
}

/* \x41, \x{41}, \u0041. */
static int rewrite_code_point(struct rewrite *r)
{
	bool u = peek(r, 1) == 'u', braces = !u && peek(r, 2) == '{';
	size_t begin = r->at + (braces ? 3 : 2), n = 0, max = braces ? 8 : u ? 4 : 2;
	int rc;

	while (n < max && begin + n < r->len && one_of((unsigned char)r->in[begin + n], "0123456789abcdefABCDEF"))
		n++;
	if (n == 0 || (u && n != 4) || (braces && (begin + n >= r->len || r->in[begin + n] != '}')))
		return refuse(r, "this escape");
	if (!u && !braces && n == 2 && r->in[begin] >= '8') /* Oniguruma means a byte by it */
		return refuse(r, "a byte above 7f");
	rc = put_text(r, "\\x{");
	if (rc == OD_OK)
		rc = put(r, r->in + begin, n);
	r->at = begin + n + (braces ? 1 : 0);
	return rc == OD_OK ? put_text(r, "}") : rc;
}

/* An escape that stands for a character or a set of them; r->at is at the backslash. */
static int rewrite_escape(struct rewrite *r, bool in_class)
{
	int c = peek(r, 1);
	const char *as = NULL;
	size_t n = 2;

	if (c == 'p' || c == 'P')
		return rewrite_property(r);
	if (c == 'x' || c == 'u')
		return rewrite_code_point(r);
	if (c == 's')
		as = in_class ? SPACE_IN_CLASS : SPACE;
	else if (c == 'S')
		as = in_class ? OTHER_IN_CLASS : OTHER;
	else if (c == 'w')
		as = in_class ? WORD_IN_CLASS : "[" WORD "]";
	else if (c == 'W' && !in_class)
		as = "[^" WORD "]";
	else if (c == 'h')
		as = in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
	else if (c == 'H' && !in_class)
		as = "[^0-9A-Fa-f]";
	else if (c == 'v')
		as = "\\x{b}";
	else if (c == 'b' && in_class)
		as = "\\x{8}";
	else if (c < 0 || digit(c) || (alpha(c) && !one_of(c, "dDtnrfae")))
		return refuse(r, "this escape");
	if (as != NULL) {
		r->at += 2;
		return put_text(r, as);
	}
	if (c >= 0x80) { /* the whole character */
		int32_t cp;

		n = 1 + tok_char(r->in + r->at + 1, r->len - r->at - 1, &cp);
	}
	r->at += n;
	return put(r, r->in + r->at - n, n);
}

/* [:alpha:] and its like in a class; r->at is at the inner bracket. */
static int rewrite_posix(struct rewrite *r)
{
	static const char *const sets[][2] = {
		{ "[:alpha:]", "\\p{Alphabetic}" }, { "[:alnum:]", "\\p{Alphabetic}\\p{Nd}" },
		{ "[:punct:]", "\\p{P}\\p{S}" },    { "[:space:]", SPACE_IN_CLASS },
		{ "[:upper:]", "\\p{Uppercase}" },  { "[:lower:]", "\\p{Lowercase}" },
		{ "[:digit:]", "\\p{Nd}" },	    { "[:cntrl:]", "\\p{Cc}" },
		{ "[:blank:]", "\\p{Zs}\\t" },	    { "[:xdigit:]", "0-9A-Fa-f" },
	};

	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		size_t n = strlen(sets[i][0]);

		if (n <= r->len - r->at && memcmp(r->in + r->at, sets[i][0], n) == 0) {
			r->at += n;
			return put_text(r, sets[i][1]);
		}
	}
	return refuse(r, "a class in a class");
}

static int rewrite_class(struct rewrite *r)
{
	bool head = true;
	int rc = put_text(r, "[");

	r->at++;
	if (rc == OD_OK && peek(r, 0) == '^') {
		rc = put_text(r, "^");
		r->at++;
	}
	while (rc == OD_OK) {
		int c = peek(r, 0);

		if (c < 0 || (c == ']' && head))
			return refuse(r, c < 0 ? "a class without its ]" : "] at the head of a class");
		head = false;
		if (c == '[') {
			rc = rewrite_posix(r);
		} else if (c == '\\') {
			rc = rewrite_escape(r, true);
		} else if (c == '&' && peek(r, 1) == '&') {
			return refuse(r, "&& in a class");
		} else {
			rc = put(r, r->in + r->at, 1);
			r->at++;
			if (c == ']')
				break;
		}
	}
	return rc;
}

/* r->at is at "(". Groups that both sides read alike; options only i, and switched on in the open only at the
 * very beginning, because their reach differs. */
static int rewrite_group(struct rewrite *r)
{
	size_t n = 1;
	int rc;

	if (r->n_groups == MAX_GROUPS)
		return refuse(r, "so deep a nesting");
	if (peek(r, 1) == '*')
		return refuse(r, "(*");
	if (peek(r, 1) == '?') {
		n = 2;
		if (peek(r, 2) == '<' && one_of(peek(r, 3), "=!"))
			n = 4;
		else if (one_of(peek(r, 2), ":=!>"))
			n = 3;
		else if (peek(r, 2) == 'i' && peek(r, 3) == ':')
			n = 4;
		else if (peek(r, 2) == '-' && peek(r, 3) == 'i' && peek(r, 4) == ':')
			n = 5;
		else if (r->at == 0 && peek(r, 2) == 'i' && peek(r, 3) == ')') {
			r->at = 4;
			r->atom = 4;
			return put_text(r, "(?i)");
		} else
			return refuse(r, "this kind of group");
	}
	r->group[r->n_groups++] = r->out.len;
	rc = put(r, r->in + r->at, n);
	r->at += n;
	r->atom = r->out.len;
	return rc;
}

static int insert(struct rewrite *r, size_t at, const char *s)
{
	size_t n = strlen(s), tail = r->out.len - at;
	int rc = put_text(r, s);

	if (rc == OD_OK) {
		memmove(r->out.data + at + n, r->out.data + at, tail);
		memcpy(r->out.data + at, s, n);
	}
	return rc;
}

/* r->at is at "{" of {n}, {n,}, {n,m} or {,m}. Behind it + repeats and ? makes {n} optional; PCRE2 would read
 * possessive and lazy. */
static int rewrite_count(struct rewrite *r, bool *is_count)
{
	size_t i = 1;
	bool from = false, comma = false, to = false;
	int rc, next;

	for (; digit(peek(r, i)); i++)
		from = true;
	if (peek(r, i) == ',') {
		comma = true;
		for (i++; digit(peek(r, i)); i++)
			to = true;
	}
	*is_count = peek(r, i) == '}' && (from || (comma && to));
	if (!*is_count)
		return OD_OK;
	rc = put_text(r, from ? "{" : "{0");
	if (rc == OD_OK)
		rc = put(r, r->in + r->at + 1, i);
	r->at += i + 1;
	next = peek(r, 0);
	if (rc == OD_OK && (next == '+' || (next == '?' && !comma))) {
		rc = insert(r, r->atom, "(?:");
		if (rc == OD_OK)
			rc = put_text(r, ")");
		if (rc == OD_OK)
			rc = put(r, r->in + r->at++, 1);
	} else if (rc == OD_OK && next == '?') {
		rc = put(r, r->in + r->at++, 1);
	}
	return rc;
}

static int rewrite_one(struct rewrite *r)
{
	static const char edge[] = "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))";
	static const char no_edge[] = "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))";
	int c = peek(r, 0), next = peek(r, 1);
	bool is_count;
	int32_t cp;
	size_t n;
	int rc;

	if (c == '*' || c == '+' || c == '?') { /* with a second one behind it: lazy or possessive on both sides */
		n = next == '?' || next == '+' ? 2 : 1;
		r->at += n;
		return put(r, r->in + r->at - n, n);
	}
	if (c == '{') {
		rc = rewrite_count(r, &is_count);
		if (rc != OD_OK || is_count)
			return rc;
		return refuse(r, "a brace that is not a repetition");
	}
	if (c == '(')
		return rewrite_group(r);
	if (c == ')') {
		if (r->n_groups == 0)
			return refuse(r, "an unmatched parenthesis");
		r->atom = r->group[--r->n_groups];
		r->at++;
		return put_text(r, ")");
	}
	r->atom = r->out.len;
	if (c == '[')
		return rewrite_class(r);
	if (c == '\\' && (next == 'b' || next == 'B')) {
		r->at += 2;
		return put_text(r, next == 'b' ? edge : no_edge);
	}
	if (c == '\\' && one_of(next, "AzZ")) {
		r->at += 2;
		return put(r, r->in + r->at - 2, 2);
	}
	if (c == '\\')
		return rewrite_escape(r, false);
	n = tok_char(r->in + r->at, r->len - r->at, &cp);
	r->at += n;
	return put(r, r->in + r->at - n, n);
}

/* ---- compiling ---- */

static int compile(struct tok_regex *re, const char *pattern, size_t len, bool literal, const char *shown,
		   const char *where, struct od_err *err)
{
	uint32_t options =
		PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
	pcre2_compile_context *c = pcre2_compile_context_create(NULL);
	PCRE2_UCHAR why[120];
	PCRE2_SIZE at;
	int code;

	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: regular expression", where);
	pcre2_set_newline(c, PCRE2_NEWLINE_LF); /* Ruby's . ^ $ know no other */
	re->code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &at, c);
	pcre2_compile_context_free(c);
	if (re->code == NULL) {
		pcre2_get_error_message(code, why, sizeof(why));
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: regular expression \"%.200s\": %s", where, shown,
			       (const char *)why);
	}
	re->limits = pcre2_match_context_create(NULL);
	if (re->limits == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: regular expression", where);
	pcre2_set_match_limit(re->limits, MATCH_LIMIT);
	pcre2_set_heap_limit(re->limits, HEAP_LIMIT_KIB);
	/* Without a JIT it only takes longer. */
	(void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
	return OD_OK;
}

int tok_regex_new(struct tok_regex **out, const char *pattern, size_t len, bool literal, const char *where,
		  struct od_err *err)
{
	struct rewrite r = { .in = pattern, .len = len, .where = where, .err = err };
	struct tok_regex *re;
	int rc = OD_OK;

	*out = NULL;
	if (len > MAX_PATTERN_BYTES)
		return od_fail(err, OD_ERR_RANGE, "%s: regular expression: expected at most %u bytes, found %zu", where,
			       MAX_PATTERN_BYTES, len);
	re = calloc(1, sizeof(*re));
	if (re == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: regular expression", where);
	while (!literal && rc == OD_OK && r.at < len)
		rc = rewrite_one(&r);
	if (rc == OD_OK && !literal)
		rc = compile(re, r.out.len > 0 ? r.out.data : "", r.out.len, false, pattern, where, err);
	else if (rc == OD_OK)
		rc = compile(re, pattern, len, true, pattern, where, err);
	tok_buf_fini(&r.out);
	if (rc != OD_OK) {
		tok_regex_free(re);
		return rc;
	}
	*out = re;
	return OD_OK;
}

void tok_regex_free(struct tok_regex *re)
{
	if (re == NULL)
		return;
	pcre2_code_free(re->code);
	pcre2_match_context_free(re->limits);
	free(re);
}

int tok_content_parse(char **out, size_t *len, const json_t *obj, const char *key, const char *where,
		      struct od_err *err)
{
	const char *s;
	int rc;

	*out = NULL;
	*len = 0;
	rc = od_json_str(obj, key, &s, where, err);
	if (rc != OD_OK)
		return rc;
	*len = json_string_length(json_object_get(obj, key));
	if (*len > TOK_MAX_CONTENT_BYTES)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"%s\": expected at most %u bytes, found %zu", where, key,
			       TOK_MAX_CONTENT_BYTES, *len);
	*out = malloc(*len + 1);
	if (*out == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: field \"%s\"", where, key);
	memcpy(*out, s, *len + 1);
	return OD_OK;
}

int tok_regex_parse(struct tok_regex **out, const char **literal, size_t *literal_len, const json_t *obj,
		    const char *where, struct od_err *err)
{
	const json_t *s = NULL;
	json_t *pattern;
	int rc;

	*out = NULL;
	*literal = NULL;
	*literal_len = 0;
	rc = od_json_obj(obj, "pattern", &pattern, where, err);
	if (rc != OD_OK)
		return rc;
	s = json_object_get(pattern, "String");
	if (json_is_string(s)) {
		*literal = json_string_value(s);
		*literal_len = json_string_length(s);
		return tok_regex_new(out, *literal, *literal_len, true, where, err);
	}
	s = json_object_get(pattern, "Regex");
	if (!json_is_string(s))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"pattern\": expected {\"String\": ...} or {\"Regex\": ...}", where);
	return tok_regex_new(out, json_string_value(s), json_string_length(s), false, where, err);
}

/* ---- matching ---- */

static int match_once(const struct tok_regex *re, const char *text, size_t len, size_t from, pcre2_match_data *data,
		      struct od_err *err)
{
	/* The text is valid UTF-8; checking it again at each match would make a long text quadratic. */
	uint32_t options = PCRE2_NO_UTF_CHECK;
	PCRE2_UCHAR why[120];
	int n = pcre2_match(re->code, (PCRE2_SPTR)text, len, from, options, data, re->limits);

	if (n == PCRE2_ERROR_JIT_STACKLIMIT)
		n = pcre2_match(re->code, (PCRE2_SPTR)text, len, from, options | PCRE2_NO_JIT, data, re->limits);
	if (n >= 0)
		return 1;
	if (n == PCRE2_ERROR_NOMATCH)
		return 0;
	pcre2_get_error_message(n, why, sizeof(why));
	return od_fail(err, n == PCRE2_ERROR_NOMEMORY ? OD_ERR_NOMEM : OD_ERR_UNSUPPORTED,
		       "a regular expression of the tokenizer on a text of %zu bytes: %s", len, (const char *)why);
}

static int find_all(const struct tok_regex *re, const char *text, size_t len, pcre2_match_data *data,
		    struct tok_spans *out, struct od_err *err)
{
	const PCRE2_SIZE *at = pcre2_get_ovector_pointer(data);
	size_t from = 0, prev = 0;
	bool any = false;
	int32_t cp;
	int rc = OD_OK;

	while (rc == OD_OK && from <= len) {
		int found = match_once(re, text, len, from, data, err);

		if (found < 0)
			return found;
		if (found == 0)
			break;
		/* No empty match right behind the last one. */
		if (at[0] == at[1] && any && at[1] == prev) {
			from += from < len ? tok_char(text + from, len - from, &cp) : 1;
			continue;
		}
		if (at[0] > at[1] || at[0] < prev) /* \K in a lookaround */
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "a regular expression of the tokenizer matches backwards");
		if (prev != at[0])
			rc = tok_spans_add(out, prev, at[0], false);
		if (rc == OD_OK)
			rc = tok_spans_add(out, at[0], at[1], true);
		from = prev = at[1];
		any = true;
	}
	if (rc == OD_OK && prev != len)
		rc = tok_spans_add(out, prev, len, false);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "a text of %zu bytes", len);
}

int tok_regex_spans(const struct tok_regex *re, const char *text, size_t len, struct tok_spans *out, struct od_err *err)
{
	pcre2_match_data *data;
	int rc;

	out->n = 0;
	if (len == 0) {
		rc = tok_spans_add(out, 0, 0, false);
		return rc == OD_OK ? OD_OK : od_fail(err, rc, "a text");
	}
	data = pcre2_match_data_create(1, NULL);
	if (data == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a text of %zu bytes", len);
	rc = find_all(re, text, len, data, out, err);
	pcre2_match_data_free(data);
	return rc;
}

int tok_regex_replace(const struct tok_regex *re, const char *content, size_t content_len, const char *text, size_t len,
		      struct tok_buf *out, struct tok_trace *trace, struct od_err *err)
{
	struct tok_spans spans = { 0 };
	int rc = tok_regex_spans(re, text, len, &spans, err);

	for (size_t i = 0; i < spans.n && rc == OD_OK; i++) {
		const struct tok_span *s = &spans.v[i];

		rc = s->match ? tok_buf_add(out, content, content_len) :
				tok_buf_add(out, text + s->begin, s->end - s->begin);
		if (rc == OD_OK)
			rc = s->match ? tok_trace_made(trace, out, s->begin, s->end) :
					tok_trace_kept(trace, s->begin, s->end);
		if (rc != OD_OK)
			od_fail(err, rc, "a text of %zu bytes", len);
	}
	free(spans.v);
	return rc;
}
