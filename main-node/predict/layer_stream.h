/* layer_stream.h - whether experts of the next layers are loaded while a layer is computed, before anything is
 * predicted of them, and which: with many rows most experts of a layer are chosen (FluxMoE, arXiv 2604.02715, sections
 * 4.1 and 4.3, loads whole layers then). All that is missing is loaded ahead while the disk has time for it. Where it
 * has none, a load that is not used costs more than a wait: then only experts are loaded ahead that recent steps used
 * often. How often that is follows the disk.
 *
 * Thread: the engine thread. Owner: the caller; plain data, all zero at first. */
#ifndef ODM_LAYER_STREAM_H
#define ODM_LAYER_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct odm_layer_stream {
	double chosen; /* share of a layer's experts that its rows chose, mean of recent layers */
	uint32_t n_layers; /* in the mean */
	bool on;
	double least; /* experts that are loaded ahead are used with this probability at least */
	uint32_t n_steps; /* the following are sums over so many */
	uint64_t ns, stall_ns, loading_ns;
};

/* A layer's rows chose n_chosen of its n experts. */
void odm_layer_stream_routed(struct odm_layer_stream *s, uint32_t n_moe, size_t n, size_t n_chosen);
/* Are experts loaded ahead in the step that begins? */
bool odm_layer_stream_next(struct odm_layer_stream *s);
/* A step has ended, ns after the one before: for stall_ns it waited for loads, in loading_ns any were under way. */
void odm_layer_stream_ended(struct odm_layer_stream *s, uint64_t ns, uint64_t stall_ns, uint64_t loading_ns);
/* Rows that choose this share of all experts. */
bool odm_layer_stream_pays(double chosen);

#endif
