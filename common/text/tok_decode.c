/* Ids back to text. The decoder's steps form a pipeline through which tokens flow one at a time, so that a stream
 * and the decoding of everything at once are the same code.
 *
 * Before a step that fuses (Fuse, ByteLevel) a step sees whole tokens; behind it, one endless token in chunks of
 * whole characters, whose end comes with the flush. */
#include "common/text/tok_decode.h"

#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

enum dec_kind {
	DEC_JOIN, /* no decoder: tokens with a space between them */
	DEC_BYTE_LEVEL,
	DEC_METASPACE,
	DEC_REPLACE,
	DEC_REPLACE_FUSED, /* a literal in the endless token */
	DEC_BYTE_FALLBACK,
	DEC_FUSE,
	DEC_STRIP,
};

struct tok_dec {
	enum dec_kind kind;
	struct tok_regex *re; /* DEC_REPLACE */
	char *content, *literal;
	size_t content_len, literal_len;
	char rep[4]; /* DEC_METASPACE: the replacement; DEC_STRIP: what is stripped */
	size_t rep_len;
	enum tok_prepend scheme;
	uint32_t start, stop; /* DEC_STRIP */
};

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* ---- loading ---- */

static int parse_replace(struct tok_dec *d, const json_t *obj, bool fused, const char *where, struct od_err *err)
{
	const char *literal;
	size_t literal_len;
	int rc;

	d->kind = fused ? DEC_REPLACE_FUSED : DEC_REPLACE;
	rc = tok_content_parse(&d->content, &d->content_len, obj, "content", where, err);
	if (rc == OD_OK)
		rc = tok_regex_parse(&d->re, &literal, &literal_len, obj, where, err);
	if (rc != OD_OK || !fused)
		return rc;
	/* Nobody can tell where a match ends in a text that is still growing. */
	if (literal == NULL || literal_len == 0 || literal_len > TOK_MAX_ADDED_BYTES)
		return tok_unsupported(err, where, "decoder behind Fuse or ByteLevel",
				       "Replace with a regular expression", "Replace with a string, Strip, Fuse");
	d->literal_len = literal_len;
	d->literal = malloc(literal_len);
	if (d->literal == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: decoder", where);
	memcpy(d->literal, literal, literal_len);
	return OD_OK;
}

static int parse_strip(struct tok_dec *d, const json_t *obj, const char *where, struct od_err *err)
{
	const char *s;
	int32_t cp;
	int rc;

	d->kind = DEC_STRIP;
	rc = od_json_str(obj, "content", &s, where, err);
	if (rc == OD_OK && (*s == 0 || tok_char(s, strlen(s), &cp) != strlen(s)))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: decoder Strip: field \"content\": expected one character, found \"%s\"", where, s);
	if (rc == OD_OK)
		rc = od_json_u32(obj, "start", 0, 1u << 20, &d->start, where, err);
	if (rc == OD_OK)
		rc = od_json_u32(obj, "stop", 0, 1u << 20, &d->stop, where, err);
	if (rc != OD_OK)
		return rc;
	d->rep_len = strlen(s);
	memcpy(d->rep, s, d->rep_len);
	return OD_OK;
}

static int parse_metaspace(struct tok_dec *d, const json_t *obj, const char *where, struct od_err *err)
{
	bool split;

	d->kind = DEC_METASPACE;
	return tok_metaspace_parse(obj, d->rep, &d->rep_len, &d->scheme, &split, where, err);
}

static bool is_fused(const struct tok_decs *all, size_t upto)
{
	for (size_t i = 0; i < upto; i++)
		if (all->v[i].kind == DEC_FUSE || all->v[i].kind == DEC_BYTE_LEVEL)
			return true;
	return false;
}

static int parse_one(void *arg, const char *type, const json_t *obj, const char *where, struct od_err *err)
{
	struct tok_decs *all = arg;
	struct tok_dec *d = &all->v[all->n];
	bool fused = is_fused(all, all->n);

	if (all->n == TOK_MAX_STEPS)
		return od_fail(err, OD_ERR_RANGE, "%s: expected at most %u decoders", where, TOK_MAX_STEPS);
	all->n++;
	if (strcmp(type, "Replace") == 0)
		return parse_replace(d, obj, fused, where, err);
	if (strcmp(type, "Strip") == 0)
		return parse_strip(d, obj, where, err);
	d->kind = DEC_FUSE;
	if (strcmp(type, "Fuse") == 0)
		return OD_OK;
	if (fused)
		return tok_unsupported(err, where, "decoder behind Fuse or ByteLevel", type, "Replace, Strip, Fuse");
	if (strcmp(type, "Metaspace") == 0)
		return parse_metaspace(d, obj, where, err);
	d->kind = DEC_BYTE_LEVEL;
	if (strcmp(type, "ByteLevel") == 0)
		return OD_OK;
	d->kind = DEC_BYTE_FALLBACK;
	if (strcmp(type, "ByteFallback") == 0)
		return OD_OK;
	return tok_unsupported(err, where, "decoder", type,
			       "Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip");
}

int tok_decs_parse(struct tok_decs *out, const json_t *obj, const char *where, struct od_err *err)
{
	out->n = 0;
	out->v = calloc(TOK_MAX_STEPS, sizeof(*out->v));
	if (out->v == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: decoders", where);
	if (obj == NULL || json_is_null(obj)) {
		out->v[out->n++].kind = DEC_JOIN;
		return OD_OK;
	}
	return tok_walk(obj, "decoder", "decoders", where, parse_one, out, err);
}

void tok_decs_fini(struct tok_decs *all)
{
	for (size_t i = 0; i < all->n; i++) {
		tok_regex_free(all->v[i].re);
		free(all->v[i].content);
		free(all->v[i].literal);
	}
	free(all->v);
	memset(all, 0, sizeof(*all));
}

/* ---- the pipeline ---- */

struct dec_state {
	struct tok_buf hold; /* bytes that wait for what follows them */
	struct tok_buf work; /* result of a call */
	size_t index; /* tokens seen; DEC_JOIN, DEC_METASPACE */
	bool stripped; /* DEC_STRIP: past the beginning of the token */
	uint32_t lead, held; /* DEC_STRIP: characters taken off in front, waiting at the end */
};

struct od_detok {
	const struct od_tokenizer *t;
	bool skip_special;
	const int32_t *shown; /* [n_shown]: special, but not skipped */
	size_t n_shown;
	struct dec_state *state; /* [decs.n] */
	struct tok_buf out;
	/* decoding the context shows these bytes of tokens that the steps still hold: they are not shown again */
	struct tok_buf owed;
	size_t owed_at;
	struct od_err *err; /* the running call's */
};

static int feed(struct od_detok *d, size_t k, const char *s, size_t len, bool end);

static int feed_join(struct od_detok *d, size_t k, const char *s, size_t len, bool end)
{
	int rc = d->state[k].index++ > 0 ? feed(d, k + 1, " ", 1, false) : OD_OK;

	return rc == OD_OK ? feed(d, k + 1, s, len, end) : rc;
}

static int feed_metaspace(struct od_detok *d, size_t k, const char *s, size_t len, bool end)
{
	const struct tok_dec *m = &d->t->decs.v[k];
	struct dec_state *st = &d->state[k];
	bool drop = st->index == 0 && m->scheme != TOK_PREPEND_NEVER;
	int rc = OD_OK;

	st->work.len = 0;
	for (size_t at = 0; at < len && rc == OD_OK;) {
		if (len - at >= m->rep_len && memcmp(s + at, m->rep, m->rep_len) == 0) {
			if (!drop)
				rc = tok_buf_add(&st->work, " ", 1);
			at += m->rep_len;
		} else {
			rc = tok_buf_add(&st->work, s + at++, 1);
		}
	}
	if (end)
		st->index++;
	return rc == OD_OK ? feed(d, k + 1, st->work.data, st->work.len, end) : rc;
}

static int feed_replace(struct od_detok *d, size_t k, const char *s, size_t len, bool end)
{
	const struct tok_dec *r = &d->t->decs.v[k];
	struct dec_state *st = &d->state[k];
	int rc;

	st->work.len = 0;
	rc = tok_regex_replace(r->re, r->content, r->content_len, s, len, &st->work, NULL, d->err);
	return rc == OD_OK ? feed(d, k + 1, st->work.data, st->work.len, end) : rc;
}

/* Holds back what may be the beginning of the literal. */
static int feed_replace_fused(struct od_detok *d, size_t k, const char *s, size_t len, bool end)
{
	const struct tok_dec *r = &d->t->decs.v[k];
	struct dec_state *st = &d->state[k];
	size_t at = 0;
	int rc = tok_buf_add(&st->hold, s, len);

	st->work.len = 0;
	while (rc == OD_OK && at < st->hold.len) {
		size_t left = st->hold.len - at, n = left < r->literal_len ? left : r->literal_len;

		if (memcmp(st->hold.data + at, r->literal, n) != 0) {
			rc = tok_buf_add(&st->work, st->hold.data + at++, 1);
		} else if (n == r->literal_len) {
			rc = tok_buf_add(&st->work, r->content, r->content_len);
			at += n;
		} else if (end) {
			rc = tok_buf_add(&st->work, st->hold.data + at, left);
			at += left;
		} else {
			break;
		}
	}
	if (rc != OD_OK)
		return rc;
	memmove(st->hold.data, st->hold.data + at, st->hold.len - at);
	st->hold.len -= at;
	return feed(d, k + 1, st->work.data, st->work.len, end);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A run of byte tokens is text if all of it is valid UTF-8, else each of its bytes is U+FFFD. */
static int end_run(struct od_detok *d, size_t k)
{
	struct dec_state *st = &d->state[k];
	size_t n = st->hold.len, bad;
	int rc = OD_OK;

	st->hold.len = 0;
	if (n == 0)
		return OD_OK;
	if (tok_utf8_valid(st->hold.data, n, &bad))
		return feed(d, k + 1, st->hold.data, n, true);
	for (size_t i = 0; i < n && rc == OD_OK; i++)
		rc = feed(d, k + 1, REPLACEMENT, 3, true);
	return rc;
}

/* The byte of a token such as <0x0A>; -1: it is another one. */
static int fallback_byte(const char *s, size_t len)
{
	int hi = -1, lo = -1;

	if (len == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>') {
		hi = hex_digit(s[3]);
		lo = hex_digit(s[4]);
	}
	return hi >= 0 && lo >= 0 ? hi << 4 | lo : -1;
}

static int feed_byte_fallback(struct od_detok *d, size_t k, const char *s, size_t len)
{
	const int value = fallback_byte(s, len);
	const char byte = (char)value;
	int rc;

	if (value >= 0)
		return tok_buf_add(&d->state[k].hold, &byte, 1);
	rc = end_run(d, k);
	return rc == OD_OK ? feed(d, k + 1, s, len, true) : rc;
}

static int feed_strip(struct od_detok *d, size_t k, const char *s, size_t len, bool end)
{
	const struct tok_dec *c = &d->t->decs.v[k];
	struct dec_state *st = &d->state[k];
	int rc = OD_OK;
	int32_t cp;

	st->work.len = 0;
	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		bool same;

		n = tok_char(s + at, len - at, &cp);
		same = n == c->rep_len && memcmp(s + at, c->rep, n) == 0;
		if (same && !st->stripped && st->lead < c->start) {
			st->lead++;
			continue;
		}
		st->stripped = true;
		if (same && st->held < c->stop) {
			st->held++;
			continue;
		}
		/* One of the same kind pushes the first that waits out; another one, all of them. */
		for (; !same && st->held > 0 && rc == OD_OK; st->held--)
			rc = tok_buf_add(&st->work, c->rep, c->rep_len);
		if (rc == OD_OK)
			rc = tok_buf_add(&st->work, s + at, n);
	}
	if (end) {
		st->stripped = false;
		st->lead = st->held = 0;
	}
	return rc == OD_OK ? feed(d, k + 1, st->work.data, st->work.len, end) : rc;
}

/* 1: p[0..n) is a character, 0: the beginning of one, -1: neither. */
static int utf8_state(const unsigned char *p, size_t n)
{
	unsigned lo = 0x80, hi = 0xbf;
	size_t need = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;

	if ((p[0] >= 0x80 && p[0] < 0xc2) || p[0] > 0xf4)
		return -1;
	if (p[0] == 0xe0)
		lo = 0xa0;
	else if (p[0] == 0xed)
		hi = 0x9f;
	else if (p[0] == 0xf0)
		lo = 0x90;
	else if (p[0] == 0xf4)
		hi = 0x8f;
	if (n > 1 && (p[1] < lo || p[1] > hi))
		return -1;
	for (size_t i = 2; i < n; i++)
		if (p[i] < 0x80 || p[i] > 0xbf)
			return -1;
	return n == need;
}

/* One more byte of a byte stream; wrong ones become U+FFFD, one for each longest beginning of a character. */
static int add_lossy(struct dec_state *st, char byte)
{
	int rc = tok_buf_add(&st->hold, &byte, 1), state;

	if (rc != OD_OK)
		return rc;
	state = utf8_state((unsigned char *)st->hold.data, st->hold.len);
	if (state < 0 && st->hold.len > 1) { /* the bytes before were cut short; this one starts anew */
		rc = tok_buf_add(&st->work, REPLACEMENT, 3);
		st->hold.data[0] = byte;
		st->hold.len = 1;
		state = utf8_state((unsigned char *)st->hold.data, 1);
	}
	if (rc == OD_OK && state > 0)
		rc = tok_buf_add(&st->work, st->hold.data, st->hold.len);
	else if (rc == OD_OK && state < 0)
		rc = tok_buf_add(&st->work, REPLACEMENT, 3);
	if (state != 0)
		st->hold.len = 0;
	return rc;
}

/* A token with a character outside the byte alphabet (an added one) stands for its own bytes. */
static bool in_byte_alphabet(const char *s, size_t len)
{
	int32_t cp;

	for (size_t at = 0; at < len;) {
		at += tok_char(s + at, len - at, &cp);
		if (tok_char_to_byte(cp) < 0)
			return false;
	}
	return true;
}

/* The byte at s + *at; *at moves behind it. */
static char next_byte(const char *s, size_t len, bool mapped, size_t *at)
{
	int32_t cp;

	if (!mapped)
		return s[(*at)++];
	*at += tok_char(s + *at, len - *at, &cp);
	return (char)tok_char_to_byte(cp);
}

static int feed_byte_level(struct od_detok *d, size_t k, const char *s, size_t len)
{
	const bool mapped = in_byte_alphabet(s, len);
	struct dec_state *st = &d->state[k];
	int rc = OD_OK;

	st->work.len = 0;
	for (size_t at = 0; at < len && rc == OD_OK;)
		rc = add_lossy(st, next_byte(s, len, mapped, &at));
	return rc == OD_OK ? feed(d, k + 1, st->work.data, st->work.len, false) : rc;
}

static int feed(struct od_detok *d, size_t k, const char *s, size_t len, bool end)
{
	if (k == d->t->decs.n)
		return tok_buf_add(&d->out, s, len);
	switch (d->t->decs.v[k].kind) {
	case DEC_JOIN: return feed_join(d, k, s, len, end);
	case DEC_BYTE_LEVEL: return feed_byte_level(d, k, s, len);
	case DEC_METASPACE: return feed_metaspace(d, k, s, len, end);
	case DEC_REPLACE: return feed_replace(d, k, s, len, end);
	case DEC_REPLACE_FUSED: return feed_replace_fused(d, k, s, len, end);
	case DEC_BYTE_FALLBACK: return feed_byte_fallback(d, k, s, len);
	case DEC_FUSE: return feed(d, k + 1, s, len, false);
	case DEC_STRIP: return feed_strip(d, k, s, len, end);
	}
	return OD_ERR_INTERNAL;
}

/* The tokens are at an end: each step gives up what it holds, first to last. */
static int finish(struct od_detok *d)
{
	int rc = OD_OK;

	for (size_t k = 0; k < d->t->decs.n && rc == OD_OK; k++) {
		enum dec_kind kind = d->t->decs.v[k].kind;

		if (kind == DEC_BYTE_FALLBACK)
			rc = end_run(d, k);
		if (kind == DEC_BYTE_LEVEL && d->state[k].hold.len > 0)
			rc = feed(d, k + 1, REPLACEMENT, 3, false);
		d->state[k].hold.len = kind == DEC_BYTE_LEVEL ? 0 : d->state[k].hold.len;
		if (rc == OD_OK && (kind == DEC_BYTE_LEVEL || kind == DEC_FUSE))
			rc = feed(d, k + 1, "", 0, true);
	}
	return rc;
}

/* ---- ids ---- */

static bool skipped(const struct od_detok *d, int32_t id)
{
	bool skip = d->skip_special && od_tokenizer_is_special(d->t, id);

	for (size_t i = 0; skip && i < d->n_shown; i++)
		skip = d->shown[i] != id;
	return skip;
}

static int push_id(struct od_detok *d, int32_t id)
{
	const struct tok_vocab *v = &d->t->vocab;
	const struct tok_entry *e;

	/* An id without a token (a padded embedding has such rows) shows nothing. */
	if (id < 0 || (uint32_t)id >= v->n || v->entry[id].flags == 0)
		return OD_OK;
	e = &v->entry[id];
	if (skipped(d, id))
		return OD_OK;
	return feed(d, 0, v->bytes.data + e->shown_at, e->shown_len, true);
}

/* Leave out what the context has shown already, as far as it has remained true. */
static void skip_owed(struct od_detok *d)
{
	size_t at = 0;
	int32_t cp;

	while (at < d->out.len && d->owed_at < d->owed.len) {
		size_t n = tok_char(d->out.data + at, d->out.len - at, &cp);

		if (n > d->owed.len - d->owed_at || memcmp(d->out.data + at, d->owed.data + d->owed_at, n) != 0) {
			d->owed_at = d->owed.len;
			break;
		}
		d->owed_at += n;
		at += n;
	}
	if (at > 0)
		memmove(d->out.data, d->out.data + at, d->out.len - at);
	d->out.len -= at;
}

static int decoding_failed(int rc, struct od_err *err)
{
	if (rc == OD_ERR_RANGE)
		return od_fail(err, rc, "decoding: the tokenizer's decoder turns a token into more than %zu bytes",
			       TOK_MAX_SHOWN_BYTES);
	return rc == OD_ERR_NOMEM ? od_fail(err, rc, "decoding") : rc;
}

/* Gives the text that has come out so far, NUL-terminated. */
static int show(struct od_detok *d, int rc, const char **piece, size_t *len, struct od_err *err)
{
	if (rc == OD_OK)
		rc = tok_buf_reserve(&d->out, 1);
	if (rc != OD_OK)
		return decoding_failed(rc, err);
	skip_owed(d);
	d->out.data[d->out.len] = 0;
	*piece = d->out.data;
	*len = d->out.len;
	return OD_OK;
}

static void begin_call(struct od_detok *d, const char **piece, size_t *len, struct od_err *err)
{
	*piece = "";
	*len = 0;
	d->out.len = 0;
	d->err = err;
}

int od_detok_new(struct od_detok **out, const struct od_tokenizer *t, struct od_err *err)
{
	struct od_detok *d = calloc(1, sizeof(*d));

	*out = NULL;
	if (d != NULL)
		d->state = calloc(t->decs.n + 1, sizeof(*d->state));
	if (d == NULL || d->state == NULL) {
		free(d);
		return od_fail(err, OD_ERR_NOMEM, "decoder");
	}
	d->t = t;
	d->skip_special = true;
	d->out.max_bytes = TOK_MAX_SHOWN_BYTES;
	for (size_t k = 0; k < t->decs.n; k++)
		d->state[k].work.max_bytes = TOK_MAX_SHOWN_BYTES;
	*out = d;
	return OD_OK;
}

void od_detok_free(struct od_detok *d)
{
	if (d == NULL)
		return;
	for (size_t k = 0; k < d->t->decs.n; k++) {
		tok_buf_fini(&d->state[k].hold);
		tok_buf_fini(&d->state[k].work);
	}
	free(d->state);
	tok_buf_fini(&d->out);
	tok_buf_fini(&d->owed);
	free(d);
}

/* Shows what a flush would: a copy is flushed. */
static int peek_flush(const struct od_detok *d, struct tok_buf *out)
{
	struct od_detok *copy;
	int rc = od_detok_new(&copy, d->t, d->err);

	if (rc != OD_OK)
		return rc;
	copy->err = d->err;
	for (size_t k = 0; k < d->t->decs.n && rc == OD_OK; k++) {
		const struct dec_state *from = &d->state[k];

		copy->state[k] = (struct dec_state){ .index = from->index,
						     .stripped = from->stripped,
						     .lead = from->lead,
						     .held = from->held,
						     .work = { .max_bytes = TOK_MAX_SHOWN_BYTES } };
		rc = tok_buf_add(&copy->state[k].hold, from->hold.data, from->hold.len);
	}
	if (rc == OD_OK)
		rc = finish(copy);
	if (rc == OD_OK)
		rc = tok_buf_add(out, copy->out.data, copy->out.len);
	od_detok_free(copy);
	return rc;
}

int od_detok_prime(struct od_detok *d, const int32_t *ids, size_t n_ids, struct od_err *err)
{
	const char *piece;
	size_t len;
	int rc = OD_OK;

	begin_call(d, &piece, &len, err);
	d->owed.len = d->owed_at = 0;
	for (size_t i = 0; i < n_ids && rc == OD_OK; i++) {
		d->out.len = 0;
		rc = push_id(d, ids[i]);
	}
	d->out.len = 0;
	if (rc == OD_OK)
		rc = peek_flush(d, &d->owed);
	return rc == OD_OK ? rc : decoding_failed(rc, err);
}

void od_detok_show(struct od_detok *d, const int32_t *ids, size_t n_ids)
{
	d->shown = ids;
	d->n_shown = n_ids;
}

int od_detok_push(struct od_detok *d, int32_t id, const char **piece, size_t *len, struct od_err *err)
{
	begin_call(d, piece, len, err);
	return show(d, push_id(d, id), piece, len, err);
}

int od_detok_flush(struct od_detok *d, const char **piece, size_t *len, struct od_err *err)
{
	begin_call(d, piece, len, err);
	return show(d, finish(d), piece, len, err);
}

int od_tokenizer_decode(const struct od_tokenizer *t, const int32_t *ids, size_t n_ids, bool skip_special, char **text,
			size_t *len, struct od_err *err)
{
	struct od_detok *d;
	const char *piece;
	int rc;

	*text = NULL;
	*len = 0;
	rc = od_detok_new(&d, t, err);
	if (rc != OD_OK)
		return rc;
	d->skip_special = skip_special;
	d->out.max_bytes = TOK_MAX_TEXT_BYTES;
	begin_call(d, &piece, len, err);
	for (size_t i = 0; i < n_ids && rc == OD_OK; i++)
		rc = push_id(d, ids[i]);
	rc = show(d, rc == OD_OK ? finish(d) : rc, &piece, len, err);
	if (rc == OD_OK) {
		*text = d->out.data; /* the caller's now */
		memset(&d->out, 0, sizeof(d->out));
	}
	od_detok_free(d);
	return rc;
}

size_t od_tokenizer_bytes(const struct od_tokenizer *t, int32_t id, char *bytes, size_t size)
{
	const struct tok_vocab *v = &t->vocab;
	const bool known = id >= 0 && (uint32_t)id < v->n && v->entry[id].flags != 0;
	const char *s = known ? v->bytes.data + v->entry[id].shown_at : "";
	const size_t len = known ? v->entry[id].shown_len : 0;
	const bool mapped = in_byte_alphabet(s, len);
	size_t n = 0;

	for (size_t k = 0; k < t->decs.n; k++) {
		const enum dec_kind kind = t->decs.v[k].kind;

		if (kind == DEC_BYTE_FALLBACK && fallback_byte(s, len) >= 0 && size > 0) {
			bytes[0] = (char)fallback_byte(s, len);
			return 1;
		}
		if (kind != DEC_BYTE_LEVEL)
			continue;
		for (size_t at = 0; at < len; n++) {
			if (n == size)
				return 0;
			bytes[n] = next_byte(s, len, mapped, &at);
		}
		return n;
	}
	return 0;
}
