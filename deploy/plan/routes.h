/* routes.h - where a simulated run's tokens, routes and predictions come from: recorded ones, or synthetic ones
 * (synthetic_routes.h).
 *
 * Thread: the simulator's, one at a time. Owner: the caller; what a function points to is valid until the next call. */
#ifndef ODP_ROUTES_H
#define ODP_ROUTES_H

#include "common/predict/prediction.h"

/* A prediction for one row at one layer; n 0: none. */
struct odp_view {
	uint16_t n;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
};

/* Positions count a text's tokens from 0, prompt included. */
struct odp_routes {
	void *arg;
	/* Main's token at the position. */
	int32_t (*token)(void *arg, uint32_t text, uint32_t position);
	/* The token that a shadow running ahead assumes there if it was right so far, with its margin. NULL: it never
	 * runs ahead. */
	int32_t (*guess)(void *arg, uint32_t text, uint32_t position, float *margin);
	/* The experts [top_k] that a row with this token uses. *probability [n_experts]: of main's router; NULL: not
	 * known. probability NULL: not wanted. */
	void (*used)(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, uint16_t *expert,
		     const float **probability);
	/* The shadow's prediction for a row with this token. NULL: there is no shadow. */
	void (*predict)(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, struct odp_view *view);
	/* Main's own prediction for layer m, from 1 on, when layer m - 1 is routed. NULL: there is none. */
	void (*next_gate)(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m,
			  struct odp_view *view);
};

#endif
