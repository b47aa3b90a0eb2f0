/* Several devices as one: where layers go, and that data reaches the card that a buffer is on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/compute/cards.h"
#include "common/compute/device_internal.h"

static void open_far(struct od_device *card[2])
{
	struct od_err err;

	for (int i = 0; i < 2; i++)
		assert_int_equal(od_device_open(&card[i], "far", OD_CPU_SCALAR, 1, "od-test", &err), OD_OK);
}

static void test_layers_go_by_memory(void **unused)
{
	static const struct {
		uint64_t bytes[2];
		uint32_t n_layers, end;
	} cases[] = {
		{ { 0, 0 }, 32, 16 }, { { 0, 0 }, 1, 1 }, { { 0, 0 }, 3, 2 },
		{ { 8, 24 }, 32, 8 }, { { 24, 8 }, 32, 24 }, { { 1000, 1 }, 32, 32 }, { { 1, 1000 }, 32, 0 },
	};
	struct od_device *card[2], *d;
	struct od_err err;

	(void)unused;
	open_far(card);
	assert_int_equal(od_device_cards(card[0]), 1);
	assert_ptr_equal(od_device_card(card[0], 0), card[0]);
	assert_int_equal(od_device_card_of(card[0], 7, 8), 0);
	assert_int_equal(od_device_cards_new(&d, card, 2, &err), OD_OK);
	assert_int_equal(od_device_cards(d), 2);
	assert_int_equal(od_device_own_bytes(d), 0);
	card[0]->own_bytes = 5;
	card[1]->own_bytes = 7;
	assert_int_equal(od_device_own_bytes(d), 12);
	assert_int_equal(od_device_own_bytes(card[1]), 7);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		card[0]->memory_bytes = cases[i].bytes[0] << 30;
		card[1]->memory_bytes = cases[i].bytes[1] << 30;
		assert_int_equal(od_device_card_end(d, 0, cases[i].n_layers), cases[i].end);
		assert_int_equal(od_device_card_end(d, 1, cases[i].n_layers), cases[i].n_layers);
		for (uint32_t layer = 0; layer < cases[i].n_layers; layer++)
			assert_int_equal(od_device_card_of(d, layer, cases[i].n_layers), layer >= cases[i].end);
	}
	od_device_free(d); /* and its cards */
}

static void test_data_reaches_its_card(void **unused)
{
	const uint32_t sent[2][4] = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } };
	struct od_device *card[2], *d;
	struct od_buf *buf[3];
	uint32_t back[2][4];
	struct od_err err;

	(void)unused;
	open_far(card);
	assert_int_equal(od_device_cards_new(&d, card, 2, &err), OD_OK);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(od_buf_new(&buf[i], od_device_card(d, i), 64, "words", &err), OD_OK);
		od_device_put(d, OD_QUEUE_COMPUTE, od_buf_ref(buf[i], 16), sent[i], sizeof(sent[i]));
	}
	assert_int_equal(od_buf_new(&buf[2], d, 64, "words", &err), OD_OK); /* the first card's */
	assert_ptr_equal(od_buf_device(buf[2]), card[0]);
	for (unsigned i = 0; i < 2; i++) { /* an operation runs where its operands are */
		const struct od_op op = { .kind = OD_OP_COPY, .profile = OD_PROFILE_F32, .n_rows = 1,
					  .copy = { .from = od_buf_ref(buf[i], 16), .to = od_buf_ref(buf[i], 32), .n = 16 } };

		od_device_run(d, OD_QUEUE_COMPUTE, &op);
		od_device_get(d, OD_QUEUE_COMPUTE, back[i], od_buf_ref(buf[i], 32), sizeof(back[i]));
	}
	assert_int_equal(od_device_wait(d, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE), &err), OD_OK);
	assert_memory_equal(back, sent, sizeof(sent));
	assert_int_equal(od_device_waits(d), 1);
	for (int i = 0; i < 3; i++)
		od_buf_free(buf[i]);
	od_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layers_go_by_memory),
		cmocka_unit_test(test_data_reaches_its_card),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
