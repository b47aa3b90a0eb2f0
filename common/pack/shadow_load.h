/* shadow_load.h - the shadow's weights: what is quantised from shadow-<precision>.bin, the rest (router,
 * embeddings, norms, head) from dense.bin. Precision bf16 is the pack itself. Thread: as dense_load.h. */
#ifndef OD_PACK_SHADOW_LOAD_H
#define OD_PACK_SHADOW_LOAD_H

#include "common/pack/expert_load.h"

enum od_precision { OD_PRECISION_BF16 = 1, OD_PRECISION_INT8 = 2 }; /* pinned: on the wire */
extern const char *const od_precision_names[];			    /* index precision - 1: "bf16", "int8", NULL */

struct od_shadow_store;

OD_MUST_CHECK int od_shadow_load(struct od_shadow_store **out, const struct od_pack *p, enum od_precision precision,
				 unsigned n_threads, od_progress_fn *progress, void *arg, struct od_err *err);
void od_shadow_free(struct od_shadow_store *s); /* NULL ok */
const struct od_dense *od_shadow_dense(const struct od_shadow_store *s);
const struct od_expert *od_shadow_experts(const struct od_shadow_store *s); /* [n_layers][n_experts] */
/* Memory it will take; OD_ERR_MISSING when the pack has no such precision (od-pack --shadow makes it). */
OD_MUST_CHECK int od_shadow_need_bytes(const struct od_pack *p, enum od_precision precision, uint64_t *bytes,
				       struct od_err *err);

#endif
