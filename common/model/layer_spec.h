/* layer_spec.h - the description of a layer as data: its mixer (attention), its state, its feed-forward network. A
 * family's parser fills it in; forward pass, packs and predictors read only this, not the family.
 *
 * Thread: immutable after parsing. Owner: struct od_config; plain data. */
#ifndef OD_MODEL_LAYER_SPEC_H
#define OD_MODEL_LAYER_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/compute/act.h"
#include "common/compute/router.h"

struct od_mixer_ops;

#define OD_MAX_ROPE_PAIRS 256 /* with factors of their own */

/* Rotary position embedding of `dims` elements of a head. */
struct od_rope {
	uint32_t dims; /* even */
	uint32_t pairs; /* pairs that turn, from the first one on; 0: all */
	double divisor; /* divides all frequencies; 0: none */
	bool neighbours; /* pairs 2i and 2i + 1; else i and i + dims / 2 */
	double theta;
	float magnitude; /* factor of cosines and sines */
	/* YaRN (arXiv 2309.00071); factor 0: none. */
	double factor, beta_fast, beta_slow;
	uint32_t original_ctx; /* context length of the original training */
	bool between; /* its bounds may lie between two pairs; else they are rounded outwards */
	/* Long RoPE (LongRoPE, arXiv 2402.13753); short_ctx 0: none. Each frequency is divided by a factor of its own:
	 * factor [0] in texts of at most short_ctx positions; else [1], and all positions have long_magnitude instead
	 * of magnitude. */
	uint32_t short_ctx;
	float long_magnitude;
	float pair_factor[2][OD_MAX_ROPE_PAIRS];
};

enum od_qk_norm {
	OD_QK_NORM_NONE,
	OD_QK_NORM_HEAD, /* over each head */
	OD_QK_NORM_ROW, /* over all heads together */
};

/* Parameters of a mixer (mixer.h); each mixer uses some of the fields. */
struct od_mixer {
	uint32_t n_heads, n_kv_heads;
	uint32_t k_dim, v_dim; /* per head */
	uint32_t window; /* positions that a row attends to, itself included; 0: all */
	float scale; /* factor of attention scores, before softmax */
	uint32_t rope; /* index into od_config.rope */
	bool qkv_bias, o_bias;
	bool sinks; /* each head has one (ops.h, OD_OP_ATTEND) */
	enum od_qk_norm qk_norm;
	bool v_norm; /* each head of v is normed, without weights */
	bool v_is_k; /* v is k as projected, before its norm; there is no matrix for v */
	float norm_eps; /* epsilon of norms inside the mixer */
	float clip; /* q, k and v are clamped to [-clip, clip]; 0: none */
	uint32_t kv_of; /* keys and values are those of the earlier layer kv_of - 1; 0: its own */
	bool gated; /* sigmoids of further elements of q multiply what attention gives, element by element */
	/* Gated delta rule (arXiv 2412.06464): n_heads heads of values, n_kv_heads of queries and keys. */
	uint32_t conv; /* positions that the convolution of q, k and v sees, the row's own included */
	bool by_key_head; /* the projections give key head after key head all that belongs to it */
	bool tiled; /* heads of values: the first of all key heads, then the second of all (od_delta_shape) */
	/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): k_dim is nope_dim + the RoPE
	 * part. */
	uint32_t nope_dim;
	uint32_t q_rank; /* width of the query latent; 0: none */
	uint32_t kv_rank; /* width of the latent in the KV cache */
	/* The matrix that makes keys of latents and the one that makes values stand apart, the first transposed. */
	bool kv_apart;
};

enum od_ffn { OD_FFN_DENSE, OD_FFN_MOE };

struct od_layer_spec {
	const struct od_mixer_ops *mixer;
	struct od_mixer mix;
	enum od_ffn ffn;
	uint32_t intermediate; /* a dense layer's */
	/* Only MoE layers use the rest. All have the same number and shape of routed experts (struct od_config). */
	struct od_router_spec router;
	uint32_t shared_intermediate; /* the shared experts'; 0: there are none */
	bool shared_gate; /* their output is multiplied by sigmoid(gate . row) */
	/* The outputs of mixer, routed experts and shared experts, and of the last two together, are normed before they
	 * are added; the shared experts have an own norm of the row, too. */
	bool sandwich;
	bool scaled; /* at the layer's end the rows are multiplied by a number */
};

#endif
