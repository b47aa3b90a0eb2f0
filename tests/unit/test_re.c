/* Random expressions over three letters against languages that are written out: all texts of up to six letters. */
#include "common/grammar/re.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LETTERS 3u
#define LONGEST 6u
#define TEXTS 1093u /* 3^0 + ... + 3^6 */
#define N_MADE 14 /* expressions of a case, each of earlier ones */
#define MAX_WALK 3000u

/* Digits, so that multiples are among them. */
static const char letters[] = "01x";
/* Each stands for the bytes that the expressions do not tell apart from it: "z" for all that no set has. */
static const char bytes[] = "0123456789xz";
#define N_BYTES (sizeof(bytes) - 1)

static uint64_t seed;

static unsigned below(unsigned n)
{
	return (unsigned)random_below(&seed, n);
}

/* ---- Languages, as bits of texts ---- */

struct short_text {
	char letter[LONGEST + 1];
	unsigned len;
};

static struct short_text texts[TEXTS];

/* Texts are numbered by length, then by letters. */
static unsigned number_of(const char *text, unsigned len)
{
	unsigned first = 0, n = 0;

	for (unsigned i = 0, size = 1; i < len; i++, size *= LETTERS)
		first += size;
	for (unsigned i = 0; i < len; i++)
		n = n * LETTERS + (unsigned)(strchr(letters, text[i]) - letters);
	return first + n;
}

static void write_texts(void)
{
	unsigned n = 0;

	for (unsigned len = 0, size = 1; len <= LONGEST; len++, size *= LETTERS)
		for (unsigned i = 0; i < size; i++, n++) {
			texts[n].len = len;
			for (unsigned at = len, rest = i; at > 0; at--, rest /= LETTERS)
				texts[n].letter[at - 1] = letters[rest % LETTERS];
			assert_int_equal(number_of(texts[n].letter, len), n);
		}
	assert_int_equal(n, TEXTS);
}

struct language {
	bool has[TEXTS];
};

static void concatenate(struct language *out, const struct language *a, const struct language *b)
{
	for (unsigned i = 0; i < TEXTS; i++) {
		const struct short_text *t = &texts[i];

		out->has[i] = false;
		for (unsigned cut = 0; cut <= t->len; cut++)
			out->has[i] |=
				a->has[number_of(t->letter, cut)] && b->has[number_of(t->letter + cut, t->len - cut)];
	}
}

/* More than LONGEST + min times nothing new can come in texts of this length. */
static void repeat(struct language *out, const struct language *a, unsigned min, unsigned max)
{
	struct language power = { .has = { true } }, next;

	memset(out, 0, sizeof(*out));
	for (unsigned times = 0; times <= max && times <= min + LONGEST; times++) {
		for (unsigned i = 0; i < TEXTS; i++)
			out->has[i] |= times >= min && power.has[i];
		concatenate(&next, &power, a);
		power = next;
	}
}

static bool is_multiple(const struct short_text *t, unsigned k)
{
	unsigned value = 0;

	for (unsigned i = 0; i < t->len; i++) {
		if (t->letter[i] == 'x')
			return false;
		value = value * 10 + (unsigned)(t->letter[i] - '0');
	}
	return value % k == 0;
}

/* ---- Random expressions, and their languages ---- */

struct made {
	uint32_t re;
	struct language language;
};

static void make_letters(struct od_re_pool *p, struct made *m)
{
	const unsigned which = 1 + below(7);
	struct od_byte_set set = { { 0 } };

	memset(&m->language, 0, sizeof(m->language));
	for (unsigned i = 0; i < LETTERS; i++)
		if (which >> i & 1) {
			od_byte_set_add(&set, (uint8_t)letters[i]);
			m->language.has[1 + i] = true;
		}
	m->re = od_re_byte(p, &set);
}

static void make_text(struct od_re_pool *p, struct made *m)
{
	const struct short_text *t = &texts[below(40)];

	memset(&m->language, 0, sizeof(m->language));
	m->language.has[number_of(t->letter, t->len)] = true;
	m->re = od_re_text(p, t->letter, t->len);
}

static void make_multiple(struct od_re_pool *p, struct made *m)
{
	const unsigned k = 1 + below(14);

	for (unsigned i = 0; i < TEXTS; i++)
		m->language.has[i] = is_multiple(&texts[i], k);
	m->re = od_re_multiple(p, k);
}

static void make_repeat(struct od_re_pool *p, struct made *m, const struct made *a)
{
	const unsigned min = below(4), max = below(3) == 0 ? OD_RE_NO_LIMIT : min + below(4);

	m->re = od_re_repeat(p, a->re, min, max);
	repeat(&m->language, &a->language, min, max);
}

static void make_of_two(struct od_re_pool *p, struct made *m, const struct made *a, const struct made *b, unsigned how)
{
	switch (how) {
	case 0:
		m->re = od_re_cat(p, a->re, b->re);
		concatenate(&m->language, &a->language, &b->language);
		return;
	case 1: m->re = od_re_or(p, a->re, b->re); break;
	case 2: m->re = od_re_and(p, a->re, b->re); break;
	default: m->re = od_re_not(p, a->re); break;
	}
	for (unsigned i = 0; i < TEXTS; i++)
		m->language.has[i] = how == 1 ? a->language.has[i] || b->language.has[i] :
				     how == 2 ? a->language.has[i] && b->language.has[i] :
						!a->language.has[i];
}

static void make_one(struct od_re_pool *p, struct made *made, unsigned n)
{
	const struct made *a = n > 0 ? &made[below(n)] : NULL, *b = n > 0 ? &made[n - 1 - below(n > 3 ? 3 : n)] : NULL;
	struct made *m = &made[n];
	const unsigned kind = n < 3 ? below(3) : below(12);

	if (kind == 0)
		make_letters(p, m);
	else if (kind == 1)
		make_text(p, m);
	else if (kind == 2)
		make_multiple(p, m);
	else if (kind < 5)
		make_repeat(p, m, b);
	else
		make_of_two(p, m, a, b, kind < 7 ? 0 : kind < 9 ? 1 : kind < 11 ? 2 : 3);
}

/* ---- Checks ---- */

/* Whether r can be nullable behind some text, by a search of all that is reached; unknown: there is too much. */
static bool can_end(struct od_re_pool *p, uint32_t r, bool *unknown)
{
	static uint32_t found[MAX_WALK + N_BYTES];
	unsigned n = 1;

	*unknown = false;
	found[0] = r;
	for (unsigned i = 0; i < n; i++) {
		if (od_re_nullable(p, found[i]))
			return true;
		for (unsigned b = 0; b < N_BYTES; b++) {
			const uint32_t next = od_re_step(p, found[i], (uint8_t)bytes[b]);
			unsigned at = 0;

			while (at < n && found[at] != next)
				at++;
			if (at == n)
				found[n++] = next;
		}
		if (n >= MAX_WALK) {
			*unknown = true;
			return true;
		}
	}
	return false;
}

static void check_outlook(struct od_re_pool *p, uint32_t r)
{
	struct od_byte_set first = { { 0 } };
	bool goes_on = false, any_unknown = false, unknown;
	bool live = can_end(p, r, &unknown);

	if (!unknown)
		assert_int_equal(od_re_live(p, r), live);
	od_re_first(p, r, &first);
	for (unsigned b = 0; b < N_BYTES; b++) {
		const uint32_t next = od_re_step(p, r, (uint8_t)bytes[b]);

		live = can_end(p, next, &unknown);
		any_unknown |= unknown;
		goes_on |= live;
		if (live && !unknown)
			assert_true(od_byte_set_has(&first, (uint8_t)bytes[b]));
	}
	if (!any_unknown)
		assert_int_equal(od_re_goes_on(p, r), goes_on);
}

static unsigned n_in, n_out;

static void check_texts(struct od_re_pool *p, const struct made *m)
{
	for (unsigned i = 0; i < TEXTS; i++) {
		uint32_t r = m->re;

		for (unsigned k = 0; k < texts[i].len; k++)
			r = od_re_step(p, r, (uint8_t)texts[i].letter[k]);
		if (od_re_nullable(p, r) != m->language.has[i])
			fail_msg("\"%s\": expected %d", texts[i].letter, m->language.has[i]);
		n_in += m->language.has[i];
		n_out += !m->language.has[i];
	}
}

static void they_match_the_texts_of_their_languages(void **state)
{
	static struct made made[N_MADE];

	(void)state;
	write_texts();
	for (seed = 1; seed < 1000; seed++) {
		const uint64_t now = seed;
		struct od_re_pool *p;

		seed *= 1000003;
		assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
		for (unsigned n = 0; n < N_MADE; n++)
			make_one(p, made, n);
		for (unsigned n = 0; n < N_MADE; n++)
			check_texts(p, &made[n]);
		assert_int_equal(od_re_check(p, NULL), OD_OK);
		od_re_pool_free(p);
		seed = now;
	}
	assert_true(n_in > 100000 && n_out > 100000);
}

/* In any order of questions: answers are kept, and must not depend on what was asked before. */
static void they_know_what_can_follow(void **state)
{
	static struct made made[N_MADE];

	(void)state;
	write_texts();
	for (seed = 1; seed < 400; seed++) {
		const uint64_t now = seed;
		struct od_re_pool *p;

		seed *= 1000033;
		assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
		for (unsigned n = 0; n < N_MADE; n++)
			make_one(p, made, n);
		for (unsigned i = 0; i < 60; i++) {
			const struct short_text *t = &texts[below(below(2) == 0 ? TEXTS : 40)];
			uint32_t r = made[below(N_MADE)].re;

			for (unsigned k = 0; k < t->len; k++)
				r = od_re_step(p, r, (uint8_t)t->letter[k]);
			check_outlook(p, r);
		}
		assert_int_equal(od_re_check(p, NULL), OD_OK);
		od_re_pool_free(p);
		seed = now;
	}
}

/* All bytes of a class lead to the same expression. */
static void bytes_of_a_class_are_alike(void **state)
{
	static struct made made[N_MADE];
	struct od_re_pool *p;

	(void)state;
	write_texts();
	seed = 5;
	assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
	for (unsigned n = 0; n < N_MADE; n++)
		make_one(p, made, n);
	make_letters(p, &made[0]);
	make_multiple(p, &made[1]);
	for (unsigned byte = 0; byte < 256; byte++) {
		uint32_t row[256] = { 0 };
		unsigned n = 0;

		od_re_fill_class(p, row, (uint8_t)byte, 1);
		assert_int_equal(row[byte], 1);
		for (unsigned b = 0; b < 256; b++) {
			n += row[b];
			for (unsigned i = 0; row[b] == 1 && i < N_MADE; i++)
				assert_int_equal(od_re_step(p, made[i].re, (uint8_t)b),
						 od_re_step(p, made[i].re, (uint8_t)byte));
		}
		/* bytes that no set has are one class */
		assert_true(byte == 'x' || (byte >= '0' && byte <= '9') ? n == 1 : n == 256 - 11);
	}
	od_re_pool_free(p);
}

/* Too much work fails, and says so; from then on nothing matches. */
static void a_limit_of_work_is_kept(void **state)
{
	struct od_re_pool *p;
	struct od_err err = { 0 };
	uint32_t any, r;

	(void)state;
	assert_int_equal(od_re_pool_new(&p, NULL), OD_OK);
	any = od_re_or(p, od_re_text(p, "0", 1), od_re_text(p, "1", 1));
	/* the letter that is 40 before the end is a 1: 2^40 states */
	r = od_re_cat(p, od_re_cat(p, od_re_repeat(p, any, 0, OD_RE_NO_LIMIT), od_re_text(p, "1", 1)),
		      od_re_repeat(p, any, 40, 40));
	od_re_allow(p, 5000);
	seed = 7;
	for (unsigned i = 0; i < 100000 && r != OD_RE_NONE; i++)
		r = od_re_step(p, r, (uint8_t)letters[below(2)]);
	assert_int_equal(r, OD_RE_NONE);
	assert_int_equal(od_re_check(p, &err), OD_ERR_RANGE);
	assert_non_null(strstr(err.msg, "too much work"));
	assert_int_equal(od_re_text(p, "0", 1), OD_RE_NONE);
	od_re_pool_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(they_match_the_texts_of_their_languages),
		cmocka_unit_test(they_know_what_can_follow),
		cmocka_unit_test(bytes_of_a_class_are_alike),
		cmocka_unit_test(a_limit_of_work_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
