/* layer_stream.h - whether all experts that the next layer lacks are loaded while a layer is computed (FluxMoE, arXiv
 * 2604.02715, sections 4.1 and 4.3). With many rows nearly every expert of a layer is chosen, so nothing needs to be
 * predicted. It pays where reads take no longer than computing, because then no step waits for them; and where most of
 * these experts are chosen, because then they have to be read anyway. The cache keeps what is chosen most, so the share
 * that counts is of the experts that it does not keep.
 *
 * Thread: the engine thread. Owner: the caller; plain data, all zero at first. */
#ifndef ODM_LAYER_STREAM_H
#define ODM_LAYER_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct odm_layer_stream {
	/* Shares of a layer's experts that its rows chose: of all, and of those that were not kept. Means of recent
	 * layers. */
	double chosen, missing_chosen;
	uint32_t n_layers; /* in the means */
	bool on;
};

/* A layer's experts: all, those that its rows chose; those that were not kept, and the chosen ones among these. */
struct odm_layer_choice {
	size_t n, n_chosen, n_missing, n_missing_chosen;
};
void odm_layer_stream_routed(struct odm_layer_stream *s, uint32_t n_moe, const struct odm_layer_choice *c);
/* Does it pay in the step that begins? rho: time to read all that is missing / time to compute the step. */
bool odm_layer_stream_next(struct odm_layer_stream *s, double rho);
/* The same of any step, from the two shares. */
bool odm_layer_stream_pays(double chosen, double missing_chosen, double rho);

#endif
