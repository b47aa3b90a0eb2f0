#include "tests/unit/played_main.h"

#include "common/base/clock.h"
#include "common/compute/cpu/cpu.h"
#include "common/model/resident.h"
#include "common/net/liveness.h"

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
void run_rows(struct pass *p, const int32_t *token, size_t n, uint16_t *route)
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
int32_t best_token(const struct fake *f)
{
	const float *logits = f->own.logits;
	uint32_t best = 0;

	for (uint32_t i = 1; i < cfg->vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

void send_control(struct fake *f, Od__Header *h)
{
	h->session = f->session;
	await(f->control, ZMQ_POLLOUT);
	assert_int_equal(od_wire_send(f->control, NULL, h, NULL, 0), OD_OK);
}

void send_data(struct fake *f, Od__Header *h, const struct od_out_frame *frames, size_t n)
{
	h->session = f->session;
	await(f->data, ZMQ_POLLOUT);
	assert_int_equal(od_wire_send(f->data, NULL, h, frames, n), OD_OK);
}

static void send_state(struct fake *f, uint64_t step, uint32_t layer, uint32_t begin, uint32_t n)
{
	size_t bytes = n * od_seq_state_row_bytes(f->own.state, layer, 0);
	char *rows = malloc(2 * bytes);
	const struct od_out_frame frames[2] = { { .bytes = rows, .len = bytes },
						{ .bytes = rows + bytes, .len = bytes } };
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

void send_step(struct fake *f, uint64_t number, uint32_t position, int32_t token)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Step body = OD__STEP__INIT;
	Od__StepRow row = OD__STEP_ROW__INIT, *rows[] = { &row };

	row.sequence = SEQUENCE;
	row.position = position;
	row.token = token;
	row.state_rows = 1;
	row.ahead = f->ahead;
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
	assert_true(r->position >= PROMPT && r->position < PROMPT + f->last_step + f->ahead);
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
	if (f->answered_until[r->layer] == r->begin + r->n)
		return; /* asked again, for this program stood still: the answer is on its way */
	send_state(f, 0, r->layer, r->begin, r->n);
	f->answered_until[r->layer] = r->begin + r->n;
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

void hello_of(Od__Hello *hello, uint8_t fingerprint[32], enum od_profile profile)
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
	hello->max_rows = 65536; /* a long prompt is no reason to refuse */
	hello->max_sequences = 4;
}

void begin_session(struct fake *f, uint16_t port, enum od_profile profile, const char *precision)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Attach attach = OD__ATTACH__INIT;
	Od__Hello hello;
	uint8_t fingerprint[32];
	struct od_msg m;

	memset(f->heard, 0, sizeof(f->heard));
	f->profile = profile;
	memset(f->answered_until, 0, sizeof(f->answered_until));
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

void end_session(struct fake *f)
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

void open_fake(struct fake *f, const struct od_shadow_choice *c, enum od_profile profile)
{
	memset(f, 0, sizeof(*f));
	f->context = od_zmq_context();
	f->ahead = 1;
	open_pass(&f->own, &bf16, profile);
	open_pass(&f->judge, c, profile);
}

void close_fake(struct fake *f)
{
	close_pass(&f->own);
	close_pass(&f->judge);
	zmq_ctx_term(f->context);
}

int32_t prefill_main(struct fake *f)
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

void wait_for_step(struct fake *f, uint64_t number, int32_t token)
{
	const uint64_t begin_ns = od_now_ns();

	while (!heard_all(f, number, token)) {
		pump(f);
		if (od_now_ns() - begin_ns > HANG_MS * OD_NS_PER_MS)
			fail_msg("step %llu is not predicted", (unsigned long long)number);
	}
}

/* Compares the shadow's prediction with the expected one: its weights over main's own keys and values. */
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

int32_t step(struct fake *f, int32_t token, bool exact, bool send_rows)
{
	uint32_t position = od_seq_state_length(f->own.state);
	uint16_t route[MAX_LAYERS * MAX_K];
	uint64_t number = ++f->last_step;

	send_step(f, number, position, token);
	run_rows(&f->own, &token, 1, route);
	for (uint32_t l = 0; l < cfg->n_layers && send_rows; l++)
		send_state(f, number, l, position, 1);
	wait_for_step(f, number, token);
	judge(f, number, position, token);
	for (uint32_t l = 0; l < cfg->n_layers && exact; l++) /* full recall: OD-MoE Eq. 2 */
		for (uint32_t i = 0; i < cfg->top_k; i++)
			assert_int_equal(f->heard[number][l].expert[i], route[l * cfg->top_k + i]);
	return best_token(f);
}

void wait_for_count(struct fake *f, enum od_counter counter, uint64_t n)
{
	const uint64_t begin_ns = od_now_ns();

	while (f->c[counter] < n) {
		pump(f);
		if (od_now_ns() - begin_ns > HANG_MS * OD_NS_PER_MS)
			fail_msg("%s stays %llu", od_counter_info[counter].name, (unsigned long long)f->c[counter]);
	}
	assert_int_equal(f->c[counter], n);
}
