/* The virtual clock: a heap of events, and links as queues. */
#include "deploy/plan/sim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local uint64_t virtual_ns;

uint64_t odp_clock_ns(void)
{
	return virtual_ns;
}

void odp_clock_set(uint64_t ns)
{
	virtual_ns = ns;
}

/* ---- Events ---- */

static bool is_before(const struct sim_event *a, const struct sim_event *b)
{
	if (a->at_ns != b->at_ns)
		return a->at_ns < b->at_ns;
	return a->kind != b->kind ? a->kind < b->kind : a->serial < b->serial;
}

static bool grow(struct sim_heap *h)
{
	const size_t cap = h->cap > 0 ? 2 * h->cap : 256;
	struct sim_event *more = realloc(h->event, cap * sizeof(*more));

	if (more == NULL)
		return false;
	h->event = more;
	h->cap = cap;
	return true;
}

void odp_at(struct odp_sim *s, uint64_t at_ns, enum sim_event_kind kind, uint32_t who, uint64_t stamp,
	    struct sim_message *message)
{
	const struct sim_event e = {
		.at_ns = at_ns, .serial = s->heap.serial++, .kind = kind, .who = who, .stamp = stamp, .message = message
	};
	struct sim_heap *h = &s->heap;
	size_t at = h->n;

	if (h->n == h->cap && !grow(h)) {
		odp_message_free(message);
		s->rc = OD_ERR_NOMEM;
		return;
	}
	h->n++;
	for (; at > 0 && is_before(&e, &h->event[(at - 1) / 2]); at = (at - 1) / 2)
		h->event[at] = h->event[(at - 1) / 2];
	h->event[at] = e;
}

bool odp_next_event(struct odp_sim *s, struct sim_event *e)
{
	struct sim_heap *h = &s->heap;
	struct sim_event last;
	size_t at = 0;

	if (h->n == 0)
		return false;
	*e = h->event[0];
	last = h->event[--h->n];
	for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
		if (child + 1 < h->n && is_before(&h->event[child + 1], &h->event[child]))
			child++;
		if (!is_before(&h->event[child], &last))
			break;
		h->event[at] = h->event[child];
	}
	h->event[at] = last;
	if (e->at_ns > virtual_ns)
		virtual_ns = e->at_ns;
	return true;
}

/* ---- Messages ---- */

struct sim_message *odp_message(struct odp_sim *s, enum sim_message_kind kind, uint32_t from, uint32_t to, double bytes,
				size_t list_bytes)
{
	struct sim_message *m = calloc(1, sizeof(*m));
	void *list = list_bytes > 0 ? malloc(list_bytes) : NULL;

	if (m == NULL || (list == NULL && list_bytes > 0)) {
		free(m);
		free(list);
		s->rc = OD_ERR_NOMEM;
		return NULL;
	}
	*m = (struct sim_message){ .kind = kind, .from = from, .to = to, .bytes = bytes, .list = list };
	return m;
}

void odp_message_free(struct sim_message *m)
{
	if (m == NULL)
		return;
	free(m->list);
	free(m);
}

/* Occupies a port, from *begin on or later. */
static uint64_t occupy(struct sim_port *p, uint64_t *begin, double ns)
{
	const uint64_t took = (uint64_t)llround(ns);

	if (p->free_ns > *begin)
		*begin = p->free_ns;
	p->free_ns = *begin + took;
	*p->busy_ns += took;
	return p->free_ns;
}

static uint64_t way_ns(const struct odp_sim *s, const struct sim_message *m)
{
	return (uint64_t)llround(s->node[m->from == MAIN ? m->to : m->from].latency_ns / 2);
}

void odp_send(struct odp_sim *s, struct sim_message *m)
{
	struct sim_node *from = &s->node[m->from], *to = &s->node[m->to];
	uint64_t begin = virtual_ns;

	from->busy.up_bytes += (uint64_t)llround(m->bytes);
	to->busy.down_bytes += (uint64_t)llround(m->bytes);
	if (from->machine->link_rate <= 0 && to->machine->link_rate <= 0 && way_ns(s, m) == 0) {
		odp_deliver(s, m); /* no time passes, so nothing may come between */
		return;
	}
	m->left_ns = occupy(&from->up, &begin, odp_port_ns(from->machine, m->bytes));
	m->begun_ns = begin;
	odp_at(s, begin, EV_WIRE, 0, 0, m);
}

/* Its first byte is at the receiver's port, which takes it while the sender still sends. */
void odp_on_wire(struct odp_sim *s, struct sim_message *m)
{
	struct sim_node *to = &s->node[m->to];
	uint64_t begin = virtual_ns, end = occupy(&to->down, &begin, odp_port_ns(to->machine, m->bytes));

	odp_at(s, (end > m->left_ns ? end : m->left_ns) + way_ns(s, m), EV_ARRIVED, 0, 0, m);
}

static void to_main(struct odp_sim *s, struct sim_message *m)
{
	if (m->kind == MSG_RESULT)
		odp_layer_result(s, m);
	else if (m->kind == MSG_PREDICT)
		odp_predicted(s, m);
	else
		odp_shadow_answer(s, m);
}

/* The work that live daemons record when they send, too. */
static void trace_arrival(const struct odp_sim *s, const struct sim_message *m)
{
	if (m->kind == MSG_RUN || m->kind == MSG_RESULT)
		odp_trace(s, m->from, SENDS, m->kind == MSG_RUN ? "send RUNs" : "send", m->begun_ns,
			  (int64_t)m->run->step, m->m, -1);
}

void odp_deliver(struct odp_sim *s, struct sim_message *m)
{
	if (s->traces && m->begun_ns > 0)
		trace_arrival(s, m);
	if (m->to == MAIN)
		to_main(s, m);
	else if (m->to == SHADOW)
		odp_shadow_receive(s, m);
	else
		odp_worker_receive(s, m->to - FIRST_WORKER, m);
	odp_message_free(m);
}
