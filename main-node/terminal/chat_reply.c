#include "main-node/terminal/chat_reply.h"

#include "common/base/json.h"
#include "main-node/terminal/plain_text.h"

#include <stdio.h>
#include <string.h>

/* "" for what has no message. */
static const char *error_line(const json_t *error, char *buf, size_t size)
{
	const json_t *message = json_is_object(error) ? json_object_get(error, "message") : error;

	buf[0] = '\0';
	if (json_is_string(message))
		odm_plain_line(buf, size, json_string_value(message), json_string_length(message));
	return buf;
}

bool odm_chat_error_text(const char *json, size_t len, char *buf, size_t size)
{
	json_t *o = json_loadb(json, len, 0, NULL);

	error_line(json_object_get(o, "error"), buf, size);
	json_decref(o);
	return buf[0] != '\0';
}

static void read_usage(struct odm_chat_usage *u, const json_t *o)
{
	const json_t *prompt = json_object_get(o, "prompt_tokens"),
		     *completion = json_object_get(o, "completion_tokens");
	const json_t *cached = json_object_get(json_object_get(o, "prompt_tokens_details"), "cached_tokens");

	if (!json_is_integer(prompt) || !json_is_integer(completion) || json_integer_value(prompt) < 0 ||
	    json_integer_value(completion) < 0)
		return; /* only statistics */
	u->known = true;
	u->prompt_tokens = (uint64_t)json_integer_value(prompt);
	u->completion_tokens = (uint64_t)json_integer_value(completion);
	u->cached_tokens = json_integer_value(cached) > 0 ? (uint64_t)json_integer_value(cached) : 0;
}

static void give_text(const struct odm_chat_reply *r, const json_t *delta, const char *field, bool thought)
{
	const json_t *text = json_object_get(delta, field);

	if (json_string_length(text) > 0)
		r->text(r->arg, thought, json_string_value(text), json_string_length(text));
}

static void read_choice(struct odm_chat_reply *r, const json_t *choice)
{
	const json_t *delta = json_object_get(choice, "delta");
	const char *finish = json_string_value(json_object_get(choice, "finish_reason"));

	give_text(r, delta, "reasoning_content", true);
	if (json_object_get(delta, "reasoning_content") == NULL)
		give_text(r, delta, "reasoning", true); /* newer vLLM's name; some servers send both */
	give_text(r, delta, "content", false);
	if (finish != NULL)
		odm_plain_line(r->finish, sizeof(r->finish), finish, strlen(finish));
}

void odm_chat_reply_event(struct odm_chat_reply *r, const char *data, size_t len)
{
	char text[512];
	json_t *o, *choices, *error;

	if (r->err.code != OD_OK || r->done)
		return;
	if (strcmp(data, "[DONE]") == 0) {
		r->done = true;
		return;
	}
	if (od_json_parse(data, len, "the stream", &o, &r->err) != OD_OK) {
		odm_plain_line(text, sizeof(text), r->err.msg, strlen(r->err.msg));
		od_fail(&r->err, OD_ERR_PROTOCOL, "an event is not what a chat server sends: %s", text);
		return;
	}
	error = json_object_get(o, "error");
	choices = json_object_get(o, "choices");
	read_usage(&r->usage, json_object_get(o, "usage"));
	if (error != NULL && !json_is_null(error))
		od_fail(&r->err, OD_ERR_IO, "the server stopped: %s",
			error_line(error, text, sizeof(text))[0] != '\0' ? text : "it does not say why");
	else if (!json_is_array(choices))
		od_fail(&r->err, OD_ERR_PROTOCOL,
			"an event is not what a chat server sends: expected \"choices\", an array");
	else
		read_choice(r, json_array_get(choices, 0));
	json_decref(o);
}
