/* codec.h - the lossless bit-field codecs of expert weights (ZipMoE section 2; docs/PACK-FORMAT.md).
 *
 * A weight is rotated left by one bit, so that its sign becomes bit 0. Its top byte (for BF16 and F32 the exponent,
 * about 2.6 bits of entropy) is the E plane. The other bytes (1, or 3 for F32: mantissa and sign, incompressible) are
 * the SM plane. One-byte types have only an E plane. Every bit pattern is preserved. SM is stored uncompressed, E in
 * chunks compressed by one of these codecs.
 * Thread: split, merge and check are pure; an od_coder or od_decoder belongs to one thread. */
#ifndef OD_PACK_CODEC_H
#define OD_PACK_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/backend.h"

/* Pinned: the numbers are stored in packs. A chunk that would not shrink is stored raw. */
enum od_codec { OD_CODEC_RAW = 0, OD_CODEC_ZSTD = 1, OD_CODEC_LZ4 = 2, OD_CODEC_PLANES = 3 };
#define OD_N_CODECS 4
extern const char *const od_codec_names[]; /* "raw", "zstd", "lz4", "planes", NULL */

/* SM bytes of one weight: 1 for BF16 and F16, 3 for F32, 0 for types of a byte or less. */
size_t od_codec_sm_bytes(enum od_dtype t);

/* split: n weights at src to sm [od_codec_sm_bytes][n] (plane after plane, low bits first) and e [n]. merge: back to
 * dst; e is followed by OD_PAD_BYTES readable bytes; for 16-bit types sm may be the upper half of dst. */
void od_codec_split(enum od_dtype t, const void *src, size_t n, uint8_t *sm, uint8_t *e);
void od_codec_merge(const struct od_backend *be, enum od_dtype t, const uint8_t *sm, const uint8_t *e, size_t n,
		    void *dst);

/* The codec of a type's exponents in a pack: planes suit bytes with few values. The top bytes of F16 (three bits of
 * mantissa) and 8-bit weights have many, so a pack of planes stores them as zstd. */
enum od_codec od_codec_for(enum od_codec pack, enum od_dtype t);

/* True: sm of this type may be the upper half of dst. */
static inline bool od_codec_merges_in_place(enum od_dtype t)
{
	return t != OD_F32;
}

struct od_coder;
OD_MUST_CHECK int od_coder_new(struct od_coder **out, enum od_codec codec, struct od_err *err);
void od_coder_free(struct od_coder *c); /* NULL ok */
/* An E plane before it is coded. Borrowed. */
struct od_plane {
	enum od_dtype dtype; /* type of the weights */
	const uint8_t *e; /* [n] */
	size_t n, row; /* bytes in all, bytes per row of weights */
	size_t n_codes; /* bytes of weights; the rest are scales */
};

/* Output bytes that od_coder_encode may need for n bytes in rows of row. */
size_t od_coder_bound(const struct od_coder *c, size_t n, size_t row);
/* Encodes p to out; *codec is od_codec_for's codec, or raw if that is no shorter: for blocks (OD_USE_BLOCKS) at
 * least by 3 percent. */
OD_MUST_CHECK int od_coder_encode(struct od_coder *c, const struct od_plane *p, uint8_t *out, size_t *stored_bytes,
				  enum od_codec *codec, struct od_err *err);

/* An E-chunk as stored. Borrowed. Codecs treat scales after the codes as more bytes. */
struct od_coded {
	enum od_codec codec;
	const uint8_t *at; /* [bytes], followed by OD_PAD_BYTES readable bytes */
	size_t bytes;
	size_t n, row; /* weights in all, weights per row */
};

/* Checks all that needs no decoding: lengths, and the complete structure of planes. Call it once per chunk after
 * reading it, before decoding it or computing on it. The decoders below report the remaining faults. */
OD_MUST_CHECK int od_coded_check(const struct od_coded *c, struct od_err *err);

struct od_decoder;
OD_MUST_CHECK int od_decoder_new(struct od_decoder **out, const struct od_backend *be, struct od_err *err);
void od_decoder_free(struct od_decoder *d); /* NULL ok */
size_t od_decoder_bytes(void); /* approximate memory of one */

/* Decodes the exponents of a checked chunk to e, which has room for n + OD_PAD_BYTES bytes. After OD_ERR_CORRUPT the
 * contents of e are undefined. */
OD_MUST_CHECK int od_decoder_exponents(struct od_decoder *d, const struct od_coded *c, uint8_t *e, struct od_err *err);
/* od_decoder_exponents without a copy of raw chunks: *e points into the chunk itself (raw) or into room, which is as
 * large as e above. */
OD_MUST_CHECK int od_decoder_look(struct od_decoder *d, const struct od_coded *c, uint8_t *room, const uint8_t **e,
				  struct od_err *err);
/* Decodes and merges with sm: weights of type t to dst, as od_codec_merge. Planes of 16-bit types are merged directly;
 * other exponents go through room, which is as large as e above. */
OD_MUST_CHECK int od_decoder_weights(struct od_decoder *d, const struct od_coded *c, enum od_dtype t, const uint8_t *sm,
				     uint8_t *room, void *dst, struct od_err *err);

#endif
