/* layer_spec.h - the description of a layer as data: its mixer (attention), its state, its feed-forward network. A family's
 * parser fills it in; forward pass, packs and predictors read only this, not the family.
 *
 * Thread: immutable after parsing. Owner: struct od_config; plain data. */
#ifndef OD_MODEL_LAYER_SPEC_H
#define OD_MODEL_LAYER_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/compute/router.h"

struct od_mixer_ops;

/* Rotary position embedding of `dims` elements of a head. */
struct od_rope {
	uint32_t dims;	 /* even */
	bool neighbours; /* pairs 2i and 2i + 1; else i and i + dims / 2 */
	double theta;
	float magnitude; /* factor of cosines and sines */
	/* YaRN (arXiv 2309.00071); factor 0: none. */
	double factor, beta_fast, beta_slow;
	uint32_t original_ctx; /* context length of the original training */
	bool between;	       /* its bounds may lie between two pairs; else they are rounded outwards */
};

enum od_qk_norm {
	OD_QK_NORM_NONE,
	OD_QK_NORM_HEAD, /* over each head */
	OD_QK_NORM_ROW,	 /* over all heads together */
};

/* Parameters of a mixer (mixer.h); each mixer uses some of the fields. */
struct od_mixer {
	uint32_t n_heads, n_kv_heads;
	uint32_t k_dim, v_dim; /* per head */
	uint32_t window;       /* positions that a row attends to, itself included; 0: all */
	float scale;	       /* of attention scores, before softmax */
	uint32_t rope;	       /* index into od_config.rope */
	bool qkv_bias, o_bias;
	enum od_qk_norm qk_norm;
	float norm_eps; /* of norms inside the mixer */
	float clip;	/* of q, k and v to [-clip, clip]; 0: none */
	/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): k_dim is nope_dim + the RoPE part. */
	uint32_t nope_dim;
	uint32_t q_rank;  /* width of the query latent; 0: none */
	uint32_t kv_rank; /* width of the latent in the KV cache */
};

enum od_ffn { OD_FFN_DENSE, OD_FFN_MOE };

struct od_layer_spec {
	const struct od_mixer_ops *mixer;
	struct od_mixer mix;
	enum od_ffn ffn;
	uint32_t intermediate; /* of a dense layer's network */
	/* Of a MoE layer. All MoE layers have the same number and shape of routed experts (struct od_config). */
	struct od_router_spec router;
	uint32_t shared_intermediate; /* of the shared experts; 0: none */
	bool shared_gate;	      /* their output is multiplied by sigmoid(gate . row) */
};

#endif
