/* want_backlog.h - loads that are ordered by WANTs and not over: when each worker could begin another load.
 *
 * A worker loads what it is sent in the order of layers, one expert after the other, and holds as many as it has slots
 * until their layers have run. So a quick worker with one slot is not given every layer's experts, and a slow worker
 * gets what it can load in time.
 * Times are on paper: a layer takes as long as the workers allow at best, not as long as layers took lately. Else
 * layers that wait for a slow worker would leave it the time that it takes, and it would be given as much again.
 * Thread: one at a time. Owner: odm_backlog_init ... odm_backlog_fini by the caller. Times in ns. */
#ifndef ODM_WANT_BACKLOG_H
#define ODM_WANT_BACKLOG_H

#include "common/base/status.h"
#include "main-node/cluster/placement.h"

struct odm_backlog_load {
	uint64_t step;
	uint32_t m, id; /* id: the worker's */
	double load_ns;
	double ordered; /* time on paper at which it was ordered */
};

struct odm_backlog {
	struct odm_backlog_load *load; /* [n of max] in the order of their layers */
	size_t n, max;
	double *through; /* [max_workers] by id: time on paper at which its loads of layers that have run ended */
	uint32_t max_workers;
	/* Scratch. */
	struct odm_backlog_worker *worker; /* [max_workers]: by index in odm_backlog_begin's times */
	uint32_t *index; /* [max_workers], by id: of a worker in these times, if its id is there */
	uint32_t *next; /* [max]: the next load of the same worker */
	/* The layer in which the router chose last, and when. */
	uint64_t step, reached_ns;
	uint32_t m, n_moe;
	/* Means: time between two layers, wait for loads in it, number of loads of a layer; 0: not known. */
	double layer_ns, stall_ns, loads;
	double pace_ns; /* time of a layer on paper */
	double paper_ns; /* time on paper at which the router chose last */
	double now; /* time on paper of the last odm_backlog_begin */
};

/* Ids of workers are below max_workers. */
OD_MUST_CHECK int odm_backlog_init(struct odm_backlog *b, uint32_t max_workers, struct od_err *err);
void odm_backlog_fini(struct odm_backlog *b); /* all zero is fine */

/* The router of (step, m) has chosen: what was ordered up to this layer is over. stall_ns: the longest wait for a load
 * in the layer before. */
void odm_backlog_reached(struct odm_backlog *b, uint64_t step, uint32_t m, uint32_t n_moe, uint64_t stall_ns,
			 uint64_t now);
/* Sets begin, layer, held and freed of the workers times [n_workers] for loads of (step, m). slots [n_workers]. */
void odm_backlog_begin(struct odm_backlog *b, uint64_t step, uint32_t m, const uint32_t *slots,
		       struct odm_deal_times *times, uint32_t n_workers, uint64_t now);
/* Loads of (step, m) are void; odm_backlog_add adds those that are ordered now, after odm_backlog_begin. */
void odm_backlog_clear(struct odm_backlog *b, uint64_t step, uint32_t m);
void odm_backlog_add(struct odm_backlog *b, uint64_t step, uint32_t m, uint32_t id, double load_ns);

#endif
