/* liveness.h - detects dead and stuck peers. Bookkeeping only: the caller passes the current time.
 *
 * The heartbeats are our own: ZeroMQ's can abort a process and do not detect a daemon whose work hangs. A PING is sent
 * every 250 ms; a peer is dead after 1.5 s of silence and stuck after 3 s of work without progress.
 * Thread: one at a time. Owner: the caller; plain data. */
#ifndef OD_NET_LIVENESS_H
#define OD_NET_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

#define OD_PING_EVERY_NS (250 * OD_NS_PER_MS)
#define OD_DEAD_AFTER_NS (1500 * OD_NS_PER_MS)
#define OD_STUCK_AFTER_NS (3000 * OD_NS_PER_MS)

struct od_liveness {
	uint64_t heard_ns; /* last message of the peer */
	uint64_t moved_ns; /* last time that progress grew or the peer was idle */
	uint64_t progress; /* as in the last PONG */
	bool busy; /* as in the last PONG; without a PONG a peer is never stuck */
	uint64_t looked_ns; /* last od_liveness_check */
};

enum od_verdict { OD_ALIVE, OD_SILENT, OD_STUCK };

void od_liveness_start(struct od_liveness *l, uint64_t now_ns);
void od_liveness_heard(struct od_liveness *l, uint64_t now_ns);
void od_liveness_pong(struct od_liveness *l, uint64_t now_ns, uint64_t progress, bool busy);
/* Call it every OD_PING_EVERY_NS. If the caller itself was stopped or suspended for more than half of OD_DEAD_AFTER_NS,
 * that time is not counted as the peer's silence. */
enum od_verdict od_liveness_check(struct od_liveness *l, uint64_t now_ns);

#endif
