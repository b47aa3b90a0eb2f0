/* od_bench.c - finds the subcommand and reports how it ended. */
#include "tests/bench/bench.h"

#include "common/base/log.h"
#include "common/base/version.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct od_bench_command commands[] = {
	{ "synth", "write a synthetic checkpoint: Mixtral of any size, or layers of a family", od_bench_synth },
	{ "codec", "size and decode speed of the expert codecs", od_bench_codec },
	{ "gemv", "speed of products of few rows, weights in plain BF16 and as planes", od_bench_gemv },
	{ "gpu", "how much of its memory bandwidth the kernels of a GPU use", od_bench_gpu },
	{ "conform", "compare tokens, routes and logits with an independent implementation", od_bench_conform },
	{ "recall", "recall of the predicted experts", od_bench_recall },
	{ "ablate", "gain from prediction and from alignment, on a paced local cluster", od_bench_ablate },
	{ "precision", "decode speed of each shadow precision", od_bench_precision },
	{ "decode", "tokens per second of a cluster and of resident mode", od_bench_decode },
	{ "cache", "gain from a cache of experts, from recorded routes", od_bench_cache },
	{ "residency", "speed of one machine by the memory that it gives to experts", od_bench_residency },
	{ "texts", "many texts on one machine, by how memory is divided", od_bench_texts },
	{ "routing", "perplexity and misses of ways to prefer cached experts", od_bench_routing },
	{ "load", "a worker's load throughput, from page cache, disk and paced memory", od_bench_load },
	{ "tokenize", "speed of a tokeniser on texts", od_bench_tokenize },
	{ "masks", "CPU time of the masks of JSON schemas, with a real vocabulary", od_bench_masks },
	{ "wire", "round trip of a layer's messages, with keys and without", od_bench_wire },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

void od_bench_usage(const char *usage, const char *text, const struct od_arg *table, size_t n_table)
{
	printf("Usage: od-bench %s\n\n%s\n", usage, text);
	if (table[0].kind != OD_ARG_TITLE)
		printf("\nOptions:\n");
	od_args_help(stdout, table, n_table);
}

int od_bench_options(const struct od_arg *table, size_t n_table, int argc, char **argv, const bool *help,
		     const char *usage, const char *text, struct od_err *err)
{
	size_t n;
	int rc = od_args_parse(table, n_table, argc, argv, NULL, 0, &n, err);

	if (rc == OD_OK && *help)
		od_bench_usage(usage, text, table, n_table);
	return rc;
}

static atomic_bool interrupted;

static void on_signal(int number)
{
	(void)number;
	if (atomic_exchange(&interrupted, true)) /* asked twice */
		_exit(130);
}

const atomic_bool *od_bench_catch_signals(void)
{
	const struct sigaction act = { .sa_handler = on_signal };

	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	return &interrupted;
}

static void list_commands(FILE *f)
{
	fputs("Usage: od-bench COMMAND [OPTIONS]\n\nCommands:\n", f);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
	fputs("\nod-bench COMMAND --help prints its options. Every command takes --json.\nod-bench --version prints the version.\n",
	      f);
}

static const struct od_bench_command *find_command(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	}
	return NULL;
}

static bool asks_for_help(const char *word)
{
	return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

int main(int argc, char **argv)
{
	const struct od_bench_command *c;
	struct od_err err = { 0 };
	int rc;

	od_log_init("od-bench", OD_LOG_INFO);
	if (argc < 2) {
		list_commands(stderr);
		return 2;
	}
	if (asks_for_help(argv[1])) {
		list_commands(stdout);
		return 0;
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("od-bench %s\n", OD_VERSION);
		return 0;
	}
	c = find_command(argv[1]);
	if (c == NULL) {
		od_log(OD_LOG_ERROR, "unknown command \"%s\"; od-bench --help lists the commands", argv[1]);
		return 2;
	}
	rc = c->run(argc - 1, argv + 1, &err);
	/* Only this detects a full disk behind a pipe. */
	if (rc == OD_OK && fflush(stdout) != 0)
		rc = od_fail_errno(&err, OD_ERR_IO, "writing standard output");
	if (rc == OD_OK)
		return 0;
	od_log(OD_LOG_ERROR, "%s: %s", c->name, err.msg);
	return rc == OD_ERR_ARG ? 2 : 1;
}
