/* served_sim.h - a cluster in virtual time: what share of expert uses would have been served in time at a stated pace of
 * main, shadow, workers and loads.
 *
 * A use is served in time when its load was ordered before main's router spoke and complete before its rows arrived. Who
 * decides what is loaded where is main's own code (predictions, want_policy, placement), and a worker is the worker's own
 * schedule; only the clock is the simulator's, and main, shadow, loads and the computation of an expert are spans of
 * time. Messages take none: t_main and t_worker include it, as in OD-MoE Eq. 1.
 *
 * main     step begins, then for each layer main_ns to the router's word, the experts on their workers, and behind the
 *          last layer head_ns until the next step begins.
 * shadow   shadow_ns to each layer's PREDICT. Late: it begins with main's step. Early: it goes on with the token that it
 *          chose itself (head_ns of its own later), one step ahead at most, and begins again when that was another than
 *          main's. Where keys and values are aligned after step n, a layer of step n + 1 waits for main's, which are
 *          there when main's router has spoken (not before the first step, whose shadow begins with main).
 * worker   one load at a time, in parts: between two of them another load may be more urgent; one expert computed at a time.
 * Thread: one at a time; the virtual clock is a thread's own. Owner: served_sim_new's caller. */
#ifndef OD_BENCH_SERVED_SIM_H
#define OD_BENCH_SERVED_SIM_H

#include "common/predict/prediction.h"
#include "main-node/cluster/predictions.h"

/* What somebody said about one layer of one step; n 0: nothing. */
struct served_view {
	uint16_t n;
	uint16_t expert[OD_MAX_CANDIDATES];
	float probability[OD_MAX_CANDIDATES];
};

/* The decode steps of one prompt. Arrays are the caller's; [step][layer] unless said otherwise. */
struct served_trace {
	uint32_t n_steps;
	const int32_t *token;		  /* [n_steps]: main's */
	const uint16_t *used;		  /* [step][layer][top_k] */
	const float *probability;	  /* [step][layer][n_experts], of main's routers; NULL: not known */
	const struct served_view *shadow; /* given main's token; NULL: no shadow */
	const int32_t *guess;		  /* [n_steps]: the token that a shadow running ahead assumes; NULL: never ahead */
	const struct served_view *ahead;  /* its predictions where guess is not main's token; NULL: it makes none */
};

struct served_params {
	uint32_t n_moe, n_experts, top_k;
	uint32_t n_workers, group_size; /* group_size 0: top_k */
	unsigned slots;
	uint64_t main_ns, worker_ns, shadow_ns, head_ns, load_ns;
	uint32_t align_kv; /* keys and values are aligned after every so many steps, counted from 1; 0: never */
	bool early;
	double hedge; /* budget of wasted loads over uses; 0: no hedges */
};

struct served_result {
	uint64_t steps, uses;
	uint64_t ordered;	/* before the router's word */
	uint64_t served;	/* ordered, and resident when the rows arrived */
	uint64_t used_loads, extra_loads; /* begun and used; begun and never used */
	uint64_t recalled;	/* uses in the prediction, hedges left out */
	uint64_t hedged;	/* as OD_C_HEDGED */
	uint64_t stalls, stall_ns, total_ns;
};

struct served_sim;

/* *out is NULL unless OD_OK. */
OD_MUST_CHECK int served_sim_new(struct served_sim **out, const struct served_params *p, struct od_err *err);
void served_sim_free(struct served_sim *s); /* NULL ok */

/* One prompt; what the policy has learnt stays for the next. Adds to *r. */
void served_sim_run(struct served_sim *s, const struct served_trace *t, struct served_result *r);

/* OD-MoE Eq. 1 with these groups: how long a load may take. One slot: M main_ns + (M - 1) worker_ns; two or more:
 * M (main_ns + worker_ns). */
uint64_t served_window_ns(const struct served_params *p, unsigned slots);

#endif
