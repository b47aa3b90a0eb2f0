#include "common/predict/want_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a layer before its noise is believed, and how many the memory reaches back: noise depends on the weights, so
 * it hardly changes. */
#define MIN_ROWS 8
#define MEMORY_ROWS 4096.0
/* How fast the threshold follows the budget: slowly enough that the burst of a token guessed wrongly does not close
 * it. */
#define RATE 0.02
#define FIRST_THRESHOLD 1.0
#define MIN_THRESHOLD 0.02
#define MAX_THRESHOLD 1e6
/* For each row: loads that may be saved up, since unspent budget is no reason to hedge what is unlikely; and that may
 * be spent ahead, since a token guessed wrongly costs dozens at once. */
#define MAX_BALANCE 32.0
#define OVERDRAFT 64.0
#define MIN_PROBABILITY 1e-30f

/* Statistics of one layer; old rows fade. */
struct noise {
	double rows; /* weight of all rows */
	double mean_square;
};

struct od_want_policy {
	double hedge;
	uint32_t top_k;
	double threshold;
	double balance; /* loads that the budget has brought less what was wasted */
	double reserved; /* hedges under way that were paid from it */
	double rows; /* rows of the newest layer that is over */
	struct noise *layer; /* [n_moe] */
};

int od_want_policy_new(struct od_want_policy **out, double hedge, uint32_t n_moe, uint32_t top_k, struct od_err *err)
{
	struct od_want_policy *p = calloc(1, sizeof(*p));

	*out = NULL;
	if (p != NULL)
		p->layer = calloc(n_moe, sizeof(*p->layer));
	if (p == NULL || p->layer == NULL) {
		od_want_policy_free(p);
		return od_fail(err, OD_ERR_NOMEM, "policy of %u layers", n_moe);
	}
	p->hedge = hedge;
	p->top_k = top_k;
	p->threshold = FIRST_THRESHOLD;
	p->rows = 1;
	*out = p;
	return OD_OK;
}

void od_want_policy_free(struct od_want_policy *p)
{
	if (p != NULL)
		free(p->layer);
	free(p);
}

static float logit_of(float probability)
{
	/* also what is no number */
	return logf(probability > MIN_PROBABILITY ? fminf(probability, 1) : MIN_PROBABILITY);
}

void od_candidates_set(struct od_candidates *c, const struct od_prediction *p)
{
	c->n = (uint16_t)p->n;
	c->has_logit = p->probability != NULL;
	memcpy(c->expert, p->expert, p->n * sizeof(*c->expert));
	for (size_t i = 0; c->has_logit && i < p->n; i++)
		c->logit[i] = logit_of(p->probability[i]);
}

/* ---- Deciding ---- */

double od_want_sigma(const struct od_want_policy *p, uint32_t m)
{
	return p->layer[m].rows >= MIN_ROWS ? sqrt(p->layer[m].mean_square) : 0;
}

double od_want_threshold(const struct od_want_policy *p)
{
	return p->threshold;
}

void od_want_give_up(struct od_want_policy *p, struct od_wanted *w)
{
	p->reserved -= w->n - w->n_predicted;
	*w = (struct od_wanted){ 0 };
}

static void put_hedge(struct od_want_policy *p, uint16_t expert, struct od_wanted *w)
{
	w->expert[w->n++] = expert;
	p->reserved++;
}

static void add_runners_up(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, struct od_wanted *w)
{
	const double most = p->threshold * od_want_sigma(p, m);
	const size_t k = p->top_k;

	for (size_t i = k; i < c->n && i < k + OD_MAX_HEDGES && p->balance + OVERDRAFT * p->rows - p->reserved >= 1;
	     i++) {
		if ((double)c->logit[k - 1] - (double)c->logit[i] >= most)
			return;
		put_hedge(p, c->expert[i], w);
	}
}

/* Experts that an earlier prediction of the row wanted are probably loaded by now, and as likely to be needed as any:
 * they stay while there is room. */
static void keep_earlier(struct od_want_policy *p, const struct od_wanted *before, struct od_wanted *w)
{
	for (size_t i = 0; i < before->n && w->n < w->n_predicted + OD_MAX_HEDGES; i++) {
		bool have = false;

		for (size_t j = 0; j < w->n && !have; j++)
			have = w->expert[j] == before->expert[i];
		if (!have)
			put_hedge(p, before->expert[i], w);
	}
}

void od_want_decide(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, struct od_wanted *w)
{
	const struct od_wanted before = *w;

	od_want_give_up(p, w);
	if (c->n < p->top_k)
		return;
	w->n = w->n_predicted = (uint16_t)p->top_k;
	memcpy(w->expert, c->expert, p->top_k * sizeof(*w->expert));
	if (p->hedge <= 0 || !c->has_logit)
		return;
	add_runners_up(p, m, c, w);
	keep_earlier(p, &before, w);
}

/* ---- Learning ---- */

/* The noise: true logits less those of the prediction, about their mean, because what softmax divides by is none. */
static void learn_noise(struct noise *l, const struct od_candidates *c, const float *probability)
{
	double noise[OD_MAX_CANDIDATES], sum = 0, squares = 0;

	for (size_t i = 0; i < c->n; i++) {
		noise[i] = (double)logit_of(probability[c->expert[i]]) - (double)c->logit[i];
		sum += noise[i];
	}
	for (size_t i = 0; i < c->n; i++) {
		noise[i] -= sum / (double)c->n;
		squares += noise[i] * noise[i];
	}
	l->rows += l->rows < MEMORY_ROWS;
	l->mean_square += 1 / l->rows * (squares / (double)c->n - l->mean_square);
}

void od_want_learn(struct od_want_policy *p, uint32_t m, const struct od_candidates *c, const float *probability,
		   struct od_wanted *w)
{
	if (c->n > 0 && c->has_logit && probability != NULL)
		learn_noise(&p->layer[m], c, probability);
	od_want_give_up(p, w);
}

void od_want_spent(struct od_want_policy *p, size_t uses, size_t wasted)
{
	const double over = (double)wasted - p->hedge * (double)uses;

	if (p->hedge <= 0)
		return;
	p->rows = fmax((double)uses / p->top_k, 1);
	p->balance = fmin(p->balance - over, MAX_BALANCE * p->rows);
	p->threshold = fmin(fmax(p->threshold * exp(-RATE * over / p->rows), MIN_THRESHOLD), MAX_THRESHOLD);
}
