/* store_server.h - od-main --serve-store: sends workers their share of the pack (docs/PROTOCOL.md, "Store").
 *
 * It reads ranges of SHA256SUMS, the small files and experts.bin, and nothing else: requests name files by number. It has
 * its own thread and ZeroMQ context, both at low priority, so that a step never waits for it. store_queue.h bounds its
 * memory.
 * Thread: open and close by the owner. Owner: the pack is borrowed. */
#ifndef ODM_STORE_SERVER_H
#define ODM_STORE_SERVER_H

#include "common/pack/pack.h"

struct odm_store;

/* address: host[:port]. insecure: allows an address that is not loopback. */
OD_MUST_CHECK int odm_store_open(struct odm_store **out, const struct od_pack *pack, const char *address, bool insecure,
				 struct od_err *err);
void odm_store_close(struct odm_store *s); /* NULL ok */

#endif
