/* members_links.h - what the links to workers and their work cost (link_cost.h), as the engine learns and uses it.
 *
 * Thread: the engine thread; a monitor (members.h). Owner: the cluster. */
#ifndef ODM_MEMBERS_LINKS_H
#define ODM_MEMBERS_LINKS_H

#include "main-node/cluster/members.h"

/* Engine thread: how long n experts with so many rows and bytes (both ways) should take this worker. */
double odm_members_expect(struct odm_members *ms, uint32_t id, enum odm_deal_kind kind, uint32_t n, uint32_t pairs,
			  double bytes);
/* Engine thread: they took this long there, without the link. */
void odm_members_worked(struct odm_members *ms, uint32_t id, enum odm_deal_kind kind, uint32_t n, uint32_t pairs,
			double took_ns);
/* Engine thread: row bytes of RUNs on their way to it; heartbeats wait behind them. */
void odm_members_in_flight(struct odm_members *ms, uint32_t id, uint64_t bytes);
/* Engine thread: its answer for n experts with so many rows is late. took_ns: for so long that nothing excuses it; 0:
 * only by what its link should take. True: it is late indeed, for a heartbeat is, too, or took_ns is given. It is
 * passed over. Raises the epoch. */
bool odm_members_late(struct odm_members *ms, uint32_t id, uint64_t session, enum odm_deal_kind kind, uint32_t n,
		      uint32_t pairs, double took_ns);
/* Engine thread: row bytes, both ways, that its link carries in half a second. */
uint64_t odm_members_window(struct odm_members *ms, uint32_t id);

#endif
