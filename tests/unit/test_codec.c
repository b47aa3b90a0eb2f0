/* The bit-field codec: every BF16 and F16 pattern, planes against the definition, hostile frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/pack/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N16 65536u

static uint32_t rng_state = 12345;

static uint32_t rnd(void) /* xorshift32 */
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 17;
	rng_state ^= rng_state << 5;
	return rng_state;
}

static void test_all_16_bit_patterns(void **state)
{
	static uint16_t in[N16], out[N16];
	static uint8_t sm[N16], e[N16];

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
		od_codec_merge((enum od_dtype)t, sm, e, N16, out);
		assert_memory_equal(in, out, sizeof(in));
	}
}

static void test_f32_patterns(void **state)
{
	enum { N = 100003 }; /* odd: vector loops have a tail */
	static uint32_t in[N], out[N];
	static uint8_t sm[3 * N], e[N];
	static const uint32_t hard[] = { 0, 0x80000000, 1, 0x80000001, 0x7f800000, 0xff800000, 0x7fc00001, 0x7f800001,
					 0xffffffff, 0x007fffff };

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
	od_codec_merge(OD_F32, sm, e, N, out);
	assert_memory_equal(in, out, sizeof(in));
}

static void test_short_runs(void **state)
{
	uint16_t in[70], out[71];
	uint8_t sm[70], e[70];

	(void)state;
	for (size_t n = 0; n <= 70; n++) {
		for (size_t i = 0; i < n; i++)
			in[i] = (uint16_t)rnd();
		memset(out, 0x5a, sizeof(out));
		od_codec_split(OD_BF16, in, n, sm, e);
		od_codec_merge(OD_BF16, sm, e, n, out);
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

static void test_code_and_inflate(void **state)
{
	enum { N = 512 * 1024 };
	uint8_t *e = malloc(N), *stored = malloc(od_coder_bound(N)), *back = malloc(N);
	struct od_coder *c;
	struct od_decoder *d;
	enum od_codec codec;
	struct od_err err;
	size_t len;

	(void)state;
	assert_int_equal(od_coder_new(&c, &err), OD_OK);
	assert_int_equal(od_decoder_new(&d, &err), OD_OK);
	gaussian_exponents(e, N);
	assert_int_equal(od_coder_encode(c, e, N, stored, &len, &codec, &err), OD_OK);
	assert_int_equal(codec, OD_CODEC_ZSTD);
	/* Entropy is 2.545 bits for a Gaussian; Huffman and headers add under 0.1 (codec notes: 10.61 with SM). */
	assert_in_range(len, (size_t)(N * 2.5 / 8), (size_t)(N * 2.68 / 8));
	memset(back, 0, N);
	assert_int_equal(od_decoder_inflate(d, stored, len, back, N, &err), OD_OK);
	assert_memory_equal(e, back, N);

	/* Too little, too much, cut, and not a frame at all. */
	assert_int_equal(od_decoder_inflate(d, stored, len, back, N - 1, &err), OD_ERR_CORRUPT);
	assert_int_equal(od_decoder_inflate(d, stored, len - 1, back, N, &err), OD_ERR_CORRUPT);
	assert_int_equal(od_decoder_inflate(d, stored, 0, back, N, &err), OD_ERR_CORRUPT);
	assert_int_equal(od_decoder_inflate(d, e, 1000, back, N, &err), OD_ERR_CORRUPT);
	assert_int_equal(od_coder_encode(c, e, N - 1, stored, &len, &codec, &err), OD_OK);
	assert_int_equal(od_decoder_inflate(d, stored, len, back, N, &err), OD_ERR_CORRUPT);
	assert_non_null(strstr(err.msg, "expected 524288 bytes, found 524287"));

	/* What has no structure stays as it is. */
	for (size_t i = 0; i < N; i++)
		e[i] = (uint8_t)(rnd() >> 11);
	assert_int_equal(od_coder_encode(c, e, N, stored, &len, &codec, &err), OD_OK);
	assert_int_equal(codec, OD_CODEC_RAW);
	assert_int_equal(len, N);
	assert_memory_equal(e, stored, N);
	od_coder_free(c);
	od_decoder_free(d);
	free(e);
	free(stored);
	free(back);
}

/* Damaged frames: any result is fine, as long as no byte outside is touched (the sanitizers watch). */
static void test_hostile_frames(void **state)
{
	enum { N = 4096 };
	uint8_t *e = malloc(N), *good = malloc(od_coder_bound(N)), *bad, *back = malloc(N);
	struct od_coder *c;
	struct od_decoder *d;
	enum od_codec codec;
	struct od_err err;
	size_t len, refused = 0;

	(void)state;
	assert_int_equal(od_coder_new(&c, &err), OD_OK);
	assert_int_equal(od_decoder_new(&d, &err), OD_OK);
	gaussian_exponents(e, N);
	assert_int_equal(od_coder_encode(c, e, N, good, &len, &codec, &err), OD_OK);
	bad = malloc(len); /* exactly, so that reading past it is seen */
	for (int round = 0; round < 3000; round++) {
		memcpy(bad, good, len);
		for (uint32_t i = 0; i < 1 + round % 4u; i++)
			bad[round % 2 == 0 ? rnd() % 32 : rnd() % len] ^= (uint8_t)(1u << rnd() % 8);
		refused += od_decoder_inflate(d, bad, len, back, N, &err) != OD_OK;
	}
	assert_in_range(refused, 500, 3000);
	assert_int_equal(od_decoder_inflate(d, good, len, back, N, &err), OD_OK); /* the decoder is none the worse */
	assert_memory_equal(e, back, N);
	od_coder_free(c);
	od_decoder_free(d);
	free(e);
	free(good);
	free(bad);
	free(back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_16_bit_patterns), cmocka_unit_test(test_f32_patterns),
		cmocka_unit_test(test_short_runs),	    cmocka_unit_test(test_code_and_inflate),
		cmocka_unit_test(test_hostile_frames),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
