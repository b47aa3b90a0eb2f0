#include "main-node/serve/api/chat_turn.h"

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "common/text/tok_controls.h"
#include "main-node/chat/answer.h"
#include "main-node/chat/answer_space.h"
#include "main-node/chat/chat_forks.h"
#include "main-node/chat/chat_template.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/chat_build.h"
#include "main-node/serve/api/output_form.h"
#include "main-node/serve/api/thinking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MAX_MARK_IDS 64
#define CALL_ID_LETTERS 24 /* OpenAI's ids have as many */
#define SHORT_ID_LETTERS 9 /* ODM_IDS_SHORT of chat_format.h */
#define MAX_ID 64

/* Tokens, without repetitions. */
struct ids {
	int32_t id[MAX_MARK_IDS];
	size_t n;
};

struct turn_choice {
	struct odm_turn *turn;
	struct odm_answer *answer;
	struct odm_answer_sink sink; /* its arg is this choice */
	/* engine thread: the same text, to find where a stop string ends it; NULL: no stop strings */
	struct odm_answer *watch;
	size_t n_calls;
	bool in_call; /* the id that is passed on */
};

/* A rendered prompt, and which of its bytes are not the template's. */
struct rendered {
	char *text;
	size_t len;
	struct od_text_spans users;
	size_t fork[ODM_CHAT_FORKS], n_forks; /* bytes */
};
_Static_assert(ODM_CHAT_FORKS <= ODM_MAX_FORKS, "the engine takes all");

struct odm_turn {
	const struct odm_chat_template *chat; /* NULL: a plain prompt */
	struct odm_chat_format plain; /* the format of answers to one */
	const struct odm_chat_format *format;
	const struct odm_app *app;
	const struct odm_engine *engine;
	const struct od_tokenizer *tokenizer;
	json_t *tools; /* an array of the functions that may be called; empty: none */
	struct rendered rendered; /* until odm_turn_add */
	int32_t *prompt;
	size_t n_prompt;
	size_t fork[ODM_CHAT_FORKS], n_forks; /* tokens of the prompt */
	size_t n_calls; /* calls in the prompt's messages */
	bool in_thought, one_call, ignore_eos;
	bool must_call; /* the answer is one call at least */
	struct odm_output_form form;
	json_t *request; /* form refers to it */
	struct od_constraint *constraint; /* NULL: any answer */
	bool opens_answer; /* the prompt ends where an answer begins in the template */
	struct odm_answer_space space;
	struct ids end, shown;
	const struct odm_turn_sink *sink;
	struct turn_choice *choice; /* [n] */
	size_t n;
};

/* ---- The request ---- */

/* Borrowed. */
struct turn_fields {
	const json_t *messages, *tools, *tool_choice, *variables, *documents;
	struct odm_thinking thinking;
	int64_t top_logprobs;
	bool logprobs, parallel_tool_calls, add_generation_prompt, continue_final_message;
};

#define AT(field) offsetof(struct turn_fields, field)

static const struct odm_field fields[] = {
	{ "messages", ODM_FIELD_JSON, AT(messages), 0, 0, NULL },
	{ "tools", ODM_FIELD_JSON, AT(tools), 0, 0, NULL },
	{ "tool_choice", ODM_FIELD_JSON, AT(tool_choice), 0, 0, NULL },
	{ "parallel_tool_calls", ODM_FIELD_BOOL, AT(parallel_tool_calls), 0, 0, NULL },
	{ "logprobs", ODM_FIELD_BOOL, AT(logprobs), 0, 0, NULL },
	{ "top_logprobs", ODM_FIELD_INT, AT(top_logprobs), 0, ODM_MAX_LOGPROBS, NULL },
	/* vLLM's. */
	{ "chat_template_kwargs", ODM_FIELD_JSON, AT(variables), 0, 0, NULL },
	{ "documents", ODM_FIELD_JSON, AT(documents), 0, 0, NULL },
	{ "add_generation_prompt", ODM_FIELD_BOOL, AT(add_generation_prompt), 0, 0, NULL },
	{ "continue_final_message", ODM_FIELD_BOOL, AT(continue_final_message), 0, 0, NULL },
	{ 0 },
};

static int read_asked(struct turn_fields *a, const json_t *request, struct odm_api_error *e)
{
	int rc;

	*a = (struct turn_fields){ .parallel_tool_calls = true, .add_generation_prompt = true };
	rc = odm_fields_read(fields, request, a, e);
	if (rc == OD_OK)
		rc = odm_thinking_read(&a->thinking, request, e);
	if (rc == OD_OK && a->variables != NULL && !json_is_object(a->variables))
		rc = odm_api_fail(e, 400, "chat_template_kwargs", OD_ERR_FORMAT,
				  "chat_template_kwargs: expected an object");
	if (rc == OD_OK && a->top_logprobs > 0 && !a->logprobs)
		rc = odm_api_fail(e, 400, "top_logprobs", OD_ERR_ARG, "top_logprobs: needs logprobs to be true");
	return rc;
}

/* ---- Tools ---- */

static int check_tool(const json_t *tool, size_t i, struct odm_api_error *e)
{
	const json_t *type = json_object_get(tool, "type"), *function = json_object_get(tool, "function");
	const json_t *parameters = json_object_get(function, "parameters");
	const char *problem = NULL, *where = "";
	char field[64];

	if (!json_is_object(tool))
		problem = "an object";
	else if (type == NULL ? !json_is_object(function) : !json_is_string(type))
		where = ".type", problem = "a string";
	else if (type != NULL && strcmp(json_string_value(type), "function") != 0)
		return OD_OK; /* left out */
	else if (!json_is_object(function))
		where = ".function", problem = "an object";
	else if (json_string_length(json_object_get(function, "name")) == 0)
		where = ".function.name", problem = "a string that is not empty";
	else if (parameters != NULL && !json_is_object(parameters) && !json_is_null(parameters))
		where = ".function.parameters", problem = "a JSON schema, an object";
	if (problem == NULL)
		return OD_OK;
	snprintf(field, sizeof(field), "tools[%zu]%s", i, where);
	return odm_api_fail(e, 400, field, OD_ERR_FORMAT, "%s: expected %s", field, problem);
}

static const char *function_name(const json_t *tool)
{
	return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* Returns whether "allowed_tools" names this function, in the format of chat completions or of responses. */
static bool allows(const json_t *allowed, const char *name)
{
	const json_t *tool;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json_object_get(allowed, "tools"), i, tool)
	{
		const char *n = function_name(tool);

		n = n != NULL ? n : json_string_value(json_object_get(tool, "name"));
		if (n != NULL && strcmp(n, name) == 0)
			return true;
	}
	return false;
}

/* The tools that may be called, and whether one must be. */
struct tool_choice {
	bool none, must;
	const json_t *allowed; /* the object that lists those that may; NULL: all */
	const char *named; /* the only one; NULL: any */
};

static int read_choice(const json_t *choice, struct tool_choice *out, struct odm_api_error *e)
{
	const char *text = choice != NULL ? json_string_value(choice) : "auto", *type, *mode;
	const json_t *list = json_object_get(choice, "allowed_tools");

	list = json_is_object(list) ? list : choice;
	type = json_string_value(json_object_get(choice, "type"));
	mode = json_string_value(json_object_get(list, "mode"));
	*out = (struct tool_choice){ .none = text != NULL && strcmp(text, "none") == 0,
				     .must = text != NULL && strcmp(text, "required") == 0 };
	if (out->none || out->must || (text != NULL && strcmp(text, "auto") == 0))
		return OD_OK;
	if (type != NULL && strcmp(type, "allowed_tools") == 0 && mode != NULL &&
	    (strcmp(mode, "auto") == 0 || strcmp(mode, "required") == 0)) {
		out->allowed = list;
		out->must = strcmp(mode, "required") == 0;
		return OD_OK;
	}
	out->named = function_name(choice);
	out->named = out->named != NULL ? out->named : json_string_value(json_object_get(choice, "name"));
	out->must = out->named != NULL;
	if (type != NULL && strcmp(type, "function") == 0 && out->named != NULL)
		return OD_OK;
	return odm_api_fail(e, 400, "tool_choice", OD_ERR_UNSUPPORTED,
			    "tool_choice: expected \"auto\", \"none\", \"required\", a function or allowed_tools");
}

/* A function that has no type, which vLLM takes too, gets it, as templates may read it. A new reference; NULL: out of
 * memory. */
static json_t *typed(json_t *tool)
{
	json_t *whole;

	if (json_object_get(tool, "type") != NULL)
		return json_incref(tool);
	whole = json_pack("{s:s}", "type", "function");
	if (json_object_update(whole, tool) != 0) {
		json_decref(whole);
		whole = NULL;
	}
	return whole;
}

/* Sets t->tools. */
static int read_tools(struct odm_turn *t, const struct turn_fields *q, struct odm_api_error *e)
{
	struct tool_choice choice;
	json_t *tool;
	size_t i;
	int rc = read_choice(q->tool_choice, &choice, e);

	if (rc == OD_OK && q->tools != NULL && !json_is_array(q->tools))
		rc = odm_api_fail(e, 400, "tools", OD_ERR_FORMAT, "tools: expected an array");
	if (rc == OD_OK)
		rc = odm_field_check_kept("tools", q->tools, e);
	if (rc != OD_OK)
		return rc;
	t->tools = json_array();
	json_array_foreach((json_t *)(uintptr_t)q->tools, i, tool)
	{
		const char *name = function_name(tool), *type = json_string_value(json_object_get(tool, "type"));

		rc = check_tool(tool, i, e);
		if (rc != OD_OK)
			return rc;
		if (type != NULL && strcmp(type, "function") != 0)
			odm_tool_left_out(type);
		else if (!choice.none && (choice.allowed == NULL || allows(choice.allowed, name)) &&
			 (choice.named == NULL || strcmp(choice.named, name) == 0) &&
			 json_array_append_new(t->tools, typed(tool)) != 0)
			return odm_no_memory(e);
	}
	t->must_call = choice.must;
	t->one_call = choice.named != NULL || !q->parallel_tool_calls; /* a named function is called once */
	if (t->must_call && json_array_size(t->tools) == 0)
		return odm_api_fail(e, 400, "tool_choice", OD_ERR_ARG,
				    "tool_choice: a call is required, but no such function is among the tools");
	return t->tools != NULL ? OD_OK : odm_no_memory(e);
}

/* ---- The prompt ---- */

/* GPT-OSS's template cannot write a function without a description, which APIs allow. A new reference; NULL: out of
 * memory. */
static json_t *tools_of(const struct odm_turn *t)
{
	json_t *tools = t->format->harmony ? od_json_copy(t->tools) : json_incref(t->tools), *tool;
	size_t i;

	if (tools == NULL || !t->format->harmony)
		return tools;
	json_array_foreach(tools, i, tool)
	{
		json_t *function = json_object_get(tool, "function");

		if (!json_is_string(json_object_get(function, "description")) &&
		    json_object_set_new(function, "description", json_string("")) != 0) {
			json_decref(tools);
			return NULL;
		}
	}
	return tools;
}

static json_t *variables_of(const struct odm_turn *t, const struct turn_fields *q)
{
	json_t *vars = q->variables != NULL ? json_copy((json_t *)q->variables) : json_object();
	const bool opens_answer = q->add_generation_prompt && !q->continue_final_message;
	bool good = json_object_set(vars, "messages", (json_t *)q->messages) == 0;

	good = json_object_set_new(vars, "add_generation_prompt", json_boolean(opens_answer)) == 0 && good;
	if (q->documents != NULL)
		good = json_object_set(vars, "documents", (json_t *)q->documents) == 0 && good;
	good = odm_thinking_set(vars, &q->thinking, t->format->harmony) && good;
	if (json_array_size(t->tools) > 0)
		good = json_object_set_new(vars, "tools", tools_of(t)) == 0 && good;
	else
		json_object_del(vars, "tools");
	if (!good) {
		json_decref(vars);
		vars = NULL;
	}
	return vars;
}

static size_t count_calls(const json_t *messages)
{
	const json_t *m;
	size_t i, n = 0;

	json_array_foreach((json_t *)(uintptr_t)messages, i, m)
	{
		const size_t calls = json_array_size(json_object_get(m, "tool_calls"));

		n += calls > 0 ? calls : json_is_object(json_object_get(m, "function_call"));
	}
	return n;
}

/* Cuts the template's name and line off the message with which it refused. */
static const char *words_of(const struct od_err *err)
{
	static const char line[] = ", line ";
	const char *at = err->code == OD_ERR_ARG ? strstr(err->msg, line) : NULL, *words;

	if (at == NULL)
		return err->msg;
	words = at + strlen(line);
	words += strspn(words, "0123456789");
	return strncmp(words, ": ", 2) == 0 ? words + 2 : err->msg;
}

/* An error of a template or of messages: its text begins with the field, if there is one. Changes err. */
static int refuse_messages(const struct odm_app *app, struct od_err *err, struct odm_api_error *e)
{
	static const char field[] = "messages";
	const bool named = strncmp(err->msg, field, strlen(field)) == 0;
	const size_t len = named ? strcspn(err->msg, ": ") : 0;
	char param[64] = "messages";

	if (err->code == OD_ERR_NOMEM)
		return odm_no_memory(e);
	if (len > 0 && len < sizeof(param)) {
		memcpy(param, err->msg, len);
		param[len] = '\0';
	}
	if (named)
		return odm_api_fail(e, 400, param, err->code, "%s", err->msg);
	odm_hide_folder(err->msg, app->folder);
	return odm_api_fail(e, 400, param, err->code, "messages: the model's chat template does not take them: %s",
			    words_of(err));
}

/* Stands behind the last message's text while the template is rendered, to find where the text ends: as transformers
 * does it. A template that trims takes the space away, and then what the text ended with counts as trimmed too. */
#define LAST_TAG "CONTINUE_FINAL_MESSAGE_TAG"

static bool tag_text(json_t *object, const char *key)
{
	const json_t *text = json_object_get(object, key);
	struct od_strbuf tagged = { 0 };
	bool done = json_is_string(text);

	od_strbuf_append(&tagged, json_string_value(text), json_string_length(text));
	od_strbuf_append(&tagged, LAST_TAG " ", sizeof(LAST_TAG));
	done = done && !tagged.failed && json_object_set_new(object, key, json_stringn(tagged.text, tagged.len)) == 0;
	od_strbuf_fini(&tagged);
	return done;
}

/* A new reference: the messages with the tag, in the last part with a text if the content is a list. NULL: no text, or
 * out of memory. */
static json_t *tag_last(const json_t *messages)
{
	json_t *all = json_copy((json_t *)messages), *last, *content;
	const size_t n = json_array_size(all);
	bool tagged = false;

	last = n > 0 ? od_json_copy(json_array_get(all, n - 1)) : NULL;
	content = json_object_get(last, "content");
	if (!json_is_array(content))
		tagged = tag_text(last, "content");
	for (size_t i = json_array_size(content); i > 0 && !tagged; i--)
		tagged = tag_text(json_array_get(content, i - 1), "text");
	if (last == NULL || json_array_set_new(all, n - 1, last) != 0 || !tagged) {
		json_decref(all);
		all = NULL;
	}
	return all;
}

/* Ends the prompt where the tag is, the last one if a message has it too. */
static bool cut_at_tag(const char *text, size_t *len)
{
	static const char tag[] = LAST_TAG, space[] = " \n\r\t\v\f";
	const size_t n = sizeof(tag) - 1;
	size_t at = *len;

	while (at > 0 && (*len - at < n || memcmp(text + at, tag, n) != 0))
		at--;
	if (*len - at < n || memcmp(text + at, tag, n) != 0)
		return false;
	if (at + n == *len || text[at + n] != ' ')
		while (at > 0 && memchr(space, text[at - 1], sizeof(space) - 1) != NULL)
			at--;
	*len = at;
	return true;
}

static int no_last_text(struct odm_api_error *e)
{
	return odm_api_fail(
		e, 400, "continue_final_message", OD_ERR_ARG,
		"continue_final_message: expected a last message whose content is a text that the model's chat template "
		"writes");
}

/* A template that refuses an effort gets the nearest one that it takes; if it refuses all, the first error counts. */
static int render_any(const struct odm_turn *t, const struct odm_app *app, const struct turn_fields *q, json_t *vars,
		      struct rendered *r, struct od_err *err)
{
	const bool fixed = t->format->harmony || json_object_get(q->variables, "reasoning_effort") != NULL;
	struct od_err other;
	int rc = odm_chat_template_prompt(app->chat, vars, &r->users, &r->text, &r->len, err);

	if (!fixed)
		for (size_t i = 0; rc == OD_ERR_ARG && odm_thinking_set_near(vars, &q->thinking, i); i++)
			rc = odm_chat_template_prompt(app->chat, vars, &r->users, &r->text, &r->len, &other);
	return rc;
}

static int render(struct odm_turn *t, const struct odm_app *app, const struct turn_fields *q, struct rendered *r,
		  struct odm_api_error *e)
{
	json_t *vars, *tagged = NULL;
	struct od_err err;
	int rc = OD_OK;

	if (json_array_size(q->messages) == 0)
		return odm_api_fail(e, 400, "messages", OD_ERR_FORMAT,
				    "messages: expected an array of at least one message");
	if (q->continue_final_message) {
		tagged = tag_last(q->messages);
		if (tagged == NULL)
			return no_last_text(e);
	}
	vars = variables_of(t, q);
	if (vars == NULL || (tagged != NULL && json_object_set(vars, "messages", tagged) != 0))
		rc = odm_no_memory(e);
	else if (render_any(t, app, q, vars, r, &err) != OD_OK)
		rc = refuse_messages(app, &err, e);
	if (rc == OD_OK && tagged != NULL && !cut_at_tag(r->text, &r->len))
		rc = no_last_text(e);
	od_text_spans_cut(&r->users, r->len);
	if (rc == OD_OK && tagged == NULL && odm_engine_wants_forks(t->engine))
		r->n_forks = odm_chat_forks(app->chat, vars, r->text, r->len, r->fork);
	json_decref(tagged);
	json_decref(vars);
	return rc;
}

/* The first n bytes of a prompt as tokens. */
static int encode_first(const struct odm_turn *t, const struct od_controls *controls, const struct rendered *r,
			size_t n, int32_t **ids, size_t *n_ids, struct od_err *err)
{
	struct od_text_spans users = { 0 };
	int rc = OD_OK;

	*ids = NULL;
	for (size_t i = 0; rc == OD_OK && i < r->users.n && r->users.v[i].begin < n; i++)
		rc = od_text_spans_add(&users, r->users.v[i].begin, r->users.v[i].end < n ? r->users.v[i].end : n);
	if (rc == OD_OK)
		rc = od_tokenizer_encode_mixed(t->tokenizer, r->text, n, &users, controls, ids, n_ids, err);
	od_text_spans_fini(&users);
	return rc;
}

/* The prompt's forks in tokens: a token that begins before a fork may end behind it. Without memory there are fewer. */
static void find_forks(struct odm_turn *t, const struct rendered *r)
{
	struct od_controls *controls;

	if (r->n_forks == 0 ||
	    odm_chat_template_controls(t->chat, json_array_size(t->tools) > 0, t->tokenizer, &controls, NULL) != OD_OK)
		return;
	for (size_t i = 0; i < r->n_forks; i++) {
		struct od_err err;
		int32_t *ids;
		size_t n = 0, same = 0;

		if (encode_first(t, controls, r, r->fork[i], &ids, &n, &err) != OD_OK)
			continue;
		while (same < n && same < t->n_prompt && ids[same] == t->prompt[same])
			same++;
		free(ids);
		t->fork[t->n_forks++] = same;
	}
	od_controls_free(controls);
}

/* A template writes BOS and the like itself. What users wrote never becomes a control token. */
static int encode(const struct odm_turn *t, const struct rendered *r, int32_t **ids, size_t *n, struct odm_api_error *e)
{
	struct od_controls *controls;
	struct od_err err;
	int rc = odm_chat_template_controls(t->chat, json_array_size(t->tools) > 0, t->tokenizer, &controls, &err);

	*ids = NULL;
	*n = 0;
	if (rc == OD_OK)
		rc = od_tokenizer_encode_mixed(t->tokenizer, r->text, r->len, &r->users, controls, ids, n, &err);
	od_controls_free(controls);
	if (rc != OD_OK)
		return odm_api_fail(e, err.code == OD_ERR_NOMEM ? 503 : 400, "messages", err.code, "messages: %s",
				    err.msg);
	return OD_OK;
}

static void free_rendered(struct rendered *r)
{
	free(r->text);
	od_text_spans_fini(&r->users);
	*r = (struct rendered){ 0 };
}

/* The content of gpt-oss's answers is a message of its own, whose begin the model writes. */
static const char *begin_of_content(const struct odm_turn *t)
{
	return t->format->harmony && t->opens_answer ? "<|channel|>final<|message|>" : "";
}

int odm_turn_encode_with(struct odm_turn *t, const char *text, size_t len, int32_t **ids, size_t *n,
			 struct odm_api_error *e)
{
	const struct rendered *r = &t->rendered;
	const char *begin = begin_of_content(t);
	const size_t own = r->len + strlen(begin); /* bytes before the text */
	struct rendered whole = { .len = own + len };
	int rc = OD_OK;

	*ids = NULL;
	*n = 0;
	if (t->in_thought)
		return odm_api_fail(e, 400, "messages", OD_ERR_UNSUPPORTED,
				    "messages: the prompt ends within a thought, and an answer comes behind that; turn "
				    "thinking off (enable_thinking), or give a prompt that contains the thought");
	whole.text = malloc(whole.len + 1);
	if (whole.text == NULL)
		return odm_no_memory(e);
	memcpy(whole.text, r->text, r->len);
	memcpy(whole.text + r->len, begin, own - r->len);
	memcpy(whole.text + own, text, len);
	for (size_t i = 0; rc == OD_OK && i < r->users.n; i++)
		rc = od_text_spans_add(&whole.users, r->users.v[i].begin, r->users.v[i].end);
	if (rc == OD_OK)
		rc = od_text_spans_add(&whole.users, own, whole.len);
	rc = rc == OD_OK ? encode(t, &whole, ids, n, e) : odm_no_memory(e);
	free_rendered(&whole);
	return rc;
}

/* ---- Tokens that mean something to the parser ---- */

static void add_id(struct ids *ids, int32_t id)
{
	for (size_t i = 0; i < ids->n; i++)
		if (ids->id[i] == id)
			return;
	if (ids->n < MAX_MARK_IDS)
		ids->id[ids->n++] = id;
}

/* A mark may be one special token, or contain some. */
static void show_mark(void *arg, const char *mark)
{
	struct odm_turn *t = arg;
	int32_t *ids;
	size_t n;

	if (od_tokenizer_encode(t->tokenizer, mark, strlen(mark), OD_ENCODE_PARSE_SPECIAL, &ids, &n, NULL) != OD_OK)
		return;
	for (size_t i = 0; i < n; i++)
		if (od_tokenizer_is_special(t->tokenizer, ids[i]))
			add_id(&t->shown, ids[i]);
	free(ids);
}

static void end_at(void *arg, const char *end)
{
	struct odm_turn *t = arg;
	const int32_t id = od_tokenizer_find(t->tokenizer, end);

	if (id >= 0)
		add_id(&t->end, id);
}

/* ---- Life ---- */

static int build(struct odm_turn *t, struct odm_exchange *x, const struct odm_engine *engine,
		 const struct turn_fields *q, struct odm_api_error *e)
{
	const struct odm_app *app = odm_app_of(x);
	struct rendered *r = &t->rendered;
	int rc;

	if (app->chat == NULL)
		return odm_api_fail(e, 400, NULL, OD_ERR_UNSUPPORTED,
				    "this model cannot chat: %s; /v1/completions works without a chat template",
				    app->no_chat.code == OD_ERR_MISSING ? "its pack has no chat template" :
									  app->no_chat.msg);
	t->app = app;
	t->engine = engine;
	t->tokenizer = odm_engine_tokenizer(engine);
	if (t->tokenizer == NULL)
		return odm_api_fail(e, 400, NULL, OD_ERR_UNSUPPORTED, "this model cannot chat: it has no tokenizer");
	rc = read_tools(t, q, e);
	if (rc != OD_OK)
		return rc;
	t->chat = app->chat;
	t->format = odm_chat_template_format(app->chat, json_array_size(t->tools) > 0);
	t->opens_answer = q->add_generation_prompt && !q->continue_final_message;
	t->n_calls = count_calls(q->messages);
	rc = render(t, app, q, r, e);
	if (rc == OD_OK)
		rc = encode(t, r, &t->prompt, &t->n_prompt, e);
	if (rc == OD_OK) {
		find_forks(t, r);
		t->in_thought = odm_chat_format_in_thought(t->format, r->text, r->len, &r->users);
		odm_chat_format_marks(t->format, json_array_size(t->tools) > 0, show_mark, t);
		odm_chat_format_ends(t->format, end_at, t);
	}
	return rc;
}

int odm_turn_new(struct odm_turn **out, struct odm_exchange *x, const struct odm_engine *engine, const json_t *request,
		 int *logprobs, struct odm_api_error *e)
{
	struct odm_turn *t = NULL;
	struct turn_fields a;
	int rc = read_asked(&a, request, e);

	if (rc == OD_OK) {
		t = calloc(1, sizeof(*t));
		rc = t != NULL ? build(t, x, engine, &a, e) : odm_no_memory(e);
	}
	if (rc == OD_OK) {
		t->request = json_incref((json_t *)(uintptr_t)request);
		rc = odm_output_form_read(&t->form, t->request, e);
	}
	*logprobs = a.logprobs ? (int)a.top_logprobs : -1;
	*out = t;
	if (rc != OD_OK) {
		odm_turn_free(t);
		*out = NULL;
	}
	return rc;
}

static int build_plain(struct odm_turn *t, const struct odm_engine *engine, const json_t *request,
		       struct odm_api_error *e)
{
	const json_t *prompt = json_object_get(request, "prompt");

	t->engine = engine;
	t->tokenizer = odm_engine_tokenizer(engine);
	odm_chat_format_choose(&t->plain, "", NULL);
	t->format = &t->plain;
	t->tools = json_array();
	if (t->tools == NULL)
		return odm_no_memory(e);
	return odm_encode_prompt(engine, json_string_value(prompt), json_string_length(prompt), "prompt", &t->prompt,
				 &t->n_prompt, e);
}

int odm_turn_new_plain(struct odm_turn **out, const struct odm_engine *engine, const json_t *request, int *logprobs,
		       struct odm_api_error *e)
{
	struct odm_turn *t = NULL;
	struct turn_fields a;
	int rc = read_asked(&a, request, e);

	if (rc == OD_OK) {
		t = calloc(1, sizeof(*t));
		rc = t != NULL ? build_plain(t, engine, request, e) : odm_no_memory(e);
	}
	*logprobs = a.logprobs ? (int)a.top_logprobs : -1;
	*out = t;
	if (rc != OD_OK) {
		odm_turn_free(t);
		*out = NULL;
	}
	return rc;
}

void odm_turn_free(struct odm_turn *t)
{
	if (t == NULL)
		return;
	for (size_t i = 0; i < t->n; i++) {
		odm_answer_free(t->choice[i].answer);
		odm_answer_free(t->choice[i].watch);
	}
	od_constraint_unref(t->constraint);
	json_decref(t->request);
	free(t->choice);
	free_rendered(&t->rendered);
	free(t->prompt);
	json_decref(t->tools);
	free(t);
}

size_t odm_turn_prompt_tokens(const struct odm_turn *t)
{
	return t->n_prompt;
}

const int32_t *odm_turn_prompt(const struct odm_turn *t)
{
	return t->prompt;
}

const int32_t *odm_turn_ends(const struct odm_turn *t, size_t *n)
{
	*n = t->end.n;
	return t->end.id;
}

/* ---- What the model writes ---- */

static size_t number_of(const struct turn_choice *c)
{
	return (size_t)(c - c->turn->choice);
}

static bool full(const struct turn_choice *c)
{
	return c->turn->one_call && c->n_calls > 0 && !c->in_call;
}

static void on_content(void *arg, const char *text, size_t len)
{
	struct turn_choice *c = arg;

	if (!full(c))
		c->turn->sink->content(c->turn->sink->arg, number_of(c), text, len);
}

static void on_reasoning(void *arg, const char *text, size_t len)
{
	struct turn_choice *c = arg;

	if (!full(c))
		c->turn->sink->reasoning(c->turn->sink->arg, number_of(c), text, len);
}

static const char *make_id(char id[MAX_ID], const struct odm_chat_format *format)
{
	static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyz", prefix[] = "call_";
	const bool is_short = format->ids == ODM_IDS_SHORT;
	const size_t n = is_short ? SHORT_ID_LETTERS : CALL_ID_LETTERS;
	unsigned char random[CALL_ID_LETTERS] = { 0 };
	char *to = id + (is_short ? 0 : strlen(prefix));

	memcpy(id, prefix, sizeof(prefix));
	(void)!getrandom(random, n, 0);
	for (size_t i = 0; i < n; i++)
		to[i] = letters[random[i] % (sizeof(letters) - 1)];
	to[n] = '\0';
	return id;
}

static void on_call(void *arg, const char *name, const char *call_id)
{
	struct turn_choice *c = arg;
	struct odm_turn_call shown = { .index = c->n_calls, .id = call_id, .name = name };
	json_t *counted = NULL;
	char id[MAX_ID];

	if (full(c))
		return;
	if (c->turn->format->ids ==
	    ODM_IDS_COUNTED) /* a model may count wrongly, and then two calls would have one id */
		counted = odm_counted_id(name, c->turn->n_calls + c->n_calls);
	c->n_calls++;
	c->in_call = true;
	if (counted != NULL)
		shown.id = json_string_value(counted);
	else if (shown.id == NULL)
		shown.id = make_id(id, c->turn->format);
	c->turn->sink->call(c->turn->sink->arg, number_of(c), &shown);
	json_decref(counted);
}

static void on_arguments(void *arg, const char *text, size_t len)
{
	struct turn_choice *c = arg;

	if (c->in_call)
		c->turn->sink->arguments(c->turn->sink->arg, number_of(c), text, len);
}

static void on_call_end(void *arg, bool complete)
{
	struct turn_choice *c = arg;

	if (c->in_call)
		c->turn->sink->call_end(c->turn->sink->arg, number_of(c), complete);
	c->in_call = false;
}

static void hear_nothing(void *arg, const char *text, size_t len)
{
	(void)arg, (void)text, (void)len;
}

static void hear_no_call(void *arg, const char *name, const char *id)
{
	(void)arg, (void)name, (void)id;
}

static void hear_no_end(void *arg, bool complete)
{
	(void)arg, (void)complete;
}

static const struct odm_answer_sink deaf = {
	NULL, hear_nothing, hear_nothing, hear_no_call, hear_nothing, hear_no_end
};

/* Engine thread. Without memory the text ends, too: then the HTTP thread lacks it likewise, or finds no stop string. */
static bool ends_at(void *arg, const char *piece, size_t len)
{
	struct odm_answer *watch = arg;
	size_t which;

	return odm_answer_push(watch, piece, len) != OD_OK || odm_answer_stopped(watch, &which);
}

static int add_choice(struct odm_turn *t, struct odm_reply *r, const struct odm_generation *g, int logprobs,
		      struct odm_api_error *e)
{
	const struct odm_answer_opts opts = { .format = t->format,
					      .in_thought = t->in_thought,
					      .tools = t->tools,
					      .lead = t->opens_answer && !t->in_thought ? t->space.lead : NULL,
					      .tail = t->space.tail,
					      .early_calls = g->stream,
					      .stop = g->stop.value,
					      .n_stop = g->stop.n };
	struct turn_choice *c = &t->choice[t->n];
	struct odm_job_spec spec = { 0 };
	struct odm_request *req = &spec.req;
	struct od_err err;
	int rc;

	*c = (struct turn_choice){ .turn = t,
				   .sink = { c, on_content, on_reasoning, on_call, on_arguments, on_call_end } };
	t->n++;
	rc = odm_answer_new(&c->answer, &opts, &c->sink, &err);
	if (rc == OD_OK && opts.n_stop > 0)
		rc = odm_answer_new(&c->watch, &opts, &deaf, &err);
	if (rc != OD_OK)
		return rc == OD_ERR_NOMEM ? odm_no_memory(e) : odm_api_fail(e, 400, "stop", rc, "stop: %s", err.msg);
	odm_generation_request(g, number_of(c), req);
	req->n_stop = 0; /* stop strings count in the content only: the watch looks for them */
	req->end = t->end.id;
	req->n_ends = t->end.n;
	req->shown = t->shown.id;
	req->n_shown = t->shown.n;
	req->constraint = t->constraint;
	if (logprobs > req->logprobs)
		req->logprobs = logprobs;
	req->prompt = t->prompt;
	req->n_prompt = t->n_prompt;
	req->fork = t->fork;
	req->n_forks = t->n_forks;
	spec.ends = c->watch != NULL ? ends_at : NULL;
	spec.ends_arg = c->watch;
	return odm_choices_add(r->choices, &spec, e);
}

static bool any_strict(const json_t *tools)
{
	const json_t *tool;
	size_t i;

	json_array_foreach(
		(json_t *)(uintptr_t)tools, i,
		tool) if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict"))) return true;
	return false;
}

/* Sets t->constraint if the request asks for a form. */
static int constrain(struct odm_turn *t, const struct odm_app *app, struct odm_api_error *e)
{
	const struct odm_answer_rules rules = { .format = t->format,
						.in_thought = t->in_thought,
						.lead = t->opens_answer && !t->in_thought ? t->space.lead : NULL,
						.tools = t->tools,
						.must_call = t->must_call,
						.one_call = t->one_call,
						.all_strict = t->must_call };

	if (t->form.kind == ODM_OUTPUT_FREE && !t->must_call && !any_strict(t->tools))
		return OD_OK;
	return odm_constraints_get(app->constraints, &t->form, &rules, t->chat, t->tokenizer,
				   od_pack_config(odm_engine_pack(t->engine))->vocab, &t->constraint, e);
}

int odm_turn_add(struct odm_turn *t, struct odm_reply *r, const struct odm_generation *g, int logprobs,
		 const struct odm_turn_sink *sink, struct odm_api_error *e)
{
	int rc = odm_check_prompt_length(t->engine, t->n_prompt, t->chat != NULL ? "messages" : "prompt", e);

	free_rendered(&t->rendered);
	if (rc != OD_OK)
		return rc;
	if (g->max_tokens == 0)
		return odm_api_fail(e, 400, "max_tokens", OD_ERR_RANGE, "max_tokens: expected at least 1, found 0");
	t->sink = sink;
	if (t->chat != NULL)
		odm_answer_space_find(&t->space, t->chat, t->tokenizer, json_array_size(t->tools) > 0);
	t->ignore_eos = g->ignore_eos;
	rc = constrain(t, t->app, e);
	if (rc != OD_OK)
		return rc;
	t->choice = calloc((size_t)g->n, sizeof(*t->choice));
	if (t->choice == NULL)
		return odm_no_memory(e);
	for (int64_t i = 0; rc == OD_OK && i < g->n; i++)
		rc = add_choice(t, r, g, logprobs, e);
	return rc;
}

void odm_turn_news(struct odm_turn *t, struct odm_reply *r, size_t choice, const struct odm_news *news)
{
	struct turn_choice *c = &t->choice[choice];
	int rc = news->text.len > 0 ? odm_answer_push(c->answer, news->text.text, news->text.len) : OD_OK;
	size_t which;

	if (rc == OD_OK && news->done)
		rc = odm_answer_finish(c->answer);
	if (rc != OD_OK)
		(void)odm_no_memory(&r->error);
	else if (odm_answer_stopped(c->answer, &which)) /* the watch ends the text */
		r->ended[choice].finish = ODM_FINISH_STOP;
	else if (full(c) || (!t->ignore_eos && odm_answer_over(c->answer)))
		odm_reply_end_choice(r, choice);
}

bool odm_turn_stopped(const struct odm_turn *t, size_t choice, size_t *which)
{
	return odm_answer_stopped(t->choice[choice].answer, which);
}

bool odm_turn_called(const struct odm_turn *t, const struct odm_reply *r, size_t choice)
{
	return t->choice[choice].n_calls > 0 && r->ended[choice].finish != ODM_FINISH_LENGTH &&
	       r->ended[choice].finish != ODM_FINISH_CONTEXT;
}
