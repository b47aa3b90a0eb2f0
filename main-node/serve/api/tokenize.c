/* /tokenize and /detokenize, as llama-server and vLLM have them. */
#include "common/text/tok_decode.h"
#include "common/text/utf8_text.h"
#include "main-node/engine/engine.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/http/json_fields.h"

#include <stdlib.h>
#include <string.h>

/* Two formats: llama-server's {"content", "add_special", "parse_special"} and vLLM's {"prompt", "add_special_tokens"}. */
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

const struct odm_endpoint odm_tokenize_endpoint = { .method = "POST",
						    .path = "/tokenize",
						    .prepare = prepare_tokenize };
const struct odm_endpoint odm_detokenize_endpoint = { .method = "POST",
						      .path = "/detokenize",
						      .prepare = prepare_detokenize };
