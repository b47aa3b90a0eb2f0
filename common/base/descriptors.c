#include "common/base/descriptors.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void od_descriptors_raise(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		od_log(OD_LOG_DEBUG, "cannot raise the limit of open files: %s", strerror(errno));
}

/* Tried, for there is no call that tells. Standard error is always open (od_log_init). */
static bool any_left(int *error)
{
	int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

	*error = errno;
	if (fd >= 0)
		close(fd);
	return fd >= 0 || (*error != EMFILE && *error != ENFILE);
}

void od_descriptors_watch(void)
{
	static atomic_bool said;
	struct rlimit limit = { 0 };
	int error;

	if (any_left(&error)) {
		if (atomic_exchange(&said, false))
			od_log_limited(OD_LOG_INFO, "file descriptors are free again: connections are accepted");
		return;
	}
	if (atomic_exchange(&said, true))
		return;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || error == ENFILE)
		od_log_limited(OD_LOG_WARN,
			       "too many files are open on this machine: no new connections until some close");
	else
		od_log_limited(
			OD_LOG_WARN,
			"all %llu file descriptors are in use: no new connections until some are closed; "
			"see which hosts connect to this port (ss -tnp), or raise the limit (ulimit -Hn, systemd: LimitNOFILE)",
			(unsigned long long)limit.rlim_cur);
}
