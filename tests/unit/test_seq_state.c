/* What sequences remember: sizes, limits, where rows lie in pages, and who has which page. */
#include <string.h>

#include "common/model/seq_state.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"

static const struct od_config cfg = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 6, .ctx_max = 200 };
#define KV_DIM 12u
#define MAX_PAGES 64u

static struct od_device *device;
static uint64_t seed = 1;

static int open_device(void **state)
{
	(void)state;
	device = device_new(OD_CPU_SCALAR, 1);
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

static struct od_state_pool *pool_new(enum od_profile profile, uint32_t ctx, uint32_t n)
{
	struct od_state_pool *p;
	struct od_err err = { 0 };

	must(od_state_pool_new(&p, device, &cfg, profile, ctx, n, &err), &err);
	return p;
}

static struct od_seq_state *seq_new(struct od_state_pool *p)
{
	struct od_seq_state *s;
	struct od_err err = { 0 };

	must(od_seq_state_new(&s, p, &err), &err);
	return s;
}

static void test_bytes(void **state)
{
	const uint64_t page = 3 * 2 * OD_KV_PAGE * KV_DIM; /* elements */
	struct od_config huge = { .n_layers = 4096, .n_kv_heads = 4096, .head_dim = 256, .ctx_max = UINT32_MAX };
	struct od_state_pool *p;
	struct od_err err;

	(void)state;
	/* K and V of whole pages, plus a little for ourselves. */
	for (uint32_t n = 1; n < 5; n++) {
		for (uint32_t ctx = 1; ctx <= 200; ctx++) {
			uint64_t pages = n * ((ctx + OD_KV_PAGE - 1) / OD_KV_PAGE);
			uint64_t f32 = od_state_pool_bytes(&cfg, OD_PROFILE_F32, ctx, n);
			uint64_t bf16 = od_state_pool_bytes(&cfg, OD_PROFILE_BF16, ctx, n);

			assert_in_range(f32, pages * page * 4, pages * page * 4 + 256);
			assert_int_equal(f32 - bf16, pages * page * 2);
			assert_int_equal(od_state_pages(ctx) * n, pages);
		}
	}
	assert_int_equal(od_state_pages(0), 0);
	assert_int_equal(od_state_pages(UINT32_MAX), 1u << 26);
	/* 2^12 * 2 * 2^32 * 2^20 * 4 is beyond 64 bits. */
	assert_true(od_state_pool_bytes(&huge, OD_PROFILE_F32, UINT32_MAX, 1) == UINT64_MAX);
	assert_int_equal(od_state_pool_new(&p, device, &huge, OD_PROFILE_F32, UINT32_MAX, 1, &err), OD_ERR_NOMEM);
	assert_null(p);
	/* More pages than 32 bits can number. */
	huge.n_layers = huge.n_kv_heads = huge.head_dim = 1;
	assert_int_equal(od_state_pool_new(&p, device, &huge, OD_PROFILE_BF16, UINT32_MAX, 1u << 10, &err), OD_ERR_NOMEM);
	assert_null(p);
}

static void test_context_limits(void **state)
{
	struct od_state_pool *p;
	struct od_seq_state *s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_state_pool_new(&p, device, &cfg, OD_PROFILE_F32, 0, 1, &err), OD_ERR_RANGE);
	assert_null(p);
	assert_int_equal(od_state_pool_new(&p, device, &cfg, OD_PROFILE_F32, 201, 1, &err), OD_ERR_RANGE);
	assert_null(p);
	assert_non_null(strstr(err.msg, "1 to 200"));
	assert_non_null(strstr(err.msg, "found 201"));
	p = pool_new(OD_PROFILE_F32, 200, 3);
	assert_int_equal(od_state_pool_ctx(p), 200);
	assert_int_equal(od_state_pool_sequences(p), 3);
	s = seq_new(p);
	assert_int_equal(od_seq_state_ctx(s), 200);
	assert_ptr_equal(od_seq_state_pool(s), p);
	od_seq_state_free(s);
	od_seq_state_free(NULL);
	od_state_pool_free(p);
	od_state_pool_free(NULL);
}

static void test_sequence_limit(void **state)
{
	struct od_state_pool *p = pool_new(OD_PROFILE_BF16, 70, 2);
	struct od_seq_state *s[2] = { seq_new(p), seq_new(p) }, *third;
	struct od_err err;

	(void)state;
	assert_int_equal(od_seq_state_new(&third, p, &err), OD_ERR_BUSY);
	assert_null(third);
	assert_non_null(strstr(err.msg, "all 2"));
	od_seq_state_free(s[0]);
	s[0] = seq_new(p);
	assert_int_equal(od_seq_state_new(&third, p, NULL), OD_ERR_BUSY);
	od_seq_state_free(s[0]);
	od_seq_state_free(s[1]);
	od_state_pool_free(p);
}

/* A row of its own kind for each (sequence, layer, stream, position). */
static void fill_row(uint8_t *row, size_t bytes, uint32_t seq, uint32_t layer, uint32_t stream, uint32_t position)
{
	seed = 1 + ((seq * 64 + layer * 2 + stream) * 4096 + position);
	for (size_t i = 0; i < bytes; i++)
		row[i] = (uint8_t)random_below(&seed, 256);
}

#define CTX 150u /* three pages, the last one in part */

/* Every row of every layer of every sequence has a place of its own, where the operations look for it too. */
static void check_layout(enum od_profile profile, enum od_dtype dtype)
{
	const size_t row = KV_DIM * od_dtype_bytes(dtype);
	struct od_state_pool *p = pool_new(profile, CTX, 2);
	struct od_seq_state *s[2] = { seq_new(p), seq_new(p) };
	uint8_t wrote[KV_DIM * 4], read[KV_DIM * 4];

	assert_int_equal(od_state_pool_dtype(p), dtype);
	for (int q = 0; q < 2; q++) {
		assert_int_equal(od_seq_state_row_bytes(s[q]), row);
		assert_int_equal(od_seq_state_length(s[q]), 0);
	}
	for (int pass = 0; pass < 2; pass++) { /* write all, read all */
		for (uint32_t i = 0; i < 2 * CTX * cfg.n_layers * OD_N_STREAMS; i++) {
			const uint32_t q = i % 2, position = i / 2 % CTX, stream = i / 2 / CTX % OD_N_STREAMS;
			const uint32_t layer = i / 2 / CTX / OD_N_STREAMS;
			struct od_ref at;

			od_seq_state_reserve(s[q], position + 1);
			at = od_seq_state_row(s[q], layer, (enum od_stream)stream, position);
			fill_row(wrote, row, q, layer, stream, position);
			if (pass == 0) {
				put_at(device, at, wrote, row);
			} else {
				get_at(device, read, at, row);
				assert_memory_equal(read, wrote, row);
			}
		}
	}
	for (uint32_t layer = 0; layer < cfg.n_layers; layer++) {
		const struct od_kv kv = od_state_pool_kv(p, layer);

		assert_int_equal(kv.dtype, dtype);
		assert_int_equal(kv.k_row_bytes, row);
		assert_int_equal(kv.v_row_bytes, row);
		for (uint32_t position = 0; position < CTX; position++) {
			for (int q = 0; q < 2; q++) {
				const uint64_t page = od_seq_state_pages(s[q])[position / OD_KV_PAGE] * kv.page_bytes;
				const struct od_ref k = od_seq_state_row(s[q], layer, OD_STREAM_K, position);
				const struct od_ref v = od_seq_state_row(s[q], layer, OD_STREAM_V, position);

				assert_ptr_equal(k.buf, kv.pages.buf);
				assert_ptr_equal(v.buf, kv.pages.buf);
				assert_int_equal(k.at, kv.pages.at + page + kv.k_at + position % OD_KV_PAGE * row);
				assert_int_equal(v.at, kv.pages.at + page + kv.v_at + position % OD_KV_PAGE * row);
			}
		}
	}
	od_seq_state_free(s[0]);
	od_seq_state_free(s[1]);
	od_state_pool_free(p);
}

static void test_layout(void **state)
{
	(void)state;
	check_layout(OD_PROFILE_F32, OD_F32);
	check_layout(OD_PROFILE_BF16, OD_BF16);
}

/* Pages come when they are reserved, stay where they are, and stay when a sequence is truncated. */
static void test_reserve(void **state)
{
	struct od_state_pool *p = pool_new(OD_PROFILE_F32, CTX, 1);
	struct od_seq_state *s = seq_new(p);
	uint32_t page[3];

	(void)state;
	od_seq_state_reserve(s, 0);
	assert_int_equal(od_seq_state_n_pages(s), 0);
	for (uint32_t n = 1; n <= CTX; n++) {
		od_seq_state_reserve(s, n);
		assert_int_equal(od_seq_state_n_pages(s), od_state_pages(n));
		assert_true(n <= OD_KV_PAGE || memcmp(page, od_seq_state_pages(s), od_state_pages(n - 1) * sizeof(*page)) == 0);
		memcpy(page, od_seq_state_pages(s), od_state_pages(n) * sizeof(*page));
	}
	od_seq_state_reserve(s, 1);
	assert_int_equal(od_seq_state_n_pages(s), 3);
	od_seq_state_set_length(s, 140);
	assert_int_equal(od_seq_state_length(s), 140);
	od_seq_state_set_length(s, 2);
	assert_int_equal(od_seq_state_length(s), 2);
	assert_int_equal(od_seq_state_n_pages(s), 3);
	assert_memory_equal(page, od_seq_state_pages(s), sizeof(page));
	od_seq_state_free(s);
	od_state_pool_free(p);
}

/* Each page of a sequence is a page of the pool, and of no other sequence. */
static void check_owners(struct od_seq_state *const *s, uint32_t n, uint32_t n_pages)
{
	bool taken[MAX_PAGES] = { false };

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; s[i] != NULL && k < od_seq_state_n_pages(s[i]); k++) {
			uint32_t page = od_seq_state_pages(s[i])[k];

			assert_in_range(page, 0, n_pages - 1);
			assert_false(taken[page]);
			taken[page] = true;
		}
	}
}

/* Sequences come, grow and go in any order; freed pages are used again, so that all n may always be as long as they
 * like. */
static void test_reuse(void **state)
{
	const uint32_t n = 7, n_pages = n * od_state_pages(CTX);
	struct od_state_pool *p = pool_new(OD_PROFILE_BF16, CTX, n);
	struct od_seq_state *s[7] = { NULL };
	uint32_t moved = 0, first[7] = { 0 };

	(void)state;
	assert_true(n_pages <= MAX_PAGES);
	for (int round = 0; round < 2000; round++) {
		uint32_t i = random_below(&seed, n);

		if (s[i] == NULL) {
			s[i] = seq_new(p);
			assert_int_equal(od_seq_state_n_pages(s[i]), 0);
			assert_int_equal(od_seq_state_length(s[i]), 0);
		} else if (random_below(&seed, 4) == 0) {
			od_seq_state_free(s[i]);
			s[i] = NULL;
		} else {
			od_seq_state_reserve(s[i], 1 + random_below(&seed, CTX));
			moved += od_seq_state_pages(s[i])[0] != first[i];
			first[i] = od_seq_state_pages(s[i])[0];
		}
		check_owners(s, n, n_pages);
	}
	assert_true(moved > 100);
	for (uint32_t i = 0; i < n; i++) {
		if (s[i] == NULL)
			s[i] = seq_new(p);
		od_seq_state_reserve(s[i], CTX);
		assert_int_equal(od_seq_state_n_pages(s[i]), od_state_pages(CTX));
	}
	check_owners(s, n, n_pages);
	for (uint32_t i = 0; i < n; i++)
		od_seq_state_free(s[i]);
	od_state_pool_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_context_limits),
		cmocka_unit_test(test_sequence_limit),
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_reuse),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
