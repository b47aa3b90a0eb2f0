#include "main-node/terminal/message_input.h"

#include <string.h>

#define QUOTES "\"\"\""
#define N_QUOTES (sizeof(QUOTES) - 1)

static bool begins_with(const char *text, size_t len, const char *with)
{
	return len >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* Where the text inside quotes begins; 0: there are none. */
static size_t quoted_from(const char *typed, size_t len)
{
	static const char command[] = "/system ";
	const size_t at = begins_with(typed, len, command) ? strlen(command) : 0;

	return begins_with(typed + at, len - at, QUOTES) ? at + N_QUOTES : 0;
}

/* Where it ends: at the closing quotes, or at the end of what is typed. */
static size_t quoted_to(const char *typed, size_t from, size_t len, bool *closed)
{
	size_t end = len;

	while (end > from && strchr(" \t", typed[end - 1]) != NULL)
		end--;
	*closed = end >= from + N_QUOTES && memcmp(typed + end - N_QUOTES, QUOTES, N_QUOTES) == 0;
	return *closed ? end - N_QUOTES : len;
}

bool odm_message_complete(const char *typed, size_t len)
{
	const size_t from = quoted_from(typed, len);
	bool closed;

	if (from == 0)
		return len == 0 || typed[len - 1] != '\\';
	(void)quoted_to(typed, from, len, &closed);
	return closed;
}

void odm_message_text(struct od_strbuf *out, const char *typed, size_t len)
{
	size_t from = quoted_from(typed, len), to;
	bool closed;

	if (from > 0) {
		to = quoted_to(typed, from, len, &closed);
		od_strbuf_append(out, typed, from - N_QUOTES);
		if (from < to && typed[from] == '\n') /* quotes on lines of their own */
			from++;
		if (from < to && typed[to - 1] == '\n')
			to--;
		od_strbuf_append(out, typed + from, to - from);
		return;
	}
	for (size_t i = 0; i < len; i++) {
		if (typed[i] == '\\' && i + 1 < len && typed[i + 1] == '\n')
			continue;
		od_strbuf_append(out, typed + i, 1);
	}
}
