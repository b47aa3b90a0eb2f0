/* bench_tokenize.c - od-bench tokenize: how fast texts become ids, on one thread. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/text/tokenizer.h"
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <stdbool.h>
#include <stdlib.h>

#define MAX_TEXTS 16
#define MAX_TEXT_BYTES ((size_t)256 << 20)
#define MAX_REPEATS 1000

struct text {
	const char *path;
	char *data;
	size_t len, n_ids;
	double seconds[MAX_REPEATS];
};

struct options {
	const char *tokenizer, *ids;
	uint64_t repeats, piece_bytes;
	bool json;
};

/* Where the piece that begins at `at` ends: at a character's end. */
static size_t piece_end(const struct text *text, size_t at, uint64_t piece_bytes)
{
	size_t end = at + piece_bytes;

	if (piece_bytes == 0 || text->len - at <= piece_bytes)
		return text->len;
	while (end > at + 1 && ((unsigned char)text->data[end] & 0xc0) == 0x80)
		end--;
	return end;
}

/* ids_path: where the ids of the last piece go; NULL: nowhere. */
static int encode(const struct od_tokenizer *t, struct text *text, uint64_t piece_bytes, const char *ids_path,
		  struct od_err *err)
{
	int rc = OD_OK;

	text->n_ids = 0;
	for (size_t at = 0, end; at < text->len && rc == OD_OK; at = end) {
		int32_t *ids;
		size_t n;

		end = piece_end(text, at, piece_bytes);
		rc = od_tokenizer_encode(t, text->data + at, end - at, 0, &ids, &n, err);
		text->n_ids += n;
		if (rc == OD_OK && ids_path != NULL && end == text->len)
			rc = od_file_write_atomic(ids_path, ids, n * sizeof(*ids), err);
		free(ids);
	}
	return rc;
}

/* The texts take turns, so that a disturbance meets all of them. */
static int measure(const struct od_tokenizer *t, const struct options *o, struct text *text, size_t n,
		   struct od_err *err)
{
	int rc = OD_OK;

	for (uint64_t r = 0; r < o->repeats && rc == OD_OK; r++) {
		for (size_t i = 0; i < n && rc == OD_OK; i++) {
			uint64_t begin = od_now_ns();

			rc = encode(t, &text[i], o->piece_bytes, NULL, err);
			text[i].seconds[r] = (double)(od_now_ns() - begin) * 1e-9;
		}
	}
	return rc;
}

static int report(const struct options *o, double load_seconds, struct text *text, size_t n, struct od_err *err)
{
	static const struct od_column columns[] = {
		{ "text", "text", 0 },
		{ "bytes", "size", 0 },
		{ "ids", "ids", 0 },
		{ "seconds_median", "seconds", 4 },
		{ "seconds_min", "fastest", 4 },
		{ "seconds_max", "slowest", 4 },
		{ "mb_per_s", "MB/s", 1 },
	};
	const size_t n_columns = sizeof(columns) / sizeof(columns[0]);
	struct od_table *table;
	struct od_report *r;
	int rc = od_report_new(&r, "Tokenising", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "load_seconds", "tokeniser loaded in", OD_REAL(load_seconds), 3, "s");
	od_report_fact(r, "repeats", "repeats", OD_INT(o->repeats), 0, NULL);
	table = od_report_table(r, "texts", NULL, columns, n_columns);
	for (size_t i = 0; i < n; i++) {
		struct od_stats s;

		od_stats_of(text[i].seconds, o->repeats, &s);
		od_table_row(table,
			     (struct od_cell[]){ OD_TEXT(text[i].path), OD_BYTES(text[i].len), OD_INT(text[i].n_ids),
						 OD_REAL(s.median), OD_REAL(s.min), OD_REAL(s.max),
						 OD_REAL((double)text[i].len * 1e-6 / s.median) });
	}
	rc = od_report_print(r, stdout, o->json, err);
	od_report_free(r);
	return rc;
}

static int run(const struct options *o, struct text *text, size_t n, struct od_err *err)
{
	struct od_tokenizer *t = NULL;
	uint64_t begin = od_now_ns();
	double load_seconds;
	int rc = od_tokenizer_load(&t, o->tokenizer, err);

	load_seconds = (double)(od_now_ns() - begin) * 1e-9;
	for (size_t i = 0; i < n && rc == OD_OK; i++)
		rc = od_file_read(text[i].path, MAX_TEXT_BYTES, &text[i].data, &text[i].len, err);
	if (rc == OD_OK)
		rc = measure(t, o, text, n, err);
	if (rc == OD_OK && o->ids != NULL)
		rc = encode(t, &text[0], 0, o->ids, err);
	if (rc == OD_OK)
		rc = report(o, load_seconds, text, n, err);
	od_tokenizer_free(t);
	return rc;
}

int od_bench_tokenize(int argc, char **argv, struct od_err *err)
{
	struct options o = { .repeats = 5 };
	const char *paths[MAX_TEXTS];
	struct text *text;
	bool help = false;
	size_t n;
	const struct od_arg table[] = {
		{ "tokenizer", OD_ARG_STRING, &o.tokenizer, "FILE", "tokenizer.json, tokenizer.model or tiktoken.model",
		  0, 0, NULL },
		{ "repeats", OD_ARG_UINT, &o.repeats, "N", "of each text, in turns; default 5", 1, MAX_REPEATS, NULL },
		{ "piece", OD_ARG_SIZE, &o.piece_bytes, "BYTES",
		  "encodes the text in pieces of this size; default: as a whole", 0, 0, NULL },
		{ "ids", OD_ARG_STRING, &o.ids, "FILE", "writes the ids of the first text as a whole: int32", 0, 0,
		  NULL },
		{ "json", OD_ARG_FLAG, &o.json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	const size_t n_table = sizeof(table) / sizeof(table[0]);
	int rc = od_args_parse(table, n_table, argc, argv, paths, MAX_TEXTS, &n, err);

	if (rc != OD_OK)
		return rc;
	if (help) {
		od_bench_usage("tokenize --tokenizer FILE TEXT...",
			       "Encodes each text, without special tokens, on one thread.", table, n_table);
		return OD_OK;
	}
	if (o.tokenizer == NULL || n == 0)
		return od_fail(err, OD_ERR_ARG, "expected --tokenizer and at least one text");
	text = calloc(n, sizeof(*text));
	if (text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu texts", n);
	for (size_t i = 0; i < n; i++)
		text[i].path = paths[i];
	rc = run(&o, text, n, err);
	for (size_t i = 0; i < n; i++)
		free(text[i].data);
	free(text);
	return rc;
}
