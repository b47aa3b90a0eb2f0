/* pack_internal.h - what an open pack is made of, for the files of this folder only. */
#ifndef OD_PACK_PACK_INTERNAL_H
#define OD_PACK_PACK_INTERNAL_H

#include <stdatomic.h>

#include "common/pack/dense_load.h"
#include "common/pack/manifest.h"

struct od_pack_file {
	char *path;
	int fd, direct_fd; /* direct: past the page cache; -1: not so */
};

struct od_pack {
	char *dir;
	struct od_config config;
	struct od_manifest manifest;
	char *tokenizer_path;  /* NULL: none */
	json_t *generation;    /* NULL: none */
	struct od_pack_file dense, experts;
	struct od_expert_entry *expert; /* [n_moe][n_experts] */
	atomic_bool *has;		/* of a spool, the same: it is whole; NULL: all are */
	uint64_t buf_bytes[OD_N_EXPERT_BUFS], stored_bytes, raw_bytes; /* of the largest expert */
	/* Of the largest shards: weights; SM bytes, and of those that are not merged in place; and what the host puts together
	 * itself, as a matrix in memory. */
	uint64_t shard_exponents, shard_sm, shard_apart_sm, shard_host_rows;
};

const struct od_expert_entry *od_pack_entry(const struct od_pack *p, uint32_t m, uint32_t expert);

/* Only of a spool: an expert came or went. Any thread. */
void od_pack_set_has_expert(const struct od_pack *p, uint32_t m, uint32_t expert, bool has);

/* Bytes of a buffer for the expert. */
uint64_t od_expert_buf_bytes(const struct od_config *cfg, const struct od_expert_entry *e, enum od_expert_buf buf);

/* Where a matrix begins in OD_BUF_PLAIN, as mat_type.h has it in memory; for OD_N_EXPERT_MATS: its bytes. */
uint64_t od_plain_offset(const struct od_config *cfg, const struct od_expert_entry *e, int mat);

/* Rows [row, row + n) of a matrix in dense.bin, unchecked, to memory as a matrix of n rows (mat_type.h). scratch: as long as
 * what stands behind the weights there. */
OD_MUST_CHECK int od_dense_read_rows(const struct od_pack *p, const struct od_dense_tensor *t, uint64_t row, uint64_t n,
				     void *memory, uint8_t *scratch, struct od_err *err);

/* od_dense_load, with or without the matrices that a shadow has in its own precision (od_role_quantised). */
OD_MUST_CHECK int od_dense_load_some(struct od_dense_store **out, const struct od_pack *p, struct od_device *d,
				     bool quantised, struct od_err *err);
uint64_t od_dense_some_bytes(const struct od_pack *p, bool quantised);

#endif
