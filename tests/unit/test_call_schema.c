/* Types of parameters by JSON schemas, as Pydantic 1 and 2, zod and people write them. Expected types are what JSON
 * schema says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/chat/call_schema.h"

#define S ODM_TYPE_STRING
#define I ODM_TYPE_INTEGER
#define F ODM_TYPE_NUMBER
#define B ODM_TYPE_BOOLEAN
#define O ODM_TYPE_OBJECT
#define A ODM_TYPE_ARRAY
#define Z ODM_TYPE_NULL
#define DEFS \
	"\"$defs\": {\"W\": {\"type\": \"object\", \"properties\": {}}, \"N\": {\"type\": \"integer\"}, \"a/b~c d\": {\"type\": " \
	"\"array\"}, \"To\": {\"$ref\": \"#/$defs/W\"}, \"Loop\": {\"$ref\": \"#/$defs/Loop\"}, \"L1\": {\"$ref\": " \
	"\"#/$defs/L2\"}, \"L2\": {\"$ref\": \"#/$defs/L1\"}, \"Tree\": {\"anyOf\": [{\"$ref\": \"#/$defs/Tree\"}, {\"type\": " \
	"\"array\", \"items\": {\"$ref\": \"#/$defs/Tree\"}}, {\"$ref\": \"#/$defs/Tree\"}, {\"type\": \"null\"}]}, \"Named\": " \
	"{\"$anchor\": \"here\", \"type\": \"boolean\"}, \"E\": {\"enum\": [1, 2]}}, \"definitions\": {\"X\": {\"properties\": " \
	"{\"q\": {\"type\": \"string\"}}}}"

/* schema: of the parameter "p". */
static const struct {
	const char *schema;
	unsigned types;
} params[] = {
	{ "{\"type\": \"string\"}", S },
	{ "{\"type\": [\"string\", \"null\"]}", S | Z },
	{ "{\"type\": \"number\"}", F },
	{ "{}", 0 },
	{ "true", 0 },
	{ "false", 0 },
	{ "{\"title\": \"Any\"}", 0 },
	{ "{\"type\": \"any\"}", 0 },
	{ "{\"$ref\": \"#/$defs/W\"}", O },
	{ "{\"$ref\": \"#/$defs/W\", \"description\": \"d\"}", O },
	{ "{\"$ref\": \"#/$defs/To\", \"nullable\": true}", O | Z },
	{ "{\"$ref\": \"#/$defs/N\"}", I },
	{ "{\"$ref\": \"#/$defs/E\", \"default\": 1}", I | F },
	{ "{\"$ref\": \"#/$defs/a~1b~0c%20d\"}", A },
	{ "{\"$ref\": \"#/%24defs/W\"}", O },
	{ "{\"$ref\": \"#/definitions/X\"}", O },
	{ "{\"$ref\": \"#/definitions/X/properties/q\"}", S },
	{ "{\"$ref\": \"#/properties/list/anyOf/0\"}", A },
	{ "{\"$ref\": \"#/properties/list/anyOf/7\"}", 0 },
	{ "{\"$ref\": \"#here\"}", B },
	{ "{\"$ref\": \"https://example.com/x.json#/$defs/W\"}", O },
	{ "{\"$ref\": \"#\"}", O },
	{ "{\"$ref\": \"#/$defs/None\"}", 0 },
	{ "{\"$ref\": \"other.json\"}", 0 },
	{ "{\"$ref\": 3}", 0 },
	{ "{\"$ref\": \"#/$defs/Loop\"}", 0 },
	{ "{\"$ref\": \"#/$defs/L1\"}", 0 },
	{ "{\"$ref\": \"#/$defs/Tree\"}", A | Z },
	{ "{\"$ref\": \"#/$defs/P\", \"$defs\": {\"P\": {\"type\": \"array\"}}}", A },
	{ "{\"$ref\": \"#/$defs/W\", \"type\": \"string\"}", S },
	{ "{\"allOf\": [{\"$ref\": \"#/$defs/W\"}], \"title\": \"t\", \"default\": null}", O },
	{ "{\"anyOf\": [{\"$ref\": \"#/$defs/W\"}, {\"type\": \"null\"}], \"default\": null}", O | Z },
	{ "{\"oneOf\": [{\"$ref\": \"#/$defs/W\"}, {\"type\": \"string\"}]}", O | S },
	{ "{\"anyOf\": [{\"$ref\": \"#/$defs/Loop\"}, {\"type\": \"boolean\"}]}", B },
	{ "{\"anyOf\": [{\"anyOf\": [{\"anyOf\": [{\"anyOf\": [{\"anyOf\": [{\"anyOf\": [{\"type\": \"array\"}]}]}]}]}]}]}",
	  A },
	{ "{\"allOf\": [{\"type\": [\"string\", \"integer\"]}, {\"type\": [\"integer\", \"null\"]}]}", I },
	{ "{\"allOf\": [{\"minLength\": 1}, {\"pattern\": \"x\"}]}", S },
	{ "{\"type\": \"object\", \"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}", O },
	{ "{\"type\": \"string\", \"anyOf\": [{\"properties\": {}}]}", S },
	{ "{\"type\": \"string\", \"enum\": [\"1\", \"2\"]}", S },
	{ "{\"enum\": [\"a\", 1, null]}", S | I | F | Z },
	{ "{\"const\": true}", B },
	{ "{\"const\": null}", Z },
	{ "{\"const\": {\"a\": 1}}", O },
	{ "{\"properties\": {\"city\": {\"type\": \"string\"}}}", O },
	{ "{\"additionalProperties\": true}", O },
	{ "{\"items\": {\"type\": \"string\"}}", A },
	{ "{\"prefixItems\": []}", A },
	{ "{\"minimum\": 0}", I | F },
	{ "{\"maxLength\": 3, \"nullable\": true}", S | Z },
	{ "{\"default\": {}}", O },
	{ "{\"default\": null}", 0 },
};

static unsigned types_in(const char *parameters)
{
	json_error_t why;
	json_t *function = json_pack("{s:s, s:o}", "name", "f", "parameters", json_loads(parameters, 0, &why));
	unsigned types;

	if (function == NULL)
		fail_msg("%s: %s", parameters, why.text);
	types = odm_param_types(function, "p", 1);
	json_decref(function);
	return types;
}

static void test_params(void **state)
{
	static char text[4096];
	size_t n_wrong = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(params) / sizeof(params[0]); i++) {
		unsigned types;

		snprintf(
			text, sizeof(text),
			"{\"type\": \"object\", \"properties\": {\"p\": %s, \"list\": {\"anyOf\": [{\"type\": \"array\"}]}}, " DEFS
			"}",
			params[i].schema);
		types = types_in(text);
		if (types != params[i].types) {
			print_error("%s: expected %#x, found %#x\n", params[i].schema, params[i].types, types);
			n_wrong++;
		}
	}
	assert_int_equal(n_wrong, 0);
}

/* Where the object of all parameters is itself a reference or a choice. */
static void test_roots(void **state)
{
	static const struct {
		const char *parameters;
		unsigned types;
	} root[] = {
		{ "{\"$ref\": \"#/definitions/f\", \"definitions\": {\"f\": {\"properties\": {\"p\": {\"type\": \"array\"}}}}}",
		  A },
		{ "{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"array\"}}}, {\"properties\": {\"p\": {\"type\": \"object\"}}}]}",
		  O },
		{ "{\"anyOf\": [{\"properties\": {\"p\": {\"type\": \"array\"}}}, {\"properties\": {\"p\": {\"type\": \"string\"}}}]}",
		  A | S },
		{ "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}", I },
		{ "{\"type\": \"object\", \"additionalProperties\": true}", 0 },
		{ "{\"type\": \"object\"}", 0 },
		{ "{\"$ref\": \"#\"}", 0 },
		{ "{\"anyOf\": [{\"$ref\": \"#\"}, {\"$ref\": \"#\"}, {\"properties\": {\"p\": {\"type\": \"null\"}}}]}",
		  Z },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(root) / sizeof(root[0]); i++)
		if (types_in(root[i].parameters) != root[i].types)
			fail_msg("%s: found %#x", root[i].parameters, types_in(root[i].parameters));
	assert_int_equal(odm_param_types(NULL, "p", 1), 0);
}

/* References that multiply: each of 40 definitions has the next one twice. */
static void test_many_references(void **state)
{
	json_t *defs = json_object(), *function;
	char name[8], next[32];

	(void)state;
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "%d", i);
		snprintf(next, sizeof(next), "#/$defs/%d", i + 1);
		json_object_set_new(defs, name, json_pack("{s:[{s:s}, {s:s}]}", "anyOf", "$ref", next, "$ref", next));
	}
	function = json_pack("{s:{s:{s:{s:s}}, s:o}}", "parameters", "properties", "p", "$ref", "#/$defs/0", "$defs",
			     defs);
	assert_non_null(function);
	assert_int_equal(odm_param_types(function, "p", 1), 0);
	json_decref(function);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_params),
		cmocka_unit_test(test_roots),
		cmocka_unit_test(test_many_references),
	};

	return cmocka_run_group_tests_name("call_schema", tests, NULL, NULL);
}
