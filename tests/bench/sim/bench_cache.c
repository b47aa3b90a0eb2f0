/* od-bench cache: the gain from a cache of experts, by replaying routes under every policy and budget (ZipMoE section
 * 3.4; its ablation of caching in Fig. 10). */
#include "common/base/clock.h"
#include "tests/bench/bench.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/report/bench_table.h"
#include "tests/bench/sim/cache_budget.h"
#include "tests/bench/sim/cache_replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_BUDGETS "5%,10%,20%,30%,40%,50%,60%,80%"
#define MATRICES 3 /* matrices of an expert */
#define EXPERT_WEIGHTS 176160768ull /* Mixtral 8x7B has experts of this size */
#define STORED_BITS 10.72 /* per weight, SM byte included */
#define CHUNKS 16 /* E-chunks of a matrix */
#define INFLATERS 2 /* threads that inflate */
#define INFLATE_GBPS 3.5 /* exponents, per thread */
#define CHECK_GBPS 50 /* planes, which are only checked */

enum cache_form { FORM_PLANES, FORM_PLAIN };
static const char *const form_names[] = { "planes", "plain", NULL };
static const char *const rival_states[] = { "F", "C", "S", "E", NULL };

#define CACHE_KINDS 8
static const struct cache_kind {
	const char *name;
	enum cache_rule rule;
	bool planned;
} cache_kinds[CACHE_KINDS] = {
	{ "lrfu", CACHE_LRFU, false }, { "rank", CACHE_RANK, true },	  { "rank F", CACHE_RANK, false },
	{ "lfu", CACHE_LFU, false },   { "lru", CACHE_LRU, false },	  { "marking", CACHE_MARKING, false },
	{ "fifo", CACHE_FIFO, false }, { "belady", CACHE_BELADY, false },
};

struct cache_study {
	struct cache_routes routes;
	struct cache_world world;
	struct cache_budgets budgets;
	struct cache_result cold; /* without a cache */
	struct cache_result result[OD_LIST_MAX][CACHE_KINDS];
};

struct cache_options {
	const char *routes, *budgets;
	uint64_t batch, seed;
	double read_gbps;
	int form, rival_state;
	bool shared, json, help;
};

/* ---- The command line ---- */

static int parse(struct cache_options *o, int argc, char **argv, struct od_err *err)
{
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "Routes to replay" },
		{ "routes", OD_ARG_STRING, &o->routes, "FILE", "a recording, by od-bench cache --record", 0, 0, NULL },
		{ "batch", OD_ARG_UINT, &o->batch, "N",
		  "N sequences decode together, one row each per step (default: 1)", 1, 1024, NULL },
		{ "seed", OD_ARG_UINT, &o->seed, "N", "seed of the policy Marking (default: 1)", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "The cache" },
		{ "budget", OD_ARG_STRING, &o->budgets, "LIST",
		  "sizes of the cache (900MiB), or shares (20%) of all experts as published (default: " DEFAULT_BUDGETS
		  ")",
		  0, 0, NULL },
		{ "rival-state", OD_ARG_CHOICE, &o->rival_state, "F|C|S|E",
		  "state in which policies other than rank keep experts (default: F)", 0, 0, rival_states },
		{ "rivals-share", OD_ARG_FLAG, &o->shared, NULL,
		  "lfu, lru, marking, fifo: one cache for all layers (lrfu and belady: always)", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Expert size and load cost" },
		{ "form", OD_ARG_CHOICE, &o->form, "planes|plain",
		  "size of F: as stored, or 16 bits per weight (default: planes)", 0, 0, form_names },
		{ "read", OD_ARG_REAL, &o->read_gbps, "GB/S", "read bandwidth of the storage (default: 3.5)", 0.001,
		  10000, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Output" },
		{ "json", OD_ARG_FLAG, &o->json, NULL, "print JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	return od_bench_options(
		table, sizeof(table) / sizeof(table[0]), argc, argv, &o->help,
		"cache --routes FILE [OPTIONS]\n       od-bench cache --record FILE --help",
		"Replays recorded routes through one cache of experts, that of a worker or of od-main on one machine,\n"
		"for each policy and size. Prints bytes read, residency time and load time per layer. lrfu: as od-main\n"
		"and od-worker do; rank: pools by ZipMoE's planner; rank F: only ready-to-compute experts; belady:\n"
		"evicts with the future known. Prompts are not replayed.\n"
		"Example: od-bench cache --record R --pack PACK --prompts tests/bench/prompts.jsonl\n"
		"         od-bench cache --routes R",
		err);
}

static int check(const struct cache_options *o, struct od_err *err)
{
	if (o->routes == NULL)
		return od_fail(err, OD_ERR_ARG, "expected --routes FILE, a recording by od-bench cache --record");
	if (o->form == FORM_PLANES && o->rival_state == SIM_CACHE_C)
		return od_fail(err, OD_ERR_ARG, "--rival-state C: with planes use F, which is the same");
	return OD_OK;
}

static int parse_budgets(const struct cache_options *o, struct cache_study *s, struct od_err *err)
{
	const double published = 2.0 * (double)EXPERT_WEIGHTS * s->routes.n_moe * s->routes.n_experts;

	return cache_budgets_parse(&s->budgets, o->budgets, published, 1, err);
}

/* ---- The study ---- */

static int load_routes(const struct cache_options *o, struct cache_study *s, struct od_err *err)
{
	int rc = cache_routes_load(&s->routes, o->routes, (uint32_t)o->batch, err);

	if (rc == OD_OK && s->routes.n_decode_steps == 0)
		rc = od_fail(err, OD_ERR_ARG, "%s: the recording has no decode steps", o->routes);
	return rc;
}

static void describe_world(const struct cache_options *o, struct cache_study *s)
{
	const double weights = (double)EXPERT_WEIGHTS, e_share = (STORED_BITS - 8) / 8;
	const double inflate_gbps = o->form == FORM_PLANES ? CHECK_GBPS : INFLATE_GBPS;

	s->world = (struct cache_world){
		.routes = &s->routes,
		.sizes = sim_cache_sizes_of(EXPERT_WEIGHTS, (uint64_t)(weights * e_share), 2 * EXPERT_WEIGHTS, o->form == FORM_PLANES),
		.full_is_stored = o->form == FORM_PLANES,
		.cost = {
			.u_ns = weights / MATRICES / o->read_gbps,
			.rho = e_share,
			.c_ns = weights / MATRICES / CHUNKS / inflate_gbps,
			.tensors = MATRICES,
			.chunks = CHUNKS,
			.inflaters = INFLATERS,
		},
	};
}

static int replay_one(const struct cache_options *o, struct cache_study *s, size_t budget, size_t kind,
		      struct od_err *err)
{
	const struct cache_setup setup = {
		.rule = cache_kinds[kind].rule,
		.planned = cache_kinds[kind].planned,
		.state = (enum sim_cache_state)o->rival_state,
		.per_layer = !o->shared && cache_kinds[kind].rule != CACHE_BELADY &&
			     cache_kinds[kind].rule != CACHE_RANK && cache_kinds[kind].rule != CACHE_LRFU,
		.budget_bytes = s->budgets.budget[budget].bytes,
		.seed = o->seed,
	};

	return cache_replay(&s->world, &setup, &s->result[budget][kind], err);
}

static int replay_all(const struct cache_options *o, struct cache_study *s, struct od_err *err)
{
	const struct cache_setup none = { .rule = CACHE_LRU };
	struct recall_progress progress;
	int rc = cache_world_open(&s->world, err);

	if (rc == OD_OK)
		rc = cache_replay(&s->world, &none, &s->cold, err);
	recall_progress_begin(&progress, isatty(STDERR_FILENO), s->budgets.n * CACHE_KINDS);
	for (size_t b = 0; rc == OD_OK && b < s->budgets.n; b++) {
		for (size_t k = 0; rc == OD_OK && k < CACHE_KINDS; k++) {
			rc = replay_one(o, s, b, k, err);
			recall_progress_done(&progress, 1);
		}
	}
	recall_progress_end(&progress);
	return rc;
}

/* ---- The report ---- */

/* Per layer. */
static double makespan_ms(const struct cache_result *r)
{
	return r->makespan_ns / (double)r->layers / OD_NS_PER_MS;
}

static void report_facts(const struct cache_options *o, const struct cache_study *s, struct od_report *r)
{
	const struct cache_world *w = &s->world;

	od_report_fact(r, "routes", "routes", OD_TEXT(o->routes), 0, NULL);
	od_report_fact(r, "layers", "layers", OD_INT(s->routes.n_moe), 0, NULL);
	od_report_fact(r, "experts", "experts of a layer", OD_INT(s->routes.n_experts), 0, NULL);
	od_report_fact(r, "top_k", "top-k", OD_INT(s->routes.top_k), 0, NULL);
	od_report_fact(r, "decode_steps", "decode steps", OD_INT(s->routes.n_decode_steps), 0, NULL);
	od_report_fact(r, "uses", "expert uses", OD_INT(s->cold.uses), 0, NULL);
	od_report_fact(r, "expert_stored_bytes", "an expert as stored", OD_BYTES(w->sizes.bytes[SIM_CACHE_C]), 0, NULL);
	od_report_fact(r, "expert_full_bytes", "as computed on", OD_BYTES(w->sizes.bytes[SIM_CACHE_F]), 0, NULL);
	od_report_fact(r, "cold_makespan_ms", "a layer's loads without a cache", OD_REAL(makespan_ms(&s->cold)), 2,
		       "ms");
}

static void report_ranks(const struct cache_study *s, struct od_report *r)
{
	static const struct od_column columns[] = { { "rank", "rank", 0 }, { "share", "used, %", 1 } };
	const struct sim_rank_stats *stats = &s->world.stats;
	struct od_table *t = od_report_table(
		r, "ranks", "How often the expert of each rank was used when its layer had its turn", columns, 2);

	for (uint32_t rank = 0; rank < s->routes.n_experts; rank++) {
		const double share = (double)stats->uses[rank] / (double)stats->visits;
		const struct od_cell cells[] = { OD_INT(rank + 1), OD_REAL(100 * share) };

		od_table_row(t, cells);
	}
}

static void report_row(const struct cache_study *s, size_t budget, size_t kind, struct od_table *t)
{
	const struct cache_result *c = &s->result[budget][kind];
	const bool rank = cache_kinds[kind].rule == CACHE_RANK;
	const struct od_cell cells[] = {
		OD_REAL(s->budgets.budget[budget].percent),
		OD_BYTES(s->budgets.budget[budget].bytes),
		OD_TEXT(cache_kinds[kind].name),
		rank ? OD_INT(c->plan.experts[SIM_CACHE_F]) : OD_NONE,
		rank ? OD_INT(c->plan.experts[SIM_CACHE_C]) : OD_NONE,
		rank ? OD_INT(c->plan.experts[SIM_CACHE_S]) : OD_NONE,
		rank ? OD_INT(c->plan.experts[SIM_CACHE_E]) : OD_NONE,
		OD_REAL(100.0 * (double)c->loads / (double)c->uses),
		OD_REAL(cache_read_percent(c)),
		OD_REAL(c->stays > 0 ? c->stay_steps / (double)c->stays : NAN),
		OD_REAL(makespan_ms(c)),
		OD_REAL(makespan_ms(c) / makespan_ms(&s->cold)),
		rank ? OD_REAL(c->plan.makespan_ns / OD_NS_PER_MS) : OD_NONE,
	};

	od_table_row(t, cells);
}

static int report(const struct cache_options *o, const struct cache_study *s, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "budget_percent", "budget, %", 1 },
		{ "budget_bytes", "cache", 0 },
		{ "policy", "policy", 0 },
		{ "pool_f", "F", 0 },
		{ "pool_c", "C", 0 },
		{ "pool_s", "S", 0 },
		{ "pool_e", "E", 0 },
		{ "missed_uses_percent", "uses that read, %", 1 },
		{ "missed_bytes_percent", "bytes read, %", 1 },
		{ "stay_steps", "stay, steps", 1 },
		{ "makespan_ms", "layer, ms", 2 },
		{ "makespan_ratio", "of cold", 3 },
		{ "planned_makespan_ms", "planned, ms", 2 },
	};
	struct od_report *r;
	struct od_table *t;
	int rc = od_report_new(&r, "Caches of experts", err);

	if (rc != OD_OK)
		return rc;
	report_facts(o, s, r);
	report_ranks(s, r);
	t = od_report_table(r, "caches",
			    "Policies by budget (pools: experts kept full, compressed, as SM bytes, as exponents)",
			    columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t b = 0; b < s->budgets.n; b++) {
		for (size_t k = 0; k < CACHE_KINDS; k++)
			report_row(s, b, k, t);
	}
	rc = od_report_print(r, stdout, o->json, err);
	od_report_free(r);
	return rc;
}

static int run(const struct cache_options *o, struct cache_study *s, struct od_err *err)
{
	int rc = load_routes(o, s, err);

	if (rc == OD_OK)
		rc = parse_budgets(o, s, err);
	if (rc == OD_OK) {
		describe_world(o, s);
		rc = replay_all(o, s, err);
	}
	if (rc == OD_OK)
		rc = report(o, s, err);
	cache_world_close(&s->world);
	cache_routes_fini(&s->routes);
	return rc;
}

int od_bench_cache(int argc, char **argv, struct od_err *err)
{
	struct cache_options o = {
		.budgets = DEFAULT_BUDGETS,
		.batch = 1,
		.seed = 1,
		.read_gbps = 3.5,
	};
	struct cache_study *s;
	int rc;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--record") == 0 || strncmp(argv[i], "--record=", 9) == 0)
			return od_bench_cache_record(argc, argv, err);
	}
	rc = parse(&o, argc, argv, err);
	if (rc != OD_OK || o.help)
		return rc;
	rc = check(&o, err);
	if (rc != OD_OK)
		return rc;
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "caches");
	rc = run(&o, s, err);
	free(s);
	return rc;
}
