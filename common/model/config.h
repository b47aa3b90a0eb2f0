/* config.h - a model's configuration, parsed from a checkpoint's config.json: shapes and numeric constants.
 *
 * Thread: immutable after parsing. Owner: the caller; plain data, nothing to free. */
#ifndef OD_MODEL_CONFIG_H
#define OD_MODEL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/norm.h"
#include "common/model/layer_spec.h"

#define OD_MAX_EOS 8
#define OD_MAX_TOP_K 16
#define OD_MAX_LAYERS 2048
#define OD_MAX_LAYER_KINDS 8
#define OD_MAX_ROPES 4

struct od_family;
struct od_strbuf;

struct od_config {
	const struct od_family *family;
	uint32_t n_layers; /* transformer layers */
	uint32_t n_moe; /* layers with routed experts; m is the index of one of them */
	uint32_t n_mtp; /* more layers in the checkpoint, which predict further tokens; they are left out */
	uint32_t hidden, vocab;
	uint32_t n_experts, top_k, intermediate; /* a routed expert's */
	bool expert_bias; /* the matrices of routed experts have biases */
	struct od_act_spec act; /* activation of all feed-forward networks */
	uint32_t ctx_max; /* max_position_embeddings */
	float rms_eps;
	enum od_norm norm; /* before mixers, feed-forward networks and the head */
	float embed_scale; /* factor of embeddings; 0: none */
	float logit_cap; /* logits become cap * tanh(logit / cap); 0: none */
	uint32_t layer_input; /* width of a further embedding of a token that each layer has of its own; 0: none */
	bool tied_head, head_bias;
	bool norms_around_one; /* checkpoints have weights of norms minus 1 (od_role_around_one) */
	bool multimodal; /* the text part of a model that takes pictures or sound too */
	bool scaled; /* config.json declares 8- or 4-bit weights with scales; the tensors show which kind */
	uint32_t scale_block[2]; /* weight_block_size: weights under one scale, down and across; 0: not given */
	int32_t bos; /* -1: none */
	int32_t eos[OD_MAX_EOS]; /* distinct; any of them ends a text */
	uint32_t n_eos;
	/* The distinct kinds of layers and ropes; kind_of maps a layer to its kind. */
	uint32_t n_kinds, n_ropes;
	struct od_layer_spec kind[OD_MAX_LAYER_KINDS];
	struct od_rope rope[OD_MAX_ROPES];
	uint8_t kind_of[OD_MAX_LAYERS]; /* [n_layers] */
	uint16_t m_of[OD_MAX_LAYERS]; /* [n_layers]; for MoE layers only */
	uint16_t layer_of[OD_MAX_LAYERS]; /* [n_moe]: the reverse */
	/* The layers that this process holds, [begin, end); end 0: all. Not a number of the model: shapes and tensor
	 * lists are the whole model's. */
	struct {
		uint32_t begin, end;
	} held;
	/* How texts are routed; not a number of the model either. All processes that compute a text have the same. */
	struct od_cache_prior prior;
};

static inline uint32_t od_config_begin(const struct od_config *cfg)
{
	return cfg->held.begin;
}

static inline uint32_t od_config_end(const struct od_config *cfg)
{
	return cfg->held.end != 0 ? cfg->held.end : cfg->n_layers;
}

/* This process holds the layer; embeddings; the head and the norm before it, which are with the first layer, as tied
 * embeddings. */
static inline bool od_config_holds(const struct od_config *cfg, uint32_t layer)
{
	return layer >= od_config_begin(cfg) && layer < od_config_end(cfg);
}

static inline bool od_config_holds_embed(const struct od_config *cfg)
{
	return cfg->held.begin == 0 || cfg->layer_input > 0;
}

static inline bool od_config_holds_head(const struct od_config *cfg)
{
	return cfg->held.begin == 0;
}

/* Tokens of a context that memory should have room for. Where --ctx-size says nothing, main has more if there is more
 * memory. */
#define OD_LEAST_CTX_TOKENS 4096u
static inline uint32_t od_config_least_ctx(const struct od_config *cfg)
{
	return cfg->ctx_max < OD_LEAST_CTX_TOKENS ? cfg->ctx_max : OD_LEAST_CTX_TOKENS;
}

/* Cache-aware routing (router.h). Numbers may be anything; OD_ERR_RANGE: which of them cannot be. */
OD_MUST_CHECK int od_config_set_prior(struct od_config *cfg, const struct od_cache_prior *prior, struct od_err *err);
/* Where nothing else is asked for: half of the experts count as cached; two are kept, of top-2 models one and of top-1
 * models none (section 4.2 of the paper). */
struct od_cache_prior od_config_prior(const struct od_config *cfg, float lambda);
#define OD_ROUTING_CHARS 64
/* "router", or "cache-prior:LAMBDA:KEEP:RECENT", in buf; returns buf. */
const char *od_config_routing(const struct od_config *cfg, char buf[OD_ROUTING_CHARS]);

/* Restricts cfg to layers [begin, end). OD_ERR_RANGE: no such layers; OD_ERR_UNSUPPORTED: one of them attends to keys
 * of a layer outside. */
OD_MUST_CHECK int od_config_take_layers(struct od_config *cfg, uint32_t begin, uint32_t end, struct od_err *err);
/* The MoE layers [*begin, *end) among the layers that this process holds. */
void od_config_moe_held(const struct od_config *cfg, uint32_t *begin, uint32_t *end);

static inline const struct od_layer_spec *od_config_layer(const struct od_config *cfg, uint32_t layer)
{
	return &cfg->kind[cfg->kind_of[layer]];
}

static inline const struct od_layer_spec *od_config_moe_layer(const struct od_config *cfg, uint32_t m)
{
	return od_config_layer(cfg, cfg->layer_of[m]);
}

/* Texts of at most so many positions have the short factors of long RoPE; UINT32_MAX: there are no others. */
static inline uint32_t od_config_short_ctx(const struct od_config *cfg)
{
	uint32_t least = UINT32_MAX;

	for (uint32_t i = 0; i < cfg->n_ropes; i++)
		if (cfg->rope[i].short_ctx != 0 && cfg->rope[i].short_ctx < least)
			least = cfg->rope[i].short_ctx;
	return least;
}

/* For parsers and tests: appends a layer (and counts it in n_layers, n_moe); adds a rope, whose index goes into a
 * mixer. OD_ERR_UNSUPPORTED: too many different kinds, or two ropes with different short_ctx. */
OD_MUST_CHECK int od_config_add_layer(struct od_config *cfg, const struct od_layer_spec *spec, struct od_err *err);
OD_MUST_CHECK int od_config_add_rope(struct od_config *cfg, const struct od_rope *rope, uint32_t *index,
				     struct od_err *err);

/* where: the file's name for messages. OD_ERR_UNSUPPORTED: unknown family; err lists the known ones. */
OD_MUST_CHECK int od_config_parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err);
OD_MUST_CHECK int od_config_load(struct od_config *cfg, const char *path, struct od_err *err);

/* Adds the ids of obj's eos_token_id: one id, a list, or null. obj: generation_config.json, where chat models list more
 * EOS tokens than in config.json. */
OD_MUST_CHECK int od_config_add_eos(struct od_config *cfg, const json_t *obj, const char *where, struct od_err *err);

/* Appends the numbers that affect results to out, as one line of text, for the fingerprint. */
OD_MUST_CHECK int od_config_canonical(const struct od_config *cfg, struct od_strbuf *out, struct od_err *err);

#endif
