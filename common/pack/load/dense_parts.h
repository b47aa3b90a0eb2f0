/* dense_parts.h - the dense matrices that a step may read instead of keeping them: those of layers and the head, in the
 * order in which a step needs them (dense_plan.h). The head, which may be larger than many layers, is cut into pieces.
 * Small matrices, routers (predictors read those of other layers) and all scales stay in memory.
 *
 * Thread: any. Owner: od_dense_parts_list's caller. */
#ifndef OD_PACK_DENSE_PARTS_H
#define OD_PACK_DENSE_PARTS_H

#include "common/pack/load/dense_plan.h"
#include "common/pack/load/dense_stream.h"

struct od_dense_parts {
	size_t n;
	struct od_dense_part *plan; /* [n]: stage and bytes are set */
	struct od_dense_stream_part *part; /* [n]: tensor, row, n and stage are set */
	uint64_t scale_bytes; /* memory of all tensors' scales */
};

/* After any return od_dense_parts_fini is valid. */
OD_MUST_CHECK int od_dense_parts_list(struct od_dense_parts *parts, const struct od_pack *p, struct od_err *err);
void od_dense_parts_fini(struct od_dense_parts *parts);

bool od_dense_is_part(const struct od_pack *p, const struct od_dense_tensor *t);
uint64_t od_dense_scale_memory(const struct od_dense_tensor *t); /* memory of all its scales; 0: it has none */
/* A part begins so many bytes behind the begin of its place, which is that of a page: where its bytes are in a page of
 * the file, so that they can be read past the page cache. */
uint64_t od_dense_part_phase(const struct od_dense_tensor *t, uint64_t row);
/* Memory of the ring alone, and of what belongs to it on the host; UINT64_MAX: no memory to tell. */
uint64_t od_dense_parts_least(const struct od_pack *p);
uint64_t od_dense_parts_beside(const struct od_pack *p);

#endif
