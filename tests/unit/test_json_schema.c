/* JSON schemas as grammars: what may not be accepted, by what Python's jsonschema says of the texts (make schema-suite
 * compares more), and schemas that are made to cost much: refused or enforced, with little work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "common/grammar/automaton.h"
#include "common/grammar/json_schema.h"

/* The automaton of a schema, or NULL with the error. *work: what it took. */
static struct od_automaton *compile(const char *schema, uint64_t *work, struct od_err *err)
{
	json_error_t why;
	json_t *json = od_json_decode(schema, strlen(schema), 0, &why);
	struct od_automaton *a = NULL;
	struct od_grammar *g;
	int rc;

	assert_non_null(json);
	assert_int_equal(od_grammar_new(&g, err), OD_OK);
	rc = od_json_schema_compile(g, json, err);
	*work = od_re_work(od_grammar_res(g));
	if (rc == OD_OK)
		rc = od_automaton_new(&a, g, err);
	else
		od_grammar_free(g);
	assert_true((rc == OD_OK) == (a != NULL));
	if (a != NULL)
		*work = od_re_work(od_automaton_res(a));
	json_decref(json);
	return a;
}

static bool accepts(struct od_automaton *a, const char *text)
{
	uint32_t state = od_automaton_start(a);

	for (; *text != '\0' && state != OD_STATE_DEAD; text++)
		state = od_automaton_step(a, state, (uint8_t)*text);
	return state != OD_STATE_DEAD && od_automaton_ends(a, state);
}

/* ---- Texts ---- */

static const struct {
	const char *schema, *valid, *invalid; /* valid: NULL: any may be rejected */
} texts[] = {
	/* two properties may have the same name, and readers keep the last */
	{ "{\"type\": \"object\", \"properties\": {\"a\": {}}, \"minProperties\": 2}", "{\"a\":1,\"b\":2}",
	  "{\"b\":1,\"b\":2}" },
	{ "{\"type\": \"object\", \"properties\": {\"a\": {}, \"c\": {}}, \"minProperties\": 3}",
	  "{\"a\":1,\"c\":2,\"b\":3}", "{\"a\":1,\"b\":2,\"b\":3}" },
	{ "{\"type\": \"object\", \"minProperties\": 1}", "{\"b\":1}", "{}" },
	/* bounds that leave nothing, and values with exponents */
	{ "{\"type\": [\"string\", \"null\"], \"minLength\": 2, \"maxLength\": 0}", "null", "\"\"" },
	{ "{\"enum\": [1e22, 5], \"maximum\": 12.5}", "5", "1e+22" },
	{ "{\"enum\": [1e22, 5], \"minimum\": 12.5}", "1e+22", "5" },
	{ "{\"enum\": [1e-9, 3], \"exclusiveMinimum\": 1e-9}", "3", "1e-09" },
	{ "{\"enum\": [-1e22, -4], \"multipleOf\": 4, \"minimum\": -4}", "-4", "-1e+22" },
	{ "{\"enum\": [6, 8], \"multipleOf\": 4}", "8", "6" },
	{ "{\"enum\": [2.5, 1e2], \"type\": \"integer\"}", "100", "2.5" },
	/* names */
	{ "{\"propertyNames\": {\"const\": \"a\", \"enum\": [\"b\", \"c\"]}}", "{}", "{\"b\":1}" },
	{ "{\"propertyNames\": {\"const\": \"a\", \"enum\": [\"b\", \"a\"]}}", "{\"a\":1}", "{\"b\":1}" },
	{ "{\"propertyNames\": {\"enum\": [\"b\", \"a\", 7]}}", "{\"a\":1,\"b\":1}", "{\"7\":1}" },
	{ "{\"propertyNames\": {\"type\": \"integer\"}}", "{}", "{\"1\":1}" },
	{ "{\"propertyNames\": {\"type\": [\"integer\", \"string\"], \"maxLength\": 2}}", "{\"12\":1}", "{\"123\":1}" },
	/* for Python such a name matches, for ECMA-262 it does not */
	{ "{\"patternProperties\": {\"^\\\\d$\": {\"type\": \"null\"}}, \"additionalProperties\": {\"type\": \"string\"}}",
	  "{\"7\":null,\"a\":\"b\"}", "{\"\xd9\xa3\":\"b\"}" },
	{ "{\"patternProperties\": {\"^a$\": {\"type\": \"null\"}}, \"additionalProperties\": {\"type\": \"string\"}}",
	  "{\"a\":null,\"b\\n\":\"b\"}", "{\"a\\n\":\"b\"}" },
	{ "{\"properties\": {\"\xd9\xa3\": {}}, \"patternProperties\": {\"^\\\\d$\": {\"type\": \"null\"}}}",
	  "{\"\xd9\xa3\":null}", "{\"\xd9\xa3\":1}" },
	/* Python's \w, \d and \s have characters beyond ASCII */
	{ "{\"type\": \"string\", \"pattern\": \"^\\\\W$\"}", "\"-\"", "\"\xc3\xa9\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^[^\\\\w]$\"}", "\"\xf0\x9f\x90\xa6\"", "\"\xe9\x9b\xaa\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^\\\\D$\"}", "\"\xc3\xa9\"", "\"\xd9\xa3\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^[^\\\\d]$\"}", "\"\xe9\x9b\xaa\"", "\"\xd9\xa3\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^[^\\\\s]$\"}", "\"x\"", "\"\xc2\xa0\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^[^\\\\W]$\"}", "\"_\"", "\"-\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^[^\\\\D]$\"}", "\"7\"", "\"x\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^(?!\\\\d).$\"}", "\"x\"", "\"\xd9\xa3\"" },
	{ "{\"type\": \"string\", \"pattern\": \"^(?!\\\\D).$\"}", "\"7\"", "\"x\"" },
};

static void test_texts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct od_err err = { 0 };
		uint64_t work;
		struct od_automaton *a = compile(texts[i].schema, &work, &err);

		if (a == NULL)
			fail_msg("%s: %s", texts[i].schema, err.msg);
		if (!accepts(a, texts[i].valid))
			fail_msg("%s: %s is rejected", texts[i].schema, texts[i].valid);
		if (accepts(a, texts[i].invalid))
			fail_msg("%s: %s is accepted", texts[i].schema, texts[i].invalid);
		od_automaton_free(a);
	}
}

static const struct {
	const char *schema, *error; /* its beginning */
} refused[] = {
	{ "{\"required\": [\"a\\u0000b\"]}", "#/required: names with \\u0000" },
	{ "{\"type\": \"object\", \"minProperties\": 2}", "#/minProperties: more than one property" },
	{ "{\"properties\": {\"a\": false}, \"minProperties\": 2, \"type\": \"object\"}",
	  "#/minProperties: more than one property" },
	{ "{\"propertyNames\": {\"uniqueItems\": true}}", "#/propertyNames/uniqueItems: " },
	{ "{\"propertyNames\": {\"type\": \"x\"}}", "#/propertyNames/type: " },
};

static void test_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct od_err err = { 0 };
		json_error_t why;
		json_t *json = od_json_decode(refused[i].schema, strlen(refused[i].schema), JSON_ALLOW_NUL, &why);
		struct od_grammar *g;

		assert_non_null(json);
		assert_int_equal(od_grammar_new(&g, &err), OD_OK);
		if (od_json_schema_compile(g, json, &err) == OD_OK)
			fail_msg("%s is enforced", refused[i].schema);
		if (strncmp(err.msg, refused[i].error, strlen(refused[i].error)) != 0)
			fail_msg("%s: %s", refused[i].schema, err.msg);
		od_grammar_free(g);
		json_decref(json);
	}
}

/* ---- Work ---- */

#define MAX_WORK 1900000u /* json_schema.c has its limit a little below */

/* Schemas of n pieces: head, n times piece, in which @ is the number and & the next one, and tail. */
static const struct hostile {
	const char *head, *piece, *between, *tail;
	unsigned n;
	const char *error; /* its beginning; NULL: it is enforced */
	uint64_t work; /* at most */
} hostile[] = {
	/* size */
	{ "{\"enum\": [", "\"w@\"", ",", "]}", 10000, NULL, 600000 },
	{ "{\"enum\": [", "@", ",", "]}", 10000, NULL, 600000 },
	{ "{\"maximum\": 7000, \"enum\": [", "@", ",", "]}", 10000, NULL, 600000 },
	{ "{\"pattern\": \"^[a-z0-9]*$\", \"enum\": [", "\"w@\"", ",", "]}", 10000, NULL, 900000 },
	{ "{\"propertyNames\": {\"enum\": [", "\"w@\"", ",", "]}}", 10000, NULL, MAX_WORK },
	{ "{\"enum\": [", "[@]", ",", "]}", 10000, "#/enum: expected at most 1000 arrays", MAX_WORK },
	{ "{\"properties\": {", "\"p@\": {}", ",", "}}", 2000, NULL, 600000 },
	{ "{\"properties\": {", "\"p@\": {\"type\": \"integer\"}", ",", "}, \"additionalProperties\": false}", 2000,
	  NULL, 900000 },
	{ "{\"properties\": {", "\"p@\": {}", ",", "}}", 100000, "#/properties: expected at most 2000", 150000 },
	{ "{\"required\": [", "\"p@\"", ",", "]}", 100000, "#/required: expected at most 2000", 150000 },
	{ "{\"properties\": {", "\"p@\": {\"pattern\": \"^@(a|b)*@$\"}", ",", "}}", 2000, "#", MAX_WORK },
	{ "{\"const\": \"", "1234567890123456789012345678901234567890@", "", "\"}", 25000, "#", MAX_WORK },
	{ "{\"pattern\": \"", "1234567890@", "", "\"}", 25000, "#/pattern: it has", 30000 },
	/* combinations */
	{ "{\"$ref\": \"#/$defs/d1\", \"$defs\": {", "\"d@\": {\"$ref\": \"#/$defs/d&\"}", ",", ", \"d10001\": {}}}",
	  10000, "#/: more than 64 schemas", 30000 },
	{ "{\"oneOf\": [", "{\"pattern\": \"^.*@.*@$\"}", ",", "]}", 60, "#", MAX_WORK },
	{ "{\"type\": \"string\", \"allOf\": [", "{\"pattern\": \"x.*@\"}", ",", "]}", 40, "#", MAX_WORK },
	{ "{\"anyOf\": [", "{\"format\": \"uri\", \"maxLength\": 1@}", ",", "]}", 200, NULL, MAX_WORK },
	{ "{\"anyOf\": [{}], \"allOf\": [", "{\"anyOf\": [{\"minimum\": @}, {\"maxLength\": @}]}", ",", "]}", 10,
	  "#: its allOf, anyOf and oneOf have more than 512 combinations", 300000 },
	/* expressions */
	{ "{\"type\": \"string\", \"pattern\": \"^", "[^x]{1,1000}{1,1000}", "", "$\"}", 1, NULL, 30000 },
	{ "{\"type\": \"string\", \"pattern\": \"^", "x?", "", "x{500}$\"}", 500, NULL, 1000000 },
	{ "{\"type\": \"string\", \"pattern\": \"", "^(a*)*b$|(a|aa)+$|(.*a){20}", "", "\"}", 1, NULL, 600000 },
	{ "{\"type\": \"string\", \"pattern\": \"^(.{997})*$\", \"minLength\": 1, \"allOf\": [",
	  "{\"pattern\": \"^(.{@})*$\"}", ",", "]}", 9, "#", MAX_WORK },
	{ "{\"type\": \"integer\", \"minimum\": 1, \"maximum\": ", "99990", "", ", \"multipleOf\": 99991}", 1, "#",
	  MAX_WORK },
};

static void append_piece(struct od_strbuf *b, const char *piece, unsigned number)
{
	for (; *piece != '\0'; piece++)
		if (*piece == '@' || *piece == '&')
			od_strbuf_printf(b, "%u", number + (*piece == '&'));
		else
			od_strbuf_append(b, piece, 1);
}

static void test_work(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
		const struct hostile *h = &hostile[i];
		struct od_strbuf b = { 0 };
		struct od_err err = { 0 };
		struct od_automaton *a;
		uint64_t work;

		od_strbuf_append(&b, h->head, strlen(h->head));
		for (unsigned n = 1; n <= h->n; n++) {
			od_strbuf_append(&b, h->between, n > 1 ? strlen(h->between) : 0);
			append_piece(&b, h->piece, n);
		}
		od_strbuf_append(&b, h->tail, strlen(h->tail));
		a = compile(od_strbuf_text(&b), &work, &err);
		if (h->error == NULL && a == NULL)
			fail_msg("%s%s: %s", h->head, h->piece, err.msg);
		if (h->error != NULL && (a != NULL || strncmp(err.msg, h->error, strlen(h->error)) != 0))
			fail_msg("%s%s: %s", h->head, h->piece, a != NULL ? "is enforced" : err.msg);
		if (work > h->work)
			fail_msg("%s%s: %llu units of work", h->head, h->piece, (unsigned long long)work);
		od_automaton_free(a);
		od_strbuf_fini(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_work),
	};

	return cmocka_run_group_tests_name("json_schema", tests, NULL, NULL);
}
