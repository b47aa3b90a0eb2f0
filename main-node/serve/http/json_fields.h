/* json_fields.h - reads the fields of a request's JSON object by a table: name, kind, range, and where the value goes.
 *
 * A field that is missing or null leaves the target unchanged. Fields that the table does not name are ignored:
 * client_fields.h has refused those that would change the answer. An error names
 * the field by its path ("stream_options.include_usage", "stop[2]") with what was expected and found.
 * Thread: any. Owner: strings and JSON values are borrowed from the object. */
#ifndef ODM_JSON_FIELDS_H
#define ODM_JSON_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "main-node/serve/http/api_error.h"

enum odm_field_kind {
	ODM_FIELD_BOOL, /* bool */
	ODM_FIELD_INT, /* int64_t, min..max */
	ODM_FIELD_REAL, /* double, min..max; an integer is a number too */
	ODM_FIELD_STRING, /* const char *; without NULs */
	/* struct odm_strings: a string, or an array of at most max strings; without NULs, none empty */
	ODM_FIELD_STRINGS,
	ODM_FIELD_JSON, /* const json_t *: any value; the caller looks at it */
	ODM_FIELD_OBJECT, /* the fields of `inner`, into the same target */
};

#define ODM_STRINGS_MAX 64
struct odm_strings {
	const char *value[ODM_STRINGS_MAX];
	size_t n;
};

struct odm_field {
	const char *name;
	enum odm_field_kind kind;
	size_t offset; /* offset of the value in the target */
	double min, max;
	const struct odm_field *inner; /* ODM_FIELD_OBJECT: ends with a NULL name */
};

/* table ends with a NULL name. object: any JSON value; refused if it is not an object. */
OD_MUST_CHECK int odm_fields_read(const struct odm_field *table, const json_t *object, void *target,
				  struct odm_api_error *e);

/* Parses a request's body: one JSON object, UTF-8, no key twice, nested less deep than jansson's limit, of at most
 * about two million values. Integers of more than 63 bits become reals. *out: a new reference, NULL unless OD_OK. */
OD_MUST_CHECK int odm_fields_parse(const char *body, size_t len, json_t **out, struct odm_api_error *e);

/* Refuses a value whose text has more than ODM_MAX_KEPT_BYTES: for fields that stay in memory, parsed, while a request
 * waits. v: NULL ok. */
#define ODM_MAX_KEPT_BYTES (1u << 20)
OD_MUST_CHECK int odm_field_check_kept(const char *path, const json_t *v, struct odm_api_error *e);

/* Describes a value for a message, "a string", "an integer (7)", in buf; returns buf. */
const char *odm_json_describe(const json_t *v, char *buf, size_t size);

#endif
