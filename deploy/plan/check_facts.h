/* check_facts.h - what od-plan --check has found out about each machine of a cluster, and what is wrong there.
 *
 * Thread: one at a time. Owner: the caller; plain data. */
#ifndef ODP_CHECK_FACTS_H
#define ODP_CHECK_FACTS_H

#include "main-node/cluster/members_facts.h"

#define ODP_MAX_FINDINGS 12 /* later ones are dropped */

/* Measured; 0: not. Rates are those of plan_machine.h. */
struct odp_rates {
	double fixed_ns; /* each RUN takes it, and each layer of main; else as odp_roofline */
	double speed, many;
	double read_rate; /* bytes of stored experts a second */
	double link_rate; /* bytes a second, each way */
	double latency_ns; /* round trip of a small message, without what the daemon computes */
	double layer_ns; /* main or the shadow takes it with one row */
	double head_ns; /* main's, with one row */
	double own_ns; /* main, a layer: beside its forward pass, workers, and the way to them; a part of fixed_ns */
	double recall, accept; /* a shadow's: words of hosts.h */
	double took_ns; /* to measure all that */
};

enum odp_grade { ODP_NOTE, ODP_WRONG };

struct odp_finding {
	enum odp_grade grade;
	const char *step; /* "name", "port", "key", "memory": where it shows */
	char what[520], remedy[320]; /* remedy "": there is nothing to do */
};

struct odp_checked {
	char name[320]; /* "worker 10.0.0.2:5701", "main" */
	unsigned line; /* in the hosts file; 0: not there */
	struct odm_member_facts facts;
	bool asked; /* it has told facts */
	bool data_port; /* it has answered there */
	bool measured;
	struct odp_rates rates;
	struct odp_finding finding[ODP_MAX_FINDINGS];
	size_t n_findings;
};

#endif
