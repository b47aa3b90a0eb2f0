/* pack_layout.h - the byte layout of a pack's files: docs/PACK-FORMAT.md in C.
 *
 * Writer, reader and verify take all offsets from here. The configuration fixes every offset in the big files, so
 * verify can account for every byte.
 * Thread: pure functions. */
#ifndef OD_PACK_LAYOUT_H
#define OD_PACK_LAYOUT_H

#include "common/base/mem.h"
#include "common/pack/codec.h"
#include "common/pack/mat_type.h"
#include "common/pack/pack.h"
#include "common/pack/sums.h"

#define OD_SHARD_WEIGHTS (512u * 1024) /* limit of a shard, unless one row is longer */

/* The advice at the end of messages about unreadable packs. */
#define OD_MAKE_AGAIN "another version of od-pack made this; make it again: od-pack --force CHECKPOINT PACK"

#define OD_DENSE_NAME "dense.bin"
#define OD_EXPERTS_NAME "experts.bin"
#define OD_MODEL_NAME "model.json"
#define OD_SOURCE_NAME "source.txt" /* it names the checkpoint of an unfinished pack */
#define OD_MODEL_MAX_BYTES (64u << 20)
#define OD_SHARE_MAX_EXPERTS (1u << 20) /* in a share of a GGUF file: a PONG can list so many */
#define OD_GENERATION_MAX_BYTES (1u << 20) /* generation_config.json */

/* An expert starts with this header, its shard table and zeros up to 4 KiB. Offsets count from the start of the expert,
 * so that an expert can be copied unchanged (to a worker's spool). */
#define OD_EXPERT_MAGIC "ODEXPERT"
struct od_disk_expert {
	char magic[8];
	uint64_t xxh3; /* checksum of the bytes behind it, up to header_bytes */
	uint32_t schema, m, expert, n_shards;
	uint64_t header_bytes; /* this, the table, the zeros */
	uint64_t bytes; /* the whole expert */
	uint64_t sm_offset, e_offset;
	uint8_t dtype[OD_N_EXPERT_MATS], scale[OD_N_EXPERT_MATS]; /* enum od_dtype */
	uint8_t n_mats, n_biases; /* gate, up and down; as many biases, or none */
	uint8_t sha256[OD_N_EXPERT_MATS][OD_SHA256_BYTES]; /* mat_sums.h */
	struct {
		uint32_t rows, cols;
	} block[OD_N_EXPERT_MATS]; /* shape of a block with one scale */
};

/* Follows if the expert has biases. */
struct od_disk_biases {
	uint8_t dtype[OD_N_EXPERT_MATS], zero[29];
	uint8_t sha256[OD_N_EXPERT_MATS][OD_SHA256_BYTES];
};

struct od_disk_shard {
	uint32_t row_begin, n_rows;
	uint8_t mat, sm_codec, e_codec, zero;
	uint32_t sm_stored_bytes;
	uint64_t sm_offset, e_offset;
	uint32_t e_stored_bytes, sm_raw_bytes, e_raw_bytes, more_zero;
	uint64_t sm_xxh3, e_xxh3;
};

_Static_assert(sizeof(struct od_disk_expert) == 192 && sizeof(struct od_disk_biases) == 128 &&
		       sizeof(struct od_disk_shard) == 64,
	       "PACK-FORMAT.md");

/* The checked contents of a header. Chunk offsets count from the start of experts.bin. */
struct od_expert_entry {
	struct od_pack_expert x; /* x.shard is malloc'd */
	uint64_t sm_offset, e_offset; /* the regions' starts in experts.bin */
	const uint64_t *e_at; /* [x.n_shards]: E-chunks, from e_offset; in x.shard's block */
	struct od_mat_type type[OD_N_EXPERT_TENSORS];
	bool as_bytes; /* weights of every type are stored whole, in E-chunks (GGUF) */
	uint8_t sha256[OD_N_EXPERT_TENSORS][OD_SHA256_BYTES];
};

/* True: a bias of an expert may have this type. */
bool od_bias_type_ok(const struct od_mat_type *t);
/* True: a dense tensor may have this type. Matrices may have any type, except embeddings, of which single rows are
 * read: no type with scales beside it, and not FP8. */
bool od_dense_type_ok(enum od_role role, const struct od_mat_type *t, uint64_t n_in);

/* The type that decides how a tensor's bytes are split and coded: biases are stored as bytes, so that they can be used
 * as they are stored. */
static inline enum od_dtype od_tensor_coding(int tensor, const struct od_mat_type *t)
{
	return od_expert_is_bias(tensor) ? OD_INT8 : t->dtype;
}

/* Rows per shard of a matrix (the last shard may have fewer); shards of a matrix; shards of an expert. */
uint32_t od_shard_rows(uint64_t n_out, uint64_t n_in);
uint32_t od_mat_shards(const struct od_config *cfg, enum od_expert_mat mat);
uint32_t od_expert_shards(const struct od_config *cfg);
uint64_t od_expert_header_bytes(const struct od_config *cfg);

/* Upper bounds for any shard of any type: weights; bytes of its E-chunk before coding; bytes in memory, with scales and
 * padding. */
uint64_t od_shard_max_weights(const struct od_config *cfg);
uint64_t od_shard_max_e_bytes(const struct od_config *cfg);
uint64_t od_shard_max_memory(const struct od_config *cfg);

/* SM is stored uncompressed, so the offset of the E region is known before coding. */
uint64_t od_expert_e_offset(const struct od_config *cfg, const struct od_mat_type type[OD_N_EXPERT_TENSORS]);
uint64_t od_region_end(uint64_t end_of_data); /* 64 zero bytes, then up to 4 KiB */

/* An expert whose weights are all stored whole: shards, types and as_bytes of an entry, rows of matrix i from begin[i]
 * on. On success the caller frees out->x.shard. */
OD_MUST_CHECK int od_expert_whole(struct od_expert_entry *out, const struct od_config *cfg,
				  const struct od_mat_type *type, const uint64_t *begin, struct od_err *err);
/* An expert of a worker's share of a GGUF file begins with a header: the XXH3-64 of the numbers behind it, which are
 * those of the expert's chunks (0: it has not come yet); then zeros up to a page. */
#define OD_SHARE_HEADER_WORDS(n_shards) (1 + (size_t)(n_shards))
uint64_t od_share_header_bytes(const struct od_config *cfg);
/* Whole pages. OD_ERR_RANGE: a chunk, or the expert, is too large. */
OD_MUST_CHECK int od_share_expert_bytes(const struct od_config *cfg, const struct od_mat_type *type, uint64_t *bytes,
					struct od_err *err);
/* od_expert_whole for an expert of such a share that begins at `offset`. */
OD_MUST_CHECK int od_share_expert(struct od_expert_entry *out, const struct od_config *cfg,
				  const struct od_mat_type *type, uint64_t offset, struct od_err *err);

/* buf [od_expert_header_bytes]: read from `offset`, where expert (m, expert) starts in a file of file_bytes. Checks
 * everything against the configuration. On success the caller frees out->x.shard. */
OD_MUST_CHECK int od_expert_header_parse(struct od_expert_entry *out, const struct od_config *cfg, uint32_t m,
					 uint32_t expert, const uint8_t *buf, uint64_t offset, uint64_t file_bytes,
					 const char *where, struct od_err *err);
/* The reverse; buf is od_expert_header_bytes long. */
void od_expert_header_write(const struct od_expert_entry *in, const struct od_config *cfg, uint32_t m, uint32_t expert,
			    uint8_t *buf);

#endif
