/* device_util.h - for tests that drive a device: they touch its memory only through put and get, as they must where the
 * host cannot read it. What fails fails the running test; put and get wait. */
#ifndef OD_TESTS_DEVICE_UTIL_H
#define OD_TESTS_DEVICE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/compute/device_internal.h"
#include "common/compute/open_device.h"
#include "common/compute/ops.h"

static inline void must(int rc, const struct od_err *err)
{
	if (rc != OD_OK)
		fail_msg("%s", err->msg);
}

static inline bool on_plugin(void)
{
	const char *device = getenv("OD_DEVICE");

	return device != NULL && strncmp(device, "cuda", 4) == 0;
}

/* True: on the device of tests/gpu/far_device.h, which computes as the CPUs do. */
static inline bool on_far(void)
{
	const char *plugin = getenv("OD_CUDA_PLUGIN");

	return on_plugin() && plugin != NULL && strstr(plugin, "libod_far.so") != NULL;
}

/* True: on a GPU, real or emulated, which computes as the scalar table does. */
static inline bool on_gpu(void)
{
	return on_plugin() && !on_far();
}

/* True: on the emulated GPU, whose memory is that of all devices of this process that have opened it. */
static inline bool on_emulated(void)
{
	const char *plugin = getenv("OD_CUDA_PLUGIN");

	return on_plugin() && plugin != NULL && strstr(plugin, "libod_gpu_host.so") != NULL;
}

/* A GPU needs one of the tests that exist for each table. $OD_TEST: the only one to run, for sanitizers that run them
 * side by side. */
static inline void choose_tables(void)
{
	static char filter[64];
	const char *test = getenv("OD_TEST");

	if (!on_gpu())
		return;
	snprintf(filter, sizeof(filter), "%s scalar", test != NULL ? test : "*");
	cmocka_set_test_filter(filter);
}

static inline struct od_device *device_new(enum od_cpu cpu, unsigned threads)
{
	struct od_device *d;
	struct od_err err = { 0 };

	must(od_device_open(&d, NULL, cpu, threads, "test", &err), &err);
	return d;
}

static inline struct od_buf *buf_new(struct od_device *d, uint64_t bytes)
{
	struct od_buf *b;
	struct od_err err = { 0 };

	must(od_buf_new(&b, d, bytes, "a test", &err), &err);
	return b;
}

/* On the emulated GPU, as another program: takes all memory but so much. *other is its device. */
static inline struct od_buf *take_all_but(uint64_t left, struct od_device **other)
{
	struct od_err err = { 0 };

	must(od_device_open(other, "cuda", OD_CPU_AUTO, 1, "test", &err), &err);
	return buf_new(*other, (*other)->memory_bytes - (*other)->own_bytes - left - OD_PAD_BYTES);
}

static inline struct od_buf *shared_buf_new(struct od_device *d, uint64_t bytes) /* as experts have them */
{
	struct od_buf *b;
	struct od_err err = { 0 };

	must(od_buf_new_shared(&b, d, bytes, "a test", &err), &err);
	return b;
}

static inline void sync_device(struct od_device *d)
{
	struct od_err err = { 0 };

	must(od_device_sync(d, &err), &err);
}

static inline void put_at(struct od_device *d, struct od_ref to, const void *from, size_t n)
{
	od_device_put(d, OD_QUEUE_COMPUTE, to, from, n);
	sync_device(d);
}

static inline void get_at(struct od_device *d, void *to, struct od_ref from, size_t n)
{
	od_device_get(d, OD_QUEUE_COMPUTE, to, from, n);
	sync_device(d);
}

/* A buffer of its own for n bytes, filled with them. */
static inline struct od_buf *buf_of(struct od_device *d, const void *from, size_t n)
{
	struct od_buf *b = buf_new(d, n);

	put_at(d, od_buf_ref(b, 0), from, n);
	return b;
}

/* A copy of n bytes; malloc'd. */
static inline void *copy_at(struct od_device *d, struct od_ref from, size_t n)
{
	void *p = malloc(n > 0 ? n : 1);

	assert_non_null(p);
	get_at(d, p, from, n);
	return p;
}

static inline void run_op(struct od_device *d, const struct od_op *op)
{
	od_device_run(d, OD_QUEUE_COMPUTE, op);
	sync_device(d);
}

#endif
