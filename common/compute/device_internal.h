/* device_internal.h - the interface that a device implements. Only for compute/. */
#ifndef OD_COMPUTE_DEVICE_INTERNAL_H
#define OD_COMPUTE_DEVICE_INTERNAL_H

#include <stdatomic.h>

#include "common/compute/ops.h"

struct od_buf {
	struct od_device *device;
	uint64_t bytes;
	char *at; /* its address on the device; the host cannot read it in general. NULL: it is on the host alone */
	bool shared; /* the host can read this one, though the device does not map all buffers */
	bool borrowed; /* its memory is another's */
	bool sparse; /* the device counts its memory when it is committed or released */
	_Atomic(char *) stage; /* [bytes], of od_host_new; NULL: none yet */
};

/* device.h says what each does. */
struct od_device_ops {
	int (*buf_new)(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err);
	/* NULL: buf_new serves */
	int (*buf_new_shared)(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			      struct od_err *err);
	/* NULL: buf_new serves, because no page is larger than it must be */
	int (*buf_new_sparse)(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			      struct od_err *err);
	void (*buf_free)(struct od_buf *b);
	/* NULL: what is written has memory */
	int (*commit)(struct od_ref from, uint64_t n, const char *what, struct od_err *err);
	void (*release)(struct od_ref from, uint64_t n); /* NULL: it releases nothing */
	uint64_t (*free_now_bytes)(struct od_device *d); /* NULL, as commit may be: not known */
	void *(*map)(struct od_ref r);
	/* NULL, with host_free: od_map serves; bytes include the padding */
	void *(*host_new)(struct od_device *d, uint64_t bytes);
	void (*host_free)(struct od_device *d, void *at);
	void (*put)(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n);
	void (*get)(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n);
	void (*run)(struct od_device *d, enum od_queue q, const struct od_op *op);
	/* NULL: it computes with all formats, in each operation that has a meaning for them */
	bool (*supports)(const struct od_device *d, enum od_op_kind op, enum od_dtype t);
	uint64_t (*ticket)(struct od_device *d, enum od_queue q);
	int (*wait)(struct od_device *d, enum od_queue q, uint64_t ticket, struct od_err *err);
	void (*after)(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t ticket);
	void (*free)(struct od_device *d);
};

struct od_device {
	const struct od_device_ops *ops;
	char name[48];
	const char *kernels[2], *kernel_class[2]; /* index profile - 1 */
	bool likes_planes; /* weights that come from its memory */
	uint64_t cache_bytes; /* its last-level cache; 0: not known */
	bool maps, shares; /* shares: also where it maps */
	bool is_auto; /* a GPU that --device auto has chosen */
	uint64_t memory_bytes; /* for models; 0: not known */
	uint64_t assumed_free_bytes; /* od_device_assume_free; 0: none */
	uint64_t own_bytes; /* used by the device itself */
	uint64_t page_bytes; /* buffers larger than half a page take whole pages of its memory; 0: none do */
	uint64_t granule_bytes; /* commit's unit: a power of two */
	uint64_t used_bytes; /* device memory in use before this process took any: its context, and other programs */
	_Atomic uint64_t buffer_bytes; /* sum over all buffers */
	_Atomic uint64_t waits; /* queues belong to different threads */
	_Atomic uint64_t failures; /* waits of the compute queue that failed */
	_Atomic uint64_t load_errors; /* noted before the call that had one returns */
	_Atomic bool lost;
};

#endif
