/* predict_trial.h - whether main's own predictor pays. It takes time on the cores that compute, and it loads experts
 * that are not used. Where loads are short that may cost more than it gains, so blocks of steps with and without it are
 * timed in turns, and the faster way is used most of the time.
 *
 * Thread: the engine thread. Owner: plain data, all zero at first. */
#ifndef ODM_PREDICT_TRIAL_H
#define ODM_PREDICT_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct odm_predict_trial {
	bool ahead; /* this block predicts */
	unsigned steps_left; /* until the block ends */
	uint64_t n_blocks, n_blocks_of[2]; /* index: ahead */
	uint64_t n_steps[2];
	double row_ns[2]; /* recent time of a row */
};

/* A decode step begins: predict in it? */
bool odm_predict_trial_next(struct odm_predict_trial *t);
/* It has ended. ns 0: it says nothing, because it was given up, for example. */
void odm_predict_trial_ended(struct odm_predict_trial *t, uint64_t ns, size_t n_rows);

#endif
