/* family.h - a model family: the names of its tensors and a parser of its config.json.
 *
 * No other code depends on a family. To add one, add a file under families/ and a line in family.c.
 * Thread: immutable. */
#ifndef OD_MODEL_FAMILY_H
#define OD_MODEL_FAMILY_H

#include "common/compute/ops.h"
#include "common/model/config.h"

/* The roles of dense tensors, with their shapes; [n] is a vector. Pinned: packs contain their names. A layer's spec
 * determines which of them it has. */
enum od_role {
	OD_ROLE_EMBED, /* [vocab][hidden] */
	OD_ROLE_HEAD, /* [vocab][hidden]; absent when tied */
	OD_ROLE_FINAL_NORM, /* [hidden] */
	OD_ROLE_ATTN_NORM, /* from here on one per layer unless stated otherwise; [hidden] */
	OD_ROLE_Q, /* [n_heads * k_dim][hidden] */
	OD_ROLE_K, /* [n_kv_heads * k_dim][hidden] */
	OD_ROLE_V, /* [n_kv_heads * v_dim][hidden] */
	OD_ROLE_O, /* [hidden][n_heads * v_dim] */
	OD_ROLE_FFN_NORM, /* [hidden] */
	OD_ROLE_ROUTER, /* [n_experts][hidden] */
	OD_ROLE_Q_BIAS,
	OD_ROLE_K_BIAS,
	OD_ROLE_V_BIAS,
	OD_ROLE_O_BIAS,
	OD_ROLE_Q_NORM, /* [k_dim], or of all heads together */
	OD_ROLE_K_NORM,
	OD_ROLE_Q_A, /* [q_rank][hidden] */
	OD_ROLE_Q_A_NORM, /* [q_rank] */
	OD_ROLE_Q_B, /* [n_heads * k_dim][q_rank] */
	OD_ROLE_KV_A, /* [kv_rank + the RoPE part of k_dim][hidden] */
	OD_ROLE_KV_A_NORM, /* [kv_rank] */
	OD_ROLE_KV_B, /* [n_heads][nope_dim + v_dim][kv_rank] */
	OD_ROLE_FFN_GATE, /* a dense layer's network, in the order of enum od_expert_mat; [intermediate][hidden] */
	OD_ROLE_FFN_UP,
	OD_ROLE_FFN_DOWN,
	OD_ROLE_SHARED_GATE, /* the shared experts, in the same order */
	OD_ROLE_SHARED_UP,
	OD_ROLE_SHARED_DOWN,
	OD_ROLE_SHARED_SCORE, /* [1][hidden]: the gate of their output */
	OD_ROLE_ROUTER_BIAS, /* [n_experts]: added to scores to choose by */
	OD_ROLE_SINKS, /* [n_heads] */
	OD_ROLE_LOGIT_BIAS, /* [n_experts]: added to the router's logits */
	OD_ROLE_ATTN_NORM_BIAS,
	OD_ROLE_FFN_NORM_BIAS,
	OD_ROLE_FINAL_NORM_BIAS, /* not per layer; [hidden] */
	OD_ROLE_HEAD_BIAS, /* not per layer; [vocab] */
	/* Gated delta rule; keys: n_kv_heads * k_dim, values: n_heads * v_dim. */
	OD_ROLE_DELTA_QKVZ, /* [2 * keys + 2 * values][hidden]: of each key head q, k, then v and z of its value heads */
	OD_ROLE_DELTA_BA, /* [2 * n_heads][hidden]: of each key head b, then a of its value heads */
	OD_ROLE_DELTA_QKV, /* or: [2 * keys + values][hidden]: q of all heads, k, v */
	OD_ROLE_DELTA_Z, /* [values][hidden] */
	OD_ROLE_DELTA_B, /* [n_heads][hidden] */
	OD_ROLE_DELTA_A,
	OD_ROLE_DELTA_CONV, /* [(2 * keys + values) * conv]: a vector in packs; in memory [conv][2 * keys + values] */
	OD_ROLE_DELTA_A_LOG, /* [n_heads] */
	OD_ROLE_DELTA_DT_BIAS,
	OD_ROLE_DELTA_NORM, /* [v_dim] */
	OD_ROLE_DELTA_OUT, /* [hidden][values] */
	OD_ROLE_ROUTER_NORM, /* [hidden]: of the row for the router alone */
	OD_ROLE_ROUTER_FACTORS, /* [n_experts]: of the experts' weights */
	OD_ROLE_ATTN_POST_NORM, /* [hidden]: of what a mixer gives; the other norms of the kind below */
	OD_ROLE_SHARED_NORM, /* [hidden]: of the row for the shared experts alone */
	OD_ROLE_SHARED_POST_NORM,
	OD_ROLE_EXPERTS_POST_NORM, /* norm of the routed experts' sum */
	OD_ROLE_FFN_POST_NORM, /* norm of both sums together */
	OD_ROLE_LAYER_SCALE, /* [1] */
	OD_ROLE_LAYER_EMBED, /* not per layer; [vocab][n_layers * layer_input]: each layer's own embedding */
	OD_ROLE_LAYER_PROJECT, /* not per layer; [n_layers * layer_input][hidden]: what is added to it */
	OD_ROLE_LAYER_PROJECT_NORM, /* not per layer; [layer_input] */
	OD_ROLE_INPUT_GATE, /* [layer_input][hidden] */
	OD_ROLE_INPUT_PROJECT, /* [hidden][layer_input] */
	OD_ROLE_INPUT_POST_NORM, /* [hidden] */
	OD_ROLE_K_B, /* [n_heads * kv_rank][nope_dim]: with the next instead of OD_ROLE_KV_B */
	OD_ROLE_V_B, /* [n_heads * v_dim][kv_rank] */
	OD_N_ROLES
};

struct od_family {
	const char *name; /* "mixtral" */
	const char *const *architectures; /* config.json's "architectures" and/or "model_type"; ends with NULL */
	const char *const *model_types;
	/* Fields common to all families are already read; adds ropes and layers. Refuses, by name, a field that changes
	 * results in a way that these cannot express. */
	int (*parse)(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err);
	/* Tensor names in the checkpoint after "model.layers.N.", if they differ from the usual ones (family.c). */
	const char *names[OD_N_ROLES];
	const char *experts; /* "mlp.experts" */
	const char *expert_mat[OD_N_EXPERT_MATS]; /* "gate_proj" */
	/* Where all experts of a layer are published in two tensors, [n_experts][2 * intermediate][hidden] (gate before
	 * up) and [n_experts][hidden][intermediate]: their names after "model.layers.N.". A checkpoint may still have
	 * them one by one. */
	const char *stacked_gate_up, *stacked_down;
	bool interleaved; /* there gate's and up's rows alternate */
	bool transposed; /* there are [n_experts][hidden][2 * intermediate] and [n_experts][intermediate][hidden] */
	bool mxfp4; /* or they are in MXFP4, with rows as above: two tensors NAME_blocks and NAME_scales */
	/* The model_type of the text part of a multimodal model; one of model_types. NULL: the family is never inside
	 * such a model. */
	const char *text_type;
	/* In a multimodal checkpoint: how the names of tensors begin that text does not need; ends with NULL. NULL as
	 * text_type is. There the text's config.json is the field text_config, and "model." is
	 * "model.language_model.". */
	const char *const *other_modalities;
	/* In any checkpoint: how the names of further tensors begin that are left out; ends with NULL. NULL: none. */
	const char *const *left_out;
	/* Defaults that transformers uses for num_key_value_heads [0: num_attention_heads], rope_theta [0: 10000] and
	 * rms_norm_eps [0: it must be there]. */
	uint32_t kv_heads;
	double rope_theta, rms_eps;
};

#define OD_NAME_BYTES 256

/* Each is in a file of its own. */
extern const struct od_family od_family_mixtral, od_family_qwen3_moe, od_family_qwen2_moe, od_family_olmoe,
	od_family_deepseek_v2, od_family_deepseek_v3, od_family_glm4_moe, od_family_glm4_moe_lite, od_family_minimax_m2,
	od_family_qwen3_next, od_family_qwen3_5_moe, od_family_gpt_oss, od_family_gemma4, od_family_phimoe;

const struct od_family *od_family_find(const char *architecture, const char *model_type); /* NULL: unknown */
/* Names a feature of this model type that nothing here computes, for messages; NULL: not known. */
const char *od_family_missing(const char *model_type);
void od_family_list(char *buf, size_t size); /* "mixtral, ..." for messages */

/* Tensor names in a text-only checkpoint of this configuration with experts one by one; the fingerprint has them too.
 * m: index of the MoE layer. */
void od_dense_source_name(const struct od_config *cfg, enum od_role role, uint32_t layer, char buf[OD_NAME_BYTES]);
void od_expert_source_name(const struct od_config *cfg, uint32_t m, uint32_t expert, enum od_expert_mat mat,
			   char buf[OD_NAME_BYTES]);
/* The tensor that has this matrix or bias of all experts, and its rows there: of rows per expert every step-th from
 * first on. */
struct od_stack {
	uint64_t rows, first, step;
};
/* False: the family has none. */
bool od_expert_stacked_name(const struct od_config *cfg, uint32_t m, enum od_expert_mat mat, char buf[OD_NAME_BYTES],
			    struct od_stack *stack);
/* A tensor's name in the checkpoint itself, which may be multimodal. */
void od_source_name(const struct od_config *cfg, const char *name, char buf[OD_NAME_BYTES]);
/* True for tensors of other modalities. */
bool od_source_other_modality(const struct od_config *cfg, const char *name);
/* True for tensors of a checkpoint that are not needed: those, left_out, rotary tables, layers that predict several
 * tokens (MTP), keys and values of layers that use those of others. */
bool od_source_ignorable(const struct od_config *cfg, const char *name);

bool od_role_per_layer(enum od_role role);
/* True for matrices of a layer that a shadow stores in its own precision; the others are small, or routers. */
bool od_role_quantised(enum od_role role);
bool od_role_is_bias(enum od_role role); /* a vector that is added */
/* A norm whose weights are 1 + those of the checkpoint, where cfg->norms_around_one. */
bool od_role_around_one(enum od_role role);
const char *od_role_name(enum od_role role); /* "attn_q" */
/* This process holds the tensor (od_config.held). */
bool od_config_holds_role(const struct od_config *cfg, enum od_role role, uint32_t layer);
/* Shape of a dense tensor; *n_in is 0 for vectors ([n_out]). *n_out 0: the model or layer has no such tensor. layer is
 * 0 for roles that are not per layer. */
void od_role_shape(const struct od_config *cfg, enum od_role role, uint32_t layer, uint64_t *n_out, uint64_t *n_in);
const char *od_expert_mat_name(enum od_expert_mat mat); /* "gate", "up", "down"; "gate_bias", "up_bias", "down_bias" */
/* The number of tensors of an expert: its matrices, then its biases if it has any. */
int od_expert_tensors(const struct od_config *cfg);
static inline bool od_expert_is_bias(int mat)
{
	return mat >= OD_N_EXPERT_MATS;
}
/* *n_in is 1 for a bias. */
void od_expert_mat_shape(const struct od_config *cfg, enum od_expert_mat mat, uint64_t *n_out, uint64_t *n_in);

#endif
