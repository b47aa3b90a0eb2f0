#include "common/pack/load/dense_parts.h"

#include "common/base/mem.h"
#include "common/pack/pack_internal.h"

#include <stdlib.h>

#define LEAST_BYTES (16u << 10) /* a read of less costs more than the memory is worth */
#define HEAD_ROWS 64 /* pieces of the head have a multiple */

static uint64_t weight_bytes(const struct od_dense_tensor *t)
{
	return t->n_out * od_mat_row_bytes(&t->type, t->n_in);
}

static bool is_head(const struct od_pack *p, const struct od_dense_tensor *t)
{
	return t->role == OD_ROLE_HEAD ||
	       (t->role == OD_ROLE_EMBED && p->config.tied_head && od_config_holds_head(&p->config));
}

bool od_dense_is_part(const struct od_pack *p, const struct od_dense_tensor *t)
{
	if (!od_config_holds_role(&p->config, t->role, t->layer) || t->n_in == 0 || t->role == OD_ROLE_ROUTER)
		return false;
	return is_head(p, t) || (od_role_per_layer(t->role) && weight_bytes(t) >= LEAST_BYTES);
}

uint64_t od_dense_scale_memory(const struct od_dense_tensor *t)
{
	return t->type.scale != 0 ? od_mat_scale_memory_bytes(&t->type, t->n_out, t->n_in) : 0;
}

uint64_t od_dense_part_phase(const struct od_dense_tensor *t, uint64_t row)
{
	const uint64_t at = t->offset + row * od_mat_row_bytes(&t->type, t->n_in);

	return t->run == 0 && at % OD_PAD_BYTES == 0 ? at % OD_PAGE_BYTES : 0;
}

static uint64_t place_bytes(const struct od_dense_tensor *t, uint64_t row, uint64_t n)
{
	return od_round_up(od_dense_part_phase(t, row) + n * od_mat_row_bytes(&t->type, t->n_in) + OD_PAD_BYTES,
			   OD_PAGE_BYTES);
}

static void add(struct od_dense_parts *parts, const struct od_dense_tensor *t, uint32_t stage, uint64_t row, uint64_t n)
{
	const size_t i = parts->n++;

	parts->plan[i] = (struct od_dense_part){ .stage = stage, .bytes = place_bytes(t, row, n) };
	parts->part[i] = (struct od_dense_stream_part){ .tensor = t, .row = row, .n = n, .stage = stage };
}

static void add_layer(struct od_dense_parts *parts, const struct od_pack *p, uint32_t layer)
{
	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		if (od_role_per_layer(t->role) && t->layer == layer && od_dense_is_part(p, t))
			add(parts, t, layer, 0, t->n_out);
	}
}

/* Rows of a piece of the head: as many bytes as the largest layer has, so that a ring for layers is one for pieces. */
static uint64_t head_rows(const struct od_pack *p, const struct od_dense_tensor *t)
{
	const uint64_t each = od_mat_row_bytes(&t->type, t->n_in);
	uint64_t most = 0, rows;

	for (uint32_t layer = 0; layer < p->config.n_layers; layer++) {
		uint64_t sum = 0;

		for (size_t i = 0; i < p->manifest.n_dense; i++)
			if (od_role_per_layer(p->manifest.dense[i].role) && p->manifest.dense[i].layer == layer &&
			    od_dense_is_part(p, &p->manifest.dense[i]))
				sum += weight_bytes(&p->manifest.dense[i]);
		most = sum > most ? sum : most;
	}
	rows = most / each / HEAD_ROWS * HEAD_ROWS;
	if (t->run > 0 || rows > t->n_out)
		return t->n_out;
	return rows > HEAD_ROWS ? rows : HEAD_ROWS;
}

static uint64_t head_pieces(const struct od_pack *p, const struct od_dense_tensor *t)
{
	const uint64_t rows = head_rows(p, t);

	return (t->n_out + rows - 1) / rows;
}

static void add_head(struct od_dense_parts *parts, const struct od_pack *p, const struct od_dense_tensor *t)
{
	const uint64_t rows = head_rows(p, t);
	uint32_t stage = p->config.n_layers;

	for (uint64_t row = 0; row < t->n_out; row += rows)
		add(parts, t, stage++, row, t->n_out - row < rows ? t->n_out - row : rows);
}

int od_dense_parts_list(struct od_dense_parts *parts, const struct od_pack *p, struct od_err *err)
{
	uint64_t n = 1;

	*parts = (struct od_dense_parts){ 0 };
	for (size_t i = 0; i < p->manifest.n_dense; i++) {
		const struct od_dense_tensor *t = &p->manifest.dense[i];

		if (!od_dense_is_part(p, t))
			continue;
		n += is_head(p, t) ? head_pieces(p, t) : 1;
		parts->scale_bytes += od_dense_scale_memory(t);
	}
	parts->plan = calloc(n, sizeof(*parts->plan));
	parts->part = calloc(n, sizeof(*parts->part));
	if (parts->plan == NULL || parts->part == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a list of dense weights");
	for (uint32_t layer = 0; layer < p->config.n_layers; layer++)
		add_layer(parts, p, layer);
	for (size_t i = 0; i < p->manifest.n_dense; i++)
		if (od_dense_is_part(p, &p->manifest.dense[i]) && is_head(p, &p->manifest.dense[i]))
			add_head(parts, p, &p->manifest.dense[i]);
	return OD_OK;
}

void od_dense_parts_fini(struct od_dense_parts *parts)
{
	free(parts->plan);
	free(parts->part);
	*parts = (struct od_dense_parts){ 0 };
}

uint64_t od_dense_parts_least(const struct od_pack *p)
{
	struct od_dense_parts parts;
	struct od_dense_plan plan = { .ring_bytes = UINT64_MAX };
	struct od_err err;

	if (od_dense_parts_list(&parts, p, &err) == OD_OK)
		(void)od_dense_plan_make(&plan, parts.plan, parts.n, 0);
	od_dense_parts_fini(&parts);
	return plan.ring_bytes;
}

uint64_t od_dense_parts_beside(const struct od_pack *p)
{
	struct od_dense_parts parts;
	uint64_t bytes = UINT64_MAX;
	struct od_err err;

	if (od_dense_parts_list(&parts, p, &err) == OD_OK)
		bytes = od_dense_stream_bytes(parts.part, parts.n);
	od_dense_parts_fini(&parts);
	return bytes;
}
