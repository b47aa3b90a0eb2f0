#include "main-node/predict/predict_trial.h"

#define BLOCK_STEPS 32
#define FIRST_BLOCKS 2 /* each way gets so many, after a block to warm up */
#define OTHER_BLOCKS 16 /* one of so many blocks tries the slower way */
#define RECENT_STEPS 128 /* a time is the mean of about so many steps */

static void choose_block(struct odm_predict_trial *t)
{
	const bool better = t->row_ns[true] <= t->row_ns[false];

	t->steps_left = BLOCK_STEPS;
	if (t->n_blocks++ == 0) /* caches are still empty */
		t->ahead = true;
	else if (t->n_blocks_of[true] < FIRST_BLOCKS || t->n_blocks_of[false] < FIRST_BLOCKS)
		t->ahead = t->n_blocks_of[true] <= t->n_blocks_of[false];
	else
		t->ahead = t->n_blocks % OTHER_BLOCKS == 0 ? !better : better;
}

bool odm_predict_trial_next(struct odm_predict_trial *t)
{
	if (t->steps_left == 0)
		choose_block(t);
	return t->ahead;
}

void odm_predict_trial_ended(struct odm_predict_trial *t, uint64_t ns, size_t n_rows)
{
	uint64_t *n = &t->n_steps[t->ahead];

	if (t->steps_left == 0)
		return;
	/* The first step of a block still has the loads of the one before it. */
	if (ns > 0 && t->n_blocks > 1 && t->steps_left < BLOCK_STEPS) {
		const double row_ns = (double)ns / (double)n_rows;

		*n += *n < RECENT_STEPS;
		t->row_ns[t->ahead] += (row_ns - t->row_ns[t->ahead]) / (double)*n;
	}
	t->steps_left--;
	t->n_blocks_of[t->ahead] += t->steps_left == 0 && t->n_blocks > 1;
}
