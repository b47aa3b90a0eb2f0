/* attend, softmax, rmsnorm, silu_mul and the conversions of every table: bits of the contract or of the
 * scalar table, and accuracy against double arithmetic. */
#include "common/compute/cpu/cpu_scalar.h"
#include "tests/unit/compute_util.h"

#include <float.h>

#define MAX_N 300

static const struct od_backend *oracle(void)
{
	const struct od_backend *be;

	assert_int_equal(od_backend_cpu(&be, OD_CPU_SCALAR, OD_PROFILE_F32, NULL), OD_OK);
	return be;
}

static float greater(float a, float b)
{
	return a > b ? a : b;
}

/* softmax with the lanes of the contract and od_exp. */
static void softmax_by_hand(float *x, size_t n)
{
	float max = -INFINITY, lane[16] = { 0 }, sum;

	for (size_t i = 0; i < n; i++)
		max = greater(x[i], max);
	for (size_t i = 0; i < n; i++) {
		x[i] = od_exp(x[i] - max);
		lane[i % 16] += x[i];
	}
	sum = fold16(lane);
	for (size_t i = 0; i < n; i++)
		x[i] = one_nan(x[i] / sum);
}

static void softmax_bits(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 21;

	for (size_t n = 1; n < MAX_N; n += n < 70 ? 1 : 23) {
		float *x = random_row(&seed, n, PLAIN), *y = exact(n, sizeof(float));
		float range = n % 3 == 0 ? 100.0f : 9.0f;
		/* exp and sums; and x - max is rounded to f32. */
		double sum = 0, off = 4e-7 + 0x1p-24 * 2 * (double)range;

		for (size_t i = 0; i < n; i++)
			x[i] *= range;
		x[n / 2] = n % 5 == 0 ? -INFINITY : x[n / 2];
		memcpy(y, x, n * sizeof(float));
		if (n > 1) /* n = 1 at a multiple of 5 would be all -infinity, which is NaN */
			for (size_t i = 0; i < n; i++)
				sum += exp((double)x[i]);
		be->softmax(y, n);
		for (size_t i = 0; i < n && n > 1; i++) {
			double want = exp((double)x[i]) / sum;

			assert_true(fabs((double)y[i] - want) <= off * want + 1e-44);
		}
		softmax_by_hand(x, n);
		assert_bits("softmax", y, x, n);
		free(x), free(y);
	}
}

static void softmax_odd(void **state)
{
	const struct od_backend *be = table_of(state);
	float equal[3] = { 7, 7, 7 }, low[2] = { -INFINITY, -INFINITY }, nan[3] = { 1, NAN, 2 }, one[1] = { -3e38f };
	uint64_t seed = 22;

	be->softmax(equal, 3);
	assert_true(equal[0] == 1.0f / 3 && equal[2] == 1.0f / 3);
	be->softmax(low, 2);
	assert_int_equal(od_f32_bits(low[0]), 0x7fc00000u);
	be->softmax(nan, 3);
	assert_int_equal(od_f32_bits(nan[0]), 0x7fc00000u);
	be->softmax(one, 1);
	assert_true(one[0] == 1.0f);
	for (size_t n = 1; n < 90; n++) {
		float *x = random_row(&seed, n, WILD), *y = exact(n, sizeof(float));

		memcpy(y, x, n * sizeof(float));
		be->softmax(y, n);
		oracle()->softmax(x, n);
		assert_bits("softmax of odd numbers", y, x, n);
		free(x), free(y);
	}
}

static void rmsnorm_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 23;

	for (size_t n = 1; n < 200; n++) {
		enum kind kind = (enum kind)(n % N_KINDS);
		float *x = random_row(&seed, n, kind), *w = random_row(&seed, n, kind);
		float *y = exact(n, sizeof(float)), *want = exact(n, sizeof(float)), r;
		double square = 0;

		r = 1.0f / sqrtf(lanes_dot(OD_F32, x, 0, x, n) / (float)n + 1e-5f);
		for (size_t i = 0; i < n; i++) {
			square += (double)x[i] * (double)x[i];
			want[i] = one_nan(x[i] * r * w[i]);
		}
		be->rmsnorm(y, x, w, n, 1e-5f);
		assert_bits("rmsnorm", y, want, n);
		for (size_t i = 0; i < n && kind == PLAIN; i++) {
			double exact_y = (double)x[i] / sqrt(square / (double)n + 1e-5) * (double)w[i];

			assert_true(fabs((double)y[i] - exact_y) <= 1e-6 * fabs(exact_y));
		}
		for (size_t i = 0; i < n; i++)
			want[i] = one_nan(x[i] * r);
		be->rmsnorm(y, x, NULL, n, 1e-5f);
		assert_bits("rmsnorm without weights", y, want, n);
		for (size_t i = 0; i < n; i++)
			want[i] = one_nan(x[i] * r * w[i]);
		be->rmsnorm(x, x, w, n, 1e-5f);
		assert_bits("rmsnorm in place", x, want, n);
		free(x), free(w), free(y), free(want);
	}
}

static void layernorm_by_hand(const float *x, const float *w, const float *b, float *y, size_t n, float eps)
{
	float lane[16] = { 0 }, *d = exact(n, sizeof(float)), mean, by;

	for (size_t i = 0; i < n; i++)
		lane[i % 16] += x[i];
	mean = fold16(lane) / (float)n;
	for (size_t i = 0; i < n; i++)
		d[i] = x[i] - mean;
	by = 1.0f / sqrtf(lanes_dot(OD_F32, d, 0, d, n) / (float)n + eps);
	for (size_t i = 0; i < n; i++)
		y[i] = one_nan(d[i] * by * w[i] + b[i]);
	free(d);
}

/* Against plain arithmetic in double. */
static void assert_layernorm(const float *x, const float *w, const float *b, const float *y, size_t n, double eps)
{
	double mean = 0, square = 0;

	for (size_t i = 0; i < n; i++)
		mean += (double)x[i] / (double)n;
	for (size_t i = 0; i < n; i++)
		square += ((double)x[i] - mean) * ((double)x[i] - mean);
	for (size_t i = 0; i < n; i++) {
		const double by = (double)w[i] / sqrt(square / (double)n + eps), product = ((double)x[i] - mean) * by;

		assert_true(fabs((double)y[i] - product - (double)b[i]) <=
			    1e-6 * (fabs(product) + fabs((double)b[i]) + fabs(mean * by) + fabs((double)x[i] * by)));
	}
}

static void layernorm_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 31;

	for (size_t n = 1; n < 200; n++) {
		enum kind kind = (enum kind)(n % N_KINDS);
		float *x = random_row(&seed, n, kind), *w = random_row(&seed, n, kind), *b = random_row(&seed, n, kind);
		float *y = exact(n, sizeof(float)), *want = exact(n, sizeof(float));

		layernorm_by_hand(x, w, b, want, n, 1e-5f);
		be->layernorm(y, x, w, b, n, 1e-5f);
		assert_bits("layernorm", y, want, n);
		if (kind == PLAIN)
			assert_layernorm(x, w, b, y, n, 1e-5);
		be->layernorm(x, x, w, b, n, 1e-5f);
		assert_bits("layernorm in place", x, want, n);
		free(x), free(w), free(b), free(y), free(want);
	}
}

static void silu_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 24;

	for (size_t n = 1; n < 150; n++) {
		float *g = random_row(&seed, n, n % 4 == 0 ? WILD : PLAIN), *u = random_row(&seed, n, PLAIN);
		float *want = exact(n, sizeof(float));

		for (size_t i = 0; i < n; i++) {
			double gd;

			g[i] *= 20;
			gd = (double)g[i];
			want[i] = one_nan(g[i] / (1 + od_exp(-g[i])) * u[i]);
			if (fabs(gd) < 30) {
				gd = gd / (1 + exp(-gd)) * (double)u[i];
				assert_true(fabs((double)want[i] - gd) <= 4e-7 * fabs(gd) + 1e-44);
			}
		}
		be->silu_mul(g, u, n);
		assert_bits("silu_mul", g, want, n);
		free(g), free(u), free(want);
	}
}

/* exp over its whole range is the same in every table: seen through silu. */
static void silu_everywhere(void **state)
{
	const struct od_backend *be = table_of(state);
	float g[MAX_N], want[MAX_N], u[MAX_N];
	uint64_t seed = 25;

	for (int round = 0; round < 300; round++) {
		for (size_t i = 0; i < MAX_N; i++) {
			g[i] = want[i] =
				round % 2 ? od_bits_f32((uint32_t)random_u64(&seed)) : random_unit(&seed) * 110;
			u[i] = 1;
		}
		be->silu_mul(g, u, MAX_N);
		oracle()->silu_mul(want, u, MAX_N);
		assert_bits("silu", g, want, MAX_N);
	}
}

static float gelu_by_hand(float g, float u)
{
	const float two_z = g * fmaf(g * g, 0x1.2444f2p-4f, 0x1.988454p+0f);

	return one_nan(g / (1 + od_exp(-two_z)) * u);
}

static float clamped_by_hand(float g, float u, float limit)
{
	if (isnan(g) || isnan(u))
		return one_nan(NAN);
	g = g < limit ? g : limit;
	u = u < limit ? u : limit;
	u = u > -limit ? u : -limit;
	return one_nan((u + 1) * (g / (1 + od_exp(g * -1.702f))));
}

static double gelu_double(double g, double u)
{
	return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
}

static double clamped_double(double g, double u, double limit)
{
	g = fmin(g, limit);
	u = fmax(-limit, fmin(u, limit));
	return (u + 1) * g / (1 + exp(-1.702 * g));
}

static void gelu_and_clamped_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 31;

	for (size_t n = 1; n < 150; n++) {
		float *g = random_row(&seed, n, n % 4 == 0 ? WILD : PLAIN), *u = random_row(&seed, n, PLAIN);
		float *gelu = exact(n, sizeof(float)), *clamped = exact(n, sizeof(float)),
		      *g2 = exact(n, sizeof(float));
		const float limit = n % 3 == 0 ? 7.0f : 2.5f;

		for (size_t i = 0; i < n; i++) {
			g2[i] = g[i] *= 10;
			u[i] *= n % 2 == 0 ? 10 : 1;
			gelu[i] = gelu_by_hand(g[i], u[i]);
			clamped[i] = clamped_by_hand(g[i], u[i], limit);
			if (fabs((double)g[i]) < 4)
				assert_true(fabs((double)gelu[i] - gelu_double((double)g[i], (double)u[i])) <=
					    1e-6 * fabs((double)u[i]));
			if (fabs((double)g[i]) < 30)
				assert_true(fabs((double)clamped[i] -
						 clamped_double((double)g[i], (double)u[i], (double)limit)) <= 2e-5);
		}
		be->gelu_mul(g, u, n);
		assert_bits("gelu_mul", g, gelu, n);
		be->clamped_mul(g2, u, n, limit);
		assert_bits("clamped_mul", g2, clamped, n);
		free(g), free(u), free(gelu), free(clamped), free(g2);
	}
}

/* Infinities and NaN too: the same in every table. */
static void gelu_and_clamped_everywhere(void **state)
{
	const struct od_backend *be = table_of(state);
	float g[MAX_N], want[MAX_N], u[MAX_N];
	uint64_t seed = 32;

	for (int round = 0; round < 300; round++) {
		for (size_t i = 0; i < MAX_N; i++) {
			g[i] = want[i] =
				round % 4 < 2 ? od_bits_f32((uint32_t)random_u64(&seed)) : random_unit(&seed) * 110;
			u[i] = round % 3 == 0 ? od_bits_f32((uint32_t)random_u64(&seed)) : random_unit(&seed) * 9;
		}
		if (round % 2 == 0) {
			be->gelu_mul(g, u, MAX_N);
			oracle()->gelu_mul(want, u, MAX_N);
		} else {
			be->clamped_mul(g, u, MAX_N, 7);
			oracle()->clamped_mul(want, u, MAX_N, 7);
		}
		assert_bits(round % 2 == 0 ? "gelu" : "clamped", g, want, MAX_N);
	}
}

static float cap_by_hand(float x, float cap)
{
	const float z = fmaxf(fminf(x / cap, 20), -20), e = od_exp(z * -2);

	return isnan(x) ? one_nan(x) : cap * ((1 - e) / (1 + e));
}

static void soft_cap_rows(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 33;

	for (size_t n = 1; n < 150; n++) {
		float *x = random_row(&seed, n, n % 4 == 0 ? WILD : PLAIN), *want = exact(n, sizeof(float));
		const float cap = n % 3 == 0 ? 30.0f : 1.5f;

		for (size_t i = 0; i < n; i++) {
			x[i] *= n % 4 != 0 ? 40 : 1;
			want[i] = cap_by_hand(x[i], cap);
			if (!isnan(x[i]))
				assert_true(fabs((double)want[i] - (double)cap * tanh((double)x[i] / (double)cap)) <=
					    2e-7 * (double)cap);
		}
		be->soft_cap(x, n, cap);
		assert_bits("soft_cap", x, want, n);
		free(x), free(want);
	}
}

/* Infinities and NaN too: the same in every table, and never beyond the cap. */
static void soft_cap_everywhere(void **state)
{
	const struct od_backend *be = table_of(state);
	float x[MAX_N], want[MAX_N];
	uint64_t seed = 34;

	for (int round = 0; round < 300; round++) {
		for (size_t i = 0; i < MAX_N; i++)
			x[i] = want[i] = od_bits_f32((uint32_t)random_u64(&seed));
		x[0] = want[0] = INFINITY;
		x[1] = want[1] = -INFINITY;
		be->soft_cap(x, MAX_N, 30);
		oracle()->soft_cap(want, MAX_N, 30);
		assert_bits("soft_cap", x, want, MAX_N);
		assert_true(x[0] == 30 && x[1] == -30);
		for (size_t i = 0; i < MAX_N; i++)
			assert_true(isnan(x[i]) || fabsf(x[i]) <= 30);
	}
}

static void axpy_and_bf16(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 26;

	for (size_t n = 1; n < 100; n++) {
		enum kind kind = (enum kind)(n % N_KINDS);
		float *x = random_row(&seed, n, kind), *y = random_row(&seed, n, kind);
		float *want = exact(n, sizeof(float)), a = random_unit(&seed);
		uint16_t *h = exact(n, sizeof(*h));

		for (size_t i = 0; i < n; i++)
			want[i] = one_nan(fmaf(a, x[i], y[i]));
		be->axpy(y, a, x, n);
		assert_bits("axpy", y, want, n);
		be->f32_to_bf16(h, x, n);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(h[i], od_f32_bf16(x[i]));
		be->bf16_to_f32(y, h, n);
		be->round_bf16(x, n);
		for (size_t i = 0; i < n; i++)
			want[i] = od_bits_f32((uint32_t)h[i] << 16);
		assert_bits("bf16_to_f32", y, want, n);
		assert_bits("round_bf16", x, want, n);
		free(x), free(y), free(want), free(h);
	}
}

static void bf16_every_exponent(void **state)
{
	const struct od_backend *be = table_of(state);
	float x[64];
	uint16_t h[64];

	for (uint64_t u = 0; u < 0x100000000u; u += 64 * 0x1001) {
		for (size_t i = 0; i < 64; i++)
			x[i] = od_bits_f32((uint32_t)(u + i * 0x1001));
		be->f32_to_bf16(h, x, 64);
		for (size_t i = 0; i < 64; i++)
			assert_int_equal(h[i], od_f32_bf16(x[i]));
	}
}

/* Keys [end][k_dim] and values [end][v_dim] of a sequence, and where attend reads them: in pages that lie anywhere in
 * mem. What it must not touch (positions before begin and behind end, what is between rows, pages that are not the
 * sequence's) is NaN. */
struct cache {
	struct od_attn a;
	float *q, *out, *want, sinks[7];
	void *k, *v;
	bool shared; /* a value is the beginning of its key, and lies there */
	unsigned char *mem;
	uint32_t *table;
	size_t mem_bytes;
};

static void cache_new(struct cache *c, uint64_t *seed, enum od_dtype t, size_t begin, size_t end, size_t k_dim,
		      size_t v_dim, bool shared)
{
	const size_t each = od_dtype_bytes(t), n_heads = 1 + random_below(seed, 7);

	*c = (struct cache){ .q = random_row(seed, n_heads * k_dim, PLAIN),
			     .k = random_weights(seed, t, end * k_dim, PLAIN),
			     .v = random_weights(seed, t, end * v_dim, PLAIN),
			     .shared = shared,
			     .out = exact(n_heads * v_dim, sizeof(float)),
			     .want = exact(n_heads * v_dim, sizeof(float)) };
	c->a = (struct od_attn){ .n_heads = n_heads,
				 .q = c->q,
				 .kv_dtype = t,
				 .k_dim = k_dim,
				 .v_dim = v_dim,
				 .begin = begin,
				 .end = end,
				 .scale = 3.0f / sqrtf((float)k_dim),
				 .out = c->out };
	for (size_t h = 0; h < n_heads; h++)
		c->sinks[h] = random_unit(seed) * 6;
	assert_true(!shared || v_dim <= k_dim);
	for (size_t p = 0; shared && p < end; p++)
		memcpy((char *)c->v + p * v_dim * each, (char *)c->k + p * k_dim * each, v_dim * each);
}

/* n_pages of the sequence at n_pool_pages in any order; last_is_last: its last page is where memory ends. */
static void draw_table(struct cache *c, uint64_t *seed, size_t n_pages, size_t n_pool_pages, bool last_is_last)
{
	uint32_t *page_at = exact(n_pool_pages, sizeof(*page_at));

	for (size_t i = 0; i < n_pool_pages; i++) {
		size_t j = random_below(seed, i + 1);

		page_at[i] = page_at[j];
		page_at[j] = (uint32_t)i;
	}
	for (size_t i = 0; last_is_last && i < n_pool_pages; i++) {
		if (page_at[i] != n_pool_pages - 1)
			continue;
		page_at[i] = page_at[n_pages - 1];
		page_at[n_pages - 1] = (uint32_t)n_pool_pages - 1;
	}
	c->table = exact(n_pages, sizeof(*c->table));
	memcpy(c->table, page_at, n_pages * sizeof(*page_at));
	free(page_at);
}

/* Where rows of keys and of values lie, from the beginning of mem. */
struct layout {
	size_t k_at, v_at, k_row, v_row, k_page, v_page;
};

static struct layout draw_layout(const struct cache *c, uint64_t *seed, size_t n_pool_pages)
{
	const size_t each = od_dtype_bytes(c->a.kv_dtype);
	size_t k_row = (c->a.k_dim + random_below(seed, 3) * 24) * each,
	       v_row = (c->a.v_dim + random_below(seed, 3) * 24) * each;
	const size_t page = OD_KV_PAGE * (k_row + v_row) + random_below(seed, 2) * 64;
	const bool v_first = random_below(seed, 2) == 0, side_by_side = random_below(seed, 2) == 0;
	struct layout l = { .k_row = k_row, .v_row = v_row, .k_page = page, .v_page = page };

	if (c->shared) {
		l.v_row = k_row;
	} else if (side_by_side) { /* a page has both */
		l.k_at = v_first ? OD_KV_PAGE * v_row : 0;
		l.v_at = v_first ? 0 : OD_KV_PAGE * k_row;
	} else { /* all pages of one, then all of the other */
		l.k_page = OD_KV_PAGE * k_row + random_below(seed, 2) * 64;
		l.v_page = OD_KV_PAGE * v_row + random_below(seed, 2) * 192;
		l.k_at = v_first ? n_pool_pages * l.v_page : 0;
		l.v_at = v_first ? 0 : n_pool_pages * l.k_page;
	}
	return l;
}

/* The end of row p where page p / OD_KV_PAGE is place. */
static size_t row_end(size_t at, size_t page_at, size_t page, size_t p, size_t row, size_t bytes)
{
	return at + page_at * page + p % OD_KV_PAGE * row + bytes;
}

/* Every second time memory ends with the sequence's last row, so that a sanitizer sees what is read behind it. */
static void cache_lay_out(struct cache *c, uint64_t *seed)
{
	const struct od_attn *a = &c->a;
	const size_t k_row = a->k_dim * od_dtype_bytes(a->kv_dtype), v_row = a->v_dim * od_dtype_bytes(a->kv_dtype);
	const size_t n_pages = (a->end - 1) / OD_KV_PAGE + 1, n_pool_pages = n_pages + random_below(seed, 4),
		     last = a->end - 1;
	const bool tight = random_below(seed, 2) == 0;
	const struct layout l = draw_layout(c, seed, n_pool_pages);
	size_t k_end = row_end(l.k_at, n_pool_pages - 1, l.k_page, last, l.k_row, k_row);
	size_t v_end = row_end(l.v_at, n_pool_pages - 1, l.v_page, last, l.v_row, v_row);

	free(c->mem), free(c->table);
	c->mem_bytes = n_pool_pages * (l.k_page + l.v_page);
	if (tight)
		c->mem_bytes = k_end > v_end ? k_end : v_end;
	c->mem = exact(c->mem_bytes, 1);
	memset(c->mem, 0xff, c->mem_bytes);
	draw_table(c, seed, n_pages, n_pool_pages, tight);
	for (size_t p = a->begin; p < a->end; p++) {
		const size_t page_at = c->table[p / OD_KV_PAGE];

		if (!c->shared)
			memcpy(c->mem + row_end(l.v_at, page_at, l.v_page, p, l.v_row, 0),
			       (const char *)c->v + p * v_row, v_row);
		memcpy(c->mem + row_end(l.k_at, page_at, l.k_page, p, l.k_row, 0), (const char *)c->k + p * k_row,
		       k_row);
	}
	for (size_t i = 0; i < a->begin / OD_KV_PAGE; i++) /* pages behind a window may have been given away */
		c->table[i] = UINT32_MAX;
	c->a.k = c->mem + l.k_at;
	c->a.v = c->mem + l.v_at;
	c->a.table = c->table;
	c->a.k_page_bytes = l.k_page;
	c->a.v_page_bytes = l.v_page;
	c->a.k_row_bytes = l.k_row;
	c->a.v_row_bytes = l.v_row;
}

static void cache_free(struct cache *c)
{
	free(c->q), free(c->k), free(c->v), free(c->out), free(c->want), free(c->mem), free(c->table);
}

static size_t out_n(const struct cache *c)
{
	return c->a.n_heads * c->a.v_dim;
}

/* A head's sums over positions [first, last) of one block. */
struct partial {
	float max, sum, value[256];
};

static void partial_by_hand(const struct cache *c, const float *q, size_t first, size_t last, struct partial *to)
{
	const struct od_attn *a = &c->a;
	float score[OD_ATTN_BLOCK], lane[16] = { 0 };

	*to = (struct partial){ .max = -FLT_MAX };
	for (size_t p = first; p < last; p++) {
		score[p - first] = lanes_dot(a->kv_dtype, c->k, p * a->k_dim, q, a->k_dim) * a->scale;
		to->max = greater(score[p - first], to->max);
	}
	for (size_t p = first; p < last; p++) {
		const float e = od_exp(score[p - first] - to->max);

		lane[p % 16] += e;
		for (size_t d = 0; d < a->v_dim; d++)
			to->value[d] = fmaf(e, weight_at(a->kv_dtype, c->v, p * a->v_dim + d), to->value[d]);
	}
	to->sum = fold16(lane);
}

/* The contract of attend: blocks that know nothing of each other, folded in order. */
static void head_by_hand(const struct cache *c, const float *q, const float *sink, float *out)
{
	const struct od_attn *a = &c->a;
	const size_t first_block = a->begin / OD_ATTN_BLOCK, n = (a->end - 1) / OD_ATTN_BLOCK + 1 - first_block;
	struct partial *split = exact(n, sizeof(*split));
	float max = sink != NULL ? *sink : -FLT_MAX, sum = sink != NULL ? 1 : 0;

	memset(out, 0, a->v_dim * sizeof(float));
	for (size_t i = n; i-- > 0;) {
		const size_t b = (first_block + i) * OD_ATTN_BLOCK, end = b + OD_ATTN_BLOCK;

		partial_by_hand(c, q, b > a->begin ? b : a->begin, a->end < end ? a->end : end, &split[i]);
	}
	for (size_t i = 0; i < n; i++) {
		const float high = greater(max, split[i].max), keep = od_exp(max - high),
			    add = od_exp(split[i].max - high);

		for (size_t d = 0; d < a->v_dim; d++)
			out[d] = fmaf(split[i].value[d], add, out[d] * keep);
		sum = fmaf(split[i].sum, add, sum * keep);
		max = high;
	}
	for (size_t d = 0; d < a->v_dim; d++)
		out[d] = one_nan(out[d] / sum);
	free(split);
}

static void attend_by_hand(const struct cache *c, float *out)
{
	for (size_t h = 0; h < c->a.n_heads; h++)
		head_by_hand(c, c->q + h * c->a.k_dim, c->a.sinks != NULL ? &c->a.sinks[h] : NULL,
			     out + h * c->a.v_dim);
}

static void check_double(const struct cache *c, size_t h)
{
	const struct od_attn *a = &c->a;
	const float *q = c->q + h * a->k_dim, *out = c->out + h * a->v_dim;
	double sum = 0, max = -INFINITY, *e = exact(a->end, sizeof(double));

	for (size_t p = a->begin; p < a->end; p++) {
		e[p] = 0;
		for (size_t d = 0; d < a->k_dim; d++)
			e[p] += (double)q[d] * (double)weight_at(a->kv_dtype, c->k, p * a->k_dim + d);
		e[p] *= (double)a->scale;
		max = e[p] > max ? e[p] : max;
	}
	if (a->sinks != NULL) {
		max = fmax(max, (double)a->sinks[h]);
		sum = exp((double)a->sinks[h] - max);
	}
	for (size_t p = a->begin; p < a->end; p++)
		sum += e[p] = exp(e[p] - max);
	for (size_t d = 0; d < a->v_dim; d++) {
		double y = 0;

		for (size_t p = a->begin; p < a->end; p++)
			y += e[p] / sum * (double)weight_at(a->kv_dtype, c->v, p * a->v_dim + d);
		if (!(fabs((double)out[d] - y) <= 4e-6))
			fail_msg("[%zu,%zu) k_dim %zu, v_dim %zu: element %zu: expected %.9g, found %.9g", a->begin,
				 a->end, a->k_dim, a->v_dim, d, y, (double)out[d]);
	}
	free(e);
}

/* Spans of positions; pages of 64 and blocks of 256 begin and end within them. */
static const size_t spans[][2] = {
	{ 0, 63 },    { 0, 64 },    { 0, 65 },	  { 63, 64 },	{ 63, 65 },   { 64, 65 },   { 127, 193 }, { 130, 191 },
	{ 0, 1 },     { 0, 2 },	    { 0, 15 },	  { 0, 16 },	{ 0, 17 },    { 0, 100 },   { 0, 255 },	  { 0, 256 },
	{ 0, 257 },   { 0, 511 },   { 0, 512 },	  { 0, 513 },	{ 1, 2 },     { 15, 17 },   { 100, 300 }, { 255, 256 },
	{ 255, 257 }, { 256, 257 }, { 256, 512 }, { 250, 777 }, { 511, 513 }, { 303, 512 }, { 5, 1030 },
};

static void attend_spans(void **state)
{
	static const size_t dims[] = { 1, 5, 8, 16, 20, 64, 67, 80, 96, 128, 192, 256 };
	const struct od_backend *be = table_of(state);
	uint64_t seed = 27;
	size_t turn = 0;

	for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++) {
		for (int n = 0; n < 8; n++) { /* equal widths, then any two, then one place for both */
			const bool equal = n < 4, shared = n >= 6;
			const size_t a = dims[turn++ % 12], b = dims[turn * 5 % 12], k_dim = shared && b > a ? b : a;
			enum od_dtype t = n % 2 ? OD_BF16 : OD_F32;
			struct cache c;

			cache_new(&c, &seed, t, spans[i][0], spans[i][1], k_dim,
				  equal		  ? a :
				  shared && b > a ? a :
						    b,
				  shared);
			cache_lay_out(&c, &seed);
			c.a.sinks = i % 3 == 1 ? c.sinks : NULL;
			be->attend(&c.a);
			for (size_t h = 0; h < c.a.n_heads; h++)
				check_double(&c, h);
			attend_by_hand(&c, c.want);
			assert_bits("attend", c.out, c.want, out_n(&c));
			cache_free(&c);
		}
	}
}

/* Scores far apart, so that blocks are rescaled by anything between 0 and 1, and a negative scale. */
static void attend_rescales(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 28;

	for (int round = 0; round < 12; round++) {
		struct cache c;

		cache_new(&c, &seed, OD_F32, (size_t)round * 70, 900, 24, round % 5 == 4 ? 40 : 24, false);
		for (size_t p = c.a.begin; p < 900; p++)
			((float *)c.k)[p * 24] += (float)(round % 2 ? p : 900 - p) * 0.11f;
		cache_lay_out(&c, &seed);
		c.q[0] = round % 3 == 0 ? 4.0f : 0.2f;
		c.a.scale = round % 4 == 3 ? -0.7f : 0.7f;
		c.a.sinks = round % 3 == 1 ? c.sinks : NULL;
		be->attend(&c.a);
		attend_by_hand(&c, c.want);
		assert_bits("attend", c.out, c.want, out_n(&c));
		cache_free(&c);
	}
}

static void attend_odd(void **state)
{
	static const float poison[] = { INFINITY, -INFINITY, NAN, 3e38f };
	const struct od_backend *be = table_of(state);
	uint64_t seed = 29;

	for (size_t i = 0; i < 8; i++) {
		struct cache c;

		cache_new(&c, &seed, OD_F32, 3, 300, 19, 19, false);
		((float *)(i % 2 ? c.k : c.v))[40 * 19] = poison[i / 2];
		cache_lay_out(&c, &seed);
		be->attend(&c.a);
		memcpy(c.want, c.out, out_n(&c) * sizeof(float));
		oracle()->attend(&c.a);
		assert_bits("attend", c.want, c.out, out_n(&c));
		cache_free(&c);
	}
}

/* Positions whose scores are all -infinity weigh nothing beside others, block by block. */
static void attend_minus_infinity(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 35;
	struct cache c, rest;

	cache_new(&c, &seed, OD_F32, 0, 600, 8, 8, false);
	for (size_t p = 0; p < 512; p++)
		((float *)c.k)[p * 8] = -INFINITY;
	for (size_t h = 0; h < c.a.n_heads; h++)
		c.q[h * 8] = 1;
	cache_lay_out(&c, &seed);
	be->attend(&c.a);
	rest = c;
	rest.a.begin = 512;
	rest.a.out = c.want;
	be->attend(&rest.a);
	assert_bits("attend without what weighs nothing", c.out, c.want, out_n(&c));
	for (size_t i = 0; i < out_n(&c); i++)
		assert_false(isnan(c.out[i]));
	cache_free(&c);
}

/* Wherever the pages lie, and in whatever widths: the same bits. */
static void attend_anywhere(void **state)
{
	const struct od_backend *be = table_of(state);
	uint64_t seed = 30;

	for (int round = 0; round < 16; round++) {
		size_t begin = round % 4 == 3 ? 70 + (size_t)round * 10 : 0, end = begin + 1 + random_below(&seed, 700);
		size_t k_dim = 1 + random_below(&seed, 130),
		       v_dim = 1 + random_below(&seed, round % 4 < 2 ? 130 : k_dim), moved = 0;
		uint32_t first;
		struct cache c;

		cache_new(&c, &seed, round % 2 ? OD_BF16 : OD_F32, begin, end, k_dim, v_dim, round % 4 >= 2);
		cache_lay_out(&c, &seed);
		be->attend(&c.a);
		memcpy(c.want, c.out, out_n(&c) * sizeof(float));
		for (int n = 0; n < 8; n++) {
			first = c.table[(end - 1) / OD_KV_PAGE];
			cache_lay_out(&c, &seed);
			moved += c.table[(end - 1) / OD_KV_PAGE] != first;
			memset(c.out, 0xff, out_n(&c) * sizeof(float));
			be->attend(&c.a);
			assert_bits("attend elsewhere", c.out, c.want, out_n(&c));
		}
		assert_true(moved > 0);
		cache_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_ALL_TABLES(softmax_bits),
		ON_ALL_TABLES(softmax_odd),
		ON_ALL_TABLES(rmsnorm_rows),
		ON_ALL_TABLES(layernorm_rows),
		ON_ALL_TABLES(silu_rows),
		ON_ALL_TABLES(silu_everywhere),
		ON_ALL_TABLES(axpy_and_bf16),
		ON_ALL_TABLES(attend_spans),
		ON_ALL_TABLES(attend_rescales),
		ON_ALL_TABLES(attend_odd),
		ON_ALL_TABLES(attend_minus_infinity),
		ON_ALL_TABLES(attend_anywhere),
		ON_ALL_TABLES(bf16_every_exponent),
		ON_ALL_TABLES(gelu_and_clamped_rows),
		ON_ALL_TABLES(gelu_and_clamped_everywhere),
		ON_ALL_TABLES(soft_cap_rows),
		ON_ALL_TABLES(soft_cap_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
