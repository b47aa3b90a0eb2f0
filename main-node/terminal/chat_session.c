#include "main-node/terminal/chat_session.h"

#include "common/base/log.h"
#include "main-node/terminal/chat_answer.h"
#include "main-node/terminal/chat_commands.h"
#include "main-node/terminal/interrupt.h"
#include "main-node/terminal/message_input.h"
#include "main-node/terminal/plain_text.h"

#include <string.h>

void odm_chat_session_fini(struct odm_chat_session *s)
{
	odm_conversation_fini(&s->conversation);
	json_decref(s->settings);
	json_decref(s->retry);
	json_decref(s->model);
	json_decref(s->unanswered);
}

/* Reads lines until they are a message or a command. */
static enum odm_line read_typed(struct odm_chat_session *s, struct od_strbuf *typed, struct od_err *err)
{
	enum odm_line got = odm_line_input_read(s->input, "> ", typed, err);

	while (got == ODM_LINE_READ && !odm_message_complete(typed->text, typed->len)) {
		od_strbuf_append(typed, "\n", 1);
		got = odm_line_input_read(s->input, "... ", typed, err);
		if (got == ODM_LINE_END)
			return ODM_LINE_READ; /* the next call finds the end again */
	}
	return got;
}

static bool is_blank(const struct od_strbuf *text)
{
	return text->len == 0 || strspn(text->text, " \t\n") == text->len;
}

static void remember(struct odm_chat_session *s, const char *typed)
{
	struct od_err err;

	if (odm_line_input_remember(s->input, typed, &err) == OD_OK || s->history_failed)
		return;
	s->history_failed = true; /* one warning is enough */
	od_log(OD_LOG_WARN, "%s; this session's lines are not kept", err.msg);
}

static int take_typed(struct odm_chat_session *s, const struct od_strbuf *typed, struct od_err *err)
{
	struct od_strbuf text = { 0 };

	odm_message_text(&text, typed->text, typed->len);
	if (text.failed) {
		od_strbuf_fini(&text);
		return od_fail(err, OD_ERR_NOMEM, "no memory for a message");
	}
	if (!is_blank(&text)) {
		remember(s, typed->text);
		if (text.text[0] == '/')
			odm_chat_command_line(s, text.text, text.len);
		else
			odm_chat_answer(s, text.text, text.len);
	}
	od_strbuf_fini(&text);
	return ferror(s->screen->out) ? od_fail(err, OD_ERR_IO, "a part of the output could not be written") : OD_OK;
}

static void greet(struct odm_chat_session *s)
{
	struct od_err err;
	char name[200];

	if (!s->screen->terminal)
		return;
	if (odm_chat_find_model(s, &err) == OD_OK)
		odm_screen_note(
			s->screen, "%s at %s; /help lists commands, Ctrl-D ends",
			odm_plain_line(name, sizeof(name), json_string_value(s->model), json_string_length(s->model)),
			odm_chat_client_url(s->client));
	else
		od_log(OD_LOG_ERROR, "%s", err.msg);
}

int odm_chat_session_run(struct odm_chat_session *s, struct od_err *err)
{
	struct od_strbuf typed = { 0 };
	int rc = OD_OK;

	greet(s);
	while (rc == OD_OK && !s->ended) {
		enum odm_line got;

		od_strbuf_fini(&typed);
		got = read_typed(s, &typed, err);
		(void)odm_interrupt_take(); /* one that came too late for an answer */
		switch (got) {
		case ODM_LINE_READ: rc = take_typed(s, &typed, err); break;
		case ODM_LINE_CLEARED: break;
		case ODM_LINE_END:
			odm_screen_note(s->screen, "%s", ""); /* the shell's prompt gets a line of its own */
			s->ended = true;
			break;
		case ODM_LINE_FAILED: rc = err->code; break;
		}
	}
	od_strbuf_fini(&typed);
	return rc;
}
