/* members_links.h - what the links to workers cost (link_cost.h), as the engine learns and uses it.
 *
 * Thread: the engine thread; a monitor (members.h). Owner: the cluster. */
#ifndef ODM_MEMBERS_LINKS_H
#define ODM_MEMBERS_LINKS_H

#include "main-node/cluster/members.h"

/* Engine thread: row bytes of RUNs on their way, if these are many; all heartbeats wait behind them. */
void odm_members_in_flight(struct odm_members *ms, uint64_t bytes);
/* Engine thread: their step was given up, and nothing will be said about these bytes. */
void odm_members_give_up(struct odm_members *ms);
/* Engine thread: the worker has not answered for n experts in `times` the time that it should take. took_ns: the time
 * it has had; its times grow, and it gets less work. took_ns 0: only its link may be to blame: if a heartbeat is late,
 * too, it gets no work. True: it counts as late. May raise the epoch. */
bool odm_members_late(struct odm_members *ms, uint32_t id, uint64_t session, uint32_t n, double took_ns, double times);
/* Engine thread: these workers [n] together have or get every expert. */
bool odm_members_have_all(struct odm_members *ms, const uint32_t *id, uint32_t n);
/* Row bytes that may be on their way to a worker whose link takes byte_ns for each of them, both ways. */
uint64_t odm_link_window(double byte_ns);
/* Engine thread: the same, of its link as it was measured. */
uint64_t odm_members_window(struct odm_members *ms, uint32_t id);

#endif
