/* daemon_args.h - the options that od-worker and od-shadow share: addresses and ports, compute threads, process and
 * logs.
 *
 * Thread: main(), before others exist. Owner: strings point into argv. */
#ifndef OD_NET_DAEMON_ARGS_H
#define OD_NET_DAEMON_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/args.h"
#include "common/net/hosts.h"
#include "common/net/keys.h"

struct od_daemon_opts;

struct od_daemon_args {
	const char *pack, *listen, *trace;
	uint64_t port, data_port, threads, ready_fd, parent;
	struct od_host listen_host; /* where listen points once it was parsed */
	const char *device; /* NULL: od_device_open's default */
	int cpu; /* enum od_cpu */
	int log_format; /* enum od_log_format or OD_LOG_AUTO */
	struct od_keys_args keys;
	bool quiet, verbose, help, version;
	bool parsed; /* the command line was valid */
};

/* Differences between the programs. */
struct od_daemon_about {
	const char *role; /* "worker": the program is od-worker */
	const char *usage; /* for --help: usage line and description */
	uint16_t port; /* the default control port */
	const struct od_arg *own; /* the program's own options, listed between the shared ones */
	size_t n_own;
};

/* Parses the command line, prints --help or --version (*done: the program is to exit), sets the log's level and format,
 * opens the trace. */
OD_MUST_CHECK int od_daemon_args_begin(struct od_daemon_args *a, const struct od_daemon_about *about, int argc,
				       char **argv, bool *done, struct od_err *err);
/* The keys that the options ask for, before anything is loaded; *out NULL: none. Ends od_hangup_hold. far: another
 * option with an address beyond loopback, "--store 10.0.0.1"; NULL: there is none. */
OD_MUST_CHECK int od_daemon_args_keys(const struct od_daemon_args *a, const char *far, struct od_keys **out,
				      struct od_err *err);
/* Fills the options of od_daemon_new; the caller adds the fingerprint. */
void od_daemon_args_fill(const struct od_daemon_args *a, const struct od_daemon_about *about,
			 const struct od_keys *keys, struct od_daemon_opts *opts);
/* "loopback", "every address" or the address, and whether with keys, for a log line. */
const char *od_daemon_args_where(const struct od_daemon_args *a, const struct od_keys *keys, char *buf, size_t size);
/* Call it last: completes the trace and logs err if rc is an error. Returns the exit status: 2 for a wrong command
 * line, 1 for any other error. */
int od_daemon_args_end(const struct od_daemon_args *a, int rc, const struct od_err *err);

#endif
