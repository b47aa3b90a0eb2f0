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

#define OD_MAX_EOS 8
#define OD_MAX_TOP_K 16
#define OD_MAX_EXPERTS 4096
#define OD_MAX_LAYERS 4096

struct od_family;

struct od_config {
	const struct od_family *family;
	uint32_t n_layers;			 /* blocks */
	uint32_t n_moe;				 /* of them those with routed experts, which m counts */
	uint32_t hidden, n_heads, n_kv_heads, head_dim, vocab;
	uint32_t n_experts, top_k, intermediate; /* of one routed expert */
	uint32_t ctx_max;			 /* max_position_embeddings */
	uint32_t sliding_window;		 /* positions a row sees, itself included; 0: all */
	float rms_eps;
	double rope_theta;
	bool tied_head;
	bool scaled; /* weights of 8 or 4 bits are said to have scales; which, their tensors say */
	int32_t bos;		    /* -1: none */
	int32_t eos[OD_MAX_EOS];    /* all different; any of them ends a text */
	uint32_t n_eos;
};

/* where is the file's name for messages. OD_ERR_UNSUPPORTED for a family we do not know lists those we do. */
OD_MUST_CHECK int od_config_parse(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err);
OD_MUST_CHECK int od_config_load(struct od_config *cfg, const char *path, struct od_err *err);

/* Adds the ids of obj's eos_token_id: one id, a list, or null. obj: generation_config.json, where chat models name
 * more tokens that end a text than in config.json. */
OD_MUST_CHECK int od_config_add_eos(struct od_config *cfg, const json_t *obj, const char *where, struct od_err *err);

/* The numbers that change results as one line of text, for the fingerprint. Returns the length or negative. */
OD_MUST_CHECK int od_config_canonical(const struct od_config *cfg, char *buf, size_t size, struct od_err *err);

static inline uint32_t od_config_kv_dim(const struct od_config *cfg)
{
	return cfg->n_kv_heads * cfg->head_dim;
}

#endif
