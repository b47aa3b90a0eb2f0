/* pack.h - opens, checks and reads a pack, the folder that od-pack makes from a checkpoint. Specified in
 * docs/PACK-FORMAT.md.
 *
 * Opening checks SHA256SUMS over the small files, the schema version, and every offset, count and length against the
 * sizes of the big files, with overflow-checked arithmetic. The bytes of the big files are checked when they are read
 * (a checksum per tensor and per chunk).
 * Thread: any (reads are pread); immutable after opening, except the set of experts of a spool. Owner: od_pack_open's
 * caller. */
#ifndef OD_PACK_PACK_H
#define OD_PACK_PACK_H

#include "common/model/weights.h"
#include "common/pack/codec.h"

#define OD_PACK_SCHEMA 3
#define OD_PACK_SCHEMA_GGUF \
	4 /* model.json of a pack that was made from a GGUF file: it may have such types and forms */
#define OD_FINGERPRINT_CHARS 64 /* hex of SHA-256 */

struct od_pack;

/* dir: a pack's folder, or a GGUF file, any file of a split one; NULL: $OD_PACK, else /var/lib/od-moe/pack. */
OD_MUST_CHECK int od_pack_open(struct od_pack **out, const char *dir, struct od_err *err);
/* Opens a pack or a spool (spool.h), a pack without dense.bin and without some experts. Existing files are checked as
 * strictly. */
OD_MUST_CHECK int od_pack_open_some(struct od_pack **out, const char *dir, struct od_err *err);
void od_pack_close(struct od_pack *p); /* NULL ok */

const char *od_pack_dir(const struct od_pack *p); /* as it was named: a pack's folder, or a GGUF file */
/* The folder of its small files and shadows: the pack's own, or of a GGUF file one in a cache (gguf_folder.h). */
const char *od_pack_folder(const struct od_pack *p);
bool od_pack_is_gguf(const struct od_pack *p); /* a GGUF file that is used where it lies */
bool od_pack_as_bytes(const struct od_pack *p); /* no expert has SM-chunks: GGUF files, MXFP4, INT8 and the like */
enum od_codec od_pack_codec(const struct od_pack *p); /* the codec chosen for its E-chunks; some may be raw */
const struct od_config *od_pack_config(const struct od_pack *p);
/* Before anything stands on its configuration (od_config_set_prior). */
OD_MUST_CHECK int od_pack_set_prior(struct od_pack *p, const struct od_cache_prior *prior, struct od_err *err);
/* Limits all that is loaded from now on to layers [begin, end) (od_config_take_layers). */
OD_MUST_CHECK int od_pack_take_layers(struct od_pack *p, uint32_t begin, uint32_t end, struct od_err *err);
const char *od_pack_fingerprint(const struct od_pack *p); /* OD_FINGERPRINT_CHARS of hex, NUL */
void od_pack_fingerprint_bytes(const struct od_pack *p, uint8_t out[OD_FINGERPRINT_CHARS / 2]);
const char *od_pack_tokenizer_path(const struct od_pack *p); /* NULL when the model has none */
/* generation_config.json's object, NULL when there is none; borrowed. */
const json_t *od_pack_generation_config(const struct od_pack *p);

/* A shard: a run of whole weight rows of one matrix of an expert, or of elements of a bias. Offsets count from the
 * start of experts.bin. */
struct od_chunk {
	uint64_t offset;
	uint32_t stored_bytes, raw_bytes;
	uint8_t codec; /* enum od_codec */
	uint64_t xxh3; /* XXH3-64 of the stored bytes */
};

struct od_shard {
	uint8_t mat; /* enum od_expert_mat */
	uint32_t row_begin, n_rows;
	struct od_chunk e, sm;
};

struct od_pack_expert {
	uint64_t offset, bytes; /* the whole expert in experts.bin */
	uint32_t n_shards;
	const struct od_shard *shard;
};

const struct od_pack_expert *od_pack_expert(const struct od_pack *p, uint32_t m, uint32_t expert);

/* A spool gains and loses experts while it is open; a complete pack has all of them. */
bool od_pack_is_spool(const struct od_pack *p);
bool od_pack_has_expert(const struct od_pack *p, uint32_t m, uint32_t expert);

/* Switches reading past the page cache (O_DIRECT) on or off; only reads into buffers of SM bytes and coded exponents do
 * that. Returns the resulting mode: not every file system supports it. No thread may read meanwhile. */
bool od_pack_read_direct(struct od_pack *p, bool direct);
/* A chunk of an expert as stored, unchecked, from its file. */
OD_MUST_CHECK int od_pack_read_stored(const struct od_pack *p, const struct od_chunk *c, void *to, struct od_err *err);
/* Asks the kernel to drop shards [first, first + n) from the page cache, to measure reading them. */
void od_pack_drop_cached(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n);

/* Bytes of dense.bin and experts.bin, or of a GGUF file's parts. */
uint64_t od_pack_bytes(const struct od_pack *p);
/* Numbers in all tensors, without their scales. */
uint64_t od_pack_weights(const struct od_pack *p);
enum od_dtype od_pack_expert_dtype(const struct od_pack *p); /* the first expert's gate */

/* Bytes of the largest expert: all its chunks as stored; its weights as published. */
uint64_t od_pack_expert_stored_bytes(const struct od_pack *p);
uint64_t od_pack_expert_raw_bytes(const struct od_pack *p);

#endif
