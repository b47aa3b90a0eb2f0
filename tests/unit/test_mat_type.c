/* Types of published matrices: which there are, what they take, and that a pack gives back codes and scales as they
 * were published, each row of weights with its own row of scales. */
#include <string.h>

#include "common/base/mem.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/mat_type.h"
#include "common/pack/pack_verify.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_files.h"

static bool ok(enum od_dtype dtype, enum od_dtype scale, uint32_t rows, uint32_t cols, uint64_t n_in)
{
	return od_mat_type_ok(&(struct od_mat_type){ dtype, scale, rows, cols }, n_in);
}

static bool is_in(const uint8_t *list, size_t n, int t)
{
	return memchr(list, t, n) != NULL;
}

static void test_which_there_are(void **state)
{
	/* GGUF's formats: blocks of 32 (NVFP4: 64) and of 256 weights, 64 more than ggml's numbers. */
	static const uint8_t small[] = { 66, 67, 70, 71, 72, 84, 103, 104 },
			     large[] = { 74, 75, 76, 77, 78, 80, 81, 82, 83, 85, 86, 87, 93, 98, 99 };
	static const enum od_dtype scales[] = { OD_F32, OD_BF16, OD_F16, OD_F8_E4M3, OD_F8_E8M0 };

	(void)state;
	for (int d = 0; d < 256; d++) {
		const enum od_dtype t = (enum od_dtype)d;
		const bool plain = t == OD_BF16 || t == OD_F16 || t == OD_F32, f8 = t == OD_F8_E4M3 || t == OD_F8_E5M2;
		const bool codes = t == OD_INT8 || t == OD_U4B8 || t == OD_U8B128 || t == OD_F4_E2M1;

		assert_int_equal(ok(t, 0, 0, 0, 64), plain || f8 || is_in(small, sizeof(small), d));
		assert_int_equal(ok(t, 0, 0, 0, 512),
				 plain || f8 || is_in(small, sizeof(small), d) || is_in(large, sizeof(large), d));
		assert_false(ok(t, 0, 1, 0, 64));
		assert_false(ok(t, 0, 0, 16, 64));
		for (int s = 1; s < 256; s++) {
			bool known = false;

			for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++)
				known = known || s == (int)scales[i];
			assert_int_equal(ok(t, (enum od_dtype)s, 1, 32, 64), known && (f8 || codes));
		}
	}
	for (uint32_t b = 0; b < 300; b++) {
		const bool power =
			b == 1 || b == 2 || b == 4 || b == 8 || b == 16 || b == 32 || b == 64 || b == 128 || b == 256;

		assert_int_equal(ok(OD_INT8, OD_F32, b, 0, 64), b == 0 || power);
		assert_int_equal(ok(OD_INT8, OD_F32, 0, b, 64), b == 0 || (power && b >= 16));
	}
	assert_true(ok(OD_INT8, OD_F32, 1u << 31, 1u << 31, 64));
	assert_false(ok(OD_U4B8, OD_F32, 1, 0, 63));
	assert_false(ok(OD_F4_E2M1, OD_F32, 1, 0, 63));
	assert_true(ok(OD_INT8, OD_F32, 1, 0, 63));
}

static struct od_device *device;
static uint32_t rng_state = 88172645u;

static uint32_t rnd(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 17;
	rng_state ^= rng_state << 5;
	return rng_state;
}

/* od_weight_bind finds on a device, behind something else, what od_mat_bind has found in memory. */
static void check_weight(const struct od_mat_type *t, const struct od_mat *m, const uint8_t *memory, size_t bytes)
{
	const size_t before = 64 * (rnd() % 3), scales = m->n_out * od_mat_scale_row_bytes(t, m->n_in);
	const size_t codes = m->n_out * od_mat_row_bytes(t, m->n_in);
	struct od_buf *buf = buf_new(device, before + bytes);
	struct od_weight w;
	void *found;

	put_at(device, od_buf_ref(buf, before), memory, bytes);
	od_weight_bind(&w, t, m->n_out, m->n_in, od_buf_ref(buf, before));
	assert_int_equal(w.dtype, m->dtype);
	assert_int_equal(w.n_out, m->n_out);
	assert_int_equal(w.n_in, m->n_in);
	assert_int_equal(w.scales.dtype, m->scales.dtype);
	assert_int_equal(w.scales.group, m->scales.group);
	assert_true(w.scale.buf == NULL && w.coded.buf == NULL && w.chunk_at == NULL);
	found = copy_at(device, w.data, codes);
	assert_memory_equal(found, m->data, codes);
	free(found);
	found = copy_at(device, w.scales.at, scales);
	assert_memory_equal(found, m->scales.at, scales);
	free(found);
	assert_int_equal(w.scales.divisor.buf != NULL, m->scales.divisor != NULL);
	if (m->scales.divisor != NULL) {
		found = copy_at(device, w.scales.divisor, sizeof(float));
		assert_memory_equal(found, m->scales.divisor, sizeof(float));
		free(found);
	}
	od_buf_free(buf);
}

/* A scale matrix of known numbers, cut into shards and put together again: element by element. */
static void check_shards(const struct od_mat_type *t, uint64_t n_out, uint64_t n_in, uint64_t step)
{
	const uint64_t rows = t->block_rows == 0 ? 1 : (n_out + t->block_rows - 1) / t->block_rows;
	const uint64_t cols = t->block_cols == 0 ? 1 : (n_in + t->block_cols - 1) / t->block_cols;
	const size_t each = od_dtype_bytes(t->scale), divisor = t->scale == OD_F8_E4M3 ? 4 : 0;
	uint8_t *published = malloc(divisor + rows * cols * each), *from = malloc(divisor + rows * cols * each);
	const size_t bytes = od_mat_memory_bytes(t, n_out, n_in);
	uint8_t *memory = od_alloc(bytes);
	struct od_mat w;

	for (size_t i = 0; i < divisor + rows * cols * each; i++)
		published[i] = (uint8_t)rnd();
	assert_int_equal(od_mat_bytes(t, n_in, 0, n_out),
			 n_out * od_mat_row_bytes(t, n_in) + divisor + rows * cols * each);
	for (uint64_t row = 0, n; row < n_out; row += n) {
		uint64_t first = t->block_rows == 0 ? 0 : row / t->block_rows, last;

		n = step < n_out - row ? step : n_out - row;
		last = t->block_rows == 0 ? 0 : (row + n - 1) / t->block_rows;
		assert_int_equal(od_mat_bytes(t, n_in, row, n),
				 n * od_mat_row_bytes(t, n_in) + divisor + (last - first + 1) * cols * each);
		memcpy(from, published, divisor);
		memcpy(from + divisor, published + divisor + first * cols * each, (last - first + 1) * cols * each);
		od_mat_put_scales(t, n_out, n_in, memory, row, row, n, from);
	}
	od_mat_bind(&w, t, n_out, n_in, memory);
	assert_int_equal(w.scales.dtype, t->scale);
	assert_int_equal(w.scales.group, t->block_cols == 0 ? n_in : t->block_cols);
	assert_int_equal(w.scales.divisor != NULL, divisor > 0);
	if (divisor > 0)
		assert_memory_equal(w.scales.divisor, published, divisor);
	for (uint64_t o = 0; o < n_out; o++) {
		uint64_t row = t->block_rows == 0 ? 0 : o / t->block_rows;

		assert_memory_equal((const uint8_t *)w.scales.at + o * cols * each,
				    published + divisor + row * cols * each, cols * each);
	}
	assert_true((const uint8_t *)w.scales.at + n_out * cols * each + OD_PAD_BYTES <= memory + bytes);
	check_weight(t, &w, memory, bytes);
	od_free(memory);
	free(from);
	free(published);
}

static void test_scales_of_shards(void **state)
{
	static const enum od_dtype scales[] = { OD_F32, OD_BF16, OD_F8_E4M3, OD_F8_E8M0 };

	(void)state;
	for (int i = 0; i < 2000; i++) {
		const struct od_mat_type t = { .dtype = i % 2 != 0 ? OD_INT8 : OD_U4B8,
					       .scale = scales[rnd() % 4],
					       .block_rows = rnd() % 4 == 0 ? 0 : 1u << rnd() % 8,
					       .block_cols = rnd() % 4 == 0 ? 0 : 16u << rnd() % 5 };

		check_shards(&t, 1 + rnd() % 300, 2 * (1 + rnd() % 150), 1 + rnd() % 200);
	}
}

static struct tiny_files tiny;

static const struct tiny_tensor *find(const char *name, const char *end)
{
	char buf[192];

	snprintf(buf, sizeof(buf), "%s.%s", name, end);
	return tiny_files_find(&tiny, buf);
}

static void assert_at(struct od_ref at, const void *want, size_t bytes)
{
	void *found = copy_at(device, at, bytes);

	assert_memory_equal(found, want, bytes);
	free(found);
}

/* As tiny_files_make_scaled says. */
static void assert_published(const struct od_weight *w, const char *name, int way)
{
	static const enum od_dtype dtype[] = { OD_F8_E4M3, OD_U4B8, OD_F4_E2M1, OD_INT8 };
	const struct tiny_tensor *codes = find(name, way == 1 || way == 2 ? "weight_packed" : "weight");
	const struct tiny_tensor *scales = find(name, way == 0 ? "weight_scale_inv" : "weight_scale");
	const size_t rows = way == 0 ? 16 : 1, each = scales->bytes / scales->n_out;

	assert_int_equal(w->dtype, dtype[way]);
	assert_at(w->data, codes->data, codes->bytes);
	assert_string_equal(od_dtype_name(w->scales.dtype), scales->dtype);
	assert_int_equal(w->scales.group, way == 3 ? w->n_in : 16);
	for (size_t o = 0; o < w->n_out; o++)
		assert_at(od_ref_at(w->scales.at, o * each), scales->data + o / rows * each, each);
	assert_int_equal(w->scales.divisor.buf != NULL, way == 2);
	if (way == 2)
		assert_at(w->scales.divisor, find(name, "weight_global_scale")->data, 4);
}

static void test_packed_and_loaded(void **state)
{
	const struct od_pack_job job = {
		.checkpoint = tiny.checkpoint, .pack = tiny.pack, .codec = OD_CODEC_PLANES, .n_threads = 2
	};
	const struct od_verify_job verify = { .pack = tiny.pack, .against = tiny.checkpoint, .n_threads = 2 };
	struct od_expert_store *experts;
	struct od_dense_store *dense;
	struct od_pack *pack;
	struct od_err err = { 0 };

	(void)state;
	assert_int_equal(od_pack_write(&job, &err), OD_OK);
	assert_int_equal(od_pack_verify(&verify, &err), OD_OK);
	assert_int_equal(od_pack_open(&pack, tiny.pack, &err), OD_OK);
	assert_int_equal(od_pack_can_form(pack, OD_FORM_PLANES, &err), OD_ERR_UNSUPPORTED);
	assert_int_equal(od_experts_load_all(&experts, pack, device, OD_FORM_PLAIN, 2, NULL, NULL, &err), OD_OK);
	for (int e = 0; e < TINY_EXPERTS; e++)
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++) {
			char name[96];

			snprintf(name, sizeof(name), "model.layers.0.block_sparse_moe.experts.%d.w%d", e,
				 mat == 0 ? 1 : 4 - mat);
			assert_published(&od_experts_get(experts)[e].mat[mat], name, e);
		}
	assert_null(od_experts_get(experts)[TINY_EXPERTS].mat[0].scales.at.buf);
	assert_int_equal(od_dense_load(&dense, pack, device, OD_DENSE_ALL, &err), OD_OK);
	assert_published(&od_dense_get(dense)->layer[0].w[OD_ROLE_O], "model.layers.0.self_attn.o_proj", 3);
	assert_null(od_dense_get(dense)->layer[1].w[OD_ROLE_O].scales.at.buf);
	od_dense_free(dense);
	od_experts_free(experts);
	od_pack_close(pack);
}

static int setup(void **state)
{
	(void)state;
	tiny_files_make_scaled(&tiny);
	device = device_new(OD_CPU_AUTO, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tiny_files_free(&tiny);
	od_device_free(device);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_which_there_are),
		cmocka_unit_test(test_scales_of_shards),
		cmocka_unit_test(test_packed_and_loaded),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
