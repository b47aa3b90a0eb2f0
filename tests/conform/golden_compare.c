#include "tests/conform/golden_compare.h"

#include "common/base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POSITION_BYTES 96
#define ROUTE_BYTES (OD_MAX_TOP_K * 6)

const char *const golden_result_names[] = { "conforms", "tie", "FAILS" };

/* Rows that never came must not pass. n is 0 only where there is nothing to choose. */
static struct golden_worst *unseen(size_t n)
{
	struct golden_worst *worst = calloc(n + 1, sizeof(*worst));

	for (size_t i = 0; worst != NULL && i < n; i++)
		worst[i] = (struct golden_worst){ .error = INFINITY, .expected = NAN, .found = NAN };
	return worst;
}

int golden_run_init(struct golden_run *run, const struct golden *g, const struct golden_entry *e, struct od_err *err)
{
	size_t n = e->n_positions * g->n_moe * g->top_k; /* golden_load has as many in memory */
	bool ok;

	*run = (struct golden_run){ .g = g, .e = e, .finish = "nothing" };
	run->expert = od_alloc_array(n + 1, sizeof(*run->expert)); /* a model may have no experts */
	run->weight = od_alloc_array(n + 1, sizeof(*run->weight));
	ok = run->expert != NULL && run->weight != NULL;
	if (ok && e->logits_path != NULL)
		ok = (run->worst = unseen(e->n_prompt)) != NULL;
	if (ok && e->decode_logits_path != NULL)
		ok = (run->decode_worst = unseen(e->n_greedy)) != NULL;
	if (!ok) {
		golden_run_fini(run);
		return od_fail(err, OD_ERR_NOMEM, "no memory for the routes of %zu positions", e->n_positions);
	}
	memset(run->expert, 0xff, n * sizeof(*run->expert));
	return OD_OK;
}

void golden_run_fini(struct golden_run *run)
{
	od_free(run->expert);
	od_free(run->weight);
	free(run->worst);
	free(run->decode_worst);
	*run = (struct golden_run){ 0 };
}

static size_t at(const struct golden_run *run, size_t position, uint32_t m)
{
	return (position * run->g->n_moe + m) * run->g->top_k;
}

void golden_run_route(struct golden_run *run, size_t position, uint32_t m, const uint16_t *expert, const float *weight)
{
	if (position >= run->e->n_positions || m >= run->g->n_moe)
		return;
	memcpy(run->expert + at(run, position, m), expert, run->g->top_k * sizeof(*expert));
	memcpy(run->weight + at(run, position, m), weight, run->g->top_k * sizeof(*weight));
}

void golden_run_logits(const struct golden_run *run, struct golden_worst *worst, const float *expected,
		       const float *found)
{
	struct golden_worst w = { .error = -1 };

	for (uint32_t i = 0; i < run->g->vocab; i++) {
		double error = expected[i] == found[i] ? 0 : fabs((double)expected[i] - (double)found[i]);

		if (isnan(error))
			error = INFINITY;
		if (error > w.error)
			w = (struct golden_worst){ error, w.largest, i, expected[i], found[i] };
		if (isfinite(expected[i]))
			w.largest = fmax(w.largest, fabs((double)expected[i]));
	}
	*worst = w;
}

void golden_verdict_init(struct golden_verdict *v)
{
	*v = (struct golden_verdict){ .result = GOLDEN_CONFORMS, .max_logit_error = NAN, .max_weight_error = NAN };
}

void golden_fails(struct golden_verdict *v, const char *fmt, ...)
{
	va_list ap;

	v->result = GOLDEN_FAILS;
	va_start(ap, fmt);
	vsnprintf(v->difference, sizeof(v->difference), fmt, ap);
	va_end(ap);
}

static const char *position_name(const struct golden_run *run, size_t position, uint32_t m, char *buf)
{
	size_t n_prompt = run->e->n_prompt;
	uint32_t layer = run->g->layer[m];

	if (position < n_prompt)
		snprintf(buf, POSITION_BYTES, "prefill position %zu, layer %u", position, layer);
	else
		snprintf(buf, POSITION_BYTES, "decode step %zu (position %zu), layer %u", position - n_prompt, position,
			 layer);
	return buf;
}

static const char *route_name(const uint16_t *expert, uint32_t top_k, char *buf)
{
	size_t n = 0;

	for (uint32_t r = 0; r < top_k && n < ROUTE_BYTES; r++)
		n += (size_t)snprintf(buf + n, ROUTE_BYTES - n, "%s%u", r > 0 ? "," : "", expert[r]);
	return buf;
}

static bool same_set(const uint16_t *a, const uint16_t *b, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = 0;

		while (k < n && b[k] != a[i])
			k++;
		if (k == n)
			return false;
	}
	return true;
}

/* Equal experts in another order: the greatest gap between our weights of two that changed places. */
static double rank_gap(const uint16_t *expected, const uint16_t *found, const float *weight, uint32_t n)
{
	uint32_t where[OD_MAX_TOP_K] = { 0 }; /* positions of the reference's experts in our order */
	double gap = 0;

	for (uint32_t i = 0; i < n; i++) {
		while (found[where[i]] != expected[i])
			where[i]++;
	}
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = i + 1; k < n; k++) {
			if (where[k] < where[i])
				gap = fmax(gap, (double)weight[where[k]] - (double)weight[where[i]]);
		}
	}
	return gap;
}

static void note_rank_tie(const struct golden_run *run, size_t position, uint32_t m, double gap,
			  struct golden_verdict *v)
{
	const uint16_t *expected = golden_route(run->g, run->e, position, m);
	char where[POSITION_BYTES], want[ROUTE_BYTES], have[ROUTE_BYTES];

	if (v->n_rank_ties++ > 0)
		return;
	snprintf(v->rank_tie, sizeof(v->rank_tie),
		 "%s: expected experts %s, found %s: the same in another order; our weights of those that changed "
		 "places differ by %.3g, less than %g",
		 position_name(run, position, m, where), route_name(expected, run->g->top_k, want),
		 route_name(run->expert + at(run, position, m), run->g->top_k, have), gap, GOLDEN_RANK_TIE);
}

/* False when the comparison ends here. */
static bool compare_route(const struct golden_run *run, size_t position, uint32_t m, struct golden_verdict *v)
{
	const uint32_t k = run->g->top_k;
	const uint16_t *expected = golden_route(run->g, run->e, position, m);
	const uint16_t *found = run->expert + at(run, position, m);
	double margin = golden_route_margin(run->g, run->e, position, m), gap;
	char where[POSITION_BYTES], want[ROUTE_BYTES], have[ROUTE_BYTES];

	if (memcmp(expected, found, k * sizeof(*expected)) == 0)
		return true;
	position_name(run, position, m, where);
	route_name(expected, k, want);
	route_name(found, k, have);
	if (!same_set(expected, found, k)) {
		golden_fails(v, "%s: expected experts %s, found %s; the reference's margin is %.6g, a tie is below %g",
			     where, want, have, margin, GOLDEN_ROUTE_TIE);
		if (margin < GOLDEN_ROUTE_TIE)
			v->result = GOLDEN_TIE;
		return false;
	}
	gap = rank_gap(expected, found, run->weight + at(run, position, m), k);
	if (gap < GOLDEN_RANK_TIE) {
		note_rank_tie(run, position, m, gap, v);
		return true;
	}
	golden_fails(v,
		     "%s: expected experts %s, found %s: the same in another order, but our weights of those that "
		     "changed places differ by %.3g, a tie is below %g",
		     where, want, have, gap, GOLDEN_RANK_TIE);
	return false;
}

/* Both sides have equal experts, in whatever order. */
static bool compare_weights(const struct golden_run *run, size_t position, uint32_t m, double tolerance,
			    struct golden_verdict *v)
{
	const uint16_t *expected = golden_route(run->g, run->e, position, m);
	const uint16_t *found = run->expert + at(run, position, m);
	const float *want = golden_route_weight(run->g, run->e, position, m);
	const float *have = run->weight + at(run, position, m);
	double largest = 0, worst = -1;
	uint32_t r_worst = 0, i_worst = 0;
	char where[POSITION_BYTES];

	for (uint32_t r = 0; r < run->g->top_k; r++)
		largest = fmax(largest, fabs((double)want[r]));
	for (uint32_t r = 0; r < run->g->top_k; r++) {
		uint32_t i = 0;
		double error;

		while (found[i] != expected[r])
			i++;
		error = want[r] == have[i] ? 0 : fabs((double)want[r] - (double)have[i]) / largest;
		if (isnan(error))
			error = INFINITY;
		if (error > worst) {
			worst = error;
			r_worst = r;
			i_worst = i;
		}
	}
	v->max_weight_error = fmax(v->max_weight_error, worst); /* NaN gives way */
	if (worst <= tolerance)
		return true;
	golden_fails(v,
		     "%s: router weight of expert %u: expected %.7g, found %.7g, a difference of %.3g of the row's "
		     "largest; the tolerance is %g",
		     position_name(run, position, m, where), expected[r_worst], (double)want[r_worst],
		     (double)have[i_worst], worst, tolerance);
	return false;
}

/* The largest difference that is accepted in a row. */
static double logit_limit(const struct golden_entry *e, const struct golden_tolerance *t, double largest)
{
	double limit = t->absolute >= 0 ? t->absolute : INFINITY;

	if (t->relative >= 0)
		limit = fmin(limit, t->relative * largest);
	if (t->absolute >= 0 || t->relative >= 0)
		return limit;
	return e->logit_tolerance > 0 ? e->logit_tolerance * largest : GOLDEN_LOGIT_ERROR;
}

static bool compare_logits(const struct golden_run *run, const struct golden_worst *w, const char *row, size_t number,
			   const struct golden_tolerance *t, struct golden_verdict *v)
{
	double limit = logit_limit(run->e, t, w->largest);

	v->max_logit_error = fmax(v->max_logit_error, w->error); /* NaN gives way */
	if (w->error <= limit && isfinite(w->error))
		return true;
	golden_fails(v,
		     "logits of %s %zu: vocabulary index %u: expected %.9g, found %.9g, a difference of %.3g; the "
		     "tolerance is %.3g",
		     row, number, w->id, (double)w->expected, (double)w->found, w->error, limit);
	return false;
}

static bool compare_token(const struct golden_run *run, size_t i, struct golden_verdict *v)
{
	const struct golden_entry *e = run->e;

	if (i >= run->n_tokens) {
		golden_fails(v, "token %zu: expected id %d, found the end of the text after %zu tokens (%s)", i,
			     e->greedy[i], run->n_tokens, run->finish);
		return false;
	}
	if (run->tokens[i] == e->greedy[i]) {
		v->n_tokens++;
		return true;
	}
	golden_fails(v, "token %zu: expected id %d, found %d; the reference's margin is %.6g, a tie is below %g", i,
		     e->greedy[i], run->tokens[i], e->token_margin[i], GOLDEN_TOKEN_TIE);
	if (e->token_margin[i] < GOLDEN_TOKEN_TIE)
		v->result = GOLDEN_TIE;
	return false;
}

/* False when the comparison ends here. */
static bool compare_layers(const struct golden_run *run, size_t position, const struct golden_tolerance *t,
			   struct golden_verdict *v)
{
	double tolerance = t->relative >= 0 ? t->relative : GOLDEN_WEIGHT_ERROR;

	for (uint32_t m = 0; m < run->g->n_moe; m++) {
		if (!compare_route(run, position, m, v))
			return false;
		if (run->e->route_weight != NULL && !compare_weights(run, position, m, tolerance, v))
			return false;
	}
	return true;
}

void golden_compare(const struct golden_run *run, const struct golden_tolerance *t, struct golden_verdict *v)
{
	const struct golden_entry *e = run->e;

	for (size_t p = 0; p < e->n_positions; p++) {
		bool prompt = p < e->n_prompt, chooses = p + 1 >= e->n_prompt;
		size_t next = p + 1 - e->n_prompt; /* the token chosen after it, from the prompt's last position on */

		/* A text that ended has no further positions: that is the difference, not their missing routes. */
		if (!prompt && next >= run->n_tokens) {
			compare_token(run, next, v);
			return;
		}
		if (!compare_layers(run, p, t, v))
			return;
		if (prompt && run->worst != NULL && !compare_logits(run, &run->worst[p], "prompt position", p, t, v))
			return;
		if (!chooses || next >= e->n_greedy)
			continue;
		if (run->decode_worst != NULL && !compare_logits(run, &run->decode_worst[next], "token", next, t, v))
			return;
		if (!compare_token(run, next, v))
			return;
	}
	if (e->ends_at_eos && !run->stopped_at_eos)
		golden_fails(v, "token %zu: the reference ended its text with id %d, ours goes on (%s)",
			     e->n_greedy - 1, e->greedy[e->n_greedy - 1], run->finish);
}
