/* align_apply.h - KV alignment (OD-MoE arXiv 2512.03927, section 3.2) as bookkeeping: which keys and values of one
 * sequence the shadow holds, whose they are, which still come by themselves, and what must be asked for.
 *
 * Every (layer, position) is missing, or holds the shadow's own row, or main's ("true"). It is due when a STEP
 * promised its true row: then nobody asks for it, and what comes behind the due rows waits for it. The step itself,
 * whose rows are the last of them, goes by the shadow's own rows where it has some: alignment follows a step.
 *
 *   settled = true, or own and not due        missing = neither held nor due
 *
 * Main sends STEPs and STATEs in one order, so a due row that is not there when the next STEP comes was lost, and
 * true rows that nobody waits for are about something else.
 * Pure: no I/O, no clock, no memory but its own. Thread: its owner's. Owner: ods_align_new's caller. */
#ifndef ODS_ALIGN_APPLY_H
#define ODS_ALIGN_APPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

#define ODS_MAX_ASKED 2		      /* ranges asked for and not answered */
#define ODS_ASK_AGAIN_NS OD_NS_PER_S /* without an answer: all of them are asked for again */

struct ods_range {
	uint32_t layer, begin, n; /* positions [begin, begin + n) */
};

struct ods_align;

/* max_ask: positions of one range at most. *out is NULL unless OD_OK. */
OD_MUST_CHECK int ods_align_new(struct ods_align **out, uint32_t n_layers, uint32_t ctx, uint32_t max_ask,
				struct od_err *err);
void ods_align_free(struct ods_align *a); /* NULL ok */
uint64_t ods_align_bytes(uint32_t n_layers, uint32_t ctx);

/* What was due and did not come will not come by itself any more: call on every STEP, for every sequence. */
void ods_align_settle(struct ods_align *a);
/* A STEP with rows [begin, begin + n): nothing that stands there or behind is about these tokens, unless the shadow
 * ran ahead with the same ones (keep). The true rows of the last n_due positions up to begin + n will come; n_due at
 * most begin + n, and 0 or at least n. After ods_align_settle. */
void ods_align_step(struct ods_align *a, uint32_t begin, uint32_t n, uint32_t n_due, bool keep);
void ods_align_truncate(struct ods_align *a, uint32_t length);

/* These true rows are due, and not all there yet, or asked for. Range within n_layers and ctx. */
bool ods_align_expects(const struct ods_align *a, const struct ods_range *r, bool asked);
/* True rows were written. Range within n_layers and ctx. */
void ods_align_true(struct ods_align *a, const struct ods_range *r, uint64_t now_ns);
/* An own row was written; ignored where the true one is. */
void ods_align_own(struct ods_align *a, uint32_t layer, uint32_t position);

bool ods_align_is_true(const struct ods_align *a, uint32_t layer, uint32_t position);
/* Everything before position is settled, or held and position is itself due: a row there may visit this layer. */
bool ods_align_ready(struct ods_align *a, uint32_t layer, uint32_t position);
/* The first position that is missing in some layer (neither held nor due); limit: none before it is. */
uint32_t ods_align_missing(struct ods_align *a, uint32_t limit);

/* The next range to ask for before position, layer by layer; it then counts as asked for. False: there is none, or
 * ODS_MAX_ASKED are out. */
bool ods_align_ask(struct ods_align *a, uint32_t position, uint64_t now_ns, struct ods_range *r);
/* After ods_align_deadline nothing counts as asked for any more: the answers were lost. */
void ods_align_expire(struct ods_align *a, uint64_t now_ns);
size_t ods_align_asked(const struct ods_align *a);
uint64_t ods_align_deadline(const struct ods_align *a); /* UINT64_MAX: nothing is asked for */

#endif
