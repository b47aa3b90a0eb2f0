#include "common/pair/pair_service.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYSTEMCTL "systemctl"
#define BOOTED "/run/systemd/system" /* as sd_booted looks */
#define NOT_STARTED (-1)

/* Its exit status; NOT_STARTED: errno says why. quiet: without its output. */
static int systemctl(const char *a, const char *b, const char *c, bool quiet)
{
	const char *argv[] = { SYSTEMCTL, a, b, c, NULL };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, usual;
	int status, rc;
	pid_t pid;

	sigemptyset(&none); /* the caller may block some */
	sigemptyset(&usual); /* and ignore these */
	sigaddset(&usual, SIGPIPE);
	sigaddset(&usual, SIGXFSZ);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &usual);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (quiet) {
		posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
		posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	}
	rc = posix_spawnp(&pid, SYSTEMCTL, &files, &attr, (char *const *)argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	errno = rc;
	if (rc != 0)
		return NOT_STARTED;
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return NOT_STARTED;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int od_pair_service_check(const char *unit, struct od_err *err)
{
	int status;

	if (geteuid() != 0)
		return od_fail(err, OD_ERR_ARG, "--enable turns a service on, which needs root: run it with sudo");
	status = systemctl("cat", unit, NULL, true);
	if (status == NOT_STARTED)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "--enable needs systemd, and systemctl does not start (%s): leave it out, and start %s "
			       "yourself",
			       strerror(errno), unit);
	if (status != 0 && access(BOOTED, F_OK) != 0)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"--enable needs systemd, which does not run here (in a container, for example): leave it "
			"out, and start %s yourself",
			unit);
	if (status != 0)
		return od_fail(err, OD_ERR_MISSING,
			       "--enable: systemd has no unit %s; install the package (or make install), then "
			       "systemctl daemon-reload",
			       unit);
	return OD_OK;
}

bool od_pair_service_runs(const char *unit)
{
	return systemctl("is-active", "--quiet", unit, true) == 0;
}

int od_pair_service_turn_on(const char *unit, bool enable, const char *how, struct od_err *err)
{
	if (enable && systemctl("enable", "--quiet", unit, false) != 0)
		return od_fail(err, OD_ERR_IO, "systemctl enable %s failed: see above", unit);
	if (systemctl(how, "--no-block", unit, false) != 0)
		return od_fail(err, OD_ERR_IO, "systemctl %s %s failed: see above", how, unit);
	return OD_OK;
}
