/* host_rates.h - which experts of a layer the CPUs compute in host memory while the card loads and computes the others:
 * decided for each layer from measured times. (llama.cpp's --n-cpu-moe and KTransformers leave this to the user.)
 *
 * Thread: the engine thread. Owner: the caller; all zero at the start. */
#ifndef ODM_HOST_RATES_H
#define ODM_HOST_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ODM_HOST_ROWS 64 /* a step of more rows is the card's: a load is short beside what it computes */
#define ODM_HOST_CLASSES 7 /* classes by rows: 1, 2, 4, ... ODM_HOST_ROWS */

struct odm_host_rates {
	double load_ns; /* one of several experts that are loaded to the card at once takes this; 0: not known */
	double compute_ns[ODM_HOST_CLASSES]; /* the CPUs take this for one expert, by its rows; 0: not known */
};

/* An expert in host memory that the card lacks. */
struct odm_host_candidate {
	uint32_t n_rows; /* at least 1 */
	double gain; /* as od_schedule_gains; less than INFINITY */
	bool on_host; /* set by odm_host_rates_choose */
};

/* n_loads: other experts of the layer that the card lacks. Returns how many candidates are computed on the host. */
size_t odm_host_rates_choose(struct odm_host_rates *r, struct odm_host_candidate *c, size_t n, size_t n_loads);
/* The CPUs have computed n experts, which had n_rows rows together. */
void odm_host_rates_computed(struct odm_host_rates *r, size_t n, size_t n_rows, uint64_t ns);
/* The card has loaded n experts of a layer from host memory: so long after they were asked for, the last one came. */
void odm_host_rates_loaded(struct odm_host_rates *r, size_t n, uint64_t ns);

#endif
