#include "common/text/breakers.h"

#include "common/text/tok_decode.h"

#include <stdlib.h>
#include <string.h>

#define MAX_REST 20 /* tokens of a rest; more are cut */
#define MAX_RAW_BYTES 512

/* The tokens of a text without its first i bytes. */
struct rest {
	int32_t id[MAX_REST];
	size_t n;
	bool known, good; /* good: it has tokens of the vocabulary, and was not found for the present token */
};

struct search {
	const struct od_tokenizer *t;
	uint32_t vocab;
	char text[OD_BREAKER_BYTES];
	size_t len;
	struct rest rest[OD_BREAKER_BYTES];
	int32_t *out;
	size_t n, size;
};

static int add(struct search *s, int32_t token, const struct rest *rest, struct od_err *err)
{
	const size_t n_rest = rest != NULL ? rest->n : 0;

	if (s->size - s->n < 2 + n_rest) {
		const size_t size = 2 * s->size + 2 + MAX_REST;
		int32_t *grown = realloc(s->out, size * sizeof(*grown));

		if (grown == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for the tokens of breakers");
		s->out = grown;
		s->size = size;
	}
	s->out[s->n++] = (int32_t)(1 + n_rest);
	s->out[s->n++] = token;
	for (size_t i = 0; i < n_rest; i++)
		s->out[s->n++] = rest->id[i];
	return OD_OK;
}

/* A rest that begins within a character has no tokens of its own; it is never good. */
static int find_rest(struct search *s, size_t at, struct od_err *err)
{
	struct rest *r = &s->rest[at];
	int32_t *ids;
	int rc;

	if (r->known)
		return OD_OK;
	r->known = true;
	rc = od_tokenizer_encode(s->t, s->text + at, s->len - at, 0, &ids, &r->n, err);
	if (rc != OD_OK)
		return rc == OD_ERR_NOMEM ? rc : OD_OK;
	r->good = true;
	r->n = r->n < MAX_REST ? r->n : MAX_REST;
	for (size_t i = 0; i < r->n; i++) {
		r->id[i] = ids[i];
		r->good = r->good && (uint32_t)ids[i] < s->vocab;
	}
	free(ids);
	return OD_OK;
}

static bool is_same(const struct rest *a, const struct rest *b)
{
	return a->good && b->good && a->n == b->n && memcmp(a->id, b->id, a->n * sizeof(*a->id)) == 0;
}

/* Ends of the token's text [len] that begin the breaker. */
static int look_at_ends(struct search *s, int32_t token, const char *text, size_t len, struct od_err *err)
{
	bool done[OD_BREAKER_BYTES] = { false }; /* by the bytes that the token has of the breaker */
	int rc = OD_OK;

	for (size_t have = len < s->len - 1 ? len : s->len - 1; rc == OD_OK && have > 0; have--) {
		bool again = false;

		if (memcmp(text + len - have, s->text, have) != 0)
			continue;
		rc = find_rest(s, have, err);
		for (size_t k = have + 1; k < s->len; k++)
			again = again || (done[k] && is_same(&s->rest[k], &s->rest[have]));
		if (rc != OD_OK || again || !s->rest[have].good)
			continue;
		done[have] = true;
		rc = add(s, token, &s->rest[have], err);
	}
	return rc;
}

static int look_at(struct search *s, int32_t token, const char *text, size_t len, struct od_err *err)
{
	if (len >= s->len && memmem(text, len, s->text, s->len) != NULL)
		return add(s, token, NULL, err);
	return look_at_ends(s, token, text, len, err);
}

static int look_at_all(struct search *s, struct od_err *err)
{
	const uint32_t known = od_tokenizer_vocab(s->t), n = known < s->vocab ? known : s->vocab;
	char raw[MAX_RAW_BYTES];
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
		const int32_t token = (int32_t)i;
		size_t len = od_tokenizer_bytes(s->t, token, raw, sizeof(raw));
		char *text = NULL;

		if (len > 0) {
			rc = look_at(s, token, raw, len, err);
			continue;
		}
		rc = od_tokenizer_decode(s->t, &token, 1, false, &text, &len, err);
		if (rc == OD_OK)
			rc = look_at(s, token, text, len, err);
		else if (rc != OD_ERR_NOMEM)
			rc = OD_OK; /* an id that is no token */
		free(text);
	}
	return rc;
}

int od_breakers_find(int32_t **out, size_t *n, const struct od_tokenizer *t, uint32_t vocab, const char *const *text,
		     size_t n_text, struct od_err *err)
{
	struct search s = { .t = t, .vocab = vocab };
	int rc = OD_OK;

	*out = NULL;
	*n = 0;
	for (size_t i = 0; rc == OD_OK && i < n_text; i++) {
		s.len = strnlen(text[i], OD_BREAKER_BYTES);
		memcpy(s.text, text[i], s.len);
		memset(s.rest, 0, sizeof(s.rest));
		if (s.len > 0)
			rc = look_at_all(&s, err);
	}
	if (rc != OD_OK) {
		free(s.out);
		return rc;
	}
	*out = s.out;
	*n = s.n;
	return OD_OK;
}
