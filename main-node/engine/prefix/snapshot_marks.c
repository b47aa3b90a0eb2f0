#include "main-node/engine/prefix/snapshot_marks.h"

#include "main-node/engine/engine_internal.h"

#include <string.h>

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

void odm_marks_plan(struct odm_sequence *q, uint32_t begin, uint32_t known)
{
	struct odm_marks *m = &q->marks;
	const uint32_t last = (uint32_t)q->n_prefill / OD_KV_PAGE * OD_KV_PAGE;

	*m = (struct odm_marks){ .begin = begin, .end = begin, .answer = ODM_NO_PAGE };
	if (last > begin)
		(void)add_wanted(m, last);
	if (q->n_prefill - last <= NEAR_END && last > begin + OD_KV_PAGE)
		(void)add_wanted(m, last - OD_KV_PAGE);
	if (known > begin && known < last)
		(void)add_wanted(m, known);
}

bool odm_marks_want(struct odm_sequence *q, uint32_t length)
{
	return length > q->marks.end && add_wanted(&q->marks, length);
}

uint32_t odm_marks_coming(const struct odm_sequence *q, uint32_t most)
{
	uint32_t length = 0;

	for (uint32_t i = 0; i < q->marks.n_wanted; i++)
		if (q->marks.wanted[i] > od_seq_state_length(q->state) && q->marks.wanted[i] <= most)
			length = q->marks.wanted[i];
	return length;
}

/* ---- When ---- */

static void mark(struct odm_sequence *q, uint32_t length)
{
	struct odm_marks *m = &q->marks;
	const uint32_t snapshot = odm_snapshots_take(q->engine->model->reuse.snapshots, m->answer, q->id);

	if (snapshot == ODM_NO_SNAPSHOT)
		return;
	od_seq_state_mark(q->state, length, snapshot);
	m->mark[m->n_marks].length = length;
	m->mark[m->n_marks++].snapshot = snapshot;
}

void odm_marks_begin(struct odm_sequence *q, uint32_t end)
{
	const uint32_t begin = od_seq_state_length(q->state);
	struct odm_marks *m = &q->marks;

	if (q->engine->model->reuse.snapshots == NULL)
		return;
	m->end = end;
	if (q->phase == ODM_IN_DECODE && begin / OD_KV_PAGE < end / OD_KV_PAGE)
		mark(q, end / OD_KV_PAGE * OD_KV_PAGE);
	for (uint32_t i = 0; q->phase == ODM_IN_PREFILL && i < m->n_wanted; i++)
		if (m->wanted[i] > begin && m->wanted[i] <= end)
			mark(q, m->wanted[i]);
}

static void keep(struct odm_sequence *q, uint32_t length, uint32_t snapshot)
{
	struct odm_snapshots *s = q->engine->model->reuse.snapshots;
	const uint32_t page = odm_reuse_add(q, length / OD_KV_PAGE);

	if (!odm_snapshots_keep(s, snapshot, page, q->id) || length <= q->n_prefill)
		return;
	if (q->marks.answer != ODM_NO_PAGE)
		odm_snapshots_forget(s, q->marks.answer, q->id);
	q->marks.answer = page;
}

void odm_marks_end(struct odm_sequence *q)
{
	struct odm_marks *m = &q->marks;

	for (uint32_t i = 0; i < m->n_marks; i++) {
		if (m->mark[i].length <= od_seq_state_length(q->state))
			keep(q, m->mark[i].length, m->mark[i].snapshot);
		else
			odm_snapshots_give_back(q->engine->model->reuse.snapshots, m->mark[i].snapshot);
	}
	if (m->n_marks > 0)
		od_seq_state_unmark(q->state);
	m->n_marks = 0;
}
