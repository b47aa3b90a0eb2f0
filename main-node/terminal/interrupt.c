#include "main-node/terminal/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int event_fd = -1;

static void on_signal(int number)
{
	const uint64_t one = 1;
	const int saved = errno;
	const ssize_t n = write(event_fd, &one, sizeof(one)); /* fails only when it is readable already */

	(void)number;
	(void)n;
	errno = saved;
}

int odm_interrupt_catch(struct od_err *err)
{
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (event_fd < 0 || sigaction(SIGINT, &act, NULL) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot wait for Ctrl-C");
	return OD_OK;
}

int odm_interrupt_fd(void)
{
	return event_fd;
}

bool odm_interrupt_take(void)
{
	uint64_t n;

	return event_fd >= 0 && read(event_fd, &n, sizeof(n)) == (ssize_t)sizeof(n);
}
