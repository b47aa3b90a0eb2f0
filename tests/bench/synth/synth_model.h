/* synth_model.h - the shape of a synthetic checkpoint, Mixtral's or a family's published one, and its tensors one by
 * one.
 *
 * A model may have hundreds of thousands of tensors, so they are computed from their index and never listed.
 * Thread: any; plain data. */
#ifndef OD_SYNTH_MODEL_H
#define OD_SYNTH_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/dtype.h"
#include "common/model/family.h"

struct synth_family;

struct synth_model {
	const struct synth_family *family; /* NULL: a Mixtral of the shape below; else its numbers are below, too */
	uint64_t layers, moe_layers, hidden, intermediate, experts, top_k, heads, kv_heads, head_dim, vocab, ctx;
	uint64_t sliding_window; /* 0: none */
	uint64_t seed;
	enum od_dtype dtype; /* OD_BF16, OD_F16, OD_F32; OD_F8_*, OD_F4_E2M1 (MXFP4): of experts, the rest is BF16 */
	bool tied;
};

#define SYNTH_NAME_BYTES 96
struct synth_tensor {
	char name[SYNTH_NAME_BYTES];
	size_t seed_chars; /* characters of the name that its values depend on, so that codes and scales fit; 0: all */
	enum od_dtype dtype; /* OD_F4_E2M1: codes of MXFP4, OD_F8_E8M0: their scales, one for each 32 */
	uint64_t rows, cols; /* a norm has one row */
	uint64_t dims[4]; /* shape of a tensor of several experts; else 0 */
	bool is_norm; /* one-dimensional, values around 1 */
	bool is_bias; /* one-dimensional, values around 0 */
	bool mixed_signs; /* set for a norm: around 1 or -1 by column */
	float std; /* deviation of a value before the variation of rows and columns */
};

/* Checks that the model is possible and can be written; OD_ERR_ARG: err names the option, its limits and its value.
 * After OD_OK no size below can overflow. */
OD_MUST_CHECK int synth_check(const struct synth_model *m, struct od_err *err);

/* All of a tensor but its name, by its role; n_in 0: a vector. */
void synth_role(const struct synth_model *m, enum od_role role, uint64_t n_out, uint64_t n_in, struct synth_tensor *t);

uint64_t synth_n_tensors(const struct synth_model *m);
void synth_tensor_at(const struct synth_model *m, uint64_t index, struct synth_tensor *t);
#define SYNTH_MX_BLOCK 32u /* weights under one scale */
uint64_t synth_values_bytes(enum od_dtype dtype, uint64_t n);
uint64_t synth_tensor_bytes(const struct synth_tensor *t);
uint64_t synth_expert_bytes(const struct synth_model *m);
uint64_t synth_total_bytes(const struct synth_model *m); /* all tensors; linear in their number */

#endif
