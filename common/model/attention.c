#include "common/model/attention.h"

#include <math.h>
#include <string.h>

#define MIN_PIECE_TERMS 32768u /* multiply-adds; some microseconds, well above a hand-over */

void od_rope_frequencies(const struct od_config *cfg, float *inv_freq)
{
	/* pow in double, then rounded: its last bits differ between libraries, those of an f32 hardly ever. */
	for (uint32_t i = 0; i < cfg->head_dim / 2; i++) {
		float exponent = (float)(2 * i) / (float)cfg->head_dim;

		inv_freq[i] = 1.0f / (float)pow(cfg->rope_theta, exponent);
	}
}

void od_rope_angles(const struct od_config *cfg, const float *inv_freq, uint32_t position, float *cos_sin)
{
	uint32_t half = cfg->head_dim / 2;

	for (uint32_t i = 0; i < half; i++) {
		float angle = (float)position * inv_freq[i];
		double sine, cosine;

		od_sincos(angle, &sine, &cosine);
		cos_sin[i] = (float)cosine;
		cos_sin[half + i] = (float)sine;
	}
}

/* Element i of a head turns with element i + head_dim / 2 ("rotate half"), not with its neighbour. */
static void turn_heads(float *u, size_t n_heads, size_t head_dim, const float *cos_sin)
{
	size_t half = head_dim / 2;

	for (size_t h = 0; h < n_heads; h++, u += head_dim) {
		for (size_t i = 0; i < half; i++) {
			float a = u[i], b = u[half + i], c = cos_sin[i], s = cos_sin[half + i];

			u[i] = a * c - b * s;
			u[half + i] = b * c + a * s;
		}
	}
}

static void store_row(const struct od_backend *be, enum od_dtype dtype, void *to, const float *from, size_t n)
{
	if (dtype == OD_BF16)
		be->f32_to_bf16(to, from, n);
	else
		memcpy(to, from, n * sizeof(*from));
}

static void turn_and_store(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct od_attention *a = arg;
	const struct od_config *cfg = a->config;
	size_t kv_dim = od_config_kv_dim(cfg), q_dim = (size_t)cfg->n_heads * cfg->head_dim;

	(void)thread;
	for (size_t r = begin; r < end; r++) {
		const struct od_row *row = &a->rows[r];
		const float *cos_sin = a->cos_sin + r * cfg->head_dim;
		enum od_dtype dtype = od_seq_state_dtype(row->seq);
		float *k = a->k + r * kv_dim, *v = a->v + r * kv_dim;

		turn_heads(a->q + r * q_dim, cfg->n_heads, cfg->head_dim, cos_sin);
		turn_heads(k, cfg->n_kv_heads, cfg->head_dim, cos_sin);
		store_row(a->backend, dtype, od_seq_state_k(row->seq, a->layer, row->position), k, kv_dim);
		store_row(a->backend, dtype, od_seq_state_v(row->seq, a->layer, row->position), v, kv_dim);
	}
}

/* Item i is head i % n_heads of row i / n_heads: neighbours share a kv head, so it is still in the cache. */
static void attend_heads(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct od_attention *a = arg;
	const struct od_config *cfg = a->config;
	size_t d = cfg->head_dim, group = cfg->n_heads / cfg->n_kv_heads, window = cfg->sliding_window;

	(void)thread;
	for (size_t i = begin; i < end; i++) {
		const struct od_row *row = &a->rows[i / cfg->n_heads];
		size_t seen = (size_t)row->position + 1;
		enum od_dtype dtype = od_seq_state_dtype(row->seq);
		size_t kv_offset = i % cfg->n_heads / group * d * od_dtype_bytes(dtype);
		struct od_attn attn = {
			.q = a->q + i * d,
			.k = (const char *)od_seq_state_k(row->seq, a->layer, 0) + kv_offset,
			.v = (const char *)od_seq_state_v(row->seq, a->layer, 0) + kv_offset,
			.kv_dtype = dtype,
			.stride = od_config_kv_dim(cfg),
			.head_dim = d,
			.begin = window != 0 && seen > window ? seen - window : 0,
			.end = seen,
			.scale = (float)(1.0 / sqrt((double)d)),
			.out = a->out + i * d,
		};

		a->backend->attend(&attn);
	}
}

/* Heads that are worth handing to another thread: near the start of a text all of them are one small piece. */
static size_t heads_a_piece(const struct od_attention *a)
{
	size_t most = 1, window = a->config->sliding_window;

	for (size_t r = 0; r < a->n_rows; r++)
		if (a->rows[r].position >= most)
			most = (size_t)a->rows[r].position + 1;
	if (window != 0 && most > window)
		most = window;
	return 1 + MIN_PIECE_TERMS / (2 * most * a->config->head_dim);
}

void od_attention_run(const struct od_attention *a)
{
	struct od_attention job = *a; /* od_pool_for takes no const */

	/* All rows are stored before any attends: rows of one sequence see each other. */
	od_pool_for(a->pool, a->n_rows, 4, turn_and_store, &job);
	od_pool_for(a->pool, a->n_rows * a->config->n_heads, heads_a_piece(a), attend_heads, &job);
}
