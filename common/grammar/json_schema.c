/* Schemas become rules: one for each set of schemas that a value must satisfy together. $ref, allOf, anyOf and oneOf
 * are resolved within a set, into alternatives of plain schemas (leaves), whose keywords are then joined by type. Sets
 * are queued, so nesting costs no recursion, and a schema that refers to itself is a rule that names itself. */
#include "common/grammar/json_schema_internal.h"

#include "common/base/json.h"
#include "common/base/strbuf.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RULES 20000u
#define MAX_LEAVES 512u /* alternatives of one rule */
#define MAX_EXPANSIONS 60000u /* schemas in all sets, again for each alternative */
#define MAX_CHAIN 100u /* $ref, allOf and anyOf within one value */
#define MAX_LITERAL_DEPTH 200
#define MAX_NESTED_VALUES 1000u /* arrays and objects in an enum */
#define WORK 1800000u /* as od_re_work counts, for one schema */
#define EXPANSION_WORK 50u
#define OVERLAP_WORK 50u
#define LEAF_WORK 90u
#define VALUE_WORK 9u /* in an enum */

/* Where a schema stands, for errors. */
struct schema_place {
	const json_t *schema;
	const json_t *parent;
	const char *keyword, *name; /* name: NULL: none; both as long as the schema */
};

struct set_rule {
	struct schema_parts parts;
	uint32_t rule;
};

/* Two branches of oneOf: the rule of what satisfies both must match nothing. */
struct overlap {
	uint32_t rule;
	char *path; /* its oneOf */
	size_t a, b;
};

struct od_schema_check {
	struct overlap *v;
	size_t n;
	char label[64];
};

struct schema {
	struct od_grammar *g;
	const json_t *root;
	const struct od_json_style *style;
	bool is_text;
	struct schema_place *place; /* by address */
	size_t n_places, places_size;
	struct set_rule **rules; /* [n_rules]; those from done on have no body yet */
	size_t n_rules, cap_rules, done;
	uint32_t *by_parts; /* numbers of rules plus one, by their parts */
	size_t by_parts_size;
	json_t *made; /* schemas that are not in the text */
	struct od_schema_check *check;
	size_t cap_overlaps, expansions;
	uint32_t one_char[2], any_char[2], any_number[2], any_key; /* expressions; OD_RE_NONE: not made yet */
	struct od_err *err;
	int rc;
};

/* ---- Errors ---- */

static const struct schema_place *find_place(const struct schema *s, const json_t *schema)
{
	if (s->places_size == 0)
		return NULL;
	for (size_t at = ((uintptr_t)schema >> 4) & (s->places_size - 1); s->place[at].schema != NULL;
	     at = (at + 1) & (s->places_size - 1))
		if (s->place[at].schema == schema)
			return &s->place[at];
	return NULL;
}

static void put_place(struct schema_place *v, size_t size, struct schema_place p)
{
	size_t at = ((uintptr_t)p.schema >> 4) & (size - 1);

	while (v[at].schema != NULL)
		at = (at + 1) & (size - 1);
	v[at] = p;
}

static void note_place(struct schema *s, struct schema_place p)
{
	if (!json_is_object(p.schema) || p.schema == s->root || find_place(s, p.schema) != NULL)
		return;
	if (2 * s->n_places >= s->places_size) {
		const size_t size = s->places_size == 0 ? 64 : 2 * s->places_size;
		struct schema_place *v = calloc(size, sizeof(*v));

		if (v == NULL)
			return; /* paths are shorter then */
		for (size_t i = 0; i < s->places_size; i++)
			if (s->place[i].schema != NULL)
				put_place(v, size, s->place[i]);
		free(s->place);
		s->place = v;
		s->places_size = size;
	}
	put_place(s->place, s->places_size, p);
	s->n_places++;
}

/* Appends the path, as a JSON pointer. */
static void append_path(const struct schema *s, const json_t *schema, struct od_strbuf *out)
{
	const struct schema_place *p = find_place(s, schema), *chain[64];
	size_t n = 0;

	for (; p != NULL && n < 64; p = find_place(s, p->parent))
		chain[n++] = p;
	od_strbuf_append(out, "#", 1);
	if (n == 64)
		od_strbuf_append(out, "/...", 4);
	while (n-- > 0) {
		od_strbuf_printf(out, chain[n]->keyword[0] != '\0' ? "/%s" : "%s", chain[n]->keyword);
		if (chain[n]->name == NULL)
			continue;
		od_strbuf_append(out, "/", 1);
		for (const char *c = chain[n]->name; *c != '\0' && out->len < 500; c++)
			od_strbuf_append(out, *c == '~' ? "~0" : *c == '/' ? "~1" : c, *c == '~' || *c == '/' ? 2 : 1);
	}
}

uint32_t schema_refuse(struct schema *s, const json_t *schema, const char *keyword, int code, const char *fmt, ...)
{
	struct od_strbuf path = { 0 };
	char text[400];
	va_list ap;

	if (s->rc != OD_OK)
		return OD_RE_NONE;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	append_path(s, schema, &path);
	if (keyword != NULL)
		od_strbuf_printf(&path, "/%s", keyword);
	s->rc = od_fail(s->err, code, "%.300s: %s", od_strbuf_text(&path), text);
	od_strbuf_fini(&path);
	return OD_RE_NONE;
}

static void no_memory(struct schema *s)
{
	if (s->rc == OD_OK)
		s->rc = od_fail(s->err, OD_ERR_NOMEM, "no memory for a JSON schema");
}

static bool check_pool(struct schema *s)
{
	struct od_err err;

	if (s->rc == OD_OK && od_re_check(od_grammar_res(s->g), &err) != OD_OK)
		s->rc = od_fail(s->err, err.code, "#: %s", err.msg);
	if (s->rc == OD_OK && od_grammar_failed(s->g) != OD_OK)
		s->rc = od_fail(s->err, od_grammar_failed(s->g), "#: it is too large, or nested too deep");
	return s->rc == OD_OK;
}

bool schema_failed(const struct schema *s)
{
	return s->rc != OD_OK;
}

struct od_grammar *schema_grammar(struct schema *s)
{
	return s->g;
}

/* ---- Styles ---- */

const struct od_json_style od_json_style = { .quote = "\"", .writing = OD_WRITE_JSON, .space = true };

const struct od_json_style *schema_style(const struct schema *s)
{
	return s->style;
}

bool schema_is_text(const struct schema *s)
{
	return s->is_text;
}

uint32_t schema_one_char(struct schema *s, enum od_writing w)
{
	uint32_t *re = &s->one_char[w == OD_WRITE_JSON];

	if (*re == OD_RE_NONE)
		*re = od_one_char(od_grammar_res(s->g), w);
	return *re;
}

uint32_t schema_any_char(struct schema *s, enum od_writing w)
{
	uint32_t *re = &s->any_char[w == OD_WRITE_JSON];

	if (*re == OD_RE_NONE)
		*re = od_any_char(od_grammar_res(s->g), w);
	return *re;
}

uint32_t *schema_any_number(struct schema *s, bool integer)
{
	return &s->any_number[integer];
}

uint32_t *schema_any_key(struct schema *s)
{
	return &s->any_key;
}

void schema_spend(struct schema *s, uint64_t work)
{
	od_re_spend(od_grammar_res(s->g), work);
}

uint32_t schema_space(struct schema *s)
{
	return s->style->space ? od_syntax_space(s->g) : OD_SYNTAX_EMPTY;
}

uint32_t schema_colon(struct schema *s)
{
	struct od_re_pool *p = od_grammar_res(s->g);
	const uint32_t colon = od_re_text(p, ":", 1);

	return s->style->space ? od_re_or(p, colon, od_re_text(p, ": ", 2)) : colon;
}

uint32_t schema_quoted(struct schema *s, uint32_t text)
{
	struct od_re_pool *p = od_grammar_res(s->g);
	uint32_t quote = od_re_text(p, s->style->quote, strlen(s->style->quote));

	if (s->is_text)
		return text;
	if (s->style->quote_is_symbol) {
		text = od_re_and(p, text, od_re_without(p, s->style->quote));
		quote = od_re_or(p, quote, od_re_cat(p, od_re_text(p, OD_SYMBOL, 1), quote));
	}
	return od_re_cat(p, quote, od_re_cat(p, text, quote));
}

/* ---- Sets of schemas ---- */

static bool allows_all(const json_t *schema)
{
	return json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0);
}

void schema_add(struct schema *s, struct schema_parts *parts, const json_t *schema, const json_t *where,
		const char *keyword, const char *name)
{
	if (schema == NULL || json_is_true(schema))
		return;
	note_place(s, (struct schema_place){ schema, where, keyword, name });
	if (json_is_false(schema)) {
		parts->never = true;
		return;
	}
	if (!json_is_object(schema)) {
		schema_refuse(s, where, keyword, OD_ERR_FORMAT, "expected a schema, an object or a boolean%s%.100s",
			      name != NULL ? ", at " : "", name != NULL ? name : "");
		return;
	}
	if (json_object_size(schema) == 0)
		return;
	if (allows_all(json_object_get(schema, "not"))) { /* as zod writes a value that cannot be */
		parts->never = true;
		return;
	}
	for (size_t i = 0; i < parts->n; i++)
		if (parts->v[i] == schema)
			return;
	if (parts->n == SCHEMA_MAX_PARTS)
		schema_refuse(s, where, keyword, OD_ERR_RANGE, "more than %u schemas hold for one value",
			      SCHEMA_MAX_PARTS);
	else
		parts->v[parts->n++] = schema;
}

static size_t hash_of(const struct schema_parts *p)
{
	uint64_t h = p->n;

	for (size_t i = 0; i < p->n; i++)
		h = (h ^ (uintptr_t)p->v[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
	return (size_t)h;
}

static void put_rule(struct schema *s, size_t number)
{
	size_t at = hash_of(&s->rules[number]->parts) & (s->by_parts_size - 1);

	while (s->by_parts[at] != 0)
		at = (at + 1) & (s->by_parts_size - 1);
	s->by_parts[at] = (uint32_t)number + 1;
}

static bool room_for_rule(struct schema *s)
{
	if (s->n_rules == s->cap_rules) {
		const size_t cap = s->cap_rules == 0 ? 32 : 2 * s->cap_rules;
		struct set_rule **v = realloc(s->rules, cap * sizeof(struct set_rule *));
		uint32_t *hash = v != NULL ? calloc(4 * cap, sizeof(*hash)) : NULL;

		s->rules = v != NULL ? v : s->rules;
		if (hash == NULL)
			return false;
		free(s->by_parts);
		s->by_parts = hash;
		s->by_parts_size = 4 * cap;
		s->cap_rules = cap;
		for (size_t i = 0; i < s->n_rules; i++)
			put_rule(s, i);
	}
	return true;
}

uint32_t schema_rule(struct schema *s, const struct schema_parts *parts)
{
	struct set_rule *r;

	if (parts->never || s->rc != OD_OK)
		return OD_SYNTAX_NONE;
	if (s->by_parts_size > 0)
		for (size_t at = hash_of(parts) & (s->by_parts_size - 1); s->by_parts[at] != 0;
		     at = (at + 1) & (s->by_parts_size - 1)) {
			r = s->rules[s->by_parts[at] - 1];
			if (r->parts.n == parts->n && memcmp(r->parts.v, parts->v, parts->n * sizeof(*parts->v)) == 0)
				return r->rule;
		}
	if (s->n_rules == MAX_RULES)
		return schema_refuse(s, s->root, NULL, OD_ERR_RANGE, "it is too large"), OD_SYNTAX_NONE;
	r = room_for_rule(s) ? malloc(sizeof(*r)) : NULL;
	if (r == NULL) {
		no_memory(s);
		return OD_SYNTAX_NONE;
	}
	r->parts = *parts;
	r->rule = od_syntax_rule(s->g, NULL);
	s->rules[s->n_rules++] = r;
	put_rule(s, s->n_rules - 1);
	return r->rule;
}

/* ---- References ---- */

static int hex_value(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* One step of a JSON pointer in a URL, decoded to out; returns its end. NULL: it is malformed, or too long. */
static const char *pointer_step(const char *p, char *out, size_t size)
{
	size_t n = 0;

	for (; *p != '\0' && *p != '/'; p++) {
		char c = *p;

		if (n + 1 == size)
			return NULL;
		if (c == '%' && hex_value(p[1]) >= 0 && hex_value(p[2]) >= 0) {
			c = (char)(hex_value(p[1]) * 16 + hex_value(p[2]));
			p += 2;
		}
		if (c == '~') {
			if (p[1] != '0' && p[1] != '1')
				return NULL;
			c = *++p == '0' ? '~' : '/';
		}
		out[n++] = c;
	}
	out[n] = '\0';
	return p;
}

static const json_t *at_pointer(const json_t *v, const char *p)
{
	char step[256];

	while (v != NULL && *p == '/') {
		p = pointer_step(p + 1, step, sizeof(step));
		if (p == NULL)
			return NULL;
		v = json_is_array(v) ?
			    step[0] >= '0' && step[0] <= '9' ? json_array_get(v, strtoul(step, NULL, 10)) : NULL :
			    json_object_get(v, step);
	}
	return p != NULL && *p == '\0' ? v : NULL;
}

/* The schema with this $anchor, or this "#name" as $id, anywhere in v. */
static const json_t *find_anchor(const json_t *v, const char *name, unsigned depth)
{
	const char *anchor = json_string_value(json_object_get(v, "$anchor"));
	const char *id = json_string_value(json_object_get(v, "$id")), *key;
	const json_t *found = NULL;
	json_t *child;
	size_t i;

	if ((anchor != NULL && strcmp(anchor, name) == 0) || (id != NULL && id[0] == '#' && strcmp(id + 1, name) == 0))
		return v;
	if (depth == MAX_LITERAL_DEPTH)
		return NULL;
	if (json_is_array(v))
		json_array_foreach((json_t *)(uintptr_t)v, i, child) if (found == NULL) found =
			find_anchor(child, name, depth + 1);
	if (json_is_object(v))
		json_object_foreach((json_t *)(uintptr_t)v, key,
				    child) if (found == NULL && strcmp(key, "enum") != 0 && strcmp(key, "const") != 0)
			found = find_anchor(child, name, depth + 1);
	return found;
}

const json_t *schema_target(struct schema *s, const json_t *schema)
{
	const json_t *ref = json_object_get(schema, "$ref");
	const char *text = json_string_value(ref);
	const char *id = json_string_value(json_object_get(s->root, "$id"));
	const size_t n = id != NULL ? strcspn(id, "#") : 0;
	const json_t *v;

	if (text == NULL)
		return schema_refuse(s, schema, "$ref", OD_ERR_FORMAT, "expected a string"), NULL;
	if (++s->expansions > MAX_EXPANSIONS)
		return schema_refuse(s, schema, "$ref", OD_ERR_RANGE, "too many references; make it simpler"), NULL;
	if (n > 0 && strncmp(text, id, n) == 0 && (text[n] == '#' || text[n] == '\0'))
		text += n;
	else if (text[0] != '#')
		return schema_refuse(
			       s, schema, "$ref", OD_ERR_UNSUPPORTED,
			       "only references within the schema are supported here (#/..., #anchor); found \"%.100s\"",
			       text),
		       NULL;
	text += *text == '#';
	v = *text == '\0' ? s->root : *text == '/' ? at_pointer(s->root, text) : find_anchor(s->root, text, 0);
	if (v == NULL)
		schema_refuse(s, schema, "$ref", OD_ERR_MISSING, "\"%.100s\" is not in the schema",
			      json_string_value(ref));
	return v;
}

/* ---- Leaves ---- */

/* Keywords that change what is valid and are not kept here, unless their value is one of those that say nothing. */
static const struct refused {
	const char *name, *neutral; /* JSON; NULL: none */
} refused[] = {
	{ "not", "false" },
	{ "contains", NULL },
	{ "uniqueItems", "false" },
	{ "unevaluatedItems", "true" },
	{ "unevaluatedProperties", "true" },
	{ "dependencies", "{}" },
	{ "$dynamicRef", NULL },
	{ "$recursiveRef", NULL },
	{ "extends", NULL },
	{ "disallow", NULL },
	{ "divisibleBy", NULL },
};

static bool is_neutral(const json_t *v, const char *neutral)
{
	if (neutral == NULL)
		return false;
	if (json_is_object(v) && json_object_size(v) == 0)
		return strcmp(neutral, "true") == 0 || strcmp(neutral, "{}") == 0;
	return json_is_boolean(v) && strcmp(neutral, json_is_true(v) ? "true" : "false") == 0;
}

static void check_keywords(struct schema *s, const json_t *schema)
{
	const json_t *id = json_object_get(schema, "$id");

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		const json_t *v = json_object_get(schema, refused[i].name);

		if (v != NULL && !is_neutral(v, refused[i].neutral))
			schema_refuse(s, schema, refused[i].name, OD_ERR_UNSUPPORTED, "%s is not supported here",
				      refused[i].name);
	}
	if (json_object_get(schema, "if") != NULL &&
	    (json_object_get(schema, "then") != NULL || json_object_get(schema, "else") != NULL))
		schema_refuse(s, schema, "if", OD_ERR_UNSUPPORTED, "if is not supported here; use anyOf");
	if (id != NULL && schema != s->root && (!json_is_string(id) || json_string_value(id)[0] != '#'))
		schema_refuse(s, schema, "$id", OD_ERR_UNSUPPORTED, "$id within a schema is not supported here");
}

/* Schemas that lead to this one within one value. */
struct schema_chain {
	const json_t *schema;
	const struct schema_chain *up;
	unsigned n;
};

/* Schemas that are still to be resolved. */
struct todo {
	const json_t *schema;
	const struct schema_chain *via;
	const struct todo *next;
};

struct leaves {
	struct schema_parts *v;
	size_t n, cap;
};

/* One of a schema's lists of alternatives. */
struct schema_choice {
	const json_t *list; /* an array of schemas */
	const char *keyword;
	bool one; /* they must exclude each other */
};

#define MAX_CHOICES_OF_ONE 64u

static void expand(struct schema *s, struct leaves *out, const struct schema_parts *base, const struct todo *todo);

/* Both branches hold, beside what holds already: that must be impossible. */
static void note_overlap(struct schema *s, const struct schema_parts *base, const struct todo *todo, const json_t *list,
			 size_t a, size_t b)
{
	struct schema_parts both = { 0 };
	struct od_strbuf path = { 0 };
	struct overlap *v;
	size_t len;
	uint32_t rule;

	schema_spend(s, OVERLAP_WORK * (base->n + 1));
	/* The schemas in base stand there without their own alternatives, which are being chosen. */
	for (size_t i = 0; i < base->n; i++) {
		json_t *plain = json_copy((json_t *)(uintptr_t)base->v[i]);
		static const char *const resolved[] = {
			"$ref", "allOf", "anyOf", "oneOf", "dependentRequired", "dependentSchemas"
		};

		for (size_t k = 0; k < sizeof(resolved) / sizeof(resolved[0]); k++)
			json_object_del(plain, resolved[k]);
		if (plain == NULL || json_array_append_new(s->made, plain) != 0) {
			no_memory(s);
			return;
		}
		schema_add(s, &both, plain, base->v[i], "", NULL);
	}
	for (; todo != NULL; todo = todo->next)
		schema_add(s, &both, todo->schema, s->root, "", NULL);
	schema_add(s, &both, json_array_get(list, a), s->root, "oneOf", NULL);
	schema_add(s, &both, json_array_get(list, b), s->root, "oneOf", NULL);
	rule = schema_rule(s, &both);
	if (rule == OD_SYNTAX_NONE || s->rc != OD_OK)
		return;
	if (s->check->n == s->cap_overlaps) {
		s->cap_overlaps = s->cap_overlaps == 0 ? 16 : 2 * s->cap_overlaps;
		v = realloc(s->check->v, s->cap_overlaps * sizeof(*v));
		if (v == NULL) {
			no_memory(s);
			return;
		}
		s->check->v = v;
	}
	append_path(s, base->v[base->n - 1], &path);
	s->check->v[s->check->n++] = (struct overlap){ rule, od_strbuf_take(&path, &len), a, b };
}

/* Goes on with each alternative of choices [n], and then with what is to be resolved. */
static void choose(struct schema *s, struct leaves *out, const struct schema_parts *base, const struct schema_choice *c,
		   size_t n, const struct schema_chain *via, const struct todo *todo)
{
	const json_t *branch;
	size_t i;

	if (n == 0) {
		expand(s, out, base, todo);
		return;
	}
	json_array_foreach((json_t *)(uintptr_t)c->list, i, branch)
	{
		const struct todo next = { branch, via, todo };

		note_place(s, (struct schema_place){ branch, via->schema, c->keyword, NULL });
		for (size_t k = 0; c->one && k < i && s->rc == OD_OK; k++)
			note_overlap(s, base, todo, c->list, k, i);
		choose(s, out, base, c + 1, n - 1, via, &next);
		if (s->rc != OD_OK)
			return;
	}
}

static void add_choice(struct schema *s, struct schema_choice *c, size_t *n, const json_t *schema, const char *keyword,
		       bool one, const json_t *list)
{
	if (list == NULL)
		return;
	if (!json_is_array(list) || json_array_size(list) == 0)
		schema_refuse(s, schema, keyword, OD_ERR_FORMAT, "expected an array of schemas that is not empty");
	else if (*n == MAX_CHOICES_OF_ONE)
		schema_refuse(s, schema, keyword, OD_ERR_RANGE, "too many of them");
	else
		c[(*n)++] = (struct schema_choice){ list, keyword, one };
}

/* A property is not there, or it is and something else holds too: two alternatives, made of what is given. */
static const json_t *depends(struct schema *s, const char *name, json_t *then)
{
	json_t *list = json_pack("[{s:{s:b}}, {s:[s], s:[o]}]", "properties", name, 0, "required", name, "allOf", then);

	if (list == NULL || json_array_append_new(s->made, list) != 0) {
		no_memory(s);
		return NULL;
	}
	return list;
}

static void add_dependent(struct schema *s, struct schema_choice *c, size_t *n, const json_t *schema)
{
	json_t *required = json_object_get(schema, "dependentRequired"), *v;
	json_t *schemas = json_object_get(schema, "dependentSchemas");
	const char *name;

	if ((required != NULL && !json_is_object(required)) || (schemas != NULL && !json_is_object(schemas))) {
		schema_refuse(s, schema, required != NULL ? "dependentRequired" : "dependentSchemas", OD_ERR_FORMAT,
			      "expected an object");
		return;
	}
	json_object_foreach(required, name, v) if (s->rc == OD_OK) add_choice(
		s, c, n, schema, "dependentRequired", false, depends(s, name, json_pack("{s:O}", "required", v)));
	json_object_foreach(schemas, name, v) if (s->rc == OD_OK)
		add_choice(s, c, n, schema, "dependentSchemas", false, depends(s, name, json_incref(v)));
}

/* Resolves a schema that was added to base. */
static void resolve_schema(struct schema *s, struct leaves *out, const struct schema_parts *base, const json_t *schema,
			   const struct schema_chain *via, const struct todo *todo)
{
	const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
	const size_t n_all = json_array_size(all);
	struct schema_choice choice[MAX_CHOICES_OF_ONE];
	struct todo *more = NULL;
	size_t n = 0;

	check_keywords(s, schema);
	add_choice(s, choice, &n, schema, "anyOf", false, json_object_get(schema, "anyOf"));
	add_choice(s, choice, &n, schema, "oneOf", true, json_object_get(schema, "oneOf"));
	add_dependent(s, choice, &n, schema);
	if (all != NULL && n_all == 0)
		schema_refuse(s, schema, "allOf", OD_ERR_FORMAT, "expected an array of schemas that is not empty");
	if (s->rc == OD_OK && n_all > 0) {
		more = calloc(n_all, sizeof(*more));
		if (more == NULL)
			no_memory(s);
	}
	for (size_t i = n_all; i > 0 && more != NULL; i--) {
		note_place(s, (struct schema_place){ json_array_get(all, i - 1), schema, "allOf", NULL });
		more[i - 1] = (struct todo){ json_array_get(all, i - 1), via, todo };
		todo = &more[i - 1];
	}
	if (ref != NULL && s->rc == OD_OK) {
		const struct todo target = { schema_target(s, schema), via, todo };

		if (s->rc == OD_OK)
			choose(s, out, base, choice, n, via, &target);
	} else if (s->rc == OD_OK) {
		choose(s, out, base, choice, n, via, todo);
	}
	free(more);
}

static void add_leaf(struct schema *s, struct leaves *out, const struct schema_parts *leaf)
{
	if (out->n == out->cap) {
		const size_t cap = out->cap == 0 ? 8 : 2 * out->cap;
		struct schema_parts *v = out->n < MAX_LEAVES ? realloc(out->v, cap * sizeof(*v)) : NULL;

		if (v == NULL) {
			if (out->n < MAX_LEAVES)
				no_memory(s);
			else
				schema_refuse(s, leaf->v[0], NULL, OD_ERR_RANGE,
					      "its allOf, anyOf and oneOf have more than %u combinations", MAX_LEAVES);
			return;
		}
		out->v = v;
		out->cap = cap;
	}
	out->v[out->n++] = *leaf;
}

/* Adds to out the leaves of what holds already, in base, and what is to be resolved. */
static void expand(struct schema *s, struct leaves *out, const struct schema_parts *base, const struct todo *todo)
{
	struct schema_parts more = *base;
	const json_t *schema;
	struct schema_chain via;

	while (todo != NULL && json_is_true(todo->schema))
		todo = todo->next;
	if (todo == NULL) {
		add_leaf(s, out, base);
		return;
	}
	schema = todo->schema;
	via = (struct schema_chain){ schema, todo->via, todo->via != NULL ? todo->via->n + 1 : 0 };
	for (const struct schema_chain *c = todo->via; c != NULL; c = c->up)
		if (c->schema == schema) {
			schema_refuse(s, schema, NULL, OD_ERR_ARG, "its references lead back to itself without end");
			return;
		}
	schema_spend(s, EXPANSION_WORK + 3 * base->n);
	if (++s->expansions > MAX_EXPANSIONS || via.n > MAX_CHAIN) {
		schema_refuse(s, schema, NULL, OD_ERR_RANGE, "too many schemas hold for one value; make it simpler");
		return;
	}
	schema_add(s, &more, schema, s->root, "", NULL);
	if (s->rc != OD_OK || more.never)
		return;
	if (more.n == base->n) /* it is there already */
		expand(s, out, base, todo->next);
	else
		resolve_schema(s, out, &more, schema, &via, todo->next);
}

/* ---- Values ---- */

bool schema_count(struct schema *s, const json_t *schema, const char *keyword, uint32_t *out)
{
	const json_t *v = json_object_get(schema, keyword);
	const double x = json_number_value(v);

	*out = 0;
	if (v == NULL)
		return false;
	if (!json_is_number(v) || x < 0 || x != floor(x)) {
		schema_refuse(s, schema, keyword, OD_ERR_FORMAT, "expected a whole number of 0 or more");
		return false;
	}
	*out = x > SCHEMA_MAX_LENGTH ? SCHEMA_MAX_LENGTH + 1 : (uint32_t)x;
	return true;
}

bool schema_matches(struct od_re_pool *p, uint32_t re, const char *text, size_t len)
{
	for (size_t i = 0; i < len && re != OD_RE_NONE; i++)
		re = od_re_step(p, re, (uint8_t)text[i]);
	return re != OD_RE_NONE && od_re_nullable(p, re);
}

/* The shortest text of a real that reads as the same number. */
static void real_text(double x, char *out, size_t size)
{
	int digits = 1;

	do
		snprintf(out, size, "%.*g", digits, x);
	while (strtod(out, NULL) != x && ++digits <= 17);
}

static void append_scalar(struct od_strbuf *out, const json_t *v)
{
	char text[40];

	if (json_is_string(v)) {
		od_strbuf_append(out, json_string_value(v), json_string_length(v));
	} else if (json_is_integer(v)) {
		od_strbuf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	} else if (json_is_real(v)) {
		const char *digits = od_json_digits(v);

		if (json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 1e15)
			snprintf(text, sizeof(text), "%.0f", json_real_value(v));
		else
			real_text(json_real_value(v), text, sizeof(text));
		od_strbuf_printf(out, "%s", digits != NULL ? digits : text);
	} else {
		od_strbuf_printf(out, "%s", json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
	}
}

/* Appends the text of a value that is no array or object; of a string without quotes. */
static void append_literal(struct schema *s, const json_t *v, struct od_strbuf *out)
{
	if (json_is_string(v))
		od_write_text(out, json_string_value(v), json_string_length(v),
			      s->is_text ? OD_WRITE_PLAIN : s->style->writing);
	else
		append_scalar(out, v);
}

uint32_t schema_literal_re(struct schema *s, const json_t *v)
{
	struct od_strbuf text = { 0 };
	uint32_t re;

	append_literal(s, v, &text);
	if (text.failed)
		no_memory(s);
	re = od_re_text(od_grammar_res(s->g), od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return json_is_string(v) ? schema_quoted(s, re) : re;
}

uint32_t schema_key(struct schema *s, const char *name)
{
	struct od_re_pool *p = od_grammar_res(s->g);
	const uint32_t text = od_written_text(p, name, strlen(name), s->style->writing);

	return s->style->bare_keys ? text : schema_quoted(s, text);
}

/* A value as it is. */
static uint32_t literal(struct schema *s, const json_t *v, unsigned depth)
{
	const bool is_array = json_is_array(v);
	struct od_grammar *g = s->g;
	uint32_t body = OD_SYNTAX_EMPTY, space = schema_space(s);
	const uint32_t colon = od_syntax_re(g, schema_colon(s));
	const char *key;
	json_t *child;
	size_t i;

	if (depth > MAX_LITERAL_DEPTH)
		return schema_refuse(s, s->root, NULL, OD_ERR_RANGE, "a value is nested too deep"), OD_SYNTAX_NONE;
	if (!is_array && !json_is_object(v))
		return od_syntax_re(g, schema_literal_re(s, v));
	s->is_text = false; /* within a value */
	if (is_array) {
		for (i = json_array_size(v); i > 0; i--) {
			const uint32_t item = literal(s, json_array_get(v, i - 1), depth + 1);

			body = od_syntax_cat(g, i > 1 ? od_syntax_text(g, ",", 1) : OD_SYNTAX_EMPTY,
					     od_syntax_cat(g, space, od_syntax_cat(g, item, body)));
		}
	} else {
		/* from the left, as objects are walked */
		i = 0;
		json_object_foreach((json_t *)(uintptr_t)v, key, child)
		{
			const uint32_t name = od_syntax_re(g, schema_key(s, key));
			const uint32_t pair =
				od_syntax_cat(g, name, od_syntax_cat(g, colon, literal(s, child, depth + 1)));

			body = od_syntax_cat(g, body,
					     od_syntax_cat(g, i++ > 0 ? od_syntax_text(g, ",", 1) : OD_SYNTAX_EMPTY,
							   od_syntax_cat(g, space, pair)));
		}
	}
	return od_syntax_cat(
		g, od_syntax_text(g, is_array ? "[" : "{", 1),
		od_syntax_level(g, od_syntax_cat(g, body,
						 od_syntax_cat(g, space, od_syntax_text(g, is_array ? "]" : "}", 1)))));
}

static unsigned type_named(const char *name, bool *integer)
{
	static const struct {
		const char *name;
		unsigned type;
	} types[] = { { "null", SCHEMA_NULL },	    { "boolean", SCHEMA_BOOLEAN }, { "number", SCHEMA_NUMBER },
		      { "integer", SCHEMA_NUMBER }, { "string", SCHEMA_STRING },   { "array", SCHEMA_ARRAY },
		      { "object", SCHEMA_OBJECT } };

	*integer = strcmp(name, "integer") == 0;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(types[i].name, name) == 0)
			return types[i].type;
	return 0;
}

/* The types that a schema allows; *integer: numbers only if they are integers. */
static unsigned types_of(struct schema *s, const json_t *schema, bool *integer)
{
	const json_t *type = json_object_get(schema, "type");
	const size_t n = json_is_array(type) ? json_array_size(type) : 1;
	bool any_number = false, whole = false;
	unsigned all = 0;

	*integer = false;
	if (type == NULL)
		return SCHEMA_ALL;
	for (size_t i = 0; i < n; i++) {
		const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
		const unsigned one = name != NULL ? type_named(name, &whole) : 0;

		if (one == 0) {
			schema_refuse(s, schema, "type", OD_ERR_FORMAT, "expected a type of JSON, or an array of them");
			return 0;
		}
		any_number |= one == SCHEMA_NUMBER && !whole;
		all |= one;
	}
	*integer = !any_number;
	return all;
}

bool schema_allows_strings(struct schema *s, const json_t *schema)
{
	bool integer;

	return (types_of(s, schema, &integer) & SCHEMA_STRING) != 0;
}

static unsigned type_of_value(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_NULL: return SCHEMA_NULL;
	case JSON_TRUE:
	case JSON_FALSE: return SCHEMA_BOOLEAN;
	case JSON_INTEGER:
	case JSON_REAL: return SCHEMA_NUMBER;
	case JSON_STRING: return SCHEMA_STRING;
	case JSON_ARRAY: return SCHEMA_ARRAY;
	case JSON_OBJECT: return SCHEMA_OBJECT;
	}
	return 0;
}

static bool same_value(const json_t *a, const json_t *b)
{
	if (json_is_number(a) && json_is_number(b))
		return json_number_value(a) == json_number_value(b);
	return json_equal(a, b) == 1;
}

/* The schema has no enum and const, or they have this value. */
static bool names_value(struct schema *s, const json_t *schema, const json_t *v)
{
	const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const"), *member;
	bool found = list == NULL;
	size_t i;

	if (list != NULL && !json_is_array(list))
		schema_refuse(s, schema, "enum", OD_ERR_FORMAT, "expected an array");
	json_array_foreach((json_t *)(uintptr_t)list, i, member) found = found || same_value(member, v);
	return found && (one == NULL || same_value(one, v));
}

static bool has_any(const json_t *schema, const char *const *keywords)
{
	for (; *keywords != NULL; keywords++)
		if (json_object_get(schema, *keywords) != NULL)
			return true;
	return false;
}

/* Arrays and objects among the values of an enum would need to be compared with all that is said of them. */
static void check_alone(struct schema *s, const struct schema_parts *leaf, unsigned type)
{
	static const char *const of_arrays[] = {
		"items", "prefixItems", "minItems", "maxItems", "additionalItems", NULL
	};
	static const char *const of_objects[] = { "properties",		  "required",
						  "additionalProperties", "patternProperties",
						  "propertyNames",	  "minProperties",
						  "maxProperties",	  NULL };

	for (size_t i = 0; i < leaf->n; i++)
		if (has_any(leaf->v[i], type == SCHEMA_ARRAY ? of_arrays : of_objects))
			schema_refuse(
				s, leaf->v[i], NULL, OD_ERR_UNSUPPORTED,
				"an enum or const of arrays or objects, beside other keywords about these, is not "
				"supported here");
}

/* A leaf some of whose schemas list the values; expressions are made when they are needed. */
struct listed_leaf {
	const struct schema_parts *parts;
	const json_t *schema; /* its values are looked at */
	unsigned types;
	bool integer, has_string;
	uint32_t string; /* expression */
};

static bool allows_string(struct schema *s, struct listed_leaf *l, const char *text, size_t len)
{
	if (!l->has_string)
		l->string = schema_string_text(s, l->parts);
	l->has_string = true;
	return schema_matches(od_grammar_res(s->g), l->string, text, len);
}

static bool allows_value(struct schema *s, struct listed_leaf *l, const json_t *v)
{
	const unsigned type = type_of_value(v);
	struct od_strbuf text = { 0 };
	bool good = (l->types & type) != 0;

	for (size_t i = 0; i < l->parts->n && good; i++)
		good = (l->parts->v[i] == l->schema && json_object_get(l->schema, "const") == NULL) ||
		       names_value(s, l->parts->v[i], v);
	if (!good)
		return false;
	if ((type & (SCHEMA_ARRAY | SCHEMA_OBJECT)) != 0) {
		check_alone(s, l->parts, type);
		return true;
	}
	append_literal(s, v, &text);
	if (type == SCHEMA_NUMBER)
		good = schema_allows_number(s, l->parts, l->integer, od_strbuf_text(&text));
	else if (type == SCHEMA_STRING)
		good = allows_string(s, l, od_strbuf_text(&text), text.len);
	od_strbuf_fini(&text);
	return good;
}

uint32_t schema_words_re(struct schema *s, const struct schema_words *l)
{
	struct od_re_word *word = calloc(l->n + 1, sizeof(*word));
	uint32_t re;

	if (word == NULL || l->text.failed) {
		no_memory(s);
		free(word);
		return OD_RE_NONE;
	}
	for (size_t i = 0, at = 0; i < l->n; at = l->end[i++])
		word[i] = (struct od_re_word){ od_strbuf_text(&l->text) + at, l->end[i] - at };
	re = od_re_words(od_grammar_res(s->g), word, l->n);
	free(word);
	return re;
}

/* The values of the leaf's enum or const that all of it allows. */
static uint32_t values(struct schema *s, struct listed_leaf *l)
{
	const json_t *one = json_object_get(l->schema, "const"), *list = json_object_get(l->schema, "enum");
	const size_t n = one != NULL ? 1 : json_array_size(list);
	const bool is_text = s->is_text;
	uint32_t *node = calloc(n + 2, sizeof(*node)), all = OD_SYNTAX_NONE;
	/* strings, and other values */
	struct schema_words words[2] = { { .end = calloc(n + 1, sizeof(size_t)) },
					 { .end = calloc(n + 1, sizeof(size_t)) } };
	size_t n_nodes = 0;

	if (node == NULL || words[0].end == NULL || words[1].end == NULL)
		no_memory(s);
	for (size_t i = 0; i < n && s->rc == OD_OK; i++) {
		const json_t *v = one != NULL ? one : json_array_get(list, i);

		schema_spend(s, VALUE_WORK);
		if (!check_pool(s) || !allows_value(s, l, v))
			continue;
		if (json_is_array(v) || json_is_object(v)) {
			if (n_nodes == MAX_NESTED_VALUES)
				schema_refuse(s, l->schema, "enum", OD_ERR_RANGE,
					      "expected at most %u arrays and objects", MAX_NESTED_VALUES);
			node[n_nodes++] = literal(s, v, 0);
			s->is_text = is_text;
		} else {
			struct schema_words *w = &words[!json_is_string(v)];

			append_literal(s, v, &w->text);
			w->end[w->n++] = w->text.len;
		}
	}
	if (s->rc == OD_OK) {
		node[n_nodes++] = od_syntax_re(s->g, schema_quoted(s, schema_words_re(s, &words[0])));
		node[n_nodes++] = od_syntax_re(s->g, schema_words_re(s, &words[1]));
		all = od_syntax_alt(s->g, node, n_nodes);
	}
	for (size_t i = 0; i < 2; i++) {
		od_strbuf_fini(&words[i].text);
		free(words[i].end);
	}
	free(node);
	return all;
}

static uint32_t words(struct schema *s, unsigned types)
{
	struct od_grammar *g = s->g;
	uint32_t node = OD_SYNTAX_NONE;

	if (types & SCHEMA_NULL)
		node = od_syntax_text(g, "null", 4);
	if (types & SCHEMA_BOOLEAN)
		node = od_syntax_or(g, node,
				    od_syntax_or(g, od_syntax_text(g, "true", 4), od_syntax_text(g, "false", 5)));
	return node;
}

static uint32_t leaf_node(struct schema *s, const struct schema_parts *leaf)
{
	const json_t *listed = NULL;
	unsigned types = SCHEMA_ALL;
	bool integer = false, whole;
	const bool is_text = s->is_text;
	uint32_t node[5];

	schema_spend(s, LEAF_WORK + 24 * leaf->n);
	for (size_t i = 0; i < leaf->n; i++) {
		types &= types_of(s, leaf->v[i], &whole);
		integer |= whole;
		if (listed == NULL &&
		    (json_object_get(leaf->v[i], "enum") != NULL || json_object_get(leaf->v[i], "const") != NULL))
			listed = leaf->v[i];
	}
	if (s->rc != OD_OK)
		return OD_SYNTAX_NONE;
	if (listed != NULL) {
		struct listed_leaf l = { .parts = leaf, .schema = listed, .types = types, .integer = integer };

		return values(s, &l);
	}
	node[0] = words(s, types);
	node[1] = types & SCHEMA_NUMBER ? od_syntax_re(s->g, schema_number_re(s, leaf, integer)) : OD_SYNTAX_NONE;
	/* Strings within arrays and objects have quotes. */
	node[2] = types & SCHEMA_STRING ? od_syntax_re(s->g, schema_string_re(s, leaf)) : OD_SYNTAX_NONE;
	s->is_text = false;
	node[3] = types & SCHEMA_ARRAY ? schema_array(s, leaf) : OD_SYNTAX_NONE;
	node[4] = types & SCHEMA_OBJECT ? schema_object(s, leaf) : OD_SYNTAX_NONE;
	s->is_text = is_text;
	return od_syntax_alt(s->g, node, 5);
}

/* Gives the rule its body: what one of its leaves allows. */
static void define(struct schema *s, const struct set_rule *r)
{
	const struct schema_parts none = { 0 };
	struct todo *todo = calloc(r->parts.n + 1, sizeof(*todo)), *first = NULL;
	struct leaves leaves = { 0 };
	uint32_t *node = NULL;

	if (todo == NULL) {
		no_memory(s);
		return;
	}
	for (size_t i = r->parts.n; i > 0; i--) {
		todo[i - 1] = (struct todo){ r->parts.v[i - 1], NULL, first };
		first = &todo[i - 1];
	}
	expand(s, &leaves, &none, first);
	if (s->rc == OD_OK)
		node = calloc(leaves.n + 1, sizeof(*node));
	if (s->rc == OD_OK && node == NULL)
		no_memory(s);
	for (size_t i = 0; i < leaves.n && s->rc == OD_OK; i++)
		node[i] = leaf_node(s, &leaves.v[i]);
	if (s->rc == OD_OK)
		od_syntax_define(s->g, r->rule, od_syntax_alt(s->g, node, leaves.n));
	free(node);
	free(leaves.v);
	free(todo);
}

/* ---- The whole ---- */

static void free_check(struct od_schema_check *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->n; i++)
		free(c->v[i].path);
	free(c->v);
	free(c);
}

static void free_schema(struct schema *s)
{
	for (size_t i = 0; i < s->n_rules; i++)
		free(s->rules[i]);
	free(s->rules);
	free(s->by_parts);
	free(s->place);
	json_decref(s->made);
}

int od_json_schema_syntax(struct od_grammar *g, const json_t *whole, const json_t *schema,
			  const struct od_json_style *style, uint32_t *root, struct od_schema_check **check,
			  struct od_err *err)
{
	struct schema s = { .g = g, .root = whole, .style = style, .err = err, .made = json_array() };
	struct schema_parts parts = { 0 };
	struct od_re_pool *p = od_grammar_res(g);

	*root = OD_SYNTAX_NONE;
	*check = s.check = calloc(1, sizeof(*s.check));
	if (s.made == NULL || s.check == NULL)
		no_memory(&s);
	od_re_allow(p, WORK);
	if (s.rc == OD_OK)
		schema_add(&s, &parts, schema, whole, "", NULL);
	*root = schema_rule(&s, &parts);
	while (s.done < s.n_rules && check_pool(&s)) {
		s.is_text = style->text_end != NULL && s.done == 0;
		define(&s, s.rules[s.done++]);
	}
	(void)check_pool(&s);
	free_schema(&s);
	if (s.rc != OD_OK) {
		free_check(*check);
		*check = NULL;
	}
	return s.rc;
}

void od_schema_check_label(struct od_schema_check *c, const char *label)
{
	snprintf(c->label, sizeof(c->label), "%s", label);
}

int od_json_schema_check(const struct od_grammar *g, struct od_schema_check *c, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; c != NULL && i < c->n && rc == OD_OK; i++)
		if (od_grammar_node(g, c->v[i].rule)->productive)
			rc = od_fail(
				err, OD_ERR_UNSUPPORTED,
				"%s%.300s/oneOf: branches %zu and %zu can both hold; only branches that exclude each "
				"other are supported here: use anyOf, or tell them apart by a type, const or enum",
				c->label, c->v[i].path != NULL ? c->v[i].path : "#", c->v[i].a, c->v[i].b);
	free_check(c);
	return rc;
}

int od_json_schema_compile(struct od_grammar *g, const json_t *schema, struct od_err *err)
{
	struct od_schema_check *check;
	uint32_t root;
	int rc = od_json_schema_syntax(g, schema, schema, &od_json_style, &root, &check, err);

	if (rc != OD_OK)
		return rc;
	rc = od_grammar_finish(g, od_syntax_cat(g, od_syntax_or(g, OD_SYNTAX_EMPTY, od_syntax_text(g, " ", 1)), root),
			       err);
	if (rc != OD_OK) {
		free_check(check);
		return od_fail_within(err, "#");
	}
	return od_json_schema_check(g, check, err);
}
