/* pass.h - one step of rows of several sequences, layer by layer. Order of calls:
 *
 *   clear -> add -> begin -> layer until done -> logits -> end, or give up
 *
 * Thread: the engine thread. Owner: the engine; all memory is allocated by odm_pass_init. */
#ifndef ODM_PASS_H
#define ODM_PASS_H

#include "common/base/log.h"
#include "common/model/forward_open.h"
#include "main-node/engine/sequence.h"

struct odm_pass_opts {
	struct odm_model *model;
	struct odm_expert_service *service;
	enum odm_phase phase;
	size_t max_parts;
	struct odm_timeline *timeline; /* NULL: none */
	uint64_t *total; /* [OD_N_COUNTERS]: each step's counters are added when it ends */
};

struct odm_pass {
	struct odm_pass_opts o;
	struct od_forward *forward;
	bool open; /* begun, neither ended nor given up */
	bool served; /* the service's end_step has not been called yet */
	bool alone, halved; /* odm_pass_alone; its rows go through the layers in two halves */
	uint64_t overslept_ns; /* how much too long the last paced layer slept */
	size_t max_rows, max_logits;
	struct odm_step step;
	struct od_row *rows; /* [max_rows] */
	struct odm_part *part; /* [max_parts] */
	struct odm_sequence **of; /* [max_parts]: the part's sequence */
	uint32_t *valid; /* [max_parts]: odm_step.valid */
	struct od_log_about about; /* the requests of the step, while it is worked on */
	uint64_t counters[OD_N_COUNTERS];
};

/* fo->max_rows: of a step. fo->max_logits: at least 1. */
OD_MUST_CHECK int odm_pass_init(struct odm_pass *p, const struct odm_pass_opts *o, const struct od_forward_opts *fo,
				struct od_err *err);
void odm_pass_fini(struct odm_pass *p);

void odm_pass_clear(struct odm_pass *p);
/* Adds the rows of one more sequence: tokens [n] from position begin on; the caller checks that they fit. */
void odm_pass_add(struct odm_pass *p, struct odm_sequence *q, uint32_t begin, const int32_t *tokens, size_t n);
OD_MUST_CHECK int odm_pass_begin(struct odm_pass *p, uint64_t step, uint64_t next_step, struct od_err *err);
/* After begin: no other step begins until this one is through. Its rows may then go through the layers in halves. */
void odm_pass_alone(struct odm_pass *p);
/* Runs the next layer; *done: it was the last one. */
OD_MUST_CHECK int odm_pass_layer(struct odm_pass *p, bool *done, struct od_err *err);
/* After the last layer: logits [n][vocab] of these rows, borrowed until the next call; the caller may modify them. n is
 * at most max_logits. */
OD_MUST_CHECK int odm_pass_logits(struct odm_pass *p, const uint32_t *row, size_t n, float **logits,
				  struct od_err *err);
/* Commits the rows. kept[i]: the number of rows of the i-th part to commit; NULL: all. */
OD_MUST_CHECK int odm_pass_end(struct odm_pass *p, const uint32_t *kept, struct od_err *err);
/* Abandons the step without committing rows. Does nothing if the pass is not open. */
void odm_pass_give_up(struct odm_pass *p);

#endif
