/* Workers that were late or died in a step get no more of its layers, and what a prompt's batches take is counted of
 * workers that have experts. */
#include "main-node/cluster/cluster_view.h"
#include "main-node/cluster/members_internal.h"
#include "main-node/cluster/members_times.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MAX_WORKERS 6
#define NEVER_REACHED 0

static struct odm_members members;
static struct member member[MAX_WORKERS];

/* ---- What cluster_view.c asks of the cluster ---- */

struct odm_members *odm_cluster_members(struct odm_cluster *c)
{
	(void)c;
	return &members;
}

struct odm_groups odm_cluster_groups(const struct odm_cluster *c, const struct odm_view *view)
{
	struct odm_groups g = odm_groups_make(view->n_few, 0, 2, 4);

	(void)c;
	g.n_many = view->n_many;
	return g;
}

const struct odm_cluster_opts *odm_cluster_opts(const struct odm_cluster *c)
{
	(void)c;
	assert_true(NEVER_REACHED);
	return NULL;
}

void *odm_cluster_zmq(struct odm_cluster *c)
{
	(void)c;
	assert_true(NEVER_REACHED);
	return NULL;
}

int odm_cluster_changed_fd(const struct odm_cluster *c)
{
	(void)c;
	assert_true(NEVER_REACHED);
	return -1;
}

uint64_t odm_cluster_connect_by(const struct odm_cluster *c)
{
	(void)c;
	assert_true(NEVER_REACHED);
	return 0;
}

/* ---- A view of five workers: three for all work, one for decode steps, one that is passed over ---- */

static struct odm_links net;
static struct odm_link link_of[MAX_WORKERS];
static struct odm_member worker[MAX_WORKERS];
static struct odm_deal_times times[MAX_WORKERS];

static int begin(void **state)
{
	(void)state;
	memset(&members, 0, sizeof(members));
	memset(member, 0, sizeof(member));
	pthread_mutex_init(&members.lock, NULL);
	members.expert_weights = members.load_bytes = 1e6;
	net = (struct odm_links){ .link = link_of, .times = times, .view.worker = worker };
	net.view.n_workers = 5;
	net.view.n_few = 4;
	net.view.n_many = 3;
	for (uint32_t i = 0; i < MAX_WORKERS; i++) {
		member[i].ms = &members;
		members.member[i] = &member[i];
		worker[i] = (struct odm_member){ .id = i };
		link_of[i] = (struct odm_link){ .member = i, .session = i + 1 };
	}
	return 0;
}

static void expect_view(uint32_t n_few, uint32_t n_many, const uint32_t *id)
{
	assert_int_equal(net.view.n_few, n_few);
	assert_int_equal(net.view.n_many, n_many);
	assert_int_equal(net.groups.n_workers, n_few);
	assert_int_equal(net.view.n_workers, 5);
	for (uint32_t i = 0; i < 5; i++) {
		assert_int_equal(worker[i].id, id[i]);
		assert_int_equal(link_of[i].member, id[i]);
	}
}

static void the_late_and_the_dead_are_avoided(void **state)
{
	(void)state;
	link_of[1].watch.late = true;
	link_of[3].session = 0;
	assert_true(odm_links_any_lost(&net));
	odm_links_avoid_lost(&net);
	expect_view(2, 2, (const uint32_t[]){ 0, 2, 4, 3, 1 });
	assert_true(net.stale);
	/* They have nothing to do with the layers that follow, so halves of rows may overlap again. */
	assert_false(odm_links_any_lost(&net));
	link_of[0].session = 0;
	assert_true(odm_links_any_lost(&net));
	odm_links_avoid_lost(&net);
	assert_int_equal(net.view.n_few, 1);
	assert_int_equal(net.view.n_many, 1);
	assert_int_equal(worker[0].id, 2);
}

static void nobody_is_avoided_when_all_are_lost(void **state)
{
	const uint32_t same[] = { 0, 1, 2, 3, 4 };

	(void)state;
	net.groups = odm_cluster_groups(NULL, &net.view);
	for (uint32_t i = 0; i < 4; i++)
		link_of[i].session = 0;
	assert_false(odm_links_any_lost(&net));
	odm_links_avoid_lost(&net);
	expect_view(4, 3, same);
	link_of[4].watch.late = true; /* it gets nothing anyway */
	for (uint32_t i = 0; i < 4; i++)
		link_of[i].session = i + 1;
	assert_false(odm_links_any_lost(&net));
	odm_links_avoid_lost(&net);
	expect_view(4, 3, same);
}

/* Runs of 1, 2, 3 ... ms an expert. */
static void times_are_those_of_workers_that_have_experts(void **state)
{
	const uint32_t first[] = { 2, 1, 0, 0, 0 }, last[] = { 1, 0, 0, 0, 1 };
	struct odm_many_times t;

	(void)state;
	for (uint32_t i = 0; i < MAX_WORKERS; i++)
		for (int k = 0; k < ODM_TIME_SAMPLES; k++)
			odm_times_add(
				&member[i].times,
				&(struct odm_layer_report){ .n_experts = 1, .n_pairs = 1, .compute_ns = (i + 1) * 1e6 },
				1);
	t = odm_members_many(&members, worker, first, 5);
	assert_true(t.run == 2e6);
	t = odm_members_many(&members, worker, last, 5);
	assert_true(t.run == 5e6);
	memset(&member[0].times, 0, sizeof(member[0].times)); /* nothing is known of one that has some */
	t = odm_members_many(&members, worker, first, 5);
	assert_true(t.run == 0);
	t = odm_members_many(&members, worker, (const uint32_t[]){ 0, 3, 0, 0, 0 }, 5);
	assert_true(t.run == 6e6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(the_late_and_the_dead_are_avoided, begin),
		cmocka_unit_test_setup(nobody_is_avoided_when_all_are_lost, begin),
		cmocka_unit_test_setup(times_are_those_of_workers_that_have_experts, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
