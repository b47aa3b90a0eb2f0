#include "common/model/family.h"

#include "common/model/mixer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct od_family *const families[] = {
	&od_family_mixtral,	&od_family_qwen3_moe, &od_family_qwen2_moe,  &od_family_olmoe, &od_family_deepseek_v2,
	&od_family_deepseek_v3, &od_family_glm4_moe,  &od_family_glm4_moe_lite, &od_family_minimax_m2,
};
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

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
	/* What is given must match: a MixtralForSequenceClassification has Mixtral's model_type and no head. */
	for (size_t i = 0; i < N_FAMILIES; i++) {
		const struct od_family *f = families[i];

		if ((architecture == NULL || listed(f->architectures, architecture)) &&
		    (model_type == NULL || listed(f->model_types, model_type)))
			return f;
	}
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
	static const char *const common[] = { [OD_MAT_GATE] = "gate_proj", [OD_MAT_UP] = "up_proj", [OD_MAT_DOWN] = "down_proj" };
	const struct od_family *f = cfg->family;

	snprintf(buf, OD_NAME_BYTES, "model.layers.%u.%s.%u.%s.weight", cfg->layer_of[m],
		 f->experts != NULL ? f->experts : "mlp.experts", expert,
		 f->expert_mat[mat] != NULL ? f->expert_mat[mat] : common[mat]);
}

/* model.layers.N.*, N from n_layers on */
static bool of_mtp_layer(const struct od_config *cfg, const char *name)
{
	static const char prefix[] = "model.layers.";
	unsigned long layer;
	char *end;

	if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || name[sizeof(prefix) - 1] < '0' || name[sizeof(prefix) - 1] > '9')
		return false;
	layer = strtoul(name + sizeof(prefix) - 1, &end, 10);
	return *end == '.' && layer >= cfg->n_layers && layer - cfg->n_layers < cfg->n_mtp;
}

bool od_source_ignorable(const struct od_config *cfg, const char *name)
{
	static const char suffix[] = ".rotary_emb.inv_freq";
	size_t len = strlen(name), n = sizeof(suffix) - 1;

	return (len > n && strcmp(name + len - n, suffix) == 0) || of_mtp_layer(cfg, name);
}

/* ---- roles ---- */

bool od_role_per_layer(enum od_role role)
{
	return role >= OD_ROLE_ATTN_NORM;
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
	case OD_ROLE_SHARED_DOWN: return true;
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
	case OD_ROLE_SHARED_SCORE:
	case OD_ROLE_ROUTER_BIAS:
	case OD_N_ROLES: break;
	}
	return false;
}

bool od_role_is_bias(enum od_role role)
{
	return (role >= OD_ROLE_Q_BIAS && role <= OD_ROLE_O_BIAS) || role == OD_ROLE_ROUTER_BIAS;
}

const char *od_role_name(enum od_role role)
{
	return (unsigned)role < OD_N_ROLES ? roles[role].name : "?";
}

enum od_role od_role_parse(const char *name)
{
	for (unsigned i = 0; i < OD_N_ROLES; i++)
		if (strcmp(roles[i].name, name) == 0)
			return (enum od_role)i;
	return OD_N_ROLES;
}

/* Of a network with gate: which of its matrices. */
static void ffn_shape(const struct od_config *cfg, uint32_t intermediate, unsigned mat, uint64_t *n_out, uint64_t *n_in)
{
	if (intermediate == 0)
		return;
	*n_out = mat == OD_MAT_DOWN ? cfg->hidden : intermediate;
	*n_in = mat == OD_MAT_DOWN ? intermediate : cfg->hidden;
}

static void layer_shape(const struct od_config *cfg, enum od_role role, const struct od_layer_spec *l, uint64_t *n_out,
			uint64_t *n_in)
{
	const bool moe = l->ffn == OD_FFN_MOE;

	if (role == OD_ROLE_ATTN_NORM || role == OD_ROLE_FFN_NORM) {
		*n_out = cfg->hidden;
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
	} else if (role != OD_ROLE_ROUTER) {
		l->mixer->shape(cfg, &l->mix, role, n_out, n_in);
	}
}

void od_role_shape(const struct od_config *cfg, enum od_role role, uint32_t layer, uint64_t *n_out, uint64_t *n_in)
{
	*n_out = *n_in = 0;
	if (od_role_per_layer(role)) {
		layer_shape(cfg, role, od_config_layer(cfg, layer), n_out, n_in);
		return;
	}
	*n_out = role == OD_ROLE_FINAL_NORM ? cfg->hidden : role == OD_ROLE_HEAD && cfg->tied_head ? 0 : cfg->vocab;
	*n_in = role == OD_ROLE_FINAL_NORM ? 0 : cfg->hidden;
}

const char *od_expert_mat_name(enum od_expert_mat mat)
{
	switch (mat) {
	case OD_MAT_GATE: return "gate";
	case OD_MAT_UP: return "up";
	case OD_MAT_DOWN: return "down";
	case OD_N_EXPERT_MATS: break;
	}
	return "?";
}

void od_expert_mat_shape(const struct od_config *cfg, enum od_expert_mat mat, uint64_t *n_out, uint64_t *n_in)
{
	*n_out = mat == OD_MAT_DOWN ? cfg->hidden : cfg->intermediate;
	*n_in = mat == OD_MAT_DOWN ? cfg->intermediate : cfg->hidden;
}
