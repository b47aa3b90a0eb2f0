#include "main-node/serve/api/anthropic_messages.h"

#include "main-node/chat/json_text.h"
#include "main-node/chat/part_text.h"
#include "main-node/serve/api/call_memory.h"
#include "main-node/serve/api/chat_build.h"
#include "main-node/serve/http/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 1e9
#define MAX_STOPS 64
#define NOT_GIVEN INT64_MIN

struct anthropic_convert {
	struct odm_chat_build build;
	struct odm_call_memory *calls;
	struct odm_api_error *e;
	char path[80]; /* names the block or message that is being read */
};

static int refuse(struct anthropic_convert *c, const char *field, const char *expected, const json_t *found)
{
	char path[96], description[64];

	snprintf(path, sizeof(path), "%s%s", c->path, field);
	return odm_api_fail(c->e, 400, path, OD_ERR_FORMAT, "%s: expected %s, found %s", path, expected,
			    odm_json_describe(found, description, sizeof(description)));
}

static int unsupported(struct anthropic_convert *c, const char *field, const char *expected, const char *found)
{
	return odm_fail_unsupported(c->path, field, expected, found, c->e);
}

/* ---- Blocks ---- */

/* source: the text of `input`, as the client sent it. */
static void add_call(struct anthropic_convert *c, const char *id, const char *name, const json_t *input,
		     struct odm_slice source)
{
	struct od_strbuf arguments = { 0 };

	odm_call_memory_write(c->calls, &arguments, id, input, source);
	c->build.failed = c->build.failed || arguments.failed;
	if (!arguments.failed)
		odm_chat_build_call(&c->build, id, name, od_strbuf_text(&arguments), arguments.len);
	od_strbuf_fini(&arguments);
}

static int read_tool_use(struct anthropic_convert *c, const json_t *block, struct odm_slice source)
{
	const json_t *input = json_object_get(block, "input");
	const char *id, *name;
	int rc = odm_need_string(&id, block, c->path, "id", c->e);

	if (rc == OD_OK)
		rc = odm_need_string(&name, block, c->path, "name", c->e);
	if (rc == OD_OK && !json_is_object(input))
		return refuse(c, ".input", "an object", input);
	if (rc == OD_OK)
		add_call(c, id, name, input, odm_json_member(source, "input"));
	return rc;
}

/* Reads a tool's result. If another server ran the tool, content may be an object. */
static int read_tool_result(struct anthropic_convert *c, const json_t *block)
{
	const json_t *content = json_object_get(block, "content"), *is_error = json_object_get(block, "is_error");
	struct od_strbuf text = { 0 };
	const char *id;
	char path[96];
	int rc = odm_need_string(&id, block, c->path, "tool_use_id", c->e);

	if (rc == OD_OK && is_error != NULL && !json_is_null(is_error) && !json_is_boolean(is_error))
		rc = refuse(c, ".is_error", "true or false", is_error);
	if (json_is_true(is_error))
		od_strbuf_append(&text, "Error: ", 7);
	snprintf(path, sizeof(path), "%s.content", c->path);
	if (rc == OD_OK && json_is_object(content))
		(void)!odm_part_text(&text, content);
	else if (rc == OD_OK)
		rc = odm_parts_text(&text, content, path, c->e);
	c->build.failed = c->build.failed || text.failed;
	if (rc == OD_OK && !text.failed)
		odm_chat_build_tool(&c->build, id, od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return rc;
}

static bool ends_with(const char *text, const char *end)
{
	const size_t n = strlen(text), n_end = strlen(end);

	return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* Takes the text of a block of any type as said in the present turn. */
static int read_text(struct anthropic_convert *c, const json_t *block, bool user)
{
	struct od_strbuf text = { 0 };
	const char *bad = odm_part_text(&text, block);
	char name[32];

	if (bad != NULL) {
		snprintf(name, sizeof(name), ".%s", bad);
		od_strbuf_fini(&text);
		return refuse(c, name, "a string", json_object_get(block, bad));
	}
	(user ? odm_chat_build_user : odm_chat_build_say)(&c->build, od_strbuf_text(&text), text.len);
	c->build.failed = c->build.failed || text.failed;
	od_strbuf_fini(&text);
	return OD_OK;
}

/* Types that are not known are told apart by their names: server_tool_use, web_search_tool_result ... */
static int read_block(struct anthropic_convert *c, const json_t *block, const char *type, bool user,
		      struct odm_slice source)
{
	const json_t *thought = json_object_get(block, "thinking");

	if (strcmp(type, "redacted_thinking") == 0)
		return OD_OK;
	if (ends_with(type, "tool_result"))
		return read_tool_result(c, block);
	if (!user && ends_with(type, "tool_use"))
		return read_tool_use(c, block, source);
	if (user || strcmp(type, "thinking") != 0)
		return read_text(c, block, user);
	if (!json_is_string(thought))
		return refuse(c, ".thinking", "a string", thought);
	odm_chat_build_think(&c->build, json_string_value(thought), json_string_length(thought));
	return OD_OK;
}

/* ---- Messages ---- */

static int read_blocks(struct anthropic_convert *c, const json_t *content, size_t at, bool user,
		       struct odm_slice source)
{
	struct odm_json_item item = { 0 };
	const json_t *block;
	size_t i, pos = 0;
	int rc = OD_OK;

	json_array_foreach((json_t *)(uintptr_t)content, i, block)
	{
		const char *type;

		odm_json_next(source, &pos, &item);
		snprintf(c->path, sizeof(c->path), "messages[%zu].content[%zu]", at, i);
		rc = odm_need_string(&type, block, c->path, "type", c->e);
		if (rc == OD_OK)
			rc = read_block(c, block, type, user, item.value);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

static int read_system_message(struct anthropic_convert *c, const json_t *content, size_t at)
{
	struct od_strbuf text = { 0 };
	int rc;

	snprintf(c->path, sizeof(c->path), "messages[%zu].content", at);
	rc = odm_parts_text(&text, content, c->path, c->e);
	if (rc == OD_OK)
		odm_chat_build_add(&c->build, "system", json_stringn(od_strbuf_text(&text), text.len));
	c->build.failed = c->build.failed || text.failed;
	od_strbuf_fini(&text);
	return rc;
}

static int read_message(struct anthropic_convert *c, const json_t *message, size_t at, struct odm_slice source)
{
	const json_t *content = json_object_get(message, "content");
	const char *role;
	bool user;
	int rc;

	snprintf(c->path, sizeof(c->path), "messages[%zu]", at);
	rc = odm_need_string(&role, message, c->path, "role", c->e);
	if (rc != OD_OK)
		return rc;
	if (strcmp(role, "system") == 0)
		return read_system_message(c, content, at);
	user = strcmp(role, "user") == 0;
	if (!user && strcmp(role, "assistant") != 0)
		return unsupported(c, "role", "\"user\", \"assistant\" or \"system\"", role);
	if (json_is_string(content) || content == NULL || json_is_null(content) ||
	    (json_is_array(content) && json_array_size(content) == 0)) {
		(user ? odm_chat_build_user :
			odm_chat_build_say)(&c->build, json_is_string(content) ? json_string_value(content) : "",
					    json_string_length(content));
		return OD_OK;
	}
	if (!json_is_array(content))
		return refuse(c, ".content", "a string or an array of blocks", content);
	return read_blocks(c, content, at, user, odm_json_member(source, "content"));
}

static int read_messages(struct anthropic_convert *c, const json_t *messages, struct odm_slice source)
{
	struct odm_json_item item = { 0 };
	const json_t *message;
	size_t i, pos = 0;
	int rc = OD_OK;

	snprintf(c->path, sizeof(c->path), "messages");
	if (!json_is_array(messages) || json_array_size(messages) == 0)
		return refuse(c, "", "an array of messages that is not empty", messages);
	json_array_foreach((json_t *)(uintptr_t)messages, i, message)
	{
		odm_json_next(source, &pos, &item);
		rc = read_message(c, message, i, item.value);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

/* If the last message is the assistant's, the answer continues its text. Without text it is dropped. */
static int read_last(struct anthropic_convert *c, json_t *chat, bool counting)
{
	struct odm_chat_build *b = &c->build;

	if (b->turn != ODM_TURN_ASSISTANT || counting)
		return OD_OK;
	if (b->calls != NULL)
		return odm_api_fail(
			c->e, 400, "messages", OD_ERR_ARG,
			"messages: the last one is of the assistant and calls a tool; expected its result behind it, a "
			"block of type tool_result in a message of the user");
	if (b->text.len > 0)
		return json_object_set_new(chat, "continue_final_message", json_true()) == 0 ? OD_OK :
											       odm_no_memory(c->e);
	b->turn = ODM_TURN_NONE;
	return OD_OK;
}

static int read_system(struct anthropic_convert *c, const json_t *system)
{
	static const char billing[] = "x-anthropic-billing-header:";
	struct od_strbuf text = { 0 };
	size_t from = 0;
	int rc;

	if (system == NULL || json_is_null(system))
		return OD_OK;
	rc = odm_parts_text(&text, system, "system", c->e);
	if (rc == OD_OK && text.len > 0 && strncmp(text.text, billing, sizeof(billing) - 1) == 0) {
		from = strcspn(text.text, "\n");
		from += from < text.len;
	}
	if (rc == OD_OK && text.len > from)
		odm_chat_build_add(&c->build, "system", json_stringn(text.text + from, text.len - from));
	c->build.failed = c->build.failed || text.failed;
	od_strbuf_fini(&text);
	return rc;
}

/* ---- Tools ---- */

static int read_tool(json_t *tools, const json_t *tool, size_t i, struct odm_api_error *e)
{
	const json_t *type = json_object_get(tool, "type");
	json_t *schema = json_object_get(tool, "input_schema"), *function;
	char path[48], where[80], found[64];
	const char *name;
	int rc;

	snprintf(path, sizeof(path), "tools[%zu]", i);
	if (json_is_string(type) && strcmp(json_string_value(type), "custom") != 0) {
		odm_tool_left_out(json_string_value(type));
		return OD_OK;
	}
	rc = odm_need_string(&name, tool, path, "name", e);
	if (rc != OD_OK)
		return rc;
	snprintf(where, sizeof(where), "%s.input_schema", path);
	if (!json_is_object(schema))
		return odm_api_fail(e, 400, where, OD_ERR_FORMAT, "%s: expected an object, found %s", where,
				    odm_json_describe(schema, found, sizeof(found)));
	function = odm_chat_tool(name, tool, json_incref(schema));
	return json_array_append_new(tools, function) == 0 ? OD_OK : odm_no_memory(e);
}

static int read_tool_choice(json_t *chat, const json_t *choice, struct odm_api_error *e)
{
	const char *type, *name;
	json_t *wanted;
	int rc = odm_need_string(&type, choice, "tool_choice", "type", e);

	if (rc != OD_OK)
		return rc;
	if (strcmp(type, "tool") == 0) {
		rc = odm_need_string(&name, choice, "tool_choice", "name", e);
		if (rc != OD_OK)
			return rc;
		wanted = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
	} else if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0) {
		wanted = json_string(type);
	} else if (strcmp(type, "any") == 0) {
		wanted = json_string("required");
	} else {
		return odm_fail_unsupported("tool_choice", "type", "\"auto\", \"any\", \"tool\" or \"none\"", type, e);
	}
	if (json_object_set_new(chat, "tool_choice", wanted) != 0)
		return odm_no_memory(e);
	if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")) &&
	    json_object_set_new(chat, "parallel_tool_calls", json_false()) != 0)
		return odm_no_memory(e);
	return OD_OK;
}

/* ---- Settings ---- */

/* Numbers and stop are only checked here: generation.c reads them again. */
struct anthropic_settings {
	int64_t max_tokens, top_k;
	double temperature, top_p;
	struct odm_strings stop;
	bool stream;
	const char *effort;
	const json_t *tools, *tool_choice, *mcp_servers, *format;
};

#define AT(field) offsetof(struct anthropic_settings, field)

static const struct odm_field output_config[] = {
	{ "effort", ODM_FIELD_STRING, AT(effort), 0, 0, NULL },
	{ "format", ODM_FIELD_JSON, AT(format), 0, 0, NULL },
	{ 0 },
};

static const struct odm_field fields[] = {
	{ "max_tokens", ODM_FIELD_INT, AT(max_tokens), -1, MAX_TOKENS, NULL }, /* -1: no limit */
	{ "stop_sequences", ODM_FIELD_STRINGS, AT(stop), 0, MAX_STOPS, NULL },
	{ "temperature", ODM_FIELD_REAL, AT(temperature), 0, 1, NULL },
	{ "top_p", ODM_FIELD_REAL, AT(top_p), 0, 1, NULL },
	{ "top_k", ODM_FIELD_INT, AT(top_k), 0, UINT32_MAX, NULL },
	{ "stream", ODM_FIELD_BOOL, AT(stream), 0, 0, NULL },
	{ "tools", ODM_FIELD_JSON, AT(tools), 0, 0, NULL },
	{ "tool_choice", ODM_FIELD_JSON, AT(tool_choice), 0, 0, NULL },
	{ "output_config", ODM_FIELD_OBJECT, 0, 0, 0, output_config },
	/* its older name */
	{ "output_format", ODM_FIELD_JSON, AT(format), 0, 0, NULL },
	{ "mcp_servers", ODM_FIELD_JSON, AT(mcp_servers), 0, 0, NULL },
	{ 0 },
};

static int read_effort(json_t *chat, const char *effort, struct odm_api_error *e)
{
	return json_object_set_new(chat, "reasoning_effort", json_string(effort)) == 0 ? OD_OK : odm_no_memory(e);
}

static int read_settings(json_t *chat, const json_t *request, bool counting, struct odm_api_error *e)
{
	static const struct odm_copied_setting settings[] = {
		{ "max_tokens", "max_tokens" },
		{ "stop_sequences", "stop" },
		{ "temperature", "temperature" },
		{ "top_p", "top_p" },
		{ "top_k", "top_k" },
		{ "stream", "stream" },
		{ NULL, NULL },
	};
	struct anthropic_settings s = { .max_tokens = NOT_GIVEN };
	int rc = odm_fields_read(fields, request, &s, e);

	if (rc == OD_OK && s.max_tokens == NOT_GIVEN && !counting)
		rc = odm_api_fail(e, 400, "max_tokens", OD_ERR_MISSING,
				  "max_tokens: missing; expected the most tokens that the answer may have");
	if (rc == OD_OK && s.max_tokens == 0)
		rc = odm_api_fail(e, 400, "max_tokens", OD_ERR_RANGE,
				  "max_tokens: expected at least 1, or -1, found 0");
	if (rc == OD_OK)
		rc = odm_chat_copy_settings(chat, request, settings, e);
	if (rc == OD_OK && s.effort != NULL)
		rc = read_effort(chat, s.effort, e);
	if (json_array_size(s.mcp_servers) > 0)
		odm_tool_left_out("mcp_servers");
	if (rc == OD_OK && s.tools != NULL)
		rc = odm_chat_read_tools(chat, s.tools, read_tool, e);
	if (rc == OD_OK && s.tool_choice != NULL)
		rc = read_tool_choice(chat, s.tool_choice, e);
	if (rc == OD_OK && s.format != NULL && json_object_set(chat, "output_format", (json_t *)s.format) != 0)
		rc = odm_no_memory(e);
	return rc;
}

int odm_chat_of_anthropic(json_t **chat, const json_t *request, const char *body, size_t len,
			  struct odm_call_memory *calls, bool counting, struct odm_api_error *e)
{
	struct anthropic_convert c = { .calls = calls, .e = e };
	json_t *o = json_object();
	int rc = o != NULL ? read_settings(o, request, counting, e) : odm_no_memory(e);

	if (rc == OD_OK)
		rc = read_system(&c, json_object_get(request, "system"));
	if (rc == OD_OK)
		rc = read_messages(&c, json_object_get(request, "messages"),
				   odm_json_member((struct odm_slice){ body, len }, "messages"));
	if (rc == OD_OK)
		rc = read_last(&c, o, counting);
	return odm_chat_build_finish(&c.build, rc, o, chat, e);
}
