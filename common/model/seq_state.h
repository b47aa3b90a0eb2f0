/* seq_state.h - what a sequence remembers, as each layer's mixer declares it (mixer.h): streams, a row for each position, in
 * pages of a device's memory; and fixed state, which does not grow.
 *
 * A page is OD_KV_PAGE positions, and has the same number in every stream of every layer. Sequences take pages from a pool;
 * memory is touched when it is used, so a short text in a long context stays small. Rows are f32 in profile f32, BF16 in
 * profile bf16. Positions [0, length) are committed and never change until truncated.
 * Fixed state is kept twice: a step reads the committed copy and writes the next, so a step that is given up costs nothing.
 * Thread: the one that runs the forward pass. Owner: whoever made it; sequences are freed before their pool. */
#ifndef OD_MODEL_SEQ_STATE_H
#define OD_MODEL_SEQ_STATE_H

#include "common/model/mixer.h"

struct od_state_pool;
struct od_seq_state;

/* Memory for ctx positions of n sequences, in bytes. */
uint64_t od_state_pool_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t ctx, uint32_t n);
OD_MUST_CHECK int od_state_pool_new(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
				    enum od_profile profile, uint32_t ctx, uint32_t n, struct od_err *err);
void od_state_pool_free(struct od_state_pool *p); /* NULL ok */
/* Is all state where a configuration's layers would have it, in the pool's type? */
bool od_state_pool_fits(const struct od_state_pool *p, const struct od_config *cfg);
enum od_dtype od_state_pool_dtype(const struct od_state_pool *p);
uint32_t od_state_pool_ctx(const struct od_state_pool *p);
uint32_t od_state_pool_sequences(const struct od_state_pool *p); /* that can be open at once */
uint32_t od_state_pages(uint32_t positions); /* pages that so many positions of a sequence take */
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

/* A sequence of at most the pool's ctx positions; OD_ERR_BUSY when its n are open already. */
OD_MUST_CHECK int od_seq_state_new(struct od_seq_state **out, struct od_state_pool *p, struct od_err *err);
void od_seq_state_free(struct od_seq_state *s); /* NULL ok; gives its pages back */

uint32_t od_seq_state_ctx(const struct od_seq_state *s);
uint32_t od_seq_state_length(const struct od_seq_state *s);
/* Commit, or truncate. With fixed state a text is truncated to nothing or not at all. */
void od_seq_state_set_length(struct od_seq_state *s, uint32_t length);
struct od_state_pool *od_seq_state_pool(const struct od_seq_state *s);

/* Pages for positions [0, n), n <= ctx: before rows of them are written or read. */
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
