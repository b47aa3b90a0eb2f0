/* notify.h - tells the service manager how this process is (sd_notify(3), through libsystemd): ready, reloading,
 * stopping, alive.
 *
 * Without a service manager (no NOTIFY_SOCKET in the environment) every call does nothing.
 * Thread: any; od_notify_off while there is no other. */
#ifndef OD_BASE_NOTIFY_H
#define OD_BASE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* For a child of another daemon: the service is its parent's, and so are all messages. */
void od_notify_off(void);
bool od_notify_on(void);

/* READY=1: from now on this process serves. Then STATUS. */
void od_notify_ready(const char *fmt, ...) OD_PRINTF(1, 2);
/* A line for `systemctl status`. */
void od_notify_status(const char *fmt, ...) OD_PRINTF(1, 2);
/* Around the reading of files after SIGHUP. Before od_notify_ready they do nothing, so a reload never announces a
 * start. */
void od_notify_reloading(void);
void od_notify_reloaded(void);
/* The process ends within limit_ns, more or less. */
void od_notify_stopping(uint64_t limit_ns);

/* How often to call od_notify_alive: half the watchdog's time. 0: the service has no watchdog. */
uint64_t od_notify_watchdog_ns(void);
void od_notify_alive(void);

#endif
