#include "common/predict/random_predictor.h"

#include <stdbool.h>

/* SplitMix64's finaliser over a counter: well mixed, and the same on every machine. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void od_predict_random(uint64_t step, uint32_t layer, uint32_t n_experts, uint32_t k, uint16_t *expert)
{
	uint64_t state = mix(step) ^ mix((uint64_t)layer << 32);
	uint32_t n = 0;

	while (n < k) {
		uint16_t e = (uint16_t)(mix(state++) % n_experts);
		bool have = false;

		for (uint32_t i = 0; i < n; i++)
			have = have || expert[i] == e;
		if (!have)
			expert[n++] = e;
	}
}
