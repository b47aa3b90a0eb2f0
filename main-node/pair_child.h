/* pair_child.h - od-pack MODEL, which fetches a model while machines join.
 *
 * Thread: main(), which has blocked SIGCHLD. Owner: the caller stops it. */
#ifndef ODM_PAIR_CHILD_H
#define ODM_PAIR_CHILD_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/base/status.h"

struct odm_pair_child {
	char program[PATH_MAX];
	const char *model; /* NULL: nothing is fetched */
	pid_t pid; /* 0: it does not run */
	int status; /* as waitpid has it, once it has ended */
};

/* Whether there is od-pack. */
OD_MUST_CHECK int odm_pair_child_find(struct odm_pair_child *c, const char *model, struct od_err *err);
/* Its output goes to this process's. */
OD_MUST_CHECK int odm_pair_child_start(struct odm_pair_child *c, struct od_err *err);
/* Whether it has ended, or was never started. */
bool odm_pair_child_ended(struct odm_pair_child *c);
/* OD_OK: the model is there. */
OD_MUST_CHECK int odm_pair_child_result(const struct odm_pair_child *c, struct od_err *err);
void odm_pair_child_stop(struct odm_pair_child *c);

#endif
