#include "main-node/engine/draft_policy.h"

#include <math.h>

#define KEEP_RIGHT 0.995 /* weight of the evidence after each further token */
/* share of the evidence that is kept when drafts are tried again: the text may be another one */
#define TRIAL_RIGHT 0.1
#define KEEP_TIME 0.99 /* after each further step */
#define WORK_SPREAD 0.5 /* a row costs perhaps as much as the rest of a step */
#define WAIT_SPREAD 20.0 /* a few more experts may double the wait */
#define MIN_WAIT 0.005 /* fraction of a step: less counts as no wait */
#define MAX_SURPRISE 3.0 /* standard deviations: a step that takes longer counts as this */
#define EXPLORE 16 /* steps */
#define WORTH_PREFETCH 0.3 /* probability: less wastes two loads and more for each that is used */
#define FIRST_PLAIN 4 /* steps until the first trial */
#define PLAIN_TRIAL 5 /* steps */
#define DRAFT_TRIAL 16
#define SETTLE_PLAIN 1 /* first steps of a phase, which are not timed: loads for drafts are under way, */
#define SETTLE_DRAFTS 3 /* the shadow must get ahead */
#define MIN_LONG 32 /* steps of a long phase */
#define MAX_LONG 1024
#define MIN_GAIN 1.02 /* less gain is none: drafts cost wire, loads and the shadow's time */
#define CLEAR_GAIN 1.25 /* trials of plain decoding soon become rare */
#define KEEP_RATE 0.97

void odm_draft_policy_init(struct odm_draft_policy *p, uint32_t fixed)
{
	*p = (struct odm_draft_policy){
		.fixed = fixed,
		.right = { 0, 1 },
		.right_h = { { 1, 0 }, { 0, 1 } },
		.length = 2,
		.long_steps = MIN_LONG, /* the first step sets texts and phase_steps */
	};
}

bool odm_draft_policy_on(const struct odm_draft_policy *p)
{
	return p->fixed > 0 || p->drafting;
}

uint32_t odm_draft_policy_ahead(const struct odm_draft_policy *p)
{
	const double room = 2 + 1.5 * p->length;

	if (p->fixed > 0)
		return 1 + p->fixed;
	return 1 + (!p->drafting ? 0 : room < ODM_MAX_DRAFT ? (uint32_t)room : ODM_MAX_DRAFT);
}

struct odm_outlook odm_draft_policy_outlook(const struct odm_draft_policy *p)
{
	return (struct odm_outlook){ .right = { p->right[0], p->right[1] },
				     .least = p->fixed > 0 ? 0 : WORTH_PREFETCH };
}

/* ---- Is a token right? ---- */

double odm_draft_policy_right(const struct odm_draft_policy *p, float margin)
{
	return odm_outlook_right(p->right, margin);
}

void odm_draft_policy_learn(struct odm_draft_policy *p, float margin, bool right)
{
	const double x[2] = { 1, odm_margin_feature(margin) }, q = odm_draft_policy_right(p, margin),
		     error = (right ? 1 : 0) - q;
	double(*h)[2] = p->right_h, det;

	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++) /* some evidence always remains, so that it can be inverted */
			h[i][j] = KEEP_RIGHT * h[i][j] + fmax(q * (1 - q), 1e-3) * x[i] * x[j] + (i == j ? 1e-3 : 0);
	det = h[0][0] * h[1][1] - h[0][1] * h[1][0];
	p->right[0] += (h[1][1] * x[0] - h[0][1] * x[1]) / det * error;
	p->right[1] += (h[0][0] * x[1] - h[1][0] * x[0]) / det * error;
	if (p->right[1] < 0) /* a larger margin is never less sure */
		p->right[1] = 0;
}

/* ---- What does a step take? ---- */

/* The first sample gives the scale: a tenth of y is taken to be due to x[1], with this uncertainty of each term's share
 * of y. */
static void begin_linear(struct odm_linear *l, double spread, const double x[ODM_TIME_TERMS], double y)
{
	l->spread = spread;
	l->noise = 0.01 * y * y;
	l->w[0] = 0.9 * y;
	l->w[1] = 0.1 * y / x[1];
	for (int i = 0; i < ODM_TIME_TERMS; i++)
		l->p[i][i] = x[i] > 0 ? pow(spread * y / x[i], 2) : 0;
}

static double value_of(const struct odm_linear *l, const double x[ODM_TIME_TERMS])
{
	double y = 0;

	for (int i = 0; i < ODM_TIME_TERMS; i++)
		y += l->w[i] * x[i];
	return y;
}

/* Recursive least squares that forgets only in the direction of x: in others nothing new is known, and their covariance
 * would grow without end while x does not change. */
static void learn_linear(struct odm_linear *l, double spread, const double x[ODM_TIME_TERMS], double y)
{
	double px[ODM_TIME_TERMS] = { 0 }, variance, error, known = 0;

	if (l->noise == 0) {
		begin_linear(l, spread, x, y);
		return;
	}
	for (int i = 1; i < ODM_TIME_TERMS; i++)
		if (x[i] > 0 && l->p[i][i] == 0) /* it was 0 until now */
			l->p[i][i] = pow(l->spread * y / x[i], 2);
	error = y - value_of(l, x);
	for (int i = 0; i < ODM_TIME_TERMS; i++) {
		for (int j = 0; j < ODM_TIME_TERMS; j++)
			px[i] += l->p[i][j] * x[j];
		known += x[i] * px[i];
	}
	if (!isfinite(error) || !(known > 0)) { /* rounding has won: begin anew */
		*l = (struct odm_linear){ 0 };
		return;
	}
	variance = l->noise + known;
	error = fmin(error, MAX_SURPRISE * sqrt(variance));
	l->noise = fmax(0.98 * l->noise + 0.02 * error * error, 1e-4 * y * y);
	for (int i = 0; i < ODM_TIME_TERMS; i++) {
		l->w[i] += px[i] / variance * error;
		for (int j = 0; j < ODM_TIME_TERMS; j++)
			l->p[i][j] += px[i] * px[j] * ((1 - KEEP_TIME) / known - 1 / variance);
	}
}

static void learn_time(struct odm_draft_policy *p, const struct odm_draft_step *s)
{
	const double work[ODM_TIME_TERMS] = { 1, (double)s->rows, s->experts },
		     wait[ODM_TIME_TERMS] = { 1, s->experts };
	const uint64_t wait_ns = s->wait_ns < s->ns ? s->wait_ns : s->ns; /* a worker says it */

	learn_linear(&p->work, WORK_SPREAD, work, (double)(s->ns - wait_ns));
	/* No wait says only that there was room: it is news when a wait was expected. */
	if (s->experts > 0 &&
	    ((double)wait_ns > MIN_WAIT * (double)s->ns || (p->wait.noise > 0 && value_of(&p->wait, wait) > 0)))
		learn_linear(&p->wait, WAIT_SPREAD, wait, (double)wait_ns);
}

static double step_ns(const struct odm_draft_policy *p, double rows, double experts)
{
	const double work[ODM_TIME_TERMS] = { 1, rows, experts }, wait[ODM_TIME_TERMS] = { 1, experts };

	return fmax(value_of(&p->work, work), 0.1 * p->work.w[0]) + fmax(value_of(&p->wait, wait), 0) + 1;
}

/* ---- Lengths ---- */

static size_t longest(struct odm_draft *const *d, size_t n)
{
	size_t most = 0;

	for (size_t i = 0; i < n; i++)
		most = d[i]->n > most ? d[i]->n : most;
	return most;
}

static bool explores(const struct odm_draft_policy *p)
{
	return p->steps % EXPLORE == EXPLORE - 1 || (p->trial && p->steps == SETTLE_DRAFTS);
}

/* Draft tokens one by one, the best bargain first. Now and then one more, so that a wrong estimate of its cost is found
 * out. */
static void cut_to_what_pays(const struct odm_draft_policy *p, struct odm_draft *const *d, size_t n, size_t most_rows)
{
	unsigned further = explores(p); /* rows that do not pay, by what is known */
	size_t have[ODM_MAX_STEP_ROWS];
	double all_right[ODM_MAX_STEP_ROWS], tokens = (double)n, experts = 0, ns;

	for (size_t i = 0; i < n; i++) {
		have[i] = d[i]->n;
		all_right[i] = d[i]->n > 0 ? odm_draft_policy_right(p, d[i]->margin[0]) : 0;
		experts += d[i]->experts[0];
		d[i]->n = 0;
	}
	ns = step_ns(p, (double)n, experts);
	for (size_t rows = n; rows < n + most_rows; rows++) {
		double best = 0, best_ns = 0, best_experts = 0;
		size_t at = n;

		for (size_t i = 0; i < n; i++) {
			const size_t next = d[i]->n + 1;
			double more, more_ns;

			if (next > have[i])
				continue;
			more = (double)d[i]->experts[next] - (double)d[i]->experts[next - 1];
			more_ns = fmax(step_ns(p, (double)rows + 1, experts + more) - ns, 1e-3 * ns); /* none is free */
			if (all_right[i] > best * more_ns) {
				best = all_right[i] / more_ns;
				best_ns = more_ns;
				best_experts = more;
				at = i;
			}
		}
		if (at == n || (best * ns <= tokens && further-- == 0))
			return;
		tokens += all_right[at];
		ns += best_ns;
		experts += best_experts;
		if (++d[at]->n < have[at])
			all_right[at] *= odm_draft_policy_right(p, d[at]->margin[d[at]->n]);
	}
}

/* So many of each, while there are rows: the first tokens of all before the second ones. */
static void cut_to_fixed(uint32_t fixed, struct odm_draft *const *d, size_t n, size_t most_rows)
{
	for (uint32_t length = 0; length < ODM_MAX_DRAFT; length++)
		for (size_t i = 0; i < n; i++) {
			if (d[i]->n <= length)
				continue;
			if (length < fixed && most_rows > 0)
				most_rows--;
			else
				d[i]->n = length;
		}
}

void odm_draft_policy_cut(struct odm_draft_policy *p, struct odm_draft *const *d, size_t n, size_t most_rows)
{
	if (p->fixed > 0 || n > ODM_MAX_STEP_ROWS)
		cut_to_fixed(p->fixed, d, n, most_rows);
	else
		cut_to_what_pays(p, d, n, most_rows);
	p->length += ((double)longest(d, n) - p->length) / 8;
}

/* ---- Modes ---- */

/* Rates of a text compare only for about the same number of texts. */
static bool other_number(const struct odm_draft_policy *p, size_t texts)
{
	const size_t difference = texts > p->texts ? texts - p->texts : p->texts - texts;

	return 4 * difference > p->texts;
}

static void begin_phase(struct odm_draft_policy *p, bool drafting, bool trial)
{
	p->drafting = drafting;
	p->trial = trial;
	p->steps = 0;
	p->tokens = p->ns = 0;
	p->phase_steps = !trial ? p->long_steps : drafting ? DRAFT_TRIAL : PLAIN_TRIAL;
	if (drafting && p->length < 2)
		p->length = 2;
	if (drafting && trial)
		for (int i = 0; i < 2; i++)
			for (int j = 0; j < 2; j++)
				p->right_h[i][j] = TRIAL_RIGHT * p->right_h[i][j] + (i == j ? 1 - TRIAL_RIGHT : 0);
}

/* With another number of texts the rate is measured anew, a trial is given up, and the next one waits until it is
 * known. */
static void begin_number(struct odm_draft_policy *p, size_t texts)
{
	uint32_t least;

	p->texts = texts;
	p->tokens = p->ns = 0;
	if (p->trial) {
		begin_phase(p, !p->drafting, false);
		p->phase_steps = 0;
	}
	least = p->steps + (p->rate[false] == 0 ? FIRST_PLAIN : MIN_LONG);
	if (p->phase_steps < least)
		p->phase_steps = least;
}

/* After a trial the faster mode gets a long phase; after a long phase the other mode gets a trial. */
static void end_phase(struct odm_draft_policy *p)
{
	const bool was = p->drafting != p->trial; /* the mode of the last long phase */
	bool faster, clear;

	if (p->ns > 0)
		p->rate[p->drafting] = p->tokens / p->ns;
	if (!p->trial) {
		begin_phase(p, !p->drafting, true);
		return;
	}
	faster = p->rate[true] > MIN_GAIN * p->rate[false];
	clear = p->rate[true] > CLEAR_GAIN * p->rate[false];
	p->long_steps = (clear ? 8 : 2) * (faster != was ? MIN_LONG / 2 : p->long_steps);
	if (p->long_steps > MAX_LONG)
		p->long_steps = MAX_LONG;
	begin_phase(p, faster, false);
}

void odm_draft_policy_timed(struct odm_draft_policy *p, const struct odm_draft_step *s)
{
	if (p->fixed > 0 || s->texts == 0)
		return;
	learn_time(p, s);
	if (other_number(p, s->texts))
		begin_number(p, s->texts);
	if (++p->steps > (p->drafting ? SETTLE_DRAFTS : SETTLE_PLAIN) || p->rate[p->drafting] == 0) {
		p->tokens = KEEP_RATE * p->tokens + (double)s->tokens / (double)s->texts;
		p->ns = KEEP_RATE * p->ns + (double)s->ns;
	}
	if (p->steps >= p->phase_steps)
		end_phase(p);
}
