#include "tests/bench/synth/synth_weights.h"

#include "common/base/mem.h"
#include "tests/bench/bench_draw.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "safetensors are little-endian, and rows are written as they are");

#define SUM_MEAN 262140 /* 8 * 65535 / 2 */
#define SUM_PER_SIGMA 53510.92f /* sqrt(8 * (2^32 - 1) / 12) */
#define ROW_SPREAD 0.2f /* spread of the rows' scales: at 4.9 sigma still above zero */
#define OUTLIER_EVERY 256u

struct synth_row {
	enum od_dtype dtype;
	uint64_t tensor_seed, state;
	float std, scale; /* the tensor's; the current row's */
	bool is_norm;
	float *gain; /* [cols] */
};

/* Sum of eight 16-bit uniforms less its mean: four lanes' worth of additions in two 64-bit words. */
static inline int32_t bell(uint64_t *state)
{
	const uint64_t low = 0x0000ffff0000ffffull;
	uint64_t a = od_draw(state), b = od_draw(state);
	uint64_t s = (a & low) + (a >> 16 & low) + (b & low) + (b >> 16 & low);

	return (int32_t)((uint32_t)s + (uint32_t)(s >> 32)) - SUM_MEAN;
}

int synth_row_new(struct synth_row **out, uint64_t max_cols, struct od_err *err)
{
	struct synth_row *g = od_alloc(sizeof(*g));

	*out = NULL;
	if (g != NULL)
		g->gain = od_alloc_array(max_cols, sizeof(*g->gain));
	if (g == NULL || g->gain == NULL) {
		synth_row_free(g);
		return od_fail(err, OD_ERR_NOMEM, "rows of %llu columns", (unsigned long long)max_cols);
	}
	*out = g;
	return OD_OK;
}

void synth_row_free(struct synth_row *g)
{
	if (g == NULL)
		return;
	od_free(g->gain);
	od_free(g);
}

static uint64_t fnv1a(const char *s, size_t n)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; n-- > 0; s++)
		h = (h ^ (unsigned char)*s) * 0x100000001b3ull;
	return h;
}

void synth_row_tensor(struct synth_row *g, uint64_t seed, enum od_dtype dtype, const struct synth_tensor *t)
{
	uint64_t columns;

	g->dtype = dtype;
	g->is_norm = t->is_norm;
	g->std = t->std;
	g->tensor_seed =
		od_draw_mix(od_draw(&seed) ^ fnv1a(t->name, t->seed_chars > 0 ? t->seed_chars : strlen(t->name)));
	columns = ~g->tensor_seed; /* a stream of its own */
	for (uint64_t c = 0; c < t->cols * (dtype == OD_F8_E8M0 ? SYNTH_MX_BLOCK : 1); c++) {
		uint64_t h = od_draw(&columns);

		if (t->is_norm)
			g->gain[c] = t->mixed_signs && h % 2 == 0 ? -1.0f : 1.0f;
		else
			g->gain[c] = h % OUTLIER_EVERY == 0 ? (float)(2 + (h >> 32) % 3) : 1.0f;
	}
}

uint16_t synth_f32_f16(float f)
{
	uint32_t u = od_f32_bits(f), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;

	/* Below 2^-14 halves are multiples of 2^-24, and so are floats from 0.5 on: the addition rounds. */
	if (mag < 0x38800000u)
		return (uint16_t)(sign | (od_f32_bits(od_bits_f32(mag) + 0.5f) - 0x3f000000u));
	mag += 0xfffu + (mag >> 13 & 1u);
	return (uint16_t)(sign | (mag - 0x38000000u) >> 13);
}

uint8_t synth_f32_f8(enum od_dtype t, float f)
{
	const uint32_t mantissa = t == OD_F8_E4M3 ? 3 : 2, bias = t == OD_F8_E4M3 ? 7 : 15, drop = 23 - mantissa;
	uint32_t u = od_f32_bits(f), sign = u >> 24 & 0x80u, mag = u & 0x7fffffffu;

	/* Below the smallest normal number steps are equal, and so are those of floats from here on: the addition
	 * rounds. */
	if (mag < (128 - bias) << 23) {
		const uint32_t from = (128 - bias + drop) << 23;

		return (uint8_t)(sign | (od_f32_bits(od_bits_f32(mag) + od_bits_f32(from)) - from));
	}
	mag += (1u << (drop - 1)) - 1 + (mag >> drop & 1u);
	return (uint8_t)(sign | (mag - ((127 - bias) << 23)) >> drop);
}

static inline float value(struct synth_row *g, uint64_t *state, uint64_t c)
{
	float x = (float)bell(state) * g->scale;

	return (g->is_norm ? 1.0f + x : x) * g->gain[c];
}

/* The first draw of a row is its scale: 1 +- 0.2 of the tensor's. */
static void start_row(struct synth_row *g, uint64_t row)
{
	float sigma = g->std / SUM_PER_SIGMA;

	g->state = od_draw_mix(g->tensor_seed + row * OD_DRAW_STEP);
	g->scale = sigma * (1.0f + (float)bell(&g->state) * (ROW_SPREAD / SUM_PER_SIGMA));
}

/* The nearest code of OCP's FP4, a tie to the even one; what is larger than all becomes the largest. */
static uint8_t e2m1(float x)
{
	const float y = fabsf(x);
	const int code =
		(y > 0.25f) + (y >= 0.75f) + (y > 1.25f) + (y >= 1.75f) + (y > 2.5f) + (y >= 3.5f) + (y > 5.0f);

	return (uint8_t)(code | (x < 0 ? 8 : 0));
}

/* A block of MXFP4 as OCP's Microscaling Formats, section 6.3: the scale is the largest value's power of two over
 * FP4's, 4. codes NULL: only the scale is wanted. */
static uint8_t mx_block(struct synth_row *g, uint64_t *state, uint64_t c, uint8_t *codes)
{
	float x[SYNTH_MX_BLOCK], most = 0, by;
	uint32_t scale;

	for (uint64_t i = 0; i < SYNTH_MX_BLOCK; i++) {
		x[i] = value(g, state, c + i);
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
	}
	scale = od_f32_bits(most) >> 23;
	scale = scale > 2 ? scale - 2 : 0;
	by = od_bits_f32((254 - scale) << 23);
	for (size_t i = 0; codes != NULL && i < SYNTH_MX_BLOCK; i += 2)
		codes[i / 2] = (uint8_t)(e2m1(x[i] * by) | e2m1(x[i + 1] * by) << 4);
	return (uint8_t)scale;
}

void synth_row_fill(struct synth_row *g, uint64_t row, uint64_t begin, uint64_t end, void *out)
{
	uint16_t *h = out;
	uint8_t *b = out;
	float *f = out;
	uint64_t s;

	if (begin == 0)
		start_row(g, row);
	s = g->state; /* in a register */
	/* Checkpoints that are made here have no other formats. */
	if (g->dtype == OD_BF16)
		for (uint64_t c = begin; c < end; c++)
			*h++ = od_f32_bf16(value(g, &s, c));
	else if (g->dtype == OD_F16)
		for (uint64_t c = begin; c < end; c++)
			*h++ = synth_f32_f16(value(g, &s, c));
	else if (g->dtype == OD_F32)
		for (uint64_t c = begin; c < end; c++)
			*f++ = value(g, &s, c);
	else if (g->dtype == OD_F8_E4M3 || g->dtype == OD_F8_E5M2)
		for (uint64_t c = begin; c < end; c++)
			*b++ = synth_f32_f8(g->dtype, value(g, &s, c));
	else if (g->dtype == OD_F4_E2M1)
		for (uint64_t c = begin; c < end; c += SYNTH_MX_BLOCK, b += SYNTH_MX_BLOCK / 2)
			mx_block(g, &s, c, b);
	else if (g->dtype == OD_F8_E8M0)
		for (uint64_t c = begin; c < end; c++)
			*b++ = mx_block(g, &s, c * SYNTH_MX_BLOCK, NULL);
	g->state = s;
}
