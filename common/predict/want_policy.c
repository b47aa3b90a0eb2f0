#include "common/predict/want_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a layer before its noise is believed, and how many the memory reaches back: noise depends on the weights, so it
 * hardly changes. */
#define MIN_ROWS 8
#define MEMORY_ROWS 4096.0
/* How fast the threshold follows the budget: slowly enough that the burst of a token guessed wrongly does not close it. */
#define RATE 0.02
#define FIRST_THRESHOLD 1.0
#define MIN_THRESHOLD 0.02
#define MAX_THRESHOLD 1e6
/* Loads that may be saved up, since unspent budget is no reason to hedge what is unlikely; and that may be spent ahead,
 * since a token guessed wrongly costs dozens at once. */
#define MAX_BALANCE 32.0
#define OVERDRAFT 64.0
#define MIN_PROBABILITY 1e-30f

/* What was learnt of one layer, by least squares without an intercept; old rows fade. */
struct fit {
	double rows;	     /* weight of all rows */
	double ee;	     /* mean square of the noise */
	double ed[OD_MAX_EARLY], dd[OD_MAX_EARLY], seen[OD_MAX_EARLY]; /* noise times difference, difference squared */
	double ce[OD_MAX_EARLY]; /* mean square of the noise, corrected */
};

struct od_want_policy {
	struct od_want_opts o;
	uint32_t n_layers, top_k;
	double threshold;
	double balance;	 /* loads that the budget has brought less what was loaded in vain */
	double reserved; /* of those, hedges under way */
	struct fit *layer; /* [n_layers] */
};

int od_want_policy_new(struct od_want_policy **out, const struct od_want_opts *opts, uint32_t n_layers, uint32_t top_k,
		       struct od_err *err)
{
	struct od_want_policy *p = calloc(1, sizeof(*p));

	*out = NULL;
	if (p != NULL)
		p->layer = calloc(n_layers, sizeof(*p->layer));
	if (p == NULL || p->layer == NULL) {
		od_want_policy_free(p);
		return od_fail(err, OD_ERR_NOMEM, "policy of %u layers", n_layers);
	}
	p->o = *opts;
	p->n_layers = n_layers;
	p->top_k = top_k;
	p->threshold = FIRST_THRESHOLD;
	*out = p;
	return OD_OK;
}

void od_want_policy_free(struct od_want_policy *p)
{
	if (p != NULL)
		free(p->layer);
	free(p);
}

/* ---- What was said ---- */

static float logit_of(float probability)
{
	return logf(probability > MIN_PROBABILITY ? fminf(probability, 1) : MIN_PROBABILITY); /* also what is no number */
}

void od_said_set(struct od_said *s, const struct od_prediction *p)
{
	s->n = (uint16_t)p->n;
	s->has_logit = p->probability != NULL;
	s->n_early = (uint16_t)(p->early != NULL ? p->n_early : 0);
	memcpy(s->expert, p->expert, p->n * sizeof(*s->expert));
	for (size_t i = 0; s->has_logit && i < p->n; i++)
		s->logit[i] = logit_of(p->probability[i]);
	for (size_t l = 0; l < s->n_early; l++) {
		for (size_t i = 0; i < p->n; i++)
			s->early[l][i] = logit_of(p->early[l * p->n + i]);
	}
}

void od_row_said_add(struct od_row_said *r, const struct od_prediction *p)
{
	const uint32_t lead = p->lead == 0 ? 1 : p->lead < OD_MAX_EARLY ? p->lead : OD_MAX_EARLY;

	od_said_set(p->opinion == OD_FIRST_OPINION ? &r->first : &r->second[lead - 1], p);
}

/* The latest of the second opinions; NULL: there is none. */
static const struct od_said *latest_second(const struct od_row_said *r, uint32_t *lead)
{
	for (uint32_t l = 1; l <= OD_MAX_EARLY; l++) {
		*lead = l;
		if (r->second[l - 1].n > 0)
			return &r->second[l - 1];
	}
	return NULL;
}

/* delta [first.n]: main's early logits less the shadow's, about their mean; where main named no such expert, 0. False:
 * they have too little in common. */
static bool difference(const struct od_row_said *r, uint32_t lead, double *delta)
{
	const struct od_said *first = &r->first, *second = &r->second[lead - 1];
	bool both[OD_MAX_CANDIDATES] = { false };
	double sum = 0;
	size_t n = 0;

	if (lead > first->n_early || second->n == 0 || !second->has_logit)
		return false;
	for (size_t i = 0; i < first->n; i++) {
		delta[i] = 0;
		for (size_t j = 0; j < second->n && !both[i]; j++) {
			both[i] = second->expert[j] == first->expert[i];
			if (both[i])
				delta[i] = (double)second->logit[j] - (double)first->early[lead - 1][i];
		}
		sum += delta[i];
		n += both[i];
	}
	for (size_t i = 0; i < first->n && n > 0; i++)
		delta[i] = both[i] ? delta[i] - sum / (double)n : 0;
	return n >= 2;
}

/* ---- Deciding ---- */

double od_want_sigma(const struct od_want_policy *p, uint32_t m, uint32_t lead)
{
	const struct fit *f = &p->layer[m];

	if (lead == 0)
		return f->rows >= MIN_ROWS ? sqrt(f->ee) : 0;
	return f->seen[lead - 1] >= MIN_ROWS ? sqrt(f->ce[lead - 1]) : 0;
}

double od_want_weight(const struct od_want_policy *p, uint32_t m, uint32_t lead)
{
	const struct fit *f = &p->layer[m];

	return f->seen[lead - 1] >= MIN_ROWS && f->dd[lead - 1] > 0 ? f->ed[lead - 1] / f->dd[lead - 1] : 0;
}

double od_want_threshold(const struct od_want_policy *p)
{
	return p->threshold;
}

/* Candidates and their logits, corrected where that can be done, best first; what ties keeps its order. Returns sigma. */
static double weigh(const struct od_want_policy *p, uint32_t m, const struct od_row_said *r, uint16_t *expert,
		    double *logit)
{
	const struct od_said *first = &r->first;
	double delta[OD_MAX_CANDIDATES], weight = 0;
	uint32_t lead = 0;
	size_t n = first->n;

	if (p->o.correct && latest_second(r, &lead) != NULL && difference(r, lead, delta))
		weight = od_want_weight(p, m, lead);
	else
		lead = 0;
	for (size_t i = 0; i < n; i++) {
		const double x = (double)first->logit[i] + (weight != 0 ? weight * delta[i] : 0);
		size_t at = i;

		for (; at > 0 && logit[at - 1] < x; at--) {
			logit[at] = logit[at - 1];
			expert[at] = expert[at - 1];
		}
		logit[at] = x;
		expert[at] = first->expert[i];
	}
	return od_want_sigma(p, m, weight != 0 ? lead : 0);
}

static bool same_set(const uint16_t *a, const uint16_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool have = false;

		for (size_t j = 0; j < n && !have; j++)
			have = a[i] == b[j];
		if (!have)
			return false;
	}
	return true;
}

void od_want_give_up(struct od_want_policy *p, struct od_wanted *w)
{
	p->reserved -= w->n - w->n_predicted;
	*w = (struct od_wanted){ 0 };
}

static void hedge(struct od_want_policy *p, const uint16_t *expert, const double *logit, size_t n, double sigma,
		  struct od_wanted *w)
{
	const size_t k = w->n_predicted;

	for (size_t i = k; i < n && i < k + OD_MAX_HEDGES && p->balance + OVERDRAFT - p->reserved >= 1; i++) {
		if (logit[k - 1] - logit[i] >= p->threshold * sigma)
			return;
		w->expert[w->n++] = expert[i];
		p->reserved++;
	}
}

/* What the first opinion had wanted is probably loaded by now, and as likely to be needed as any: it stays while there is
 * room. */
static void keep(struct od_want_policy *p, const struct od_wanted *before, struct od_wanted *w)
{
	for (size_t i = 0; i < before->n && w->n < w->n_predicted + OD_MAX_HEDGES; i++) {
		bool have = false;

		for (size_t j = 0; j < w->n && !have; j++)
			have = w->expert[j] == before->expert[i];
		if (have)
			continue;
		w->expert[w->n++] = before->expert[i];
		p->reserved++;
	}
}

void od_want_decide(struct od_want_policy *p, uint32_t m, const struct od_row_said *r, struct od_wanted *w)
{
	const struct od_wanted before = *w;
	uint16_t expert[OD_MAX_CANDIDATES];
	double logit[OD_MAX_CANDIDATES], sigma;
	const struct od_said *plain = &r->first;
	uint32_t lead;

	od_want_give_up(p, w);
	if (plain->n == 0)
		plain = latest_second(r, &lead); /* it stands in */
	if (plain == NULL || plain->n < p->top_k)
		return;
	w->n = w->n_predicted = (uint16_t)p->top_k;
	w->stands_in = plain != &r->first;
	if (w->stands_in || !plain->has_logit) {
		memcpy(w->expert, plain->expert, p->top_k * sizeof(*w->expert));
		return;
	}
	sigma = weigh(p, m, r, expert, logit);
	memcpy(w->expert, expert, p->top_k * sizeof(*w->expert));
	w->corrected = !same_set(expert, plain->expert, p->top_k);
	if (p->o.hedge > 0 && sigma > 0)
		hedge(p, expert, logit, plain->n, sigma, w);
	if ((p->o.hedge > 0 || p->o.correct) && !before.stands_in)
		keep(p, &before, w);
}

/* ---- Learning ---- */

static void average(double *mean, double value, double share)
{
	*mean += share * (value - *mean);
}

static void learn_lead(struct fit *f, const struct od_row_said *r, uint32_t lead, const double *noise)
{
	double delta[OD_MAX_CANDIDATES], ed = 0, dd = 0, ce = 0, weight;
	const size_t i = lead - 1, n = r->first.n;
	double share;

	if (!difference(r, lead, delta))
		return;
	for (size_t j = 0; j < n; j++) {
		ed += noise[j] * delta[j];
		dd += delta[j] * delta[j];
	}
	f->seen[i] += f->seen[i] < MEMORY_ROWS;
	share = 1 / f->seen[i];
	average(&f->ed[i], ed, share);
	average(&f->dd[i], dd, share);
	weight = f->dd[i] > 0 ? f->ed[i] / f->dd[i] : 0;
	for (size_t j = 0; j < n; j++)
		ce += (noise[j] - weight * delta[j]) * (noise[j] - weight * delta[j]);
	average(&f->ce[i], ce / (double)n, share);
}

/* True logits less the first opinion's, about their mean: what softmax divides by is no noise. */
static void learn_layer(struct fit *f, const struct od_row_said *r, const float *probability)
{
	const size_t n = r->first.n;
	double noise[OD_MAX_CANDIDATES], sum = 0, ee = 0;

	for (size_t i = 0; i < n; i++) {
		noise[i] = (double)logit_of(probability[r->first.expert[i]]) - (double)r->first.logit[i];
		sum += noise[i];
	}
	for (size_t i = 0; i < n; i++) {
		noise[i] -= sum / (double)n;
		ee += noise[i] * noise[i];
	}
	f->rows += f->rows < MEMORY_ROWS;
	average(&f->ee, ee / (double)n, 1 / f->rows);
	for (uint32_t lead = 1; lead <= OD_MAX_EARLY; lead++)
		learn_lead(f, r, lead, noise);
}

void od_want_learn(struct od_want_policy *p, uint32_t m, const struct od_row_said *said, const float *probability,
		   struct od_wanted *w)
{
	if (said->first.n > 0 && said->first.has_logit && probability != NULL)
		learn_layer(&p->layer[m], said, probability);
	od_want_give_up(p, w);
}

void od_want_spent(struct od_want_policy *p, size_t uses, size_t in_vain)
{
	const double over = (double)in_vain - p->o.hedge * (double)uses;

	if (p->o.hedge <= 0)
		return;
	p->balance = p->balance - over < MAX_BALANCE ? p->balance - over : MAX_BALANCE;
	p->threshold *= exp(-RATE * over);
	if (p->threshold < MIN_THRESHOLD)
		p->threshold = MIN_THRESHOLD;
	if (p->threshold > MAX_THRESHOLD)
		p->threshold = MAX_THRESHOLD;
}
