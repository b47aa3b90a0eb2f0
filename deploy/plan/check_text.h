/* check_text.h - od-main's own engine on hosts that have been measured, for texts that od-plan --check writes.
 *
 * Thread: one at a time, the one of the model's compute queue.
 * Owner: odp_text_open ... odp_text_close by the caller. */
#ifndef ODP_CHECK_TEXT_H
#define ODP_CHECK_TEXT_H

#include <stdatomic.h>

#include "main-node/cluster/cluster_opts.h"
#include "main-node/cluster/members.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/model.h"

struct odp_text_hosts {
	struct odm_model *model;
	const struct odm_cluster_opts *cluster; /* its hosts are not used */
	struct od_host *host; /* [n]; borrowed */
	size_t n;
};

struct odp_text {
	struct od_hosts hosts;
	atomic_bool cancel; /* never true */
	struct odm_engine *engine;
	struct odm_members *members; /* the engine's */
};

/* The daemons are free: the meeting is over. odp_text_close is due on errors, too. */
OD_MUST_CHECK int odp_text_open(struct odp_text *t, const struct odp_text_hosts *o, struct od_err *err);
void odp_text_close(struct odp_text *t);

struct odp_text_wish {
	int32_t first; /* tokens of the prompt are this one and the following ones */
	uint64_t tokens; /* at most; fewer if the context is shorter, or time is over */
	uint64_t until_ns;
	struct odm_observer observer;
	void (*step)(void *arg); /* after each piece of work; NULL: none */
	void *arg;
};
/* Writes a greedy text. *figures, if not NULL, are the text's. OD_ERR_RANGE: the context has no room for one. */
OD_MUST_CHECK int odp_text_write(struct odp_text *t, const struct odp_text_wish *wish, struct odm_figures *figures,
				 struct od_err *err);

#endif
