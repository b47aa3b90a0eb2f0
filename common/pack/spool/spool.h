/* spool.h - writes a spool: an incomplete pack folder that a worker fills from main's store, or od-pack --share from a
 * pack. Specified in docs/PACK-FORMAT.md.
 *
 * Order of calls: od_spool_open; SHA256SUMS and the small files; od_spool_open_model; every expert's header;
 * od_spool_open_pack; then experts, chunk by chunk, in any order. A share of a GGUF file has no headers: the
 * checksum of each chunk comes with it. The bytes are untrusted: they are checked against SHA256SUMS, model.json or
 * the expert's header before they are written, and only a spool's own files are written. After a crash the next run
 * continues.
 * Thread: one. Owner: the caller; a lock on the folder excludes other processes. */
#ifndef OD_PACK_SPOOL_H
#define OD_PACK_SPOOL_H

#include "common/pack/pack.h"
#include "common/pack/share.h"
#include "common/pack/sums.h"

#define OD_SPOOL_SUMS_MAX_BYTES 4096u
#define OD_SPOOL_SMALL_MAX_BYTES (64u << 20) /* longest small file */
#define OD_SPOOL_PIECE_MAX_BYTES (4u << 20) /* longest header or chunk; far above those of known models */

struct od_spool;

/* Creates the folder if it does not exist. Refuses a folder with other files, a complete pack, and a spool in use by
 * another process (OD_ERR_BUSY). */
OD_MUST_CHECK int od_spool_open(struct od_spool **out, const char *dir, struct od_err *err);
void od_spool_close(struct od_spool *s); /* NULL ok; the pack of od_spool_open_pack stays open */

/* ---- small files ---- */

/* True: SHA256SUMS and every file that it names exist and are valid. */
bool od_spool_small_whole(const struct od_spool *s);
/* SHA-256 of SHA256SUMS, which identifies a pack byte for byte. False: the file does not exist yet. */
OD_MUST_CHECK bool od_spool_identity(const struct od_spool *s, uint8_t sha256[OD_SHA256_BYTES]);
/* OD_ERR_MISMATCH: the spool has files of another pack. */
OD_MUST_CHECK int od_spool_put_sums(struct od_spool *s, const char *text, size_t len, struct od_err *err);
/* True: SHA256SUMS names file i of od_small_files, and the spool does not have it yet. */
bool od_spool_lacks_small(const struct od_spool *s, size_t i);
OD_MUST_CHECK int od_spool_put_small(struct od_spool *s, size_t i, const void *bytes, size_t len, struct od_err *err);

/* ---- headers ---- */

/* Reads config.json and model.json and creates experts.bin. */
OD_MUST_CHECK int od_spool_open_model(struct od_spool *s, struct od_err *err);
size_t od_spool_n_experts(const struct od_spool *s); /* all layers together */
size_t od_spool_header_bytes(const struct od_spool *s); /* each expert's */
uint64_t od_spool_header_offset(const struct od_spool *s, size_t i); /* in experts.bin */
bool od_spool_lacks_header(struct od_spool *s, size_t i);
OD_MUST_CHECK int od_spool_put_header(struct od_spool *s, size_t i, const void *bytes, struct od_err *err);

/* ---- experts ---- */

/* Reads the state file; if it is missing or damaged, starts a new one in which no expert is complete. */
OD_MUST_CHECK int od_spool_open_pack(struct od_spool *s, struct od_pack **pack, struct od_err *err);
struct od_share od_spool_share(const struct od_spool *s); /* as last saved */

/* Chunk c of an expert, in the file's order: the SM-chunks of its shards, then their E-chunks. */
static inline uint32_t od_spool_n_chunks(const struct od_pack_expert *x)
{
	return 2 * x->n_shards;
}

static inline const struct od_chunk *od_spool_chunk(const struct od_pack_expert *x, uint32_t c)
{
	return c < x->n_shards ? &x->shard[c].sm : &x->shard[c - x->n_shards].e;
}

/* Bytes on disk of all files except experts.bin, including the temporary file of a state write. */
uint64_t od_spool_small_bytes(const struct od_spool *s);
/* Bytes on disk of a complete expert. */
uint64_t od_spool_expert_bytes(const struct od_spool *s, uint32_t m, uint32_t expert);
/* False: only the expert's header was ever written. */
bool od_spool_has_data(const struct od_spool *s, uint32_t m, uint32_t expert);
/* True: the chunk is on disk and valid. Reads it to check. */
bool od_spool_has_chunk(struct od_spool *s, uint32_t m, uint32_t expert, uint32_t c);
/* Writes the chunk, which has bytes (SM-chunks may have none). bytes: its stored_bytes. xxh3: their checksum as the
 * source has it (od_spool_source_read); a pack's chunk has it in the expert's header. OD_ERR_CORRUPT: the checksum
 * does not match. */
OD_MUST_CHECK int od_spool_put_chunk(struct od_spool *s, uint32_t m, uint32_t expert, uint32_t c, const void *bytes,
				     uint64_t xxh3, struct od_err *err);
/* Marks the expert complete or absent, for od_pack_has_expert at once, on disk with the next od_spool_save. */
void od_spool_mark(struct od_spool *s, uint32_t m, uint32_t expert, bool whole);
/* Marks the expert absent and frees its disk space. */
void od_spool_drop(struct od_spool *s, uint32_t m, uint32_t expert);
OD_MUST_CHECK int od_spool_save(struct od_spool *s, const struct od_share *share, struct od_err *err);

#endif
