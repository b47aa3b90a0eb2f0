/* tiny_model.h - the tiny models of tests/golden/model/forward.json, with what an independent reference made of them;
 * and any others. Weights are drawn from the same integer generator as in make_golden.py there, onto any number of
 * devices. */
#ifndef OD_TESTS_TINY_MODEL_H
#define OD_TESTS_TINY_MODEL_H

#include <jansson.h>

#include "common/model/weights.h"

struct tiny_model {
	char name[64];
	const json_t *expected; /* borrowed: "logits_at", "logits", "routes", "margins"; NULL: not from the file */
	struct od_config cfg;
	enum od_profile profile;
	/* How tiny_put draws weights; attention: of OD_ROLE_Q to OD_ROLE_O. */
	uint64_t seed;
	enum od_dtype dense_dtype, attention_dtype, expert_dtype;
	int32_t *prompt;
	size_t n_prompt;
};

/* A model's weights on a device, a buffer for each tensor. */
struct tiny_weights {
	struct od_dense dense;
	struct od_expert *experts; /* [n_moe][n_experts] */
	struct od_device *device;
	struct od_buf **buf;
	size_t n_bufs;
};

size_t tiny_count(void); /* number of cases in the file */
/* Case i; fails the running test when the file is not as it should be. */
void tiny_load(struct tiny_model *t, size_t i);
void tiny_load_named(struct tiny_model *t, const char *name);
void tiny_unload(struct tiny_model *t);
void tiny_close(void); /* the file */
/* Any configuration, in profile f32 and with f32 weights; n_prompt tokens are drawn too. To be unloaded, as the
 * others. */
void tiny_make(struct tiny_model *t, const char *name, const struct od_config *cfg, uint64_t seed, size_t n_prompt);

/* Draws the weights that the configuration has onto d; they do not borrow from t. */
void tiny_put(struct tiny_weights *w, const struct tiny_model *t, struct od_device *d);
void tiny_weights_free(struct tiny_weights *w); /* before the device */

/* Draws as make_golden.py does: integer number i of a tensor, in [-limit, limit]. */
int tiny_draw(uint64_t seed, uint64_t tensor, uint64_t i, int limit);

#endif
