/* local_nodes.h - --local N: a shadow and N workers as child processes on loopback, on free ports, dying with main.
 * The same daemons and the same protocol as on other hosts.
 *
 * Thread: main's, before the loop thread starts (children die with the thread that made them). */
#ifndef ODM_LOCAL_NODES_H
#define ODM_LOCAL_NODES_H

#include "common/net/hosts.h"
#include "main-node/engine/engine.h"

struct odm_local;

/* OD_ERR_ARG for an argument that main itself gives its children, so that it can start and reach them. All others are
 * checked by the child. option: "worker-arg" or "shadow-arg", for the message. */
OD_MUST_CHECK int odm_local_check_args(const char *option, const struct od_arg_list *args, struct od_err *err);

/* Starts them and waits until each listens. *hosts is filled (od_hosts_fini it). If one ends instead, err says which and
 * how, and the others are stopped at once. */
OD_MUST_CHECK int odm_local_start(struct odm_local **out, const struct odm_engine_opts *opts, struct od_hosts *hosts,
				  struct od_err *err);
/* Where child number index (the shadow is 0 if there is one) writes its trace. */
void odm_local_trace_path(const char *trace, size_t index, char *buf, size_t size);
void odm_local_stop(struct odm_local *l); /* SIGTERM, then waits; NULL ok */

#endif
