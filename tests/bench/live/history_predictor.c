/* Which earlier sequence this one is like: MoE-Infinity (arXiv 2401.14361, sequence-level tracing and activation-aware
 * prefetching). A sequence is the matrix of how often each expert of each layer was used, its prompt included. The
 * matrix so far is matched with those of sequences that are over, by the mean over the layers of the cosine between
 * their rows, and the best match's row of a layer is what is expected there.
 *
 * Ours: the row is added to the sequence's own row so far, each as shares. The match alone forgets what the sequence
 * has shown, and while nothing is over there is no match: on talebook the match recalls 38.3 %, the sequence's own
 * counts 38.3 %, both 39.8 %. When the store is full, a new sequence takes the place of the one that it is most like,
 * so that what is kept stays varied.
 *
 * Everything is said before layer 0, and what is left of it again when a layer's routes have changed the match. Cost:
 * cosines are kept up to date, so a use costs a step through the store's column of that expert, and a search one pass
 * over [store][n_moe] floats. */
#include "common/base/mem.h"
#include "common/predict/predictor_base.h"
#include "tests/bench/live/rivals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STORE_SEQUENCES 128
#define STORE_BYTES ((size_t)16 << 20) /* of a model with many experts, fewer sequences */
#define NOBODY SIZE_MAX

struct history_predictor {
	struct od_predictor_base base;
	size_t n_moe, n_experts, capacity, n_stored, match;
	float *stored; /* [n_moe][capacity][n_experts]: rows of length 1, or 0 without a use */
	float *count;  /* [n_moe][n_experts] of the sequence that goes on */
	float *dot;    /* [capacity][n_moe]: its rows with the stored ones */
	float *length; /* [n_moe]: of its rows; 0 without a use */
	float *score;  /* [n_experts] */
};

static float *stored_row(const struct history_predictor *h, size_t layer, size_t sequence)
{
	return h->stored + (layer * h->capacity + sequence) * h->n_experts;
}

static float norm(const float *x, size_t n)
{
	float sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	return sqrtf(sum);
}

/* Sum of the layers' cosines; those without a use count as 0. */
static float likeness(const struct history_predictor *h, size_t sequence)
{
	float sum = 0;

	for (size_t m = 0; m < h->n_moe; m++) {
		if (h->length[m] > 0)
			sum += h->dot[sequence * h->n_moe + m] / h->length[m];
	}
	return sum;
}

/* Of equal ones the oldest. */
static size_t most_alike(const struct history_predictor *h)
{
	size_t best = NOBODY;
	float of_best = 0;

	for (size_t i = 0; i < h->n_stored; i++) {
		float l = likeness(h, i);

		if (best == NOBODY || l > of_best) {
			best = i;
			of_best = l;
		}
	}
	return best;
}

static void add_share(float *sum, const float *x, size_t n)
{
	float all = 0;

	for (size_t i = 0; i < n; i++)
		all += x[i];
	for (size_t i = 0; i < n && all > 0; i++)
		sum[i] += x[i] / all;
}

/* Layers [from, n_moe), for every row alike. */
static void say(struct history_predictor *h, uint32_t from)
{
	for (uint32_t m = from; m < h->n_moe; m++) {
		memset(h->score, 0, h->n_experts * sizeof(*h->score));
		add_share(h->score, h->count + m * h->n_experts, h->n_experts);
		if (h->match != NOBODY)
			add_share(h->score, stored_row(h, m, h->match), h->n_experts);
		for (size_t r = 0; r < h->base.step.n_rows; r++)
			od_predictor_say(&h->base, r, m, h->score);
	}
}

static void begin_sequence(struct od_predictor *p, uint64_t sequence)
{
	struct history_predictor *h = (struct history_predictor *)p;

	(void)sequence;
	memset(h->count, 0, h->n_moe * h->n_experts * sizeof(*h->count));
	memset(h->dot, 0, h->capacity * h->n_moe * sizeof(*h->dot));
	memset(h->length, 0, h->n_moe * sizeof(*h->length));
}

static void begin_step(struct od_predictor *p, const struct od_predict_step *s)
{
	struct history_predictor *h = (struct history_predictor *)p;

	h->base.step = *s;
	if (s->prompt)
		return;
	h->match = most_alike(h);
	say(h, 0);
}

static void count_use(struct history_predictor *h, uint32_t m, uint16_t expert)
{
	h->count[m * h->n_experts + expert]++;
	for (size_t i = 0; i < h->n_stored; i++)
		h->dot[i * h->n_moe + m] += stored_row(h, m, i)[expert];
}

static void routed(struct od_predictor *p, uint32_t m, const struct od_routed_row *rows, size_t n_rows)
{
	struct history_predictor *h = (struct history_predictor *)p;
	size_t match;

	for (size_t r = 0; r < n_rows; r++) {
		for (size_t i = 0; i < h->base.o.config->top_k; i++)
			count_use(h, m, rows[r].expert[i]);
	}
	h->length[m] = norm(h->count + m * h->n_experts, h->n_experts);
	if (h->base.step.prompt)
		return;
	match = most_alike(h);
	if (match == h->match)
		return;
	h->match = match;
	say(h, m + 1);
}

static void end_sequence(struct od_predictor *p, uint64_t sequence)
{
	struct history_predictor *h = (struct history_predictor *)p;
	float used = norm(h->length, h->n_moe);
	size_t at;

	(void)sequence;
	if (!(used > 0))
		return;
	at = h->n_stored < h->capacity ? h->n_stored++ : most_alike(h);
	for (size_t m = 0; m < h->n_moe; m++) {
		for (size_t e = 0; e < h->n_experts; e++)
			stored_row(h, m, at)[e] = h->length[m] > 0 ? h->count[m * h->n_experts + e] / h->length[m] : 0;
	}
}

static void free_history(struct od_predictor *p)
{
	struct history_predictor *h = (struct history_predictor *)p;

	od_free(h->stored);
	od_free(h->count);
	od_free(h->dot);
	od_free(h->length);
	od_free(h->score);
	free(h);
}

int od_history_new(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err)
{
	struct history_predictor *h = calloc(1, sizeof(*h));
	size_t cells = (size_t)opts->config->n_moe * opts->config->n_experts;

	*out = NULL;
	if (h == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	h->base.o = *opts;
	h->base.p = (struct od_predictor){ .begin_sequence = begin_sequence, .begin_step = begin_step, .routed = routed,
					   .end_sequence = end_sequence, .free = free_history };
	h->n_moe = opts->config->n_moe;
	h->n_experts = opts->config->n_experts;
	h->match = NOBODY;
	h->capacity = STORE_BYTES / (cells * sizeof(float));
	h->capacity = h->capacity < 1 ? 1 : h->capacity > STORE_SEQUENCES ? STORE_SEQUENCES : h->capacity;
	h->stored = od_alloc_array(h->capacity, cells * sizeof(float));
	h->count = od_alloc_array(cells, sizeof(float));
	h->dot = od_alloc_array(h->capacity, h->n_moe * sizeof(float));
	h->length = od_alloc_array(h->n_moe, sizeof(float));
	h->score = od_alloc_array(h->n_experts, sizeof(float));
	if (h->stored == NULL || h->count == NULL || h->dot == NULL || h->length == NULL || h->score == NULL) {
		free_history(&h->base.p);
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	}
	*out = &h->base.p;
	return OD_OK;
}
