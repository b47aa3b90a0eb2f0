/* figures.h - what a generation cost: the same names in od-main's last lines, in --json, and in od-bench.
 *
 * Thread: plain data. */
#ifndef ODM_FIGURES_H
#define ODM_FIGURES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/cache/cache_state.h"

#define ODM_MAX_NODES 1024

struct odm_node_figures {
	char name[64]; /* "main", "shadow 10.0.0.2:5700", "worker 0 127.0.0.1:40123" */
	uint64_t peak_rss_bytes;
	bool alive;
	bool spool; /* a worker that pulls its experts; then: */
	uint64_t spool_bytes, spool_goal, pulled_bytes; /* on its disk; meant to be; pulled since it started */
};

struct odm_figures {
	uint64_t prompt_tokens, tokens; /* tokens: generated */
	uint64_t prefill_ns, ttft_ns;	/* ttft: request to first token */
	uint64_t decode_ns;		/* first token to last */
	/* Decode steps only; 0 in resident mode. */
	uint64_t expert_uses;		/* (row, layer, rank) */
	uint64_t predicted_uses;	/* uses with a prediction, in time or late */
	uint64_t recalled_uses;		/* of those, the expert was in the predicted set: recall (OD-MoE Eq. 2, 3) */
	uint64_t stood_in_uses;		/* uses that main's own predictor had predicted while the shadow was silent; they */
	uint64_t stood_in_recalled;	/* are none of those above. Of them, the expert was in the predicted set */
	uint64_t late_predictions;	/* rows of a layer whose prediction came after the router's word */
	uint64_t missing_predictions;	/* rows of a layer that never got one */
	uint64_t served_in_time;	/* uses whose load had been ordered before the router's word and was complete when */
					/* the rows arrived */
	uint64_t decode_loads;		/* loads that were used, and */
	uint64_t extra_loads;		/* begun and never used, by the workers' counters; */
	uint64_t begun_loads;		/* both, by the workers' counters */
	uint64_t hedged, hedge_uses;	/* experts wanted besides the prediction; those of them that were needed */
	uint64_t stalls;		/* experts that were not resident when their rows arrived */
	uint64_t stall_ns;		/* time main waited for loads: the longest wait of each layer */
	uint64_t decode_layers;		/* layers of decode steps */
	uint64_t experts_ns;		/* of those: from the router's word to the last output, stalls included */
	uint64_t cache_uses;		/* experts that workers with a cache ran in decode steps, and */
	uint64_t cache_hits[OD_CACHE_STATES]; /* how many of them they had kept in each state */
	uint64_t loads, loaded_bytes;	/* by workers, prefill included */
	uint64_t load_ns;		/* sum over loads */
	uint64_t worker_compute_ns, worker_runs;
	uint64_t worker_rows;		/* rows that went to workers in RUNs */
	uint64_t recovered_runs;	/* RUNs sent again after a worker died */
	uint64_t state_bytes;		/* KV rows sent to the shadow */
	uint64_t align_bytes;		/* all that is sent to keep it aligned, those and headers included, but for */
	uint64_t asked_bytes;		/* answers to what it asked for: prompts, and all there was after a restart */
	uint64_t first_predictions;	/* steps that got a prediction, and from STEP to the first one; negative when */
	int64_t first_prediction_min_ns, first_prediction_median_ns, first_prediction_max_ns; /* it had run ahead */
	uint64_t lead_layers;		/* at routers predicted in time: layers to the newest prediction; their sum, and */
	uint64_t lead_routers;		/* how many routers */
	uint32_t workers, groups, slots; /* slots: of the worker with the fewest */
	bool cluster, has_predictor;
	struct odm_node_figures *node; /* malloc'd; odm_figures_fini */
	size_t n_nodes;
};

/* Adds a node and returns it, to add more; NULL: out of memory, it is left out (they are only figures). */
struct odm_node_figures *odm_figures_add_node(struct odm_figures *f, const char *name, uint64_t peak_rss_bytes,
					      bool alive);
void odm_figures_fini(struct odm_figures *f);

double odm_figures_tok_per_s(const struct odm_figures *f); /* decode; 0 when fewer than two tokens */
double odm_figures_align_bytes_per_token(const struct odm_figures *f); /* of a decode step */
double odm_figures_lead_layers(const struct odm_figures *f);	       /* mean; 0 without routers */
double odm_figures_recall(const struct odm_figures *f);	   /* 0..1; 0 when nothing was predicted */
double odm_figures_served(const struct odm_figures *f);	   /* 0..1, of all uses */
double odm_figures_extra(const struct odm_figures *f);	   /* extra loads over uses */
double odm_figures_cached(const struct odm_figures *f, enum od_cache_state s); /* 0..1, of the cache's uses */

/* The window of OD-MoE Eq. 1 with M groups, from what was measured: how long a load may take without a stall. t_main and
 * t_worker are a layer's time on main and for its experts. One slot: M t_main + (M - 1) t_worker; two or more:
 * M (t_main + t_worker), given enough lead. 0 when nothing was measured. */
uint64_t odm_figures_main_ns(const struct odm_figures *f);
uint64_t odm_figures_worker_ns(const struct odm_figures *f);
uint64_t odm_figures_window_ns(const struct odm_figures *f, uint32_t slots);

/* A few lines for a person. */
void odm_figures_print(const struct odm_figures *f, FILE *out);
/* Adds the fields to an object. */
void odm_figures_json(const struct odm_figures *f, json_t *into);

#endif
