/* expert_service.h - the interface to the experts of main's steps: in this process (resident) or on a cluster.
 *
 * A decode step has a row, or a row and its drafts, of every sequence in decode; a prefill step has rows of prompts.
 * One step of each kind may be open at a time: a prefill step pauses between layers for decode steps.
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_EXPERT_SERVICE_H
#define ODM_EXPERT_SERVICE_H

#include "common/model/forward.h"
#include "common/model/sampler.h"
#include "common/predict/recall.h"
#include "main-node/step/draft_outlook.h"
#include "main-node/step/figures.h"

enum odm_phase { ODM_PREFILL, ODM_DECODE };

#define ODM_MAX_DRAFT 16 /* limit of draft rows of a sequence in a decode step */

/* Tokens that probably follow a sequence's last one. */
struct odm_draft {
	size_t n;
	int32_t token[ODM_MAX_DRAFT];
	float margin[ODM_MAX_DRAFT]; /* how sure each one is, in logits (od_sampler_sample); 0: not known */
	uint32_t experts[ODM_MAX_DRAFT +
			 1]; /* [i]: different experts, summed over layers, that the first i + 1 rows of a step
					      * with this draft probably use; all 0: not known */
};

/* The other open sequences when one is closed. */
enum odm_company {
	ODM_NOT_LAST, /* there are others */
	ODM_LAST, /* there are none now */
	ODM_ALONE, /* there were none while it ran */
};

/* The rows of one sequence in a step. */
struct odm_part {
	uint64_t sequence;
	size_t first, n; /* [first, first + n) of the step's rows */
	const int32_t *text; /* tokens of the sequence, up to the part's last row; used in prefill */
	uint32_t prompt_tokens; /* the position of its first generated token */
	/* rows that the next decode step will have of it at most, at least 1; the shadow may run them ahead */
	uint32_t ahead;
	const struct od_sampler_opts *sampling;
	uint64_t shared_sequence; /* another open sequence with the same first shared_tokens positions; 0: none */
	uint32_t shared_tokens;
	const char *request; /* as in odm_request */
};

/* A step; borrowed by the service until end_step. */
struct odm_step {
	uint64_t step;
	uint64_t next_step; /* of a decode step: the number of the next decode step */
	enum odm_phase phase;
	const struct od_row *rows;
	size_t n_rows;
	const struct odm_part *part; /* in the order of their rows */
	size_t n_parts;
	/* [n_parts]: how many rows of each part can be kept. The service lowers it, to no less than 1, when draft rows
	 * need an expert that no worker can run; the outputs of the rows behind are then zero, or meaningless. */
	uint32_t *valid;
	struct odm_outlook outlook; /* of a decode step: on the draft rows of the next one */
	uint64_t *counters; /* [OD_N_COUNTERS] of the step: the service adds to it until end_step */
	/* True: abandon the step. */
	bool (*cancelled)(void *arg);
	void *arg;
};

/* Order of calls: begin_step; for each layer needs, submit and collect; end_step. Each function may be NULL, except
 * free. */
struct odm_expert_service {
	/* Passed to od_forward_experts (submit and collect). A service updates statistics and predictions after it has
	 * sent its requests, and reads only the call's data. */
	struct od_expert_runner *runner;
	/* A step begins; membership may change here. */
	int (*begin_step)(struct odm_expert_service *s, const struct odm_step *step, struct od_err *err);
	/* Attention and router of layer m are queued. Returns the results that the service will read on the host
	 * (OD_FETCH_). It may queue its own transfers now; the engine's fetch waits for both. */
	unsigned (*needs)(struct odm_expert_service *s, const struct odm_step *step, uint32_t m);
	/* All layers are done, or the step was abandoned. */
	void (*end_step)(struct odm_expert_service *s, const struct odm_step *step);
	/* After end_step and before the next step, of a step with drafts: the first kept[i] rows of the i-th part
	 * stand, the others are undone. */
	void (*kept)(struct odm_expert_service *s, const struct odm_step *step, const uint32_t *kept);
	/* Between steps: the shadow's draft behind the token at this position, the sequence's last one; d->n is at most
	 * `most`. */
	void (*draft)(struct odm_expert_service *s, uint64_t sequence, uint32_t position, int32_t token, size_t most,
		      struct odm_draft *d);
	/* The sequence has ended; the service frees its state. f (zeroed except its nodes) receives the figures known
	 * only now (recall, the daemons), recall (NULL ok) the detail. */
	void (*close_sequence)(struct odm_expert_service *s, uint64_t sequence, enum odm_company company,
			       struct odm_figures *f, struct od_recall *recall);
	/* Any thread: adds the daemons to f, as they last reported. */
	void (*nodes)(struct odm_expert_service *s, struct odm_figures *f);
	/* Any thread: OD_OK, or why a step would have to wait for a worker that is not there. */
	int (*ready)(struct odm_expert_service *s, struct od_err *why);
	/* Any thread: OD_OK, or why it can never run an expert again. */
	int (*failed)(struct odm_expert_service *s, struct od_err *why);
	/* Adds what close_sequence would say now of the predictions for open sequences; it never says less. */
	void (*count_open)(struct odm_expert_service *s, uint64_t *c);
	void (*free)(struct odm_expert_service *s);
};

/* The resident service: all experts in this process's memory. */
struct odm_engine;
OD_MUST_CHECK int odm_resident_service_new(struct odm_expert_service **out, const struct od_forward_opts *opts,
					   const struct od_expert *experts, struct od_err *err);

#endif
