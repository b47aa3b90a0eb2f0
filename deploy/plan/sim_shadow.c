/* The simulated shadow: runs of rows, layer by layer, as emulator.h describes them. od-shadow's own code cannot be
 * driven without a model, so its decisions are repeated here in short. */
#include "deploy/plan/sim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES 100 /* a message without rows, with what TCP adds */
#define PREDICT_ROW_BYTES 24
#define PREDICT_EXPERT_BYTES 6
#define ANSWER_BYTES (256u << 10) /* rows of a prompt in a message */
#define WRONG_TOKEN 0x40000000 /* flips a token that follows a wrong one */

static void choose_run(struct odp_sim *s);

/* ---- Life ---- */

int odp_shadow_begin(struct odp_sim *s, struct od_err *err)
{
	struct sim_shadow *h = &s->shadow;
	const double factor = s->model.shadow_factor;

	*h = (struct sim_shadow){ .machine = s->cluster.shadow, .stamp = h->stamp + 1 };
	if (factor > 0)
		h->machine.speed /= factor;
	h->text = calloc(s->work->n_texts, sizeof(*h->text));
	h->row = calloc(s->decode_rows, sizeof(*h->row));
	if (h->text == NULL || h->row == NULL)
		return od_fail(err, OD_ERR_NOMEM, "simulation of %u texts", s->work->n_texts);
	for (uint32_t i = 0; i < s->work->n_texts; i++) {
		h->text[i].have = calloc(s->model.n_layers, sizeof(*h->text[i].have));
		if (h->text[i].have == NULL)
			return od_fail(err, OD_ERR_NOMEM, "simulation of %u texts", s->work->n_texts);
	}
	return OD_OK;
}

void odp_shadow_end(struct odp_sim *s)
{
	for (uint32_t i = 0; s->shadow.text != NULL && i < s->work->n_texts; i++)
		free(s->shadow.text[i].have);
	free(s->shadow.text);
	free(s->shadow.row);
	s->shadow.text = NULL;
	s->shadow.row = NULL;
}

/* ---- Periods ---- */

static bool is_multiple(uint32_t n, uint32_t period)
{
	return period > 0 && n % period == 0;
}

bool odp_shadow_told(const struct odp_sim *s, uint32_t step)
{
	return step == 1 || is_multiple(step - 1, s->o.align_token);
}

bool odp_shadow_aligned(const struct odp_sim *s, uint32_t step)
{
	return is_multiple(step, s->o.align_kv);
}

/* ---- Tokens ---- */

static int32_t *token_of(struct sim_shadow_text *q, uint32_t position)
{
	return &q->token[position % SHADOW_RING];
}

static void set_token(struct odp_sim *s, uint32_t text, uint32_t position, int32_t token, float margin)
{
	struct sim_shadow_text *q = &s->shadow.text[text];
	const struct odp_routes *r = s->work->routes;

	if (q->right == position && token == r->token(r->arg, text, position))
		q->right = position + 1;
	*token_of(q, position) = token;
	q->margin[position % SHADOW_RING] = margin;
	q->known = q->known > position ? q->known : position + 1;
}

/* The head of the row before gives the token at `known`. Behind a wrong token all are wrong. */
static void draw_token(struct odp_sim *s, uint32_t text)
{
	struct sim_shadow_text *q = &s->shadow.text[text];
	const struct odp_routes *r = s->work->routes;
	const uint32_t at = q->known;
	float margin = 0;
	int32_t token = r->guess != NULL ? r->guess(r->arg, text, at, &margin) : r->token(r->arg, text, at);

	if (q->right < at && token == r->token(r->arg, text, at))
		token ^= WRONG_TOKEN;
	set_token(s, text, at, token, margin);
}

/* ---- Times ---- */

static bool is_paced(const struct odp_sim *s)
{
	return s->cluster.shadow_route_ns > 0 || s->cluster.shadow_rest_ns > 0 || s->cluster.shadow_head_ns > 0;
}

static double route_ns(const struct odp_sim *s)
{
	const struct sim_shadow *h = &s->shadow;

	if (is_paced(s))
		return s->cluster.shadow_route_ns;
	return h->machine.run_ns + odp_product_ns(&h->machine, s->block[h->layer].dense_weights, (double)h->n_rows);
}

/* Experts of the layer: different ones of the rows, as many as would be drawn at random. */
static double rest_ns(const struct odp_sim *s)
{
	const struct sim_shadow *h = &s->shadow;
	const double n = s->model.n_experts, rows = (double)h->n_rows,
		     different = n * (1 - pow(1 - s->model.top_k / n, rows));

	if (is_paced(s))
		return s->cluster.shadow_rest_ns;
	if (!s->block[h->layer].moe)
		return 0;
	return odp_product_ns(&h->machine, s->block[h->layer].shared_weights, rows) +
	       different * odp_product_ns(&h->machine, s->model.expert_weights, rows * s->model.top_k / different);
}

static double head_ns(const struct odp_sim *s, double rows)
{
	return is_paced(s) ? s->cluster.shadow_head_ns :
			     odp_product_ns(&s->shadow.machine, s->model.head_weights, rows);
}

static void enter(struct odp_sim *s, enum sim_shadow_state state, double ns)
{
	struct sim_shadow *h = &s->shadow;

	h->state = state;
	h->begin_ns = odp_clock_ns();
	odp_at(s, h->begin_ns + (uint64_t)llround(ns), EV_SHADOW, 0, ++h->stamp, NULL);
}

/* ---- A run ---- */

/* The layer needs rows of main that are on their way: those of the newest STEP, for rows ahead of it. */
static bool waits(const struct odp_sim *s)
{
	const struct sim_shadow *h = &s->shadow;

	if (s->block[h->layer].state_bytes <= 0)
		return false;
	for (size_t i = 0; i < h->n_rows; i++) {
		const struct sim_shadow_row *r = &h->row[i];
		const struct sim_shadow_text *q = &h->text[r->text];

		if (!r->is_void && !q->drafting && r->position >= q->stepped && q->have[h->layer] < q->due_end)
			return true;
	}
	return false;
}

static void begin_layer(struct odp_sim *s)
{
	struct sim_shadow *h = &s->shadow;

	if (waits(s)) {
		h->state = SHADOW_WAITS;
		h->stamp++;
		return;
	}
	enter(s, SHADOW_ROUTES, route_ns(s));
}

static void end_run(struct odp_sim *s)
{
	s->shadow.state = SHADOW_IDLE;
	s->shadow.stamp++;
	s->shadow.n_rows = 0;
	choose_run(s);
}

static void publish(struct odp_sim *s)
{
	const struct odp_routes *r = s->work->routes;
	struct sim_shadow *h = &s->shadow;
	struct sim_message *m =
		odp_message(s, MSG_PREDICT, SHADOW, MAIN, SMALL_BYTES, h->n_rows * sizeof(struct sim_predicted));
	struct sim_predicted *p;

	if (m == NULL)
		return;
	p = m->list;
	m->m = h->m;
	for (size_t i = 0; i < h->n_rows; i++) {
		const struct sim_shadow_row *row = &h->row[i];
		struct sim_shadow_text *q = &h->text[row->text];

		if (row->is_void)
			continue;
		*p = (struct sim_predicted){ .text = row->text,
					     .position = row->position,
					     .token = *token_of(q, row->position),
					     .margin = q->margin[row->position % SHADOW_RING] };
		r->predict(r->arg, row->text, row->position, p->token, h->m, &p->view);
		m->bytes += PREDICT_ROW_BYTES + PREDICT_EXPERT_BYTES * p->view.n;
		p++;
		m->n++;
	}
	s->f->small_bytes += (uint64_t)m->bytes;
	odp_send(s, m);
}

static void end_layer(struct odp_sim *s)
{
	struct sim_shadow *h = &s->shadow;

	h->m += s->block[h->layer].moe;
	if (++h->layer == s->model.n_layers)
		end_run(s);
	else
		begin_layer(s);
}

static void routed(struct odp_sim *s)
{
	struct sim_shadow *h = &s->shadow;
	const bool moe = s->block[h->layer].moe;
	const uint64_t now = odp_clock_ns();
	const double rest = rest_ns(s);

	odp_trace(s, SHADOW, COMPUTES, "attention, router", h->begin_ns, -1, moe ? (int64_t)h->m : -1, -1);
	h->state = SHADOW_RESTS;
	h->begin_ns = now;
	if (rest > 0)
		enter(s, SHADOW_RESTS, rest);
	if (moe)
		publish(s);
	if (rest <= 0)
		end_layer(s);
}

void odp_shadow_event(struct odp_sim *s, const struct sim_event *e)
{
	struct sim_shadow *h = &s->shadow;

	if (e->stamp != h->stamp)
		return;
	s->node[SHADOW].busy.compute_ns += odp_clock_ns() - h->begin_ns;
	if (h->state == SHADOW_HEAD) {
		odp_trace(s, SHADOW, COMPUTES, "head", h->begin_ns, -1, -1, -1);
		begin_layer(s);
	} else if (h->state == SHADOW_ROUTES) {
		routed(s);
	} else if (h->state == SHADOW_RESTS) {
		odp_trace(s, SHADOW, COMPUTES, "experts", h->begin_ns, -1, h->m, -1);
		end_layer(s);
	}
}

/* ---- The next run ---- */

static void add_row(struct sim_shadow *h, uint32_t text, uint32_t position)
{
	h->row[h->n_rows++] = (struct sim_shadow_row){ .text = text, .position = position };
}

/* Rows of the newest STEPs, of all texts that are ready. */
static void plan_ordered(struct odp_sim *s)
{
	struct sim_shadow *h = &s->shadow;

	for (uint32_t i = 0; i < s->work->n_texts; i++) {
		struct sim_shadow_text *q = &h->text[i];

		if (!q->open || !q->ready || q->next >= q->stepped || q->stepped - q->next > s->decode_rows - h->n_rows)
			continue;
		while (q->next < q->stepped)
			add_row(h, i, q->next++);
	}
}

/* A row ahead of each. */
static void plan_ahead(struct odp_sim *s)
{
	struct sim_shadow *h = &s->shadow;

	for (uint32_t i = 0; s->o.early && s->work->routes->guess != NULL && i < s->work->n_texts; i++) {
		struct sim_shadow_text *q = &h->text[i];

		if (q->open && q->ready && q->next < q->limit && h->n_rows < s->decode_rows)
			add_row(h, i, q->next++);
	}
}

static void choose_run(struct odp_sim *s)
{
	struct sim_shadow *h = &s->shadow;
	double drawn = 0;

	h->n_rows = 0;
	plan_ordered(s);
	if (h->n_rows == 0)
		plan_ahead(s);
	if (h->n_rows == 0)
		return;
	for (size_t i = 0; i < h->n_rows; i++) {
		if (h->row[i].position < h->text[h->row[i].text].known)
			continue;
		draw_token(s, h->row[i].text);
		drawn++;
	}
	h->layer = h->m = 0;
	if (drawn > 0)
		enter(s, SHADOW_HEAD, head_ns(s, drawn));
	else
		begin_layer(s);
}

/* ---- Messages ---- */

/* Rows of the run at these positions have no effect any more; a run of such rows alone is given up. */
static void void_rows(struct odp_sim *s, uint32_t text, uint32_t from, uint32_t to)
{
	struct sim_shadow *h = &s->shadow;
	bool all = h->state != SHADOW_IDLE;

	for (size_t i = 0; i < h->n_rows; i++) {
		struct sim_shadow_row *r = &h->row[i];

		if (r->text == text && r->position >= from && r->position < to)
			r->is_void = true;
		all = all && r->is_void;
	}
	if (!all)
		return;
	s->node[SHADOW].busy.compute_ns += h->state == SHADOW_WAITS ? 0 : odp_clock_ns() - h->begin_ns;
	h->state = SHADOW_IDLE;
	h->stamp++;
	h->n_rows = 0;
}

/* Asks for the rows of the prompt at the next layer that has some. */
static void ask(struct odp_sim *s, uint32_t text)
{
	struct sim_shadow_text *q = &s->shadow.text[text];
	struct sim_message *m;

	for (; q->asked_layer < s->model.n_layers; q->asked_layer++, q->asked = 0)
		if (s->block[q->asked_layer].state_bytes > 0 && q->asked < s->work->prompt_tokens)
			break;
	q->ready = q->asked_layer == s->model.n_layers || s->o.align_kv == 0;
	if (q->ready)
		return;
	m = odp_message(s, MSG_STATE_REQUEST, SHADOW, MAIN, SMALL_BYTES, 0);
	if (m == NULL)
		return;
	m->text = text;
	m->layer = q->asked_layer;
	m->begin = q->asked;
	odp_send(s, m);
}

void odp_shadow_answer(struct odp_sim *s, const struct sim_message *asked)
{
	const double each = s->block[asked->layer].state_bytes;
	const uint32_t left = s->work->prompt_tokens - asked->begin,
		       most = each < ANSWER_BYTES ? (uint32_t)(ANSWER_BYTES / each) : 1, n = left < most ? left : most;
	struct sim_message *m =
		odp_message(s, MSG_STATE, MAIN, SHADOW, n * each + SMALL_BYTES, sizeof(struct sim_step_row));

	if (m == NULL)
		return;
	m->layer = asked->layer;
	m->n = 1;
	*(struct sim_step_row *)m->list =
		(struct sim_step_row){ .text = asked->text, .position = asked->begin + n, .asked = true };
	s->f->state_bytes += (uint64_t)llround(n * each);
	odp_send(s, m);
}

static void open_text(struct odp_sim *s, uint32_t text, uint32_t position)
{
	struct sim_shadow_text *q = &s->shadow.text[text];

	q->open = true;
	q->known = q->right = q->next = q->stepped = q->due_end = position;
	ask(s, text);
}

/* The shadow has assumed the token, or main leaves it to the shadow. */
static bool agrees(struct sim_shadow_text *q, uint32_t position, int32_t token)
{
	return token < 0 || token == *token_of(q, position);
}

/* The rows of a text in a STEP. */
static void step_text(struct odp_sim *s, const struct sim_step_row *row)
{
	struct sim_shadow_text *q = &s->shadow.text[row->text];
	const uint32_t begin = row->position, end = begin + row->rows;
	uint32_t same = begin;

	if (!q->open)
		open_text(s, row->text, begin);
	/* Main's token is right whatever was before it. */
	if (row->token >= 0 && q->right < begin)
		q->right = begin;
	/* Rows with other tokens, and what follows them, are void. */
	while (same < end && same < q->known && agrees(q, same, row[same - begin].token))
		same++;
	if (same < end) {
		q->known = q->known < same ? q->known : same;
		q->right = q->right < same ? q->right : same;
	}
	for (uint32_t at = begin; at < end; at++)
		if (row[at - begin].token >= 0 && (at >= same || q->right == at)) /* else the shadow draws it */
			set_token(s, row->text, at, row[at - begin].token, 0);
	void_rows(s, row->text, 0, begin); /* main has overtaken them */
	if (same < end)
		void_rows(s, row->text, same, UINT32_MAX);
	if (q->next < begin)
		q->next = begin;
	if (same < end && q->next > same)
		q->next = same;
	q->stepped = end;
	q->limit = end + row->ahead;
	q->drafting = row->ahead > 1;
	if (row->due)
		q->due_end = end;
}

static void on_state(struct odp_sim *s, const struct sim_message *m)
{
	const struct sim_step_row *row = m->list;

	for (size_t i = 0; i < m->n; i++) {
		struct sim_shadow_text *q = &s->shadow.text[row[i].text];

		if (row[i].asked) {
			q->asked = row[i].position;
			if (q->open)
				ask(s, row[i].text);
		} else if (q->have[m->layer] < row[i].position) {
			q->have[m->layer] = row[i].position;
		}
	}
}

static void truncate_text(struct odp_sim *s, uint32_t text, uint32_t length)
{
	struct sim_shadow_text *q = &s->shadow.text[text];

	void_rows(s, text, length, UINT32_MAX);
	for (uint32_t l = 0; l < s->model.n_layers; l++)
		if (q->have[l] > length)
			q->have[l] = length;
	q->due_end = q->due_end < length ? q->due_end : length;
	q->next = q->next < length ? q->next : length;
	q->stepped = q->stepped < length ? q->stepped : length;
	q->limit = q->limit < length ? q->limit : length;
	q->known = q->known < length ? q->known : length;
	q->right = q->right < length ? q->right : length;
}

void odp_shadow_receive(struct odp_sim *s, struct sim_message *m)
{
	const struct sim_step_row *row = m->list;
	struct sim_shadow *h = &s->shadow;

	if (h->text == NULL) /* the run is over */
		return;
	if (m->kind == MSG_STEP)
		for (size_t i = 0; i < m->n; i += row[i].rows)
			step_text(s, &row[i]);
	else if (m->kind == MSG_STATE)
		on_state(s, m);
	else if (m->kind == MSG_TRUNCATE)
		truncate_text(s, m->text, m->end);
	else if (m->kind == MSG_CLOSE_TEXT) {
		void_rows(s, m->text, 0, UINT32_MAX);
		h->text[m->text].open = false;
	}
	if (h->state == SHADOW_IDLE)
		choose_run(s);
	else if (h->state == SHADOW_WAITS)
		begin_layer(s);
}
