#include "main-node/chat/call_stream.h"

#include "main-node/chat/gemma_args.h"

#include <stdint.h>
#include <string.h>

/* An object that is a whole call and has more than this in front of its arguments is given when it is complete. */
#define MAX_HEAD_BYTES 4096
#define QUOTE "<|\"|>" /* Gemma's quote */
#define N_QUOTE (sizeof(QUOTE) - 1)

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

size_t odm_utf8_whole(const char *text, size_t len)
{
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		const unsigned char c = (unsigned char)text[len - back];
		const size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;

		if ((c & 0xc0) != 0x80)
			return need > back ? len - back : len;
	}
	return len;
}

/* Bytes of the escape that text begins with; the two halves of a surrogate pair are one. */
static size_t escape_len(const char *text, size_t len)
{
	if (len < 2 || text[1] != 'u')
		return 2;
	if (len < 4 || strchr("dD", text[2]) == NULL || strchr("89abAB", text[3]) == NULL)
		return 6;
	return len < 7 || (text[6] == '\\' && (len < 8 || text[7] == 'u')) ? 12 : 6;
}

size_t odm_json_whole(const char *text, size_t len)
{
	for (size_t i = 0; i < len;) {
		const size_t n = text[i] == '\\' ? escape_len(text + i, len - i) : 1;

		if (i + n > len)
			return i;
		i += n;
	}
	return odm_utf8_whole(text, len);
}

/* rc: of the naming of *call. False: it is not one of the request's. */
static bool begin(struct odm_call_stream *s, int rc, struct odm_tool_call *call, const json_t *tools)
{
	if (rc == OD_OK)
		s->function = odm_find_tool(tools, call->name);
	s->begun = rc == OD_OK && call->name[0] != '\0' && (tools == NULL || s->function != NULL);
	s->ended = !s->begun;
	if (!s->begun)
		odm_tool_call_fini(call);
	return s->begun;
}

static void append(struct odm_call_stream *s, struct od_strbuf *args, const char *text, size_t len)
{
	od_strbuf_append(args, text, len);
	s->sent += len;
}

/* ---- JSON ---- */

/* Appends from s->at to end, or to the end of the object if that comes first. */
static void append_json(struct odm_call_stream *s, const char *text, size_t end, struct od_strbuf *args)
{
	const size_t from = s->at;
	enum odm_json_scanned got = ODM_JSON_MORE;

	while (s->at < end && got == ODM_JSON_MORE)
		got = odm_json_scan(&s->json, text[s->at++]);
	append(s, args, text + from, s->at - from);
	s->ended = got != ODM_JSON_MORE; /* the object has ended, or is malformed */
}

static bool look_json(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text, const json_t *tools,
		      struct odm_tool_call *call, struct od_strbuf *args)
{
	bool began = false;

	if (r->pos == r->mark)
		return false;
	if (!s->found) {
		s->found = true;
		s->at = r->mark;
		began = begin(s, odm_tool_call_named(call, &r->spans, text), call, tools);
	}
	if (!s->ended)
		append_json(s, text, r->pos, args);
	return began;
}

/* Sets s->at if the object of the arguments has just begun, behind the name. False: it has not. */
static bool find_args(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
		      struct odm_tool_call *call)
{
	const struct odm_slice whole = { text + r->mark, r->pos - r->mark };
	struct odm_slice args;

	if (whole.len == 0 || r->json.string || r->json.depth != 2 || text[r->pos - 1] != '{' ||
	    odm_tool_call_of_members(call, whole, &args) != OD_OK)
		return false;
	if (args.len != 1 || args.text != text + r->pos - 1) { /* the object belongs to another member */
		odm_tool_call_fini(call);
		return false;
	}
	s->at = r->pos - 1;
	return true;
}

static bool look_whole(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
		       const json_t *tools, struct odm_tool_call *call, struct od_strbuf *args)
{
	bool began = false;

	s->ended = r->format->late_id || (!s->found && r->pos - r->mark > MAX_HEAD_BYTES);
	if (!s->ended && !s->found && find_args(s, r, text, call)) {
		s->found = true;
		began = begin(s, OD_OK, call, tools);
	}
	if (s->found && !s->ended)
		append_json(s, text, r->pos, args);
	return began;
}

bool odm_call_stream_json(struct odm_call_stream *s, struct odm_slice name, struct odm_slice json, const json_t *tools,
			  struct odm_tool_call *call, struct od_strbuf *args)
{
	const struct odm_call_spans spans = { .name = { 0, name.len } };
	bool began = false;

	while (!s->found && s->at < json.len && is_space(json.text[s->at]))
		s->at++;
	if (s->ended || s->at >= json.len)
		return false;
	if (!s->found) {
		s->found = true;
		s->ended = json.text[s->at] != '{';
		if (!s->ended)
			began = begin(s, odm_tool_call_named(call, &spans, name.text), call, tools);
	}
	if (!s->ended)
		append_json(s, json.text, json.len, args);
	return began;
}

/* ---- Parameters ---- */

/* Appends the text of a string, from s->at to `end`. */
static void append_string(struct odm_call_stream *s, const char *text, size_t end, struct od_strbuf *args)
{
	if (end <= s->at)
		return;
	odm_json_escape(args, text + s->at, end - s->at);
	s->at = end;
}

/* Appends the certain beginning of a string. The rest may be the string's end, or the format's line break before it. */
static void append_certain(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
			   struct od_strbuf *args)
{
	const bool lines = r->format->values == ODM_VALUE_LINES;
	size_t end = r->pos;

	if (lines && s->at == r->mark && end > s->at && text[s->at] == '\n')
		s->at++;
	if (lines && end > s->at && text[end - 1] == '\n')
		end--;
	if (end > s->at)
		append_string(s, text, s->at + odm_utf8_whole(text + s->at, end - s->at), args);
}

/* The value of the last key is complete. */
static void append_value(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
			 struct od_strbuf *args)
{
	const size_t i = s->n_keys - 1;
	const struct odm_slice v = odm_call_value(r->format, &r->spans, i, text);
	const size_t at = (size_t)(v.text - text);

	if (!s->string) {
		odm_call_append_value(args, r->format, &r->spans, i, text, s->function);
		return;
	}
	s->at = s->at > at ? s->at : at;
	append_string(s, text, at + v.len, args);
	od_strbuf_append(args, "\"", 1);
}

/* Call it while a value is read: all parameters before it are certain then. */
static bool look_params(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
			const json_t *tools, struct odm_tool_call *call, struct od_strbuf *args)
{
	const struct odm_call_spans *p = &r->spans;
	const size_t before = args->len;
	bool began = false;

	if (!s->begun)
		began = begin(s, odm_tool_call_named(call, p, text), call, tools);
	while (!s->ended && s->n_keys <= p->n_params) {
		if (s->n_keys > 0)
			append_value(s, r, text, args);
		s->ended = odm_call_key_again(p, s->n_keys, text);
		if (s->ended)
			break;
		odm_call_append_key(args, p, s->n_keys, text);
		s->string =
			s->n_keys == p->n_params && odm_call_value_is_text(r->format, p, s->n_keys, text, s->function);
		od_strbuf_append(args, "\"", s->string);
		s->n_keys++;
		s->at = r->mark;
	}
	if (!s->ended && s->string)
		append_certain(s, r, text, args);
	s->sent += args->len - before;
	return began;
}

/* ---- Gemma's notation ---- */

/* Writes the members in text as JSON, without braces. False: they are not in the notation. */
static bool to_json(struct od_strbuf *json, struct odm_slice members, const char *end)
{
	struct od_strbuf notation = { 0 };
	json_t *valid = NULL;

	od_strbuf_append(&notation, "{", 1);
	od_strbuf_append(&notation, members.text, members.len);
	od_strbuf_append(&notation, end, strlen(end));
	if (!notation.failed && odm_gemma_to_json(json, (struct odm_slice){ notation.text, notation.len }) &&
	    !json->failed)
		valid = odm_json_value((struct odm_slice){ json->text, json->len });
	od_strbuf_fini(&notation);
	json_decref(valid);
	return valid != NULL;
}

/* Appends the rest of the member's JSON, except n_less bytes at its end. */
static void append_member(struct odm_call_stream *s, const struct od_strbuf *json, size_t n_less,
			  struct od_strbuf *args)
{
	struct od_strbuf whole = { 0 };

	od_strbuf_append(&whole, ", ", s->n_members > 0 ? 2 : 0);
	od_strbuf_append(&whole, json->text + 1, json->len - 2 - n_less);
	if (!whole.failed && whole.len > s->member_sent) {
		od_strbuf_append(args, whole.text + s->member_sent, whole.len - s->member_sent);
		s->member_sent = whole.len;
	}
	args->failed = args->failed || whole.failed;
	od_strbuf_fini(&whole);
}

/* A comma or the last brace stands at s->at. */
static void end_member(struct odm_call_stream *s, const char *text, struct od_strbuf *args)
{
	struct od_strbuf json = { 0 };

	const bool good = to_json(&json, (struct odm_slice){ text + s->member, s->at - s->member }, "}");

	s->ended = !good || text[s->at] != ',';
	if (good && json.len > 2)
		append_member(s, &json, 0, args);
	od_strbuf_fini(&json);
	s->member = s->at + 1;
	s->member_sent = s->value_at = 0;
	s->n_members++;
}

/* A quote has been read at depth 0: if a value begins, its key is known. */
static void begin_string(struct odm_call_stream *s, const char *text, struct od_strbuf *args)
{
	struct od_strbuf json = { 0 };

	if (to_json(&json, (struct odm_slice){ text + s->member, s->at - s->member }, QUOTE "}")) {
		append_member(s, &json, 1, args);
		s->value_at = s->at;
	}
	od_strbuf_fini(&json);
}

static void append_quoted(struct odm_call_stream *s, const char *text, struct od_strbuf *args)
{
	const size_t before = args->len, n = odm_utf8_whole(text + s->value_at, s->at - s->value_at);

	odm_json_escape(args, text + s->value_at, n);
	s->member_sent += args->len - before;
	s->value_at += n;
}

/* Steps over a byte or a quote; false: it may be the beginning of a quote. */
static bool step(struct odm_call_stream *s, const char *text, size_t end, struct od_strbuf *args)
{
	const size_t have = end - s->at < N_QUOTE ? end - s->at : N_QUOTE;
	const char c = text[s->at];

	if (memcmp(text + s->at, QUOTE, have) == 0) {
		if (have < N_QUOTE)
			return false;
		if (s->quoted && s->value_at > 0 && s->depth == 0) {
			append_quoted(s, text, args);
			s->value_at = 0;
		}
		s->quoted = !s->quoted;
		s->at += N_QUOTE;
		if (s->quoted && s->depth == 0)
			begin_string(s, text, args);
		return true;
	}
	if (!s->quoted && s->depth == 0 && (c == ',' || c == '}' || c == ']'))
		end_member(s, text, args);
	else if (!s->quoted)
		s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
	s->at++;
	return true;
}

static bool look_gemma(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
		       const json_t *tools, struct odm_tool_call *call, struct od_strbuf *args)
{
	const size_t before = args->len;
	bool began = false;

	if (r->pos == r->mark)
		return false;
	if (!s->found) {
		s->found = true;
		s->ended = text[r->mark] != '{';
		if (!s->ended)
			began = begin(s, odm_tool_call_named(call, &r->spans, text), call, tools);
		s->at = s->member = r->mark + 1;
		od_strbuf_append(args, "{", began);
	}
	while (!s->ended && s->at < r->pos && step(s, text, r->pos, args))
		;
	if (s->quoted && s->value_at > 0)
		append_quoted(s, text, args);
	s->sent += args->len - before;
	return began;
}

/* ---- */

bool odm_call_stream_look(struct odm_call_stream *s, const struct odm_call_reader *r, const char *text,
			  const json_t *tools, struct odm_tool_call *call, struct od_strbuf *args)
{
	if (s->ended || r->mark == SIZE_MAX)
		return false;
	switch (*r->at) {
	case '\5':
		return r->format->param != NULL ? look_params(s, r, text, tools, call, args) :
						  look_gemma(s, r, text, tools, call, args);
	case '\6': return look_json(s, r, text, tools, call, args);
	case '\7': return look_whole(s, r, text, tools, call, args);
	default: return false;
	}
}
