/* chars.h - sets of Unicode characters, and the bytes with which texts write them.
 *
 * Thread: any. Owner: the caller; zero-initialised; od_chars_fini. */
#ifndef OD_GRAMMAR_CHARS_H
#define OD_GRAMMAR_CHARS_H

#include "common/base/strbuf.h"
#include "common/grammar/re.h"

/* A byte that no UTF-8 text has: it stands before the name of a token that no text can spell (vocab.h). */
#define OD_SYMBOL "\xff"

#define OD_MAX_CHAR 0x10ffffu

struct od_chars {
	struct od_char_range {
		uint32_t first, last; /* both included */
	} * range; /* sorted and apart after od_chars_sort */
	size_t n, cap;
	bool failed; /* no memory */
};

enum od_writing {
	OD_WRITE_PLAIN, /* UTF-8 */
	/* within a string of JSON: as UTF-8 where JSON allows it, else the short escape, else \u00XX */
	OD_WRITE_JSON,
};

void od_chars_add(struct od_chars *c, uint32_t first, uint32_t last);
void od_chars_add_all(struct od_chars *c, const struct od_chars *other);
void od_chars_sort(struct od_chars *c);
void od_chars_negate(struct od_chars *c); /* sorts it, too */
void od_chars_fini(struct od_chars *c);

/* One character of the set, which gets sorted. */
uint32_t od_chars_re(struct od_re_pool *p, struct od_chars *c, enum od_writing w);
/* Any character; of JSON: with every escape that it allows, but no half of a surrogate pair. */
uint32_t od_any_char(struct od_re_pool *p, enum od_writing w);
/* Any character, in its one spelling. */
uint32_t od_one_char(struct od_re_pool *p, enum od_writing w);
/* Appends this text, which is UTF-8, in its one spelling. */
void od_write_text(struct od_strbuf *out, const char *text, size_t len, enum od_writing w);
/* This text, which is UTF-8, character by character. */
uint32_t od_written_text(struct od_re_pool *p, const char *text, size_t len, enum od_writing w);
/* Decodes a character of UTF-8 at text; *len: its bytes. Returns UINT32_MAX at what is none. */
uint32_t od_char_at(const char *text, size_t size, size_t *len);
/* Writes the UTF-8 of a character; returns the number of its bytes. */
size_t od_char_write(uint32_t c, char out[4]);

#endif
