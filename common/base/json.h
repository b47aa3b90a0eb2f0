/* json.h - typed, range-checked reads of untrusted JSON, over jansson.
 *
 * A duplicate key or a real beyond a double makes the whole text invalid. 3.0 and 1e3 are reals, not integers. An error
 * names the file ("where"), the field, and the expected and found values.
 * Thread: any. Owner: returned strings and objects are borrowed from the parent; NULL unless OD_OK. Strings may contain
 * NULs: use json_string_length. */
#ifndef OD_BASE_JSON_H
#define OD_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* json_loadb of jansson; *why has no text if there was no memory, which jansson tells from a wrong text only
 * sometimes. */
json_t *od_json_loadb(const char *text, size_t len, size_t flags, json_error_t *why);
/* Like od_json_loadb, but jansson has no integers beyond 63 bits: here they become reals, as in JavaScript.
 * tokenizer_config.json often has one (10^30 rounded to a double, as model_max_length); one beyond doubles becomes
 * 1e308. */
json_t *od_json_decode(const char *text, size_t len, size_t flags, json_error_t *why);
/* The digits of such an integer, with its sign, as long as v lives; NULL: v is none. json_copy keeps them,
 * json_deep_copy does not, and json_dumps writes the real. */
const char *od_json_digits(const json_t *v);
/* json_deep_copy of jansson that keeps these digits: a new reference, NULL without memory. Reals are shared. */
json_t *od_json_copy(const json_t *v);
/* Says why od_json_decode gave nothing, and returns that code: OD_ERR_NOMEM when *why has no text, for then there was
 * no memory. */
OD_MUST_CHECK int od_json_refuse(const char *text, size_t len, const json_error_t *why, const char *where,
				 struct od_err *err);

/* *out is a new reference (json_decref it), NULL unless OD_OK. The root must be an object. od_json_load takes
 * what Python's json writes: Infinity, -Infinity and NaN become strings, which no field of numbers takes. */
OD_MUST_CHECK int od_json_load(const char *path, size_t max_bytes, json_t **out, struct od_err *err);
OD_MUST_CHECK int od_json_parse(const char *text, size_t len, const char *where, json_t **out, struct od_err *err);

/* A required field. */
OD_MUST_CHECK int od_json_u64(const json_t *obj, const char *key, uint64_t min, uint64_t max, uint64_t *out,
			      const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_u32(const json_t *obj, const char *key, uint32_t min, uint32_t max, uint32_t *out,
			      const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_f64(const json_t *obj, const char *key, double min, double max, double *out,
			      const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_str(const json_t *obj, const char *key, const char **out, const char *where,
			      struct od_err *err);
OD_MUST_CHECK int od_json_obj(const json_t *obj, const char *key, json_t **out, const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_arr(const json_t *obj, const char *key, json_t **out, const char *where, struct od_err *err);

/* An optional field: *out is fallback when it is missing or null. A wrong type is still an error. */
OD_MUST_CHECK int od_json_bool_or(const json_t *obj, const char *key, bool fallback, bool *out, const char *where,
				  struct od_err *err);
OD_MUST_CHECK int od_json_u32_or(const json_t *obj, const char *key, uint32_t min, uint32_t max, uint32_t fallback,
				 uint32_t *out, const char *where, struct od_err *err);
OD_MUST_CHECK int od_json_f64_or(const json_t *obj, const char *key, double min, double max, double fallback,
				 double *out, const char *where, struct od_err *err);

/* True when the field exists and is not null. */
bool od_json_has(const json_t *obj, const char *key);

/* Keys of any text, [len] bytes of UTF-8. jansson before 2.14 (Ubuntu 22.04 has 2.13) ends keys at a NUL: there a key
 * with one inside is never found, and cannot be set. setn takes the reference to value, whatever it returns. */
json_t *od_json_getn(const json_t *obj, const char *key, size_t len);
OD_MUST_CHECK bool od_json_setn(json_t *obj, const char *key, size_t len, json_t *value);
size_t od_json_key_len(void *iter); /* iter is jansson's json_object_iter */

#endif
