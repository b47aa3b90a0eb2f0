#include "common/pack/mat_type.h"

#include "common/base/mem.h"
#include "common/compute/quant.h"

#include <stdio.h>
#include <string.h>

static bool is_block(uint32_t n, uint32_t least)
{
	return n == 0 || (n >= least && (n & (n - 1)) == 0);
}

static bool may(enum od_dtype t, unsigned use)
{
	const struct od_format *f = od_format(t);

	return f != NULL && (f->uses & use) != 0;
}

bool od_mat_type_ok(const struct od_mat_type *t, uint64_t n_in)
{
	if (t->scale == 0)
		return may(t->dtype, OD_USE_ALONE | OD_USE_BLOCKS) && t->block_rows == 0 && t->block_cols == 0 &&
		       n_in % od_block_of(t->dtype).weights == 0;
	return may(t->dtype, OD_USE_SCALED) && may(t->scale, OD_USE_SCALE) && is_block(t->block_rows, 1) &&
	       is_block(t->block_cols, OD_SCALE_BLOCK_MIN) && n_in % od_block_of(t->dtype).weights == 0;
}

bool od_mat_type_same(const struct od_mat_type *a, const struct od_mat_type *b)
{
	return a->dtype == b->dtype && a->scale == b->scale && a->block_rows == b->block_rows &&
	       a->block_cols == b->block_cols;
}

const char *od_mat_type_text(const struct od_mat_type *t, char buf[OD_MAT_TYPE_CHARS])
{
	if (t->scale == 0)
		snprintf(buf, OD_MAT_TYPE_CHARS, "%s", od_dtype_name(t->dtype));
	else
		snprintf(buf, OD_MAT_TYPE_CHARS, "%s*%s[%u,%u]", od_dtype_name(t->dtype), od_dtype_name(t->scale),
			 t->block_rows, t->block_cols);
	return buf;
}

uint64_t od_mat_row_bytes(const struct od_mat_type *t, uint64_t n_in)
{
	return od_row_bytes(t->dtype, n_in);
}

/* Without their address in memory. */
static struct od_scales scales_of(const struct od_mat_type *t, uint64_t n_in)
{
	return (struct od_scales){ .dtype = t->scale, .group = t->block_cols != 0 ? t->block_cols : n_in };
}

uint64_t od_mat_scale_row(const struct od_mat_type *t, uint64_t row)
{
	return t->block_rows == 0 ? 0 : row / t->block_rows;
}

uint64_t od_mat_scale_rows(const struct od_mat_type *t, uint64_t row, uint64_t n_rows)
{
	if (t->scale == 0 || n_rows == 0)
		return 0;
	return od_mat_scale_row(t, row + n_rows - 1) - od_mat_scale_row(t, row) + 1;
}

uint64_t od_mat_scale_row_bytes(const struct od_mat_type *t, uint64_t n_in)
{
	const struct od_scales s = scales_of(t, n_in);

	return t->scale == 0 ? 0 : od_scale_groups(&s, n_in) * od_dtype_bytes(s.dtype);
}

uint64_t od_mat_divisor_bytes(const struct od_mat_type *t)
{
	return t->scale == OD_F8_E4M3 ? sizeof(float) : 0;
}

uint64_t od_mat_bytes(const struct od_mat_type *t, uint64_t n_in, uint64_t row, uint64_t n_rows)
{
	return n_rows * od_mat_row_bytes(t, n_in) + od_mat_divisor_bytes(t) +
	       od_mat_scale_rows(t, row, n_rows) * od_mat_scale_row_bytes(t, n_in);
}

/* Where the divisor is; the scales are OD_PAD_BYTES further on. */
static uint64_t divisor_at(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in)
{
	return od_round_up(n_rows * od_mat_row_bytes(t, n_in), OD_PAD_BYTES) + OD_PAD_BYTES;
}

uint64_t od_mat_memory_bytes(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in)
{
	uint64_t at = divisor_at(t, n_rows, n_in);

	if (t->scale == 0)
		return at;
	return at + OD_PAD_BYTES + od_round_up(n_rows * od_mat_scale_row_bytes(t, n_in), OD_PAD_BYTES) + OD_PAD_BYTES;
}

void od_mat_bind(struct od_mat *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, const void *memory)
{
	const uint8_t *divisor = (const uint8_t *)memory + divisor_at(t, n_rows, n_in);

	*w = (struct od_mat){ .dtype = t->dtype, .n_out = n_rows, .n_in = n_in, .data = memory };
	if (t->scale == 0)
		return;
	w->scales = scales_of(t, n_in);
	w->scales.at = divisor + OD_PAD_BYTES;
	if (od_mat_divisor_bytes(t) > 0)
		w->scales.divisor = (const float *)(const void *)divisor;
}

void od_weight_bind_apart(struct od_weight *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in,
			  struct od_ref weights, struct od_ref divisor)
{
	struct od_scales scales;

	*w = (struct od_weight){ .dtype = t->dtype, .n_out = n_rows, .n_in = n_in, .data = weights };
	if (t->scale == 0)
		return;
	scales = scales_of(t, n_in);
	w->scales.dtype = scales.dtype;
	w->scales.group = scales.group;
	w->scales.at = od_ref_at(divisor, OD_PAD_BYTES);
	if (od_mat_divisor_bytes(t) > 0)
		w->scales.divisor = divisor;
}

void od_weight_bind(struct od_weight *w, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in,
		    struct od_ref memory)
{
	od_weight_bind_apart(w, t, n_rows, n_in, memory, od_ref_at(memory, divisor_at(t, n_rows, n_in)));
}

/* memory: from the divisor on */
static void put_scales(const struct od_mat_type *t, uint64_t n_in, uint8_t *memory, uint64_t at, uint64_t row,
		       uint64_t n, const uint8_t *from)
{
	const uint64_t each = od_mat_scale_row_bytes(t, n_in), first = od_mat_scale_row(t, row);

	if (at == 0)
		memcpy(memory, from, od_mat_divisor_bytes(t));
	memory += OD_PAD_BYTES;
	from += od_mat_divisor_bytes(t);
	for (uint64_t i = 0; i < n; i++)
		memcpy(memory + (at + i) * each, from + (od_mat_scale_row(t, row + i) - first) * each, each);
}

void od_mat_put_scales(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, void *memory, uint64_t at,
		       uint64_t row, uint64_t n, const uint8_t *from)
{
	if (t->scale != 0)
		put_scales(t, n_in, (uint8_t *)memory + divisor_at(t, n_rows, n_in), at, row, n, from);
}

uint64_t od_mat_scale_memory_bytes(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in)
{
	return od_mat_memory_bytes(t, n_rows, n_in) - divisor_at(t, n_rows, n_in);
}

void od_mat_put_scales_apart(const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, void *memory,
			     const uint8_t *from)
{
	if (t->scale != 0)
		put_scales(t, n_in, memory, 0, 0, n_rows, from);
}
