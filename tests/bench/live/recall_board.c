#include "tests/bench/live/recall_board.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct recall_held {
	uint16_t n; /* 0: no prediction */
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
	bool has_probability;
	int32_t token;
	uint32_t lead;
};

int recall_board_open(struct recall_board *b, struct od_err *err)
{
	b->step = b->layer = 0;
	b->begun = b->any_token = false;
	b->held = calloc((size_t)b->rec->n_steps * b->config->n_moe + 1, sizeof(*b->held));
	b->counts->tokens = b->rec->n_tokens;
	b->counts->steps = b->rec->n_steps;
	return b->held != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "predictions for %u steps", b->rec->n_steps);
}

void recall_board_close(struct recall_board *b)
{
	free(b->held);
	b->held = NULL;
}

static int32_t token_of(const struct recall_board *b, uint32_t step)
{
	return b->rec->token[b->rec->n_prompt + step];
}

static struct recall_row row_of(const struct recall_board *b, uint32_t step, uint32_t m, const uint16_t *predicted,
				size_t n)
{
	const size_t at = ((size_t)b->rec->n_prompt + step) * b->config->n_moe + m;
	const size_t k = b->config->top_k;

	return (struct recall_row){
		.layer = m,
		.token = step,
		.margin = b->rec->margin[at],
		.predicted = predicted,
		.n_predicted = n < k ? n : k,
		.used = b->rec->expert + at * k,
		.n_used = k,
	};
}

/* Routers still to speak before the one of (step, m) has spoken; 0: it has. */
static uint32_t lead_of(const struct recall_board *b, uint32_t step, uint32_t m)
{
	uint64_t next = (uint64_t)b->step * b->config->n_moe + b->layer;
	uint64_t own = (uint64_t)step * b->config->n_moe + m;

	return own < next ? 0 : (uint32_t)(own - next + 1);
}

static struct recall_held *held_of(const struct recall_board *b, uint32_t step, uint32_t m)
{
	return &b->held[(size_t)step * b->config->n_moe + m];
}

static void count_lead(struct recall_board *b, uint32_t step, uint32_t m, const struct recall_held *h)
{
	const struct recall_row row = row_of(b, step, m, h->expert, h->n);

	recall_counts_lead(b->counts, h->lead, &row);
}

void recall_board_add(struct recall_board *b, const struct od_prediction *p)
{
	const uint32_t step = p->position - b->rec->n_prompt;
	struct recall_held h = { .n = (uint16_t)p->n, .token = p->token, .has_probability = p->probability != NULL };
	bool early;

	if (p->position < b->rec->n_prompt || step >= b->rec->n_steps || p->m >= b->config->n_moe ||
	    p->n < b->config->top_k || p->n > OD_MAX_CANDIDATES)
		return; /* for a step that does not come: the text ends before */
	early = step > b->step || (step == b->step && !b->begun);
	if (b->tape != NULL && (early || b->any_token || p->token == token_of(b, step)))
		recall_tape_add(b->tape, step, p, token_of(b, step), early);
	if (p->m == 0 && early) {
		b->counts->guesses++;
		b->counts->wrong_guesses += p->token != token_of(b, step);
	}
	if (!early && !b->any_token && p->token != token_of(b, step))
		return;
	h.lead = lead_of(b, step, p->m);
	memcpy(h.expert, p->expert, p->n * sizeof(*h.expert));
	if (h.has_probability)
		memcpy(h.probability, p->probability, p->n * sizeof(*h.probability));
	if (!early)
		count_lead(b, step, p->m, &h);
	if (h.lead > 0)
		*held_of(b, step, p->m) = h;
}

void recall_board_begin_step(struct recall_board *b, bool any_token)
{
	b->begun = true;
	b->any_token = any_token;
	if (b->tape != NULL && any_token)
		recall_tape_any(b->tape, b->step, token_of(b, b->step));
	for (uint32_t m = 0; m < b->config->n_moe; m++) {
		struct recall_held *h = held_of(b, b->step, m);

		if (!any_token && h->token != token_of(b, b->step))
			h->n = 0;
		if (h->n > 0)
			count_lead(b, b->step, m, h);
	}
}

static void dump_experts(struct od_strbuf *d, const char *key, const uint16_t *expert, size_t n)
{
	od_strbuf_printf(d, ", \"%s\": [", key);
	for (size_t i = 0; i < n; i++)
		od_strbuf_printf(d, "%s%u", i > 0 ? ", " : "", expert[i]);
	od_strbuf_printf(d, "]");
}

/* JSON has no other numbers; weights that are none make such. */
static void dump_number(struct od_strbuf *d, float x)
{
	if (isfinite(x))
		od_strbuf_printf(d, "%.9g", (double)x);
	else
		od_strbuf_printf(d, "null");
}

static void dump_probabilities(struct od_strbuf *d, const char *key, const float *p, size_t n)
{
	od_strbuf_printf(d, ", \"%s\": [", key);
	for (size_t i = 0; i < n; i++) {
		if (i > 0)
			od_strbuf_printf(d, ", ");
		dump_number(d, p[i]);
	}
	od_strbuf_printf(d, "]");
}

/* A name as JSON text, quotes and all. */
static void dump_name(struct od_strbuf *d, const char *key, const char *name)
{
	json_t *j = json_string(name);
	char *text = j != NULL ? json_dumps(j, JSON_ENCODE_ANY) : NULL;

	od_strbuf_printf(d, "\"%s\": %s", key, text != NULL ? text : "null");
	free(text);
	json_decref(j);
}

static void dump(const struct recall_board *b, const struct recall_row *row, const struct recall_held *h)
{
	const struct recall_recording *rec = b->rec;
	const size_t at = ((size_t)rec->n_prompt + b->step) * b->config->n_moe + b->layer;
	const size_t n_experts = b->config->n_experts;
	struct od_strbuf *d = b->dump;

	od_strbuf_printf(d, "{");
	dump_name(d, "configuration", b->name);
	od_strbuf_printf(d, ", ");
	dump_name(d, "prompt", rec->prompt->name);
	od_strbuf_printf(d,
			 ", \"index\": %u, \"layer\": %u, \"position\": %u, \"token\": %d, \"margin\": ", b->step + 1,
			 b->layer, rec->n_prompt + b->step, token_of(b, b->step));
	dump_number(d, rec->margin[at]);
	dump_experts(d, "used", row->used, row->n_used);
	dump_probabilities(d, "probabilities", rec->probability + at * n_experts, n_experts);
	if (h->n > 0) {
		od_strbuf_printf(d, ", \"assumed_token\": %d, \"lead\": %u", h->token, h->lead);
		dump_experts(d, "predicted", h->expert, h->n);
		if (h->has_probability)
			dump_probabilities(d, "predicted_probabilities", h->probability, h->n);
	}
	od_strbuf_printf(d, "}\n");
}

void recall_board_routed(struct recall_board *b)
{
	const struct recall_held *h = held_of(b, b->step, b->layer);
	const struct recall_row row = row_of(b, b->step, b->layer, h->expert, h->n);

	recall_counts_row(b->counts, &row);
	if (b->dump != NULL)
		dump(b, &row, h);
	if (++b->layer < b->config->n_moe)
		return;
	b->layer = 0;
	b->step++;
	b->begun = false;
}
