#include "main-node/cluster/load_tally.h"

void odm_load_tally_session(struct odm_load_tally *t)
{
	*t = (struct odm_load_tally){ .before = odm_load_tally_between(t), .begin.ping = 1 };
}

void odm_load_tally_begin(struct odm_load_tally *t, uint64_t ping)
{
	*t = (struct odm_load_tally){ .now = t->now, .begin.ping = ping };
}

void odm_load_tally_end(struct odm_load_tally *t, uint64_t ping)
{
	t->end = (struct odm_load_moment){ .ping = ping };
}

static void answer(struct odm_load_moment *m, uint64_t ping, const struct odm_load_counts *now)
{
	if (m->ping == 0 || m->known || ping < m->ping)
		return;
	m->known = true;
	m->at = *now;
}

void odm_load_tally_pong(struct odm_load_tally *t, uint64_t ping, const struct odm_load_counts *now)
{
	t->now = *now;
	answer(&t->begin, ping, now);
	answer(&t->end, ping, now);
}

bool odm_load_tally_waits(const struct odm_load_tally *t)
{
	return (t->begin.ping != 0 && !t->begin.known) || (t->end.ping != 0 && !t->end.known);
}

struct odm_load_counts odm_load_tally_between(const struct odm_load_tally *t)
{
	const struct odm_load_counts *from = &t->begin.at, *to = t->end.known ? &t->end.at : &t->now;
	struct odm_load_counts sum = t->before;

	if (t->begin.known && to->begun >= from->begun && to->extra >= from->extra) {
		sum.begun += to->begun - from->begun;
		sum.extra += to->extra - from->extra;
	}
	return sum;
}
