/* state_util.h - for tests: sequences that may be as long as their context; rows of their state to and from host
 * memory, any number of positions. */
#ifndef OD_TESTS_STATE_UTIL_H
#define OD_TESTS_STATE_UTIL_H

#include "common/model/seq_state.h"
#include "tests/unit/device_util.h"

static inline struct od_seq_state *open_seq(struct od_state_pool *p)
{
	struct od_seq_state *s;
	struct od_err err = { 0 };

	must(od_seq_state_new(&s, p, &err), &err);
	assert_int_equal(od_seq_state_promise(s, od_state_pool_ctx(p)), OD_OK);
	return s;
}

static inline void reserve(struct od_seq_state *s, uint32_t n)
{
	struct od_err err = { 0 };

	must(od_seq_state_reserve(s, n, &err), &err);
}

static inline uint32_t rows_on_page(uint32_t begin, uint32_t n)
{
	uint32_t left = OD_KV_PAGE - begin % OD_KV_PAGE;

	return left < n ? left : n;
}

/* Reads positions [begin, begin + n) of one layer. */
static inline void get_rows(struct od_device *d, const struct od_seq_state *s, uint32_t layer, uint32_t stream,
			    uint32_t begin, uint32_t n, char *to)
{
	const size_t row_bytes = od_seq_state_row_bytes(s, layer, stream);

	for (uint32_t some_rows; n > 0; begin += some_rows, n -= some_rows, to += some_rows * row_bytes) {
		some_rows = rows_on_page(begin, n);
		get_at(d, to, od_seq_state_row(s, layer, stream, begin), some_rows * row_bytes);
	}
}

static inline void put_rows(struct od_device *d, struct od_seq_state *s, uint32_t layer, uint32_t stream,
			    uint32_t begin, uint32_t n, const char *from)
{
	const size_t row_bytes = od_seq_state_row_bytes(s, layer, stream);

	reserve(s, begin + n);
	for (uint32_t some_rows; n > 0; begin += some_rows, n -= some_rows, from += some_rows * row_bytes) {
		some_rows = rows_on_page(begin, n);
		put_at(d, od_seq_state_row(s, layer, stream, begin), from, some_rows * row_bytes);
	}
}

/* All streams of all layers of them, from one sequence to another of the same kind, whatever devices they are on. */
static inline void copy_rows(struct od_device *d, struct od_seq_state *to, struct od_device *from_d,
			     const struct od_seq_state *from, uint32_t n_layers, uint32_t begin, uint32_t n)
{
	char *rows = malloc(n * od_state_pool_most_bytes(od_seq_state_pool(from)) + 1);

	assert_non_null(rows);
	for (uint32_t l = 0; l < n_layers; l++) {
		for (uint32_t stream = 0; od_seq_state_row_bytes(from, l, stream) > 0; stream++) {
			get_rows(from_d, from, l, stream, begin, n, rows);
			put_rows(d, to, l, stream, begin, n, rows);
		}
	}
	free(rows);
}

#endif
