/* ops.h - the operations of a device, as data: each works on all rows of a step.
 *
 * An operation holds handles to its operands and its shapes by value. So a device may run it at once (the CPU), pass it
 * to a thread, or record and replay it (a GPU). Each is coarse enough to allow fusion. Rows are contiguous: row r
 * of an operand of width n begins at element r * n; f32 unless stated otherwise.
 *
 * Results are specified to the bit (backend.h): every sum has one order, a row's result never depends on the other
 * rows.
 * Thread: the queue's. Owner: the caller; operands must stay valid until the operation is done (device.h). */
#ifndef OD_COMPUTE_OPS_H
#define OD_COMPUTE_OPS_H

#include "common/compute/backend.h"
#include "common/compute/device.h"
#include "common/compute/norm.h"
#include "common/compute/router.h"

/* ---- operands ---- */

/* A weight matrix on a device; fields as in struct od_mat (backend.h). */
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
	enum od_activations act; /* a GPU rounds rows for OD_NF4, and no others */
	/* OD_BF16 as planes: data has SM bytes, chunk i of the coded exponents begins at coded + chunk_at[i]. */
	struct od_ref coded;
	const uint64_t *chunk_at; /* [n_out / chunk_rows, rounded up]; host memory; NULL: plain */
	size_t chunk_rows;
};

/* The matrices of an expert, or of a dense feed-forward network: [intermediate][hidden] twice, [hidden][intermediate];
 * and the biases that an expert may have as well: that of matrix i is tensor OD_N_EXPERT_MATS + i. */
enum od_expert_mat {
	OD_MAT_GATE,
	OD_MAT_UP,
	OD_MAT_DOWN,
	OD_N_EXPERT_MATS,
	OD_BIAS_GATE = OD_N_EXPERT_MATS,
	OD_BIAS_UP,
	OD_BIAS_DOWN,
	OD_N_EXPERT_TENSORS
};
/* A vector as published: OD_BF16, OD_F16 or OD_F32. */
struct od_vector {
	enum od_dtype dtype;
	struct od_ref data;
};
struct od_expert {
	struct od_weight mat[OD_N_EXPERT_MATS];
	struct od_vector bias[OD_N_EXPERT_MATS]; /* [n_out of the matrix]; all nowhere: none */
};

/* A row of a step; the step fills a buffer of these when it begins. */
struct od_row_info {
	int32_t token;
	uint32_t position;
	uint32_t table; /* index of its sequence's page table in the step */
	uint32_t is_long; /* 1: its text has the second frequencies of OD_OP_ANGLES */
};

/* A stream of a layer (keys, for example) in the pages of a pool. Position i of a sequence is row i % OD_KV_PAGE of the
 * page that its page table holds at i / OD_KV_PAGE; page p begins at p * page_bytes. */
struct od_stream {
	struct od_ref pages; /* page table */
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
	OD_OP_SPLIT,
	OD_OP_GATE,
	OD_OP_DELTA_IN,
	OD_OP_DELTA,
	OD_OP_ROUTE,
	OD_OP_ACT,
	OD_OP_FFN,
	OD_OP_EXPERTS,
	OD_OP_COMBINE,
	OD_OP_COPY,
	OD_OP_MERGE
};

/* True: on this device, operations of this kind take weights of this format, of a type that a checkpoint may have
 * (OD_USE_*) or a shadow's. */
bool od_device_supports(const struct od_device *d, enum od_op_kind op, enum od_dtype t);

/* x [hidden] = the token's row of the table, times scale. */
struct od_op_embed {
	const struct od_weight *table; /* [vocab][hidden], without scales beside it */
	struct od_ref rows, x;
	float scale; /* 0: none */
	bool in_order; /* the table is [n_rows][hidden]: row r is that of row r's token */
};

/* angles [2 * half]: cosines, then sines, of position * inv_freq, times magnitude: the first or the second of each, by
 * the row's text. */
struct od_op_angles {
	struct od_ref rows, inv_freq, angles; /* inv_freq: [2][half] */
	uint32_t half;
	float magnitude[2];
};

/* x += add (unless nowhere); y = norm of x, with weight and, if the kind has one, bias [n]. */
struct od_op_norm {
	struct od_ref x, add, weight, bias, y;
	enum od_norm kind;
	uint32_t n;
	float eps;
};

/* y[i] [w[i]->n_out] = w[i] x + bias[i], for up to four matrices with the same input rows. With a cap y = cap * tanh(y
 * / cap). */
#define OD_MAX_LINEAR 4
#define OD_MAX_CHOICE 64 /* limit of top-k */
#define OD_MAX_RANK 4096 /* limit of a latent's width */
#define OD_MAX_GROUPS 64 /* limit of expert groups in group-limited routing */
struct od_op_linear {
	const struct od_weight *w[OD_MAX_LINEAR]; /* NULL: fewer */
	struct od_ref x, y[OD_MAX_LINEAR];
	struct od_ref bias[OD_MAX_LINEAR]; /* [n_out]; nowhere: none */
	float cap; /* 0: none */
};

/* Rotary position embedding (RoPE) of a head: the elements that it rotates and the angles. */
struct od_turn {
	struct od_ref angles; /* [dims] of each row: cosines, then sines */
	uint32_t dims; /* rotated elements */
	bool neighbours; /* pairs 2i and 2i + 1; else i and i + dims / 2 */
};

/* Grouped-query attention before OD_OP_ATTEND: norms q and k (if given) and v (if asked), clips q, k and v, applies
 * RoPE to the first elements of the heads of q and k, and stores k and v in the KV cache. k and v nowhere: q alone,
 * nothing is stored. */
struct od_op_rope_store {
	struct od_ref rows, q, k, v;
	struct od_turn turn;
	struct od_ref q_norm, k_norm; /* [k_dim]; norm_row: [n_heads * k_dim], [n_kv_heads * k_dim] */
	bool norm_row; /* over all heads together instead of each */
	bool v_norm; /* each head of v, without weights */
	float eps, clip; /* clip 0: none */
	struct od_stream keys, values;
	uint32_t n_heads, n_kv_heads, k_dim, v_dim;
};

/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) stores one latent and one RoPE key for all
 * heads. latent_key [rank + turn.dims]: norms the latent, applies RoPE to the key, stores both in the stream. */
struct od_op_latent_store {
	struct od_ref rows, latent_key;
	struct od_turn turn;
	struct od_ref norm; /* [rank] */
	float eps;
	struct od_stream stream;
	uint32_t rank;
};

/* Projects queries into latent space. A head of q is [nope_dim | turn.dims]; its first elements are multiplied by the
 * head's rows of kv_b [n_heads][nope_dim + v_dim][rank]; turned: [n_heads][rank][nope_dim], the transpose. out
 * [n_heads][rank + turn.dims]: the queries for the stream. A sum is in the order of nope_dim, by fma. */
struct od_op_latent_query {
	struct od_ref rows, q, out;
	struct od_turn turn;
	const struct od_weight *kv_b; /* as published, without planes */
	uint32_t n_heads, nope_dim, v_dim, rank;
	bool turned;
};

/* out [n_heads][v_dim] = the last v_dim rows of each head of kv_b times in [n_heads][rank], the output of attention. */
struct od_op_latent_value {
	struct od_ref in, out;
	const struct od_weight *kv_b;
	uint32_t n_heads, nope_dim, v_dim, rank;
};

/* out [n_heads * v_dim]: causal attention over the row's sequence up to its own position, at most window positions.
 * Keys and values may share a stream; the first v_dim elements are the value. */
struct od_op_attend {
	struct od_ref rows, q, out;
	struct od_stream keys, values;
	uint32_t n_heads, n_kv_heads, k_dim, v_dim, window; /* window 0: all */
	float scale;
	struct od_ref sinks; /* [n_heads]: one more score a head, whose share is dropped; nowhere: none */
	uint32_t max_position; /* highest position of the step's rows, to split work before the device reads them */
};

/* Takes the two halves of each head apart: in [n_heads][2 * dim] to first and second [n_heads][dim]. */
struct od_op_split {
	struct od_ref in, first, second;
	uint32_t n_heads, dim;
};

/* y [n] *= sigmoid(gate [n]) */
struct od_op_gate {
	struct od_ref y, gate;
	uint32_t n;
};

/* The shape of a gated delta rule (arXiv 2412.06464): n_heads heads of values; head j uses key head j / (n_heads /
 * n_key_heads), or j mod n_key_heads. */
struct od_delta_shape {
	uint32_t n_heads, n_key_heads, k_dim, v_dim;
	uint32_t taps; /* positions that the convolution sees */
	bool tiled; /* the latter */
};

static inline size_t od_delta_key_head(const struct od_delta_shape *s, size_t head)
{
	return s->tiled ? head % s->n_key_heads : head / (s->n_heads / s->n_key_heads);
}

static inline size_t od_delta_values(const struct od_delta_shape *s) /* elements of all heads */
{
	return (size_t)s->n_heads * s->v_dim;
}

/* channels of the convolution: queries, keys, values */
static inline size_t od_delta_channels(const struct od_delta_shape *s)
{
	return 2 * (size_t)s->n_key_heads * s->k_dim + od_delta_values(s);
}

/* Length of the record that says how a row changes the state: channels, then each head's decay and each head's beta. */
static inline size_t od_delta_row(const struct od_delta_shape *s)
{
	return od_delta_channels(s) + 2 * (size_t)s->n_heads;
}

/* Fixed state of a sequence: the channels of the last taps - 1 rows, oldest first, then [n_heads][k_dim][v_dim]. */
/* elements before the latter: whole cache lines */
static inline size_t od_delta_state_at(const struct od_delta_shape *s)
{
	return ((s->taps - 1) * od_delta_channels(s) + 15) / 16 * 16;
}

static inline size_t od_delta_state(const struct od_delta_shape *s) /* elements */
{
	return od_delta_state_at(s) + (size_t)s->n_heads * s->k_dim * s->v_dim;
}

/* row [od_delta_row]: channels as projected; decay = exp(-exp(a_log) * softplus(a + dt_bias)), beta = sigmoid(b).
 * by_key_head: qkv and b have for each key head q, k, v and z of its heads, and b and a of its heads; z is an output
 * and a nowhere. Else each of qkv, z, b, a has all heads; z is not used. */
struct od_op_delta_in {
	struct od_ref qkv, z, b, a, row;
	struct od_ref a_log, dt_bias; /* [n_heads] */
	struct od_delta_shape shape;
	bool by_key_head;
};

/* Rows [first, first + n_take) of a sequence, one after the other: convolution and silu, queries and keys of length 1,
 * then of each head
 *   S = decay S;  S += k (beta (v - S k))^T;  y = S q / sqrt(k_dim);  z = silu(z) * rmsnorm(y) * norm
 * S is read from `from` by the first row and written to `to`. z nowhere: only the state is wanted. */
struct od_op_delta {
	struct od_ref rows;
	uint32_t table, first, n_take; /* rows of this table, counted among these alone */
	struct od_ref row; /* OD_OP_DELTA_IN's row, all rows */
	struct od_ref conv; /* [taps][channels] */
	struct od_ref norm; /* [v_dim] */
	struct od_ref from, to; /* state; not the same address */
	struct od_ref z; /* [n_heads * v_dim]: becomes the output */
	struct od_ref mixed, y, index; /* scratch: [channels], [n_heads * v_dim], uint32_t [1] of each row */
	struct od_delta_shape shape;
	float eps;
};

/* Routing (router.h). What decides is an expert's score, with its bias if there is one, raised by a prior; the order of
 * equal ones is that of their numbers. choice [top_k]: uint16_t, best first, but kept experts of a prior before all
 * others. weight [top_k]: their scores, renormalised if asked, times scale. Logits are multiplied by router.logit_scale
 * first; at last each weight is multiplied by its expert's factor (both: if given). margin [1]: what decided for the
 * k-th expert minus that of the next, or the same of groups if that is smaller; at most 1, and 1 if there is no next.
 * With OD_SCORE_MIXER the margin is the least of all gaps between a choice and the next, and of the distances of other
 * experts from the edge of the band.
 * logits [n_experts] become probabilities: the softmax of what decides, or itself if that is a softmax; 0 outside the
 * best groups. So for predictors their logarithms are what decides, up to a constant. */
struct od_op_route {
	struct od_ref logits, choice, weight, margin;
	struct od_ref bias; /* [n_experts]; nowhere: none */
	struct od_ref factor; /* [n_experts]; nowhere: none */
	struct od_ref round; /* [hidden]: rows to round to BF16 for the experts; nowhere: none */
	uint32_t n_experts, top_k, hidden;
	struct od_router_spec router;
	struct od_cache_prior prior;
	/* With a prior: the rows, and a stream of struct od_recent. A row reads that of the position before it and
	 * writes its own, but for a row of position 0, which reads none. So the rows of a text are in order. */
	struct od_ref rows;
	struct od_stream recent;
};

/* gate [n] = act(gate) * up: up [n] of row r begins at element r * stride. */
struct od_op_act {
	struct od_ref gate, up;
	uint32_t n, stride;
	struct od_act_spec act;
};

/* An expert, or a dense network, and the number of its rows, at least 1. */
struct od_ffn_segment {
	const struct od_weight *mat; /* [OD_N_EXPERT_MATS]; of one shape in all segments */
	uint32_t n_rows;
	/* [OD_N_EXPERT_MATS]: added to the products; NULL, as in all segments or in none: none */
	const struct od_vector *bias;
};

static inline struct od_ffn_segment od_expert_segment(const struct od_expert *e, uint32_t n_rows)
{
	return (struct od_ffn_segment){ e->mat, n_rows, e->bias[0].data.buf != NULL ? e->bias : NULL };
}

/* y [hidden] = down(silu(gate x) * up x), or another activation than silu, x [hidden]; in profile bf16 the output of a
 * routed expert is rounded to BF16. x and y hold the rows of segment 0, then those of segment 1, and so on. */
#define OD_MAX_SEGMENTS 32
struct od_op_ffn {
	/* [n_segments]; host memory, valid with all it points to until the operation is done */
	const struct od_ffn_segment *segment;
	uint32_t n_segments; /* 1 to OD_MAX_SEGMENTS */
	bool routed;
	struct od_act_spec act;
	struct od_ref x, y, scratch; /* scratch: od_ffn_scratch_bytes (scratch.h) */
};

/* Runs the experts of each row's choice: y [top_k][hidden], in the order of choice. Choices that are OD_NO_EXPERT are
 * left out, so that the experts of a layer can run in several operations; their part of y stays as it is. */
#define OD_NO_EXPERT UINT16_MAX
struct od_op_experts {
	const struct od_expert *expert; /* [n_experts] */
	struct od_ref x, choice, y, scratch; /* scratch: od_experts_scratch_bytes */
	uint32_t n_experts, top_k, hidden;
	struct od_act_spec act;
};

/* x += sum of weight * y in the order of choice, plus shared [hidden] (unless nowhere) times sigmoid(gate [1]) if gate
 * is given. top_k 0: shared only. Norms, unless nowhere: of the sum of the experts, of shared (in place), of both
 * together; then x is multiplied by scale. */
struct od_op_combine {
	struct od_ref y, weight, x, sum; /* sum [hidden]: scratch */
	struct od_ref shared, gate;
	struct od_ref experts_norm, shared_norm, norm; /* [hidden]; top_k 0 has none of them */
	struct od_ref scale; /* [1]; nowhere: none */
	float eps;
	uint32_t top_k, hidden;
};

/* to [n] = from [n], bytes; the two ranges do not overlap. */
struct od_op_copy {
	struct od_ref from, to;
	uint64_t n;
};

/* to [n] = BF16 weights merged from SM bytes sm [n] and exponents (ZipMoE, arXiv 2601.21198, section 2): e [n], or with
 * planes chunks of rows of n (planes.h): one for all rows, or several of chunk_rows rows, the last one of the rest. e
 * is followed by OD_PAD_BYTES readable bytes; sm may be the upper half of all rows of to if there is one chunk. The
 * host has checked chunks of planes (od_planes_check), so the operation cannot fail. */
#define OD_MERGE_CHUNKS 8u /* at most */
struct od_op_merge {
	struct od_ref sm, e, to;
	/* Length of all chunks of planes; 0: the most that one may have, for which later copies wait. */
	uint64_t e_bytes;
	uint32_t n;
	bool planes;
	uint32_t chunk_rows; /* 0: one chunk */
	uint32_t chunk_at[OD_MERGE_CHUNKS]; /* each chunk's begin, from e */
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
		struct od_op_split split;
		struct od_op_gate gate;
		struct od_op_delta_in delta_in;
		struct od_op_delta delta;
		struct od_op_route route;
		struct od_op_act act;
		struct od_op_ffn ffn;
		struct od_op_experts experts;
		struct od_op_combine combine;
		struct od_op_copy copy;
		struct od_op_merge merge;
	};
};

#endif
