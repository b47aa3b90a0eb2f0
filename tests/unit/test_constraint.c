/* Masks of random grammars against a plain recogniser (naive_grammar.h): a token is allowed if and only if some text of
 * the grammar begins with the text so far and the token. */
#include "common/grammar/chars.h"
#include "common/grammar/constraint.h"
#include "tests/unit/naive_grammar.h"
#include "tests/unit/random.h"
#include "tests/unit/token_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#define A13 "aaaaaaaaaaaaa"
#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static const char *const tokens[] = { "a",    "b",    "c",    "[",	 "]",	   ",",	  " ",	 "\n",	"aa",
				      "ab",   "ba",   "bc",   "ca",	 "cc",	   "aab", "abc", "bca", "cab",
				      "aaaa", "abab", "abcc", "cbaa",	 "[a",	   "[[",  "]]",	 "a]",	"]a",
				      "],[",  "  ",   "\n  ", "\n\n",	 "    ",   "\n ", " ]",	 "[ ",	"a\n",
				      "ab]",  "b,a",  "bb",   "\xff<s>", "\xff<t>" };
static const char *const long_tokens[] = { "a",
					   "b",
					   "c",
					   ",",
					   "ab",
					   "bc",
					   "cab",
					   "aaa",
					   "abab",
					   "bcab",
					   "aaaaaaaaaaaaaaaaaaaaaaaa",
					   A13 A13,
					   A13 A13 "aaaa",
					   "\xff<s>",
					   "\xff<t>" };

static uint64_t seed;

static unsigned below(unsigned n)
{
	return (unsigned)random_below(&seed, n);
}

/* ---- Random grammars ---- */

static unsigned random_leaf(struct naive_grammar *g)
{
	static const char *const texts[] = { "a", "b", "c", "ab", "ba", "cc", "aba", "", ",", "\xff<s>", "\xff<t>" };
	static const char *const sets[] = { "ab", "bc", "abc", "a," };
	unsigned i;

	if (below(4) == 0)
		i = naive_text(g, NAIVE_SET, sets[below(4)]);
	else
		i = naive_text(g, NAIVE_TEXT, texts[below(11)]);
	return i;
}

static unsigned random_node(struct naive_grammar *g, unsigned depth)
{
	const unsigned kind = depth == 0 ? below(4) : 4 + below(12);
	const unsigned min = below(3);
	unsigned a, b, i;

	if (g->n > NAIVE_NODES - 12 || kind < 3)
		return random_leaf(g);
	if (kind == 3)
		return naive_node(g, NAIVE_RULE, below(g->n_rules), 0, 0, 0);
	a = random_node(g, depth - 1);
	if (kind < 9) {
		b = random_node(g, depth - 1);
		i = naive_node(g, NAIVE_CAT, a, b, 0, 0);
	} else if (kind < 12) {
		b = random_node(g, depth - 1);
		i = naive_node(g, NAIVE_ALT, a, b, 0, 0);
	} else if (kind < 15) {
		i = naive_node(g, NAIVE_REPEAT, a, 0, min, below(2) == 0 ? NAIVE_NO_LIMIT : min + below(3));
	} else {
		i = naive_node(g, NAIVE_BRACKETS, a, 0, 0, 0);
	}
	g->node[i].as_re = below(2) == 0;
	return i;
}

static void random_grammar(struct naive_grammar *g)
{
	*g = (struct naive_grammar){ .n_rules = 1 + below(3) };
	for (unsigned i = 0; i < g->n_rules; i++)
		g->body[i] = random_node(g, 1 + below(3));
	g->root = below(2) == 0 ? naive_node(g, NAIVE_RULE, 0, 0, 0, 0) : random_node(g, 1 + below(3));
}

/* Repetitions of sequences of repetitions, all of which may be empty, as nodes: stacks are met again while they are
 * opened. */
static unsigned empty_node(struct naive_grammar *g, unsigned depth)
{
	static const char *const texts[] = { "a", "b", "c", "ab", "" };
	static const uint32_t most[] = { 1, 2, 3, NAIVE_NO_LIMIT, NAIVE_NO_LIMIT };
	unsigned a = depth == 0 ? naive_text(g, NAIVE_TEXT, texts[below(5)]) : empty_node(g, depth - 1);
	const unsigned more = depth == 0 ? 0 : below(3);

	for (unsigned i = 0; i < more && g->n < NAIVE_NODES - 12; i++) {
		const unsigned b = below(5) == 0 ? naive_node(g, NAIVE_RULE, 0, 0, 0, 0) : empty_node(g, depth - 1);

		a = naive_node(g, below(3) == 0 ? NAIVE_ALT : NAIVE_CAT, a, b, 0, 0);
	}
	return naive_node(g, NAIVE_REPEAT, a, 0, below(4) == 0, most[below(5)]);
}

static void random_empty(struct naive_grammar *g)
{
	*g = (struct naive_grammar){ .n_rules = 1 };
	g->body[0] = naive_node(g, NAIVE_BRACKETS, empty_node(g, 1 + below(2)), 0, 0, 0);
	g->root = empty_node(g, 1 + below(3));
}

/* Bounded runs of pieces of several bytes, which may begin as what follows them does. */
static void random_run(struct naive_grammar *g)
{
	static const char *const pieces[] = { "a", "b", "ab", "bc", "cab", "caa", "c", ",", "\xff<s>" };
	const unsigned min = below(4), max = below(4) == 0 ? NAIVE_NO_LIMIT : min + below(30);
	const bool long_run = below(6) == 0; /* as many pieces as a token has, or about as many */
	unsigned piece, rest, i;

	*g = (struct naive_grammar){ 0 };
	piece = naive_text(g, NAIVE_TEXT, long_run ? "a" : pieces[below(9)]);
	for (unsigned more = below(3); more > 0; more--) {
		i = naive_text(g, NAIVE_TEXT, pieces[below(9)]);
		piece = naive_node(g, NAIVE_ALT, piece, i, 0, 0);
	}
	i = naive_node(g, NAIVE_REPEAT, piece, 0, min, long_run ? 24 + below(4) : max);
	rest = random_leaf(g);
	i = naive_node(g, NAIVE_CAT, i, rest, 0, 0);
	g->node[i].as_re = below(4) != 0;
	rest = random_leaf(g);
	g->root = naive_node(g, NAIVE_CAT, i, rest, 0, 0);
}

static void print_node(const struct naive_grammar *g, unsigned i)
{
	const struct naive_node *x = &g->node[i];

	switch (x->kind) {
	case NAIVE_TEXT: print_error("\"%s\"", x->text); break;
	case NAIVE_SET: print_error("[%s]", x->text); break;
	case NAIVE_CAT:
	case NAIVE_ALT:
		print_error("(");
		print_node(g, x->a);
		print_error(x->kind == NAIVE_CAT ? " " : " | ");
		print_node(g, x->b);
		print_error(")");
		break;
	case NAIVE_REPEAT:
		print_node(g, x->a);
		print_error("{%u,%d}", x->min, (int)x->max);
		break;
	case NAIVE_RULE: print_error("%c", 'A' + x->a); break;
	case NAIVE_BRACKETS:
		print_error("'[' ");
		print_node(g, x->a);
		print_error(" ']'");
	}
	if (x->as_re)
		print_error("'");
}

static void print_grammar(const struct naive_grammar *g)
{
	print_error("root ::= ");
	print_node(g, g->root);
	for (unsigned i = 0; i < g->n_rules; i++) {
		print_error("\n%c ::= ", 'A' + i);
		print_node(g, g->body[i]);
	}
	print_error("\n");
}

/* ---- Walks ---- */

struct token_walk {
	const struct naive_grammar *g;
	const struct od_vocab *v;
	const char *const *tokens;
	int32_t n_tokens;
	struct od_constraint *c;
	struct naive_reader *reader;
	uint32_t state;
	char text[200];
};

static unsigned n_allowed, n_refused, n_forced, n_ends;

#define holds(w, good) ((good) ? (void)0 : differs(w, #good, __LINE__))

static void differs(const struct token_walk *w, const char *what, int line)
{
	print_grammar(w->g);
	print_error("behind \"%.*s\": ", (int)naive_length(w->reader), w->text);
	fail_msg("line %d: %s", line, what);
}

/* Reads all of the bytes, or none. */
static bool reads(struct naive_reader *r, const char *bytes, size_t n)
{
	const unsigned before = naive_length(r);

	for (size_t i = 0; i < n; i++)
		if (!naive_read(r, (uint8_t)bytes[i])) {
			naive_cut(r, before);
			return false;
		}
	return true;
}

/* Returns whether any byte may follow. */
static bool check_forced(struct token_walk *w)
{
	static const char letters[] = "abc[], \n\xff<>st";
	const unsigned before = naive_length(w->reader);
	char forced[8];
	const size_t n = od_constraint_forced(w->c, w->state, forced, sizeof(forced));
	bool any = false;

	for (size_t i = 0; i <= n; i++) {
		unsigned possible = 0;

		for (const char *c = letters; *c != '\0'; c++)
			if (reads(w->reader, c, 1)) {
				naive_cut(w->reader, before + (unsigned)i);
				possible++;
			}
		if (i == 0)
			any = possible > 0;
		if (i == n)
			break;
		holds(w, possible == 1 && !naive_ends(w->reader) && reads(w->reader, &forced[i], 1));
		n_forced++;
	}
	naive_cut(w->reader, before);
	return any;
}

/* Returns an allowed token, or -1. */
static int32_t check_mask(struct token_walk *w)
{
	const unsigned before = naive_length(w->reader);
	struct od_err err = { 0 };
	const uint64_t *mask;
	int32_t chosen = -1;
	unsigned n = 0;

	if (od_constraint_mask(w->c, w->state, &mask, &err) != OD_OK)
		differs(w, err.msg, __LINE__);
	for (int32_t t = 0; t < w->n_tokens; t++) {
		const bool allowed = mask[t / 64] >> t % 64 & 1,
			   possible = reads(w->reader, w->tokens[t], strlen(w->tokens[t]));

		naive_cut(w->reader, before);
		if (allowed != possible)
			print_error("token \"%s\": expected %d\n", w->tokens[t], possible);
		holds(w, allowed == possible);
		holds(w, possible == (od_constraint_step(w->c, w->state, t) != OD_STATE_DEAD));
		n_allowed += possible;
		n_refused += !possible;
		if (possible && below(++n) == 0)
			chosen = t;
	}
	for (uint32_t t = (uint32_t)w->n_tokens; t < w->v->n_tokens && t < 128; t++)
		holds(w, (mask[t / 64] >> t % 64 & 1) == 0);
	return chosen;
}

static void walk(struct token_walk *w, unsigned steps)
{
	w->reader = naive_reader_new(w->g);
	w->state = od_constraint_start(w->c);
	for (unsigned i = 0; i < steps; i++) {
		const bool any = check_forced(w);
		const unsigned length = naive_length(w->reader);
		int32_t t;

		holds(w, od_constraint_ends(w->c, w->state) == naive_ends(w->reader));
		holds(w, od_constraint_is_over(w->c, w->state) == (naive_ends(w->reader) && !any));
		n_ends += naive_ends(w->reader);
		t = check_mask(w);
		if (t < 0 || length + strlen(w->tokens[t]) > 120)
			break;
		holds(w, reads(w->reader, w->tokens[t], strlen(w->tokens[t])));
		memcpy(w->text + length, w->tokens[t], strlen(w->tokens[t]));
		w->state = od_constraint_step(w->c, w->state, t);
	}
	naive_reader_free(w->reader);
}

/* The constraint of a grammar; NULL: it is refused, as it must be. */
static struct od_constraint *constraint_of(const struct naive_grammar *n, const struct od_vocab *v)
{
	struct od_err err = { 0 };
	struct od_constraint *c;
	struct od_grammar *g;
	uint32_t root;
	int rc;

	assert_int_equal(od_grammar_new(&g, &err), OD_OK);
	naive_build(n, g, &root);
	rc = od_grammar_finish(g, root, &err);
	if (rc != OD_OK) {
		if (rc == OD_ERR_UNSUPPORTED ? !naive_left_recursive(n) : rc != OD_ERR_ARG || naive_matches_any(n)) {
			print_grammar(n);
			fail_msg("%s", err.msg);
		}
		od_grammar_free(g);
		return NULL;
	}
	assert_true(naive_matches_any(n));
	if (od_constraint_new(&c, g, v, &err) != OD_OK) {
		print_grammar(n);
		fail_msg("%s", err.msg);
	}
	return c;
}

static void check_grammars(void (*make)(struct naive_grammar *g), const char *const *words, size_t n_words, unsigned n,
			   unsigned walks, unsigned steps)
{
	struct od_vocab *v = token_vocab_new(words, n_words, 90);
	unsigned accepted = 0;

	assert_non_null(v);
	for (uint64_t i = 1; i <= n; i++) {
		struct naive_grammar g;
		struct token_walk w = { .g = &g, .v = v, .tokens = words, .n_tokens = (int32_t)n_words };

		seed = i * 1000003;
		make(&g);
		w.c = constraint_of(&g, v);
		if (w.c == NULL)
			continue;
		accepted++;
		for (unsigned k = 0; k < walks; k++)
			walk(&w, steps);
		od_constraint_unref(w.c);
	}
	od_vocab_free(v);
	print_message("%u of %u grammars; %u tokens allowed, %u not; %u bytes forced; %u ends\n", accepted, n,
		      n_allowed, n_refused, n_forced, n_ends);
	assert_true(accepted > n / 3 && n_allowed > 1000 && n_refused > 1000);
}

static void masks_are_those_of_a_plain_recogniser(void **state)
{
	(void)state;
	check_grammars(random_grammar, tokens, N_OF(tokens), 600, 3, 8);
}

static void what_can_be_empty_is_repeated(void **state)
{
	(void)state;
	check_grammars(random_empty, tokens, N_OF(tokens), 150, 2, 5);
}

static void runs_of_pieces_are_counted(void **state)
{
	(void)state;
	check_grammars(random_run, long_tokens, N_OF(long_tokens), 150, 3, 10);
}

static uint32_t read_text(struct od_automaton *a, const char *text)
{
	uint32_t state = od_automaton_start(a);

	for (; *text != '\0'; text++)
		state = od_automaton_step(a, state, (uint8_t)*text);
	return state;
}

/* Levels of precedence, each of which calls the next one three times: 3^30 ways to the same letter. */
static void rules_that_begin_alike_are_opened_once(void **state)
{
	uint32_t level[31], root, one;
	struct od_err err = { 0 };
	struct od_automaton *a;
	struct od_grammar *g;

	(void)state;
	assert_int_equal(od_grammar_new(&g, &err), OD_OK);
	for (int i = 0; i < 31; i++)
		level[i] = od_syntax_rule(g, "level");
	for (int i = 0; i < 30; i++) {
		const uint32_t plus = od_syntax_cat(g, od_syntax_text(g, "+", 1), level[i]);
		const uint32_t minus = od_syntax_cat(g, od_syntax_text(g, "-", 1), level[i]);

		one = od_syntax_cat(g, level[i + 1], minus);
		one = od_syntax_or(g, one, level[i + 1]);
		od_syntax_define(g, level[i], od_syntax_or(g, one, od_syntax_cat(g, level[i + 1], plus)));
	}
	one = od_syntax_cat(g, od_syntax_text(g, "(", 1), od_syntax_cat(g, level[0], od_syntax_text(g, ")", 1)));
	od_syntax_define(g, level[30], od_syntax_or(g, od_syntax_text(g, "a", 1), one));
	root = level[0];
	assert_int_equal(od_grammar_finish(g, root, &err), OD_OK);
	assert_int_equal(od_automaton_new(&a, g, &err), OD_OK);
	assert_true(od_automaton_ends(a, read_text(a, "a+(a-a)-a")));
	assert_int_equal(read_text(a, "a+(a-a))"), OD_STATE_DEAD);
	assert_false(od_automaton_ends(a, read_text(a, "a+((a)")));
	assert_int_equal(od_automaton_check(a, &err), OD_OK);
	od_automaton_free(a);
}

/* 500 * 500 repetitions of what can be empty, in three levels. */
static void empty_times_need_no_time(void **state)
{
	struct od_err err = { 0 };
	struct od_automaton *a;
	struct od_grammar *g;
	uint32_t node;

	(void)state;
	assert_int_equal(od_grammar_new(&g, &err), OD_OK);
	node = od_syntax_repeat(g, od_syntax_text(g, "a", 1), 0, 500);
	node = od_syntax_repeat(g, od_syntax_cat(g, node, od_syntax_repeat(g, od_syntax_text(g, "b", 1), 0, 1)), 0,
				500);
	node = od_syntax_repeat(g, node, 3, 500);
	node = od_syntax_cat(g, node, od_syntax_text(g, "c", 1));
	assert_int_equal(od_grammar_finish(g, node, &err), OD_OK);
	assert_int_equal(od_automaton_new(&a, g, &err), OD_OK);
	assert_true(od_automaton_ends(a, read_text(a, "ababbbaabc")) && od_automaton_ends(a, read_text(a, "c")));
	assert_int_equal(read_text(a, "ababcb"), OD_STATE_DEAD);
	assert_int_equal(od_automaton_check(a, &err), OD_OK);
	od_automaton_free(a);
}

/* A sequence of calls of a rule that can be empty and is nested deep. With many calls it is refused. */
static void deep_nesting_needs_no_large_stack(void **state)
{
	static const char text[] = "bacabcba";

	(void)state;
	for (int calls = 10; calls <= 3000; calls += 2990) {
		uint32_t deep, rule, node = OD_SYNTAX_EMPTY;
		struct od_err err = { 0 };
		struct od_automaton *a;
		struct od_grammar *g;

		assert_int_equal(od_grammar_new(&g, &err), OD_OK);
		deep = od_syntax_repeat(g, od_syntax_text(g, "b", 1), 0, 1);
		for (int i = 0; i < 240; i++)
			deep = od_syntax_or(
				g, od_syntax_cat(g, deep, od_syntax_repeat(g, od_syntax_text(g, "a", 1), 0, 1)),
				od_syntax_text(g, "c", 1));
		rule = od_syntax_rule(g, "deep");
		od_syntax_define(g, rule, deep);
		for (int i = 0; i < calls; i++)
			node = od_syntax_cat(g, rule, node);
		assert_int_equal(od_grammar_finish(g, node, &err), OD_OK);
		if (calls > 10) {
			assert_int_equal(od_automaton_new(&a, g, &err), OD_ERR_RANGE);
			assert_non_null(strstr(err.msg, "too much work"));
			continue;
		}
		assert_int_equal(od_automaton_new(&a, g, &err), OD_OK);
		assert_true(od_automaton_ends(a, read_text(a, text)));
		assert_int_equal(od_automaton_check(a, &err), OD_OK);
		od_automaton_free(a);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(masks_are_those_of_a_plain_recogniser),
		cmocka_unit_test(what_can_be_empty_is_repeated),
		cmocka_unit_test(runs_of_pieces_are_counted),
		cmocka_unit_test(rules_that_begin_alike_are_opened_once),
		cmocka_unit_test(empty_times_need_no_time),
		cmocka_unit_test(deep_nesting_needs_no_large_stack),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
