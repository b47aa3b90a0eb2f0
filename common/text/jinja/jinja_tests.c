/* Tests: what stands behind `is`. */
#include "common/text/jinja/jinja_tests.h"

#include "common/text/jinja/jinja_ops.h"
#include "common/text/jinja/jinja_show.h"
#include "common/text/jinja/jinja_strings.h"

#define TEST(name) \
	static struct jinja_value name(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg, \
				       const struct jinja_call *call)

/* A test that only looks at the value. */
#define SIMPLE_TEST(name, expression) \
	TEST(name) \
	{ \
		(void)j; \
		(void)arg; \
		(void)call; \
		return jinja_bool(expression); \
	}

#define COMPARE_TEST(name, op) \
	TEST(name) \
	{ \
		(void)call; \
		return jinja_bool(jinja_compare_by(j, op, self, arg[0])); \
	}

static bool remainder_is(struct jinja_job *j, struct jinja_value v, struct jinja_value by, int64_t expected)
{
	return jinja_equal(j, jinja_binary(j, T_MOD, v, by), jinja_int(expected));
}

static bool is_callable(struct jinja_value v)
{
	return v.kind == JINJA_MACRO || v.kind == JINJA_METHOD || v.kind == JINJA_FUNCTION || v.kind == JINJA_JOINER ||
	       v.kind == JINJA_LOOP || v.kind == JINJA_UNDEFINED;
}

static bool is_sequence(struct jinja_value v)
{
	return jinja_has_len(v) && v.kind != JINJA_VIEW;
}

SIMPLE_TEST(t_odd, remainder_is(j, self, jinja_int(2), 1))
SIMPLE_TEST(t_even, remainder_is(j, self, jinja_int(2), 0))
SIMPLE_TEST(t_divisibleby, remainder_is(j, self, arg[0], 0))
SIMPLE_TEST(t_defined, self.kind != JINJA_UNDEFINED)
SIMPLE_TEST(t_undefined, self.kind == JINJA_UNDEFINED)
SIMPLE_TEST(t_filter, self.kind == JINJA_STR && jinja_find_filter(self.s) != NULL)
SIMPLE_TEST(t_test, self.kind == JINJA_STR && jinja_find_test(self.s) != NULL)
SIMPLE_TEST(t_none, self.kind == JINJA_NONE)
SIMPLE_TEST(t_boolean, self.kind == JINJA_BOOL)
SIMPLE_TEST(t_false, self.kind == JINJA_BOOL && !self.b)
SIMPLE_TEST(t_true, self.kind == JINJA_BOOL && self.b)
SIMPLE_TEST(t_integer, self.kind == JINJA_INT || self.kind == JINJA_BIG)
SIMPLE_TEST(t_float, self.kind == JINJA_FLOAT)
SIMPLE_TEST(t_lower, jinja_str_is_lower(jinja_str_of(j, self)))
SIMPLE_TEST(t_upper, jinja_str_is_upper(jinja_str_of(j, self)))
SIMPLE_TEST(t_string, self.kind == JINJA_STR)
SIMPLE_TEST(t_mapping, self.kind == JINJA_DICT)
SIMPLE_TEST(t_number, jinja_is_number(self))
SIMPLE_TEST(t_sequence, is_sequence(self))
SIMPLE_TEST(t_iterable, jinja_iterable(self))
SIMPLE_TEST(t_callable, is_callable(self))
SIMPLE_TEST(t_sameas, jinja_same(self, arg[0]))
SIMPLE_TEST(t_escaped, self.kind == JINJA_STR && self.s->markup)
SIMPLE_TEST(t_in, jinja_contains(j, arg[0], self))
COMPARE_TEST(t_eq, C_EQ)
COMPARE_TEST(t_ne, C_NE)
COMPARE_TEST(t_lt, C_LT)
COMPARE_TEST(t_le, C_LE)
COMPARE_TEST(t_gt, C_GT)
COMPARE_TEST(t_ge, C_GE)

static const struct jinja_function tests[] = {
	{ "defined", "", t_defined },
	{ "undefined", "", t_undefined },
	{ "none", "", t_none },
	{ "string", "", t_string },
	{ "mapping", "", t_mapping },
	{ "iterable", "", t_iterable },
	{ "sequence", "", t_sequence },
	{ "boolean", "", t_boolean },
	{ "true", "", t_true },
	{ "false", "", t_false },
	{ "number", "", t_number },
	{ "integer", "", t_integer },
	{ "float", "", t_float },
	{ "odd", "", t_odd },
	{ "even", "", t_even },
	{ "divisibleby", "num", t_divisibleby },
	{ "lower", "", t_lower },
	{ "upper", "", t_upper },
	{ "callable", "", t_callable },
	{ "escaped", "", t_escaped },
	{ "filter", "", t_filter },
	{ "test", "", t_test },
	{ "sameas", "other", t_sameas },
	{ "in", "seq", t_in },
	{ "==", "/b", t_eq },
	{ "eq", "/b", t_eq },
	{ "equalto", "/b", t_eq },
	{ "!=", "/b", t_ne },
	{ "ne", "/b", t_ne },
	{ "<", "/b", t_lt },
	{ "lt", "/b", t_lt },
	{ "lessthan", "/b", t_lt },
	{ "<=", "/b", t_le },
	{ "le", "/b", t_le },
	{ ">", "/b", t_gt },
	{ "gt", "/b", t_gt },
	{ "greaterthan", "/b", t_gt },
	{ ">=", "/b", t_ge },
	{ "ge", "/b", t_ge },
	{ NULL, NULL, NULL },
};

const struct jinja_function *jinja_find_test(const struct jinja_str *name)
{
	return jinja_find_in(tests, name);
}
