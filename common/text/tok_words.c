/* Words to ids, with the words that a call has seen before kept in a table: a text repeats most of its words. */
#include "common/text/tok_internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FIRST_SLOTS 512u
#define MAX_SLOTS (1u << 18) /* 8 MiB; half of them are filled */
#define SHORT_BYTES 15u /* a word of at most so many is its own key */
#define LONG_BYTES 256u /* a longer one is not kept */
#define INLINE_IDS 3u

/* lo, hi: the word's bytes, with its length in the last one. Of a longer word: its hash; where it stands in `text` and
 * LONG. */
#define LONG_KEY (0xffull << 56)
struct word {
	uint64_t lo, hi;
	uint32_t n; /* number of ids; 0: a free slot */
	int32_t id[INLINE_IDS]; /* more than that: id[0] is where they stand in `ids` */
};

struct tok_words {
	const struct od_tokenizer *t;
	const struct od_controls *controls; /* NULL: none */
	struct tok_bpe_scratch *scratch;
	struct word *slot;
	uint32_t n_slots, n_words;
	struct tok_buf text; /* long words: length and bytes */
	struct tok_ids ids;
	bool kept; /* false: the table is full */
};

struct tok_words *tok_words_new(const struct od_tokenizer *t, const struct od_controls *controls, size_t max_ids)
{
	struct tok_words *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return NULL;
	w->t = t;
	w->controls = controls;
	w->n_slots = FIRST_SLOTS;
	w->kept = true;
	w->slot = calloc(w->n_slots, sizeof(*w->slot));
	w->scratch = tok_bpe_scratch_new(max_ids);
	if (w->slot == NULL || w->scratch == NULL) {
		tok_words_free(w);
		return NULL;
	}
	return w;
}

void tok_words_free(struct tok_words *w)
{
	if (w == NULL)
		return;
	tok_bpe_scratch_free(w->scratch);
	free(w->slot);
	tok_buf_fini(&w->text);
	free(w->ids.v);
	free(w);
}

static uint32_t hash_of(uint64_t lo, uint64_t hi)
{
	uint64_t h = lo * 0x9e3779b97f4a7c15u ^ (hi + 0x632be59bd9b4e019u) * 0xff51afd7ed558ccdu;

	h ^= h >> 32;
	h *= 0xc4ceb9fe1a85ec53u;
	return (uint32_t)(h >> 32);
}

/* The key of a short word. left: readable bytes from s on. */
static void short_key(const char *s, size_t len, size_t left, uint64_t *lo, uint64_t *hi)
{
	uint64_t v[2] = { 0, 0 };

	if (left >= 16) {
		memcpy(v, s, 16);
		if (len < 8) {
			v[0] &= ((uint64_t)1 << 8 * len) - 1;
			v[1] = 0;
		} else {
			v[1] &= ((uint64_t)1 << 8 * (len - 8)) - 1;
		}
	} else {
		memcpy(v, s, len);
	}
	*lo = v[0];
	*hi = v[1] | (uint64_t)len << 56;
}

static bool same_long(const struct tok_words *w, const struct word *e, const char *s, size_t len)
{
	const char *kept = w->text.data + (e->hi & ~LONG_KEY);
	uint16_t n;

	memcpy(&n, kept, sizeof(n));
	return n == len && memcmp(kept + sizeof(n), s, len) == 0;
}

/* Doubles the table; false: it stays as it is. */
static bool widen(struct tok_words *w)
{
	uint32_t n = w->n_slots * 2, at;
	struct word *wide = n <= MAX_SLOTS ? calloc(n, sizeof(*wide)) : NULL;

	if (wide == NULL)
		return false;
	for (uint32_t i = 0; i < w->n_slots; i++) {
		const struct word *e = &w->slot[i];

		if (e->n == 0)
			continue;
		at = hash_of(e->lo, e->hi >= LONG_KEY ? LONG_KEY : e->hi) & (n - 1);
		while (wide[at].n != 0)
			at = (at + 1) & (n - 1);
		wide[at] = *e;
	}
	free(w->slot);
	w->slot = wide;
	w->n_slots = n;
	return true;
}

static bool keep_long(struct tok_words *w, struct word *e, const char *s, size_t len)
{
	const uint16_t n = (uint16_t)len;

	e->hi = LONG_KEY | w->text.len;
	return tok_buf_add(&w->text, &n, sizeof(n)) == OD_OK && tok_buf_add(&w->text, s, len) == OD_OK;
}

/* Without memory a word is just not kept. */
static void keep(struct tok_words *w, struct word e, const char *s, size_t len, const int32_t *id, size_t n)
{
	uint32_t at;

	if (n == 0 || !w->kept)
		return;
	if ((w->n_words + 1) * 2 > w->n_slots && !widen(w)) {
		w->kept = false;
		return;
	}
	e.n = (uint32_t)n;
	if (n <= INLINE_IDS) {
		memcpy(e.id, id, n * sizeof(*id));
	} else {
		e.id[0] = (int32_t)w->ids.n;
		for (size_t i = 0; i < n; i++)
			if (tok_ids_add(&w->ids, id[i]) != OD_OK)
				return;
	}
	at = hash_of(e.lo, e.hi) & (w->n_slots - 1);
	if (e.hi == LONG_KEY && !keep_long(w, &e, s, len))
		return;
	while (w->slot[at].n != 0)
		at = (at + 1) & (w->n_slots - 1);
	w->slot[at] = e;
	w->n_words++;
}

static int add_known(const struct tok_words *w, const struct word *e, struct tok_ids *ids)
{
	const int32_t *id = e->n <= INLINE_IDS ? e->id : w->ids.v + e->id[0];
	int rc = OD_OK;

	for (uint32_t i = 0; i < e->n && rc == OD_OK; i++)
		rc = tok_ids_add(ids, id[i]);
	return rc;
}

static int new_word(struct tok_words *w, const char *s, size_t len, struct tok_ids *ids, struct od_err *err)
{
	return w->controls != NULL ? tok_controls_word(w->controls, w->scratch, s, len, ids, err) :
				     tok_model_word(w->t, w->scratch, s, len, ids, err);
}

int tok_words_add(struct tok_words *w, const char *s, size_t len, size_t left, struct tok_ids *ids, struct od_err *err)
{
	const size_t before = ids->n;
	struct word key = { 0 };
	uint32_t at;
	int rc;

	if (len > LONG_BYTES)
		return new_word(w, s, len, ids, err);
	if (len <= SHORT_BYTES) {
		short_key(s, len, left, &key.lo, &key.hi);
	} else {
		key.lo = XXH3_64bits(s, len);
		key.hi = LONG_KEY;
	}
	for (at = hash_of(key.lo, key.hi) & (w->n_slots - 1); w->slot[at].n != 0; at = (at + 1) & (w->n_slots - 1)) {
		const struct word *e = &w->slot[at];

		if (e->lo != key.lo)
			continue;
		if (len <= SHORT_BYTES ? e->hi == key.hi : e->hi >= LONG_KEY && same_long(w, e, s, len)) {
			rc = add_known(w, e, ids);
			return rc == OD_OK ? rc : od_fail(err, rc, "a word of %zu bytes", len);
		}
	}
	rc = new_word(w, s, len, ids, err);
	if (rc == OD_OK)
		keep(w, key, s, len, ids->v + before, ids->n - before);
	return rc;
}
