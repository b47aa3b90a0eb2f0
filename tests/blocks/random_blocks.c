/* Decodes random blocks of each of GGUF's formats by the scalar decoder, the oracle, and by the decoders of each
 * instruction set that this CPU has: the same bits, NaNs alike. check_blocks.py compares with another program's.
 *   random_blocks            names of the formats, weights and bytes of a block, one a line; then the decoders
 *   random_blocks FORMAT N   N blocks: to stdout, PIECE at a time, the blocks, then their values */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/blocks/decoders.h"

#define PIECE 4096u /* blocks; check_blocks.py has it, too */

static const enum od_dtype formats[] = {
#define FORMAT(NAME, ...) OD_##NAME,
	OD_BLOCK_FORMATS(FORMAT)
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

struct decoder {
	const char *name;
	od_decode_fn *(*of)(enum od_dtype t);
	bool here;
};

static od_decode_fn *scalar(enum od_dtype t)
{
	return od_format(t)->decode;
}

static size_t find_decoders(struct decoder d[4])
{
	size_t n = 0;

	d[n++] = (struct decoder){ "scalar", scalar, true };
#if defined(__x86_64__)
	d[n++] = (struct decoder){ "avx2", blocks_avx2,
				   __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") };
	d[n++] = (struct decoder){ "avx512", blocks_avx512,
				   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
					   __builtin_cpu_supports("avx512dq") };
#elif defined(__aarch64__)
	d[n++] = (struct decoder){ "neon", blocks_neon, true };
#endif
	return n;
}

static uint64_t random_u64(uint64_t *seed) /* splitmix64 */
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static bool is_nan(uint32_t bits)
{
	return (bits & 0x7fffffffu) > 0x7f800000u;
}

static bool same(const char *name, enum od_dtype t, const uint8_t *blocks, const float *got, const float *want,
		 size_t n)
{
	const struct od_block b = od_block_of(t);
	uint32_t g, w;

	if (memcmp(got, want, n * sizeof(*got)) == 0)
		return true;
	for (size_t i = 0; i < n; i++) {
		memcpy(&g, &got[i], sizeof(g));
		memcpy(&w, &want[i], sizeof(w));
		if (g == w || (is_nan(g) && is_nan(w)))
			continue;
		fprintf(stderr, "%s: weight %zu by %s is %08x, by scalar %08x; the block:", od_dtype_name(t),
			i % b.weights, name, g, w);
		for (size_t k = 0; k < b.bytes; k++)
			fprintf(stderr, " %02x", blocks[i / b.weights * b.bytes + k]);
		fprintf(stderr, "\n");
		return false;
	}
	return true;
}

static bool decode_piece(enum od_dtype t, const struct decoder *d, size_t n_decoders, const uint8_t *blocks, size_t n,
			 float *want, float *got)
{
	const size_t weights = n * od_block_of(t).weights;
	bool good = true;

	scalar(t)(blocks, weights, want);
	for (size_t i = 1; i < n_decoders; i++) {
		if (!d[i].here)
			continue;
		memset(got, 0x55, weights * sizeof(*got));
		d[i].of(t)(blocks, weights, got);
		good = same(d[i].name, t, blocks, got, want, weights) && good;
	}
	return good && fwrite(blocks, od_block_of(t).bytes, n, stdout) == n &&
	       fwrite(want, sizeof(*want), weights, stdout) == weights;
}

static bool decode_all(enum od_dtype t, size_t n)
{
	const struct od_block b = od_block_of(t);
	uint8_t *blocks = malloc(PIECE * b.bytes + sizeof(uint64_t));
	float *want = malloc(PIECE * b.weights * sizeof(*want)), *got = malloc(PIECE * b.weights * sizeof(*got));
	struct decoder d[4];
	const size_t n_decoders = find_decoders(d);
	uint64_t seed = (uint64_t)t, r;
	bool good = blocks != NULL && want != NULL && got != NULL;

	for (size_t at = 0, piece; good && at < n; at += piece) {
		piece = n - at < PIECE ? n - at : PIECE;
		for (size_t k = 0; k < piece * b.bytes; k += sizeof(r)) {
			r = random_u64(&seed);
			memcpy(blocks + k, &r, sizeof(r));
		}
		good = decode_piece(t, d, n_decoders, blocks, piece, want, got);
	}
	free(blocks);
	free(want);
	free(got);
	return good;
}

int main(int argc, char **argv)
{
	const enum od_dtype t = argc == 3 ? od_dtype_parse(argv[1]) : 0;
	struct decoder d[4];
	const size_t n = find_decoders(d);

	if (argc == 3 && od_block_of(t).weights > 1)
		return decode_all(t, strtoull(argv[2], NULL, 10)) ? 0 : 1;
	if (argc != 1)
		return 2;
	for (size_t i = 0; i < N_FORMATS; i++)
		printf("%s %u %u\n", od_dtype_name(formats[i]), od_block_of(formats[i]).weights,
		       od_block_of(formats[i]).bytes);
	for (size_t i = 0; i < n; i++)
		printf("%s%s", d[i].name, d[i].here ? " " : "(not here) ");
	printf("\n");
	return 0;
}
