/* The mixers' arithmetic: grouped-query attention with all that families add to it, latent attention, gated delta
 * rules, against double precision (naive_model.h). Two sequences in steps of any size give the same bits, on any
 * CPU. */
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/model/seq_state.h"
#include "tests/unit/config_util.h"
#include "tests/unit/state_util.h"
#include "tests/unit/naive_model.h"

enum { HIDDEN = 40, SEQUENCES = 2, LONG = 85, SHORT = 70, ROWS = LONG + SHORT, MOST_DIMS = 16 };

struct mixers_variant {
	const char *name;
	const struct od_mixer_ops *mixer;
	struct od_mixer mix;
	struct od_rope rope; /* theta and what differs from a plain one */
	enum od_dtype dtype; /* the matrices' */
};

static const struct mixers_variant variants[] = {
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
	  { .n_heads = 4,
	    .n_kv_heads = 2,
	    .k_dim = 8,
	    .v_dim = 12,
	    .scale = 1,
	    .qk_norm = OD_QK_NORM_HEAD,
	    .norm_eps = 1e-2f },
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
	{ "gated, norm of heads, biases, turned in part",
	  &od_mixer_gqa,
	  { .n_heads = 6,
	    .n_kv_heads = 2,
	    .k_dim = 20,
	    .v_dim = 20,
	    .scale = 0.6f,
	    .qk_norm = OD_QK_NORM_HEAD,
	    .norm_eps = 1e-6f,
	    .qkv_bias = true,
	    .gated = true },
	  { .dims = 6 },
	  OD_BF16 },
	{ "delta rule, key head after key head",
	  &od_mixer_delta,
	  { .n_heads = 6, .n_kv_heads = 2, .k_dim = 9, .v_dim = 21, .conv = 4, .by_key_head = true, .norm_eps = 1e-6f },
	  { .dims = 2 },
	  OD_F32 },
	{ "delta rule, projections apart, wide values, a long convolution",
	  &od_mixer_delta,
	  { .n_heads = 4, .n_kv_heads = 4, .k_dim = 16, .v_dim = 64, .conv = 7, .norm_eps = 1e-3f },
	  { .dims = 2 },
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

static void make_model(struct tiny_model *t, const struct mixers_variant *v, enum od_profile profile)
{
	struct od_config c = { .family = &od_family_mixtral,
			       .hidden = HIDDEN,
			       .vocab = 4,
			       .n_experts = 1,
			       .top_k = 1,
			       .intermediate = 1,
			       .ctx_max = LONG,
			       .rms_eps = 1e-5f };
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

struct mixers_bench {
	struct tiny_model t;
	struct od_device *device;
	struct tiny_weights weights;
	struct od_state_pool *pool;
	struct od_seq_state *seq[SEQUENCES];
	struct od_buf *info, *tables, *angles, *x, *y, *scratch;
	struct od_mix_call call;
	struct od_span span[SEQUENCES];
};

static void make_call(struct mixers_bench *b)
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
	b->call = (struct od_mix_call){
		.device = b->device,
		.config = c,
		.spec = &c->kind[0],
		.w = &b->weights.dense.layer[0],
		.profile = b->t.profile,
		.max_rows = ROWS,
		.rows = od_buf_ref(b->info, 0),
		.turn = { .angles = od_buf_ref(b->angles, 0), .dims = dims, .neighbours = c->rope[0].neighbours },
		.x = od_buf_ref(b->x, 0),
		.y = od_buf_ref(b->y, 0),
		.scratch = od_buf_ref(b->scratch, 0)
	};
	for (uint32_t i = 0, n = od_state_pool_streams(b->pool, 0, b->call.stream); i < n; i++) {
		b->call.stream[i].tables = od_buf_ref(b->tables, 0);
		b->call.stream[i].table_pages = table_pages;
	}
	for (uint32_t q = 0; q < SEQUENCES; q++)
		put_at(b->device, od_buf_ref(b->tables, (uint64_t)q * table_pages * sizeof(uint32_t)),
		       od_seq_state_pages(b->seq[q]), od_seq_state_n_pages(b->seq[q]) * sizeof(uint32_t));
}

static void bench_open(struct mixers_bench *b, const struct mixers_variant *v, enum od_profile profile, enum od_cpu cpu,
		       unsigned threads)
{
	struct od_err err = { 0 };

	make_model(&b->t, v, profile);
	b->device = device_new(cpu, threads);
	tiny_put(&b->weights, &b->t, b->device);
	must(od_state_pool_new(&b->pool, b->device, &b->t.cfg, profile, LONG, SEQUENCES,
			       SEQUENCES * od_state_pages(LONG), &err),
	     &err);
	for (uint32_t q = 0; q < SEQUENCES; q++)
		b->seq[q] = open_seq(b->pool);
	for (uint32_t n = 1; n <= LONG; n++) /* pages of the two in turn */
		for (uint32_t q = 0; q < SEQUENCES; q++)
			reserve(b->seq[q], n);
	make_call(b);
}

static void bench_close(struct mixers_bench *b)
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

/* Rows [first, first + n) through the mixer; x and y in one place when asked. */
static void run_rows(struct mixers_bench *b, uint32_t first, uint32_t n, bool in_place, float *out)
{
	const struct od_rope *rope = &b->t.cfg.rope[0];
	const uint32_t dims = rope->dims;
	struct od_row_info info[ROWS];
	float x[ROWS * HIDDEN], angles[ROWS * MOST_DIMS];

	b->call.max_position = 0;
	for (uint32_t r = 0; r < n; r++) {
		const uint32_t position = position_of(first + r);

		info[r] = (struct od_row_info){ .position = position, .table = seq_of(first + r) };
		b->call.max_position = position > b->call.max_position ? position : b->call.max_position;
		for (uint32_t i = 0; i < HIDDEN; i++)
			x[r * HIDDEN + i] = input(first + r, i);
		for (uint32_t i = 0; i < dims / 2; i++)
			naive_turn(rope, i, position, &angles[r * dims + i], &angles[r * dims + dims / 2 + i]);
	}
	b->call.n_spans = 0;
	for (uint32_t q = 0; q < SEQUENCES; q++) {
		const struct od_fixed f = od_seq_state_fixed(b->seq[q], 0);
		struct od_span s = { .table = q, .from = f.committed, .to = f.next };

		for (uint32_t r = 0; r < n; r++)
			s.n += info[r].table == q;
		if (s.n > 0)
			b->span[b->call.n_spans++] = s;
	}
	b->call.info = info;
	b->call.span = b->span;
	b->call.n_rows = n;
	b->call.y = in_place ? b->call.x : od_buf_ref(b->y, 0);
	put_at(b->device, b->call.rows, info, n * sizeof(*info));
	put_at(b->device, b->call.x, x, n * HIDDEN * sizeof(*x));
	put_at(b->device, b->call.turn.angles, angles, n * dims * sizeof(*angles));
	b->call.spec->mixer->run(&b->call);
	sync_device(b->device);
	get_at(b->device, out, b->call.y, n * HIDDEN * sizeof(*out));
	for (uint32_t r = 0, done = 0; r < n; r++) {
		if ((done & 1u << info[r].table) == 0)
			od_seq_state_take_next(b->seq[info[r].table]);
		done |= 1u << info[r].table;
	}
}

/* All rows, in steps of so many; out [ROWS][HIDDEN]. */
static void run_all(const struct mixers_variant *v, enum od_profile profile, enum od_cpu cpu, unsigned threads,
		    uint32_t step, float *out)
{
	struct mixers_bench b;

	bench_open(&b, v, profile, cpu, threads);
	for (uint32_t first = 0; first < ROWS; first += step)
		run_rows(&b, first, ROWS - first < step ? ROWS - first : step, first / step % 2 == 1,
			 out + first * HIDDEN);
	bench_close(&b);
}

/* want [ROWS][HIDDEN], in double. */
static void reference(const struct mixers_bench *b, double *want)
{
	for (uint32_t q = 0; q < SEQUENCES; q++) {
		const uint32_t n = q == 0 ? LONG : SHORT;
		double x[LONG * HIDDEN], y[LONG * HIDDEN];

		for (uint32_t r = 0; r < ROWS; r++)
			for (uint32_t i = 0; seq_of(r) == q && i < HIDDEN; i++)
				x[position_of(r) * HIDDEN + i] = (double)input(r, i);
		naive_mix(&b->t, &b->weights, 0, n, x, y);
		for (uint32_t r = 0; r < ROWS; r++)
			if (seq_of(r) == q)
				memcpy(want + r * HIDDEN, y + position_of(r) * HIDDEN, HIDDEN * sizeof(*y));
	}
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
		struct mixers_bench b;

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

/* Profile bf16 stores keys and values as BF16: near the other, not the same. Fixed state is f32 in both. */
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
		if (variants[i].mixer == &od_mixer_delta)
			assert_true(worst == 0 && largest > 0);
		else
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
