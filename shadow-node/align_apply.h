/* align_apply.h - KV alignment (OD-MoE arXiv 2512.03927, section 3.2) as bookkeeping: which keys and values of one
 * sequence the shadow holds, whose they are, which still come by themselves, and what must be asked for.
 *
 * Every (layer, position) is missing, or holds the shadow's own row, or main's ("true"). It is due when a STEP
 * promised its true row: then nobody asks for it, and what comes behind the due rows waits for it. The step itself,
 * whose rows are the last of them, goes by the shadow's own rows where it has some: alignment follows a step.
 *
 *   settled = true, or own and not due        missing = neither held nor due
 *
 * Main sends STEPs and STATEs in one order, and the STATEs of a step layer by layer. So a due row was lost when the next
 * STEP comes without it, or a STATE of a later layer; and true rows that nobody waits for are about something else.
 * The map lies in pages of OD_KV_PAGE positions, like the rows themselves. Sequences that begin alike share them: a row
 * that comes for one of them is there for all, and is asked for once.
 * Pure: no I/O, no clock, no memory but its own. Thread: its owner's, the same for all that share pages. Owner:
 * ods_align_new's caller. */
#ifndef ODS_ALIGN_APPLY_H
#define ODS_ALIGN_APPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

#define ODS_MAX_ASKED 64	      /* ranges of a sequence asked for and not answered; none more, when they have */
#define ODS_FULL_RANGES 2	      /* as many positions as so many of the longest */
#define ODS_ASK_AGAIN_NS OD_NS_PER_S /* without an answer: all of them are asked for again */

struct ods_range {
	uint32_t layer, begin, n; /* positions [begin, begin + n) */
};

struct ods_align;

/* max_ask: positions of one range at most. *out is NULL unless OD_OK. */
OD_MUST_CHECK int ods_align_new(struct ods_align **out, uint32_t n_layers, uint32_t ctx, uint32_t max_ask,
				struct od_err *err);
void ods_align_free(struct ods_align *a); /* NULL ok; gives its pages back */
/* Of one sequence without its pages; of a page. */
uint64_t ods_align_bytes(uint32_t n_layers, uint32_t ctx);
uint64_t ods_align_page_bytes(uint32_t n_layers);

/* Memory for positions [0, end): before anything is said of them. False: there is none. */
OD_MUST_CHECK bool ods_align_reserve(struct ods_align *a, uint32_t end);
/* The first n pages of from, which it has, become the first n of a, which has none. */
void ods_align_share(struct ods_align *a, const struct ods_align *from, uint32_t n);
/* Does another sequence have a page with positions from length on? Then they cannot be truncated. */
bool ods_align_shared(const struct ods_align *a, uint32_t length);
/* Pages from the n-th on are left to those that share them: a knows nothing of positions there any more. */
void ods_align_part(struct ods_align *a, uint32_t n);

/* What was due before limit in the first n_layers and did not come will not come by itself any more. A row from limit on that
 * is yet to be computed here stays due: our own will not do. */
void ods_align_settle(struct ods_align *a, uint32_t n_layers, uint32_t limit);
/* A STEP with rows up to end: the true rows of its last n_due positions will come. n_due at most end; nothing is said of
 * positions from end on. After ods_align_settle of all. */
void ods_align_step(struct ods_align *a, uint32_t end, uint32_t n_due);
/* Nothing is known of positions from length on, which are not shared. */
void ods_align_truncate(struct ods_align *a, uint32_t length);
/* Nothing is known of any, of those that are shared neither. */
void ods_align_clear(struct ods_align *a);

/* These true rows are due, and not all there yet, or asked for. Range within n_layers and ctx. */
bool ods_align_expects(const struct ods_align *a, const struct ods_range *r, bool asked);
/* True rows were written. Range within n_layers and what is reserved. */
void ods_align_true(struct ods_align *a, const struct ods_range *r, uint64_t now_ns);
/* An own row was written; ignored where the true one is. */
void ods_align_own(struct ods_align *a, uint32_t layer, uint32_t position);

bool ods_align_is_true(const struct ods_align *a, uint32_t layer, uint32_t position);
/* Everything before position is settled, or held and position is itself due: a row there may visit this layer. */
bool ods_align_ready(struct ods_align *a, uint32_t layer, uint32_t position);
/* The first position that is missing in some layer (neither held nor due), or in this one; limit: none before it is. */
uint32_t ods_align_missing(struct ods_align *a, uint32_t limit);
uint32_t ods_align_missing_in(struct ods_align *a, uint32_t layer, uint32_t limit);

/* The next range to ask for before position, layer by layer, within what is reserved; it then counts as asked for. False:
 * there is none, or enough is asked for. */
bool ods_align_ask(struct ods_align *a, uint32_t position, uint64_t now_ns, struct ods_range *r);
/* After ods_align_deadline nothing counts as asked for any more: the answers were lost. */
void ods_align_expire(struct ods_align *a, uint64_t now_ns);
uint64_t ods_align_asked(const struct ods_align *a); /* positions, of all layers */
uint32_t ods_align_max_ask(const struct ods_align *a);
uint64_t ods_align_deadline(const struct ods_align *a); /* UINT64_MAX: nothing is asked for */

#endif
