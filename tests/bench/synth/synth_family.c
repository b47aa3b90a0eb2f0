#include "tests/bench/synth/synth_family.h"

#include "common/base/json.h"
#include "common/model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_16 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"
#define PAIRS_64 PAIRS_16 "," PAIRS_16 "," PAIRS_16 "," PAIRS_16

/* config.json as published, but for ids of special tokens: the synthetic tokeniser has its own. */
static const struct {
	const char *family, *model, *experts, *config;
} published[] = {
	{ "mixtral", "Mixtral 8x7B", "num_local_experts",
	  "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_act\":\"silu\","
	  "\"hidden_size\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
	  "\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
	  "\"num_local_experts\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"tie_word_embeddings\":false,"
	  "\"vocab_size\":32000}" },
	{ "qwen3_moe", "Qwen3-30B-A3B", "num_experts",
	  "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,\"decoder_sparse_step\":1,"
	  "\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":6144,"
	  "\"max_position_embeddings\":40960,\"max_window_layers\":48,\"mlp_only_layers\":[],"
	  "\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":768,\"norm_topk_prob\":true,"
	  "\"num_attention_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":48,"
	  "\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"tie_word_embeddings\":false,"
	  "\"use_sliding_window\":false,\"vocab_size\":151936}" },
	{ "qwen2_moe", "Qwen1.5-MoE-A2.7B", "num_experts",
	  "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"decoder_sparse_step\":1,\"hidden_act\":\"silu\","
	  "\"hidden_size\":2048,\"intermediate_size\":5632,\"max_position_embeddings\":8192,"
	  "\"max_window_layers\":21,\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":1408,"
	  "\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts\":60,\"num_experts_per_tok\":4,"
	  "\"num_hidden_layers\":24,\"num_key_value_heads\":16,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
	  "\"shared_expert_intermediate_size\":5632,\"sliding_window\":32768,\"tie_word_embeddings\":false,"
	  "\"use_sliding_window\":false,\"vocab_size\":151936}" },
	{ "olmoe", "OLMoE-1B-7B", "num_experts",
	  "{\"architectures\":[\"OlmoeForCausalLM\"],\"attention_bias\":false,\"hidden_act\":\"silu\","
	  "\"hidden_size\":2048,\"intermediate_size\":1024,\"max_position_embeddings\":4096,"
	  "\"model_type\":\"olmoe\",\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts\":64,"
	  "\"num_experts_per_tok\":8,\"num_hidden_layers\":16,\"num_key_value_heads\":16,\"pad_token_id\":1,"
	  "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"vocab_size\":50304}" },
	{ "deepseek_v2", "DeepSeek-V2", "n_routed_experts",
	  "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"attention_bias\":false,\"first_k_dense_replace\":1,"
	  "\"hidden_act\":\"silu\",\"hidden_size\":5120,\"intermediate_size\":12288,\"kv_lora_rank\":512,"
	  "\"max_position_embeddings\":163840,\"model_type\":\"deepseek_v2\",\"moe_intermediate_size\":1536,"
	  "\"moe_layer_freq\":1,\"n_group\":8,\"n_routed_experts\":160,\"n_shared_experts\":2,"
	  "\"norm_topk_prob\":false,\"num_attention_heads\":128,\"num_experts_per_tok\":6,\"num_hidden_layers\":60,"
	  "\"num_key_value_heads\":128,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
	  "\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"
	  "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},"
	  "\"rope_theta\":10000,\"routed_scaling_factor\":16.0,\"scoring_func\":\"softmax\","
	  "\"tie_word_embeddings\":false,\"topk_group\":3,\"topk_method\":\"group_limited_greedy\","
	  "\"v_head_dim\":128,\"vocab_size\":102400}" },
	{ "deepseek_v3", "DeepSeek-V3", "n_routed_experts",
	  "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"attention_bias\":false,\"first_k_dense_replace\":3,"
	  "\"hidden_act\":\"silu\",\"hidden_size\":7168,\"intermediate_size\":18432,\"kv_lora_rank\":512,"
	  "\"max_position_embeddings\":163840,\"model_type\":\"deepseek_v3\",\"moe_intermediate_size\":2048,"
	  "\"moe_layer_freq\":1,\"n_group\":8,\"n_routed_experts\":256,\"n_shared_experts\":1,"
	  "\"norm_topk_prob\":true,\"num_attention_heads\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":61,"
	  "\"num_key_value_heads\":128,\"num_nextn_predict_layers\":1,\"q_lora_rank\":1536,"
	  "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,"
	  "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
	  "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,"
	  "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"tie_word_embeddings\":false,"
	  "\"topk_group\":4,\"topk_method\":\"noaux_tc\",\"v_head_dim\":128,\"vocab_size\":129280}" },
	{ "glm4_moe", "GLM-4.5", "n_routed_experts",
	  "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,\"first_k_dense_replace\":3,"
	  "\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":5120,\"intermediate_size\":12288,"
	  "\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":1536,"
	  "\"n_group\":1,\"n_routed_experts\":160,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
	  "\"num_attention_heads\":96,\"num_experts_per_tok\":8,\"num_hidden_layers\":92,\"num_key_value_heads\":8,"
	  "\"num_nextn_predict_layers\":1,\"partial_rotary_factor\":0.5,\"rms_norm_eps\":1e-05,"
	  "\"rope_theta\":1000000,\"routed_scaling_factor\":2.5,\"tie_word_embeddings\":false,\"topk_group\":1,"
	  "\"use_qk_norm\":true,\"vocab_size\":151552}" },
	{ "glm4_moe_lite", "GLM-4.7-Flash", "n_routed_experts",
	  "{\"architectures\":[\"Glm4MoeLiteForCausalLM\"],\"attention_bias\":false,\"hidden_act\":\"silu\","
	  "\"hidden_size\":2048,\"intermediate_size\":10240,\"kv_lora_rank\":512,"
	  "\"max_position_embeddings\":202752,\"model_type\":\"glm4_moe_lite\",\"moe_intermediate_size\":1536,"
	  "\"n_group\":1,\"n_routed_experts\":64,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
	  "\"num_attention_heads\":20,\"num_experts_per_tok\":4,\"num_hidden_layers\":47,"
	  "\"num_key_value_heads\":20,\"num_nextn_predict_layers\":1,\"q_lora_rank\":768,\"qk_nope_head_dim\":192,"
	  "\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000,\"routed_scaling_factor\":1.8,"
	  "\"tie_word_embeddings\":false,\"topk_group\":1,\"topk_method\":\"noaux_tc\",\"first_k_dense_replace\":1,"
	  "\"v_head_dim\":256,\"vocab_size\":154880}" },
	{ "minimax_m2", "MiniMax-M2", "num_local_experts",
	  "{\"architectures\":[\"MiniMaxM2ForCausalLM\"],\"head_dim\":128,\"hidden_act\":\"silu\","
	  "\"hidden_size\":3072,\"intermediate_size\":1536,\"layernorm_full_attention_beta\":1.0,"
	  "\"layernorm_linear_attention_beta\":1.0,\"layernorm_mlp_beta\":1.0,\"max_position_embeddings\":196608,"
	  "\"mlp_intermediate_size\":8192,\"model_type\":\"minimax_m2\",\"num_attention_heads\":48,"
	  "\"num_experts_per_tok\":8,\"num_hidden_layers\":62,\"num_key_value_heads\":8,\"num_local_experts\":256,"
	  "\"num_mtp_modules\":3,\"qk_norm_type\":\"per_layer\",\"rms_norm_eps\":1e-06,\"rope_theta\":5000000,"
	  "\"rotary_dim\":64,\"scoring_func\":\"sigmoid\",\"shared_intermediate_size\":0,"
	  "\"shared_moe_mode\":\"sigmoid\",\"tie_word_embeddings\":false,\"use_mtp\":true,\"use_qk_norm\":true,"
	  "\"use_routing_bias\":true,\"vocab_size\":200064}" },
	{ "phimoe", "Phi-3.5-MoE", "num_local_experts", /* the factors of frequencies are plain */
	  "{\"architectures\":[\"PhiMoEForCausalLM\"],\"attention_bias\":true,\"hidden_act\":\"silu\","
	  "\"hidden_size\":4096,\"input_jitter_noise\":0.01,\"intermediate_size\":6400,\"lm_head_bias\":true,"
	  "\"max_position_embeddings\":131072,\"model_type\":\"phimoe\",\"num_attention_heads\":32,"
	  "\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
	  "\"num_local_experts\":16,\"original_max_position_embeddings\":4096,\"rms_norm_eps\":1e-05,"
	  "\"rope_scaling\":{\"long_factor\":[" PAIRS_64 "],\"long_mscale\":1.243163121016122,"
	  "\"original_max_position_embeddings\":4096,\"short_factor\":[" PAIRS_64 "],"
	  "\"short_mscale\":1.243163121016122,\"type\":\"longrope\"},\"rope_theta\":10000.0,"
	  "\"router_jitter_noise\":0.01,\"sliding_window\":131072,\"tie_word_embeddings\":false,"
	  "\"vocab_size\":32064}" },
	{ "gpt_oss", "gpt-oss-20b", "num_local_experts", /* 120b: 36 layers, 128 experts */
	  "{\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,\"experts_per_token\":4,\"head_dim\":64,"
	  "\"hidden_act\":\"silu\",\"hidden_size\":2880,\"initial_context_length\":4096,\"intermediate_size\":2880,"
	  "\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\",\"num_attention_heads\":64,"
	  "\"num_experts_per_tok\":4,\"num_hidden_layers\":24,\"num_key_value_heads\":8,\"num_local_experts\":32,"
	  "\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\","
	  "\"model.layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],\"quant_method\":\"mxfp4\"},"
	  "\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"
	  "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\",\"truncate\":false},"
	  "\"rope_theta\":150000,\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,"
	  "\"vocab_size\":201088}" },
	{ "qwen3_next", "Qwen3-Next-80B-A3B", "num_experts",
	  "{\"architectures\":[\"Qwen3NextForCausalLM\"],\"attention_bias\":false,\"decoder_sparse_step\":1,"
	  "\"full_attention_interval\":4,\"head_dim\":256,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
	  "\"intermediate_size\":5120,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"
	  "\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"linear_value_head_dim\":128,"
	  "\"max_position_embeddings\":262144,\"mlp_only_layers\":[],\"model_type\":\"qwen3_next\","
	  "\"moe_intermediate_size\":512,\"norm_topk_prob\":true,\"num_attention_heads\":16,\"num_experts\":512,"
	  "\"num_experts_per_tok\":10,\"num_hidden_layers\":48,\"num_key_value_heads\":2,"
	  "\"partial_rotary_factor\":0.25,\"rms_norm_eps\":1e-06,\"rope_theta\":10000000,"
	  "\"shared_expert_intermediate_size\":512,\"tie_word_embeddings\":false,\"use_sliding_window\":false,"
	  "\"vocab_size\":151936}" },
	/* its text part; of layer_types only the interval, for fewer layers */
	{ "qwen3_5_moe", "Qwen3.5-35B-A3B", "num_experts",
	  "{\"architectures\":[\"Qwen3_5MoeForCausalLM\"],\"attention_bias\":false,\"attn_output_gate\":true,"
	  "\"full_attention_interval\":4,\"head_dim\":256,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
	  "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_num_key_heads\":16,"
	  "\"linear_num_value_heads\":32,\"linear_value_head_dim\":128,\"max_position_embeddings\":262144,"
	  "\"model_type\":\"qwen3_5_moe_text\",\"moe_intermediate_size\":512,\"num_attention_heads\":16,"
	  "\"num_experts\":256,\"num_experts_per_tok\":8,\"num_hidden_layers\":40,\"num_key_value_heads\":2,"
	  "\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"partial_rotary_factor\":0.25,\"rope_theta\":10000000,"
	  "\"rope_type\":\"default\"},\"shared_expert_intermediate_size\":512,\"tie_word_embeddings\":false,"
	  "\"vocab_size\":248320}" },
	/* its text part; without layer_types, whose rule is the default */
	{ "gemma4", "Gemma 4 26B-A4B", "num_experts",
	  "{\"architectures\":[\"Gemma4ForCausalLM\"],\"attention_bias\":false,\"attention_k_eq_v\":true,"
	  "\"enable_moe_block\":true,\"final_logit_softcapping\":30.0,\"global_head_dim\":512,\"head_dim\":256,"
	  "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":2816,\"hidden_size_per_layer_input\":0,"
	  "\"intermediate_size\":2112,\"max_position_embeddings\":262144,\"model_type\":\"gemma4_text\","
	  "\"moe_intermediate_size\":704,\"num_attention_heads\":16,\"num_experts\":128,"
	  "\"num_global_key_value_heads\":2,\"num_hidden_layers\":30,\"num_key_value_heads\":8,"
	  "\"num_kv_shared_layers\":0,\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"full_attention\":"
	  "{\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0,\"rope_type\":\"proportional\"},"
	  "\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},\"sliding_window\":1024,"
	  "\"tie_word_embeddings\":true,\"top_k_experts\":8,\"use_bidirectional_attention\":\"vision\","
	  "\"use_double_wide_mlp\":false,\"vocab_size\":262144,\"vocab_size_per_layer_input\":262144}" },
};
#define N_PUBLISHED (sizeof(published) / sizeof(published[0]))

struct synth_family {
	struct od_config config;
	json_t *json;
	enum od_dtype dtype; /* the experts' */
	size_t index;
	uint64_t first[OD_MAX_LAYERS + 1]; /* [n_layers + 1]: of each layer's tensors */
};

const char *const *synth_family_names(void)
{
	static const char *names[N_PUBLISHED + 1];

	for (size_t i = 0; i < N_PUBLISHED; i++)
		names[i] = published[i].family;
	return names;
}

static int set(json_t *root, const char *key, uint64_t value, struct od_err *err)
{
	if (value == 0 || json_object_set_new(root, key, json_integer((json_int_t)value)) == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_NOMEM, "config.json");
}

/* The role of the which-th dense tensor of a layer; OD_N_ROLES: it has fewer. *n: how many it has, if so. */
static enum od_role role_at(const struct od_config *c, uint32_t layer, uint64_t which, uint64_t *n)
{
	uint64_t n_out, n_in;

	*n = 0;
	for (int role = 0; role < OD_N_ROLES; role++) {
		if (!od_role_per_layer((enum od_role)role))
			continue;
		od_role_shape(c, (enum od_role)role, layer, &n_out, &n_in);
		if (n_out > 0 && (*n)++ == which)
			return (enum od_role)role;
	}
	return OD_N_ROLES;
}

/* Tensors of a layer that are all experts': codes and scales of gate with up and of down, or weights, and their
 * biases. */
static uint64_t n_stacked(const struct synth_family *f)
{
	return (f->dtype == OD_F4_E2M1 ? 4 : 2) + (f->config.expert_bias ? 2 : 0);
}

static uint64_t n_of_experts(const struct synth_family *f)
{
	return f->config.family->stacked_gate_up != NULL ? n_stacked(f) :
							   (uint64_t)f->config.n_experts * OD_N_EXPERT_MATS;
}

static void count(struct synth_family *f)
{
	const struct od_config *c = &f->config;
	uint64_t n;

	f->first[0] = 1; /* the embedding is before */
	for (uint32_t i = 0; i < c->n_layers; i++) {
		role_at(c, i, UINT64_MAX, &n);
		f->first[i + 1] = f->first[i] + n + (od_config_layer(c, i)->ffn == OD_FFN_MOE ? n_of_experts(f) : 0);
	}
}

static int choose_dtype(struct synth_family *f, enum od_dtype dtype, struct od_err *err)
{
	const struct od_family *family = f->config.family;

	f->dtype = dtype != 0 ? dtype : family->mxfp4 ? OD_F4_E2M1 : OD_BF16;
	if (f->dtype == OD_F4_E2M1 && !family->mxfp4)
		return od_fail(err, OD_ERR_ARG, "--dtype mxfp4: %s has no such experts", family->name);
	if (od_dtype_bytes(f->dtype) == 1 && family->stacked_gate_up != NULL)
		return od_fail(err, OD_ERR_ARG, "--dtype %s: %s has experts in one tensor, which have no such type",
			       od_dtype_name(f->dtype), family->name);
	return OD_OK;
}

int synth_family_new(struct synth_family **out, size_t index, const struct synth_cut_to *to, struct od_err *err)
{
	struct synth_family *f = calloc(1, sizeof(*f));
	int rc;

	*out = NULL;
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "family");
	f->index = index;
	rc = od_json_parse(published[index].config, strlen(published[index].config), "config.json", &f->json, err);
	if (rc == OD_OK)
		rc = set(f->json, "num_hidden_layers", to->layers, err);
	if (rc == OD_OK)
		rc = set(f->json, published[index].experts, to->experts, err);
	if (rc == OD_OK)
		rc = set(f->json, "vocab_size", to->vocab, err);
	if (rc == OD_OK)
		rc = set(f->json, "max_position_embeddings", to->ctx, err);
	if (rc == OD_OK)
		rc = set(f->json, "bos_token_id", 1, err);
	if (rc == OD_OK)
		rc = set(f->json, "eos_token_id", 2, err);
	if (rc == OD_OK)
		rc = od_config_parse(&f->config, f->json, "config.json", err);
	if (rc == OD_OK)
		rc = choose_dtype(f, to->dtype, err);
	if (rc != OD_OK) {
		synth_family_free(f);
		return rc;
	}
	count(f);
	*out = f;
	return OD_OK;
}

void synth_family_free(struct synth_family *f)
{
	if (f != NULL)
		json_decref(f->json);
	free(f);
}

const char *synth_family_model(const struct synth_family *f)
{
	return published[f->index].model;
}

const struct od_config *synth_family_config(const struct synth_family *f)
{
	return &f->config;
}

enum od_dtype synth_family_dtype(const struct synth_family *f)
{
	return f->dtype;
}

const json_t *synth_family_json(const struct synth_family *f)
{
	return f->json;
}

/* The role of the which-th tensor behind the layers. *n: how many there are, if which is beyond them. */
static enum od_role end_role(const struct od_config *c, uint64_t which, uint64_t *n)
{
	static const enum od_role roles[] = { OD_ROLE_FINAL_NORM, OD_ROLE_HEAD, OD_ROLE_FINAL_NORM_BIAS,
					      OD_ROLE_HEAD_BIAS };
	uint64_t n_out, n_in;

	*n = 0;
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		od_role_shape(c, roles[i], 0, &n_out, &n_in);
		if (n_out > 0 && (*n)++ == which)
			return roles[i];
	}
	return OD_N_ROLES;
}

uint64_t synth_family_n_tensors(const struct synth_family *f)
{
	uint64_t n;

	end_role(&f->config, UINT64_MAX, &n);
	return f->first[f->config.n_layers] + n;
}

static void dense(const struct synth_model *m, enum od_role role, uint32_t layer, struct synth_tensor *t)
{
	const struct od_config *c = &m->family->config;
	char name[OD_NAME_BYTES];
	uint64_t n_out, n_in;

	od_role_shape(c, role, layer, &n_out, &n_in);
	od_dense_source_name(c, role, layer, name);
	snprintf(t->name, sizeof(t->name), "%.*s", (int)sizeof(t->name) - 1, name);
	synth_role(m, role, n_out, n_in, t);
	if (role == OD_ROLE_ROUTER && od_config_layer(c, layer)->router.logit_scale != 0)
		t->std /= (double)od_config_layer(c, layer)->router.logit_scale;
	if (role != OD_ROLE_DELTA_CONV)
		return;
	t->dims[1] = 1;
	t->dims[2] = od_config_layer(c, layer)->mix.conv;
	t->dims[0] = n_out / t->dims[2];
}

/* Gives a clamped network's output the size of silu(g) * u. */
#define CLAMPED_SCALE 0.5f

/* A part of all experts of a layer. Its values are drawn as those of one matrix. */
static void stacked(const struct synth_model *m, uint32_t moe, uint64_t which, struct synth_tensor *t)
{
	const struct synth_family *f = m->family;
	const struct od_config *c = &f->config;
	const bool mx = f->dtype == OD_F4_E2M1, bias = which >= (mx ? 4 : 2),
		   second = bias ? which % 2 != 0 : which >= (mx ? 2 : 1);
	const enum od_expert_mat tensor =
		(enum od_expert_mat)((second ? OD_MAT_DOWN : OD_MAT_UP) + (bias ? OD_N_EXPERT_MATS : 0));
	const bool scales = mx && !bias && which % 2 != 0;
	char name[OD_NAME_BYTES];
	struct od_stack at;
	uint64_t n_out, n_in;

	od_expert_mat_shape(c, tensor, &n_out, &n_in);
	od_expert_stacked_name(c, moe, tensor, name, &at);
	t->seed_chars = (size_t)snprintf(t->name, sizeof(t->name), "%.*s", (int)sizeof(t->name) - 10, name);
	synth_role(m,
		   bias	  ? OD_ROLE_FFN_NORM_BIAS :
		   second ? OD_ROLE_FFN_DOWN :
			    OD_ROLE_FFN_UP,
		   at.rows, bias ? 0 : n_in, t);
	t->dims[0] = c->n_experts;
	t->dims[1] = at.rows;
	if (bias) {
		t->cols *= c->n_experts;
		return;
	}
	t->std *= second && c->act.kind == OD_ACT_CLAMPED ? CLAMPED_SCALE : 1;
	t->rows *= c->n_experts;
	t->dtype = scales ? OD_F8_E8M0 : f->dtype;
	t->dims[2] = n_in;
	if (mx) {
		snprintf(t->name + t->seed_chars, sizeof(t->name) - t->seed_chars, scales ? "_scales" : "_blocks");
		t->cols = scales ? n_in / SYNTH_MX_BLOCK : n_in;
		t->dims[2] = n_in / SYNTH_MX_BLOCK;
		t->dims[3] = scales ? 0 : SYNTH_MX_BLOCK / 2;
	} else if (c->family->transposed) {
		t->dims[1] = n_in;
		t->dims[2] = at.rows;
		t->rows = c->n_experts * n_in;
		t->cols = at.rows;
	}
}

static void of_layer(const struct synth_model *m, uint32_t layer, uint64_t which, struct synth_tensor *t)
{
	const struct od_config *c = &m->family->config;
	uint64_t n, n_out, n_in, at;
	const enum od_role role = role_at(c, layer, which, &n);
	char name[OD_NAME_BYTES];
	enum od_expert_mat mat;

	if (role != OD_N_ROLES) {
		dense(m, role, layer, t);
		return;
	}
	at = which - n;
	if (c->family->stacked_gate_up != NULL) {
		stacked(m, c->m_of[layer], at, t);
		return;
	}
	mat = (enum od_expert_mat)(at % OD_N_EXPERT_MATS);
	od_expert_mat_shape(c, mat, &n_out, &n_in);
	od_expert_source_name(c, c->m_of[layer], (uint32_t)(at / OD_N_EXPERT_MATS), mat, name);
	snprintf(t->name, sizeof(t->name), "%.*s", (int)sizeof(t->name) - 1, name);
	synth_role(m, mat == OD_MAT_DOWN ? OD_ROLE_FFN_DOWN : OD_ROLE_FFN_UP, n_out, n_in, t);
	t->dtype = m->dtype;
}

void synth_family_tensor_at(const struct synth_model *m, uint64_t index, struct synth_tensor *t)
{
	const struct synth_family *f = m->family;
	const uint32_t n_layers = f->config.n_layers;
	uint32_t layer = 0;
	uint64_t n;

	if (index == 0) {
		dense(m, OD_ROLE_EMBED, 0, t);
	} else if (index >= f->first[n_layers]) {
		dense(m, end_role(&f->config, index - f->first[n_layers], &n), 0, t);
	} else {
		while (index >= f->first[layer + 1])
			layer++;
		of_layer(m, layer, index - f->first[layer], t);
	}
}
