/* The choice of dense weights that stay, and of places for the others: against all possible choices of small models,
 * and played: a reader that is as far ahead as it may be never writes over weights that are still needed. */
#include "common/pack/load/dense_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/random.h"

#define PAGE 4096u
#define MOST 400
#define MOST_RING_PAGES 20000

/* Bytes of the stage that begins at part i, of those that are in mask. */
static uint64_t stage_bytes(const struct od_dense_part *part, size_t n, size_t i, uint32_t mask)
{
	uint64_t sum = 0;

	for (size_t j = 0; j < n; j++)
		if (part[j].stage == part[i].stage && (mask >> j & 1) != 0)
			sum += part[j].bytes;
	return sum;
}

/* Two stages of those in mask that follow one another, round the end, at their largest. */
static uint64_t least_ring(const struct od_dense_part *part, size_t n, uint32_t mask)
{
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++)
		for (size_t j = 1; j <= n && (mask >> i & 1) != 0; j++) {
			const size_t next = (i + j) % n;
			uint64_t sum;

			if ((mask >> next & 1) == 0 || (part[next].stage == part[i].stage && j < n))
				continue;
			sum = stage_bytes(part, n, i, mask);
			sum += part[next].stage != part[i].stage ? stage_bytes(part, n, next, mask) : 0;
			most = sum > most ? sum : most;
			break;
		}
	return most;
}

static uint64_t bytes_of(const struct od_dense_part *part, size_t n, uint32_t mask)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (mask >> i & 1) != 0 ? part[i].bytes : 0;
	return sum;
}

/* The fewest bytes that a step can read with so much memory; UINT64_MAX: it is too little. */
static uint64_t best_of_all(const struct od_dense_part *part, size_t n, uint64_t most_bytes)
{
	const uint32_t all = (1u << n) - 1;
	uint64_t best = UINT64_MAX;

	for (uint32_t mask = 0; mask <= all; mask++) { /* the parts that are read */
		const uint64_t read = bytes_of(part, n, mask);

		if (read < best && bytes_of(part, n, all & ~mask) + least_ring(part, n, mask) <= most_bytes)
			best = read;
	}
	return best;
}

/* Plays some steps, with a reader that reads each part as early as it may. Returns whether each stage was there before
 * the stage before it was given back. */
static bool play(const struct od_dense_part *part, size_t n, const struct od_dense_plan *plan)
{
	static size_t owner[MOST_RING_PAGES]; /* by page of the ring: the part that was read there, + 1 */
	size_t streamed[MOST], n_streamed = 0;
	uint64_t next = 0, given = 0;
	bool ahead = true;

	assert_true(plan->ring_bytes / PAGE <= MOST_RING_PAGES);
	memset(owner, 0, sizeof(owner));
	for (size_t i = 0; i < n; i++)
		if (!part[i].stays)
			streamed[n_streamed++] = i;
	for (int step = 0; step < 4 && n_streamed > 0; step++)
		for (size_t i = 0, end; i < n_streamed; i = end) {
			const uint32_t stage = part[streamed[i]].stage;
			uint64_t following;

			while (next < given + part[streamed[next % n_streamed]].behind) {
				const struct od_dense_part *p = &part[streamed[next % n_streamed]];

				assert_true(p->at + p->bytes <= plan->ring_bytes && p->behind <= n_streamed);
				for (uint64_t page = p->at / PAGE; page < (p->at + p->bytes) / PAGE; page++)
					owner[page] = streamed[next % n_streamed] + 1;
				next++;
			}
			for (end = i; end < n_streamed && part[streamed[end]].stage == stage; end++)
				for (uint64_t page = 0; page < part[streamed[end]].bytes / PAGE; page++)
					assert_int_equal(owner[part[streamed[end]].at / PAGE + page],
							 streamed[end] + 1);
			assert_true(next >= given + end - i);
			following = given + end - i; /* and all of the stage behind */
			for (size_t j = end % n_streamed, at = j;
			     at < n_streamed && part[streamed[at]].stage == part[streamed[j]].stage; at++)
				following++;
			ahead = ahead && next >= following;
			given += end - i;
		}
	return ahead;
}

static void check_sums(const struct od_dense_part *part, size_t n, const struct od_dense_plan *plan)
{
	uint64_t kept = 0, streamed = 0;

	for (size_t i = 0; i < n; i++)
		*(part[i].stays ? &kept : &streamed) += part[i].bytes;
	assert_int_equal(plan->kept_bytes, kept);
	assert_int_equal(plan->streamed_bytes, streamed);
}

static void small_models_against_all_choices(void **state)
{
	uint64_t seed = 1;
	int n_planned = 0;

	(void)state;
	for (int round = 0; round < 300; round++) {
		struct od_dense_part part[9];
		const size_t n = 2 + random_below(&seed, 8);
		uint64_t all = 0, budget, best, largest = 0;
		struct od_dense_plan plan;
		bool fits;

		for (size_t i = 0; i < n; i++) {
			part[i] = (struct od_dense_part){ .stage = i > 0 ? part[i - 1].stage : 0,
							  .bytes = PAGE * (1 + random_below(&seed, 20)) };
			part[i].stage += i > 0 && random_below(&seed, 3) > 0 ? 1 + (uint32_t)random_below(&seed, 2) : 0;
			all += part[i].bytes;
			largest = part[i].bytes > largest ? part[i].bytes : largest;
		}
		budget = (all / PAGE / 3 + random_below(&seed, all / PAGE)) * PAGE;
		best = best_of_all(part, n, budget);
		fits = od_dense_plan_make(&plan, part, n, budget);
		check_sums(part, n, &plan);
		(void)play(part, n, &plan);
		if (!fits) {
			/* a ring that lies well may need more than two stages */
			assert_true(best == UINT64_MAX || budget < 2 * least_ring(part, n, (1u << n) - 1) + PAGE);
			continue;
		}
		assert_true(plan.kept_bytes + plan.ring_bytes <= budget);
		/* The best is of a ring without gaps. */
		assert_true(plan.streamed_bytes >= best);
		assert_true(plan.streamed_bytes - best <= 3 * largest);
		n_planned += plan.streamed_bytes > 0 && plan.kept_bytes > 0;
	}
	assert_true(n_planned > 20);
}

/* Layers of a published shape, sixteen times smaller: q, k, v, o, gate, up, down; then pieces of a head. */
static size_t make_layers(struct od_dense_part *part, uint32_t n_layers, uint32_t n_pieces)
{
	static const uint32_t size[] = { 32, 8, 8, 32, 112, 112, 112 };
	size_t n = 0;

	for (uint32_t layer = 0; layer < n_layers; layer++)
		for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
			part[n++] = (struct od_dense_part){ .stage = layer, .bytes = size[i] * 16 * PAGE };
	for (uint32_t i = 0; i < n_pieces; i++)
		part[n++] = (struct od_dense_part){ .stage = n_layers + i, .bytes = 300 * 16 * PAGE };
	return n;
}

/* A quarter of the memory is used but for a tenth, and in nearly all cases a
 * stage is there before the one before it is through, for odd and even numbers of layers. */
static void a_quarter_of_the_memory(void **state)
{
	static struct od_dense_part part[MOST];
	int n_ahead = 0, n_all = 0;

	(void)state;
	for (uint32_t n_layers = 24; n_layers < 50; n_layers++)
		for (uint32_t n_pieces = 0; n_pieces < 4; n_pieces++) {
			const size_t n = make_layers(part, n_layers, n_pieces);
			struct od_dense_plan plan;
			uint64_t all = 0;

			for (size_t i = 0; i < n; i++)
				all += part[i].bytes;
			assert_true(od_dense_plan_make(&plan, part, n, all / 4));
			check_sums(part, n, &plan);
			assert_true(plan.kept_bytes + plan.ring_bytes <= all / 4);
			assert_true(plan.kept_bytes + plan.ring_bytes >= all / 4 / 10 * 9);
			assert_true(plan.ring_bytes <= 416 * 16 * PAGE * 5 / 2);
			n_ahead += play(part, n, &plan);
			n_all++;
		}
	assert_true(n_ahead >= n_all / 10 * 9);
}

/* About as much of each layer stays, so that reading never stops for long. */
static void what_stays_is_spread(void **state)
{
	static struct od_dense_part part[MOST];
	const size_t n = make_layers(part, 40, 0);
	struct od_dense_plan plan;

	(void)state;
	assert_true(od_dense_plan_make(&plan, part, n, 40 * 416ull * 16 * PAGE / 2));
	for (uint32_t first = 0; first + 8 <= 40; first++) {
		uint64_t streamed = 0;

		for (size_t i = 0; i < n; i++)
			if (part[i].stage >= first && part[i].stage < first + 8 && !part[i].stays)
				streamed += part[i].bytes;
		assert_in_range(streamed * 40, plan.streamed_bytes * 8 / 4 * 3, plan.streamed_bytes * 8 / 4 * 5);
	}
}

static void all_of_it_and_too_little(void **state)
{
	static struct od_dense_part part[MOST];
	const size_t n = make_layers(part, 8, 2);
	const uint64_t all = (8 * 416ull + 600) * 16 * PAGE, two = 2 * 416ull * 16 * PAGE;
	struct od_dense_plan plan;

	(void)state;
	assert_true(od_dense_plan_make(&plan, part, n, all));
	assert_true(plan.kept_bytes == all && plan.ring_bytes == 0 && plan.streamed_bytes == 0);
	assert_true(od_dense_plan_make(&plan, part, n, all - 1));
	assert_true(plan.streamed_bytes > 0);
	assert_false(od_dense_plan_make(&plan, part, n, two - 1));
	assert_true(plan.kept_bytes == 0 && plan.ring_bytes >= two && plan.ring_bytes <= two + two / 4);
	assert_true(od_dense_plan_make(&plan, part, n, plan.ring_bytes));
	assert_false(od_dense_plan_make(&plan, part, n, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_models_against_all_choices),
		cmocka_unit_test(a_quarter_of_the_memory),
		cmocka_unit_test(what_stays_is_spread),
		cmocka_unit_test(all_of_it_and_too_little),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
