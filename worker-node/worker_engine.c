#include "worker-node/worker_engine.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pulse.h"
#include "common/base/trace.h"
#include "common/compute/scratch.h"
#include "common/pack/load/expert_form.h"
#include "worker-node/run_check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_ROWS 4 /* computed together before the speed is known */
#define PIECE_NS (OD_NS_PER_S / 2) /* main hears of progress about this often (stuck: 3 s without) */
#define MAX_PIECE_ROWS 256
#define ROOM_RETRY_NS OD_NS_PER_MS
#define PACE_PIECE_NS (20 * OD_NS_PER_MS) /* a session that ends is not waited for longer */
#define OUTPUT_HEAD 64 /* keeps the rows behind it aligned */

/* The requests of a RUN, "a,b". */
struct worker_names {
	unsigned refs;
	char text[];
};

/* A RUN from its arrival to its last RESULT. */
struct worker_run {
	struct worker_names *names; /* NULL: main named none */
	struct od_msg msg;
	struct odw_session session;
	uint64_t arrived_ns;
	size_t bytes;
	size_t n_open; /* items without an answer */
	struct od_schedule_item *item; /* [header->run->n_experts] */
};

/* Items of one RUN that are answered together: all are resident, or all have failed. */
struct group {
	struct od_schedule_item *item[OD_MAX_SEGMENTS];
	size_t n;
	size_t rows;
};

/* A RESULT while it is put together. */
struct worker_answer {
	Od__Result result;
	Od__ExpertResult entry[OD_MAX_SEGMENTS], *list[OD_MAX_SEGMENTS];
};

/* The rows of a RESULT while they are computed and sent; behind it the rows. */
struct worker_output {
	struct odw_engine *engine;
	size_t bytes;
};
_Static_assert(sizeof(struct worker_output) <= OUTPUT_HEAD, "rows follow at OUTPUT_HEAD");

/* Rows on the device, and where the host fills or reads them: the same memory, or a stage where the device grants no
 * mapping. */
struct rows {
	struct od_buf *buf;
	float *host; /* [max_piece][hidden] */
};

struct odw_engine {
	struct odw_engine_opts o;
	const struct od_config *cfg;
	pthread_t thread;
	bool started;
	atomic_bool stop, draining;
	_Atomic uint64_t output_bytes; /* outputs that ZeroMQ has */
	atomic_size_t open_runs;
	struct od_pulse pulse;
	_Atomic uint64_t compute_ns;

	pthread_mutex_t lock;
	struct odw_session session; /* under lock; id 0: none */

	/* The engine thread's. */
	struct worker_names *names[2]; /* the session's newest RUN of a decode step, and of a prompt */
	uint64_t names_session;
	const struct worker_run *about_run; /* RUN that the thread works on; NULL: none */
	struct od_log_about about;
	struct worker_run *next; /* memory for the next message; NULL: not made yet */
	uint64_t held_bytes;
	/* Recent cost of a row, and of an expert with its rows; 0: not known. The first is little when an expert had
	 * many rows, the second when it had few: a group must be small by both. */
	uint64_t row_ns, expert_ns;
	size_t max_piece;
	struct od_expert expert[OD_MAX_SEGMENTS]; /* the operation under way, with all fields below */
	struct od_ffn_segment segment[OD_MAX_SEGMENTS];
	struct rows x, y;
	uint16_t *narrow; /* [hidden], a row as it came in profile bf16 */
	struct od_buf *scratch;
};

static struct odw_session session_now(struct odw_engine *e)
{
	struct odw_session s;

	pthread_mutex_lock(&e->lock);
	s = e->session;
	pthread_mutex_unlock(&e->lock);
	return s;
}

static bool is_over(struct odw_engine *e, const struct worker_run *run)
{
	return atomic_load(&e->stop) || session_now(e).id != run->session.id;
}

/* Within long work: to main, and to this process's watchdog. */
static void show_progress(struct odw_engine *e)
{
	od_schedule_tick(e->o.schedule);
	od_pulse_beat();
}

static void unref_names(struct worker_names *names)
{
	if (names != NULL && --names->refs == 0)
		free(names);
}

static void free_run(struct worker_run *run)
{
	if (run == NULL)
		return;
	unref_names(run->names);
	od_msg_fini(&run->msg);
	free(run->item);
	free(run);
}

/* ---- Answers ---- */

static void give_back(void *bytes, void *hint)
{
	struct worker_output *out = hint;

	(void)bytes;
	atomic_fetch_sub(&out->engine->output_bytes, out->bytes);
	od_free(out);
}

/* The result is sent, or the session is over: waiting for a main that reads slowly is no fault of ours, so it counts
 * as progress. Takes out (NULL ok). */
static void send_result(struct odw_engine *e, const struct worker_run *run, Od__Result *result,
			struct worker_output *out)
{
	Od__Header header = OD__HEADER__INIT;
	struct od_out_frame frame = { .done = give_back, .hint = out };
	int rc;

	header.epoch = run->msg.header->epoch;
	header.body_case = OD__HEADER__BODY_RESULT;
	header.result = result;
	if (out != NULL) {
		frame.bytes = (char *)out + OUTPUT_HEAD;
		frame.len = out->bytes;
		atomic_fetch_add(&e->output_bytes, out->bytes);
	}
	do {
		header.session = run->session.id;
		rc = od_data_port_send(e->o.port, &header, &frame, out != NULL);
		show_progress(e);
	} while (rc == OD_ERR_TIMEOUT && !is_over(e, run));
	if (rc == OD_OK)
		return;
	if (out != NULL)
		give_back(NULL, out);
	if (rc != OD_ERR_UNREACHABLE && rc != OD_ERR_TIMEOUT)
		od_log_limited(OD_LOG_ERROR, "cannot send a RESULT: %s", od_status_text(rc));
}

/* Without entries. */
static void init_answer(struct worker_answer *a, const struct worker_run *run)
{
	const Od__Run *asked = run->msg.header->run;

	od__result__init(&a->result);
	a->result.step = asked->step;
	a->result.m = asked->m;
	a->result.request = asked->request;
	a->result.experts = a->list;
}

/* At most OD_MAX_SEGMENTS. */
static Od__ExpertResult *add_entry(struct worker_answer *a, uint32_t expert)
{
	Od__ExpertResult *x = &a->entry[a->result.n_experts];

	od__expert_result__init(x);
	x->expert = expert;
	a->list[a->result.n_experts++] = x;
	return x;
}

static void add_error(struct worker_answer *a, uint32_t expert, int code, const char *reason)
{
	Od__ExpertResult *x = add_entry(a, expert);

	x->code = code;
	x->reason = (char *)reason;
}

/* ---- For whom ---- */

static const char *requests_of(void *arg, char *buf, size_t size)
{
	const struct odw_engine *e = arg;

	(void)buf;
	(void)size;
	return e->about_run != NULL && e->about_run->names != NULL ? e->about_run->names->text : NULL;
}

static void drop_names(struct odw_engine *e)
{
	for (size_t i = 0; i < 2; i++) {
		unref_names(e->names[i]);
		e->names[i] = NULL;
	}
}

/* Main names the requests of its RUNs when they change. */
static void take_names(struct odw_engine *e, struct worker_run *run)
{
	const Od__Run *asked = run->msg.header->run;
	struct worker_names **last = &e->names[asked->prompt];
	char text[OD_MAX_REQUESTS_BYTES];

	if (e->names_session != run->session.id)
		drop_names(e);
	e->names_session = run->session.id;
	if (asked->requests[0] != '\0') {
		unref_names(*last);
		od_peer_text(asked->requests, text, sizeof(text));
		*last = malloc(sizeof(**last) + strlen(text) + 1);
		if (*last != NULL) {
			(*last)->refs = 1;
			memcpy((*last)->text, text, strlen(text) + 1);
		}
	}
	run->names = *last;
	if (run->names != NULL)
		run->names->refs++;
	e->about_run = run;
	if (asked->requests[0] != '\0')
		od_log(OD_LOG_DEBUG, "%s from step %" PRIu64 " on", asked->prompt ? "prompts" : "texts", asked->step);
}

/* ---- RUNs come in ---- */

/* Main waits for an answer for each expert, so it gets them, whatever is wrong. */
static void refuse_run(struct odw_engine *e, const struct worker_run *run, const struct od_err *why)
{
	const Od__Run *asked = run->msg.header->run;

	od_log_limited(OD_LOG_WARN, "refused a RUN: %s", why->msg);
	for (size_t i = 0; i < asked->n_experts && i < e->cfg->n_experts;) {
		struct worker_answer a;

		init_answer(&a, run);
		for (; a.result.n_experts < OD_MAX_SEGMENTS && i < asked->n_experts && i < e->cfg->n_experts; i++)
			add_error(&a, asked->experts[i]->expert, why->code, why->msg);
		send_result(e, run, &a.result, NULL);
	}
}

static int accept_run(struct odw_engine *e, struct worker_run *run, struct od_err *err)
{
	const Od__Run *asked = run->msg.header->run;
	const struct odw_run_limits limits = { .n_moe = e->cfg->n_moe,
					       .n_experts = e->cfg->n_experts,
					       .hidden = e->cfg->hidden,
					       .max_rows = run->session.max_rows,
					       .profile = run->session.profile };
	int rc;

	od_msg_frame(&run->msg, 0, &run->bytes);
	if (atomic_load(&e->draining))
		return od_fail(err, OD_ERR_BUSY, "this worker is ending");
	rc = odw_check_run(asked, &limits, run->msg.n_frames, run->bytes, err);
	if (rc != OD_OK)
		return rc;
	if (e->held_bytes + run->bytes > OD_MAX_HELD_BYTES)
		return od_fail(err, OD_ERR_BUSY, "too many rows in waiting RUNs: the limit of %u MiB is reached",
			       OD_MAX_HELD_BYTES >> 20);
	run->item = calloc(asked->n_experts, sizeof(*run->item));
	if (run->item == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu experts of a RUN", asked->n_experts);
	if (asked->fetch && e->o.puller != NULL)
		for (size_t i = 0; i < asked->n_experts; i++)
			odw_puller_fetch(e->o.puller, asked->m, asked->experts[i]->expert);
	for (size_t i = 0; i < asked->n_experts; i++)
		run->item[i] = (struct od_schedule_item){ .expert = asked->experts[i]->expert,
							  .rank = asked->experts[i]->rank,
							  .n_rows = (uint32_t)asked->experts[i]->n_rows,
							  .last = asked->experts[i]->last,
							  .prompt = asked->prompt,
							  .run = run };
	rc = od_schedule_run(e->o.schedule, run->session.id, asked->step, asked->m, asked->closes, run->item,
			     asked->n_experts);
	if (rc == OD_ERR_BUSY)
		return od_fail(err, rc, "the queue of experts to run is full (%u)", OD_MAX_ENTRIES);
	return rc;
}

/* True when the schedule has it. */
static bool on_message(struct odw_engine *e, struct worker_run *run)
{
	struct od_err err = { 0 };
	int rc;

	if (run->msg.header->body_case != OD__HEADER__BODY_RUN) {
		od_log_limited(OD_LOG_WARN, "data socket: dropped %s: expected RUN",
			       od_body_name(run->msg.header->body_case));
		return false;
	}
	run->arrived_ns = od_now_ns();
	run->session = session_now(e);
	if (run->session.id != run->msg.header->session)
		return false; /* it ended while the message was on its way to us */
	take_names(e, run);
	atomic_fetch_add(&e->open_runs, 1); /* before it looks at draining: a drained engine has none */
	rc = accept_run(e, run, &err);
	if (rc == OD_OK) {
		run->n_open = run->msg.header->run->n_experts;
		e->held_bytes += run->bytes;
	} else {
		atomic_fetch_sub(&e->open_runs, 1);
		if (rc != OD_ERR_CANCELLED)
			refuse_run(e, run, &err);
	}
	e->about_run = NULL;
	return rc == OD_OK;
}

static void receive(struct odw_engine *e)
{
	for (;;) {
		if (e->next == NULL)
			e->next = calloc(1, sizeof(*e->next));
		if (e->next == NULL || od_data_port_recv(e->o.port, &e->next->msg) != OD_OK)
			return;
		if (!on_message(e, e->next))
			free_run(e->next);
		e->next = NULL;
	}
}

/* ---- Arithmetic ---- */

static size_t piece_rows(const struct odw_engine *e, size_t left)
{
	size_t n = e->row_ns == 0 ? FIRST_ROWS : PIECE_NS / e->row_ns;

	n = n < 1 ? 1 : n > e->max_piece ? e->max_piece : n;
	return n < left ? n : left;
}

/* Experts that may be computed together. */
static size_t group_experts(const struct odw_engine *e)
{
	const size_t n = e->expert_ns == 0 ? OD_MAX_SEGMENTS : PIECE_NS / e->expert_ns;

	return n < 1 ? 1 : n > OD_MAX_SEGMENTS ? OD_MAX_SEGMENTS : n;
}

static const Od__RunExpert *asked_of(const struct worker_run *run, const struct od_schedule_item *item)
{
	return run->msg.header->run->experts[item - run->item];
}

/* Rows of an expert, to place at of e->x. Frames are not aligned (ZeroMQ receives in place), so rows are copied before
 * anything looks at them. */
static void gather(const struct odw_engine *e, const struct worker_run *run, const uint32_t *rows, size_t n, size_t at)
{
	size_t bytes, hidden = e->cfg->hidden;
	const char *frame = od_msg_frame(&run->msg, 0, &bytes);

	for (size_t i = 0; i < n; i++) {
		float *x = e->x.host + (at + i) * hidden;

		if (run->session.profile == OD_PROFILE_BF16) {
			memcpy(e->narrow, frame + rows[i] * hidden * 2, hidden * 2);
			run->session.host->bf16_to_f32(x, e->narrow, hidden);
		} else {
			memcpy(x, frame + rows[i] * hidden * 4, hidden * 4);
		}
	}
}

static void put_rows(const struct odw_engine *e, const struct worker_run *run, char *to, size_t n)
{
	size_t len = n * e->cfg->hidden;

	if (run->session.profile == OD_PROFILE_BF16)
		run->session.host->f32_to_bf16((uint16_t *)to, e->y.host, len);
	else
		memcpy(to, e->y.host, len * sizeof(float));
}

/* n rows of the segments from e->x to e->y, on the device and back. */
static int run_rows(struct odw_engine *e, enum od_profile profile, size_t n_segments, size_t n, struct od_err *err)
{
	struct od_device *d = e->o.device;
	const struct od_op op = { .kind = OD_OP_FFN,
				  .profile = profile,
				  .n_rows = (uint32_t)n,
				  .ffn = { .segment = e->segment,
					   .n_segments = (uint32_t)n_segments,
					   .routed = true,
					   .act = e->cfg->act,
					   .x = od_buf_ref(e->x.buf, 0),
					   .y = od_buf_ref(e->y.buf, 0),
					   .scratch = od_buf_ref(e->scratch, 0) } };
	const size_t bytes = n * e->cfg->hidden * sizeof(float);

	od_ref_push(op.ffn.x, bytes, OD_QUEUE_COMPUTE);
	od_device_run(d, OD_QUEUE_COMPUTE, &op);
	if (!od_device_maps(d))
		od_device_get(d, OD_QUEUE_COMPUTE, e->y.host, op.ffn.y, bytes);
	return od_device_sync(d, err);
}

/* The next n rows of a group, of which so many are done: all of them, or it is one expert. */
static int run_piece(struct odw_engine *e, const struct worker_run *run, const struct group *g, size_t done, size_t n,
		     struct od_err *err)
{
	const uint64_t begin_ns = od_now_ns();
	uint64_t ns;
	size_t at = 0;
	int rc;

	for (size_t i = 0; i < g->n; i++) {
		const size_t rows = g->n == 1 ? n : g->item[i]->n_rows;

		gather(e, run, asked_of(run, g->item[i])->rows + done, rows, at);
		e->segment[i] = od_expert_segment(&e->expert[i], (uint32_t)rows);
		at += rows;
	}
	rc = run_rows(e, run->session.profile, g->n, n, err);
	ns = od_now_ns() - begin_ns;
	e->row_ns = ns / n + 1;
	e->expert_ns = ns / g->n + 1;
	return rc;
}

/* All rows of a group; of one expert that has many, a piece at a time. OD_ERR_CANCELLED: the session ended
 * meanwhile. */
static int compute(struct odw_engine *e, const struct worker_run *run, const struct group *g, char *to,
		   struct od_err *err)
{
	size_t n;

	for (size_t i = 0; i < g->n; i++)
		od_pack_bind(e->o.pack, g->item[i]->m, g->item[i]->expert, &g->item[i]->mem, &e->expert[i]);
	for (size_t i = 0; i < g->rows; i += n) {
		int rc;

		if (is_over(e, run))
			return OD_ERR_CANCELLED;
		n = piece_rows(e, g->rows - i);
		rc = run_piece(e, run, g, i, n, err);
		if (rc != OD_OK)
			return rc;
		put_rows(e, run, to + i * odw_row_bytes(e->cfg->hidden, run->session.profile), n);
		show_progress(e);
	}
	return OD_OK;
}

/* Outputs that a slow main has not taken yet stand in the way of new ones. */
static void wait_for_room(struct odw_engine *e, const struct worker_run *run)
{
	const struct timespec pause = { .tv_nsec = ROOM_RETRY_NS };

	while (atomic_load(&e->output_bytes) > ODW_OUTPUT_BYTES && !is_over(e, run)) {
		nanosleep(&pause, NULL);
		show_progress(e);
	}
}

/* The rest of the time that n paced experts take, as if a slower machine were busy with them. */
static void wait_for_pace(struct odw_engine *e, const struct worker_run *run, uint64_t begin_ns, size_t n)
{
	uint64_t due_ns = begin_ns + n * e->o.run_ns, now_ns;

	while ((now_ns = od_now_ns()) < due_ns && !is_over(e, run)) {
		uint64_t ns = due_ns - now_ns < PACE_PIECE_NS ? due_ns - now_ns : PACE_PIECE_NS;
		const struct timespec pause = { .tv_nsec = (long)ns };

		nanosleep(&pause, NULL);
		show_progress(e);
	}
}

static void add_output(struct worker_answer *a, const struct od_schedule_item *item)
{
	Od__ExpertResult *x = add_entry(a, item->expert);

	x->rows = item->n_rows;
	x->ready = item->ready;
	x->cached = item->kept;
	x->load_ns = item->load_ns;
	x->loaded_bytes = item->loaded_bytes;
}

/* Into out. What it took is each expert's by its rows. */
static int run_group(struct odw_engine *e, const struct worker_run *run, const struct group *g, struct worker_answer *a,
		     struct worker_output *out, struct od_err *err)
{
	const uint64_t begin_ns = od_now_ns();
	uint64_t compute_ns;
	int rc;

	if (out == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for the output rows");
	else
		rc = compute(e, run, g, (char *)out + OUTPUT_HEAD, err);
	if (rc == OD_OK && e->o.run_ns > 0)
		wait_for_pace(e, run, begin_ns, g->n);
	compute_ns = od_now_ns() - begin_ns;
	atomic_fetch_add(&e->compute_ns, compute_ns);
	for (size_t i = 0; i < g->n; i++) {
		const struct od_schedule_item *item = g->item[i];

		od_trace_end("compute", begin_ns, (int64_t)item->step, item->m, item->expert);
		if (rc != OD_OK) {
			add_error(a, item->expert, rc, err->msg);
			continue;
		}
		add_output(a, item);
		a->entry[i].wait_ns = begin_ns - run->arrived_ns;
		a->entry[i].compute_ns = compute_ns * item->n_rows / g->rows;
	}
	return rc;
}

static void finish_resident(struct odw_engine *e, const struct worker_run *run, const struct group *g)
{
	const size_t bytes = g->rows * odw_row_bytes(e->cfg->hidden, run->session.profile);
	struct od_err err = { 0 };
	struct worker_output *out;
	struct worker_answer a;
	uint64_t begin_ns;
	int rc;

	wait_for_room(e, run);
	out = od_alloc(OUTPUT_HEAD + bytes);
	init_answer(&a, run);
	rc = run_group(e, run, g, &a, out, &err);
	for (size_t i = 0; i < g->n; i++) /* before sending: the slots' next loads begin now */
		od_schedule_done(e->o.schedule, g->item[i]);
	if (rc == OD_OK) {
		*out = (struct worker_output){ .engine = e, .bytes = bytes };
		begin_ns = od_trace_begin();
		send_result(e, run, &a.result, out);
		od_trace_end("send", begin_ns, (int64_t)a.result.step, a.result.m,
			     g->n == 1 ? (int64_t)g->item[0]->expert : -1);
		return;
	}
	if (rc != OD_ERR_CANCELLED)
		send_result(e, run, &a.result, NULL);
	od_free(out);
}

static void finish_failed(struct odw_engine *e, const struct worker_run *run, const struct group *g)
{
	struct worker_answer a;

	init_answer(&a, run);
	for (size_t i = 0; i < g->n; i++) {
		if (g->item[i]->code == OD_ERR_CANCELLED)
			continue;
		add_error(&a, g->item[i]->expert, g->item[i]->code, g->item[i]->reason);
		od_log_limited(OD_LOG_DEBUG, "expert %u of MoE layer %u was not run in step %" PRIu64 ": %s",
			       g->item[i]->expert, g->item[i]->m, g->item[i]->step, g->item[i]->reason);
	}
	if (a.result.n_experts > 0)
		send_result(e, run, &a.result, NULL);
}

static bool take_group(struct odw_engine *e, struct group *g)
{
	const struct worker_run *run;

	g->item[0] = od_schedule_take(e->o.schedule);
	if (g->item[0] == NULL)
		return false;
	run = g->item[0]->run;
	g->n = 1;
	if (run->n_open > 1)
		g->n = od_schedule_take_more(e->o.schedule, g->item, group_experts(e), piece_rows(e, SIZE_MAX));
	g->rows = 0;
	for (size_t i = 0; i < g->n; i++)
		g->rows += g->item[i]->n_rows;
	return true;
}

static void finish_group(struct odw_engine *e, const struct group *g)
{
	struct worker_run *run = g->item[0]->run;

	e->about_run = run;
	if (g->item[0]->code == OD_OK)
		finish_resident(e, run, g);
	else
		finish_failed(e, run, g);
	e->about_run = NULL;
	run->n_open -= g->n;
	if (run->n_open > 0)
		return;
	e->held_bytes -= run->bytes;
	atomic_fetch_sub(&e->open_runs, 1);
	free_run(run);
}

static void *engine_main(void *arg)
{
	struct odw_engine *e = arg;

	od_log_swap_about(&e->about);
	od_pulse_of_thread(&e->pulse);
	while (!atomic_load(&e->stop)) {
		struct group g;

		od_pulse_beat();
		receive(e); /* first, so that the most urgent of all is next */
		if (take_group(e, &g))
			finish_group(e, &g);
		else
			od_data_port_wait(e->o.port, -1);
	}
	return NULL;
}

/* ---- Life ---- */

/* As many rows together as the scratch holds, at least one. */
static size_t rows_that_fit(const struct od_config *cfg)
{
	size_t n = MAX_PIECE_ROWS;

	while (n > 1 &&
	       od_ffn_scratch_bytes(cfg->intermediate, n) + 2 * n * cfg->hidden * sizeof(float) > ODW_SCRATCH_BYTES)
		n--;
	return n;
}

uint64_t odw_engine_scratch_bytes(const struct od_config *cfg)
{
	const size_t n = rows_that_fit(cfg);

	return od_ffn_scratch_bytes(cfg->intermediate, n) + 2 * n * cfg->hidden * sizeof(float);
}

static int make_rows(struct rows *r, struct od_device *d, size_t bytes, struct od_err *err)
{
	int rc = od_buf_new(&r->buf, d, bytes, "rows", err);

	if (rc != OD_OK)
		return rc;
	r->host = od_ref_stage(od_buf_ref(r->buf, 0));
	return r->host != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for a host stage of %zu bytes", bytes);
}

static int alloc_scratch(struct odw_engine *e, struct od_err *err)
{
	const struct od_config *cfg = e->cfg;
	size_t bytes;
	int rc;

	e->max_piece = rows_that_fit(cfg);
	bytes = e->max_piece * cfg->hidden * sizeof(float);
	e->narrow = od_alloc_array(cfg->hidden, sizeof(uint16_t));
	if (e->narrow == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a row");
	rc = make_rows(&e->x, e->o.device, bytes, err);
	if (rc == OD_OK)
		rc = make_rows(&e->y, e->o.device, bytes, err);
	if (rc == OD_OK)
		rc = od_buf_new(&e->scratch, e->o.device, od_ffn_scratch_bytes(cfg->intermediate, e->max_piece),
				"scratch", err);
	return rc == OD_OK ? OD_OK : od_fail_within(err, "scratch memory of %zu rows", e->max_piece);
}

int odw_engine_start(struct odw_engine **out, const struct odw_engine_opts *opts, struct od_err *err)
{
	struct odw_engine *e;
	int rc;

	*out = NULL;
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return od_fail(err, OD_ERR_NOMEM, "engine");
	e->o = *opts;
	e->cfg = od_pack_config(opts->pack);
	e->about = (struct od_log_about){ .key = "request", .text = requests_of, .arg = e };
	pthread_mutex_init(&e->lock, NULL);
	rc = alloc_scratch(e, err);
	if (rc == OD_OK && pthread_create(&e->thread, NULL, engine_main, e) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "cannot start the engine thread");
	if (rc != OD_OK) {
		odw_engine_free(e);
		return rc;
	}
	pthread_setname_np(e->thread, "od-engine");
	e->started = true;
	*out = e;
	return OD_OK;
}

void odw_engine_stop(struct odw_engine *e)
{
	struct group g;

	if (e == NULL || !e->started)
		return;
	atomic_store(&e->stop, true);
	od_data_port_wake(e->o.port);
	pthread_join(e->thread, NULL);
	e->started = false;
	/* The session cannot be answered any more. */
	od_schedule_end(e->o.schedule, od_schedule_session(e->o.schedule));
	while (take_group(e, &g))
		finish_group(e, &g);
}

uint64_t odw_engine_compute_ns(const struct odw_engine *e)
{
	return atomic_load(&e->compute_ns);
}

void odw_engine_free(struct odw_engine *e)
{
	if (e == NULL)
		return;
	free_run(e->next);
	drop_names(e);
	od_buf_free(e->x.buf);
	od_buf_free(e->y.buf);
	od_free(e->narrow);
	od_buf_free(e->scratch);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

void odw_engine_begin(struct odw_engine *e, const struct odw_session *session)
{
	pthread_mutex_lock(&e->lock);
	e->session = *session;
	pthread_mutex_unlock(&e->lock);
}

void odw_engine_end(struct odw_engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->session.id = 0;
	pthread_mutex_unlock(&e->lock);
	od_data_port_wake(e->o.port);
}

bool odw_engine_alive(struct odw_engine *e)
{
	const bool moved = od_pulse_moved(&e->pulse);

	od_data_port_wake(e->o.port);
	return moved;
}

bool odw_engine_drained(struct odw_engine *e)
{
	atomic_store(&e->draining, true);
	return atomic_load(&e->open_runs) == 0 && atomic_load(&e->output_bytes) == 0;
}
