/* device_check.h - whether a device computes with the formats of a pack's weights. Asked before anything is loaded, so
 * that a model is refused by name and not by a wrong result.
 *
 * Thread: any. */
#ifndef OD_PACK_DEVICE_CHECK_H
#define OD_PACK_DEVICE_CHECK_H

#include "common/compute/device.h"
#include "common/pack/manifest.h"
#include "common/pack/pack.h"

/* OD_ERR_UNSUPPORTED names tensor, format and device. */
OD_MUST_CHECK int od_dense_check_device(const struct od_pack *p, const struct od_dense_tensor *t,
					const struct od_device *d, struct od_err *err);
/* All experts of the layers that this process holds. */
OD_MUST_CHECK int od_experts_check_device(const struct od_pack *p, const struct od_device *d, struct od_err *err);

#endif
