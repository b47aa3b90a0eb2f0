#include "common/pack/gguf/gguf_tokenizer.h"

#include "common/text/tok_patterns.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS (1u << 22)
#define MAX_TOKEN_BYTES 65536u
#define MAX_STAGES 6

/* ---- How texts are cut into words: tokenizer.ggml.pre ---- */

struct gguf_pre {
	const char *names[4];
	const char *stage[MAX_STAGES]; /* patterns, one after the other; none: GPT-2's */
	bool digits; /* at last each digit stands alone */
	bool nfc; /* texts are normalised first; there is no key for it */
	bool whole_words; /* a word that is a token is not merged from its parts */
};

static const struct gguf_pre pres[] = {
	{ .names = { "default", "gpt-2" } },
	{ .names = { "olmo" }, .nfc = true },
	{ .names = { "llama-bpe", "llama-v3", "llama3" }, .stage = { TOK_LLAMA3 }, .whole_words = true },
	{ .names = { "glm4", "chatglm-bpe" }, .stage = { TOK_LLAMA3 } },
	{ .names = { "qwen2" }, .stage = { TOK_QWEN2 }, .nfc = true },
	{ .names = { "qwen35" }, .stage = { TOK_QWEN3_5 }, .nfc = true },
	{ .names = { "deepseek-llm" },
	  .stage = { "[\r\n]", TOK_DEEPSEEK_LETTERS, TOK_DEEPSEEK_SIGNS, "\\s+$", TOK_DEEPSEEK_HAN },
	  .digits = true },
	{ .names = { "deepseek-coder" },
	  .stage = { "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", TOK_DEEPSEEK_HAN },
	  .digits = true },
	{ .names = { "deepseek-v3" }, .stage = { TOK_DEEPSEEK_V3_DIGITS, TOK_DEEPSEEK_V3_HAN, TOK_DEEPSEEK_V3_WORDS } },
	{ .names = { "gpt-4o" }, .stage = { TOK_O200K }, .whole_words = true },
	{ .names = { "minimax-m2" }, .stage = { TOK_O200K } },
	{ .names = { "kimi-k2" }, .stage = { TOK_KIMI }, .whole_words = true },
	{ .names = { "tekken" }, .stage = { TOK_TEKKEN }, .whole_words = true },
};
#define N_PRES (sizeof(pres) / sizeof(pres[0]))

static bool is_text(const char *text, size_t len, const char *expected)
{
	return expected != NULL && strlen(expected) == len && memcmp(text, expected, len) == 0;
}

static const struct gguf_pre *pre_of(const char *name, size_t len)
{
	for (size_t i = 0; i < N_PRES; i++)
		for (size_t k = 0; k < sizeof(pres[i].names) / sizeof(pres[i].names[0]); k++)
			if (is_text(name, len, pres[i].names[k]))
				return &pres[i];
	return NULL;
}

static int unknown_pre(const struct od_gguf *g, const char *name, size_t len, struct od_err *err)
{
	char list[256];
	size_t at = 0;

	for (size_t i = 0; i < N_PRES && at < sizeof(list); i++)
		at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i > 0 ? ", " : "", pres[i].names[0]);
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: key tokenizer.ggml.pre: expected one of %s, found \"%.*s\"",
		       od_gguf_path(g), list, (int)(len < 64 ? len : 64), name);
}

/* ---- Tokens ---- */

enum token_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct gguf_token {
	const char *text;
	size_t len;
	int64_t type;
};

struct gguf_vocab {
	const struct od_gguf *g;
	struct gguf_token *token;
	uint64_t n;
	int64_t bos, eos, unk; /* -1: none */
	bool add_bos, add_eos;
};

static int64_t token_id(const struct gguf_vocab *v, const char *key)
{
	const struct od_gguf_value *id = od_gguf_get(v->g, key);
	const int64_t i = id != NULL && id->kind != OD_GGUF_ARRAY ? od_gguf_int_at(id, 0) : -1;

	return i >= 0 && (uint64_t)i < v->n ? i : -1;
}

static int flag(const struct od_gguf *g, const char *key, bool *out, struct od_err *err)
{
	return od_gguf_get(g, key) != NULL ? od_gguf_bool(g, key, out, err) : OD_OK;
}

static int read_vocab(struct gguf_vocab *v, struct od_err *err)
{
	const char *tokens_key = "tokenizer.ggml.tokens", *types_key = "tokenizer.ggml.token_type";
	struct od_gguf_value tokens, types = { 0 };
	const uint8_t *at;
	int rc = od_gguf_array(v->g, tokens_key, OD_GGUF_STRING, 1, &tokens, err);

	if (rc == OD_OK && od_gguf_get(v->g, types_key) != NULL)
		rc = od_gguf_array(v->g, types_key, OD_GGUF_I32, tokens.n, &types, err);
	if (rc == OD_OK && tokens.n > MAX_TOKENS)
		rc = od_fail(err, OD_ERR_RANGE, "%s: key %s: expected at most %u tokens, found %" PRIu64,
			     od_gguf_path(v->g), tokens_key, MAX_TOKENS, tokens.n);
	if (rc != OD_OK)
		return rc;
	v->token = calloc(tokens.n, sizeof(*v->token));
	if (v->token == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %" PRIu64 " tokens", od_gguf_path(v->g), tokens.n);
	v->n = tokens.n;
	at = tokens.at;
	for (uint64_t i = 0; i < v->n; i++) {
		v->token[i].text = od_gguf_next_string(&at, &v->token[i].len);
		v->token[i].type = types.n > 0 ? od_gguf_int_at(&types, i) : NORMAL;
		if (v->token[i].len > MAX_TOKEN_BYTES)
			return od_fail(err, OD_ERR_RANGE,
				       "%s: key %s: token %" PRIu64 " has %zu bytes: expected at most %u",
				       od_gguf_path(v->g), tokens_key, i, v->token[i].len, MAX_TOKEN_BYTES);
	}
	v->bos = token_id(v, "tokenizer.ggml.bos_token_id");
	v->eos = token_id(v, "tokenizer.ggml.eos_token_id");
	v->unk = token_id(v, "tokenizer.ggml.unknown_token_id");
	rc = flag(v->g, "tokenizer.ggml.add_bos_token", &v->add_bos, err);
	return rc == OD_OK ? flag(v->g, "tokenizer.ggml.add_eos_token", &v->add_eos, err) : rc;
}

static json_t *text_of(const struct gguf_token *t)
{
	return json_stringn(t->text, t->len); /* NULL: not UTF-8 */
}

static int not_utf8(const struct gguf_vocab *v, uint64_t id, struct od_err *err)
{
	return od_fail(err, OD_ERR_FORMAT, "%s: key tokenizer.ggml.tokens: token %" PRIu64 ": expected UTF-8",
		       od_gguf_path(v->g), id);
}

/* ---- tokenizer.json ---- */

/* A text may have such a token as it is written: controls, and what the publisher has added. */
static bool is_added(const struct gguf_token *t)
{
	return t->type == CONTROL || t->type == USER_DEFINED || t->type == UNKNOWN;
}

static int put_tokens(const struct gguf_vocab *v, json_t *vocab, json_t *added, struct od_err *err)
{
	for (uint64_t id = 0; id < v->n; id++) {
		const struct gguf_token *t = &v->token[id];
		json_t *text;

		if (t->type == UNUSED || t->len == 0)
			continue;
		text = text_of(t);
		if (text == NULL)
			return not_utf8(v, id, err);
		if (is_added(t))
			json_array_append_new(added,
					      json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id,
							"content", text, "single_word", 0, "lstrip", 0, "rstrip", 0,
							"normalized", 0, "special", t->type != USER_DEFINED));
		/* If two tokens have one text, the first counts, as in llama.cpp. */
		if (json_object_getn(vocab, t->text, t->len) == NULL)
			json_object_setn_new_nocheck(vocab, t->text, t->len, json_integer((json_int_t)id));
		json_decref(text);
	}
	return OD_OK;
}

static int put_merges(const struct gguf_vocab *v, json_t *merges, struct od_err *err)
{
	const char *key = "tokenizer.ggml.merges";
	struct od_gguf_value list;
	const uint8_t *at;
	int rc = od_gguf_array(v->g, key, OD_GGUF_STRING, 0, &list, err);

	at = rc == OD_OK ? list.at : NULL;
	for (uint64_t i = 0; rc == OD_OK && i < list.n; i++) {
		size_t len;
		const char *text = od_gguf_next_string(&at, &len);

		if (json_array_append_new(merges, json_stringn(text, len)) != 0)
			rc = od_fail(err, OD_ERR_FORMAT, "%s: key %s: merge %" PRIu64 ": expected UTF-8",
				     od_gguf_path(v->g), key, i);
	}
	return rc;
}

static json_t *cutting(const struct gguf_pre *p)
{
	json_t *list;

	if (p->stage[0] == NULL)
		return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
				 "use_regex", 1);
	list = json_array();
	for (int i = 0; i < MAX_STAGES && p->stage[i] != NULL; i++)
		json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
						      p->stage[i], "behavior", "Isolated", "invert", 0));
	if (p->digits)
		json_array_append_new(list, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
	json_array_append_new(list, json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
					      "trim_offsets", 1, "use_regex", 0));
	return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

static json_t *special_piece(json_t *text)
{
	return json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", text, "type_id", 0);
}

/* Tokens before and behind each text. */
static int put_ends(const struct gguf_vocab *v, json_t *root, struct od_err *err)
{
	const int64_t ends[] = { v->add_bos ? v->bos : -1, v->add_eos ? v->eos : -1 };
	json_t *single = json_array(), *special = json_object();
	int rc = OD_OK;

	for (int i = 0; i < 2; i++) {
		json_t *text = ends[i] >= 0 ? text_of(&v->token[ends[i]]) : NULL;

		if (i == 1)
			json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
		if (ends[i] < 0)
			continue;
		if (text == NULL) {
			rc = not_utf8(v, (uint64_t)ends[i], err);
			break;
		}
		if (i == 0)
			json_array_insert_new(single, 0, special_piece(text));
		else
			json_array_append_new(single, special_piece(text));
		json_object_set_new(
			special, json_string_value(text),
			json_pack("{s:O, s:[I], s:[O]}", "id", text, "ids", (json_int_t)ends[i], "tokens", text));
		json_decref(text);
	}
	json_object_set_new(root, "post_processor",
			    json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", single,
				      "special_tokens", special));
	return rc;
}

static int dump(json_t *root, struct od_strbuf *out, const struct od_gguf *g, struct od_err *err)
{
	char *text = json_dumps(root, JSON_COMPACT);

	if (text != NULL)
		od_strbuf_append(out, text, strlen(text));
	free(text);
	return text != NULL && !out->failed ?
		       OD_OK :
		       od_fail(err, OD_ERR_NOMEM, "%s: no memory for its tokeniser", od_gguf_path(g));
}

static json_t *byte_level(const struct gguf_pre *p)
{
	json_t *root = json_object();

	json_object_set_new(root, "normalizer", p->nfc ? json_pack("{s:s}", "type", "NFC") : json_null());
	json_object_set_new(root, "pre_tokenizer", cutting(p));
	json_object_set_new(root, "decoder",
			    json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
				      "trim_offsets", 1, "use_regex", 1));
	json_object_set_new(root, "model",
			    json_pack("{s:s, s:b, s:b, s:b}", "type", "BPE", "fuse_unk", 0, "byte_fallback", 0,
				      "ignore_merges", p->whole_words));
	return root;
}

/* Gemma's: spaces are marks, and bytes that no token has are tokens of their own. */
static json_t *marked(const struct gguf_vocab *v)
{
	const char *mark = "\u2581";
	json_t *root = json_object();

	json_object_set_new(
		root, "normalizer",
		json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", mark));
	json_object_set_new(root, "pre_tokenizer",
			    json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "String", " ", "behavior",
				      "MergedWithPrevious", "invert", 0));
	json_object_set_new(root, "decoder",
			    json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]}", "type", "Sequence", "decoders",
				      "type", "Replace", "pattern", "String", mark, "content", " ", "type",
				      "ByteFallback", "type", "Fuse"));
	json_object_set_new(root, "model",
			    json_pack("{s:s, s:b, s:b, s:b}", "type", "BPE", "fuse_unk", 1, "byte_fallback", 1,
				      "ignore_merges", 0));
	for (uint64_t i = 0; i < v->n; i++)
		if (v->token[i].type == UNKNOWN || is_text(v->token[i].text, v->token[i].len, "<unk>")) {
			json_object_set_new(json_object_get(root, "model"), "unk_token", text_of(&v->token[i]));
			break;
		}
	return root;
}

static int write_json(const struct gguf_vocab *v, json_t *root, struct od_gguf_texts *out, struct od_err *err)
{
	json_t *vocab = json_object(), *added = json_array(), *merges = json_array();
	json_t *model = json_object_get(root, "model");
	int rc;

	json_object_set_new(root, "version", json_string("1.0"));
	json_object_set_new(model, "vocab", vocab);
	json_object_set_new(model, "merges", merges);
	json_object_set_new(root, "added_tokens", added);
	rc = put_tokens(v, vocab, added, err);
	if (rc == OD_OK)
		rc = put_merges(v, merges, err);
	if (rc == OD_OK)
		rc = put_ends(v, root, err);
	if (rc == OD_OK)
		rc = dump(root, &out->tokenizer, v->g, err);
	json_decref(root);
	return rc;
}

/* ---- tokenizer.model: ModelProto of SentencePiece ---- */

static void put_varint(struct od_strbuf *b, uint64_t v)
{
	char byte;

	do {
		byte = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		od_strbuf_append(b, &byte, 1);
		v >>= 7;
	} while (v > 0);
}

static void put_number(struct od_strbuf *b, unsigned field, uint64_t v)
{
	put_varint(b, field << 3);
	put_varint(b, v);
}

static void put_bytes(struct od_strbuf *b, unsigned field, const char *text, size_t len)
{
	put_varint(b, field << 3 | 2);
	put_varint(b, len);
	od_strbuf_append(b, text, len);
}

static void put_float(struct od_strbuf *b, unsigned field, float v)
{
	put_varint(b, field << 3 | 5);
	od_strbuf_append(b, (const char *)&v, sizeof(v));
}

static void put_message(struct od_strbuf *out, unsigned field, struct od_strbuf *message)
{
	out->failed = out->failed || message->failed;
	put_bytes(out, field, od_strbuf_text(message), message->len);
	message->len = 0;
}

/* The piece for what has none: converters call it a control. */
static int64_t unknown_piece(const struct gguf_vocab *v)
{
	for (uint64_t i = 0; i < v->n; i++)
		if (v->token[i].type == UNKNOWN)
			return (int64_t)i;
	for (uint64_t i = 0; v->unk < 0 && i < v->n; i++)
		if (is_text(v->token[i].text, v->token[i].len, "<unk>"))
			return (int64_t)i;
	return v->unk;
}

static uint64_t piece_type(const struct gguf_vocab *v, uint64_t id, int64_t unknown)
{
	if ((int64_t)id == unknown)
		return UNKNOWN;
	/* An unused token is no text's: so are controls. */
	return v->token[id].type == UNUSED || v->token[id].type == UNKNOWN ? CONTROL : (uint64_t)v->token[id].type;
}

static int write_model(const struct gguf_vocab *v, struct od_gguf_texts *out, struct od_err *err)
{
	const int64_t unknown = unknown_piece(v);
	struct od_strbuf m = { 0 };
	bool bytes = false, prefix = true, squeeze = false;
	struct od_gguf_value scores;
	int rc = od_gguf_array(v->g, "tokenizer.ggml.scores", OD_GGUF_F32, v->n, &scores, err);

	if (rc == OD_OK)
		rc = flag(v->g, "tokenizer.ggml.add_space_prefix", &prefix, err);
	if (rc == OD_OK)
		rc = flag(v->g, "tokenizer.ggml.remove_extra_whitespaces", &squeeze, err);
	for (uint64_t i = 0; rc == OD_OK && i < v->n; i++) {
		const struct gguf_token *t = &v->token[i];

		bytes = bytes || t->type == BYTE;
		put_bytes(&m, 1, t->text, t->len);
		put_float(&m, 2, (float)od_gguf_number_at(&scores, i));
		put_number(&m, 3, piece_type(v, i, unknown));
		put_message(&out->tokenizer, 1, &m);
	}
	put_number(&m, 3, 2); /* BPE */
	put_number(&m, 35, bytes);
	put_number(&m, 41, v->bos >= 0 ? (uint64_t)v->bos : UINT32_MAX);
	put_number(&m, 42, v->eos >= 0 ? (uint64_t)v->eos : UINT32_MAX);
	put_message(&out->tokenizer, 2, &m);
	put_bytes(&m, 1, "identity", strlen("identity"));
	put_number(&m, 3, prefix);
	put_number(&m, 4, squeeze);
	put_number(&m, 5, 1);
	put_message(&out->tokenizer, 3, &m);
	od_strbuf_fini(&m);
	if (rc == OD_OK && out->tokenizer.failed)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory for its tokeniser", od_gguf_path(v->g));
	return rc;
}

/* ---- tokenizer_config.json ---- */

static int put_template(const struct od_gguf *g, const char *key, json_t **out, struct od_err *err)
{
	const char *text;
	size_t len;
	int rc = od_gguf_str(g, key, &text, &len, err);

	*out = rc == OD_OK ? json_stringn(text, len) : NULL;
	if (rc == OD_OK && *out == NULL)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: key %s: expected UTF-8", od_gguf_path(g), key);
	return rc;
}

/* The default template, and named ones beside it. */
static int put_templates(const struct od_gguf *g, json_t *config, struct od_err *err)
{
	const char *key = "tokenizer.chat_template", *names_key = "tokenizer.chat_templates";
	json_t *text = NULL, *list;
	struct od_gguf_value names;
	const uint8_t *at;
	int rc = OD_OK;

	if (od_gguf_get(g, key) != NULL)
		rc = put_template(g, key, &text, err);
	if (rc != OD_OK || od_gguf_get(g, names_key) == NULL) {
		if (text != NULL)
			json_object_set_new(config, "chat_template", text);
		return rc;
	}
	list = json_array();
	if (text != NULL)
		json_array_append_new(list, json_pack("{s:s, s:o}", "name", "default", "template", text));
	json_object_set_new(config, "chat_template", list);
	rc = od_gguf_array(g, names_key, OD_GGUF_STRING, 0, &names, err);
	at = rc == OD_OK ? names.at : NULL;
	for (uint64_t i = 0; rc == OD_OK && i < names.n; i++) {
		size_t len;
		const char *name = od_gguf_next_string(&at, &len);
		char full[160];

		if (is_text(name, len, "default"))
			continue;
		snprintf(full, sizeof(full), "%s.%.*s", key, (int)(len < 100 ? len : 100), name);
		rc = put_template(g, full, &text, err);
		if (rc == OD_OK)
			json_array_append_new(list, json_pack("{s:s%, s:o}", "name", name, len, "template", text));
	}
	return rc;
}

static int write_config(const struct gguf_vocab *v, struct od_gguf_texts *out, struct od_err *err)
{
	json_t *config = json_object();
	int rc;

	json_object_set_new(config, "add_bos_token", json_boolean(v->add_bos));
	json_object_set_new(config, "add_eos_token", json_boolean(v->add_eos));
	if (v->bos >= 0)
		json_object_set_new(config, "bos_token", text_of(&v->token[v->bos]));
	if (v->eos >= 0)
		json_object_set_new(config, "eos_token", text_of(&v->token[v->eos]));
	if (v->unk >= 0)
		json_object_set_new(config, "unk_token", text_of(&v->token[v->unk]));
	rc = put_templates(v->g, config, err);
	if (rc == OD_OK)
		rc = dump(config, &out->config, v->g, err);
	json_decref(config);
	return rc;
}

/* ---- generation_config.json ---- */

static void add_end(json_t *ends, int64_t id)
{
	for (size_t i = 0; i < json_array_size(ends); i++)
		if (json_integer_value(json_array_get(ends, i)) == id)
			return;
	if (id >= 0)
		json_array_append_new(ends, json_integer((json_int_t)id));
}

/* A file has one eos, but instruct models end their turns with other tokens as well: those of its other keys, and those
 * that are known to do that. */
static int write_generation(const struct gguf_vocab *v, struct od_gguf_texts *out, struct od_err *err)
{
	static const char *const keys[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
					    "tokenizer.ggml.eom_token_id" };
	static const char *const known[] = { "<|im_end|>",    "<|eot_id|>", "<|eom_id|>",      "<|end|>",
					     "<end_of_turn>", "<turn|>",    "<|end_of_text|>", "<|endoftext|>",
					     "<|return|>",    "<|call|>",   "<|eot|>",	       "<EOT>" };
	json_t *ends = json_array(), *root;
	bool harmony = false;
	int rc;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		add_end(ends, token_id(v, keys[i]));
	for (uint64_t id = 0; id < v->n; id++)
		harmony = harmony || is_text(v->token[id].text, v->token[id].len, "<|return|>");
	for (uint64_t id = 0; id < v->n; id++) {
		/* There it ends a message, and the next one begins. */
		if (harmony && is_text(v->token[id].text, v->token[id].len, "<|end|>"))
			continue;
		for (size_t i = 0; v->token[id].type == CONTROL && i < sizeof(known) / sizeof(known[0]); i++)
			if (is_text(v->token[id].text, v->token[id].len, known[i]))
				add_end(ends, (int64_t)id);
	}
	root = json_pack("{s:o}", "eos_token_id", ends);
	if (v->bos >= 0)
		json_object_set_new(root, "bos_token_id", json_integer((json_int_t)v->bos));
	rc = dump(root, &out->generation, v->g, err);
	json_decref(root);
	return rc;
}

/* ---- All ---- */

static int write_tokenizer(const struct gguf_vocab *v, struct od_gguf_texts *out, struct od_err *err)
{
	const char *model, *pre = "";
	size_t len, pre_len = 0;
	int rc = od_gguf_str(v->g, "tokenizer.ggml.model", &model, &len, err);

	out->name = "tokenizer.json";
	if (rc != OD_OK)
		return rc;
	if (is_text(model, len, "llama")) {
		out->name = "tokenizer.model";
		return write_model(v, out, err);
	}
	if (is_text(model, len, "gemma4"))
		return write_json(v, marked(v), out, err);
	if (!is_text(model, len, "gpt2"))
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: key tokenizer.ggml.model: expected \"gpt2\", \"llama\" or \"gemma4\", found \"%.*s\"",
			od_gguf_path(v->g), (int)(len < 64 ? len : 64), model);
	rc = od_gguf_str(v->g, "tokenizer.ggml.pre", &pre, &pre_len, err);
	if (rc != OD_OK)
		return rc;
	if (pre_of(pre, pre_len) == NULL)
		return unknown_pre(v->g, pre, pre_len, err);
	return write_json(v, byte_level(pre_of(pre, pre_len)), out, err);
}

int od_gguf_texts(const struct od_gguf *g, struct od_gguf_texts *out, struct od_err *err)
{
	struct gguf_vocab v = { .g = g };
	int rc;

	*out = (struct od_gguf_texts){ 0 };
	if (od_gguf_get(g, "tokenizer.ggml.model") == NULL)
		return OD_OK;
	rc = read_vocab(&v, err);
	if (rc == OD_OK)
		rc = write_tokenizer(&v, out, err);
	if (rc == OD_OK)
		rc = write_config(&v, out, err);
	if (rc == OD_OK)
		rc = write_generation(&v, out, err);
	free(v.token);
	return rc;
}

void od_gguf_texts_fini(struct od_gguf_texts *t)
{
	od_strbuf_fini(&t->tokenizer);
	od_strbuf_fini(&t->config);
	od_strbuf_fini(&t->generation);
}
