/* cuda_device.h - the GPU device: its state, and what all files of cuda/ need of it. Only for cuda/.
 *
 * Thread: as device.h says; the state of a queue between od_cuda_begin and od_cuda_end. */
#ifndef OD_COMPUTE_CUDA_DEVICE_H
#define OD_COMPUTE_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/compute/cuda/kernels.h"
#include "common/compute/device_internal.h"

#define OD_CUDA_MARKS 64u
/* Scratch for rounded rows, attention and coded matrices; larger work is cut into pieces. */
#define OD_CUDA_SCRATCH_BYTES (16ull << 20)

/* A ticket that the host may wait for. */
struct od_cuda_mark {
	uint64_t ticket; /* 0: not used yet */
	struct gpu_event *event;
};

/* A merge of the load queue: what it reads and writes, and its end. */
struct od_cuda_merge {
	struct od_cuda_span {
		const char *at;
		uint64_t n;
	} use[3];
	struct gpu_event *done;
};
/* known ones that copies do not follow yet, at most; before there are more, copies follow the older half */
#define OD_CUDA_MERGES 32u

struct od_cuda_queue {
	/* guards the order of what the streams are given, and the marks: the load queue has many threads */
	pthread_mutex_t order;
	struct gpu_stream *stream;
	/* The load queue's merges have a stream of their own, so that the next copies run beside them (FluxMoE, section
	 * 4.1). A merge follows all copies before it; a copy follows those merges that use the same bytes. cuda_load.c
	 * has both rules. */
	struct gpu_stream *merges; /* NULL: none */
	struct gpu_event *copied;
	bool copies; /* the stream was given something that no merge waits for yet */
	struct od_cuda_merge merge[OD_CUDA_MERGES]; /* index: number % OD_CUDA_MERGES */
	uint64_t n_merges, n_awaited; /* the first n_awaited are done before any later copy */
	uint64_t given;
	struct od_cuda_mark mark[OD_CUDA_MARKS];
	size_t newest;
	pthread_mutex_t lock; /* guards the error */
	int rc;
	struct od_err failed;
};

struct od_cuda_device {
	struct od_device base;
	struct od_device_ops ops;
	struct gpu *gpu;
	struct od_cuda_queue queue[OD_N_QUEUES];
	struct gpu_fault *fault; /* host memory that kernels write */
	void *scratch; /* OD_CUDA_SCRATCH_BYTES; the compute queue's */
	struct gpu_event *finished;
	unsigned n_sm;
	struct od_cuda_table *tables; /* cuda_experts.c */
	_Atomic uint64_t n_freed; /* buffers, ever */
};

static inline void *od_cuda_at(struct od_ref r) /* NULL: nowhere */
{
	return r.buf == NULL ? NULL : r.buf->at + r.at;
}

void od_cuda_begin(struct od_cuda_device *c, enum od_queue q);
void od_cuda_end(struct od_cuda_device *c, enum od_queue q);
/* Keeps the queue's first error. */
void od_cuda_note(struct od_cuda_device *c, enum od_queue q, int error, const char *what);
void od_cuda_fail(struct od_cuda_device *c, const char *what); /* notes an operation that the compute queue cannot do */
void od_cuda_no_memory(struct od_cuda_device *c, const char *for_what, uint64_t bytes); /* notes missing memory */
void od_cuda_finish(struct od_cuda_device *c); /* waits for the compute queue */

/* The compute queue's stream, and a note of what a launcher returned. */
static inline struct gpu_stream *od_cuda_stream(struct od_cuda_device *c)
{
	return c->queue[OD_QUEUE_COMPUTE].stream;
}

static inline void od_cuda_launched(struct od_cuda_device *c, int error, const char *kernel)
{
	od_cuda_note(c, OD_QUEUE_COMPUTE, error, kernel);
}

static inline unsigned od_cuda_blocks(uint64_t n, uint64_t each) /* n / each, rounded up */
{
	return (unsigned)((n + each - 1) / each);
}

#endif
