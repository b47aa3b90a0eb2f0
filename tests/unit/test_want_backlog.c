/* When workers could begin another load, against the same found load by load, whatever comes before it. */
#include "main-node/cluster/want_backlog.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MOST_WORKERS 6
#define LAYERS 12
#define MS 1e6

static uint64_t seed = 1;

static uint32_t rng(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

/* Time on paper at which a layer's rows come. */
static double comes(const struct odm_backlog *b, uint64_t step, uint32_t m)
{
	const double layers = step == b->step ? (double)m - b->m : (double)b->n_moe - b->m + m;

	return b->paper_ns + b->pace_ns * layers;
}

/* The worker's loads before (step, m), one after the other: each waits for the path, and for the slot of the load that
 * many slots before it. */
static struct odm_deal_times expected(const struct odm_backlog *b, const struct odm_deal_times *t, uint32_t slots,
				      uint64_t step, uint32_t m)
{
	struct odm_deal_times e = *t;
	double path = b->through[t->id], free_at[256];
	uint32_t n = 0;

	for (size_t i = 0; i < b->n; i++) {
		const struct odm_backlog_load *l = &b->load[i];

		if (l->id != t->id || !(l->step < step || (l->step == step && l->m < m)))
			continue;
		path = fmax(path, l->ordered);
		if (slots > 0 && n >= slots)
			path = fmax(path, free_at[n - slots]);
		path += l->load_ns;
		free_at[n++] = comes(b, l->step, l->m) + t->expert.run;
	}
	e.begin = fmax(0, path - b->now);
	e.layer = fmax(0, comes(b, step, m) - b->now);
	e.held = n;
	e.freed = n > 0 ? fmax(0, free_at[n - 1] - b->now) : 0;
	return e;
}

static void expect_equal(const struct odm_deal_times *found, const struct odm_deal_times *e)
{
	assert_int_equal(found->held, e->held);
	if (fabs(found->begin - e->begin) > 1e-3 || fabs(found->layer - e->layer) > 1e-3 ||
	    fabs(found->freed - e->freed) > 1e-3)
		fail_msg("expected %.3f %.3f %.3f, found %.3f %.3f %.3f", e->begin, e->layer, e->freed, found->begin,
			 found->layer, found->freed);
}

/* Workers in any order; some leave, and their loads stay in the list. */
static void random_loads(void **state)
{
	struct odm_backlog b;
	struct od_err err;

	(void)state;
	for (int round = 0; round < 300; round++) {
		struct odm_deal_times times[MOST_WORKERS] = { { 0 } };
		uint32_t slots[MOST_WORKERS];
		const uint32_t n = 1 + rng(MOST_WORKERS), turn = rng(MOST_WORKERS);
		uint64_t now = 0;

		assert_int_equal(odm_backlog_init(&b, MOST_WORKERS, &err), OD_OK);
		for (uint32_t w = 0; w < n; w++) {
			times[w].id = (w + turn) % MOST_WORKERS;
			times[w].expert = (struct odm_expert_times){ .load = (1 + rng(20)) * MS, .run = rng(5) * MS };
			slots[w] = rng(4);
		}
		for (uint32_t m = 0; m < LAYERS; m++) {
			now += (1 + rng(9)) * (uint64_t)MS;
			odm_backlog_reached(&b, 1 + m / LAYERS, m % LAYERS, LAYERS, rng(3) * (uint64_t)MS, now);
			for (uint32_t ahead = 1; ahead < 6; ahead++) {
				const uint64_t step = 1 + (m + ahead) / LAYERS;
				const uint32_t at = (m + ahead) % LAYERS, present = 1 + rng(n);

				odm_backlog_begin(&b, step, at, slots, times, present, now + rng(4) * (uint64_t)MS);
				for (uint32_t w = 0; w < present; w++) {
					const struct odm_deal_times e = expected(&b, &times[w], slots[w], step, at);

					expect_equal(&times[w], &e);
				}
				odm_backlog_clear(&b, step, at);
				for (uint32_t k = rng(4); k > 0; k--) {
					const uint32_t w = rng(n);

					odm_backlog_add(&b, step, at, times[w].id, times[w].expert.load);
				}
			}
		}
		odm_backlog_fini(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_loads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
