/* One request from prompt to last token: prefill in chunks, then steps of a row, or of a row and a draft. */
#include "main-node/engine/engine_internal.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/strbuf.h"
#include "common/base/trace.h"
#include "common/text/stopper.h"

#include <stdlib.h>
#include <string.h>

struct generation {
	struct odm_engine *e;
	const struct odm_request *req;
	struct odm_result *r;
	struct od_sampler *sampler;
	struct od_detok *detok;
	struct od_stopper *stopper;
	struct od_strbuf shown; /* the text of the tokens, without what is held back */
	float *logits; /* [vocab] of a row; the forward pass's, until the next row's */
	uint64_t sequence, step, next_step;
	uint64_t start_ns, first_ns; /* of the request; of its first token, 0: none yet */
	uint64_t *counters; /* of the sequence: the result's */
	uint64_t waits;	    /* of the device, before the sequence */
	size_t room; /* tokens that r->tokens can take */
	int32_t *text; /* [n_prompt + room]: prompt and tokens */
	size_t n_text;
};

const char *odm_finish_name(enum odm_finish f)
{
	switch (f) {
	case ODM_FINISH_LENGTH: return "length";
	case ODM_FINISH_EOS: return "eos";
	case ODM_FINISH_STOP: return "stop";
	case ODM_FINISH_CONTEXT: return "context";
	case ODM_FINISH_CANCELLED: return "cancelled";
	case ODM_FINISH_ERROR: return "error";
	}
	return "unknown";
}

static int check_request(const struct odm_engine *e, const struct odm_request *req, struct od_err *err)
{
	if (req->n_prompt == 0)
		return od_fail(err, OD_ERR_ARG, "the prompt is empty and the model has no BOS token to begin with");
	if (req->n_prompt > e->opts.ctx_tokens)
		return od_fail(err, OD_ERR_RANGE,
			       "the prompt has %zu tokens, more than the context of %llu; shorten it or raise --ctx-size",
			       req->n_prompt, (unsigned long long)e->opts.ctx_tokens);
	for (size_t i = 0; i < req->n_prompt; i++) {
		if (req->prompt[i] < 0 || (uint32_t)req->prompt[i] >= e->config->vocab)
			return od_fail(err, OD_ERR_RANGE, "prompt token %zu: expected 0 to %u, found %d", i,
				       e->config->vocab - 1, req->prompt[i]);
	}
	if (req->n_stop > 0 && e->tokenizer == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "stop strings need a tokeniser; this pack has none");
	return od_sampler_check(&req->sampling, err);
}

static void observe_routes(struct generation *g, enum odm_phase phase, const struct od_row *rows, size_t n_rows)
{
	const struct odm_observer *o = &g->req->observer;
	const struct od_forward *f = g->e->forward;

	for (size_t i = 0; o->route != NULL && i < n_rows; i++)
		o->route(o->arg, phase, rows[i].position, od_forward_m(f), od_forward_experts_of(f, i),
			 od_forward_weights_of(f, i), od_forward_margin_of(f, i));
}

/* The next layer up to its experts; of what its router said, to the host what somebody there reads, by one wait. */
static int attention(struct generation *g, const struct odm_step *step, struct od_err *err)
{
	struct odm_engine *e = g->e;
	const uint64_t begin = od_trace_begin();
	unsigned what = g->req->observer.route != NULL ? OD_FETCH_ROUTES : 0;
	int rc = OD_OK;

	od_forward_attention(e->forward);
	if (od_forward_routed(e->forward)) {
		if (e->service->needs != NULL)
			what |= e->service->needs(e->service, od_forward_m(e->forward));
		rc = od_forward_fetch(e->forward, what, err);
	}
	od_trace_end("attention, router", begin, (int64_t)step->step,
		     od_forward_routed(e->forward) ? (int64_t)od_forward_m(e->forward) : -1, -1);
	return rc;
}

static int run_layers(struct generation *g, const struct odm_step *step, struct od_err *err)
{
	const struct odm_observer *o = &g->req->observer;
	struct odm_engine *e = g->e;
	int rc = od_forward_begin(e->forward, step->step, step->rows, step->n_rows, err);

	if (rc == OD_OK && o->step != NULL)
		o->step(o->arg, step);
	while (rc == OD_OK && !od_forward_done(e->forward)) {
		if (atomic_load(e->opts.cancel))
			return od_fail(err, OD_ERR_CANCELLED, "cancelled");
		rc = attention(g, step, err);
		if (rc != OD_OK || !od_forward_routed(e->forward))
			continue;
		observe_routes(g, step->phase, step->rows, step->n_rows);
		rc = od_forward_experts(e->forward, e->service->runner, err);
	}
	return rc;
}

/* Rows [begin, begin + n) of the sequence through all layers. Logits are there then, and od_forward_end is due. */
static int pass(struct generation *g, enum odm_phase phase, const int32_t *tokens, uint32_t begin, size_t n,
		struct od_err *err)
{
	struct odm_engine *e = g->e;
	struct odm_step step = { .step = g->next_step,
				 .next_step = ++e->last_step,
				 .phase = phase,
				 .sequence = g->sequence,
				 .prompt_tokens = (uint32_t)g->req->n_prompt,
				 .rows = e->rows,
				 .n_rows = n,
				 .sampling = g->req->sampling,
				 .counters = g->counters };
	int rc;

	g->step = step.step;
	g->next_step = step.next_step;
	for (size_t i = 0; i < n; i++)
		e->rows[i] = (struct od_row){ .seq = e->seq, .position = begin + (uint32_t)i, .token = tokens[i] };
	rc = e->service->begin_step != NULL ? e->service->begin_step(e->service, &step, err) : OD_OK;
	if (rc != OD_OK)
		return rc;
	rc = run_layers(g, &step, err);
	if (e->service->end_step != NULL)
		e->service->end_step(e->service);
	return rc;
}

/* g->logits are the row's. */
static int head(struct generation *g, enum odm_phase phase, uint32_t row, struct od_err *err)
{
	const struct odm_observer *o = &g->req->observer;
	const uint64_t begin_ns = od_trace_begin();
	int rc = od_forward_logits(g->e->forward, &row, 1, &g->logits, err);

	if (rc == OD_OK && o->logits != NULL)
		o->logits(o->arg, phase, g->e->rows[row].position, g->logits);
	od_trace_end("head", begin_ns, (int64_t)g->step, -1, -1);
	return rc;
}

static int prefill(struct generation *g, struct od_err *err)
{
	const struct odm_request *req = g->req;
	size_t chunk = g->e->opts.prefill_rows;
	int rc = OD_OK;

	for (size_t at = 0; rc == OD_OK && at < req->n_prompt; at += chunk) {
		size_t n = req->n_prompt - at < chunk ? req->n_prompt - at : chunk;

		rc = pass(g, ODM_PREFILL, req->prompt + at, (uint32_t)at, n, err);
		for (size_t i = 0; rc == OD_OK && i < n; i++) /* the prompt's last row is sampled from */
			if (req->observer.logits != NULL || at + i + 1 == req->n_prompt)
				rc = head(g, ODM_PREFILL, (uint32_t)i, err);
		if (rc == OD_OK)
			rc = od_forward_end(g->e->forward, NULL, err);
	}
	return rc;
}

static bool is_eos(const struct od_config *cfg, int32_t token)
{
	for (uint32_t i = 0; i < cfg->n_eos; i++) {
		if (cfg->eos[i] == token)
			return true;
	}
	return false;
}

/* Shows text that is certain now; false when the reader has had enough. */
static bool emit(struct generation *g, const char *text, size_t len)
{
	const struct odm_observer *o = &g->req->observer;

	od_strbuf_append(&g->shown, text, len);
	return len == 0 || o->text == NULL || o->text(o->arg, text, len);
}

/* A new piece of text through the stop strings. *stop: the generation ends, r->finish says why. */
static int add_text(struct generation *g, const char *piece, size_t len, bool *stop, struct od_err *err)
{
	bool stopped = false;
	int rc;

	if (g->stopper != NULL) {
		rc = od_stopper_push(g->stopper, piece, len, &piece, &len, &stopped);
		if (rc != OD_OK)
			return od_fail(err, rc, "no memory to look for stop strings");
	}
	if (!emit(g, piece, len)) {
		g->r->finish = ODM_FINISH_CANCELLED;
		*stop = true;
	} else if (stopped) {
		g->r->finish = ODM_FINISH_STOP;
		*stop = true;
	}
	return OD_OK;
}

static int take_token(struct generation *g, int32_t token, bool *stop, struct od_err *err)
{
	const char *piece;
	size_t len;
	int rc;

	g->r->tokens[g->r->n_tokens++] = token;
	if (is_eos(g->e->config, token) && !g->req->ignore_eos) {
		g->r->finish = ODM_FINISH_EOS;
		*stop = true;
		return OD_OK;
	}
	rc = od_sampler_accept(g->sampler, &token, 1);
	if (rc != OD_OK)
		return od_fail(err, rc, "no memory to remember token %zu", g->r->n_tokens);
	if (g->detok == NULL)
		return OD_OK;
	rc = od_detok_push(g->detok, token, &piece, &len, err);
	return rc != OD_OK ? rc : add_text(g, piece, len, stop, err);
}

/* What the detokeniser and the stop strings held back; nothing after a stop string or when the reader left. */
static int flush_text(struct generation *g, struct od_err *err)
{
	const char *piece;
	bool stop = false;
	size_t len;
	int rc;

	if (g->detok == NULL || g->r->finish == ODM_FINISH_STOP || g->r->finish == ODM_FINISH_CANCELLED)
		return OD_OK;
	rc = od_detok_flush(g->detok, &piece, &len, err);
	if (rc == OD_OK)
		rc = add_text(g, piece, len, &stop, err);
	if (rc != OD_OK || stop || g->stopper == NULL)
		return rc;
	rc = od_stopper_flush(g->stopper, &piece, &len);
	if (rc != OD_OK)
		return od_fail(err, rc, "no memory for the end of the text");
	emit(g, piece, len);
	return OD_OK;
}

/* The next token, and what the text's times are by it. */
static int sample(struct generation *g, bool *stop, struct od_err *err)
{
	int rc = take_token(g, od_sampler_sample(g->sampler, g->logits), stop, err);

	g->counters[OD_C_DECODE_NS] = g->first_ns > 0 ? od_now_ns() - g->first_ns : 0;
	if (g->first_ns == 0) {
		g->first_ns = od_now_ns();
		g->counters[OD_C_TTFT_NS] = g->first_ns - g->start_ns;
	}
	if (rc != OD_OK || *stop)
		return rc;
	g->text[g->n_text++] = g->r->tokens[g->r->n_tokens - 1];
	if (g->r->n_tokens == g->room) {
		g->r->finish = g->req->max_tokens == g->room ? ODM_FINISH_LENGTH : ODM_FINISH_CONTEXT;
		*stop = true;
	}
	return OD_OK;
}

/* The last token, and a draft of what follows, as far as that could be kept. */
static size_t next_rows(const struct generation *g, int32_t rows[ODM_MAX_DRAFT + 1])
{
	const struct odm_drafter *d = &g->req->drafter;
	const size_t left = g->room - g->r->n_tokens; /* tokens that may still come; a step of n rows gives at most n */
	size_t most = left - 1 < ODM_MAX_DRAFT ? left - 1 : ODM_MAX_DRAFT, n = 0;

	most = most < g->e->opts.prefill_rows - 1 ? most : g->e->opts.prefill_rows - 1;
	rows[0] = g->text[g->n_text - 1];
	if (d->draft != NULL && most > 0)
		n = d->draft(d->arg, g->text, g->n_text, rows + 1, most);
	n = n < most ? n : most;
	for (size_t i = 0; i < n; i++) /* one that is no token ends it */
		if ((uint32_t)rows[1 + i] >= g->e->config->vocab)
			n = i;
	return 1 + n;
}

/* Rows stand up to the first whose successor is another token than was drafted. */
static int decode_step(struct generation *g, bool *stop, struct od_err *err)
{
	struct odm_engine *e = g->e;
	const uint32_t position = od_seq_state_length(e->seq);
	int32_t row[ODM_MAX_DRAFT + 1];
	const size_t n = next_rows(g, row);
	uint32_t kept = 0;
	int rc = pass(g, ODM_DECODE, row, position, n, err);

	while (rc == OD_OK && !*stop && kept < n && (kept == 0 || row[kept] == g->r->tokens[g->r->n_tokens - 1])) {
		rc = head(g, ODM_DECODE, kept++, err);
		if (rc == OD_OK)
			rc = sample(g, stop, err);
	}
	if (rc == OD_OK)
		rc = od_forward_end(e->forward, &kept, err);
	if (rc == OD_OK && kept < n && e->service->truncate != NULL)
		e->service->truncate(e->service, g->sequence, position + kept);
	return rc;
}

static int decode(struct generation *g, struct od_err *err)
{
	bool stop = false;
	int rc = sample(g, &stop, err);

	while (rc == OD_OK && !stop)
		rc = decode_step(g, &stop, err);
	return rc;
}

static int open_generation(struct generation *g, struct od_err *err)
{
	struct odm_engine *e = g->e;
	const struct odm_request *req = g->req;
	/* The last token is sampled, not passed through the model, so one more fits than the context has left. */
	uint64_t room = e->opts.ctx_tokens - req->n_prompt + 1;
	int rc;

	g->room = req->max_tokens > 0 && req->max_tokens < room ? req->max_tokens : room;
	g->r->tokens = calloc(g->room, sizeof(*g->r->tokens));
	g->text = calloc(req->n_prompt + g->room, sizeof(*g->text));
	if (g->r->tokens == NULL || g->text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu tokens", g->room);
	memcpy(g->text, req->prompt, req->n_prompt * sizeof(*g->text));
	g->n_text = req->n_prompt;
	rc = od_sampler_new(&g->sampler, &req->sampling, e->config->vocab, err);
	if (rc == OD_OK && od_sampler_accept(g->sampler, req->prompt, req->n_prompt) != OD_OK)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for a prompt of %zu tokens", req->n_prompt);
	if (rc == OD_OK && e->tokenizer != NULL) {
		rc = od_detok_new(&g->detok, e->tokenizer, err);
		if (rc == OD_OK)
			rc = od_detok_prime(g->detok, req->prompt, req->n_prompt, err);
	}
	if (rc == OD_OK && req->n_stop > 0)
		rc = od_stopper_new(&g->stopper, req->stop, req->n_stop, err);
	g->sequence = ++e->last_sequence;
	g->next_step = ++e->last_step;
	od_seq_state_set_length(e->seq, 0);
	return rc;
}

static void close_generation(struct generation *g)
{
	struct odm_engine *e = g->e;
	struct odm_node_figures *node = odm_figures_add_node(&g->r->figures, "main", true);

	e->counters[OD_C_PEAK_RSS_BYTES] = od_peak_rss_bytes();
	if (node != NULL)
		memcpy(node->c, e->counters, sizeof(node->c));
	if (e->service->close_sequence != NULL)
		e->service->close_sequence(e->service, g->sequence);
	g->counters[OD_C_PROMPT_TOKENS] = g->req->n_prompt;
	g->counters[OD_C_TOKENS] = g->r->n_tokens;
	g->counters[OD_C_DEVICE_WAITS] = od_device_waits(e->device) - g->waits;
	if (e->service->figures != NULL)
		e->service->figures(e->service, &g->r->figures, g->req->recall);
	od_counters_add(e->counters, g->counters);
	if (e->tokenizer != NULL)
		g->r->text = od_strbuf_take(&g->shown, &g->r->text_len);
	od_strbuf_fini(&g->shown);
	free(g->text);
	od_sampler_free(g->sampler);
	od_detok_free(g->detok);
	od_stopper_free(g->stopper);
}

int odm_generate(struct odm_engine *e, const struct odm_request *req, struct odm_result *r, struct od_err *err)
{
	struct generation g = { .e = e, .req = req, .r = r, .start_ns = od_now_ns(), .counters = r->figures.c,
				.waits = od_device_waits(e->device) };
	int rc;

	*r = (struct odm_result){ .finish = ODM_FINISH_ERROR };
	rc = check_request(e, req, err);
	if (rc != OD_OK)
		return rc;
	rc = open_generation(&g, err);
	if (rc == OD_OK)
		rc = prefill(&g, err);
	g.counters[OD_C_PREFILL_NS] = od_now_ns() - g.start_ns;
	if (rc == OD_OK)
		rc = decode(&g, err);
	if (rc == OD_OK)
		rc = flush_text(&g, err);
	if (rc == OD_ERR_CANCELLED)
		r->finish = ODM_FINISH_CANCELLED;
	close_generation(&g);
	return rc;
}

void odm_result_fini(struct odm_result *r)
{
	free(r->tokens);
	free(r->text);
	odm_figures_fini(&r->figures);
	*r = (struct odm_result){ 0 };
}
