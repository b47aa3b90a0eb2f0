/* trace.h - spans of a process's work as Chrome trace JSON (chrome://tracing, ui.perfetto.dev): the timing diagram of
 * OD-MoE Fig. 2 from a live run.
 *
 * Times are CLOCK_MONOTONIC, so the traces of all processes on one machine share a time axis. One trace per process.
 * Thread: any (a mutex inside); od_trace_open before other threads start, od_trace_close after they ended.
 * A span costs a branch while no trace is open. */
#ifndef OD_BASE_TRACE_H
#define OD_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

extern bool od_trace_on; /* read only */

/* process: its name in the viewer, "worker 40123". */
OD_MUST_CHECK int od_trace_open(const char *path, const char *process, struct od_err *err);
/* Completes the file. OD_ERR_IO when a part of it could not be written. */
int od_trace_close(struct od_err *err);

/* Records that the calling thread did `what` from begin_ns to now, for (step, m, expert); -1 omits one of them. `what`
 * is a literal without characters that JSON would escape. What the thread works on (od_log_swap_about) is recorded,
 * too. */
void od_trace_span(const char *what, uint64_t begin_ns, int64_t step, int64_t m, int64_t expert);

/* A process of a simulation, which has a clock and numbers of its own: its names in the viewer, each once, then its
 * spans. */
void od_trace_name(int pid, int tid, const char *process, const char *thread);
void od_trace_add(const char *what, uint64_t begin_ns, uint64_t end_ns, int pid, int tid, int64_t step, int64_t m,
		  int64_t expert);

/* Begins a span: the current time when a trace is open, else 0. */
static inline uint64_t od_trace_begin(void)
{
	return od_trace_on ? od_now_ns() : 0;
}

static inline void od_trace_end(const char *what, uint64_t begin_ns, int64_t step, int64_t m, int64_t expert)
{
	if (od_trace_on && begin_ns != 0)
		od_trace_span(what, begin_ns, step, m, expert);
}

/* Appends the events of another process's trace file, which is not changed. If that process was killed, its last event
 * may be incomplete and is left out. Does nothing while no trace is open. */
OD_MUST_CHECK int od_trace_merge(const char *path, struct od_err *err);

#endif
