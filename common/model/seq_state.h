/* seq_state.h - what a sequence remembers, as each layer's mixer declares it (mixer.h): streams, a row for each position, in
 * pages of a device's memory; and fixed state, which does not grow.
 *
 * A page is OD_KV_PAGE positions, and has the same number in every stream of every layer. Sequences take pages from a pool;
 * memory is touched when it is used, so a short text in a long context stays small. Rows are f32 in profile f32, BF16 in
 * profile bf16. Positions [0, length) are committed and never change until truncated.
 * Pages are promised to a sequence by number and taken when they are used: taken pages and those promised and not yet taken
 * are never more than the pool has. Pages are counted by reference, so sequences that begin alike share them. A shared page
 * must hold the same rows for all that share it: truncating into it and writing another text changes all of them.
 * Fixed state is kept twice: a step reads the committed copy and writes the next, so a step that is given up costs nothing.
 * Thread: the one that runs the forward pass. Owner: whoever made it; sequences are freed before their pool. */
#ifndef OD_MODEL_SEQ_STATE_H
#define OD_MODEL_SEQ_STATE_H

#include "common/model/mixer.h"

struct od_state_pool;
struct od_seq_state;

/* Memory of n_pages pages and of the fixed state of n_sequences, in bytes. */
uint64_t od_state_pool_bytes(const struct od_config *cfg, enum od_profile profile, uint64_t n_pages, uint32_t n_sequences);
/* At most n_sequences open at once, of at most ctx positions each, n_pages pages together (at most UINT32_MAX). For all of
 * them to be as long as ctx at once, n_pages is n_sequences * od_state_pages(ctx). */
OD_MUST_CHECK int od_state_pool_new(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
				    enum od_profile profile, uint32_t ctx, uint32_t n_sequences, uint64_t n_pages,
				    struct od_err *err);
void od_state_pool_free(struct od_state_pool *p); /* NULL ok */
/* Is all state where a configuration's layers would have it, in the pool's type? */
bool od_state_pool_fits(const struct od_state_pool *p, const struct od_config *cfg);
enum od_dtype od_state_pool_dtype(const struct od_state_pool *p);
uint32_t od_state_pool_ctx(const struct od_state_pool *p);
uint32_t od_state_pool_sequences(const struct od_state_pool *p); /* that can be open at once */
uint32_t od_state_pages(uint32_t positions); /* pages that so many positions of a sequence take */
uint32_t od_state_pool_free_pages(const struct od_state_pool *p); /* neither taken nor promised */
/* Where a layer's streams are; tables and table_pages are whose step it is. Returns how many there are. */
uint32_t od_state_pool_streams(const struct od_state_pool *p, uint32_t layer, struct od_stream out[OD_MAX_STREAMS]);
/* Bytes of a position in all streams of a layer; of the layer that has most. */
size_t od_state_pool_row_bytes(const struct od_state_pool *p, uint32_t layer);
size_t od_state_pool_most_bytes(const struct od_state_pool *p);
/* Does the host read and write rows where they are? */
bool od_state_pool_mapped(const struct od_state_pool *p);
/* Of a sequence's fixed state, all layers together; and zeros of that length. */
uint64_t od_state_pool_fixed_bytes(const struct od_state_pool *p);
struct od_ref od_state_pool_zeros(const struct od_state_pool *p);

/* A sequence of at most the pool's ctx positions, without pages; OD_ERR_BUSY when the pool's n_sequences are open already. */
OD_MUST_CHECK int od_seq_state_new(struct od_seq_state **out, struct od_state_pool *p, struct od_err *err);
/* NULL ok. Gives back what it was promised, and the pages that no other sequence has. */
void od_seq_state_free(struct od_seq_state *s);

/* From now on pages for positions [0, positions), at most ctx, are there when od_seq_state_reserve asks for them. A promise
 * only grows. OD_ERR_BUSY: the pool has not so many free pages, and nothing has changed. */
OD_MUST_CHECK int od_seq_state_promise(struct od_seq_state *s, uint32_t positions);
/* The first n pages of `from`, a sequence of the same pool, become the first n of s, which has none; the length of s becomes
 * n * OD_KV_PAGE. What s was promised is used up by them, and pages behind them stay promised. Not for pools with fixed state. */
void od_seq_state_share(struct od_seq_state *s, const struct od_seq_state *from, uint32_t n);

uint32_t od_seq_state_place(const struct od_seq_state *s); /* less than n_sequences, different for all open ones */
uint32_t od_seq_state_ctx(const struct od_seq_state *s);
uint32_t od_seq_state_length(const struct od_seq_state *s);
/* Commit, or truncate, which keeps the pages. With fixed state a text is truncated to nothing or not at all. */
void od_seq_state_set_length(struct od_seq_state *s, uint32_t length);
struct od_state_pool *od_seq_state_pool(const struct od_seq_state *s);

/* Pages for positions [0, n), which were promised or are shared: before rows of them are written or read. */
void od_seq_state_reserve(struct od_seq_state *s, uint32_t n);
/* The pages that it has, [od_seq_state_n_pages]; numbers in the pool. */
const uint32_t *od_seq_state_pages(const struct od_seq_state *s);
uint32_t od_seq_state_n_pages(const struct od_seq_state *s);

/* A row as it is stored, of a position that has a page; positions of one page are adjacent, od_seq_state_row_bytes apart. */
struct od_ref od_seq_state_row(const struct od_seq_state *s, uint32_t layer, uint32_t stream, uint32_t position);
size_t od_seq_state_row_bytes(const struct od_seq_state *s, uint32_t layer, uint32_t stream); /* 0: no such stream */

/* A layer's fixed state; that of layer 0 begins where all of it does. */
struct od_fixed od_seq_state_fixed(const struct od_seq_state *s, uint32_t layer);
/* The next copy is the committed one from now on. */
void od_seq_state_take_next(struct od_seq_state *s);

#endif
