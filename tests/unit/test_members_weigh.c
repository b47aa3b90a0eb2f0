/* Decisions of main about its workers' links and times: members are made here as the loop thread leaves them. */
#include "main-node/cluster/cluster_view.h"
#include "main-node/cluster/members_internal.h"
#include "main-node/cluster/members_links.h"
#include "main-node/cluster/members_times.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORKERS 5
#define LAYERS 10
#define EXPERTS 8

static const struct od_config config = {
	.n_experts = EXPERTS, .n_moe = LAYERS, .top_k = 2, .hidden = 256, .intermediate = 256
};
static struct od_hosts hosts;
static struct odm_cluster_opts cluster = { .config = &config, .hosts = &hosts };
static struct member member[WORKERS];
static uint8_t holds[WORKERS][LAYERS * EXPERTS / 8], cached[WORKERS][LAYERS * EXPERTS], held[LAYERS * EXPERTS / 8];

/* Round trips of 1 ms, and 100 ns a byte. */
static void measure_link(struct odm_link_cost *c)
{
	c->measured = true;
	for (c->n_latencies = 0; c->n_latencies < ODM_LATENCIES; c->n_latencies++)
		c->latency[c->n_latencies] = (double)OD_NS_PER_MS;
	for (c->n_bytes = 0; c->n_bytes < ODM_BYTE_TIMES; c->n_bytes++)
		c->byte[c->n_bytes] = 100;
}

/* n workers that are alike, and in use. */
static void begin(struct odm_members *ms, uint32_t n)
{
	struct od_err err;

	*ms = (struct odm_members){ .o = { .cluster = &cluster, .changed_fd = -1 }, .n = n, .n_listed = n };
	pthread_mutex_init(&ms->lock, NULL);
	ms->cached_bytes = LAYERS * EXPERTS;
	ms->holds_bytes = sizeof(holds[0]);
	ms->held = held;
	assert_int_equal(odm_members_links_init(ms, &err), OD_OK);
	memset(holds, 0, sizeof(holds));
	memset(cached, 0, sizeof(cached));
	for (uint32_t i = 0; i < n; i++) {
		member[i] =
			(struct member){ .ms = ms, .id = i, .state = M_READY, .holds = holds[i], .cached = cached[i] };
		member[i].host.role = OD_NODE_WORKER;
		member[i].pub = (struct odm_member){ .id = i, .role = OD_NODE_WORKER, .session = i + 1, .slots = 2 };
		measure_link(&member[i].cost);
		ms->member[i] = ms->listed[i] = &member[i];
	}
}

static void end(struct odm_members *ms)
{
	odm_members_links_fini(ms);
	pthread_mutex_destroy(&ms->lock);
}

static void a_link_that_is_not_measured_is_no_standard(void **state)
{
	struct odm_member worker[2];
	struct odm_deal_times times[2];
	struct odm_members ms;

	(void)state;
	for (uint32_t unmeasured = 0; unmeasured < 3; unmeasured++) {
		begin(&ms, 3);
		member[unmeasured].cost = (struct odm_link_cost){ 0 };
		for (uint32_t i = 0, n = 0; i < 3; i++)
			if (i != unmeasured)
				worker[n++] = member[i].pub;
		for (int uneven = 0; uneven < 2; uneven++) {
			ms.uneven = uneven == 1;
			odm_members_times(&ms, worker, 2, times);
			for (int i = 0; i < 2; i++) {
				assert_true(times[i].link > (double)OD_NS_PER_MS);
				assert_true(times[i].row_link == 0);
			}
		}
		end(&ms);
	}
}

/* Its session has begun anew, and the engine's view has the one before until the step ends. */
static void a_link_that_is_measured_anew_counts_as_the_best(void **state)
{
	struct odm_member worker[2];
	struct odm_deal_times times[2];
	struct odm_members ms;

	(void)state;
	begin(&ms, 2);
	member[0].cost = (struct odm_link_cost){ 0 };
	for (uint32_t i = 0; i < 2; i++)
		worker[i] = member[i].pub;
	ms.uneven = true;
	odm_members_times(&ms, worker, 2, times);
	assert_true(times[0].link == times[1].link && times[0].link > (double)OD_NS_PER_MS);
	assert_true(times[0].row_link == 0);
	end(&ms);
}

/* Where workers are unlike for another reason, a link that is hardly slower than the best one still counts as equal. */
static void a_link_counts_only_if_it_is_clearly_slower(void **state)
{
	struct odm_member worker[2];
	struct odm_deal_times times[2];
	struct odm_members ms;

	(void)state;
	for (int slower = 0; slower < 2; slower++) {
		begin(&ms, 2);
		for (uint32_t k = 0; k < ODM_LATENCIES; k++)
			member[1].cost.latency[k] = (slower ? 20 : 1.2) * OD_NS_PER_MS;
		for (uint32_t i = 0; i < 2; i++) {
			member[i].cost.n_alone = ODM_BYTE_TIMES; /* settled */
			worker[i] = member[i].pub;
		}
		member[0].pub.cache = member[1].pub.cache = true;
		member[0].cache_experts = 3;
		member[1].cache_experts = LAYERS * EXPERTS;
		odm_members_weigh(&ms);
		assert_true(ms.uneven);
		odm_members_times(&ms, worker, 2, times);
		assert_int_equal(times[0].link < times[1].link, slower);
		end(&ms);
	}
}

static double sum_of_homes(uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += member[i].home;
	return sum;
}

/* Each worker's cache has room for all experts. */
static void begin_cached(struct odm_members *ms)
{
	begin(ms, WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++) {
		member[i].pub.cache = true;
		member[i].cache_experts = LAYERS * EXPERTS;
	}
}

static void homes_of_a_worker_that_left_are_shared(void **state)
{
	struct odm_members ms;

	(void)state;
	begin_cached(&ms);
	odm_members_compare(&ms);
	for (uint32_t i = 0; i < WORKERS; i++)
		assert_float_equal(member[i].home, 1.0 / WORKERS, 1e-6);
	ms.n_listed--; /* it is no longer in the hosts file */
	odm_members_compare(&ms);
	for (uint32_t i = 0; i < WORKERS - 1; i++)
		assert_float_equal(member[i].home, 1.0 / (WORKERS - 1), 1e-6);
	end(&ms);
}

static void a_worker_that_is_passed_over_has_no_homes(void **state)
{
	struct odm_members ms;

	(void)state;
	begin_cached(&ms);
	member[2].cost.passed[ODM_DEAL_FEW] = member[2].cost.passed[ODM_DEAL_MANY] = true;
	odm_members_compare(&ms);
	for (uint32_t i = 0; i < WORKERS; i++)
		assert_float_equal(member[i].home, i == 2 ? 0 : 1.0 / (WORKERS - 1), 1e-6);
	member[2].cost.passed[ODM_DEAL_FEW] = member[2].cost.passed[ODM_DEAL_MANY] = false;
	odm_members_compare(&ms);
	for (uint32_t i = 0; i < WORKERS; i++)
		assert_float_equal(member[i].home, 1.0 / WORKERS, 1e-6);
	end(&ms);
}

/* A cache of less than one expert in BF16 may hold several that are stored in fewer bits. */
static void small_caches_have_homes(void **state)
{
	struct odm_members ms;

	(void)state;
	begin(&ms, 4);
	for (uint32_t i = 0; i < 4; i++)
		member[i].pub.cache = true;
	odm_members_compare(&ms);
	assert_float_equal(sum_of_homes(4), 1, 1e-6);
	for (uint32_t i = 0; i < 4; i++)
		assert_float_equal(member[i].home, 0.25, 1e-6);
	end(&ms);
}

/* A worker may say anything. */
static void absurd_numbers_do_no_harm(void **state)
{
	static const struct odm_layer_report absurd[] = {
		{ .n_experts = 2, .n_pairs = 2, .n_loads = 2, .loaded_bytes = UINT64_MAX },
		{ .n_experts = 2, .n_pairs = 2, .n_loads = 2, .loaded_bytes = 2, .load_ns = 1e15 },
	};
	const struct odm_layer_report honest = { .n_experts = 1,
						 .n_pairs = 1,
						 .n_loads = 1,
						 .compute_ns = 1e6,
						 .load_ns = 1e7,
						 .loaded_bytes = 3 * 256 * 256 * 2 };
	struct odm_deal_times times[2];
	struct odm_member worker[2];
	struct odm_members ms;
	double load_bytes;

	(void)state;
	begin(&ms, 2);
	load_bytes = ms.load_bytes;
	for (size_t k = 0; k < sizeof(absurd) / sizeof(absurd[0]); k++) {
		for (int i = 0; i < 2 * ODM_TIME_SAMPLES; i++) {
			odm_members_worked(&ms, 0, &absurd[k]);
			odm_members_worked(&ms, 1, &honest);
			odm_members_compare(&ms);
			odm_members_tell_times(&ms);
		}
		assert_float_equal(ms.load_bytes, load_bytes, 1);
		for (int i = 0; i < 2; i++) {
			worker[i] = member[i].pub;
			assert_true(isfinite(member[i].told_ratio));
		}
		odm_members_times(&ms, worker, 2, times);
		for (int i = 0; i < 2; i++) {
			const struct odm_expert_times *t = &times[i].expert;

			assert_true(t->load > 0 && isfinite(t->load) && t->run > 0 && isfinite(t->run));
			assert_true(t->row > 0 && isfinite(t->row));
		}
	}
	end(&ms);
}

/* Workers with shares of the pack for good: 0 and 2 hold one half, 1 the other. */
static void share(struct odm_members *ms)
{
	begin(ms, 3);
	for (uint32_t i = 0; i < 3; i++) {
		member[i].pub.spool = member[i].pub.sealed = true;
		memset(holds[i], i == 1 ? 0xf0 : 0x0f, sizeof(holds[i]));
	}
}

static void slow(uint32_t i)
{
	struct odm_link_cost *c = &member[i].cost;

	for (uint32_t k = 0; k < ODM_LATENCIES; k++)
		c->latency[k] = 1000.0 * OD_NS_PER_MS;
	for (uint32_t k = 0; k < ODM_BYTE_TIMES; k++)
		c->byte[k] = 1e6;
}

/* Else each of its experts is asked for at all others first, in each layer. */
static void only_a_slow_worker_that_nobody_replaces_is_used(void **state)
{
	struct odm_members ms;

	(void)state;
	share(&ms);
	slow(1);
	slow(2);
	odm_members_weigh(&ms);
	for (int kind = 0; kind < ODM_N_DEALS; kind++) {
		assert_false(member[0].pub.passed[kind]);
		assert_false(member[1].pub.passed[kind]);
		assert_true(member[2].pub.passed[kind]);
	}
	end(&ms);
	share(&ms);
	for (uint32_t i = 0; i < 3; i++) { /* they were sent a PING an age ago */
		member[i].cost.n_echoes = 1;
		member[i].cost.echo[0].sent_ns = 1;
		assert_true(odm_members_late(&ms, i, i + 1, 1, 0, 4));
		assert_false(member[1].pub.passed[ODM_DEAL_FEW]);
		assert_false(member[0].pub.passed[ODM_DEAL_FEW] && member[2].pub.passed[ODM_DEAL_FEW]);
		assert_true(i != 0 || member[0].pub.passed[ODM_DEAL_FEW]);
	}
	end(&ms);
}

static struct odm_members *of_cluster;

struct odm_members *odm_cluster_members(struct odm_cluster *c)
{
	(void)c;
	return of_cluster;
}

struct odm_groups odm_cluster_groups(const struct odm_cluster *c, const struct odm_view *v)
{
	(void)c;
	return odm_groups_make(v->n_few, 0, config.top_k, config.n_moe);
}

const struct odm_cluster_opts *odm_cluster_opts(const struct odm_cluster *c)
{
	(void)c;
	return &cluster;
}

void *odm_cluster_zmq(struct odm_cluster *c)
{
	(void)c;
	return NULL;
}

int odm_cluster_changed_fd(const struct odm_cluster *c)
{
	(void)c;
	return -1;
}

uint64_t odm_cluster_connect_by(const struct odm_cluster *c)
{
	(void)c;
	return 0;
}

/* Makes these of the workers of share() late. Returns how many of them get no experts in the rest of the step. */
static uint32_t left_out(const char *late)
{
	struct odm_members ms;
	struct odm_member worker[3];
	struct odm_link link[3] = { { 0 } };
	struct odm_deal_times times[3];
	struct odm_links l = { .view = { .worker = worker, .n_workers = 3, .n_few = 3, .n_many = 3 },
			       .link = link,
			       .times = times };

	share(&ms);
	of_cluster = &ms;
	for (uint32_t i = 0; i < 3; i++) {
		worker[i] = member[i].pub;
		link[i].session = 1;
		link[i].watch.late = strchr(late, (int)('0' + i)) != NULL;
	}
	odm_links_avoid_lost(&l);
	end(&ms);
	return 3 - l.view.n_few;
}

static void a_late_worker_that_nobody_replaces_stays(void **state)
{
	(void)state;
	assert_int_equal(left_out("0"), 1);
	assert_int_equal(left_out("2"), 1);
	assert_int_equal(left_out("1"), 0);
	assert_int_equal(left_out("02"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_link_that_is_not_measured_is_no_standard),
		cmocka_unit_test(a_link_that_is_measured_anew_counts_as_the_best),
		cmocka_unit_test(a_link_counts_only_if_it_is_clearly_slower),
		cmocka_unit_test(homes_of_a_worker_that_left_are_shared),
		cmocka_unit_test(a_worker_that_is_passed_over_has_no_homes),
		cmocka_unit_test(small_caches_have_homes),
		cmocka_unit_test(absurd_numbers_do_no_harm),
		cmocka_unit_test(only_a_slow_worker_that_nobody_replaces_is_used),
		cmocka_unit_test(a_late_worker_that_nobody_replaces_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
