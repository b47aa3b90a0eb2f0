#include "main-node/chat/answer_grammar.h"

#include "main-node/chat/call_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GAP 4 /* bytes of white space between the parts of an answer */
#define FIRST_LITERAL '\t' /* lower bytes stand for a variable text */

struct answer_grammar {
	struct od_grammar *g;
	struct od_re_pool *p;
	const struct odm_answer_rules *rules;
	struct od_schema_check **checks;
	size_t n_checks;
	struct od_err *err;
	int rc;
};

/* One call of a block, as it is being written. */
struct call_syntax {
	const struct odm_call_format *format;
	const json_t *function;
	const char *name;
	uint32_t args; /* node: the arguments; made when needed */
	size_t number; /* its tool's */
	bool strict;
};

/* ---- Texts ---- */

/* Marks in a text are symbols where the vocabulary has such, or spelled: what reads answers takes both. */
static uint32_t marked(struct answer_grammar *a, const char *text, size_t len)
{
	uint32_t re = OD_RE_EMPTY;

	for (size_t at = 0; at < len;) {
		size_t n = od_vocab_symbol_at(a->rules->vocab, text + at, len - at), begin = at;

		if (n > 0) {
			const uint32_t text_re = od_re_text(a->p, text + at, n);

			re = od_re_cat(
				a->p, re,
				od_re_or(a->p, text_re, od_re_cat(a->p, od_re_text(a->p, OD_SYMBOL, 1), text_re)));
			at += n;
			continue;
		}
		while (at < len && od_vocab_symbol_at(a->rules->vocab, text + at, len - at) == 0)
			at++;
		re = od_re_cat(a->p, re, od_re_text(a->p, text + begin, at - begin));
	}
	return re;
}

static uint32_t mark(struct answer_grammar *a, const char *text)
{
	return od_syntax_re(a->g, marked(a, text, strlen(text)));
}

static uint32_t white(struct answer_grammar *a, uint32_t max)
{
	struct od_byte_set set = { { 0 } };

	for (const char *c = " \t\r\n"; *c != '\0'; c++)
		od_byte_set_add(&set, (uint8_t)*c);
	return od_syntax_re(a->g, od_re_repeat(a->p, od_re_byte(a->p, &set), 0, max));
}

/* Text without symbols, in which `end` does not occur (NULL: any). */
static uint32_t free_text(struct answer_grammar *a, const char *end)
{
	struct od_byte_set set = { { 0 } };
	uint32_t re;

	od_byte_set_add_range(&set, 0, 0xfe);
	re = od_re_repeat(a->p, od_re_byte(a->p, &set), 0, OD_RE_NO_LIMIT);
	if (end != NULL)
		re = od_re_and(a->p, re, od_re_without(a->p, end));
	return od_syntax_re(a->g, re);
}

static uint32_t cat(struct answer_grammar *a, uint32_t x, uint32_t y)
{
	return od_syntax_cat(a->g, x, y);
}

static uint32_t maybe(struct answer_grammar *a, uint32_t x)
{
	return od_syntax_or(a->g, OD_SYNTAX_EMPTY, x);
}

/* ---- Arguments ---- */

static const json_t *parameters_of(const struct call_syntax *c)
{
	const json_t *p = json_object_get(c->function, "parameters");

	return json_is_object(p) ? p : NULL;
}

static uint32_t add_schema(struct answer_grammar *a, const struct call_syntax *c, const json_t *whole,
			   const json_t *schema, const struct od_json_style *style)
{
	struct od_schema_check *check;
	struct od_err err;
	uint32_t node;
	char label[64];

	if (a->rc != OD_OK)
		return OD_SYNTAX_NONE;
	if (a->n_checks == ODM_MAX_CHECKS)
		a->rc = od_fail(a->err, OD_ERR_RANGE, "tools: more than %d schemas", ODM_MAX_CHECKS);
	else if (od_json_schema_syntax(a->g, whole, schema, style, &node, &check, &err) != OD_OK)
		a->rc = od_fail(a->err, err.code, "tools[%zu].function.parameters%s", c->number, err.msg);
	if (a->rc != OD_OK)
		return OD_SYNTAX_NONE;
	snprintf(label, sizeof(label), "tools[%zu].function.parameters", c->number);
	od_schema_check_label(check, label);
	a->checks[a->n_checks++] = check;
	return node;
}

/* The schema that arguments are held to: an object, of any members where the tool is not strict. Two of the schema's
 * own kind are put together, since parameters need not say that they are an object. A new reference, NULL without
 * memory. */
static json_t *args_schema(const struct call_syntax *c)
{
	const json_t *parameters = c->strict ? parameters_of(c) : NULL;

	if (parameters == NULL)
		return json_pack("{s:s}", "type", "object");
	if (json_object_get(parameters, "type") != NULL || json_object_get(parameters, "$ref") != NULL)
		return json_incref((json_t *)(uintptr_t)parameters);
	return json_pack("{s:s, s:o}", "type", "object", "allOf", json_pack("[O]", parameters));
}

static uint32_t json_args(struct answer_grammar *a, const struct call_syntax *c, const struct od_json_style *style)
{
	json_t *schema = args_schema(c);
	const json_t *whole = c->strict && parameters_of(c) != NULL ? parameters_of(c) : schema;
	uint32_t node = OD_SYNTAX_NONE;

	if (schema == NULL)
		a->rc = od_fail(a->err, OD_ERR_NOMEM, "no memory for a grammar of calls");
	else
		node = add_schema(a, c, whole, schema, style);
	json_decref(schema);
	return node;
}

/* ---- Parameters in XML ---- */

static size_t literal_len(const char *at)
{
	size_t n = 0;

	while ((unsigned char)at[n] >= FIRST_LITERAL)
		n++;
	return n;
}

/* The value of a parameter, up to the literal that follows it. key, schema: NULL: any text. */
static uint32_t param_value(struct answer_grammar *a, const struct call_syntax *c, const char *key,
			    const json_t *schema, const char *end)
{
	const unsigned types = key != NULL ? odm_param_types(c->function, key, strlen(key)) : 0;
	const bool lines = c->format->values == ODM_VALUE_LINES, text = types == 0 || (types & ODM_TYPE_STRING) != 0;
	struct od_json_style style = od_json_style;
	char until[64];
	uint32_t value;

	snprintf(until, sizeof(until), "%.*s", (int)literal_len(end), end);
	if (text) {
		style.text_end = until;
		value = c->strict && schema != NULL ? add_schema(a, c, parameters_of(c), schema, &style) :
						      free_text(a, until);
	} else {
		value = add_schema(a, c, parameters_of(c), c->strict ? schema : json_true(), &style);
	}
	return lines ? cat(a, od_syntax_text(a->g, "\n", 1), cat(a, value, od_syntax_text(a->g, "\n", 1))) : value;
}

/* A parameter by the format's text. key: its name, an expression. name, schema: NULL: any text is its value. */
static uint32_t param(struct answer_grammar *a, const struct call_syntax *c, uint32_t key, const char *name,
		      const json_t *schema)
{
	const char *at = c->format->param;
	uint32_t node = OD_SYNTAX_EMPTY;

	while (*at != '\0' && a->rc == OD_OK) {
		const size_t n = literal_len(at);

		if (n > 0)
			node = cat(a, node, od_syntax_re(a->g, marked(a, at, n)));
		else if (*at == ODM_WS[0])
			node = cat(a, node, white(a, 1));
		else if (*at == ODM_KEY[0])
			node = cat(a, node, od_syntax_re(a->g, key));
		else
			node = cat(a, node, param_value(a, c, name, schema, at + 1));
		at += n > 0 ? n : 1;
	}
	return cat(a, white(a, MAX_GAP), node);
}

/* Any name of a parameter but those of the schema. */
static uint32_t other_key(struct answer_grammar *a, const json_t *properties)
{
	struct od_byte_set set = { { 0 } };
	uint32_t names = OD_RE_NONE;
	const char *key;
	json_t *schema;

	for (const char *c = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."; *c != '\0'; c++)
		od_byte_set_add(&set, (uint8_t)*c);
	json_object_foreach((json_t *)(uintptr_t)properties, key, schema) names =
		od_re_or(a->p, names, od_re_text(a->p, key, strlen(key)));
	return od_re_and(a->p, od_re_repeat(a->p, od_re_byte(a->p, &set), 1, OD_RE_NO_LIMIT), od_re_not(a->p, names));
}

static bool is_required(const json_t *parameters, const char *key)
{
	const json_t *name;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json_object_get(parameters, "required"), i,
			   name) if (json_is_string(name) && strcmp(json_string_value(name), key) == 0) return true;
	return false;
}

static uint32_t params(struct answer_grammar *a, const struct call_syntax *c)
{
	const json_t *parameters = parameters_of(c), *properties = json_object_get(parameters, "properties");
	const json_t *more = json_object_get(parameters, "additionalProperties");
	uint32_t node = OD_SYNTAX_EMPTY;
	const char *key;
	json_t *schema;

	json_object_foreach((json_t *)(uintptr_t)properties, key, schema)
	{
		const uint32_t one = param(a, c, od_re_text(a->p, key, strlen(key)), key, schema);

		node = cat(a, node, is_required(parameters, key) ? one : maybe(a, one));
	}
	if (more == NULL || json_is_true(more) || (json_is_object(more) && json_object_size(more) == 0))
		node = cat(
			a, node,
			od_syntax_repeat(a->g, param(a, c, other_key(a, properties), NULL, NULL), 0, OD_RE_NO_LIMIT));
	return cat(a, node, white(a, MAX_GAP));
}

/* ---- Calls ---- */

/* The whole call as JSON. */
static uint32_t json_call(struct answer_grammar *a, const struct call_syntax *c)
{
	const char *format = a->rules->format->name;
	const bool cohere = strcmp(format, "cohere") == 0, llama = strcmp(format, "llama") == 0;
	const uint32_t space = od_syntax_space(a->g), quote = od_syntax_text(a->g, "\"", 1);
	const char *const name = cohere ? "\"tool_name\":" : "\"name\":";
	const char *const args = cohere || llama ? "\"parameters\":" : "\"arguments\":";
	json_t *text = json_string(c->name);
	char *written = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
	uint32_t body = OD_SYNTAX_EMPTY, digits, comma = cat(a, od_syntax_text(a->g, ",", 1), space);
	struct od_byte_set set = { { 0 } };

	if (written == NULL) {
		a->rc = od_fail(a->err, OD_ERR_NOMEM, "no memory for a grammar of calls");
		json_decref(text);
		return OD_SYNTAX_NONE;
	}
	od_byte_set_add_range(&set, '0', '9');
	if (cohere) {
		digits = od_syntax_re(a->g, od_re_repeat(a->p, od_re_byte(a->p, &set), 1, 3));
		body = cat(a, od_syntax_text(a->g, "\"tool_call_id\":", 15), space);
		body = cat(a, body, cat(a, cat(a, quote, cat(a, digits, quote)), comma));
	}
	body = cat(a, body, cat(a, od_syntax_text(a->g, name, strlen(name)), space));
	body = cat(a, body, cat(a, od_syntax_text(a->g, written, strlen(written)), comma));
	body = cat(a, body, cat(a, od_syntax_text(a->g, args, strlen(args)), cat(a, space, c->args)));
	if (c->format->late_id) { /* nine letters or digits */
		od_byte_set_add_range(&set, 'a', 'z');
		od_byte_set_add_range(&set, 'A', 'Z');
		digits = od_syntax_re(a->g, od_re_repeat(a->p, od_re_byte(a->p, &set), 9, 9));
		body = cat(a, body,
			   maybe(a, cat(a, comma,
					cat(a, cat(a, od_syntax_text(a->g, "\"id\":", 5), space),
					    cat(a, quote, cat(a, digits, quote))))));
	}
	free(written);
	json_decref(text);
	return cat(a, od_syntax_text(a->g, "{", 1),
		   od_syntax_level(a->g, cat(a, space, cat(a, body, cat(a, space, od_syntax_text(a->g, "}", 1))))));
}

static uint32_t call_id(struct answer_grammar *a, const struct call_syntax *c)
{
	struct od_byte_set set = { { 0 } };
	uint32_t node;

	od_byte_set_add_range(&set, '0', '9');
	if (a->rules->format->ids == ODM_IDS_COUNTED) {
		node = cat(a, od_syntax_text(a->g, "functions.", 10), od_syntax_text(a->g, c->name, strlen(c->name)));
		return cat(a, cat(a, node, od_syntax_text(a->g, ":", 1)),
			   od_syntax_re(a->g, od_re_repeat(a->p, od_re_byte(a->p, &set), 1, 3)));
	}
	od_byte_set_add_range(&set, 'a', 'z');
	od_byte_set_add_range(&set, 'A', 'Z');
	return od_syntax_re(a->g, od_re_repeat(a->p, od_re_byte(a->p, &set), 9, 9));
}

/* A section of the format's text for a call. */
static uint32_t section(struct answer_grammar *a, const struct call_syntax *c, const char *at)
{
	uint32_t node = OD_SYNTAX_EMPTY;

	while (*at != '\0' && a->rc == OD_OK) {
		const size_t n = literal_len(at);

		if (n > 0)
			node = cat(a, node, od_syntax_re(a->g, marked(a, at, n)));
		else if (*at == ODM_WS[0])
			node = cat(a, node, white(a, 2));
		else if (*at == ODM_NAME[0])
			node = cat(a, node, od_syntax_text(a->g, c->name, strlen(c->name)));
		else if (*at == ODM_ID[0])
			node = cat(a, node, call_id(a, c));
		else if (*at == ODM_CALL[0])
			node = cat(a, node, json_call(a, c));
		else /* all arguments: JSON, or Gemma's notation */
			node = cat(a, node, c->args);
		at += n > 0 ? n : 1;
	}
	return node;
}

/* Behind a channel: the arguments are JSON; the mark of that may be missing. */
static uint32_t harmony_json(struct answer_grammar *a)
{
	const uint32_t json = od_syntax_text(a->g, "json", 4);

	return maybe(a, cat(a, od_syntax_text(a->g, " ", 1), cat(a, maybe(a, mark(a, "<|constrain|>")), json)));
}

/* Harmony names the receiver behind the channel, or, as its template does, before it. */
static uint32_t harmony_call(struct answer_grammar *a, const struct call_syntax *c)
{
	static const char to[] = " to=functions.", channel[] = "commentary";
	const uint32_t name = od_syntax_text(a->g, c->name, strlen(c->name));
	const uint32_t receiver = cat(a, od_syntax_text(a->g, to, strlen(to)), name);
	const uint32_t commentary = cat(a, mark(a, "<|channel|>"), od_syntax_text(a->g, channel, strlen(channel)));
	const uint32_t head = od_syntax_or(a->g, cat(a, commentary, receiver), cat(a, receiver, commentary));

	return cat(a, cat(a, head, harmony_json(a)), cat(a, mark(a, "<|message|>"), c->args));
}

/* One of the tools is called. */
static uint32_t any_call(struct answer_grammar *a, const struct odm_call_format *f)
{
	static const struct od_json_style gemma = {
		.quote = "<|\"|>", .quote_is_symbol = true, .writing = OD_WRITE_PLAIN, .bare_keys = true
	};
	uint32_t node = OD_SYNTAX_NONE;
	const json_t *tool;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)a->rules->tools, i, tool)
	{
		const json_t *function = json_object_get(tool, "function");
		struct call_syntax c = { .format = f,
					 .function = function,
					 .name = json_string_value(json_object_get(function, "name")),
					 .number = i,
					 .strict = a->rules->all_strict ||
						   json_is_true(json_object_get(function, "strict")) };
		uint32_t one;

		if (f == NULL || f->param == NULL)
			c.args = json_args(a, &c, f != NULL && f->values == ODM_VALUE_GEMMA ? &gemma : &od_json_style);
		if (f == NULL) {
			one = harmony_call(a, &c);
		} else {
			one = section(a, &c, f->call);
			if (f->param != NULL)
				one = cat(a, one, params(a, &c));
			one = cat(a, one, section(a, &c, f->end));
		}
		node = od_syntax_or(a->g, node, one);
	}
	return node;
}

/* Blocks of calls in one of the template's forms. */
static uint32_t blocks(struct answer_grammar *a)
{
	const struct odm_chat_format *format = a->rules->format;
	const uint32_t most = a->rules->one_call ? 1 : OD_RE_NO_LIMIT;
	uint32_t node = OD_SYNTAX_NONE;

	for (size_t i = 0; i < format->n_calls && a->rc == OD_OK; i++) {
		const struct odm_call_format *f = &format->calls[i];
		const struct call_syntax none = { .format = f };
		const uint32_t call = any_call(a, f);
		uint32_t block = f->bare ? OD_SYNTAX_EMPTY : mark(a, f->open), more;

		block = cat(a, block, section(a, &none, f->head));
		if (f->between == NULL) {
			block = cat(a, block, call);
			more = cat(a, white(a, 2), block);
			block = cat(a, block, od_syntax_repeat(a->g, more, 0, most == 1 ? 0 : most));
		} else {
			more = cat(a, white(a, 2), cat(a, section(a, &none, f->between), call));
			block = cat(a, block, cat(a, call, od_syntax_repeat(a->g, more, 0, most == 1 ? 0 : most)));
			block = cat(a, block, cat(a, white(a, 2), section(a, &none, f->close)));
		}
		node = od_syntax_or(a->g, node, block);
	}
	return node;
}

/* ---- Answers ---- */

static uint32_t content_of(struct answer_grammar *a)
{
	const struct odm_answer_rules *r = a->rules;
	/* Where calls may follow, the text before them has no mark of theirs. */
	const char *open = r->format->n_calls > 0 && json_array_size(r->tools) > 0 ? r->format->calls[0].open : NULL;

	if (r->free_content)
		return free_text(a, open);
	if (r->lead != NULL && r->lead[0] != '\0')
		return cat(a, maybe(a, od_syntax_text(a->g, r->lead, strlen(r->lead))), r->content);
	return r->content;
}

/* A message of Harmony: a channel, and what it says up to its end; another message of the assistant follows. */
static uint32_t harmony_message(struct answer_grammar *a, const char *channel)
{
	const uint32_t head = cat(a, mark(a, "<|channel|>"), od_syntax_text(a->g, channel, strlen(channel)));
	const uint32_t body = cat(a, mark(a, "<|message|>"), cat(a, free_text(a, "<|end|>"), mark(a, "<|end|>")));

	return cat(a, cat(a, head, body), cat(a, mark(a, "<|start|>"), od_syntax_text(a->g, "assistant", 9)));
}

static uint32_t harmony(struct answer_grammar *a)
{
	const struct odm_answer_rules *r = a->rules;
	const uint32_t before = od_syntax_repeat(
		a->g, od_syntax_or(a->g, harmony_message(a, "analysis"), harmony_message(a, "commentary")), 0,
		OD_RE_NO_LIMIT);
	uint32_t last = OD_SYNTAX_NONE;

	if (!r->must_call) {
		last = cat(a, mark(a, "<|channel|>"), cat(a, od_syntax_text(a->g, "final", 5), harmony_json(a)));
		last = cat(a, last, cat(a, mark(a, "<|message|>"), content_of(a)));
	}
	if (json_array_size(r->tools) > 0)
		last = od_syntax_or(a->g, last, any_call(a, NULL));
	return cat(a, before, last);
}

static uint32_t tagged(struct answer_grammar *a)
{
	const struct odm_answer_rules *r = a->rules;
	const struct odm_thought_tags *t = r->format->thoughts;
	/* Readers of answers drop line breaks between the parts, and no other white space. */
	const uint32_t gap = od_syntax_re(a->g, od_re_repeat(a->p, od_re_text(a->p, "\n", 1), 0, MAX_GAP));
	const bool calls = json_array_size(r->tools) > 0 && r->format->n_calls > 0;
	uint32_t node = OD_SYNTAX_NONE, thought, block = calls ? blocks(a) : OD_SYNTAX_NONE;

	if (r->must_call && !calls)
		a->rc = od_fail(a->err, OD_ERR_UNSUPPORTED,
				"tool_choice: this model's chat template has no form of calls that is known here");
	if (!r->must_call)
		node = content_of(a);
	if (calls && r->free_content && !r->must_call)
		node = cat(a, node, maybe(a, block)); /* text before the calls */
	else if (calls)
		node = od_syntax_or(a->g, node, cat(a, gap, block));
	if (t == NULL)
		return node;
	thought = cat(a, free_text(a, t->close), mark(a, t->close));
	if (r->in_thought)
		/* The model may write the opening tag once more. */
		return cat(a, maybe(a, cat(a, gap, mark(a, t->open))), cat(a, thought, cat(a, gap, node)));
	return cat(a, maybe(a, cat(a, cat(a, gap, mark(a, t->open)), cat(a, thought, gap))), node);
}

int odm_answer_grammar(struct od_grammar *g, const struct odm_answer_rules *rules, uint32_t *root,
		       struct od_schema_check *checks[ODM_MAX_CHECKS], size_t *n_checks, struct od_err *err)
{
	struct answer_grammar a = { .g = g, .p = od_grammar_res(g), .rules = rules, .checks = checks, .err = err };

	*root = rules->format->harmony ? harmony(&a) : tagged(&a);
	*n_checks = a.n_checks;
	return a.rc;
}
