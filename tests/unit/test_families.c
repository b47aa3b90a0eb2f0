/* What each family makes of its config.json: the published models, settings that ask for something else, and what is refused.
 * The texts are the published ones, less what only training reads. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "tests/unit/config_util.h"

static const char mixtral_8x7b[] =
	"{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"bos_token_id\":1,\"eos_token_id\":2,"
	"\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
	"\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
	"\"num_local_experts\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"sliding_window\":null,"
	"\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"vocab_size\":32000}";

static const char qwen3_30b_a3b[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":151643,\"decoder_sparse_step\":"
	"1,"
	"\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":6144,"
	"\"max_position_embeddings\":40960,\"max_window_layers\":48,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\","
	"\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"num_attention_heads\":32,\"num_experts\":128,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":48,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,"
	"\"rope_scaling\":null,\"rope_theta\":1000000.0,\"sliding_window\":null,\"tie_word_embeddings\":false,"
	"\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,\"vocab_size\":151936}";

static const char qwen15_moe_a27b[] =
	"{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"bos_token_id\":151643,\"decoder_sparse_step\":1,\"eos_token_id\":"
	"151643,"
	"\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":5632,\"max_position_embeddings\":8192,"
	"\"max_window_layers\":21,\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":1408,\"norm_topk_prob\":false,"
	"\"num_attention_heads\":16,\"num_experts\":60,\"num_experts_per_tok\":4,\"num_hidden_layers\":24,"
	"\"num_key_value_heads\":16,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"shared_expert_intermediate_size\":5632,"
	"\"sliding_window\":32768,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,"
	"\"vocab_size\":151936}";

static const char olmoe_1b_7b[] =
	"{\"architectures\":[\"OlmoeForCausalLM\"],\"attention_bias\":false,\"clip_qkv\":null,\"eos_token_id\":50279,"
	"\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":1024,\"max_position_embeddings\":4096,"
	"\"model_type\":\"olmoe\",\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts\":64,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":16,\"num_key_value_heads\":16,\"pad_token_id\":1,"
	"\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,"
	"\"torch_dtype\":\"bfloat16\",\"vocab_size\":50304}";

static const char deepseek_v2[] =
	"{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":100000,\"eos_token_id\":"
	"100001,"
	"\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":5120,\"intermediate_size\":12288,"
	"\"kv_lora_rank\":512,\"max_position_embeddings\":163840,\"model_type\":\"deepseek_v2\",\"moe_intermediate_size\":1536,"
	"\"moe_layer_freq\":1,\"n_group\":8,\"n_routed_experts\":160,\"n_shared_experts\":2,\"norm_topk_prob\":false,"
	"\"num_attention_heads\":128,\"num_experts_per_tok\":6,\"num_hidden_layers\":60,\"num_key_value_heads\":128,"
	"\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,"
	"\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
	"\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_scaling_factor\":16.0,"
	"\"scoring_func\":\"softmax\",\"tie_word_embeddings\":false,\"topk_group\":3,\"topk_method\":\"group_limited_greedy\","
	"\"torch_dtype\":\"bfloat16\",\"v_head_dim\":128,\"vocab_size\":102400}";

static const char deepseek_v2_lite[] =
	"{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":100000,\"eos_token_id\":"
	"100001,"
	"\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":10944,"
	"\"kv_lora_rank\":512,\"max_position_embeddings\":163840,\"model_type\":\"deepseek_v2\",\"moe_intermediate_size\":1408,"
	"\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,\"norm_topk_prob\":false,"
	"\"num_attention_heads\":16,\"num_experts_per_tok\":6,\"num_hidden_layers\":27,\"num_key_value_heads\":16,"
	"\"q_lora_rank\":null,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,"
	"\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":0.707,"
	"\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_scaling_factor\":1.0,"
	"\"scoring_func\":\"softmax\",\"tie_word_embeddings\":false,\"topk_group\":1,\"topk_method\":\"greedy\","
	"\"torch_dtype\":\"bfloat16\",\"v_head_dim\":128,\"vocab_size\":102400}";

static const char deepseek_v3[] =
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":0,"
	"\"eos_token_id\":1,\"first_k_dense_replace\":3,\"hidden_act\":\"silu\",\"hidden_size\":7168,"
	"\"intermediate_size\":18432,\"kv_lora_rank\":512,\"max_position_embeddings\":163840,"
	"\"model_type\":\"deepseek_v3\",\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":8,"
	"\"n_routed_experts\":256,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":128,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"num_key_value_heads\":128,"
	"\"num_nextn_predict_layers\":1,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
	"\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"
	"\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,"
	"\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"tie_word_embeddings\":false,\"topk_group\":4,"
	"\"topk_method\":\"noaux_tc\",\"torch_dtype\":\"bfloat16\",\"v_head_dim\":128,\"vocab_size\":129280}";

static const char kimi_k2[] =
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":163584,"
	"\"eos_token_id\":163585,\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":7168,"
	"\"intermediate_size\":18432,\"kv_lora_rank\":512,\"max_position_embeddings\":131072,"
	"\"model_type\":\"kimi_k2\",\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":1,"
	"\"n_routed_experts\":384,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":64,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"num_key_value_heads\":64,"
	"\"num_nextn_predict_layers\":0,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
	"\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":1.0,\"beta_slow\":1.0,\"factor\":32.0,\"mscale\":1.0,"
	"\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":50000.0,"
	"\"routed_scaling_factor\":2.827,\"scoring_func\":\"sigmoid\",\"tie_word_embeddings\":false,\"topk_group\":1,"
	"\"topk_method\":\"noaux_tc\",\"torch_dtype\":\"bfloat16\",\"v_head_dim\":128,\"vocab_size\":163840}";

static const char glm45[] =
	"{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,\"eos_token_id\":[151329,151336,151338],"
	"\"first_k_dense_replace\":3,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":5120,"
	"\"intermediate_size\":12288,\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\","
	"\"moe_intermediate_size\":1536,\"n_group\":1,\"n_routed_experts\":160,\"n_shared_experts\":1,"
	"\"norm_topk_prob\":true,\"num_attention_heads\":96,\"num_experts_per_tok\":8,\"num_hidden_layers\":92,"
	"\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":0.5,"
	"\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":1000000,\"routed_scaling_factor\":2.5,"
	"\"tie_word_embeddings\":false,\"topk_group\":1,\"torch_dtype\":\"bfloat16\",\"use_qk_norm\":true,"
	"\"vocab_size\":151552}";

static const char glm45_air[] =
	"{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,\"eos_token_id\":[151329,151336,151338],"
	"\"first_k_dense_replace\":1,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":4096,"
	"\"intermediate_size\":10944,\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\","
	"\"moe_intermediate_size\":1408,\"n_group\":1,\"n_routed_experts\":128,\"n_shared_experts\":1,"
	"\"norm_topk_prob\":true,\"num_attention_heads\":96,\"num_experts_per_tok\":8,\"num_hidden_layers\":46,"
	"\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":0.5,"
	"\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":1000000,\"routed_scaling_factor\":1.0,"
	"\"tie_word_embeddings\":false,\"topk_group\":1,\"torch_dtype\":\"bfloat16\",\"use_qk_norm\":false,"
	"\"vocab_size\":151552}";

static const char minimax_m2[] =
	"{\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"attn_type_list\":[1,1,1],\"bos_token_id\":200034,"
	"\"eos_token_id\":200020,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":3072,"
	"\"intermediate_size\":1536,\"layernorm_full_attention_beta\":1.0,\"layernorm_linear_attention_beta\":1.0,"
	"\"layernorm_mlp_beta\":1.0,\"max_position_embeddings\":196608,\"mlp_intermediate_size\":8192,"
	"\"model_type\":\"minimax_m2\",\"num_attention_heads\":48,\"num_experts_per_tok\":8,\"num_hidden_layers\":62,"
	"\"num_key_value_heads\":8,\"num_local_experts\":256,\"num_mtp_modules\":3,\"qk_norm_type\":\"per_layer\","
	"\"rms_norm_eps\":1e-06,\"rope_theta\":5000000,\"rotary_dim\":64,\"scoring_func\":\"sigmoid\","
	"\"shared_intermediate_size\":0,\"shared_moe_mode\":\"sigmoid\",\"sliding_window\":null,"
	"\"tie_word_embeddings\":false,\"use_mtp\":true,\"use_qk_norm\":true,\"use_routing_bias\":true,"
	"\"vocab_size\":200064}";

/* The first two do not read norm_topk_prob. */
static const char *const published[] = { mixtral_8x7b,	   minimax_m2,	qwen3_30b_a3b, qwen15_moe_a27b, olmoe_1b_7b, deepseek_v2,
					 deepseek_v2_lite, deepseek_v3, kimi_k2,       glm45,		glm45_air };
#define N_PUBLISHED (sizeof(published) / sizeof(published[0]))

/* A published text with the fields of an object in place of its own; a null stays as one. */
static int parse_with(struct od_config *cfg, const char *text, const char *changes, struct od_err *err)
{
	json_t *root = json_loads(text, 0, NULL), *changed = json_loads(changes, 0, NULL);
	int rc;

	if (root == NULL || changed == NULL)
		fail_msg("no JSON: %s", root == NULL ? text : changes);
	assert_int_equal(json_object_update(root, changed), 0);
	rc = od_config_parse(cfg, root, "config.json", err);
	json_decref(root);
	json_decref(changed);
	return rc;
}

static void take(struct od_config *cfg, const char *text, const char *changes)
{
	struct od_err err = { 0 };

	if (parse_with(cfg, text, changes, &err) != OD_OK)
		fail_msg("%s: %s", changes, err.msg);
}

/* Refused with that code, and the reason names the file and holds both texts. */
static void refuse(const char *text, const char *changes, int code, const char *text1, const char *text2)
{
	struct od_config cfg;
	struct od_err err = { 0 };
	int rc = parse_with(&cfg, text, changes, &err);

	if (rc != code || err.code != code || strstr(err.msg, "config.json") == NULL || strstr(err.msg, text1) == NULL ||
	    strstr(err.msg, text2) == NULL)
		fail_msg("%s: code %d, \"%s\"; expected %d, \"%s\", \"%s\"", changes, rc, err.msg, code, text1, text2);
	assert_null(cfg.family);
}

static void near(double found, double expected)
{
	if (!(fabs(found - expected) <= 1e-7 * fabs(expected)))
		fail_msg("expected %.9g, found %.9g", expected, found);
}

/* ---- published models ---- */

struct tensor {
	enum od_role role;
	uint32_t layer;
	const char *name;
	uint64_t n_out, n_in; /* n_in 0: a vector */
};

/* The tensors of one layer, or those that are not of a layer: these, and no others. */
static void check_tensors(const struct od_config *c, const struct tensor *list, size_t n)
{
	const uint32_t layer = list[0].layer;
	size_t found = 0;

	for (int r = 0; r < OD_N_ROLES; r++) {
		const enum od_role role = (enum od_role)r;
		char name[OD_NAME_BYTES];
		uint64_t n_out, n_in;
		size_t i = 0;

		if (od_role_per_layer(role) != od_role_per_layer(list[0].role))
			continue;
		od_role_shape(c, role, layer, &n_out, &n_in);
		while (i < n && list[i].role != role)
			i++;
		if ((i < n) != (n_out > 0))
			fail_msg("layer %u: %s: expected %s", layer, od_role_name(role), i < n ? "one" : "none");
		if (i == n)
			continue;
		od_dense_source_name(c, role, layer, name);
		assert_string_equal(name, list[i].name);
		if (n_out != list[i].n_out || n_in != list[i].n_in)
			fail_msg("%s: [%d][%d]", name, (int)n_out, (int)n_in);
		found++;
	}
	assert_int_equal(found, n);
}

#define CHECK_TENSORS(c, list) check_tensors(c, list, sizeof(list) / sizeof((list)[0]))

static void check_expert(const struct od_config *c, uint32_t m, uint32_t expert, const char *gate, const char *up,
			 const char *down)
{
	const char *const expected[] = { [OD_MAT_GATE] = gate, [OD_MAT_UP] = up, [OD_MAT_DOWN] = down };

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		char name[OD_NAME_BYTES];

		od_expert_source_name(c, m, expert, (enum od_expert_mat)mat, name);
		assert_string_equal(name, expected[mat]);
	}
}

/* Common to all: which layers have experts, from the first that does. */
static void check_counts(const struct od_config *c, const char *family, uint32_t n_layers, uint32_t dense, uint32_t n_kinds)
{
	assert_string_equal(c->family->name, family);
	assert_int_equal(c->n_layers, n_layers);
	assert_int_equal(c->n_moe, n_layers - dense);
	assert_int_equal(c->n_kinds, n_kinds);
	for (uint32_t i = 0; i < n_layers; i++)
		assert_int_equal(od_config_layer(c, i)->ffn, i < dense ? OD_FFN_DENSE : OD_FFN_MOE);
	for (uint32_t m = 0; m < c->n_moe; m++) {
		assert_int_equal(c->layer_of[m], dense + m);
		assert_int_equal(c->m_of[dense + m], m);
	}
}

static void check_experts(const struct od_config *c, uint32_t n_experts, uint32_t top_k, uint32_t intermediate)
{
	assert_int_equal(c->n_experts, n_experts);
	assert_int_equal(c->top_k, top_k);
	assert_int_equal(c->intermediate, intermediate);
}

static void check_plain_rope(const struct od_config *c, uint32_t dims, double theta)
{
	assert_int_equal(c->n_ropes, 1);
	assert_int_equal(c->rope[0].dims, dims);
	assert_false(c->rope[0].neighbours);
	assert_true(c->rope[0].theta == theta && c->rope[0].magnitude == 1 && c->rope[0].factor == 0);
}

static void check_heads(const struct od_mixer *m, uint32_t n_heads, uint32_t n_kv_heads, uint32_t k_dim, uint32_t v_dim)
{
	assert_int_equal(m->n_heads, n_heads);
	assert_int_equal(m->n_kv_heads, n_kv_heads);
	assert_int_equal(m->k_dim, k_dim);
	assert_int_equal(m->v_dim, v_dim);
	assert_int_equal(m->window, 0);
	assert_int_equal(m->rope, 0);
}

static void test_qwen3_30b_a3b(void **state)
{
	static const struct tensor global[] = {
		{ OD_ROLE_EMBED, 0, "model.embed_tokens.weight", 151936, 2048 },
		{ OD_ROLE_HEAD, 0, "lm_head.weight", 151936, 2048 },
		{ OD_ROLE_FINAL_NORM, 0, "model.norm.weight", 2048, 0 },
	};
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 47, "model.layers.47.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 47, "model.layers.47.self_attn.q_proj.weight", 4096, 2048 },
		{ OD_ROLE_K, 47, "model.layers.47.self_attn.k_proj.weight", 512, 2048 },
		{ OD_ROLE_V, 47, "model.layers.47.self_attn.v_proj.weight", 512, 2048 },
		{ OD_ROLE_O, 47, "model.layers.47.self_attn.o_proj.weight", 2048, 4096 },
		{ OD_ROLE_Q_NORM, 47, "model.layers.47.self_attn.q_norm.weight", 128, 0 },
		{ OD_ROLE_K_NORM, 47, "model.layers.47.self_attn.k_norm.weight", 128, 0 },
		{ OD_ROLE_FFN_NORM, 47, "model.layers.47.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 47, "model.layers.47.mlp.gate.weight", 128, 2048 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, qwen3_30b_a3b, "{}");
	check_counts(&c, "qwen3_moe", 48, 0, 1);
	check_experts(&c, 128, 8, 768);
	check_plain_rope(&c, 128, 1e6);
	l = od_config_layer(&c, 0);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 32, 4, 128, 128);
	near((double)l->mix.scale, 0.08838834764831845);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_HEAD);
	assert_true(l->mix.norm_eps == 1e-6f);
	assert_false(l->mix.qkv_bias || l->mix.o_bias || l->mix.clip != 0);
	assert_true(l->router.renormalise && l->router.scale == 1 && l->router.n_groups == 0);
	assert_int_equal(l->shared_intermediate, 0);
	CHECK_TENSORS(&c, global);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 3, 127, "model.layers.3.mlp.experts.127.gate_proj.weight",
		     "model.layers.3.mlp.experts.127.up_proj.weight", "model.layers.3.mlp.experts.127.down_proj.weight");
}

static void test_qwen15_moe_a27b(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 5, "model.layers.5.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 5, "model.layers.5.self_attn.q_proj.weight", 2048, 2048 },
		{ OD_ROLE_K, 5, "model.layers.5.self_attn.k_proj.weight", 2048, 2048 },
		{ OD_ROLE_V, 5, "model.layers.5.self_attn.v_proj.weight", 2048, 2048 },
		{ OD_ROLE_O, 5, "model.layers.5.self_attn.o_proj.weight", 2048, 2048 },
		{ OD_ROLE_Q_BIAS, 5, "model.layers.5.self_attn.q_proj.bias", 2048, 0 },
		{ OD_ROLE_K_BIAS, 5, "model.layers.5.self_attn.k_proj.bias", 2048, 0 },
		{ OD_ROLE_V_BIAS, 5, "model.layers.5.self_attn.v_proj.bias", 2048, 0 },
		{ OD_ROLE_FFN_NORM, 5, "model.layers.5.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 5, "model.layers.5.mlp.gate.weight", 60, 2048 },
		{ OD_ROLE_SHARED_GATE, 5, "model.layers.5.mlp.shared_expert.gate_proj.weight", 5632, 2048 },
		{ OD_ROLE_SHARED_UP, 5, "model.layers.5.mlp.shared_expert.up_proj.weight", 5632, 2048 },
		{ OD_ROLE_SHARED_DOWN, 5, "model.layers.5.mlp.shared_expert.down_proj.weight", 2048, 5632 },
		{ OD_ROLE_SHARED_SCORE, 5, "model.layers.5.mlp.shared_expert_gate.weight", 1, 2048 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, qwen15_moe_a27b, "{}");
	check_counts(&c, "qwen2_moe", 24, 0, 1); /* of which no layer sees a window: use_sliding_window is false */
	check_experts(&c, 60, 4, 1408);
	check_plain_rope(&c, 128, 1e6);
	l = od_config_layer(&c, 23);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 16, 16, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_NONE);
	assert_true(l->mix.qkv_bias && !l->mix.o_bias);
	assert_true(!l->router.renormalise && l->router.scale == 1);
	assert_int_equal(l->shared_intermediate, 5632);
	assert_true(l->shared_gate);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 23, 59, "model.layers.23.mlp.experts.59.gate_proj.weight",
		     "model.layers.23.mlp.experts.59.up_proj.weight", "model.layers.23.mlp.experts.59.down_proj.weight");
}

static void test_olmoe_1b_7b(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 15, "model.layers.15.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 15, "model.layers.15.self_attn.q_proj.weight", 2048, 2048 },
		{ OD_ROLE_K, 15, "model.layers.15.self_attn.k_proj.weight", 2048, 2048 },
		{ OD_ROLE_V, 15, "model.layers.15.self_attn.v_proj.weight", 2048, 2048 },
		{ OD_ROLE_O, 15, "model.layers.15.self_attn.o_proj.weight", 2048, 2048 },
		{ OD_ROLE_Q_NORM, 15, "model.layers.15.self_attn.q_norm.weight", 2048, 0 },
		{ OD_ROLE_K_NORM, 15, "model.layers.15.self_attn.k_norm.weight", 2048, 0 },
		{ OD_ROLE_FFN_NORM, 15, "model.layers.15.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 15, "model.layers.15.mlp.gate.weight", 64, 2048 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, olmoe_1b_7b, "{}");
	check_counts(&c, "olmoe", 16, 0, 1);
	check_experts(&c, 64, 8, 1024);
	check_plain_rope(&c, 128, 1e4);
	assert_int_equal(c.bos, -1);
	l = od_config_layer(&c, 7);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 16, 16, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_ROW);
	assert_true(l->mix.norm_eps == 1e-5f && l->mix.clip == 0);
	assert_true(!l->router.renormalise && l->router.scale == 1);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 0, 9, "model.layers.0.mlp.experts.9.gate_proj.weight", "model.layers.0.mlp.experts.9.up_proj.weight",
		     "model.layers.0.mlp.experts.9.down_proj.weight");
}

/* m(s) = 0.1 s ln 40 + 1; 192 = 128 + 64. */
static void check_deepseek(const struct od_config *c, const struct od_layer_spec *l, double scale)
{
	assert_ptr_equal(l->mixer, &od_mixer_mla);
	assert_int_equal(l->mix.nope_dim, 128);
	assert_int_equal(l->mix.kv_rank, 512);
	assert_true(l->mix.norm_eps == 1e-6f);
	near((double)l->mix.scale, scale);
	assert_int_equal(c->n_ropes, 1);
	assert_int_equal(c->rope[0].dims, 64);
	assert_true(c->rope[0].neighbours);
	assert_true(c->rope[0].theta == 1e4 && c->rope[0].factor == 40 && c->rope[0].beta_fast == 32 &&
		    c->rope[0].beta_slow == 1);
	assert_int_equal(c->rope[0].original_ctx, 4096);
	assert_true(c->rope[0].magnitude == 1); /* m(mscale) / m(mscale_all_dim) */
}

static void test_deepseek_v2(void **state)
{
	static const struct tensor dense[] = {
		{ OD_ROLE_ATTN_NORM, 0, "model.layers.0.input_layernorm.weight", 5120, 0 },
		{ OD_ROLE_Q_A, 0, "model.layers.0.self_attn.q_a_proj.weight", 1536, 5120 },
		{ OD_ROLE_Q_A_NORM, 0, "model.layers.0.self_attn.q_a_layernorm.weight", 1536, 0 },
		{ OD_ROLE_Q_B, 0, "model.layers.0.self_attn.q_b_proj.weight", 24576, 1536 },
		{ OD_ROLE_KV_A, 0, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 576, 5120 },
		{ OD_ROLE_KV_A_NORM, 0, "model.layers.0.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 0, "model.layers.0.self_attn.kv_b_proj.weight", 32768, 512 },
		{ OD_ROLE_O, 0, "model.layers.0.self_attn.o_proj.weight", 5120, 16384 },
		{ OD_ROLE_FFN_NORM, 0, "model.layers.0.post_attention_layernorm.weight", 5120, 0 },
		{ OD_ROLE_FFN_GATE, 0, "model.layers.0.mlp.gate_proj.weight", 12288, 5120 },
		{ OD_ROLE_FFN_UP, 0, "model.layers.0.mlp.up_proj.weight", 12288, 5120 },
		{ OD_ROLE_FFN_DOWN, 0, "model.layers.0.mlp.down_proj.weight", 5120, 12288 },
	};
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 59, "model.layers.59.input_layernorm.weight", 5120, 0 },
		{ OD_ROLE_Q_A, 59, "model.layers.59.self_attn.q_a_proj.weight", 1536, 5120 },
		{ OD_ROLE_Q_A_NORM, 59, "model.layers.59.self_attn.q_a_layernorm.weight", 1536, 0 },
		{ OD_ROLE_Q_B, 59, "model.layers.59.self_attn.q_b_proj.weight", 24576, 1536 },
		{ OD_ROLE_KV_A, 59, "model.layers.59.self_attn.kv_a_proj_with_mqa.weight", 576, 5120 },
		{ OD_ROLE_KV_A_NORM, 59, "model.layers.59.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 59, "model.layers.59.self_attn.kv_b_proj.weight", 32768, 512 },
		{ OD_ROLE_O, 59, "model.layers.59.self_attn.o_proj.weight", 5120, 16384 },
		{ OD_ROLE_FFN_NORM, 59, "model.layers.59.post_attention_layernorm.weight", 5120, 0 },
		{ OD_ROLE_ROUTER, 59, "model.layers.59.mlp.gate.weight", 160, 5120 },
		{ OD_ROLE_SHARED_GATE, 59, "model.layers.59.mlp.shared_experts.gate_proj.weight", 3072, 5120 },
		{ OD_ROLE_SHARED_UP, 59, "model.layers.59.mlp.shared_experts.up_proj.weight", 3072, 5120 },
		{ OD_ROLE_SHARED_DOWN, 59, "model.layers.59.mlp.shared_experts.down_proj.weight", 5120, 3072 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, deepseek_v2, "{}");
	check_counts(&c, "deepseek_v2", 60, 1, 2);
	check_experts(&c, 160, 6, 1536);
	for (uint32_t i = 0; i < 2; i++) {
		l = od_config_layer(&c, i);
		check_deepseek(&c, l, 0.1352337788608801); /* 192^-0.5 * m(1)^2 */
		check_heads(&l->mix, 128, 1, 192, 128);
		assert_int_equal(l->mix.q_rank, 1536);
	}
	assert_int_equal(l->router.n_groups, 8);
	assert_int_equal(l->router.top_groups, 3);
	assert_true(!l->router.renormalise && l->router.scale == 16);
	assert_int_equal(l->shared_intermediate, 3072);
	assert_false(l->shared_gate);
	CHECK_TENSORS(&c, dense);
	CHECK_TENSORS(&c, moe);
	/* Experts are counted by MoE layer, named by layer. */
	check_expert(&c, 0, 159, "model.layers.1.mlp.experts.159.gate_proj.weight",
		     "model.layers.1.mlp.experts.159.up_proj.weight", "model.layers.1.mlp.experts.159.down_proj.weight");
	take(&c, deepseek_v2, "{\"rms_norm_eps\":1e-05}"); /* not of latents */
	assert_true(c.rms_eps == 1e-5f && od_config_layer(&c, 1)->mix.norm_eps == 1e-6f);
}

static void test_deepseek_v2_lite(void **state)
{
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 1, "model.layers.1.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 1, "model.layers.1.self_attn.q_proj.weight", 3072, 2048 },
		{ OD_ROLE_KV_A, 1, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 576, 2048 },
		{ OD_ROLE_KV_A_NORM, 1, "model.layers.1.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 1, "model.layers.1.self_attn.kv_b_proj.weight", 4096, 512 },
		{ OD_ROLE_O, 1, "model.layers.1.self_attn.o_proj.weight", 2048, 2048 },
		{ OD_ROLE_FFN_NORM, 1, "model.layers.1.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 1, "model.layers.1.mlp.gate.weight", 64, 2048 },
		{ OD_ROLE_SHARED_GATE, 1, "model.layers.1.mlp.shared_experts.gate_proj.weight", 2816, 2048 },
		{ OD_ROLE_SHARED_UP, 1, "model.layers.1.mlp.shared_experts.up_proj.weight", 2816, 2048 },
		{ OD_ROLE_SHARED_DOWN, 1, "model.layers.1.mlp.shared_experts.down_proj.weight", 2048, 2816 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, deepseek_v2_lite, "{}");
	check_counts(&c, "deepseek_v2", 27, 1, 2);
	check_experts(&c, 64, 6, 1408);
	l = od_config_layer(&c, 26);
	check_deepseek(&c, l, 0.11472138679292611); /* 192^-0.5 * m(0.707)^2 */
	check_heads(&l->mix, 16, 1, 192, 128);
	assert_int_equal(l->mix.q_rank, 0);
	assert_int_equal(l->router.n_groups, 0); /* greedy */
	assert_true(!l->router.renormalise && l->router.scale == 1);
	assert_int_equal(od_config_layer(&c, 0)->intermediate, 10944);
	CHECK_TENSORS(&c, moe);
}

/* What DeepSeek-V3, GLM-4.5 and MiniMax-M2 have in common. */
static void check_sigmoid(const struct od_router_spec *r, uint32_t n_groups, uint32_t top_groups, bool two, float scale, float eps)
{
	assert_int_equal(r->score, OD_SCORE_SIGMOID);
	assert_true(r->bias && r->renormalise);
	assert_int_equal(r->n_groups, n_groups);
	assert_int_equal(r->top_groups, top_groups);
	assert_true(r->group_two == two && r->scale == scale && r->sum_eps == eps);
}

static void test_deepseek_v3(void **state)
{
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 60, "model.layers.60.input_layernorm.weight", 7168, 0 },
		{ OD_ROLE_Q_A, 60, "model.layers.60.self_attn.q_a_proj.weight", 1536, 7168 },
		{ OD_ROLE_Q_A_NORM, 60, "model.layers.60.self_attn.q_a_layernorm.weight", 1536, 0 },
		{ OD_ROLE_Q_B, 60, "model.layers.60.self_attn.q_b_proj.weight", 24576, 1536 },
		{ OD_ROLE_KV_A, 60, "model.layers.60.self_attn.kv_a_proj_with_mqa.weight", 576, 7168 },
		{ OD_ROLE_KV_A_NORM, 60, "model.layers.60.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 60, "model.layers.60.self_attn.kv_b_proj.weight", 32768, 512 },
		{ OD_ROLE_O, 60, "model.layers.60.self_attn.o_proj.weight", 7168, 16384 },
		{ OD_ROLE_FFN_NORM, 60, "model.layers.60.post_attention_layernorm.weight", 7168, 0 },
		{ OD_ROLE_ROUTER, 60, "model.layers.60.mlp.gate.weight", 256, 7168 },
		{ OD_ROLE_SHARED_GATE, 60, "model.layers.60.mlp.shared_experts.gate_proj.weight", 2048, 7168 },
		{ OD_ROLE_SHARED_UP, 60, "model.layers.60.mlp.shared_experts.up_proj.weight", 2048, 7168 },
		{ OD_ROLE_SHARED_DOWN, 60, "model.layers.60.mlp.shared_experts.down_proj.weight", 7168, 2048 },
		{ OD_ROLE_ROUTER_BIAS, 60, "model.layers.60.mlp.gate.e_score_correction_bias", 256, 0 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, deepseek_v3, "{}");
	check_counts(&c, "deepseek_v3", 61, 3, 2);
	check_experts(&c, 256, 8, 2048);
	assert_int_equal(c.n_mtp, 1);
	l = od_config_layer(&c, 60);
	check_deepseek(&c, l, 0.1352337788608801); /* 192^-0.5 * m(1)^2 */
	check_heads(&l->mix, 128, 1, 192, 128);
	check_sigmoid(&l->router, 8, 4, true, 2.5f, 1e-20f);
	assert_int_equal(od_config_layer(&c, 0)->intermediate, 18432);
	CHECK_TENSORS(&c, moe);
	check_expert(&c, 0, 255, "model.layers.3.mlp.experts.255.gate_proj.weight",
		     "model.layers.3.mlp.experts.255.up_proj.weight", "model.layers.3.mlp.experts.255.down_proj.weight");
	take(&c, kimi_k2, "{}");
	check_counts(&c, "deepseek_v3", 61, 1, 2);
	check_experts(&c, 384, 8, 2048);
	assert_int_equal(c.n_mtp, 0);
	l = od_config_layer(&c, 1);
	check_heads(&l->mix, 64, 1, 192, 128);
	check_sigmoid(&l->router, 1, 1, true, 2.827f, 1e-20f);
	near((double)l->mix.scale, 0.13086079996295005); /* 192^-0.5 * (0.1 ln 32 + 1)^2 */
}

static void test_glm45(void **state)
{
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 91, "model.layers.91.input_layernorm.weight", 5120, 0 },
		{ OD_ROLE_Q, 91, "model.layers.91.self_attn.q_proj.weight", 12288, 5120 },
		{ OD_ROLE_K, 91, "model.layers.91.self_attn.k_proj.weight", 1024, 5120 },
		{ OD_ROLE_V, 91, "model.layers.91.self_attn.v_proj.weight", 1024, 5120 },
		{ OD_ROLE_O, 91, "model.layers.91.self_attn.o_proj.weight", 5120, 12288 },
		{ OD_ROLE_Q_BIAS, 91, "model.layers.91.self_attn.q_proj.bias", 12288, 0 },
		{ OD_ROLE_K_BIAS, 91, "model.layers.91.self_attn.k_proj.bias", 1024, 0 },
		{ OD_ROLE_V_BIAS, 91, "model.layers.91.self_attn.v_proj.bias", 1024, 0 },
		{ OD_ROLE_Q_NORM, 91, "model.layers.91.self_attn.q_norm.weight", 128, 0 },
		{ OD_ROLE_K_NORM, 91, "model.layers.91.self_attn.k_norm.weight", 128, 0 },
		{ OD_ROLE_FFN_NORM, 91, "model.layers.91.post_attention_layernorm.weight", 5120, 0 },
		{ OD_ROLE_ROUTER, 91, "model.layers.91.mlp.gate.weight", 160, 5120 },
		{ OD_ROLE_SHARED_GATE, 91, "model.layers.91.mlp.shared_experts.gate_proj.weight", 1536, 5120 },
		{ OD_ROLE_SHARED_UP, 91, "model.layers.91.mlp.shared_experts.up_proj.weight", 1536, 5120 },
		{ OD_ROLE_SHARED_DOWN, 91, "model.layers.91.mlp.shared_experts.down_proj.weight", 5120, 1536 },
		{ OD_ROLE_ROUTER_BIAS, 91, "model.layers.91.mlp.gate.e_score_correction_bias", 160, 0 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, glm45, "{}");
	check_counts(&c, "glm4_moe", 92, 3, 2);
	check_experts(&c, 160, 8, 1536);
	check_plain_rope(&c, 64, 1e6); /* half of a head */
	assert_int_equal(c.n_mtp, 1);
	assert_int_equal(c.n_eos, 3);
	l = od_config_layer(&c, 91);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 96, 8, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_HEAD);
	assert_true(l->mix.qkv_bias && !l->mix.o_bias && l->mix.norm_eps == 1e-5f);
	check_sigmoid(&l->router, 1, 1, true, 2.5f, 1e-20f);
	CHECK_TENSORS(&c, moe);
	take(&c, glm45_air, "{}");
	check_counts(&c, "glm4_moe", 46, 1, 2);
	check_experts(&c, 128, 8, 1408);
	assert_int_equal(c.kind[1].mix.qk_norm, OD_QK_NORM_NONE);
	check_sigmoid(&c.kind[1].router, 1, 1, true, 1, 1e-20f);
	/* What transformers takes for fields that are missing. */
	take(&c, glm45, "{\"partial_rotary_factor\":null,\"use_qk_norm\":null,\"attention_bias\":null,\"norm_topk_prob\":null,"
	     "\"routed_scaling_factor\":null,\"n_shared_experts\":null,\"first_k_dense_replace\":null}");
	check_counts(&c, "glm4_moe", 92, 1, 2);
	check_plain_rope(&c, 64, 1e6);
	assert_true(c.kind[1].mix.qk_norm == OD_QK_NORM_NONE && !c.kind[1].mix.qkv_bias);
	check_sigmoid(&c.kind[1].router, 1, 1, true, 1, 1e-20f);
	assert_int_equal(c.kind[1].shared_intermediate, 1536);
}

/* GLM-4.7-Flash has the fields of DeepSeek-V3, and may have a list of its own. */
static void test_glm_lite(void **state)
{
#define LITE "\"architectures\":[\"Glm4MoeLiteForCausalLM\"],\"model_type\":\"glm4_moe_lite\",\"n_group\":1,\"topk_group\":1"
	static const char types[] = "{" LITE ",\"num_hidden_layers\":3,\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}";
	static const char wrong[] = "{" LITE ",\"num_hidden_layers\":3,\"mlp_layer_types\":[\"sparse\",\"dense\"]}";
	static const char none[] = "{" LITE ",\"first_k_dense_replace\":null,\"routed_scaling_factor\":null,\"head_dim\":64}";
	struct od_config c;

	(void)state;
	take(&c, deepseek_v3, none);
	check_counts(&c, "glm4_moe_lite", 61, 1, 2);
	check_deepseek(&c, od_config_layer(&c, 60), 0.1352337788608801);
	check_sigmoid(&od_config_layer(&c, 60)->router, 1, 1, true, 1.8f, 1e-20f);
	take(&c, deepseek_v3, types);
	assert_int_equal(c.n_moe, 2);
	assert_true(c.layer_of[0] == 0 && c.layer_of[1] == 2);
	refuse(deepseek_v3, wrong, OD_ERR_UNSUPPORTED, "mlp_layer_types", "each of 3 layers");
	refuse(deepseek_v3, "{" LITE "}", OD_ERR_UNSUPPORTED, "first_k_dense_replace", "expected 1, found 3");
	refuse(deepseek_v3, "{" LITE ",\"head_dim\":128}", OD_ERR_UNSUPPORTED, "head_dim", "expected 64, found 128");
}

static void test_minimax_m2(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 61, "model.layers.61.input_layernorm.weight", 3072, 0 },
		{ OD_ROLE_Q, 61, "model.layers.61.self_attn.q_proj.weight", 6144, 3072 },
		{ OD_ROLE_K, 61, "model.layers.61.self_attn.k_proj.weight", 1024, 3072 },
		{ OD_ROLE_V, 61, "model.layers.61.self_attn.v_proj.weight", 1024, 3072 },
		{ OD_ROLE_O, 61, "model.layers.61.self_attn.o_proj.weight", 3072, 6144 },
		{ OD_ROLE_Q_NORM, 61, "model.layers.61.self_attn.q_norm.weight", 6144, 0 },
		{ OD_ROLE_K_NORM, 61, "model.layers.61.self_attn.k_norm.weight", 1024, 0 },
		{ OD_ROLE_FFN_NORM, 61, "model.layers.61.post_attention_layernorm.weight", 3072, 0 },
		{ OD_ROLE_ROUTER, 61, "model.layers.61.block_sparse_moe.gate.weight", 256, 3072 },
		{ OD_ROLE_ROUTER_BIAS, 61, "model.layers.61.block_sparse_moe.e_score_correction_bias", 256, 0 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, minimax_m2, "{}");
	check_counts(&c, "minimax_m2", 62, 0, 1);
	check_experts(&c, 256, 8, 1536);
	check_plain_rope(&c, 64, 5e6);
	l = od_config_layer(&c, 61);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 48, 8, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_ROW);
	assert_false(l->mix.qkv_bias || l->mix.o_bias);
	check_sigmoid(&l->router, 0, 0, false, 1, 0);
	assert_int_equal(l->shared_intermediate, 0);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 61, 255, "model.layers.61.block_sparse_moe.experts.255.w1.weight",
		     "model.layers.61.block_sparse_moe.experts.255.w3.weight",
		     "model.layers.61.block_sparse_moe.experts.255.w2.weight");
}

/* ---- settings ---- */

/* How much of a head turns: beside RoPE's settings, among them, or by rotary_dim. */
static void test_rotates_in_part(void **state)
{
	static const char among[] = "{\"partial_rotary_factor\":null,\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":"
				    "\"default\",\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}";
	static const char both[] = "{\"partial_rotary_factor\":0.5,\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":"
				   "\"default\",\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}";
	struct od_config c;

	(void)state;
	take(&c, glm45, "{\"partial_rotary_factor\":0.25}");
	check_plain_rope(&c, 32, 1e6);
	take(&c, glm45, "{\"partial_rotary_factor\":1}");
	check_plain_rope(&c, 128, 1e6);
	take(&c, glm45, among);
	check_plain_rope(&c, 32, 1e4);
	refuse(glm45, both, OD_ERR_FORMAT, "partial_rotary_factor", "found two values, 0.5 and 0.25");
	refuse(glm45, "{\"partial_rotary_factor\":0.51}", OD_ERR_UNSUPPORTED, "partial_rotary_factor", "even number");
	refuse(glm45, "{\"partial_rotary_factor\":0}", OD_ERR_UNSUPPORTED, "partial_rotary_factor", "even number");
	refuse(glm45, "{\"partial_rotary_factor\":1.5}", OD_ERR_RANGE, "partial_rotary_factor", "1.5");
	refuse(glm45, "{\"partial_rotary_factor\":\"0.5\"}", OD_ERR_FORMAT, "partial_rotary_factor", "a string");
	take(&c, minimax_m2, "{\"rotary_dim\":null}");
	check_plain_rope(&c, 128, 5e6);
	take(&c, minimax_m2, "{\"rotary_dim\":null,\"partial_rotary_factor\":0.25}");
	check_plain_rope(&c, 32, 5e6);
	take(&c, minimax_m2, "{\"partial_rotary_factor\":0.5}");
	check_plain_rope(&c, 64, 5e6);
	refuse(minimax_m2, "{\"partial_rotary_factor\":0.25}", OD_ERR_FORMAT, "rotary_dim", "makes it 32");
	refuse(minimax_m2, "{\"rotary_dim\":130}", OD_ERR_RANGE, "rotary_dim", "130");
	refuse(minimax_m2, "{\"rotary_dim\":63}", OD_ERR_UNSUPPORTED, "even number", "63");
}

static void test_refuses_what_minimax_m1_had(void **state)
{
	(void)state;
	refuse(minimax_m2, "{\"attn_type_list\":[1,0,1]}", OD_ERR_UNSUPPORTED, "attn_type_list", "1 for every layer");
	refuse(minimax_m2, "{\"use_qk_norm\":false}", OD_ERR_UNSUPPORTED, "use_qk_norm", "expected true, found false");
	refuse(minimax_m2, "{\"use_routing_bias\":false}", OD_ERR_UNSUPPORTED, "use_routing_bias", "expected true, found false");
	refuse(minimax_m2, "{\"shared_intermediate_size\":1024}", OD_ERR_UNSUPPORTED, "shared_intermediate_size", "found 1024");
	refuse(minimax_m2, "{\"sliding_window\":512}", OD_ERR_UNSUPPORTED, "sliding_window", "512");
	refuse(minimax_m2, "{\"layernorm_mlp_beta\":3.5}", OD_ERR_UNSUPPORTED, "layernorm_mlp_beta", "3.5");
	refuse(minimax_m2, "{\"layernorm_full_attention_beta\":3}", OD_ERR_UNSUPPORTED, "layernorm_full_attention_beta", "3");
	refuse(minimax_m2, "{\"routed_scaling_factor\":2.5}", OD_ERR_UNSUPPORTED, "routed_scaling_factor", "2.5");
	refuse(minimax_m2, "{\"qk_norm_type\":\"per_head\"}", OD_ERR_UNSUPPORTED, "qk_norm_type", "per_head");
	refuse(minimax_m2, "{\"scoring_func\":\"softmax\"}", OD_ERR_UNSUPPORTED, "scoring_func", "softmax");
	refuse(minimax_m2, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(minimax_m2, "{\"head_dim\":null}", OD_ERR_MISSING, "head_dim", "missing");
}

static void test_refuses_other_v3(void **state)
{
	static const char *const texts[] = { deepseek_v3, kimi_k2, glm45 };

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		refuse(texts[i], "{\"scoring_func\":\"softmax\"}", OD_ERR_UNSUPPORTED, "scoring_func", "softmax");
		refuse(texts[i], "{\"topk_method\":\"greedy\"}", OD_ERR_UNSUPPORTED, "topk_method", "greedy");
		refuse(texts[i], "{\"moe_layer_freq\":2}", OD_ERR_UNSUPPORTED, "moe_layer_freq", "expected 1, found 2");
		refuse(texts[i], "{\"n_group\":7}", OD_ERR_FORMAT, "n_group", "divisor");
		refuse(texts[i], "{\"n_routed_experts\":32,\"n_group\":32,\"topk_group\":16}", OD_ERR_FORMAT, "n_group",
		       "at least 2");
		refuse(texts[i], "{\"num_nextn_predict_layers\":-1}", OD_ERR_RANGE, "num_nextn_predict_layers", "-1");
		refuse(texts[i], "{\"routed_scaling_factor\":0}", OD_ERR_RANGE, "routed_scaling_factor", "found 0");
	}
	refuse(deepseek_v3, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(deepseek_v3, "{\"rope_interleave\":false}", OD_ERR_UNSUPPORTED, "rope_interleave", "found false");
}

/* sparse: a character for each layer, 'm' where it has experts. */
static void check_sparse(const char *text, const char *changes, const char *sparse)
{
	struct od_config c;
	uint32_t m = 0;

	take(&c, text, changes);
	assert_int_equal(c.n_layers, strlen(sparse));
	for (uint32_t i = 0; i < c.n_layers; i++) {
		const struct od_layer_spec *l = od_config_layer(&c, i);

		if (l->ffn != (sparse[i] == 'm' ? OD_FFN_MOE : OD_FFN_DENSE))
			fail_msg("%s: layer %u is not '%c'", changes, i, sparse[i]);
		if (l->ffn == OD_FFN_MOE) {
			assert_int_equal(c.m_of[i], m);
			assert_int_equal(c.layer_of[m++], i);
		} else {
			assert_true(l->intermediate > 0);
			assert_false(l->shared_intermediate > 0 || l->shared_gate);
		}
	}
	assert_int_equal(c.n_moe, m);
}

static void test_dense_layers(void **state)
{
	static const char *const qwens[] = { qwen3_30b_a3b, qwen15_moe_a27b };

	(void)state;
	for (int i = 0; i < 2; i++) {
		check_sparse(qwens[i], "{\"num_hidden_layers\":6}", "mmmmmm");
		check_sparse(qwens[i], "{\"num_hidden_layers\":6,\"mlp_only_layers\":null,\"decoder_sparse_step\":null}",
			     "mmmmmm");
		check_sparse(qwens[i], "{\"num_hidden_layers\":6,\"mlp_only_layers\":[0,5]}", ".mmmm.");
		check_sparse(qwens[i], "{\"num_hidden_layers\":7,\"decoder_sparse_step\":3}", "..m..m.");
		check_sparse(qwens[i], "{\"num_hidden_layers\":8,\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,4,3]}",
			     ".m...m.m");
		refuse(qwens[i], "{\"num_hidden_layers\":6,\"decoder_sparse_step\":7}", OD_ERR_UNSUPPORTED,
		       "none of the 6 layers", "experts");
		refuse(qwens[i], "{\"num_hidden_layers\":2,\"mlp_only_layers\":[1,0]}", OD_ERR_UNSUPPORTED,
		       "none of the 2 layers", "experts");
		refuse(qwens[i], "{\"decoder_sparse_step\":0}", OD_ERR_RANGE, "decoder_sparse_step", "found 0");
		check_sparse(qwens[i], "{\"num_hidden_layers\":4,\"mlp_only_layers\":[4,1,9]}", "m.mm"); /* none is refused */
		refuse(qwens[i], "{\"mlp_only_layers\":[-1]}", OD_ERR_RANGE, "mlp_only_layers", "layer numbers");
		refuse(qwens[i], "{\"mlp_only_layers\":[\"1\"]}", OD_ERR_RANGE, "mlp_only_layers", "layer numbers");
		refuse(qwens[i], "{\"mlp_only_layers\":3}", OD_ERR_FORMAT, "mlp_only_layers", "an integer");
	}
	check_sparse(deepseek_v2, "{\"num_hidden_layers\":5,\"first_k_dense_replace\":3}", "...mm");
	check_sparse(deepseek_v2, "{\"num_hidden_layers\":3,\"first_k_dense_replace\":0}", "mmm");
	check_sparse(deepseek_v2, "{\"num_hidden_layers\":3,\"first_k_dense_replace\":null}", "mmm");
	refuse(deepseek_v2, "{\"num_hidden_layers\":3,\"first_k_dense_replace\":3}", OD_ERR_UNSUPPORTED, "none of the 3 layers",
	       "experts");
}

/* windows: of each layer. */
static void check_windows(const char *text, const char *changes, uint32_t n_layers, const uint32_t *windows)
{
	struct od_config c;

	take(&c, text, changes);
	assert_int_equal(c.n_layers, n_layers);
	for (uint32_t i = 0; i < n_layers; i++)
		assert_int_equal(od_config_layer(&c, i)->mix.window, windows[i]);
}

static void test_windows(void **state)
{
	(void)state;
	check_windows(mixtral_8x7b, "{\"num_hidden_layers\":2,\"sliding_window\":4096}", 2, (uint32_t[]){ 4096, 4096 });
	check_windows(qwen3_30b_a3b, "{\"num_hidden_layers\":2,\"sliding_window\":512}", 2, (uint32_t[]){ 0, 0 });
	check_windows(qwen3_30b_a3b, "{\"num_hidden_layers\":2,\"sliding_window\":512,\"use_sliding_window\":true}", 2,
		      (uint32_t[]){ 512, 512 });
	check_windows(qwen3_30b_a3b, "{\"num_hidden_layers\":2,\"use_sliding_window\":true}", 2, (uint32_t[]){ 0, 0 });
	/* Every second layer, up to max_window_layers; or as layer_types says. */
	check_windows(qwen15_moe_a27b, "{\"num_hidden_layers\":6,\"use_sliding_window\":true,\"sliding_window\":99,"
		      "\"max_window_layers\":4}", 6, (uint32_t[]){ 99, 0, 99, 0, 0, 0 });
	check_windows(qwen15_moe_a27b, "{\"num_hidden_layers\":6,\"use_sliding_window\":true,\"sliding_window\":99,"
		      "\"max_window_layers\":5}", 6, (uint32_t[]){ 99, 0, 99, 0, 99, 0 });
	check_windows(qwen15_moe_a27b,
		      "{\"num_hidden_layers\":3,\"use_sliding_window\":true,\"sliding_window\":99,\"layer_types\":"
		      "[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
		      3, (uint32_t[]){ 0, 99, 99 });
	check_windows(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
		      2, (uint32_t[]){ 0, 0 });
	check_windows(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"use_sliding_window\":true,\"sliding_window\":null}", 2,
		      (uint32_t[]){ 0, 0 });
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":3,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
	       OD_ERR_UNSUPPORTED, "layer_types", "each of 3 layers");
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
	       OD_ERR_UNSUPPORTED, "layer_types", "sliding_attention");
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",7]}", OD_ERR_UNSUPPORTED,
	       "layer_types", "full_attention");
	refuse(qwen15_moe_a27b, "{\"layer_types\":\"full_attention\"}", OD_ERR_FORMAT, "layer_types", "a string");
	refuse(qwen3_30b_a3b, "{\"use_sliding_window\":1}", OD_ERR_FORMAT, "use_sliding_window", "an integer");
	refuse(qwen3_30b_a3b, "{\"use_sliding_window\":true,\"sliding_window\":-1}", OD_ERR_RANGE, "sliding_window", "-1");
}

/* Which biases there are, from q to o. */
static void check_biases(const char *text, const char *changes, bool qkv, bool o)
{
	struct od_config c;

	take(&c, text, changes);
	for (int role = OD_ROLE_Q_BIAS; role <= OD_ROLE_O_BIAS; role++) {
		const struct od_mixer *m = &od_config_layer(&c, 1)->mix;
		const bool has = role == OD_ROLE_O_BIAS ? o : qkv;
		uint64_t n_out, n_in;

		od_role_shape(&c, (enum od_role)role, 1, &n_out, &n_in);
		assert_int_equal(n_out, !has			 ? 0 :
					role == OD_ROLE_O_BIAS ? c.hidden :
					role == OD_ROLE_Q_BIAS ? m->n_heads * m->k_dim :
								 m->n_kv_heads * m->k_dim);
		assert_int_equal(n_in, 0);
	}
}

static void test_biases_and_clipping(void **state)
{
	struct od_config c;

	(void)state;
	check_biases(qwen3_30b_a3b, "{}", false, false);
	check_biases(qwen3_30b_a3b, "{\"attention_bias\":true}", true, true);
	check_biases(olmoe_1b_7b, "{\"attention_bias\":true}", true, true);
	check_biases(qwen15_moe_a27b, "{\"qkv_bias\":false}", false, false);
	check_biases(qwen15_moe_a27b, "{\"qkv_bias\":true}", true, false);
	check_biases(qwen15_moe_a27b, "{\"attention_bias\":false}", true, false);
	check_biases(deepseek_v2, "{\"attention_bias\":null}", false, false);
	refuse(qwen15_moe_a27b, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(deepseek_v2, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(mixtral_8x7b, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	take(&c, olmoe_1b_7b, "{\"clip_qkv\":8.0}");
	assert_true(c.kind[0].mix.clip == 8);
	take(&c, olmoe_1b_7b, "{\"clip_qkv\":3}");
	assert_true(c.kind[0].mix.clip == 3);
	refuse(olmoe_1b_7b, "{\"clip_qkv\":0}", OD_ERR_RANGE, "clip_qkv", "found 0");
	refuse(olmoe_1b_7b, "{\"clip_qkv\":-1.0}", OD_ERR_RANGE, "clip_qkv", "-1");
	refuse(olmoe_1b_7b, "{\"clip_qkv\":\"8\"}", OD_ERR_FORMAT, "clip_qkv", "a string");
}

static void test_routers(void **state)
{
	struct od_config c;

	(void)state;
	take(&c, qwen3_30b_a3b, "{\"norm_topk_prob\":false}");
	assert_false(c.kind[0].router.renormalise);
	take(&c, qwen3_30b_a3b, "{\"norm_topk_prob\":null}"); /* what transformers has where nothing stands */
	assert_false(c.kind[0].router.renormalise);
	take(&c, qwen15_moe_a27b, "{\"norm_topk_prob\":true}");
	assert_true(c.kind[0].router.renormalise);
	take(&c, olmoe_1b_7b, "{\"norm_topk_prob\":true}");
	assert_true(c.kind[0].router.renormalise);
	take(&c, deepseek_v2, "{\"topk_method\":\"greedy\",\"routed_scaling_factor\":2.5}");
	assert_int_equal(c.kind[1].router.n_groups, 0);
	assert_int_equal(c.kind[1].router.top_groups, 0);
	assert_true(c.kind[1].router.scale == 2.5f);
	take(&c, deepseek_v2, "{\"topk_method\":null,\"n_group\":null,\"routed_scaling_factor\":null}");
	assert_int_equal(c.kind[1].router.n_groups, 0);
	assert_true(c.kind[1].router.scale == 1);
	take(&c, deepseek_v2, "{\"n_group\":40,\"topk_group\":2}");
	assert_int_equal(c.kind[1].router.n_groups, 40);
	assert_int_equal(c.kind[1].router.top_groups, 2);
	for (size_t i = 2; i < N_PUBLISHED; i++)
		refuse(published[i], "{\"norm_topk_prob\":1}", OD_ERR_FORMAT, "norm_topk_prob", "an integer");
}

static void test_shared_experts(void **state)
{
	struct od_config c;
	uint64_t n_out, n_in;

	(void)state;
	for (int i = 0; i < 2; i++) {
		take(&c, deepseek_v2, i == 0 ? "{\"n_shared_experts\":0}" : "{\"n_shared_experts\":null}");
		assert_int_equal(c.kind[1].shared_intermediate, 0);
		for (int role = OD_ROLE_SHARED_GATE; role <= OD_ROLE_SHARED_SCORE; role++) {
			od_role_shape(&c, (enum od_role)role, 1, &n_out, &n_in);
			assert_int_equal(n_out, 0);
		}
	}
	refuse(deepseek_v2, "{\"n_shared_experts\":700}", OD_ERR_RANGE, "n_shared_experts", "at most 682, found 700");
	refuse(qwen15_moe_a27b, "{\"shared_expert_intermediate_size\":null}", OD_ERR_FORMAT, "shared_expert_intermediate_size",
	       "found null");
	refuse(qwen15_moe_a27b, "{\"shared_expert_intermediate_size\":0}", OD_ERR_RANGE, "shared_expert_intermediate_size",
	       "found 0");
}

/* ---- ropes ---- */

#define YARN(more)                                                                                                             \
	"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768" more "}}"

static void check_yarn(const char *text, const char *changes, double factor, double magnitude, double scale)
{
	struct od_config c;

	take(&c, text, changes);
	near(c.rope[0].factor, factor);
	near((double)c.rope[0].magnitude, magnitude);
	near((double)c.kind[0].mix.scale, scale);
}

static void test_yarn(void **state)
{
	const double plain = 0.08838834764831845; /* 128^-0.5 */
	struct od_config c;

	(void)state;
	/* As Qwen3's model card says for long texts: 0.1 ln 4 + 1. */
	check_yarn(qwen3_30b_a3b, YARN(""), 4, 1.138629436111989, plain);
	check_yarn(mixtral_8x7b, YARN(""), 4, 1.138629436111989, plain);
	check_yarn(olmoe_1b_7b, YARN(""), 4, 1.138629436111989, plain);
	check_yarn(qwen15_moe_a27b, YARN(""), 4, 1.138629436111989, plain);
	take(&c, qwen3_30b_a3b, YARN(""));
	assert_true(c.rope[0].beta_fast == 32 && c.rope[0].beta_slow == 1 && c.rope[0].theta == 1e6);
	assert_int_equal(c.rope[0].original_ctx, 32768);
	take(&c, qwen3_30b_a3b, YARN(",\"beta_fast\":24,\"beta_slow\":2.5,\"truncate\":true,\"rope_theta\":1000000.0"));
	assert_true(c.rope[0].beta_fast == 24 && c.rope[0].beta_slow == 2.5 && !c.rope[0].between);
	take(&c, qwen3_30b_a3b, YARN(",\"truncate\":false"));
	assert_true(c.rope[0].between);
	check_yarn(qwen3_30b_a3b, YARN(",\"attention_factor\":1.25"), 4, 1.25, plain);
	check_yarn(qwen3_30b_a3b, YARN(",\"mscale\":0.5"), 4, 1.138629436111989, plain); /* both, or none counts */
	/* (0.05 ln 4 + 1) / (0.025 ln 4 + 1); of scores only DeepSeek has a factor. */
	check_yarn(qwen3_30b_a3b, YARN(",\"mscale\":0.5,\"mscale_all_dim\":0.25"), 4, 1.0693147180559945 / 1.0346573590279973,
		   plain);
	/* Without factor: 40960 / 32768. */
	check_yarn(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":32768}}", 1.25,
		   1.0223143551314210, plain);
	/* rope_type counts before type, rope_parameters are the newer name. */
	check_yarn(qwen3_30b_a3b,
		   "{\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":\"yarn\",\"type\":\"default\",\"factor\":2,"
		   "\"rope_theta\":1e6,\"original_max_position_embeddings\":20480}}",
		   2, 1.0693147180559945, plain);
}

/* m(s) = 0.1 s ln 8 + 1. */
#define DEEP(more) "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":4096" more "}}"

static void test_yarn_of_deepseek(void **state)
{
	const double plain = 0.07216878364870322; /* 192^-0.5 */
	const double m1 = 1.2079441541679836, m_half = 1.1039720770839918, m_quarter = 1.0519860385419959;

	(void)state;
	check_yarn(deepseek_v2, "{\"rope_scaling\":null}", 0, 1, plain);
	check_yarn(deepseek_v2, DEEP(""), 8, m1, plain);
	check_yarn(deepseek_v2, DEEP(",\"mscale\":1.0"), 8, m1, plain);
	check_yarn(deepseek_v2, DEEP(",\"mscale_all_dim\":0.5"), 8, m1, plain * m_half * m_half);
	check_yarn(deepseek_v2, DEEP(",\"mscale\":0.5,\"mscale_all_dim\":0.25"), 8, m_half / m_quarter,
		   plain * m_quarter * m_quarter);
	check_yarn(deepseek_v2, DEEP(",\"mscale\":0.0,\"mscale_all_dim\":0.0"), 8, m1, plain);
	check_yarn(deepseek_v2, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1,\"mscale\":3,\"mscale_all_dim\":2,"
		   "\"original_max_position_embeddings\":4096}}", 1, 1, plain);
}

static void test_yarn_refuses(void **state)
{
	(void)state;
	refuse(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\"}}", OD_ERR_MISSING, "rope_scaling",
	       "original_max_position_embeddings");
	refuse(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5,\"original_max_position_embeddings\":4096}}",
	       OD_ERR_RANGE, "factor", "found 0.5");
	refuse(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":40961}}", OD_ERR_RANGE,
	       "factor", "40960 is below");
	refuse(qwen3_30b_a3b, YARN(",\"truncate\":0"), OD_ERR_FORMAT, "truncate", "an integer");
	refuse(qwen3_30b_a3b, YARN(",\"partial_rotary_factor\":0.5"), OD_ERR_UNSUPPORTED, "partial_rotary_factor", "0.5");
	refuse(qwen3_30b_a3b, YARN(",\"beta_fast\":-1"), OD_ERR_RANGE, "beta_fast", "-1");
	refuse(qwen3_30b_a3b, YARN(",\"attention_factor\":\"1\""), OD_ERR_FORMAT, "attention_factor", "a string");
	refuse(qwen3_30b_a3b, YARN("},\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6"), OD_ERR_FORMAT,
	       "rope_parameters", "expected one of them, found both");
	refuse(qwen3_30b_a3b, YARN("},\"rope_theta\":1,\"x\":{\"y\":1"), OD_ERR_RANGE, "rope_theta", "YaRN");
	refuse(qwen3_30b_a3b, YARN("},\"rope_theta\":0.5,\"x\":{\"y\":1"), OD_ERR_RANGE, "rope_theta", "0.5");
	refuse(deepseek_v2, DEEP(",\"mscale\":-0.5"), OD_ERR_RANGE, "mscale", "-0.5");
	refuse(deepseek_v2, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", OD_ERR_UNSUPPORTED, "rope_scaling",
	       "llama3");
}

/* ---- what is refused ---- */

static bool reads_itself(const char *text, const char *key)
{
	return (text == glm45 || text == glm45_air || text == minimax_m2) &&
	       (strcmp(key, "use_qk_norm") == 0 || strcmp(key, "partial_rotary_factor") == 0);
}

/* Each of them changes numbers in a model that has it; most families here have none. */
static void test_refuses_what_nothing_here_does(void **state)
{
	static const char *const fields[][3] = {
		{ "{\"mlp_bias\":true}", "mlp_bias", "found true" },
		{ "{\"lm_head_bias\":true}", "lm_head_bias", "found true" },
		{ "{\"use_qk_norm\":true}", "use_qk_norm", "found true" },
		{ "{\"hidden_act\":\"gelu\"}", "hidden_act", "found \"gelu\"" },
		{ "{\"partial_rotary_factor\":0.5}", "partial_rotary_factor", "expected 1, found 0.5" },
		{ "{\"embedding_multiplier\":12.0}", "embedding_multiplier", "expected 1, found 12" },
		{ "{\"residual_multiplier\":0.22}", "residual_multiplier", "0.22" },
		{ "{\"logits_scaling\":16.0}", "logits_scaling", "16" },
		{ "{\"logit_scale\":0.0625}", "logit_scale", "0.0625" },
		{ "{\"attn_logit_softcapping\":50.0}", "attn_logit_softcapping", "expected 0, found 50" },
		{ "{\"final_logit_softcapping\":30.0}", "final_logit_softcapping", "30" },
		{ "{\"swiglu_limit\":7.0}", "swiglu_limit", "7" },
		{ "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "rope_scaling", "linear" },
		{ "{\"rope_scaling\":{\"type\":\"longrope\"}}", "rope_scaling", "longrope" },
	};
	static const char *const neutral[] = {
		"{\"mlp_bias\":false}",		     "{\"partial_rotary_factor\":1.0}",	  "{\"partial_rotary_factor\":1}",
		"{\"attn_logit_softcapping\":null}", "{\"final_logit_softcapping\":0.0}", "{\"hidden_act\":null}",
		"{\"use_qk_norm\":null}",
	};
	struct od_config c;

	(void)state;
	for (size_t i = 0; i < N_PUBLISHED; i++) {
		for (size_t k = 0; k < sizeof(fields) / sizeof(fields[0]); k++)
			if (!reads_itself(published[i], fields[k][1]))
				refuse(published[i], fields[k][0], OD_ERR_UNSUPPORTED, fields[k][1], fields[k][2]);
		for (size_t k = 0; k < sizeof(neutral) / sizeof(neutral[0]); k++)
			if (published[i] != minimax_m2 || strstr(neutral[k], "partial") == NULL)
				take(&c, published[i], neutral[k]);
		refuse(published[i], "{\"mlp_bias\":\"no\"}", OD_ERR_FORMAT, "mlp_bias", "a string");
		refuse(published[i], "{\"logit_scale\":\"1\"}", OD_ERR_FORMAT, "logit_scale", "a string");
		refuse(published[i], "{\"hidden_act\":1}", OD_ERR_FORMAT, "hidden_act", "an integer");
	}
}

static void refuse_without(const char *text, const char *key)
{
	json_t *root = json_loads(text, 0, NULL);
	struct od_config cfg;
	struct od_err err = { 0 };

	assert_int_equal(json_object_del(root, key), 0);
	assert_int_equal(od_config_parse(&cfg, root, "config.json", &err), OD_ERR_MISSING);
	if (strstr(err.msg, key) == NULL)
		fail_msg("%s: %s", key, err.msg);
	json_decref(root);
}

/* Each of a family's own numbers: missing, of another type, too small, too large. */
static void test_refuses_numbers(void **state)
{
	static const char *const required[N_PUBLISHED][12] = {
		{ "num_local_experts", "intermediate_size" },
		{ "num_local_experts", "intermediate_size" },
		{ "num_experts", "moe_intermediate_size", "intermediate_size" },
		{ "num_experts", "moe_intermediate_size", "intermediate_size", "shared_expert_intermediate_size" },
		{ "num_experts", "intermediate_size" },
		{ "n_routed_experts", "moe_intermediate_size", "intermediate_size", "kv_lora_rank", "qk_nope_head_dim",
		  "qk_rope_head_dim", "v_head_dim", "n_group", "topk_group" },
		{ "n_routed_experts", "moe_intermediate_size", "intermediate_size", "kv_lora_rank", "qk_nope_head_dim",
		  "qk_rope_head_dim", "v_head_dim" },
		{ "n_routed_experts", "moe_intermediate_size", "intermediate_size", "kv_lora_rank", "qk_nope_head_dim",
		  "qk_rope_head_dim", "v_head_dim", "n_group", "topk_group" },
		{ "n_routed_experts", "moe_intermediate_size", "intermediate_size", "kv_lora_rank", "qk_nope_head_dim",
		  "qk_rope_head_dim", "v_head_dim", "n_group", "topk_group" },
		{ "n_routed_experts", "moe_intermediate_size", "intermediate_size", "n_group", "topk_group" },
		{ "n_routed_experts", "moe_intermediate_size", "intermediate_size", "n_group", "topk_group" },
	};
	static const char *const all[] = { "num_attention_heads", "num_hidden_layers", "num_experts_per_tok", "hidden_size",
					   "vocab_size", "max_position_embeddings" };

	(void)state;
	for (size_t i = 0; i < N_PUBLISHED; i++) {
		for (size_t k = 0; k < 12 + sizeof(all) / sizeof(all[0]); k++) {
			const char *key = k < 12 ? required[i][k] : all[k - 12];
			char changes[128];

			if (key == NULL)
				continue;
			snprintf(changes, sizeof(changes), "{\"%s\":null}", key);
			refuse(published[i], changes, OD_ERR_FORMAT, key, "found null");
			refuse_without(published[i], key);
			snprintf(changes, sizeof(changes), "{\"%s\":\"12\"}", key);
			refuse(published[i], changes, OD_ERR_FORMAT, key, "a string");
			snprintf(changes, sizeof(changes), "{\"%s\":0}", key);
			refuse(published[i], changes, OD_ERR_RANGE, key, "found 0");
			snprintf(changes, sizeof(changes), "{\"%s\":-3}", key);
			refuse(published[i], changes, OD_ERR_RANGE, key, "found -3");
			snprintf(changes, sizeof(changes), "{\"%s\":4294967297}", key);
			refuse(published[i], changes, OD_ERR_RANGE, key, "found 4294967297");
		}
	}
}

static void test_refuses_experts(void **state)
{
	struct od_config c;

	(void)state;
	refuse(qwen3_30b_a3b, "{\"num_experts_per_tok\":17}", OD_ERR_RANGE, "num_experts_per_tok", "1 to 16, found 17");
	refuse(qwen3_30b_a3b, "{\"num_experts\":7}", OD_ERR_RANGE, "num_experts_per_tok", "1 to 7, found 8");
	/* transformers 5 writes the other name. */
	take(&c, qwen3_30b_a3b, "{\"num_experts\":null,\"num_local_experts\":96}");
	assert_int_equal(c.n_experts, 96);
	take(&c, qwen3_30b_a3b, "{\"num_local_experts\":128}");
	assert_int_equal(c.n_experts, 128);
	refuse(qwen3_30b_a3b, "{\"num_local_experts\":96}", OD_ERR_FORMAT, "num_local_experts", "found 128 and 96");
	refuse(deepseek_v2, "{\"n_routed_experts\":4097}", OD_ERR_RANGE, "n_routed_experts", "found 4097");
	refuse(deepseek_v2, "{\"topk_method\":\"noaux_tc\"}", OD_ERR_UNSUPPORTED, "topk_method", "noaux_tc");
	refuse(deepseek_v2, "{\"topk_method\":3}", OD_ERR_FORMAT, "topk_method", "an integer");
	refuse(deepseek_v2, "{\"scoring_func\":\"sigmoid\"}", OD_ERR_UNSUPPORTED, "scoring_func", "sigmoid");
	refuse(deepseek_v2, "{\"norm_topk_prob\":true}", OD_ERR_UNSUPPORTED, "norm_topk_prob", "found true");
	refuse(deepseek_v2, "{\"moe_layer_freq\":2}", OD_ERR_UNSUPPORTED, "moe_layer_freq", "expected 1, found 2");
	refuse(deepseek_v2, "{\"n_group\":7}", OD_ERR_FORMAT, "n_group", "divisor of \"n_routed_experts\" 160, found 7");
	refuse(deepseek_v2, "{\"n_group\":80}", OD_ERR_RANGE, "n_group", "found 80");
	refuse(deepseek_v2, "{\"topk_group\":9}", OD_ERR_RANGE, "topk_group", "1 to 8, found 9");
	refuse(deepseek_v2, "{\"n_group\":40,\"topk_group\":1}", OD_ERR_FORMAT, "topk_group", "fewer than");
	refuse(deepseek_v2, "{\"routed_scaling_factor\":0}", OD_ERR_RANGE, "routed_scaling_factor", "found 0");
	refuse(deepseek_v2, "{\"routed_scaling_factor\":\"16\"}", OD_ERR_FORMAT, "routed_scaling_factor", "a string");
}

static void test_refuses_attention(void **state)
{
	static const char *const gqa[] = { mixtral_8x7b, qwen3_30b_a3b, qwen15_moe_a27b, olmoe_1b_7b, glm45 };

	(void)state;
	for (size_t i = 0; i < sizeof(gqa) / sizeof(gqa[0]); i++) {
		refuse(gqa[i], "{\"num_key_value_heads\":5}", OD_ERR_FORMAT, "num_key_value_heads", "found 5");
		refuse(gqa[i], "{\"head_dim\":33}", OD_ERR_UNSUPPORTED, "head_dim", "found 33");
		refuse(gqa[i], "{\"head_dim\":1000000}", OD_ERR_RANGE, "head_dim", "found 1000000");
		refuse(gqa[i], "{\"head_dim\":null,\"num_attention_heads\":24,\"num_key_value_heads\":8}", OD_ERR_FORMAT,
		       "head_dim", "24");
	}
	refuse(deepseek_v2, "{\"qk_rope_head_dim\":63}", OD_ERR_UNSUPPORTED, "qk_rope_head_dim", "even number");
	refuse(deepseek_v2, "{\"kv_lora_rank\":4097}", OD_ERR_RANGE, "kv_lora_rank", "found 4097");
	refuse(deepseek_v2, "{\"num_attention_heads\":2000}", OD_ERR_RANGE, "num_attention_heads", "found 2000 heads");
	refuse(deepseek_v2, "{\"q_lora_rank\":0}", OD_ERR_RANGE, "q_lora_rank", "found 0");
	refuse(deepseek_v2, "{\"q_lora_rank\":\"none\"}", OD_ERR_FORMAT, "q_lora_rank", "a string");
}

/* What is given must match one family. */
static void test_refuses_strangers(void **state)
{
	static const char *const names[] = { "mixtral (MixtralForCausalLM)",  "qwen3_moe (Qwen3MoeForCausalLM)",
					     "qwen2_moe (Qwen2MoeForCausalLM)", "olmoe (OlmoeForCausalLM)",
					     "deepseek_v2 (DeepseekV2ForCausalLM)", "deepseek_v3 (DeepseekV3ForCausalLM)",
					     "glm4_moe (Glm4MoeForCausalLM)", "glm4_moe_lite (Glm4MoeLiteForCausalLM)",
					     "minimax_m2 (MiniMaxM2ForCausalLM)" };

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		refuse(olmoe_1b_7b, "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"}", OD_ERR_UNSUPPORTED,
		       "LlamaForCausalLM", names[i]);
	refuse(qwen3_30b_a3b, "{\"model_type\":\"qwen2_moe\"}", OD_ERR_UNSUPPORTED, "Qwen3MoeForCausalLM", "qwen2_moe");
	refuse(deepseek_v2, "{\"architectures\":[\"DeepseekV3ForCausalLM\"]}", OD_ERR_UNSUPPORTED, "DeepseekV3ForCausalLM",
	       "known");
	refuse(kimi_k2, "{\"architectures\":[\"Glm4MoeForCausalLM\"]}", OD_ERR_UNSUPPORTED, "kimi_k2", "known");
}

/* ---- the line for fingerprints ---- */

static char *canonical(const char *text, const char *changes)
{
	struct od_strbuf b = { 0 };
	struct od_config c;
	struct od_err err;

	take(&c, text, changes);
	assert_int_equal(od_config_canonical(&c, &b, &err), OD_OK);
	return b.text;
}

/* Every setting of a family that changes numbers changes it. */
static void test_canonical(void **state)
{
	static const struct {
		const char *text, *changes;
	} t[] = {
		{ qwen3_30b_a3b, "{\"mlp_only_layers\":[3]}" },
		{ qwen3_30b_a3b, "{\"mlp_only_layers\":[4]}" },
		{ qwen3_30b_a3b, "{\"decoder_sparse_step\":2}" },
		{ qwen3_30b_a3b, "{\"decoder_sparse_step\":2,\"intermediate_size\":6145}" },
		{ qwen3_30b_a3b, "{\"attention_bias\":true}" },
		{ qwen3_30b_a3b, "{\"norm_topk_prob\":false}" },
		{ qwen3_30b_a3b, "{\"head_dim\":64}" },
		{ qwen3_30b_a3b, "{\"moe_intermediate_size\":769}" },
		{ qwen3_30b_a3b, "{\"use_sliding_window\":true,\"sliding_window\":4096}" },
		{ qwen3_30b_a3b, "{\"rms_norm_eps\":1e-5}" },
		{ qwen3_30b_a3b, YARN("") },
		{ qwen3_30b_a3b, YARN(",\"attention_factor\":1") },
		{ qwen3_30b_a3b, YARN(",\"beta_fast\":31") },
		{ qwen3_30b_a3b, YARN(",\"beta_slow\":2") },
		{ qwen3_30b_a3b, YARN(",\"truncate\":false") },
		{ qwen15_moe_a27b, "{\"qkv_bias\":false}" },
		{ qwen15_moe_a27b, "{\"shared_expert_intermediate_size\":5633}" },
		{ qwen15_moe_a27b, "{\"norm_topk_prob\":true}" },
		{ qwen15_moe_a27b, "{\"use_sliding_window\":true}" },
		{ qwen15_moe_a27b, "{\"use_sliding_window\":true,\"max_window_layers\":2}" },
		{ olmoe_1b_7b, "{\"clip_qkv\":8.0}" },
		{ olmoe_1b_7b, "{\"clip_qkv\":8.5}" },
		{ olmoe_1b_7b, "{\"attention_bias\":true}" },
		{ deepseek_v2, "{\"first_k_dense_replace\":2}" },
		{ deepseek_v2, "{\"intermediate_size\":12289}" },
		{ deepseek_v2, "{\"q_lora_rank\":null}" },
		{ deepseek_v2, "{\"kv_lora_rank\":256}" },
		{ deepseek_v2, "{\"qk_nope_head_dim\":126}" },
		{ deepseek_v2, "{\"qk_rope_head_dim\":66,\"qk_nope_head_dim\":126}" },
		{ deepseek_v2, "{\"v_head_dim\":64}" },
		{ deepseek_v2, "{\"n_shared_experts\":1}" },
		{ deepseek_v2, "{\"n_group\":4}" },
		{ deepseek_v2, "{\"topk_group\":4}" },
		{ deepseek_v2, "{\"topk_method\":\"greedy\"}" },
		{ deepseek_v2, "{\"routed_scaling_factor\":1.0}" },
		{ deepseek_v3, "{\"topk_group\":5}" },
		{ deepseek_v3, "{\"n_group\":16}" },
		{ deepseek_v3, "{\"norm_topk_prob\":false}" },
		{ deepseek_v3, "{\"routed_scaling_factor\":1}" },
		{ deepseek_v3, "{\"first_k_dense_replace\":2}" },
		{ glm45, "{\"use_qk_norm\":false}" },
		{ glm45, "{\"attention_bias\":false}" },
		{ glm45, "{\"partial_rotary_factor\":0.25}" },
		{ glm45, "{\"n_group\":2}" },
		{ glm45, "{\"norm_topk_prob\":false}" },
		{ minimax_m2, "{\"rotary_dim\":32}" },
		{ minimax_m2, "{\"head_dim\":64}" },
		{ deepseek_v2, DEEP("") },
		{ deepseek_v2, DEEP(",\"mscale_all_dim\":0.5") },
	};
	char *line[sizeof(t) / sizeof(t[0]) + N_PUBLISHED];
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < N_PUBLISHED; i++)
		line[n++] = canonical(published[i], "{}");
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		line[n++] = canonical(t[i].text, t[i].changes);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if (strcmp(line[i], line[k]) == 0)
				fail_msg("%zu and %zu are alike: %s", i, k, line[i]);
	for (size_t i = 0; i < n; i++)
		free(line[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_qwen3_30b_a3b),
		cmocka_unit_test(test_qwen15_moe_a27b),
		cmocka_unit_test(test_olmoe_1b_7b),
		cmocka_unit_test(test_deepseek_v2),
		cmocka_unit_test(test_deepseek_v2_lite),
		cmocka_unit_test(test_deepseek_v3),
		cmocka_unit_test(test_glm45),
		cmocka_unit_test(test_glm_lite),
		cmocka_unit_test(test_minimax_m2),
		cmocka_unit_test(test_rotates_in_part),
		cmocka_unit_test(test_refuses_what_minimax_m1_had),
		cmocka_unit_test(test_refuses_other_v3),
		cmocka_unit_test(test_dense_layers),
		cmocka_unit_test(test_windows),
		cmocka_unit_test(test_biases_and_clipping),
		cmocka_unit_test(test_routers),
		cmocka_unit_test(test_shared_experts),
		cmocka_unit_test(test_yarn),
		cmocka_unit_test(test_yarn_of_deepseek),
		cmocka_unit_test(test_yarn_refuses),
		cmocka_unit_test(test_refuses_what_nothing_here_does),
		cmocka_unit_test(test_refuses_numbers),
		cmocka_unit_test(test_refuses_experts),
		cmocka_unit_test(test_refuses_attention),
		cmocka_unit_test(test_refuses_strangers),
		cmocka_unit_test(test_canonical),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
