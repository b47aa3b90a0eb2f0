/* pair_words.h - the six words of a pairing: drawn from a list of 7,776 (words.txt), and read as people type them.
 *
 * Thread: any. Owner: the caller. */
#ifndef OD_PAIR_WORDS_H
#define OD_PAIR_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

#define OD_PAIR_WORDS 6 /* log2(7776^6) = 77.5 bits */
#define OD_PAIR_LIST 7776
#define OD_PAIR_WORD_CHARS 8 /* the longest has */
#define OD_PAIR_TEXT ((OD_PAIR_WORD_CHARS + 1) * OD_PAIR_WORDS) /* with blanks between, and a NUL */

/* text [OD_PAIR_TEXT]: six random words in lower case with one blank between them. */
OD_MUST_CHECK int od_pair_words_draw(char *text, struct od_err *err);

/* Reads arguments of a command line: six words in any case, with blanks or hyphens between them, in one argument or
 * several; then at most one more argument. text [OD_PAIR_TEXT]: as od_pair_words_draw; *rest: the argument behind them;
 * NULL: there is none. OD_ERR_ARG names a word that is not in the list, and the nearest that is. */
OD_MUST_CHECK int od_pair_words_read(char *text, const char **rest, char **args, size_t n_args, struct od_err *err);

bool od_pair_words_has(const char *word); /* in lower case */

#endif
