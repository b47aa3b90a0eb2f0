#include "main-node/chat/call_reader.h"

#include <stdint.h>
#include <string.h>

#define FIRST_LITERAL '\t' /* lower bytes stand for a variable text */

enum section { HEAD, CALL, PARAM_OR_END, PARAM, END, NEXT_OR_CLOSE, BETWEEN, CLOSE, OVER };

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_name(char c)
{
	return (unsigned char)c > 0x20 && c != 0x7f && strchr("<>\"'[]{}(),=\\", c) == NULL;
}

static size_t literal_len(const char *at)
{
	size_t n = 0;

	while ((unsigned char)at[n] >= FIRST_LITERAL)
		n++;
	return n;
}

static void enter(struct odm_call_reader *r, enum section s)
{
	const struct odm_call_format *f = r->format;
	const char *const text[] = {
		[HEAD] = f->head,     [CALL] = f->call,	      [PARAM_OR_END] = "", [PARAM] = f->param, [END] = f->end,
		[NEXT_OR_CLOSE] = "", [BETWEEN] = f->between, [CLOSE] = f->close,  [OVER] = "",
	};

	r->section = s;
	r->at = text[s];
	r->mark = SIZE_MAX;
}

void odm_call_reader_init(struct odm_call_reader *r, const struct odm_call_format *format)
{
	memset(r, 0, sizeof(*r));
	r->format = format;
	r->pos = format->bare ? 0 : strlen(format->open);
	enter(r, HEAD);
}

static enum odm_read bad(struct odm_call_reader *r, size_t pos)
{
	r->pos = pos;
	return ODM_READ_BAD;
}

/* The text behind a value's end does not fit the format. So the value's own text contained that end, and it goes on. */
static enum odm_read unfit(struct odm_call_reader *r, size_t pos)
{
	if (r->value_at == NULL)
		return bad(r, pos);
	enter(r, PARAM);
	r->at = r->value_at;
	r->mark = r->value.begin;
	r->pos = r->value.end + 1;
	r->value_at = NULL;
	r->value_again = true;
	r->spans.n_params--;
	return ODM_READ_DONE;
}

/* ---- What varies. Each answers DONE when it has been read. ---- */

static enum odm_read read_word(struct odm_call_reader *r, const char *text, size_t len, struct odm_span *out)
{
	while (r->pos < len && is_name(text[r->pos]))
		r->pos++;
	if (r->pos - r->mark > ODM_MAX_NAME_BYTES)
		return bad(r, r->pos);
	if (r->pos == len)
		return ODM_READ_MORE;
	if (r->pos == r->mark)
		return bad(r, r->pos);
	*out = (struct odm_span){ r->mark, r->pos };
	return ODM_READ_DONE;
}

static bool begins(const char *text, size_t len, const char *what, size_t n)
{
	return len >= n && memcmp(text, what, n) == 0;
}

/* Reads up to the literal that follows in the format; r->pos is behind the literal then. */
static enum odm_read read_until(struct odm_call_reader *r, const char *text, size_t len, size_t max,
				struct odm_span *out)
{
	const char *end = r->at + 1, *open = r->format->open;
	const size_t n = literal_len(end), n_open = strlen(open);

	for (; r->pos + n <= len; r->pos++) {
		if (memcmp(text + r->pos, end, n) == 0) {
			*out = (struct odm_span){ r->mark, r->pos };
			r->pos += n;
			r->at += n; /* the caller steps over the byte that stands for this */
			return ODM_READ_DONE;
		}
		if (r->pos - r->mark >= max)
			return bad(r, r->pos);
		/* A value that went on past its end is a guess; the next block's begin refutes it. */
		if (r->value_again && r->pos + 1 >= n_open && begins(text + r->pos + 1 - n_open, n_open, open, n_open))
			return bad(r, r->pos + 1 - n_open);
	}
	return ODM_READ_MORE;
}

static enum odm_read read_value(struct odm_call_reader *r, const char *text, size_t len)
{
	const char *at = r->at;
	struct odm_span value;
	const enum odm_read got = read_until(r, text, len, SIZE_MAX, &value);

	if (got != ODM_READ_DONE)
		return got;
	if (r->format->param == NULL) {
		r->spans.args = value;
		return ODM_READ_DONE;
	}
	r->value_at = at;
	r->value = value;
	r->value_again = false;
	r->spans.param[r->spans.n_params++].value = value;
	return ODM_READ_DONE;
}

/* A call's object is known by its first key, so that other JSON is not held back. */
static bool is_call_key(const char *text, size_t len)
{
	static const char *const keys[] = {
		"name", "arguments", "parameters", "type", "id", "tool_name", "tool_call_id"
	};
	struct odm_json_item first;
	size_t pos = 0;

	if (!odm_json_next((struct odm_slice){ text, len }, &pos, &first) && first.key.len < 2)
		return false;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (first.key.len == strlen(keys[i]) + 2 && memcmp(first.key.text + 1, keys[i], strlen(keys[i])) == 0)
			return true;
	return false;
}

static enum odm_read read_json(struct odm_call_reader *r, const char *text, size_t len, bool whole)
{
	while (r->pos < len) {
		const bool key_ends = whole && !r->key_seen && !r->json.string && text[r->pos] == ':';
		const enum odm_json_scanned s = odm_json_scan(&r->json, text[r->pos]);

		if (s == ODM_JSON_BAD || (key_ends && !is_call_key(text + r->mark, r->pos - r->mark)))
			return bad(r, r->pos);
		r->key_seen = r->key_seen || key_ends;
		r->pos++;
		if (s != ODM_JSON_END)
			continue;
		r->json = (struct odm_json_scan){ 0 };
		r->key_seen = false;
		r->spans.args = (struct odm_span){ r->mark, r->pos };
		r->spans.whole = whole;
		return ODM_READ_DONE;
	}
	return ODM_READ_MORE;
}

static enum odm_read read_span(struct odm_call_reader *r, const char *text, size_t len)
{
	if (r->mark == SIZE_MAX)
		r->mark = r->pos;
	switch (*r->at) {
	case '\1':
		while (r->pos < len && is_space(text[r->pos]))
			r->pos++;
		return r->pos < len ? ODM_READ_DONE : ODM_READ_MORE;
	case '\2': return read_word(r, text, len, &r->spans.name);
	case '\3': return read_word(r, text, len, &r->spans.id);
	case '\4':
		if (r->spans.n_params == ODM_MAX_PARAMS)
			return bad(r, r->pos);
		return read_until(r, text, len, ODM_MAX_NAME_BYTES, &r->spans.param[r->spans.n_params].key);
	case '\5': return read_value(r, text, len);
	case '\6': return read_json(r, text, len, false);
	default: return read_json(r, text, len, true);
	}
}

static enum odm_read read_literal(struct odm_call_reader *r, const char *text, size_t len)
{
	const size_t n = literal_len(r->at), have = len - r->pos < n ? len - r->pos : n;

	if (memcmp(text + r->pos, r->at, have) != 0)
		return unfit(r, r->pos);
	if (have < n)
		return ODM_READ_MORE;
	r->pos += n;
	r->at += n;
	return ODM_READ_DONE;
}

/* ---- Which section is next ---- */

/* One of two literals follows after white space. */
static enum odm_read choose(struct odm_call_reader *r, const char *text, size_t len, const char *a, enum section if_a,
			    const char *b, enum section if_b)
{
	const size_t n_a = literal_len(a), n_b = literal_len(b);
	size_t have;
	bool may_a, may_b;

	while (r->pos < len && is_space(text[r->pos]))
		r->pos++;
	have = len - r->pos;
	may_a = memcmp(text + r->pos, a, have < n_a ? have : n_a) == 0;
	may_b = memcmp(text + r->pos, b, have < n_b ? have : n_b) == 0;
	if (!may_a && !may_b)
		return unfit(r, r->pos);
	if ((may_a && have < n_a) || (may_b && have < n_b))
		return ODM_READ_MORE;
	enter(r, may_a ? if_a : if_b);
	return ODM_READ_DONE;
}

static enum odm_read next_or_close(struct odm_call_reader *r, const char *text, size_t len)
{
	const struct odm_call_format *f = r->format;

	if (f->between == NULL) {
		enter(r, OVER);
		return ODM_READ_DONE;
	}
	if (f->between[0] != '\0')
		return choose(r, text, len, f->between, BETWEEN, f->close, CLOSE);
	return choose(r, text, len, f->call + (f->call[0] == ODM_WS[0]), CALL, f->close, CLOSE);
}

/* A section is complete. */
static enum odm_read leave(struct odm_call_reader *r, const char *text, size_t len)
{
	const struct odm_call_format *f = r->format;

	switch ((enum section)r->section) {
	case HEAD:
	case BETWEEN: enter(r, CALL); return ODM_READ_DONE;
	case CALL:
	case PARAM: enter(r, f->param == NULL ? END : PARAM_OR_END); return ODM_READ_DONE;
	case PARAM_OR_END: return choose(r, text, len, f->param, PARAM, f->end, END);
	case END: enter(r, NEXT_OR_CLOSE); return ODM_READ_CALL;
	case NEXT_OR_CLOSE:
		if (r->spans.args.end > 0 || r->spans.name.end > 0) { /* the caller has taken the call */
			memset(&r->spans, 0, sizeof(r->spans));
			r->value_at = NULL;
			r->call_begin = r->pos;
		}
		return next_or_close(r, text, len);
	case CLOSE: enter(r, OVER); return ODM_READ_DONE;
	case OVER: break;
	}
	return ODM_READ_DONE;
}

enum odm_read odm_call_read(struct odm_call_reader *r, const char *text, size_t len)
{
	enum odm_read got = ODM_READ_DONE;

	while (got == ODM_READ_DONE && r->section != OVER) {
		if (*r->at == '\0') {
			got = leave(r, text, len);
		} else if ((unsigned char)*r->at >= FIRST_LITERAL) {
			got = read_literal(r, text, len);
		} else {
			got = read_span(r, text, len);
			if (got == ODM_READ_DONE) {
				r->at++;
				r->mark = SIZE_MAX;
			}
		}
	}
	return got;
}

/* ---- What is missing at the text's end ---- */

/* Literals only, so that nothing of a call is missing. */
static bool only_literals(const char *at)
{
	for (; *at != '\0'; at++)
		if ((unsigned char)*at < FIRST_LITERAL && *at != ODM_WS[0])
			return false;
	return true;
}

static void append_literals(const char *at, struct od_strbuf *block)
{
	for (; *at != '\0'; at++)
		if ((unsigned char)*at >= FIRST_LITERAL)
			od_strbuf_append(block, at, 1);
}

/* Gets the rest of a section's text, whose first bytes the block may have from pos on. False: the block has something
 * else there. */
static bool append_rest(const char *at, size_t pos, struct od_strbuf *block)
{
	const size_t have = block->len - pos;

	if (have > literal_len(at) || memcmp(block->text + pos, at, have) != 0)
		return false;
	append_literals(at + have, block);
	return true;
}

bool odm_call_close(const struct odm_call_reader *r, struct od_strbuf *block)
{
	const struct odm_call_format *f = r->format;
	const enum section s = (enum section)r->section;

	if (s == NEXT_OR_CLOSE || s == CLOSE)
		return append_rest(f->close, r->pos, block);
	/* JSON shows its own end; of parameters it is known by the first tag behind the last one. */
	if (s == CALL ? f->param != NULL || r->spans.args.end == 0 || !only_literals(r->at) :
			s != END || (r->spans.args.end == 0 && r->at == f->end))
		return false;
	if (!append_rest(r->at, r->pos, block))
		return false;
	if (s == CALL)
		append_literals(f->end, block);
	if (f->between != NULL)
		append_literals(f->close, block);
	return true;
}
