#include "common/base/hangup.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t noted;

static void note(int number)
{
	(void)number;
	noted = 1;
}

static void mask(int how)
{
	sigset_t hangup;

	sigemptyset(&hangup);
	sigaddset(&hangup, SIGHUP);
	pthread_sigmask(how, &hangup, NULL);
}

void od_hangup_hold(void)
{
	mask(SIG_BLOCK);
}

void od_hangup_begin(bool reads)
{
	const struct sigaction act = { .sa_handler = note, .sa_flags = SA_RESTART };

	if (reads)
		sigaction(SIGHUP, &act, NULL);
	mask(SIG_UNBLOCK);
}

void od_hangup_listened(void)
{
	if (noted) {
		noted = 0;
		raise(SIGHUP);
	}
}
