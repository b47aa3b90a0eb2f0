/* Gemma 4: the published model, alone and as the text part of one that sees pictures; settings; what is refused. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/unit/family_util.h"

static void check_attention(const struct od_mixer *m, uint32_t kv_heads, uint32_t dim, uint32_t window, bool v_is_k)
{
	assert_int_equal(m->n_heads, 16);
	assert_int_equal(m->n_kv_heads, kv_heads);
	assert_int_equal(m->k_dim, dim);
	assert_int_equal(m->v_dim, dim);
	assert_int_equal(m->window, window);
	assert_true(m->scale == 1 && m->norm_eps == 1e-6f && m->clip == 0);
	assert_int_equal(m->qk_norm, OD_QK_NORM_HEAD);
	assert_true(m->v_norm && m->v_is_k == v_is_k);
	assert_false(m->qkv_bias || m->o_bias);
}

static void check_layer(const struct od_layer_spec *l)
{
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	assert_int_equal(l->shared_intermediate, 2112);
	assert_true(l->sandwich && l->scaled && !l->shared_gate);
	assert_true(l->router.norm && l->router.factors && l->router.renormalise && !l->router.bias);
	assert_int_equal(l->router.score, OD_SCORE_SOFTMAX);
	assert_true(l->router.scale == 1 && l->router.n_groups == 0 && l->router.sum_eps == 0);
	near((double)l->router.logit_scale, 0.018844459036110227); /* 2816^-0.5 */
}

static void test_26b_a4b(void **state)
{
	static const struct tensor global[] = {
		{ OD_ROLE_EMBED, 0, "model.embed_tokens.weight", 262144, 2816 },
		{ OD_ROLE_FINAL_NORM, 0, "model.norm.weight", 2816, 0 },
	};
	static const struct tensor sliding[] = {
		{ OD_ROLE_ATTN_NORM, 4, "model.layers.4.input_layernorm.weight", 2816, 0 },
		{ OD_ROLE_Q, 4, "model.layers.4.self_attn.q_proj.weight", 4096, 2816 },
		{ OD_ROLE_K, 4, "model.layers.4.self_attn.k_proj.weight", 2048, 2816 },
		{ OD_ROLE_V, 4, "model.layers.4.self_attn.v_proj.weight", 2048, 2816 },
		{ OD_ROLE_O, 4, "model.layers.4.self_attn.o_proj.weight", 2816, 4096 },
		{ OD_ROLE_Q_NORM, 4, "model.layers.4.self_attn.q_norm.weight", 256, 0 },
		{ OD_ROLE_K_NORM, 4, "model.layers.4.self_attn.k_norm.weight", 256, 0 },
		{ OD_ROLE_ATTN_POST_NORM, 4, "model.layers.4.post_attention_layernorm.weight", 2816, 0 },
		{ OD_ROLE_FFN_NORM, 4, "model.layers.4.pre_feedforward_layernorm_2.weight", 2816, 0 },
		{ OD_ROLE_ROUTER, 4, "model.layers.4.router.proj.weight", 128, 2816 },
		{ OD_ROLE_ROUTER_NORM, 4, "model.layers.4.router.scale", 2816, 0 },
		{ OD_ROLE_ROUTER_FACTORS, 4, "model.layers.4.router.per_expert_scale", 128, 0 },
		{ OD_ROLE_SHARED_NORM, 4, "model.layers.4.pre_feedforward_layernorm.weight", 2816, 0 },
		{ OD_ROLE_SHARED_GATE, 4, "model.layers.4.mlp.gate_proj.weight", 2112, 2816 },
		{ OD_ROLE_SHARED_UP, 4, "model.layers.4.mlp.up_proj.weight", 2112, 2816 },
		{ OD_ROLE_SHARED_DOWN, 4, "model.layers.4.mlp.down_proj.weight", 2816, 2112 },
		{ OD_ROLE_SHARED_POST_NORM, 4, "model.layers.4.post_feedforward_layernorm_1.weight", 2816, 0 },
		{ OD_ROLE_EXPERTS_POST_NORM, 4, "model.layers.4.post_feedforward_layernorm_2.weight", 2816, 0 },
		{ OD_ROLE_FFN_POST_NORM, 4, "model.layers.4.post_feedforward_layernorm.weight", 2816, 0 },
		{ OD_ROLE_LAYER_SCALE, 4, "model.layers.4.layer_scalar", 1, 0 },
	};
	struct od_config c;
	uint64_t n_out, n_in;

	(void)state;
	take(&c, gemma4_26b_a4b, "{}");
	check_counts(&c, "gemma4", 30, 0, 2);
	check_experts(&c, 128, 8, 704);
	assert_true(c.tied_head && !c.multimodal && c.logit_cap == 30);
	near((double)c.embed_scale, 53.06599664568832);
	assert_int_equal(c.act.kind, OD_ACT_GELU);
	for (uint32_t i = 0; i < 30; i++) {
		const struct od_layer_spec *l = od_config_layer(&c, i);
		const bool full = i % 6 == 5;

		check_layer(l);
		check_attention(&l->mix, full ? 2 : 8, full ? 512 : 256, full ? 0 : 1024, full);
		assert_int_equal(l->mix.rope, full);
	}
	assert_int_equal(c.n_ropes, 2);
	assert_true(c.rope[0].dims == 256 && c.rope[0].theta == 1e4 && c.rope[0].pairs == 0 && c.rope[0].divisor == 0);
	assert_true(c.rope[1].dims == 512 && c.rope[1].theta == 1e6 && c.rope[1].pairs == 64 && c.rope[1].divisor == 0);
	CHECK_TENSORS(&c, global);
	CHECK_TENSORS(&c, sliding);
	od_role_shape(&c, OD_ROLE_V, 5, &n_out, &n_in);
	assert_int_equal(n_out, 0);
	od_role_shape(&c, OD_ROLE_K, 5, &n_out, &n_in);
	assert_int_equal(n_out, 1024);
	check_expert(&c, 29, 127, "model.layers.29.experts.127.gate_proj.weight",
		     "model.layers.29.experts.127.up_proj.weight", "model.layers.29.experts.127.down_proj.weight");
}

/* Where the matrices of all experts are. */
static void test_stacked(void **state)
{
	static const struct {
		enum od_expert_mat mat;
		const char *name;
		uint64_t rows, first_row;
	} want[] = {
		{ OD_MAT_GATE, "model.layers.7.experts.gate_up_proj", 1408, 0 },
		{ OD_MAT_UP, "model.layers.7.experts.gate_up_proj", 1408, 704 },
		{ OD_MAT_DOWN, "model.layers.7.experts.down_proj", 2816, 0 },
	};
	char name[OD_NAME_BYTES];
	struct od_stack at;
	struct od_config c;

	(void)state;
	take(&c, gemma4_26b_a4b, "{}");
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		assert_true(od_expert_stacked_name(&c, 7, want[i].mat, name, &at));
		assert_string_equal(name, want[i].name);
		assert_true(at.rows == want[i].rows && at.first == want[i].first_row && at.step == 1);
	}
	take(&c, qwen3_30b_a3b, "{}");
	assert_false(od_expert_stacked_name(&c, 7, OD_MAT_GATE, name, &at));
}

/* The text part inside of a model that sees: outer and inner tokens end a text. */
static void test_multimodal(void **state)
{
	static const char *const in[] = { "model.language_model.layers.0.layer_scalar", "model.layers.0.layer_scalar",
					  "lm_head.weight", "model.vision_tower", "model.embed_visionary" };
	static const char *const out[] = { "model.vision_tower.patch_embedder.input_proj.weight",
					   "model.embed_vision.x.weight", "model.audio_tower.a",
					   "model.embed_audio.b" };
	json_t *root =
		json_pack("{s:[s], s:s, s:[i,i], s:o, s:{s:s}}", "architectures", "Gemma4ForConditionalGeneration",
			  "model_type", "gemma4", "eos_token_id", 1, 106, "text_config",
			  json_loads(gemma4_26b_a4b, 0, NULL), "vision_config", "model_type", "gemma4_vision");
	struct od_err err = { 0 };
	char name[OD_NAME_BYTES];
	struct od_config c;

	(void)state;
	assert_non_null(root);
	if (od_config_parse(&c, root, "config.json", &err) != OD_OK)
		fail_msg("%s", err.msg);
	check_counts(&c, "gemma4", 30, 0, 2);
	assert_true(c.multimodal);
	assert_int_equal(c.n_eos, 2);
	assert_true(c.eos[0] == 1 && c.eos[1] == 106);
	od_source_name(&c, "model.layers.3.layer_scalar", name);
	assert_string_equal(name, "model.language_model.layers.3.layer_scalar");
	od_source_name(&c, "lm_head.weight", name);
	assert_string_equal(name, "lm_head.weight");
	for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++)
		assert_false(od_source_ignorable(&c, in[i]));
	for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++)
		assert_true(od_source_ignorable(&c, out[i]));
	json_object_del(json_object_get(root, "text_config"), "enable_moe_block");
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "enable_moe_block"));
	json_object_set_new(root, "text_config", json_integer(1));
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_FORMAT);
	json_decref(root);
	take(&c, gemma4_26b_a4b, "{}");
	for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++)
		assert_false(od_source_ignorable(&c, out[i]));
	refuse(mixtral_8x7b, "{\"text_config\":{}}", OD_ERR_UNSUPPORTED, "text_config", "mixtral");
}

/* transformers' defaults, and the other settings. */
static void test_settings(void **state)
{
	struct od_config c;

	(void)state;
	take(&c, gemma4_26b_a4b,
	     "{\"rope_parameters\":null,\"sliding_window\":null,\"head_dim\":null,\"global_head_dim\":null,"
	     "\"tie_word_embeddings\":null,\"final_logit_softcapping\":null,\"num_kv_shared_layers\":null}");
	assert_true(c.rope[0].theta == 1e4 && c.rope[0].pairs == 0 && c.rope[0].dims == 256);
	assert_true(c.rope[1].theta == 1e6 && c.rope[1].pairs == 64 && c.rope[1].dims == 512);
	assert_true(c.tied_head && c.logit_cap == 0 && od_config_layer(&c, 0)->mix.window == 512);
	take(&c, gemma4_26b_a4b, "{\"attention_k_eq_v\":null,\"num_hidden_layers\":7}");
	for (uint32_t i = 0; i < 7; i++) {
		const bool full = i == 5 || i == 6; /* the last one always */

		check_attention(&od_config_layer(&c, i)->mix, 8, full ? 512 : 256, full ? 0 : 1024, false);
	}
	take(&c, gemma4_26b_a4b, "{\"num_global_key_value_heads\":null}");
	check_attention(&od_config_layer(&c, 5)->mix, 8, 512, 0, true);
	take(&c, gemma4_26b_a4b,
	     "{\"num_hidden_layers\":3,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_"
	     "attention\"]}");
	assert_int_equal(od_config_layer(&c, 0)->mix.window, 0);
	assert_int_equal(od_config_layer(&c, 1)->mix.window, 1024);
	assert_int_equal(od_config_layer(&c, 2)->mix.window, 0);
	take(&c, gemma4_26b_a4b,
	     GEMMA_ROPE("\"proportional\",\"partial_rotary_factor\":0.3,\"factor\":8", "\"proportional\""));
	assert_true(c.rope[1].pairs == 76 && c.rope[1].divisor == 8); /* 0.3 * 512 / 2 = 76.8 */
	assert_true(c.rope[0].pairs == 0 && c.rope[0].divisor == 0);
	take(&c, gemma4_26b_a4b, GEMMA_ROPE("\"default\"", "\"default\""));
	assert_true(c.rope[1].pairs == 0 && c.rope[1].dims == 512);
}

/* The first six layers slide, the seventh does not. */
#define OVERRIDES(o) \
	"{\"num_hidden_layers\":7,\"global_head_dim\":null,\"num_global_key_value_heads\":null,\"layer_types\":[\"sliding_attention\"," \
	"\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_" \
	"attention\"],\"per_layer_config\":{" o "}}"

/* As transformers 5 writes what the published files have in global_head_dim and num_global_key_value_heads. */
static void test_overrides(void **state)
{
	struct od_config c;

	(void)state;
	take(&c, gemma4_26b_a4b, OVERRIDES("\"06\":{\"head_dim\":512,\"num_key_value_heads\":2}"));
	check_attention(&od_config_layer(&c, 0)->mix, 8, 256, 1024, false);
	check_attention(&od_config_layer(&c, 6)->mix, 2, 512, 0, true);
	assert_true(c.rope[1].dims == 512 && c.rope[1].pairs == 64);
	take(&c, gemma4_26b_a4b, OVERRIDES("\"6\":{\"num_key_value_heads\":4}"));
	check_attention(&od_config_layer(&c, 6)->mix, 4, 256, 0, true);
	take(&c, gemma4_26b_a4b, OVERRIDES(""));
	check_attention(&od_config_layer(&c, 6)->mix, 8, 256, 0, true);
}

/* The last layers use the keys and values of the last ones before them, each of its kind, and may have wider dense
 * networks. */
static void test_shared_kv(void **state)
{
	static const char *const fields[] = { "{\"num_kv_shared_layers\":10,\"use_double_wide_mlp\":true}",
					      "{\"num_kv_shared_layers\":10}" };
	static const enum od_role gone[] = { OD_ROLE_K, OD_ROLE_V, OD_ROLE_K_NORM };
	uint64_t n_out, n_in;
	struct od_config c;

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		take(&c, gemma4_26b_a4b, fields[k]);
		for (uint32_t i = 0; i < 30; i++) {
			const struct od_layer_spec *l = od_config_layer(&c, i);
			const bool full = i % 6 == 5;
			struct od_state_spec s = { 0 };

			assert_int_equal(l->mix.kv_of, i < 20 ? 0 : full ? 18 : 20); /* layers 17 and 19 */
			assert_int_equal(l->shared_intermediate, i < 20 || k == 1 ? 2112 : 4224);
			check_attention(&l->mix, full ? 2 : 8, full ? 512 : 256, full ? 0 : 1024, full);
			l->mixer->state(&l->mix, &s);
			assert_int_equal(s.n_streams, i < 20 ? 2 : 0);
			for (size_t g = 0; i >= 20 && g < sizeof(gone) / sizeof(gone[0]); g++) {
				od_role_shape(&c, gone[g], i, &n_out, &n_in);
				assert_int_equal(n_out, 0);
			}
			od_role_shape(&c, OD_ROLE_Q_NORM, i, &n_out, &n_in);
			assert_int_equal(n_out, full ? 512 : 256);
		}
		assert_int_equal(c.n_kinds, 4);
	}
	assert_true(od_source_ignorable(&c, "model.layers.20.self_attn.k_proj.weight"));
	assert_true(od_source_ignorable(&c, "model.layers.29.self_attn.v_proj.weight_scale"));
	assert_true(od_source_ignorable(&c, "model.layers.29.self_attn.k_norm.weight"));
	assert_false(od_source_ignorable(&c, "model.layers.19.self_attn.k_proj.weight"));
	assert_false(od_source_ignorable(&c, "model.layers.20.self_attn.q_proj.weight"));
	assert_false(od_source_ignorable(&c, "model.layers.30.self_attn.k_proj.weight"));
	take(&c, gemma4_26b_a4b, "{\"num_kv_shared_layers\":null,\"use_double_wide_mlp\":true}");
	assert_true(c.n_kinds == 2 && od_config_layer(&c, 29)->shared_intermediate == 2112);
}

static void test_layer_inputs(void **state)
{
	static const struct tensor global[] = {
		{ OD_ROLE_LAYER_EMBED, 0, "model.embed_tokens_per_layer.weight", 262144, 480 },
		{ OD_ROLE_LAYER_PROJECT, 0, "model.per_layer_model_projection.weight", 480, 2816 },
		{ OD_ROLE_LAYER_PROJECT_NORM, 0, "model.per_layer_projection_norm.weight", 16, 0 },
		{ OD_ROLE_INPUT_GATE, 7, "model.layers.7.per_layer_input_gate.weight", 16, 2816 },
		{ OD_ROLE_INPUT_PROJECT, 7, "model.layers.7.per_layer_projection.weight", 2816, 16 },
		{ OD_ROLE_INPUT_POST_NORM, 7, "model.layers.7.post_per_layer_input_norm.weight", 2816, 0 },
	};
	struct od_config c;
	uint64_t n_out, n_in;

	(void)state;
	take(&c, gemma4_26b_a4b, "{\"hidden_size_per_layer_input\":16,\"vocab_size_per_layer_input\":262144}");
	assert_int_equal(c.layer_input, 16);
	for (size_t i = 0; i < sizeof(global) / sizeof(global[0]); i++) {
		char name[OD_NAME_BYTES];

		od_dense_source_name(&c, global[i].role, global[i].layer, name);
		assert_string_equal(name, global[i].name);
		od_role_shape(&c, global[i].role, global[i].layer, &n_out, &n_in);
		assert_true(n_out == global[i].n_out && n_in == global[i].n_in);
		assert_false(od_role_quantised(global[i].role));
	}
	take(&c, gemma4_26b_a4b, "{\"hidden_size_per_layer_input\":null,\"vocab_size_per_layer_input\":null}");
	assert_int_equal(c.layer_input, 256);
	take(&c, gemma4_26b_a4b, "{\"vocab_size_per_layer_input\":5}"); /* its width is 0 */
	assert_int_equal(c.layer_input, 0);
	for (size_t i = 0; i < sizeof(global) / sizeof(global[0]); i++) {
		od_role_shape(&c, global[i].role, global[i].layer, &n_out, &n_in);
		assert_true(n_out == 0 && n_in == 0);
	}
}

static void test_refuses(void **state)
{
	static const char *const t = gemma4_26b_a4b;

	(void)state;
	refuse(t, "{\"enable_moe_block\":false}", OD_ERR_UNSUPPORTED, "enable_moe_block", "expected true");
	refuse(t, "{\"enable_moe_block\":null}", OD_ERR_UNSUPPORTED, "enable_moe_block", "expected true");
	refuse(t, "{\"hidden_size_per_layer_input\":34953}", OD_ERR_RANGE, "hidden_size_per_layer_input",
	       "found 34953");
	refuse(t, "{\"hidden_size_per_layer_input\":-1}", OD_ERR_RANGE, "hidden_size_per_layer_input", "found -1");
	refuse(t, "{\"hidden_size_per_layer_input\":8,\"vocab_size_per_layer_input\":262143}", OD_ERR_UNSUPPORTED,
	       "vocab_size_per_layer_input", "found 262143");
	refuse(t, "{\"hidden_size_per_layer_input\":8,\"vocab_size\":1000,\"vocab_size_per_layer_input\":null}",
	       OD_ERR_UNSUPPORTED, "vocab_size_per_layer_input", "found 262144");
	refuse(t, "{\"enable_moe_block\":false,\"hidden_size_per_layer_input\":8}", OD_ERR_UNSUPPORTED,
	       "enable_moe_block", "expected true");
	refuse(t, "{\"num_kv_shared_layers\":30}", OD_ERR_RANGE, "num_kv_shared_layers", "found 30");
	refuse(t, "{\"num_kv_shared_layers\":25}", OD_ERR_FORMAT, "num_kv_shared_layers",
	       "\"full_attention\" layer among the 5 layers");
	refuse(t, "{\"num_kv_shared_layers\":1,\"use_double_wide_mlp\":true,\"intermediate_size\":524289}",
	       OD_ERR_RANGE, "intermediate_size", "found 524289");
	refuse(t, "{\"use_double_wide_mlp\":1}", OD_ERR_FORMAT, "use_double_wide_mlp", "");
	refuse(t, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(t, "{\"attn_logit_softcapping\":50}", OD_ERR_UNSUPPORTED, "attn_logit_softcapping", "found 50");
	refuse(t, "{\"use_bidirectional_attention\":\"all\"}", OD_ERR_UNSUPPORTED, "use_bidirectional_attention",
	       "\"all\"");
	refuse(t, "{\"per_layer_config\":{\"5\":{\"head_dim\":512}}}", OD_ERR_UNSUPPORTED, "per_layer_config",
	       "all layers of a kind");
	refuse(t, OVERRIDES("\"4\":{\"head_dim\":512}"), OD_ERR_UNSUPPORTED, "per_layer_config",
	       "all layers of a kind");
	refuse(t, OVERRIDES("\"7\":{\"head_dim\":512}"), OD_ERR_UNSUPPORTED, "per_layer_config", "numbers of layers");
	refuse(t, OVERRIDES("\"6\":{\"head_dim\":512,\"sliding_window\":9}"), OD_ERR_UNSUPPORTED, "per_layer_config",
	       "alone");
	refuse(t, OVERRIDES("\"6\":{\"head_dim\":0}"), OD_ERR_RANGE, "head_dim", "found 0");
	refuse(t, "{\"per_layer_config\":[1]}", OD_ERR_UNSUPPORTED, "per_layer_config", "an object");
	refuse(t, "{\"rope_scaling\":{\"rope_type\":\"yarn\"}}", OD_ERR_UNSUPPORTED, "rope_scaling", "yarn");
	refuse(t, "{\"hidden_activation\":\"gelu\"}", OD_ERR_UNSUPPORTED, "hidden_activation", "\"gelu\"");
	refuse(t, "{\"final_logit_softcapping\":-1}", OD_ERR_RANGE, "final_logit_softcapping", "-1");
	refuse(t, "{\"final_logit_softcapping\":0}", OD_ERR_RANGE, "final_logit_softcapping", "found 0");
	refuse(t, "{\"rope_parameters\":null,\"global_head_dim\":6}", OD_ERR_UNSUPPORTED, "rope_parameters",
	       "at least 8, found 6");
	refuse(t, "{\"num_global_key_value_heads\":3}", OD_ERR_FORMAT, "num_global_key_value_heads", "found 3");
	refuse(t, "{\"num_key_value_heads\":5}", OD_ERR_FORMAT, "num_key_value_heads", "found 5");
	refuse(t, "{\"head_dim\":255}", OD_ERR_UNSUPPORTED, "\"head_dim\"", "found 255");
	refuse(t, "{\"global_head_dim\":511}", OD_ERR_UNSUPPORTED, "global_head_dim", "found 511");
	refuse(t, "{\"top_k_experts\":17}", OD_ERR_RANGE, "top_k_experts", "1 to 16, found 17");
	refuse(t, "{\"sliding_window\":0}", OD_ERR_RANGE, "sliding_window", "found 0");
	refuse(t, "{\"layer_types\":[\"full_attention\"]}", OD_ERR_UNSUPPORTED, "layer_types", "each of 30 layers");
	refuse(t, "{\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]}", OD_ERR_UNSUPPORTED, "layer_types",
	       "each of 1 layers");
	refuse(t, "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6}}}", OD_ERR_MISSING, "rope_parameters",
	       "sliding_attention");
	refuse(t, GEMMA_ROPE("\"yarn\",\"factor\":4", "\"default\""), OD_ERR_UNSUPPORTED, "full_attention", "yarn");
	refuse(t, GEMMA_ROPE("\"default\"", "\"linear\",\"factor\":4"), OD_ERR_UNSUPPORTED, "sliding_attention",
	       "linear");
	refuse(t, GEMMA_ROPE("\"proportional\",\"partial_rotary_factor\":0.001", "\"default\""), OD_ERR_UNSUPPORTED,
	       "full_attention", "partial_rotary_factor");
	refuse(t, GEMMA_ROPE("\"proportional\",\"partial_rotary_factor\":1.5", "\"default\""), OD_ERR_RANGE,
	       "full_attention", "1.5");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_26b_a4b),	     cmocka_unit_test(test_stacked),
		cmocka_unit_test(test_multimodal),   cmocka_unit_test(test_shared_kv),
		cmocka_unit_test(test_layer_inputs), cmocka_unit_test(test_settings),
		cmocka_unit_test(test_overrides),    cmocka_unit_test(test_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
