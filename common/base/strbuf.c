#include "common/base/strbuf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct od_strbuf *b, size_t more)
{
	size_t need, cap = b->cap > 0 ? b->cap : 64;
	char *grown;

	if (b->failed || more > SIZE_MAX / 4 - b->len) {
		b->failed = true;
		return false;
	}
	need = b->len + more + 1;
	if (need <= b->cap)
		return true;
	while (cap < need)
		cap *= 2;
	grown = realloc(b->text, cap);
	if (grown == NULL) {
		b->failed = true;
		return false;
	}
	b->text = grown;
	b->cap = cap;
	return true;
}

void od_strbuf_append(struct od_strbuf *b, const char *text, size_t len)
{
	if (!reserve(b, len))
		return;
	if (len > 0)
		memcpy(b->text + b->len, text, len);
	b->len += len;
	b->text[b->len] = '\0';
}

void od_strbuf_printf(struct od_strbuf *b, const char *fmt, ...)
{
	va_list ap, again;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0)
		b->failed = true;
	else if (reserve(b, (size_t)n)) {
		vsnprintf(b->text + b->len, (size_t)n + 1, fmt, again);
		b->len += (size_t)n;
	}
	va_end(again);
}

char *od_strbuf_take(struct od_strbuf *b, size_t *len)
{
	char *text;

	od_strbuf_append(b, "", 0); /* an empty text is still a text */
	text = b->failed ? NULL : b->text;
	*len = b->failed ? 0 : b->len;
	if (b->failed)
		free(b->text);
	*b = (struct od_strbuf){ 0 };
	return text;
}

void od_strbuf_fini(struct od_strbuf *b)
{
	free(b->text);
	*b = (struct od_strbuf){ 0 };
}
