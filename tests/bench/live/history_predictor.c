/* Predicts from the most similar earlier sequence: MoE-Infinity (arXiv 2401.14361, sequence-level tracing and
 * activation-aware prefetching). A sequence is a matrix of use counts of each expert of each layer, its prompt
 * included. The current matrix is compared with those of finished sequences by the mean over the layers of the cosine
 * between their rows. The best match's row of a layer is the prediction.
 *
 * Our change: the row is added to the sequence's own row so far, each as shares. The match alone ignores the sequence's
 * own history, and until a sequence has finished there is no match: on talebook the match recalls 38.3 %, the
 * sequence's own counts 38.3 %, both 39.8 %. When the store is full, a new sequence replaces the one most similar to
 * it, so that the store stays varied.
 *
 * All layers are predicted before layer 0, and the remaining ones again when a layer's routes have changed the match.
 * Cost: cosines are kept up to date, so a use costs a step through the store's column of that expert, and a search one
 * pass over [store][n_moe] floats. */
#include "tests/bench/live/history_predictor.h"

#include "common/base/id_table.h"
#include "common/base/mem.h"
#include "common/predict/predictor_base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STORE_SEQUENCES 128
#define STORE_BYTES ((size_t)16 << 20) /* a model with many experts gets fewer sequences */
#define NOBODY SIZE_MAX

/* A sequence that goes on. */
struct one {
	float *count; /* [n_moe][n_experts] */
	float *dot; /* [capacity][n_moe]: its rows with the stored ones */
	float *length; /* [n_moe]: of its rows; 0 without a use */
	size_t match;
};

struct history_predictor {
	struct od_predictor_base base;
	size_t n_moe, n_experts, capacity, n_stored;
	float *stored; /* [n_moe][capacity][n_experts]: rows of length 1, or 0 without a use */
	struct od_id_table ids;
	struct one *one; /* [max_sequences], by number of the sequence */
	float *score; /* [n_experts] */
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
static float likeness(const struct history_predictor *h, const struct one *q, size_t sequence)
{
	float sum = 0;

	for (size_t m = 0; m < h->n_moe; m++) {
		if (q->length[m] > 0)
			sum += q->dot[sequence * h->n_moe + m] / q->length[m];
	}
	return sum;
}

/* Among equal ones the oldest counts. */
static size_t most_alike(const struct history_predictor *h, const struct one *q)
{
	size_t best = NOBODY;
	float of_best = 0;

	for (size_t i = 0; i < h->n_stored; i++) {
		float l = likeness(h, q, i);

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
	if (all > 0)
		for (size_t i = 0; i < n; i++)
			sum[i] += x[i] / all;
}

/* Layers [from, n_moe), for every row of the sequence alike. */
static void say(struct history_predictor *h, const struct one *q, const struct od_predict_row *row, size_t n,
		uint32_t from)
{
	for (uint32_t m = from; m < h->n_moe; m++) {
		memset(h->score, 0, h->n_experts * sizeof(*h->score));
		add_share(h->score, q->count + m * h->n_experts, h->n_experts);
		if (q->match != NOBODY)
			add_share(h->score, stored_row(h, m, q->match), h->n_experts);
		for (size_t r = 0; r < n; r++)
			if (!row[r].quiet)
				od_predictor_say(&h->base, &row[r], m, h->score);
	}
}

static void begin_sequence(struct od_predictor *p, uint64_t sequence)
{
	struct history_predictor *h = (struct history_predictor *)p;
	const uint32_t number = od_id_table_add(&h->ids, sequence);
	struct one *q;

	if (number == OD_NO_NUMBER)
		return; /* more than there may be: it is not followed */
	q = &h->one[number];
	memset(q->count, 0, h->n_moe * h->n_experts * sizeof(*q->count));
	memset(q->dot, 0, h->capacity * h->n_moe * sizeof(*q->dot));
	memset(q->length, 0, h->n_moe * sizeof(*q->length));
	q->match = NOBODY;
}

/* The sequence of a step's row; NULL: it is not followed. *n: how many rows it has from there on. */
static struct one *find(const struct history_predictor *h, const struct od_predict_step *s, size_t row, size_t *n)
{
	const uint32_t number = od_id_table_find(&h->ids, s->row[row].sequence);

	for (*n = 1; row + *n < s->n_rows && s->row[row + *n].sequence == s->row[row].sequence;)
		++*n;
	return number != OD_NO_NUMBER ? &h->one[number] : NULL;
}

static void begin_step(struct od_predictor *p, const struct od_predict_step *s)
{
	struct history_predictor *h = (struct history_predictor *)p;

	for (size_t r = 0, n; !s->prompt && r < s->n_rows; r += n) {
		struct one *q = find(h, s, r, &n);

		if (q == NULL)
			continue;
		q->match = most_alike(h, q);
		say(h, q, &s->row[r], n, 0);
	}
}

static void count_use(struct history_predictor *h, struct one *q, uint32_t m, uint16_t expert)
{
	q->count[m * h->n_experts + expert]++;
	for (size_t i = 0; i < h->n_stored; i++)
		q->dot[i * h->n_moe + m] += stored_row(h, m, i)[expert];
}

static void routed(struct od_predictor *p, const struct od_predict_step *s, uint32_t m,
		   const struct od_routed_row *rows)
{
	struct history_predictor *h = (struct history_predictor *)p;

	for (size_t r = 0, n; r < s->n_rows; r += n) {
		struct one *q = find(h, s, r, &n);
		size_t match;

		if (q == NULL)
			continue;
		for (size_t i = r; i < r + n; i++)
			for (size_t k = 0; k < h->base.o.config->top_k; k++)
				count_use(h, q, m, rows[i].expert[k]);
		q->length[m] = norm(q->count + m * h->n_experts, h->n_experts);
		if (s->prompt)
			continue;
		match = most_alike(h, q);
		if (match == q->match)
			continue;
		q->match = match;
		say(h, q, &s->row[r], n, m + 1);
	}
}

/* A sequence takes the place of the stored one that it is most like. */
static void keep(struct history_predictor *h, const struct one *q)
{
	const bool full = h->n_stored == h->capacity;
	const size_t at = full ? most_alike(h, q) : h->n_stored++;

	for (size_t m = 0; m < h->n_moe; m++) {
		float *row = stored_row(h, m, at);

		for (size_t e = 0; e < h->n_experts; e++)
			row[e] = q->length[m] > 0 ? q->count[m * h->n_experts + e] / q->length[m] : 0;
		/* Sequences that go on have their cosines with the stored ones as they are now. */
		for (uint32_t i = 0; i < h->ids.most; i++) {
			struct one *other = &h->one[i];

			other->dot[at * h->n_moe + m] = 0;
			for (size_t e = 0; e < h->n_experts; e++)
				other->dot[at * h->n_moe + m] += other->count[m * h->n_experts + e] * row[e];
		}
	}
}

static void end_sequence(struct od_predictor *p, uint64_t sequence)
{
	struct history_predictor *h = (struct history_predictor *)p;
	const uint32_t number = od_id_table_find(&h->ids, sequence);

	if (number == OD_NO_NUMBER)
		return;
	od_id_table_remove(&h->ids, sequence);
	if (norm(h->one[number].length, h->n_moe) > 0)
		keep(h, &h->one[number]);
}

static void free_history(struct od_predictor *p)
{
	struct history_predictor *h = (struct history_predictor *)p;

	od_free(h->stored);
	if (h->one != NULL)
		for (uint32_t i = 0; i < h->base.o.max_sequences; i++) {
			od_free(h->one[i].count);
			od_free(h->one[i].dot);
			od_free(h->one[i].length);
		}
	free(h->one);
	od_id_table_fini(&h->ids);
	od_free(h->score);
	free(h);
}

static bool allocate(struct history_predictor *h, size_t cells)
{
	const size_t n = h->base.o.max_sequences;
	bool ok;

	h->stored = od_alloc_array(h->capacity, cells * sizeof(float));
	h->score = od_alloc_array(h->n_experts, sizeof(float));
	h->one = calloc(n, sizeof(*h->one));
	ok = h->stored != NULL && h->score != NULL && h->one != NULL;
	for (size_t i = 0; ok && i < n; i++) {
		struct one *q = &h->one[i];

		q->count = od_alloc_array(cells, sizeof(float));
		q->dot = od_alloc_array(h->capacity, h->n_moe * sizeof(float));
		q->length = od_alloc_array(h->n_moe, sizeof(float));
		ok = q->count != NULL && q->dot != NULL && q->length != NULL;
	}
	return ok;
}

int od_history_new(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err)
{
	struct history_predictor *h = calloc(1, sizeof(*h));
	size_t cells = (size_t)opts->config->n_moe * opts->config->n_experts;

	*out = NULL;
	if (h == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	h->base.o = *opts;
	h->base.p = (struct od_predictor){ .begin_sequence = begin_sequence,
					   .begin_step = begin_step,
					   .routed = routed,
					   .end_sequence = end_sequence,
					   .free = free_history };
	h->n_moe = opts->config->n_moe;
	h->n_experts = opts->config->n_experts;
	h->capacity = STORE_BYTES / (cells * sizeof(float));
	h->capacity = h->capacity < 1 ? 1 : h->capacity > STORE_SEQUENCES ? STORE_SEQUENCES : h->capacity;
	if (od_id_table_init(&h->ids, (uint32_t)opts->max_sequences, err) != OD_OK || !allocate(h, cells)) {
		free_history(&h->base.p);
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	}
	*out = &h->base.p;
	return OD_OK;
}
