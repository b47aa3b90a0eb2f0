#include "common/base/args.h"

#include "common/base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMNS 100
#define HELP_INDENT 31
#define DIGITS "0123456789"

int od_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out, struct od_err *err)
{
	unsigned long long v;
	char *end;

	*out = 0;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end != '\0')
		return od_fail(err, OD_ERR_ARG, "expected a whole number, found \"%s\"", text);
	if (errno != 0 || v < min || v > max)
		return od_fail(err, OD_ERR_ARG, "expected %llu to %llu, found %s", (unsigned long long)min,
			       (unsigned long long)max, text);
	*out = v;
	return OD_OK;
}

int od_parse_real(const char *text, double min, double max, double *out, struct od_err *err)
{
	char *end;
	double v = strtod(text, &end);

	*out = 0;
	/* strtod would also take blanks in front, hexadecimals, infinities and NaN. */
	if (end == text || *end != '\0' || text[strspn(text, DIGITS "+-.eE")] != '\0' || !isfinite(v))
		return od_fail(err, OD_ERR_ARG, "expected a number, found \"%s\"", text);
	if (max > 0 && (v < min || v > max))
		return od_fail(err, OD_ERR_ARG, "expected %g to %g, found %s", min, max, text);
	if (v < min)
		return od_fail(err, OD_ERR_ARG, "expected %g or more, found %s", min, text);
	*out = v;
	return OD_OK;
}

/* ".5" as half of a unit, rounded down; *end is behind the digits. Digits beyond the 18th are below one byte. */
static uint64_t fraction_of(const char *text, uint64_t unit_bytes)
{
	uint64_t digits = 0, scale = 1;

	for (int i = 0; i < 18 && isdigit((unsigned char)text[i]); i++) {
		digits = digits * 10 + (uint64_t)(text[i] - '0');
		scale *= 10;
	}
	return (uint64_t)((unsigned __int128)digits * unit_bytes / scale);
}

/* In whole numbers: a double would lose bytes above 2^53 and turn 1.001KB into 1000. */
int od_parse_size(const char *text, uint64_t *bytes, struct od_err *err)
{
	static const struct {
		const char *suffix;
		uint64_t bytes;
	} unit[] = {
		{ "", 1 },
		{ "B", 1 },
		{ "K", 1ull << 10 },
		{ "KiB", 1ull << 10 },
		{ "KB", 1000ull },
		{ "M", 1ull << 20 },
		{ "MiB", 1ull << 20 },
		{ "MB", 1000000ull },
		{ "G", 1ull << 30 },
		{ "GiB", 1ull << 30 },
		{ "GB", 1000000000ull },
		{ "T", 1ull << 40 },
		{ "TiB", 1ull << 40 },
		{ "TB", 1000000000000ull },
	};
	size_t whole = strspn(text, DIGITS), fraction = text[whole] == '.' ? strspn(text + whole + 1, DIGITS) : 0;
	const char *suffix = text + whole + (fraction > 0 ? fraction + 1 : 0);
	uint64_t v;

	*bytes = 0;
	if (whole > 0)
		for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++) {
			if (strcasecmp(suffix, unit[i].suffix) != 0 || (fraction > 0 && unit[i].bytes == 1))
				continue;
			errno = 0;
			v = strtoull(text, NULL, 10);
			if (errno != 0 || !od_mul(v, unit[i].bytes, &v) ||
			    !od_add(v, fraction > 0 ? fraction_of(text + whole + 1, unit[i].bytes) : 0, &v) ||
			    v > INT64_MAX)
				return od_fail(err, OD_ERR_ARG, "expected a size below 8388608TiB, found \"%s\"", text);
			*bytes = v;
			return OD_OK;
		}
	return od_fail(err, OD_ERR_ARG, "expected a size such as 900MiB or 1.5G, found \"%s\"", text);
}

const char *od_format_bytes(uint64_t bytes, char *buf, size_t size)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double v = (double)bytes;
	size_t i = 0;

	/* 1024.0 KiB is printed as 1.0 MiB. */
	while (v >= (i == 0 ? 1024 : 1023.95) && i + 1 < sizeof(unit) / sizeof(unit[0])) {
		v /= 1024;
		i++;
	}
	snprintf(buf, size, i == 0 ? "%.0f %s" : "%.1f %s", v, unit[i]);
	return buf;
}

static int set_choice(const struct od_arg *a, const char *value, struct od_err *err)
{
	char all[256] = "";

	for (int i = 0; a->choices[i] != NULL; i++) {
		if (strcmp(a->choices[i], value) == 0) {
			*(int *)a->out = i;
			return OD_OK;
		}
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i > 0 ? ", " : "", a->choices[i]);
	}
	return od_fail(err, OD_ERR_ARG, "expected one of %s, found \"%s\"", all, value);
}

static int set_value(const struct od_arg *a, const char *value, struct od_err *err)
{
	struct od_arg_list *list;
	double real;
	int rc;

	switch (a->kind) {
	case OD_ARG_STRING: *(const char **)a->out = value; return OD_OK;
	case OD_ARG_LIST:
		list = a->out;
		if (list->n == OD_ARG_LIST_MAX)
			return od_fail(err, OD_ERR_ARG, "given more than %d times", OD_ARG_LIST_MAX);
		list->value[list->n++] = value;
		return OD_OK;
	case OD_ARG_UINT:
		return od_parse_u64(value, (uint64_t)a->min, a->max > 0 ? (uint64_t)a->max : UINT64_MAX, a->out, err);
	case OD_ARG_SIZE: return od_parse_size(value, a->out, err);
	case OD_ARG_REAL:
		rc = od_parse_real(value, a->min, a->max, &real, err);
		if (rc == OD_OK)
			*(double *)a->out = real;
		return rc;
	case OD_ARG_CHOICE: return set_choice(a, value, err);
	case OD_ARG_FLAG:
	case OD_ARG_TITLE: break;
	}
	return od_fail(err, OD_ERR_ARG, "takes no value");
}

static const struct od_arg *find(const struct od_arg *table, size_t n, const char *name, size_t len)
{
	for (size_t i = 0; i < n; i++) {
		if (table[i].kind != OD_ARG_TITLE && strlen(table[i].name) == len &&
		    memcmp(table[i].name, name, len) == 0)
			return &table[i];
	}
	return NULL;
}

int od_args_parse(const struct od_arg *table, size_t n_table, int argc, char **argv, const char **positional,
		  size_t max_positional, size_t *n_positional, struct od_err *err)
{
	bool options = true;

	*n_positional = 0;
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i], *name, *eq, *value;
		const struct od_arg *a;
		int rc;

		if (options && strcmp(word, "--") == 0) {
			options = false;
			continue;
		}
		if (!options || word[0] != '-' || word[1] == '\0') {
			if (*n_positional == max_positional)
				return od_fail(err, OD_ERR_ARG, "unexpected argument \"%s\"; see --help", word);
			positional[(*n_positional)++] = word;
			continue;
		}
		name = word[1] == '-' ? word + 2 : strcmp(word, "-h") == 0 ? "help" : ""; /* no option is called "" */
		eq = strchr(name, '=');
		a = find(table, n_table, name, strcspn(name, "="));
		if (a == NULL)
			return od_fail(err, OD_ERR_ARG, "unknown option %s; see --help", word);
		if (a->kind == OD_ARG_FLAG) {
			if (eq != NULL)
				return od_fail(err, OD_ERR_ARG, "--%s takes no value", a->name);
			*(bool *)a->out = true;
			continue;
		}
		value = eq != NULL ? eq + 1 : (i + 1 < argc ? argv[++i] : NULL);
		if (value == NULL)
			return od_fail(err, OD_ERR_ARG, "--%s needs a value: %s", a->name, a->metavar);
		rc = set_value(a, value, err);
		if (rc != OD_OK) {
			if (err != NULL)
				od_fail_within(err, "--%s", a->name);
			return rc;
		}
	}
	return OD_OK;
}

static void help_text(FILE *f, const char *text)
{
	size_t column = HELP_INDENT;

	while (*text != '\0') {
		size_t word = strcspn(text, " ");

		if (column > HELP_INDENT && column + 1 + word > HELP_COLUMNS) {
			fprintf(f, "\n%*s", HELP_INDENT, "");
			column = HELP_INDENT;
		} else if (column > HELP_INDENT) {
			fputc(' ', f);
			column++;
		}
		fprintf(f, "%.*s", (int)word, text);
		column += word;
		text += word;
		text += *text == ' ';
	}
	fputc('\n', f);
}

/* A row is a tab, then name, metavar, choices (divided by blanks) and help, divided by tabs. A title has no name. */
static void help_rows(FILE *f, const struct od_arg *table, size_t n_table)
{
	for (size_t i = 0; i < n_table; i++) {
		const struct od_arg *a = &table[i];

		fprintf(f, "\t%s\t%s\t", a->name != NULL ? a->name : "", a->metavar != NULL ? a->metavar : "");
		for (int k = 0; a->kind == OD_ARG_CHOICE && a->choices[k] != NULL; k++)
			fprintf(f, "%s%s", k > 0 ? " " : "", a->choices[k]);
		fprintf(f, "\t%s\n", a->help);
	}
}

void od_args_help(FILE *f, const struct od_arg *table, size_t n_table)
{
	if (getenv("OD_HELP_ROWS") != NULL) {
		help_rows(f, table, n_table);
		return;
	}
	for (size_t i = 0; i < n_table; i++) {
		const struct od_arg *a = &table[i];
		char left[160];
		int n;

		if (a->kind == OD_ARG_TITLE) {
			/* A blank line before each title would push long helps past two screens of 24 lines. */
			fprintf(f, "%s%s:\n", i == 0 ? "\n" : "", a->help);
			continue;
		}
		n = snprintf(left, sizeof(left), "  --%s%s%s", a->name, a->metavar != NULL ? " " : "",
			     a->metavar != NULL ? a->metavar : "");
		if (n >= HELP_INDENT - 1)
			fprintf(f, "%s\n%*s", left, HELP_INDENT, "");
		else
			fprintf(f, "%-*s", HELP_INDENT, left);
		help_text(f, a->help);
	}
}
