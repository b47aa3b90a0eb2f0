#include "main-node/engine/batch.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "main-node/engine/engine_internal.h"
#include "main-node/engine/engine_report.h"
#include "main-node/engine/pass_size.h"
#include "main-node/engine/state_plan.h"

#include <stdlib.h>
#include <string.h>

#define MIN_CHUNK_ROWS 16
#define FIRST_WRITTEN_TOKENS 512 /* expected of texts before any has ended */
#define RECENT_TEXTS 16

/* ---- Life ---- */

int odm_batch_init(struct odm_batch *b, struct odm_engine *e, const struct od_forward_opts *o, uint32_t max_sequences,
		   struct od_err *err)
{
	const struct od_forward_opts d = odm_pass_size_decode(o, max_sequences),
				     p = odm_pass_size_prefill(o, max_sequences);
	const size_t logits = d.max_logits > p.max_logits ? d.max_logits : p.max_logits;
	struct odm_pass_opts po = { .model = e->model,
				    .service = e->service,
				    .phase = ODM_PREFILL,
				    .max_parts = max_sequences,
				    .timeline = e->timeline,
				    .total = e->counters };
	int rc;

	*b = (struct odm_batch){ .max_sequences = max_sequences,
				 .chunk_rows = o->max_rows,
				 .written_tokens = FIRST_WRITTEN_TOKENS };
	b->last = &b->first;
	b->next_decode = ++e->last_step;
	odm_draft_policy_init(&b->policy, (uint32_t)e->model->opts.draft_tokens);
	b->draft = calloc(max_sequences, sizeof(*b->draft));
	b->row = calloc(logits > max_sequences ? logits : max_sequences, sizeof(*b->row));
	if (b->draft == NULL || b->row == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %u parallel texts", max_sequences);
	rc = odm_mask_ahead_new(&b->masks, max_sequences, err);
	if (rc == OD_OK)
		rc = odm_pass_init(&b->prefill, &po, &p, err);
	po.phase = ODM_DECODE;
	return rc == OD_OK ? odm_pass_init(&b->decode, &po, &d, err) : rc;
}

void odm_batch_fini(struct odm_batch *b)
{
	struct odm_sequence *next;

	for (struct odm_sequence *q = b->first; q != NULL; q = next) {
		next = q->next;
		odm_sequence_free(q);
	}
	odm_pass_fini(&b->prefill);
	odm_pass_fini(&b->decode);
	odm_mask_ahead_free(b->masks);
	free(b->draft);
	free(b->row);
}

/* ---- In and out ---- */

int odm_batch_submit(struct odm_engine *e, const struct odm_request *req, struct odm_sequence **out, struct od_err *err)
{
	struct odm_batch *b = &e->batch;
	int rc = odm_sequence_new(out, e->model, e->service, req, err);

	if (rc == OD_OK)
		rc = odm_state_plan_fits(e->model, odm_sequence_positions(*out), err);
	if (rc != OD_OK) {
		odm_sequence_free(*out);
		*out = NULL;
		return rc;
	}
	(*out)->engine = e;
	*b->last = *out;
	b->last = &(*out)->next;
	return OD_OK;
}

/* Adds the node of main itself: sums over the process so far. */
static void add_own_node(struct odm_sequence *q)
{
	struct odm_engine *e = q->engine;
	struct odm_node_figures *node = odm_figures_add_node(&q->r.figures, "main", true);

	e->counters[OD_C_PEAK_RSS_BYTES] = od_peak_rss_bytes();
	if (node != NULL)
		memcpy(node->c, e->counters, sizeof(node->c));
}

/* The text is no longer admitted. */
static enum odm_company company_of(const struct odm_batch *b, const struct odm_sequence *q)
{
	if (b->n_admitted > 0)
		return ODM_NOT_LAST;
	return q->alone ? ODM_ALONE : ODM_LAST;
}

/* It is no longer admitted. The service closes it and adds what it knows of it to f. */
static void close_admitted(struct odm_sequence *q, struct odm_figures *f)
{
	struct odm_engine *e = q->engine;
	struct odm_batch *b = &e->batch;

	if (--b->n_admitted == 0) /* loads that were wanted for it are about rows that will not come */
		b->next_decode = ++e->last_step;
	if (e->service->close_sequence != NULL)
		e->service->close_sequence(e->service, q->id, company_of(b, q), f, q->req.recall);
}

/* The text needs its state no more: what it may leave to others stays, and its pages may be what another waits for. */
static void release_state(struct odm_sequence *q)
{
	const struct odm_reuse *u = &q->engine->model->reuse;

	odm_reuse_keep(u, q);
	od_seq_state_free(q->state);
	q->state = NULL;
	odm_reuse_trim(u);
	od_state_pool_give_back(q->engine->model->state, q->engine->batch.n_admitted);
}

/* One that has ended leaves the list. */
static void finish(struct odm_sequence *q)
{
	struct odm_engine *e = q->engine;
	struct odm_batch *b = &e->batch;
	struct odm_figures *f = &q->r.figures;
	struct odm_sequence **at = &b->first;
	uint64_t all[OD_N_COUNTERS];

	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	if (b->last == &q->next)
		b->last = at;
	q->next = NULL;
	odm_sequence_finish(q);
	if (q->id != 0)
		b->written_tokens += ((double)q->r.n_tokens - b->written_tokens) / RECENT_TEXTS;
	release_state(q);
	add_own_node(q);
	/* The engine has the steps' counts since each step ended, so only the text's own ones are added to it; the
	 * result gets both. */
	memcpy(all, f->c, sizeof(all)); /* its steps' counts */
	memcpy(f->c, q->own, sizeof(f->c));
	if (q->id != 0)
		close_admitted(q, f);
	od_counters_add(e->counters, f->c);
	od_counters_add(all, f->c);
	memcpy(f->c, all, sizeof(all));
}

static void finish_for(struct odm_sequence *q, const struct od_err *err)
{
	odm_sequence_end(q, err);
	finish(q);
}

/* Finishes the texts that ended in this step. */
static void finish_ended(struct odm_pass *p)
{
	for (size_t i = 0; i < p->step.n_parts; i++)
		if (p->of[i]->ended)
			finish(p->of[i]);
}

static void fail_pass(struct odm_pass *p, const struct od_err *err)
{
	/* It comes first, because it adds the step's counts to the texts, and finish sums these up. */
	odm_pass_give_up(p);
	for (size_t i = 0; i < p->step.n_parts; i++)
		finish_for(p->of[i], err);
}

/* Texts that outgrow the original context of long RoPE begin anew. Their positions in the list are before all that
 * wait. */
static void restart_outgrown(struct odm_engine *e)
{
	for (struct odm_sequence *q = e->batch.first; q != NULL; q = q->next) {
		struct odm_figures f = { 0 };

		if (!odm_sequence_outgrown(q))
			continue;
		/* The service forgets the sequence now, so what it counted becomes the text's own until the text
		 * ends. */
		close_admitted(q, &f);
		od_counters_add(f.c, q->own);
		memcpy(q->own, f.c, sizeof(q->own));
		odm_figures_fini(&f);
		release_state(q);
		odm_sequence_restart(q);
	}
}

/* ---- Admission ---- */

/* False: not now. */
static bool admit(struct odm_engine *e, struct odm_sequence *q)
{
	struct odm_batch *b = &e->batch;
	struct odm_reuse_pages r;
	struct od_err err;
	int rc;

	if (!odm_reuse_find(&e->model->reuse, b->first, q, &r))
		return false;
	rc = od_seq_state_new(&q->state, e->model->state, &err);
	if (rc == OD_OK)
		od_seq_state_set_long(q->state, odm_sequence_is_long(q));
	/* Shared pages count against the promise, so they come before it: else a text would wait for pages that it
	 * does not need. */
	if (rc == OD_OK && r.n > 0)
		od_seq_state_attach(q->state, r.page, r.n);
	if (rc == OD_OK)
		rc = od_seq_state_promise(q->state, odm_sequence_positions(q));
	if (rc == OD_OK)
		rc = odm_reuse_begin(&e->model->reuse, q, &r, &err);
	if (rc == OD_OK) {
		odm_reuse_trim(&e->model->reuse); /* its promise takes pages that the cache had meanwhile */
		q->shared_sequence = r.donor != NULL ? r.donor->id : 0;
		q->shared_tokens = r.n_donor * OD_KV_PAGE;
		/* A text with an id is closed when it ends, so it gets one only when nothing can fail any more. */
		q->id = ++e->last_sequence;
		q->phase = odm_reuse_restore(&e->model->reuse, q, r.n) ? ODM_IN_RESTORE : ODM_IN_PREFILL;
		q->alone = b->n_admitted++ == 0 && (q->alone || q->r.n_tokens == 0);
		if (q->r.n_tokens == 0)
			q->own[OD_C_SHARED_TOKENS] = r.n * OD_KV_PAGE;
		odm_sequence_progress(q, r.n * OD_KV_PAGE);
		return true;
	}
	od_seq_state_free(q->state);
	q->state = NULL;
	if (rc == OD_ERR_BUSY)
		return false;
	finish_for(q, &err); /* out of memory */
	return true;
}

/* Most requests allow far more tokens than their texts write, so the length of ended texts is expected. */
static size_t expected_tokens(const struct odm_batch *b, const struct odm_sequence *q)
{
	const size_t recent = (size_t)b->written_tokens;

	return q->req.ignore_eos || q->room < recent ? q->room : recent;
}

/* When it has written n_more tokens, or another text like it, which follows it, the rest of them. */
static uint64_t expected_pages(const struct odm_batch *b, const struct odm_sequence *q, size_t n_more)
{
	size_t written = expected_tokens(b, q);

	if (written <= q->r.n_tokens) /* it is longer than expected */
		written = q->r.n_tokens + 1;
	return od_state_pages((uint32_t)(q->req.n_prompt + (q->r.n_tokens + n_more) % written));
}

/* Asks the service whether the first text that waits should join. */
static bool should_join(const struct odm_engine *e, const struct odm_sequence *first)
{
	const size_t life = expected_tokens(&e->batch, first);
	struct odm_waiting w = { 0 };

	if (e->service->admits == NULL)
		return true;
	for (size_t i = 0; i < ODM_LIFE_POINTS; i++)
		w.text_pages[i] = expected_pages(&e->batch, first, life * i / ODM_LIFE_POINTS);
	for (const struct odm_sequence *q = e->batch.first; q != NULL; q = q->next) {
		if (q->phase == ODM_WAITING) {
			w.n_waiting++;
		} else if (q->phase != ODM_DONE) {
			w.n_running++;
			for (size_t i = 0; i < ODM_LIFE_POINTS; i++)
				w.running_pages[i] += expected_pages(&e->batch, q, life * i / ODM_LIFE_POINTS);
		}
	}
	return e->service->admits(e->service, &w);
}

static void admit_waiting(struct odm_engine *e)
{
	struct odm_batch *b = &e->batch;
	struct odm_sequence *next;

	for (struct odm_sequence *q = b->first; q != NULL && b->n_admitted < b->max_sequences; q = next) {
		next = q->next;
		if (q->phase == ODM_WAITING && !(should_join(e, q) && admit(e, q)))
			return; /* nor any behind it: in order of arrival */
	}
	for (struct odm_sequence *q = b->first; q != NULL && b->n_admitted > 1; q = q->next)
		q->alone = false;
}

static bool in_pass(const struct odm_pass *p, const struct odm_sequence *q)
{
	if (p->open)
		for (size_t i = 0; i < p->step.n_parts; i++)
			if (p->of[i] == q)
				return true;
	return false;
}

/* A text whose rows are under way goes when these are through. */
static void finish_cancelled(struct odm_engine *e)
{
	const bool all = atomic_load(e->model->opts.cancel);
	struct odm_sequence *next;
	struct od_err err;

	/* A decode step begins and ends within one call of odm_batch_work, so only a prefill can be open here. */
	for (struct odm_sequence *q = e->batch.first; q != NULL; q = next) {
		next = q->next;
		if ((!all && !atomic_load(&q->cancelled)) || in_pass(&e->batch.prefill, q))
			continue;
		(void)od_fail(&err, OD_ERR_CANCELLED, "cancelled");
		finish_for(q, &err);
	}
}

/* ---- Decode ---- */

/* Drafts of the shadow, or from the text, are in use: they may be wrong, so the policy decides. */
static bool guesses(const struct odm_engine *e)
{
	return e->model->opts.draft == ODM_DRAFT_SHADOW || e->model->opts.draft == ODM_DRAFT_LOOKUP;
}

/* Drafts of all texts in decode, as long as pays. */
static void find_drafts(struct odm_engine *e)
{
	struct odm_batch *b = &e->batch;
	const size_t limit = odm_pass_size_drafted(e->model->config),
		     most = b->decode.max_rows < limit ? b->decode.max_rows : limit;
	size_t left, n = 0;

	for (const struct odm_sequence *q = b->first; q != NULL; q = q->next)
		n += q->phase == ODM_IN_DECODE;
	/* Each text's own row comes before any draft's: drafts share the rows that are left. */
	left = n < most ? most - n : 0;
	n = 0;
	for (struct odm_sequence *q = b->first; q != NULL; q = q->next) {
		if (q->phase != ODM_IN_DECODE)
			continue;
		odm_sequence_draft(q, left, guesses(e) && odm_draft_policy_on(&e->batch.policy));
		/* Drafts that are no guesses are never cut, so their rows are taken from the others' limit at once.
		 * The others may be too many together until the policy has cut them. */
		if (q->guessed)
			b->draft[n++] = &q->draft;
		else
			left -= q->draft.n;
	}
	odm_draft_policy_cut(&b->policy, b->draft, n, left);
	b->experts = 0;
	for (size_t i = 0; i < n; i++)
		b->experts += b->draft[i]->experts[b->draft[i]->n];
}

/* Pages for a text's positions [0, end). False: the device has no memory for them, and the text has ended. */
static bool reserve_pages(struct odm_sequence *q, uint32_t end)
{
	struct od_err err;
	const int rc = od_seq_state_reserve(q->state, end, &err);

	if (rc != OD_OK)
		finish_for(q, &err);
	return rc == OD_OK;
}

static void add_decode_rows(struct odm_engine *e)
{
	struct odm_pass *p = &e->batch.decode;
	const uint32_t ahead = e->model->opts.draft == ODM_DRAFT_SHADOW ? odm_draft_policy_ahead(&e->batch.policy) : 1;
	struct odm_sequence *next;

	find_drafts(e);
	odm_pass_clear(p);
	p->step.outlook = odm_draft_policy_outlook(&e->batch.policy);
	for (struct odm_sequence *q = e->batch.first; q != NULL; q = next) {
		next = q->next;
		if (q->phase != ODM_IN_DECODE)
			continue;
		odm_sequence_next_rows(q, ahead);
		if (!reserve_pages(q, od_seq_state_length(q->state) + (uint32_t)q->n_rows))
			continue;
		odm_reuse_step(&e->model->reuse, q, od_seq_state_length(q->state) + (uint32_t)q->n_rows);
		odm_pass_add(p, q, od_seq_state_length(q->state), q->row, q->n_rows);
	}
}

/* Masks of constrained texts are found while the step is computed, if there is time. */
static void begin_masks(struct odm_batch *b)
{
	for (size_t i = 0; i < b->decode.step.n_parts; i++) {
		const struct odm_sequence *q = b->decode.of[i];

		if (q->req.constraint != NULL)
			odm_mask_ahead_add(b->masks, q->req.constraint, q->allowed, q->row + 1, q->n_rows - 1);
	}
	odm_mask_ahead_start(b->masks);
}

static void sample(struct odm_sequence *q, enum odm_phase phase, uint32_t position, float *logits)
{
	const struct odm_observer *o = &q->req.observer;

	if (o->logits != NULL)
		o->logits(o->arg, phase, position, logits);
	odm_sequence_sample(q, position, logits);
}

/* The next row of a text is sampled from if its token is the one that was chosen. */
static bool row_stands(const struct odm_sequence *q)
{
	return !q->ended && q->kept < q->n_rows && (q->kept == 0 || q->row[q->kept] == q->r.tokens[q->r.n_tokens - 1]);
}

/* Rows from *row on that may stand, as many as the head takes at a time. Returns how many; *row: the next one. */
static size_t list_rows(struct odm_batch *b, size_t *part, size_t *index, uint32_t *list)
{
	const struct odm_pass *p = &b->decode;
	size_t n = 0, before = 0; /* before: rows of this part in the list */

	for (; *part < p->step.n_parts; ++*part, *index = before = 0) {
		const struct odm_sequence *q = p->of[*part];

		for (; *index < q->n_rows && !q->ended && q->kept + before == *index; ++*index, before++) {
			if (n == p->max_logits)
				return n;
			list[n++] = (uint32_t)(p->part[*part].first + *index);
		}
	}
	return n;
}

/* Samples from rows [n] of the step, in their order, as far as they stand. */
static int sample_rows(struct odm_batch *b, const uint32_t *row, size_t n, struct od_err *err)
{
	struct odm_pass *p = &b->decode;
	float *logits;
	size_t part = 0;
	int rc = odm_pass_logits(p, row, n, &logits, err);

	if (rc == OD_OK)
		for (size_t i = 0; i < n; i++) {
			struct odm_sequence *q;

			while (row[i] >= p->part[part].first + p->part[part].n)
				part++;
			q = p->of[part];
			/* Rows behind a wrong draft token have logits, too: only the logits before it show that it
			 * is wrong. */
			if (row[i] != p->part[part].first + q->kept || !row_stands(q))
				continue;
			q->kept++;
			sample(q, ODM_DECODE, p->rows[row[i]].position, logits + i * (size_t)p->o.model->config->vocab);
		}
	return rc;
}

/* A draft token was found right, or wrong. */
static void learn_token(struct odm_engine *e, const struct odm_sequence *q, size_t i, bool right)
{
	struct odm_draft_policy *p = &e->batch.policy;
	const struct odm_observer *o = &q->req.observer;

	if (o->drafted != NULL)
		o->drafted(o->arg, q->draft.margin[i], odm_draft_policy_right(p, q->draft.margin[i]), right);
	odm_draft_policy_learn(p, q->draft.margin[i], right);
}

/* Counts how much a text's draft was worth. Behind its first wrong token, and behind the text's end, nothing is
 * known. */
static void count_draft(struct odm_engine *e, struct odm_sequence *q)
{
	const size_t right = q->kept - 1;

	q->own[OD_C_DRAFTED] += q->draft.n;
	q->own[OD_C_ACCEPTED] += right;
	odm_sequence_drafted(q, right);
	if (!q->guessed)
		return;
	for (size_t i = 0; i < right; i++)
		learn_token(e, q, i, true);
	if (q->kept < q->n_rows && !q->ended)
		learn_token(e, q, right, false);
}

/* Commits the step's rows, as odm_pass_end. */
static int end_pass(struct odm_engine *e, struct odm_pass *p, const uint32_t *kept, struct od_err *err)
{
	const int rc = odm_pass_end(p, kept, err);

	if (rc == OD_OK)
		for (size_t i = 0; i < p->step.n_parts; i++)
			odm_reuse_stepped(&e->model->reuse, p->of[i]);
	return rc;
}

/* The next layer of a step. */
static int run_layer(struct odm_engine *e, struct odm_pass *p, bool *done, struct od_err *err)
{
	const int rc = odm_pass_layer(p, done, err);

	odm_engine_report_make(e, false);
	return rc;
}

/* Rows stand up to the first whose successor is another token than was drafted. */
static int end_decode(struct odm_engine *e, struct od_err *err)
{
	struct odm_batch *b = &e->batch;
	struct odm_pass *p = &b->decode;
	size_t n, part = 0, index = 0;
	int rc = OD_OK;

	/* Whether a row stands is known when the row before it has its token. So the head takes rows in turns, and
	 * no row behind a wrong token is in the next turn. */
	for (size_t i = 0; i < p->step.n_parts; i++)
		p->of[i]->n_rows = p->valid[i];
	while (rc == OD_OK && (n = list_rows(b, &part, &index, b->row)) > 0)
		rc = sample_rows(b, b->row, n, err);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < p->step.n_parts; i++) {
		b->row[i] = p->of[i]->kept;
		count_draft(e, p->of[i]);
	}
	if (p->step.n_rows > p->step.n_parts && e->service->kept != NULL)
		e->service->kept(e->service, &p->step, b->row);
	return end_pass(e, p, b->row, err);
}

/* The number that was kept for the next decode step, which gets another one. */
static uint64_t take_number(struct odm_engine *e)
{
	const uint64_t number = e->batch.next_decode;

	e->batch.next_decode = ++e->last_step;
	return number;
}

static void count_texts(struct odm_batch *b, size_t n)
{
	size_t i = 0;

	while (((size_t)1 << i) < n && i + 1 < ODM_BATCH_BUCKETS)
		i++;
	b->steps_of[i]++;
	b->decode_texts += n;
}

static void decode_step(struct odm_engine *e)
{
	struct odm_batch *b = &e->batch;
	const uint64_t begin = od_now_ns();
	uint64_t number, ns;
	size_t tokens = 0, n;
	bool done = false;
	struct od_err err;
	int rc;

	add_decode_rows(e);
	if (b->decode.step.n_parts == 0)
		return;
	number = take_number(e);
	begin_masks(b);
	rc = odm_pass_begin(&b->decode, number, b->next_decode, &err);
	while (rc == OD_OK && !done)
		rc = run_layer(e, &b->decode, &done, &err);
	odm_mask_ahead_wait(b->masks);
	if (rc == OD_OK)
		rc = end_decode(e, &err);
	if (rc != OD_OK) {
		fail_pass(&b->decode, &err);
		return;
	}
	n = b->decode.step.n_parts;
	count_texts(b, n);
	for (size_t i = 0; i < n; i++)
		tokens += b->decode.of[i]->kept;
	finish_ended(&b->decode);
	ns = od_now_ns() - begin;
	/* It only sizes the chunks of prompts, so an average that follows a change within a few steps is enough. */
	b->decode_ns = b->decode_ns == 0 ? ns : (3 * b->decode_ns + ns) / 4;
	if (guesses(e)) {
		const struct odm_draft_step s = { .texts = n,
						  .rows = b->decode.step.n_rows,
						  .tokens = tokens,
						  .experts = b->experts,
						  .ns = ns,
						  .wait_ns = b->decode.counters[OD_C_STALL_NS] };

		odm_draft_policy_timed(&b->policy, &s);
	}
}

/* ---- Prompts ---- */

/* Rows of prompts in order of arrival, as many as a chunk may have. */
static void add_prompt_rows(struct odm_engine *e, bool others)
{
	struct odm_batch *b = &e->batch;
	size_t left = others ? b->chunk_rows : b->prefill.max_rows;
	struct odm_sequence *next;

	odm_pass_clear(&b->prefill);
	for (struct odm_sequence *q = b->first; q != NULL && left > 0; q = next) {
		const uint32_t begin = q->phase == ODM_IN_PREFILL ? od_seq_state_length(q->state) : 0;
		size_t n;

		next = q->next;
		if (q->phase != ODM_IN_PREFILL)
			continue;
		n = q->n_prefill - begin < left ? q->n_prefill - begin : left;
		if (!reserve_pages(q, begin + (uint32_t)n))
			continue;
		odm_reuse_step(&e->model->reuse, q, begin + (uint32_t)n);
		odm_pass_add(&b->prefill, q, begin, q->text + begin, n);
		left -= n;
	}
}

/* The texts' prompts have come so far. */
static void show_progress(const struct odm_pass *p)
{
	for (size_t i = 0; i < p->step.n_parts; i++)
		odm_sequence_progress(p->of[i], p->rows[p->part[i].first].position + (uint32_t)p->part[i].n);
}

/* The last row of a prefill, and all rows of a text that wants to see them. */
static bool row_is_seen(const struct odm_pass *p, size_t part, size_t row)
{
	const struct odm_sequence *q = p->of[part];
	const uint32_t position = p->rows[row].position;

	return position + 1 == q->n_prefill ||
	       (q->req.observer.logits != NULL && !odm_sequence_was_seen(q, position)) ||
	       position >= odm_sequence_shows_from(q);
}

/* Such rows from *row on, as many as the head takes at a time. Returns how many; *row: the next one. */
static size_t list_seen(const struct odm_pass *p, size_t *part, size_t *row, uint32_t *list)
{
	size_t n = 0;

	for (; *row < p->step.n_rows && n < p->max_logits; ++*row) {
		while (*row >= p->part[*part].first + p->part[*part].n)
			++*part;
		if (row_is_seen(p, *part, *row))
			list[n++] = (uint32_t)*row;
	}
	return n;
}

/* A row of a prefill has its logits: the next token is sampled from the last one's. */
static void see_row(struct odm_sequence *q, uint32_t position, float *logits)
{
	const struct odm_observer *o = &q->req.observer;
	const bool last = position + 1 == q->n_prefill;

	if (q->ended) /* an earlier row's were no numbers */
		return;
	if (!last && o->logits != NULL)
		o->logits(o->arg, ODM_PREFILL, position, logits);
	odm_sequence_show_prompt(q, position, logits);
	if (!last)
		return;
	if (q->r.n_tokens == 0)
		q->own[OD_C_PREFILL_NS] = od_now_ns() - q->submitted_ns;
	q->phase = ODM_IN_DECODE;
	sample(q, position < q->req.n_prompt ? ODM_PREFILL : ODM_DECODE, position, logits);
}

static int see_rows(struct odm_batch *b, struct od_err *err)
{
	struct odm_pass *p = &b->prefill;
	size_t next_part = 0, next = 0, part = 0, n;
	float *logits;
	int rc = OD_OK;

	while (rc == OD_OK && (n = list_seen(p, &next_part, &next, b->row)) > 0) {
		rc = odm_pass_logits(p, b->row, n, &logits, err);
		if (rc == OD_OK)
			for (size_t i = 0; i < n; i++) {
				while (b->row[i] >= p->part[part].first + p->part[part].n)
					part++;
				see_row(p->of[part], p->rows[b->row[i]].position,
					logits + i * (size_t)p->o.model->config->vocab);
			}
	}
	return rc;
}

size_t odm_chunk_rows(uint64_t decode_ns, uint64_t layer_ns, size_t n_rows, size_t max_rows)
{
	const double most = (double)(ODM_PREFILL_PER_DECODE * decode_ns);
	const double rows = layer_ns > 0 ? (double)n_rows * most / (double)layer_ns : (double)max_rows;

	if (rows >= (double)max_rows || max_rows <= MIN_CHUNK_ROWS)
		return max_rows;
	return rows < MIN_CHUNK_ROWS ? MIN_CHUNK_ROWS : (size_t)rows;
}

static void choose_chunk_rows(struct odm_batch *b)
{
	if (b->decode_ns > 0)
		b->chunk_rows = odm_chunk_rows(b->decode_ns, b->layer_ns, b->prefill.step.n_rows, b->prefill.max_rows);
}

/* A chunk that stopped between layers would have their weights read again after the decode steps. */
static bool streams(const struct odm_engine *e)
{
	return od_dense_chosen(e->model->dense) != NULL;
}

/* A whole chunk beside decode steps. Reading the weights takes about as long as a decode step, so this is within what
 * prompts may take as long as computing is shorter; choose_chunk_rows sees to that. */
static int prefill_all_layers(struct odm_engine *e, bool *done, struct od_err *err)
{
	const uint64_t begin = od_now_ns();
	int rc = OD_OK;

	*done = false;
	while (rc == OD_OK && !*done)
		rc = run_layer(e, &e->batch.prefill, done, err);
	e->batch.layer_ns = od_now_ns() - begin;
	return rc;
}

/* Layers of a chunk: all of them, or while others wait for their next decode step, as many as fit between two. */
static int prefill_layers(struct odm_engine *e, bool others, bool *done, struct od_err *err)
{
	struct odm_batch *b = &e->batch;
	const uint64_t begin = od_now_ns(), most = ODM_PREFILL_PER_DECODE * b->decode_ns;
	uint64_t at = begin;
	int rc = OD_OK;

	/* There is always one layer, so that prompts get on however long a layer takes; a further one only if the
	 * longest so far would still fit. */
	*done = false;
	while (rc == OD_OK && !*done && (!others || at == begin || at + b->layer_ns - begin <= most)) {
		const uint64_t layer_begin = at;

		rc = run_layer(e, &b->prefill, done, err);
		at = od_now_ns();
		b->layer_ns = at - layer_begin > b->layer_ns ? at - layer_begin : b->layer_ns;
	}
	return rc;
}

static void prefill_some(struct odm_engine *e, bool others)
{
	struct odm_batch *b = &e->batch;
	struct odm_pass *p = &b->prefill;
	bool done = false;
	struct od_err err;
	int rc = OD_OK;

	if (!p->open) {
		add_prompt_rows(e, others);
		if (p->step.n_parts == 0)
			return;
		b->layer_ns = 0;
		/* WANTs for the next decode step go by its number; while there is none, numbers only grow. */
		rc = odm_pass_begin(p, others ? ++e->last_step : take_number(e), 0, &err);
		if (rc == OD_OK && !others)
			odm_pass_alone(p);
	}
	if (rc == OD_OK)
		rc = streams(e) ? prefill_all_layers(e, &done, &err) : prefill_layers(e, others, &done, &err);
	/* A reader hears that its prompt is through before it hears the first token. */
	if (rc == OD_OK && done) {
		show_progress(p);
		rc = see_rows(b, &err);
	}
	if (rc == OD_OK && done) {
		rc = end_pass(e, p, NULL, &err);
		choose_chunk_rows(b);
	}
	if (rc != OD_OK)
		fail_pass(p, &err);
	else if (done)
		finish_ended(p);
}

/* ---- The loop ---- */

static bool any(const struct odm_batch *b, enum odm_sequence_phase phase)
{
	for (const struct odm_sequence *q = b->first; q != NULL; q = q->next)
		if (q->phase == phase)
			return true;
	return false;
}

bool odm_batch_work(struct odm_engine *e)
{
	struct odm_batch *b = &e->batch;
	bool decode, restore;

	/* Cancelled and restarted texts give up their pages before waiting ones ask for some. The decode step comes
	 * before prompts, so that a new prompt delays running texts by no more than prefill_layers allows. */
	finish_cancelled(e);
	restart_outgrown(e);
	admit_waiting(e);
	restore = odm_reuse_poll(&e->model->reuse, b->first) > 0;
	decode = any(b, ODM_IN_DECODE);
	if (decode)
		decode_step(e);
	if (b->prefill.open || any(b, ODM_IN_PREFILL))
		prefill_some(e, decode);
	else if (restore && !decode)
		odm_reuse_wait(&e->model->reuse);
	odm_engine_report_make(e, b->first == NULL);
	od_log_swap_about(NULL); /* it was about a step, of texts that may be taken now */
	return b->first != NULL;
}
