#include "tests/bench/live/cache_live.h"

#include "tests/bench/report/bench_table.h"

#include <stdio.h>

/* Uses that needed a read. */
static double missed_percent(const struct cache_live_run *r)
{
	return r->uses > 0 ? 100 - 100.0 * (double)(r->hits[OD_CACHE_F] + r->hits[OD_CACHE_C]) / (double)r->uses : 100;
}

/* Bytes read, in % of those without a cache. */
static double read_percent(const struct cache_live *l, const struct cache_live_run *r)
{
	const double all = (double)l->sizes.bytes[OD_CACHE_C];
	double saved = 0;

	for (int s = 0; s < OD_CACHE_STATES; s++) /* a full expert needed no more than a compressed one */
		saved += (double)r->hits[s] * (double)l->sizes.bytes[s == OD_CACHE_F ? OD_CACHE_C : s] / all;
	return r->uses > 0 ? 100 - 100 * saved / (double)r->uses : 100;
}

static double replayed_missed_percent(const struct cache_live_run *r)
{
	return 100.0 * (double)r->replay.loads / (double)r->replay.uses;
}

static struct od_cell hit_cell(const struct cache_live_run *r, enum od_cache_state s)
{
	return r->budget != NULL ? OD_REAL(100.0 * (double)r->hits[s] / (double)r->uses) : OD_NONE;
}

static void report_row(const struct cache_live *l, const struct cache_live_run *r, struct od_table *t)
{
	const struct od_cell cells[] = {
		OD_INT(r->tokens),
		r->budget != NULL ? OD_REAL(r->budget->percent) : OD_NONE,
		r->budget != NULL ? OD_BYTES(r->budget->bytes) : OD_NONE,
		OD_TEXT(r->budget != NULL ? od_cache_policy_names[r->policy] : "none"),
		OD_REAL(r->ttft_ms),
		OD_REAL(r->tpot_ms),
		OD_REAL(r->tok_per_s),
		hit_cell(r, OD_CACHE_F),
		hit_cell(r, OD_CACHE_C),
		hit_cell(r, OD_CACHE_S),
		hit_cell(r, OD_CACHE_E),
		OD_REAL(missed_percent(r)),
		OD_REAL(replayed_missed_percent(r)),
		OD_REAL(read_percent(l, r)),
		OD_REAL(cache_read_percent(&r->replay)),
	};

	od_table_row(t, cells);
}

static void report_facts(const struct cache_live *l, struct od_report *r)
{
	od_report_fact(r, "fingerprint", "model", OD_TEXT(l->fingerprint), 0, NULL);
	od_report_fact(r, "workers", "workers", OD_INT(l->workers), 0, NULL);
	od_report_fact(r, "groups", "groups", OD_INT(l->groups), 0, NULL);
	od_report_fact(r, "slots", "slots of each", OD_INT(l->slots), 0, NULL);
	od_report_fact(r, "form", "experts kept as", OD_TEXT(l->form), 0, NULL);
	od_report_fact(r, "predictor", "predictor", OD_TEXT(l->predictor), 0, NULL);
	od_report_fact(r, "load_ms", "a load takes", OD_REAL(l->load_ms), 2, "ms");
	od_report_fact(r, "prompts", "prompts, one after the other", OD_INT(l->n_prompts), 0, NULL);
	od_report_fact(r, "expert_stored_bytes", "an expert as stored", OD_BYTES(l->sizes.bytes[OD_CACHE_C]), 0, NULL);
	od_report_fact(r, "expert_full_bytes", "as computed on", OD_BYTES(l->sizes.bytes[OD_CACHE_F]), 0, NULL);
}

int cache_live_report(const struct cache_live *l, bool json, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "tokens", "tokens", 0 },
		{ "budget_percent", "budget, %", 1 },
		{ "budget_bytes", "a worker", 0 },
		{ "policy", "policy", 0 },
		{ "ttft_ms", "TTFT, ms", 1 },
		{ "tpot_ms", "TPOT, ms", 2 },
		{ "tok_per_s", "tok/s", 2 },
		{ "hits_f_percent", "F, %", 1 },
		{ "hits_c_percent", "C, %", 1 },
		{ "hits_s_percent", "S, %", 1 },
		{ "hits_e_percent", "E, %", 1 },
		{ "missed_uses_percent", "uses that read, %", 1 },
		{ "replayed_missed_uses_percent", "replayed", 1 },
		{ "missed_bytes_percent", "bytes read, %", 1 },
		{ "replayed_missed_bytes_percent", "replayed", 1 },
	};
	struct od_report *r;
	struct od_table *t;
	int rc = od_report_new(&r, "Caches of experts on a live cluster", err);

	if (rc != OD_OK)
		return rc;
	report_facts(l, r);
	t = od_report_table(
		r, "live",
		"By length of text, size and policy: TTFT and TPOT are medians over prompts, tok/s is of all "
		"texts with their prompts; F to E: uses of experts kept so; replayed: the same routes by od-bench "
		"cache's replay",
		columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < l->n_runs; i++)
		report_row(l, &l->run[i], t);
	rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}
