/* Any tokeniser metadata of a GGUF file: it is refused with a reason, or the files that are made of it are those that
 * the loaders take, and fuzz_text.h holds.
 * Input: a byte (bits 0 and 1: the model; bit 2: a list is shorter than the others; bit 3: no types), the number of the
 * name in pre_names, two bytes of length, the items, the text. An item: kind, type and score (a byte each), length,
 * bytes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "common/pack/gguf/gguf_tokenizer.h"
#include "tests/fuzz/fuzz_text.h"

static const char *const pre_names[] = { "qwen2",	"olmo",	   "llama-bpe", "deepseek-llm", "deepseek-coder",
					 "deepseek-v3", "kimi-k2", "gpt-4o",	"default",	"tekken" };

struct fuzz_list {
	struct od_strbuf b;
	uint64_t n;
};

static void put(struct od_strbuf *b, uint64_t value, size_t bytes)
{
	od_strbuf_append(b, (const char *)&value, bytes);
}

static void put_string(struct od_strbuf *b, const char *text, size_t len)
{
	put(b, len, 8);
	od_strbuf_append(b, text, len);
}

static void put_key(struct od_strbuf *b, const char *key, uint32_t type, uint64_t *n)
{
	put_string(b, key, strlen(key));
	put(b, type, 4);
	++*n;
}

static void put_list(struct od_strbuf *b, const char *key, uint32_t type, struct fuzz_list *l, uint64_t *n)
{
	put_key(b, key, 9, n);
	put(b, type, 4);
	put(b, l->n, 8);
	od_strbuf_append(b, od_strbuf_text(&l->b), l->b.len);
	od_strbuf_fini(&l->b);
}

struct fuzz_metadata {
	struct fuzz_list tokens, types, scores, merges, names;
	struct od_strbuf pairs;
	uint64_t n_pairs;
};

static void add_token(struct fuzz_metadata *m, const char *text, size_t len, uint8_t type, uint8_t score)
{
	const float f = score == 255 ? (float)(0.0 / 0.0) : -(float)score;

	put_string(&m->tokens.b, text, len);
	put(&m->types.b, type, 4);
	od_strbuf_append(&m->scores.b, (const char *)&f, sizeof(f));
	m->tokens.n++;
	m->types.n++;
	m->scores.n++;
}

/* Keys beside the lists: an id, a flag, or a text. Each at most once: twice is for the reader of headers. */
static void add_pair(struct fuzz_metadata *m, unsigned which, uint8_t value, const char *text, size_t len,
		     unsigned *seen)
{
	static const char *const ids[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
					   "tokenizer.ggml.eot_token_id", "tokenizer.ggml.unknown_token_id" };
	static const char *const flags[] = { "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
					     "tokenizer.ggml.add_space_prefix",
					     "tokenizer.ggml.remove_extra_whitespaces" };
	static const char *const texts[] = { "tokenizer.chat_template", "tokenizer.chat_template.a",
					     "general.architecture" };

	which %= 11;
	if ((*seen >> which & 1u) != 0)
		return;
	*seen |= 1u << which;
	if (which < 4) {
		put_key(&m->pairs, ids[which], 4, &m->n_pairs);
		put(&m->pairs, value, 4);
	} else if (which < 8) {
		put_key(&m->pairs, flags[which - 4], 7, &m->n_pairs);
		put(&m->pairs, value & 1, 1);
	} else {
		put_key(&m->pairs, texts[which - 8], 8, &m->n_pairs);
		put_string(&m->pairs, text, len);
	}
}

static void add_items(struct fuzz_metadata *m, const uint8_t *data, size_t size)
{
	unsigned seen = 0;

	while (size >= 4) {
		const size_t len = data[3] < size - 4 ? data[3] : size - 4;
		const char *text = (const char *)data + 4;

		switch (data[0] % 4) {
		case 0: add_token(m, text, len, data[1] % 8, data[2]); break;
		case 1:
			put_string(&m->merges.b, text, len);
			m->merges.n++;
			break;
		case 2: add_pair(m, data[1], data[2], text, len, &seen); break;
		default:
			put_string(&m->names.b, text, len);
			m->names.n++;
			break;
		}
		data += 4 + len;
		size -= 4 + len;
	}
}

static void make_file(struct od_strbuf *b, unsigned kind, unsigned pre, const uint8_t *data, size_t size)
{
	static const char *const models[] = { "gpt2", "llama", "gemma4", "gpt2" };
	struct fuzz_metadata m = { .n_pairs = 0 };
	char name[8];

	add_token(&m, "<unk>", 5, 2, 0);
	add_token(&m, "<s>", 3, 3, 0);
	add_token(&m, "a", 1, 1, 9);
	add_token(&m, "b", 1, 1, 9);
	for (unsigned i = 0; i < 256 && (kind & 0x20) != 0; i++) {
		snprintf(name, sizeof(name), "<0x%02X>", i);
		add_token(&m, name, 6, 6, 0);
	}
	add_items(&m, data, size);
	if ((kind & 4) != 0)
		m.types.n--, m.types.b.len -= 4;
	put_list(&m.pairs, "tokenizer.ggml.tokens", 8, &m.tokens, &m.n_pairs);
	put_list(&m.pairs, "tokenizer.ggml.scores", 6, &m.scores, &m.n_pairs);
	put_list(&m.pairs, "tokenizer.ggml.merges", 8, &m.merges, &m.n_pairs);
	if ((kind & 8) == 0)
		put_list(&m.pairs, "tokenizer.ggml.token_type", 5, &m.types, &m.n_pairs);
	if (m.names.n > 0)
		put_list(&m.pairs, "tokenizer.chat_templates", 8, &m.names, &m.n_pairs);
	od_strbuf_fini(&m.types.b);
	put_key(&m.pairs, "tokenizer.ggml.model", 8, &m.n_pairs);
	put_string(&m.pairs, models[kind & 3], strlen(models[kind & 3]));
	pre %= sizeof(pre_names) / sizeof(pre_names[0]);
	put_key(&m.pairs, "tokenizer.ggml.pre", 8, &m.n_pairs);
	put_string(&m.pairs, pre_names[pre], strlen(pre_names[pre]));
	od_strbuf_append(b, "GGUF\3\0\0\0\1\0\0\0\0\0\0\0", 16);
	put(b, m.n_pairs, 8);
	od_strbuf_append(b, m.pairs.text, m.pairs.len);
	od_strbuf_fini(&m.pairs);
	put_string(b, "t", 1);
	put(b, 1, 4); /* dimensions */
	put(b, 1, 8);
	put(b, 0, 4); /* F32 */
	put(b, 0, 8);
	while (b->len % 32 != 0)
		put(b, 0, 1);
	put(b, 0, 4);
	check(!b->failed);
}

static void use(const struct od_gguf_texts *made, const char *text, size_t len)
{
	struct od_err err = { 0 };
	struct od_tokenizer *t;
	json_t *v;

	check(od_json_parse(made->config.text, made->config.len, "config", &v, &err) == OD_OK);
	json_decref(v);
	check(od_json_parse(made->generation.text, made->generation.len, "generation", &v, &err) == OD_OK);
	json_decref(v);
	check(od_json_parse(made->tokenizer.text, made->tokenizer.len, "tokenizer", &v, &err) == OD_OK);
	json_decref(v);
	check(od_tokenizer_parse(&t, OD_TOKENIZER_JSON, made->tokenizer.text, made->tokenizer.len, NULL, "made",
				 &err) == OD_OK);
	fuzz_text(t, text, len);
	od_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_gguf_texts made;
	struct od_strbuf b = { 0 };
	struct od_err err = { 0 };
	struct od_gguf *g;
	char path[32];
	size_t n;
	int fd;

	if (size < 4)
		return 0;
	n = data[2] | (size_t)data[3] << 8;
	n = n < size - 4 ? n : size - 4;
	make_file(&b, data[0], data[1], data + 4, n);
	fd = memfd_create("fuzz", 0);
	check(fd >= 0 && write(fd, b.text, b.len) == (ssize_t)b.len);
	od_strbuf_fini(&b);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (od_gguf_open(&g, path, &err) == OD_OK) {
		if (od_gguf_texts(g, &made, &err) == OD_OK)
			use(&made, (const char *)data + 4 + n, size - 4 - n);
		else
			check(err.msg[0] != '\0');
		od_gguf_texts_fini(&made);
		od_gguf_close(g);
	} else {
		check(err.msg[0] != '\0');
	}
	close(fd);
	return 0;
}
