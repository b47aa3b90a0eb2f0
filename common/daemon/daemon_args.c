#include "common/daemon/daemon_args.h"

#include "common/base/descriptors.h"
#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/base/pool.h"
#include "common/base/trace.h"
#include "common/base/version.h"
#include "common/compute/backend.h"
#include "common/compute/open_device.h"
#include "common/daemon/daemon.h"
#include "common/net/endpoint.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define NO_FD UINT64_MAX
#define MAX_OWN 24
#define EVERYWHERE "0.0.0.0"

static size_t append(struct od_arg *table, size_t n, const struct od_arg *more, size_t n_more)
{
	memcpy(table + n, more, n_more * sizeof(*more));
	return n + n_more;
}

/* An address alone: "10.0.0.9", "[::1]", "*". */
static int check_listen(struct od_daemon_args *a, struct od_err *err)
{
	if (a->listen == NULL)
		return OD_OK;
	if (strcmp(a->listen, "*") == 0) {
		a->listen = EVERYWHERE;
		return OD_OK;
	}
	if (od_host_parse(&a->listen_host, a->listen, 0, err) != OD_OK)
		return od_fail_within(
			err, "--listen: expected an address of this machine, such as 127.0.0.1 or " EVERYWHERE);
	if (a->listen_host.port != 0)
		return od_fail(err, OD_ERR_ARG,
			       "--listen %s: expected an address without a port; set the port with --port", a->listen);
	a->listen = a->listen_host.host;
	return OD_OK;
}

static int parse(struct od_daemon_args *a, const struct od_daemon_about *about, int argc, char **argv,
		 struct od_err *err)
{
	char port_help[64];
	const struct od_arg first[] = {
		{ .kind = OD_ARG_TITLE, .help = "The model, and who may connect" },
		{ "pack", OD_ARG_STRING, &a->pack, "MODEL", "the model: a pack, a GGUF file, or a name of od-pack list (default: $OD_PACK, else /var/lib/od-moe/pack, else the only model of that list)", 0, 0, NULL },
		{ "listen", OD_ARG_STRING, &a->listen, "ADDR", "address to listen on (default: loopback; with keys or --insecure: every one)", 0, 0, NULL },
		{ "port", OD_ARG_UINT, &a->port, "N", port_help, 0, 65535, NULL },
		{ "data-port", OD_ARG_UINT, &a->data_port, "N", "data port, announced to main; 0: any free one (default: 0)", 0, 65535, NULL },
		{ "key", OD_ARG_STRING, &a->keys.key, "FILE", "this node's secret key (default, beyond loopback: $OD_KEYS/node.key, else /etc/od-moe/node.key)", 0, 0, NULL },
		{ "peers", OD_ARG_STRING, &a->keys.peers, "FILE", "public keys that may connect, one a line: od-main's; SIGHUP: reread (default: peers beside node.key)", 0, 0, NULL },
		{ "insecure", OD_ARG_FLAG, &a->keys.insecure, NULL, "no keys: anybody may connect, traffic is not encrypted", 0, 0, NULL },
	}, last[] = {
		{ .kind = OD_ARG_TITLE, .help = "Compute" },
		{ "threads", OD_ARG_UINT, &a->threads, "N", "compute threads (default: one per CPU)", 1, 1024, NULL },
		{ "device", OD_ARG_STRING, &a->device, "NAME", OD_DEVICE_HELP, 0, 0, NULL },
		{ "cpu", OD_ARG_CHOICE, &a->cpu, "NAME", "kernels: scalar, avx2, avx512, avx512bf16 or neon (default: auto)", 0, 0, od_cpu_names },
		{ .kind = OD_ARG_TITLE, .help = "Process and logs" },
		{ "ready-fd", OD_ARG_UINT, &a->ready_fd, "FD", "once it listens, write the control port and a newline to FD", 0, 1e6, NULL },
		{ "die-with-parent", OD_ARG_UINT, &a->parent, "PID", "exit when the parent process, PID, does", 1, INT_MAX, NULL },
		{ "trace", OD_ARG_STRING, &a->trace, "FILE", "write a Chrome trace (JSON)", 0, 0, NULL },
		{ "quiet", OD_ARG_FLAG, &a->quiet, NULL, "log only warnings and errors", 0, 0, NULL },
		{ "verbose", OD_ARG_FLAG, &a->verbose, NULL, "log more", 0, 0, NULL },
		{ "log-format", OD_ARG_CHOICE, &a->log_format, "FORM", OD_LOG_FORMAT_HELP, 0, 0, od_log_format_names },
		{ "help", OD_ARG_FLAG, &a->help, NULL, "print this text", 0, 0, NULL },
		{ "version", OD_ARG_FLAG, &a->version, NULL, "print the version", 0, 0, NULL },
	};
	struct od_arg table[sizeof(first) / sizeof(first[0]) + MAX_OWN + sizeof(last) / sizeof(last[0])];
	size_t n_positional, n = append(table, 0, first, sizeof(first) / sizeof(first[0]));
	int rc;

	snprintf(port_help, sizeof(port_help), "control port; 0: any free one (default: %u)", about->port);
	if (about->n_own > MAX_OWN)
		return od_fail(err, OD_ERR_INTERNAL, "too many options");
	n = append(table, n, about->own, about->n_own);
	n = append(table, n, last, sizeof(last) / sizeof(last[0]));
	rc = od_args_parse(table, n, argc, argv, NULL, 0, &n_positional, err);
	if (rc == OD_OK && a->help) {
		fputs(about->usage, stdout);
		od_args_help(stdout, table, n);
	}
	if (rc == OD_OK)
		rc = check_listen(a, err);
	return rc == OD_OK ? od_device_check(a->device, err) : rc;
}

/* Until the daemon serves, nothing needs an orderly end: what a spool lacks is pulled at the next start. */
static void end_start(int number)
{
	(void)number;
	_exit(0);
}

int od_daemon_args_begin(struct od_daemon_args *a, const struct od_daemon_about *about, int argc, char **argv,
			 bool *done, struct od_err *err)
{
	const struct sigaction end = { .sa_handler = end_start };
	int rc;

	*a = (struct od_daemon_args){ .port = about->port,
				      .threads = od_cpu_count(),
				      .ready_fd = NO_FD,
				      .cpu = OD_CPU_AUTO,
				      .log_format = OD_LOG_AUTO };
	od_log_init(argv[0], OD_LOG_INFO);
	rc = parse(a, about, argc, argv, err);
	od_log_set_format(a->log_format);
	a->parsed = rc == OD_OK;
	*done = rc == OD_OK && (a->help || a->version);
	if (rc != OD_OK || a->help)
		return rc;
	if (a->version) {
		printf("od-%s %s\n", about->role, OD_VERSION);
		return OD_OK;
	}
	od_log_init(argv[0], a->verbose ? OD_LOG_DEBUG : a->quiet ? OD_LOG_WARN : OD_LOG_INFO);
	od_descriptors_raise();
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGINT, &end, NULL); /* these two until the daemon's loop listens to them */
	sigaction(SIGTERM, &end, NULL);
	if (a->parent != 0) {
		signal(SIGTTOU,
		       SIG_IGN); /* a child is a background job: with "stty tostop" its first message would stop it */
		od_notify_off();
		rc = od_tie_to_parent((pid_t)a->parent, err);
		if (rc != OD_OK)
			return rc;
	}
	return a->trace == NULL ? OD_OK : od_trace_open(a->trace, about->role, err);
}

int od_daemon_args_keys(const struct od_daemon_args *a, const char *far, struct od_keys **out, struct od_err *err)
{
	char why[400];
	int rc;

	if (far == NULL)
		snprintf(why, sizeof(why), "--listen %s is not a loopback address", a->listen != NULL ? a->listen : "");
	else
		snprintf(why, sizeof(why), "%s is not a loopback address", far);
	rc = od_keys_open(out, &a->keys, far != NULL || (a->listen != NULL && !od_is_loopback(a->listen)) ? why : NULL,
			  true, err);
	od_hangup_begin(*out != NULL || od_notify_on());
	return rc;
}

void od_daemon_args_fill(const struct od_daemon_args *a, const struct od_daemon_about *about,
			 const struct od_keys *keys, struct od_daemon_opts *opts)
{
	*opts = (struct od_daemon_opts){
		.role = about->role,
		.listen = a->listen,
		.insecure = a->keys.insecure,
		.keys = keys,
		.port = (uint16_t)a->port,
		.data_port = (uint16_t)a->data_port,
		.ready_fd = a->ready_fd == NO_FD ? -1 : (int)a->ready_fd,
		.parent = (pid_t)a->parent,
	};
}

const char *od_daemon_args_where(const struct od_daemon_args *a, const struct od_keys *keys, char *buf, size_t size)
{
	const char *where = a->listen != NULL		     ? a->listen :
			    a->keys.insecure || keys != NULL ? "every address" :
							       "loopback";
	char key[OD_KEY_CHARS + 1];

	if (keys == NULL)
		snprintf(buf, size, "%s", where);
	else
		snprintf(buf, size, "%s with key %s", where, od_key_text(keys->own.public_key, key));
	return buf;
}

int od_daemon_args_end(const struct od_daemon_args *a, int rc, const struct od_err *err)
{
	struct od_err trace_err;

	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err->msg);
	if (od_trace_close(&trace_err) != OD_OK)
		od_log(OD_LOG_ERROR, "%s", trace_err.msg);
	if (rc == OD_OK)
		return 0;
	return a->parsed ? 1 : 2;
}
