/* The prefix cache against a list of all that was kept: it finds the longest begin that is there, never another text's
 * page, keeps what was used last, and takes nothing of what sequences may have. */
#include <string.h>

#include "main-node/engine/prefix/prefix_cache.h"
#include "tests/unit/config_util.h"
#include "tests/unit/random.h"
#include "tests/unit/shared_device.h"
#include "tests/unit/state_util.h"

#define PAGES 5u /* pages of a text, at most */
#define CTX (PAGES * OD_KV_PAGE)
#define SEQUENCES 4u
#define IDLE 7u
#define NONE_OF_THEM UINT32_MAX
#define POOL (SEQUENCES * PAGES + IDLE)

static struct od_config cfg;
static uint64_t seed = 1;

/* ---- What pages hold ---- */

/* The cache, and what is known of each page: the text up to its end, when it was last used, and whether it is kept. */
struct prefix_cache_world {
	struct od_state_pool *pool;
	struct odm_prefix_cache *cache;
	struct {
		int32_t text[CTX];
		uint32_t n_pages;
		uint64_t used;
		bool kept;
	} page[POOL];
	uint64_t clock;
	unsigned dropped;
	bool any; /* not the oldest one goes */
};

static void on_drop(void *arg, uint32_t page)
{
	struct prefix_cache_world *w = arg;

	assert_true(page < POOL && w->page[page].kept);
	for (uint32_t i = 0; !w->any && i < POOL; i++) /* nothing older is left */
		assert_true(!w->page[i].kept || w->page[i].used >= w->page[page].used);
	w->page[page].kept = false;
	w->dropped++;
}

static void open_world(struct prefix_cache_world *w)
{
	struct od_err err = { 0 };

	*w = (struct prefix_cache_world){ 0 };
	must(od_state_pool_new(&w->pool, device, &cfg, OD_PROFILE_F32, CTX, SEQUENCES, POOL, &err), &err);
	od_state_pool_set_aside(w->pool, IDLE);
	must(odm_prefix_cache_new(&w->cache, w->pool, POOL, IDLE, on_drop, w, &err), &err);
}

static void close_world(struct prefix_cache_world *w)
{
	odm_prefix_cache_free(w->cache);
	od_state_pool_free(w->pool);
}

static bool holds(const struct prefix_cache_world *w, uint32_t page, const int32_t *text, uint32_t n_pages)
{
	return w->page[page].n_pages == n_pages &&
	       memcmp(w->page[page].text, text, n_pages * OD_KV_PAGE * sizeof(*text)) == 0;
}

static uint32_t longest(const struct prefix_cache_world *w, const int32_t *text, uint32_t n_pages)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < POOL; i++)
		if (w->page[i].kept && w->page[i].n_pages <= n_pages && w->page[i].n_pages > n &&
		    holds(w, i, text, w->page[i].n_pages))
			n = w->page[i].n_pages;
	return n;
}

/* The first page of a text last, so that it stays longest. */
static void note_use(struct prefix_cache_world *w, const uint32_t *page, uint32_t n)
{
	while (n-- > 0)
		w->page[page[n]].used = ++w->clock;
}

static uint32_t find(struct prefix_cache_world *w, const int32_t *text, uint32_t n_pages, uint32_t *page)
{
	const uint32_t n = odm_prefix_cache_find(w->cache, false, text, n_pages, page);

	assert_int_equal(n, longest(w, text, n_pages));
	for (uint32_t i = 0; i < n; i++)
		assert_true(w->page[page[i]].kept && holds(w, page[i], text, i + 1));
	note_use(w, page, n);
	return n;
}

/* The sequence has written its pages from begin on. */
static void write_pages(struct prefix_cache_world *w, const struct od_seq_state *s, const int32_t *text, uint32_t begin)
{
	for (uint32_t i = begin; i < od_seq_state_n_pages(s); i++) {
		const uint32_t page = od_seq_state_pages(s)[i];

		assert_false(w->page[page].kept);
		w->page[page].n_pages = i + 1;
		memcpy(w->page[page].text, text, (i + 1) * OD_KV_PAGE * sizeof(*text));
	}
}

static void add(struct prefix_cache_world *w, const int32_t *text, const struct od_seq_state *s)
{
	const uint32_t n = od_seq_state_n_pages(s);
	uint32_t page[PAGES];

	memcpy(page, od_seq_state_pages(s), n * sizeof(*page));
	odm_prefix_cache_add(w->cache, false, text, n, page);
	for (uint32_t i = 0; i < n; i++) {
		assert_true(holds(w, page[i], text, i + 1));
		assert_true(page[i] == od_seq_state_pages(s)[i] || w->page[page[i]].kept);
		w->page[page[i]].kept = true;
	}
	note_use(w, page, n);
}

static uint32_t idle(const struct prefix_cache_world *w, struct od_seq_state *const *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < POOL; i++) {
		bool used = false;

		for (uint32_t q = 0; q < SEQUENCES; q++)
			for (uint32_t k = 0; s[q] != NULL && k < od_seq_state_n_pages(s[q]); k++)
				used = used || od_seq_state_pages(s[q])[k] == i;
		n += w->page[i].kept && !used;
	}
	return n;
}

/* ---- Tests ---- */

/* Few different pages, so that many texts begin alike. */
static void draw_text(int32_t *text)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		const int32_t first = (int32_t)random_below(&seed, 2);

		for (uint32_t j = 0; j < OD_KV_PAGE; j++)
			text[i * OD_KV_PAGE + j] = j == OD_KV_PAGE - 1 ? first : 7;
	}
}

static void check_idle(const struct prefix_cache_world *w, struct od_seq_state *const *s, bool uses_free)
{
	const uint32_t n = od_state_pool_idle_pages(w->pool);

	assert_int_equal(idle(w, s), n);
	assert_true(n <= IDLE + (uses_free ? od_state_pool_free_pages(w->pool) : 0));
}

static void check_random(bool uses_free)
{
	static struct prefix_cache_world w;
	static int32_t text[SEQUENCES][CTX];
	struct od_seq_state *s[SEQUENCES] = { NULL };
	unsigned found = 0, most = 0;

	open_world(&w);
	if (uses_free)
		odm_prefix_cache_use_free(w.cache);
	for (int round = 0; round < 20000; round++) {
		const uint32_t q = (uint32_t)random_below(&seed, SEQUENCES);
		uint32_t page[PAGES], n;

		if (s[q] != NULL) {
			if (random_below(&seed, 8) > 0)
				add(&w, text[q], s[q]);
			od_seq_state_free(s[q]);
			s[q] = NULL;
			odm_prefix_cache_trim(w.cache);
			check_idle(&w, s, uses_free);
			if (od_state_pool_idle_pages(w.pool) > most)
				most = od_state_pool_idle_pages(w.pool);
			continue;
		}
		draw_text(text[q]);
		n = (uint32_t)(1 + random_below(&seed, PAGES));
		s[q] = NULL;
		assert_int_equal(od_seq_state_new(&s[q], w.pool, NULL), OD_OK);
		if (random_below(&seed, 8) > 0) { /* else one that computes all of it */
			const uint32_t there = find(&w, text[q], n - 1, page);

			od_seq_state_attach(s[q], page, there);
			found += there;
		}
		/* there is always room for all sequences */
		assert_int_equal(od_seq_state_promise(s[q], n * OD_KV_PAGE), OD_OK);
		odm_prefix_cache_trim(w.cache);
		check_idle(&w, s, uses_free);
		page[0] = od_seq_state_n_pages(s[q]);
		reserve(s[q], n * OD_KV_PAGE);
		write_pages(&w, s[q], text[q], page[0]);
	}
	assert_true(found > 1000 && w.dropped > 1000);
	assert_true((most > 2 * IDLE) == uses_free);
	for (uint32_t q = 0; q < SEQUENCES; q++)
		od_seq_state_free(s[q]);
	close_world(&w);
}

static void test_random(void **state)
{
	(void)state;
	check_random(false);
}

/* With the pages that no sequence needs: each still finds those that it was promised. */
static void test_free_pages(void **state)
{
	(void)state;
	check_random(true);
}

static void keep_text(struct prefix_cache_world *w, const int32_t *text, uint32_t n)
{
	struct od_seq_state *s;

	assert_int_equal(od_seq_state_new(&s, w->pool, NULL), OD_OK);
	assert_int_equal(od_seq_state_promise(s, n * OD_KV_PAGE), OD_OK);
	reserve(s, n * OD_KV_PAGE);
	write_pages(w, s, text, 0);
	add(w, text, s);
	od_seq_state_free(s);
	odm_prefix_cache_trim(w->cache);
}

/* Seven pages: the ends of texts go before their begins, and what was asked for stays. */
static void test_oldest_goes(void **state)
{
	static struct prefix_cache_world w;
	static int32_t a[CTX], b[CTX], c[CTX];
	uint32_t page[PAGES];

	(void)state;
	open_world(&w);
	for (uint32_t i = 0; i < CTX; i++) {
		a[i] = (int32_t)i;
		b[i] = -(int32_t)i;
		c[i] = 5;
	}
	keep_text(&w, a, 3);
	keep_text(&w, b, 4);
	assert_int_equal(find(&w, a, 3, page), 3);
	assert_int_equal(find(&w, b, 4, page), 4);
	assert_int_equal(find(&w, a, 2, page), 2); /* now the third page of a is the oldest, then the fourth of b */
	keep_text(&w, c, 1);
	assert_int_equal(longest(&w, a, 3), 2);
	assert_int_equal(longest(&w, b, 4), 4);
	keep_text(&w, c, 2);
	assert_int_equal(longest(&w, b, 4), 3);
	keep_text(&w, b, 5); /* pages that are in the cache already are not added again */
	assert_int_equal(find(&w, b, 5, page), 5);
	assert_int_equal(longest(&w, a, 3), 0);
	assert_int_equal(longest(&w, c, 3), 2);
	close_world(&w);
}

/* A text whose rows are bad: its own pages go, and what other texts have behind them; the pages that it began with
 * stay. */
static void test_forgotten(void **state)
{
	static struct prefix_cache_world w;
	static int32_t a[CTX], b[CTX], c[CTX];
	struct od_seq_state *s;
	uint32_t page[PAGES];

	(void)state;
	for (uint32_t i = 0; i < CTX; i++) {
		a[i] = (int32_t)i;
		b[i] = i < 2 * OD_KV_PAGE ? a[i] : -(int32_t)i;
		c[i] = i < OD_KV_PAGE ? a[i] : 5;
	}
	open_world(&w);
	keep_text(&w, c, 2); /* its first page is that of a and b */
	assert_int_equal(od_seq_state_new(&s, w.pool, NULL), OD_OK);
	assert_int_equal(find(&w, a, 1, page), 1);
	od_seq_state_attach(s, page, 1);
	assert_int_equal(od_seq_state_promise(s, 3 * OD_KV_PAGE), OD_OK);
	reserve(s, 3 * OD_KV_PAGE);
	write_pages(&w, s, a, 1);
	add(&w, a, s);
	keep_text(&w, b, 3);
	assert_int_equal(longest(&w, b, 3), 3);
	w.any = true;
	odm_prefix_cache_forget(w.cache, false, b, 1, 3, (uint32_t[]){ NONE_OF_THEM, NONE_OF_THEM, NONE_OF_THEM });
	assert_int_equal(w.dropped, 0);
	odm_prefix_cache_forget(w.cache, false, a, 1, 3, od_seq_state_pages(s));
	assert_int_equal(w.dropped, 3);
	w.any = false;
	assert_int_equal(find(&w, a, 3, page), 1);
	assert_int_equal(find(&w, b, 3, page), 1);
	assert_int_equal(find(&w, c, 2, page), 2);
	od_seq_state_free(s);
	odm_prefix_cache_trim(w.cache);
	assert_int_equal(od_state_pool_idle_pages(w.pool), 2);
	keep_text(&w, a, 3);
	assert_int_equal(find(&w, a, 3, page), 3);
	close_world(&w);
}

/* With long RoPE the rows of a long text are others, of the same tokens. */
static void test_long_texts(void **state)
{
	static struct prefix_cache_world w;
	static int32_t a[CTX];
	uint32_t is_short[PAGES], is_long[PAGES], found[PAGES];
	struct od_seq_state *s;

	(void)state;
	open_world(&w);
	keep_text(&w, a, 3);
	assert_int_equal(find(&w, a, 3, is_short), 3);
	assert_int_equal(odm_prefix_cache_find(w.cache, true, a, 3, found), 0);
	assert_int_equal(od_seq_state_new(&s, w.pool, NULL), OD_OK);
	od_seq_state_set_long(s, true);
	assert_int_equal(od_seq_state_promise(s, 2 * OD_KV_PAGE), OD_OK);
	reserve(s, 2 * OD_KV_PAGE);
	memcpy(is_long, od_seq_state_pages(s), sizeof(*is_long) * 2);
	odm_prefix_cache_add(w.cache, true, a, 2, is_long);
	assert_memory_equal(is_long, od_seq_state_pages(s), sizeof(*is_long) * 2);
	od_seq_state_free(s);
	assert_int_equal(odm_prefix_cache_find(w.cache, true, a, 3, found), 2);
	assert_memory_equal(found, is_long, sizeof(*found) * 2);
	assert_int_equal(odm_prefix_cache_find(w.cache, false, a, 3, found), 3);
	assert_memory_equal(found, is_short, sizeof(*found) * 3);
	close_world(&w);
}

/* A page that differs in its last token, or follows another page, is another one. */
static void test_tokens_are_compared(void **state)
{
	static struct prefix_cache_world w;
	static int32_t a[CTX];
	uint32_t page[PAGES];

	(void)state;
	open_world(&w);
	keep_text(&w, a, 2); /* two pages of the same tokens */
	assert_int_equal(find(&w, a, 2, page), 2);
	assert_true(page[0] != page[1]);
	assert_int_equal(find(&w, a, 5, page), 2);
	assert_int_equal(find(&w, a, 0, page), 0);
	a[OD_KV_PAGE - 1]++;
	assert_int_equal(find(&w, a, 2, page), 0);
	a[OD_KV_PAGE - 1]--;
	a[2 * OD_KV_PAGE - 1]++;
	assert_int_equal(find(&w, a, 2, page), 1);
	for (int32_t i = 1; i < 1000; i++) { /* more than there are buckets */
		a[0] = i;
		assert_int_equal(find(&w, a, 2, page), 0);
	}
	close_world(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),	    cmocka_unit_test(test_free_pages),
		cmocka_unit_test(test_oldest_goes), cmocka_unit_test(test_forgotten),
		cmocka_unit_test(test_long_texts),  cmocka_unit_test(test_tokens_are_compared),
	};

	cfg = uniform_config((struct uniform){ .n_layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 2, .ctx = CTX });
	return cmocka_run_group_tests(tests, open_device, close_device);
}
