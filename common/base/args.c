#include "common/base/args.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMNS 100
#define HELP_INDENT 30

int od_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out, struct od_err *err)
{
	unsigned long long v;
	char *end;

	*out = 0;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0)
		return od_fail(err, OD_ERR_ARG, "expected a whole number, found \"%s\"", text);
	if (v < min || v > max)
		return od_fail(err, OD_ERR_ARG, "expected %llu to %llu, found %s", (unsigned long long)min,
			       (unsigned long long)max, text);
	*out = v;
	return OD_OK;
}

int od_parse_size(const char *text, uint64_t *bytes, struct od_err *err)
{
	static const struct {
		const char *suffix;
		double factor;
	} unit[] = {
		{ "", 1 },	       { "B", 1 },	      { "K", 1024. },	     { "KiB", 1024. },
		{ "KB", 1e3 },	       { "M", 1048576. },     { "MiB", 1048576. },   { "MB", 1e6 },
		{ "G", 1073741824. },  { "GiB", 1073741824. }, { "GB", 1e9 },	     { "T", 1099511627776. },
		{ "TiB", 1099511627776. }, { "TB", 1e12 },
	};
	char *end;
	double v;

	*bytes = 0;
	errno = 0;
	v = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1;
	if (v >= 0 && errno == 0) {
		for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++) {
			if (strcasecmp(end, unit[i].suffix) != 0)
				continue;
			v *= unit[i].factor;
			if (!(v < 9e18))
				break;
			*bytes = (uint64_t)v;
			return OD_OK;
		}
	}
	return od_fail(err, OD_ERR_ARG, "expected a size such as 900MiB or 1G, found \"%s\"", text);
}

const char *od_format_bytes(uint64_t bytes, char *buf, size_t size)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double v = (double)bytes;
	size_t i = 0;

	while (v >= 1024 && i + 1 < sizeof(unit) / sizeof(unit[0])) {
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

static int set_real(const struct od_arg *a, const char *value, struct od_err *err)
{
	char *end;
	double v = strtod(value, &end);

	if (end == value || *end != '\0' || !isfinite(v))
		return od_fail(err, OD_ERR_ARG, "expected a number, found \"%s\"", value);
	if (v < a->min || (a->max > 0 && v > a->max))
		return od_fail(err, OD_ERR_ARG, "expected %g to %g, found %s", a->min, a->max, value);
	*(double *)a->out = v;
	return OD_OK;
}

static int set_value(const struct od_arg *a, const char *value, struct od_err *err)
{
	struct od_arg_list *list;

	switch (a->kind) {
	case OD_ARG_STRING:
		*(const char **)a->out = value;
		return OD_OK;
	case OD_ARG_LIST:
		list = a->out;
		if (list->n == OD_ARG_LIST_MAX)
			return od_fail(err, OD_ERR_ARG, "given more than %d times", OD_ARG_LIST_MAX);
		list->value[list->n++] = value;
		return OD_OK;
	case OD_ARG_UINT:
		return od_parse_u64(value, (uint64_t)a->min, a->max > 0 ? (uint64_t)a->max : UINT64_MAX, a->out, err);
	case OD_ARG_SIZE:
		return od_parse_size(value, a->out, err);
	case OD_ARG_REAL:
		return set_real(a, value, err);
	case OD_ARG_CHOICE:
		return set_choice(a, value, err);
	case OD_ARG_FLAG:
	case OD_ARG_TITLE:
		break;
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
		const char *word = argv[i], *name = word + 2, *eq, *value;
		const struct od_arg *a;

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
		if (word[1] != '-') {
			if (strcmp(word, "-h") != 0)
				return od_fail(err, OD_ERR_ARG, "unknown option %s; see --help", word);
			name = "help";
		}
		eq = strchr(name, '=');
		a = find(table, n_table, name, eq != NULL ? (size_t)(eq - name) : strlen(name));
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
		if (set_value(a, value, err) != OD_OK)
			return od_fail_within(err, "--%s", a->name);
	}
	return OD_OK;
}

static void help_text(FILE *f, const char *text)
{
	size_t column = HELP_INDENT;

	while (*text != '\0') {
		size_t word = strcspn(text, " ");

		if (column + word > HELP_COLUMNS) {
			fprintf(f, "\n%*s", HELP_INDENT, "");
			column = HELP_INDENT;
		}
		fprintf(f, "%.*s", (int)word, text);
		column += word;
		text += word;
		if (*text == ' ') {
			fputc(' ', f);
			column++;
			text++;
		}
	}
	fputc('\n', f);
}

void od_args_help(FILE *f, const struct od_arg *table, size_t n_table)
{
	for (size_t i = 0; i < n_table; i++) {
		const struct od_arg *a = &table[i];
		char left[160];
		int n;

		if (a->kind == OD_ARG_TITLE) {
			fprintf(f, "\n%s:\n", a->help);
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
