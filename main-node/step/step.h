/* step.h - a step of rows of several sequences through all layers, as the engine, its expert service and predictions
 * speak of it.
 *
 * A decode step has a row, or a row and its drafts, of every sequence in decode; a prefill step has rows of prompts.
 * One step of each kind may be open at a time: a prefill step pauses between layers for decode steps.
 * Thread: plain data. Owner: the engine. */
#ifndef ODM_STEP_H
#define ODM_STEP_H

#include "common/base/counters.h"
#include "common/model/forward.h"
#include "common/model/sampler.h"
#include "main-node/step/draft_outlook.h"

enum odm_phase { ODM_PREFILL, ODM_DECODE };

struct odm_timeline_step;

#define ODM_MAX_STEP_ROWS 256u /* rows of a STEP message: steps with more rows are not sent to the shadow */
#define ODM_MAX_DRAFT 16 /* limit of draft rows of a sequence in a decode step */

/* Tokens that probably follow a sequence's last one. */
struct odm_draft {
	size_t n;
	int32_t token[ODM_MAX_DRAFT];
	float margin[ODM_MAX_DRAFT]; /* how sure each one is, in logits (od_sampler_sample); 0: not known */
	/* [i]: different experts, summed over layers, that the first i + 1 rows of a step with this draft probably use;
	 * all 0: not known */
	uint32_t experts[ODM_MAX_DRAFT + 1];
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
	uint64_t next_step; /* set in a decode step: the number of the next decode step */
	enum odm_phase phase;
	const struct od_row *rows;
	size_t n_rows;
	const struct odm_part *part; /* in the order of their rows */
	size_t n_parts;
	/* [n_parts]: how many rows of each part can be kept. The service lowers it, to no less than 1, when draft rows
	 * need an expert that no worker can run; the outputs of the rows behind are then zero, or meaningless. */
	uint32_t *valid;
	struct odm_outlook outlook; /* set in a decode step: on the draft rows of the next one */
	uint64_t *counters; /* [OD_N_COUNTERS] of the step: the service adds to it until end_step */
	struct odm_timeline_step *record; /* NULL: it is not recorded */
	/* True: abandon the step. */
	bool (*cancelled)(void *arg);
	void *arg;
};

#define ODM_NOBODY UINT32_MAX /* no worker: an expert is loaded nowhere, or nothing says where */

#endif
