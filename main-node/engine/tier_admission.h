/* tier_admission.h - whether one more text makes all texts together faster on a machine that holds a part of the
 * experts.
 *
 * The KV cache of a text takes memory from experts, which steps then have to read from the file. Reads go on while
 * others are computed, but a step waits for a part of them. With many rows experts are loaded ahead (layer_stream.h):
 * then it takes no longer than computing and reads take, each by itself (FluxMoE, arXiv 2604.02715, section 4.3, whose
 * rho is their ratio), but for what is read and not chosen. All is learnt from the steps so far: the time that so many
 * rows take to compute, the share of the experts that they choose, also of those that are not kept, how fast reads are,
 * and which part of them steps wait for.
 * Thread: the engine thread. Owner: the caller; plain data, all zero at first. */
#ifndef ODM_TIER_ADMISSION_H
#define ODM_TIER_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "main-node/step/expert_service.h"

struct odm_tier_admission {
	/* Sums over decode steps, of which older ones count less: steps, rows, seconds, and products. */
	double n, rows, s, rows_rows, rows_s;
	double row_s, row_time_share; /* one more row takes so long; share of a step's time that grows with its rows */
	double left; /* share of a layer's experts that one more row does not choose; 0: not known */
	/* Share of the experts that are not kept, and which share of these one more row does not choose: it is larger,
	 * since the cache keeps what is chosen most. 0: not known */
	double missing, missing_left;
	double waited; /* share of the time of reads that steps waited, when none were loaded ahead */
	double read_bytes, read_s; /* sums over reads, of which older ones count less */
};

/* A decode step. */
struct odm_tier_step {
	size_t n_rows;
	uint64_t step_ns, stall_ns; /* the whole step; waiting for reads */
	uint64_t read_bytes; /* reads of experts that it used */
	bool streams; /* experts were loaded ahead (layer_stream.h) */
	/* Shares, means over its layers: experts that its rows chose; those that were not kept; and of these, those
	 * that its rows chose. 0: not known. */
	double chosen, missing, missing_chosen;
};
void odm_tier_admission_step(struct odm_tier_admission *a, const struct odm_tier_step *s);
/* So much was read in the time in which anything was being read. */
void odm_tier_admission_read(struct odm_tier_admission *a, uint64_t bytes, uint64_t ns);

/* Texts that run, and those that wait. */
struct odm_tier_texts {
	uint32_t n_running, n_waiting;
	/* KV cache of all that run, and of one that waits, at equal distances in its time: texts that begin together
	 * need the most memory together. */
	uint64_t running_bytes[ODM_LIFE_POINTS], text_bytes[ODM_LIFE_POINTS];
	uint64_t shared_bytes; /* for experts and KV cache */
	uint64_t all_bytes, stored_bytes; /* all experts in memory, and in the file */
	double row_share; /* share of a layer's experts that a row chooses */
};
/* Estimate of the tokens a second of n texts. */
double odm_tier_admission_rate(const struct odm_tier_admission *a, const struct odm_tier_texts *t, uint32_t n);
/* True: one more text, or several of those that wait, make the rate hardly lower than that of any smaller number; or
 * nothing runs. Before a few steps have been seen: it takes nothing from experts. */
bool odm_tier_admission_admits(const struct odm_tier_admission *a, const struct odm_tier_texts *t);

#endif
