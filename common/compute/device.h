/* device.h - a compute device: memory, in-order queues, and operations over all rows of a step (ops.h).
 *
 * Weights, sequence state, rows and slots are in buffers of a device, named by handles (struct od_ref). The host
 * accesses them by put and get, or by a mapping (od_ref_map). A device such as a GPU grants no mapping; the host then
 * uses a stage.
 *
 * A queue runs its work in order; two queues are synchronised only by tickets. A call that queues work may return
 * before the work is done. So its operands (host memory of put and get, shapes and weights of an operation) must stay
 * valid until a later ticket has been waited for. An error in queued work is reported by the next wait.
 *
 * The load queue is shared by many threads, and an error of one must not reach another. So it accepts only work that
 * cannot fail once the host has checked its operands: put, get, OD_OP_COPY, OD_OP_MERGE. If the device itself fails,
 * every later wait of that queue reports it; if it refuses some work, the first wait reports that, and
 * od_device_load_errors tells the others.
 * Thread: the compute queue belongs to one thread at a time; the load queue, and making, mapping and freeing buffers,
 * committing and releasing memory, to any.
 * Owner: the caller frees buffers before their device, after waiting for all work that uses them. */
#ifndef OD_COMPUTE_DEVICE_H
#define OD_COMPUTE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/backend.h"

struct od_device;
struct od_buf;
struct od_op; /* ops.h */

/* A position in a buffer. buf NULL: nowhere (an absent operand). */
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

void od_device_free(struct od_device *d); /* NULL ok; everything queued has been waited for */
const char *od_device_name(const struct od_device *d); /* "cpu avx512": for messages */
const char *od_device_kernels(const struct od_device *d, enum od_profile profile); /* "avx512bf16": for reports */
/* Results are bit-identical within a class: OD_CLASS_FMA16, OD_CLASS_BF16DOT (backend.h). */
const char *od_device_kernel_class(const struct od_device *d, enum od_profile profile);
/* True: products with planes are faster than with plain BF16, where `bytes` of weights are read before the same ones
 * are read again. In the device's last-level cache plain weights are faster. */
bool od_device_likes_planes(const struct od_device *d, uint64_t bytes);

/* ---- memory ---- */

/* Zeroed memory, aligned to 64 bytes (from 32 KiB on to pages) and followed by OD_PAD_BYTES zero bytes. what: its name
 * for the error message. */
OD_MUST_CHECK int od_buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			     struct od_err *err);
/* A buffer that the host fills again and again, such as an expert's: where the device's memory is the host's, it is
 * mapped even if others are not. What the device reads often should not be in one: a GPU that shares the host's memory
 * does not cache this. */
OD_MUST_CHECK int od_buf_new_shared(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
				    struct od_err *err);
/* A buffer that takes memory only for what has been committed or written, and not released since (od_ref_commit,
 * od_ref_release). Only where the device lends memory. */
OD_MUST_CHECK int od_buf_new_sparse(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
				    struct od_err *err);
/* A buffer for data on its way to others: the host fills it (od_ref_stage) and puts from there. No operation may use
 * it. Where the device maps nothing it is host memory alone. */
OD_MUST_CHECK int od_buf_new_on_host(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
				     struct od_err *err);
/* A buffer over memory that another has, and keeps longer; d maps all its buffers. `at` is aligned as od_buf_new's and
 * followed by as many bytes. */
OD_MUST_CHECK int od_buf_new_over(struct od_buf **out, struct od_device *d, void *at, uint64_t bytes,
				  struct od_err *err);
void od_buf_free(struct od_buf *b); /* NULL ok */
uint64_t od_buf_bytes(const struct od_buf *b);
struct od_device *od_buf_device(const struct od_buf *b);
static inline struct od_ref od_buf_ref(struct od_buf *b, uint64_t at)
{
	return (struct od_ref){ b, at };
}

/* The host address of r, to use while no queued work does; NULL: the device grants no mapping. */
void *od_ref_map(struct od_ref r);
bool od_device_maps(const struct od_device *d); /* it maps all its buffers */
bool od_device_shares(const struct od_device *d); /* it maps those of od_buf_new_shared */

/* Host memory for what put and get copy over and over: zeros, in pages of its own, followed by OD_PAD_BYTES zero bytes.
 * On a GPU it is pinned: from pageable memory a copy takes a detour, and its caller waits for it. NULL: too little
 * memory, which is logged. */
void *od_host_new(struct od_device *d, uint64_t bytes);
void od_host_free(struct od_device *d, void *at, uint64_t bytes); /* NULL ok; no work uses it any more */

/* Host memory for data on its way to r, for ranges that are rewritten often: r itself if the device maps it, else a
 * stage of the buffer's length (od_host_new), which the buffer owns from the first call on. NULL: out of memory. */
void *od_ref_stage(struct od_ref r);
/* Sends n staged bytes to the device, which may read them until the wait; does nothing if the device maps r. */
void od_ref_push(struct od_ref r, size_t n, enum od_queue q);
/* Memory that a buffer of od_buf_new_shared takes, with its padding, but without a stage: a GPU with memory of its own
 * gives whole pages of it, of 2 MiB, to all but small ones. d NULL: a device that maps all buffers. */
uint64_t od_buf_memory(const struct od_device *d, uint64_t bytes);
/* Memory of a buffer of `bytes` of which only the first `used` are used. Where the device does not lend memory
 * (od_device_lends), it is that of the whole buffer. */
uint64_t od_buf_used_memory(const struct od_device *d, uint64_t bytes, uint64_t used);
/* True: buffers of so many bytes can give memory back and take it again. A GPU does both in granules, of 2 MiB; what is
 * far smaller than one would waste most of it. d NULL: a device that lends all. */
bool od_device_lends(const struct od_device *d, uint64_t bytes);
/* True: the memory of sparse buffers must be committed before it is used. Else it is there when it is written first. */
bool od_device_commits(const struct od_device *d);
uint64_t od_device_granules(const struct od_device *d, uint64_t n); /* n bytes in whole granules; n if it has none */
/* Takes memory for n bytes of a sparse buffer, as far as they have none: it holds anything. It may be used when this
 * returns. Does nothing to other buffers. OD_ERR_NOMEM: the device has too little; a part of the n bytes may have some
 * then. what: its name for the error message. */
OD_MUST_CHECK int od_ref_commit(struct od_ref from, uint64_t n, const char *what, struct od_err *err);
/* For messages, where memory that was planned is missing. */
#define OD_LACKS_MEMORY "another program has taken memory since this one started; end it, or start this one again"
/* Gives back the memory of whole pages or granules within n bytes from `from` on, until they are committed or written
 * again. Does nothing where the device does not release memory. No work uses them meanwhile; they hold anything
 * afterwards. */
void od_ref_release(struct od_ref from, uint64_t n);
/* Memory for n bytes of a shared buffer and for their stage, if the device needs one. */
uint64_t od_staged_bytes(const struct od_device *d, uint64_t n);
/* Memory that the device takes for itself, as scratch of its kernels; of all cards. Memory plans count it. */
uint64_t od_device_own_bytes(const struct od_device *d);
/* Logs for each GPU how much of its memory this process has taken so far, and how much was in use before: its context,
 * with all kernels, and other programs. */
void od_device_log_memory(const struct od_device *d);
/* Memory that is free for a model and its state: of GPUs with memory of their own what they had free when they were
 * opened, but for a reserve that is left to what is made later, such as graphs; else the host's. */
uint64_t od_device_free_bytes(const struct od_device *d);
/* For a planner: from now on it says this, as another machine's device would. */
void od_device_assume_free(struct od_device *d, uint64_t bytes);
/* True: that is memory of its own. */
bool od_device_has_memory(const struct od_device *d);
/* Memory that is free now, of a device whose memory is committed (od_device_commits); else 0. Any thread. */
uint64_t od_device_free_now_bytes(struct od_device *d);
/* Where that is, for messages: "on cuda:0 NVIDIA H200", "on this machine". */
const char *od_device_memory_name(const struct od_device *d, char *text, size_t size);
/* Frees the stage; all pushes have been waited for. */
void od_buf_drop_stage(struct od_buf *b);

/* ---- queued work ---- */

/* Copies n bytes from or to host memory. Source and target may be accessed at any time until the wait. */
void od_device_put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n);
void od_device_get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n);

/* Queues a copy of *op (ops.h). The load queue accepts OD_OP_COPY and OD_OP_MERGE only. */
void od_device_run(struct od_device *d, enum od_queue q, const struct od_op *op);

/* A ticket for all work queued on q so far; never reused. */
uint64_t od_device_ticket(struct od_device *d, enum od_queue q);
/* Waits until the ticket's work is done. Reports the queue's first error since the last report. err NULL: returns its
 * code and leaves the error for the next wait to report. */
OD_MUST_CHECK int od_device_wait(struct od_device *d, enum od_queue q, uint64_t ticket, struct od_err *err);
/* Work queued on q from now on begins after the other queue's ticket. */
void od_device_after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t ticket);

/* How many times the host has waited (each wait is a round trip to the device); tests check this number. */
uint64_t od_device_waits(const struct od_device *d);

/* How many waits of the compute queue have failed. An error is reported once, by the first wait, which may belong to
 * other work. If this number grew while your work was queued, do not trust your results. */
uint64_t od_device_failures(const struct od_device *d);

/* How many errors the load queue has had. Its first wait afterwards reports one, which may be another thread's. If this
 * number grew since your work began, do not trust what it has written. */
uint64_t od_device_load_errors(const struct od_device *d);

/* Not OD_OK: the device itself has failed, as a GPU has after a fault, and all later work will fail. Any thread. */
OD_MUST_CHECK int od_device_failed(const struct od_device *d, struct od_err *why);

/* Waits for all work of the compute queue. */
OD_MUST_CHECK int od_device_sync(struct od_device *d, struct od_err *err);

/* Lets the host fill a range in several steps: host is the range itself if the device maps it, else a stage that
 * od_fill_end copies there. Compute queue. The stage is pageable: it is used once, and pinning it would take longer
 * than the detour. */
struct od_fill {
	struct od_ref to;
	size_t n;
	void *host; /* [n]: zeros (a stage) or the present contents */
	bool staged;
};
OD_MUST_CHECK int od_fill_begin(struct od_fill *f, struct od_ref to, size_t n, struct od_err *err);
/* rc: the result of filling. Unless it is OD_OK, nothing is copied and rc is returned. */
OD_MUST_CHECK int od_fill_end(struct od_fill *f, int rc, struct od_err *err);

#endif
