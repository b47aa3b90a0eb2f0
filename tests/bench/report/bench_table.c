#include "tests/bench/report/bench_table.h"

#include "common/base/args.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JSON_DIGITS 9 /* more than any measurement carries, and no 0.30000000000000004 */
#define CELL_BYTES 256 /* longer text is cut in the table, not in JSON */

struct od_table {
	const char *title;
	const struct od_column *columns;
	size_t n_columns, n_rows;
	bool hidden; /* in text: no cells, no lines */
	char **cell; /* [n_rows][n_columns] */
	bool is_text[OD_TABLE_COLUMNS]; /* text to the left, figures to the right */
	json_t *json; /* borrowed from the report's object */
	struct od_report *report;
};

struct item {
	const char *label, *unit; /* a fact's */
	char *value;
	struct od_table *table; /* NULL: a fact */
};

struct od_report {
	const char *title;
	json_t *json;
	struct item *item;
	size_t n_items;
	bool failed; /* something is missing for want of memory */
	struct od_table lost; /* callers write into it when there was no memory for a table */
};

static bool shows(struct od_cell c)
{
	return c.kind == OD_CELL_REAL ? isfinite(c.real) : c.kind != OD_CELL_NONE && (c.kind != OD_CELL_TEXT || c.text);
}

static char *cell_text(struct od_cell c, int decimals)
{
	char buf[CELL_BYTES] = "-";

	if (shows(c)) {
		switch (c.kind) {
		case OD_CELL_TEXT: snprintf(buf, sizeof(buf), "%s", c.text); break;
		case OD_CELL_INT: snprintf(buf, sizeof(buf), "%lld", (long long)c.i); break;
		case OD_CELL_BYTES: od_format_bytes((uint64_t)c.i, buf, sizeof(buf)); break;
		case OD_CELL_REAL: snprintf(buf, sizeof(buf), "%.*f", decimals, c.real); break;
		case OD_CELL_NONE: break;
		}
	}
	return strdup(buf);
}

/* JSON is UTF-8 and a path may be anything: better a ? in a name than no report. */
static json_t *text_json(const char *text)
{
	json_t *j = json_string(text);
	char *ascii;

	if (j != NULL || (ascii = strdup(text)) == NULL)
		return j;
	for (char *c = ascii; *c != '\0'; c++) {
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	}
	j = json_string(ascii);
	free(ascii);
	return j;
}

static json_t *cell_json(struct od_cell c)
{
	if (shows(c)) {
		switch (c.kind) {
		case OD_CELL_TEXT: return text_json(c.text);
		case OD_CELL_INT:
		case OD_CELL_BYTES: return json_integer(c.i);
		case OD_CELL_REAL: return json_real(c.real);
		case OD_CELL_NONE: break;
		}
	}
	return json_null();
}

int od_report_new(struct od_report **out, const char *title, struct od_err *err)
{
	struct od_report *r = calloc(1, sizeof(*r));

	*out = NULL;
	if (r == NULL || (r->json = json_object()) == NULL) {
		free(r);
		return od_fail(err, OD_ERR_NOMEM, "report %s", title);
	}
	r->title = title;
	r->lost.report = r;
	*out = r;
	return OD_OK;
}

static void free_table(struct od_table *t)
{
	if (t == NULL)
		return;
	for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
		free(t->cell[i]);
	free(t->cell);
	free(t);
}

void od_report_free(struct od_report *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->n_items; i++) {
		free(r->item[i].value);
		free_table(r->item[i].table);
	}
	free(r->item);
	json_decref(r->json);
	free(r);
}

static bool append(struct od_report *r, struct item it)
{
	struct item *grown = reallocarray(r->item, r->n_items + 1, sizeof(*grown));

	if (grown == NULL)
		return false;
	r->item = grown;
	r->item[r->n_items++] = it;
	return true;
}

void od_report_fact(struct od_report *r, const char *key, const char *label, struct od_cell value, int decimals,
		    const char *unit)
{
	struct item it = { .label = label, .unit = unit, .value = cell_text(value, decimals) };

	if (it.value == NULL || !append(r, it)) {
		free(it.value);
		r->failed = true;
		return;
	}
	if (json_object_set_new(r->json, key, cell_json(value)) != 0)
		r->failed = true;
}

struct od_table *od_report_table(struct od_report *r, const char *key, const char *title,
				 const struct od_column *columns, size_t n_columns)
{
	struct od_table *t = calloc(1, sizeof(*t));

	if (n_columns == 0 || n_columns > OD_TABLE_COLUMNS)
		abort(); /* tables are written in the source */
	if (t == NULL || !append(r, (struct item){ .table = t })) {
		free(t);
		r->failed = true;
		return &r->lost;
	}
	*t = (struct od_table){ .title = title, .columns = columns, .n_columns = n_columns, .report = r };
	t->json = json_array();
	if (json_object_set_new(r->json, key, t->json) != 0) {
		t->json = NULL;
		r->failed = true;
	}
	return t;
}

static bool row_json(struct od_table *t, const struct od_cell *cells)
{
	json_t *row = json_object();

	for (size_t c = 0; c < t->n_columns; c++) {
		if (json_object_set_new(row, t->columns[c].key, cell_json(cells[c])) != 0) {
			json_decref(row);
			return false;
		}
	}
	return json_array_append_new(t->json, row) == 0;
}

struct od_table *od_report_detail(struct od_report *r, const char *key, const struct od_column *columns,
				  size_t n_columns)
{
	struct od_table *t = od_report_table(r, key, NULL, columns, n_columns);

	t->hidden = true;
	return t;
}

static bool row_text(struct od_table *t, const struct od_cell *cells)
{
	char **grown = reallocarray(t->cell, (t->n_rows + 1) * t->n_columns, sizeof(*grown)), **row;
	bool ok = true;

	if (grown == NULL)
		return false;
	t->cell = grown;
	row = grown + t->n_rows * t->n_columns;
	for (size_t c = 0; c < t->n_columns; c++) {
		row[c] = cell_text(cells[c], t->columns[c].decimals);
		ok = ok && row[c] != NULL;
		if (cells[c].kind == OD_CELL_TEXT)
			t->is_text[c] = true;
	}
	t->n_rows++;
	return ok;
}

void od_table_row(struct od_table *t, const struct od_cell *cells)
{
	if (t == &t->report->lost)
		return;
	if ((!t->hidden && !row_text(t, cells)) || !row_json(t, cells))
		t->report->failed = true;
}

/* Columns on a terminal: UTF-8 continuation bytes take none. */
static size_t width_of(const char *s)
{
	size_t n = 0;

	for (; *s != '\0'; s++)
		n += ((unsigned char)*s & 0xc0u) != 0x80u;
	return n;
}

static void print_padded(FILE *f, const char *s, size_t width, bool left)
{
	int pad = (int)(width - width_of(s));

	if (left)
		fprintf(f, "%s%*s", s, pad, "");
	else
		fprintf(f, "%*s%s", pad, "", s);
}

static void print_table(FILE *f, const struct od_table *t)
{
	size_t width[OD_TABLE_COLUMNS], all = 0;

	for (size_t c = 0; c < t->n_columns; c++) {
		width[c] = width_of(t->columns[c].title);
		for (size_t r = 0; r < t->n_rows; r++) {
			size_t w = width_of(t->cell[r * t->n_columns + c]);

			width[c] = w > width[c] ? w : width[c];
		}
		all += width[c] + 2;
	}
	fputc('\n', f);
	if (t->title != NULL)
		fprintf(f, "%s\n", t->title);
	for (size_t c = 0; c < t->n_columns; c++) {
		fputs("  ", f);
		print_padded(f, t->columns[c].title, width[c], t->is_text[c]);
	}
	fputs("\n  ", f);
	for (size_t i = 2; i < all; i++)
		fputc('-', f);
	fputc('\n', f);
	for (size_t r = 0; r < t->n_rows; r++) {
		for (size_t c = 0; c < t->n_columns; c++) {
			fputs("  ", f);
			print_padded(f, t->cell[r * t->n_columns + c], width[c], t->is_text[c]);
		}
		fputc('\n', f);
	}
}

/* Facts line up with the other facts up to the next table. */
static size_t label_width(const struct od_report *r, size_t from)
{
	size_t width = 0;

	for (size_t i = from; i < r->n_items && r->item[i].table == NULL; i++) {
		size_t w = r->item[i].label != NULL ? width_of(r->item[i].label) : 0;

		width = w > width ? w : width;
	}
	return width;
}

static void print_text(const struct od_report *r, FILE *f)
{
	size_t width = 0;

	fprintf(f, "%s\n", r->title);
	for (size_t i = 0; i < r->n_items; i++) {
		const struct item *it = &r->item[i];

		if (it->table != NULL) {
			if (!it->table->hidden)
				print_table(f, it->table);
			continue;
		}
		if (it->label == NULL)
			continue;
		if (i == 0 || r->item[i - 1].table != NULL) {
			width = label_width(r, i);
			if (i > 0)
				fputc('\n', f);
		}
		fputs("  ", f);
		print_padded(f, it->label, width, true);
		fprintf(f, "  %s%s%s\n", it->value, it->unit != NULL ? " " : "", it->unit != NULL ? it->unit : "");
	}
}

int od_report_print(const struct od_report *r, FILE *f, bool json, struct od_err *err)
{
	if (r->failed)
		return od_fail(err, OD_ERR_NOMEM, "report %s", r->title);
	if (!json) {
		print_text(r, f);
	} else {
		if (json_dumpf(r->json, f, JSON_INDENT(2) | JSON_REAL_PRECISION(JSON_DIGITS)) != 0)
			return od_fail(err, OD_ERR_IO, "writing the report of %s", r->title);
		fputc('\n', f);
	}
	if (ferror(f) != 0)
		return od_fail(err, OD_ERR_IO, "writing the report of %s", r->title);
	return OD_OK;
}
