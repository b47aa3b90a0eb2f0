/* Qwen3-Next and Qwen3.5-MoE: layers with gated delta rules between those with gated attention; the text part of a
 * multimodal model. */
#include <string.h>

#include "tests/unit/family_util.h"

static bool has_delta(const struct od_config *c, uint32_t layer)
{
	return od_config_layer(c, layer)->mixer == &od_mixer_delta;
}

/* One letter for each layer: d (delta rule) or a (attention). */
static void check_mixers(const char *text, const char *changes, const char *kinds)
{
	struct od_config c;

	take(&c, text, changes);
	assert_int_equal(c.n_layers, strlen(kinds));
	for (uint32_t i = 0; i < c.n_layers; i++)
		if (has_delta(&c, i) != (kinds[i] == 'd'))
			fail_msg("%s: layer %u: not %c", changes, i, kinds[i]);
}

static void check_delta(const struct od_mixer *m, bool by_key_head)
{
	assert_true(m->n_heads == 32 && m->n_kv_heads == 16 && m->k_dim == 128 && m->v_dim == 128 && m->conv == 4);
	assert_true(m->by_key_head == by_key_head && m->norm_eps == 1e-6f);
}

static void check_attention(const struct od_config *c, const struct od_mixer *m)
{
	check_heads(m, 16, 2, 256, 256);
	assert_true(m->gated && m->qk_norm == OD_QK_NORM_HEAD && !m->qkv_bias && !m->o_bias && m->window == 0);
	near((double)m->scale, 1.0 / 16);
	check_plain_rope(c, 64, 1e7);
	assert_true(c->norms_around_one);
}

static void test_qwen3_next_80b(void **state)
{
	static const struct tensor delta[] = {
		{ OD_ROLE_ATTN_NORM, 46, "model.layers.46.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_DELTA_QKVZ, 46, "model.layers.46.linear_attn.in_proj_qkvz.weight", 12288, 2048 },
		{ OD_ROLE_DELTA_BA, 46, "model.layers.46.linear_attn.in_proj_ba.weight", 64, 2048 },
		{ OD_ROLE_DELTA_CONV, 46, "model.layers.46.linear_attn.conv1d.weight", 8192 * 4, 0 },
		{ OD_ROLE_DELTA_A_LOG, 46, "model.layers.46.linear_attn.A_log", 32, 0 },
		{ OD_ROLE_DELTA_DT_BIAS, 46, "model.layers.46.linear_attn.dt_bias", 32, 0 },
		{ OD_ROLE_DELTA_NORM, 46, "model.layers.46.linear_attn.norm.weight", 128, 0 },
		{ OD_ROLE_DELTA_OUT, 46, "model.layers.46.linear_attn.out_proj.weight", 2048, 4096 },
		{ OD_ROLE_FFN_NORM, 46, "model.layers.46.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 46, "model.layers.46.mlp.gate.weight", 512, 2048 },
		{ OD_ROLE_SHARED_GATE, 46, "model.layers.46.mlp.shared_expert.gate_proj.weight", 512, 2048 },
		{ OD_ROLE_SHARED_UP, 46, "model.layers.46.mlp.shared_expert.up_proj.weight", 512, 2048 },
		{ OD_ROLE_SHARED_DOWN, 46, "model.layers.46.mlp.shared_expert.down_proj.weight", 2048, 512 },
		{ OD_ROLE_SHARED_SCORE, 46, "model.layers.46.mlp.shared_expert_gate.weight", 1, 2048 },
	};
	struct od_config c;
	uint64_t n_out, n_in;

	(void)state;
	take(&c, qwen3_next_80b, "{}");
	check_counts(&c, "qwen3_next", 48, 0, 2);
	check_experts(&c, 512, 10, 512);
	for (uint32_t i = 0; i < 48; i++)
		assert_int_equal(has_delta(&c, i), i % 4 != 3);
	check_delta(&od_config_layer(&c, 46)->mix, true);
	check_attention(&c, &od_config_layer(&c, 47)->mix);
	CHECK_TENSORS(&c, delta);
	od_role_shape(&c, OD_ROLE_Q, 47, &n_out, &n_in);
	assert_true(n_out == 8192 && n_in == 2048); /* queries and gates */
	od_role_shape(&c, OD_ROLE_O, 47, &n_out, &n_in);
	assert_true(n_out == 2048 && n_in == 4096);
	assert_true(od_config_layer(&c, 0)->router.renormalise && od_config_layer(&c, 0)->shared_gate);
	check_expert(&c, 47, 511, "model.layers.47.mlp.experts.511.gate_proj.weight",
		     "model.layers.47.mlp.experts.511.up_proj.weight",
		     "model.layers.47.mlp.experts.511.down_proj.weight");
}

static void check_ignored(const struct od_config *c, const char *name, bool ignored)
{
	if (od_source_ignorable(c, name) != ignored)
		fail_msg("%s: expected %s", name, ignored ? "left out" : "refused");
}

static void test_qwen35(void **state)
{
	static const struct tensor delta[] = {
		{ OD_ROLE_ATTN_NORM, 1, "model.layers.1.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_DELTA_QKV, 1, "model.layers.1.linear_attn.in_proj_qkv.weight", 8192, 2048 },
		{ OD_ROLE_DELTA_Z, 1, "model.layers.1.linear_attn.in_proj_z.weight", 4096, 2048 },
		{ OD_ROLE_DELTA_B, 1, "model.layers.1.linear_attn.in_proj_b.weight", 32, 2048 },
		{ OD_ROLE_DELTA_A, 1, "model.layers.1.linear_attn.in_proj_a.weight", 32, 2048 },
		{ OD_ROLE_DELTA_CONV, 1, "model.layers.1.linear_attn.conv1d.weight", 8192 * 4, 0 },
		{ OD_ROLE_DELTA_A_LOG, 1, "model.layers.1.linear_attn.A_log", 32, 0 },
		{ OD_ROLE_DELTA_DT_BIAS, 1, "model.layers.1.linear_attn.dt_bias", 32, 0 },
		{ OD_ROLE_DELTA_NORM, 1, "model.layers.1.linear_attn.norm.weight", 128, 0 },
		{ OD_ROLE_DELTA_OUT, 1, "model.layers.1.linear_attn.out_proj.weight", 2048, 4096 },
		{ OD_ROLE_FFN_NORM, 1, "model.layers.1.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 1, "model.layers.1.mlp.gate.weight", 256, 2048 },
		{ OD_ROLE_SHARED_GATE, 1, "model.layers.1.mlp.shared_expert.gate_proj.weight", 512, 2048 },
		{ OD_ROLE_SHARED_UP, 1, "model.layers.1.mlp.shared_expert.up_proj.weight", 512, 2048 },
		{ OD_ROLE_SHARED_DOWN, 1, "model.layers.1.mlp.shared_expert.down_proj.weight", 2048, 512 },
		{ OD_ROLE_SHARED_SCORE, 1, "model.layers.1.mlp.shared_expert_gate.weight", 1, 2048 },
	};
	char name[OD_NAME_BYTES];
	struct od_stack at;
	struct od_config c;

	(void)state;
	take(&c, qwen35_35b, "{}");
	check_counts(&c, "qwen3_5_moe", 4, 0, 2);
	check_experts(&c, 256, 8, 512);
	check_delta(&od_config_layer(&c, 1)->mix, false);
	check_attention(&c, &od_config_layer(&c, 3)->mix);
	assert_true(od_config_layer(&c, 3)->router.renormalise);
	CHECK_TENSORS(&c, delta);
	assert_true(od_expert_stacked_name(&c, 3, OD_MAT_UP, name, &at));
	assert_string_equal(name, "model.layers.3.mlp.experts.gate_up_proj");
	assert_true(at.first == 512 && at.rows == 1024); /* behind the gate's */
	assert_true(od_expert_stacked_name(&c, 3, OD_MAT_DOWN, name, &at));
	assert_string_equal(name, "model.layers.3.mlp.experts.down_proj");
	assert_true(at.first == 0 && at.rows == 2048);
	check_ignored(&c, "mtp.layers.0.mlp.gate.weight", true);
	check_ignored(&c, "model.visual.blocks.0.norm1.weight", false); /* there is none in a model of text */
}

static void test_multimodal(void **state)
{
	static const char fields[] =
		"{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"model_type\":\"qwen3_5_moe\","
		"\"image_token_id\":248056,\"vision_config\":{\"depth\":27},\"text_config\":";
	char text[sizeof(fields) + 4096], name[OD_NAME_BYTES];
	struct od_config c;

	(void)state;
	snprintf(text, sizeof(text), "%s%s}", fields, qwen35_35b);
	take(&c, text, "{}");
	check_counts(&c, "qwen3_5_moe", 4, 0, 2);
	assert_true(c.multimodal);
	od_source_name(&c, "model.layers.0.linear_attn.A_log", name);
	assert_string_equal(name, "model.language_model.layers.0.linear_attn.A_log");
	od_source_name(&c, "lm_head.weight", name);
	assert_string_equal(name, "lm_head.weight");
	check_ignored(&c, "model.visual.blocks.0.norm1.weight", true);
	check_ignored(&c, "mtp.fc.weight", true);
	check_ignored(&c, "model.audio.conv.weight", false);
	/* The outer model_type names the text's family; the inner one must agree, and may be missing. */
	json_t *root = json_loads(text, 0, NULL), *inner = json_object_get(root, "text_config");
	static const char *const others[] = { "qwen3_next", "qwen3_5_moe", "gemma4_text", "qwen3_moe", "" };
	struct od_err err = { 0 };

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		json_object_set_new(inner, "model_type", json_string(others[i]));
		assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_UNSUPPORTED);
		assert_non_null(
			strstr(err.msg, "field \"text_config\": field \"model_type\": expected \"qwen3_5_moe_text\""));
	}
	json_object_set_new(inner, "model_type", json_integer(3));
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_FORMAT);
	json_object_del(inner, "model_type");
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_OK);
	/* a text has no further text inside */
	json_object_set_new(root, "model_type", json_string("qwen3_5_moe_text"));
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "text_config"));
	json_decref(root);
	refuse(text, "{\"text_config\":null}", OD_ERR_MISSING, "hidden_size", "nothing");
	refuse(text, "{\"text_config\":{}}", OD_ERR_MISSING, "hidden_size", "nothing");
}

static void test_kinds_of_layers(void **state)
{
#define TYPE(x) "\"" x "_attention\""
#define FIVE "\"num_hidden_layers\":5"
	static const char types[] = "{" FIVE ",\"layer_types\":[" TYPE("full") "," TYPE("linear") "," TYPE(
		"full") "," TYPE("linear") "," TYPE("linear") "]}";
	static const char sliding[] =
		"{\"num_hidden_layers\":2,\"layer_types\":[" TYPE("linear") "," TYPE("sliding") "]}";
	static const char short_[] = "{\"layer_types\":[" TYPE("linear") "," TYPE("full") "]}";
	static const char no_text[] = "{\"num_hidden_layers\":1,\"layer_types\":[7]}";
	static const char none[] = "{\"num_hidden_layers\":1,\"layer_types\":[" TYPE("linear") "]}";
	const char *const both[] = { qwen3_next_80b, qwen35_35b };

	(void)state;
	check_mixers(qwen3_next_80b, "{" FIVE "}", "dddad");
	check_mixers(qwen3_next_80b, "{" FIVE ",\"full_attention_interval\":2}", "dadad");
	check_mixers(qwen3_next_80b, "{" FIVE ",\"full_attention_interval\":1}", "aaaaa");
	refuse(qwen3_next_80b, "{\"full_attention_interval\":0}", OD_ERR_RANGE, "full_attention_interval", "found 0");
	refuse(qwen3_next_80b, "{\"full_attention_interval\":49}", OD_ERR_UNSUPPORTED, "full_attention_interval",
	       "at least one");
	for (size_t i = 0; i < 2; i++) {
		check_mixers(both[i], types, "adadd");
		refuse(both[i], sliding, OD_ERR_UNSUPPORTED, "layer_types", "sliding_attention");
		refuse(both[i], short_, OD_ERR_FORMAT, "layer_types", "found 2");
		refuse(both[i], no_text, OD_ERR_UNSUPPORTED, "layer_types", "no text");
		refuse(both[i], none, OD_ERR_UNSUPPORTED, "layer_types", "at least one");
		refuse(both[i], "{\"layer_types\":\"full_attention\"}", OD_ERR_FORMAT, "layer_types", "a string");
	}
}

static void test_settings(void **state)
{
	const char *const both[] = { qwen3_next_80b, qwen35_35b };
	struct od_config c;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const uint32_t full = 3;
		static const char linear[] =
			"{\"rope_theta\":null,\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"linear\","
			"\"factor\":2.0,\"rope_theta\":1e4}}";

		refuse(both[i], linear, OD_ERR_UNSUPPORTED, "rope_parameters", "linear");
		refuse(both[i], "{\"head_dim\":null}", OD_ERR_MISSING, "head_dim", "missing");
		take(&c, both[i], "{\"attention_bias\":true}");
		assert_true(od_config_layer(&c, full)->mix.qkv_bias && od_config_layer(&c, full)->mix.o_bias);
		refuse(both[i], "{\"attn_output_gate\":false}", OD_ERR_UNSUPPORTED, "attn_output_gate", "found false");
		refuse(both[i], "{\"use_sliding_window\":true}", OD_ERR_UNSUPPORTED, "use_sliding_window",
		       "found true");
		refuse(both[i], "{\"linear_conv_kernel_dim\":1}", OD_ERR_RANGE, "linear_conv_kernel_dim", "found 1");
		refuse(both[i], "{\"linear_conv_kernel_dim\":65}", OD_ERR_RANGE, "linear_conv_kernel_dim", "found 65");
		refuse(both[i], "{\"linear_num_value_heads\":24}", OD_ERR_FORMAT, "linear_num_value_heads", "multiple");
		refuse(both[i], "{\"linear_num_value_heads\":1048576}", OD_ERR_RANGE, "linear_num_value_heads",
		       "1048576 heads");
		refuse(both[i], "{\"linear_key_head_dim\":4097}", OD_ERR_RANGE, "linear_key_head_dim", "found 4097");
	}
	refuse(qwen35_35b, "{\"norm_topk_prob\":false}", OD_ERR_UNSUPPORTED, "norm_topk_prob", "found false");
	take(&c, qwen3_next_80b, "{\"mlp_only_layers\":[3]}");
	assert_true(od_config_layer(&c, 3)->ffn == OD_FFN_DENSE && od_config_layer(&c, 3)->intermediate == 5120 &&
		    c.n_moe == 47);
	take(&c, qwen35_35b, "{\"mlp_only_layers\":[3]}"); /* its class ignores it */
	assert_int_equal(c.n_moe, 4);
	take(&c, qwen35_35b, "{\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}}");
	check_plain_rope(&c, 64, 1e6); /* a quarter of each head unless something else is said */
	take(&c, qwen3_next_80b, "{\"partial_rotary_factor\":null}");
	check_plain_rope(&c, 256, 1e7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_qwen3_next_80b), cmocka_unit_test(test_qwen35),
		cmocka_unit_test(test_multimodal),     cmocka_unit_test(test_kinds_of_layers),
		cmocka_unit_test(test_settings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
