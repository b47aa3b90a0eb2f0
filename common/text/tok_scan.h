/* tok_scan.h - the pre-tokenisers' patterns that published models share, cut by hand instead of by PCRE2. The results
 * are those of the patterns (tests/unit/test_tok_scan.c compares the two).
 * Thread: any, after tok_classes_init. */
#ifndef OD_TEXT_TOK_SCAN_H
#define OD_TEXT_TOK_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tok_scan_kind {
	TOK_SCAN_NONE,
	TOK_SCAN_GPT2,
	TOK_SCAN_LLAMA3, /* GLM-4's, too */
	TOK_SCAN_QWEN2,
	TOK_SCAN_QWEN3_5,
	TOK_SCAN_O200K, /* GPT-OSS's and MiniMax-M2's */
	TOK_SCAN_TEKKEN, /* Mistral's */
	TOK_SCAN_KIMI,
	TOK_SCAN_DEEPSEEK_V3, /* its three patterns, one after the other */
};

extern const char tok_gpt2_pattern[], tok_kimi_pattern[];

/* Recognises a pattern. For one of DeepSeek-V3's three *stage gets its number, from 1. */
enum tok_scan_kind tok_scan_find(const char *pattern, size_t len, unsigned *stage);

/* Words of a valid UTF-8 text, from first to last; they cover it. Set text, len and kind. */
struct tok_scan {
	enum tok_scan_kind kind;
	const char *text;
	size_t len, at;
	size_t digits_at, script_end; /* DeepSeek-V3: where the next digit is; the end of a run of one script */
};
/* False at the end. */
bool tok_scan_next(struct tok_scan *s, size_t *begin, size_t *end);

#endif
