/* Checksums of experts from a worker to main: what is reported when, and what main makes of it. The pack is a share
 * of a GGUF file that exists in memory alone; test_gguf_store.py has the whole way. */
#include "main-node/cluster/copy_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/pack/expert_sums.h"
#include "common/pack/pack_internal.h"
#include "tests/unit/config_util.h"
#include "worker-node/sum_reports.h"

#define N_LAYERS 2
#define N_EXPERTS 200
#define N (N_LAYERS * N_EXPERTS)

/* All experts are there; each has three chunks. */
static struct od_pack *make_pack(void)
{
	struct od_pack *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	p->config = uniform_config((struct uniform){ .n_layers = N_LAYERS,
						     .hidden = 32,
						     .heads = 2,
						     .kv_heads = 1,
						     .head_dim = 16,
						     .n_experts = N_EXPERTS,
						     .top_k = 2,
						     .intermediate = 32,
						     .vocab = 32,
						     .ctx = 64 });
	p->manifest.n_experts = N;
	p->manifest.layer = calloc(N_LAYERS, sizeof(*p->manifest.layer));
	p->tensor = calloc(N_LAYERS, sizeof(*p->tensor));
	p->expert = calloc(N, sizeof(*p->expert));
	p->has = calloc(N, sizeof(*p->has));
	for (uint32_t m = 0; m < N_LAYERS; m++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			p->manifest.layer[m].type[mat].dtype = OD_Q8_0;
			snprintf(p->tensor[m].name[mat], sizeof(p->tensor[m].name[mat]), "blk.%u.%d", m, mat);
		}
	for (uint32_t i = 0; i < N; i++) {
		struct od_shard *s;
		struct od_err err;

		assert_int_equal(
			od_share_expert(&p->expert[i], &p->config, p->manifest.layer[0].type, i * 65536ull, &err),
			OD_OK);
		s = (struct od_shard *)p->expert[i].x.shard;
		for (uint32_t c = 0; c < 3; c++)
			s[c].e.xxh3 = 1000 * i + c + 1;
		od_pack_set_has_expert(p, i / N_EXPERTS, i % N_EXPERTS, true);
	}
	return p;
}

static void set_sum(struct od_pack *p, uint32_t i, uint32_t chunk, uint64_t xxh3)
{
	((struct od_shard *)p->expert[i].x.shard)[chunk].e.xxh3 = xxh3;
}

/* All reports that come without news in between; how often each expert was in one. */
static size_t drain(struct odw_sum_reports *r, unsigned seen[N])
{
	size_t n = 0;

	memset(seen, 0, N * sizeof(*seen));
	for (int i = 0; i < 10; i++) {
		Od__Pong p = OD__PONG__INIT;

		odw_sum_reports_fill(r, &p);
		assert_true(p.n_sums <= 256);
		for (size_t k = 0; k < p.n_sums; k++) {
			assert_int_equal(p.sums[k]->n_xxh3, 3);
			seen[p.sums[k]->m * N_EXPERTS + p.sums[k]->expert]++;
		}
		n += p.n_sums;
	}
	return n;
}

static void each_is_reported_once_a_session(void **state)
{
	struct od_pack *p = make_pack();
	struct odw_sum_reports *r;
	unsigned seen[N];
	struct od_err err;

	(void)state;
	od_pack_set_has_expert(p, 1, 7, false); /* it has not come yet */
	set_sum(p, 3, 1, 0); /* a chunk of it has not */
	assert_int_equal(odw_sum_reports_new(&r, p, &err), OD_OK);
	assert_int_equal(drain(r, seen), N - 2);
	assert_int_equal(seen[N_EXPERTS + 7], 0);
	assert_int_equal(seen[3], 0);
	assert_int_equal(drain(r, seen), 0);
	od_pack_set_has_expert(p, 1, 7, true);
	assert_int_equal(drain(r, seen), 1);
	assert_int_equal(seen[N_EXPERTS + 7], 1);
	odw_sum_reports_restart(r);
	assert_int_equal(drain(r, seen), N - 1);
	odw_sum_reports_free(r);
	od_pack_close(p);
}

static void packs_of_od_pack_report_nothing(void **state)
{
	struct od_pack *p = make_pack();
	struct odw_sum_reports *r;
	struct odm_copy_check *c;
	struct od_err err;
	Od__Pong pong = OD__PONG__INIT;

	(void)state;
	free(p->manifest.layer);
	p->manifest.layer = NULL;
	assert_int_equal(odw_sum_reports_new(&r, p, &err), OD_OK);
	assert_null(r);
	odw_sum_reports_fill(r, &pong);
	assert_int_equal(pong.n_sums, 0);
	assert_int_equal(odm_copy_check_new(&c, p, &err), OD_OK);
	assert_null(c);
	od_pack_close(p);
}

static void a_difference_is_named(void **state)
{
	struct od_pack *ours = make_pack(), *theirs = make_pack();
	struct odw_sum_reports *r;
	struct odm_copy_check *c;
	struct od_err err;
	char why[400] = "";
	bool same = true;

	(void)state;
	set_sum(theirs, N_EXPERTS + 5, 2, 42);
	assert_int_equal(odw_sum_reports_new(&r, theirs, &err), OD_OK);
	assert_int_equal(odm_copy_check_new(&c, ours, &err), OD_OK);
	for (int i = 0; i < 10 && same; i++) {
		Od__Pong p = OD__PONG__INIT;

		odw_sum_reports_fill(r, &p);
		same = odm_copy_check_take(c, 3, &p, why, sizeof(why));
	}
	assert_false(same);
	assert_non_null(strstr(why, "tensor blk.1.2, expert 5"));
	odm_copy_check_free(c);
	odw_sum_reports_free(r);
	od_pack_close(ours);
	od_pack_close(theirs);
}

static void malformed_reports_are_dropped(void **state)
{
	struct od_pack *ours = make_pack();
	struct odm_copy_check *c;
	struct od_err err;
	uint64_t numbers[7] = { 1, 2, 3, 4, 5, 6, 7 };
	const struct {
		uint32_t m, expert;
		size_t n;
	} bad[] = { { N_LAYERS, 0, 3 }, { 0, N_EXPERTS, 3 }, { UINT32_MAX, UINT32_MAX, 3 },
		    { 0, 0, 0 },	{ 0, 0, 2 },	     { 0, 0, 7 } };
	uint32_t member;
	char why[400];

	(void)state;
	assert_int_equal(odm_copy_check_new(&c, ours, &err), OD_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		Od__ExpertSums one = OD__EXPERT_SUMS__INIT, *list = &one;
		Od__Pong p = OD__PONG__INIT;

		one.m = bad[i].m;
		one.expert = bad[i].expert;
		one.n_xxh3 = bad[i].n;
		one.xxh3 = numbers;
		p.n_sums = 1;
		p.sums = &list;
		assert_true(odm_copy_check_take(c, 0, &p, why, sizeof(why)));
	}
	assert_false(odm_copy_check_next(c, &member, why, sizeof(why)));
	odm_copy_check_free(c);
	od_pack_close(ours);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_is_reported_once_a_session),
		cmocka_unit_test(packs_of_od_pack_report_nothing),
		cmocka_unit_test(a_difference_is_named),
		cmocka_unit_test(malformed_reports_are_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
