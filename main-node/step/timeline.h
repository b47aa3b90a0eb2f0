/* timeline.h - what steps of main did and when, for someone who watches: spans of main's own work, predictions that
 * came in time, and the workers' answers.
 *
 * A step is recorded only while someone watches, and only if one of a few records is free: a record that is full waits
 * until the watcher takes it. So a watcher that is slow, or sleeps between looks, costs nothing meanwhile. All memory
 * is allocated at the start; what does not fit into a record is left out.
 * Thread: the engine thread records; one other thread watches and takes. Owner: the engine. */
#ifndef ODM_TIMELINE_H
#define ODM_TIMELINE_H

#include "common/base/trace.h"
#include "main-node/step/step.h"

#define ODM_TIMELINE_STEPS 8 /* records, of steps that are open or wait for the watcher */
#define ODM_TIMELINE_WORKERS 16 /* answers of a layer, at most */

enum odm_span { ODM_SPAN_ATTENTION, ODM_SPAN_SEND, ODM_SPAN_WAIT, ODM_SPAN_HEAD, ODM_SPAN_EXPERTS, ODM_N_SPANS };

/* Something that main did. */
struct odm_timeline_span {
	enum odm_span what;
	int64_t m; /* -1: of no MoE layer */
	uint64_t begin_ns, end_ns;
};

/* The predictions of a MoE layer for all rows of a decode step, those that came before the router chose. */
struct odm_timeline_prediction {
	uint32_t m;
	uint64_t came_ns; /* the last of them; perhaps before the step began */
	uint32_t right, wrong; /* experts */
};

/* A worker's answers in a MoE layer. */
struct odm_timeline_answer {
	uint32_t member, m; /* member: its id */
	uint64_t sent_ns, answered_ns; /* its first RUN, its last RESULT */
	uint64_t load_ns, wait_ns; /* the longest load, and the longest wait for one; 0: none was needed */
	uint64_t compute_ns; /* summed over experts */
	uint32_t experts, ready; /* ready: of them, those that were in memory when their rows came */
};

struct odm_timeline_step {
	uint64_t step;
	enum odm_phase phase;
	uint64_t begin_ns, end_ns;
	size_t n_rows, n_texts;
	size_t drafted, accepted; /* draft tokens */
	struct odm_timeline_span *span; /* [n_spans] in the order in which they ended */
	struct odm_timeline_prediction *prediction; /* [n_predictions] */
	struct odm_timeline_answer *answer; /* [n_answers] */
	size_t n_spans, n_predictions, n_answers;
	size_t most_spans, most_predictions, most_answers;
	struct odm_timeline_step *next; /* links the timeline's lists */
};

struct odm_timeline;

OD_MUST_CHECK int odm_timeline_new(struct odm_timeline **out, uint32_t n_layers, uint32_t n_moe, struct od_err *err);
void odm_timeline_free(struct odm_timeline *t); /* NULL ok; no record may be taken */

/* ---- The watcher ---- */

/* on: steps that begin from now on are recorded. What has been recorded before is dropped. */
void odm_timeline_watch(struct odm_timeline *t, bool on);
/* The oldest step that is complete, for odm_timeline_give; NULL: there is none. */
struct odm_timeline_step *odm_timeline_take(struct odm_timeline *t);
void odm_timeline_give(struct odm_timeline *t, struct odm_timeline_step *r);

/* ---- The engine thread ---- */

/* A step begins: its record, for odm_timeline_end or odm_timeline_drop. NULL: it is not recorded. t: NULL ok. */
struct odm_timeline_step *odm_timeline_begin(struct odm_timeline *t, const struct odm_step *step);
/* accepted: drafts that were right. */
void odm_timeline_end(struct odm_timeline *t, struct odm_timeline_step *r, size_t accepted);
void odm_timeline_drop(struct odm_timeline *t, struct odm_timeline_step *r);

void odm_timeline_predicted(struct odm_timeline_step *r, const struct odm_timeline_prediction *p);
/* The answers of one worker in a layer become one. */
void odm_timeline_answered(struct odm_timeline_step *r, const struct odm_timeline_answer *a);

/* A span of main's work, for the trace file (common/base/trace.h) and the step's record: the current time if there is
 * one of them, else 0. */
static inline uint64_t odm_span_begin(const struct odm_step *step)
{
	return step->record != NULL ? od_now_ns() : od_trace_begin();
}

/* begin_ns: as odm_span_begin returned it. m: -1: of no MoE layer. */
void odm_span_end(const struct odm_step *step, enum odm_span what, int64_t m, uint64_t begin_ns);

#endif
