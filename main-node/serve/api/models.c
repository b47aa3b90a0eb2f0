/* /v1/models: the model that is served, once for each of its names, in the formats of OpenAI, vLLM, Anthropic and
 * llama-server. */
#include "main-node/engine/engine.h"
#include "main-node/serve/api/api.h"

#include <time.h>

/* llama.h, enum llama_vocab_type */
#define LLAMA_VOCAB_NONE 0
#define LLAMA_VOCAB_SPM 1
#define LLAMA_VOCAB_BPE 2

/* llama-server's: the model itself. */
static json_t *meta_json(const struct odm_engine *engine)
{
	const struct od_pack *pack = odm_engine_pack(engine);
	const struct od_config *config = od_pack_config(pack);
	const struct od_tokenizer *t = odm_engine_tokenizer(engine);

	return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I}", "vocab_type",
			 t == NULL		      ? LLAMA_VOCAB_NONE :
			 od_tokenizer_has_fallback(t) ? LLAMA_VOCAB_SPM :
							LLAMA_VOCAB_BPE,
			 "n_vocab", (json_int_t)config->vocab, "n_ctx_train", (json_int_t)config->ctx_max, "n_embd",
			 (json_int_t)config->hidden, "n_params", (json_int_t)od_pack_weights(pack), "size",
			 (json_int_t)od_pack_bytes(pack));
}

/* The fields of OpenAI's format and vLLM's max_model_len, then those of Anthropic's, then llama-server's. */
static json_t *model_json(const struct odm_app *app, const char *name, const struct odm_engine *engine)
{
	const json_int_t ctx = odm_engine_ctx(engine);
	const time_t created = (time_t)app->created;
	char at[sizeof("2026-02-03T04:05:06Z")] = "";
	struct tm utc;

	if (gmtime_r(&created, &utc) != NULL)
		strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%SZ", &utc);
	return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:o}", "id", name, "object", "model",
			 "created", (json_int_t)app->created, "owned_by", "od-moe", "max_model_len", ctx, "type",
			 "model", "display_name", name, "lifecycle", "active", "created_at", at, "max_input_tokens",
			 ctx, "max_tokens", ctx, "meta", meta_json(engine));
}

static void start_models(struct odm_exchange *x)
{
	const struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;
	const char *last = app->model;
	json_t *list;

	if (odm_api_engine(x, &engine, &e) != OD_OK) {
		odm_exchange_fail(x, &e);
		return;
	}
	list = json_pack("[o]", model_json(app, app->model, engine));
	for (size_t i = 0; i < app->n_aliases; i++) {
		last = app->alias[i];
		json_array_append_new(list, model_json(app, last, engine));
	}
	odm_exchange_reply_json(x, 200,
				json_pack("{s:s, s:o, s:b, s:s, s:s}", "object", "list", "data", list, "has_more", 0,
					  "first_id", app->model, "last_id", last));
}

static void start_model(struct odm_exchange *x)
{
	const struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;

	if (odm_api_engine(x, &engine, &e) == OD_OK && odm_api_is_model(app, odm_exchange_rest(x))) {
		odm_exchange_reply_json(x, 200, model_json(app, odm_exchange_rest(x), engine));
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
