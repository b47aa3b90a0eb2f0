/* source.h - a checkpoint matched with a configuration: every tensor there, none unknown, shapes as they should
 * be. Thread: immutable, any thread. */
#ifndef OD_PACK_SOURCE_H
#define OD_PACK_SOURCE_H

#include "common/model/family.h"
#include "common/pack/safetensors.h"

/* OD_ERR_MISSING, OD_ERR_SHAPE, OD_ERR_UNSUPPORTED or OD_ERR_FORMAT name the tensor. */
OD_MUST_CHECK int od_source_check(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err);

/* tokenizer.json and generation_config.json, where the checkpoint has them: one that od-main could not use is
 * refused with the reader's own reason. */
OD_MUST_CHECK int od_source_check_extras(const struct od_checkpoint *c, struct od_err *err);

/* After a successful check these are never NULL. */
const struct od_tensor *od_source_dense(const struct od_checkpoint *c, const struct od_config *cfg, enum od_role role,
					uint32_t layer);
const struct od_tensor *od_source_expert(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m,
					 uint32_t expert, enum od_expert_mat mat);

#endif
