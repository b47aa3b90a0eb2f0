/* What endpoints with a body begin with; and /v1/models, /tokenize, /detokenize, /metrics. */
#include "main-node/serve/api/api.h"

#include "main-node/serve/http/http.h"
#include "main-node/serve/ops/metrics.h"
#include "common/text/utf8_text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int need_engine(struct odm_exchange *x, const struct odm_engine **engine, struct odm_api_error *e)
{
	*engine = odm_engine_thread_engine(odm_api_of(x)->thread);
	return *engine != NULL ? OD_OK : odm_api_fail(e, 503, NULL, OD_ERR_UNREACHABLE, "the model is being loaded");
}

int odm_api_begin(struct odm_exchange *x, enum odm_api_kind kind, json_t **request, const struct odm_engine **engine,
		  struct odm_api_error *e)
{
	static const struct odm_field fields[] = { { "model", ODM_FIELD_STRING, 0, 0, 0, NULL }, { 0 } };
	const struct odm_api *api = odm_api_of(x);
	const char *model = NULL, *body;
	size_t len;
	int rc = need_engine(x, engine, e);

	*request = NULL;
	body = odm_exchange_body(x, &len);
	if (rc == OD_OK)
		rc = odm_fields_parse(body, len, request, e);
	if (rc == OD_OK)
		rc = odm_client_fields_apply(*request, kind, e);
	if (rc == OD_OK)
		rc = odm_fields_read(fields, *request, &model, e);
	if (rc != OD_OK || model == NULL || !api->model_checked || strcmp(model, api->model) == 0)
		return rc;
	odm_api_fail(e, 404, "model", OD_ERR_MISSING, "model: expected \"%s\", found \"%.200s\"", api->model, model);
	e->code = "model_not_found";
	return OD_ERR_MISSING;
}

/* ---- Models ---- */

/* The fields of OpenAI's form and vLLM's max_model_len, then those of Anthropic's. */
static json_t *model_json(const struct odm_api *api, const struct odm_engine *engine)
{
	const json_int_t ctx = odm_engine_ctx(engine);
	const time_t created = (time_t)api->created;
	char at[sizeof("2026-02-03T04:05:06Z")] = "";
	struct tm utc;

	if (gmtime_r(&created, &utc) != NULL)
		strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%SZ", &utc);
	return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:I}", "id", api->model, "object", "model",
			 "created", (json_int_t)api->created, "owned_by", "od-moe", "max_model_len", ctx, "type",
			 "model", "display_name", api->model, "lifecycle", "active", "created_at", at,
			 "max_input_tokens", ctx, "max_tokens", ctx);
}

static void start_models(struct odm_exchange *x)
{
	const struct odm_api *api = odm_api_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;

	if (need_engine(x, &engine, &e) != OD_OK)
		odm_exchange_fail(x, &e);
	else
		odm_exchange_reply_json(x, 200,
					json_pack("{s:s, s:[o], s:b, s:s, s:s}", "object", "list", "data",
						  model_json(api, engine), "has_more", 0, "first_id", api->model,
						  "last_id", api->model));
}

static void start_model(struct odm_exchange *x)
{
	const struct odm_api *api = odm_api_of(x);
	const struct odm_engine *engine;
	struct odm_api_error e;

	if (need_engine(x, &engine, &e) == OD_OK && strcmp(odm_exchange_rest(x), api->model) == 0) {
		odm_exchange_reply_json(x, 200, model_json(api, engine));
		return;
	}
	if (engine != NULL) {
		odm_api_fail(&e, 404, "model", OD_ERR_MISSING, "there is no model \"%.200s\" here",
			     odm_exchange_rest(x));
		e.code = "model_not_found";
	}
	odm_exchange_fail(x, &e);
}

/* ---- Tokens ---- */

/* Two forms: llama-server's {"content", "add_special", "parse_special"} and vLLM's {"prompt", "add_special_tokens"}. */
struct tokenize {
	const json_t *content, *prompt;
	bool add_special, add_special_tokens, parse_special;
};

#define AT(field) offsetof(struct tokenize, field)

static const struct odm_field tokenize_fields[] = {
	{ "content", ODM_FIELD_JSON, AT(content), 0, 0, NULL },
	{ "prompt", ODM_FIELD_JSON, AT(prompt), 0, 0, NULL },
	{ "add_special", ODM_FIELD_BOOL, AT(add_special), 0, 0, NULL },
	{ "add_special_tokens", ODM_FIELD_BOOL, AT(add_special_tokens), 0, 0, NULL },
	{ "parse_special", ODM_FIELD_BOOL, AT(parse_special), 0, 0, NULL },
	{ 0 },
};

static int need_tokenizer(const struct odm_engine *engine, struct odm_api_error *e)
{
	if (odm_engine_tokenizer(engine) != NULL)
		return OD_OK;
	return odm_api_fail(e, 400, NULL, OD_ERR_UNSUPPORTED, "the model has no tokenizer");
}

static int tokenize(const struct odm_engine *engine, const json_t *request, json_t **answer, struct odm_api_error *e)
{
	struct tokenize t = { .add_special_tokens = true, .parse_special = true };
	int rc = odm_fields_read(tokenize_fields, request, &t, e);
	const json_t *text = t.content != NULL ? t.content : t.prompt;
	const bool add = t.content != NULL ? t.add_special : t.add_special_tokens;
	struct od_err err;
	json_t *tokens;
	int32_t *ids;
	size_t n;

	if (rc != OD_OK)
		return rc;
	if (!json_is_string(text))
		return odm_api_fail(e, 400, t.content != NULL ? "content" : "prompt", OD_ERR_FORMAT,
				    "%s: expected a string", t.content != NULL ? "content" : "prompt");
	rc = od_tokenizer_encode(odm_engine_tokenizer(engine), json_string_value(text), json_string_length(text),
				 (add ? OD_ENCODE_ADD_SPECIAL : 0) | (t.parse_special ? OD_ENCODE_PARSE_SPECIAL : 0),
				 &ids, &n, &err);
	if (rc != OD_OK)
		return odm_api_fail(e, 400, NULL, rc, "%s", err.msg);
	tokens = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(tokens, json_integer(ids[i]));
	free(ids);
	*answer = json_pack("{s:o, s:I, s:I}", "tokens", tokens, "count", (json_int_t)n, "max_model_len",
			    (json_int_t)odm_engine_ctx(engine));
	return OD_OK;
}

/* The text as both servers name it: llama-server "content", vLLM "prompt". */
static int detokenize(const struct odm_engine *engine, const json_t *request, json_t **answer, struct odm_api_error *e)
{
	const json_t *tokens = json_object_get(request, "tokens");
	const size_t n = json_array_size(tokens);
	const uint32_t vocab = od_pack_config(odm_engine_pack(engine))->vocab;
	int32_t *ids = calloc(n + 1, sizeof(*ids));
	struct od_err err = { 0 };
	char *text = NULL;
	size_t len;
	int rc = OD_OK;

	if (ids == NULL)
		return odm_no_memory(e);
	if (!json_is_array(tokens))
		rc = odm_api_fail(e, 400, "tokens", OD_ERR_FORMAT, "tokens: expected an array of token ids");
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		const json_t *id = json_array_get(tokens, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
			rc = odm_api_fail(e, 400, "tokens", OD_ERR_RANGE,
					  "tokens[%zu]: expected an integer from 0 to %u", i, vocab - 1);
		ids[i] = (int32_t)json_integer_value(id);
	}
	if (rc == OD_OK && od_tokenizer_decode(odm_engine_tokenizer(engine), ids, n, false, &text, &len, &err) != OD_OK)
		rc = odm_api_fail(e, 400, "tokens", err.code, "tokens: %s", err.msg);
	if (rc == OD_OK)
		*answer = json_pack("{s:o, s:o}", "content", odm_json_text(text, len), "prompt",
				    odm_json_text(text, len));
	free(text);
	free(ids);
	return rc;
}

static void prepare(struct odm_exchange *x,
		    int (*make)(const struct odm_engine *, const json_t *, json_t **, struct odm_api_error *))
{
	const struct odm_engine *engine;
	struct odm_api_error e;
	json_t *request, *answer = NULL;
	int rc = odm_api_begin(x, ODM_API_TOKENS, &request, &engine, &e);

	if (rc == OD_OK)
		rc = need_tokenizer(engine, &e);
	if (rc == OD_OK)
		rc = make(engine, request, &answer, &e);
	json_decref(request);
	if (rc == OD_OK)
		odm_exchange_reply_json(x, 200, answer);
	else
		odm_exchange_fail(x, &e);
}

static void prepare_tokenize(struct odm_exchange *x)
{
	prepare(x, tokenize);
}

static void prepare_detokenize(struct odm_exchange *x)
{
	prepare(x, detokenize);
}

/* ---- Metrics ---- */

/* The thread ends only when no request is served any more, so its engine stays. */
static void write_engine(struct odm_engine_thread *t, struct od_strbuf *out)
{
	const struct odm_engine *e = odm_engine_thread_engine(t);
	struct odm_figures nodes = { 0 };
	struct odm_report r;

	if (e == NULL)
		return;
	odm_engine_get_report(e, &r);
	odm_metrics_write_report(out, &r);
	odm_metrics_counter(out, "od_store_served_bytes_total", "Bytes of the pack that workers have pulled from main.",
			    (double)odm_engine_served_bytes(e));
	odm_engine_get_nodes(e, &nodes);
	odm_metrics_write_nodes(out, &nodes);
	odm_figures_fini(&nodes);
}

static void start_metrics(struct odm_exchange *x)
{
	struct odm_api *api = odm_api_of(x);
	struct odm_engine_activity a;
	struct od_strbuf out = { 0 };
	size_t len;
	char *text;

	odm_engine_thread_activity(api->thread, &a);
	odm_metrics_gauge(&out, "od_ready", "1 while the model is loaded.",
			  odm_engine_thread_state(api->thread, NULL) == ODM_SERVE_READY);
	odm_metrics_gauge(&out, "od_requests_open", "Requests that are generated or wait.", (double)a.open_requests);
	odm_metrics_gauge(&out, "od_texts_running",
			  "Texts of which a step has begun: rows of a decode step, without drafts.", (double)a.running);
	odm_metrics_gauge(&out, "od_texts_waiting", "Texts that wait.", (double)a.waiting);
	odm_metrics_gauge(&out, "od_connections", "Open HTTP connections.", (double)odm_http_connections(api->http));
	odm_metrics_write(api->metrics, &out);
	write_engine(api->thread, &out);
	odm_metrics_write_process(&out);
	text = od_strbuf_take(&out, &len);
	odm_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
}

const struct odm_endpoint odm_models_endpoint = { .method = "GET", .path = "/v1/models", .start = start_models };
const struct odm_endpoint odm_model_endpoint = { .method = "GET", .path = "/v1/models/*", .start = start_model };
const struct odm_endpoint odm_tokenize_endpoint = { .method = "POST",
						    .path = "/tokenize",
						    .prepare = prepare_tokenize };
const struct odm_endpoint odm_detokenize_endpoint = { .method = "POST",
						      .path = "/detokenize",
						      .prepare = prepare_detokenize };
const struct odm_endpoint odm_metrics_endpoint = {
	.method = "GET",
	.path = "/metrics",
	.flags = ODM_ENDPOINT_DRAINING | ODM_ENDPOINT_PROBE,
	.start = start_metrics,
};
