/* app.h - what od-main serve consists of, as its endpoints see it: odm_exchange_app returns it.
 *
 * Thread: the pointers never change while exchanges exist; the headers of their types say who may use them.
 * Owner: server.c. */
#ifndef ODM_APP_H
#define ODM_APP_H

#include "common/base/args.h"
#include "common/base/status.h"
#include "main-node/serve/http/exchange.h"

struct odm_call_memory;
struct odm_cluster_events;
struct odm_constraints;
struct odm_chat_template;
struct odm_engine_thread;
struct odm_health;
struct odm_http;
struct odm_metrics;

struct odm_app {
	struct odm_engine_thread *thread;
	struct odm_http *http;
	struct odm_metrics *metrics;
	struct odm_health *health;
	struct odm_cluster_events *events;
	const char *model; /* its name in answers */
	const char *alias[OD_ARG_LIST_MAX]; /* [n_aliases] its other names */
	size_t n_aliases;
	const struct odm_chat_template *chat; /* NULL: no_chat says why */
	struct od_err no_chat;
	const char *folder; /* the pack's path, which answers must not name */
	struct odm_call_memory *calls;
	struct odm_constraints *constraints;
	bool model_checked; /* requests that name another model are refused */
	int64_t created; /* seconds since 1970 */
	/* For /cluster: */
	uint64_t begun_ns;
	const char *mode, *profile;
	uint64_t queue, parallel; /* requests that may wait; texts at once */
};

static inline struct odm_app *odm_app_of(const struct odm_exchange *x)
{
	return odm_exchange_app(x);
}

#endif
