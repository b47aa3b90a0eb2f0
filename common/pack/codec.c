#define ZSTD_STATIC_LINKING_ONLY /* for the name of the literal compression switch, nothing else */
#include "common/pack/codec.h"

#include <stdlib.h>
#include <zstd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs are little-endian and so is this code");

struct od_coder {
	ZSTD_CCtx *ctx;
};

struct od_decoder {
	ZSTD_DCtx *ctx;
};

size_t od_codec_sm_bytes(enum od_dtype t)
{
	return od_dtype_bytes(t) - 1;
}

/* The loops below are plain so that the compiler makes vector code of them (rules.mk: -O3). */

static void split16(const uint16_t *restrict w, size_t n, uint8_t *restrict sm, uint8_t *restrict e)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t r = (uint16_t)(w[i] << 1 | w[i] >> 15);

		sm[i] = (uint8_t)r;
		e[i] = (uint8_t)(r >> 8);
	}
}

static void merge16(const uint8_t *restrict sm, const uint8_t *restrict e, size_t n, uint16_t *restrict w)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t r = (uint16_t)(e[i] << 8 | sm[i]);

		w[i] = (uint16_t)(r >> 1 | r << 15);
	}
}

static void split32(const uint32_t *restrict w, size_t n, uint8_t *restrict sm, uint8_t *restrict e)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t r = w[i] << 1 | w[i] >> 31;

		sm[i] = (uint8_t)r;
		sm[n + i] = (uint8_t)(r >> 8);
		sm[2 * n + i] = (uint8_t)(r >> 16);
		e[i] = (uint8_t)(r >> 24);
	}
}

static void merge32(const uint8_t *restrict sm, const uint8_t *restrict e, size_t n, uint32_t *restrict w)
{
	const uint8_t *mid = sm + n, *high = sm + 2 * n;

	for (size_t i = 0; i < n; i++) {
		uint32_t r = sm[i] | (uint32_t)mid[i] << 8 | (uint32_t)high[i] << 16 | (uint32_t)e[i] << 24;

		w[i] = r >> 1 | r << 31;
	}
}

void od_codec_split(enum od_dtype t, const void *src, size_t n, uint8_t *sm, uint8_t *e)
{
	if (t == OD_F32)
		split32(src, n, sm, e);
	else
		split16(src, n, sm, e);
}

void od_codec_merge(enum od_dtype t, const uint8_t *sm, const uint8_t *e, size_t n, void *dst)
{
	if (t == OD_F32)
		merge32(sm, e, n, dst);
	else
		merge16(sm, e, n, dst);
}

/* Exponents have no repeats worth finding: a match search finds short accidental ones that cost both size and
 * decoding speed. So: literals only, with Huffman on. What is left is an ordinary zstd frame. */
static int set_literals_only(ZSTD_CCtx *ctx, struct od_err *err)
{
	const struct {
		ZSTD_cParameter param;
		int value;
	} set[] = {
		{ ZSTD_c_compressionLevel, 1 },
		{ ZSTD_c_strategy, ZSTD_fast },
		{ ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX },
		{ ZSTD_c_literalCompressionMode, ZSTD_ps_enable },
		{ ZSTD_c_windowLog, 23 }, /* at least the largest shard; zstd lowers it to what the input needs */
		{ ZSTD_c_contentSizeFlag, 1 },
		{ ZSTD_c_checksumFlag, 0 }, /* chunks have their own */
	};

	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) {
		size_t rc = ZSTD_CCtx_setParameter(ctx, set[i].param, set[i].value);

		if (ZSTD_isError(rc))
			return od_fail(err, OD_ERR_INTERNAL, "zstd refuses parameter %d: %s", (int)set[i].param,
				       ZSTD_getErrorName(rc));
	}
	return OD_OK;
}

int od_coder_new(struct od_coder **out, struct od_err *err)
{
	struct od_coder *c = calloc(1, sizeof(*c));
	int rc;

	*out = NULL;
	if (c != NULL)
		c->ctx = ZSTD_createCCtx();
	if (c == NULL || c->ctx == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for a zstd encoder");
	else
		rc = set_literals_only(c->ctx, err);
	if (rc != OD_OK) {
		od_coder_free(c);
		return rc;
	}
	*out = c;
	return OD_OK;
}

void od_coder_free(struct od_coder *c)
{
	if (c == NULL)
		return;
	ZSTD_freeCCtx(c->ctx);
	free(c);
}

size_t od_coder_bound(size_t n)
{
	return ZSTD_compressBound(n);
}

int od_coder_encode(struct od_coder *c, const uint8_t *e, size_t n, uint8_t *out, size_t *stored_bytes,
		    enum od_codec *codec, struct od_err *err)
{
	size_t got = ZSTD_compress2(c->ctx, out, od_coder_bound(n), e, n);

	*stored_bytes = n;
	*codec = OD_CODEC_RAW;
	if (ZSTD_isError(got))
		return od_fail(err, OD_ERR_INTERNAL, "zstd: %s", ZSTD_getErrorName(got));
	if (got < n) {
		*stored_bytes = got;
		*codec = OD_CODEC_ZSTD;
	} else {
		memcpy(out, e, n);
	}
	return OD_OK;
}

int od_decoder_new(struct od_decoder **out, struct od_err *err)
{
	struct od_decoder *d = calloc(1, sizeof(*d));

	*out = NULL;
	if (d != NULL)
		d->ctx = ZSTD_createDCtx();
	if (d == NULL || d->ctx == NULL) {
		od_decoder_free(d);
		return od_fail(err, OD_ERR_NOMEM, "no memory for a zstd decoder");
	}
	*out = d;
	return OD_OK;
}

void od_decoder_free(struct od_decoder *d)
{
	if (d == NULL)
		return;
	ZSTD_freeDCtx(d->ctx);
	free(d);
}

size_t od_decoder_bytes(void)
{
	return ZSTD_estimateDCtxSize() + sizeof(struct od_decoder);
}

int od_decoder_inflate(struct od_decoder *d, const uint8_t *stored, size_t stored_bytes, uint8_t *out,
		       size_t raw_bytes, struct od_err *err)
{
	size_t got = ZSTD_decompressDCtx(d->ctx, out, raw_bytes, stored, stored_bytes);

	if (ZSTD_isError(got))
		return od_fail(err, OD_ERR_CORRUPT, "zstd: %s", ZSTD_getErrorName(got));
	if (got != raw_bytes)
		return od_fail(err, OD_ERR_CORRUPT, "zstd: expected %zu bytes, found %zu", raw_bytes, got);
	return OD_OK;
}
