/* Layers, tensors and names that each family makes of a published config.json. */
#include "tests/unit/family_util.h"

static void test_qwen3_30b_a3b(void **state)
{
	static const struct tensor global[] = {
		{ OD_ROLE_EMBED, 0, "model.embed_tokens.weight", 151936, 2048 },
		{ OD_ROLE_HEAD, 0, "lm_head.weight", 151936, 2048 },
		{ OD_ROLE_FINAL_NORM, 0, "model.norm.weight", 2048, 0 },
	};
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 47, "model.layers.47.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 47, "model.layers.47.self_attn.q_proj.weight", 4096, 2048 },
		{ OD_ROLE_K, 47, "model.layers.47.self_attn.k_proj.weight", 512, 2048 },
		{ OD_ROLE_V, 47, "model.layers.47.self_attn.v_proj.weight", 512, 2048 },
		{ OD_ROLE_O, 47, "model.layers.47.self_attn.o_proj.weight", 2048, 4096 },
		{ OD_ROLE_Q_NORM, 47, "model.layers.47.self_attn.q_norm.weight", 128, 0 },
		{ OD_ROLE_K_NORM, 47, "model.layers.47.self_attn.k_norm.weight", 128, 0 },
		{ OD_ROLE_FFN_NORM, 47, "model.layers.47.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 47, "model.layers.47.mlp.gate.weight", 128, 2048 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, qwen3_30b_a3b, "{}");
	check_counts(&c, "qwen3_moe", 48, 0, 1);
	check_experts(&c, 128, 8, 768);
	check_plain_rope(&c, 128, 1e6);
	l = od_config_layer(&c, 0);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 32, 4, 128, 128);
	near((double)l->mix.scale, 0.08838834764831845);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_HEAD);
	assert_true(l->mix.norm_eps == 1e-6f);
	assert_false(l->mix.qkv_bias || l->mix.o_bias || l->mix.clip != 0);
	assert_true(l->router.renormalise && l->router.scale == 1 && l->router.n_groups == 0);
	assert_int_equal(l->shared_intermediate, 0);
	CHECK_TENSORS(&c, global);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 3, 127, "model.layers.3.mlp.experts.127.gate_proj.weight",
		     "model.layers.3.mlp.experts.127.up_proj.weight",
		     "model.layers.3.mlp.experts.127.down_proj.weight");
}

static void test_qwen15_moe_a27b(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 5, "model.layers.5.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 5, "model.layers.5.self_attn.q_proj.weight", 2048, 2048 },
		{ OD_ROLE_K, 5, "model.layers.5.self_attn.k_proj.weight", 2048, 2048 },
		{ OD_ROLE_V, 5, "model.layers.5.self_attn.v_proj.weight", 2048, 2048 },
		{ OD_ROLE_O, 5, "model.layers.5.self_attn.o_proj.weight", 2048, 2048 },
		{ OD_ROLE_Q_BIAS, 5, "model.layers.5.self_attn.q_proj.bias", 2048, 0 },
		{ OD_ROLE_K_BIAS, 5, "model.layers.5.self_attn.k_proj.bias", 2048, 0 },
		{ OD_ROLE_V_BIAS, 5, "model.layers.5.self_attn.v_proj.bias", 2048, 0 },
		{ OD_ROLE_FFN_NORM, 5, "model.layers.5.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 5, "model.layers.5.mlp.gate.weight", 60, 2048 },
		{ OD_ROLE_SHARED_GATE, 5, "model.layers.5.mlp.shared_expert.gate_proj.weight", 5632, 2048 },
		{ OD_ROLE_SHARED_UP, 5, "model.layers.5.mlp.shared_expert.up_proj.weight", 5632, 2048 },
		{ OD_ROLE_SHARED_DOWN, 5, "model.layers.5.mlp.shared_expert.down_proj.weight", 2048, 5632 },
		{ OD_ROLE_SHARED_SCORE, 5, "model.layers.5.mlp.shared_expert_gate.weight", 1, 2048 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, qwen15_moe_a27b, "{}");
	check_counts(&c, "qwen2_moe", 24, 0, 1); /* no layer sees a window: use_sliding_window is false */
	check_experts(&c, 60, 4, 1408);
	check_plain_rope(&c, 128, 1e6);
	l = od_config_layer(&c, 23);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 16, 16, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_NONE);
	assert_true(l->mix.qkv_bias && !l->mix.o_bias);
	assert_true(!l->router.renormalise && l->router.scale == 1);
	assert_int_equal(l->shared_intermediate, 5632);
	assert_true(l->shared_gate);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 23, 59, "model.layers.23.mlp.experts.59.gate_proj.weight",
		     "model.layers.23.mlp.experts.59.up_proj.weight",
		     "model.layers.23.mlp.experts.59.down_proj.weight");
}

static void test_olmoe_1b_7b(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 15, "model.layers.15.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 15, "model.layers.15.self_attn.q_proj.weight", 2048, 2048 },
		{ OD_ROLE_K, 15, "model.layers.15.self_attn.k_proj.weight", 2048, 2048 },
		{ OD_ROLE_V, 15, "model.layers.15.self_attn.v_proj.weight", 2048, 2048 },
		{ OD_ROLE_O, 15, "model.layers.15.self_attn.o_proj.weight", 2048, 2048 },
		{ OD_ROLE_Q_NORM, 15, "model.layers.15.self_attn.q_norm.weight", 2048, 0 },
		{ OD_ROLE_K_NORM, 15, "model.layers.15.self_attn.k_norm.weight", 2048, 0 },
		{ OD_ROLE_FFN_NORM, 15, "model.layers.15.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 15, "model.layers.15.mlp.gate.weight", 64, 2048 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, olmoe_1b_7b, "{}");
	check_counts(&c, "olmoe", 16, 0, 1);
	check_experts(&c, 64, 8, 1024);
	check_plain_rope(&c, 128, 1e4);
	assert_int_equal(c.bos, -1);
	l = od_config_layer(&c, 7);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 16, 16, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_ROW);
	assert_true(l->mix.norm_eps == 1e-5f && l->mix.clip == 0);
	assert_true(!l->router.renormalise && l->router.scale == 1);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 0, 9, "model.layers.0.mlp.experts.9.gate_proj.weight",
		     "model.layers.0.mlp.experts.9.up_proj.weight", "model.layers.0.mlp.experts.9.down_proj.weight");
}

/* m(s) = 0.1 s ln 40 + 1; 192 = 128 + 64. */
static void check_deepseek(const struct od_config *c, const struct od_layer_spec *l, double scale)
{
	assert_ptr_equal(l->mixer, &od_mixer_mla);
	assert_int_equal(l->mix.nope_dim, 128);
	assert_int_equal(l->mix.kv_rank, 512);
	assert_true(l->mix.norm_eps == 1e-6f);
	near((double)l->mix.scale, scale);
	assert_int_equal(c->n_ropes, 1);
	assert_int_equal(c->rope[0].dims, 64);
	assert_true(c->rope[0].neighbours);
	assert_true(c->rope[0].theta == 1e4 && c->rope[0].factor == 40 && c->rope[0].beta_fast == 32 &&
		    c->rope[0].beta_slow == 1);
	assert_int_equal(c->rope[0].original_ctx, 4096);
	assert_true(c->rope[0].magnitude == 1); /* m(mscale) / m(mscale_all_dim) */
}

static void test_deepseek_v2(void **state)
{
	static const struct tensor dense[] = {
		{ OD_ROLE_ATTN_NORM, 0, "model.layers.0.input_layernorm.weight", 5120, 0 },
		{ OD_ROLE_Q_A, 0, "model.layers.0.self_attn.q_a_proj.weight", 1536, 5120 },
		{ OD_ROLE_Q_A_NORM, 0, "model.layers.0.self_attn.q_a_layernorm.weight", 1536, 0 },
		{ OD_ROLE_Q_B, 0, "model.layers.0.self_attn.q_b_proj.weight", 24576, 1536 },
		{ OD_ROLE_KV_A, 0, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 576, 5120 },
		{ OD_ROLE_KV_A_NORM, 0, "model.layers.0.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 0, "model.layers.0.self_attn.kv_b_proj.weight", 32768, 512 },
		{ OD_ROLE_O, 0, "model.layers.0.self_attn.o_proj.weight", 5120, 16384 },
		{ OD_ROLE_FFN_NORM, 0, "model.layers.0.post_attention_layernorm.weight", 5120, 0 },
		{ OD_ROLE_FFN_GATE, 0, "model.layers.0.mlp.gate_proj.weight", 12288, 5120 },
		{ OD_ROLE_FFN_UP, 0, "model.layers.0.mlp.up_proj.weight", 12288, 5120 },
		{ OD_ROLE_FFN_DOWN, 0, "model.layers.0.mlp.down_proj.weight", 5120, 12288 },
	};
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 59, "model.layers.59.input_layernorm.weight", 5120, 0 },
		{ OD_ROLE_Q_A, 59, "model.layers.59.self_attn.q_a_proj.weight", 1536, 5120 },
		{ OD_ROLE_Q_A_NORM, 59, "model.layers.59.self_attn.q_a_layernorm.weight", 1536, 0 },
		{ OD_ROLE_Q_B, 59, "model.layers.59.self_attn.q_b_proj.weight", 24576, 1536 },
		{ OD_ROLE_KV_A, 59, "model.layers.59.self_attn.kv_a_proj_with_mqa.weight", 576, 5120 },
		{ OD_ROLE_KV_A_NORM, 59, "model.layers.59.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 59, "model.layers.59.self_attn.kv_b_proj.weight", 32768, 512 },
		{ OD_ROLE_O, 59, "model.layers.59.self_attn.o_proj.weight", 5120, 16384 },
		{ OD_ROLE_FFN_NORM, 59, "model.layers.59.post_attention_layernorm.weight", 5120, 0 },
		{ OD_ROLE_ROUTER, 59, "model.layers.59.mlp.gate.weight", 160, 5120 },
		{ OD_ROLE_SHARED_GATE, 59, "model.layers.59.mlp.shared_experts.gate_proj.weight", 3072, 5120 },
		{ OD_ROLE_SHARED_UP, 59, "model.layers.59.mlp.shared_experts.up_proj.weight", 3072, 5120 },
		{ OD_ROLE_SHARED_DOWN, 59, "model.layers.59.mlp.shared_experts.down_proj.weight", 5120, 3072 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, deepseek_v2, "{}");
	check_counts(&c, "deepseek_v2", 60, 1, 2);
	check_experts(&c, 160, 6, 1536);
	for (uint32_t i = 0; i < 2; i++) {
		l = od_config_layer(&c, i);
		check_deepseek(&c, l, 0.1352337788608801); /* 192^-0.5 * m(1)^2 */
		check_heads(&l->mix, 128, 1, 192, 128);
		assert_int_equal(l->mix.q_rank, 1536);
	}
	assert_int_equal(l->router.n_groups, 8);
	assert_int_equal(l->router.top_groups, 3);
	assert_true(!l->router.renormalise && l->router.scale == 16);
	assert_int_equal(l->shared_intermediate, 3072);
	assert_false(l->shared_gate);
	CHECK_TENSORS(&c, dense);
	CHECK_TENSORS(&c, moe);
	/* Experts are counted by MoE layer, named by layer. */
	check_expert(&c, 0, 159, "model.layers.1.mlp.experts.159.gate_proj.weight",
		     "model.layers.1.mlp.experts.159.up_proj.weight",
		     "model.layers.1.mlp.experts.159.down_proj.weight");
	take(&c, deepseek_v2, "{\"rms_norm_eps\":1e-05}"); /* not of latents */
	assert_true(c.rms_eps == 1e-5f && od_config_layer(&c, 1)->mix.norm_eps == 1e-6f);
}

static void test_deepseek_v2_lite(void **state)
{
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 1, "model.layers.1.input_layernorm.weight", 2048, 0 },
		{ OD_ROLE_Q, 1, "model.layers.1.self_attn.q_proj.weight", 3072, 2048 },
		{ OD_ROLE_KV_A, 1, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 576, 2048 },
		{ OD_ROLE_KV_A_NORM, 1, "model.layers.1.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 1, "model.layers.1.self_attn.kv_b_proj.weight", 4096, 512 },
		{ OD_ROLE_O, 1, "model.layers.1.self_attn.o_proj.weight", 2048, 2048 },
		{ OD_ROLE_FFN_NORM, 1, "model.layers.1.post_attention_layernorm.weight", 2048, 0 },
		{ OD_ROLE_ROUTER, 1, "model.layers.1.mlp.gate.weight", 64, 2048 },
		{ OD_ROLE_SHARED_GATE, 1, "model.layers.1.mlp.shared_experts.gate_proj.weight", 2816, 2048 },
		{ OD_ROLE_SHARED_UP, 1, "model.layers.1.mlp.shared_experts.up_proj.weight", 2816, 2048 },
		{ OD_ROLE_SHARED_DOWN, 1, "model.layers.1.mlp.shared_experts.down_proj.weight", 2048, 2816 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, deepseek_v2_lite, "{}");
	check_counts(&c, "deepseek_v2", 27, 1, 2);
	check_experts(&c, 64, 6, 1408);
	l = od_config_layer(&c, 26);
	check_deepseek(&c, l, 0.11472138679292611); /* 192^-0.5 * m(0.707)^2 */
	check_heads(&l->mix, 16, 1, 192, 128);
	assert_int_equal(l->mix.q_rank, 0);
	assert_int_equal(l->router.n_groups, 0); /* greedy */
	assert_true(!l->router.renormalise && l->router.scale == 1);
	assert_int_equal(od_config_layer(&c, 0)->intermediate, 10944);
	CHECK_TENSORS(&c, moe);
}

/* Checks the router that DeepSeek-V3, GLM-4.5 and MiniMax-M2 share. */
static void check_sigmoid(const struct od_router_spec *r, uint32_t n_groups, uint32_t top_groups, bool two, float scale,
			  float eps)
{
	assert_int_equal(r->score, OD_SCORE_SIGMOID);
	assert_true(r->bias && r->renormalise);
	assert_int_equal(r->n_groups, n_groups);
	assert_int_equal(r->top_groups, top_groups);
	assert_true(r->group_two == two && r->scale == scale && r->sum_eps == eps);
}

static void test_deepseek_v3(void **state)
{
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 60, "model.layers.60.input_layernorm.weight", 7168, 0 },
		{ OD_ROLE_Q_A, 60, "model.layers.60.self_attn.q_a_proj.weight", 1536, 7168 },
		{ OD_ROLE_Q_A_NORM, 60, "model.layers.60.self_attn.q_a_layernorm.weight", 1536, 0 },
		{ OD_ROLE_Q_B, 60, "model.layers.60.self_attn.q_b_proj.weight", 24576, 1536 },
		{ OD_ROLE_KV_A, 60, "model.layers.60.self_attn.kv_a_proj_with_mqa.weight", 576, 7168 },
		{ OD_ROLE_KV_A_NORM, 60, "model.layers.60.self_attn.kv_a_layernorm.weight", 512, 0 },
		{ OD_ROLE_KV_B, 60, "model.layers.60.self_attn.kv_b_proj.weight", 32768, 512 },
		{ OD_ROLE_O, 60, "model.layers.60.self_attn.o_proj.weight", 7168, 16384 },
		{ OD_ROLE_FFN_NORM, 60, "model.layers.60.post_attention_layernorm.weight", 7168, 0 },
		{ OD_ROLE_ROUTER, 60, "model.layers.60.mlp.gate.weight", 256, 7168 },
		{ OD_ROLE_SHARED_GATE, 60, "model.layers.60.mlp.shared_experts.gate_proj.weight", 2048, 7168 },
		{ OD_ROLE_SHARED_UP, 60, "model.layers.60.mlp.shared_experts.up_proj.weight", 2048, 7168 },
		{ OD_ROLE_SHARED_DOWN, 60, "model.layers.60.mlp.shared_experts.down_proj.weight", 7168, 2048 },
		{ OD_ROLE_ROUTER_BIAS, 60, "model.layers.60.mlp.gate.e_score_correction_bias", 256, 0 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, deepseek_v3, "{}");
	check_counts(&c, "deepseek_v3", 61, 3, 2);
	check_experts(&c, 256, 8, 2048);
	assert_int_equal(c.n_mtp, 1);
	l = od_config_layer(&c, 60);
	check_deepseek(&c, l, 0.1352337788608801); /* 192^-0.5 * m(1)^2 */
	check_heads(&l->mix, 128, 1, 192, 128);
	check_sigmoid(&l->router, 8, 4, true, 2.5f, 1e-20f);
	assert_int_equal(od_config_layer(&c, 0)->intermediate, 18432);
	CHECK_TENSORS(&c, moe);
	check_expert(&c, 0, 255, "model.layers.3.mlp.experts.255.gate_proj.weight",
		     "model.layers.3.mlp.experts.255.up_proj.weight",
		     "model.layers.3.mlp.experts.255.down_proj.weight");
	take(&c, kimi_k2, "{}");
	check_counts(&c, "deepseek_v3", 61, 1, 2);
	check_experts(&c, 384, 8, 2048);
	assert_int_equal(c.n_mtp, 0);
	l = od_config_layer(&c, 1);
	check_heads(&l->mix, 64, 1, 192, 128);
	check_sigmoid(&l->router, 1, 1, true, 2.827f, 1e-20f);
	near((double)l->mix.scale, 0.13086079996295005); /* 192^-0.5 * (0.1 ln 32 + 1)^2 */
}

static void test_glm45(void **state)
{
	static const struct tensor moe[] = {
		{ OD_ROLE_ATTN_NORM, 91, "model.layers.91.input_layernorm.weight", 5120, 0 },
		{ OD_ROLE_Q, 91, "model.layers.91.self_attn.q_proj.weight", 12288, 5120 },
		{ OD_ROLE_K, 91, "model.layers.91.self_attn.k_proj.weight", 1024, 5120 },
		{ OD_ROLE_V, 91, "model.layers.91.self_attn.v_proj.weight", 1024, 5120 },
		{ OD_ROLE_O, 91, "model.layers.91.self_attn.o_proj.weight", 5120, 12288 },
		{ OD_ROLE_Q_BIAS, 91, "model.layers.91.self_attn.q_proj.bias", 12288, 0 },
		{ OD_ROLE_K_BIAS, 91, "model.layers.91.self_attn.k_proj.bias", 1024, 0 },
		{ OD_ROLE_V_BIAS, 91, "model.layers.91.self_attn.v_proj.bias", 1024, 0 },
		{ OD_ROLE_Q_NORM, 91, "model.layers.91.self_attn.q_norm.weight", 128, 0 },
		{ OD_ROLE_K_NORM, 91, "model.layers.91.self_attn.k_norm.weight", 128, 0 },
		{ OD_ROLE_FFN_NORM, 91, "model.layers.91.post_attention_layernorm.weight", 5120, 0 },
		{ OD_ROLE_ROUTER, 91, "model.layers.91.mlp.gate.weight", 160, 5120 },
		{ OD_ROLE_SHARED_GATE, 91, "model.layers.91.mlp.shared_experts.gate_proj.weight", 1536, 5120 },
		{ OD_ROLE_SHARED_UP, 91, "model.layers.91.mlp.shared_experts.up_proj.weight", 1536, 5120 },
		{ OD_ROLE_SHARED_DOWN, 91, "model.layers.91.mlp.shared_experts.down_proj.weight", 5120, 1536 },
		{ OD_ROLE_ROUTER_BIAS, 91, "model.layers.91.mlp.gate.e_score_correction_bias", 160, 0 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, glm45, "{}");
	check_counts(&c, "glm4_moe", 92, 3, 2);
	check_experts(&c, 160, 8, 1536);
	check_plain_rope(&c, 64, 1e6); /* half of a head */
	assert_int_equal(c.n_mtp, 1);
	assert_int_equal(c.n_eos, 3);
	l = od_config_layer(&c, 91);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 96, 8, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_HEAD);
	assert_true(l->mix.qkv_bias && !l->mix.o_bias && l->mix.norm_eps == 1e-5f);
	check_sigmoid(&l->router, 1, 1, true, 2.5f, 1e-20f);
	CHECK_TENSORS(&c, moe);
	take(&c, glm45_air, "{}");
	check_counts(&c, "glm4_moe", 46, 1, 2);
	check_experts(&c, 128, 8, 1408);
	assert_int_equal(c.kind[1].mix.qk_norm, OD_QK_NORM_NONE);
	check_sigmoid(&c.kind[1].router, 1, 1, true, 1, 1e-20f);
	/* transformers' defaults for missing fields; it takes 1 for the first. */
	take(&c, glm45,
	     "{\"partial_rotary_factor\":null,\"use_qk_norm\":null,\"attention_bias\":null,"
	     "\"routed_scaling_factor\":null,\"n_shared_experts\":null,\"first_k_dense_replace\":null}");
	check_counts(&c, "glm4_moe", 92, 1, 2);
	check_plain_rope(&c, 128, 1e6);
	assert_true(c.kind[1].mix.qk_norm == OD_QK_NORM_NONE && !c.kind[1].mix.qkv_bias);
	check_sigmoid(&c.kind[1].router, 1, 1, true, 1, 1e-20f);
	assert_int_equal(c.kind[1].shared_intermediate, 1536);
}

/* GLM-4.7-Flash has the fields of DeepSeek-V3, and may have a list of its own. */
static void test_glm_lite(void **state)
{
#define LITE \
	"\"architectures\":[\"Glm4MoeLiteForCausalLM\"],\"model_type\":\"glm4_moe_lite\",\"n_group\":1,\"topk_group\":1"
	static const char types[] =
		"{" LITE ",\"num_hidden_layers\":3,\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}";
	static const char wrong[] = "{" LITE ",\"num_hidden_layers\":3,\"mlp_layer_types\":[\"sparse\",\"dense\"]}";
	static const char none[] =
		"{" LITE ",\"first_k_dense_replace\":null,\"routed_scaling_factor\":null,\"head_dim\":64}";
	struct od_config c;

	(void)state;
	take(&c, deepseek_v3, none);
	check_counts(&c, "glm4_moe_lite", 61, 1, 2);
	check_deepseek(&c, od_config_layer(&c, 60), 0.1352337788608801);
	check_sigmoid(&od_config_layer(&c, 60)->router, 1, 1, true, 1.8f, 1e-20f);
	take(&c, deepseek_v3, types);
	assert_int_equal(c.n_moe, 2);
	assert_true(c.layer_of[0] == 0 && c.layer_of[1] == 2);
	refuse(deepseek_v3, wrong, OD_ERR_UNSUPPORTED, "mlp_layer_types", "each of 3 layers");
	refuse(deepseek_v3, "{" LITE "}", OD_ERR_UNSUPPORTED, "first_k_dense_replace", "expected 1, found 3");
	refuse(deepseek_v3, "{" LITE ",\"head_dim\":128}", OD_ERR_UNSUPPORTED, "head_dim", "expected 64, found 128");
}

static void test_minimax_m2(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 61, "model.layers.61.input_layernorm.weight", 3072, 0 },
		{ OD_ROLE_Q, 61, "model.layers.61.self_attn.q_proj.weight", 6144, 3072 },
		{ OD_ROLE_K, 61, "model.layers.61.self_attn.k_proj.weight", 1024, 3072 },
		{ OD_ROLE_V, 61, "model.layers.61.self_attn.v_proj.weight", 1024, 3072 },
		{ OD_ROLE_O, 61, "model.layers.61.self_attn.o_proj.weight", 3072, 6144 },
		{ OD_ROLE_Q_NORM, 61, "model.layers.61.self_attn.q_norm.weight", 6144, 0 },
		{ OD_ROLE_K_NORM, 61, "model.layers.61.self_attn.k_norm.weight", 1024, 0 },
		{ OD_ROLE_FFN_NORM, 61, "model.layers.61.post_attention_layernorm.weight", 3072, 0 },
		{ OD_ROLE_ROUTER, 61, "model.layers.61.block_sparse_moe.gate.weight", 256, 3072 },
		{ OD_ROLE_ROUTER_BIAS, 61, "model.layers.61.block_sparse_moe.e_score_correction_bias", 256, 0 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, minimax_m2, "{}");
	check_counts(&c, "minimax_m2", 62, 0, 1);
	check_experts(&c, 256, 8, 1536);
	check_plain_rope(&c, 64, 5e6);
	l = od_config_layer(&c, 61);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 48, 8, 128, 128);
	assert_int_equal(l->mix.qk_norm, OD_QK_NORM_ROW);
	assert_false(l->mix.qkv_bias || l->mix.o_bias);
	check_sigmoid(&l->router, 0, 0, false, 1, 0);
	assert_int_equal(l->shared_intermediate, 0);
	CHECK_TENSORS(&c, layer);
	check_expert(&c, 61, 255, "model.layers.61.block_sparse_moe.experts.255.w1.weight",
		     "model.layers.61.block_sparse_moe.experts.255.w3.weight",
		     "model.layers.61.block_sparse_moe.experts.255.w2.weight");
}

static void test_gpt_oss(void **state)
{
	static const struct tensor layer[] = {
		{ OD_ROLE_ATTN_NORM, 23, "model.layers.23.input_layernorm.weight", 2880, 0 },
		{ OD_ROLE_Q, 23, "model.layers.23.self_attn.q_proj.weight", 4096, 2880 },
		{ OD_ROLE_K, 23, "model.layers.23.self_attn.k_proj.weight", 512, 2880 },
		{ OD_ROLE_V, 23, "model.layers.23.self_attn.v_proj.weight", 512, 2880 },
		{ OD_ROLE_O, 23, "model.layers.23.self_attn.o_proj.weight", 2880, 4096 },
		{ OD_ROLE_Q_BIAS, 23, "model.layers.23.self_attn.q_proj.bias", 4096, 0 },
		{ OD_ROLE_K_BIAS, 23, "model.layers.23.self_attn.k_proj.bias", 512, 0 },
		{ OD_ROLE_V_BIAS, 23, "model.layers.23.self_attn.v_proj.bias", 512, 0 },
		{ OD_ROLE_O_BIAS, 23, "model.layers.23.self_attn.o_proj.bias", 2880, 0 },
		{ OD_ROLE_SINKS, 23, "model.layers.23.self_attn.sinks", 64, 0 },
		{ OD_ROLE_FFN_NORM, 23, "model.layers.23.post_attention_layernorm.weight", 2880, 0 },
		{ OD_ROLE_ROUTER, 23, "model.layers.23.mlp.router.weight", 32, 2880 },
		{ OD_ROLE_LOGIT_BIAS, 23, "model.layers.23.mlp.router.bias", 32, 0 },
	};
	/* A tensor with all experts of a layer: rows of each, where this matrix begins among them, and how far apart
	 * its rows are. */
	static const struct {
		const char *name;
		uint64_t rows, first, step, n_out, n_in;
	} stacked[OD_N_EXPERT_TENSORS] = {
		{ "model.layers.23.mlp.experts.gate_up_proj", 5760, 0, 2, 2880, 2880 },
		{ "model.layers.23.mlp.experts.gate_up_proj", 5760, 1, 2, 2880, 2880 },
		{ "model.layers.23.mlp.experts.down_proj", 2880, 0, 1, 2880, 2880 },
		{ "model.layers.23.mlp.experts.gate_up_proj_bias", 5760, 0, 2, 2880, 1 },
		{ "model.layers.23.mlp.experts.gate_up_proj_bias", 5760, 1, 2, 2880, 1 },
		{ "model.layers.23.mlp.experts.down_proj_bias", 2880, 0, 1, 2880, 1 },
	};
	const struct od_layer_spec *l;
	struct od_config c;

	(void)state;
	take(&c, gpt_oss_20b, "{}");
	check_counts(&c, "gpt_oss", 24, 0, 2);
	check_experts(&c, 32, 4, 2880);
	assert_true(c.expert_bias && c.scaled && c.act.kind == OD_ACT_CLAMPED && c.act.limit == 7);
	assert_int_equal(c.n_ropes, 1);
	assert_true(c.rope[0].between && c.rope[0].theta == 150000 && c.rope[0].factor == 32 &&
		    c.rope[0].original_ctx == 4096);
	near(c.rope[0].magnitude, 1.3465735902799727); /* 0.1 ln 32 + 1 */
	for (uint32_t i = 0; i < 24; i++)
		assert_int_equal(od_config_layer(&c, i)->mix.window, i % 2 == 0 ? 128 : 0);
	l = od_config_layer(&c, 23);
	assert_ptr_equal(l->mixer, &od_mixer_gqa);
	check_heads(&l->mix, 64, 8, 64, 64);
	assert_true(l->mix.qkv_bias && l->mix.o_bias && l->mix.sinks && l->mix.qk_norm == OD_QK_NORM_NONE);
	assert_true(l->router.score == OD_SCORE_LOGIT && l->router.logit_bias && !l->router.bias &&
		    !l->router.renormalise);
	CHECK_TENSORS(&c, layer);
	assert_int_equal(od_expert_tensors(&c), OD_N_EXPERT_TENSORS);
	for (int mat = 0; mat < OD_N_EXPERT_TENSORS; mat++) {
		char name[OD_NAME_BYTES];
		struct od_stack at;
		uint64_t n_out, n_in;

		assert_true(od_expert_stacked_name(&c, 23, (enum od_expert_mat)mat, name, &at));
		assert_string_equal(name, stacked[mat].name);
		assert_true(at.rows == stacked[mat].rows && at.first == stacked[mat].first &&
			    at.step == stacked[mat].step);
		od_expert_mat_shape(&c, (enum od_expert_mat)mat, &n_out, &n_in);
		assert_true(n_out == stacked[mat].n_out && n_in == stacked[mat].n_in);
	}
	check_expert(&c, 23, 31, "model.layers.23.mlp.experts.31.gate_proj.weight",
		     "model.layers.23.mlp.experts.31.up_proj.weight",
		     "model.layers.23.mlp.experts.31.down_proj.weight");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_qwen3_30b_a3b),
		cmocka_unit_test(test_qwen15_moe_a27b),
		cmocka_unit_test(test_olmoe_1b_7b),
		cmocka_unit_test(test_deepseek_v2),
		cmocka_unit_test(test_deepseek_v2_lite),
		cmocka_unit_test(test_deepseek_v3),
		cmocka_unit_test(test_glm45),
		cmocka_unit_test(test_glm_lite),
		cmocka_unit_test(test_minimax_m2),
		cmocka_unit_test(test_gpt_oss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
