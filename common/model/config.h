/* config.h - what a checkpoint's config.json means to us: shapes and the constants that change numbers.
 *
 * Thread: immutable after parsing. Owner: the caller; plain data, nothing to free. */
#ifndef OD_MODEL_CONFIG_H
#define OD_MODEL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/layer_spec.h"

#define OD_MAX_EOS 8
#define OD_MAX_TOP_K 16
#define OD_MAX_EXPERTS 4096
#define OD_MAX_LAYERS 2048
#define OD_MAX_LAYER_KINDS 8
#define OD_MAX_ROPES 4

struct od_family;
struct od_strbuf;

struct od_config {
	const struct od_family *family;
	uint32_t n_layers; /* blocks */
	uint32_t n_moe;	   /* of them those with routed experts, which m counts */
	uint32_t hidden, vocab;
	uint32_t n_experts, top_k, intermediate; /* of one routed expert */
	uint32_t ctx_max;			 /* max_position_embeddings */
	float rms_eps;
	bool tied_head;
	bool scaled; /* weights of 8 or 4 bits are said to have scales; which, their tensors say */
	int32_t bos;		    /* -1: none */
	int32_t eos[OD_MAX_EOS];    /* all different; any of them ends a text */
	uint32_t n_eos;
	/* Layers of a model are of few kinds, all different. */
	uint32_t n_kinds, n_ropes;
	struct od_layer_spec kind[OD_MAX_LAYER_KINDS];
	struct od_rope rope[OD_MAX_ROPES];
	uint8_t kind_of[OD_MAX_LAYERS];	  /* [n_layers] */
	uint16_t m_of[OD_MAX_LAYERS];	  /* [n_layers]; of a MoE layer */
	uint16_t layer_of[OD_MAX_LAYERS]; /* [n_moe]: the reverse */
};

static inline const struct od_layer_spec *od_config_layer(const struct od_config *cfg, uint32_t layer)
{
	return &cfg->kind[cfg->kind_of[layer]];
}

static inline const struct od_layer_spec *od_config_moe_layer(const struct od_config *cfg, uint32_t m)
{
	return od_config_layer(cfg, cfg->layer_of[m]);
}

/* For parsers, and for tests that need no file: the next layer, after which n_layers and n_moe are one more; a way of
 * turning, whose index a mixer has. OD_ERR_UNSUPPORTED: more kinds than there is room for. */
OD_MUST_CHECK int od_config_add_layer(struct od_config *cfg, const struct od_layer_spec *spec, struct od_err *err);
OD_MUST_CHECK int od_config_add_rope(struct od_config *cfg, const struct od_rope *rope, uint32_t *index, struct od_err *err);

/* where is the file's name for messages. OD_ERR_UNSUPPORTED for a family we do not know lists those we do. */
OD_MUST_CHECK int od_config_parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err);
OD_MUST_CHECK int od_config_load(struct od_config *cfg, const char *path, struct od_err *err);

/* Adds the ids of obj's eos_token_id: one id, a list, or null. obj: generation_config.json, where chat models name
 * more tokens that end a text than in config.json. */
OD_MUST_CHECK int od_config_add_eos(struct od_config *cfg, const json_t *obj, const char *where, struct od_err *err);

/* The numbers that change results as one line of text, for the fingerprint; appended to out. */
OD_MUST_CHECK int od_config_canonical(const struct od_config *cfg, struct od_strbuf *out, struct od_err *err);

#endif
