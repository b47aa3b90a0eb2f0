/* shared_device.h - for tests: one device, scalar, for all tests of a program, as set-up and tear-down of their
 * group. */
#ifndef OD_TESTS_SHARED_DEVICE_H
#define OD_TESTS_SHARED_DEVICE_H

#include "tests/unit/device_util.h"

static struct od_device *device;

static inline int open_device(void **state)
{
	(void)state;
	device = device_new(OD_CPU_SCALAR, 1);
	return 0;
}

static inline int close_device(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

#endif
