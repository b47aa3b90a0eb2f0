/* The bit-field codec: every BF16 and F16 pattern, planes against the definition, every codec there and back, hostile
 * chunks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/pack/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N16 65536u

static const struct od_backend *be;
static uint32_t rng_state = 12345;

static uint32_t rnd(void) /* xorshift32 */
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 17;
	rng_state ^= rng_state << 5;
	return rng_state;
}

static int find_backend(void **state)
{
	(void)state;
	return od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, NULL);
}

static void test_all_16_bit_patterns(void **state)
{
	static uint16_t in[N16], out[N16];
	static uint8_t sm[N16], e[N16 + OD_PAD_BYTES];

	(void)state;
	for (uint32_t i = 0; i < N16; i++)
		in[i] = (uint16_t)(i * 40503u); /* odd factor: a permutation */
	for (int t = OD_BF16; t <= OD_F16; t++) {
		memset(out, 0x5a, sizeof(out));
		od_codec_split((enum od_dtype)t, in, N16, sm, e);
		for (uint32_t i = 0; i < N16; i++) {
			/* For BF16 these are the fields by their meaning; F16 takes the same bits. */
			assert_int_equal(e[i], in[i] >> 7 & 0xff);
			assert_int_equal(sm[i], (in[i] & 0x7f) << 1 | in[i] >> 15);
		}
		od_codec_merge(be, (enum od_dtype)t, sm, e, N16, out);
		assert_memory_equal(in, out, sizeof(in));
	}
}

static void test_f32_patterns(void **state)
{
	enum { N = 100003 }; /* odd: vector loops have a tail */
	static uint32_t in[N], out[N];
	static uint8_t sm[3 * N], e[N + OD_PAD_BYTES];
	static const uint32_t hard[] = { 0,	     0x80000000, 1,	     0x80000001, 0x7f800000,
					 0xff800000, 0x7fc00001, 0x7f800001, 0xffffffff, 0x007fffff };

	(void)state;
	for (size_t i = 0; i < N; i++)
		in[i] = i < sizeof(hard) / sizeof(hard[0]) ? hard[i] : rnd();
	assert_int_equal(od_codec_sm_bytes(OD_F32), 3);
	assert_int_equal(od_codec_sm_bytes(OD_BF16), 1);
	od_codec_split(OD_F32, in, N, sm, e);
	for (size_t i = 0; i < N; i++) {
		uint32_t fields = sm[i] | (uint32_t)sm[N + i] << 8 | (uint32_t)sm[2 * N + i] << 16;

		assert_int_equal(e[i], in[i] >> 23 & 0xff);
		assert_int_equal(fields, (in[i] & 0x7fffff) << 1 | in[i] >> 31);
	}
	od_codec_merge(be, OD_F32, sm, e, N, out);
	assert_memory_equal(in, out, sizeof(in));
}

static void test_short_runs(void **state)
{
	uint16_t in[70], out[71];
	uint8_t sm[70], e[70 + OD_PAD_BYTES];

	(void)state;
	for (size_t n = 0; n <= 70; n++) {
		for (size_t i = 0; i < n; i++)
			in[i] = (uint16_t)rnd();
		memset(out, 0x5a, sizeof(out));
		od_codec_split(OD_BF16, in, n, sm, e);
		od_codec_merge(be, OD_BF16, sm, e, n, out);
		assert_memory_equal(in, out, n * 2);
		assert_int_equal(out[n], 0x5a5a);
	}
}

/* Exponents of a Gaussian: about 2.6 bits each. */
static void gaussian_exponents(uint8_t *e, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double u = (rnd() + 1.0) / 4294967297.0, v = rnd() / 4294967296.0;
		float w = (float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));

		e[i] = (uint8_t)(od_f32_bits(w) >> 23);
	}
}

struct codec_test_chunk {
	struct od_coded coded;
	uint8_t *e, *stored, *sm, *weights; /* exact size plus OD_PAD_BYTES; weights as published */
	enum od_dtype t;
};

static struct codec_test_chunk chunk_of(enum od_codec codec, enum od_dtype t, size_t rows, size_t row, bool gaussian)
{
	struct codec_test_chunk c = { .coded = { .n = rows * row, .row = row }, .t = t };
	size_t n = rows * row, bytes = n * (od_codec_sm_bytes(t) + 1), n_codes;
	struct od_coder *coder;
	struct od_err err;
	uint8_t *room;

	c.weights = od_alloc(bytes);
	c.e = od_alloc(n);
	c.sm = od_alloc(n * od_codec_sm_bytes(t));
	for (size_t i = 0; i < bytes; i++)
		c.weights[i] = (uint8_t)rnd();
	od_codec_split(t, c.weights, n, c.sm, c.e);
	if (gaussian)
		gaussian_exponents(c.e, n);
	od_codec_merge(be, t, c.sm, c.e, n, c.weights);
	assert_int_equal(od_coder_new(&coder, codec, &err), OD_OK);
	room = malloc(od_coder_bound(coder, n, row));
	n_codes = od_codec_sm_bytes(t) == 0 ? rnd() % (n + 1) : n; /* it is the same to decoders */
	assert_int_equal(od_coder_encode(coder, &(struct od_plane){ t, c.e, n, row, n_codes }, room, &c.coded.bytes,
					 &c.coded.codec, &err),
			 OD_OK);
	assert_true(c.coded.bytes <= n);
	c.stored = od_alloc(c.coded.bytes);
	memcpy(c.stored, room, c.coded.bytes);
	c.coded.at = c.stored;
	free(room);
	od_coder_free(coder);
	return c;
}

static void chunk_free(struct codec_test_chunk *c)
{
	od_free(c->e);
	od_free(c->stored);
	od_free(c->sm);
	od_free(c->weights);
}

static struct od_decoder *decoder_of(enum od_cpu cpu)
{
	const struct od_backend *one;
	struct od_decoder *d;

	assert_int_equal(od_backend_cpu(&one, cpu, OD_PROFILE_F32, NULL), OD_OK);
	assert_int_equal(od_decoder_new(&d, one, NULL), OD_OK);
	return d;
}

/* Both ways back, and for 16 bits in place. */
static void expect_all_back(struct codec_test_chunk *c, enum od_cpu cpu)
{
	const size_t n = c->coded.n, bytes = n * (od_codec_sm_bytes(c->t) + 1);
	struct od_decoder *d = decoder_of(cpu);
	uint8_t *e = od_alloc(n), *w = od_alloc(bytes);
	struct od_err err;

	assert_int_equal(od_coded_check(&c->coded, &err), OD_OK);
	assert_int_equal(od_decoder_exponents(d, &c->coded, e, &err), OD_OK);
	assert_memory_equal(e, c->e, n);
	assert_int_equal(od_decoder_weights(d, &c->coded, c->t, c->sm, e, w, &err), OD_OK);
	assert_memory_equal(w, c->weights, bytes);
	if (od_codec_sm_bytes(c->t) == 1) {
		memset(w, 0, n);
		memcpy(w + n, c->sm, n);
		assert_int_equal(od_decoder_weights(d, &c->coded, c->t, w + n, e, w, &err), OD_OK);
		assert_memory_equal(w, c->weights, bytes);
	}
	od_free(e);
	od_free(w);
	od_decoder_free(d);
}

static void test_every_codec_and_type_comes_back(void **state)
{
	static const size_t shape[][2] = { { 1, 1 }, { 3, 1000 }, { 64, 4096 }, { 2, 20001 } };
	static const enum od_dtype types[] = { OD_BF16, OD_F16, OD_F32, OD_INT8, OD_F8_E4M3 };

	(void)state;
	for (int codec = 0; codec < OD_N_CODECS; codec++)
		for (size_t t = 0; t < 5; t++)
			for (size_t s = 0; s < 8; s++) {
				struct codec_test_chunk c = chunk_of((enum od_codec)codec, types[t], shape[s / 2][0],
								     shape[s / 2][1], s % 2 == 0);
				enum od_codec expected = od_codec_for((enum od_codec)codec, types[t]);

				if (c.coded.n < 1000 || s % 2 == 1) /* nothing to gain */
					expected = OD_CODEC_RAW;
				assert_int_equal(c.coded.codec, expected);
				expect_all_back(&c, OD_CPU_AUTO);
				expect_all_back(&c, OD_CPU_SCALAR);
				chunk_free(&c);
			}
}

/* The codec that a pack names, and F16 in packs of planes. */
static void test_codec_of_a_type(void **state)
{
	(void)state;
	assert_int_equal(od_codec_for(OD_CODEC_PLANES, OD_BF16), OD_CODEC_PLANES);
	assert_int_equal(od_codec_for(OD_CODEC_PLANES, OD_F32), OD_CODEC_PLANES);
	assert_int_equal(od_codec_for(OD_CODEC_PLANES, OD_F16), OD_CODEC_ZSTD);
	assert_int_equal(od_codec_for(OD_CODEC_PLANES, OD_INT8), OD_CODEC_ZSTD);
	assert_int_equal(od_codec_for(OD_CODEC_PLANES, OD_F8_E5M2), OD_CODEC_ZSTD);
	assert_int_equal(od_codec_for(OD_CODEC_LZ4, OD_F16), OD_CODEC_LZ4);
	assert_int_equal(od_codec_sm_bytes(OD_INT8), 0);
	assert_int_equal(od_codec_sm_bytes(OD_F8_E4M3), 0);
	assert_string_equal(od_codec_names[OD_CODEC_PLANES], "planes");
	assert_null(od_codec_names[OD_N_CODECS]);
}

/* Entropy is 2.545 bits for a Gaussian. */
static void test_sizes(void **state)
{
	const struct {
		enum od_codec codec;
		double least, most; /* bits a weight, SM too */
	} bounds[] = {
		{ OD_CODEC_RAW, 16, 16 },
		{ OD_CODEC_ZSTD, 10.545, 10.65 },
		{ OD_CODEC_LZ4, 10.545, 13 },
		{ OD_CODEC_PLANES, 10.545, 10.72 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
		struct codec_test_chunk c = chunk_of(bounds[i].codec, OD_BF16, 128, 4096, true);
		double bits = 8 + 8.0 * (double)c.coded.bytes / (double)c.coded.n;

		assert_int_equal(c.coded.codec, bounds[i].codec);
		assert_true(bits >= bounds[i].least && bits <= bounds[i].most);
		chunk_free(&c);
	}
}

/* Too little, too much, cut, and nothing of the kind at all. */
static void expect_refused(struct codec_test_chunk *c)
{
	struct od_decoder *d = decoder_of(OD_CPU_AUTO);
	uint8_t *e = od_alloc(c->coded.n + c->coded.row), *none = od_alloc(1000);
	struct od_coded wrong[] = { c->coded, c->coded, c->coded, c->coded, c->coded };
	struct od_err err;

	wrong[0].n -= c->coded.row;
	wrong[1].n += c->coded.row;
	wrong[2].bytes--;
	wrong[3].bytes = 0;
	wrong[4].at = none;
	wrong[4].bytes = 1000;
	for (size_t i = 0; i < 5; i++) {
		int rc = od_coded_check(&wrong[i], &err);

		if (rc == OD_OK)
			rc = od_decoder_exponents(d, &wrong[i], e, &err);
		assert_int_equal(rc, OD_ERR_CORRUPT);
		assert_non_null(strstr(err.msg, od_codec_names[c->coded.codec]));
	}
	od_free(e);
	od_free(none);
	od_decoder_free(d);
}

static void test_wrong_lengths(void **state)
{
	struct od_coded unknown = { .codec = (enum od_codec)4 };
	struct od_err err;

	(void)state;
	for (int codec = 0; codec < OD_N_CODECS; codec++) {
		struct codec_test_chunk c = chunk_of((enum od_codec)codec, OD_BF16, 32, 1024, true);

		expect_refused(&c);
		chunk_free(&c);
	}
	assert_int_equal(od_coded_check(&unknown, &err), OD_ERR_UNSUPPORTED);
}

/* Damaged chunks: any result is fine, as long as no byte outside is touched (the sanitizers watch). */
static void test_hostile_chunks(void **state)
{
	(void)state;
	for (int codec = OD_CODEC_ZSTD; codec < OD_N_CODECS; codec++) {
		struct codec_test_chunk c = chunk_of((enum od_codec)codec, OD_BF16, 4, 1024, true);
		struct od_decoder *d = decoder_of(OD_CPU_AUTO);
		uint8_t *good = malloc(c.coded.bytes), *e = od_alloc(c.coded.n);
		size_t refused = 0;

		memcpy(good, c.stored, c.coded.bytes);
		for (int round = 0; round < 3000; round++) {
			memcpy(c.stored, good, c.coded.bytes);
			for (uint32_t i = 0; i < 1 + round % 4u; i++)
				c.stored[round % 2 == 0 ? rnd() % 32 : rnd() % c.coded.bytes] ^=
					(uint8_t)(1u << rnd() % 8);
			refused += od_coded_check(&c.coded, NULL) != OD_OK ||
				   od_decoder_exponents(d, &c.coded, e, NULL) != OD_OK;
		}
		assert_in_range(refused, 500, 3000);
		memcpy(c.stored, good, c.coded.bytes); /* the decoder is none the worse */
		assert_int_equal(od_decoder_exponents(d, &c.coded, e, NULL), OD_OK);
		assert_memory_equal(e, c.e, c.coded.n);
		free(good);
		od_free(e);
		od_decoder_free(d);
		chunk_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_16_bit_patterns), cmocka_unit_test(test_f32_patterns),
		cmocka_unit_test(test_short_runs),	    cmocka_unit_test(test_every_codec_and_type_comes_back),
		cmocka_unit_test(test_codec_of_a_type),	    cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_wrong_lengths),	    cmocka_unit_test(test_hostile_chunks),
	};

	return cmocka_run_group_tests(tests, find_backend, NULL);
}
