/* Mixtral (8x7B, 8x22B and checkpoints of their shape): grouped-query attention with RoPE, pre-norms, and in
 * every layer a router that takes the softmax over all experts, then the top k, renormalised. */
#include "common/base/json.h"
#include "common/model/family.h"

#include <stdio.h>
#include <string.h>

#define DIM_MAX (1u << 20)

/* rope_scaling (older files) or rope_parameters (newer ones): only plain RoPE is known here. */
static int check_rope(const json_t *rope, const char *key, const char *where, struct od_err *err)
{
	static const char *const type_keys[] = { "rope_type", "type" };
	double part;
	int rc;

	for (size_t i = 0; i < sizeof(type_keys) / sizeof(type_keys[0]); i++) {
		const char *type;

		if (!od_json_has(rope, type_keys[i]))
			continue;
		rc = od_json_str(rope, type_keys[i], &type, where, err);
		if (rc != OD_OK)
			return rc;
		if (strcmp(type, "default") != 0)
			return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected type \"default\", found "
				       "\"%.64s\"", where, key, type);
	}
	rc = od_json_f64_or(rope, "partial_rotary_factor", 0, 1, 1, &part, where, err);
	if (rc == OD_OK && part != 1)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected partial_rotary_factor 1, found %g",
			       where, key, part);
	return rc;
}

static int parse_rope(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	static const char *const keys[] = { "rope_scaling", "rope_parameters" };
	const json_t *at = root;
	double outer;
	int rc;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		json_t *rope;

		if (!od_json_has(root, keys[i]))
			continue;
		rc = od_json_obj(root, keys[i], &rope, where, err);
		if (rc == OD_OK)
			rc = check_rope(rope, keys[i], where, err);
		if (rc != OD_OK)
			return rc;
		/* "type": "default" may stand without one; then the frequency base is where it always was. */
		if (od_json_has(rope, "rope_theta"))
			at = rope;
	}
	rc = od_json_f64(at, "rope_theta", 1, 1e12, &cfg->rope_theta, where, err);
	if (rc != OD_OK)
		return rc;
	rc = od_json_f64_or(root, "rope_theta", 1, 1e12, cfg->rope_theta, &outer, where, err);
	if (rc == OD_OK && outer != cfg->rope_theta)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"rope_theta\" stands twice: %g and %g", where, outer,
			       cfg->rope_theta);
	return rc;
}

/* Settings that would change the arithmetic into something this file does not describe. */
static int refuse_variants(const json_t *root, const char *where, struct od_err *err)
{
	const char *act = "silu";
	bool bias;
	int rc;

	if (od_json_has(root, "hidden_act")) {
		rc = od_json_str(root, "hidden_act", &act, where, err);
		if (rc != OD_OK)
			return rc;
	}
	if (strcmp(act, "silu") != 0)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"hidden_act\": expected \"silu\", found \"%.64s\"",
			       where, act);
	rc = od_json_bool_or(root, "attention_bias", false, &bias, where, err);
	if (rc != OD_OK)
		return rc;
	if (bias)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"attention_bias\": expected false, found true",
			       where);
	return OD_OK;
}

static int parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err)
{
	uint32_t top_k_max;
	int rc = refuse_variants(root, where, err);

	cfg->n_moe = cfg->n_layers;
	if (rc == OD_OK)
		rc = parse_rope(cfg, root, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "intermediate_size", 1, DIM_MAX, &cfg->intermediate, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(root, "num_local_experts", 1, OD_MAX_EXPERTS, &cfg->n_experts, where, err);
	if (rc != OD_OK)
		return rc;
	top_k_max = cfg->n_experts < OD_MAX_TOP_K ? cfg->n_experts : OD_MAX_TOP_K;
	rc = od_json_u32(root, "num_experts_per_tok", 1, top_k_max, &cfg->top_k, where, err);
	if (rc != OD_OK)
		return rc;
	return od_json_u32_or(root, "sliding_window", 0, UINT32_MAX, 0, &cfg->sliding_window, where, err);
}

static void dense_name(char *buf, size_t size, enum od_role role, uint32_t layer)
{
	static const char *const whole[] = {
		[OD_ROLE_EMBED] = "model.embed_tokens.weight",
		[OD_ROLE_HEAD] = "lm_head.weight",
		[OD_ROLE_FINAL_NORM] = "model.norm.weight",
	};
	static const char *const part[OD_N_ROLES] = {
		[OD_ROLE_ATTN_NORM] = "input_layernorm", [OD_ROLE_Q] = "self_attn.q_proj",
		[OD_ROLE_K] = "self_attn.k_proj",	 [OD_ROLE_V] = "self_attn.v_proj",
		[OD_ROLE_O] = "self_attn.o_proj",	 [OD_ROLE_FFN_NORM] = "post_attention_layernorm",
		[OD_ROLE_ROUTER] = "block_sparse_moe.gate",
	};

	if (od_role_per_layer(role))
		snprintf(buf, size, "model.layers.%u.%s.weight", layer, part[role]);
	else
		snprintf(buf, size, "%s", whole[role]);
}

static void expert_name(char *buf, size_t size, uint32_t layer, uint32_t expert, enum od_expert_mat mat)
{
	static const char *const part[] = { [OD_MAT_GATE] = "w1", [OD_MAT_UP] = "w3", [OD_MAT_DOWN] = "w2" };

	snprintf(buf, size, "model.layers.%u.block_sparse_moe.experts.%u.%s.weight", layer, expert, part[mat]);
}

static bool ignorable(const char *name)
{
	static const char suffix[] = ".rotary_emb.inv_freq";
	size_t len = strlen(name), n = sizeof(suffix) - 1;

	return len > n && strcmp(name + len - n, suffix) == 0;
}

static const char *const architectures[] = { "MixtralForCausalLM", NULL };
static const char *const model_types[] = { "mixtral", NULL };

const struct od_family od_family_mixtral = {
	.name = "mixtral",
	.architectures = architectures,
	.model_types = model_types,
	.parse = parse,
	.dense_name = dense_name,
	.expert_name = expert_name,
	.ignorable = ignorable,
};
