/* Arrays and objects. */
#include "common/grammar/json_schema_internal.h"

#include "common/grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PROPERTIES 2000u
#define MAX_COUNTED 20000u /* properties times counts */
#define MAX_PATTERNS 4u /* patternProperties that a name is tried with, all together */
#define MAX_NAME_DEPTH 100u /* $ref, allOf and anyOf within propertyNames */
#define PROPERTY_WORK 12u /* for one property in one schema */
#define RULE_EVERY 64 /* properties: alternatives nest no deeper */

static uint32_t text_node(struct od_grammar *g, const char *text)
{
	return od_syntax_text(g, text, strlen(text));
}

/* A comma and the white space behind it. */
static uint32_t comma(struct schema *s)
{
	return od_syntax_cat(schema_grammar(s), text_node(schema_grammar(s), ","), schema_space(s));
}

/* open space (body space)? close, one level deeper; body has its last space itself. */
static uint32_t enclose(struct schema *s, const char *open, uint32_t body, const char *close)
{
	struct od_grammar *g = schema_grammar(s);

	return od_syntax_cat(
		g, text_node(g, open),
		od_syntax_level(g, od_syntax_cat(g, schema_space(s), od_syntax_cat(g, body, text_node(g, close)))));
}

/* ---- Arrays ---- */

struct array_shape {
	uint32_t min, max;
	uint32_t n_prefix; /* places that some part describes on their own */
};

/* The schemas of a part for the places of an array: the first ones, and the others. Draft 7 has them as items and
 * additionalItems. */
static void items_of(const json_t *schema, const json_t **prefix, const json_t **rest, const char **prefix_name,
		     const char **rest_name)
{
	const json_t *items = json_object_get(schema, "items");
	const bool old = json_is_array(items);

	*prefix_name = old ? "items" : "prefixItems";
	*rest_name = old ? "additionalItems" : "items";
	*prefix = json_object_get(schema, *prefix_name);
	*rest = json_object_get(schema, *rest_name);
}

static void read_array(struct schema *s, const struct schema_parts *leaf, struct array_shape *a)
{
	const char *prefix_name, *rest_name;
	const json_t *prefix, *rest;
	uint32_t n;

	*a = (struct array_shape){ .max = OD_RE_NO_LIMIT };
	for (size_t i = 0; i < leaf->n; i++) {
		items_of(leaf->v[i], &prefix, &rest, &prefix_name, &rest_name);
		if (prefix != NULL && !json_is_array(prefix))
			schema_refuse(s, leaf->v[i], prefix_name, OD_ERR_FORMAT, "expected an array of schemas");
		if (json_array_size(prefix) > MAX_PROPERTIES)
			schema_refuse(s, leaf->v[i], prefix_name, OD_ERR_RANGE, "expected at most %u", MAX_PROPERTIES);
		else if (json_array_size(prefix) > a->n_prefix)
			a->n_prefix = (uint32_t)json_array_size(prefix);
		if (schema_count(s, leaf->v[i], "minItems", &n) && n > a->min)
			a->min = n;
		if (schema_count(s, leaf->v[i], "maxItems", &n) && n <= SCHEMA_MAX_LENGTH && n < a->max)
			a->max = n;
	}
}

/* The rule for the item at a place; of places behind all that are described on their own, any. */
static uint32_t item(struct schema *s, const struct schema_parts *leaf, uint32_t place)
{
	const char *prefix_name, *rest_name;
	const json_t *prefix, *rest;
	struct schema_parts parts = { 0 };

	for (size_t i = 0; i < leaf->n; i++) {
		items_of(leaf->v[i], &prefix, &rest, &prefix_name, &rest_name);
		if (place < json_array_size(prefix))
			schema_add(s, &parts, json_array_get(prefix, place), leaf->v[i], prefix_name, NULL);
		else
			schema_add(s, &parts, rest, leaf->v[i], rest_name, NULL);
	}
	return schema_rule(s, &parts);
}

uint32_t schema_array(struct schema *s, const struct schema_parts *leaf)
{
	struct od_grammar *g = schema_grammar(s);
	const uint32_t space = schema_space(s);
	struct array_shape a;
	uint32_t body, one, n;

	read_array(s, leaf, &a);
	if (schema_failed(s) || a.min > a.max)
		return OD_SYNTAX_NONE;
	/* From the end: what follows the first n items. */
	n = a.n_prefix < a.max ? a.n_prefix : a.max;
	one = item(s, leaf, a.n_prefix);
	body = OD_SYNTAX_NONE;
	if (n == a.n_prefix) {
		const uint32_t min = a.min > n ? a.min - n : 0, max = a.max == OD_RE_NO_LIMIT ? a.max : a.max - n;

		if (n > 0)
			body = od_syntax_cat(g, od_syntax_repeat(g, od_syntax_cat(g, comma(s), one), min, max), space);
		else if (max > 0)
			body = od_syntax_cat(g, one,
					     od_syntax_cat(g,
							   od_syntax_repeat(g, od_syntax_cat(g, comma(s), one),
									    min > 0 ? min - 1 : 0,
									    max == OD_RE_NO_LIMIT ? max : max - 1),
							   space));
	} else if (n > 0) {
		body = space;
	}
	for (; n > 0; n--) {
		const uint32_t next = od_syntax_cat(g, n > 1 ? comma(s) : OD_SYNTAX_EMPTY,
						    od_syntax_cat(g, item(s, leaf, n - 1), body));

		body = n > 1 && n - 1 >= a.min ? od_syntax_or(g, next, space) : next;
		if (n % RULE_EVERY == 0) {
			const uint32_t rule = od_syntax_rule(g, NULL);

			od_syntax_define(g, rule, body);
			body = rule;
		}
	}
	return enclose(s, "[", a.min == 0 ? od_syntax_or(g, body, OD_SYNTAX_EMPTY) : body, "]");
}

/* ---- Objects ---- */

struct property {
	const char *name; /* as long as the schema */
	bool required;
	uint32_t pair; /* node: key, colon and value; OD_SYNTAX_NONE: it may not be there */
};

struct object_shape {
	struct property *v;
	size_t n, cap;
	json_t *numbers; /* places in v, by name */
	uint32_t min, max; /* properties */
	uint32_t other; /* node: key, colon and value of those that the schema does not name */
	bool never;
};

static json_t *object_at(struct schema *s, const json_t *schema, const char *keyword)
{
	json_t *v = json_object_get(schema, keyword);

	if (v == NULL || json_is_object(v))
		return v;
	schema_refuse(s, schema, keyword, OD_ERR_FORMAT, "expected an object");
	return NULL;
}

static void add_property(struct schema *s, struct object_shape *o, const json_t *schema, const char *keyword,
			 const char *name, bool required)
{
	const json_t *number = json_object_get(o->numbers, name);

	schema_spend(s, PROPERTY_WORK);
	if (number != NULL) {
		o->v[json_integer_value(number)].required |= required;
		return;
	}
	if (o->n == o->cap) {
		const size_t cap = o->cap == 0 ? 16 : 2 * o->cap;
		struct property *v = o->n < MAX_PROPERTIES ? realloc(o->v, cap * sizeof(*v)) : NULL;

		if (v == NULL) {
			schema_refuse(s, schema, keyword, o->n < MAX_PROPERTIES ? OD_ERR_NOMEM : OD_ERR_RANGE,
				      "expected at most %u properties", MAX_PROPERTIES);
			return;
		}
		o->v = v;
		o->cap = cap;
	}
	if (json_object_set_new_nocheck(o->numbers, name, json_integer((json_int_t)o->n)) != 0)
		schema_refuse(s, schema, NULL, OD_ERR_NOMEM, "no memory");
	o->v[o->n++] = (struct property){ name, required, OD_SYNTAX_NONE };
}

static void read_object(struct schema *s, const struct schema_parts *leaf, struct object_shape *o)
{
	uint32_t n;

	*o = (struct object_shape){ .max = OD_RE_NO_LIMIT, .other = OD_SYNTAX_NONE, .numbers = json_object() };
	for (size_t i = 0; i < leaf->n && !schema_failed(s); i++) {
		const json_t *schema = leaf->v[i];
		const char *name;
		json_t *v;

		json_object_foreach(object_at(s, schema, "properties"), name, v)
		{
			add_property(s, o, schema, "properties", name, false);
			if (schema_failed(s))
				break;
		}
		if (schema_count(s, schema, "minProperties", &n) && n > o->min)
			o->min = n;
		if (schema_count(s, schema, "maxProperties", &n) && n < o->max)
			o->max = n;
	}
	for (size_t i = 0; i < leaf->n && !schema_failed(s); i++) {
		const json_t *required = json_object_get(leaf->v[i], "required"), *v;

		/* Draft 3 has a boolean, in the property: an annotation today. */
		if (required != NULL && !json_is_array(required) && !json_is_boolean(required))
			schema_refuse(s, leaf->v[i], "required", OD_ERR_FORMAT, "expected an array of names");
		for (size_t k = 0; k < json_array_size(required) && !schema_failed(s); k++) {
			v = json_array_get(required, k);
			if (!json_is_string(v))
				schema_refuse(s, leaf->v[i], "required", OD_ERR_FORMAT, "expected an array of names");
			else if (strlen(json_string_value(v)) != json_string_length(v))
				schema_refuse(s, leaf->v[i], "required", OD_ERR_UNSUPPORTED,
					      "names with \\u0000 are not supported here");
			else
				add_property(s, o, leaf->v[i], "required", json_string_value(v), true);
		}
	}
}

/* The names that match a pattern; wide: for one reader of patterns at least. */
static uint32_t name_re(struct schema *s, const json_t *schema, const char *pattern, bool wide)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	const enum od_writing w = schema_style(s)->writing;
	struct od_err err;
	uint32_t re;
	int rc;

	if (wide)
		rc = od_regex_compile_wide(p, pattern, strlen(pattern), w, &re, &err);
	else
		rc = od_regex_compile(p, pattern, strlen(pattern), w, true, &re, &err);
	if (rc == OD_OK)
		return re;
	return schema_refuse(s, schema, "patternProperties", err.code, "%.60s: %s", pattern, err.msg);
}

/* A key in its one spelling. */
static uint32_t key_of(struct schema *s, uint32_t name)
{
	return schema_style(s)->bare_keys ? name : schema_quoted(s, name);
}

static uint32_t make_any_key(struct schema *s)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	struct od_byte_set word = { { 0 } };

	if (!schema_style(s)->bare_keys)
		return key_of(s, od_re_repeat(p, schema_one_char(s, schema_style(s)->writing), 0, OD_RE_NO_LIMIT));
	for (const char *c = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"; *c != '\0'; c++)
		od_byte_set_add(&word, (uint8_t)*c);
	return od_re_repeat(p, od_re_byte(p, &word), 1, OD_RE_NO_LIMIT);
}

/* Any name, as a key. */
static uint32_t any_key(struct schema *s)
{
	uint32_t *re = schema_any_key(s);

	if (*re == OD_RE_NONE)
		*re = make_any_key(s);
	return *re;
}

/* A value behind its key, an expression. */
static uint32_t pair(struct schema *s, uint32_t key, const struct schema_parts *value)
{
	struct od_grammar *g = schema_grammar(s);

	return od_syntax_cat(g, od_syntax_re(g, key),
			     od_syntax_cat(g, od_syntax_re(g, schema_colon(s)), schema_rule(s, value)));
}

/* Adds what a part says of the value of a named property. */
static void add_value(struct schema *s, const json_t *schema, const char *name, uint32_t written,
		      struct schema_parts *value)
{
	const json_t *named = json_object_get(json_object_get(schema, "properties"), name);
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	bool known = named != NULL;
	const char *pattern;
	json_t *v;

	schema_spend(s, PROPERTY_WORK);
	schema_add(s, value, named, schema, "properties", name);
	json_object_foreach(object_at(s, schema, "patternProperties"), pattern, v)
	{
		const uint32_t wide = name_re(s, schema, pattern, true);

		if (schema_failed(s) || !od_re_live(p, od_re_and(p, wide, written)))
			continue;
		/* If readers differ, it is both one that matches and one that does not. */
		known |= od_re_live(p, od_re_and(p, name_re(s, schema, pattern, false), written));
		schema_add(s, value, v, schema, "patternProperties", pattern);
	}
	if (!known)
		schema_add(s, value, json_object_get(schema, "additionalProperties"), schema, "additionalProperties",
			   NULL);
}

/* The names among n values. */
static uint32_t listed_names(struct schema *s, const json_t *const *v, size_t n)
{
	struct schema_words words = { .end = calloc(n + 1, sizeof(*words.end)) };
	uint32_t re = OD_RE_NONE;

	for (size_t i = 0; i < n && words.end != NULL; i++)
		if (json_is_string(v[i])) {
			od_write_text(&words.text, json_string_value(v[i]), json_string_length(v[i]),
				      schema_style(s)->writing);
			words.end[words.n++] = words.text.len;
		}
	if (words.end != NULL)
		re = schema_words_re(s, &words);
	else
		schema_refuse(s, NULL, NULL, OD_ERR_NOMEM, "no memory");
	od_strbuf_fini(&words.text);
	free(words.end);
	return re;
}

static uint32_t enum_names(struct schema *s, const json_t *list)
{
	const size_t n = json_array_size(list);
	const json_t **v = calloc(n + 1, sizeof(*v));
	uint32_t re = OD_RE_NONE;

	for (size_t i = 0; i < n && v != NULL; i++)
		v[i] = json_array_get(list, i);
	if (v != NULL)
		re = listed_names(s, v, n);
	else
		schema_refuse(s, NULL, NULL, OD_ERR_NOMEM, "no memory");
	free(v);
	return re;
}

/* A name is a string: keywords for other types say nothing of it. */
static void check_name_keywords(struct schema *s, const json_t *names)
{
	static const char *const known[] = { "type",	"pattern", "minLength", "maxLength",  "format",	 "enum",
					     "const",	"$ref",	   "anyOf",	"allOf",      "title",	 "description",
					     "default", "$schema", "$comment",	"deprecated", "examples" };
	const char *keyword;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)names, keyword, v)
	{
		bool is_known = false;

		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			is_known |= strcmp(known[i], keyword) == 0;
		if (!is_known)
			schema_refuse(s, names, keyword, OD_ERR_UNSUPPORTED, "%.60s is not supported for names here",
				      keyword);
	}
}

/* The strings that a schema's own keywords allow: what it says of other types says nothing of names. */
static uint32_t plain_names(struct schema *s, const json_t *names)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	const json_t *one = json_object_get(names, "const"), *list = json_object_get(names, "enum");
	const struct schema_parts parts = { .v = { names }, .n = 1 };
	uint32_t strings = schema_string_text(s, &parts);

	if (!schema_allows_strings(s, names))
		return OD_RE_NONE;
	if (one != NULL)
		strings = od_re_and(p, strings, listed_names(s, &one, 1));
	return list != NULL ? od_re_and(p, strings, enum_names(s, list)) : strings;
}

/* The names that a schema for names allows, without quotes: an expression. It stands in where. */
static uint32_t allowed_names(struct schema *s, const json_t *names, const json_t *where, const char *keyword,
			      unsigned depth)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	const json_t *any = json_object_get(names, "anyOf"), *v;
	struct schema_parts parts = { 0 };
	uint32_t all, some = OD_RE_NONE;
	size_t i;

	schema_add(s, &parts, names, where, keyword, NULL);
	if (parts.never || schema_failed(s))
		return OD_RE_NONE;
	if (parts.n == 0)
		return od_re_repeat(p, od_any_char(p, schema_style(s)->writing), 0, OD_RE_NO_LIMIT);
	if (depth > MAX_NAME_DEPTH)
		return schema_refuse(s, names, NULL, OD_ERR_RANGE, "names of properties have more than %u levels",
				     MAX_NAME_DEPTH);
	check_name_keywords(s, names);
	if (schema_failed(s))
		return OD_RE_NONE;
	all = plain_names(s, names);
	if (json_object_get(names, "$ref") != NULL)
		all = od_re_and(p, all, allowed_names(s, schema_target(s, names), names, "$ref", depth + 1));
	json_array_foreach(json_object_get(names, "allOf"), i, v) all =
		od_re_and(p, all, allowed_names(s, v, names, "allOf", depth + 1));
	json_array_foreach((json_t *)(uintptr_t)any, i, v) some =
		od_re_or(p, some, allowed_names(s, v, names, "anyOf", depth + 1));
	return any != NULL ? od_re_and(p, all, some) : all;
}

/* The keys that the leaf's propertyNames allow. */
static uint32_t allowed_keys(struct schema *s, const struct schema_parts *leaf)
{
	uint32_t keys = any_key(s);

	for (size_t i = 0; i < leaf->n && !schema_failed(s); i++) {
		const json_t *names = json_object_get(leaf->v[i], "propertyNames");

		if (names != NULL)
			keys = od_re_and(od_grammar_res(schema_grammar(s)), keys,
					 key_of(s, allowed_names(s, names, leaf->v[i], "propertyNames", 0)));
	}
	return keys;
}

/* The keys of all properties. */
static uint32_t names_of(struct schema *s, const struct object_shape *o)
{
	struct schema_words names = { .end = calloc(o->n + 1, sizeof(*names.end)) };
	uint32_t re = OD_RE_NONE;

	for (size_t i = 0; i < o->n && names.end != NULL; i++) {
		od_write_text(&names.text, o->v[i].name, strlen(o->v[i].name), schema_style(s)->writing);
		names.end[names.n++] = names.text.len;
	}
	if (names.end != NULL)
		re = key_of(s, schema_words_re(s, &names));
	else
		schema_refuse(s, NULL, NULL, OD_ERR_NOMEM, "no memory");
	od_strbuf_fini(&names.text);
	free(names.end);
	return re;
}

/* Pairs whose names are not among the properties: one node for each set of patterns that a name matches. */
static uint32_t other_pairs(struct schema *s, const struct schema_parts *leaf, const struct object_shape *o,
			    uint32_t keys)
{
	struct od_grammar *g = schema_grammar(s);
	struct od_re_pool *p = od_grammar_res(g);
	uint32_t pattern[MAX_PATTERNS], no_pattern[MAX_PATTERNS], node = OD_SYNTAX_NONE;
	const json_t *of[MAX_PATTERNS], *value[MAX_PATTERNS];
	const char *text[MAX_PATTERNS];
	size_t n = 0;

	if (o->n > 0)
		keys = od_re_and(p, keys, od_re_not(p, names_of(s, o)));
	for (size_t i = 0; i < leaf->n; i++) {
		const char *key;
		json_t *v;

		json_object_foreach(object_at(s, leaf->v[i], "patternProperties"), key, v)
		{
			if (n == MAX_PATTERNS) {
				schema_refuse(s, leaf->v[i], "patternProperties", OD_ERR_UNSUPPORTED,
					      "more than %u patterns at once are not supported here", MAX_PATTERNS);
				return OD_SYNTAX_NONE;
			}
			of[n] = leaf->v[i];
			text[n] = key;
			value[n] = v;
			no_pattern[n] = od_re_not(p, key_of(s, name_re(s, leaf->v[i], key, true)));
			pattern[n++] = key_of(s, name_re(s, leaf->v[i], key, false));
		}
	}
	for (unsigned set = 0; set < 1u << n && !schema_failed(s); set++) {
		struct schema_parts parts = { 0 };
		uint32_t own = keys;

		schema_spend(s, PROPERTY_WORK * leaf->n);
		for (size_t i = 0; i < n; i++)
			own = od_re_and(p, own, set >> i & 1 ? pattern[i] : no_pattern[i]);
		for (size_t i = 0; i < n; i++)
			if (set >> i & 1)
				schema_add(s, &parts, value[i], of[i], "patternProperties", text[i]);
		for (size_t i = 0; i < leaf->n; i++) {
			bool known = false;

			for (size_t k = 0; k < n; k++)
				known |= of[k] == leaf->v[i] && (set >> k & 1) != 0;
			if (!known)
				schema_add(s, &parts, json_object_get(leaf->v[i], "additionalProperties"), leaf->v[i],
					   "additionalProperties", NULL);
		}
		if (!parts.never && od_re_live(p, own))
			node = od_syntax_or(g, node, pair(s, own, &parts));
	}
	return node;
}

static void make_pairs(struct schema *s, const struct schema_parts *leaf, struct object_shape *o)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	const uint32_t keys = allowed_keys(s, leaf);
	const bool any_name = keys == any_key(s) && !schema_style(s)->bare_keys;

	for (size_t i = 0; i < o->n && !schema_failed(s); i++) {
		struct property *property = &o->v[i];
		const uint32_t name =
			od_written_text(p, property->name, strlen(property->name), schema_style(s)->writing);
		struct schema_parts value = { 0 };

		for (size_t k = 0; k < leaf->n; k++)
			add_value(s, leaf->v[k], property->name, name, &value);
		if (!value.never && (any_name || od_re_live(p, od_re_and(p, keys, key_of(s, name)))))
			property->pair = pair(s, key_of(s, name), &value);
		o->never |= property->required && property->pair == OD_SYNTAX_NONE;
	}
	if (!schema_failed(s))
		o->other = other_pairs(s, leaf, o, keys);
}

/* The objects, from the end: after[c] is what follows the properties from i on if c of them stand already, counted only
 * as far as it matters. */
struct writing {
	struct schema *s;
	struct od_grammar *g;
	const struct object_shape *o;
	uint32_t most; /* highest count */
	uint32_t *after, *before; /* [most + 1] */
};

static uint32_t next_count(const struct writing *w, uint32_t c)
{
	return c < w->most ? c + 1 : c;
}

/* Properties without a name of their own; first: no pair stands before. */
static uint32_t write_others(const struct writing *w, uint32_t c, bool first)
{
	const struct object_shape *o = w->o;
	struct od_grammar *g = w->g;
	struct schema *s = w->s;
	const uint32_t space = schema_space(s), max = o->max == OD_RE_NO_LIMIT ? o->max : o->max - c;
	const uint32_t min = o->min > c ? o->min - c : 0, again = od_syntax_cat(g, comma(s), o->other);
	uint32_t more;

	/* Their names may be the same, so only one of them counts for sure. */
	if (min > 1)
		return OD_SYNTAX_NONE;
	if (!first)
		return od_syntax_cat(g, od_syntax_repeat(g, again, min, max), space);
	more = max == 0 ? OD_SYNTAX_NONE :
			  od_syntax_cat(g, o->other,
					od_syntax_cat(g,
						      od_syntax_repeat(g, again, min > 0 ? min - 1 : 0,
								       max == OD_RE_NO_LIMIT ? max : max - 1),
						      space));
	return min == 0 ? od_syntax_or(g, more, OD_SYNTAX_EMPTY) : more;
}

static uint32_t write_object(struct writing *w)
{
	const struct object_shape *o = w->o;
	struct od_grammar *g = w->g;
	struct schema *s = w->s;
	uint32_t first = write_others(w, 0, true), *swap;

	for (uint32_t c = 0; c <= w->most; c++)
		w->after[c] = write_others(w, c, false);
	for (size_t i = o->n; i > 0; i--) {
		const struct property *p = &o->v[i - 1];

		if (p->pair == OD_SYNTAX_NONE)
			continue;
		for (uint32_t c = 0; c <= w->most; c++) {
			const bool full = o->max != OD_RE_NO_LIMIT && c >= o->max;
			const uint32_t with =
				full ? OD_SYNTAX_NONE :
				       od_syntax_cat(g, comma(s),
						     od_syntax_cat(g, p->pair, w->after[next_count(w, c)]));

			w->before[c] = p->required ? with : od_syntax_or(g, with, w->after[c]);
			if (i % RULE_EVERY == 0) {
				const uint32_t rule = od_syntax_rule(g, NULL);

				od_syntax_define(g, rule, w->before[c]);
				w->before[c] = rule;
			}
		}
		if (o->max > 0)
			first = p->required ?
					od_syntax_cat(g, p->pair, w->after[next_count(w, 0)]) :
					od_syntax_or(g, od_syntax_cat(g, p->pair, w->after[next_count(w, 0)]), first);
		else if (p->required)
			first = OD_SYNTAX_NONE;
		if (i % RULE_EVERY == 0) {
			const uint32_t rule = od_syntax_rule(g, NULL);

			od_syntax_define(g, rule, first);
			first = rule;
		}
		swap = w->after;
		w->after = w->before;
		w->before = swap;
	}
	return enclose(s, "{", first, "}");
}

uint32_t schema_object(struct schema *s, const struct schema_parts *leaf)
{
	struct object_shape o;
	struct writing w = { .s = s, .g = schema_grammar(s), .o = &o };
	uint32_t node = OD_SYNTAX_NONE;
	size_t listed = 0;

	read_object(s, leaf, &o);
	if (!schema_failed(s))
		make_pairs(s, leaf, &o);
	for (size_t i = 0; i < o.n; i++)
		listed += o.v[i].pair != OD_SYNTAX_NONE;
	/* Names that the schema does not list may be written twice, and then count once. */
	if (!schema_failed(s) && o.min > listed + 1 && o.other != OD_SYNTAX_NONE)
		schema_refuse(s, leaf->n > 0 ? leaf->v[0] : NULL, "minProperties", OD_ERR_UNSUPPORTED,
			      "more than one property that is not listed would be needed, which is not supported here");
	w.most = o.max != OD_RE_NO_LIMIT ? o.max : o.min;
	if (w.most > o.n + 1 && o.max == OD_RE_NO_LIMIT)
		w.most = (uint32_t)o.n + 1;
	if (w.most > o.n)
		w.most = o.max != OD_RE_NO_LIMIT ? (uint32_t)o.n : w.most;
	if (!schema_failed(s) && ((uint64_t)w.most + 1) * (o.n + 1) > MAX_COUNTED)
		schema_refuse(s, leaf->n > 0 ? leaf->v[0] : NULL,
			      o.max != OD_RE_NO_LIMIT ? "maxProperties" : "minProperties", OD_ERR_RANGE,
			      "too many properties to count");
	if (!schema_failed(s) && !o.never && o.min <= o.max) {
		w.after = calloc((w.most + (size_t)1) * 2, sizeof(*w.after));
		w.before = w.after != NULL ? w.after + w.most + 1 : NULL;
		if (w.after != NULL) {
			uint32_t *both = w.after;

			node = write_object(&w);
			free(both);
		} else {
			schema_refuse(s, NULL, NULL, OD_ERR_NOMEM, "no memory");
		}
	}
	json_decref(o.numbers);
	free(o.v);
	return node;
}
