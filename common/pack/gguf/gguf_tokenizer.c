#include "common/pack/gguf/gguf_tokenizer.h"

#include "common/base/strbuf.h"
#include "common/pack/gguf/gguf_vocab.h"
#include "common/text/tok_patterns.h"
#include "common/text/utf8_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define MARK "\xe2\x96\x81" /* U+2581, which stands for a space */
#define MAX_ENDS 8u /* as many as a model's configuration takes */
#define MAX_TEMPLATES 64u
#define MAX_TEMPLATE_BYTES (16u << 20)

/* ---- What tokenizer.ggml.pre names ---- */

#define MAX_PATTERNS 5

struct gguf_pre {
	const char *name;
	const char *pattern[MAX_PATTERNS]; /* each cuts what the ones before left; none: GPT-2's */
	bool digits; /* then each digit on its own */
	bool nfc;
	uint32_t nfc_tokens; /* NFC for a vocabulary of so many tokens, as the published one; 0: see nfc */
	bool ignore_merges; /* a word that is a token needs none */
	bool add_bos; /* if the file does not say */
	bool no_bos; /* the file's bos is none of the tokenizer's */
	bool normalized; /* added tokens that are not special are looked for in normalised text */
};

static const struct gguf_pre pres[] = {
	{ .name = "default", .pattern = { "[\\p{P}\\$\\+<=>\\^~\\|]+", TOK_GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
	{ .name = "gpt-2" },
	{ .name = "llama-bpe", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .add_bos = true },
	{ .name = "llama3", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .add_bos = true },
	{ .name = "llama-v3", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .add_bos = true },
	{ .name = "smaug-bpe", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .add_bos = true },
	{ .name = "dbrx", .pattern = { TOK_LLAMA3 } },
	{ .name = "llama4", .pattern = { TOK_O200K }, .ignore_merges = true },
	{ .name = "gpt-4o", .pattern = { TOK_O200K }, .ignore_merges = true },
	{ .name = "minimax-m2", .pattern = { TOK_O200K }, .nfc_tokens = 200000 },
	{ .name = "qwen2", .pattern = { TOK_QWEN2 }, .nfc = true },
	{ .name = "qwen35", .pattern = { TOK_QWEN3_5 }, .nfc = true },
	{ .name = "olmo", .nfc = true, .normalized = true },
	{ .name = "glm4", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .no_bos = true },
	{ .name = "glm5", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .no_bos = true },
	{ .name = "chatglm-bpe", .pattern = { TOK_LLAMA3 }, .ignore_merges = true, .no_bos = true },
	{ .name = "deepseek-llm",
	  .pattern = { "[\r\n]", TOK_DEEPSEEK_LETTERS, TOK_DEEPSEEK_SIGNS, "\\s+$", TOK_DEEPSEEK_HAN },
	  .digits = true },
	{ .name = "deepseek-coder",
	  .pattern = { "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", TOK_DEEPSEEK_HAN },
	  .digits = true },
	{ .name = "deepseek-v3", .pattern = { TOK_DEEPSEEK_V3_DIGITS, TOK_DEEPSEEK_V3_HAN, TOK_DEEPSEEK_V3_WORDS } },
	{ .name = "joyai-llm", .pattern = { TOK_DEEPSEEK_V3_DIGITS, TOK_DEEPSEEK_V3_HAN, TOK_DEEPSEEK_V3_WORDS } },
	{ .name = "smollm", .pattern = { "\\p{N}", TOK_GPT2 } },
	{ .name = "starcoder", .pattern = { "\\p{N}", TOK_GPT2 } },
	{ .name = "kimi-k2", .pattern = { TOK_KIMI }, .ignore_merges = true },
	{ .name = "tekken", .pattern = { TOK_TEKKEN }, .ignore_merges = true, .add_bos = true },
};

/* Early files have no name, and Ollama's may say "default": then it is that of the architecture's published models. */
static const struct {
	const char *arch, *pre;
} published_pres[] = {
	{ "qwen2moe", "qwen2" }, { "qwen3moe", "qwen2" }, { "qwen3next", "qwen2" },	  { "qwen35moe", "qwen35" },
	{ "olmoe", "olmo" },	 { "glm4moe", "glm4" },	  { "minimax-m2", "minimax-m2" }, { "gpt-oss", "gpt-4o" },
};

/* SentencePiece's models, and Gemma's, need no name. */
static const struct gguf_pre scores_pre = { .name = "llama", .add_bos = true },
			     pieces_pre = { .name = "gemma4", .add_bos = true };

struct gguf_maker {
	const struct od_gguf *g;
	struct gguf_vocab v;
	const struct gguf_pre *pre;
	bool add_bos, add_eos, space_prefix, no_extra_spaces;
	bool rstrip; /* Phi's control tokens take the white space behind them */
	struct od_strbuf *b; /* the text that is being written */
};

/* Refuses the value of a key. known: a list of what is expected. */
static int unknown(const struct od_gguf *g, const char *key, const char *text, size_t len, const char *known,
		   struct od_err *err)
{
	return od_fail(
		err, OD_ERR_UNSUPPORTED,
		"%s: key %s: \"%.*s\" is not known; known: %s. Take the model from its safetensors, or a file that "
		"a newer llama.cpp converted",
		od_gguf_path(g), key, len < 64 ? (int)len : 64, text, known);
}

static bool is(const char *text, size_t len, const char *name)
{
	return strlen(name) == len && memcmp(text, name, len) == 0;
}

static int find_model(const struct od_gguf *g, enum gguf_vocab_model *model, struct od_err *err)
{
	static const char key[] = "tokenizer.ggml.model";
	const char *text;
	size_t len;
	int rc = od_gguf_str(g, key, &text, &len, err);

	*model = GGUF_VOCAB_BYTES;
	if (rc != OD_OK)
		return rc;
	if (is(text, len, "llama"))
		*model = GGUF_VOCAB_SCORES;
	else if (is(text, len, "gemma4"))
		*model = GGUF_VOCAB_PIECES;
	else if (!is(text, len, "gpt2"))
		return unknown(g, key, text, len, "gpt2, llama, gemma4", err);
	return OD_OK;
}

static bool has_arch(const struct od_gguf *g, const char *name)
{
	const struct od_gguf_value *v = od_gguf_get(g, "general.architecture");

	return v != NULL && v->kind == OD_GGUF_STRING && is((const char *)v->at, v->n, name);
}

static int find_pre(struct gguf_maker *m, enum gguf_vocab_model model, struct od_err *err)
{
	static const char key[] = "tokenizer.ggml.pre";
	const char *text = "default";
	size_t len = strlen(text), n = 0;
	char known[512] = "";
	int rc;

	m->pre = model == GGUF_VOCAB_SCORES ? &scores_pre : &pieces_pre;
	if (model != GGUF_VOCAB_BYTES)
		return OD_OK;
	if (od_gguf_get(m->g, key) != NULL) {
		rc = od_gguf_str(m->g, key, &text, &len, err);
		if (rc != OD_OK)
			return rc;
	}
	for (size_t i = 0; is(text, len, "default") && i < N(published_pres); i++)
		if (has_arch(m->g, published_pres[i].arch)) {
			text = published_pres[i].pre;
			len = strlen(text);
		}
	for (size_t i = 0; i < N(pres); i++) {
		m->pre = &pres[i];
		if (is(text, len, pres[i].name))
			return OD_OK;
		n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i > 0 ? ", " : "", pres[i].name);
	}
	return unknown(m->g, key, text, len, known, err);
}

static int bool_or(const struct od_gguf *g, const char *key, bool fallback, bool *out, struct od_err *err)
{
	*out = fallback;
	return od_gguf_get(g, key) != NULL ? od_gguf_bool(g, key, out, err) : OD_OK;
}

static int read_options(struct gguf_maker *m, struct od_err *err)
{
	static const char map_key[] = "tokenizer.ggml.precompiled_charsmap";
	const bool scores = m->v.model == GGUF_VOCAB_SCORES;
	int rc = bool_or(m->g, "tokenizer.ggml.add_bos_token", m->pre->add_bos, &m->add_bos, err);

	if (rc == OD_OK)
		rc = bool_or(m->g, "tokenizer.ggml.add_eos_token", false, &m->add_eos, err);
	if (rc == OD_OK)
		rc = bool_or(m->g, "tokenizer.ggml.add_space_prefix", scores, &m->space_prefix, err);
	if (rc == OD_OK)
		rc = bool_or(m->g, "tokenizer.ggml.remove_extra_whitespaces", false, &m->no_extra_spaces, err);
	if (rc == OD_OK && od_gguf_get(m->g, map_key) != NULL)
		rc = od_fail(err, OD_ERR_UNSUPPORTED,
			     "%s: key %s: expected none: a map of characters is not supported. Take the model from its "
			     "safetensors",
			     od_gguf_path(m->g), map_key);
	if (m->pre->no_bos)
		m->v.bos = -1;
	m->add_bos = m->add_bos || m->v.model == GGUF_VOCAB_PIECES; /* early files say false, and are wrong */
	m->add_bos = m->add_bos && m->v.bos >= 0;
	m->add_eos = m->add_eos && m->v.eos >= 0;
	m->rstrip = has_arch(m->g, "phimoe") || has_arch(m->g, "phi3");
	return rc;
}

/* ---- JSON ---- */

static void put(struct gguf_maker *m, const char *text)
{
	od_strbuf_append(m->b, text, strlen(text));
}

/* As a JSON string; the text is UTF-8. */
static void put_text(struct gguf_maker *m, const char *text, size_t len)
{
	size_t begin = 0;

	od_strbuf_append(m->b, "\"", 1);
	for (size_t i = 0; i < len; i++) {
		const unsigned char c = (unsigned char)text[i];

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		od_strbuf_append(m->b, text + begin, i - begin);
		if (c < 0x20)
			od_strbuf_printf(m->b, "\\u%04x", c);
		else
			od_strbuf_printf(m->b, "\\%c", c);
		begin = i + 1;
	}
	od_strbuf_append(m->b, text + begin, len - begin);
	od_strbuf_append(m->b, "\"", 1);
}

static void put_token(struct gguf_maker *m, uint32_t id)
{
	put_text(m, m->v.token[id].text, m->v.token[id].len);
}

static const char *bool_text(bool b)
{
	return b ? "true" : "false";
}

/* ---- tokenizer.json ---- */

/* Phi's published files have the flag for these. */
static bool takes_space(const struct gguf_maker *m, const struct gguf_token *t)
{
	return m->rstrip &&
	       (is(t->text, t->len, "</s>") || (t->type == GGUF_TOKEN_CONTROL && !is(t->text, t->len, "<unk>") &&
						!is(t->text, t->len, "<s>") && !is(t->text, t->len, "<|endoftext|>")));
}

static void put_added(struct gguf_maker *m)
{
	bool first = true;

	put(m, "\"added_tokens\":[");
	for (uint32_t id = 0; id < m->v.n; id++) {
		const struct gguf_token *t = &m->v.token[id];

		if (!t->added)
			continue;
		od_strbuf_printf(m->b, "%s\n{\"id\":%u,\"content\":", first ? "" : ",", id);
		put_token(m, id);
		od_strbuf_printf(
			m->b, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":%s,\"normalized\":%s,\"special\":%s}",
			bool_text(takes_space(m, t)), bool_text(!t->special && m->pre->normalized),
			bool_text(t->special));
		first = false;
	}
	put(m, "],\n");
}

static void put_replace(struct gguf_maker *m, const char *kind, const char *pattern, const char *content)
{
	od_strbuf_printf(m->b, "{\"type\":\"Replace\",\"pattern\":{\"%s\":", kind);
	put_text(m, pattern, strlen(pattern));
	put(m, "},\"content\":");
	put_text(m, content, strlen(content));
	put(m, "}");
}

static void put_normalizer(struct gguf_maker *m)
{
	put(m, "\"normalizer\":");
	if (m->v.model == GGUF_VOCAB_BYTES) {
		put(m, m->pre->nfc || (m->pre->nfc_tokens > 0 && m->v.n >= m->pre->nfc_tokens) ?
			       "{\"type\":\"NFC\"},\n" :
			       "null,\n");
		return;
	}
	put(m, "{\"type\":\"Sequence\",\"normalizers\":[");
	if (m->no_extra_spaces) {
		put_replace(m, "Regex", " {2,}", " ");
		put(m, ",");
		put_replace(m, "Regex", "\\A ", "");
		put(m, ",");
	}
	if (m->space_prefix)
		put(m, "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},");
	put_replace(m, "String", " ", MARK);
	if (m->no_extra_spaces) {
		put(m, ",");
		put_replace(m, "Regex", MARK "+\\z", "");
	}
	put(m, "]},\n");
}

static void put_pre_tokenizer(struct gguf_maker *m)
{
	const char *const *pattern = m->pre->pattern;

	put(m, "\"pre_tokenizer\":");
	if (m->v.model != GGUF_VOCAB_BYTES) {
		put(m, "null,\n");
		return;
	}
	put(m, "{\"type\":\"Sequence\",\"pretokenizers\":[");
	for (size_t i = 0; i < MAX_PATTERNS && pattern[i] != NULL; i++) {
		put(m, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
		put_text(m, pattern[i], strlen(pattern[i]));
		put(m, "},\"behavior\":\"Isolated\",\"invert\":false},");
	}
	if (m->pre->digits)
		put(m, "{\"type\":\"Digits\",\"individual_digits\":true},");
	od_strbuf_printf(
		m->b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}]},\n",
		bool_text(pattern[0] == NULL));
}

static void put_special(struct gguf_maker *m, uint32_t id, unsigned type)
{
	put(m, "{\"SpecialToken\":{\"id\":");
	put_token(m, id);
	od_strbuf_printf(m->b, ",\"type_id\":%u}}", type);
}

/* One text with what stands around it. */
static void put_around(struct gguf_maker *m, const char *name, unsigned type)
{
	if (m->add_bos) {
		put_special(m, (uint32_t)m->v.bos, type);
		put(m, ",");
	}
	od_strbuf_printf(m->b, "{\"Sequence\":{\"id\":\"%s\",\"type_id\":%u}}", name, type);
	if (m->add_eos) {
		put(m, ",");
		put_special(m, (uint32_t)m->v.eos, type);
	}
}

static void put_ids(struct gguf_maker *m, uint32_t id)
{
	put_token(m, id);
	put(m, ":{\"id\":");
	put_token(m, id);
	od_strbuf_printf(m->b, ",\"ids\":[%u],\"tokens\":[", id);
	put_token(m, id);
	put(m, "]}");
}

static void put_post_processor(struct gguf_maker *m)
{
	const bool both = m->add_bos && m->add_eos && m->v.bos != m->v.eos;

	put(m, "\"post_processor\":");
	if (!m->add_bos && !m->add_eos) {
		put(m, "null,\n");
		return;
	}
	put(m, "{\"type\":\"TemplateProcessing\",\"single\":[");
	put_around(m, "A", 0);
	put(m, "],\"pair\":[");
	put_around(m, "A", 0);
	put(m, ",");
	put_around(m, "B", 1);
	put(m, "],\"special_tokens\":{");
	put_ids(m, (uint32_t)(m->add_bos ? m->v.bos : m->v.eos));
	if (both) {
		put(m, ",");
		put_ids(m, (uint32_t)m->v.eos);
	}
	put(m, "}},\n");
}

static void put_decoder(struct gguf_maker *m)
{
	put(m, "\"decoder\":");
	if (m->v.model == GGUF_VOCAB_BYTES) {
		put(m,
		    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n");
		return;
	}
	put(m, "{\"type\":\"Sequence\",\"decoders\":[");
	put_replace(m, "String", MARK, " ");
	put(m, ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
	if (m->space_prefix || m->no_extra_spaces)
		put(m, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
	put(m, "]},\n");
}

static void put_model(struct gguf_maker *m)
{
	const struct gguf_vocab *v = &m->v;
	bool first = true;

	put(m, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
	if (v->unk >= 0)
		put_token(m, (uint32_t)v->unk);
	else
		put(m, "null");
	od_strbuf_printf(m->b,
			 ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,"
			 "\"byte_fallback\":%s,\"ignore_merges\":%s,\n\"vocab\":{",
			 bool_text(v->model != GGUF_VOCAB_BYTES), bool_text(v->all_bytes),
			 bool_text(m->pre->ignore_merges));
	for (uint32_t id = 0; id < v->n; id++) {
		if (!v->token[id].in_model)
			continue;
		put(m, first ? "\n" : ",\n");
		put_token(m, id);
		od_strbuf_printf(m->b, ":%u", id);
		first = false;
	}
	put(m, "},\n\"merges\":[");
	for (size_t i = 0; i < v->n_merges; i++) {
		put(m, i > 0 ? ",\n[" : "\n[");
		put_token(m, v->merge[i].left);
		put(m, ",");
		put_token(m, v->merge[i].right);
		put(m, "]");
	}
	put(m, "]}}\n");
}

static void put_tokenizer(struct gguf_maker *m)
{
	put(m, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
	put_added(m);
	put_normalizer(m);
	put_pre_tokenizer(m);
	put_post_processor(m);
	put_decoder(m);
	put_model(m);
}

/* ---- tokenizer_config.json ---- */

struct gguf_template {
	const char *name, *text;
	size_t name_len, len;
};

static int read_template(const struct od_gguf *g, const char *key, struct gguf_template *t, struct od_err *err)
{
	int rc = od_gguf_str(g, key, &t->text, &t->len, err);

	if (rc == OD_OK && t->len > MAX_TEMPLATE_BYTES)
		rc = od_fail(err, OD_ERR_RANGE, "%s: key %s: expected a template of at most %u bytes, found %zu",
			     od_gguf_path(g), key, MAX_TEMPLATE_BYTES, t->len);
	if (rc == OD_OK && !odm_utf8_valid(t->text, t->len))
		rc = od_fail(err, OD_ERR_FORMAT, "%s: key %s: expected UTF-8, found other bytes; get the file again",
			     od_gguf_path(g), key);
	return rc;
}

/* The default one first, then as tokenizer.chat_templates lists them. */
static int read_templates(const struct od_gguf *g, struct gguf_template *all, size_t *n, struct od_err *err)
{
	static const char list[] = "tokenizer.chat_templates";
	struct od_gguf_value names = { .n = 0 };
	char key[160];
	int rc = OD_OK;

	*n = 0;
	if (od_gguf_get(g, "tokenizer.chat_template") != NULL) {
		all[(*n)++] = (struct gguf_template){ .name = "default", .name_len = 7 };
		rc = read_template(g, "tokenizer.chat_template", &all[0], err);
	}
	if (rc == OD_OK && od_gguf_get(g, list) != NULL)
		rc = od_gguf_array(g, list, OD_GGUF_STRING, 0, &names, err);
	if (rc == OD_OK && names.n >= MAX_TEMPLATES)
		rc = od_fail(err, OD_ERR_RANGE, "%s: key %s: expected fewer than %u templates, found %" PRIu64,
			     od_gguf_path(g), list, MAX_TEMPLATES, names.n);
	for (uint64_t i = 0; rc == OD_OK && i < names.n; i++) {
		struct gguf_template *t = &all[*n];

		t->name = od_gguf_next_string(&names.at, &t->name_len);
		if (t->name_len > 64 || !odm_utf8_valid(t->name, t->name_len) ||
		    memchr(t->name, '\0', t->name_len) != NULL)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: key %s: name %" PRIu64 ": expected at most 64 bytes of UTF-8, found others",
				       od_gguf_path(g), list, i);
		snprintf(key, sizeof(key), "tokenizer.chat_template.%.*s", (int)t->name_len, t->name);
		rc = read_template(g, key, t, err);
		++*n;
	}
	return rc;
}

static void put_config(struct gguf_maker *m, const struct gguf_template *template, size_t n)
{
	od_strbuf_printf(m->b, "{\"add_bos_token\":%s,\"add_eos_token\":%s", bool_text(m->add_bos),
			 bool_text(m->add_eos));
	if (m->v.bos >= 0) {
		put(m, ",\"bos_token\":");
		put_token(m, (uint32_t)m->v.bos);
	}
	if (m->v.eos >= 0) {
		put(m, ",\"eos_token\":");
		put_token(m, (uint32_t)m->v.eos);
	}
	if (n > 0)
		put(m, ",\n\"chat_template\":");
	if (n == 1 && is(template->name, template->name_len, "default")) {
		put_text(m, template->text, template->len);
		n = 0;
	}
	for (size_t i = 0; i < n; i++) {
		put(m, i == 0 ? "[{\"name\":" : ",\n{\"name\":");
		put_text(m, template[i].name, template[i].name_len);
		put(m, ",\"template\":");
		put_text(m, template[i].text, template[i].len);
		put(m, "}");
	}
	put(m, n > 0 ? "]}\n" : "}\n");
}

/* ---- generation_config.json ---- */

struct gguf_ends {
	uint32_t id[MAX_ENDS];
	size_t n;
};

static void add_end(struct gguf_ends *ends, int32_t id)
{
	for (size_t i = 0; i < ends->n; i++)
		if ((int32_t)ends->id[i] == id)
			return;
	if (id >= 0 && ends->n < MAX_ENDS)
		ends->id[ends->n++] = (uint32_t)id;
}

static bool written(const struct gguf_template *template, size_t n, const char *text)
{
	const size_t len = strlen(text);

	for (size_t i = 0; i < n; i++)
		if (memmem(template[i].text, template[i].len, text, len) != NULL)
			return true;
	return false;
}

/* -1: the vocabulary has no such token that stands for itself. */
static int32_t find_added(const struct gguf_vocab *v, const char *text)
{
	const int32_t id = gguf_vocab_find(v, text, strlen(text));

	return id >= 0 && v->token[id].added ? id : -1;
}

/* Metadata has one eos and often nothing else: published lists of ends follow from the tokens that there are, and from
 * what the templates write at the end of a turn. */
static void find_ends(const struct gguf_maker *m, const struct gguf_template *template, size_t n,
		      struct gguf_ends *ends)
{
	static const char *const always[] = { "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>" };
	static const char *const turns[] = { "<|im_end|>", "<end_of_turn>",	    "<turn|>", "[e~[",
					     "[EOS]",	   "<|END_OF_TURN_TOKEN|>", "</s>",    "<|return|>",
					     "<|call|>",   "<｜end▁of▁sentence｜>" };
	const struct od_gguf_value *more = od_gguf_get(m->g, "tokenizer.ggml.eos_token_ids"); /* Ollama's */
	const uint64_t n_more = more != NULL && more->kind == OD_GGUF_ARRAY ? more->n : 0;
	const bool harmony = find_added(&m->v, "<|return|>") >= 0, gemma = written(template, n, "<|tool_call>"),
		   glm = find_added(&m->v, "<|observation|>") >= 0 && written(template, n, "<|observation|>");

	*ends = (struct gguf_ends){ .n = 0 };
	add_end(ends, m->v.eos);
	add_end(ends, m->v.eot);
	add_end(ends, m->v.eom);
	for (uint64_t i = 0; i < n_more; i++)
		if ((more->of == OD_GGUF_I32 || more->of == OD_GGUF_U32) && od_gguf_int_at(more, i) < m->v.n)
			add_end(ends, (int32_t)od_gguf_int_at(more, i));
	for (size_t i = 0; i < N(turns); i++)
		if (written(template, n, turns[i]))
			add_end(ends, find_added(&m->v, turns[i]));
	if (!harmony && written(template, n, "<|end|>")) /* there it ends a message, not a turn */
		add_end(ends, find_added(&m->v, "<|end|>"));
	if (gemma)
		add_end(ends, find_added(&m->v, "<|tool_response>"));
	if (glm) {
		add_end(ends, find_added(&m->v, "<|user|>"));
		add_end(ends, find_added(&m->v, "<|observation|>"));
	}
	for (size_t i = 0; i < N(always); i++)
		add_end(ends, find_added(&m->v, always[i]));
}

/* Newer converters take these from generation_config.json. They say how a token is drawn, so one is drawn. */
static void put_sampling(struct gguf_maker *m)
{
	static const char *const reals[][2] = { { "general.sampling.temp", "temperature" },
						{ "general.sampling.top_p", "top_p" },
						{ "general.sampling.min_p", "min_p" },
						{ "general.sampling.penalty_repeat", "repetition_penalty" } };
	struct od_err ignored;
	uint64_t top_k;
	bool any = false;
	double v;

	for (size_t i = 0; i < N(reals); i++)
		if (od_gguf_f64(m->g, reals[i][0], &v, &ignored) == OD_OK && isfinite(v)) {
			od_strbuf_printf(m->b, ",\"%s\":%.6g", reals[i][1], v); /* 0.6 was one before it was a float */
			any = true;
		}
	if (od_gguf_u64(m->g, "general.sampling.top_k", 1, INT32_MAX, &top_k, &ignored) == OD_OK) {
		od_strbuf_printf(m->b, ",\"top_k\":%" PRIu64, top_k);
		any = true;
	}
	if (any)
		put(m, ",\"do_sample\":true");
}

static void put_suppressed(struct gguf_maker *m)
{
	struct od_gguf_value v;
	struct od_err ignored;

	if (od_gguf_array(m->g, "tokenizer.ggml.suppress_tokens", OD_GGUF_I32, 1, &v, &ignored) != OD_OK)
		return;
	for (uint64_t i = 0; i < v.n; i++)
		od_strbuf_printf(m->b, "%s%" PRId64, i == 0 ? ",\"suppress_tokens\":[" : ",", od_gguf_int_at(&v, i));
	put(m, "]");
}

static void put_generation(struct gguf_maker *m, const struct gguf_template *template, size_t n)
{
	struct gguf_ends ends;

	find_ends(m, template, n, &ends);
	put(m, "{\"eos_token_id\":[");
	for (size_t i = 0; i < ends.n; i++)
		od_strbuf_printf(m->b, "%s%u", i == 0 ? "" : ",", ends.id[i]);
	put(m, "]");
	if (m->v.bos >= 0)
		od_strbuf_printf(m->b, ",\"bos_token_id\":%d", m->v.bos);
	put_sampling(m);
	put_suppressed(m);
	put(m, "}\n");
}

/* ---- All of them ---- */

static int make(struct gguf_maker *m, struct od_gguf_texts *out, struct od_err *err)
{
	struct gguf_template template[MAX_TEMPLATES];
	enum gguf_vocab_model model;
	size_t n = 0;
	int rc = find_model(m->g, &model, err);

	if (rc == OD_OK)
		rc = find_pre(m, model, err);
	if (rc == OD_OK)
		rc = gguf_vocab_read(&m->v, m->g, model, err);
	if (rc == OD_OK)
		rc = read_options(m, err);
	if (rc == OD_OK)
		rc = read_templates(m->g, template, &n, err);
	if (rc != OD_OK)
		return rc;
	out->name = "tokenizer.json";
	m->b = &out->tokenizer;
	put_tokenizer(m);
	m->b = &out->config;
	put_config(m, template, n);
	m->b = &out->generation;
	put_generation(m, template, n);
	if (out->tokenizer.failed || out->config.failed || out->generation.failed)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for its tokeniser", od_gguf_path(m->g));
	return OD_OK;
}

/* llama.cpp writes either name for a model that has no tokeniser; older files lack the key. */
static bool has_tokenizer(const struct od_gguf *g)
{
	const char *text;
	size_t len;
	struct od_err ignored;

	if (od_gguf_get(g, "tokenizer.ggml.model") == NULL)
		return false;
	return od_gguf_str(g, "tokenizer.ggml.model", &text, &len, &ignored) != OD_OK ||
	       (!is(text, len, "no_vocab") && !is(text, len, "none"));
}

int od_gguf_texts(const struct od_gguf *g, struct od_gguf_texts *out, struct od_err *err)
{
	struct gguf_maker m = { .g = g };
	int rc;

	*out = (struct od_gguf_texts){ 0 };
	if (!has_tokenizer(g))
		return OD_OK;
	rc = make(&m, out, err);
	gguf_vocab_fini(&m.v);
	return rc;
}

void od_gguf_texts_fini(struct od_gguf_texts *t)
{
	od_strbuf_fini(&t->tokenizer);
	od_strbuf_fini(&t->config);
	od_strbuf_fini(&t->generation);
}
