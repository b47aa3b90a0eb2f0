/* chat_build.h - messages in OpenAI's format, put together from what other APIs have: items and blocks of one turn
 * become one message. Also what the requests of these APIs have in common.
 *
 * Running out of memory is noticed at the end: odm_chat_build_finish then fails.
 * Thread: one at a time. Owner: the caller; strings are copied. Zero-initialised; odm_chat_build_fini. */
#ifndef ODM_CHAT_BUILD_H
#define ODM_CHAT_BUILD_H

#include "common/base/strbuf.h"
#include "main-node/serve/http/api_error.h"

enum odm_chat_turn { ODM_TURN_NONE, ODM_TURN_USER, ODM_TURN_ASSISTANT };

struct odm_chat_build {
	json_t *messages, *calls;
	enum odm_chat_turn turn; /* the open turn, which messages does not have yet */
	struct od_strbuf text, thought;
	size_t last_part; /* bytes of a user's text before its last part */
	bool failed;
};

void odm_chat_build_fini(struct odm_chat_build *b);

/* Adds a message of its own. Takes content. */
void odm_chat_build_add(struct odm_chat_build *b, const char *role, json_t *content);
/* The last part of the message that was just added begins behind so many bytes of its text (chat_messages.h,
 * ODM_LAST_PART). */
void odm_chat_build_last_part(struct odm_chat_build *b, size_t bytes);
/* The user says this, on a new line if something precedes it in the turn. */
void odm_chat_build_user(struct odm_chat_build *b, const char *text, size_t len);
void odm_chat_build_tool(struct odm_chat_build *b, const char *call_id, const char *text, size_t len);
/* The assistant thinks, says or calls this. Pieces are joined without a separator, as the model wrote them. arguments:
 * the text of a JSON object. */
void odm_chat_build_think(struct odm_chat_build *b, const char *text, size_t len);
void odm_chat_build_say(struct odm_chat_build *b, const char *text, size_t len);
void odm_chat_build_call(struct odm_chat_build *b, const char *id, const char *name, const char *arguments, size_t len);
/* Ends the turn: anything added later belongs to another message. */
void odm_chat_build_end_turn(struct odm_chat_build *b);
/* Adds the messages to the request that they belong to, and frees b. rc: the result of building them. *chat is the
 * request, which is taken, if all is OD_OK, else NULL. */
OD_MUST_CHECK int odm_chat_build_finish(struct odm_chat_build *b, int rc, json_t *request, json_t **chat,
					struct odm_api_error *e);

/* Appends the text of content to out: a string, or an array of parts, joined with line breaks; part_text.h defines the
 * text of a part. Missing or null: none. path: its name in errors. */
OD_MUST_CHECK int odm_parts_text(struct od_strbuf *out, const json_t *content, const char *path,
				 struct odm_api_error *e);
/* Gets the field `name` of object, a string that is not empty and has no NUL. within: path of the object. */
OD_MUST_CHECK int odm_need_string(const char **out, const json_t *object, const char *within, const char *name,
				  struct odm_api_error *e);
/* Makes a function that the model may call, in the format of chat completions, with the description and strictness of
 * tool; takes parameters (NULL ok). NULL: no memory. */
json_t *odm_chat_tool(const char *name, const json_t *tool, json_t *parameters);
/* Logs, once for each type, that tools of this type are left out: nothing here runs them. */
void odm_tool_left_out(const char *type);
/* Sets chat's tools to an array. `read` is called for each tool in `given` and appends to the array. */
OD_MUST_CHECK int odm_chat_read_tools(json_t *chat, const json_t *given,
				      int (*read)(json_t *tools, const json_t *tool, size_t i, struct odm_api_error *e),
				      struct odm_api_error *e);
/* Fails like odm_api_fail because the field has a value that is not supported. within: path of its object. */
int odm_fail_unsupported(const char *within, const char *field, const char *expected, const char *found,
			 struct odm_api_error *e);

struct odm_copied_setting {
	const char *name, *chat; /* its names in the request and in chat completions */
};
/* Copies these settings (which end with a NULL name), those that only /v1/completions has (seed, min_p, penalties,
 * ...), those about thinking, and chat_template_kwargs. */
OD_MUST_CHECK int odm_chat_copy_settings(json_t *chat, const json_t *request, const struct odm_copied_setting *settings,
					 struct odm_api_error *e);

#endif
