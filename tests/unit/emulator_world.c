#include "tests/unit/emulator_world.h"

#include "shadow-node/emulator_messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- The simulated main, the channel, and the judge ---- */

static struct message *push(struct world *w)
{
	struct message *m = &w->queue[(w->head + w->n_queued++) % QUEUE];

	assert_true(w->n_queued <= QUEUE);
	memset(m, 0, offsetof(struct message, k));
	return m;
}

static struct sequence *by_id(struct world *w, uint64_t id)
{
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		if (w->seq[i].open && w->seq[i].id == id)
			return &w->seq[i];
	return NULL;
}

size_t row_bytes(const struct world *w)
{
	return od_seq_state_row_bytes(w->judge_state, 0, 0); /* all are alike */
}

/* The newest message, when it has rows of the layer and the step, and room for others: then they may travel
 * together. */
static struct message *newest_state(struct world *w, uint32_t layer, uint64_t step)
{
	struct message *m = &w->queue[(w->head + w->n_queued + QUEUE - 1) % QUEUE];

	if (w->n_queued == 0 || step == 0 || m->kind != OD__HEADER__BODY_STATE || m->layer != layer ||
	    m->step != step || m->n_ranges == STEP_ROWS || chance(30))
		return NULL;
	return m;
}

void push_state(struct world *w, const struct sequence *s, uint32_t layer, uint32_t begin, uint32_t n, uint64_t step)
{
	struct message *m = newest_state(w, layer, step);

	if (m == NULL)
		m = push(w);
	m->kind = OD__HEADER__BODY_STATE;
	m->layer = layer;
	m->step = step;
	m->range[m->n_ranges].sequence = s->id;
	m->range[m->n_ranges].begin = begin;
	m->range[m->n_ranges++].n = n;
	get_rows(w->main_pass.device, s->state, layer, 0, begin, n, m->k + m->n * row_bytes(w));
	get_rows(w->main_pass.device, s->state, layer, 1, begin, n, m->v + m->n * row_bytes(w));
	m->n += n;
}

/* Main answers STATE_REQUEST at once; the answer goes behind what is on its way already. */
static void on_ask(void *arg, uint64_t id, const struct ods_range *r)
{
	struct world *w = arg;
	struct sequence *s = by_id(w, id);

	w->asks++;
	assert_true(r->layer < LAYERS && r->n > 0 && r->begin + r->n <= CTX);
	if (s == NULL || r->begin + r->n > od_seq_state_length(s->state) || (w->lose_asks && chance(w->lose)))
		return;
	push_state(w, s, r->layer, r->begin, r->n, 0);
}

static void on_ask_tokens(void *arg, uint64_t id, uint32_t begin, uint32_t n)
{
	(void)arg;
	(void)id;
	(void)begin;
	(void)n;
	fail_msg("nobody needs tokens here");
}

/* The routes of the last of n rows that stand on main's keys and values below base, with the shadow's weights. */
static void judge_routes(struct world *w, const struct sequence *s, uint32_t base, const int32_t *tokens, size_t n,
			 uint16_t route[LAYERS][TOP_K])
{
	uint16_t all[LAYERS * STEP_ROWS * TOP_K];
	struct od_row rows[STEP_ROWS];

	copy_rows(w->judge_pass.device, w->judge_state, w->main_pass.device, s->state, LAYERS, 0, base);
	od_seq_state_set_length(w->judge_state, base);
	for (size_t i = 0; i < n; i++)
		rows[i] = (struct od_row){ w->judge_state, base + (uint32_t)i, tokens[i] };
	run_pass(&w->judge_pass, rows, n, all);
	for (uint32_t l = 0; l < LAYERS; l++)
		memcpy(route[l], all + (l * n + n - 1) * TOP_K, sizeof(route[l]));
}

/* One row of main's over the judge's own. */
static void give_judge(struct world *w, const struct sequence *s, uint32_t layer, uint32_t position)
{
	for (uint32_t stream = 0; stream < 2; stream++) {
		char row[64];

		get_rows(w->main_pass.device, s->state, layer, stream, position, 1, row);
		put_rows(w->judge_pass.device, w->judge_state, layer, stream, position, 1, row);
	}
}

/* The first row of a step was run ahead, the second later: by then each layer of the first may be main's or not. */
static bool is_route_behind_guess(struct world *w, const struct sequence *s, uint32_t base, const int32_t *tokens,
				  uint32_t m, const uint16_t *expert)
{
	uint16_t route[LAYERS][TOP_K];

	for (uint32_t mask = 0; mask < 1u << LAYERS; mask++) {
		struct od_row row = { w->judge_state, base + 1, tokens[1] };

		judge_routes(w, s, base, tokens, 1, route);
		for (uint32_t l = 0; l < LAYERS; l++)
			if (mask >> l & 1)
				give_judge(w, s, l, base);
		od_seq_state_set_length(w->judge_state, base + 1);
		run_pass(&w->judge_pass, &row, 1, route[0]);
		if (memcmp(expert, route[m], sizeof(route[m])) == 0)
			return true;
	}
	return false;
}

/* A guess becomes a prediction of the step if main chooses the same token. */
static void take_guesses(struct world *w, struct sent_step *t)
{
	for (size_t r = 0; r < t->n_rows; r++) {
		const struct sequence *s = &w->seq[t->row[r].seq];

		for (uint32_t l = 0; l < LAYERS; l++)
			t->predicted[r][l] |= s->guess.known[l] && s->guess.position == t->row[r].position &&
					      s->guess.token == t->row[r].token;
	}
}

static void note_guess(struct world *w, struct sequence *s, const struct od_prediction *p)
{
	if (s->guess.position != p->position || s->guess.token != p->token)
		memset(&s->guess, 0, sizeof(s->guess));
	s->guess.position = p->position;
	s->guess.token = p->token;
	s->guess.known[p->m] = true;
	if (w->step > 0) /* main may be there already, and the shadow not know it yet */
		take_guesses(w, &w->sent[w->step % MAX_STEPS]);
}

/* The row of the sequence's newest STEP there that stands at the position; n_rows: none does, for it is ahead. first:
 * of the sequence's rows. */
static size_t find_row(const struct world *w, const struct sequence *s, uint32_t position, size_t *first)
{
	const struct sent_step *t = &w->sent[s->told % MAX_STEPS];
	size_t end;

	assert_true(s->told > 0);
	for (*first = 0; w->seq[t->row[*first].seq].id != s->id; (*first)++)
		assert_true(*first < t->n_rows);
	for (end = *first; end < t->n_rows && w->seq[t->row[end].seq].id == s->id; end++)
		;
	assert_true(position >= t->row[*first].position); /* never an old one */
	if (position < t->row[*first].position + (end - *first))
		return *first + position - t->row[*first].position;
	assert_int_equal(position, t->row[end - 1].position + 1); /* one at most */
	return t->n_rows;
}

static void judge_prediction(struct world *w, const struct sequence *s, const struct od_prediction *p, uint32_t base,
			     const int32_t *tokens, size_t n)
{
	uint16_t route[LAYERS][TOP_K];

	judge_routes(w, s, base, tokens, n, route);
	w->checked++;
	if (n == 2 && s->guess.position == base && s->guess.token == tokens[0] && s->guess.known[0])
		assert_true(is_route_behind_guess(w, s, base, tokens, p->m, p->expert));
	else
		assert_memory_equal(p->expert, route[p->m], sizeof(route[p->m]));
}

static void on_prediction(struct world *w, const struct od_prediction *p)
{
	struct sequence *s = by_id(w, p->sequence);
	struct sent_step *t;
	int32_t tokens[STEP_ROWS];
	size_t first, row, n = 0;

	assert_non_null(s);
	assert_true(p->m < LAYERS && p->n == od_prediction_candidates(&config));
	t = &w->sent[s->told % MAX_STEPS];
	row = find_row(w, s, p->position, &first);
	if (row < t->n_rows) {
		assert_int_equal(p->token, t->row[row].token);
		t->predicted[row][p->m] = true;
		memcpy(t->said[p->m][row], p->expert, sizeof(t->said[0][0]));
		for (size_t r = first; r <= row; r++)
			tokens[n++] = t->row[r].token;
	} else {
		w->guesses++;
		tokens[n++] = p->token;
		note_guess(w, s, p);
	}
	if (!w->judge || s->told <= s->silent)
		return;
	judge_prediction(w, s, p, p->position + 1 - (uint32_t)n, tokens, n);
	if (row < t->n_rows && w->same_weights) /* full recall: OD-MoE Eq. 2 */
		assert_memory_equal(p->expert, t->route[p->m][row], TOP_K * sizeof(*p->expert));
}

/* All rows of a layer at once. */
static void on_predict(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	struct world *w = arg;

	assert_true(n > 0 && n <= STEP_ROWS);
	w->predicts++;
	if (w->judge_run != NULL) {
		w->judge_run(w, m, p, n);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(p[i].m, m);
		on_prediction(w, &p[i]);
	}
}

/* ---- Main's side ---- */

static int32_t choose_token(struct world *w, size_t row)
{
	const float *logits = logits_of(&w->main_pass, row);
	uint32_t best = 0;

	for (uint32_t i = 1; i < VOCAB; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)(chance(70) ? best : draw(VOCAB)); /* sampling now and then says something else */
}

void prefill(struct world *w, struct sequence *s)
{
	uint32_t n = 1 + draw(MAX_ROWS), begin = od_seq_state_length(s->state);
	struct od_row rows[MAX_ROWS];

	if (begin + n > CTX)
		return;
	for (uint32_t i = 0; i < n; i++) {
		rows[i] = (struct od_row){ s->state, begin + i, (int32_t)draw(VOCAB) };
		s->text[begin + i] = (uint8_t)rows[i].token;
	}
	s->writes++;
	run_pass(&w->main_pass, rows, n, NULL);
	s->next = choose_token(w, n - 1);
	end_pass(&w->main_pass);
}

void open_sequence(struct world *w, struct sequence *s)
{
	s->open = true;
	s->stepped = false;
	s->told = s->silent = 0;
	s->went_back = false;
	memset(&s->guess, 0, sizeof(s->guess));
	s->id = w->next_id++;
	od_seq_state_set_length(s->state, 0);
	prefill(w, s);
	if (chance(50))
		prefill(w, s);
}

void put_row(struct sent_step *t, uint32_t seq, uint32_t position, int32_t token)
{
	t->row[t->n_rows].ahead = t->n_rows == 0 || t->row[t->n_rows - 1].seq != seq; /* one row */
	t->row[t->n_rows].seq = seq;
	t->row[t->n_rows].position = position;
	t->row[t->n_rows].token = token;
	t->n_rows++;
}

static void choose_rows(struct world *w, struct sent_step *t, bool one_row)
{
	for (uint32_t i = 0; i < w->n_seqs; i++) {
		struct sequence *s = &w->seq[i];
		uint32_t n = one_row || chance(80) ? 1 : 2, length = od_seq_state_length(s->state);

		if (!s->open || t->n_rows + n > STEP_ROWS || length + n > CTX || (!one_row && chance(10)))
			continue;
		put_row(t, i, length, s->next);
		if (n == 2)
			put_row(t, i, length + 1, (int32_t)draw(VOCAB));
	}
}

static void push_step(struct world *w, const struct sent_step *t)
{
	struct message *m = push(w);

	m->kind = OD__HEADER__BODY_STEP;
	m->step = t->number;
	m->due = w->due;
	m->n_rows = t->n_rows;
	for (size_t r = 0; r < t->n_rows; r++) {
		m->rows[r] = (Od__StepRow)OD__STEP_ROW__INIT;
		m->rows[r].sequence = w->seq[t->row[r].seq].id;
		m->rows[r].position = t->row[r].position;
		m->rows[r].token = t->row[r].token;
		m->rows[r].state_rows = 1;
		m->rows[r].ahead = t->row[r].ahead;
		for (size_t i = r; i-- > 0 && t->row[i].seq == t->row[r].seq;)
			m->rows[i].state_rows++;
		w->seq[t->row[r].seq].stepped = true;
		w->seq[t->row[r].seq].went_back = false;
	}
}

struct sent_step *next_step(struct world *w)
{
	return &w->sent[(w->step + 1) % MAX_STEPS];
}

void run_step(struct world *w, struct sent_step *t)
{
	uint16_t route[LAYERS * STEP_ROWS * TOP_K];
	struct od_row rows[STEP_ROWS];

	t->number = ++w->step;
	assert_true(w->step < MAX_STEPS);
	take_guesses(w, t);
	w->due = w->own_rows ? chance(50) : true;
	push_step(w, t);
	for (size_t r = 0; r < t->n_rows; r++) {
		struct sequence *s = &w->seq[t->row[r].seq];

		rows[r] = (struct od_row){ s->state, t->row[r].position, t->row[r].token };
		s->text[t->row[r].position] = (uint8_t)t->row[r].token;
		memcpy(t->text[t->row[r].seq], s->text, CTX);
		t->writes[t->row[r].seq] = ++s->writes;
	}
	run_pass(&w->main_pass, rows, t->n_rows, route);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (size_t r = 0; r < t->n_rows; r++)
			memcpy(t->route[l][r], route + (l * t->n_rows + r) * TOP_K, sizeof(t->route[l][r]));
	for (size_t r = 0; r < t->n_rows; r++)
		w->seq[t->row[r].seq].next = t->choice[r] = choose_token(w, r);
	end_pass(&w->main_pass);
	w->layer = 0;
}

bool begin_step(struct world *w, bool one_row)
{
	struct sent_step *t = next_step(w);

	choose_rows(w, t, one_row);
	if (t->n_rows == 0)
		return false;
	run_step(w, t);
	return true;
}

void keep_rows(struct world *w, struct sequence *s, uint32_t n, bool tell)
{
	const struct sent_step *t = &w->sent[w->step % MAX_STEPS];
	struct message *m;
	size_t first = 0;

	while (&w->seq[t->row[first].seq] != s)
		first++;
	s->next = t->choice[first + n - 1];
	od_seq_state_set_length(s->state, t->row[first].position + n);
	if (!tell)
		return;
	m = push(w);
	m->kind = OD__HEADER__BODY_SEQ_TRUNCATE;
	m->sequence = s->id;
	m->n = od_seq_state_length(s->state);
}

bool send_layer(struct world *w)
{
	const struct sent_step *t = &w->sent[w->step % MAX_STEPS];

	if (w->layer == LAYERS)
		return false;
	for (size_t r = 0; r < t->n_rows && w->due; r++)
		push_state(w, &w->seq[t->row[r].seq], w->layer, t->row[r].position, 1, w->step);
	w->layer++;
	return true;
}

/* ---- The channel ---- */

static void fill_step(const struct message *m, Od__Step *step, Od__StepRow *rows, Od__StepRow **row)
{
	step->step = m->step;
	step->n_rows = m->n_rows;
	step->rows = row;
	for (size_t i = 0; i < m->n_rows; i++) {
		rows[i] = m->rows[i];
		if (!m->due)
			rows[i].state_rows = 0;
		row[i] = &rows[i];
	}
}

static void fill_state(const struct world *w, const struct message *m, Od__State *body, Od__StateRange **list,
		       struct od_msg *msg)
{
	const char *bytes[2] = { m->k, m->v };

	for (size_t i = 0; i < m->n_ranges; i++) {
		od__state_range__init(list[i]);
		list[i]->sequence = m->range[i].sequence;
		list[i]->begin = m->range[i].begin;
		list[i]->n = m->range[i].n;
	}
	body->layer = m->layer;
	body->ranges = list;
	body->n_ranges = m->n_ranges;
	body->step = m->step;
	msg->n_frames = 2;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(zmq_msg_init_size(&msg->frame[i], m->n * row_bytes(w)), 0);
		memcpy(zmq_msg_data(&msg->frame[i]), bytes[i], m->n * row_bytes(w));
	}
}

int hand_over(struct world *w, const struct message *m)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Step step = OD__STEP__INIT;
	Od__State body = OD__STATE__INIT;
	Od__StateRange range[STEP_ROWS], *list[STEP_ROWS];
	Od__SeqTruncate truncate = OD__SEQ_TRUNCATE__INIT;
	Od__SeqClose close = OD__SEQ_CLOSE__INIT;
	Od__StepRow rows[STEP_ROWS], *row[STEP_ROWS];
	struct od_msg msg = { .header = &header };
	struct od_err err;
	int rc;

	header.body_case = m->kind;
	if (m->kind == OD__HEADER__BODY_STEP) {
		header.step = &step;
		fill_step(m, &step, rows, row);
		if (m->step > w->delivered)
			w->delivered = m->step;
		for (size_t i = 0; i < m->n_rows; i++)
			if (by_id(w, m->rows[i].sequence) != NULL && m->step == w->delivered)
				by_id(w, m->rows[i].sequence)->told = m->step;
	} else if (m->kind == OD__HEADER__BODY_STATE) {
		header.state = &body;
		for (size_t i = 0; i < STEP_ROWS; i++)
			list[i] = &range[i];
		fill_state(w, m, &body, list, &msg);
	} else if (m->kind == OD__HEADER__BODY_SEQ_TRUNCATE) {
		header.seq_truncate = &truncate;
		truncate.sequence = m->sequence;
		truncate.length = m->n;
	} else {
		header.seq_close = &close;
		close.sequence = m->sequence;
	}
	rc = ods_emulator_message(w->emulator, &msg, w->now, &err);
	for (size_t i = 0; i < msg.n_frames; i++)
		zmq_msg_close(&msg.frame[i]);
	return rc;
}

bool deliver(struct world *w)
{
	struct message *m = &w->queue[w->head];

	if (w->n_queued == 0)
		return false;
	if (m->kind != OD__HEADER__BODY_STATE || !chance(w->lose)) {
		bool state = m->kind == OD__HEADER__BODY_STATE;
		int rc = hand_over(w, m);

		/* Asked for too long ago, or there is no memory for it. */
		assert_true(rc == OD_OK || (state && (rc == OD_ERR_PROTOCOL || rc == OD_ERR_BUSY)));
		if (chance(w->twice)) {
			rc = hand_over(w, m);
			assert_true(rc == OD_ERR_PROTOCOL || (m->kind != OD__HEADER__BODY_STEP && rc == OD_OK));
		}
	}
	w->head = (w->head + 1) % QUEUE;
	w->n_queued--;
	return true;
}

bool work(struct world *w)
{
	struct od_err err;
	bool did;

	if (ods_emulator_work(w->emulator, w->now, &did, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return did;
}

static bool any_went_back(const struct world *w)
{
	for (uint32_t i = 0; i < w->n_seqs; i++)
		if (w->seq[i].open && w->seq[i].went_back)
			return true;
	return false;
}

void settle(struct world *w)
{
	unsigned waits = 0;

	for (int i = 0; i < 100000; i++) {
		bool did = work(w);

		if (deliver(w) || did)
			continue;
		/* Main may have gone back behind what is asked for: then it is asked for without end. */
		if (ods_emulator_deadline(w->emulator) == UINT64_MAX || (any_went_back(w) && ++waits > 30))
			return;
		w->now = ods_emulator_deadline(w->emulator);
	}
	fail_msg("the emulator never comes to rest");
}

void disturb(struct world *w)
{
	struct sequence *s = &w->seq[draw(w->n_seqs)];
	struct message m = { .kind = OD__HEADER__BODY_SEQ_CLOSE };

	while (send_layer(w))
		;
	while (deliver(w))
		;
	if (!s->open) {
		open_sequence(w, s);
		return;
	}
	if (s->went_back)
		return;
	m.sequence = s->id;
	if (chance(50)) {
		prefill(w, s);
		return;
	}
	if (chance(50)) {
		s->open = false;
	} else {
		m.kind = OD__HEADER__BODY_SEQ_TRUNCATE;
		m.n = 1 + draw(od_seq_state_length(s->state));
		od_seq_state_set_length(s->state, m.n);
		s->next = (int32_t)draw(VOCAB);
		if (chance(30)) { /* main says nothing: the next STEP must be enough */
			s->went_back = true;
			s->silent = w->step;
			return;
		}
	}
	/* A sequence that never had a step is not known there. */
	assert_true(hand_over(w, &m) == (s->stepped ? OD_OK : OD_ERR_PROTOCOL));
}

void open_paced_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed,
		      uint32_t n_seqs, uint64_t layer_ns)
{
	struct ods_sink sink = { .arg = w, .predict = on_predict, .ask = on_ask, .ask_tokens = on_ask_tokens };
	struct ods_emulator_opts o;
	struct od_err err;

	memset(w, 0, sizeof(*w));
	w->n_seqs = n_seqs;
	w->profile = profile;
	w->same_weights = same_weights;
	w->judge = true;
	w->next_id = 7;
	w->layer = LAYERS;
	make_model(&w->main_model, 1);
	if (same_weights)
		make_model(&w->shadow_model, 1);
	else
		make_rough_copy(&w->shadow_model, 1);
	open_pass(&w->main_pass, &w->main_model, profile, CTX, MAX_SEQS);
	open_pass(&w->judge_pass, &w->shadow_model, profile, CTX, 1);
	w->judge_state = make_state(&w->judge_pass);
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		w->seq[i].state = make_state(&w->main_pass);
	w->queue = calloc(QUEUE, sizeof(*w->queue));
	w->sent = calloc(MAX_STEPS, sizeof(*w->sent));
	assert_true(w->queue != NULL && w->sent != NULL && row_bytes(w) <= 64);
	o = (struct ods_emulator_opts){ .forward = pass_opts(&w->shadow_model, profile),
					.experts = w->shadow_model.expert,
					.ctx_tokens = CTX,
					.max_sequences = n_seqs,
					.early = early,
					.layer_ns = layer_ns,
					.counters = w->counters };
	o.forward.max_rows = STEP_ROWS;
	assert_int_equal(ods_emulator_new(&w->emulator, &o, &sink, &err), OD_OK);
	seed = from_seed;
}

void open_large_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed,
		      uint32_t n_seqs)
{
	open_paced_world(w, profile, same_weights, early, from_seed, n_seqs, 0);
}

void open_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed)
{
	open_large_world(w, profile, same_weights, early, from_seed, 3);
}

void close_world(struct world *w)
{
	ods_emulator_free(w->emulator);
	od_seq_state_free(w->judge_state);
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		od_seq_state_free(w->seq[i].state);
	close_pass(&w->main_pass);
	close_pass(&w->judge_pass);
	free_model(&w->main_model);
	free_model(&w->shadow_model);
	free(w->queue);
	free(w->sent);
}

void assert_predicted(const struct world *w, uint64_t step)
{
	const struct sent_step *t = &w->sent[step % MAX_STEPS];

	for (size_t r = 0; r < t->n_rows; r++)
		for (uint32_t l = 0; l < LAYERS; l++)
			assert_true(t->predicted[r][l]);
	assert_true(t->n_rows > 0);
}
