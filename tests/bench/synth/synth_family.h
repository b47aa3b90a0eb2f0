/* synth_family.h - the published shape of a model of each family, cut to fewer layers or experts, and its tensors one
 * by one.
 *
 * Names, shapes and kinds of layers are those that the engine itself expects of such a config.json.
 * Thread: any; immutable once made. */
#ifndef OD_SYNTH_FAMILY_H
#define OD_SYNTH_FAMILY_H

#include <jansson.h>

#include "common/model/config.h"
#include "tests/bench/synth/synth_model.h"

/* 0: as published. */
struct synth_cut_to {
	uint64_t layers, experts, vocab, ctx;
	enum od_dtype dtype; /* the experts' */
};

struct synth_family;

/* NULL at the end: for --family. */
const char *const *synth_family_names(void);

/* index: in the names. OD_ERR_ARG and others: such a model is not possible; err names the field of config.json. */
OD_MUST_CHECK int synth_family_new(struct synth_family **out, size_t index, const struct synth_cut_to *to,
				   struct od_err *err);
void synth_family_free(struct synth_family *f); /* NULL ok */

const char *synth_family_model(const struct synth_family *f); /* "GLM-4.5" */
const struct od_config *synth_family_config(const struct synth_family *f);
enum od_dtype synth_family_dtype(const struct synth_family *f); /* the experts' */
const json_t *synth_family_json(const struct synth_family *f); /* borrowed: config.json but for its torch_dtype */
uint64_t synth_family_n_tensors(const struct synth_family *f);
/* t->dtype: m's, or F32 where it is always that. */
void synth_family_tensor_at(const struct synth_model *m, uint64_t index, struct synth_tensor *t);

#endif
