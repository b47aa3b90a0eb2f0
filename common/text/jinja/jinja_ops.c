#include "common/text/jinja/jinja_ops.h"

#include <math.h>
#include <string.h>

#include "common/text/jinja/jinja_format.h"
#include "common/text/jinja/jinja_loop.h"
#include "common/text/jinja/jinja_methods.h"
#include "common/text/jinja/jinja_show.h"

/* ---- arithmetic ---- */

_Noreturn static void no_operator(struct jinja_job *j, enum jinja_token_type op, struct jinja_value a,
				  struct jinja_value b)
{
	if (a.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, a.undefined);
	if (b.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, b.undefined);
	jinja_fail(j, OD_ERR_FORMAT, "%s is not supported between %s and %s", jinja_token_name(op), jinja_type_name(a),
		   jinja_type_name(b));
}

_Noreturn static void too_large(struct jinja_job *j)
{
	jinja_fail(j, OD_ERR_RANGE, "an integer has more than 64 bits");
}

static int64_t floor_div(int64_t a, int64_t b)
{
	int64_t q = a / b;

	return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static double float_mod(double a, double b)
{
	double m = fmod(a, b);

	if (m != 0)
		return (b < 0) != (m < 0) ? m + b : m;
	return copysign(0.0, b);
}

static double float_floor_div(double a, double b)
{
	double m = fmod(a, b), q = (a - m) / b, whole;

	if (m != 0 && (b < 0) != (m < 0))
		q -= 1;
	if (q == 0)
		return copysign(0.0, a / b);
	whole = floor(q);
	return q - whole > 0.5 ? whole + 1 : whole;
}

static struct jinja_value int_power(struct jinja_job *j, int64_t a, int64_t b)
{
	int64_t r = 1;

	if (b < 0) {
		if (a == 0)
			jinja_fail(j, OD_ERR_FORMAT, "zero cannot be raised to a negative power");
		return jinja_float(pow((double)a, (double)b));
	}
	while (b > 0) {
		if ((b & 1) != 0 && __builtin_mul_overflow(r, a, &r))
			too_large(j);
		b >>= 1;
		if (b > 0 && __builtin_mul_overflow(a, a, &a))
			too_large(j);
	}
	return jinja_int(r);
}

static struct jinja_value int_op(struct jinja_job *j, enum jinja_token_type op, int64_t a, int64_t b)
{
	int64_t r = 0;
	bool bad = false;

	if (op == T_DIV || op == T_FLOORDIV || op == T_MOD) {
		if (b == 0)
			jinja_fail(j, OD_ERR_FORMAT, "division by zero");
		if (op == T_DIV)
			return jinja_float((double)a / (double)b);
		if (b == -1) /* INT64_MIN has no positive counterpart */
			bad = op == T_FLOORDIV && __builtin_sub_overflow(0, a, &r);
		else
			r = op == T_MOD ? a - floor_div(a, b) * b : floor_div(a, b);
	} else if (op == T_ADD) {
		bad = __builtin_add_overflow(a, b, &r);
	} else if (op == T_SUB) {
		bad = __builtin_sub_overflow(a, b, &r);
	} else if (op == T_MUL) {
		bad = __builtin_mul_overflow(a, b, &r);
	} else {
		return int_power(j, a, b);
	}
	if (bad)
		too_large(j);
	return jinja_int(r);
}

static double float_power(struct jinja_job *j, double a, double b)
{
	double r;

	if (a == 0 && b < 0)
		jinja_fail(j, OD_ERR_FORMAT, "zero cannot be raised to a negative power");
	if (a < 0 && !isinf(a) && !isinf(b) && b != floor(b))
		jinja_fail(j, OD_ERR_UNSUPPORTED, "a negative number to a power that is no integer (a complex number)");
	r = pow(a, b);
	if (isinf(r) && !isinf(a) && !isinf(b))
		jinja_fail(j, OD_ERR_FORMAT, "the result of '**' is too large");
	return r;
}

static struct jinja_value float_op(struct jinja_job *j, enum jinja_token_type op, double a, double b)
{
	if ((op == T_DIV || op == T_FLOORDIV || op == T_MOD) && b == 0)
		jinja_fail(j, OD_ERR_FORMAT, "division by zero");
	if (op == T_ADD)
		return jinja_float(a + b);
	if (op == T_SUB)
		return jinja_float(a - b);
	if (op == T_MUL)
		return jinja_float(a * b);
	if (op == T_DIV)
		return jinja_float(a / b);
	if (op == T_FLOORDIV)
		return jinja_float(float_floor_div(a, b));
	return jinja_float(op == T_MOD ? float_mod(a, b) : float_power(j, a, b));
}

/* ---- sequences ---- */

static struct jinja_value add_str(struct jinja_job *j, const struct jinja_str *a, const struct jinja_str *b)
{
	const bool markup = a->markup || b->markup;

	if (markup) {
		a = jinja_escape(j, a);
		b = jinja_escape(j, b);
	}
	return jinja_of_str(jinja_str_markup(j, jinja_concat(j, a, b), markup));
}

static struct jinja_value add_seq(struct jinja_job *j, struct jinja_value a, struct jinja_value b)
{
	struct jinja_seq *s = jinja_seq_new(j, a.seq->n + b.seq->n);

	for (size_t i = 0; i < a.seq->n; i++)
		jinja_push(j, s, a.seq->v[i]);
	for (size_t i = 0; i < b.seq->n; i++)
		jinja_push(j, s, b.seq->v[i]);
	return a.kind == JINJA_LIST ? jinja_list(s) : jinja_tuple(s);
}

static struct jinja_value repeat(struct jinja_job *j, struct jinja_value v, int64_t times)
{
	struct jinja_text t = { 0 };
	struct jinja_seq *s;

	times = times < 0 ? 0 : times;
	if (v.kind == JINJA_STR) {
		jinja_add_times(j, &t, v.s->p, v.s->len, (size_t)times);
		return jinja_of_str(jinja_str_markup(j, jinja_str_take(j, &t), v.s->markup));
	}
	s = jinja_seq_new(j, 0);
	if (v.seq->n > 0)
		for (int64_t i = 0; i < times; i++)
			for (size_t k = 0; k < v.seq->n; k++)
				jinja_push(j, s, v.seq->v[k]);
	return v.kind == JINJA_LIST ? jinja_list(s) : jinja_tuple(s);
}

static bool is_seq(struct jinja_value v)
{
	return v.kind == JINJA_STR || v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}

static bool is_int(struct jinja_value v)
{
	return v.kind == JINJA_INT || v.kind == JINJA_BOOL;
}

struct jinja_value jinja_binary(struct jinja_job *j, enum jinja_token_type op, struct jinja_value a,
				struct jinja_value b)
{
	jinja_charge(j, 1);
	if (is_int(a) && is_int(b))
		return int_op(j, op, jinja_to_int(a), jinja_to_int(b));
	if (jinja_is_number(a) && jinja_is_number(b))
		return float_op(j, op, jinja_to_double(a), jinja_to_double(b));
	if (op == T_MOD && a.kind == JINJA_STR)
		return jinja_percent(j, a.s, b);
	if (op == T_ADD && a.kind == JINJA_STR && b.kind == JINJA_STR)
		return add_str(j, a.s, b.s);
	if (op == T_ADD && a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE))
		return add_seq(j, a, b);
	if (op == T_MUL && is_seq(a) && is_int(b))
		return repeat(j, a, jinja_to_int(b));
	if (op == T_MUL && is_int(a) && is_seq(b))
		return repeat(j, b, jinja_to_int(a));
	no_operator(j, op, a, b);
}

struct jinja_value jinja_negate(struct jinja_job *j, struct jinja_value a)
{
	int64_t r;

	if (a.kind == JINJA_FLOAT)
		return jinja_float(-a.f);
	if (a.kind == JINJA_BIG && a.big->f < 0)
		return jinja_big(j, jinja_str_chars(j, a.big->digits, 1, a.big->digits->n_chars), -a.big->f);
	if (a.kind == JINJA_BIG)
		return jinja_big(j, jinja_concat(j, jinja_str_z(j, "-"), a.big->digits), -a.big->f);
	if (!is_int(a)) {
		if (a.kind == JINJA_UNDEFINED)
			jinja_fail_undefined(j, a.undefined);
		jinja_fail(j, OD_ERR_FORMAT, "expected a number after '-', found %s", jinja_type_name(a));
	}
	if (__builtin_sub_overflow(0, jinja_to_int(a), &r))
		too_large(j);
	return jinja_int(r);
}

struct jinja_value jinja_plus(struct jinja_job *j, struct jinja_value a)
{
	if (a.kind == JINJA_FLOAT || a.kind == JINJA_BIG)
		return a;
	if (is_int(a))
		return jinja_int(jinja_to_int(a));
	if (a.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, a.undefined);
	jinja_fail(j, OD_ERR_FORMAT, "expected a number after '+', found %s", jinja_type_name(a));
}

/* ---- comparisons ---- */

bool jinja_contains(struct jinja_job *j, struct jinja_value container, struct jinja_value v)
{
	const struct jinja_seq *s;

	if (container.kind == JINJA_STR) {
		if (v.kind == JINJA_UNDEFINED)
			jinja_fail(j, OD_ERR_FORMAT, "'in' a string: expected a string, found an undefined value");
		if (v.kind != JINJA_STR)
			jinja_fail(j, OD_ERR_FORMAT, "'in' a string: expected a string, found %s", jinja_type_name(v));
		jinja_charge(j, container.s->len / 16);
		return memmem(container.s->p, container.s->len, v.s->p, v.s->len) != NULL;
	}
	if (container.kind == JINJA_DICT)
		return jinja_dict_get(j, container.dict, v) != NULL;
	if (container.kind == JINJA_VIEW && container.view->of == JINJA_KEYS)
		return jinja_dict_get(j, container.view->dict, v) != NULL;
	if (!jinja_iterable(container))
		jinja_fail(j, OD_ERR_FORMAT, "'in': expected something to search in, found %s",
			   jinja_type_name(container));
	s = jinja_items(j, container);
	for (size_t i = 0; i < s->n; i++)
		if (jinja_same(s->v[i], v) || jinja_equal(j, s->v[i], v))
			return true;
	return false;
}

bool jinja_compare_by(struct jinja_job *j, enum jinja_compare_op op, struct jinja_value a, struct jinja_value b)
{
	const bool nan = (a.kind == JINJA_FLOAT && isnan(a.f) && jinja_is_number(b)) ||
			 (b.kind == JINJA_FLOAT && isnan(b.f) && jinja_is_number(a));

	if (op == C_EQ || op == C_NE)
		return jinja_equal(j, a, b) == (op == C_EQ);
	if (op == C_IN || op == C_NOT_IN)
		return jinja_contains(j, b, a) == (op == C_IN);
	if (nan)
		return false;
	if (op == C_LT)
		return jinja_compare(j, a, b, "<") < 0;
	if (op == C_LE)
		return jinja_compare(j, a, b, "<=") <= 0;
	if (op == C_GT)
		return jinja_compare(j, a, b, ">") > 0;
	return jinja_compare(j, a, b, ">=") >= 0;
}

/* ---- subscripts and attributes ---- */

static bool item_at(struct jinja_job *j, struct jinja_value of, int64_t i, struct jinja_value *out)
{
	const size_t n = jinja_len(j, of);

	if (i < 0)
		i += (int64_t)n;
	if (i < 0 || (size_t)i >= n)
		return false;
	if (of.kind == JINJA_STR)
		*out = jinja_of_str(jinja_str_chars(j, of.s, (size_t)i, (size_t)i + 1));
	else if (of.kind == JINJA_RANGE)
		*out = jinja_int(of.range->begin + i * of.range->step);
	else
		*out = of.seq->v[i];
	return true;
}

/* of[index] in Python; false where Python raises a TypeError or LookupError, which jinja2 catches. */
static bool try_item(struct jinja_job *j, struct jinja_value of, struct jinja_value index, struct jinja_value *out)
{
	const struct jinja_value *v;

	if (of.kind == JINJA_DICT) {
		v = jinja_hashable(index) ? jinja_dict_get(j, of.dict, index) : NULL;
		if (v != NULL)
			*out = *v;
		return v != NULL;
	}
	if (of.kind == JINJA_STR || of.kind == JINJA_LIST || of.kind == JINJA_TUPLE || of.kind == JINJA_RANGE)
		return is_int(index) && item_at(j, of, jinja_to_int(index), out);
	return false;
}

/* An attribute in Python. A name that begins with "_" is there for some values, but unsafe. */
static bool try_attribute(struct jinja_job *j, struct jinja_value of, const struct jinja_str *name,
			  struct jinja_value *out)
{
	const struct jinja_value *v;

	if (of.kind == JINJA_NAMESPACE) {
		v = jinja_dict_get(j, of.dict, jinja_of_str(name));
		if (v != NULL)
			*out = *v;
		return v != NULL;
	}
	if (of.kind == JINJA_LOOP)
		return jinja_loop_attribute(j, of.loop, name, out);
	return jinja_value_attribute(j, of, name, out);
}

static const char *owner_name(struct jinja_value of)
{
	return of.kind == JINJA_NONE ? "None" : jinja_type_name(of);
}

struct jinja_value jinja_get_attribute(struct jinja_job *j, struct jinja_value of, const struct jinja_str *name)
{
	struct jinja_value out;

	jinja_charge(j, 1);
	if (of.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, of.undefined);
	if (try_attribute(j, of, name, &out) || try_item(j, of, jinja_of_str(name), &out))
		return out;
	return jinja_undefined_name(j, name, owner_name(of));
}

struct jinja_value jinja_get_item(struct jinja_job *j, struct jinja_value of, struct jinja_value index)
{
	struct jinja_value out;

	jinja_charge(j, 1);
	if (of.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, of.undefined);
	if (try_item(j, of, index, &out) || (index.kind == JINJA_STR && try_attribute(j, of, index.s, &out)))
		return out;
	return jinja_undefined_name(j, jinja_str_of(j, index), owner_name(of));
}

static int64_t slice_bound(struct jinja_job *j, struct jinja_value v, int64_t fallback)
{
	if (!jinja_given(v))
		return fallback;
	if (!is_int(v))
		jinja_fail(j, OD_ERR_FORMAT, "a slice: expected integers, found %s", jinja_type_name(v));
	return jinja_to_int(v);
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
	if (i < 0)
		i += n;
	return i < low ? low : i > high ? high : i;
}

static struct jinja_value slice_str(struct jinja_job *j, const struct jinja_str *s, int64_t begin, int64_t step,
				    size_t n)
{
	struct jinja_text t = { 0 };

	if (step == 1)
		return jinja_of_str(jinja_str_chars(j, s, (size_t)begin, (size_t)begin + n));
	if (s->n_chars == s->len) {
		for (size_t i = 0; i < n; i++)
			jinja_add(j, &t, s->p + begin + (int64_t)i * step, 1);
	} else {
		const struct jinja_seq *chars = jinja_items(j, jinja_of_str(s));

		for (size_t i = 0; i < n; i++) {
			const struct jinja_str *c = chars->v[begin + (int64_t)i * step].s;

			jinja_add(j, &t, c->p, c->len);
		}
	}
	jinja_charge(j, n);
	return jinja_of_str(jinja_str_markup(j, jinja_str_take(j, &t), s->markup));
}

static struct jinja_value slice_range(struct jinja_job *j, const struct jinja_range *of, int64_t first, int64_t last,
				      int64_t step, size_t n)
{
	struct jinja_range *r = jinja_alloc(j, sizeof(*r));

	r->n = n;
	/* Unsigned: one step behind the end there may be no int64_t. */
	r->begin = (int64_t)((uint64_t)of->begin + (uint64_t)first * (uint64_t)of->step);
	r->end = (int64_t)((uint64_t)of->begin + (uint64_t)last * (uint64_t)of->step);
	if (__builtin_mul_overflow(of->step, step, &r->step))
		too_large(j);
	return (struct jinja_value){ .kind = JINJA_RANGE, .range = r };
}

struct jinja_value jinja_slice(struct jinja_job *j, struct jinja_value of, struct jinja_value begin,
			       struct jinja_value end, struct jinja_value step)
{
	const int64_t by = slice_bound(j, step, 1), n = jinja_has_len(of) ? (int64_t)jinja_len(j, of) : 0;
	const struct jinja_seq *from;
	struct jinja_seq *s;
	int64_t first, last;
	size_t n_out = 0;

	if (of.kind == JINJA_UNDEFINED)
		jinja_fail_undefined(j, of.undefined);
	if (!is_seq(of) && of.kind != JINJA_RANGE)
		jinja_fail(j, OD_ERR_FORMAT, "a slice: expected a string, list or tuple, found %s",
			   jinja_type_name(of));
	if (by == 0)
		jinja_fail(j, OD_ERR_FORMAT, "the step of a slice is zero");
	first = clamp(slice_bound(j, begin, by > 0 ? 0 : INT64_MAX), n, by > 0 ? 0 : -1, by > 0 ? n : n - 1);
	last = jinja_given(end) ? clamp(slice_bound(j, end, 0), n, by > 0 ? 0 : -1, by > 0 ? n : n - 1) :
	       by > 0		? n :
				  -1;
	if (by > 0 ? last > first : last < first) /* unsigned: any step and its distance fit */
		n_out = by > 0 ? ((uint64_t)(last - first) - 1) / (uint64_t)by + 1 :
				 ((uint64_t)(first - last) - 1) / (0 - (uint64_t)by) + 1;
	if (of.kind == JINJA_STR)
		return slice_str(j, of.s, n_out > 0 ? first : 0, by, n_out);
	if (of.kind == JINJA_RANGE)
		return slice_range(j, of.range, first, last, by, n_out);
	from = jinja_items(j, of);
	s = jinja_seq_new(j, n_out);
	for (size_t i = 0; i < n_out; i++)
		jinja_push(j, s, from->v[first + (int64_t)i * by]);
	return of.kind == JINJA_TUPLE ? jinja_tuple(s) : jinja_list(s);
}
