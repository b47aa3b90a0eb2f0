#include "main-node/chat/call_args.h"

#include "main-node/chat/call_schema.h"
#include "main-node/chat/gemma_args.h"

#include <stdlib.h>
#include <string.h>

void odm_tool_call_fini(struct odm_tool_call *c)
{
	free(c->name);
	free(c->arguments);
	free(c->id);
	*c = (struct odm_tool_call){ 0 };
}

/* ---- The tool ---- */

const json_t *odm_find_tool(const json_t *tools, const char *name)
{
	size_t i;
	json_t *tool;

	json_array_foreach(tools, i, tool)
	{
		const json_t *f = json_object_get(tool, "function");
		const char *its = json_string_value(json_object_get(f, "name"));

		if (its != NULL && strcmp(its, name) == 0)
			return f;
	}
	return NULL;
}

/* ---- Values of XML parameters ---- */

static struct odm_slice trimmed(struct odm_slice v)
{
	while (v.len > 0 && strchr(" \n\r\t", v.text[0]) != NULL && v.text[0] != '\0')
		v.text++, v.len--;
	while (v.len > 0 && strchr(" \n\r\t", v.text[v.len - 1]) != NULL && v.text[v.len - 1] != '\0')
		v.len--;
	return v;
}

static bool is(struct odm_slice v, const char *text)
{
	return v.len == strlen(text) && memcmp(v.text, text, v.len) == 0;
}

/* Templates write JSON's values as Python's True, False and None with "| string". */
static const char *python_literal(struct odm_slice v)
{
	return is(v, "True") ? "true" : is(v, "False") ? "false" : is(v, "None") ? "null" : NULL;
}

static void append_value(struct od_strbuf *out, enum odm_value_kind kind, struct odm_slice raw, unsigned types)
{
	const struct odm_slice v = trimmed(raw);
	const char *python = kind == ODM_VALUE_LINES ? python_literal(v) : NULL;
	json_t *json = python != NULL ? json_loads(python, JSON_DECODE_ANY, NULL) : odm_json_value(v);
	const unsigned type = json != NULL ? odm_type_of_value(json) : 0;
	const bool literal = type == ODM_TYPE_BOOLEAN || type == ODM_TYPE_NULL;

	if (types == 0)
		types = kind == ODM_VALUE_JSON ? ~0u : 0;
	json_decref(json);
	if ((type & types) == 0 || type == ODM_TYPE_STRING) {
		odm_json_quote(out, raw.text, raw.len);
	} else if (python != NULL) {
		od_strbuf_append(out, python, strlen(python));
	} else {
		if (kind == ODM_VALUE_LINES && literal)
			od_strbuf_append(out, " ", 1);
		od_strbuf_append(out, v.text, v.len);
	}
}

/* The line breaks right behind a parameter's tag and before its end belong to the format. */
static struct odm_slice without_breaks(struct odm_slice v)
{
	if (v.len > 0 && v.text[0] == '\n')
		v.text++, v.len--;
	if (v.len > 0 && v.text[v.len - 1] == '\n')
		v.len--;
	return v;
}

static struct odm_slice slice(const char *text, struct odm_span s)
{
	return (struct odm_slice){ text + s.begin, s.end - s.begin };
}

bool odm_call_key_again(const struct odm_call_spans *p, size_t i, const char *text)
{
	const struct odm_slice key = slice(text, p->param[i].key);

	for (size_t k = 0; k < i; k++) {
		const struct odm_slice other = slice(text, p->param[k].key);

		if (other.len == key.len && memcmp(other.text, key.text, key.len) == 0)
			return true;
	}
	return false;
}

/* The line breaks belong to the format. */
struct odm_slice odm_call_value(const struct odm_call_format *format, const struct odm_call_spans *p, size_t i,
				const char *text)
{
	const struct odm_slice v = slice(text, p->param[i].value);

	return format->values == ODM_VALUE_LINES ? without_breaks(v) : v;
}

void odm_call_append_key(struct od_strbuf *out, const struct odm_call_spans *p, size_t i, const char *text)
{
	const struct odm_slice key = slice(text, p->param[i].key);

	od_strbuf_append(out, i > 0 ? ", " : "{", i > 0 ? 2 : 1);
	odm_json_quote(out, key.text, key.len);
	od_strbuf_append(out, ": ", 2);
}

static unsigned types_of(const struct odm_call_spans *p, size_t i, const char *text, const json_t *function)
{
	const struct odm_slice key = slice(text, p->param[i].key);

	return odm_param_types(function, key.text, key.len);
}

void odm_call_append_value(struct od_strbuf *out, const struct odm_call_format *format, const struct odm_call_spans *p,
			   size_t i, const char *text, const json_t *function)
{
	append_value(out, format->values, odm_call_value(format, p, i, text), types_of(p, i, text, function));
}

bool odm_call_value_is_text(const struct odm_call_format *format, const struct odm_call_spans *p, size_t i,
			    const char *text, const json_t *function)
{
	const unsigned types = types_of(p, i, text, function);

	return types == ODM_TYPE_STRING || (types == 0 && format->values != ODM_VALUE_JSON);
}

/* False: a parameter is given twice. */
static bool append_params(struct od_strbuf *out, const struct odm_call_format *format, const struct odm_call_spans *p,
			  const char *text, const json_t *function)
{
	for (size_t i = 0; i < p->n_params; i++) {
		if (odm_call_key_again(p, i, text))
			return false;
		odm_call_append_key(out, p, i, text);
		odm_call_append_value(out, format, p, i, text, function);
	}
	od_strbuf_append(out, p->n_params > 0 ? "}" : "{}", p->n_params > 0 ? 1 : 2);
	return true;
}

/* ---- Building ---- */

/* Copies a name or an id. OD_ERR_FORMAT: it is not UTF-8, is too long, or has control characters. */
static int set(char **out, struct odm_slice text)
{
	json_t *valid = text.len <= ODM_MAX_NAME_BYTES ? json_stringn(text.text, text.len) : NULL;
	bool good = valid != NULL;

	json_decref(valid);
	for (size_t i = 0; good && i < text.len; i++)
		good = (unsigned char)text.text[i] >= 0x20;
	if (!good)
		return OD_ERR_FORMAT;
	*out = strndup(text.text, text.len);
	return *out == NULL ? OD_ERR_NOMEM : OD_OK;
}

/* Takes args' text. */
static int finish(struct odm_tool_call *out, struct od_strbuf *args, const json_t *tools)
{
	const struct odm_slice text = { args->text, args->len };
	json_t *object = text.len > 0 ? odm_json_value(text) : NULL;
	size_t len;
	int rc = OD_OK;

	if (!json_is_object(object) || out->name[0] == '\0' ||
	    (tools != NULL && odm_find_tool(tools, out->name) == NULL))
		rc = OD_ERR_FORMAT;
	json_decref(object);
	if (args->failed)
		rc = OD_ERR_NOMEM;
	if (rc == OD_OK)
		out->arguments = od_strbuf_take(args, &len);
	if (rc == OD_OK && out->arguments == NULL)
		rc = OD_ERR_NOMEM;
	od_strbuf_fini(args);
	if (rc != OD_OK)
		odm_tool_call_fini(out);
	return rc;
}

int odm_tool_call_of_json(struct odm_tool_call *out, struct odm_slice name, struct odm_slice args, const json_t *tools)
{
	struct od_strbuf text = { 0 };
	int rc;

	*out = (struct odm_tool_call){ 0 };
	rc = set(&out->name, name);
	if (rc != OD_OK)
		return rc;
	args = trimmed(args);
	od_strbuf_append(&text, args.text, args.len);
	return finish(out, &text, tools);
}

/* Returns the value of the first member that has one of two names and, if `string`, is a string. len 0: none. */
static struct odm_slice member(struct odm_slice whole, const char *const names[2], bool string)
{
	struct odm_json_item m;

	for (size_t pos = 0; odm_json_next(whole, &pos, &m);)
		if ((is(m.key, names[0]) || is(m.key, names[1])) &&
		    (!string || (m.value.len > 1 && m.value.text[0] == '"')))
			return m.value;
	return (struct odm_slice){ "", 0 };
}

/* OD_ERR_FORMAT: quoted is no string, or has a NUL. */
static int set_quoted(char **out, struct odm_slice quoted)
{
	json_t *v = odm_json_value(quoted);
	const char *text = json_string_value(v);
	int rc = OD_ERR_FORMAT;

	if (text != NULL)
		rc = set(out, (struct odm_slice){ text, json_string_length(v) });
	json_decref(v);
	return rc;
}

int odm_tool_call_of_members(struct odm_tool_call *out, struct odm_slice whole, struct odm_slice *args)
{
	static const char *const names[] = { "\"name\"", "\"tool_name\"" }, *const ids[] = { "\"id\"",
											     "\"tool_call_id\"" };
	static const char *const arguments[] = { "\"arguments\"", "\"parameters\"" };
	const struct odm_slice id = member(whole, ids, true);
	int rc;

	*out = (struct odm_tool_call){ 0 };
	*args = member(whole, arguments, false);
	rc = set_quoted(&out->name, member(whole, names, true));
	if (rc == OD_OK && id.len > 0)
		rc = set_quoted(&out->id, id);
	if (rc != OD_OK)
		odm_tool_call_fini(out);
	return rc;
}

static int build_whole(struct odm_tool_call *out, struct odm_slice whole, const json_t *tools)
{
	json_t *object = odm_json_value(whole); /* the walk needs a valid one */
	struct od_strbuf text = { 0 };
	struct odm_slice args;
	int rc = OD_ERR_FORMAT;

	*out = (struct odm_tool_call){ 0 };
	if (object != NULL)
		rc = odm_tool_call_of_members(out, whole, &args);
	if (rc == OD_OK) {
		od_strbuf_append(&text, args.text, args.len);
		rc = finish(out, &text, tools);
	}
	json_decref(object);
	return rc;
}

/* Kimi's ids are functions.NAME:0 and nothing else has the name. */
static struct odm_slice name_in_id(struct odm_slice id)
{
	static const char prefix[] = "functions.";
	const size_t n = sizeof(prefix) - 1;
	size_t end = id.len;

	while (end > 0 && id.text[end - 1] != ':')
		end--;
	if (end > 0)
		id.len = end - 1;
	if (id.len > n && memcmp(id.text, prefix, n) == 0) {
		id.text += n;
		id.len -= n;
	}
	return id;
}

static int build_args(struct od_strbuf *out, const struct odm_call_format *format, const struct odm_call_spans *p,
		      const char *text, const json_t *function)
{
	const struct odm_slice args = slice(text, p->args);
	bool good = true;

	if (format->values == ODM_VALUE_GEMMA)
		good = odm_gemma_to_json(out, args);
	else if (format->param != NULL)
		good = append_params(out, format, p, text, function);
	else
		od_strbuf_append(out, args.text, args.len);
	return good ? OD_OK : OD_ERR_FORMAT;
}

int odm_tool_call_named(struct odm_tool_call *out, const struct odm_call_spans *p, const char *text)
{
	const struct odm_slice id = slice(text, p->id);
	int rc;

	*out = (struct odm_tool_call){ 0 };
	rc = set(&out->name, p->name.end > 0 ? slice(text, p->name) : name_in_id(id));
	if (rc == OD_OK && id.len > 0)
		rc = set(&out->id, id);
	if (rc != OD_OK)
		odm_tool_call_fini(out);
	return rc;
}

int odm_tool_call_build(struct odm_tool_call *out, const struct odm_call_format *format, const struct odm_call_spans *p,
			const char *text, const json_t *tools)
{
	struct od_strbuf built = { 0 };
	int rc;

	if (p->whole)
		return build_whole(out, slice(text, p->args), tools);
	rc = odm_tool_call_named(out, p, text);
	if (rc == OD_OK)
		rc = build_args(&built, format, p, text, odm_find_tool(tools, out->name));
	if (rc == OD_OK)
		return finish(out, &built, tools);
	od_strbuf_fini(&built);
	odm_tool_call_fini(out);
	return rc;
}
