/* sum_reports.h - reports to main what this worker's copy of a GGUF file is, expert by expert, as soon as it has been
 * read: main compares it with its own (main-node/cluster/copy_check.h).
 *
 * Thread: the loop thread. Owner: the caller; the pack is borrowed. */
#ifndef ODW_SUM_REPORTS_H
#define ODW_SUM_REPORTS_H

#include "common/net/wire.h"
#include "common/pack/pack.h"

struct odw_sum_reports;

/* *out NULL: the pack has checksums in its index, and nothing is reported. */
OD_MUST_CHECK int odw_sum_reports_new(struct odw_sum_reports **out, const struct od_pack *pack, struct od_err *err);
void odw_sum_reports_free(struct odw_sum_reports *r); /* NULL ok */
/* All are to be reported again: to another main, or because a PONG may be lost. */
void odw_sum_reports_restart(struct odw_sum_reports *r); /* NULL ok */
/* Adds some that have not been reported, if there are any. They stay valid until the next call. */
void odw_sum_reports_fill(struct odw_sum_reports *r, Od__Pong *p); /* NULL ok */

#endif
