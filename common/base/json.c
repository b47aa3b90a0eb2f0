#include "common/base/json.h"

#include "common/base/file.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* jansson calls a string that it has no memory for a wrong one, so its allocations are watched. */
static _Thread_local bool no_memory;

/* jansson has no integers beyond 63 bits. One becomes a real, behind which, in the same block, its digits stand as a
 * string; that is empty behind other reals. */
static size_t real_bytes; /* a real has these many, its string not counted */
static _Thread_local struct {
	const char *text;
	size_t len;
} digits; /* a real that is made now gets these */

static void *watched_malloc(size_t size)
{
	const size_t more = size == real_bytes ? digits.len + 1 : 0;
	char *p = malloc(size + more);

	no_memory = no_memory || p == NULL;
	if (p != NULL && more > 1)
		memcpy(p + size, digits.text, digits.len);
	if (p != NULL && more > 0)
		p[size + digits.len] = '\0';
	return p;
}

static void *measuring_malloc(size_t size)
{
	real_bytes = size;
	return malloc(size);
}

/* Before main(), because jansson's functions are those of the process. */
__attribute__((constructor)) static void watch_memory(void)
{
	json_set_alloc_funcs(measuring_malloc, free);
	json_decref(json_real(0));
	json_set_alloc_funcs(watched_malloc, free);
}

const char *od_json_digits(const json_t *v)
{
	const char *text = json_is_real(v) ? (const char *)v + real_bytes : "";

	return text[0] != '\0' ? text : NULL;
}

json_t *od_json_loadb(const char *text, size_t len, size_t flags, json_error_t *why)
{
	json_t *v;

	no_memory = false;
	v = json_loadb(text, len, flags, why);
	if (v == NULL && no_memory)
		*why = (json_error_t){ 0 };
	return v;
}

/* Bytes of the number that text [len] begins with and that Python's json writes though JSON has none; else 0. */
static size_t python_word(const char *text, size_t len)
{
	static const char *const words[] = { "Infinity", "-Infinity", "NaN" };

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		const size_t n = strlen(words[i]);

		if (len >= n && memcmp(text, words[i], n) == 0)
			return n;
	}
	return 0;
}

static const char *type_name(const json_t *v)
{
	if (v == NULL)
		return "nothing";
	switch (json_typeof(v)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "an array";
	case JSON_STRING:
		return python_word(json_string_value(v), json_string_length(v)) == json_string_length(v) ?
			       json_string_value(v) :
			       "a string";
	case JSON_INTEGER: return "an integer";
	case JSON_REAL: return fabs(json_real_value(v)) < 0x1p63 ? "a real number" : "a number beyond 63 bits";
	case JSON_TRUE:
	case JSON_FALSE: return "a boolean";
	case JSON_NULL: return "null";
	}
	return "something else";
}

static int wrong_type(const json_t *v, const char *key, const char *expected, const char *where, struct od_err *err)
{
	return od_fail(err, v == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT, "%s: field \"%s\": expected %s, found %s",
		       where, key, expected, type_name(v));
}

/* Bytes of the integer that text [len] begins with, if it has more than 63 bits; else 0. */
static size_t big_integer(const char *text, size_t len)
{
	char start[24];
	size_t n = text[0] == '-', kept;

	while (n < len && text[n] >= '0' && text[n] <= '9')
		n++;
	if (n < len && strchr(".eE", text[n]) != NULL)
		return 0;
	kept = n < sizeof(start) ? n : sizeof(start) - 1;
	memcpy(start, text, kept);
	start[kept] = '\0';
	errno = 0;
	(void)strtoll(start, NULL, 10);
	return errno == ERANGE ? n : 0;
}

/* A text that jansson does not take, on its way there: with big integers as reals and, if words says so, Python's words
 * as strings. */
struct feed {
	const char *text; /* [len], what is left */
	size_t len;
	bool words;
	bool string, escape, number; /* the byte before text was in one */
};

/* The character behind the number goes along: with it jansson knows the number, and makes the real before it asks for
 * more. So that is the only real made while its digits are set. */
static size_t feed_integer(struct feed *f, size_t len, char *piece)
{
	const size_t behind = len < f->len;
	const char *number = f->text, *end = ".0";
	size_t n = len;

	digits.text = f->text;
	digits.len = len;
	if (len > DBL_MAX_10_EXP) { /* perhaps more than a double can be */
		number = f->text[0] == '-' ? "-1" : "1";
		n = strlen(number);
		end = "e308";
	}
	memcpy(piece, number, n);
	memcpy(piece + n, end, strlen(end));
	n += strlen(end);
	memcpy(piece + n, f->text + len, behind);
	f->text += len + behind;
	f->len -= len + behind;
	return n + behind;
}

static size_t feed_word(struct feed *f, size_t len, char *piece)
{
	piece[0] = piece[len + 1] = '"';
	memcpy(piece + 1, f->text, len);
	f->text += len;
	f->len -= len;
	return len + 2;
}

/* For jansson, which gives room for 1024 bytes. */
static size_t feed(void *piece, size_t room, void *data)
{
	struct feed *f = data;
	size_t n = 0;

	if (f->len == 0) /* the number that ends here is not made yet */
		return 0;
	digits.len = 0;
	for (; n < f->len && n < room; n++) {
		const char c = f->text[n];
		const bool digit = (c >= '0' && c <= '9') || strchr("+-.eE", c) != NULL,
			   begins = !f->string && !f->number;
		const size_t word = begins && f->words ? python_word(f->text + n, f->len - n) : 0;
		const size_t big = begins && digit && word == 0 ? big_integer(f->text + n, f->len - n) : 0;

		if (n == 0 && word > 0)
			return feed_word(f, word, piece);
		if (n == 0 && big > 0)
			return feed_integer(f, big, piece);
		if (word > 0 || big > 0)
			break;
		if (c == '"' && !f->escape)
			f->string = !f->string;
		f->escape = f->string && c == '\\' && !f->escape;
		f->number = !f->string && digit;
	}
	memcpy(piece, f->text, n);
	f->text += n;
	f->len -= n;
	return n;
}

static json_t *parse_again(const char *text, size_t len, size_t flags, bool words, json_error_t *why)
{
	struct feed f = { .text = text, .len = len, .words = words };
	json_t *v;

	no_memory = false;
	v = json_load_callback(feed, &f, flags, why);
	digits.len = 0;
	if (v == NULL && no_memory)
		*why = (json_error_t){ 0 };
	return v;
}

static json_t *decode(const char *text, size_t len, size_t flags, bool words, json_error_t *why)
{
	json_t *v = od_json_loadb(text, len, flags, why);

	if (v != NULL || why->text[0] == '\0' ||
	    (json_error_code(why) != json_error_numeric_overflow &&
	     !(words && json_error_code(why) == json_error_invalid_syntax)))
		return v;
	return parse_again(text, len, flags, words, why);
}

json_t *od_json_decode(const char *text, size_t len, size_t flags, json_error_t *why)
{
	return decode(text, len, flags, false, why);
}

int od_json_refuse(const char *text, size_t len, const json_error_t *why, const char *where, struct od_err *err)
{
	if (why->text[0] == '\0')
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory to read it (%zu bytes of JSON)", where, len);
	if (len == 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: not valid JSON: it is empty", where);
	if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: not valid JSON: it begins with a byte order mark; save it as UTF-8 without one",
			       where);
	if (len >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
		return od_fail(err, OD_ERR_FORMAT, "%s: not valid JSON: it is UTF-16; save it as UTF-8", where);
	if (json_error_code(why) == json_error_stack_overflow)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: line %d, column %d: arrays and objects are nested too deeply: %s", where, why->line,
			       why->column, why->text);
	return od_fail(err, OD_ERR_FORMAT, "%s: not valid JSON: line %d, column %d: %s", where, why->line, why->column,
		       why->text);
}

static int parse(const char *text, size_t len, const char *where, bool words, json_t **out, struct od_err *err)
{
	json_error_t why;

	*out = decode(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, words, &why);
	if (*out == NULL)
		return od_json_refuse(text, len, &why, where, err);
	if (!json_is_object(*out)) {
		json_decref(*out);
		*out = NULL;
		return od_fail(err, OD_ERR_FORMAT, "%s: expected a JSON object", where);
	}
	return OD_OK;
}

int od_json_parse(const char *text, size_t len, const char *where, json_t **out, struct od_err *err)
{
	return parse(text, len, where, false, out, err);
}

int od_json_load(const char *path, size_t max_bytes, json_t **out, struct od_err *err)
{
	char *text;
	size_t len;
	int rc;

	*out = NULL;
	rc = od_file_read_text(path, max_bytes, &text, &len, err);
	if (rc != OD_OK)
		return rc;
	rc = parse(text, len, path, true, out, err);
	free(text);
	return rc;
}

bool od_json_has(const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);

	return v != NULL && !json_is_null(v);
}

json_t *od_json_copy(const json_t *v)
{
	json_t *copy, *object = (json_t *)(uintptr_t)v;
	bool good;

	if (json_is_real(v))
		return json_incref(object);
	if (!json_is_array(v) && !json_is_object(v))
		return json_deep_copy(v);
	copy = json_is_array(v) ? json_array() : json_object();
	good = copy != NULL;
	for (size_t i = 0; good && i < json_array_size(v); i++)
		good = json_array_append_new(copy, od_json_copy(json_array_get(v, i))) == 0;
	for (void *it = json_object_iter(object); good && it != NULL; it = json_object_iter_next(object, it))
		good = od_json_setn(copy, json_object_iter_key(it), od_json_key_len(it),
				    od_json_copy(json_object_iter_value(it)));
	if (good)
		return copy;
	json_decref(copy);
	return NULL;
}

int od_json_u64(const json_t *obj, const char *key, uint64_t min, uint64_t max, uint64_t *out, const char *where,
		struct od_err *err)
{
	const json_t *v = json_object_get(obj, key);
	json_int_t i;

	*out = 0;
	if (!json_is_integer(v))
		return wrong_type(v, key, "an integer", where, err);
	i = json_integer_value(v);
	if (i < 0 || (uint64_t)i < min || (uint64_t)i > max)
		return od_fail(err, OD_ERR_RANGE, "%s: field \"%s\": expected %llu to %llu, found %lld", where, key,
			       (unsigned long long)min, (unsigned long long)max, (long long)i);
	*out = (uint64_t)i;
	return OD_OK;
}

int od_json_u32(const json_t *obj, const char *key, uint32_t min, uint32_t max, uint32_t *out, const char *where,
		struct od_err *err)
{
	uint64_t v;
	int rc = od_json_u64(obj, key, min, max, &v, where, err);

	*out = (uint32_t)v;
	return rc;
}

int od_json_f64(const json_t *obj, const char *key, double min, double max, double *out, const char *where,
		struct od_err *err)
{
	const json_t *v = json_object_get(obj, key);
	double d;

	*out = 0;
	if (!json_is_number(v))
		return wrong_type(v, key, "a number", where, err);
	d = json_number_value(v);
	if (!(d >= min && d <= max)) /* NaN fails too */
		return od_fail(err, OD_ERR_RANGE, "%s: field \"%s\": expected %g to %g, found %g", where, key, min, max,
			       d);
	*out = d;
	return OD_OK;
}

int od_json_str(const json_t *obj, const char *key, const char **out, const char *where, struct od_err *err)
{
	const json_t *v = json_object_get(obj, key);

	*out = json_string_value(v);
	return *out != NULL ? OD_OK : wrong_type(v, key, "a string", where, err);
}

int od_json_obj(const json_t *obj, const char *key, json_t **out, const char *where, struct od_err *err)
{
	json_t *v = json_object_get(obj, key);

	*out = json_is_object(v) ? v : NULL;
	return *out != NULL ? OD_OK : wrong_type(v, key, "an object", where, err);
}

int od_json_arr(const json_t *obj, const char *key, json_t **out, const char *where, struct od_err *err)
{
	json_t *v = json_object_get(obj, key);

	*out = json_is_array(v) ? v : NULL;
	return *out != NULL ? OD_OK : wrong_type(v, key, "an array", where, err);
}

int od_json_bool_or(const json_t *obj, const char *key, bool fallback, bool *out, const char *where, struct od_err *err)
{
	const json_t *v = json_object_get(obj, key);

	*out = fallback;
	if (v == NULL || json_is_null(v))
		return OD_OK;
	if (!json_is_boolean(v))
		return wrong_type(v, key, "true or false", where, err);
	*out = json_is_true(v);
	return OD_OK;
}

int od_json_u32_or(const json_t *obj, const char *key, uint32_t min, uint32_t max, uint32_t fallback, uint32_t *out,
		   const char *where, struct od_err *err)
{
	*out = fallback;
	return od_json_has(obj, key) ? od_json_u32(obj, key, min, max, out, where, err) : OD_OK;
}

int od_json_f64_or(const json_t *obj, const char *key, double min, double max, double fallback, double *out,
		   const char *where, struct od_err *err)
{
	*out = fallback;
	return od_json_has(obj, key) ? od_json_f64(obj, key, min, max, out, where, err) : OD_OK;
}

#if JANSSON_VERSION_HEX >= 0x020e00
json_t *od_json_getn(const json_t *obj, const char *key, size_t len)
{
	return json_object_getn(obj, key, len);
}

bool od_json_setn(json_t *obj, const char *key, size_t len, json_t *value)
{
	return json_object_setn_new(obj, key, len, value) == 0;
}

size_t od_json_key_len(void *iter)
{
	return json_object_iter_key_len(iter);
}
#else
/* NULL: it has a NUL inside, or there is no memory. */
static char *key_text(const char *key, size_t len)
{
	return memchr(key, '\0', len) == NULL ? strndup(key, len) : NULL;
}

json_t *od_json_getn(const json_t *obj, const char *key, size_t len)
{
	char *text = key_text(key, len);
	json_t *v = text != NULL ? json_object_get(obj, text) : NULL;

	free(text);
	return v;
}

bool od_json_setn(json_t *obj, const char *key, size_t len, json_t *value)
{
	char *text = key_text(key, len);
	int rc = -1;

	if (text != NULL)
		rc = json_object_set_new(obj, text, value);
	else
		json_decref(value);
	free(text);
	return rc == 0;
}

size_t od_json_key_len(void *iter)
{
	return strlen(json_object_iter_key(iter));
}
#endif
