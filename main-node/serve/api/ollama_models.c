/* /api/tags, /api/ps, /api/show and /api/version: the model as Ollama describes models. */
#include "common/text/utf8_text.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/sampling_config.h"
#include "main-node/chat/chat_template.h"
#include "main-node/serve/api/api.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Clients refuse servers of an Ollama that lacks what they use. This one has what is here. */
#define OLLAMA_VERSION "0.12.11"
#define NEVER "9999-12-31T23:59:59Z" /* the model stays loaded */
#define NAME_BYTES 320

/* Ollama's names have a tag, and clients look for it. */
static const char *tagged(const char *name, char buf[NAME_BYTES])
{
	snprintf(buf, NAME_BYTES, "%s%s", name, strchr(name, ':') != NULL ? "" : ":latest");
	return buf;
}

static json_t *time_json(int64_t seconds)
{
	const time_t at = (time_t)seconds;
	char text[sizeof("2026-02-03T04:05:06Z")] = "";
	struct tm utc;

	if (gmtime_r(&at, &utc) != NULL)
		strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
	return json_string(text);
}

/* "30.5B" */
static json_t *parameters_json(uint64_t n)
{
	static const struct {
		double one;
		const char *unit;
	} units[] = { { 1e9, "B" }, { 1e6, "M" }, { 1e3, "K" } };
	size_t i = 0;

	while (i < 2 && (double)n < units[i].one)
		i++;
	return json_sprintf("%.1f%s", (double)n / units[i].one, units[i].unit);
}

static json_t *details_json(const struct od_pack *pack)
{
	const char *family = od_pack_config(pack)->family->name;

	return json_pack("{s:s, s:s, s:s, s:[s], s:o, s:s}", "parent_model", "", "format",
			 od_pack_is_gguf(pack) ? "gguf" : "od-pack", "family", family, "families", family,
			 "parameter_size", parameters_json(od_pack_weights(pack)), "quantization_level",
			 od_dtype_name(od_pack_expert_dtype(pack)));
}

static json_t *model_json(const struct odm_app *app, const char *name, const struct odm_engine *engine)
{
	const struct od_pack *pack = odm_engine_pack(engine);
	char buf[NAME_BYTES];

	tagged(name, buf);
	return json_pack("{s:s, s:s, s:o, s:I, s:s, s:o}", "name", buf, "model", buf, "modified_at",
			 time_json(app->created), "size", (json_int_t)od_pack_bytes(pack), "digest",
			 od_pack_fingerprint(pack), "details", details_json(pack));
}

/* Models in memory have more fields. */
static json_t *running_json(const struct odm_app *app, const char *name, const struct odm_engine *engine)
{
	json_t *o = model_json(app, name, engine),
	       *more = json_pack("{s:s, s:i, s:I}", "expires_at", NEVER, "size_vram", 0, "context_length",
				 (json_int_t)odm_engine_ctx(engine));

	json_object_del(o, "modified_at");
	json_object_update(o, more);
	json_decref(more);
	return o;
}

static void start(struct odm_exchange *x,
		  json_t *(*describe)(const struct odm_app *, const char *, const struct odm_engine *))
{
	const struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;
	json_t *list;

	if (odm_api_engine(x, &engine, &e) != OD_OK) {
		odm_exchange_fail(x, &e);
		return;
	}
	list = json_pack("[o]", describe(app, app->model, engine));
	for (size_t i = 0; i < app->n_aliases; i++)
		json_array_append_new(list, describe(app, app->alias[i], engine));
	odm_exchange_reply_json(x, 200, json_pack("{s:o}", "models", list));
}

static void start_tags(struct odm_exchange *x)
{
	start(x, model_json);
}

static void start_ps(struct odm_exchange *x)
{
	start(x, running_json);
}

static void start_version(struct odm_exchange *x)
{
	odm_exchange_reply_json(x, 200, json_pack("{s:s}", "version", OLLAMA_VERSION));
}

/* ---- /api/show ---- */

static void set_of_family(json_t *o, const char *family, const char *name, uint64_t n)
{
	char key[128];

	snprintf(key, sizeof(key), "%s.%s", family, name);
	json_object_set_new(o, key, json_integer((json_int_t)n));
}

/* The context is the server's, which may be shorter than what the model was trained for: clients cut by it. */
static json_t *info_json(const struct odm_engine *engine)
{
	const struct od_pack *pack = odm_engine_pack(engine);
	const struct od_config *c = od_pack_config(pack);
	const char *family = c->family->name;
	json_t *o = json_pack("{s:s, s:I}", "general.architecture", family, "general.parameter_count",
			      (json_int_t)od_pack_weights(pack));

	set_of_family(o, family, "block_count", c->n_layers);
	set_of_family(o, family, "context_length", odm_engine_ctx(engine));
	set_of_family(o, family, "embedding_length", c->hidden);
	set_of_family(o, family, "expert_count", c->n_experts);
	set_of_family(o, family, "expert_used_count", c->top_k);
	set_of_family(o, family, "expert_feed_forward_length", c->intermediate);
	set_of_family(o, family, "vocab_size", c->vocab);
	if (c->bos >= 0)
		json_object_set_new(o, "tokenizer.ggml.bos_token_id", json_integer(c->bos));
	if (c->n_eos > 0)
		json_object_set_new(o, "tokenizer.ggml.eos_token_id", json_integer(c->eos[0]));
	return o;
}

/* Lines "name value", by Ollama's names: the settings of a request that gives none. */
static json_t *settings_json(const struct odm_engine *engine)
{
	struct od_sampler_opts s;
	struct od_err err;

	if (odm_sampling_defaults(&s, odm_engine_pack(engine), &err) != OD_OK)
		return json_string("");
	return json_sprintf("temperature %g\ntop_k %u\ntop_p %g\nmin_p %g\nrepeat_penalty %g", s.temperature, s.top_k,
			    s.top_p, s.min_p, s.repetition_penalty);
}

static json_t *capabilities_json(const struct odm_chat_template *chat)
{
	const struct odm_chat_format *f = chat != NULL ? odm_chat_template_format(chat, true) : NULL;
	json_t *list = json_pack("[s]", "completion");

	if (f != NULL && (f->harmony || f->n_calls > 0))
		json_array_append_new(list, json_string("tools"));
	if (f != NULL && (f->harmony || f->thoughts != NULL))
		json_array_append_new(list, json_string("thinking"));
	return list;
}

static json_t *template_json(const struct odm_chat_template *chat)
{
	const char *text = chat != NULL ? odm_chat_template_text(chat, false) : "";

	return odm_json_text(text, strlen(text));
}

static void prepare_show(struct odm_exchange *x)
{
	const struct odm_app *app = odm_app_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;
	json_t *request;

	if (odm_api_begin(x, ODM_API_OLLAMA_SHOW, &request, &engine, &e) != OD_OK)
		odm_exchange_fail(x, &e);
	else
		odm_exchange_reply_json(x, 200,
					json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "parameters", settings_json(engine),
						  "template", template_json(app->chat), "details",
						  details_json(odm_engine_pack(engine)), "model_info",
						  info_json(engine), "capabilities", capabilities_json(app->chat),
						  "modified_at", time_json(app->created)));
	json_decref(request);
}

const struct odm_endpoint odm_ollama_tags_endpoint = {
	.method = "GET", .path = "/api/tags", .flags = ODM_ENDPOINT_OLLAMA, .start = start_tags
};
const struct odm_endpoint odm_ollama_ps_endpoint = {
	.method = "GET", .path = "/api/ps", .flags = ODM_ENDPOINT_OLLAMA, .start = start_ps
};
const struct odm_endpoint odm_ollama_version_endpoint = {
	.method = "GET", .path = "/api/version", .flags = ODM_ENDPOINT_OLLAMA, .start = start_version
};
const struct odm_endpoint odm_ollama_show_endpoint = {
	.method = "POST", .path = "/api/show", .flags = ODM_ENDPOINT_OLLAMA, .prepare = prepare_show
};
