/* row_source.h - the workers whose outputs the rows of a step were made of. When main's own rows cannot be computed
 * with, they are named, and not the worker that would have got the rows.
 *
 * Thread: the engine thread. Owner: the caller. */
#ifndef ODM_ROW_SOURCE_H
#define ODM_ROW_SOURCE_H

#include "main-node/cluster/members.h"

struct odm_row_source {
	bool from[OD_MAX_HOSTS]; /* by member's id: it has answered in this step */
};

void odm_row_source_begin(struct odm_row_source *s);
void odm_row_source_add(struct odm_row_source *s, uint32_t member);
/* Before rows [n_rows][hidden] of MoE layer m are sent. OD_ERR_CORRUPT: odm_all_plausible says no. */
OD_MUST_CHECK int odm_row_source_check(const struct odm_row_source *s, struct odm_members *ms, uint32_t m,
				       const float *rows, size_t n_rows, size_t hidden, struct od_err *err);

#endif
