#include "main-node/terminal/event_reader.h"

#include <string.h>

static void end_event(struct odm_event_reader *r)
{
	if (r->any_data && !r->data.failed)
		r->event(r->arg, r->data.text, r->data.len);
	r->any_data = false;
	r->data.len = 0;
}

static void add_data(struct odm_event_reader *r, const char *value, size_t len)
{
	if (r->any_data)
		od_strbuf_append(&r->data, "\n", 1);
	od_strbuf_append(&r->data, value, len);
	r->any_data = true;
}

/* A line is "field: value", "field:value" or "field"; without a field it is a comment. */
static void end_line(struct odm_event_reader *r)
{
	static const char mark[] = "\xef\xbb\xbf", data[] = "data";
	const char *line = r->line.text, *colon, *value;
	size_t len = r->line.len;

	if (!r->begun && len >= strlen(mark) && memcmp(line, mark, strlen(mark)) == 0) {
		line += strlen(mark);
		len -= strlen(mark);
	}
	r->begun = true;
	if (len == 0) {
		end_event(r);
		return;
	}
	colon = memchr(line, ':', len);
	value = colon != NULL ? colon + 1 : line + len;
	if (value < line + len && *value == ' ')
		value++;
	if (colon == line)
		r->comment(r->arg, value, (size_t)(line + len - value));
	else if ((colon != NULL ? (size_t)(colon - line) : len) == strlen(data) &&
		 memcmp(line, data, strlen(data)) == 0)
		add_data(r, value, (size_t)(line + len - value));
}

int odm_event_reader_feed(struct odm_event_reader *r, const char *bytes, size_t len, struct od_err *err)
{
	for (size_t i = 0; i < len;) {
		size_t n = 0;

		/* second byte of "\r
		 * " */
		if (r->after_cr && bytes[i] == '\n') {
			r->after_cr = false;
			i++;
			continue;
		}
		r->after_cr = false;
		while (i + n < len && bytes[i + n] != '\n' && bytes[i + n] != '\r')
			n++;
		od_strbuf_append(&r->line, bytes + i, n);
		if (r->line.len > ODM_MAX_EVENT_BYTES)
			return od_fail(err, OD_ERR_RANGE, "a line of the stream is longer than %u bytes",
				       ODM_MAX_EVENT_BYTES);
		i += n;
		if (i == len)
			break;
		r->after_cr = bytes[i++] == '\r';
		end_line(r);
		r->line.len = 0;
		if (r->data.len > ODM_MAX_EVENT_BYTES)
			return od_fail(err, OD_ERR_RANGE, "an event of the stream is longer than %u bytes",
				       ODM_MAX_EVENT_BYTES);
	}
	return r->line.failed || r->data.failed ? od_fail(err, OD_ERR_NOMEM, "no memory for the stream's events") :
						  OD_OK;
}

void odm_event_reader_fini(struct odm_event_reader *r)
{
	od_strbuf_fini(&r->line);
	od_strbuf_fini(&r->data);
}
