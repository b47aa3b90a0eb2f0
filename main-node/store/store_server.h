/* store_server.h - od-main --serve-store: sends workers their share of the pack (docs/PROTOCOL.md, "Store").
 *
 * It reads ranges of SHA256SUMS, the small files and experts.bin (of a GGUF file what a spool has there,
 * spool_source.h), and nothing else: requests name files by number. It has its own thread and ZeroMQ context, both
 * at low priority, so that a step never waits for it. store_queue.h bounds its memory.
 * Thread: open and close by the owner. Owner: the pack is borrowed. */
#ifndef ODM_STORE_SERVER_H
#define ODM_STORE_SERVER_H

#include "common/net/hosts.h"
#include "common/pack/pack.h"

struct odm_store;

/* address: host[:port]. keys: serve only their peers and those of the hosts that have a key (odm_store_admit); NULL:
 * serve anybody, in the clear. */
OD_MUST_CHECK int odm_store_open(struct odm_store **out, const struct od_pack *pack, const char *address,
				 const struct od_keys *keys, const struct od_hosts *hosts, struct od_err *err);
/* Any thread: after a change of the peers or of the hosts' keys. */
OD_MUST_CHECK int odm_store_admit(struct odm_store *s, const struct od_keys *keys, const struct od_hosts *hosts,
				  struct od_err *err);
uint64_t odm_store_served_bytes(const struct odm_store *s); /* any thread: pieces that were sent */
void odm_store_close(struct odm_store *s); /* NULL ok */

#endif
