#include "common/pack/load/device_check.h"

#include "common/compute/formats/format.h"
#include "common/compute/ops.h"
#include "common/pack/pack_internal.h"

#include <stdio.h>

/* The operation that multiplies with a matrix of a role. */
static enum od_op_kind op_of(enum od_role role)
{
	if (role == OD_ROLE_EMBED || role == OD_ROLE_LAYER_EMBED)
		return OD_OP_EMBED;
	if (role >= OD_ROLE_FFN_GATE && role <= OD_ROLE_SHARED_DOWN)
		return OD_OP_FFN;
	if (role == OD_ROLE_KV_B || role == OD_ROLE_K_B)
		return OD_OP_LATENT_QUERY;
	if (role == OD_ROLE_V_B)
		return OD_OP_LATENT_VALUE;
	return OD_OP_LINEAR;
}

static int refuse(const struct od_pack *p, const struct od_device *d, const char *where, enum od_dtype dtype,
		  struct od_err *err)
{
	return od_fail(err, OD_ERR_UNSUPPORTED,
		       "%s: %s has %s weights, and %s cannot compute with them: use --device cpu, or a file with other "
		       "formats",
		       p->dir, where, od_dtype_name(dtype), od_device_name(d));
}

int od_dense_check_device(const struct od_pack *p, const struct od_dense_tensor *t, const struct od_device *d,
			  struct od_err *err)
{
	const bool is_head_too = t->role == OD_ROLE_EMBED && p->config.tied_head;
	char where[64];

	if (t->n_in == 0 || (od_device_supports(d, op_of(t->role), t->type.dtype) &&
			     (!is_head_too || od_device_supports(d, OD_OP_LINEAR, t->type.dtype))))
		return OD_OK;
	if (od_role_per_layer(t->role))
		snprintf(where, sizeof(where), "%s of layer %u", od_role_name(t->role), t->layer);
	else
		snprintf(where, sizeof(where), "%s", od_role_name(t->role));
	return refuse(p, d, where, t->type.dtype, err);
}

int od_experts_check_device(const struct od_pack *p, const struct od_device *d, struct od_err *err)
{
	uint32_t begin, end;
	char where[64];

	od_config_moe_held(&p->config, &begin, &end);
	for (uint32_t m = begin; m < end; m++)
		for (uint32_t e = 0; e < p->config.n_experts; e++)
			for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
				const enum od_dtype t = od_pack_entry(p, m, e)->type[mat].dtype;

				if (od_device_supports(d, OD_OP_EXPERTS, t))
					continue;
				snprintf(where, sizeof(where), "%s of expert %u of layer %u",
					 od_expert_mat_name((enum od_expert_mat)mat), e, p->config.layer_of[m]);
				return refuse(p, d, where, t, err);
			}
	return OD_OK;
}
