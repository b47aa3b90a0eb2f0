/* The way in which experts are read: timed with a clock of the test's own, over real slices of real experts; and the
 * cache planner's costs of loads. */
#include "common/residency/read_mode.h"

#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/temp_dir.h"

#include <pthread.h>
#include <string.h>

#define LAYERS 12
#define EXPERTS 8
#define NS_PER_BYTE 7 /* unless a test says otherwise */
#define NS_PER_LOOK 1000 /* added by every look at the clock */

static struct od_pack *pack; /* the demo checkpoint's: experts of three shards, each a slice */
static struct od_device *device;
static struct od_buf *slot;

/* A disk whose speed we know. */
static struct {
	pthread_mutex_t lock;
	uint64_t clock_ns;
	uint64_t ns_per_read; /* besides its bytes */
	uint64_t warm_up_ns; /* added to the first of four reads */
	uint64_t ns_per_byte[3]; /* by way: from disk, from the page cache, past it */
	unsigned n_reads, slices; /* bits */
	uint32_t expert[64];
	int refuse; /* this expert (index), -1: none, -2: all */
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t look(void)
{
	uint64_t ns;

	pthread_mutex_lock(&disk.lock);
	ns = disk.clock_ns += NS_PER_LOOK;
	pthread_mutex_unlock(&disk.lock);
	return ns;
}

static int read_disk(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		     const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		     struct od_err *err)
{
	const struct od_shard *s = od_pack_expert(pack, m, expert)->shard;
	const uint32_t index = m * EXPERTS + expert;
	uint64_t bytes = 0, each, extra;
	int rc;

	(void)arg;
	pthread_mutex_lock(&disk.lock);
	each = disk.ns_per_byte[disk.n_reads < 12 ? disk.n_reads / 4 : 2];
	extra = disk.ns_per_read + (disk.n_reads % 4 == 0 ? disk.warm_up_ns : 0);
	disk.expert[disk.n_reads++] = index;
	disk.slices |= 1u << first;
	pthread_mutex_unlock(&disk.lock);
	if (disk.refuse == -2 || disk.refuse == (int)index)
		return od_fail(err, OD_ERR_IO, "as planned");
	rc = od_shards_read(pack, m, expert, first, n, mem, staging, b, err);
	for (uint32_t i = first; i < first + n; i++)
		bytes += s[i].sm.stored_bytes + s[i].e.stored_bytes;
	pthread_mutex_lock(&disk.lock);
	disk.clock_ns += each * bytes + extra;
	pthread_mutex_unlock(&disk.lock);
	return rc;
}

static int reset(void **state)
{
	(void)state;
	disk.ns_per_read = disk.warm_up_ns = 0;
	for (int i = 0; i < 3; i++)
		disk.ns_per_byte[i] = NS_PER_BYTE;
	disk.refuse = -1;
	return 0;
}

static bool choose_with(enum od_form form, enum od_read_mode asked, uint64_t free_bytes, unsigned n_readers)
{
	const struct od_expert_mem mem = od_pack_slot_mem(pack, form, od_buf_ref(slot, 0));
	const struct od_read_mode_opts o = { .pack = pack,
					     .device = device,
					     .form = form,
					     .mem = &mem,
					     .n_readers = n_readers,
					     .asked = asked,
					     .free_bytes = free_bytes,
					     .read = read_disk,
					     .now_ns = look };
	bool direct;

	disk.n_reads = disk.slices = 0;
	assert_int_equal(od_read_mode_choose(&direct, &o, NULL), OD_OK);
	assert_int_equal(od_pack_read_direct(pack, direct), direct);
	return direct;
}

static bool choose(enum od_form form, enum od_read_mode asked, uint64_t free_bytes)
{
	return choose_with(form, asked, free_bytes, 1);
}

static uint64_t bytes_of_experts(void)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
		bytes += od_pack_expert(pack, i / EXPERTS, i % EXPERTS)->bytes;
	return bytes;
}

/* From disk 20 ns a byte, from the page cache 2, past it 10: past it is faster as long as less than 10 / 18 are
 * cached. Four experts a quarter of the pack apart are timed, past the page cache others; the first one warms up. */
static void the_faster_way_is_taken(void **state)
{
	static const uint32_t far_apart[] = { 0, 24, 48, 72 }, others[] = { 1, 25, 49, 73 };
	const uint64_t bytes = bytes_of_experts();

	(void)state;
	disk.ns_per_byte[0] = 20;
	disk.ns_per_byte[1] = 2;
	disk.ns_per_byte[2] = 10;
	disk.warm_up_ns = 50000000;
	if (!od_pack_read_direct(pack, true))
		skip(); /* not on this file system */
	assert_true(choose(OD_FORM_PLANES, OD_READ_AUTO, bytes / 100 * 55));
	assert_int_equal(disk.n_reads, 12);
	assert_memory_equal(disk.expert, far_apart, sizeof(far_apart));
	assert_memory_equal(&disk.expert[4], far_apart, sizeof(far_apart));
	assert_memory_equal(&disk.expert[8], others, sizeof(others));
	assert_false(choose(OD_FORM_PLANES, OD_READ_AUTO, bytes / 100 * 56));
	assert_int_equal(disk.n_reads, 12);
}

/* They fit, or are asked to be read one way, or there is no place to read to. */
static void nothing_is_timed_without_a_choice(void **state)
{
	const uint64_t bytes = bytes_of_experts();

	(void)state;
	if (!od_pack_read_direct(pack, true))
		skip();
	assert_true(!choose(OD_FORM_PLANES, OD_READ_AUTO, bytes) && disk.n_reads == 0);
	assert_true(choose(OD_FORM_PLANES, OD_READ_DIRECT, bytes) && disk.n_reads == 0);
	assert_true(!choose(OD_FORM_PLANES, OD_READ_BUFFERED, 0) && disk.n_reads == 0);
	for (int asked = OD_READ_AUTO; asked <= OD_READ_DIRECT; asked++)
		assert_true(!choose(OD_FORM_PLAIN, (enum od_read_mode)asked, 0) && disk.n_reads == 0);
}

static void readers_read_at_the_same_time(void **state)
{
	(void)state;
	if (!od_pack_read_direct(pack, true))
		skip();
	(void)choose_with(OD_FORM_PLANES, OD_READ_AUTO, 0, 2);
	assert_true(disk.n_reads == 24 && disk.slices == 3);
	(void)choose_with(OD_FORM_PLANES, OD_READ_AUTO, 0, 64); /* more than there are slices */
	assert_true(disk.n_reads == 36 && disk.slices == 7);
}

/* A disk that needs seconds is asked once each way, and that is what counts. */
static void slow_disks_are_not_waited_for(void **state)
{
	(void)state;
	if (!od_pack_read_direct(pack, true))
		skip();
	disk.ns_per_read = 2000000000;
	(void)choose(OD_FORM_PLANES, OD_READ_AUTO, 0);
	assert_int_equal(disk.n_reads, 3);
	disk.ns_per_read = 100000000; /* 100, 200, 300 ms */
	(void)choose(OD_FORM_PLANES, OD_READ_AUTO, 0);
	assert_int_equal(disk.n_reads, 9);
}

/* A slice that cannot be read does not count; if nothing can be read past the page cache, it is not chosen. */
static void what_cannot_be_read_is_left_out(void **state)
{
	(void)state;
	if (!od_pack_read_direct(pack, true))
		skip();
	for (int i = 0; i < 3; i++)
		disk.ns_per_byte[i] = 20 - 5 * (uint64_t)i;
	disk.refuse = 49; /* one that is read past the page cache */
	assert_true(choose(OD_FORM_PLANES, OD_READ_AUTO, 0));
	disk.refuse = -2;
	assert_false(choose(OD_FORM_PLANES, OD_READ_AUTO, 0));
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
		cmocka_unit_test_setup(readers_read_at_the_same_time, reset),
		cmocka_unit_test_setup(slow_disks_are_not_waited_for, reset),
		cmocka_unit_test_setup(what_cannot_be_read_is_left_out, reset),
		cmocka_unit_test_setup(the_faster_way_is_taken, reset),
		cmocka_unit_test_setup(nothing_is_timed_without_a_choice, reset),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
