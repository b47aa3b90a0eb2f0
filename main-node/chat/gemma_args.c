#include "main-node/chat/gemma_args.h"

#include <string.h>

#define QUOTE "<|\"|>"
#define N_QUOTE (sizeof(QUOTE) - 1)

struct reader {
	struct odm_slice text;
	size_t pos;
	struct od_strbuf *out;
};

static bool read_value(struct reader *r, int depth);

static bool take(struct reader *r, const char *what)
{
	const size_t n = strlen(what);

	if (r->text.len - r->pos < n || memcmp(r->text.text + r->pos, what, n) != 0)
		return false;
	r->pos += n;
	return true;
}

static void skip_space(struct reader *r)
{
	while (take(r, " ") || take(r, "\n") || take(r, "\r") || take(r, "\t"))
		;
}

/* The opening quote has been taken. */
static bool read_quoted(struct reader *r)
{
	const char *from = r->text.text + r->pos, *end = memmem(from, r->text.len - r->pos, QUOTE, N_QUOTE);

	if (end == NULL)
		return false;
	odm_json_quote(r->out, from, (size_t)(end - from));
	r->pos += (size_t)(end - from) + N_QUOTE;
	return true;
}

/* Up to one of the bytes in ends. */
static struct odm_slice read_bare(struct reader *r, const char *ends)
{
	const size_t from = r->pos;

	while (r->pos < r->text.len && (r->text.text[r->pos] == '\0' || strchr(ends, r->text.text[r->pos]) == NULL))
		r->pos++;
	return (struct odm_slice){ r->text.text + from, r->pos - from };
}

static bool read_key(struct reader *r)
{
	struct odm_slice key;

	if (take(r, QUOTE)) {
		if (!read_quoted(r))
			return false;
	} else {
		key = read_bare(r, ":{}[],<\"");
		if (key.len == 0)
			return false;
		odm_json_quote(r->out, key.text, key.len);
	}
	od_strbuf_append(r->out, ": ", 2);
	return take(r, ":");
}

/* The opening brace or bracket has been taken. */
static bool read_members(struct reader *r, const char *end, bool keys, int depth)
{
	skip_space(r);
	for (bool first = true; !take(r, end); first = false) {
		if (!first && !take(r, ","))
			return false;
		if (!first)
			od_strbuf_append(r->out, ", ", 2);
		skip_space(r);
		if ((keys && !read_key(r)) || !read_value(r, depth + 1))
			return false;
	}
	od_strbuf_append(r->out, end, 1);
	return true;
}

/* Parsing the whole as JSON later shows whether it is a number or a literal. */
static bool read_scalar(struct reader *r)
{
	const struct odm_slice bare = read_bare(r, "\"{[,}] \n\r\t");

	od_strbuf_append(r->out, bare.text, bare.len);
	return bare.len > 0;
}

static bool read_value(struct reader *r, int depth)
{
	bool ok;

	if (depth > ODM_JSON_MAX_DEPTH)
		return false;
	skip_space(r);
	if (take(r, QUOTE)) {
		ok = read_quoted(r);
	} else if (take(r, "{")) {
		od_strbuf_append(r->out, "{", 1);
		ok = read_members(r, "}", true, depth);
	} else if (take(r, "[")) {
		od_strbuf_append(r->out, "[", 1);
		ok = read_members(r, "]", false, depth);
	} else {
		ok = read_scalar(r);
	}
	skip_space(r);
	return ok;
}

bool odm_gemma_to_json(struct od_strbuf *out, struct odm_slice text)
{
	struct reader r = { .text = text, .out = out };

	return text.len > 0 && text.text[0] == '{' && read_value(&r, 0) && r.pos == text.len;
}

/* ---- Back ---- */

struct writer {
	struct od_strbuf *out;
	struct od_text_spans *quotes;
	bool failed;
};

static void write_quote(struct writer *w)
{
	od_strbuf_append(w->out, QUOTE, N_QUOTE);
	w->failed = w->failed || w->out->failed ||
		    od_text_spans_add(w->quotes, w->out->len - N_QUOTE, w->out->len) != OD_OK;
}

static void write_string(struct writer *w, struct odm_slice quoted)
{
	json_t *s = odm_json_value(quoted);

	od_strbuf_append(w->out, json_string_value(s), json_string_length(s));
	json_decref(s);
}

static void write_members(struct writer *w, struct odm_slice v, int depth)
{
	struct odm_json_item m;
	bool first = true;

	for (size_t pos = 0; odm_json_next(v, &pos, &m); first = false) {
		if (!first)
			od_strbuf_append(w->out, ",", 1);
		if (m.key.text != NULL) {
			write_string(w, m.key);
			od_strbuf_append(w->out, ":", 1);
		}
		if (m.value.text[0] == '"') {
			write_quote(w);
			write_string(w, m.value);
			write_quote(w);
		} else if ((m.value.text[0] == '{' || m.value.text[0] == '[') && depth < ODM_JSON_MAX_DEPTH) {
			od_strbuf_append(w->out, m.value.text, 1);
			write_members(w, m.value, depth + 1);
			od_strbuf_append(w->out, m.value.text[0] == '{' ? "}" : "]", 1);
		} else {
			od_strbuf_append(w->out, m.value.text, m.value.len);
		}
	}
}

bool odm_gemma_of_json(struct od_strbuf *out, struct od_text_spans *quotes, struct odm_slice object)
{
	struct writer w = { .out = out, .quotes = quotes };

	write_members(&w, object, 0);
	return !w.failed && !out->failed;
}
