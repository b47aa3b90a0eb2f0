#include "common/pack/gguf/gguf_vocab.h"

#include "common/text/utf8_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* As common/text takes them from a tokenizer.json. */
#define MAX_TOKENS (1u << 23)
#define MAX_TOKEN_BYTES 65536u
#define MAX_ADDED_BYTES 1024u
#define MAX_PIECE_BYTES 1024u /* bounds the work of finding the merges of a token with a score */
#define AGAIN "; get the file again, or convert the model anew"

/* ---- Tokens by text ---- */

static uint32_t slot_of(const struct gguf_vocab *v, const char *text, size_t len)
{
	uint32_t at = (uint32_t)XXH3_64bits(text, len) & v->mask;

	while (v->slot[at] != 0) {
		const struct gguf_token *t = &v->token[v->slot[at] - 1];

		if (t->len == len && memcmp(t->text, text, len) == 0)
			break;
		at = (at + 1) & v->mask;
	}
	return at;
}

int32_t gguf_vocab_find(const struct gguf_vocab *v, const char *text, size_t len)
{
	return (int32_t)v->slot[slot_of(v, text, len)] - 1;
}

void gguf_vocab_fini(struct gguf_vocab *v)
{
	free(v->token);
	free(v->merge);
	free(v->slot);
	memset(v, 0, sizeof(*v));
}

/* For messages. */
static int shown(size_t len)
{
	return len < 64 ? (int)len : 64;
}

/* ---- Reading tokens ---- */

static int read_types(struct gguf_vocab *v, struct od_err *err)
{
	static const char key[] = "tokenizer.ggml.token_type";
	struct od_gguf_value types;
	int rc;

	for (uint32_t id = 0; id < v->n; id++)
		v->token[id].type = GGUF_TOKEN_NORMAL;
	if (od_gguf_get(v->g, key) == NULL) /* files of 2023 */
		return OD_OK;
	rc = od_gguf_array(v->g, key, OD_GGUF_I32, 0, &types, err);
	if (rc != OD_OK)
		return rc;
	if (types.n != v->n)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: key %s: expected a type for each of the %u tokens, found %" PRIu64 AGAIN,
			       od_gguf_path(v->g), key, v->n, types.n);
	for (uint32_t id = 0; id < v->n; id++) {
		const int64_t type = od_gguf_int_at(&types, id);

		if (type < 0 || type > GGUF_TOKEN_BYTE)
			return od_fail(
				err, OD_ERR_UNSUPPORTED,
				"%s: key %s: token %u: expected a type from 1 (normal) to 6 (byte), found %" PRId64
					AGAIN,
				od_gguf_path(v->g), key, id, type);
		if (type != 0) /* undefined */
			v->token[id].type = (uint8_t)type;
	}
	return OD_OK;
}

static int add_token(struct gguf_vocab *v, uint32_t id, struct od_err *err)
{
	struct gguf_token *t = &v->token[id], *old;
	uint32_t at;

	if (t->len > MAX_TOKEN_BYTES)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: key tokenizer.ggml.tokens: token %u: expected at most %u bytes, found %u" AGAIN,
			       od_gguf_path(v->g), id, MAX_TOKEN_BYTES, t->len);
	if (!odm_utf8_valid(t->text, t->len) || memchr(t->text, '\0', t->len) != NULL)
		return od_fail(
			err, OD_ERR_FORMAT,
			"%s: key tokenizer.ggml.tokens: token %u: expected UTF-8 without NULs, found other bytes" AGAIN,
			od_gguf_path(v->g), id);
	if (t->len == 0) { /* a row of the embedding without a token */
		t->type = GGUF_TOKEN_UNUSED;
		return OD_OK;
	}
	at = slot_of(v, t->text, t->len);
	if (v->slot[at] != 0) {
		old = &v->token[v->slot[at] - 1];
		if (t->type != GGUF_TOKEN_UNUSED && old->type != GGUF_TOKEN_UNUSED)
			return od_fail(
				err, OD_ERR_FORMAT,
				"%s: key tokenizer.ggml.tokens: expected different tokens, found \"%.*s\" as token %u and %u" AGAIN,
				od_gguf_path(v->g), shown(t->len), t->text, v->slot[at] - 1, id);
		if (t->type == GGUF_TOKEN_UNUSED) {
			t->len = 0;
			return OD_OK;
		}
		old->len = 0;
	}
	v->slot[at] = id + 1;
	return OD_OK;
}

static int read_tokens(struct gguf_vocab *v, struct od_err *err)
{
	static const char key[] = "tokenizer.ggml.tokens";
	const struct od_gguf_tensor *embed = od_gguf_find(v->g, "token_embd.weight");
	struct od_gguf_value tokens;
	const uint8_t *at;
	uint64_t most = MAX_TOKENS;
	uint32_t n_slots = 16;
	size_t len;
	int rc = od_gguf_array(v->g, key, OD_GGUF_STRING, 1, &tokens, err);

	if (rc != OD_OK)
		return rc;
	if (embed != NULL && embed->dim[1] < most) /* a row for each token */
		most = embed->dim[1];
	if (tokens.n > most)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: key %s: expected at most %" PRIu64 " tokens, found %" PRIu64 AGAIN,
			       od_gguf_path(v->g), key, most, tokens.n);
	while (n_slots < tokens.n * 2)
		n_slots *= 2;
	v->token = calloc(tokens.n, sizeof(*v->token));
	v->slot = calloc(n_slots, sizeof(*v->slot));
	if (v->token == NULL || v->slot == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %" PRIu64 " tokens", od_gguf_path(v->g), tokens.n);
	v->n = (uint32_t)tokens.n;
	v->mask = n_slots - 1;
	at = tokens.at;
	for (uint32_t id = 0; id < v->n; id++) {
		v->token[id].text = od_gguf_next_string(&at, &len);
		v->token[id].len = (uint32_t)(len < UINT32_MAX ? len : UINT32_MAX);
	}
	rc = read_types(v, err);
	for (uint32_t id = 0; rc == OD_OK && id < v->n; id++)
		rc = add_token(v, id, err);
	return rc;
}

static int read_id(const struct gguf_vocab *v, const char *key, int32_t *out, struct od_err *err)
{
	uint64_t id;
	int rc;

	if (od_gguf_get(v->g, key) == NULL)
		return OD_OK;
	rc = od_gguf_u64(v->g, key, 0, UINT32_MAX, &id, err);
	if (rc != OD_OK)
		return rc;
	if (id == UINT32_MAX) { /* -1: so says who has none */
		*out = -1;
		return OD_OK;
	}
	if (id >= v->n)
		return od_fail(err, OD_ERR_RANGE, "%s: key %s: expected an id below %u, found %" PRIu64 AGAIN,
			       od_gguf_path(v->g), key, v->n, id);
	*out = v->token[id].len > 0 ? (int32_t)id : -1;
	return OD_OK;
}

static int read_ids(struct gguf_vocab *v, struct od_err *err)
{
	const bool scores = v->model == GGUF_VOCAB_SCORES;
	int rc;

	v->bos = scores && v->n > 2 ? 1 : -1; /* SentencePiece's own numbers */
	v->eos = scores && v->n > 2 ? 2 : -1;
	v->eot = v->eom = v->unk = -1;
	rc = read_id(v, "tokenizer.ggml.bos_token_id", &v->bos, err);
	if (rc == OD_OK)
		rc = read_id(v, "tokenizer.ggml.eos_token_id", &v->eos, err);
	if (rc == OD_OK)
		rc = read_id(v, "tokenizer.ggml.eot_token_id", &v->eot, err);
	if (rc == OD_OK)
		rc = read_id(v, "tokenizer.ggml.eom_token_id", &v->eom, err);
	if (rc == OD_OK && v->model != GGUF_VOCAB_BYTES) /* bytes are never unknown */
		rc = read_id(v, "tokenizer.ggml.unknown_token_id", &v->unk, err);
	if (rc != OD_OK || v->model == GGUF_VOCAB_BYTES)
		return rc;
	for (uint32_t id = 0; v->unk < 0 && id < v->n; id++)
		v->unk = v->token[id].type == GGUF_TOKEN_UNKNOWN && v->token[id].len > 0 ? (int32_t)id : -1;
	if (v->unk < 0)
		v->unk = gguf_vocab_find(v, "<unk>", 5);
	return OD_OK;
}

static void find_bytes(struct gguf_vocab *v)
{
	char name[8];

	v->all_bytes = v->model != GGUF_VOCAB_BYTES;
	for (unsigned b = 0; b < 256; b++) {
		snprintf(name, sizeof(name), "<0x%02X>", b);
		v->all_bytes = v->all_bytes && gguf_vocab_find(v, name, 6) >= 0;
	}
}

/* ---- Merges ---- */

static int add_merge(struct gguf_vocab *v, struct gguf_merge m, size_t *cap, struct od_err *err)
{
	struct gguf_merge *more;

	if (v->n_merges == *cap) {
		*cap = *cap > 0 ? *cap * 2 : 1024;
		more = realloc(v->merge, *cap * sizeof(*more));
		if (more == NULL)
			return od_fail(err, OD_ERR_NOMEM, "%s: no memory for merges", od_gguf_path(v->g));
		v->merge = more;
	}
	v->merge[v->n_merges++] = m;
	v->token[m.left].merges = v->token[m.right].merges = v->token[m.made].merges = true;
	return OD_OK;
}

/* "left right": a token has no space, unless it begins with one. made has room for a token of any length. */
static int parse_merge(const struct gguf_vocab *v, const char *text, size_t len, char *made, struct gguf_merge *m)
{
	const char *space = len > 2 && len <= MAX_TOKEN_BYTES ? memchr(text + 1, ' ', len - 1) : NULL;
	size_t n_left;
	int32_t left, right, both;

	if (space == NULL)
		return OD_ERR_FORMAT;
	n_left = (size_t)(space - text);
	memcpy(made, text, n_left);
	memcpy(made + n_left, space + 1, len - n_left - 1);
	left = gguf_vocab_find(v, text, n_left);
	right = gguf_vocab_find(v, space + 1, len - n_left - 1);
	both = gguf_vocab_find(v, made, len - 1);
	if (left < 0 || right < 0 || both < 0)
		return OD_ERR_FORMAT;
	*m = (struct gguf_merge){ (uint32_t)left, (uint32_t)right, (uint32_t)both };
	return OD_OK;
}

static int read_merges(struct gguf_vocab *v, struct od_err *err)
{
	static const char key[] = "tokenizer.ggml.merges";
	struct od_gguf_value merges;
	struct gguf_merge m;
	const uint8_t *at;
	char *made;
	size_t cap = 0;
	int rc = od_gguf_array(v->g, key, OD_GGUF_STRING, 0, &merges, err);

	if (rc != OD_OK)
		return rc;
	made = malloc(MAX_TOKEN_BYTES);
	if (made == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for merges", od_gguf_path(v->g));
	at = merges.at;
	for (uint64_t i = 0; rc == OD_OK && i < merges.n; i++) {
		size_t len;
		const char *text = od_gguf_next_string(&at, &len);

		rc = parse_merge(v, text, len, made, &m);
		if (rc != OD_OK)
			rc = od_fail(err, rc,
				     "%s: key %s: merge %" PRIu64
				     ": expected two tokens that together are a third, found \"%.*s\"" AGAIN,
				     od_gguf_path(v->g), key, i, shown(len), text);
		else
			rc = add_merge(v, m, &cap, err);
	}
	free(made);
	return rc;
}

/* Each way to make a token of two others. */
static int cut_token(struct gguf_vocab *v, uint32_t id, size_t *cap, struct od_err *err)
{
	const struct gguf_token *t = &v->token[id];
	int rc = OD_OK;

	for (size_t at = odm_utf8_char(t->text, t->len); rc == OD_OK && at < t->len;
	     at += odm_utf8_char(t->text + at, t->len - at)) {
		const int32_t left = gguf_vocab_find(v, t->text, at),
			      right = left < 0 ? -1 : gguf_vocab_find(v, t->text + at, t->len - at);

		if (right >= 0 && v->token[left].type == GGUF_TOKEN_NORMAL && v->token[right].type == GGUF_TOKEN_NORMAL)
			rc = add_merge(v, (struct gguf_merge){ (uint32_t)left, (uint32_t)right, id }, cap, err);
	}
	return rc;
}

struct scored_merge {
	struct gguf_merge m;
	double score; /* the made token has it */
	size_t n_left, n_right; /* characters */
};

/* The best score first; equal ones as transformers' converter of SentencePiece models orders them. */
static int by_score(const void *x, const void *y)
{
	const struct scored_merge *a = x, *b = y;

	if (a->score != b->score)
		return a->score > b->score ? -1 : 1;
	if (a->n_left != b->n_left)
		return a->n_left > b->n_left ? -1 : 1;
	if (a->n_right != b->n_right)
		return a->n_right > b->n_right ? -1 : 1;
	return a->m.made < b->m.made ? -1 : a->m.made > b->m.made;
}

static int sort_merges(struct gguf_vocab *v, const struct od_gguf_value *scores, struct od_err *err)
{
	struct scored_merge *s = malloc((v->n_merges > 0 ? v->n_merges : 1) * sizeof(*s));

	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for merges", od_gguf_path(v->g));
	for (size_t i = 0; i < v->n_merges; i++) {
		const struct gguf_merge m = v->merge[i];

		s[i] = (struct scored_merge){ m, od_gguf_number_at(scores, m.made),
					      odm_utf8_count(v->token[m.left].text, v->token[m.left].len),
					      odm_utf8_count(v->token[m.right].text, v->token[m.right].len) };
	}
	if (v->n_merges > 0)
		qsort(s, v->n_merges, sizeof(*s), by_score);
	for (size_t i = 0; i < v->n_merges; i++)
		v->merge[i] = s[i].m;
	free(s);
	return OD_OK;
}

static int make_merges(struct gguf_vocab *v, struct od_err *err)
{
	static const char key[] = "tokenizer.ggml.scores";
	struct od_gguf_value scores;
	size_t cap = 0;
	int rc = od_gguf_array(v->g, key, OD_GGUF_F32, 0, &scores, err);

	if (rc == OD_OK && scores.n != v->n)
		rc = od_fail(err, OD_ERR_FORMAT,
			     "%s: key %s: expected a score for each of the %u tokens, found %" PRIu64 AGAIN,
			     od_gguf_path(v->g), key, v->n, scores.n);
	for (uint32_t id = 0; rc == OD_OK && id < v->n; id++) {
		if (v->token[id].type != GGUF_TOKEN_NORMAL || v->token[id].len == 0)
			continue;
		if (v->token[id].len > MAX_PIECE_BYTES)
			rc = od_fail(
				err, OD_ERR_RANGE,
				"%s: key tokenizer.ggml.tokens: token %u: expected at most %u bytes, found %u" AGAIN,
				od_gguf_path(v->g), id, MAX_PIECE_BYTES, v->token[id].len);
		else if (isnan(od_gguf_number_at(&scores, id)))
			rc = od_fail(err, OD_ERR_FORMAT, "%s: key %s: token %u: expected a number, found NaN" AGAIN,
				     od_gguf_path(v->g), key, id);
		else
			rc = cut_token(v, id, &cap, err);
	}
	return rc == OD_OK ? sort_merges(v, &scores, err) : rc;
}

/* ---- Where tokens stand in a tokenizer.json ---- */

static bool is_one_character(const struct gguf_token *t)
{
	return t->len > 0 && odm_utf8_char(t->text, t->len) == t->len;
}

/* "[PAD123]" of llama.cpp's converter: an id without a token. */
static bool is_padding(const struct gguf_token *t, uint32_t id)
{
	char name[24];
	const int n = snprintf(name, sizeof(name), "[PAD%u]", id);

	return t->len == 0 ||
	       (t->type == GGUF_TOKEN_UNUSED && !t->merges && (int)t->len == n && memcmp(t->text, name, t->len) == 0);
}

/* Gemma's files call most of their special tokens normal, and some user-defined: the text decides. */
static bool looks_special(const struct gguf_token *t)
{
	static const char *const names[] = { "<pad>", "<eos>", "<bos>", "<unk>", "<mask>" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (t->len == strlen(names[i]) && memcmp(t->text, names[i], t->len) == 0)
			return true;
	return t->len > 2 && (memcmp(t->text, "<|", 2) == 0 || memcmp(t->text + t->len - 2, "|>", 2) == 0);
}

/* Tokens that have a part to play are added ones, although some files call them normal: without a tokenizer.model the
 * converter does so with the unknown one. */
static bool has_part(const struct gguf_vocab *v, uint32_t id)
{
	const int32_t i = (int32_t)id;

	return i == v->bos || i == v->eos || i == v->eot || i == v->eom || i == v->unk;
}

/* A token that no merge makes would never be found unless it is an added one. */
static void sort_out(const struct gguf_vocab *v, uint32_t id)
{
	struct gguf_token *t = &v->token[id];
	const bool byte = t->len == 6 && memcmp(t->text, "<0x", 3) == 0;
	const bool out_of_reach = t->type == GGUF_TOKEN_NORMAL && !t->merges && !byte && !is_one_character(t);

	if (is_padding(t, id))
		return;
	t->in_model = true;
	t->added = t->type == GGUF_TOKEN_CONTROL || t->type == GGUF_TOKEN_USER || t->type == GGUF_TOKEN_UNKNOWN ||
		   (out_of_reach && (v->model == GGUF_VOCAB_PIECES || has_part(v, id)));
	t->special = t->added && (v->model == GGUF_VOCAB_PIECES ? t->type == GGUF_TOKEN_CONTROL || looks_special(t) :
								  t->type != GGUF_TOKEN_USER);
}

/* Added tokens behind all others are no part of the model's vocabulary, as usual, if their ids follow each other: a
 * tokenizer.json has no other numbers for them. */
static void take_out(struct gguf_vocab *v)
{
	uint32_t end = v->n, begin, n_holes = 0;

	while (end > 0 && !v->token[end - 1].in_model)
		end--;
	begin = end;
	while (begin > 0 && v->token[begin - 1].added && !v->token[begin - 1].merges &&
	       !is_one_character(&v->token[begin - 1]) && (int32_t)(begin - 1) != v->unk)
		begin--;
	for (uint32_t id = 0; id < begin; id++)
		n_holes += !v->token[id].in_model;
	if (n_holes > 0 || begin == 0)
		return;
	for (uint32_t id = begin; id < end; id++)
		v->token[id].in_model = false;
}

static int check_added(const struct gguf_vocab *v, struct od_err *err)
{
	for (uint32_t id = 0; id < v->n; id++)
		if (v->token[id].added && v->token[id].len > MAX_ADDED_BYTES)
			return od_fail(
				err, OD_ERR_RANGE,
				"%s: key tokenizer.ggml.tokens: token %u: expected at most %u bytes of a control or "
				"user-defined token, found %u" AGAIN,
				od_gguf_path(v->g), id, MAX_ADDED_BYTES, v->token[id].len);
	return OD_OK;
}

int gguf_vocab_read(struct gguf_vocab *v, const struct od_gguf *g, enum gguf_vocab_model model, struct od_err *err)
{
	int rc;

	*v = (struct gguf_vocab){ .g = g, .model = model };
	rc = read_tokens(v, err);
	if (rc == OD_OK)
		rc = read_ids(v, err);
	if (rc == OD_OK)
		rc = model == GGUF_VOCAB_SCORES ? make_merges(v, err) : read_merges(v, err);
	if (rc != OD_OK)
		return rc;
	find_bytes(v);
	for (uint32_t id = 0; id < v->n; id++)
		sort_out(v, id);
	take_out(v);
	return check_added(v, err);
}
