/* Vocabulary and merges as hash tables, and the merging itself: a heap of candidate pairs over a linked list of
 * symbols, so that a word of n characters costs n log n however long it is. */
#include "common/text/tok_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "common/base/json.h"

/* ---- vocabulary ---- */

/* A power of two, at most half full. n <= TOK_MAX_FILE_BYTES, so nothing overflows. */
static uint32_t slots_for(uint32_t n)
{
	uint32_t s = 16;

	while (s < n * 2u)
		s *= 2;
	return s;
}

int tok_vocab_init(struct tok_vocab *v, uint32_t n, uint32_t n_present, struct od_err *err)
{
	v->n = n;
	v->n_slots = slots_for(n_present);
	v->entry = calloc(n > 0 ? n : 1, sizeof(*v->entry));
	v->slot = calloc(v->n_slots, sizeof(*v->slot));
	if (v->entry == NULL || v->slot == NULL)
		return od_fail(err, OD_ERR_NOMEM, "vocabulary of %u ids", n);
	return OD_OK;
}

static uint32_t slot_of(const struct tok_vocab *v, const char *s, size_t len)
{
	uint32_t mask = v->n_slots - 1;
	uint32_t at = (uint32_t)XXH3_64bits(s, len) & mask;

	while (v->slot[at] != 0) {
		const struct tok_entry *e = &v->entry[v->slot[at] - 1];

		if (e->len == len && memcmp(v->bytes.data + e->at, s, len) == 0)
			break;
		at = (at + 1) & mask;
	}
	return at;
}

int tok_vocab_add(struct tok_vocab *v, const char *s, size_t len, uint32_t id, uint8_t flags)
{
	uint32_t at;
	int rc = tok_buf_add(&v->bytes, s, len);

	if (rc != OD_OK)
		return rc;
	at = (uint32_t)(v->bytes.len - len);
	v->slot[slot_of(v, s, len)] = id + 1;
	v->entry[id] = (struct tok_entry){ at, (uint32_t)len, at, (uint32_t)len, flags | TOK_PRESENT };
	v->n_present++;
	return OD_OK;
}

int32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t len)
{
	return (int32_t)v->slot[slot_of(v, s, len)] - 1;
}

void tok_vocab_fini(struct tok_vocab *v)
{
	tok_buf_fini(&v->bytes);
	free(v->entry);
	free(v->slot);
	memset(v, 0, sizeof(*v));
}

/* Finds a token of the model's vocabulary; added tokens outside it do not count. */
static int32_t find_in_model(const struct tok_vocab *v, const char *s, size_t len)
{
	int32_t id = tok_vocab_find(v, s, len);

	return id >= 0 && (v->entry[id].flags & TOK_IN_MODEL) != 0 ? id : -1;
}

/* ---- loading ---- */

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */
#define SPACE_MARK_BYTES 3u

static int check_vocab(const json_t *vocab, uint32_t *n, const char *where, struct od_err *err)
{
	const char *key;
	json_t *value;

	*n = 0;
	if (json_object_size(vocab) == 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"model.vocab\": expected at least one token", where);
	json_object_foreach((json_t *)vocab, key, value)
	{
		json_int_t id = json_integer_value(value);

		if (!json_is_integer(value) || id < 0 || id >= TOK_MAX_IDS)
			return od_fail(
				err, OD_ERR_RANGE,
				"%s: field \"model.vocab\": token \"%.64s\": expected an id from 0 to %u, found %lld",
				where, key, TOK_MAX_IDS - 1, json_is_integer(value) ? (long long)id : -1LL);
		if (strlen(key) > TOK_MAX_TOKEN_BYTES)
			return od_fail(err, OD_ERR_RANGE,
				       "%s: field \"model.vocab\": id %lld: expected at most %u bytes, found %zu",
				       where, (long long)id, TOK_MAX_TOKEN_BYTES, strlen(key));
		if ((uint32_t)id >= *n)
			*n = (uint32_t)id + 1;
	}
	return OD_OK;
}

static uint32_t highest_added(const json_t *added)
{
	uint32_t n = 0;
	json_t *token;
	size_t i;

	json_array_foreach(added, i, token)
	{
		json_int_t id = json_integer_value(json_object_get(token, "id"));

		if (id >= 0 && id < TOK_MAX_IDS && (uint32_t)id >= n)
			n = (uint32_t)id + 1;
	}
	return n;
}

static int load_vocab(struct od_tokenizer *t, const json_t *vocab, const json_t *added, const char *where,
		      struct od_err *err)
{
	uint32_t n, n_added = highest_added(added);
	const char *key;
	json_t *value;
	int rc;

	rc = check_vocab(vocab, &n, where, err);
	if (rc != OD_OK)
		return rc;
	rc = tok_vocab_init(&t->vocab, n > n_added ? n : n_added,
			    (uint32_t)(json_object_size(vocab) + json_array_size(added)), err);
	if (rc != OD_OK)
		return rc;
	json_object_foreach((json_t *)vocab, key, value)
	{
		uint32_t id = (uint32_t)json_integer_value(value);

		if (t->vocab.entry[id].flags != 0)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: field \"model.vocab\": expected different ids, found %u for \"%.64s\" and "
				       "another token",
				       where, id, key);
		rc = tok_vocab_add(&t->vocab, key, strlen(key), id, TOK_IN_MODEL);
		if (rc != OD_OK)
			return od_fail(err, rc, "%s: vocabulary", where);
	}
	return OD_OK;
}

static struct tok_merge *merge_slot(const struct tok_bpe *b, uint64_t pair)
{
	uint64_t h = (pair ^ pair >> 32) * 0x9e3779b97f4a7c15u;
	uint32_t mask = b->n_slots - 1, at;

	h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
	at = (uint32_t)(h >> 32) & mask;

	while (b->merge[at].pair != UINT64_MAX && b->merge[at].pair != pair)
		at = (at + 1) & mask;
	return &b->merge[at];
}

static const struct tok_merge *find_merge(const struct tok_bpe *b, int32_t left, int32_t right)
{
	const struct tok_merge *m = merge_slot(b, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);

	return m->pair == UINT64_MAX ? NULL : m;
}

void tok_bpe_init(struct tok_bpe *b)
{
	b->unk = -1;
	for (int i = 0; i < 256; i++)
		b->byte_id[i] = b->raw_id[i] = -1;
}

int tok_bpe_init_merges(struct tok_bpe *b, uint32_t n)
{
	b->n_slots = slots_for(n);
	b->merge = malloc(b->n_slots * sizeof(*b->merge));
	if (b->merge == NULL)
		return OD_ERR_NOMEM;
	for (uint32_t i = 0; i < b->n_slots; i++)
		b->merge[i].pair = UINT64_MAX;
	return OD_OK;
}

/* The unknown token, or one of a byte: where it stands, the text has other bytes. */
static bool is_stand_in(const struct tok_bpe *b, const struct tok_entry *e, const char *bytes, int32_t id)
{
	return id == b->unk || (e->len == 6 && memcmp(bytes + e->at, "<0x", 3) == 0);
}

void tok_bpe_add_merge(struct od_tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
	const struct tok_entry *a = &t->vocab.entry[left], *b = &t->vocab.entry[right];
	const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	const char *bytes = t->vocab.bytes.data;

	*merge_slot(&t->bpe, pair) = (struct tok_merge){ pair, rank, merged };
	t->bpe.joins_stand_ins |= is_stand_in(&t->bpe, a, bytes, left) || is_stand_in(&t->bpe, b, bytes, right);
	if (a->len > 0 && b->len > 0) {
		const unsigned char last = (unsigned char)bytes[a->at + a->len - 1],
				    first = (unsigned char)bytes[b->at];

		if (b->len >= SPACE_MARK_BYTES && memcmp(bytes + b->at, SPACE_MARK, SPACE_MARK_BYTES) == 0)
			t->bpe.joins_mark[last] = true;
		if (first == '\n')
			t->bpe.joins_line[last] = true;
		if (last == '\n')
			t->bpe.line_joins[first] = true;
	}
}

void tok_bpe_finish(struct od_tokenizer *t)
{
	struct tok_bpe *b = &t->bpe;
	bool all_bytes = b->byte_fallback;
	char c[4];

	for (int i = 0; i < 256; i++) {
		all_bytes = all_bytes && b->byte_id[i] >= 0;
		b->raw_id[i] = find_in_model(
			&t->vocab, c,
			(size_t)utf8proc_encode_char(tok_byte_to_char((uint8_t)i), (utf8proc_uint8_t *)c));
	}
	/* An unknown character may fuse with the next one, or is lost and lets its neighbours merge: no word must end
	 * there. */
	b->may_cut = !b->ignore_merges && !b->joins_stand_ins && b->prefix == NULL && b->suffix == NULL &&
		     (all_bytes || (!b->byte_fallback && b->unk >= 0 && !b->fuse_unk));
}

/* "a b" or ["a", "b"]. */
static bool split_merge(const json_t *m, const char **left, size_t *left_len, const char **right, size_t *right_len)
{
	if (json_is_string(m)) {
		const char *s = json_string_value(m);
		size_t len = json_string_length(m);
		const char *space = memchr(s, ' ', len);

		if (space == NULL || memchr(space + 1, ' ', len - (size_t)(space + 1 - s)) != NULL)
			return false;
		*left = s;
		*left_len = (size_t)(space - s);
		*right = space + 1;
		*right_len = len - *left_len - 1;
		return true;
	}
	if (!json_is_array(m) || json_array_size(m) != 2 || !json_is_string(json_array_get(m, 0)) ||
	    !json_is_string(json_array_get(m, 1)))
		return false;
	*left = json_string_value(json_array_get(m, 0));
	*left_len = json_string_length(json_array_get(m, 0));
	*right = json_string_value(json_array_get(m, 1));
	*right_len = json_string_length(json_array_get(m, 1));
	return true;
}

static int load_merge(struct od_tokenizer *t, const json_t *m, uint32_t rank, const char *where, struct od_err *err)
{
	const char *left, *right;
	size_t left_len, right_len;
	struct tok_buf joined = { 0 };
	int32_t a, b, ab = -1;
	int rc;

	if (!split_merge(m, &left, &left_len, &right, &right_len))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"model.merges\": entry %u: expected \"a b\" or [\"a\", \"b\"]", where, rank);
	a = find_in_model(&t->vocab, left, left_len);
	b = find_in_model(&t->vocab, right, right_len);
	if (a >= 0 && b >= 0 && right_len >= t->bpe.prefix_len) {
		/* The prefix of continuing subwords stands only once in the merged token. */
		rc = tok_buf_add(&joined, left, left_len);
		if (rc == OD_OK)
			rc = tok_buf_add(&joined, right + t->bpe.prefix_len, right_len - t->bpe.prefix_len);
		if (rc == OD_OK)
			ab = find_in_model(&t->vocab, joined.data, joined.len);
		tok_buf_fini(&joined);
		if (rc != OD_OK)
			return od_fail(err, rc, "%s: merges", where);
	}
	if (ab < 0)
		return od_fail(
			err, OD_ERR_FORMAT,
			"%s: field \"model.merges\": entry %u: expected both halves and the whole in the vocabulary, "
			"found \"%.64s\" and \"%.64s\"",
			where, rank, left, right);
	tok_bpe_add_merge(t, a, b, rank, ab);
	return OD_OK;
}

static int load_merges(struct od_tokenizer *t, const json_t *merges, const char *where, struct od_err *err)
{
	uint32_t rank = 0;
	json_t *m;
	size_t i;
	int rc;

	rc = tok_bpe_init_merges(&t->bpe, (uint32_t)json_array_size(merges));
	if (rc != OD_OK)
		return od_fail(err, rc, "%s: %zu merges", where, json_array_size(merges));
	json_array_foreach(merges, i, m)
	{
		/* A line that old merges.txt files began with. */
		if (json_is_string(m) && strncmp(json_string_value(m), "#version", 8) == 0)
			continue;
		rc = load_merge(t, m, rank++, where, err);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

static int optional_text(const json_t *obj, const char *key, char **out, size_t *len, const char *where,
			 struct od_err *err)
{
	const char *s;
	int rc;

	*out = NULL;
	*len = 0;
	if (!od_json_has(obj, key))
		return OD_OK;
	rc = od_json_str(obj, key, &s, where, err);
	if (rc != OD_OK)
		return rc;
	*out = strdup(s);
	*len = strlen(s);
	if (*len > TOK_MAX_CONTENT_BYTES)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"%s\": expected at most %u bytes, found %zu", where, key,
			       TOK_MAX_CONTENT_BYTES, *len);
	return *out != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: %s", where, key);
}

static int load_options(struct od_tokenizer *t, const json_t *model, const char *where, struct od_err *err)
{
	struct tok_bpe *b = &t->bpe;
	double dropout;
	int rc;

	rc = od_json_f64_or(model, "dropout", 0, 1, 0, &dropout, where, err);
	if (rc == OD_OK && dropout != 0)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: field \"model.dropout\": expected none (it makes encoding random), found %g", where,
			       dropout);
	if (rc == OD_OK)
		rc = od_json_bool_or(model, "fuse_unk", false, &b->fuse_unk, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(model, "byte_fallback", false, &b->byte_fallback, where, err);
	if (rc == OD_OK)
		rc = od_json_bool_or(model, "ignore_merges", false, &b->ignore_merges, where, err);
	if (rc == OD_OK)
		rc = optional_text(model, "continuing_subword_prefix", &b->prefix, &b->prefix_len, where, err);
	if (rc == OD_OK)
		rc = optional_text(model, "end_of_word_suffix", &b->suffix, &b->suffix_len, where, err);
	return rc;
}

/* After the vocabulary: ids of the unknown token and of the bytes. */
static int load_fallbacks(struct od_tokenizer *t, const json_t *model, const char *where, struct od_err *err)
{
	const char *unk;
	char name[8];
	int rc;

	tok_bpe_init(&t->bpe);
	if (od_json_has(model, "unk_token")) {
		rc = od_json_str(model, "unk_token", &unk, where, err);
		if (rc != OD_OK)
			return rc;
		t->bpe.unk = find_in_model(&t->vocab, unk, strlen(unk));
		if (t->bpe.unk < 0)
			return od_fail(
				err, OD_ERR_FORMAT,
				"%s: field \"model.unk_token\": expected a token of the vocabulary, found \"%.64s\"",
				where, unk);
	}
	for (int i = 0; i < 256; i++) {
		snprintf(name, sizeof(name), "<0x%02X>", (unsigned)i & 0xff);
		t->bpe.byte_id[i] = find_in_model(&t->vocab, name, 6);
	}
	return OD_OK;
}

int tok_model_parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err)
{
	json_t *model, *vocab, *merges;
	const char *type;
	int rc = od_json_obj(root, "model", &model, where, err);

	if (rc != OD_OK)
		return rc;
	/* Files from before there were other models do not say which one they are. */
	type = od_json_has(model, "merges") ? "BPE" : "nameless";
	if (od_json_has(model, "type"))
		rc = od_json_str(model, "type", &type, where, err);
	if (rc == OD_OK && strcmp(type, "BPE") != 0)
		rc = tok_unsupported(err, where, "model", type, "BPE");
	if (rc == OD_OK)
		rc = od_json_obj(model, "vocab", &vocab, where, err);
	if (rc == OD_OK)
		rc = od_json_arr(model, "merges", &merges, where, err);
	if (rc == OD_OK)
		rc = load_options(t, model, where, err);
	if (rc == OD_OK)
		rc = load_vocab(t, vocab, json_object_get(root, "added_tokens"), where, err);
	if (rc == OD_OK)
		rc = load_fallbacks(t, model, where, err);
	if (rc == OD_OK)
		rc = load_merges(t, merges, where, err);
	if (rc == OD_OK)
		tok_bpe_finish(t);
	return rc;
}

void tok_bpe_fini(struct tok_bpe *b)
{
	free(b->merge);
	free(b->prefix);
	free(b->suffix);
	memset(b, 0, sizeof(*b));
}

/* ---- merging ---- */

#define NO_SYMBOL UINT32_MAX

struct symbol {
	int32_t id; /* -1: merged into the one before */
	uint32_t prev, next;
};
struct tok_bpe_candidate {
	uint32_t rank, pos;
	int32_t merged;
};
struct tok_bpe_scratch {
	struct symbol *sym;
	size_t n_sym, cap_sym;
	size_t max_ids;
	struct tok_bpe_candidate *heap;
	size_t n_heap, cap_heap;
	struct tok_buf dressed; /* a character with prefix and suffix */
	struct tok_buf mapped; /* a word in the byte alphabet */
};

struct tok_bpe_scratch *tok_bpe_scratch_new(size_t max_ids)
{
	struct tok_bpe_scratch *s = calloc(1, sizeof(*s));

	if (s != NULL)
		s->max_ids = max_ids;
	return s;
}

void tok_bpe_scratch_free(struct tok_bpe_scratch *s)
{
	if (s == NULL)
		return;
	free(s->sym);
	free(s->heap);
	tok_buf_fini(&s->dressed);
	tok_buf_fini(&s->mapped);
	free(s);
}

static bool before(const struct tok_bpe_candidate *a, const struct tok_bpe_candidate *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static int heap_push(struct tok_bpe_scratch *s, struct tok_bpe_candidate c)
{
	size_t i = s->n_heap;
	int rc = tok_grow(&s->heap, s->n_heap, &s->cap_heap, sizeof(*s->heap));

	if (rc != OD_OK)
		return rc;
	s->n_heap++;
	while (i > 0 && before(&c, &s->heap[(i - 1) / 2])) {
		s->heap[i] = s->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	s->heap[i] = c;
	return OD_OK;
}

static struct tok_bpe_candidate heap_pop(struct tok_bpe_scratch *s)
{
	struct tok_bpe_candidate top = s->heap[0], last = s->heap[--s->n_heap];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < s->n_heap) {
		if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child]))
			child++;
		if (!before(&s->heap[child], &last))
			break;
		s->heap[i] = s->heap[child];
		i = child;
	}
	s->heap[i] = last;
	return top;
}

static int add_symbol(struct tok_bpe_scratch *s, int32_t id)
{
	int rc = tok_grow(&s->sym, s->n_sym, &s->cap_sym, sizeof(*s->sym));

	if (rc != OD_OK)
		return rc;
	if (s->n_sym >= NO_SYMBOL - 1)
		return OD_ERR_RANGE;
	s->sym[s->n_sym] = (struct symbol){ id, s->n_sym > 0 ? (uint32_t)s->n_sym - 1 : NO_SYMBOL, NO_SYMBOL };
	if (s->n_sym > 0)
		s->sym[s->n_sym - 1].next = (uint32_t)s->n_sym;
	s->n_sym++;
	return OD_OK;
}

static int consider(struct tok_bpe_scratch *s, const struct tok_bpe *b, uint32_t pos)
{
	const struct tok_merge *m;

	if (pos == NO_SYMBOL || s->sym[pos].next == NO_SYMBOL)
		return OD_OK;
	m = find_merge(b, s->sym[pos].id, s->sym[s->sym[pos].next].id);
	return m == NULL ? OD_OK : heap_push(s, (struct tok_bpe_candidate){ m->rank, pos, m->merged });
}

static void rank_pair(const struct tok_bpe *b, const int32_t *id, size_t i, uint32_t *rank, int32_t *to)
{
	const struct tok_merge *m = find_merge(b, id[i], id[i + 1]);

	rank[i] = m != NULL ? m->rank : UINT32_MAX;
	to[i] = m != NULL ? m->merged : -1;
}

/* Lowest rank first, leftmost first among equals. A candidate whose symbols have changed since is dropped,
 * except when the pair that stands there now gives the same token: the reference takes it then. */
static int merge_all(struct tok_bpe_scratch *s, const struct tok_bpe *b)
{
	int rc = OD_OK;

	s->n_heap = 0;
	for (size_t i = 0; i + 1 < s->n_sym && rc == OD_OK; i++)
		rc = consider(s, b, (uint32_t)i);
	while (s->n_heap > 0 && rc == OD_OK) {
		struct tok_bpe_candidate c = heap_pop(s);
		struct symbol *left = &s->sym[c.pos], *right;
		const struct tok_merge *m;

		if (left->id < 0 || left->next == NO_SYMBOL)
			continue;
		right = &s->sym[left->next];
		m = find_merge(b, left->id, right->id);
		if (m == NULL || m->merged != c.merged)
			continue;
		left->id = c.merged;
		left->next = right->next;
		right->id = -1;
		if (left->next != NO_SYMBOL)
			s->sym[left->next].prev = c.pos;
		rc = consider(s, b, left->prev);
		if (rc == OD_OK)
			rc = consider(s, b, c.pos);
	}
	return rc;
}

/* The vocabulary entry of the character at [at, at + n) of word, dressed with what the model adds to it. *text
 * is what the entry would be called: its bytes fall back. */
static int find_char(const struct od_tokenizer *t, struct tok_bpe_scratch *s, const char *word, size_t len, size_t at,
		     size_t n, const char **text, size_t *text_len, int32_t *id)
{
	const struct tok_bpe *b = &t->bpe;
	bool prefix = at > 0 && b->prefix != NULL, suffix = at + n == len && b->suffix != NULL;
	int rc = OD_OK;

	*text = word + at;
	*text_len = n;
	if (prefix || suffix) {
		s->dressed.len = 0;
		if (prefix)
			rc = tok_buf_add(&s->dressed, b->prefix, b->prefix_len);
		if (rc == OD_OK)
			rc = tok_buf_add(&s->dressed, word + at, n);
		if (rc == OD_OK && suffix)
			rc = tok_buf_add(&s->dressed, b->suffix, b->suffix_len);
		*text = s->dressed.data;
		*text_len = s->dressed.len;
	}
	*id = rc == OD_OK ? find_in_model(&t->vocab, *text, *text_len) : -1;
	return rc;
}

static int add_bytes(const struct tok_bpe *b, struct tok_bpe_scratch *s, const char *text, size_t len, bool *done)
{
	int rc = OD_OK;

	*done = false;
	if (!b->byte_fallback)
		return OD_OK;
	for (size_t i = 0; i < len; i++)
		if (b->byte_id[(unsigned char)text[i]] < 0)
			return OD_OK; /* all of them or none */
	for (size_t i = 0; i < len && rc == OD_OK; i++)
		rc = add_symbol(s, b->byte_id[(unsigned char)text[i]]);
	*done = true;
	return rc;
}

/* An unknown character waits in *unk_waits: the next may fuse with it. Bytes overtake it, as in the reference
 * (they do so only where the vocabulary has some byte tokens, but not all). */
static int add_char(const struct od_tokenizer *t, struct tok_bpe_scratch *s, int32_t id, const char *text, size_t len,
		    bool *unk_waits)
{
	const struct tok_bpe *b = &t->bpe;
	bool done;
	int rc = OD_OK;

	if (id >= 0) {
		if (*unk_waits)
			rc = add_symbol(s, b->unk);
		*unk_waits = false;
		return rc == OD_OK ? add_symbol(s, id) : rc;
	}
	rc = add_bytes(b, s, text, len, &done);
	if (rc != OD_OK || done || b->unk < 0)
		return rc; /* without an unknown token the character is lost */
	if (*unk_waits && !b->fuse_unk)
		rc = add_symbol(s, b->unk);
	*unk_waits = true;
	return rc;
}

#define SHORT_SYMBOLS 48u

/* merge_long for few symbols: looking at all pairs each time is faster than a heap. */
static int merge_short(const struct tok_bpe_scratch *s, const struct tok_bpe *b, struct tok_ids *ids)
{
	int32_t id[SHORT_SYMBOLS], to[SHORT_SYMBOLS];
	uint32_t rank[SHORT_SYMBOLS]; /* rank of the pair of symbol i and the next; UINT32_MAX: do not merge */
	size_t n = s->n_sym;
	int rc = OD_OK;

	for (size_t i = 0; i < n; i++) {
		id[i] = s->sym[i].id;
		rank[i] = UINT32_MAX;
	}
	for (size_t i = 0; i + 1 < n; i++)
		rank_pair(b, id, i, rank, to);
	while (n > 1) {
		size_t best = 0;

		for (size_t i = 1; i + 1 < n; i++)
			best = rank[i] < rank[best] ? i : best;
		if (rank[best] == UINT32_MAX)
			break;
		id[best] = to[best];
		n--;
		for (size_t i = best + 1; i < n; i++) {
			id[i] = id[i + 1];
			rank[i] = rank[i + 1];
			to[i] = to[i + 1];
		}
		rank[best] = rank[n - 1] = UINT32_MAX;
		if (best + 1 < n)
			rank_pair(b, id, best, rank, to);
		if (best > 0)
			rank_pair(b, id, best - 1, rank, to);
	}
	for (size_t i = 0; i < n && rc == OD_OK; i++)
		rc = tok_ids_add(ids, id[i]);
	return rc;
}

static int merge_long(struct tok_bpe_scratch *s, const struct tok_bpe *b, struct tok_ids *ids)
{
	int rc = merge_all(s, b);

	for (size_t i = 0; i < s->n_sym && rc == OD_OK; i++)
		if (s->sym[i].id >= 0)
			rc = tok_ids_add(ids, s->sym[i].id);
	return rc;
}

/* A word of plain bytes as it is called in the vocabulary. */
static int write_raw(struct tok_bpe_scratch *s, const char *word, size_t len)
{
	struct tok_buf *b = &s->mapped;
	int rc;

	b->len = 0;
	rc = tok_buf_reserve(b, 2 * len);
	if (rc == OD_OK)
		for (size_t i = 0; i < len; i++)
			b->len += (size_t)utf8proc_encode_char(tok_byte_to_char((uint8_t)word[i]),
							       (utf8proc_uint8_t *)b->data + b->len);
	return rc;
}

static int bpe_word(const struct od_tokenizer *t, struct tok_bpe_scratch *s, const char *word, size_t len,
		    struct tok_ids *ids)
{
	bool unk_waits = false;
	int rc = OD_OK;
	int32_t id, cp;

	if (t->bpe.ignore_merges) {
		id = find_in_model(&t->vocab, word, len);
		if (id >= 0)
			return tok_ids_add(ids, id);
	}
	s->n_sym = 0;
	for (size_t at = 0, n; at < len && rc == OD_OK; at += n) {
		const char *text;
		size_t text_len;

		n = tok_char(word + at, len - at, &cp);
		rc = find_char(t, s, word, len, at, n, &text, &text_len, &id);
		if (rc == OD_OK)
			rc = add_char(t, s, id, text, text_len, &unk_waits);
		if (rc == OD_OK && ids->n + s->n_sym > s->max_ids)
			rc = OD_ERR_RANGE; /* bytes of prefixes and suffixes */
	}
	if (rc == OD_OK && unk_waits)
		rc = add_symbol(s, t->bpe.unk);
	if (rc != OD_OK)
		return rc;
	return s->n_sym <= SHORT_SYMBOLS ? merge_short(s, &t->bpe, ids) : merge_long(s, &t->bpe, ids);
}

/* Each byte is a character of the vocabulary, which no affix changes. */
static int bpe_bytes(const struct od_tokenizer *t, struct tok_bpe_scratch *s, const char *word, size_t len,
		     struct tok_ids *ids)
{
	int rc = OD_OK;

	s->n_sym = 0;
	for (size_t i = 0; i < len && rc == OD_OK; i++)
		rc = add_symbol(s, t->bpe.raw_id[(unsigned char)word[i]]);
	if (rc != OD_OK)
		return rc;
	return s->n_sym <= SHORT_SYMBOLS ? merge_short(s, &t->bpe, ids) : merge_long(s, &t->bpe, ids);
}

static bool bytes_suffice(const struct tok_bpe *b, const char *word, size_t len)
{
	if (b->ignore_merges || b->prefix != NULL || b->suffix != NULL)
		return false;
	for (size_t i = 0; i < len; i++)
		if (b->raw_id[(unsigned char)word[i]] < 0)
			return false;
	return true;
}

int tok_model_word(const struct od_tokenizer *t, struct tok_bpe_scratch *s, const char *word, size_t len,
		   struct tok_ids *ids, struct od_err *err)
{
	int rc = OD_OK;

	if (!t->pres.raw) {
		rc = bpe_word(t, s, word, len, ids);
	} else if (bytes_suffice(&t->bpe, word, len)) {
		rc = bpe_bytes(t, s, word, len, ids);
	} else {
		rc = write_raw(s, word, len);
		if (rc == OD_OK)
			rc = bpe_word(t, s, s->mapped.data, s->mapped.len, ids);
	}
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "a word of %zu bytes", len);
}
