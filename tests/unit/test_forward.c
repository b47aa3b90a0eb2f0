/* The forward pass against an independent float64 reference, and everything a row's result must not depend
 * on: chunks, threads, other sequences, kernels, where experts run, a repeated call (design section 4). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/model/resident.h"
#include "tests/unit/config_util.h"
#include "tests/unit/device_util.h"
#include "tests/unit/naive_model.h"

#define MAX_ROWS 512
#define CTX 320
#define SEQUENCES 2

/* Beside the models that the reference knows: small ones of the other families, for what must not depend on anything. */
static const struct {
	const char *name;
	size_t n_prompt;
	const char *config;
} made[] = {
	{ "qwen3_dense_layers", 30,
	  "{\"model_type\":\"qwen3_moe\",\"hidden_size\":40,\"intermediate_size\":52,\"moe_intermediate_size\":20,"
	  "\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,\"num_experts\":7,"
	  "\"num_experts_per_tok\":3,\"norm_topk_prob\":true,\"mlp_only_layers\":[0,4],\"rms_norm_eps\":1e-6,\"vocab_size\":48,"
	  "\"max_position_embeddings\":512,\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
	  "\"original_max_position_embeddings\":64}}" },
	{ "qwen2_shared_gate", 90,
	  "{\"model_type\":\"qwen2_moe\",\"hidden_size\":40,\"intermediate_size\":28,\"moe_intermediate_size\":20,"
	  "\"shared_expert_intermediate_size\":36,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
	  "\"num_experts\":6,\"num_experts_per_tok\":2,\"decoder_sparse_step\":2,\"use_sliding_window\":true,\"sliding_"
	  "window\":9,"
	  "\"max_window_layers\":3,\"rms_norm_eps\":1e-6,\"vocab_size\":48,\"max_position_embeddings\":512,"
	  "\"rope_theta\":10000.0}" },
	{ "olmoe_clip", 20,
	  "{\"model_type\":\"olmoe\",\"hidden_size\":32,\"intermediate_size\":24,\"num_hidden_layers\":3,"
	  "\"num_attention_heads\":4,\"num_experts\":8,\"num_experts_per_tok\":4,\"clip_qkv\":0.75,\"attention_bias\":true,"
	  "\"rms_norm_eps\":1e-5,\"vocab_size\":48,\"max_position_embeddings\":512,\"rope_theta\":10000.0}" },
	{ "deepseek_groups", 80,
	  "{\"model_type\":\"deepseek_v2\",\"hidden_size\":40,\"intermediate_size\":44,\"moe_intermediate_size\":16,"
	  "\"num_hidden_layers\":4,\"first_k_dense_replace\":1,\"num_attention_heads\":3,\"q_lora_rank\":18,\"kv_lora_rank\":"
	  "20,"
	  "\"qk_nope_head_dim\":10,\"qk_rope_head_dim\":6,\"v_head_dim\":12,\"n_routed_experts\":12,\"n_shared_experts\":2,"
	  "\"num_experts_per_tok\":3,\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":2,"
	  "\"routed_scaling_factor\":2.5,\"rms_norm_eps\":1e-6,\"vocab_size\":48,\"max_position_embeddings\":512,"
	  "\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"mscale\":0.7,\"mscale_all_dim\":0.5,"
	  "\"original_max_position_embeddings\":64}}" },
	{ "deepseek_lite", 25,
	  "{\"model_type\":\"deepseek_v2\",\"hidden_size\":24,\"intermediate_size\":20,\"moe_intermediate_size\":16,"
	  "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"kv_lora_rank\":16,\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4,"
	  "\"v_head_dim\":8,\"n_routed_experts\":5,\"num_experts_per_tok\":2,\"rms_norm_eps\":1e-6,\"vocab_size\":48,"
	  "\"max_position_embeddings\":512,\"rope_theta\":10000}" },
};
#define N_MADE (sizeof(made) / sizeof(made[0]))

static size_t case_count(void)
{
	return tiny_count() + N_MADE + 1;
}

static void add_layer(struct od_config *c, const struct od_layer_spec *l)
{
	struct od_err err = { 0 };

	must(od_config_add_layer(c, l, &err), &err);
}

/* Layers of all sorts in one model: two mixers, two ways to turn, a window, dense layers first and last. */
static struct od_config motley_config(void)
{
	struct od_config c = uniform_config((struct uniform){ .n_layers = 0,
							      .hidden = 36,
							      .head_dim = 10,
							      .n_experts = 9,
							      .top_k = 3,
							      .intermediate = 20,
							      .vocab = 48,
							      .ctx = 512 });
	const struct od_rope rope = { .dims = 6, .neighbours = true, .theta = 500, .magnitude = 1.25f };
	struct od_layer_spec gqa = { .mixer = &od_mixer_gqa,
				     .mix = { .n_heads = 4, .n_kv_heads = 2, .k_dim = 10, .v_dim = 14, .scale = 0.3f },
				     .intermediate = 30,
				     .router = { .scale = 1 } };
	struct od_layer_spec mla = { .mixer = &od_mixer_mla,
				     .mix = { .n_heads = 3,
					      .n_kv_heads = 1,
					      .k_dim = 11,
					      .nope_dim = 5,
					      .v_dim = 7,
					      .kv_rank = 16,
					      .scale = 0.4f,
					      .norm_eps = 1e-5f },
				     .ffn = OD_FFN_MOE,
				     .router = { .n_groups = 3, .top_groups = 2, .scale = 1.5f },
				     .shared_intermediate = 24,
				     .shared_gate = true };
	struct od_err err = { 0 };

	must(od_config_add_rope(&c, &rope, &mla.mix.rope, &err), &err);
	add_layer(&c, &gqa);
	add_layer(&c, &mla);
	gqa.ffn = OD_FFN_MOE;
	gqa.mix.window = 7;
	add_layer(&c, &gqa);
	mla.mix.q_rank = 13;
	mla.ffn = OD_FFN_DENSE;
	mla.intermediate = 18;
	add_layer(&c, &mla);
	return c;
}

/* The file's, then those above: every second one in profile bf16, with weights of several formats. */
static void load_case(struct tiny_model *t, size_t i)
{
	static const enum od_dtype dtypes[] = { OD_F32, OD_BF16, OD_F16 };
	struct od_err err = { 0 };
	struct od_config cfg;
	json_t *root;

	if (i < tiny_count()) {
		tiny_load(t, i);
		return;
	}
	i -= tiny_count();
	if (i == N_MADE) {
		cfg = motley_config();
		tiny_make(t, "motley", &cfg, 77, 75);
		return;
	}
	root = json_loads(made[i].config, 0, NULL);
	assert_non_null(root);
	must(od_config_parse(&cfg, root, made[i].name, &err), &err);
	json_decref(root);
	tiny_make(t, made[i].name, &cfg, 31 + i, made[i].n_prompt);
	t->profile = i % 2 ? OD_PROFILE_BF16 : OD_PROFILE_F32;
	t->dense_dtype = dtypes[i % 3];
	t->attention_dtype = dtypes[(i + 1) % 3];
	t->expert_dtype = dtypes[(i + 2) % 3];
}

/* What a prompt's rows gave, all positions. */
struct result {
	float *logits;	  /* [n][vocab] */
	uint16_t *expert; /* [n_moe][n][top_k] */
	float *weight;	  /* [n_moe][n][top_k] */
	float *margin;	  /* [n_moe][n] */
};

struct engine {
	const struct tiny_model *t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_state_pool *state;
	struct od_forward_opts opts;
	struct od_forward *forward;
	struct od_expert_runner *resident, *runner; /* runner: the one that run_step uses */
};

/* On its device, with weights that lie anywhere. */
static void open_pass(struct engine *e, const struct tiny_weights *w, uint32_t ctx)
{
	const struct tiny_model *t = e->t;
	struct od_err err = { 0 };

	must(od_state_pool_new(&e->state, e->device, &t->cfg, t->profile, ctx, SEQUENCES, &err), &err);
	e->opts = (struct od_forward_opts){ .config = &t->cfg, .dense = &w->dense, .device = e->device,
					    .state = e->state, .profile = t->profile, .max_rows = MAX_ROWS };
	must(od_forward_new(&e->forward, &e->opts, &err), &err);
	must(od_resident_new(&e->resident, &e->opts, w->experts, &err), &err);
	e->runner = e->resident;
}

static void engine_open_ctx(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu, uint32_t ctx)
{
	*e = (struct engine){ .t = t, .device = device_new(cpu, threads) };
	tiny_place(&e->weights, t, e->device);
	open_pass(e, &e->weights, ctx);
}

static void engine_open(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu)
{
	engine_open_ctx(e, t, threads, cpu, CTX);
}

static void engine_close(struct engine *e) /* its sequences are freed already */
{
	od_resident_free(e->resident);
	od_forward_free(e->forward);
	od_state_pool_free(e->state);
	tiny_weights_free(&e->weights);
	od_device_free(e->device);
}

static struct od_seq_state *new_seq(const struct engine *e)
{
	struct od_seq_state *s;
	struct od_err err = { 0 };

	must(od_seq_state_new(&s, e->state, &err), &err);
	return s;
}

static void result_new(struct result *r, const struct tiny_model *t)
{
	size_t n = t->n_prompt, routes = t->cfg.n_moe * n * t->cfg.top_k;

	r->logits = od_alloc_array(n * t->cfg.vocab, sizeof(float));
	r->expert = od_alloc_array(routes, sizeof(uint16_t));
	r->weight = od_alloc_array(routes, sizeof(float));
	r->margin = od_alloc_array(t->cfg.n_moe * n, sizeof(float));
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
	size_t k = e->t->cfg.top_k, place = od_forward_m(e->forward) * e->t->n_prompt + at;

	memcpy(r->expert + place * k, od_forward_experts_of(e->forward, row), k * sizeof(uint16_t));
	memcpy(r->weight + place * k, od_forward_weights_of(e->forward, row), k * sizeof(float));
	r->margin[place] = od_forward_margin_of(e->forward, row);
}

static void note_logits(const struct engine *e, size_t row, size_t at, struct result *r)
{
	struct od_err err = { 0 };
	float *logits;

	must(od_forward_logits(e->forward, row, &logits, &err), &err);
	memcpy(r->logits + at * e->t->cfg.vocab, logits, e->t->cfg.vocab * sizeof(*logits));
}

/* One step up to its end; row i's results go to its position of r[i]. */
static void run_step_to(struct engine *e, const struct od_row *rows, size_t n, struct result **r)
{
	struct od_err err = { 0 };

	must(od_forward_begin(e->forward, 7, rows, n, &err), &err);
	while (!od_forward_done(e->forward)) {
		od_forward_attention(e->forward);
		if (!od_forward_routed(e->forward))
			continue;
		must(od_forward_fetch(e->forward, OD_FETCH_ROUTES, &err), &err);
		for (size_t i = 0; i < n; i++)
			note_routes(e, i, rows[i].position, r[i]);
		must(od_forward_experts(e->forward, e->runner, &err), &err);
	}
	for (size_t i = 0; i < n; i++)
		note_logits(e, i, rows[i].position, r[i]);
}

static void run_step(struct engine *e, const struct od_row *rows, size_t n, struct result **r)
{
	struct od_err err = { 0 };

	run_step_to(e, rows, n, r);
	must(od_forward_end(e->forward, NULL, &err), &err);
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
	struct od_seq_state *seq;
	struct engine e;

	result_new(out, t);
	engine_open(&e, t, threads, cpu);
	seq = new_seq(&e);
	run_chunks(&e, seq, 0, chunk, out);
	od_seq_state_free(seq);
	engine_close(&e);
}

static void same(const struct tiny_model *t, const struct result *a, const struct result *b, const char *what)
{
	size_t n = t->n_prompt, routes = t->cfg.n_moe * n * t->cfg.top_k;

	if (memcmp(a->logits, b->logits, n * t->cfg.vocab * sizeof(float)) != 0)
		fail_msg("%s: %s: logits differ", t->name, what);
	if (memcmp(a->expert, b->expert, routes * sizeof(uint16_t)) != 0 ||
	    memcmp(a->weight, b->weight, routes * sizeof(float)) != 0 ||
	    memcmp(a->margin, b->margin, t->cfg.n_moe * n * sizeof(float)) != 0)
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
	assert_true(n >= N_MADE + 4);
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
		struct result whole, part;

		load_case(&t, i);
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
		open_pass(&e[1], &e[0].weights, CTX);
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

/* Another prompt of the same model, so that two sequences differ. */
static int32_t other_token(const struct tiny_model *t, size_t i)
{
	return (int32_t)((t->prompt[i] * 5 + 3 + (int32_t)i) % (int32_t)t->cfg.vocab);
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
	run_step(e, some, n_some, to);
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
		run_step(&e, rows, n, r); /* some rows in one step, more in the next */
		run_step(&e, rows + n, n / 2, r + n);
		run_alternate(&e, rows + n + n / 2, n - n / 2, 1, r + n + n / 2); /* then those of one sequence, of the other */
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

/* Experts on a device that is not the forward pass's, as those of a cluster are: rows and routes come from the host, and
 * the experts' outputs go there. */
struct elsewhere {
	struct od_expert_runner runner;
	const struct tiny_model *t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_buf *x, *expert, *y, *scratch;
};

static int run_elsewhere(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct elsewhere *w = (struct elsewhere *)runner;
	const struct od_config *c = &w->t->cfg;
	const struct od_op op = {
		.kind = OD_OP_EXPERTS,
		.profile = w->t->profile,
		.n_rows = (uint32_t)call->n_rows,
		.experts = { .expert = w->weights.experts + (size_t)call->m * c->n_experts,
			     .x = od_buf_ref(w->x, 0),
			     .choice = od_buf_ref(w->expert, 0),
			     .y = od_buf_ref(w->y, 0),
			     .scratch = od_buf_ref(w->scratch, 0),
			     .n_experts = c->n_experts,
			     .top_k = c->top_k,
			     .hidden = c->hidden },
	};
	size_t n = call->n_rows;

	od_device_put(w->device, OD_QUEUE_COMPUTE, op.experts.x, call->x, n * c->hidden * sizeof(float));
	od_device_put(w->device, OD_QUEUE_COMPUTE, op.experts.choice, call->expert, n * c->top_k * sizeof(uint16_t));
	od_device_run(w->device, OD_QUEUE_COMPUTE, &op);
	od_device_get(w->device, OD_QUEUE_COMPUTE, call->y, op.experts.y, n * c->top_k * c->hidden * sizeof(float));
	return od_device_sync(w->device, err);
}

static void elsewhere_open(struct elsewhere *w, const struct tiny_model *t)
{
	const struct od_config *c = &t->cfg;

	*w = (struct elsewhere){ .runner = { .run = run_elsewhere }, .t = t, .device = device_new(OD_CPU_AUTO, 1) };
	tiny_place(&w->weights, t, w->device);
	w->x = buf_new(w->device, MAX_ROWS * c->hidden * sizeof(float));
	w->expert = buf_new(w->device, MAX_ROWS * c->top_k * sizeof(uint16_t));
	w->y = buf_new(w->device, MAX_ROWS * (uint64_t)c->top_k * c->hidden * sizeof(float));
	w->scratch = buf_new(w->device, od_experts_scratch_bytes(c->hidden, c->intermediate, c->n_experts, c->top_k, MAX_ROWS));
}

static void elsewhere_close(struct elsewhere *w)
{
	od_buf_free(w->x);
	od_buf_free(w->expert);
	od_buf_free(w->y);
	od_buf_free(w->scratch);
	tiny_weights_free(&w->weights);
	od_device_free(w->device);
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

/* A runner that fails at first in every layer, having scribbled over what it must fill. */
struct flaky {
	struct od_expert_runner runner;
	struct od_expert_runner *real; /* works where runner does */
	struct od_device *device;
	unsigned calls, fails;
	size_t y_floats;
};

static int flaky_run(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct flaky *f = (struct flaky *)runner;
	float *bad;

	assert_int_equal(call->step, 7);
	assert_int_equal(call->x == NULL, f->runner.on_device);
	assert_int_equal(call->expert == NULL, f->runner.on_device);
	assert_int_equal(call->y == NULL, f->runner.on_device);
	if (f->calls++ % 3 == 2)
		return f->real->run(f->real, call, err);
	f->fails++;
	bad = od_alloc_array(f->y_floats, sizeof(*bad));
	for (size_t i = 0; i < f->y_floats; i++)
		bad[i] = 1e30f;
	if (f->runner.on_device)
		put_at(f->device, call->y_at, bad, f->y_floats * sizeof(*bad));
	else
		memcpy(call->y, bad, f->y_floats * sizeof(*bad));
	od_free(bad);
	return od_fail(err, OD_ERR_UNREACHABLE, "no worker is left");
}

static void retry(const struct tiny_model *t, struct engine *e, struct flaky *flaky, struct result *again)
{
	struct od_seq_state *seq = new_seq(e);
	struct od_row rows[MAX_ROWS];

	flaky->device = e->device;
	flaky->y_floats = t->n_prompt * t->cfg.top_k * t->cfg.hidden;
	for (size_t i = 0; i < t->n_prompt; i++)
		rows[i] = (struct od_row){ seq, (uint32_t)i, t->prompt[i] };
	assert_int_equal(od_forward_begin(e->forward, 7, rows, t->n_prompt, NULL), OD_OK);
	while (!od_forward_done(e->forward)) {
		uint32_t layer = od_forward_layer(e->forward);
		struct od_err err;

		od_forward_attention(e->forward);
		assert_int_equal(od_forward_fetch(e->forward, OD_FETCH_ROUTES, NULL), OD_OK);
		for (size_t i = 0; i < t->n_prompt; i++)
			note_routes(e, i, i, again);
		while (od_forward_experts(e->forward, &flaky->runner, &err) != OD_OK) {
			assert_string_equal(err.msg, "no worker is left");
			assert_int_equal(od_forward_layer(e->forward), layer);
			assert_false(od_forward_done(e->forward));
		}
		assert_int_equal(od_forward_layer(e->forward), layer + 1);
	}
	assert_int_equal(flaky->fails, 2 * t->cfg.n_layers);
	for (size_t i = 0; i < t->n_prompt; i++)
		note_logits(e, i, i, again);
	assert_int_equal(od_seq_state_length(seq), 0); /* nothing is committed by itself */
	od_seq_state_free(seq);
}

static void test_error_then_retry(void **state)
{
	(void)state;
	for (int on_device = 0; on_device < 2; on_device++) {
		struct tiny_model t;
		struct result whole, again;
		struct elsewhere w;
		struct engine e;
		struct flaky flaky = { .runner = { .on_device = on_device, .run = flaky_run } };

		tiny_load_named(&t, "grouped_queries");
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		elsewhere_open(&w, &t);
		flaky.real = on_device ? e.resident : &w.runner;
		result_new(&again, &t);
		retry(&t, &e, &flaky, &again);
		same(&t, &whole, &again, "retry");
		elsewhere_close(&w);
		engine_close(&e);
		result_free(&whole);
		result_free(&again);
		tiny_unload(&t);
	}
}

/* What a layer leaves, against what is made of it: probabilities give the weights, residuals the rows of the experts. */
struct check_rows {
	struct od_expert_runner runner;
	struct elsewhere *real;
	struct engine *e;
	const struct od_backend *be;
};

static int check_and_run(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	const struct check_rows *k = (struct check_rows *)runner;
	const struct od_config *c = &k->e->t->cfg;
	const struct od_router_spec *router = &od_config_moe_layer(c, call->m)->router;
	const struct od_forward *f = k->e->forward;
	float *norm = copy_at(k->e->device, k->e->weights.dense.layer[c->layer_of[call->m]].w[OD_ROLE_FFN_NORM].data,
			      c->hidden * sizeof(*norm));
	float *want = od_alloc_array(c->hidden, sizeof(*want));

	for (size_t r = 0; r < call->n_rows; r++) {
		const float *p = od_forward_probabilities_of(f, r);
		const uint16_t *expert = od_forward_experts_of(f, r);
		float sum = 0, all = 0;

		for (size_t i = 0; i < c->n_experts; i++)
			all += p[i];
		assert_true(router->n_groups > 0 ? all < 1 : fabsf(all - 1) < 1e-5f);
		for (size_t i = 0; i < c->top_k; i++)
			sum += p[expert[i]];
		for (size_t i = 0; i < c->top_k; i++)
			assert_true(od_forward_weights_of(f, r)[i] ==
				    p[expert[i]] / (router->renormalise ? sum : 1) * router->scale);
		assert_memory_equal(call->expert + r * c->top_k, expert, c->top_k * sizeof(*expert));
		k->be->rmsnorm(want, od_forward_residual_of(f, r), norm, c->hidden, c->rms_eps);
		if (k->e->t->profile == OD_PROFILE_BF16)
			k->be->round_bf16(want, c->hidden);
		assert_memory_equal(call->x + r * c->hidden, want, c->hidden * sizeof(*want));
	}
	free(norm);
	od_free(want);
	return run_elsewhere(&k->real->runner, call, err);
}

static void test_fetch(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct elsewhere w;
		struct engine e;
		struct od_row rows[20];
		struct check_rows check = { .runner.run = check_and_run, .real = &w, .e = &e };
		struct od_seq_state *seq;

		load_case(&t, i);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		elsewhere_open(&w, &t);
		assert_int_equal(od_backend_cpu(&check.be, OD_CPU_AUTO, t.profile, NULL), OD_OK);
		seq = new_seq(&e);
		for (size_t r = 0; r < 20; r++)
			rows[r] = (struct od_row){ seq, (uint32_t)r, t.prompt[r % t.n_prompt] };
		assert_int_equal(od_forward_begin(e.forward, 7, rows, 20, NULL), OD_OK);
		while (!od_forward_done(e.forward)) {
			od_forward_attention(e.forward);
			if (!od_forward_routed(e.forward))
				continue;
			assert_int_equal(od_forward_fetch(e.forward, OD_FETCH_PROBABILITIES | OD_FETCH_RESIDUALS, NULL), OD_OK);
			assert_int_equal(od_forward_experts(e.forward, &check.runner, NULL), OD_OK);
		}
		od_seq_state_free(seq);
		elsewhere_close(&w);
		engine_close(&e);
		tiny_unload(&t);
	}
}

/* A wait is a round trip to the device: a resident step has one, for its logits; with experts elsewhere each layer has
 * one more; what is on the host already costs none. */
static void test_waits(void **state)
{
	static const unsigned all = OD_FETCH_ROUTES | OD_FETCH_PROBABILITIES | OD_FETCH_RESIDUALS | OD_FETCH_ROWS;
	struct tiny_model t;
	struct elsewhere w;
	struct engine e;
	struct od_seq_state *seq;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 2, OD_CPU_AUTO);
	elsewhere_open(&w, &t);
	seq = new_seq(&e);
	for (uint32_t position = 0; position < 6; position++) {
		const struct od_row row = { seq, position, t.prompt[position] };
		const bool resident = position < 3, fetch = position % 3 == 1, fetch_more = position % 3 == 2;
		uint64_t before = od_device_waits(e.device);
		float *logits;

		assert_int_equal(od_forward_begin(e.forward, 7, &row, 1, NULL), OD_OK);
		while (!od_forward_done(e.forward)) {
			od_forward_attention(e.forward);
			for (int again = 0; fetch && again < 2; again++)
				assert_int_equal(od_forward_fetch(e.forward, all, NULL), OD_OK);
			if (fetch_more) {
				assert_int_equal(od_forward_fetch(e.forward, OD_FETCH_ROUTES, NULL), OD_OK);
				assert_int_equal(od_forward_fetch(e.forward, OD_FETCH_ROUTES | OD_FETCH_ROWS, NULL), OD_OK);
			}
			assert_int_equal(od_forward_experts(e.forward, resident ? e.resident : &w.runner, NULL), OD_OK);
		}
		assert_int_equal(od_forward_logits(e.forward, 0, &logits, NULL), OD_OK);
		assert_int_equal(od_forward_end(e.forward, NULL, NULL), OD_OK);
		assert_int_equal(od_device_waits(e.device) - before,
				 1 + (fetch_more ? 2u : fetch || !resident) * t.cfg.n_layers);
	}
	/* Without logits the end waits, so that what it makes part of the sequence is there. */
	for (uint32_t position = 6; position < 9; position++) {
		const struct od_row row = { seq, position, t.prompt[position] };
		uint64_t before = od_device_waits(e.device);

		assert_int_equal(od_forward_begin(e.forward, 7, &row, 1, NULL), OD_OK);
		while (!od_forward_done(e.forward)) {
			od_forward_attention(e.forward);
			assert_int_equal(od_forward_experts(e.forward, e.resident, NULL), OD_OK);
		}
		assert_int_equal(od_forward_end(e.forward, NULL, NULL), OD_OK);
		assert_int_equal(od_device_waits(e.device) - before, 1);
	}
	od_seq_state_free(seq);
	elsewhere_close(&w);
	engine_close(&e);
	tiny_unload(&t);
}

/* Truncated and fed again after other tokens stood there, the sequence is as new. */
static void test_truncate(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t, u;
		struct result whole, other, again;
		struct od_seq_state *seq;
		struct engine e;
		size_t keep = 5;

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		u = t;
		u.prompt = od_alloc_array(t.n_prompt, sizeof(*u.prompt));
		for (size_t p = 0; p < t.n_prompt; p++)
			u.prompt[p] = p < keep ? t.prompt[p] : other_token(&t, p);
		result_new(&other, &t);
		result_new(&again, &t);
		memcpy(again.logits, whole.logits, keep * t.cfg.vocab * sizeof(float));
		engine_open(&e, &u, 1, OD_CPU_AUTO);
		seq = new_seq(&e);
		run_chunks(&e, seq, 0, MAX_ROWS, &other);
		e.t = &t;
		od_seq_state_set_length(seq, (uint32_t)keep);
		run_chunks(&e, seq, keep, MAX_ROWS, &again);
		assert_memory_equal(again.logits, whole.logits, t.n_prompt * t.cfg.vocab * sizeof(float));
		assert_memory_not_equal(other.logits, whole.logits, t.n_prompt * t.cfg.vocab * sizeof(float));
		od_seq_state_free(seq);
		engine_close(&e);
		result_free(&whole);
		result_free(&other);
		result_free(&again);
		od_free(u.prompt);
		tiny_unload(&t);
	}
}

/* What is not kept of a step has left nothing behind, in steps of any size and of both sequences. */
static void test_keeps_in_part(void **state)
{
	(void)state;
	for (size_t i = 0; i < case_count(); i++) {
		struct tiny_model t;
		struct result whole, part, ignored, *r[MAX_ROWS];
		struct od_row rows[MAX_ROWS];
		struct od_seq_state *seq[2];
		struct engine e;
		uint32_t kept[2] = { 0 };

		load_case(&t, i);
		run_prompt(&t, 1, OD_CPU_AUTO, MAX_ROWS, &whole);
		engine_open(&e, &t, 1, OD_CPU_AUTO);
		result_new(&part, &t);
		result_new(&ignored, &t);
		seq[0] = new_seq(&e);
		seq[1] = new_seq(&e);
		for (uint32_t round = 0, n; od_seq_state_length(seq[0]) < t.n_prompt; round++) {
			const uint32_t first = od_seq_state_length(seq[0]), left = (uint32_t)t.n_prompt - first;
			const uint32_t other = od_seq_state_length(seq[1]),
				       n_other = round % 3 < t.n_prompt - other ? round % 3 : 0;
			struct od_err err = { 0 };

			n = 1 + round * 5 % 23 < left ? 1 + round * 5 % 23 : left;
			kept[0] = round % (n + 1);
			for (uint32_t k = 0; k < n + n_other; k++) {
				const uint32_t at = k < n ? first + k : other + k - n;

				rows[k] = (struct od_row){ seq[k >= n], at,
							   k < kept[0] ? t.prompt[at] : other_token(&t, at) };
				r[k] = k < kept[0] ? &part : &ignored;
			}
			kept[1] = n_other / 2;
			run_step_to(&e, rows, n + n_other, r);
			must(od_forward_end(e.forward, kept, &err), &err);
			assert_int_equal(od_seq_state_length(seq[0]), first + kept[0]);
			assert_int_equal(od_seq_state_length(seq[1]), other + kept[1]);
		}
		same(&t, &whole, &part, "kept in part");
		od_seq_state_free(seq[0]);
		od_seq_state_free(seq[1]);
		engine_close(&e);
		result_free(&whole);
		result_free(&part);
		result_free(&ignored);
		tiny_unload(&t);
	}
}

/* Asks the device for an expert that there is not. */
struct broken {
	struct od_expert_runner runner; /* first */
	struct engine *e;
};

static int run_broken(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct engine *e = ((struct broken *)runner)->e;
	const uint16_t none = 999;

	put_at(e->device, call->expert_at, &none, sizeof(none));
	return e->resident->run(e->resident, call, err);
}

/* What goes wrong on the device shows at the end of the step, or at its logits, and nothing becomes part of a sequence. */
static void test_failed_step(void **state)
{
	struct tiny_model t;
	struct engine e;
	struct broken broken = { .runner = { .on_device = true, .run = run_broken }, .e = &e };
	struct od_seq_state *seq;
	struct od_err err = { 0 };

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	seq = new_seq(&e);
	for (uint32_t i = 0; i < 4; i++) {
		const struct od_row row = { seq, i / 2, t.prompt[i / 2] };
		float *logits;

		for (int fails = 1; fails >= 0; fails--) {
			must(od_forward_begin(e.forward, 7, &row, 1, &err), &err);
			while (!od_forward_done(e.forward)) {
				const bool last = od_forward_layer(e.forward) == t.cfg.n_layers - 1;

				od_forward_attention(e.forward);
				must(od_forward_experts(e.forward, fails && last ? &broken.runner : e.resident, &err), &err);
			}
			if (i % 2) {
				assert_int_equal(od_forward_end(e.forward, NULL, &err), fails ? OD_ERR_RANGE : OD_OK);
				assert_int_equal(od_seq_state_length(seq), i / 2 + !fails);
			} else {
				assert_int_equal(od_forward_logits(e.forward, 0, &logits, &err), fails ? OD_ERR_RANGE : OD_OK);
				assert_int_equal(od_seq_state_length(seq), i / 2);
			}
			assert_true(!fails || strstr(err.msg, "found 999") != NULL);
		}
	}
	od_seq_state_free(seq);
	engine_close(&e);
	tiny_unload(&t);
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
	struct od_state_pool *pool;
	struct od_seq_state *seq, *other;
	struct od_row *rows;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open_ctx(&e, &t, 1, OD_CPU_AUTO, 8);
	seq = new_seq(&e);
	assert_int_equal(od_state_pool_new(&pool, e.device, &t.cfg, t.profile, 8, 1, NULL), OD_OK);
	assert_int_equal(od_seq_state_new(&other, pool, NULL), OD_OK);
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
	refuse(&e, rows, 2, OD_ERR_MISMATCH, "row 1: its sequence state is another forward pass's");
	od_seq_state_set_length(seq, 8);
	refuse(&e, rows, 1, OD_ERR_RANGE, "row 0: position: expected 8, found 0");
	od_free(rows);
	od_seq_state_free(seq);
	od_seq_state_free(other);
	od_state_pool_free(pool);
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
	uint64_t one, tables;

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
	opts.max_rows = 1;
	opts.state = NULL;
	tables = 2 * SEQUENCES * od_state_pages(CTX) * sizeof(uint32_t);
	assert_true(od_forward_bytes(&opts) + tables <= one + 64 && od_forward_bytes(&opts) + tables >= one - 64);
	opts.state = e.state;
	opts.max_rows = SIZE_MAX;
	assert_true(od_forward_bytes(&opts) == UINT64_MAX);
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	assert_null(f);
	assert_int_equal(od_resident_new(&runner, &opts, e.weights.experts, &err), OD_ERR_RANGE);
	assert_null(runner);
	opts.max_rows = 0;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_RANGE);
	opts.max_rows = 1;
	dense = e.weights.dense;
	dense.head.n_out--;
	opts.dense = &dense;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	assert_null(f);
	for (enum od_dtype small = OD_INT8; small <= OD_DTYPE_LAST; small++) { /* its rows are read one by one */
		dense = e.weights.dense;
		dense.embed.dtype = small;
		assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	}
	dense = e.weights.dense;
	dense.final_norm.buf = NULL;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_SHAPE);
	dense = e.weights.dense;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_OK);
	od_forward_free(f);
	od_forward_free(NULL);
	od_resident_free(NULL);
	engine_close(&e);
	tiny_unload(&t);
}

/* The same streams, and fixed state that nothing here knows of. */
static void keep_more(const struct od_mixer *mix, struct od_state_spec *out)
{
	od_mixer_gqa.state(mix, out);
	out->fixed_bytes = 8;
}

static const struct od_mixer_ops keeps_more = { .name = "more", .state = keep_more };

/* Keys and values are stored as the profile has them, in rows of this model. */
static void test_state_of_another_kind(void **state)
{
	struct tiny_model t, other;
	struct engine e;
	struct od_forward_opts opts;
	struct od_forward *f;
	struct od_state_pool *pool;
	struct od_err err;

	(void)state;
	tiny_load_named(&t, "grouped_queries");
	engine_open(&e, &t, 1, OD_CPU_AUTO);
	opts = e.opts;
	opts.profile = OD_PROFILE_BF16;
	assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_MISMATCH);
	assert_non_null(strstr(err.msg, "expected BF16, found F32"));
	assert_null(f);
	for (int i = 0; i < 7; i++) {
		const struct od_mixer *mix = &t.cfg.kind[0].mix;

		other = t;
		opts = e.opts;
		switch (i) {
		case 0: other.cfg.n_layers++; break;
		case 1: other.cfg.n_layers--; break;
		case 2: other.cfg.kind[0].mix.k_dim += 2; break;
		case 3: other.cfg.kind[0].mix.v_dim -= 2; break;
		case 4: /* one stream of the same width as the keys' */
			other.cfg.kind[0].mixer = &od_mixer_mla;
			other.cfg.kind[0].mix.kv_rank = mix->n_kv_heads * mix->k_dim - 2;
			other.cfg.kind[0].mix.nope_dim = mix->k_dim - 2;
			break;
		case 5: other.cfg.kind[0].mixer = &keeps_more; break;
		case 6: break;
		}
		assert_int_equal(od_state_pool_new(&pool, e.device, &other.cfg, t.profile, CTX, 1, &err), OD_OK);
		opts.state = pool;
		if (i < 6) {
			assert_int_equal(od_forward_new(&f, &opts, &err), OD_ERR_MISMATCH);
			assert_null(f);
		} else {
			assert_int_equal(od_forward_new(&f, &opts, &err), OD_OK);
			od_forward_free(f);
		}
		od_state_pool_free(pool);
	}
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
		cmocka_unit_test(test_matches_double),
		cmocka_unit_test(test_chunks),		  cmocka_unit_test(test_threads),
		cmocka_unit_test(test_kernels),		  cmocka_unit_test(test_two_sequences),
		cmocka_unit_test(test_error_then_retry),  cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_experts_elsewhere), cmocka_unit_test(test_fetch),
		cmocka_unit_test(test_waits),		  cmocka_unit_test(test_begin_checks),
		cmocka_unit_test(test_new_checks),	  cmocka_unit_test(test_state_of_another_kind),
		cmocka_unit_test(test_shared_weights),	  cmocka_unit_test(test_keeps_in_part),
		cmocka_unit_test(test_failed_step),
	};

	return cmocka_run_group_tests(tests, NULL, close_file);
}
