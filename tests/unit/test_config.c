/* config.json to shapes: what is taken, what is refused and how the refusal reads; layers and ropes as they are added.
 * What the families make of their own fields is in test_families.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "common/model/family.h"
#include "common/model/mixer.h"
#include "tests/unit/config_util.h"

/* Mixtral-8x7B-v0.1's published config.json, less what only training reads. */
static const char mixtral_8x7b[] =
	"{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"bos_token_id\":1,\"eos_token_id\":2,"
	"\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
	"\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
	"\"num_local_experts\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"sliding_window\":null,"
	"\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"vocab_size\":32000}";

/* The file above with key set to the JSON text value (NULL: removed), parsed. */
static int parse_with(struct od_config *cfg, const char *key, const char *value, struct od_err *err)
{
	json_t *root = json_loads(mixtral_8x7b, 0, NULL);
	int rc;

	assert_non_null(root);
	if (key != NULL && value == NULL) {
		json_object_del(root, key);
	} else if (key != NULL) {
		json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);

		assert_non_null(v);
		json_object_set_new(root, key, v);
	}
	rc = od_config_parse(cfg, root, "config.json", err);
	json_decref(root);
	return rc;
}

static void must_take(struct od_config *cfg, const char *key, const char *value)
{
	struct od_err err = { 0 };
	int rc = parse_with(cfg, key, value, &err);

	if (rc != OD_OK)
		fail_msg("%s = %s: %s", key, value != NULL ? value : "(none)", err.msg);
}

/* Refused with that code, and the reason holds every given text. */
static void must_refuse(const char *key, const char *value, int code, const char *text1, const char *text2)
{
	struct od_config cfg;
	struct od_err err = { 0 };
	int rc = parse_with(&cfg, key, value, &err);

	if (rc != code || err.code != code || strstr(err.msg, "config.json") == NULL ||
	    strstr(err.msg, text1) == NULL || strstr(err.msg, text2) == NULL)
		fail_msg("%s = %s: code %d, \"%s\"; expected %d, \"%s\", \"%s\"", key, value != NULL ? value : "(none)",
			 rc, err.msg, code, text1, text2);
	assert_null(cfg.family);
}

static void test_published_file(void **state)
{
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	must_take(&c, NULL, NULL);
	assert_string_equal(c.family->name, "mixtral");
	assert_int_equal(c.n_layers, 32);
	assert_int_equal(c.n_moe, 32);
	assert_int_equal(c.n_kinds, 1);
	for (uint32_t i = 0; i < 32; i++) {
		assert_int_equal(c.kind_of[i], 0);
		assert_int_equal(c.m_of[i], i);
		assert_int_equal(c.layer_of[i], i);
	}
	l = od_config_layer(&c, 31);
	assert_ptr_equal(l, od_config_moe_layer(&c, 0));
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	assert_int_equal(l->ffn, OD_FFN_MOE);
	assert_int_equal(l->mix.n_heads, 32);
	assert_int_equal(l->mix.n_kv_heads, 8);
	assert_int_equal(l->mix.k_dim, 128);
	assert_int_equal(l->mix.v_dim, 128);
	assert_int_equal(l->mix.window, 0);
	assert_true(l->mix.scale == 0.08838834764831845f); /* 128^-0.5 */
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_NONE);
	assert_false(l->mix.qkv_bias || l->mix.o_bias || l->mix.clip != 0);
	assert_true(l->router.renormalise && l->router.scale == 1 && l->router.n_groups == 0);
	assert_int_equal(l->shared_intermediate, 0);
	assert_int_equal(c.n_ropes, 1);
	assert_int_equal(l->mix.rope, 0);
	assert_int_equal(c.rope[0].dims, 128);
	assert_false(c.rope[0].neighbours || c.rope[0].factor != 0);
	assert_true(c.rope[0].theta == 1e6 && c.rope[0].magnitude == 1);
	assert_int_equal(c.hidden, 4096);
	assert_int_equal(c.vocab, 32000);
	assert_int_equal(c.n_experts, 8);
	assert_int_equal(c.top_k, 2);
	assert_int_equal(c.intermediate, 14336);
	assert_int_equal(c.ctx_max, 32768);
	assert_true(c.rms_eps == 1e-5f);
	assert_false(c.tied_head);
	assert_int_equal(c.bos, 1);
	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos[0], 2);
}

/* generation_config.json adds to what config.json (here: 2) says. */
static void test_more_eos(void **state)
{
	static const struct {
		const char *text;
		int code;
		uint32_t n;
		int32_t last;
		const char *says;
	} t[] = {
		{ "{}", OD_OK, 1, 2, "" },
		{ "{\"eos_token_id\": null}", OD_OK, 1, 2, "" },
		{ "{\"eos_token_id\": 2}", OD_OK, 1, 2, "" },
		{ "{\"eos_token_id\": 31999}", OD_OK, 2, 31999, "" },
		{ "{\"eos_token_id\": [5, 2, 7, 5]}", OD_OK, 3, 7, "" },
		{ "{\"eos_token_id\": [10,11,12,13,14,15,16]}", OD_OK, 8, 16, "" },
		{ "{\"eos_token_id\": [10,11,12,13,14,15,16,17,18]}", OD_ERR_UNSUPPORTED, 8, 16, "found 2 more" },
		{ "{\"eos_token_id\": 32000}", OD_ERR_RANGE, 1, 2,
		  "expected 0 to 31999 (vocab_size - 1), found 32000" },
		{ "{\"eos_token_id\": [\"</s>\"]}", OD_ERR_FORMAT, 1, 2, "expected a token id" },
	};
	struct od_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		json_t *obj = json_loads(t[i].text, 0, NULL);
		struct od_err err = { 0 };

		assert_non_null(obj);
		must_take(&c, NULL, NULL);
		assert_int_equal(od_config_add_eos(&c, obj, "generation_config.json", &err), t[i].code);
		assert_int_equal(c.n_eos, t[i].n);
		assert_int_equal(c.eos[c.n_eos - 1], t[i].last);
		if (t[i].code != OD_OK && (strstr(err.msg, "generation_config.json: field \"eos_token_id\"") == NULL ||
					   strstr(err.msg, t[i].says) == NULL))
			fail_msg("%s: %s", t[i].text, err.msg);
		json_decref(obj);
	}
}

static void test_optional_fields(void **state)
{
	uint64_t out, in;
	struct od_config c;

	(void)state;
	must_take(&c, "head_dim", "64");
	assert_int_equal(c.kind[0].mix.k_dim, 64);
	assert_int_equal(c.kind[0].mix.v_dim, 64);
	assert_int_equal(c.rope[0].dims, 64);
	assert_true(c.kind[0].mix.scale == 0.125f);
	must_take(&c, "head_dim", "null");
	assert_int_equal(c.kind[0].mix.k_dim, 128);
	must_take(&c, "num_key_value_heads", NULL); /* as transformers has it */
	assert_int_equal(c.kind[0].mix.n_kv_heads, 8);
	must_take(&c, "num_key_value_heads", "null");
	assert_int_equal(c.kind[0].mix.n_kv_heads, 32);
	must_take(&c, "sliding_window", "4096");
	assert_int_equal(c.kind[0].mix.window, 4096);
	must_take(&c, "tie_word_embeddings", "true");
	assert_true(c.tied_head);
	od_role_shape(&c, OD_ROLE_HEAD, 0, &out, &in);
	assert_int_equal(out, 0);
	must_take(&c, "eos_token_id", "[2, 31999, 7]");
	assert_int_equal(c.n_eos, 3);
	assert_int_equal(c.eos[1], 31999);
	must_take(&c, "eos_token_id", "[2, 7, 2]");
	assert_int_equal(c.n_eos, 2);
	must_take(&c, "eos_token_id", "[]");
	assert_int_equal(c.n_eos, 0);
	must_take(&c, "eos_token_id", "null");
	assert_int_equal(c.n_eos, 0);
	must_take(&c, "bos_token_id", NULL);
	assert_int_equal(c.bos, -1);
	must_take(&c, "architectures", NULL);
	assert_string_equal(c.family->name, "mixtral");
	must_take(&c, "model_type", NULL);
	must_take(&c, "hidden_act", NULL);
	must_take(&c, "hidden_act", "\"swish\"");
	must_take(&c, "attention_bias", "false");
	must_take(&c, "num_experts_per_tok", "8");
	assert_int_equal(c.top_k, 8);
}

static void test_rope(void **state)
{
	struct od_config c;

	(void)state;
	must_take(&c, "rope_scaling", "null");
	must_take(&c, "rope_scaling", "{\"type\": \"default\"}");
	assert_true(c.rope[0].theta == 1e6);
	must_take(&c, "rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 1000000.0}");
	assert_true(c.rope[0].theta == 1e6);
	must_refuse("rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000.0}", OD_ERR_FORMAT,
		    "rope_theta", "1e+06 and 10000");
	must_refuse("rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", OD_ERR_UNSUPPORTED, "rope_scaling",
		    "linear");
	must_refuse("rope_scaling", "{\"rope_type\": \"longrope\"}", OD_ERR_UNSUPPORTED, "rope_scaling", "longrope");
	must_refuse("rope_parameters", "{\"rope_type\": \"yarn\"}", OD_ERR_MISSING, "rope_parameters",
		    "original_max_position_embeddings");
	must_take(&c, "rope_scaling", "{\"type\": \"yarn\", \"factor\": 4}");
	assert_true(c.rope[0].original_ctx == c.ctx_max && c.rope[0].factor == 4);
	must_refuse("rope_parameters", "{\"partial_rotary_factor\": 0.5}", OD_ERR_UNSUPPORTED, "rope_parameters",
		    "0.5");
	must_refuse("rope_scaling", "[1]", OD_ERR_FORMAT, "rope_scaling", "an array");
	must_take(&c, "rope_theta", NULL);
	assert_true(c.rope[0].theta == 1e6);
	must_refuse("rope_theta", "0", OD_ERR_RANGE, "rope_theta", "found 0");
}

/* A newer file has rope_parameters only. */
static void test_rope_parameters_alone(void **state)
{
	json_t *root = json_loads(mixtral_8x7b, 0, NULL);
	struct od_config c;
	struct od_err err;

	(void)state;
	json_object_del(root, "rope_theta");
	json_object_set_new(root, "rope_parameters",
			    json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", 5e5));
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_OK);
	assert_true(c.rope[0].theta == 5e5);
	json_decref(root);
}

static void test_refuses_numbers(void **state)
{
	static const char *const required[] = {
		"hidden_size",	       "intermediate_size",   "num_hidden_layers",
		"vocab_size",	       "num_attention_heads", "num_local_experts",
		"num_experts_per_tok", "rms_norm_eps",	      "max_position_embeddings"
	};

	(void)state;
	for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++) {
		must_refuse(required[i], NULL, OD_ERR_MISSING, required[i], "nothing");
		must_refuse(required[i], "\"12\"", OD_ERR_FORMAT, required[i], "a string");
		must_refuse(required[i], "-1", OD_ERR_RANGE, required[i], "-1");
		must_refuse(required[i], "4294967296", OD_ERR_RANGE, required[i], "found 4"); /* 2^32 */
		if (strcmp(required[i], "rms_norm_eps") != 0)
			must_refuse(required[i], "0", OD_ERR_RANGE, required[i], "found 0");
	}
	must_refuse("num_experts_per_tok", "9", OD_ERR_RANGE, "num_experts_per_tok", "1 to 8, found 9");
	must_refuse("num_local_experts", "1", OD_ERR_RANGE, "num_experts_per_tok", "1 to 1, found 2");
	must_refuse("num_local_experts", "4097", OD_ERR_RANGE, "num_local_experts", "4097");
	must_refuse("num_key_value_heads", "5", OD_ERR_FORMAT, "num_key_value_heads", "found 5");
	must_refuse("num_key_value_heads", "64", OD_ERR_FORMAT, "num_key_value_heads", "found 64");
	must_refuse("head_dim", "65", OD_ERR_UNSUPPORTED, "head_dim", "found 65");
	must_refuse("head_dim", "0", OD_ERR_RANGE, "head_dim", "found 0");
	must_refuse("head_dim", "1000000", OD_ERR_RANGE, "head_dim", "32 heads");
	must_refuse("num_attention_heads", "24", OD_ERR_FORMAT, "head_dim", "24"); /* 4096 % 24 != 0 */
	must_refuse("num_hidden_layers", "2049", OD_ERR_RANGE, "num_hidden_layers", "found 2049");
	must_refuse("sliding_window", "-5", OD_ERR_RANGE, "sliding_window", "-5");
	must_refuse("eos_token_id", "32000", OD_ERR_RANGE, "eos_token_id", "32000");
	must_refuse("eos_token_id", "[2, -1]", OD_ERR_RANGE, "eos_token_id", "-1");
	must_refuse("eos_token_id", "\"</s>\"", OD_ERR_FORMAT, "eos_token_id", "token id");
	must_refuse("eos_token_id", "[1,2,3,4,5,6,7,8,9]", OD_ERR_UNSUPPORTED, "eos_token_id", "found 1 more");
	must_refuse("bos_token_id", "40000", OD_ERR_RANGE, "bos_token_id", "40000");
}

static void test_refuses_variants(void **state)
{
	(void)state;
	must_refuse("hidden_act", "\"gelu\"", OD_ERR_UNSUPPORTED, "hidden_act", "gelu");
	must_refuse("attention_bias", "true", OD_ERR_UNSUPPORTED, "attention_bias", "true");
	must_refuse("attention_bias", "1", OD_ERR_FORMAT, "attention_bias", "an integer");
	must_refuse("quantization_config", "{}", OD_ERR_UNSUPPORTED, "quantization_config", "found none");
	must_refuse("quantization", "{\"group_size\": 64, \"bits\": 4}", OD_ERR_UNSUPPORTED, "field \"quantization\"",
		    "MLX");
	must_refuse("compression_config", "{\"quant_method\": \"gptq\"}", OD_ERR_UNSUPPORTED, "compression_config",
		    "gptq");
	must_refuse("quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 96]}",
		    OD_ERR_UNSUPPORTED, "weight_block_size", "found 96");
	must_refuse("quantization_config",
		    "{\"quant_method\": \"compressed-tensors\", \"transform_config\": {\"config_groups\": "
		    "{\"u\": {}}}}",
		    OD_ERR_UNSUPPORTED, "transform_config", "rotated");
	must_refuse("quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [3, 128]}",
		    OD_ERR_UNSUPPORTED, "weight_block_size", "found 3");
	must_refuse("quantization_config",
		    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": "
		    "{\"group_size\": 128}}, \"b\": {\"weights\": {\"group_size\": 8}}}}",
		    OD_ERR_UNSUPPORTED, "group_size", "found 8");
	must_refuse("architectures", "[\"LlamaForCausalLM\"]", OD_ERR_UNSUPPORTED, "LlamaForCausalLM", "mixtral");
	must_refuse("architectures", "[\"MixtralForSequenceClassification\"]", OD_ERR_UNSUPPORTED,
		    "MixtralForSequenceClassification", "MixtralForCausalLM");
	must_refuse("model_type", "\"llama\"", OD_ERR_UNSUPPORTED, "llama", "mixtral");
	must_refuse("architectures", "[]", OD_ERR_FORMAT, "architectures", "names");
	must_refuse("architectures", "[3]", OD_ERR_FORMAT, "architectures", "names");
	must_refuse("architectures", "\"x\"", OD_ERR_FORMAT, "architectures", "a string");
}

/* Every dimension within its own bound, the product far outside 64 bits. */
static void test_refuses_huge_products(void **state)
{
	json_t *root = json_loads(mixtral_8x7b, 0, NULL);
	struct od_config c;
	struct od_err err;

	(void)state;
	json_object_set_new(root, "hidden_size", json_integer(1 << 20));
	json_object_set_new(root, "intermediate_size", json_integer(1 << 20));
	json_object_set_new(root, "num_local_experts", json_integer(4096));
	json_object_set_new(root, "num_hidden_layers", json_integer(2048));
	json_object_set_new(root, "head_dim", json_integer(128));
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "2048 layers"));
	/* And one that fits in 64 bits, yet no machine: 3 * 2^48 weights. */
	json_object_set_new(root, "num_local_experts", json_integer(256));
	json_object_set_new(root, "num_hidden_layers", json_integer(1));
	assert_int_equal(od_config_parse(&c, root, "config.json", &err), OD_ERR_RANGE);
	json_decref(root);
}

static void test_load_names_the_file(void **state)
{
	struct od_config c;
	struct od_err err;

	(void)state;
	assert_int_not_equal(od_config_load(&c, "/nonexistent/config.json", &err), OD_OK);
	assert_non_null(strstr(err.msg, "/nonexistent/config.json"));
	assert_int_equal(od_config_load(&c, "deploy/models/talebook/config.json", &err), OD_OK);
	assert_int_equal(c.n_layers, 12);
	assert_int_equal(c.kind[0].mix.k_dim, 64);
}

static void expect_dense(const struct od_config *c, enum od_role role, uint32_t layer, const char *expected)
{
	char buf[OD_NAME_BYTES];

	od_dense_source_name(c, role, layer, buf);
	assert_string_equal(buf, expected);
}

static void test_names(void **state)
{
	char buf[OD_NAME_BYTES];
	struct od_config c;

	(void)state;
	must_take(&c, NULL, NULL);
	expect_dense(&c, OD_ROLE_EMBED, 0, "model.embed_tokens.weight");
	expect_dense(&c, OD_ROLE_HEAD, 0, "lm_head.weight");
	expect_dense(&c, OD_ROLE_FINAL_NORM, 0, "model.norm.weight");
	expect_dense(&c, OD_ROLE_ATTN_NORM, 3, "model.layers.3.input_layernorm.weight");
	expect_dense(&c, OD_ROLE_FFN_NORM, 3, "model.layers.3.post_attention_layernorm.weight");
	expect_dense(&c, OD_ROLE_Q, 0, "model.layers.0.self_attn.q_proj.weight");
	expect_dense(&c, OD_ROLE_K, 1, "model.layers.1.self_attn.k_proj.weight");
	expect_dense(&c, OD_ROLE_V, 2, "model.layers.2.self_attn.v_proj.weight");
	expect_dense(&c, OD_ROLE_O, 31, "model.layers.31.self_attn.o_proj.weight");
	expect_dense(&c, OD_ROLE_ROUTER, 31, "model.layers.31.block_sparse_moe.gate.weight");
	od_expert_source_name(&c, 5, 7, OD_MAT_GATE, buf);
	assert_string_equal(buf, "model.layers.5.block_sparse_moe.experts.7.w1.weight");
	od_expert_source_name(&c, 5, 6, OD_MAT_UP, buf);
	assert_string_equal(buf, "model.layers.5.block_sparse_moe.experts.6.w3.weight");
	od_expert_source_name(&c, 4, 0, OD_MAT_DOWN, buf);
	assert_string_equal(buf, "model.layers.4.block_sparse_moe.experts.0.w2.weight");
	assert_true(od_source_ignorable(&c, "model.layers.0.self_attn.rotary_emb.inv_freq"));
	assert_false(od_source_ignorable(&c, "model.layers.0.self_attn.q_proj.weight"));
	assert_false(od_source_ignorable(&c, "inv_freq"));
}

/* Layers behind the last one, as many as config.json says, and nothing that only looks like them. */
static void test_layers_left_out(void **state)
{
	static const char *const out[] = { "model.layers.32.eh_proj.weight",
					   "model.layers.33.self_attn.q_proj.weight" };
	static const char *const in[] = { "model.layers.34.eh_proj.weight",	"model.layers.31.eh_proj.weight",
					  "model.layers.3.eh_proj.weight",	"model.layers.32x.eh_proj.weight",
					  "model.layers.+32.eh_proj",		"model.layers.32",
					  "xmodel.layers.32.eh_proj",		"model.layers..32",
					  "model.layers.18446744073709551648.a" };
	struct od_config c;

	(void)state;
	must_take(&c, NULL, NULL);
	for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++)
		assert_false(od_source_ignorable(&c, out[i]));
	c.n_mtp = 2;
	for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++)
		assert_true(od_source_ignorable(&c, out[i]));
	for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++)
		assert_false(od_source_ignorable(&c, in[i]));
}

static void expect_shape(const struct od_config *c, enum od_role role, uint64_t n_out, uint64_t n_in)
{
	uint64_t out, in;

	od_role_shape(c, role, od_role_per_layer(role) ? 31 : 0, &out, &in);
	assert_int_equal(out, n_out);
	if (n_out > 0)
		assert_int_equal(in, n_in);
}

static void test_shapes_and_roles(void **state)
{
	struct od_config c;
	uint64_t out, in;

	(void)state;
	must_take(&c, "head_dim", "96"); /* heads * head_dim 3072 != hidden 4096 */
	expect_shape(&c, OD_ROLE_EMBED, 32000, 4096);
	expect_shape(&c, OD_ROLE_HEAD, 32000, 4096);
	expect_shape(&c, OD_ROLE_FINAL_NORM, 4096, 0);
	expect_shape(&c, OD_ROLE_ATTN_NORM, 4096, 0);
	expect_shape(&c, OD_ROLE_FFN_NORM, 4096, 0);
	expect_shape(&c, OD_ROLE_Q, 3072, 4096);
	expect_shape(&c, OD_ROLE_K, 768, 4096);
	expect_shape(&c, OD_ROLE_V, 768, 4096);
	expect_shape(&c, OD_ROLE_O, 4096, 3072);
	expect_shape(&c, OD_ROLE_ROUTER, 8, 4096);
	for (int r = OD_ROLE_ROUTER + 1; r < OD_N_ROLES; r++)
		expect_shape(&c, (enum od_role)r, 0, 0);
	od_expert_mat_shape(&c, OD_MAT_GATE, &out, &in);
	assert_true(out == 14336 && in == 4096);
	od_expert_mat_shape(&c, OD_MAT_UP, &out, &in);
	assert_true(out == 14336 && in == 4096);
	od_expert_mat_shape(&c, OD_MAT_DOWN, &out, &in);
	assert_true(out == 4096 && in == 14336);
	for (int r = 0; r < OD_N_ROLES; r++) {
		assert_int_equal(od_role_per_layer((enum od_role)r),
				 r >= OD_ROLE_ATTN_NORM && r != OD_ROLE_FINAL_NORM_BIAS && r != OD_ROLE_HEAD_BIAS &&
					 r != OD_ROLE_LAYER_EMBED && r != OD_ROLE_LAYER_PROJECT &&
					 r != OD_ROLE_LAYER_PROJECT_NORM);
	}
	assert_string_equal(od_role_name(OD_ROLE_Q), "attn_q");
}

/* ---- layers as they are added ---- */

/* Layers that are alike are of one kind; MoE layers are counted, in order. */
static void test_kinds(void **state)
{
	static const bool moe[] = { false, true, true, false, true, false };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa,
				   .mix = { .n_heads = 1, .k_dim = 2 },
				   .intermediate = 7,
				   .router = { .scale = 1, .renormalise = true },
				   .shared_intermediate = 5,
				   .shared_gate = true };
	struct od_config c = { .hidden = 8 };
	uint32_t m = 0;
	struct od_err err = { 0 };

	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		l.ffn = moe[i] ? OD_FFN_MOE : OD_FFN_DENSE;
		l.mix.window = i == 2 ? 3 : 0;
		/* Settings that a layer does not use make no difference. */
		l.intermediate = moe[i] ? i : 7;
		l.router.renormalise = moe[i] || i == 3;
		l.shared_intermediate = moe[i] ? 5 : i + 1;
		assert_int_equal(od_config_add_layer(&c, &l, &err), OD_OK);
		assert_int_equal(c.n_layers, i + 1);
		assert_int_equal(od_config_layer(&c, i)->ffn, l.ffn);
		assert_int_equal(od_config_layer(&c, i)->mix.window, l.mix.window);
		if (!moe[i])
			continue;
		assert_int_equal(c.m_of[i], m);
		assert_int_equal(c.layer_of[m], i);
		assert_ptr_equal(od_config_moe_layer(&c, m), od_config_layer(&c, i));
		m++;
	}
	assert_int_equal(c.n_moe, 3);
	assert_int_equal(c.n_kinds, 3);
	assert_int_equal(c.kind_of[0], 0);
	assert_int_equal(c.kind_of[1], 1);
	assert_int_equal(c.kind_of[2], 2);
	assert_int_equal(c.kind_of[3], 0);
	assert_int_equal(c.kind_of[4], 1);
	assert_int_equal(c.kind[0].shared_intermediate, 0);
	assert_false(c.kind[0].shared_gate || c.kind[0].router.renormalise);
	assert_int_equal(c.kind[1].intermediate, 0);
}

static void test_too_many(void **state)
{
	struct od_layer_spec l = { .mixer = &od_mixer_gqa, .ffn = OD_FFN_MOE };
	const struct od_rope rope = { .dims = 2, .theta = 10000, .magnitude = 1 };
	struct od_config c = { .hidden = 8 };
	struct od_err err = { 0 };
	uint32_t index;

	(void)state;
	for (uint32_t i = 0; i < OD_MAX_ROPES; i++) {
		assert_int_equal(od_config_add_rope(&c, &rope, &index, &err), OD_OK);
		assert_int_equal(index, i);
	}
	assert_int_equal(od_config_add_rope(&c, &rope, &index, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "at most 4"));
	assert_int_equal(c.n_ropes, OD_MAX_ROPES);
	for (uint32_t i = 0; i < OD_MAX_LAYER_KINDS; i++) {
		l.mix.window = i;
		assert_int_equal(od_config_add_layer(&c, &l, &err), OD_OK);
	}
	l.mix.window = 99;
	assert_int_equal(od_config_add_layer(&c, &l, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "layer 8: expected at most 2048 layers of at most 8 kinds"));
	assert_int_equal(c.n_layers, 8);
	assert_int_equal(c.n_moe, 8);
	assert_int_equal(c.n_kinds, 8);
	l.mix.window = 3;
	for (uint32_t i = 8; i < OD_MAX_LAYERS; i++)
		assert_int_equal(od_config_add_layer(&c, &l, &err), OD_OK);
	assert_int_equal(od_config_add_layer(&c, &l, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "layer 2048"));
	assert_int_equal(c.layer_of[1023], 1023);
}

/* ---- the line for fingerprints ---- */

static char *canonical(const struct od_config *c)
{
	struct od_strbuf b = { 0 };
	struct od_err err = { 0 };

	if (od_config_canonical(c, &b, &err) != OD_OK)
		fail_msg("%s", err.msg);
	assert_int_equal(strlen(b.text), b.len);
	return b.text;
}

/* It must never change by itself, and must change with each number. */
static void test_canonical(void **state)
{
	static const struct {
		const char *key, *value;
	} change[] = {
		{ "hidden_size", "8192" },	 { "num_hidden_layers", "31" },
		{ "num_key_value_heads", "4" },	 { "head_dim", "64" },
		{ "vocab_size", "32001" },	 { "num_local_experts", "16" },
		{ "num_experts_per_tok", "1" },	 { "sliding_window", "4096" },
		{ "rms_norm_eps", "1e-6" },	 { "intermediate_size", "14337" },
		{ "rope_theta", "10000" },	 { "tie_word_embeddings", "true" },
		{ "num_attention_heads", "64" },
	};
	/* 128^-0.5 is 3db504f3, 1e6 is 412e848000000000 in 64 bits. */
	static const char expected[] =
		"family=mixtral hidden=4096 vocab=32000 experts=8 top_k=2 intermediate=14336 rms_eps=3727c5ac tied_head=0; "
		"rope 0: dims=128 neighbours=0 theta=412e848000000000 magnitude=3f800000; "
		"kind 0: mixer=gqa heads=32 kv_heads=8 k_dim=128 v_dim=128 window=0 scale=3db504f3 rope=0 qkv_bias=0 o_bias=0 "
		"qk_norm=0 norm_eps=3727c5ac clip=00000000 nope=0 q_rank=0 kv_rank=0 groups=0 top_groups=0 renormalise=1 "
		"weight=3f800000 shared=0 shared_gate=0; "
		"layers 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
	struct od_config c;
	char *text, *other;

	(void)state;
	must_take(&c, NULL, NULL);
	text = canonical(&c);
	assert_string_equal(text, expected);
	for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
		must_take(&c, change[i].key, change[i].value);
		other = canonical(&c);
		assert_string_not_equal(text, other);
		free(other);
	}
	must_take(&c, "eos_token_id", "7"); /* ends a text, changes no number */
	other = canonical(&c);
	assert_string_equal(text, other);
	free(other);
	free(text);
}

static void bump_u32(void *at)
{
	++*(uint32_t *)at;
}

static void bump_f32(void *at)
{
	*(float *)at = nextafterf(*(float *)at, INFINITY);
}

static void bump_f64(void *at)
{
	*(double *)at = nextafter(*(double *)at, INFINITY);
}

static void bump_bool(void *at)
{
	*(bool *)at = !*(bool *)at;
}

static void bump_layer(void *at)
{
	*(uint8_t *)at = 0;
}

static void bump_mixer(void *at)
{
	*(const struct od_mixer_ops **)at = &od_mixer_mla;
}

static void bump_family(void *at)
{
	*(const struct od_family **)at = &od_family_olmoe;
}

/* Two kinds of layers, dense and MoE, with every field in use; two ways to turn. */
static struct od_config rich_config(void)
{
	struct od_config c = { .family = &od_family_deepseek_v2,
			       .hidden = 64,
			       .vocab = 100,
			       .n_experts = 8,
			       .top_k = 2,
			       .intermediate = 16,
			       .ctx_max = 512,
			       .rms_eps = 1e-6f };
	const struct od_rope rope[2] = {
		{ .dims = 8, .theta = 10000, .magnitude = 1 },
		{ .dims = 8,
		  .theta = 10000,
		  .magnitude = 1.1f,
		  .factor = 4,
		  .beta_fast = 32,
		  .beta_slow = 1,
		  .original_ctx = 128 },
	};
	struct od_layer_spec l = { .mixer = &od_mixer_gqa,
				   .mix = { .n_heads = 4,
					    .n_kv_heads = 2,
					    .k_dim = 8,
					    .v_dim = 12,
					    .window = 7,
					    .scale = 0.5f,
					    .norm_eps = 1e-5f,
					    .clip = 3,
					    .nope_dim = 4,
					    .q_rank = 5,
					    .kv_rank = 6 },
				   .intermediate = 32,
				   .router = { .n_groups = 4, .top_groups = 2, .scale = 2 },
				   .shared_intermediate = 24 };
	struct od_err err = { 0 };

	for (int i = 0; i < 2; i++)
		if (od_config_add_rope(&c, &rope[i], &l.mix.rope, &err) != OD_OK)
			fail_msg("%s", err.msg);
	for (int i = 0; i < 5; i++) {
		l.ffn = i % 2 == 0 ? OD_FFN_DENSE : OD_FFN_MOE;
		if (od_config_add_layer(&c, &l, &err) != OD_OK)
			fail_msg("%s", err.msg);
	}
	return c;
}

static void test_canonical_has_all_fields(void **state)
{
	struct od_config plain = rich_config(), c;
	struct od_layer_spec *dense = &c.kind[0], *moe = &c.kind[1];
	const struct {
		void *field;
		void (*bump)(void *at);
	} fields[] = {
		{ &c.family, bump_family },
		{ &c.hidden, bump_u32 },
		{ &c.vocab, bump_u32 },
		{ &c.n_experts, bump_u32 },
		{ &c.top_k, bump_u32 },
		{ &c.intermediate, bump_u32 },
		{ &c.rms_eps, bump_f32 },
		{ &c.tied_head, bump_bool },
		{ &c.norm, bump_u32 },
		{ &c.head_bias, bump_bool },
		{ &c.n_layers, bump_u32 },
		{ &c.kind_of[3], bump_layer },
		{ &c.rope[0].dims, bump_u32 },
		{ &c.rope[0].neighbours, bump_bool },
		{ &c.rope[0].theta, bump_f64 },
		{ &c.rope[1].magnitude, bump_f32 },
		{ &c.rope[1].factor, bump_f64 },
		{ &c.rope[0].factor, bump_f64 }, /* from none */
		{ &c.rope[1].beta_fast, bump_f64 },
		{ &c.rope[1].beta_slow, bump_f64 },
		{ &c.rope[1].original_ctx, bump_u32 },
		{ &c.rope[1].between, bump_bool },
		{ &dense->mixer, bump_mixer },
		{ &dense->ffn, bump_u32 },
		{ &dense->intermediate, bump_u32 },
		{ &moe->mix.n_heads, bump_u32 },
		{ &moe->mix.n_kv_heads, bump_u32 },
		{ &moe->mix.k_dim, bump_u32 },
		{ &dense->mix.v_dim, bump_u32 },
		{ &dense->mix.window, bump_u32 },
		{ &moe->mix.scale, bump_f32 },
		{ &moe->mix.rope, bump_u32 },
		{ &moe->mix.qkv_bias, bump_bool },
		{ &dense->mix.o_bias, bump_bool },
		{ &dense->mix.qk_norm, bump_u32 },
		{ &moe->mix.norm_eps, bump_f32 },
		{ &moe->mix.clip, bump_f32 },
		{ &moe->mix.nope_dim, bump_u32 },
		{ &moe->mix.q_rank, bump_u32 },
		{ &moe->mix.kv_rank, bump_u32 },
		{ &moe->mix.kv_of, bump_u32 },
		{ &c.layer_input, bump_u32 },
		{ &moe->router.n_groups, bump_u32 },
		{ &moe->router.top_groups, bump_u32 },
		{ &moe->router.renormalise, bump_bool },
		{ &moe->router.scale, bump_f32 },
		{ &moe->router.score, bump_u32 },
		{ &moe->router.bias, bump_bool },
		{ &moe->router.group_two, bump_bool },
		{ &moe->router.sum_eps, bump_f32 },
		{ &moe->router.band, bump_f32 },
		{ &moe->shared_intermediate, bump_u32 },
		{ &moe->shared_gate, bump_bool },
	};
	char *text = canonical(&plain), *other;

	(void)state;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		c = plain;
		fields[i].bump(fields[i].field);
		other = canonical(&c);
		if (strcmp(text, other) == 0)
			fail_msg("field %zu changes nothing in \"%s\"", i, text);
		free(other);
	}
	free(text);
}

static void routing_of(struct od_config *cfg, float lambda, char text[OD_ROUTING_CHARS])
{
	const struct od_cache_prior prior = od_config_prior(cfg, lambda);

	assert_int_equal(od_config_set_prior(cfg, &prior, NULL), OD_OK);
	(void)od_config_routing(cfg, text);
}

/* Answers name the routing, so texts of two that differ differ. */
static void test_routing(void **state)
{
	static const float wrong[] = { -0.1f, 1.1f, NAN, INFINITY };
	char text[OD_ROUTING_CHARS], other[OD_ROUTING_CHARS];
	struct od_cache_prior prior;
	struct od_config cfg;
	struct od_err err;

	(void)state;
	assert_int_equal(parse_with(&cfg, "vocab_size", "32000", &err), OD_OK);
	assert_string_equal(od_config_routing(&cfg, text), "router");
	routing_of(&cfg, 0.2f, text);
	assert_string_equal(text, "cache-prior:0.2:1:4");
	routing_of(&cfg, -0.0f, text);
	assert_string_equal(text, "cache-prior:0:1:4");
	routing_of(&cfg, 0.3f, text);
	routing_of(&cfg, nextafterf(0.3f, 1), other);
	assert_string_not_equal(text, other);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		prior = od_config_prior(&cfg, wrong[i]);
		assert_int_equal(od_config_set_prior(&cfg, &prior, &err), OD_ERR_RANGE);
	}
	prior = (struct od_cache_prior){ .recent = 8, .keep = 2, .lambda = 1 };
	assert_int_equal(od_config_set_prior(&cfg, &prior, &err), OD_OK);
	prior.recent = 9;
	assert_int_equal(od_config_set_prior(&cfg, &prior, &err), OD_ERR_RANGE);
	prior = (struct od_cache_prior){ .recent = 8, .keep = 3, .lambda = 1 };
	assert_int_equal(od_config_set_prior(&cfg, &prior, &err), OD_ERR_RANGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_file),
		cmocka_unit_test(test_optional_fields),
		cmocka_unit_test(test_more_eos),
		cmocka_unit_test(test_rope),
		cmocka_unit_test(test_rope_parameters_alone),
		cmocka_unit_test(test_refuses_numbers),
		cmocka_unit_test(test_refuses_variants),
		cmocka_unit_test(test_refuses_huge_products),
		cmocka_unit_test(test_load_names_the_file),
		cmocka_unit_test(test_layers_left_out),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_shapes_and_roles),
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_too_many),
		cmocka_unit_test(test_routing),
		cmocka_unit_test(test_canonical),
		cmocka_unit_test(test_canonical_has_all_fields),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
