/* Events of a streamed chat completion, in the formats of OpenAI, vLLM, llama-server and DeepSeek, and such as make no
 * sense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/strbuf.h"
#include "main-node/terminal/chat_reply.h"

static void on_text(void *arg, bool thought, const char *text, size_t len)
{
	od_strbuf_append(arg, thought ? "<" : "", thought);
	od_strbuf_append(arg, text, len);
	od_strbuf_append(arg, thought ? ">" : "|", 1);
}

/* The texts of events, thoughts in <>, others with | behind them. */
static void read_events(struct odm_chat_reply *r, struct od_strbuf *out, const char *const *event)
{
	*r = (struct odm_chat_reply){ .text = on_text, .arg = out };
	*out = (struct od_strbuf){ 0 };
	od_strbuf_append(out, "", 0);
	for (; *event != NULL; event++)
		odm_chat_reply_event(r, *event, strlen(*event));
}

static void a_whole_answer(void **state)
{
	static const char *const events[] = {
		"{\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}",
		"{\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"},\"finish_reason\":null}]}",
		"{\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"so\",\"content\":null}}]}",
		"{\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"no\",\"reasoning_content\":\"both\"}}]}",
		"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi \\u00e9\\ud83d\\ude00\"},\"logprobs\":null,\"finish_reason\":null}]}",
		"{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]},\"finish_reason\":null}]}",
		"{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}",
		"{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\"total_tokens\":15,\"prompt_tokens_details\":{\"cached_tokens\":8}}}",
		"[DONE]",
		"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"after the end\"}}]}",
		NULL,
	};
	struct odm_chat_reply r;
	struct od_strbuf found;

	(void)state;
	read_events(&r, &found, events);
	assert_string_equal(found.text, "<hm><so><both>Hi \xc3\xa9\xf0\x9f\x98\x80|");
	assert_true(r.done);
	assert_string_equal(r.finish, "length");
	assert_int_equal(r.err.code, OD_OK);
	assert_true(r.usage.known);
	assert_int_equal(r.usage.prompt_tokens, 12);
	assert_int_equal(r.usage.cached_tokens, 8);
	assert_int_equal(r.usage.completion_tokens, 3);
	od_strbuf_fini(&found);
}

static void usage_without_details_or_sense(void **state)
{
	static const char *const plain[] = { "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}",
					     NULL };
	static const char *const bad[] = { "{\"choices\":[],\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":2}}",
					   "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2.5}}",
					   "{\"choices\":[],\"usage\":[]}", NULL };
	struct odm_chat_reply r;
	struct od_strbuf found;

	(void)state;
	read_events(&r, &found, plain);
	assert_true(r.usage.known && r.usage.prompt_tokens == 1 && r.usage.completion_tokens == 2 &&
		    r.usage.cached_tokens == 0);
	od_strbuf_fini(&found);
	read_events(&r, &found, bad);
	assert_false(r.usage.known);
	assert_int_equal(r.err.code, OD_OK);
	assert_false(r.done);
	od_strbuf_fini(&found);
}

static void errors_end_it(void **state)
{
	static const struct {
		const char *event, *says;
		int code;
	} cases[] = {
		{ "{\"error\":{\"message\":\"no \\u001b[2Jworkers\\nleft\",\"code\":503}}",
		  "the server stopped: no \xef\xbf\xbd[2Jworkers left", OD_ERR_IO },
		{ "{\"error\":\"plain words\"}", "the server stopped: plain words", OD_ERR_IO },
		{ "{\"error\":{}}", "it does not say why", OD_ERR_IO },
		{ "{\"choices\":", "not what a chat server sends", OD_ERR_PROTOCOL },
		{ "\xc2\x9bnot JSON", "not what a chat server sends", OD_ERR_PROTOCOL },
		{ "[]", "not what a chat server sends", OD_ERR_PROTOCOL },
		{ "{\"choices\":{}}", "expected \"choices\"", OD_ERR_PROTOCOL },
		{ "{}", "expected \"choices\"", OD_ERR_PROTOCOL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *const events[] = { "{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"error\":null}",
					       cases[i].event, "{\"choices\":[{\"delta\":{\"content\":\"b\"}}]}",
					       "[DONE]", NULL };
		struct odm_chat_reply r;
		struct od_strbuf found;

		read_events(&r, &found, events);
		assert_int_equal(r.err.code, cases[i].code);
		if (strstr(r.err.msg, cases[i].says) == NULL)
			fail_msg("\"%s\" is not in \"%s\"", cases[i].says, r.err.msg);
		for (const char *c = r.err.msg; *c != '\0'; c++)
			assert_true((unsigned char)*c >= ' ' && strncmp(c, "\xc2\x9b", 2) != 0);
		assert_string_equal(found.text, "a|");
		assert_false(r.done);
		od_strbuf_fini(&found);
	}
}

static void choices_of_other_formats_have_no_text(void **state)
{
	static const char *const events[] = { "{\"choices\":[null]}",
					      "{\"choices\":[7]}",
					      "{\"choices\":[{\"delta\":\"x\"}]}",
					      "{\"choices\":[{\"delta\":{\"content\":7},\"finish_reason\":8}]}",
					      "{\"choices\":[{\"delta\":{\"content\":\"\"}}]}",
					      NULL };
	struct odm_chat_reply r;
	struct od_strbuf found;

	(void)state;
	read_events(&r, &found, events);
	assert_string_equal(found.text, "");
	assert_string_equal(r.finish, "");
	assert_int_equal(r.err.code, OD_OK);
	od_strbuf_fini(&found);
}

static void bodies_of_refusals(void **state)
{
	char text[16];

	(void)state;
	assert_true(odm_chat_error_text("{\"error\":{\"message\":\"full\"}}", 28, text, sizeof(text)));
	assert_string_equal(text, "full");
	assert_true(odm_chat_error_text("{\"error\":\"0123456789abcd\xc3\xa9\"}", 28, text, sizeof(text)));
	assert_string_equal(text, "0123456789abcd"); /* whole characters only */
	assert_false(odm_chat_error_text("<html>", 6, text, sizeof(text)));
	assert_string_equal(text, "");
	assert_false(odm_chat_error_text("{\"detail\":\"x\"}", 14, text, sizeof(text)));
	assert_false(odm_chat_error_text("", 0, text, sizeof(text)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_answer),     cmocka_unit_test(usage_without_details_or_sense),
		cmocka_unit_test(errors_end_it),      cmocka_unit_test(choices_of_other_formats_have_no_text),
		cmocka_unit_test(bodies_of_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
