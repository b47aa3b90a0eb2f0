/* od-worker as a child process, spoken to as main would: handshake, RUN, WANT, and everything that can go wrong. */
#include "tests/unit/worker_world.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/pack/pack.h"
#include "tests/unit/device_util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void experts_compute_what_the_checkpoint_says(void **state)
{
	static struct request q;
	const enum od_profile profile[] = { F32, BF16 };
	struct worker w;

	(void)state;
	open_worker(&w, worker_pack_dir, NULL);
	for (int i = 0; i < 2; i++) { /* one daemon, a session in each profile */
		begin_worker_session(&w, profile[i]);
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
		end_worker_session(&w);
	}
	close_worker(&w);
}

static void rows_do_not_depend_on_each_other(void **state)
{
	static char many[MAX_ROWS * HIDDEN * sizeof(float)];
	static struct request all, one;
	struct answer a;
	struct worker w;

	(void)state;
	open_session(&w, F32, NULL);
	init_request(&all, 1, 3, MAX_ROWS, 5);
	add_expert(&all, 2, 0, 1, MAX_ROWS, true);
	send_request(&w, &all);
	get_result(&w, &all, &a);
	check_output(&w, &all, &all.expert[0], &a);
	memcpy(many, a.rows, sizeof(many));
	for (uint32_t r = 0; r < MAX_ROWS; r += 23) {
		one = all;
		one.run.experts = one.list;
		one.list[0] = &one.expert[0];
		one.expert[0].rows = &all.rows[0][r];
		one.expert[0].n_rows = 1;
		send_request(&w, &one);
		get_result(&w, &one, &a);
		assert_int_equal(a.x->rows, 1);
		assert_memory_equal(a.rows, many + r * HIDDEN * sizeof(float), HIDDEN * sizeof(float));
	}
	close_worker(&w);
}

static void wanted_experts_are_ready(void **state)
{
	static struct request q;
	struct pong p;
	struct worker w;
	struct answer a;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--slots", "1", NULL });
	assert_int_equal(w.slots, 1);
	want(&w, 1, 2, 1, 5);
	do
		p = ping(&w);
	while (p.c[OD_C_LOADS] == 0);
	assert_int_equal(p.c[OD_C_LOADS], 1);
	assert_true(p.c[OD_C_LOADED_BYTES] > 100000 && p.c[OD_C_LOAD_NS] > 0 && p.progress >= 3);
	init_request(&q, 1, 2, 2, 3);
	add_expert(&q, 5, 0, 1, 2, true);
	q.run.closes = true;
	send_request(&w, &q);
	get_result(&w, &q, &a);
	assert_int_equal(a.x->code, 0);
	assert_true(a.x->ready);
	assert_int_equal(a.x->loaded_bytes, p.c[OD_C_LOADED_BYTES]);
	assert_int_equal(a.x->load_ns, p.c[OD_C_LOAD_NS]);
	assert_true(a.x->compute_ns > 0);
	q.run.step = 2; /* last freed it */
	send_request(&w, &q);
	get_result(&w, &q, &a);
	assert_false(a.x->ready);
	assert_true(a.x->wait_ns > 0);
	p = ping(&w);
	assert_int_equal(p.c[OD_C_LOADS], 2);
	assert_int_equal(p.c[OD_C_UNUSED_LOADS], 0);
	assert_false(p.busy);
	close_worker(&w);
}

/* Experts of one MoE layer are loaded, and then asked for, a group each time: the RUN's answers, which are RESULTs of
 * so many experts. */
static void run_ready(struct worker *w, struct request *q, const uint32_t *experts, size_t n, size_t expected_each)
{
	uint64_t loads = ping(w).c[OD_C_LOADS], waits, compute_ns[EXPERTS];
	struct answer a;

	want_all(w, q->run.step, q->run.m, 1, experts, n);
	while (ping(w).c[OD_C_LOADS] < loads + n)
		;
	waits = ping(w).c[OD_C_DEVICE_WAITS];
	w->n_results = 0;
	send_request(w, q);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(get_result(w, q, &a), i); /* in order of rank */
		assert_int_equal(a.result->n_experts, expected_each);
		check_output(w, q, &q->expert[i], &a);
		assert_true(a.x->ready && a.x->loaded_bytes > 0 && a.x->load_ns > 0 && a.x->compute_ns > 0 &&
			    a.x->wait_ns > 0);
		compute_ns[i] = a.x->compute_ns;
	}
	assert_int_equal(w->n_results, n / expected_each);
	if (expected_each == 1)
		return;
	assert_int_equal(ping(w).c[OD_C_DEVICE_WAITS] - waits, 1);
	for (size_t i = 1; i < n; i++) /* shared out by rows; the first has one */
		assert_int_equal(compute_ns[i] / q->expert[i].n_rows, compute_ns[0]);
}

static void ready_experts_are_one_operation_and_one_result(void **state)
{
	const uint32_t experts[] = { 6, 1, 4 };
	const enum od_profile profile[] = { F32, BF16 };
	static struct request q;
	struct worker w;

	(void)state;
	open_worker(&w, worker_pack_dir, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		begin_worker_session(&w, profile[i]);
		init_request(&q, 1, 2 + i, 5, 3);
		add_expert(&q, 6, 0, 1, 1, true);
		add_expert(&q, 1, 4, 1, 1, true);
		add_expert(&q, 4, 2, 1, 2, true);
		run_ready(&w, &q, experts, 3, 3);
		end_worker_session(&w);
	}
	close_worker(&w);
}

/* More rows than scratch has are cut, one expert at a time. */
static void large_experts_are_computed_alone(void **state)
{
	const uint32_t experts[] = { 0, 3, 5 };
	static struct request q;
	struct worker w;

	(void)state;
	open_session(&w, F32, NULL);
	init_request(&q, 1, 7, MAX_ROWS, 3);
	for (size_t i = 0; i < 3; i++)
		add_expert(&q, experts[i], (uint32_t)i, 1, MAX_ROWS, true);
	run_ready(&w, &q, experts, 3, 1);
	close_worker(&w);
}

/* Bounds from below only: this machine may be as slow as it likes. With one slot loads and runs take turns. What a load
 * says leaves out time in which no thread was at it. */
static void paced_work_takes_its_time(void **state)
{
	static struct request q;
	struct worker w;
	struct answer a;
	uint64_t begin_ns;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--slots", "1", "--load-time", "6.5", "--run-time", "2.5", NULL });
	init_request(&q, 1, 0, 2, 1);
	for (uint32_t e = 0; e < 3; e++)
		add_expert(&q, e, 0, 1, 2, true);
	begin_ns = od_now_ns();
	send_request(&w, &q);
	for (uint64_t n = 1; n <= 3; n++) {
		size_t i = get_result(&w, &q, &a);

		check_output(&w, &q, &q.expert[i], &a);
		assert_true(od_now_ns() - begin_ns >= n * (6500000 + 2500000));
		assert_true(a.x->load_ns > 0);
		assert_true(a.x->compute_ns >= 2500000);
	}
	close_worker(&w);
}

#define IN_FLIGHT 24
static void one_slot_runs_every_expert(void **state)
{
	static struct request q[IN_FLIGHT];
	size_t left = 0;
	struct worker w;
	struct answer a;

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

		a = get_answer(&w);
		assert_int_equal(a.x->code, 0);
		mine = &q[a.result->request - 1];
		for (size_t i = 0; i < mine->run.n_experts; i++) {
			if (mine->expert[i].expert == a.x->expert)
				check_output(&w, mine, &mine->expert[i], &a);
		}
	}
	close_worker(&w);
}

static void expect_refused(struct worker *w, struct request *q, int code, const char *says)
{
	struct answer a;

	send_request(w, q);
	for (size_t n = 0; n < q->run.n_experts; n++) { /* one answer for each, so that main waits for nothing */
		a = get_answer(w);
		assert_int_equal(a.result->request, q->run.request);
		assert_int_equal(a.x->code, code);
		assert_says(a.x->reason, says);
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
	assert_int_equal(ping(&w).c[OD_C_LOADS], 0);
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
	open_worker(&w, worker_pack_dir, (const char *[]){ "--cpu", "scalar", NULL });
	expect_refusal(&w, 3, OD_CLASS_FMA16, true, 8, "profile", "found 3");
	expect_refusal(&w, 0, OD_CLASS_FMA16, true, 8, "profile", "found 0");
	expect_refusal(&w, F32, "other", false, 8, "kernel_class", "expected other, found " OD_CLASS_FMA16);
	expect_refusal(&w, F32, OD_CLASS_FMA16, false, 0, "max_rows", "found 0");
	greet(&w, F32, "other", true, UINT32_MAX, &m);
	assert_int_equal(m.header->body_case, OD__HEADER__BODY_WELCOME);
	assert_string_equal(m.header->welcome->kernel_class, OD_CLASS_FMA16);
	assert_string_equal(m.header->welcome->backend, on_far() ? "far scalar" : "cpu scalar");
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
			end_worker_session(&w); /* else HELLO again on the same connection */
		begin_worker_session(&w, round % 2 == 0 ? BF16 : F32);
		w.request = 1000 * (uint64_t)(round + 1);
		init_request(&q, 1, 1, 2, 77);
		add_expert(&q, 4, 0, 1, 2, true);
		send_request(&w, &q);
		get_good_results(&w, &q); /* the first answer is to this, and to nothing older */
	}
	close_worker(&w);
}

/* Through the page cache, past it, and where only one way is possible: right outputs, and the log says how. */
static void read_either_way(void **state)
{
	static const char *const how[][3] = { { "buffered", "planes", "experts are read through the page cache" },
					      { "direct", "planes", "the page cache" },
					      { "direct", "bf16",
						"--read-mode direct: experts are read through the page cache" },
					      { "auto", "planes", "experts are read through the page cache" } };
	static struct request q;
	struct worker w;

	(void)state;
	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		open_session(&w, F32,
			     (const char *[]){ "--read-mode", how[i][0], "--resident-form", how[i][1], "--slots", "3",
					       NULL });
		init_request(&q, 1, 5, 3, 4);
		for (uint32_t e = 0; e < EXPERTS; e++)
			add_expert(&q, e, 0, 1, 3, true);
		send_request(&w, &q);
		get_good_results(&w, &q);
		assert_says(read_log(w.log), how[i][2]);
		close_worker(&w);
	}
}

/* A copy of the pack with one byte of one chunk changed. */
static void damage_pack(const char *dir, uint32_t m, uint32_t expert)
{
	const char *const name[] = { "experts.bin" };
	char path[256], copy[512];
	const char *argv[] = { "/bin/cp", "-r", worker_pack_dir, dir, NULL };
	struct od_pack *p;
	struct od_err err;
	uint64_t at;
	uint8_t byte;
	int fd;

	snprintf(copy, sizeof(copy), "%s/cp.log", tmp);
	assert_int_equal(wait_status(start_worker(argv, copy, -1)), 0);
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
	bool seen[3] = { false };
	char dir[128];
	struct worker w;
	struct answer a;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/damaged", tmp);
	damage_pack(dir, 5, 3);
	open_worker(&w, dir, (const char *[]){ "--slots", "2", NULL });
	begin_worker_session(&w, F32);
	want(&w, 1, 5, 1, 3);
	init_request(&q, 1, 5, 2, 9);
	add_expert(&q, 2, 0, 1, 2, true);
	add_expert(&q, 3, 0, 1, 2, true);
	add_expert(&q, 4, 0, 1, 2, true);
	send_request(&w, &q);
	for (int i = 0; i < 3; i++) {
		size_t at = get_result(&w, &q, &a);

		assert_false(seen[at]);
		seen[at] = true;
		if (a.x->expert == 3) {
			assert_int_equal(a.x->code, OD_ERR_CORRUPT);
			assert_says(a.x->reason, "experts.bin");
			assert_int_equal(a.x->loaded_bytes, 0);
		} else {
			check_output(&w, &q, &q.expert[at], &a);
			assert_string_equal(a.x->reason, "");
		}
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
	status = wait_status(start_worker(argv, path, -1));
	*log = read_log(path);
	return status;
}

static void too_little_memory_is_refused(void **state)
{
	const char *log;

	(void)state;
	assert_int_equal(
		start_fails((const char *[]){ "--pack", worker_pack_dir, "--memory-limit", "10MiB", NULL }, &log), 1);
	assert_says(log, "1 slot of one expert");
	assert_says(log, "found a limit of 10485760 bytes");
	assert_int_equal(start_fails((const char *[]){ "--pack", "/nonexistent", NULL }, &log), 1);
	assert_says(log, "/nonexistent");
	assert_int_equal(start_fails((const char *[]){ "--pack", worker_pack_dir, "--slots", "1025", NULL }, &log), 2);
	assert_says(log, "--slots: expected 1 to 1024, found 1025");
	assert_int_equal(start_fails((const char *[]){ "--pack", worker_pack_dir, "--listen", "0.0.0.0", NULL }, &log),
			 1);
	assert_says(log, "--insecure");
	assert_int_equal(start_fails((const char *[]){ "--help", NULL }, &log), 0);
	assert_says(log, "--memory-limit SIZE");
}

/* Until the worker loads nothing more, for whatever reason. */
static void wait_for_standstill(struct worker *w)
{
	uint64_t loads = ping(w).c[OD_C_LOADS];

	for (int quiet = 0; quiet < 100; quiet++) {
		struct pong p = ping(w);

		if (p.c[OD_C_LOADS] != loads)
			quiet = 0;
		loads = p.c[OD_C_LOADS];
		nanosleep(&a_while, NULL);
	}
}

/* Whatever main asks for, a worker keeps to its slots and 64 MiB. */
static void memory_stays_under_the_ceiling(void **state)
{
	static struct request q;
	const uint32_t n_runs = 50; /* 15 MB of rows come in, 123 MB go out */
	struct worker w;
	struct answer a;
	struct pong p;

	(void)state;
	open_worker(&w, worker_pack_dir, (const char *[]){ "--slots", "2", NULL });
	w.slow = true;
	begin_worker_session(&w, F32);
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
			a = get_answer(&w);
			assert_int_equal(a.x->code, 0);
		}
	}
	p = ping(&w);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	p.c[OD_C_PEAK_RSS_BYTES] = 64u << 20; /* their own memory is many times larger */
#endif
	if (p.c[OD_C_PEAK_RSS_BYTES] > 2 * 3 * (WEIGHTS * 2 + 4096) + (64u << 20))
		fail_msg("peak of %" PRIu64 " bytes", p.c[OD_C_PEAK_RSS_BYTES]);
	assert_true(p.c[OD_C_PEAK_RSS_BYTES] > 4u << 20);
	close_worker(&w);
}

/* A main that sends more than it may: whatever does not fit is answered at once, and nothing is lost. */
static void too_many_rows_are_answered_busy(void **state)
{
	static struct request q;
	const uint32_t n_runs = 120;
	uint32_t n_good = 0, n_busy = 0;
	struct worker w;
	struct answer a;

	(void)state;
	open_worker(&w, worker_pack_dir, NULL);
	w.slow = true;
	begin_worker_session(&w, F32);
	for (uint32_t i = 0; i < n_runs; i++) { /* 37 MB */
		init_request(&q, 1, i % LAYERS, MAX_ROWS, i);
		for (uint32_t e = 0; e < EXPERTS; e++)
			add_expert(&q, e, 0, 1, MAX_ROWS, true);
		send_request(&w, &q);
	}
	wait_for_standstill(&w); /* outputs that we do not read stop it, and RUNs pile up */
	for (uint32_t i = 0; i < n_runs * EXPERTS; i++) {
		a = get_answer(&w);
		n_good += a.x->code == 0;
		n_busy += a.x->code == OD_ERR_BUSY;
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
	assert_says(read_log(w.log), "msg=\"session with main \\\"test\\\" started\"");
	assert_says(read_log(w.log), "profile f32");
	close_worker(&w);
}

/* As od_peer_text leaves it: printable. */
static void log_lines_name_the_requests_of_a_run(void **state)
{
	static struct request bad, good;
	struct worker w;

	(void)state;
	open_session(&w, F32, (const char *[]){ "--verbose", NULL });
	init_request(&bad, 1, LAYERS, 1, 1);
	add_expert(&bad, 1, 0, 1, 1, true);
	expect_refused(&w, &bad, OD_ERR_RANGE, "found 12");
	assert_null(strstr(read_log(w.log), "request="));
	bad.run.requests = (char *)"r-1,r\n2=\"";
	expect_refused(&w, &bad, OD_ERR_RANGE, "found 12");
	assert_says(read_log(w.log), "expected less than 12, found 12\" request=\"r-1,r?2=\\\"\"\n");
	/* Requests of prompts have other names; all else is as before. */
	bad.run.prompt = true;
	bad.run.requests = (char *)"prompt-3";
	expect_refused(&w, &bad, OD_ERR_RANGE, "found 12");
	assert_says(read_log(w.log), "found 12\" request=prompt-3\n");
	bad.run.prompt = false;
	bad.run.requests = (char *)"";
	bad.run.m = LAYERS + 5;
	expect_refused(&w, &bad, OD_ERR_RANGE, "found 17");
	assert_says(read_log(w.log), "found 17\" request=\"r-1,r?2=\\\"\"\n");
	init_request(&good, 2, 0, 1, 1);
	add_expert(&good, 1, 0, 1, 1, true);
	good.run.requests = (char *)"r-4";
	send_request(&w, &good);
	get_good_results(&w, &good);
	assert_says(read_log(w.log), "msg=\"texts from step 2 on\" request=r-4\n");
	/* Another session knows no names. */
	end_worker_session(&w);
	begin_worker_session(&w, F32);
	bad.run.m = LAYERS + 8;
	expect_refused(&w, &bad, OD_ERR_RANGE, "found 20");
	assert_says(read_log(w.log), "found 20\"\n");
	close_worker(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_compute_what_the_checkpoint_says),
		cmocka_unit_test(rows_do_not_depend_on_each_other),
		cmocka_unit_test(wanted_experts_are_ready),
		cmocka_unit_test(ready_experts_are_one_operation_and_one_result),
		cmocka_unit_test(large_experts_are_computed_alone),
		cmocka_unit_test(paced_work_takes_its_time),
		cmocka_unit_test(one_slot_runs_every_expert),
		cmocka_unit_test(bad_runs_are_answered),
		cmocka_unit_test(bad_advice_is_dropped),
		cmocka_unit_test(handshake_names_what_differs),
		cmocka_unit_test(sessions_leave_nothing_behind),
		cmocka_unit_test(read_either_way),
		cmocka_unit_test(a_corrupt_expert_costs_only_itself),
		cmocka_unit_test(strangers_do_no_harm),
		cmocka_unit_test(too_little_memory_is_refused),
		cmocka_unit_test(memory_stays_under_the_ceiling),
		cmocka_unit_test(too_many_rows_are_answered_busy),
		cmocka_unit_test(the_log_says_what_a_user_wants_to_know),
		cmocka_unit_test(log_lines_name_the_requests_of_a_run),
	};

	return cmocka_run_group_tests_name("od_worker", tests, make_worker_pack, remove_worker_pack);
}
