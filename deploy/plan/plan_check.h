/* plan_check.h - od-plan --check: asks the daemons of a hosts file, measures them and this machine, says what is wrong
 * where, and can write what it measured into the hosts file.
 *
 * It connects as od-main does. Daemons that serve a main are asked nothing and not disturbed.
 * Thread: main(). Owner: nothing is kept. */
#ifndef ODP_PLAN_CHECK_H
#define ODP_PLAN_CHECK_H

#include <stdio.h>

#include "common/net/keys.h"
#include "main-node/engine/engine.h"

struct odp_check_opts {
	const char *hosts_path;
	struct odm_engine_opts engine; /* as od-main's */
	struct od_keys_args keys;
	bool write, json;
};

/* Writes the report to out. *good: nothing is wrong. Not OD_OK: the check could not be made. */
OD_MUST_CHECK int odp_check(const struct odp_check_opts *o, FILE *out, bool *good, struct od_err *err);

#endif
