/* What a sequence remembers: sizes, layout and limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/seq_state.h"

static const struct od_config cfg = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 6, .ctx_max = 100 };
#define KV_DIM 12u

static void test_bytes(void **state)
{
	uint64_t f32 = od_seq_state_bytes(&cfg, OD_PROFILE_F32, 50);
	uint64_t bf16 = od_seq_state_bytes(&cfg, OD_PROFILE_BF16, 50);
	struct od_config huge = { .n_layers = 4096, .n_kv_heads = 4096, .head_dim = 256, .ctx_max = UINT32_MAX };
	struct od_seq_state *s;
	struct od_err err;

	(void)state;
	/* K and V, plus a little for ourselves. */
	assert_in_range(f32, 3 * 2 * 50 * KV_DIM * 4, 3 * 2 * 50 * KV_DIM * 4 + 256);
	assert_in_range(bf16, 3 * 2 * 50 * KV_DIM * 2, 3 * 2 * 50 * KV_DIM * 2 + 256);
	assert_int_equal(f32 - bf16, 3 * 2 * 50 * KV_DIM * 2);
	/* 2^12 * 2 * 2^32 * 2^20 * 4 is beyond 64 bits. */
	assert_true(od_seq_state_bytes(&huge, OD_PROFILE_F32, UINT32_MAX) == UINT64_MAX);
	assert_int_equal(od_seq_state_new(&s, &huge, OD_PROFILE_F32, UINT32_MAX, &err), OD_ERR_NOMEM);
	assert_null(s);
}

static void test_context_limits(void **state)
{
	struct od_seq_state *s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_seq_state_new(&s, &cfg, OD_PROFILE_F32, 0, &err), OD_ERR_RANGE);
	assert_null(s);
	assert_int_equal(od_seq_state_new(&s, &cfg, OD_PROFILE_F32, 101, &err), OD_ERR_RANGE);
	assert_null(s);
	assert_non_null(strstr(err.msg, "1 to 100"));
	assert_non_null(strstr(err.msg, "found 101"));
	assert_int_equal(od_seq_state_new(&s, &cfg, OD_PROFILE_F32, 100, &err), OD_OK);
	assert_int_equal(od_seq_state_ctx(s), 100);
	od_seq_state_free(s);
	od_seq_state_free(NULL);
}

/* Every row of every layer has a place of its own, and positions are adjacent. */
static void check_layout(enum od_profile profile, enum od_dtype dtype)
{
	size_t row = KV_DIM * od_dtype_bytes(dtype);
	const uint32_t ctx = 7;
	struct od_seq_state *s;
	struct od_err err;

	assert_int_equal(od_seq_state_new(&s, &cfg, profile, ctx, &err), OD_OK);
	assert_int_equal(od_seq_state_dtype(s), dtype);
	assert_int_equal(od_seq_state_row_bytes(s), row);
	assert_int_equal(od_seq_state_length(s), 0);
	for (uint32_t layer = 0; layer < cfg.n_layers; layer++) {
		for (uint32_t p = 0; p < ctx; p++) {
			char *k = od_seq_state_k(s, layer, p), *v = od_seq_state_v(s, layer, p);

			assert_ptr_equal(k, (char *)od_seq_state_k(s, layer, 0) + p * row);
			assert_ptr_equal(v, (char *)od_seq_state_v(s, layer, 0) + p * row);
			memset(k, (int)(1 + (layer * ctx + p) * 2), row);
			memset(v, (int)(2 + (layer * ctx + p) * 2), row);
		}
	}
	for (uint32_t layer = 0; layer < cfg.n_layers; layer++) {
		for (uint32_t p = 0; p < ctx; p++) {
			const char *k = od_seq_state_k(s, layer, p), *v = od_seq_state_v(s, layer, p);

			for (size_t i = 0; i < row; i++) {
				assert_int_equal(k[i], (char)(1 + (layer * ctx + p) * 2));
				assert_int_equal(v[i], (char)(2 + (layer * ctx + p) * 2));
			}
		}
	}
	od_seq_state_set_length(s, 5);
	assert_int_equal(od_seq_state_length(s), 5);
	od_seq_state_set_length(s, 2);
	assert_int_equal(od_seq_state_length(s), 2);
	od_seq_state_free(s);
}

static void test_layout(void **state)
{
	(void)state;
	check_layout(OD_PROFILE_F32, OD_F32);
	check_layout(OD_PROFILE_BF16, OD_BF16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_context_limits),
		cmocka_unit_test(test_layout),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
