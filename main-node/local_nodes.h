/* local_nodes.h - --local N: a shadow and N workers as child processes on loopback, on free ports, dying with main.
 * The same daemons and the same protocol as on other hosts.
 *
 * Thread: main's, before the loop thread starts (children die with the thread that made them). */
#ifndef ODM_LOCAL_NODES_H
#define ODM_LOCAL_NODES_H

#include <stdbool.h>

#include "common/net/hosts.h"

struct odm_local_opts {
	const char *pack;   /* NULL: the children find it themselves */
	uint32_t n_workers;
	bool shadow;
	const char *precision; /* of the shadow, like the next two; NULL: its default */
	const char *dense_precision, *activations;
	const char *departure;
	const char *cpu;	  /* --cpu for all */
	const char *form;	  /* of the workers' experts (--resident-form); NULL: their default */
	uint64_t slots;		  /* 0: from the memory limit */
	double load_time_ms, run_time_ms; /* of the workers; 0: as fast as they go */
	uint64_t cache_mib; /* of the workers; 0: none */
	const char *cache_policy;
	uint64_t memory_limit_bytes; /* 0: the workers' default */
	uint64_t threads;	  /* compute threads of each child */
	const char *trace;	  /* NULL, or each child writes TRACE.0, TRACE.1, ... (od_trace) */
};

struct odm_local;

/* Starts them and waits until each listens. *hosts is filled (od_hosts_fini it). */
OD_MUST_CHECK int odm_local_start(struct odm_local **out, const struct odm_local_opts *opts, struct od_hosts *hosts,
				  struct od_err *err);
/* Where child number index (the shadow is 0 if there is one) writes its trace. */
void odm_local_trace_path(const char *trace, size_t index, char *buf, size_t size);
void odm_local_stop(struct odm_local *l); /* SIGTERM, then waits; NULL ok */

#endif
