#include "common/model/family.h"

#include "common/model/mixer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct od_family *const families[] = {
	&od_family_mixtral,	&od_family_qwen3_moe,	&od_family_qwen2_moe,	&od_family_olmoe,
	&od_family_deepseek_v2, &od_family_deepseek_v3, &od_family_glm4_moe,	&od_family_glm4_moe_lite,
	&od_family_minimax_m2,	&od_family_qwen3_next,	&od_family_qwen3_5_moe, &od_family_gpt_oss,
	&od_family_gemma4,	&od_family_phimoe,
};
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))
#define MULTIMODAL "model.language_model."

/* By enum od_role. name stands in packs: never rename. source: in checkpoints of most families. */
static const struct {
	const char *name, *source;
} roles[OD_N_ROLES] = {
	[OD_ROLE_EMBED] = { "embed", "model.embed_tokens.weight" },
	[OD_ROLE_HEAD] = { "head", "lm_head.weight" },
	[OD_ROLE_FINAL_NORM] = { "final_norm", "model.norm.weight" },
	[OD_ROLE_ATTN_NORM] = { "attn_norm", "input_layernorm.weight" },
	[OD_ROLE_Q] = { "attn_q", "self_attn.q_proj.weight" },
	[OD_ROLE_K] = { "attn_k", "self_attn.k_proj.weight" },
	[OD_ROLE_V] = { "attn_v", "self_attn.v_proj.weight" },
	[OD_ROLE_O] = { "attn_o", "self_attn.o_proj.weight" },
	[OD_ROLE_FFN_NORM] = { "ffn_norm", "post_attention_layernorm.weight" },
	[OD_ROLE_ROUTER] = { "router", "mlp.gate.weight" },
	[OD_ROLE_Q_BIAS] = { "attn_q_bias", "self_attn.q_proj.bias" },
	[OD_ROLE_K_BIAS] = { "attn_k_bias", "self_attn.k_proj.bias" },
	[OD_ROLE_V_BIAS] = { "attn_v_bias", "self_attn.v_proj.bias" },
	[OD_ROLE_O_BIAS] = { "attn_o_bias", "self_attn.o_proj.bias" },
	[OD_ROLE_Q_NORM] = { "attn_q_norm", "self_attn.q_norm.weight" },
	[OD_ROLE_K_NORM] = { "attn_k_norm", "self_attn.k_norm.weight" },
	[OD_ROLE_Q_A] = { "attn_q_a", "self_attn.q_a_proj.weight" },
	[OD_ROLE_Q_A_NORM] = { "attn_q_a_norm", "self_attn.q_a_layernorm.weight" },
	[OD_ROLE_Q_B] = { "attn_q_b", "self_attn.q_b_proj.weight" },
	[OD_ROLE_KV_A] = { "attn_kv_a", "self_attn.kv_a_proj_with_mqa.weight" },
	[OD_ROLE_KV_A_NORM] = { "attn_kv_a_norm", "self_attn.kv_a_layernorm.weight" },
	[OD_ROLE_KV_B] = { "attn_kv_b", "self_attn.kv_b_proj.weight" },
	[OD_ROLE_FFN_GATE] = { "ffn_gate", "mlp.gate_proj.weight" },
	[OD_ROLE_FFN_UP] = { "ffn_up", "mlp.up_proj.weight" },
	[OD_ROLE_FFN_DOWN] = { "ffn_down", "mlp.down_proj.weight" },
	[OD_ROLE_SHARED_GATE] = { "shared_gate", "mlp.shared_experts.gate_proj.weight" },
	[OD_ROLE_SHARED_UP] = { "shared_up", "mlp.shared_experts.up_proj.weight" },
	[OD_ROLE_SHARED_DOWN] = { "shared_down", "mlp.shared_experts.down_proj.weight" },
	[OD_ROLE_SHARED_SCORE] = { "shared_score", "mlp.shared_expert_gate.weight" },
	[OD_ROLE_ROUTER_BIAS] = { "router_bias", "mlp.gate.e_score_correction_bias" },
	[OD_ROLE_SINKS] = { "attn_sinks", "self_attn.sinks" },
	[OD_ROLE_LOGIT_BIAS] = { "router_logit_bias", "mlp.router.bias" },
	[OD_ROLE_ATTN_NORM_BIAS] = { "attn_norm_bias", "input_layernorm.bias" },
	[OD_ROLE_FFN_NORM_BIAS] = { "ffn_norm_bias", "post_attention_layernorm.bias" },
	[OD_ROLE_FINAL_NORM_BIAS] = { "final_norm_bias", "model.norm.bias" },
	[OD_ROLE_HEAD_BIAS] = { "head_bias", "lm_head.bias" },
	[OD_ROLE_DELTA_QKVZ] = { "delta_qkvz", "linear_attn.in_proj_qkvz.weight" },
	[OD_ROLE_DELTA_BA] = { "delta_ba", "linear_attn.in_proj_ba.weight" },
	[OD_ROLE_DELTA_QKV] = { "delta_qkv", "linear_attn.in_proj_qkv.weight" },
	[OD_ROLE_DELTA_Z] = { "delta_z", "linear_attn.in_proj_z.weight" },
	[OD_ROLE_DELTA_B] = { "delta_b", "linear_attn.in_proj_b.weight" },
	[OD_ROLE_DELTA_A] = { "delta_a", "linear_attn.in_proj_a.weight" },
	[OD_ROLE_DELTA_CONV] = { "delta_conv", "linear_attn.conv1d.weight" },
	[OD_ROLE_DELTA_A_LOG] = { "delta_a_log", "linear_attn.A_log" },
	[OD_ROLE_DELTA_DT_BIAS] = { "delta_dt_bias", "linear_attn.dt_bias" },
	[OD_ROLE_DELTA_NORM] = { "delta_norm", "linear_attn.norm.weight" },
	[OD_ROLE_DELTA_OUT] = { "delta_out", "linear_attn.out_proj.weight" },
	[OD_ROLE_ROUTER_NORM] = { "router_norm", "router.scale" },
	[OD_ROLE_ROUTER_FACTORS] = { "router_factors", "router.per_expert_scale" },
	[OD_ROLE_ATTN_POST_NORM] = { "attn_post_norm", "post_attention_layernorm.weight" },
	[OD_ROLE_SHARED_NORM] = { "shared_norm", "pre_feedforward_layernorm.weight" },
	[OD_ROLE_SHARED_POST_NORM] = { "shared_post_norm", "post_feedforward_layernorm_1.weight" },
	[OD_ROLE_EXPERTS_POST_NORM] = { "experts_post_norm", "post_feedforward_layernorm_2.weight" },
	[OD_ROLE_FFN_POST_NORM] = { "ffn_post_norm", "post_feedforward_layernorm.weight" },
	[OD_ROLE_LAYER_SCALE] = { "layer_scale", "layer_scalar" },
	[OD_ROLE_LAYER_EMBED] = { "layer_embed", "model.embed_tokens_per_layer.weight" },
	[OD_ROLE_LAYER_PROJECT] = { "layer_project", "model.per_layer_model_projection.weight" },
	[OD_ROLE_LAYER_PROJECT_NORM] = { "layer_project_norm", "model.per_layer_projection_norm.weight" },
	[OD_ROLE_INPUT_GATE] = { "input_gate", "per_layer_input_gate.weight" },
	[OD_ROLE_INPUT_PROJECT] = { "input_project", "per_layer_projection.weight" },
	[OD_ROLE_INPUT_POST_NORM] = { "input_post_norm", "post_per_layer_input_norm.weight" },
	[OD_ROLE_K_B] = { "attn_k_b", "self_attn.k_b_proj.weight" }, /* in no checkpoint */
	[OD_ROLE_V_B] = { "attn_v_b", "self_attn.v_b_proj.weight" },
};

static bool listed(const char *const *list, const char *name)
{
	for (; *list != NULL; list++)
		if (strcmp(*list, name) == 0)
			return true;
	return false;
}

const struct od_family *od_family_find(const char *architecture, const char *model_type)
{
	if (architecture == NULL && model_type == NULL)
		return NULL;
	/* A given architecture must match: a MixtralForSequenceClassification has Mixtral's model_type and no head. */
	for (size_t i = 0; i < N_FAMILIES; i++) {
		const struct od_family *f = families[i];

		if ((architecture == NULL || listed(f->architectures, architecture)) &&
		    (model_type == NULL || listed(f->model_types, model_type)))
			return f;
	}
	return NULL;
}

#define INDEXER "sparse attention whose positions an indexer chooses"
#define LIGHTNING "lightning attention"
#define MAMBA "Mamba layers"
#define ENCODER "an encoder beside the decoder"

const char *od_family_missing(const char *model_type)
{
	static const struct {
		const char *model_type, *what;
	} missing[] = {
		{ "deepseek_v32", INDEXER },
		{ "glm_moe_dsa", INDEXER },
		{ "deepseek_v4", "hyper-connections between layers and compressed sparse attention" },
		{ "kimi_linear", "Kimi Delta Attention (KDA)" },
		{ "minimax", LIGHTNING },
		{ "minimax_m1", LIGHTNING },
		{ "minimax_text_01", LIGHTNING },
		{ "jamba", MAMBA },
		{ "granitemoehybrid", MAMBA },
		{ "nemotron_h", MAMBA },
		{ "switch_transformers", ENCODER },
		{ "nllb-moe", ENCODER },
	};

	for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++)
		if (model_type != NULL && strcmp(missing[i].model_type, model_type) == 0)
			return missing[i].what;
	return NULL;
}

void od_family_list(char *buf, size_t size)
{
	size_t used = 0;

	if (size > 0)
		buf[0] = '\0';
	for (size_t i = 0; i < N_FAMILIES && used < size; i++) {
		int n = snprintf(buf + used, size - used, "%s%s (%s)", i == 0 ? "" : ", ", families[i]->name,
				 families[i]->architectures[0]);

		used += n > 0 ? (size_t)n : 0;
	}
}

/* ---- names in a checkpoint ---- */

void od_dense_source_name(const struct od_config *cfg, enum od_role role, uint32_t layer, char buf[OD_NAME_BYTES])
{
	const char *own = cfg->family->names[role], *name = own != NULL ? own : roles[role].source;

	if (od_role_per_layer(role))
		snprintf(buf, OD_NAME_BYTES, "model.layers.%u.%s", layer, name);
	else
		snprintf(buf, OD_NAME_BYTES, "%s", name);
}

void od_expert_source_name(const struct od_config *cfg, uint32_t m, uint32_t expert, enum od_expert_mat mat,
			   char buf[OD_NAME_BYTES])
{
	static const char *const common[] = {
		[OD_MAT_GATE] = "gate_proj", [OD_MAT_UP] = "up_proj", [OD_MAT_DOWN] = "down_proj"
	};
	const struct od_family *f = cfg->family;
	const int of = mat % OD_N_EXPERT_MATS;

	snprintf(buf, OD_NAME_BYTES, "model.layers.%u.%s.%u.%s.%s", cfg->layer_of[m],
		 f->experts != NULL ? f->experts : "mlp.experts", expert,
		 f->expert_mat[of] != NULL ? f->expert_mat[of] : common[of],
		 od_expert_is_bias(mat) ? "bias" : "weight");
}

bool od_expert_stacked_name(const struct od_config *cfg, uint32_t m, enum od_expert_mat mat, char buf[OD_NAME_BYTES],
			    struct od_stack *stack)
{
	const struct od_family *f = cfg->family;
	const int of = mat % OD_N_EXPERT_MATS;
	const char *name = of == OD_MAT_DOWN ? f->stacked_down : f->stacked_gate_up;
	uint64_t n_out, n_in;

	*stack = (struct od_stack){ 0 };
	buf[0] = '\0';
	if (name == NULL)
		return false;
	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	stack->rows = of == OD_MAT_DOWN ? n_out : 2 * n_out;
	stack->step = of != OD_MAT_DOWN && f->interleaved ? 2 : 1;
	stack->first = of != OD_MAT_UP ? 0 : f->interleaved ? 1 : n_out;
	snprintf(buf, OD_NAME_BYTES, "model.layers.%u.%s%s", cfg->layer_of[m], name,
		 od_expert_is_bias(mat) ? "_bias" : "");
	return true;
}

static bool begins_with(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

void od_source_name(const struct od_config *cfg, const char *name, char buf[OD_NAME_BYTES])
{
	static const char own[] = "model.";

	if (cfg->multimodal && begins_with(name, own))
		snprintf(buf, OD_NAME_BYTES, "%s%.*s", MULTIMODAL, OD_NAME_BYTES - (int)sizeof(MULTIMODAL),
			 name + strlen(own));
	else
		snprintf(buf, OD_NAME_BYTES, "%s", name);
}

static bool begins_with_any(const char *name, const char *const *prefix)
{
	while (prefix != NULL && *prefix != NULL && !begins_with(name, *prefix))
		prefix++;
	return prefix != NULL && *prefix != NULL;
}

bool od_source_other_modality(const struct od_config *cfg, const char *name)
{
	return cfg->multimodal && begins_with_any(name, cfg->family->other_modalities);
}

/* model.layers.N.rest */
static bool layer_of_name(const struct od_config *cfg, const char *name, unsigned long *layer, const char **rest)
{
	char prefix[OD_NAME_BYTES], *end;
	const char *number;

	*layer = 0;
	*rest = NULL;
	od_source_name(cfg, "model.layers.", prefix);
	number = name + strlen(prefix);
	if (!begins_with(name, prefix) || *number < '0' || *number > '9')
		return false;
	*layer = strtoul(number, &end, 10);
	*rest = end + 1;
	return *end == '.';
}

/* N from n_layers on */
static bool of_mtp_layer(const struct od_config *cfg, const char *name)
{
	unsigned long layer;
	const char *rest;

	return layer_of_name(cfg, name, &layer, &rest) && layer >= cfg->n_layers && layer - cfg->n_layers < cfg->n_mtp;
}

/* Layers that use the keys and values of others need no projections for them. transformers leaves out the same. */
static bool of_shared_kv(const struct od_config *cfg, const char *name)
{
	static const char *const own[] = { "self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.",
					   "self_attn.v_norm.", NULL };
	unsigned long layer;
	const char *rest;

	return layer_of_name(cfg, name, &layer, &rest) && layer < cfg->n_layers &&
	       od_config_layer(cfg, (uint32_t)layer)->mix.kv_of != 0 && begins_with_any(rest, own);
}

bool od_source_ignorable(const struct od_config *cfg, const char *name)
{
	static const char suffix[] = ".rotary_emb.inv_freq";
	size_t len = strlen(name), n = sizeof(suffix) - 1;

	return (len > n && strcmp(name + len - n, suffix) == 0) || of_mtp_layer(cfg, name) || of_shared_kv(cfg, name) ||
	       od_source_other_modality(cfg, name) || begins_with_any(name, cfg->family->left_out);
}

/* ---- roles ---- */

bool od_role_per_layer(enum od_role role)
{
	return role >= OD_ROLE_ATTN_NORM && role != OD_ROLE_FINAL_NORM_BIAS && role != OD_ROLE_HEAD_BIAS &&
	       !(role >= OD_ROLE_LAYER_EMBED && role <= OD_ROLE_LAYER_PROJECT_NORM);
}

bool od_role_quantised(enum od_role role)
{
	switch (role) {
	case OD_ROLE_Q:
	case OD_ROLE_K:
	case OD_ROLE_V:
	case OD_ROLE_O:
	case OD_ROLE_Q_A:
	case OD_ROLE_Q_B:
	case OD_ROLE_KV_A:
	case OD_ROLE_FFN_GATE:
	case OD_ROLE_FFN_UP:
	case OD_ROLE_FFN_DOWN:
	case OD_ROLE_SHARED_GATE:
	case OD_ROLE_SHARED_UP:
	case OD_ROLE_SHARED_DOWN:
	case OD_ROLE_DELTA_QKVZ:
	case OD_ROLE_DELTA_QKV:
	case OD_ROLE_DELTA_Z:
	case OD_ROLE_DELTA_OUT: return true;
	case OD_ROLE_EMBED:
	case OD_ROLE_HEAD:
	case OD_ROLE_FINAL_NORM:
	case OD_ROLE_ATTN_NORM:
	case OD_ROLE_FFN_NORM:
	case OD_ROLE_ROUTER:
	case OD_ROLE_Q_BIAS:
	case OD_ROLE_K_BIAS:
	case OD_ROLE_V_BIAS:
	case OD_ROLE_O_BIAS:
	case OD_ROLE_Q_NORM:
	case OD_ROLE_K_NORM:
	case OD_ROLE_Q_A_NORM:
	case OD_ROLE_KV_A_NORM:
	case OD_ROLE_KV_B: /* is not multiplied with as a whole (OD_OP_LATENT_QUERY) */
	case OD_ROLE_K_B:
	case OD_ROLE_V_B:
	case OD_ROLE_SHARED_SCORE:
	case OD_ROLE_ROUTER_BIAS:
	case OD_ROLE_SINKS:
	case OD_ROLE_LOGIT_BIAS:
	case OD_ROLE_ATTN_NORM_BIAS:
	case OD_ROLE_FFN_NORM_BIAS:
	case OD_ROLE_FINAL_NORM_BIAS:
	case OD_ROLE_HEAD_BIAS:
	case OD_ROLE_DELTA_BA: /* small, and they decide how long a state lives */
	case OD_ROLE_DELTA_B:
	case OD_ROLE_DELTA_A:
	case OD_ROLE_DELTA_CONV:
	case OD_ROLE_DELTA_A_LOG:
	case OD_ROLE_DELTA_DT_BIAS:
	case OD_ROLE_DELTA_NORM:
	case OD_ROLE_ROUTER_NORM:
	case OD_ROLE_ROUTER_FACTORS:
	case OD_ROLE_ATTN_POST_NORM:
	case OD_ROLE_SHARED_NORM:
	case OD_ROLE_SHARED_POST_NORM:
	case OD_ROLE_EXPERTS_POST_NORM:
	case OD_ROLE_FFN_POST_NORM:
	case OD_ROLE_LAYER_SCALE:
	case OD_ROLE_LAYER_EMBED:
	case OD_ROLE_LAYER_PROJECT:
	case OD_ROLE_LAYER_PROJECT_NORM:
	case OD_ROLE_INPUT_GATE: /* small */
	case OD_ROLE_INPUT_PROJECT:
	case OD_ROLE_INPUT_POST_NORM:
	case OD_N_ROLES: break;
	}
	return false;
}

bool od_role_is_bias(enum od_role role)
{
	return (role >= OD_ROLE_Q_BIAS && role <= OD_ROLE_O_BIAS) ||
	       (role >= OD_ROLE_ROUTER_BIAS && role <= OD_ROLE_HEAD_BIAS) || role == OD_ROLE_DELTA_DT_BIAS;
}

bool od_role_around_one(enum od_role role)
{
	return role == OD_ROLE_FINAL_NORM || role == OD_ROLE_ATTN_NORM || role == OD_ROLE_FFN_NORM ||
	       role == OD_ROLE_Q_NORM || role == OD_ROLE_K_NORM;
}

const char *od_role_name(enum od_role role)
{
	return (unsigned)role < OD_N_ROLES ? roles[role].name : "?";
}

/* Shape of matrix mat of a gated network. */
static void ffn_shape(const struct od_config *cfg, uint32_t intermediate, unsigned mat, uint64_t *n_out, uint64_t *n_in)
{
	if (intermediate == 0)
		return;
	*n_out = mat == OD_MAT_DOWN ? cfg->hidden : intermediate;
	*n_in = mat == OD_MAT_DOWN ? intermediate : cfg->hidden;
}

/* Elements of the vectors from OD_ROLE_ROUTER_NORM to OD_ROLE_LAYER_SCALE. */
static uint64_t vector_shape(const struct od_config *cfg, enum od_role role, const struct od_layer_spec *l)
{
	const bool shared = l->sandwich && l->shared_intermediate > 0;

	switch ((int)role) {
	case OD_ROLE_ROUTER_NORM: return l->router.norm ? cfg->hidden : 0;
	case OD_ROLE_ROUTER_FACTORS: return l->router.factors ? cfg->n_experts : 0;
	case OD_ROLE_SHARED_NORM:
	case OD_ROLE_SHARED_POST_NORM: return shared ? cfg->hidden : 0;
	case OD_ROLE_ATTN_POST_NORM:
	case OD_ROLE_EXPERTS_POST_NORM:
	case OD_ROLE_FFN_POST_NORM: return l->sandwich ? cfg->hidden : 0;
	case OD_ROLE_LAYER_SCALE: return l->scaled;
	default: return 0;
	}
}

static void layer_shape(const struct od_config *cfg, enum od_role role, const struct od_layer_spec *l, uint64_t *n_out,
			uint64_t *n_in)
{
	const bool moe = l->ffn == OD_FFN_MOE;

	if (role == OD_ROLE_ATTN_NORM || role == OD_ROLE_FFN_NORM) {
		*n_out = cfg->hidden;
	} else if (role == OD_ROLE_ATTN_NORM_BIAS || role == OD_ROLE_FFN_NORM_BIAS) {
		*n_out = cfg->norm == OD_NORM_LAYER ? cfg->hidden : 0;
	} else if (role == OD_ROLE_ROUTER && moe) {
		*n_out = cfg->n_experts;
		*n_in = cfg->hidden;
	} else if (role >= OD_ROLE_FFN_GATE && role <= OD_ROLE_FFN_DOWN) {
		ffn_shape(cfg, moe ? 0 : l->intermediate, role - OD_ROLE_FFN_GATE, n_out, n_in);
	} else if (role >= OD_ROLE_SHARED_GATE && role <= OD_ROLE_SHARED_DOWN) {
		ffn_shape(cfg, moe ? l->shared_intermediate : 0, role - OD_ROLE_SHARED_GATE, n_out, n_in);
	} else if (role == OD_ROLE_SHARED_SCORE) {
		*n_out = moe && l->shared_gate;
		*n_in = cfg->hidden;
	} else if (role == OD_ROLE_ROUTER_BIAS) {
		*n_out = moe && l->router.bias ? cfg->n_experts : 0;
	} else if (role == OD_ROLE_LOGIT_BIAS) {
		*n_out = moe && l->router.logit_bias ? cfg->n_experts : 0;
	} else if (role >= OD_ROLE_ROUTER_NORM && role <= OD_ROLE_LAYER_SCALE) {
		*n_out = vector_shape(cfg, role, l);
	} else if (role >= OD_ROLE_INPUT_GATE && role <= OD_ROLE_INPUT_POST_NORM) {
		*n_out = cfg->layer_input == 0 ? 0 : role == OD_ROLE_INPUT_GATE ? cfg->layer_input : cfg->hidden;
		*n_in = *n_out == 0 || role == OD_ROLE_INPUT_POST_NORM ? 0 :
			role == OD_ROLE_INPUT_GATE		       ? cfg->hidden :
									 cfg->layer_input;
	} else if (role != OD_ROLE_ROUTER) {
		l->mixer->shape(cfg, &l->mix, role, n_out, n_in);
	}
}

/* Shapes of the tensors that make the inputs of all layers together. */
static void inputs_shape(const struct od_config *cfg, enum od_role role, uint64_t *n_out, uint64_t *n_in)
{
	const uint64_t all = (uint64_t)cfg->n_layers * cfg->layer_input;

	if (all == 0)
		return;
	*n_out = role == OD_ROLE_LAYER_EMBED ? cfg->vocab : role == OD_ROLE_LAYER_PROJECT ? all : cfg->layer_input;
	*n_in = role == OD_ROLE_LAYER_EMBED ? all : role == OD_ROLE_LAYER_PROJECT ? cfg->hidden : 0;
}

void od_role_shape(const struct od_config *cfg, enum od_role role, uint32_t layer, uint64_t *n_out, uint64_t *n_in)
{
	*n_out = *n_in = 0;
	if (od_role_per_layer(role)) {
		layer_shape(cfg, role, od_config_layer(cfg, layer), n_out, n_in);
		return;
	}
	if (role >= OD_ROLE_LAYER_EMBED) {
		inputs_shape(cfg, role, n_out, n_in);
		return;
	}
	if (role == OD_ROLE_FINAL_NORM)
		*n_out = cfg->hidden;
	else if (role == OD_ROLE_FINAL_NORM_BIAS)
		*n_out = cfg->norm == OD_NORM_LAYER ? cfg->hidden : 0;
	else if (role == OD_ROLE_HEAD_BIAS)
		*n_out = cfg->head_bias ? cfg->vocab : 0;
	else
		*n_out = role == OD_ROLE_HEAD && cfg->tied_head ? 0 : cfg->vocab;
	*n_in = role == OD_ROLE_EMBED || role == OD_ROLE_HEAD ? cfg->hidden : 0;
}

bool od_config_holds_role(const struct od_config *cfg, enum od_role role, uint32_t layer)
{
	if (od_role_per_layer(role))
		return od_config_holds(cfg, layer);
	return role == OD_ROLE_EMBED || role >= OD_ROLE_LAYER_EMBED ? od_config_holds_embed(cfg) :
								      od_config_holds_head(cfg);
}

const char *od_expert_mat_name(enum od_expert_mat mat)
{
	switch (mat) {
	case OD_MAT_GATE: return "gate";
	case OD_MAT_UP: return "up";
	case OD_MAT_DOWN: return "down";
	case OD_BIAS_GATE: return "gate_bias";
	case OD_BIAS_UP: return "up_bias";
	case OD_BIAS_DOWN: return "down_bias";
	case OD_N_EXPERT_TENSORS: break;
	}
	return "?";
}

int od_expert_tensors(const struct od_config *cfg)
{
	return cfg->expert_bias ? OD_N_EXPERT_TENSORS : OD_N_EXPERT_MATS;
}

void od_expert_mat_shape(const struct od_config *cfg, enum od_expert_mat mat, uint64_t *n_out, uint64_t *n_in)
{
	const bool down = mat % OD_N_EXPERT_MATS == OD_MAT_DOWN;

	*n_out = down ? cfg->hidden : cfg->intermediate;
	*n_in = od_expert_is_bias(mat) ? 1 : down ? cfg->intermediate : cfg->hidden;
}
