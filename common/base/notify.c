#include "common/base/notify.h"

#include "common/base/clock.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#define NS_PER_US 1000
#define STOP_MARGIN_NS (15 * OD_NS_PER_S) /* to close what is open, beyond the limit for requests */

static atomic_bool ready;

void od_notify_off(void)
{
	unsetenv("NOTIFY_SOCKET");
}

bool od_notify_on(void)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

static void status(const char *before, const char *fmt, va_list ap)
{
	char text[512];

	vsnprintf(text, sizeof(text), fmt, ap);
	sd_notifyf(0, "%sSTATUS=%s", before, text);
}

void od_notify_ready(const char *fmt, ...)
{
	va_list ap;

	atomic_store(&ready, true);
	va_start(ap, fmt);
	status("READY=1\n", fmt, ap);
	va_end(ap);
}

void od_notify_status(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	status("", fmt, ap);
	va_end(ap);
}

/* MONOTONIC_USEC is for Type=notify-reload of systemd 253 and later. */
void od_notify_reloading(void)
{
	if (atomic_load(&ready))
		sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(od_now_ns() / NS_PER_US));
}

void od_notify_reloaded(void)
{
	if (atomic_load(&ready))
		sd_notify(0, "READY=1");
}

void od_notify_stopping(uint64_t limit_ns)
{
	atomic_store(&ready, false);
	sd_notifyf(0, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu\nSTATUS=ending: no more work is taken",
		   (unsigned long long)((limit_ns + STOP_MARGIN_NS) / NS_PER_US));
}

uint64_t od_notify_watchdog_ns(void)
{
	uint64_t us;

	return sd_watchdog_enabled(0, &us) > 0 ? us * NS_PER_US / 2 : 0;
}

void od_notify_alive(void)
{
	sd_notify(0, "WATCHDOG=1");
}
