/* config_util.h - for tests: configurations without files. All layers are alike, as Mixtral's are: grouped-query
 * attention, plain RoPE, routed experts whose weights are renormalised. */
#ifndef OD_TESTS_CONFIG_UTIL_H
#define OD_TESTS_CONFIG_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "common/model/family.h"
#include "common/model/mixer.h"

/* A field that is 0 stays 0, except theta, which becomes 10000. */
struct uniform {
	uint32_t n_layers, hidden, heads, kv_heads, head_dim, window;
	double theta;
	uint32_t n_experts, top_k, intermediate, vocab, ctx;
};

static inline struct od_config uniform_config(struct uniform u)
{
	struct od_config c = { .family = &od_family_mixtral,
			       .hidden = u.hidden,
			       .vocab = u.vocab,
			       .n_experts = u.n_experts,
			       .top_k = u.top_k,
			       .intermediate = u.intermediate,
			       .ctx_max = u.ctx,
			       .rms_eps = 1e-5f,
			       .bos = -1 };
	const struct od_rope rope = { .dims = u.head_dim, .theta = u.theta != 0 ? u.theta : 10000, .magnitude = 1 };
	struct od_layer_spec l = { .mixer = &od_mixer_gqa,
				   .mix = { .n_heads = u.heads,
					    .n_kv_heads = u.kv_heads,
					    .k_dim = u.head_dim,
					    .v_dim = u.head_dim,
					    .window = u.window,
					    .scale = (float)(1 / sqrt(u.head_dim > 0 ? (double)u.head_dim : 1)),
					    .norm_eps = c.rms_eps },
				   .ffn = OD_FFN_MOE,
				   .router = { .renormalise = true, .scale = 1 } };
	struct od_err err = { 0 };
	int rc = od_config_add_rope(&c, &rope, &l.mix.rope, &err);

	for (uint32_t i = 0; rc == OD_OK && i < u.n_layers; i++)
		rc = od_config_add_layer(&c, &l, &err);
	if (rc != OD_OK)
		fail_msg("%s", err.msg);
	return c;
}

#endif
