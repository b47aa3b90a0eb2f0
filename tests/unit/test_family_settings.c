/* Settings that change numbers: each family implements some, and refuses others by name. */
#include <string.h>

#include "tests/unit/family_util.h"

/* How much of a head turns: beside RoPE's settings, among them, or by rotary_dim. */
static void test_rotates_in_part(void **state)
{
	static const char among[] =
		"{\"partial_rotary_factor\":null,\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":"
		"\"default\",\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}";
	static const char both[] =
		"{\"partial_rotary_factor\":0.5,\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":"
		"\"default\",\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}";
	struct od_config c;

	(void)state;
	take(&c, glm45, "{\"partial_rotary_factor\":0.25}");
	check_plain_rope(&c, 32, 1e6);
	take(&c, glm45, "{\"partial_rotary_factor\":1}");
	check_plain_rope(&c, 128, 1e6);
	take(&c, glm45, among);
	check_plain_rope(&c, 32, 1e4);
	refuse(glm45, both, OD_ERR_FORMAT, "partial_rotary_factor", "found two values, 0.5 and 0.25");
	refuse(glm45, "{\"partial_rotary_factor\":0.51}", OD_ERR_UNSUPPORTED, "partial_rotary_factor", "even number");
	refuse(glm45, "{\"partial_rotary_factor\":0}", OD_ERR_UNSUPPORTED, "partial_rotary_factor", "even number");
	refuse(glm45, "{\"partial_rotary_factor\":1.5}", OD_ERR_RANGE, "partial_rotary_factor", "1.5");
	refuse(glm45, "{\"partial_rotary_factor\":\"0.5\"}", OD_ERR_FORMAT, "partial_rotary_factor", "a string");
	take(&c, minimax_m2, "{\"rotary_dim\":null}");
	check_plain_rope(&c, 128, 5e6);
	take(&c, minimax_m2, "{\"rotary_dim\":null,\"partial_rotary_factor\":0.25}");
	check_plain_rope(&c, 32, 5e6);
	take(&c, minimax_m2, "{\"partial_rotary_factor\":0.5}");
	check_plain_rope(&c, 64, 5e6);
	refuse(minimax_m2, "{\"partial_rotary_factor\":null}", OD_ERR_FORMAT, "rotary_dim", "makes it 128");
	refuse(minimax_m2, "{\"partial_rotary_factor\":0.25}", OD_ERR_FORMAT, "rotary_dim", "makes it 32");
	refuse(minimax_m2, "{\"rotary_dim\":130}", OD_ERR_RANGE, "rotary_dim", "130");
	refuse(minimax_m2, "{\"rotary_dim\":63}", OD_ERR_UNSUPPORTED, "even number", "63");
}

static void test_refuses_what_minimax_m1_had(void **state)
{
	(void)state;
	refuse(minimax_m2, "{\"attn_type_list\":1}", OD_ERR_FORMAT, "attn_type_list", "an array");
	refuse(minimax_m2, "{\"attn_type_list\":[1,0,1]}", OD_ERR_UNSUPPORTED, "attn_type_list", "1 for every layer");
	refuse(minimax_m2, "{\"use_qk_norm\":false}", OD_ERR_UNSUPPORTED, "use_qk_norm", "expected true, found false");
	refuse(minimax_m2, "{\"use_routing_bias\":false}", OD_ERR_UNSUPPORTED, "use_routing_bias",
	       "expected true, found false");
	refuse(minimax_m2, "{\"shared_intermediate_size\":1024}", OD_ERR_UNSUPPORTED, "shared_intermediate_size",
	       "found 1024");
	refuse(minimax_m2, "{\"sliding_window\":512}", OD_ERR_UNSUPPORTED, "sliding_window", "512");
	refuse(minimax_m2, "{\"layernorm_mlp_beta\":3.5}", OD_ERR_UNSUPPORTED, "layernorm_mlp_beta", "3.5");
	refuse(minimax_m2, "{\"layernorm_full_attention_beta\":3}", OD_ERR_UNSUPPORTED, "layernorm_full_attention_beta",
	       "3");
	refuse(minimax_m2, "{\"routed_scaling_factor\":2.5}", OD_ERR_UNSUPPORTED, "routed_scaling_factor", "2.5");
	refuse(minimax_m2, "{\"qk_norm_type\":\"per_head\"}", OD_ERR_UNSUPPORTED, "qk_norm_type", "per_head");
	refuse(minimax_m2, "{\"scoring_func\":\"softmax\"}", OD_ERR_UNSUPPORTED, "scoring_func", "softmax");
	refuse(minimax_m2, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(minimax_m2, "{\"head_dim\":null}", OD_ERR_MISSING, "head_dim", "missing");
}

static void test_refuses_other_v3(void **state)
{
	static const char *const texts[] = { deepseek_v3, kimi_k2, glm45 };
	struct od_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		refuse(texts[i], "{\"scoring_func\":\"softmax\"}", OD_ERR_UNSUPPORTED, "scoring_func", "softmax");
		refuse(texts[i], "{\"topk_method\":\"greedy\"}", OD_ERR_UNSUPPORTED, "topk_method", "greedy");
		refuse(texts[i], "{\"moe_layer_freq\":2}", OD_ERR_UNSUPPORTED, "moe_layer_freq", "expected 1, found 2");
		refuse(texts[i], "{\"n_group\":7}", OD_ERR_FORMAT, "n_group", "divisor");
		refuse(texts[i], "{\"n_routed_experts\":32,\"n_group\":32,\"topk_group\":16}", OD_ERR_FORMAT, "n_group",
		       "at least 2");
		refuse(texts[i], "{\"num_nextn_predict_layers\":-1}", OD_ERR_RANGE, "num_nextn_predict_layers", "-1");
		refuse(texts[i], "{\"routed_scaling_factor\":0}", OD_ERR_RANGE, "routed_scaling_factor", "found 0");
	}
	refuse(deepseek_v3, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(deepseek_v3, "{\"rope_interleave\":0}", OD_ERR_FORMAT, "rope_interleave", "an integer");
	take(&c, deepseek_v3, "{\"rope_interleave\":false}");
	assert_false(c.rope[0].neighbours);
	/* as false; missing they would be true */
	take(&c, deepseek_v3, "{\"rope_interleave\":null,\"norm_topk_prob\":null}");
	assert_true(!c.rope[0].neighbours && !od_config_layer(&c, 3)->router.renormalise);
	take(&c, deepseek_v2, "{\"rope_interleave\":false}"); /* there nothing reads it */
	assert_true(c.rope[0].neighbours);
}

/* sparse: a character for each layer, 'm' where it has experts. */
static void check_sparse(const char *text, const char *changes, const char *sparse)
{
	struct od_config c;
	uint32_t m = 0;

	take(&c, text, changes);
	assert_int_equal(c.n_layers, strlen(sparse));
	for (uint32_t i = 0; i < c.n_layers; i++) {
		const struct od_layer_spec *l = od_config_layer(&c, i);

		if (l->ffn != (sparse[i] == 'm' ? OD_FFN_MOE : OD_FFN_DENSE))
			fail_msg("%s: layer %u is not '%c'", changes, i, sparse[i]);
		if (l->ffn == OD_FFN_MOE) {
			assert_int_equal(c.m_of[i], m);
			assert_int_equal(c.layer_of[m++], i);
		} else {
			assert_true(l->intermediate > 0);
			assert_false(l->shared_intermediate > 0 || l->shared_gate);
		}
	}
	assert_int_equal(c.n_moe, m);
}

static void test_dense_layers(void **state)
{
	static const char *const qwens[] = { qwen3_30b_a3b, qwen15_moe_a27b };

	(void)state;
	for (int i = 0; i < 2; i++) {
		check_sparse(qwens[i], "{\"num_hidden_layers\":6}", "mmmmmm");
		check_sparse(qwens[i],
			     "{\"num_hidden_layers\":6,\"mlp_only_layers\":null,\"decoder_sparse_step\":null}",
			     "mmmmmm");
		check_sparse(qwens[i], "{\"num_hidden_layers\":6,\"mlp_only_layers\":[0,5]}", ".mmmm.");
		check_sparse(qwens[i], "{\"num_hidden_layers\":7,\"decoder_sparse_step\":3}", "..m..m.");
		check_sparse(qwens[i],
			     "{\"num_hidden_layers\":8,\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,4,3]}",
			     ".m...m.m");
		refuse(qwens[i], "{\"num_hidden_layers\":6,\"decoder_sparse_step\":7}", OD_ERR_UNSUPPORTED,
		       "none of the 6 layers", "experts");
		refuse(qwens[i], "{\"num_hidden_layers\":2,\"mlp_only_layers\":[1,0]}", OD_ERR_UNSUPPORTED,
		       "none of the 2 layers", "experts");
		refuse(qwens[i], "{\"decoder_sparse_step\":0}", OD_ERR_RANGE, "decoder_sparse_step", "found 0");
		/* none is refused */
		check_sparse(qwens[i], "{\"num_hidden_layers\":4,\"mlp_only_layers\":[4,1,9]}", "m.mm");
		refuse(qwens[i], "{\"mlp_only_layers\":[-1]}", OD_ERR_RANGE, "mlp_only_layers", "layer numbers");
		refuse(qwens[i], "{\"mlp_only_layers\":[\"1\"]}", OD_ERR_RANGE, "mlp_only_layers", "layer numbers");
		refuse(qwens[i], "{\"mlp_only_layers\":3}", OD_ERR_FORMAT, "mlp_only_layers", "an integer");
	}
	check_sparse(deepseek_v2, "{\"num_hidden_layers\":5,\"first_k_dense_replace\":3}", "...mm");
	check_sparse(deepseek_v2, "{\"num_hidden_layers\":3,\"first_k_dense_replace\":0}", "mmm");
	check_sparse(deepseek_v2, "{\"num_hidden_layers\":3,\"first_k_dense_replace\":null}", "mmm");
	refuse(deepseek_v2, "{\"num_hidden_layers\":3,\"first_k_dense_replace\":3}", OD_ERR_UNSUPPORTED,
	       "none of the 3 layers", "experts");
}

/* windows: of each layer. */
static void check_windows(const char *text, const char *changes, uint32_t n_layers, const uint32_t *windows)
{
	struct od_config c;

	take(&c, text, changes);
	assert_int_equal(c.n_layers, n_layers);
	for (uint32_t i = 0; i < n_layers; i++)
		assert_int_equal(od_config_layer(&c, i)->mix.window, windows[i]);
}

static void test_windows(void **state)
{
	(void)state;
	check_windows(mixtral_8x7b, "{\"num_hidden_layers\":2,\"sliding_window\":4096}", 2, (uint32_t[]){ 4096, 4096 });
	check_windows(qwen3_30b_a3b, "{\"num_hidden_layers\":2,\"sliding_window\":512}", 2, (uint32_t[]){ 0, 0 });
	check_windows(qwen3_30b_a3b, "{\"num_hidden_layers\":2,\"sliding_window\":512,\"use_sliding_window\":true}", 2,
		      (uint32_t[]){ 512, 512 });
	check_windows(qwen3_30b_a3b, "{\"num_hidden_layers\":2,\"use_sliding_window\":true}", 2, (uint32_t[]){ 0, 0 });
	/* Every second layer, up to max_window_layers; or as layer_types says. */
	check_windows(qwen15_moe_a27b,
		      "{\"num_hidden_layers\":6,\"use_sliding_window\":true,\"sliding_window\":99,"
		      "\"max_window_layers\":4}",
		      6, (uint32_t[]){ 99, 0, 99, 0, 0, 0 });
	check_windows(qwen15_moe_a27b,
		      "{\"num_hidden_layers\":6,\"use_sliding_window\":true,\"sliding_window\":99,"
		      "\"max_window_layers\":5}",
		      6, (uint32_t[]){ 99, 0, 99, 0, 99, 0 });
	check_windows(qwen15_moe_a27b,
		      "{\"num_hidden_layers\":3,\"use_sliding_window\":true,\"sliding_window\":99,\"layer_types\":"
		      "[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
		      3, (uint32_t[]){ 0, 99, 99 });
	/* not used */
	check_windows(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"sliding_window\":0}", 2, (uint32_t[]){ 0, 0 });
	check_windows(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"use_sliding_window\":true,\"sliding_window\":null}",
		      2, (uint32_t[]){ 0, 0 });
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":3,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
	       OD_ERR_UNSUPPORTED, "layer_types", "each of 3 layers");
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
	       OD_ERR_UNSUPPORTED, "layer_types", "sliding_attention");
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",7]}", OD_ERR_UNSUPPORTED,
	       "layer_types", "full_attention");
	refuse(qwen15_moe_a27b, "{\"layer_types\":\"full_attention\"}", OD_ERR_FORMAT, "layer_types", "a string");
	refuse(qwen3_30b_a3b, "{\"use_sliding_window\":1}", OD_ERR_FORMAT, "use_sliding_window", "an integer");
	refuse(qwen3_30b_a3b, "{\"use_sliding_window\":true,\"sliding_window\":-1}", OD_ERR_RANGE, "sliding_window",
	       "-1");
	/* For transformers 0 is a window, too, in which nothing is. */
	refuse(mixtral_8x7b, "{\"sliding_window\":0}", OD_ERR_RANGE, "sliding_window", "found 0");
	refuse(qwen3_30b_a3b, "{\"use_sliding_window\":true,\"sliding_window\":0}", OD_ERR_RANGE, "sliding_window",
	       "found 0");
	refuse(qwen15_moe_a27b, "{\"use_sliding_window\":true,\"sliding_window\":0}", OD_ERR_RANGE, "sliding_window",
	       "found 0");
	refuse(qwen15_moe_a27b, "{\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
	       OD_ERR_UNSUPPORTED, "layer_types", "use_sliding_window");
	refuse(qwen15_moe_a27b,
	       "{\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"],\"use_sliding_window\":true,"
	       "\"sliding_window\":null}",
	       OD_ERR_UNSUPPORTED, "layer_types", "sliding_window");
}

/* transformers' defaults for these two numbers. */
static void test_missing_numbers(void **state)
{
	static const struct {
		const char *text;
		uint32_t kv_heads;
		double theta;
	} cases[] = {
		{ mixtral_8x7b, 8, 1e6 },   { qwen3_30b_a3b, 4, 1e4 }, { qwen15_moe_a27b, 16, 1e4 },
		{ olmoe_1b_7b, 16, 1e4 },   { glm45, 8, 1e4 },	       { minimax_m2, 8, 5e6 },
		{ qwen3_next_80b, 2, 1e4 }, { qwen35_35b, 2, 1e4 },    { gpt_oss_20b, 8, 150000 },
	};
	static const char *const keys[] = { "num_key_value_heads", "rope_theta", "rope_parameters" };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *root = json_loads(cases[i].text, 0, NULL);
		struct od_err err = { 0 };
		struct od_config c;

		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			(void)json_object_del(root, keys[k]);
		if (od_config_parse(&c, root, "config.json", &err) != OD_OK)
			fail_msg("%s", err.msg);
		assert_int_equal(od_config_layer(&c, c.n_layers - 1)->mix.n_kv_heads, cases[i].kv_heads);
		assert_true(c.rope[0].theta == cases[i].theta);
		json_decref(root);
	}
}

/* Checks which biases there are, from q to o. */
static void check_biases(const char *text, const char *changes, bool qkv, bool o)
{
	struct od_config c;

	take(&c, text, changes);
	for (int role = OD_ROLE_Q_BIAS; role <= OD_ROLE_O_BIAS; role++) {
		const struct od_mixer *m = &od_config_layer(&c, 1)->mix;
		const bool has = role == OD_ROLE_O_BIAS ? o : qkv;
		uint64_t n_out, n_in;

		od_role_shape(&c, (enum od_role)role, 1, &n_out, &n_in);
		assert_int_equal(n_out, !has		       ? 0 :
					role == OD_ROLE_O_BIAS ? c.hidden :
					role == OD_ROLE_Q_BIAS ? m->n_heads * m->k_dim :
								 m->n_kv_heads * m->k_dim);
		assert_int_equal(n_in, 0);
	}
}

static void test_biases_and_clipping(void **state)
{
	struct od_config c;

	(void)state;
	check_biases(qwen3_30b_a3b, "{}", false, false);
	check_biases(qwen3_30b_a3b, "{\"attention_bias\":true}", true, true);
	check_biases(olmoe_1b_7b, "{\"attention_bias\":true}", true, true);
	check_biases(qwen15_moe_a27b, "{\"qkv_bias\":false}", false, false);
	check_biases(qwen15_moe_a27b, "{\"qkv_bias\":true}", true, false);
	check_biases(qwen15_moe_a27b, "{\"attention_bias\":false}", true, false);
	check_biases(deepseek_v2, "{\"attention_bias\":null}", false, false);
	refuse(qwen15_moe_a27b, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(deepseek_v2, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	refuse(mixtral_8x7b, "{\"attention_bias\":true}", OD_ERR_UNSUPPORTED, "attention_bias", "found true");
	take(&c, olmoe_1b_7b, "{\"clip_qkv\":8.0}");
	assert_true(c.kind[0].mix.clip == 8);
	take(&c, olmoe_1b_7b, "{\"clip_qkv\":3}");
	assert_true(c.kind[0].mix.clip == 3);
	refuse(olmoe_1b_7b, "{\"clip_qkv\":0}", OD_ERR_RANGE, "clip_qkv", "found 0");
	refuse(olmoe_1b_7b, "{\"clip_qkv\":-1.0}", OD_ERR_RANGE, "clip_qkv", "-1");
	refuse(olmoe_1b_7b, "{\"clip_qkv\":\"8\"}", OD_ERR_FORMAT, "clip_qkv", "a string");
}

static void test_routers(void **state)
{
	struct od_config c;

	(void)state;
	take(&c, qwen3_30b_a3b, "{\"norm_topk_prob\":false}");
	assert_false(c.kind[0].router.renormalise);
	take(&c, qwen3_30b_a3b, "{\"norm_topk_prob\":null}"); /* transformers' default */
	assert_false(c.kind[0].router.renormalise);
	take(&c, qwen15_moe_a27b, "{\"norm_topk_prob\":true}");
	assert_true(c.kind[0].router.renormalise);
	take(&c, olmoe_1b_7b, "{\"norm_topk_prob\":true}");
	assert_true(c.kind[0].router.renormalise);
	take(&c, deepseek_v2, "{\"topk_method\":\"greedy\",\"routed_scaling_factor\":2.5}");
	assert_int_equal(c.kind[1].router.n_groups, 0);
	assert_int_equal(c.kind[1].router.top_groups, 0);
	assert_true(c.kind[1].router.scale == 2.5f);
	take(&c, deepseek_v2, "{\"topk_method\":null,\"n_group\":null,\"routed_scaling_factor\":null}");
	assert_int_equal(c.kind[1].router.n_groups, 0);
	assert_true(c.kind[1].router.scale == 1);
	take(&c, deepseek_v2, "{\"n_group\":40,\"topk_group\":2}");
	assert_int_equal(c.kind[1].router.n_groups, 40);
	assert_int_equal(c.kind[1].router.top_groups, 2);
	for (size_t i = 0; i < n_family_published; i++)
		if (!family_published[i].no_norm_topk)
			refuse(family_published[i].config, "{\"norm_topk_prob\":1}", OD_ERR_FORMAT, "norm_topk_prob",
			       "an integer");
}

static void test_shared_experts(void **state)
{
	struct od_config c;
	uint64_t n_out, n_in;

	(void)state;
	for (int i = 0; i < 2; i++) {
		take(&c, deepseek_v2, i == 0 ? "{\"n_shared_experts\":0}" : "{\"n_shared_experts\":null}");
		assert_int_equal(c.kind[1].shared_intermediate, 0);
		for (int role = OD_ROLE_SHARED_GATE; role <= OD_ROLE_SHARED_SCORE; role++) {
			od_role_shape(&c, (enum od_role)role, 1, &n_out, &n_in);
			assert_int_equal(n_out, 0);
		}
	}
	refuse(deepseek_v2, "{\"n_shared_experts\":700}", OD_ERR_RANGE, "n_shared_experts", "at most 682, found 700");
	refuse(qwen15_moe_a27b, "{\"shared_expert_intermediate_size\":null}", OD_ERR_FORMAT,
	       "shared_expert_intermediate_size", "found null");
	refuse(qwen15_moe_a27b, "{\"shared_expert_intermediate_size\":0}", OD_ERR_RANGE,
	       "shared_expert_intermediate_size", "found 0");
}
/* ---- ropes ---- */

static void check_yarn(const char *text, const char *changes, double factor, double magnitude, double scale)
{
	struct od_config c;

	take(&c, text, changes);
	near(c.rope[0].factor, factor);
	near((double)c.rope[0].magnitude, magnitude);
	near((double)c.kind[0].mix.scale, scale);
}

static void test_yarn(void **state)
{
	const double plain = 0.08838834764831845; /* 128^-0.5 */
	struct od_config c;

	(void)state;
	/* As Qwen3's model card says for long texts: 0.1 ln 4 + 1. */
	check_yarn(qwen3_30b_a3b, YARN(""), 4, 1.138629436111989, plain);
	check_yarn(mixtral_8x7b, YARN(""), 4, 1.138629436111989, plain);
	check_yarn(olmoe_1b_7b, YARN(""), 4, 1.138629436111989, plain);
	check_yarn(qwen15_moe_a27b, YARN(""), 4, 1.138629436111989, plain);
	take(&c, qwen3_30b_a3b, YARN(""));
	assert_true(c.rope[0].beta_fast == 32 && c.rope[0].beta_slow == 1 && c.rope[0].theta == 1e6);
	assert_int_equal(c.rope[0].original_ctx, 32768);
	take(&c, qwen3_30b_a3b, YARN(",\"beta_fast\":24,\"beta_slow\":2.5,\"truncate\":true,\"rope_theta\":1000000.0"));
	assert_true(c.rope[0].beta_fast == 24 && c.rope[0].beta_slow == 2.5 && !c.rope[0].between);
	take(&c, qwen3_30b_a3b, YARN(",\"truncate\":false"));
	assert_true(c.rope[0].between);
	/* not as if it were missing: transformers takes it for false */
	take(&c, qwen3_30b_a3b, YARN(",\"truncate\":null"));
	assert_true(c.rope[0].between);
	check_yarn(qwen3_30b_a3b, YARN(",\"attention_factor\":1.25"), 4, 1.25, plain);
	check_yarn(qwen3_30b_a3b, YARN(",\"mscale\":0.5"), 4, 1.138629436111989, plain); /* both, or none counts */
	/* (0.05 ln 4 + 1) / (0.025 ln 4 + 1); of scores only DeepSeek has a factor. */
	check_yarn(qwen3_30b_a3b, YARN(",\"mscale\":0.5,\"mscale_all_dim\":0.25"), 4,
		   1.0693147180559945 / 1.0346573590279973, plain);
	/* Without factor: 40960 / 32768. */
	check_yarn(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":32768}}",
		   1.25, 1.0223143551314210, plain);
	/* The original context may stand beside rope_scaling. */
	take(&c, qwen3_30b_a3b,
	     "{\"original_max_position_embeddings\":8192,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}");
	assert_int_equal(c.rope[0].original_ctx, 8192);
	take(&c, qwen3_30b_a3b, YARN("},\"original_max_position_embeddings\":32768,\"x\":{\"y\":1"));
	assert_int_equal(c.rope[0].original_ctx, 32768);
	check_yarn(qwen3_30b_a3b, "{\"original_max_position_embeddings\":32768,\"rope_scaling\":{\"type\":\"yarn\"}}",
		   1.25, 1.0223143551314210, plain);
	/* rope_type counts before type, rope_parameters are the newer name. */
	check_yarn(qwen3_30b_a3b,
		   "{\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":\"yarn\",\"type\":\"default\",\"factor\":2,"
		   "\"rope_theta\":1e6,\"original_max_position_embeddings\":20480}}",
		   2, 1.0693147180559945, plain);
}

static void test_yarn_of_deepseek(void **state)
{
	const double plain = 0.07216878364870322; /* 192^-0.5 */
	const double m1 = 1.2079441541679836, m_half = 1.1039720770839918, m_quarter = 1.0519860385419959;

	(void)state;
	check_yarn(deepseek_v2, "{\"rope_scaling\":null}", 0, 1, plain);
	check_yarn(deepseek_v2, DEEP(""), 8, m1, plain);
	check_yarn(deepseek_v2, DEEP(",\"mscale\":1.0"), 8, m1, plain);
	check_yarn(deepseek_v2, DEEP(",\"mscale_all_dim\":0.5"), 8, m1, plain * m_half * m_half);
	check_yarn(deepseek_v2, DEEP(",\"mscale\":0.5,\"mscale_all_dim\":0.25"), 8, m_half / m_quarter,
		   plain * m_quarter * m_quarter);
	check_yarn(deepseek_v2, DEEP(",\"mscale\":0.0,\"mscale_all_dim\":0.0"), 8, m1, plain);
	check_yarn(deepseek_v2,
		   "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1,\"mscale\":3,\"mscale_all_dim\":2,"
		   "\"original_max_position_embeddings\":4096}}",
		   1, 1, plain);
}

static void test_yarn_refuses(void **state)
{
	(void)state;
	refuse(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\"}}", OD_ERR_MISSING, "rope_scaling",
	       "original_max_position_embeddings");
	refuse(qwen3_30b_a3b,
	       "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5,\"original_max_position_embeddings\":4096}}",
	       OD_ERR_RANGE, "factor", "found 0.5");
	refuse(qwen3_30b_a3b, "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":40961}}",
	       OD_ERR_RANGE, "factor", "40960 is below");
	refuse(qwen3_30b_a3b, YARN("},\"original_max_position_embeddings\":4096,\"x\":{\"y\":1"), OD_ERR_FORMAT,
	       "original_max_position_embeddings", "found two values, 4096 and 32768");
	refuse(qwen3_30b_a3b, YARN(",\"truncate\":0"), OD_ERR_FORMAT, "truncate", "an integer");
	refuse(qwen3_30b_a3b, YARN(",\"partial_rotary_factor\":0.5"), OD_ERR_UNSUPPORTED, "partial_rotary_factor",
	       "0.5");
	refuse(qwen3_30b_a3b, YARN(",\"beta_fast\":-1"), OD_ERR_RANGE, "beta_fast", "-1");
	refuse(qwen3_30b_a3b, YARN(",\"attention_factor\":\"1\""), OD_ERR_FORMAT, "attention_factor", "a string");
	refuse(qwen3_30b_a3b, YARN("},\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6"),
	       OD_ERR_FORMAT, "rope_parameters", "expected one of them, found both");
	refuse(qwen3_30b_a3b, YARN("},\"rope_theta\":1,\"x\":{\"y\":1"), OD_ERR_RANGE, "rope_theta", "YaRN");
	refuse(qwen3_30b_a3b, YARN("},\"rope_theta\":0.5,\"x\":{\"y\":1"), OD_ERR_RANGE, "rope_theta", "0.5");
	refuse(deepseek_v2, DEEP(",\"mscale\":-0.5"), OD_ERR_RANGE, "mscale", "-0.5");
	refuse(deepseek_v2, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", OD_ERR_UNSUPPORTED, "rope_scaling",
	       "llama3");
}

static void test_gpt_oss_settings(void **state)
{
	struct od_config c;

	(void)state;
	take(&c, gpt_oss_20b,
	     "{\"attention_bias\":null,\"layer_types\":null,\"swiglu_limit\":null,\"experts_per_token\":null}");
	assert_true(od_config_layer(&c, 0)->mix.qkv_bias && od_config_layer(&c, 0)->mix.o_bias && c.act.limit == 7 &&
		    c.top_k == 4);
	assert_true(od_config_layer(&c, 22)->mix.window == 128 && od_config_layer(&c, 23)->mix.window == 0);
	take(&c, gpt_oss_20b,
	     "{\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"],\"attention_bias\":false}");
	assert_true(od_config_layer(&c, 0)->mix.window == 0 && !od_config_layer(&c, 0)->mix.qkv_bias);
	take(&c, gpt_oss_20b,
	     "{\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":150000}}");
	assert_true(c.rope[0].factor == 0 && c.rope[0].magnitude == 1);
	take(&c, gpt_oss_20b, "{\"quantization_config\":null,\"swiglu_alpha\":1.702}");
	assert_false(c.scaled);

	refuse(gpt_oss_20b, "{\"swiglu_alpha\":1.5}", OD_ERR_UNSUPPORTED, "swiglu_alpha", "expected 1.702, found 1.5");
	refuse(gpt_oss_20b, "{\"swiglu_limit\":0}", OD_ERR_RANGE, "swiglu_limit", "found 0");
	refuse(gpt_oss_20b, "{\"swiglu_limit\":\"7\"}", OD_ERR_FORMAT, "swiglu_limit", "a string");
	refuse(gpt_oss_20b, "{\"experts_per_token\":2}", OD_ERR_FORMAT, "experts_per_token", "found 4 and 2");
	refuse(gpt_oss_20b, "{\"head_dim\":null}", OD_ERR_MISSING, "head_dim", "missing");
	refuse(gpt_oss_20b, "{\"rope_scaling\":null}", OD_ERR_MISSING, "rope_scaling", "rope_parameters");
	refuse(gpt_oss_20b, "{\"rope_scaling\":{}}", OD_ERR_MISSING, "rope_scaling", "rope_parameters");
	refuse(gpt_oss_20b, "{\"attention_bias\":1}", OD_ERR_FORMAT, "attention_bias", "an integer");
	refuse(gpt_oss_20b, "{\"layer_types\":[\"full_attention\"]}", OD_ERR_FORMAT, "layer_types",
	       "expected 24 entries");
	refuse(gpt_oss_20b, "{\"num_hidden_layers\":1,\"layer_types\":[\"chunked_attention\"]}", OD_ERR_UNSUPPORTED,
	       "layer_types", "chunked_attention");
	refuse(gpt_oss_20b, "{\"num_hidden_layers\":1,\"layer_types\":[1]}", OD_ERR_UNSUPPORTED, "layer_types",
	       "layer 0");
	refuse(gpt_oss_20b, "{\"layer_types\":\"full_attention\"}", OD_ERR_FORMAT, "layer_types", "a string");
	refuse(gpt_oss_20b, "{\"quantization_config\":{\"quant_method\":\"mxfp4\",\"group_size\":16}}",
	       OD_ERR_UNSUPPORTED, "quantization_config", "group_size");
	refuse(gpt_oss_20b, "{\"quantization_config\":{\"quant_method\":\"gptq\"}}", OD_ERR_UNSUPPORTED,
	       "quantization_config", "\"mxfp4\", found \"gptq\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rotates_in_part),
		cmocka_unit_test(test_refuses_what_minimax_m1_had),
		cmocka_unit_test(test_refuses_other_v3),
		cmocka_unit_test(test_dense_layers),
		cmocka_unit_test(test_windows),
		cmocka_unit_test(test_missing_numbers),
		cmocka_unit_test(test_biases_and_clipping),
		cmocka_unit_test(test_routers),
		cmocka_unit_test(test_shared_experts),
		cmocka_unit_test(test_yarn),
		cmocka_unit_test(test_yarn_of_deepseek),
		cmocka_unit_test(test_yarn_refuses),
		cmocka_unit_test(test_gpt_oss_settings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
