#include "main-node/serve/api/output_form.h"

#include "common/base/strbuf.h"
#include "common/grammar/gbnf.h"
#include "common/grammar/regex.h"
#include "main-node/chat/chat_template.h"
#include "main-node/serve/http/json_fields.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEPT 16
#define MAX_KEPT_BYTES ((size_t)128 << 20)
#define MAX_FORM_BYTES ((size_t)1 << 20) /* a schema, an expression or a grammar */
#define MAX_CHOICES 10000u

/* ---- The request ---- */

static int take(struct odm_output_form *f, enum odm_output_kind kind, const char *param, struct odm_api_error *e)
{
	if (f->kind != ODM_OUTPUT_FREE)
		return odm_api_fail(e, 400, param, OD_ERR_ARG, "%s: %s asks for another form already; leave one out",
				    param, f->param);
	f->kind = kind;
	snprintf(f->param, sizeof(f->param), "%s", param);
	return OD_OK;
}

static int wrong(const char *param, const char *expected, const json_t *v, struct odm_api_error *e)
{
	char found[64];

	return odm_api_fail(e, 400, param, v == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT, "%s: expected %s, found %s",
			    param, expected, odm_json_describe(v, found, sizeof(found)));
}

static bool is_given(const json_t *v)
{
	return v != NULL && !json_is_null(v) && !json_is_false(v) && (!json_is_string(v) || json_string_length(v) > 0);
}

static int take_schema(struct odm_output_form *f, const json_t *v, const char *param, struct odm_api_error *e)
{
	if (!json_is_object(v) && !json_is_boolean(v))
		return wrong(param, "a JSON schema, an object", v, e);
	f->value = v;
	return take(f, ODM_OUTPUT_JSON, param, e);
}

static int take_text(struct odm_output_form *f, enum odm_output_kind kind, const json_t *v, const char *param,
		     struct odm_api_error *e)
{
	if (!json_is_string(v))
		return wrong(param, "a string", v, e);
	f->text = json_string_value(v);
	f->len = json_string_length(v);
	return take(f, kind, param, e);
}

static int take_choices(struct odm_output_form *f, const json_t *v, const char *param, struct odm_api_error *e)
{
	const json_t *one;
	size_t i;

	if (!json_is_array(v) || json_array_size(v) == 0 || json_array_size(v) > MAX_CHOICES)
		return wrong(param, "an array of 1 to 10000 strings", v, e);
	json_array_foreach((json_t *)(uintptr_t)v, i,
			   one) if (!json_is_string(one) ||
				    json_string_length(one) == 0) return wrong(param, "strings that are not empty", one,
									       e);
	f->value = v;
	return take(f, ODM_OUTPUT_CHOICE, param, e);
}

/* {"type": "json_object"}: an object, or what its schema says. */
static int read_format(struct odm_output_form *f, const json_t *v, const char *name, struct odm_api_error *e)
{
	static json_t *object; /* never freed */
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const char *type = json_string_value(json_object_get(v, "type"));
	const json_t *schema = json_object_get(json_object_get(v, "json_schema"), "schema");
	char param[64];

	snprintf(param, sizeof(param), "%s.schema", name);
	if (!is_given(v) || (type != NULL && strcmp(type, "text") == 0))
		return OD_OK;
	if (type != NULL && strcmp(type, "json_object") == 0) {
		if (json_object_get(v, "schema") != NULL)
			return take_schema(f, json_object_get(v, "schema"), param, e);
		pthread_mutex_lock(&lock);
		object = object != NULL ? object : json_pack("{s:s}", "type", "object");
		pthread_mutex_unlock(&lock);
		return object != NULL ? take_schema(f, object, name, e) : odm_no_memory(e);
	}
	if (type != NULL && strcmp(type, "json_schema") == 0) {
		/* Chat completions have one level more than the other APIs and llama.cpp. */
		if (schema == NULL)
			return take_schema(f, json_object_get(v, "schema"), param, e);
		snprintf(param, sizeof(param), "%s.json_schema.schema", name);
		return take_schema(f, schema, param, e);
	}
	return odm_api_fail(e, 400, name, OD_ERR_UNSUPPORTED,
			    "%s: expected the type \"text\", \"json_object\" or \"json_schema\", found \"%.40s\"", name,
			    type != NULL ? type : "");
}

/* A schema that is given as an object, or as its text, which request keeps then. */
static int read_json(struct odm_output_form *f, json_t *owner, const char *key, const char *param,
		     struct odm_api_error *e)
{
	json_t *v = json_object_get(owner, key), *parsed;

	if (json_is_string(v)) {
		parsed = json_loads(json_string_value(v), JSON_DECODE_ANY, NULL);
		if (parsed == NULL)
			return wrong(param, "a JSON schema", v, e);
		if (json_object_set_new(owner, key, parsed) != 0)
			return odm_no_memory(e);
		v = json_object_get(owner, key);
	}
	return take_schema(f, v, param, e);
}

/* vLLM's fields: name within its object, the older name at the top, what it asks for. */
static const struct {
	const char *name, *old;
	enum odm_output_kind kind;
} structured[] = {
	{ "json", "guided_json", ODM_OUTPUT_JSON },
	{ "regex", "guided_regex", ODM_OUTPUT_REGEX },
	{ "choice", "guided_choice", ODM_OUTPUT_CHOICE },
	{ "grammar", "guided_grammar", ODM_OUTPUT_GRAMMAR },
};

static int read_one(struct odm_output_form *f, json_t *owner, const char *key, enum odm_output_kind kind,
		    const char *param, struct odm_api_error *e)
{
	const json_t *v = json_object_get(owner, key);

	if (!is_given(v))
		return OD_OK;
	if (kind == ODM_OUTPUT_JSON)
		return read_json(f, owner, key, param, e);
	return kind == ODM_OUTPUT_CHOICE ? take_choices(f, v, param, e) : take_text(f, kind, v, param, e);
}

static int read_structured(struct odm_output_form *f, json_t *request, struct odm_api_error *e)
{
	json_t *v = json_object_get(request, "structured_outputs");
	char param[64];
	int rc = OD_OK;

	if (is_given(v) && !json_is_object(v))
		return wrong("structured_outputs", "an object", v, e);
	for (size_t i = 0; i < sizeof(structured) / sizeof(structured[0]) && rc == OD_OK; i++) {
		snprintf(param, sizeof(param), "structured_outputs.%s", structured[i].name);
		rc = read_one(f, v, structured[i].name, structured[i].kind, param, e);
		if (rc == OD_OK)
			rc = read_one(f, request, structured[i].old, structured[i].kind, structured[i].old, e);
	}
	if (rc == OD_OK && json_is_true(json_object_get(v, "json_object"))) {
		json_t *format = json_pack("{s:s}", "type", "json_object");

		rc = read_format(f, format, "structured_outputs.json_object", e);
		json_decref(format);
	}
	if (rc == OD_OK && is_given(json_object_get(v, "structural_tag")))
		rc = odm_api_fail(e, 400, "structured_outputs.structural_tag", OD_ERR_UNSUPPORTED,
				  "structured_outputs.structural_tag is not supported here; use tools");
	return rc;
}

int odm_output_form_read(struct odm_output_form *f, const json_t *given, struct odm_api_error *e)
{
	json_t *request = (json_t *)(uintptr_t)given; /* texts of schemas become schemas in it */
	static const char *const formats[] = { "response_format", "text.format", "output_format" };
	int rc = OD_OK;

	*f = (struct odm_output_form){ 0 };
	for (size_t i = 0; i < 3 && rc == OD_OK; i++)
		rc = read_format(f, json_object_get(request, formats[i]), formats[i], e);
	if (rc == OD_OK)
		rc = read_structured(f, request, e);
	if (rc == OD_OK)
		rc = read_one(f, request, "json_schema", ODM_OUTPUT_JSON, "json_schema", e);
	if (rc == OD_OK)
		rc = read_one(f, request, "grammar", ODM_OUTPUT_GRAMMAR, "grammar", e);
	return rc;
}

/* ---- Making constraints ---- */

/* A grammar that is being made, and the schemas in it. */
struct form_grammar {
	struct od_grammar *g;
	struct od_schema_check *checks[ODM_MAX_CHECKS + 1];
	size_t n_checks;
	char param[128]; /* where an error is, if its text does not say so */
};

static int choice_syntax(struct od_grammar *g, const json_t *choices, uint32_t *out)
{
	uint32_t *re = calloc(json_array_size(choices) + 1, sizeof(*re));
	const json_t *one;
	size_t i;

	if (re == NULL)
		return OD_ERR_NOMEM;
	json_array_foreach((json_t *)(uintptr_t)choices, i, one) re[i] =
		od_re_text(od_grammar_res(g), json_string_value(one), json_string_length(one));
	*out = od_syntax_re(g, od_re_alt(od_grammar_res(g), re, json_array_size(choices)));
	free(re);
	return OD_OK;
}

static int content_syntax(struct form_grammar *m, const struct odm_output_form *f, uint32_t *out, struct od_err *err)
{
	struct od_grammar *g = m->g;
	uint32_t re;
	int rc = OD_OK;

	*out = OD_SYNTAX_NONE;
	switch (f->kind) {
	case ODM_OUTPUT_FREE: break;
	case ODM_OUTPUT_JSON:
		rc = od_json_schema_syntax(g, f->value, f->value, &od_json_style, out, &m->checks[m->n_checks], err);
		m->n_checks += rc == OD_OK;
		*out = od_syntax_cat(g, od_syntax_or(g, OD_SYNTAX_EMPTY, od_syntax_text(g, " ", 1)), *out);
		return rc;
	case ODM_OUTPUT_REGEX:
		rc = od_regex_compile(od_grammar_res(g), f->text, f->len, OD_WRITE_PLAIN, false, &re, err);
		*out = od_syntax_re(g, re);
		return rc;
	case ODM_OUTPUT_CHOICE:
		rc = choice_syntax(g, f->value, out);
		return rc == OD_OK ? rc : od_fail(err, rc, "no memory");
	case ODM_OUTPUT_GRAMMAR: return od_gbnf_compile(g, f->text, f->len, out, err);
	}
	return rc;
}

/* Finishes the grammar and looks at what its schemas need. */
static int finish_grammar(struct form_grammar *m, uint32_t root, struct od_err *err)
{
	int rc = od_grammar_finish(m->g, root, err);

	for (size_t i = 0; i < m->n_checks; i++) {
		struct od_err why;
		const int one = od_json_schema_check(m->g, m->checks[i], &why);

		if (rc == OD_OK && one != OD_OK) {
			rc = one;
			*err = why;
		}
	}
	m->n_checks = 0;
	return rc;
}

static int make_grammar(struct form_grammar *m, const struct odm_output_form *f, const struct odm_answer_rules *given,
			const struct od_vocab *v, struct od_err *err)
{
	uint32_t root = OD_SYNTAX_NONE;
	size_t n = 0;
	int rc = od_grammar_new(&m->g, err);

	snprintf(m->param, sizeof(m->param), "%s", f->param);
	if (rc == OD_OK)
		rc = content_syntax(m, f, &root, err);
	if (rc == OD_OK && given != NULL) {
		struct odm_answer_rules rules = *given;

		rules.vocab = v;
		rules.content = root;
		rules.free_content = f->kind == ODM_OUTPUT_FREE;
		rc = odm_answer_grammar(m->g, &rules, &root, m->checks + m->n_checks, &n, err);
		m->n_checks += n;
		if (f->kind == ODM_OUTPUT_FREE)
			snprintf(m->param, sizeof(m->param), "tools");
	}
	if (rc == OD_OK)
		return finish_grammar(m, root, err);
	for (size_t i = 0; i < m->n_checks; i++)
		(void)!od_json_schema_check(NULL, m->checks[i], NULL);
	return rc;
}

static int make(const struct odm_output_form *f, const struct odm_answer_rules *rules, const struct od_vocab *v,
		struct od_constraint **out, struct odm_api_error *e)
{
	struct form_grammar m = { 0 };
	struct od_err err;
	int rc = make_grammar(&m, f, rules, v, &err);

	*out = NULL;
	if (rc == OD_OK)
		rc = od_constraint_new(out, m.g, v, &err);
	else
		od_grammar_free(m.g);
	if (rc == OD_OK)
		return rc;
	if (rc == OD_ERR_NOMEM)
		return odm_no_memory(e);
	if (strncmp(err.msg, "tool", 4) == 0) /* the text says where */
		return odm_api_fail(e, 400, strncmp(err.msg, "tools", 5) == 0 ? "tools" : "tool_choice", rc, "%s",
				    err.msg);
	return odm_api_fail(e, 400, m.param, rc, "%s%s%s", m.param, err.msg[0] != '#' ? ": " : "", err.msg);
}

/* ---- Those that are kept ---- */

struct kept_constraint {
	char *key;
	struct od_constraint *constraint;
	uint64_t used;
};

struct odm_constraints {
	pthread_mutex_t lock;
	struct od_vocab *vocab; /* NULL: not needed yet */
	struct kept_constraint kept[MAX_KEPT];
	uint64_t clock;
};

struct odm_constraints *odm_constraints_new(void)
{
	struct odm_constraints *c = calloc(1, sizeof(*c));

	if (c != NULL)
		pthread_mutex_init(&c->lock, NULL);
	return c;
}

static void drop(struct kept_constraint *k)
{
	od_constraint_unref(k->constraint);
	free(k->key);
	*k = (struct kept_constraint){ 0 };
}

void odm_constraints_free(struct odm_constraints *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < MAX_KEPT; i++)
		drop(&c->kept[i]);
	od_vocab_free(c->vocab);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static int make_vocab(const struct odm_chat_template *chat, const struct od_tokenizer *t, uint32_t n_tokens,
		      struct od_vocab **out, struct odm_api_error *e)
{
	struct od_controls *controls;
	struct od_err err;
	int rc = chat != NULL ? odm_chat_template_controls(chat, true, t, &controls, &err) :
				od_controls_new(&controls, t, &err);

	*out = NULL;
	if (rc == OD_OK)
		rc = od_vocab_new(out, t, controls, n_tokens, &err);
	od_controls_free(controls);
	return rc == OD_OK ? rc : odm_api_fail(e, 503, NULL, rc, "%s", err.msg);
}

static void append_json(struct od_strbuf *b, const json_t *v)
{
	char *text = v != NULL ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	if (text != NULL)
		od_strbuf_append(b, text, strlen(text));
	else if (v != NULL)
		b->failed = true;
	od_strbuf_append(b, "\n", 1);
	free(text);
}

/* All that a constraint is made of; NULL: no memory. */
static char *key_of(const struct odm_output_form *f, const struct odm_answer_rules *r, size_t *len)
{
	struct od_strbuf b = { 0 };

	od_strbuf_printf(&b, "%d ", (int)f->kind);
	if (r != NULL)
		od_strbuf_printf(&b, "%d%d%d%d%zu%s%s", r->in_thought, r->must_call, r->one_call, r->all_strict,
				 r->format->n_calls, r->format->name, r->lead != NULL ? r->lead : "");
	od_strbuf_append(&b, "\n", 1);
	append_json(&b, f->value);
	if (r != NULL)
		append_json(&b, r->tools);
	if (f->text != NULL)
		od_strbuf_append(&b, f->text, f->len);
	return od_strbuf_take(&b, len);
}

/* Lock held: a reference to the one with this key; NULL: none. */
static struct od_constraint *find_kept(struct odm_constraints *c, const char *key)
{
	for (size_t i = 0; i < MAX_KEPT; i++)
		if (c->kept[i].key != NULL && strcmp(c->kept[i].key, key) == 0) {
			c->kept[i].used = ++c->clock;
			return od_constraint_ref(c->kept[i].constraint);
		}
	return NULL;
}

/* Lock held: a free place, when there is one and all together are not too large; NULL: there is none, and *oldest is
 * the one that was not used for the longest time. */
static struct kept_constraint *find_place(struct odm_constraints *c, size_t bytes, struct kept_constraint **oldest)
{
	struct kept_constraint *empty = NULL;

	*oldest = NULL;
	for (size_t i = 0; i < MAX_KEPT; i++) {
		struct kept_constraint *k = &c->kept[i];

		if (k->key == NULL) {
			empty = k;
			continue;
		}
		bytes += od_constraint_size(k->constraint);
		if (*oldest == NULL || k->used < (*oldest)->used)
			*oldest = k;
	}
	return bytes <= MAX_KEPT_BYTES || *oldest == NULL ? empty : NULL;
}

/* Lock held. Takes the key. */
static void keep(struct odm_constraints *c, char *key, struct od_constraint *constraint)
{
	struct kept_constraint *place, *oldest;

	while ((place = find_place(c, od_constraint_size(constraint), &oldest)) == NULL)
		drop(oldest);
	*place = (struct kept_constraint){ key, od_constraint_ref(constraint), ++c->clock };
}

static int check_size(const struct odm_output_form *f, const char *key, size_t len, struct odm_api_error *e)
{
	if (key == NULL)
		return odm_no_memory(e);
	if (len > MAX_FORM_BYTES)
		return odm_api_fail(e, 400, f->param, OD_ERR_RANGE, "%s: it has %zu bytes; expected at most %zu",
				    f->kind != ODM_OUTPUT_FREE ? f->param : "tools", len, MAX_FORM_BYTES);
	return OD_OK;
}

int odm_constraints_get(struct odm_constraints *c, const struct odm_output_form *f,
			const struct odm_answer_rules *rules, const struct odm_chat_template *chat,
			const struct od_tokenizer *tokenizer, uint32_t n_tokens, struct od_constraint **out,
			struct odm_api_error *e)
{
	size_t len = 0;
	char *key;
	int rc = OD_OK;

	*out = NULL;
	if (tokenizer == NULL)
		return odm_api_fail(e, 400, f->param, OD_ERR_UNSUPPORTED, "%s: the model has no tokenizer", f->param);
	key = key_of(f, rules, &len);
	rc = check_size(f, key, len, e);
	if (rc == OD_OK) {
		pthread_mutex_lock(&c->lock);
		if (c->vocab == NULL)
			rc = make_vocab(chat, tokenizer, n_tokens, &c->vocab, e);
		*out = rc == OD_OK ? find_kept(c, key) : NULL;
		pthread_mutex_unlock(&c->lock);
	}
	if (rc == OD_OK && *out == NULL) {
		rc = make(f, rules, c->vocab, out, e);
		if (rc == OD_OK) {
			pthread_mutex_lock(&c->lock);
			keep(c, key, *out);
			pthread_mutex_unlock(&c->lock);
			return OD_OK;
		}
	}
	free(key);
	return rc;
}
