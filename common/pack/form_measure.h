/* form_measure.h - times an operation with experts in each form, on weights made from a seed, for a device that cannot
 * say beforehand which form it computes on faster. It takes memory for a few small experts.
 *
 * Thread: the compute queue's. Owner: nothing stays. */
#ifndef OD_PACK_FORM_MEASURE_H
#define OD_PACK_FORM_MEASURE_H

#include "common/pack/pack.h"

/* ns: of one expert with one row, the median of several; experts have the model's shape, but at most some MiB each. */
OD_MUST_CHECK int od_form_measure(uint64_t ns[OD_N_FORMS], const struct od_config *cfg, struct od_device *d,
				  enum od_form_use use, struct od_err *err);

#endif
