/* api.h - what the endpoints share: the engine, the model's name, counters. odm_exchange_app returns it.
 *
 * Thread: the pointers never change while exchanges exist; what they point to says who may use it.
 * Owner: server.c. */
#ifndef ODM_API_H
#define ODM_API_H

#include "main-node/serve/api/client_fields.h"
#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/http/exchange.h"
#include "main-node/serve/jobs/generation.h"

struct odm_call_memory;
struct odm_chat_template;
struct odm_http;
struct odm_metrics;
struct odm_health;

struct odm_api {
	struct odm_engine_thread *thread;
	struct odm_http *http;
	struct odm_metrics *metrics;
	struct odm_health *health;
	const char *model; /* its name in answers */
	const struct odm_chat_template *chat; /* NULL: no_chat says why */
	struct od_err no_chat;
	const char *folder; /* of the pack: answers do not name it */
	struct odm_call_memory *calls;
	bool model_checked; /* requests that name another model are refused */
	int64_t created; /* seconds since 1970 */
};

static inline struct odm_api *odm_api_of(const struct odm_exchange *x)
{
	return odm_exchange_app(x);
}

/* Common to all endpoints with a body: parses it, looks at its fields (client_fields.h) and checks `model`. *engine is
 * not NULL when OD_OK. */
OD_MUST_CHECK int odm_api_begin(struct odm_exchange *x, enum odm_api_kind kind, json_t **request,
				const struct odm_engine **engine, struct odm_api_error *e);

extern const struct odm_endpoint odm_completions_endpoint, odm_chat_completions_endpoint;
extern const struct odm_endpoint odm_responses_endpoint, odm_messages_endpoint, odm_count_tokens_endpoint;
extern const struct odm_endpoint odm_models_endpoint, odm_model_endpoint, odm_tokenize_endpoint,
	odm_detokenize_endpoint;
extern const struct odm_endpoint odm_health_endpoint, odm_metrics_endpoint;

#endif
