/* machine.h - another machine of the cluster as its operator sees it: a worker or a shadow.
 *
 * Plain data. Owner: the caller, until odm_machines_fini. */
#ifndef ODM_MACHINE_H
#define ODM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/counters.h"

enum odm_machine_state {
	ODM_MACHINE_SERVING,
	ODM_MACHINE_IDLE, /* connected, and gets no experts: layers end sooner without it */
	ODM_MACHINE_CONNECTING, /* it was not connected yet */
	ODM_MACHINE_LOST,
	ODM_MACHINE_REFUSED, /* an operator has to change something */
	ODM_MACHINE_DISTRUSTED, /* it did not work as it should, and is tried again later */
};

struct odm_machine {
	uint32_t id; /* it stays the same while the machine stays in the hosts file */
	bool is_shadow;
	char name[300]; /* "10.0.0.2:5701" */
	char host[64]; /* its own host name; "": not known */
	enum odm_machine_state state;
	char problem[400]; /* a sentence on what is wrong, without keys and paths; "": nothing */
	const char *remedy; /* a sentence on what to do about it; "": nothing */
	int64_t experts, cached; /* on its disk; kept in memory by its cache; -1: not known, or it has none */
	uint32_t slots;
	uint32_t first_layer, end_layer; /* layers that a shadow holds; end 0: not known */
	char precision[40]; /* a shadow's */
	uint64_t c[OD_N_COUNTERS]; /* as last reported */
};

struct odm_machines {
	struct odm_machine *v;
	size_t n, cap;
};

static inline void odm_machines_fini(struct odm_machines *l)
{
	free(l->v);
	*l = (struct odm_machines){ 0 };
}

#endif
