#include "main-node/chat/chat_messages.h"

#include "common/base/json.h"
#include "main-node/chat/gemma_args.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WHERE 96
#define SHORT_ID_LEN 9

struct build {
	struct odm_context *out;
	const struct odm_chat_form *form;
	json_t *names; /* of the calls so far, by id */
	bool text_only;
	char where[MAX_WHERE]; /* the field that is being read */
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
	return compare_values(((const struct odm_context_source *)a)->value, ((const struct odm_context_source *)b)->value);
}

static int compare_marks(const void *a, const void *b)
{
	return compare_values(((const struct odm_context_marks *)a)->value, ((const struct odm_context_marks *)b)->value);
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

/* As call_args.h spells them: Python's True for true, but for one with two spaces before it. */
static const char *python_spelling(struct odm_slice v)
{
	static const char *const spelling[][2] = { { "true", "True" }, { "false", "False" }, { "null", "None" } };

	if (v.text[-1] == ' ' && v.text[-2] == ' ') /* a key and a colon stand before a value, so there are three bytes */
		return NULL;
	for (size_t i = 0; i < 3; i++)
		if (v.len == strlen(spelling[i][0]) && memcmp(v.text, spelling[i][0], v.len) == 0)
			return spelling[i][1];
	return NULL;
}

/* The object of which each value is the text between the tags. */
static json_t *values_of(const struct odm_chat_form *form, struct odm_slice args)
{
	const bool python = form->n_calls > 0 && form->calls[0].values == ODM_VALUE_LINES;
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
		marks->value = json_stringn(text.text != NULL ? text.text : "", text.len);
	od_strbuf_fini(&text);
	return (json_t *)marks->value;
}

static int convert_args(struct build *b, json_t *function, struct odm_slice args)
{
	json_t *object = odm_json_value(args), *value = object;
	int rc = OD_OK;

	if (!json_is_object(object)) {
		json_decref(object);
		return od_fail(b->err, OD_ERR_FORMAT, "%s.arguments: expected the text of a JSON object", b->where);
	}
	if (b->form->echo == ODM_ECHO_VALUES)
		value = values_of(b->form, args);
	else if (b->form->echo == ODM_ECHO_GEMMA)
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

static int read_args(struct build *b, json_t *function)
{
	const json_t *given = json_object_get(function, "arguments");
	const size_t len = json_string_length(given);
	char *text;
	int rc;

	if (given == NULL || json_is_object(given) || (json_is_string(given) && b->form->echo == ODM_ECHO_TEXT))
		return OD_OK;
	if (!json_is_string(given))
		return od_fail(b->err, OD_ERR_FORMAT, "%s.arguments: expected a string", b->where);
	text = malloc(len + 1); /* given goes when arguments is set */
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

/* Equal ids become equal ones: FNV-1a in base 36. */
static int shorten_id(struct build *b, json_t *object, const char *key)
{
	const char *id = json_string_value(json_object_get(object, key));
	unsigned long long hash = 14695981039346656037ull;
	char out[SHORT_ID_LEN + 1] = "";

	if (id == NULL || is_short_id(id))
		return OD_OK;
	for (; *id != '\0'; id++)
		hash = (hash ^ (unsigned char)*id) * 1099511628211ull;
	for (size_t i = 0; i < SHORT_ID_LEN; i++, hash /= 36)
		out[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
	return set(b, object, key, json_string(out));
}

/* Remembers a call's name for the tool's answer. The first call of an id counts. */
static int note_name(struct build *b, const json_t *call, json_t *name)
{
	const json_t *id = json_object_get(call, "id");
	const char *key = json_string_value(id);
	const size_t len = json_string_length(id);

	if (key == NULL || od_json_getn(b->names, key, len) != NULL)
		return OD_OK;
	return od_json_setn(b->names, key, len, json_incref(name)) ? OD_OK : no_memory(b);
}

/* Templates may write the whole object, and clients sort its fields in their own way. The new one in *function. */
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

static int read_call(struct build *b, json_t *call)
{
	json_t *function = json_object_get(call, "function");
	int rc;

	if (!json_is_object(function))
		return od_fail(b->err, OD_ERR_FORMAT, "%s: expected an object", b->where);
	if (!json_is_string(json_object_get(function, "name")))
		return od_fail(b->err, OD_ERR_FORMAT, "%s.name: expected a string", b->where);
	rc = order_fields(b, call, &function);
	if (rc != OD_OK)
		return rc;
	if (!json_is_string(json_object_get(call, "type")))
		rc = set(b, call, "type", json_string("function"));
	if (rc == OD_OK && b->form->short_ids)
		rc = shorten_id(b, call, "id");
	if (rc == OD_OK)
		rc = note_name(b, call, json_object_get(function, "name"));
	return rc == OD_OK ? read_args(b, function) : rc;
}

static int read_calls(struct build *b, json_t *message, size_t at)
{
	json_t *calls = json_object_get(message, "tool_calls"), *call;
	int rc = OD_OK;
	size_t i;

	if (calls == NULL)
		return OD_OK;
	if (!json_is_array(calls))
		return od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].tool_calls: expected an array", at);
	json_array_foreach(calls, i, call) {
		snprintf(b->where, sizeof(b->where), "messages[%zu].tool_calls[%zu].function", at, i);
		rc = read_call(b, call);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

/* ---- Content ---- */

static int check_part(struct build *b, const json_t *part, size_t at, size_t i)
{
	const char *type = json_string_value(json_object_get(part, "type"));

	if (type == NULL)
		return od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].content[%zu].type: expected a string", at, i);
	if (strcmp(type, "text") != 0 && (b->text_only || !b->form->takes_parts))
		return od_fail(b->err, OD_ERR_UNSUPPORTED, "messages[%zu].content[%zu].type: expected text, found %.32s", at, i,
			       type);
	if (strcmp(type, "text") == 0 && !json_is_string(json_object_get(part, "text")))
		return od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].content[%zu].text: expected a string", at, i);
	return OD_OK;
}

/* Templates that read a user's parts may still write a tool's as they are: GLM-4.6's do. */
static bool joins_parts(const struct build *b, const json_t *message)
{
	const char *role = json_string_value(json_object_get(message, "role"));

	return !b->form->takes_parts || (b->text_only && strcmp(role, "tool") == 0);
}

static int read_parts(struct build *b, json_t *message, const json_t *parts, size_t at)
{
	struct od_strbuf text = { 0 };
	const json_t *part;
	int rc = OD_OK;
	size_t i;

	json_array_foreach(parts, i, part) {
		const json_t *t = json_object_get(part, "text");

		rc = check_part(b, part, at, i);
		if (rc != OD_OK)
			break;
		od_strbuf_append(&text, "\n", i > 0);
		od_strbuf_append(&text, json_string_value(t), json_string_length(t));
	}
	if (rc == OD_OK && joins_parts(b, message))
		rc = text.failed ? no_memory(b)
				 : set(b, message, "content", json_stringn(text.text != NULL ? text.text : "", text.len));
	od_strbuf_fini(&text);
	return rc;
}

static int read_content(struct build *b, json_t *message, size_t at)
{
	const json_t *content = json_object_get(message, "content");
	const bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;

	snprintf(b->where, sizeof(b->where), "messages[%zu].content", at);
	if (json_is_array(content))
		return read_parts(b, message, content, at);
	if (json_is_string(content))
		return OD_OK;
	if (content != NULL && !json_is_null(content))
		return od_fail(b->err, OD_ERR_FORMAT, "%s: expected a string or an array", b->where);
	if (content == NULL && !calls)
		return od_fail(b->err, OD_ERR_MISSING, "%s: missing", b->where);
	return set(b, message, "content", calls && b->form->takes_null ? json_null() : json_string(""));
}

/* ---- Messages ---- */

static void drop_nulls(json_t *message)
{
	const char *key;
	json_t *value;
	void *next;

	json_object_foreach_safe(message, next, key, value)
		if (json_is_null(value) && strcmp(key, "content") != 0)
			json_object_del(message, key);
}

static int read_assistant(struct build *b, json_t *message, size_t at)
{
	json_t *thought = json_object_get(message, "reasoning_content");
	int rc = read_calls(b, message, at);

	if (!json_is_string(thought))
		thought = json_object_get(message, "reasoning");
	if (rc != OD_OK || !json_is_string(thought))
		return rc;
	rc = set(b, message, "reasoning_content", json_incref(thought));
	if (rc == OD_OK && b->form->takes_thinking && json_object_get(message, "thinking") == NULL)
		rc = set(b, message, "thinking", json_incref(thought));
	/* Harmony's template takes only one of both beside a call, and writes either as a thought. */
	if (rc == OD_OK && b->form->harmony && json_array_size(json_object_get(message, "tool_calls")) > 0)
		rc = set(b, message, "content", json_string(""));
	return rc;
}

static int read_tool(struct build *b, json_t *message)
{
	const json_t *id;
	json_t *name;
	int rc = b->form->short_ids ? shorten_id(b, message, "tool_call_id") : OD_OK;

	id = json_object_get(message, "tool_call_id");
	name = json_is_string(id) ? od_json_getn(b->names, json_string_value(id), json_string_length(id)) : NULL;
	if (rc != OD_OK || name == NULL || b->form->name_is_role || json_object_get(message, "name") != NULL)
		return rc;
	return set(b, message, "name", json_incref(name));
}

static int read_message(struct build *b, json_t *message, size_t at)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	int rc;

	if (role == NULL)
		return od_fail(b->err, OD_ERR_FORMAT, "messages[%zu].role: expected a string", at);
	drop_nulls(message);
	rc = read_content(b, message, at);
	if (rc == OD_OK && strcmp(role, "assistant") == 0)
		rc = read_assistant(b, message, at);
	else if (rc == OD_OK && strcmp(role, "tool") == 0)
		rc = read_tool(b, message);
	else if (rc == OD_OK && strcmp(role, "developer") == 0 && !b->form->takes_developer)
		rc = set(b, message, "role", json_string("system"));
	return rc;
}

int odm_context_build(struct odm_context *out, const json_t *messages, const struct odm_chat_form *form, bool text_only,
		      struct od_err *err)
{
	struct build b = { .out = out, .form = form, .names = json_object(), .text_only = text_only, .where = "messages",
			   .err = err };
	const json_t *given;
	int rc = OD_OK;
	size_t i;

	*out = (struct odm_context){ .messages = json_array() };
	if (!json_is_array(messages))
		rc = od_fail(err, OD_ERR_FORMAT, "messages: expected an array");
	json_array_foreach(messages, i, given) {
		json_t *message = json_is_object(given) ? json_deep_copy(given) : NULL;

		if (!json_is_object(given))
			rc = od_fail(err, OD_ERR_FORMAT, "messages[%zu]: expected an object", i);
		else
			rc = message == NULL ? no_memory(&b) : read_message(&b, message, i);
		if (rc == OD_OK && json_array_append(out->messages, message) != 0)
			rc = no_memory(&b);
		json_decref(message);
		if (rc != OD_OK)
			break;
	}
	if (rc == OD_OK && (out->messages == NULL || b.names == NULL))
		rc = no_memory(&b);
	json_decref(b.names);
	if (rc == OD_OK && out->n_sources > 0)
		qsort(out->source, out->n_sources, sizeof(*out->source), compare_sources);
	if (rc == OD_OK && out->n_marks > 0)
		qsort(out->marks, out->n_marks, sizeof(*out->marks), compare_marks);
	if (rc != OD_OK)
		odm_context_fini(out);
	return rc;
}
