/* draft_outlook.h - which draft rows of the next step are worth a prefetch: what the policy of draft lengths
 * (draft_policy.h) tells the table of predictions (predictions.h), which knows the margins of drafts long before a step
 * verifies them.
 *
 * Pure; plain data. */
#ifndef ODM_DRAFT_OUTLOOK_H
#define ODM_DRAFT_OUTLOOK_H

#include <math.h>

#define ODM_MAX_MARGIN 50.0 /* more is no surer */

struct odm_outlook {
	double right[2]; /* P(token right | margin) = 1 / (1 + exp(-(right[0] + right[1] log(1 + margin)))) */
	double least; /* draft rows that are needed with less probability are not prefetched for; 0: all are */
};

static inline double odm_margin_feature(float margin)
{
	return log1p(margin < ODM_MAX_MARGIN ? margin : ODM_MAX_MARGIN);
}

static inline double odm_outlook_right(const double right[2], float margin)
{
	return 1 / (1 + exp(-(right[0] + right[1] * odm_margin_feature(margin))));
}

#endif
