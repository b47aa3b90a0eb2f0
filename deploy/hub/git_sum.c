#include "deploy/hub/git_sum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES 64
#define LENGTH_BYTES 8

static uint32_t rotate(uint32_t x, int n)
{
	return x << n | x >> (32 - n);
}

static void add_block(uint32_t h[5], const uint8_t block[BLOCK_BYTES])
{
	uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

	for (int t = 0; t < 16; t++)
		w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
		       (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
	for (int t = 16; t < 80; t++)
		w[t] = rotate(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
	for (int t = 0; t < 80; t++) {
		const uint32_t f = t < 20 ? (b & c) ^ (~b & d) :
				   t < 40 ? b ^ c ^ d :
				   t < 60 ? (b & c) ^ (b & d) ^ (c & d) :
					    b ^ c ^ d;
		const uint32_t k = t < 20 ? 0x5a827999 : t < 40 ? 0x6ed9eba1 : t < 60 ? 0x8f1bbcdc : 0xca62c1d6;
		const uint32_t sum = rotate(a, 5) + f + e + k + w[t];

		e = d;
		d = c;
		c = rotate(b, 30);
		b = a;
		a = sum;
	}
	h[0] += a;
	h[1] += b;
	h[2] += c;
	h[3] += d;
	h[4] += e;
}

void odp_git_sum_update(struct odp_git_sum *s, const void *bytes, size_t n)
{
	const uint8_t *at = bytes;

	while (n > 0) {
		const size_t have = s->n_bytes % BLOCK_BYTES, more = n < BLOCK_BYTES - have ? n : BLOCK_BYTES - have;

		memcpy(s->block + have, at, more);
		s->n_bytes += more;
		at += more;
		n -= more;
		if (have + more == BLOCK_BYTES)
			add_block(s->state, s->block);
	}
}

void odp_git_sum_init(struct odp_git_sum *s, uint64_t file_bytes)
{
	char head[40];

	*s = (struct odp_git_sum){ .state = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 } };
	odp_git_sum_update(s, head, (size_t)snprintf(head, sizeof(head), "blob %" PRIu64, file_bytes) + 1);
}

void odp_git_sum_final(struct odp_git_sum *s, uint8_t out[ODP_GIT_SUM_BYTES])
{
	const uint64_t n_bits = s->n_bytes * 8;
	uint8_t length[LENGTH_BYTES];

	odp_git_sum_update(s, "\x80", 1);
	while (s->n_bytes % BLOCK_BYTES != BLOCK_BYTES - LENGTH_BYTES)
		odp_git_sum_update(s, "", 1);
	for (int i = 0; i < LENGTH_BYTES; i++)
		length[i] = (uint8_t)(n_bits >> (8 * (LENGTH_BYTES - 1 - i)));
	odp_git_sum_update(s, length, LENGTH_BYTES);
	for (int i = 0; i < ODP_GIT_SUM_BYTES; i++)
		out[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
