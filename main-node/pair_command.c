#include "main-node/pair_command.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/key_files.h"
#include "common/pack/models_folder.h"
#include "common/pair/pair_service.h"
#include "common/pair/pair_words.h"
#include "main-node/pair_child.h"
#include "main-node/pair_host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MINUTES 5
#define UNIT "od-main"
#define HOSTS_NAME "hosts.txt"
#define PAGE "http://127.0.0.1:8080/"
#define STATUS_ARG 2
#define EXIT_BY_SIGNAL 128
#define PORT_TEXT 8
#define MAX_SHOWN 4 /* addresses of this machine */

enum pair_end { PAIR_OPEN, PAIR_TIME, PAIR_ENOUGH, PAIR_ENTER, PAIR_WRONG, PAIR_SIGNAL };

struct pairing {
	uint64_t n_wanted; /* 0: until somebody ends it */
	bool enable, help;
	char words[OD_PAIR_TEXT];
	char hosts[PATH_MAX];
	struct od_key_pair own;
	struct odm_pair_child pack;
	struct odm_pair_host *host;
	int signals; /* a signalfd */
	bool input; /* standard input has not ended */
	enum pair_end end;
	int signal;
	uint64_t n_joined, n_unfinished;
	char wrong_from[ODM_PAIR_TRIES][64];
	unsigned n_wrong;
};

/* ---- what happens ---- */

/* On a terminal od-pack's bar may stand in the line, and draws itself again. */
static void begin_line(struct pairing *p)
{
	if (!odm_pair_child_ended(&p->pack) && isatty(STDOUT_FILENO))
		fputs("\r\033[K", stdout);
}

/* ":5801", or nothing for the usual port. */
static const char *port_text(const struct od_host *h, char text[PORT_TEXT])
{
	const uint16_t usual = h->role == OD_NODE_WORKER ? OD_DEFAULT_WORKER_PORT : OD_DEFAULT_SHADOW_PORT;

	snprintf(text, PORT_TEXT, h->port != usual ? ":%u" : "", (unsigned)h->port);
	return text;
}

static void on_joined(void *arg, const struct od_host *host, const char *name, enum od_member_change change)
{
	static const char *const what[] = {
		[OD_MEMBER_SAME] = "is a member already",
		[OD_MEMBER_ADDED] = "has joined",
		[OD_MEMBER_NEW_KEY] = "has joined with a new key: its line was replaced",
		[OD_MEMBER_NEW_ADDRESS] = "has joined from a new address: its line was replaced",
	};
	struct pairing *p = arg;
	char port[PORT_TEXT];

	p->n_joined++;
	begin_line(p);
	printf("%s %s%s (%s) %s\n", od_node_names[host->role], host->host, port_text(host, port), name, what[change]);
	fflush(stdout);
	if (p->n_wanted > 0 && p->n_joined >= p->n_wanted)
		p->end = PAIR_ENOUGH;
}

static void on_wrong(void *arg, const char *address, unsigned left)
{
	struct pairing *p = arg;

	if (p->n_wrong < ODM_PAIR_TRIES)
		snprintf(p->wrong_from[p->n_wrong++], sizeof(p->wrong_from[0]), "%s", address);
	od_log(OD_LOG_WARN, "wrong words from %s: %u more tr%s", address, left, left == 1 ? "y" : "ies");
	if (left == 0)
		p->end = PAIR_WRONG;
}

/* Somebody who has the words and hides is named, too. */
static void on_unfinished(void *arg, const struct od_host *host, const char *name)
{
	const struct pairing *p = arg;
	char port[PORT_TEXT];

	od_log(OD_LOG_WARN,
	       "%s %s%s (%s) stands in %s now, but has not said that it has joined: let it join again, or remove its line",
	       od_node_names[host->role], host->host, port_text(host, port), name, p->hosts);
}

static void on_refused(void *arg, const char *address, const char *why)
{
	(void)arg;
	od_log(OD_LOG_ERROR, "%s cannot join: %s", address, why);
}

/* ---- the beginning ---- */

static int parse(struct pairing *p, int argc, char **argv, struct od_err *err)
{
	const char *model = NULL;
	size_t n_given;
	const struct od_arg table[] = {
		{ "hosts", OD_ARG_UINT, &p->n_wanted, "N", "end when N hosts have joined (default: after five minutes)",
		  1, OD_MAX_HOSTS, NULL },
		{ "enable", OD_ARG_FLAG, &p->enable, NULL,
		  "then turn the service od-main on: systemctl enable, and start it", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &p->help, NULL, "print this text", 0, 0, NULL },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n, argc, argv, &model, 1, &n_given, err);

	if (rc != OD_OK)
		return rc;
	if (!p->help)
		return odm_pair_child_find(&p->pack, model, err);
	printf("Usage: od-main pair [--hosts N] [--enable] [MODEL]\n"
	       "Shows six words; od-worker join and od-shadow join with these words make a machine a member of\n"
	       "this main's cluster: keys are exchanged, and hosts.txt is written. Ends after five minutes, with N\n"
	       "hosts, at Enter, or after three attempts with wrong words. MODEL (hf://org/name, for example) is\n"
	       "fetched meanwhile by od-pack.\n");
	od_args_help(stdout, table, n);
	return OD_OK;
}

/* *n_workers: of the hosts file, which need not exist. */
static int count_workers(const struct pairing *p, size_t *n_workers, struct od_err *err)
{
	struct od_hosts all = { 0 };
	size_t len = 0;
	char *text = NULL;
	int rc;

	*n_workers = 0;
	if (!od_file_there(p->hosts))
		return OD_OK;
	rc = od_file_read_text(p->hosts, 1u << 20, &text, &len, err);
	if (rc == OD_OK)
		rc = od_hosts_parse_some(&all, text, len, p->hosts, err);
	for (size_t i = 0; rc == OD_OK && i < all.n; i++)
		*n_workers += all.host[i].role == OD_NODE_WORKER;
	od_hosts_fini(&all);
	free(text);
	return rc;
}

static int catch_signals(struct pairing *p, struct od_err *err)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is treated like a full disk */
	signal(SIGTTIN, SIG_IGN); /* in the background a terminal has no input */
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	p->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return p->signals >= 0 ? OD_OK : od_fail_errno(err, OD_ERR_IO, "cannot create a signalfd");
}

static int prepare(struct pairing *p, struct od_err *err)
{
	const struct odm_pair_host_ops ops = { on_joined, on_wrong, on_refused };
	struct odm_pair_host_opts opts = { .words = p->words, .hosts_path = p->hosts, .ops = ops, .arg = p };
	bool new_own = false;
	size_t n;
	int rc = p->enable ? od_pair_service_check(UNIT, err) : OD_OK;

	if (rc == OD_OK)
		rc = od_key_files_check(err);
	if (rc == OD_OK)
		rc = od_keys_path(p->hosts, HOSTS_NAME, err);
	if (rc == OD_OK)
		rc = count_workers(p, &n, err);
	if (rc == OD_OK)
		rc = od_key_files_load(&p->own, &new_own, err);
	if (rc == OD_OK)
		rc = od_pair_words_draw(p->words, err);
	memcpy(opts.key, p->own.public_key, OD_KEY_BYTES);
	if (rc == OD_OK)
		rc = odm_pair_host_open(&p->host, &opts, err);
	if (rc == OD_OK)
		rc = od_key_files_keep(&p->own, new_own, err);
	return rc == OD_OK ? catch_signals(p, err) : rc;
}

/* IPv4 only: what somebody would type. A network without a carrier leads to nobody, such as a bridge for containers
 * while none runs. */
static void print_addresses(void)
{
	struct ifaddrs *list = NULL;
	char text[INET_ADDRSTRLEN];
	unsigned n = 0;

	if (getifaddrs(&list) != 0)
		return;
	for (const struct ifaddrs *i = list; i != NULL && n < MAX_SHOWN; i = i->ifa_next) {
		if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) != 0 ||
		    (i->ifa_flags & IFF_RUNNING) == 0)
			continue;
		inet_ntop(AF_INET, &((const struct sockaddr_in *)i->ifa_addr)->sin_addr, text, sizeof(text));
		printf(n++ == 0 ? ": %s" : " or %s", text);
	}
	freeifaddrs(list);
}

static void print_words(const struct pairing *p)
{
	const char *sudo = geteuid() == 0 ? "sudo " : "", *enable = geteuid() == 0 ? "--enable " : "";

	printf("For the next five minutes machines join with these words:\n\n"
	       "  on each worker           %sod-worker join %s%s\n"
	       "  on the shadow, if any    %sod-shadow join %s%s\n\n"
	       "A machine that finds no main needs this one's address behind the words",
	       sudo, enable, p->words, sudo, enable, p->words);
	print_addresses();
	if (p->n_wanted > 0)
		printf(".\nThis ends when %llu host%s joined, or at Enter.\n\n", (unsigned long long)p->n_wanted,
		       p->n_wanted == 1 ? " has" : "s have");
	else
		printf(".\nEnter ends this.\n\n");
	fflush(stdout);
}

/* ---- the loop ---- */

static void take_signals(struct pairing *p)
{
	struct signalfd_siginfo s;

	while (read(p->signals, &s, sizeof(s)) == (ssize_t)sizeof(s)) {
		if (s.ssi_signo == SIGCHLD)
			continue;
		p->signal = (int)s.ssi_signo;
		p->end = PAIR_SIGNAL;
	}
}

/* At its end there is no Enter, and the pairing goes on. */
static void take_input(struct pairing *p)
{
	char bytes[256];
	const ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));

	if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
		p->input = false;
	if (n > 0 && memchr(bytes, '\n', (size_t)n) != NULL && p->end == PAIR_OPEN)
		p->end = PAIR_ENTER;
}

/* A model that cannot be had is said at once, and machines may join all the same. */
static void look_at_child(struct pairing *p, bool *said)
{
	struct od_err err;

	if (*said || !odm_pair_child_ended(&p->pack))
		return;
	*said = true;
	if (odm_pair_child_result(&p->pack, &err) != OD_OK)
		od_log(OD_LOG_ERROR, "pair: %s", err.msg);
}

static void let_join(struct pairing *p)
{
	const uint64_t end_ns = od_now_ns() + MINUTES * 60 * OD_NS_PER_S;
	zmq_pollitem_t item[ODM_PAIR_ITEMS + 2];
	bool said = p->pack.model == NULL;

	while (p->end == PAIR_OPEN) {
		const uint64_t now = od_now_ns();

		if (now >= end_ns) {
			p->end = PAIR_TIME;
			break;
		}
		odm_pair_host_items(p->host, item);
		item[ODM_PAIR_ITEMS] = (zmq_pollitem_t){ .fd = p->signals, .events = ZMQ_POLLIN };
		item[ODM_PAIR_ITEMS + 1] = (zmq_pollitem_t){ .fd = STDIN_FILENO, .events = ZMQ_POLLIN };
		if (zmq_poll(item, ODM_PAIR_ITEMS + 1 + p->input, (long)((end_ns - now) / OD_NS_PER_MS) + 1) < 0)
			continue;
		odm_pair_host_take(p->host, item);
		if (item[ODM_PAIR_ITEMS].revents != 0)
			take_signals(p);
		if (p->input && item[ODM_PAIR_ITEMS + 1].revents != 0)
			take_input(p);
		look_at_child(p, &said);
	}
}

static void wait_for_child(struct pairing *p)
{
	zmq_pollitem_t item = { .fd = p->signals, .events = ZMQ_POLLIN };

	if (!odm_pair_child_ended(&p->pack) && p->end != PAIR_SIGNAL)
		printf("od-pack is not yet done with %s\n", p->pack.model);
	fflush(stdout);
	while (p->end != PAIR_SIGNAL && !odm_pair_child_ended(&p->pack)) {
		if (zmq_poll(&item, 1, -1) > 0)
			take_signals(p);
	}
}

/* ---- the end ---- */

static int check_end(const struct pairing *p, struct od_err *err)
{
	if (p->end == PAIR_WRONG)
		return od_fail(
			err, OD_ERR_ARG,
			"ended after %d attempts with wrong words, from %s, %s and %s; words of a new od-main pair "
			"are other ones",
			ODM_PAIR_TRIES, p->wrong_from[0], p->wrong_from[1], p->wrong_from[2]);
	if (p->end == PAIR_TIME && (p->n_wanted > 0 || p->n_joined == 0))
		return od_fail(err, OD_ERR_TIMEOUT,
			       "%llu of %llu hosts have joined in five minutes; for the others, run it again",
			       (unsigned long long)p->n_joined,
			       (unsigned long long)(p->n_wanted > 0 ? p->n_wanted : 1));
	return OD_OK;
}

/* The service finds its model as od_models_find does, or its options name one. */
static void look_for_model(void)
{
	char path[PATH_MAX];
	struct od_err err;

	if (od_models_find(path, NULL, &err) != OD_OK)
		od_log(OD_LOG_WARN,
		       "%s; unless OD_ARGS in " OD_KEYS_DIR "/" UNIT ".conf names one, " UNIT " does not start",
		       err.msg);
}

/* The service does not know of this folder. */
static bool is_elsewhere(void)
{
	const char *keys = getenv("OD_KEYS");

	return keys != NULL && keys[0] != '\0';
}

static bool service_runs(const struct pairing *p)
{
	return (p->enable || !is_elsewhere()) && od_pair_service_runs(UNIT);
}

/* However the pairing has ended: a main that runs reads its hosts again. */
static int tell_service(const struct pairing *p, struct od_err *err)
{
	if (p->n_joined + p->n_unfinished == 0 || !service_runs(p))
		return OD_OK;
	return od_pair_service_turn_on(UNIT, false, "reload", err);
}

/* One that runs knows its hosts by now, and for another model it must start again; one that starts may have read its
 * hosts already. */
static int use(const struct pairing *p, struct od_err *err)
{
	const bool runs = service_runs(p);
	size_t n_workers;
	int rc = count_workers(p, &n_workers, err);

	if (rc != OD_OK)
		return rc;
	if (p->enable && n_workers == 0)
		return od_fail(err, OD_ERR_MISSING,
			       "%s lists no worker, so the service was not started: run od-main pair again", p->hosts);
	if (p->enable) {
		look_for_model();
		rc = od_pair_service_turn_on(UNIT, true, runs && p->pack.model == NULL ? "start" : "restart", err);
		if (rc == OD_OK)
			printf("The service " UNIT " is enabled and starts (journalctl -fu " UNIT "); then open " PAGE
			       "\n");
	} else if (!runs && n_workers > 0) {
		printf("To use them: od-main serve --workers %s%s\n", p->hosts,
		       is_elsewhere() ? "" : ", or systemctl enable --now " UNIT);
	}
	return rc;
}

/* Returns the exit status. */
static int finish(struct pairing *p)
{
	struct od_err err = { 0 }, told;
	int rc = check_end(p, &err);

	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "pair: %s", err.msg);
	if (p->n_joined > 0)
		printf("%llu host%s joined: %s\n", (unsigned long long)p->n_joined, p->n_joined == 1 ? "" : "s",
		       p->hosts);
	if (tell_service(p, &told) != OD_OK)
		od_log(OD_LOG_ERROR, "pair: %s", told.msg);
	wait_for_child(p);
	odm_pair_child_stop(&p->pack);
	if (p->end == PAIR_SIGNAL)
		return EXIT_BY_SIGNAL + p->signal;
	if (rc != OD_OK)
		return 1;
	rc = odm_pair_child_result(&p->pack, &err);
	if (rc == OD_OK)
		rc = use(p, &err);
	if (rc == OD_OK && fflush(stdout) != 0)
		rc = od_fail_errno(&err, OD_ERR_IO, "standard output");
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "pair: %s", err.msg);
	return rc == OD_OK ? 0 : 1;
}

int odm_pair_command(int argc, char **argv)
{
	struct pairing p = { .signals = -1, .input = true };
	struct od_err err = { 0 };
	int status, rc = parse(&p, argc, argv, &err);

	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "pair: %s", err.msg);
	if (rc != OD_OK || p.help)
		return rc == OD_OK ? 0 : STATUS_ARG;
	rc = prepare(&p, &err);
	if (rc == OD_OK)
		print_words(&p);
	if (rc == OD_OK)
		rc = odm_pair_child_start(&p.pack, &err);
	if (rc == OD_OK)
		let_join(&p);
	else
		od_log(OD_LOG_ERROR, "pair: %s", err.msg);
	p.n_unfinished = odm_pair_host_unfinished(p.host, on_unfinished);
	odm_pair_host_close(p.host);
	sodium_memzero(&p.own, sizeof(p.own));
	sodium_memzero(p.words, sizeof(p.words));
	status = rc == OD_OK ? finish(&p) : 1;
	if (p.signals >= 0)
		close(p.signals);
	return status;
}
