/* tok_decode.h - decodes ids piece by piece, as they are generated.
 *
 * Thread: one for each od_detok. Owner: the caller of new */
#ifndef OD_TEXT_TOK_DECODE_H
#define OD_TEXT_TOK_DECODE_H

#include "common/text/tokenizer.h"

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
