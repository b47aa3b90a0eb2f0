#include "main-node/serve/http/json_fields.h"

#include "common/base/json.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAD_REQUEST 400
#define TOO_LARGE 413
#define UNAVAILABLE 503
#define MAX_INT_IN_REAL 9007199254740992.0 /* 2^53: ranges are doubles */
/* A value takes up to 120 bytes of memory, and two or three of text: without a limit a body takes 50 times its size. */
#define MAX_SIGNS (1u << 21)

const char *odm_json_describe(const json_t *v, char *buf, size_t size)
{
	const char *text = "nothing";

	if (v == NULL) {
		snprintf(buf, size, "%s", text);
		return buf;
	}
	switch (json_typeof(v)) {
	case JSON_OBJECT: text = json_object_size(v) > 0 ? "an object" : "an empty object"; break;
	case JSON_ARRAY: text = json_array_size(v) > 0 ? "an array" : "an empty array"; break;
	case JSON_STRING: text = "a string"; break;
	case JSON_TRUE: text = "true"; break;
	case JSON_FALSE: text = "false"; break;
	case JSON_NULL: text = "null"; break;
	case JSON_INTEGER: snprintf(buf, size, "%lld", (long long)json_integer_value(v)); return buf;
	case JSON_REAL: snprintf(buf, size, "%.9g", json_real_value(v)); return buf;
	}
	snprintf(buf, size, "%s", text);
	return buf;
}

static int refuse(const char *path, const json_t *v, const char *expected, struct odm_api_error *e)
{
	char found[64];

	return odm_api_fail(e, BAD_REQUEST, path, OD_ERR_FORMAT, "%s: expected %s, found %s", path, expected,
			    odm_json_describe(v, found, sizeof(found)));
}

static int read_int(const struct odm_field *f, const char *path, const json_t *v, int64_t *out, struct odm_api_error *e)
{
	/* Some clients write every number as a real: 16.0. */
	const double d = json_number_value(v);
	char expected[96];

	/* INT64_MAX as a double is one more than the greatest integer. */
	snprintf(expected, sizeof(expected), "an integer from %.0f to %lld", f->min,
		 f->max < 0x1p63 ? (long long)f->max : LLONG_MAX);
	if (!json_is_number(v) || d < f->min || d > f->max)
		return refuse(path, v, expected, e);
	if (json_is_real(v) && (d != floor(d) || fabs(d) > MAX_INT_IN_REAL))
		return refuse(path, v, expected, e);
	*out = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
	return OD_OK;
}

static int read_real(const struct odm_field *f, const char *path, const json_t *v, double *out, struct odm_api_error *e)
{
	const double d = json_number_value(v);
	char expected[96];

	snprintf(expected, sizeof(expected), "a number from %g to %g", f->min, f->max);
	if (!json_is_number(v) || !(d >= f->min && d <= f->max))
		return refuse(path, v, expected, e);
	*out = d;
	return OD_OK;
}

static int read_string(const char *path, const json_t *v, const char **out, struct odm_api_error *e)
{
	if (!json_is_string(v))
		return refuse(path, v, "a string", e);
	if (strlen(json_string_value(v)) != json_string_length(v))
		return odm_api_fail(e, BAD_REQUEST, path, OD_ERR_FORMAT,
				    "%s: expected a string without the character U+0000", path);
	*out = json_string_value(v);
	return OD_OK;
}

static int add_string(const char *path, const json_t *v, struct odm_strings *out, struct odm_api_error *e)
{
	int rc = read_string(path, v, &out->value[out->n], e);

	if (rc == OD_OK && out->value[out->n][0] == '\0')
		return odm_api_fail(e, BAD_REQUEST, path, OD_ERR_FORMAT, "%s: expected a string that is not empty",
				    path);
	out->n += rc == OD_OK;
	return rc;
}

static int read_strings(const struct odm_field *f, const char *path, const json_t *v, struct odm_strings *out,
			struct odm_api_error *e)
{
	const size_t most = f->max > 0 && f->max < ODM_STRINGS_MAX ? (size_t)f->max : ODM_STRINGS_MAX,
		     n = json_array_size(v);
	char each[80];
	int rc = OD_OK;

	out->n = 0;
	if (json_is_string(v))
		return add_string(path, v, out, e);
	if (!json_is_array(v))
		return refuse(path, v, "a string or an array of strings", e);
	if (n > most)
		return odm_api_fail(e, BAD_REQUEST, path, OD_ERR_RANGE, "%s: expected at most %zu strings, found %zu",
				    path, most, n);
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		snprintf(each, sizeof(each), "%s[%zu]", path, i);
		rc = add_string(each, json_array_get(v, i), out, e);
	}
	return rc;
}

static int read_table(const struct odm_field *table, const char *within, const json_t *object, void *target,
		      struct odm_api_error *e);

static int read_field(const struct odm_field *f, const char *path, const json_t *v, void *target,
		      struct odm_api_error *e)
{
	void *out = (char *)target + f->offset;

	switch (f->kind) {
	case ODM_FIELD_BOOL:
		if (!json_is_boolean(v))
			return refuse(path, v, "true or false", e);
		*(bool *)out = json_is_true(v);
		return OD_OK;
	case ODM_FIELD_INT: return read_int(f, path, v, out, e);
	case ODM_FIELD_REAL: return read_real(f, path, v, out, e);
	case ODM_FIELD_STRING: return read_string(path, v, out, e);
	case ODM_FIELD_STRINGS: return read_strings(f, path, v, out, e);
	case ODM_FIELD_JSON: *(const json_t **)out = v; return OD_OK;
	case ODM_FIELD_OBJECT: return read_table(f->inner, path, v, target, e);
	}
	return OD_OK;
}

/* within: path of the object; "": the request itself. */
static int read_table(const struct odm_field *table, const char *within, const json_t *object, void *target,
		      struct odm_api_error *e)
{
	int rc = OD_OK;

	if (!json_is_object(object))
		return refuse(within, object, "an object", e);
	for (const struct odm_field *f = table; rc == OD_OK && f->name != NULL; f++) {
		const json_t *v = json_object_get(object, f->name);
		char path[80];

		snprintf(path, sizeof(path), "%s%s%s", within, within[0] != '\0' ? "." : "", f->name);
		if (v != NULL && !json_is_null(v))
			rc = read_field(f, path, v, target, e);
	}
	return rc;
}

int odm_fields_read(const struct odm_field *table, const json_t *object, void *target, struct odm_api_error *e)
{
	return read_table(table, "", object, target, e);
}

int odm_field_check_kept(const char *path, const json_t *v, struct odm_api_error *e)
{
	const size_t bytes = v != NULL ? json_dumpb(v, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0;

	if (bytes <= ODM_MAX_KEPT_BYTES)
		return OD_OK;
	return odm_api_fail(e, BAD_REQUEST, path, OD_ERR_RANGE, "%s: expected at most %u bytes of JSON, found %zu",
			    path, ODM_MAX_KEPT_BYTES, bytes);
}

/* Returns whether there are more commas and brackets outside strings than a request needs: so many limit the elements
 * of all arrays and objects. */
static bool has_too_many_values(const char *body, size_t len)
{
	bool string = false;
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (string && body[i] == '\\')
			i++;
		else if (body[i] == '"')
			string = !string;
		else if (!string)
			n += body[i] == ',' || body[i] == '[' || body[i] == '{';
	}
	return n > MAX_SIGNS;
}

/* jansson reads past the end of a string's buffer when it cannot grow it, so there must be memory for the longest
 * string, twice. */
static bool has_memory(size_t len)
{
	void *volatile most = len < SIZE_MAX / 4 ? malloc(4 * len + 1) : NULL;
	const bool has = most != NULL;

	free(most);
	return has;
}

int odm_fields_parse(const char *body, size_t len, json_t **out, struct odm_api_error *e)
{
	json_error_t why = { 0 };

	*out = NULL;
	if (has_too_many_values(body, len))
		return odm_api_fail(e, TOO_LARGE, NULL, OD_ERR_RANGE,
				    "the body: expected at most %u commas and opening brackets", MAX_SIGNS);
	if (!has_memory(len))
		return odm_api_fail(e, UNAVAILABLE, NULL, OD_ERR_NOMEM, "no memory for the body");
	*out = od_json_decode(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (*out == NULL && why.text[0] == '\0') /* jansson says what is wrong, or memory is out */
		return odm_api_fail(e, UNAVAILABLE, NULL, OD_ERR_NOMEM, "no memory for the body");
	if (*out == NULL)
		return odm_api_fail(e, BAD_REQUEST, NULL, OD_ERR_FORMAT,
				    "the body is not valid JSON: line %d, column %d: %s", why.line, why.column,
				    why.text);
	if (!json_is_object(*out)) {
		char found[64];

		odm_api_fail(e, BAD_REQUEST, NULL, OD_ERR_FORMAT, "the body: expected a JSON object, found %s",
			     odm_json_describe(*out, found, sizeof(found)));
		json_decref(*out);
		*out = NULL;
		return OD_ERR_FORMAT;
	}
	return OD_OK;
}
