/* codec.h - the lossless bit-field codec of expert weights (ZipMoE section 2; docs/PACK-FORMAT.md).
 *
 * A weight is rotated left by one bit, so that its sign becomes bit 0. Its top byte (for BF16 and F32: the
 * exponent, about 2.6 bits of entropy) is the E plane; what remains (1 byte, or 3 for F32: mantissa and sign,
 * incompressible) is the SM plane. Every bit pattern survives.
 * Thread: split and merge are pure; an od_coder or od_decoder belongs to one thread. */
#ifndef OD_PACK_CODEC_H
#define OD_PACK_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/dtype.h"

/* Pinned: the numbers stand in packs. */
enum od_codec { OD_CODEC_RAW = 0, OD_CODEC_ZSTD = 1 };

/* SM bytes of one weight: 1, 3 for F32. */
size_t od_codec_sm_bytes(enum od_dtype t);

/* n weights at src to sm [od_codec_sm_bytes][n] (plane after plane, low bits first) and e [n]; and back. */
void od_codec_split(enum od_dtype t, const void *src, size_t n, uint8_t *sm, uint8_t *e);
void od_codec_merge(enum od_dtype t, const uint8_t *sm, const uint8_t *e, size_t n, void *dst);

struct od_coder;
OD_MUST_CHECK int od_coder_new(struct od_coder **out, struct od_err *err);
void od_coder_free(struct od_coder *c); /* NULL ok */
/* Room that od_coder_encode needs for n bytes. */
size_t od_coder_bound(size_t n);
/* n bytes of an E plane to out; *codec says how: zstd, or raw when that is not smaller. */
OD_MUST_CHECK int od_coder_encode(struct od_coder *c, const uint8_t *e, size_t n, uint8_t *out, size_t *stored_bytes,
				  enum od_codec *codec, struct od_err *err);

struct od_decoder;
OD_MUST_CHECK int od_decoder_new(struct od_decoder **out, struct od_err *err);
void od_decoder_free(struct od_decoder *d); /* NULL ok */
size_t od_decoder_bytes(void);		    /* memory of one, about */
/* Exactly raw_bytes must come out of the zstd frame, else OD_ERR_CORRUPT with what was found. */
OD_MUST_CHECK int od_decoder_inflate(struct od_decoder *d, const uint8_t *stored, size_t stored_bytes, uint8_t *out,
				     size_t raw_bytes, struct od_err *err);

#endif
