/* kernels.h - the kernels' arguments and launchers, for cuda_device.c. What each computes, ops.h says, to the bit.
 *
 * A launcher queues its kernel and returns what gpu_error explains. Pointers are the GPU's unless stated otherwise;
 * rows are f32 and contiguous. Thread: the stream's. */
#ifndef OD_COMPUTE_KERNELS_H
#define OD_COMPUTE_KERNELS_H

#include <stdbool.h>

#include "common/compute/cuda/gpu_runtime.h"
#include "common/compute/dtype.h"
#include "common/compute/router.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments have no padding, which might be anything, because gpu_graphs compares them byte by byte: zero stands in its
 * place. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

#define GPU_LAUNCHER(name, type) \
	int name(struct gpu_stream *stream, struct gpu_grid grid, size_t shared, const type *args)

/* A kernel's error, in host memory that the host looks at after a wait. */
struct gpu_fault {
	uint32_t kind; /* 0: nothing; written last, and cleared by the host */
	uint32_t expert, n_experts;
};
enum { GPU_FAULT_RANGE = 1, GPU_FAULT_TWICE };

/* ---- Products (k_products.cu, k_planes.cu) ---- */

#define GPU_PLANES_THREADS 256u
#define GPU_PLANES_BLOCK 16384u /* as OD_PLANES_BLOCK */
#define GPU_PLANES_TASK (2 * GPU_PLANES_BLOCK) /* in shared memory: behind a block of BF16 */
#define GPU_PLANES_SHARED (GPU_PLANES_TASK + 144) /* bytes of shared memory */
#define GPU_PLANES_PRODUCT_SHARED (GPU_PLANES_SHARED + 2 * 16 * GPU_PLANES_THREADS) /* products have x behind */

/* How a matrix's codes become weights. */
enum gpu_coding {
	GPU_BF16,
	GPU_F16,
	GPU_F32,
	GPU_E4M3,
	GPU_E5M2,
	GPU_INT8, /* a shadow's: a scale for each row */
	GPU_NF4, /* a shadow's: a scale for each 64 weights of a row */
	GPU_BLOCKS, /* GGUF's formats, which gpu_mat's format tells apart */
	GPU_SCALED_I8, /* as published, with scales */
	GPU_SCALED_U8,
	GPU_SCALED_U4,
	GPU_SCALED_E2M1,
	GPU_SCALED_E4M3,
	GPU_SCALED_E5M2,
	GPU_N_CODINGS,
	GPU_PLANES = GPU_N_CODINGS /* BF16 as planes: kernels of their own */
};

/* How a matrix with planes is cut (gpu_planes_chunks). A block of weights has some rows, or one in pieces. */
struct gpu_chunks {
	uint32_t rows; /* rows of a chunk */
	uint32_t block_rows; /* rows of a block of weights; 1: or less */
	uint32_t blocks; /* blocks of a chunk of whole rows */
};

struct gpu_mat {
	const unsigned char *data;
	const void *scales; /* published: [n_out][groups] of scale_dtype */
	const float *divisor; /* published; NULL: 1 */
	const float *scale; /* a shadow's */
	const uint8_t *coded; /* planes: chunk i is at coded + chunk_at[i] */
	const uint64_t *chunk_at;
	uint64_t row_bytes;
	uint32_t n_out, n_in, group;
	struct gpu_chunks chunks;
	uint8_t coding, scale_dtype; /* enum gpu_coding, enum od_dtype */
	uint8_t format; /* enum od_dtype: of GPU_BLOCKS */
	uint8_t zero[5];
};

/* y[r * y_stride + o] = row o of w times x[r * x_stride ...], for n_rows rows. x of NF4: rounded rows. */
struct gpu_product {
	struct gpu_mat w;
	const float *x;
	float *y;
	uint64_t x_stride, y_stride;
	uint32_t n_rows;
	uint32_t first_block; /* blocks of the products before */
};

/* Rows that meet NF4, rounded to INT8 (quant.h), in pieces of 256 columns, of which the last has zeros behind the row:
 * in words of four elements of a lane and a group of 64, as their codes lie in a row of NF4, [2 times 128
 * columns][lanes][2 groups]; then of each group scale / 127. */
#define GPU_ROUND_THREADS 64u
#define GPU_ROUNDED_COLUMNS 256u
#define GPU_ROUNDED_BYTES (GPU_ROUNDED_COLUMNS + 4u * (unsigned)sizeof(float))
/* Room of a rounded row of n, in floats. */
#define GPU_ROUNDED_FLOATS(n) \
	(((size_t)(n) + GPU_ROUNDED_COLUMNS - 1) / GPU_ROUNDED_COLUMNS * (GPU_ROUNDED_BYTES / sizeof(float)))
struct gpu_round_rows { /* grid.x: pieces of a row; grid.y: rows */
	const float *x;
	float *to; /* aligned to 16 bytes */
	uint32_t n, zero;
};
GPU_LAUNCHER(gpu_round_rows, struct gpu_round_rows);

/* In the grids of products, rows come first: so blocks that read the same weights run together, and memory gives them
 * once. */

#define GPU_MAX_PRODUCTS 24u
#define GPU_PRODUCT_THREADS 64u
#define GPU_PRODUCT_ROWS 8u /* the most at a time */
#define GPU_PRODUCT_OUTS 16u /* outputs of a block */
struct gpu_products {
	uint32_t n, zero;
	struct gpu_product p[GPU_MAX_PRODUCTS]; /* all of one coding; for gpu_many_products of any that it takes */
};

/* Launchers by coding and rows at a time (index: 1, 2, 4, 8 rows): grid.x: n_rows / rows, rounded up; grid.y: all
 * blocks. */
typedef GPU_LAUNCHER(gpu_products_fn, struct gpu_products);
extern gpu_products_fn *const gpu_products[GPU_N_CODINGS][4];
size_t gpu_product_shared(enum gpu_coding coding, unsigned index); /* shared memory of a block */
size_t gpu_blocks_shared(void); /* shared memory of a block of threads for GPU_BLOCKS (k_blocks.cu) */

/* Products of many rows (k_many.cu): a block has GPU_MANY_ROWS of them, and GPU_MANY_OUTS outputs. Shared memory:
 * gpu_many_shared. */
#define GPU_MANY_THREADS 256u
#define GPU_MANY_ROWS 32u
#define GPU_MANY_OUTS 64u
#define GPU_MANY_FROM 16u /* least rows, of experts on average: with fewer, most of a block's sums would be of no row */
GPU_LAUNCHER(gpu_many_products, struct gpu_products);
size_t gpu_many_shared(void);

/* Whether they take weights of this coding (enum gpu_coding). */
static inline bool gpu_many_takes(uint8_t coding)
{
	return coding != GPU_PLANES && coding != GPU_NF4 && coding != GPU_BLOCKS;
}

/* A product with weights as planes: all of a matrix, or some of its chunks. The offsets of chunks are the host's, so
 * they come along. x of row r begins at x + r * n_in. */
struct gpu_planes_product {
	const uint8_t *sm, *coded; /* chunk i is at coded + chunk_at[first_chunk + i] */
	const float *x;
	float *y;
	uint64_t y_stride;
	uint32_t n_out, n_in, n_rows; /* n_rows: at most those at a time */
	struct gpu_chunks chunks;
	uint32_t first_chunk, first_block;
};

#define GPU_MAX_PLANES_PRODUCTS 16u
#define GPU_MAX_PLANES_CHUNKS 256u /* as many as two matrices of Mixtral's have */
struct gpu_planes_products {
	uint32_t n, zero;
	struct gpu_planes_product p[GPU_MAX_PLANES_PRODUCTS];
	uint64_t chunk_at[GPU_MAX_PLANES_CHUNKS];
};

/* Launchers for 1, 2, 4 or 8 rows: grid.y: gpu_planes_blocks of all products. Shared memory:
 * GPU_PLANES_PRODUCT_SHARED. */
typedef GPU_LAUNCHER(gpu_planes_products_fn, struct gpu_planes_products);
extern gpu_planes_products_fn *const gpu_planes_products[4];
struct gpu_chunks gpu_planes_chunks(uint32_t n_in, uint32_t chunk_rows);
uint32_t gpu_planes_blocks(uint32_t n_out, const struct gpu_chunks *c);

/* ---- Experts (k_experts.cu, k_products.cu) ---- */

struct gpu_vector { /* as struct od_vector; at NULL: none */
	const void *at; /* need not be aligned */
	uint32_t dtype, zero;
};

enum { GPU_GATE, GPU_UP, GPU_DOWN, GPU_N_MATS };
struct gpu_expert {
	struct gpu_mat mat[GPU_N_MATS];
	struct gpu_vector bias[GPU_N_MATS];
};

/* Some pairs of a row and its choice, of one expert: [first, first + n) of the sorted ones. */
struct gpu_tile {
	uint32_t expert, first, n;
};

/* Sorts the pairs of several rows and their choices by expert, then by row. A round is `together` successive pairs; a
 * tile is at most `rows` successive pairs of one expert in one round. One block. A choice that is out of range, or
 * there twice in a row, is a fault; then there are no tiles. Choices that are left out (OD_NO_EXPERT) have none. */
#define GPU_SORT_THREADS 1024u
#define GPU_SORT_FEW 128u
struct gpu_sort {
	const uint16_t *choice; /* [n_rows][top_k] */
	uint32_t *pair; /* [n_rows * top_k]: row * top_k + rank */
	struct gpu_tile *tile; /* [all] */
	uint32_t *tiles_before; /* [rounds + 1]: tiles of the rounds before each; last: all tiles */
	struct gpu_fault *fault;
	uint32_t n_rows, top_k, n_experts, rows, together, zero;
};
GPU_LAUNCHER(gpu_sort, struct gpu_sort);
GPU_LAUNCHER(gpu_sort_few, struct gpu_sort); /* for at most GPU_SORT_FEW pairs */
size_t gpu_sort_shared(bool few); /* shared memory of a block */

/* Products of a round's tiles. Gate and up: from the pairs' rows of x to gate and up, which have a row for each pair of
 * the round. Down: from gate to the pairs' rows in y. grid.x: tiles; grid.y: blocks of an expert's outputs, first all
 * of gate, then as many of up. One row is not sorted: each of its choices is a tile of one pair. Then the launch for
 * gate and up looks for faults; a choice that is out of range has no outputs. */
struct gpu_expert_products {
	const struct gpu_expert *expert;
	const struct gpu_tile *tile;
	const uint32_t *tiles_before; /* this round's, then the next one's */
	const uint32_t *pair;
	/* [top_k]: the choices of a single row, for launchers for one row; the others use the three before. */
	const uint16_t *choice;
	struct gpu_fault *fault;
	const float *x;
	const float *rounded; /* rows that meet NF4: of x, or of down the pairs' of gate */
	float *gate, *up; /* [together][intermediate] */
	float *y;
	uint32_t top_k, n_experts, hidden, intermediate, first; /* first: pair of the round */
	uint32_t planes_blocks; /* most of a matrix with planes */
	uint32_t act; /* enum od_act */
	float limit;
	bool down;
	/* gate and up, both of one coding of gpu_products_pair: together, with what gpu_expert_act does */
	bool pairs;
	bool ends, round; /* down without planes: with what gpu_expert_down_end does, and whether that rounds */
	uint8_t zero[4];
};
bool gpu_products_pair(enum gpu_coding coding);
typedef GPU_LAUNCHER(gpu_expert_products_fn, struct gpu_expert_products);
extern gpu_expert_products_fn *const gpu_expert_products[GPU_N_CODINGS][4];
/* GPU_BLOCKS' launchers (k_blocks.cu), which are in these tables and in gpu_products. */
#define GPU_BLOCKS_LAUNCHERS(rows) \
	GPU_LAUNCHER(gpu_products_GPU_BLOCKS_##rows, struct gpu_products); \
	GPU_LAUNCHER(gpu_experts_GPU_BLOCKS_##rows, struct gpu_expert_products)
GPU_BLOCKS_LAUNCHERS(1);
GPU_BLOCKS_LAUNCHERS(2);
GPU_BLOCKS_LAUNCHERS(4);
GPU_BLOCKS_LAUNCHERS(8);
/* Takes tiles of GPU_MANY_ROWS, and weights of any codings that gpu_many_takes; `pairs` is not used, `ends` is as if
 * set. */
GPU_LAUNCHER(gpu_many_experts, struct gpu_expert_products);
/* Launchers for experts with planes: grid.y: planes_blocks (times two). Shared memory: GPU_PLANES_PRODUCT_SHARED. */
extern gpu_expert_products_fn *const gpu_expert_planes[4];

/* Finish a round's pairs: biases and activation (gpu_expert_act); bias and rounding after down (gpu_expert_down_end).
 * grid.x: elements; grid.y: tiles times rows. */
struct gpu_expert_rows {
	const struct gpu_expert *expert;
	const struct gpu_tile *tile;
	const uint32_t *tiles_before;
	const uint32_t *pair;
	const uint16_t *choice; /* NULL: there are several rows */
	float *gate, *up, *y;
	uint32_t n, first, rows, top_k, n_experts, act; /* n: intermediate, or hidden */
	float limit;
	bool round;
	uint8_t zero[3];
};
GPU_LAUNCHER(gpu_expert_act, struct gpu_expert_rows);
GPU_LAUNCHER(gpu_expert_down_end, struct gpu_expert_rows);

/* ---- Rows (k_rows.cu); grid.y is the row ---- */

struct gpu_row { /* as struct od_row_info */
	int32_t token;
	uint32_t position, table, is_long;
};
#define GPU_KV_PAGE 64u /* as OD_KV_PAGE */

#define GPU_ROW_THREADS 256u
#define GPU_NORM_THREADS 512u /* GPU_EACH of gpu_rows.h for each is a row of 4096 */
#define GPU_ROW_HEAD 16u /* bytes: before a piece of a row in shared memory (gpu_rows.h) */
#define GPU_ROW_PIECE 8192u /* floats; longer rows come in several pieces */

/* Shared memory of kernels with norms of rows of n. */
static inline size_t gpu_row_shared(uint32_t n)
{
	return GPU_ROW_HEAD + sizeof(float) * (n < GPU_ROW_PIECE ? n : GPU_ROW_PIECE);
}

/* y [n] += bias [n] (NULL: none), then the cap (0: none). grid.x: n / GPU_ROW_THREADS. */
struct gpu_bias {
	float *y;
	const float *bias;
	uint32_t n;
	float cap;
};
GPU_LAUNCHER(gpu_add_bias, struct gpu_bias);

/* gate [n] = the activation of both, after their biases. up of row r begins at r * stride. */
struct gpu_act {
	float *gate;
	const float *up;
	struct gpu_vector gate_bias, up_bias;
	uint32_t n, stride, act; /* enum od_act */
	float limit;
};
GPU_LAUNCHER(gpu_act, struct gpu_act);

/* y [n] += bias, rounded to BF16 if asked. */
struct gpu_expert_end {
	float *y;
	struct gpu_vector bias;
	uint32_t n;
	bool round;
	uint8_t zero[3];
};
GPU_LAUNCHER(gpu_expert_end, struct gpu_expert_end);

struct gpu_embed {
	const unsigned char *table; /* BF16, F16, F32; for gpu_embed_blocks any format of blocks */
	const struct gpu_row *rows;
	float *x;
	uint64_t row_bytes;
	uint32_t hidden, dtype;
	float scale;
	uint32_t in_order; /* 1: row r of the table is row r's; 0: its token's */
};
GPU_LAUNCHER(gpu_embed, struct gpu_embed);
GPU_LAUNCHER(gpu_embed_blocks, struct gpu_embed); /* k_blocks.cu */

struct gpu_angles {
	const struct gpu_row *rows;
	const float *inv_freq;
	float *angles;
	uint32_t half;
	float magnitude[2];
	uint32_t zero;
};
GPU_LAUNCHER(gpu_angles, struct gpu_angles);

/* A block of GPU_NORM_THREADS for each row; grid.x 1. */
struct gpu_norm {
	float *x, *y;
	const float *add, *weight, *bias;
	uint32_t n, layer; /* layer: OD_NORM_LAYER */
	float eps;
	uint32_t zero;
};
GPU_LAUNCHER(gpu_norm, struct gpu_norm);

/* A stream of the KV cache (struct od_stream). */
struct gpu_kv {
	unsigned char *pages;
	const uint32_t *tables;
	uint64_t page_bytes, row_bytes;
	uint32_t table_pages, dtype;
};

struct gpu_turn {
	const float *angles;
	uint32_t dims;
	bool neighbours;
	uint8_t zero[3];
};

/* k NULL: q alone. A block has `heads` heads of q, k or v: GPU_ROPE_HEADS, or all if norm_row. grid.x: all blocks of q,
 * of k, of v; grid.y: rows. */
#define GPU_ROPE_THREADS 256u
#define GPU_ROPE_HEADS 8u
struct gpu_rope_store {
	const struct gpu_row *rows;
	float *q, *k, *v;
	struct gpu_turn turn;
	const float *q_norm, *k_norm;
	struct gpu_kv keys, values;
	float eps, clip;
	uint32_t n_heads, n_kv_heads, k_dim, v_dim, heads;
	bool norm_row, v_norm;
	uint8_t zero[2];
};
GPU_LAUNCHER(gpu_rope_store, struct gpu_rope_store);

struct gpu_latent_store {
	const struct gpu_row *rows;
	float *latent_key;
	struct gpu_turn turn;
	const float *norm;
	struct gpu_kv stream;
	float eps;
	uint32_t rank;
};
GPU_LAUNCHER(gpu_latent_store, struct gpu_latent_store);

struct gpu_split {
	const float *in;
	float *first, *second;
	uint32_t n_heads, dim;
};
GPU_LAUNCHER(gpu_split, struct gpu_split); /* grid.x: n_heads * dim / GPU_ROW_THREADS */

struct gpu_gate {
	float *y;
	const float *gate;
	uint32_t n, zero;
};
GPU_LAUNCHER(gpu_gate, struct gpu_gate);

/* Without norms all elements of a row are independent: grid.x: hidden / GPU_NORM_THREADS. Else 1. */
struct gpu_combine {
	const float *y, *weight, *gate, *experts_norm, *shared_norm, *norm, *scale;
	float *x, *sum, *shared;
	uint32_t top_k, hidden;
	float eps;
	uint32_t zero;
};
GPU_LAUNCHER(gpu_combine, struct gpu_combine);

/* And then the norm of the same x. A block for each row; grid.x 1. */
struct gpu_combine_norm {
	struct gpu_combine combine;
	struct gpu_norm norm;
};
GPU_LAUNCHER(gpu_combine_norm, struct gpu_combine_norm);

/* ---- Loads (k_load.cu) ---- */

/* BF16 [first, end) of n from SM bytes and exponents (ZipMoE, arXiv 2601.21198, section 3.3). grid.x: (end - first) /
 * GPU_MERGE_EACH. A block reads all its bytes before it writes, so that sm may be the upper half of to if no block of
 * the launch writes to another's: 2 * end <= n + first, or one block. */
#define GPU_MERGE_EACH 4096u
struct gpu_merge {
	const uint8_t *sm, *e;
	uint16_t *to;
	uint64_t first, end;
};
GPU_LAUNCHER(gpu_merge, struct gpu_merge);

/* Merges chunks of planes (planes.h) of so many rows, the last of which may have fewer; rows in all: n_rows. grid.x:
 * blocks [first_block, ...) of a chunk, grid.y: chunks. */
#define GPU_MAX_CHUNKS 32u
struct gpu_merge_planes {
	const uint8_t *coded;
	uint64_t at[GPU_MAX_CHUNKS]; /* each chunk's, from coded */
	const uint8_t *sm;
	uint16_t *to;
	uint32_t row, chunk_rows, n_rows, first_block;
};
GPU_LAUNCHER(gpu_merge_planes, struct gpu_merge_planes);

/* ---- Attention (k_attend.cu) ---- */

#define GPU_ATTEND_BLOCK 256u /* as OD_ATTN_BLOCK */
#define GPU_ATTEND_THREADS 64u
#define GPU_ATTEND_WIDE 256u /* threads when there are few blocks */
#define GPU_ATTEND_HEADS 8u /* the most of a kv head at a time */

/* Results of n blocks of positions, for each row and head. */
struct gpu_attend_splits {
	float *max, *sum; /* [rows][n_heads][n] */
	float *vector; /* [rows][n_heads][n][v_dim] */
	/* blocks, counted from each row's first one; rows that have fewer leave the others as they are */
	uint32_t first, n;
};

/* grid.x: n_kv_heads times the groups of a kv head's heads: they read neighbouring memory, or the same; grid.y: blocks;
 * grid.z: rows. */
struct gpu_attend {
	const struct gpu_row *rows;
	const float *q;
	struct gpu_kv keys, values;
	struct gpu_attend_splits splits;
	uint32_t n_heads, k_dim, v_dim, window;
	uint32_t group, groups; /* heads of a kv head; and so many of them at a time: groups */
	float scale;
	bool aligned_queries, aligned_keys, aligned_values; /* all vectors of heads, to 16 bytes */
	uint8_t zero;
};
/* Launchers for GPU_ATTEND_THREADS or GPU_ATTEND_WIDE, OD_F32 or OD_BF16, and 1, 2, 4 or 8 heads at a time (NULL: not
 * so many). */
typedef GPU_LAUNCHER(gpu_attend_fn, struct gpu_attend);
extern gpu_attend_fn *const gpu_attend[2][2][4];
size_t gpu_attend_shared(uint32_t threads, uint32_t heads, uint32_t k_dim); /* shared memory of a block */

/* Folds the blocks in order. before: what an earlier launch left in after, with its vectors in out; NULL: these are the
 * first blocks. after: NULL: these are the last ones. grid.x: v_dim / GPU_FOLD_THREADS; grid.y: n_heads; grid.z:
 * rows. */
#define GPU_FOLD_THREADS 128u
#define GPU_FOLD_SHARED (4 * 4 * GPU_FOLD_THREADS + GPU_FOLD_THREADS / 8) /* bytes: factors, and a float of each warp */
struct gpu_attend_fold {
	const struct gpu_row *rows;
	struct gpu_attend_splits splits;
	const float *sinks;
	const float *before; /* [rows][n_heads][2]: maximum, sum */
	float *after;
	float *out;
	uint32_t n_heads, v_dim, window, zero;
};
GPU_LAUNCHER(gpu_attend_fold, struct gpu_attend_fold);

/* The queries of latent attention. grid.x: rank / GPU_ABSORB_THREADS; grid.y: n_heads; grid.z: n_rows / rows at a
 * time. */
#define GPU_ABSORB_THREADS 128u
#define GPU_ABSORB_EACH 256u /* weights of a sum between two barriers */
#define GPU_ABSORB_DECODED 32u /* weights of a sum that are decoded to shared memory at a time, if they are at all */
struct gpu_absorb {
	const float *q;
	float *out;
	struct gpu_turn turn;
	struct gpu_mat kv_b;
	uint32_t n_heads, nope_dim, v_dim, rank, n_rows;
	bool turned; /* as in struct od_op_latent_query */
	uint8_t zero[3];
};
/* Launchers by coding, for 1 or GPU_PRODUCT_ROWS rows at a time; NULL: a shadow's coding. */
typedef GPU_LAUNCHER(gpu_absorb_fn, struct gpu_absorb);
extern gpu_absorb_fn *const gpu_absorb[GPU_N_CODINGS][2];
static inline size_t gpu_absorb_shared(uint8_t coding, bool turned, uint32_t rows) /* shared memory of a block */
{
	const uint32_t decoded = turned ? GPU_ABSORB_DECODED + 1 : coding == GPU_BLOCKS ? GPU_ABSORB_DECODED : 0;

	return sizeof(float) * (GPU_ABSORB_EACH * rows + decoded * GPU_ABSORB_THREADS);
}

/* ---- Routing (k_route.cu) ---- */

/* grid.x: 1, and with round hidden / GPU_ROUTE_ROUND more; grid.y: rows. With a prior the block of a text's first row
 * does all rows of the text. */
#define GPU_ROUTE_THREADS 128u
#define GPU_ROUTE_ROUND 1024u /* elements of round in a block */
#define GPU_MAX_CHOICE 64u /* as OD_MAX_CHOICE */
#define GPU_MAX_GROUPS 64u /* as OD_MAX_GROUPS */
struct gpu_route {
	float *logits, *weight, *margin;
	uint16_t *choice;
	const float *bias, *factor;
	float *round;
	const struct gpu_row *rows;
	struct gpu_kv recent;
	uint32_t n_experts, top_k, hidden, n_rows;
	struct od_router_spec router;
	struct od_cache_prior prior;
};
GPU_LAUNCHER(gpu_route, struct gpu_route);
size_t gpu_route_shared(uint32_t n_experts); /* shared memory of a block */

/* ---- Gated delta rules (k_delta.cu) ---- */

/* grid.x: all elements, of qkv (with z by key head) and one of each head, / GPU_ROW_THREADS; grid.y: rows. */
struct gpu_delta_in {
	const float *qkv, *b, *a;
	float *z, *row;
	const float *a_log, *dt_bias;
	uint32_t n_heads, n_key_heads, k_dim, v_dim, channels;
	bool by_key_head;
	uint8_t zero[3];
};
GPU_LAUNCHER(gpu_delta_in, struct gpu_delta_in);

/* Only the GPU finds out which rows of the step a sequence has. Up to GPU_DELTA_ROWS of them are one launch's,
 * gpu_delta_few: a block for each head (grid.x) does all. More take gpu_delta_find (one block), gpu_delta_mix (grid.x:
 * key heads, grid.y: rows / at_once), gpu_delta_recur (grid.x: heads; of FIXED, grid.y: v_dim / GPU_DELTA_THREADS) and
 * gpu_delta_end (grid.y: rows). Shared memory: GPU_DELTA_ROOM and at_once lines; a line has 2 * k_dim + values floats,
 * rounded up to 4. */
#define GPU_DELTA_THREADS 128u
#define GPU_DELTA_FIND_THREADS 1024u
#define GPU_DELTA_ROWS 4u
#define GPU_DELTA_FIXED 128u /* the k_dim with kernels of its own, index 1: columns of the state stay in registers */
#define GPU_DELTA_ROOM 208u
#define GPU_DELTA_RING (2 * (3 * 4 * GPU_DELTA_ROWS * GPU_DELTA_THREADS + 48)) /* shared memory of gpu_delta_recur[1] */
struct gpu_delta {
	const struct gpu_row *rows;
	const float *row, *conv, *norm, *from;
	float *to, *z, *mixed, *y; /* z NULL: only the state is wanted */
	uint32_t *index;
	uint32_t *n_found; /* scratch: rows of the sequence; gpu_delta_few does without */
	uint64_t state_at; /* elements */
	uint32_t n_rows, table, first, n_take;
	uint32_t n_heads, n_key_heads, k_dim, v_dim, taps, channels;
	uint32_t at_once; /* rows in shared memory, at most GPU_DELTA_ROWS */
	float eps;
	bool tiled; /* as in struct od_delta_shape */
	uint8_t zero[7];
};
typedef GPU_LAUNCHER(gpu_delta_fn, struct gpu_delta);
extern gpu_delta_fn *const gpu_delta_few[2], *const gpu_delta_recur[2];
GPU_LAUNCHER(gpu_delta_find, struct gpu_delta);
GPU_LAUNCHER(gpu_delta_mix, struct gpu_delta);
GPU_LAUNCHER(gpu_delta_end, struct gpu_delta);

#pragma GCC diagnostic pop

#ifdef __cplusplus
}
#endif

#endif
