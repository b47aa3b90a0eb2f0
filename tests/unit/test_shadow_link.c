/* STATE: which rows main sends to the shadow, from where, and how often it waits for the device. What the shadow makes
 * of them is test_alignment.c's. */
#include "main-node/cluster/shadow_link.h"

#include <string.h>

#include "common/compute/cpu/cpu_device.h"
#include "common/compute/device_internal.h"
#include "tests/unit/state_util.h"

#define LAYERS 5u
#define MOST_DIM 9u /* elements of a row */
#define STREAMS 2u
#define SEQUENCES 2
#define STAGE (SEQUENCES + OD_KV_PAGE) /* rows that are fetched at once: of all sequences, and drafts */
#define CTX 300u
#define PROMPT 100u
#define LATE 64u
#define UNWRITTEN 0xee /* in a target that nobody has waited for */

static struct od_config cfg;

/* A dense layer, a MoE layer that keeps one stream, one whose values are narrower than keys, and a dense layer before
 * the last. */
static void make_config(void)
{
	const struct od_rope rope = { .dims = 2, .theta = 10000, .magnitude = 1 };
	struct od_layer_spec gqa = { .mixer = &od_mixer_gqa,
				     .mix = { .n_heads = 3, .n_kv_heads = 3, .k_dim = 3, .v_dim = 2 },
				     .ffn = OD_FFN_MOE };
	struct od_layer_spec mla = {
		.mixer = &od_mixer_mla,
		.ffn = OD_FFN_MOE,
		.mix = { .n_heads = 2, .n_kv_heads = 1, .k_dim = 4, .v_dim = 2, .nope_dim = 2, .kv_rank = 5 }
	};
	struct od_layer_spec dense = gqa;
	const struct od_layer_spec *layer[LAYERS] = { &dense, &mla, &gqa, &dense, &mla };
	struct od_err err = { 0 };
	uint32_t at;

	cfg = (struct od_config){ .ctx_max = CTX };
	dense.ffn = OD_FFN_DENSE;
	dense.intermediate = 1;
	must(od_config_add_rope(&cfg, &rope, &at, &err), &err);
	for (size_t i = 0; i < LAYERS; i++)
		must(od_config_add_layer(&cfg, layer[i], &err), &err);
}

/* ---- A device that grants no mapping, and reads late ---- */

static const struct od_device_ops *cpu;

/* Whatever the other tests run on: what is far here is made below. */
static struct od_device *cpu_device_new(void)
{
	struct od_device *d;
	struct od_err err = { 0 };

	must(od_device_cpu_new(&d, OD_CPU_SCALAR, 1, "test", &err), &err);
	return d;
}

static struct od_device_ops distant;
static struct late_get {
	void *to;
	struct od_ref from;
	size_t n;
} late[LATE];
static size_t n_late;

static void *no_map(struct od_ref r)
{
	(void)r;
	return NULL;
}

static void get_late(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	(void)d;
	assert_int_equal(q, OD_QUEUE_COMPUTE);
	assert_true(n_late < LATE);
	memset(to, UNWRITTEN, n);
	late[n_late++] = (struct late_get){ to, from, n };
}

static int wait_late(struct od_device *d, enum od_queue q, uint64_t ticket, struct od_err *err)
{
	for (size_t i = 0; i < n_late; i++)
		cpu->get(d, q, late[i].to, late[i].from, late[i].n);
	n_late = 0;
	return cpu->wait(d, q, ticket, err);
}

/* ---- Main's side ---- */

struct shadow_link_world {
	struct od_device *device;
	struct od_state_pool *pool;
	struct od_seq_state *other, *seq;
	struct odm_shadow_link link;
	uint64_t counters[OD_N_COUNTERS];
	bool mapped;
	uint32_t sequence;
	struct odm_part part; /* rows of a step */
	struct od_sampler_opts sampling;
	/* Expected STATEs. */
	uint64_t step;
	uint32_t layer, begin, next, end; /* [begin, end) of a layer, then of the next one; next: position */
	unsigned n;
};

static float value(const struct shadow_link_world *w, uint32_t layer, uint32_t stream, uint32_t position, size_t i)
{
	return (float)((((w->sequence * LAYERS + layer) * STREAMS + stream) * CTX + position) * MOST_DIM + i);
}

/* Elements of a row; 0: no such stream. */
static size_t width(const struct shadow_link_world *w, uint32_t layer, uint32_t stream)
{
	return od_seq_state_row_bytes(w->seq, layer, stream) / sizeof(float);
}

static int on_message(void *arg, Od__Header *h, const struct od_out_frame *frame, size_t n_frames)
{
	struct shadow_link_world *w = arg;
	const Od__State *m = h->state;
	const Od__StateRange *r;

	if (h->body_case != OD__HEADER__BODY_STATE)
		return OD_OK;
	if (w->next == w->end) {
		w->layer++;
		w->next = w->begin;
	}
	assert_int_equal(n_frames, width(w, m->layer, 1) > 0 ? 2 : 1);
	assert_int_equal(m->n_ranges, 1);
	r = m->ranges[0];
	assert_int_equal(r->sequence, w->sequence);
	assert_int_equal(m->step, w->step);
	assert_int_equal(m->layer, w->layer);
	assert_int_equal(r->begin, w->next);
	assert_true(r->n > 0);
	if (m->step == 0) /* an answer is sent from where it lies */
		assert_int_equal(r->begin / OD_KV_PAGE, (r->begin + r->n - 1) / OD_KV_PAGE);
	for (uint32_t s = 0; s < n_frames; s++) {
		const size_t each = width(w, m->layer, s);
		const float *x = frame[s].bytes;

		assert_int_equal(frame[s].len, r->n * each * sizeof(float));
		assert_null(frame[s].done); /* they are copied when they are sent */
		if (w->mapped && m->step == 0)
			assert_ptr_equal(x, od_ref_map(od_seq_state_row(w->seq, m->layer, s, r->begin)));
		for (size_t i = 0; i < r->n * each; i++)
			assert_true(x[i] == value(w, m->layer, s, r->begin + (uint32_t)(i / each), i % each));
	}
	w->next += r->n;
	w->n++;
	return OD_OK;
}

static void write_rows(struct shadow_link_world *w)
{
	float row[MOST_DIM];

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		for (uint32_t p = 0; p < CTX * STREAMS; p++) {
			const uint32_t stream = p / CTX;
			const size_t n = width(w, layer, stream);

			assert_true(n <= MOST_DIM);
			for (size_t i = 0; i < n; i++)
				row[i] = value(w, layer, stream, p % CTX, i);
			if (n > 0)
				put_at(w->device, od_seq_state_row(w->seq, layer, stream, p % CTX), row,
				       n * sizeof(*row));
		}
	}
}

static void open_world(struct shadow_link_world *w, bool mapped, uint32_t kv_period)
{
	const struct odm_align align = { 1, kv_period };
	struct od_forward_opts o = { .config = &cfg, .profile = OD_PROFILE_F32 };
	struct od_err err = { 0 };

	make_config();
	*w = (struct shadow_link_world){ .device = cpu_device_new(), .mapped = mapped, .sequence = 7 };
	cpu = w->device->ops;
	distant = *cpu;
	distant.map = no_map;
	distant.get = get_late;
	distant.wait = wait_late;
	if (!mapped)
		w->device->ops = &distant;
	must(od_state_pool_new(&w->pool, w->device, &cfg, OD_PROFILE_F32, CTX, SEQUENCES,
			       SEQUENCES * od_state_pages(CTX), &err),
	     &err);
	w->other = open_seq(w->pool);
	w->seq = open_seq(w->pool);
	/* pages of both in turn: none of a sequence follows another */
	for (uint32_t n = 0; n <= CTX; n += OD_KV_PAGE) {
		reserve(w->other, n);
		reserve(w->seq, n);
	}
	reserve(w->seq, CTX);
	write_rows(w);
	o.device = w->device;
	o.state = w->pool;
	must(odm_shadow_link_init(&w->link, &o, CTX, &align, &err), &err);
	od_sampler_defaults(&w->sampling);
	w->link.counters = w->counters;
	w->link.deliver = on_message;
	w->link.deliver_arg = w;
}

static void close_world(struct shadow_link_world *w)
{
	odm_shadow_link_fini(&w->link);
	od_seq_state_free(w->seq);
	od_seq_state_free(w->other);
	od_state_pool_free(w->pool);
	w->device->ops = cpu;
	od_device_free(w->device);
}

static struct odm_step begin_step(struct shadow_link_world *w, struct od_row *row, uint32_t position)
{
	struct odm_step step = { .step = position,
				 .next_step = position + 1,
				 .phase = ODM_DECODE,
				 .rows = row,
				 .n_rows = 1,
				 .part = &w->part,
				 .n_parts = 1 };

	*row = (struct od_row){ .seq = w->seq, .position = position, .token = 1 };
	w->part = (struct odm_part){
		.sequence = w->sequence, .n = 1, .prompt_tokens = PROMPT, .ahead = 1, .sampling = &w->sampling
	};
	odm_shadow_link_step(&w->link, 0, &step);
	return step;
}

/* The rows of decode step `position`, MoE layer by MoE layer with the dense layers before it: those since the last step
 * whose number kv_period divides. */
static void expect_step(struct shadow_link_world *w, uint32_t position, uint32_t kv_period, bool collect)
{
	const uint32_t n = position - PROMPT + 1, due = n % kv_period == 0 ? kv_period : 0;
	/* pages of the due rows */
	const uint32_t pages = position / OD_KV_PAGE - (position + 1 - due) / OD_KV_PAGE + 1;
	struct od_row row;
	const struct odm_step step = begin_step(w, &row, position);

	w->step = position;
	w->layer = UINT32_MAX;
	w->begin = position + 1 - due;
	w->next = w->end = position + 1;
	for (uint32_t m = 0; m < cfg.n_moe; m++) {
		const uint32_t layer = cfg.layer_of[m];
		uint64_t waits;

		w->n = 0;
		if (collect)
			odm_shadow_link_collect(&w->link, &step, layer);
		sync_device(w->device); /* as the fetch of routes and rows does */
		waits = od_device_waits(w->device);
		odm_shadow_link_state(&w->link, 0, &step, layer);
		assert_int_equal(w->next, position + 1);
		assert_int_equal(w->n > 0, due > 0);
		assert_int_equal(w->layer, due > 0 ? layer : UINT32_MAX);
		waits = od_device_waits(w->device) - waits;
		assert_int_equal(waits, w->mapped || (collect && due <= STAGE) ? 0 : w->n * pages);
	}
}

static void rows_of_a_step(void **state)
{
	static const uint32_t periods[] = { 1, 3, OD_KV_PAGE, STAGE, STAGE + 1, 150 };
	struct shadow_link_world w;

	(void)state;
	for (size_t i = 0; i < 4 * sizeof(periods) / sizeof(periods[0]); i++) {
		open_world(&w, i & 1, periods[i / 4]);
		for (uint32_t position = PROMPT; position < CTX; position++)
			expect_step(&w, position, periods[i / 4], i & 2);
		close_world(&w);
	}
}

static void expect_answer(struct shadow_link_world *w, uint32_t layer, uint32_t begin, uint32_t n)
{
	Od__StateRequest r = OD__STATE_REQUEST__INIT;
	const uint64_t waits = od_device_waits(w->device);

	r.sequence = w->sequence;
	r.layer = w->layer = layer;
	r.begin = w->next = begin;
	w->end = UINT32_MAX;
	r.n = n;
	w->step = w->n = 0;
	odm_shadow_link_answer(&w->link, 0, &r);
	assert_int_equal(w->next, begin + n);
	assert_int_equal(w->n, (begin + n - 1) / OD_KV_PAGE - begin / OD_KV_PAGE + 1);
	if (w->mapped)
		assert_int_equal(od_device_waits(w->device), waits);
}

static void rows_that_are_asked_for(void **state)
{
	struct shadow_link_world w;

	(void)state;
	for (int mapped = 0; mapped < 2; mapped++) {
		struct od_row row;

		open_world(&w, mapped, 1);
		begin_step(&w, &row, 250);
		od_seq_state_set_length(w.seq, 250);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			expect_answer(&w, layer, 0, 1);
			expect_answer(&w, layer, 3, 200);
			expect_answer(&w, layer, 3, 5); /* on the page that was read last, and elsewhere */
			expect_answer(&w, layer, 192, 58);
			expect_answer(&w, layer, 249, 1);
			expect_answer(&w, layer, 0, 250);
		}
		/* A page that was read for one sequence does not serve another. */
		odm_shadow_link_close_sequence(&w.link, 0, w.sequence++);
		od_seq_state_set_length(w.seq, 0);
		write_rows(&w);
		begin_step(&w, &row, 250);
		od_seq_state_set_length(w.seq, 250);
		expect_answer(&w, LAYERS - 1, 195, 5);
		expect_step(&w, 250, 1, true);
		close_world(&w);
	}
}

/* ---- Several sequences in a step ---- */

#define SEVERAL 3

struct several {
	struct shadow_link_world w; /* its values are of sequence w.sequence + i in seq[i] */
	struct od_seq_state *seq[SEVERAL];
	uint32_t opened[SEVERAL], step_rows[SEVERAL]; /* SEQ_OPENs, and rows of STEPs */
	bool refuse_open[SEVERAL];
	bool rows[SEVERAL][LAYERS][CTX]; /* rows that STATEs brought since the last STEP */
	unsigned steps, states; /* states: since the last STEP */
};

static int on_several(void *arg, Od__Header *h, const struct od_out_frame *frame, size_t n_frames)
{
	struct several *v = arg;
	size_t first = 0; /* index in the frames of a range's first row */
	struct shadow_link_world w = v->w;

	if (h->body_case == OD__HEADER__BODY_SEQ_OPEN) {
		v->opened[h->seq_open->sequence - w.sequence]++;
		return v->refuse_open[h->seq_open->sequence - w.sequence] ? OD_ERR_BUSY : OD_OK;
	}
	if (h->body_case == OD__HEADER__BODY_STEP) {
		v->steps++;
		v->states = 0;
		memset(v->rows, 0, sizeof(v->rows));
		for (size_t i = 0; i < h->step->n_rows; i++)
			v->step_rows[h->step->rows[i]->sequence - w.sequence]++;
		return OD_OK;
	}
	if (h->body_case != OD__HEADER__BODY_STATE)
		return OD_OK;
	v->states++;
	for (size_t k = 0; k < h->state->n_ranges; first += h->state->ranges[k++]->n) {
		const Od__StateRange *r = h->state->ranges[k];

		w.sequence = (uint32_t)r->sequence;
		for (uint32_t s = 0; s < n_frames; s++) {
			const size_t each = width(&w, h->state->layer, s);
			const float *x = (const float *)frame[s].bytes + first * each;

			assert_true(frame[s].len >= (first + r->n) * each * sizeof(float));
			for (size_t i = 0; i < r->n * each; i++)
				assert_true(x[i] ==
					    value(&w, h->state->layer, s, r->begin + (uint32_t)(i / each), i % each));
		}
		for (uint32_t p = r->begin; p < r->begin + r->n; p++) {
			assert_false(v->rows[w.sequence - v->w.sequence][h->state->layer][p]);
			v->rows[w.sequence - v->w.sequence][h->state->layer][p] = true;
		}
	}
	for (uint32_t s = 0; s < n_frames; s++)
		assert_int_equal(frame[s].len, first * width(&w, h->state->layer, s) * sizeof(float));
	return OD_OK;
}

static void open_several(struct several *v, bool mapped, uint32_t kv_period)
{
	const struct odm_align align = { 1, kv_period };
	struct od_forward_opts o = { .config = &cfg, .profile = OD_PROFILE_F32 };
	const uint32_t first = 40;
	struct od_err err = { 0 };

	memset(v, 0, sizeof(*v));
	open_world(&v->w, mapped, kv_period);
	odm_shadow_link_fini(&v->w.link);
	od_seq_state_free(v->w.other);
	od_seq_state_free(v->w.seq);
	od_state_pool_free(v->w.pool);
	must(od_state_pool_new(&v->w.pool, v->w.device, &cfg, OD_PROFILE_F32, CTX, SEVERAL,
			       SEVERAL * od_state_pages(CTX), &err),
	     &err);
	for (uint32_t i = 0; i < SEVERAL; i++) {
		struct shadow_link_world w = v->w;

		v->seq[i] = w.seq = open_seq(v->w.pool);
		reserve(w.seq, CTX);
		w.sequence = first + i;
		write_rows(&w);
	}
	v->w.sequence = first;
	v->w.seq = v->seq[0];
	v->w.other = NULL;
	o.device = v->w.device;
	o.state = v->w.pool;
	must(odm_shadow_link_init(&v->w.link, &o, CTX, &align, &err), &err);
	v->w.link.counters = v->w.counters;
	v->w.link.deliver = on_several;
	v->w.link.deliver_arg = v;
}

static void close_several(struct several *v)
{
	for (uint32_t i = 1; i < SEVERAL; i++)
		od_seq_state_free(v->seq[i]);
	close_world(&v->w);
}

/* Sequences of other lengths, one of two rows, in a step; each has the rows of its own that are due, and others'
 * refusals do not matter. */
static void step_of_several(struct several *v, uint32_t number, uint32_t kv_period, bool collect)
{
	struct od_row row[SEVERAL + 1];
	struct odm_part part[SEVERAL];
	struct odm_step step = { .step = number, .phase = ODM_DECODE, .rows = row, .part = part, .n_parts = SEVERAL };
	uint64_t waits;

	for (uint32_t i = 0; i < SEVERAL; i++) {
		const uint32_t n = i == 1 ? 2 : 1, begin = PROMPT + 7 * i + number * n;

		part[i] = (struct odm_part){ .sequence = v->w.sequence + i,
					     .first = step.n_rows,
					     .n = n,
					     .prompt_tokens = PROMPT + 7 * i,
					     .sampling = &v->w.sampling };
		for (uint32_t j = 0; j < n; j++)
			row[step.n_rows++] = (struct od_row){ v->seq[i], begin + j, 3 };
	}
	odm_shadow_link_step(&v->w.link, 0, &step);
	for (uint32_t m = 0; m < cfg.n_moe; m++) {
		if (collect)
			odm_shadow_link_collect(&v->w.link, &step, cfg.layer_of[m]);
		sync_device(v->w.device);
		waits = od_device_waits(v->w.device);
		odm_shadow_link_state(&v->w.link, 0, &step, cfg.layer_of[m]);
		if (collect || v->w.mapped)
			assert_int_equal(od_device_waits(v->w.device), waits);
	}
	/* One for a layer, whatever it has of them. */
	assert_int_equal(v->states, v->states > 0 ? cfg.layer_of[cfg.n_moe - 1] + 1 : 0);
	for (uint32_t i = 0; i < SEVERAL; i++) {
		const uint32_t n = (uint32_t)part[i].n, begin = row[part[i].first].position,
			       first = begin - part[i].prompt_tokens + 1;
		const uint32_t last = first + n - 1, aligned = (first - 1) / kv_period * kv_period;
		const uint32_t due =
			last / kv_period == (first - 1) / kv_period || v->refuse_open[i] ? 0 : last - aligned;

		for (uint32_t l = 0; l <= cfg.layer_of[cfg.n_moe - 1]; l++)
			for (uint32_t p = 0; p < CTX; p++)
				assert_int_equal(v->rows[i][l][p], p < begin + n && p + due >= begin + n);
	}
}

static void rows_of_several_sequences(void **state)
{
	static struct several v;

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		const uint32_t kv_period = i & 4 ? 3 : 1;

		open_several(&v, i & 1, kv_period);
		v.refuse_open[2] = true;
		for (uint32_t number = 0; number < 20; number++) {
			v.refuse_open[2] = number < 5;
			step_of_several(&v, number, kv_period, i & 2);
		}
		assert_int_equal(v.steps, 20);
		assert_int_equal(v.opened[0], 1);
		assert_int_equal(v.opened[2], 6);
		assert_int_equal(v.step_rows[0], 20);
		assert_int_equal(v.step_rows[1], 40);
		assert_int_equal(v.step_rows[2], 15);
		odm_shadow_link_close_sequence(&v.w.link, 0, v.w.sequence + 1);
		close_several(&v);
	}
}

/* ---- One that reads slowly, or not at all ---- */

/* Its end of a socket that holds whatever it is sent until it is read. */
struct shadow_link_reader {
	void *context, *socket;
	uint64_t bytes; /* sum over received frames */
	unsigned steps, states, answers, tokens;
};

static void open_reader(struct shadow_link_reader *r, struct odm_shadow_link *link)
{
	const int no_limit = 0;
	void *main_end;

	*r = (struct shadow_link_reader){ .context = zmq_ctx_new() };
	r->socket = zmq_socket(r->context, ZMQ_PAIR);
	main_end = zmq_socket(r->context, ZMQ_PAIR);
	assert_int_equal(zmq_setsockopt(r->socket, ZMQ_RCVHWM, &no_limit, sizeof(no_limit)), 0);
	assert_int_equal(zmq_setsockopt(main_end, ZMQ_SNDHWM, &no_limit, sizeof(no_limit)), 0);
	assert_int_equal(zmq_bind(r->socket, "inproc://shadow"), 0);
	assert_int_equal(zmq_connect(main_end, "inproc://shadow"), 0);
	link->deliver = NULL;
	odm_shadow_link_follow(link, &(struct odm_link){ .session = 5, .socket = main_end, .attached = true });
}

static void read_all(struct shadow_link_reader *r)
{
	struct od_err err;
	struct od_msg m;

	while (od_wire_recv(r->socket, false, &m, &err) == OD_OK) {
		const Od__Header *h = m.header;

		r->bytes += od__header__get_packed_size(h);
		for (size_t i = 0; i < m.n_frames; i++)
			r->bytes += zmq_msg_size(&m.frame[i]);
		r->steps += h->body_case == OD__HEADER__BODY_STEP;
		r->tokens += h->body_case == OD__HEADER__BODY_TOKENS;
		if (h->body_case == OD__HEADER__BODY_STATE)
			++*(h->state->step == 0 ? &r->answers : &r->states);
		od_msg_fini(&m);
	}
}

#define ASKED 192u /* positions: three messages a layer */
#define ANSWER_BYTES (64u << 10) /* at least, of all layers to a request each */

static void ask_all_layers(struct shadow_link_world *w)
{
	Od__StateRequest r = OD__STATE_REQUEST__INIT;

	r.sequence = w->sequence;
	r.n = ASKED;
	for (r.layer = 0; r.layer < LAYERS; r.layer++)
		odm_shadow_link_answer(&w->link, 0, &r);
}

static void ask_tokens(struct shadow_link_world *w)
{
	Od__TokensRequest r = OD__TOKENS_REQUEST__INIT;

	r.sequence = w->sequence;
	r.n = CTX;
	odm_shadow_link_answer_tokens(&w->link, 0, &r);
}

static void decode(struct shadow_link_world *w, uint32_t position)
{
	struct od_row row;
	const struct odm_step step = begin_step(w, &row, position);

	for (uint32_t m = 0; m < cfg.n_moe; m++)
		odm_shadow_link_state(&w->link, 0, &step, cfg.layer_of[m]);
}

static void open_read_world(struct shadow_link_world *w, struct shadow_link_reader *r)
{
	open_world(w, true, 1);
	open_reader(r, &w->link);
	decode(w, 200);
	od_seq_state_set_length(w->seq, 201);
	read_all(r);
	assert_int_equal(r->steps, 1);
	assert_int_equal(r->states, LAYERS);
	assert_int_equal(odm_unsent_bytes(w->link.unsent), 0);
}

/* Answers wait up to half of the bound, so that rows of steps have room; these wait up to the bound. Read, all goes
 * on. */
static void what_waits_for_a_shadow_is_bounded(void **state)
{
	const unsigned many = 3 * ODM_SHADOW_UNSENT_BYTES / ANSWER_BYTES;
	struct shadow_link_world w;
	struct shadow_link_reader r;
	unsigned answers;

	(void)state;
	for (int repeat = 0; repeat < 2; repeat++) {
		open_read_world(&w, &r);
		for (unsigned i = 0; i < many; i++)
			ask_all_layers(&w);
		assert_in_range(odm_unsent_bytes(w.link.unsent), ODM_SHADOW_ANSWER_BYTES * 9 / 10,
				ODM_SHADOW_ANSWER_BYTES);
		ask_tokens(&w);
		decode(&w, 201); /* it has room still */
		r.states = r.steps = r.bytes = 0;
		read_all(&r);
		assert_in_range(r.bytes, ODM_SHADOW_ANSWER_BYTES / 2, ODM_SHADOW_ANSWER_BYTES + (1 << 20));
		assert_int_equal(r.steps, 1);
		assert_int_equal(r.states, LAYERS);
		assert_int_equal(r.tokens, 0);
		assert_int_equal(odm_unsent_bytes(w.link.unsent), 0);
		answers = r.answers;
		ask_all_layers(&w);
		ask_tokens(&w);
		read_all(&r);
		assert_int_equal(r.answers, answers + LAYERS * ASKED / OD_KV_PAGE);
		assert_int_equal(r.tokens, 1);
		/* With something on its way the counter outlives the link. */
		ask_all_layers(&w);
		if (repeat == 0) {
			odm_shadow_link_follow(&w.link, &(struct odm_link){ .socket = NULL });
			read_all(&r);
			assert_int_equal(odm_unsent_bytes(w.link.unsent), 0);
		}
		close_world(&w);
		zmq_close(r.socket);
		zmq_ctx_term(r.context);
	}
}

static void what_comes_by_itself_is_bounded_too(void **state)
{
	const uint64_t step_bytes = 2000; /* less than one has with what is counted for its frames */
	struct shadow_link_world w;
	struct shadow_link_reader r;

	(void)state;
	open_read_world(&w, &r);
	for (uint64_t i = 0; i < 2 * ODM_SHADOW_UNSENT_BYTES / step_bytes; i++)
		decode(&w, 201);
	assert_in_range(odm_unsent_bytes(w.link.unsent), ODM_SHADOW_UNSENT_BYTES * 9 / 10, ODM_SHADOW_UNSENT_BYTES);
	odm_shadow_link_truncate(&w.link, 0, w.sequence, 201); /* messages that must not be lost are sent still */
	assert_true(odm_unsent_bytes(w.link.unsent) < ODM_SHADOW_UNSENT_BYTES + 1000);
	read_all(&r);
	r.steps = r.states = 0;
	decode(&w, 201);
	read_all(&r);
	assert_int_equal(r.steps, 1);
	assert_int_equal(r.states, LAYERS);
	close_world(&w);
	zmq_close(r.socket);
	zmq_ctx_term(r.context);
}

/* ---- Tokens of a prompt that begins with what main had already ---- */

struct shadow_link_heard {
	uint32_t begin, end; /* positions of TOKENS; each range continues the one before */
	const int32_t *prompt;
};

static int on_tokens(void *arg, Od__Header *h, const struct od_out_frame *frame, size_t n_frames)
{
	struct shadow_link_heard *heard = arg;
	const Od__Tokens *m = h->tokens;

	(void)frame, (void)n_frames;
	if (h->body_case != OD__HEADER__BODY_TOKENS)
		return OD_OK;
	if (heard->end == 0)
		heard->begin = heard->end = m->begin;
	assert_int_equal(m->begin, heard->end);
	for (size_t i = 0; i < m->n_ids; i++)
		assert_int_equal(m->ids[i], heard->prompt[heard->end++]);
	return OD_OK;
}

/* A prompt of which main has all before `have`, the shadow all before `shared`, in chunks: the shadow is told all of
 * the rest, where its sampler or its own state need it, and gets all of it when it asks. */
static void tokens_of_a_begin(uint32_t have, uint32_t shared, bool needed)
{
	Od__TokensRequest all = OD__TOKENS_REQUEST__INIT;
	int32_t prompt[PROMPT];
	struct shadow_link_heard heard = { .prompt = prompt };
	struct od_row row[PROMPT];
	struct shadow_link_world w;

	open_world(&w, true, 1);
	w.link.deliver = on_tokens;
	w.link.deliver_arg = &heard;
	w.sampling.presence_penalty = needed ? 0.5f : 0;
	for (uint32_t i = 0; i < PROMPT; i++)
		prompt[i] = (int32_t)(i + 3);
	for (uint32_t at = have, n; at < PROMPT; at += n) {
		const uint64_t step_number = at + 1;
		struct odm_step step = {
			.step = step_number, .phase = ODM_PREFILL, .rows = row, .part = &w.part, .n_parts = 1
		};

		n = PROMPT - at < 40 ? PROMPT - at : 40;
		for (uint32_t i = 0; i < n; i++)
			row[i] = (struct od_row){ .seq = w.seq, .position = at + i, .token = prompt[at + i] };
		step.n_rows = n;
		w.part = (struct odm_part){ .sequence = w.sequence,
					    .n = n,
					    .text = prompt,
					    .prompt_tokens = PROMPT,
					    .ahead = 1,
					    .sampling = &w.sampling,
					    .shared_sequence = shared > 0 ? 3 : 0,
					    .shared_tokens = shared };
		odm_shadow_link_step(&w.link, 0, &step);
	}
	assert_int_equal(heard.begin, needed ? shared : 0);
	assert_int_equal(heard.end, needed ? PROMPT : 0);
	heard.end = 0;
	all.sequence = w.sequence;
	all.n = CTX;
	odm_shadow_link_answer_tokens(&w.link, 0, &all);
	assert_int_equal(heard.begin, 0);
	assert_int_equal(heard.end, PROMPT);
	close_world(&w);
}

static void tokens_before_the_first_step(void **state)
{
	(void)state;
	for (int needed = 0; needed < 2; needed++) {
		tokens_of_a_begin(0, 0, needed);
		tokens_of_a_begin(OD_KV_PAGE, 0, needed);
		tokens_of_a_begin(OD_KV_PAGE, OD_KV_PAGE, needed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_of_a_step),
		cmocka_unit_test(rows_that_are_asked_for),
		cmocka_unit_test(rows_of_several_sequences),
		cmocka_unit_test(what_waits_for_a_shadow_is_bounded),
		cmocka_unit_test(what_comes_by_itself_is_bounded_too),
		cmocka_unit_test(tokens_before_the_first_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
