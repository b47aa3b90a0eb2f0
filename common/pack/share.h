/* share.h - which experts of a model one worker of a cluster needs on its own disk (design section 3, Placement and
 * Prefill; OD-MoE, arXiv 2512.03927, sections 3.1 and 3.3).
 *
 * Main deals a layer's experts over the layer's group, so a worker needs all of them in the layers of its group; and in
 * prefill expert e of every layer is computed by worker e mod N. This holds as long as the start of the groups does not
 * rotate: with workers that hold a share it never does (main-node/cluster/placement.h).
 * Thread: pure functions. */
#ifndef OD_PACK_SHARE_H
#define OD_PACK_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct od_share {
	uint32_t n_workers; /* 0: not known */
	uint32_t worker;    /* from 0, in the order of the hosts file */
	uint32_t n_groups;
};

/* In the order in which they are worth having. */
enum od_share_class { OD_SHARE_LAYER, OD_SHARE_PREFILL, OD_SHARE_NONE };

/* M of N workers in groups of asked (0: top_k); 0 when there are no workers. */
uint32_t od_share_groups(uint32_t n_workers, uint32_t asked, uint32_t top_k);
bool od_share_good(const struct od_share *s); /* known, and its numbers fit together */
enum od_share_class od_share_of(const struct od_share *s, uint32_t m, uint32_t expert); /* s is good */

/* "2/4": the second worker of four. asked, top_k as above. */
OD_MUST_CHECK int od_share_parse(struct od_share *s, const char *text, uint32_t asked, uint32_t top_k,
				 struct od_err *err);

#endif
