/* figures.h - statistics of a generation, under the same names in od-main's last lines, in --json, and in od-bench.
 *
 * Thread: plain data. Owner: the caller, until odm_figures_fini. */
#ifndef ODM_FIGURES_H
#define ODM_FIGURES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/counters.h"

#define ODM_MAX_NODES 1024

struct odm_node_figures {
	char name[64]; /* "main", "shadow 10.0.0.2:5700", "worker 0 127.0.0.1:40123" */
	bool alive;
	bool passed_over; /* a worker that gets no experts: layers end sooner without it */
	uint64_t c[OD_N_COUNTERS]; /* its process's, as last reported */
};

struct odm_spread {
	int64_t min, median, max;
};

struct odm_figures {
	uint64_t c[OD_N_COUNTERS]; /* the request's */
	/* time from STEP to OD_C_FIRST_PREDICTIONS; negative: the shadow ran ahead */
	struct odm_spread first_prediction_ns;
	bool cluster, has_predictor;
	struct odm_node_figures *node; /* malloc'd; odm_figures_fini */
	size_t n_nodes;
};

/* Adds a node and returns it for filling in; NULL: out of memory, the node is left out (these are only statistics). */
struct odm_node_figures *odm_figures_add_node(struct odm_figures *f, const char *name, bool alive);
void odm_figures_fini(struct odm_figures *f);

double odm_figures_tok_per_s(const struct odm_figures *f); /* decode; 0 when fewer than two tokens */
double odm_figures_ratio(const struct odm_figures *f, enum od_counter counted, enum od_counter of); /* 0 without any */

/* The load window of OD-MoE (arXiv 2512.03927), Eq. 1, with M groups, from measured times: how long a load may take
 * without a stall. t_main and t_worker: a layer's time on main and for its experts. One slot: M t_main + (M - 1)
 * t_worker; two or more slots: M (t_main + t_worker), if predictions are early enough. 0 when nothing was measured. */
uint64_t odm_figures_main_ns(const struct odm_figures *f);
uint64_t odm_figures_worker_ns(const struct odm_figures *f);
uint64_t odm_figures_window_ns(const struct odm_figures *f, uint64_t slots);

/* One line: tokens, speed, and for a cluster recall, loads and stalls of decode steps. */
void odm_figures_line(const struct odm_figures *f, FILE *out);
/* A summary of several lines. */
void odm_figures_print(const struct odm_figures *f, FILE *out);
/* Adds the fields to an object. */
void odm_figures_json(const struct odm_figures *f, json_t *into);

#endif
