#include "common/model/rope.h"

#include <math.h>

void od_rope_frequencies(const struct od_config *cfg, float *inv_freq)
{
	/* pow in double, then rounded: its last bits differ between libraries, those of an f32 hardly ever. */
	for (uint32_t i = 0; i < cfg->head_dim / 2; i++) {
		float exponent = (float)(2 * i) / (float)cfg->head_dim;

		inv_freq[i] = 1.0f / (float)pow(cfg->rope_theta, exponent);
	}
}
