#include "common/text/jinja/jinja_lex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja_unicode.h"

#define MAX_NUMBER_CHARS 400u /* No number that a double or an integer holds needs a longer literal. */
#define MAX_NESTING 256u /* brackets in one tag */

struct lexer {
	struct jinja_job *j;
	const char *s; /* line ends are \n */
	size_t len, at;
	size_t counted; /* j->line is the line of s[counted] */
	bool line_starts; /* the newest token ended with a newline */
	struct jinja_token *token;
	size_t n, cap;
	char open[MAX_NESTING]; /* the brackets that are expected, innermost last */
	size_t n_open;
};

/* Longer ones first. */
static const struct {
	const char *text;
	enum jinja_token_type type;
} operators[] = {
	{ "//", T_FLOORDIV }, { "**", T_POW },	 { "==", T_EQ },      { "!=", T_NE },	    { ">=", T_GE },
	{ "<=", T_LE },	      { "+", T_ADD },	 { "-", T_SUB },      { "*", T_MUL },	    { "/", T_DIV },
	{ "%", T_MOD },	      { "~", T_TILDE },	 { "<", T_LT },	      { ">", T_GT },	    { "=", T_ASSIGN },
	{ ".", T_DOT },	      { ":", T_COLON },	 { ",", T_COMMA },    { ";", T_SEMICOLON }, { "|", T_PIPE },
	{ "(", T_LPAREN },    { ")", T_RPAREN }, { "[", T_LBRACKET }, { "]", T_RBRACKET },  { "{", T_LBRACE },
	{ "}", T_RBRACE },
};

const char *jinja_token_name(enum jinja_token_type type)
{
	static const char *const name[] = {
		[T_END] = "the end of the template",
		[T_DATA] = "text",
		[T_VARIABLE_BEGIN] = "'{{'",
		[T_VARIABLE_END] = "'}}'",
		[T_BLOCK_BEGIN] = "'{%'",
		[T_BLOCK_END] = "'%}'",
		[T_NAME] = "a name",
		[T_STRING] = "a string",
		[T_INT] = "an integer",
		[T_FLOAT] = "a float",
		[T_ADD] = "'+'",
		[T_SUB] = "'-'",
		[T_MUL] = "'*'",
		[T_DIV] = "'/'",
		[T_FLOORDIV] = "'//'",
		[T_MOD] = "'%'",
		[T_POW] = "'**'",
		[T_TILDE] = "'~'",
		[T_EQ] = "'=='",
		[T_NE] = "'!='",
		[T_LT] = "'<'",
		[T_LE] = "'<='",
		[T_GT] = "'>'",
		[T_GE] = "'>='",
		[T_ASSIGN] = "'='",
		[T_DOT] = "'.'",
		[T_COLON] = "':'",
		[T_COMMA] = "','",
		[T_SEMICOLON] = "';'",
		[T_PIPE] = "'|'",
		[T_LPAREN] = "'('",
		[T_RPAREN] = "')'",
		[T_LBRACKET] = "'['",
		[T_RBRACKET] = "']'",
		[T_LBRACE] = "'{'",
		[T_RBRACE] = "'}'",
	};

	return name[type];
}

static bool is_at(const struct lexer *x, size_t at, const char *z)
{
	size_t n = strlen(z);

	return at <= x->len && x->len - at >= n && memcmp(x->s + at, z, n) == 0;
}

static void count_lines(struct lexer *x, size_t to)
{
	for (; x->counted < to; x->counted++)
		x->j->line += x->s[x->counted] == '\n';
}

static struct jinja_token *push(struct lexer *x, enum jinja_token_type type)
{
	jinja_charge(x->j, 1);
	jinja_grow(x->j, &x->token, x->n, &x->cap, sizeof(*x->token));
	x->token[x->n] = (struct jinja_token){ .type = type, .line = x->j->line };
	return &x->token[x->n++];
}

static size_t skip_space(const struct lexer *x, size_t at)
{
	size_t n;

	while (at < x->len && jinja_is_space(jinja_char_at(x->s + at, &n)))
		at += n;
	return at;
}

static size_t trim_end(const struct lexer *x, size_t begin, size_t end)
{
	size_t n;

	while (end > begin) {
		size_t last = begin + jinja_last_char(x->s + begin, end - begin);

		if (!jinja_is_space(jinja_char_at(x->s + last, &n)))
			break;
		end = last;
	}
	return end;
}

/* The text [begin, end) before a tag: '-' strips all whitespace at its end; without a sign a block or comment at the
 * beginning of a line (but for whitespace) takes that whitespace away. */
static void push_data(struct lexer *x, size_t begin, size_t end, char sign, bool is_variable)
{
	size_t line = end;

	if (sign == '-') {
		end = trim_end(x, begin, end);
	} else if (sign != '+' && !is_variable) {
		while (line > begin && x->s[line - 1] != '\n')
			line--;
		if ((line > begin || x->line_starts) && skip_space(x, line) >= end)
			end = line;
	}
	if (end > begin)
		push(x, T_DATA)->s = jinja_str_borrow(x->j, x->s + begin, end - begin);
}

/* True at the end of a block or comment: "+%}", "-%}" and whitespace, "%}" and a newline. *after: the index behind
 * it. */
static bool is_end(const struct lexer *x, size_t at, const char *end, size_t *after)
{
	const char sign = at < x->len ? x->s[at] : '\0';
	const size_t n = sign == '+' || sign == '-' ? 1 : 0;

	if (!is_at(x, at + n, end))
		return false;
	*after = at + n + 2;
	if (sign == '-')
		*after = skip_space(x, *after);
	else if (sign != '+' && is_at(x, *after, "\n"))
		++*after;
	return true;
}

static void move(struct lexer *x, size_t to)
{
	x->line_starts = to > 0 && x->s[to - 1] == '\n';
	x->at = to;
}

static void lex_comment(struct lexer *x)
{
	size_t after;

	for (size_t at = x->at; at < x->len; at++) {
		if (is_end(x, at, "#}", &after)) {
			move(x, after);
			return;
		}
	}
	jinja_fail(x->j, OD_ERR_FORMAT, "a comment has no end: expected '#}'");
}

/* "{% NAME %}" at `at`, with any signs; *sign: the one in front; *inner_end: where "%}" or its sign stands. */
static bool is_tag(const struct lexer *x, size_t at, const char *name, char *sign, size_t *inner_end)
{
	size_t p = at + 2;

	if (!is_at(x, at, "{%"))
		return false;
	*sign = p < x->len && (x->s[p] == '-' || x->s[p] == '+') ? x->s[p] : '\0';
	p = skip_space(x, p + (*sign != '\0'));
	if (!is_at(x, p, name))
		return false;
	*inner_end = skip_space(x, p + strlen(name));
	return true;
}

static bool is_raw_begin(const struct lexer *x, size_t at, char *sign, size_t *after)
{
	size_t end;

	if (!is_tag(x, at, "raw", sign, &end))
		return false;
	if (is_at(x, end, "-%}")) {
		*after = skip_space(x, end + 3);
		return true;
	}
	*after = end + 2; /* a newline behind it stays */
	return is_at(x, end, "%}");
}

static void lex_raw(struct lexer *x)
{
	size_t inner_end, after;
	char sign;

	for (size_t at = x->at; at < x->len; at++) {
		if (is_tag(x, at, "endraw", &sign, &inner_end) && is_end(x, inner_end, "%}", &after)) {
			push_data(x, x->at, at, sign, false);
			move(x, after);
			return;
		}
	}
	jinja_fail(x->j, OD_ERR_FORMAT, "a raw block has no end: expected 'endraw'");
}

/* ---- inside of tags ---- */

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 32);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Digits with single '_' between them, from at; returns the end. base 16 and below. */
static size_t skip_digits(const struct lexer *x, size_t at, int base)
{
	size_t end = at;

	while (at < x->len) {
		int v = hex_value(x->s[at]);

		if (v >= 0 && v < base)
			end = ++at;
		else if (x->s[at] == '_' && at == end && at > 0)
			at++;
		else
			break;
	}
	return end;
}

/* The end of a float at x->at, 0 if there is none: digits with a fraction, an exponent, or both. */
static size_t float_end(const struct lexer *x)
{
	size_t whole = skip_digits(x, x->at, 10), end = 0, at = whole;

	if (whole == x->at || (x->at > 0 && x->s[x->at - 1] == '.'))
		return 0;
	if (is_at(x, at, ".") && at + 1 < x->len && x->s[at + 1] >= '0' && x->s[at + 1] <= '9')
		end = at = skip_digits(x, at + 1, 10);
	if (at < x->len && (x->s[at] | 32) == 'e') {
		size_t digits = at + 1;

		if (digits < x->len && (x->s[digits] == '+' || x->s[digits] == '-'))
			digits++;
		if (digits < x->len && x->s[digits] >= '0' && x->s[digits] <= '9')
			end = skip_digits(x, digits, 10);
	}
	return end;
}

static void copy_number(struct lexer *x, size_t begin, size_t end, char text[MAX_NUMBER_CHARS])
{
	size_t n = 0;

	if (end - begin >= MAX_NUMBER_CHARS)
		jinja_fail(x->j, OD_ERR_UNSUPPORTED, "a number has %zu digits", end - begin);
	for (size_t i = begin; i < end; i++)
		if (x->s[i] != '_')
			text[n++] = x->s[i];
	text[n] = '\0';
}

static void lex_integer(struct lexer *x)
{
	static const struct {
		char letter;
		int base;
	} prefix[] = { { 'b', 2 }, { 'o', 8 }, { 'x', 16 } };
	char text[MAX_NUMBER_CHARS];
	size_t begin = x->at, end = skip_digits(x, x->at, 10);
	int base = 10;

	for (size_t i = 0; x->s[begin] == '0' && begin + 1 < x->len && i < 3; i++) {
		size_t digits = skip_digits(x, begin + 2, prefix[i].base);

		if ((x->s[begin + 1] | 32) == prefix[i].letter && digits > begin + 2) {
			base = prefix[i].base;
			begin += 2;
			end = digits;
		}
	}
	if (base == 10 && x->s[begin] == '0')
		end = skip_digits(x, begin, 1); /* zeros only */
	copy_number(x, begin, end, text);
	errno = 0;
	push(x, T_INT)->i = strtoll(text, NULL, base);
	if (errno != 0)
		jinja_fail(x->j, OD_ERR_UNSUPPORTED, "the integer %.60s has more than 64 bits", text);
	move(x, end);
}

static void lex_number(struct lexer *x)
{
	char text[MAX_NUMBER_CHARS];
	size_t end = float_end(x);

	if (end == 0) {
		lex_integer(x);
		return;
	}
	copy_number(x, x->at, end, text);
	push(x, T_FLOAT)->f = strtod(text, NULL);
	move(x, end);
}

static void lex_name(struct lexer *x)
{
	size_t at = x->at, n;
	bool first = true;

	while (at < x->len) {
		uint32_t c = jinja_char_at(x->s + at, &n);

		if (first ? !jinja_is_name_start(c) : !jinja_is_name(c))
			break;
		first = false;
		at += n;
	}
	if (at == x->at)
		jinja_fail(x->j, OD_ERR_FORMAT, "unexpected character '%.*s'", (int)jinja_char_bytes(x->s + at),
			   x->s + at);
	push(x, T_NAME)->s = jinja_str_borrow(x->j, x->s + x->at, at - x->at);
	move(x, at);
}

static uint32_t escaped_number(struct lexer *x, size_t *at, size_t end, size_t min, size_t max, int base)
{
	uint32_t c = 0;
	size_t n = 0;

	while (n < max && *at < end && hex_value(x->s[*at]) >= 0 && hex_value(x->s[*at]) < base) {
		c = c * (uint32_t)base + (uint32_t)hex_value(x->s[*at]);
		++*at;
		n++;
	}
	if (n < min)
		jinja_fail(x->j, OD_ERR_FORMAT, "an escape in a string is cut short: expected %zu digits, found %zu",
			   min, n);
	if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		jinja_fail(x->j, OD_ERR_FORMAT, "an escape in a string is no character: U+%X", c);
	return c;
}

/* Reads the character behind a backslash at *at, by the rules of Python's string literals. */
static void unescape(struct lexer *x, struct jinja_text *t, size_t *at, size_t end)
{
	static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
	const char c = x->s[*at];
	const char *simple = c != '\0' ? strchr(from, c) : NULL;

	if (simple != NULL) {
		jinja_add(x->j, t, &to[simple - from], 1);
		++*at;
	} else if (c == '\n') {
		++*at;
	} else if (c >= '0' && c <= '7') {
		jinja_add_char(x->j, t, escaped_number(x, at, end, 1, 3, 8), NULL);
	} else if (c == 'x' || c == 'u' || c == 'U') {
		const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;

		++*at;
		jinja_add_char(x->j, t, escaped_number(x, at, end, n, n, 16), NULL);
	} else if (c == 'N') {
		jinja_fail(x->j, OD_ERR_UNSUPPORTED, "characters by name (\\N) are not supported in strings");
	} else {
		jinja_add(x->j, t, "\\", 1); /* not an escape: both characters stay */
	}
}

static void lex_string(struct lexer *x)
{
	const char quote = x->s[x->at];
	struct jinja_text t = { 0 };
	size_t begin = x->at + 1, end = begin;
	struct jinja_token *token;

	while (end < x->len && x->s[end] != quote)
		end += x->s[end] == '\\' ? 2 : 1;
	if (end >= x->len)
		jinja_fail(x->j, OD_ERR_FORMAT, "a string has no end: expected %c", quote);
	token = push(x, T_STRING);
	if (memchr(x->s + begin, '\\', end - begin) == NULL) {
		token->s = jinja_str_borrow(x->j, x->s + begin, end - begin);
	} else {
		for (size_t at = begin; at < end;) {
			if (x->s[at] == '\\') {
				at++;
				unescape(x, &t, &at, end);
			} else {
				jinja_add(x->j, &t, x->s + at++, 1);
			}
		}
		token->s = jinja_str_take(x->j, &t);
	}
	move(x, end + 1);
}

static void balance(struct lexer *x, enum jinja_token_type type)
{
	static const char close[] = ")]}";
	const int opens = type == T_LPAREN ? 0 : type == T_LBRACKET ? 1 : type == T_LBRACE ? 2 : -1;
	const int closes = type == T_RPAREN ? 0 : type == T_RBRACKET ? 1 : type == T_RBRACE ? 2 : -1;

	if (opens >= 0) {
		if (x->n_open == MAX_NESTING)
			jinja_fail(x->j, OD_ERR_RANGE, "brackets are nested more than %u deep", MAX_NESTING);
		x->open[x->n_open++] = close[opens];
	} else if (closes >= 0) {
		if (x->n_open == 0)
			jinja_fail(x->j, OD_ERR_FORMAT, "unexpected '%c'", close[closes]);
		if (x->open[--x->n_open] != close[closes])
			jinja_fail(x->j, OD_ERR_FORMAT, "expected '%c', found '%c'", x->open[x->n_open], close[closes]);
	}
}

static bool lex_operator(struct lexer *x)
{
	for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
		if (is_at(x, x->at, operators[i].text)) {
			balance(x, operators[i].type);
			push(x, operators[i].type);
			move(x, x->at + strlen(operators[i].text));
			return true;
		}
	}
	return false;
}

static bool lex_tag_end(struct lexer *x, bool is_variable)
{
	size_t after;

	if (x->n_open > 0) /* "}}" closes two dicts */
		return false;
	if (is_variable) {
		if (!is_at(x, x->at, "}}") && !is_at(x, x->at, "-}}"))
			return false;
		after = x->s[x->at] == '-' ? skip_space(x, x->at + 3) : x->at + 2;
	} else if (!is_end(x, x->at, "%}", &after)) {
		return false;
	}
	push(x, is_variable ? T_VARIABLE_END : T_BLOCK_END);
	move(x, after);
	return true;
}

static void lex_tag(struct lexer *x, bool is_variable)
{
	x->n_open = 0;
	for (;;) {
		x->at = skip_space(x, x->at);
		count_lines(x, x->at);
		if (x->at >= x->len)
			jinja_fail(x->j, OD_ERR_FORMAT, "a tag has no end: expected %s", is_variable ? "'}}'" : "'%}'");
		if (lex_tag_end(x, is_variable))
			return;
		if (x->s[x->at] >= '0' && x->s[x->at] <= '9')
			lex_number(x);
		else if (x->s[x->at] == '\'' || x->s[x->at] == '"')
			lex_string(x);
		else if (!lex_operator(x))
			lex_name(x);
	}
}

/* Reads text and the tag behind it. */
static void lex_root(struct lexer *x)
{
	size_t at = x->at, after;
	char sign, kind;

	while (at < x->len &&
	       !(x->s[at] == '{' && at + 1 < x->len && strchr("{%#", x->s[at + 1]) != NULL && x->s[at + 1] != '\0'))
		at++;
	count_lines(x, x->at);
	if (at >= x->len) {
		push(x, T_DATA)->s = jinja_str_borrow(x->j, x->s + x->at, x->len - x->at);
		x->at = x->len;
		return;
	}
	if (is_raw_begin(x, at, &sign, &after)) {
		push_data(x, x->at, at, sign, false);
		move(x, after);
		count_lines(x, x->at);
		lex_raw(x);
		return;
	}
	kind = x->s[at + 1];
	sign = at + 2 < x->len && (x->s[at + 2] == '-' || x->s[at + 2] == '+') ? x->s[at + 2] : '\0';
	push_data(x, x->at, at, sign, kind == '{');
	move(x, at + 2 + (sign != '\0'));
	count_lines(x, x->at);
	if (kind == '#') {
		lex_comment(x);
	} else {
		push(x, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN);
		lex_tag(x, kind == '{');
	}
}

/* \r\n and \r become \n; one newline at the end is dropped. */
static const char *normalize(struct jinja_job *j, const char *text, size_t *len)
{
	char *s = jinja_alloc(j, *len + 1);
	size_t n = 0;

	for (size_t i = 0; i < *len; i++) {
		if (text[i] == '\r' && i + 1 < *len && text[i + 1] == '\n')
			continue;
		s[n++] = text[i] == '\r' ? '\n' : text[i];
	}
	*len = n > 0 && s[n - 1] == '\n' ? n - 1 : n;
	return s;
}

struct jinja_token *jinja_lex(struct jinja_job *j, const char *text, size_t len)
{
	struct lexer x = { .j = j, .line_starts = true };

	j->line = 1;
	x.s = normalize(j, text, &len);
	x.len = len;
	while (x.at < x.len)
		lex_root(&x);
	push(&x, T_END);
	return x.token;
}
