#include "main-node/predict/predict_tally.h"

#include <stdlib.h>

int odm_tally_init(struct odm_tally *t, uint32_t n_moe, uint32_t max_tokens, struct od_err *err)
{
	int rc;

	*t = (struct odm_tally){ 0 };
	rc = od_recall_init(&t->recall, n_moe, max_tokens, err);
	if (rc != OD_OK)
		return rc;
	t->first_ns = calloc(max_tokens, sizeof(*t->first_ns));
	if (t->first_ns != NULL)
		return OD_OK;
	odm_tally_fini(t);
	return od_fail(err, OD_ERR_NOMEM, "recall of %u tokens", max_tokens);
}

void odm_tally_fini(struct odm_tally *t)
{
	od_recall_fini(&t->recall);
	free(t->first_ns);
	*t = (struct odm_tally){ 0 };
}

void odm_tally_reset(struct odm_tally *t)
{
	od_recall_reset(&t->recall);
	t->stood_in = t->undone = (struct od_recall_cell){ 0 };
	t->n_first = t->lead_sum = t->lead_routers = 0;
}

void odm_tally_first(struct odm_tally *t, int64_t after_ns)
{
	if (t->n_first < t->recall.n_tokens)
		t->first_ns[t->n_first] = after_ns;
	t->n_first++;
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

static struct odm_spread spread_of(int64_t *x, size_t n)
{
	if (n == 0)
		return (struct odm_spread){ 0 };
	qsort(x, n, sizeof(*x), by_value);
	return (struct odm_spread){ x[0], x[n / 2], x[n - 1] };
}

void odm_tally_count(const struct odm_tally *t, uint64_t *c)
{
	c[OD_C_PREDICTED_USES] += t->recall.all.uses;
	c[OD_C_RECALLED_USES] += t->recall.all.recalled;
	c[OD_C_STOOD_IN_USES] += t->stood_in.uses;
	c[OD_C_STOOD_IN_RECALLED] += t->stood_in.recalled;
	c[OD_C_UNDONE_USES] += t->undone.uses;
	c[OD_C_UNDONE_RECALLED] += t->undone.recalled;
	c[OD_C_LATE_PREDICTIONS] += t->recall.rows.late;
	c[OD_C_FIRST_PREDICTIONS] += t->n_first;
	c[OD_C_LEAD_SUM] += t->lead_sum;
	c[OD_C_LEAD_ROUTERS] += t->lead_routers;
}

void odm_tally_add(struct odm_tally *t, uint64_t *c, struct odm_spread *first_ns, struct od_recall *r)
{
	odm_tally_count(t, c);
	c[OD_C_MISSING_PREDICTIONS] += od_recall_missing(&t->recall.rows);
	*first_ns = spread_of(t->first_ns, t->n_first < t->recall.n_tokens ? t->n_first : t->recall.n_tokens);
	if (r != NULL)
		od_recall_merge(r, &t->recall);
}
