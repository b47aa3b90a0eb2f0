/* check_findings.h - judges what the hosts of a cluster have told: what is wrong, where, and what to do about it.
 *
 * Thread: one at a time. Owner: nothing is kept. */
#ifndef ODP_CHECK_FINDINGS_H
#define ODP_CHECK_FINDINGS_H

#include "deploy/plan/check_facts.h"

/* The text is a sentence with the expected and the found value. */
void odp_find(struct odp_checked *c, enum odp_grade grade, const char *step, const char *remedy, const char *fmt, ...)
	OD_PRINTF(5, 6);
bool odp_is_wrong(const struct odp_checked *c);

struct odp_expected {
	const struct od_config *config;
	const char *kernel_class;
	uint64_t stored_bytes, slot_bytes; /* an expert takes them on disk and, at most, in memory */
};

/* From the facts of one host, which is connected, refuses, or has not come. */
void odp_judge(struct odp_checked *c, const struct odp_expected *x);
/* Daemons of one machine must fit into its memory together. */
void odp_judge_memory(struct odp_checked *c, size_t n, const struct odp_expected *x);
/* Says which of main's host and the hosts [n] are one machine. */
void odp_judge_machines(struct odp_checked *here, struct odp_checked *c, size_t n);

/* Memory that host i can have: its limit, or its part where the daemons of its machine have larger ones than there is
 * memory. */
uint64_t odp_memory_of(const struct odp_checked *c, size_t n, size_t i);
/* Daemons of this machine leave so much of its free_bytes. */
uint64_t odp_memory_left(const struct odp_checked *here, const struct odp_checked *c, size_t n, uint64_t free_bytes);

/* Memory that a daemon will take: its limit, or what its slots and its cache come to. */
uint64_t odp_memory_need(const struct odp_checked *c, const struct odp_expected *x);
/* "2 h 5 min" in buf; returns buf. */
const char *odp_span_text(uint64_t ns, char *buf, size_t size);

#endif
