/* daemon_args.h - the command line that od-worker and od-shadow share: who may connect, how to compute, what a parent or
 * a service manager wants.
 *
 * Thread: main(), before others exist. Owner: strings point into argv. */
#ifndef OD_NET_DAEMON_ARGS_H
#define OD_NET_DAEMON_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/args.h"

struct od_daemon_opts;

struct od_daemon_args {
	const char *pack, *listen, *trace;
	uint64_t port, data_port, threads, ready_fd;
	int cpu; /* enum od_cpu */
	bool insecure, die_with_parent, quiet, verbose, help, version;
	bool parsed; /* the command line was good */
};

/* What differs between the programs. */
struct od_daemon_about {
	const char *role;  /* "worker": the program is od-worker */
	const char *usage; /* for --help: usage line and what it does */
	uint16_t port;	   /* the default control port */
	const struct od_arg *own; /* options of its own, shown in the middle */
	size_t n_own;
};

/* Parses, answers --help and --version (*done: nothing is left to do), sets the log level, opens the trace. */
OD_MUST_CHECK int od_daemon_args_begin(struct od_daemon_args *a, const struct od_daemon_about *about, int argc,
				       char **argv, bool *done, struct od_err *err);
/* What od_daemon_new needs; the fingerprint is the caller's. */
void od_daemon_args_fill(const struct od_daemon_args *a, const struct od_daemon_about *about,
			 struct od_daemon_opts *opts);
/* "loopback", "every address" or the address, for a log line. */
const char *od_daemon_args_where(const struct od_daemon_args *a);
/* After everything else has ended: completes the trace, logs err if rc is one. Returns the exit status: 2 for a wrong
 * command line, 1 for any other error. */
int od_daemon_args_end(const struct od_daemon_args *a, int rc, const struct od_err *err);

#endif
