/* The pages of a pool: which sequence has which, who is promised some, which are shared or kept. */
#include <string.h>

#include "common/model/seq_state.h"
#include "tests/unit/config_util.h"
#include "tests/unit/device_util.h"
#include "tests/unit/random.h"
#include "tests/unit/shared_device.h"
#include "tests/unit/state_util.h"

#define MAX_PAGES 64u
#define CTX 150u /* three pages, the last one in part */

static struct od_config cfg; /* three layers that are alike */
static uint64_t seed = 1;

/* A pool with as many pages as its sequences need to be as long as ctx, or with fewer. */
static struct od_state_pool *small_pool(uint32_t ctx, uint32_t n, uint32_t n_pages)
{
	struct od_state_pool *p;
	struct od_err err = { 0 };

	must(od_state_pool_new(&p, device, &cfg, OD_PROFILE_BF16, ctx, n, n_pages, &err), &err);
	assert_int_equal(od_state_pool_free_pages(p), n_pages);
	return p;
}

/* Without a promise. */
static struct od_seq_state *bare_seq(struct od_state_pool *p)
{
	struct od_seq_state *s;
	struct od_err err = { 0 };

	must(od_seq_state_new(&s, p, &err), &err);
	return s;
}

/* Pages come when they are reserved, stay where they are, and stay when a sequence is truncated. */
static void test_reserve(void **state)
{
	struct od_state_pool *p = small_pool(CTX, 1, 3);
	struct od_seq_state *s = open_seq(p);
	uint32_t page[3];

	(void)state;
	reserve(s, 0);
	assert_int_equal(od_seq_state_n_pages(s), 0);
	for (uint32_t n = 1; n <= CTX; n++) {
		reserve(s, n);
		assert_int_equal(od_seq_state_n_pages(s), od_state_pages(n));
		assert_true(n <= OD_KV_PAGE ||
			    memcmp(page, od_seq_state_pages(s), od_state_pages(n - 1) * sizeof(*page)) == 0);
		memcpy(page, od_seq_state_pages(s), od_state_pages(n) * sizeof(*page));
	}
	reserve(s, 1);
	assert_int_equal(od_seq_state_n_pages(s), 3);
	od_seq_state_set_length(s, 140);
	assert_int_equal(od_seq_state_length(s), 140);
	od_seq_state_set_length(s, 2);
	assert_int_equal(od_seq_state_length(s), 2);
	assert_int_equal(od_seq_state_n_pages(s), 3);
	assert_memory_equal(page, od_seq_state_pages(s), sizeof(page));
	od_seq_state_free(s);
	od_state_pool_free(p);
}

/* Each page of a sequence is a page of the pool, and of no other sequence. */
static void check_owners(struct od_seq_state *const *s, uint32_t n, uint32_t n_pages)
{
	bool taken[MAX_PAGES] = { false };

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; s[i] != NULL && k < od_seq_state_n_pages(s[i]); k++) {
			uint32_t page = od_seq_state_pages(s[i])[k];

			assert_in_range(page, 0, n_pages - 1);
			assert_false(taken[page]);
			taken[page] = true;
		}
	}
}

/* Sequences come, grow and go in any order; freed pages are used again, so that all n may always be as long as they
 * like. */
static void test_reuse(void **state)
{
	const uint32_t n = 7, n_pages = n * od_state_pages(CTX);
	struct od_state_pool *p = small_pool(CTX, n, n_pages);
	struct od_seq_state *s[7] = { NULL };
	uint32_t moved = 0, first[7] = { 0 };

	(void)state;
	assert_true(n_pages <= MAX_PAGES);
	for (int round = 0; round < 2000; round++) {
		uint32_t i = random_below(&seed, n);

		if (s[i] == NULL) {
			s[i] = open_seq(p);
			assert_int_equal(od_seq_state_n_pages(s[i]), 0);
			assert_int_equal(od_seq_state_length(s[i]), 0);
		} else if (random_below(&seed, 4) == 0) {
			od_seq_state_free(s[i]);
			s[i] = NULL;
		} else {
			reserve(s[i], 1 + random_below(&seed, CTX));
			moved += od_seq_state_pages(s[i])[0] != first[i];
			first[i] = od_seq_state_pages(s[i])[0];
		}
		check_owners(s, n, n_pages);
	}
	assert_true(moved > 100);
	for (uint32_t i = 0; i < n; i++) {
		if (s[i] == NULL)
			s[i] = open_seq(p);
		reserve(s[i], CTX);
		assert_int_equal(od_seq_state_n_pages(s[i]), od_state_pages(CTX));
	}
	check_owners(s, n, n_pages);
	for (uint32_t i = 0; i < n; i++)
		od_seq_state_free(s[i]);
	od_state_pool_free(p);
}

/* ---- memory that pages share with others ---- */

struct lender {
	uint32_t most, n; /* pages that may have memory; those that have */
	uint32_t n_takes;
	struct od_buf *spare[2]; /* it gives them back, the last one first */
	uint32_t n_spare, n_asked;
};

static uint32_t most_of(void *arg)
{
	return ((struct lender *)arg)->most;
}

static void take(void *arg, uint32_t n)
{
	((struct lender *)arg)->n += n;
	((struct lender *)arg)->n_takes++;
}

static void give(void *arg, uint32_t n)
{
	assert_true(((struct lender *)arg)->n >= n);
	((struct lender *)arg)->n -= n;
}

static bool give_way(void *arg, uint64_t n)
{
	struct lender *l = arg;

	assert_int_equal(n, od_state_page_bytes(&cfg, OD_PROFILE_BF16, device));
	l->n_asked++;
	if (l->n_spare == 0)
		return false;
	od_buf_free(l->spare[--l->n_spare]);
	return true;
}

static struct od_state_pool *sharing_pool(struct lender *l, uint32_t n, uint32_t n_pages)
{
	const struct od_state_sharing with = { most_of, take, give, give_way, l };
	struct od_state_pool *p;
	struct od_err err = { 0 };

	must(od_state_pool_new_lent(&p, device, &cfg, OD_PROFILE_BF16, CTX, n, n_pages, &err), &err);
	od_state_pool_share(p, &with);
	return p;
}

/* Writes to the first position of a page in each layer and stream, or checks what was written. */
static void page_rows(const struct od_state_pool *p, uint32_t page, uint8_t value, bool write)
{
	struct od_stream stream[OD_MAX_STREAMS];
	uint8_t byte;

	for (uint32_t l = 0; l < cfg.n_layers; l++)
		for (uint32_t i = 0; i < od_state_pool_streams(p, l, stream); i++) {
			const struct od_ref at = od_state_pool_row(p, l, i, page, 0);

			byte = (uint8_t)(value + l + i);
			if (write)
				put_at(device, at, &byte, 1);
			else
				get_at(device, &byte, at, 1);
			assert_int_equal(byte, (uint8_t)(value + l + i));
		}
}

static void test_memory_is_lent(void **state)
{
	struct lender l = { .most = 3 };
	struct od_state_pool *p = sharing_pool(&l, 3, 9);
	struct od_seq_state *a = bare_seq(p), *b = bare_seq(p);

	(void)state;
	assert_int_equal(od_seq_state_promise(a, 130), OD_OK);
	assert_int_equal(od_seq_state_promise(b, 1), OD_ERR_BUSY); /* promised, though not used */
	assert_int_equal(l.n, 0);
	reserve(a, 1);
	assert_int_equal(l.n, 1);
	reserve(a, 130);
	assert_int_equal(l.n, 3);
	assert_int_equal(l.n_takes, 2);
	l.most = 4;
	assert_int_equal(od_seq_state_promise(b, 65), OD_ERR_BUSY);
	assert_int_equal(od_seq_state_promise(b, 64), OD_OK);
	od_seq_state_free(b);
	od_seq_state_free(a); /* its pages still have memory: who comes next needs none */
	assert_int_equal(l.n, 3);
	l.most = 0;
	a = bare_seq(p);
	assert_int_equal(od_seq_state_promise(a, 100), OD_OK); /* alone it gets what it needs */
	reserve(a, 100);
	assert_int_equal(l.n_takes, 2);
	od_state_pool_give_back(p, 2);
	assert_int_equal(l.n, 3);
	od_state_pool_give_back(p, 0);
	assert_int_equal(l.n, 2);
	od_seq_state_free(a);
	od_state_pool_give_back(p, 0);
	assert_int_equal(l.n, 0);
	od_state_pool_free(p);
}

static void test_memory_is_lent_at_random(void **state)
{
	enum { N = 7 };
	const uint32_t n_pages = N * od_state_pages(CTX);
	struct lender l = { .most = n_pages };
	struct od_state_pool *p = sharing_pool(&l, N, n_pages);
	struct od_seq_state *s[N] = { NULL };
	uint32_t n_written[N] = { 0 }, n_released = 0;

	(void)state;
	for (int round = 0; round < 3000; round++) {
		const uint32_t i = random_below(&seed, N), before = l.n;
		uint32_t in_use = 0;

		if (s[i] == NULL) {
			s[i] = open_seq(p);
			n_written[i] = 0;
		} else if (random_below(&seed, 4) == 0) {
			for (uint32_t k = 0; k < n_written[i]; k++)
				page_rows(p, od_seq_state_pages(s[i])[k], (uint8_t)(i * 16 + k), false);
			od_seq_state_free(s[i]);
			s[i] = NULL;
		} else {
			reserve(s[i], 1 + random_below(&seed, CTX));
			for (; n_written[i] < od_seq_state_n_pages(s[i]); n_written[i]++)
				page_rows(p, od_seq_state_pages(s[i])[n_written[i]], (uint8_t)(i * 16 + n_written[i]),
					  true);
		}
		for (uint32_t k = 0; k < N; k++)
			in_use += s[k] != NULL ? od_seq_state_n_pages(s[k]) : 0;
		assert_in_range(l.n, in_use, n_pages);
		if (random_below(&seed, 3) == 0) {
			const uint32_t keep = random_below(&seed, 4);

			od_state_pool_give_back(p, keep);
			assert_true(l.n >= in_use && l.n <= in_use + keep);
			n_released += l.n < before;
		}
		check_owners(s, N, n_pages);
	}
	assert_true(n_released > 100 && l.n_takes > 100);
	for (uint32_t i = 0; i < N; i++)
		od_seq_state_free(s[i]);
	od_state_pool_free(p);
}

/* The device has less memory than the lender thought: it gives some back, or else the text gets none, and nothing has
 * changed. */
static void test_memory_is_missing(void **state)
{
	const uint64_t page = od_state_page_bytes(&cfg, OD_PROFILE_BF16, device);
	struct lender l = { .most = 9 };
	struct od_state_pool *p;
	struct od_seq_state *a, *b;
	struct od_device *other;
	struct od_buf *taken;
	struct od_err err = { 0 };

	(void)state;
	if (!on_emulated())
		skip();
	p = sharing_pool(&l, 3, 9);
	a = open_seq(p), b = open_seq(p);
	l.spare[0] = buf_new(device, page / 2);
	l.spare[1] = buf_new(device, page);
	l.n_spare = 2;
	taken = take_all_but(page + page / 4, &other);
	reserve(a, 1);
	page_rows(p, od_seq_state_pages(a)[0], 3, true);
	assert_int_equal(l.n_asked, 0);
	reserve(a, 65);
	page_rows(p, od_seq_state_pages(a)[1], 4, true);
	assert_int_equal(l.n_asked, 1);
	assert_int_equal(od_seq_state_reserve(b, 1, &err), OD_ERR_NOMEM);
	assert_non_null(strstr(err.msg, ": no memory for keys and values: "));
	assert_non_null(strstr(err.msg, "another program has taken memory"));
	assert_int_equal(l.n_asked, 3);
	assert_int_equal(l.n, 2);
	assert_int_equal(od_seq_state_n_pages(b), 0);
	od_buf_free(taken);
	reserve(b, 130);
	assert_int_equal(l.n, 5);
	for (uint32_t i = 0; i < 3; i++)
		page_rows(p, od_seq_state_pages(b)[i], (uint8_t)(10 + i), true);
	for (uint32_t i = 0; i < 2; i++)
		page_rows(p, od_seq_state_pages(a)[i], (uint8_t)(3 + i), false);
	od_seq_state_free(a);
	od_seq_state_free(b);
	od_state_pool_free(p);
	od_device_free(other);
}

/* Work that is queued reads pages before their memory goes. */
static void test_queued_work_is_waited_for(void **state)
{
	struct lender l = { .most = 9 };
	struct od_state_pool *p = sharing_pool(&l, 3, 9);
	struct od_seq_state *a = open_seq(p);
	uint8_t byte = 0;

	(void)state;
	reserve(a, 1);
	page_rows(p, od_seq_state_pages(a)[0], 77, true);
	od_device_get(device, OD_QUEUE_COMPUTE, &byte, od_state_pool_row(p, 0, 0, od_seq_state_pages(a)[0], 0), 1);
	od_seq_state_free(a);
	od_state_pool_give_back(p, 0);
	assert_int_equal(l.n, 0);
	sync_device(device);
	assert_int_equal(byte, 77);
	od_state_pool_free(p);
}

/* ---- promises and sharing ---- */

static void test_promise(void **state)
{
	struct od_state_pool *p = small_pool(200, 3, 5);
	struct od_seq_state *a = bare_seq(p), *b = bare_seq(p), *c = bare_seq(p);

	(void)state;
	assert_int_equal(od_seq_state_promise(a, 0), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 5);
	assert_int_equal(od_seq_state_promise(a, 65), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	assert_int_equal(od_seq_state_n_pages(a), 0); /* promised, not taken */
	assert_int_equal(od_seq_state_promise(b, 193), OD_ERR_BUSY);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	assert_int_equal(od_seq_state_promise(b, 192), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	assert_int_equal(od_seq_state_promise(a, 1), OD_OK); /* a promise stays */
	assert_int_equal(od_seq_state_promise(a, 128), OD_OK);
	assert_int_equal(od_seq_state_promise(a, 129), OD_ERR_BUSY);
	assert_int_equal(od_seq_state_promise(c, 1), OD_ERR_BUSY);
	reserve(c, 0);
	reserve(a, 1);
	reserve(b, 192);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_set_length(b, 192);
	od_seq_state_set_length(b, 0);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_free(a); /* a page that it has, and one that it was promised */
	assert_int_equal(od_state_pool_free_pages(p), 2);
	assert_int_equal(od_seq_state_promise(c, 64), OD_OK);
	assert_int_equal(od_seq_state_promise(b, 200), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	reserve(b, 200);
	reserve(c, 64);
	od_seq_state_free(b);
	od_seq_state_free(c);
	assert_int_equal(od_state_pool_free_pages(p), 5);
	od_state_pool_free(p);
}

/* Kept pages take nothing from promises to sequences; an idle page is attached, or dropped and used again. */
static void test_keep(void **state)
{
	struct od_state_pool *p = small_pool(200, 3, 5);
	struct od_seq_state *a = bare_seq(p), *b;
	uint32_t page[3];

	(void)state;
	od_state_pool_set_aside(p, 2);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	assert_int_equal(od_seq_state_promise(a, 200), OD_ERR_BUSY); /* four pages */
	assert_int_equal(od_seq_state_promise(a, 192), OD_OK);
	reserve(a, 192);
	od_seq_state_set_length(a, 192);
	memcpy(page, od_seq_state_pages(a), sizeof(page));
	od_state_pool_keep(p, page[0]);
	od_state_pool_keep(p, page[1]);
	assert_int_equal(od_state_pool_idle_pages(p), 0);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_free(a);
	assert_int_equal(od_state_pool_idle_pages(p), 2);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	a = bare_seq(p);
	od_seq_state_attach(a, page, 2);
	assert_int_equal(od_seq_state_length(a), 128);
	assert_int_equal(od_state_pool_idle_pages(p), 0);
	assert_int_equal(od_seq_state_promise(a, 192), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	reserve(a, 192);
	assert_memory_equal(od_seq_state_pages(a), page, 2 * sizeof(*page));
	od_state_pool_drop(p, page[1]); /* a sequence has it still */
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_free(a);
	assert_int_equal(od_state_pool_idle_pages(p), 1);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	a = bare_seq(p);
	b = bare_seq(p);
	assert_int_equal(od_seq_state_promise(b, 192), OD_OK);
	reserve(b, 192);
	for (int i = 0; i < 3; i++)
		assert_true(od_seq_state_pages(b)[i] != page[0]);
	od_seq_state_attach(a, page, 1); /* as many as fit are busy: this one is told so */
	assert_int_equal(od_state_pool_free_pages(p), 0);
	assert_int_equal(od_seq_state_promise(a, 65), OD_ERR_BUSY);
	od_seq_state_free(a);
	od_seq_state_free(b);
	od_state_pool_drop(p, page[0]);
	assert_int_equal(od_state_pool_idle_pages(p), 0);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	od_state_pool_free(p);
}

/* Pages that were used are used again before others are touched, those of a text's beginning first. */
static void test_touches_little(void **state)
{
	struct od_state_pool *p = small_pool(200, 4, 12);
	uint32_t first[4];

	(void)state;
	for (uint32_t round = 0; round < 10; round++) {
		struct od_seq_state *s = open_seq(p);

		reserve(s, round == 0 ? 200 : 1 + 19 * round);
		if (round == 0)
			memcpy(first, od_seq_state_pages(s), sizeof(first));
		assert_memory_equal(first, od_seq_state_pages(s), od_seq_state_n_pages(s) * sizeof(*first));
		od_seq_state_free(s);
	}
	od_state_pool_free(p);
}

static void test_share(void **state)
{
	struct od_state_pool *p = small_pool(200, 4, 7);
	struct od_seq_state *a = bare_seq(p), *b = bare_seq(p), *c = bare_seq(p);
	uint32_t page[4];

	(void)state;
	assert_int_equal(od_seq_state_promise(a, 200), OD_OK);
	reserve(a, 150);
	od_seq_state_set_length(a, 150);
	memcpy(page, od_seq_state_pages(a), 3 * sizeof(*page));
	assert_int_equal(od_state_pool_free_pages(p), 3);
	od_seq_state_share(b, a, 2); /* first shared, then promised what is behind */
	assert_int_equal(od_seq_state_length(b), 128);
	assert_int_equal(od_seq_state_n_pages(b), 2);
	assert_memory_equal(od_seq_state_pages(b), page, 2 * sizeof(*page));
	assert_int_equal(od_state_pool_free_pages(p), 3);
	assert_int_equal(od_seq_state_promise(b, 128), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	assert_int_equal(od_seq_state_promise(b, 129), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 2);
	assert_int_equal(od_seq_state_promise(c, 128), OD_OK); /* first promised, then shared */
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_share(c, b, 1);
	assert_int_equal(od_seq_state_length(c), 64);
	assert_int_equal(od_state_pool_free_pages(p), 1);
	reserve(c, 128);
	assert_int_equal(od_seq_state_pages(c)[0], page[0]);
	assert_true(od_seq_state_pages(c)[1] != page[1]);
	assert_int_equal(od_state_pool_free_pages(p), 1);
	od_seq_state_free(a); /* its third page, and one that it was promised; the others have users */
	assert_int_equal(od_state_pool_free_pages(p), 3);
	a = bare_seq(p);
	assert_int_equal(od_seq_state_promise(a, 192), OD_OK);
	reserve(a, 192);
	for (uint32_t i = 0; i < 3; i++)
		assert_true(od_seq_state_pages(a)[i] != page[0] && od_seq_state_pages(a)[i] != page[1]);
	od_seq_state_free(b); /* page 1 and a promise; page 0 is c's, too */
	assert_int_equal(od_state_pool_free_pages(p), 2);
	od_seq_state_free(c);
	assert_int_equal(od_state_pool_free_pages(p), 4);
	od_seq_state_free(a);
	a = bare_seq(p);
	b = bare_seq(p);
	od_seq_state_share(b, a, 0);
	assert_int_equal(od_seq_state_length(b), 0);
	od_seq_state_free(a);
	od_seq_state_free(b);
	assert_int_equal(od_state_pool_free_pages(p), 7);
	od_state_pool_free(p);
}

/* A model of the pool that is counted anew each time: who has which page, and how many each may still ask for. */
#define PEOPLE 6u
struct person {
	struct od_seq_state *s;
	uint32_t page[4], n, promised; /* pages */
	int32_t text[200]; /* tokens that it wrote, or shares */
	uint32_t length;
};

static uint32_t count_free(const struct person *who, uint32_t n_pages)
{
	bool taken[MAX_PAGES] = { false };
	uint32_t free_pages = n_pages;

	for (uint32_t i = 0; i < PEOPLE; i++) {
		for (uint32_t k = 0; k < who[i].n; k++) {
			free_pages -= !taken[who[i].page[k]];
			taken[who[i].page[k]] = true;
		}
		free_pages -= who[i].promised > who[i].n ? who[i].promised - who[i].n : 0;
	}
	return free_pages;
}

static void write_on(struct person *w, uint32_t n)
{
	reserve(w->s, w->length + n);
	for (; n > 0; n--, w->length++) {
		w->text[w->length] = (int32_t)random_below(&seed, 1000000);
		put_at(device, od_seq_state_row(w->s, 1, 0, w->length), &w->text[w->length], sizeof(w->text[0]));
	}
	od_seq_state_set_length(w->s, w->length);
}

static void open_person(struct od_state_pool *p, struct person *who, uint32_t i)
{
	struct person *w = &who[i], *from = &who[random_below(&seed, PEOPLE)];
	uint32_t shared = 0, positions = random_below(&seed, 201), before = count_free(who, 9);
	const bool first = random_below(&seed, 2);

	*w = (struct person){ .s = bare_seq(p) };
	if (from->s != NULL && from != w)
		shared = random_below(&seed, from->length / OD_KV_PAGE + 1);
	if (first && shared > 0)
		od_seq_state_share(w->s, from->s, shared);
	if (od_state_pages(positions) > before + (first ? shared : 0)) {
		assert_int_equal(od_seq_state_promise(w->s, positions), OD_ERR_BUSY);
	} else {
		assert_int_equal(od_seq_state_promise(w->s, positions), OD_OK);
		w->promised = od_state_pages(positions);
	}
	if (!first && shared > 0)
		od_seq_state_share(w->s, from->s, shared);
	w->promised = w->promised > shared ? w->promised : shared;
	w->length = shared * OD_KV_PAGE;
	memcpy(w->text, from->text, w->length * sizeof(w->text[0]));
}

static void check_people(const struct od_state_pool *p, struct person *who)
{
	for (uint32_t i = 0; i < PEOPLE; i++) {
		struct person *w = &who[i];

		if (w->s == NULL)
			continue;
		w->n = od_seq_state_n_pages(w->s);
		memcpy(w->page, od_seq_state_pages(w->s), w->n * sizeof(w->page[0]));
		assert_int_equal(od_seq_state_length(w->s), w->length);
		for (uint32_t at = 0; at < w->length; at += 1 + at % 7) {
			int32_t found;

			get_at(device, &found, od_seq_state_row(w->s, 1, 0, at), sizeof(found));
			assert_int_equal(found, w->text[at]);
		}
	}
	assert_int_equal(od_state_pool_free_pages(p), count_free(who, 9));
}

/* Sequences that share with any other, are promised what there is, write, and go, in any order. */
static void test_share_at_random(void **state)
{
	struct od_state_pool *p = small_pool(200, PEOPLE, 9);
	struct person who[PEOPLE] = { { NULL } };
	uint32_t shared = 0, full = 0;

	(void)state;
	seed = 5;
	for (int round = 0; round < 4000; round++) {
		const uint32_t i = random_below(&seed, PEOPLE);
		struct person *w = &who[i];
		uint32_t room;

		if (w->s == NULL) {
			open_person(p, who, i);
			shared += w->length > 0;
		} else if (random_below(&seed, 4) == 0) {
			od_seq_state_free(w->s);
			*w = (struct person){ NULL };
		} else {
			room = w->promised * OD_KV_PAGE < 200 ? w->promised * OD_KV_PAGE : 200;
			write_on(w, random_below(&seed, room - w->length + 1));
		}
		check_people(p, who);
		full += od_state_pool_free_pages(p) == 0;
	}
	assert_true(shared > 100 && full > 100);
	for (uint32_t i = 0; i < PEOPLE; i++)
		od_seq_state_free(who[i].s);
	assert_int_equal(od_state_pool_free_pages(p), 9);
	od_state_pool_free(p);
}

static void test_indices(void **state)
{
	struct od_state_pool *p = small_pool(200, 3, 1);
	struct od_seq_state *s[3] = { bare_seq(p), bare_seq(p), bare_seq(p) };

	(void)state;
	for (uint32_t round = 0; round < 9; round++) {
		uint32_t seen = 0;

		for (uint32_t i = 0; i < 3; i++)
			seen |= 1u << od_seq_state_index(s[i]);
		assert_int_equal(seen, 7);
		od_seq_state_free(s[round % 3]);
		if (round % 2) {
			od_seq_state_free(s[(round + 1) % 3]);
			s[(round + 1) % 3] = bare_seq(p);
		}
		s[round % 3] = bare_seq(p);
	}
	for (uint32_t i = 0; i < 3; i++)
		od_seq_state_free(s[i]);
	od_state_pool_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reserve),		  cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_memory_is_lent),	  cmocka_unit_test(test_memory_is_lent_at_random),
		cmocka_unit_test(test_memory_is_missing), cmocka_unit_test(test_queued_work_is_waited_for),
		cmocka_unit_test(test_promise),		  cmocka_unit_test(test_keep),
		cmocka_unit_test(test_touches_little),	  cmocka_unit_test(test_share),
		cmocka_unit_test(test_share_at_random),	  cmocka_unit_test(test_indices),
	};

	setenv("OD_GPU_BYTES", "0x8000000", 0); /* an emulated GPU has 128 MiB */
	cfg = uniform_config((struct uniform){ .n_layers = 3, .heads = 2, .kv_heads = 2, .head_dim = 6, .ctx = 200 });
	return cmocka_run_group_tests(tests, open_device, close_device);
}
