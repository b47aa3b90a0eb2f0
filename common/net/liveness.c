#include "common/net/liveness.h"

static void later(uint64_t *t, uint64_t by_ns, uint64_t now_ns)
{
	*t = now_ns - *t > by_ns ? *t + by_ns : now_ns;
}

void od_liveness_start(struct od_liveness *l, uint64_t now_ns)
{
	*l = (struct od_liveness){ .heard_ns = now_ns, .moved_ns = now_ns, .looked_ns = now_ns };
}

void od_liveness_heard(struct od_liveness *l, uint64_t now_ns)
{
	l->heard_ns = now_ns;
}

void od_liveness_pong(struct od_liveness *l, uint64_t now_ns, uint64_t progress, bool busy)
{
	l->heard_ns = now_ns;
	if (!busy || progress > l->progress)
		l->moved_ns = now_ns;
	l->progress = progress;
	l->busy = busy;
}

enum od_verdict od_liveness_check(struct od_liveness *l, uint64_t now_ns)
{
	uint64_t away_ns = now_ns - l->looked_ns;

	l->looked_ns = now_ns;
	if (away_ns > OD_DEAD_AFTER_NS / 2) {
		later(&l->heard_ns, away_ns, now_ns);
		later(&l->moved_ns, away_ns, now_ns);
	}
	if (now_ns - l->heard_ns > OD_DEAD_AFTER_NS)
		return OD_SILENT;
	if (l->busy && now_ns - l->moved_ns > OD_STUCK_AFTER_NS)
		return OD_STUCK;
	return OD_ALIVE;
}
