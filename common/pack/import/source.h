/* source.h - matches a checkpoint with a configuration: no tensor missing, none unknown, shapes and types as expected. 8- and
 * 4-bit matrices are recognised as compressed-tensors, AutoFP8 and transformers write them (docs/PACK-FORMAT.md, Writing).
 *
 * Thread: any; nothing is modified. */
#ifndef OD_PACK_SOURCE_H
#define OD_PACK_SOURCE_H

#include "common/model/family.h"
#include "common/pack/import/safetensors.h"
#include "common/pack/mat_type.h"

/* A vector or matrix as published; borrowed. */
struct od_source {
	struct od_mat_type type;
	const struct od_tensor *weights, *scales, *divisor; /* the last two: NULL when type has none */
};

/* OD_ERR_MISSING, OD_ERR_SHAPE, OD_ERR_UNSUPPORTED or OD_ERR_FORMAT name the tensor. */
OD_MUST_CHECK int od_source_check(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err);

/* Checks tokenizer.json and generation_config.json, if the checkpoint has them: a file that od-main could not use is refused
 * with the reader's reason. */
OD_MUST_CHECK int od_source_check_extras(const struct od_checkpoint *c, const struct od_config *cfg,
					 struct od_err *err);

/* After a successful check these exist. */
struct od_source od_source_dense(const struct od_checkpoint *c, const struct od_config *cfg, enum od_role role,
				 uint32_t layer);
struct od_source od_source_expert(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m, uint32_t expert,
				  enum od_expert_mat mat);

#endif
