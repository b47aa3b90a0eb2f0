/* inflater.h - expert_load.h's inflater for the files of this folder: shards to any place, not only to an expert's memory. */
#ifndef OD_PACK_INFLATER_H
#define OD_PACK_INFLATER_H

#include "common/pack/expert_load.h"

/* As od_inflater_load of OD_FORM_PLAIN, which the inflater is for, but the shard's rows alone, as a matrix of their number
 * (mat_type.h); od_shard_max_memory holds any. */
OD_MUST_CHECK int od_inflater_rows(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, struct od_ref to,
				   struct od_err *err);

/* One inflater for each of n threads. */
OD_MUST_CHECK int od_inflaters_new(struct od_inflater ***out, unsigned n, const struct od_pack *p, struct od_device *d,
				   enum od_form form, struct od_err *err);
void od_inflaters_free(struct od_inflater **inf, unsigned n); /* NULL ok */

#endif
