/* hosts.h - parses hosts.txt: one host a line, `[main|worker|shadow] host[:port] [WORD=VALUE ...]`, `#` comments.
 *
 * host is a name, an IPv4 address, or an IPv6 address (in brackets when a port follows). Words, in any order, each at
 * most once: key=PUBLICKEY, which the daemons check, and those of od_host_words, which only od-plan reads. The line
 * of main is for od-plan as well: it describes the machine on which od-main runs.
 * Thread: any. Owner: the caller owns what load and parse fill; it is empty unless they return OD_OK. */
#ifndef OD_NET_HOSTS_H
#define OD_NET_HOSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/net/keys.h"

#define OD_DEFAULT_SHADOW_PORT 5700
#define OD_DEFAULT_WORKER_PORT 5701
#define OD_MAX_HOSTS 1024
#define OD_MAX_SHADOWS 17 /* parts of one */
#define OD_HOSTS_LINE 1024 /* characters of a line, without its comment */

enum od_node_kind { OD_NODE_WORKER, OD_NODE_SHADOW };
extern const char *const od_node_names[]; /* "worker", "shadow", NULL */

/* Speeds and sizes of a machine; 0: not given. */
struct od_host_words {
	double memory_bytes; /* memory=12G: what the daemon may use */
	double read_rate; /* read=3.5G: bytes of stored experts a second, from storage to memory, ready to compute */
	double speed; /* speed=0.4: weights multiplied with one row; 1 is 10^10 a second */
	double many; /* many=3: multiply-adds with many rows; 1 is 10^10 a second */
	double link_bits; /* link=1G: bits a second of its network port, each way (G is 10^9) */
	double latency_ms; /* latency=0.2: round trip of a small message */
	double fixed_ms; /* fixed=0.05: what a RUN takes beside its products, and a layer of main or a shadow */
	double recall; /* recall=0.996: share of the used experts that a shadow predicts */
	double accept; /* accept=0.98: share of a shadow's tokens that are main's */
};

struct od_host {
	bool is_main; /* role and port then say nothing */
	enum od_node_kind role;
	char host[256]; /* name, IPv4, or IPv6 without brackets */
	uint16_t port; /* control port */
	unsigned line; /* 1-based */
	bool has_key;
	uint8_t key[OD_KEY_BYTES]; /* the only key that this host may have */
	struct od_host_words words;
};

struct od_hosts {
	struct od_host *host; /* [n] workers and shadows */
	size_t n;
	bool has_main;
	struct od_host main;
};

/* Errors name the file and the line. Refuses duplicates (same host and port), a file without workers, more than
 * OD_MAX_SHADOWS shadows or one main, ports out of range, unknown roles, keys and words, and values that no machine
 * has. */
OD_MUST_CHECK int od_hosts_load(struct od_hosts *out, const char *path, struct od_err *err);
OD_MUST_CHECK int od_hosts_parse(struct od_hosts *out, const char *text, size_t len, const char *where,
				 struct od_err *err);
/* Like od_hosts_parse, for a file to which hosts will be added: it may be without a worker. */
OD_MUST_CHECK int od_hosts_parse_some(struct od_hosts *out, const char *text, size_t len, const char *where,
				      struct od_err *err);
/* Where the comment of a line [len] begins; len: it has none. */
size_t od_hosts_comment(const char *line, size_t len);
/* The word's name with its sign ("memory=") when setting [len] is a word of od_host_words or key=; NULL: neither. */
const char *od_hosts_word(const char *setting, size_t len);
/* The words that are given, as a line has them: " memory=12G link=1G". Returns buf; 256 bytes suffice. Values keep four
 * digits. */
const char *od_host_words_text(const struct od_host_words *words, char *buf, size_t size);
/* Removes the shadows. */
void od_hosts_without_shadow(struct od_hosts *h);
/* Parses one `host[:port]` of a command line; usual_port: the default. */
OD_MUST_CHECK int od_host_parse(struct od_host *out, const char *text, uint16_t usual_port, struct od_err *err);
void od_hosts_fini(struct od_hosts *h);

#endif
