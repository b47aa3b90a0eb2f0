/* golden_compare.h - what we generated for a golden prompt, held against what the reference did.
 *
 * The comparison goes in causal order: position by position, in it layer by layer, then the position's logits, then
 * the token chosen after it. So the first difference is the cause and not an effect of another one.
 * Another order of summation moves float32 results by about 1e-6, so a difference where the reference itself was
 * nearly undecided is a tie: accepted, told, and the end of the prompt's comparison, as all that follows differs.
 * A logit may differ by the entry's logit_tolerance times the largest of its row; where the file says nothing, by
 * GOLDEN_LOGIT_ERROR. A router weight may differ by GOLDEN_WEIGHT_ERROR times the largest of its row.
 * Thread: one at a time. Owner: the caller's struct golden_run owns its arrays, not the tokens. */
#ifndef OD_TESTS_BENCH_GOLDEN_COMPARE_H
#define OD_TESTS_BENCH_GOLDEN_COMPARE_H

#include "tests/conform/golden_file.h"

#define GOLDEN_ROUTE_TIE 1e-5 /* the reference's margin, k-th to next router probability, below which it is a tie */
#define GOLDEN_TOKEN_TIE 1e-3 /* best to second logit */
#define GOLDEN_RANK_TIE 1e-5 /* same experts in another order: our weights of those that changed places */
#define GOLDEN_LOGIT_ERROR 2e-4
#define GOLDEN_WEIGHT_ERROR 1e-4

/* Bounds that the user wants instead of the entry's rule; negative: not given. With both each must hold. */
struct golden_tolerance {
	double absolute; /* for logits */
	double relative; /* for logits and router weights, relative to the largest of the reference's row */
};

/* The worst logit of a row. */
struct golden_worst {
	double error; /* infinite when one side is not a number */
	double largest; /* finite magnitude in the reference's row */
	uint32_t id;
	float expected, found;
};

struct golden_run {
	const struct golden *g;
	const struct golden_entry *e;
	uint16_t *expert; /* [n_positions][n_moe][top_k], best first; 0xffff where nothing was seen */
	float *weight; /* [n_positions][n_moe][top_k]: the factors of the experts' outputs */
	struct golden_worst *worst; /* [n_prompt]; NULL: the prompt has no logits to compare */
	struct golden_worst *decode_worst; /* [n_greedy], of the row that each token was chosen from; or NULL */
	const int32_t *tokens; /* [n_tokens] */
	size_t n_tokens;
	bool stopped_at_eos;
	const char *finish; /* why generation ended, for messages */
};

OD_MUST_CHECK int golden_run_init(struct golden_run *run, const struct golden *g, const struct golden_entry *e,
				  struct od_err *err);
void golden_run_fini(struct golden_run *run);
/* expert, weight: [top_k]. Positions and layers that the reference has not are ignored. */
void golden_run_route(struct golden_run *run, size_t position, uint32_t m, const uint16_t *expert, const float *weight);
/* expected, found: [vocab]; worst: the row's element of one of the two lists. */
void golden_run_logits(const struct golden_run *run, struct golden_worst *worst, const float *expected,
		       const float *found);

enum golden_result { GOLDEN_CONFORMS, GOLDEN_TIE, GOLDEN_FAILS };
extern const char *const golden_result_names[]; /* "conforms", "tie", "FAILS" */

struct golden_verdict {
	enum golden_result result;
	size_t n_tokens; /* generated tokens that were compared and are equal */
	size_t n_rank_ties; /* they do not end the comparison */
	double max_logit_error; /* over the rows compared, absolute; NaN: none */
	double max_weight_error; /* relative to the row's largest weight; NaN: none compared */
	char rank_tie[512]; /* the first one; empty: none */
	char difference[768]; /* the first one; empty: none */
};

void golden_verdict_init(struct golden_verdict *v);
void golden_fails(struct golden_verdict *v, const char *fmt, ...) OD_PRINTF(2, 3);
/* v: initialised. */
void golden_compare(const struct golden_run *run, const struct golden_tolerance *t, struct golden_verdict *v);

#endif
