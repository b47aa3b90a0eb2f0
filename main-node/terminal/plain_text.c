#include "main-node/terminal/plain_text.h"

#include "common/text/utf8_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* c: a whole character of n bytes. C1 is U+0080 to U+009F; terminals take U+009B as ESC [. */
static bool is_control(const char *c, size_t n)
{
	const unsigned char a = (unsigned char)c[0];

	return n == 1 ? a < ' ' || a == 0x7f : n == 2 && a == 0xc2 && (unsigned char)c[1] < 0xa0;
}

void odm_plain_text(struct od_strbuf *out, const char *text, size_t len)
{
	for (size_t i = 0; i < len;) {
		const size_t n = odm_utf8_char(text + i, len - i);

		if (n > 0 && (text[i] == '\n' || text[i] == '\t' || !is_control(text + i, n)))
			od_strbuf_append(out, text + i, n);
		else if (text[i] != '\r')
			od_strbuf_append(out, REPLACEMENT, strlen(REPLACEMENT));
		i += n > 0 ? n : 1;
	}
}

const char *odm_plain_line(char *buf, size_t size, const char *text, size_t len)
{
	struct od_strbuf plain = { 0 };
	size_t used = 0, n;

	odm_plain_text(&plain, text, len);
	while (used < plain.len && (n = odm_utf8_char(plain.text + used, plain.len - used)) > 0 && used + n < size)
		used += n; /* whole characters only */
	snprintf(buf, size, "%.*s", (int)used, od_strbuf_text(&plain));
	for (char *c = buf; *c != '\0'; c++) {
		if (*c == '\n' || *c == '\t')
			*c = ' ';
	}
	od_strbuf_fini(&plain);
	return buf;
}
