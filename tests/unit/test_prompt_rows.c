/* A prompt's rows on their way: who has experts, whether halves pay, and when another layer's rows may be sent. The
 * size of a batch is batch_rows.c's. */
#include "main-node/cluster/prompt_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define EXPERTS 8
#define TOP_K 2
#define WORKERS 4
#define ROW_BYTES 1000.0
#define MS 1000000

static const struct od_config config = { .n_experts = EXPERTS, .top_k = TOP_K };
static struct odm_prompt_rows p;
static struct odm_deal_times worker[WORKERS];
static uint32_t worker_of[EXPERTS];
static struct od_moe_call call;
static struct odm_pieces work;

static int begin(void **state)
{
	struct od_err err;

	(void)state;
	assert_int_equal(odm_prompt_rows_init(&p, &config, ROW_BYTES, WORKERS, &err), OD_OK);
	for (uint32_t w = 0; w < WORKERS; w++)
		worker[w].slots = 4;
	for (uint32_t e = 0; e < EXPERTS; e++)
		worker_of[e] = e % 3; /* worker 3 gets none */
	call = (struct od_moe_call){ .n_rows = 128 };
	work = (struct odm_pieces){ .call = &call, .worker_of = worker_of, .n_chosen = EXPERTS };
	return 0;
}

static int end(void **state)
{
	(void)state;
	odm_prompt_rows_fini(&p);
	odm_prompt_rows_fini(&p);
	return 0;
}

/* A byte takes so long on main's port, both ways. */
static void measure(double byte_ns)
{
	for (int i = 0; i < ODM_PORT_SAMPLES; i++) {
		odm_prompt_rows_begin(&p, &work);
		odm_port_sent(&p.port, 500000, 0);
		odm_port_answered(&p.port, 500000, 0, (uint64_t)(byte_ns * 1000000));
		odm_prompt_rows_end(&p, &work, 0);
		assert_null(p.measured);
	}
}

static void workers_that_have_experts(void **state)
{
	(void)state;
	assert_int_equal(odm_prompt_rows_count(&p, &work, worker, WORKERS), 3);
	assert_int_equal(p.n_dealt[0], 3);
	assert_int_equal(p.n_dealt[2], 2);
	assert_int_equal(p.n_dealt[3], 0);
	worker[0].slots = 2; /* each batch would load one of three again */
	assert_int_equal(odm_prompt_rows_count(&p, &work, worker, WORKERS), 0);
	worker[0].slots = 3;
	assert_int_equal(odm_prompt_rows_count(&p, &work, worker, WORKERS), 3);
}

static void batches_are_those_that_end_first(void **state)
{
	struct odm_prompt_layer layer = { .work = &work, .n_with = 3, .run_ns = 0.5 * MS, .most = 100 };

	(void)state;
	assert_int_equal(odm_prompt_rows_batch(&p, &layer, 0), 100); /* nothing is known: as many as a RUN may have */
	measure(8);
	layer.most = 1000;
	assert_int_equal(odm_prompt_rows_batch(&p, &layer, 0),
			 odm_batch_rows(&p.port, &(struct odm_batch_work){ .n_rows = 128,
									   .row_bytes = TOP_K * ROW_BYTES,
									   .run = 0.5 * MS }));
	layer.run_ns = 0; /* it is not known what that costs workers */
	assert_int_equal(odm_prompt_rows_batch(&p, &layer, 0), 128);
	layer.n_with = 1; /* a row goes to one worker */
	layer.run_ns = 0.5 * MS;
	layer.row_ns = 100;
	layer.half = true;
	p.ended_ns = 1 * MS;
	assert_int_equal(odm_prompt_rows_batch(&p, &layer, 3 * MS),
			 odm_batch_rows(&p.port, &(struct odm_batch_work){ .n_rows = 128,
									   .row_bytes = ROW_BYTES,
									   .run = 0.5 * MS,
									   .rows = 100.0 * 128 * TOP_K,
									   .half = true,
									   .main = 2.0 * MS }));
}

static void halves_pay_where_the_port_binds_and_experts_stay(void **state)
{
	(void)state;
	assert_false(odm_prompt_rows_halves(&p, worker, WORKERS, 128)); /* not known yet */
	measure(8);
	assert_true(odm_prompt_rows_halves(&p, worker, WORKERS, 128));
	assert_true(odm_prompt_rows_halves(&p, worker, WORKERS, 32));
	assert_false(odm_prompt_rows_halves(&p, worker, WORKERS, 31)); /* a half may lack experts */
	worker[3].slots = 1; /* two experts come to each */
	assert_false(odm_prompt_rows_halves(&p, worker, WORKERS, 128));
	assert_true(odm_prompt_rows_halves(&p, worker, 3, 128)); /* it gets none */
	measure(1);
	assert_false(odm_prompt_rows_halves(&p, worker, 3, 128));
}

static void little_is_less_than_a_batch(void **state)
{
	const struct odm_prompt_layer layer = { .work = &work, .n_with = 3, .run_ns = 0.5 * MS, .most = 64 };

	(void)state;
	assert_int_equal(odm_prompt_rows_batch(&p, &layer, 0), 64);
	assert_true(odm_prompt_rows_few(&p, 64 * TOP_K * (uint64_t)ROW_BYTES - 1));
	assert_false(odm_prompt_rows_few(&p, 64 * TOP_K * (uint64_t)ROW_BYTES));
}

/* Both layers under way are of the same step; the second half's is one behind. */
static void the_earlier_layer_goes_first(void **state)
{
	struct od_moe_call later = { .m = 4 }, earlier = { .m = 3 };
	struct odm_pieces two[ODM_HALVES] = { { .call = &later, .n = 2 }, { .call = &earlier, .n = 2 } };

	(void)state;
	p.batch_bytes = 100;
	assert_ptr_equal(odm_prompt_rows_turn(&p, two, 0, 100), &two[1]);
	assert_null(odm_prompt_rows_turn(&p, two, 1, 100)); /* a batch is in flight */
	assert_ptr_equal(odm_prompt_rows_turn(&p, two, 1, 99), &two[0]);
	assert_null(odm_prompt_rows_turn(&p, two, 2, 0));
	later.m = 3; /* The first half goes first through the same layer. */
	assert_ptr_equal(odm_prompt_rows_turn(&p, two, 0, 0), &two[0]);
	assert_ptr_equal(odm_prompt_rows_turn(&p, two, 1, 0), &two[1]);
	two[0].n_done = 2; /* it is through: nothing waits for it */
	assert_ptr_equal(odm_prompt_rows_turn(&p, two, 0, 100), &two[1]);
	assert_null(odm_prompt_rows_turn(&p, two, 1, 0));
	two[1] = (struct odm_pieces){ 0 };
	assert_null(odm_prompt_rows_turn(&p, two, 0, 0));
	assert_null(odm_prompt_rows_turn(&p, two, 2, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(workers_that_have_experts, begin, end),
		cmocka_unit_test_setup_teardown(batches_are_those_that_end_first, begin, end),
		cmocka_unit_test_setup_teardown(halves_pay_where_the_port_binds_and_experts_stay, begin, end),
		cmocka_unit_test_setup_teardown(little_is_less_than_a_batch, begin, end),
		cmocka_unit_test_setup_teardown(the_earlier_layer_goes_first, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
