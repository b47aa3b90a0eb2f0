#include "main-node/chat/json_text.h"

#include <string.h>

#include "common/base/json.h"

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static enum odm_json_scanned scan_string(struct odm_json_scan *s, char c)
{
	if ((unsigned char)c < 0x20)
		return ODM_JSON_BAD;
	if (s->escape)
		s->escape = false;
	else if (c == '\\')
		s->escape = true;
	else if (c == '"')
		s->string = false;
	return ODM_JSON_MORE;
}

enum odm_json_scanned odm_json_scan(struct odm_json_scan *s, char c)
{
	if (s->string)
		return scan_string(s, c);
	if (s->depth == 0 && c != '{')
		return ODM_JSON_BAD;
	if (c == '{' || c == '[')
		return ++s->depth > ODM_JSON_MAX_DEPTH ? ODM_JSON_BAD : ODM_JSON_MORE;
	if (c == '}' || c == ']')
		return --s->depth == 0 ? ODM_JSON_END : ODM_JSON_MORE;
	if (c == '"') {
		s->string = true;
		return ODM_JSON_MORE;
	}
	/* Numbers, literals and the signs between values consist of these bytes. */
	return c != '\0' && strchr(" \n\r\t,:+-.0123456789eEtrufalsn", c) != NULL ? ODM_JSON_MORE : ODM_JSON_BAD;
}

static bool too_deep(struct odm_slice text)
{
	bool string = false, escape = false;
	int depth = 0;

	for (size_t i = 0; i < text.len; i++) {
		const char c = text.text[i];

		if (string) {
			string = escape || c != '"';
			escape = !escape && c == '\\';
		} else if (c == '"') {
			string = true;
		} else if (c == '{' || c == '[') {
			if (++depth > ODM_JSON_MAX_DEPTH)
				return true;
		} else if (c == '}' || c == ']') {
			depth--;
		}
	}
	return false;
}

json_t *odm_json_value(struct odm_slice text)
{
	json_error_t why;

	return too_deep(text) ? NULL : od_json_decode(text.text, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
}

/* ---- Walking ---- */

static size_t skip(struct odm_slice t, size_t at)
{
	while (at < t.len && (is_space(t.text[at]) || t.text[at] == ',' || t.text[at] == ':'))
		at++;
	return at;
}

static size_t string_end(struct odm_slice t, size_t at)
{
	for (at++; at < t.len && t.text[at] != '"'; at++)
		at += t.text[at] == '\\';
	return at < t.len ? at + 1 : t.len;
}

static size_t value_end(struct odm_slice t, size_t at)
{
	int depth = 0;

	if (t.text[at] == '"')
		return string_end(t, at);
	if (t.text[at] != '{' && t.text[at] != '[') {
		while (at < t.len && !is_space(t.text[at]) && strchr(",]}", t.text[at]) == NULL)
			at++;
		return at;
	}
	while (at < t.len) {
		const char c = t.text[at];

		if (c == '"') {
			at = string_end(t, at);
			continue;
		}
		at++;
		depth += c == '{' || c == '[';
		depth -= c == '}' || c == ']';
		if (depth == 0)
			break;
	}
	return at;
}

bool odm_json_next(struct odm_slice t, size_t *pos, struct odm_json_item *item)
{
	size_t first = 0, at, end;
	bool object;

	*item = (struct odm_json_item){ 0 };
	while (first < t.len && is_space(t.text[first]))
		first++;
	object = first < t.len && t.text[first] == '{';
	at = skip(t, *pos > first ? *pos : first + 1);
	if (at >= t.len || t.text[at] == '}' || t.text[at] == ']')
		return false;
	if (object) {
		end = string_end(t, at);
		item->key = (struct odm_slice){ t.text + at, end - at };
		at = skip(t, end);
		if (at >= t.len)
			return false;
	}
	end = value_end(t, at);
	item->value = (struct odm_slice){ t.text + at, end - at };
	*pos = end;
	return true;
}

struct odm_slice odm_json_member(struct odm_slice object, const char *name)
{
	struct odm_json_item m;

	for (size_t pos = 0; odm_json_next(object, &pos, &m);) {
		json_t *key = odm_json_value(m.key);
		const bool found = key != NULL && strcmp(json_string_value(key), name) == 0;

		json_decref(key);
		if (found)
			return m.value;
	}
	return (struct odm_slice){ "", 0 };
}

void odm_json_escape(struct od_strbuf *out, const char *text, size_t len)
{
	static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
	size_t from = 0;

	for (size_t i = 0; i < len; i++) {
		const char *found = text[i] != '\0' ? strchr(plain, text[i]) : NULL;

		if (found == NULL && (unsigned char)text[i] >= 0x20)
			continue;
		od_strbuf_append(out, text + from, i - from);
		if (found != NULL)
			od_strbuf_printf(out, "\\%c", letter[found - plain]);
		else
			od_strbuf_printf(out, "\\u%04x", (unsigned)(unsigned char)text[i]);
		from = i + 1;
	}
	od_strbuf_append(out, text + from, len - from);
}

void odm_json_quote(struct od_strbuf *out, const char *text, size_t len)
{
	od_strbuf_append(out, "\"", 1);
	odm_json_escape(out, text, len);
	od_strbuf_append(out, "\"", 1);
}
