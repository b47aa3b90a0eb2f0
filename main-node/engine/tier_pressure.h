/* tier_pressure.h - follows the memory that other processes leave: what experts and texts have together shrinks at once
 * when less than a reserve is free on the machine or in the control group, and grows back slowly.
 *
 * Thread: one of its own, which calls what the options name. Owner: odm_tier_pressure_start's caller. */
#ifndef ODM_TIER_PRESSURE_H
#define ODM_TIER_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* A decision; plain data. */
struct odm_pressure_look {
	uint64_t most_bytes; /* the budget when nothing presses */
	uint64_t now_bytes; /* the budget now */
	uint64_t kept_bytes; /* so much of it is in use */
	uint64_t free_bytes; /* the machine or the group has so much */
	uint64_t reserve_bytes; /* so much shall stay free */
	bool may_grow; /* nothing pressed for a while */
};

/* The new budget. */
uint64_t odm_pressure_decide(const struct odm_pressure_look *l);

struct odm_tier_pressure_opts {
	uint64_t most_bytes, reserve_bytes;
	uint64_t (*kept)(void *arg); /* bytes in use */
	void (*resize)(void *arg, uint64_t bytes); /* another budget; returns when memory has been given back */
	void *arg;
};

struct odm_tier_pressure;

OD_MUST_CHECK int odm_tier_pressure_start(struct odm_tier_pressure **out, const struct odm_tier_pressure_opts *o,
					  struct od_err *err);
void odm_tier_pressure_stop(struct odm_tier_pressure *p); /* joins; NULL ok */

#endif
