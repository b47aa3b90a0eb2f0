/* Any bytes as a chat's stream: how they are cut changes nothing, and nothing that steers a terminal is shown. First
 * byte: bytes a piece. */
#include <string.h>

#include "main-node/terminal/chat_reply.h"
#include "main-node/terminal/event_reader.h"
#include "main-node/terminal/plain_text.h"
#include "tests/fuzz/fuzz.h"

struct stream {
	struct odm_event_reader events;
	struct odm_chat_reply reply;
	struct od_strbuf told; /* all that came of it, in order */
};

static void on_text(void *arg, bool thought, const char *text, size_t len)
{
	od_strbuf_printf(arg, "%d %zu:", thought, len);
	od_strbuf_append(arg, text, len);
}

static void on_event(void *arg, const char *data, size_t len)
{
	struct stream *s = arg;

	check(data[len] == '\0');
	odm_chat_reply_event(&s->reply, data, len);
}

static void on_comment(void *arg, const char *text, size_t len)
{
	struct stream *s = arg;

	od_strbuf_printf(&s->told, "comment %zu:", len);
	od_strbuf_append(&s->told, text, len);
}

static int read_stream(struct stream *s, const char *bytes, size_t len, size_t piece)
{
	struct od_err err;
	int rc = OD_OK;

	*s = (struct stream){ .events = { .event = on_event, .comment = on_comment, .arg = s } };
	s->reply.text = on_text;
	s->reply.arg = &s->told;
	for (size_t i = 0; rc == OD_OK && i < len; i += piece)
		rc = odm_event_reader_feed(&s->events, bytes + i, piece < len - i ? piece : len - i, &err);
	od_strbuf_append(&s->told, "", 0);
	odm_event_reader_fini(&s->events);
	return rc;
}

static void check_plain(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		const unsigned char c = (unsigned char)text[i];

		check((c >= ' ' && c != 0x7f) || c == '\n' || c == '\t');
		check(c != 0xc2 || i + 1 == len || (unsigned char)text[i + 1] >= 0xa0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_strbuf plain = { 0 };
	struct stream whole, cut;
	int rc;

	if (size < 1)
		return 0;
	rc = read_stream(&whole, (const char *)data + 1, size - 1, size);
	check(read_stream(&cut, (const char *)data + 1, size - 1, 1 + data[0] % 16) == rc);
	check(whole.told.len == cut.told.len && memcmp(whole.told.text, cut.told.text, cut.told.len) == 0);
	check(whole.reply.done == cut.reply.done && whole.reply.err.code == cut.reply.err.code);
	check(strcmp(whole.reply.finish, cut.reply.finish) == 0 && whole.reply.usage.known == cut.reply.usage.known);
	check_plain(whole.reply.finish, strlen(whole.reply.finish));
	check_plain(whole.reply.err.msg, strlen(whole.reply.err.msg));
	odm_plain_text(&plain, whole.told.text, whole.told.len);
	check_plain(plain.text, plain.len);
	od_strbuf_fini(&plain);
	od_strbuf_fini(&whole.told);
	od_strbuf_fini(&cut.told);
	return 0;
}
