#include "main-node/chat/answer.h"

#include "main-node/chat/answer_internal.h"

#include <stdlib.h>
#include <string.h>

static void feed(struct odm_answer *a, char c);

/* ---- Output ---- */

static void give(struct odm_answer *a, const char *text, size_t len)
{
	if (len == 0)
		return;
	if (a->out_kind == ANSWER_CONTENT)
		a->sink->content(a->sink->arg, text, len);
	else
		a->sink->reasoning(a->sink->arg, text, len);
}

/* Returns how many bytes at the end of content [len] may be the tail, or its beginning. */
static size_t maybe_tail(const struct odm_answer *a, const char *text, size_t len)
{
	size_t n = a->out_kind == ANSWER_CONTENT ? strlen(a->tail) : 0;

	while (n > 0 && (n > len || memcmp(text + len - n, a->tail, n) != 0))
		n--;
	return n;
}

/* Gives content [len] less what stop strings hold back; all: nothing is held back. */
static void give_content(struct odm_answer *a, const char *text, size_t len, bool all)
{
	int rc = od_stopper_push(a->stopper, text, len, &text, &len, &a->stopped);

	if (rc == OD_OK)
		give(a, text, len);
	if (rc == OD_OK && all && !a->stopped) {
		rc = od_stopper_flush(a->stopper, &text, &len);
		if (rc == OD_OK)
			give(a, text, len);
	}
	a->failed = a->failed || rc != OD_OK;
}

/* all: gives everything, even an incomplete character and bytes that may be the tail or a stop string. */
static void flush(struct odm_answer *a, bool all)
{
	size_t n = a->out.len, tail;

	a->failed = a->failed || a->out.failed;
	if (a->failed || a->stopped)
		return;
	if (!all)
		n = odm_utf8_whole(a->out.text, n) - maybe_tail(a, a->out.text, odm_utf8_whole(a->out.text, n));
	tail = a->out.len - n;
	if (a->stopper != NULL && a->out_kind == ANSWER_CONTENT)
		give_content(a, n > 0 ? a->out.text : "", n, all);
	else if (n > 0)
		give(a, a->out.text, n);
	if (n > 0)
		memmove(a->out.text, a->out.text + n, tail);
	a->out.len = tail;
}

static void turn_to(struct odm_answer *a, enum answer_kind kind)
{
	if (a->out_kind == kind)
		return;
	flush(a, true);
	a->out_kind = kind;
	a->n_breaks = 0;
}

static void put_breaks(struct odm_answer *a)
{
	for (; a->n_breaks > 0; a->n_breaks--)
		od_strbuf_append(&a->out, "\n", 1);
}

static bool trims(const struct odm_answer *a)
{
	return a->format->thoughts != NULL || a->format->calls != NULL;
}

/* The held line breaks belong to the text: nothing but text can follow. */
static bool stays(const struct odm_answer *a, enum answer_kind kind)
{
	return !trims(a) || (kind == ANSWER_CONTENT && !a->fresh && !a->calls && !a->format->harmony);
}

void answer_put(struct odm_answer *a, enum answer_kind kind, const char *text, size_t len)
{
	turn_to(a, kind);
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '\n' && !stays(a, kind)) {
			/* Line breaks before all content belong to the format if a thought can come, or a call came,
			 * before them. */
			a->n_breaks += a->any[kind] || (a->format->thoughts == NULL && !a->any_call);
			continue;
		}
		put_breaks(a);
		od_strbuf_append(&a->out, text + i, 1);
		a->any[kind] = true;
	}
}

static void begin_call(struct odm_answer *a, const struct odm_tool_call *call)
{
	a->n_breaks = 0;
	a->any_call = true;
	flush(a, true);
	if (!a->failed && !a->stopped)
		a->sink->call(a->sink->arg, call->name, call->id);
}

static void flush_arguments(struct odm_answer *a, bool all)
{
	const size_t n = all ? a->args.len : odm_json_whole(a->args.text, a->args.len);

	a->failed = a->failed || a->args.failed;
	if (n == 0 || a->failed)
		return;
	if (!a->stopped)
		a->sink->arguments(a->sink->arg, a->args.text, n);
	memmove(a->args.text, a->args.text + n, a->args.len - n);
	a->args.len -= n;
}

static void end_call(struct odm_answer *a, bool complete)
{
	flush_arguments(a, true);
	if (!a->failed && !a->stopped)
		a->sink->call_end(a->sink->arg, complete);
}

void answer_call(struct odm_answer *a, struct odm_tool_call *call)
{
	begin_call(a, call);
	od_strbuf_append(&a->args, call->arguments, strlen(call->arguments));
	end_call(a, true);
	odm_tool_call_fini(call);
}

void answer_early(struct odm_answer *a, bool began, struct odm_tool_call *call)
{
	if (!began)
		return;
	begin_call(a, call);
	odm_tool_call_fini(call);
}

void answer_early_end(struct odm_answer *a, struct odm_tool_call *whole)
{
	if (whole != NULL)
		od_strbuf_append(&a->args, whole->arguments + a->stream.sent,
				 strlen(whole->arguments) - a->stream.sent);
	end_call(a, whole != NULL);
	a->stream = (struct odm_call_stream){ 0 };
	if (whole != NULL)
		odm_tool_call_fini(whole);
}

void answer_over(struct odm_answer *a)
{
	a->state = IS_OVER;
}

/* ---- Calls in a thought wait for what follows ---- */

static void wait_call(struct odm_answer *a, struct odm_tool_call *call)
{
	struct odm_tool_call *grown = realloc(a->waiting, (a->n_waiting + 1) * sizeof(*grown));

	if (grown == NULL) {
		a->failed = true;
		odm_tool_call_fini(call);
		return;
	}
	a->waiting = grown;
	a->waiting[a->n_waiting++] = *call;
}

static void clear_waiting(struct odm_answer *a)
{
	for (size_t i = 0; i < a->n_waiting; i++)
		odm_tool_call_fini(&a->waiting[i]);
	a->n_waiting = 0;
	a->failed = a->failed || a->waiting_text.failed;
	od_strbuf_fini(&a->waiting_text);
}

/* The held calls were only thought about: they belong to the thought. */
static void waiting_are_thought(struct odm_answer *a)
{
	if (a->n_waiting > 0)
		answer_put(a, ANSWER_THOUGHT, a->waiting_text.text, a->waiting_text.len);
	clear_waiting(a);
}

/* The held calls are calls: the model did not close its thought. */
static void waiting_are_calls(struct odm_answer *a)
{
	for (size_t i = 0; i < a->n_waiting; i++)
		answer_call(a, &a->waiting[i]);
	clear_waiting(a);
}

static void put_text(struct odm_answer *a, char c)
{
	const bool space = c == ' ' || c == '\n' || c == '\r' || c == '\t';

	if (a->n_waiting > 0 && space) {
		od_strbuf_append(&a->waiting_text, &c, 1);
		return;
	}
	waiting_are_thought(a);
	a->fresh = a->fresh && space;
	answer_put(a, a->state == IN_THOUGHT ? ANSWER_THOUGHT : ANSWER_CONTENT, &c, 1);
}

/* ---- Blocks of calls ---- */

/* Returns the next format, from `from` on, that begins with open. */
static const struct odm_call_format *format_of(const struct odm_answer *a, const char *open, size_t from)
{
	for (size_t i = from; i < a->format->n_calls; i++)
		if (strcmp(a->format->calls[i].open, open) == 0)
			return &a->format->calls[i];
	return NULL;
}

/* Ends the block: its text up to `end` is no call, the rest may be anything. */
static void give_up_block(struct odm_answer *a, size_t end)
{
	const size_t begin = a->reader.call_begin;
	size_t len;
	char *text = od_strbuf_take(&a->block, &len);

	if (a->closed) { /* the tags that were put behind the text do not count */
		len = a->n_written;
		end = end < len ? end : len;
		a->closed = false;
	}
	a->state = a->block_in;
	a->failed = a->failed || text == NULL;
	if (a->failed) {
		free(text);
		return;
	}
	waiting_are_thought(a);
	a->fresh = a->stream.begun; /* the text stands behind a call */
	if (a->stream.begun)
		answer_early_end(a, NULL);
	else
		answer_put(a, a->state == IN_THOUGHT ? ANSWER_THOUGHT : ANSWER_CONTENT, text + begin, end - begin);
	for (size_t i = end; i < len; i++)
		feed(a, text[i]);
	free(text);
}

/* Gives a complete call. False: it is not valid, and none was begun. */
static bool take_call(struct odm_answer *a)
{
	const struct odm_call_reader *r = &a->reader;
	struct odm_tool_call call;
	const int rc = odm_tool_call_build(&call, r->format, &r->spans, a->block.text, a->tools);

	if (rc == OD_ERR_FORMAT && !a->stream.begun)
		return false;
	if (rc == OD_ERR_NOMEM) {
		a->failed = true;
	} else if (a->stream.begun) {
		answer_early_end(a, rc == OD_OK ? &call : NULL);
	} else if (a->block_in == IN_THOUGHT) {
		wait_call(a, &call);
		od_strbuf_append(&a->waiting_text, a->block.text + r->call_begin, r->pos - r->call_begin);
	} else {
		answer_call(a, &call);
	}
	a->stream = (struct odm_call_stream){ 0 };
	return true;
}

/* Gives the certain beginning of a call that is not complete. */
static void look_early(struct odm_answer *a)
{
	struct odm_tool_call call;

	if (a->early_calls && a->block_in != IN_THOUGHT)
		answer_early(a, odm_call_stream_look(&a->stream, &a->reader, a->block.text, a->tools, &call, &a->args),
			     &call);
}

static void end_block(struct odm_answer *a)
{
	if (a->block_in == IN_THOUGHT)
		od_strbuf_append(&a->waiting_text, a->block.text + a->reader.call_begin,
				 a->reader.pos - a->reader.call_begin);
	od_strbuf_fini(&a->block);
	a->state = a->block_in;
	a->fresh = true;
}

/* Tries the next format with the same opening tag, as long as no call of the block has been given. False: none is
 * left. */
static bool try_next_format(struct odm_answer *a)
{
	const struct odm_call_format *now = a->reader.format, *next = NULL;

	if (a->reader.pos > a->furthest)
		a->furthest = a->reader.pos;
	if (a->reader.call_begin == 0 && !a->stream.begun)
		next = format_of(a, now->open, (size_t)(now - a->format->calls) + 1);
	if (next == NULL)
		return false;
	a->stream = (struct odm_call_stream){ 0 };
	odm_call_reader_init(&a->reader, next);
	return true;
}

static void read_block(struct odm_answer *a)
{
	while (a->state == IN_CALL && !a->failed) {
		switch (odm_call_read(&a->reader, a->block.text, a->block.len)) {
		case ODM_READ_MORE:
			look_early(a);
			if (a->block.len > a->max_call_bytes)
				give_up_block(a, a->block.len);
			return;
		case ODM_READ_CALL:
			/* A text that is no call in this format is a call in no other. */
			if (!take_call(a))
				give_up_block(a, a->reader.pos);
			break;
		case ODM_READ_DONE: end_block(a); return;
		case ODM_READ_BAD:
			if (!try_next_format(a))
				give_up_block(a, a->furthest);
			break;
		}
	}
}

static void begin_block(struct odm_answer *a, const char *open, size_t len)
{
	a->block_in = a->state;
	a->state = IN_CALL;
	a->furthest = 0;
	a->stream = (struct odm_call_stream){ 0 };
	od_strbuf_append(&a->block, open, len);
	a->failed = a->failed || a->block.failed;
	if (a->failed)
		return;
	odm_call_reader_init(&a->reader, format_of(a, a->block.text, 0));
	read_block(a);
}

/* ---- Tags ---- */

/* Lists the tags that count in this state; i = 0, 1, ...; *mark is MARK_NONE if a tag does not count now. NULL: no
 * more. */
static const char *tag_mark(const struct odm_answer *a, size_t i, enum answer_mark *mark)
{
	const struct odm_chat_format *f = a->format;
	const struct odm_thought_tags *t = f->thoughts;
	const bool thought = a->state == IN_THOUGHT, start = a->fresh && !a->any[ANSWER_THOUGHT];

	*mark = MARK_NONE;
	if (i < f->n_ends || i == f->n_ends) {
		*mark = i < f->n_ends || f->eos[0] != '\0' ? MARK_TURN_END : MARK_NONE;
		return i < f->n_ends ? f->end[i] : f->eos;
	}
	i -= f->n_ends + 1;
	if (i < f->n_calls) {
		if (a->calls && (a->fresh || !f->calls[i].at_start))
			*mark = MARK_CALL;
		return f->calls[i].open;
	}
	i -= f->n_calls;
	if (i == 0) {
		*mark = f->stray != NULL && a->fresh && a->any_call ? MARK_LABEL : MARK_NONE;
		return f->stray != NULL ? f->stray : "";
	}
	i--;
	if (t == NULL || i > 2)
		return NULL;
	if (i == 0) {
		*mark = !thought && a->fresh		      ? MARK_OPEN :
			thought && start && a->prompt_thought ? MARK_LABEL :
								MARK_NONE;
		return t->open;
	}
	if (i == 1) {
		*mark = thought ? MARK_CLOSE : MARK_NONE;
		return t->close;
	}
	*mark = thought && a->fresh && t->label != NULL ? MARK_LABEL : MARK_NONE;
	return t->label != NULL ? t->label : "";
}

static void open_thought(struct odm_answer *a)
{
	a->state = IN_THOUGHT;
	a->prompt_thought = false;
	a->fresh = true;
	turn_to(a, ANSWER_THOUGHT);
	if (a->any[ANSWER_THOUGHT]) /* it is a second thought */
		a->n_breaks = 1;
}

static void act(struct odm_answer *a, enum answer_mark mark, const char *text, size_t len)
{
	switch (mark) {
	case MARK_OPEN: open_thought(a); break;
	case MARK_CLOSE:
		waiting_are_thought(a);
		a->state = IN_CONTENT;
		a->fresh = true;
		turn_to(a, ANSWER_CONTENT);
		break;
	case MARK_LABEL: break;
	case MARK_CALL: begin_block(a, text, len); break;
	case MARK_TURN_END: answer_over(a); break;
	case MARK_NONE:
	case MARK_HEADER:
	case MARK_BODY:
	case MARK_MESSAGE_END: break;
	}
}

/* Returns whether the held text is a tag (its mark and length), or may become one (*partial). */
static enum answer_mark look(const struct odm_answer *a, size_t *len, bool *partial)
{
	enum answer_mark mark;
	const char *tag;

	*partial = false;
	for (size_t i = 0;
	     (tag = a->format->harmony ? answer_harmony_mark(a, i, &mark) : tag_mark(a, i, &mark)) != NULL; i++) {
		const size_t n = strlen(tag);

		if (mark == MARK_NONE || memcmp(tag, a->held, n < a->n_held ? n : a->n_held) != 0)
			continue;
		*len = n;
		if (n <= a->n_held)
			return mark;
		*partial = true;
	}
	return MARK_NONE;
}

/* Takes a byte of text. Bytes are held as long as a tag can begin with them. */
static void feed(struct odm_answer *a, char c)
{
	if (odm_answer_over(a) || a->failed)
		return;
	if (a->state == IN_CALL) {
		od_strbuf_append(&a->block, &c, 1);
		a->failed = a->block.failed;
		read_block(a);
		return;
	}
	a->held[a->n_held++] = c;
	while (a->n_held > 0 && a->state != IS_OVER) {
		char first[MAX_MARK_BYTES];
		bool partial;
		size_t n;
		const enum answer_mark mark = look(a, &n, &partial);

		if (mark == MARK_NONE && partial)
			return;
		if (mark == MARK_NONE)
			n = 1;
		memcpy(first, a->held, n);
		a->n_held -= n;
		memmove(a->held, a->held + n, a->n_held);
		if (mark != MARK_NONE && a->format->harmony)
			answer_harmony_act(a, mark, first, n);
		else if (mark != MARK_NONE)
			act(a, mark, first, n);
		else if (a->format->harmony)
			answer_harmony_text(a, first[0]);
		else
			put_text(a, first[0]);
	}
}

/* ---- The whole ---- */

int odm_answer_new(struct odm_answer **out, const struct odm_answer_opts *opts, const struct odm_answer_sink *sink,
		   struct od_err *err)
{
	struct odm_answer *a = calloc(1, sizeof(*a));
	int rc = OD_OK;

	*out = a;
	if (a == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an answer");
	a->format = opts->format;
	a->tools = opts->tools;
	a->sink = sink;
	a->max_call_bytes = opts->max_call_bytes > 0 ? opts->max_call_bytes : ODM_MAX_CALL_BYTES;
	a->calls = opts->tools == NULL || json_array_size(opts->tools) > 0;
	a->early_calls = opts->early_calls;
	a->lead = opts->lead != NULL ? opts->lead : "";
	a->tail = opts->tail != NULL ? opts->tail : "";
	a->fresh = true;
	a->state = a->format->harmony ? BETWEEN_MESSAGES : IN_CONTENT;
	if (opts->in_thought && a->format->thoughts != NULL) {
		a->state = IN_THOUGHT;
		a->out_kind = ANSWER_THOUGHT;
		a->prompt_thought = true;
	}
	if (opts->n_stop > 0)
		rc = od_stopper_new(&a->stopper, opts->stop, opts->n_stop, err);
	if (rc != OD_OK) {
		odm_answer_free(a);
		*out = NULL;
	}
	return rc;
}

void odm_answer_free(struct odm_answer *a)
{
	if (a == NULL)
		return;
	clear_waiting(a);
	free(a->waiting);
	od_strbuf_fini(&a->out);
	od_strbuf_fini(&a->block);
	od_strbuf_fini(&a->args);
	od_strbuf_fini(&a->header);
	od_strbuf_fini(&a->body);
	od_stopper_free(a->stopper);
	free(a);
}

int odm_answer_push(struct odm_answer *a, const char *text, size_t len)
{
	size_t i = 0;

	for (; i < len && *a->lead != '\0' && text[i] == *a->lead; i++)
		a->lead++;
	if (i < len)
		a->lead = "";
	for (; i < len; i++)
		feed(a, text[i]);
	flush(a, false);
	flush_arguments(a, false);
	return a->failed ? OD_ERR_NOMEM : OD_OK;
}

/* Some models end a turn behind a call without its closing tag. */
static void finish_block(struct odm_answer *a)
{
	a->n_written = a->block.len;
	a->closed = odm_call_close(&a->reader, &a->block);
	a->failed = a->failed || a->block.failed;
	if (a->closed)
		read_block(a);
	if (a->state == IN_CALL)
		give_up_block(a, a->block.len);
}

int odm_answer_finish(struct odm_answer *a)
{
	if (a->state == IN_CALL)
		finish_block(a);
	for (size_t i = 0; i < a->n_held && a->state != IS_OVER; i++) {
		if (a->format->harmony)
			answer_harmony_text(a, a->held[i]);
		else
			put_text(a, a->held[i]);
	}
	a->n_held = 0;
	if (a->format->harmony)
		answer_harmony_finish(a);
	waiting_are_calls(a);
	if (a->out_kind == ANSWER_CONTENT && !a->fresh)
		put_breaks(a);
	if (maybe_tail(a, a->out.text, a->out.len) == strlen(a->tail))
		a->out.len -= strlen(a->tail);
	flush(a, true);
	answer_over(a);
	return a->failed ? OD_ERR_NOMEM : OD_OK;
}

bool odm_answer_over(const struct odm_answer *a)
{
	return a->state == IS_OVER || a->stopped;
}

bool odm_answer_stopped(const struct odm_answer *a, size_t *which)
{
	*which = a->stopped ? od_stopper_found(a->stopper) : 0;
	return a->stopped;
}
