/* child_args.h - turns od-bench's own options into arguments for the child processes of --local.
 *
 * Thread: main(). Owner: the caller; lists point into it until the engine is open. */
#ifndef OD_BENCH_CHILD_ARGS_H
#define OD_BENCH_CHILD_ARGS_H

#include "common/base/args.h"

#define CHILD_ARGS_MAX 8

extern const char *const child_departure_names[]; /* od-shadow's: "late", "early", NULL */

struct child_args {
	char text[CHILD_ARGS_MAX][48];
	size_t n;
};

/* Appends one argument to the list, for example "--slots=2"; at most CHILD_ARGS_MAX. */
void child_args_add(struct child_args *a, struct od_arg_list *to, const char *fmt, ...) OD_PRINTF(3, 4);

#endif
