/* family.h - a model family as data and a few functions: which tensors there are, what they are called.
 *
 * The engine knows none by name; add one by adding a file and a line in family.c.
 * Thread: immutable. */
#ifndef OD_MODEL_FAMILY_H
#define OD_MODEL_FAMILY_H

#include "common/compute/ops.h"
#include "common/model/config.h"

/* The roles a dense tensor can have. Pinned: they stand in packs (by name). */
enum od_role {
	OD_ROLE_EMBED,	    /* [vocab][hidden] */
	OD_ROLE_HEAD,	    /* [vocab][hidden]; absent when tied */
	OD_ROLE_FINAL_NORM, /* [hidden] */
	OD_ROLE_ATTN_NORM,  /* from here on one per layer; [hidden] */
	OD_ROLE_Q,	    /* [n_heads * head_dim][hidden] */
	OD_ROLE_K,	    /* [n_kv_heads * head_dim][hidden] */
	OD_ROLE_V,
	OD_ROLE_O,	  /* [hidden][n_heads * head_dim] */
	OD_ROLE_FFN_NORM, /* [hidden] */
	OD_ROLE_ROUTER,	  /* [n_experts][hidden] */
	OD_N_ROLES
};

struct od_family {
	const char *name;		 /* "mixtral" */
	const char *const *architectures; /* config.json's "architectures" and/or "model_type"; ends with NULL */
	const char *const *model_types;
	int (*parse)(struct od_config *cfg, const json_t *root, const char *where, struct od_err *err);
	/* Names in the checkpoint; buf gets the whole name. */
	void (*dense_name)(char *buf, size_t size, enum od_role role, uint32_t layer);
	void (*expert_name)(char *buf, size_t size, uint32_t layer, uint32_t expert, enum od_expert_mat mat);
	/* True for tensors in a checkpoint that carry no weights of ours (rotary tables). */
	bool (*ignorable)(const char *name);
};

/* One file each. */
extern const struct od_family od_family_mixtral;

const struct od_family *od_family_find(const char *architecture, const char *model_type); /* NULL: unknown */
void od_family_list(char *buf, size_t size); /* "mixtral, ..." for messages */

bool od_role_per_layer(enum od_role role);
const char *od_role_name(enum od_role role);  /* "attn_q" */
enum od_role od_role_parse(const char *name); /* OD_N_ROLES when unknown */
/* Shape of a dense tensor; *n_in is 0 for vectors ([n_out]). */
void od_role_shape(const struct od_config *cfg, enum od_role role, uint64_t *n_out, uint64_t *n_in);
bool od_role_present(const struct od_config *cfg, enum od_role role); /* false: a tied head */
const char *od_expert_mat_name(enum od_expert_mat mat);		      /* "gate", "up", "down" */
void od_expert_mat_shape(const struct od_config *cfg, enum od_expert_mat mat, uint64_t *n_out, uint64_t *n_in);

#endif
