/* forward.h - the only forward pass: some rows, a layer cursor, a phase; advanced layer by layer and
 * resumable between any two calls (design section 9).
 *
 *   begin -> [ attention -> experts, where the layer has them ] x n_layers -> logits -> end
 *
 * It queues operations on a device; rows, routes and state stay there, and the host waits only where it fetches something.
 * Its two seams are where the dense weights come from (struct od_dense) and who runs the experts (struct
 * od_expert_runner: resident, cluster, emulated). A row's result never depends on the other rows.
 * Several od_forward may have steps open at once on one device, with one state pool and one thread: a prefill, say, pauses
 * between any two calls while decode steps of others run. A sequence has rows in one open step at most. When one is freed, the
 * step that has its rows goes no further: it is given up, by beginning another.
 * The device reports a failure once, at whichever wait of its compute queue comes first, be it a wait of begin or of somebody
 * else. That wait fails. Every other step that was open and has work that has not been waited for fails at its own next wait,
 * and at its end: none of them can be trusted, each must begin again.
 * Thread: one at a time for all od_forward of a device, which own its compute queue. Owner: buffers belong to the od_forward;
 * what was fetched is borrowed until the next call that moves it on. */
#ifndef OD_MODEL_FORWARD_H
#define OD_MODEL_FORWARD_H

#include "common/model/seq_state.h"

/* One row of a step: a token of a sequence at a position. Rows of one sequence stand in order of position,
 * without gaps, and begin at the sequence's committed length. */
struct od_row {
	struct od_seq_state *seq;
	uint32_t position;
	int32_t token;
};

/* What a MoE layer asks of the experts. */
struct od_moe_call {
	uint64_t step;
	uint32_t m;		/* index of the MoE layer */
	size_t n_rows;
	/* For a runner that works on the host. */
	const float *x;		/* [n_rows][hidden]: normed rows; in profile bf16 already rounded to BF16 */
	const uint16_t *expert; /* [n_rows][top_k], best first, all different within a row */
	const float *weight;	/* [n_rows][top_k]: of their outputs */
	float *y;		/* [n_rows][top_k][hidden]: output of the expert of that rank for that row */
	/* NULL unless they were fetched before (od_forward_fetch). */
	const float *probability; /* [n_rows][n_experts]: the scores that decided */
	const float *residual;	  /* [n_rows][hidden]: as od_forward_residual_of */
	/* Rows, routes and outputs on the device, for a runner that works there. */
	struct od_ref x_at, expert_at, y_at;
};

struct od_expert_runner {
	bool on_device; /* it needs nothing on the host: only x_at, expert_at and y_at are set */
	/* Ask for the outputs, and do not wait for them. The call stays as it is until collect has returned. */
	int (*submit)(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err);
	/* After a submit that went well: y is filled, or what fills y_at is queued. NULL: it is so after submit. */
	int (*collect)(struct od_expert_runner *r, struct od_err *err);
};

struct od_forward;

struct od_forward_opts {
	const struct od_config *config;
	const struct od_dense *dense;
	struct od_device *device;
	struct od_state_pool *state; /* of all sequences of its rows; made for config and profile; borrowed */
	enum od_profile profile;
	size_t max_rows;
	size_t max_logits; /* rows whose logits are there at a time, at most max_rows; 0 is 1 */
};

OD_MUST_CHECK int od_forward_new(struct od_forward **out, const struct od_forward_opts *opts, struct od_err *err);
void od_forward_free(struct od_forward *f); /* NULL ok; waits */
/* Memory it will take. state NULL: without the page tables, 2 * od_state_pages(ctx) uint32_t for each sequence. */
uint64_t od_forward_bytes(const struct od_forward_opts *opts);

/* Start a step of rows[0..n_rows). Token ids, positions and context lengths are checked here. Waits when nothing was
 * fetched of the step before, and then reports what went wrong in it. */
OD_MUST_CHECK int od_forward_begin(struct od_forward *f, uint64_t step, const struct od_row *rows, size_t n_rows,
				   struct od_err *err);

/* The current layer's mixer, which writes this layer's state of the rows; then of a MoE layer the router, after which routes
 * can be fetched and the experts are next; of a dense layer its network, after which the cursor is at the next layer. */
void od_forward_attention(struct od_forward *f);
/* The current layer has been routed: od_forward_experts is next. */
bool od_forward_routed(const struct od_forward *f);

/* The current layer's experts through the runner, combined in router order; moves to the next layer. Shared experts are
 * computed between submit and collect. On an error the cursor stays, so that the call can be repeated. */
OD_MUST_CHECK int od_forward_experts(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err);

uint32_t od_forward_layer(const struct od_forward *f); /* the cursor; n_layers when only logits are left */
uint32_t od_forward_m(const struct od_forward *f);     /* of the current layer, which is a MoE layer */
bool od_forward_done(const struct od_forward *f);      /* all layers are through */

/* Brings what od_forward_attention left of its layer to the host, by one wait for all of it. What was fetched before of
 * the same layer is not fetched again. */
#define OD_FETCH_ROUTES 1u	  /* experts, weights, margins */
#define OD_FETCH_PROBABILITIES 2u
#define OD_FETCH_RESIDUALS 4u
#define OD_FETCH_ROWS 8u	  /* what the experts get */
OD_MUST_CHECK int od_forward_fetch(struct od_forward *f, unsigned what, struct od_err *err);

/* Fetched. */
const uint16_t *od_forward_experts_of(const struct od_forward *f, size_t row); /* [top_k], best first */
const float *od_forward_weights_of(const struct od_forward *f, size_t row);    /* [top_k]: of their outputs */
/* Gap between the scores of the k-th and the next expert, or of the last group kept and the next if that is less; 1 when all
 * experts are used. */
float od_forward_margin_of(const struct od_forward *f, size_t row);
/* [n_experts]: the scores that decided (OD_OP_ROUTE). */
const float *od_forward_probabilities_of(const struct od_forward *f, size_t row);
/* [hidden]: the row after attention, before the experts' outputs are added and before the norm. */
const float *od_forward_residual_of(const struct od_forward *f, size_t row);

/* After the last layer, until the next step begins: logits [n][vocab] of the n rows that row[] names, 1 to max_logits, on the
 * host; the caller may change them. The head is read once for all of them. One wait. */
OD_MUST_CHECK int od_forward_logits(struct od_forward *f, const uint32_t *row, size_t n, float **logits, struct od_err *err);

/* The step is over: what it has left of its rows becomes part of their sequences. kept[i]: how many rows of the i-th sequence,
 * counted in the order in which they stand among the rows, do; NULL: all. Waits, unless the logits have waited; when
 * something went wrong, nothing has become part of any sequence. Rows of models with fixed state are kept in part only in
 * steps of at most OD_KEEP_ROWS rows (else OD_ERR_UNSUPPORTED). */
#define OD_KEEP_ROWS 16
OD_MUST_CHECK int od_forward_end(struct od_forward *f, const uint32_t *kept, struct od_err *err);

#endif
