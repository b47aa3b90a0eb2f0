/* bench_table.h - a benchmark's report: facts and tables, as aligned text or as JSON with the same figures.
 *
 * Facts become fields of one JSON object, a table an array of objects. Text shows rounded figures with units,
 * JSON full ones; units belong into JSON keys ("read_gbps_median"). Text cells are copied; keys, labels, units
 * and columns must outlive the report. od_report_print also reports an earlier lack of memory, so that the calls in
 * between need no check.
 * Thread: one at a time. Owner: the caller owns the report, the report owns its tables. */
#ifndef OD_BENCH_TABLE_H
#define OD_BENCH_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

struct od_report;
struct od_table;

enum od_cell_kind { OD_CELL_NONE, OD_CELL_TEXT, OD_CELL_INT, OD_CELL_BYTES, OD_CELL_REAL };
struct od_cell {
	enum od_cell_kind kind;
	union {
		const char *text;
		int64_t i; /* OD_CELL_INT, OD_CELL_BYTES */
		double real; /* NaN and infinities show as OD_CELL_NONE */
	};
};
#define OD_TEXT(s) ((struct od_cell){ .kind = OD_CELL_TEXT, .text = (s) })
#define OD_INT(n) ((struct od_cell){ .kind = OD_CELL_INT, .i = (int64_t)(n) })
#define OD_BYTES(n) ((struct od_cell){ .kind = OD_CELL_BYTES, .i = (int64_t)(n) }) /* text "1.5 MiB", JSON 1572864 */
#define OD_REAL(x) ((struct od_cell){ .kind = OD_CELL_REAL, .real = (x) })
#define OD_NONE ((struct od_cell){ .kind = OD_CELL_NONE }) /* "-" in text, null in JSON */

struct od_column {
	const char *key; /* in JSON */
	const char *title; /* over the column */
	int decimals; /* decimals of OD_CELL_REAL in text */
};

OD_MUST_CHECK int od_report_new(struct od_report **out, const char *title, struct od_err *err);
void od_report_free(struct od_report *r); /* NULL ok */

/* One line "label  value unit" and one JSON field. unit may be NULL; label NULL: only the JSON field. */
void od_report_fact(struct od_report *r, const char *key, const char *label, struct od_cell value, int decimals,
		    const char *unit);

/* Appends a table; title may be NULL. Never returns NULL; columns: [n_columns], at most OD_TABLE_COLUMNS. */
#define OD_TABLE_COLUMNS 20
struct od_table *od_report_table(struct od_report *r, const char *key, const char *title,
				 const struct od_column *columns, size_t n_columns);

/* od_report_table for JSON only: details that the text shows as a summary in another table. */
struct od_table *od_report_detail(struct od_report *r, const char *key, const struct od_column *columns,
				  size_t n_columns);

/* cells: [n_columns] */
void od_table_row(struct od_table *t, const struct od_cell *cells);

/* Prints everything in the order of the calls. OD_ERR_NOMEM: an earlier call ran out of memory. */
OD_MUST_CHECK int od_report_print(const struct od_report *r, FILE *f, bool json, struct od_err *err);

#endif
