/* codec.h - the lossless bit-field codecs of expert weights (ZipMoE section 2; docs/PACK-FORMAT.md).
 *
 * A weight is rotated left by one bit, so that its sign becomes bit 0. Its top byte (for BF16 and F32: the
 * exponent, about 2.6 bits of entropy) is the E plane; what remains (1 byte, or 3 for F32: mantissa and sign,
 * incompressible) is the SM plane. Of types of one byte that byte is the E plane, and there is no SM. Every bit pattern
 * survives. SM is stored as it is; E in chunks that one of these codecs has made smaller.
 * Thread: split, merge and check are pure; an od_coder or od_decoder belongs to one thread. */
#ifndef OD_PACK_CODEC_H
#define OD_PACK_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/backend.h"

/* Pinned: the numbers stand in packs. Any chunk may be raw: one that would not get smaller is. */
enum od_codec { OD_CODEC_RAW = 0, OD_CODEC_ZSTD = 1, OD_CODEC_LZ4 = 2, OD_CODEC_PLANES = 3 };
#define OD_N_CODECS 4
extern const char *const od_codec_names[]; /* "raw", "zstd", "lz4", "planes", NULL */

/* SM bytes of one weight: 1 for BF16 and F16, 3 for F32, 0 for types of a byte or less. */
size_t od_codec_sm_bytes(enum od_dtype t);

/* n weights at src to sm [od_codec_sm_bytes][n] (plane after plane, low bits first) and e [n]; and back, when e is followed
 * by OD_PAD_BYTES readable bytes. Of 16-bit types sm may lie in the upper half of dst. */
void od_codec_split(enum od_dtype t, const void *src, size_t n, uint8_t *sm, uint8_t *e);
void od_codec_merge(const struct od_backend *be, enum od_dtype t, const uint8_t *sm, const uint8_t *e, size_t n,
		    void *dst);

/* What a pack of a codec has for a type's exponents: planes are for bytes of few values, which the top bytes of F16 (three
 * bits of mantissa) and weights of 8 bits are not; these are zstd there. */
enum od_codec od_codec_for(enum od_codec pack, enum od_dtype t);

/* May sm lie there, of weights of this type? */
static inline bool od_codec_merges_in_place(enum od_dtype t)
{
	return t != OD_F32;
}

struct od_coder;
OD_MUST_CHECK int od_coder_new(struct od_coder **out, enum od_codec codec, struct od_err *err);
void od_coder_free(struct od_coder *c); /* NULL ok */
/* An E plane before it is coded. Borrowed. */
struct od_plane {
	enum od_dtype dtype; /* of the weights */
	const uint8_t *e;    /* [n] */
	size_t n, row;	     /* bytes, and of a row of weights */
	size_t n_codes;	     /* the weights' bytes; what follows are scales, of other values */
};

/* Room that od_coder_encode needs for n bytes in rows of row. */
size_t od_coder_bound(const struct od_coder *c, size_t n, size_t row);
/* p to out; *codec says how: od_codec_for, or raw. */
OD_MUST_CHECK int od_coder_encode(struct od_coder *c, const struct od_plane *p, uint8_t *out, size_t *stored_bytes,
				  enum od_codec *codec, struct od_err *err);

/* An E-chunk as it is stored. Borrowed. To a codec the scales behind codes are bytes as these are. */
struct od_coded {
	enum od_codec codec;
	const uint8_t *at; /* [bytes], followed by OD_PAD_BYTES readable bytes */
	size_t bytes;
	size_t n, row; /* weights, and of a row */
};

/* All that can be checked without decoding: lengths, and of planes everything. Once for each chunk that was read, before
 * anything decodes it or computes on it; what the decoders below find besides is an error too. */
OD_MUST_CHECK int od_coded_check(const struct od_coded *c, struct od_err *err);

struct od_decoder;
OD_MUST_CHECK int od_decoder_new(struct od_decoder **out, const struct od_backend *be, struct od_err *err);
void od_decoder_free(struct od_decoder *d); /* NULL ok */
size_t od_decoder_bytes(void);		    /* memory of one, about */

/* The exponents of a checked chunk to e, which has room for n and OD_PAD_BYTES more. OD_ERR_CORRUPT says what is wrong;
 * what was written is then garbage. */
OD_MUST_CHECK int od_decoder_exponents(struct od_decoder *d, const struct od_coded *c, uint8_t *e, struct od_err *err);
/* The same, to where *e says: in the chunk itself or in room, which is as e above. */
OD_MUST_CHECK int od_decoder_look(struct od_decoder *d, const struct od_coded *c, uint8_t *room, const uint8_t **e,
				  struct od_err *err);
/* The weights of type t to dst, put together with sm as od_codec_merge does. Planes of 16-bit types without a detour;
 * otherwise exponents go through room, which is as e above. */
OD_MUST_CHECK int od_decoder_weights(struct od_decoder *d, const struct od_coded *c, enum od_dtype t, const uint8_t *sm,
				     uint8_t *room, void *dst, struct od_err *err);

#endif
