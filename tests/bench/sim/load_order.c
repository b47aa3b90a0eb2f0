/* load_order.c - orders of loads.
 *
 * Algorithm 1 of the paper leaves gaps, which are filled as follows:
 * - A task leaves U, but neither sigma: here it leaves its sigma too, and the base leaves U; else it is in two blocks.
 * - Blocks begin with a Type-I task only. When none is left, here they begin with the first Type-II task; else those
 * are
 *   never loaded when the blocks before closed early, or there is no Type-I task.
 * - Definition A.1 says "0 <= k <= min(L, K)", for every l. Here k = l, for l = 1 ... min(L, K), inflaters by rising
 *   completion: the next block's E-chunk l comes l reads later; then inflater l is still busy, and no gap appears between
 *   the blocks. In section 3.3, "(l-p)/K u" is l times rho u / K, misprinted.
 * - "The earliest position that introduces no additional idle period" is here the earliest behind the tasks that
 * precede it
 *   in U. A block's E-chunks are read before all else and cost the same, so idle time is the same at every position; the
 *   very first position would turn the order around, shortest run first.
 * - Without such a position "the tail of any Type-II job" with a run as long is the same place; a first Type-II task
 * goes
 *   behind the Type-I tasks with runs as long. The Type-II jobs in a block are all as long, being sorted.
 * - A Type-I task without such a position goes to the end of the block: all others in it precede it in U.
 * - Completion times of a block go on from the block before; what is cached in it can be inflated from its beginning,
 * and
 *   idle time counts from there: blocks run one after another, inflaters wait for nothing.
 *
 * With k = 0, with only the last inflater looked at, or with u for rho u, makespans change by less than 0.2 % on
 * average; with the very first position they are up to three times as far from the optimum. The proof of Lemma B.5 says
 * that blocks never close when c < rho u. That is not so: with u = 24, rho u = 8, K = 8, c = 7 and one inflater the
 * first task's reads end at 32, its inflating at 57. */
#include "tests/bench/sim/load_order.h"

#include <string.h>

/* --- an order from its blocks --- */

void od_load_order_reads(struct od_load_order *o, const struct od_load_task *task, uint16_t n_chunks)
{
	o->n_reads = 0;
	for (size_t from = 0, to; from < o->n_tasks; from = to) {
		for (to = from; to < o->n_tasks && o->block[to] == o->block[from]; to++)
			if (!task[o->task[to]].has_e)
				o->read[o->n_reads++] = (struct od_load_read){ o->task[to], n_chunks };
		for (size_t i = from; i < to; i++)
			if (!task[o->task[i]].has_sm)
				o->read[o->n_reads++] = (struct od_load_read){ o->task[i], 0 };
	}
}

static void append(struct od_load_order *o, size_t task, size_t block)
{
	o->task[o->n_tasks] = (uint16_t)task;
	o->block[o->n_tasks++] = (uint16_t)block;
}

/* The first task of the same expert. */
static size_t first_of(const struct od_load_task *task, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (task[j].expert == task[i].expert)
			return j;
	return i;
}

/* --- Johnson's rule --- */

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* A block an expert, in the worker's order; ranks are places. */
static void order_johnson(struct od_load_order *o, const struct od_load_task *task, size_t n,
			  const struct od_load_costs *c)
{
	size_t at[OD_ORDER_TASKS], n_experts = 0;
	struct odw_run_load load[OD_ORDER_TASKS];
	uint64_t inflate_ns[OD_ORDER_TASKS] = { 0 };

	for (size_t i = 0; i < n; i++) {
		const size_t first = first_of(task, i);

		at[i] = first == i ? n_experts++ : at[first];
		if (first == i)
			load[at[i]] = (struct odw_run_load){ .run_ns = task[i].run_ns, .rank = (uint32_t)at[i] };
		load[at[i]].read_ns +=
			(task[i].has_sm ? 0 : c->sm_read_ns) + (task[i].has_e ? 0 : c->e_read_ns * c->n_chunks);
		inflate_ns[at[i]] += c->inflate_ns * c->n_chunks;
	}
	for (size_t e = 0; e < n_experts; e++)
		load[e].load_ns = later(load[e].read_ns, inflate_ns[e] / c->n_inflaters);
	odw_run_order(load, n_experts);
	for (size_t block = 0; block < n_experts; block++)
		for (size_t i = 0; i < n; i++)
			if (load[at[i]].rank == block)
				append(o, i, block);
}

/* --- Algorithm 1 --- */

struct block {
	uint16_t task[OD_ORDER_TASKS];
	size_t n, n_cached, n_arriving, n_sm; /* tasks; E-chunks; SM-chunks */
};

struct builder {
	const struct od_load_task *task;
	const struct od_load_costs *costs;
	uint16_t queue[OD_ORDER_TASKS]; /* U: Type II (SM-chunk cached), then Type I, each by falling p_n */
	size_t n_queue;
	uint64_t begin_ns; /* when the reader comes to this block */
	uint64_t free_ns[OD_ORDER_INFLATERS]; /* when inflaters have done the blocks before; rising, from begin_ns */
};

static void add(const struct builder *b, struct block *block, size_t at, uint16_t task)
{
	memmove(&block->task[at + 1], &block->task[at], (block->n - at) * sizeof(*block->task));
	block->task[at] = task;
	block->n++;
	block->n_sm += !b->task[task].has_sm;
	*(b->task[task].has_e ? &block->n_cached : &block->n_arriving) += b->costs->n_chunks;
}

static uint64_t read_end_ns(const struct builder *b, const struct block *block)
{
	return b->begin_ns + block->n_arriving * b->costs->e_read_ns + block->n_sm * b->costs->sm_read_ns;
}

/* When the block's E-chunk i is inflated. All take equally long, so the one that is begun i-th ends i-th and waits for
 * its arrival and for number i - L: a chain back to an inflater's free_ns. Cached chunks come first, the others arrive
 * evenly, so only the first and the last arrival of the chain can matter. This needs free_ns to differ by no more than
 * one inflate_ns: they do, since everything in earlier blocks arrived before begin_ns and no inflater waits. */
static uint64_t inflated_ns(const struct builder *b, const struct block *block, size_t i)
{
	const struct od_load_costs *c = b->costs;
	size_t lanes = c->n_inflaters, lane = i % lanes, cached = block->n_cached;
	size_t first = cached + (lane + lanes - cached % lanes) % lanes;
	uint64_t end = b->free_ns[lane] + (i / lanes + 1) * c->inflate_ns;

	if (first <= i) {
		end = later(end, b->begin_ns + (first - cached + 1) * c->e_read_ns +
					 ((i - first) / lanes + 1) * c->inflate_ns);
		end = later(end, b->begin_ns + (i - cached + 1) * c->e_read_ns + c->inflate_ns);
	}
	return end;
}

/* Rising. */
static void inflaters_done(const struct builder *b, const struct block *block, uint64_t *done_ns)
{
	size_t n = block->n_cached + block->n_arriving, lanes = b->costs->n_inflaters;

	for (size_t l = 0; l < lanes; l++)
		done_ns[l] = n + l < lanes ? b->free_ns[n + l] : inflated_ns(b, block, n + l - lanes);
}

/* Definition A.1 with k = l: the next block's E-chunk l arrives l reads later, and the l-th inflater is still busy. */
static bool is_compute_dominant(const struct builder *b, const struct block *block, const uint64_t *done_ns)
{
	const struct od_load_costs *c = b->costs;
	size_t most = c->n_inflaters < c->n_chunks ? c->n_inflaters : c->n_chunks;
	uint64_t read_ns = read_end_ns(b, block);

	for (size_t l = 1; l <= most; l++)
		if (done_ns[l - 1] < read_ns + l * c->e_read_ns)
			return false;
	return true;
}

/* How long inflaters wait before their last chunk. */
static uint64_t idle_ns(const struct builder *b, const struct block *block)
{
	uint64_t done_ns[OD_ORDER_INFLATERS], sum = 0;

	inflaters_done(b, block, done_ns);
	for (size_t l = 0; l < b->costs->n_inflaters; l++)
		sum += done_ns[l] - b->free_ns[l];
	return sum - (block->n_cached + block->n_arriving) * b->costs->inflate_ns;
}

/* Where the task goes: behind those of its type, Type II before Type I. Which place it is makes no difference to idle
 * time, as a block's E-chunks are read first anyway. A first Type-II task that brings idle time wherever it stands goes
 * behind the Type-I tasks with longer runs. */
static size_t place_of(const struct builder *b, const struct block *block, uint16_t task)
{
	struct block with = *block;
	size_t at = 0;

	if (!b->task[task].has_sm)
		return block->n;
	for (size_t i = 0; i < block->n; i++)
		if (b->task[block->task[i]].has_sm)
			at = i + 1;
	if (at > 0)
		return at;
	add(b, &with, 0, task);
	if (idle_ns(b, &with) > idle_ns(b, block))
		while (at < block->n && b->task[block->task[at]].run_ns >= b->task[task].run_ns)
			at++;
	return at;
}

static uint16_t take(struct builder *b, size_t at)
{
	uint16_t task = b->queue[at];

	b->n_queue--;
	memmove(&b->queue[at], &b->queue[at + 1], (b->n_queue - at) * sizeof(*b->queue));
	return task;
}

/* The first of Type I; when there is none, the first of Type II. */
static uint16_t take_base(struct builder *b)
{
	for (size_t i = 0; i < b->n_queue; i++)
		if (!b->task[b->queue[i]].has_sm)
			return take(b, i);
	return take(b, 0);
}

static void build_block(struct builder *b, struct block *block)
{
	uint64_t done_ns[OD_ORDER_INFLATERS];

	block->n = block->n_cached = block->n_arriving = block->n_sm = 0;
	add(b, block, 0, take_base(b));
	inflaters_done(b, block, done_ns);
	while (b->n_queue > 0 && !is_compute_dominant(b, block, done_ns)) {
		uint16_t task = take(b, 0);

		add(b, block, place_of(b, block, task), task);
		inflaters_done(b, block, done_ns);
	}
	b->begin_ns = read_end_ns(b, block);
	for (size_t l = 0; l < b->costs->n_inflaters; l++)
		b->free_ns[l] = later(done_ns[l], b->begin_ns);
}

static bool queued_before(const struct od_load_task *task, const uint16_t *first, size_t a, size_t b)
{
	if (task[a].has_sm != task[b].has_sm)
		return task[a].has_sm;
	if (task[a].run_ns != task[b].run_ns)
		return task[a].run_ns > task[b].run_ns;
	return first[a] < first[b];
}

static void order_blocks(struct od_load_order *o, const struct od_load_task *task, size_t n,
			 const struct od_load_costs *costs)
{
	struct builder b = { .task = task, .costs = costs, .n_queue = n };
	uint16_t first[OD_ORDER_TASKS];
	struct block block;

	for (size_t i = 0, j; i < n; i++) {
		first[i] = (uint16_t)first_of(task, i);
		for (j = i; j > 0 && queued_before(task, first, i, b.queue[j - 1]); j--)
			b.queue[j] = b.queue[j - 1];
		b.queue[j] = (uint16_t)i;
	}
	for (size_t number = 0; b.n_queue > 0; number++) {
		build_block(&b, &block);
		for (size_t i = 0; i < block.n; i++)
			append(o, block.task[i], number);
	}
}

int od_load_order(struct od_load_order *o, enum od_load_rule rule, const struct od_load_task *task, size_t n,
		  const struct od_load_costs *c)
{
	o->n_tasks = o->n_reads = 0;
	if (n > OD_ORDER_TASKS || c->n_chunks == 0 || c->n_chunks > OD_ORDER_CHUNKS || c->n_inflaters == 0 ||
	    c->n_inflaters > OD_ORDER_INFLATERS || c->sm_read_ns > OD_ORDER_COST_NS ||
	    c->e_read_ns > OD_ORDER_COST_NS || c->inflate_ns > OD_ORDER_COST_NS)
		return OD_ERR_RANGE;
	switch (rule) {
	case OD_LOAD_FIFO:
		for (size_t i = 0; i < n; i++)
			append(o, i, i);
		break;
	case OD_LOAD_BLOCKS: order_blocks(o, task, n, c); break;
	case OD_LOAD_JOHNSON: order_johnson(o, task, n, c); break;
	}
	od_load_order_reads(o, task, c->n_chunks);
	return OD_OK;
}
