/* dialog.h - what /v1/responses, /v1/messages and Ollama's API have in common: a request that becomes one of chat
 * completions, and an answer that is a list of blocks, each a thought, text or a call.
 *
 * Thread: odm_dialog_prepare on a request thread, the rest on the HTTP thread.
 * Owner: the endpoint's state, which begins with its dialog. */
#ifndef ODM_DIALOG_H
#define ODM_DIALOG_H

#include "main-node/chat/call_reader.h"
#include "main-node/serve/api/chat_turn.h"
#include "main-node/serve/api/client_fields.h"

enum odm_block_kind { ODM_BLOCK_THOUGHT, ODM_BLOCK_TEXT, ODM_BLOCK_CALL };

struct odm_block {
	enum odm_block_kind kind;
	size_t index; /* number in the answer: 0, 1, ... */
	const char *id, *name; /* a call has them */
	struct od_strbuf text; /* the text so far; a call's arguments */
	bool cut; /* it ends because the answer may not be longer, or because a call is malformed */
};

json_t *odm_block_text(const struct odm_block *b); /* a new string */

struct odm_dialog;

/* The functions that an API has of its own. Those that write events are called for streams only. */
struct odm_dialog_format {
	enum odm_api_kind api;
	/* Translates the request, whose text is x's body, into one of chat completions, which may have a plain prompt
	 * instead of messages (odm_turn_new_plain). *chat is NULL unless OD_OK; NULL with OD_OK: nothing is to be
	 * generated, and `end` answers at once, on the request thread. */
	int (*convert)(json_t **chat, const json_t *request, const struct odm_exchange *x, struct odm_api_error *e);
	void (*begin)(struct odm_dialog *d); /* NULL: nothing; so is block_begin */
	void (*block_begin)(struct odm_dialog *d, const struct odm_block *b);
	void (*block_text)(struct odm_dialog *d, const struct odm_block *b, const char *text, size_t len);
	void (*block_end)(struct odm_dialog *d, const struct odm_block *b); /* called for whole answers too */
	void (*end)(struct odm_dialog *d); /* writes the whole answer, or the last events */
	void (*fail)(struct odm_dialog *d, const struct odm_api_error *e);
	/* {field of the chat, field of the request that it is made from}; ends with NULL; NULL: no names differ */
	const char *const (*renamed)[2];
	bool whole_calls; /* in a stream, too, a call is told when it is complete; what is malformed is text */
	void (*keep_alive)(void *d); /* as in odm_reply_ops; arg is the dialog */
	const char *const *repeated; /* the request's fields that the answer has too; ends with NULL; NULL: none */
};

struct odm_dialog {
	struct odm_reply reply; /* first: odm_reply_on_news */
	const struct odm_dialog_format *format;
	struct odm_reply_ops ops;
	/* as it came, and as one of chat completions; both without fields that only the prompt needs */
	json_t *request, *chat;
	struct odm_generation g;
	struct odm_turn *turn;
	struct odm_turn_sink sink;
	const struct od_tokenizer *tokenizer;
	json_t *logprobs; /* cover all tokens so far; NULL: none */
	struct odm_block block; /* the open block if `open`; else only its index counts, which the next block gets */
	char call_id[ODM_MAX_NAME_BYTES + 1], call_name[ODM_MAX_NAME_BYTES + 1]; /* an open call has them */
	bool open, wrote;
};

/* These serve the endpoint's functions of the same names; the others are odm_reply_on_news and so on. d: new and zero;
 * it is the exchange's state. */
void odm_dialog_prepare(struct odm_dialog *d, const struct odm_dialog_format *format, struct odm_exchange *x);
void odm_dialog_start(struct odm_exchange *x);
void odm_dialog_fini(struct odm_dialog *d);

/* Both may be called when the answer is complete. */
enum odm_finish odm_dialog_finish(const struct odm_dialog *d);
bool odm_dialog_cut(const struct odm_dialog *d); /* true: the answer may not be longer, or the context is full */

#endif
