/* od-shadow as a process against a main that is played here over the wire: handshake, prompt, decode steps with state,
 * rubbish in between, and one session after the other. */
#include "common/base/clock.h"
#include "common/compute/cpu/cpu.h"
#include "common/model/sampler.h"
#include "tests/unit/played_main.h"

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
	token = prefill_main(f);
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

/* Rows ahead, with the tokens that main itself would choose, before main's rows; then a STEP that confirms the
 * first. */
static void test_drafts(void **state)
{
	struct fake *f = malloc(sizeof(*f));
	uint16_t port;
	pid_t pid;
	int32_t token, second = 0;

	(void)state;
	assert_non_null(f);
	open_fake(f, &bf16, OD_PROFILE_F32);
	f->ahead = 6;
	pid = start_shadow(&bf16, "early", &port);
	token = prefill_main(f);
	begin_session(f, port, OD_PROFILE_F32, "bf16");
	send_step(f, ++f->last_step, PROMPT, token);
	for (uint32_t i = 0; i <= f->ahead; i++) {
		uint16_t route[MAX_LAYERS * MAX_K];

		second = i == 1 ? token : second;
		run_rows(&f->own, &token, 1, route);
		wait_for_step(f, 1 + i, token);
		for (uint32_t l = 0; l < cfg->n_layers; l++)
			assert_memory_equal(f->heard[1 + i][l].expert, route + l * cfg->top_k,
					    cfg->top_k * sizeof(*route));
		token = best_token(f);
	}
	send_step(f, ++f->last_step, PROMPT + 1, second);
	wait_for_step(f, 2 + f->ahead, token);
	wait_for_count(f, OD_C_SHADOW_CONFIRMED, 1);
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
	static const struct od_shadow_choice fp16_int8 = { OD_PRECISION_FP16, OD_PRECISION_INT8, OD_ACT_FASTER,
							   OD_FORM_PLAIN };
	static const struct od_shadow_choice bf16_fp16 = { OD_PRECISION_BF16, OD_PRECISION_FP16, OD_ACT_FASTER,
							   OD_FORM_PLAIN };
	static const struct od_shadow_choice int8_bf16 = { OD_PRECISION_INT8, OD_PRECISION_BF16, OD_ACT_FASTER,
							   OD_FORM_PLAIN };
	static const struct od_shadow_choice nf4_int8 = { OD_PRECISION_NF4, OD_PRECISION_INT8, OD_ACT_FASTER,
							  OD_FORM_PLAIN };
	static const struct od_shadow_choice nf4 = { OD_PRECISION_NF4, OD_PRECISION_NF4, OD_ACT_FASTER, OD_FORM_PLAIN };

	(void)state;
	decode(&fp16_int8, "fp16+int8", "early", OD_PROFILE_F32);
	decode(&bf16_fp16, "bf16+fp16", "late", OD_PROFILE_F32);
	decode(&int8_bf16, "int8+bf16", "early", OD_PROFILE_F32);
	decode(&nf4_int8, "nf4+int8", "early", OD_PROFILE_F32);
	decode(&nf4, "nf4", "early", OD_PROFILE_BF16);
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
			decode(&said[i].choice, od_precision_names[said[i].choice.experts - 1], "early",
			       OD_PROFILE_F32);
	}
	shadow_cpu = OD_CPU_AUTO;
}

/* --layer-time: the predictions for the last layer come when all other layers have taken their time. */
static void test_paced(void **state)
{
	const uint64_t layer_ns = 4 * OD_NS_PER_MS;
	struct fake *f = malloc(sizeof(*f));
	uint64_t begin_ns;
	uint16_t port;
	int32_t token;
	pid_t pid;

	(void)state;
	assert_non_null(f);
	open_fake(f, &int8, OD_PROFILE_F32);
	shadow_layer_ms = "4";
	pid = start_shadow(&int8, "late", &port);
	shadow_layer_ms = "0";
	token = prefill_main(f);
	begin_session(f, port, OD_PROFILE_F32, "int8");
	begin_ns = od_now_ns();
	for (uint32_t i = 1; i <= 5; i++) {
		token = step(f, token, false, true);
		assert_true(od_now_ns() - begin_ns >= (i * cfg->n_layers - 1) * layer_ns);
	}
	end_session(f);
	stop_shadow(pid);
	close_fake(f);
	free(f);
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

#define MAX_BIASES (OD_MAX_LOGIT_BIAS + 1)
#define ALL_ALIKE UINT32_MAX

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

/* n_tokens tokens from `first` on and n biases, all alike. */
static void put_bad_bias(struct fake *f, double frequency, double presence, uint32_t first, size_t n_tokens, size_t n,
			 float bias)
{
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen body = OD__SEQ_OPEN__INIT;
	uint32_t tokens[MAX_BIASES];
	float biases[MAX_BIASES];

	assert_true(n_tokens <= MAX_BIASES && n <= MAX_BIASES);
	for (size_t i = 0; i < MAX_BIASES; i++) {
		tokens[i] = first == ALL_ALIKE ? 0 : first + (uint32_t)i;
		biases[i] = bias;
	}
	body.sequence = SEQUENCE;
	body.top_p = body.repetition_penalty = 1;
	body.own_state = true;
	body.frequency_penalty = frequency;
	body.presence_penalty = presence;
	body.bias_tokens = tokens;
	body.n_bias_tokens = n_tokens;
	body.biases = biases;
	body.n_biases = n;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &body;
	send_data(f, &h, NULL, 0);
}

/* The rare samplers; what is not said is off. */
static void put_bad_rare(struct fake *f, double typical_p, double multiplier, uint32_t breaker, size_t n_breakers,
			 size_t n_late)
{
	static uint32_t breakers[OD_MAX_DRY_BREAKERS + 2], late[OD_MAX_LATE + 1];
	Od__Header h = OD__HEADER__INIT;
	Od__SeqOpen body = OD__SEQ_OPEN__INIT;
	Od__RareSampling rare = OD__RARE_SAMPLING__INIT;

	for (size_t i = 0; i + 1 < n_breakers; i += 2) {
		breakers[i] = 1;
		breakers[i + 1] = breaker;
	}
	body.sequence = SEQUENCE;
	body.top_p = body.repetition_penalty = 1;
	body.own_state = true;
	body.rare = &rare;
	rare.typical_p = typical_p;
	rare.dry_multiplier = multiplier;
	rare.dry_base = 2;
	rare.dry_window = 64;
	rare.dry_breakers = breakers;
	rare.n_dry_breakers = n_breakers;
	rare.late = late;
	rare.n_late = n_late;
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

/* Rows ahead of which there are more than positions. */
static void put_far_step(struct fake *f, uint64_t number)
{
	f->ahead = CTX + 1;
	send_step(f, number, 0, 0);
	f->ahead = 1;
}

/* Everything that must be dropped, and nothing else suffers. On the data socket: */
#define N_RUBBISH 54
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
	put_bad_step(f, f->last_step, 0, 0, 0, 1); /* twice */
	put_bad_step(f, f->last_step + 9, CTX, 0, 0, 1); /* outside the context */
	put_bad_step(f, f->last_step + 9, 0, (int32_t)cfg->vocab, 0, 1); /* no such token */
	put_bad_step(f, f->last_step + 9, 0, -2, 0, 1);
	put_bad_step(f, f->last_step + 9, 3, 0, 5, 2); /* a gap */
	put_bad_step(f, f->last_step + 9, 3, 0, 5, 0);
	put_mixed_step(f, f->last_step + 9);
	put_far_step(f, f->last_step + 9);
	put_bad_share(f, 63);
	put_bad_share(f, 128); /* more than the context */
	put_bad_open(f, 0, 0, 1);
	put_bad_open(f, SEQUENCE, -1, 1);
	put_bad_open(f, SEQUENCE, 1, 0);
	put_bad_open(f, SEQUENCE, NAN, 1);
	put_bad_bias(f, 2.1, 0, 0, 0, 0, 0);
	put_bad_bias(f, NAN, 0, 0, 0, 0, 0);
	put_bad_bias(f, 0, -2.1, 0, 0, 0, 0);
	put_bad_bias(f, 0, 0, 0, 3, 2, 1);
	put_bad_bias(f, 0, 0, 0, 0, 1, 1);
	put_bad_bias(f, 0, 0, cfg->vocab - 2, 3, 3, 1);
	put_bad_bias(f, 0, 0, UINT32_MAX - 1, 2, 2, 1); /* no such tokens */
	put_bad_bias(f, 0, 0, ALL_ALIKE, 2, 2, 1); /* one twice */
	put_bad_bias(f, 0, 0, 0, 1, 1, 100.5f);
	put_bad_bias(f, 0, 0, 0, MAX_BIASES, MAX_BIASES, 1); /* too many */
	put_bad_rare(f, 1.1, 0, 0, 0, 0);
	put_bad_rare(f, 1, NAN, 0, 0, 0);
	put_bad_rare(f, 1, 1, cfg->vocab, 2, 0);
	put_bad_rare(f, 1, 1, UINT32_MAX, 2, 0);
	put_bad_rare(f, 1, 1, 0, 3, 0); /* half a breaker */
	put_bad_rare(f, 1, 1, 0, OD_MAX_DRY_BREAKERS + 2, 0);
	put_bad_rare(f, 1, 0, 0, 0, OD_MAX_LATE + 1);
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
	token = prefill_main(f);
	begin_session(f, port, OD_PROFILE_F32, "bf16");
	put_rubbish(f);
	f->ignore = 2; /* asked again after a second */
	for (uint32_t i = 0; i < 6; i++) {
		token = step(f, token, true, true);
		put_rubbish(f);
	}
	assert_int_equal(f->answered, cfg->n_layers);
	assert_true(f->pongs > 0);
	/* Messages that are still on their way when a session ends are not read. */
	wait_for_count(f, OD_C_SHADOW_DROPPED, 7 * N_RUBBISH);
	end_session(f);

	/* Nothing of that session is left for the next: everything is asked for again. */
	token = prefill_main(f);
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
	for (int i = 0; i < 4; i++) {
		hello_of(&hello, fingerprint, OD_PROFILE_F32);
		hello.recent_experts = cfg->n_experts + (i == 0);
		hello.kept_experts = i == 1 ? cfg->top_k + 1 : 1;
		hello.lambda = i == 2 ? NAN : i == 3 ? -0.1f : 0.5f;
		assert_refused(context, port, &hello, "recent_experts, kept_experts, lambda");
	}
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
		cmocka_unit_test(test_refusals),       cmocka_unit_test(test_memory),  cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_drafts),	       cmocka_unit_test(test_int8),    cmocka_unit_test(test_mixtures),
		cmocka_unit_test(test_no_such_shadow), cmocka_unit_test(test_rubbish), cmocka_unit_test(test_rows),
		cmocka_unit_test(test_paced),
	};

	return cmocka_run_group_tests(tests, make_pack, remove_pack);
}
