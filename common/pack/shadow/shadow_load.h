/* shadow_load.h - loads a shadow's weights: experts and dense matrices, each in its chosen precision, from the pack's
 * shadow files; routers, embeddings, norms and head from dense.bin. Precision bf16 is the pack itself.
 *
 * Thread: as dense_load.h. Owner: od_shadow_load's caller; the pack must outlive the store. */
#ifndef OD_PACK_SHADOW_LOAD_H
#define OD_PACK_SHADOW_LOAD_H

#include "common/pack/load/expert_form.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/shadow/shadow_layout.h"

struct od_shadow_choice {
	enum od_precision experts, dense; /* dense: attention, dense networks, shared experts */
	enum od_activations act; /* type of rows in products with INT8 and NF4 weights */
	enum od_form form; /* bf16 experts'; od_pack_can_form has accepted it */
};

#define OD_SHADOW_CHOICE_CHARS 24
/* "int8"; "nf4+int8" when attention has another precision than the experts. Returns buf. */
const char *od_shadow_choice_text(const struct od_shadow_choice *c, char buf[OD_SHADOW_CHOICE_CHARS]);

/* Bits of a weight of the experts: in a shadow of this precision (bf16: as published), with scales. */
double od_shadow_expert_bits(const struct od_pack *p, enum od_precision precision);
/* INT8 if that makes experts smaller than they were published, else bf16: a copy that saves nothing only loses
 * precision. od-pack makes it with a pack; of a GGUF file it is the default only once it has been made. */
enum od_precision od_shadow_default(const struct od_pack *p);

struct od_shadow_store;

OD_MUST_CHECK int od_shadow_load(struct od_shadow_store **out, const struct od_pack *p, struct od_device *d,
				 const struct od_shadow_choice *c, unsigned n_threads, od_progress_fn *progress,
				 void *arg, struct od_err *err);
void od_shadow_free(struct od_shadow_store *s); /* NULL ok */
const struct od_dense *od_shadow_dense(const struct od_shadow_store *s);
const struct od_expert *od_shadow_experts(const struct od_shadow_store *s); /* [n_moe][n_experts] */
/* Memory that od_shadow_load will take. OD_ERR_MISSING: the pack lacks a precision; err names the command that adds
 * it. */
OD_MUST_CHECK int od_shadow_need_bytes(const struct od_pack *p, const struct od_shadow_choice *c, uint64_t *bytes,
				       struct od_err *err);
/* As od_shadow_need_bytes, whether the pack has them or not. */
OD_MUST_CHECK int od_shadow_would_need_bytes(const struct od_pack *p, const struct od_shadow_choice *c, uint64_t *bytes,
					     struct od_err *err);
/* Adds them where they belong. */
OD_MUST_CHECK int od_shadow_split(const struct od_pack *p, const struct od_shadow_choice *c, struct od_split *s,
				  struct od_err *err);

#endif
