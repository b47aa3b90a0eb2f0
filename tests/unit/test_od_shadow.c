/* od-shadow as a process against a main that is played here over the wire: handshake, prompt, decode steps with state,
 * rubbish in between, and one session after the other. What a prediction must be comes from the pack's weights and a
 * forward pass over main's own keys and values. */
#include "common/base/clock.h"
#include "common/model/resident.h"
#include "common/net/liveness.h"
#include "tests/unit/state_util.h"
#include "tests/unit/shadow_process.h" /* behind them: its names are short */

#define CTX 96u
#define PROMPT 24u
#define STEPS 20u
#define SEQUENCE 5u

/* ---- Main, played ---- */

struct pass {
	struct od_device *device;
	struct od_shadow_store *store;
	struct od_state_pool *states; /* for one sequence */
	struct od_seq_state *state;
	struct od_forward *forward;
	struct od_expert_runner *experts;
	float *logits; /* of the last row */
};

struct heard { /* the newest PREDICT for (step, m) */
	bool any;
	int32_t token;
	uint16_t expert[MAX_K];
};

struct fake {
	void *context, *control, *data;
	uint64_t session, pinged_ns;
	enum od_profile profile;
	struct pass own, judge; /* judge: the shadow's weights */
	struct heard heard[STEPS + 2][MAX_LAYERS];
	uint64_t answered; /* STATE_REQUESTs */
	uint64_t ignore;   /* STATE_REQUESTs left to do so with */
	uint64_t pongs;
	uint64_t c[OD_N_COUNTERS]; /* as the newest PONG has them */
	uint64_t last_step;
};

static void open_pass(struct pass *p, const struct od_shadow_choice *c, enum od_profile profile)
{
	struct od_forward_opts o = { .config = cfg, .profile = profile, .max_rows = PROMPT };
	struct od_err err;

	o.device = p->device = device_new(shadow_cpu, 1);
	assert_ok(od_shadow_load(&p->store, pack, p->device, c, 1, NULL, NULL, &err), &err);
	assert_ok(od_state_pool_new(&p->states, p->device, cfg, profile, CTX, 1, od_state_pages(CTX), &err), &err);
	p->state = open_seq(p->states);
	o.dense = od_shadow_dense(p->store);
	o.state = p->states;
	assert_ok(od_forward_new(&p->forward, &o, &err), &err);
	assert_ok(od_resident_new(&p->experts, &o, od_shadow_experts(p->store), &err), &err);
}

static void close_pass(struct pass *p)
{
	od_resident_free(p->experts);
	od_forward_free(p->forward);
	od_seq_state_free(p->state);
	od_state_pool_free(p->states);
	od_shadow_free(p->store);
	od_device_free(p->device);
}

/* All layers of one row; route [n_layers][top_k] when not NULL. */
static void run_rows(struct pass *p, const int32_t *token, size_t n, uint16_t *route)
{
	const uint32_t last = (uint32_t)n - 1;
	struct od_row rows[PROMPT];
	struct od_err err;

	for (size_t i = 0; i < n; i++)
		rows[i] = (struct od_row){ p->state, od_seq_state_length(p->state) + (uint32_t)i, token[i] };
	assert_ok(od_forward_begin(p->forward, 1, rows, n, &err), &err);
	for (uint32_t l = 0; l < cfg->n_layers; l++) {
		od_forward_attention(p->forward);
		if (route != NULL) {
			assert_ok(od_forward_fetch(p->forward, OD_FETCH_ROUTES, &err), &err);
			memcpy(route + l * cfg->top_k, od_forward_experts_of(p->forward, n - 1),
			       cfg->top_k * sizeof(*route));
		}
		assert_ok(od_forward_experts(p->forward, p->experts, &err), &err);
	}
	assert_ok(od_forward_logits(p->forward, &last, 1, &p->logits, &err), &err);
	assert_ok(od_forward_end(p->forward, NULL, &err), &err);
}

/* After the last row. */
static int32_t best_token(const struct fake *f)
{
	const float *logits = f->own.logits;
	uint32_t best = 0;

	for (uint32_t i = 1; i < cfg->vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

static void send_control(struct fake *f, Od__Header *h)
{
	h->session = f->session;
	await(f->control, ZMQ_POLLOUT);
	assert_int_equal(od_wire_send(f->control, NULL, h, NULL, 0), OD_OK);
}

static void send_data(struct fake *f, Od__Header *h, const struct od_out_frame *frames, size_t n)
{
	h->session = f->session;
	await(f->data, ZMQ_POLLOUT);
	assert_int_equal(od_wire_send(f->data, NULL, h, frames, n), OD_OK);
}

static void send_state(struct fake *f, uint64_t step, uint32_t layer, uint32_t begin, uint32_t n)
{
	size_t bytes = n * od_seq_state_row_bytes(f->own.state, layer, 0);
	char *rows = malloc(2 * bytes);
	const struct od_out_frame frames[2] = { { .bytes = rows, .len = bytes }, { .bytes = rows + bytes, .len = bytes } };
	Od__Header h = OD__HEADER__INIT;
	Od__State body = OD__STATE__INIT;
	Od__StateRange range = OD__STATE_RANGE__INIT, *ranges[] = { &range };

	assert_non_null(rows);
	get_rows(f->own.device, f->own.state, layer, 0, begin, n, rows);
	get_rows(f->own.device, f->own.state, layer, 1, begin, n, rows + bytes);
	range.sequence = SEQUENCE;
	range.begin = begin;
	range.n = n;
	body.layer = layer;
	body.ranges = ranges;
	body.n_ranges = 1;
	body.step = step;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	send_data(f, &h, frames, 2);
	free(rows);
}

static void send_step(struct fake *f, uint64_t number, uint32_t position, int32_t token)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Step body = OD__STEP__INIT;
	Od__StepRow row = OD__STEP_ROW__INIT, *rows[] = { &row };

	row.sequence = SEQUENCE;
	row.position = position;
	row.token = token;
	row.state_rows = 1;
	body.step = number;
	body.rows = rows;
	body.n_rows = 1;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	send_data(f, &h, NULL, 0);
}

static void on_predict(struct fake *f, const Od__Predict *p)
{
	const Od__PredictRow *r = p->rows[0];
	struct heard *h;
	uint64_t step;

	assert_true(p->n_rows == 1 && p->m < cfg->n_moe);
	assert_int_equal(r->sequence, SEQUENCE);
	assert_true(r->position >= PROMPT && r->position <= PROMPT + f->last_step);
	assert_int_equal(r->n_experts, od_prediction_candidates(cfg));
	assert_int_equal(r->n_probabilities, r->n_experts);
	for (size_t i = 1; i < r->n_experts; i++)
		assert_true(r->probabilities[i] <= r->probabilities[i - 1]);
	step = r->position - PROMPT + 1;
	h = &f->heard[step][p->m];
	h->any = true;
	h->token = r->token;
	for (size_t i = 0; i < cfg->top_k; i++)
		h->expert[i] = (uint16_t)r->experts[i];
}

static void on_request(struct fake *f, const Od__StateRequest *r)
{
	assert_int_equal(r->sequence, SEQUENCE);
	assert_true(r->layer < cfg->n_layers && r->n > 0 && r->begin + r->n <= od_seq_state_length(f->own.state));
	if (f->ignore > 0) {
		f->ignore--;
		return;
	}
	send_state(f, 0, r->layer, r->begin, r->n);
	f->answered++;
}

/* One message, if one comes soon; main's heartbeat goes out meanwhile, as slow as the test may be. */
static void pump(struct fake *f)
{
	zmq_pollitem_t item[] = { { .socket = f->control, .events = ZMQ_POLLIN },
				  { .socket = f->data, .events = ZMQ_POLLIN } };
	struct od_err err;
	struct od_msg m;

	if (od_now_ns() - f->pinged_ns > OD_PING_EVERY_NS) {
		Od__Header h = OD__HEADER__INIT;
		Od__Ping ping = OD__PING__INIT;

		h.body_case = OD__HEADER__BODY_PING;
		h.ping = &ping;
		send_control(f, &h);
		f->pinged_ns = od_now_ns();
	}
	zmq_poll(item, 2, 50);
	if (od_wire_recv(f->control, false, &m, &err) == OD_OK) {
		if (m.header->body_case == OD__HEADER__BODY_PREDICT)
			on_predict(f, m.header->predict);
		else if (m.header->body_case == OD__HEADER__BODY_PONG) {
			f->pongs++;
			od_pong_get(m.header->pong, f->c);
		} else
			fail_msg("unexpected %s", od_body_name(m.header->body_case));
		od_msg_fini(&m);
	}
	if (od_wire_recv(f->data, false, &m, &err) == OD_OK) {
		if (m.header->body_case == OD__HEADER__BODY_STATE_REQUEST)
			on_request(f, m.header->state_request);
		else
			fail_msg("unexpected %s", od_body_name(m.header->body_case));
		od_msg_fini(&m);
	}
}

static void hello_of(Od__Hello *hello, uint8_t fingerprint[32], enum od_profile profile)
{
	const struct od_backend *be;
	struct od_err err;

	assert_ok(od_backend_cpu(&be, shadow_cpu, profile, &err), &err);
	for (size_t i = 0; i < 32; i++) {
		const char hex[3] = { od_pack_fingerprint(pack)[2 * i], od_pack_fingerprint(pack)[2 * i + 1], 0 };

		fingerprint[i] = (uint8_t)strtoul(hex, NULL, 16);
	}
	od__hello__init(hello);
	hello->role = (char *)"shadow";
	hello->fingerprint.data = fingerprint;
	hello->fingerprint.len = 32;
	hello->profile = profile;
	hello->kernel_class = (char *)be->kernel_class;
	hello->main_name = (char *)"test";
	hello->ctx_tokens = CTX;
	hello->max_rows = 65536; /* of prompts: no reason to refuse */
	hello->max_sequences = 4;
}

static void begin_session(struct fake *f, uint16_t port, enum od_profile profile, const char *precision)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Attach attach = OD__ATTACH__INIT;
	Od__Hello hello;
	uint8_t fingerprint[32];
	struct od_msg m;

	memset(f->heard, 0, sizeof(f->heard));
	f->profile = profile;
	f->answered = f->ignore = f->session = f->last_step = 0;
	f->pinged_ns = od_now_ns();
	f->control = connect_to(f->context, port);
	hello_of(&hello, fingerprint, profile);
	h.body_case = OD__HEADER__BODY_HELLO;
	h.hello = &hello;
	send_control(f, &h);
	get_kind(f->control, &m, OD__HEADER__BODY_WELCOME);
	f->session = m.header->session;
	assert_int_not_equal(f->session, 0);
	assert_string_equal(m.header->welcome->role, "shadow");
	assert_string_equal(m.header->welcome->precision, precision);
	assert_int_equal(m.header->welcome->threads, 2);
	assert_true(m.header->welcome->memory_bytes > 0);
	f->data = connect_to(f->context, (uint16_t)m.header->welcome->data_port);
	od_msg_fini(&m);
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &attach;
	send_data(f, &h, NULL, 0);
	get_kind(f->data, &m, OD__HEADER__BODY_ATTACHED);
	od_msg_fini(&m);
}

static void end_session(struct fake *f)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Bye bye = OD__BYE__INIT;

	bye.reason = (char *)"enough";
	h.body_case = OD__HEADER__BODY_BYE;
	h.bye = &bye;
	send_control(f, &h);
	/* Gone when another HELLO is welcome: the next session sees to that. */
	od_close_socket(f->control);
	od_close_socket(f->data);
	f->control = f->data = NULL;
}

static void open_fake(struct fake *f, const struct od_shadow_choice *c, enum od_profile profile)
{
	memset(f, 0, sizeof(*f));
	f->context = od_zmq_context();
	open_pass(&f->own, &bf16, profile);
	open_pass(&f->judge, c, profile);
}

static void close_fake(struct fake *f)
{
	close_pass(&f->own);
	close_pass(&f->judge);
	zmq_ctx_term(f->context);
}

/* Before a session begins: main must not be silent while it lasts, as it would be here on a slow machine. */
static int32_t prefill(struct fake *f)
{
	int32_t prompt[PROMPT];

	for (uint32_t i = 0; i < PROMPT; i++)
		prompt[i] = (int32_t)((i * 37 + 11) % cfg->vocab);
	od_seq_state_set_length(f->own.state, 0);
	run_rows(&f->own, prompt, PROMPT, NULL);
	return best_token(f);
}

static bool heard_all(const struct fake *f, uint64_t step, int32_t token)
{
	for (uint32_t l = 0; l < cfg->n_layers; l++)
		if (!f->heard[step][l].any || f->heard[step][l].token != token)
			return false;
	return true;
}

/* What the shadow must have said: its weights over main's own keys and values. */
static void judge(struct fake *f, uint64_t step, uint32_t position, int32_t token)
{
	uint16_t route[MAX_LAYERS * MAX_K];

	copy_rows(f->judge.device, f->judge.state, f->own.device, f->own.state, cfg->n_layers, 0, position);
	od_seq_state_set_length(f->judge.state, position);
	run_rows(&f->judge, &token, 1, route);
	for (uint32_t l = 0; l < cfg->n_layers; l++)
		for (uint32_t i = 0; i < cfg->top_k; i++)
			assert_int_equal(f->heard[step][l].expert[i], route[l * cfg->top_k + i]);
}

/* A step of main's: STEP, its rows, and the shadow's word for every layer. exact: the shadow has main's weights. */
static int32_t step(struct fake *f, int32_t token, bool exact, bool send_rows)
{
	uint32_t position = od_seq_state_length(f->own.state);
	uint16_t route[MAX_LAYERS * MAX_K];
	uint64_t number = ++f->last_step, begin_ns = od_now_ns();

	send_step(f, number, position, token);
	run_rows(&f->own, &token, 1, route);
	for (uint32_t l = 0; l < cfg->n_layers && send_rows; l++)
		send_state(f, number, l, position, 1);
	while (!heard_all(f, number, token)) {
		pump(f);
		if (od_now_ns() - begin_ns > HANG_MS * OD_NS_PER_MS)
			fail_msg("step %llu is not predicted", (unsigned long long)number);
	}
	judge(f, number, position, token);
	for (uint32_t l = 0; l < cfg->n_layers && exact; l++) /* full recall: OD-MoE Eq. 2 */
		for (uint32_t i = 0; i < cfg->top_k; i++)
			assert_int_equal(f->heard[number][l].expert[i], route[l * cfg->top_k + i]);
	return best_token(f);
}

/* Its PONGs come to say so; they never say more. */
static void wait_for_count(struct fake *f, enum od_counter counter, uint64_t n)
{
	const uint64_t begin_ns = od_now_ns();

	while (f->c[counter] < n) {
		pump(f);
		if (od_now_ns() - begin_ns > HANG_MS * OD_NS_PER_MS)
			fail_msg("%s stays %llu", od_counter_info[counter].name, (unsigned long long)f->c[counter]);
	}
	assert_int_equal(f->c[counter], n);
}

/* ---- Tests ---- */

static void decode(const struct od_shadow_choice *c, const char *called, const char *departure, enum od_profile profile)
{
	bool exact = c->experts == OD_PRECISION_BF16 && c->dense == OD_PRECISION_BF16;
	struct fake *f = malloc(sizeof(*f));
	uint16_t port;
	pid_t pid;
	int32_t token;

	assert_non_null(f);
	open_fake(f, c, profile);
	pid = start_shadow(c, departure, &port);
	token = prefill(f);
	begin_session(f, port, profile, called);
	for (uint32_t i = 0; i < STEPS; i++) {
		if (i % 5 == 4) /* sampled, and not what the shadow thinks */
			token = (token + 1) % (int32_t)cfg->vocab;
		token = step(f, token, exact, i != 7); /* the rows of one step never leave: they are asked for */
	}
	assert_int_equal(f->answered, 2 * cfg->n_layers);
	end_session(f);
	stop_shadow(pid);
	close_fake(f);
	free(f);
}

static void test_bf16(void **state)
{
	(void)state;
	decode(&bf16, "bf16", "early", OD_PROFILE_F32);
	decode(&bf16, "bf16", "late", OD_PROFILE_BF16);
}

static void test_int8(void **state)
{
	(void)state;
	decode(&int8, "int8", "early", OD_PROFILE_BF16);
}

/* Experts and attention from different files, one of them the pack's own. */
static void test_mixtures(void **state)
{
	static const struct od_shadow_choice fp16_int8 = { OD_PRECISION_FP16, OD_PRECISION_INT8, OD_ACT_FASTER, OD_FORM_PLAIN };
	static const struct od_shadow_choice bf16_fp16 = { OD_PRECISION_BF16, OD_PRECISION_FP16, OD_ACT_FASTER, OD_FORM_PLAIN };
	static const struct od_shadow_choice int8_bf16 = { OD_PRECISION_INT8, OD_PRECISION_BF16, OD_ACT_FASTER, OD_FORM_PLAIN };
	static const struct od_shadow_choice nf4_int8 = { OD_PRECISION_NF4, OD_PRECISION_INT8, OD_ACT_FASTER, OD_FORM_PLAIN };
	static const struct od_shadow_choice nf4 = { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_FASTER, OD_FORM_PLAIN };
	static const struct od_shadow_choice int8_g64 = { OD_PRECISION_INT8_G64, OD_PRECISION_INT8_G64, OD_ACT_F32, OD_FORM_PLAIN };

	(void)state;
	decode(&fp16_int8, "fp16+int8", "early", OD_PROFILE_F32);
	decode(&bf16_fp16, "bf16+fp16", "late", OD_PROFILE_F32);
	decode(&int8_bf16, "int8+bf16", "early", OD_PROFILE_F32);
	decode(&nf4_int8, "nf4+int8", "early", OD_PROFILE_F32);
	decode(&nf4, "nf4", "early", OD_PROFILE_BF16);
	decode(&int8_g64, "int8-g64", "late", OD_PROFILE_F32);
}

/* Rows that meet NF4 are rounded to INT8 where that is faster, by what BENCHMARKS.md says, and nowhere else. */
static void test_rows(void **state)
{
	static const struct {
		enum od_cpu cpu;
		struct od_shadow_choice choice;
	} said[] = {
		{ OD_CPU_SCALAR, { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_F32, OD_FORM_PLAIN } },
		{ OD_CPU_AVX2, { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_INT8, OD_FORM_PLAIN } },
		{ OD_CPU_AVX2, { OD_PRECISION_INT8, OD_PRECISION_INT8, OD_ACT_F32, OD_FORM_PLAIN } },
		{ OD_CPU_AVX512, { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_F32, OD_FORM_PLAIN } },
		{ OD_CPU_NEON, { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_F32, OD_FORM_PLAIN } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		const struct od_backend *be;

		shadow_cpu = said[i].cpu;
		if (od_backend_cpu(&be, shadow_cpu, OD_PROFILE_F32, NULL) == OD_OK)
			decode(&said[i].choice, od_precision_names[said[i].choice.experts - 1], "early", OD_PROFILE_F32);
	}
	shadow_cpu = OD_CPU_AUTO;
}

/* The message says what to type. */
static void test_no_such_shadow(void **state)
{
	const char *const args[] = { "od-shadow", "--pack", pack_dir, "--precision", "nf4", "--port", "0", NULL };
	char text[4096], command[160], file[160], hidden[160];
	int errors;
	pid_t pid;

	(void)state;
	snprintf(file, sizeof(file), "%s/shadow-nf4.bin", pack_dir);
	snprintf(hidden, sizeof(hidden), "%s/elsewhere", pack_dir);
	assert_int_equal(rename(file, hidden), 0);
	pid = start(args, NULL, &errors);
	read_all(errors, text, sizeof(text));
	assert_int_equal(rename(hidden, file), 0);
	assert_int_equal(finish(pid), 1);
	snprintf(command, sizeof(command), "od-pack shadow %s nf4", pack_dir);
	assert_says(text, command);
}

static void put_bad(struct fake *f, uint64_t sequence, uint32_t layer, uint32_t begin, uint32_t n, size_t k_bytes,
		    size_t v_bytes, size_t n_frames)
{
	void *zero = calloc(1, k_bytes + v_bytes + 1);
	const struct od_out_frame frames[2] = { { .bytes = zero, .len = k_bytes }, { .bytes = zero, .len = v_bytes } };
	Od__Header h = OD__HEADER__INIT;
	Od__State body = OD__STATE__INIT;
	Od__StateRange range = OD__STATE_RANGE__INIT, *ranges[] = { &range };

	range.sequence = sequence;
	range.begin = begin;
	range.n = n;
	body.layer = layer;
	body.ranges = ranges;
	body.n_ranges = 1;
	h.body_case = OD__HEADER__BODY_STATE;
	h.state = &body;
	send_data(f, &h, frames, n_frames);
	free(zero);
}

static void put_bad_open(struct fake *f, uint64_t sequence, double temperature, double penalty)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen body = OD__SEQ_OPEN__INIT;

	body.sequence = sequence;
	body.temperature = temperature;
	body.top_p = 1;
	body.repetition_penalty = penalty;
	body.own_state = true;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &body;
	send_data(f, &h, NULL, 0);
}

static void put_bad_share(struct fake *f, uint32_t tokens)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen body = OD__SEQ_OPEN__INIT;

	body.sequence = SEQUENCE;
	body.top_p = body.repetition_penalty = 1;
	body.shared_sequence = SEQUENCE;
	body.shared_tokens = tokens;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &body;
	send_data(f, &h, NULL, 0);
}

/* Rows of a sequence with another's between them. */
static void put_mixed_step(struct fake *f, uint64_t number)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Step body = OD__STEP__INIT;
	Od__StepRow row[3], *rows[] = { &row[0], &row[1], &row[2] };

	for (size_t i = 0; i < 3; i++) {
		od__step_row__init(&row[i]);
		row[i].sequence = i == 1 ? SEQUENCE + 7 : SEQUENCE;
		row[i].position = i == 2 ? 1 : 0;
	}
	body.step = number;
	body.rows = rows;
	body.n_rows = 3;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	send_data(f, &h, NULL, 0);
}

static void put_bad_tokens(struct fake *f, uint64_t sequence, uint32_t begin, uint32_t id, size_t n)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Tokens body = OD__TOKENS__INIT;
	uint32_t ids[CTX + 1];

	assert_true(n <= CTX + 1);
	for (size_t i = 0; i < n; i++)
		ids[i] = id;
	body.sequence = sequence;
	body.begin = begin;
	body.ids = ids;
	body.n_ids = n;
	h.body_case = OD__HEADER__BODY_TOKENS;
	h.tokens = &body;
	send_data(f, &h, NULL, 0);
}

static void put_bad_step(struct fake *f, uint64_t number, uint32_t position, int32_t token, uint32_t then, size_t n)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Step body = OD__STEP__INIT;
	Od__StepRow row = OD__STEP_ROW__INIT, other = OD__STEP_ROW__INIT, *rows[] = { &row, &other };

	row.sequence = other.sequence = SEQUENCE;
	row.position = position;
	other.position = then;
	row.token = token;
	body.step = number;
	body.rows = rows;
	body.n_rows = n;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	send_data(f, &h, NULL, 0);
}

/* Everything that must be dropped, and nothing else suffers. On the data socket: */
#define N_RUBBISH 36
static void put_rubbish(struct fake *f)
{
	size_t row = od_seq_state_row_bytes(f->own.state, 0, 0);
	Od__Header h = OD__HEADER__INIT;
	Od__SeqTruncate truncate = OD__SEQ_TRUNCATE__INIT;
	Od__SeqClose close_other = OD__SEQ_CLOSE__INIT;
	Od__Want want = OD__WANT__INIT;

	put_bad(f, SEQUENCE + 1, 0, 0, 1, row, row, 2);
	put_bad(f, SEQUENCE, cfg->n_layers, 0, 1, row, row, 2);
	put_bad(f, SEQUENCE, UINT32_MAX, 0, 1, row, row, 2);
	put_bad(f, SEQUENCE, 0, CTX, 1, row, row, 2);
	put_bad(f, SEQUENCE, 0, CTX - 1, 2, 2 * row, 2 * row, 2);
	put_bad(f, SEQUENCE, 0, 1, UINT32_MAX, row, row, 2);
	put_bad(f, SEQUENCE, 0, 0, 0, 0, 0, 2);
	put_bad(f, SEQUENCE, 0, 0, 1, row - 1, row - 1, 2);
	put_bad(f, SEQUENCE, 0, 0, 1, row + 1, row + 1, 2);
	put_bad(f, SEQUENCE, 0, 0, 1, row, row - 2, 2);
	put_bad(f, SEQUENCE, 0, 0, 1, row, row, 1);
	put_bad(f, SEQUENCE, 0, 0, 1, row, row, 0);
	put_bad_step(f, f->last_step, 0, 0, 0, 1);			    /* twice */
	put_bad_step(f, f->last_step + 9, CTX, 0, 0, 1);		    /* outside the context */
	put_bad_step(f, f->last_step + 9, 0, (int32_t)cfg->vocab, 0, 1); /* no such token */
	put_bad_step(f, f->last_step + 9, 0, -2, 0, 1);
	put_bad_step(f, f->last_step + 9, 3, 0, 5, 2); /* a gap */
	put_bad_step(f, f->last_step + 9, 3, 0, 5, 0);
	put_mixed_step(f, f->last_step + 9);
	put_bad_share(f, 63);
	put_bad_share(f, 128); /* more than the context */
	put_bad_open(f, 0, 0, 1);
	put_bad_open(f, SEQUENCE, -1, 1);
	put_bad_open(f, SEQUENCE, 1, 0);
	put_bad_open(f, SEQUENCE, NAN, 1);
	put_bad_tokens(f, SEQUENCE + 1, 0, 0, 1);
	put_bad_tokens(f, SEQUENCE, 0, 0, 0);
	put_bad_tokens(f, SEQUENCE, 0, cfg->vocab, 1);
	put_bad_tokens(f, SEQUENCE, 0, UINT32_MAX, 1);
	put_bad_tokens(f, SEQUENCE, CTX, 0, 1);
	put_bad_tokens(f, SEQUENCE, UINT32_MAX, 0, 2);
	put_bad_tokens(f, SEQUENCE, 0, 0, CTX + 1);
	truncate.sequence = SEQUENCE + 1;
	h.body_case = OD__HEADER__BODY_SEQ_TRUNCATE;
	h.seq_truncate = &truncate;
	send_data(f, &h, NULL, 0);
	truncate.sequence = SEQUENCE;
	truncate.length = CTX + 1;
	send_data(f, &h, NULL, 0);
	close_other.sequence = SEQUENCE + 1;
	h.body_case = OD__HEADER__BODY_SEQ_CLOSE;
	h.seq_close = &close_other;
	send_data(f, &h, NULL, 0);
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &want;
	send_data(f, &h, NULL, 0);
	send_control(f, &h);
}

static void test_rubbish(void **state)
{
	struct fake *f = malloc(sizeof(*f));
	uint16_t port;
	int32_t token;
	pid_t pid;

	(void)state;
	assert_non_null(f);
	open_fake(f, &bf16, OD_PROFILE_F32);
	pid = start_shadow(&bf16, "early", &port);
	put_garbage(f->context, port);
	token = prefill(f);
	begin_session(f, port, OD_PROFILE_F32, "bf16");
	put_rubbish(f);
	f->ignore = 2; /* asked again after a second */
	for (uint32_t i = 0; i < 6; i++) {
		token = step(f, token, true, true);
		put_rubbish(f);
	}
	assert_int_equal(f->answered, cfg->n_layers);
	assert_true(f->pongs > 0);
	wait_for_count(f, OD_C_SHADOW_DROPPED, 7 * N_RUBBISH); /* what is still on its way when a session ends is not read */
	end_session(f);

	/* Nothing of that session is left for the next: everything is asked for again. */
	token = prefill(f);
	begin_session(f, port, OD_PROFILE_F32, "bf16");
	for (uint32_t i = 0; i < 3; i++)
		token = step(f, token, true, true);
	assert_int_equal(f->answered, cfg->n_layers);
	wait_for_count(f, OD_C_SHADOW_STEPS, 6 + 3); /* since it started */
	assert_int_equal(f->c[OD_C_SHADOW_DROPPED], 7 * N_RUBBISH);
	assert_true(f->c[OD_C_PEAK_RSS_BYTES] > 1u << 20 && f->c[OD_C_LOADS] == 0);
	end_session(f);
	stop_shadow(pid);
	close_fake(f);
	free(f);
}

static void assert_refused(void *context, uint16_t port, const Od__Hello *hello, const char *field)
{
	void *control = connect_to(context, port);
	Od__Header h = OD__HEADER__INIT;
	struct od_msg m;

	h.body_case = OD__HEADER__BODY_HELLO;
	h.hello = (Od__Hello *)hello;
	assert_int_equal(od_wire_send(control, NULL, &h, NULL, 0), OD_OK);
	get_kind(control, &m, OD__HEADER__BODY_REFUSE);
	assert_string_equal(m.header->refuse->field, field);
	assert_says(m.header->refuse->reason, field);
	od_msg_fini(&m);
	od_close_socket(control);
}

static void test_refusals(void **state)
{
	void *context = od_zmq_context();
	uint8_t fingerprint[32];
	Od__Hello hello;
	uint16_t port;
	pid_t pid = start_shadow(&int8, "early", &port);

	(void)state;
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	hello.role = (char *)"worker";
	assert_refused(context, port, &hello, "role");
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	fingerprint[31] ^= 1;
	assert_refused(context, port, &hello, "fingerprint");
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	hello.profile = 3;
	assert_refused(context, port, &hello, "profile");
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	hello.kernel_class = (char *)"abacus";
	assert_refused(context, port, &hello, "kernel_class");
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	hello.ctx_tokens = 0;
	assert_refused(context, port, &hello, "ctx_tokens");
	hello.ctx_tokens = cfg->ctx_max + 1;
	assert_refused(context, port, &hello, "ctx_tokens");
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	hello.max_rows = 0;
	assert_refused(context, port, &hello, "max_rows");
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	hello.max_sequences = 0;
	assert_refused(context, port, &hello, "max_sequences");
	hello.max_sequences = 1025;
	assert_refused(context, port, &hello, "max_sequences");
	stop_shadow(pid);
	zmq_ctx_term(context);
}

/* A model that does not fit is refused before it is read; so is a context, when main asks for one. */
static void test_memory(void **state)
{
	const char *const args[] = { "od-shadow", "--pack", pack_dir, "--memory-limit", "1MiB", "--port", "0", NULL };
	void *context = od_zmq_context();
	uint8_t fingerprint[32];
	char text[4096], need[32];
	uint64_t bytes;
	uint16_t port;
	Od__Hello hello;
	struct od_err err;
	int errors;
	pid_t pid = start(args, NULL, &errors);

	(void)state;
	read_all(errors, text, sizeof(text));
	assert_int_equal(finish(pid), 1);
	assert_says(text, "1.0 MiB");
	assert_ok(od_shadow_need_bytes(pack, &int8, &bytes, &err), &err);
	snprintf(need, sizeof(need), "%llu bytes", (unsigned long long)bytes + (64u << 20));
	assert_says(text, need);

	snprintf(need, sizeof(need), "%llu", (unsigned long long)bytes + (64u << 20) + 4096);
	pid = start_limited(&int8, "early", need, &port);
	hello_of(&hello, fingerprint, OD_PROFILE_F32);
	assert_refused(context, port, &hello, "ctx_tokens");
	stop_shadow(pid);
	zmq_ctx_term(context);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals), cmocka_unit_test(test_memory), cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_int8),	 cmocka_unit_test(test_mixtures), cmocka_unit_test(test_no_such_shadow),
		cmocka_unit_test(test_rubbish),	 cmocka_unit_test(test_rows),
	};

	return cmocka_run_group_tests(tests, make_pack, remove_pack);
}
