/* Alignment with its periods, both sides of it: main's shadow_link and the shadow's emulator, with a channel between
 * them that can lose, double, delay and swap messages. What a shadow of these periods must predict is worked out here
 * by a forward pass that knows the definition and none of the messages. */
#include "tests/unit/emulator_world.h"

#include <stdlib.h>
#include <string.h>

#include "common/model/sampler.h"
#include "main-node/cluster/shadow_link.h"
#include "shadow-node/emulator_messages.h"

#define NUMBERS 8192u /* steps */
#define KV_DIM 16u
#define PROMPT_MAX 12u
#define LONG 2200u
#define BIASES 12u

struct packet {
	uint8_t *header;
	size_t n_header;
	char *frame[2];
	size_t len[2], n_frames;
};

struct alignment_heard {
	bool any[LAYERS];
	int32_t token[LAYERS];
	uint16_t route[LAYERS][TOP_K];
};

struct alignment_rig {
	enum od_profile profile;
	struct odm_align align;
	bool early;
	uint32_t ctx, prompt;
	struct od_sampler_opts sampling;
	struct od_logit_bias bias[BIASES];
	struct model main_model, shadow_model;
	struct pass main_pass, ref_pass;
	struct od_seq_state *state, *ref_state;
	struct od_sampler *sampler, *ref_sampler;
	struct odm_shadow_link link;
	struct odm_part part; /* rows of main's step */
	uint64_t sent[OD_N_COUNTERS], counters[OD_N_COUNTERS]; /* by the link; of the emulator */
	struct ods_emulator *emulator;
	struct packet queue[QUEUE];
	size_t n_queued;
	bool bad_channel;
	uint32_t lose, twice, swap; /* percent */
	Od__StateRequest ask[64];
	Od__TokensRequest ask_tokens[64];
	size_t n_ask, n_ask_tokens;
	unsigned token_asks, given; /* STEPs with a token */
	uint64_t now, sequence, step, delivered, dropped;
	int32_t next; /* main's token at its length */
	uint32_t n; /* decode steps of the sequence */
	uint64_t first; /* number of the first of them */
	struct alignment_heard *heard; /* [NUMBERS] */
	bool reference; /* else only main's side is run */
	bool judge; /* every prediction stands on main's keys and values */
	unsigned judged;
	uint16_t route[LAYERS * TOP_K]; /* main's, of the step under way */
	/* The reference: its token at its own length, what it says of the step under way. */
	int32_t ref_next, ref_token;
	uint16_t ref_route[LAYERS * TOP_K];
};

/* ---- The channel ---- */

static int put_packet(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames)
{
	struct alignment_rig *g = arg;
	struct packet *p = &g->queue[g->n_queued++];

	assert_true(g->n_queued < QUEUE && n_frames <= 2);
	*p = (struct packet){ .n_header = od__header__get_packed_size(header), .n_frames = n_frames };
	p->header = malloc(p->n_header);
	od__header__pack(header, p->header);
	for (size_t i = 0; i < n_frames; i++) {
		p->len[i] = frames[i].len;
		p->frame[i] = malloc(frames[i].len);
		memcpy(p->frame[i], frames[i].bytes, frames[i].len);
	}
	return OD_OK;
}

static void free_packet(struct packet *p)
{
	free(p->header);
	free(p->frame[0]);
	free(p->frame[1]);
}

static void hand_packet(struct alignment_rig *g, const struct packet *p)
{
	struct od_msg m = { .header = od__header__unpack(NULL, p->n_header, p->header), .n_frames = p->n_frames };
	struct od_err err;

	assert_non_null(m.header);
	for (size_t i = 0; i < p->n_frames; i++) {
		assert_int_equal(zmq_msg_init_size(&m.frame[i], p->len[i]), 0);
		memcpy(zmq_msg_data(&m.frame[i]), p->frame[i], p->len[i]);
	}
	if (ods_emulator_message(g->emulator, &m, g->now, &err) != OD_OK) {
		if (!g->bad_channel)
			fail_msg("%s: %s", od_body_name(m.header->body_case), err.msg);
		g->dropped++;
	} else if (m.header->body_case == OD__HEADER__BODY_STEP) {
		g->delivered = m.header->step->step;
		g->given += m.header->step->rows[0]->token >= 0;
	}
	od_msg_fini(&m);
}

static bool deliver_one(struct alignment_rig *g)
{
	struct packet p;

	if (g->n_queued == 0)
		return false;
	for (size_t i = 0; i + 1 < g->n_queued && chance(g->swap); i++) { /* the first moves back */
		p = g->queue[i];
		g->queue[i] = g->queue[i + 1];
		g->queue[i + 1] = p;
	}
	p = g->queue[0];
	memmove(g->queue, g->queue + 1, --g->n_queued * sizeof(p));
	for (int copies = chance(g->lose) ? 0 : chance(g->twice) ? 2 : 1; copies > 0; copies--)
		hand_packet(g, &p);
	free_packet(&p);
	return true;
}

static void on_ask(void *arg, uint64_t sequence, const struct ods_range *r)
{
	struct alignment_rig *g = arg;
	Od__StateRequest *q = &g->ask[g->n_ask++];

	assert_true(g->n_ask <= 64);
	od__state_request__init(q);
	q->sequence = sequence;
	q->layer = r->layer;
	q->begin = r->begin;
	q->n = r->n;
}

static void on_ask_tokens(void *arg, uint64_t sequence, uint32_t begin, uint32_t n)
{
	struct alignment_rig *g = arg;
	Od__TokensRequest *q = &g->ask_tokens[g->n_ask_tokens++];

	assert_true(g->n_ask_tokens <= 64);
	g->token_asks++;
	od__tokens_request__init(q);
	q->sequence = sequence;
	q->begin = begin;
	q->n = n;
}

static bool answer(struct alignment_rig *g)
{
	bool any = g->n_ask + g->n_ask_tokens > 0;

	for (size_t i = 0; i < g->n_ask; i++)
		if (!chance(g->lose))
			odm_shadow_link_answer(&g->link, 0, &g->ask[i]);
	for (size_t i = 0; i < g->n_ask_tokens; i++)
		if (!chance(g->lose))
			odm_shadow_link_answer_tokens(&g->link, 0, &g->ask_tokens[i]);
	g->n_ask = g->n_ask_tokens = 0;
	return any;
}

static bool work_once(struct alignment_rig *g)
{
	struct od_err err;
	bool did;

	if (ods_emulator_work(g->emulator, g->now, &did, &err) != OD_OK)
		fail_msg("%s", err.msg);
	return did;
}

/* Until nobody has anything to do; time passes only when it must. */
static void settle_rig(struct alignment_rig *g)
{
	for (int i = 0; i < 1000000; i++) {
		bool did = work_once(g), answered = answer(g);

		if (deliver_one(g) || did || answered)
			continue;
		if (ods_emulator_deadline(g->emulator) == UINT64_MAX)
			return;
		g->now = ods_emulator_deadline(g->emulator);
	}
	fail_msg("the emulator never comes to rest");
}

static void judge_prediction(struct alignment_rig *g, const struct od_prediction *p)
{
	struct od_row row = { g->ref_state, p->position, p->token };
	uint16_t route[LAYERS * TOP_K];

	copy_rows(g->ref_pass.device, g->ref_state, g->main_pass.device, g->state, LAYERS, 0, p->position);
	od_seq_state_set_length(g->ref_state, p->position);
	run_pass(&g->ref_pass, &row, 1, route);
	assert_memory_equal(p->expert, route + p->m * TOP_K, TOP_K * sizeof(*route));
	g->judged++;
}

static void on_prediction(struct alignment_rig *g, const struct od_prediction *p)
{
	const uint64_t step = g->first + p->position - g->prompt;
	struct alignment_heard *h = &g->heard[step % NUMBERS];

	assert_true(p->m < LAYERS && p->n == od_prediction_candidates(&config));
	assert_true(p->position < g->ctx && p->token >= 0 && p->token < (int32_t)VOCAB);
	if (p->sequence != g->sequence) /* it has not heard that this one is over */
		return;
	assert_true(step >= g->delivered && step <= g->delivered + 1); /* the newest STEP, or one ahead */
	h->any[p->m] = true;
	h->token[p->m] = p->token;
	memcpy(h->route[p->m], p->expert, sizeof(h->route[0]));
	if (g->judge && step <= g->delivered)
		judge_prediction(g, p);
}

static void on_predict(void *arg, uint32_t m, const struct od_prediction *p, size_t n)
{
	struct alignment_rig *g = arg;

	assert_true(n == 1 || (n == 2 && g->bad_channel));
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(p[i].m, m);
		on_prediction(g, &p[i]);
	}
}

/* ---- Main, and the definition ---- */

static void open_emulator(struct alignment_rig *g)
{
	struct ods_sink sink = { .arg = g, .predict = on_predict, .ask = on_ask, .ask_tokens = on_ask_tokens };
	struct ods_emulator_opts o = { .forward = pass_opts(&g->shadow_model, g->profile),
				       .experts = g->shadow_model.expert,
				       .ctx_tokens = g->ctx,
				       .max_sequences = 2,
				       .early = g->early,
				       .counters = g->counters };
	struct od_err err;

	memset(g->counters, 0, sizeof(g->counters));
	assert_int_equal(ods_emulator_new(&g->emulator, &o, &sink, &err), OD_OK);
}

struct alignment_setting {
	uint32_t token_period, kv_period;
	bool early, same_weights, sampled;
	enum od_profile profile;
};

static struct alignment_rig *open_rig(const struct alignment_setting *t, uint32_t ctx, uint64_t from_seed)
{
	struct alignment_rig *g = calloc(1, sizeof(*g));
	struct od_forward_opts o;

	assert_non_null(g);
	g->profile = t->profile;
	g->early = t->early;
	g->reference = true;
	g->ctx = ctx;
	g->align = (struct odm_align){ t->token_period, t->kv_period };
	g->heard = calloc(NUMBERS, sizeof(*g->heard));
	make_model(&g->main_model, 1);
	if (t->same_weights)
		make_model(&g->shadow_model, 1);
	else
		make_rough_copy(&g->shadow_model, 1);
	open_pass(&g->main_pass, &g->main_model, t->profile, ctx, 1);
	open_pass(&g->ref_pass, &g->shadow_model, t->profile, ctx, 1);
	g->state = make_state(&g->main_pass);
	g->ref_state = make_state(&g->ref_pass);
	o = pass_opts(&g->main_model, t->profile);
	o.state = g->main_pass.state;
	assert_int_equal(odm_shadow_link_init(&g->link, &o, ctx, &g->align, NULL), OD_OK);
	g->link.counters = g->sent;
	g->link.deliver = put_packet;
	g->link.deliver_arg = g;
	od_sampler_defaults(&g->sampling);
	if (t->sampled) {
		g->sampling.temperature = 0.8;
		g->sampling.top_p = 0.95;
		g->sampling.repetition_penalty = 1.3;
		g->sampling.frequency_penalty = from_seed % 2 > 0 ? 0.7 : 0;
		g->sampling.presence_penalty = from_seed % 3 > 0 ? -0.4 : 0;
		for (size_t i = 0; i < BIASES; i++)
			g->bias[i] = (struct od_logit_bias){ (int32_t)(i * 3 % VOCAB), i % 2 > 0 ? 1.5f : -2 };
		g->sampling.logit_bias = g->bias;
		g->sampling.n_logit_bias = from_seed % 4 > 0 ? BIASES : 0;
		g->sampling.seed = from_seed;
	}
	open_emulator(g);
	seed = from_seed;
	return g;
}

static void close_rig(struct alignment_rig *g)
{
	while (g->n_queued > 0)
		free_packet(&g->queue[--g->n_queued]);
	ods_emulator_free(g->emulator);
	odm_shadow_link_fini(&g->link);
	od_seq_state_free(g->state);
	od_seq_state_free(g->ref_state);
	close_pass(&g->main_pass);
	close_pass(&g->ref_pass);
	od_sampler_free(g->sampler);
	od_sampler_free(g->ref_sampler);
	free_model(&g->main_model);
	free_model(&g->shadow_model);
	free(g->heard);
	free(g);
}

static int32_t sample(struct od_sampler *s, struct pass *p, size_t row)
{
	return od_sampler_sample(s, logits_of(p, row), NULL);
}

/* As main chooses it; when it is greedy it says something else now and then, so that guesses fail. */
static int32_t choose(struct alignment_rig *g, size_t row)
{
	int32_t token = sample(g->sampler, &g->main_pass, row);

	return g->sampling.temperature > 0 || chance(70) ? token : (int32_t)draw(VOCAB);
}

static struct odm_step make_step(struct alignment_rig *g, enum odm_phase phase, struct od_row *rows, size_t n)
{
	g->step++;
	g->part = (struct odm_part){
		.sequence = g->sequence, .n = n, .prompt_tokens = g->prompt, .ahead = 1, .sampling = &g->sampling
	};
	return (struct odm_step){ .step = g->step,
				  .next_step = g->step + 1,
				  .phase = phase,
				  .rows = rows,
				  .n_rows = n,
				  .part = &g->part,
				  .n_parts = 1 };
}

static void start_samplers(struct alignment_rig *g)
{
	float logits[VOCAB] = { 0 };

	od_sampler_free(g->sampler);
	od_sampler_free(g->ref_sampler);
	assert_int_equal(od_sampler_new(&g->sampler, &g->sampling, VOCAB, NULL), OD_OK);
	assert_int_equal(od_sampler_new(&g->ref_sampler, &g->sampling, VOCAB, NULL), OD_OK);
	od_sampler_sample(g->ref_sampler, logits, NULL); /* the first token is main's, and its number too */
}

/* Rows as they arrive at the shadow. */
static void give_rows(struct alignment_rig *g, uint32_t begin, uint32_t end)
{
	copy_rows(g->ref_pass.device, g->ref_state, g->main_pass.device, g->state, LAYERS, begin, end - begin);
}

/* A prompt of n tokens through main and through the link; the reference runs it itself if main's rows never come. */
static void run_prompt(struct alignment_rig *g, uint32_t n)
{
	struct od_row rows[MAX_ROWS], own[MAX_ROWS];

	g->sequence++;
	g->prompt = n;
	g->n = 0;
	start_samplers(g);
	od_seq_state_set_length(g->state, 0);
	od_seq_state_set_length(g->ref_state, 0);
	for (uint32_t at = 0, m; at < n; at += m) {
		struct odm_step step;

		m = n - at < MAX_ROWS ? n - at : MAX_ROWS;
		for (uint32_t i = 0; i < m; i++) {
			rows[i] = (struct od_row){ g->state, at + i, (int32_t)draw(VOCAB) };
			own[i] = (struct od_row){ g->ref_state, at + i, rows[i].token };
			assert_int_equal(od_sampler_prompt(g->sampler, &rows[i].token, 1), OD_OK);
			assert_int_equal(od_sampler_prompt(g->ref_sampler, &rows[i].token, 1), OD_OK);
		}
		step = make_step(g, ODM_PREFILL, rows, m);
		odm_shadow_link_step(&g->link, 0, &step);
		run_pass(&g->main_pass, rows, m, NULL);
		g->next = at + m == n ? choose(g, m - 1) : 0;
		end_pass(&g->main_pass);
		if (g->align.kv_period > 0 || !g->reference)
			continue;
		run_pass(&g->ref_pass, own, m, NULL);
		end_pass(&g->ref_pass);
	}
	g->first = g->step + 1;
	if (g->align.kv_period > 0)
		give_rows(g, 0, n);
}

/* Does what a shadow with these periods does in decode step g->n. */
static void run_reference(struct alignment_rig *g, uint32_t position, int32_t true_token)
{
	uint32_t i = g->align.token_period, j = g->align.kv_period;
	bool given = g->n == 1 || (i > 0 && (g->n - 1) % i == 0);
	struct od_row row = { g->ref_state, position, given ? true_token : g->ref_next };

	g->ref_token = row.token;
	od_seq_state_set_length(g->ref_state, position);
	run_pass(&g->ref_pass, &row, 1, g->ref_route);
	assert_int_equal(od_sampler_accept(g->ref_sampler, &row.token, 1), OD_OK);
	g->ref_next = sample(g->ref_sampler, &g->ref_pass, 0);
	if (j > 0 && g->n % j == 0) /* after the step */
		give_rows(g, position + 1 - j, position + 1);
}

/* A decode step: STEP leaves, main computes; its layers' rows leave by send_layer_rows. */
static struct odm_step begin_decode(struct alignment_rig *g, struct od_row *row)
{
	struct odm_step step;

	*row = (struct od_row){ g->state, od_seq_state_length(g->state), g->next };
	assert_true(row->position < g->ctx);
	g->n++;
	step = make_step(g, ODM_DECODE, row, 1);
	odm_shadow_link_step(&g->link, 0, &step);
	run_pass(&g->main_pass, row, 1, g->route);
	assert_int_equal(od_sampler_accept(g->sampler, &row->token, 1), OD_OK);
	return step;
}

static void end_decode(struct alignment_rig *g)
{
	g->next = choose(g, 0);
	end_pass(&g->main_pass);
}

static bool predicted(const struct alignment_rig *g, uint64_t step)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		if (!g->heard[step % NUMBERS].any[l])
			return false;
	return true;
}

/* In lockstep: whatever either side does, the other has all the time it wants. */
static void decode_step(struct alignment_rig *g, bool check)
{
	struct od_row row;
	struct odm_step step = begin_decode(g, &row);
	const struct alignment_heard *h = &g->heard[g->step % NUMBERS];

	if (check)
		run_reference(g, row.position, row.token);
	settle_rig(g);
	for (uint32_t l = 0; l < LAYERS; l++) {
		odm_shadow_link_state(&g->link, 0, &step, l);
		settle_rig(g);
	}
	end_decode(g);
	assert_true(predicted(g, g->step));
	for (uint32_t l = 0; l < LAYERS && check; l++) {
		assert_int_equal(h->token[l], g->ref_token);
		assert_memory_equal(h->route[l], g->ref_route + l * TOP_K, sizeof(h->route[0]));
	}
}

static void close_main(struct alignment_rig *g)
{
	odm_shadow_link_close_sequence(&g->link, 0, g->sequence);
}

/* ---- The definition, step by step ---- */

static const uint32_t periods[][2] = { { 1, 1 }, { 1, 4 }, { 1, 0 }, { 4, 1 }, { 0, 1 }, { 0, 0 }, { 3, 2 }, { 2, 7 } };

static void assert_counts(const struct alignment_rig *g, uint32_t steps, const struct alignment_setting *t)
{
	const uint64_t *s = g->counters, *sent = g->sent;
	uint32_t i = t->token_period, j = t->kv_period, given = i > 0 ? (steps + i - 1) / i : 1;
	size_t width = t->profile == OD_PROFILE_BF16 ? 2 : 4;
	uint64_t rows = j > 0 ? g->prompt + steps / j * j : 0;

	assert_int_equal(sent[OD_C_STATE_BYTES], rows * LAYERS * 2 * KV_DIM * width);
	assert_true(sent[OD_C_ASKED_BYTES] + sent[OD_C_ALIGN_BYTES] > sent[OD_C_STATE_BYTES]);
	assert_int_equal(s[OD_C_SHADOW_CHOSEN], steps - given);
	assert_int_equal(s[OD_C_SHADOW_FILLED], j > 0 ? 0 : g->prompt);
	assert_int_equal(s[OD_C_SHADOW_OVERTAKEN], 0);
	if (!t->early) {
		assert_int_equal(s[OD_C_SHADOW_CONFIRMED] + s[OD_C_SHADOW_MISTAKEN], 0);
		return;
	}
	assert_int_equal(s[OD_C_SHADOW_CONFIRMED] + s[OD_C_SHADOW_MISTAKEN], steps - 1);
	if (t->same_weights && t->sampled) /* equal numbers, drawn in the same way */
		assert_int_equal(s[OD_C_SHADOW_MISTAKEN], 0);
	else if (i == 1 && !t->sampled)
		assert_true(s[OD_C_SHADOW_MISTAKEN] > 0 && (s[OD_C_SHADOW_CONFIRMED] > 0 || !t->same_weights));
}

static void one_setting(const struct alignment_setting *t, uint64_t from_seed)
{
	struct alignment_rig *g = open_rig(t, 64, from_seed);
	uint32_t steps = 0;

	run_prompt(g, 1 + draw(PROMPT_MAX));
	settle_rig(g);
	for (; steps < 34; steps++) {
		decode_step(g, true);
		/* A guess that is out already is the token that the definition chooses next. */
		for (uint32_t l = 0; l < LAYERS && t->early; l++)
			if (g->heard[(g->step + 1) % NUMBERS].any[l])
				assert_int_equal(g->heard[(g->step + 1) % NUMBERS].token[l], g->ref_next);
	}
	assert_counts(g, steps, t);
	close_main(g);
	settle_rig(g);
	close_rig(g);
}

static void test_definition(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(periods) / sizeof(periods[0]) * 16; i++) {
		const uint32_t *p = periods[i / 16];
		struct alignment_setting t = { p[0],	     p[1],
					       (i & 1) != 0, (i & 2) != 0,
					       (i & 4) != 0, (i & 8) != 0 ? OD_PROFILE_BF16 : OD_PROFILE_F32 };

		one_setting(&t, 100 + i);
	}
}

/* With the same weights nothing differs from main, whatever is aligned: full recall (OD-MoE Eq. 2). */
static void test_same_weights(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(periods) / sizeof(periods[0]) * 2; i++) {
		struct alignment_setting t = {
			periods[i / 2][0], periods[i / 2][1], i & 1, true, true, OD_PROFILE_F32
		};
		struct alignment_rig *g = open_rig(&t, 64, 900 + i);

		run_prompt(g, 5);
		for (int n = 0; n < 20; n++) {
			decode_step(g, true);
			assert_memory_equal(g->heard[g->step].route, g->route, sizeof(g->route));
		}
		close_rig(g);
	}
}

/* ---- Sequences: short, full, ended ---- */

static void test_ends(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(periods) / sizeof(periods[0]) * 2; i++) {
		struct alignment_setting t = {
			periods[i / 2][0], periods[i / 2][1], i & 1, true, false, OD_PROFILE_F32
		};
		struct alignment_rig *g = open_rig(&t, 16, 300 + i);
		struct od_row row;

		run_prompt(g, 1); /* a prompt of one token, to the end of the context */
		while (od_seq_state_length(g->state) < g->ctx)
			decode_step(g, true);
		assert_false(g->heard[g->step + 1].any[0]); /* there is no step to run ahead into */
		close_main(g);
		run_prompt(g, 4);
		for (int n = 0; n < 3; n++)
			decode_step(g, true);
		for (int n = 0; n < 2; n++) /* in the middle of a run-ahead main takes an end-of-text token */
			work_once(g);
		close_main(g);
		run_prompt(g, 16); /* a prompt as long as the context: nothing to predict */
		close_main(g);
		run_prompt(g, 15);
		begin_decode(g, &row);
		settle_rig(g);
		assert_true(predicted(g, g->step));
		close_rig(g);
	}
}

/* ---- A shadow that starts late ---- */

/* Main goes on: so many pieces of the shadow's work for a layer of main's. */
static void decode_at_pace(struct alignment_rig *g, unsigned pieces)
{
	struct od_row row;
	struct odm_step step = begin_decode(g, &row);

	for (uint32_t l = 0; l < LAYERS; l++) {
		odm_shadow_link_state(&g->link, 0, &step, l);
		for (unsigned i = 0; i < pieces; i++) {
			while (deliver_one(g))
				;
			work_once(g);
			answer(g);
		}
	}
	end_decode(g);
}

static void test_restart(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < sizeof(periods) / sizeof(periods[0]); i++) {
		struct alignment_setting t = { periods[i][0], periods[i][1], i % 2 == 0,
					       false,	      i % 3 == 0,    OD_PROFILE_F32 };
		struct alignment_rig *g = open_rig(&t, 4096, 500 + i);
		unsigned behind = 0, after = 0;

		g->reference = false;
		run_prompt(g, LONG);
		for (int n = 0; n < 3; n++)
			decode_at_pace(g, 0);
		while (g->n_queued > 0) /* to the shadow that dies: its session is gone */
			free_packet(&g->queue[--g->n_queued]);
		ods_emulator_free(g->emulator);
		open_emulator(g);
		g->link.told[0].opened = false; /* as odm_shadow_link_follow has it for another session */
		g->judge = t.token_period == 1 && t.kv_period == 1;
		while (after < 40) {
			decode_at_pace(g, behind == 0 ? 1 : 8);
			assert_true(behind > 0 || g->given == 1); /* the first of a session always has its token */
			if (predicted(g, g->step))
				after++;
			else
				behind++;
			assert_true(g->step < NUMBERS && behind < 600);
		}
		assert_true(behind > (t.kv_period == 0 ? 10 : 0)); /* it took a while, and nobody waited for it */
		assert_true(g->counters[OD_C_SHADOW_FILLED] >= (t.kv_period == 0 ? LONG : 0));
		assert_true(g->judge == (g->judged > 0));
		assert_true(t.kv_period == 0 ? g->sent[OD_C_STATE_BYTES] == 0 :
					       g->sent[OD_C_STATE_BYTES] > LONG * LAYERS * 2 * KV_DIM);
		close_rig(g);
	}
}

/* A shadow that was away for a few steps follows its own token up; for many, it asks for main's. */
static void test_pause(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		struct alignment_setting t = { 0, i & 1, (i & 2) != 0, true, false, OD_PROFILE_F32 };
		struct alignment_rig *g = open_rig(&t, 256, 40 + i);

		run_prompt(g, 6);
		for (int n = 0; n < 3; n++)
			decode_step(g, true);
		for (int pause = 1; pause < 30; pause *= 4) {
			unsigned away = 0, asks = g->token_asks;

			decode_at_pace(g, 1); /* it stops in the middle */
			for (int n = 0; n < pause; n++)
				decode_at_pace(g, 0);
			do {
				decode_at_pace(g, 12);
				assert_true(++away < 20);
			} while (!predicted(g, g->step));
			assert_true(t.kv_period == 0 || (g->token_asks > asks) == (pause > (int)ODS_MAX_CATCH_UP));
		}
		close_rig(g);
	}
}

/* SEQ_OPEN never comes: the shadow asks for rows that it cannot have, and so learns of it. */
static void test_lost_open(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		struct alignment_setting t = { i & 1, 0, (i & 2) != 0, true, false, OD_PROFILE_F32 };
		struct alignment_rig *g = open_rig(&t, 64, 70 + i);

		run_prompt(g, 6);
		while (g->n_queued > 0)
			free_packet(&g->queue[--g->n_queued]);
		decode_step(g, false);
		assert_true(g->heard[g->step].token[0] == g->link.token[6] && g->sent[OD_C_STATE_BYTES] == 0);
		decode_step(g, false);
		close_rig(g);
	}
}

/* Main's word goes over our own choice, and over the rows that were made from it. */
static void test_corrected(void **state)
{
	struct alignment_setting t = { 0, 0, true, false, false, OD_PROFILE_F32 };
	struct alignment_rig *g = open_rig(&t, 64, 81);
	Od__TokensRequest all = OD__TOKENS_REQUEST__INIT;
	uint16_t route[LAYERS * MAX_ROWS * TOP_K];
	struct od_row rows[MAX_ROWS];

	(void)state;
	run_prompt(g, 3);
	for (int n = 0; n < 4; n++)
		decode_step(g, true);
	assert_int_not_equal(g->ref_token, g->link.token[6]); /* it has gone its own way */
	all.sequence = g->sequence;
	all.n = 64;
	odm_shadow_link_answer_tokens(&g->link, 0, &all);
	settle_rig(g);
	for (uint32_t i = 0; i < 7; i++)
		rows[i] = (struct od_row){ g->ref_state, i, g->link.token[i] };
	od_seq_state_set_length(g->ref_state, 0);
	run_pass(&g->ref_pass, rows, 7, route);
	end_pass(&g->ref_pass);
	rows[0] = (struct od_row){ g->ref_state, 7, sample(g->ref_sampler, &g->ref_pass, 6) };
	run_pass(&g->ref_pass, rows, 1, route);
	decode_step(g, false);
	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_int_equal(g->heard[g->step].token[l], rows[0].token);
		assert_memory_equal(g->heard[g->step].route[l], route + l * TOP_K, TOP_K * sizeof(*route));
	}
	close_rig(g);
}

/* ---- A device that fails for good ---- */

/* A step is tried once; then nothing is done until main says something. */
static void test_dead_device(void **state)
{
	struct alignment_setting t = { 1, 0, true, false, false, OD_PROFILE_F32 };
	struct alignment_rig *g = open_rig(&t, 96, 91);
	struct failure f;

	(void)state;
	open_failure(&f, &g->shadow_model);
	g->reference = false;
	run_prompt(g, 40); /* more than is computed from tokens at a time */
	for (int step = 0; step < 3; step++) {
		struct od_row row;
		unsigned failed = 0;
		bool did = true;

		begin_decode(g, &row);
		while (deliver_one(g))
			;
		for (int i = 0; i < 100; i++) {
			struct od_err err;

			fail_device(&f);
			failed += ods_emulator_work(g->emulator, g->now, &did, &err) != OD_OK;
		}
		end_decode(g);
		assert_int_equal(failed, 1);
		assert_false(did);
	}
	close_failure(&f);
	close_rig(g);
}

/* ---- A bad channel ---- */

static void bad_life(const struct alignment_setting *t, uint64_t from_seed)
{
	struct alignment_rig *g = open_rig(t, 64, from_seed);
	unsigned clean = 0;

	g->judge = t->token_period == 1 && t->kv_period == 1;
	g->bad_channel = true;
	g->lose = draw(3) * 6;
	g->twice = draw(3) * 6;
	g->swap = draw(3) * 6;
	for (int life = 0; life < 8; life++) {
		run_prompt(g, 1 + draw(PROMPT_MAX));
		for (uint32_t n = draw(40); n > 0 && od_seq_state_length(g->state) < g->ctx; n--) {
			decode_at_pace(g, draw(12));
			g->now += draw((uint32_t)ODS_ASK_AGAIN_NS);
			if (chance(3)) /* messages on their way are lost, and the shadow with them */
				g->link.told[0].opened = false;
		}
		close_main(g);
	}
	g->lose = g->twice = g->swap = 0;
	while (g->n_queued > 0) /* late ones belong to the bad times */
		free_packet(&g->queue[--g->n_queued]);
	g->n_ask = g->n_ask_tokens = 0;
	run_prompt(g, 3);
	for (bool done = false; !done; clean++) { /* a lost SEQ_CLOSE takes a place for 64 steps */
		if (od_seq_state_length(g->state) == g->ctx) {
			close_main(g);
			run_prompt(g, 3);
		}
		decode_at_pace(g, 40);
		g->now += 2 * ODS_ASK_AGAIN_NS;
		done = predicted(g, g->step);
		assert_true(clean < 80);
	}
	close_rig(g);
}

static void test_bad_channel(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 320; i++) {
		const uint32_t *p = periods[i % 8];
		struct alignment_setting t = { p[0],	      p[1],
					       (i & 8) != 0,  (i & 16) != 0,
					       (i & 32) != 0, (i & 64) != 0 ? OD_PROFILE_BF16 : OD_PROFILE_F32 };

		bad_life(&t, 5000 + i);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_definition),  cmocka_unit_test(test_same_weights),
		cmocka_unit_test(test_ends),	    cmocka_unit_test(test_restart),
		cmocka_unit_test(test_pause),	    cmocka_unit_test(test_lost_open),
		cmocka_unit_test(test_corrected),   cmocka_unit_test(test_dead_device),
		cmocka_unit_test(test_bad_channel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
