#include "main-node/engine/prefix/marks.h"

#define NEAR_END 8u /* tokens behind a page: what templates write before an answer */

/* ---- Where ---- */

static bool add_wanted(struct odm_marks *m, uint32_t length)
{
	uint32_t at = m->n_wanted;

	for (uint32_t i = 0; i < m->n_wanted; i++)
		if (m->wanted[i] == length)
			return true;
	if (m->n_wanted == ODM_MAX_WANTED)
		return false;
	for (; at > 0 && m->wanted[at - 1] > length; at--)
		m->wanted[at] = m->wanted[at - 1];
	m->wanted[at] = length;
	m->n_wanted++;
	return true;
}

void odm_marks_plan(struct odm_marks *m, const struct odm_marks_plan *p)
{
	const uint32_t last = p->n_prefill / OD_KV_PAGE * OD_KV_PAGE;

	*m = (struct odm_marks){ .begin = p->begin, .end = p->begin, .answer = ODM_NO_PAGE };
	if (last > p->begin && add_wanted(m, last))
		m->last = last;
	if (p->n_prefill - last <= NEAR_END && last > p->begin + OD_KV_PAGE)
		(void)add_wanted(m, last - OD_KV_PAGE);
	if (p->known > p->begin && p->known < last)
		(void)add_wanted(m, p->known);
	for (size_t i = 0; i < p->n_forks; i++) {
		const size_t fork = p->fork[i] / OD_KV_PAGE * OD_KV_PAGE;

		if (fork > p->begin && fork < last)
			(void)add_wanted(m, (uint32_t)fork);
	}
}

bool odm_marks_want(struct odm_marks *m, uint32_t length)
{
	return length > m->end && add_wanted(m, length);
}

uint32_t odm_marks_coming(const struct odm_marks *m, uint32_t length, uint32_t most)
{
	uint32_t coming = 0;

	for (uint32_t i = 0; i < m->n_wanted; i++)
		if (m->wanted[i] > length && m->wanted[i] <= most)
			coming = m->wanted[i];
	return coming;
}

/* ---- When ---- */

static void mark(struct odm_marks *m, struct odm_snapshots *s, struct od_seq_state *state, uint64_t text,
		 uint32_t length)
{
	const uint32_t snapshot = odm_snapshots_take(s, m->answer, text);

	if (snapshot == ODM_NO_SNAPSHOT)
		return;
	od_seq_state_mark(state, length, snapshot);
	m->mark[m->n_marks].length = length;
	m->mark[m->n_marks++].snapshot = snapshot;
}

void odm_marks_begin(struct odm_marks *m, struct odm_snapshots *s, struct od_seq_state *state, uint64_t text,
		     uint32_t end, bool answer)
{
	const uint32_t begin = od_seq_state_length(state);

	m->end = end;
	if (answer) {
		if (begin / OD_KV_PAGE < end / OD_KV_PAGE)
			mark(m, s, state, text, end / OD_KV_PAGE * OD_KV_PAGE);
		return;
	}
	for (uint32_t i = 0; i < m->n_wanted; i++)
		if (m->wanted[i] > begin && m->wanted[i] <= end)
			mark(m, s, state, text, m->wanted[i]);
}
