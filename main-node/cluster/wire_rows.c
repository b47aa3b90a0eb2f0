#include "main-node/cluster/wire_rows.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#define MAX_INDICES 65536u /* row indices in a RUN: two bytes each, half of a header */

size_t odm_wire_rows_each(const struct od_config *cfg, enum od_profile profile)
{
	return cfg->hidden * od_dtype_bytes(profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32);
}

uint32_t odm_wire_rows_most(const struct od_config *cfg, enum od_profile profile)
{
	const uint32_t most = od_max_run_rows(odm_wire_rows_each(cfg, profile)), listed = MAX_INDICES / cfg->top_k;

	return most < listed ? most : listed;
}

int odm_wire_rows_init(struct odm_wire_rows *w, const struct od_forward_opts *o, struct od_err *err)
{
	const struct od_config *c = o->config;
	int rc;

	*w = (struct odm_wire_rows){ .profile = o->profile, .hidden = c->hidden, .top_k = c->top_k };
	w->row_bytes = odm_wire_rows_each(c, o->profile);
	rc = od_backend_cpu(&w->backend, OD_CPU_AUTO, o->profile, err); /* they all convert the same */
	if (rc != OD_OK)
		return rc;
	w->expert = calloc(c->n_experts, sizeof(*w->expert));
	w->expert_list = calloc(c->n_experts, sizeof(*w->expert_list));
	w->row_slot = calloc(o->max_rows, sizeof(*w->row_slot));
	w->indices = calloc(o->max_rows * c->top_k, sizeof(*w->indices));
	w->rows = od_alloc_array(o->max_rows, w->row_bytes);
	if (w->expert == NULL || w->expert_list == NULL || w->row_slot == NULL || w->indices == NULL || w->rows == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cluster: no memory for %zu rows", o->max_rows);
	return OD_OK;
}

void odm_wire_rows_fini(struct odm_wire_rows *w)
{
	free(w->expert);
	free(w->expert_list);
	free(w->row_slot);
	free(w->indices);
	od_free(w->rows);
	*w = (struct odm_wire_rows){ 0 };
}

static void put_row(struct odm_wire_rows *w, const struct od_moe_call *call, uint32_t slot, uint32_t row)
{
	const float *x = call->x + (size_t)row * w->hidden;
	uint8_t *to = w->rows + (size_t)slot * w->row_bytes;

	if (w->profile == OD_PROFILE_BF16)
		w->backend->f32_to_bf16((uint16_t *)(void *)to, x, w->hidden);
	else
		memcpy(to, x, w->row_bytes);
}

uint32_t odm_wire_rows_run(struct odm_wire_rows *w, const struct od_moe_call *call, const struct odm_pieces *work,
			   struct odm_piece *const *piece, size_t n)
{
	uint32_t n_rows = 0;
	size_t at = 0;

	memset(w->row_slot, 0xff, call->n_rows * sizeof(*w->row_slot));
	for (size_t i = 0; i < n; i++) {
		Od__RunExpert *expert = &w->expert[i];

		od__run_expert__init(expert);
		w->expert_list[i] = expert;
		expert->expert = piece[i]->expert;
		expert->rank = work->first_rank + (uint32_t)(piece[i] - work->piece);
		expert->last = piece[i]->last;
		expert->rows = w->indices + at;
		expert->n_rows = piece[i]->count;
		for (uint32_t j = 0; j < piece[i]->count; j++) {
			const uint32_t row = work->order[piece[i]->first + j] / w->top_k;

			if (w->row_slot[row] == UINT32_MAX) {
				w->row_slot[row] = n_rows;
				put_row(w, call, n_rows++, row);
			}
			w->indices[at++] = w->row_slot[row];
		}
	}
	return n_rows;
}

void odm_wire_rows_take(struct odm_wire_rows *w, const uint8_t *bytes, float *y)
{
	if (w->profile == OD_PROFILE_BF16) { /* frames are received in place and need not be aligned */
		memcpy(w->rows, bytes, w->row_bytes);
		w->backend->bf16_to_f32(y, (const uint16_t *)(const void *)w->rows, w->hidden);
	} else {
		memcpy(y, bytes, w->row_bytes);
	}
}
