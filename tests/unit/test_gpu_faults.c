/* A GPU that has too little memory, one that refuses a launch, and one that is lost: what its device says, and what
 * goes on. On the emulated GPU. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/compute/device_internal.h"
#include "common/compute/scratch.h"
#include "tests/unit/device_util.h"

#define MIB (1ull << 20)
#define N 256u

static struct od_device *open_gpu(const char *bytes, const char *fail_at)
{
	const char *b = getenv("B");
	struct od_device *d;
	struct od_err err = { 0 };
	char path[512];

	snprintf(path, sizeof(path), "%s/lib/libod_gpu_host.so", b != NULL ? b : "build");
	setenv("OD_CUDA_PLUGIN", path, 1);
	setenv("OD_GPU_BYTES", bytes, 1);
	setenv("OD_GPU_FAIL_AT", fail_at, 1);
	must(od_device_open(&d, "cuda", OD_CPU_AUTO, 1, "test", &err), &err);
	return d;
}

static void assert_says(const struct od_err *err, const char *wanted)
{
	if (strstr(err->msg, wanted) == NULL)
		fail_msg("expected \"...%s...\", found \"%s\"", wanted, err->msg);
}

static int wait_all(struct od_device *d, enum od_queue q, struct od_err *err)
{
	return od_device_wait(d, q, od_device_ticket(d, q), err);
}

/* ---- memory ---- */

static void too_large_a_buffer(void **state)
{
	struct od_device *d = open_gpu("0x6000000", "0"); /* 96 MiB */
	struct od_buf *large, *small;
	struct od_err err = { 0 };

	(void)state;
	assert_int_equal(od_buf_new(&large, d, 1000 * MIB, "all that there is", &err), OD_ERR_NOMEM);
	assert_null(large);
	assert_says(&err, "cuda:0 emulated GPU: no memory for all that there is: 1001 MiB needed, 80 MiB free");
	assert_int_equal(od_device_failed(d, &err), OD_OK);
	small = buf_new(d, 78 * MIB); /* the other goes on, and memory comes back */
	assert_int_equal(od_buf_new(&large, d, 2 * MIB, "x", &err), OD_ERR_NOMEM);
	od_buf_free(small);
	od_buf_free(buf_new(d, 78 * MIB));
	od_device_free(d);
}

/* ---- memory that comes and goes ---- */

#define GRANULE 65536u

static struct od_device *open_granular(void)
{
	struct od_device *d;

	setenv("OD_GPU_GRANULE_BYTES", "65536", 1);
	d = open_gpu("0x6000000", "0");
	unsetenv("OD_GPU_GRANULE_BYTES");
	return d;
}

/* Free memory, as another program finds it. */
static uint64_t free_now(void)
{
	struct od_device *d = open_gpu("0x6000000", "0");
	const uint64_t bytes = d->memory_bytes;

	od_device_free(d);
	return bytes;
}

static void fill(struct od_device *d, struct od_buf *b, uint64_t at, uint64_t n, uint8_t value)
{
	uint8_t *bytes = malloc(n);

	assert_non_null(bytes);
	memset(bytes, value, n);
	put_at(d, od_buf_ref(b, at), bytes, n);
	free(bytes);
}

static uint8_t byte_of(struct od_device *d, struct od_buf *b, uint64_t at)
{
	uint8_t byte;

	get_at(d, &byte, od_buf_ref(b, at), 1);
	return byte;
}

static void only_whole_granules_are_lent(void **state)
{
	struct od_device *d = open_granular();

	(void)state;
	assert_true(od_device_commits(d));
	assert_false(od_device_lends(d, GRANULE / 2));
	assert_true(od_device_lends(d, GRANULE / 2 + 1));
	assert_int_equal(od_buf_used_memory(d, GRANULE, 0), 0);
	assert_int_equal(od_buf_used_memory(d, GRANULE, 1), GRANULE);
	assert_int_equal(od_buf_used_memory(d, GRANULE, GRANULE - OD_PAD_BYTES), GRANULE);
	assert_int_equal(od_buf_used_memory(d, GRANULE, GRANULE), 2 * GRANULE);
	assert_int_equal(od_device_granules(d, 2 * GRANULE + 1), 3 * GRANULE);
	od_device_free(d);
	setenv("OD_GPU_GRANULE_BYTES", "0", 1); /* a driver that cannot do it */
	d = open_gpu("0x6000000", "0");
	unsetenv("OD_GPU_GRANULE_BYTES");
	assert_false(od_device_commits(d) || od_device_lends(d, GRANULE));
	assert_int_equal(od_buf_used_memory(d, GRANULE, 1), od_buf_memory(d, GRANULE));
	od_device_free(d);
}

/* Ranges need not be of whole granules: what is committed is there, what is released is gone if it is whole. */
static void committed_memory_is_there(void **state)
{
	struct od_device *d = open_granular();
	const uint64_t before = free_now();
	struct od_buf *b, *plain = buf_new(d, 64);
	struct od_err err = { 0 };

	(void)state;
	must(od_buf_new_sparse(&b, d, 10 * GRANULE, "a test", &err), &err);
	assert_int_equal(free_now(), before - 64 - OD_PAD_BYTES);
	must(od_ref_commit(od_buf_ref(plain, 0), 64, "x", &err), &err); /* it has its memory */
	od_ref_release(od_buf_ref(plain, 0), 64);
	od_buf_free(plain);
	must(od_ref_commit(od_buf_ref(b, 2 * GRANULE - 10), 20, "x", &err), &err);
	assert_int_equal(free_now(), before - 2 * GRANULE);
	fill(d, b, 2 * GRANULE - 10, 20, 5);
	must(od_ref_commit(od_buf_ref(b, 0), 4 * GRANULE, "x", &err), &err);
	assert_int_equal(free_now(), before - 4 * GRANULE);
	assert_int_equal(byte_of(d, b, 2 * GRANULE - 1), 5);
	fill(d, b, 0, 4 * GRANULE, 6);
	od_ref_release(od_buf_ref(b, 1), 3 * GRANULE - 2); /* one is whole */
	assert_int_equal(free_now(), before - 3 * GRANULE);
	assert_int_equal(byte_of(d, b, GRANULE - 1), 6);
	assert_int_equal(byte_of(d, b, 2 * GRANULE), 6);
	od_ref_release(od_buf_ref(b, 0), 4 * GRANULE);
	od_ref_release(od_buf_ref(b, 0), 4 * GRANULE);
	assert_int_equal(free_now(), before);
	must(od_ref_commit(od_buf_ref(b, 0), 10 * GRANULE + OD_PAD_BYTES, "x", &err), &err); /* also what pads it */
	assert_int_equal(free_now(), before - 11 * GRANULE);
	fill(d, b, 0, 10 * GRANULE, 7);
	assert_int_equal(byte_of(d, b, 10 * GRANULE - 1), 7);
	assert_int_equal(atomic_load(&d->buffer_bytes), 11 * GRANULE);
	od_buf_free(b);
	assert_int_equal(atomic_load(&d->buffer_bytes), 0);
	assert_int_equal(free_now(), before);
	assert_int_equal(od_buf_new_sparse(&b, d, UINT64_MAX, "too much", &err), OD_ERR_NOMEM);
	assert_null(b);
	od_device_free(d);
}

static void memory_that_another_program_has(void **state)
{
	struct od_device *d = open_granular(), *other;
	struct od_buf *b, *taken;
	struct od_err err = { 0 };

	(void)state;
	must(od_buf_new_sparse(&b, d, 100 * MIB, "a test", &err), &err);
	taken = take_all_but(3 * MIB, &other);
	assert_int_equal(od_device_free_now_bytes(d), 3 * MIB);
	must(od_ref_commit(od_buf_ref(b, 0), 2 * MIB, "x", &err), &err);
	fill(d, b, 0, 2 * MIB, 9);
	assert_int_equal(od_ref_commit(od_buf_ref(b, 0), 4 * MIB, "keys", &err), OD_ERR_NOMEM);
	assert_says(&err, "cuda:0 emulated GPU: no memory for keys: 5 MiB needed, 1 MiB free");
	assert_int_equal(byte_of(d, b, 2 * MIB - 1), 9);
	assert_int_equal(od_device_failed(d, &err), OD_OK);
	od_buf_free(taken);
	must(od_ref_commit(od_buf_ref(b, 0), 4 * MIB, "keys", &err), &err);
	assert_int_equal(byte_of(d, b, 2 * MIB - 1), 9);
	fill(d, b, 2 * MIB, 2 * MIB, 10);
	od_buf_free(b);
	od_device_free(other);
	od_device_free(d);
}

/* Nothing that gives way would help. */
static void memory_that_cannot_be_mapped(void **state)
{
	struct od_device *d;
	struct od_buf *b;
	struct od_err err = { 0 };

	(void)state;
	setenv("OD_GPU_MAP_FAILS_AT", "2", 1);
	d = open_granular();
	unsetenv("OD_GPU_MAP_FAILS_AT");
	must(od_buf_new_sparse(&b, d, 100 * MIB, "a test", &err), &err);
	must(od_ref_commit(od_buf_ref(b, 0), 2 * MIB, "x", &err), &err);
	fill(d, b, 0, 2 * MIB, 9);
	assert_int_equal(od_ref_commit(od_buf_ref(b, 0), 4 * MIB, "keys", &err), OD_ERR_IO);
	assert_says(&err, "cuda:0 emulated GPU: memory for keys: an address cannot be mapped");
	assert_int_equal(od_device_failed(d, &err), OD_OK);
	must(od_ref_commit(od_buf_ref(b, 0), 4 * MIB, "keys", &err), &err);
	assert_int_equal(byte_of(d, b, 2 * MIB - 1), 9);
	fill(d, b, 2 * MIB, 2 * MIB, 10);
	od_buf_free(b);
	od_device_free(d);
}

/* Models are planned by the memory that they go to, of all cards; a GPU that has none of its own has the host's. */
static void what_is_free(void **state)
{
	const uint64_t one = 96 * MIB - 96 * MIB / 64, ram = od_available_ram_bytes();
	struct od_device *d = open_gpu("0x6000000", "0");
	struct od_err err = { 0 };
	char memory[64];

	(void)state;
	assert_true(od_device_free_bytes(d) == one);
	assert_string_equal(od_device_memory_name(d, memory, sizeof(memory)), "on cuda:0 emulated GPU");
	od_device_free(d);
	must(od_device_open(&d, "cuda:0,1", OD_CPU_AUTO, 1, "test", &err), &err);
	assert_true(od_device_free_bytes(d) == 2 * one);
	assert_string_equal(od_device_memory_name(d, memory, sizeof(memory)), "on 2 x cuda:0 emulated GPU");
	od_device_free(d);
	setenv("OD_GPU_HOST_UNIFIED", "1", 1);
	d = open_gpu("0x6000000", "0");
	unsetenv("OD_GPU_HOST_UNIFIED");
	assert_true(od_device_free_bytes(d) > ram / 8);
	assert_string_equal(od_device_memory_name(d, memory, sizeof(memory)), "on this machine");
	od_device_free(d);
}

static void no_room_to_begin(void **state)
{
	struct od_err err = { 0 };
	struct od_device *d;

	(void)state;
	od_device_free(open_gpu("0x6000000", "0")); /* sets the plugin */
	setenv("OD_GPU_BYTES", "1000000", 1);
	assert_int_equal(od_device_open(&d, "cuda", OD_CPU_AUTO, 1, "test", &err), OD_ERR_NOMEM);
	assert_null(d);
	assert_says(&err, "cuda:0 emulated GPU: too little memory: 16777216 bytes needed, 1000000 bytes free");
	setenv("OD_GPU_BYTES", "0x6000000", 1);
	setenv("OD_GPU_PINNED_BYTES", "4", 1); /* limits the host's */
	assert_int_equal(od_device_open(&d, "cuda", OD_CPU_AUTO, 1, "test", &err), OD_ERR_NOMEM);
	unsetenv("OD_GPU_PINNED_BYTES");
	assert_null(d);
	assert_says(&err, "cuda:0 emulated GPU: no host memory for copies: not even");
}

/* Experts of N and N, all with the same matrix. */
static void experts_of(struct od_expert e[2], struct od_buf *w)
{
	for (int i = 0; i < 2; i++) {
		e[i] = (struct od_expert){ 0 };
		for (int mat = 0; mat < OD_N_EXPERT_MATS; mat++)
			e[i].mat[mat] =
				(struct od_weight){ .dtype = OD_BF16, .n_out = N, .n_in = N, .data = od_buf_ref(w, 0) };
	}
}

/* The table of a layer's experts is made when they are first used. */
static void no_room_for_a_table(void **state)
{
	struct od_device *d = open_gpu("0x6000000", "0");
	struct od_buf *w = buf_new(d, 2 * N * N), *rows = buf_new(d, 4 * N * sizeof(float)), *scratch, *rest;
	struct od_op op = { .kind = OD_OP_EXPERTS, .profile = OD_PROFILE_F32, .n_rows = 1 };
	struct od_expert e[2];
	struct od_err err = { 0 };
	uint64_t bytes = 96 * MIB;

	(void)state;
	experts_of(e, w);
	scratch = buf_new(d, od_experts_scratch_bytes(N, N, 2, 1, 1));
	op.experts = (struct od_op_experts){ .expert = e,
					     .x = od_buf_ref(rows, 0),
					     .choice = od_buf_ref(rows, 2 * N * sizeof(float)),
					     .y = od_buf_ref(rows, N * sizeof(float)),
					     .scratch = od_buf_ref(scratch, 0),
					     .n_experts = 2,
					     .top_k = 1,
					     .hidden = N };
	while (od_buf_new(&rest, d, bytes, "the rest", NULL) != OD_OK)
		bytes -= 64;
	od_device_run(d, OD_QUEUE_COMPUTE, &op);
	assert_int_equal(od_device_sync(d, &err), OD_ERR_NOMEM);
	assert_says(&err, "cuda:0 emulated GPU: no memory for a table of experts: ");
	assert_says(&err, " bytes needed, ");
	assert_says(&err, " bytes free");
	od_buf_free(rest);
	od_device_run(d, OD_QUEUE_COMPUTE, &op);
	assert_int_equal(od_device_sync(d, &err), OD_OK);
	assert_int_equal(od_device_failed(d, &err), OD_OK);
	od_buf_free(w), od_buf_free(rows), od_buf_free(scratch);
	od_device_free(d);
}

/* ---- a refused launch ---- */

#define EXPERTS_LAUNCHES 2u /* OD_OP_EXPERTS of one row below launches two: gate and up, down */
#define Y_BEFORE 7.0f

/* A norm, and two experts that share a matrix, of one row. */
struct steps {
	struct od_device *d;
	struct od_buf *w, *rows, *scratch;
	struct od_expert e[2];
	struct od_op norm, experts;
};

static void steps_open(struct steps *s, unsigned refuse_at)
{
	const struct od_op op = { .profile = OD_PROFILE_F32, .n_rows = 1 };
	uint16_t weights[N * N];
	char text[16];
	float x[N];

	snprintf(text, sizeof(text), "%u", refuse_at);
	setenv("OD_GPU_REFUSE_AT", text, 1);
	*s = (struct steps){ .d = open_gpu("0x6000000", "0"), .norm = op, .experts = op };
	unsetenv("OD_GPU_REFUSE_AT");
	for (size_t i = 0; i < N * N; i++)
		weights[i] = (uint16_t)(0x3c00 + i % 13);
	for (size_t i = 0; i < N; i++)
		x[i] = (float)(i % 5) - 1;
	s->w = buf_of(s->d, weights, sizeof(weights));
	s->rows = buf_new(s->d, 5 * N * sizeof(float)); /* for experts: x, y, choice; for a norm: x, y */
	s->scratch = buf_new(s->d, od_experts_scratch_bytes(N, N, 2, 1, 1));
	experts_of(s->e, s->w);
	s->norm.kind = OD_OP_NORM;
	s->norm.norm = (struct od_op_norm){ .x = od_buf_ref(s->rows, 3 * N * sizeof(float)),
					    .weight = od_buf_ref(s->rows, 0),
					    .y = od_buf_ref(s->rows, 4 * N * sizeof(float)),
					    .n = N,
					    .eps = 1e-5f };
	s->experts.kind = OD_OP_EXPERTS;
	s->experts.experts = (struct od_op_experts){ .expert = s->e,
						     .x = od_buf_ref(s->rows, 0),
						     .y = od_buf_ref(s->rows, N * sizeof(float)),
						     .choice = od_buf_ref(s->rows, 2 * N * sizeof(float)),
						     .scratch = od_buf_ref(s->scratch, 0),
						     .n_experts = 2,
						     .top_k = 1,
						     .hidden = N };
	put_at(s->d, s->experts.experts.x, x, sizeof(x));
}

static void steps_close(struct steps *s)
{
	od_buf_free(s->w), od_buf_free(s->rows), od_buf_free(s->scratch);
	od_device_free(s->d);
}

static float first_y(struct steps *s)
{
	float y;

	get_at(s->d, &y, s->experts.experts.y, sizeof(y));
	return y;
}

static void reset_y(struct steps *s)
{
	put_at(s->d, s->experts.experts.y, &(float){ Y_BEFORE }, sizeof(float));
}

/* A handle of a buffer that was freed may come back for another one, at another address of the GPU's memory: here it is
 * given another address, and some buffer is freed. */
static void experts_are_known_by_their_address(void **state)
{
	struct od_err err = { 0 };
	struct od_buf *other, was;
	struct steps s;
	uint16_t weights[N * N];
	float right, y;

	(void)state;
	steps_open(&s, 0);
	other = buf_new(s.d, sizeof(weights));
	od_device_run(s.d, OD_QUEUE_COMPUTE, &s.experts);
	assert_int_equal(od_device_sync(s.d, &err), OD_OK);
	right = first_y(&s);
	assert_true(right != 0);
	was = *s.w;
	s.w->at = other->at;
	od_buf_free(buf_new(s.d, 1));
	od_device_run(s.d, OD_QUEUE_COMPUTE, &s.experts);
	assert_int_equal(od_device_sync(s.d, &err), OD_OK);
	y = first_y(&s);
	assert_true(y == 0); /* as all weights are there */
	s.w->at = was.at;
	od_buf_free(buf_new(s.d, 1));
	od_device_run(s.d, OD_QUEUE_COMPUTE, &s.experts);
	assert_int_equal(od_device_sync(s.d, &err), OD_OK);
	assert_true(first_y(&s) == right);
	od_buf_free(other);
	steps_close(&s);
}

/* A step of n_norms norms, then experts; a ticket is drawn between them if it is to be cut there. */
static int step(struct steps *s, unsigned n_norms, bool cut, struct od_err *err)
{
	for (unsigned i = 0; i < n_norms; i++)
		od_device_run(s->d, OD_QUEUE_COMPUTE, &s->norm);
	if (cut)
		(void)od_device_ticket(s->d, OD_QUEUE_COMPUTE);
	od_device_run(s->d, OD_QUEUE_COMPUTE, &s->experts);
	return od_device_sync(s->d, err);
}

/* Whichever launch of a step is refused: the step fails, none of its later kernels run on what is left of the step
 * before, and the next step is right. */
static void check_refused(unsigned n_norms, bool cut)
{
	static const char *const names[EXPERTS_LAUNCHES] = { "gpu_experts_GPU_BF16_1: out of memory",
							     "gpu_experts_GPU_BF16_1" };

	for (unsigned at = 1; at <= n_norms + EXPERTS_LAUNCHES; at++) {
		struct od_err err = { 0 };
		struct steps s;
		float right;

		steps_open(&s, EXPERTS_LAUNCHES + at);
		assert_int_equal(step(&s, 0, false, &err), OD_OK);
		right = first_y(&s);
		assert_true(right != 0 && right != Y_BEFORE);
		reset_y(&s);
		assert_int_equal(step(&s, n_norms, cut, &err), OD_ERR_IO);
		if (at <= n_norms)
			assert_says(&err, "cuda:0 emulated GPU: gpu_norm: out of memory");
		else
			assert_says(&err, names[at - n_norms - 1]);
		assert_true(od_device_failures(s.d) == 1);
		assert_true(first_y(&s) == Y_BEFORE);
		assert_int_equal(step(&s, n_norms, cut, &err), OD_OK);
		assert_true(first_y(&s) == right);
		assert_int_equal(od_device_failed(s.d, &err), OD_OK);
		steps_close(&s);
	}
}

static void refused_launch_stops_its_step(void **state)
{
	(void)state;
	check_refused(0, false);
	check_refused(2, true);
	check_refused(62, false); /* gathered launches are given between those of the experts */
	check_refused(63, false);
}

/* An error that has not been reported stops kernels, but not copies. */
static void copies_go_on(void **state)
{
	struct od_op copy = { .kind = OD_OP_COPY, .profile = OD_PROFILE_F32, .n_rows = 1 };
	struct od_err err = { 0 };
	struct steps s;
	float y;

	(void)state;
	steps_open(&s, EXPERTS_LAUNCHES + 1);
	assert_int_equal(step(&s, 0, false, &err), OD_OK);
	put_at(s.d, s.norm.norm.y, &(float){ 9 }, sizeof(float));
	copy.copy = (struct od_op_copy){ .from = s.norm.norm.y, .to = s.experts.experts.y, .n = sizeof(float) };
	od_device_run(s.d, OD_QUEUE_COMPUTE, &s.experts);
	assert_int_equal(od_device_wait(s.d, OD_QUEUE_COMPUTE, od_device_ticket(s.d, OD_QUEUE_COMPUTE), NULL),
			 OD_ERR_IO);
	od_device_run(s.d, OD_QUEUE_COMPUTE, &s.experts); /* the error is still there */
	od_device_run(s.d, OD_QUEUE_COMPUTE, &copy);
	od_device_run(s.d, OD_QUEUE_COMPUTE, &s.experts);
	od_device_get(s.d, OD_QUEUE_COMPUTE, &y, s.experts.experts.y, sizeof(y));
	assert_int_equal(od_device_sync(s.d, &err), OD_ERR_IO);
	assert_true(y == 9);
	assert_true(od_device_failures(s.d) == 2);
	steps_close(&s);
}

/* The load queue's wait that comes first may be another thread's, so the number of errors tells, too. */
static void a_refused_load_is_counted(void **state)
{
	struct od_err err = { 0 };
	struct od_device *d;
	struct od_buf *b;
	struct od_op op = { .kind = OD_OP_MERGE, .profile = OD_PROFILE_F32, .n_rows = 1 };

	(void)state;
	setenv("OD_GPU_REFUSE_AT", "2", 1);
	d = open_gpu("0x6000000", "0");
	unsetenv("OD_GPU_REFUSE_AT");
	b = buf_new(d, 4096);
	op.merge = (struct od_op_merge){
		.sm = od_buf_ref(b, 0), .e = od_buf_ref(b, 512), .to = od_buf_ref(b, 1024), .n = 256
	};
	for (int i = 0; i < 3; i++) {
		od_device_run(d, OD_QUEUE_LOADS, &op);
		assert_true(od_device_load_errors(d) == (i > 0));
		assert_int_equal(wait_all(d, OD_QUEUE_LOADS, &err), i == 1 ? OD_ERR_IO : OD_OK);
		assert_int_equal(wait_all(d, OD_QUEUE_LOADS, &err), OD_OK);
	}
	assert_says(&err, "cuda:0 emulated GPU: merge: out of memory");
	assert_true(od_device_failures(d) == 0 && od_device_load_errors(d) == 1);
	od_buf_free(b);
	od_device_free(d);
}

/* ---- wrong choices ---- */

#define CHOICES 2u /* choices of a row; experts */
#define MANY_ROWS 200u

/* Rows that each choose all experts, but the last one has the second one wrong: that is told, and a later step is
 * right. One row is not sorted, few rows and many are by kernels of their own. */
static void check_wrong_choice(uint32_t n_rows, uint16_t wrong, const char *says)
{
	const uint64_t row = N * sizeof(float);
	uint16_t choice[MANY_ROWS][CHOICES];
	struct od_err err = { 0 };
	struct steps s;
	struct od_buf *more, *scratch;

	steps_open(&s, 0);
	more = buf_new(s.d, n_rows * (row + CHOICES * (row + sizeof(uint16_t))));
	scratch = buf_new(s.d, od_experts_scratch_bytes(N, N, CHOICES, CHOICES, n_rows));
	s.experts.n_rows = n_rows;
	s.experts.experts.x = od_buf_ref(more, 0);
	s.experts.experts.y = od_buf_ref(more, n_rows * row);
	s.experts.experts.choice = od_buf_ref(more, n_rows * (1 + CHOICES) * row);
	s.experts.experts.scratch = od_buf_ref(scratch, 0);
	s.experts.experts.top_k = CHOICES;
	for (uint32_t r = 0; r < n_rows; r++)
		choice[r][0] = 0, choice[r][1] = r == n_rows - 1 ? wrong : 1;
	put_at(s.d, s.experts.experts.choice, choice, n_rows * sizeof(choice[0]));
	assert_int_equal(step(&s, 1, false, &err), OD_ERR_RANGE);
	assert_says(&err, says);
	choice[n_rows - 1][1] = 1;
	put_at(s.d, s.experts.experts.choice, choice, n_rows * sizeof(choice[0]));
	assert_int_equal(step(&s, 1, false, &err), OD_OK);
	od_buf_free(more), od_buf_free(scratch);
	steps_close(&s);
}

static void wrong_choices_are_told(void **state)
{
	static const uint32_t rows[] = { 1, 3, MANY_ROWS };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		check_wrong_choice(rows[i], 0, "a row has expert 0 twice");
		check_wrong_choice(rows[i], CHOICES, "expected 0 to 1, found 2");
	}
}

/* ---- a lost GPU ---- */

/* Its third kernel faults: that step's wait says so, and every later one of either queue. */
static void every_later_wait_says_so(void **state)
{
	struct od_device *d = open_gpu("0x6000000", "3");
	struct od_buf *b = buf_new(d, 4 * N * sizeof(float)), *more;
	struct od_op op = { .kind = OD_OP_NORM, .profile = OD_PROFILE_F32, .n_rows = 1 };
	float rows[N];
	struct od_err err = { 0 };

	(void)state;
	for (size_t i = 0; i < N; i++)
		rows[i] = 1;
	op.norm = (struct od_op_norm){ .x = od_buf_ref(b, 0),
				       .weight = od_buf_ref(b, N * sizeof(float)),
				       .y = od_buf_ref(b, 2 * N * sizeof(float)),
				       .n = N,
				       .eps = 1e-5f };
	put_at(d, op.norm.x, rows, sizeof(rows));
	run_op(d, &op);
	run_op(d, &op);
	assert_int_equal(od_device_failed(d, &err), OD_OK);
	od_device_run(d, OD_QUEUE_COMPUTE, &op);
	od_device_get(d, OD_QUEUE_COMPUTE, rows, op.norm.y, sizeof(rows));
	for (int i = 0; i < 3; i++) {
		assert_int_equal(wait_all(d, OD_QUEUE_COMPUTE, &err), OD_ERR_IO);
		assert_says(&err, "cuda:0 emulated GPU: ");
		assert_says(&err, "the GPU is lost");
		assert_true(od_device_failures(d) == (uint64_t)i + 1);
		od_device_run(d, OD_QUEUE_COMPUTE, &op);
	}
	od_device_put(d, OD_QUEUE_LOADS, op.norm.x, rows, sizeof(rows));
	assert_int_equal(wait_all(d, OD_QUEUE_LOADS, &err), OD_ERR_IO);
	assert_says(&err, "the GPU is lost");
	assert_int_equal(od_device_failed(d, &err), OD_ERR_IO);
	assert_says(&err, "cuda:0 emulated GPU is lost after a fault");
	assert_int_equal(od_buf_new(&more, d, 64, "one more", &err), OD_ERR_IO);
	assert_says(&err, "one more: the GPU is lost");
	od_buf_free(b);
	od_device_free(d);
}

/* Even if only the load queue's wait comes to know of it. */
static void loads_come_to_know(void **state)
{
	struct od_device *d = open_gpu("0x6000000", "1");
	struct od_buf *b = buf_new(d, 4096);
	const struct od_op op = {
		.kind = OD_OP_MERGE,
		.profile = OD_PROFILE_F32,
		.n_rows = 1,
		.merge = { .sm = od_buf_ref(b, 0), .e = od_buf_ref(b, 512), .to = od_buf_ref(b, 1024), .n = 256 }
	};
	struct od_err err = { 0 };

	(void)state;
	od_device_run(d, OD_QUEUE_LOADS, &op);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wait_all(d, OD_QUEUE_LOADS, &err), OD_ERR_IO);
	assert_int_equal(od_device_failed(d, &err), OD_ERR_IO);
	od_buf_free(b);
	od_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(too_large_a_buffer),
		cmocka_unit_test(only_whole_granules_are_lent),
		cmocka_unit_test(committed_memory_is_there),
		cmocka_unit_test(memory_that_another_program_has),
		cmocka_unit_test(memory_that_cannot_be_mapped),
		cmocka_unit_test(what_is_free),
		cmocka_unit_test(no_room_to_begin),
		cmocka_unit_test(no_room_for_a_table),
		cmocka_unit_test(experts_are_known_by_their_address),
		cmocka_unit_test(refused_launch_stops_its_step),
		cmocka_unit_test(copies_go_on),
		cmocka_unit_test(a_refused_load_is_counted),
		cmocka_unit_test(wrong_choices_are_told),
		cmocka_unit_test(every_later_wait_says_so),
		cmocka_unit_test(loads_come_to_know),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
