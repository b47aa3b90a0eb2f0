#include "tests/unit/worker_world.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/compute/dtype.h"
#include "common/pack/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

char tmp[] = "/tmp/od-worker-test-XXXXXX", worker_pack_dir[128], bin[128];
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
	assert_ok(od_file_pread(checkpoint_fd, bits, sizeof(bits),
				tensors_at + (uint64_t)json_integer_value(json_array_get(at, 0)), name, &err),
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

const struct timespec a_while = { .tv_nsec = 1000000 };
static const struct timespec ping_pause = { .tv_nsec = 100000000 };

pid_t start_worker(const char *const *argv, const char *log, int send_fd)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid != 0)
		return pid;
	int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

	dup2(out, 1);
	dup2(out, 2);
	if (send_fd >= 0)
		fcntl(send_fd, F_SETFD, 0);
	execv(argv[0], (char *const *)argv);
	_exit(127);
}

int wait_status(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

const char *read_log(const char *path)
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

void open_worker(struct worker *w, const char *pack, const char *const *extra)
{
	static int count;
	char parent[16];
	const char *argv[24] = {
		bin,	"--pack",    pack, "--port", "0", "--threads", "2", "--load-threads", "2", "--die-with-parent",
		parent, "--ready-fd"
	};
	char fd[16], line[16] = "";
	int pipe_fd[2], n = 12;

	memset(w, 0, sizeof(*w));
	snprintf(w->log, sizeof(w->log), "%s/log-%d", tmp, count++);
	assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
	snprintf(parent, sizeof(parent), "%d", (int)getpid());
	snprintf(fd, sizeof(fd), "%d", pipe_fd[1]);
	argv[n++] = fd;
	for (; extra != NULL && *extra != NULL; extra++)
		argv[n++] = *extra;
	argv[n] = NULL;
	w->pid = start_worker(argv, w->log, pipe_fd[1]);
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

void put(struct worker *w, void *socket, Od__Header *h, const void *frame, size_t len)
{
	struct od_out_frame out = { .bytes = frame, .len = len };
	int rc = OD_ERR_BUSY;

	for (int tries = 0; tries < HANG_MS && rc == OD_ERR_BUSY; tries++) {
		pthread_mutex_lock(&w->lock);
		h->session = w->session;
		rc = od_wire_send(socket, NULL, h, &out, frame != NULL);
		if (rc == OD_OK && (h->body_case == OD__HEADER__BODY_BYE || h->body_case == OD__HEADER__BODY_HELLO))
			w->session = 0; /* a PING behind it would be answered with BYE */
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

void greet(struct worker *w, uint32_t profile, const char *kernel_class, bool mixed, uint32_t max_rows,
	   struct od_msg *answer)
{
	static uint8_t fingerprint[32];
	const uint64_t session = w->session;
	Od__Header h = OD__HEADER__INIT;
	Od__Hello b = OD__HELLO__INIT;

	if (fingerprint[0] == 0 && fingerprint[1] == 0)
		fingerprint_of(worker_pack_dir, fingerprint);
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
	if (answer->header->body_case == OD__HEADER__BODY_REFUSE)
		set_session(w, session); /* goes on */
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
	od_msg_fini(&w->result);
	w->data = (w->slow ? connect_slowly : connect_to)(w->context, w->data_port);
	h.body_case = OD__HEADER__BODY_ATTACH;
	h.attach = &b;
	put(w, w->data, &h, NULL, 0);
	get_kind(w->data, &m, OD__HEADER__BODY_ATTACHED);
	od_msg_fini(&m);
}

void begin_worker_session(struct worker *w, enum od_profile profile)
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

void end_worker_session(struct worker *w)
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
}

void close_worker(struct worker *w)
{
	int status;

	if (w->session != 0)
		end_worker_session(w);
	assert_int_equal(kill(w->pid, SIGTERM), 0);
	status = wait_status(w->pid);
	if (status != 0)
		fail_msg("od-worker ended with %d: %s", status, read_log(w->log));
	w->closing = true;
	pthread_join(w->pinger, NULL);
	od_close_socket(w->control);
	od_close_socket(w->data);
	od_msg_fini(&w->result);
	zmq_ctx_term(w->context);
}

void open_session(struct worker *w, enum od_profile profile, const char *const *extra)
{
	open_worker(w, worker_pack_dir, extra);
	begin_worker_session(w, profile);
}

struct pong ping(struct worker *w)
{
	static uint64_t sequence;
	Od__Header h = OD__HEADER__INIT;
	Od__Ping b = OD__PING__INIT;
	struct pong pong;
	struct od_msg m;

	b.sequence = ++sequence;
	h.body_case = OD__HEADER__BODY_PING;
	h.ping = &b;
	put(w, w->control, &h, NULL, 0);
	get_control_kind(w, &m, OD__HEADER__BODY_PONG);
	assert_int_equal(m.header->pong->sequence, sequence);
	pong = (struct pong){ .progress = m.header->pong->progress, .busy = m.header->pong->busy };
	od_pong_get(m.header->pong, pong.c);
	od_msg_fini(&m);
	return pong;
}

void want(struct worker *w, uint64_t step, uint32_t m, uint32_t version, uint32_t expert)
{
	want_all(w, step, m, version, &expert, 1);
}

void want_all(struct worker *w, uint64_t step, uint32_t m, uint32_t version, const uint32_t *experts, size_t n)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Want b = OD__WANT__INIT;

	b.step = step;
	b.m = m;
	b.version = version;
	b.experts = (uint32_t *)experts;
	b.n_experts = n;
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &b;
	put(w, w->control, &h, NULL, 0);
}

void init_request(struct request *q, uint64_t step, uint32_t m, uint32_t n_rows, uint32_t seed)
{
	memset(q, 0, sizeof(*q));
	od__run__init(&q->run);
	q->run.step = step;
	q->run.m = m;
	q->run.n_rows = n_rows;
	q->run.experts = q->list;
	q->seed = seed;
}

void add_expert(struct request *q, uint32_t expert, uint32_t first, uint32_t stride, uint32_t n, bool last)
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

void send_request(struct worker *w, struct request *q)
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

static void next_result(struct worker *w)
{
	const Od__Result *r;
	size_t n_rows = 0, bytes;

	od_msg_fini(&w->result);
	get_kind(w->data, &w->result, OD__HEADER__BODY_RESULT);
	r = w->result.header->result;
	w->next = w->row = 0;
	w->n_results++;
	assert_true(r->n_experts > 0);
	for (size_t i = 0; i < r->n_experts; i++) {
		assert_int_equal(r->experts[i]->rows > 0, r->experts[i]->code == 0);
		n_rows += r->experts[i]->rows;
	}
	od_msg_frame(&w->result, 0, &bytes);
	assert_int_equal(w->result.n_frames, n_rows > 0);
	assert_int_equal(bytes, n_rows * HIDDEN * (w->profile == BF16 ? 2 : 4));
}

struct answer get_answer(struct worker *w)
{
	struct answer a;
	size_t bytes;

	if (w->result.header == NULL || w->next == w->result.header->result->n_experts)
		next_result(w);
	a.header = w->result.header;
	a.result = a.header->result;
	a.x = a.result->experts[w->next++];
	a.rows = a.x->rows == 0 ? NULL :
				  (const char *)od_msg_frame(&w->result, 0, &bytes) +
					  w->row * HIDDEN * (w->profile == BF16 ? 2 : 4);
	w->row += a.x->rows;
	return a;
}

size_t get_result(struct worker *w, const struct request *q, struct answer *a)
{
	*a = get_answer(w);
	assert_int_equal(a->header->session, w->session);
	assert_int_equal(a->header->epoch, 5);
	assert_int_equal(a->result->request, q->run.request);
	assert_int_equal(a->result->step, q->run.step);
	assert_int_equal(a->result->m, q->run.m);
	for (size_t i = 0; i < q->run.n_experts; i++) {
		if (q->expert[i].expert == a->x->expert)
			return i;
	}
	fail_msg("an expert that was not asked for: %u", a->x->expert);
	return 0;
}

float output_value(const struct worker *w, const char *rows, size_t i)
{
	uint16_t narrow;
	float v;

	if (w->profile == BF16) {
		memcpy(&narrow, rows + i * 2, 2);
		return od_bf16_f32(narrow);
	}
	memcpy(&v, rows + i * 4, 4);
	return v;
}

void check_output(const struct worker *w, const struct request *q, const Od__RunExpert *x, const struct answer *a)
{
	double y[HIDDEN], largest = 0, tolerance;
	float row[HIDDEN];

	assert_int_equal(a->x->code, 0);
	assert_int_equal(a->x->rows, x->n_rows);
	for (size_t r = 0; r < x->n_rows; r++) {
		for (size_t i = 0; i < HIDDEN; i++)
			row[i] = row_value(q->seed, (size_t)x->rows[r] * HIDDEN + i);
		reference(q->run.m, x->expert, row, y);
		for (size_t i = 0; i < HIDDEN; i++)
			largest = fmax(largest, fabs(y[i]));
		for (size_t i = 0; i < HIDDEN; i++) {
			double found = output_value(w, a->rows, r * HIDDEN + i);

			/* BF16 dot instructions round what goes into the second product, too. */
			tolerance = largest * (w->profile == BF16 ? 1. / 64 : 1e-5);
			if (!(fabs(found - y[i]) <= tolerance))
				fail_msg("expert %u, row %zu, element %zu: expected %g, found %g", x->expert, r, i,
					 y[i], found);
		}
	}
	assert_true(largest > 1e-3);
}

void get_good_results(struct worker *w, struct request *q)
{
	bool seen[EXPERTS] = { false };
	struct answer a;

	for (size_t n = 0; n < q->run.n_experts; n++) {
		size_t i = get_result(w, q, &a);

		if (a.x->code != 0)
			fail_msg("code %d: %s", a.x->code, a.x->reason);
		assert_false(seen[i]);
		seen[i] = true;
		check_output(w, q, &q->expert[i], &a);
	}
}

/* ---- Set-up ---- */

int make_worker_pack(void **state)
{
	const char *build = getenv("B") != NULL ? getenv("B") : "build";
	char packer[128], log[160];
	const char *argv[] = { packer, CHECKPOINT, worker_pack_dir, "--shadow", "none", NULL };
	uint64_t len, size;
	char *header;
	struct od_err err;

	(void)state;
	if (mkdtemp(tmp) == NULL)
		return -1;
	snprintf(bin, sizeof(bin), "%s/tests/od-worker", build);
	snprintf(packer, sizeof(packer), "%s/bin/od-pack", build);
	snprintf(worker_pack_dir, sizeof(worker_pack_dir), "%s/pack", tmp);
	snprintf(log, sizeof(log), "%s/pack.log", tmp);
	if (wait_status(start_worker(argv, log, -1)) != 0) {
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

int remove_worker_pack(void **state)
{
	const char *argv[] = { "/bin/rm", "-rf", tmp, NULL };

	(void)state;
	json_decref(tensors);
	close(checkpoint_fd);
	return wait_status(start_worker(argv, "/dev/null", -1));
}
