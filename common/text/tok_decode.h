/* tok_decode.h - decodes ids to text: all at once, or piece by piece, as they are generated.
 *
 * Thread: any; one for each od_detok. Owner: the caller of new. */
#ifndef OD_TEXT_TOK_DECODE_H
#define OD_TEXT_TOK_DECODE_H

#include "common/text/tokenizer.h"

/* Decodes ids to malloc'd UTF-8 text (with a NUL that *len does not count); skip_special leaves special tokens out.
 * Invalid byte sequences become U+FFFD. */
OD_MUST_CHECK int od_tokenizer_decode(const struct od_tokenizer *t, const int32_t *ids, size_t n_ids, bool skip_special,
				      char **text, size_t *len, struct od_err *err);

/* The bytes that a token of a byte-level tokeniser, or of byte fallback, stands for, also where they are only a part of
 * a character. Returns their number; 0: another token, or more than size bytes. */
size_t od_tokenizer_bytes(const struct od_tokenizer *t, int32_t id, char *bytes, size_t size);

/* Streaming decoder. The pieces, with the flush, concatenate to the text of all ids after the prompt's, special tokens
 * left out (but for those of od_detok_show); a piece never ends inside a UTF-8 character. Byte-fallback tokens wait for
 * the end of their run, because one wrong byte turns the whole run into U+FFFD. No push after a flush. */
struct od_detok;
OD_MUST_CHECK int od_detok_new(struct od_detok **out, const struct od_tokenizer *t, struct od_err *err);
void od_detok_free(struct od_detok *d);
/* Sets the context, the prompt's ids, so that the first new token gets its leading space. */
OD_MUST_CHECK int od_detok_prime(struct od_detok *d, const int32_t *ids, size_t n_ids, struct od_err *err);
/* Special tokens whose text is shown; borrowed. For what comes after. */
void od_detok_show(struct od_detok *d, const int32_t *ids, size_t n_ids);
/* *piece: borrowed until the next call, NUL-terminated, may be empty. */
OD_MUST_CHECK int od_detok_push(struct od_detok *d, int32_t id, const char **piece, size_t *len, struct od_err *err);
OD_MUST_CHECK int od_detok_flush(struct od_detok *d, const char **piece, size_t *len, struct od_err *err);

#endif
