/* cluster_view.h - the engine's picture of the cluster during a step: the members as of its epoch, their groups, and a
 * data socket to each. Membership changes apply between steps (odm_links_refresh), or when a step cannot go on without them
 * (odm_links_join). A member is in the picture when its data port has answered; nothing waits for that but the start, and who
 * has no other worker.
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_CLUSTER_VIEW_H
#define ODM_CLUSTER_VIEW_H

#include "main-node/cluster/shadow_link.h"

struct odm_links {
	struct odm_cluster *cluster; /* borrowed */
	struct odm_view view;
	struct odm_groups groups;
	struct odm_link *link; /* [OD_MAX_HOSTS], by index in the view */
	struct odm_view now;   /* all that are here, attached or not */
	struct odm_link *joining; /* [n_joining of OD_MAX_HOSTS + 1]: being attached, or attached and not in the view yet; the
				   * shadow too */
	uint32_t n_joining;
	struct odm_shadow_link shadow;
};

OD_MUST_CHECK int odm_links_init(struct odm_links *l, struct odm_cluster *c, const struct od_forward_opts *o,
				 struct od_err *err);
void odm_links_fini(struct odm_links *l);

/* Follow the members, without waiting: those that are new begin to attach, and are in the view once they have. False:
 * as odm_links_attach. */
bool odm_links_refresh(struct odm_links *l);
/* What to poll for while there is nothing to do: changes of members, and answers of those that attach. items: room for
 * OD_MAX_HOSTS + 2. Returns how many. */
size_t odm_links_items(const struct odm_links *l, zmq_pollitem_t *items);
/* At the start everybody must be there, and have answered on the data port, in the time for that: OD_ERR_UNREACHABLE names who
 * is not. One that does not answer there ends the start at once, one that says goodbye may come back. */
OD_MUST_CHECK int odm_links_open(struct odm_links *l, struct od_err *err);
/* The incarnation that the link is attached to is still a member. */
bool odm_links_alive(struct odm_links *l, uint32_t worker);
/* Longer than a daemon needs to notice and to be found again, and than the first time of doing without it (members.c). */
#define ODM_RETURN_WAIT_NS (6 * OD_NS_PER_S)
/* Before a step: follow the members, and wait until there is a worker. OD_ERR_UNREACHABLE with the reason of each that is gone
 * when none comes in time, OD_ERR_CANCELLED when main is to end. After a pause of main's own all are gone for a moment. */
OD_MUST_CHECK int odm_links_wait(struct odm_links *l, struct od_err *err);
/* Of each turn of waiting: goes on with those that attach. False: one did not answer, and is distrusted. */
bool odm_links_attach(struct odm_links *l);
/* Within a step, and without waiting: workers that are here, but not in the view, join it, those that were lost at their old index; indices of the
 * others stay. True: at least one did. A link whose worker was lost must be closed by then. */
bool odm_links_join(struct odm_links *l);
/* The error of a step that no worker is left for; its code. */
int odm_links_none_left(struct odm_links *l, struct od_err *err);

#endif
