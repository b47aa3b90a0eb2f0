#include "deploy/plan/check_guesses.h"

#include "common/base/clock.h"

#define TEXT_TOKENS 32 /* Greedy texts repeat themselves in the end. */
#define MOST_TEXTS 8
#define TOKEN_STEP 61 /* from one text's prompt to the next one's */
#define LEAST_USES 64
#define LEAST_TOKENS 16
#define LEAST_RATE 1e-3 /* The words have no zero. */

static double rate(uint64_t part, uint64_t all, uint64_t least)
{
	const double r = all >= least ? (double)part / (double)all : 0;

	return all >= least && r < LEAST_RATE ? LEAST_RATE : r;
}

void odp_take_guesses(struct odp_rates *shadow, const struct odp_guesses *g)
{
	shadow->recall = rate(g->recalled, g->uses, LEAST_USES);
	shadow->accept = rate(g->right, g->tokens, LEAST_TOKENS);
}

static void drafted(void *arg, float margin, double probability, bool right)
{
	struct odp_guesses *g = arg;

	(void)margin;
	(void)probability;
	g->tokens++;
	g->right += right;
}

int odp_check_guesses(struct odp_rates *shadow, const struct odp_text_hosts *o, uint64_t budget_ns, struct od_err *err)
{
	struct odm_engine_opts *opts = &o->model->opts;
	const uint64_t usual = opts->draft_tokens, until_ns = od_now_ns() + budget_ns;
	const uint32_t vocab = o->model->config->vocab;
	struct odp_guesses g = { 0 };
	struct odp_text t;
	int rc;

	opts->draft_tokens = 1; /* Each token is guessed, whether that pays or not. */
	rc = odp_text_open(&t, o, err);
	for (uint32_t i = 0; rc == OD_OK && i < MOST_TEXTS && od_now_ns() < until_ns; i++) {
		const struct odp_text_wish wish = { .first =
							    (int32_t)(1 + i * TOKEN_STEP % (vocab > 8 ? vocab - 8 : 1)),
						    .tokens = TEXT_TOKENS,
						    .until_ns = until_ns,
						    .observer = { .arg = &g, .drafted = drafted } };
		struct odm_figures f;

		rc = odp_text_write(&t, &wish, &f, err);
		if (rc == OD_OK) {
			g.uses += f.c[OD_C_PREDICTED_USES];
			g.recalled += f.c[OD_C_RECALLED_USES];
		}
	}
	odp_text_close(&t);
	opts->draft_tokens = usual;
	odp_take_guesses(shadow, &g);
	return rc;
}
