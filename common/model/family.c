#include "common/model/family.h"

#include <stdio.h>
#include <string.h>

static const struct od_family *const families[] = { &od_family_mixtral };
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

/* By enum od_role. These names stand in packs: never rename. */
static const char *const role_names[OD_N_ROLES] = {
	"embed", "head", "final_norm", "attn_norm", "attn_q", "attn_k", "attn_v", "attn_o", "ffn_norm", "router",
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

bool od_role_per_layer(enum od_role role)
{
	return role >= OD_ROLE_ATTN_NORM;
}

const char *od_role_name(enum od_role role)
{
	return (unsigned)role < OD_N_ROLES ? role_names[role] : "?";
}

enum od_role od_role_parse(const char *name)
{
	for (unsigned i = 0; i < OD_N_ROLES; i++)
		if (strcmp(role_names[i], name) == 0)
			return (enum od_role)i;
	return OD_N_ROLES;
}

void od_role_shape(const struct od_config *cfg, enum od_role role, uint64_t *n_out, uint64_t *n_in)
{
	uint64_t q_dim = (uint64_t)cfg->n_heads * cfg->head_dim, kv_dim = od_config_kv_dim(cfg);

	*n_in = cfg->hidden;
	switch (role) {
	case OD_ROLE_EMBED:
	case OD_ROLE_HEAD: *n_out = cfg->vocab; return;
	case OD_ROLE_FINAL_NORM:
	case OD_ROLE_ATTN_NORM:
	case OD_ROLE_FFN_NORM: *n_out = cfg->hidden; *n_in = 0; return;
	case OD_ROLE_Q: *n_out = q_dim; return;
	case OD_ROLE_K:
	case OD_ROLE_V: *n_out = kv_dim; return;
	case OD_ROLE_O: *n_out = cfg->hidden; *n_in = q_dim; return;
	case OD_ROLE_ROUTER: *n_out = cfg->n_experts; return;
	case OD_N_ROLES: break;
	}
	*n_out = *n_in = 0;
}

bool od_role_present(const struct od_config *cfg, enum od_role role)
{
	return role < OD_N_ROLES && !(role == OD_ROLE_HEAD && cfg->tied_head);
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
