/* check_report.h - prints what od-plan --check has found: a table of what the daemons told, a table of what was
 * measured, and what is wrong; or all of it as JSON.
 *
 * Thread: one at a time. Owner: nothing is kept. */
#ifndef ODP_CHECK_REPORT_H
#define ODP_CHECK_REPORT_H

#include <stdio.h>

#include "deploy/plan/check_facts.h"

struct odp_check_report {
	const char *hosts_path, *model, *fingerprint, *profile, *kernel_class;
	double memory_bytes; /* main's free memory */
	uint64_t n_experts; /* all layers together have so many */
	const struct odp_checked *main; /* this machine, with what concerns the cluster as a whole */
	const struct odp_checked *host; /* [n_hosts], as in the hosts file */
	size_t n_hosts;
	bool good;
};

void odp_check_print(FILE *out, const struct odp_check_report *r);
/* False: there is no memory. */
bool odp_check_print_json(FILE *out, const struct odp_check_report *r);

#endif
