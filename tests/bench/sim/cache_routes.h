/* cache_routes.h - the input of od-bench cache: the experts that each layer of each step needs, from a recording.
 *
 * Thread: its owner's. Owner: made by the caller, ended with cache_routes_fini. */
#ifndef OD_BENCH_CACHE_ROUTES_H
#define OD_BENCH_CACHE_ROUTES_H

#include "tests/bench/sim/route_file.h"

/* The experts that all rows of a decode step need together in one layer. */
struct cache_visit {
	uint64_t step; /* counted from 1, prompts' steps too */
	uint32_t m, n;
	size_t first; /* expert[first .. first + n), sorted, all different */
};

struct cache_routes {
	uint32_t n_moe, n_experts, top_k;
	struct cache_visit *visit; /* [n_visits] */
	size_t n_visits, n_uses, n_decode_steps;
	uint16_t *expert; /* [n_uses] */
};

/* Decodes `batch` sequences of a recording (route_file.h) together, one row of each per step, until each one ends.
 * batch 1: as recorded. A higher one needs a recording with one sequence per step (else OD_ERR_ARG). Prompts' steps are
 * counted but left out. */
OD_MUST_CHECK int cache_routes_load(struct cache_routes *r, const char *path, uint32_t batch, struct od_err *err);

void cache_routes_fini(struct cache_routes *r); /* all zero is fine */

#endif
