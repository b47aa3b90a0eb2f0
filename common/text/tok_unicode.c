/* Classes of characters, by Unicode 16, which is the reference's; utf8proc's own version may be older. */
#include <pthread.h>
#include <utf8proc.h>

#include "common/text/tok_unicode.h"

#include "common/text/tok_internal.h"

struct range {
	int32_t first, last;
};

uint8_t tok_class[0x110000];

/* Added by Unicode 15.1 and 16. */
static const struct range new_upper[] = {
	{ 0x1c89, 0x1c89 }, { 0xa7cb, 0xa7cc }, { 0xa7da, 0xa7da }, { 0xa7dc, 0xa7dc }, { 0x10d50, 0x10d65 },
};
static const struct range new_lower[] = {
	{ 0x1c8a, 0x1c8a },
	{ 0xa7cd, 0xa7cd },
	{ 0xa7db, 0xa7db },
	{ 0x10d70, 0x10d85 },
};
static const struct range new_letter[] = {
	{ 0x105c0, 0x105f3 }, { 0x10d4a, 0x10d4f }, { 0x10d6f, 0x10d6f }, { 0x10ec2, 0x10ec4 }, { 0x11380, 0x11389 },
	{ 0x1138b, 0x1138b }, { 0x1138e, 0x1138e }, { 0x11390, 0x113b5 }, { 0x113b7, 0x113b7 }, { 0x113d1, 0x113d1 },
	{ 0x113d3, 0x113d3 }, { 0x11bc0, 0x11be0 }, { 0x13460, 0x143fa }, { 0x16100, 0x1611d }, { 0x16d40, 0x16d6c },
	{ 0x18cff, 0x18cff }, { 0x1e5d0, 0x1e5ed }, { 0x1e5f0, 0x1e5f0 }, { 0x2ebf0, 0x2ee5d },
};
static const struct range new_mark[] = {
	{ 0x897, 0x897 },     { 0x10d69, 0x10d6d }, { 0x10efc, 0x10efc }, { 0x113b8, 0x113c0 }, { 0x113c2, 0x113c2 },
	{ 0x113c5, 0x113c5 }, { 0x113c7, 0x113ca }, { 0x113cc, 0x113d0 }, { 0x113d2, 0x113d2 }, { 0x113e1, 0x113e2 },
	{ 0x11f5a, 0x11f5a }, { 0x1611e, 0x1612f }, { 0x1e5ee, 0x1e5ef },
};
static const struct range new_number[] = {
	{ 0x10d40, 0x10d49 }, { 0x116d0, 0x116e3 }, { 0x11bf0, 0x11bf9 }, { 0x16130, 0x16139 },
	{ 0x16d70, 0x16d79 }, { 0x1ccf0, 0x1ccf9 }, { 0x1e5f1, 0x1e5fa },
};
static const struct range new_symbol[] = {
	{ 0x1b4e, 0x1b4f },   { 0x1b7f, 0x1b7f },   { 0x2427, 0x2429 },	  { 0x2ffc, 0x2fff },	{ 0x31e4, 0x31e5 },
	{ 0x31ef, 0x31ef },   { 0x10d6e, 0x10d6e }, { 0x10d8e, 0x10d8f }, { 0x113d4, 0x113d5 }, { 0x113d7, 0x113d8 },
	{ 0x11be1, 0x11be1 }, { 0x16d6d, 0x16d6f }, { 0x1cc00, 0x1ccef }, { 0x1cd00, 0x1ceb3 }, { 0x1e5ff, 0x1e5ff },
	{ 0x1f8b2, 0x1f8bb }, { 0x1f8c0, 0x1f8c1 }, { 0x1fa89, 0x1fa89 }, { 0x1fa8f, 0x1fa8f }, { 0x1fabe, 0x1fabe },
	{ 0x1fac6, 0x1fac6 }, { 0x1fadc, 0x1fadc }, { 0x1fadf, 0x1fadf }, { 0x1fae9, 0x1fae9 }, { 0x1fbcb, 0x1fbef },
};
static const struct range han[] = {
	{ 0x2e80, 0x2e99 },   { 0x2e9b, 0x2ef3 },   { 0x2f00, 0x2fd5 },	  { 0x3005, 0x3005 },	{ 0x3007, 0x3007 },
	{ 0x3021, 0x3029 },   { 0x3038, 0x303b },   { 0x3400, 0x4dbf },	  { 0x4e00, 0x9fff },	{ 0xf900, 0xfa6d },
	{ 0xfa70, 0xfad9 },   { 0x16fe2, 0x16fe3 }, { 0x16ff0, 0x16ff1 }, { 0x20000, 0x2a6df }, { 0x2a700, 0x2b739 },
	{ 0x2b740, 0x2b81d }, { 0x2b820, 0x2cea1 }, { 0x2ceb0, 0x2ebe0 }, { 0x2ebf0, 0x2ee5d }, { 0x2f800, 0x2fa1d },
	{ 0x30000, 0x3134a }, { 0x31350, 0x323af },
};

/* Where the reference's components know another Unicode version than utf8proc's 15.0: normalisers that of 10,
 * StripAccents that of 10, Punctuation an older one, Digits and \w that of 16 and later. Found by asking it for every
 * character. */
/* Normalisation leaves them where and as they are, and nothing goes past them. */
static const struct range inert[] = {
	{ 0x7fd, 0x7fd },     { 0x898, 0x8d3 },	    { 0x9fe, 0x9fe },	  { 0xc3c, 0xc3c },	{ 0xd3b, 0xd3c },
	{ 0xeba, 0xeba },     { 0x1715, 0x1715 },   { 0x1abf, 0x1ace },	  { 0x1df6, 0x1dfa },	{ 0x32ff, 0x32ff },
	{ 0xa7f2, 0xa7f4 },   { 0xa82c, 0xa82c },   { 0xab69, 0xab69 },	  { 0x10781, 0x107ba }, { 0x10d24, 0x10d27 },
	{ 0x10eab, 0x10eac }, { 0x10efd, 0x10eff }, { 0x10f46, 0x10f85 }, { 0x11070, 0x11070 }, { 0x1133b, 0x1133b },
	{ 0x1145e, 0x1145e }, { 0x11839, 0x1183a }, { 0x11930, 0x11943 }, { 0x119e0, 0x119e0 }, { 0x11a34, 0x11a47 },
	{ 0x11a99, 0x11a99 }, { 0x11d42, 0x11d45 }, { 0x11d97, 0x11d97 }, { 0x11f41, 0x11f42 }, { 0x16ff0, 0x16ff1 },
	{ 0x1e030, 0x1e08f }, { 0x1e130, 0x1e136 }, { 0x1e2ae, 0x1e2ef }, { 0x1e4ec, 0x1e4ef }, { 0x1f16c, 0x1f16c },
	{ 0x1fbf0, 0x1fbf9 },
};
/* No marks, for StripAccents. */
static const struct range not_mark[] = {
	{ 0x7fd, 0x7fd },     { 0x898, 0x8d3 },	    { 0x9fe, 0x9fe },	  { 0xafa, 0xaff },	{ 0xb55, 0xb55 },
	{ 0xc04, 0xc3c },     { 0xcf3, 0xd00 },	    { 0xd3b, 0xd3c },	  { 0xd81, 0xd81 },	{ 0xeba, 0xeba },
	{ 0xece, 0xece },     { 0x1715, 0x1715 },   { 0x180f, 0x180f },	  { 0x1abf, 0x1ace },	{ 0x1cf7, 0x1cf7 },
	{ 0x1df6, 0x1dfa },   { 0xa82c, 0xa82c },   { 0xa8ff, 0xa8ff },	  { 0x10d24, 0x10d27 }, { 0x10eab, 0x10eac },
	{ 0x10efd, 0x10eff }, { 0x10f46, 0x10f85 }, { 0x11070, 0x11074 }, { 0x110c2, 0x110c2 }, { 0x11145, 0x11146 },
	{ 0x111c9, 0x111c9 }, { 0x111ce, 0x111cf }, { 0x11241, 0x11241 }, { 0x1133b, 0x1133b }, { 0x1145e, 0x1145e },
	{ 0x1182c, 0x1183a }, { 0x11930, 0x11943 }, { 0x119d1, 0x11a99 }, { 0x11d31, 0x11d47 }, { 0x11d8a, 0x11d97 },
	{ 0x11ef3, 0x11f42 }, { 0x13440, 0x13455 }, { 0x16f4f, 0x16f4f }, { 0x16f7f, 0x16f87 }, { 0x16fe4, 0x16ff1 },
	{ 0x1cf00, 0x1cf46 }, { 0x1e08f, 0x1e08f }, { 0x1e130, 0x1e136 }, { 0x1e2ae, 0x1e2ef }, { 0x1e4ec, 0x1e4ef },
};
/* Numbers. */
static const struct range more_number[] = {
	{ 0x10d40, 0x10d49 }, { 0x116d0, 0x116e3 }, { 0x11bf0, 0x11bf9 }, { 0x11de0, 0x11de9 }, { 0x16130, 0x16139 },
	{ 0x16d70, 0x16d79 }, { 0x16ff4, 0x16ff6 }, { 0x1ccf0, 0x1ccf9 }, { 0x1e5f1, 0x1e5fa },
};
/* No punctuation. */
static const struct range not_punctuation[] = {
	{ 0x61d, 0x61d },     { 0x9fd, 0x9fd },	    { 0xa76, 0xa76 },	  { 0xc77, 0xc84 },	{ 0x1b7d, 0x1b7e },
	{ 0x2e43, 0x2e5d },   { 0x10ead, 0x10ead }, { 0x10f55, 0x10f89 }, { 0x1144b, 0x1145d }, { 0x11660, 0x1166c },
	{ 0x116b9, 0x116b9 }, { 0x1183b, 0x1183b }, { 0x11944, 0x11946 }, { 0x119e2, 0x119e2 }, { 0x11a3f, 0x11a46 },
	{ 0x11a9a, 0x11aa2 }, { 0x11b00, 0x11b09 }, { 0x11c41, 0x11c71 }, { 0x11ef7, 0x11ef8 }, { 0x11f43, 0x11f4f },
	{ 0x11fff, 0x11fff }, { 0x12ff1, 0x12ff2 }, { 0x16e97, 0x16e9a }, { 0x16fe2, 0x16fe2 }, { 0x1e95e, 0x1e95f },
};
/* Characters of words. */
static const struct range more_word[] = {
	{ 0x897, 0x897 },     { 0x1c89, 0x1c8a },   { 0xa7cb, 0xa7cd },	  { 0xa7da, 0xa7dc },	{ 0x105c0, 0x105f3 },
	{ 0x10d40, 0x10d65 }, { 0x10d69, 0x10d6d }, { 0x10d6f, 0x10d85 }, { 0x10ec2, 0x10ec4 }, { 0x10efc, 0x10efc },
	{ 0x11380, 0x11389 }, { 0x1138b, 0x1138b }, { 0x1138e, 0x1138e }, { 0x11390, 0x113b5 }, { 0x113b7, 0x113c0 },
	{ 0x113c2, 0x113c2 }, { 0x113c5, 0x113c5 }, { 0x113c7, 0x113ca }, { 0x113cc, 0x113d3 }, { 0x113e1, 0x113e2 },
	{ 0x116d0, 0x116e3 }, { 0x11bc0, 0x11be0 }, { 0x11bf0, 0x11bf9 }, { 0x11f5a, 0x11f5a }, { 0x13460, 0x143fa },
	{ 0x16100, 0x16139 }, { 0x16d40, 0x16d6c }, { 0x16d70, 0x16d79 }, { 0x18cff, 0x18cff }, { 0x1ccf0, 0x1ccf9 },
	{ 0x1e5d0, 0x1e5fa }, { 0x2ebf0, 0x2ee5d },
};
/* first to last become lower case by adding `by`. */
static const struct {
	int32_t first, last, by;
} more_lower[] = {
	{ 0x1c89, 0x1c89, 1 },	  { 0xa7cb, 0xa7cb, -42343 }, { 0xa7cc, 0xa7cc, 1 }, { 0xa7ce, 0xa7ce, 1 },
	{ 0xa7d2, 0xa7d2, 1 },	  { 0xa7d4, 0xa7d4, 1 },      { 0xa7da, 0xa7da, 1 }, { 0xa7dc, 0xa7dc, -42561 },
	{ 0x10d50, 0x10d65, 32 }, { 0x16ea0, 0x16eb8, 27 },
};

static bool is_in(const struct range *r, size_t n, int32_t cp)
{
	size_t lo = 0;

	while (lo < n) {
		const size_t mid = lo + (n - lo) / 2;

		if (cp > r[mid].last)
			lo = mid + 1;
		else if (cp < r[mid].first)
			n = mid;
		else
			return true;
	}
	return false;
}

#define IS_IN(ranges, cp) is_in(ranges, sizeof(ranges) / sizeof(ranges[0]), cp)

bool tok_is_han(int32_t cp)
{
	return IS_IN(han, cp);
}

bool tok_is_inert(int32_t cp)
{
	return IS_IN(inert, cp);
}

bool tok_is_mark(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);

	return ((c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME) &&
		!IS_IN(not_mark, cp)) ||
	       cp == 0x1cf2 || cp == 0x1cf3;
}

bool tok_is_numeric(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);

	return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
	       IS_IN(more_number, cp);
}

bool tok_is_word(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);

	if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) /* letters, marks, decimal digits, letter numbers */
		return true;
	if (c == UTF8PROC_CATEGORY_PC || cp == 0x200c || cp == 0x200d)
		return true;
	/* The symbols that are Alphabetic all the same: circled and squared letters. */
	return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
	       (cp >= 0x1f170 && cp <= 0x1f189) || IS_IN(more_word, cp);
}

bool tok_is_punctuation(int32_t cp)
{
	utf8proc_category_t c;

	if (cp < 0x80) /* ASCII symbols such as + and $ count too */
		return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
		       (cp >= '{' && cp <= '~');
	c = utf8proc_category(cp);
	return (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO && !IS_IN(not_punctuation, cp)) ||
	       cp == 0x166d || cp == 0x111c9;
}

int32_t tok_tolower(int32_t cp)
{
	for (size_t i = 0; i < sizeof(more_lower) / sizeof(more_lower[0]); i++)
		if (cp >= more_lower[i].first && cp <= more_lower[i].last)
			return cp + more_lower[i].by;
	return utf8proc_tolower(cp);
}

static uint8_t bits_of(utf8proc_category_t c)
{
	switch (c) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LT: return TOK_C_UPPER;
	case UTF8PROC_CATEGORY_LL: return TOK_C_LOWER;
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO: return TOK_C_LETTER;
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME: return TOK_C_MARK;
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_NO: return TOK_C_NUMBER;
	case UTF8PROC_CATEGORY_PC:
	case UTF8PROC_CATEGORY_PD:
	case UTF8PROC_CATEGORY_PS:
	case UTF8PROC_CATEGORY_PE:
	case UTF8PROC_CATEGORY_PI:
	case UTF8PROC_CATEGORY_PF:
	case UTF8PROC_CATEGORY_PO:
	case UTF8PROC_CATEGORY_SM:
	case UTF8PROC_CATEGORY_SC:
	case UTF8PROC_CATEGORY_SK:
	case UTF8PROC_CATEGORY_SO: return TOK_C_SYMBOL;
	case UTF8PROC_CATEGORY_ZS:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CN: return 0;
	}
	return 0;
}

/* A character without the bit TOK_C_MOVES stays as it is in NFC, and nothing before or behind it changes because of it
 * but a mark that has the bit: marks, what decomposes and is not composed again, and all second characters of
 * compositions have it. */
static void mark_moves(int32_t cp)
{
	int32_t point[32];
	int boundclass = 0;
	utf8proc_ssize_t n = utf8proc_decompose_char(cp, point, 32, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundclass);

	if (utf8proc_get_property(cp)->combining_class != 0 || n < 1 || n > 32) {
		tok_class[cp] |= TOK_C_MOVES;
		return;
	}
	if (n == 1 && point[0] == cp)
		return;
	for (utf8proc_ssize_t i = 1; i < n; i++)
		tok_class[point[i]] |= TOK_C_MOVES;
	n = utf8proc_normalize_utf32(point, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	if (n != 1 || point[0] != cp)
		tok_class[cp] |= TOK_C_MOVES;
}

static void add_ranges(const struct range *r, size_t n, uint8_t bits)
{
	for (size_t i = 0; i < n; i++)
		for (int32_t cp = r[i].first; cp <= r[i].last; cp++)
			tok_class[cp] |= bits | (bits == TOK_C_MARK ? TOK_C_MOVES : 0);
}

#define ADD(ranges, bits) add_ranges(ranges, sizeof(ranges) / sizeof(ranges[0]), bits)

/* Nothing else above 0x33480 has a class. */
static bool may_have_class(int32_t cp)
{
	return cp < 0x33480 || (cp >= 0xe0000 && cp < 0xe0200);
}

static void fill(void)
{
	for (int32_t cp = 0; cp < 0x110000; cp++) {
		if (!may_have_class(cp))
			continue;
		tok_class[cp] |= bits_of(utf8proc_category(cp)) | (tok_is_space(cp) ? TOK_C_SPACE : 0);
		if (cp >= 0xc0 && !(cp >= 0x3400 && cp < 0xa000) && !(cp >= 0x20000 && cp < 0x2f800))
			mark_moves(cp);
	}
	ADD(new_upper, TOK_C_UPPER);
	ADD(new_lower, TOK_C_LOWER);
	ADD(new_letter, TOK_C_LETTER);
	ADD(new_mark, TOK_C_MARK);
	ADD(new_number, TOK_C_NUMBER);
	ADD(new_symbol, TOK_C_SYMBOL);
}

void tok_classes_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fill);
}
