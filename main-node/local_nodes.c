#include "main-node/local_nodes.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_FD 3
#define MAX_ARGS 32
#define STOP_WAIT_MS 3000 /* for all of them */
#define PAUSE_MS 5

extern char **environ;

struct odm_local {
	pid_t *pid;
	size_t n;
};

struct command {
	char *arg[MAX_ARGS];
	size_t n;
	char text[16][24]; /* numbers as text */
	size_t n_text;
	char program[PATH_MAX], trace[PATH_MAX];
};

void odm_local_trace_path(const char *trace, size_t index, char *buf, size_t size)
{
	snprintf(buf, size, "%s.%zu", trace, index);
}

static void add(struct command *c, const char *name, const char *value)
{
	if (value == NULL || c->n + 3 > MAX_ARGS)
		return;
	c->arg[c->n++] = (char *)name;
	if (value[0] != '\0')
		c->arg[c->n++] = (char *)value;
	c->arg[c->n] = NULL;
}

static void add_number(struct command *c, const char *name, uint64_t value)
{
	char *text = c->text[c->n_text++];

	snprintf(text, sizeof(c->text[0]), "%llu", (unsigned long long)value);
	add(c, name, text);
}

static void add_ms(struct command *c, const char *name, double ms)
{
	char *text = c->text[c->n_text++];

	snprintf(text, sizeof(c->text[0]), "%.6f", ms);
	add(c, name, text);
}

/* The daemons lie beside this program. */
static int find_program(struct command *c, const char *name, struct od_err *err)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (n < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot find my own program file");
	self[n] = '\0';
	slash = strrchr(self, '/');
	*slash = '\0';
	if ((size_t)snprintf(c->program, sizeof(c->program), "%s/%s", self, name) >= sizeof(c->program))
		return od_fail(err, OD_ERR_RANGE, "path too long: %s", self);
	if (access(c->program, X_OK) != 0)
		return od_fail_errno(err, OD_ERR_MISSING, "--local needs %s", c->program);
	return OD_OK;
}

static int build_command(struct command *c, const struct odm_local_opts *o, size_t index, bool shadow,
			 struct od_err *err)
{
	int rc;

	memset(c, 0, sizeof(*c));
	rc = find_program(c, shadow ? "od-shadow" : "od-worker", err);
	if (rc != OD_OK)
		return rc;
	add(c, c->program, "");
	add(c, "--pack", o->pack);
	add_number(c, "--port", 0);
	add_number(c, "--ready-fd", READY_FD);
	add(c, "--die-with-parent", "");
	add(c, "--quiet", "");
	add(c, "--cpu", o->cpu);
	add_number(c, "--threads", o->threads);
	if (o->trace != NULL) {
		odm_local_trace_path(o->trace, index, c->trace, sizeof(c->trace));
		add(c, "--trace", c->trace);
	}
	if (shadow) {
		add(c, "--precision", o->precision);
		add(c, "--dense-precision", o->dense_precision);
		add(c, "--activations", o->activations);
		add(c, "--departure", o->departure);
		return OD_OK;
	}
	add(c, "--resident-form", o->form);
	if (o->slots > 0)
		add_number(c, "--slots", o->slots);
	if (o->memory_limit_bytes > 0)
		add_number(c, "--memory-limit", o->memory_limit_bytes);
	if (o->load_time_ms > 0)
		add_ms(c, "--load-time", o->load_time_ms);
	if (o->run_time_ms > 0)
		add_ms(c, "--run-time", o->run_time_ms);
	if (o->cache_mib > 0) {
		add_number(c, "--cache-mib", o->cache_mib);
		add(c, "--cache-policy", o->cache_policy);
	}
	return OD_OK;
}

static int spawn(const struct command *c, pid_t *pid, int *ready, struct od_err *err)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	int fds[2], rc;

	if (pipe2(fds, O_CLOEXEC) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot make a pipe");
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

/* "PORT\n", or the end of the pipe when the child gave up (it has said why). */
static int read_port(int fd, const char *program, uint16_t *port, struct od_err *err)
{
	char text[16] = "";
	size_t used = 0;

	while (used < sizeof(text) - 1 && strchr(text, '\n') == NULL) {
		ssize_t n = read(fd, text + used, sizeof(text) - 1 - used);

		if (n < 0 && errno == EINTR)
			return od_fail(err, OD_ERR_CANCELLED, "interrupted while %s was starting", program);
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	*port = (uint16_t)strtoul(text, NULL, 10);
	if (*port == 0)
		return od_fail(err, OD_ERR_UNREACHABLE, "%s did not start; its own message above says why", program);
	return OD_OK;
}

static int start_one(struct odm_local *l, const struct odm_local_opts *o, bool shadow, int *ready, struct od_err *err)
{
	struct command c;
	int rc = build_command(&c, o, l->n, shadow, err);

	if (rc == OD_OK)
		rc = spawn(&c, &l->pid[l->n], ready, err);
	if (rc == OD_OK)
		l->n++;
	return rc;
}

static int start_all(struct odm_local *l, const struct odm_local_opts *o, struct od_hosts *hosts, int *ready,
		     struct od_err *err)
{
	size_t all = o->n_workers + (o->shadow ? 1 : 0);
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < all; i++)
		rc = start_one(l, o, o->shadow && i == 0, &ready[i], err);
	for (size_t i = 0; rc == OD_OK && i < all; i++) {
		struct od_host *h = &hosts->host[i];

		h->role = o->shadow && i == 0 ? OD_NODE_SHADOW : OD_NODE_WORKER;
		h->line = (unsigned)i + 1;
		snprintf(h->host, sizeof(h->host), "127.0.0.1");
		rc = read_port(ready[i], h->role == OD_NODE_SHADOW ? "od-shadow" : "od-worker", &h->port, err);
		hosts->n = i + 1;
	}
	for (size_t i = 0; i < all; i++) {
		if (ready[i] >= 0)
			close(ready[i]);
	}
	return rc;
}

int odm_local_start(struct odm_local **out, const struct odm_local_opts *opts, struct od_hosts *hosts,
		    struct od_err *err)
{
	size_t all = opts->n_workers + 1;
	struct odm_local *l = calloc(1, sizeof(*l));
	int *ready = malloc(all * sizeof(*ready));
	int rc;

	*out = NULL;
	*hosts = (struct od_hosts){ .host = calloc(all, sizeof(struct od_host)) };
	if (l != NULL)
		l->pid = calloc(all, sizeof(*l->pid));
	if (l == NULL || ready == NULL || l->pid == NULL || hosts->host == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "--local %u", opts->n_workers);
	} else {
		memset(ready, 0xff, all * sizeof(*ready)); /* -1 */
		rc = start_all(l, opts, hosts, ready, err);
	}
	free(ready);
	if (rc != OD_OK) {
		odm_local_stop(l);
		od_hosts_fini(hosts);
		return rc;
	}
	*out = l;
	return OD_OK;
}

void odm_local_stop(struct odm_local *l)
{
	const struct timespec pause = { .tv_nsec = PAUSE_MS * 1000000 };

	if (l == NULL)
		return;
	for (size_t i = 0; i < l->n; i++)
		kill(l->pid[i], SIGTERM);
	for (size_t i = 0, waited_ms = 0; i < l->n; i++) {
		while (waitpid(l->pid[i], NULL, WNOHANG) == 0) {
			if (waited_ms >= STOP_WAIT_MS) /* stopped (SIGSTOP) or stuck: it must not outlive us */
				kill(l->pid[i], SIGKILL);
			nanosleep(&pause, NULL);
			waited_ms += PAUSE_MS;
		}
	}
	free(l->pid);
	free(l);
}
