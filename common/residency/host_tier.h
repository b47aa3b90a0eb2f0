/* host_tier.h - stored bytes of experts in pinned host memory: the tier between a card's own memory and the pack's file
 * (FluxMoE, arXiv 2604.02715, sections 3.2 and 4.2).
 *
 * A load from the file takes an expert's stored bytes / the disk's rate (1 to 7 GB/s) and a check of them (19 GB/s a
 * core). From here the card copies the same bytes at the rate of its link (12 to 55 GB/s); nothing is read, copied by
 * the host or checked: that was done when they came from the file.
 *
 * Where the CPUs can compute on what is stored, experts lie here as they do in an expert's memory (expert_form.h): as
 * planes, or with plain weights if these are stored without a code. An expert may then be computed where it is
 * (od_host_tier_expert). Else the slices of its loads lie one behind the other.
 *
 * Layers have places for equally many experts. The choice does not follow use, because the card keeps the experts that
 * are used most. A place is filled by its expert's first load, which would read the bytes anyway: the start does not
 * wait for the file, and no byte that is found good is read twice. Memory is pinned at once, since the card stops while
 * memory is pinned.
 * Thread: od_host_tier_read from any. Owner: od_host_tier_new's caller; pack and device are borrowed. */
#ifndef OD_RESIDENCY_HOST_TIER_H
#define OD_RESIDENCY_HOST_TIER_H

#include "common/residency/loader.h"

struct od_host_tier;

/* Pins at most most_bytes. If the system pins less, so much must do; what both come to is logged. *out NULL: no expert
 * has a place; od_host_tier_read needs one. d has memory of its own, and is one card. cpu: the host's, borrowed; NULL:
 * it computes none of them. */
OD_MUST_CHECK int od_host_tier_new(struct od_host_tier **out, const struct od_pack *p, struct od_device *d,
				   struct od_device *cpu, uint64_t most_bytes, struct od_err *err);
void od_host_tier_free(struct od_host_tier *t); /* after the load threads; NULL ok */

/* Reads from a place, or from the file: to a place, checked, or to mem and staging as od_shards_read. mem and staging
 * are those of a load to the card. A thread that
 * finds a slice being filled by another one does not wait for it. */
od_read_fn od_host_tier_read; /* arg: the tier */

/* The form in which the CPUs can compute on experts that are here; -1: they cannot. NULL: -1. */
int od_host_tier_form(const struct od_host_tier *t);
/* True: the whole expert is here, and stays; w is it, for the CPUs. Not if od_host_tier_form is -1. */
bool od_host_tier_expert(const struct od_host_tier *t, uint32_t m, uint32_t expert, struct od_expert *w);

/* Stored bytes that were not read from the file, ever. Any thread; NULL: 0. */
uint64_t od_host_tier_served_bytes(const struct od_host_tier *t);

#endif
