/* Rows of many sequences in one step, and steps of two forward passes open at once on one device: a row's bits are
 * those of its sequence run alone, one row's logits at a time. On the CPU's device and on the far one, whatever
 * OD_DEVICE says. */
#include "common/compute/cpu/cpu_device.h"
#include "tests/gpu/far_device.h"
#include "tests/unit/forward_world.h"
#include "tests/unit/random.h"
#include "tests/unit/state_util.h"
#include "tests/unit/sum_mixer.h"

enum { ALL = 65, MOST_ROWS = 512, PREFILL_LOGITS = 7 };

struct forward_many_world {
	struct tiny_model t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_state_pool *pool;
	struct od_forward *prefill, *decode;
	struct od_expert_runner *runner; /* used by both */
	uint32_t n, length; /* sequences; positions of each text */
	uint32_t common; /* positions that all texts share */
	uint64_t seed;
	float *alone[ALL]; /* [length][vocab] */
	struct od_seq_state *seq[ALL];
};

/* The cases of forward_world.h, and one with fixed state. */
static size_t model_count(void)
{
	return case_count() + 1;
}

static void load_model(struct tiny_model *t, size_t i)
{
	struct od_config cfg;

	if (i < case_count()) {
		load_case(t, i);
		return;
	}
	cfg = sum_mixer_config(48, CTX);
	tiny_make(t, "fixed state", &cfg, 11, 1);
}

static int32_t token_of(const struct forward_many_world *w, uint32_t q, uint32_t position)
{
	const uint32_t x = ((position < w->common ? 0 : q) * 7919 + position * 104729 + 17) * 2654435761u;

	return (int32_t)((x >> 9) % w->t.cfg.vocab);
}

static bool has_fixed(const struct forward_many_world *w)
{
	return od_state_pool_fixed_bytes(w->pool) > 0;
}

static struct od_forward_opts opts_of(const struct forward_many_world *w, size_t max_rows, size_t max_logits)
{
	return (struct od_forward_opts){ .config = &w->t.cfg,
					 .dense = &w->weights.dense,
					 .device = w->device,
					 .state = w->pool,
					 .profile = w->t.profile,
					 .max_rows = max_rows,
					 .max_logits = max_logits };
}

static void open_device(struct forward_many_world *w, bool far, uint32_t n_sequences, uint64_t n_pages)
{
	struct od_err err = { 0 };

	must(far ? od_device_far_new(&w->device, OD_CPU_AUTO, 2, "test", &err) :
		   od_device_cpu_new(&w->device, OD_CPU_AUTO, 2, "test", &err),
	     &err);
	tiny_put(&w->weights, &w->t, w->device);
	must(od_state_pool_new(&w->pool, w->device, &w->t.cfg, w->t.profile, w->length, n_sequences, n_pages, &err),
	     &err);
}

static void close_device(struct forward_many_world *w)
{
	od_state_pool_free(w->pool);
	tiny_weights_free(&w->weights);
	od_device_free(w->device);
}

static void advance(struct forward_many_world *w, struct od_forward *f)
{
	struct od_err err = { 0 };

	if (od_forward_routed(f))
		must(od_forward_experts(f, w->runner, &err), &err);
	else
		od_forward_attention(f);
}

/* Records each text's results when it runs by itself. */
static void run_alone(struct forward_many_world *w)
{
	const uint32_t vocab = w->t.cfg.vocab, chunk = 20;
	struct od_forward_opts o;
	struct od_forward *f;
	struct od_err err = { 0 };

	open_device(w, false, 1, od_state_pages(w->length));
	o = opts_of(w, chunk, 0);
	must(od_forward_new(&f, &o, &err), &err);
	must(od_resident_new(&w->runner, &o, w->weights.experts, &err), &err);
	for (uint32_t q = 0; q < w->n; q++) {
		struct od_seq_state *seq = open_seq(w->pool);

		w->alone[q] = od_alloc_array((uint64_t)w->length * vocab, sizeof(float));
		assert_non_null(w->alone[q]);
		for (uint32_t at = 0; at < w->length;) {
			struct od_row rows[20];
			const uint32_t n = w->length - at < chunk ? w->length - at : chunk;

			for (uint32_t i = 0; i < n; i++)
				rows[i] = (struct od_row){ seq, at + i, token_of(w, q, at + i) };
			must(od_forward_begin(f, 1, rows, n, &err), &err);
			while (!od_forward_done(f))
				advance(w, f);
			for (uint32_t i = 0; i < n; i++, at++) {
				float *logits;

				must(od_forward_logits(f, &i, 1, &logits, &err), &err);
				memcpy(w->alone[q] + (size_t)at * vocab, logits, vocab * sizeof(*logits));
			}
			must(od_forward_end(f, NULL, &err), &err);
		}
		od_seq_state_free(seq);
	}
	od_forward_free(f);
	od_resident_free(w->runner);
	close_device(w);
}

/* With the texts' logits alone. */
static void open_world(struct forward_many_world *w, size_t model, uint32_t n, uint32_t length, uint32_t common)
{
	*w = (struct forward_many_world){ .n = n, .length = length, .common = common, .seed = model + 1 };
	load_model(&w->t, model);
	run_alone(w);
	for (uint32_t q = 1; q < n; q++)
		assert_memory_not_equal(w->alone[q - 1] + (size_t)common * w->t.cfg.vocab,
					w->alone[q] + (size_t)common * w->t.cfg.vocab, w->t.cfg.vocab * sizeof(float));
}

static void close_world(struct forward_many_world *w)
{
	for (uint32_t q = 0; q < w->n; q++)
		od_free(w->alone[q]);
	tiny_unload(&w->t);
}

static void open_passes(struct forward_many_world *w, bool far, uint64_t n_pages)
{
	struct od_forward_opts o;
	struct od_err err = { 0 };

	open_device(w, far, w->n, n_pages);
	o = opts_of(w, w->length, PREFILL_LOGITS);
	must(od_forward_new(&w->prefill, &o, &err), &err);
	o = opts_of(w, MOST_ROWS, MOST_ROWS);
	must(od_forward_new(&w->decode, &o, &err), &err);
	must(od_resident_new(&w->runner, &o, w->weights.experts, &err), &err);
}

static void close_passes(struct forward_many_world *w)
{
	for (uint32_t q = 0; q < w->n; q++) {
		od_seq_state_free(w->seq[q]);
		w->seq[q] = NULL;
	}
	od_forward_free(w->prefill);
	od_forward_free(w->decode);
	od_resident_free(w->runner);
	close_device(w);
}

static void check_row(const struct forward_many_world *w, const char *what, const float *logits, uint32_t q,
		      uint32_t position)
{
	const size_t bytes = w->t.cfg.vocab * sizeof(float);

	if (memcmp(logits, w->alone[q] + (size_t)position * w->t.cfg.vocab, bytes) != 0)
		fail_msg("%s on %s: %s: sequence %u, position %u: logits differ", w->t.name, od_device_name(w->device),
			 what, q, position);
}

/* A step of some of the sequences from `first` on, of 1 to `most` rows each, of which not all are kept if fixed state
 * allows; the logits of all rows at once. A text that is through begins again, where none is shared. */
static void decode(struct forward_many_world *w, uint32_t first, uint32_t most)
{
	struct od_row rows[MOST_ROWS];
	uint32_t q_of[MOST_ROWS], row[MOST_ROWS], kept[ALL], n = 0, tables = 0;
	const uint64_t waits = od_device_waits(w->device);
	struct od_err err = { 0 };
	float *logits;

	for (uint32_t q = first; q < w->n; q++) {
		uint32_t length = od_seq_state_length(w->seq[q]), count;

		if (random_below(&w->seed, 5) == 0)
			continue;
		if (length == w->length && w->common > 0)
			continue;
		if (length == w->length)
			od_seq_state_set_length(w->seq[q], length = 0);
		count = 1 + (uint32_t)random_below(&w->seed, most);
		count = count < w->length - length ? count : w->length - length;
		kept[tables++] = has_fixed(w) ? count : (uint32_t)random_below(&w->seed, count + 1);
		for (uint32_t i = 0; i < count; i++, n++) {
			rows[n] = (struct od_row){ w->seq[q], length + i, token_of(w, q, length + i) };
			q_of[n] = q;
		}
	}
	if (n == 0)
		return;
	must(od_forward_begin(w->decode, 2, rows, n, &err), &err);
	while (!od_forward_done(w->decode))
		advance(w, w->decode);
	for (uint32_t i = 0; i < n; i++) /* some in order, some not */
		row[i] = i < n / 2 ? i : n - 1 - (i - n / 2);
	must(od_forward_logits(w->decode, row, n, &logits, &err), &err);
	for (uint32_t i = 0; i < n; i++)
		check_row(w, "decode", logits + (size_t)i * w->t.cfg.vocab, q_of[row[i]], rows[row[i]].position);
	must(od_forward_end(w->decode, kept, &err), &err);
	assert_int_equal(od_device_waits(w->device) - waits, 1);
}

/* The decode step leaves alone what the prefill step has fetched. */
static void decode_beside_fetched(struct forward_many_world *w)
{
	const struct od_forward *f = w->prefill;
	const size_t hidden = w->t.cfg.hidden * sizeof(float), routes = w->t.cfg.top_k * sizeof(uint16_t);
	char *residual = malloc(hidden), *route = malloc(routes);
	struct od_err err = { 0 };

	must(od_forward_fetch(w->prefill, OD_FETCH_ROUTES | OD_FETCH_RESIDUALS, &err), &err);
	assert_true(residual != NULL && route != NULL);
	memcpy(residual, od_forward_residual_of(f, 0), hidden);
	memcpy(route, od_forward_experts_of(f, 0), routes);
	decode(w, 1, 3);
	assert_memory_equal(residual, od_forward_residual_of(f, 0), hidden);
	assert_memory_equal(route, od_forward_experts_of(f, 0), routes);
	free(residual);
	free(route);
}

static void check_prefill(struct forward_many_world *w, uint32_t first, uint32_t n)
{
	struct od_err err = { 0 };

	for (uint32_t at = 0; at < n; at += PREFILL_LOGITS) {
		const uint32_t some = n - at < PREFILL_LOGITS ? n - at : PREFILL_LOGITS;
		uint32_t row[PREFILL_LOGITS];
		float *logits;

		for (uint32_t i = 0; i < some; i++)
			row[i] = (at + i) * 3 % n; /* n is no multiple of 3 */
		must(od_forward_logits(w->prefill, row, some, &logits, &err), &err);
		for (uint32_t i = 0; i < some; i++)
			check_row(w, "prefill", logits + (size_t)i * w->t.cfg.vocab, 0, first + row[i]);
	}
}

/* A chunk of sequence 0's text. beside: between any two calls the others decode. */
static void prefill(struct forward_many_world *w, uint32_t first, uint32_t n, bool beside)
{
	struct od_row rows[MOST_ROWS];
	struct od_err err = { 0 };

	for (uint32_t i = 0; i < n; i++)
		rows[i] = (struct od_row){ w->seq[0], first + i, token_of(w, 0, first + i) };
	must(od_forward_begin(w->prefill, 1, rows, n, &err), &err);
	while (!od_forward_done(w->prefill)) {
		if (beside)
			decode(w, 1, 4);
		if (beside && od_forward_routed(w->prefill) && od_forward_layer(w->prefill) % 2 == 0)
			decode_beside_fetched(w);
		advance(w, w->prefill);
	}
	if (beside)
		decode(w, 1, 4);
	check_prefill(w, first, n);
	if (beside)
		decode(w, 1, 1);
	must(od_forward_end(w->prefill, NULL, &err), &err);
	assert_int_equal(od_seq_state_length(w->seq[0]), first + n);
}

static void test_two_open_steps(void **state)
{
	(void)state;
	for (size_t i = 0; i < model_count(); i++) {
		struct forward_many_world w;

		open_world(&w, i, 6, 100, 0);
		for (int far = 0; far < 2; far++) {
			open_passes(&w, far, w.n * od_state_pages(w.length));
			for (uint32_t q = 0; q < w.n; q++)
				w.seq[q] = open_seq(w.pool);
			decode(&w, 1, 2);
			prefill(&w, 0, 70, true);
			prefill(&w, 70, 29, true);
			decode(&w, 0, 3); /* and then it is one of them */
			close_passes(&w);
		}
		close_world(&w);
	}
}

/* 64 sequences of 1 to 8 rows in a step; places and pages that other sequences had before. */
static void test_many_sequences(void **state)
{
	(void)state;
	for (size_t i = tiny_count(); i < model_count(); i++) {
		struct forward_many_world w;

		open_world(&w, i, 64, 70, 0);
		for (int far = 0; far < 2; far++) {
			open_passes(&w, far, 2 * 64);
			for (uint32_t q = 0; q < w.n; q++)
				w.seq[q] = open_seq(w.pool);
			for (uint32_t step = 0; step < 24; step++) {
				const uint32_t q = (uint32_t)random_below(&w.seed, w.n);

				decode(&w, 0, 8);
				od_seq_state_free(w.seq[q]);
				w.seq[q] = open_seq(w.pool);
			}
			assert_int_equal(od_state_pool_free_pages(w.pool), 0);
			close_passes(&w);
		}
		close_world(&w);
	}
}

/* Sequences that begin alike and share those pages, in a pool that is too small without that; the one that made the
 * pages goes. */
static void test_shared_prefix(void **state)
{
	const uint32_t n = 7, length = 150, common = 2 * OD_KV_PAGE + 5;

	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct forward_many_world w;

		open_world(&w, i, n, length, common);
		for (int far = 0; far < 2; far++) {
			open_passes(&w, far, 3 + (n - 2) + 2);
			w.seq[0] = open_seq(w.pool);
			for (uint32_t q = 1; q < n; q++)
				must(od_seq_state_new(&w.seq[q], w.pool, NULL), &(struct od_err){ 0 });
			prefill(&w, 0, 140, false);
			for (uint32_t q = 1; q < n; q++) {
				od_seq_state_share(w.seq[q], w.seq[q - 1], q == n - 1 ? 1 : 2);
				assert_int_equal(od_seq_state_promise(w.seq[q], length), OD_OK);
			}
			assert_int_equal(od_state_pool_free_pages(w.pool), 0);
			for (uint32_t step = 0; step < 12; step++) {
				decode(&w, step < 5 ? 0 : 1, 8);
				if (step == 4) {
					od_seq_state_free(w.seq[0]);
					w.seq[0] = NULL;
				}
			}
			close_passes(&w);
		}
		close_world(&w);
	}
}

/* Asks the device for an expert that there is not. */
struct forward_many_broken {
	struct od_expert_runner runner; /* first */
	struct forward_many_world *w;
};

static int submit_broken(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	static const uint16_t none = 999;
	struct forward_many_world *w = ((struct forward_many_broken *)runner)->w;

	od_device_put(w->device, OD_QUEUE_COMPUTE, call->expert_at, &none, sizeof(none));
	return w->runner->submit(w->runner, call, err);
}

/* The prefill step's work fails, and a decode step's wait is told. Both have failed then, at whatever they wait next;
 * and what is begun afterwards has not. */
static void check_failure(struct forward_many_world *w, uint32_t round)
{
	struct forward_many_broken broken = { .runner = { .on_device = true, .submit = submit_broken }, .w = w };
	const struct od_row row = { w->seq[0], 0, token_of(w, 0, 0) };
	const struct od_row other = { w->seq[1], 0, token_of(w, 1, 0) };
	const uint32_t first_row = 0;
	struct od_err err = { 0 };
	float *logits;

	must(od_forward_begin(w->prefill, 1, &row, 1, &err), &err);
	must(od_forward_begin(w->decode, 1, &other, 1, &err), &err);
	od_forward_attention(w->prefill);
	must(od_forward_experts(w->prefill, &broken.runner, &err), &err);
	while (!od_forward_done(w->decode))
		advance(w, w->decode);
	assert_int_equal(od_forward_logits(w->decode, &first_row, 1, &logits, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "found 999"));
	assert_int_equal(od_forward_end(w->decode, NULL, &err), OD_ERR_RANGE);
	if (round == 0) {
		od_forward_attention(w->prefill);
		assert_int_equal(od_forward_fetch(w->prefill, OD_FETCH_ROUTES, &err), OD_ERR_INTERNAL);
		assert_non_null(strstr(err.msg, "the device failed during the step"));
	}
	while (!od_forward_done(w->prefill))
		advance(w, w->prefill);
	if (round == 1)
		assert_int_equal(od_forward_logits(w->prefill, &first_row, 1, &logits, &err), OD_ERR_INTERNAL);
	assert_int_equal(od_forward_end(w->prefill, NULL, &err), OD_ERR_INTERNAL);
	assert_int_equal(od_seq_state_length(w->seq[0]) + od_seq_state_length(w->seq[1]), 0);
	prefill(w, 0, 10, true);
	for (uint32_t q = 0; q < w->n; q++)
		od_seq_state_set_length(w->seq[q], 0);
}

static void test_failure_is_for_both(void **state)
{
	struct forward_many_world w;

	(void)state;
	open_world(&w, 0, 3, 40, 0);
	for (int far = 0; far < 2; far++) {
		open_passes(&w, far, 3);
		for (uint32_t q = 0; q < w.n; q++)
			w.seq[q] = open_seq(w.pool);
		for (uint32_t round = 0; round < 3; round++)
			check_failure(&w, round);
		close_passes(&w);
	}
	close_world(&w);
}

static int close_file(void **state)
{
	(void)state;
	tiny_close();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_open_steps),
		cmocka_unit_test(test_many_sequences),
		cmocka_unit_test(test_shared_prefix),
		cmocka_unit_test(test_failure_is_for_both),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}
