/* align_apply.h - bookkeeping of KV alignment (OD-MoE arXiv 2512.03927, section 3.2) for one sequence: which KV rows
 * the shadow holds, their origin, which rows main will send unrequested, and which ones to request.
 *
 * A row is the keys and values of one (layer, position). It is missing, the shadow's own, or main's ("true"). A row is
 * due when a STEP announced that its true row will follow. Due rows are not requested, and later positions wait for
 * them. The step itself (its rows are the last due ones) uses the shadow's own rows where it has them: alignment
 * follows a step. A sequence with drafts uses them in rows ahead of the step too, and waits only for due rows that it
 * does not hold.
 *
 *   settled = true, or own and not due        missing = neither held nor due
 *
 * Main sends STEPs and STATEs in order, and the STATEs of a step layer by layer. A due row is therefore lost when the
 * next STEP, or a STATE of a later layer, arrives first. True rows that are neither due nor requested are stale. Layers
 * with fixed state are aligned by tokens: the shadow runs every row once, and none of them is due. A layer without rows
 * of its own (it attends to those of an earlier layer) has nothing to align. The map uses pages of OD_KV_PAGE
 * positions, like the rows. Sequences with a common prefix share pages: a row that arrives for one sequence is there
 * for all and is requested once.
 * Pure: no I/O and no clock; allocates only its own memory. Thread: the owner's; sequences that share pages use one
 * thread.
 * Owner: ods_align_new's caller. */
#ifndef ODS_ALIGN_APPLY_H
#define ODS_ALIGN_APPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

#define ODS_MAX_ASKED 64 /* open requests (ranges) of a sequence */
/* and no new request while the open ones have this many times max_ask positions */
#define ODS_FULL_RANGES 2
#define ODS_ASK_AGAIN_NS OD_NS_PER_S /* without an answer for this long, all open ranges are requested again */

struct ods_range {
	uint32_t layer, begin, n; /* positions [begin, begin + n) */
};

struct ods_align;

/* max_ask: maximum positions of one requested range. *out is NULL unless OD_OK. */
OD_MUST_CHECK int ods_align_new(struct ods_align **out, uint32_t n_layers, uint32_t ctx, uint32_t max_ask,
				struct od_err *err);
void ods_align_free(struct ods_align *a); /* NULL ok; releases its pages */
/* Memory of one sequence without its pages, and of one page. */
uint64_t ods_align_bytes(uint32_t n_layers, uint32_t ctx);
uint64_t ods_align_page_bytes(uint32_t n_layers);

/* Allocates the pages of positions [0, end); call it before any other call about them. False: out of memory. */
OD_MUST_CHECK bool ods_align_reserve(struct ods_align *a, uint32_t end);
/* a, which has no pages, shares the first n pages of from, which has at least n. */
void ods_align_share(struct ods_align *a, const struct ods_align *from, uint32_t n);
/* True: another sequence shares a page with positions from length on, so they cannot be truncated. */
bool ods_align_shared(const struct ods_align *a, uint32_t length);
/* Releases pages n and later to the sequences that share them. a has no information about those positions any more. */
void ods_align_unshare(struct ods_align *a, uint32_t n);

/* A layer with fixed state has no rows that main could send. It holds what the shadow has run, from position 0 on, with
 * the right tokens: [0, end). With such a layer, own rows of other layers stay when the true ones were lost. */
void ods_align_set_fixed(struct ods_align *a, uint32_t layer);
void ods_align_run(struct ods_align *a, uint32_t end);
/* A layer without rows: none is missing, due or requested. */
void ods_align_set_empty(struct ods_align *a, uint32_t layer);

/* Rows before limit in the first n_layers that are due and have not arrived are lost: they are not due any more. Rows
 * from limit on stay due; the shadow must not replace them with its own. */
void ods_align_settle(struct ods_align *a, uint32_t n_layers, uint32_t limit);
/* A STEP with rows up to end: the true rows of its last n_due positions will arrive. n_due is at most end; positions
 * from end on do not change. Call ods_align_settle for all layers and positions first. */
void ods_align_step(struct ods_align *a, uint32_t end, uint32_t n_due);
/* Rows of positions from length on become missing. These positions are not shared. */
void ods_align_truncate(struct ods_align *a, uint32_t length);
/* All rows become missing, shared ones too. */
void ods_align_clear(struct ods_align *a);

/* asked false: the range is due and not complete yet. asked true: it was requested. Range within n_layers and ctx. */
bool ods_align_expects(const struct ods_align *a, const struct ods_range *r, bool asked);
/* True rows were written. Range within n_layers and what is reserved. */
void ods_align_true(struct ods_align *a, const struct ods_range *r, uint64_t now_ns);
/* The shadow's own row was written; ignored where the true row is already there. */
void ods_align_own(struct ods_align *a, uint32_t layer, uint32_t position);

bool ods_align_is_true(const struct ods_align *a, uint32_t layer, uint32_t position);
/* True: a row at position may run in this layer. All earlier positions are settled, or they are held and position
 * itself is before the end of the due rows. */
bool ods_align_ready(struct ods_align *a, uint32_t layer, uint32_t position);
/* ods_align_ready for a sequence with drafts: all earlier positions are held, due or not. */
bool ods_align_held(struct ods_align *a, uint32_t layer, uint32_t position);
/* The first missing position before limit in any layer, or in this one; limit: none. */
uint32_t ods_align_missing(struct ods_align *a, uint32_t limit);
uint32_t ods_align_missing_in(struct ods_align *a, uint32_t layer, uint32_t limit);

/* The next missing range to request before position, lowest layer first, within the reserved positions. It is then
 * marked as requested. False: there is none, or too many requests are open. */
bool ods_align_ask(struct ods_align *a, uint32_t position, uint64_t now_ns, struct ods_range *r);
/* After ods_align_deadline: drops all open requests, because the answers were lost. */
void ods_align_expire(struct ods_align *a, uint64_t now_ns);
uint64_t ods_align_asked(const struct ods_align *a); /* positions in open requests, summed over layers */
uint32_t ods_align_max_ask(const struct ods_align *a);
uint64_t ods_align_deadline(const struct ods_align *a); /* UINT64_MAX: no open request */

#endif
