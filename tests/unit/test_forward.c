/* The forward pass against an independent float64 reference, and everything a row's result must not depend
 * on: chunks, threads, other sequences, kernels, where experts run, a repeated call (design section 4). */
#include "common/compute/cpu/cpu.h"
#include "common/compute/formats/format.h"
#include "tests/unit/forward_world.h"
#include "tests/unit/naive_model.h"

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
			size_t index = layer * t->n_prompt + p;
			float sum = 0;

			assert_int_equal(json_array_size(chosen), t->cfg.top_k);
			for (size_t k = 0; k < t->cfg.top_k; k++) {
				assert_int_equal(json_integer_value(json_array_get(chosen, k)),
						 r->expert[index * t->cfg.top_k + k]);
				sum += r->weight[index * t->cfg.top_k + k];
			}
			assert_true(fabsf(sum - 1) < 1e-6f);
			if (fabs(margin - (double)r->margin[index]) > margin_tolerance)
				fail_msg("%s: layer %zu, row %zu: margin %g, expected %g", t->name, layer, p,
					 (double)r->margin[index], margin);
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

/* The other families' against double precision; of the file's those that have weights it knows. */
static void test_matches_double(void **state)
{
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result r;
		struct engine e;
		struct od_seq_state *seq;
		double *want, worst = 0, largest = 0;

		load_case(&t, i);
		if (t.attention_dtype == OD_INT8 || t.n_prompt > 100) {
			tiny_unload(&t);
			continue;
		}
		t.profile = OD_PROFILE_F32;
		result_new(&r, &t);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		seq = new_seq(&e);
		run_chunks(&e, seq, 0, 50, &r);
		od_seq_state_free(seq);
		want = naive_logits(&t, &e.weights);
		engine_close(&e);
		for (size_t k = 0; k < t.n_prompt * t.cfg.vocab; k++) {
			worst = fmax(worst, isnan(r.logits[k]) ? INFINITY : fabs(want[k] - (double)r.logits[k]));
			largest = fmax(largest, fabs(want[k]));
		}
		print_message("# %s: error %.1e\n", t.name, worst / largest);
		if (!(worst < 5e-6 * largest))
			fail_msg("%s: logits differ by %g of the largest", t.name, worst / largest);
		free(want);
		result_free(&r);
		tiny_unload(&t);
		n++;
	}
	assert_true(n >= N_MADE + 5);
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
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result whole, chunked;

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
			run_prompt(&t, 1, OD_CPU_AUTO, chunks[c], &chunked);
			same(&t, &whole, &chunked, "chunks");
			result_free(&chunked);
		}
		result_free(&whole);
		tiny_unload(&t);
	}
}

static void test_threads(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result one, more;

		load_case(&t, i);
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
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result oracle, other;

		load_case(&t, i);
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

/* Two CPU devices with one copy of the weights, which lies on the first. */
static void test_shared_weights(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result r[2];
		struct engine e[2];

		load_case(&t, i);
		engine_open(&e[0], &t, 1, OD_CPU_AUTO);
		e[1] = (struct engine){ .t = &t, .device = device_new(OD_CPU_AUTO, 2) };
		open_forward_pass(&e[1], &e[0].weights, CTX);
		for (size_t k = 2; k-- > 0;) {
			struct od_seq_state *seq = new_seq(&e[k]);

			result_new(&r[k], &t);
			run_chunks(&e[k], seq, 0, 64, &r[k]);
			od_seq_state_free(seq);
		}
		same(&t, &r[0], &r[1], "shared weights");
		for (size_t k = 2; k-- > 0;) {
			engine_close(&e[k]);
			result_free(&r[k]);
		}
		tiny_unload(&t);
	}
}

/* A step of every second one of n rows. */
static void run_alternate(struct engine *e, const struct od_row *rows, size_t n, size_t first, struct result **r)
{
	struct od_row some[MAX_ROWS];
	struct result *to[MAX_ROWS];
	size_t n_some = 0;

	for (size_t i = first; i < n; i += 2, n_some++) {
		some[n_some] = rows[i];
		to[n_some] = r[i];
	}
	run_forward_step(e, some, n_some, to);
}

/* Two sequences whose rows alternate in one step, against each by itself. */
static void test_two_sequences(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t, u;
		struct result a, b, joint_a, joint_b, *r[MAX_ROWS];
		struct od_row rows[MAX_ROWS];
		struct od_seq_state *seq[2];
		struct engine e;
		size_t n;

		load_case(&t, i);
		n = t.n_prompt < 140 ? t.n_prompt : 140; /* pages of the two in turn */
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
		seq[0] = new_seq(&e);
		seq[1] = new_seq(&e);
		for (size_t p = 0; p < 2 * n; p++) {
			const struct tiny_model *from = p % 2 == 0 ? &t : &u;

			rows[p] = (struct od_row){ seq[p % 2], (uint32_t)(p / 2), from->prompt[p / 2] };
			r[p] = p % 2 == 0 ? &joint_a : &joint_b;
		}
		run_forward_step(&e, rows, n, r); /* some rows in one step, more in the next */
		run_forward_step(&e, rows + n, n / 2, r + n);
		/* then those of one sequence, of the other */
		run_alternate(&e, rows + n + n / 2, n - n / 2, 1, r + n + n / 2);
		run_alternate(&e, rows + n + n / 2, n - n / 2, 0, r + n + n / 2);
		same(&t, &a, &joint_a, "first of two sequences");
		same(&t, &b, &joint_b, "second of two sequences");
		od_seq_state_free(seq[0]);
		od_seq_state_free(seq[1]);
		engine_close(&e);
		result_free(&a);
		result_free(&b);
		result_free(&joint_a);
		result_free(&joint_b);
		od_free(u.prompt);
		tiny_unload(&t);
	}
}

static void test_experts_elsewhere(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result whole, other;
		struct elsewhere w;
		struct od_seq_state *seq;
		struct engine e;

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, 50, &whole);
		engine_open(&e, &t, 2, OD_CPU_AUTO);
		elsewhere_open(&w, &t);
		e.runner = &w.runner;
		seq = new_seq(&e);
		result_new(&other, &t);
		run_chunks(&e, seq, 0, 50, &other);
		same(&t, &whole, &other, "experts of another device");
		od_seq_state_free(seq);
		elsewhere_close(&w);
		engine_close(&e);
		result_free(&whole);
		result_free(&other);
		tiny_unload(&t);
	}
}

/* ---- Embeddings in a file ---- */

struct table_in_file {
	unsigned char *bytes; /* [n][row_bytes] */
	uint64_t row_bytes;
	uint32_t n;
	uint32_t n_good; /* reads until one fails */
	size_t n_read;
};

static int read_from_file(void *arg, uint32_t row, void *to, struct od_err *err)
{
	struct table_in_file *f = arg;

	assert_true(row < f->n);
	if (f->n_good-- == 0)
		return od_fail(err, OD_ERR_IO, "a disk error of the test");
	memcpy(to, f->bytes + row * f->row_bytes, f->row_bytes);
	f->n_read++;
	return OD_OK;
}

/* Takes a table from the device. Returns the bytes of a row; 0: the model has none. */
static uint64_t leave_in_file(struct table_in_file *f, struct od_device *d, struct od_weight *table,
			      struct od_row_reader *reader)
{
	*f = (struct table_in_file){ 0 };
	if (table->data.buf == NULL)
		return 0;
	f->row_bytes = od_row_bytes(table->dtype, table->n_in);
	f->n = (uint32_t)table->n_out;
	f->n_good = UINT32_MAX;
	f->bytes = copy_at(d, table->data, f->n * f->row_bytes);
	table->data = (struct od_ref){ 0 };
	*reader = (struct od_row_reader){ .read = read_from_file, .arg = f };
	return f->row_bytes;
}

/* A step that fails because a row cannot be read has done nothing; one that is given up when it has begun leaves its
 * rows to the next. */
static void disturb(struct engine *e, struct od_seq_state *seq, struct table_in_file *f)
{
	struct od_row rows[5];
	struct od_err err;

	for (uint32_t i = 0; i < 5; i++)
		rows[i] = (struct od_row){ seq, i, other_token(e->t, i) };
	f->n_good = 3;
	assert_int_equal(od_forward_begin(e->forward, 6, rows, 5, &err), OD_ERR_IO);
	assert_string_equal(err.msg, "a disk error of the test");
	f->n_good = UINT32_MAX;
	must(od_forward_begin(e->forward, 6, rows, 5, &err), &err);
	assert_int_equal(od_seq_state_length(seq), 0);
}

static void test_embeddings_in_a_file(void **state)
{
	size_t n_layer_tables = 0;

	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct table_in_file embed, layer_embed;
		struct od_seq_state *seq;
		struct result whole, rows;
		struct od_dense dense;
		struct od_err err = { 0 };
		struct tiny_model t;
		struct engine e;
		uint64_t bytes;

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, 50, &whole);
		engine_open(&e, &t, 2, OD_CPU_AUTO);
		bytes = od_forward_bytes(&e.opts);
		dense = e.weights.dense;
		e.opts.embed_row_bytes = leave_in_file(&embed, e.device, &dense.embed, &dense.embed_reader);
		e.opts.layer_embed_row_bytes =
			leave_in_file(&layer_embed, e.device, &dense.layer_embed, &dense.layer_embed_reader);
		e.opts.dense = &dense;
		assert_in_range(od_forward_bytes(&e.opts) - bytes,
				od_staged_bytes(e.device, MAX_ROWS * (embed.row_bytes + layer_embed.row_bytes)) - 256,
				od_staged_bytes(e.device, MAX_ROWS * (embed.row_bytes + layer_embed.row_bytes)) + 256);
		od_forward_free(e.forward);
		must(od_forward_new(&e.forward, &e.opts, &err), &err);
		seq = new_seq(&e);
		result_new(&rows, &t);
		disturb(&e, seq, &embed);
		if (layer_embed.bytes != NULL)
			disturb(&e, seq, &layer_embed);
		n_layer_tables += layer_embed.bytes != NULL;
		embed.n_read = 0;
		run_chunks(&e, seq, 0, 7, &rows);
		assert_int_equal(embed.n_read, t.n_prompt);
		same(&t, &whole, &rows, "embeddings in a file");
		od_seq_state_free(seq);
		engine_close(&e);
		free(embed.bytes);
		free(layer_embed.bytes);
		result_free(&whole);
		result_free(&rows);
		tiny_unload(&t);
	}
	assert_true(n_layer_tables > 0);
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
		cmocka_unit_test(test_matches_reference),
		cmocka_unit_test(test_matches_double),
		cmocka_unit_test(test_profile_bf16_rounds),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_shared_weights),
		cmocka_unit_test(test_two_sequences),
		cmocka_unit_test(test_experts_elsewhere),
		cmocka_unit_test(test_embeddings_in_a_file),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}
