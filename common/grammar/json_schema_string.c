/* Strings: lengths, patterns and formats. */
#include "common/grammar/json_schema_internal.h"

#include "common/grammar/regex.h"

#include <string.h>

#define HOUR "(?:[01]\\d|2[0-3])"
#define DATE \
	"(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))" \
	"|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define TIME HOUR ":[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" HOUR ":[0-5]\\d)"
#define BYTE "(?:\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])"
#define GROUP "[0-9A-Fa-f]{1,4}"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define IPV6 \
	"(?:(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){1,6}:" GROUP "|(?:" GROUP \
	":){1,5}(?::" GROUP "){2}" \
	"|(?:" GROUP ":){1,4}(?::" GROUP "){3}|(?:" GROUP ":){1,3}(?::" GROUP "){4}|(?:" GROUP ":){1,2}(?::" GROUP \
	"){5}" \
	"|" GROUP ":(?::" GROUP "){6}|:(?:(?::" GROUP "){1,7}|:))"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

/* RFC 3339, 4122, 5321, 2673, 4291 and 3986, in their usual spelling. */
static const struct {
	const char *name, *pattern;
} formats[] = {
	{ "date", "^(?!0000)" DATE "$" },
	{ "time", "^" TIME "$" },
	{ "date-time", "^(?!0000)" DATE "T" TIME "$" },
	{ "uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$" },
	{ "email", "^" ATOM "(?:\\." ATOM ")*@" LABEL "(?:\\." LABEL ")*$" },
	{ "ipv4", "^" BYTE "(?:\\." BYTE "){3}$" },
	{ "ipv6", "^" IPV6 "$" },
	{ "uri", "^[A-Za-z][A-Za-z0-9+.-]*:(?://(?:" LABEL "(?:\\." LABEL ")*|\\[" IPV6 "\\])(?::\\d{1,5})?(?:/" PCHAR
		 "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*)(?:\\?(?:" PCHAR
		 "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?$" },
};

static enum od_writing writing(const struct schema *s)
{
	return schema_is_text(s) ? OD_WRITE_PLAIN : schema_style(s)->writing;
}

static uint32_t pattern_re(struct schema *s, const json_t *schema, const char *keyword, const char *pattern, size_t len)
{
	struct od_err err;
	uint32_t re;

	if (od_regex_compile(od_grammar_res(schema_grammar(s)), pattern, len, writing(s), true, &re, &err) == OD_OK)
		return re;
	return schema_refuse(s, schema, keyword, err.code, "%s", err.msg);
}

static uint32_t format_re(struct schema *s, const json_t *schema, const json_t *format)
{
	const char *name = json_string_value(format);

	for (size_t i = 0; name != NULL && i < sizeof(formats) / sizeof(formats[0]); i++)
		if (strcmp(formats[i].name, name) == 0)
			return pattern_re(s, schema, "format", formats[i].pattern, strlen(formats[i].pattern));
	return schema_refuse(s, schema, "format", name != NULL ? OD_ERR_UNSUPPORTED : OD_ERR_FORMAT,
			     "expected date, time, date-time, uuid, email, ipv4, ipv6 or uri, found %.60s",
			     name != NULL ? name : "no string");
}

uint32_t schema_string_re(struct schema *s, const struct schema_parts *leaf)
{
	return schema_quoted(s, schema_string_text(s, leaf));
}

uint32_t schema_string_text(struct schema *s, const struct schema_parts *leaf)
{
	struct od_re_pool *p = od_grammar_res(schema_grammar(s));
	uint32_t min = 0, max = OD_RE_NO_LIMIT, n, body = OD_RE_NONE, one;
	bool shaped = false;

	for (size_t i = 0; i < leaf->n && !schema_failed(s); i++) {
		const json_t *schema = leaf->v[i], *pattern = json_object_get(schema, "pattern");
		const json_t *format = json_object_get(schema, "format");

		if (schema_count(s, schema, "minLength", &n) && n > min)
			min = n;
		if (schema_count(s, schema, "maxLength", &n) && n <= SCHEMA_MAX_LENGTH && n < max)
			max = n;
		if (pattern != NULL && !json_is_string(pattern))
			schema_refuse(s, schema, "pattern", OD_ERR_FORMAT, "expected a string");
		if (pattern != NULL) {
			one = pattern_re(s, schema, "pattern", json_string_value(pattern), json_string_length(pattern));
			body = shaped ? od_re_and(p, body, one) : one;
			shaped = true;
		}
		if (format != NULL) {
			one = format_re(s, schema, format);
			body = shaped ? od_re_and(p, body, one) : one;
			shaped = true;
		}
		if (min > SCHEMA_MAX_LENGTH)
			schema_refuse(s, schema, "minLength", OD_ERR_RANGE, "expected at most %u", SCHEMA_MAX_LENGTH);
	}
	if (schema_failed(s))
		return OD_RE_NONE;
	if (!shaped)
		body = od_re_repeat(p, schema_any_char(s, writing(s)), min, max);
	else if (min > 0 || max != OD_RE_NO_LIMIT)
		body = od_re_and(p, body, od_re_repeat(p, schema_one_char(s, writing(s)), min, max));
	if (schema_is_text(s))
		body = od_re_and(p, body, od_re_without(p, schema_style(s)->text_end));
	return body;
}
