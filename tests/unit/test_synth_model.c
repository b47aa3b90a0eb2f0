/* Expected: the published parameter and tensor counts of Mixtral-8x7B, shapes by hand, and F16 by brute force
 * over all halves. */
#include "tests/bench/synth/synth_family.h"
#include "tests/bench/synth/synth_model.h"
#include "tests/bench/synth/synth_weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct synth_model mixtral = { .layers = 32,
					    .hidden = 4096,
					    .intermediate = 14336,
					    .experts = 8,
					    .top_k = 2,
					    .heads = 32,
					    .kv_heads = 8,
					    .head_dim = 128,
					    .vocab = 32000,
					    .ctx = 32768,
					    .seed = 1,
					    .dtype = OD_BF16 };

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

static struct synth_family *family_named(const char *name, const struct synth_cut_to *to)
{
	struct synth_family *f;
	struct od_err err = { 0 };
	size_t i = 0;

	while (synth_family_names()[i] != NULL && strcmp(synth_family_names()[i], name) != 0)
		i++;
	assert_non_null(synth_family_names()[i]);
	if (synth_family_new(&f, i, to, &err) != OD_OK)
		fail_msg("%s: %s", name, err.msg);
	return f;
}

/* All weights of the published models, routers' biases included, as transformers 5.23 counts them on its meta
 * device. */
static void test_families_have_all_weights(void **state)
{
	static const struct {
		const char *name;
		uint64_t weights;
	} t[] = {
		{ "mixtral", 46702792704 },    { "qwen3_moe", 30532122624 },	 { "qwen2_moe", 14315784192 },
		{ "olmoe", 6919161856 },       { "deepseek_v2", 235741434880 },	 { "deepseek_v3", 671026419200 },
		{ "glm4_moe", 352797829024 },  { "glm4_moe_lite", 29943393920 }, { "minimax_m2", 228689764864 },
		{ "gpt_oss", 20914757184 },    { "phimoe", 41873153344 },	 { "gemma4", 25233141790 },
		{ "qwen3_next", 79674391296 }, { "qwen3_5_moe", 34660610688 },
	};
	size_t n = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct synth_family *f = family_named(t[i].name, &(struct synth_cut_to){ 0 });
		const struct od_config *c = synth_family_config(f);
		const struct synth_model m = { .family = f,
					       .layers = c->n_layers,
					       .hidden = c->hidden,
					       .intermediate = c->intermediate,
					       .experts = c->n_experts,
					       .dtype = synth_family_dtype(f) };
		struct od_err err = { 0 };
		uint64_t sum = 0;

		if (synth_check(&m, &err) != OD_OK)
			fail_msg("%s: %s", t[i].name, err.msg);
		for (uint64_t k = 0; k < synth_n_tensors(&m); k++) {
			struct synth_tensor x;
			bool around_zero, is_scale;

			synth_tensor_at(&m, k, &x);
			assert_int_equal(x.dtype, strstr(x.name, "e_score_correction_bias") != NULL ? OD_F32 :
						  strstr(x.name, "_blocks") != NULL		    ? OD_F4_E2M1 :
						  strstr(x.name, "_scales") != NULL		    ? OD_F8_E8M0 :
												      OD_BF16);
			assert_true(!(x.is_norm || x.is_bias) || x.rows == 1);
			around_zero = c->norms_around_one && strstr(x.name, "norm") != NULL &&
				      strstr(x.name, "linear_attn") == NULL;
			is_scale = strstr(x.name, "layer_scalar") != NULL || strstr(x.name, "router.scale") != NULL ||
				   strstr(x.name, "per_expert_scale") != NULL;
			assert_int_equal(x.is_norm, is_scale || (strstr(x.name, "norm") != NULL &&
								 strstr(x.name, "bias") == NULL && !around_zero));
			assert_int_equal(x.is_bias, around_zero || strstr(x.name, "bias") != NULL ||
							    strstr(x.name, "sinks") != NULL ||
							    strstr(x.name, "conv1d") != NULL ||
							    strstr(x.name, "A_log") != NULL);
			sum += x.dtype != OD_F8_E8M0 ? x.rows * x.cols : 0;
		}
		assert_int_equal(sum, t[i].weights);
		synth_family_free(f);
	}
	while (synth_family_names()[n] != NULL)
		n++;
	assert_int_equal(n, sizeof(t) / sizeof(t[0]));
}

static void test_families_are_cut(void **state)
{
	const struct synth_cut_to to = { .layers = 4, .experts = 16, .vocab = 300, .ctx = 512 };
	const struct synth_cut_to dense_only = { .layers = 3 }, few = { .experts = 12 };
	struct synth_family *f = family_named("deepseek_v3", &to);
	struct synth_model m = { .family = f, .layers = 4, .hidden = 7168, .dtype = OD_BF16 };
	struct synth_tensor t;
	struct od_err err = { 0 };
	uint64_t last;

	(void)state;
	assert_int_equal(synth_family_config(f)->n_moe, 1);
	assert_int_equal(synth_family_config(f)->ctx_max, 512);
	/* the embedding, 12 tensors of a dense layer, 14 and 48 of the other, norm and head */
	last = 1 + 3 * 12 + 14 + 48 + 2 - 1;
	assert_int_equal(synth_n_tensors(&m), last + 1);
	synth_tensor_at(&m, 0, &t);
	assert_string_equal(t.name, "model.embed_tokens.weight");
	assert_int_equal(t.rows, 300);
	synth_tensor_at(&m, 12, &t);
	assert_string_equal(t.name, "model.layers.0.mlp.down_proj.weight");
	synth_tensor_at(&m, last - 2, &t);
	assert_string_equal(t.name, "model.layers.3.mlp.experts.15.down_proj.weight");
	assert_true(t.rows == 7168 && t.cols == 2048);
	synth_tensor_at(&m, last, &t);
	assert_string_equal(t.name, "lm_head.weight");
	synth_family_free(f);
	for (size_t i = 0; synth_family_names()[i] != NULL; i++)
		if (strcmp(synth_family_names()[i], "deepseek_v3") == 0) {
			assert_int_equal(synth_family_new(&f, i, &dense_only, &err), OD_ERR_UNSUPPORTED);
			assert_non_null(strstr(err.msg, "none of the 3 layers"));
			assert_null(f);
			assert_int_equal(synth_family_new(&f, i, &few, &err), OD_ERR_FORMAT);
			assert_non_null(strstr(err.msg, "n_group"));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_families_have_all_weights),   cmocka_unit_test(test_families_are_cut),
		cmocka_unit_test(mixtral_has_its_published_size),   cmocka_unit_test(impossible_shapes_are_named),
		cmocka_unit_test(halves_round_to_the_nearest_even), cmocka_unit_test(a_row_in_pieces_is_the_same_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
