/* Sequence state: sizes, limits, positions of rows in pages; fixed state and its two copies. Owners of pages:
 * test_seq_pages.c. */
#include <string.h>

#include "common/model/seq_state.h"
#include "tests/unit/config_util.h"
#include "tests/unit/random.h"
#include "tests/unit/shared_device.h"
#include "tests/unit/state_util.h"

#define KV_DIM 12u

static struct od_config cfg; /* three layers that are alike */
static uint64_t seed = 1;

static struct od_config config_of(uint32_t n_layers, uint32_t kv_heads, uint32_t head_dim, uint32_t ctx)
{
	return uniform_config((struct uniform){
		.n_layers = n_layers, .heads = kv_heads, .kv_heads = kv_heads, .head_dim = head_dim, .ctx = ctx });
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
	assert_int_equal(od_state_pool_new(&p, device, &huge, OD_PROFILE_F32, UINT32_MAX, 1, 1u << 26, &err),
			 OD_ERR_NOMEM);
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
		reserve(s[1], 64);
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
			reserve(s[q], position + 1);
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

/* width[layer][stream], in elements; 0: no such stream. Every row has an address of its own, where the operations look
 * for it too. */
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
			assert_int_equal(i<n, row> 0);
			if (row == 0)
				continue;
			assert_int_equal(stream[i].dtype, dtype);
			assert_int_equal(stream[i].row_bytes, row);
			for (uint32_t at = 0; at < 2 * CTX; at++) {
				const uint32_t q = at % 2, position = at / 2;
				const uint64_t page =
					od_seq_state_pages(s[q])[position / OD_KV_PAGE] * stream[i].page_bytes;
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

#define MIXED_FIXED 320u /* sum of the layers below: 128, 64 and 128, for 100, 64 and 65 bytes */

/* Keys and values of two widths; none, but fixed state; latents; a stream and fixed state; keys and values; fixed
 * state. */
static struct od_config mixed_config(void)
{
	struct od_config c = { .ctx_max = 200 };

	add_layer(&c, &od_mixer_gqa, (struct od_mixer){ .n_heads = 4, .n_kv_heads = 2, .k_dim = 6, .v_dim = 10 });
	add_layer(&c, &plain, (struct od_mixer){ .q_rank = 100 });
	add_layer(&c, &od_mixer_mla,
		  (struct od_mixer){ .n_heads = 2, .k_dim = 12, .v_dim = 5, .nope_dim = 4, .kv_rank = 20 });
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
						 od_state_pool_bytes(&c, OD_PROFILE_BF16, pages, n),
					 rows * 2);
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
	uint32_t kind[3][2]; /* the committed copy's, the next one's */

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
	reserve(s, 500);
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
		cmocka_unit_test(test_layers_that_differ),
		cmocka_unit_test(test_fixed_copies),
		cmocka_unit_test(test_fixed_alone),
	};

	cfg = config_of(3, 2, 6, 200);
	return cmocka_run_group_tests(tests, open_device, close_device);
}
