/* The forward pass against an independent float64 reference, and everything a row's result must not depend
 * on: chunks, threads, other sequences, kernels, a repeated call (design section 4). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/model/resident.h"
#include "tests/unit/tiny_model.h"

#define MAX_ROWS 512
#define CTX 320

/* What a prompt's rows gave, all positions. */
struct result {
	float *logits;	  /* [n][vocab] */
	uint16_t *expert; /* [n_layers][n][top_k] */
	float *weight;	  /* [n_layers][n][top_k] */
	float *margin;	  /* [n_layers][n] */
};

struct engine {
	const struct tiny_model *t;
	struct od_pool *pool;
	struct od_forward_opts opts;
	struct od_forward *forward;
	struct od_expert_runner *runner;
};

static void must(int rc, const struct od_err *err)
{
	if (rc != OD_OK)
		fail_msg("%s", err->msg);
}

static void engine_open(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu)
{
	struct od_err err = { 0 };

	memset(e, 0, sizeof(*e));
	e->t = t;
	must(od_pool_new(&e->pool, threads, "test", &err), &err);
	e->opts = (struct od_forward_opts){ .config = &t->cfg, .dense = &t->dense, .pool = e->pool,
					    .profile = t->profile, .max_rows = MAX_ROWS };
	must(od_backend_cpu(&e->opts.backend, cpu, t->profile, &err), &err);
	must(od_forward_new(&e->forward, &e->opts, &err), &err);
	must(od_resident_new(&e->runner, &e->opts, t->experts, &err), &err);
}

static void engine_close(struct engine *e)
{
	od_resident_free(e->runner);
	od_forward_free(e->forward);
	od_pool_free(e->pool);
}

static struct od_seq_state *new_seq(const struct tiny_model *t)
{
	struct od_seq_state *s;
	struct od_err err = { 0 };

	must(od_seq_state_new(&s, &t->cfg, t->profile, CTX, &err), &err);
	return s;
}

static void result_new(struct result *r, const struct tiny_model *t)
{
	size_t n = t->n_prompt, routes = t->cfg.n_layers * n * t->cfg.top_k;

	r->logits = od_alloc_array(n * t->cfg.vocab, sizeof(float));
	r->expert = od_alloc_array(routes, sizeof(uint16_t));
	r->weight = od_alloc_array(routes, sizeof(float));
	r->margin = od_alloc_array(t->cfg.n_layers * n, sizeof(float));
	assert_true(r->logits != NULL && r->expert != NULL && r->weight != NULL && r->margin != NULL);
}

static void result_free(struct result *r)
{
	od_free(r->logits);
	od_free(r->expert);
	od_free(r->weight);
	od_free(r->margin);
}

/* Row `row` of the step is position `at` of the result's prompt. */
static void note_routes(const struct engine *e, size_t row, size_t at, struct result *r)
{
	size_t k = e->t->cfg.top_k, place = od_forward_layer(e->forward) * e->t->n_prompt + at;

	memcpy(r->expert + place * k, od_forward_experts_of(e->forward, row), k * sizeof(uint16_t));
	memcpy(r->weight + place * k, od_forward_weights_of(e->forward, row), k * sizeof(float));
	r->margin[place] = od_forward_margin_of(e->forward, row);
}

/* One step; row i's results go to position at[i] of r[i]. */
static void run_step(struct engine *e, const struct od_row *rows, size_t n, struct result **r)
{
	struct od_err err = { 0 };

	must(od_forward_begin(e->forward, 7, rows, n, &err), &err);
	while (!od_forward_done(e->forward)) {
		od_forward_attention(e->forward);
		for (size_t i = 0; i < n; i++)
			note_routes(e, i, rows[i].position, r[i]);
		must(od_forward_experts(e->forward, e->runner, &err), &err);
	}
	for (size_t i = 0; i < n; i++)
		od_forward_logits(e->forward, i, r[i]->logits + (size_t)rows[i].position * e->t->cfg.vocab);
	od_forward_commit(e->forward);
}

/* The case's prompt (from position `from`) in chunks. */
static void run_chunks(struct engine *e, struct od_seq_state *seq, size_t from, size_t chunk, struct result *out)
{
	struct od_row rows[MAX_ROWS];
	struct result *r[MAX_ROWS];

	for (size_t begin = from; begin < e->t->n_prompt; begin += chunk) {
		size_t n = e->t->n_prompt - begin < chunk ? e->t->n_prompt - begin : chunk;

		for (size_t i = 0; i < n; i++) {
			rows[i] = (struct od_row){ seq, (uint32_t)(begin + i), e->t->prompt[begin + i] };
			r[i] = out;
		}
		run_step(e, rows, n, r);
	}
	assert_int_equal(od_seq_state_length(seq), e->t->n_prompt);
}

static void run_prompt(const struct tiny_model *t, unsigned threads, enum od_cpu cpu, size_t chunk, struct result *out)
{
	struct od_seq_state *seq = new_seq(t);
	struct engine e;

	result_new(out, t);
	engine_open(&e, t, threads, cpu);
	run_chunks(&e, seq, 0, chunk, out);
	engine_close(&e);
	od_seq_state_free(seq);
}

static void same(const struct tiny_model *t, const struct result *a, const struct result *b, const char *what)
{
	size_t n = t->n_prompt, routes = t->cfg.n_layers * n * t->cfg.top_k;

	if (memcmp(a->logits, b->logits, n * t->cfg.vocab * sizeof(float)) != 0)
		fail_msg("%s: %s: logits differ", t->name, what);
	if (memcmp(a->expert, b->expert, routes * sizeof(uint16_t)) != 0 ||
	    memcmp(a->weight, b->weight, routes * sizeof(float)) != 0 ||
	    memcmp(a->margin, b->margin, t->cfg.n_layers * n * sizeof(float)) != 0)
		fail_msg("%s: %s: routes differ", t->name, what);
}

/* Largest difference to the expected logits, over the largest of them. */
static double logit_error(const struct tiny_model *t, const struct result *r)
{
	const json_t *at = json_object_get(t->expected, "logits_at"), *rows = json_object_get(t->expected, "logits");
	double worst = 0, largest = 0;

	assert_true(json_array_size(at) > 0 && json_array_size(at) == json_array_size(rows));
	for (size_t i = 0; i < json_array_size(at); i++) {
		size_t p = (size_t)json_integer_value(json_array_get(at, i));
		const json_t *row = json_array_get(rows, i);

		assert_int_equal(json_array_size(row), t->cfg.vocab);
		for (size_t v = 0; v < t->cfg.vocab; v++) {
			double x = json_number_value(json_array_get(row, v));
			double d = fabs(x - (double)r->logits[p * t->cfg.vocab + v]);

			worst = d > worst || isnan(d) ? d : worst;
			largest = fabs(x) > largest ? fabs(x) : largest;
		}
	}
	return worst / largest;
}

static void check_routes(const struct tiny_model *t, const struct result *r, double margin_tolerance)
{
	const json_t *routes = json_object_get(t->expected, "routes");
	const json_t *margins = json_object_get(t->expected, "margins");

	for (size_t layer = 0; layer < t->cfg.n_layers; layer++) {
		for (size_t p = 0; p < t->n_prompt; p++) {
			const json_t *chosen = json_array_get(json_array_get(routes, layer), p);
			double margin = json_number_value(json_array_get(json_array_get(margins, layer), p));
			size_t place = layer * t->n_prompt + p;
			float sum = 0;

			assert_int_equal(json_array_size(chosen), t->cfg.top_k);
			for (size_t k = 0; k < t->cfg.top_k; k++) {
				assert_int_equal(json_integer_value(json_array_get(chosen, k)),
						 r->expert[place * t->cfg.top_k + k]);
				sum += r->weight[place * t->cfg.top_k + k];
			}
			assert_true(fabsf(sum - 1) < 1e-6f);
			if (fabs(margin - (double)r->margin[place]) > margin_tolerance)
				fail_msg("%s: layer %zu, row %zu: margin %g, expected %g", t->name, layer, p,
					 (double)r->margin[place], margin);
		}
	}
}

static void test_matches_reference(void **state)
{
	(void)state;
	assert_true(tiny_count() >= 8);
	for (size_t i = 0; i < tiny_count(); i++) {
		struct tiny_model t;
		struct result r;
		double error;

		tiny_load(&t, i);
		run_prompt(&t, 1, OD_CPU_SCALAR, MAX_ROWS, &r);
		error = logit_error(&t, &r);
		print_message("# %s: logit error %.1e\n", t.name, error);
		if (!(error < 5e-5))
			fail_msg("%s: logits differ by %g of the largest", t.name, error);
		check_routes(&t, &r, 5e-5);
		result_free(&r);
		tiny_unload(&t);
	}
}

/* The two profiles are different numbers: without its rounding a bf16 run would be the f32 one. */
static void test_profile_bf16_rounds(void **state)
{
	struct tiny_model t;
	struct result exact, rounded;

	(void)state;
	tiny_load_named(&t, "profile_bf16");
	run_prompt(&t, 1, OD_CPU_SCALAR, MAX_ROWS, &rounded);
	t.profile = OD_PROFILE_F32;
	run_prompt(&t, 1, OD_CPU_SCALAR, MAX_ROWS, &exact);
	assert_true(logit_error(&t, &rounded) < logit_error(&t, &exact) / 4);
	result_free(&exact);
	result_free(&rounded);
	tiny_unload(&t);
}

/* Prefill in chunks of any size, down to row by row, is one go. */
static void test_chunks(void **state)
{
	static const size_t chunks[] = { 1, 3, 7 };

	(void)state;
	for (size_t i = 0; i < tiny_count(); i++) {
		struct tiny_model t;
		struct result whole, part;

		tiny_load(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
			run_prompt(&t, 1, OD_CPU_AUTO, chunks[c], &part);
			same(&t, &whole, &part, "chunks");
			result_free(&part);
		}
		result_free(&whole);
		tiny_unload(&t);
	}
}

static void test_threads(void **state)
{
	(void)state;
	for (size_t i = 0; i < tiny_count(); i++) {
		struct tiny_model t;
		struct result one, more;

		tiny_load(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, 64, &one);
		for (unsigned threads = 2; threads <= 3; threads++) {
			run_prompt(&t, threads, OD_CPU_AUTO, 64, &more);
			same(&t, &one, &more, "threads");
			result_free(&more);
		}
		result_free(&one);
		tiny_unload(&t);
	}
}

/* Profile f32 is the same bits on every CPU. */
static void test_kernels(void **state)
{
	(void)state;
	for (size_t i = 0; i < tiny_count(); i++) {
		struct tiny_model t;
		struct result oracle, other;

		tiny_load(&t, i);
		t.profile = OD_PROFILE_F32;
		run_prompt(&t, 1, OD_CPU_SCALAR, MAX_ROWS, &oracle);
		for (int cpu = OD_CPU_AVX2; cpu <= OD_CPU_NEON; cpu++) {
			const struct od_backend *be;

			if (od_backend_cpu(&be, (enum od_cpu)cpu, t.profile, NULL) != OD_OK)
				continue; /* this machine has no such instructions */
			run_prompt(&t, 1, (enum od_cpu)cpu, MAX_ROWS, &other);
			same(&t, &oracle, &other, od_cpu_names[cpu]);
			result_free(&other);
		}
		result_free(&oracle);
		tiny_unload(&t);
	}
}

/* Another prompt of the same model, so that two sequences differ. */
static int32_t other_token(const struct tiny_model *t, size_t i)
{
	return (int32_t)((t->prompt[i] * 5 + 3 + (int32_t)i) % (int32_t)t->cfg.vocab);
}

/* Two sequences whose rows alternate in one step, against each by itself. */
static void test_two_sequences(void **state)
{
	(void)state;
	for (size_t i = 0; i < tiny_count(); i++) {
		struct tiny_model t, u;
		struct result a, b, joint_a, joint_b, *r[MAX_ROWS];
		struct od_row rows[MAX_ROWS];
		struct od_seq_state *seq[2];
		struct engine e;
		size_t n;

		tiny_load(&t, i);
		n = t.n_prompt < 40 ? t.n_prompt : 40;
		t.n_prompt = n;
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &a);
		u = t;
		u.prompt = od_alloc_array(n, sizeof(*u.prompt));
		for (size_t p = 0; p < n; p++)
			u.prompt[p] = other_token(&t, p);
		run_prompt(&u, 1, OD_CPU_AUTO, MAX_ROWS, &b);
		assert_memory_not_equal(a.logits, b.logits, n * t.cfg.vocab * sizeof(float));

		engine_open(&e, &t, 2, OD_CPU_AUTO);
		result_new(&joint_a, &t);
		result_new(&joint_b, &t);
		seq[0] = new_seq(&t);
		seq[1] = new_seq(&t);
		for (size_t p = 0; p < 2 * n; p++) {
			const struct tiny_model *from = p % 2 == 0 ? &t : &u;

			rows[p] = (struct od_row){ seq[p % 2], (uint32_t)(p / 2), from->prompt[p / 2] };
			r[p] = p % 2 == 0 ? &joint_a : &joint_b;
		}
		run_step(&e, rows, n, r); /* some rows in one step, the rest in the next */
		run_step(&e, rows + n, n, r + n);
		same(&t, &a, &joint_a, "first of two sequences");
		same(&t, &b, &joint_b, "second of two sequences");
		engine_close(&e);
		od_seq_state_free(seq[0]);
		od_seq_state_free(seq[1]);
		result_free(&a);
		result_free(&b);
		result_free(&joint_a);
		result_free(&joint_b);
		od_free(u.prompt);
		tiny_unload(&t);
	}
}

/* A runner that fails at first in every layer, having scribbled over what it must fill. */
struct flaky {
	struct od_expert_runner runner;
	struct od_expert_runner *real;
	unsigned calls, fails;
	size_t y_floats;
};

static int flaky_run(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct flaky *f = (struct flaky *)runner;

	assert_int_equal(call->step, 7);
	if (f->calls++ % 3 < 2) {
		f->fails++;
		for (size_t i = 0; i < f->y_floats; i++)
			call->y[i] = 1e30f;
		return od_fail(err, OD_ERR_UNREACHABLE, "no worker is left");
	}
	return f->real->run(f->real, call, err);
}

static void test_error_then_retry(void **state)
{
	struct tiny_model t;
	struct result whole, again;
	struct od_seq_state *seq;
	struct od_row rows[MAX_ROWS];
	struct engine e;
	struct flaky flaky = { .runner.run = flaky_run };

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	flaky.real = e.runner;
	flaky.y_floats = t.n_prompt * t.cfg.top_k * t.cfg.hidden;
	result_new(&again, &t);
	seq = new_seq(&t);
	for (size_t i = 0; i < t.n_prompt; i++)
		rows[i] = (struct od_row){ seq, (uint32_t)i, t.prompt[i] };
	assert_int_equal(od_forward_begin(e.forward, 7, rows, t.n_prompt, NULL), OD_OK);
	while (!od_forward_done(e.forward)) {
		uint32_t layer = od_forward_layer(e.forward);
		struct od_err err;

		od_forward_attention(e.forward);
		for (size_t i = 0; i < t.n_prompt; i++)
			note_routes(&e, i, i, &again);
		while (od_forward_experts(e.forward, &flaky.runner, &err) != OD_OK) {
			assert_string_equal(err.msg, "no worker is left");
			assert_int_equal(od_forward_layer(e.forward), layer);
			assert_false(od_forward_done(e.forward));
		}
		assert_int_equal(od_forward_layer(e.forward), layer + 1);
	}
	assert_int_equal(flaky.fails, 2 * t.cfg.n_layers);
	for (size_t i = 0; i < t.n_prompt; i++)
		od_forward_logits(e.forward, i, again.logits + i * t.cfg.vocab);
	assert_int_equal(od_seq_state_length(seq), 0); /* nothing is committed by itself */
	same(&t, &whole, &again, "retry");
	engine_close(&e);
	od_seq_state_free(seq);
	result_free(&whole);
	result_free(&again);
	tiny_unload(&t);
}

/* Truncated and fed again after other tokens stood there, the sequence is as new. */
static void test_truncate(void **state)
{
	(void)state;
	for (size_t i = 0; i < tiny_count(); i++) {
		struct tiny_model t, u;
		struct result whole, other, again;
		struct od_seq_state *seq;
		struct engine e;
		size_t keep = 5;

		tiny_load(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		u = t;
		u.prompt = od_alloc_array(t.n_prompt, sizeof(*u.prompt));
		for (size_t p = 0; p < t.n_prompt; p++)
			u.prompt[p] = p < keep ? t.prompt[p] : other_token(&t, p);
		result_new(&other, &t);
		result_new(&again, &t);
		memcpy(again.logits, whole.logits, keep * t.cfg.vocab * sizeof(float));
		seq = new_seq(&t);
		engine_open(&e, &u, 1, OD_CPU_AUTO);
		run_chunks(&e, seq, 0, MAX_ROWS, &other);
		e.t = &t;
		od_seq_state_set_length(seq, (uint32_t)keep);
		run_chunks(&e, seq, keep, MAX_ROWS, &again);
		assert_memory_equal(again.logits, whole.logits, t.n_prompt * t.cfg.vocab * sizeof(float));
		assert_memory_not_equal(other.logits, whole.logits, t.n_prompt * t.cfg.vocab * sizeof(float));
		engine_close(&e);
		od_seq_state_free(seq);
		result_free(&whole);
		result_free(&other);
		result_free(&again);
		od_free(u.prompt);
		tiny_unload(&t);
	}
}

static void refuse(struct engine *e, const struct od_row *rows, size_t n, int code, const char *text)
{
	struct od_err err = { 0 };

	assert_int_equal(od_forward_begin(e->forward, 1, rows, n, &err), code);
	if (strstr(err.msg, text) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", err.msg, text);
}

static void test_begin_checks(void **state)
{
	struct tiny_model t;
	struct engine e;
	struct od_seq_state *seq, *other;
	struct od_row *rows;
	struct od_err err;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	assert_int_equal(od_seq_state_new(&seq, &t.cfg, t.profile, 8, &err), OD_OK);
	assert_int_equal(od_seq_state_new(&other, &t.cfg, OD_PROFILE_BF16, 8, &err), OD_OK);
	rows = od_alloc_array(MAX_ROWS + 1, sizeof(*rows));
	refuse(&e, rows, 0, OD_ERR_RANGE, "1 to 512, found 0");
	refuse(&e, rows, MAX_ROWS + 1, OD_ERR_RANGE, "found 513");
	for (uint32_t i = 0; i < 9; i++)
		rows[i] = (struct od_row){ seq, i, (int32_t)i };
	refuse(&e, rows, 9, OD_ERR_RANGE, "position 8 is outside the context of 8");
	rows[3].token = 48;
	refuse(&e, rows, 8, OD_ERR_RANGE, "row 3: token: expected 0 to 47, found 48");
	rows[3].token = -1;
	refuse(&e, rows, 8, OD_ERR_RANGE, "found -1");
	rows[3].token = 3;
	refuse(&e, rows + 1, 3, OD_ERR_RANGE, "row 0: position: expected 0, found 1");
	rows[5].position = 6;
	refuse(&e, rows, 6, OD_ERR_RANGE, "row 5: position: expected 5, found 6");
	rows[5].position = 4;
	refuse(&e, rows, 6, OD_ERR_RANGE, "row 5: position: expected 5, found 4");
	rows[1] = (struct od_row){ other, 0, 1 };
	refuse(&e, rows, 2, OD_ERR_MISMATCH, "expected F32, found BF16");
	od_seq_state_set_length(seq, 8);
	refuse(&e, rows, 1, OD_ERR_RANGE, "row 0: position: expected 8, found 0");
	od_free(rows);
	od_seq_state_free(seq);
	od_seq_state_free(other);
	engine_close(&e);
	tiny_unload(&t);
}

static void test_new_checks(void **state)
{
	struct tiny_model t;
	struct engine e;
	struct od_forward *f;
	struct od_expert_runner *runner;
	struct od_forward_opts opts;
	struct od_dense dense;
	struct od_err err;
	uint64_t one;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	opts = e.opts;
	opts.max_rows = 1;
	one = od_forward_bytes(&opts);
	/* A row has at least: residual, normed, k outputs (f32 each), queries, attention, keys, values. */
	assert_true(one >= (4 * 40 + 2 * 40 + 2 * 20) * sizeof(float));
	opts.max_rows = 101;
	assert_true(od_forward_bytes(&opts) > 100 * (4 * 40 + 2 * 40 + 2 * 20) * sizeof(float));
	assert_true(od_forward_bytes(&opts) < 101 * one);
	opts.max_rows = SIZE_MAX;
	assert_true(od_forward_bytes(&opts) == UINT64_MAX);
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	assert_null(f);
	assert_int_equal(od_resident_new(&runner, &opts, t.experts, &err), OD_ERR_RANGE);
	assert_null(runner);
	opts.max_rows = 0;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	opts.max_rows = 1;
	dense = t.dense;
	dense.head.n_out--;
	opts.dense = &dense;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	assert_null(f);
	for (enum od_dtype small = OD_INT8; small <= OD_DTYPE_LAST; small++) { /* its rows are read one by one */
		dense = t.dense;
		dense.embed.dtype = small;
		assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	}
	dense = t.dense;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_OK);
	od_forward_free(f);
	od_forward_free(NULL);
	od_resident_free(NULL);
	engine_close(&e);
	tiny_unload(&t);
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
		cmocka_unit_test(test_matches_reference), cmocka_unit_test(test_profile_bf16_rounds),
		cmocka_unit_test(test_chunks),		  cmocka_unit_test(test_threads),
		cmocka_unit_test(test_kernels),		  cmocka_unit_test(test_two_sequences),
		cmocka_unit_test(test_error_then_retry),  cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_begin_checks),	  cmocka_unit_test(test_new_checks),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}
