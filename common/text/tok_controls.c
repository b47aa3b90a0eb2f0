/* Finds the added tokens that are control tokens, and keeps a user's bytes from becoming one. */
#include "common/text/tok_controls.h"

#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>

struct od_controls {
	const struct od_tokenizer *t;
	bool in_normalized;
	uint8_t is[]; /* by id, a bit each */
};

/* ---- which they are ---- */

static void set(struct od_controls *c, int32_t id)
{
	c->is[id / 8] |= (uint8_t)(1u << id % 8);
}

static bool is_any(const char *s, size_t len, const char *const *affix, bool front)
{
	for (; *affix != NULL; affix++) {
		const size_t n = strlen(*affix);

		if (len >= n && memcmp(front ? s : s + len - n, *affix, n) == 0)
			return true;
	}
	return false;
}

/* <|name|>, also with DeepSeek's wide bars. */
static bool is_barred(const struct tok_entry *e, const char *s)
{
	static const char *const open[] = { "<|", "<\xef\xbd\x9c", NULL }, *const close[] = { "|>", "\xef\xbd\x9c>",
											      NULL };

	return is_any(s, e->len, open, true) && is_any(s, e->len, close, false);
}

/* <name>, [NAME], ]name[: what templates write. */
static bool is_bracketed(const struct tok_entry *e, const char *s)
{
	static const char *const open[] = { "<", "[", "]", NULL }, *const close[] = { ">", "]", "[", NULL };

	return e->len > 2 && is_any(s, e->len, open, true) && is_any(s, e->len, close, false);
}

static const char *text_of(const struct od_tokenizer *t, int32_t id)
{
	return t->vocab.bytes.data + t->vocab.entry[id].at;
}

static void add_matcher(struct od_controls *c, const struct tok_matcher *m)
{
	for (uint32_t i = 0; i < m->n; i++) {
		const struct tok_added *a = &m->v[i];

		if (a->special || is_barred(&c->t->vocab.entry[a->id], text_of(c->t, a->id)))
			set(c, a->id);
	}
}

static void look_at_normalized(struct od_controls *c)
{
	const struct tok_matcher *m = &c->t->normalized;

	for (uint32_t i = 0; i < m->n; i++)
		c->in_normalized = c->in_normalized || od_controls_has(c, m->v[i].id);
}

int od_controls_new(struct od_controls **out, const struct od_tokenizer *t, struct od_err *err)
{
	struct od_controls *c = calloc(1, sizeof(*c) + t->vocab.n / 8 + 1);

	*out = c;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for control tokens");
	c->t = t;
	add_matcher(c, &t->raw);
	add_matcher(c, &t->normalized);
	look_at_normalized(c);
	return OD_OK;
}

static void found(void *arg, const struct tok_added *a)
{
	struct od_controls *c = arg;

	if (is_bracketed(&c->t->vocab.entry[a->id], text_of(c->t, a->id)))
		set(c, a->id);
}

void od_controls_add(struct od_controls *c, const char *text, size_t len)
{
	tok_added_find(&c->t->raw, text, len, found, c);
	tok_added_find(&c->t->normalized, text, len, found, c);
	look_at_normalized(c);
}

bool od_controls_has(const struct od_controls *c, int32_t id)
{
	return id >= 0 && (uint32_t)id < c->t->vocab.n && (c->is[id / 8] >> id % 8 & 1) != 0;
}

void od_controls_free(struct od_controls *c)
{
	free(c);
}

bool tok_controls_in_normalized(const struct od_controls *c)
{
	return c->in_normalized;
}

/* ---- words ---- */

/* Whether some character of the unknown token's text is itself unknown: then no merge makes the token, it stands for a
 * character. */
static int is_unspelled(const struct od_tokenizer *t, struct tok_bpe_scratch *scratch, const char *text, size_t len,
			bool *yes, struct od_err *err)
{
	struct tok_ids ids = { 0 };
	int32_t cp;
	int rc = OD_OK;

	*yes = false;
	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		n = tok_char(text + at, len - at, &cp);
		rc = tok_model_word(t, scratch, text + at, n, &ids, err);
	}
	for (size_t i = 0; i < ids.n; i++)
		*yes = *yes || ids.v[i] == t->bpe.unk;
	free(ids.v);
	return rc;
}

/* *out: a control token among ids from `from` on whose text stands in the word; NULL: none. */
static int find_unwanted(const struct od_controls *c, struct tok_bpe_scratch *scratch, const struct tok_ids *ids,
			 size_t from, const char *word, size_t len, const struct tok_entry **out, struct od_err *err)
{
	int32_t seen = -1; /* only the unknown token may come again and again without being unwanted */
	int rc = OD_OK;

	*out = NULL;
	for (size_t i = from; i < ids->n && rc == OD_OK && *out == NULL; i++) {
		const struct tok_entry *e = &c->t->vocab.entry[ids->v[i]];
		bool unspelled = false;

		if (ids->v[i] == seen || !od_controls_has(c, ids->v[i]))
			continue;
		seen = ids->v[i];
		if (memmem(word, len, text_of(c->t, ids->v[i]), e->len) == NULL)
			continue;
		if (ids->v[i] == c->t->bpe.unk)
			rc = is_unspelled(c->t, scratch, text_of(c->t, ids->v[i]), e->len, &unspelled, err);
		if (rc == OD_OK && !unspelled)
			*out = e;
	}
	return rc;
}

/* The pieces have that token's text no more, so the calls are nested only as deep as there are such tokens. */
int tok_controls_word(const struct od_controls *c, struct tok_bpe_scratch *scratch, const char *word, size_t len,
		      struct tok_ids *ids, struct od_err *err)
{
	const size_t from = ids->n;
	int rc = tok_model_word(c->t, scratch, word, len, ids, err);
	const struct tok_entry *e = NULL;
	const char *text, *hit;
	size_t begin = 0, end;
	int32_t cp;

	if (rc == OD_OK)
		rc = find_unwanted(c, scratch, ids, from, word, len, &e, err);
	if (rc != OD_OK || e == NULL)
		return rc;
	text = c->t->vocab.bytes.data + e->at;
	if (tok_char(text, e->len, &cp) == e->len) /* one character: it cannot be written in another way */
		return rc;
	for (ids->n = from; rc == OD_OK && begin < len; begin = end) {
		hit = memmem(word + begin, len - begin, text, e->len);
		end = hit != NULL ? (size_t)(hit - word) + tok_char(hit, e->len, &cp) : len;
		rc = tok_controls_word(c, scratch, word + begin, end - begin, ids, err);
	}
	return rc;
}
