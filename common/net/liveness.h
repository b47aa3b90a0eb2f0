/* liveness.h - is a peer alive, and does it get on? Pure bookkeeping over times that the caller gives.
 *
 * Heartbeats are ours, because ZeroMQ's can abort a process and do not see a daemon whose work hangs. A ping
 * goes out every 250 ms; dead after 1.5 s of silence; stuck after 3 s of work without progress.
 * Thread: its owner's. */
#ifndef OD_NET_LIVENESS_H
#define OD_NET_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

#define OD_PING_EVERY_NS (250 * OD_NS_PER_MS)
#define OD_DEAD_AFTER_NS (1500 * OD_NS_PER_MS)
#define OD_STUCK_AFTER_NS (3000 * OD_NS_PER_MS)

struct od_liveness {
	uint64_t heard_ns;    /* last sign of life */
	uint64_t moved_ns;    /* last time progress grew, or there was nothing to do */
	uint64_t progress;
	bool busy;	      /* the last pong said so; without one a peer is never stuck */
	uint64_t looked_ns;   /* last od_liveness_check */
};

enum od_verdict { OD_ALIVE, OD_SILENT, OD_STUCK };

void od_liveness_start(struct od_liveness *l, uint64_t now_ns);
void od_liveness_heard(struct od_liveness *l, uint64_t now_ns);
void od_liveness_pong(struct od_liveness *l, uint64_t now_ns, uint64_t progress, bool busy);
/* Call every OD_PING_EVERY_NS. When the caller itself was away (stopped, suspended) for more than half of
 * OD_DEAD_AFTER_NS, the peer gets that time back: it is not to blame. */
enum od_verdict od_liveness_check(struct od_liveness *l, uint64_t now_ns);

#endif
