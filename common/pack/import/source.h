/* source.h - matches a checkpoint with a configuration: no tensor missing, none unknown, shapes and types as expected.
 * 8- and 4-bit matrices are recognised as compressed-tensors, AutoFP8 and transformers write them (docs/PACK-FORMAT.md,
 * Writing).
 *
 * Thread: any; nothing is modified. */
#ifndef OD_PACK_SOURCE_H
#define OD_PACK_SOURCE_H

#include "common/model/family.h"
#include "common/pack/import/safetensors.h"
#include "common/pack/manifest.h"

/* A vector or matrix as published; borrowed. */
struct od_source {
	struct od_mat_type type;
	const struct od_tensor *weights, *scales, *divisor; /* the last two: NULL when type has none */
	/* Where it is in a tensor of several matrices: weight i of row r is element first_element + r * row_step + i *
	 * column_step of weights, row r of its scales is row first_scales + r * scales_step of scales. */
	uint64_t first_element, row_step, column_step, first_scales, scales_step;
	enum od_dense_form form; /* a dense tensor of a GGUF file has od_dense_row's rows */
	uint32_t run;
};

/* Rows [row, row + n) of a matrix with rows of n_in (1: a vector) to buf, as od_mat_row_bytes has them; and rows of its
 * scales. */
OD_MUST_CHECK int od_source_read(const struct od_checkpoint *c, const struct od_source *s, uint64_t n_in, uint64_t row,
				 uint64_t n, void *buf, struct od_err *err);
OD_MUST_CHECK int od_source_read_scales(const struct od_checkpoint *c, const struct od_source *s, uint64_t n_in,
					uint64_t row, uint64_t n, void *buf, struct od_err *err);

/* OD_ERR_MISSING, OD_ERR_SHAPE, OD_ERR_UNSUPPORTED or OD_ERR_FORMAT name the tensor. */
OD_MUST_CHECK int od_source_check(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err);

/* Checks the tokeniser and generation_config.json, if the checkpoint has them: a file that od-main could not use is
 * refused with the reader's reason. */
OD_MUST_CHECK int od_source_check_extras(const struct od_checkpoint *c, const struct od_config *cfg,
					 struct od_err *err);

/* After a successful check these exist. */
struct od_source od_source_dense(const struct od_checkpoint *c, const struct od_config *cfg, enum od_role role,
				 uint32_t layer);
struct od_source od_source_expert(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m,
				  uint32_t expert, enum od_expert_mat mat);

#endif
