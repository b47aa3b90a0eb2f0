/* The table of snapshots against a list of what was kept: the one that is worth least goes, and only when there is no
 * room; what a page has is what was written for it last, until the page goes. */
#include <string.h>

#include "main-node/engine/prefix/snapshots.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"

#define N 5u
#define PAGES 12u
#define NONE ODM_NO_SNAPSHOT

static uint64_t seed = 3;

/* The table, and what is known of each snapshot. */
struct world {
	struct odm_snapshots *s;
	struct {
		enum { FREE, TAKEN, KEPT } is;
		uint32_t page;
		uint64_t text, used, tokens, worth;
		bool passed;
	} snapshot[N];
	uint64_t clock, floor, written, hits, dropped;
	bool superseded; /* evictions now are not for lack of room */
	bool taking;
	uint32_t gone; /* the last one that was dropped */
};

static void on_drop(void *arg, uint32_t snapshot)
{
	struct world *w = arg;

	assert_true(snapshot < N && w->snapshot[snapshot].is == KEPT);
	w->snapshot[snapshot].is = FREE;
	w->gone = snapshot;
	w->dropped += !w->superseded;
	if (w->taking && !w->superseded)
		w->floor = w->snapshot[snapshot].worth;
}

static void open_world(struct world *w)
{
	struct od_err err = { 0 };

	*w = (struct world){ .gone = NONE };
	must(odm_snapshots_new(&w->s, N, PAGES, on_drop, w, &err), &err);
}

static uint32_t of_page(const struct world *w, uint32_t page)
{
	for (uint32_t i = 0; i < N; i++)
		if (w->snapshot[i].is == KEPT && w->snapshot[i].page == page)
			return i;
	return NONE;
}

/* The one that was used longest ago, if several are worth the same. */
static uint32_t worth_least(const struct world *w)
{
	uint32_t least = NONE;

	for (uint32_t i = 0; i < N; i++)
		if (w->snapshot[i].is == KEPT && (least == NONE || w->snapshot[i].worth < w->snapshot[least].worth ||
						  (w->snapshot[i].worth == w->snapshot[least].worth &&
						   w->snapshot[i].used < w->snapshot[least].used)))
			least = i;
	return least;
}

static void touch(struct world *w, uint32_t i, uint64_t tokens, bool passed)
{
	w->snapshot[i].tokens = tokens;
	w->snapshot[i].worth = w->floor + tokens;
	w->snapshot[i].used = ++w->clock;
	w->snapshot[i].passed = passed;
}

static void check(const struct world *w)
{
	struct odm_snapshot_counts c;
	uint32_t kept = 0;

	for (uint32_t p = 0; p < PAGES; p++)
		assert_int_equal(odm_snapshots_of(w->s, p), of_page(w, p));
	for (uint32_t i = 0; i < N; i++)
		kept += w->snapshot[i].is == KEPT;
	odm_snapshots_count(w->s, &c);
	assert_int_equal(c.kept, kept);
	assert_int_equal(c.written, w->written);
	assert_int_equal(c.used, w->hits);
	assert_int_equal(c.dropped, w->dropped);
}

/* A free one, else the text's own old one, else the one that is worth least. */
static uint32_t take(struct world *w, uint32_t old, uint64_t text)
{
	const uint32_t own = old < PAGES ? of_page(w, old) : NONE;
	uint32_t expected = NONE, got;
	bool is_free = false;

	for (uint32_t i = 0; i < N; i++)
		is_free = is_free || w->snapshot[i].is == FREE;
	if (!is_free) {
		w->superseded = own != NONE && w->snapshot[own].text == text;
		expected = w->superseded ? own : worth_least(w);
	}
	w->gone = NONE;
	w->taking = true;
	got = odm_snapshots_take(w->s, old, text);
	w->taking = false;
	w->superseded = false;
	if (is_free)
		assert_true(got < N && w->snapshot[got].is == FREE && w->gone == NONE);
	else
		assert_int_equal(got, expected);
	if (!is_free)
		assert_int_equal(w->gone, expected);
	if (got != NONE)
		w->snapshot[got].is = TAKEN;
	return got;
}

static void keep(struct world *w, uint32_t snapshot, uint32_t page, uint64_t text, uint32_t tokens)
{
	const bool is_new = of_page(w, page) == NONE;

	assert_int_equal(odm_snapshots_keep(w->s, snapshot, page, text, tokens), is_new);
	w->written++;
	w->snapshot[snapshot].is = is_new ? KEPT : FREE;
	w->snapshot[snapshot].page = page;
	w->snapshot[snapshot].text = text;
	touch(w, snapshot, tokens, false);
}

static void use(struct world *w, uint32_t i)
{
	odm_snapshots_use(w->s, i);
	touch(w, i, w->snapshot[i].tokens, false);
	w->hits++;
}

/* It is worth tokens, or an eighth of them if its text has gone on. */
static void value(struct world *w, uint32_t i, uint32_t tokens, bool pass)
{
	(pass ? odm_snapshots_pass : odm_snapshots_value)(w->s, i, tokens);
	if (!pass || !w->snapshot[i].passed)
		touch(w, i, pass ? tokens / 8 : tokens, pass);
}

static void act(struct world *w)
{
	const uint32_t page = (uint32_t)random_below(&seed, PAGES), i = (uint32_t)random_below(&seed, N);
	const uint32_t tokens = (uint32_t)random_below(&seed, 50);
	const uint64_t text = random_below(&seed, 4);

	switch (random_below(&seed, 8)) {
	case 0:
	case 1: (void)take(w, random_below(&seed, 2) ? page : ODM_NO_PAGE, text); break;
	case 2:
	case 3:
		if (w->snapshot[i].is == TAKEN)
			keep(w, i, page, text, tokens);
		break;
	case 4:
		if (w->snapshot[i].is == TAKEN) {
			odm_snapshots_give_back(w->s, i);
			w->snapshot[i].is = FREE;
		} else if (w->snapshot[i].is == KEPT) {
			use(w, i);
		}
		break;
	case 6:
		if (w->snapshot[i].is == KEPT)
			value(w, i, tokens, random_below(&seed, 2));
		break;
	case 5: odm_snapshots_drop(w->s, page); break;
	default:
		w->superseded = true;
		if (random_below(&seed, 4) > 0)
			odm_snapshots_forget(w->s, page, text);
		else
			odm_snapshots_forget_all(w->s, text);
		w->superseded = false;
	}
}

static void test_random(void **state)
{
	struct world w;

	(void)state;
	open_world(&w);
	for (int round = 0; round < 20000; round++) {
		act(&w);
		check(&w);
	}
	assert_true(w.dropped > 500 && w.hits > 500);
	odm_snapshots_free(w.s);
}

/* In order of use, by hand: all are worth the same. */
static void test_oldest_goes(void **state)
{
	struct world w;

	(void)state;
	open_world(&w);
	for (uint32_t i = 0; i < N; i++)
		keep(&w, take(&w, ODM_NO_PAGE, 1), i, 1, 7);
	use(&w, odm_snapshots_of(w.s, 0)); /* now that of page 1 is the oldest */
	keep(&w, take(&w, ODM_NO_PAGE, 1), 7, 1, 7);
	assert_int_equal(odm_snapshots_of(w.s, 1), NONE);
	assert_true(odm_snapshots_of(w.s, 0) != NONE);
	keep(&w, take(&w, 4, 1), 8, 1, 7); /* this text's own, though it is not the oldest */
	assert_int_equal(odm_snapshots_of(w.s, 4), NONE);
	assert_true(odm_snapshots_of(w.s, 2) != NONE);
	keep(&w, take(&w, 8, 2), 9, 2, 7); /* another text's is not taken */
	assert_int_equal(odm_snapshots_of(w.s, 2), NONE);
	assert_true(odm_snapshots_of(w.s, 8) != NONE);
	odm_snapshots_forget(w.s, 8, 2);
	assert_true(odm_snapshots_of(w.s, 8) != NONE);
	w.superseded = true;
	odm_snapshots_forget_all(w.s, 1);
	w.superseded = false;
	assert_true(odm_snapshots_of(w.s, 9) != NONE);
	check(&w);
	odm_snapshots_free(w.s);
}

/* The snapshot that saves most stays, until so much else has gone that it is as old as that. */
static void test_worth(void **state)
{
	struct world w;
	uint32_t page = N;

	(void)state;
	open_world(&w);
	for (uint32_t i = 0; i < N; i++)
		keep(&w, take(&w, ODM_NO_PAGE, 1), i, 1, i == 0 ? 100 : 40);
	value(&w, odm_snapshots_of(w.s, N - 1), 40, true); /* the newest is worth 5 */
	keep(&w, take(&w, ODM_NO_PAGE, 1), page++, 1, 40);
	assert_int_equal(odm_snapshots_of(w.s, N - 1), NONE);
	for (uint32_t i = 1; i < N - 1; i++) { /* to 40, of which the floor is then */
		keep(&w, take(&w, ODM_NO_PAGE, 1), page++, 1, 40);
		assert_int_equal(odm_snapshots_of(w.s, i), NONE);
	}
	assert_true(odm_snapshots_of(w.s, 0) != NONE); /* 100 */
	for (uint32_t i = 0; odm_snapshots_of(w.s, 0) != NONE; i++) {
		assert_true(i < 2 * N);
		keep(&w, take(&w, ODM_NO_PAGE, 1), 1 + i % (N - 1), 1, 40);
	}
	check(&w);
	odm_snapshots_free(w.s);
}

/* While all are being written there is none. */
static void test_all_taken(void **state)
{
	struct world w;

	(void)state;
	open_world(&w);
	for (uint32_t i = 0; i < N; i++)
		assert_true(take(&w, ODM_NO_PAGE, 1) != NONE);
	assert_int_equal(take(&w, ODM_NO_PAGE, 1), NONE);
	odm_snapshots_give_back(w.s, 3);
	w.snapshot[3].is = FREE;
	assert_int_equal(take(&w, ODM_NO_PAGE, 1), 3);
	check(&w);
	odm_snapshots_free(w.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_oldest_goes),
		cmocka_unit_test(test_worth),
		cmocka_unit_test(test_all_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
