/* worker_times.h - how long a worker takes to load and to run experts, from what its RESULTs say.
 *
 * Three times are measured: of a loaded byte, of an expert with few rows (its weights are read once, whatever the
 * rows), and of a row of an expert with many. Each is the median of the newest samples, one a layer, so that an outlier
 * counts for nothing and a worker that becomes four times slower shows after four RUNs.
 * A worker that gets no work gives no samples. So an estimate that is worse than the quickest worker's improves with
 * time until the worker is tried again, so slowly that such trials cost less than 2% for all workers together. If the
 * trial goes badly, the old estimate is back.
 * Thread: one at a time (members.c: under its lock). Owner: the caller; plain data. Times in ns. */
#ifndef ODM_WORKER_TIMES_H
#define ODM_WORKER_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ODM_TIME_SAMPLES 7
#define ODM_ROWS_OF_RUN 8 /* until both are known, so many rows of an expert take as long as its weights */

enum odm_time {
	ODM_TIME_LOAD, /* a byte's */
	ODM_TIME_RUN, /* an expert's with few rows */
	ODM_TIME_ROW, /* a row's, of an expert with many */
	ODM_N_TIMES
};

/* All zero: nothing is known. */
struct odm_time_samples {
	double ns[ODM_TIME_SAMPLES]; /* the newest ones, a ring */
	uint32_t n;
	uint64_t last_ns; /* time of the newest sample that was not clearly shorter than the median */
};

struct odm_worker_times {
	struct odm_time_samples of[ODM_N_TIMES];
	struct odm_time_samples many; /* time of a whole expert with many rows */
};

/* Times of an expert on some worker: its load, its run with few rows, and each row of many. A run of R rows takes
 * max(run, R * row). */
struct odm_expert_times {
	double load, run, row;
};

/* A worker's report of a layer, summed over its experts. */
struct odm_layer_report {
	uint32_t n_experts, n_pairs; /* pairs of expert and row */
	double compute_ns, load_ns;
	uint32_t n_loads;
	uint64_t loaded_bytes;
};

void odm_times_add(struct odm_worker_times *t, const struct odm_layer_report *r, uint64_t now);
/* It takes so many times what it should, took_ns an expert of so many bytes, and has not answered. Any of its times may
 * be the reason: they all grow, but not beyond took_ns. */
void odm_times_late(struct odm_worker_times *t, double times, double took_ns, double bytes, uint64_t now);

bool odm_time_known(const struct odm_time_samples *s); /* there are enough samples to compare it with others */
/* Many rows take clearly longer than few, or the time of few is not known yet. Else a row's time is only an upper
 * bound, because reading the weights took most of it. */
bool odm_times_rows_bind(const struct odm_worker_times *t);
/* The median; 0: there is no sample. */
double odm_time_median(const struct odm_time_samples *s);
/* The median of the samples' distances from their median. */
double odm_time_spread(const struct odm_time_samples *s);
/* The estimate to deal by: the median, less what the time without samples has taken off. best: the quickest worker's
 * median. units: bytes or rows of an expert, of which a sample is one. n_workers: that share the cost of trials. */
double odm_time_estimate(const struct odm_time_samples *s, double best, double units, uint32_t n_workers, uint64_t now);

/* Before anything is measured. */
struct odm_expert_times odm_expert_times_guess(double weights);
double odm_expert_run_ns(const struct odm_expert_times *t, double rows);

#endif
