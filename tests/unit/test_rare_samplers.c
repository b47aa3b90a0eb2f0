/* Samplers that few texts use (DRY, XTC, typical, top-n-sigma, dynamic temperature, late tokens) where the goldens of
 * test_sampler do not reach: logits that are no numbers, one candidate, limits, and what is refused. */
#include <float.h>

#include "tests/unit/random.h"
#include "tests/unit/sampler_util.h"

#define N 200u

/* Options with the sampler number `which` on; false: there are no more. */
static bool turn_on(struct od_sampler_opts *o, int which)
{
	od_sampler_defaults(o);
	o->temperature = 1;
	switch (which) {
	case 0: o->typical_p = 0.5; return true;
	case 1: o->typical_p = 0; return true;
	case 2: o->xtc_probability = 1; return true;
	case 3: o->xtc_probability = 1, o->xtc_threshold = 0; return true;
	case 4: o->top_n_sigma = 1; return true;
	case 5: o->dynatemp_range = 1; return true;
	case 6: o->dynatemp_range = 0.5, o->temperature = 0; return true;
	case 7: o->dry.multiplier = 1; return true;
	case 8: o->xtc_probability = 1, o->top_k = 3, o->min_p = 0.01; return true;
	case 9: o->typical_p = 0.9, o->top_p = 0.5, o->temperature = 0; return true;
	case 10: o->dynatemp_range = 0.5, o->top_p = 0.9, o->top_n_sigma = 3; return true;
	case 11: o->dynatemp_range = 1, o->top_k = 50; return true; /* more than are possible */
	default: return false;
	}
}

static void impossible_tokens_do_not_count(void **state)
{
	struct od_sampler_opts o;

	(void)state;
	for (int which = 0; turn_on(&o, which); which++) {
		const float none[] = { NAN, -INFINITY, -INFINITY, NAN }, one[] = { -INFINITY, NAN, -3, -INFINITY };
		struct od_sampler *s = open_sampler(&o, 4), *few, *many;
		uint64_t seed = 5;
		float margin;

		assert_int_equal(sample_with(s, none, 4, &margin), 0);
		check_margin(margin, 0);
		assert_int_equal(sample_with(s, one, 4, &margin), 2);
		check_margin(margin, (double)INFINITY);
		od_sampler_free(s);
		/* It is the same without the impossible ones, which come last. */
		few = open_sampler(&o, 20);
		many = open_sampler(&o, N);
		for (int round = 0; round < 200; round++) {
			float logits[N], other;

			for (uint32_t i = 0; i < N; i++)
				logits[i] = i < 20 ? (float)(random_u64(&seed) % 4096) / 512 : i % 2 ? NAN : -INFINITY;
			assert_int_equal(sample_with(few, logits, 20, &other), sample_with(many, logits, N, &margin));
			assert_true(margin == other);
		}
		od_sampler_free(few);
		od_sampler_free(many);
	}
}

/* The largest numbers, and distances at which all weights but one vanish. */
static void far_logits(void **state)
{
	const float far[] = { FLT_MAX, -FLT_MAX, INFINITY, 0 }, apart[] = { 0, -2000, -4000, -6000 };
	struct od_sampler_opts o;

	(void)state;
	for (int which = 0; turn_on(&o, which); which++) {
		struct od_sampler *s = open_sampler(&o, 4);

		for (int i = 0; i < 50; i++) {
			assert_in_range(sample(s, far, 4), 0, 3);
			assert_in_range(sample(s, apart, 4), 0, 3);
		}
		od_sampler_free(s);
	}
	/* A threshold of 0 leaves the last one only. */
	assert_true(turn_on(&o, 3));
	for (int hot = 0; hot < 2; hot++) {
		struct od_sampler *s;

		o.dynatemp_range = hot * 0.5;
		s = open_sampler(&o, 4);
		assert_int_equal(sample(s, apart, 4), 3);
		od_sampler_free(s);
	}
}

/* multiplier * base^exponent stays a float: log(FLT_MAX) / log(100) is 19.3. */
static void dry_is_limited(void **state)
{
	struct od_dry_opts o;
	struct od_dry *d;
	float logits[3] = { 0, 1, 0 };

	(void)state;
	od_dry_defaults(&o);
	o.multiplier = 1;
	o.base = 100;
	assert_int_equal(od_dry_new(&d, &o, 3, NULL), OD_OK);
	for (int i = 0; i < 40; i++)
		od_dry_add(d, 2);
	od_dry_penalise(d, logits);
	assert_true(logits[0] == 0 && logits[1] == 1);
	assert_true(fabsf(logits[2] / -1e38f - 1) < 1e-6f);
	od_dry_clear(d);
	od_dry_penalise(d, logits);
	assert_true(logits[1] == 1);
	od_dry_free(d);
	od_dry_free(NULL);
}

static void late_tokens(void **state)
{
	const float logits[] = { 5, 4, 3, -INFINITY };
	const int32_t late[] = { 0, 2, 77, -1 };
	struct od_sampler_opts o;
	struct od_sampler *s;

	(void)state;
	od_sampler_defaults(&o);
	o.late = late;
	o.n_late = 4; /* two are not in the vocabulary */
	o.min_draws = 3;
	for (int hot = 0; hot < 2; hot++) {
		o.temperature = hot * 0.01; /* as good as greedy */
		s = open_sampler(&o, 4);
		for (int i = 0; i < 6; i++)
			assert_int_equal(sample(s, logits, 4), i < 3 ? 1 : 0);
		assert_int_equal(od_sampler_replay(s, NULL, 0, 2), OD_OK);
		assert_int_equal(sample(s, logits, 4), 1);
		assert_int_equal(sample(s, logits, 4), 0);
		od_sampler_free(s);
	}
	o.n_late = OD_MAX_LATE + 1;
	assert_int_equal(od_sampler_check(&o, NULL), OD_ERR_ARG);
}

static void refuses(void **state)
{
	static const struct {
		int32_t breakers[4];
		size_t n;
		const char *says;
	} t[] = {
		{ { 0 }, 1, "found 0" },
		{ { 1 }, 1, "found 1" },
		{ { 3, 1, 1 }, 3, "found 3" },
		{ { 1, 8 }, 2, "0 to 7" },
		{ { 1, -1 }, 2, "0 to 7" },
		{ { 1, 2, -5, 3 }, 4, "found -5" },
		{ { 22, 1, 1, 1 }, 4, "found 22" },
	};
	struct od_sampler_opts good, o;
	struct od_sampler *s;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&good);
#define REFUSED(field, value, name) \
	do { \
		o = good; \
		o.field = value; \
		assert_int_equal(od_sampler_check(&o, &err), OD_ERR_ARG); \
		assert_non_null(strstr(err.msg, name)); \
	} while (0)
	REFUSED(typical_p, 1.01, "typical_p");
	REFUSED(typical_p, (double)NAN, "typical_p");
	REFUSED(top_n_sigma, -1.1, "top_n_sigma");
	REFUSED(xtc_probability, -0.1, "xtc_probability");
	REFUSED(xtc_threshold, 1.5, "xtc_threshold");
	REFUSED(dynatemp_range, -1, "dynatemp_range");
	REFUSED(dynatemp_exponent, (double)INFINITY, "dynatemp_exponent");
	REFUSED(dry.multiplier, -1, "dry_multiplier");
	REFUSED(dry.multiplier, (double)NAN, "dry_multiplier");
	REFUSED(dry.base, 0.9, "dry_base");
	REFUSED(dry.allowed_length, UINT32_MAX, "dry_allowed_length");
	REFUSED(dry.window, UINT32_MAX, "dry_penalty_last_n");
	o = good;
	assert_false(od_sampler_looks_back(&o));
	o.dry.multiplier = 1;
	assert_true(od_sampler_looks_back(&o));
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		o.dry.breakers = t[i].breakers;
		o.dry.n_breakers = t[i].n;
		assert_int_equal(od_sampler_new(&s, &o, 8, &err), OD_ERR_ARG);
		assert_non_null(strstr(err.msg, "dry_sequence_breakers"));
		assert_non_null(strstr(err.msg, t[i].says));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(impossible_tokens_do_not_count),
		cmocka_unit_test(far_logits),
		cmocka_unit_test(dry_is_limited),
		cmocka_unit_test(late_tokens),
		cmocka_unit_test(refuses),
	};

	return cmocka_run_group_tests_name("rare_samplers", tests, NULL, NULL);
}
