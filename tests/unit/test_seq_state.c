/* What sequences remember: sizes, limits, where rows lie in pages; who has which page, and who is promised one; fixed state and
 * its two copies. */
#include <string.h>

#include "common/model/seq_state.h"
#include "tests/unit/config_util.h"
#include "tests/unit/random.h"
#include "tests/unit/state_util.h"

#define KV_DIM 12u
#define MAX_PAGES 64u

static struct od_config cfg; /* three layers that are alike */
static struct od_device *device;
static uint64_t seed = 1;

static struct od_config config_of(uint32_t n_layers, uint32_t kv_heads, uint32_t head_dim, uint32_t ctx)
{
	return uniform_config((struct uniform){
		.n_layers = n_layers, .heads = kv_heads, .kv_heads = kv_heads, .head_dim = head_dim, .ctx = ctx });
}

static int open_device(void **state)
{
	(void)state;
	cfg = config_of(3, 2, 6, 200);
	device = device_new(OD_CPU_SCALAR, 1);
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

static struct od_state_pool *pool_of(const struct od_config *c, enum od_profile profile, uint32_t ctx, uint32_t n)
{
	struct od_state_pool *p;
	struct od_err err = { 0 };

	must(od_state_pool_new(&p, device, c, profile, ctx, n, (uint64_t)n * od_state_pages(ctx), &err), &err);
	return p;
}

static struct od_state_pool *pool_new(enum od_profile profile, uint32_t ctx, uint32_t n)
{
	return pool_of(&cfg, profile, ctx, n);
}

/* Without a promise. */
static struct od_seq_state *bare_seq(struct od_state_pool *p)
{
	struct od_seq_state *s;
	struct od_err err = { 0 };

	must(od_seq_state_new(&s, p, &err), &err);
	return s;
}

static void test_bytes(void **state)
{
	const uint64_t page = 3 * 2 * OD_KV_PAGE * KV_DIM; /* elements */
	struct od_config huge = config_of(1024, 1u << 14, 256, UINT32_MAX);
	struct od_state_pool *p;
	struct od_err err;

	(void)state;
	/* K and V of whole pages, plus a little for ourselves. */
	for (uint32_t n = 1; n < 5; n++) {
		for (uint32_t ctx = 1; ctx <= 200; ctx++) {
			uint64_t pages = n * ((ctx + OD_KV_PAGE - 1) / OD_KV_PAGE);
			uint64_t f32 = od_state_pool_bytes(&cfg, OD_PROFILE_F32, pages, n);
			uint64_t bf16 = od_state_pool_bytes(&cfg, OD_PROFILE_BF16, pages, n);

			assert_in_range(f32, pages * page * 4, pages * page * 4 + 256);
			assert_int_equal(f32 - bf16, pages * page * 2);
			assert_int_equal(od_state_pages(ctx) * n, pages);
		}
	}
	assert_int_equal(od_state_pages(0), 0);
	assert_int_equal(od_state_pages(UINT32_MAX), 1u << 26);
	/* 2^10 * 2 * 2^32 * 2^22 * 4 is beyond 64 bits. */
	assert_true(od_state_pool_bytes(&huge, OD_PROFILE_F32, 1u << 26, 1) == UINT64_MAX);
	assert_int_equal(od_state_pool_new(&p, device, &huge, OD_PROFILE_F32, UINT32_MAX, 1, 1u << 26, &err), OD_ERR_NOMEM);
	assert_null(p);
	/* More pages than 32 bits can number. */
	huge = config_of(1, 1, 2, UINT32_MAX);
	assert_int_equal(od_state_pool_new(&p, device, &huge, OD_PROFILE_BF16, UINT32_MAX, 1u << 10, 1ull << 36, &err),
			 OD_ERR_NOMEM);
	assert_null(p);
	assert_non_null(strstr(err.msg, "68719476736 pages of 64 positions"));
}

static void test_context_limits(void **state)
{
	struct od_state_pool *p;
	struct od_seq_state *s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_state_pool_new(&p, device, &cfg, OD_PROFILE_F32, 0, 1, 4, &err), OD_ERR_RANGE);
	assert_null(p);
	assert_int_equal(od_state_pool_new(&p, device, &cfg, OD_PROFILE_F32, 201, 1, 4, &err), OD_ERR_RANGE);
	assert_null(p);
	assert_non_null(strstr(err.msg, "1 to 200"));
	assert_non_null(strstr(err.msg, "found 201"));
	p = pool_new(OD_PROFILE_F32, 200, 3);
	assert_int_equal(od_state_pool_ctx(p), 200);
	assert_int_equal(od_state_pool_sequences(p), 3);
	s = open_seq(p);
	assert_int_equal(od_seq_state_ctx(s), 200);
	assert_ptr_equal(od_seq_state_pool(s), p);
	od_seq_state_free(s);
	od_seq_state_free(NULL);
	od_state_pool_free(p);
	od_state_pool_free(NULL);
}

/* With long RoPE a sequence has only the original context, or the whole one. */
static void test_long_texts(void **state)
{
	struct od_config c = cfg;
	struct od_state_pool *p;
	struct od_seq_state *s[3];
	struct od_err err;

	(void)state;
	c.rope[0].short_ctx = 130;
	assert_int_equal(od_config_short_ctx(&cfg), UINT32_MAX);
	assert_int_equal(od_config_short_ctx(&c), 130);
	for (uint32_t ctx = 129; ctx <= 131; ctx++) {
		assert_int_equal(od_state_pool_new(&p, device, &c, OD_PROFILE_F32, ctx, 3, 9, &err), OD_OK);
		for (int i = 0; i < 3; i++) {
			s[i] = open_seq(p);
			od_seq_state_set_long(s[i], i > 0);
			assert_int_equal(od_seq_state_is_long(s[i]), i > 0);
			assert_int_equal(od_seq_state_ctx(s[i]), i > 0 || ctx < 130 ? ctx : 130);
			assert_int_equal(od_seq_state_promise(s[i], ctx), OD_OK); /* also for what it may become */
		}
		od_seq_state_reserve(s[1], 64);
		od_seq_state_share(s[2], s[1], 1);
		assert_true(od_seq_state_is_long(s[2]));
		for (int i = 0; i < 3; i++)
			od_seq_state_free(s[i]);
		od_state_pool_free(p);
	}
}

static void test_sequence_limit(void **state)
{
	struct od_state_pool *p = pool_new(OD_PROFILE_BF16, 70, 2);
	struct od_seq_state *s[2] = { open_seq(p), open_seq(p) }, *third;
	struct od_err err;

	(void)state;
	assert_int_equal(od_seq_state_new(&third, p, &err), OD_ERR_BUSY);
	assert_null(third);
	assert_non_null(strstr(err.msg, "all 2"));
	od_seq_state_free(s[0]);
	s[0] = open_seq(p);
	assert_int_equal(od_seq_state_new(&third, p, NULL), OD_ERR_BUSY);
	od_seq_state_free(s[0]);
	od_seq_state_free(s[1]);
	od_state_pool_free(p);
}

/* A row of its own kind for each (sequence, layer, stream, position). */
static void fill_row(uint8_t *row, size_t bytes, uint32_t seq, uint32_t layer, uint32_t stream, uint32_t position)
{
	seed = 1 + ((seq * 64 + layer * OD_MAX_STREAMS + stream) * 4096 + position);
	for (size_t i = 0; i < bytes; i++)
		row[i] = (uint8_t)random_below(&seed, 256);
}

#define CTX 150u /* three pages, the last one in part */
#define MOST_ROW 256u

/* Every row of every stream of every layer of two sequences, one after the other. */
static void each_row(const struct od_config *c, struct od_seq_state *const *s, bool write)
{
	uint8_t wrote[MOST_ROW], read[MOST_ROW];

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		for (uint32_t i = 0; i < 2 * CTX * OD_MAX_STREAMS; i++) {
			const uint32_t q = i % 2, position = i / 2 % CTX, stream = i / 2 / CTX;
			const size_t row = od_seq_state_row_bytes(s[q], layer, stream);

			if (row == 0)
				continue;
			assert_in_range(row, 1, MOST_ROW);
			od_seq_state_reserve(s[q], position + 1);
			fill_row(wrote, row, q, layer, stream, position);
			if (write) {
				put_at(device, od_seq_state_row(s[q], layer, stream, position), wrote, row);
			} else {
				get_at(device, read, od_seq_state_row(s[q], layer, stream, position), row);
				assert_memory_equal(read, wrote, row);
			}
		}
	}
}

/* width[layer][stream], in elements; 0: no such stream. Every row has a place of its own, where the operations look for it
 * too. */
static void check_layout(const struct od_config *c, const uint32_t width[][OD_MAX_STREAMS], enum od_profile profile,
			 enum od_dtype dtype)
{
	struct od_state_pool *p = pool_of(c, profile, CTX, 2);
	struct od_seq_state *s[2] = { open_seq(p), open_seq(p) };
	size_t most = 0;

	assert_int_equal(od_state_pool_dtype(p), dtype);
	assert_int_equal(od_seq_state_length(s[0]) + od_seq_state_length(s[1]), 0);
	each_row(c, s, true);
	each_row(c, s, false);
	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		struct od_stream stream[OD_MAX_STREAMS];
		const uint32_t n = od_state_pool_streams(p, layer, stream);
		size_t sum = 0;

		for (uint32_t i = 0; i < OD_MAX_STREAMS; i++) {
			const size_t row = width[layer][i] * od_dtype_bytes(dtype);

			sum += row;
			assert_int_equal(od_seq_state_row_bytes(s[0], layer, i), row);
			assert_int_equal(i < n, row > 0);
			if (row == 0)
				continue;
			assert_int_equal(stream[i].dtype, dtype);
			assert_int_equal(stream[i].row_bytes, row);
			for (uint32_t at = 0; at < 2 * CTX; at++) {
				const uint32_t q = at % 2, position = at / 2;
				const uint64_t page = od_seq_state_pages(s[q])[position / OD_KV_PAGE] * stream[i].page_bytes;
				const struct od_ref found = od_seq_state_row(s[q], layer, i, position);

				assert_ptr_equal(found.buf, stream[i].pages.buf);
				assert_int_equal(found.at, stream[i].pages.at + page + position % OD_KV_PAGE * row);
			}
		}
		assert_int_equal(od_state_pool_row_bytes(p, layer), sum);
		most = sum > most ? sum : most;
	}
	assert_int_equal(od_state_pool_most_bytes(p), most);
	od_seq_state_free(s[0]);
	od_seq_state_free(s[1]);
	od_state_pool_free(p);
}

static void test_layout(void **state)
{
	static const uint32_t width[3][OD_MAX_STREAMS] = { { KV_DIM, KV_DIM }, { KV_DIM, KV_DIM }, { KV_DIM, KV_DIM } };

	(void)state;
	check_layout(&cfg, width, OD_PROFILE_F32, OD_F32);
	check_layout(&cfg, width, OD_PROFILE_BF16, OD_BF16);
}

/* Pages come when they are reserved, stay where they are, and stay when a sequence is truncated. */
static void test_reserve(void **state)
{
	struct od_state_pool *p = pool_new(OD_PROFILE_F32, CTX, 1);
	struct od_seq_state *s = open_seq(p);
	uint32_t page[3];

	(void)state;
	od_seq_state_reserve(s, 0);
	assert_int_equal(od_seq_state_n_pages(s), 0);
	for (uint32_t n = 1; n <= CTX; n++) {
		od_seq_state_reserve(s, n);
		assert_int_equal(od_seq_state_n_pages(s), od_state_pages(n));
		assert_true(n <= OD_KV_PAGE || memcmp(page, od_seq_state_pages(s), od_state_pages(n - 1) * sizeof(*page)) == 0);
		memcpy(page, od_seq_state_pages(s), od_state_pages(n) * sizeof(*page));
	}
	od_seq_state_reserve(s, 1);
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
	struct od_state_pool *p = pool_new(OD_PROFILE_BF16, CTX, n);
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
			od_seq_state_reserve(s[i], 1 + random_below(&seed, CTX));
			moved += od_seq_state_pages(s[i])[0] != first[i];
			first[i] = od_seq_state_pages(s[i])[0];
		}
		check_owners(s, n, n_pages);
	}
	assert_true(moved > 100);
	for (uint32_t i = 0; i < n; i++) {
		if (s[i] == NULL)
			s[i] = open_seq(p);
		od_seq_state_reserve(s[i], CTX);
		assert_int_equal(od_seq_state_n_pages(s[i]), od_state_pages(CTX));
	}
	check_owners(s, n, n_pages);
	for (uint32_t i = 0; i < n; i++)
		od_seq_state_free(s[i]);
	od_state_pool_free(p);
}

/* ---- promises and sharing ---- */

/* A pool of fewer pages than its sequences would need to be as long as ctx. */
static struct od_state_pool *small_pool(uint32_t ctx, uint32_t n, uint32_t n_pages)
{
	struct od_state_pool *p;
	struct od_err err = { 0 };

	must(od_state_pool_new(&p, device, &cfg, OD_PROFILE_BF16, ctx, n, n_pages, &err), &err);
	assert_int_equal(od_state_pool_free_pages(p), n_pages);
	return p;
}

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
	od_seq_state_reserve(c, 0);
	od_seq_state_reserve(a, 1);
	od_seq_state_reserve(b, 192);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_set_length(b, 192);
	od_seq_state_set_length(b, 0);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_free(a); /* a page that it has, and one that it was promised */
	assert_int_equal(od_state_pool_free_pages(p), 2);
	assert_int_equal(od_seq_state_promise(c, 64), OD_OK);
	assert_int_equal(od_seq_state_promise(b, 200), OD_OK);
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_reserve(b, 200);
	od_seq_state_reserve(c, 64);
	od_seq_state_free(b);
	od_seq_state_free(c);
	assert_int_equal(od_state_pool_free_pages(p), 5);
	od_state_pool_free(p);
}

/* What is kept takes nothing of what sequences are promised; an idle page is attached, or dropped and used again. */
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
	od_seq_state_reserve(a, 192);
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
	od_seq_state_reserve(a, 192);
	assert_memory_equal(od_seq_state_pages(a), page, 2 * sizeof(*page));
	od_state_pool_drop(p, page[1]); /* a sequence has it still */
	assert_int_equal(od_state_pool_free_pages(p), 0);
	od_seq_state_free(a);
	assert_int_equal(od_state_pool_idle_pages(p), 1);
	assert_int_equal(od_state_pool_free_pages(p), 3);
	a = bare_seq(p);
	b = bare_seq(p);
	assert_int_equal(od_seq_state_promise(b, 192), OD_OK);
	od_seq_state_reserve(b, 192);
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

		od_seq_state_reserve(s, round == 0 ? 200 : 1 + 19 * round);
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
	od_seq_state_reserve(a, 150);
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
	od_seq_state_reserve(c, 128);
	assert_int_equal(od_seq_state_pages(c)[0], page[0]);
	assert_true(od_seq_state_pages(c)[1] != page[1]);
	assert_int_equal(od_state_pool_free_pages(p), 1);
	od_seq_state_free(a); /* its third page, and one that it was promised; the others have users */
	assert_int_equal(od_state_pool_free_pages(p), 3);
	a = bare_seq(p);
	assert_int_equal(od_seq_state_promise(a, 192), OD_OK);
	od_seq_state_reserve(a, 192);
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
	int32_t text[200];	       /* what it wrote, or shares */
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
	od_seq_state_reserve(w->s, w->length + n);
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

static void test_places(void **state)
{
	struct od_state_pool *p = small_pool(200, 3, 1);
	struct od_seq_state *s[3] = { bare_seq(p), bare_seq(p), bare_seq(p) };

	(void)state;
	for (uint32_t round = 0; round < 9; round++) {
		uint32_t seen = 0;

		for (uint32_t i = 0; i < 3; i++)
			seen |= 1u << od_seq_state_place(s[i]);
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

/* ---- layers that differ, and fixed state ---- */

/* Widths and bytes straight from the layer's numbers; k_dim of each position, q_rank once. */
static void plain_state(const struct od_mixer *m, struct od_state_spec *out)
{
	*out = (struct od_state_spec){ .n_streams = m->k_dim > 0, .width = { m->k_dim }, .fixed_bytes = m->q_rank };
}

static const struct od_mixer_ops plain = { .name = "plain", .state = plain_state };

static void add_layer(struct od_config *c, const struct od_mixer_ops *mixer, struct od_mixer mix)
{
	const struct od_layer_spec l = { .mixer = mixer, .mix = mix, .ffn = OD_FFN_DENSE, .intermediate = 1 };
	struct od_err err = { 0 };

	must(od_config_add_layer(c, &l, &err), &err);
}

#define MIXED_FIXED 320u /* of the layers below: 128, 64 and 128, of 100, 64 and 65 bytes */

/* Keys and values of two widths; none, but fixed state; latents; a stream and fixed state; keys and values; fixed state. */
static struct od_config mixed_config(void)
{
	struct od_config c = { .ctx_max = 200 };

	add_layer(&c, &od_mixer_gqa, (struct od_mixer){ .n_heads = 4, .n_kv_heads = 2, .k_dim = 6, .v_dim = 10 });
	add_layer(&c, &plain, (struct od_mixer){ .q_rank = 100 });
	add_layer(&c, &od_mixer_mla, (struct od_mixer){ .n_heads = 2, .k_dim = 12, .v_dim = 5, .nope_dim = 4, .kv_rank = 20 });
	add_layer(&c, &plain, (struct od_mixer){ .k_dim = 3, .q_rank = 64 });
	add_layer(&c, &od_mixer_gqa, (struct od_mixer){ .n_heads = 1, .n_kv_heads = 1, .k_dim = 4, .v_dim = 4 });
	add_layer(&c, &plain, (struct od_mixer){ .q_rank = 65 });
	return c;
}

static void test_layers_that_differ(void **state)
{
	static const uint32_t width[][OD_MAX_STREAMS] = { { 12, 20 }, { 0 }, { 28 }, { 3 }, { 4, 4 }, { 0 } };
	const struct od_config c = mixed_config();

	(void)state;
	check_layout(&c, width, OD_PROFILE_F32, OD_F32);
	check_layout(&c, width, OD_PROFILE_BF16, OD_BF16);
	for (uint32_t n = 1; n < 4; n++) {
		for (uint32_t ctx = 1; ctx <= 200; ctx++) {
			const uint64_t pages = (uint64_t)n * od_state_pages(ctx);
			const uint64_t rows = pages * OD_KV_PAGE * (12 + 20 + 28 + 3 + 4 + 4);
			const uint64_t fixed = (2 * (uint64_t)n + 1) * MIXED_FIXED;

			assert_in_range(od_state_pool_bytes(&c, OD_PROFILE_F32, pages, n), rows * 4 + fixed,
					rows * 4 + fixed + 256);
			assert_int_equal(od_state_pool_bytes(&c, OD_PROFILE_F32, pages, n) -
						 od_state_pool_bytes(&c, OD_PROFILE_BF16, pages, n), rows * 2);
		}
	}
}

/* Fixed bytes of a layer of the mixed configuration. */
static const size_t fixed_of[] = { 0, 100, 0, 64, 0, 65 };
#define N_FIXED_LAYERS (sizeof(fixed_of) / sizeof(fixed_of[0]))

/* The content of one copy of one sequence: different for each. */
static void each_fixed(const struct od_seq_state *s, bool next, uint32_t kind, bool write)
{
	uint8_t wrote[100], read[100];

	for (uint32_t layer = 0; layer < N_FIXED_LAYERS; layer++) {
		const struct od_fixed f = od_seq_state_fixed(s, layer);
		const struct od_ref at = next ? f.next : f.committed;

		fill_row(wrote, fixed_of[layer], kind, layer, 0, 0);
		if (fixed_of[layer] > 0 && write)
			put_at(device, at, wrote, fixed_of[layer]);
		if (fixed_of[layer] == 0 || write)
			continue;
		get_at(device, read, at, fixed_of[layer]);
		assert_memory_equal(read, wrote, fixed_of[layer]);
	}
}

/* Clears the committed copy. */
static void check_cleared(struct od_seq_state *s)
{
	static const uint8_t none[MIXED_FIXED];
	uint8_t read[MIXED_FIXED];

	od_seq_state_clear_fixed(s);
	get_at(device, read, od_seq_state_fixed(s, 0).committed, sizeof(read));
	assert_memory_equal(read, none, sizeof(read));
}

/* Each sequence has two copies, which nothing else touches, and which change places when the next one is taken. */
static void test_fixed_copies(void **state)
{
	const struct od_config c = mixed_config();
	struct od_state_pool *p = pool_of(&c, OD_PROFILE_BF16, CTX, 3);
	struct od_seq_state *s[3];
	uint32_t kind[3][2]; /* of the committed copy, of the next */

	(void)state;
	assert_int_equal(od_state_pool_fixed_bytes(p), MIXED_FIXED);
	for (uint32_t q = 0; q < 3; q++) {
		struct od_fixed f;

		s[q] = open_seq(p);
		f = od_seq_state_fixed(s[q], 1);
		/* All of it lies together, that of layer 0 first, so that it can be cleared at once. */
		assert_int_equal(od_seq_state_fixed(s[q], 0).committed.at, f.committed.at);
		assert_int_equal(od_seq_state_fixed(s[q], 3).committed.at, f.committed.at + 128);
		assert_int_equal(od_seq_state_fixed(s[q], 5).next.at, f.next.at + 192);
		for (uint32_t i = 0; i < 2; i++) {
			kind[q][i] = 10 + 2 * q + i;
			each_fixed(s[q], i, kind[q][i], true);
		}
	}
	for (int round = 0; round < 40; round++) {
		const uint32_t q = (uint32_t)round % 3, length = od_seq_state_length(s[q]);

		for (uint32_t i = 0; i < 6; i++)
			each_fixed(s[i / 2], i % 2, kind[i / 2][i % 2], false);
		if (round % 4 == 3) {
			od_seq_state_free(s[q]);
			s[q] = open_seq(p);
			check_cleared(s[q]);
			each_fixed(s[q], false, kind[q][0] = 100 + (uint32_t)round, true);
			each_fixed(s[q], true, kind[q][1] = 200 + (uint32_t)round, true);
		} else if (round % 4 == 2) {
			od_seq_state_set_length(s[q], length > 5 ? 0 : length + 1); /* moves no state */
		} else {
			const uint32_t committed = kind[q][0];

			od_seq_state_take_next(s[q]);
			kind[q][0] = kind[q][1];
			kind[q][1] = committed;
		}
	}
	for (uint32_t q = 0; q < 3; q++)
		od_seq_state_free(s[q]);
	od_state_pool_free(p);
	p = pool_new(OD_PROFILE_F32, CTX, 1);
	assert_int_equal(od_state_pool_fixed_bytes(p), 0);
	od_state_pool_free(p);
}

/* One more row, and what stands in the fixed state behind it. */
static void commit_row(struct od_seq_state *s)
{
	const float x = (float)(od_seq_state_length(s) + 1);

	put_at(device, od_seq_state_fixed(s, 0).next, &x, sizeof(x));
	od_seq_state_set_length(s, od_seq_state_length(s) + 1);
	od_seq_state_take_next(s);
}

static void check_rewind(struct od_seq_state *s, uint32_t to, uint32_t expected)
{
	float y;

	assert_int_equal(od_seq_state_rewind(s, to), expected);
	assert_int_equal(od_seq_state_length(s), expected);
	get_at(device, &y, od_seq_state_fixed(s, 0).committed, sizeof(y));
	assert_true(expected == 0 || y == (float)expected);
}

/* Where a text can return to, with four copies: the oldest that was kept and the two newest lengths. */
static void test_rewind(void **state)
{
	struct od_config c = { .hidden = 8, .ctx_max = 500 };
	struct od_state_pool *p;
	struct od_seq_state *s, *other;
	struct od_err err;
	float zero = 7;

	(void)state;
	add_layer(&c, &plain, (struct od_mixer){ .q_rank = sizeof(float) });
	p = pool_of(&c, OD_PROFILE_F32, 500, 2);
	must(od_state_pool_set_copies(p, device, 4, &err), &err);
	other = open_seq(p);
	s = open_seq(p);
	for (uint32_t i = 0; i < 6; i++) {
		commit_row(s);
		commit_row(other);
	}
	check_rewind(s, 6, 6);
	check_rewind(s, 5, 5);
	check_rewind(s, 4, 0); /* the beginning was never given up */
	for (uint32_t i = 0; i < 4; i++)
		commit_row(s);
	od_seq_state_settle(s, 3); /* the text stays that long; 3 and 4 are there */
	commit_row(s);
	commit_row(s); /* 3, 5 and 6 */
	check_rewind(s, 5, 5);
	check_rewind(s, 4, 3);
	commit_row(s);
	check_rewind(s, 4, 4);
	od_seq_state_set_length(s, 0);
	commit_row(s);
	check_rewind(s, 1, 1);
	od_seq_state_settle(other, 5);
	check_rewind(other, 4, 0);
	od_seq_state_clear_fixed(s);
	get_at(device, &zero, od_seq_state_fixed(s, 0).committed, sizeof(zero));
	assert_true(zero == 0);
	od_seq_state_free(s);
	od_seq_state_free(other);
	od_state_pool_free(p);
}

/* A pool may have no streams at all; more fixed state than there is memory is refused. */
static void test_fixed_alone(void **state)
{
	struct od_config c = { .ctx_max = UINT32_MAX };
	struct od_state_pool *p;
	struct od_seq_state *s;
	struct od_err err;
	float x = 3, y = 0;

	(void)state;
	add_layer(&c, &plain, (struct od_mixer){ .q_rank = sizeof(float) });
	p = pool_of(&c, OD_PROFILE_F32, 500, 1);
	assert_int_equal(od_state_pool_most_bytes(p), 0);
	s = open_seq(p);
	od_seq_state_reserve(s, 500);
	put_at(device, od_seq_state_fixed(s, 0).next, &x, sizeof(x));
	od_seq_state_take_next(s);
	get_at(device, &y, od_seq_state_fixed(s, 0).committed, sizeof(y));
	assert_true(y == 3);
	od_seq_state_free(s);
	od_state_pool_free(p);
	for (uint32_t i = 0; i < 1000; i++)
		add_layer(&c, &plain, (struct od_mixer){ .q_rank = UINT32_MAX - 63 });
	/* 2^32 a layer, 1000 layers, 2^24 sequences, two copies. */
	assert_int_equal(od_state_pool_new(&p, device, &c, OD_PROFILE_F32, 64, 1u << 24, 1u << 24, &err), OD_ERR_NOMEM);
	assert_null(p);
	assert_true(od_state_pool_bytes(&c, OD_PROFILE_F32, UINT32_MAX, UINT32_MAX) == UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rewind),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_context_limits),
		cmocka_unit_test(test_long_texts),
		cmocka_unit_test(test_sequence_limit),
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_promise),
		cmocka_unit_test(test_keep),
		cmocka_unit_test(test_touches_little),
		cmocka_unit_test(test_share),
		cmocka_unit_test(test_share_at_random),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_layers_that_differ),
		cmocka_unit_test(test_fixed_copies),
		cmocka_unit_test(test_fixed_alone),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
