#include "common/text/utf8_text.h"

#include "common/base/strbuf.h"

#include <utf8proc.h>

size_t odm_utf8_char(const char *text, size_t len)
{
	utf8proc_int32_t c;
	const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len, &c);

	return n > 0 ? (size_t)n : 0;
}

bool odm_utf8_valid(const char *text, size_t len)
{
	size_t at = 0;

	while (at < len) {
		const size_t n = odm_utf8_char(text + at, len - at);

		if (n == 0)
			return false;
		at += n;
	}
	return true;
}

size_t odm_utf8_count(const char *text, size_t len)
{
	size_t count = 0;

	for (size_t at = 0; at < len; count++) {
		const size_t n = odm_utf8_char(text + at, len - at);

		at += n > 0 ? n : 1;
	}
	return count;
}

json_t *odm_json_text(const char *text, size_t len)
{
	static const char replacement[] = "\xef\xbf\xbd";
	struct od_strbuf b = { 0 };
	json_t *s;

	if (odm_utf8_valid(text, len))
		return json_stringn_nocheck(text, len);
	for (size_t at = 0; at < len;) {
		const size_t n = odm_utf8_char(text + at, len - at);

		od_strbuf_append(&b, n > 0 ? text + at : replacement, n > 0 ? n : sizeof(replacement) - 1);
		at += n > 0 ? n : 1;
	}
	s = b.failed ? NULL : json_stringn_nocheck(b.text, b.len);
	od_strbuf_fini(&b);
	return s;
}
