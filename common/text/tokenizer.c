#include "common/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/text/tok_internal.h"

/* ---- components ---- */

int tok_unsupported(struct od_err *err, const char *where, const char *what, const char *type, const char *supported)
{
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: %s \"%.64s\" is not supported; supported: %s", where, what, type,
		       supported);
}

static int walk(const json_t *obj, const char *what, const char *list_key, unsigned depth, const char *where,
		tok_component_fn *each, void *arg, struct od_err *err)
{
	const char *type;
	json_t *list, *item;
	size_t i;
	int rc;

	if (!json_is_object(obj))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"%s\": expected an object with a type, found something else",
			       where, what);
	if (depth > TOK_MAX_DEPTH)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected at most %d nested Sequences",
			       where, what, TOK_MAX_DEPTH);
	rc = od_json_str(obj, "type", &type, where, err);
	if (rc != OD_OK)
		return rc;
	if (strcmp(type, "Sequence") != 0)
		return each(arg, type, obj, where, err);
	rc = od_json_arr(obj, list_key, &list, where, err);
	if (rc != OD_OK)
		return rc;
	json_array_foreach(list, i, item) {
		rc = walk(item, what, list_key, depth + 1, where, each, arg, err);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

int tok_walk(const json_t *obj, const char *what, const char *list_key, const char *where, tok_component_fn *each,
	     void *arg, struct od_err *err)
{
	if (obj == NULL || json_is_null(obj))
		return OD_OK;
	return walk(obj, what, list_key, 0, where, each, arg, err);
}

/* ---- the template: ids before and after the text ---- */

static int template_ids(const struct od_tokenizer *t, const json_t *special, const char *name, struct tok_ids *out,
			const char *where, struct od_err *err)
{
	const json_t *entry = json_object_get(special, name);
	json_t *ids, *id;
	size_t i;
	int rc;

	if (!json_is_object(entry))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: TemplateProcessing: expected \"%.64s\" in special_tokens, found nothing", where,
			       name);
	rc = od_json_arr(entry, "ids", &ids, where, err);
	if (rc != OD_OK)
		return rc;
	json_array_foreach(ids, i, id) {
		json_int_t v = json_integer_value(id);

		if (!json_is_integer(id) || v < 0 || v >= (json_int_t)t->vocab.n)
			return od_fail(
				err, OD_ERR_RANGE,
				"%s: TemplateProcessing: special token \"%.64s\": expected ids below %u, found %lld",
				where, name, t->vocab.n, (long long)v);
		rc = out->n < TOK_MAX_TEMPLATE_IDS ? tok_ids_add(out, (int32_t)v) : OD_ERR_RANGE;
		if (rc != OD_OK)
			return od_fail(err, rc, "%s: TemplateProcessing: expected at most %u ids", where,
				       TOK_MAX_TEMPLATE_IDS);
	}
	return OD_OK;
}

static int prepend_ids(struct tok_ids *to, struct tok_ids *front)
{
	for (size_t i = 0; i < to->n; i++)
		if (tok_ids_add(front, to->v[i]) != OD_OK)
			return OD_ERR_NOMEM;
	free(to->v);
	*to = *front;
	memset(front, 0, sizeof(*front));
	return OD_OK;
}

static int template_piece(struct od_tokenizer *t, const json_t *piece, const json_t *special, struct tok_ids *front,
			  unsigned *n_text, const char *where, struct od_err *err)
{
	const json_t *token = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
	const char *name;
	int rc;

	if (json_is_object(token)) {
		rc = od_json_str(token, "id", &name, where, err);
		if (rc == OD_OK)
			rc = template_ids(t, special, name, *n_text == 0 ? front : &t->after, where, err);
		return rc;
	}
	if (!json_is_object(text))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: TemplateProcessing: field \"single\": expected SpecialToken or Sequence", where);
	rc = od_json_str(text, "id", &name, where, err);
	if (rc == OD_OK && strcmp(name, "A") != 0)
		rc = tok_unsupported(err, where, "TemplateProcessing with sequence", name, "A");
	++*n_text;
	return rc;
}

static int parse_template(struct od_tokenizer *t, const json_t *obj, const char *where, struct od_err *err)
{
	struct tok_ids front = {0};
	json_t *single, *special, *piece;
	unsigned n_text = 0;
	size_t i;
	int rc = od_json_arr(obj, "single", &single, where, err);

	if (rc == OD_OK)
		rc = od_json_obj(obj, "special_tokens", &special, where, err);
	if (rc != OD_OK)
		return rc;
	json_array_foreach(single, i, piece) {
		rc = template_piece(t, piece, special, &front, &n_text, where, err);
		if (rc != OD_OK)
			goto out;
	}
	if (n_text != 1)
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s: TemplateProcessing: field \"single\": expected the text once, found it %u times",
			     where, n_text);
	else if (prepend_ids(&t->before, &front) != OD_OK) /* a template around what templates before it made */
		rc = od_fail(err, OD_ERR_NOMEM, "%s: TemplateProcessing", where);
out:
	free(front.v);
	return rc;
}

static int parse_post(void *arg, const char *type, const json_t *obj, const char *where, struct od_err *err)
{
	if (strcmp(type, "TemplateProcessing") == 0)
		return parse_template(arg, obj, where, err);
	if (strcmp(type, "ByteLevel") == 0) /* moves offsets only, which we do not keep */
		return OD_OK;
	return tok_unsupported(err, where, "post_processor", type, "Sequence, TemplateProcessing, ByteLevel");
}

/* ---- loading ---- */

static int parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err)
{
	const char *version;
	int rc = od_json_str(root, "version", &version, where, err);

	if (rc == OD_OK && strcmp(version, "1.0") != 0)
		rc = tok_unsupported(err, where, "version", version, "1.0");
	/* "truncation" and "padding" are settings of a training run, not of the text: never applied. */
	if (rc == OD_OK)
		rc = tok_model_parse(t, root, where, err);
	if (rc == OD_OK)
		rc = tok_norms_parse(&t->norms, json_object_get(root, "normalizer"), where, err);
	if (rc == OD_OK)
		rc = tok_added_parse(t, root, where, err);
	if (rc == OD_OK)
		rc = tok_pres_parse(&t->pres, json_object_get(root, "pre_tokenizer"), where, err);
	if (rc == OD_OK)
		rc = tok_walk(json_object_get(root, "post_processor"), "post_processor", "processors", where,
			      parse_post, t, err);
	if (rc == OD_OK)
		rc = tok_decs_parse(&t->decs, json_object_get(root, "decoder"), where, err);
	return rc;
}

int od_tokenizer_load(struct od_tokenizer **out, const char *path, struct od_err *err)
{
	struct od_tokenizer *t;
	json_t *root;
	int rc;

	*out = NULL;
	rc = od_json_load(path, TOK_MAX_FILE_BYTES, &root, err);
	if (rc != OD_OK)
		return rc;
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s", path);
	else
		rc = parse(t, root, path, err);
	json_decref(root);
	if (rc != OD_OK) {
		od_tokenizer_free(t);
		return rc;
	}
	*out = t;
	return OD_OK;
}

void od_tokenizer_free(struct od_tokenizer *t)
{
	if (t == NULL)
		return;
	tok_vocab_fini(&t->vocab);
	tok_bpe_fini(&t->bpe);
	tok_matcher_fini(&t->raw);
	tok_matcher_fini(&t->normalized);
	tok_norms_fini(&t->norms);
	tok_pres_fini(&t->pres);
	tok_decs_fini(&t->decs);
	free(t->before.v);
	free(t->after.v);
	free(t);
}

uint32_t od_tokenizer_vocab(const struct od_tokenizer *t)
{
	return t->vocab.n;
}

bool od_tokenizer_is_special(const struct od_tokenizer *t, int32_t id)
{
	return id >= 0 && (uint32_t)id < t->vocab.n && (t->vocab.entry[id].flags & TOK_SPECIAL) != 0;
}

int32_t od_tokenizer_find(const struct od_tokenizer *t, const char *token)
{
	return tok_vocab_find(&t->vocab, token, strlen(token));
}

/* ---- encoding ---- */

/* Pieces of the text: added tokens, and normalised text between them. */
static int extract(const struct od_tokenizer *t, const char *text, size_t len, bool parse_special,
		   struct tok_pieces *out, struct od_err *err)
{
	struct tok_pieces raw = {0};
	struct tok_buf norm = {0};
	bool dropped;
	int rc = tok_added_split(&t->raw, parse_special, text, len, true, &raw);

	for (size_t i = 0; i < raw.n && rc == OD_OK; i++) {
		const struct tok_piece *p = &raw.v[i];

		if (p->id >= 0) {
			rc = tok_pieces_add(out, raw.text.data + p->at, p->len, p->id, false);
			continue;
		}
		rc = tok_norms_run(&t->norms, raw.text.data + p->at, p->len, &norm, &dropped, err);
		if (rc == OD_OK)
			rc = tok_added_split(&t->normalized, parse_special, norm.data, norm.len, p->first && !dropped,
					     out);
	}
	tok_pieces_fini(&raw);
	tok_buf_fini(&norm);
	return rc;
}

static int encode(const struct od_tokenizer *t, struct tok_pieces *pieces, struct tok_ids *ids, struct od_err *err)
{
	struct tok_bpe_scratch *scratch = tok_bpe_scratch_new(pieces->text.max_bytes);
	int rc = scratch == NULL ? OD_ERR_NOMEM : tok_pres_run(&t->pres, pieces, err);

	for (size_t i = 0; i < pieces->n && rc == OD_OK; i++) {
		const struct tok_piece *p = &pieces->v[i];

		rc = p->id >= 0 ? tok_ids_add(ids, p->id) :
				  tok_bpe_word(t, scratch, pieces->text.data + p->at, p->len, ids, err);
	}
	tok_bpe_scratch_free(scratch);
	return rc;
}

static int add_all(struct tok_ids *to, const struct tok_ids *from)
{
	int rc = OD_OK;

	for (size_t i = 0; i < from->n && rc == OD_OK; i++)
		rc = tok_ids_add(to, from->v[i]);
	return rc;
}

int od_tokenizer_encode(const struct od_tokenizer *t, const char *text, size_t len, unsigned flags, int32_t **ids,
			size_t *n_ids, struct od_err *err)
{
	struct tok_pieces pieces = {0};
	struct tok_ids out = {0};
	size_t bad;
	int rc;

	*ids = NULL;
	*n_ids = 0;
	if (len > TOK_MAX_TEXT_BYTES)
		return od_fail(err, OD_ERR_RANGE, "text: expected at most %zu bytes, found %zu", TOK_MAX_TEXT_BYTES,
			       len);
	if (!tok_utf8_valid(text, len, &bad))
		return od_fail(err, OD_ERR_FORMAT, "text: byte %zu: expected UTF-8, found byte 0x%02x", bad,
			       (unsigned)(unsigned char)text[bad]);
	pieces.text.max_bytes = tok_max_grown(len);
	rc = tok_grow(&out.v, 0, &out.cap, sizeof(*out.v)); /* not NULL even for no ids */
	if (rc == OD_OK && (flags & OD_ENCODE_ADD_SPECIAL) != 0)
		rc = add_all(&out, &t->before);
	if (rc == OD_OK)
		rc = extract(t, text, len, (flags & OD_ENCODE_PARSE_SPECIAL) != 0, &pieces, err);
	if (rc == OD_OK)
		rc = encode(t, &pieces, &out, err);
	if (rc == OD_OK && (flags & OD_ENCODE_ADD_SPECIAL) != 0)
		rc = add_all(&out, &t->after);
	tok_pieces_fini(&pieces);
	if (rc != OD_OK) {
		free(out.v);
		if (rc == OD_ERR_RANGE)
			return od_fail(err, rc, "a text of %zu bytes: the tokenizer turns it into more than %zu bytes or "
				       "tokens", len, tok_max_grown(len));
		return rc == OD_ERR_NOMEM ? od_fail(err, rc, "a text of %zu bytes", len) : rc;
	}
	*ids = out.v;
	*n_ids = out.n;
	return OD_OK;
}
