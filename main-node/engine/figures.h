/* figures.h - what a generation cost: the same names in od-main's last lines, in --json, and in od-bench.
 *
 * Thread: plain data. */
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
	uint64_t c[OD_N_COUNTERS]; /* of its process, as it last said */
};

struct odm_spread {
	int64_t min, median, max;
};

struct odm_figures {
	uint64_t c[OD_N_COUNTERS];	    /* of the request */
	struct odm_spread first_prediction_ns; /* from STEP, of OD_C_FIRST_PREDICTIONS; negative: the shadow had run ahead */
	bool cluster, has_predictor;
	struct odm_node_figures *node; /* malloc'd; odm_figures_fini */
	size_t n_nodes;
};

/* Adds a node and returns it, to add more; NULL: out of memory, it is left out (they are only figures). */
struct odm_node_figures *odm_figures_add_node(struct odm_figures *f, const char *name, bool alive);
void odm_figures_fini(struct odm_figures *f);

double odm_figures_tok_per_s(const struct odm_figures *f); /* decode; 0 when fewer than two tokens */
double odm_figures_ratio(const struct odm_figures *f, enum od_counter part, enum od_counter of); /* 0 without any */

/* The window of OD-MoE Eq. 1 with M groups, from what was measured: how long a load may take without a stall. t_main and
 * t_worker are a layer's time on main and for its experts. One slot: M t_main + (M - 1) t_worker; two or more:
 * M (t_main + t_worker), given enough lead. 0 when nothing was measured. */
uint64_t odm_figures_main_ns(const struct odm_figures *f);
uint64_t odm_figures_worker_ns(const struct odm_figures *f);
uint64_t odm_figures_window_ns(const struct odm_figures *f, uint64_t slots);

/* A few lines for a person. */
void odm_figures_print(const struct odm_figures *f, FILE *out);
/* Adds the fields to an object. */
void odm_figures_json(const struct odm_figures *f, json_t *into);

#endif
