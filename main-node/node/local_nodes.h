/* local_nodes.h - --local N: starts a shadow and N workers as child processes on free loopback ports. They are the same
 * daemons with the same protocol as on other hosts, and exit with main.
 *
 * Thread: main's, before the loop thread starts (PR_SET_PDEATHSIG is tied to the thread that forks), and after it has
 * ended; between these odm_local_ended. Owner: the main node. */
#ifndef ODM_LOCAL_NODES_H
#define ODM_LOCAL_NODES_H

#include "common/net/hosts.h"
#include "main-node/node/main_opts.h"

struct odm_local;

/* OD_ERR_ARG for an argument that main itself passes to its children to start and reach them. The child checks all
 * others. option: "worker-arg" or "shadow-arg", for the message. */
OD_MUST_CHECK int odm_local_check_args(const char *option, const struct od_arg_list *args, struct od_err *err);

/* Starts the children, waits until each listens, and fills *hosts (for od_hosts_fini). If a child exits instead, err
 * names it and its exit status, and the others are stopped. */
OD_MUST_CHECK int odm_local_start(struct odm_local **out, const struct odm_main_opts *opts, struct od_hosts *hosts,
				  struct od_err *err);
/* For odm_cluster_opts.ended; arg: the children. */
bool odm_local_ended(void *arg, const struct od_host *host, char *why, size_t size);
/* The trace file of child number index (the shadow, if any, is 0). */
void odm_local_trace_path(const char *trace, size_t index, char *buf, size_t size);
void odm_local_stop(struct odm_local *l); /* SIGTERM, then waits; NULL ok */

#endif
