/* fuzz_grammar.h - what must hold for any grammar that was accepted, and any text of it. */
#ifndef OD_FUZZ_GRAMMAR_H
#define OD_FUZZ_GRAMMAR_H

#include <string.h>

#include "common/grammar/constraint.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/token_vocab.h"

#define FUZZ_STEPS 24u /* bytes of a text */
#define FUZZ_WORK 20000u /* derivatives of expressions */

/* All bytes but 0 and that of symbols are tokens, in this order, and then these. */
#define FUZZ_BYTES 254u
static const char *const fuzz_words[] = { "ab",	      "abc",	  "aaaa",    "\": ",   "{\"",  "\",\"",
					  "  ",	      "\n  ",	  "\\u0",    "123",    "true", "\xc3\xa9",
					  "\xe4\xba", "\x98\x80", "\xff<s>", "\xff<t>" };
#define FUZZ_WORDS (sizeof(fuzz_words) / sizeof(fuzz_words[0]))

static inline const struct od_vocab *fuzz_vocab(void)
{
	static struct od_vocab *v;
	static char one[FUZZ_BYTES][2];
	const char *tokens[FUZZ_BYTES + FUZZ_WORDS];

	for (unsigned i = 0; v == NULL && i < FUZZ_BYTES; i++) {
		one[i][0] = (char)(i + 1);
		tokens[i] = one[i];
	}
	if (v == NULL) {
		memcpy(tokens + FUZZ_BYTES, fuzz_words, sizeof(fuzz_words));
		v = token_vocab_new(tokens, FUZZ_BYTES + FUZZ_WORDS, 0);
	}
	check(v != NULL);
	return v;
}

/* The mask has the tokens with whose bytes the automaton goes on; with none it is refused. */
static inline void fuzz_mask(struct od_automaton *a, uint32_t state, const uint64_t *mask)
{
	const struct od_vocab *v = fuzz_vocab();
	bool any = false;

	for (uint32_t t = 0; t < v->n_tokens; t++) {
		const char *bytes;
		const size_t n = od_vocab_bytes(v, (int32_t)t, &bytes);
		uint32_t next = state;

		for (size_t i = 0; i < n; i++)
			next = od_automaton_step(a, next, (uint8_t)bytes[i]);
		if (od_automaton_check(a, NULL) != OD_OK)
			return;
		check((mask[t / 64] >> t % 64 & 1) == (next != OD_STATE_DEAD));
		any |= next != OD_STATE_DEAD;
	}
	check(any || od_automaton_ends(a, state));
}

/* One state: a text ends or goes on; the bytes that are forced are the only ones. Chooses a byte that may follow. */
static inline bool fuzz_state(struct od_automaton *a, uint32_t state, unsigned choice, uint8_t *byte)
{
	uint8_t next[256], forced;
	unsigned n = 0;

	for (unsigned b = 0; b < 256; b++)
		if (od_automaton_step(a, state, (uint8_t)b) != OD_STATE_DEAD)
			next[n++] = (uint8_t)b;
	if (od_automaton_check(a, NULL) != OD_OK)
		return false;
	check(n > 0 || od_automaton_ends(a, state));
	if (od_automaton_forced(a, state, &forced))
		check(n == 1 && next[0] == forced && !od_automaton_ends(a, state));
	if (n > 0)
		*byte = next[choice % n];
	return n > 0;
}

static inline void fuzz_walk(struct od_automaton *a, struct od_constraint *c, const uint8_t *data, size_t size)
{
	uint32_t at = od_automaton_start(a), state = od_constraint_start(c);

	for (size_t i = 0; i < FUZZ_STEPS; i++) {
		struct od_err err = { 0 };
		const uint64_t *mask;
		int rc = od_constraint_mask(c, state, &mask, &err);
		uint8_t byte;

		check(rc == OD_OK || (mask == NULL && err.msg[0] != '\0'));
		if (rc != OD_OK && rc != OD_ERR_UNSUPPORTED)
			return; /* too much work */
		if (!fuzz_state(a, at, i < size ? data[i] : (unsigned)i, &byte))
			return;
		check(od_constraint_ends(c, state) == od_automaton_ends(a, at));
		if (rc == OD_OK)
			fuzz_mask(a, at, mask);
		at = od_automaton_step(a, at, byte);
		if (byte == 0 || byte == 0xff)
			return; /* no token has it alone */
		state = od_constraint_step(c, state, byte - 1);
		if (at == OD_STATE_DEAD || state == OD_STATE_DEAD) {
			check(od_automaton_check(a, NULL) != OD_OK ||
			      od_constraint_mask(c, state, &mask, &err) != OD_OK);
			return;
		}
	}
}

/* Two grammars that are the same and finished, which are taken: one for masks, one to compare with. */
static inline void fuzz_grammar(struct od_grammar *g[2], const uint8_t *data, size_t size)
{
	struct od_automaton *a;
	struct od_constraint *c = NULL;
	struct od_err err = { 0 };
	int rc;

	rc = od_automaton_new(&a, g[0], &err);
	check(rc == OD_OK || (a == NULL && err.msg[0] != '\0'));
	if (rc != OD_OK) {
		od_grammar_free(g[1]);
		return;
	}
	rc = od_constraint_new(&c, g[1], fuzz_vocab(), &err);
	check(rc == OD_OK || (c == NULL && err.msg[0] != '\0'));
	if (rc == OD_OK)
		fuzz_walk(a, c, data, size);
	od_constraint_unref(c);
	od_automaton_free(a);
}

#endif
