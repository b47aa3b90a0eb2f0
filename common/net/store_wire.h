/* store_wire.h - what main's store and the workers that pull from it agree on; docs/PROTOCOL.md, "Store".
 *
 * Thread: constants and pure functions. */
#ifndef OD_NET_STORE_WIRE_H
#define OD_NET_STORE_WIRE_H

#include "common/net/hosts.h"
#include "common/net/wire.h"

#define OD_DEFAULT_STORE_PORT 5702
#define OD_STORE_PIECE_BYTES (4u << 20) /* of one FETCH at most */
#define OD_STORE_SHARE_BYTES (512u << 10) /* each worker may always have so much on its way, whatever others hold */
#define OD_STORE_MAX_OPEN 32		/* FETCHes of one worker without an answer */

/* Pinned. The small files of a pack follow each other as in common/pack/sums.h. */
enum od_store_file { OD_STORE_SUMS = 1, OD_STORE_SMALL = 2, OD_STORE_EXPERTS = 16 };

/* bytes [OD_STORE_EXPERTS + 1]: the length of each file by its number, 0: there is none. */
OD_MUST_CHECK int od_store_check_fetch(const Od__Fetch *f, size_t n_frames, const uint64_t *bytes, struct od_err *err);

/* "host", "host:port", with tcp:// in front or not. what: the option, for the message. */
OD_MUST_CHECK int od_store_address(struct od_host *out, const char *text, const char *what, struct od_err *err);

#endif
