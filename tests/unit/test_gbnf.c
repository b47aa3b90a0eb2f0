/* GBNF: texts that match and that do not, as llama.cpp's guide describes the notation; random grammars as XGrammar
 * reads them (tests/golden/grammar/gbnf.json); refusals, with their lines. */
#include "common/grammar/automaton.h"
#include "common/grammar/gbnf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static int compile(struct od_automaton **a, const char *text, size_t len, struct od_err *err)
{
	struct od_grammar *g;
	uint32_t root;
	int rc;

	*a = NULL;
	*err = (struct od_err){ 0 };
	assert_int_equal(od_grammar_new(&g, err), OD_OK);
	rc = od_gbnf_compile(g, text, len, &root, err);
	if (rc == OD_OK)
		rc = od_grammar_finish(g, root, err);
	if (rc != OD_OK) {
		od_grammar_free(g);
		return rc;
	}
	return od_automaton_new(a, g, err);
}

static bool matches(struct od_automaton *a, const char *text, size_t len)
{
	uint32_t state = od_automaton_start(a);

	for (size_t i = 0; i < len; i++)
		state = od_automaton_step(a, state, (uint8_t)text[i]);
	assert_int_equal(od_automaton_check(a, NULL), OD_OK);
	return od_automaton_ends(a, state);
}

/* Texts that match, NULL, and texts that do not. */
static void check(const char *grammar, const char *const *texts)
{
	struct od_automaton *a;
	struct od_err err;
	bool want = true;

	if (compile(&a, grammar, strlen(grammar), &err) != OD_OK)
		fail_msg("%s: %s", grammar, err.msg);
	for (int lists = 0; lists < 2; texts++) {
		if (*texts == NULL) {
			want = false;
			lists++;
			continue;
		}
		if (matches(a, *texts, strlen(*texts)) != want)
			fail_msg("%s\n\"%s\": expected %d", grammar, *texts, want);
	}
	od_automaton_free(a);
}

#define MATCHES(grammar, ...) check(grammar, (const char *const[]){ __VA_ARGS__, NULL })

static void the_notation_is_that_of_llama_cpp(void **state)
{
	(void)state;
	MATCHES("root ::= \"a\"", "a", NULL, "", "b", "aa");
	MATCHES("root ::= \"a\" \"b\" | \"c\"", "ab", "c", NULL, "a", "abc", "ac");
	MATCHES("root ::= one | two\none ::= \"1\"\ntwo ::= \"2\" one", "1", "21", NULL, "2", "12");
	MATCHES("root ::= [a-cx] [^a-c\\n]", "ad", "x\xc3\xa9", "b-", NULL, "d", "aa", "a\n", "a\xc3");
	MATCHES("root ::= [a-] [-z] [\\]\\[] [\\-+]", "a-]-", "-z[+", NULL, "az]", "b-]-");
	MATCHES("root ::= [^\"\\\\]*", "", "a b", "\n", NULL, "\"", "a\\");
	MATCHES("root ::= . .", "ab", "\n\n", "\xe4\xba\x8c\xf0\x9f\x98\x80", NULL, "a", "abc", "a\xff");
	MATCHES("root ::= \"\\n\\t\\r\\\"\\\\\\x41\\u00e9\\U0001F600\"", "\n\t\r\"\\A\xc3\xa9\xf0\x9f\x98\x80", NULL,
		"");
	MATCHES("root ::= \"\xc3\xa9\" [\xe4\xb8\x80-\xe9\xbe\xa5]+", "\xc3\xa9\xe4\xba\x8c\xe4\xba\x8c", NULL,
		"\xc3\xa9", "\xc3\xa9\x61");
	MATCHES("root ::= [\\u3041-\\u309f]{1,2}", "\xe3\x81\x82", NULL, "", "a", "\xe3\x82\xa0",
		"\xe3\x81\x82\xe3\x81\x82\xe3\x81\x82");
	MATCHES("root ::= \"a\"* \"b\"+ \"c\"?", "b", "aabbc", "bc", NULL, "", "ac", "bcc");
	MATCHES("root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2}", "aab", "aabbcc", NULL, "ab", "aaab", "aa", "aabccc");
	MATCHES("root ::= (\"a\" | \"b\")*  (\"c\")", "c", "abbac", NULL, "", "ca");
	MATCHES("root ::= \"ab\"*", "", "abab", NULL, "aba", "abb"); /* the whole literal is repeated */
	MATCHES("root ::= \"a\"*+?", "", "aa", NULL, "b");
	MATCHES("root ::= ", "", NULL, "a");
	MATCHES("root ::= \"a\" | | \"b\"", "", "a", "b", NULL, "ab");
	MATCHES("root ::= (\"a\" |)", "", "a", NULL, "aa");
	MATCHES("root ::= \"\"", "", NULL, "a");
	MATCHES("root ::= \"a\n#b\"", "a\n#b", NULL, "a");
	MATCHES("# x\n\n  root   ::=   \"a\" # \"b\"\n# y", "a", NULL, "ab");
	MATCHES("root ::=\n  # first\n  \"a\" |\n  \"b\"\r\n\r\nx-1 ::= \"c\"\r\n", "a", "b", NULL, "c", "ab");
	MATCHES("root ::= (\n\"a\"\n\n  \"b\" # x\n | \"c\"\n){2}\nx ::= root", "abc", "cc", NULL, "ab", "c");
	MATCHES("root ::= \"a\" { 1 , 2 }", "a", "aa", NULL, "", "aaa");
	MATCHES("x ::= \"a\"\nroot ::= x\nx ::= \"b\"", "b", NULL, "a"); /* the last definition */
	MATCHES("root ::= \"a\" <|end|> \"b\"", "a\xff<|end|>b", NULL, "a<|end|>b", "ab", "a\xff<|end|>");
	MATCHES("root ::= \"(\" root \")\" | \"x\"", "x", "((x))", NULL, "(x", "()", "x)");
	MATCHES("root ::= a\na ::= \"1\" b?\nb ::= \"2\" a", "1", "121", NULL, "12", "2");
}

static void usual_grammars_match_their_texts(void **state)
{
	static const char json[] =
		"root   ::= object\n"
		"value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
		"object ::= \"{\" ws ( pair (\",\" ws pair)* )? \"}\" ws\n"
		"pair   ::= string \":\" ws value\n"
		"array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
		"string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* "
		"\"\\\"\" ws\n"
		"number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)? ws\n"
		"ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
	static const char sums[] = "root  ::= (expr \"=\" ws term \"\\n\")+\n"
				   "expr  ::= term ([-+*/] ws term)*\n"
				   "term  ::= ident | num | \"(\" ws expr \")\" ws\n"
				   "ident ::= [a-z] [a-z0-9_]* ws\n"
				   "num   ::= [0-9]+ ws\n"
				   "ws    ::= [ \\t\\n]*\n";
	static const char list[] = "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n";
	static const char chess[] =
		"root ::= (\"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+)\n"
		"move ::= (pawn | piece | castle) [+#]?\n"
		"piece ::= [NBKQR] [1-8]? [a-h]? \"x\"? [a-h] [1-8]\n"
		"pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
		"castle ::= \"O-O\" \"-O\"?\n";
	static const char japanese[] = "root ::= jp-char+ ([ \\t\\n] jp-char+)*\n"
				       "jp-char ::= hiragana | katakana | punctuation | cjk\n"
				       "hiragana ::= [\xe3\x81\x81-\xe3\x82\x9f]\n"
				       "katakana ::= [\xe3\x82\xa1-\xe3\x83\xbf]\n"
				       "punctuation ::= [\xe3\x80\x81-\xe3\x80\xbe]\n"
				       "cjk ::= [\xe4\xb8\x80-\xe9\xbf\xbf]\n";
	static const char c[] =
		"root ::= function*\n"
		"function ::= type ws name \"(\" (type ws name (\",\" ws type ws name)*)? \")\" ws \"{\" ws statement* \"}\" ws\n"
		"type ::= \"int\" | \"float\" | \"char\"\n"
		"name ::= [a-zA-Z_] [a-zA-Z_0-9]*\n"
		"statement ::= (type ws name ws \"=\" ws expr \";\" | name ws \"=\" ws expr \";\" | name ws \"(\" args? \")\" \";\" |\n"
		"  \"return\" ws expr \";\" | \"while\" ws \"(\" expr [<>] ws expr \")\" ws \"{\" ws statement* \"}\" |\n"
		"  \"//\" [^\\n]* \"\\n\") ws\n"
		"expr ::= term ([-+] ws term)*\n"
		"term ::= factor ([*/] ws factor)*\n"
		"factor ::= (name | [0-9]+ | \"-\" factor | name \"(\" args? \")\" | \"(\" expr \")\") ws\n"
		"args ::= expr (\",\" ws expr)*\n"
		"ws ::= [ \\t\\n]*\n";

	(void)state;
	MATCHES(json, "{}", "{\"a\": [1, -2.5e+10, true, null, \"\\u00e9\\n\"], \"b\":{\"c\":\n\t[]}}", NULL, "[]", "{",
		"{\"a\"}", "{\"a\": 01}", "{\"a\": \"\n\"}", "{\"a\":1,}", "{\"a\": \"\\x\"}");
	MATCHES(sums, "a=1\n", "(1 + a_2) * b= 7\n", "1+2-(3*(4/5))=6\nx=1\n", NULL, "a=1", "a=b+1\n", "(1=2\n",
		"=1\n");
	MATCHES(list, "- a\n", "- a\n- \xe4\xba\x8c b\n", NULL, "", "- a", "-a\n", "- \n", "- a\xe2\x80\xa8\n",
		"- \xc2\x85\n");
	MATCHES(chess, "1. e4 e5\n2. Nf3 Nc6\n", "1. d4 d5\n2. O-O exd5+\n13. a8=Q# Rad1\n", NULL, "1. e4 e5\n",
		"1. e9 e5\n2. a4 a5\n", "2. e4 e5\n2. e4 e5\n");
	MATCHES(japanese, "\xe3\x81\x82\xe3\x82\xa2 \xe4\xba\x8c\xe3\x80\x82", NULL, "", "a", "\xe3\x81\x82 ");
	MATCHES(c, "", "int f(int a, char b) { return a + 2 * (b - -1); }",
		"int main() {\n// x\nint i = f(1, g());\nwhile (i < 3) { i = i + 1; }\n}\n", NULL,
		"int f() { return 1 }", "int f( { }", "f() {}");
}

static unsigned compare(const json_t *c)
{
	const char *grammar = json_string_value(json_object_get(c, "grammar"));
	const char *begins = json_string_value(json_object_get(c, "begins"));
	const char *whole = json_string_value(json_object_get(c, "whole"));
	const json_t *texts = json_object_get(c, "texts");
	struct od_automaton *a;
	struct od_err err;
	unsigned wrong = 0;

	if (compile(&a, grammar, strlen(grammar), &err) != OD_OK)
		fail_msg("%s: %s", grammar, err.msg);
	for (size_t i = 0; i < json_array_size(texts); i++) {
		const char *text = json_string_value(json_array_get(texts, i));
		uint32_t state = od_automaton_start(a);

		for (const char *t = text; *t != '\0'; t++)
			state = od_automaton_step(a, state, (uint8_t)*t);
		if ((state != OD_STATE_DEAD) == (begins[i] == '1') && od_automaton_ends(a, state) == (whole[i] == '1'))
			continue;
		print_error("%s\"%s\": expected %c%c\n", grammar, text, begins[i], whole[i]);
		wrong++;
	}
	assert_int_equal(od_automaton_check(a, &err), OD_OK);
	od_automaton_free(a);
	return wrong;
}

static void they_match_what_xgrammar_matches(void **state)
{
	json_t *cases = json_load_file("tests/golden/grammar/gbnf.json", 0, NULL);
	unsigned wrong = 0;

	(void)state;
	assert_true(json_array_size(cases) >= 100);
	for (size_t i = 0; i < json_array_size(cases); i++)
		wrong += compare(json_array_get(cases, i));
	json_decref(cases);
	assert_int_equal(wrong, 0);
}

/* Rules that do not lead to themselves are one expression, however many alternatives they have. */
static void other_rules_become_one_expression(void **state)
{
	static const char regular[] = "root ::= (x | y)* z\nx ::= \"x\" [0-9]+\ny ::= \"y\" x | z\nz ::= \"z\"\n";
	static const char part[] =
		"root ::= (x | y)* z\nx ::= \"x\" [0-9]+\ny ::= \"y\" x | z\nz ::= \"z\" | \"(\" root \")\"";
	struct od_automaton *a;
	struct od_err err;

	(void)state;
	assert_int_equal(compile(&a, regular, strlen(regular), &err), OD_OK);
	assert_int_equal(od_automaton_ways(a, od_automaton_start(a)), 1);
	assert_true(matches(a, "x12yx3zz", 8));
	od_automaton_free(a);
	assert_int_equal(compile(&a, part, strlen(part), &err), OD_OK);
	assert_true(od_automaton_ways(a, od_automaton_start(a)) > 1);
	assert_true(matches(a, "x12yx3(z)z", 10));
	od_automaton_free(a);
}

static void refuse(const char *grammar, size_t len, int code, const char *why)
{
	struct od_automaton *a;
	struct od_err err;
	const int rc = compile(&a, grammar, len, &err);

	if (rc != code || strstr(err.msg, why) == NULL)
		fail_msg("%.200s: %d, %s; expected %d, %s", grammar, rc, err.msg, code, why);
}

static void others_are_refused_with_their_line(void **state)
{
	static const struct {
		const char *grammar;
		int code;
		const char *why;
	} cases[] = {
		{ "", OD_ERR_FORMAT, "the rule \"root\" is not defined" },
		{ "roots ::= \"a\"", OD_ERR_FORMAT, "the rule \"root\" is not defined" },
		{ "root ::= a\n\na ::= b", OD_ERR_FORMAT, "line 3: the rule \"b\" is not defined" },
		{ "root = \"a\"", OD_ERR_FORMAT, "line 1: expected ::=" },
		{ "root ::= \"a\"\n\"b\"", OD_ERR_FORMAT, "line 2: expected the name of a rule" },
		{ "root ::= \"a\"\n| \"b\"", OD_ERR_FORMAT, "line 2: expected the name of a rule" },
		{ "root ::= \"a", OD_ERR_FORMAT, "line 1: expected \" at the end of a literal" },
		{ "root ::= [a", OD_ERR_FORMAT, "line 1: expected ] at the end of a class" },
		{ "root ::= [a-", OD_ERR_FORMAT, "line 1: expected ] at the end of a class" },
		{ "root ::= []", OD_ERR_FORMAT, "line 1: a class without characters" },
		{ "root ::= [^]", OD_ERR_FORMAT, "line 1: a class without characters" },
		{ "root ::= [b-a]", OD_ERR_FORMAT, "line 1: a range whose end is before its start" },
		{ "root ::= (\n\"a\"", OD_ERR_FORMAT, "line 2: expected ) at the end of a group" },
		{ "root ::= \"a\")", OD_ERR_FORMAT, "line 1: a bracket that was not opened" },
		{ "root ::= \"a\" $", OD_ERR_FORMAT,
		  "line 1: expected a literal, a class, a rule, a group, | or the end" },
		{ "root ::= a b ::= \"x\"", OD_ERR_FORMAT, "line 1: expected a literal" },
		{ "root ::= *", OD_ERR_FORMAT, "line 1: expected an item before a repetition" },
		{ "root ::= \"a\" | +", OD_ERR_FORMAT, "line 1: expected an item before a repetition" },
		{ "root ::= \"a\"{", OD_ERR_FORMAT, "line 1: expected a number behind {" },
		{ "root ::= \"a\"{,2}", OD_ERR_FORMAT, "line 1: expected a number behind {" },
		{ "root ::= \"a\"{2", OD_ERR_FORMAT, "line 1: expected } at the end of a repetition" },
		{ "root ::= \"a\"{3,2}", OD_ERR_FORMAT, "line 1: a repetition whose maximum is below its minimum" },
		{ "root ::= \"a\"{100001}", OD_ERR_RANGE, "line 1: a repetition of more than 100000 times" },
		{ "root ::= \"a\"{99999999999999999999}", OD_ERR_RANGE,
		  "line 1: a repetition of more than 100000 times" },
		{ "root ::= \"\\q\"", OD_ERR_FORMAT, "line 1: an unknown escape" },
		{ "root ::= \"\\", OD_ERR_FORMAT, "line 1: an unknown escape" },
		{ "root ::= \"\\x4\"", OD_ERR_FORMAT, "line 1: expected 2, 4 or 8 hexadecimal digits" },
		{ "root ::= [\\uD800]", OD_ERR_FORMAT, "line 1: expected 2, 4 or 8 hexadecimal digits" },
		{ "root ::= \"\\U00110000\"", OD_ERR_FORMAT, "line 1: expected 2, 4 or 8 hexadecimal digits" },
		{ "root ::= \"\xff\"", OD_ERR_FORMAT, "line 1: invalid UTF-8" },
		{ "root ::= <a\xff>", OD_ERR_FORMAT, "line 1: invalid UTF-8" },
		{ "root ::= <[7]>", OD_ERR_UNSUPPORTED, "line 1: a token by its number" },
		{ "root ::= !<a>", OD_ERR_UNSUPPORTED, "line 1: a negated token" },
		{ "root ::= <a\n>", OD_ERR_FORMAT, "line 1: expected > at the end of a token" },
		{ "root ::= \"a\" | root \"b\"", OD_ERR_UNSUPPORTED, "the rule \"root\" can begin with itself" },
		{ "root ::= a\na ::= b \"x\"\nb ::= \"y\"? a | \"z\"", OD_ERR_UNSUPPORTED, "can begin with itself" },
		{ "root ::= \"a\" root", OD_ERR_ARG, "no text can satisfy it" },
		{ "root ::= \"a\"*********", OD_ERR_RANGE, "line 1: too many repetitions of one item" },
	};

	(void)state;
	for (size_t i = 0; i < N_OF(cases); i++)
		refuse(cases[i].grammar, strlen(cases[i].grammar), cases[i].code, cases[i].why);
	refuse("root ::= \"a\"\0", 13, OD_ERR_FORMAT, "line 1: expected a literal");
}

/* n times what, between begin and end. */
static char *many(const char *begin, const char *what, size_t n, const char *end)
{
	const size_t b = strlen(begin), w = strlen(what);
	char *text = malloc(b + n * w + strlen(end) + 1);

	assert_non_null(text);
	memcpy(text, begin, b);
	for (size_t i = 0; i < n; i++)
		memcpy(text + b + i * w, what, w);
	memcpy(text + b + n * w, end, strlen(end) + 1);
	return text;
}

static void large_ones_are_compiled_or_refused(void **state)
{
	char *text = many("root ::= ", "(", 60000, "");
	struct od_automaton *a;
	struct od_err err;

	(void)state;
	refuse(text, strlen(text), OD_ERR_RANGE, "line 1: it is nested too deep");
	free(text);
	text = many("root ::= ", "\"a\"", 21000, "");
	assert_int_equal(compile(&a, text, strlen(text), &err), OD_OK);
	od_automaton_free(a);
	free(text);
	text = many("root ::= ", "root1|", 10000, "\"a\"\nroot1 ::= \"x\" root");
	assert_int_equal(compile(&a, text, strlen(text), &err), OD_OK);
	assert_true(matches(a, "xxa", 3) && !matches(a, "xx", 2));
	od_automaton_free(a);
	free(text);
	text = many("root ::= \"[\" root \"]\" | x{50000}\nx ::= \"a\"{0,100000}", " ", 60000, "#");
	assert_int_equal(compile(&a, text, strlen(text), &err), OD_OK);
	assert_true(matches(a, "[a]", 3) && !matches(a, "[a", 2));
	od_automaton_free(a);
	free(text);
	text = many("root ::= \"a\"", " ", OD_MAX_GBNF_BYTES, "");
	refuse(text, strlen(text), OD_ERR_RANGE, "expected at most 65536");
	free(text);
}

/* Grammars whose states grow without end: the automaton fails, and says so. */
static void too_much_work_is_refused(void **state)
{
	char *doubled = many("root ::= ", "(", 60, "\"a\"?"), *nested = many("root ::= ", "(", 190, "\"a\"");
	char *text[2] = { many(doubled, " \"a\"?){2}", 60, ""), many(nested, "){0,3}", 190, "") };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct od_automaton *a;
		struct od_err err;
		uint32_t at;

		assert_int_equal(compile(&a, text[i], strlen(text[i]), &err), OD_OK);
		at = od_automaton_start(a);
		for (int k = 0; k < 100000 && at != OD_STATE_DEAD; k++)
			at = od_automaton_step(a, at, 'a');
		assert_int_equal(at, OD_STATE_DEAD);
		assert_int_equal(od_automaton_check(a, &err), OD_ERR_RANGE);
		assert_non_null(strstr(err.msg, "too much work"));
		od_automaton_free(a);
		free(text[i]);
	}
	free(doubled);
	free(nested);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_notation_is_that_of_llama_cpp),
		cmocka_unit_test(usual_grammars_match_their_texts),
		cmocka_unit_test(they_match_what_xgrammar_matches),
		cmocka_unit_test(other_rules_become_one_expression),
		cmocka_unit_test(others_are_refused_with_their_line),
		cmocka_unit_test(large_ones_are_compiled_or_refused),
		cmocka_unit_test(too_much_work_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
