#include "tests/unit/token_vocab.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The character with which byte-level tokenisers write a byte: itself if it can be seen, else one from U+0100 on. */
static uint32_t char_of(uint8_t byte)
{
	uint32_t unseen = 256;

	for (unsigned b = 0; b <= byte; b++) {
		const bool seen = (b > 32 && b < 127) || (b > 160 && b != 173);

		if (b == byte)
			return seen ? b : unseen;
		unseen += !seen;
	}
	return 0;
}

static void write_token(char *out, const char *token)
{
	for (; *token != '\0'; token++) {
		const uint32_t c = char_of((uint8_t)*token);

		if (c < 0x80) {
			*out++ = (char)c;
			continue;
		}
		*out++ = (char)(0xc0 | c >> 6);
		*out++ = (char)(0x80 | (c & 0x3f));
	}
	*out = '\0';
}

struct od_vocab *token_vocab_new(const char *const *tokens, size_t n, uint32_t extra)
{
	json_t *vocab = json_object(), *added = json_array(), *file;
	struct od_tokenizer *t = NULL;
	struct od_controls *controls = NULL;
	struct od_vocab *v = NULL;
	char name[2 * OD_MAX_TOKEN_BYTES + 1], *text;

	for (size_t i = 0; i < n; i++) {
		if (tokens[i][0] == OD_SYMBOL[0]) {
			json_array_append_new(added, json_pack("{s:i s:s s:b s:b s:b s:b s:b}", "id", (int)i, "content",
							       tokens[i] + 1, "special", 1, "single_word", 0, "lstrip",
							       0, "rstrip", 0, "normalized", 0));
			continue;
		}
		write_token(name, tokens[i]);
		json_object_set_new(vocab, name, json_integer((json_int_t)i));
	}
	file = json_pack("{s:s s:o s:n s:{s:s s:b s:b s:b} s:n s:{s:s} s:{s:s s:o s:[]}}", "version", "1.0",
			 "added_tokens", added, "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space",
			 0, "trim_offsets", 1, "use_regex", 1, "post_processor", "decoder", "type", "ByteLevel",
			 "model", "type", "BPE", "vocab", vocab, "merges");
	text = json_dumps(file, 0);
	if (text != NULL &&
	    od_tokenizer_parse(&t, OD_TOKENIZER_JSON, text, strlen(text), NULL, "tests", NULL) == OD_OK &&
	    od_controls_new(&controls, t, NULL) == OD_OK)
		(void)!od_vocab_new(&v, t, controls, (uint32_t)n + extra, NULL);
	od_controls_free(controls);
	od_tokenizer_free(t);
	json_decref(file);
	free(text);
	return v;
}
