#include "tests/unit/family_util.h"

#include <string.h>

#include "common/base/json.h"

const char mixtral_8x7b[] =
	"{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"bos_token_id\":1,\"eos_token_id\":2,"
	"\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
	"\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
	"\"num_local_experts\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"sliding_window\":null,"
	"\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"vocab_size\":32000}";

const char qwen3_30b_a3b[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":151643,\"decoder_sparse_step\":"
	"1,"
	"\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":6144,"
	"\"max_position_embeddings\":40960,\"max_window_layers\":48,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\","
	"\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"num_attention_heads\":32,\"num_experts\":128,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":48,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,"
	"\"rope_scaling\":null,\"rope_theta\":1000000.0,\"sliding_window\":null,\"tie_word_embeddings\":false,"
	"\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,\"vocab_size\":151936}";

const char qwen15_moe_a27b[] =
	"{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"bos_token_id\":151643,\"decoder_sparse_step\":1,\"eos_token_id\":"
	"151643,"
	"\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":5632,\"max_position_embeddings\":8192,"
	"\"max_window_layers\":21,\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":1408,\"norm_topk_prob\":false,"
	"\"num_attention_heads\":16,\"num_experts\":60,\"num_experts_per_tok\":4,\"num_hidden_layers\":24,"
	"\"num_key_value_heads\":16,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"shared_expert_intermediate_size\":5632,"
	"\"sliding_window\":32768,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,"
	"\"vocab_size\":151936}";

const char olmoe_1b_7b[] =
	"{\"architectures\":[\"OlmoeForCausalLM\"],\"attention_bias\":false,\"clip_qkv\":null,\"eos_token_id\":50279,"
	"\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":1024,\"max_position_embeddings\":4096,"
	"\"model_type\":\"olmoe\",\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts\":64,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":16,\"num_key_value_heads\":16,\"pad_token_id\":1,"
	"\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,"
	"\"torch_dtype\":\"bfloat16\",\"vocab_size\":50304}";

const char deepseek_v2[] =
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

const char deepseek_v2_lite[] =
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

const char deepseek_v3[] =
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

const char kimi_k2[] =
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

const char glm45[] =
	"{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,\"eos_token_id\":[151329,151336,151338],"
	"\"first_k_dense_replace\":3,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":5120,"
	"\"intermediate_size\":12288,\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\","
	"\"moe_intermediate_size\":1536,\"n_group\":1,\"n_routed_experts\":160,\"n_shared_experts\":1,"
	"\"norm_topk_prob\":true,\"num_attention_heads\":96,\"num_experts_per_tok\":8,\"num_hidden_layers\":92,"
	"\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":0.5,"
	"\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":1000000,\"routed_scaling_factor\":2.5,"
	"\"tie_word_embeddings\":false,\"topk_group\":1,\"torch_dtype\":\"bfloat16\",\"use_qk_norm\":true,"
	"\"vocab_size\":151552}";

const char glm45_air[] =
	"{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,\"eos_token_id\":[151329,151336,151338],"
	"\"first_k_dense_replace\":1,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":4096,"
	"\"intermediate_size\":10944,\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\","
	"\"moe_intermediate_size\":1408,\"n_group\":1,\"n_routed_experts\":128,\"n_shared_experts\":1,"
	"\"norm_topk_prob\":true,\"num_attention_heads\":96,\"num_experts_per_tok\":8,\"num_hidden_layers\":46,"
	"\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":0.5,"
	"\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":1000000,\"routed_scaling_factor\":1.0,"
	"\"tie_word_embeddings\":false,\"topk_group\":1,\"torch_dtype\":\"bfloat16\",\"use_qk_norm\":false,"
	"\"vocab_size\":151552}";

const char minimax_m2[] =
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

const char qwen3_next_80b[] =
	"{\"architectures\":[\"Qwen3NextForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":151643,"
	"\"decoder_sparse_step\":1,\"eos_token_id\":151645,\"full_attention_interval\":4,\"head_dim\":256,"
	"\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":5120,\"linear_conv_kernel_dim\":4,"
	"\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,"
	"\"linear_value_head_dim\":128,\"max_position_embeddings\":262144,\"mlp_only_layers\":[],"
	"\"model_type\":\"qwen3_next\",\"moe_intermediate_size\":512,\"norm_topk_prob\":true,"
	"\"num_attention_heads\":16,\"num_experts\":512,\"num_experts_per_tok\":10,\"num_hidden_layers\":48,"
	"\"num_key_value_heads\":2,\"partial_rotary_factor\":0.25,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,"
	"\"rope_theta\":10000000,\"shared_expert_intermediate_size\":512,\"tie_word_embeddings\":false,"
	"\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,\"vocab_size\":151936}";

const char qwen35_35b[] =
	"{\"architectures\":[\"Qwen3_5MoeForCausalLM\"],\"attention_bias\":false,\"attn_output_gate\":true,"
	"\"eos_token_id\":248044,\"full_attention_interval\":4,\"head_dim\":256,\"hidden_act\":\"silu\","
	"\"hidden_size\":2048,\"layer_types\":[\"linear_attention\",\"linear_attention\",\"linear_attention\","
	"\"full_attention\"],\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,"
	"\"linear_num_value_heads\":32,\"linear_value_head_dim\":128,\"mamba_ssm_dtype\":\"float32\","
	"\"max_position_embeddings\":262144,\"mlp_only_layers\":[],\"model_type\":\"qwen3_5_moe_text\","
	"\"moe_intermediate_size\":512,\"mtp_num_hidden_layers\":1,\"num_attention_heads\":16,\"num_experts\":256,"
	"\"num_experts_per_tok\":8,\"num_hidden_layers\":4,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,"
	"\"rope_parameters\":{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],\"partial_rotary_factor\":0.25,"
	"\"rope_theta\":10000000,\"rope_type\":\"default\"},\"shared_expert_intermediate_size\":512,"
	"\"tie_word_embeddings\":false,\"vocab_size\":248320}";
#define SLIDES_AND_NOT "\"sliding_attention\",\"full_attention\","
#define SLIDES_AND_NOT_4 SLIDES_AND_NOT SLIDES_AND_NOT SLIDES_AND_NOT SLIDES_AND_NOT
const char gpt_oss_20b[] =
	"{\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,\"attention_dropout\":0.0,"
	"\"eos_token_id\":200002,\"experts_per_token\":4,\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2880,"
	"\"initial_context_length\":4096,\"intermediate_size\":2880,"
	"\"layer_types\":[" SLIDES_AND_NOT_4 SLIDES_AND_NOT_4 SLIDES_AND_NOT SLIDES_AND_NOT SLIDES_AND_NOT
	"\"sliding_attention\",\"full_attention\"],\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\","
	"\"num_attention_heads\":64,\"num_experts_per_tok\":4,\"num_hidden_layers\":24,\"num_key_value_heads\":8,"
	"\"num_local_experts\":32,\"output_router_logits\":false,\"quantization_config\":{\"modules_to_not_convert\":"
	"[\"model.layers.*.self_attn\",\"model.layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],"
	"\"quant_method\":\"mxfp4\"},\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,"
	"\"factor\":32.0,\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\",\"truncate\":false},"
	"\"rope_theta\":150000,\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,"
	"\"vocab_size\":201088}";

const char gemma4_26b_a4b[] =
	"{\"architectures\":[\"Gemma4ForCausalLM\"],\"attention_bias\":false,\"attention_k_eq_v\":true,\"bos_token_id\":2,"
	"\"enable_moe_block\":true,\"eos_token_id\":1,\"final_logit_softcapping\":30.0,\"global_head_dim\":512,"
	"\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":2816,\"hidden_size_per_layer_input\":0,"
	"\"intermediate_size\":2112,\"max_position_embeddings\":262144,\"model_type\":\"gemma4_text\","
	"\"moe_intermediate_size\":704,\"num_attention_heads\":16,\"num_experts\":128,\"num_global_key_value_heads\":2,"
	"\"num_hidden_layers\":30,\"num_key_value_heads\":8,\"num_kv_shared_layers\":0,\"rms_norm_eps\":1e-06,"
	"\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0,"
	"\"rope_type\":\"proportional\"},\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},"
	"\"sliding_window\":1024,\"tie_word_embeddings\":true,\"top_k_experts\":8,"
	"\"use_bidirectional_attention\":\"vision\",\"use_double_wide_mlp\":false,\"vocab_size\":262144,"
	"\"vocab_size_per_layer_input\":262144}";

#define GQA_MOE "moe_intermediate_size", "intermediate_size"
#define MLA_MOE "n_routed_experts", GQA_MOE, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
#define GROUPS "n_group", "topk_group"
#define DELTA \
	"linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim", \
		"shared_expert_intermediate_size"
#define GATED "partial_rotary_factor", "layer_types", "sliding_window", "use_qk_norm"
#define PARTIAL "use_qk_norm", "partial_rotary_factor"

const struct family_text family_published[] = {
	{ .config = mixtral_8x7b,
	  .numbers = { "num_local_experts", "intermediate_size" },
	  .reads = { "sliding_window" },
	  .no_norm_topk = true },
	{ .config = minimax_m2,
	  .numbers = { "num_local_experts", "intermediate_size" },
	  .reads = { PARTIAL },
	  .no_norm_topk = true },
	{ .config = qwen3_30b_a3b,
	  .numbers = { "num_experts", GQA_MOE },
	  .reads = { "sliding_window", "use_qk_norm" } },
	{ .config = qwen15_moe_a27b,
	  .numbers = { "num_experts", GQA_MOE, "shared_expert_intermediate_size" },
	  .reads = { "sliding_window", "layer_types" } },
	{ .config = olmoe_1b_7b, .numbers = { "num_experts", "intermediate_size" }, .reads = { "use_qk_norm" } },
	{ .config = deepseek_v2, .numbers = { MLA_MOE, GROUPS } },
	{ .config = deepseek_v2_lite, .numbers = { MLA_MOE } },
	{ .config = deepseek_v3, .numbers = { MLA_MOE, GROUPS } },
	{ .config = kimi_k2, .numbers = { MLA_MOE, GROUPS } },
	{ .config = glm45, .numbers = { "n_routed_experts", GQA_MOE, GROUPS }, .reads = { PARTIAL } },
	{ .config = gpt_oss_20b,
	  .numbers = { "num_local_experts", "intermediate_size", "sliding_window" },
	  .reads = { "swiglu_limit", "sliding_window", "layer_types" },
	  .no_norm_topk = true },
	{ .config = glm45_air, .numbers = { "n_routed_experts", GQA_MOE, GROUPS }, .reads = { PARTIAL } },
	{ .config = qwen3_next_80b, .numbers = { "num_experts", GQA_MOE, DELTA }, .reads = { GATED } },
	{ .config = qwen35_35b,
	  .numbers = { "num_experts", "moe_intermediate_size", DELTA },
	  .reads = { GATED, "rope_scaling" },
	  .no_norm_topk = true },
	{ .config = gemma4_26b_a4b,
	  .numbers = { "num_experts", GQA_MOE, "num_key_value_heads" },
	  .reads = { "final_logit_softcapping", "sliding_window", "layer_types", "per_layer_config" },
	  .no_norm_topk = true,
	  .top_k = "top_k_experts" },
};
const size_t n_family_published = sizeof(family_published) / sizeof(family_published[0]);

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

void take(struct od_config *cfg, const char *text, const char *changes)
{
	struct od_err err = { 0 };

	if (parse_with(cfg, text, changes, &err) != OD_OK)
		fail_msg("%s: %s", changes, err.msg);
}

void refuse(const char *text, const char *changes, int code, const char *text1, const char *text2)
{
	struct od_config cfg;
	struct od_err err = { 0 };
	int rc = parse_with(&cfg, text, changes, &err);

	if (rc != code || err.code != code || strstr(err.msg, "config.json") == NULL ||
	    strstr(err.msg, text1) == NULL || strstr(err.msg, text2) == NULL)
		fail_msg("%s: code %d, \"%s\"; expected %d, \"%s\", \"%s\"", changes, rc, err.msg, code, text1, text2);
	assert_null(cfg.family);
}

void near(double found, double expected)
{
	if (!(fabs(found - expected) <= 1e-7 * fabs(expected)))
		fail_msg("expected %.9g, found %.9g", expected, found);
}

void check_tensors(const struct od_config *c, const struct tensor *list, size_t n)
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

void check_expert(const struct od_config *c, uint32_t m, uint32_t expert, const char *gate, const char *up,
		  const char *down)
{
	const char *const expected[] = { [OD_MAT_GATE] = gate, [OD_MAT_UP] = up, [OD_MAT_DOWN] = down };

	for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
		char name[OD_NAME_BYTES];

		od_expert_source_name(c, m, expert, (enum od_expert_mat)mat, name);
		assert_string_equal(name, expected[mat]);
	}
}

void check_counts(const struct od_config *c, const char *family, uint32_t n_layers, uint32_t dense, uint32_t n_kinds)
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

void check_experts(const struct od_config *c, uint32_t n_experts, uint32_t top_k, uint32_t intermediate)
{
	assert_int_equal(c->n_experts, n_experts);
	assert_int_equal(c->top_k, top_k);
	assert_int_equal(c->intermediate, intermediate);
}

void check_plain_rope(const struct od_config *c, uint32_t dims, double theta)
{
	assert_int_equal(c->n_ropes, 1);
	assert_int_equal(c->rope[0].dims, dims);
	assert_false(c->rope[0].neighbours);
	assert_true(c->rope[0].theta == theta && c->rope[0].magnitude == 1 && c->rope[0].factor == 0);
}

void check_heads(const struct od_mixer *m, uint32_t n_heads, uint32_t n_kv_heads, uint32_t k_dim, uint32_t v_dim)
{
	assert_int_equal(m->n_heads, n_heads);
	assert_int_equal(m->n_kv_heads, n_kv_heads);
	assert_int_equal(m->k_dim, k_dim);
	assert_int_equal(m->v_dim, v_dim);
	assert_int_equal(m->window, 0);
	assert_int_equal(m->rope, 0);
}
