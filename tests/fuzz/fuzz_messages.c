/* Any JSON as a request's messages, for templates of every kind: an error names the field, and what is taken renders,
 * with each object's own text where it has one. First byte: the template. */
#include <stdlib.h>
#include <string.h>

#include "common/text/jinja/jinja.h"
#include "main-node/chat/chat_messages.h"
#include "main-node/chat/json_text.h"
#include "tests/fuzz/fuzz.h"

static const char *const templates[] = {
	"",
	"<tool_call> <function=",
	"<|tool_call> <tool_call|>",
	"<|channel|><|message|>",
	"[TOOL_CALLS]",
	"<|tool_calls_section_begin|>",
};

/* A template may take messages in any way. */
static void choose_format(struct odm_chat_format *format, unsigned byte)
{
	const unsigned more = (byte * 2654435761u) >> 16;

	odm_chat_format_choose(format, templates[byte % (sizeof(templates) / sizeof(templates[0]))], "</s>");
	if (format->echo == ODM_ECHO_OBJECT && (byte & 128) != 0)
		format->echo = ODM_ECHO_TEXT;
	for (unsigned i = 0; i < ODM_ROLES; i++)
		format->content[i] = (more + i) % 4;
	format->no_text = more % 3;
	format->thought_field = (more >> 2) % 4;
	format->ids = format->ids == ODM_IDS_ANY && (more & 1) != 0 ? ODM_IDS_SHORT : format->ids;
	format->takes_developer = (more & 2) != 0;
	format->name_is_role = (more & 4) != 0;
	format->needs = more & ((1u << ODM_NEEDS) - 1);
}

static const char *source(void *context, const json_t *object)
{
	const char *text = odm_context_source(context, object);
	json_t *same;

	if (text == NULL)
		return NULL;
	same = odm_json_value((struct odm_slice){ text, strlen(text) });
	check(json_equal(same, object));
	json_decref(same);
	return text;
}

static void render(struct odm_context *c)
{
	static const char text[] =
		"{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.name }}{% for c in m.tool_calls %}"
		"{{ c.function.name }}{{ c.function.arguments|tojson }}{{ c|tojson }}{% endfor %}{{ m|tojson }}"
		"{% endfor %}";
	const struct od_jinja_opts opts = { .limits = { .operations = 1000000 }, .source = source, .arg = c };
	json_t *vars = json_pack("{s:O}", "messages", c->messages);
	struct od_jinja *t;
	struct od_err err;
	char *out = NULL;
	size_t len;

	check(od_jinja_parse(&t, text, strlen(text), "t", &err) == OD_OK);
	/* tool_calls may be something that cannot be iterated */
	(void)!od_jinja_render(t, vars, &opts, &out, &len, &err);
	free(out);
	od_jinja_free(t);
	json_decref(vars);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char field[] = "messages";
	struct odm_chat_format format;
	struct odm_context context;
	struct od_err err;
	json_t *messages;

	messages = size > 0 ?
			   json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL) :
			   NULL;
	if (messages == NULL)
		return 0;
	choose_format(&format, data[0]);
	if (odm_context_build(&context, messages, &format, &err) == OD_OK)
		render(&context);
	else
		check(context.messages == NULL && strncmp(err.msg, field, strlen(field)) == 0);
	odm_context_fini(&context);
	json_decref(messages);
	return 0;
}
