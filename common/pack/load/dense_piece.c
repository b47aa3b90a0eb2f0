#include "common/pack/load/dense_piece.h"

#include "common/base/mem.h"
#include "common/pack/pack_internal.h"

#include <string.h>

#define PIECE_BYTES (1u << 20)

static uint64_t row_bytes(const struct od_dense_tensor *t)
{
	return od_mat_row_bytes(&t->type, t->n_in);
}

uint64_t od_dense_piece_rows(const struct od_dense_tensor *t)
{
	const uint64_t each = row_bytes(t), n = each < PIECE_BYTES ? PIECE_BYTES / each : 1;

	return t->run > 0 ? (n + t->run - 1) / t->run * t->run : n;
}

uint64_t od_dense_piece_stage_bytes(const struct od_dense_tensor *t)
{
	const uint64_t rows = od_dense_piece_rows(t), n = rows < t->n_out ? rows : t->n_out;

	return od_round_up(n * row_bytes(t), OD_PAGE_BYTES) + 2 * OD_PAGE_BYTES;
}

/* True: the file has these rows together, from row *first on, though in any order. */
static bool lie_together(const struct od_dense_tensor *t, uint64_t row, uint64_t n, uint64_t *first)
{
	uint64_t least = UINT64_MAX, most = 0;

	*first = row;
	if (t->run == 0)
		return true;
	for (uint64_t i = row; i < row + n; i++) {
		const uint64_t at = od_dense_row(t->form, t->run, i);

		least = at < least ? at : least;
		most = at > most ? at : most;
	}
	*first = least;
	return most - least + 1 == n;
}

static void put_in_order(const struct od_dense_tensor *t, uint64_t row, uint64_t n, uint64_t first, const uint8_t *from,
			 uint8_t *to)
{
	const uint64_t each = row_bytes(t);

	if (t->run == 0)
		memcpy(to, from, n * each);
	else
		for (uint64_t i = 0; i < n; i++)
			memcpy(to + i * each, from + (od_dense_row(t->form, t->run, row + i) - first) * each, each);
}

int od_dense_piece_read(const struct od_dense_reader *r, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
			uint8_t *to, struct od_err *err)
{
	const struct od_pack_data *data = &r->pack->dense;
	const uint64_t each = row_bytes(t);
	uint64_t first, offset;
	uint8_t *stage;
	int rc;

	if (!lie_together(t, row, n, &first))
		return od_dense_read(r->pack, t, row, n, to, err);
	offset = t->offset + first * each;
	if (t->run == 0 && (!r->direct || ((uintptr_t)to - offset) % OD_PAGE_BYTES == 0))
		return od_data_read(data, r->direct, to, n * each, offset, err);
	/* Whole pages go past the page cache only to where they are in a page already. */
	stage = r->stage + (offset - (uintptr_t)r->stage) % OD_PAGE_BYTES;
	rc = od_data_read(data, r->direct, stage, n * each, offset, err);
	if (rc == OD_OK)
		put_in_order(t, row, n, first, stage, to);
	return rc;
}
