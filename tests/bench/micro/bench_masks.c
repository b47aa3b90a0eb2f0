/* bench_masks.c - od-bench masks: what constrained output costs a token, with a real vocabulary and no model.
 *
 * Each line of the file is {"schema": ..., "texts": [...]}. The texts are tokenised and followed token by token, as a
 * model would write them; CPU time is that of this thread. */
#include "common/base/file.h"
#include "common/grammar/constraint.h"
#include "common/grammar/json_schema.h"
#include "tests/bench/bench.h"
#include "tests/bench/report/bench_stats.h"
#include "tests/bench/report/bench_table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_FILE_BYTES ((size_t)64 << 20)

struct samples {
	double *us; /* [n] */
	size_t n, cap;
};

struct mask_bench {
	struct od_tokenizer *t;
	struct od_vocab *v;
	struct samples first, mask; /* until the first mask of a schema; each mask */
	size_t forced, tokens; /* tokens whose bytes were all forced; all */
};

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int add(struct samples *s, double us, struct od_err *err)
{
	if (s->n == s->cap) {
		const size_t cap = s->cap == 0 ? 1024 : 2 * s->cap;
		double *v = realloc(s->us, cap * sizeof(*v));

		if (v == NULL)
			return od_fail(err, OD_ERR_NOMEM, "%zu samples", cap);
		s->us = v;
		s->cap = cap;
	}
	s->us[s->n++] = us;
	return OD_OK;
}

static int follow(struct mask_bench *b, struct od_constraint *c, const json_t *text, struct od_err *err)
{
	uint32_t state = od_constraint_start(c);
	int32_t *ids;
	size_t n;
	int rc = od_tokenizer_encode(b->t, json_string_value(text), json_string_length(text), 0, &ids, &n, err);

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		const double begin = now_us();
		const uint64_t *mask;
		char forced[64];
		const char *bytes;

		rc = od_constraint_mask(c, state, &mask, err);
		if (rc == OD_OK)
			rc = add(&b->mask, now_us() - begin, err);
		b->forced +=
			od_constraint_forced(c, state, forced, sizeof(forced)) >= od_vocab_bytes(b->v, ids[i], &bytes);
		b->tokens++;
		state = od_constraint_step(c, state, ids[i]);
		if (rc == OD_OK && state == OD_STATE_DEAD)
			rc = od_fail(err, OD_ERR_MISMATCH, "its schema does not allow the text %.200s",
				     json_string_value(text));
	}
	free(ids);
	return rc;
}

static int run_line(struct mask_bench *b, const char *line, size_t len, struct od_err *err)
{
	json_t *o = json_loadb(line, len, 0, NULL), *text;
	const double begin = now_us();
	struct od_constraint *c = NULL;
	struct od_grammar *g;
	size_t i;
	int rc = o != NULL ? od_grammar_new(&g, err) : od_fail(err, OD_ERR_FORMAT, "a line that is no JSON");

	if (rc == OD_OK) {
		rc = od_json_schema_compile(g, json_object_get(o, "schema"), err);
		if (rc == OD_OK)
			rc = od_constraint_new(&c, g, b->v, err);
		else
			od_grammar_free(g);
	}
	if (rc == OD_OK)
		rc = add(&b->first, now_us() - begin, err);
	if (rc == OD_OK)
		json_array_foreach(json_object_get(o, "texts"), i, text) rc =
			rc == OD_OK ? follow(b, c, text, err) : rc;
	od_constraint_unref(c);
	json_decref(o);
	return rc;
}

static void add_row(struct od_table *t, const char *what, struct samples *s)
{
	struct od_stats st;

	od_stats_of(s->us, s->n, &st); /* it sorts them */
	od_table_row(t, (struct od_cell[]){ OD_TEXT(what), OD_INT(s->n), OD_REAL(st.median),
					    OD_REAL(s->us[s->n * 99 / 100]), OD_REAL(st.max) });
}

static int report(struct mask_bench *b, bool json, struct od_err *err)
{
	static const struct od_column columns[] = { { "what", "what", 0 },
						    { "n", "n", 0 },
						    { "us_median", "median us", 1 },
						    { "us_p99", "99% us", 1 },
						    { "us_max", "slowest us", 1 } };
	struct od_table *table;
	struct od_report *r;
	int rc = od_report_new(&r, "Masks", err);

	if (rc != OD_OK)
		return rc;
	od_report_fact(r, "vocabulary", "tokens of the vocabulary", OD_INT(b->v->n_tokens), 0, NULL);
	od_report_fact(r, "forced_percent", "tokens that the schema forces",
		       OD_REAL(100.0 * (double)b->forced / (double)b->tokens), 1, "%");
	table = od_report_table(r, "masks", NULL, columns, sizeof(columns) / sizeof(columns[0]));
	add_row(table, "schema to first mask", &b->first);
	add_row(table, "mask", &b->mask);
	rc = od_report_print(r, stdout, json, err);
	od_report_free(r);
	return rc;
}

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int run(struct mask_bench *b, const char *tokenizer, const char *path, bool json, struct od_err *err)
{
	struct od_controls *controls = NULL;
	char *data = NULL;
	size_t len = 0;
	int rc = od_tokenizer_load(&b->t, tokenizer, err);

	if (rc == OD_OK)
		rc = od_controls_new(&controls, b->t, err);
	if (rc == OD_OK)
		rc = od_vocab_new(&b->v, b->t, controls, od_tokenizer_vocab(b->t), err);
	if (rc == OD_OK)
		rc = od_file_read(path, MAX_FILE_BYTES, &data, &len, err);
	for (const char *at = data, *end; rc == OD_OK && at < data + len; at = end + 1) {
		end = memchr(at, '\n', (size_t)(data + len - at));
		end = end != NULL ? end : data + len;
		if (end > at)
			rc = run_line(b, at, (size_t)(end - at), err);
	}
	if (rc == OD_OK && (b->mask.n == 0 || b->first.n == 0))
		rc = od_fail(err, OD_ERR_FORMAT, "%s has no schemas with texts", path);
	if (rc == OD_OK) {
		qsort(b->mask.us, b->mask.n, sizeof(double), by_size);
		qsort(b->first.us, b->first.n, sizeof(double), by_size);
		rc = report(b, json, err);
	}
	free(data);
	od_controls_free(controls);
	return rc;
}

int od_bench_masks(int argc, char **argv, struct od_err *err)
{
	const char *tokenizer = NULL, *path = NULL;
	bool json = false, help = false;
	struct mask_bench b = { 0 };
	const struct od_arg table[] = {
		{ "tokenizer", OD_ARG_STRING, &tokenizer, "FILE", "tokenizer.json, tokenizer.model or tiktoken.model",
		  0, 0, NULL },
		{ "schemas", OD_ARG_STRING, &path, "FILE", "lines of {\"schema\": ..., \"texts\": [...]}", 0, 0, NULL },
		{ "json", OD_ARG_FLAG, &json, NULL, "the figures as JSON", 0, 0, NULL },
		{ "help", OD_ARG_FLAG, &help, NULL, "this text", 0, 0, NULL },
	};
	int rc = od_bench_options(table, sizeof(table) / sizeof(table[0]), argc, argv, &help,
				  "masks --tokenizer FILE --schemas FILE",
				  "CPU time of the masks of schemas, with this vocabulary, along texts.", err);

	if (rc != OD_OK || help)
		return rc;
	if (tokenizer == NULL || path == NULL)
		return od_fail(err, OD_ERR_ARG, "expected --tokenizer and --schemas");
	rc = run(&b, tokenizer, path, json, err);
	od_vocab_free(b.v);
	od_tokenizer_free(b.t);
	free(b.first.us);
	free(b.mask.us);
	return rc;
}
