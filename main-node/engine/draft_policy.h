/* draft_policy.h - decides how many draft tokens of each text a decode step verifies, and whether drafts are used at
 * all.
 *
 * It learns two models from the run, with forgetting:
 *   P(token right | margin) = 1 / (1 + exp(-(a + b log(1 + margin))))	logistic regression, one Newton step a token
 *   step time = c0 + c1 rows + c2 experts + max(0, d0 + d1 experts)		Bayesian linear regressions
 * The last term is the time that the step waits for loads: those of few experts are hidden by the window.
 * A draft gets longer while the probability that all of it is right, divided by the time that one more row costs, is
 * above the tokens per time of the step without that row.
 *
 * Drafts that do not pay are off: the run alternates between long phases in the mode that was faster and short ones in
 * the other, rarer each time that the result is the same. Rates are compared only for about the same number of texts.
 * Pure: no clock and no I/O. Thread: the owner's. Owner: the caller; plain data. */
#ifndef ODM_DRAFT_POLICY_H
#define ODM_DRAFT_POLICY_H

#include "main-node/step/step.h"

#define ODM_TIME_TERMS 3

/* y = sum of w[i] x[i], learnt from noisy samples; old ones count less. */
struct odm_linear {
	double w[ODM_TIME_TERMS], p[ODM_TIME_TERMS][ODM_TIME_TERMS]; /* coefficients; their covariance */
	double spread; /* the first estimate's */
	double noise; /* variance of y; 0: nothing was learnt */
};

struct odm_draft_policy {
	uint32_t fixed; /* always so many tokens; 0: as many as pay */
	double right[2], right_h[2][2]; /* coefficients, and the weight of the evidence for them (Hessian) */
	/* a step's ns without waits for loads: of 1, rows, experts; these waits: of 1, experts */
	struct odm_linear work, wait;
	double length; /* moving average of the longest draft of a step */
	bool drafting; /* the mode of this phase */
	bool trial; /* a short phase */
	uint32_t steps, phase_steps, long_steps; /* this phase's so far; its length; the length of long phases */
	size_t texts; /* about as many in the steps of these phases */
	double rate[2]; /* tokens of a text per ns, by mode; 0: not known */
	double tokens, ns; /* this phase's; old steps count less */
};

void odm_draft_policy_init(struct odm_draft_policy *p, uint32_t fixed);

/* Drafts are used in the next step. */
bool odm_draft_policy_on(const struct odm_draft_policy *p);
/* Rows of a text that the step after the next may have at most: odm_part.ahead. */
uint32_t odm_draft_policy_ahead(const struct odm_draft_policy *p);
/* The draft rows of the next step that are worth a prefetch. */
struct odm_outlook odm_draft_policy_outlook(const struct odm_draft_policy *p);
/* Cuts the drafts d [n] of the texts of a step to the lengths that pay, at most most_rows draft rows together. */
void odm_draft_policy_cut(struct odm_draft_policy *p, struct odm_draft *const *d, size_t n, size_t most_rows);

/* A draft token was verified behind right ones only. */
void odm_draft_policy_learn(struct odm_draft_policy *p, float margin, bool right);
double odm_draft_policy_right(const struct odm_draft_policy *p, float margin); /* probability */
/* Sizes and times of a step. */
struct odm_draft_step {
	size_t texts, rows, tokens; /* tokens: that it gave */
	double experts; /* the sum of experts[n] of the drafts */
	uint64_t ns, wait_ns; /* its time; of this, waiting for loads */
};
void odm_draft_policy_timed(struct odm_draft_policy *p, const struct odm_draft_step *s);

#endif
