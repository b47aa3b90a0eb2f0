#include "main-node/chat/call_schema.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_DEPTH 64 /* limit of schemas within each other */
#define MAX_VISITS 4096 /* limit of schemas that are looked at for one parameter: references can multiply them */

/* The references that are being followed. */
struct chain {
	const json_t *schema;
	const struct chain *up;
};

struct walk {
	const json_t *root[3]; /* schemas that "#" in a reference may mean, the likeliest first; NULL: nothing */
	const char *key; /* the parameter's name */
	size_t key_len;
	size_t n_visits;
};

static unsigned types_of(struct walk *w, const json_t *schema, bool object, int depth, const struct chain *up);

/* ---- Types ---- */

static unsigned type_of_name(const char *name)
{
	static const char *const names[] = { "string", "integer", "number", "boolean", "object", "array", "null" };

	if (name == NULL)
		return 0;
	for (unsigned i = 0; i < N(names); i++)
		if (strcmp(names[i], name) == 0)
			return 1u << i;
	return 0;
}

unsigned odm_type_of_value(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_STRING: return ODM_TYPE_STRING;
	case JSON_INTEGER:
	case JSON_REAL: /* 2.0 is an integer for JSON schema; whether it fits is the client's to see */
		return ODM_TYPE_INTEGER | ODM_TYPE_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE: return ODM_TYPE_BOOLEAN;
	case JSON_OBJECT: return ODM_TYPE_OBJECT;
	case JSON_ARRAY: return ODM_TYPE_ARRAY;
	case JSON_NULL: return ODM_TYPE_NULL;
	}
	return 0;
}

/* Returns the types by the schema's own keywords; 0: they say nothing. */
static unsigned own_types(const json_t *schema)
{
	const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const"), *value;
	unsigned named = type_of_name(json_string_value(type)), listed = 0;
	size_t i;

	json_array_foreach(type, i, value) named |= type_of_name(json_string_value(value));
	json_array_foreach(json_object_get(schema, "enum"), i, value) listed |= odm_type_of_value(value);
	if (constant != NULL)
		listed = odm_type_of_value(constant);
	return named != 0 ? named : listed;
}

/* These keywords restrict values of one type only, so a schema that has them means that type. The default's type counts
 * too. */
static unsigned meant_types(const json_t *schema)
{
	static const struct {
		const char *keyword;
		unsigned type;
	} meant[] = {
		{ "properties", ODM_TYPE_OBJECT },
		{ "additionalProperties", ODM_TYPE_OBJECT },
		{ "required", ODM_TYPE_OBJECT },
		{ "patternProperties", ODM_TYPE_OBJECT },
		{ "propertyNames", ODM_TYPE_OBJECT },
		{ "minProperties", ODM_TYPE_OBJECT },
		{ "maxProperties", ODM_TYPE_OBJECT },
		{ "items", ODM_TYPE_ARRAY },
		{ "prefixItems", ODM_TYPE_ARRAY },
		{ "contains", ODM_TYPE_ARRAY },
		{ "minItems", ODM_TYPE_ARRAY },
		{ "maxItems", ODM_TYPE_ARRAY },
		{ "uniqueItems", ODM_TYPE_ARRAY },
		{ "minLength", ODM_TYPE_STRING },
		{ "maxLength", ODM_TYPE_STRING },
		{ "pattern", ODM_TYPE_STRING },
		{ "minimum", ODM_TYPE_NUMBER | ODM_TYPE_INTEGER },
		{ "maximum", ODM_TYPE_NUMBER | ODM_TYPE_INTEGER },
		{ "exclusiveMinimum", ODM_TYPE_NUMBER | ODM_TYPE_INTEGER },
		{ "exclusiveMaximum", ODM_TYPE_NUMBER | ODM_TYPE_INTEGER },
		{ "multipleOf", ODM_TYPE_NUMBER | ODM_TYPE_INTEGER },
	};
	const json_t *fallback = json_object_get(schema, "default");
	unsigned found = 0;

	if (fallback != NULL && !json_is_null(fallback))
		found = odm_type_of_value(fallback);
	for (size_t i = 0; i < N(meant); i++)
		if (json_object_get(schema, meant[i].keyword) != NULL)
			found |= meant[i].type;
	return found;
}

/* ---- References ---- */

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' :
	       c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 :
				      -1;
}

/* One step of a JSON pointer within a URI: %25 is a percent sign, ~1 a slash, ~0 a tilde. */
static void unescape(struct od_strbuf *out, const char *step, size_t len)
{
	struct od_strbuf plain = { 0 };

	for (size_t i = 0; i < len; i++) {
		const bool hex =
			step[i] == '%' && i + 2 < len && hex_digit(step[i + 1]) >= 0 && hex_digit(step[i + 2]) >= 0;
		const char c = hex ? (char)(hex_digit(step[i + 1]) * 16 + hex_digit(step[i + 2])) : step[i];

		od_strbuf_append(&plain, &c, 1);
		i += hex ? 2 : 0;
	}
	for (size_t i = 0; i < plain.len; i++) {
		const bool tilde = plain.text[i] == '~' && i + 1 < plain.len && strchr("01", plain.text[i + 1]) != NULL;

		od_strbuf_append(out, tilde ? (plain.text[i + 1] == '1' ? "/" : "~") : plain.text + i, 1);
		i += tilde;
	}
	out->failed = out->failed || plain.failed;
	od_strbuf_fini(&plain);
}

static const json_t *step_into(const json_t *v, const char *step, size_t len)
{
	struct od_strbuf name = { 0 };
	const json_t *found = NULL;

	unescape(&name, step, len);
	if (!name.failed && json_is_array(v) && name.len > 0 && strspn(name.text, "0123456789") == name.len)
		found = json_array_get(v, strtoul(name.text, NULL, 10));
	else if (!name.failed)
		found = od_json_getn(v, name.len > 0 ? name.text : "", name.len);
	od_strbuf_fini(&name);
	return found;
}

static const json_t *find_pointer(const json_t *v, const char *at)
{
	while (v != NULL && *at == '/') {
		const size_t n = strcspn(at + 1, "/");

		v = step_into(v, at + 1, n);
		at += 1 + n;
	}
	return *at == '\0' ? v : NULL;
}

/* Returns the schema among the definitions that has the name as its "$anchor". */
static const json_t *find_anchor(const json_t *root, const char *name)
{
	static const char *const sections[] = { "$defs", "definitions" };
	const char *key, *anchor;
	json_t *v;

	for (size_t i = 0; i < N(sections); i++)
		json_object_foreach(json_object_get(root, sections[i]), key, v)
		{
			anchor = json_string_value(json_object_get(v, "$anchor"));
			if (anchor != NULL && strcmp(anchor, name) == 0)
				return v;
		}
	return NULL;
}

/* The text before "#" is taken to mean the schema itself: nothing else can be fetched. */
static const json_t *find_ref(const struct walk *w, const char *ref)
{
	const char *fragment = ref != NULL ? strchr(ref, '#') : NULL;
	const json_t *found = NULL;

	if (fragment == NULL)
		return NULL;
	for (size_t i = 0; found == NULL && i < N(w->root); i++) {
		if (fragment[1] == '\0' || fragment[1] == '/')
			found = find_pointer(w->root[i], fragment + 1);
		else
			found = find_anchor(w->root[i], fragment + 1);
	}
	return found;
}

static unsigned types_of_ref(struct walk *w, const json_t *schema, bool object, int depth, const struct chain *up)
{
	const json_t *target = find_ref(w, json_string_value(json_object_get(schema, "$ref")));

	for (const struct chain *c = up; c != NULL; c = c->up)
		if (c->schema == target)
			return 0; /* it is being looked at */
	return target != NULL ? types_of(w, target, object, depth + 1, &(struct chain){ target, up }) : 0;
}

/* ---- The whole ---- */

/* Combines two that both hold. 0: one says nothing. If the second contradicts the first, it does not count. */
static unsigned both(unsigned a, unsigned b)
{
	return a == 0 ? b : (a & b) != 0 ? a & b : a;
}

static unsigned types_of_choice(struct walk *w, const json_t *choices, bool object, bool all, int depth,
				const struct chain *up)
{
	unsigned found = 0;
	const json_t *v;
	size_t i;

	json_array_foreach(choices, i, v)
	{
		const unsigned types = types_of(w, v, object, depth + 1, up);

		found = all ? both(found, types) : found | types;
	}
	return found;
}

/* Returns the types of the parameter in an object of this schema. */
static unsigned types_of_member(struct walk *w, const json_t *schema, int depth, const struct chain *up)
{
	const json_t *member = od_json_getn(json_object_get(schema, "properties"), w->key, w->key_len);

	if (member == NULL)
		member = json_object_get(schema, "additionalProperties");
	w->root[1] = member;
	return member != NULL ? types_of(w, member, false, depth + 1, up) : 0;
}

/* object: returns the types of the parameter in it, else the types of the schema itself. */
static unsigned types_of(struct walk *w, const json_t *schema, bool object, int depth, const struct chain *up)
{
	unsigned found;

	if (!json_is_object(schema) || depth > MAX_DEPTH || w->n_visits++ >= MAX_VISITS)
		return 0;
	found = object ? types_of_member(w, schema, depth, up) : own_types(schema);
	found = both(found, types_of_ref(w, schema, object, depth, up));
	found = both(found, types_of_choice(w, json_object_get(schema, "allOf"), object, true, depth, up));
	found = both(found, types_of_choice(w, json_object_get(schema, "anyOf"), object, false, depth, up));
	found = both(found, types_of_choice(w, json_object_get(schema, "oneOf"), object, false, depth, up));
	if (found == 0 && !object)
		found = meant_types(schema);
	if (found != 0 && !object && json_is_true(json_object_get(schema, "nullable")))
		found |= ODM_TYPE_NULL;
	return found;
}

unsigned odm_param_types(const json_t *function, const char *key, size_t len)
{
	const json_t *parameters = json_object_get(function, "parameters");
	struct walk w = { .root = { parameters, NULL, function }, .key = key, .key_len = len };

	return types_of(&w, parameters, true, 0, NULL);
}
