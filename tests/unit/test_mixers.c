/* What the mixers mean: grouped-query attention with all that families add to it, and latent attention, against double
 * precision in the plainest way; for the latter keys and values are made of every latent, where the mixer never does. Two
 * sequences in steps of any size give the same bits, on any CPU. */
#include <string.h>

#include "common/base/mem.h"
#include "common/model/rope.h"
#include "common/model/seq_state.h"
#include "tests/unit/config_util.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_model.h"

enum { HIDDEN = 40, SEQUENCES = 2, LONG = 85, SHORT = 70, ROWS = LONG + SHORT, WIDEST = 64 };

struct variant {
	const char *name;
	const struct od_mixer_ops *mixer;
	struct od_mixer mix;
	struct od_rope rope; /* theta and what differs from a plain one */
	enum od_dtype dtype; /* of matrices */
};

static const struct variant variants[] = {
	{ "gqa",
	  &od_mixer_gqa,
	  { .n_heads = 4, .n_kv_heads = 2, .k_dim = 8, .v_dim = 8, .scale = 0.5f },
	  { .dims = 8 },
	  OD_F32 },
	{ "biases and a window",
	  &od_mixer_gqa,
	  { .n_heads = 4,
	    .n_kv_heads = 4,
	    .k_dim = 10,
	    .v_dim = 10,
	    .scale = 0.3f,
	    .window = 10,
	    .qkv_bias = true,
	    .o_bias = true },
	  { .dims = 10 },
	  OD_BF16 },
	{ "norm of heads, turned in part, wide values",
	  &od_mixer_gqa,
	  { .n_heads = 4, .n_kv_heads = 2, .k_dim = 8, .v_dim = 12, .scale = 1, .qk_norm = OD_QK_NORM_HEAD, .norm_eps = 1e-2f },
	  { .dims = 4 },
	  OD_F32 },
	{ "norm of rows, clipped, neighbours, narrow values",
	  &od_mixer_gqa,
	  { .n_heads = 6,
	    .n_kv_heads = 3,
	    .k_dim = 8,
	    .v_dim = 6,
	    .scale = 1.5f,
	    .qk_norm = OD_QK_NORM_ROW,
	    .norm_eps = 1e-5f,
	    .clip = 0.75f },
	  { .dims = 8, .neighbours = true },
	  OD_F16 },
	{ "all of it, one kv head, longer turns",
	  &od_mixer_gqa,
	  { .n_heads = 5,
	    .n_kv_heads = 1,
	    .k_dim = 12,
	    .v_dim = 9,
	    .scale = 0.8f,
	    .window = 33,
	    .qk_norm = OD_QK_NORM_HEAD,
	    .norm_eps = 1e-6f,
	    .clip = 1.1f,
	    .qkv_bias = true },
	  { .dims = 6,
	    .neighbours = true,
	    .magnitude = 1.25f,
	    .factor = 4,
	    .beta_fast = 32,
	    .beta_slow = 1,
	    .original_ctx = 64 },
	  OD_F32 },
	{ "mla",
	  &od_mixer_mla,
	  { .n_heads = 3,
	    .n_kv_heads = 1,
	    .k_dim = 10,
	    .nope_dim = 6,
	    .v_dim = 5,
	    .kv_rank = 12,
	    .scale = 0.9f,
	    .norm_eps = 1e-6f },
	  { .dims = 4, .neighbours = true },
	  OD_F32 },
	{ "mla with queries through a latent",
	  &od_mixer_mla,
	  { .n_heads = 4,
	    .n_kv_heads = 1,
	    .k_dim = 11,
	    .nope_dim = 5,
	    .v_dim = 14,
	    .kv_rank = 21,
	    .q_rank = 17,
	    .scale = 0.7f,
	    .norm_eps = 1e-3f },
	  { .dims = 6,
	    .neighbours = true,
	    .magnitude = 1.1f,
	    .factor = 8,
	    .beta_fast = 32,
	    .beta_slow = 1,
	    .original_ctx = 40 },
	  OD_BF16 },
	{ "mla with a window, by halves",
	  &od_mixer_mla,
	  { .n_heads = 2,
	    .n_kv_heads = 1,
	    .k_dim = 16,
	    .nope_dim = 8,
	    .v_dim = 8,
	    .kv_rank = 33,
	    .scale = 0.5f,
	    .window = 20,
	    .norm_eps = 1e-6f },
	  { .dims = 8 },
	  OD_F16 },
};
#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

/* Row i of all: positions of two sequences in turn, the longer one's alone at last. */
static uint32_t seq_of(uint32_t i)
{
	return i < 2 * SHORT ? i % 2 : 0;
}

static uint32_t position_of(uint32_t i)
{
	return i < 2 * SHORT ? i / 2 : i - SHORT;
}

static float input(uint32_t row, uint32_t i)
{
	return (float)tiny_draw(8, 3000 + seq_of(row), position_of(row) * HIDDEN + i, 1 << 16) / (float)(1 << 15);
}

static void make_model(struct tiny_model *t, const struct variant *v, enum od_profile profile)
{
	struct od_config c = { .family = &od_family_mixtral, .hidden = HIDDEN, .vocab = 4, .n_experts = 1, .top_k = 1,
			       .intermediate = 1, .ctx_max = LONG, .rms_eps = 1e-5f };
	struct od_layer_spec l = { .mixer = v->mixer, .mix = v->mix, .ffn = OD_FFN_MOE };
	struct od_rope rope = v->rope;
	struct od_err err = { 0 };

	rope.theta = 100; /* so that all pairs turn within the rows that there are */
	rope.magnitude = rope.magnitude != 0 ? rope.magnitude : 1;
	must(od_config_add_rope(&c, &rope, &l.mix.rope, &err), &err);
	must(od_config_add_layer(&c, &l, &err), &err);
	tiny_make(t, v->name, &c, 21, 1);
	t->profile = profile;
	t->dense_dtype = t->attention_dtype = v->dtype;
}

/* ---- the mixer on a device ---- */

struct bench {
	struct tiny_model t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_state_pool *pool;
	struct od_seq_state *seq[SEQUENCES];
	struct od_buf *info, *tables, *angles, *x, *y, *scratch;
	struct od_mix_call call;
};

static void make_call(struct bench *b)
{
	const struct od_config *c = &b->t.cfg;
	const uint32_t table_pages = od_state_pages(LONG), dims = c->rope[0].dims;
	const uint64_t scratch = c->kind[0].mixer->scratch_bytes(c, &c->kind[0].mix, ROWS);

	b->info = buf_new(b->device, ROWS * sizeof(struct od_row_info));
	b->tables = buf_new(b->device, SEQUENCES * table_pages * sizeof(uint32_t));
	b->angles = buf_new(b->device, ROWS * dims * sizeof(float));
	b->x = buf_new(b->device, ROWS * HIDDEN * sizeof(float));
	b->y = buf_new(b->device, ROWS * HIDDEN * sizeof(float));
	b->scratch = buf_new(b->device, scratch);
	b->call = (struct od_mix_call){ .device = b->device,
					.config = c,
					.spec = &c->kind[0],
					.w = &b->weights.dense.layer[0],
					.profile = b->t.profile,
					.max_rows = ROWS,
					.rows = od_buf_ref(b->info, 0),
					.turn = { .angles = od_buf_ref(b->angles, 0), .dims = dims,
						  .neighbours = c->rope[0].neighbours },
					.x = od_buf_ref(b->x, 0),
					.y = od_buf_ref(b->y, 0),
					.scratch = od_buf_ref(b->scratch, 0) };
	for (uint32_t i = 0, n = od_state_pool_streams(b->pool, 0, b->call.stream); i < n; i++) {
		b->call.stream[i].tables = od_buf_ref(b->tables, 0);
		b->call.stream[i].table_pages = table_pages;
	}
	for (uint32_t q = 0; q < SEQUENCES; q++)
		put_at(b->device, od_buf_ref(b->tables, (uint64_t)q * table_pages * sizeof(uint32_t)),
		       od_seq_state_pages(b->seq[q]), od_seq_state_n_pages(b->seq[q]) * sizeof(uint32_t));
}

static void bench_open(struct bench *b, const struct variant *v, enum od_profile profile, enum od_cpu cpu, unsigned threads)
{
	struct od_err err = { 0 };

	make_model(&b->t, v, profile);
	b->device = device_new(cpu, threads);
	tiny_place(&b->weights, &b->t, b->device);
	must(od_state_pool_new(&b->pool, b->device, &b->t.cfg, profile, LONG, SEQUENCES, &err), &err);
	for (uint32_t q = 0; q < SEQUENCES; q++)
		must(od_seq_state_new(&b->seq[q], b->pool, &err), &err);
	for (uint32_t n = 1; n <= LONG; n++) /* pages of the two in turn */
		for (uint32_t q = 0; q < SEQUENCES; q++)
			od_seq_state_reserve(b->seq[q], n);
	make_call(b);
}

static void bench_close(struct bench *b)
{
	struct od_buf *const bufs[] = { b->info, b->tables, b->angles, b->x, b->y, b->scratch };

	for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
		od_buf_free(bufs[i]);
	for (uint32_t q = 0; q < SEQUENCES; q++)
		od_seq_state_free(b->seq[q]);
	od_state_pool_free(b->pool);
	tiny_weights_free(&b->weights);
	od_device_free(b->device);
	tiny_unload(&b->t);
}

/* Cosine and sine of the pair at the position, as f32s. The angle is one too (Hugging Face). */
static void turn_of(const struct od_rope *rope, uint32_t pair, uint32_t position, float *cosine, float *sine)
{
	float inv_freq[WIDEST], angle;

	od_rope_frequencies(rope, inv_freq);
	angle = (float)position * inv_freq[pair];
	*cosine = (float)(cos((double)angle) * (double)rope->magnitude);
	*sine = (float)(sin((double)angle) * (double)rope->magnitude);
}

/* Rows [first, first + n) through the mixer; x and y in one place when asked. */
static void run_rows(struct bench *b, uint32_t first, uint32_t n, bool in_place, float *out)
{
	const struct od_rope *rope = &b->t.cfg.rope[0];
	const uint32_t dims = rope->dims;
	struct od_row_info info[ROWS];
	float x[ROWS * HIDDEN], angles[ROWS * WIDEST];

	b->call.max_position = 0;
	for (uint32_t r = 0; r < n; r++) {
		const uint32_t position = position_of(first + r);

		info[r] = (struct od_row_info){ .position = position, .table = seq_of(first + r) };
		b->call.max_position = position > b->call.max_position ? position : b->call.max_position;
		for (uint32_t i = 0; i < HIDDEN; i++)
			x[r * HIDDEN + i] = input(first + r, i);
		for (uint32_t i = 0; i < dims / 2; i++)
			turn_of(rope, i, position, &angles[r * dims + i], &angles[r * dims + dims / 2 + i]);
	}
	b->call.n_rows = n;
	b->call.y = in_place ? b->call.x : od_buf_ref(b->y, 0);
	put_at(b->device, b->call.rows, info, n * sizeof(*info));
	put_at(b->device, b->call.x, x, n * HIDDEN * sizeof(*x));
	put_at(b->device, b->call.turn.angles, angles, n * dims * sizeof(*angles));
	b->call.spec->mixer->run(&b->call);
	sync_device(b->device);
	get_at(b->device, out, b->call.y, n * HIDDEN * sizeof(*out));
}

/* All rows, in steps of so many; out [ROWS][HIDDEN]. */
static void run_all(const struct variant *v, enum od_profile profile, enum od_cpu cpu, unsigned threads, uint32_t step,
		    float *out)
{
	struct bench b;

	bench_open(&b, v, profile, cpu, threads);
	for (uint32_t first = 0; first < ROWS; first += step)
		run_rows(&b, first, ROWS - first < step ? ROWS - first : step, first / step % 2 == 1, out + first * HIDDEN);
	bench_close(&b);
}

/* ---- the same in double ---- */

/* A layer's weights; NULL where it has none. */
struct host_weights {
	double *w[OD_N_ROLES];
	uint64_t n_in[OD_N_ROLES];
};

static void load_weights(struct host_weights *h, const struct bench *b)
{
	for (int role = 0; role < OD_N_ROLES; role++) {
		const struct od_weight *w = &b->weights.dense.layer[0].w[role];
		const size_t n = w->n_out * (w->n_in > 0 ? w->n_in : 1);
		void *raw;

		h->w[role] = NULL;
		h->n_in[role] = w->n_in;
		if (w->data.buf == NULL)
			continue;
		raw = copy_at(b->device, w->data, n * od_dtype_bytes(w->dtype));
		h->w[role] = malloc(n * sizeof(double));
		assert_non_null(h->w[role]);
		for (size_t i = 0; i < n; i++)
			h->w[role][i] = w->dtype == OD_F32  ? (double)((float *)raw)[i] :
					w->dtype == OD_BF16 ? (double)od_bf16_f32(((uint16_t *)raw)[i]) :
							      (double)od_f16_f32(((uint16_t *)raw)[i]);
		free(raw);
	}
}

static void free_weights(struct host_weights *h)
{
	for (int role = 0; role < OD_N_ROLES; role++)
		free(h->w[role]);
}

static double dot(const double *a, const double *b, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* y [n] = w x + bias, both by role. */
static void linear(const struct host_weights *h, enum od_role role, enum od_role bias, const double *x, double *y, size_t n)
{
	for (size_t o = 0; o < n; o++)
		y[o] = dot(h->w[role] + o * h->n_in[role], x, h->n_in[role]) +
		       (bias != OD_N_ROLES && h->w[bias] != NULL ? h->w[bias][o] : 0);
}

static void norm(double *u, const double *weight, size_t n, double eps)
{
	const double by = 1 / sqrt(dot(u, u, n) / (double)n + eps);

	for (size_t i = 0; i < n; i++)
		u[i] *= by * weight[i];
}

static void turn(double *u, const struct od_rope *rope, uint32_t position)
{
	const uint32_t half = rope->dims / 2;

	for (uint32_t i = 0; i < half; i++) {
		const uint32_t first = rope->neighbours ? 2 * i : i, second = rope->neighbours ? 2 * i + 1 : half + i;
		const double x = u[first], y = u[second];
		float c, s;

		turn_of(rope, i, position, &c, &s);
		u[first] = x * (double)c - y * (double)s;
		u[second] = x * (double)s + y * (double)c;
	}
}

/* Queries, keys and values of a position, head by head. */
struct heads {
	double q[8][WIDEST], k[8][WIDEST], v[8][WIDEST];
};

static void norm_and_clip(const struct od_mixer *m, double *u, const double *weight, uint32_t n_heads, uint32_t dim)
{
	const uint32_t each = m->qk_norm == OD_QK_NORM_ROW ? n_heads * dim : dim;

	for (uint32_t at = 0; weight != NULL && at < n_heads * dim; at += each)
		norm(u + at, weight, each, (double)m->norm_eps);
	for (uint32_t i = 0; m->clip != 0 && i < n_heads * dim; i++)
		u[i] = fmax(fmin(u[i], (double)m->clip), -(double)m->clip);
}

static void split(double to[8][WIDEST], const double *from, uint32_t n_heads, uint32_t dim)
{
	for (uint32_t i = 0; i < n_heads; i++)
		memcpy(to[i], from + (size_t)i * dim, dim * sizeof(double));
}

static void gqa_heads(const struct bench *b, const struct host_weights *h, const double *x, uint32_t position,
		      struct heads *out)
{
	const struct od_mixer *m = &b->t.cfg.kind[0].mix;
	double q[8 * WIDEST], k[8 * WIDEST], v[8 * WIDEST];

	linear(h, OD_ROLE_Q, OD_ROLE_Q_BIAS, x, q, (size_t)m->n_heads * m->k_dim);
	linear(h, OD_ROLE_K, OD_ROLE_K_BIAS, x, k, (size_t)m->n_kv_heads * m->k_dim);
	linear(h, OD_ROLE_V, OD_ROLE_V_BIAS, x, v, (size_t)m->n_kv_heads * m->v_dim);
	norm_and_clip(m, q, h->w[OD_ROLE_Q_NORM], m->n_heads, m->k_dim);
	norm_and_clip(m, k, h->w[OD_ROLE_K_NORM], m->n_kv_heads, m->k_dim);
	norm_and_clip(m, v, NULL, m->n_kv_heads, m->v_dim);
	split(out->q, q, m->n_heads, m->k_dim);
	for (uint32_t i = 0; i < m->n_heads; i++) { /* each query head with the kv head of its group */
		const uint32_t kv = i / (m->n_heads / m->n_kv_heads);

		memcpy(out->k[i], k + (size_t)kv * m->k_dim, m->k_dim * sizeof(double));
		memcpy(out->v[i], v + (size_t)kv * m->v_dim, m->v_dim * sizeof(double));
		turn(out->q[i], &b->t.cfg.rope[0], position);
		turn(out->k[i], &b->t.cfg.rope[0], position);
	}
}

/* A head's key is made of the latent, then comes the part that turns, which all heads share. */
static void mla_heads(const struct bench *b, const struct host_weights *h, const double *x, uint32_t position,
		      struct heads *out)
{
	const struct od_mixer *m = &b->t.cfg.kind[0].mix;
	const uint32_t turning = m->k_dim - m->nope_dim;
	double q[8 * WIDEST], q_a[WIDEST], latent[WIDEST], kv[8 * WIDEST];

	if (m->q_rank > 0) {
		linear(h, OD_ROLE_Q_A, OD_N_ROLES, x, q_a, m->q_rank);
		norm(q_a, h->w[OD_ROLE_Q_A_NORM], m->q_rank, (double)m->norm_eps);
		linear(h, OD_ROLE_Q_B, OD_N_ROLES, q_a, q, (size_t)m->n_heads * m->k_dim);
	} else {
		linear(h, OD_ROLE_Q, OD_N_ROLES, x, q, (size_t)m->n_heads * m->k_dim);
	}
	linear(h, OD_ROLE_KV_A, OD_N_ROLES, x, latent, m->kv_rank + turning);
	norm(latent, h->w[OD_ROLE_KV_A_NORM], m->kv_rank, (double)m->norm_eps);
	turn(latent + m->kv_rank, &b->t.cfg.rope[0], position);
	linear(h, OD_ROLE_KV_B, OD_N_ROLES, latent, kv, (size_t)m->n_heads * (m->nope_dim + m->v_dim));
	split(out->q, q, m->n_heads, m->k_dim);
	for (uint32_t i = 0; i < m->n_heads; i++) {
		const double *of_head = kv + (size_t)i * (m->nope_dim + m->v_dim);

		turn(out->q[i] + m->nope_dim, &b->t.cfg.rope[0], position);
		memcpy(out->k[i], of_head, m->nope_dim * sizeof(double));
		memcpy(out->k[i] + m->nope_dim, latent + m->kv_rank, turning * sizeof(double));
		memcpy(out->v[i], of_head + m->nope_dim, m->v_dim * sizeof(double));
	}
}

/* Position p of a sequence, whose heads are known up to there. */
static void attend(const struct od_mixer *m, const struct heads *of, uint32_t p, double *out)
{
	const uint32_t first = m->window != 0 && p + 1 > m->window ? p + 1 - m->window : 0;

	memset(out, 0, (size_t)m->n_heads * m->v_dim * sizeof(*out));
	for (uint32_t i = 0; i < m->n_heads; i++) {
		double sum = 0;

		for (uint32_t j = first; j <= p; j++)
			sum += exp((double)m->scale * dot(of[p].q[i], of[j].k[i], m->k_dim));
		for (uint32_t j = first; j <= p; j++) {
			double share = exp((double)m->scale * dot(of[p].q[i], of[j].k[i], m->k_dim)) / sum;

			for (uint32_t d = 0; d < m->v_dim; d++)
				out[i * m->v_dim + d] += share * of[j].v[i][d];
		}
	}
}

/* want [ROWS][HIDDEN] */
static void reference(const struct bench *b, double *want)
{
	const struct od_mixer *m = &b->t.cfg.kind[0].mix;
	struct heads *of[SEQUENCES];
	struct host_weights h;

	load_weights(&h, b);
	for (uint32_t q = 0; q < SEQUENCES; q++) {
		of[q] = calloc(LONG, sizeof(*of[q]));
		assert_non_null(of[q]);
	}
	for (uint32_t r = 0; r < ROWS; r++) {
		const uint32_t position = position_of(r);
		double x[HIDDEN], attended[8 * WIDEST];

		for (uint32_t i = 0; i < HIDDEN; i++)
			x[i] = (double)input(r, i);
		if (b->t.cfg.kind[0].mixer == &od_mixer_mla)
			mla_heads(b, &h, x, position, &of[seq_of(r)][position]);
		else
			gqa_heads(b, &h, x, position, &of[seq_of(r)][position]);
		attend(m, of[seq_of(r)], position, attended);
		linear(&h, OD_ROLE_O, OD_ROLE_O_BIAS, attended, want + r * HIDDEN, HIDDEN);
	}
	for (uint32_t q = 0; q < SEQUENCES; q++)
		free(of[q]);
	free_weights(&h);
}

/* ---- tests ---- */

static float *new_rows(void)
{
	float *p = od_alloc_array(ROWS * HIDDEN, sizeof(*p));

	assert_non_null(p);
	return p;
}

static void test_against_double(void **state)
{
	double *want = od_alloc_array(ROWS * HIDDEN, sizeof(*want));
	float *found = new_rows();

	(void)state;
	assert_non_null(want);
	for (size_t i = 0; i < N_VARIANTS; i++) {
		double worst = 0, largest = 0;
		struct bench b;

		bench_open(&b, &variants[i], OD_PROFILE_F32, OD_CPU_AUTO, 1);
		reference(&b, want);
		bench_close(&b);
		run_all(&variants[i], OD_PROFILE_F32, OD_CPU_AUTO, 1, ROWS, found);
		for (size_t k = 0; k < ROWS * HIDDEN; k++) {
			worst = fmax(worst, isnan(found[k]) ? INFINITY : fabs(want[k] - (double)found[k]));
			largest = fmax(largest, fabs(want[k]));
		}
		print_message("# %s: error %.1e\n", variants[i].name, worst / largest);
		if (!(worst < 2e-6 * largest))
			fail_msg("%s: differs by %g of the largest", variants[i].name, worst / largest);
	}
	od_free(want);
	od_free(found);
}

/* Every row gets what it gets alone, whoever else is in the step. */
static void test_steps(void **state)
{
	static const uint32_t steps[] = { 1, 3, 16, 64 };
	float *whole = new_rows(), *found = new_rows();

	(void)state;
	for (size_t i = 0; i < 2 * N_VARIANTS; i++) {
		const enum od_profile profile = i % 2 ? OD_PROFILE_BF16 : OD_PROFILE_F32;

		run_all(&variants[i / 2], profile, OD_CPU_AUTO, 1, ROWS, whole);
		for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++) {
			run_all(&variants[i / 2], profile, OD_CPU_AUTO, 1 + k % 3, steps[k], found);
			if (memcmp(whole, found, ROWS * HIDDEN * sizeof(*found)) != 0)
				fail_msg("%s: steps of %u rows differ", variants[i / 2].name, steps[k]);
		}
	}
	od_free(whole);
	od_free(found);
}

static void test_kernels(void **state)
{
	float *scalar = new_rows(), *found = new_rows();

	(void)state;
	for (size_t i = 0; i < N_VARIANTS; i++) {
		run_all(&variants[i], OD_PROFILE_F32, OD_CPU_SCALAR, 1, ROWS, scalar);
		for (int cpu = OD_CPU_AVX2; cpu <= OD_CPU_NEON; cpu++) {
			const struct od_backend *be;

			if (od_backend_cpu(&be, (enum od_cpu)cpu, OD_PROFILE_F32, NULL) != OD_OK)
				continue; /* this machine has no such instructions */
			run_all(&variants[i], OD_PROFILE_F32, (enum od_cpu)cpu, 1, ROWS, found);
			if (memcmp(scalar, found, ROWS * HIDDEN * sizeof(*found)) != 0)
				fail_msg("%s: %s differs", variants[i].name, od_cpu_names[cpu]);
		}
	}
	od_free(scalar);
	od_free(found);
}

/* Profile bf16 stores BF16: near the other, not the same. */
static void test_profiles(void **state)
{
	float *f32 = new_rows(), *bf16 = new_rows();

	(void)state;
	for (size_t i = 0; i < N_VARIANTS; i++) {
		double worst = 0, largest = 0;

		run_all(&variants[i], OD_PROFILE_F32, OD_CPU_AUTO, 1, ROWS, f32);
		run_all(&variants[i], OD_PROFILE_BF16, OD_CPU_AUTO, 1, ROWS, bf16);
		for (size_t k = 0; k < ROWS * HIDDEN; k++) {
			worst = fmax(worst, isnan(bf16[k]) ? INFINITY : fabs((double)f32[k] - (double)bf16[k]));
			largest = fmax(largest, fabs((double)f32[k]));
		}
		assert_true(worst > 1e-4 * largest && worst < 3e-2 * largest);
	}
	od_free(f32);
	od_free(bf16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_double),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_profiles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
