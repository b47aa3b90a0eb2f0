/* The paced device: the CPUs' bits, and no wait that ends before the machine of the words would be done. Tests may be
 * late, so no time has an upper bound. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/compute/scratch.h"
#include "tests/gpu/paced_device.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#define HIDDEN 64u
#define INNER 32u
#define ROWS 5u

static struct od_device *paced_new(const char *words)
{
	struct od_device *d;
	struct od_err err = { 0 };

	must(od_device_paced_new(&d, words, OD_CPU_AUTO, 1, "test", &err), &err);
	return d;
}

/* An expert and its rows on a device. */
struct expert_on {
	struct od_device *d;
	struct od_buf *mat[OD_N_EXPERT_MATS], *x, *y, *scratch;
	struct od_weight w[OD_N_EXPERT_MATS];
};

static float random_unit(uint64_t *seed)
{
	return (float)random_below(seed, 2001) * 1e-3f - 1;
}

static void expert_init(struct expert_on *e, struct od_device *d)
{
	uint16_t weights[HIDDEN * INNER];
	float rows[HIDDEN * ROWS];
	uint64_t seed = 5;

	e->d = d;
	for (size_t i = 0; i < OD_N_EXPERT_MATS; i++) {
		for (size_t k = 0; k < HIDDEN * INNER; k++)
			weights[k] = od_f32_bf16(random_unit(&seed));
		e->mat[i] = buf_of(d, weights, sizeof(weights));
		e->w[i] = (struct od_weight){ .dtype = OD_BF16,
					      .n_out = i == OD_MAT_DOWN ? HIDDEN : INNER,
					      .n_in = i == OD_MAT_DOWN ? INNER : HIDDEN,
					      .data = od_buf_ref(e->mat[i], 0) };
	}
	for (size_t i = 0; i < HIDDEN * ROWS; i++)
		rows[i] = random_unit(&seed);
	e->x = buf_of(d, rows, sizeof(rows));
	e->y = buf_new(d, sizeof(rows));
	e->scratch = buf_new(d, od_ffn_scratch_bytes(INNER, ROWS));
}

static void expert_fini(struct expert_on *e)
{
	for (size_t i = 0; i < OD_N_EXPERT_MATS; i++)
		od_buf_free(e->mat[i]);
	od_buf_free(e->x);
	od_buf_free(e->y);
	od_buf_free(e->scratch);
	od_device_free(e->d);
}

/* Returns y; free it. */
static float *expert_run(const struct expert_on *e, uint32_t rows)
{
	const struct od_ffn_segment segment = { e->w, rows, NULL };

	run_op(e->d, &(struct od_op){ .kind = OD_OP_FFN,
				      .profile = OD_PROFILE_F32,
				      .n_rows = rows,
				      .ffn = { .segment = &segment,
					       .n_segments = 1,
					       .routed = true,
					       .x = od_buf_ref(e->x, 0),
					       .y = od_buf_ref(e->y, 0),
					       .scratch = od_buf_ref(e->scratch, 0) } });
	return copy_at(e->d, od_buf_ref(e->y, 0), rows * HIDDEN * sizeof(float));
}

/* Runs it n times, and says how many milliseconds that took. */
static double ms_of(const char *words, uint32_t rows, unsigned n)
{
	struct expert_on e;
	uint64_t begin_ns, ns;

	expert_init(&e, paced_new(words));
	begin_ns = od_now_ns();
	for (unsigned i = 0; i < n; i++)
		free(expert_run(&e, rows));
	ns = od_now_ns() - begin_ns;
	expert_fini(&e);
	return od_seconds(ns) * 1e3;
}

static void it_computes_as_the_cpus(void **state)
{
	struct expert_on cpu, paced;
	struct od_err err = { 0 };
	struct od_device *d;
	float *want, *got;

	(void)state;
	must(od_device_open(&d, "cpu", OD_CPU_AUTO, 1, "test", &err), &err);
	expert_init(&cpu, d);
	expert_init(&paced, paced_new("op=10us"));
	assert_string_equal(od_device_kernel_class(paced.d, OD_PROFILE_BF16),
			    od_device_kernel_class(d, OD_PROFILE_BF16));
	assert_null(od_ref_map(od_buf_ref(paced.x, 0)));
	want = expert_run(&cpu, ROWS);
	got = expert_run(&paced, ROWS);
	assert_true(want[0] != want[1]);
	assert_memory_equal(got, want, ROWS * HIDDEN * sizeof(float));
	free(want);
	free(got);
	expert_fini(&cpu);
	expert_fini(&paced);
}

/* An expert has 6,144 weights: at 6.144 * 10^6 a second they take a millisecond. */
static void products_take_their_time(void **state)
{
	(void)state;
	assert_true(ms_of("speed=0.0006144", 1, 20) >= 20);
	assert_true(ms_of("speed=0.0006144 many=0.0006144", ROWS, 10) >= 10 * ROWS);
	assert_true(ms_of("speed=0.0006144 many=10", ROWS, 10) >= 10); /* the weights are read once */
	assert_true(ms_of("speed=0.0006144 stretch=4", 1, 10) >= 40);
	assert_true(ms_of("expert=1ms op=500us", ROWS, 20) >= 30);
}

/* Experts that the device finds itself: two of three have rows. */
static void chosen_experts_take_their_time(void **state)
{
	const uint16_t choice[] = { 2, 0, 2, 0 };
	struct od_expert expert[3] = { 0 };
	struct expert_on e;
	struct od_buf *chosen, *scratch;
	uint64_t begin_ns;

	(void)state;
	expert_init(&e, paced_new("expert=10ms"));
	chosen = buf_of(e.d, choice, sizeof(choice));
	scratch = buf_new(e.d, od_experts_scratch_bytes(HIDDEN, INNER, 3, 1, 4));
	for (size_t i = 0; i < 3; i++)
		memcpy(expert[i].mat, e.w, sizeof(e.w));
	begin_ns = od_now_ns();
	run_op(e.d, &(struct od_op){ .kind = OD_OP_EXPERTS,
				     .profile = OD_PROFILE_F32,
				     .n_rows = 4,
				     .experts = { .expert = expert,
						  .x = od_buf_ref(e.x, 0),
						  .choice = od_buf_ref(chosen, 0),
						  .y = od_buf_ref(e.y, 0),
						  .scratch = od_buf_ref(scratch, 0),
						  .n_experts = 3,
						  .top_k = 1,
						  .hidden = HIDDEN } });
	sync_device(e.d);
	assert_true(od_now_ns() - begin_ns >= 20 * OD_NS_PER_MS);
	od_buf_free(chosen);
	od_buf_free(scratch);
	expert_fini(&e);
}

static void loads_queue_up(void **state)
{
	struct od_device *d = paced_new("read=1MB");
	struct od_buf *b = buf_new(d, 30000);
	char *from = calloc(1, 30000);
	const uint64_t begin_ns = od_now_ns();
	uint64_t first;

	(void)state;
	assert_non_null(from);
	od_device_put(d, OD_QUEUE_LOADS, od_buf_ref(b, 0), from, 10000);
	first = od_device_ticket(d, OD_QUEUE_LOADS);
	od_device_put(d, OD_QUEUE_LOADS, od_buf_ref(b, 10000), from, 20000);
	assert_int_equal(od_device_wait(d, OD_QUEUE_LOADS, first, NULL), OD_OK);
	assert_true(od_now_ns() - begin_ns >= 10 * OD_NS_PER_MS);
	od_device_after(d, OD_QUEUE_COMPUTE, OD_QUEUE_LOADS, od_device_ticket(d, OD_QUEUE_LOADS));
	sync_device(d);
	assert_true(od_now_ns() - begin_ns >= 30 * OD_NS_PER_MS);
	free(from);
	od_buf_free(b);
	od_device_free(d);
}

static void write_words(const char *path, const char *words)
{
	char other[520];
	FILE *f;

	snprintf(other, sizeof(other), "%s.new", path);
	f = fopen(other, "w");
	assert_non_null(f);
	fputs(words, f);
	fclose(f);
	assert_int_equal(rename(other, path), 0);
}

/* Runs until the machine needs as long as it should, or for ten seconds. */
static bool becomes(const struct expert_on *e, double ms)
{
	const uint64_t begin_ns = od_now_ns();

	while (od_now_ns() - begin_ns < 10 * OD_NS_PER_S) {
		const uint64_t at = od_now_ns();

		for (unsigned i = 0; i < 4; i++)
			free(expert_run(e, 1));
		if (od_seconds(od_now_ns() - at) * 1e3 >= 4 * ms)
			return true;
	}
	return false;
}

static void a_file_can_slow_it_down(void **state)
{
	const char *path = temp_path("words");
	char words[520];
	struct expert_on e;

	(void)state;
	snprintf(words, sizeof(words), "@%s", path);
	write_words(path, "expert=1us\n");
	expert_init(&e, paced_new(words));
	write_words(path, "expert=60ms\n");
	assert_true(becomes(&e, 60));
	write_words(path, "nonsense"); /* it stays as it was */
	usleep(30000);
	assert_true(becomes(&e, 60));
	expert_fini(&e);
}

static void wrong_words(void **state)
{
	static const struct {
		const char *words, *why;
	} wrong[] = {
		{ "speed", "OD_PACED: expected NAME=VALUE, found \"speed\"" },
		{ "speed=fast", "OD_PACED: speed: " },
		{ "speed=0", "OD_PACED: speed: " },
		{ "op=20", "OD_PACED: op: expected a time such as 20us or 3.5ms, found \"20\"" },
		{ "op=-1us", "OD_PACED: op: expected a time" },
		{ "op=nanus", "OD_PACED: op: expected a time" },
		{ "read=x", "OD_PACED: read: " },
		{ "op=1us spede=1", "OD_PACED: spede: expected speed, many, read" },
		{ "@/nonexistent/words", "OD_PACED: cannot read /nonexistent/words" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct od_err err = { 0 };
		struct od_device *d;

		assert_int_not_equal(od_device_paced_new(&d, wrong[i].words, OD_CPU_AUTO, 1, "test", &err), OD_OK);
		assert_null(d);
		if (strncmp(err.msg, wrong[i].why, strlen(wrong[i].why)) != 0)
			fail_msg("%s: %s", wrong[i].words, err.msg);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_computes_as_the_cpus),	  cmocka_unit_test(products_take_their_time),
		cmocka_unit_test(chosen_experts_take_their_time), cmocka_unit_test(loads_queue_up),
		cmocka_unit_test(a_file_can_slow_it_down),	  cmocka_unit_test(wrong_words),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
