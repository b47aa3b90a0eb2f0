/* load_sim.c - loads in virtual time, and the bound below every makespan. */
#include "tests/bench/sim/load_sim.h"

struct machine {
	const struct od_load_task *task;
	const struct od_load_costs *costs;
	const struct od_load_order *order;

	size_t at; /* in order->read */
	uint16_t of_read; /* E-chunks of it that have come */
	uint64_t read_ns;
	uint32_t n_there[OD_ORDER_TASKS], n_taken[OD_ORDER_TASKS]; /* E-chunks, by task */
	uint64_t ready_ns[OD_ORDER_TASKS];
	uint64_t free_ns[OD_ORDER_INFLATERS];
};

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t next_read_ns(const struct machine *m)
{
	const struct od_load_order *o = m->order;

	if (m->at == o->n_reads)
		return UINT64_MAX;
	return m->read_ns + (o->read[m->at].n_chunks == 0 ? m->costs->sm_read_ns : m->costs->e_read_ns);
}

static void read_one(struct machine *m)
{
	const struct od_load_read *r = &m->order->read[m->at];

	m->read_ns = next_read_ns(m);
	if (r->n_chunks == 0)
		m->ready_ns[r->task] = later(m->ready_ns[r->task], m->read_ns);
	else
		m->n_there[r->task]++;
	if (r->n_chunks == 0 || ++m->of_read == r->n_chunks) {
		m->of_read = 0;
		m->at++;
	}
}

/* The task whose chunk is taken; -1: none is there. */
static int first_there(const struct machine *m)
{
	for (size_t i = 0; i < m->order->n_tasks; i++) {
		uint16_t task = m->order->task[i];

		if (m->n_taken[task] < m->n_there[task])
			return task;
	}
	return -1;
}

static void inflate_one(struct machine *m)
{
	unsigned lane = 0;
	uint64_t now;
	int task;

	for (unsigned l = 1; l < m->costs->n_inflaters; l++)
		if (m->free_ns[l] < m->free_ns[lane])
			lane = l;
	now = m->free_ns[lane];
	while (next_read_ns(m) <= now)
		read_one(m);
	for (task = first_there(m); task < 0; task = first_there(m)) {
		read_one(m);
		now = m->read_ns;
	}
	m->n_taken[task]++;
	m->free_ns[lane] = now + m->costs->inflate_ns;
	m->ready_ns[task] = later(m->ready_ns[task], m->free_ns[lane]);
}

/* Experts run as they become ready: of one stream that never waits in vain, no other order ends earlier. */
static uint64_t run_all(const struct machine *m)
{
	uint64_t ready_ns[OD_ORDER_TASKS], now = 0;
	size_t first[OD_ORDER_TASKS], n = 0;

	for (size_t i = 0; i < m->order->n_tasks; i++) {
		size_t e = 0;

		while (e < n && m->task[first[e]].expert != m->task[i].expert)
			e++;
		if (e == n) {
			first[n] = i;
			ready_ns[n++] = 0;
		}
		ready_ns[e] = later(ready_ns[e], m->ready_ns[i]);
	}
	for (size_t least; n > 0; n--) {
		least = 0;
		for (size_t e = 1; e < n; e++)
			if (ready_ns[e] < ready_ns[least])
				least = e;
		now = later(now, ready_ns[least]) + m->task[first[least]].run_ns;
		first[least] = first[n - 1];
		ready_ns[least] = ready_ns[n - 1];
	}
	return now;
}

struct od_load_times od_load_sim(const struct od_load_task *task, const struct od_load_costs *costs,
				 const struct od_load_order *order)
{
	struct machine m = { .task = task, .costs = costs, .order = order };
	struct od_load_times t = { 0 };

	for (size_t i = 0; i < order->n_tasks; i++)
		m.n_there[i] = task[i].has_e ? costs->n_chunks : 0;
	for (size_t left = order->n_tasks * costs->n_chunks; left > 0; left--)
		inflate_one(&m);
	while (m.at < order->n_reads)
		read_one(&m);
	t.read_ns = m.read_ns;
	for (unsigned l = 0; l < costs->n_inflaters; l++)
		t.inflated_ns = later(t.inflated_ns, m.free_ns[l]);
	t.done_ns = run_all(&m);
	return t;
}

/* --- the bound --- */

struct work {
	uint64_t read_ns, run_ns, least_run_ns;
	size_t n_chunks;
};

static uint64_t inflate_bound(const struct od_load_costs *c, size_t n_chunks)
{
	return (n_chunks + c->n_inflaters - 1) / c->n_inflaters * c->inflate_ns;
}

/* Of all tasks, or of those of one expert. */
static struct work work_of(const struct od_load_task *task, size_t n, const struct od_load_costs *c,
			   const struct od_load_task *of)
{
	struct work w = { .least_run_ns = UINT64_MAX };

	for (size_t i = 0; i < n; i++) {
		bool first = true;

		if (of != NULL && task[i].expert != of->expert)
			continue;
		for (size_t j = 0; j < i; j++)
			first = first && task[j].expert != task[i].expert;
		w.read_ns += (task[i].has_e ? 0 : c->n_chunks * c->e_read_ns) + (task[i].has_sm ? 0 : c->sm_read_ns);
		w.n_chunks += c->n_chunks;
		w.run_ns += first ? task[i].run_ns : 0;
		w.least_run_ns = task[i].run_ns < w.least_run_ns ? task[i].run_ns : w.least_run_ns;
	}
	return w;
}

/* Reader, inflaters and stream have that much to do. Some expert runs after the last read and the last inflated chunk;
 * none before the quickest one is ready. */
uint64_t od_load_bound(const struct od_load_task *task, size_t n, const struct od_load_costs *costs)
{
	struct work all = work_of(task, n, costs, NULL);
	uint64_t load_ns = later(all.read_ns, inflate_bound(costs, all.n_chunks)), least_ns = UINT64_MAX, bound;

	if (n == 0)
		return 0;
	bound = load_ns + all.least_run_ns;
	for (size_t i = 0; i < n; i++) {
		struct work own = work_of(task, n, costs, &task[i]);
		uint64_t ready_ns = later(own.read_ns, inflate_bound(costs, own.n_chunks));

		least_ns = ready_ns < least_ns ? ready_ns : least_ns;
		bound = later(bound, ready_ns + task[i].run_ns);
	}
	return later(bound, least_ns + all.run_ns);
}
