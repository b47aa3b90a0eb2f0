/* Harmony: an answer is a row of messages, each with a header that names its channel and, for a call, its recipient:
 *   <|channel|>analysis<|message|>TEXT<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>JSON<|call|>
 * The first header's <|start|>assistant stands in the prompt. A call's end may be missing: it is where generation
 * stops. */
#include "main-node/chat/answer_internal.h"

#include <string.h>

#define MAX_HEADER_BYTES 1024
#define N(a) (sizeof(a) / sizeof((a)[0]))

struct state_mark {
	const char *tag;
	enum answer_mark mark;
};

static const struct state_mark between[] = {
	{ "<|start|>", MARK_HEADER },	 { "<|channel|>", MARK_HEADER },   { "<|message|>", MARK_BODY },
	{ "<|end|>", MARK_MESSAGE_END }, { "<|call|>", MARK_MESSAGE_END }, { "<|return|>", MARK_TURN_END },
	{ " to=", MARK_HEADER }, /* the last mark counts only right behind a message */
};
static const struct state_mark in_header[] = {
	{ "<|message|>", MARK_BODY },	  { "<|start|>", MARK_HEADER },	   { "<|end|>", MARK_MESSAGE_END },
	{ "<|call|>", MARK_MESSAGE_END }, { "<|return|>", MARK_TURN_END },
};
static const struct state_mark in_message[] = {
	{ "<|end|>", MARK_MESSAGE_END }, { "<|call|>", MARK_MESSAGE_END }, { "<|return|>", MARK_TURN_END },
	{ "<|start|>", MARK_HEADER },	 { "<|channel|>", MARK_HEADER },
};

const char *answer_harmony_mark(const struct odm_answer *a, size_t i, enum answer_mark *mark)
{
	const struct state_mark *m = in_message;
	size_t n = N(in_message);

	if (a->state == BETWEEN_MESSAGES) {
		m = between;
		n = a->fresh ? N(between) : N(between) - 1;
	} else if (a->state == IN_HEADER) {
		m = in_header;
		n = N(in_header);
	}
	*mark = i < n ? m[i].mark : MARK_NONE;
	return i < n ? m[i].tag : NULL;
}

/* Returns the word behind `what` in the header; len 0: none. */
static struct odm_slice word_behind(const struct od_strbuf *header, const char *what)
{
	const char *at = header->text != NULL ? strstr(header->text, what) : NULL;

	if (at == NULL)
		return (struct odm_slice){ "", 0 };
	at += strlen(what);
	return (struct odm_slice){ at, strcspn(at, " \n\r\t<") };
}

static bool is(struct odm_slice s, const char *text)
{
	return s.len == strlen(text) && memcmp(s.text, text, s.len) == 0;
}

/* Returns the function that a message goes to; len 0: it goes to the user. */
static struct odm_slice recipient(const struct od_strbuf *header)
{
	static const char prefix[] = "functions.";
	const size_t n = sizeof(prefix) - 1;
	struct odm_slice to = word_behind(header, " to=");

	if (to.len >= n && memcmp(to.text, prefix, n) == 0) {
		to.text += n;
		to.len -= n;
	}
	return to;
}

static void begin_body(struct odm_answer *a)
{
	a->state = recipient(&a->header).len > 0 ? IN_CALL_MESSAGE : IN_MESSAGE;
	a->message_kind = is(word_behind(&a->header, "<|channel|>"), "analysis") ? ANSWER_THOUGHT : ANSWER_CONTENT;
	a->message_began = false;
}

/* A text that turns out to be no message goes to the content as it is. */
static void put_raw(struct odm_answer *a)
{
	answer_put(a, ANSWER_CONTENT, od_strbuf_text(&a->header), a->header.len);
	answer_put(a, ANSWER_CONTENT, od_strbuf_text(&a->body), a->body.len);
}

/* OD_ERR_FORMAT: the message is no call, and none was begun. */
static int take_call(struct odm_answer *a)
{
	const struct odm_slice body = { od_strbuf_text(&a->body), a->body.len };
	struct odm_tool_call call;
	int rc = odm_tool_call_of_json(&call, recipient(&a->header), body, a->tools);

	if (a->stream.begun && rc != OD_ERR_NOMEM) {
		answer_early_end(a, rc == OD_OK ? &call : NULL);
		rc = OD_OK;
	} else if (rc == OD_OK) {
		answer_call(a, &call);
	}
	a->stream = (struct odm_call_stream){ 0 };
	return rc;
}

/* tag: the tag that ended the message, "" at the end of the text. */
static void end_message(struct odm_answer *a, const char *tag, size_t len)
{
	int rc = OD_OK;

	if (a->state == IN_CALL_MESSAGE)
		rc = take_call(a);
	else if (a->state == IN_HEADER)
		rc = OD_ERR_FORMAT;
	if (rc == OD_ERR_FORMAT) {
		put_raw(a);
		answer_put(a, ANSWER_CONTENT, tag, len);
	}
	a->failed = a->failed || rc == OD_ERR_NOMEM || a->header.failed || a->body.failed;
	od_strbuf_fini(&a->header);
	od_strbuf_fini(&a->body);
	a->state = BETWEEN_MESSAGES;
	a->fresh = true;
}

void answer_harmony_act(struct odm_answer *a, enum answer_mark mark, const char *text, size_t len)
{
	if (mark == MARK_BODY) {
		if (a->state == IN_HEADER)
			od_strbuf_append(&a->header, text, len);
		begin_body(a);
	} else if (mark == MARK_HEADER) {
		end_message(a, "", 0); /* the last message lacks its end */
		a->state = IN_HEADER;
		od_strbuf_append(&a->header, text, len);
	} else if (mark == MARK_MESSAGE_END) {
		end_message(a, text, len);
	} else {
		end_message(a, text, len);
		answer_over(a);
	}
}

static void put_message(struct odm_answer *a, char c)
{
	const bool message = a->state == IN_MESSAGE;

	if (message && !a->message_began && a->any[a->message_kind])
		answer_put(a, a->message_kind, "\n", 1); /* separates messages of one kind */
	a->message_began = true;
	a->fresh = false;
	answer_put(a, message ? a->message_kind : ANSWER_CONTENT, &c, 1);
}

static void put_call_byte(struct odm_answer *a, char c)
{
	const struct odm_slice name = recipient(&a->header);
	struct odm_tool_call call;
	bool began;

	od_strbuf_append(&a->body, &c, 1);
	if (!a->early_calls || a->body.failed)
		return;
	began = odm_call_stream_json(&a->stream, name, (struct odm_slice){ a->body.text, a->body.len }, a->tools, &call,
				     &a->args);
	answer_early(a, began, &call);
}

void answer_harmony_text(struct odm_answer *a, char c)
{
	if (a->state == IN_HEADER)
		od_strbuf_append(&a->header, &c, 1);
	else if (a->state == IN_CALL_MESSAGE)
		put_call_byte(a, c);
	else
		put_message(a, c);
	if ((a->state == IN_HEADER && a->header.len > MAX_HEADER_BYTES) || a->body.len > a->max_call_bytes) {
		if (a->stream.begun)
			answer_early_end(a, NULL);
		else
			put_raw(a);
		a->stream = (struct odm_call_stream){ 0 };
		od_strbuf_fini(&a->header);
		od_strbuf_fini(&a->body);
		a->state = BETWEEN_MESSAGES;
		a->fresh = false;
	}
}

void answer_harmony_finish(struct odm_answer *a)
{
	end_message(a, "", 0);
}
