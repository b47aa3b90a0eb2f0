/* Every family refuses these settings; and no two configurations have the same line for fingerprints. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "tests/unit/family_util.h"

static bool reads(const struct family_text *t, const char *key)
{
	for (size_t i = 0; i < sizeof(t->reads) / sizeof(t->reads[0]) && t->reads[i] != NULL; i++)
		if (strcmp(t->reads[i], key) == 0)
			return true;
	return false;
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
		{ "{\"sliding_window\":16}", "sliding_window", "expected 0, found 16" },
		{ "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer_types",
		  "\"full_attention\" for every" },
		{ "{\"layer_types\":[7]}", "layer_types", "\"full_attention\" for every" },
		{ "{\"is_causal\":false}", "is_causal", "found false" },
		{ "{\"attention_chunk_size\":8}", "attention_chunk_size", "expected 0, found 8" },
		{ "{\"per_layer_config\":{\"0\":{\"num_experts_per_tok\":1}}}", "per_layer_config",
		  "num_experts_per_tok" },
		{ "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "rope_scaling", "linear" },
		{ "{\"rope_scaling\":{\"type\":\"longrope\"}}", "rope_scaling", "longrope" },
	};
	static const char *const neutral[] = {
		"{\"mlp_bias\":false}",
		"{\"partial_rotary_factor\":1.0}",
		"{\"partial_rotary_factor\":1}",
		"{\"attn_logit_softcapping\":null}",
		"{\"final_logit_softcapping\":0.0}",
		"{\"hidden_act\":null}",
		"{\"use_qk_norm\":null}",
		"{\"layer_types\":null}",
		"{\"sliding_window\":null}",
		"{\"is_causal\":true}",
		"{\"attention_chunk_size\":null}",
		"{\"per_layer_config\":null}",
	};
	struct od_config c;

	(void)state;
	for (size_t i = 0; i < n_family_published; i++) {
		const char *text = family_published[i].config;

		for (size_t k = 0; k < sizeof(fields) / sizeof(fields[0]); k++)
			if (!reads(&family_published[i], fields[k][1]))
				refuse(text, fields[k][0], OD_ERR_UNSUPPORTED, fields[k][1], fields[k][2]);
		for (size_t k = 0; k < sizeof(neutral) / sizeof(neutral[0]); k++)
			if (((text != minimax_m2 && text != qwen35_35b) || strstr(neutral[k], "partial") == NULL) &&
			    (text != gpt_oss_20b || strstr(neutral[k], "sliding_window") == NULL) &&
			    (text != gemma4_26b_a4b || strstr(neutral[k], "final_logit_softcapping") == NULL))
				take(&c, text, neutral[k]);
		if (!reads(&family_published[i], "layer_types"))
			take(&c, text, "{\"layer_types\":[\"full_attention\",\"full_attention\"]}");
		refuse(text, "{\"mlp_bias\":\"no\"}", OD_ERR_FORMAT, "mlp_bias", "a string");
		refuse(text, "{\"logit_scale\":\"1\"}", OD_ERR_FORMAT, "logit_scale", "a string");
		refuse(text, "{\"hidden_act\":1}", OD_ERR_FORMAT, "hidden_act", "an integer");
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
	static const char *const all[] = { "num_experts_per_tok", "num_attention_heads", "num_hidden_layers",
					   "hidden_size",	  "vocab_size",		 "max_position_embeddings" };

	(void)state;
	for (size_t i = 0; i < n_family_published; i++) {
		const char *const *numbers = family_published[i].numbers, *text = family_published[i].config;
		const size_t n_numbers = sizeof(family_published[i].numbers) / sizeof(numbers[0]);

		for (size_t k = 0; k < n_numbers + sizeof(all) / sizeof(all[0]); k++) {
			const bool other = k == n_numbers && family_published[i].top_k != NULL;
			const char *key = k < n_numbers ? numbers[k] :
					  other		? family_published[i].top_k :
							  all[k - n_numbers];
			char changes[128];

			if (key == NULL)
				continue;
			snprintf(changes, sizeof(changes), "{\"%s\":null}", key);
			refuse(text, changes, OD_ERR_FORMAT, key, "found null");
			refuse_without(text, key);
			snprintf(changes, sizeof(changes), "{\"%s\":\"12\"}", key);
			refuse(text, changes, OD_ERR_FORMAT, key, "a string");
			snprintf(changes, sizeof(changes), "{\"%s\":0}", key);
			refuse(text, changes, OD_ERR_RANGE, key, "found 0");
			snprintf(changes, sizeof(changes), "{\"%s\":-3}", key);
			refuse(text, changes, OD_ERR_RANGE, key, "found -3");
			snprintf(changes, sizeof(changes), "{\"%s\":4294967297}", key);
			refuse(text, changes, OD_ERR_RANGE, key, "found 4294967297");
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
	refuse(deepseek_v3, "{\"head_dim\":2}", OD_ERR_UNSUPPORTED, "head_dim", "expected 64, found 2");
	take(&c, deepseek_v3, "{\"head_dim\":64}");
	take(&c, deepseek_v2, "{\"head_dim\":2}"); /* there it is not read */
	refuse(deepseek_v2, "{\"n_routed_experts\":4097}", OD_ERR_RANGE, "n_routed_experts", "found 4097");
	refuse(deepseek_v2, "{\"topk_method\":\"noaux_tc\"}", OD_ERR_UNSUPPORTED, "topk_method", "noaux_tc");
	refuse(deepseek_v2, "{\"topk_method\":3}", OD_ERR_FORMAT, "topk_method", "an integer");
	refuse(deepseek_v2, "{\"scoring_func\":\"sigmoid\"}", OD_ERR_UNSUPPORTED, "scoring_func", "sigmoid");
	refuse(deepseek_v2, "{\"norm_topk_prob\":true}", OD_ERR_UNSUPPORTED, "norm_topk_prob", "found true");
	refuse(deepseek_v2, "{\"moe_layer_freq\":2}", OD_ERR_UNSUPPORTED, "moe_layer_freq", "expected 1, found 2");
	refuse(deepseek_v2, "{\"n_group\":7}", OD_ERR_FORMAT, "n_group",
	       "divisor of \"n_routed_experts\" 160, found 7");
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
		refuse(gqa[i], "{\"head_dim\":null,\"num_attention_heads\":24,\"num_key_value_heads\":8}",
		       OD_ERR_FORMAT, "head_dim", "24");
	}
	refuse(deepseek_v2, "{\"qk_rope_head_dim\":63}", OD_ERR_UNSUPPORTED, "qk_rope_head_dim", "even number");
	refuse(deepseek_v2, "{\"kv_lora_rank\":4097}", OD_ERR_RANGE, "kv_lora_rank", "found 4097");
	refuse(deepseek_v2, "{\"num_attention_heads\":2000}", OD_ERR_RANGE, "num_attention_heads", "found 2000 heads");
	refuse(deepseek_v2, "{\"q_lora_rank\":0}", OD_ERR_RANGE, "q_lora_rank", "found 0");
	refuse(deepseek_v2, "{\"q_lora_rank\":\"none\"}", OD_ERR_FORMAT, "q_lora_rank", "a string");
}

/* A given architecture must match one family. */
static void test_refuses_strangers(void **state)
{
	static const char *const names[] = { "mixtral (MixtralForCausalLM)",
					     "qwen3_moe (Qwen3MoeForCausalLM)",
					     "qwen2_moe (Qwen2MoeForCausalLM)",
					     "olmoe (OlmoeForCausalLM)",
					     "deepseek_v2 (DeepseekV2ForCausalLM)",
					     "deepseek_v3 (DeepseekV3ForCausalLM)",
					     "glm4_moe (Glm4MoeForCausalLM)",
					     "glm4_moe_lite (Glm4MoeLiteForCausalLM)",
					     "minimax_m2 (MiniMaxM2ForCausalLM)",
					     "qwen3_next (Qwen3NextForCausalLM)",
					     "qwen3_5_moe (Qwen3_5MoeForConditionalGeneration)",
					     "gpt_oss (GptOssForCausalLM)",
					     "gemma4 (Gemma4ForCausalLM)" };

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		refuse(olmoe_1b_7b, "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"}",
		       OD_ERR_UNSUPPORTED, "LlamaForCausalLM", names[i]);
	refuse(qwen3_30b_a3b, "{\"model_type\":\"qwen2_moe\"}", OD_ERR_UNSUPPORTED, "Qwen3MoeForCausalLM", "qwen2_moe");
	refuse(deepseek_v2, "{\"architectures\":[\"DeepseekV3ForCausalLM\"]}", OD_ERR_UNSUPPORTED,
	       "DeepseekV3ForCausalLM", "known");
	refuse(kimi_k2, "{\"architectures\":[\"Glm4MoeForCausalLM\"]}", OD_ERR_UNSUPPORTED, "kimi_k2", "known");
}

/* Models whose layers are of another kind: the message says of which. */
static void test_refuses_other_attention(void **state)
{
	static const char *const types[][3] = {
		{ "DeepseekV32ForCausalLM", "deepseek_v32", "indexer" },
		{ "GlmMoeDsaForCausalLM", "glm_moe_dsa", "indexer" },
		{ "DeepseekV4ForCausalLM", "deepseek_v4", "hyper-connections" },
		{ "KimiLinearForCausalLM", "kimi_linear", "Kimi Delta Attention" },
		{ "MiniMaxForCausalLM", "minimax", "lightning attention" },
		{ "MiniMaxM1ForCausalLM", "minimax_m1", "lightning attention" },
		{ "MiniMaxText01ForCausalLM", "minimax_text_01", "lightning attention" },
		{ "JambaForCausalLM", "jamba", "Mamba" },
		{ "GraniteMoeHybridForCausalLM", "granitemoehybrid", "Mamba" },
		{ "NemotronHForCausalLM", "nemotron_h", "Mamba" },
		{ "SwitchTransformersForConditionalGeneration", "switch_transformers", "an encoder" },
		{ "NllbMoeForConditionalGeneration", "nllb-moe", "an encoder" },
	};
	char changes[200];

	(void)state;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		snprintf(changes, sizeof(changes), "{\"architectures\":[\"%s\"],\"model_type\":\"%s\"}", types[i][0],
			 types[i][1]);
		refuse(deepseek_v3, changes, OD_ERR_UNSUPPORTED, types[i][1], types[i][2]);
	}
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

/* Settings of families that change numbers, all to another configuration. */
static const struct {
	const char *text, *changes;
} settings[] = {
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
	{ qwen3_next_80b, "{\"partial_rotary_factor\":0.5}" },
	{ qwen3_next_80b, "{\"full_attention_interval\":3}" },
	{ qwen3_next_80b, "{\"attention_bias\":true}" },
	{ qwen3_next_80b, "{\"linear_conv_kernel_dim\":3}" },
	{ qwen3_next_80b, "{\"linear_num_key_heads\":8}" },
	{ qwen3_next_80b, "{\"linear_num_value_heads\":64}" },
	{ qwen3_next_80b, "{\"linear_key_head_dim\":64}" },
	{ qwen3_next_80b, "{\"linear_value_head_dim\":64}" },
	{ qwen3_next_80b, "{\"norm_topk_prob\":false}" },
	{ qwen35_35b,
	  "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\"]}" },
	{ gpt_oss_20b, "{\"swiglu_limit\":7.5}" },
	{ gpt_oss_20b, "{\"sliding_window\":127}" },
	{ gpt_oss_20b, "{\"attention_bias\":false}" },
	{ gpt_oss_20b, "{\"num_hidden_layers\":23,\"layer_types\":null}" },
	{ gemma4_26b_a4b, "{\"attention_k_eq_v\":false}" },
	{ gemma4_26b_a4b, "{\"num_global_key_value_heads\":4}" },
	{ gemma4_26b_a4b, "{\"global_head_dim\":256}" },
	{ gemma4_26b_a4b, "{\"head_dim\":128}" },
	{ gemma4_26b_a4b, "{\"sliding_window\":1023}" },
	{ gemma4_26b_a4b, "{\"intermediate_size\":2113}" },
	{ gemma4_26b_a4b, "{\"final_logit_softcapping\":31}" },
	{ gemma4_26b_a4b, "{\"final_logit_softcapping\":null}" },
	{ gemma4_26b_a4b, "{\"tie_word_embeddings\":false}" },
	{ gemma4_26b_a4b, "{\"num_kv_shared_layers\":1}" },
	{ gemma4_26b_a4b, "{\"num_kv_shared_layers\":2}" },
	{ gemma4_26b_a4b, "{\"num_kv_shared_layers\":2,\"use_double_wide_mlp\":true}" },
	{ gemma4_26b_a4b, "{\"hidden_size_per_layer_input\":8,\"vocab_size_per_layer_input\":262144}" },
	{ gemma4_26b_a4b, "{\"hidden_size_per_layer_input\":9,\"vocab_size_per_layer_input\":262144}" },
	{ gemma4_26b_a4b, GEMMA_ROPE("\"proportional\",\"partial_rotary_factor\":0.5", "\"default\"") },
	{ gemma4_26b_a4b, GEMMA_ROPE("\"proportional\",\"partial_rotary_factor\":0.25,\"factor\":8", "\"default\"") },
	{ gemma4_26b_a4b, GEMMA_ROPE("\"default\"", "\"default\"") },
	{ gemma4_26b_a4b, GEMMA_ROPE("\"default\"", "\"proportional\",\"partial_rotary_factor\":0.5") },
	{ deepseek_v2, DEEP("") },
	{ deepseek_v2, DEEP(",\"mscale_all_dim\":0.5") },
};

/* Every setting of a family that changes numbers changes it. */
static void test_canonical(void **state)
{
	char **line = calloc(sizeof(settings) / sizeof(settings[0]) + n_family_published, sizeof(*line));
	size_t n = 0;

	(void)state;
	assert_non_null(line);
	for (size_t i = 0; i < n_family_published; i++)
		line[n++] = canonical(family_published[i].config, "{}");
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		line[n++] = canonical(settings[i].text, settings[i].changes);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if (strcmp(line[i], line[k]) == 0)
				fail_msg("%zu and %zu are alike: %s", i, k, line[i]);
	for (size_t i = 0; i < n; i++)
		free(line[i]);
	free(line);
}

/* ---- members of RoPE's objects ---- */

/* A published text, with the object that holds RoPE's settings (or those of one kind of layers) instead of its own. */
static json_t *with_rope(const char *text, const char *kind, const char *rope)
{
	json_t *root = json_loads(text, 0, NULL), *o = json_loads(rope, 0, NULL);

	assert_non_null(root);
	assert_non_null(o);
	if (kind != NULL) {
		json_object_set_new(json_object_get(root, "rope_parameters"), kind, o);
		return root;
	}
	json_object_del(root, "rope_parameters");
	json_object_set_new(root, "rope_scaling", o);
	return root;
}

static void rope_member(const char *text, const char *kind, const char *rope, const char *member)
{
	static const char *const values[] = {
		"2", "0.5", "\"x\"", "true", "{\"rope_type\":\"default\",\"rope_theta\":5}", "[1]"
	};
	struct od_config c;
	struct od_err err = { 0 };

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]) + 1; i++) {
		const bool good = i == sizeof(values) / sizeof(values[0]);
		json_t *root = with_rope(text, kind, rope);
		json_t *o = kind != NULL ? json_object_get(json_object_get(root, "rope_parameters"), kind) :
					   json_object_get(root, "rope_scaling");
		int rc;

		json_object_set_new(o, member, json_loads(good ? "null" : values[i], JSON_DECODE_ANY, NULL));
		rc = od_config_parse(&c, root, "config.json", &err);
		if (good ? rc != OD_OK :
			   rc != OD_ERR_UNSUPPORTED || strstr(err.msg, member) == NULL ||
				    strstr(err.msg, "rope_") == NULL)
			fail_msg("%s in %s: %s: %d \"%s\"", member, rope, good ? "null" : values[i], rc, err.msg);
		json_decref(root);
	}
}

/* Nothing reads them: those of other types, of other families, of the kinds of layers that a family does not have, and
 * misspelt ones. */
static void test_rope_members(void **state)
{
	static const char *const strangers[] = { "low_freq_factor",
						 "high_freq_factor",
						 "llama_4_scaling_beta",
						 "finetuned",
						 "full_attention",
						 "sliding_attention",
						 "scaling_factor",
						 "Factor",
						 "short_factor",
						 "alpha",
						 "attn_factor",
						 "original_max_position_embedding",
						 "partial_rotary_factors",
						 "rope_base",
						 "" };
	static const char *const of_yarn[] = { "factor",	 "beta_fast", "attention_factor",
					       "mscale_all_dim", "truncate",  "original_max_position_embeddings" };
	static const char plain[] = "{\"rope_type\":\"default\"}", old[] = "{\"type\":\"default\"}",
			  none[] = "{\"rope_theta\":null}";
	static const char yarn[] = "{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":4096}";
	static const char sliding[] = "{\"rope_type\":\"default\",\"rope_theta\":1e4}",
			  full[] = "{\"type\":\"proportional\",\"rope_theta\":1e6,\"partial_rotary_factor\":0.25}";

	(void)state;
	for (size_t i = 0; i < n_family_published; i++) {
		const char *text = family_published[i].config;

		for (size_t k = 0; k < sizeof(strangers) / sizeof(strangers[0]); k++) {
			if (text == gemma4_26b_a4b) {
				rope_member(text, "sliding_attention", sliding, strangers[k]);
				rope_member(text, "full_attention", full, strangers[k]);
				continue;
			}
			rope_member(text, NULL, plain, strangers[k]);
			rope_member(text, NULL, old, strangers[k]);
			rope_member(text, NULL, none, strangers[k]);
			rope_member(text, NULL, yarn, strangers[k]);
		}
		for (size_t k = 0; k < sizeof(of_yarn) / sizeof(of_yarn[0]); k++)
			rope_member(text, text == gemma4_26b_a4b ? "sliding_attention" : NULL,
				    text == gemma4_26b_a4b ? sliding : plain, of_yarn[k]);
		/* three numbers of a position come with pictures only */
		if (text != qwen35_35b && text != gemma4_26b_a4b)
			rope_member(text, NULL, plain, "mrope_section");
	}
}

static void test_rope_of_gemma(void **state)
{
	static const char *const beside[] = { "type", "rope_type", "factor", "rope_theta", "chunked_attention" };
	char changes[512];
	struct od_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
		snprintf(changes, sizeof(changes),
			 "{\"rope_parameters\":{\"%s\":\"linear\",\"full_attention\":{\"rope_theta\":1e6},"
			 "\"sliding_attention\":{\"rope_theta\":1e4}}}",
			 beside[i]);
		refuse(gemma4_26b_a4b, changes, OD_ERR_UNSUPPORTED, beside[i], "rope_parameters");
	}
	/* rope_type, else type. */
	refuse(gemma4_26b_a4b,
	       "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,\"type\":\"linear\",\"factor\":4},"
	       "\"sliding_attention\":{\"rope_theta\":1e4}}}",
	       OD_ERR_UNSUPPORTED, "full_attention", "\"linear\"");
	take(&c, gemma4_26b_a4b,
	     "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,\"type\":\"proportional\",\"factor\":4},"
	     "\"sliding_attention\":{\"rope_theta\":1e4,\"type\":\"linear\",\"rope_type\":\"default\"}}}");
	assert_true(c.rope[1].divisor == 4);
	refuse(gemma4_26b_a4b, GEMMA_ROPE("\"default\",\"partial_rotary_factor\":0.5", "\"default\""),
	       OD_ERR_UNSUPPORTED, "full_attention", "expected 1 with type \"default\", found 0.5");
	take(&c, gemma4_26b_a4b, GEMMA_ROPE("\"default\",\"partial_rotary_factor\":1", "\"default\""));
}

/* transformers takes each of these names for the number of experts in some family. */
static void test_names_of_experts(void **state)
{
	static const char *const names[] = { "num_local_experts", "num_experts", "n_routed_experts" };

	(void)state;
	for (size_t i = 0; i < n_family_published; i++)
		for (size_t k = 0; k < 3; k++) {
			char changes[64];

			snprintf(changes, sizeof(changes), "\"%s\":", names[k]); /* its own name? */
			if (family_published[i].config == gemma4_26b_a4b ||
			    strstr(family_published[i].config, changes) != NULL)
				continue;
			snprintf(changes, sizeof(changes), "{\"%s\":23}", names[k]);
			refuse(family_published[i].config, changes, OD_ERR_FORMAT, names[k],
			       "expected the same number");
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rope_members),
		cmocka_unit_test(test_rope_of_gemma),
		cmocka_unit_test(test_names_of_experts),
		cmocka_unit_test(test_refuses_what_nothing_here_does),
		cmocka_unit_test(test_refuses_numbers),
		cmocka_unit_test(test_refuses_experts),
		cmocka_unit_test(test_refuses_attention),
		cmocka_unit_test(test_refuses_strangers),
		cmocka_unit_test(test_refuses_other_attention),
		cmocka_unit_test(test_canonical),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
