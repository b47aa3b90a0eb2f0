/* tiktoken.model: a line for each token, its bytes in base64 and its rank, which is its id. The bytes are kept in the
 * byte alphabet, as a tokenizer.json has them.
 *
 * The file says neither how texts are cut into words nor which special tokens there are. Kimi-K2's tokeniser, the one
 * that is published in this format, cuts by tok_kimi_pattern, has 256 special tokens behind the others, and takes a
 * word that is a token as it is. */
#include "common/text/tok_internal.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/json.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)
#define MAX_BYTES 1024u /* longest token: bounds the work of finding merges */
#define N_SPECIAL 256u
#define CLASS "TikTokenTokenizer"

struct line {
	const char *base64;
	size_t len;
	uint32_t rank;
};

/* The line at *at, which moves behind it. False at the end; an empty line has no bytes. */
static int next_line(const char *data, size_t len, size_t *at, struct line *l, const char *where, struct od_err *err)
{
	const char *begin = data + *at, *end = memchr(begin, '\n', len - *at), *space;

	if (end == NULL)
		end = data + len;
	*at = (size_t)(end - data) + (end < data + len ? 1 : 0);
	*l = (struct line){ begin, 0, 0 };
	if (end > begin && end[-1] == '\r')
		end--;
	if (end == begin)
		return OD_OK;
	space = memchr(begin, ' ', (size_t)(end - begin));
	if (space == NULL || space == begin || end - space > 9 || end - space < 2)
		goto bad;
	l->len = (size_t)(space - begin);
	for (const char *p = space + 1; p < end; p++) {
		if (*p < '0' || *p > '9')
			goto bad;
		l->rank = l->rank * 10 + (uint32_t)(*p - '0');
	}
	return OD_OK;
bad:
	return od_fail(err, OD_ERR_FORMAT, "%s: byte %zu: expected \"BASE64 RANK\", found \"%.*s\"", where,
		       (size_t)(begin - data), end - begin < 64 ? (int)(end - begin) : 64, begin);
}

static int count_lines(const char *data, size_t len, uint32_t *n, const char *where, struct od_err *err)
{
	struct line l;
	int rc = OD_OK;

	*n = 0;
	for (size_t at = 0; at < len && rc == OD_OK;) {
		rc = next_line(data, len, &at, &l, where, err);
		*n += rc == OD_OK && l.len > 0;
	}
	if (rc == OD_OK && (*n < 256 || *n > TOK_MAX_IDS - N_SPECIAL))
		return od_fail(err, OD_ERR_RANGE, "%s: expected 256 to %u tokens, found %u", where,
			       TOK_MAX_IDS - N_SPECIAL, *n);
	return rc;
}

static int add_token(struct od_tokenizer *t, const struct line *l, uint32_t n, const char *where, struct od_err *err)
{
	unsigned char bytes[MAX_BYTES];
	utf8proc_uint8_t text[2 * MAX_BYTES];
	size_t n_bytes, len = 0;
	int rc;

	if (l->rank >= n)
		return od_fail(err, OD_ERR_RANGE, "%s: expected the ranks 0 to %u, each once, found %u", where, n - 1,
			       l->rank);
	if (sodium_base642bin(bytes, sizeof(bytes), l->base64, l->len, NULL, &n_bytes, NULL,
			      sodium_base64_VARIANT_ORIGINAL) != 0 ||
	    n_bytes == 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: rank %u: expected 1 to %u bytes in base64, found \"%.*s\"",
			       where, l->rank, MAX_BYTES, l->len < 64 ? (int)l->len : 64, l->base64);
	for (size_t i = 0; i < n_bytes; i++)
		len += (size_t)utf8proc_encode_char(tok_byte_to_char(bytes[i]), text + len);
	if (t->vocab.entry[l->rank].flags != 0 || tok_vocab_find(&t->vocab, (char *)text, len) >= 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: rank %u: the rank or its token is there twice", where, l->rank);
	rc = tok_vocab_add(&t->vocab, (char *)text, len, l->rank, TOK_IN_MODEL);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "%s: vocabulary", where);
}

static int load_vocab(struct od_tokenizer *t, const char *data, size_t len, uint32_t n, const char *where,
		      struct od_err *err)
{
	uint32_t *rank;
	struct line l;
	char c[4];
	int rc = tok_vocab_init(&t->vocab, n + N_SPECIAL, n + N_SPECIAL, err);

	for (size_t at = 0; at < len && rc == OD_OK;) {
		rc = next_line(data, len, &at, &l, where, err);
		if (rc == OD_OK && l.len > 0)
			rc = add_token(t, &l, n, where, err);
	}
	for (unsigned b = 0; b < 256 && rc == OD_OK; b++)
		if (tok_vocab_find(&t->vocab, c,
				   (size_t)utf8proc_encode_char(tok_byte_to_char((uint8_t)b), (utf8proc_uint8_t *)c)) <
		    0)
			rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a token for every byte, found none for 0x%02x",
				     where, b);
	if (rc != OD_OK)
		return rc;
	rank = malloc(n * sizeof(*rank));
	if (rank == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: %u ranks", where, n);
	for (uint32_t i = 0; i < n; i++)
		rank[i] = i;
	rc = tok_ranked_merges(t, rank, n, where, err);
	free(rank);
	return rc;
}

/* The special tokens: those that tokenizer_config.json names, and names that nothing else uses. */
static int add_special(json_t *added, uint32_t n, const struct tok_listed *listed, size_t n_listed, const char *where,
		       struct od_err *err)
{
	char name[40];
	int rc = OD_OK;

	for (size_t i = 0; i < n_listed; i++)
		if (listed[i].id < n || listed[i].id >= n + N_SPECIAL)
			return od_fail(err, OD_ERR_RANGE,
				       "%s: added_tokens_decoder: expected ids from %u to %u, found %u", where, n,
				       n + N_SPECIAL - 1, listed[i].id);
	for (uint32_t id = n; id < n + N_SPECIAL && rc == OD_OK; id++) {
		const struct tok_listed *l = tok_listed_find(listed, n_listed, id);

		snprintf(name, sizeof(name), "<|reserved_token_%u|>", id);
		rc = l == NULL ? tok_listed_add(added, id, name, strlen(name), NULL) :
				 tok_listed_add(added, id, l->content,
						json_string_length(json_object_get(l->fields, "content")), l->fields);
	}
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "%s: special tokens", where);
}

static int parse_pipeline(struct od_tokenizer *t, uint32_t n, const json_t *config, const char *where,
			  struct od_err *err)
{
	struct tok_listed *listed = NULL;
	size_t n_listed = 0;
	json_t *root = json_pack("{s:[], s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}]}, s:{s:s}}",
				 "added_tokens", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
				 "pattern", "Regex", tok_kimi_pattern, "behavior", "Isolated", "invert", 0, "type",
				 "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel");
	int rc = root == NULL ? od_fail(err, OD_ERR_NOMEM, "%s", where) :
				tok_listed_parse(&listed, &n_listed, config, where, err);

	if (rc == OD_OK)
		rc = add_special(json_object_get(root, "added_tokens"), n, listed, n_listed, where, err);
	if (rc == OD_OK)
		rc = tok_pipeline_parse(t, root, where, err);
	free(listed);
	json_decref(root);
	return rc;
}

int tok_tiktoken_parse(struct od_tokenizer *t, const char *data, size_t len, const json_t *config, const char *where,
		       struct od_err *err)
{
	const char *class = CLASS;
	uint32_t n;
	int rc = OD_OK;

	if (len > MAX_FILE_BYTES)
		return od_fail(err, OD_ERR_RANGE, "%s: expected at most %zu bytes, found %zu", where, MAX_FILE_BYTES,
			       len);
	if (config != NULL && od_json_has(config, "tokenizer_class"))
		rc = od_json_str(config, "tokenizer_class", &class, where, err);
	if (rc == OD_OK && strcmp(class, CLASS) != 0)
		rc = tok_unsupported(err, where, "tiktoken.model with tokenizer_class", class, CLASS " (Kimi-K2)");
	if (rc == OD_OK)
		rc = count_lines(data, len, &n, where, err);
	if (rc != OD_OK)
		return rc;
	tok_bpe_init(&t->bpe);
	t->bpe.ignore_merges = true;
	rc = load_vocab(t, data, len, n, where, err);
	if (rc == OD_OK)
		rc = parse_pipeline(t, n, config, where, err);
	t->pres.slices = true;
	return rc;
}
