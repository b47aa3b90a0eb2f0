/* expert_service.h - who runs the experts of main's steps: this process (resident) or a cluster.
 *
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_EXPERT_SERVICE_H
#define ODM_EXPERT_SERVICE_H

#include "common/model/forward.h"
#include "common/model/sampler.h"
#include "common/predict/recall.h"
#include "main-node/engine/figures.h"

enum odm_phase { ODM_PREFILL, ODM_DECODE };

#define ODM_MAX_DRAFT 7 /* rows of a decode step beside the one that is certain */

/* A step as the service sees it. Rows are borrowed until end_step. */
struct odm_step {
	uint64_t step, next_step; /* next_step: the number that the decode step after this one will have */
	enum odm_phase phase;
	uint64_t sequence;
	uint32_t prompt_tokens; /* of the sequence: where its generated tokens begin */
	const struct od_row *rows;
	size_t n_rows;
	struct od_sampler_opts sampling; /* how the sequence's tokens are chosen */
	uint64_t *counters; /* [OD_N_COUNTERS] of the sequence: the service adds to it until close_sequence */
};

/* begin_step, then for each layer needs, submit and collect, then end_step. Where a function is NULL there is nothing to do;
 * free is always there. */
struct odm_expert_service {
	/* submit and collect: od_forward_experts gets it. A service learns, counts and predicts when its requests are out,
	 * from what the call has; it looks into nothing else of the step. */
	struct od_expert_runner *runner;
	/* A step begins; membership may change here. */
	int (*begin_step)(struct odm_expert_service *s, const struct odm_step *step, struct od_err *err);
	/* Attention and router of layer m are queued: what of them the service will read on the host, of OD_FETCH_. What
	 * else it wants from the device it may queue now; the engine's fetch waits for both. */
	unsigned (*needs)(struct odm_expert_service *s, uint32_t m);
	/* The step's layers are through, or it was given up. */
	void (*end_step)(struct odm_expert_service *s);
	/* Of the sequence's rows of the last step those from length on are undone. NULL: it need not know. */
	void (*truncate)(struct odm_expert_service *s, uint64_t sequence, uint32_t length);
	/* The sequence is over; nothing about it is needed any more. */
	void (*close_sequence)(struct odm_expert_service *s, uint64_t sequence);
	/* After close_sequence: adds what is known only then (recall, the workers' loads, the daemons). recall (NULL ok) gets
	 * the detail. NULL: nothing. */
	void (*figures)(struct odm_expert_service *s, struct odm_figures *f, struct od_recall *recall);
	void (*free)(struct odm_expert_service *s);
};

/* Every expert in this process's memory. */
struct odm_engine;
OD_MUST_CHECK int odm_resident_service_new(struct odm_expert_service **out, const struct od_forward_opts *opts,
					   const struct od_expert *experts, struct od_err *err);

#endif
