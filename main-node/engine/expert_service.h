/* expert_service.h - who runs the experts of main's steps: this process (resident) or a cluster.
 *
 * A decode step has a row, or a row and its draft, of every sequence that is being written; a prefill step some rows of
 * prompts. One of each kind may be open at a time: a prefill step pauses between layers, and decode steps run there.
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_EXPERT_SERVICE_H
#define ODM_EXPERT_SERVICE_H

#include "common/model/forward.h"
#include "common/model/sampler.h"
#include "common/predict/recall.h"
#include "main-node/engine/figures.h"

enum odm_phase { ODM_PREFILL, ODM_DECODE };

#define ODM_MAX_DRAFT 7 /* rows of a decode step that a sequence has beside the one that is certain */

/* Who is there when a sequence is closed. */
enum odm_company {
	ODM_NOT_LAST, /* others */
	ODM_LAST,     /* none any more */
	ODM_ALONE,    /* none, and there was none all the time */
};

/* The rows of one sequence in a step. */
struct odm_part {
	uint64_t sequence;
	size_t first, n; /* [first, first + n) of the step's rows */
	uint32_t prompt_tokens; /* of the sequence: where its generated tokens begin */
	const struct od_sampler_opts *sampling; /* how its tokens are chosen */
	uint64_t shared_sequence; /* its first shared_tokens positions are that one's; 0: none are */
	uint32_t shared_tokens;
};

/* A step as the service sees it; borrowed until end_step. */
struct odm_step {
	uint64_t step;
	uint64_t next_step; /* of a decode step: the number that the next one will have */
	enum odm_phase phase;
	const struct od_row *rows;
	size_t n_rows;
	const struct odm_part *part; /* in the order of their rows */
	size_t n_parts;
	uint64_t *counters; /* [OD_N_COUNTERS] of the step: the service adds to it until end_step */
	/* Nobody wants the step any more. */
	bool (*cancelled)(void *arg);
	void *arg;
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
	unsigned (*needs)(struct odm_expert_service *s, const struct odm_step *step, uint32_t m);
	/* The step's layers are through, or it was given up. */
	void (*end_step)(struct odm_expert_service *s, const struct odm_step *step);
	/* Of the sequence's rows of the last step those from length on are undone. NULL: it need not know. */
	void (*truncate)(struct odm_expert_service *s, uint64_t sequence, uint32_t length);
	/* The sequence is over; nothing about it is needed any more. figures (zeroed but for its nodes) gets what is known only
	 * then (recall, the daemons), recall (NULL ok) the detail. */
	void (*close_sequence)(struct odm_expert_service *s, uint64_t sequence, enum odm_company company,
			       struct odm_figures *f, struct od_recall *recall);
	void (*free)(struct odm_expert_service *s);
};

/* Every expert in this process's memory. */
struct odm_engine;
OD_MUST_CHECK int odm_resident_service_new(struct odm_expert_service **out, const struct od_forward_opts *opts,
					   const struct od_expert *experts, struct od_err *err);

#endif
