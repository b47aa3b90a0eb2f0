/* ops.h - what a device can be asked to do: operations over all rows of a step, as data.
 *
 * An operation names its operands by handles and has its shapes by value, so that a device may run it now (the CPU), hand
 * it to a thread (far) or record it and play it again (a GPU). Operations are as coarse as fusing them needs. Rows lie
 * side by side: row r of an operand of width n begins at element r * n, f32 unless said otherwise.
 *
 * Numbers are the contract (backend.h): every sum has one order, a row's result never depends on the other rows.
 * Thread: the queue's. Owner: the caller; what an operation points to must stay until it is done (device.h). */
#ifndef OD_COMPUTE_OPS_H
#define OD_COMPUTE_OPS_H

#include "common/compute/backend.h"
#include "common/compute/device.h"

/* ---- operands ---- */

/* A weight matrix on a device; what the fields mean is struct od_mat's (backend.h). */
struct od_weight {
	enum od_dtype dtype;
	size_t n_out, n_in;
	struct od_ref data;
	struct {
		enum od_dtype dtype;
		size_t group;
		struct od_ref at, divisor;
	} scales;
	struct od_ref scale;
	bool grouped;
	enum od_activations act;
	/* OD_BF16 as planes: data has SM bytes, chunk i of the coded exponents begins at coded + chunk_at[i]. */
	struct od_ref coded;
	const uint64_t *chunk_at; /* [n_out / chunk_rows, rounded up]; host memory; NULL: plain */
	size_t chunk_rows;
};

/* The matrices of an expert, or of a dense feed-forward network: [intermediate][hidden] twice, [hidden][intermediate]. */
enum od_expert_mat { OD_MAT_GATE, OD_MAT_UP, OD_MAT_DOWN, OD_N_EXPERT_MATS };
struct od_expert {
	struct od_weight mat[OD_N_EXPERT_MATS];
};

/* What a step knows of each of its rows, in one buffer that is filled when the step begins. */
struct od_row_info {
	int32_t token;
	uint32_t position;
	uint32_t table; /* which of the step's page tables is its sequence's */
	uint32_t zero;
};

/* One stream of a layer, keys say, in the pages of a pool: the row of position i is number i % OD_KV_PAGE of the page that
 * the table of its sequence has at i / OD_KV_PAGE; page p begins at p * page_bytes. */
struct od_stream {
	struct od_ref pages;  /* of the stream */
	struct od_ref tables; /* [tables of the step][table_pages]: uint32_t, numbers of pages */
	uint32_t table_pages;
	uint64_t page_bytes, row_bytes;
	enum od_dtype dtype; /* OD_F32 or OD_BF16 */
};

/* ---- operations ---- */

enum od_op_kind {
	OD_OP_EMBED,
	OD_OP_ANGLES,
	OD_OP_NORM,
	OD_OP_LINEAR,
	OD_OP_ROPE_STORE,
	OD_OP_LATENT_STORE,
	OD_OP_LATENT_QUERY,
	OD_OP_LATENT_VALUE,
	OD_OP_ATTEND,
	OD_OP_ROUTE,
	OD_OP_FFN,
	OD_OP_EXPERTS,
	OD_OP_COMBINE,
	OD_OP_COPY,
	OD_OP_MERGE
};

/* x [hidden] = the token's row of the table. */
struct od_op_embed {
	const struct od_weight *table; /* [vocab][hidden], not quantised */
	struct od_ref rows, x;
};

/* angles [2 * half]: cosines, then sines, of position * inv_freq, times magnitude. */
struct od_op_angles {
	struct od_ref rows, inv_freq, angles;
	uint32_t half;
	float magnitude;
};

/* x += add (unless nowhere); y = rmsnorm(x) * weight. */
struct od_op_norm {
	struct od_ref x, add, weight, y;
	uint32_t n;
	float eps;
};

/* y[i] [w[i]->n_out] = w[i] x + bias[i], for up to three matrices of as many columns that meet the same rows. */
#define OD_MAX_LINEAR 3
#define OD_MAX_CHOICE 64 /* experts that a row chooses at most */
#define OD_MAX_RANK 4096  /* of latents */
#define OD_MAX_GROUPS 64 /* of experts, of which some are chosen first */
struct od_op_linear {
	const struct od_weight *w[OD_MAX_LINEAR]; /* NULL: fewer */
	struct od_ref x, y[OD_MAX_LINEAR];
	struct od_ref bias[OD_MAX_LINEAR]; /* [n_out]; nowhere: none */
};

/* Which elements of a head turn, and by which angles. */
struct od_turn {
	struct od_ref angles; /* [dims] of each row: cosines, then sines */
	uint32_t dims;	      /* elements that turn */
	bool neighbours;      /* 2i with 2i + 1; else i with i + dims / 2 */
};

/* Grouped-query attention, before it attends: q and k are normed (unless the norms are nowhere), q, k and v clipped, the
 * first elements of the heads of q and k turn, and k and v go to the sequence state. */
struct od_op_rope_store {
	struct od_ref rows, q, k, v;
	struct od_turn turn;
	struct od_ref q_norm, k_norm;	    /* [k_dim]; norm_row: [n_heads * k_dim], [n_kv_heads * k_dim] */
	bool norm_row;			    /* over all heads together instead of each */
	float eps, clip;		    /* clip 0: none */
	struct od_stream keys, values;
	uint32_t n_heads, n_kv_heads, k_dim, v_dim;
};

/* Multi-head latent attention keeps, for all heads together, a latent and a key that turns. latent_key [rank + turn.dims]: its
 * latent is normed, its key turns; both go to the stream. */
struct od_op_latent_store {
	struct od_ref rows, latent_key;
	struct od_turn turn;
	struct od_ref norm; /* [rank] */
	float eps;
	struct od_stream stream;
	uint32_t rank;
};

/* A head of q is [nope_dim | turn.dims]. Its first part meets latents through the head's rows of kv_b, which are
 * [n_heads][nope_dim + v_dim][rank]: out [n_heads][rank + turn.dims] is what attends to the stream. */
struct od_op_latent_query {
	struct od_ref rows, q, out;
	struct od_turn turn;
	const struct od_weight *kv_b; /* as published, without planes */
	uint32_t n_heads, nope_dim, v_dim, rank;
};

/* out [n_heads][v_dim] = the last v_dim rows of each head of kv_b times in [n_heads][rank], which attention gave. */
struct od_op_latent_value {
	struct od_ref in, out;
	const struct od_weight *kv_b;
	uint32_t n_heads, nope_dim, v_dim, rank;
};

/* out [n_heads * v_dim]: every row sees its sequence up to and with its own position, at most window positions. Keys and
 * values may be of one stream; of a value the first v_dim elements count. */
struct od_op_attend {
	struct od_ref rows, q, out;
	struct od_stream keys, values;
	uint32_t n_heads, n_kv_heads, k_dim, v_dim, window; /* window 0: all */
	float scale;
	uint32_t max_position; /* of the step's rows, so that work can be cut before a device looks at them */
};

/* logits [n_experts] become the scores that decide: probabilities, but 0 outside of the top_groups best of n_groups groups (by
 * their best expert; n_groups 0: all are in). choice [top_k] uint16_t best first; weight [top_k] its scores, renormalised if
 * asked, times scale; margin [1]: score of the k-th less that of the next, 1 when there is none; or the same of groups when
 * that is less. */
struct od_op_route {
	struct od_ref logits, choice, weight, margin;
	struct od_ref round; /* [hidden]: rows that are rounded to BF16 for the experts; nowhere: none */
	uint32_t n_experts, top_k, hidden, n_groups, top_groups;
	bool renormalise;
	float scale;
};

/* An expert, or a dense network, and how many rows go through it: at least 1. */
struct od_ffn_part {
	const struct od_weight *mat; /* [OD_N_EXPERT_MATS]; of one shape in all parts */
	uint32_t n_rows;
};

/* y [hidden] = down(silu(gate x) * up x), x [hidden]; a routed expert's is rounded to BF16 in profile bf16. The rows of the
 * parts, which are the operation's rows, stand one part behind the other in x and y. */
#define OD_MAX_PARTS 32
struct od_op_ffn {
	const struct od_ffn_part *part; /* [n_parts]; host memory that stays until the operation is done, as what it points to */
	uint32_t n_parts;		/* 1 to OD_MAX_PARTS */
	bool routed;
	struct od_ref x, y, scratch; /* scratch: od_ffn_scratch_bytes */
};

/* The experts that the rows have chosen: y [top_k][hidden], in the order of choice. */
struct od_op_experts {
	const struct od_expert *expert; /* [n_experts] */
	struct od_ref x, choice, y, scratch; /* scratch: od_experts_scratch_bytes */
	uint32_t n_experts, top_k, hidden;
};

/* x += sum of weight * y in the order of choice, then shared [hidden] (unless nowhere), times sigmoid(gate [1]) if there is
 * one. top_k 0: shared alone. */
struct od_op_combine {
	struct od_ref y, weight, x, sum; /* sum [hidden]: scratch */
	struct od_ref shared, gate;
	uint32_t top_k, hidden;
};

/* to [n] = from [n], bytes; the two places do not overlap. */
struct od_op_copy {
	struct od_ref from, to;
	uint64_t n;
};

/* to [n] = BF16 weights put together from SM bytes sm [n] and their exponents (ZipMoE's recovery): e [n], or all rows' chunk
 * of planes with blocks of rows of n (planes.h). e is followed by OD_PAD_BYTES readable bytes; sm may be the upper half of all
 * rows of to. The host has checked a chunk of planes (od_planes_check), so that nothing can go wrong. */
struct od_op_merge {
	struct od_ref sm, e, to;
	uint32_t n;
	bool planes;
};

struct od_op {
	enum od_op_kind kind;
	enum od_profile profile;
	uint32_t n_rows;
	union {
		struct od_op_embed embed;
		struct od_op_angles angles;
		struct od_op_norm norm;
		struct od_op_linear linear;
		struct od_op_rope_store rope_store;
		struct od_op_latent_store latent_store;
		struct od_op_latent_query latent_query;
		struct od_op_latent_value latent_value;
		struct od_op_attend attend;
		struct od_op_route route;
		struct od_op_ffn ffn;
		struct od_op_experts experts;
		struct od_op_combine combine;
		struct od_op_copy copy;
		struct od_op_merge merge;
	};
};

/* Queue it; *op is copied. The queue of loads takes OD_OP_COPY and OD_OP_MERGE (device.h says why). */
void od_device_run(struct od_device *d, enum od_queue q, const struct od_op *op);

/* Scratch that n_rows rows need, whatever the device. */
uint64_t od_ffn_scratch_bytes(uint32_t intermediate, size_t n_rows);
uint64_t od_experts_scratch_bytes(uint32_t hidden, uint32_t intermediate, uint32_t n_experts, uint32_t top_k,
				  size_t n_rows);

#endif
