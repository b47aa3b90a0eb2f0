/* sim.h - a cluster in virtual time: main, shadow, workers, links, loads and computations under one clock, for any
 * number of texts. It says how fast a cluster would be, what it waits for, and which expert uses are served in time.
 *
 * Decisions are the daemons' own code: predictions, want_policy, want_target, placement, layer_pieces and draft_policy
 * of main, schedule and expert_cache of a worker. Time, network and arithmetic are simulated:
 * - A product takes what plan_machine.h says. Main computes a layer's dense part, sends RUNs, computes shared experts,
 *   and waits for RESULTs. A worker computes one operation at a time: the experts of a RUN that are ready together.
 * - Dense weights that main has no memory for are read in the order of a step while it computes, two layers ahead at
 *   most, as dense_stream.h does it.
 * - A worker loads one expert at a time, in slices: between two slices a more urgent load may begin.
 * - A message occupies the sender's port, then the receiver's, each in order of arrival, and arrives half a round trip
 *   later. The port of main is shared by all workers and the shadow. Ports of both directions are independent.
 * - Decode steps have rows of all texts in decode; prompts run in chunks between them, as in batch.c.
 * - Where a prompt's rows bind main's port they go in batches and in two halves, as prompt_rows.h says; main knows its
 *   port's rate from the start.
 * - Main's own predictor names a layer's experts when the router of the layer before has chosen and its RUNs are sent.
 *   Beside a shadow it does so for texts on which the shadow is silent.
 * - The shadow runs as od-shadow does: late or early departure, alignment of tokens and of keys and values, drafts.
 * Figures do not depend on the machine that simulates: equal inputs give equal figures.
 *
 * Thread: one at a time; the virtual clock is a thread's own. Owner: odp_sim_new's caller. */
#ifndef ODP_SIM_H
#define ODP_SIM_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "deploy/plan/plan_machine.h"
#include "deploy/plan/routes.h"

/* One block of a model. Weights are what each row is multiplied with. */
struct odp_sim_block {
	double dense_weights; /* on main, up to the router's choice; in a dense block all of them */
	double shared_weights; /* shared experts: on main while workers compute */
	double context_weights; /* a row's, for each position before it: 2 x heads x head size */
	double state_bytes; /* main sends the shadow so many for a row */
	double stream_bytes; /* main reads so many of its dense weights in each step; 0: they stay in memory */
	bool moe;
};

struct odp_sim_model {
	uint32_t n_layers, n_moe, n_experts, top_k;
	const struct odp_sim_block *block; /* [n_layers]; n_moe of them with moe */
	double head_weights, head_stream_bytes; /* as in odp_sim_block */
	double router_weights; /* a layer's: main's own predictor multiplies with them */
	double expert_weights; /* one expert's */
	uint64_t load_bytes; /* an expert's as it is stored: what a load reads */
	uint64_t slot_bytes; /* an expert's in memory */
	double row_bytes; /* a row's in RUN and RESULT */
	double shadow_factor; /* the shadow's bytes of a weight over main's, so its speed is that much higher; 0: 1 */
	bool recurrent; /* fixed state: a prompt's rows do not go in two halves */
};

bool odp_sim_streams(const struct odp_sim_model *m); /* Does main read dense weights in steps? */

struct odp_cluster {
	struct odp_machine main, shadow;
	bool has_shadow;
	/* The shadow's times instead of its speed's, if any is not 0: a layer's until PREDICT leaves, and after it; its
	 * head's. */
	double shadow_route_ns, shadow_rest_ns, shadow_head_ns;
	const struct odp_machine *worker; /* [n_workers]; borrowed by odp_sim_new */
	uint32_t n_workers, group_size; /* group_size 0: top_k */
	bool one_disk; /* The only worker is on main's machine: its loads and main's reads take turns. */
};

/* ODP_DRAFTS_ALWAYS: od-main does not find out whether they pay (draft_policy.h), which takes hundreds of steps. */
enum odp_drafts { ODP_DRAFTS_OFF, ODP_DRAFTS_ON, ODP_DRAFTS_ALWAYS };

/* How main and the shadow are told to work; as the options of od-main and od-shadow. */
struct odp_sim_opts {
	uint32_t max_texts; /* --parallel */
	uint32_t prefill_rows; /* --prefill-rows */
	uint32_t align_token, align_kv; /* periods, counted from 1; 0: never */
	bool early; /* departure */
	bool next_gate; /* main's own predictor: without a shadow, or while it is silent */
	double hedge; /* budget: wasted loads per use; 0: no hedges */
	enum odp_drafts drafts; /* need has_shadow and early */
	uint32_t draft_tokens; /* always so many; 0: as many as pay */
	const char *trace_path; /* Chrome trace of everything that is run; NULL: none */
};

/* Texts of equal shape. */
struct odp_work {
	uint32_t n_texts;
	uint32_t prompt_tokens; /* 0: texts begin in decode, as if their prompts were done */
	uint32_t tokens; /* each text gets so many in decode steps */
	const uint64_t *arrival_ns; /* [n_texts], ascending; NULL: all at the beginning */
	const struct odp_routes *routes;
};

/* Time that the parts of a machine were busy, and bytes through its port. */
struct odp_busy {
	uint64_t compute_ns, read_ns, up_ns, down_ns; /* up: it sends */
	uint64_t up_bytes, down_bytes;
};

struct odp_sim_figures {
	uint64_t total_ns; /* the run's */
	uint64_t steps, tokens, decode_ns; /* decode steps, the tokens that they gave, the sum of their times */
	uint64_t prompts, ttft_ns, most_ttft_ns; /* prompts that ended; sum and maximum from arrival to first token */
	uint64_t uses; /* in decode, of rows that were kept or undone */
	uint64_t ordered; /* before the router chose */
	uint64_t served; /* ordered, and resident when the rows arrived */
	uint64_t recalled; /* in the prediction, hedges left out */
	uint64_t hedged; /* as OD_C_HEDGED */
	uint64_t used_loads, extra_loads; /* begun and used; begun and never used */
	uint64_t stalls, stall_ns; /* waits for loads: their number; the longest of each layer, summed */
	uint64_t cache_uses, cache_hits;
	uint64_t drafted, accepted;
	uint64_t run_bytes, result_bytes, state_bytes, small_bytes, load_bytes; /* small: WANT, CLOSE, PREDICT, STEP */
	struct odp_busy main, shadow;
	struct odp_busy *worker; /* [n_workers]: the caller's, added to; NULL: not wanted */
};

struct odp_sim;

/* *out is NULL unless OD_OK. */
OD_MUST_CHECK int odp_sim_new(struct odp_sim **out, const struct odp_cluster *cluster,
			      const struct odp_sim_model *model, const struct odp_sim_opts *opts, struct od_err *err);
void odp_sim_free(struct odp_sim *s); /* NULL ok */

/* Fills the caches, before the first run, as long use would: each with experts whose home is at its worker, as long as
 * it has room, then with the uses of so many steps of so many texts. No time passes. */
OD_MUST_CHECK int odp_sim_fill(struct odp_sim *s, const struct odp_routes *routes, uint32_t n_texts, uint32_t steps,
			       struct od_err *err);

/* Runs the work until all its texts have ended, and adds to *f. What main and workers have learnt and cached stays for
 * the next run. */
OD_MUST_CHECK int odp_sim_run(struct odp_sim *s, const struct odp_work *work, struct odp_sim_figures *f,
			      struct od_err *err);

/* The load window of OD-MoE Eq. 1 with these times of a layer on main and of an expert on a worker. One slot: M main_ns
 * + (M - 1) worker_ns; two or more: M (main_ns + worker_ns). */
double odp_window_ns(const struct odp_sim_model *model, uint32_t n_workers, uint32_t group_size, unsigned slots,
		     double main_ns, double worker_ns);

#endif
