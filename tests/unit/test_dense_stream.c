/* Dense weights that do not all stay in memory: the bytes that a step finds are those of weights that do, in whatever
 * order stages are taken; and bytes that change, or are missing, are found. */
#include "common/pack/load/dense_load.h"

#include "common/model/config.h"
#include "common/pack/pack_internal.h"
#include "common/pack/write/pack_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static struct od_pack *pack;
static struct od_device *device;
static struct od_dense_store *whole;

static uint32_t n_stages(const struct od_dense_store *s)
{
	return od_pack_config(pack)->n_layers + od_dense_get(s)->n_head_pieces;
}

static struct od_dense_store *stream_in(uint64_t bytes, uint64_t host_bytes, bool direct)
{
	const struct od_dense_room room = { .bytes = bytes, .host_bytes = host_bytes, .direct = direct };
	struct od_dense_store *s;
	struct od_err err = { 0 };

	must(od_dense_load_streamed(&s, pack, device, &room, &err), &err);
	assert_non_null(od_dense_chosen(s));
	assert_true(od_dense_chosen(s)->ring_bytes + od_dense_chosen(s)->kept_bytes <= bytes);
	return s;
}

static uint64_t weight_bytes(const struct od_weight *w)
{
	return w->n_out * od_row_bytes(w->dtype, w->n_in);
}

/* The first n bytes are the same, and a matrix is followed by zeros. */
static void same_bytes(struct od_ref found, struct od_ref expected, uint64_t n, bool ends)
{
	const uint64_t more = ends ? OD_PAD_BYTES : 0;
	uint8_t *a = copy_at(device, found, n + more), *b = copy_at(device, expected, n + more);

	assert_memory_equal(a, b, n + more);
	free(a);
	free(b);
}

static void same_layer(const struct od_dense_store *s, uint32_t layer)
{
	for (int role = 0; role < OD_N_ROLES; role++) {
		const struct od_weight *a = &od_dense_get(s)->layer[layer].w[role],
				       *b = &od_dense_get(whole)->layer[layer].w[role];

		assert_int_equal(a->data.buf == NULL, b->data.buf == NULL);
		if (a->data.buf == NULL)
			continue;
		assert_true(a->dtype == b->dtype && a->n_out == b->n_out && a->n_in == b->n_in);
		same_bytes(a->data, b->data, b->n_in > 0 ? weight_bytes(b) : b->n_out * sizeof(float), b->n_in > 0);
	}
}

static void same_piece(const struct od_dense_store *s, uint32_t piece)
{
	const struct od_weight *w = od_dense_get(s)->head_piece, *head = &od_dense_get(whole)->head;
	uint64_t row = 0;

	for (uint32_t i = 0; i < piece; i++)
		row += w[i].n_out;
	assert_true(w[piece].n_in == head->n_in && row + w[piece].n_out <= head->n_out);
	same_bytes(w[piece].data, od_ref_at(head->data, row * od_row_bytes(head->dtype, head->n_in)),
		   weight_bytes(&w[piece]), false);
}

static int take(const struct od_dense_store *s, uint32_t stage, struct od_err *err)
{
	const struct od_weight_stream *stream = &od_dense_get(s)->stream;

	return stream->take(stream->arg, stage, err);
}

static void use_stage(const struct od_dense_store *s, uint32_t stage)
{
	const struct od_weight_stream *stream = &od_dense_get(s)->stream;
	const uint32_t n_layers = od_pack_config(pack)->n_layers;
	struct od_err err = { 0 };

	must(take(s, stage, &err), &err);
	if (stage < n_layers)
		same_layer(s, stage);
	else
		same_piece(s, stage - n_layers);
	stream->give(stream->arg, stage);
}

/* [0]: least, [1]: all */
static void rooms(uint64_t room[2])
{
	struct od_err err = { 0 };

	must(od_dense_stream_room(pack, &room[0], &room[1], &err), &err);
	assert_true(room[0] > 0 && room[0] < room[1] / 2);
}

static void steps_find_the_same_bytes(void **state)
{
	uint64_t room[2];

	(void)state;
	rooms(room);
	for (int part = 0; part <= 4; part++)
		for (int direct = 0; direct < 2; direct++) {
			struct od_dense_store *s =
				stream_in(room[0] + (room[1] - room[0]) / 4 * (uint64_t)part + (part == 4 ? 3 : 0), 0,
					  direct != 0);
			struct od_dense_figures f;

			for (int step = 0; step < 3; step++)
				for (uint32_t stage = 0; stage < n_stages(s); stage++)
					use_stage(s, stage);
			od_dense_stream_figures(od_dense_streamed(s), &f);
			assert_int_equal(od_dense_chosen(s)->streamed_bytes == 0, part == 4);
			assert_int_equal(f.read_bytes == 0, part == 4);
			/* three steps, and what is ahead */
			assert_true(f.read_bytes <= 4 * od_dense_chosen(s)->streamed_bytes && f.host_bytes == 0);
			od_dense_free(s);
		}
}

/* As when steps are given up, or a prompt's rows need no head. */
static void stages_in_any_order(void **state)
{
	uint64_t room[2], seed = 7;
	struct od_dense_store *s;

	(void)state;
	rooms(room);
	s = stream_in(room[0] + (room[1] - room[0]) / 3, 0, false);
	for (int i = 0; i < 60; i++)
		use_stage(s, (uint32_t)random_below(&seed, n_stages(s)));
	for (int i = 0; i < 20; i++)
		use_stage(s, 3);
	od_dense_free(s);
}

/* A queue may run long after the stage was given back: its memory is not written until then. */
static void queued_work_finds_its_weights(void **state)
{
	const uint32_t n_layers = od_pack_config(pack)->n_layers;
	const uint64_t n = weight_bytes(&od_dense_get(whole)->layer[0].w[OD_ROLE_O]);
	uint8_t *found = malloc(n * n_layers);
	struct od_dense_store *s;
	struct od_err err = { 0 };
	uint64_t room[2];

	(void)state;
	assert_non_null(found);
	rooms(room);
	s = stream_in(room[0], 0, false);
	for (int step = 0; step < 2; step++) {
		for (uint32_t stage = 0; stage < n_stages(s); stage++) {
			must(take(s, stage, &err), &err);
			if (stage < n_layers)
				od_device_get(device, OD_QUEUE_COMPUTE, found + n * stage,
					      od_dense_get(s)->layer[stage].w[OD_ROLE_O].data, n);
			od_dense_get(s)->stream.give(od_dense_get(s)->stream.arg, stage);
		}
		sync_device(device);
		for (uint32_t layer = 0; layer < n_layers; layer++) {
			uint8_t *b = copy_at(device, od_dense_get(whole)->layer[layer].w[OD_ROLE_O].data, n);

			assert_memory_equal(found + n * layer, b, n);
			free(b);
		}
	}
	od_dense_free(s);
	free(found);
}

/* Beside a device with memory of its own. */
static void the_host_has_some(void **state)
{
	struct od_dense_figures f;
	struct od_dense_store *s;
	uint64_t room[2];

	(void)state;
	if (od_device_shares(device))
		skip();
	rooms(room);
	s = stream_in(room[0], room[1], false);
	for (int step = 0; step < 2; step++)
		for (uint32_t stage = 0; stage < n_stages(s); stage++)
			use_stage(s, stage);
	od_dense_stream_figures(od_dense_streamed(s), &f);
	assert_true(f.read_bytes == 0 && f.host_bytes >= 2 * od_dense_chosen(s)->streamed_bytes / 4 * 3);
	od_dense_free(s);
	s = stream_in(room[0], room[1] / 2, false);
	for (int step = 0; step < 2; step++)
		for (uint32_t stage = 0; stage < n_stages(s); stage++)
			use_stage(s, stage);
	od_dense_stream_figures(od_dense_streamed(s), &f);
	assert_true(f.read_bytes > 0 && f.host_bytes > 0);
	od_dense_free(s);
}

/* ---- bytes that change ---- */

static void flip(uint64_t at)
{
	const int fd = open(od_data_path(&pack->dense, 0), O_RDWR);
	uint8_t b;

	assert_true(fd >= 0 && pread(fd, &b, 1, (off_t)at) == 1);
	b ^= 16;
	assert_true(pwrite(fd, &b, 1, (off_t)at) == 1);
	close(fd);
}

static const struct od_dense_tensor *tensor_of(enum od_role role, uint32_t layer)
{
	for (size_t i = 0; i < pack->manifest.n_dense; i++)
		if (pack->manifest.dense[i].role == role && pack->manifest.dense[i].layer == layer)
			return &pack->manifest.dense[i];
	fail();
	return NULL;
}

static void step_until(const struct od_dense_store *s, uint32_t end)
{
	for (uint32_t stage = 0; stage < end; stage++)
		use_stage(s, stage);
}

static void changed_bytes_end_a_step_until_they_are_right(void **state)
{
	const struct od_dense_tensor *t = tensor_of(OD_ROLE_O, 5);
	char expected[128];
	uint64_t room[2];
	struct od_dense_store *s;
	struct od_err err = { 0 };

	(void)state;
	rooms(room);
	s = stream_in(room[0], 0, false);
	snprintf(expected, sizeof(expected), "tensor %s of layer 5: %s at offset %" PRIu64 ": checksum: expected ",
		 od_role_name(OD_ROLE_O), od_data_path(&pack->dense, 0), t->offset);
	for (int round = 0; round < 2; round++) {
		step_until(s, n_stages(s));
		flip(t->offset + 1000);
		for (int i = 0; i < 2; i++) {
			step_until(s, 5);
			assert_int_equal(take(s, 5, &err), OD_ERR_CORRUPT);
			assert_memory_equal(err.msg, expected, strlen(expected));
			assert_non_null(strstr(err.msg, "(tried 3 times)"));
		}
		flip(t->offset + 1000);
		step_until(s, n_stages(s));
	}
	od_dense_free(s);
}

static void a_file_that_became_shorter(void **state)
{
	const char *path = od_data_path(&pack->dense, 0);
	const uint64_t bytes = od_data_bytes(&pack->dense);
	const struct od_dense_tensor *t = tensor_of(OD_ROLE_O, 2);
	uint8_t *rest = malloc(bytes - t->offset);
	struct od_dense_store *s;
	struct od_err err = { 0 };
	uint64_t room[2];
	const int fd = open(path, O_RDWR);

	(void)state;
	assert_non_null(rest);
	assert_true(pread(fd, rest, bytes - t->offset, (off_t)t->offset) == (ssize_t)(bytes - t->offset));
	rooms(room);
	s = stream_in(room[0], 0, false);
	step_until(s, n_stages(s));
	assert_int_equal(ftruncate(fd, (off_t)t->offset + 10), 0);
	/* the tensors of a layer need not be in the order of the file */
	for (uint32_t stage = 0; stage < n_stages(s); stage++) {
		if (take(s, stage, &err) != OD_OK)
			break;
		od_dense_get(s)->stream.give(od_dense_get(s)->stream.arg, stage);
	}
	assert_non_null(strstr(err.msg, "ends too early"));
	assert_int_equal(take(s, 2, &err), OD_ERR_IO);
	assert_true(pwrite(fd, rest, bytes - t->offset, (off_t)t->offset) == (ssize_t)(bytes - t->offset));
	step_until(s, n_stages(s));
	close(fd);
	free(rest);
	od_dense_free(s);
}

static void damage_before_the_start_is_found_there(void **state)
{
	const struct od_dense_tensor *t = tensor_of(OD_ROLE_Q, 1);
	struct od_dense_room room = { 0 };
	struct od_dense_store *s;
	struct od_err err = { 0 };
	uint64_t bytes[2];

	(void)state;
	rooms(bytes);
	room.bytes = bytes[0];
	flip(t->offset + 77);
	assert_int_equal(od_dense_load_streamed(&s, pack, device, &room, &err), OD_ERR_CORRUPT);
	assert_null(s);
	flip(t->offset + 77);
	room.bytes = bytes[0] - 1;
	assert_int_equal(od_dense_load_streamed(&s, pack, device, &room, &err), OD_ERR_NOMEM);
	assert_null(s);
}

static int setup(void **state)
{
	struct od_pack_job job = { .checkpoint = "deploy/models/talebook", .codec = OD_CODEC_PLANES, .n_threads = 2 };
	struct od_err err;

	if (temp_dir_make(state) != 0)
		return -1;
	job.pack = temp_path("pack");
	device = device_new(OD_CPU_AUTO, 1);
	if (od_pack_write(&job, &err) != OD_OK || od_pack_open(&pack, temp_path("pack"), &err) != OD_OK ||
	    od_dense_load(&whole, pack, device, OD_DENSE_ALL, &err) != OD_OK) {
		fprintf(stderr, "%s\n", err.msg);
		return -1;
	}
	return 0;
}

static int teardown(void **state)
{
	od_dense_free(whole);
	od_device_free(device);
	od_pack_close(pack);
	return temp_dir_remove(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_find_the_same_bytes),
		cmocka_unit_test(stages_in_any_order),
		cmocka_unit_test(queued_work_finds_its_weights),
		cmocka_unit_test(the_host_has_some),
		cmocka_unit_test(changed_bytes_end_a_step_until_they_are_right),
		cmocka_unit_test(a_file_that_became_shorter),
		cmocka_unit_test(damage_before_the_start_is_found_there),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
