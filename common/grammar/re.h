/* re.h - regular expressions over bytes, with intersection and complement, as automata that are built as they are
 * needed.
 *
 * Expressions live in a pool and are numbers. Equal expressions have equal numbers, so an expression is also a state of
 * its automaton: the next state is its derivative by a byte (Brzozowski 1964; Owens, Reppy and Turon 2009).
 *
 * A pool that lacks memory, or in which an expression needs too much work, fails for good: its functions then return
 * OD_RE_NONE, and od_re_check says why. Callers check once, at the end.
 * Thread: one at a time. Owner: od_re_pool_new's caller. */
#ifndef OD_GRAMMAR_RE_H
#define OD_GRAMMAR_RE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/grammar/byte_set.h"

#define OD_RE_NONE 0u /* matches nothing */
#define OD_RE_EMPTY 1u /* matches the empty text */
#define OD_RE_NO_LIMIT UINT32_MAX /* no maximum of repetitions */

struct od_re_pool;

OD_MUST_CHECK int od_re_pool_new(struct od_re_pool **out, struct od_err *err);
void od_re_pool_free(struct od_re_pool *p); /* NULL ok */
/* OD_OK, or why the pool failed: OD_ERR_NOMEM, or OD_ERR_RANGE for too much work. */
OD_MUST_CHECK int od_re_check(const struct od_re_pool *p, struct od_err *err);
/* The work so far. A unit takes about 30 ns, as much as a member of a list that is gathered and sorted. */
uint64_t od_re_work(const struct od_re_pool *p);
/* The pool fails when it has done so much more work. */
void od_re_allow(struct od_re_pool *p, uint64_t work);
void od_re_spend(struct od_re_pool *p, uint64_t work); /* counts work that was done elsewhere */
void od_re_fail(struct od_re_pool *p); /* the caller lacks memory for an expression */
size_t od_re_memory(const struct od_re_pool *p); /* bytes */

/* One byte of the set. */
uint32_t od_re_byte(struct od_re_pool *p, const struct od_byte_set *set);
/* It matches these bytes, and nothing else. */
uint32_t od_re_text(struct od_re_pool *p, const char *text, size_t len);
uint32_t od_re_cat(struct od_re_pool *p, uint32_t a, uint32_t b); /* a, then b */
uint32_t od_re_alt(struct od_re_pool *p, const uint32_t *r, size_t n); /* one of these */
/* One of these texts, as a tree of their beginnings, which is faster than od_re_alt of many texts. word is sorted. */
struct od_re_word {
	const char *text;
	size_t len;
};
uint32_t od_re_words(struct od_re_pool *p, struct od_re_word *word, size_t n);
uint32_t od_re_or(struct od_re_pool *p, uint32_t a, uint32_t b);
uint32_t od_re_and(struct od_re_pool *p, uint32_t a, uint32_t b); /* texts that both match */
uint32_t od_re_not(struct od_re_pool *p, uint32_t a); /* texts that a does not match */
uint32_t od_re_without(struct od_re_pool *p, const char *text); /* texts in which this one does not occur */
/* min to max times a; max may be OD_RE_NO_LIMIT. */
uint32_t od_re_repeat(struct od_re_pool *p, uint32_t a, uint32_t min, uint32_t max);
/* Decimal digits, also none, whose value is a multiple of k, which is 1 to 2^31. */
uint32_t od_re_multiple(struct od_re_pool *p, uint32_t k);

bool od_re_nullable(const struct od_re_pool *p, uint32_t r); /* it matches the empty text */
uint32_t od_re_step(struct od_re_pool *p, uint32_t r, uint8_t byte); /* the rest behind this byte */
/* Sets row to value at all bytes that no expression so far tells apart from this one. */
void od_re_fill_class(const struct od_re_pool *p, uint32_t row[256], uint8_t byte, uint32_t value);
/* True: it matches some text. */
bool od_re_live(struct od_re_pool *p, uint32_t r);
/* True: it matches a text of one byte or more. */
bool od_re_goes_on(struct od_re_pool *p, uint32_t r);
/* Adds the bytes with which a text of r may begin to set, and perhaps others. */
void od_re_first(const struct od_re_pool *p, uint32_t r, struct od_byte_set *set);
/* True: r is a repetition, min to max times *one, and then *rest. */
bool od_re_begins_with_repeat(const struct od_re_pool *p, uint32_t r, uint32_t *one, uint32_t *min, uint32_t *max,
			      uint32_t *rest);

#endif
