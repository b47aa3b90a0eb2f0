/* Whether a model shall think: what clients say, and what templates are told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "main-node/serve/api/thinking.h"

static const struct {
	const char *request;
	enum odm_thinking_wish wish;
	const char *effort, *harmony; /* the variable reasoning_effort; NULL: none */
} good[] = {
	{ "{}", ODM_THINK_AS_EVER, NULL, NULL },
	{ "{\"reasoning_effort\": \"none\"}", ODM_THINK_NOT, "none", "low" },
	{ "{\"reasoning_effort\": \"minimal\"}", ODM_THINK_NOT, "minimal", "low" },
	{ "{\"reasoning_effort\": \"low\"}", ODM_THINK_AS_EVER, "low", "low" },
	{ "{\"reasoning_effort\": \"xhigh\"}", ODM_THINK_AS_EVER, "xhigh", "high" },
	{ "{\"reasoning_effort\": \"own word\"}", ODM_THINK_AS_EVER, "own word", "own word" },
	{ "{\"reasoning\": {\"effort\": \"none\"}}", ODM_THINK_NOT, "none", "low" },
	{ "{\"reasoning\": {\"enabled\": false}}", ODM_THINK_NOT, "none", "low" },
	{ "{\"reasoning\": {\"enabled\": true, \"effort\": \"none\"}}", ODM_THINK_ALWAYS, "none", "low" },
	{ "{\"enable_thinking\": false}", ODM_THINK_NOT, "none", "low" },
	{ "{\"enable_thinking\": true}", ODM_THINK_ALWAYS, NULL, NULL },
	{ "{\"enable_thinking\": null}", ODM_THINK_AS_EVER, NULL, NULL },
	{ "{\"thinking\": {\"type\": \"disabled\"}}", ODM_THINK_NOT, "none", "low" },
	{ "{\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}}", ODM_THINK_ALWAYS, NULL, NULL },
	{ "{\"thinking\": {\"type\": \"adaptive\"}}", ODM_THINK_ADAPTIVE, NULL, NULL },
	{ "{\"thinking\": false}", ODM_THINK_NOT, "none", "low" },
	{ "{\"think\": false}", ODM_THINK_NOT, "none", "low" },
	{ "{\"think\": true}", ODM_THINK_ALWAYS, NULL, NULL },
	{ "{\"think\": \"high\"}", ODM_THINK_AS_EVER, "high", "high" },
	{ "{\"think\": \"none\"}", ODM_THINK_NOT, "none", "low" },
	/* The first of these that is given counts. */
	{ "{\"reasoning_effort\": \"none\", \"think\": true}", ODM_THINK_ALWAYS, "none", "low" },
	{ "{\"think\": true, \"thinking\": false}", ODM_THINK_NOT, "none", "low" },
	{ "{\"thinking\": true, \"enable_thinking\": false}", ODM_THINK_NOT, "none", "low" },
	{ "{\"enable_thinking\": false, \"chat_template_kwargs\": {\"enable_thinking\": true}}", ODM_THINK_ALWAYS, NULL,
	  NULL },
	{ "{\"enable_thinking\": true, \"chat_template_kwargs\": {\"thinking\": false}}", ODM_THINK_NOT, "none",
	  "low" },
	{ "{\"reasoning_effort\": \"none\", \"chat_template_kwargs\": {\"reasoning_effort\": \"high\"}}", ODM_THINK_NOT,
	  "high", "high" },
};

static void check_variables(const json_t *vars, enum odm_thinking_wish wish, const char *effort)
{
	static const char *const modes[] = { NULL, "disabled", "enabled", "adaptive" };
	const json_t *on = json_object_get(vars, "enable_thinking"), *also = json_object_get(vars, "thinking");
	const char *said = json_string_value(json_object_get(vars, "reasoning_effort"));
	const char *mode = json_string_value(json_object_get(vars, "thinking_mode"));

	assert_true(wish == ODM_THINK_AS_EVER ? on == NULL && also == NULL :
						json_is_boolean(on) && json_is_boolean(also));
	if (on != NULL)
		assert_int_equal(json_is_true(on), wish != ODM_THINK_NOT);
	if (modes[wish] == NULL)
		assert_null(mode);
	else
		assert_string_equal(mode, modes[wish]);
	if (effort == NULL)
		assert_null(said);
	else
		assert_string_equal(said, effort);
}

static void wishes_are_read_in_order(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		json_t *request = json_loads(good[i].request, 0, NULL),
		       *kwargs = json_object_get(request, "chat_template_kwargs");
		struct odm_thinking t;
		struct odm_api_error e;

		print_message("%s\n", good[i].request);
		assert_int_equal(odm_thinking_read(&t, request, &e), OD_OK);
		for (int harmony = 0; harmony < 2; harmony++) {
			json_t *vars = kwargs != NULL ? json_deep_copy(kwargs) : json_object();

			assert_true(odm_thinking_set(vars, &t, harmony == 1));
			check_variables(vars, good[i].wish, harmony ? good[i].harmony : good[i].effort);
			json_decref(vars);
		}
		json_decref(request);
	}
}

static void wrong_values_are_named(void **state)
{
	static const struct {
		const char *request, *param;
	} bad[] = {
		{ "{\"reasoning_effort\": 3}", "reasoning_effort" },
		{ "{\"reasoning\": \"none\"}", "reasoning" },
		{ "{\"reasoning\": {\"enabled\": 1}}", "reasoning.enabled" },
		{ "{\"enable_thinking\": \"no\"}", "enable_thinking" },
		{ "{\"thinking\": \"off\"}", "thinking" },
		{ "{\"thinking\": {}}", "thinking.type" },
		{ "{\"thinking\": {\"type\": \"x\"}}", "thinking.type" },
		{ "{\"think\": 1}", "think" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		json_t *request = json_loads(bad[i].request, 0, NULL);
		struct odm_thinking t;
		struct odm_api_error e = { 0 };

		assert_int_not_equal(odm_thinking_read(&t, request, &e), OD_OK);
		assert_int_equal(e.status, 400);
		assert_string_equal(e.param, bad[i].param);
		json_decref(request);
	}
}

/* A template that knows two of all efforts gets the nearer one. */
static void refused_efforts_become_near_ones(void **state)
{
	static const struct {
		const char *asked, *order[7];
	} t[] = {
		{ "none", { "minimal", "low", "medium", "high", "xhigh", "max" } },
		{ "medium", { "high", "low", "xhigh", "minimal", "max", "none" } },
		{ "max", { "xhigh", "high", "medium", "low", "minimal", "none" } },
		{ "own word", { NULL } },
	};

	(void)state;
	for (size_t k = 0; k < sizeof(t) / sizeof(t[0]); k++) {
		const struct odm_thinking wish = { .effort = t[k].asked };
		json_t *vars = json_object();
		size_t i = 0;

		assert_true(odm_thinking_set(vars, &wish, false));
		for (; t[k].order[i] != NULL; i++) {
			assert_true(odm_thinking_set_near(vars, &wish, i));
			assert_string_equal(json_string_value(json_object_get(vars, "reasoning_effort")),
					    t[k].order[i]);
		}
		assert_false(odm_thinking_set_near(vars, &wish, i));
		json_decref(vars);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wishes_are_read_in_order),
		cmocka_unit_test(wrong_values_are_named),
		cmocka_unit_test(refused_efforts_become_near_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
