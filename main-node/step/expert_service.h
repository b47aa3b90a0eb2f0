/* expert_service.h - the interface to the experts of main's steps: in this process (resident) or on a cluster.
 *
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_EXPERT_SERVICE_H
#define ODM_EXPERT_SERVICE_H

#include "common/predict/recall.h"
#include "main-node/step/figures.h"
#include "main-node/step/machine.h"
#include "main-node/step/step.h"

/* The other open sequences when one is closed. */
enum odm_company {
	ODM_NOT_LAST, /* there are others */
	ODM_LAST, /* there are none now */
	ODM_ALONE, /* there were none while it ran */
};

/* Order of calls: begin_step; the runner's for each layer; end_step. Each function may be NULL, except free. */
/* Texts that run, and those that wait. Pages of KV cache are what is expected on average over a text's time. */
#define ODM_LIFE_POINTS 8

struct odm_waiting {
	uint32_t n_running, n_waiting;
	/* Expected at equal distances in the time of the first text that waits, if it joined now: pages of all that
	 * run, and its own. One that ends is followed by another like it. */
	uint64_t running_pages[ODM_LIFE_POINTS], text_pages[ODM_LIFE_POINTS];
};

struct odm_expert_service {
	/* Runs the experts of each layer (forward.h). A service updates statistics and predictions after it has
	 * sent its requests, and reads only the call's data. */
	struct od_expert_runner *runner;
	bool has_spans; /* the runner records spans of its own, in the place of ODM_SPAN_EXPERTS */
	/* A step begins; membership may change here. */
	int (*begin_step)(struct odm_expert_service *s, const struct odm_step *step, struct od_err *err);
	/* Between two layers of a step: its rows should go through the others in two halves. Each layer then has a call
	 * for either, and the second half's is submitted before the first half's next layer. NULL: they never
	 * should. */
	bool (*halves)(struct odm_expert_service *s, const struct odm_step *step);
	/* All layers are done, or the step was abandoned. */
	void (*end_step)(struct odm_expert_service *s, const struct odm_step *step);
	/* After end_step and before the next step, of a step with drafts: the first kept[i] rows of the i-th part
	 * stand, the others are undone. */
	void (*kept)(struct odm_expert_service *s, const struct odm_step *step, const uint32_t *kept);
	/* A text waits for others. False: it should go on waiting, because all together would be slower with it. NULL:
	 * it never should. */
	bool (*admits)(struct odm_expert_service *s, const struct odm_waiting *w);
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
	/* Any thread: adds the daemons to the list, with those that are not connected. */
	void (*machines)(struct odm_expert_service *s, struct odm_machines *list);
	/* Any thread: how many experts main itself keeps in memory. NULL: none. */
	uint64_t (*kept_experts)(struct odm_expert_service *s);
	/* Any thread: OD_OK, or why a step would have to wait for a worker that is not there. */
	int (*ready)(struct odm_expert_service *s, struct od_err *why);
	/* Any thread: OD_OK, or why it can never run an expert again. */
	int (*failed)(struct odm_expert_service *s, struct od_err *why);
	/* Adds what close_sequence would say now of the predictions for open sequences; it never says less. */
	void (*count_open)(struct odm_expert_service *s, uint64_t *c);
	void (*free)(struct odm_expert_service *s);
};

#endif
