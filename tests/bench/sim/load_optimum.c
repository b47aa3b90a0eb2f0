/* load_optimum.c - the least makespan, by trying every sequence that need be tried.
 *
 * One permutation of the tasks suffices for E-reads, SM-reads and inflaters together; only how E- and SM-reads are
 * mixed is free. Take any schedule of the machine, and its tasks in the order in which they are ready (r). Which times
 * hold an E-read, an SM-read, the start of an inflation depends on the mixture alone, as all E-chunks cost the same.
 * Give the E-reads and SM-reads to the tasks in that order. By r(j) at least j of the SM-reads were done, and of the
 * inflations of read chunks those of j tasks, so each task can still have its chunks by its r(j): the i-th inflation
 * of a read chunk takes the i-th read chunk, those of cached chunks stay. Unit jobs with release times and deadlines on
 * given times can be met if the earliest deadline goes first, and that is the machine with this order as priority. No
 * task is ready later, so no expert is, and the stream ends no later.
 *
 * Inflaters that wait for a more urgent chunk while others are ready are not considered: the machine has none. */
#include "tests/bench/sim/load_sim.h"

struct search {
	const struct od_load_task *task;
	const struct od_load_costs *costs;
	size_t n;
	uint64_t best_ns, bound_ns;
	struct od_load_order order;

	size_t n_e, n_sm; /* tasks whose E-chunks, SM-chunk are read, in the order's sequence */
	uint16_t e[OD_OPTIMUM_TASKS], sm[OD_OPTIMUM_TASKS];
	/* What the experts of e[i], e[i + 1] ... run. */
	uint64_t e_run_ns[OD_OPTIMUM_TASKS + 1], sm_run_ns[OD_OPTIMUM_TASKS + 1];
};

/* Experts that still wait for a read are ready after it. */
static bool is_hopeless(const struct search *s, size_t e_chunks, size_t n_sm, uint64_t now)
{
	const struct od_load_costs *c = s->costs;
	size_t e = e_chunks / c->n_chunks;

	return s->best_ns <= s->bound_ns ||
	       (n_sm < s->n_sm && now + c->sm_read_ns + s->sm_run_ns[n_sm] >= s->best_ns) ||
	       (e < s->n_e && now + c->e_read_ns + c->inflate_ns + s->e_run_ns[e] >= s->best_ns);
}

/* As far as the reader has come. */
static void mix(struct search *s, size_t e_chunks, size_t n_sm, uint64_t now)
{
	struct od_load_order *o = &s->order;
	uint64_t done_ns;

	if (is_hopeless(s, e_chunks, n_sm, now))
		return;
	if (e_chunks == s->n_e * s->costs->n_chunks && n_sm == s->n_sm) {
		done_ns = od_load_sim(s->task, s->costs, o).done_ns;
		s->best_ns = done_ns < s->best_ns ? done_ns : s->best_ns;
		return;
	}
	o->n_reads++;
	if (e_chunks < s->n_e * s->costs->n_chunks) {
		o->read[o->n_reads - 1] = (struct od_load_read){ s->e[e_chunks / s->costs->n_chunks], 1 };
		mix(s, e_chunks + 1, n_sm, now + s->costs->e_read_ns);
	}
	if (n_sm < s->n_sm) {
		o->read[o->n_reads - 1] = (struct od_load_read){ s->sm[n_sm], 0 };
		mix(s, e_chunks, n_sm + 1, now + s->costs->sm_read_ns);
	}
	o->n_reads--;
}

/* sum[i]: of the experts of list[i], list[i + 1] ..., each once. */
static void sum_runs(const struct search *s, const uint16_t *list, size_t n, uint64_t *sum)
{
	sum[n] = 0;
	for (size_t i = n; i-- > 0;) {
		bool seen = false;

		for (size_t j = i + 1; j < n; j++)
			seen = seen || s->task[list[j]].expert == s->task[list[i]].expert;
		sum[i] = sum[i + 1] + (seen ? 0 : s->task[list[i]].run_ns);
	}
}

static void try_permutation(struct search *s)
{
	s->n_e = s->n_sm = 0;
	for (size_t i = 0; i < s->n; i++) {
		uint16_t task = s->order.task[i];

		if (!s->task[task].has_e)
			s->e[s->n_e++] = task;
		if (!s->task[task].has_sm)
			s->sm[s->n_sm++] = task;
	}
	sum_runs(s, s->e, s->n_e, s->e_run_ns);
	sum_runs(s, s->sm, s->n_sm, s->sm_run_ns);
	s->order.n_reads = 0;
	mix(s, 0, 0, 0);
}

static bool is_alike(const struct od_load_task *a, const struct od_load_task *b)
{
	return a->expert == b->expert && a->has_e == b->has_e && a->has_sm == b->has_sm;
}

/* used: one bit a task. Of tasks that are alike the first goes first. */
static void permute(struct search *s, unsigned used)
{
	size_t at = s->order.n_tasks;

	if (at == s->n) {
		try_permutation(s);
		return;
	}
	s->order.n_tasks++;
	for (size_t i = 0; i < s->n; i++) {
		bool skip = used >> i & 1;

		for (size_t j = 0; j < i; j++)
			skip = skip || (!(used >> j & 1) && is_alike(&s->task[j], &s->task[i]));
		if (skip)
			continue;
		s->order.task[at] = (uint16_t)i;
		permute(s, used | 1u << i);
	}
	s->order.n_tasks--;
}

uint64_t od_load_optimum(const struct od_load_task *task, size_t n, const struct od_load_costs *costs,
			 uint64_t known_ns)
{
	struct search s = {
		.task = task, .costs = costs, .n = n, .best_ns = known_ns, .bound_ns = od_load_bound(task, n, costs)
	};

	permute(&s, 0);
	return s.best_ns;
}
