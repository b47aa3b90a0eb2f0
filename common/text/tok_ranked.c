/* Code that tokenizer.model and tiktoken.model share: they list tokens with ranks instead of merges, and leave the rest
 * to tokenizer_config.json and to the reader. */
#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define MAX_MERGES (1u << 23) /* four times as many as the largest models have */

/* ---- merges ---- */

struct cut {
	int32_t left, right, merged;
};
struct cuts {
	struct cut *v;
	size_t n, cap;
};

static int32_t find_ranked(const struct tok_vocab *v, const char *s, size_t len, const uint32_t *rank, uint32_t n)
{
	int32_t id = tok_vocab_find(v, s, len);

	return id >= 0 && (uint32_t)id < n && rank[id] != TOK_NO_RANK ? id : -1;
}

/* Every way to cut a token into two others. */
static int cut_token(const struct tok_vocab *v, uint32_t id, const uint32_t *rank, uint32_t n, struct cuts *out)
{
	const struct tok_entry *e = &v->entry[id];
	const char *s = v->bytes.data + e->at;
	int rc = OD_OK;

	for (size_t at = 1; at < e->len && rc == OD_OK; at++) {
		int32_t left, right;

		if (((unsigned char)s[at] & 0xc0) == 0x80)
			continue;
		left = find_ranked(v, s, at, rank, n);
		right = left < 0 ? -1 : find_ranked(v, s + at, e->len - at, rank, n);
		if (right < 0)
			continue;
		if (out->n == MAX_MERGES)
			return OD_ERR_RANGE;
		rc = tok_grow(&out->v, out->n, &out->cap, sizeof(*out->v));
		if (rc == OD_OK)
			out->v[out->n++] = (struct cut){ left, right, (int32_t)id };
	}
	return rc;
}

int tok_ranked_merges(struct od_tokenizer *t, const uint32_t *rank, uint32_t n, const char *where, struct od_err *err)
{
	struct cuts cuts = { 0 };
	int rc = OD_OK;

	for (uint32_t id = 0; id < n && rc == OD_OK; id++)
		if (rank[id] != TOK_NO_RANK)
			rc = cut_token(&t->vocab, id, rank, n, &cuts);
	if (rc == OD_OK)
		rc = tok_bpe_init_merges(&t->bpe, (uint32_t)cuts.n);
	if (rc == OD_OK)
		for (size_t i = 0; i < cuts.n; i++)
			tok_bpe_add_merge(t, cuts.v[i].left, cuts.v[i].right, rank[cuts.v[i].merged], cuts.v[i].merged);
	free(cuts.v);
	if (rc != OD_OK)
		return od_fail(err, rc, "%s: expected at most %u merges", where, MAX_MERGES);
	tok_bpe_finish(t);
	return OD_OK;
}

/* ---- tokenizer_config.json ---- */

static bool read_id(const char *key, uint32_t *id)
{
	*id = 0;
	if (*key == 0 || strlen(key) > 9)
		return false;
	for (; *key != 0; key++) {
		if (*key < '0' || *key > '9')
			return false;
		*id = *id * 10 + (uint32_t)(*key - '0');
	}
	return *id < TOK_MAX_IDS;
}

static int by_id(const void *x, const void *y)
{
	const struct tok_listed *a = x, *b = y;

	return a->id < b->id ? -1 : a->id > b->id;
}

int tok_listed_parse(struct tok_listed **out, size_t *n, const json_t *config, const char *where, struct od_err *err)
{
	json_t *list, *entry;
	const char *key;
	size_t max;
	int rc;

	*out = NULL;
	*n = 0;
	if (config == NULL || !od_json_has(config, "added_tokens_decoder"))
		return OD_OK;
	rc = od_json_obj(config, "added_tokens_decoder", &list, where, err);
	if (rc != OD_OK)
		return rc;
	max = json_object_size(list);
	*out = calloc(max > 0 ? max : 1, sizeof(**out));
	if (*out == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: added_tokens_decoder", where);
	json_object_foreach(list, key, entry)
	{
		struct tok_listed *l = &(*out)[(*n)++];

		l->fields = entry;
		if (!json_is_object(entry) || !read_id(key, &l->id))
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: added_tokens_decoder: expected ids below %u with objects, found \"%.64s\"",
				       where, TOK_MAX_IDS, key);
		rc = od_json_str(entry, "content", &l->content, where, err);
		if (rc != OD_OK)
			return rc;
	}
	qsort(*out, *n, sizeof(**out), by_id);
	for (size_t i = 1; i < *n; i++) /* "1" and "01" */
		if ((*out)[i].id == (*out)[i - 1].id)
			return od_fail(err, OD_ERR_FORMAT, "%s: added_tokens_decoder: id %u is there twice", where,
				       (*out)[i].id);
	return OD_OK;
}

const struct tok_listed *tok_listed_find(const struct tok_listed *list, size_t n, uint32_t id)
{
	const struct tok_listed key = { .id = id };

	return n == 0 ? NULL : bsearch(&key, list, n, sizeof(*list), by_id);
}

int tok_listed_add(json_t *added, uint32_t id, const char *content, size_t len, const json_t *fields)
{
	json_t *token =
		fields != NULL ? json_copy((json_t *)fields) : json_pack("{s:b, s:b}", "special", 1, "normalized", 0);

	if (token == NULL || json_object_set_new(token, "id", json_integer(id)) != 0 ||
	    json_object_set_new(token, "content", json_stringn(content, len)) != 0) {
		json_decref(token);
		return OD_ERR_NOMEM;
	}
	return json_array_append_new(added, token) == 0 ? OD_OK : OD_ERR_NOMEM;
}
