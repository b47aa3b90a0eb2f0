/* layer_spec.h - what a layer of a model is, as data: how it mixes positions, what state that keeps, what feed-forward
 * network follows. A family's parser fills it in; forward pass, packs and predictors read it and know no family.
 *
 * Thread: immutable after parsing. Owner: struct od_config; plain data. */
#ifndef OD_MODEL_LAYER_SPEC_H
#define OD_MODEL_LAYER_SPEC_H

#include <stdbool.h>
#include <stdint.h>

struct od_mixer_ops;

/* Rotary position embedding of `dims` elements of a head. */
struct od_rope {
	uint32_t dims;	 /* even */
	bool neighbours; /* element 2i turns with 2i + 1; else i with i + dims / 2 */
	double theta;
	float magnitude; /* factor of cosines and sines */
	/* YaRN (arXiv 2309.00071); factor 0: none. The context that the model was trained for first. */
	double factor, beta_fast, beta_slow;
	uint32_t original_ctx;
};

enum od_qk_norm {
	OD_QK_NORM_NONE,
	OD_QK_NORM_HEAD, /* over each head */
	OD_QK_NORM_ROW,	 /* over all heads together */
};

/* How rows of a sequence meet each other. Which fields count, the mixer (mixer.h) says. */
struct od_mixer {
	uint32_t n_heads, n_kv_heads;
	uint32_t k_dim, v_dim; /* of a head */
	uint32_t window;       /* positions that a row sees, itself included; 0: all */
	float scale;	       /* of scores, before softmax */
	uint32_t rope;	       /* index into the configuration's */
	bool qkv_bias, o_bias;
	enum od_qk_norm qk_norm;
	float norm_eps; /* of norms inside the mixer */
	float clip;	/* of q, k and v to [-clip, clip]; 0: none */
	/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): k_dim is nope_dim + the turning part. */
	uint32_t nope_dim;
	uint32_t q_rank;  /* queries through a latent of so many; 0: directly */
	uint32_t kv_rank; /* of the latent that is kept */
};

/* Scores are softmax probabilities. */
struct od_router_spec {
	uint32_t n_groups, top_groups; /* experts of the top_groups best of n_groups groups alone are chosen; n_groups 0: of all */
	bool renormalise;	       /* weights are divided by their sum */
	float scale;		       /* factor of weights */
};

enum od_ffn { OD_FFN_DENSE, OD_FFN_MOE };

struct od_layer_spec {
	const struct od_mixer_ops *mixer;
	struct od_mixer mix;
	enum od_ffn ffn;
	uint32_t intermediate; /* of a dense layer's network */
	/* Of a MoE layer. Shape and number of routed experts are the same in all of them (struct od_config). */
	struct od_router_spec router;
	uint32_t shared_intermediate; /* of the network that all rows pass beside their experts; 0: none */
	bool shared_gate;	      /* its output is times sigmoid(gate . row) */
};

#endif
