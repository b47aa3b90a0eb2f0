#include "main-node/serve/api/response_items.h"

#include "common/base/log.h"
#include "main-node/chat/first_time.h"
#include "main-node/chat/json_text.h"
#include "main-node/chat/part_text.h"
#include "main-node/serve/api/chat_build.h"
#include "main-node/serve/http/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 1e9
#define MAX_TOP_LOGPROBS 20

struct response_convert {
	struct odm_chat_build build;
	struct odm_api_error *e;
	char path[32]; /* names the item that is being read */
};

/* ---- Items ---- */

/* The text of an item's field that has one or many parts; text: zero-initialised, od_strbuf_fini it. */
static int read_parts(struct response_convert *c, const json_t *item, const char *field, struct od_strbuf *text)
{
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "%s.%s", c->path, field);
	rc = odm_parts_text(text, json_object_get(item, field), path, c->e);
	return rc == OD_OK && text->failed ? odm_no_memory(c->e) : rc;
}

static void add_message(struct response_convert *c, const char *role, const struct od_strbuf *text)
{
	struct odm_chat_build *b = &c->build;
	const char *t = od_strbuf_text(text);

	if (strcmp(role, "assistant") != 0) {
		odm_chat_build_add(b, role, json_stringn(t, text->len));
		return;
	}
	if (b->text.len > 0 || b->calls != NULL)
		odm_chat_build_end_turn(b);
	odm_chat_build_say(b, t, text->len);
}

/* Bytes of a message's text before the last one of several parts. */
static size_t before_last_part(const json_t *content)
{
	const size_t n = json_array_size(content);
	json_t *first = json_array();
	struct od_strbuf text = { 0 };
	struct odm_api_error e;
	size_t bytes = 0;

	for (size_t i = 0; i + 1 < n; i++)
		json_array_append(first, json_array_get(content, i));
	if (n > 1 && odm_parts_text(&text, first, "", &e) == OD_OK && text.len > 0)
		bytes = text.len + 1; /* and a line break */
	json_decref(first);
	od_strbuf_fini(&text);
	return bytes;
}

static int read_message(struct response_convert *c, const json_t *item)
{
	static const char *const roles[] = { "user", "assistant", "system", "developer" };
	struct od_strbuf text = { 0 };
	const char *role;
	size_t i = 0;
	int rc = odm_need_string(&role, item, c->path, "role", c->e);

	if (rc != OD_OK)
		return rc;
	while (i < sizeof(roles) / sizeof(roles[0]) && strcmp(roles[i], role) != 0)
		i++;
	if (i == sizeof(roles) / sizeof(roles[0]))
		return odm_fail_unsupported(c->path, "role", "\"user\", \"assistant\", \"system\" or \"developer\"",
					    role, c->e);
	rc = read_parts(c, item, "content", &text);
	if (rc == OD_OK)
		add_message(c, role, &text);
	if (rc == OD_OK && strcmp(role, "user") == 0)
		odm_chat_build_last_part(&c->build, before_last_part(json_object_get(item, "content")));
	od_strbuf_fini(&text);
	return rc;
}

static int read_call(struct response_convert *c, const json_t *item)
{
	const json_t *arguments = json_object_get(item, "arguments");
	const char *id, *name, *space;
	char *whole;
	char path[64], found[64];
	int rc = odm_need_string(&id, item, c->path, "call_id", c->e);

	if (rc == OD_OK)
		rc = odm_need_string(&name, item, c->path, "name", c->e);
	if (rc != OD_OK)
		return rc;
	snprintf(path, sizeof(path), "%s.arguments", c->path);
	if (!json_is_string(arguments))
		return odm_api_fail(c->e, 400, path, OD_ERR_FORMAT, "%s: expected a string, found %s", path,
				    odm_json_describe(arguments, found, sizeof(found)));
	space = json_string_value(json_object_get(item, "namespace"));
	whole = space != NULL ? odm_name_in_space(space, name) : NULL;
	if (space != NULL && whole == NULL)
		return odm_no_memory(c->e);
	odm_chat_build_call(&c->build, id, whole != NULL ? whole : name, json_string_value(arguments),
			    json_string_length(arguments));
	free(whole);
	return OD_OK;
}

static int read_call_output(struct response_convert *c, const json_t *item)
{
	struct od_strbuf text = { 0 };
	const char *id;
	int rc = odm_need_string(&id, item, c->path, "call_id", c->e);

	if (rc == OD_OK)
		rc = read_parts(c, item, "output", &text);
	if (rc == OD_OK)
		odm_chat_build_tool(&c->build, id, od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return rc;
}

static int read_reasoning(struct response_convert *c, const json_t *item)
{
	struct odm_chat_build *b = &c->build;
	const bool whole = json_array_size(json_object_get(item, "content")) > 0;
	struct od_strbuf text = { 0 };
	int rc = read_parts(c, item, whole ? "content" : "summary", &text);

	if (rc == OD_OK && (b->text.len > 0 || b->calls != NULL))
		odm_chat_build_end_turn(b);
	if (rc == OD_OK && text.len > 0)
		odm_chat_build_think(b, text.text, text.len);
	od_strbuf_fini(&text);
	return rc;
}

/* ---- Items of tools that are no functions ---- */

/* Describes a call. name: its tool's name; NULL: the item has the name. arguments: the item's field with the input; a
 * text that is no JSON object becomes an object's field of this name. result: the item's field with the result; NULL:
 * an item of its own has it. */
static const struct other_call {
	const char *type, *name, *arguments, *result;
} other_calls[] = {
	{ "custom_tool_call", NULL, "input", NULL },
	{ "local_shell_call", "local_shell", "action", NULL },
	{ "shell_call", "shell", "action", NULL },
	{ "apply_patch_call", "apply_patch", "operation", NULL },
	{ "computer_call", "computer", "action", NULL },
	{ "tool_search_call", "tool_search", "arguments", NULL },
	{ "mcp_call", NULL, "arguments", "output" },
	{ "web_search_call", "web_search", "action", "results" },
	{ "file_search_call", "file_search", "queries", "results" },
	{ "code_interpreter_call", "code_interpreter", "code", "outputs" },
	{ "image_generation_call", "image_generation", "prompt", "image" },
};

static const char *id_of(const json_t *item)
{
	const char *id = json_string_value(json_object_get(item, "call_id"));

	if (id == NULL)
		id = json_string_value(json_object_get(item, "id"));
	return id != NULL ? id : "call";
}

/* The text of a JSON object, malloc'd; NULL: out of memory. */
static char *arguments_of(const struct other_call *o, const json_t *item)
{
	json_t *given = json_object_get(item, o->arguments), *object = NULL;
	const size_t len = json_string_length(given);
	char *text;

	if (json_is_object(given)) {
		object = json_incref(given);
	} else if (json_is_string(given)) {
		object = odm_json_value((struct odm_slice){ json_string_value(given), len });
		if (json_is_object(object)) {
			json_decref(object);
			return strndup(json_string_value(given), len);
		}
		json_decref(object);
		object = NULL;
	}
	if (object == NULL)
		object =
			given != NULL && !json_is_null(given) ? json_pack("{s:O}", o->arguments, given) : json_object();
	text = json_dumps(object, 0);
	json_decref(object);
	return text;
}

static int add_result(struct response_convert *c, const char *id, const json_t *result)
{
	static const char none[] = "[the result is not given here]";
	struct od_strbuf text = { 0 };
	json_t *list = json_is_object(result) ? json_pack("[O]", result) : json_incref((json_t *)(uintptr_t)result);

	odm_parts_join(&text, list);
	json_decref(list);
	if (text.len == 0 && result == NULL)
		od_strbuf_append(&text, none, strlen(none));
	c->build.failed = c->build.failed || text.failed;
	if (!text.failed)
		odm_chat_build_tool(&c->build, id, od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return OD_OK;
}

static int read_other_call(struct response_convert *c, const struct other_call *o, const json_t *item)
{
	const char *name = o->name != NULL ? o->name : json_string_value(json_object_get(item, "name"));
	const json_t *result = o->result != NULL ? json_object_get(item, o->result) : NULL;
	char *arguments = arguments_of(o, item);

	if (arguments == NULL)
		return odm_no_memory(c->e);
	odm_chat_build_call(&c->build, id_of(item), name != NULL && *name != '\0' ? name : "tool", arguments,
			    strlen(arguments));
	free(arguments);
	if (result == NULL || json_is_null(result))
		result = json_object_get(item, "error");
	return o->result != NULL ? add_result(c, id_of(item), json_is_null(result) ? NULL : result) : OD_OK;
}

/* An item of no known type is a result if it looks like one. */
static int read_other(struct response_convert *c, const json_t *item, const char *type)
{
	const json_t *output = json_object_get(item, "output");

	for (size_t i = 0; i < sizeof(other_calls) / sizeof(other_calls[0]); i++)
		if (strcmp(other_calls[i].type, type) == 0)
			return read_other_call(c, &other_calls[i], item);
	if (output == NULL)
		output = json_object_get(item, "tools"); /* belongs to tool_search_output */
	if (output != NULL &&
	    (json_is_string(json_object_get(item, "call_id")) || json_is_string(json_object_get(item, "id"))) &&
	    strlen(type) > strlen("output") && strcmp(type + strlen(type) - strlen("output"), "output") == 0)
		return add_result(c, id_of(item), output);
	if (odm_first_time("item", type))
		od_log(OD_LOG_WARN,
		       "requests have items of type \"%.40s\", which have no text for the model; they are left out",
		       type);
	return OD_OK;
}

static int read_item(struct response_convert *c, const json_t *item)
{
	static const struct {
		const char *type;
		int (*read)(struct response_convert *c, const json_t *item);
	} types[] = {
		{ "message", read_message },
		{ "function_call", read_call },
		{ "function_call_output", read_call_output },
		{ "reasoning", read_reasoning },
	};
	const json_t *given = json_object_get(item, "type");
	const bool untyped = json_is_object(item) && (given == NULL || json_is_null(given));
	const char *type;
	int rc;

	if (untyped && json_object_get(item, "role") == NULL && json_is_string(json_object_get(item, "id")))
		return read_other(c, item, "item_reference");
	if (untyped)
		return read_message(c, item);
	rc = odm_need_string(&type, item, c->path, "type", c->e);
	if (rc == OD_OK)
		for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
			if (strcmp(types[i].type, type) == 0)
				return types[i].read(c, item);
	return rc == OD_OK ? read_other(c, item, type) : rc;
}

static int read_input(struct response_convert *c, const json_t *input)
{
	const json_t *item;
	char found[64];
	int rc = OD_OK;
	size_t i;

	if (json_is_string(input)) {
		odm_chat_build_user(&c->build, json_string_value(input), json_string_length(input));
		return OD_OK;
	}
	if (!json_is_array(input))
		return odm_api_fail(c->e, 400, "input", input == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT,
				    "input: expected a string or an array of items, found %s",
				    odm_json_describe(input, found, sizeof(found)));
	json_array_foreach((json_t *)(uintptr_t)input, i, item)
	{
		snprintf(c->path, sizeof(c->path), "input[%zu]", i);
		rc = read_item(c, item);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

/* ---- Tools ---- */

char *odm_name_in_space(const char *space, const char *name)
{
	struct od_strbuf whole = { 0 };
	size_t len;

	od_strbuf_printf(&whole, "%s__%s", space, name);
	return od_strbuf_take(&whole, &len);
}

void odm_called_function(const json_t *tools, const char *called, const char **space, const char **name)
{
	const json_t *tool, *inner;
	size_t i, k;

	*space = NULL;
	*name = called;
	json_array_foreach((json_t *)(uintptr_t)tools, i, tool)
	{
		const char *s = json_string_value(json_object_get(tool, "name"));
		const json_t *list = json_object_get(tool, "tools");

		json_array_foreach((json_t *)(uintptr_t)list, k, inner)
		{
			const char *n = json_string_value(json_object_get(inner, "name"));
			const size_t len = s != NULL ? strlen(s) : 0;

			if (s == NULL || n == NULL || strncmp(called, s, len) != 0 ||
			    strncmp(called + len, "__", 2) != 0 || strcmp(called + len + 2, n) != 0)
				continue;
			*space = s;
			*name = n;
			return;
		}
	}
}

/* space: NULL: none. */
static int read_function(json_t *tools, const char *space, const json_t *tool, const char *path,
			 struct odm_api_error *e)
{
	json_t *parameters = json_object_get(tool, "parameters");
	const char *name;
	char where[96], found[64], *whole = NULL;
	int rc = odm_need_string(&name, tool, path, "name", e);

	if (rc == OD_OK && parameters != NULL && !json_is_object(parameters) && !json_is_null(parameters)) {
		snprintf(where, sizeof(where), "%s.parameters", path);
		rc = odm_api_fail(e, 400, where, OD_ERR_FORMAT, "%s: expected an object, found %s", where,
				  odm_json_describe(parameters, found, sizeof(found)));
	}
	if (rc == OD_OK && space != NULL)
		whole = odm_name_in_space(space, name);
	if (rc == OD_OK &&
	    ((space != NULL && whole == NULL) ||
	     json_array_append_new(tools, odm_chat_tool(whole != NULL ? whole : name, tool,
							json_is_object(parameters) ? json_incref(parameters) : NULL)) !=
		     0))
		rc = odm_no_memory(e);
	free(whole);
	return rc;
}

static int read_space(json_t *tools, const json_t *space, const char *path, struct odm_api_error *e)
{
	const json_t *tool;
	const char *name, *type;
	char where[64];
	size_t i;
	int rc = odm_need_string(&name, space, path, "name", e);

	if (rc != OD_OK)
		return rc;
	json_array_foreach((json_t *)(uintptr_t)json_object_get(space, "tools"), i, tool)
	{
		snprintf(where, sizeof(where), "%s.tools[%zu]", path, i);
		rc = odm_need_string(&type, tool, where, "type", e);
		if (rc == OD_OK && strcmp(type, "function") != 0)
			odm_tool_left_out(type);
		else if (rc == OD_OK)
			rc = read_function(tools, name, tool, where, e);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

static int read_tool(json_t *tools, const json_t *tool, size_t i, struct odm_api_error *e)
{
	const char *type;
	char path[48];
	int rc;

	snprintf(path, sizeof(path), "tools[%zu]", i);
	rc = odm_need_string(&type, tool, path, "type", e);
	if (rc != OD_OK)
		return rc;
	if (strcmp(type, "namespace") == 0)
		return read_space(tools, tool, path, e);
	if (strcmp(type, "function") == 0)
		return read_function(tools, NULL, tool, path, e);
	odm_tool_left_out(type);
	return OD_OK;
}

/* ---- Settings ---- */

struct response_settings {
	int64_t max_tokens, top_logprobs;
	const char *truncation, *instructions;
	struct odm_strings include;
	const json_t *tools, *format, *metadata;
};

#define AT(field) offsetof(struct response_settings, field)

static const struct odm_field text[] = { { "format", ODM_FIELD_JSON, AT(format), 0, 0, NULL }, { 0 } };

static const struct odm_field fields[] = {
	{ "instructions", ODM_FIELD_STRING, AT(instructions), 0, 0, NULL },
	{ "max_output_tokens", ODM_FIELD_INT, AT(max_tokens), -1, MAX_TOKENS, NULL },
	{ "top_logprobs", ODM_FIELD_INT, AT(top_logprobs), 0, MAX_TOP_LOGPROBS, NULL },
	{ "include", ODM_FIELD_STRINGS, AT(include), 0, 0, NULL },
	{ "text", ODM_FIELD_OBJECT, 0, 0, 0, text },
	{ "truncation", ODM_FIELD_STRING, AT(truncation), 0, 0, NULL },
	{ "tools", ODM_FIELD_JSON, AT(tools), 0, 0, NULL },
	{ "metadata", ODM_FIELD_JSON, AT(metadata), 0, 0, NULL },
	{ 0 },
};

static int check_settings(const struct response_settings *s, struct odm_api_error *e)
{
	/* "auto" shortens nothing here: a prompt that is too long is refused all the same. */
	if (s->truncation != NULL && strcmp(s->truncation, "disabled") != 0 && strcmp(s->truncation, "auto") != 0)
		return odm_api_fail(e, 400, "truncation", OD_ERR_RANGE,
				    "truncation: expected \"auto\" or \"disabled\", found \"%.40s\"", s->truncation);
	if (s->metadata != NULL && !json_is_object(s->metadata))
		return odm_api_fail(e, 400, "metadata", OD_ERR_FORMAT, "metadata: expected an object");
	return OD_OK;
}

/* Other values of `include` belong to tools and stored items that do not exist here, or to fields that every answer
 * has. */
static int read_logprobs(json_t *chat, const struct response_settings *s, struct odm_api_error *e)
{
	bool wanted = s->top_logprobs > 0;

	for (size_t i = 0; i < s->include.n; i++)
		wanted = wanted || strcmp(s->include.value[i], "message.output_text.logprobs") == 0;
	if (!wanted)
		return OD_OK;
	if (json_object_set_new(chat, "logprobs", json_true()) != 0 ||
	    json_object_set_new(chat, "top_logprobs", json_integer(s->top_logprobs)) != 0)
		return odm_no_memory(e);
	return OD_OK;
}

static int read_settings(struct response_convert *c, json_t *chat, const json_t *request)
{
	static const struct odm_copied_setting settings[] = {
		{ "max_output_tokens", "max_tokens" },
		{ "temperature", "temperature" },
		{ "top_p", "top_p" },
		{ "top_k", "top_k" },
		{ "stop", "stop" },
		{ "stream", "stream" },
		{ "tool_choice", "tool_choice" },
		{ "parallel_tool_calls", "parallel_tool_calls" },
		{ NULL, NULL },
	};
	struct response_settings s = { .max_tokens = -1 };
	int rc = odm_fields_read(fields, request, &s, c->e);

	if (rc == OD_OK && s.max_tokens == 0)
		rc = odm_api_fail(c->e, 400, "max_output_tokens", OD_ERR_RANGE,
				  "max_output_tokens: expected at least 1, or -1, found 0");
	if (rc == OD_OK)
		rc = check_settings(&s, c->e);
	if (rc == OD_OK)
		rc = odm_chat_copy_settings(chat, request, settings, c->e);
	if (rc == OD_OK)
		rc = read_logprobs(chat, &s, c->e);
	if (rc == OD_OK && s.tools != NULL)
		rc = odm_chat_read_tools(chat, s.tools, read_tool, c->e);
	if (rc == OD_OK && s.format != NULL && json_object_set(chat, "text.format", (json_t *)s.format) != 0)
		rc = odm_no_memory(c->e);
	if (rc == OD_OK && s.instructions != NULL)
		odm_chat_build_add(&c->build, "system", json_string(s.instructions));
	return rc;
}

int odm_chat_of_response(json_t **chat, const json_t *request, struct odm_api_error *e)
{
	struct response_convert c = { .e = e };
	json_t *o = json_object();
	int rc = o != NULL ? read_settings(&c, o, request) : odm_no_memory(e);

	if (rc == OD_OK)
		rc = read_input(&c, json_object_get(request, "input"));
	return odm_chat_build_finish(&c.build, rc, o, chat, e);
}
