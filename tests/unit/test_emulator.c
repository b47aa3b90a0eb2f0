/* The emulator against a main that is simulated here: a forward pass of its own, a channel that loses and doubles
 * messages, and the two going on at random relative speeds. What a prediction must be is worked out from main's own
 * keys and values by a third forward pass, row by row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/model/resident.h"
#include "shadow-node/emulator.h"

#define LAYERS 3u
#define CTX 48u
#define VOCAB 40u
#define EXPERTS 6u
#define TOP_K 2u
#define MAX_SEQS 3u
#define MAX_ROWS 8u
#define MAX_STEPS 4096u
#define QUEUE 4096u

/* ---- Weights ---- */

static uint64_t seed;

static uint32_t draw(uint32_t n) /* 0 .. n-1 */
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % n;
}

static bool chance(uint32_t percent)
{
	return draw(100) < percent;
}

struct model {
	struct od_dense dense;
	struct od_layer_weights layer[LAYERS];
	struct od_expert expert[LAYERS * EXPERTS];
	void *mem[128];
	size_t n_mem;
};

static struct od_config config = {
	.n_layers = LAYERS, .hidden = 32, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .vocab = VOCAB,
	.n_experts = EXPERTS, .top_k = TOP_K, .intermediate = 16, .ctx_max = 64, .rms_eps = 1e-5f, .rope_theta = 10000,
	.bos = -1,
};

static const struct od_backend *backend(enum od_profile profile)
{
	const struct od_backend *be;
	struct od_err err;

	assert_int_equal(od_backend_cpu(&be, OD_CPU_SCALAR, profile, &err), OD_OK);
	return be;
}

static void *keep(struct model *m, size_t bytes)
{
	void *p = od_alloc(bytes);

	assert_non_null(p);
	assert_true(m->n_mem < sizeof(m->mem) / sizeof(m->mem[0]));
	m->mem[m->n_mem++] = p;
	return p;
}

static struct od_mat random_mat(struct model *m, size_t n_out, size_t n_in, float amplitude)
{
	uint16_t *data = keep(m, n_out * n_in * sizeof(*data));

	for (size_t i = 0; i < n_out * n_in; i++)
		data[i] = od_f32_bf16(amplitude * ((float)draw(2001) / 1000.0f - 1.0f));
	return (struct od_mat){ .dtype = OD_BF16, .n_out = n_out, .n_in = n_in, .data = data };
}

static float *random_norm(struct model *m)
{
	float *w = keep(m, config.hidden * sizeof(*w));

	for (uint32_t i = 0; i < config.hidden; i++)
		w[i] = 0.5f + (float)draw(1000) / 1000.0f;
	return w;
}

static void make_model(struct model *m, uint64_t from_seed)
{
	memset(m, 0, sizeof(*m));
	seed = from_seed;
	m->dense.embed = random_mat(m, VOCAB, config.hidden, 1);
	m->dense.head = random_mat(m, VOCAB, config.hidden, 1);
	m->dense.final_norm = random_norm(m);
	m->dense.layer = m->layer;
	for (uint32_t l = 0; l < LAYERS; l++) {
		m->layer[l] = (struct od_layer_weights){
			.attn_norm = random_norm(m), .ffn_norm = random_norm(m),
			.q = random_mat(m, 32, 32, 0.5f), .k = random_mat(m, 16, 32, 0.5f),
			.v = random_mat(m, 16, 32, 0.5f), .o = random_mat(m, 32, 32, 0.5f),
			.router = random_mat(m, EXPERTS, 32, 1),
		};
		for (uint32_t e = 0; e < EXPERTS; e++)
			for (int i = 0; i < OD_N_EXPERT_MATS; i++)
				m->expert[l * EXPERTS + e].mat[i] = i == OD_MAT_DOWN ? random_mat(m, 32, 16, 0.5f) :
										       random_mat(m, 16, 32, 0.5f);
	}
}

/* The same model, its experts a little off: what quantisation does. */
static void make_rough_copy(struct model *m, uint64_t from_seed)
{
	make_model(m, from_seed);
	seed = from_seed + 1;
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
		m->expert[i].mat[draw(OD_N_EXPERT_MATS - 1)] = random_mat(m, 16, 32, 0.5f);
}

static void free_model(struct model *m)
{
	for (size_t i = 0; i < m->n_mem; i++)
		od_free(m->mem[i]);
}

/* ---- Forward passes outside the emulator ---- */

struct pass {
	struct od_forward *forward;
	struct od_expert_runner *experts;
};

static struct od_forward_opts pass_opts(const struct model *m, enum od_profile profile)
{
	return (struct od_forward_opts){ .config = &config, .dense = &m->dense, .backend = backend(profile),
					 .profile = profile, .max_rows = MAX_ROWS };
}

static void open_pass(struct pass *p, const struct model *m, enum od_profile profile)
{
	struct od_forward_opts o = pass_opts(m, profile);
	struct od_err err;

	assert_int_equal(od_forward_new(&p->forward, &o, &err), OD_OK);
	assert_int_equal(od_resident_new(&p->experts, &o, m->expert, &err), OD_OK);
}

static void close_pass(struct pass *p)
{
	od_forward_free(p->forward);
	od_resident_free(p->experts);
}

/* All layers; route [LAYERS][n_rows][TOP_K] when not NULL. */
static void run_pass(struct pass *p, const struct od_row *rows, size_t n_rows, uint16_t *route)
{
	struct od_err err;

	assert_int_equal(od_forward_begin(p->forward, 1, rows, n_rows, &err), OD_OK);
	for (uint32_t l = 0; l < LAYERS; l++) {
		od_forward_attention(p->forward);
		for (size_t r = 0; r < n_rows && route != NULL; r++)
			memcpy(route + (l * n_rows + r) * TOP_K, od_forward_experts_of(p->forward, r),
			       TOP_K * sizeof(*route));
		assert_int_equal(od_forward_experts(p->forward, p->experts, &err), OD_OK);
	}
}

static struct od_seq_state *make_state(enum od_profile profile)
{
	struct od_seq_state *s;
	struct od_err err;

	assert_int_equal(od_seq_state_new(&s, &config, profile, CTX, &err), OD_OK);
	return s;
}

/* ---- The simulated main, the channel, and the judge ---- */

struct sequence {
	uint64_t id;
	struct od_seq_state *state; /* main's */
	int32_t next; /* token that stands at length */
	bool open, stepped;
};

struct sent_step {
	uint64_t number;
	size_t n_rows;
	struct { uint32_t seq, position; int32_t token; uint32_t base; } row[MAX_ROWS]; /* base: where its run begins */
	bool predicted[MAX_ROWS][LAYERS]; /* with the right token */
	struct { uint64_t id; uint32_t position; int32_t token; bool known[LAYERS]; } guess[MAX_ROWS]; /* before the STEP */
	uint16_t route[LAYERS][MAX_ROWS][TOP_K]; /* main's own */
};

struct message { /* what od.proto carries, in plain */
	Od__Header__BodyCase kind;
	Od__StepRow rows[MAX_ROWS];
	size_t n_rows;
	uint64_t sequence, step, next;
	bool due;
	uint32_t layer, begin, n;
	char k[CTX * 64], v[CTX * 64];
};

struct world {
	enum od_profile profile;
	struct model main_model, shadow_model;
	struct pass main_pass, judge_pass;
	struct od_seq_state *judge_state;
	bool same_weights, own_rows; /* own_rows: state does not always follow */
	bool judge; /* check every prediction */
	struct ods_emulator *emulator;
	struct sequence seq[MAX_SEQS];
	uint64_t next_id, step, now;
	uint32_t lose, twice; /* percent */
	struct message *queue; /* ring of QUEUE */
	size_t head, n_queued;
	struct sent_step *sent; /* [MAX_STEPS] by number */
	uint64_t delivered; /* newest STEP that reached the shadow */
	uint32_t layer; /* main's next STATE of the step that is going on; LAYERS: all sent */
	bool due;
	unsigned guesses, right, checked, asks;
	bool lose_asks;
};

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

static size_t row_bytes(const struct world *w)
{
	return od_seq_state_row_bytes(w->judge_state);
}

static void push_state(struct world *w, const struct sequence *s, uint32_t layer, uint32_t begin, uint32_t n,
		       uint64_t step)
{
	struct message *m = push(w);

	m->kind = OD__HEADER__BODY_STATE;
	m->sequence = s->id;
	m->layer = layer;
	m->begin = begin;
	m->n = n;
	m->step = step;
	memcpy(m->k, od_seq_state_k(s->state, layer, begin), n * row_bytes(w));
	memcpy(m->v, od_seq_state_v(s->state, layer, begin), n * row_bytes(w));
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

/* The routes of a row that stands on main's keys and values below base, with the shadow's weights. */
static void judge_routes(struct world *w, const struct sequence *s, uint32_t base, const int32_t *tokens, size_t n,
			 uint16_t *route)
{
	struct od_row rows[MAX_ROWS];

	for (uint32_t l = 0; l < LAYERS && base > 0; l++) {
		memcpy(od_seq_state_k(w->judge_state, l, 0), od_seq_state_k(s->state, l, 0), base * row_bytes(w));
		memcpy(od_seq_state_v(w->judge_state, l, 0), od_seq_state_v(s->state, l, 0), base * row_bytes(w));
	}
	od_seq_state_set_length(w->judge_state, base);
	for (size_t i = 0; i < n; i++)
		rows[i] = (struct od_row){ w->judge_state, base + (uint32_t)i, tokens[i] };
	run_pass(&w->judge_pass, rows, n, route);
}

/* A guess becomes a prediction of the step if main chooses the same token. */
static void take_guesses(struct world *w, struct sent_step *t)
{
	for (size_t r = 0; r < t->n_rows; r++)
		for (uint32_t l = 0; l < LAYERS; l++)
			t->predicted[r][l] |= t->guess[r].known[l] && t->guess[r].id == w->seq[t->row[r].seq].id &&
					      t->guess[r].position == t->row[r].position &&
					      t->guess[r].token == t->row[r].token;
}

static void note_guess(struct world *w, struct sent_step *t, const struct ods_prediction *p)
{
	assert_true(p->row < MAX_ROWS);
	t->guess[p->row].id = p->sequence;
	t->guess[p->row].position = p->position;
	t->guess[p->row].token = p->token;
	t->guess[p->row].known[p->m] = true;
	if (t->number == p->step) /* main is there already, the shadow does not know yet */
		take_guesses(w, t);
}

static void on_predict(void *arg, const struct ods_prediction *p)
{
	struct world *w = arg;
	struct sequence *s = by_id(w, p->sequence);
	struct sent_step *t = &w->sent[p->step % MAX_STEPS];
	bool known = p->step <= w->delivered;
	uint16_t route[LAYERS * MAX_ROWS * TOP_K];
	int32_t tokens[MAX_ROWS];
	size_t n = 0;

	assert_non_null(s);
	assert_true(p->m < LAYERS && p->n_experts == TOP_K && p->margin >= 0);
	assert_true(p->step == w->delivered || p->step == w->delivered + 1); /* never an old one */
	if (known) {
		assert_true(p->row < t->n_rows);
		assert_int_equal(p->position, t->row[p->row].position);
		assert_int_equal(p->token, t->row[p->row].token);
		t->predicted[p->row][p->m] = true;
		for (uint32_t r = 0; r <= p->row; r++)
			if (t->row[r].seq == t->row[p->row].seq)
				tokens[n++] = t->row[r].token;
	} else {
		w->guesses++;
		tokens[n++] = p->token;
		note_guess(w, t, p);
	}
	if (!w->judge)
		return;
	judge_routes(w, s, p->position + 1 - (uint32_t)n, tokens, n, route);
	assert_memory_equal(p->expert, route + (p->m * n + n - 1) * TOP_K, TOP_K * sizeof(*route));
	w->checked++;
	if (known && w->same_weights) /* full recall: OD-MoE Eq. 2 */
		assert_memory_equal(p->expert, t->route[p->m][p->row], TOP_K * sizeof(*route));
}

/* ---- Main's side ---- */

static int32_t choose_token(struct world *w, size_t row)
{
	float logits[VOCAB];
	uint32_t best = 0;

	od_forward_logits(w->main_pass.forward, row, logits);
	for (uint32_t i = 1; i < VOCAB; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)(chance(70) ? best : draw(VOCAB)); /* sampling now and then says something else */
}

/* A prompt, or more of it later: no message tells of it. */
static void prefill(struct world *w, struct sequence *s)
{
	uint32_t n = 1 + draw(MAX_ROWS), begin = od_seq_state_length(s->state);
	struct od_row rows[MAX_ROWS];

	if (begin + n > CTX)
		return;
	for (uint32_t i = 0; i < n; i++)
		rows[i] = (struct od_row){ s->state, begin + i, (int32_t)draw(VOCAB) };
	run_pass(&w->main_pass, rows, n, NULL);
	od_forward_commit(w->main_pass.forward);
	s->next = choose_token(w, n - 1);
}

static void open_sequence(struct world *w, struct sequence *s)
{
	s->open = true;
	s->stepped = false;
	s->id = w->next_id++;
	od_seq_state_set_length(s->state, 0);
	prefill(w, s);
	if (chance(50))
		prefill(w, s);
}

static void put_row(struct world *w, struct sent_step *t, uint32_t seq, uint32_t base, uint32_t i, int32_t token)
{
	t->row[t->n_rows].seq = seq;
	t->row[t->n_rows].base = base;
	t->row[t->n_rows].position = base + i;
	t->row[t->n_rows].token = token;
	t->n_rows++;
	(void)w;
}

/* A decode step over some of the sequences; several rows of one are a verified draft. */
static bool begin_step(struct world *w, bool one_row)
{
	struct sent_step *t = &w->sent[(w->step + 1) % MAX_STEPS];
	struct od_row rows[MAX_ROWS];
	struct message *m;

	for (uint32_t i = 0; i < MAX_SEQS; i++) {
		struct sequence *s = &w->seq[i];
		uint32_t n = one_row || chance(80) ? 1 : 2;

		if (!s->open || od_seq_state_length(s->state) + n > CTX || (!one_row && chance(10)))
			continue;
		for (uint32_t j = 0; j < n; j++)
			put_row(w, t, i, od_seq_state_length(s->state), j, j == 0 ? s->next : (int32_t)draw(VOCAB));
	}
	if (t->n_rows == 0)
		return false;
	t->number = ++w->step;
	take_guesses(w, t);
	assert_true(w->step < MAX_STEPS);
	for (size_t r = 0; r < t->n_rows; r++)
		rows[r] = (struct od_row){ w->seq[t->row[r].seq].state, t->row[r].position, t->row[r].token };
	w->due = w->own_rows ? chance(50) : true;
	m = push(w);
	m->kind = OD__HEADER__BODY_STEP;
	m->step = t->number;
	m->next = t->number + 1;
	m->due = w->due;
	m->n_rows = t->n_rows;
	for (size_t r = 0; r < t->n_rows; r++) {
		m->rows[r] = (Od__StepRow)OD__STEP_ROW__INIT;
		m->rows[r].sequence = w->seq[t->row[r].seq].id;
		m->rows[r].position = t->row[r].position;
		m->rows[r].token = t->row[r].token;
		w->seq[t->row[r].seq].stepped = true;
	}
	{
		uint16_t route[LAYERS * MAX_ROWS * TOP_K];

		run_pass(&w->main_pass, rows, t->n_rows, route);
		for (uint32_t l = 0; l < LAYERS; l++)
			for (size_t r = 0; r < t->n_rows; r++)
				memcpy(t->route[l][r], route + (l * t->n_rows + r) * TOP_K, sizeof(t->route[l][r]));
	}
	od_forward_commit(w->main_pass.forward);
	for (size_t r = 0; r < t->n_rows; r++)
		w->seq[t->row[r].seq].next = choose_token(w, r);
	w->layer = 0;
	return true;
}

/* The rows of one layer leave while main goes on; false: the step is through. */
static bool send_layer(struct world *w)
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

static int hand_over(struct world *w, const struct message *m)
{
	Od__Header header = OD__HEADER__INIT;
	Od__Step step = OD__STEP__INIT;
	Od__State body = OD__STATE__INIT;
	Od__SeqTruncate truncate = OD__SEQ_TRUNCATE__INIT;
	Od__SeqClose close = OD__SEQ_CLOSE__INIT;
	Od__StepRow rows[MAX_ROWS], *row[MAX_ROWS];
	struct od_msg msg = { .header = &header };
	struct od_err err;
	int rc;

	header.body_case = m->kind;
	if (m->kind == OD__HEADER__BODY_STEP) {
		header.step = &step;
		step.step = m->step;
		step.next_step = m->next;
		step.state_follows = m->due;
		step.n_rows = m->n_rows;
		step.rows = row;
		for (size_t i = 0; i < m->n_rows; i++) {
			rows[i] = m->rows[i];
			row[i] = &rows[i];
		}
	} else if (m->kind == OD__HEADER__BODY_STATE) {
		const char *bytes[2] = { m->k, m->v };

		header.state = &body;
		body.sequence = m->sequence;
		body.layer = m->layer;
		body.begin = m->begin;
		body.n = m->n;
		body.step = m->step;
		msg.n_frames = 2;
		for (int i = 0; i < 2; i++) {
			assert_int_equal(zmq_msg_init_size(&msg.frame[i], m->n * row_bytes(w)), 0);
			memcpy(zmq_msg_data(&msg.frame[i]), bytes[i], m->n * row_bytes(w));
		}
	} else if (m->kind == OD__HEADER__BODY_SEQ_TRUNCATE) {
		header.seq_truncate = &truncate;
		truncate.sequence = m->sequence;
		truncate.length = m->n;
	} else {
		header.seq_close = &close;
		close.sequence = m->sequence;
	}
	if (m->kind == OD__HEADER__BODY_STEP && m->step > w->delivered)
		w->delivered = m->step;
	rc = ods_emulator_message(w->emulator, &msg, w->now, &err);
	for (size_t i = 0; i < msg.n_frames; i++)
		zmq_msg_close(&msg.frame[i]);
	return rc;
}

static bool deliver(struct world *w)
{
	struct message *m = &w->queue[w->head];

	if (w->n_queued == 0)
		return false;
	if (m->kind != OD__HEADER__BODY_STATE || !chance(w->lose)) {
		assert_int_equal(hand_over(w, m), OD_OK);
		if (chance(w->twice))
			assert_int_equal(hand_over(w, m), m->kind == OD__HEADER__BODY_STATE ? OD_OK : OD_ERR_PROTOCOL);
	}
	w->head = (w->head + 1) % QUEUE;
	w->n_queued--;
	return true;
}

static bool work(struct world *w)
{
	struct od_err err;
	bool did;

	if (ods_emulator_work(w->emulator, w->now, &did, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return did;
}

/* Until nobody has anything to do; a second without an answer passes when it must. */
static void settle(struct world *w)
{
	for (int i = 0; i < 100000; i++) {
		bool did = work(w);

		if (deliver(w) || did)
			continue;
		if (ods_emulator_deadline(w->emulator) == UINT64_MAX)
			return;
		w->now = ods_emulator_deadline(w->emulator);
	}
	fail_msg("the emulator never comes to rest");
}

/* Until the answers are there, without more work than that. */
static void settle_asks(struct world *w)
{
	while (deliver(w))
		;
}

/* More prompt, truncation or the end of a sequence, with nothing on its way that would be about other rows. */
static void disturb(struct world *w)
{
	struct sequence *s = &w->seq[draw(MAX_SEQS)];
	struct message m = { .kind = OD__HEADER__BODY_SEQ_CLOSE };

	while (send_layer(w))
		;
	while (deliver(w))
		;
	if (!s->open) {
		open_sequence(w, s);
		return;
	}
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
		if (chance(30)) /* main says nothing: the next STEP must be enough */
			return;
	}
	/* A sequence that never had a step is not known there. */
	assert_true(hand_over(w, &m) == (s->stepped ? OD_OK : OD_ERR_PROTOCOL));
}

static void open_world(struct world *w, enum od_profile profile, bool same_weights, bool early, uint64_t from_seed)
{
	struct ods_sink sink = { .arg = w, .predict = on_predict, .ask = on_ask };
	struct ods_emulator_opts o;
	struct od_err err;

	memset(w, 0, sizeof(*w));
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
	open_pass(&w->main_pass, &w->main_model, profile);
	open_pass(&w->judge_pass, &w->shadow_model, profile);
	w->judge_state = make_state(profile);
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		w->seq[i].state = make_state(profile);
	w->queue = calloc(QUEUE, sizeof(*w->queue));
	w->sent = calloc(MAX_STEPS, sizeof(*w->sent));
	assert_true(w->queue != NULL && w->sent != NULL && row_bytes(w) <= 64);
	o = (struct ods_emulator_opts){ .forward = pass_opts(&w->shadow_model, profile),
					.experts = w->shadow_model.expert, .ctx_tokens = CTX,
					.max_sequences = MAX_SEQS, .early = early };
	assert_int_equal(ods_emulator_new(&w->emulator, &o, &sink, &err), OD_OK);
	seed = from_seed;
}

static void close_world(struct world *w)
{
	ods_emulator_free(w->emulator);
	close_pass(&w->main_pass);
	close_pass(&w->judge_pass);
	od_seq_state_free(w->judge_state);
	for (uint32_t i = 0; i < MAX_SEQS; i++)
		od_seq_state_free(w->seq[i].state);
	free_model(&w->main_model);
	free_model(&w->shadow_model);
	free(w->queue);
	free(w->sent);
}

static void assert_predicted(const struct world *w, uint64_t step)
{
	const struct sent_step *t = &w->sent[step % MAX_STEPS];

	for (size_t r = 0; r < t->n_rows; r++)
		for (uint32_t l = 0; l < LAYERS; l++)
			assert_true(t->predicted[r][l]);
	assert_true(t->n_rows > 0);
}

/* ---- Tests ---- */

/* One range a layer: prompts here are short. */
static unsigned prompt_asks(const struct world *w)
{
	return w->sent[1].row[0].position > 0 ? LAYERS : 0;
}

/* Everything in its own time: each step is predicted whole, and early departure guesses the next one. */
static void in_step(bool early, bool same_weights, bool state_follows, enum od_profile profile)
{
	const struct ods_emulator_stats *t;
	struct world w;
	unsigned n = 0, right = 0;

	open_world(&w, profile, same_weights, early, 99);
	open_sequence(&w, &w.seq[0]);
	while (begin_step(&w, true)) {
		if (!state_follows)
			w.queue[w.head].due = w.due = false;
		n++;
		while (send_layer(&w))
			settle(&w);
		settle(&w);
		assert_predicted(&w, w.step);
		assert_int_equal(w.asks, prompt_asks(&w));
	}
	t = ods_emulator_stats(w.emulator);
	right = (unsigned)t->confirmed;
	assert_true(n > 20);
	assert_int_equal(t->steps, n);
	assert_int_equal(t->overtaken, 0);
	if (early) {
		assert_true(right > (same_weights ? n / 2 : 0) && right < n); /* what main draws is not foreseen */
		assert_true(w.guesses > LAYERS * n / 2);
		assert_int_equal(t->confirmed + t->mistaken, n - 1);
	} else {
		assert_int_equal(w.guesses, 0);
		assert_int_equal(right, 0);
		assert_int_equal(w.checked, LAYERS * n);
	}
	close_world(&w);
}

static void test_late(void **state)
{
	(void)state;
	in_step(false, true, true, OD_PROFILE_F32);
	in_step(false, false, true, OD_PROFILE_BF16);
}

static void test_early(void **state)
{
	(void)state;
	in_step(true, true, true, OD_PROFILE_F32);
	in_step(true, true, false, OD_PROFILE_F32);
	in_step(true, true, true, OD_PROFILE_BF16);
	in_step(true, false, true, OD_PROFILE_F32);
}

/* With the same weights and greedy tokens the guess is always right, and it is out before main's STEP. */
static void test_credit(void **state)
{
	struct world w;
	unsigned n = 0;

	(void)state;
	open_world(&w, OD_PROFILE_BF16, true, true, 5);
	open_sequence(&w, &w.seq[0]);
	for (; n < 12; n++) {
		float logits[VOCAB];
		uint32_t best = 0;

		assert_true(begin_step(&w, true));
		od_forward_logits(w.main_pass.forward, 0, logits);
		for (uint32_t i = 1; i < VOCAB; i++)
			if (logits[i] > logits[best])
				best = i;
		w.seq[0].next = (int32_t)best;
		assert_int_equal(w.guesses, n * LAYERS);
		settle(&w);
		assert_int_equal(w.guesses, n * LAYERS); /* waits for the rows of layer 0 */
		for (uint32_t l = 0; l < LAYERS; l++) {
			send_layer(&w);
			settle(&w);
			assert_int_equal(w.guesses, n * LAYERS + l + 1);
		}
	}
	assert_int_equal(ods_emulator_stats(w.emulator)->confirmed, n - 1);
	close_world(&w);
}

/* A slow shadow: the next STEP comes first. State is due, so the old step is left, and the newest is predicted. */
static void test_overtaken(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, false, true, 11);
	open_sequence(&w, &w.seq[0]);
	for (int i = 0; i < 10; i++) {
		begin_step(&w, true);
		while (send_layer(&w))
			;
		while (deliver(&w))
			;
		work(&w); /* asks twice, for three layers, then one piece each */
		assert_int_equal(w.sent[w.step].predicted[0][0], i > 1); /* the old one is left at once */
		settle_asks(&w);
	}
	settle(&w);
	assert_predicted(&w, w.step);
	assert_int_equal(ods_emulator_stats(w.emulator)->overtaken, 7);
	close_world(&w);
}

/* A prompt's rows are all there before the first prediction, and then it is for the newest STEP. */
static void test_prompt_first(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_BF16, true, true, 21);
	open_sequence(&w, &w.seq[0]);
	w.lose = 100;
	w.lose_asks = true;
	for (int i = 0; i < 3; i++) {
		begin_step(&w, true);
		w.due = false;
		w.queue[w.head].due = false;
		while (work(&w) || deliver(&w))
			;
		w.now += 2 * ODS_ASK_AGAIN_NS;
	}
	assert_int_equal(w.asks, 3 * ODS_MAX_ASKED); /* again, a second later */
	w.lose = 0;
	for (uint32_t l = 0; l + 1 < LAYERS; l++) {
		push_state(&w, &w.seq[0], l, 0, w.sent[w.step].row[0].position, 0);
		while (deliver(&w))
			;
	}
	w.lose = 100;
	work(&w);
	assert_int_equal(w.checked, 0);
	w.lose = 0;
	settle(&w);
	assert_predicted(&w, w.step);
	assert_int_equal(w.checked - w.guesses, LAYERS);
	close_world(&w);
}

/* A STEP that takes back the position of the one under way, without a word before. */
static void test_taken_back(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, true, 22);
	open_sequence(&w, &w.seq[0]);
	begin_step(&w, true);
	w.queue[w.head].due = w.due = false;
	while (!w.sent[w.step].predicted[0][1])
		if (!work(&w))
			deliver(&w);
	od_seq_state_set_length(w.seq[0].state, w.sent[w.step].row[0].position);
	w.seq[0].next = (w.sent[w.step].row[0].token + 1) % (int32_t)VOCAB;
	begin_step(&w, true);
	w.queue[w.head].due = w.due = false;
	deliver(&w);
	work(&w);
	assert_true(w.sent[w.step].predicted[0][0]);
	settle(&w);
	assert_predicted(&w, w.step);
	close_world(&w);
}

/* The conversation goes on with another prompt: no STEP tells of it, and the guess must leave nothing behind. */
static void test_second_prompt(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, true, 23);
	open_sequence(&w, &w.seq[0]);
	for (int i = 0; i < 4; i++) {
		begin_step(&w, true);
		while (send_layer(&w))
			;
		settle(&w);
		prefill(&w, &w.seq[0]);
	}
	assert_int_equal(w.guesses, 4 * LAYERS);
	assert_predicted(&w, w.step);
	close_world(&w);
}

/* Without state the overtaken step is finished for its rows, unseen; what could not be is asked for. */
static void test_own_rows(void **state)
{
	struct world w;
	unsigned asks;

	(void)state;
	open_world(&w, OD_PROFILE_F32, true, false, 12);
	open_sequence(&w, &w.seq[0]);
	begin_step(&w, true);
	w.due = false;
	w.queue[w.head].due = false;
	settle(&w);
	assert_predicted(&w, w.step);
	asks = w.asks;
	for (int i = 0; i < 8; i++) {
		begin_step(&w, true);
		w.queue[w.head].due = false;
		deliver(&w);
		work(&w);
		work(&w);
		/* The step is under way in layer 1: overtake it. */
		begin_step(&w, true);
		w.queue[w.head].due = false;
		deliver(&w);
		settle(&w);
		assert_false(w.sent[w.step - 1].predicted[0][2]);
		assert_predicted(&w, w.step);
	}
	assert_int_equal(w.asks, asks); /* own rows were enough */
	begin_step(&w, true);
	begin_step(&w, true);
	begin_step(&w, true);
	for (size_t i = 0; i < w.n_queued; i++)
		w.queue[w.head + i].due = false;
	while (deliver(&w))
		;
	settle(&w);
	assert_predicted(&w, w.step);
	assert_int_equal(w.asks, asks + LAYERS); /* two steps that were never begun, one range a layer */
	close_world(&w);
}

/* What own rows are worth: exactly a model that goes on by itself from the prompt. */
static void test_unaligned(void **state)
{
	struct od_seq_state *alone;
	struct world w;

	(void)state;
	open_world(&w, OD_PROFILE_F32, false, false, 13);
	w.judge = false;
	open_sequence(&w, &w.seq[0]);
	alone = make_state(OD_PROFILE_F32);
	for (uint32_t l = 0; l < LAYERS; l++) {
		memcpy(od_seq_state_k(alone, l, 0), od_seq_state_k(w.seq[0].state, l, 0), CTX * row_bytes(&w));
		memcpy(od_seq_state_v(alone, l, 0), od_seq_state_v(w.seq[0].state, l, 0), CTX * row_bytes(&w));
	}
	od_seq_state_set_length(alone, od_seq_state_length(w.seq[0].state));
	od_seq_state_free(w.judge_state);
	w.judge_state = alone;
	while (begin_step(&w, true)) {
		const struct sent_step *t = &w.sent[w.step];
		struct od_row row = { alone, t->row[0].position, t->row[0].token };

		w.queue[w.head].due = false;
		settle(&w);
		assert_predicted(&w, w.step);
		run_pass(&w.judge_pass, &row, 1, NULL);
		od_forward_commit(w.judge_pass.forward);
	}
	/* The last position's rows in the shadow are what the lonely model has: the next prediction shows it. */
	assert_true(ods_emulator_stats(w.emulator)->predictions > 20 * LAYERS);
	close_world(&w);
}

/* One random life: any speed, losses, doubles, several sequences and rows, truncation and closing. */
static void random_life(uint64_t from_seed, enum od_profile profile, bool same_weights, bool early, bool own_rows)
{
	struct world w;
	uint32_t speed;

	open_world(&w, profile, same_weights, early, from_seed);
	w.own_rows = own_rows;
	w.lose = draw(3) * 7;
	w.twice = draw(2) * 10;
	w.lose_asks = true;
	speed = 5 + draw(90);
	open_sequence(&w, &w.seq[0]);
	for (int i = 0; i < 600; i++) {
		w.now += draw((uint32_t)(ODS_ASK_AGAIN_NS / 16));
		if (chance(speed)) {
			work(&w);
			continue;
		}
		if (chance(50) && deliver(&w))
			continue;
		if (!send_layer(&w) && chance(15))
			disturb(&w);
		else if (w.layer == LAYERS)
			begin_step(&w, false);
	}
	w.lose = w.twice = 0;
	while (send_layer(&w))
		;
	settle(&w);
	if (begin_step(&w, false)) {
		while (send_layer(&w))
			;
		settle(&w);
		assert_predicted(&w, w.step);
	}
	close_world(&w);
}

static void test_random_lives(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 120; i++)
		random_life(1000 + i, i & 1 ? OD_PROFILE_BF16 : OD_PROFILE_F32, (i & 2) != 0, (i & 4) != 0,
			    (i & 2) != 0 && (i & 8) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_late),	  cmocka_unit_test(test_early),	    cmocka_unit_test(test_credit),
		cmocka_unit_test(test_overtaken), cmocka_unit_test(test_own_rows),  cmocka_unit_test(test_unaligned),
		cmocka_unit_test(test_prompt_first), cmocka_unit_test(test_taken_back),
		cmocka_unit_test(test_second_prompt), cmocka_unit_test(test_random_lives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
