#include "tests/bench/live/ablate.h"
#include "tests/bench/live/rivals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same(const struct ablate_setting *a, const struct ablate_setting *b)
{
	return a->predictor == b->predictor && a->align_token == b->align_token && a->align_kv == b->align_kv &&
	       a->load_time_ms == b->load_time_ms;
}

/* A setting that another figure has already is measured once. */
static size_t find_setting(struct ablate *a, const struct ablate_setting *s)
{
	for (size_t i = 0; i < a->n_settings; i++) {
		if (same(&a->setting[i], s))
			return i;
	}
	if (a->n_settings == ABLATE_MAX_SETTINGS)
		abort(); /* figures are written in the source */
	a->setting[a->n_settings] = *s;
	return a->n_settings++;
}

static char *add(struct ablate *a, struct ablate_figure *f, const struct ablate_setting *s)
{
	f->setting[f->n] = find_setting(a, s);
	return f->label[f->n++];
}

static int predictor_named(const char *name)
{
	int i = 0;

	while (strcmp(rival_names[i], name) != 0)
		i++;
	return i;
}

static void plan_cases(struct ablate *a, double load_time_ms)
{
	static const struct {
		const char *label, *predictor;
		uint64_t align_token, align_kv;
	} cases[ABLATE_CASES] = {
		{ "1 token and KV", "shadow", 1, 1 }, { "2 token only", "shadow", 1, 0 },
		{ "3 KV only", "shadow", 0, 1 },      { "4 neither", "shadow", 0, 0 },
		{ "5 random", "random", 0, 0 },	      { "6 no prediction", "none", 0, 0 },
	};
	struct ablate_figure *f = &a->figure[ABLATE_FIG8];

	f->key = "fig8";
	f->token_key = "fig8_by_token";
	f->title = "What each part is worth (OD-MoE Fig. 8)";
	for (size_t i = 0; i < ABLATE_CASES; i++) {
		const struct ablate_setting s = { predictor_named(cases[i].predictor), cases[i].align_token,
						  cases[i].align_kv, load_time_ms };

		snprintf(add(a, f, &s), sizeof(f->label[0]), "%s", cases[i].label);
	}
}

static void plan_periods(struct ablate *a, double load_time_ms)
{
	struct ablate_figure *f = &a->figure[ABLATE_FIG9];

	f->key = "fig9";
	f->token_key = "fig9_by_token";
	f->title = "Periods of alignment (OD-MoE Fig. 9)";
	for (unsigned t = 0; t < ABLATE_PERIODS; t++) {
		for (unsigned kv = 0; kv < ABLATE_PERIODS; kv++) {
			const struct ablate_setting s = { ODM_PREDICT_SHADOW, 1u << t, 1u << kv, load_time_ms };

			snprintf(add(a, f, &s), sizeof(f->label[0]), "T%u KV%u", 1u << t, 1u << kv);
		}
	}
}

static void plan_kv_periods(struct ablate *a, const double load_time_ms[ABLATE_LOADS])
{
	struct ablate_figure *f = &a->figure[ABLATE_FIG10];

	f->key = "fig10";
	f->token_key = "fig10_by_token";
	f->title = "KV period by load time, token period 1 (OD-MoE Fig. 10)";
	for (unsigned l = 0; l < ABLATE_LOADS; l++) {
		for (unsigned kv = 0; kv < ABLATE_KV_PERIODS; kv++) {
			const struct ablate_setting s = { ODM_PREDICT_SHADOW, 1, 1u << kv, load_time_ms[l] };

			snprintf(add(a, f, &s), sizeof(f->label[0]), "KV%u, load %.2f ms", 1u << kv, load_time_ms[l]);
		}
	}
}

void ablate_plan(struct ablate *a, const bool *figures, double load_time_ms)
{
	if (figures[ABLATE_FIG8])
		plan_cases(a, load_time_ms);
	if (figures[ABLATE_FIG9])
		plan_periods(a, load_time_ms);
	if (figures[ABLATE_FIG10])
		plan_kv_periods(a, (const double[]){ load_time_ms, 2 * load_time_ms });
}
