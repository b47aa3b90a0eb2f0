/* store_client.h - the worker's client of main's store: connects, sends STORE_HELLO, fetches ranges of files and
 * returns the bytes (docs/PROTOCOL.md, "Store"). The bytes are unchecked: the caller verifies them.
 *
 * Every fetch is answered, unless the connection is reset: odw_store_life changes, open fetches are lost, and the
 * caller repeats them.
 * Thread: one at a time. Owner: the caller. */
#ifndef ODW_STORE_CLIENT_H
#define ODW_STORE_CLIENT_H

#include "common/net/endpoint.h"
#include "common/net/store_wire.h"

struct odw_store;

struct odw_store_info {
	uint8_t fingerprint[32], sums_sha256[32];
	uint64_t bytes[OD_STORE_EXPERTS + 1]; /* length of each file; 0: no such file */
};

struct odw_fetched {
	uint64_t tag; /* as given to odw_store_fetch */
	int code; /* OD_OK: bytes holds the whole range */
	char reason[300];
	uint64_t xxh3; /* a GGUF file's chunk has this sum at the store; else 0 */
	const uint8_t *bytes; /* until od_msg_fini, and until the next one is taken */
	struct od_msg msg; /* the caller calls od_msg_fini */
};

/* curve: as od_connect_store's; its keys must outlive the client. */
OD_MUST_CHECK int odw_store_open(struct odw_store **out, const struct od_host *address, const struct od_curve *curve,
				 struct od_err *err);
void odw_store_close(struct odw_store *s); /* NULL ok */

/* Does what is due: connects, sends STORE_HELLO, resets the connection to a silent store. Call it before waiting. */
void odw_store_tick(struct odw_store *s);
bool odw_store_ready(const struct odw_store *s); /* the store has answered on this connection */
const struct odw_store_info *odw_store_info(const struct odw_store *s); /* when ready */
uint64_t odw_store_life(const struct odw_store *s);
/* Time since the store was last ready; 0 when it is ready. */
uint64_t odw_store_away_ns(const struct odw_store *s);
const char *odw_store_name(const struct odw_store *s); /* "host:port", for messages */

/* OD_ERR_BUSY: not ready, or OD_STORE_MAX_OPEN fetches are open. */
OD_MUST_CHECK int odw_store_fetch(struct odw_store *s, uint32_t file, uint64_t offset, uint32_t bytes, uint64_t tag);
unsigned odw_store_open_fetches(const struct odw_store *s, uint64_t *bytes);
/* Waits for a message, a write to wake_fd (an eventfd, which is read; -1: none), or the timeout. */
void odw_store_wait(struct odw_store *s, int wake_fd, int timeout_ms);
/* Returns the next answer. False: none is left. */
OD_MUST_CHECK bool odw_store_next(struct odw_store *s, struct odw_fetched *f);
/* Closes the connection; the next tick opens a new one. */
void odw_store_rest(struct odw_store *s);

/* Handles one message of the store, for odw_store_next and tests. False: drop it. */
OD_MUST_CHECK bool odw_store_take(struct odw_store *s, struct od_msg *m, struct odw_fetched *f);

#endif
