/* args.h - parses a command line by a table of options (--name VALUE, --name=VALUE, flags) and prints its --help text.
 *
 * Thread: main(), before others exist. Owner: strings point into argv. */
#ifndef OD_BASE_ARGS_H
#define OD_BASE_ARGS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

enum od_arg_kind {
	OD_ARG_FLAG, /* bool *out, becomes true */
	OD_ARG_STRING, /* const char **out */
	OD_ARG_LIST, /* struct od_arg_list *out; repeatable */
	OD_ARG_UINT, /* uint64_t *out, min..max */
	OD_ARG_REAL, /* double *out, min..max */
	OD_ARG_SIZE, /* uint64_t *out, as od_parse_size */
	OD_ARG_CHOICE, /* int *out: index into choices */
	OD_ARG_TITLE, /* a heading in the help text, nothing else */
};

#define OD_ARG_LIST_MAX 64
struct od_arg_list {
	const char *value[OD_ARG_LIST_MAX];
	size_t n;
};

struct od_arg {
	const char *name; /* without the dashes */
	enum od_arg_kind kind;
	void *out;
	const char *metavar; /* "FILE"; NULL for flags */
	const char *help;
	double min, max; /* OD_ARG_UINT, OD_ARG_REAL; max 0: no upper bound */
	const char *const *choices; /* OD_ARG_CHOICE, ends with NULL */
};

/* Sets the given options and leaves the others unchanged. If an option is repeated, the last one counts. "--" ends the
 * options, "-" is positional, -h is --help. Positional arguments go to positional[0..*n_positional), at most
 * max_positional. The caller handles --help and --version (as flags in the table).
 * OD_ERR_ARG names the option and what it expects. */
OD_MUST_CHECK int od_args_parse(const struct od_arg *table, size_t n_table, int argc, char **argv,
				const char **positional, size_t max_positional, size_t *n_positional,
				struct od_err *err);

/* Prints one entry per option, wrapped at 100 columns. With $OD_HELP_ROWS it prints rows of fields, of which
 * deploy/help_pages.py makes man pages and completions. */
void od_args_help(FILE *f, const struct od_arg *table, size_t n_table);

/* Parses "900MiB", "1.5G" (2^30), "500MB" (10^6) or plain bytes, in any case, below 2^63. A fraction of a byte is cut
 * off. *bytes, and *out below, are 0 unless OD_OK. */
OD_MUST_CHECK int od_parse_size(const char *text, uint64_t *bytes, struct od_err *err);
/* Decimal digits only. */
OD_MUST_CHECK int od_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out, struct od_err *err);
/* A decimal number; max 0: no upper bound. */
OD_MUST_CHECK int od_parse_real(const char *text, double min, double max, double *out, struct od_err *err);

/* "12.3 MiB" in buf; returns buf. */
const char *od_format_bytes(uint64_t bytes, char *buf, size_t size);

#endif
