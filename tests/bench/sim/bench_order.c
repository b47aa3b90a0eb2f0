/* bench_order.c - od-bench order: rules for the order of loads against the best order there is, in virtual time. */
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_table.h"
#include "tests/bench/report/load_draw.h"
#include "tests/bench/sim/load_sim.h"

#include <math.h>
#include <stdio.h>

#define DEFAULT_INSTANCES 1000
/* A tensor of Mixtral-8x7B's experts; GB/s are bytes per ns. */
#define TENSOR_WEIGHTS (4096.0 * 14336.0)
#define E_RATIO 0.33 /* rho: coded exponents over exponents */

enum rule { FIFO, E_FIRST, SHORTEST, BLOCKS, JOHNSON, N_RULES };
static const char *const rule_names[] = { "fifo", "e-first", "shortest", "blocks", "johnson" };

struct scenario {
	const char *key, *name;
	bool pools, prefill;
	uint64_t min_experts, max_experts, min_tensors, max_tensors;
	uint64_t min_chunks, max_chunks;
};

static const struct scenario scenarios[] = {
	{ "one", "one expert", false, true, 1, 1, 1, 3, 1, 8 },
	{ "decode", "decode", false, false, 2, 4, 1, 2, 1, 8 },
	{ "decode-pools", "decode, pools", true, false, 2, 4, 1, 2, 1, 8 },
	{ "prefill", "prefill", false, true, 2, 4, 1, 2, 1, 8 },
	{ "prefill-pools", "prefill, pools", true, true, 2, 4, 1, 2, 1, 8 },
	{ "decode-8", "decode, 8 experts", false, false, 8, 8, 3, 3, 16, 112 },
	{ "decode-pools-8", "decode, 8, pools", true, false, 8, 8, 3, 3, 16, 112 },
	{ "prefill-8", "prefill, 8 experts", false, true, 8, 8, 3, 3, 16, 112 },
	{ "prefill-pools-8", "prefill, 8, pools", true, true, 8, 8, 3, 3, 16, 112 },
};
#define N_SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

struct instance {
	struct od_load_task task[OD_ORDER_TASKS];
	struct od_load_costs costs;
	size_t n;
};

struct tally {
	size_t n, n_least, n_as_fifo;
	double gap_sum, gap_worst;
	double of_guarantee; /* the greatest ratio to the least, over 3 - 1 / L (Theorem 3.1) */
};

/* --- drawing --- */

static uint64_t draw_from(uint64_t *state, uint64_t low, uint64_t high)
{
	return low + od_load_draw(state) % (high - low + 1);
}

static double draw_of(uint64_t *state, const double *value, size_t n)
{
	return value[od_load_draw(state) % n];
}

static void draw_costs(struct od_load_costs *c, const struct scenario *s, uint64_t *state)
{
	/* Storage; decoders of one core: zstd level 3, zstd with literals only, planes; GB/s, of BF16 for decoders. */
	static const double storage[] = { 1, 3.5, 7, 25 }, decoder[] = { 2.6, 5.5, 25 };
	double read_gbps = draw_of(state, storage, 4), inflate_gbps = draw_of(state, decoder, 3);
	uint64_t chunks = draw_from(state, s->min_chunks, s->max_chunks);

	c->n_chunks = (uint16_t)chunks;
	c->n_inflaters = (unsigned)draw_from(state, 1, 4);
	c->sm_read_ns = (uint64_t)(TENSOR_WEIGHTS / read_gbps);
	c->e_read_ns = (uint64_t)(TENSOR_WEIGHTS * E_RATIO / read_gbps / (double)chunks);
	c->inflate_ns = (uint64_t)(TENSOR_WEIGHTS * 2 / inflate_gbps / (double)chunks);
}

static void draw_instance(struct instance *in, const struct scenario *s, uint64_t *state)
{
	uint64_t tensors = draw_from(state, s->min_tensors, s->max_tensors);
	uint64_t experts = draw_from(
		state, s->min_experts,
		tensors > 1 && s->max_experts <= 4 ? s->min_experts : s->max_experts); /* few enough for the optimum */

	draw_costs(&in->costs, s, state);
	in->n = 0;
	for (uint64_t e = 0; e < experts; e++) {
		uint64_t cached = s->pools ? draw_from(state, 0, 3) : 0;
		double rows = s->prefill ? od_load_draw_rows(state) : 1;
		double weights = TENSOR_WEIGHTS * (double)tensors;
		double run_ns = od_load_run_ns(weights, 2 * weights, rows);

		for (uint64_t i = 0; i < tensors; i++)
			in->task[in->n++] = (struct od_load_task){ .expert = (uint32_t)e,
								   .has_e = cached & 1,
								   .has_sm = cached >> 1,
								   .run_ns = (uint64_t)run_ns };
	}
}

/* --- rules that are here to be compared with --- */

static uint64_t expert_read_ns(const struct instance *in, uint32_t expert)
{
	uint64_t ns = 0;

	for (size_t i = 0; i < in->n; i++)
		if (in->task[i].expert == expert)
			ns += (in->task[i].has_e ? 0 : in->costs.n_chunks * in->costs.e_read_ns) +
			      (in->task[i].has_sm ? 0 : in->costs.sm_read_ns);
	return ns;
}

/* An expert's tasks stay together, since their times are equal and tasks come expert by expert. */
static void shortest_first(struct od_load_order *o, const struct instance *in)
{
	for (size_t i = 0, j; i < in->n; i++) {
		uint64_t ns = expert_read_ns(in, in->task[i].expert);

		for (j = i; j > 0 && expert_read_ns(in, in->task[o->task[j - 1]].expert) > ns; j--)
			o->task[j] = o->task[j - 1];
		o->task[j] = (uint16_t)i;
	}
	for (size_t i = 1; i < in->n; i++)
		o->block[i] = o->block[i - 1] + (in->task[o->task[i]].expert != in->task[o->task[i - 1]].expert);
}

static int order_by(struct od_load_order *o, enum rule rule, const struct instance *in)
{
	enum od_load_rule own = rule == BLOCKS ? OD_LOAD_BLOCKS : rule == JOHNSON ? OD_LOAD_JOHNSON : OD_LOAD_FIFO;
	int rc = od_load_order(o, own, in->task, in->n, &in->costs);

	if (rule == E_FIRST)
		for (size_t i = 0; i < in->n; i++)
			o->block[i] = 0;
	if (rule == SHORTEST)
		shortest_first(o, in);
	od_load_order_reads(o, in->task, in->costs.n_chunks);
	return rc;
}

/* --- measuring --- */

static void count(struct tally *t, uint64_t done_ns, uint64_t least_ns, uint64_t fifo_ns, unsigned n_inflaters)
{
	double ratio = (double)done_ns / (double)least_ns;

	t->n++;
	t->n_least += done_ns == least_ns;
	t->n_as_fifo += done_ns == fifo_ns;
	t->gap_sum += ratio - 1;
	t->gap_worst = fmax(t->gap_worst, ratio - 1);
	t->of_guarantee = fmax(t->of_guarantee, ratio / (3 - 1.0 / n_inflaters));
}

static int measure(struct tally *tally, const struct scenario *s, uint64_t instances, uint64_t seed, struct od_err *err)
{
	uint64_t state = seed, done_ns[N_RULES], least_ns;
	struct od_load_order order;
	struct instance in;

	for (uint64_t i = 0; i < instances; i++) {
		draw_instance(&in, s, &state);
		least_ns = UINT64_MAX;
		for (int r = 0; r < N_RULES; r++) {
			int rc = order_by(&order, (enum rule)r, &in);

			if (rc != OD_OK)
				return od_fail(err, rc, "%s, instance %llu", s->name, (unsigned long long)i);
			done_ns[r] = od_load_sim(in.task, &in.costs, &order).done_ns;
			least_ns = done_ns[r] < least_ns ? done_ns[r] : least_ns;
		}
		least_ns = in.n <= OD_OPTIMUM_TASKS ? od_load_optimum(in.task, in.n, &in.costs, least_ns) :
						      od_load_bound(in.task, in.n, &in.costs);
		for (int r = 0; r < N_RULES; r++)
			count(&tally[r], done_ns[r], least_ns, done_ns[FIFO], in.costs.n_inflaters);
	}
	return OD_OK;
}

static int run(uint64_t instances, uint64_t seed, bool json, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "scenario", "experts", 0 },	{ "rule", "rule", 0 },
		{ "against", "against", 0 },	{ "gap_mean", "mean gap, %", 2 },
		{ "gap_worst", "worst, %", 1 }, { "least", "none, %", 1 },
		{ "as_fifo", "as fifo, %", 1 }, { "of_guarantee", "of 3-1/L", 2 },
	};
	struct od_report *r;
	struct od_table *t;
	int rc = od_report_new(&r, "Order of loads: makespans above the least, in virtual time", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "instances", "instances of each", OD_INT(instances), 0, NULL);
	od_report_fact(r, "seed", "seed", OD_INT(seed), 0, NULL);
	t = od_report_table(r, "orders", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t s = 0; rc == OD_OK && s < N_SCENARIOS; s++) {
		struct tally tally[N_RULES] = { 0 };

		rc = measure(tally, &scenarios[s], instances, seed, err);
		for (int i = 0; rc == OD_OK && i < N_RULES; i++)
			od_table_row(
				t, (struct od_cell[]){
					   OD_TEXT(json ? scenarios[s].key : scenarios[s].name),
					   OD_TEXT(rule_names[i]),
					   OD_TEXT(scenarios[s].max_experts <= OD_OPTIMUM_TASKS ? "optimum" : "bound"),
					   OD_REAL(100 * tally[i].gap_sum / (double)tally[i].n),
					   OD_REAL(100 * tally[i].gap_worst),
					   OD_REAL(100.0 * (double)tally[i].n_least / (double)tally[i].n),
					   OD_REAL(100.0 * (double)tally[i].n_as_fifo / (double)tally[i].n),
					   OD_REAL(tally[i].of_guarantee),
				   });
	}
	if (rc == OD_OK)
		rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

int od_bench_order(int argc, char **argv, struct od_err *err)
{
	uint64_t instances = DEFAULT_INSTANCES, seed = 1;
	bool help = false, json = false;
	size_t n;
	const struct od_arg table[] = {
		{ "instances", OD_ARG_UINT, &instances, "N", "instances of each kind; default 1000", 1, 1000000, NULL },
		{ "seed", OD_ARG_UINT, &seed, "N", "random seed; default 1", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "print this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n_table, argc, argv, NULL, 0, &n, err);

	if (rc != OD_OK)
		return rc;
	if (help) {
		od_bench_usage("order [OPTIONS]",
			       "Draws random sets of experts to load (cached parts, rows, speeds), "
			       "orders their loads by each\nrule, and prints how much later the last expert ends than "
			       "with the optimal order. Up to 4\ntensors the optimum comes from trying all orders, "
			       "with more it is a lower bound.\nA simulation: the same figures on every machine.",
			       table, n_table);
		return OD_OK;
	}
	return run(instances, seed, json, err);
}
