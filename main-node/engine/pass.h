/* pass.h - some rows of some sequences on their way through the model: one step, layer by layer.
 *
 *   clear -> add -> begin -> layer until done -> logits -> end, or give up
 *
 * Thread: the engine thread. Owner: the engine; all memory is taken at the start. */
#ifndef ODM_PASS_H
#define ODM_PASS_H

#include "main-node/engine/sequence.h"

struct odm_pass {
	struct odm_engine *engine;
	struct od_forward *forward;
	enum odm_phase phase;
	bool open;   /* begun, and neither ended nor given up */
	bool served; /* the service has not been told that its layers are through */
	size_t max_rows;
	struct odm_step step;
	struct od_row *rows;	  /* [max_rows] */
	struct odm_part *part;	  /* [max_parts] */
	struct odm_sequence **of; /* [max_parts]: whose part it is */
	size_t max_parts;
	uint64_t counters[OD_N_COUNTERS];
};

/* o->max_rows: of a step. */
OD_MUST_CHECK int odm_pass_init(struct odm_pass *p, struct odm_engine *e, enum odm_phase phase, const struct od_forward_opts *o,
				size_t max_parts, struct od_err *err);
void odm_pass_fini(struct odm_pass *p);

void odm_pass_clear(struct odm_pass *p);
/* Rows of one more sequence: tokens [n] from position begin on; there is room for them. */
void odm_pass_add(struct odm_pass *p, struct odm_sequence *q, uint32_t begin, const int32_t *tokens, size_t n);
OD_MUST_CHECK int odm_pass_begin(struct odm_pass *p, uint64_t step, uint64_t next_step, struct od_err *err);
/* The next layer; *done: it was the last one. */
OD_MUST_CHECK int odm_pass_layer(struct odm_pass *p, bool *done, struct od_err *err);
/* After the last layer: logits [n][vocab] of these rows; they are the caller's until the next call. n: as many as the pass has
 * parts, at most. */
OD_MUST_CHECK int odm_pass_logits(struct odm_pass *p, const uint32_t *row, size_t n, float **logits, struct od_err *err);
/* kept[i]: of the i-th part's rows; NULL: all. */
OD_MUST_CHECK int odm_pass_end(struct odm_pass *p, const uint32_t *kept, struct od_err *err);
/* Nothing of it becomes part of a sequence. A pass that is not open, too. */
void odm_pass_give_up(struct odm_pass *p);

#endif
