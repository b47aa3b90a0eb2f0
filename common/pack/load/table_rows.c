#include "common/pack/load/table_rows.h"

#include "common/pack/checksum.h"
#include "common/pack/pack_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#define PIECE_BYTES (1u << 20) /* read at once, while the table is checked */
#define ATTEMPTS 3

struct od_table_rows {
	const struct od_pack *pack;
	const struct od_dense_tensor *tensor;
	uint64_t row_bytes;
	uint32_t sum[]; /* [n_out]: the lower half of each row's XXH3-64 */
};

static uint32_t sum_of(const void *row, uint64_t bytes)
{
	return (uint32_t)XXH3_64bits(row, bytes);
}

uint64_t od_table_rows_bytes(const struct od_dense_tensor *t)
{
	return sizeof(struct od_table_rows) + t->n_out * sizeof(uint32_t);
}

/* piece: room for n_piece rows */
static int check_table(struct od_table_rows *r, uint8_t *piece, uint64_t n_piece, XXH3_state_t *all, struct od_err *err)
{
	const struct od_dense_tensor *t = r->tensor;
	uint64_t n;

	XXH3_64bits_reset(all);
	for (uint64_t row = 0; row < t->n_out; row += n) {
		int rc;

		n = t->n_out - row < n_piece ? t->n_out - row : n_piece;
		rc = od_dense_read(r->pack, t, row, n, piece, err);
		if (rc != OD_OK)
			return rc;
		XXH3_64bits_update(all, piece, n * r->row_bytes);
		for (uint64_t i = 0; i < n; i++)
			r->sum[row + i] = sum_of(piece + i * r->row_bytes, r->row_bytes);
	}
	return od_dense_check_sum(r->pack, t, XXH3_64bits_digest(all), err);
}

int od_table_rows_open(struct od_table_rows **out, const struct od_pack *p, const struct od_dense_tensor *t,
		       struct od_err *err)
{
	const uint64_t row_bytes = od_mat_row_bytes(&t->type, t->n_in),
		       n_piece = row_bytes < PIECE_BYTES ? PIECE_BYTES / row_bytes : 1;
	struct od_table_rows *r = malloc(od_table_rows_bytes(t));
	uint8_t *piece = malloc(n_piece * row_bytes);
	XXH3_state_t *all = XXH3_createState();
	int rc;

	*out = NULL;
	if (r == NULL || piece == NULL || all == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", od_data_path(&p->dense, t->offset));
	} else {
		r->pack = p;
		r->tensor = t;
		r->row_bytes = row_bytes;
		rc = check_table(r, piece, n_piece, all, err);
	}
	XXH3_freeState(all);
	free(piece);
	if (rc != OD_OK) {
		free(r);
		return rc;
	}
	*out = r;
	return OD_OK;
}

void od_table_rows_close(struct od_table_rows *r)
{
	free(r);
}

static int read_row(const struct od_table_rows *r, uint32_t row, void *to, struct od_err *err)
{
	const struct od_dense_tensor *t = r->tensor;
	const struct od_data_file *f = od_data_file(&r->pack->dense, t->offset);
	int rc = od_dense_read(r->pack, t, row, 1, to, err);
	uint32_t found;

	if (rc != OD_OK)
		return OD_ERR_IO; /* also where the file is shorter than it was: no text is at fault */
	found = sum_of(to, r->row_bytes);
	if (found == r->sum[row])
		return OD_OK;
	return od_fail(err, OD_ERR_CORRUPT,
		       "%s at offset %" PRIu64 ": checksum: expected %08" PRIx32 ", found %08" PRIx32, f->path,
		       t->offset + od_dense_row(t->form, t->run, row) * r->row_bytes - f->begin, r->sum[row], found);
}

int od_table_rows_read(void *arg, uint32_t row, void *to, struct od_err *err)
{
	const struct od_table_rows *r = arg;
	const char *name = od_role_name(r->tensor->role);
	struct od_err why;
	int rc = OD_OK;

	if (row >= r->tensor->n_out)
		return od_fail(err, OD_ERR_RANGE, "tensor %s: row: expected below %" PRIu64 ", found %u", name,
			       r->tensor->n_out, row);
	for (int i = 0; i < ATTEMPTS; i++) {
		rc = read_row(r, row, to, &why);
		if (rc == OD_OK)
			return OD_OK;
	}
	return od_fail(err, rc, "tensor %s, row %u: %s (tried %d times)", name, row, why.msg, ATTEMPTS);
}
