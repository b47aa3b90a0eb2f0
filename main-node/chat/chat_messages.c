#include "main-node/chat/chat_messages.h"

#include "common/base/json.h"
#include "main-node/chat/chat_order.h"
#include "main-node/chat/gemma_args.h"
#include "main-node/chat/part_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WHERE 96
#define SHORT_ID_LEN 9

/* A call's entry: {"name", "id", "at"}, the id as the template gets it and the number of its message. */
struct build {
	struct odm_context *out;
	const struct odm_chat_format *format;
	json_t *calls; /* entries of calls without a result, by the id that the client gave: {id: [entry ...]} */
	json_t *latest; /* entries of the latest message with calls */
	size_t n_results; /* results so far behind that message */
	size_t n_calls; /* calls so far */
	char where[MAX_WHERE]; /* path of the field that is being read */
	struct od_err *err;
};

void odm_context_fini(struct odm_context *c)
{
	for (size_t i = 0; i < c->n_sources; i++)
		free(c->source[i].text);
	free(c->source);
	for (size_t i = 0; i < c->n_marks; i++)
		od_text_spans_fini(&c->marks[i].spans);
	free(c->marks);
	json_decref(c->messages);
	*c = (struct odm_context){ 0 };
}

static int compare_values(const json_t *a, const json_t *b)
{
	return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

static int compare_sources(const void *a, const void *b)
{
	return compare_values(((const struct odm_context_source *)a)->value,
			      ((const struct odm_context_source *)b)->value);
}

static int compare_marks(const void *a, const void *b)
{
	return compare_values(((const struct odm_context_marks *)a)->value,
			      ((const struct odm_context_marks *)b)->value);
}

const char *odm_context_source(const struct odm_context *c, const json_t *value)
{
	const struct odm_context_source key = { .value = value }, *found = NULL;

	if (c->n_sources > 0)
		found = bsearch(&key, c->source, c->n_sources, sizeof(key), compare_sources);
	return found != NULL ? found->text : NULL;
}

const struct od_text_spans *odm_context_marks_of(const struct odm_context *c, const json_t *value)
{
	const struct odm_context_marks key = { .value = value }, *found = NULL;

	if (c->n_marks > 0)
		found = bsearch(&key, c->marks, c->n_marks, sizeof(key), compare_marks);
	return found != NULL ? &found->spans : NULL;
}

static int no_memory(struct build *b)
{
	return od_fail(b->err, OD_ERR_NOMEM, "%s: no memory", b->where);
}

/* Takes value. */
static int set(struct build *b, json_t *object, const char *key, json_t *value)
{
	return json_object_set_new(object, key, value) == 0 ? OD_OK : no_memory(b);
}

/* ---- Arguments of calls ---- */

static int add_source(struct build *b, const json_t *value, struct odm_slice text)
{
	struct odm_context *c = b->out;
	struct odm_context_source *grown = realloc(c->source, (c->n_sources + 1) * sizeof(*grown));

	if (grown == NULL)
		return no_memory(b);
	c->source = grown;
	grown[c->n_sources] = (struct odm_context_source){ value, strndup(text.text, text.len) };
	return grown[c->n_sources++].text == NULL ? no_memory(b) : OD_OK;
}

/* Spells values as call_args.h does: Python's True for true, except one with two spaces before it. */
static const char *python_spelling(struct odm_slice v)
{
	static const char *const spelling[][2] = { { "true", "True" }, { "false", "False" }, { "null", "None" } };

	/* a key and a colon stand before a value, so there are three bytes */
	if (v.text[-1] == ' ' && v.text[-2] == ' ')
		return NULL;
	for (size_t i = 0; i < 3; i++)
		if (v.len == strlen(spelling[i][0]) && memcmp(v.text, spelling[i][0], v.len) == 0)
			return spelling[i][1];
	return NULL;
}

/* Makes the object whose values are the texts between the tags. */
static json_t *values_of(const struct odm_chat_format *format, struct odm_slice args)
{
	const bool python = format->n_calls > 0 && format->calls[0].values == ODM_VALUE_LINES;
	json_t *object = json_object();
	struct odm_json_item m;

	for (size_t pos = 0; object != NULL && odm_json_next(args, &pos, &m);) {
		json_t *key = odm_json_value(m.key), *value;
		const char *spelling = python ? python_spelling(m.value) : NULL;

		if (m.value.text[0] == '"')
			value = odm_json_value(m.value);
		else if (spelling != NULL)
			value = json_string(spelling);
		else
			value = json_stringn(m.value.text, m.value.len);
		if (key == NULL || !od_json_setn(object, json_string_value(key), json_string_length(key), value)) {
			json_decref(object);
			object = NULL;
		}
		json_decref(key);
	}
	return object;
}

/* NULL: out of memory. */
static json_t *gemma_of(struct build *b, struct odm_slice args)
{
	struct odm_context *c = b->out;
	struct odm_context_marks *grown = realloc(c->marks, (c->n_marks + 1) * sizeof(*grown)), *marks;
	struct od_strbuf text = { 0 };

	if (grown == NULL)
		return NULL;
	c->marks = grown;
	marks = &grown[c->n_marks++];
	*marks = (struct odm_context_marks){ 0 };
	if (odm_gemma_of_json(&text, &marks->spans, args))
		marks->value = json_stringn(od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return (json_t *)marks->value;
}

/* args: the text of a JSON object, whose value is taken. */
static int convert_object(struct build *b, json_t *function, struct odm_slice args, json_t *object)
{
	json_t *value = object;
	int rc = OD_OK;

	if (b->format->echo == ODM_ECHO_VALUES)
		value = values_of(b->format, args);
	else if (b->format->echo == ODM_ECHO_GEMMA)
		value = gemma_of(b, args);
	else
		rc = add_source(b, object, args);
	if (value != object)
		json_decref(object);
	if (rc == OD_OK)
		return value != NULL ? set(b, function, "arguments", value) : no_memory(b);
	json_decref(value);
	return rc;
}

/* A text that is no JSON object, such as one that was cut off, becomes a member of an object: the model shall see its
 * own text. */
static int convert_args(struct build *b, json_t *function, struct odm_slice args)
{
	json_t *object = odm_json_value(args);
	char *text;
	int rc;

	if (json_is_object(object))
		return convert_object(b, function, args, object);
	json_decref(object);
	object = json_pack("{s:s%}", "arguments", args.text, args.len);
	text = json_dumps(object, 0);
	if (text == NULL) {
		json_decref(object);
		return no_memory(b);
	}
	rc = convert_object(b, function, (struct odm_slice){ text, strlen(text) }, object);
	free(text);
	return rc;
}

static int read_args(struct build *b, json_t *function)
{
	const json_t *given = json_object_get(function, "arguments");
	const size_t len = json_string_length(given);
	char *text;
	int rc;

	if (json_is_null(given)) {
		json_object_del(function, "arguments");
		return OD_OK;
	}
	if (given == NULL || json_is_object(given) || (json_is_string(given) && b->format->echo == ODM_ECHO_TEXT))
		return OD_OK;
	if (!json_is_string(given))
		return od_fail(b->err, OD_ERR_FORMAT, "%s.arguments: expected a string", b->where);
	text = malloc(len + 1); /* setting arguments frees given */
	if (text == NULL)
		return no_memory(b);
	memcpy(text, json_string_value(given), len);
	/* Clients send an empty text for a call without arguments. */
	rc = convert_args(b, function, len > 0 ? (struct odm_slice){ text, len } : (struct odm_slice){ "{}", 2 });
	free(text);
	return rc;
}

/* ---- Ids ---- */

static bool is_short_id(const char *id)
{
	size_t n = 0;

	while ((id[n] >= '0' && id[n] <= '9') || (id[n] >= 'A' && id[n] <= 'Z') || (id[n] >= 'a' && id[n] <= 'z'))
		n++;
	return n == SHORT_ID_LEN && id[n] == '\0';
}

/* Makes a short id: equal ids become equal ones (FNV-1a in base 36). */
static void shorten_id(char out[SHORT_ID_LEN + 1], const char *id)
{
	unsigned long long hash = 14695981039346656037ull;

	for (; *id != '\0'; id++)
		hash = (hash ^ (unsigned char)*id) * 1099511628211ull;
	for (size_t i = 0; i < SHORT_ID_LEN; i++, hash /= 36)
		out[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
	out[SHORT_ID_LEN] = '\0';
}

json_t *odm_counted_id(const char *name, size_t index)
{
	return json_sprintf("functions.%s:%zu", name, index);
}

/* Returns the id as the template gets it, a new reference; NULL: none. id: as the client gave it; NULL: none. */
static json_t *make_id(const struct build *b, json_t *id, const char *name)
{
	char out[SHORT_ID_LEN + 1], number[32];

	if (b->format->ids == ODM_IDS_COUNTED)
		return odm_counted_id(name, b->n_calls);
	if (b->format->ids == ODM_IDS_ANY || (id != NULL && is_short_id(json_string_value(id))))
		return json_incref(id);
	snprintf(number, sizeof(number), "%zu", b->n_calls);
	shorten_id(out, id != NULL ? json_string_value(id) : number);
	return json_string(out);
}

/* Gives the call its id, and remembers it and the name for the tool's answer. An id that comes again is another call's
 * if its message is another. */
static int note_call(struct build *b, json_t *call, size_t at)
{
	json_t *given = json_object_get(call, "id"), *name = json_object_get(json_object_get(call, "function"), "name");
	json_t *id = make_id(b, json_is_string(given) ? given : NULL, json_string_value(name)), *same, *entry;
	const json_t *first;
	int rc = OD_OK;

	entry = json_pack("{s:O, s:O*, s:I}", "name", name, "id", id, "at", (json_int_t)at);
	same = json_is_string(given) ? od_json_getn(b->calls, json_string_value(given), json_string_length(given)) :
				       NULL;
	first = json_array_get(same, 0);
	if (first != NULL && json_integer_value(json_object_get(first, "at")) != (json_int_t)at)
		json_array_clear(same);
	if (same == NULL && json_is_string(given)) {
		same = json_array();
		if (!od_json_setn(b->calls, json_string_value(given), json_string_length(given), same))
			rc = no_memory(b);
	}
	if (rc == OD_OK && same != NULL && json_array_append(same, entry) != 0)
		rc = no_memory(b);
	if (rc == OD_OK && json_array_append(b->latest, entry) != 0)
		rc = no_memory(b);
	b->n_calls++;
	json_decref(entry);
	if (rc == OD_OK && id != NULL && id != given)
		return set(b, call, "id", id);
	json_decref(id);
	return rc;
}

/* Returns the call that a tool answers, borrowed. If several calls have the id, the last result belongs to the last
 * call. Without a known id, the results are taken to be in the calls' order. */
static const json_t *answered_call(struct build *b, const json_t *id)
{
	json_t *same =
		json_is_string(id) ? od_json_getn(b->calls, json_string_value(id), json_string_length(id)) : NULL;
	const json_t *entry = json_array_get(same, 0);

	if (entry == NULL && (id == NULL || b->format->ids == ODM_IDS_COUNTED))
		entry = json_array_get(b->latest, b->n_results);
	else if (json_array_size(same) > 1)
		json_array_remove(same, 0);
	b->n_results++;
	return entry;
}

/* Sorts the fields of the function, because templates may write the whole object, and clients sort its fields in their
 * own way. *function: the new object. */
static int order_fields(struct build *b, json_t *call, json_t **function)
{
	json_t *given = *function, *arguments = json_object_get(given, "arguments"), *ordered = json_object();
	bool good = json_object_set(ordered, "name", json_object_get(given, "name")) == 0;

	if (arguments != NULL)
		good = json_object_set(ordered, "arguments", arguments) == 0 && good;
	good = json_object_update_missing(ordered, given) == 0 && good;
	*function = ordered;
	if (good)
		return set(b, call, "function", ordered);
	json_decref(ordered);
	return no_memory(b);
}

/* A custom tool's call becomes the call of a function whose argument is the input. */
static int read_custom(struct build *b, json_t *call)
{
	const json_t *custom = json_object_get(call, "custom"), *input = json_object_get(custom, "input");
	json_t *object, *function;
	char *text;
	int rc;

	if (!json_is_object(custom) || json_object_get(call, "function") != NULL)
		return OD_OK;
	object = input != NULL ? json_pack("{s:O}", "input", input) : json_object();
	text = json_dumps(object, 0);
	function = json_pack("{s:O*, s:s}", "name", json_object_get(custom, "name"), "arguments",
			     text != NULL ? text : "");
	json_decref(object);
	rc = set(b, call, "function", function);
	if (text == NULL)
		rc = no_memory(b);
	free(text);
	json_object_del(call, "custom");
	json_object_del(call, "type");
	return rc;
}

static int read_call(struct build *b, json_t *call, size_t at)
{
	json_t *function;
	int rc = read_custom(b, call);

	if (rc != OD_OK)
		return rc;
	function = json_object_get(call, "function");
	if (!json_is_object(function))
		return od_fail(b->err, OD_ERR_FORMAT, "%s: expected an object", b->where);
	if (!json_is_string(json_object_get(function, "name")))
		return od_fail(b->err, OD_ERR_FORMAT, "%s.name: expected a string", b->where);
	rc = order_fields(b, call, &function);
	if (rc != OD_OK)
		return rc;
	if (!json_is_string(json_object_get(call, "type")))
		rc = set(b, call, "type", json_string("function"));
	if (rc == OD_OK)
		rc = note_call(b, call, at);
	return rc == OD_OK ? read_args(b, function) : rc;
}

static int read_calls(struct build *b, json_t *message, size_t at)
{
	json_t *calls = json_object_get(message, "tool_calls"), *call;
	int rc = OD_OK;
	size_t i;

	if (calls == NULL)
		return OD_OK;
	json_array_clear(b->latest);
	b->n_results = 0;
	if (!json_is_array(calls))
		return od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].tool_calls: expected an array", at);
	json_array_foreach(calls, i, call)
	{
		snprintf(b->where, sizeof(b->where), "messages[%zu].tool_calls[%zu].function", at, i);
		rc = read_call(b, call, at);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

/* ---- Content ---- */

/* *out: the part with a text, a new reference; NULL: it has none. */
static int read_part(struct build *b, json_t **out, json_t *part, size_t at, size_t i)
{
	const char *type = json_string_value(json_object_get(part, "type")), *bad;
	struct od_strbuf text = { 0 };
	int rc = OD_OK;

	*out = NULL;
	if (odm_part_is_thought(part))
		return OD_OK;
	bad = odm_part_text(&text, part);
	if (bad != NULL)
		rc = od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].content[%zu].%s: expected a string", at, i, bad);
	else if (type != NULL && strcmp(type, "text") == 0)
		*out = json_incref(part);
	else
		*out = json_pack("{s:s, s:o}", "type", "text", "text", json_stringn(od_strbuf_text(&text), text.len));
	if (rc == OD_OK && (*out == NULL || text.failed))
		rc = no_memory(b);
	od_strbuf_fini(&text);
	return rc;
}

/* Makes the list of texts only. An assistant's thought in it becomes the message's thought if it has none. */
static int read_parts(struct build *b, json_t *message, json_t *parts, size_t at)
{
	json_t *texts = json_array(), *part, *text;
	struct od_strbuf thought = { 0 };
	int rc = texts != NULL ? OD_OK : no_memory(b);
	size_t i;

	json_array_foreach(parts, i, part)
	{
		if (rc == OD_OK)
			rc = read_part(b, &text, part, at, i);
		if (rc == OD_OK && odm_part_is_thought(part))
			odm_part_thought(&thought, part);
		else if (rc == OD_OK && json_array_append_new(texts, text) != 0)
			rc = no_memory(b);
	}
	if (rc == OD_OK && thought.failed)
		rc = no_memory(b);
	if (rc == OD_OK && thought.len > 0 && json_object_get(message, "reasoning_content") == NULL)
		rc = set(b, message, "reasoning_content", json_stringn(thought.text, thought.len));
	od_strbuf_fini(&thought);
	if (rc == OD_OK)
		return set(b, message, "content", texts);
	json_decref(texts);
	return rc;
}

/* Content becomes a string or a list of text parts; if there is none, null, or the assistant's refusal. */
static int read_content(struct build *b, json_t *message, size_t at)
{
	json_t *content = json_object_get(message, "content"), *refusal = json_object_get(message, "refusal");

	snprintf(b->where, sizeof(b->where), "messages[%zu].content", at);
	if (json_is_array(content))
		return read_parts(b, message, content, at);
	if (json_is_string(content))
		return OD_OK;
	if (content != NULL && !json_is_null(content))
		return od_fail(b->err, OD_ERR_FORMAT, "%s: expected a string or an array", b->where);
	return set(b, message, "content", json_is_string(refusal) ? json_incref(refusal) : json_null());
}

/* ---- Messages ---- */

/* Drops fields that templates read and that clients send empty. */
static void drop_empty(json_t *message)
{
	static const char *const texts[] = { "name", "tool_call_id", "reasoning_content", "reasoning", "thinking" };
	const char *key;
	json_t *value;
	void *next;

	json_object_foreach_safe(message, next, key, value) if (json_is_null(value) && strcmp(key, "content") != 0)
		json_object_del(message, key);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!json_is_string(json_object_get(message, texts[i])))
			json_object_del(message, texts[i]);
	value = json_object_get(message, "tool_calls");
	if (json_is_array(value) && json_array_size(value) == 0)
		json_object_del(message, "tool_calls");
}

/* Before there were tools, OpenAI's calls had this format. */
static int read_function_call(struct build *b, json_t *message)
{
	json_t *call = json_object_get(message, "function_call");
	int rc = OD_OK;

	if (!json_is_object(call))
		return OD_OK;
	if (json_object_get(message, "tool_calls") == NULL)
		rc = set(b, message, "tool_calls", json_pack("[{s:O}]", "function", call));
	json_object_del(message, "function_call");
	return rc;
}

static int read_assistant(struct build *b, json_t *message, size_t at)
{
	static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
	json_t *thought = NULL;
	int rc = read_function_call(b, message);

	if (rc == OD_OK)
		rc = read_calls(b, message, at);
	for (size_t i = 0; i < 3 && thought == NULL; i++)
		thought = json_object_get(message, names[i]);
	if (rc != OD_OK || thought == NULL)
		return rc;
	rc = set(b, message, "reasoning_content", json_incref(thought));
	if (rc == OD_OK && b->format->thought_field == ODM_THOUGHT_THINKING &&
	    json_object_get(message, "thinking") == NULL)
		rc = set(b, message, "thinking", json_incref(thought));
	if (rc == OD_OK && b->format->thought_field == ODM_THOUGHT_REASONING &&
	    json_object_get(message, "reasoning") == NULL)
		rc = set(b, message, "reasoning", json_incref(thought));
	/* Harmony's template takes only one of both beside a call, and writes either as a thought. */
	if (rc == OD_OK && b->format->harmony && json_array_size(json_object_get(message, "tool_calls")) > 0)
		rc = set(b, message, "content", json_string(""));
	return rc;
}

static int read_tool(struct build *b, json_t *message)
{
	json_t *given = json_object_get(message, "tool_call_id"), *id, *name;
	const json_t *call = answered_call(b, given);
	char shorter[SHORT_ID_LEN + 1];
	int rc = OD_OK;

	id = json_object_get(call, "id");
	name = json_object_get(call, "name");
	if (id != NULL && id != given)
		rc = set(b, message, "tool_call_id", json_incref(id));
	else if (id == NULL && given != NULL && b->format->ids == ODM_IDS_SHORT &&
		 !is_short_id(json_string_value(given))) {
		shorten_id(shorter, json_string_value(given));
		rc = set(b, message, "tool_call_id", json_string(shorter));
	}
	if (rc != OD_OK || name == NULL || b->format->name_is_role || json_object_get(message, "name") != NULL)
		return rc;
	return set(b, message, "name", json_incref(name));
}

static int read_message(struct build *b, json_t *message, size_t at)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	int rc;

	if (role == NULL)
		return od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].role: expected a string", at);
	drop_empty(message);
	rc = read_content(b, message, at);
	if (rc == OD_OK && strcmp(role, "assistant") == 0)
		rc = read_assistant(b, message, at);
	else if (rc == OD_OK && strcmp(role, "tool") == 0)
		rc = read_tool(b, message);
	else if (rc == OD_OK && strcmp(role, "function") == 0) /* role of results before there were tools */
		rc = set(b, message, "role", json_string("tool")) == OD_OK ? read_tool(b, message) : OD_ERR_NOMEM;
	else if (rc == OD_OK && strcmp(role, "developer") == 0 && !b->format->takes_developer)
		rc = set(b, message, "role", json_string("system"));
	return rc;
}

/* ---- Content as the template takes it ---- */

static enum odm_content content_of(const struct odm_chat_format *format, const json_t *message)
{
	static const char *const roles[ODM_ROLES] = {
		[ODM_ROLE_SYSTEM] = "system",	    [ODM_ROLE_DEVELOPER] = "developer", [ODM_ROLE_USER] = "user",
		[ODM_ROLE_ASSISTANT] = "assistant", [ODM_ROLE_TOOL] = "tool",
	};
	const char *role = json_string_value(json_object_get(message, "role"));

	for (size_t i = 0; i < ODM_ROLES; i++)
		if (strcmp(roles[i], role) == 0)
			return format->content[i];
	return ODM_CONTENT_TEXT;
}

/* Makes a list of the thought, if the template reads it there, and the text. NULL: out of memory. */
static json_t *as_parts(const json_t *thought, const json_t *text)
{
	json_t *parts = json_array();

	if (thought != NULL &&
	    json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "thinking", "thinking", thought)) != 0)
		goto fail;
	if ((thought == NULL || json_string_length(text) > 0) &&
	    json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", text)) != 0)
		goto fail;
	return parts;
fail:
	json_decref(parts);
	return NULL;
}

static json_t *joined(const json_t *content)
{
	struct od_strbuf text = { 0 };
	json_t *s;

	odm_parts_join(&text, content);
	s = text.failed ? NULL : json_stringn(od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return s;
}

static int write_content(struct build *b, json_t *message)
{
	const enum odm_content takes = content_of(b->format, message);
	const bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
	const json_t *thought = json_object_get(message, "reasoning_content");
	json_t *content = json_object_get(message, "content");
	int rc = OD_OK;

	if (json_is_null(content) && calls && b->format->no_text != ODM_NO_TEXT_EMPTY)
		return OD_OK;
	if (json_string_length(content) == 0 && json_is_string(content) && calls &&
	    b->format->no_text == ODM_NO_TEXT_NEVER)
		return set(b, message, "content", json_null());
	if (b->format->thought_field != ODM_THOUGHT_PARTS)
		thought = NULL;
	if (json_is_null(content) ||
	    (json_is_array(content) && (thought != NULL || takes == ODM_CONTENT_TEXT || takes == ODM_CONTENT_PART)))
		rc = set(b, message, "content", joined(content));
	content = json_object_get(message, "content");
	if (rc == OD_OK && json_is_string(content) && (takes >= ODM_CONTENT_PARTS || thought != NULL))
		rc = set(b, message, "content", as_parts(thought, content));
	return rc;
}

int odm_context_arrange(struct odm_context *c, const struct odm_chat_format *format, unsigned needs, struct od_err *err)
{
	struct build b = { .out = c, .format = format, .where = "messages", .err = err };
	json_t *message;
	int rc = odm_order_apply(c, needs);
	size_t i;

	if (rc != OD_OK)
		return no_memory(&b);
	json_array_foreach(c->messages, i, message)
	{
		rc = write_content(&b, message);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

/* ---- All ---- */

static int read_messages(struct build *b, const json_t *messages)
{
	const json_t *given;
	int rc = OD_OK;
	size_t i;

	if (!json_is_array(messages))
		rc = od_fail(b->err, OD_ERR_FORMAT, "messages: expected an array");
	json_array_foreach((json_t *)(uintptr_t)messages, i, given)
	{
		json_t *message = json_is_object(given) ? od_json_copy(given) : NULL;

		json_object_del(message, ODM_LAST_PART);
		if (!json_is_object(given))
			rc = od_fail(b->err, OD_ERR_FORMAT, "messages[%zu]: expected an object", i);
		else
			rc = message == NULL ? no_memory(b) : read_message(b, message, i);
		if (rc == OD_OK && json_array_append(b->out->messages, message) != 0)
			rc = no_memory(b);
		json_decref(message);
		if (rc != OD_OK)
			break;
	}
	return rc;
}

int odm_context_build(struct odm_context *out, const json_t *messages, const struct odm_chat_format *format,
		      struct od_err *err)
{
	struct build b = { .out = out,
			   .format = format,
			   .calls = json_object(),
			   .latest = json_array(),
			   .where = "messages",
			   .err = err };
	int rc;

	*out = (struct odm_context){ .messages = json_array() };
	rc = out->messages != NULL && b.calls != NULL && b.latest != NULL ? read_messages(&b, messages) : no_memory(&b);
	json_decref(b.calls);
	json_decref(b.latest);
	if (rc == OD_OK && out->n_sources > 0)
		qsort(out->source, out->n_sources, sizeof(*out->source), compare_sources);
	if (rc == OD_OK && out->n_marks > 0)
		qsort(out->marks, out->n_marks, sizeof(*out->marks), compare_marks);
	if (rc == OD_OK)
		rc = odm_context_arrange(out, format, format->needs, err);
	if (rc != OD_OK)
		odm_context_fini(out);
	return rc;
}
