#include "common/text/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/text/tok_internal.h"
#include "common/text/tok_unicode.h"

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
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"%s\": expected an object with a type, found something else", where, what);
	if (depth > TOK_MAX_DEPTH)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: field \"%s\": expected at most %d nested Sequences", where,
			       what, TOK_MAX_DEPTH);
	rc = od_json_str(obj, "type", &type, where, err);
	if (rc != OD_OK)
		return rc;
	if (strcmp(type, "Sequence") != 0)
		return each(arg, type, obj, where, err);
	rc = od_json_arr(obj, list_key, &list, where, err);
	if (rc != OD_OK)
		return rc;
	json_array_foreach(list, i, item)
	{
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
	json_array_foreach(ids, i, id)
	{
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
	struct tok_ids front = { 0 };
	json_t *single, *special, *piece;
	unsigned n_text = 0;
	size_t i;
	int rc = od_json_arr(obj, "single", &single, where, err);

	if (rc == OD_OK)
		rc = od_json_obj(obj, "special_tokens", &special, where, err);
	if (rc != OD_OK)
		return rc;
	json_array_foreach(single, i, piece)
	{
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

int tok_pipeline_parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err)
{
	/* "truncation" and "padding" are settings of a training run, not of the text: never applied. */
	int rc = tok_norms_parse(&t->norms, json_object_get(root, "normalizer"), where, err);

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

static int parse_root(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err)
{
	const char *version;
	int rc = od_json_str(root, "version", &version, where, err);

	if (rc == OD_OK && strcmp(version, "1.0") != 0)
		rc = tok_unsupported(err, where, "version", version, "1.0");
	if (rc == OD_OK)
		rc = tok_model_parse(t, root, where, err);
	return rc == OD_OK ? tok_pipeline_parse(t, root, where, err) : rc;
}

static int parse_json(struct od_tokenizer *t, const char *data, size_t len, const char *where, struct od_err *err)
{
	json_t *root;
	int rc = od_json_parse(data, len, where, &root, err);

	if (rc == OD_OK)
		rc = parse_root(t, root, where, err);
	json_decref(root);
	return rc;
}

int od_tokenizer_parse(struct od_tokenizer **out, enum od_tokenizer_kind kind, const char *data, size_t len,
		       const json_t *config, const char *where, struct od_err *err)
{
	struct od_tokenizer *t = calloc(1, sizeof(*t));
	int rc = OD_ERR_INTERNAL;

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", where);
	tok_classes_init();
	switch (kind) {
	case OD_TOKENIZER_JSON: rc = parse_json(t, data, len, where, err); break;
	case OD_TOKENIZER_SENTENCEPIECE: rc = tok_sentencepiece_parse(t, data, len, config, where, err); break;
	case OD_TOKENIZER_TIKTOKEN: rc = tok_tiktoken_parse(t, data, len, config, where, err); break;
	}
	if (rc != OD_OK) {
		od_tokenizer_free(t);
		return rc;
	}
	*out = t;
	return OD_OK;
}

/* The tokenizer_config.json beside a file; *config is NULL without one. */
static int load_config(const char *path, json_t **config, struct od_err *err)
{
	const char *name = strrchr(path, '/');
	const int folder = name == NULL ? 0 : (int)(name - path) + 1;
	char beside[PATH_MAX];

	*config = NULL;
	if (snprintf(beside, sizeof(beside), "%.*stokenizer_config.json", folder, path) >= (int)sizeof(beside))
		return od_fail(err, OD_ERR_RANGE, "%s: the path is too long", path);
	return od_file_there(beside) ? od_json_load(beside, TOK_MAX_FILE_BYTES, config, err) : OD_OK;
}

int od_tokenizer_load(struct od_tokenizer **out, const char *path, struct od_err *err)
{
	const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
	enum od_tokenizer_kind kind = OD_TOKENIZER_JSON;
	json_t *config = NULL;
	char *data;
	size_t len;
	int rc;

	*out = NULL;
	if (strcmp(name, "tiktoken.model") == 0)
		kind = OD_TOKENIZER_TIKTOKEN;
	else if (strlen(name) >= 6 && strcmp(name + strlen(name) - 6, ".model") == 0)
		kind = OD_TOKENIZER_SENTENCEPIECE;
	rc = od_file_read(path, TOK_MAX_FILE_BYTES, &data, &len, err);
	if (rc == OD_OK && kind != OD_TOKENIZER_JSON)
		rc = load_config(path, &config, err);
	if (rc == OD_OK)
		rc = od_tokenizer_parse(out, kind, data, len, config, path, err);
	json_decref(config);
	free(data);
	return rc;
}

static const char *const names[] = { "tokenizer.json", "tiktoken.model", "tokenizer.model" };
#define N_NAMES (sizeof(names) / sizeof(names[0]))

const char *od_tokenizer_name(const char *dir)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < N_NAMES; i++)
		if (od_path(path, sizeof(path), dir, names[i], NULL) == OD_OK && od_file_there(path))
			return names[i];
	return NULL;
}

bool od_tokenizer_is_name(const char *name)
{
	for (size_t i = 0; i < N_NAMES; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
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

bool od_tokenizer_has_fallback(const struct od_tokenizer *t)
{
	return t->bpe.byte_fallback;
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

/* A byte for each of text [begin, begin + len), 1 where it is a user's. */
static int mark_users(struct tok_users *u, size_t begin, size_t len, struct tok_buf *marks)
{
	marks->len = 0;
	if (tok_buf_reserve(marks, len) != OD_OK)
		return OD_ERR_NOMEM;
	memset(marks->data, 0, len);
	marks->len = len;
	while (u->next < u->n && u->v[u->next].end <= begin)
		u->next++;
	for (size_t i = u->next; i < u->n && u->v[i].begin < begin + len; i++) {
		const size_t from = u->v[i].begin > begin ? u->v[i].begin - begin : 0;
		const size_t to = u->v[i].end - begin < len ? u->v[i].end - begin : len;

		memset(marks->data + from, 1, to - from);
	}
	return OD_OK;
}

static int spans_of(const struct tok_buf *marks, struct od_text_spans *out)
{
	int rc = OD_OK;

	out->n = 0;
	for (size_t at = 0, n; at < marks->len && rc == OD_OK; at += n) {
		const char *end = memchr(marks->data + at, !marks->data[at], marks->len - at);

		n = end != NULL ? (size_t)(end - marks->data) - at : marks->len - at;
		if (marks->data[at] != 0)
			rc = od_text_spans_add(out, at, at + n);
	}
	return rc;
}

struct extract {
	const struct od_tokenizer *t;
	bool parse_special;
	struct tok_users *users; /* NULL: none that matter to tokens in normalised text */
	struct tok_buf norm, marks;
	struct od_text_spans spans;
	struct tok_pieces *out;
	struct od_err *err;
};

/* A piece of the text, at this offset of it. */
static int extract_normalized(struct extract *x, const char *text, const struct tok_piece *p)
{
	struct tok_users users = { 0 }, *u = x->users;
	bool dropped;
	int rc = u != NULL ? mark_users(u, p->at, p->len, &x->marks) : OD_OK;

	if (rc == OD_OK)
		rc = tok_norms_run(&x->t->norms, text + p->at, p->len, p->first, &x->norm, u != NULL ? &x->marks : NULL,
				   &dropped, x->err);
	if (rc == OD_OK && u != NULL) {
		rc = spans_of(&x->marks, &x->spans);
		users = (struct tok_users){ .v = x->spans.v, .n = x->spans.n, .controls = u->controls };
	}
	if (rc == OD_OK)
		rc = tok_added_split(&x->t->normalized, x->parse_special, u != NULL ? &users : NULL, x->norm.data,
				     x->norm.len, p->first && !dropped, x->out);
	return rc;
}

/* Pieces of the text: added tokens, and normalised text between them. users: NULL: none. */
static int extract(const struct od_tokenizer *t, const char *text, size_t len, bool parse_special,
		   const struct tok_users *users, struct tok_pieces *out, struct od_err *err)
{
	struct tok_users before = users != NULL ? *users : (struct tok_users){ 0 }, after = before;
	struct extract x = { .t = t, .parse_special = parse_special, .out = out, .err = err };
	struct tok_pieces raw = { 0 };
	int rc = tok_added_split(&t->raw, parse_special, users != NULL ? &before : NULL, text, len, true, &raw);

	if (users != NULL && tok_controls_in_normalized(users->controls))
		x.users = &after;
	for (size_t i = 0; i < raw.n && rc == OD_OK; i++) {
		const struct tok_piece *p = &raw.v[i];

		/* The pieces cover the text, so they are where they were in it. */
		rc = p->id >= 0 ? tok_pieces_add(out, raw.text.data + p->at, p->len, p->id, false) :
				  extract_normalized(&x, raw.text.data, p);
	}
	tok_pieces_fini(&raw);
	tok_buf_fini(&x.norm);
	tok_buf_fini(&x.marks);
	od_text_spans_fini(&x.spans);
	return rc;
}

/* Where the next word of a text that nothing has cut ends. */
static size_t cut(const struct tok_bpe *b, const char *s, size_t at, size_t len)
{
	for (at++; at < len; at++) {
		const unsigned char c = (unsigned char)s[at], before = (unsigned char)s[at - 1];

		if (c == 0xe2 && len - at >= 3 && s[at + 1] == '\x96' && s[at + 2] == '\x81' && !b->joins_mark[before])
			break;
		if ((c == '\n' && !b->joins_line[before]) || (before == '\n' && !b->line_joins[c]))
			break;
	}
	return at;
}

static int encode_piece(const struct od_tokenizer *t, struct tok_words *words, const char *text, size_t len,
			struct tok_ids *ids, struct od_err *err)
{
	struct tok_scan scan = { .kind = tok_pres_scan(&t->pres), .text = text, .len = len };
	size_t begin, end;
	int rc = OD_OK;

	if (scan.kind != TOK_SCAN_NONE) {
		while (rc == OD_OK && tok_scan_next(&scan, &begin, &end))
			rc = tok_words_add(words, text + begin, end - begin, len - begin, ids, err);
		return rc;
	}
	for (begin = 0; begin < len && rc == OD_OK; begin = end) {
		end = t->bpe.may_cut && !t->pres.raw ? cut(&t->bpe, text, begin, len) : len;
		rc = tok_words_add(words, text + begin, end - begin, len - begin, ids, err);
	}
	return rc;
}

static int encode(const struct od_tokenizer *t, const struct od_controls *controls, struct tok_pieces *pieces,
		  struct tok_ids *ids, struct od_err *err)
{
	struct tok_words *words = tok_words_new(t, controls, pieces->text.max_bytes);
	int rc = words == NULL ? OD_ERR_NOMEM : tok_pres_run(&t->pres, pieces, err);

	for (size_t i = 0; i < pieces->n && rc == OD_OK; i++) {
		const struct tok_piece *p = &pieces->v[i];

		rc = p->id >= 0 ? tok_ids_add(ids, p->id) :
				  encode_piece(t, words, pieces->text.data + p->at, p->len, ids, err);
	}
	tok_words_free(words);
	return rc;
}

static int add_all(struct tok_ids *to, const struct tok_ids *from)
{
	int rc = OD_OK;

	for (size_t i = 0; i < from->n && rc == OD_OK; i++)
		rc = tok_ids_add(to, from->v[i]);
	return rc;
}

static int encode_text(const struct od_tokenizer *t, const char *text, size_t len, unsigned flags,
		       const struct tok_users *users, int32_t **ids, size_t *n_ids, struct od_err *err)
{
	struct tok_pieces pieces = { 0 };
	struct tok_ids out = { 0 };
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
		rc = extract(t, text, len, (flags & OD_ENCODE_PARSE_SPECIAL) != 0, users, &pieces, err);
	if (rc == OD_OK)
		rc = encode(t, users != NULL ? users->controls : NULL, &pieces, &out, err);
	if (rc == OD_OK && (flags & OD_ENCODE_ADD_SPECIAL) != 0)
		rc = add_all(&out, &t->after);
	tok_pieces_fini(&pieces);
	if (rc != OD_OK) {
		free(out.v);
		if (rc == OD_ERR_RANGE)
			return od_fail(err, rc,
				       "a text of %zu bytes: the tokenizer turns it into more than %zu bytes or "
				       "tokens",
				       len, tok_max_grown(len));
		return rc == OD_ERR_NOMEM ? od_fail(err, rc, "a text of %zu bytes", len) : rc;
	}
	*ids = out.v;
	*n_ids = out.n;
	return OD_OK;
}

int od_tokenizer_encode(const struct od_tokenizer *t, const char *text, size_t len, unsigned flags, int32_t **ids,
			size_t *n_ids, struct od_err *err)
{
	return encode_text(t, text, len, flags, NULL, ids, n_ids, err);
}

int od_tokenizer_encode_mixed(const struct od_tokenizer *t, const char *text, size_t len,
			      const struct od_text_spans *users, const struct od_controls *controls, int32_t **ids,
			      size_t *n_ids, struct od_err *err)
{
	const struct tok_users u = { .v = users->v, .n = users->n, .controls = controls };

	return encode_text(t, text, len, OD_ENCODE_PARSE_SPECIAL, &u, ids, n_ids, err);
}
