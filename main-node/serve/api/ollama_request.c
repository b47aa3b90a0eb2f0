#include "main-node/serve/api/ollama_request.h"

#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/chat_build.h"
#include "main-node/serve/http/json_fields.h"

#include <stdio.h>
#include <string.h>

#define MAX_TOKENS 1e9
#define MAX_STOPS 64
#define PATH_BYTES 96

/* Borrowed. Numbers and stop are only checked here: generation.c reads them again. */
struct ollama_fields {
	int64_t num_predict; /* at most 0: no limit */
	struct odm_strings stop;
	bool stream, raw;
	const json_t *options, *messages, *tools, *format, *images, *prompt, *system;
};

#define AT(field) offsetof(struct ollama_fields, field)

static const struct odm_field options[] = {
	{ "num_predict", ODM_FIELD_INT, AT(num_predict), -2, MAX_TOKENS, NULL },
	{ "stop", ODM_FIELD_STRINGS, AT(stop), 0, MAX_STOPS, NULL },
	{ 0 },
};

static const struct odm_field fields[] = {
	{ "options", ODM_FIELD_OBJECT, 0, 0, 0, options },
	{ "options", ODM_FIELD_JSON, AT(options), 0, 0, NULL },
	{ "stream", ODM_FIELD_BOOL, AT(stream), 0, 0, NULL },
	{ "raw", ODM_FIELD_BOOL, AT(raw), 0, 0, NULL },
	{ "messages", ODM_FIELD_JSON, AT(messages), 0, 0, NULL },
	{ "tools", ODM_FIELD_JSON, AT(tools), 0, 0, NULL },
	{ "format", ODM_FIELD_JSON, AT(format), 0, 0, NULL },
	{ "images", ODM_FIELD_JSON, AT(images), 0, 0, NULL },
	{ "prompt", ODM_FIELD_JSON, AT(prompt), 0, 0, NULL },
	{ "system", ODM_FIELD_JSON, AT(system), 0, 0, NULL },
	{ 0 },
};

static int refuse(const char *path, const char *expected, const json_t *found, struct odm_api_error *e)
{
	char description[64];

	return odm_api_fail(e, 400, path, OD_ERR_FORMAT, "%s: expected %s, found %s", path, expected,
			    odm_json_describe(found, description, sizeof(description)));
}

/* Takes value. */
static int set(json_t *object, const char *name, json_t *value, struct odm_api_error *e)
{
	return json_object_set_new(object, name, value) == 0 ? OD_OK : odm_no_memory(e);
}

/* ---- Settings ---- */

static int read_format(json_t *chat, const json_t *format, struct odm_api_error *e)
{
	if (format == NULL || (json_is_string(format) && json_string_length(format) == 0))
		return OD_OK;
	if (json_is_string(format) && strcmp(json_string_value(format), "json") == 0)
		return set(chat, "response_format", json_pack("{s:s}", "type", "json_object"), e);
	if (!json_is_object(format))
		return refuse("format", "\"json\" or a JSON schema, an object", format, e);
	return set(chat, "response_format",
		   json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "response", "schema",
			     format),
		   e);
}

static int copy(json_t *chat, const json_t *from, const char *const *names, struct odm_api_error *e)
{
	int rc = OD_OK;

	for (; rc == OD_OK && *names != NULL; names++) {
		json_t *v = json_object_get(from, *names);

		if (v != NULL)
			rc = set(chat, *names, json_incref(v), e);
	}
	return rc;
}

static int read_settings(json_t *chat, const json_t *request, struct ollama_fields *f, struct odm_api_error *e)
{
	static const char *const own[] = { "think", "logprobs", "top_logprobs", NULL };
	static const char *const sampling[] = { "temperature",
						"top_p",
						"top_k",
						"min_p",
						"seed",
						"stop",
						"repetition_penalty",
						"repeat_last_n",
						"frequency_penalty",
						"presence_penalty",
						"logit_bias",
						"ignore_eos",
						"min_tokens",
						"stop_token_ids",
						"typical_p",
						"top_n_sigma",
						"xtc_probability",
						"xtc_threshold",
						"dynatemp_range",
						"dynatemp_exponent",
						"dry_multiplier",
						"dry_base",
						"dry_allowed_length",
						"dry_penalty_last_n",
						"dry_sequence_breakers",
						NULL };
	int rc;

	*f = (struct ollama_fields){ .stream = true };
	rc = odm_fields_read(fields, request, f, e);
	if (rc == OD_OK)
		rc = copy(chat, request, own, e);
	if (rc == OD_OK)
		rc = copy(chat, f->options, sampling, e);
	if (rc == OD_OK)
		rc = set(chat, "stream", json_boolean(f->stream), e);
	if (rc == OD_OK && f->num_predict > 0)
		rc = set(chat, "max_tokens", json_integer(f->num_predict), e);
	return rc == OD_OK ? read_format(chat, f->format, e) : rc;
}

/* ---- Messages ---- */

static int check_images(const json_t *images, const char *path, struct odm_api_error *e)
{
	if (images != NULL && !json_is_null(images) && !json_is_array(images))
		return refuse(path, "an array of strings", images, e);
	for (size_t i = 0; i < json_array_size(images); i++)
		if (!json_is_string(json_array_get(images, i)))
			return refuse(path, "an array of strings", images, e);
	return OD_OK;
}

/* Content with images becomes a list of parts; the images' bytes are left out. A new reference; NULL: no memory. */
static json_t *content_of(json_t *text, const json_t *images)
{
	json_t *parts;
	bool good = true;

	if (json_array_size(images) == 0)
		return text != NULL ? json_incref(text) : json_string("");
	parts = json_array();
	if (json_string_length(text) > 0)
		good = json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", text)) == 0;
	for (size_t i = 0; i < json_array_size(images); i++)
		good = json_array_append_new(parts, json_pack("{s:s}", "type", "image")) == 0 && good;
	if (!good) {
		json_decref(parts);
		parts = NULL;
	}
	return parts;
}

/* Returns a string field of object; NULL: it has none. */
static int optional_string(json_t **out, const json_t *object, const char *within, const char *name,
			   struct odm_api_error *e)
{
	char path[PATH_BYTES];

	*out = json_object_get(object, name);
	if (json_is_null(*out))
		*out = NULL;
	if (*out == NULL || json_is_string(*out))
		return OD_OK;
	snprintf(path, sizeof(path), "%s.%s", within, name);
	return refuse(path, "a string", *out, e);
}

/* source: the call's text. *out: a new reference. */
static int read_call(json_t **out, const json_t *call, struct odm_slice source, const char *path,
		     struct odm_call_memory *calls, struct odm_api_error *e)
{
	const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
	struct od_strbuf text = { 0 };
	char where[PATH_BYTES];
	const char *name;
	json_t *id;
	int rc = optional_string(&id, call, path, "id", e);

	snprintf(where, sizeof(where), "%s.function", path);
	if (rc == OD_OK)
		rc = odm_need_string(&name, function, where, "name", e);
	if (rc != OD_OK)
		return rc;
	snprintf(where, sizeof(where), "%s.function.arguments", path);
	if (json_is_object(arguments))
		odm_call_memory_write(calls, &text, json_string_value(id), arguments,
				      odm_json_member(odm_json_member(source, "function"), "arguments"));
	else if (arguments != NULL && !json_is_null(arguments))
		return refuse(where, "an object", arguments, e);
	*out = json_pack("{s:s, s:{s:s, s:o}, s:O*}", "type", "function", "function", "name", name, "arguments",
			 text.len > 0 ? json_stringn(text.text, text.len) : json_string("{}"), "id", id);
	if (*out == NULL || text.failed)
		rc = odm_no_memory(e);
	od_strbuf_fini(&text);
	return rc;
}

/* source: the text of the list. */
static int read_calls(json_t *message, const json_t *given, struct odm_slice source, const char *within,
		      struct odm_call_memory *calls, struct odm_api_error *e)
{
	json_t *list = json_array(), *made = NULL;
	struct odm_json_item item = { 0 };
	const json_t *call;
	char path[PATH_BYTES];
	size_t i, pos = 0;
	int rc = OD_OK;

	snprintf(path, sizeof(path), "%s.tool_calls", within);
	if (given != NULL && !json_is_null(given) && !json_is_array(given))
		rc = refuse(path, "an array", given, e);
	json_array_foreach((json_t *)(uintptr_t)given, i, call)
	{
		odm_json_next(source, &pos, &item);
		snprintf(path, sizeof(path), "%s.tool_calls[%zu]", within, i);
		made = NULL;
		rc = read_call(&made, call, item.value, path, calls, e);
		if (rc == OD_OK && json_array_append(list, made) != 0)
			rc = odm_no_memory(e);
		json_decref(made);
		if (rc != OD_OK)
			break;
	}
	if (rc == OD_OK && json_array_size(list) > 0)
		rc = set(message, "tool_calls", json_incref(list), e);
	json_decref(list);
	return rc;
}

/* Copies the optional texts of a message, by the names that chat completions have for them. */
static int read_texts(json_t *out, const json_t *message, const char *path, struct odm_api_error *e)
{
	static const char *const names[][2] = { { "thinking", "reasoning_content" },
						{ "tool_name", "name" },
						{ "tool_call_id", "tool_call_id" } };
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < sizeof(names) / sizeof(names[0]); i++) {
		json_t *text;

		rc = optional_string(&text, message, path, names[i][0], e);
		if (rc == OD_OK && json_string_length(text) > 0)
			rc = set(out, names[i][1], json_incref(text), e);
	}
	return rc;
}

static int read_message(json_t *out, const json_t *message, struct odm_slice source, const char *path,
			struct odm_call_memory *calls, struct odm_api_error *e)
{
	const json_t *images = json_object_get(message, "images");
	char where[PATH_BYTES];
	const char *role;
	json_t *text;
	int rc = odm_need_string(&role, message, path, "role", e);

	snprintf(where, sizeof(where), "%s.images", path);
	if (rc == OD_OK)
		rc = optional_string(&text, message, path, "content", e);
	if (rc == OD_OK)
		rc = check_images(images, where, e);
	if (rc == OD_OK)
		rc = set(out, "role", json_string(role), e);
	if (rc == OD_OK)
		rc = set(out, "content", content_of(text, images), e);
	if (rc == OD_OK)
		rc = read_texts(out, message, path, e);
	if (rc == OD_OK)
		rc = read_calls(out, json_object_get(message, "tool_calls"), odm_json_member(source, "tool_calls"),
				path, calls, e);
	return rc;
}

/* source: the text of the list. */
static int read_messages(json_t *chat, const json_t *given, struct odm_slice source, struct odm_call_memory *calls,
			 struct odm_api_error *e)
{
	json_t *messages = json_array();
	struct odm_json_item item = { 0 };
	const json_t *message;
	char path[PATH_BYTES];
	size_t i, pos = 0;
	int rc = set(chat, "messages", messages, e);

	json_array_foreach((json_t *)(uintptr_t)given, i, message)
	{
		json_t *made = json_object();

		odm_json_next(source, &pos, &item);
		snprintf(path, sizeof(path), "messages[%zu]", i);
		if (rc == OD_OK && json_array_append_new(messages, made) != 0)
			rc = odm_no_memory(e);
		if (rc == OD_OK)
			rc = read_message(made, message, item.value, path, calls, e);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

/* ---- Requests ---- */

/* Takes o: it is *chat if it was read and there is something to answer. */
static int finish(json_t **chat, json_t *o, int rc, bool empty)
{
	*chat = rc == OD_OK && !empty ? o : NULL;
	if (*chat == NULL)
		json_decref(o);
	return rc;
}

int odm_chat_of_ollama_chat(json_t **chat, const json_t *request, const char *body, size_t len,
			    struct odm_call_memory *calls, struct odm_api_error *e)
{
	json_t *o = json_object();
	struct ollama_fields f = { 0 };
	int rc = o != NULL ? read_settings(o, request, &f, e) : odm_no_memory(e);

	if (rc == OD_OK && f.messages != NULL && !json_is_array(f.messages))
		rc = refuse("messages", "an array", f.messages, e);
	if (rc == OD_OK && f.tools != NULL)
		rc = set(o, "tools", json_incref((json_t *)(uintptr_t)f.tools), e);
	if (rc == OD_OK)
		rc = read_messages(o, f.messages, odm_json_member((struct odm_slice){ body, len }, "messages"), calls,
				   e);
	return finish(chat, o, rc, json_array_size(f.messages) == 0);
}

/* The messages of a prompt: what the system is told, and what the user says. */
static int make_messages(json_t *chat, const struct ollama_fields *f, struct odm_api_error *e)
{
	json_t *messages = json_array();
	int rc = set(chat, "messages", messages, e);

	if (rc == OD_OK && json_string_length(f->system) > 0 &&
	    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", f->system)) != 0)
		rc = odm_no_memory(e);
	if (rc == OD_OK &&
	    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content",
						      content_of((json_t *)(uintptr_t)f->prompt, f->images))) != 0)
		rc = odm_no_memory(e);
	return rc;
}

/* A plain prompt has no place for the note that an image becomes. */
static int set_prompt(json_t *chat, const struct ollama_fields *f, struct odm_api_error *e)
{
	if (json_array_size(f->images) > 0)
		return odm_api_fail(e, 400, "images", OD_ERR_UNSUPPORTED,
				    "images: expected none with a prompt that is taken as it is");
	return set(chat, "prompt", json_incref((json_t *)(uintptr_t)f->prompt), e);
}

int odm_chat_of_ollama_prompt(json_t **chat, const json_t *request, bool plain, struct odm_api_error *e)
{
	json_t *o = json_object();
	struct ollama_fields f = { 0 };
	int rc = o != NULL ? read_settings(o, request, &f, e) : odm_no_memory(e);

	if (rc == OD_OK && f.prompt != NULL && !json_is_string(f.prompt))
		rc = refuse("prompt", "a string", f.prompt, e);
	if (rc == OD_OK && f.system != NULL && !json_is_string(f.system))
		rc = refuse("system", "a string", f.system, e);
	if (rc == OD_OK)
		rc = check_images(f.images, "images", e);
	if (rc == OD_OK && json_string_length(f.prompt) > 0 && (f.raw || (plain && json_string_length(f.system) == 0)))
		rc = set_prompt(o, &f, e);
	else if (rc == OD_OK)
		rc = make_messages(o, &f, e);
	return finish(chat, o, rc, json_string_length(f.prompt) == 0);
}
