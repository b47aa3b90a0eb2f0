/* served_sim.h - a cluster in virtual time: computes the share of expert uses that are served in time at given speeds
 * of main, shadow, workers and loads.
 *
 * A use is served in time when its load was ordered before main's router chose and complete before its rows arrived.
 * The placement of loads is main's own code (predictions, want_policy, placement), and a worker runs the worker's own
 * schedule; only the clock is simulated, and main, shadow, loads and expert computation are time spans. Messages take
 * no time: t_main and t_worker include it, as in OD-MoE Eq. 1.
 *
 * - main: a step begins; each layer takes main_ns to the router's choice, then the experts run on their workers; after
 *   the last layer head_ns pass until the next step begins.
 * - shadow: shadow_ns to each layer's PREDICT. Late departure: it begins with main's step. Early: it continues with its
 *   own token (after head_ns of its own), at most one step ahead, and starts the step again if main's token differs. If
 *   the KV cache is aligned after step n, a layer of step n + 1 waits for main's rows, which arrive when main's router
 *   has chosen (not before the first step, whose shadow begins with main).
 * - worker: one load at a time, in slices: between two slices a more urgent load may start; it computes one expert at a
 *   time.
 * Thread: one at a time; the virtual clock is a thread's own. Owner: served_sim_new's caller. */
#ifndef OD_BENCH_SERVED_SIM_H
#define OD_BENCH_SERVED_SIM_H

#include "common/predict/prediction.h"
#include "main-node/predict/predictions.h"

/* A prediction for one layer of one step; n 0: none. */
struct served_view {
	uint16_t n;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
};

/* The decode steps of one prompt. Arrays are the caller's; [step][layer] unless said otherwise. */
struct served_trace {
	uint32_t n_steps;
	const int32_t *token; /* [n_steps]: main's */
	const uint16_t *used; /* [step][layer][top_k] */
	const float *probability; /* [step][layer][n_experts], of main's routers; NULL: not known */
	const struct served_view *shadow; /* predictions for main's token; NULL: no shadow */
	/* [n_steps]: the token that a shadow running ahead assumes; NULL: never ahead */
	const int32_t *guess;
	const struct served_view *ahead; /* its predictions where guess is not main's token; NULL: it makes none */
};

struct served_params {
	uint32_t n_moe, n_experts, top_k;
	uint32_t n_workers, group_size; /* group_size 0: top_k */
	unsigned slots;
	uint64_t main_ns, worker_ns, shadow_ns, head_ns, load_ns;
	uint32_t align_kv; /* KV period: steps between alignments, counted from 1; 0: never */
	bool early;
	double hedge; /* budget: wasted loads per use; 0: no hedges */
};

struct served_result {
	uint64_t steps, uses;
	uint64_t ordered; /* before the router chose */
	uint64_t served; /* ordered, and resident when the rows arrived */
	uint64_t used_loads, extra_loads; /* begun and used; begun and never used */
	uint64_t recalled; /* uses in the prediction, hedges left out */
	uint64_t hedged; /* as OD_C_HEDGED */
	uint64_t stalls, stall_ns, total_ns;
};

struct served_sim;

/* *out is NULL unless OD_OK. */
OD_MUST_CHECK int served_sim_new(struct served_sim **out, const struct served_params *p, struct od_err *err);
void served_sim_free(struct served_sim *s); /* NULL ok */

/* Runs one prompt and adds to *r. The policy keeps what it learnt for the next prompt. */
void served_sim_run(struct served_sim *s, const struct served_trace *t, struct served_result *r);

/* The load window of OD-MoE Eq. 1 with these groups. One slot: M main_ns + (M - 1) worker_ns; two or more:
 * M (main_ns + worker_ns). */
uint64_t served_window_ns(const struct served_params *p, unsigned slots);

#endif
