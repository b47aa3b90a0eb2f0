#include "main-node/serve/api/chat_build.h"

#include "common/base/log.h"
#include "main-node/chat/chat_messages.h"
#include "main-node/chat/first_time.h"
#include "main-node/chat/part_text.h"
#include "main-node/serve/http/json_fields.h"

#include <stdio.h>
#include <string.h>

void odm_chat_build_fini(struct odm_chat_build *b)
{
	json_decref(b->messages);
	json_decref(b->calls);
	od_strbuf_fini(&b->text);
	od_strbuf_fini(&b->thought);
	*b = (struct odm_chat_build){ 0 };
}

/* ---- Messages ---- */

/* Takes message. */
static void append(struct odm_chat_build *b, json_t *message)
{
	if (b->messages == NULL)
		b->messages = json_array();
	if (json_array_append_new(b->messages, message) != 0)
		b->failed = true;
}

static json_t *text_of(const struct od_strbuf *text)
{
	return json_stringn(od_strbuf_text(text), text->len);
}

static json_t *assistant_message(struct odm_chat_build *b)
{
	const bool calls = b->calls != NULL, said = b->text.len > 0 || !calls;
	json_t *message =
		json_pack("{s:s, s:o}", "role", "assistant", "content", said ? text_of(&b->text) : json_null());

	if (b->thought.len > 0 && json_object_set_new(message, "reasoning_content", text_of(&b->thought)) != 0)
		b->failed = true;
	if (calls && json_object_set(message, "tool_calls", b->calls) != 0)
		b->failed = true;
	return message;
}

void odm_chat_build_last_part(struct odm_chat_build *b, size_t bytes)
{
	json_t *message = json_array_get(b->messages, json_array_size(b->messages) - 1);

	if (bytes > 0 && json_object_set_new(message, ODM_LAST_PART, json_integer((json_int_t)bytes)) != 0)
		b->failed = true;
}

void odm_chat_build_end_turn(struct odm_chat_build *b)
{
	const enum odm_chat_turn turn = b->turn;

	b->turn = ODM_TURN_NONE;
	b->failed = b->failed || b->text.failed || b->thought.failed;
	if (turn == ODM_TURN_USER) {
		append(b, json_pack("{s:s, s:o}", "role", "user", "content", text_of(&b->text)));
		odm_chat_build_last_part(b, b->last_part);
	} else if (turn == ODM_TURN_ASSISTANT) {
		append(b, assistant_message(b));
	}
	b->text.len = b->thought.len = b->last_part = 0;
	json_decref(b->calls);
	b->calls = NULL;
}

static void begin_turn(struct odm_chat_build *b, enum odm_chat_turn turn)
{
	if (b->turn != turn)
		odm_chat_build_end_turn(b);
	b->turn = turn;
}

void odm_chat_build_add(struct odm_chat_build *b, const char *role, json_t *content)
{
	odm_chat_build_end_turn(b);
	append(b, json_pack("{s:s, s:o}", "role", role, "content", content));
}

void odm_chat_build_user(struct odm_chat_build *b, const char *text, size_t len)
{
	const bool follows = b->turn == ODM_TURN_USER;

	begin_turn(b, ODM_TURN_USER);
	od_strbuf_append(&b->text, "\n", follows);
	b->last_part = b->text.len;
	od_strbuf_append(&b->text, text, len);
}

void odm_chat_build_tool(struct odm_chat_build *b, const char *call_id, const char *text, size_t len)
{
	odm_chat_build_end_turn(b);
	append(b, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", call_id, "content",
			    json_stringn(text, len)));
}

void odm_chat_build_think(struct odm_chat_build *b, const char *text, size_t len)
{
	begin_turn(b, ODM_TURN_ASSISTANT);
	od_strbuf_append(&b->thought, text, len);
}

void odm_chat_build_say(struct odm_chat_build *b, const char *text, size_t len)
{
	begin_turn(b, ODM_TURN_ASSISTANT);
	od_strbuf_append(&b->text, text, len);
}

void odm_chat_build_call(struct odm_chat_build *b, const char *id, const char *name, const char *arguments, size_t len)
{
	begin_turn(b, ODM_TURN_ASSISTANT);
	if (b->calls == NULL)
		b->calls = json_array();
	if (json_array_append_new(b->calls,
				  json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function",
					    "name", name, "arguments", json_stringn(arguments, len))) != 0)
		b->failed = true;
}

/* All messages, a new reference; NULL: out of memory. */
static json_t *take_messages(struct odm_chat_build *b)
{
	json_t *messages;

	odm_chat_build_end_turn(b);
	if (b->failed)
		return NULL;
	messages = b->messages != NULL ? b->messages : json_array();
	b->messages = NULL;
	return messages;
}

int odm_chat_build_finish(struct odm_chat_build *b, int rc, json_t *request, json_t **chat, struct odm_api_error *e)
{
	*chat = NULL;
	if (rc == OD_OK && json_object_set_new(request, "messages", take_messages(b)) != 0)
		rc = odm_no_memory(e);
	odm_chat_build_fini(b);
	if (rc == OD_OK)
		*chat = request;
	else
		json_decref(request);
	return rc;
}

/* ---- Parts of requests ---- */

static int part_text(struct od_strbuf *out, const json_t *part, const char *path, struct odm_api_error *e)
{
	const char *bad = odm_part_text(out, part), *type;
	char where[96], found[64];

	if (bad == NULL)
		return OD_OK;
	if (strcmp(bad, "type") == 0)
		return odm_need_string(&type, part, path, "type", e);
	snprintf(where, sizeof(where), "%s.%s", path, bad);
	return odm_api_fail(e, 400, where, OD_ERR_FORMAT, "%s: expected a string, found %s", where,
			    odm_json_describe(json_object_get(part, bad), found, sizeof(found)));
}

int odm_parts_text(struct od_strbuf *out, const json_t *content, const char *path, struct odm_api_error *e)
{
	const json_t *part;
	char where[80], found[64];
	int rc = OD_OK;
	size_t i;

	if (json_is_string(content))
		od_strbuf_append(out, json_string_value(content), json_string_length(content));
	else if (content != NULL && !json_is_null(content) && !json_is_array(content))
		rc = odm_api_fail(e, 400, path, OD_ERR_FORMAT, "%s: expected a string or an array, found %s", path,
				  odm_json_describe(content, found, sizeof(found)));
	json_array_foreach((json_t *)(uintptr_t)content, i, part)
	{
		snprintf(where, sizeof(where), "%s[%zu]", path, i);
		od_strbuf_append(out, "\n", i > 0);
		rc = part_text(out, part, where, e);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

int odm_need_string(const char **out, const json_t *object, const char *within, const char *name,
		    struct odm_api_error *e)
{
	const json_t *v = json_object_get(object, name);
	char path[96], found[64];

	*out = NULL;
	if (!json_is_object(object))
		return odm_api_fail(e, 400, within, OD_ERR_FORMAT, "%s: expected an object, found %s", within,
				    odm_json_describe(object, found, sizeof(found)));
	snprintf(path, sizeof(path), "%s.%s", within, name);
	if (!json_is_string(v))
		return odm_api_fail(e, 400, path, v == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT,
				    "%s: expected a string, found %s", path,
				    odm_json_describe(v, found, sizeof(found)));
	if (json_string_length(v) == 0 || strlen(json_string_value(v)) != json_string_length(v))
		return odm_api_fail(e, 400, path, OD_ERR_FORMAT,
				    "%s: expected a string that is not empty, without the character U+0000", path);
	*out = json_string_value(v);
	return OD_OK;
}

json_t *odm_chat_tool(const char *name, const json_t *tool, json_t *parameters)
{
	const json_t *description = json_object_get(tool, "description"), *strict = json_object_get(tool, "strict");

	return json_pack("{s:s, s:{s:s, s:O*, s:o*, s:O*}}", "type", "function", "function", "name", name,
			 "description", json_is_string(description) ? description : NULL, "parameters", parameters,
			 "strict", json_is_true(strict) ? strict : NULL);
}

void odm_tool_left_out(const char *type)
{
	if (odm_first_time("tool", type))
		od_log(OD_LOG_WARN,
		       "requests have tools of type \"%.40s\"; they are left out, because nothing here runs them",
		       type);
}

int odm_chat_read_tools(json_t *chat, const json_t *given,
			int (*read)(json_t *tools, const json_t *tool, size_t i, struct odm_api_error *e),
			struct odm_api_error *e)
{
	json_t *tools = json_array();
	const json_t *tool;
	char found[64];
	int rc = OD_OK;
	size_t i;

	if (!json_is_array(given))
		rc = odm_api_fail(e, 400, "tools", OD_ERR_FORMAT, "tools: expected an array, found %s",
				  odm_json_describe(given, found, sizeof(found)));
	json_array_foreach((json_t *)(uintptr_t)given, i, tool)
	{
		rc = read(tools, tool, i, e);
		if (rc != OD_OK)
			break;
	}
	if (rc == OD_OK && json_object_set(chat, "tools", tools) != 0)
		rc = odm_no_memory(e);
	json_decref(tools);
	return rc;
}

int odm_fail_unsupported(const char *within, const char *field, const char *expected, const char *found,
			 struct odm_api_error *e)
{
	char path[96];

	snprintf(path, sizeof(path), "%s.%s", within, field);
	return odm_api_fail(e, 400, path, OD_ERR_UNSUPPORTED,
			    "%s: expected %s, found \"%.40s\", which is not supported here", path, expected, found);
}

static int copy(json_t *chat, const json_t *request, const struct odm_copied_setting *settings, struct odm_api_error *e)
{
	for (; settings->name != NULL; settings++) {
		json_t *v = json_object_get(request, settings->name);

		if (v != NULL && json_object_set(chat, settings->chat, v) != 0)
			return odm_no_memory(e);
	}
	return OD_OK;
}

int odm_chat_copy_settings(json_t *chat, const json_t *request, const struct odm_copied_setting *settings,
			   struct odm_api_error *e)
{
	static const struct odm_copied_setting more[] = {
		{ "seed", "seed" },
		{ "min_p", "min_p" },
		{ "repetition_penalty", "repetition_penalty" },
		{ "frequency_penalty", "frequency_penalty" },
		{ "presence_penalty", "presence_penalty" },
		{ "logit_bias", "logit_bias" },
		{ "repeat_last_n", "repeat_last_n" },
		{ "ignore_eos", "ignore_eos" },
		{ "min_tokens", "min_tokens" },
		{ "stop_token_ids", "stop_token_ids" },
		{ "typical_p", "typical_p" },
		{ "top_n_sigma", "top_n_sigma" },
		{ "xtc_probability", "xtc_probability" },
		{ "xtc_threshold", "xtc_threshold" },
		{ "dynatemp_range", "dynatemp_range" },
		{ "dynatemp_exponent", "dynatemp_exponent" },
		{ "dry_multiplier", "dry_multiplier" },
		{ "dry_base", "dry_base" },
		{ "dry_allowed_length", "dry_allowed_length" },
		{ "dry_penalty_last_n", "dry_penalty_last_n" },
		{ "dry_sequence_breakers", "dry_sequence_breakers" },
		{ "chat_template_kwargs", "chat_template_kwargs" },
		{ "reasoning", "reasoning" },
		{ "reasoning_effort", "reasoning_effort" },
		{ "enable_thinking", "enable_thinking" },
		{ "thinking", "thinking" },
		{ "think", "think" },
		{ "thinking_budget", "thinking_budget" },
		{ "structured_outputs", "structured_outputs" },
		{ "guided_json", "guided_json" },
		{ "guided_regex", "guided_regex" },
		{ "guided_choice", "guided_choice" },
		{ "guided_grammar", "guided_grammar" },
		{ "json_schema", "json_schema" },
		{ "grammar", "grammar" },
		{ NULL, NULL },
	};
	int rc = copy(chat, request, settings, e);

	return rc == OD_OK ? copy(chat, request, more, e) : rc;
}
