/* forward.h - the forward pass over a set of rows, driven layer by layer by the caller and resumable between any two
 * calls:
 *
 *   begin -> [ take -> attention -> experts, if the layer has them ] x n_layers -> logits -> end
 *
 * The rows can go through the layers in two halves (od_forward_halve), so that the host computes one half while the
 * experts of the other one are on their way.
 * It queues operations on a device. Rows, routes and KV cache stay there; the host waits only when it fetches
 * something. Two things are pluggable: the dense weights (struct od_dense) and the experts (struct od_expert_runner:
 * resident, cluster, emulated). A row's result never depends on the other rows.
 *
 * Several od_forward can have open steps on one device, with one state pool and one thread: for example, a prefill
 * pauses between two calls while decode steps run. A sequence has rows in at most one open step. If it is freed, that
 * step cannot go on; abandon it by beginning another.
 * A device error is reported once, by the first wait on the compute queue. Every other open step with unfinished work
 * then fails at its own next wait and at its end; all of them must begin again.
 * Thread: one at a time for all od_forward of a device, since they share its compute queue. Owner: od_forward_new's
 * caller; fetched data is borrowed until the next call that advances the step. */
#ifndef OD_MODEL_FORWARD_H
#define OD_MODEL_FORWARD_H

#include "common/model/seq_state.h"

/* One row of a step: a token of a sequence at a position. The rows of a sequence are in order of position, without
 * gaps, and begin at its committed length. */
struct od_row {
	struct od_seq_state *seq;
	uint32_t position;
	int32_t token;
};

/* The inputs and outputs of a MoE layer's experts. */
struct od_moe_call {
	uint64_t step;
	uint32_t m; /* index of the MoE layer */
	size_t first, n_rows; /* rows [first, first + n_rows) of the step */
	/* On the host, for a runner that works there. */
	const float *x; /* [n_rows][hidden]: normed rows; in profile bf16 already rounded to BF16 */
	const uint16_t *expert; /* [n_rows][top_k], best first, distinct within a row */
	const float *weight; /* [n_rows][top_k]: router weights */
	float *y; /* [n_rows][top_k][hidden]: the runner's output, in the order of expert */
	/* NULL unless they were fetched before (od_forward_fetch). */
	const float *probability; /* [n_rows][n_experts]: as od_forward_probabilities_of */
	const float *residual; /* [n_rows][hidden]: as od_forward_residual_of */
	/* These rows on the device, for a runner that works there. */
	struct od_ref x_at, expert_at, y_at;
};

struct od_expert_runner {
	/* It works on the device: only x_at, expert_at and y_at are set, and of the others what it needs. */
	bool on_device;
	/* The attention and the router of layer m are queued. Returns the results that the runner will read on the host
	 * (OD_FETCH_). It may queue its own transfers now; the fetch waits for both. NULL: only those of a call. */
	unsigned (*needs)(struct od_expert_runner *r, uint64_t step, uint32_t m);
	/* Starts the work without waiting for it. *call stays valid until collect has returned. */
	int (*submit)(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err);
	/* After a successful submit of the call: waits until y is filled, or the work that fills y_at is queued. NULL:
	 * submit does that. */
	int (*collect)(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err);
};

struct od_forward;

/* Starts a step of rows[0..n_rows) and checks token ids, positions and context lengths. If nothing was fetched from the
 * previous step, waits for it and reports its error. */
OD_MUST_CHECK int od_forward_begin(struct od_forward *f, uint64_t step, const struct od_row *rows, size_t n_rows,
				   struct od_err *err);

/* Between two layers: rows [0, n_first) and the others go through the next ones as two halves, each with its own
 * cursor. The functions below are about the first half until od_forward_turn_to. In each layer the first half's
 * attention comes before the second's, which may attend to its rows. When both have done all
 * layers, the step is whole again. Not with fixed state, several cards, or weights that do not stay. */
void od_forward_halve(struct od_forward *f, size_t n_first);
void od_forward_turn_to(struct od_forward *f, unsigned half); /* 0 or 1 */

/* A process that holds some of the layers (od_config.held). Before its first layer, unless that is layer 0, and
 * before the logits, if others hold the last layer: the rows that the layer before gave, x [n_rows][hidden]. Waits. */
OD_MUST_CHECK int od_forward_input(struct od_forward *f, const float *x, struct od_err *err);
/* After its last layer: these rows. Waits. */
OD_MUST_CHECK int od_forward_output(struct od_forward *f, const float **x, struct od_err *err);

/* Waits until the current layer's weights are in memory. Does nothing, and is not needed, if all stay there. The layer
 * gives them back when its work is queued. */
OD_MUST_CHECK int od_forward_take(struct od_forward *f, struct od_err *err);

/* Runs the current layer's mixer, which writes the layer's state of the rows. Then, in a MoE layer, the router: routes
 * can be fetched, and od_forward_experts is next. In a dense layer, its network: the cursor moves to the next layer. */
void od_forward_attention(struct od_forward *f);
/* True: the current layer has been routed, od_forward_experts is next. */
bool od_forward_routed(const struct od_forward *f);

/* Submits the current layer's experts to the runner, and queues the shared experts: they are computed between submit
 * and collect. */
OD_MUST_CHECK int od_forward_submit(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err);
/* After it, with the same runner: collects the experts' outputs, combines them in router order and moves to the next
 * layer. On an error of either the cursor stays, and od_forward_submit can be called again. */
OD_MUST_CHECK int od_forward_collect(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err);
/* Both. */
OD_MUST_CHECK int od_forward_experts(struct od_forward *f, struct od_expert_runner *runner, struct od_err *err);

/* the cursor; behind the last one that it holds when it is done */
uint32_t od_forward_layer(const struct od_forward *f);
uint32_t od_forward_m(const struct od_forward *f); /* index of the current layer, which is a MoE layer */
bool od_forward_done(const struct od_forward *f); /* all layers are done */

/* Copies results of od_forward_attention to the host, with one wait for all of them. Results already fetched for this
 * layer are not fetched again. */
#define OD_FETCH_ROUTES 1u /* experts, weights, margins */
#define OD_FETCH_PROBABILITIES 2u
#define OD_FETCH_RESIDUALS 4u
#define OD_FETCH_ROWS 8u /* the experts' input */
OD_MUST_CHECK int od_forward_fetch(struct od_forward *f, unsigned what, struct od_err *err);
/* Before od_forward_experts with this runner: the same for `what` and what the runner needs. */
OD_MUST_CHECK int od_forward_fetch_for(struct od_forward *f, struct od_expert_runner *runner, unsigned what,
				       struct od_err *err);

/* The fetched results of a row. */
const uint16_t *od_forward_experts_of(const struct od_forward *f, size_t row); /* [top_k], best first */
const float *od_forward_weights_of(const struct od_forward *f, size_t row); /* [top_k]: router weights */
/* Distance of the k-th expert's deciding score to the next one's, or of the groups' scores if that is smaller
 * (OD_OP_ROUTE); 1 when all experts are used. */
float od_forward_margin_of(const struct od_forward *f, size_t row);
/* [n_experts]: probabilities of what decides (OD_OP_ROUTE). */
const float *od_forward_probabilities_of(const struct od_forward *f, size_t row);
/* [hidden]: the residual stream after attention, before the norm and before the experts' outputs are added. */
const float *od_forward_residual_of(const struct od_forward *f, size_t row);

/* After the last layer and before the next step: computes logits [n][vocab] of the rows row[0..n), n from 1 to
 * max_logits, on the host; the caller may modify them. The head's weights are read once for all rows. One wait. */
OD_MUST_CHECK int od_forward_logits(struct od_forward *f, const uint32_t *row, size_t n, float **logits,
				    struct od_err *err);

/* Ends the step and commits its rows to their sequences. kept[i]: how many rows of the i-th sequence (in order of first
 * row) to commit, from its first one on; NULL: all. Waits, unless od_forward_logits did; after an error nothing is
 * committed. For models with fixed state, some rows of a sequence can be committed without the others only in steps of
 * at most OD_KEEP_ROWS rows (else OD_ERR_UNSUPPORTED). */
#define OD_KEEP_ROWS 17 /* a row and 16 drafts */
OD_MUST_CHECK int od_forward_end(struct od_forward *f, const uint32_t *kept, struct od_err *err);

#endif
