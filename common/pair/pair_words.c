#include "common/pair/pair_words.h"

#include <ctype.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char list[][OD_PAIR_WORD_CHARS + 1] = {
#include "pair_words.inc"
};
_Static_assert(sizeof(list) / sizeof(list[0]) == OD_PAIR_LIST, "words.txt has OD_PAIR_LIST words");

#define MAX_TYPED 64 /* characters of an argument that are compared with the list */

int od_pair_words_draw(char *text, struct od_err *err)
{
	size_t at = 0;

	text[0] = '\0';
	if (sodium_init() < 0)
		return od_fail(err, OD_ERR_INTERNAL, "libsodium does not start");
	for (unsigned i = 0; i < OD_PAIR_WORDS; i++)
		at += (size_t)snprintf(text + at, OD_PAIR_TEXT - at, i > 0 ? " %s" : "%s",
				       list[randombytes_uniform(OD_PAIR_LIST)]);
	return OD_OK;
}

static int compare(const void *word, const void *entry)
{
	return strcmp(word, entry);
}

bool od_pair_words_has(const char *word)
{
	return bsearch(word, list, OD_PAIR_LIST, sizeof(list[0]), compare) != NULL;
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Levenshtein's distance; b is a word of the list. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[OD_PAIR_WORD_CHARS + 1];
	const size_t n = strlen(b);

	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (; *a != '\0'; a++) {
		unsigned before = row[0]++;

		for (size_t j = 1; j <= n; j++) {
			const unsigned above = row[j];

			row[j] = least(before + (*a != b[j - 1]), 1 + least(above, row[j - 1]));
			before = above;
		}
	}
	return row[n];
}

static const char *nearest(const char *word)
{
	const size_t len = strlen(word);
	unsigned best = 0, least_so_far = UINT_MAX;

	for (unsigned i = 0; i < OD_PAIR_LIST; i++) {
		const size_t n = strlen(list[i]);
		unsigned d;

		if ((n > len ? n - len : len - n) >= least_so_far) /* the lengths differ by no more than the distance */
			continue;
		d = distance(word, list[i]);
		if (d < least_so_far) {
			least_so_far = d;
			best = i;
		}
	}
	return list[best];
}

/* Words that are read so far. */
struct typed {
	char *text;
	size_t len;
	unsigned n;
};

/* It is in lower case; shown: as typed. */
static int take_word(struct typed *t, const char *word, const char *shown, struct od_err *err)
{
	if (!od_pair_words_has(word))
		return od_fail(err, OD_ERR_ARG, "word %u, \"%.32s\", is not one of the list; nearest: \"%s\"", t->n + 1,
			       shown, nearest(word));
	t->len += (size_t)snprintf(t->text + t->len, OD_PAIR_TEXT - t->len, t->n > 0 ? " %s" : "%s", word);
	t->n++;
	return OD_OK;
}

/* Takes the words of a part without blanks, "one-two". */
static int take_part(struct typed *t, const char *part, size_t len, struct od_err *err)
{
	char shown[MAX_TYPED + 1], word[MAX_TYPED + 1];
	int rc = OD_OK;

	for (size_t at = 0; at < len && rc == OD_OK;) {
		const char *hyphen = memchr(part + at, '-', len - at);
		const size_t n = hyphen != NULL ? (size_t)(hyphen - part) - at : len - at;
		const size_t kept = n < MAX_TYPED ? n : MAX_TYPED;

		for (size_t i = 0; i < kept; i++) {
			shown[i] = isprint((unsigned char)part[at + i]) ? part[at + i] : '?';
			word[i] = (char)tolower((unsigned char)shown[i]);
		}
		shown[kept] = word[kept] = '\0';
		if (n > 0 && t->n == OD_PAIR_WORDS)
			rc = od_fail(err, OD_ERR_ARG, "expected %d words, found more: \"%.32s\"", OD_PAIR_WORDS, shown);
		else if (n > 0)
			rc = take_word(t, word, shown, err);
		at += n + 1;
	}
	return rc;
}

/* Most addresses have what no word has. */
static bool is_address(const char *part, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (isdigit((unsigned char)part[i]) || strchr(".:", part[i]) != NULL)
			return true;
	}
	return false;
}

/* An argument, cut at blanks. */
static int take_argument(struct typed *t, const char *arg, const char **rest, struct od_err *err)
{
	static const char blanks[] = " \t\r\n";
	int rc = OD_OK;

	for (const char *part = arg + strspn(arg, blanks); *part != '\0' && rc == OD_OK; part += strspn(part, blanks)) {
		const size_t len = strcspn(part, blanks);

		if (*rest != NULL)
			return od_fail(err, OD_ERR_ARG, "expected nothing behind main's address, found \"%.*s\"",
				       (int)(len < 32 ? len : 32), part);
		if (t->n == OD_PAIR_WORDS && part[len] == '\0')
			*rest = part;
		else if (is_address(part, len))
			rc = od_fail(err, OD_ERR_ARG, "expected %d words in front of main's address, found %u",
				     OD_PAIR_WORDS, t->n);
		else
			rc = take_part(t, part, len, err);
		part += len;
	}
	return rc;
}

int od_pair_words_read(char *text, const char **rest, char **args, size_t n_args, struct od_err *err)
{
	struct typed t = { .text = text };
	int rc = OD_OK;

	text[0] = '\0';
	*rest = NULL;
	for (size_t i = 0; i < n_args && rc == OD_OK; i++)
		rc = take_argument(&t, args[i], rest, err);
	if (rc == OD_OK && t.n < OD_PAIR_WORDS)
		rc = od_fail(err, OD_ERR_ARG, "expected the %d words that od-main pair shows, found %u", OD_PAIR_WORDS,
			     t.n);
	if (rc != OD_OK)
		sodium_memzero(text, OD_PAIR_TEXT);
	return rc;
}
