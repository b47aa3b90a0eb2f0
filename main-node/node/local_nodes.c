#include "main-node/node/local_nodes.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/pack/load/expert_form.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_FD 3
#define READY_FD_TEXT "3"
#define OWN_ARGS 22 /* arguments that main gives a child itself */
#define STOP_WAIT_MS 3000 /* for all of them */
#define PAUSE_MS 5

extern char **environ;

struct odm_local {
	const struct odm_main_opts *o; /* while they start */
	pid_t *pid; /* [n]; 0: it has ended */
	size_t n;
	bool shadow; /* it is number 0 */
};

struct child_command {
	char *arg[OWN_ARGS + OD_ARG_LIST_MAX + 1];
	size_t n;
	char program[PATH_MAX], trace[PATH_MAX];
	char parent[16]; /* this process */
	char device[32]; /* a worker's, when main has several cards */
};

void odm_local_trace_path(const char *trace, size_t index, char *buf, size_t size)
{
	snprintf(buf, size, "%s.%zu", trace, index);
}

/* An option by which main starts and reaches its children. */
static bool is_mains(const char *word)
{
	static const char *const mains[] = { "pack",  "listen",	  "port",     "data-port",	 "key",
					     "peers", "insecure", "ready-fd", "die-with-parent", "trace" };

	if (strncmp(word, "--", 2) != 0)
		return false;
	for (size_t i = 0; i < sizeof(mains) / sizeof(mains[0]); i++) {
		if (strcspn(word + 2, "=") == strlen(mains[i]) && strncmp(word + 2, mains[i], strlen(mains[i])) == 0)
			return true;
	}
	return false;
}

int odm_local_check_args(const char *option, const struct od_arg_list *args, struct od_err *err)
{
	for (size_t i = 0; i < args->n; i++) {
		if (is_mains(args->value[i]))
			return od_fail(err, OD_ERR_ARG,
				       "--%s %s: od-main sets this itself for its children; leave it out", option,
				       args->value[i]);
	}
	return OD_OK;
}

static void add(struct child_command *c, const char *name, const char *value)
{
	c->arg[c->n++] = (char *)name;
	if (value != NULL)
		c->arg[c->n++] = (char *)value;
}

/* The daemons lie beside this program. */
static int find_program(struct child_command *c, const char *name, struct od_err *err)
{
	int rc = od_program_beside(c->program, name, err);

	if (rc != OD_OK)
		return rc;
	if (access(c->program, X_OK) != 0)
		return od_fail_errno(err, OD_ERR_MISSING, "--local needs %s", c->program);
	return OD_OK;
}

/* "cuda:N,M": workers take the cards in turns. */
static const char *one_card(const char *device, size_t index, char *text, size_t size)
{
	const char *at = strchr(device, ':');
	size_t n = 1;

	if (at == NULL || strchr(at, ',') == NULL)
		return device;
	for (const char *comma = at; (comma = strchr(comma + 1, ',')) != NULL;)
		n++;
	for (at++; index % n > 0; index--)
		at = strchr(at, ',') + 1;
	snprintf(text, size, "cuda:%.*s", (int)strcspn(at, ","), at);
	return text;
}

/* Options for children on the command line come last, so that they override the defaults here. */
static int build_command(struct child_command *c, const struct odm_main_opts *o, size_t index, bool shadow,
			 struct od_err *err)
{
	const struct od_arg_list *more = shadow ? &o->local.shadow_args : &o->local.worker_args;
	int rc;

	memset(c, 0, sizeof(*c));
	rc = find_program(c, shadow ? "od-shadow" : "od-worker", err);
	if (rc != OD_OK)
		return rc;
	add(c, c->program, NULL);
	if (o->engine.pack != NULL)
		add(c, "--pack", o->engine.pack);
	add(c, "--port", "0");
	add(c, "--ready-fd", READY_FD_TEXT);
	snprintf(c->parent, sizeof(c->parent), "%d", (int)getpid());
	add(c, "--die-with-parent", c->parent);
	if (o->trace != NULL) {
		odm_local_trace_path(o->trace, index, c->trace, sizeof(c->trace));
		add(c, "--trace", c->trace);
	}
	add(c, "--quiet", NULL);
	add(c, "--log-format", od_log_format_names[od_log_format()]); /* their lines are among ours */
	add(c, "--threads", "1"); /* they share the machine with each other */
	add(c, "--cpu", od_cpu_names[o->engine.cpu]);
	if (o->engine.device != NULL)
		add(c, "--device",
		    shadow ? o->engine.device : one_card(o->engine.device, index, c->device, sizeof(c->device)));
	if (!shadow && o->engine.form != OD_FORM_AUTO)
		add(c, "--resident-form", od_form_names[o->engine.form]);
	for (size_t i = 0; i < more->n; i++)
		add(c, more->value[i], NULL);
	return OD_OK;
}

static int spawn(const struct child_command *c, pid_t *pid, int *ready, struct od_err *err)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	int fds[2], rc;

	if (pipe2(fds, O_CLOEXEC) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create a pipe");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], READY_FD);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
	posix_spawnattr_init(&attr);
	/* A group of their own: Ctrl-C is main's to handle. */
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setpgroup(&attr, 0);
	rc = posix_spawn(pid, c->program, &actions, &attr, c->arg, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	close(fds[1]);
	if (rc != 0) {
		close(fds[0]);
		errno = rc;
		return od_fail_errno(err, OD_ERR_IO, "cannot start %s", c->program);
	}
	*ready = fds[0];
	return OD_OK;
}

static int start_one(struct odm_local *l, int *ready, struct od_err *err)
{
	struct child_command c;
	int rc = build_command(&c, l->o, l->n, l->shadow && l->n == 0, err);

	if (rc == OD_OK)
		rc = spawn(&c, &l->pid[l->n], ready, err);
	if (rc == OD_OK)
		l->n++;
	return rc;
}

/* Names the options it was started with beyond main's own, which often are the reason. */
static void say_args(const struct od_arg_list *args, char *buf, size_t size)
{
	size_t len = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < args->n && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%s", i == 0 ? "; it was started with " : " ",
					args->value[i]);
}

static const char *say_status(int status, char *buf, size_t size)
{
	const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (number == 0)
		snprintf(buf, size, "ended with status %d", WEXITSTATUS(status));
	else
		snprintf(buf, size, "was ended by signal %d (%s%s)", number, strsignal(number),
			 number == SIGKILL ? ", as when memory runs out" : "");
	return buf;
}

/* Its pipe has ended; so will it, once it has said why. */
static int explain_end(struct odm_local *l, size_t i, struct od_err *err)
{
	const bool shadow = l->shadow && i == 0;
	char name[48] = "the shadow", args[256], how[120];
	int status = 0;

	while (waitpid(l->pid[i], &status, 0) < 0 && errno == EINTR)
		;
	l->pid[i] = 0;
	say_args(shadow ? &l->o->local.shadow_args : &l->o->local.worker_args, args, sizeof(args));
	if (!shadow)
		snprintf(name, sizeof(name), "worker %zu of %u", i + (l->shadow ? 0 : 1), l->o->local.workers);
	return od_fail(err, OD_ERR_UNREACHABLE, "%s did not start: it %s%s%s", name,
		       say_status(status, how, sizeof(how)),
		       WIFSIGNALED(status) ? "" : ", and its own message above says why", args);
}

/* "PORT\n", which comes in one piece, or the end of the pipe. */
static int read_port(struct odm_local *l, size_t i, int fd, uint16_t *port, struct od_err *err)
{
	char text[16] = "";

	if (read(fd, text, sizeof(text) - 1) <= 0)
		return explain_end(l, i, err);
	*port = (uint16_t)strtoul(text, NULL, 10);
	return OD_OK;
}

/* Polls all at once, so that a child that exits is noticed before the others have loaded their models. */
static int read_ports(struct odm_local *l, struct pollfd *ready, struct od_hosts *hosts, struct od_err *err)
{
	for (size_t left = l->n; left > 0;) {
		if (poll(ready, l->n, -1) < 0) /* by a signal's handler: one that is to end main now does so */
			continue;
		for (size_t i = 0; i < l->n; i++) {
			int rc;

			if (ready[i].fd < 0 || ready[i].revents == 0)
				continue;
			rc = read_port(l, i, ready[i].fd, &hosts->host[i].port, err);
			if (rc != OD_OK)
				return rc;
			close(ready[i].fd);
			ready[i].fd = -1;
			left--;
		}
	}
	return OD_OK;
}

static int start_all(struct odm_local *l, size_t all, struct od_hosts *hosts, struct pollfd *ready, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; i < all; i++)
		ready[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
	for (size_t i = 0; rc == OD_OK && i < all; i++)
		rc = start_one(l, &ready[i].fd, err);
	for (size_t i = 0; i < l->n; i++) {
		struct od_host *h = &hosts->host[i];

		h->role = l->shadow && i == 0 ? OD_NODE_SHADOW : OD_NODE_WORKER;
		h->line = (unsigned)i + 1;
		snprintf(h->host, sizeof(h->host), "127.0.0.1");
	}
	hosts->n = l->n;
	if (rc == OD_OK)
		rc = read_ports(l, ready, hosts, err);
	for (size_t i = 0; i < all; i++) {
		if (ready[i].fd >= 0)
			close(ready[i].fd);
	}
	return rc;
}

int odm_local_start(struct odm_local **out, const struct odm_main_opts *opts, struct od_hosts *hosts,
		    struct od_err *err)
{
	const bool shadow =
		opts->cluster.predictor == ODM_PREDICT_SHADOW || opts->cluster.predictor == ODM_PREDICTOR_AUTO;
	const size_t all = opts->local.workers + (shadow ? 1 : 0);
	struct odm_local *l = calloc(1, sizeof(*l));
	struct pollfd *ready = calloc(all, sizeof(*ready));
	int rc;

	*out = NULL;
	signal(SIGCHLD, SIG_DFL); /* inherited as ignored, it would hide from waitpid() how a child ended */
	*hosts = (struct od_hosts){ .host = calloc(all, sizeof(struct od_host)) };
	if (l != NULL) {
		l->o = opts;
		l->shadow = shadow;
		l->pid = calloc(all, sizeof(*l->pid));
	}
	if (l == NULL || ready == NULL || l->pid == NULL || hosts->host == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "--local %u", opts->local.workers);
	else
		rc = start_all(l, all, hosts, ready, err);
	free(ready);
	if (rc != OD_OK) {
		odm_local_stop(l);
		od_hosts_fini(hosts);
		return rc;
	}
	*out = l;
	return OD_OK;
}

bool odm_local_ended(void *arg, const struct od_host *host, char *why, size_t size)
{
	struct odm_local *l = arg;
	const size_t i = host->line - 1; /* start_all numbers them */
	const pid_t pid = l->pid[i];
	char how[120];
	int status;

	if (pid == 0 || waitpid(pid, &status, WNOHANG) != pid)
		return false;
	l->pid[i] = 0;
	snprintf(why, size, "its process %d %s, and is not started again", (int)pid,
		 say_status(status, how, sizeof(how)));
	return true;
}

void odm_local_stop(struct odm_local *l)
{
	const struct timespec pause = { .tv_nsec = PAUSE_MS * 1000000 };

	if (l == NULL)
		return;
	for (size_t i = 0; i < l->n; i++) {
		if (l->pid[i] > 0)
			kill(l->pid[i], SIGTERM);
	}
	for (size_t i = 0, waited_ms = 0; i < l->n; i++) {
		while (l->pid[i] > 0 && waitpid(l->pid[i], NULL, WNOHANG) == 0) {
			if (waited_ms >= STOP_WAIT_MS) /* stopped (SIGSTOP) or stuck: it must not outlive us */
				kill(l->pid[i], SIGKILL);
			nanosleep(&pause, NULL);
			waited_ms += PAUSE_MS;
		}
	}
	free(l->pid);
	free(l);
}
