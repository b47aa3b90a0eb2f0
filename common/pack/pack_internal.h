/* pack_internal.h - the representation of an open pack; only for common/pack. */
#ifndef OD_PACK_PACK_INTERNAL_H
#define OD_PACK_PACK_INTERNAL_H

#include <stdatomic.h>

#include "common/pack/gguf/gguf_sums.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/manifest.h"
#include "common/pack/pack_data.h"

#define OD_TENSOR_NAME_BYTES 48

/* The names of the tensors in a GGUF file that have the experts of a layer; some may be the same. */
struct od_pack_tensors {
	char name[OD_N_EXPERT_TENSORS][OD_TENSOR_NAME_BYTES];
};

struct od_pack {
	/* A GGUF file that is used where it lies: checksums of the dense tensors, then of each expert's chunks.
	 * NULL: a pack, which has its own. */
	struct od_gguf_sums *sums;
	char *dir; /* as it was named: a pack's folder, or a GGUF file */
	char *folder; /* has the small files and the shadows */
	bool temporary; /* the folder goes with the pack */
	struct od_config config;
	struct od_manifest manifest;
	char *tokenizer_path; /* NULL: none */
	json_t *generation; /* NULL: none */
	struct od_pack_data dense, experts;
	struct od_expert_entry *expert; /* [n_moe][n_experts] */
	struct od_pack_tensors *tensor; /* a GGUF file's, [n_moe]; NULL: no such file */
	_Atomic uint64_t n_changes; /* a spool's: experts that came or went */
	atomic_bool *has; /* a spool's [n_moe][n_experts]: the expert is complete; NULL: all are */
	uint64_t buf_bytes[OD_N_EXPERT_BUFS], stored_bytes, raw_bytes; /* the largest expert's */
	struct od_buf_sizes *layer; /* [n_moe]: the largest buffers of each layer's experts */
	/* Maxima over all shards: weights; SM bytes; SM bytes of types not merged in place; bytes in memory of types
	 * that the host merges. */
	uint64_t shard_exponents, shard_sm, shard_apart_sm, shard_host_rows;
};

/* Finds the tokeniser and reads generation_config.json in the folder. */
OD_MUST_CHECK int od_pack_read_extras(struct od_pack *p, struct od_err *err);
/* Computes the sizes of the largest expert and shard, and of each layer's largest, from all entries. */
OD_MUST_CHECK int od_pack_measure(struct od_pack *p, struct od_err *err);

const struct od_expert_entry *od_pack_entry(const struct od_pack *p, uint32_t m, uint32_t expert);
/* The experts of this process's layers are entries [*first, *first + n). Returns n. */
size_t od_pack_held_experts(const struct od_pack *p, size_t *first);

/* Spools only: marks an expert complete or absent. Any thread. */
void od_pack_set_has_expert(struct od_pack *p, uint32_t m, uint32_t expert, bool has);

/* Checks bytes that were read: a dense tensor's, or those of a shard's chunk. */
OD_MUST_CHECK int od_pack_check_dense(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t found,
				      struct od_err *err);
size_t od_pack_sum_index(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard); /* in p->sums */
OD_MUST_CHECK int od_pack_check_chunk(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard,
				      const struct od_chunk *c, const uint8_t *buf, struct od_err *err);

/* How the tensor's bytes are split (od_tensor_coding). */
static inline enum od_dtype od_entry_coding(const struct od_expert_entry *e, int tensor)
{
	return e->as_bytes ? OD_INT8 : od_tensor_coding(tensor, &e->type[tensor]);
}

/* Bytes of one of the expert's buffers. */
uint64_t od_expert_buf_bytes(const struct od_config *cfg, const struct od_expert_entry *e, enum od_expert_buf buf);

/* The offset of a tensor in OD_BUF_PLAIN (layout: mat_type.h); for od_expert_tensors() the bytes of all. */
uint64_t od_plain_offset(const struct od_config *cfg, const struct od_expert_entry *e, int mat);

/* Reads rows [row, row + n) of a matrix, or elements of a vector, unchecked: their bytes, without scales, in the
 * checkpoint's order. */
OD_MUST_CHECK int od_dense_read(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
				uint8_t *to, struct od_err *err);
/* Reads rows [row, row + n) of a matrix in dense.bin, unchecked, to memory as a matrix of n rows (mat_type.h). scratch:
 * room for the matrix's divisor and scales in dense.bin. */
OD_MUST_CHECK int od_dense_read_rows(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
				     void *memory, uint8_t *scratch, struct od_err *err);

/* od_pack_check_dense, whose message gets the tensor's place. */
OD_MUST_CHECK int od_dense_check_sum(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t found,
				     struct od_err *err);

#endif
