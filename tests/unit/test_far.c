/* The far device: a host that touches device memory dies of it, and one that does not wait sees that it should have.
 * That what runs on the CPU device gives the same bits here is the other tests' part, which make check-far runs on
 * it. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/compute/device_internal.h"
#include "tests/gpu/far_device.h"
#include "tests/unit/device_util.h"

static struct od_device *far_new(void)
{
	struct od_device *d;
	struct od_err err = { 0 };

	must(od_device_far_new(&d, OD_CPU_SCALAR, 2, "test", &err), &err);
	return d;
}

/* The signal that a child dies of when it touches the first byte of the buffer; 0: none. */
static int death_of_touching(struct od_buf *b, bool write)
{
	const pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		volatile char *at = b->at;

		signal(SIGSEGV, SIG_DFL); /* not the test program's */
		if (write)
			*at = 1;
		else
			(void)*at;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void the_host_cannot_touch_it(void **state)
{
	struct od_device *d = far_new();
	struct od_buf *b = buf_new(d, 100);
	char x = 7;

	(void)state;
	put_at(d, od_buf_ref(b, 0), &x, 1);
	assert_null(od_ref_map(od_buf_ref(b, 0)));
	assert_int_not_equal(death_of_touching(b, false), 0);
	assert_int_not_equal(death_of_touching(b, true), 0);
	x = 0;
	get_at(d, &x, od_buf_ref(b, 0), 1);
	assert_int_equal(x, 7);
	od_buf_free(b);
	od_device_free(d);
}

static void everything_happens_as_late_as_it_may(void **state)
{
	struct od_device *d = far_new();
	struct od_buf *b = buf_new(d, sizeof(uint64_t));
	uint64_t from = 1, to = 2;

	(void)state;
	od_device_put(d, OD_QUEUE_COMPUTE, od_buf_ref(b, 0), &from, sizeof(from));
	from = 3; /* too early: this is what arrives */
	od_device_get(d, OD_QUEUE_COMPUTE, &to, od_buf_ref(b, 0), sizeof(to));
	assert_true(to != 1 && to != 2 && to != 3); /* nobody has waited */
	usleep(2000);
	assert_true(to != 3);
	sync_device(d);
	assert_int_equal(to, 3);
	od_buf_free(b);
	od_device_free(d);
}

/* The loads' work waits for the compute queue's, which nobody else waits for. */
static void queues_meet_by_tickets(void **state)
{
	struct od_device *d = far_new();
	struct od_buf *b = buf_new(d, sizeof(uint64_t));
	const uint64_t from = 5;
	uint64_t to = 0;

	(void)state;
	od_device_put(d, OD_QUEUE_COMPUTE, od_buf_ref(b, 0), &from, sizeof(from));
	od_device_after(d, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE));
	od_device_get(d, OD_QUEUE_LOADS, &to, od_buf_ref(b, 0), sizeof(to));
	assert_int_equal(od_device_wait(d, OD_QUEUE_LOADS, od_device_ticket(d, OD_QUEUE_LOADS), NULL), OD_OK);
	assert_int_equal(to, 5);
	od_buf_free(b);
	od_device_free(d);
}

static void which_device(void **state)
{
	static const char *const wrong[] = { "", "far", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cudax", "cuda:4096" };
	const char *b = getenv("B");
	char plugin[512];
	struct od_err err = { 0 };
	struct od_device *d;

	(void)state;
	snprintf(plugin, sizeof(plugin), "%s/lib/libod_far.so", b != NULL ? b : "build");
	setenv("OD_CUDA_PLUGIN", plugin, 1);
	setenv("OD_DEVICE", "cuda", 1);
	must(od_device_open(&d, NULL, OD_CPU_SCALAR, 1, "test", &err), &err);
	assert_string_equal(od_device_name(d), "far scalar");
	od_device_free(d);
	must(od_device_open(&d, "cpu", OD_CPU_SCALAR, 1, "test", &err), &err); /* an option counts more */
	assert_string_equal(od_device_name(d), "cpu scalar");
	od_device_free(d);
	setenv("OD_DEVICE", "gpu", 1);
	assert_int_equal(od_device_open(&d, NULL, OD_CPU_SCALAR, 1, "test", &err), OD_ERR_ARG);
	assert_null(d);
	assert_non_null(strstr(
		err.msg,
		"$OD_DEVICE: expected auto, cpu, cuda, cuda:N or cuda:N,M (N to 1023, at most 8 GPUs), found \"gpu\""));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(od_device_open(&d, wrong[i], OD_CPU_SCALAR, 1, "test", &err), OD_ERR_ARG);
		assert_non_null(strstr(err.msg, "--device: expected"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_host_cannot_touch_it),
		cmocka_unit_test(everything_happens_as_late_as_it_may),
		cmocka_unit_test(queues_meet_by_tickets),
		cmocka_unit_test(which_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
