#include "common/text/jinja/jinja_unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "common/text/jinja/jinja_case_table.h"

struct range {
	uint32_t first, last;
};

#define IN(table, c) in_ranges(table, sizeof(table) / sizeof((table)[0]), c)

static bool in_ranges(const struct range *r, size_t n, uint32_t c)
{
	for (size_t i = 0; i < n; i++)
		if (c >= r[i].first && c <= r[i].last)
			return true;
	return false;
}

bool jinja_utf8_valid(const char *p, size_t len, size_t *bad)
{
	*bad = 0;
	while (*bad < len) {
		utf8proc_int32_t c;
		utf8proc_ssize_t n;

		if ((unsigned char)p[*bad] < 0x80) {
			++*bad;
			continue;
		}
		n = utf8proc_iterate((const utf8proc_uint8_t *)p + *bad, (utf8proc_ssize_t)(len - *bad), &c);
		if (n < 1)
			return false;
		*bad += (size_t)n;
	}
	return true;
}

size_t jinja_count_chars(const char *p, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++)
		n += (p[i] & 0xc0) != 0x80;
	return n;
}

size_t jinja_skip_chars(const char *p, size_t len, size_t n_chars)
{
	size_t at = 0;

	for (; n_chars > 0 && at < len; n_chars--)
		at += jinja_char_bytes(p + at);
	return at;
}

size_t jinja_char_bytes(const char *p)
{
	const unsigned char c = (unsigned char)*p;

	return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

uint32_t jinja_char_at(const char *p, size_t *bytes)
{
	const unsigned char *u = (const unsigned char *)p;

	*bytes = jinja_char_bytes(p);
	if (*bytes == 1)
		return u[0];
	if (*bytes == 2)
		return (u[0] & 31u) << 6 | (u[1] & 63u);
	if (*bytes == 3)
		return (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u);
	return (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u);
}

size_t jinja_last_char(const char *p, size_t len)
{
	size_t at = len - 1;

	while (at > 0 && (p[at] & 0xc0) == 0x80)
		at--;
	return at;
}

bool jinja_is_space(uint32_t c)
{
	static const struct range space[] = { { 9, 13 },	  { 0x1c, 0x20 },     { 0x85, 0x85 },
					      { 0xa0, 0xa0 },	  { 0x1680, 0x1680 }, { 0x2000, 0x200a },
					      { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f },
					      { 0x3000, 0x3000 } };

	return c < 0x80 ? c == 32 || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) : IN(space, c);
}

bool jinja_is_line_break(uint32_t c)
{
	return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static utf8proc_category_t category(uint32_t c)
{
	return utf8proc_category((utf8proc_int32_t)c);
}

bool jinja_is_printable(uint32_t c)
{
	const utf8proc_category_t k = category(c);

	if (c < 0x80)
		return c >= 32 && c < 127;
	return k != UTF8PROC_CATEGORY_CN && !(k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_CO);
}

bool jinja_is_alpha(uint32_t c)
{
	const utf8proc_category_t k = category(c);

	return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool jinja_is_decimal(uint32_t c)
{
	return category(c) == UTF8PROC_CATEGORY_ND;
}

bool jinja_is_digit(uint32_t c)
{
	static const struct range digit[] = {
		{ 0xb2, 0xb3 },	      { 0xb9, 0xb9 },	    { 0x1369, 0x1371 },	  { 0x19da, 0x19da },
		{ 0x2070, 0x2070 },   { 0x2074, 0x2079 },   { 0x2080, 0x2089 },	  { 0x2460, 0x2468 },
		{ 0x2474, 0x247c },   { 0x2488, 0x2490 },   { 0x24ea, 0x24ea },	  { 0x24f5, 0x24fd },
		{ 0x24ff, 0x24ff },   { 0x2776, 0x277e },   { 0x2780, 0x2788 },	  { 0x278a, 0x2792 },
		{ 0x10a40, 0x10a43 }, { 0x10e60, 0x10e68 }, { 0x11052, 0x1105a }, { 0x1f100, 0x1f10a },
	};

	return jinja_is_decimal(c) || IN(digit, c);
}

bool jinja_is_numeric(uint32_t c)
{
	/* Ideographs that mean numbers are letters in their category. */
	static const char han[] = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹"
				  "幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零";
	const utf8proc_category_t k = category(c);
	size_t n;

	if (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO)
		return true;
	if (c >= 0x3400)
		for (size_t at = 0; at < sizeof(han) - 1; at += n)
			if (jinja_char_at(han + at, &n) == c)
				return true;
	return false;
}

bool jinja_is_upper(uint32_t c)
{
	static const struct range other[] = {
		{ 0x2160, 0x216f }, { 0x24b6, 0x24cf }, { 0x1f130, 0x1f149 }, { 0x1f150, 0x1f169 }, { 0x1f170, 0x1f189 }
	};

	return category(c) == UTF8PROC_CATEGORY_LU || IN(other, c);
}

bool jinja_is_lower(uint32_t c)
{
	static const struct range other[] = {
		{ 0xaa, 0xaa },	    { 0xba, 0xba },	{ 0x2b0, 0x2b8 },   { 0x2c0, 0x2c1 },	{ 0x2e0, 0x2e4 },
		{ 0x345, 0x345 },   { 0x37a, 0x37a },	{ 0x1d2c, 0x1d6a }, { 0x1d78, 0x1d78 }, { 0x1d9b, 0x1dbf },
		{ 0x2071, 0x2071 }, { 0x207f, 0x207f }, { 0x2090, 0x209c }, { 0x2170, 0x217f }, { 0x24d0, 0x24e9 },
		{ 0x2c7c, 0x2c7d }, { 0xa69c, 0xa69d }, { 0xa770, 0xa770 }, { 0xa7f8, 0xa7f9 }, { 0xab5c, 0xab5f }
	};

	return category(c) == UTF8PROC_CATEGORY_LL || IN(other, c);
}

bool jinja_is_title(uint32_t c)
{
	return category(c) == UTF8PROC_CATEGORY_LT;
}

bool jinja_is_cased(uint32_t c)
{
	return jinja_is_upper(c) || jinja_is_lower(c) || jinja_is_title(c);
}

bool jinja_is_case_ignorable(uint32_t c)
{
	const utf8proc_category_t k = category(c);

	return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2019 || c == 0x2018 || c == 0x2027 ||
	       c == 0x2024 || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
	       k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

bool jinja_is_name_start(uint32_t c)
{
	const utf8proc_category_t k = category(c);

	return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || k == UTF8PROC_CATEGORY_NL;
}

bool jinja_is_name(uint32_t c)
{
	const utf8proc_category_t k = category(c);

	return jinja_is_name_start(c) || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC ||
	       k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_PC;
}

/* Decimal digits come in runs of ten of which the first is a multiple of neither 10 nor 16: count down to it. */
int jinja_decimal_value(uint32_t c)
{
	int value = 0;

	if (c < 0x80)
		return c >= '0' && c <= '9' ? (int)(c - '0') : -1;
	if (!jinja_is_decimal(c))
		return -1;
	if (c >= 0x1d7ce && c <= 0x1d7ff) /* five styles of digits, one behind the other */
		return (int)((c - 0x1d7ce) % 10);
	while (value < 9 && jinja_is_decimal(c - 1 - (uint32_t)value))
		value++;
	return value;
}

static const struct special_case *special(uint32_t c)
{
	for (size_t i = 0; c >= special_cases[0].c && i < sizeof(special_cases) / sizeof(special_cases[0]); i++)
		if (special_cases[i].c == c)
			return &special_cases[i];
	return NULL;
}

static size_t copy_case(const uint32_t from[JINJA_MAX_CASE], uint32_t out[JINJA_MAX_CASE])
{
	size_t n = 0;

	while (n < JINJA_MAX_CASE && from[n] != 0) {
		out[n] = from[n];
		n++;
	}
	return n;
}

size_t jinja_to_upper(uint32_t c, uint32_t out[JINJA_MAX_CASE])
{
	const struct special_case *s = special(c);

	if (s != NULL)
		return copy_case(s->upper, out);
	out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
	return 1;
}

size_t jinja_to_title(uint32_t c, uint32_t out[JINJA_MAX_CASE])
{
	const struct special_case *s = special(c);

	if (s != NULL)
		return copy_case(s->title, out);
	out[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)c);
	return 1;
}

size_t jinja_to_lower(uint32_t c, uint32_t out[JINJA_MAX_CASE])
{
	out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
	if (c != 0x130) /* the dot becomes a character of its own */
		return 1;
	out[0] = 'i';
	out[1] = 0x307;
	return 2;
}
