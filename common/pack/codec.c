#define ZSTD_STATIC_LINKING_ONLY /* for the name of the literal compression switch, nothing else */
#include "common/pack/codec.h"

#include <lz4.h>
#include <lz4hc.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs are little-endian and so is this code");

#define ZSTD_CUT_BYTES 16 /* bytes that one more block may cost */
#if ZSTD_VERSION_NUMBER >= 10500
#define CODES_LITERALS ZSTD_ps_enable
#else /* as in Ubuntu 22.04 */
#define CODES_LITERALS ZSTD_lcm_huffman
#endif

const char *const od_codec_names[] = { "raw", "zstd", "lz4", "planes", NULL };

struct od_coder {
	enum od_codec codec;
	ZSTD_CCtx *zstd;
	void *lz4;
};

struct od_decoder {
	const struct od_backend *be;
	ZSTD_DCtx *zstd;
};

size_t od_codec_sm_bytes(enum od_dtype t)
{
	return od_dtype_bytes(t) > 1 ? od_dtype_bytes(t) - 1 : 0;
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

/* The planes of sm begin stride bytes after one another. */
static void merge32(const uint8_t *restrict sm, size_t stride, const uint8_t *restrict e, size_t n,
		    uint32_t *restrict w)
{
	const uint8_t *mid = sm + stride, *high = sm + 2 * stride;

	for (size_t i = 0; i < n; i++) {
		uint32_t r = sm[i] | (uint32_t)mid[i] << 8 | (uint32_t)high[i] << 16 | (uint32_t)e[i] << 24;

		w[i] = r >> 1 | r << 31;
	}
}

void od_codec_split(enum od_dtype t, const void *src, size_t n, uint8_t *sm, uint8_t *e)
{
	if (t == OD_F32)
		split32(src, n, sm, e);
	else if (od_codec_sm_bytes(t) == 1)
		split16(src, n, sm, e);
	else
		memcpy(e, src, n);
}

/* Weights [first, first + m) of n; e has theirs alone. */
static void merge_range(const struct od_backend *be, enum od_dtype t, const uint8_t *sm, const uint8_t *e, size_t n,
			size_t first, size_t m, void *dst)
{
	char *at = (char *)dst + first * (od_codec_sm_bytes(t) + 1);

	if (t == OD_F32)
		merge32(sm + first, n, e, m, (uint32_t *)(void *)at);
	else if (od_codec_sm_bytes(t) == 1)
		be->merge_bf16(e, sm + first, m, (uint16_t *)(void *)at); /* F16 has the same layout */
	else
		memcpy(at, e, m);
}

void od_codec_merge(const struct od_backend *be, enum od_dtype t, const uint8_t *sm, const uint8_t *e, size_t n,
		    void *dst)
{
	merge_range(be, t, sm, e, n, 0, n, dst);
}

enum od_codec od_codec_for(enum od_codec pack, enum od_dtype t)
{
	return pack == OD_CODEC_PLANES && t != OD_BF16 && t != OD_F32 ? OD_CODEC_ZSTD : pack;
}

/* ---- coding ---- */

/* A chunk is coded if that makes it shorter than this. Blocks are used as they are, so decoding must be worth it. */
static size_t worth_bytes(const struct od_plane *p)
{
	const struct od_format *f = od_format(p->dtype);

	return f != NULL && (f->uses & OD_USE_BLOCKS) != 0 ? p->n - p->n * 3 / 100 : p->n;
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
		{ ZSTD_c_literalCompressionMode, CODES_LITERALS },
		{ ZSTD_c_windowLog, 23 }, /* at least the largest shard; zstd lowers it to what the input needs */
		{ ZSTD_c_contentSizeFlag, 1 },
		{ ZSTD_c_checksumFlag, 0 }, /* chunks have their own */
	};

	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) {
		size_t rc = ZSTD_CCtx_setParameter(ctx, set[i].param, set[i].value);

		if (ZSTD_isError(rc))
			return od_fail(err, OD_ERR_INTERNAL, "zstd: cannot set parameter %d: %s", (int)set[i].param,
				       ZSTD_getErrorName(rc));
	}
	return OD_OK;
}

int od_coder_new(struct od_coder **out, enum od_codec codec, struct od_err *err)
{
	struct od_coder *c = calloc(1, sizeof(*c));
	int rc = OD_OK;

	*out = NULL;
	if (c != NULL) {
		c->codec = codec;
		c->zstd = ZSTD_createCCtx();
		c->lz4 = malloc((size_t)LZ4_sizeofStateHC());
	}
	if (c == NULL || c->zstd == NULL || c->lz4 == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for an encoder");
	else
		rc = set_literals_only(c->zstd, err);
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
	ZSTD_freeCCtx(c->zstd);
	free(c->lz4);
	free(c);
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static size_t zstd_bound(size_t n)
{
	return ZSTD_compressBound(n) + ZSTD_CUT_BYTES;
}

size_t od_coder_bound(const struct od_coder *c, size_t n, size_t row)
{
	switch (c->codec) {
	case OD_CODEC_RAW: return n;
	case OD_CODEC_ZSTD: return zstd_bound(n);
	case OD_CODEC_LZ4: return n; /* chunks that grow are stored raw */
	case OD_CODEC_PLANES: return larger(od_planes_bound(n, row), zstd_bound(n));
	}
	return n;
}

/* One frame; scales begin a new block of it, for a block has one table of lengths for all its bytes. */
static int encode_zstd(struct od_coder *c, const struct od_plane *p, uint8_t *out, size_t *got, struct od_err *err)
{
	ZSTD_inBuffer in = { p->e, p->n_codes, 0 };
	ZSTD_outBuffer to = { out, zstd_bound(p->n), 0 };
	size_t rc = ZSTD_CCtx_setPledgedSrcSize(c->zstd, p->n);

	if (!ZSTD_isError(rc) && p->n_codes < p->n)
		rc = ZSTD_compressStream2(c->zstd, &to, &in, ZSTD_e_flush);
	in.size = p->n;
	if (!ZSTD_isError(rc))
		rc = ZSTD_compressStream2(c->zstd, &to, &in, ZSTD_e_end);
	*got = to.pos;
	if (ZSTD_isError(rc) || rc != 0)
		return od_fail(err, OD_ERR_INTERNAL, "zstd: %s",
			       ZSTD_isError(rc) ? ZSTD_getErrorName(rc) : "more than its bound");
	return OD_OK;
}

static size_t encode_lz4(struct od_coder *c, const uint8_t *e, size_t n, uint8_t *out)
{
	int got = 0;

	if (n <= LZ4_MAX_INPUT_SIZE)
		got = LZ4_compress_HC_extStateHC(c->lz4, (const char *)e, (char *)out, (int)n, (int)n,
						 LZ4HC_CLEVEL_MAX);
	return got > 0 ? (size_t)got : 0;
}

int od_coder_encode(struct od_coder *c, const struct od_plane *p, uint8_t *out, size_t *stored_bytes,
		    enum od_codec *codec, struct od_err *err)
{
	size_t got = 0;
	int rc = OD_OK;

	*stored_bytes = p->n;
	*codec = od_codec_for(c->codec, p->dtype);
	switch (*codec) {
	case OD_CODEC_RAW: break;
	case OD_CODEC_ZSTD: rc = encode_zstd(c, p, out, &got, err); break;
	case OD_CODEC_LZ4: got = encode_lz4(c, p->e, p->n, out); break;
	case OD_CODEC_PLANES: got = od_planes_encode(p->e, p->n, p->row, out); break;
	}
	if (rc != OD_OK)
		return rc;
	if (got > 0 && got < worth_bytes(p)) {
		*stored_bytes = got;
	} else {
		*codec = OD_CODEC_RAW;
		memcpy(out, p->e, p->n);
	}
	return OD_OK;
}

/* ---- decoding ---- */

int od_coded_check(const struct od_coded *c, struct od_err *err)
{
	switch (c->codec) {
	case OD_CODEC_RAW:
		return c->bytes == c->n ?
			       OD_OK :
			       od_fail(err, OD_ERR_CORRUPT, "raw: expected %zu bytes, found %zu", c->n, c->bytes);
	case OD_CODEC_PLANES: return od_planes_check(c->at, c->bytes, c->n, c->row, err);
	case OD_CODEC_ZSTD:
	case OD_CODEC_LZ4: return OD_OK; /* their decoders check as they go */
	}
	return od_fail(err, OD_ERR_UNSUPPORTED, "unknown codec %d", (int)c->codec);
}

int od_decoder_new(struct od_decoder **out, const struct od_backend *be, struct od_err *err)
{
	struct od_decoder *d = calloc(1, sizeof(*d));

	*out = NULL;
	if (d != NULL) {
		d->be = be;
		d->zstd = ZSTD_createDCtx();
	}
	if (d == NULL || d->zstd == NULL) {
		od_decoder_free(d);
		return od_fail(err, OD_ERR_NOMEM, "no memory for a decoder");
	}
	*out = d;
	return OD_OK;
}

void od_decoder_free(struct od_decoder *d)
{
	if (d == NULL)
		return;
	ZSTD_freeDCtx(d->zstd);
	free(d);
}

size_t od_decoder_bytes(void)
{
	return ZSTD_estimateDCtxSize() + sizeof(struct od_decoder);
}

static int decode_zstd(struct od_decoder *d, const struct od_coded *c, uint8_t *e, struct od_err *err)
{
	size_t got = ZSTD_decompressDCtx(d->zstd, e, c->n, c->at, c->bytes);

	if (ZSTD_isError(got))
		return od_fail(err, OD_ERR_CORRUPT, "zstd: %s", ZSTD_getErrorName(got));
	if (got != c->n)
		return od_fail(err, OD_ERR_CORRUPT, "zstd: expected %zu bytes, found %zu", c->n, got);
	return OD_OK;
}

static int decode_lz4(const struct od_coded *c, uint8_t *e, struct od_err *err)
{
	int got = -1;

	if (c->bytes <= LZ4_MAX_INPUT_SIZE && c->n <= LZ4_MAX_INPUT_SIZE)
		got = LZ4_decompress_safe((const char *)c->at, (char *)e, (int)c->bytes, (int)c->n);
	if (got < 0)
		return od_fail(err, OD_ERR_CORRUPT, "lz4: not a block of %zu bytes", c->n);
	if ((size_t)got != c->n)
		return od_fail(err, OD_ERR_CORRUPT, "lz4: expected %zu bytes, found %d", c->n, got);
	return OD_OK;
}

static void decode_planes(const struct od_backend *be, const struct od_coded *c, uint8_t *e)
{
	for (size_t b = 0; b < od_planes_blocks(c->n, c->row); b++) {
		size_t first, weights;

		od_planes_span(c->n, c->row, b, &first, &weights);
		be->planes_decode(c->at, c->n, c->row, b, e + first);
	}
}

int od_decoder_exponents(struct od_decoder *d, const struct od_coded *c, uint8_t *e, struct od_err *err)
{
	switch (c->codec) {
	case OD_CODEC_RAW: memcpy(e, c->at, c->n); return OD_OK;
	case OD_CODEC_ZSTD: return decode_zstd(d, c, e, err);
	case OD_CODEC_LZ4: return decode_lz4(c, e, err);
	case OD_CODEC_PLANES: decode_planes(d->be, c, e); return OD_OK;
	}
	return od_fail(err, OD_ERR_UNSUPPORTED, "unknown codec %d", (int)c->codec);
}

/* Block by block, so that exponents never leave the fastest cache. */
static void planes_weights(struct od_decoder *d, const struct od_coded *c, enum od_dtype t, const uint8_t *sm,
			   uint8_t *room, void *dst)
{
	if (od_codec_sm_bytes(t) == 1) {
		od_planes_merge(d->be, c->at, c->n, c->row, sm, dst);
		return;
	}
	for (size_t b = 0; b < od_planes_blocks(c->n, c->row); b++) {
		size_t first, weights;

		od_planes_span(c->n, c->row, b, &first, &weights);
		d->be->planes_decode(c->at, c->n, c->row, b, room);
		merge_range(d->be, t, sm, room, c->n, first, weights, dst);
	}
}

int od_decoder_look(struct od_decoder *d, const struct od_coded *c, uint8_t *room, const uint8_t **e,
		    struct od_err *err)
{
	*e = c->codec == OD_CODEC_RAW ? c->at : room;
	return c->codec == OD_CODEC_RAW ? OD_OK : od_decoder_exponents(d, c, room, err);
}

int od_decoder_weights(struct od_decoder *d, const struct od_coded *c, enum od_dtype t, const uint8_t *sm,
		       uint8_t *room, void *dst, struct od_err *err)
{
	const uint8_t *e;
	int rc;

	if (c->codec == OD_CODEC_PLANES) {
		planes_weights(d, c, t, sm, room, dst);
		return OD_OK;
	}
	rc = od_decoder_look(d, c, room, &e, err);
	if (rc == OD_OK)
		od_codec_merge(d->be, t, sm, e, c->n, dst);
	return rc;
}
