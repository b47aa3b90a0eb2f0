/* cluster_view.h - the engine's view of the cluster during a step: the members of one epoch, their groups, and a data
 * socket to each. Membership changes apply between steps (odm_links_refresh), or within a step that cannot continue
 * otherwise (odm_links_join). A member is in the view once its data port has answered. Only the start waits for that,
 * and a step without any worker.
 *
 * Thread: the engine thread. Owner: the cluster service. */
#ifndef ODM_CLUSTER_VIEW_H
#define ODM_CLUSTER_VIEW_H

#include "main-node/cluster/shadow_link.h"
#include "common/model/forward_open.h"

struct odm_links {
	struct odm_cluster *cluster; /* borrowed */
	struct odm_view view;
	struct odm_groups groups;
	struct odm_deal_times *times; /* [OD_MAX_HOSTS]: of the view's workers */
	bool stale; /* odm_links_avoid_lost has changed the view: it is taken again for the next step */
	struct odm_link *link; /* [OD_MAX_HOSTS], by index in the view */
	struct odm_view now; /* all present members, attached or not */
	struct odm_link
		*joining; /* [n_joining of OD_MAX_HOSTS + 1]: attaching, or attached and not yet in the view; also the
				   * shadow */
	uint32_t n_joining;
	struct odm_shadow_link shadow;
};

OD_MUST_CHECK int odm_links_init(struct odm_links *l, struct odm_cluster *c, const struct od_forward_opts *o,
				 struct od_err *err);
void odm_links_fini(struct odm_links *l);

/* Applies membership changes without waiting: new members begin to attach and enter the view when attached. False: as
 * odm_links_attach. */
bool odm_links_refresh(struct odm_links *l);
/* Fills items [OD_MAX_HOSTS + 2] with what to poll while idle: membership changes, and answers of attaching members.
 * Returns their number. */
size_t odm_links_items(const struct odm_links *l, zmq_pollitem_t *items);
/* Before a layer is dealt: what workers take now. */
void odm_links_time(struct odm_links *l);
/* At the start: waits until all hosts have joined and answered on their data ports; after the deadline, until those
 * that are connected have. OD_ERR_UNREACHABLE if they cannot run every expert; it names the missing ones. A member that
 * sends BYE may return in time. */
OD_MUST_CHECK int odm_links_open(struct odm_links *l, struct od_err *err);
/* True: the incarnation that the link is attached to is still a member. */
bool odm_links_alive(struct odm_links *l, uint32_t worker);
/* Longer than a daemon takes to detect a lost main and to reconnect, and than the first exile (members.c). */
#define ODM_RETURN_WAIT_NS (6 * OD_NS_PER_S)
/* Before a step: applies membership changes and waits for at least one worker. OD_ERR_UNREACHABLE, with the reason of
 * each lost worker, if none comes in time; OD_ERR_CANCELLED when main is to end. After a suspension of main all are
 * lost briefly. */
OD_MUST_CHECK int odm_links_wait(struct odm_links *l, struct od_err *err);
/* Call it in each round of waiting: continues attaching. False: a member did not answer and is distrusted. */
bool odm_links_attach(struct odm_links *l);
/* Within a step, without waiting: present workers outside the view join it, returning ones at their old index; other
 * indices stay. True: at least one joined. Links of lost workers must be closed before. */
bool odm_links_join(struct odm_links *l);
/* Some workers that are dealt experts were late in this step (data_link.h) or were found dead, and others were not. */
bool odm_links_any_lost(const struct odm_links *l);
/* Between layers: the rest of the step goes on without such workers. Indices in the view change. If some experts are in
 * the shares of these only (od-pack --share), they stay, and may be late again: others would be asked for each of these
 * experts first. */
void odm_links_avoid_lost(struct odm_links *l);
/* Any thread: sets and returns the error of a step that has no worker left. */
int odm_links_none_left(struct odm_links *l, struct od_err *err);

#endif
