#include "tests/unit/emulator_mirror.h"

#include <string.h>

#include "shadow-node/emulator_internal.h"

uint64_t hash_text(const uint8_t *text, uint32_t n)
{
	uint64_t x = 14695981039346656037ull;

	for (uint32_t i = 0; i < n; i++)
		x = (x ^ (text[i] + 1u)) * 1099511628211ull;
	return x | 1;
}

static uint32_t seq_of(const struct world *w, uint64_t id)
{
	uint32_t i = 0;

	while (!w->seq[i].open || w->seq[i].id != id)
		assert_true(++i < MAX_SEQS);
	return i;
}

static struct ods_sequence *shadow_of(const struct world *w, uint64_t id)
{
	for (size_t i = 0; i < w->emulator->n_sequences; i++)
		if (w->emulator->sequence[i]->id == id)
			return w->emulator->sequence[i];
	return NULL;
}

/* The sequence's rows in a step, and how far the shadow may run ahead of them. */
static void find_rows(const struct sent_step *t, uint32_t seq, uint32_t *begin, uint32_t *end, uint32_t *limit)
{
	size_t first = 0, n = 1;

	while (t->row[first].seq != seq)
		assert_true(++first < t->n_rows);
	while (first + n < t->n_rows && t->row[first + n].seq == seq)
		n++;
	*begin = t->row[first].position;
	*end = *begin + (uint32_t)n;
	*limit = *end + t->row[first].ahead < CTX ? *end + t->row[first].ahead : CTX;
}

/* ---- Rows of the shadow ---- */

/* Main's rows there are still those of the newest STEP that the shadow knows. */
static bool comparable(const struct world *w, uint32_t seq)
{
	const struct sequence *s = &w->seq[seq];

	return s->open && s->told > 0 && s->writes == w->sent[s->told % MAX_STEPS].writes[seq];
}

static void check_rows_of(const struct mirror *m, uint32_t seq, const struct ods_sequence *q)
{
	const struct world *w = m->w;
	uint32_t begin, end, limit;

	find_rows(&w->sent[w->seq[seq].told % MAX_STEPS], seq, &begin, &end, &limit);
	for (uint32_t l = 0; l < LAYERS; l++) {
		uint32_t n = CTX;

		while (n > 0 && !ods_align_is_true(q->align, l, n - 1))
			n--;
		assert_true(n <= end);
		for (uint32_t stream = 0; stream < 2; stream++) {
			char of_main[CTX * ROW_BYTES], of_shadow[CTX * ROW_BYTES];

			get_rows(w->main_pass.device, w->seq[seq].state, l, stream, 0, n, of_main);
			get_rows(w->shadow_model.device, q->state, l, stream, 0, n, of_shadow);
			for (uint32_t p = 0; p < n; p++)
				if (ods_align_is_true(q->align, l, p))
					assert_memory_equal(of_shadow + p * row_bytes(w), of_main + p * row_bytes(w),
							    row_bytes(w));
		}
	}
}

void check_true_rows(const struct mirror *m)
{
	for (uint32_t i = 0; i < MAX_SEQS; i++) {
		const struct ods_sequence *q = m->w->seq[i].open ? shadow_of(m->w, m->w->seq[i].id) : NULL;

		if (q != NULL && comparable(m->w, i))
			check_rows_of(m, i, q);
	}
}

/* The mirror takes the shadow's rows before the position, after it has seen where they come from. */
static void take_rows(struct mirror *m, uint32_t seq, const struct ods_sequence *q, uint32_t layer, uint32_t n)
{
	bool any_true = false, any_own = false;
	char rows[2][CTX * ROW_BYTES];

	for (uint32_t stream = 0; stream < 2; stream++) {
		get_rows(m->w->shadow_model.device, q->state, layer, stream, 0, n, rows[stream]);
		put_rows(m->pass.device, m->state[seq], layer, stream, 0, n, rows[stream]);
	}
	for (uint32_t p = 0; p < n; p++) {
		const bool is_true = ods_align_is_true(q->align, layer, p);
		const struct mirror_cell *at = &m->cell[seq][p];
		const bool known = at->own_text[layer] == hash_text(m->text[seq], p + 1);

		assert_true(is_true || known || m->unseen);
		any_true |= is_true;
		any_own |= !is_true;
		for (uint32_t stream = 0; stream < 2 && !is_true && known; stream++)
			assert_memory_equal(rows[stream] + p * row_bytes(m->w), at->own[layer][stream],
					    row_bytes(m->w));
	}
	m->mixed += any_true && any_own;
}

/* The row that the mirror has just computed is the shadow's own one, unless main's has come before. */
static void note_own_row(struct mirror *m, const struct mirror_row *r, const struct ods_sequence *q, uint32_t layer)
{
	struct mirror_cell *at = &m->cell[r->seq][r->position];

	at->own_text[layer] = r->text;
	for (uint32_t stream = 0; stream < 2; stream++) {
		char row[ROW_BYTES];

		get_rows(m->pass.device, m->state[r->seq], layer, stream, r->position, 1, at->own[layer][stream]);
		get_rows(m->w->shadow_model.device, q->state, layer, stream, r->position, 1, row);
		if (!ods_align_is_true(q->align, layer, r->position))
			assert_memory_equal(row, at->own[layer][stream], row_bytes(m->w));
	}
}

/* ---- Tokens ---- */

/* As main's sampler draws it: each position has its number, whatever was drawn before. */
static void choose(struct mirror *m, const struct mirror_row *r, float *logits)
{
	struct mirror_cell *at;
	struct od_sampler *s;
	float none[VOCAB] = { 0 };
	struct od_err err;

	if (r->position + 1 >= CTX)
		return;
	at = &m->cell[r->seq][r->position + 1];
	must(od_sampler_new(&s, &m->sampling, VOCAB, &err), &err);
	for (uint32_t i = m->prompt_tokens; i <= r->position && m->sampling.temperature > 0; i++)
		od_sampler_sample(s, none, NULL);
	at->choice = od_sampler_sample(s, logits, &at->margin);
	at->choice_text = r->text;
	od_sampler_free(s);
}

int32_t choice_of(const struct mirror *m, uint32_t seq, const uint8_t *text, uint32_t position)
{
	const struct mirror_cell *at = &m->cell[seq][position];

	return position < CTX && at->choice_text == hash_text(text, position) ? at->choice : -1;
}

bool is_said(const struct mirror *m, uint32_t seq, const uint8_t *text, uint32_t position)
{
	const struct mirror_cell *at = &m->cell[seq][position];

	return at->said_text == hash_text(text, position + 1) && at->said == (1u << LAYERS) - 1;
}

void unsay(struct mirror *m, uint32_t seq, uint32_t from)
{
	for (uint32_t p = from; p < CTX; p++)
		m->cell[seq][p].said = 0;
}

/* ---- What is said ---- */

/* Main's newest STEP corrects what the shadow believes. */
static void refresh_text(struct mirror *m, uint32_t seq)
{
	const struct sequence *s = &m->w->seq[seq];
	const struct sent_step *t = &m->w->sent[s->told % MAX_STEPS];
	uint32_t begin, end, limit;

	assert_true(s->told > 0);
	if (m->told[seq] == s->told)
		return;
	find_rows(t, seq, &begin, &end, &limit);
	memcpy(m->text[seq], t->text[seq], end);
	m->told[seq] = s->told;
}

/* Checks what the prediction is about; true: it is ahead of the newest STEP. */
static bool check_cell(struct mirror *m, uint32_t seq, const struct od_prediction *p)
{
	const struct mirror_cell *at = &m->cell[seq][p->position];
	uint32_t begin, end, limit;
	bool ours;

	refresh_text(m, seq);
	find_rows(&m->w->sent[m->told[seq] % MAX_STEPS], seq, &begin, &end, &limit);
	assert_true(p->position >= begin); /* never an old one */
	assert_true(p->position < limit || p->m > 0); /* a run that has begun goes on */
	ours = at->choice_text == hash_text(m->text[seq], p->position) && at->choice == p->token;
	assert_true((ours && p->margin == at->margin) || (p->position < end && p->margin == 0)); /* 0: main's token */
	if (p->position >= end) {
		assert_true(m->w->emulator->o.early);
		m->text[seq][p->position] = (uint8_t)p->token;
	}
	assert_int_equal(p->token, m->text[seq][p->position]);
	return p->position >= end;
}

static void note_said(struct mirror *m, const struct mirror_row *r, uint32_t layer)
{
	struct mirror_cell *at = &m->cell[r->seq][r->position];

	if (at->said_text != r->text)
		at->said = 0;
	assert_false(m->once && (at->said >> layer & 1) != 0);
	at->said_text = r->text;
	at->said |= 1u << layer;
}

static void begin_mirror_run(struct mirror *m, const struct od_prediction *p, size_t n)
{
	struct od_row rows[STEP_ROWS];
	struct od_err err;

	m->runs++;
	m->n_rows = n;
	for (size_t i = 0; i < n; i++) {
		const uint32_t seq = seq_of(m->w, p[i].sequence);
		const bool first = i == 0 || p[i - 1].sequence != p[i].sequence, ahead = check_cell(m, seq, &p[i]);

		/* One ahead of each sequence, and not together with rows of its STEP. */
		assert_true(first || (!ahead && p[i].position == p[i - 1].position + 1));
		m->ahead += ahead;
		m->row[i] = (struct mirror_row){ seq, p[i].position, p[i].token,
						 hash_text(m->text[seq], p[i].position + 1) };
		rows[i] = (struct od_row){ m->state[seq], p[i].position, p[i].token };
		if (first)
			od_seq_state_set_length(m->state[seq], p[i].position);
	}
	must(od_forward_begin(m->pass.forward, 1, rows, n, &err), &err);
}

/* Index in the run of a row that is said of. */
static size_t find_mirror_row(const struct mirror *m, uint32_t seq, const struct od_prediction *p)
{
	size_t i = 0;

	while (m->row[i].seq != seq || m->row[i].position != p->position)
		assert_true(++i < m->n_rows);
	assert_int_equal(m->row[i].token, p->token);
	assert_true(m->row[i].text == hash_text(m->text[seq], p->position + 1)); /* else it is void */
	return i;
}

static void judge_layer(struct mirror *m, uint32_t layer, const struct od_prediction *p, size_t n)
{
	struct od_err err;

	assert_int_equal(od_forward_layer(m->pass.forward), layer);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || p[i - 1].sequence != p[i].sequence)
			take_rows(m, seq_of(m->w, p[i].sequence), shadow_of(m->w, p[i].sequence), layer, p[i].position);
	od_forward_attention(m->pass.forward);
	must(od_forward_fetch(m->pass.forward, OD_FETCH_ROUTES, &err), &err);
	for (size_t i = 0; i < n; i++) {
		const struct mirror_row *r = &m->row[find_mirror_row(m, seq_of(m->w, p[i].sequence), &p[i])];

		assert_memory_equal(p[i].expert, od_forward_experts_of(m->pass.forward, (size_t)(r - m->row)),
				    TOP_K * sizeof(*p->expert));
		note_own_row(m, r, shadow_of(m->w, p[i].sequence), layer);
		note_said(m, r, layer);
	}
	must(od_forward_experts(m->pass.forward, m->pass.experts, &err), &err);
}

static void on_run(struct world *w, uint32_t layer, const struct od_prediction *p, size_t n)
{
	struct mirror *m = w->judge_arg;

	if (layer == 0)
		begin_mirror_run(m, p, n);
	for (size_t i = 0; i < n; i++)
		check_cell(m, seq_of(w, p[i].sequence), &p[i]);
	check_true_rows(m);
	judge_layer(m, layer, p, n);
	for (size_t i = 0; layer == LAYERS - 1 && i < m->n_rows; i++)
		choose(m, &m->row[i], logits_of(&m->pass, i));
}

void assert_all_said(struct mirror *m)
{
	const struct world *w = m->w;
	const struct sent_step *t = &w->sent[w->step % MAX_STEPS];

	for (size_t r = 0; r < t->n_rows; r++) {
		const uint32_t seq = t->row[r].seq;
		const struct ods_sequence *q = shadow_of(w, w->seq[seq].id);
		uint32_t begin, end, limit;

		find_rows(t, seq, &begin, &end, &limit);
		refresh_text(m, seq);
		assert_true(q != NULL && m->told[seq] == t->number);
		if (!w->emulator->o.early)
			limit = end;
		for (uint32_t p = begin; p < limit; p++)
			assert_true(is_said(m, seq, m->text[seq], p));
		assert_true(q->next >= limit);
	}
	assert_true(t->n_rows > 0);
}

void open_mirror(struct mirror *m, struct world *w)
{
	memset(m, 0, sizeof(*m));
	m->w = w;
	od_sampler_defaults(&m->sampling);
	open_pass(&m->pass, &w->shadow_model, w->profile, CTX, MAX_SEQS);
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		m->state[i] = make_state(&m->pass);
	w->judge_run = on_run;
	w->judge_arg = m;
	assert_true(row_bytes(w) <= ROW_BYTES);
}

void close_mirror(struct mirror *m)
{
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		od_seq_state_free(m->state[i]);
	close_pass(&m->pass);
}
