/* link_cost.h - what a worker's link costs, and which workers cannot help in a layer for their links.
 *
 * A link that is slow or loses packets can make every layer end later. Two estimates are kept for each worker: the
 * round trip (heartbeats) and the time of a byte (probes: a padded heartbeat right behind a bare one). With these, and
 * the time of the work, a layer is scheduled on paper for the best worker, the two best, and so on; those that could
 * not answer with one expert until then are passed over. The others get what they can do in time (placement.h). A
 * decode step and a prompt differ in bytes and work, so there are two answers.
 * Times of the work itself are in worker_times.h.
 * Estimates ignore rare outliers and small differences: workers of one LAN count as equal, however busy the machines
 * are.
 * Thread: one at a time (members.c: under its lock). Owner: the caller; plain data. Times in ns. */
#ifndef ODM_LINK_COST_H
#define ODM_LINK_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "main-node/cluster/worker_times.h"

#define ODM_LATENCIES 8
#define ODM_BYTE_TIMES 6
#define ODM_LINK_ECHOES 16 /* PINGs on their way */

/* The model's: bytes of a row on the wire, and what an expert takes the quickest worker. */
struct odm_layer_shape {
	double row_bytes;
	struct odm_expert_times expert;
	uint32_t top_k, n_experts, group_size; /* as asked for; 0: top_k */
};

enum odm_deal_kind { ODM_DEAL_FEW, ODM_DEAL_MANY, ODM_N_DEALS }; /* a decode step's experts; a prompt's */

struct odm_link_echo {
	uint64_t sequence, sent_ns;
	uint32_t bytes; /* padding, each way; 0: a heartbeat */
	bool waits; /* it was sent behind rows of RUNs, so its round trip says nothing about the link */
};

struct odm_link_cost {
	struct odm_link_echo echo[ODM_LINK_ECHOES]; /* unanswered, oldest first */
	uint32_t n_echoes;
	double latency[ODM_LATENCIES], byte[ODM_BYTE_TIMES]; /* the newest ones, rings */
	uint32_t n_latencies, n_bytes; /* measured in this session */
	/* Number of byte times measured since it is used; before that probes of several workers share main's port. */
	uint32_t n_alone;
	uint64_t begun_ns, probed_ns;
	uint32_t probe_bytes;
	double bare_ns; /* round trip of the PING without padding just before the probe; 0: not answered */
	bool has_probe; /* one is on its way */
	bool measured; /* well enough for its worker to be used */
	uint64_t run_bytes; /* rows on their way through main's port, if these are many */
	uint64_t given_up_ns; /* when the step of these rows was given up; 0: it was not */
	/* The decision. */
	bool passed[ODM_N_DEALS]; /* gets no experts of this kind; [ODM_DEAL_FEW]: none at all */
	bool worth[ODM_N_DEALS]; /* scratch */
	bool fresh; /* a probe was answered since the last decision */
	unsigned good; /* number of decisions in a row, each after a new probe, that it should be used */
	bool unlike; /* its link is clearly worse than the best one */
};

/* A session begins. another: in a new process, of which nothing is known. */
void odm_link_cost_begin(struct odm_link_cost *c, uint64_t now, bool another);
void odm_link_cost_sent(struct odm_link_cost *c, uint64_t sequence, uint32_t bytes, uint64_t now);
/* So many bytes of rows are on their way through main's port, in front of PINGs. */
void odm_link_cost_in_flight(struct odm_link_cost *c, uint64_t bytes);
/* The step of these rows was given up, so their end is not reported: they count as in flight for a while. */
void odm_link_cost_give_up(struct odm_link_cost *c, uint64_t now);
/* The answer to that PING, with this much padding. */
void odm_link_cost_echo(struct odm_link_cost *c, uint64_t sequence, size_t bytes, uint64_t now);
/* Bytes of the probe that is due; 0: none is. */
uint32_t odm_link_cost_due(const struct odm_link_cost *c, uint64_t now);
/* Sets measured when enough is known, or when it takes too long. */
void odm_link_cost_check(struct odm_link_cost *c, uint64_t now);
/* How much longer the oldest unanswered PING has been on its way than the link explains. */
double odm_link_cost_lag(const struct odm_link_cost *c, uint64_t now);
/* A worker as it is compared with the others: what it costs beyond the quickest. */
struct odm_link_excess {
	double latency, byte;
	double stays[ODM_N_DEALS]; /* factor of latency and byte: above 1 for a worker that is passed over now */
	double key; /* scratch */
	uint32_t index;
};
/* Sets passed of the connected workers. scratch [n]. True: it has changed for one of them. */
bool odm_link_cost_choose(const struct odm_layer_shape *s, struct odm_link_cost **worker, uint32_t n,
			  struct odm_link_excess *scratch, uint64_t now);
/* An answer is late, and so are heartbeats: passed over at once, until probes say otherwise. */
void odm_link_cost_late(struct odm_link_cost *c);

double odm_link_cost_latency(const struct odm_link_cost *c);
double odm_link_cost_byte(const struct odm_link_cost *c);

#endif
