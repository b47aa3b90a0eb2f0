#include "main-node/engine/sequence.h"

#include "common/base/clock.h"
#include "common/text/tok_decode.h"
#include "main-node/engine/forced_draft.h"
#include "main-node/engine/lookup_draft.h"
#include "main-node/engine/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENDS 512 /* end tokens of the model and of a request, together */

/* ---- Life ---- */

int odm_sequence_check(const struct odm_model *m, const struct odm_request *req, struct od_err *err)
{
	if (req->n_prompt == 0)
		return od_fail(err, OD_ERR_ARG, "the prompt is empty, and the tokenizer puts no BOS in front of it");
	if (req->n_prompt > m->opts.ctx_tokens)
		return od_fail(
			err, OD_ERR_RANGE,
			"the prompt has %zu tokens, more than the context of %llu; shorten it or raise --ctx-size",
			req->n_prompt, (unsigned long long)m->opts.ctx_tokens);
	for (size_t i = 0; i < req->n_prompt; i++) {
		if (req->prompt[i] < 0 || (uint32_t)req->prompt[i] >= m->config->vocab)
			return od_fail(err, OD_ERR_RANGE, "prompt token %zu: expected 0 to %u, found %d", i,
				       m->config->vocab - 1, req->prompt[i]);
	}
	if (req->n_stop > 0 && m->tokenizer == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "stop strings need a tokenizer, and this pack has none");
	if (req->logprobs < -1 || req->logprobs > ODM_MAX_LOGPROBS)
		return od_fail(err, OD_ERR_RANGE, "logprobs: expected -1 to %d, found %d", ODM_MAX_LOGPROBS,
			       req->logprobs);
	if (m->config->n_eos + req->n_ends > MAX_ENDS)
		return od_fail(err, OD_ERR_RANGE, "expected at most %u end tokens", MAX_ENDS - m->config->n_eos);
	if (req->constraint != NULL && od_constraint_vocab(req->constraint)->n_tokens != m->config->vocab)
		return od_fail(err, OD_ERR_MISMATCH, "the constraint is for another vocabulary");
	if (req->prompt_logprobs && req->logprobs < 0)
		return od_fail(err, OD_ERR_ARG, "prompt_logprobs needs logprobs of 0 or more");
	if (req->max_tokens > 0 && req->min_tokens > req->max_tokens)
		return od_fail(err, OD_ERR_RANGE, "min_tokens: expected at most max_tokens, %llu, found %llu",
			       (unsigned long long)req->max_tokens, (unsigned long long)req->min_tokens);
	for (size_t i = 0; i < req->n_stop_tokens; i++)
		if (req->stop_token[i] < 0 || (uint32_t)req->stop_token[i] >= m->config->vocab)
			return od_fail(err, OD_ERR_RANGE, "stop_token_ids: expected 0 to %u, found %d",
				       m->config->vocab - 1, req->stop_token[i]);
	if (req->prompt_logprobs_from >= req->n_prompt)
		return od_fail(err, OD_ERR_RANGE,
			       "prompt_logprobs_from: expected less than the prompt's %zu tokens, found %zu",
			       req->n_prompt, req->prompt_logprobs_from);
	return od_sampler_check(&req->sampling, err);
}

size_t odm_sequence_room(const struct odm_model *m, const struct odm_request *req)
{
	/* The last token is sampled, not passed through the model, so one more fits than the context has left. */
	const size_t room = m->opts.ctx_tokens - req->n_prompt + 1;

	const uint64_t rest = m->fair_tokens > req->n_prompt ? m->fair_tokens - req->n_prompt + 1 : 0;
	const uint64_t least = od_config_least_ctx(m->config);
	const uint64_t most = req->max_tokens > 0 ? req->max_tokens : rest > least ? rest : least;

	return most < room ? most : room;
}

/* Names the tokens that must not come too early to the sampler, and to the shadow's. */
static int take_late(struct odm_sequence *q, struct od_err *err)
{
	const struct odm_request *req = &q->req;
	const uint32_t n_eos = q->config->n_eos;

	if (req->min_tokens == 0)
		return OD_OK;
	q->late = calloc(n_eos + req->n_ends + req->n_stop_tokens + 1, sizeof(*q->late));
	if (q->late == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for tokens that end a text");
	memcpy(q->late, q->config->eos, n_eos * sizeof(*q->late));
	if (req->n_ends > 0)
		memcpy(q->late + n_eos, req->end, req->n_ends * sizeof(*q->late));
	if (req->n_stop_tokens > 0)
		memcpy(q->late + n_eos + req->n_ends, req->stop_token, req->n_stop_tokens * sizeof(*q->late));
	q->req.sampling.late = q->late;
	q->req.sampling.n_late = n_eos + req->n_ends + req->n_stop_tokens;
	q->req.sampling.min_draws = req->min_tokens;
	return OD_OK;
}

/* Tokens that the model's generation_config.json suppresses are never drawn, whatever bias a request gives them. */
static int open_sampler(struct odm_sequence *q, struct od_err *err)
{
	const struct odm_model *m = q->model;
	struct od_sampler_opts o = q->req.sampling;
	struct od_logit_bias *all;
	size_t n = m->n_suppressed;
	int rc;

	if (n == 0)
		return od_sampler_new(&q->sampler, &o, q->config->vocab, err);
	all = calloc(n + o.n_logit_bias, sizeof(*all));
	if (all == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu suppressed tokens", n);
	memcpy(all, m->suppressed, n * sizeof(*all));
	for (size_t i = 0; i < o.n_logit_bias; i++) {
		size_t k = 0;

		while (k < m->n_suppressed && all[k].token != o.logit_bias[i].token)
			k++;
		if (k == m->n_suppressed)
			all[n++] = o.logit_bias[i];
	}
	o.logit_bias = all;
	o.n_logit_bias = n;
	rc = od_sampler_new(&q->sampler, &o, q->config->vocab, err);
	free(all);
	return rc;
}

static bool is_end(const struct odm_sequence *q, int32_t token)
{
	for (size_t i = 0; i < q->n_ends; i++)
		if (q->end[i] == token)
			return true;
	return false;
}

static void add_ends(struct odm_sequence *q, const int32_t *end, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((uint32_t)end[i] < q->config->vocab && !is_end(q, end[i]))
			q->end[q->n_ends++] = end[i];
}

static int open_text(struct odm_sequence *q, struct od_err *err)
{
	const struct odm_request *req = &q->req;
	const struct od_tokenizer *t = q->model->tokenizer;
	int rc;

	q->r.tokens = calloc(q->room, sizeof(*q->r.tokens));
	q->text = calloc(req->n_prompt + q->room, sizeof(*q->text));
	q->end = calloc(q->config->n_eos + req->n_ends + 1, sizeof(*q->end));
	if (q->r.tokens == NULL || q->text == NULL || q->end == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu tokens", q->room);
	add_ends(q, q->config->eos, q->config->n_eos);
	add_ends(q, req->end, req->n_ends);
	memcpy(q->text, req->prompt, req->n_prompt * sizeof(*q->text));
	q->n_text = q->n_prefill = req->n_prompt;
	if (req->observer.token != NULL && req->logprobs >= 0) {
		q->raw = calloc(q->config->vocab, sizeof(*q->raw));
		if (q->raw == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for log probabilities of %u tokens",
				       q->config->vocab);
	}
	rc = take_late(q, err);
	if (rc == OD_OK)
		rc = open_sampler(q, err);
	if (rc == OD_OK && od_sampler_prompt(q->sampler, req->prompt, req->n_prompt) != OD_OK)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for a prompt of %zu tokens", req->n_prompt);
	if (rc == OD_OK && t != NULL) {
		rc = od_detok_new(&q->detok, t, err);
		if (rc == OD_OK)
			rc = od_detok_prime(q->detok, req->prompt, req->n_prompt, err);
		if (rc == OD_OK)
			od_detok_show(q->detok, req->shown, req->n_shown);
	}
	if (rc == OD_OK && req->n_stop > 0)
		rc = od_stopper_new(&q->stopper, req->stop, req->n_stop, err);
	return rc;
}

int odm_sequence_new(struct odm_sequence **out, const struct odm_model *m, struct odm_expert_service *service,
		     const struct odm_request *req, struct od_err *err)
{
	struct odm_sequence *q;
	int rc = odm_sequence_check(m, req, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	q = calloc(1, sizeof(*q));
	if (q == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a text");
	q->model = m;
	q->service = service;
	q->config = m->config;
	q->req = *req;
	if (req->constraint != NULL)
		q->allowed = od_constraint_start(req->constraint);
	q->r.finish = ODM_FINISH_ERROR;
	q->submitted_ns = od_now_ns();
	q->room = odm_sequence_room(m, req);
	rc = open_text(q, err);
	if (rc == OD_OK && m->opts.draft == ODM_DRAFT_LOOKUP)
		rc = odm_lookup_new(&q->lookup, req->n_prompt + q->room, err);
	if (rc != OD_OK) {
		odm_sequence_free(q);
		return rc;
	}
	*out = q;
	return OD_OK;
}

void odm_sequence_free(struct odm_sequence *q)
{
	if (q == NULL)
		return;
	odm_prefix_read_close(q->restore);
	od_seq_state_free(q->state);
	od_sampler_free(q->sampler);
	od_detok_free(q->detok);
	od_stopper_free(q->stopper);
	odm_lookup_free(q->lookup);
	od_strbuf_fini(&q->shown);
	free(q->end);
	free(q->raw);
	free(q->late);
	free(q->text);
	odm_result_fini(&q->r);
	free(q);
}

bool odm_sequence_is_long(const struct odm_sequence *q)
{
	return q->n_prefill > od_config_short_ctx(q->config);
}

bool odm_sequence_outgrown(const struct odm_sequence *q)
{
	return q->phase == ODM_IN_DECODE && !od_seq_state_is_long(q->state) &&
	       q->n_text > od_config_short_ctx(q->config);
}

void odm_sequence_restart(struct odm_sequence *q)
{
	q->id = 0;
	q->n_prefill = q->n_text;
	q->phase = ODM_WAITING;
}

bool odm_sequence_was_seen(const struct odm_sequence *q, uint32_t position)
{
	return q->r.n_tokens > 0 && position + 1 < q->n_text;
}

uint32_t odm_sequence_positions(const struct odm_sequence *q)
{
	/* The last token is chosen, but no step computes its row. */
	return (uint32_t)(q->req.n_prompt + q->room - 1);
}

/* ---- Tokens and text ---- */

static bool is_stop(const struct odm_sequence *q, int32_t token)
{
	for (size_t i = 0; i < q->req.n_stop_tokens; i++)
		if (q->req.stop_token[i] == token)
			return true;
	return false;
}

/* Shows text that is certain now; false when the reader has had enough. */
static bool emit(struct odm_sequence *q, const char *text, size_t len)
{
	const struct odm_observer *o = &q->req.observer;

	od_strbuf_append(&q->shown, text, len);
	return len == 0 || o->text == NULL || o->text(o->arg, text, len);
}

/* A new piece of text through the stop strings. *stop: the generation ends, r.finish says why. */
static int add_text(struct odm_sequence *q, const char *piece, size_t len, bool *stop, struct od_err *err)
{
	const struct odm_observer *o = &q->req.observer;
	bool stopped = false;
	int rc;

	if (q->stopper != NULL) {
		rc = od_stopper_push(q->stopper, piece, len, &piece, &len, &stopped);
		if (rc != OD_OK)
			return od_fail(err, rc, "no memory for stop strings");
	}
	if (!emit(q, piece, len)) {
		q->r.finish = ODM_FINISH_CANCELLED;
		*stop = true;
	} else if (stopped) {
		q->r.finish = ODM_FINISH_STOP;
		q->r.stop = od_stopper_found(q->stopper);
		*stop = true;
	} else if (len > 0 && o->ends != NULL && o->ends(o->arg, piece, len)) {
		q->r.finish = ODM_FINISH_STOP;
		*stop = true;
	}
	return OD_OK;
}

static int take_token(struct odm_sequence *q, int32_t token, bool *stop, struct od_err *err)
{
	const char *piece;
	size_t len;
	int rc;

	q->r.tokens[q->r.n_tokens++] = token;
	if (is_stop(q, token) || (!q->req.ignore_eos && is_end(q, token))) {
		q->r.finish = ODM_FINISH_EOS;
		*stop = true;
		return OD_OK;
	}
	if (q->req.constraint != NULL) {
		q->allowed = od_constraint_step(q->req.constraint, q->allowed, token);
		q->over = od_constraint_is_over(q->req.constraint, q->allowed);
		if (q->allowed == OD_STATE_DEAD)
			return od_fail(
				err, OD_ERR_UNSUPPORTED,
				"no token that the grammar or schema allows can be drawn: logit_bias or the model's "
				"suppressed tokens exclude all of them");
	}
	rc = od_sampler_accept(q->sampler, &token, 1);
	if (rc != OD_OK)
		return od_fail(err, rc, "no memory for token %zu", q->r.n_tokens);
	if (q->detok == NULL)
		return OD_OK;
	rc = od_detok_push(q->detok, token, &piece, &len, err);
	return rc != OD_OK ? rc : add_text(q, piece, len, stop, err);
}

/* Shows text that the detokeniser and the stop strings held back; nothing after a stop string or when the reader
 * left. */
static int flush_text(struct odm_sequence *q, struct od_err *err)
{
	const char *piece;
	bool stop = false;
	size_t len;
	int rc;

	if (q->detok == NULL || q->r.finish == ODM_FINISH_STOP || q->r.finish == ODM_FINISH_CANCELLED)
		return OD_OK;
	/* The detokeniser goes first: its rest may complete a stop string. */
	rc = od_detok_flush(q->detok, &piece, &len, err);
	if (rc == OD_OK)
		rc = add_text(q, piece, len, &stop, err);
	if (rc != OD_OK || stop || q->stopper == NULL)
		return rc;
	rc = od_stopper_flush(q->stopper, &piece, &len);
	if (rc != OD_OK)
		return od_fail(err, rc, "no memory for the end of the text");
	emit(q, piece, len);
	return OD_OK;
}

/* The text's times, by the token that has just been chosen. */
static void note_time(struct odm_sequence *q)
{
	const uint64_t now = od_now_ns();

	q->own[OD_C_DECODE_NS] = q->first_ns > 0 ? now - q->first_ns : 0;
	if (q->first_ns > 0)
		return;
	q->first_ns = now;
	q->own[OD_C_TTFT_NS] = now - q->submitted_ns;
}

/* logits: of the position before it; NULL: it has no log probability. */
static void show_token(struct odm_sequence *q, int32_t token, uint32_t position, const float *logits)
{
	const struct odm_observer *o = &q->req.observer;
	struct od_logprob top[ODM_MAX_LOGPROBS];
	struct odm_token t = { .token = token, .position = position, .top = top };

	if (o->token == NULL)
		return;
	if (logits != NULL) {
		t.has_logprob = true;
		t.n_top = (uint32_t)q->req.logprobs < q->config->vocab ? (size_t)q->req.logprobs : q->config->vocab;
		t.logprob = od_logprobs(logits, q->config->vocab, token, top, t.n_top);
		t.rank = od_logprobs_rank(logits, q->config->vocab, token);
		t.end_logprob = od_logprobs_any(logits, q->end, q->n_ends, (struct od_logprob){ token, t.logprob });
	}
	o->token(o->arg, &t);
}

uint32_t odm_sequence_shows_from(const struct odm_sequence *q)
{
	const size_t first = q->req.prompt_logprobs_from;

	if (!q->req.prompt_logprobs || q->req.observer.token == NULL || q->r.n_tokens > 0)
		return UINT32_MAX;
	return first > 0 ? (uint32_t)first - 1 : 0;
}

static int check_finite(const struct odm_sequence *q, uint32_t position, const float *logits, struct od_err *err)
{
	if (od_logits_finite(logits, q->config->vocab))
		return OD_OK;
	return od_fail(err, OD_ERR_CORRUPT, "the model's outputs at position %u are not all numbers", position);
}

void odm_sequence_show_prompt(struct odm_sequence *q, uint32_t position, const float *logits)
{
	const uint32_t next = position + 1;
	struct od_err err;

	if (position < odm_sequence_shows_from(q))
		return;
	if (position == 0 && q->req.prompt_logprobs_from == 0)
		show_token(q, q->req.prompt[0], 0, NULL);
	if (next >= q->req.n_prompt)
		return;
	if (check_finite(q, position, logits, &err) == OD_OK)
		show_token(q, q->req.prompt[next], next, logits);
	else
		odm_sequence_end(q, &err);
}

/* Ends of the text keep their logits if the text may end. */
static void keep_ends(const struct odm_sequence *q, const float *logits, float *masked)
{
	for (uint32_t i = 0; i < q->config->n_eos; i++)
		if ((uint32_t)q->config->eos[i] < q->config->vocab)
			masked[q->config->eos[i]] = logits[i];
	for (size_t i = 0; i < q->req.n_ends; i++)
		if ((uint32_t)q->req.end[i] < q->config->vocab)
			masked[q->req.end[i]] = logits[q->config->n_eos + i];
}

static int apply_mask(struct odm_sequence *q, float *logits, struct od_err *err)
{
	const size_t n_ends = q->config->n_eos + q->req.n_ends;
	float ends[MAX_ENDS];
	const uint64_t *mask;
	int rc = od_constraint_mask(q->req.constraint, q->allowed, &mask, err);

	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < n_ends; i++) {
		const int32_t token = i < q->config->n_eos ? q->config->eos[i] : q->req.end[i - q->config->n_eos];

		ends[i] = (uint32_t)token < q->config->vocab ? logits[token] : 0;
	}
	od_mask_apply(mask, logits, q->config->vocab);
	if (!q->req.ignore_eos && od_constraint_ends(q->req.constraint, q->allowed))
		keep_ends(q, ends, logits);
	return OD_OK;
}

/* The next token, by the sampler. */
static int choose_token(struct odm_sequence *q, uint32_t position, float *logits, bool *stop, struct od_err *err)
{
	int32_t token;
	int rc = check_finite(q, position, logits, err);

	if (rc != OD_OK)
		return rc;
	/* The sampler writes over the logits, and log probabilities are to be the model's. */
	if (q->raw != NULL)
		memcpy(q->raw, logits, q->config->vocab * sizeof(*q->raw));
	if (q->req.constraint != NULL) {
		rc = apply_mask(q, logits, err);
		if (rc != OD_OK)
			return rc;
	}
	token = od_sampler_sample(q->sampler, logits, NULL);
	show_token(q, token, position + 1, q->raw);
	rc = take_token(q, token, stop, err);
	note_time(q);
	return rc;
}

void odm_sequence_sample(struct odm_sequence *q, uint32_t position, float *logits)
{
	bool stop = false;
	struct od_err err;
	int rc = choose_token(q, position, logits, &stop, &err);

	if (rc != OD_OK) {
		odm_sequence_end(q, &err);
		return;
	}
	if (!stop)
		q->text[q->n_text++] = q->r.tokens[q->r.n_tokens - 1];
	if (!stop && q->over) {
		q->r.finish = ODM_FINISH_EOS;
		stop = true;
	}
	if (!stop && q->r.n_tokens == q->room) {
		q->r.finish = q->req.max_tokens == q->room ? ODM_FINISH_LENGTH : ODM_FINISH_CONTEXT;
		stop = true;
	}
	q->ended = stop;
}

void odm_sequence_progress(const struct odm_sequence *q, uint32_t n)
{
	const struct odm_observer *o = &q->req.observer;

	if (o->progress != NULL && q->r.n_tokens == 0)
		o->progress(o->arg, n, (uint32_t)q->req.n_prompt);
}

#define TRUSTED 16 /* forced tokens after which it counts how many of them stood */

/* Tokens from a drafter of the request, from its constraint, or from the engine. */
static void fill_draft(struct odm_sequence *q, size_t most, bool guess)
{
	const struct odm_drafter *d = &q->req.drafter;
	struct odm_expert_service *service = q->service;
	const uint32_t position = (uint32_t)q->n_text - 1; /* the last token's */

	if (d->draft != NULL) {
		q->draft.n = d->draft(d->arg, q->text, q->n_text, q->draft.token, most);
		return;
	}
	/* A model that writes forced texts in other tokens gets no more of these drafts. */
	if (q->req.constraint != NULL && q->model->opts.draft != ODM_DRAFT_OFF &&
	    (q->forced < TRUSTED || 2 * q->forced_right >= q->forced))
		q->draft.n = odm_forced_draft(q->req.constraint, q->allowed, q->model->tokenizer, q->text[position],
					      q->draft.token, most);
	q->guessed = q->draft.n == 0;
	if (!q->guessed || !guess)
		return;
	if (q->lookup != NULL)
		q->draft.n = odm_lookup_draft(q->lookup, q->text, q->n_text, q->draft.token, most);
	else if (q->model->opts.draft == ODM_DRAFT_SHADOW)
		service->draft(service, q->id, position, q->text[position], most, &q->draft);
}

void odm_sequence_drafted(struct odm_sequence *q, size_t right)
{
	if (q->guessed || q->req.drafter.draft != NULL)
		return;
	q->forced += q->draft.n;
	q->forced_right += right;
}

void odm_sequence_draft(struct odm_sequence *q, size_t max, bool guess)
{
	const size_t left = q->room - q->r.n_tokens; /* tokens that may still come; a step of n rows gives at most n */
	size_t most = left - 1 < ODM_MAX_DRAFT ? left - 1 : ODM_MAX_DRAFT;

	/* a short text is computed anew before it becomes a long one */
	if (most > od_seq_state_ctx(q->state) - q->n_text)
		most = od_seq_state_ctx(q->state) - q->n_text;
	most = most < max ? most : max;
	q->draft = (struct odm_draft){ 0 };
	q->guessed = q->req.drafter.draft == NULL;
	if (q->model->opts.draft == ODM_DRAFT_SHADOW)
		q->draft.experts[0] = q->config->n_moe * q->config->top_k; /* a single row's */
	if (most == 0)
		return;
	fill_draft(q, most, guess);
	q->draft.n = q->draft.n < most ? q->draft.n : most;
	for (size_t i = 0; i < q->draft.n; i++) /* one that is no token ends it */
		if ((uint32_t)q->draft.token[i] >= q->config->vocab)
			q->draft.n = i;
}

void odm_sequence_next_rows(struct odm_sequence *q, uint32_t ahead)
{
	size_t left; /* rows behind this step, if all of it stands */

	q->row[0] = q->text[q->n_text - 1];
	memcpy(q->row + 1, q->draft.token, q->draft.n * sizeof(*q->row));
	q->n_rows = 1 + q->draft.n;
	q->kept = 0;
	left = q->room - q->r.n_tokens > q->n_rows ? q->room - q->r.n_tokens - q->n_rows : 0;
	q->ahead = ahead;
	if (q->ahead > left)
		q->ahead = left > 1 ? (uint32_t)left : 1;
}

/* ---- The end ---- */

void odm_sequence_end(struct odm_sequence *q, const struct od_err *err)
{
	q->ended = true;
	if (err == NULL)
		return;
	q->err = *err;
	q->r.finish = err->code == OD_ERR_CANCELLED ? ODM_FINISH_CANCELLED : ODM_FINISH_ERROR;
}

void odm_sequence_finish(struct odm_sequence *q)
{
	struct od_err err;

	assert(q->ended);
	if (q->err.code == OD_OK && flush_text(q, &err) != OD_OK)
		odm_sequence_end(q, &err);
	q->own[OD_C_PROMPT_TOKENS] = q->req.n_prompt;
	q->own[OD_C_TOKENS] = q->r.n_tokens;
	if (q->model->tokenizer != NULL)
		q->r.text = od_strbuf_take(&q->shown, &q->r.text_len);
	q->phase = ODM_DONE;
}
