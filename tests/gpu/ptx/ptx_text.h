/* ptx_text.h - the text of a PTX file, token by token. What is not as expected ends the process, with the file and the
 * line.
 *
 * Thread: one at a time for each struct. Owner: the caller owns the text, which ends with a 0. */
#ifndef OD_TESTS_PTX_TEXT_H
#define OD_TESTS_PTX_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_TOKEN_BYTES 256u

struct ptx_text {
	const char *file, *p, *end;
	uint32_t line;
	char token[PTX_TOKEN_BYTES]; /* the last that was taken */
};

_Noreturn void ptx_bad_text(const struct ptx_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Takes a token: a word, a number, a string with its quotes, or one character. false: the text has ended. */
bool ptx_next(struct ptx_text *t);
void ptx_take(struct ptx_text *t); /* ptx_next where the text must not end */
void ptx_expect(struct ptx_text *t, const char *token);
bool ptx_is(const struct ptx_text *t, const char *token);
uint64_t ptx_number(const struct ptx_text *t); /* the token as a number; 0f and 0d: its bits */
uint64_t ptx_next_number(struct ptx_text *t);
char ptx_peek(struct ptx_text *t); /* the first character of the next token; 0: the text has ended */
bool ptx_accept(struct ptx_text *t, char c); /* takes it if it comes next */
void ptx_skip_line(struct ptx_text *t);
bool ptx_starts(const char *text, const char *with);

/* An array of zeros; ends the process if there is no memory. */
void *ptx_zeros(size_t n, size_t bytes);
/* Room for one more in an array of n. */
void *ptx_room(void *array, uint32_t n, uint32_t *room, size_t bytes);

#endif
