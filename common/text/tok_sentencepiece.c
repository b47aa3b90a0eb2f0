/* tokenizer.model of SentencePiece: a protobuf message ModelProto with pieces, their scores and kinds, and how texts
 * are normalised. Only what is needed is read; what would change results and is not done here is refused. The special
 * tokens are the file's control pieces and what tokenizer_config.json adds or says about them. */
#include "common/text/tok_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)
#define MAX_PIECE_BYTES 1024u /* bounds the work of finding merges */
#define MARK "\xe2\x96\x81" /* U+2581, which stands for a space */

enum piece_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct sentencepiece_piece {
	const char *text;
	size_t len;
	float score;
	uint64_t type;
};

struct sentencepiece_model {
	struct sentencepiece_piece *piece;
	size_t n, cap;
	uint64_t kind; /* 1 Unigram, 2 BPE, 3 Word, 4 Char */
	bool byte_fallback, suffix, dummy_prefix, extra_spaces_go, escape;
	int32_t bos, eos;
	size_t n_map, n_back_map; /* bytes of tables of characters */
	char normalizer[32];
};

/* ---- the wire format ---- */

struct sentencepiece_reader {
	const uint8_t *at, *end;
};

struct sentencepiece_field {
	uint64_t number, value;
	unsigned wire;
	struct sentencepiece_reader inside; /* wire 2 */
};

static bool read_varint(struct sentencepiece_reader *r, uint64_t *out)
{
	*out = 0;
	for (unsigned shift = 0; shift < 64; shift += 7) {
		uint8_t b;

		if (r->at == r->end)
			return false;
		b = *r->at++;
		*out |= (uint64_t)(b & 0x7f) << shift;
		if (b < 0x80)
			return true;
	}
	return false;
}

static bool read_fixed(struct sentencepiece_reader *r, unsigned n, uint64_t *out)
{
	*out = 0;
	if ((size_t)(r->end - r->at) < n)
		return false;
	for (unsigned i = 0; i < n; i++)
		*out |= (uint64_t)*r->at++ << 8 * i;
	return true;
}

/* False when the bytes are none. Not at the end. */
static bool read_field(struct sentencepiece_reader *r, struct sentencepiece_field *f)
{
	uint64_t tag, len;

	*f = (struct sentencepiece_field){ 0 };
	if (!read_varint(r, &tag))
		return false;
	f->number = tag >> 3;
	f->wire = (unsigned)tag & 7;
	switch (f->wire) {
	case 0: return read_varint(r, &f->value);
	case 1: return read_fixed(r, 8, &f->value);
	case 5: return read_fixed(r, 4, &f->value);
	case 2:
		if (!read_varint(r, &len) || len > (size_t)(r->end - r->at))
			return false;
		f->inside = (struct sentencepiece_reader){ r->at, r->at + len };
		r->at += len;
		return true;
	default: return false;
	}
}

static bool take_piece(struct sentencepiece_model *m, struct sentencepiece_reader r)
{
	struct sentencepiece_piece p = { .type = NORMAL };
	struct sentencepiece_field f;

	while (r.at < r.end) {
		if (!read_field(&r, &f))
			return false;
		if (f.number == 1 && f.wire == 2) {
			p.text = (const char *)f.inside.at;
			p.len = (size_t)(f.inside.end - f.inside.at);
		} else if (f.number == 2 && f.wire == 5) {
			const uint32_t bits = (uint32_t)f.value;

			memcpy(&p.score, &bits, sizeof(p.score));
		} else if (f.number == 3 && f.wire == 0) {
			p.type = f.value;
		}
	}
	if (tok_grow(&m->piece, m->n, &m->cap, sizeof(*m->piece)) != OD_OK)
		return false;
	m->piece[m->n++] = p;
	return true;
}

static bool take_trainer(struct sentencepiece_model *m, struct sentencepiece_reader r)
{
	struct sentencepiece_field f;

	while (r.at < r.end) {
		if (!read_field(&r, &f))
			return false;
		if (f.wire != 0)
			continue;
		switch (f.number) {
		case 3: m->kind = f.value; break;
		case 24: m->suffix = f.value != 0; break;
		case 35: m->byte_fallback = f.value != 0; break;
		case 41: m->bos = (int32_t)(uint32_t)f.value; break;
		case 42: m->eos = (int32_t)(uint32_t)f.value; break;
		default: break;
		}
	}
	return true;
}

/* denormal: the table by which a text is changed when it is decoded. */
static bool take_normalizer(struct sentencepiece_model *m, struct sentencepiece_reader r, bool denormal)
{
	struct sentencepiece_field f;

	while (r.at < r.end) {
		if (!read_field(&r, &f))
			return false;
		if (f.wire == 2) {
			const size_t len = (size_t)(f.inside.end - f.inside.at);

			if (f.number == 2)
				*(denormal ? &m->n_back_map : &m->n_map) = len;
			if (f.number == 1 && !denormal)
				snprintf(m->normalizer, sizeof(m->normalizer), "%.*s", len < 31 ? (int)len : 31,
					 (const char *)f.inside.at);
		} else if (f.wire == 0 && !denormal) {
			if (f.number == 3)
				m->dummy_prefix = f.value != 0;
			if (f.number == 4)
				m->extra_spaces_go = f.value != 0;
			if (f.number == 5)
				m->escape = f.value != 0;
		}
	}
	return true;
}

static int read_model(struct sentencepiece_model *m, const char *data, size_t len, const char *where,
		      struct od_err *err)
{
	struct sentencepiece_reader r = { (const uint8_t *)data, (const uint8_t *)data + len };
	struct sentencepiece_field f;

	*m = (struct sentencepiece_model){
		.kind = 1, .dummy_prefix = true, .extra_spaces_go = true, .escape = true, .bos = 1, .eos = 2
	};
	while (r.at < r.end) {
		const uint8_t *begin = r.at;
		bool good = read_field(&r, &f);

		if (good && f.wire == 2 && f.number == 1)
			good = take_piece(m, f.inside);
		else if (good && f.wire == 2 && f.number == 2)
			good = take_trainer(m, f.inside);
		else if (good && f.wire == 2 && (f.number == 3 || f.number == 5))
			good = take_normalizer(m, f.inside, f.number == 5);
		if (!good)
			return od_fail(err, OD_ERR_FORMAT, "%s: byte %zu: expected a field of a SentencePiece model",
				       where, (size_t)(begin - (const uint8_t *)data));
	}
	if (m->n == 0 || m->n > TOK_MAX_IDS / 2)
		return od_fail(err, OD_ERR_FORMAT, "%s: expected 1 to %u pieces of a SentencePiece model, found %zu",
			       where, TOK_MAX_IDS / 2, m->n);
	return OD_OK;
}

static int check_model(const struct sentencepiece_model *m, const char *where, struct od_err *err)
{
	static const char *const kinds[] = { "0", "Unigram", "BPE", "Word", "Char" };

	if (m->kind != 2)
		return tok_unsupported(err, where, "SentencePiece model",
				       m->kind < 5 ? kinds[m->kind] : "of a newer kind", "BPE");
	if (m->n_map > 0)
		return tok_unsupported(err, where, "SentencePiece normalizer", m->normalizer, "identity");
	if (m->n_back_map > 0)
		return tok_unsupported(err, where, "SentencePiece field", "denormalizer_spec", "none");
	if (m->suffix)
		return tok_unsupported(err, where, "SentencePiece field", "treat_whitespace_as_suffix", "false");
	if (!m->escape)
		return tok_unsupported(err, where, "SentencePiece field", "escape_whitespaces", "true");
	return OD_OK;
}

/* ---- pieces ---- */

static int byte_of(const struct sentencepiece_piece *p)
{
	char name[8];

	if (p->len == 6)
		for (unsigned b = 0; b < 256; b++) {
			snprintf(name, sizeof(name), "<0x%02X>", b);
			if (memcmp(name, p->text, 6) == 0)
				return (int)b;
		}
	return -1;
}

static int take_type(struct od_tokenizer *t, const struct sentencepiece_piece *p, uint32_t id, bool byte_fallback,
		     const char *where, struct od_err *err)
{
	const int byte = byte_of(p);

	if (p->type == UNUSED || p->type < NORMAL || p->type > BYTE)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: piece %u: type %llu is not supported; supported: normal, unknown, control, "
			       "user-defined, byte",
			       where, id, (unsigned long long)p->type);
	if (p->type == NORMAL && isnan(p->score))
		return od_fail(err, OD_ERR_FORMAT, "%s: piece %u: expected a score, found none", where, id);
	if (p->type == UNKNOWN && t->bpe.unk >= 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: piece %u: expected one unknown piece, found two", where, id);
	if (p->type == BYTE && (byte < 0 || !byte_fallback || t->bpe.byte_id[byte] >= 0))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: piece %u: expected <0x00> to <0xFF>, each once and with byte_fallback, found "
			       "\"%.*s\"",
			       where, id, p->len < 64 ? (int)p->len : 64, p->text);
	if (p->type == UNKNOWN)
		t->bpe.unk = (int32_t)id;
	if (p->type == BYTE)
		t->bpe.byte_id[byte] = (int32_t)id;
	return OD_OK;
}

static int load_pieces(struct od_tokenizer *t, const struct sentencepiece_model *m, uint32_t n_more, const char *where,
		       struct od_err *err)
{
	int rc = tok_vocab_init(&t->vocab, (uint32_t)m->n + n_more, (uint32_t)m->n + n_more, err);
	size_t bad;

	for (uint32_t id = 0; id < m->n && rc == OD_OK; id++) {
		const struct sentencepiece_piece *p = &m->piece[id];

		if (p->len == 0 || p->len > MAX_PIECE_BYTES || !tok_utf8_valid(p->text, p->len, &bad))
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: piece %u: expected 1 to %u bytes of UTF-8, found %zu bytes", where, id,
				       MAX_PIECE_BYTES, p->len);
		if (tok_vocab_find(&t->vocab, p->text, p->len) >= 0)
			return od_fail(err, OD_ERR_FORMAT, "%s: piece %u: \"%.*s\" is there twice", where, id,
				       p->len < 64 ? (int)p->len : 64, p->text);
		rc = take_type(t, p, id, m->byte_fallback, where, err);
		if (rc == OD_OK &&
		    tok_vocab_add(&t->vocab, p->text, p->len, id, p->type == NORMAL ? TOK_IN_MODEL : 0) != OD_OK)
			rc = od_fail(err, OD_ERR_NOMEM, "%s: vocabulary", where);
	}
	if (rc == OD_OK && t->bpe.unk < 0)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected an unknown piece, found none", where);
	if (m->byte_fallback)
		for (int b = 0; b < 256 && rc == OD_OK; b++)
			if (t->bpe.byte_id[b] < 0)
				rc = od_fail(err, OD_ERR_FORMAT,
					     "%s: expected a piece for every byte, found none for 0x%02x", where,
					     (unsigned)b);
	return rc;
}

/* A piece is made of its characters: if one of these is no piece, SentencePiece may still find the whole. */
static int check_characters(const struct od_tokenizer *t, const struct sentencepiece_model *m, const char *where,
			    struct od_err *err)
{
	int32_t cp, found;

	for (size_t id = 0; id < m->n; id++) {
		const struct sentencepiece_piece *p = &m->piece[id];

		if (p->type == NORMAL)
			for (size_t at = 0, n; at < p->len; at += n) {
				n = tok_char(p->text + at, p->len - at, &cp);
				found = tok_vocab_find(&t->vocab, p->text + at, n);
				if (found < 0 || m->piece[found].type != NORMAL)
					return od_fail(
						err, OD_ERR_UNSUPPORTED,
						"%s: piece %zu, \"%.*s\": expected a piece for each of its characters",
						where, id, p->len < 64 ? (int)p->len : 64, p->text);
			}
	}
	return OD_OK;
}

static int by_score(const void *x, const void *y)
{
	const struct sentencepiece_piece *a = *(const struct sentencepiece_piece *const *)x,
					 *b = *(const struct sentencepiece_piece *const *)y;

	return a->score > b->score ? -1 : a->score < b->score;
}

/* The best score is the first to merge; equal ones have the same rank. */
static int load_merges(struct od_tokenizer *t, const struct sentencepiece_model *m, const char *where,
		       struct od_err *err)
{
	const struct sentencepiece_piece **sorted = malloc(m->n * sizeof(*sorted));
	uint32_t *rank = malloc(m->n * sizeof(*rank)), at = 0;
	int rc = OD_OK;

	if (sorted == NULL || rank == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: %zu pieces", where, m->n);
	if (rc == OD_OK)
		for (size_t i = 0; i < m->n; i++)
			sorted[i] = &m->piece[i];
	if (rc == OD_OK)
		qsort(sorted, m->n, sizeof(*sorted), by_score);
	if (rc == OD_OK)
		for (size_t i = 0; i < m->n; i++) {
			if (i > 0 && sorted[i]->score != sorted[i - 1]->score)
				at++;
			rank[sorted[i] - m->piece] = sorted[i]->type == NORMAL ? at : TOK_NO_RANK;
		}
	if (rc == OD_OK)
		rc = tok_ranked_merges(t, rank, (uint32_t)m->n, where, err);
	free(sorted);
	free(rank);
	return rc;
}

/* ---- what a tokenizer.json would say of the rest ---- */

static json_t *replace(const char *kind, const char *pattern, const char *content)
{
	return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, pattern, "content", content);
}

static json_t *normalizers(const struct sentencepiece_model *m)
{
	json_t *list = json_array();

	if (m->extra_spaces_go) {
		json_array_append_new(list, replace("Regex", " {2,}", " "));
		json_array_append_new(list, replace("Regex", "\\A ", ""));
	}
	if (m->dummy_prefix)
		json_array_append_new(list, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", MARK));
	json_array_append_new(list, replace("String", " ", MARK));
	if (m->extra_spaces_go)
		json_array_append_new(list, replace("Regex", MARK "+\\z", ""));
	return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", list);
}

static json_t *decoders(const struct sentencepiece_model *m)
{
	json_t *list =
		json_pack("[o, {s:s}, {s:s}]", replace("String", MARK, " "), "type", "ByteFallback", "type", "Fuse");

	if (m->dummy_prefix || m->extra_spaces_go)
		json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start",
						      1, "stop", 0));
	return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

/* The id of a special token: what tokenizer_config.json calls it, else the file. -1: none. */
static int special_id(const struct od_tokenizer *t, const json_t *config, const char *key, int32_t fallback,
		      int32_t *id, const char *where, struct od_err *err)
{
	const json_t *v = json_object_get(config, key);

	if (json_is_object(v))
		v = json_object_get(v, "content");
	*id = fallback >= 0 && (uint32_t)fallback < t->vocab.n ? fallback : -1;
	if (v == NULL || json_is_null(v))
		return OD_OK;
	if (!json_is_string(v))
		return od_fail(err, OD_ERR_FORMAT, "%s: tokenizer_config.json: field \"%s\": expected a token", where,
			       key);
	*id = tok_vocab_find(&t->vocab, json_string_value(v), json_string_length(v));
	if (*id < 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: tokenizer_config.json: field \"%s\": \"%.64s\" is no token",
			       where, key, json_string_value(v));
	return OD_OK;
}

static int add_special(struct od_tokenizer *t, const json_t *config, const char *add, bool fallback, const char *key,
		       int32_t id, struct tok_ids *out, const char *where, struct od_err *err)
{
	bool wanted = fallback;
	int rc = OD_OK;

	if (config != NULL)
		rc = od_json_bool_or(config, add, fallback, &wanted, where, err);
	if (rc != OD_OK || !wanted)
		return rc;
	rc = special_id(t, config, key, id, &id, where, err);
	if (rc == OD_OK && id >= 0 && tok_ids_add(out, id) != OD_OK)
		rc = od_fail(err, OD_ERR_NOMEM, "%s", where);
	return rc;
}

/* True for a user-defined piece that is looked for as SentencePiece does it: in the normalised text, as it is. */
static bool found_as_it_is(const struct sentencepiece_piece *p, const struct tok_listed *l)
{
	return p->type == USER_DEFINED && (l == NULL || (!json_is_true(json_object_get(l->fields, "special")) &&
							 !json_is_true(json_object_get(l->fields, "lstrip")) &&
							 !json_is_true(json_object_get(l->fields, "rstrip")) &&
							 !json_is_true(json_object_get(l->fields, "single_word"))));
}

static int list_added(json_t *added, const struct sentencepiece_model *m, const struct tok_listed *listed,
		      size_t n_listed, const char *where, struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t id = 0; id < m->n && rc == OD_OK; id++) {
		const struct sentencepiece_piece *p = &m->piece[id];
		const struct tok_listed *l = tok_listed_find(listed, n_listed, id);
		const json_t *content = l != NULL ? json_object_get(l->fields, "content") : NULL;

		if (l != NULL && (json_string_length(content) != p->len || memcmp(l->content, p->text, p->len) != 0))
			return od_fail(
				err, OD_ERR_FORMAT,
				"%s: tokenizer_config.json: added_tokens_decoder: expected id %u to be \"%.*s\", "
				"found \"%.64s\"",
				where, id, p->len < 64 ? (int)p->len : 64, p->text, l->content);
		if (!found_as_it_is(p, l) && (l != NULL || p->type == CONTROL || p->type == UNKNOWN))
			rc = tok_listed_add(added, id, p->text, p->len, l != NULL ? l->fields : NULL);
	}
	for (size_t i = 0; i < n_listed && rc == OD_OK; i++)
		if (listed[i].id >= m->n)
			rc = tok_listed_add(added, listed[i].id, listed[i].content,
					    json_string_length(json_object_get(listed[i].fields, "content")),
					    listed[i].fields);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "%s: special tokens", where);
}

static int add_user_defined(struct od_tokenizer *t, const struct sentencepiece_model *m,
			    const struct tok_listed *listed, size_t n_listed, const char *where, struct od_err *err)
{
	struct tok_ids ids = { 0 };
	int rc = OD_OK;

	for (uint32_t id = 0; id < m->n && rc == OD_OK; id++)
		if (found_as_it_is(&m->piece[id], tok_listed_find(listed, n_listed, id)))
			rc = tok_ids_add(&ids, (int32_t)id);
	if (rc == OD_OK)
		rc = tok_added_as_they_are(t, &ids);
	free(ids.v);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "%s: user-defined pieces", where);
}

static int parse_pipeline(struct od_tokenizer *t, const struct sentencepiece_model *m, const json_t *config,
			  const struct tok_listed *listed, size_t n_listed, const char *where, struct od_err *err)
{
	json_t *root =
		json_pack("{s:[], s:o, s:o}", "added_tokens", "normalizer", normalizers(m), "decoder", decoders(m));
	bool legacy = true;
	int rc = root == NULL ? od_fail(err, OD_ERR_NOMEM, "%s", where) : OD_OK;

	if (rc == OD_OK && config != NULL)
		rc = od_json_bool_or(config, "legacy", true, &legacy, where, err);
	if (rc == OD_OK)
		rc = list_added(json_object_get(root, "added_tokens"), m, listed, n_listed, where, err);
	if (rc == OD_OK)
		rc = tok_pipeline_parse(t, root, where, err);
	t->norms.prepend_first = !legacy;
	if (rc == OD_OK)
		rc = add_user_defined(t, m, listed, n_listed, where, err);
	if (rc == OD_OK)
		rc = add_special(t, config, "add_bos_token", true, "bos_token", m->bos, &t->before, where, err);
	if (rc == OD_OK)
		rc = add_special(t, config, "add_eos_token", false, "eos_token", m->eos, &t->after, where, err);
	json_decref(root);
	return rc;
}

static int load_model(struct od_tokenizer *t, const struct sentencepiece_model *m, const json_t *config,
		      const char *where, struct od_err *err)
{
	struct tok_listed *listed;
	size_t n_listed;
	uint32_t n_more = 0;
	int rc = tok_listed_parse(&listed, &n_listed, config, where, err);

	if (rc == OD_OK && n_listed > 0 && listed[n_listed - 1].id >= m->n)
		n_more = listed[n_listed - 1].id + 1 - (uint32_t)m->n;
	tok_bpe_init(&t->bpe);
	t->bpe.byte_fallback = m->byte_fallback;
	t->bpe.fuse_unk = true;
	if (rc == OD_OK)
		rc = load_pieces(t, m, n_more, where, err);
	if (rc == OD_OK)
		rc = check_characters(t, m, where, err);
	if (rc == OD_OK)
		rc = load_merges(t, m, where, err);
	if (rc == OD_OK)
		rc = parse_pipeline(t, m, config, listed, n_listed, where, err);
	free(listed);
	return rc;
}

int tok_sentencepiece_parse(struct od_tokenizer *t, const char *data, size_t len, const json_t *config,
			    const char *where, struct od_err *err)
{
	struct sentencepiece_model m = { 0 };
	int rc = OD_OK;

	if (len > MAX_FILE_BYTES)
		rc = od_fail(err, OD_ERR_RANGE, "%s: expected at most %zu bytes, found %zu", where, MAX_FILE_BYTES,
			     len);
	if (rc == OD_OK)
		rc = read_model(&m, data, len, where, err);
	if (rc == OD_OK)
		rc = check_model(&m, where, err);
	if (rc == OD_OK)
		rc = load_model(t, &m, config, where, err);
	free(m.piece);
	return rc;
}
