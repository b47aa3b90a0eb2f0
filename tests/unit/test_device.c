/* The CPU device: memory, queues, waits. What operations give, and how they fail, is test_ops.c's. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"

static struct od_device *device;
static uint64_t seed = 1;

static int open_device(void **state)
{
	(void)state;
	device = device_new(OD_CPU_AUTO, 2);
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

/* ---- memory ---- */

static void buffers(void **state)
{
	static const size_t sizes[] = { 0, 1, 63, 64, 65, 4095, 4096, 100000, 40u << 20 };
	struct od_err err = { 0 };
	struct od_buf *b;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const size_t n = sizes[i];
		unsigned char *got, *map;

		b = buf_new(device, n);
		assert_int_equal(od_buf_bytes(b), n);
		got = copy_at(device, od_buf_ref(b, 0), n);
		for (size_t k = 0; k < n; k++)
			assert_int_equal(got[k], 0);
		free(got);
		map = od_ref_map(od_buf_ref(b, 0));
		if (map != NULL) { /* as kernels see it */
			assert_int_equal((uintptr_t)map % 64, 0);
			for (size_t k = 0; k < OD_PAD_BYTES; k++)
				assert_int_equal(map[n + k], 0);
			assert_ptr_equal(od_ref_map(od_buf_ref(b, n / 2)), map + n / 2);
		}
		od_buf_free(b);
	}
	assert_int_equal(od_buf_new(&b, device, UINT64_MAX, "what was asked for", &err), OD_ERR_NOMEM);
	assert_null(b);
	assert_non_null(
		strstr(err.msg, on_gpu() ? "what was asked for: " : "what was asked for: 18446744073709551615 bytes"));
	assert_int_equal(od_buf_new(&b, device, UINT64_MAX / 2 + 1, "x", NULL), OD_ERR_NOMEM);
	assert_null(b);
	od_buf_free(NULL);
	od_device_free(NULL);
}

static void which_devices(void **state)
{
	struct od_device *d;
	struct od_err err = { 0 };
	char name[48];

	(void)state;
	if (on_gpu())
		skip();
	for (int cpu = OD_CPU_SCALAR; cpu <= OD_CPU_NEON; cpu++) {
		const struct od_backend *be;
		int rc = od_backend_cpu(&be, (enum od_cpu)cpu, OD_PROFILE_F32, NULL);

		assert_int_equal(od_device_open(&d, NULL, (enum od_cpu)cpu, 1, "test", &err), rc);
		assert_int_equal(d != NULL, rc == OD_OK);
		if (rc != OD_OK) {
			assert_int_equal(rc, OD_ERR_UNSUPPORTED);
			continue;
		}
		snprintf(name, sizeof(name), "%s %s", on_far() ? "far" : "cpu", be->name);
		assert_string_equal(od_device_name(d), name);
		for (enum od_profile p = OD_PROFILE_F32; p <= OD_PROFILE_BF16; p++) {
			assert_int_equal(od_backend_cpu(&be, (enum od_cpu)cpu, p, NULL), OD_OK);
			assert_string_equal(od_device_kernels(d, p), be->name);
			assert_string_equal(od_device_kernel_class(d, p), be->kernel_class);
		}
		od_device_free(d);
	}
}

/* Puts and gets of any places, in order, in either queue; the others' bytes stay. */
static void puts_and_gets(void **state)
{
	enum { BYTES = 5000 };
	unsigned char want[BYTES] = { 0 }, bytes[BYTES], got[BYTES];
	struct od_buf *b = buf_new(device, BYTES);

	(void)state;
	for (int round = 0; round < 400; round++) {
		const enum od_queue q = round % 3 == 0 ? OD_QUEUE_LOADS : OD_QUEUE_COMPUTE;
		const size_t at = random_below(&seed, BYTES), n = random_below(&seed, (uint32_t)(BYTES - at) + 1);

		for (size_t i = 0; i < n; i++)
			bytes[i] = (unsigned char)random_below(&seed, 256);
		od_device_put(device, q, od_buf_ref(b, at), bytes, n);
		memcpy(want + at, bytes, n);
		if (n > 0) { /* over it, at once */
			unsigned char one = (unsigned char)round;

			od_device_put(device, q, od_buf_ref(b, at + n - 1), &one, 1);
			want[at + n - 1] = one;
			assert_int_equal(od_device_wait(device, q, od_device_ticket(device, q), NULL), OD_OK);
		}
		od_device_get(device, q, got, od_buf_ref(b, at / 2), BYTES - at / 2);
		assert_int_equal(od_device_wait(device, q, od_device_ticket(device, q), NULL), OD_OK);
		assert_memory_equal(got, want + at / 2, BYTES - at / 2);
	}
	if (od_ref_map(od_buf_ref(b, 0)) != NULL) {
		unsigned char *map = od_ref_map(od_buf_ref(b, 100));

		assert_memory_equal(map, want + 100, BYTES - 100);
		map[7] ^= 0xff;
		get_at(device, got, od_buf_ref(b, 107), 1);
		assert_int_equal(got[0], want[107] ^ 0xff);
	}
	od_buf_free(b);
}

/* ---- queues ---- */

/* A ticket stands for what was queued until it was taken, and no other work has its number. */
static void tickets(void **state)
{
	struct od_buf *b = buf_new(device, 64);
	uint64_t ticket[OD_N_QUEUES], byte, got;

	(void)state;
	for (int q = 0; q < OD_N_QUEUES; q++)
		ticket[q] = od_device_ticket(device, (enum od_queue)q);
	for (int i = 0; i < 10; i++) {
		const enum od_queue q = (enum od_queue)(i % OD_N_QUEUES),
				    other = (enum od_queue)((i + 1) % OD_N_QUEUES);
		uint64_t next;

		byte = (uint64_t)i + 1;
		od_device_put(device, q, od_buf_ref(b, 0), &byte, sizeof(byte));
		next = od_device_ticket(device, q);
		assert_true(next > ticket[q]);
		assert_int_equal(od_device_ticket(device, other), ticket[other]);
		ticket[q] = next;
		od_device_after(device, other, q, next); /* the other queue reads what this one has put */
		od_device_get(device, other, &got, od_buf_ref(b, 0), sizeof(got));
		ticket[other] = od_device_ticket(device, other);
		assert_int_equal(od_device_wait(device, other, ticket[other], NULL), OD_OK);
		assert_int_equal(got, i + 1);
		assert_int_equal(od_device_wait(device, q, next, NULL), OD_OK);
		assert_int_equal(od_device_wait(device, q, next, NULL), OD_OK); /* again */
	}
	od_buf_free(b);
}

static void waits_are_counted(void **state)
{
	struct od_device *d = device_new(OD_CPU_SCALAR, 1);
	struct od_buf *b = buf_new(d, 64);
	uint64_t x = 0;

	(void)state;
	assert_int_equal(od_device_waits(d), 0);
	for (unsigned i = 1; i < 5; i++) {
		od_device_put(d, OD_QUEUE_COMPUTE, od_buf_ref(b, 0), &x, sizeof(x));
		od_device_get(d, OD_QUEUE_COMPUTE, &x, od_buf_ref(b, 0), sizeof(x));
		od_device_after(d, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE));
		assert_int_equal(od_device_waits(d), 3 * (i - 1));
		assert_int_equal(od_device_sync(d, NULL), OD_OK);
		assert_int_equal(od_device_wait(d, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE), NULL),
				 OD_OK);
		assert_int_equal(od_device_wait(d, OD_QUEUE_LOADS, od_device_ticket(d, OD_QUEUE_LOADS), NULL), OD_OK);
		assert_int_equal(od_device_waits(d), 3 * i);
	}
	od_buf_free(b);
	od_device_free(d);
}

/* Data that the host prepares over and over arrives when it is pushed, and nothing else does. */
static void stages(void **state)
{
	enum { BYTES = 40000 };
	unsigned char want[BYTES] = { 0 }, got[BYTES];
	struct od_buf *b = buf_new(device, BYTES);

	(void)state;
	for (int round = 0; round < 30; round++) {
		const size_t at = random_below(&seed, BYTES), n = random_below(&seed, (uint32_t)(BYTES - at) + 1);
		unsigned char *stage = od_ref_stage(od_buf_ref(b, at));

		assert_non_null(stage);
		if (od_ref_map(od_buf_ref(b, at)) != NULL)
			assert_ptr_equal(stage, od_ref_map(od_buf_ref(b, at)));
		for (size_t i = 0; i < n; i++)
			stage[i] = want[at + i] = (unsigned char)random_below(&seed, 256);
		od_ref_push(od_buf_ref(b, at), n, OD_QUEUE_LOADS);
		assert_int_equal(od_device_wait(device, OD_QUEUE_LOADS, od_device_ticket(device, OD_QUEUE_LOADS), NULL),
				 OD_OK);
		get_at(device, got, od_buf_ref(b, 0), BYTES);
		assert_memory_equal(got, want, BYTES);
		if (round % 10 == 9)
			od_buf_drop_stage(b);
	}
	od_buf_free(b);
}

/* Memory for copies: whole pages of zeros, and as long as it says. */
static void host_memory(void **state)
{
	static const size_t sizes[] = { 1, 4096, 100000 };
	struct od_buf *b = buf_new(device, 100000);

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const size_t n = sizes[i];
		unsigned char *from = od_host_new(device, n), *to = od_host_new(device, n);

		assert_non_null(from);
		assert_non_null(to);
		assert_int_equal((uintptr_t)from % OD_PAGE_BYTES, 0);
		for (size_t k = 0; k < n + OD_PAD_BYTES; k++)
			assert_int_equal(from[k], 0);
		for (size_t k = 0; k < n; k++)
			from[k] = (unsigned char)random_below(&seed, 256);
		od_device_put(device, OD_QUEUE_LOADS, od_buf_ref(b, 0), from, n);
		od_device_get(device, OD_QUEUE_LOADS, to, od_buf_ref(b, 0), n);
		assert_int_equal(od_device_wait(device, OD_QUEUE_LOADS, od_device_ticket(device, OD_QUEUE_LOADS), NULL),
				 OD_OK);
		assert_memory_equal(from, to, n);
		od_host_free(device, from, n);
		od_host_free(device, to, n);
	}
	od_host_free(device, NULL, 5);
	assert_null(od_host_new(device, UINT64_MAX));
	od_buf_free(b);
}

/* A buffer on the host is a stage for others. */
static void buffers_on_the_host(void **state)
{
	enum { BYTES = 5000 };
	struct od_buf *from, *to = buf_new(device, BYTES);
	struct od_err err = { 0 };
	unsigned char got[BYTES], *stage;

	(void)state;
	must(od_buf_new_on_host(&from, device, BYTES, "a test", &err), &err);
	assert_int_equal(od_buf_bytes(from), BYTES);
	stage = od_ref_stage(od_buf_ref(from, 0));
	assert_ptr_equal(od_ref_stage(od_buf_ref(from, 1000)), stage + 1000);
	for (size_t i = 0; i < BYTES; i++)
		stage[i] = (unsigned char)random_below(&seed, 256);
	od_device_put(device, OD_QUEUE_LOADS, od_buf_ref(to, 0), stage, BYTES);
	assert_int_equal(od_device_wait(device, OD_QUEUE_LOADS, od_device_ticket(device, OD_QUEUE_LOADS), NULL), OD_OK);
	get_at(device, got, od_buf_ref(to, 0), BYTES);
	assert_memory_equal(got, stage, BYTES);
	od_buf_free(from);
	od_buf_free(to);
	assert_int_equal(od_buf_new_on_host(&from, device, UINT64_MAX / 2 + 1, "x", NULL), OD_ERR_NOMEM);
	assert_null(from);
}

/* A shared buffer is mapped where the device's memory is the host's; an operation sees what the host writes there. Only
 * a device of the CPU maps all others. */
static void shared_buffers(void **state)
{
	enum { BYTES = 5000 };
	struct od_buf *from, *to = buf_new(device, BYTES);
	struct od_op copy = { .kind = OD_OP_COPY, .profile = OD_PROFILE_F32, .n_rows = 1 };
	struct od_err err = { 0 };
	unsigned char got[BYTES], want[BYTES], *at;

	(void)state;
	must(od_buf_new_shared(&from, device, BYTES, "a test", &err), &err);
	assert_true((od_ref_map(od_buf_ref(from, 0)) != NULL) == od_device_shares(device));
	assert_true((od_ref_map(od_buf_ref(to, 0)) != NULL) == od_device_maps(device));
	assert_true(!od_device_maps(device) || od_device_shares(device));
	if (on_gpu()) {
		const char *unified = getenv("OD_GPU_HOST_UNIFIED");

		assert_false(od_device_maps(device));
		assert_true(od_device_shares(device) || unified == NULL || strcmp(unified, "1") != 0);
	}
	assert_int_equal(od_staged_bytes(device, BYTES), od_device_shares(device) ? BYTES : 2 * BYTES);
	at = od_ref_stage(od_buf_ref(from, 0));
	for (size_t i = 0; i < BYTES; i++)
		at[i] = want[i] = (unsigned char)random_below(&seed, 256);
	od_ref_push(od_buf_ref(from, 0), BYTES, OD_QUEUE_COMPUTE);
	copy.copy.from = od_buf_ref(from, 0);
	copy.copy.to = od_buf_ref(to, 0);
	copy.copy.n = BYTES;
	od_device_run(device, OD_QUEUE_COMPUTE, &copy);
	get_at(device, got, od_buf_ref(to, 0), BYTES);
	assert_memory_equal(got, want, BYTES);
	od_buf_free(from);
	od_buf_free(to);
	assert_int_equal(od_buf_new_shared(&from, device, UINT64_MAX / 2 + 1, "x", NULL), OD_ERR_NOMEM);
	assert_null(from);
}

/* As an expert's slot is used over and over: a load overwrites it only when what read it is done, and what reads it
 * sees the whole load. The host waits for nothing in between. */
static void loads_and_runs_take_turns(void **state)
{
	enum { ROUNDS = 12, N = 4096 };
	struct od_buf *slot = buf_new(device, N), *out = buf_new(device, ROUNDS * N);
	unsigned char from[ROUNDS][N], got[ROUNDS][N];

	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		const struct od_op run = {
			.kind = OD_OP_COPY,
			.profile = OD_PROFILE_F32,
			.n_rows = 1,
			.copy = { .from = od_buf_ref(slot, 0), .to = od_buf_ref(out, (uint64_t)i * N), .n = N }
		};

		for (size_t k = 0; k < N; k++)
			from[i][k] = (unsigned char)random_below(&seed, 256);
		od_device_put(device, OD_QUEUE_LOADS, od_buf_ref(slot, 0), from[i], N);
		od_device_after(device, OD_QUEUE_COMPUTE, OD_QUEUE_LOADS, od_device_ticket(device, OD_QUEUE_LOADS));
		od_device_run(device, OD_QUEUE_COMPUTE, &run);
		od_device_after(device, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, od_device_ticket(device, OD_QUEUE_COMPUTE));
	}
	get_at(device, got, od_buf_ref(out, 0), sizeof(got));
	assert_memory_equal(got, from, sizeof(got));
	assert_int_equal(od_device_wait(device, OD_QUEUE_LOADS, od_device_ticket(device, OD_QUEUE_LOADS), NULL), OD_OK);
	od_buf_free(slot);
	od_buf_free(out);
}

static void fills(void **state)
{
	enum { BYTES = 300 };
	unsigned char want[BYTES] = { 0 }, got[BYTES];
	struct od_buf *b = buf_new(device, BYTES);
	struct od_err err = { 0 };
	struct od_fill f;

	(void)state;
	for (int round = 0; round < 50; round++) {
		const size_t at = random_below(&seed, BYTES), n = random_below(&seed, (uint32_t)(BYTES - at) + 1);
		unsigned char *host;

		must(od_fill_begin(&f, od_buf_ref(b, at), n, &err), &err);
		host = f.host;
		assert_int_equal(f.staged, od_ref_map(od_buf_ref(b, at)) == NULL);
		for (size_t i = 0; i < n; i++) {
			assert_true(host[i] == 0 || host[i] == want[at + i]); /* zeros or what was there */
			host[i] = want[at + i] = (unsigned char)(1 + random_below(&seed, 255));
		}
		must(od_fill_end(&f, OD_OK, &err), &err);
		get_at(device, got, od_buf_ref(b, 0), BYTES);
		assert_memory_equal(got, want, BYTES);
	}
	must(od_fill_begin(&f, od_buf_ref(b, 3), 20, &err), &err);
	assert_int_equal(od_fill_end(&f, OD_ERR_CORRUPT, &err), OD_ERR_CORRUPT);
	od_buf_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buffers),
		cmocka_unit_test(which_devices),
		cmocka_unit_test(puts_and_gets),
		cmocka_unit_test(tickets),
		cmocka_unit_test(waits_are_counted),
		cmocka_unit_test(stages),
		cmocka_unit_test(host_memory),
		cmocka_unit_test(buffers_on_the_host),
		cmocka_unit_test(shared_buffers),
		cmocka_unit_test(loads_and_runs_take_turns),
		cmocka_unit_test(fills),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
