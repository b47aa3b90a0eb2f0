/* chat_turn.h - a turn of a chat: from a request's messages to jobs, and from what the model writes to content,
 * reasoning and tool calls. All chat APIs use it: each translates its request into OpenAI's chat format, and these
 * events into its own JSON.
 *
 * Thread: odm_turn_new and odm_turn_add on a request thread, then the HTTP thread. Owner: the endpoint's state. The
 * sink's texts are borrowed for the call; the sink itself must outlive the turn. */
#ifndef ODM_CHAT_TURN_H
#define ODM_CHAT_TURN_H

#include "main-node/serve/jobs/reply.h"

struct odm_turn;

struct odm_turn_call {
	size_t index; /* number in the choice: 0, 1, ... */
	const char *id, *name;
};

struct odm_turn_sink {
	void *arg;
	void (*content)(void *arg, size_t choice, const char *text, size_t len);
	void (*reasoning)(void *arg, size_t choice, const char *text, size_t len);
	/* A call begins, gets arguments and ends, as in odm_answer_sink; if the request is for a stream, while the
	 * model writes them. */
	void (*call)(void *arg, size_t choice, const struct odm_turn_call *call);
	void (*arguments)(void *arg, size_t choice, const char *text, size_t len);
	void (*call_end)(void *arg, size_t choice, bool complete);
};

/* Reads a request in the format of chat completions, except the fields of odm_generation_read; renders and tokenises
 * its prompt. *logprobs: for odm_turn_add. e names the field: "messages[2].content", "tools[0].function.name". 400 without
 * a chat template. */
OD_MUST_CHECK int odm_turn_new(struct odm_turn **out, struct odm_exchange *x, const struct odm_engine *engine,
			       const json_t *request, int *logprobs, struct odm_api_error *e);
/* Does the same with a request that has `prompt` instead of messages: a string that is the prompt as it is, without the
 * chat template, as in /v1/completions. All that the model writes is content. */
OD_MUST_CHECK int odm_turn_new_plain(struct odm_turn **out, const struct odm_engine *engine, const json_t *request,
				     int *logprobs, struct odm_api_error *e);
void odm_turn_free(struct odm_turn *t); /* NULL ok */
size_t odm_turn_prompt_tokens(const struct odm_turn *t);
const int32_t *odm_turn_prompt(const struct odm_turn *t); /* [odm_turn_prompt_tokens] */
const int32_t *odm_turn_ends(const struct odm_turn *t, size_t *n); /* [n] tokens that end an answer as EOS does */
/* Before odm_turn_add: tokenises the prompt with an answer's content behind it, a user's text, as one text, so that
 * words which cross the border are what they would be. *ids: malloc'd, NULL unless OD_OK. Refused where the prompt ends
 * within a thought, as content comes behind that. */
OD_MUST_CHECK int odm_turn_encode_with(struct odm_turn *t, const char *text, size_t len, int32_t **ids, size_t *n,
				       struct odm_api_error *e);

/* Adds the g->n choices to r->choices, once. logprobs: as in odm_request. Only here is a prompt refused that is longer
 * than the context, so that it can be counted. */
OD_MUST_CHECK int odm_turn_add(struct odm_turn *t, struct odm_reply *r, const struct odm_generation *g, int logprobs,
			       const struct odm_turn_sink *sink, struct odm_api_error *e);

/* Call it from odm_reply_ops.news: gives the choice's text to the sink. When ended[choice].done, all has been given. */
void odm_turn_news(struct odm_turn *t, struct odm_reply *r, size_t choice, const struct odm_news *news);

/* Returns whether the choice, which must be done, ended with a stop string in its content: *which of
 * odm_generation.stop. */
bool odm_turn_stopped(const struct odm_turn *t, size_t choice, size_t *which);

/* Returns whether the choice, which must be done, ended in order with at least one call. */
bool odm_turn_called(const struct odm_turn *t, const struct odm_reply *r, size_t choice);

#endif
