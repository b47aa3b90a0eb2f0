/* chat_format.h - how a model writes thoughts, tool calls and the end of its turn. One table, in chat_format.c; a
 * checkpoint's chat template shows which rows apply, because templates write the calls and thoughts of earlier turns in
 * the model's format.
 *
 * Thread: any; a format is constant once chosen. Owner: the caller has the struct; it points to static data only. */
#ifndef ODM_CHAT_FORMAT_H
#define ODM_CHAT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/text/text_spans.h"

/* In the texts of a call format these bytes stand for the variable fields; all else is literal. */
#define ODM_WS "\1" /* white space, or none */
#define ODM_NAME "\2" /* the function's name: no spaces, quotes or brackets */
#define ODM_ID "\3" /* the call's id, likewise */
#define ODM_KEY "\4" /* a parameter's name, up to the literal behind it */
#define ODM_VALUE "\5" /* a parameter's value, likewise */
#define ODM_ARGS "\6" /* the arguments: a JSON object */
#define ODM_CALL "\7" /* the whole call: a JSON object with a name and arguments */

/* A parameter's value is read in one of these ways. If the tool has a JSON schema for it, the schema decides. */
enum odm_value_kind {
	ODM_VALUE_STRING, /* read as a string without a schema */
	ODM_VALUE_JSON, /* read as JSON without a schema, if it is JSON; strings have no quotes */
	ODM_VALUE_LINES, /* a string between two newlines; True, False and None as Python writes them */
	ODM_VALUE_GEMMA, /* all arguments in one value, Gemma's notation (gemma_args.h) */
};

/* A block of calls: open head (call param* end) (between call param* end)* close. */
struct odm_call_format {
	const char *open; /* begins a block in the answer's text */
	const char *head; /* stands once, behind open */
	const char *call; /* begins a call */
	const char *param; /* a parameter; NULL: none */
	const char *end; /* ends a call */
	/* stands before the next call; "": nothing does; NULL: a block is one call, without close */
	const char *between;
	const char *close; /* ends a block */
	enum odm_value_kind values;
	bool at_start; /* counts only where an answer begins, or behind a thought or call */
	bool bare; /* open is the call's own first byte */
	bool late_id; /* the call's id stands behind its arguments: it cannot be given before it is complete */
};

/* A template takes the arguments of earlier calls in one of these ways (chat_messages.h). */
enum odm_echo {
	ODM_ECHO_OBJECT, /* an object, written with tojson */
	ODM_ECHO_TEXT, /* the JSON text as a string */
	ODM_ECHO_VALUES, /* an object of which each value is the text that the model wrote */
	ODM_ECHO_GEMMA, /* a string in Gemma's notation, without the braces */
};

/* Roles of messages. */
enum odm_role { ODM_ROLE_SYSTEM, ODM_ROLE_DEVELOPER, ODM_ROLE_USER, ODM_ROLE_ASSISTANT, ODM_ROLE_TOOL };
#define ODM_ROLES 5

/* A template takes the content of a role in one of these ways. */
enum odm_content {
	ODM_CONTENT_TEXT, /* a string */
	ODM_CONTENT_BOTH, /* a string or a list of parts */
	ODM_CONTENT_PARTS, /* a list of parts */
	ODM_CONTENT_PART, /* a list of one part */
};

/* A message that has calls and no text gets one of these contents. */
enum odm_no_text {
	ODM_NO_TEXT_EMPTY, /* an empty text */
	ODM_NO_TEXT_GIVEN, /* null or an empty text, as it was given */
	ODM_NO_TEXT_NEVER, /* null */
};

/* A template may read an assistant's thought here, besides reasoning_content. */
enum odm_thought_field { ODM_THOUGHT_ONLY, ODM_THOUGHT_THINKING, ODM_THOUGHT_REASONING, ODM_THOUGHT_PARTS };

enum odm_ids {
	ODM_IDS_ANY,
	ODM_IDS_SHORT, /* nine letters and digits (Mistral's) */
	ODM_IDS_COUNTED, /* functions.NAME:INDEX, counted over the conversation (Kimi's) */
};

/* Orders of messages that a template does not take; chat_order.h says how each is changed. They are tried in this
 * order. */
enum odm_need {
	ODM_NEED_ONE_SYSTEM = 1 << 0,
	ODM_NEED_SYSTEM_FIRST = 1 << 1,
	ODM_NEED_ONE_USER = 1 << 2,
	ODM_NEED_ONE_ASSISTANT = 1 << 3,
	ODM_NEED_USER_FIRST = 1 << 4,
	ODM_NEED_RESULT_FOR_CALL = 1 << 5,
	ODM_NEED_ANSWER_TO_RESULT = 1 << 6,
	ODM_NEED_ONE_CALL = 1 << 7,
	ODM_NEED_CALL_ALONE = 1 << 8,
	ODM_NEED_SAID = 1 << 9,
	ODM_NEED_CALL_ONLY = 1 << 10,
	ODM_NEED_RESULT_AS_USER = 1 << 11,
	ODM_NEED_CALL_AS_TEXT = 1 << 12,
	ODM_NEED_NO_SYSTEM = 1 << 13,
};
#define ODM_NEEDS 14

#define ODM_MAX_ENDS 8
#define ODM_MAX_EOS_BYTES 64

struct odm_thought_tags {
	const char *open, *close;
	const char *label; /* text that may stand at a thought's start and is not part of it; NULL: none */
};

struct odm_chat_format {
	const char *name; /* shown in messages and tests */
	const struct odm_call_format *calls; /* NULL: no calls */
	size_t n_calls;
	const char *stray; /* a closing tag that means nothing behind a call; NULL: none */
	const struct odm_thought_tags *thoughts; /* NULL: none */
	const char *end[ODM_MAX_ENDS]; /* each ends the turn */
	size_t n_ends;
	char eos[ODM_MAX_EOS_BYTES]; /* ends the turn too; "": none */
	bool harmony; /* gpt-oss's channels: calls and thoughts are messages of their own */
	bool opens_thought; /* the generation prompt ends with an opened thought, by default */

	/* odm_chat_probe finds out how the template takes messages. */
	enum odm_echo echo;
	enum odm_content content[ODM_ROLES];
	enum odm_thought_field thought_field;
	enum odm_ids ids;
	enum odm_no_text no_text;
	bool takes_developer; /* the template knows the role developer */
	bool name_is_role; /* a message's name is written instead of its role (Kimi's) */
	unsigned needs; /* enum odm_need */
};

/* Finds out how answers are written. The fields about messages get the values of most templates, until odm_chat_probe
 * looks. template_text and eos (the tokenizer's eos_token; NULL: not known) need not outlive the call. Never fails: a
 * template that shows nothing gives a format in which all text is content. */
void odm_chat_format_choose(struct odm_chat_format *format, const char *template_text, const char *eos);

/* Calls back with each text that marks something in an answer: tags of thoughts, channels, and, if calls, of calls. It
 * may have ODM_WS and the like between. */
void odm_chat_format_marks(const struct odm_chat_format *format, bool calls, void (*mark)(void *arg, const char *text),
			   void *arg);
/* Calls back with each text that ends a turn. */
void odm_chat_format_ends(const struct odm_chat_format *format, void (*end)(void *arg, const char *text), void *arg);

/* Returns whether the end of a rendered prompt leaves a thought open, so that the answer begins in it. A tag in users'
 * text opens none. */
bool odm_chat_format_in_thought(const struct odm_chat_format *format, const char *prompt, size_t len,
				const struct od_text_spans *users);

#endif
