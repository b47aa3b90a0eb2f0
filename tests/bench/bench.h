/* bench.h - the subcommands of od-bench.
 *
 * A subcommand gets its own argv (argv[0] is its name), reads it with common/base/args.h, answers --help, and
 * prints through bench_table.h, so that --json has the same figures as the text. To add one: a file
 * bench_<name>.c, its declaration here, its line in od_bench.c, its source in rules.mk.
 * Thread: main(); a subcommand may start its own. */
#ifndef OD_TESTS_BENCH_H
#define OD_TESTS_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/args.h"
#include "common/base/status.h"

struct od_bench_command {
	const char *name;
	const char *summary; /* one line for --help */
	/* OD_OK, or a code with the reason in err; od_bench.c prints it. */
	int (*run)(int argc, char **argv, struct od_err *err);
};

int od_bench_synth(int argc, char **argv, struct od_err *err);
int od_bench_conform(int argc, char **argv, struct od_err *err);
int od_bench_recall(int argc, char **argv, struct od_err *err);
int od_bench_ablate(int argc, char **argv, struct od_err *err);
int od_bench_precision(int argc, char **argv, struct od_err *err);
int od_bench_codec(int argc, char **argv, struct od_err *err);
int od_bench_masks(int argc, char **argv, struct od_err *err);
int od_bench_gemv(int argc, char **argv, struct od_err *err);
int od_bench_gpu(int argc, char **argv, struct od_err *err);
int od_bench_decode(int argc, char **argv, struct od_err *err);
int od_bench_load(int argc, char **argv, struct od_err *err);
int od_bench_texts(int argc, char **argv, struct od_err *err);
int od_bench_residency(int argc, char **argv, struct od_err *err);
int od_bench_cache(int argc, char **argv, struct od_err *err);
int od_bench_cache_record(int argc, char **argv, struct od_err *err); /* its --record */
int od_bench_routing(int argc, char **argv, struct od_err *err);
int od_bench_tokenize(int argc, char **argv, struct od_err *err);
int od_bench_wire(int argc, char **argv, struct od_err *err);

/* Sets the options of a command that takes nothing else. help: the flag --help of its table; if it is given, prints
 * od_bench_usage. */
OD_MUST_CHECK int od_bench_options(const struct od_arg *table, size_t n_table, int argc, char **argv, const bool *help,
				   const char *usage, const char *text, struct od_err *err);
/* Prints "Usage: od-bench <usage>", the description and the options. */
void od_bench_usage(const char *usage, const char *text, const struct od_arg *table, size_t n_table);
/* From now on SIGINT and SIGTERM set the flag that is returned; a second one ends the process. */
const atomic_bool *od_bench_catch_signals(void);

#endif
