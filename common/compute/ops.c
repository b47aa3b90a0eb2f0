#include "common/compute/ops.h"

#include "common/compute/device_internal.h"
#include "common/compute/formats/format.h"

bool od_device_supports(const struct od_device *d, enum od_op_kind op, enum od_dtype t)
{
	const struct od_format *f = od_format(t);

	if (f == NULL || (op == OD_OP_EMBED && (f->uses & (OD_USE_VECTOR | OD_USE_BLOCKS)) == 0))
		return false;
	return d->ops->supports == NULL || d->ops->supports(d, op, t);
}
