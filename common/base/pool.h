/* pool.h - a fork-join team of threads for arithmetic.
 *
 * The owner calls od_pool_for, which works too and returns when all work is done; so the body may use the caller's
 * stack. Work is cut into pieces of whole items; a sum is never split, so results do not depend on the number of
 * threads.
 * Thread: od_pool_for from one thread at a time. Not for I/O or anything that blocks. */
#ifndef OD_BASE_POOL_H
#define OD_BASE_POOL_H

#include <stddef.h>

#include "common/base/status.h"

struct od_pool;

/* Work on items [begin, end); thread is 0..n_threads-1, for per-thread scratch. */
typedef void od_pool_fn(void *arg, size_t begin, size_t end, unsigned thread);

/* n_threads counts the caller: 1 starts no thread. name shows in ps and debuggers (at most 12 characters). */
OD_MUST_CHECK int od_pool_new(struct od_pool **out, unsigned n_threads, const char *name, struct od_err *err);
void od_pool_free(struct od_pool *p); /* stops and joins; NULL ok */

/* Runs fn over [0, n) in pieces of at least grain items (1 or more). With p NULL the caller runs all of it. */
void od_pool_for(struct od_pool *p, size_t n, size_t grain, od_pool_fn *fn, void *arg);
unsigned od_pool_threads(const struct od_pool *p); /* 1 for NULL */

/* The number of CPUs that this process may run on: the default of --threads. */
unsigned od_cpu_count(void);

#endif
