/* api.h - the endpoints of the APIs, and how a request of each begins.
 *
 * Thread: a request thread, or the HTTP thread. Owner: the endpoints are constant. */
#ifndef ODM_API_H
#define ODM_API_H

#include "main-node/serve/api/client_fields.h"
#include "main-node/serve/app.h"
#include "main-node/serve/http/exchange.h"

struct odm_engine;

/* *engine is NULL unless OD_OK: the model is loaded. */
OD_MUST_CHECK int odm_api_engine(struct odm_exchange *x, const struct odm_engine **engine, struct odm_api_error *e);

/* The model has this name: its own or an alias, with Ollama's tag ":latest" or without. */
bool odm_api_is_model(const struct odm_app *app, const char *name);

/* Common to all endpoints with a body: parses it, looks at its fields (client_fields.h) and checks `model`. *engine is
 * not NULL when OD_OK. */
OD_MUST_CHECK int odm_api_begin(struct odm_exchange *x, enum odm_api_kind kind, json_t **request,
				const struct odm_engine **engine, struct odm_api_error *e);

/* Each endpoint is defined in the file of its path: completion.c, chat_completion.c, responses.c, anthropic.c,
 * models.c, tokenize.c, props.c, ollama.c, ollama_models.c, refused.c, choice_scores.c, infill.c. */
extern const struct odm_endpoint odm_completions_endpoint, odm_chat_completions_endpoint, odm_infill_endpoint;
extern const struct odm_endpoint odm_responses_endpoint, odm_messages_endpoint, odm_count_tokens_endpoint;
extern const struct odm_endpoint odm_choices_endpoint;
extern const struct odm_endpoint odm_models_endpoint, odm_model_endpoint, odm_tokenize_endpoint,
	odm_detokenize_endpoint;
extern const struct odm_endpoint odm_props_endpoint, odm_slots_endpoint;
extern const struct odm_endpoint odm_ollama_chat_endpoint, odm_ollama_generate_endpoint, odm_ollama_tags_endpoint,
	odm_ollama_ps_endpoint, odm_ollama_show_endpoint, odm_ollama_version_endpoint;
#define ODM_N_REFUSED 16
/* Other servers have these; nothing here does them. */
extern const struct odm_endpoint odm_refused_endpoints[ODM_N_REFUSED];

#endif
