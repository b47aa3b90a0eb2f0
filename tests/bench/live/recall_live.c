#include "common/pack/shadow/shadow_load.h"
#include "main-node/node/main_node.h"
#include "tests/bench/live/recall_live.h"

#include "common/base/clock.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/recall_report.h"

#include <stdlib.h>
#include <unistd.h>

struct live {
	const struct odm_main_opts *opts;
	int precision; /* the shadow's */
	struct odm_main_node *node;
	struct odm_engine *engine;
	struct od_prompts *prompts;
	uint32_t max_tokens;
	bool json;
	struct recall_counts *counts; /* [prompts->n] */
	const char **finish; /* [prompts->n] */
	struct odm_figures sum; /* without nodes */
	double *first_ms; /* [n_first]: of a text, its median time from STEP to the first prediction */
	size_t n_first;
};

static int run_prompt(struct live *l, size_t i, struct od_err *err)
{
	const struct od_prompt *q = &l->prompts->prompt[i];
	struct recall_counts *c = &l->counts[i];
	struct odm_request req = {
		.prompt = q->ids,
		.n_prompt = q->n_ids,
		.max_tokens = l->max_tokens,
		.recall = &c->recall,
	};
	struct odm_result r;
	int rc;

	od_sampler_defaults(&req.sampling);
	rc = odm_generate(l->engine, &req, &r, err);
	c->tokens = r.n_tokens;
	c->steps = r.n_tokens > 0 ? r.n_tokens - 1 : 0;
	c->expert_uses = r.figures.c[OD_C_EXPERT_USES];
	c->missing_rows = r.figures.c[OD_C_MISSING_PREDICTIONS];
	c->align_bytes = r.figures.c[OD_C_ALIGN_BYTES];
	c->asked_bytes = r.figures.c[OD_C_ASKED_BYTES];
	od_counters_add(l->sum.c, r.figures.c);
	if (r.figures.c[OD_C_FIRST_PREDICTIONS] > 0)
		l->first_ms[l->n_first++] = (double)r.figures.first_prediction_ns.median / OD_NS_PER_MS;
	l->finish[i] = odm_finish_name(r.finish);
	odm_result_fini(&r);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", q->name);
}

static int run_prompts(struct live *l, struct od_err *err)
{
	struct recall_progress progress;
	int rc = OD_OK;

	recall_progress_begin(&progress, isatty(STDERR_FILENO), l->prompts->n);
	for (size_t i = 0; rc == OD_OK && i < l->prompts->n; i++) {
		rc = run_prompt(l, i, err);
		recall_progress_done(&progress, 1);
	}
	recall_progress_end(&progress);
	return rc;
}

/* How early predictions come. */
static void report_lead(const struct live *l, struct od_report *r)
{
	struct od_stats first;

	if (l->sum.c[OD_C_LEAD_ROUTERS] > 0)
		od_report_fact(r, "lead_layers", "layers ahead, mean",
			       OD_REAL(odm_figures_ratio(&l->sum, OD_C_LEAD_SUM, OD_C_LEAD_ROUTERS)), 2, NULL);
	if (l->n_first == 0)
		return;
	od_stats_of(l->first_ms, l->n_first, &first);
	od_report_fact(r, "first_prediction_ms", "from STEP to its first prediction", OD_REAL(first.median), 3,
		       "ms (negative: the shadow had run ahead)");
	od_report_fact(r, "first_prediction_min_ms", "  least of the texts", OD_REAL(first.min), 3, "ms");
	od_report_fact(r, "first_prediction_max_ms", "  most", OD_REAL(first.max), 3, "ms");
}

/* Beside recall: what it was worth, and what it cost. */
static void report_served(const struct live *l, struct od_report *r)
{
	const struct odm_figures *f = &l->sum;

	if (f->c[OD_C_EXPERT_USES] == 0)
		return;
	od_report_fact(r, "served_in_time", "served in time, of all uses",
		       OD_REAL(odm_figures_ratio(f, OD_C_SERVED_IN_TIME, OD_C_EXPERT_USES)), 5, NULL);
	od_report_fact(r, "extra_loads", "  extra loads over uses",
		       OD_REAL(odm_figures_ratio(f, OD_C_EXTRA_LOADS, OD_C_EXPERT_USES)), 4, NULL);
	od_report_fact(r, "hedged", "  hedges over uses", OD_REAL(odm_figures_ratio(f, OD_C_HEDGED, OD_C_EXPERT_USES)),
		       4, NULL);
}

static void report_setting(const struct live *l, struct od_report *r)
{
	const struct odm_main_opts *e = l->opts;
	bool ours = e->mode == ODM_LOCAL && e->cluster.predictor == ODM_PREDICT_SHADOW; /* else its command line says */

	od_report_fact(
		r, "predictor", "predictor",
		OD_TEXT(e->cluster.own != NULL ? e->cluster.own->name : odm_predictor_names[e->cluster.predictor]), 0,
		NULL);
	if (ours)
		od_report_fact(r, "shadow_precision", "shadow's precision",
			       OD_TEXT(od_precision_names[l->precision < 0 ? OD_PRECISION_INT8 - 1 : l->precision]), 0,
			       NULL);
	od_report_fact(r, "profile", "profile", OD_TEXT(od_profile_names[e->engine.profile - 1]), 0, NULL);
	od_report_fact(r, "workers", "workers", OD_INT(l->sum.c[OD_C_WORKERS]), 0, NULL);
	od_report_fact(r, "groups", "groups", OD_INT(l->sum.c[OD_C_GROUPS]), 0, NULL);
	od_report_fact(r, "slots", "slots of a worker", OD_INT(l->sum.c[OD_C_SLOTS]), 0, NULL);
	report_lead(l, r);
	od_report_fact(r, "fingerprint", "pack", OD_TEXT(od_pack_fingerprint(odm_engine_pack(l->engine))), 0, NULL);
}

static int report(const struct live *l, struct od_err *err)
{
	const struct od_config *c = od_pack_config(odm_engine_pack(l->engine));
	const struct recall_view v = {
		.n_configs = 1,
		.name = (const char *[]){ "live" },
		.group = (const char *[]){ "live" },
		.counts = l->counts,
		.prompts = l->prompts,
		.finish = l->finish,
		.n_moe = c->n_moe,
		.top_k = c->top_k,
		.max_tokens = l->max_tokens,
	};
	struct od_report *r;
	int rc = od_report_new(&r, "Recall of expert predictions, live", err);

	if (rc != OD_OK)
		return rc;
	report_setting(l, r);
	report_served(l, r);
	rc = recall_report(&v, r, err);
	if (rc == OD_OK)
		rc = od_report_print(r, stdout, l->json, err);
	od_report_free(r);
	return rc;
}

static int run(struct live *l, struct od_err *err)
{
	uint32_t n_moe;
	int rc;

	l->counts = calloc(l->prompts->n, sizeof(*l->counts));
	l->finish = calloc(l->prompts->n, sizeof(*l->finish));
	l->first_ms = calloc(l->prompts->n, sizeof(*l->first_ms));
	if (l->counts == NULL || l->finish == NULL || l->first_ms == NULL)
		return od_fail(err, OD_ERR_NOMEM, "results of %zu prompts", l->prompts->n);
	rc = odm_main_node_open(&l->node, l->opts, err);
	if (rc != OD_OK)
		return rc;
	l->engine = odm_main_node_engine(l->node);
	rc = od_prompts_encode(l->prompts, odm_engine_tokenizer(l->engine), err);
	n_moe = od_pack_config(odm_engine_pack(l->engine))->n_moe;
	for (size_t i = 0; rc == OD_OK && i < l->prompts->n; i++)
		rc = recall_counts_init(&l->counts[i], n_moe, l->max_tokens, err);
	if (rc == OD_OK)
		rc = run_prompts(l, err);
	return rc == OD_OK ? report(l, err) : rc;
}

int recall_live(const struct odm_main_opts *engine, int precision, struct od_prompts *prompts, uint32_t max_tokens,
		bool json, struct od_err *err)
{
	struct odm_main_opts opts = *engine;
	struct live l = {
		.opts = &opts, .precision = precision, .prompts = prompts, .max_tokens = max_tokens, .json = json
	};
	int rc;

	opts.cluster.no_stand_in = true; /* only what the predictor foresees that was asked for */
	rc = run(&l, err);
	odm_main_node_close(l.node);
	for (size_t i = 0; l.counts != NULL && i < prompts->n; i++)
		recall_counts_fini(&l.counts[i]);
	free(l.counts);
	free(l.finish);
	free(l.first_ms);
	return rc;
}
