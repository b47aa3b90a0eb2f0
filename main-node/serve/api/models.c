/* /v1/models: the model that is served, in the formats of OpenAI, vLLM and Anthropic. */
#include "main-node/engine/engine.h"
#include "main-node/serve/api/api.h"

#include <string.h>
#include <time.h>

/* The fields of OpenAI's format and vLLM's max_model_len, then those of Anthropic's. */
static json_t *model_json(const struct odm_app *app, const struct odm_engine *engine)
{
	const json_int_t ctx = odm_engine_ctx(engine);
	const time_t created = (time_t)app->created;
	char at[sizeof("2026-02-03T04:05:06Z")] = "";
	struct tm utc;

	if (gmtime_r(&created, &utc) != NULL)
		strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%SZ", &utc);
	return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:I}", "id", app->model, "object", "model",
			 "created", (json_int_t)app->created, "owned_by", "od-moe", "max_model_len", ctx, "type",
			 "model", "display_name", app->model, "lifecycle", "active", "created_at", at,
			 "max_input_tokens", ctx, "max_tokens", ctx);
}

static void start_models(struct odm_exchange *x)
{
	const struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;

	if (odm_api_engine(x, &engine, &e) != OD_OK)
		odm_exchange_fail(x, &e);
	else
		odm_exchange_reply_json(x, 200,
					json_pack("{s:s, s:[o], s:b, s:s, s:s}", "object", "list", "data",
						  model_json(app, engine), "has_more", 0, "first_id", app->model,
						  "last_id", app->model));
}

static void start_model(struct odm_exchange *x)
{
	const struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;

	if (odm_api_engine(x, &engine, &e) == OD_OK && strcmp(odm_exchange_rest(x), app->model) == 0) {
		odm_exchange_reply_json(x, 200, model_json(app, engine));
		return;
	}
	if (engine != NULL) {
		odm_api_fail(&e, 404, "model", OD_ERR_MISSING, "there is no model \"%.200s\" here",
			     odm_exchange_rest(x));
		e.code = "model_not_found";
	}
	odm_exchange_fail(x, &e);
}

const struct odm_endpoint odm_models_endpoint = { .method = "GET", .path = "/v1/models", .start = start_models };
const struct odm_endpoint odm_model_endpoint = { .method = "GET", .path = "/v1/models/*", .start = start_model };
