/* keys.h - CURVE keys: this node's pair, the public keys of its peers, and the files that hold them (docs/PROTOCOL.md,
 * "Keys").
 *
 * A key is 32 bytes; as text 40 characters of Z85, as ZeroMQ has it. A word that begins with '#' begins a comment. Z85
 * has that character, too, but never first: five of its characters would be more than 32 bits.
 * Thread: any. Owner: the caller. */
#ifndef OD_NET_KEYS_H
#define OD_NET_KEYS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_KEY_BYTES 32
#define OD_KEY_CHARS 40
#define OD_MAX_PEERS 4096
#define OD_KEYS_DIR "/etc/od-moe" /* unless $OD_KEYS is set */
#define OD_KEY_NAME "node.key"
#define OD_PUBLIC_NAME "node.pub"
#define OD_PEERS_NAME "peers"

struct od_key_pair {
	uint8_t public_key[OD_KEY_BYTES], secret_key[OD_KEY_BYTES];
};

struct od_peer {
	uint8_t key[OD_KEY_BYTES];
	char name[256]; /* host name or address, or a remark; may be empty */
	unsigned line; /* 1-based */
};

struct od_peers {
	struct od_peer *peer;
	size_t n;
};

OD_MUST_CHECK int od_key_parse(uint8_t key[OD_KEY_BYTES], const char *text, struct od_err *err);
/* text [OD_KEY_CHARS + 1]; returns it. */
const char *od_key_text(const uint8_t key[OD_KEY_BYTES], char *text);

OD_MUST_CHECK int od_key_pair_new(struct od_key_pair *out, struct od_err *err);
/* Reads a secret key and computes the public one. Refuses a file that other users can read. */
OD_MUST_CHECK int od_key_pair_load(struct od_key_pair *out, const char *path, struct od_err *err);

/* One key a line, then optionally a name. *out is empty unless OD_OK. */
OD_MUST_CHECK int od_peers_load(struct od_peers *out, const char *path, struct od_err *err);
OD_MUST_CHECK int od_peers_parse(struct od_peers *out, const char *text, size_t len, const char *where,
				 struct od_err *err);
void od_peers_fini(struct od_peers *p);
/* The key with this name; *out is NULL if there is none. Refuses a name with two keys. */
OD_MUST_CHECK int od_peers_find(const struct od_peers *p, const char *name, const uint8_t **out, struct od_err *err);

/* The command line's options about keys. */
struct od_keys_args {
	const char *key, *peers; /* files; NULL: the default */
	bool insecure;
};

/* Keys that a process uses. */
struct od_keys {
	struct od_key_pair own;
	struct od_peers peers;
	char peers_path[PATH_MAX]; /* "": there is no such file */
};

/* why: what asks for keys beside the options, as in "--listen 0.0.0.0 is not a loopback address"; NULL: nothing does.
 * *out is NULL if nothing is to be encrypted: with --insecure, or if neither an option nor an address asks for keys.
 * need_peers: refuse an empty list, and no list. Peers are beside the key unless args name them. */
OD_MUST_CHECK int od_keys_open(struct od_keys **out, const struct od_keys_args *args, const char *why, bool need_peers,
			       struct od_err *err);
void od_keys_free(struct od_keys *k); /* NULL ok */
/* The key of the peer named "host:port", else of the one named host; *out is NULL if there is none. */
OD_MUST_CHECK int od_keys_of_host(const struct od_keys *k, const char *host, uint16_t port, const uint8_t **out,
				  struct od_err *err);

/* path [PATH_MAX]: name within $OD_KEYS, else within /etc/od-moe. */
OD_MUST_CHECK int od_keys_path(char *path, const char *name, struct od_err *err);

#endif
