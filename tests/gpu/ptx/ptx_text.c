/* Tokens of PTX. */
#include "tests/gpu/ptx/ptx_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptx_bad_text(const struct ptx_text *t, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fprintf(stderr, "ptx: %s:%u: ", t->file, t->line);
	vfprintf(stderr, format, ap);
	fprintf(stderr, " (before: %.40s)\n", t->p);
	va_end(ap);
	abort();
}

void *ptx_zeros(size_t n, size_t bytes)
{
	void *at = calloc(n, bytes);

	if (at == NULL) {
		fprintf(stderr, "ptx: out of memory\n");
		abort();
	}
	return at;
}

void *ptx_room(void *array, uint32_t n, uint32_t *room, size_t bytes)
{
	if (n < *room)
		return array;
	*room = 2 * *room + 256;
	array = realloc(array, *room * bytes);
	if (array == NULL) {
		fprintf(stderr, "ptx: out of memory\n");
		abort();
	}
	return array;
}

void ptx_skip_line(struct ptx_text *t)
{
	while (t->p < t->end && *t->p != '\n')
		t->p++;
}

static void skip_space(struct ptx_text *t)
{
	while (t->p < t->end) {
		if (isspace((unsigned char)*t->p))
			t->line += *t->p++ == '\n';
		else if (t->p[0] == '/' && t->p[1] == '/')
			ptx_skip_line(t);
		else
			return;
	}
}

/* Bytes of the word that begins at p; 0: none does. */
static size_t word_bytes(const char *p, const char *end)
{
	const char *at = p;

	while (at < end) {
		if (isalnum((unsigned char)*at) || *at == '_' || *at == '.' || *at == '$' || *at == '%')
			at++;
		else if (at[0] == ':' && at[1] == ':') /* L2::128B */
			at += 2;
		else
			break;
	}
	return (size_t)(at - p);
}

static size_t token_bytes(const struct ptx_text *t)
{
	const char *quote;

	if (*t->p == '"') {
		quote = memchr(t->p + 1, '"', (size_t)(t->end - t->p - 1));
		if (quote == NULL)
			ptx_bad_text(t, "a string without an end");
		return (size_t)(quote + 1 - t->p);
	}
	if (*t->p == '-' && isdigit((unsigned char)t->p[1]))
		return 1 + word_bytes(t->p + 1, t->end);
	return word_bytes(t->p, t->end);
}

bool ptx_next(struct ptx_text *t)
{
	size_t n;

	skip_space(t);
	if (t->p >= t->end)
		return false;
	n = token_bytes(t);
	if (n == 0)
		n = 1;
	if (n >= PTX_TOKEN_BYTES)
		ptx_bad_text(t, "a token of %zu bytes", n);
	memcpy(t->token, t->p, n);
	t->token[n] = 0;
	t->p += n;
	return true;
}

void ptx_take(struct ptx_text *t)
{
	if (!ptx_next(t))
		ptx_bad_text(t, "the text ends too early");
}

void ptx_expect(struct ptx_text *t, const char *token)
{
	ptx_take(t);
	if (!ptx_is(t, token))
		ptx_bad_text(t, "%s expected, found %s", token, t->token);
}

bool ptx_is(const struct ptx_text *t, const char *token)
{
	return strcmp(t->token, token) == 0;
}

uint64_t ptx_number(const struct ptx_text *t)
{
	const char *s = t->token;
	uint64_t v;
	char *end;

	if (ptx_starts(s, "0f") || ptx_starts(s, "0F") || ptx_starts(s, "0d") || ptx_starts(s, "0D"))
		v = strtoull(s + 2, &end, 16);
	else
		v = s[0] == '-' ? (uint64_t)strtoll(s, &end, 0) : strtoull(s, &end, 0);
	if (*s == 0 || (*end != 0 && strcmp(end, "U") != 0))
		ptx_bad_text(t, "a number expected, found %s", s);
	return v;
}

uint64_t ptx_next_number(struct ptx_text *t)
{
	ptx_take(t);
	return ptx_number(t);
}

char ptx_peek(struct ptx_text *t)
{
	skip_space(t);
	return t->p < t->end ? *t->p : 0;
}

bool ptx_accept(struct ptx_text *t, char c)
{
	if (ptx_peek(t) != c)
		return false;
	t->p++;
	return true;
}

bool ptx_starts(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}
