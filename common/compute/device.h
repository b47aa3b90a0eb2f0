/* device.h - where a model's arithmetic is done: memory, in-order queues, and operations over all rows of a step (ops.h).
 *
 * Weights, sequence state, rows and slots lie in buffers of a device and are named by handles (struct od_ref). The host
 * touches them only through put, get, or the mapping that a device may grant (od_ref_map); a device without one (a GPU)
 * grants none, and whoever needs host memory then uses a stage.
 *
 * Work of one queue is done in the order in which it was queued; two queues meet only by tickets. A call that queues work
 * may return before it is done, so what it points to (host memory of put and get, shapes and weights of an operation)
 * must stay until a ticket taken after it has been waited for. What goes wrong in queued work shows at the next wait.
 *
 * The queue of loads serves many threads, and none of them may be told of what another's work did. So it takes only work that
 * cannot fail once the host has checked its operands: put, get, OD_OP_COPY and OD_OP_MERGE. What can still fail there is the
 * device, for all of them: then every later wait of the queue says so.
 * Thread: the compute queue belongs to one thread at a time, that of loads to any; buffers are made, mapped and freed by
 * any. Owner: buffers are freed before their device, when all that might use them has been waited for. */
#ifndef OD_COMPUTE_DEVICE_H
#define OD_COMPUTE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/backend.h"

struct od_device;
struct od_buf;

/* A place in a buffer. buf NULL: nowhere. */
struct od_ref {
	struct od_buf *buf;
	uint64_t at; /* bytes from its start */
};

static inline struct od_ref od_ref_at(struct od_ref r, uint64_t bytes)
{
	return (struct od_ref){ r.buf, r.at + bytes };
}

enum od_queue { OD_QUEUE_COMPUTE, OD_QUEUE_LOADS };
#define OD_N_QUEUES 2

/* The device that $OD_DEVICE names: cpu (also when it is unset), or far (far/far_device.h), which computes as cpu does. cpu:
 * kernels; n_threads counts the caller; name shows in ps (at most 12 characters). OD_ERR_ARG: there is no such device;
 * OD_ERR_UNSUPPORTED: it lacks such kernels. */
OD_MUST_CHECK int od_device_open(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name,
				 struct od_err *err);
void od_device_free(struct od_device *d); /* NULL ok; everything queued has been waited for */
const char *od_device_name(const struct od_device *d); /* "cpu avx512", "far avx2": for messages */
const char *od_device_kernels(const struct od_device *d, enum od_profile profile); /* "avx512bf16": for reports */
/* Results are bit-identical within a class: "fma16", "bf16dot" (backend.h). */
const char *od_device_kernel_class(const struct od_device *d, enum od_profile profile);
/* Products with planes are faster than with plain BF16, when weights come from the device's memory. */
bool od_device_likes_planes(const struct od_device *d);

/* ---- memory ---- */

/* Zeroed memory, aligned to 64 bytes, from 32 KiB on to pages, and followed by OD_PAD_BYTES zero bytes. what names it in the message. */
OD_MUST_CHECK int od_buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			     struct od_err *err);
void od_buf_free(struct od_buf *b); /* NULL ok */
uint64_t od_buf_bytes(const struct od_buf *b);
struct od_device *od_buf_device(const struct od_buf *b);
static inline struct od_ref od_buf_ref(struct od_buf *b, uint64_t at)
{
	return (struct od_ref){ b, at };
}

/* Where the host may read and write the place itself, while nothing queued uses it; NULL: the device grants no mapping. */
void *od_ref_map(struct od_ref r);
bool od_device_maps(const struct od_device *d); /* it grants one to all its buffers, or to none */

/* Where the host prepares what goes to a place that is written again and again: the place itself where the device maps it,
 * else a stage as long as the buffer, which belongs to the buffer from the first call on. NULL: no memory for it. */
void *od_ref_stage(struct od_ref r);
/* n bytes that were prepared there go to the device, which may read them up to the wait; not needed where it maps the place. */
void od_ref_push(struct od_ref r, size_t n, enum od_queue q);
/* Memory of n bytes of a buffer of the device, and of their stage where it needs one. */
uint64_t od_staged_bytes(const struct od_device *d, uint64_t n);
/* Its stage is not needed any more; what was pushed has been waited for. */
void od_buf_drop_stage(struct od_buf *b);

/* ---- queued work ---- */

/* n bytes to and from host memory. The source is read, the target written at any time up to the wait. */
void od_device_put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n);
void od_device_get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n);

/* A number for all that the queue has been given until now; never reused. */
uint64_t od_device_ticket(struct od_device *d, enum od_queue q);
/* The host waits until that is done. Reports the first failure of the queue's work since the last report; err NULL: returns
 * its code and leaves it for the next wait to report. */
OD_MUST_CHECK int od_device_wait(struct od_device *d, enum od_queue q, uint64_t ticket, struct od_err *err);
/* What q is given from now on begins after the other queue's ticket. */
void od_device_after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t ticket);

/* How often the host has waited, for tests that hold the number: a wait is a round trip to the device. */
uint64_t od_device_waits(const struct od_device *d);

/* How many waits of the compute queue have failed. A failure is reported once, to the first that waits, which may not be
 * whose work it was: who has work there and finds that this number has grown must not trust what the work gave. */
uint64_t od_device_failures(const struct od_device *d);

/* A wait for all that the compute queue has been given. */
OD_MUST_CHECK int od_device_sync(struct od_device *d, struct od_err *err);

/* Filling a place from the host, at leisure: host is the place itself where the device maps it, else a stage that
 * od_fill_end puts there. Compute queue. */
struct od_fill {
	struct od_ref to;
	size_t n;
	void *host; /* [n], zeros or what was there */
	bool staged;
};
OD_MUST_CHECK int od_fill_begin(struct od_fill *f, struct od_ref to, size_t n, struct od_err *err);
/* rc: how filling went; else than OD_OK nothing is put and it is returned. */
OD_MUST_CHECK int od_fill_end(struct od_fill *f, int rc, struct od_err *err);

#endif
