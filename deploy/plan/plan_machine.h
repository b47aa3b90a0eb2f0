/* plan_machine.h - a machine as the planner and the simulator know it: its memory, and how fast it reads, computes and
 * sends.
 *
 * Products follow a roofline (Williams et al., Communications of the ACM 52(4), 2009): with few rows a matrix is
 * limited by the memory that it comes from, with many by arithmetic.
 * Thread: pure functions, plain data. */
#ifndef ODP_PLAN_MACHINE_H
#define ODP_PLAN_MACHINE_H

#include <stdint.h>

struct odp_machine {
	char name[64];
	double memory_bytes; /* the daemon there may use them */
	double read_rate; /* bytes of stored experts a second, from storage to ready-to-compute */
	double speed; /* weights a second, multiplied with one row */
	double many; /* multiply-adds a second, with many rows */
	double link_rate; /* bytes a second of its network port, each way; 0: no limit */
	double latency_ns; /* round trip of a small message */
	double run_ns; /* a worker's fixed time of a RUN; main's and a shadow's of a layer */
	unsigned slots;
	uint64_t cache_bytes; /* 0: no cache */
};

/* Time of a product of so many weights with so many rows; without the fixed time. */
double odp_product_ns(const struct odp_machine *m, double weights, double rows);
/* Time that so many bytes occupy its port, one way. */
double odp_port_ns(const struct odp_machine *m, double bytes);
/* Time to load so many stored bytes. */
double odp_load_ns(const struct odp_machine *m, double bytes);

#endif
