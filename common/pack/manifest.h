/* manifest.h - model.json: the table of contents of a pack.
 *
 * Reading checks every number against the configuration, because the shapes determine the layout of the big files.
 * Thread: any. Owner: the caller; od_manifest_fini frees the tables. */
#ifndef OD_PACK_MANIFEST_H
#define OD_PACK_MANIFEST_H

#include "common/pack/pack_layout.h"

struct od_checkpoint;

/* How a dense tensor of a GGUF file becomes that of the checkpoint. In a pack rows are in the checkpoint's order, so
 * that the only forms are OD_DENSE_AS_IS and OD_DENSE_NEGATIVE_EXP. */
enum od_dense_form {
	OD_DENSE_AS_IS,
	OD_DENSE_PAIRS, /* rows 2 i and 2 i + 1 of each head are rows i and i + half of the head */
	OD_DENSE_NEGATIVE_EXP, /* -exp(x) */
	/* A tensor of twice the rows: a run of the first role's, a run of the second's, and so on. */
	OD_DENSE_FIRST_RUNS,
	OD_DENSE_SECOND_RUNS,
};

/* The row of the file that has row `row` of the matrix, or element of the vector. run: as below. */
uint64_t od_dense_row(enum od_dense_form form, uint32_t run, uint64_t row);

/* A tensor of dense.bin, with its scales: bytes as in the checkpoint. */
struct od_dense_tensor {
	enum od_role role;
	uint32_t layer; /* 0 for roles that are not per layer */
	struct od_mat_type type;
	uint64_t n_out, n_in; /* n_in 0: a vector */
	uint64_t offset, bytes, xxh3;
	enum od_dense_form form;
	uint32_t run; /* OD_DENSE_PAIRS: rows of a head; runs: rows of one; else 0 */
	uint8_t sha256[OD_SHA256_BYTES];
};

struct od_expert_extent {
	uint64_t offset, bytes, header_xxh3; /* header_xxh3: XXH3-64 of the header's bytes as stored */
};

struct od_manifest {
	uint32_t schema; /* OD_PACK_SCHEMA; OD_PACK_SCHEMA_GGUF: made from a GGUF file; 0: one used where it lies */
	char fingerprint[OD_FINGERPRINT_CHARS + 1];
	enum od_codec codec;
	struct od_dense_tensor *dense; /* [n_dense] in the order of od_dense_table */
	size_t n_dense;
	uint64_t dense_bytes; /* length of dense.bin */
	struct od_expert_extent *expert; /* [n_moe][n_experts] */
	size_t n_experts;
	uint64_t experts_bytes;
	/* A share of a GGUF file: the types of all experts of a layer, [n_moe]; NULL: a pack. */
	struct od_layer_types *layer;
};

struct od_layer_types {
	struct od_mat_type type[OD_N_EXPERT_TENSORS];
};

/* Makes the tables from the configuration; dtypes, offsets and sums remain unset. Order: tensors that exist once, then
 * layer by layer. */
OD_MUST_CHECK int od_manifest_init(struct od_manifest *m, const struct od_config *cfg, struct od_err *err);
void od_manifest_fini(struct od_manifest *m);

/* Bytes of the widest dense matrix's row. */
uint64_t od_manifest_row_bytes(const struct od_manifest *m);
/* Computes the offsets in dense.bin and its size from the dtypes. */
void od_manifest_lay_out_dense(struct od_manifest *m);

/* Also reads what od_manifest_write_share has written: then it sets layer and the experts' extents, and nothing of
 * dense tensors. */
OD_MUST_CHECK int od_manifest_read(struct od_manifest *m, const struct od_config *cfg, const char *path,
				   struct od_err *err);
/* from: the source checkpoint; model.json records the names of its tensors. */
OD_MUST_CHECK int od_manifest_write(const struct od_manifest *m, const struct od_config *cfg,
				    const struct od_checkpoint *from, const char *path, struct od_err *err);
/* The model.json of a GGUF file that is used where it lies, for workers that pull their share of it: only fingerprint
 * and layer [n_moe]. */
OD_MUST_CHECK int od_manifest_write_share(const char *fingerprint, const struct od_layer_types *layer,
					  const struct od_config *cfg, const char *path, struct od_err *err);

#endif
