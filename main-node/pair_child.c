#include "main-node/pair_child.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int odm_pair_child_find(struct odm_pair_child *c, const char *model, struct od_err *err)
{
	int rc;

	*c = (struct odm_pair_child){ .model = model };
	if (model == NULL)
		return OD_OK;
	if (model[0] == '-')
		return od_fail(err, OD_ERR_ARG, "expected a model, such as hf://org/name, found \"%s\"", model);
	rc = od_program_beside(c->program, "od-pack", err);
	if (rc == OD_OK && access(c->program, X_OK) != 0)
		rc = od_fail_errno(err, OD_ERR_MISSING, "%s is needed to fetch a model", c->program);
	return rc;
}

int odm_pair_child_start(struct odm_pair_child *c, struct od_err *err)
{
	const char *argv[] = { "od-pack", c->model, NULL };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, usual;
	int rc;

	if (c->model == NULL)
		return OD_OK;
	sigemptyset(&none); /* this process blocks some */
	sigemptyset(&usual); /* and ignores these */
	sigaddset(&usual, SIGPIPE);
	sigaddset(&usual, SIGXFSZ);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &usual);
	rc = posix_spawn(&c->pid, c->program, &files, &attr, (char *const *)argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	if (rc != 0)
		return od_fail(err, OD_ERR_IO, "cannot start %s: %s", c->program, strerror(rc));
	return OD_OK;
}

bool odm_pair_child_ended(struct odm_pair_child *c)
{
	if (c->pid != 0 && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
		c->pid = 0;
	return c->pid == 0;
}

int odm_pair_child_result(const struct odm_pair_child *c, struct od_err *err)
{
	if (c->model == NULL || (WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0))
		return OD_OK;
	if (WIFSIGNALED(c->status))
		return od_fail(err, OD_ERR_IO, "od-pack %s was ended by signal %d", c->model, WTERMSIG(c->status));
	return od_fail(err, OD_ERR_IO, "od-pack %s failed: see above", c->model);
}

void odm_pair_child_stop(struct odm_pair_child *c)
{
	if (c->pid == 0)
		return;
	kill(c->pid, SIGTERM);
	while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR)
		;
	c->pid = 0;
}
