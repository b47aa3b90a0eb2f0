/* The cost of loads: measured with a clock of the test's own, over real parts of real experts. */
#include "worker-node/load/load_profile.h"

#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/temp_dir.h"

#include <pthread.h>
#include <string.h>

#define LAYERS 12
#define EXPERTS 8
#define NS_PER_BYTE 7 /* unless a test says otherwise */
#define NS_PER_LOOK 1000 /* added by every look at the clock */

static struct od_pack *pack; /* the demo checkpoint's: experts of three shards, each a part */
static struct od_device *device;
static struct od_buf *slot;

/* A disk whose speed we know. */
static struct {
	pthread_mutex_t lock;
	uint64_t clock_ns, bytes;
	uint64_t ns_per_read; /* besides its bytes */
	uint64_t ns_per_byte[3]; /* in the first four reads, the second four, the third */
	unsigned n_reads, parts; /* bits */
	uint32_t expert[64];
	int refuse; /* this expert (index), -1: none, -2: all */
	uint32_t damage; /* this one's bytes */
	bool damaged;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t look(void)
{
	uint64_t ns;

	pthread_mutex_lock(&disk.lock);
	ns = disk.clock_ns += NS_PER_LOOK;
	pthread_mutex_unlock(&disk.lock);
	return ns;
}

static int read_disk(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n, unsigned which,
		     const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		     struct od_err *err)
{
	const struct od_shard *s = od_pack_expert(pack, m, expert)->shard;
	const uint32_t index = m * EXPERTS + expert;
	uint64_t bytes = 0, each;
	int rc;

	(void)arg;
	pthread_mutex_lock(&disk.lock);
	each = disk.ns_per_byte[disk.n_reads < 12 ? disk.n_reads / 4 : 2];
	disk.expert[disk.n_reads++] = index;
	disk.parts |= 1u << first;
	pthread_mutex_unlock(&disk.lock);
	if (disk.refuse == -2 || disk.refuse == (int)index)
		return od_fail(err, OD_ERR_IO, "as planned");
	rc = od_shards_read(pack, m, expert, first, n, which, mem, staging, b, err);
	for (uint32_t i = first; i < first + n; i++)
		bytes += s[i].sm.stored_bytes + s[i].e.stored_bytes;
	if (disk.damaged && disk.damage == index)
		((uint8_t *)od_ref_stage(b[0].sm))[5] ^= 1;
	pthread_mutex_lock(&disk.lock);
	disk.clock_ns += each * bytes + disk.ns_per_read;
	disk.bytes += bytes;
	pthread_mutex_unlock(&disk.lock);
	return rc;
}

static struct odw_part_times profile(enum od_form form, unsigned n_readers)
{
	const struct od_expert_mem mem = od_pack_slot_mem(pack, form, od_buf_ref(slot, 0));
	const struct odw_profile_opts o = { .pack = pack,
					    .device = device,
					    .form = form,
					    .mem = &mem,
					    .n_readers = n_readers,
					    .read = read_disk,
					    .now_ns = look };
	struct odw_part_times t;

	disk.n_reads = disk.parts = 0;
	disk.bytes = 0;
	assert_int_equal(odw_profile_loads(&t, &o, NULL), OD_OK);
	return t;
}

static uint64_t part_bytes(uint32_t index, uint32_t part)
{
	const struct od_shard *s = &od_pack_expert(pack, index / EXPERTS, index % EXPERTS)->shard[part];

	return (uint64_t)s->sm.stored_bytes + s->e.stored_bytes;
}

static int reset(void **state)
{
	(void)state;
	disk.ns_per_read = 0;
	for (int i = 0; i < 3; i++)
		disk.ns_per_byte[i] = NS_PER_BYTE;
	disk.refuse = -1;
	disk.damaged = false;
	return 0;
}

/* Four experts a quarter of the pack apart; the first is for warming up. */
static void times_are_those_of_the_disk(void **state)
{
	static const uint32_t far_apart[] = { 0, 24, 48, 72 };
	uint64_t bytes = part_bytes(24, 0) + part_bytes(48, 0) + part_bytes(72, 0);

	(void)state;
	for (int form = 0; form < OD_N_FORMS; form++) {
		struct odw_part_times t = profile((enum od_form)form, 1);

		assert_int_equal(disk.n_reads, 4);
		assert_memory_equal(disk.expert, far_apart, sizeof(far_apart));
		assert_int_equal(t.read_bytes, bytes);
		assert_int_equal(t.read_ns, bytes * NS_PER_BYTE + 3 * NS_PER_LOOK);
		assert_int_equal(t.finishes, 3);
		assert_int_equal(t.finish_ns, 3 * NS_PER_LOOK);
	}
}

static void readers_read_at_the_same_time(void **state)
{
	struct odw_part_times t = profile(OD_FORM_PLANES, 2);

	(void)state;
	assert_int_equal(disk.n_reads, 8);
	assert_int_equal(disk.parts, 3);
	assert_int_equal(t.finishes, 6);
	assert_int_equal(t.read_bytes, disk.bytes - part_bytes(0, 0) - part_bytes(0, 1));
	t = profile(OD_FORM_PLAIN, 64); /* more than there are parts */
	assert_int_equal(disk.parts, 7);
	assert_int_equal(t.finishes, 9);
}

/* A disk that needs seconds is asked once, and that is what counts. */
static void slow_disks_are_not_waited_for(void **state)
{
	struct odw_part_times t;

	(void)state;
	disk.ns_per_read = 2000000000;
	t = profile(OD_FORM_PLANES, 1);
	assert_int_equal(disk.n_reads, 1);
	assert_int_equal(t.read_bytes, part_bytes(0, 0));
	assert_int_equal(t.read_ns, 2000000000 + NS_PER_BYTE * part_bytes(0, 0) + NS_PER_LOOK);
	disk.ns_per_read = 100000000; /* 100, 200, 300 ms */
	t = profile(OD_FORM_PLANES, 1);
	assert_int_equal(disk.n_reads, 3);
	assert_int_equal(t.finishes, 2);
}

static void what_cannot_be_read_is_left_out(void **state)
{
	struct odw_part_times t;

	(void)state;
	disk.refuse = 48;
	t = profile(OD_FORM_PLANES, 1);
	assert_int_equal(t.finishes, 2);
	assert_int_equal(t.read_bytes, part_bytes(24, 0) + part_bytes(72, 0));
	disk.damaged = true;
	disk.damage = 72;
	t = profile(OD_FORM_PLANES, 1);
	assert_int_equal(t.finishes, 1);
	assert_int_equal(t.read_bytes, part_bytes(24, 0));
	disk.refuse = -2;
	t = profile(OD_FORM_PLANES, 1);
	assert_int_equal(t.finishes + t.finish_ns + t.read_bytes + t.read_ns, 0);
}

static struct odw_part_times choose(enum od_form form, enum odw_read_mode asked, uint64_t free_bytes, bool *direct)
{
	const struct od_expert_mem mem = od_pack_slot_mem(pack, form, od_buf_ref(slot, 0));
	const struct odw_profile_opts o = { .pack = pack,
					    .device = device,
					    .form = form,
					    .mem = &mem,
					    .n_readers = 1,
					    .read = read_disk,
					    .now_ns = look };
	struct odw_part_times t;

	disk.n_reads = 0;
	assert_int_equal(odw_profile_read_mode(&t, direct, &o, asked, free_bytes, NULL), OD_OK);
	assert_int_equal(od_pack_read_direct(pack, *direct), *direct);
	return t;
}

static uint64_t rate(const struct odw_part_times *t)
{
	return t->read_ns / t->read_bytes;
}

/* From disk 20 ns a byte, from the page cache 2, past it 10: past it is faster as long as less than 10 / 18 are
 * cached. */
static void the_faster_way_is_taken(void **state)
{
	static const uint32_t others[] = { 1, 25, 49, 73 };
	struct odw_part_times t;
	uint64_t bytes = 0;
	bool direct;

	(void)state;
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
		bytes += od_pack_expert(pack, i / EXPERTS, i % EXPERTS)->bytes;
	disk.ns_per_byte[0] = 20;
	disk.ns_per_byte[1] = 2;
	disk.ns_per_byte[2] = 10;
	if (!od_pack_read_direct(pack, true))
		skip(); /* not on this file system */
	t = choose(OD_FORM_PLANES, ODW_READ_AUTO, bytes / 100 * 55, &direct);
	assert_true(direct && rate(&t) == 10);
	assert_int_equal(disk.n_reads, 12);
	assert_memory_equal(&disk.expert[8], others, sizeof(others));
	t = choose(OD_FORM_PLANES, ODW_READ_AUTO, bytes / 100 * 56, &direct);
	assert_true(!direct && rate(&t) == 20);
	t = choose(OD_FORM_PLANES, ODW_READ_AUTO, bytes, &direct); /* they fit: nothing to be asked */
	assert_true(!direct && disk.n_reads == 4);
	t = choose(OD_FORM_PLANES, ODW_READ_DIRECT, bytes, &direct);
	assert_true(direct && disk.n_reads == 4);
	t = choose(OD_FORM_PLANES, ODW_READ_BUFFERED, 0, &direct);
	assert_true(!direct && disk.n_reads == 4);
	for (int asked = ODW_READ_AUTO; asked <= ODW_READ_DIRECT; asked++) { /* there is no place to read to */
		t = choose(OD_FORM_PLAIN, (enum odw_read_mode)asked, 0, &direct);
		assert_true(!direct && disk.n_reads == 4);
	}
	(void)t;
}

/* Reading an expert of three matrices is three times u and three times rho u. */
static void costs_as_the_planner_has_them(void **state)
{
	const struct odw_expert_costs costs = {
		.read_ns = 9000000, .finish_ns = 600000, .n_parts = 3, .n_inflaters = 2
	};
	struct od_cache_cost c = odw_cache_cost(pack, &costs);
	double sm = 0, e = 0;

	(void)state;
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
		sm += 3 * 256 * 256;
		for (uint32_t s = 0; s < 3; s++)
			e += od_pack_expert(pack, i / EXPERTS, i % EXPERTS)->shard[s].e.stored_bytes;
	}
	assert_true(c.tensors == 3 && c.chunks == 1 && c.inflaters == 2);
	assert_float_equal(c.rho, e / sm, 1e-9);
	assert_float_equal(3 * c.u_ns * (1 + c.rho), 9000000, 1e-3);
	assert_float_equal(c.c_ns, 200000, 1e-6);
}

static int setup(void **state)
{
	struct od_pack_job job = { .checkpoint = "deploy/models/talebook", .codec = OD_CODEC_PLANES, .n_threads = 2 };
	struct od_err err;

	if (temp_dir_make(state) != 0)
		return -1;
	job.pack = temp_path("pack");
	if (od_pack_write(&job, &err) != OD_OK || od_pack_open(&pack, temp_path("pack"), &err) != OD_OK) {
		fprintf(stderr, "%s\n", err.msg);
		return -1;
	}
	device = device_new(OD_CPU_AUTO, 1);
	slot = buf_new(device, od_pack_slot_bytes(pack, OD_FORM_PLAIN));
	return 0;
}

static int teardown(void **state)
{
	od_buf_free(slot);
	od_device_free(device);
	od_pack_close(pack);
	return temp_dir_remove(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(times_are_those_of_the_disk, reset),
		cmocka_unit_test_setup(readers_read_at_the_same_time, reset),
		cmocka_unit_test_setup(slow_disks_are_not_waited_for, reset),
		cmocka_unit_test_setup(what_cannot_be_read_is_left_out, reset),
		cmocka_unit_test_setup(the_faster_way_is_taken, reset),
		cmocka_unit_test_setup(costs_as_the_planner_has_them, reset),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
