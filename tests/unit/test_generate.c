/* Generating with resident experts: how often main waits for the device, and that being watched changes nothing. What
 * the model says is held by tests/golden and tests/conform. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/pack/write/pack_write.h"
#include "main-node/engine/engine_internal.h"
#include "tests/unit/opened_engine.h"
#include "tests/unit/tiny_files.h"

#define PROMPT 11
#define CHUNK 4
#define TOKENS 50

static struct tiny_files tiny;

static int setup(void **state)
{
	struct od_err err;

	(void)state;
	tiny_files_make(&tiny);
	const struct od_pack_job job = {
		.checkpoint = tiny.checkpoint, .pack = tiny.pack, .codec = OD_CODEC_PLANES, .n_threads = 1
	};

	return od_pack_write(&job, &err);
}

static int teardown(void **state)
{
	(void)state;
	tiny_files_free(&tiny);
	return 0;
}

struct watched {
	unsigned steps, routes, logits;
};

static void on_step(void *arg, const struct odm_step *step, const struct odm_part *part)
{
	assert_true(part->n == step->n_rows);
	((struct watched *)arg)->steps++;
}

static void on_route(void *arg, enum odm_phase phase, uint32_t position, uint32_t layer, const uint16_t *experts,
		     const float *weights, float margin)
{
	(void)phase;
	(void)weights;
	(void)margin;
	assert_true(layer < TINY_LAYERS && experts[0] < TINY_EXPERTS && position < PROMPT + TOKENS);
	((struct watched *)arg)->routes++;
}

static void on_logits(void *arg, enum odm_phase phase, uint32_t position, const float *logits)
{
	(void)phase;
	assert_true(logits != NULL && position < PROMPT + TOKENS);
	((struct watched *)arg)->logits++;
}

static struct odm_engine *open_paced(enum od_profile profile, uint64_t layer_ns)
{
	struct odm_main_opts o;
	struct odm_engine *e;
	struct od_err err;

	odm_main_opts_defaults(&o);
	o.engine.pack = tiny.pack;
	o.mode = ODM_RESIDENT;
	o.engine.profile = profile;
	o.engine.threads = 1;
	o.engine.prefill_rows = CHUNK;
	o.engine.quiet = true;
	o.engine.layer_ns = layer_ns;
	if (opened_engine_open(&e, &o, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return e;
}

static struct odm_engine *open_engine(enum od_profile profile)
{
	return open_paced(profile, 0);
}

/* Returns how often it waited. */
static uint64_t generate(struct odm_engine *e, const struct odm_observer *o, struct odm_result *r)
{
	static const int32_t prompt[PROMPT] = { 1, 5, 9, 2, 70, 33, 4, 4, 18, 60, 7 };
	struct odm_request req = { .prompt = prompt, .n_prompt = PROMPT, .max_tokens = TOKENS, .ignore_eos = true };
	const uint64_t waits = od_device_waits(e->model->device);
	struct od_err err;

	od_sampler_defaults(&req.sampling);
	req.sampling.temperature = 1;
	req.sampling.seed = 3;
	if (o != NULL)
		req.observer = *o;
	if (odm_generate(e, &req, r, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(r->n_tokens, TOKENS);
	assert_int_equal(r->figures.c[OD_C_PROMPT_TOKENS], PROMPT);
	assert_int_equal(r->figures.c[OD_C_TOKENS], TOKENS);
	assert_int_equal(r->figures.c[OD_C_DEVICE_WAITS], od_device_waits(e->model->device) - waits);
	return od_device_waits(e->model->device) - waits;
}

/* Once a step, for its logits; what is observed is fetched besides, and only that. */
static void waits(void **state)
{
	static const unsigned chunks = (PROMPT + CHUNK - 1) / CHUNK, steps = chunks + TOKENS - 1;
	static const unsigned rows = PROMPT + TOKENS - 1;
	struct watched seen = { 0 };
	const struct odm_observer step = { .arg = &seen, .step = on_step };
	const struct odm_observer routes = { .arg = &seen, .route = on_route };
	const struct odm_observer logits = { .arg = &seen, .logits = on_logits };

	(void)state;
	for (enum od_profile profile = OD_PROFILE_F32; profile <= OD_PROFILE_BF16; profile++) {
		struct odm_engine *e = open_engine(profile);
		const uint64_t begin = od_device_waits(e->model->device);
		struct odm_result plain, watched;

		memset(&seen, 0, sizeof(seen));
		assert_int_equal(generate(e, NULL, &plain), steps);
		for (int i = 0; i < 3; i++) {
			const struct odm_observer *const o[] = { &step, &routes, &logits };
			const uint64_t expected[] = { steps, steps * (1 + TINY_LAYERS), steps };

			assert_int_equal(generate(e, o[i], &watched), expected[i]);
			assert_memory_equal(watched.tokens, plain.tokens, TOKENS * sizeof(*plain.tokens));
			odm_result_fini(&watched);
		}
		assert_int_equal(seen.steps, steps);
		assert_int_equal(seen.routes, rows * TINY_LAYERS);
		assert_int_equal(seen.logits, rows);
		odm_result_fini(&plain);
		/* The process counts the sum of its requests. */
		assert_int_equal(e->counters[OD_C_TOKENS], 4 * TOKENS);
		assert_int_equal(e->counters[OD_C_DEVICE_WAITS], od_device_waits(e->model->device) - begin);
		assert_int_equal(opened_engine_close(e), OD_OK);
	}
}

/* Each layer of a decode step takes its time, and the text stays the same. */
static void paced_decode(void **state)
{
	const uint64_t layer_ns = 2 * OD_NS_PER_MS;
	struct odm_engine *plain = open_engine(OD_PROFILE_F32), *paced = open_paced(OD_PROFILE_F32, layer_ns);
	struct odm_result r[2];

	(void)state;
	generate(plain, NULL, &r[0]);
	generate(paced, NULL, &r[1]);
	assert_true(r[1].figures.c[OD_C_DECODE_NS] >= (TOKENS - 1) * TINY_LAYERS * layer_ns);
	assert_memory_equal(r[1].tokens, r[0].tokens, TOKENS * sizeof(*r[0].tokens));
	for (int i = 0; i < 2; i++)
		odm_result_fini(&r[i]);
	assert_int_equal(opened_engine_close(plain), OD_OK);
	assert_int_equal(opened_engine_close(paced), OD_OK);
}

/* The first token needs no decode step, so it comes before the time of a single layer that is as good as endless. */
static void prefill_is_not_paced(void **state)
{
	static const int32_t prompt[PROMPT] = { 1, 5, 9, 2, 70, 33, 4, 4, 18, 60, 7 };
	const uint64_t layer_ns = 20 * OD_NS_PER_S;
	struct odm_request req = { .prompt = prompt, .n_prompt = PROMPT, .max_tokens = 1 };
	struct odm_engine *e = open_paced(OD_PROFILE_F32, layer_ns);
	struct odm_result r;
	struct od_err err;

	(void)state;
	od_sampler_defaults(&req.sampling);
	assert_int_equal(odm_generate(e, &req, &r, &err), OD_OK);
	assert_true(r.figures.c[OD_C_TTFT_NS] < layer_ns);
	odm_result_fini(&r);
	assert_int_equal(opened_engine_close(e), OD_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waits),
		cmocka_unit_test(paced_decode),
		cmocka_unit_test(prefill_is_not_paced),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
