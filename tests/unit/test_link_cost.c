/* The cost of links, and the workers that are passed over: links with a rate, a delay and losses are played here, with
 * a clock of their own. */
#include "main-node/cluster/link_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"

#define MS OD_NS_PER_MS
#define MAX_WORKERS 8
#define TICK_MS 50
#define HEARTBEAT_MS 250

/* As odm_expert_times_guess. */
#define OF_WEIGHTS(n) \
	{ \
		.load = 0.25 * (n), .run = 0.05 * (n), .row = 0.05 * (n) \
	}

/* A small model: 12 layers, two of eight experts. */
static const struct odm_layer_shape small = {
	.row_bytes = 1024, .expert = OF_WEIGHTS(3 * 256 * 256), .top_k = 2, .n_experts = 8
};
/* Mixtral 8x7B: an expert takes much longer than its rows on a slow link. */
static const struct odm_layer_shape large = {
	.row_bytes = 8192, .expert = OF_WEIGHTS(3.0 * 4096 * 14336), .top_k = 2, .n_experts = 8
};

static struct link_cost_link {
	struct odm_link_cost cost;
	double up, down; /* ns of a byte */
	double delay_ns;
	unsigned lost_of; /* one of so many PINGs takes 200 ms more; 0: none */
	unsigned together_of; /* one of so many answers to bare PINGs is read together with the next one; 0: none */
	uint64_t ping, free_ns; /* when what was sent before is through */
	struct {
		uint64_t sequence, at_ns;
		uint32_t bytes;
	} way[ODM_LINK_ECHOES];
	unsigned n_way;
} link_of[MAX_WORKERS];
static uint64_t now;
static uint32_t noise;

/* 0 to 1, mostly small. */
static double random_stall(void)
{
	noise = noise * 1664525u + 1013904223u;
	return (double)(noise >> 16 & 255) / 255 * (double)(noise >> 24) / 255;
}

static double bits(double per_second)
{
	return 8e9 / per_second;
}

static void begin(uint32_t n)
{
	memset(link_of, 0, sizeof(link_of));
	now = 1000 * OD_NS_PER_S;
	noise = 1;
	for (uint32_t i = 0; i < n; i++) {
		link_of[i] = (struct link_cost_link){ .up = bits(1e9), .down = bits(1e9), .delay_ns = 0.15 * MS };
		odm_link_cost_begin(&link_of[i].cost, now, true);
	}
}

static void ping(struct link_cost_link *l, uint32_t bytes)
{
	const double start = (double)(l->free_ns > now ? l->free_ns : now);
	const double stall = l->lost_of > 0 && ++l->ping % l->lost_of == 0 ? 200.0 * MS : random_stall() * 0.3 * MS;
	double through;

	l->ping += l->lost_of == 0;
	odm_link_cost_sent(&l->cost, l->ping, bytes, now);
	through = start + l->up * (bytes + 100) + l->down * (bytes + 100) + stall;
	l->free_ns = (uint64_t)through;
	if (l->n_way < ODM_LINK_ECHOES) {
		l->way[l->n_way].sequence = l->ping;
		l->way[l->n_way].bytes = bytes;
		l->way[l->n_way++].at_ns = (uint64_t)(through + l->delay_ns);
	}
	if (bytes > 0 && l->n_way > 1 && l->together_of > 0 && (noise >> 8) % l->together_of == 0)
		l->way[l->n_way - 2].at_ns = l->way[l->n_way - 1].at_ns;
}

/* All links for so long. choices: how often the decision has changed. */
static unsigned run_ms(const struct odm_layer_shape *s, uint32_t n, uint64_t ms)
{
	struct odm_link_cost *worker[MAX_WORKERS];
	struct odm_link_excess excess[MAX_WORKERS];
	const uint64_t end = now + ms * MS;
	unsigned changes = 0;
	uint32_t n_known;

	for (; now < end; now += MS) {
		for (uint32_t i = 0; i < n; i++) {
			struct link_cost_link *l = &link_of[i];
			uint32_t due;

			while (l->n_way > 0 && l->way[0].at_ns <= now) {
				odm_link_cost_echo(&l->cost, l->way[0].sequence, l->way[0].bytes, l->way[0].at_ns);
				memmove(l->way, l->way + 1, --l->n_way * sizeof(*l->way));
			}
			if (now / MS % HEARTBEAT_MS == 0)
				ping(l, 0);
			due = odm_link_cost_due(&l->cost, now);
			if (due > 0 && (now / MS % TICK_MS == 0 || !l->cost.measured)) {
				ping(l, 0);
				ping(l, due);
			}
			odm_link_cost_check(&l->cost, now);
		}
		if (now / MS % HEARTBEAT_MS != 0)
			continue;
		n_known = 0;
		for (uint32_t i = 0; i < n; i++)
			if (link_of[i].cost.measured)
				worker[n_known++] = &link_of[i].cost;
		changes += odm_link_cost_choose(s, worker, n_known, excess, now);
	}
	return changes;
}

/* Bits of those that get experts. */
static unsigned used(uint32_t n, enum odm_deal_kind kind)
{
	unsigned set = 0;

	for (uint32_t i = 0; i < n; i++)
		set |= (unsigned)!link_of[i].cost.passed[kind] << i;
	return set;
}

static void slow(uint32_t i, double per_second)
{
	link_of[i].up = link_of[i].down = bits(per_second);
}

static void equal_links_are_all_used_for_ever(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= MAX_WORKERS; n++) {
		for (double rate = 64e3; rate <= 1e10; rate *= 10) {
			begin(n);
			for (uint32_t i = 0; i < n; i++)
				slow(i, rate);
			assert_int_equal(run_ms(&small, n, 20000), 0);
			assert_int_equal(used(n, ODM_DEAL_FEW), (1u << n) - 1);
			assert_int_equal(used(n, ODM_DEAL_MANY), (1u << n) - 1);
		}
	}
}

/* A busy main reads some answers late, so that a probe seems to take no time. */
static void probes_that_seem_quick_make_no_other_link_slow(void **state)
{
	(void)state;
	begin(MAX_WORKERS);
	for (uint32_t i = 0; i < MAX_WORKERS; i++)
		slow(i, 50e6);
	link_of[3].together_of = 3;
	run_ms(&small, MAX_WORKERS, 2000);
	for (int i = 0; i < 100; i++) {
		run_ms(&small, MAX_WORKERS, 500);
		for (uint32_t w = 0; w < MAX_WORKERS; w++)
			assert_false(link_of[w].cost.unlike);
	}
}

static void slow_links_are_passed_over_as_soon_as_they_are_known(void **state)
{
	static const double rate[] = { 64e3, 256e3, 1e6, 1e7, 3e7 };

	(void)state;
	for (uint32_t n = 2; n <= 4; n++) {
		for (uint32_t n_slow = 1; n_slow < n; n_slow++) {
			for (size_t r = 0; r < sizeof(rate) / sizeof(*rate); r++) {
				for (int way = 0; way < 3; way++) {
					begin(n);
					for (uint32_t i = 0; i < n_slow; i++) {
						link_of[i].up = way == 1 ? bits(1e9) : bits(rate[r]);
						link_of[i].down = way == 2 ? bits(1e9) : bits(rate[r]);
					}
					run_ms(&small, n, 1500);
					for (uint32_t i = 0; i < n; i++)
						assert_true(link_of[i].cost.measured || rate[r] < 1e5);
					run_ms(&small, n, 2000);
					assert_int_equal(used(n, ODM_DEAL_FEW),
							 ((1u << n) - 1) & ~((1u << n_slow) - 1));
					assert_int_equal(run_ms(&small, n, 10000), 0);
				}
			}
		}
	}
}

/* A worker pads its answers as it likes. */
static void more_padding_makes_no_link_quicker(void **state)
{
	struct odm_link_cost c;

	(void)state;
	odm_link_cost_begin(&c, 0, true);
	for (uint64_t i = 0; i < 40; i += 2) {
		odm_link_cost_sent(&c, i + 1, 0, i * 1000 * MS);
		odm_link_cost_echo(&c, i + 1, 0, i * 1000 * MS + MS);
		odm_link_cost_sent(&c, i + 2, 8192, (i + 1) * 1000 * MS);
		odm_link_cost_echo(&c, i + 2, 64u << 20, (i + 1) * 1000 * MS + 10 * MS);
		odm_link_cost_check(&c, (i + 1) * 1000 * MS + 10 * MS);
	}
	assert_float_equal(odm_link_cost_byte(&c), 9.0 * MS / (2 * 8192), 1);
}

/* Main does not hear the answers to rows of a text that was cancelled. */
static void links_are_measured_after_a_text_was_cancelled(void **state)
{
	(void)state;
	begin(2);
	run_ms(&small, 2, 3000);
	for (uint32_t i = 0; i < 2; i++) {
		odm_link_cost_in_flight(&link_of[i].cost, 1000000);
		odm_link_cost_give_up(&link_of[i].cost, now);
		link_of[i].free_ns = now + 1000 * MS; /* PINGs wait behind the rows */
	}
	run_ms(&small, 2, 3000);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(odm_link_cost_latency(&link_of[i].cost) < 2 * MS);
	assert_int_equal(used(2, ODM_DEAL_FEW), 3);
	slow(1, 1e6);
	run_ms(&small, 2, 4000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 1);
}

static void a_link_that_changes_is_left_and_taken_again(void **state)
{
	(void)state;
	begin(2);
	run_ms(&small, 2, 3000);
	for (double rate = 256e3; rate < 2e7; rate *= 2) {
		slow(1, rate);
		run_ms(&small, 2, 4000);
		assert_int_equal(used(2, ODM_DEAL_FEW), 1);
		run_ms(&small, 2, 3000);
		slow(1, 1e9);
		run_ms(&small, 2, 2000);
		assert_int_equal(used(2, ODM_DEAL_FEW), 3);
		run_ms(&small, 2, 5000);
	}
}

static void one_that_loses_packets_is_passed_over(void **state)
{
	(void)state;
	begin(3);
	link_of[1].lost_of = 3;
	run_ms(&small, 3, 6000);
	assert_int_equal(used(3, ODM_DEAL_FEW), 5);
	link_of[1].lost_of = 0;
	run_ms(&small, 3, 3000);
	assert_int_equal(used(3, ODM_DEAL_FEW), 7);
}

/* Where an expert's load takes longer than its rows on the wire, a slow link is worth it for single tokens; for
 * prompts less slow ones are. */
static void what_a_link_costs_is_compared_with_the_work(void **state)
{
	(void)state;
	begin(2);
	slow(1, 1e7);
	run_ms(&large, 2, 5000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 3);
	begin(2);
	slow(1, 1e6);
	run_ms(&large, 2, 5000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 1);
	begin(2);
	slow(1, 1.5e6);
	run_ms(&large, 2, 5000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 3);
	assert_int_equal(used(2, ODM_DEAL_MANY), 1);
	begin(2);
	slow(1, 5e6); /* a prompt's experts take so long that it can run one of them meanwhile */
	run_ms(&large, 2, 5000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 3);
	assert_int_equal(used(2, ODM_DEAL_MANY), 3);
}

static void one_that_is_late_is_out_at_once_and_the_last_one_never(void **state)
{
	(void)state;
	begin(2);
	run_ms(&small, 2, 2000);
	odm_link_cost_late(&link_of[1].cost);
	assert_int_equal(used(2, ODM_DEAL_FEW), 1);
	run_ms(&small, 2, 2000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 3);
	slow(0, 1e6);
	run_ms(&small, 2, 4000);
	assert_int_equal(used(2, ODM_DEAL_FEW), 2);
	run_ms(&small, 1, 500); /* the other one is lost */
	assert_int_equal(used(1, ODM_DEAL_FEW), 1);
}

/* Heartbeats wait behind rows. */
static void rows_on_their_way_make_no_link_slow(void **state)
{
	(void)state;
	begin(2);
	run_ms(&small, 2, 2000);
	for (int i = 0; i < 20; i++) {
		odm_link_cost_in_flight(&link_of[1].cost, 1 << 20);
		link_of[1].free_ns = now + 400 * MS;
		assert_true(odm_link_cost_lag(&link_of[1].cost, now) <= 0);
		run_ms(&small, 2, 420);
		odm_link_cost_in_flight(&link_of[1].cost, 0);
		run_ms(&small, 2, 600);
		assert_int_equal(used(2, ODM_DEAL_FEW), 3);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_links_are_all_used_for_ever),
		cmocka_unit_test(probes_that_seem_quick_make_no_other_link_slow),
		cmocka_unit_test(slow_links_are_passed_over_as_soon_as_they_are_known),
		cmocka_unit_test(more_padding_makes_no_link_quicker),
		cmocka_unit_test(links_are_measured_after_a_text_was_cancelled),
		cmocka_unit_test(a_link_that_changes_is_left_and_taken_again),
		cmocka_unit_test(one_that_loses_packets_is_passed_over),
		cmocka_unit_test(what_a_link_costs_is_compared_with_the_work),
		cmocka_unit_test(one_that_is_late_is_out_at_once_and_the_last_one_never),
		cmocka_unit_test(rows_on_their_way_make_no_link_slow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
