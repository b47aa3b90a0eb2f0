#include "common/grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NESTED 200 /* groups in groups */
#define MAX_STACKED 8 /* repetitions of repetitions, without a group between */
#define MAX_REPEAT 100000u
#define PATTERN_WORK 300u /* beside some for each byte */
#define MAX_RANGES 1000u /* in a class */

enum ast_kind { AST_CHARS, AST_SEQUENCE, AST_CHOICE, AST_REPEAT, AST_BEGIN, AST_END, AST_LOOK };

struct ast {
	enum ast_kind kind;
	bool anchored; /* ^ or $ is in it */
	bool negated; /* AST_LOOK */
	uint32_t min, max; /* AST_REPEAT */
	struct od_chars chars; /* AST_CHARS */
	struct ast *first, *last; /* children */
	struct ast *before, *next; /* siblings */
	bool is_made[2][2]; /* whether made[begin][end] is known */
	uint32_t made[2][2]; /* its expression */
	struct ast *older; /* the node made before it, to free them all */
};

struct regex {
	struct od_re_pool *p;
	enum od_writing w;
	const char *text;
	size_t len, at;
	unsigned nested;
	bool wide; /* classes are wide (add_escaped_class), as behind (?! */
	bool kinds[2][3]; /* \d, \w and \s, and their opposites, are in the class */
	struct ast *newest;
	struct od_err *err;
	int rc;
};

/* ---- Reading ---- */

static struct ast *refuse(struct regex *r, int code, const char *what)
{
	if (r->rc == OD_OK)
		r->rc = od_fail(r->err, code, "%s at character %zu", what, r->at);
	return NULL;
}

static struct ast *new_ast(struct regex *r, enum ast_kind kind)
{
	struct ast *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return refuse(r, OD_ERR_NOMEM, "no memory for a regular expression");
	a->kind = kind;
	a->anchored = kind == AST_BEGIN || kind == AST_END;
	a->older = r->newest;
	r->newest = a;
	return a;
}

static void append(struct ast *parent, struct ast *child)
{
	child->before = parent->last;
	if (parent->last != NULL)
		parent->last->next = child;
	else
		parent->first = child;
	parent->last = child;
	parent->anchored |= child->anchored;
}

static bool next_is(const struct regex *r, char c)
{
	return r->at < r->len && r->text[r->at] == c;
}

static bool next_are(const struct regex *r, const char *text)
{
	const size_t n = strlen(text);

	return r->len - r->at >= n && memcmp(r->text + r->at, text, n) == 0;
}

static uint32_t take_char(struct regex *r)
{
	size_t n;
	const uint32_t c = od_char_at(r->text + r->at, r->len - r->at, &n);

	if (c == UINT32_MAX)
		(void)refuse(r, OD_ERR_FORMAT, r->at == r->len ? "the pattern ends too early" : "invalid UTF-8");
	else
		r->at += n;
	return c;
}

/* Digits of other scripts, each the first of ten. */
static const uint32_t other_digits[] = {
	0x660,	 0x6f0,	  0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,	0xbe6,	 0xc66,	  0xce6,
	0xd66,	 0xde6,	  0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,	0x1810,	 0x1946,  0x19d0,
	0x1a80,	 0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,  0xa8d0,	0xa900,	 0xa9d0,  0xa9f0,
	0xaa50,	 0xabf0,  0xff10,  0x104a0, 0x10d30, 0x10d40, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0,
	0x11450, 0x114d0, 0x11650, 0x116c0, 0x116d0, 0x116da, 0x11730, 0x118e0, 0x11950, 0x11bf0, 0x11c50,
	0x11d50, 0x11da0, 0x11f50, 0x16130, 0x16a60, 0x16ac0, 0x16b50, 0x16d70, 0x1ccf0, 0x1d7ce, 0x1d7d8,
	0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e4f0, 0x1e5f1, 0x1e950, 0x1fbf0,
};

/* Beyond ASCII: punctuation and pictures, which are part of no word anywhere; other characters may be. */
static const uint32_t no_word[][2] = {
	{ 0xa1, 0xa9 },	    { 0x2010, 0x2027 }, { 0x2030, 0x203e }, { 0x20a0, 0x20bf },	  { 0x2190, 0x2426 },
	{ 0x2500, 0x2775 }, { 0x2794, 0x2b73 }, { 0x3008, 0x3020 }, { 0x1f300, 0x1f6d7 }, { 0x1f900, 0x1fa53 },
};

/* White space beyond ASCII's, and the separators of ASCII. */
static const uint32_t other_space[][2] = {
	{ 0x1c, 0x1f },	    { 0x85, 0x85 },	{ 0xa0, 0xa0 },	    { 0x1680, 0x1680 }, { 0x2000, 0x200a },
	{ 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 }, { 0xfeff, 0xfeff },
};

static const char kind_letters[] = "dws";

static void add_other_words(struct od_chars *out)
{
	uint32_t next = 0x80;

	for (size_t i = 0; i < sizeof(no_word) / sizeof(no_word[0]); i++) {
		od_chars_add(out, next, no_word[i][0] - 1);
		next = no_word[i][1] + 1;
	}
	od_chars_add(out, next, OD_MAX_CHAR);
}

/* Characters of \d, \w and \s: those of ASCII, or, wide, all that some reader of expressions takes for one. */
static void add_kind(struct od_chars *out, uint32_t kind, bool wide)
{
	if (kind != 's')
		od_chars_add(out, '0', '9');
	if (kind == 'd' && wide)
		for (size_t i = 0; i < sizeof(other_digits) / sizeof(other_digits[0]); i++)
			od_chars_add(out, other_digits[i], other_digits[i] + 9);
	if (kind == 'w') {
		od_chars_add(out, 'A', 'Z');
		od_chars_add(out, 'a', 'z');
		od_chars_add(out, '_', '_');
		if (wide)
			add_other_words(out);
	}
	if (kind == 's') {
		od_chars_add(out, '\t', '\r');
		od_chars_add(out, ' ', ' ');
		for (size_t i = 0; wide && i < sizeof(other_space) / sizeof(other_space[0]); i++)
			od_chars_add(out, other_space[i][0], other_space[i][1]);
	}
}

/* Adds \d, \w, \s, or their opposites. Readers of expressions differ in which characters beyond ASCII these have: what
 * matches here matches for all of them. wide: what matches for one of them is in, as where the class is negated. False:
 * another escape. */
static bool add_escaped_class(struct od_chars *out, uint32_t c, bool wide)
{
	const bool opposite = c < 'a';
	struct od_chars set = { 0 };

	if (c >= 0x80 || strchr(kind_letters, (int)(c | 0x20)) == NULL)
		return false;
	add_kind(&set, c | 0x20, opposite != wide);
	if (opposite)
		od_chars_negate(&set);
	od_chars_add_all(out, &set);
	od_chars_fini(&set);
	return true;
}

/* n hexadecimal digits; UINT32_MAX: they are not there. */
static uint32_t take_hex(struct regex *r, size_t n)
{
	uint32_t c = 0;

	if (r->len - r->at < n)
		return UINT32_MAX;
	for (size_t i = 0; i < n; i++) {
		static const char digits[] = "0123456789abcdef";
		const char *d = memchr(digits, r->text[r->at + i] | 0x20, 16);

		if (r->text[r->at + i] < '0' || d == NULL)
			return UINT32_MAX;
		c = c << 4 | (uint32_t)(d - digits);
	}
	r->at += n;
	return c;
}

/* \u{...} and \uXXXX, also as a pair of surrogates. */
static uint32_t take_unicode(struct regex *r)
{
	uint32_t c, low;
	size_t n = 0;

	if (next_is(r, '{')) {
		r->at++;
		while (r->at + n < r->len && r->text[r->at + n] != '}')
			n++;
		c = n > 0 && n <= 6 ? take_hex(r, n) : UINT32_MAX;
		if (c == UINT32_MAX || c > OD_MAX_CHAR || !next_is(r, '}'))
			return UINT32_MAX;
		r->at++;
		return c;
	}
	c = take_hex(r, 4);
	if (c == UINT32_MAX || c < 0xd800 || c > 0xdbff || !next_are(r, "\\u"))
		return c;
	r->at += 2;
	low = take_hex(r, 4);
	if (low == UINT32_MAX || low < 0xdc00 || low > 0xdfff)
		return UINT32_MAX;
	return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

/* The character of an escape, whose letter c was taken; UINT32_MAX: refused. */
static uint32_t escaped_char(struct regex *r, uint32_t c)
{
	static const char from[] = "nrtfv0ae", to[] = "\n\r\t\f\v\0\a\x1b";
	const char *at = c < 0x80 ? memchr(from, (int)c, sizeof(from) - 1) : NULL;
	uint32_t value = UINT32_MAX;

	if (at != NULL)
		return (uint8_t)to[at - from];
	if (c == 'x') {
		value = take_hex(r, 2);
	} else if (c == 'u') {
		value = take_unicode(r);
	} else if (c == 'c' && r->at < r->len && ((r->text[r->at] | 0x20) >= 'a' && (r->text[r->at] | 0x20) <= 'z')) {
		value = (uint32_t)r->text[r->at++] & 0x1f;
	} else if (c == 'p' || c == 'P') {
		(void)refuse(r, OD_ERR_UNSUPPORTED, "\\p (Unicode properties) is not supported here;");
		return UINT32_MAX;
	} else if (c < 0x80 && ((c >= '0' && c <= '9') || c == 'k')) {
		(void)refuse(r, OD_ERR_UNSUPPORTED, "a back reference is not supported here;");
		return UINT32_MAX;
	} else if (c >= 0x80 || !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
		return c; /* itself */
	}
	if (value == UINT32_MAX)
		(void)refuse(r, OD_ERR_FORMAT, "an unknown or broken escape");
	return value;
}

/* A member of a class: a character, or UINT32_MAX: a class, which was added. */
static uint32_t take_member(struct regex *r, struct od_chars *out, bool wide)
{
	uint32_t c;

	if (next_are(r, "[:"))
		(void)refuse(r, OD_ERR_UNSUPPORTED, "[: :] in a class is not supported here;");
	c = take_char(r);
	if (c != '\\' || r->rc != OD_OK)
		return c;
	c = take_char(r);
	if (c == 'b')
		return '\b';
	if (c == UINT32_MAX)
		return c;
	if (add_escaped_class(out, c, wide)) {
		r->kinds[c < 'a'][strchr(kind_letters, (int)(c | 0x20)) - kind_letters] = true;
		return UINT32_MAX;
	}
	return escaped_char(r, c);
}

/* A kind of characters and its opposite are all characters, in whichever way they are read. */
static bool has_opposites(const bool kinds[2][3])
{
	return (kinds[0][0] && kinds[1][0]) || (kinds[0][1] && kinds[1][1]) || (kinds[0][2] && kinds[1][2]);
}

static struct ast *take_class(struct regex *r)
{
	struct ast *a = new_ast(r, AST_CHARS);
	bool negated = false;

	if (a == NULL)
		return NULL;
	memset(r->kinds, 0, sizeof(r->kinds));
	if (next_is(r, '^'))
		negated = true, r->at++;
	while (r->rc == OD_OK && !next_is(r, ']')) {
		const uint32_t first = take_member(r, &a->chars, r->wide != negated);
		uint32_t last = first;

		if (first != UINT32_MAX && next_is(r, '-') && !next_are(r, "-]")) {
			r->at++;
			last = take_member(r, &a->chars, r->wide != negated);
			if (last == UINT32_MAX) { /* a-\d is a, - and \d */
				od_chars_add(&a->chars, '-', '-');
				last = first;
			} else if (last < first) {
				return refuse(r, OD_ERR_FORMAT, "a range whose end is before its start");
			}
		}
		if (first != UINT32_MAX)
			od_chars_add(&a->chars, first, last);
	}
	r->at++;
	if (has_opposites(r->kinds))
		od_chars_add(&a->chars, 0, OD_MAX_CHAR);
	if (negated)
		od_chars_negate(&a->chars);
	od_chars_sort(&a->chars);
	return a->chars.n <= MAX_RANGES ? a : refuse(r, OD_ERR_RANGE, "a class of more than 1000 ranges");
}

static struct ast *take_choice(struct regex *r);

/* Behind the opening bracket. */
static struct ast *take_group(struct regex *r)
{
	struct ast *a, *look = NULL;

	if (next_are(r, "?:")) {
		r->at += 2;
	} else if (next_are(r, "?=") || next_are(r, "?!")) {
		look = new_ast(r, AST_LOOK);
		if (look == NULL)
			return NULL;
		look->negated = r->text[r->at + 1] == '!';
		r->wide = r->wide != look->negated;
		r->at += 2;
	} else if (next_are(r, "?<=") || next_are(r, "?<!")) {
		return refuse(r, OD_ERR_UNSUPPORTED, "a look-behind is not supported here;");
	} else if (next_are(r, "?<") || next_are(r, "?P<")) {
		while (r->at < r->len && r->text[r->at] != '>')
			r->at++;
		r->at += r->at < r->len;
	} else if (next_is(r, '?')) {
		return refuse(r, OD_ERR_UNSUPPORTED, "flags and special groups are not supported here;");
	}
	a = take_choice(r);
	if (a == NULL)
		return NULL;
	if (!next_is(r, ')'))
		return refuse(r, OD_ERR_FORMAT, "a group is not closed;");
	r->at++;
	if (look == NULL)
		return a;
	r->wide = r->wide != look->negated;
	append(look, a);
	look->anchored = true;
	return look;
}

static struct ast *one_char(struct regex *r, uint32_t c)
{
	struct ast *a = c != UINT32_MAX ? new_ast(r, AST_CHARS) : NULL;

	if (a != NULL)
		od_chars_add(&a->chars, c, c);
	return a;
}

static struct ast *take_escape(struct regex *r)
{
	const uint32_t c = take_char(r);
	struct ast *a;

	if (c == UINT32_MAX)
		return NULL;
	if (c == 'b' || c == 'B')
		return refuse(r, OD_ERR_UNSUPPORTED, "a word boundary is not supported here;");
	if (c == 'A' || c == 'Z' || c == 'z')
		return new_ast(r, c == 'A' ? AST_BEGIN : AST_END);
	if (strchr("dDwWsS", (int)(c < 0x80 ? c : 'x')) == NULL)
		return one_char(r, escaped_char(r, c));
	a = new_ast(r, AST_CHARS);
	if (a != NULL)
		(void)add_escaped_class(&a->chars, c, r->wide);
	return a;
}

static struct ast *take_atom(struct regex *r)
{
	struct ast *a;
	uint32_t c;

	c = take_char(r);
	switch (c) {
	case '(': return take_group(r);
	case '[': return take_class(r);
	case '\\': return take_escape(r);
	case '^': return new_ast(r, AST_BEGIN);
	case '$': return new_ast(r, AST_END);
	case '.':
		a = new_ast(r, AST_CHARS);
		if (a == NULL)
			return NULL;
		od_chars_add(&a->chars, '\n', '\n');
		if (!r->wide) { /* as \W, for all readers */
			od_chars_add(&a->chars, '\r', '\r');
			od_chars_add(&a->chars, 0x2028, 0x2029);
		}
		od_chars_negate(&a->chars);
		return a;
	case '*':
	case '+':
	case '?': r->at--; return refuse(r, OD_ERR_FORMAT, "nothing to repeat");
	default: return one_char(r, c);
	}
}

/* {2}, {2,} or {2,3} at the cursor; else nothing is taken. */
static bool take_counts(struct regex *r, uint32_t *min, uint32_t *max)
{
	uint64_t v[2] = { 0, 0 };
	size_t at = r->at + 1, digits[2] = { 0, 0 };
	int i = 0;

	for (; at < r->len && r->text[at] != '}'; at++) {
		const char c = r->text[at];

		if (c == ',' && i == 0) {
			i = 1;
		} else if (c >= '0' && c <= '9') {
			v[i] = v[i] > MAX_REPEAT ? v[i] : v[i] * 10 + (uint64_t)(c - '0');
			digits[i]++;
		} else {
			return false;
		}
	}
	if (at == r->len || (digits[0] == 0 && digits[1] == 0))
		return false;
	r->at = at + 1;
	if (v[0] > MAX_REPEAT || v[1] > MAX_REPEAT)
		(void)refuse(r, OD_ERR_RANGE, "a repetition of more than 100000 times");
	*min = (uint32_t)v[0];
	*max = i == 0 ? *min : digits[1] > 0 ? (uint32_t)v[1] : OD_RE_NO_LIMIT;
	if (*max < *min)
		(void)refuse(r, OD_ERR_FORMAT, "a repetition whose maximum is below its minimum");
	return true;
}

static struct ast *take_repeated(struct regex *r)
{
	struct ast *a = take_atom(r), *outer;
	unsigned times = 0;

	while (a != NULL && r->rc == OD_OK && r->at < r->len) {
		const char c = r->text[r->at];
		uint32_t min = c == '+', max = c == '?' ? 1 : OD_RE_NO_LIMIT;

		if (c == '*' || c == '+' || c == '?')
			r->at++;
		else if (c != '{' || !take_counts(r, &min, &max))
			break;
		if (next_is(r, '?')) /* lazy: the same texts */
			r->at++;
		else if (next_is(r, '+'))
			return refuse(r, OD_ERR_UNSUPPORTED, "a possessive repetition is not supported here;");
		if (++times > MAX_STACKED)
			return refuse(r, OD_ERR_RANGE, "it is nested too deep");
		outer = new_ast(r, AST_REPEAT);
		if (outer == NULL)
			return NULL;
		outer->min = min;
		outer->max = max;
		append(outer, a);
		a = outer;
	}
	return r->rc == OD_OK ? a : NULL;
}

static struct ast *take_sequence(struct regex *r)
{
	struct ast *s = new_ast(r, AST_SEQUENCE), *a;

	while (s != NULL && r->at < r->len && !next_is(r, '|') && !next_is(r, ')')) {
		a = take_repeated(r);
		if (a == NULL)
			return NULL;
		append(s, a);
	}
	return s;
}

static struct ast *take_choice(struct regex *r)
{
	struct ast *c = new_ast(r, AST_CHOICE), *s;

	if (c == NULL)
		return NULL;
	if (++r->nested > MAX_NESTED)
		return refuse(r, OD_ERR_RANGE, "it is nested too deep");
	do {
		s = take_sequence(r);
		if (s == NULL)
			return NULL;
		append(c, s);
	} while (next_is(r, '|') && ++r->at);
	r->nested--;
	return c;
}

/* ---- Making an expression ---- */

static uint32_t make(struct regex *r, struct ast *a, bool begin, bool end);

/* Texts that a, and then the rest, match. An anchor holds or not by whether anything stands before or behind it:
 * then[1] is the rest if nothing stands before it, then[0] if something does. then[1] matches all that then[0] does. */
static uint32_t make_pair(struct regex *r, struct ast *a, const uint32_t then[2], bool begin, bool end)
{
	const uint32_t before = make(r, a, begin, false), last = make(r, a, begin, end);
	uint32_t e = od_re_cat(r->p, before, then[0]);

	if (od_re_nullable(r->p, before))
		e = od_re_or(r->p, e, then[begin]);
	else if (od_re_nullable(r->p, last) && od_re_nullable(r->p, then[begin]))
		e = od_re_or(r->p, e, OD_RE_EMPTY);
	return od_re_nullable(r->p, then[0]) ? od_re_or(r->p, e, last) : e;
}

/* From the last child to the first, without recursion: a sequence may be long. */
static uint32_t make_sequence(struct regex *r, const struct ast *s, bool begin, bool end)
{
	uint32_t then[2] = { OD_RE_EMPTY, OD_RE_EMPTY };
	bool anchored = false;

	for (struct ast *a = s->last; a != NULL; a = a->before) {
		uint32_t e[2];

		anchored |= a->anchored;
		if (anchored) {
			e[0] = make_pair(r, a, then, false, end);
			e[1] = begin ? make_pair(r, a, then, true, end) : e[0];
		} else {
			e[0] = e[1] = od_re_cat(r->p, make(r, a, false, false), then[0]);
		}
		memcpy(then, e, sizeof(then));
	}
	return then[begin];
}

static uint32_t make_choice(struct regex *r, struct ast *a, bool begin, bool end)
{
	uint32_t *all, e;
	size_t n = 0;

	for (const struct ast *c = a->first; c != NULL; c = c->next)
		n++;
	all = calloc(n + 1, sizeof(*all));
	if (all == NULL) {
		(void)refuse(r, OD_ERR_NOMEM, "no memory for a regular expression");
		return OD_RE_NONE;
	}
	n = 0;
	for (struct ast *c = a->first; c != NULL; c = c->next)
		all[n++] = make(r, c, begin, end);
	e = od_re_alt(r->p, all, n);
	free(all);
	return e;
}

static uint32_t make_repeat(struct regex *r, const struct ast *a, bool begin, bool end)
{
	uint32_t e;

	if (!a->anchored)
		return od_re_repeat(r->p, make(r, a->first, false, false), a->min, a->max);
	if (a->max > 1)
		(void)refuse(r, OD_ERR_UNSUPPORTED, "^, $ or a look-ahead within a repetition is not supported here;");
	e = make(r, a->first, begin, end);
	if (a->max == 0)
		return OD_RE_EMPTY;
	return a->min == 0 ? od_re_or(r->p, e, OD_RE_EMPTY) : e;
}

/* begin, end: nothing stands before, behind the text that a matches. */
static uint32_t make(struct regex *r, struct ast *a, bool begin, bool end)
{
	uint32_t e = OD_RE_NONE;

	if (!a->anchored)
		begin = end = false; /* no matter */
	if (a->is_made[begin][end])
		return a->made[begin][end];
	if (od_re_check(r->p, NULL) != OD_OK)
		return OD_RE_NONE;
	switch (a->kind) {
	case AST_CHARS: e = od_chars_re(r->p, &a->chars, r->w); break;
	case AST_SEQUENCE: e = make_sequence(r, a, begin, end); break;
	case AST_CHOICE: e = make_choice(r, a, begin, end); break;
	case AST_REPEAT: e = make_repeat(r, a, begin, end); break;
	case AST_BEGIN: e = begin ? OD_RE_EMPTY : OD_RE_NONE; break;
	case AST_END: e = end ? OD_RE_EMPTY : OD_RE_NONE; break;
	case AST_LOOK:
		(void)refuse(r, OD_ERR_UNSUPPORTED, "a look-ahead that is not at the start is not supported here;");
	}
	a->is_made[begin][end] = true;
	a->made[begin][end] = e;
	return e;
}

/* The texts of which some part matches a; begin: a part at the start. */
static uint32_t make_search(struct regex *r, struct ast *a, uint32_t some, bool at_begin)
{
	uint32_t e = OD_RE_NONE;

	for (int begin = 0; begin < 2; begin++)
		for (int end = 0; end < 2; end++) {
			uint32_t one = make(r, a, begin == 1, end == 1);

			if (begin == 0 && at_begin)
				continue;
			if (begin == 0)
				one = od_re_cat(r->p, some, one);
			e = od_re_or(r->p, e, end == 0 ? od_re_cat(r->p, one, some) : one);
		}
	return e;
}

/* Cuts look-aheads off the pattern, if it is one sequence that begins with ^ and them; returns the texts that they
 * allow. */
static uint32_t make_looks(struct regex *r, struct ast *root, uint32_t some)
{
	struct ast *s = root->first == root->last ? root->first : NULL, *before;
	uint32_t e = od_re_not(r->p, OD_RE_NONE);

	if (s == NULL || s->first == NULL)
		return e;
	before = s->first->kind == AST_BEGIN ? s->first : NULL;
	if (before == NULL && s->first->kind == AST_LOOK)
		return refuse(r, OD_ERR_UNSUPPORTED, "a look-ahead without ^ before it is not supported here;"), e;
	while (before != NULL && before->next != NULL && before->next->kind == AST_LOOK) {
		const struct ast *look = before->next;
		const uint32_t one = make_search(r, look->first, some, true);

		e = od_re_and(r->p, e, look->negated ? od_re_not(r->p, one) : one);
		before->next = look->next;
		if (look->next != NULL)
			look->next->before = before;
		else
			s->last = before;
	}
	return e;
}

static int compile(struct od_re_pool *p, const char *pattern, size_t len, enum od_writing w, bool search, bool wide,
		   uint32_t *re, struct od_err *err)
{
	struct regex r = { .p = p, .w = w, .text = pattern, .len = len, .err = err, .wide = wide };
	struct ast *root = NULL;
	struct od_chars all = { 0 };
	uint32_t some, looks;

	*re = OD_RE_NONE;
	if (len > OD_MAX_PATTERN_BYTES)
		return od_fail(err, OD_ERR_RANGE, "it has %zu bytes; expected at most %u", len, OD_MAX_PATTERN_BYTES);
	od_re_spend(p, PATTERN_WORK + 3 * len);
	root = take_choice(&r);
	if (r.rc == OD_OK && r.at < len)
		(void)refuse(&r, OD_ERR_FORMAT, "a bracket that was not opened");
	if (r.rc == OD_OK && root != NULL) {
		/* Each character has one spelling, so that what does not match is what does not match as text. */
		od_chars_add(&all, 0, OD_MAX_CHAR);
		some = od_re_repeat(p, od_chars_re(p, &all, w), 1, OD_RE_NO_LIMIT);
		looks = make_looks(&r, root, some);
		*re = search ? make_search(&r, root, some, false) : make(&r, root, true, true);
		*re = od_re_and(p, *re, looks);
		od_chars_fini(&all);
	}
	while (r.newest != NULL) {
		struct ast *a = r.newest;

		r.newest = a->older;
		od_chars_fini(&a->chars);
		free(a);
	}
	if (r.rc == OD_OK)
		r.rc = od_re_check(p, err);
	return r.rc;
}

int od_regex_compile(struct od_re_pool *p, const char *pattern, size_t len, enum od_writing w, bool search,
		     uint32_t *re, struct od_err *err)
{
	return compile(p, pattern, len, w, search, false, re, err);
}

int od_regex_compile_wide(struct od_re_pool *p, const char *pattern, size_t len, enum od_writing w, uint32_t *re,
			  struct od_err *err)
{
	int rc = compile(p, pattern, len, w, true, true, re, err);

	/* For some, $ matches before a line break at the end. */
	if (rc == OD_OK)
		*re = od_re_or(p, *re, od_re_cat(p, *re, od_written_text(p, "\n", 1, w)));
	return rc;
}
