/* inflater.h - inflates shards to any place, not only to an expert's memory; only for common/pack. Thread: as
 * expert_load.h. */
#ifndef OD_PACK_INFLATER_H
#define OD_PACK_INFLATER_H

#include "common/pack/load/expert_form.h"
#include "common/pack/load/expert_load.h"

/* As od_inflater_load with OD_FORM_PLAIN, but writes only the shard's rows to `to`, as a matrix of that many rows
 * (mat_type.h); od_shard_max_memory bytes are enough for any shard. */
OD_MUST_CHECK int od_inflater_rows(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
				   struct od_ref to, struct od_err *err);

/* An expert's bias as published to `to`, checked. For who has the matrices from elsewhere (a shadow). */
OD_MUST_CHECK int od_expert_bias_read(const struct od_pack *p, uint32_t m, uint32_t expert, enum od_expert_mat bias,
				      uint8_t *to, struct od_err *err);

/* One inflater for each of n threads. */
OD_MUST_CHECK int od_inflaters_new(struct od_inflater ***out, unsigned n, const struct od_pack *p, struct od_device *d,
				   enum od_form form, struct od_err *err);
void od_inflaters_free(struct od_inflater **inf, unsigned n); /* NULL ok */

#endif
