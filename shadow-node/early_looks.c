#include "shadow-node/early_looks.h"

#include "common/base/mem.h"

#include <string.h>

#define LAYERS_KEPT OD_MAX_EARLY /* what was said of layer m is read before layer m speaks of m + OD_MAX_EARLY */

static uint64_t values(const struct od_config *cfg)
{
	return (uint64_t)LAYERS_KEPT * ODS_EARLY_ROWS * OD_MAX_EARLY * cfg->n_experts;
}

uint64_t ods_early_bytes(const struct od_config *cfg)
{
	return (values(cfg) + cfg->hidden) * sizeof(float);
}

int ods_early_init(struct ods_early *e, const struct od_forward_opts *o, struct od_err *err)
{
	*e = (struct ods_early){
		.look = { .config = o->config, .dense = o->dense, .backend = o->backend, .pool = o->pool },
	};
	e->look.x = od_alloc_array(o->config->hidden, sizeof(float));
	e->probability = od_alloc_array(values(o->config), sizeof(float));
	if (e->look.x != NULL && e->probability != NULL)
		return OD_OK;
	ods_early_fini(e);
	return od_fail(err, OD_ERR_NOMEM, "early looks at %u layers", o->config->n_layers);
}

void ods_early_fini(struct ods_early *e)
{
	od_free(e->look.x);
	od_free(e->probability);
	*e = (struct ods_early){ 0 };
}

/* [n_experts]: lead counts from 1. */
static float *place(const struct ods_early *e, uint32_t m, size_t row, uint32_t lead)
{
	return e->probability +
	       (((m % LAYERS_KEPT) * ODS_EARLY_ROWS + row) * OD_MAX_EARLY + lead - 1) * e->look.config->n_experts;
}

void ods_early_note(struct ods_early *e, const struct od_forward *f, uint32_t m, size_t n_rows)
{
	if (n_rows > ODS_EARLY_ROWS)
		return;
	for (uint32_t lead = 1; lead <= OD_MAX_EARLY && m + lead < e->look.config->n_layers; lead++) {
		for (size_t r = 0; r < n_rows; r++)
			od_early_look(&e->look, m + lead, od_forward_residual_of(f, r), place(e, m + lead, r, lead));
	}
}

size_t ods_early_of(const struct ods_early *e, uint32_t m, size_t row, size_t n_rows, const uint16_t *expert, size_t n,
		    float *out)
{
	const size_t leads = n_rows > ODS_EARLY_ROWS ? 0 : m < OD_MAX_EARLY ? m : OD_MAX_EARLY;

	for (uint32_t lead = 1; lead <= leads; lead++) {
		const float *all = place(e, m, row, lead);

		for (size_t i = 0; i < n; i++)
			out[(lead - 1) * n + i] = all[expert[i]];
	}
	return leads;
}
