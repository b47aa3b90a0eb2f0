#include "main-node/chat/part_text.h"

#include "common/base/log.h"
#include "main-node/chat/first_time.h"

#include <stdint.h>
#include <string.h>

#define MAX_DEPTH 4
#define N(a) (sizeof(a) / sizeof((a)[0]))

static const struct {
	const char *type, *field; /* this field has the text */
} texts[] = {
	{ "text", "text" },	      { "input_text", "text" },	  { "output_text", "text" },
	{ "reasoning_text", "text" }, { "summary_text", "text" }, { "refusal", "refusal" },
};

static const char image[] = "[an image that this model cannot see]";
static const char sound[] = "[a recording that this model cannot hear]";
static const char video[] = "[a video that this model cannot see]";
static const char file[] = "[a file that this model cannot read]";

static const struct {
	const char *type, *text;
} placeholders[] = {
	{ "image", image },
	{ "image_url", image },
	{ "input_image", image },
	{ "computer_screenshot", image },
	{ "audio", sound },
	{ "audio_url", sound },
	{ "input_audio", sound },
	{ "video", video },
	{ "video_url", video },
	{ "input_video", video },
	{ "file", file },
	{ "input_file", file },
	{ "container_upload", file },
};

bool odm_part_is_thought(const json_t *part)
{
	static const char *const types[] = { "thinking", "reasoning", "redacted_thinking" };
	const char *type = json_string_value(json_object_get(part, "type"));
	size_t i = 0;

	while (i < N(types) && (type == NULL || strcmp(types[i], type) != 0))
		i++;
	return i < N(types);
}

static const char *add_part(struct od_strbuf *out, const json_t *part, unsigned depth);
static void add_inner(struct od_strbuf *out, const json_t *part, unsigned depth);

static void join(struct od_strbuf *out, const json_t *content, unsigned depth)
{
	const json_t *part;
	size_t i, n = 0;

	if (json_is_string(content))
		od_strbuf_append(out, json_string_value(content), json_string_length(content));
	json_array_foreach((json_t *)(uintptr_t)content, i, part)
	{
		if (odm_part_is_thought(part))
			continue;
		od_strbuf_append(out, "\n", n++ > 0);
		if (json_is_string(part))
			od_strbuf_append(out, json_string_value(part), json_string_length(part));
		else if (add_part(out, part, depth) != NULL)
			add_inner(out, part, depth); /* a shell's output has no type */
	}
}

/* A document's source: text, or blocks; anything else is bytes, or an address where this server does not look. */
static const json_t *source_text(const json_t *source)
{
	const char *type = json_string_value(json_object_get(source, "type"));

	if (type != NULL && strcmp(type, "text") == 0)
		return json_object_get(source, "data");
	return json_object_get(source, "content");
}

/* These have text within, too: Anthropic's documents, search results, and results of tools that a server runs. */
static void add_inner(struct od_strbuf *out, const json_t *part, unsigned depth)
{
	static const char *const fields[] = { "title",	"filename", "url",  "source",	  "tool_name", "text",
					      "stdout", "stderr",   "logs", "error_code", "content" };

	for (size_t i = 0; i < N(fields); i++) {
		const json_t *v = json_object_get(part, fields[i]);
		struct od_strbuf inner = { 0 };

		if (json_is_object(v) && strcmp(fields[i], "source") == 0)
			v = source_text(v);
		if (json_is_object(v) && depth < MAX_DEPTH)
			add_inner(&inner, v, depth + 1);
		else if (depth < MAX_DEPTH)
			join(&inner, v, depth + 1);
		od_strbuf_append(out, "\n", out->len > 0 && inner.len > 0);
		od_strbuf_append(out, inner.text, inner.len);
		out->failed = out->failed || inner.failed;
		od_strbuf_fini(&inner);
	}
}

static void add_placeholder(struct od_strbuf *out, const json_t *part, const char *type)
{
	static const char *const names[] = { "filename", "title" };
	size_t i = 0, n = 0;

	while (i < N(placeholders) && strcmp(placeholders[i].type, type) != 0)
		i++;
	if (odm_first_time("part", type))
		od_log(OD_LOG_WARN,
		       "a message has a part of type \"%.40s\", which the model cannot read; it gets a note in its place",
		       type);
	if (i < N(placeholders))
		od_strbuf_append(out, placeholders[i].text, strlen(placeholders[i].text));
	else if (strcmp(type, "document") == 0)
		od_strbuf_append(out, file, sizeof(file) - 1);
	else
		od_strbuf_printf(out, "[something of type %s that this model cannot read]", type);
	while (n < N(names) && !json_is_string(json_object_get(part, names[n])))
		n++;
	if (n < N(names) && !out->failed) {
		out->len--; /* the bracket */
		od_strbuf_printf(out, ": %s]", json_string_value(json_object_get(part, names[n])));
	}
}

/* Returns whether a part has text of its own. A title alone names a file. */
static bool add_known(struct od_strbuf *out, const json_t *part, const char *type, unsigned depth)
{
	const size_t before = out->len;
	struct od_strbuf inner = { 0 };
	bool named;

	for (size_t i = 0; i < N(placeholders); i++)
		if (strcmp(placeholders[i].type, type) == 0)
			return false;
	add_inner(&inner, part, depth);
	named = inner.len == json_string_length(json_object_get(part, "title"));
	if (!named)
		od_strbuf_append(out, inner.text, inner.len);
	od_strbuf_fini(&inner);
	return out->len > before;
}

static const char *add_part(struct od_strbuf *out, const json_t *part, unsigned depth)
{
	const char *type = json_string_value(json_object_get(part, "type"));

	if (type == NULL)
		return "type";
	for (size_t i = 0; i < N(texts); i++) {
		const json_t *text = json_object_get(part, texts[i].field);

		if (strcmp(texts[i].type, type) != 0)
			continue;
		od_strbuf_append(out, json_string_value(text), json_string_length(text));
		return json_is_string(text) ? NULL : texts[i].field;
	}
	if (!add_known(out, part, type, depth))
		add_placeholder(out, part, type);
	return NULL;
}

const char *odm_part_text(struct od_strbuf *out, const json_t *part)
{
	const json_t *plain = json_is_object(part) ? json_object_get(part, "text") : part;

	if (json_object_get(part, "type") == NULL && json_is_string(plain)) {
		od_strbuf_append(out, json_string_value(plain), json_string_length(plain));
		return NULL;
	}
	return add_part(out, part, 0);
}

void odm_parts_join(struct od_strbuf *out, const json_t *content)
{
	join(out, content, 0);
}

void odm_part_thought(struct od_strbuf *out, const json_t *part)
{
	static const char *const fields[] = { "thinking", "reasoning", "text" };
	const json_t *text = NULL;

	for (size_t i = 0; i < N(fields) && text == NULL; i++)
		text = json_object_get(part, fields[i]);
	join(out, text, 0);
}
