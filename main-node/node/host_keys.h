/* host_keys.h - which key each host of the hosts file must have: its key= setting, else the key in the peers file whose
 * name is the host.
 *
 * Thread: any. Owner: the caller. */
#ifndef ODM_HOST_KEYS_H
#define ODM_HOST_KEYS_H

#include <stdbool.h>

#include "common/net/hosts.h"
#include "common/net/keys.h"

/* True if a link to one of the hosts needs keys: it is beyond loopback, or has key=. why says so. */
bool odm_hosts_need_keys(const struct od_hosts *hosts, const char *path, char *why, size_t size);

/* Fills in the keys. Refuses a host beyond loopback that has none. keys NULL: --insecure, or nothing needs keys. */
OD_MUST_CHECK int odm_host_keys(struct od_hosts *hosts, const struct od_keys *keys, const char *path,
				struct od_err *err);

#endif
