/* manifest.h - model.json: the table of contents of a pack.
 *
 * Reading checks every number against the configuration: what stands where in the big files follows from the
 * shapes, so anything else is refused.
 * Thread: any. Owner: the caller; od_manifest_fini frees the tables. */
#ifndef OD_PACK_MANIFEST_H
#define OD_PACK_MANIFEST_H

#include "common/pack/pack_layout.h"

/* A tensor of dense.bin: bytes as in the checkpoint. */
struct od_dense_tensor {
	enum od_role role;
	uint32_t layer; /* 0 when the role is not one per layer */
	enum od_dtype dtype;
	uint64_t n_out, n_in; /* n_in 0: a vector */
	uint64_t offset, bytes, xxh3;
	uint8_t sha256[OD_SHA256_BYTES];
};

struct od_expert_place {
	uint64_t offset, bytes, header_xxh3; /* header_xxh3: XXH3-64 of the header's bytes as stored */
};

/* One quantised tensor of shadow-int8.bin with its scales and padding. */
struct od_int8_tensor {
	uint64_t n_out, n_in, offset, bytes, xxh3;
};

struct od_manifest {
	char fingerprint[OD_FINGERPRINT_CHARS + 1];
	struct od_dense_tensor *dense; /* [n_dense] in the order of od_dense_table */
	size_t n_dense;
	uint64_t dense_bytes; /* of the file */
	struct od_expert_place *expert; /* [n_layers][n_experts] */
	size_t n_experts;
	uint64_t experts_bytes;
	struct od_int8_tensor *int8; /* [n_int8], NULL: the pack has no shadow */
	size_t n_int8;
	uint64_t int8_bytes;
};

/* The tables with everything that follows from the configuration; dtypes, offsets and sums still unset. The
 * order is: tensors that exist once, then layer by layer. */
OD_MUST_CHECK int od_manifest_init(struct od_manifest *m, const struct od_config *cfg, struct od_err *err);
void od_manifest_fini(struct od_manifest *m);

/* Offsets of dense.bin from the dtypes, sizes of the file. */
void od_manifest_place_dense(struct od_manifest *m);
/* Adds the shadow's table: attention q, k, v, o of each layer, then gate, up, down of each expert. */
OD_MUST_CHECK int od_manifest_add_int8(struct od_manifest *m, const struct od_config *cfg, struct od_err *err);

OD_MUST_CHECK int od_manifest_read(struct od_manifest *m, const struct od_config *cfg, const char *path,
				   struct od_err *err);
OD_MUST_CHECK int od_manifest_write(const struct od_manifest *m, const struct od_config *cfg, const char *path,
				    struct od_err *err);

/* The INT8 table's index of attention role q, k, v or o of a layer, of a matrix of an expert. */
size_t od_int8_attn_index(enum od_role role, uint32_t layer);
size_t od_int8_expert_index(const struct od_config *cfg, uint32_t m, uint32_t expert, enum od_expert_mat mat);

#endif
