/* A chat's messages, their files, and the settings of its requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "main-node/terminal/chat_settings.h"
#include "main-node/terminal/conversation.h"
#include "tests/unit/temp_dir.h"

static void assert_json(json_t *found, const char *want)
{
	char *text = json_dumps(found, JSON_COMPACT);

	assert_string_equal(text, want);
	free(text);
	json_decref(found);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define SYSTEM(text) "{\"role\":\"system\",\"content\":\"" text "\"}"

static void turns(void **state)
{
	struct odm_conversation c;
	struct od_err err;
	json_t *question;

	(void)state;
	assert_int_equal(odm_conversation_init(&c, &err), OD_OK);
	assert_null(odm_conversation_take_last(&c));
	assert_json(odm_conversation_ask(&c, "q1", 2), "[" USER("q1") "]");
	assert_int_equal(odm_conversation_set_system(&c, "be kind", 7, &err), OD_OK);
	assert_int_equal(odm_conversation_add(&c, "q1", 2, "a1", 2, &err), OD_OK);
	assert_int_equal(odm_conversation_add(&c, "q\xff", 2, "a2", 2, &err), OD_OK);
	assert_json(odm_conversation_ask(&c, "q3", 2),
		    "[" SYSTEM("be kind") "," USER("q1") "," ASSISTANT("a1") "," USER("q\xef\xbf\xbd") "," ASSISTANT(
			    "a2") "," USER("q3") "]");
	question = odm_conversation_take_last(&c);
	assert_string_equal(json_string_value(question), "q\xef\xbf\xbd");
	json_decref(question);
	assert_json(odm_conversation_ask(&c, "q3", 2),
		    "[" SYSTEM("be kind") "," USER("q1") "," ASSISTANT("a1") "," USER("q3") "]");
	odm_conversation_clear(&c);
	assert_json(odm_conversation_ask(&c, "q", 1), "[" SYSTEM("be kind") "," USER("q") "]");
	assert_int_equal(odm_conversation_set_system(&c, "", 0, &err), OD_OK);
	assert_json(odm_conversation_ask(&c, "q", 1), "[" USER("q") "]");
	odm_conversation_fini(&c);
}

static void write_file(const char *path, const char *text)
{
	struct od_err err;

	assert_int_equal(od_file_write_atomic(path, text, strlen(text), &err), OD_OK);
}

static void files(void **state)
{
	static const char *const bad[] = { "{",
					   "7",
					   "{}",
					   "[7]",
					   "[{}]",
					   "[" USER("x") "," SYSTEM("not the first") "]",
					   "[{\"role\":\"tool\",\"content\":\"x\"}]",
					   "[{\"role\":\"user\",\"content\":[]}]",
					   "[{\"role\":\"user\"}]",
					   "[" USER("x") "] trailing" };
	const char *const path = temp_path("chat.json");
	struct odm_conversation c, d;
	struct od_err err;
	struct stat st;
	char *text;
	size_t len;

	(void)state;
	assert_int_equal(odm_conversation_init(&c, &err), OD_OK);
	assert_int_equal(odm_conversation_init(&d, &err), OD_OK);
	assert_int_equal(odm_conversation_set_system(&c, "s", 1, &err), OD_OK);
	assert_int_equal(odm_conversation_add(&c, "q\0\"", 3, "a\n", 2, &err), OD_OK);
	assert_int_equal(odm_conversation_save(&c, path, false, &err), OD_OK);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(odm_conversation_load(&d, path, &err), OD_OK);
	assert_json(odm_conversation_ask(&d, "n", 1),
		    "[" SYSTEM("s") "," USER("q\\u0000\\\"") "," ASSISTANT("a\\n") "," USER("n") "]");
	/* over a conversation only if asked to */
	assert_int_equal(odm_conversation_save(&c, path, false, &err), OD_ERR_ARG);
	assert_int_equal(odm_conversation_save(&c, path, true, &err), OD_OK);
	write_file(path, "{\"messages\":[" USER("other") "],\"tools\":[]}");
	assert_int_equal(odm_conversation_load(&d, path, &err), OD_OK);
	assert_json(odm_conversation_ask(&d, "n", 1), "[" USER("other") "," USER("n") "]");
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(odm_conversation_save(&d, path, true, &err), OD_OK);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_file(path, bad[i]);
		assert_int_equal(odm_conversation_load(&d, path, &err), OD_ERR_FORMAT);
		assert_non_null(strstr(err.msg, path));
		assert_json(odm_conversation_ask(&d, "n", 1), "[" USER("other") "," USER("n") "]"); /* as it was */
		assert_int_equal(odm_conversation_save(&d, path, true, &err), OD_ERR_FORMAT);
		assert_non_null(strstr(err.msg, "not overwritten"));
		assert_int_equal(od_file_read(path, 1000, &text, &len, &err), OD_OK);
		assert_string_equal(text, bad[i]);
		free(text);
	}
	assert_int_equal(odm_conversation_load(&d, temp_dir, &err), OD_ERR_FORMAT);
	assert_int_equal(odm_conversation_load(&d, "/nothing/here", &err), OD_ERR_MISSING);
	assert_int_equal(odm_conversation_save(&d, "/nothing/here", false, &err), OD_ERR_IO);
	odm_conversation_fini(&c);
	odm_conversation_fini(&d);
}

static void settings(void **state)
{
	static const char *const bad[][3] = {
		{ "temperature", "-1", "temperature: expected 0 to 1000" },
		{ "temperature", "hot", "found \"hot\"" },
		{ "top_p", "1.1", "top_p" },
		{ "top_k", "1.5", "top_k" },
		{ "max_tokens", "0", "max_tokens" },
		{ "seed", "9007199254740993", "seed" },
		{ "heat", "1", "expected one of temperature, top_p, top_k, min_p, seed, max_tokens" },
		{ "top", "1", "expected one of" },
		{ "top_p_", "1", "expected one of" },
	};
	json_t *values = json_object();
	struct od_err err;

	(void)state;
	assert_int_equal(odm_chat_set(values, "temperature", "0.5", &err), OD_OK);
	assert_int_equal(odm_chat_set(values, "top-p", "1", &err), OD_OK);
	assert_int_equal(odm_chat_set(values, "top_k", "40", &err), OD_OK);
	assert_int_equal(odm_chat_set(values, "seed", "9007199254740992", &err), OD_OK);
	assert_int_equal(odm_chat_set(values, "max-tokens", "7", &err), OD_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(odm_chat_set(values, bad[i][0], bad[i][1], &err), OD_ERR_ARG);
		if (strstr(err.msg, bad[i][2]) == NULL)
			fail_msg("\"%s\" is not in \"%s\"", bad[i][2], err.msg);
	}
	assert_int_equal(odm_chat_set(values, "top_k", "default", &err), OD_OK);
	assert_json(values, "{\"temperature\":0.5,\"top_p\":1.0,\"seed\":9007199254740992,\"max_tokens\":7}");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(turns), cmocka_unit_test(files),
					    cmocka_unit_test(settings) };

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
