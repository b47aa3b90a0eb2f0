/* store_wire.h - the protocol between main's store and the workers that pull from it; docs/PROTOCOL.md, "Store".
 *
 * Thread: constants and pure functions. */
#ifndef OD_NET_STORE_WIRE_H
#define OD_NET_STORE_WIRE_H

#include "common/net/hosts.h"
#include "common/net/wire.h"

#define OD_DEFAULT_STORE_PORT 5702
#define OD_STORE_PIECE_BYTES (4u << 20) /* limit of one FETCH */
#define OD_STORE_SHARE_BYTES (512u << 10) /* in flight to a worker at any time, whatever the others hold */
#define OD_STORE_MAX_OPEN 32 /* unanswered FETCHes of one worker */

/* Pinned: on the wire. The numbers between are those of the small files of a pack, in common/pack/sums.c. */
enum od_store_file { OD_STORE_SUMS = 1, OD_STORE_EXPERTS = 16 };

/* Checks a FETCH against the files. bytes [OD_STORE_EXPERTS + 1]: the length of each file by its number, 0: no such
 * file. */
OD_MUST_CHECK int od_store_check_fetch(const Od__Fetch *f, size_t n_frames, const uint64_t *bytes, struct od_err *err);

/* Parses "host" or "host:port", with or without tcp://. what: the option, for the message. */
OD_MUST_CHECK int od_store_address(struct od_host *out, const char *text, const char *what, struct od_err *err);

#endif
