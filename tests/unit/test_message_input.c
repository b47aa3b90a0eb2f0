/* Lines that are typed, as messages: backslashes and quotes; and text that is shown without control characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/terminal/message_input.h"
#include "main-node/terminal/plain_text.h"

static void messages(void **state)
{
	static const struct {
		const char *typed, *means;
		bool complete;
	} cases[] = {
		{ "", "", true },
		{ "one line", "one line", true },
		{ "a\\", "a\\", false },
		{ "a\\\nb", "a\nb", true },
		{ "a\\\nb\\\n", "a\nb\n", true },
		{ "C:\\dir\\file", "C:\\dir\\file", true },
		{ "\"\"\"", "", false },
		{ "\"\"\"\"\"", "\"\"", false },
		{ "\"\"\"\"\"\"", "", true },
		{ "\"\"\"one\"\"\"", "one", true },
		{ "\"\"\"one\ntwo", "one\ntwo", false },
		{ "\"\"\"one\ntwo\\\n three\"\"\"  ", "one\ntwo\\\n three", true },
		{ "\"\"\"\none\n\ntwo\n\"\"\"", "one\n\ntwo", true },
		{ "\"\"\"say \"hi\"\nnow\"\"\"", "say \"hi\"\nnow", true },
		{ "he said \"\"\"x", "he said \"\"\"x", true },
		{ "/system \"\"\"a\nb\"\"\"", "/system a\nb", true },
		{ "/system \"\"\"a", "/system a", false },
		{ "/system a\\", "/system a\\", false },
		{ "/save \"\"\"x", "/save \"\"\"x", true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const size_t len = strlen(cases[i].typed);
		struct od_strbuf out = { 0 };

		od_strbuf_append(&out, "", 0);
		odm_message_text(&out, cases[i].typed, len);
		assert_string_equal(out.text, cases[i].means);
		if (odm_message_complete(cases[i].typed, len) != cases[i].complete)
			fail_msg("\"%s\" is %scomplete", cases[i].typed, cases[i].complete ? "" : "not ");
		od_strbuf_fini(&out);
	}
}

#define BAD "\xef\xbf\xbd"

static void control_characters_are_not_shown(void **state)
{
	static const struct {
		const char *text, *plain, *line;
	} cases[] = {
		{ "plain\ttext\n", "plain\ttext\n", "plain text " },
		{ "a\r\nb\rc", "a\nbc", "a bc" },
		{ "\033[31mred\033]0;t\007", BAD "[31mred" BAD "]0;t" BAD, BAD "[31mred" BAD "]0;t" BAD },
		{ "\177\001\b\f\v", BAD BAD BAD BAD BAD, BAD BAD BAD BAD BAD },
		{ "\xc2\x9b"
		  "2J\xc2\x80\xc2\x9f\xc2\xa0",
		  BAD "2J" BAD BAD "\xc2\xa0", BAD "2J" BAD BAD "\xc2\xa0" },
		{ "\x9b"
		  "2J",
		  BAD "2J", BAD "2J" }, /* not UTF-8: C1 of Latin-1 */
		{ "\xc3", BAD, BAD },
		/* a surrogate, and C1 in two bytes too many */
		{ "\xed\xa0\x80\xc0\x9b", BAD BAD BAD BAD BAD, BAD BAD BAD BAD BAD },
		{ "\xe4\xbd\xa0\xc3\xa9\xf0\x9f\x98\x80", "\xe4\xbd\xa0\xc3\xa9\xf0\x9f\x98\x80",
		  "\xe4\xbd\xa0\xc3\xa9\xf0\x9f\x98\x80" },
	};
	char line[64];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct od_strbuf out = { 0 };

		odm_plain_text(&out, cases[i].text, strlen(cases[i].text));
		assert_string_equal(out.text, cases[i].plain);
		assert_string_equal(odm_plain_line(line, sizeof(line), cases[i].text, strlen(cases[i].text)),
				    cases[i].line);
		od_strbuf_fini(&out);
	}
	assert_string_equal(odm_plain_line(line, 4, "ab\xe4\xbd\xa0", 5), "ab"); /* whole characters only */
	assert_string_equal(odm_plain_line(line, sizeof(line), "a\0b", 3), "a" BAD "b");
	assert_string_equal(odm_plain_line(line, sizeof(line), "", 0), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(messages),
					    cmocka_unit_test(control_characters_are_not_shown) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
