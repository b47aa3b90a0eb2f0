/* tier_store.h - the memory of experts of a machine that may hold a part of them: the store that loads and keeps them
 * (common/residency/), pinned host memory beside a card, and the pages of KV cache that draw on the same budget
 * (FluxMoE, arXiv 2604.02715, section 4.3). While all experts are in memory and stay, they have a table: a step needs
 * no schedule then.
 *
 * Thread: the engine thread, unless stated otherwise; load threads and the one that follows free memory come in by a
 * lock. Owner: odm_tier_store_new's caller. */
#ifndef ODM_TIER_STORE_H
#define ODM_TIER_STORE_H

#include "common/model/forward.h"
#include "main-node/engine/model.h"

struct od_host_tier;
struct odm_tier_store;

struct odm_tier_store_opts {
	const struct odm_model *model; /* loaded with engine_opts.tiered; borrowed */
	struct od_device *device; /* borrowed */
	uint64_t session; /* the first one that the schedule knows */
	/* On a load thread: an expert has been loaded, or could not be. */
	void (*wake)(void *arg);
	void *wake_arg;
};

/* Starts the load threads. *out is NULL unless OD_OK. */
OD_MUST_CHECK int odm_tier_store_new(struct odm_tier_store **out, const struct odm_tier_store_opts *o,
				     struct od_err *err);
void odm_tier_store_free(struct odm_tier_store *s); /* a step may be open; NULL ok */

struct od_schedule *odm_tier_store_schedule(const struct odm_tier_store *s);
/* Pinned host memory beside a card; NULL: there is none. */
const struct od_host_tier *odm_tier_store_host(const struct odm_tier_store *s);
/* The CPUs that can compute on experts there, with the card's bits; NULL: none can. */
struct od_device *odm_tier_store_host_cpu(const struct odm_tier_store *s);

/* From now on pages of KV cache draw on the budget, and it follows free memory. Once, after the first loads. */
OD_MUST_CHECK int odm_tier_store_share(struct odm_tier_store *s, struct od_err *err);
/* For experts and pages together, as free memory allows now. */
uint64_t odm_tier_store_shared_bytes(struct odm_tier_store *s);

/* From now on the experts that a layer lacks are loaded while the layer before computes, or no longer: they need
 * slots. */
void odm_tier_store_stream(struct odm_tier_store *s, bool streams);

/* A step begins or ends; two may be open. The table changes only while none is, except in odm_tier_store_leave_all and
 * when the engine thread takes pages, between layers. */
void odm_tier_store_open_step(struct odm_tier_store *s);
void odm_tier_store_close_step(struct odm_tier_store *s);
/* All experts [n_moe][n_experts], which stay in memory; NULL: some are not there. */
const struct od_expert *odm_tier_store_all(const struct odm_tier_store *s);
/* Makes the table if the cache keeps every expert. */
void odm_tier_store_enter_all(struct odm_tier_store *s);
/* Before a layer: gives the table up if memory is needed. */
void odm_tier_store_leave_all(struct odm_tier_store *s);

#endif
