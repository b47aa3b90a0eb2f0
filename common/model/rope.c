#include "common/model/rope.h"

#include <math.h>

/* Index of the pair whose angle makes so many rotations within the original context; may lie between two. */
static double pair_of(const struct od_rope *r, double rotations)
{
	return r->dims * log(r->original_ctx / (rotations * 2 * M_PI)) / (2 * log(r->theta));
}

static float clamp(float x, float least, float most)
{
	return x < least ? least : x > most ? most : x;
}

void od_rope_frequencies(const struct od_rope *r, bool is_long, float *inv_freq)
{
	const bool yarn = r->factor != 0;
	const double first = yarn ? pair_of(r, r->beta_fast) : 0, last = yarn ? pair_of(r, r->beta_slow) : 0;
	const double low = fmax(r->between ? first : floor(first), 0);
	const double high = fmin(r->between ? last : ceil(last), r->dims - 1);
	const float span = (float)(low == high ? 0.001 : high - low);

	for (uint32_t i = 0; i < r->dims / 2; i++) {
		float exponent = (float)(2 * i) / (float)r->dims;
		/* pow in double, then rounded: its last bits differ between libraries, those of an f32 hardly ever. */
		float power = (float)pow(r->theta, exponent), plain = 1.0f / power, stays;

		if (r->short_ctx != 0)
			inv_freq[i] = 1.0f / (r->pair_factor[is_long][i] * power);
		else
			inv_freq[i] = r->pairs != 0 && i >= r->pairs ? 0 :
				      r->divisor != 0		     ? plain / (float)r->divisor :
								       plain;
		if (!yarn)
			continue;
		stays = 1.0f - clamp(((float)i - (float)low) / span, 0, 1);
		inv_freq[i] = 1.0f / ((float)r->factor * power) * (1.0f - stays) + plain * stays;
	}
}
