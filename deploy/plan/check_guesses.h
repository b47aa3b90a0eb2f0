/* check_guesses.h - how well a shadow predicts main: its recall (OD-MoE, Eq. 2 and 3), and how many of its tokens are
 * main's. Both depend on the model and on the copy's precision, so od-main's engine writes texts with the shadow.
 *
 * Thread: as check_text.h. Owner: nothing is kept. */
#ifndef ODP_CHECK_GUESSES_H
#define ODP_CHECK_GUESSES_H

#include "deploy/plan/check_facts.h"
#include "deploy/plan/check_text.h"

/* The shadow's guesses in some texts. */
struct odp_guesses {
	uint64_t uses, recalled; /* uses of experts in layers with a prediction; those that it named */
	uint64_t tokens, right; /* guessed behind right ones; right themselves */
};
/* Sets recall and accept, each to 0 if there were too few to tell. */
void odp_take_guesses(struct odp_rates *shadow, const struct odp_guesses *g);

/* o: with the shadows and the workers. Writes texts for so long, and sets the same rates. */
OD_MUST_CHECK int odp_check_guesses(struct odp_rates *shadow, const struct odp_text_hosts *o, uint64_t budget_ns,
				    struct od_err *err);

#endif
