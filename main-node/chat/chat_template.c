#include "main-node/chat/chat_template.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/text/tok_controls.h"
#include "main-node/chat/chat_order.h"
#include "main-node/chat/chat_probe.h"

#define MAX_CONFIG_BYTES ((size_t)64 << 20) /* added tokens fill a tokenizer_config.json */
#define MAX_TEMPLATE_BYTES ((size_t)8 << 20)

struct template_source {
	struct od_jinja *parsed; /* NULL: there is none */
	char *text;
	struct odm_chat_format format;
};

struct odm_chat_template {
	struct template_source plain, with_tools; /* at least one */
	json_t *tokens; /* name: text */
};

/* ---- special tokens ---- */

/* "text", or {"content": "text", ...}. */
static json_t *token_text(json_t *v)
{
	if (json_is_object(v))
		v = json_object_get(v, "content");
	return json_is_string(v) ? v : NULL;
}

static bool is_token_name(const char *name)
{
	const size_t n = strlen(name), n_end = strlen("_token");

	return n > n_end && strcmp(name + n - n_end, "_token") == 0;
}

/* Every model has these, or could. */
static bool is_common(const char *name)
{
	static const char *const common[] = { "bos_token", "eos_token", "unk_token", "sep_token",
					      "pad_token", "cls_token", "mask_token" };
	size_t i = 0;

	while (i < sizeof(common) / sizeof(common[0]) && strcmp(name, common[i]) != 0)
		i++;
	return i < sizeof(common) / sizeof(common[0]);
}

/* own: each entry of an object of tokens, whatever its name; else those that are called so, of which only the common
 * ones may stand in another file already. Null says that there is none. */
static int add_tokens(struct odm_chat_template *t, json_t *from, bool own, struct od_err *err)
{
	const char *name;
	json_t *v;

	json_object_foreach(from, name, v)
	{
		const bool named = is_common(name) || (is_token_name(name) && json_object_get(t->tokens, name) == NULL);
		json_t *text = own || named ? token_text(v) : NULL;

		if (text != NULL && json_object_set(t->tokens, name, text) != 0)
			return od_fail(err, OD_ERR_NOMEM, "no memory for special tokens");
		if (json_is_null(v))
			json_object_del(t->tokens, name);
	}
	return OD_OK;
}

/* As transformers does. Those that only some models have (image_token ...) stand among the others, or in an object of
 * their own, which counts more. */
static int add_all_tokens(struct odm_chat_template *t, json_t *config, json_t *map, struct od_err *err)
{
	static const char *const own[] = { "extra_special_tokens", "model_specific_special_tokens" };
	json_t *const file[] = { config, map };
	int rc = OD_OK;

	for (size_t f = 0; rc == OD_OK && f < 2; f++)
		rc = add_tokens(t, file[f], false, err);
	for (size_t i = 0; rc == OD_OK && i < 4; i++)
		rc = add_tokens(t, json_object_get(file[i / 2], own[i % 2]), true, err);
	return rc;
}

/* ---- templates ---- */

/* Takes text, even on failure. */
static int parse_text(struct template_source *out, char *text, size_t len, const char *where, struct od_err *err)
{
	free(out->text);
	out->text = text;
	return text == NULL ? od_fail(err, OD_ERR_NOMEM, "no memory for %s", where) :
			      od_jinja_parse(&out->parsed, text, len, where, err);
}

static int parse_one(struct template_source *out, json_t *text, const char *where, struct od_err *err)
{
	if (!json_is_string(text))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"chat_template\": expected a string or a list of named templates", where);
	return parse_text(out, strndup(json_string_value(text), json_string_length(text)), json_string_length(text),
			  where, err);
}

/* [{"name": "default", "template": "..."}, {"name": "tool_use", ...}] */
static int parse_named(struct odm_chat_template *t, json_t *list, const char *where, struct od_err *err)
{
	size_t i;
	json_t *v;
	int rc = OD_OK;

	json_array_foreach(list, i, v)
	{
		const char *name = json_string_value(json_object_get(v, "name"));
		struct template_source *slot = NULL;

		if (name != NULL && strcmp(name, "default") == 0)
			slot = &t->plain;
		else if (name != NULL && strcmp(name, "tool_use") == 0)
			slot = &t->with_tools;
		if (slot != NULL && slot->parsed == NULL && rc == OD_OK)
			rc = parse_one(slot, json_object_get(v, "template"), where, err);
	}
	if (rc == OD_OK && t->plain.parsed == NULL && t->with_tools.parsed == NULL)
		return od_fail(err, OD_ERR_MISSING,
			       "%s: expected a chat template named \"default\" or \"tool_use\", found neither", where);
	return rc;
}

static int parse_field(struct odm_chat_template *t, json_t *config, const char *where, struct od_err *err)
{
	json_t *v = json_object_get(config, "chat_template");

	if (v == NULL || json_is_null(v) || t->plain.parsed != NULL || t->with_tools.parsed != NULL)
		return OD_OK;
	return json_is_array(v) ? parse_named(t, v, where, err) : parse_one(&t->plain, v, where, err);
}

/* A file that is a template; of several the first counts. */
static int read_template(struct template_source *s, const char *dir, const char *name, struct od_err *err)
{
	char path[PATH_MAX], *text;
	size_t len;
	int rc = od_path(path, sizeof(path), dir, name, err);

	if (rc != OD_OK || s->parsed != NULL || !od_file_there(path))
		return rc;
	rc = od_file_read(path, MAX_TEMPLATE_BYTES, &text, &len, err);
	return rc == OD_OK ? parse_text(s, text, len, path, err) : rc;
}

/* *out: a new reference, NULL where there is no such file. */
static int load(const char *dir, const char *name, char path[PATH_MAX], json_t **out, struct od_err *err)
{
	int rc = od_path(path, PATH_MAX, dir, name, err);

	*out = NULL;
	return rc == OD_OK && od_file_there(path) ? od_json_load(path, MAX_CONFIG_BYTES, out, err) : rc;
}

static int read_template_object(struct odm_chat_template *t, const char *dir, const char *name, struct od_err *err)
{
	char path[PATH_MAX];
	json_t *object;
	int rc = load(dir, name, path, &object, err);

	if (rc == OD_OK)
		rc = parse_field(t, object, path, err);
	json_decref(object);
	return rc;
}

/* tokenizer_config.json, and what older checkpoints have beside it: transformers does not look there if the first lists
 * the added tokens. */
static int read_tokenizer_config(struct odm_chat_template *t, const char *dir, struct od_err *err)
{
	char path[PATH_MAX];
	json_t *config, *map = NULL;
	int rc = load(dir, "tokenizer_config.json", path, &config, err);

	if (rc == OD_OK)
		rc = parse_field(t, config, path, err);
	if (rc == OD_OK && json_object_get(config, "added_tokens_decoder") == NULL)
		rc = load(dir, "special_tokens_map.json", path, &map, err);
	if (rc == OD_OK)
		rc = add_all_tokens(t, config, map, err);
	json_decref(config);
	json_decref(map);
	return rc;
}

static void choose_format(const struct odm_chat_template *t, struct template_source *s)
{
	if (s->parsed != NULL) {
		odm_chat_format_choose(&s->format, s->text, json_string_value(json_object_get(t->tokens, "eos_token")));
		odm_chat_probe(&s->format, s->parsed, t->tokens);
	}
}

int odm_chat_template_open(struct odm_chat_template **out, const char *dir, struct od_err *err)
{
	struct odm_chat_template *t = calloc(1, sizeof(*t));
	int rc;

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the chat template of %s", dir);
	t->tokens = json_object();
	rc = t->tokens != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for the chat template of %s", dir);
	if (rc == OD_OK && !od_is_dir(dir))
		rc = od_fail(err, OD_ERR_MISSING, "%s: expected the folder of a checkpoint or a pack", dir);
	if (rc == OD_OK)
		rc = read_template(&t->plain, dir, "chat_template.jinja", err);
	if (rc == OD_OK) /* a checkpoint has this file, as transformers saves it */
		rc = read_template(&t->with_tools, dir, "additional_chat_templates/tool_use.jinja", err);
	if (rc == OD_OK) /* a pack has this file */
		rc = read_template(&t->with_tools, dir, "chat_template_tool_use.jinja", err);
	if (rc == OD_OK)
		rc = read_template_object(t, dir, "chat_template.json", err);
	if (rc == OD_OK)
		rc = read_tokenizer_config(t, dir, err);
	if (rc == OD_OK && t->plain.parsed == NULL && t->with_tools.parsed == NULL)
		rc = od_fail(err, OD_ERR_MISSING,
			     "%s has no chat template (chat_template.jinja, chat_template.json, or chat_template in "
			     "tokenizer_config.json)",
			     dir);
	if (rc != OD_OK) {
		odm_chat_template_close(t);
		return rc;
	}
	choose_format(t, &t->plain);
	choose_format(t, &t->with_tools);
	*out = t;
	return OD_OK;
}

void odm_chat_template_close(struct odm_chat_template *t)
{
	if (t == NULL)
		return;
	od_jinja_free(t->plain.parsed);
	od_jinja_free(t->with_tools.parsed);
	free(t->plain.text);
	free(t->with_tools.text);
	json_decref(t->tokens);
	free(t);
}

static const struct template_source *source_of(const struct odm_chat_template *t, bool with_tools)
{
	return t->plain.parsed == NULL || (with_tools && t->with_tools.parsed != NULL) ? &t->with_tools : &t->plain;
}

const char *odm_chat_template_text(const struct odm_chat_template *t, bool with_tools)
{
	return source_of(t, with_tools)->text;
}

const struct odm_chat_format *odm_chat_template_format(const struct odm_chat_template *t, bool with_tools)
{
	return &source_of(t, with_tools)->format;
}

static void add_control(void *controls, const char *text)
{
	od_controls_add(controls, text, strlen(text));
}

int odm_chat_template_controls(const struct odm_chat_template *t, bool with_tools, const struct od_tokenizer *tokenizer,
			       struct od_controls **out, struct od_err *err)
{
	const struct template_source *s = source_of(t, with_tools);
	int rc = od_controls_new(out, tokenizer, err);

	if (rc != OD_OK)
		return rc;
	add_control(*out, s->text);
	odm_chat_format_marks(&s->format, true, add_control, *out);
	odm_chat_format_ends(&s->format, add_control, *out);
	return OD_OK;
}

/* ---- rendering ---- */

static bool set_default(json_t *vars, const char *name, json_t *value) /* takes value */
{
	if (json_object_get(vars, name) == NULL)
		return json_object_set_new(vars, name, value) == 0;
	json_decref(value);
	return true;
}

int odm_chat_defaults(json_t *vars, struct od_err *err)
{
	bool good = set_default(vars, "messages", json_array());

	good = set_default(vars, "tools", json_null()) && good;
	good = set_default(vars, "documents", json_null()) && good;
	good = set_default(vars, "add_generation_prompt", json_false()) && good;
	return good ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for the variables of a chat template");
}

struct template_rendering {
	const struct odm_chat_template *t;
	const struct odm_context *context;
	const json_t *vars;
	struct od_text_span whole; /* covers the string that was asked for last */
};

static const char *source_text(void *arg, const json_t *object)
{
	const struct template_rendering *r = arg;

	return r->context != NULL ? odm_context_source(r->context, object) : NULL;
}

/* Templates write "<|" + role + "|>". Any other word would be a user's choice. */
static bool is_role(const json_t *string)
{
	static const char *const roles[] = { "system",	 "developer", "user",  "assistant",  "tool",
					     "function", "ipython",   "model", "observation" };
	size_t i = 0;

	while (i < sizeof(roles) / sizeof(roles[0]) && strcmp(json_string_value(string), roles[i]) != 0)
		i++;
	/* no zero byte in it */
	return i < sizeof(roles) / sizeof(roles[0]) && json_string_length(string) == strlen(roles[i]);
}

static size_t own_text(void *arg, const json_t *object, const char *key, const json_t *string,
		       const struct od_text_span **span)
{
	struct template_rendering *r = arg;
	const struct od_text_spans *marks = r->context != NULL ? odm_context_marks_of(r->context, string) : NULL;

	*span = marks != NULL ? marks->v : &r->whole;
	if (marks != NULL)
		return marks->n;
	r->whole = (struct od_text_span){ 0, json_string_length(string) };
	if (object == r->vars) /* the variable must be one of the template's own tokens, not a string of the request */
		return json_object_get(r->t->tokens, key) == string;
	return strcmp(key, "role") == 0 && is_role(string);
}

int odm_chat_template_render(const struct odm_chat_template *t, const json_t *vars, const struct odm_context *context,
			     struct od_text_spans *users, char **text, size_t *len, struct od_err *err)
{
	json_t *all = json_copy(t->tokens); /* shallow: what is in vars stays where it is */
	struct template_rendering r = { .t = t, .context = context, .vars = all };
	const struct od_jinja_opts opts = { .source = source_text, .own = own_text, .arg = &r, .users = users };
	int rc;

	*text = NULL;
	*len = 0;
	if (all == NULL || json_object_update(all, (json_t *)vars) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for the variables of a chat template");
	else
		rc = odm_chat_defaults(all, err);
	if (rc == OD_OK)
		rc = od_jinja_render(source_of(t, od_json_has(all, "tools"))->parsed, all, &opts, text, len, err);
	json_decref(all);
	return rc;
}

/* Renders messages as the template is known to take them; if it refuses these all the same, changes more of their
 * order, step by step: first each need alone, on top of what has changed something, then all, because what one changes
 * may call for another. An error is the first one's. */
static int render_arranged(const struct odm_chat_template *t, const struct odm_chat_format *format, json_t *vars,
			   struct odm_context *context, struct od_text_spans *users, char **text, size_t *len,
			   struct od_err *err)
{
	struct od_err again;
	unsigned changed = context->changed;
	int rc = json_object_set(vars, "messages", context->messages) == 0 ?
			 odm_chat_template_render(t, vars, context, users, text, len, err) :
			 od_fail(err, OD_ERR_NOMEM, "no memory for the variables of a chat template");

	for (int i = 0; i < 2 * ODM_NEEDS && (rc == OD_ERR_ARG || rc == OD_ERR_FORMAT); i++) {
		const unsigned more = i < ODM_NEEDS ? 1u << i : (2u << (i - ODM_NEEDS)) - 1;

		context->changed = 0;
		if (odm_context_arrange(context, format, format->needs | changed | more, &again) != OD_OK)
			return rc;
		if (context->changed != 0 && json_object_set(vars, "messages", context->messages) == 0 &&
		    odm_chat_template_render(t, vars, context, users, text, len, &again) == OD_OK)
			rc = OD_OK;
		changed |= context->changed;
	}
	if (rc == OD_OK)
		odm_order_tell(changed);
	return rc;
}

int odm_chat_template_prompt(const struct odm_chat_template *t, const json_t *vars, struct od_text_spans *users,
			     char **text, size_t *len, struct od_err *err)
{
	const struct odm_chat_format *format = odm_chat_template_format(t, od_json_has(vars, "tools"));
	json_t *all = json_copy((json_t *)vars);
	struct odm_context context;
	int rc = odm_context_build(&context, json_object_get(vars, "messages"), format, err);

	*text = NULL;
	*len = 0;
	if (rc == OD_OK)
		rc = render_arranged(t, format, all, &context, users, text, len, err);
	json_decref(all);
	odm_context_fini(&context);
	return rc;
}
