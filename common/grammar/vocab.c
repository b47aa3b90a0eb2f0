#include "common/grammar/vocab.h"

#include "common/base/strbuf.h"
#include "common/grammar/chars.h"
#include "common/grammar/runs.h"
#include "common/text/tok_decode.h"

#include <stdlib.h>
#include <string.h>

/* ---- The texts of tokens ---- */

/* An ordinary token, behind which others are decoded as within a text; -1: none. */
static int32_t find_anchor(const struct od_tokenizer *t)
{
	const uint32_t n = od_tokenizer_vocab(t);

	for (uint32_t id = 0; id < n; id++) {
		char *text = NULL;
		size_t len = 0;

		if (od_tokenizer_is_special(t, (int32_t)id) ||
		    od_tokenizer_decode(t, (const int32_t[]){ (int32_t)id }, 1, false, &text, &len, NULL) != OD_OK)
			continue;
		if (len == 1 && text[0] >= 'a' && text[0] <= 'z') {
			free(text);
			return (int32_t)id;
		}
		free(text);
	}
	return -1;
}

/* Appends what a token adds to a text. */
static int append_text(struct od_strbuf *out, const struct od_tokenizer *t, int32_t anchor, size_t anchor_len,
		       int32_t id)
{
	const int32_t both[] = { anchor, id };
	const bool alone = anchor < 0;
	char *text;
	size_t len;
	int rc = od_tokenizer_decode(t, both + alone, 2u - alone, false, &text, &len, NULL);

	if (rc != OD_OK)
		return rc == OD_ERR_NOMEM ? rc : OD_OK; /* no such token */
	if (len > anchor_len)
		od_strbuf_append(out, text + anchor_len, len - anchor_len);
	free(text);
	return OD_OK;
}

/* Appends the bytes of a token; none: it is never allowed. */
static int append_token(struct od_strbuf *out, const struct od_tokenizer *t, const struct od_controls *controls,
			int32_t anchor, size_t anchor_len, int32_t id)
{
	const size_t begin = out->len;
	char bytes[OD_MAX_TOKEN_BYTES];
	int rc = OD_OK;

	if (od_tokenizer_is_special(t, id) || od_controls_has(controls, id)) {
		od_strbuf_append(out, OD_SYMBOL, 1);
		rc = append_text(out, t, -1, 0, id);
		if (out->len == begin + 1)
			out->len = begin;
	} else {
		const size_t n = od_tokenizer_bytes(t, id, bytes, sizeof(bytes));

		if (n > 0)
			od_strbuf_append(out, bytes, n);
		else
			rc = append_text(out, t, anchor, anchor_len, id);
		if (out->len > begin && memchr(out->text + begin, OD_SYMBOL[0], out->len - begin) != NULL)
			out->len = begin;
	}
	if (out->len - begin > OD_MAX_TOKEN_BYTES)
		out->len = begin;
	return out->failed ? OD_ERR_NOMEM : rc;
}

static int read_texts(struct od_vocab *v, const struct od_tokenizer *t, const struct od_controls *controls)
{
	const uint32_t known = od_tokenizer_vocab(t) < v->n_tokens ? od_tokenizer_vocab(t) : v->n_tokens;
	const int32_t anchor = find_anchor(t);
	struct od_strbuf text = { 0 };
	int rc = OD_OK;

	for (uint32_t id = 0; id < v->n_tokens && rc == OD_OK; id++) {
		v->at[id] = (uint32_t)text.len;
		if (id < known)
			rc = append_token(&text, t, controls, anchor, anchor >= 0 ? 1 : 0, (int32_t)id);
		if (text.len > UINT32_MAX - OD_MAX_TOKEN_BYTES)
			rc = OD_ERR_RANGE;
	}
	v->at[v->n_tokens] = (uint32_t)text.len;
	if (text.len == 0)
		od_strbuf_append(&text, "", 1);
	v->text = text.text;
	return rc;
}

/* ---- The tree ---- */

struct sorting {
	const char *text;
	uint32_t len;
	int32_t id;
};

static int by_text(const void *a, const void *b)
{
	const struct sorting *x = a, *y = b;
	const int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

	if (c != 0 || x->len != y->len)
		return c != 0 ? c : x->len < y->len ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

static size_t common_bytes(const struct sorting *x, const struct sorting *y)
{
	size_t n = 0;

	while (n < x->len && n < y->len && x->text[n] == y->text[n])
		n++;
	return n;
}

/* Node numbers in preorder; skip holds, for open nodes, nothing until they are left. */
static void fill_nodes(struct od_vocab *v, const struct sorting *s, size_t n, uint32_t *open)
{
	size_t depth = 0;
	uint32_t node = 0;

	for (size_t i = 0; i < n; i++) {
		const size_t shared = i > 0 ? common_bytes(&s[i - 1], &s[i]) : 0;

		for (; depth > shared; depth--)
			v->skip[open[depth]] = node;
		for (; depth < s[i].len; node++) {
			v->byte[node] = (uint8_t)s[i].text[depth++];
			v->depth[node] = (uint16_t)depth;
			v->tokens[node] = (uint32_t)i;
			open[depth] = node;
		}
		v->sorted[i] = s[i].id;
	}
	for (; depth > 0; depth--)
		v->skip[open[depth]] = node;
	/* A node's tokens begin where the first token below it does: those with just its bytes come first. Of inner
	 * nodes without tokens the next node begins at the same place. */
	v->tokens[node] = (uint32_t)n;
}

static int make_tree(struct od_vocab *v)
{
	struct sorting *s = calloc(v->n_tokens + 1u, sizeof(*s));
	uint32_t *open = calloc(OD_MAX_TOKEN_BYTES + 1, sizeof(*open));
	size_t n = 0, nodes = 0;

	if (s == NULL || open == NULL)
		goto done;
	for (uint32_t id = 0; id < v->n_tokens; id++)
		if (v->at[id + 1] > v->at[id])
			s[n++] = (struct sorting){ v->text + v->at[id], v->at[id + 1] - v->at[id], (int32_t)id };
	if (n > 1)
		qsort(s, n, sizeof(*s), by_text);
	for (size_t i = 0; i < n; i++) {
		nodes += s[i].len - (i > 0 ? common_bytes(&s[i - 1], &s[i]) : 0);
		v->max_depth = s[i].len > v->max_depth ? (uint16_t)s[i].len : v->max_depth;
	}
	v->n_nodes = (uint32_t)nodes;
	v->byte = malloc(nodes + 1);
	v->depth = malloc((nodes + 1) * sizeof(*v->depth));
	v->skip = malloc((nodes + 1) * sizeof(*v->skip));
	v->tokens = malloc((nodes + 1) * sizeof(*v->tokens));
	v->sorted = malloc((n + 1) * sizeof(*v->sorted));
	if (v->byte != NULL && v->depth != NULL && v->skip != NULL && v->tokens != NULL && v->sorted != NULL)
		fill_nodes(v, s, n, open);
done:
	free(s);
	free(open);
	return v->sorted != NULL && v->tokens != NULL && v->skip != NULL && v->depth != NULL && v->byte != NULL ?
		       OD_OK :
		       OD_ERR_NOMEM;
}

static int find_json_strings(struct od_vocab *v)
{
	struct od_re_pool *p;
	int rc = od_re_pool_new(&p, NULL);

	if (rc == OD_OK)
		rc = od_runs_new(&v->json_string, v, p, od_any_char(p, OD_WRITE_JSON), od_re_text(p, "\"", 1));
	if (rc == OD_OK)
		rc = od_runs_new(&v->json_name, v, p, od_one_char(p, OD_WRITE_JSON), od_re_text(p, "\"", 1));
	if (rc == OD_OK)
		rc = od_re_check(p, NULL);
	od_re_pool_free(p);
	return rc;
}

int od_vocab_new(struct od_vocab **out, const struct od_tokenizer *t, const struct od_controls *controls,
		 uint32_t n_tokens, struct od_err *err)
{
	struct od_vocab *v = calloc(1, sizeof(*v));
	int rc = OD_ERR_NOMEM;

	*out = NULL;
	if (v != NULL) {
		v->n_tokens = n_tokens;
		v->at = calloc(n_tokens + (size_t)1, sizeof(*v->at));
		if (v->at != NULL)
			rc = read_texts(v, t, controls);
		if (rc == OD_OK)
			rc = make_tree(v);
		if (rc == OD_OK)
			rc = find_json_strings(v);
	}
	if (rc != OD_OK) {
		od_vocab_free(v);
		return od_fail(err, rc, "cannot prepare a vocabulary of %u tokens for grammars", n_tokens);
	}
	*out = v;
	return OD_OK;
}

void od_vocab_free(struct od_vocab *v)
{
	if (v == NULL)
		return;
	free(v->byte);
	free(v->depth);
	free(v->skip);
	free(v->tokens);
	free(v->sorted);
	free(v->at);
	free(v->text);
	od_runs_free(v->json_string);
	od_runs_free(v->json_name);
	free(v);
}

size_t od_vocab_symbol_at(const struct od_vocab *v, const char *text, size_t len)
{
	size_t longest = 0;

	/* Symbols come last: no other token has their first byte. */
	for (uint32_t i = v->tokens[v->n_nodes]; i > 0; i--) {
		const char *bytes;
		const size_t n = od_vocab_bytes(v, v->sorted[i - 1], &bytes);

		if (bytes[0] != OD_SYMBOL[0])
			break;
		if (n - 1 > longest && n - 1 <= len && memcmp(bytes + 1, text, n - 1) == 0)
			longest = n - 1;
	}
	return longest;
}

size_t od_vocab_memory(const struct od_vocab *v)
{
	return v->n_nodes * (size_t)(1 + 2 + 4 + 4) + v->n_tokens * (size_t)8 + v->at[v->n_tokens] +
	       od_runs_memory(v->json_string) + od_runs_memory(v->json_name);
}
