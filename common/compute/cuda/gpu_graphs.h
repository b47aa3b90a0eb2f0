/* gpu_graphs.h - launches of a stream that come again and again, as graphs.
 *
 * A small model's step has hundreds of launches of a few microseconds each, and the host needs as long to give them as
 * the GPU to do them. So a stream gathers its launches; what has been launched twice in the same way, arguments
 * included, is made into a graph, and from then on it is given in one call. Steps of decoding repeat for as long as no
 * row begins a block of positions and page tables do not grow. A graph has the same launches in the same order, so that
 * results do not depend on it.
 *
 * Arguments are compared byte by byte, so they have no padding (kernels.h).
 *
 * Thread: the stream's. Owner: the stream. */
#ifndef OD_COMPUTE_GPU_GRAPHS_H
#define OD_COMPUTE_GPU_GRAPHS_H

#include "common/compute/cuda/gpu_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_GRAPH_LEAST 6u /* launches; fewer are given one by one */
#define GPU_GRAPH_MOST 64u /* so that the GPU begins before the host has gathered a whole step */
/* Launches of all graphs that are kept; beyond, those that were not used for longest go. A launch takes up to 4 KiB for
 * its arguments, of the host's memory and of the GPU's. */
#define GPU_GRAPHS_LAUNCHES 4096u

/* Runs until a graph is tried again after the GPU had no memory for one. */
#define GPU_GRAPHS_PAUSE 1024u

struct gpu_graphs;

struct gpu_graphs *gpu_graphs_new(struct gpu_stream *s); /* NULL: out of memory */
void gpu_graphs_free(struct gpu_graphs *g); /* NULL ok */
int gpu_graphs_add(struct gpu_graphs *g, const struct gpu_launch *l);
/* Gives the stream what was gathered; to be called before it is given anything else. NULL ok. If a launch fails, the
 * later ones are dropped, and so is all that is added until gpu_graphs_resume. */
int gpu_graphs_flush(struct gpu_graphs *g);
/* The name of the kernel whose launch made the last flush fail, once; else NULL. NULL ok. */
const char *gpu_graphs_failed(struct gpu_graphs *g);
/* As gpu_last_launch and gpu_take_back. NULL: false. */
bool gpu_graphs_last(const struct gpu_graphs *g, const char *kernel, struct gpu_launch *l);
void gpu_graphs_take_back(struct gpu_graphs *g);
void gpu_graphs_resume(struct gpu_graphs *g); /* NULL ok */

#ifdef __cplusplus
}
#endif

#endif
