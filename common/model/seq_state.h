/* seq_state.h - what a sequence remembers: per layer, keys and values of each position, in pages of a device's memory.
 *
 * A page is OD_KV_PAGE positions, and has the same number in every stream of every layer. Sequences take pages from a pool;
 * memory is touched when it is used, so a short text in a long context stays small. Keys are stored after RoPE; f32 in profile f32, BF16 in profile
 * bf16. Positions [0, length) are committed and never change until truncated.
 * Thread: the one that runs the forward pass. Owner: whoever made it; sequences are freed before their pool. */
#ifndef OD_MODEL_SEQ_STATE_H
#define OD_MODEL_SEQ_STATE_H

#include "common/compute/ops.h"
#include "common/model/config.h"

/* What a layer keeps for each position. */
enum od_stream { OD_STREAM_K, OD_STREAM_V };
#define OD_N_STREAMS 2

struct od_state_pool;
struct od_seq_state;

/* Memory of the pages for ctx positions of n sequences, in bytes. */
uint64_t od_state_pool_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t ctx, uint32_t n);
OD_MUST_CHECK int od_state_pool_new(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg,
				    enum od_profile profile, uint32_t ctx, uint32_t n, struct od_err *err);
void od_state_pool_free(struct od_state_pool *p); /* NULL ok */
enum od_dtype od_state_pool_dtype(const struct od_state_pool *p);
uint32_t od_state_pool_ctx(const struct od_state_pool *p);
uint32_t od_state_pool_sequences(const struct od_state_pool *p); /* that can be open at once */
uint32_t od_state_pages(uint32_t positions); /* pages that so many positions of a sequence take */
/* Where a layer's rows are; tables and table_pages are whose step it is. */
struct od_kv od_state_pool_kv(const struct od_state_pool *p, uint32_t layer);

/* A sequence of at most the pool's ctx positions; OD_ERR_BUSY when its n are open already. */
OD_MUST_CHECK int od_seq_state_new(struct od_seq_state **out, struct od_state_pool *p, struct od_err *err);
void od_seq_state_free(struct od_seq_state *s); /* NULL ok; gives its pages back */

uint32_t od_seq_state_ctx(const struct od_seq_state *s);
uint32_t od_seq_state_length(const struct od_seq_state *s);
void od_seq_state_set_length(struct od_seq_state *s, uint32_t length); /* commit, or truncate */
struct od_state_pool *od_seq_state_pool(const struct od_seq_state *s);

/* Pages for positions [0, n), n <= ctx: before rows of them are written or read. */
void od_seq_state_reserve(struct od_seq_state *s, uint32_t n);
/* The pages that it has, [od_seq_state_n_pages]; numbers in the pool. */
const uint32_t *od_seq_state_pages(const struct od_seq_state *s);
uint32_t od_seq_state_n_pages(const struct od_seq_state *s);

/* A row as it is stored, [kv_dim] of the pool's dtype, of a position that has a page; positions of one page are adjacent,
 * od_seq_state_row_bytes apart. */
struct od_ref od_seq_state_row(const struct od_seq_state *s, uint32_t layer, enum od_stream stream, uint32_t position);
size_t od_seq_state_row_bytes(const struct od_seq_state *s);

#endif
