#include "main-node/chat/chat_order.h"

#include "common/base/log.h"
#include "main-node/chat/first_time.h"
#include "main-node/chat/part_text.h"

#include <string.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* Each change reads `in` and fills `out`. Messages belong to the context, so they may be changed. */
struct order {
	const struct odm_context *context;
	json_t *in, *out;
	bool changed, failed;
};

static bool is_role(const json_t *message, const char *role)
{
	const char *r = json_string_value(json_object_get(message, "role"));

	return r != NULL && strcmp(r, role) == 0;
}

static bool is_system(const json_t *message)
{
	return is_role(message, "system") || is_role(message, "developer");
}

static json_t *calls_of(const json_t *message)
{
	json_t *calls = json_object_get(message, "tool_calls");

	return json_array_size(calls) > 0 ? calls : NULL;
}

static void push(struct order *o, json_t *message)
{
	if (json_array_append(o->out, message) != 0)
		o->failed = true;
}

static void push_new(struct order *o, json_t *message)
{
	o->changed = true;
	if (json_array_append_new(o->out, message) != 0)
		o->failed = true;
}

static json_t *last_out(const struct order *o)
{
	const size_t n = json_array_size(o->out);

	return n > 0 ? json_array_get(o->out, n - 1) : NULL;
}

static void set(struct order *o, json_t *object, const char *key, json_t *value) /* takes value */
{
	o->changed = true;
	if (json_object_set_new(object, key, value) != 0)
		o->failed = true;
}

static void set_text(struct order *o, json_t *message, const char *key, struct od_strbuf *text) /* ends text */
{
	o->failed = o->failed || text->failed;
	set(o, message, key, json_stringn(od_strbuf_text(text), text->len));
	od_strbuf_fini(text);
}

/* Joins both texts in `into`, with a blank line between them if neither is empty. */
static void join_field(struct order *o, json_t *into, const json_t *first, const json_t *second, const char *key)
{
	struct od_strbuf text = { 0 }, more = { 0 };

	odm_parts_join(&text, json_object_get(first, key));
	odm_parts_join(&more, json_object_get(second, key));
	od_strbuf_append(&text, "\n\n", text.len > 0 && more.len > 0 ? 2 : 0);
	od_strbuf_append(&text, more.text, more.len);
	o->failed = o->failed || more.failed;
	od_strbuf_fini(&more);
	if (text.len > 0 || strcmp(key, "content") == 0)
		set_text(o, into, key, &text);
	od_strbuf_fini(&text);
}

static void merge(struct order *o, json_t *into, const json_t *message)
{
	static const char *const thoughts[] = { "reasoning_content", "reasoning", "thinking" };
	json_t *calls = calls_of(message);

	join_field(o, into, into, message, "content");
	for (size_t i = 0; i < N(thoughts); i++)
		join_field(o, into, into, message, thoughts[i]);
	if (calls != NULL && calls_of(into) != NULL)
		o->failed = json_array_extend(calls_of(into), calls) != 0 || o->failed;
	else if (calls != NULL)
		set(o, into, "tool_calls", json_incref(calls));
}

/* ---- Messages of one role ---- */

static void one_of(struct order *o, const char *role)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (is_role(m, role) && is_role(last_out(o), role))
			merge(o, last_out(o), m);
		else
			push(o, m);
	}
}

static void one_system(struct order *o)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (is_system(m) && is_system(last_out(o)))
			merge(o, last_out(o), m);
		else
			push(o, m);
	}
}

static void one_user(struct order *o)
{
	one_of(o, "user");
}

static void one_assistant(struct order *o)
{
	one_of(o, "assistant");
}

/* ---- The system ---- */

static bool answers(const json_t *message)
{
	return is_role(message, "assistant") || is_role(message, "tool");
}

static void system_first(struct order *o)
{
	size_t opening = 0, i;
	json_t *m;

	while (opening < json_array_size(o->in) && !answers(json_array_get(o->in, opening)))
		opening++;
	for (i = 0; i < opening; i++)
		if (is_system(json_array_get(o->in, i))) {
			o->changed = o->changed || json_array_size(o->out) < i;
			push(o, json_array_get(o->in, i));
		}
	json_array_foreach(o->in, i, m)
	{
		if (i < opening && is_system(m))
			continue;
		if (is_system(m))
			set(o, m, "role", json_string("user"));
		push(o, m);
	}
}

static void no_system(struct order *o)
{
	json_t *m, *before = NULL;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (is_system(m) && before != NULL) {
			merge(o, before, m);
		} else if (is_system(m)) {
			before = m;
		} else if (before != NULL && is_role(m, "user")) {
			join_field(o, m, before, m, "content");
			push(o, m);
			before = NULL;
		} else {
			if (before != NULL)
				set(o, before, "role", json_string("user"));
			if (before != NULL)
				push(o, before);
			push(o, m);
			before = NULL;
		}
	}
	if (before != NULL) {
		set(o, before, "role", json_string("user"));
		push(o, before);
	}
}

static json_t *user_message(const char *text)
{
	return json_pack("{s:s, s:s}", "role", "user", "content", text);
}

static void user_first(struct order *o)
{
	bool before = true; /* true: only the system's messages so far */
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (before && answers(m))
			push_new(o, user_message(""));
		before = before && is_system(m);
		push(o, m);
	}
	if (before)
		push_new(o, user_message(""));
}

/* ---- Calls and results ---- */

static const char *name_of(const json_t *call)
{
	const char *name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));

	return name != NULL ? name : "";
}

static void push_result_as_user(struct order *o, json_t *m)
{
	const char *name = json_string_value(json_object_get(m, "name"));
	struct od_strbuf text = { 0 };
	json_t *user = user_message("");

	if (name != NULL)
		od_strbuf_printf(&text, "[result of %s]\n", name);
	else
		od_strbuf_printf(&text, "[result]\n");
	odm_parts_join(&text, json_object_get(m, "content"));
	set_text(o, user, "content", &text);
	push_new(o, user);
}

static void result_as_user(struct order *o)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (is_role(m, "tool"))
			push_result_as_user(o, m);
		else
			push(o, m);
	}
}

/* Adds results for the calls whose ids are not in `seen`. */
static void push_missing(struct order *o, const json_t *calls, const json_t *seen)
{
	const json_t *call;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)calls, i, call)
	{
		const char *id = json_string_value(json_object_get(call, "id"));

		if (id != NULL && json_object_get(seen, id) == NULL)
			push_new(o, json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "tool_call_id", id, "name",
					      name_of(call), "content", "[no result]"));
	}
}

static void result_for_call(struct order *o)
{
	/* calls of the last assistant's message; ids that have a result */
	json_t *calls = NULL, *seen = json_object(), *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		const char *id = json_string_value(json_object_get(m, "tool_call_id"));

		if (!is_role(m, "tool")) {
			push_missing(o, calls, seen);
			calls = is_role(m, "assistant") ? calls_of(m) : NULL;
			json_object_clear(seen);
			push(o, m);
		} else if (json_object_size(seen) < json_array_size(calls)) {
			if (id != NULL && json_object_set_new(seen, id, json_true()) != 0)
				o->failed = true;
			push(o, m);
		} else {
			push_result_as_user(o, m);
		}
	}
	o->failed = o->failed || seen == NULL;
	json_decref(seen);
}

static void answer_to_result(struct order *o)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (is_role(m, "user") && is_role(last_out(o), "tool"))
			join_field(o, last_out(o), last_out(o), m, "content");
		else
			push(o, m);
	}
}

static const char *answered_id(const json_t *result)
{
	const char *id = json_string_value(json_object_get(result, "tool_call_id"));

	return id != NULL ? id : "";
}

/* Sorts the results behind the message at `at` into the order of its calls. A result whose id no call has, or the
 * second one of an id, comes last. */
static void split_calls(struct order *o, size_t at, size_t n_results)
{
	json_t *m = json_array_get(o->in, at), *calls = json_incref(calls_of(m)), *results = json_object(),
	       *rest = json_array(), *call;
	size_t i;

	for (i = 1; i <= n_results; i++) {
		json_t *result = json_array_get(o->in, at + i);

		if (json_object_get(results, answered_id(result)) != NULL)
			o->failed = json_array_append(rest, result) != 0 || o->failed;
		else
			o->failed = json_object_set(results, answered_id(result), result) != 0 || o->failed;
	}
	json_array_foreach(calls, i, call)
	{
		const char *id = json_string_value(json_object_get(call, "id"));
		json_t *result = id != NULL ? json_object_get(results, id) : NULL;

		if (i == 0) {
			set(o, m, "tool_calls", json_pack("[O]", call));
			push(o, m);
		} else {
			push_new(o, json_pack("{s:s, s:n, s:[O]}", "role", "assistant", "content", "tool_calls", call));
		}
		if (result == NULL)
			continue;
		push(o, result);
		json_object_del(results, id);
	}
	for (i = 1; i <= n_results; i++)
		if (json_object_get(results, answered_id(json_array_get(o->in, at + i))) ==
		    json_array_get(o->in, at + i))
			push(o, json_array_get(o->in, at + i));
	o->failed = json_array_extend(o->out, rest) != 0 || o->failed;
	json_decref(results);
	json_decref(rest);
	json_decref(calls);
}

static void one_call(struct order *o)
{
	const size_t n = json_array_size(o->in);

	for (size_t i = 0, results; i < n; i += 1 + results) {
		json_t *m = json_array_get(o->in, i);

		results = 0;
		if (!is_role(m, "assistant") || json_array_size(calls_of(m)) < 2) {
			push(o, m);
			continue;
		}
		while (is_role(json_array_get(o->in, i + 1 + results), "tool"))
			results++;
		split_calls(o, i, results);
	}
}

static bool has_text(const json_t *message)
{
	struct od_strbuf text = { 0 };
	bool has;

	odm_parts_join(&text, json_object_get(message, "content"));
	has = text.len > 0;
	od_strbuf_fini(&text);
	return has;
}

static void said(struct order *o)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (is_role(m, "assistant") && calls_of(m) == NULL && !has_text(m))
			o->changed = true;
		else
			push(o, m);
	}
}

static void call_alone(struct order *o)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		json_t *calls = calls_of(m);

		if (calls != NULL && has_text(m)) {
			json_incref(calls);
			json_object_del(m, "tool_calls");
			push(o, m);
			m = json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", calls);
			push_new(o, m);
		} else {
			push(o, m);
		}
	}
}

static void call_only(struct order *o)
{
	json_t *m;
	size_t i;

	json_array_foreach(o->in, i, m)
	{
		if (calls_of(m) != NULL && has_text(m))
			set(o, m, "content", json_null());
		push(o, m);
	}
}

static void write_call(struct order *o, struct od_strbuf *text, const json_t *call)
{
	const json_t *args = json_object_get(json_object_get(call, "function"), "arguments");
	const char *written = json_is_string(args) ? json_string_value(args) : odm_context_source(o->context, args);
	char *dumped = written == NULL && args != NULL ? json_dumps(args, JSON_ENCODE_ANY) : NULL;

	od_strbuf_append(text, "\n", text->len > 0);
	od_strbuf_printf(text, "[call of %s: %s]", name_of(call),
			 written != NULL ? written :
			 dumped != NULL	 ? dumped :
					   "{}");
	free(dumped);
}

static void call_as_text(struct order *o)
{
	json_t *m, *call;
	size_t i, k;

	json_array_foreach(o->in, i, m)
	{
		struct od_strbuf text = { 0 };

		if (calls_of(m) != NULL) {
			odm_parts_join(&text, json_object_get(m, "content"));
			json_array_foreach(calls_of(m), k, call) write_call(o, &text, call);
			set_text(o, m, "content", &text);
			json_object_del(m, "tool_calls");
		}
		push(o, m);
	}
}

/* ---- All ---- */

/* They are applied in this order: a message that becomes the user's is joined with others afterwards. */
static const struct {
	unsigned need;
	void (*change)(struct order *o);
	const char *refused, *done;
} rows[] = {
	{ ODM_NEED_SAID, said, "an assistant message without text", "it is left out" },
	{ ODM_NEED_RESULT_FOR_CALL, result_for_call, "results without calls, or calls without results",
	  "a result becomes the user's, a missing one is added" },
	{ ODM_NEED_ONE_CALL, one_call, "several calls in one message", "each becomes a message" },
	{ ODM_NEED_CALL_ALONE, call_alone, "text and calls in one message", "they become two messages" },
	{ ODM_NEED_CALL_ONLY, call_only, "text beside calls", "the text is left out" },
	{ ODM_NEED_RESULT_AS_USER, result_as_user, "results of tools", "they become the user's messages" },
	{ ODM_NEED_CALL_AS_TEXT, call_as_text, "calls of tools", "they become text of the assistant" },
	{ ODM_NEED_SYSTEM_FIRST, system_first, "a system message that is not first",
	  "it goes to the front, or becomes the user's once the assistant has answered" },
	{ ODM_NEED_ONE_SYSTEM, one_system, "two system messages in a row", "they are joined" },
	{ ODM_NEED_NO_SYSTEM, no_system, "system messages", "their text goes before the user's" },
	{ ODM_NEED_USER_FIRST, user_first, "conversations that do not begin with the user",
	  "an empty user message begins them" },
	{ ODM_NEED_ANSWER_TO_RESULT, answer_to_result, "a user message behind a tool's result", "they are joined" },
	{ ODM_NEED_ONE_USER, one_user, "two user messages in a row", "they are joined" },
	{ ODM_NEED_ONE_ASSISTANT, one_assistant, "two assistant messages in a row", "they are joined" },
};

int odm_order_apply(struct odm_context *c, unsigned needs)
{
	bool failed = false;

	for (size_t i = 0; i < N(rows) && !failed; i++) {
		struct order o = { .context = c, .in = c->messages, .out = json_array() };

		if ((needs & rows[i].need) == 0) {
			json_decref(o.out);
			continue;
		}
		rows[i].change(&o);
		failed = o.failed || o.out == NULL;
		c->changed |= o.changed ? rows[i].need : 0;
		c->messages = o.out;
		json_decref(o.in);
	}
	return failed ? OD_ERR_NOMEM : OD_OK;
}

void odm_order_tell(unsigned changed)
{
	for (size_t i = 0; i < N(rows); i++)
		if ((changed & rows[i].need) != 0 && odm_first_time("order", rows[i].refused))
			od_log(OD_LOG_WARN, "the model's chat template does not take %s; %s", rows[i].refused,
			       rows[i].done);
}
