/* store_client.h - a worker's end of main's store: finds it, greets it, asks for ranges of files and hands out what comes
 * (docs/PROTOCOL.md, "Store"). It believes nothing: whoever asked checks the bytes.
 *
 * What was asked for is answered, or the client's life ends and a new one begins (odw_store_life changes): then nothing
 * that was open is answered any more, and the caller asks again.
 * Thread: one at a time. Owner: the caller. */
#ifndef ODW_STORE_CLIENT_H
#define ODW_STORE_CLIENT_H

#include "common/net/store_wire.h"

struct odw_store;

struct odw_store_info {
	uint8_t fingerprint[32], sums_sha256[32];
	uint64_t bytes[OD_STORE_EXPERTS + 1]; /* of each file; 0: there is none */
};

struct odw_fetched {
	uint64_t tag; /* of odw_store_fetch */
	int code;     /* OD_OK: bytes has as many as were asked for */
	char reason[300];
	const uint8_t *bytes; /* until od_msg_fini, and until the next one is taken */
	struct od_msg msg; /* od_msg_fini it */
};

OD_MUST_CHECK int odw_store_open(struct odw_store **out, const struct od_host *address, struct od_err *err);
void odw_store_close(struct odw_store *s); /* NULL ok */

/* Everything that is due: to connect, to greet, to start over with a store that is silent. Call it before waiting. */
void odw_store_tick(struct odw_store *s);
bool odw_store_ready(const struct odw_store *s); /* it has answered in this life */
const struct odw_store_info *odw_store_info(const struct odw_store *s); /* when ready */
uint64_t odw_store_life(const struct odw_store *s);
/* How long there has been no store; 0 when ready. */
uint64_t odw_store_away_ns(const struct odw_store *s);
const char *odw_store_name(const struct odw_store *s); /* "host:port", for messages */

/* OD_ERR_BUSY: not ready, or OD_STORE_MAX_OPEN are open. */
OD_MUST_CHECK int odw_store_fetch(struct odw_store *s, uint32_t file, uint64_t offset, uint32_t bytes, uint64_t tag);
unsigned odw_store_open_fetches(const struct odw_store *s, uint64_t *bytes);
/* Until something came, wake_fd (an eventfd, which is read; -1: none) was written, or the time is over. */
void odw_store_wait(struct odw_store *s, int wake_fd, int timeout_ms);
/* False: nothing more has come. */
OD_MUST_CHECK bool odw_store_next(struct odw_store *s, struct odw_fetched *f);
/* Closes the connection; a new life begins with the next tick. */
void odw_store_rest(struct odw_store *s);

/* What a message of the store's is worth, for odw_store_next and for tests. False: it is to be dropped. */
OD_MUST_CHECK bool odw_store_take(struct odw_store *s, struct od_msg *m, struct odw_fetched *f);

#endif
