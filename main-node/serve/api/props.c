/* /props and /slots: what llama-server tells of itself, as far as it is true here. Nothing of users' texts. */
#include "common/base/version.h"
#include "common/text/utf8_text.h"
#include "main-node/chat/chat_template.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/sampling_config.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/jobs/engine_thread.h"
#include "main-node/serve/jobs/token_text.h"

#include <stdlib.h>
#include <string.h>

/* The settings of a request that gives none. */
static json_t *params_json(const struct odm_engine *engine)
{
	struct od_sampler_opts s;
	struct od_err err;

	if (odm_sampling_defaults(&s, odm_engine_pack(engine), &err) != OD_OK)
		return json_object();
	return json_pack("{s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:[], s:b, s:b}", "n_predict", -1,
			 "max_tokens", -1, "temperature", s.temperature, "top_k", (int)s.top_k, "top_p", s.top_p,
			 "min_p", s.min_p, "repeat_penalty", s.repetition_penalty, "repeat_last_n", -1,
			 "presence_penalty", s.presence_penalty, "frequency_penalty", s.frequency_penalty, "stop",
			 "ignore_eos", 0, "stream", 0);
}

static json_t *slot_json(const struct odm_engine *engine, size_t i, bool busy)
{
	return json_pack("{s:I, s:I, s:b}", "id", (json_int_t)i, "n_ctx", (json_int_t)odm_engine_ctx(engine),
			 "is_processing", busy);
}

static json_t *template_json(const struct odm_chat_template *chat)
{
	const char *text = chat != NULL ? odm_chat_template_text(chat, false) : "";

	return odm_json_text(text, strlen(text));
}

/* A special token's text; "": there is none. */
static json_t *token_json(const struct odm_engine *engine, int32_t token)
{
	const struct od_tokenizer *t = odm_engine_tokenizer(engine);
	size_t len = 0, shown;
	char *text = t != NULL && token >= 0 ? odm_token_text(t, token, &len, &shown) : NULL;
	json_t *s = odm_json_text(text != NULL ? text : "", len);

	free(text);
	return s;
}

static json_t *props_json(const struct odm_app *app, const struct odm_engine *engine)
{
	const struct od_config *c = od_pack_config(odm_engine_pack(engine));
	json_t *settings = slot_json(engine, 0, false);

	json_object_set_new(settings, "params", params_json(engine));
	return json_pack("{s:o, s:I, s:s, s:s, s:o, s:o, s:o, s:{s:b, s:b}, s:s, s:b}", "default_generation_settings",
			 settings, "total_slots", (json_int_t)odm_engine_parallel(engine), "model_alias", app->model,
			 "model_path", app->model, "chat_template", template_json(app->chat), "bos_token",
			 token_json(engine, c->bos), "eos_token", token_json(engine, c->n_eos > 0 ? c->eos[0] : -1),
			 "modalities", "vision", 0, "audio", 0, "build_info", "od-moe " OD_VERSION, "is_sleeping", 0);
}

/* A text has no slot of its own: as many are busy as texts are being written. */
static json_t *slots_json(const struct odm_app *app, const struct odm_engine *engine)
{
	struct odm_engine_activity a;
	json_t *list = json_array();

	odm_engine_thread_activity(app->thread, &a);
	for (size_t i = 0; i < odm_engine_parallel(engine); i++)
		json_array_append_new(list, slot_json(engine, i, i < a.running));
	return list;
}

static void start(struct odm_exchange *x, json_t *(*describe)(const struct odm_app *, const struct odm_engine *))
{
	const struct odm_engine *engine;
	struct odm_api_error e;

	if (odm_api_engine(x, &engine, &e) != OD_OK)
		odm_exchange_fail(x, &e);
	else
		odm_exchange_reply_json(x, 200, describe(odm_app_of(x), engine));
}

static void start_props(struct odm_exchange *x)
{
	start(x, props_json);
}

static void start_slots(struct odm_exchange *x)
{
	start(x, slots_json);
}

const struct odm_endpoint odm_props_endpoint = { .method = "GET", .path = "/props", .start = start_props };
const struct odm_endpoint odm_slots_endpoint = { .method = "GET", .path = "/slots", .start = start_slots };
