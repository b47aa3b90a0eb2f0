/* od-worker as a child process, spoken to as main would: handshake, RUN, WANT, and everything that can go wrong. What
 * experts compute is compared with double arithmetic over the checkpoint's own bytes. */
#include "tests/unit/wire_client.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/compute/dtype.h"
#include "common/pack/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CHECKPOINT "deploy/models/talebook"
#define LAYERS 12
#define EXPERTS 8
#define HIDDEN 256
#define INTER 256
#define WEIGHTS (HIDDEN * INTER)
#define MAX_ROWS 300
#define F32 OD_PROFILE_F32
#define BF16 OD_PROFILE_BF16

static char tmp[] = "/tmp/od-worker-test-XXXXXX", pack_dir[128], bin[128];
static json_t *tensors;
static uint64_t tensors_at;
static int checkpoint_fd;

/* ---- The reference ---- */

static void read_matrix(uint32_t m, uint32_t expert, const char *which, double *w)
{
	static uint16_t bits[WEIGHTS];
	char name[128];
	json_t *at;
	struct od_err err;

	snprintf(name, sizeof(name), "model.layers.%u.block_sparse_moe.experts.%u.%s.weight", m, expert, which);
	at = json_object_get(json_object_get(tensors, name), "data_offsets");
	assert_non_null(at);
	assert_ok(od_file_pread(checkpoint_fd, bits, sizeof(bits), tensors_at + (uint64_t)json_integer_value(json_array_get(at, 0)),
				name, &err),
		  &err);
	for (size_t i = 0; i < WEIGHTS; i++)
		w[i] = od_bf16_f32(bits[i]);
}

/* y = w2 (silu(w1 x) * (w3 x)) */
static void reference(uint32_t m, uint32_t expert, const float *x, double *y)
{
	static double w1[WEIGHTS], w2[WEIGHTS], w3[WEIGHTS];
	static uint32_t have_m = UINT32_MAX, have_expert;
	double h[INTER];

	if (have_m != m || have_expert != expert) {
		read_matrix(m, expert, "w1", w1);
		read_matrix(m, expert, "w2", w2);
		read_matrix(m, expert, "w3", w3);
		have_m = m;
		have_expert = expert;
	}
	for (int i = 0; i < INTER; i++) {
		double g = 0, u = 0;

		for (int k = 0; k < HIDDEN; k++) {
			g += w1[i * HIDDEN + k] * x[k];
			u += w3[i * HIDDEN + k] * x[k];
		}
		h[i] = g / (1 + exp(-g)) * u;
	}
	for (int i = 0; i < HIDDEN; i++) {
		y[i] = 0;
		for (int k = 0; k < INTER; k++)
			y[i] += w2[i * INTER + k] * h[k];
	}
}

/* Rows of about unit size that BF16 holds exactly, so that one reference serves both profiles. */
static float row_value(uint32_t seed, size_t i)
{
	uint64_t state = seed * 7919u + i;

	next_random(&state);
	return od_bf16_f32(od_f32_bf16((float)next_random(&state) / (float)(1u << 30) - 1));
}

/* ---- The child ---- */

static const struct timespec a_while = { .tv_nsec = 1000000 };
static const struct timespec ping_pause = { .tv_nsec = 100000000 };

struct worker {
	pid_t pid;
	pthread_t pinger;
	pthread_mutex_t lock; /* guards control and session */
	atomic_bool closing;
	char log[160];
	void *context, *control, *data;
	uint16_t port, data_port;
	uint64_t session, request;
	uint32_t slots;
	enum od_profile profile;
	bool slow; /* the data socket reads nothing ahead */
};

static pid_t start(const char *const *argv, const char *log, int pass_fd)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid != 0)
		return pid;
	int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

	dup2(out, 1);
	dup2(out, 2);
	if (pass_fd >= 0)
		fcntl(pass_fd, F_SETFD, 0);
	execv(argv[0], (char *const *)argv);
	_exit(127);
}

static int wait_status(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static const char *read_log(const char *path)
{
	static char *text;
	struct od_err err;
	size_t len;

	free(text);
	assert_ok(od_file_read(path, 1 << 20, &text, &len, &err), &err);
	return text;
}

/* However long a test thinks, main is not silent. These PINGs have sequence 0. */
static void *keep_pinging(void *arg)
{
	struct worker *w = arg;

	while (!w->closing) {
		Od__Header h = OD__HEADER__INIT;
		Od__Ping b = OD__PING__INIT;

		h.body_case = OD__HEADER__BODY_PING;
		h.ping = &b;
		pthread_mutex_lock(&w->lock);
		h.session = w->session;
		if (w->session != 0)
			(void)!od_wire_send(w->control, NULL, &h, NULL, 0);
		pthread_mutex_unlock(&w->lock);
		nanosleep(&ping_pause, NULL);
	}
	return NULL;
}

/* extra: more arguments, ends with NULL. */
static void open_worker(struct worker *w, const char *pack, const char *const *extra)
{
	static int count;
	const char *argv[24] = { bin, "--pack", pack, "--port", "0", "--threads", "2", "--load-threads", "2", "--die-with-parent",
				 "--ready-fd" };
	char fd[16], line[16] = "";
	int pipe_fd[2], n = 11;

	memset(w, 0, sizeof(*w));
	snprintf(w->log, sizeof(w->log), "%s/log-%d", tmp, count++);
	assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
	snprintf(fd, sizeof(fd), "%d", pipe_fd[1]);
	argv[n++] = fd;
	for (; extra != NULL && *extra != NULL; extra++)
		argv[n++] = *extra;
	argv[n] = NULL;
	w->pid = start(argv, w->log, pipe_fd[1]);
	close(pipe_fd[1]);
	if (read(pipe_fd[0], line, sizeof(line) - 1) <= 0)
		fail_msg("od-worker did not start: %s", read_log(w->log));
	close(pipe_fd[0]);
	w->port = (uint16_t)strtoul(line, NULL, 10);
	w->context = od_zmq_context();
	w->control = connect_to(w->context, w->port);
	pthread_mutex_init(&w->lock, NULL);
	assert_int_equal(pthread_create(&w->pinger, NULL, keep_pinging, w), 0);
}

/* ---- What main says ---- */

static void put(struct worker *w, void *socket, Od__Header *h, const void *frame, size_t len)
{
	struct od_out_frame out = { .bytes = frame, .len = len };
	int rc = OD_ERR_BUSY;

	for (int tries = 0; tries < HANG_MS && rc == OD_ERR_BUSY; tries++) {
		pthread_mutex_lock(&w->lock);
		h->session = w->session;
		rc = od_wire_send(socket, NULL, h, &out, frame != NULL);
		pthread_mutex_unlock(&w->lock);
		if (rc == OD_ERR_BUSY)
			nanosleep(&a_while, NULL);
	}
	assert_int_equal(rc, OD_OK);
}

/* The next message on the control socket but the answers to keep_pinging. */
static void get_control(struct worker *w, struct od_msg *m)
{
	struct od_err err;

	for (int tries = 0; tries < HANG_MS; tries++) {
		pthread_mutex_lock(&w->lock);
		int rc = od_wire_recv(w->control, false, m, &err);
		pthread_mutex_unlock(&w->lock);

		if (rc == OD_ERR_BUSY) {
			nanosleep(&a_while, NULL);
			continue;
		}
		assert_ok(rc, &err);
		if (m->header->body_case != OD__HEADER__BODY_PONG || m->header->pong->sequence != 0)
			return;
		od_msg_fini(m);
	}
	fail_msg("no answer");
}

static void get_control_kind(struct worker *w, struct od_msg *m, Od__Header__BodyCase kind)
{
	get_control(w, m);
	if (m->header->body_case != kind)
		fail_msg("expected %s, found %s", od_body_name(kind), od_body_name(m->header->body_case));
}

static void set_session(struct worker *w, uint64_t session)
{
	pthread_mutex_lock(&w->lock);
	w->session = session;
	pthread_mutex_unlock(&w->lock);
}

static void fingerprint_of(const char *dir, uint8_t out[32])
{
	struct od_pack *p;
	struct od_err err;
	unsigned byte;

	assert_ok(od_pack_open(&p, dir, &err), &err);
	for (int i = 0; i < 32; i++) {
		assert_int_equal(sscanf(od_pack_fingerprint(p) + 2 * i, "%2x", &byte), 1);
		out[i] = (uint8_t)byte;
	}
	od_pack_close(p);
}

/* The answer to HELLO; od_msg_fini it. */
static void greet(struct worker *w, uint32_t profile, const char *kernel_class, bool mixed, uint32_t max_rows,
		  struct od_msg *answer)
{
	static uint8_t fingerprint[32];
	Od__Header h = OD__HEADER__INIT;
	Od__Hello b = OD__HELLO__INIT;

	if (fingerprint[0] == 0 && fingerprint[1] == 0)
		fingerprint_of(pack_dir, fingerprint);
	b.role = (char *)"worker";
	b.fingerprint.data = fingerprint;
	b.fingerprint.len = sizeof(fingerprint);
	b.profile = profile;
	b.kernel_class = (char *)kernel_class;
	b.mixed = mixed;
	b.main_name = (char *)"test";
	b.max_rows = max_rows;
	h.body_case = OD__HEADER__BODY_HELLO;
	h.hello = &b;
	put(w, w->control, &h, NULL, 0);
	get_control(w, answer);
}

/* A main that reads nothing ahead, so that what it does not ask for stays with the worker. */
static void *connect_slowly(void *context, uint16_t port)
{
	void *s = zmq_socket(context, ZMQ_DEALER);
	int one = 1, none = 0, small = 1 << 16;
	char where[64];

	snprintf(where, sizeof(where), "tcp://127.0.0.1:%u", port);
	zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof(none));
	zmq_setsockopt(s, ZMQ_RCVHWM, &one, sizeof(one));
	zmq_setsockopt(s, ZMQ_RCVBUF, &small, sizeof(small));
	assert_int_equal(zmq_connect(s, where), 0);
	return s;
}

static void attach(struct worker *w)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Attach b = OD__ATTACH__INIT;
	struct od_msg m;

	od_close_socket(w->data);
	w->data = (w->slow ? connect_slowly : connect_to)(w->context, w->data_port);
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &b;
	put(w, w->data, &h, NULL, 0);
	get_kind(w->data, &m, OD__HEADER__BODY_ATTACHED);
	od_msg_fini(&m);
}

static void begin_session(struct worker *w, enum od_profile profile)
{
	struct od_msg m;

	greet(w, profile, "", true, MAX_ROWS, &m); /* mixed: any kernel class */
	if (m.header->body_case != OD__HEADER__BODY_WELCOME)
		fail_msg("%s: %s", od_body_name(m.header->body_case),
			 m.header->body_case == OD__HEADER__BODY_REFUSE ? m.header->refuse->reason : "");
	set_session(w, m.header->welcome->session);
	w->data_port = (uint16_t)m.header->welcome->data_port;
	w->slots = m.header->welcome->slots;
	w->profile = profile;
	od_msg_fini(&m);
	attach(w);
}

static void end_session(struct worker *w)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Bye b = OD__BYE__INIT;
	struct od_msg m;

	b.reason = (char *)"done";
	h.body_case = OD__HEADER__BODY_BYE;
	h.bye = &b;
	put(w, w->control, &h, NULL, 0);
	get_control_kind(w, &m, OD__HEADER__BODY_BYE);
	od_msg_fini(&m);
	set_session(w, 0);
}

/* A clean end: status 0, and nothing that a sanitizer would say. */
static void close_worker(struct worker *w)
{
	int status;

	if (w->session != 0)
		end_session(w);
	assert_int_equal(kill(w->pid, SIGTERM), 0);
	status = wait_status(w->pid);
	if (status != 0)
		fail_msg("od-worker ended with %d: %s", status, read_log(w->log));
	w->closing = true;
	pthread_join(w->pinger, NULL);
	od_close_socket(w->control);
	od_close_socket(w->data);
	zmq_ctx_term(w->context);
}

static void open_session(struct worker *w, enum od_profile profile, const char *const *extra)
{
	open_worker(w, pack_dir, extra);
	begin_session(w, profile);
}

static Od__Pong ping(struct worker *w)
{
	static uint64_t sequence;
	Od__Header h = OD__HEADER__INIT;
	Od__Ping b = OD__PING__INIT;
	Od__Pong pong;
	struct od_msg m;

	b.sequence = ++sequence;
	h.body_case = OD__HEADER__BODY_PING;
	h.ping = &b;
	put(w, w->control, &h, NULL, 0);
	get_control_kind(w, &m, OD__HEADER__BODY_PONG);
	pong = *m.header->pong;
	assert_int_equal(pong.sequence, sequence);
	od_msg_fini(&m);
	return pong;
}

static void want(struct worker *w, uint64_t step, uint32_t m, uint32_t version, uint32_t expert)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Want b = OD__WANT__INIT;

	b.step = step;
	b.m = m;
	b.version = version;
	b.experts = &expert;
	b.n_experts = 1;
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &b;
	put(w, w->control, &h, NULL, 0);
}

/* A RUN: experts and their rows; rows' values follow from seed. */
struct request {
	Od__Run run;
	Od__RunExpert expert[EXPERTS];
	Od__RunExpert *list[EXPERTS];
	uint32_t rows[EXPERTS][MAX_ROWS + 1];
	uint32_t seed;
};

static void init_request(struct request *q, uint64_t step, uint32_t m, uint32_t n_rows, uint32_t seed)
{
	memset(q, 0, sizeof(*q));
	od__run__init(&q->run);
	q->run.step = step;
	q->run.m = m;
	q->run.n_rows = n_rows;
	q->run.experts = q->list;
	q->seed = seed;
}

/* n rows, every stride-th from first on, around the end. */
static void add_expert(struct request *q, uint32_t expert, uint32_t first, uint32_t stride, uint32_t n, bool last)
{
	size_t i = q->run.n_experts++;
	Od__RunExpert *x = &q->expert[i];

	od__run_expert__init(x);
	x->expert = expert;
	x->rank = (uint32_t)i;
	x->last = last;
	x->rows = q->rows[i];
	x->n_rows = n;
	for (uint32_t r = 0; r < n; r++)
		q->rows[i][r] = (first + r * stride) % q->run.n_rows;
	q->list[i] = x;
}

static void send_request(struct worker *w, struct request *q)
{
	static uint8_t frame[(MAX_ROWS + 1) * HIDDEN * 4];
	Od__Header h = OD__HEADER__INIT;
	size_t n = (size_t)q->run.n_rows * HIDDEN;

	assert_true(n * 4 <= sizeof(frame));
	for (size_t i = 0; i < n; i++) {
		float v = row_value(q->seed, i);
		uint16_t narrow = od_f32_bf16(v);

		if (w->profile == BF16)
			memcpy(frame + i * 2, &narrow, 2);
		else
			memcpy(frame + i * 4, &v, 4);
	}
	q->run.request = ++w->request;
	h.epoch = 5;
	h.body_case = OD__HEADER__BODY_RUN;
	h.run = &q->run;
	put(w, w->data, &h, frame, n * (w->profile == BF16 ? 2 : 4));
}

/* Any RESULT; which of the request's experts it is. */
static size_t get_result(struct worker *w, const struct request *q, struct od_msg *m)
{
	const Od__Result *r;

	get_kind(w->data, m, OD__HEADER__BODY_RESULT);
	r = m->header->result;
	assert_int_equal(m->header->session, w->session);
	assert_int_equal(m->header->epoch, 5);
	assert_int_equal(r->request, q->run.request);
	assert_int_equal(r->step, q->run.step);
	assert_int_equal(r->m, q->run.m);
	for (size_t i = 0; i < q->run.n_experts; i++) {
		if (q->expert[i].expert == r->expert)
			return i;
	}
	fail_msg("an expert that was not asked for: %u", r->expert);
	return 0;
}

static float output_value(const struct worker *w, const struct od_msg *m, size_t i)
{
	size_t bytes;
	const char *frame = od_msg_frame(m, 0, &bytes);
	uint16_t narrow;
	float v;

	if (w->profile == BF16) {
		memcpy(&narrow, frame + i * 2, 2);
		return od_bf16_f32(narrow);
	}
	memcpy(&v, frame + i * 4, 4);
	return v;
}

static void check_output(const struct worker *w, const struct request *q, const Od__RunExpert *x, const struct od_msg *m)
{
	double y[HIDDEN], largest = 0, tolerance;
	float row[HIDDEN];
	size_t bytes;

	od_msg_frame(m, 0, &bytes);
	assert_int_equal(m->n_frames, 1);
	assert_int_equal(bytes, x->n_rows * HIDDEN * (w->profile == BF16 ? 2 : 4));
	for (size_t r = 0; r < x->n_rows; r++) {
		for (size_t i = 0; i < HIDDEN; i++)
			row[i] = row_value(q->seed, (size_t)x->rows[r] * HIDDEN + i);
		reference(q->run.m, x->expert, row, y);
		for (size_t i = 0; i < HIDDEN; i++)
			largest = fmax(largest, fabs(y[i]));
		for (size_t i = 0; i < HIDDEN; i++) {
			double found = output_value(w, m, r * HIDDEN + i);

			/* BF16 dot instructions round what goes into the second product, too. */
			tolerance = largest * (w->profile == BF16 ? 1. / 64 : 1e-5);
			if (!(fabs(found - y[i]) <= tolerance))
				fail_msg("expert %u, row %zu, element %zu: expected %g, found %g", x->expert, r, i, y[i],
					 found);
		}
	}
	assert_true(largest > 1e-3);
}

static void get_good_results(struct worker *w, struct request *q)
{
	bool seen[EXPERTS] = { false };
	struct od_msg m;

	for (size_t n = 0; n < q->run.n_experts; n++) {
		size_t i = get_result(w, q, &m);

		if (m.header->result->code != 0)
			fail_msg("code %d: %s", m.header->result->code, m.header->result->reason);
		assert_false(seen[i]);
		seen[i] = true;
		check_output(w, q, &q->expert[i], &m);
		od_msg_fini(&m);
	}
}

/* ---- Tests ---- */

static void experts_compute_what_the_checkpoint_says(void **state)
{
	static struct request q;
	const enum od_profile profile[] = { F32, BF16 };
	struct worker w;

	(void)state;
	open_worker(&w, pack_dir, NULL);
	for (int i = 0; i < 2; i++) { /* one daemon, a session in each profile */
		begin_session(&w, profile[i]);
		init_request(&q, 1, 4, 7, 11);
		add_expert(&q, 6, 0, 1, 7, true);
		add_expert(&q, 1, 6, 3, 4, true);
		add_expert(&q, 7, 5, 0, 2, true); /* one row twice */
		send_request(&w, &q);
		get_good_results(&w, &q);
		init_request(&q, 2, LAYERS - 1, 1, 12);
		add_expert(&q, 0, 0, 1, 1, true);
		send_request(&w, &q);
		get_good_results(&w, &q);
		end_session(&w);
	}
	close_worker(&w);
}

static void rows_do_not_depend_on_each_other(void **state)
{
	static struct request all, one;
	struct worker w;
	struct od_msg many, single;

	(void)state;
	open_session(&w, F32, NULL);
	init_request(&all, 1, 3, MAX_ROWS, 5);
	add_expert(&all, 2, 0, 1, MAX_ROWS, true);
	send_request(&w, &all);
	get_result(&w, &all, &many);
	assert_int_equal(many.n_frames, 1);
	for (uint32_t r = 0; r < MAX_ROWS; r += 23) {
		one = all;
		one.run.experts = one.list;
		one.list[0] = &one.expert[0];
		one.expert[0].rows = &all.rows[0][r];
		one.expert[0].n_rows = 1;
		send_request(&w, &one);
		get_result(&w, &one, &single);
		for (size_t i = 0; i < HIDDEN; i++)
			assert_int_equal(od_f32_bits(output_value(&w, &single, i)),
					 od_f32_bits(output_value(&w, &many, r * HIDDEN + i)));
		od_msg_fini(&single);
	}
	check_output(&w, &all, &all.expert[0], &many);
	od_msg_fini(&many);
	close_worker(&w);
}

static void wanted_experts_are_ready(void **state)
{
	static struct request q;
	Od__Pong p;
	struct worker w;
	struct od_msg m;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--slots", "1", NULL });
	assert_int_equal(w.slots, 1);
	want(&w, 1, 2, 1, 5);
	do
		p = ping(&w);
	while (p.loads == 0);
	assert_int_equal(p.loads, 1);
	assert_true(p.loaded_bytes > 100000 && p.load_ns > 0 && p.progress >= 3);
	init_request(&q, 1, 2, 2, 3);
	add_expert(&q, 5, 0, 1, 2, true);
	q.run.closes = true;
	send_request(&w, &q);
	get_result(&w, &q, &m);
	assert_int_equal(m.header->result->code, 0);
	assert_true(m.header->result->ready);
	assert_int_equal(m.header->result->loaded_bytes, p.loaded_bytes);
	assert_int_equal(m.header->result->load_ns, p.load_ns);
	assert_true(m.header->result->compute_ns > 0);
	od_msg_fini(&m);
	q.run.step = 2; /* last freed it */
	send_request(&w, &q);
	get_result(&w, &q, &m);
	assert_false(m.header->result->ready);
	assert_true(m.header->result->wait_ns > 0);
	od_msg_fini(&m);
	p = ping(&w);
	assert_int_equal(p.loads, 2);
	assert_int_equal(p.unused_loads, 0);
	assert_false(p.busy);
	close_worker(&w);
}

/* Bounds from below only: this machine may be as slow as it likes. */
static void paced_work_takes_its_time(void **state)
{
	static struct request q;
	struct worker w;
	struct od_msg m;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--slots", "1", "--load-time", "6.5", "--run-time", "2.5", NULL });
	init_request(&q, 1, 0, 2, 1);
	for (uint32_t e = 0; e < 3; e++)
		add_expert(&q, e, 0, 1, 2, true);
	send_request(&w, &q);
	for (int n = 0; n < 3; n++) {
		size_t i = get_result(&w, &q, &m);

		check_output(&w, &q, &q.expert[i], &m);
		assert_true(m.header->result->load_ns >= 6500000);
		assert_true(m.header->result->compute_ns >= 2500000);
		od_msg_fini(&m);
	}
	close_worker(&w);
}

#define IN_FLIGHT 24
static void one_slot_runs_every_expert(void **state)
{
	static struct request q[IN_FLIGHT];
	size_t left = 0;
	struct worker w;
	struct od_msg m;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--slots", "1", NULL });
	for (uint32_t i = 0; i < IN_FLIGHT; i++) {
		init_request(&q[i], 9 - i % 5, i % LAYERS, 3, i);
		for (uint32_t e = 0; e < EXPERTS; e += 1 + i % 3)
			add_expert(&q[i], (e + i) % EXPERTS, e, 1, 1 + e % 3, i % 4 != 0);
		want(&w, 3 + i % 5, i % LAYERS, 1, i % EXPERTS);
		send_request(&w, &q[i]);
		left += q[i].run.n_experts;
	}
	for (; left > 0; left--) {
		struct request *mine;

		get_kind(w.data, &m, OD__HEADER__BODY_RESULT);
		assert_int_equal(m.header->result->code, 0);
		mine = &q[m.header->result->request - 1];
		for (size_t i = 0; i < mine->run.n_experts; i++) {
			if (mine->expert[i].expert == m.header->result->expert)
				check_output(&w, mine, &mine->expert[i], &m);
		}
		od_msg_fini(&m);
	}
	close_worker(&w);
}

static void expect_refused(struct worker *w, struct request *q, int code, const char *says)
{
	struct od_msg m;

	send_request(w, q);
	for (size_t n = 0; n < q->run.n_experts; n++) { /* one answer for each, so that main waits for nothing */
		get_kind(w->data, &m, OD__HEADER__BODY_RESULT);
		assert_int_equal(m.header->result->request, q->run.request);
		assert_int_equal(m.header->result->code, code);
		assert_says(m.header->result->reason, says);
		assert_int_equal(m.n_frames, 0);
		od_msg_fini(&m);
	}
}

static void bad_runs_are_answered(void **state)
{
	static struct request q;
	Od__Header h = OD__HEADER__INIT;
	struct worker w;

	(void)state;
	open_session(&w, F32, NULL);
	init_request(&q, 1, LAYERS, 2, 1);
	add_expert(&q, 1, 0, 1, 2, true);
	add_expert(&q, 2, 0, 1, 2, true);
	expect_refused(&w, &q, OD_ERR_RANGE, "less than 12, found 12");
	q.run.m = 0;
	q.expert[1].expert = EXPERTS;
	expect_refused(&w, &q, OD_ERR_RANGE, "less than 8, found 8");
	q.expert[1].expert = 1;
	expect_refused(&w, &q, OD_ERR_RANGE, "twice");
	q.expert[1].expert = 2;
	q.rows[1][1] = 2;
	expect_refused(&w, &q, OD_ERR_RANGE, "less than 2, found 2");
	q.rows[1][1] = 1;
	w.profile = BF16; /* too short a frame */
	expect_refused(&w, &q, OD_ERR_SHAPE, "2048 bytes");
	w.profile = F32;
	q.run.n_rows = MAX_ROWS + 1;
	expect_refused(&w, &q, OD_ERR_SHAPE, "found 301");
	/* Nothing to answer to: dropped. */
	init_request(&q, 1, 0, 1, 1);
	send_request(&w, &q);
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &(Od__Want)OD__WANT__INIT;
	put(&w, w.data, &h, NULL, 0);
	add_expert(&q, 3, 0, 1, 1, true);
	send_request(&w, &q);
	get_good_results(&w, &q);
	close_worker(&w);
}

static void bad_advice_is_dropped(void **state)
{
	static struct request q;
	Od__Header h = OD__HEADER__INIT;
	Od__Close close = OD__CLOSE__INIT;
	Od__Predict predict = OD__PREDICT__INIT;
	struct worker w;

	(void)state;
	open_session(&w, F32, NULL);
	want(&w, 1, LAYERS, 1, 0);
	want(&w, 1, 0, 1, EXPERTS);
	want(&w, 1, UINT32_MAX, 1, UINT32_MAX);
	close.m = LAYERS;
	h.body_case = OD__HEADER__BODY_CLOSE;
	h.close = &close;
	put(&w, w.control, &h, NULL, 0);
	h.body_case = OD__HEADER__BODY_PREDICT;
	h.predict = &predict;
	put(&w, w.control, &h, NULL, 0);
	assert_int_equal(ping(&w).loads, 0);
	assert_says(read_log(w.log), "less than 12, found 12");
	assert_says(read_log(w.log), "PREDICT");
	init_request(&q, 1, 0, 1, 1);
	add_expert(&q, 3, 0, 1, 1, true);
	send_request(&w, &q);
	get_good_results(&w, &q);
	close_worker(&w);
}

static void expect_refusal(struct worker *w, uint32_t profile, const char *class, bool mixed, uint32_t max_rows,
			   const char *field, const char *says)
{
	struct od_msg m;

	greet(w, profile, class, mixed, max_rows, &m);
	assert_int_equal(m.header->body_case, OD__HEADER__BODY_REFUSE);
	assert_string_equal(m.header->refuse->field, field);
	assert_says(m.header->refuse->reason, says);
	od_msg_fini(&m);
}

static void handshake_names_what_differs(void **state)
{
	struct worker w;
	struct od_msg m;

	(void)state;
	open_worker(&w, pack_dir, (const char *[]){ "--cpu", "scalar", NULL });
	expect_refusal(&w, 3, "fma16", true, 8, "profile", "found 3");
	expect_refusal(&w, 0, "fma16", true, 8, "profile", "found 0");
	expect_refusal(&w, F32, "other", false, 8, "kernel_class", "expected other, found fma16");
	expect_refusal(&w, F32, "fma16", false, 0, "max_rows", "found 0");
	greet(&w, F32, "other", true, UINT32_MAX, &m);
	assert_int_equal(m.header->body_case, OD__HEADER__BODY_WELCOME);
	assert_string_equal(m.header->welcome->kernel_class, "fma16");
	assert_string_equal(m.header->welcome->backend, "scalar");
	assert_string_equal(m.header->welcome->role, "worker");
	assert_int_equal(m.header->welcome->memory_bytes, 1000000000);
	assert_int_equal(m.header->welcome->threads, 2);
	assert_int_equal(m.header->welcome->slots, 64);
	od_msg_fini(&m);
	close_worker(&w);
}

static void sessions_leave_nothing_behind(void **state)
{
	static struct request q;
	struct worker w;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--slots", "2", NULL });
	for (int round = 0; round < 6; round++) {
		for (uint32_t i = 0; i < 8; i++) { /* under way when the session ends */
			init_request(&q, i, i, 40, i);
			for (uint32_t e = 0; e < EXPERTS; e++)
				add_expert(&q, e, e, 1, 30, e % 2);
			send_request(&w, &q);
			want(&w, i, i + 1, 1, i);
		}
		if (round % 2 == 0)
			end_session(&w); /* else HELLO again on the same connection */
		begin_session(&w, round % 2 == 0 ? BF16 : F32);
		w.request = 1000 * (uint64_t)(round + 1);
		init_request(&q, 1, 1, 2, 77);
		add_expert(&q, 4, 0, 1, 2, true);
		send_request(&w, &q);
		get_good_results(&w, &q); /* the first answer is to this, and to nothing older */
	}
	close_worker(&w);
}

/* A copy of the pack with one byte of one chunk changed. */
static void damage_pack(const char *dir, uint32_t m, uint32_t expert)
{
	const char *const name[] = { "experts.bin" };
	char path[256], copy[512];
	const char *argv[] = { "/bin/cp", "-r", pack_dir, dir, NULL };
	struct od_pack *p;
	struct od_err err;
	uint64_t at;
	uint8_t byte;
	int fd;

	snprintf(copy, sizeof(copy), "%s/cp.log", tmp);
	assert_int_equal(wait_status(start(argv, copy, -1)), 0);
	assert_ok(od_pack_open(&p, dir, &err), &err);
	at = od_pack_expert(p, m, expert)->shard[1].sm.offset + 1000;
	od_pack_close(p);
	snprintf(path, sizeof(path), "%s/%s", dir, name[0]);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

static void a_corrupt_expert_costs_only_itself(void **state)
{
	static struct request q;
	char dir[128];
	struct worker w;
	struct od_msg m;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/damaged", tmp);
	damage_pack(dir, 5, 3);
	open_worker(&w, dir, (const char *[]){ "--slots", "2", NULL });
	begin_session(&w, F32);
	want(&w, 1, 5, 1, 3);
	init_request(&q, 1, 5, 2, 9);
	add_expert(&q, 2, 0, 1, 2, true);
	add_expert(&q, 3, 0, 1, 2, true);
	add_expert(&q, 4, 0, 1, 2, true);
	send_request(&w, &q);
	for (int i = 0; i < 3; i++) {
		get_result(&w, &q, &m);
		if (m.header->result->expert == 3) {
			assert_int_equal(m.header->result->code, OD_ERR_CORRUPT);
			assert_says(m.header->result->reason, "experts.bin");
			assert_int_equal(m.n_frames, 0);
		} else {
			assert_int_equal(m.header->result->code, 0);
		}
		od_msg_fini(&m);
	}
	assert_says(read_log(w.log), "expert 3 of MoE layer 5 cannot be loaded");
	init_request(&q, 2, 6, 2, 9);
	add_expert(&q, 3, 0, 1, 2, true);
	send_request(&w, &q);
	get_good_results(&w, &q);
	close_worker(&w);
}

static void strangers_do_no_harm(void **state)
{
	static struct request q;
	struct worker w;

	(void)state;
	open_session(&w, F32, NULL);
	put_garbage(w.context, w.port);
	put_garbage(w.context, w.data_port);
	put_junk_tcp(w.port);
	put_junk_tcp(w.data_port);
	init_request(&q, 1, 0, 3, 4);
	add_expert(&q, 3, 0, 1, 3, true);
	send_request(&w, &q);
	get_good_results(&w, &q);
	close_worker(&w);
}

/* Status and log of a start that fails. */
static int start_fails(const char *const *extra, const char **log)
{
	static char path[160];
	const char *argv[16] = { bin, "--port", "0" };
	int n = 3, status;

	snprintf(path, sizeof(path), "%s/failed.log", tmp);
	unlink(path);
	for (; *extra != NULL; extra++)
		argv[n++] = *extra;
	argv[n] = NULL;
	status = wait_status(start(argv, path, -1));
	*log = read_log(path);
	return status;
}

static void too_little_memory_is_refused(void **state)
{
	const char *log;

	(void)state;
	assert_int_equal(start_fails((const char *[]){ "--pack", pack_dir, "--memory-limit", "10MiB", NULL }, &log), 1);
	assert_says(log, "1 slot of one expert");
	assert_says(log, "found a limit of 10485760 bytes");
	assert_int_equal(start_fails((const char *[]){ "--pack", "/nonexistent", NULL }, &log), 1);
	assert_says(log, "/nonexistent");
	assert_int_equal(start_fails((const char *[]){ "--pack", pack_dir, "--slots", "65", NULL }, &log), 2);
	assert_says(log, "--slots: expected 1 to 64, found 65");
	assert_int_equal(start_fails((const char *[]){ "--pack", pack_dir, "--listen", "0.0.0.0", NULL }, &log), 1);
	assert_says(log, "--insecure");
	assert_int_equal(start_fails((const char *[]){ "--help", NULL }, &log), 0);
	assert_says(log, "--memory-limit SIZE");
}

/* Until the worker loads nothing more, for whatever reason. */
static void wait_for_standstill(struct worker *w)
{
	uint64_t loads = ping(w).loads;

	for (int quiet = 0; quiet < 100; quiet++) {
		Od__Pong p = ping(w);

		if (p.loads != loads)
			quiet = 0;
		loads = p.loads;
		nanosleep(&a_while, NULL);
	}
}

/* Whatever main asks for, a worker keeps to its slots and 64 MiB. */
static void memory_stays_under_the_ceiling(void **state)
{
	static struct request q;
	const uint32_t n_runs = 50; /* 15 MB of rows come in, 123 MB go out */
	struct worker w;
	struct od_msg m;
	Od__Pong p;

	(void)state;
	open_worker(&w, pack_dir, (const char *[]){ "--slots", "2", NULL });
	w.slow = true;
	begin_session(&w, F32);
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < n_runs; i++) {
			init_request(&q, 1, i % LAYERS, MAX_ROWS, i);
			for (uint32_t e = 0; e < EXPERTS; e++)
				add_expert(&q, e, 0, 1, MAX_ROWS, true);
			send_request(&w, &q);
		}
		wait_for_standstill(&w);
		assert_true(ping(&w).busy); /* it waits for us */
		for (uint32_t i = 0; i < n_runs * EXPERTS; i++) {
			get_kind(w.data, &m, OD__HEADER__BODY_RESULT);
			assert_int_equal(m.header->result->code, 0);
			od_msg_fini(&m);
		}
	}
	p = ping(&w);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	p.peak_rss_bytes = 64u << 20; /* their own memory is many times larger */
#endif
	if (p.peak_rss_bytes > 2 * 3 * (WEIGHTS * 2 + 4096) + (64u << 20))
		fail_msg("peak of %" PRIu64 " bytes", p.peak_rss_bytes);
	assert_true(p.peak_rss_bytes > 4u << 20);
	close_worker(&w);
}

/* A main that sends more than it may: whatever does not fit is answered at once, and nothing is lost. */
static void too_many_rows_are_answered_busy(void **state)
{
	static struct request q;
	const uint32_t n_runs = 120;
	uint32_t n_good = 0, n_busy = 0;
	struct worker w;
	struct od_msg m;

	(void)state;
	open_worker(&w, pack_dir, NULL);
	w.slow = true;
	begin_session(&w, F32);
	for (uint32_t i = 0; i < n_runs; i++) { /* 37 MB */
		init_request(&q, 1, i % LAYERS, MAX_ROWS, i);
		for (uint32_t e = 0; e < EXPERTS; e++)
			add_expert(&q, e, 0, 1, MAX_ROWS, true);
		send_request(&w, &q);
	}
	wait_for_standstill(&w); /* outputs that we do not read stop it, and RUNs pile up */
	for (uint32_t i = 0; i < n_runs * EXPERTS; i++) {
		get_kind(w.data, &m, OD__HEADER__BODY_RESULT);
		n_good += m.header->result->code == 0;
		n_busy += m.header->result->code == OD_ERR_BUSY;
		od_msg_fini(&m);
	}
	assert_int_equal(n_good + n_busy, n_runs * EXPERTS);
	assert_true(n_good >= 50 * EXPERTS && n_busy > 0);
	init_request(&q, 2, 0, 3, 4);
	add_expert(&q, 3, 0, 1, 3, true);
	send_request(&w, &q);
	get_good_results(&w, &q);
	close_worker(&w);
}

static void the_log_says_what_a_user_wants_to_know(void **state)
{
	struct worker w;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--verbose", NULL });
	assert_says(read_log(w.log), "12 MoE layers of 8 experts");
	assert_says(read_log(w.log), "64 slots of");
	assert_says(read_log(w.log), "listening on loopback, port");
	assert_says(read_log(w.log), "main \"test\" begins");
	assert_says(read_log(w.log), "profile f32");
	close_worker(&w);
}

/* ---- Set-up ---- */

static int make_pack(void **state)
{
	const char *build = getenv("B") != NULL ? getenv("B") : "build";
	char packer[128], log[160];
	const char *argv[] = { packer, CHECKPOINT, pack_dir, "--shadow", "none", NULL };
	uint64_t len, size;
	char *header;
	struct od_err err;

	(void)state;
	if (mkdtemp(tmp) == NULL)
		return -1;
	snprintf(bin, sizeof(bin), "%s/bin/od-worker", build);
	snprintf(packer, sizeof(packer), "%s/bin/od-pack", build);
	snprintf(pack_dir, sizeof(pack_dir), "%s/pack", tmp);
	snprintf(log, sizeof(log), "%s/pack.log", tmp);
	if (wait_status(start(argv, log, -1)) != 0) {
		fprintf(stderr, "%s failed: %s\n", packer, read_log(log));
		return -1;
	}
	if (od_file_open(CHECKPOINT "/model.safetensors", &checkpoint_fd, &size, &err) != OD_OK ||
	    od_file_pread(checkpoint_fd, &len, 8, 0, "header", &err) != OD_OK)
		return -1;
	header = malloc(len);
	if (header == NULL || od_file_pread(checkpoint_fd, header, len, 8, "header", &err) != OD_OK)
		return -1;
	tensors_at = 8 + len;
	tensors = json_loadb(header, len, 0, NULL);
	free(header);
	return tensors == NULL ? -1 : 0;
}

static int remove_pack(void **state)
{
	const char *argv[] = { "/bin/rm", "-rf", tmp, NULL };

	(void)state;
	json_decref(tensors);
	close(checkpoint_fd);
	return wait_status(start(argv, "/dev/null", -1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_compute_what_the_checkpoint_says),
		cmocka_unit_test(rows_do_not_depend_on_each_other),
		cmocka_unit_test(wanted_experts_are_ready),
		cmocka_unit_test(paced_work_takes_its_time),
		cmocka_unit_test(one_slot_runs_every_expert),
		cmocka_unit_test(bad_runs_are_answered),
		cmocka_unit_test(bad_advice_is_dropped),
		cmocka_unit_test(handshake_names_what_differs),
		cmocka_unit_test(sessions_leave_nothing_behind),
		cmocka_unit_test(a_corrupt_expert_costs_only_itself),
		cmocka_unit_test(strangers_do_no_harm),
		cmocka_unit_test(too_little_memory_is_refused),
		cmocka_unit_test(memory_stays_under_the_ceiling),
		cmocka_unit_test(too_many_rows_are_answered_busy),
		cmocka_unit_test(the_log_says_what_a_user_wants_to_know),
	};

	return cmocka_run_group_tests_name("od_worker", tests, make_pack, remove_pack);
}
