#include "tests/unit/forward_world.h"

#include "common/compute/scratch.h"
#include "tests/unit/config_util.h"
#include "tests/unit/state_util.h"

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
	{ "deepseek_v3_groups", 70,
	  "{\"model_type\":\"deepseek_v3\",\"hidden_size\":40,\"intermediate_size\":44,\"moe_intermediate_size\":16,"
	  "\"num_hidden_layers\":3,\"first_k_dense_replace\":1,\"num_attention_heads\":3,\"q_lora_rank\":18,\"kv_lora_rank\":"
	  "20,"
	  "\"qk_nope_head_dim\":10,\"qk_rope_head_dim\":6,\"v_head_dim\":12,\"n_routed_experts\":12,\"n_shared_experts\":1,"
	  "\"num_experts_per_tok\":3,\"n_group\":4,\"topk_group\":2,\"rms_norm_eps\":1e-6,\"vocab_size\":48,"
	  "\"max_position_embeddings\":512,\"rope_theta\":10000}" },
	{ "glm_norms_in_part", 40,
	  "{\"model_type\":\"glm4_moe\",\"hidden_size\":36,\"intermediate_size\":52,\"moe_intermediate_size\":20,"
	  "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,\"n_routed_experts\":8,"
	  "\"num_experts_per_tok\":3,\"n_group\":1,\"topk_group\":1,\"use_qk_norm\":true,\"attention_bias\":true,"
	  "\"rms_norm_eps\":1e-5,\"vocab_size\":48,\"max_position_embeddings\":512,\"rope_theta\":10000.0}" },
	{ "minimax_rotary", 60,
	  "{\"model_type\":\"minimax_m2\",\"hidden_size\":32,\"intermediate_size\":20,\"num_hidden_layers\":3,"
	  "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":14,\"rotary_dim\":6,\"num_local_experts\":9,"
	  "\"num_experts_per_tok\":4,\"rms_norm_eps\":1e-6,\"vocab_size\":48,\"max_position_embeddings\":512,"
	  "\"rope_theta\":10000.0}" },
	{ "gemma4_side_by_side", 50,
	  "{\"model_type\":\"gemma4_text\",\"enable_moe_block\":true,\"hidden_size_per_layer_input\":0,\"hidden_size\":40,"
	  "\"intermediate_size\":28,\"moe_intermediate_size\":20,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
	  "\"num_key_value_heads\":2,\"num_global_key_value_heads\":1,\"head_dim\":10,\"global_head_dim\":16,"
	  "\"attention_k_eq_v\":true,\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"],"
	  "\"sliding_window\":9,\"num_experts\":7,\"top_k_experts\":3,\"final_logit_softcapping\":3.0,\"rms_norm_eps\":1e-6,"
	  "\"vocab_size\":48,\"max_position_embeddings\":512}" },
	{ "gemma4_inputs_and_shared_kv", 60,
	  "{\"model_type\":\"gemma4_text\",\"enable_moe_block\":true,\"hidden_size_per_layer_input\":6,"
	  "\"vocab_size_per_layer_input\":48,\"num_kv_shared_layers\":2,\"use_double_wide_mlp\":true,\"hidden_size\":40,"
	  "\"intermediate_size\":28,\"moe_intermediate_size\":20,\"num_hidden_layers\":5,\"num_attention_heads\":4,"
	  "\"num_key_value_heads\":2,\"head_dim\":10,\"global_head_dim\":16,\"layer_types\":[\"sliding_attention\","
	  "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"],\"sliding_window\":9,"
	  "\"num_experts\":7,\"top_k_experts\":3,\"final_logit_softcapping\":3.0,\"rms_norm_eps\":1e-3,"
	  "\"vocab_size\":48,\"max_position_embeddings\":512}" },
};
#define N_PARSED (sizeof(made) / sizeof(made[0]))
_Static_assert(N_PARSED + 1 == N_MADE, "and one that is not parsed");

size_t case_count(void)
{
	return tiny_count() + N_MADE;
}

static void add_layer(struct od_config *c, const struct od_layer_spec *l)
{
	struct od_err err = { 0 };

	must(od_config_add_layer(c, l, &err), &err);
}

/* Layers of all sorts in one model: two mixers, routers and ways to turn, a window, dense layers first and last; norms
 * and a head with biases. */
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
				     .router = { .renormalise = true, .scale = 1, .bias = true, .sum_eps = 0.25f } };
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
				     .router = { .n_groups = 3,
						 .top_groups = 2,
						 .scale = 1.5f,
						 .score = OD_SCORE_SIGMOID,
						 .bias = true,
						 .group_two = true },
				     .shared_intermediate = 24,
				     .shared_gate = true };
	struct od_err err = { 0 };

	c.norm = OD_NORM_LAYER;
	c.head_bias = true;
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

void load_case(struct tiny_model *t, size_t i)
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
	if (i == N_PARSED) {
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

void open_forward_pass(struct engine *e, const struct tiny_weights *w, uint32_t ctx)
{
	const struct tiny_model *t = e->t;
	struct od_err err = { 0 };

	must(od_state_pool_new(&e->state, e->device, &t->cfg, t->profile, ctx, SEQUENCES,
			       SEQUENCES * od_state_pages(ctx), &err),
	     &err);
	e->opts = (struct od_forward_opts){ .config = &t->cfg,
					    .dense = &w->dense,
					    .device = e->device,
					    .state = e->state,
					    .profile = t->profile,
					    .max_rows = MAX_ROWS };
	must(od_forward_new(&e->forward, &e->opts, &err), &err);
	must(od_resident_new(&e->resident, &e->opts, w->experts, &err), &err);
	e->runner = e->resident;
}

void engine_open_ctx(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu, uint32_t ctx)
{
	*e = (struct engine){ .t = t, .device = device_new(cpu, threads) };
	tiny_put(&e->weights, t, e->device);
	open_forward_pass(e, &e->weights, ctx);
}

void engine_open(struct engine *e, const struct tiny_model *t, unsigned threads, enum od_cpu cpu)
{
	engine_open_ctx(e, t, threads, cpu, CTX);
}

void engine_close(struct engine *e)
{
	od_forward_free(e->forward); /* waits */
	od_resident_free(e->resident);
	od_state_pool_free(e->state);
	tiny_weights_free(&e->weights);
	od_device_free(e->device);
}

struct od_seq_state *new_seq(const struct engine *e)
{
	return open_seq(e->state);
}

void result_new(struct result *r, const struct tiny_model *t)
{
	size_t n = t->n_prompt, routes = t->cfg.n_moe * n * t->cfg.top_k;

	r->logits = od_alloc_array(n * t->cfg.vocab, sizeof(float));
	r->expert = od_alloc_array(routes, sizeof(uint16_t));
	r->weight = od_alloc_array(routes, sizeof(float));
	r->margin = od_alloc_array(t->cfg.n_moe * n, sizeof(float));
	assert_true(r->logits != NULL && r->expert != NULL && r->weight != NULL && r->margin != NULL);
}

void result_free(struct result *r)
{
	od_free(r->logits);
	od_free(r->expert);
	od_free(r->weight);
	od_free(r->margin);
}

void note_routes(const struct engine *e, size_t row, size_t at, struct result *r)
{
	size_t k = e->t->cfg.top_k, index = od_forward_m(e->forward) * e->t->n_prompt + at;

	memcpy(r->expert + index * k, od_forward_experts_of(e->forward, row), k * sizeof(uint16_t));
	memcpy(r->weight + index * k, od_forward_weights_of(e->forward, row), k * sizeof(float));
	r->margin[index] = od_forward_margin_of(e->forward, row);
}

void note_logits(const struct engine *e, size_t row, size_t at, struct result *r)
{
	const uint32_t one = (uint32_t)row;
	struct od_err err = { 0 };
	float *logits;

	must(od_forward_logits(e->forward, &one, 1, &logits, &err), &err);
	memcpy(r->logits + at * e->t->cfg.vocab, logits, e->t->cfg.vocab * sizeof(*logits));
}

void run_step_to(struct engine *e, const struct od_row *rows, size_t n, struct result **r)
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

void run_forward_step(struct engine *e, const struct od_row *rows, size_t n, struct result **r)
{
	struct od_err err = { 0 };

	run_step_to(e, rows, n, r);
	must(od_forward_end(e->forward, NULL, &err), &err);
}

void run_chunks(struct engine *e, struct od_seq_state *seq, size_t from, size_t chunk, struct result *out)
{
	struct od_row rows[MAX_ROWS];
	struct result *r[MAX_ROWS];

	for (size_t begin = from; begin < e->t->n_prompt; begin += chunk) {
		size_t n = e->t->n_prompt - begin < chunk ? e->t->n_prompt - begin : chunk;

		for (size_t i = 0; i < n; i++) {
			rows[i] = (struct od_row){ seq, (uint32_t)(begin + i), e->t->prompt[begin + i] };
			r[i] = out;
		}
		run_forward_step(e, rows, n, r);
	}
	assert_int_equal(od_seq_state_length(seq), e->t->n_prompt);
}

void run_prompt(const struct tiny_model *t, unsigned threads, enum od_cpu cpu, size_t chunk, struct result *out)
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

void same(const struct tiny_model *t, const struct result *a, const struct result *b, const char *what)
{
	size_t n = t->n_prompt, routes = t->cfg.n_moe * n * t->cfg.top_k;

	if (memcmp(a->logits, b->logits, n * t->cfg.vocab * sizeof(float)) != 0)
		fail_msg("%s: %s: logits differ", t->name, what);
	if (memcmp(a->expert, b->expert, routes * sizeof(uint16_t)) != 0 ||
	    memcmp(a->weight, b->weight, routes * sizeof(float)) != 0 ||
	    memcmp(a->margin, b->margin, t->cfg.n_moe * n * sizeof(float)) != 0)
		fail_msg("%s: %s: routes differ", t->name, what);
}

int32_t other_token(const struct tiny_model *t, size_t i)
{
	return (int32_t)((t->prompt[i] * 5 + 3 + (int32_t)i) % (int32_t)t->cfg.vocab);
}

/* Two halves of a step may be under way. */
static size_t y_at(const struct elsewhere *w, const struct od_moe_call *call)
{
	return call->first * w->t->cfg.top_k * w->t->cfg.hidden * sizeof(float);
}

int submit_elsewhere(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
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
			     .y = od_buf_ref(w->y, y_at(w, call)),
			     .scratch = od_buf_ref(w->scratch, 0),
			     .n_experts = c->n_experts,
			     .top_k = c->top_k,
			     .hidden = c->hidden,
			     .act = c->act },
	};
	size_t n = call->n_rows;

	(void)err;
	od_device_put(w->device, OD_QUEUE_COMPUTE, op.experts.x, call->x, n * c->hidden * sizeof(float));
	od_device_put(w->device, OD_QUEUE_COMPUTE, op.experts.choice, call->expert, n * c->top_k * sizeof(uint16_t));
	od_device_run(w->device, OD_QUEUE_COMPUTE, &op);
	return OD_OK;
}

int collect_elsewhere(struct od_expert_runner *runner, const struct od_moe_call *call, struct od_err *err)
{
	struct elsewhere *w = (struct elsewhere *)runner;
	const struct od_config *c = &w->t->cfg;

	od_device_get(w->device, OD_QUEUE_COMPUTE, call->y, od_buf_ref(w->y, y_at(w, call)),
		      call->n_rows * c->top_k * c->hidden * sizeof(float));
	return od_device_sync(w->device, err);
}

void elsewhere_open(struct elsewhere *w, const struct tiny_model *t)
{
	const struct od_config *c = &t->cfg;

	*w = (struct elsewhere){ .runner = { .submit = submit_elsewhere, .collect = collect_elsewhere },
				 .t = t,
				 .device = device_new(OD_CPU_AUTO, 1) };
	tiny_put(&w->weights, t, w->device);
	w->x = buf_new(w->device, MAX_ROWS * c->hidden * sizeof(float));
	w->expert = buf_new(w->device, MAX_ROWS * c->top_k * sizeof(uint16_t));
	w->y = buf_new(w->device, MAX_ROWS * (uint64_t)c->top_k * c->hidden * sizeof(float));
	w->scratch = buf_new(w->device,
			     od_experts_scratch_bytes(c->hidden, c->intermediate, c->n_experts, c->top_k, MAX_ROWS));
}

void elsewhere_close(struct elsewhere *w)
{
	od_buf_free(w->x);
	od_buf_free(w->expert);
	od_buf_free(w->y);
	od_buf_free(w->scratch);
	tiny_weights_free(&w->weights);
	od_device_free(w->device);
}
