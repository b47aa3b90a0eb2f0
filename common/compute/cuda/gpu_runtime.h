/* gpu_runtime.h - what a GPU is for the device (cuda_device.c): memory, streams, events. gpu_cuda.cu has it for CUDA,
 * tests/gpu/gpu_host.c for tests on the host.
 *
 * A stream is an in-order queue; what it is given may be carried out at any later time, until it is waited for. Calls
 * return 0, or a number that gpu_error explains; an error of the work itself shows at a wait. After one the GPU may be
 * of no more use.
 * Thread: a stream belongs to one thread at a time; memory and events to any. Owner: the caller. */
#ifndef OD_COMPUTE_GPU_RUNTIME_H
#define OD_COMPUTE_GPU_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "common/base/status.h"

struct gpu;
struct gpu_stream;
struct gpu_event;

#define GPU_MAX_GRID_Y 65535u
struct gpu_grid {
	unsigned x, y, z; /* blocks; each at least 1, y and z at most GPU_MAX_GRID_Y */
};

/* A kernel (gpu.h makes one of each). */
struct gpu_kernel {
	void (*function)(void); /* gpu_start knows how to call it */
	const char *name;
	unsigned n_threads; /* threads of a block */
	size_t args_bytes;
};

struct gpu_launch {
	const struct gpu_kernel *kernel;
	struct gpu_grid grid;
	size_t shared; /* bytes of a block */
	const void *args; /* [args_bytes]; copied */
};

struct gpu_about {
	char name[64];
	unsigned major, minor; /* compute capability */
	unsigned n_sm;
	uint64_t clock_hz; /* highest clock of its multiprocessors */
	uint64_t memory_bytes_per_s; /* its memory's peak; 0: not known */
	uint64_t cache_bytes; /* L2 */
	uint64_t free_bytes, total_bytes; /* device memory */
	uint64_t page_bytes; /* allocations larger than half a page take whole pages of its memory; 0: none do */
	uint64_t granule_bytes; /* gpu_commit's unit, a power of two; 0: addresses always have memory */
	bool unified; /* its memory is the host's */
};

/* index: of the GPUs that this process may use. OD_ERR_UNSUPPORTED: no driver, one that is too old, no such GPU, or no
 * kernels for it. */
OD_MUST_CHECK int gpu_open(struct gpu **out, unsigned index, struct od_err *err);
void gpu_close(struct gpu *g); /* NULL ok */
void gpu_look(struct gpu *g, struct gpu_about *about);
const char *gpu_error(int error);
bool gpu_lacks_memory(int error); /* the GPU has too little memory; nothing else is wrong */

/* Memory of the GPU, zeros, aligned to 256 bytes; NULL: there is too little. */
void *gpu_alloc(struct gpu *g, uint64_t bytes);
void gpu_free(struct gpu *g, void *at); /* NULL ok; no work uses it any more */
/* Memory of the host, zeros, in pages of its own, that copies read and write without a detour, and kernels by the same
 * address. NULL: too little. */
void *gpu_alloc_host(struct gpu *g, uint64_t bytes);
void gpu_free_host(struct gpu *g, void *at); /* NULL ok */

/* Addresses without memory; NULL: there are none left. All bytes and addresses here are multiples of granule_bytes. */
void *gpu_reserve(struct gpu *g, uint64_t bytes);
void gpu_unreserve(struct gpu *g, void *at, uint64_t bytes); /* it has no memory any more */
/* Memory for a range that has none; it holds anything. After an error the range has none. */
int gpu_commit(struct gpu *g, void *at, uint64_t bytes);
void gpu_release(struct gpu *g, void *at, uint64_t bytes); /* all of it has memory, and no work uses it any more */

/* gathers: it keeps launches, until it is given anything else or many of them are there, to make graphs of them
 * (gpu_graphs.h). */
int gpu_stream_new(struct gpu_stream **out, struct gpu *g, bool gathers);
void gpu_stream_free(struct gpu_stream *s); /* NULL ok; it has been waited for */

int gpu_launch(struct gpu_stream *s, const struct gpu_launch *l);
/* A kernel after one that failed would read what that one did not write. So after an error of a launch, a stream that
 * gathers drops launches until this is called. */
void gpu_stream_resume(struct gpu_stream *s);
/* After an error: the name of the gathered kernel that had it, and not of what was called; NULL: none, or it was told
 * before. */
const char *gpu_failed_kernel(struct gpu_stream *s);

/* The last launch of a stream that gathers, if it is of the kernel with this name and was not given to the GPU yet;
 * l->args is valid until the stream is used again. gpu_take_back, right after it, removes that launch: the caller
 * launches a kernel that does its work, too. */
bool gpu_last_launch(struct gpu_stream *s, const char *kernel, struct gpu_launch *l);
void gpu_take_back(struct gpu_stream *s);

/* For gpu_graphs.c: a launch that is not gathered; launches [n], in order, as one. follows: the stream has been given
 * nothing since the launch before, so the GPU may prepare this one while that one ends (GPU_KERNEL). */
struct gpu_graph;
int gpu_start(struct gpu_stream *s, const struct gpu_launch *l, bool follows);
/* l is copied */
int gpu_graph_new(struct gpu_graph **out, struct gpu_stream *s, const struct gpu_launch *l, unsigned n);
int gpu_graph_start(struct gpu_stream *s, struct gpu_graph *g);
void gpu_graph_free(struct gpu_graph *g); /* NULL ok; it may still run */

enum gpu_way { GPU_TO, GPU_FROM, GPU_WITHIN };
int gpu_copy(struct gpu_stream *s, void *to, const void *from, uint64_t n, enum gpu_way way);

/* Recording and gpu_stream_after flush what was gathered. They do their own work even if that fails, and return its
 * error. */
/* sleeps: who waits for it takes no CPU time, but wakes later */
int gpu_event_new(struct gpu_event **out, struct gpu *g, bool sleeps);
void gpu_event_free(struct gpu_event *e); /* NULL ok */
int gpu_event_record(struct gpu_event *e, struct gpu_stream *s); /* it is the end of what s has been given so far */
int gpu_event_wait(struct gpu_event *e); /* the caller waits */
int gpu_stream_after(struct gpu_stream *s, struct gpu_event *e); /* s goes on after it */

#ifdef __cplusplus
}
#endif

#endif
