/* call_args.h - a tool call as the API has it, from what a model wrote.
 *
 * Spelling of arguments, so that a client which sends them back unchanged gives the model's own bytes back
 * (chat_messages.h): JSON that the model wrote stays byte for byte. Parameters of XML formats become {"key": value,
 * "key": value}; a value that is JSON stays as written. Where a template would write true as Python's True and the
 * model wrote true, there are two spaces before the value.
 *
 * Thread: any. Owner: the caller; odm_tool_call_fini frees. */
#ifndef ODM_CHAT_CALL_ARGS_H
#define ODM_CHAT_CALL_ARGS_H

#include "main-node/chat/call_reader.h"

struct odm_tool_call {
	char *name;
	char *arguments; /* the text of a JSON object */
	char *id; /* NULL: the format has none */
};

/* tools: the request's, in OpenAI's format, or NULL if they are not known. OD_ERR_FORMAT: no valid call (bad JSON, a
 * function that is not among tools), *out is empty then. */
OD_MUST_CHECK int odm_tool_call_build(struct odm_tool_call *out, const struct odm_call_format *format,
				      const struct odm_call_spans *spans, const char *text, const json_t *tools);
/* Builds a call as odm_tool_call_build does, from a name and the JSON text of the arguments. */
OD_MUST_CHECK int odm_tool_call_of_json(struct odm_tool_call *out, struct odm_slice name, struct odm_slice args,
					const json_t *tools);
void odm_tool_call_fini(struct odm_tool_call *c);

/* ---- Parts of the above, for calls that are not complete (call_stream.h) ---- */

/* Returns the function of this name among tools; NULL: none. */
const json_t *odm_find_tool(const json_t *tools, const char *name);
/* Sets name and id only; OD_ERR_FORMAT as above. */
OD_MUST_CHECK int odm_tool_call_named(struct odm_tool_call *out, const struct odm_call_spans *spans, const char *text);
/* Sets name and id from an object that is the whole call; the object's end may be missing. *args: its arguments so far,
 * len 0: none. If several members have one meaning, the first counts. */
OD_MUST_CHECK int odm_tool_call_of_members(struct odm_tool_call *out, struct odm_slice whole, struct odm_slice *args);

/* For parameter i of an XML format: the text of its value, which is complete; appends its key and the text before it;
 * appends its value. */
struct odm_slice odm_call_value(const struct odm_call_format *format, const struct odm_call_spans *p, size_t i,
				const char *text);
void odm_call_append_key(struct od_strbuf *out, const struct odm_call_spans *p, size_t i, const char *text);
void odm_call_append_value(struct od_strbuf *out, const struct odm_call_format *format, const struct odm_call_spans *p,
			   size_t i, const char *text, const json_t *function);
/* Returns whether the value is a string whatever text follows. */
bool odm_call_value_is_text(const struct odm_call_format *format, const struct odm_call_spans *p, size_t i,
			    const char *text, const json_t *function);
/* Returns whether an earlier parameter has the same key. */
bool odm_call_key_again(const struct odm_call_spans *p, size_t i, const char *text);

#endif
