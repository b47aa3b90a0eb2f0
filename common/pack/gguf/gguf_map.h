/* gguf_map.h - where a model's tensors are in a GGUF file, and in what form: docs/GGUF.md in C.
 *
 * Thread: pure functions of an open file. */
#ifndef OD_PACK_GGUF_MAP_H
#define OD_PACK_GGUF_MAP_H

#include "common/model/family.h"
#include "common/pack/gguf/gguf.h"
#include "common/pack/manifest.h"

/* A dense tensor or a matrix (or a bias) of all experts of a layer. */
struct od_gguf_place {
	const struct od_gguf_tensor *tensor;
	struct od_mat_type type;
	enum od_dense_form form;
	uint32_t run; /* dense: as in struct od_dense_tensor */
	uint64_t offset, bytes; /* dense: where it begins in the tensor, and how much of it is read */
	uint64_t first_row, step; /* rows of expert e begin at first_row + e * step */
	bool apart; /* each expert has its own tensor; this one is the first expert's */
};

/* OD_ERR_MISSING, OD_ERR_SHAPE or OD_ERR_UNSUPPORTED name the tensor. */
OD_MUST_CHECK int od_gguf_dense(const struct od_gguf *g, const struct od_config *cfg, enum od_role role, uint32_t layer,
				struct od_gguf_place *out, struct od_err *err);
OD_MUST_CHECK int od_gguf_experts(const struct od_gguf *g, const struct od_config *cfg, uint32_t m,
				  enum od_expert_mat mat, struct od_gguf_place *out, struct od_err *err);
/* Where od_gguf_experts says apart: the tensor of one expert instead, of the same type and shape. */
OD_MUST_CHECK int od_gguf_expert_apart(const struct od_gguf *g, const struct od_config *cfg, uint32_t m,
				       enum od_expert_mat mat, uint32_t expert, struct od_gguf_place *at,
				       struct od_err *err);
/* All tensors of the model are there, and no others that could change results. */
OD_MUST_CHECK int od_gguf_check(const struct od_gguf *g, const struct od_config *cfg, struct od_err *err);

#endif
