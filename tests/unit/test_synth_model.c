/* Expected: the published parameter and tensor counts of Mixtral-8x7B, shapes by hand, and F16 by brute force
 * over all halves. */
#include "tests/bench/synth/synth_model.h"
#include "tests/bench/synth/synth_weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct synth_model mixtral = { .layers = 32, .hidden = 4096, .intermediate = 14336, .experts = 8,
					    .top_k = 2, .heads = 32, .kv_heads = 8, .head_dim = 128, .vocab = 32000,
					    .ctx = 32768, .seed = 1, .dtype = OD_BF16 };

static void mixtral_has_its_published_size(void **state)
{
	struct synth_tensor t;

	(void)state;
	assert_int_equal(synth_check(&mixtral, NULL), OD_OK);
	assert_int_equal(synth_n_tensors(&mixtral), 995);
	assert_int_equal(synth_total_bytes(&mixtral), 46702792704ull * 2);
	synth_tensor_at(&mixtral, 994, &t);
	assert_string_equal(t.name, "lm_head.weight");
	synth_tensor_at(&mixtral, 1 + 31 * 5 + 4, &t);
	assert_string_equal(t.name, "model.layers.5.self_attn.v_proj.weight");
	assert_int_equal(t.rows, 1024);
	assert_int_equal(t.cols, 4096);
	synth_tensor_at(&mixtral, 1 + 31 * 31 + 7 + 3 * 7 + 1, &t);
	assert_string_equal(t.name, "model.layers.31.block_sparse_moe.experts.7.w2.weight");
	assert_int_equal(t.rows, 4096);
	assert_int_equal(t.cols, 14336);
}

static void refuse(struct synth_model m, const char *words)
{
	struct od_err err = { 0 };

	assert_int_equal(synth_check(&m, &err), OD_ERR_ARG);
	if (strstr(err.msg, words) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", words, err.msg);
}

static void impossible_shapes_are_named(void **state)
{
	struct synth_model m = mixtral;

	(void)state;
	m.kv_heads = 5;
	refuse(m, "--heads 32 is not a multiple of --kv-heads 5");
	m = mixtral;
	m.head_dim = 127;
	refuse(m, "--head-dim: expected an even number (RoPE turns pairs), found 127");
	m = mixtral;
	m.top_k = 9;
	refuse(m, "--top-k 9 is more than --experts 8");
	m = mixtral;
	m.vocab = 259;
	refuse(m, "--vocab: expected 260 to 262144, found 259");
	m = mixtral;
	m.layers = 0;
	refuse(m, "--layers: expected 1 to");
	m = mixtral;
	m.experts = 4096;
	refuse(m, "at most 200000 fit");
	m = mixtral;
	m.hidden = 1 << 17;
	m.intermediate = 1 << 20;
	m.experts = 1024;
	refuse(m, "more than 64 TiB");
}

static void halves_round_to_the_nearest_even(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x7bff; h++) {
		float a = od_f16_f32((uint16_t)h), b = od_f16_f32((uint16_t)(h + 1));
		float middle = (a + b) / 2; /* exact: one more bit than a half has */
		uint32_t even = h % 2 == 0 ? h : h + 1;

		assert_int_equal(synth_f32_f16(a), h);
		assert_int_equal(synth_f32_f16(-a), h | 0x8000u);
		assert_int_equal(synth_f32_f16(middle), even);
		assert_int_equal(synth_f32_f16(od_bits_f32(od_f32_bits(middle) - 1)), h);
		assert_int_equal(synth_f32_f16(od_bits_f32(od_f32_bits(middle) + 1)), h + 1);
	}
}

static void a_row_in_pieces_is_the_same_row(void **state)
{
	uint16_t whole[448], pieces[448];
	struct synth_tensor t;
	struct synth_row *g;

	(void)state;
	assert_int_equal(synth_row_new(&g, 14336, NULL), OD_OK);
	synth_tensor_at(&mixtral, 9, &t);
	synth_row_tensor(g, 1, OD_BF16, &t);
	synth_row_fill(g, 3, 0, 448, whole);
	synth_row_fill(g, 3, 0, 1, pieces);
	synth_row_fill(g, 3, 1, 300, pieces + 1);
	synth_row_fill(g, 3, 300, 448, pieces + 300);
	assert_memory_equal(whole, pieces, sizeof(whole));
	synth_row_fill(g, 4, 0, 448, pieces);
	assert_memory_not_equal(whole, pieces, sizeof(whole));
	synth_row_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mixtral_has_its_published_size),
		cmocka_unit_test(impossible_shapes_are_named),
		cmocka_unit_test(halves_round_to_the_nearest_even),
		cmocka_unit_test(a_row_in_pieces_is_the_same_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
