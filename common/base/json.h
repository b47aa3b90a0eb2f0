/* json.h - typed, range-checked reads of JSON that somebody else wrote, over jansson.
 *
 * A key that stands twice, an integer beyond 63 bits and a real beyond a double make the whole text invalid. An integer
 * must be written as one: 3.0 and 1e3 are reals. Each getter names the file ("where") and the field in its reason, with
 * what was expected and found.
 * Thread: any. Owner: returned strings and objects are borrowed from the parent; NULL unless OD_OK. Strings may contain
 * NULs: json_string_length tells. */
#ifndef OD_BASE_JSON_H
#define OD_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* *out is a new reference (json_decref it), NULL unless OD_OK. The root must be an object. */
OD_MUST_CHECK int od_json_load(const char *path, size_t max_bytes, json_t **out, struct od_err *err);
OD_MUST_CHECK int od_json_parse(const char *text, size_t len, const char *where, json_t **out, struct od_err *err);

/* A field that must be there. */
OD_MUST_CHECK int od_json_u64(const json_t *obj, const char *key, uint64_t min, uint64_t max, uint64_t *out,
			      const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_u32(const json_t *obj, const char *key, uint32_t min, uint32_t max, uint32_t *out,
			      const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_f64(const json_t *obj, const char *key, double min, double max, double *out,
			      const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_str(const json_t *obj, const char *key, const char **out, const char *where,
			      struct od_err *err);
OD_MUST_CHECK int od_json_obj(const json_t *obj, const char *key, json_t **out, const char *where,
			      struct od_err *err);
OD_MUST_CHECK int od_json_arr(const json_t *obj, const char *key, json_t **out, const char *where,
			      struct od_err *err);

/* A field that may be missing or null: then *out is fallback. A wrong type is still an error. */
OD_MUST_CHECK int od_json_bool_or(const json_t *obj, const char *key, bool fallback, bool *out, const char *where,
				  struct od_err *err);
OD_MUST_CHECK int od_json_u32_or(const json_t *obj, const char *key, uint32_t min, uint32_t max, uint32_t fallback,
				 uint32_t *out, const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_f64_or(const json_t *obj, const char *key, double min, double max, double fallback,
				 double *out, const char *where, struct od_err *err);

/* True when the field exists and is not null. */
bool od_json_has(const json_t *obj, const char *key);

#endif
