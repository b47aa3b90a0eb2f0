#include "tests/bench/live/recall_sweep.h"

#include "tests/bench/live/rivals.h"

#include <math.h>
#include <string.h>

#define COLUMNS(a) (sizeof(a) / sizeof((a)[0]))

const char *const recall_sweep_names[] = { "fig3", "fig6", "table1", "all", NULL };
#define N_PERIODS 7
static const uint32_t periods[N_PERIODS] = { 1, 2, 4, 8, 16, 32, 0 };

static const struct recall_align every_step = { 1, 1 };
static const struct recall_align fig3[] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } };

unsigned recall_sweep_set(int name)
{
	static const unsigned sets[] = { RECALL_FIG3, RECALL_FIG6, RECALL_TABLE1,
					 RECALL_FIG3 | RECALL_FIG6 | RECALL_TABLE1 };

	return name < 0 ? 0 : sets[name];
}

static size_t groups(const struct recall_configs *c, const char *group[RECALL_CONFIGS_MAX])
{
	size_t n = 0;

	for (size_t i = 0; i < c->n; i++) {
		size_t k = 0;

		if (c->config[i].predictor != NULL)
			continue;
		while (k < n && strcmp(group[k], c->config[i].group) != 0)
			k++;
		if (k == n)
			group[n++] = c->config[i].group;
	}
	return n;
}

/* ---- Configurations ---- */

static int add_periods(const struct od_shadow_choice *choice, struct recall_configs *c, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < N_PERIODS; i++) {
		const uint32_t p = periods[i];

		rc = recall_add_shadow(c, choice, (struct recall_align){ 1, p }, err);
		if (rc == OD_OK)
			rc = recall_add_shadow(c, choice, (struct recall_align){ p, 1 }, err);
		if (rc == OD_OK)
			rc = recall_add_shadow(c, choice, (struct recall_align){ p, p }, err);
	}
	return rc;
}

int recall_sweep_add(unsigned set, const struct od_shadow_choice *choice, size_t n, struct recall_configs *c,
		     struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		rc = recall_add_shadow(c, &choice[i], every_step, err);
		if ((set & RECALL_FIG3))
			for (size_t k = 0; rc == OD_OK && k < COLUMNS(fig3); k++)
				rc = recall_add_shadow(c, &choice[i], fig3[k], err);
		if (rc == OD_OK && (set & RECALL_FIG6))
			rc = add_periods(&choice[i], c, err);
	}
	if ((set & RECALL_TABLE1))
		for (size_t i = 0; rc == OD_OK && i < RIVALS; i++)
			rc = recall_add_predictor(c, rival_kinds[i].name, err);
	return rc;
}

/* ---- Tables ---- */

static void add(struct od_recall_cell *sum, struct od_recall_cell x)
{
	sum->uses += x.uses;
	sum->recalled += x.recalled;
}

static struct od_recall_cell sum_tokens(const struct recall_view *v, size_t config, uint32_t from, uint32_t to)
{
	struct od_recall_cell sum = { 0 };

	for (size_t i = 0; i < v->prompts->n; i++) {
		const struct od_recall *r = &v->counts[config * v->prompts->n + i].recall;

		add(&sum, recall_sum(r->token, r->n_tokens, from, to));
	}
	return sum;
}

static struct od_cell rate(struct od_recall_cell c)
{
	return c.uses > 0 ? OD_REAL(od_recall_rate(&c)) : OD_NONE;
}

/* A configuration that must be there. */
static size_t at(const struct recall_configs *c, const char *group, struct recall_align a)
{
	int i = recall_find_shadow(c, group, a);

	return i >= 0 ? (size_t)i : 0;
}

static const char *aligned_text(struct recall_align a)
{
	if (a.token == 0)
		return a.kv == 0 ? "nothing" : "keys and values";
	return a.kv == 0 ? "token" : "token, keys and values";
}

static void report_fig3(const struct recall_configs *c, const struct recall_view *v, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "shadow", "shadow", 0 },	 { "aligned", "aligned every step", 0 },
		{ "token_1", "token 1", 5 },	 { "token_2_4", "2-4", 5 },
		{ "token_5_16", "5-16", 5 },	 { "token_17_64", "17-64", 5 },
		{ "token_65_128", "65-128", 5 }, { "token_129_256", "129-256", 5 },
		{ "token_257", "257-", 5 },	 { "recall", "all", 5 },
	};
	static const uint32_t ends[] = { 1, 4, 16, 64, 128, 256, UINT32_MAX };
	struct od_table *t = od_report_table(r, "fig3", "OD-MoE Fig. 3: recall by index of the generated token",
					     columns, COLUMNS(columns));
	const char *group[RECALL_CONFIGS_MAX];
	size_t n = groups(c, group);

	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < COLUMNS(fig3); k++) {
			struct od_cell cell[COLUMNS(columns)] = { OD_TEXT(group[i]), OD_TEXT(aligned_text(fig3[k])) };
			size_t config = at(c, group[i], fig3[k]);

			for (size_t e = 0; e < COLUMNS(ends); e++)
				cell[2 + e] = rate(sum_tokens(v, config, e > 0 ? ends[e - 1] : 0, ends[e]));
			cell[COLUMNS(columns) - 1] = rate(sum_tokens(v, config, 0, UINT32_MAX));
			od_table_row(t, cell);
		}
	}
}

static void report_fig6(const struct recall_configs *c, const struct recall_view *v, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "shadow", "shadow", 0 }, { "period_of", "period of", 0 }, { "period_1", "1", 5 },
		{ "period_2", "2", 5 },	   { "period_4", "4", 5 },	    { "period_8", "8", 5 },
		{ "period_16", "16", 5 },  { "period_32", "32", 5 },	    { "never", "never", 5 },
	};
	static const char *const what[] = { "keys and values (token: 1)", "token (keys and values: 1)", "both" };
	struct od_table *t =
		od_report_table(r, "fig6", "OD-MoE Fig. 6: recall by alignment period", columns, COLUMNS(columns));
	const char *group[RECALL_CONFIGS_MAX];
	size_t n = groups(c, group);

	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < COLUMNS(what); k++) {
			struct od_cell cell[COLUMNS(columns)] = { OD_TEXT(group[i]), OD_TEXT(what[k]) };

			for (size_t p = 0; p < N_PERIODS; p++) {
				const uint32_t period = periods[p];
				const struct recall_align a = { k == 0 ? 1 : period, k == 1 ? 1 : period };

				cell[2 + p] = rate(sum_tokens(v, at(c, group[i], a), 0, UINT32_MAX));
			}
			od_table_row(t, cell);
		}
	}
}

static bool in_table1(const struct recall_config *c)
{
	return c->predictor != NULL || (c->align.token == every_step.token && c->align.kv == every_step.kv);
}

static struct od_recall_cell sum_leads(const struct recall_view *v, size_t config, uint32_t from, uint32_t to)
{
	struct od_recall_cell sum = { 0 };

	for (size_t i = 0; i < v->prompts->n; i++) {
		const struct recall_counts *x = &v->counts[config * v->prompts->n + i];

		add(&sum, recall_sum(x->lead, x->n_leads, from, to));
	}
	return sum;
}

static struct od_recall_cell of_all_uses(const struct recall_view *v, size_t config)
{
	struct od_recall_cell all = { 0 };

	for (size_t i = 0; i < v->prompts->n; i++) {
		const struct recall_counts *x = &v->counts[config * v->prompts->n + i];

		all.uses += x->expert_uses;
		all.recalled += x->recall.all.recalled;
	}
	return all;
}

/* Layers ahead in the mean, over all that a predictor said. */
static double mean_lead(const struct recall_view *v, size_t config)
{
	double sum = 0;
	uint64_t uses = 0;

	for (size_t i = 0; i < v->prompts->n; i++) {
		const struct recall_counts *x = &v->counts[config * v->prompts->n + i];

		for (uint32_t n = 0; n < x->n_leads; n++) {
			sum += (double)n * (double)x->lead[n].uses;
			uses += x->lead[n].uses;
		}
	}
	return uses > 0 ? sum / (double)uses : NAN;
}

static bool speaks_often(const struct recall_view *v, size_t config)
{
	return 4 * sum_leads(v, config, 1, UINT32_MAX).uses > 5 * sum_tokens(v, config, 0, UINT32_MAX).uses;
}

static void report_table1(const struct recall_configs *c, const struct recall_view *v, struct od_report *r)
{
	static const struct od_column columns[] = {
		{ "predictor", "predictor", 0 },
		{ "recall", "recall", 5 },
		{ "recall_of_all_uses", "of all uses", 5 },
		{ "mean_lead", "layers ahead", 2 },
		{ "lead_1", "recall at 1", 5 },
		{ "lead_2", "2", 5 },
		{ "lead_3", "3", 5 },
		{ "lead_4", "4", 5 },
	};
	struct od_table *t =
		od_report_table(r, "table1",
				"OD-MoE Table 1: the shadow, aligned every step, and the "
				"predictors of others; of those that speak several times also by layers ahead",
				columns, COLUMNS(columns));

	for (size_t i = 0; i < c->n; i++) {
		const struct recall_config *one = &c->config[i];
		const bool often = speaks_often(v, i);
		struct od_cell cell[COLUMNS(columns)] = {
			OD_TEXT(one->name),
			rate(sum_tokens(v, i, 0, UINT32_MAX)),
			rate(of_all_uses(v, i)),
			OD_REAL(mean_lead(v, i)),
		};

		if (!in_table1(one))
			continue;
		/* A predictor that speaks once tells a layer's lead by the layer's number. */
		for (uint32_t n = 1; n <= 4; n++)
			cell[3 + n] = often ? rate(sum_leads(v, i, n, n + 1)) : OD_NONE;
		od_table_row(t, cell);
	}
}

void recall_sweep_report(unsigned set, const struct recall_configs *c, const struct recall_view *v, struct od_report *r)
{
	if (set & RECALL_FIG3)
		report_fig3(c, v, r);
	if (set & RECALL_FIG6)
		report_fig6(c, v, r);
	if (set & RECALL_TABLE1)
		report_table1(c, v, r);
}
