/* Several devices as one: where layers go, and that data reaches the card that a buffer is on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/compute/card_split.h"
#include "common/compute/cards.h"
#include "common/compute/device_internal.h"
#include "tests/gpu/far_device.h"

static void open_far(struct od_device *card[2])
{
	struct od_err err;

	for (int i = 0; i < 2; i++)
		assert_int_equal(od_device_far_new(&card[i], OD_CPU_SCALAR, 1, "od-test", &err), OD_OK);
}

/* ---- which layers go where ---- */

#define MOST_LAYERS 7

static uint32_t random_below(uint32_t *state, uint32_t n)
{
	*state = *state * 1664525u + 1013904223u;
	return (uint32_t)(((uint64_t)(*state >> 8) * n) >> 24);
}

/* Whether it all fits with the layers of card i ending at end[i]. */
static bool fits_like(const struct od_split *s, const uint32_t *own, const uint32_t *end, uint64_t pages,
		      uint64_t copies)
{
	bool ok = true;

	for (unsigned i = 0; i < s->n_cards; i++) {
		const uint32_t begin = i > 0 ? end[i - 1] : s->begin;
		const bool first = begin == s->begin && end[i] > begin, last = end[i] == s->end && end[i] > begin;
		uint64_t need = own[i] + s->each.bytes + pages * s->each.page + copies * s->each.copy;

		for (uint32_t l = begin; l < end[i]; l++)
			need += s->layer[l].bytes + pages * s->layer[l].page + copies * s->layer[l].copy;
		need += (first ? s->first : 0) + (last ? s->last + (first ? 0 : s->tied) : 0);
		ok = ok && need <= s->card[i].free && (end[i] == s->end || end[i] <= s->begin || !s->joined[end[i]]);
	}
	return ok;
}

/* Any way to cut the layers. */
static bool fits_somehow(const struct od_split *s, const uint32_t *own, uint32_t *end, unsigned card, uint64_t pages,
			 uint64_t copies)
{
	bool ok = false;

	if (card + 1 == s->n_cards) {
		end[card] = s->end;
		return fits_like(s, own, end, pages, copies);
	}
	for (end[card] = card > 0 ? end[card - 1] : s->begin; !ok && end[card] <= s->end; end[card]++)
		ok = fits_somehow(s, own, end, card + 1, pages, copies);
	return ok;
}

static void make_up_model(struct od_split *s, uint32_t *seed)
{
	const uint32_t scale = 1 + random_below(seed, 40), page = random_below(seed, 4);

	for (uint32_t i = 0; i < s->n_layers; i++) {
		const bool dealt = i >= s->begin && i < s->end;

		s->layer[i] = (struct od_split_sum){ dealt ? random_below(seed, 2 * scale) : 0,
						     dealt ? random_below(seed, page + 1) : 0,
						     dealt && random_below(seed, 3) == 0 ? random_below(seed, 5) : 0 };
		s->joined[i] = i > s->begin && random_below(seed, 5) == 0;
	}
	s->each =
		(struct od_split_sum){ random_below(seed, 5), random_below(seed, 4) == 0, random_below(seed, 4) == 0 };
	s->first = random_below(seed, scale);
	s->last = random_below(seed, scale);
	s->tied = random_below(seed, 2) * s->first;
}

/* Against all ways to cut the layers of small models for two to four cards. */
static void test_layers_are_dealt_so_that_most_fits(void **unused)
{
	uint32_t seed = 7, n_fit = 0, n_empty = 0, n_tied = 0;

	(void)unused;
	for (int round = 0; round < 3000; round++) {
		const unsigned n = 2 + random_below(&seed, 3);
		const uint32_t n_layers = 1 + random_below(&seed, MOST_LAYERS), begin = random_below(&seed, n_layers);
		const uint64_t pages = random_below(&seed, 4), copies = random_below(&seed, 3);
		uint32_t own[4], end[OD_MAX_CARDS], found[OD_MAX_CARDS];
		struct od_device *card[4], *d;
		struct od_split s;
		struct od_err err;
		uint64_t most = pages;

		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(od_device_far_new(&card[i], OD_CPU_SCALAR, 1, "od-test", &err), OD_OK);
			card[i]->memory_bytes = 1 + random_below(&seed, 250);
			card[i]->own_bytes = own[i] = random_below(&seed, 3);
		}
		assert_int_equal(od_device_cards_new(&d, card, n, &err), OD_OK);
		assert_int_equal(od_split_init(&s, d, n_layers, begin, n_layers - random_below(&seed, n_layers - begin),
					       UINT64_MAX, &err),
				 OD_OK);
		make_up_model(&s, &seed);
		od_split_deal(&s, d, pages, copies);
		for (unsigned i = 0; i < n; i++)
			found[i] = od_device_card_end(d, i);
		for (uint32_t l = s.begin; l < s.end; l++)
			assert_true(l >= od_device_card_begin(d, od_device_card_of(d, l)) &&
				    l < od_device_card_end(d, od_device_card_of(d, l)));
		assert_int_equal(od_split_fits(&s, pages, copies), fits_like(&s, own, found, pages, copies));
		assert_int_equal(od_split_fits(&s, pages, copies), fits_somehow(&s, own, end, 0, pages, copies));
		if (od_split_fits(&s, pages, copies) && s.card[n].sum.page > s.n_cards * s.each.page) {
			while (fits_somehow(&s, own, end, 0, most + 1, copies))
				most++;
			assert_int_equal(od_split_most_pages(&s, copies), most);
			n_fit++;
			n_empty += od_device_card_of(d, s.end - 1) == od_device_card_of(d, s.begin);
			n_tied += od_device_card_of(d, s.end - 1) != od_device_card_of(d, s.begin) && s.tied > 0;
		}
		od_split_fini(&s);
		od_device_free(d);
	}
	assert_true(n_fit > 300 && n_fit < 2500 && n_empty > 30 && n_tied > 30);
}

static void test_one_card_has_all_layers(void **unused)
{
	struct od_device *card[2], *d;
	struct od_split s;
	struct od_err err;
	char text[OD_SPLIT_TEXT_BYTES];

	(void)unused;
	open_far(card);
	assert_int_equal(od_device_cards(card[0]), 1);
	assert_ptr_equal(od_device_card(card[0], 0), card[0]);
	assert_int_equal(od_device_card_of(card[0], 7), 0);
	assert_int_equal(od_split_init(&s, card[0], 2, 0, 2, 100, &err), OD_OK);
	s.layer[0] = (struct od_split_sum){ 10, 3, 1 };
	s.layer[1] = (struct od_split_sum){ 20, 2, 0 };
	s.first = 7;
	s.last = 8;
	s.tied = 1000; /* the embeddings serve as the head */
	s.each.bytes = 5;
	od_split_deal(&s, card[0], 0, 0);
	assert_int_equal(od_split_need(&s, 0, 2, 3), 10 + 20 + 7 + 8 + 5 + 2 * 5 + 3);
	assert_int_equal(od_split_need(&s, 1, 2, 3), 10 + 20 + 7 + 8 + 5 + 2 * 5 + 3);
	assert_int_equal(od_split_most_pages(&s, 0), 10);
	assert_true(od_split_fits(&s, 10, 0) && !od_split_fits(&s, 10, 1) && !od_split_fits(&s, UINT64_MAX, 0));
	assert_string_equal(od_split_text(&s, card[0], 1, 1, text, sizeof(text)), "");
	od_split_fini(&s);
	assert_int_equal(od_device_cards_new(&d, card, 2, &err), OD_OK);
	assert_int_equal(od_device_cards(d), 2);
	assert_int_equal(od_device_card_of(d, 7), 0); /* layers are not dealt yet */
	assert_int_equal(od_device_own_bytes(d), 0);
	card[0]->own_bytes = 5;
	card[1]->own_bytes = 7;
	assert_int_equal(od_device_own_bytes(d), 12);
	assert_int_equal(od_device_own_bytes(card[1]), 7);
	od_device_free(d); /* and its cards */
}

/* A model that does not fit is refused with each card's need. */
static void test_each_card_says_what_it_lacks(void **unused)
{
	struct od_device *card[2], *d;
	struct od_split s;
	struct od_err err;
	char text[OD_SPLIT_TEXT_BYTES];

	(void)unused;
	open_far(card);
	card[0]->memory_bytes = 64 << 20;
	card[1]->memory_bytes = 32 << 20;
	assert_int_equal(od_device_cards_new(&d, card, 2, &err), OD_OK);
	assert_int_equal(od_split_init(&s, d, 8, 0, 8, UINT64_MAX, &err), OD_OK);
	for (uint32_t i = 0; i < 8; i++)
		s.layer[i] = (struct od_split_sum){ (i < 7 ? 10 : 40) << 20, 1 << 20, 0 };
	od_split_deal(&s, d, 2, 0);
	assert_false(od_split_fits(&s, 2, 0));
	assert_string_equal(
		od_split_text(&s, d, 2, 0, text, sizeof(text)),
		"; far: layers 0-4: 60.0 MiB needed, 63.0 MiB free; far: layers 5-7: 66.0 MiB needed, 31.5 MiB free");
	od_split_fini(&s);
	od_device_free(d);
}

/* The last one has what is too much, so it must not be cut off. */
static void test_eight_cards_fit_a_message(void **unused)
{
	struct od_device *card[OD_MAX_CARDS], *d;
	struct od_split s;
	struct od_err err;
	char text[OD_SPLIT_TEXT_BYTES], end[80];

	(void)unused;
	for (unsigned i = 0; i < OD_MAX_CARDS; i++) {
		assert_int_equal(od_device_far_new(&card[i], OD_CPU_SCALAR, 1, "od-test", &err), OD_OK);
		snprintf(card[i]->name, sizeof(card[i]->name), "cuda:%u NVIDIA RTX 6000 Ada Generation Lap", 1016 + i);
		card[i]->memory_bytes = 1000ull << 20;
	}
	assert_int_equal(od_device_cards_new(&d, card, OD_MAX_CARDS, &err), OD_OK);
	assert_int_equal(od_split_init(&s, d, 400, 100, 400, UINT64_MAX, &err), OD_OK);
	for (uint32_t i = 0; i < 400; i++)
		s.layer[i].bytes = 33 << 20;
	od_split_deal(&s, d, 2, 0);
	assert_false(od_split_fits(&s, 2, 0));
	od_fail(&err, OD_ERR_NOMEM, "%0220d%s", 0, od_split_text(&s, d, 2, 0, text, sizeof(text)));
	/* 29 layers fit each of the others; a 64th is left free. */
	snprintf(end, sizeof(end), "; cuda:1023: layers %d-399: %.1f GiB needed, 984.4 MiB free", 100 + 7 * 29,
		 (300 - 7 * 29) * 33 / 1024.0);
	assert_string_equal(err.msg + strlen(err.msg) - strlen(end), end);
	od_split_fini(&s);
	od_device_free(d);
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
		const struct od_op op = {
			.kind = OD_OP_COPY,
			.profile = OD_PROFILE_F32,
			.n_rows = 1,
			.copy = { .from = od_buf_ref(buf[i], 16), .to = od_buf_ref(buf[i], 32), .n = 16 }
		};

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
		cmocka_unit_test(test_layers_are_dealt_so_that_most_fits),
		cmocka_unit_test(test_one_card_has_all_layers),
		cmocka_unit_test(test_each_card_says_what_it_lacks),
		cmocka_unit_test(test_eight_cards_fit_a_message),
		cmocka_unit_test(test_data_reaches_its_card),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
