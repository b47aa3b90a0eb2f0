/* codec_data.h - weights and their coded forms, laid out so that every read misses the cache.
 *
 * A store has one piece of bytes per chunk of weights, and enough copies of all pieces to exceed the cache. A pass
 * through all pieces of all copies reads memory that has left the cache, and contents that no branch predictor has
 * learnt.
 * Thread: filled by one; then plain data. Owner: the caller. */
#ifndef OD_BENCH_CODEC_DATA_H
#define OD_BENCH_CODEC_DATA_H

#include "common/pack/codec.h"
#include "common/pack/pack.h"

struct codec_piece {
	size_t at, bytes;
	enum od_codec codec; /* a coded piece's */
};

struct codec_store {
	uint8_t *base;
	struct codec_piece *piece; /* [n] */
	size_t n, span, copies; /* span: bytes of one copy */
	size_t room, most; /* while it is filled */
};

void codec_store_free(struct codec_store *s);
static inline const uint8_t *codec_store_at(const struct codec_store *s, size_t piece, size_t copy)
{
	return s->base + copy % s->copies * s->span + s->piece[piece].at;
}

struct codec_chunk {
	size_t n, row; /* weights in the chunk, weights per row */
};

/* Weights of one type, in the chunks of a pack. All zero is empty. */
struct codec_data {
	enum od_dtype dtype;
	struct codec_chunk *chunk; /* [n] */
	size_t n, most;
	uint64_t n_weights;
	size_t max_n; /* weights of the largest chunk */
	double entropy; /* bits per weight: SM uncoded, plus the entropy of each chunk's E bytes */
	struct codec_store weights, sm, e; /* e: one copy */
};

/* least_bytes: minimum size of a store that is not empty. */
OD_MUST_CHECK int codec_data_gaussian(struct codec_data *d, enum od_dtype dtype, uint64_t n_weights, uint64_t seed,
				      size_t least_bytes, struct od_err *err);
/* The first experts of that type in a pack, up to n_weights; d->n 0: there are none. */
OD_MUST_CHECK int codec_data_pack(struct codec_data *d, const struct od_pack *p, enum od_dtype dtype,
				  uint64_t n_weights, size_t least_bytes, struct od_err *err);
void codec_data_free(struct codec_data *d);

/* Codec numbers after od_codec's: plain zstd, level 3 with its default settings. */
#define CODEC_ZSTD_3 OD_N_CODECS
#define CODEC_N (OD_N_CODECS + 1)
extern const char *const codec_bench_names[]; /* the codecs', "zstd-3", NULL */

/* The E bytes of d's chunks coded. codec: of enum od_codec, or CODEC_ZSTD_3. */
OD_MUST_CHECK int codec_data_code(const struct codec_data *d, int codec, size_t least_bytes, struct codec_store *out,
				  struct od_err *err);

#endif
