/* hosts.h - parses hosts.txt: one host a line, `[worker|shadow] host[:port] [key=PUBLICKEY]`, `#` comments.
 *
 * host is a name, an IPv4 address, or an IPv6 address (in brackets when a port follows).
 * Thread: any. Owner: the caller owns what load and parse fill; it is empty unless they return OD_OK. */
#ifndef OD_NET_HOSTS_H
#define OD_NET_HOSTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/net/keys.h"

#define OD_DEFAULT_SHADOW_PORT 5700
#define OD_DEFAULT_WORKER_PORT 5701
#define OD_MAX_HOSTS 1024
#define OD_MAX_SHADOWS 17 /* parts of one */

enum od_node_kind { OD_NODE_WORKER, OD_NODE_SHADOW };
extern const char *const od_node_names[]; /* "worker", "shadow", NULL */

struct od_host {
	enum od_node_kind role;
	char host[256]; /* name, IPv4, or IPv6 without brackets */
	uint16_t port; /* control port */
	unsigned line; /* 1-based */
	bool has_key;
	uint8_t key[OD_KEY_BYTES]; /* the only key that this host may have */
};

struct od_hosts {
	struct od_host *host;
	size_t n;
};

/* Errors name the file and the line. Refuses duplicates (same host and port), a file without workers, more than
 * OD_MAX_SHADOWS shadows, ports out of range, unknown roles and keys. */
OD_MUST_CHECK int od_hosts_load(struct od_hosts *out, const char *path, struct od_err *err);
OD_MUST_CHECK int od_hosts_parse(struct od_hosts *out, const char *text, size_t len, const char *where,
				 struct od_err *err);
/* Like od_hosts_parse, for a file to which hosts will be added: it may be without a worker. */
OD_MUST_CHECK int od_hosts_parse_some(struct od_hosts *out, const char *text, size_t len, const char *where,
				      struct od_err *err);
/* Where the comment of a line [len] begins; len: it has none. */
size_t od_hosts_comment(const char *line, size_t len);
/* Removes the shadows. */
void od_hosts_without_shadow(struct od_hosts *h);
/* Parses one `host[:port]` of a command line; usual_port: the default. */
OD_MUST_CHECK int od_host_parse(struct od_host *out, const char *text, uint16_t usual_port, struct od_err *err);
void od_hosts_fini(struct od_hosts *h);

#endif
