/* matmul with weights that stay planes: the bits of the same weights as plain BF16, in every table and shape. */
#include "common/base/mem.h"
#include "common/compute/cpu/matmul.h"
#include "tests/unit/compute_util.h"

BARE_TABLES;

#define UNTOUCHED 0x1.6dp+11f

struct compute_planes_shape {
	size_t n_in, n_out, chunk_rows, n_rows, x_stride, y_stride, o_begin, o_end;
};

struct compute_planes_data {
	struct od_mat plain, coded;
	struct od_planes planes;
	uint16_t *w;
	uint8_t *sm, **chunk;
	uint64_t *at;
	size_t n_chunks, n_raw, n_blocks;
	float *x, *y, *want;
	size_t y_len;
};

/* Exponents as trained weights have them; now and then, for a while, of all kinds, so that blocks become raw. */
static uint16_t draw_weight(uint64_t *seed, size_t i, size_t wild_period)
{
	uint16_t sign_mantissa = (uint16_t)(random_u64(seed) & 0x807fu);
	unsigned exponent = 120;

	if (wild_period > 0 && i / wild_period % 3 == 1)
		return (uint16_t)random_u64(seed);
	while (exponent > 60 && random_u64(seed) % 100 < 45)
		exponent--;
	return (uint16_t)(sign_mantissa | exponent << 7);
}

/* Chunks have memory of their own, so that a sanitizer sees what is read behind one; the first of them in memory is the
 * base. */
static void lay_out_chunks(struct compute_planes_data *d, size_t chunk_rows)
{
	uintptr_t base = UINTPTR_MAX;

	d->at = exact(d->n_chunks, sizeof(*d->at));
	for (size_t c = 0; c < d->n_chunks; c++)
		base = (uintptr_t)d->chunk[c] < base ? (uintptr_t)d->chunk[c] : base;
	for (size_t c = 0; c < d->n_chunks; c++)
		d->at[c] = (uintptr_t)d->chunk[c] - base;
	d->planes = (struct od_planes){ .chunk_rows = chunk_rows, .base = (const uint8_t *)base, .at = d->at };
}

static void encode(struct compute_planes_data *d, const struct compute_planes_shape *s)
{
	uint8_t *e = exact(s->n_in * s->n_out, 1);

	d->n_chunks = (s->n_out + s->chunk_rows - 1) / s->chunk_rows;
	d->chunk = exact(d->n_chunks, sizeof(*d->chunk));
	for (size_t i = 0; i < s->n_in * s->n_out; i++) {
		d->sm[i] = (uint8_t)(d->w[i] << 1 | d->w[i] >> 15);
		e[i] = (uint8_t)(d->w[i] >> 7);
	}
	for (size_t c = 0; c < d->n_chunks; c++) {
		size_t first = c * s->chunk_rows, left = s->n_out - first;
		size_t n = (left < s->chunk_rows ? left : s->chunk_rows) * s->n_in, bytes;
		uint8_t *room = exact(od_planes_bound(n, s->n_in), 1);

		bytes = od_planes_encode(e + first * s->n_in, n, s->n_in, room);
		assert_int_equal(od_planes_check(room, bytes, n, s->n_in, NULL), OD_OK);
		d->chunk[c] = calloc(1, bytes + OD_PAD_BYTES);
		assert_non_null(d->chunk[c]);
		memcpy(d->chunk[c], room, bytes);
		free(room);
		d->n_blocks += od_planes_blocks(n, s->n_in);
		for (size_t b = 0; b < od_planes_blocks(n, s->n_in); b++)
			d->n_raw += od_planes_at(d->chunk[c], n, s->n_in, b).raw;
	}
	free(e);
	lay_out_chunks(d, s->chunk_rows);
}

static void chunks_free(struct compute_planes_data *d)
{
	for (size_t c = 0; c < d->n_chunks; c++)
		free(d->chunk[c]);
	free(d->chunk), free(d->at);
}

static void data_new(struct compute_planes_data *d, uint64_t *seed, const struct compute_planes_shape *s,
		     size_t wild_period)
{
	size_t n = s->n_in * s->n_out;

	*d = (struct compute_planes_data){ .w = exact(n, sizeof(uint16_t)), .sm = exact(n, 1) };
	for (size_t i = 0; i < n; i++)
		d->w[i] = draw_weight(seed, i, wild_period);
	encode(d, s);
	d->plain = (struct od_mat){ .dtype = OD_BF16, .n_out = s->n_out, .n_in = s->n_in, .data = d->w };
	d->coded = d->plain;
	d->coded.data = d->sm;
	d->coded.planes = &d->planes;
	d->x = random_row(seed, (s->n_rows - 1) * s->x_stride + s->n_in, PLAIN);
	d->y_len = (s->n_rows - 1) * s->y_stride + s->n_out;
	d->y = exact(d->y_len, sizeof(float));
	d->want = exact(d->y_len, sizeof(float));
	for (size_t i = 0; i < d->y_len; i++)
		d->y[i] = d->want[i] = UNTOUCHED;
}

static void data_free(struct compute_planes_data *d)
{
	chunks_free(d);
	free(d->w), free(d->sm), free(d->x), free(d->y), free(d->want);
}

static void check(const struct od_backend *be, struct compute_planes_data *d, const struct compute_planes_shape *s)
{
	char what[160];

	snprintf(what, sizeof(what), "%s: %zu x %zu, chunks of %zu, %zu rows, outputs [%zu, %zu)", be->name, s->n_out,
		 s->n_in, s->chunk_rows, s->n_rows, s->o_begin, s->o_end);
	od_matmul_range(be, &d->plain, d->x, s->x_stride, d->want, s->y_stride, s->n_rows, s->o_begin, s->o_end);
	od_matmul_range(be, &d->coded, d->x, s->x_stride, d->y, s->y_stride, s->n_rows, s->o_begin, s->o_end);
	assert_bits(what, d->y, d->want, d->y_len);
}

static struct compute_planes_shape random_shape(uint64_t *seed, size_t n_in, size_t n_out)
{
	struct compute_planes_shape s = { .n_in = n_in, .n_out = n_out, .n_rows = 1 + random_below(seed, 6) };

	s.chunk_rows = 1 + random_below(seed, n_out + n_out / 4);
	s.x_stride = n_in + random_below(seed, 3);
	s.y_stride = n_out + random_below(seed, 3);
	s.o_begin = random_below(seed, 3) == 0 ? random_below(seed, n_out) : 0;
	s.o_end = random_below(seed, 3) == 0 ? s.o_begin + random_below(seed, n_out - s.o_begin + 1) : n_out;
	return s;
}

/* Rows far shorter than a block, of a few to a block, longer ones; whole steps of 64, and not. */
static void same_bits(void **state)
{
	static const struct {
		size_t n_in, n_out;
	} sizes[] = { { 1, 40 },    { 15, 30 },	  { 63, 500 },	{ 64, 1600 },  { 65, 1100 },
		      { 100, 700 }, { 192, 700 }, { 1000, 90 }, { 1024, 150 }, { 4095, 37 },
		      { 4096, 45 }, { 8192, 19 }, { 8256, 13 }, { 14336, 11 }, { 16384, 9 },
		      { 16385, 5 }, { 16448, 9 }, { 32768, 7 }, { 33000, 3 },  { 70016, 6 } };
	const struct od_backend *be = table_of(state);
	size_t n_raw = 0, n_coded = 0;
	uint64_t seed = 21;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (int round = 0; round < 5; round++) {
			struct compute_planes_shape s = random_shape(&seed, sizes[i].n_in, sizes[i].n_out);
			struct compute_planes_data d;

			data_new(&d, &seed, &s, round < 3 ? 0 : 20000);
			check(be, &d, &s);
			n_raw += d.n_raw;
			n_coded += d.n_blocks - d.n_raw;
			data_free(&d);
		}
	assert_true(n_raw > 30 && n_coded > 300);
}

/* As many rows at once as there may be: their sums are cut into columns where a row is longer than a block. */
static void many_rows(void **state)
{
	static const struct compute_planes_shape shapes[] = { { 320, 100, 60, 70, 321, 103, 3, 99 },
							      { 16448, 3, 2, 66, 16448, 3, 0, 3 } };
	const struct od_backend *be = table_of(state);
	uint64_t seed = 22;

	for (size_t i = 0; i < 2; i++) {
		struct compute_planes_data d;

		data_new(&d, &seed, &shapes[i], 0);
		check(be, &d, &shapes[i]);
		data_free(&d);
	}
}

/* Every weight that BF16 has, one by one against the reference. */
static void every_weight(void **state)
{
	const struct od_backend *be = table_of(state);
	struct compute_planes_shape s = { 64, 0x400, 300, 1, 64, 0x400, 0, 0x400 };
	uint64_t seed = 23;
	struct compute_planes_data d;

	data_new(&d, &seed, &s, 0);
	for (size_t i = 0; i < 0x10000; i++)
		d.w[i] = (uint16_t)(i * 40503u);
	chunks_free(&d);
	encode(&d, &s);
	for (size_t k = 0; k < 64; k++) {
		for (size_t i = 0; i < 64; i++)
			d.x[i] = i == k ? 1.0f : 0.0f;
		check(be, &d, &s);
		for (size_t o = 0; o < s.n_out && strcmp(be->kernel_class, OD_CLASS_FMA16) == 0; o++) {
			float want = one_nan(lanes_dot(OD_BF16, d.w, o * 64, d.x, 64));

			assert_bits("reference", d.y + o, &want, 1);
		}
	}
	data_free(&d);
}

/* Cut over threads: pieces begin anywhere. */
static void over_threads(void **state)
{
	const struct od_backend *be = table_of(state);
	struct compute_planes_shape s = { 1024, 1000, 512, 1, 1024, 1000, 0, 1000 };
	struct od_pool *pool;
	uint64_t seed = 24;
	struct compute_planes_data d;

	assert_int_equal(od_pool_new(&pool, 3, "test", NULL), OD_OK);
	for (s.n_rows = 1; s.n_rows < 6; s.n_rows += 2) {
		data_new(&d, &seed, &s, 0);
		od_matmul(be, NULL, &d.plain, d.x, d.want, s.n_rows);
		od_matmul(be, pool, &d.coded, d.x, d.y, s.n_rows);
		assert_bits("threads", d.y, d.want, d.y_len);
		data_free(&d);
	}
	od_pool_free(pool);
}

#ifdef __x86_64__
/* Where __builtin_cpu_supports looks, in libgcc as in compiler-rt. */
extern struct {
	unsigned vendor, type, subtype, features;
} __cpu_model;
extern unsigned __cpu_features2[1];

/* The compiler takes its own name of the variables for another than the one above. */
#ifdef __clang__
#define ON_ITS_OWN __attribute__((noinline, optnone))
#else
#define ON_ITS_OWN __attribute__((noipa))
#endif
static ON_ITS_OWN bool has_vbmi2(void)
{
	return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
	       __builtin_cpu_supports("gfni");
}

static ON_ITS_OWN bool has_vnni(void)
{
	return __builtin_cpu_supports("avx512vnni");
}

/* A table of a processor with f, and AVX2's: which kernels have both? */
static void assert_composed(const struct od_cpu_features *f)
{
	const struct od_backend t = od_cpu_table(OD_CPU_AVX512, f), avx2 = od_cpu_table(OD_CPU_AVX2, f);

	assert_true(f->vbmi2 == has_vbmi2() && f->vnni == has_vnni());
	assert_int_equal(t.likes_planes, f->vbmi2);
	assert_int_equal(t.planes_decode != avx2.planes_decode, f->vbmi2);
	assert_int_equal(t.planes_merge != avx2.planes_merge, f->vbmi2);
	assert_int_equal(t.merge_bf16 != avx2.merge_bf16, f->vbmi2);
	assert_int_equal(t.matmul_scaled != avx2.matmul_scaled, f->vbmi2);
	assert_int_equal(t.matmul_planes != od_matmul_merged, f->vbmi2);
	assert_int_equal(t.matmul_int8 != avx2.matmul_int8, f->vnni);
	assert_true(t.matmul != avx2.matmul && t.matmul_bf16 != avx2.matmul_bf16 && t.add_bf16 != avx2.add_bf16);
}

/* A virtual machine may hide one of the instruction sets that come together, and then nobody may use it. */
static void what_is_hidden_is_not_used(void **state)
{
	unsigned *const words[] = { &__cpu_model.features, __cpu_features2 };
	struct od_cpu_features f = od_cpu_features();
	size_t n_hidden = 0, n_without_avx512 = 0;

	(void)state;
	if (!f.vbmi2 || !f.vnni)
		skip();
	for (unsigned i = 0; i < 64; i++) {
		const unsigned found = *words[i / 32];

		*words[i / 32] &= ~(1u << i % 32);
		f = od_cpu_features();
		if (f.avx512)
			assert_composed(&f);
		else
			assert_false(f.vbmi2 || f.vnni || f.bf16);
		*words[i / 32] = found;
		n_hidden += f.avx512 && !(f.vbmi2 && f.vnni);
		n_without_avx512 += !f.avx512;
	}
	assert_int_equal(n_hidden, 3 + 1);
	assert_int_equal(n_without_avx512, 2 + 4);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifdef __x86_64__
		cmocka_unit_test(what_is_hidden_is_not_used),
#endif
		ON_ALL_TABLES(same_bits),
		ON_ALL_TABLES(many_rows),
		ON_ALL_TABLES(every_weight),
		ON_ALL_TABLES(over_threads),
		ON_BARE_TABLES(same_bits),
		ON_BARE_TABLES(many_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
