/* spool.h - writing a spool: a pack folder with holes that a worker fills from main's store, or od-pack --share from a
 * pack beside it. docs/PACK-FORMAT.md specifies it.
 *
 * In this order: od_spool_open; SHA256SUMS and the small files; od_spool_open_model; every expert's header;
 * od_spool_open_pack; then experts, chunk by chunk, in any order. Bytes may come from anywhere: nothing is written
 * before it is found to be what SHA256SUMS, model.json or an expert's header says it is, and only under the names of a
 * spool. It can be killed at any moment and goes on from there.
 * Thread: one. Owner: the caller; a lock on the folder keeps others away. */
#ifndef OD_PACK_SPOOL_H
#define OD_PACK_SPOOL_H

#include "common/pack/pack.h"
#include "common/pack/share.h"
#include "common/pack/sums.h"

#define OD_SPOOL_SUMS_MAX_BYTES 4096u
#define OD_SPOOL_SMALL_MAX_BYTES (64u << 20) /* of a small file */
#define OD_SPOOL_PIECE_MAX_BYTES (4u << 20)  /* of a header or chunk; no shape that is known comes near it */

struct od_spool;

/* The folder is made if need be. Refuses one that holds other things, a complete pack, or one that another process
 * fills (OD_ERR_BUSY). */
OD_MUST_CHECK int od_spool_open(struct od_spool **out, const char *dir, struct od_err *err);
void od_spool_close(struct od_spool *s); /* NULL ok; the pack of od_spool_open_pack stays open */

/* ---- small files ---- */

/* SHA256SUMS and every file that it names are there and good. */
bool od_spool_small_whole(const struct od_spool *s);
/* SHA-256 of SHA256SUMS: two packs with the same are the same, byte for byte. False: there is none yet. */
OD_MUST_CHECK bool od_spool_identity(const struct od_spool *s, uint8_t sha256[OD_SHA256_BYTES]);
/* OD_ERR_MISMATCH: the spool was begun from another pack. */
OD_MUST_CHECK int od_spool_put_sums(struct od_spool *s, const char *text, size_t len, struct od_err *err);
/* Is file number i of od_small_files named there, and not here yet? */
bool od_spool_lacks_small(const struct od_spool *s, size_t i);
OD_MUST_CHECK int od_spool_put_small(struct od_spool *s, size_t i, const void *bytes, size_t len, struct od_err *err);

/* ---- headers ---- */

/* Reads config.json and model.json, makes experts.bin. */
OD_MUST_CHECK int od_spool_open_model(struct od_spool *s, struct od_err *err);
size_t od_spool_n_experts(const struct od_spool *s); /* of all layers */
size_t od_spool_header_bytes(const struct od_spool *s); /* of each */
uint64_t od_spool_header_offset(const struct od_spool *s, size_t i); /* in experts.bin */
bool od_spool_lacks_header(struct od_spool *s, size_t i);
OD_MUST_CHECK int od_spool_put_header(struct od_spool *s, size_t i, const void *bytes, struct od_err *err);

/* ---- experts ---- */

/* The state is read, or begun anew when it is not there or damaged (then nothing counts as whole). */
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

/* Bytes on disk of all files but experts.bin, with what a write of the state takes meanwhile. */
uint64_t od_spool_small_bytes(const struct od_spool *s);
/* Bytes on disk of a whole expert. */
uint64_t od_spool_expert_bytes(const struct od_spool *s, uint32_t m, uint32_t expert);
/* False: nothing of the expert but its header was ever written. */
bool od_spool_has_data(const struct od_spool *s, uint32_t m, uint32_t expert);
/* The chunk is on disk and good; it is read for that. */
bool od_spool_has_chunk(struct od_spool *s, uint32_t m, uint32_t expert, uint32_t c);
/* bytes: as many as the chunk has stored. OD_ERR_CORRUPT: they are not the chunk's. */
OD_MUST_CHECK int od_spool_put_chunk(struct od_spool *s, uint32_t m, uint32_t expert, uint32_t c, const void *bytes,
				     struct od_err *err);
/* Whole: od_pack_has_expert says so from now on, and after the next od_spool_save for good. */
void od_spool_mark(struct od_spool *s, uint32_t m, uint32_t expert, bool whole);
/* Marks it absent and gives its disk space back. */
void od_spool_drop(struct od_spool *s, uint32_t m, uint32_t expert);
OD_MUST_CHECK int od_spool_save(struct od_spool *s, const struct od_share *share, struct od_err *err);

#endif
