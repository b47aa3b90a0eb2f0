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

/* Keys and values of one layer in the pages of a pool. In each stream page p of the pool begins
 * at p * page_bytes; in it the row of position i is number i % OD_KV_PAGE. */
struct od_kv {
	struct od_ref pages;  /* the pool */
	struct od_ref tables; /* [tables of the step][table_pages]: uint32_t, number of the page in the pool */
	uint32_t table_pages;
	uint64_t page_bytes;
	uint64_t k_at, v_at;		 /* bytes from the pool's start to the layer's streams */
	uint64_t k_row_bytes, v_row_bytes; /* between positions */
	enum od_dtype dtype;		 /* OD_F32 or OD_BF16 */
};

/* ---- operations ---- */

enum od_op_kind {
	OD_OP_EMBED,
	OD_OP_ANGLES,
	OD_OP_NORM,
	OD_OP_LINEAR,
	OD_OP_ROPE_STORE,
	OD_OP_ATTEND,
	OD_OP_ROUTE,
	OD_OP_FFN,
	OD_OP_EXPERTS,
	OD_OP_COMBINE,
	OD_OP_COPY
};

/* x [hidden] = the token's row of the table. */
struct od_op_embed {
	const struct od_weight *table; /* [vocab][hidden], not quantised */
	struct od_ref rows, x;
};

/* angles [2 * half]: cosines, then sines, of position * inv_freq. */
struct od_op_angles {
	struct od_ref rows, inv_freq, angles;
	uint32_t half;
};

/* x += add (unless nowhere); y = rmsnorm(x) * weight. */
struct od_op_norm {
	struct od_ref x, add, weight, y;
	uint32_t n;
	float eps;
};

/* y[i] [w[i]->n_out] = w[i] x, for up to three matrices of as many columns that meet the same rows. */
#define OD_MAX_LINEAR 3
#define OD_MAX_CHOICE 64 /* experts that a row chooses at most */
struct od_op_linear {
	const struct od_weight *w[OD_MAX_LINEAR]; /* NULL: fewer */
	struct od_ref x, y[OD_MAX_LINEAR];
};

/* Grouped-query attention: the heads of q and k turn by the row's angles; k and v go to the sequence state. */
struct od_op_rope_store {
	struct od_ref rows, angles, q, k, v;
	struct od_kv kv;
	uint32_t n_heads, n_kv_heads, head_dim;
};

/* out [n_heads * head_dim]: every row sees its sequence up to and with its own position, at most window positions. */
struct od_op_attend {
	struct od_ref rows, q, out;
	struct od_kv kv;
	uint32_t n_heads, n_kv_heads, head_dim, window; /* window 0: all */
	uint32_t max_position; /* of the step's rows, so that work can be cut before a device looks at them */
};

/* logits [n_experts] become probabilities; choice [top_k] uint16_t best first, weight [top_k] renormalised; margin [1]:
 * probability of the k-th less that of the next, 1 when there is none. */
struct od_op_route {
	struct od_ref logits, choice, weight, margin;
	struct od_ref round; /* [hidden]: rows that are rounded to BF16 for the experts; nowhere: none */
	uint32_t n_experts, top_k, hidden;
};

/* y [hidden] = down(silu(gate x) * up x), x [hidden]; rounded to BF16 in profile bf16. */
struct od_op_ffn {
	const struct od_expert *w;
	struct od_ref x, y, scratch; /* scratch: od_ffn_scratch_bytes */
};

/* The experts that the rows have chosen: y [top_k][hidden], in the order of choice. */
struct od_op_experts {
	const struct od_expert *expert; /* [n_experts] */
	struct od_ref x, choice, y, scratch; /* scratch: od_experts_scratch_bytes */
	uint32_t n_experts, top_k, hidden;
};

/* x += sum of weight * y in the order of choice. */
struct od_op_combine {
	struct od_ref y, weight, x, sum; /* sum [hidden]: scratch */
	uint32_t top_k, hidden;
};

/* to [n] = from [n], bytes; the two places do not overlap. */
struct od_op_copy {
	struct od_ref from, to;
	uint64_t n;
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
		struct od_op_attend attend;
		struct od_op_route route;
		struct od_op_ffn ffn;
		struct od_op_experts experts;
		struct od_op_combine combine;
		struct od_op_copy copy;
	};
};

/* Queue it; *op is copied. */
void od_device_run(struct od_device *d, enum od_queue q, const struct od_op *op);

/* Scratch that n_rows rows need, whatever the device. */
uint64_t od_ffn_scratch_bytes(uint32_t intermediate, size_t n_rows);
uint64_t od_experts_scratch_bytes(uint32_t hidden, uint32_t intermediate, uint32_t n_experts, uint32_t top_k,
				  size_t n_rows);

#endif
