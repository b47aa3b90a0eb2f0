#include "tests/bench/report/recall_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS(a) (sizeof(a) / sizeof((a)[0]))

struct report {
	const struct recall_view *v;
	struct od_report *r;
	struct recall_counts *sum; /* [n_configs], over prompts */
	struct od_recall_cell **prompt; /* [n_configs]: prompt_token_cells, of all tokens */
	bool many;
};

static const struct recall_counts *counts_of(const struct recall_view *v, size_t config)
{
	return v->counts + config * v->prompts->n;
}

/* Recall over the rows of token indices [from, to) with a prediction, per prompt: malloc'd [prompts->n]; NULL: out of
 * memory. */
static struct od_recall_cell *prompt_token_cells(const struct recall_view *v, size_t config, uint32_t from, uint32_t to)
{
	struct od_recall_cell *cell = calloc(v->prompts->n, sizeof(*cell));

	for (size_t i = 0; cell != NULL && i < v->prompts->n; i++) {
		const struct od_recall *r = &counts_of(v, config)[i].recall;

		cell[i] = recall_sum(r->token, r->n_tokens, from, to);
	}
	return cell;
}

static struct od_cell rate(const struct od_recall_cell *c)
{
	return c->uses > 0 ? OD_REAL(od_recall_rate(c)) : OD_NONE;
}

static double share(uint64_t counted, uint64_t whole)
{
	return whole > 0 ? (double)counted / (double)whole : NAN;
}

/* A table with a first column "configuration" where there are several; a person sees it where there is one. */
static struct od_table *table(const struct report *p, const char *key, const char *title,
			      const struct od_column *columns, size_t n)
{
	if (p->many)
		return od_report_detail(p->r, key, columns, n);
	return od_report_table(p->r, key, title, columns + 1, n - 1);
}

static struct od_table *detail(const struct report *p, const char *key, const struct od_column *columns, size_t n)
{
	return p->many ? od_report_detail(p->r, key, columns, n) : od_report_detail(p->r, key, columns + 1, n - 1);
}

static void row(const struct report *p, struct od_table *t, const struct od_cell *cells)
{
	od_table_row(t, p->many ? cells : cells + 1);
}

/* ---- Totals ---- */

static void report_recall(const struct report *p)
{
	const struct recall_counts *s = &p->sum[0];
	const struct recall_interval i = recall_ratio(p->prompt[0], p->v->prompts->n);
	const struct od_recall_cell every = { s->expert_uses, s->recall.all.recalled };
	double mean, sd;

	recall_spread(p->prompt[0], p->v->prompts->n, &mean, &sd);
	od_report_fact(p->r, "recall", "recall (Eq. 3)", rate(&s->recall.all), 5, NULL);
	od_report_fact(p->r, "recall_low", "  95 % interval, from", OD_REAL(i.low), 5, NULL);
	od_report_fact(p->r, "recall_high", "  to (t, over prompts)", OD_REAL(i.high), 5, NULL);
	od_report_fact(p->r, "recall_sd", "  deviation over prompts", OD_REAL(sd), 5, NULL);
	od_report_fact(p->r, "recall_mean", "  mean over prompts", OD_REAL(mean), 5, NULL);
	od_report_fact(p->r, "predicted_uses", "expert uses with a prediction", OD_INT(s->recall.all.uses), 0, NULL);
	od_report_fact(p->r, "recalled_uses", "  of those predicted", OD_INT(s->recall.all.recalled), 0, NULL);
	od_report_fact(p->r, "expert_uses", "expert uses", OD_INT(s->expert_uses), 0, NULL);
	od_report_fact(p->r, "recall_of_all_uses", "recall, missing ones as wrong", rate(&every), 5, NULL);
	od_report_fact(p->r, "in_time_rows", "rows predicted in time", OD_INT(s->recall.rows.in_time), 0, NULL);
	od_report_fact(p->r, "late_rows", "rows predicted late", OD_INT(s->recall.rows.late), 0, NULL);
	od_report_fact(p->r, "missing_rows", "rows never predicted", OD_INT(s->missing_rows), 0, NULL);
}

static void report_alignment(const struct report *p)
{
	const struct recall_counts *s = &p->sum[0];

	if (s->guesses > 0) {
		od_report_fact(p->r, "guesses", "tokens that the shadow guessed", OD_INT(s->guesses), 0, NULL);
		od_report_fact(p->r, "wrong_guesses", "  wrongly", OD_INT(s->wrong_guesses), 0, NULL);
	}
	if (s->align_bytes == 0)
		return;
	if (s->kv_rows > 0)
		od_report_fact(p->r, "kv_rows_per_token", "KV rows of a layer sent per token",
			       OD_REAL(share(s->kv_rows, s->steps)), 2, NULL);
	od_report_fact(p->r, "align_bytes_per_token", "bytes sent per token", OD_REAL(share(s->align_bytes, s->steps)),
		       0, NULL);
	if (s->asked_rows > 0)
		od_report_fact(p->r, "asked_rows", "KV rows of a layer that it asked for", OD_INT(s->asked_rows), 0,
			       NULL);
	od_report_fact(p->r, "asked_bytes", "bytes that it asked for (prompts)", OD_BYTES(s->asked_bytes), 0, NULL);
}

/* ---- Configurations side by side ---- */

static void report_comparison(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 },
		{ "recall", "recall", 5 },
		{ "recall_low", "from", 5 },
		{ "recall_high", "to", 5 },
		{ "recall_sd", "deviation", 5 },
		{ "recall_of_all_uses", "of all uses", 5 },
		{ "missing_rows", "missing", 0 },
		{ "wrong_guess_share", "wrong tokens", 5 },
		{ "kv_rows_per_token", "KV rows/token", 2 },
		{ "align_bytes_per_token", "bytes/token", 0 },
		{ "predicted_uses", "uses", 0 },
		{ "recalled_uses", "recalled", 0 },
	};
	struct od_table *t =
		od_report_table(p->r, "configurations", "Configurations (Eq. 3, 95 % t-interval over prompts)", columns,
				COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		const struct recall_counts *s = &p->sum[c];
		const struct recall_interval i = recall_ratio(p->prompt[c], p->v->prompts->n);
		bool sent = s->align_bytes > 0;
		double mean, sd;

		recall_spread(p->prompt[c], p->v->prompts->n, &mean, &sd);
		od_table_row(t, (struct od_cell[]){
					OD_TEXT(p->v->name[c]),
					rate(&s->recall.all),
					OD_REAL(i.low),
					OD_REAL(i.high),
					OD_REAL(sd),
					OD_REAL(share(s->recall.all.recalled, s->expert_uses)),
					OD_INT(s->missing_rows),
					OD_REAL(share(s->wrong_guesses, s->guesses)),
					OD_REAL(sent ? share(s->kv_rows, s->steps) : NAN),
					OD_REAL(sent ? share(s->align_bytes, s->steps) : NAN),
					OD_INT(s->recall.all.uses),
					OD_INT(s->recall.all.recalled),
				});
	}
}

struct report_entry {
	size_t config;
	const char *group;
	size_t group_first; /* groups keep the order in which they came */
	double recall;
};

static int compare_entries(const void *a, const void *b)
{
	const struct report_entry *x = a, *y = b;

	if (x->group_first != y->group_first)
		return x->group_first < y->group_first ? -1 : 1;
	if (x->recall != y->recall)
		return x->recall > y->recall ? -1 : 1;
	return x->config < y->config ? -1 : 1;
}

/* Groups of one each would leave nothing to put in order: then all are one. */
static void list_entries(const struct report *p, struct report_entry *entry)
{
	bool alone = true;

	for (size_t c = 0; c < p->v->n_configs; c++) {
		const char *group = p->v->group[c];
		size_t first = 0;

		while (first < c && strcmp(entry[first].group, group) != 0)
			first++;
		entry[c] = (struct report_entry){ c, group, first, od_recall_rate(&p->sum[c].recall.all) };
		alone = alone && first == c;
	}
	if (alone)
		for (size_t c = 0; c < p->v->n_configs; c++)
			entry[c].group_first = 0;
	qsort(entry, p->v->n_configs, sizeof(*entry), compare_entries);
}

/* Best first within each group; each against the one above it, prompt by prompt, so that what makes a prompt hard or
 * easy for both falls away. */
static int report_order(const struct report *p, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 }, { "below", "less than", 0 },	 { "difference", "by", 5 },
		{ "difference_low", "from", 5 },	 { "difference_high", "to", 5 }, { "sure", "sure", 0 },
	};
	struct report_entry *entry = calloc(p->v->n_configs, sizeof(*entry));
	struct od_table *t;

	if (entry == NULL)
		return od_fail(err, OD_ERR_NOMEM, "the order of %zu configurations", p->v->n_configs);
	t = od_report_table(p->r, "order",
			    "In order: each less than the one above it, paired by prompt (sure: the 95 % "
			    "interval leaves out 0)",
			    columns, COLUMNS(columns));
	list_entries(p, entry);
	for (size_t i = 0; i < p->v->n_configs; i++) {
		const size_t c = entry[i].config, above = i > 0 ? entry[i - 1].config : 0;
		struct recall_interval d;

		if (i == 0 || entry[i].group_first != entry[i - 1].group_first) {
			od_table_row(t, (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_NONE, OD_NONE, OD_NONE, OD_NONE,
							    OD_NONE });
			continue;
		}
		d = recall_difference(p->prompt[above], p->prompt[c], p->v->prompts->n);
		od_table_row(t,
			     (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_TEXT(p->v->name[above]), OD_REAL(d.value),
						 OD_REAL(d.low), OD_REAL(d.high), OD_TEXT(d.low > 0 ? "yes" : "no") });
	}
	free(entry);
	return OD_OK;
}

/* ---- One table each ---- */

static void report_layers(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 },
		{ "layer", "layer", 0 },
		{ "uses", "uses", 0 },
		{ "recalled", "recalled", 0 },
		{ "recall", "recall", 5 },
		{ "in_time_rows", "in time", 0 },
		{ "late_rows", "late", 0 },
		{ "missing_rows", "missing", 0 },
	};
	struct od_table *t = table(p, "by_layer", "By layer", columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		for (uint32_t m = 0; m < p->v->n_moe; m++) {
			const struct od_recall_cell *x = &p->sum[c].recall.layer[m];
			const struct od_recall_rows *n = &p->sum[c].recall.layer_rows[m];

			row(p, t,
			    (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_INT(m), OD_INT(x->uses), OD_INT(x->recalled),
						rate(x), OD_INT(n->in_time), OD_INT(n->late),
						OD_INT(od_recall_missing(n)) });
		}
	}
}

/* Index n is the pass of the n-th generated token (OD-MoE's iteration n), which chooses token n + 1. A person gets
 * 1, 2, 3 to 4, 5 to 8, ...: drift shows on a scale of doublings. */
static int report_tokens(const struct report *p, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 },
		{ "from", "token", 0 },
		{ "to", "to", 0 },
		{ "uses", "uses", 0 },
		{ "recalled", "recalled", 0 },
		{ "recall", "recall", 5 },
		{ "recall_low", "from", 5 },
		{ "recall_high", "to", 5 },
	};
	struct od_table *t = table(p, "by_token", "By index of the generated token (Eq. 2)", columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		const struct od_recall *s = &p->sum[c].recall;

		for (uint32_t from = 1, to = 1; from <= s->n_tokens; from = to + 1, to *= 2) {
			const uint32_t end = to < s->n_tokens ? to : s->n_tokens;
			const struct od_recall_cell x = recall_sum(s->token, s->n_tokens, from - 1, end);
			struct od_recall_cell *cells = prompt_token_cells(p->v, c, from - 1, end);
			struct recall_interval i;

			if (cells == NULL)
				return od_fail(err, OD_ERR_NOMEM, "recall by token");
			i = recall_ratio(cells, p->v->prompts->n);
			free(cells);
			if (x.uses > 0)
				row(p, t,
				    (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_INT(from), OD_INT(end),
							OD_INT(x.uses), OD_INT(x.recalled), rate(&x), OD_REAL(i.low),
							OD_REAL(i.high) });
		}
	}
	return OD_OK;
}

static void report_indices(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 }, { "index", "token", 0 },   { "uses", "uses", 0 },
		{ "recalled", "recalled", 0 },		 { "recall", "recall", 5 },
	};
	struct od_table *t = detail(p, "by_token_index", columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		for (uint32_t n = 0; n < p->sum[c].recall.n_tokens; n++) {
			const struct od_recall_cell *x = &p->sum[c].recall.token[n];

			if (x->uses > 0)
				row(p, t,
				    (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_INT(n + 1), OD_INT(x->uses),
							OD_INT(x->recalled), rate(x) });
		}
	}
}

/* Live recall knows neither ranks nor margins. */
static bool has_ranks(const struct report *p)
{
	return p->sum[0].rank[0].uses > 0 || p->many;
}

static void report_ranks(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 }, { "rank", "choice", 0 },   { "uses", "uses", 0 },
		{ "recalled", "recalled", 0 },		 { "recall", "recall", 5 },
	};
	struct od_table *t = table(p, "by_rank", "By rank of the router's choice", columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		for (uint32_t i = 0; i < p->v->top_k; i++) {
			const struct od_recall_cell *x = &p->sum[c].rank[i];

			row(p, t,
			    (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_INT(i + 1), OD_INT(x->uses),
						OD_INT(x->recalled), rate(x) });
		}
	}
}

static void report_margins(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 },
		{ "from", "margin", 3 },
		{ "to", "below", 3 },
		{ "uses", "uses", 0 },
		{ "recalled", "recalled", 0 },
		{ "recall", "recall", 5 },
		{ "share_of_uses", "of all uses", 5 },
		{ "share_of_misses", "of all misses", 5 },
	};
	struct od_table *t = table(p, "by_margin",
				   "By margin of the true router (probability of its last choice less that of "
				   "the next expert)",
				   columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		const struct od_recall_cell *all = &p->sum[c].recall.all;

		for (size_t i = 0; i < RECALL_MARGINS; i++) {
			const struct od_recall_cell *x = &p->sum[c].margin[i];
			struct od_cell to = i + 1 < RECALL_MARGINS ? OD_REAL(recall_margin_edges[i]) : OD_NONE;

			row(p, t,
			    (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_REAL(i > 0 ? recall_margin_edges[i - 1] : 0),
						to, OD_INT(x->uses), OD_INT(x->recalled), rate(x),
						OD_REAL(share(x->uses, all->uses)),
						OD_REAL(share(x->uses - x->recalled, all->uses - all->recalled)) });
		}
	}
}

static void report_leads(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 }, { "lead", "layers ahead", 0 }, { "uses", "uses", 0 },
		{ "recalled", "recalled", 0 },		 { "recall", "recall", 5 },
	};
	struct od_table *t = table(p, "by_lead",
				   "By lead: routers still to speak when a prediction came, its own counted; "
				   "every prediction counts",
				   columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		for (uint32_t i = 0; i < p->sum[c].n_leads; i++) {
			const struct od_recall_cell *x = &p->sum[c].lead[i];

			if (x->uses > 0)
				row(p, t,
				    (struct od_cell[]){ OD_TEXT(p->v->name[c]), OD_INT(i), OD_INT(x->uses),
							OD_INT(x->recalled), rate(x) });
		}
	}
}

static void report_prompts(const struct report *p)
{
	static const struct od_column columns[] = {
		{ "configuration", "configuration", 0 },
		{ "name", "prompt", 0 },
		{ "prompt_tokens", "prompt tokens", 0 },
		{ "tokens", "tokens", 0 },
		{ "finish", "finish", 0 },
		{ "recall", "recall", 5 },
		{ "predicted_uses", "predicted", 0 },
		{ "recalled_uses", "recalled", 0 },
		{ "expert_uses", "uses", 0 },
		{ "in_time_rows", "in time", 0 },
		{ "late_rows", "late", 0 },
		{ "missing_rows", "missing", 0 },
		{ "wrong_guesses", "wrong", 0 },
	};
	struct od_table *t = detail(p, "by_prompt", columns, COLUMNS(columns));

	for (size_t c = 0; c < p->v->n_configs; c++) {
		for (size_t i = 0; i < p->v->prompts->n; i++) {
			const struct od_prompt *q = &p->v->prompts->prompt[i];
			const struct recall_counts *x = &counts_of(p->v, c)[i];

			row(p, t,
			    (struct od_cell[]){
				    OD_TEXT(p->v->name[c]),
				    OD_TEXT(q->name),
				    OD_INT(q->n_ids),
				    OD_INT(x->tokens),
				    OD_TEXT(p->v->finish[i]),
				    rate(&x->recall.all),
				    OD_INT(x->recall.all.uses),
				    OD_INT(x->recall.all.recalled),
				    OD_INT(x->expert_uses),
				    OD_INT(x->recall.rows.in_time),
				    OD_INT(x->recall.rows.late),
				    OD_INT(x->missing_rows),
				    OD_INT(x->wrong_guesses),
			    });
		}
	}
}

/* ---- All of it ---- */

static int add_up(struct report *p, struct od_err *err)
{
	const struct recall_view *v = p->v;

	p->sum = calloc(v->n_configs, sizeof(*p->sum));
	p->prompt = calloc(v->n_configs, sizeof(*p->prompt));
	if (p->sum == NULL || p->prompt == NULL)
		return od_fail(err, OD_ERR_NOMEM, "the report of %zu configurations", v->n_configs);
	for (size_t c = 0; c < v->n_configs; c++) {
		int rc = recall_counts_init(&p->sum[c], v->n_moe, v->max_tokens, err);

		if (rc != OD_OK)
			return rc;
		p->prompt[c] = prompt_token_cells(v, c, 0, v->max_tokens);
		if (p->prompt[c] == NULL)
			return od_fail(err, OD_ERR_NOMEM, "the report of %zu configurations", v->n_configs);
		for (size_t i = 0; i < v->prompts->n; i++)
			recall_counts_merge(&p->sum[c], &counts_of(v, c)[i]);
	}
	return OD_OK;
}

static int report_all(const struct report *p, struct od_err *err)
{
	int rc = OD_OK;

	od_report_fact(p->r, "prompts", "prompts", OD_INT(p->v->prompts->n), 0, NULL);
	od_report_fact(p->r, "tokens", "tokens generated", OD_INT(p->sum[0].tokens), 0, NULL);
	if (p->many) {
		report_comparison(p);
		rc = report_order(p, err);
	} else {
		report_recall(p);
		report_alignment(p);
	}
	report_layers(p);
	if (rc == OD_OK)
		rc = report_tokens(p, err);
	report_indices(p);
	if (has_ranks(p)) {
		report_ranks(p);
		report_margins(p);
		report_leads(p);
	}
	report_prompts(p);
	return rc;
}

int recall_report(const struct recall_view *v, struct od_report *r, struct od_err *err)
{
	struct report p = { .v = v, .r = r, .many = v->n_configs > 1 };
	int rc = add_up(&p, err);

	if (rc == OD_OK)
		rc = report_all(&p, err);
	for (size_t c = 0; c < v->n_configs; c++) {
		if (p.sum != NULL)
			recall_counts_fini(&p.sum[c]);
		if (p.prompt != NULL)
			free(p.prompt[c]);
	}
	free(p.sum);
	free(p.prompt);
	return rc;
}
