/* share.h - a worker's share: the experts that it needs on its own disk (OD-MoE, arXiv 2512.03927, sections 3.1 and
 * 3.3).
 *
 * In decode main places a layer's experts on the layer's group, so a worker needs all experts of its group's layers. In
 * prefill worker e mod N runs expert e of every layer. This requires that groups keep the same layers: with workers
 * that hold a share they do not rotate (main-node/cluster/placement.h).
 * Thread: pure functions. */
#ifndef OD_PACK_SHARE_H
#define OD_PACK_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_share {
	uint32_t n_workers; /* 0: unknown */
	uint32_t worker; /* from 0, in the order of the hosts file */
	uint32_t n_groups;
};

/* In order of priority: an expert of the group's layers, of the worker's share of prefill, not in the share. */
enum od_share_class { OD_SHARE_LAYER, OD_SHARE_PREFILL, OD_SHARE_NONE };

/* The number of groups of `asked` workers each (0: top_k); 0 when there are no workers. */
uint32_t od_share_groups(uint32_t n_workers, uint32_t asked, uint32_t top_k);
bool od_share_good(const struct od_share *s); /* known and consistent */
enum od_share_class od_share_of(const struct od_share *s, uint32_t m, uint32_t expert); /* od_share_good(s) holds */

/* Parses "2/4": the second worker of four. asked, top_k as above. */
OD_MUST_CHECK int od_share_parse(struct od_share *s, const char *text, uint32_t asked, uint32_t top_k,
				 struct od_err *err);

#endif
