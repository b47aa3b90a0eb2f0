#include "tests/fuzz/json_mix.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#define MAX_PATHS 4096
#define MAX_VALUES 4096
#define MAX_DEPTH 10
#define MAX_VALUE_BYTES 2048 /* longest text of a value */
#define MAX_CHANGES 64

/* Keys, or numbers of elements, from the root on. */
struct path {
	char *key[MAX_DEPTH];
	size_t n;
};

struct json_mix {
	json_t *docs, *seen; /* seen: texts of values and names of paths that are there already */
	struct path path[MAX_PATHS];
	json_t *value[MAX_VALUES];
	size_t n_paths, n_values;
};

static bool first_time(struct json_mix *m, const char *text)
{
	if (json_object_get(m->seen, text) != NULL)
		return false;
	check(json_object_set_new(m->seen, text, json_true()) == 0);
	return true;
}

static void add_value(struct json_mix *m, json_t *v)
{
	char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);

	check(text != NULL);
	if (m->n_values < MAX_VALUES && strlen(text) <= MAX_VALUE_BYTES && first_time(m, text))
		m->value[m->n_values++] = json_incref(v);
	free(text);
}

static void add_path(struct json_mix *m, const struct path *p)
{
	char name[1024] = "path ";
	size_t len = strlen(name);

	for (size_t i = 0; i < p->n && len + 256 < sizeof(name); i++)
		len += (size_t)snprintf(name + len, 256, "%.200s/", p->key[i]);
	if (m->n_paths == MAX_PATHS || !first_time(m, name))
		return;
	for (size_t i = 0; i < p->n; i++) {
		m->path[m->n_paths].key[i] = strdup(p->key[i]);
		check(m->path[m->n_paths].key[i] != NULL);
	}
	m->path[m->n_paths++].n = p->n;
}

static void collect(struct json_mix *m, json_t *v, struct path *p, const char *skip)
{
	const char *key;
	char number[24];
	json_t *item;
	size_t i;

	if (p->n > 0) {
		add_path(m, p);
		add_value(m, v);
	}
	if (p->n == MAX_DEPTH || (skip != NULL && p->n > 0 && strcmp(p->key[p->n - 1], skip) == 0))
		return;
	json_object_foreach(v, key, item)
	{
		char *copy = strdup(key);

		check(copy != NULL);
		p->key[p->n++] = copy;
		collect(m, item, p, skip);
		p->n--;
		free(copy);
	}
	json_array_foreach(v, i, item)
	{
		if (i == 8)
			break;
		snprintf(number, sizeof(number), "%zu", i);
		p->key[p->n++] = number;
		collect(m, item, p, skip);
		p->n--;
	}
}

static void add_nasty(struct json_mix *m)
{
	static const char values[] =
		"[null, true, false, 0, 1, -1, 2, 3, 7, 8, 63, 64, 65, 255, 256, 1023, 1024, 65535, 65536, 1048576, 16777216, 2147483647,"
		" 2147483648, -2147483648, 4294967295, 4294967296, 9223372036854775807, -9223372036854775808, 0.0, -0.0, 1.0, 0.5,"
		" -1.0, 1e-300, 1e-7, 1e38, 1e39, 1e308, \"\", \" \", \"a\", \"\\u0000\", \"\\u00e9\", \"\\u2581\", \"\\ud83e\\udd9a\", [], {}, [[]],"
		" [null], [0], [1, 2, 3], {\"a\": 1}]";
	json_t *all = json_loads(values, JSON_ALLOW_NUL, NULL), *v;
	size_t i;

	check(all != NULL);
	json_array_foreach(all, i, v) add_value(m, v);
	json_decref(all);
}

struct json_mix *json_mix_new(json_t *docs, const char *skip)
{
	struct json_mix *m = calloc(1, sizeof(*m));
	struct path p = { .n = 0 };
	json_t *doc;
	size_t i;

	check(m != NULL && json_array_size(docs) > 0);
	m->docs = docs;
	m->seen = json_object();
	check(m->seen != NULL);
	add_nasty(m);
	json_array_foreach(docs, i, doc) collect(m, doc, &p, skip);
	return m;
}

static unsigned take(const uint8_t **data, size_t *size)
{
	if (*size == 0)
		return 0;
	--*size;
	return *(*data)++;
}

static unsigned take_two(const uint8_t **data, size_t *size)
{
	const unsigned low = take(data, size);

	return low | take(data, size) << 8;
}

/* A value of the documents, or a number or a string from the input. */
static json_t *take_value(const struct json_mix *m, const uint8_t **data, size_t *size)
{
	const unsigned which = take_two(data, size);
	uint64_t bits = 0;
	double real;
	json_t *v = NULL;
	size_t n;

	if (which < 0xfffd)
		return json_deep_copy(m->value[which % m->n_values]);
	if (which == 0xffff) {
		n = take(data, size);
		n = n < *size ? n : *size;
		v = json_stringn((const char *)*data, n);
		*data += n;
		*size -= n;
		return v;
	}
	for (int i = 0; i < 8; i++)
		bits |= (uint64_t)take(data, size) << 8 * i;
	if (which == 0xfffe)
		return json_integer((json_int_t)bits);
	memcpy(&real, &bits, sizeof(real));
	return json_real(real); /* NULL if it is none */
}

/* A key of an object leads to an array's first element. */
static size_t element(const char *key)
{
	size_t i = 0;

	while (*key >= '0' && *key <= '9' && i < 1000)
		i = i * 10 + (size_t)(*key++ - '0');
	return i;
}

/* Replaces the value at an existing path; v NULL: removes it. */
static void put(json_t *root, const struct path *p, json_t *v)
{
	json_t *at = root;
	const char *last = p->key[p->n - 1];
	size_t i;

	for (i = 0; i + 1 < p->n && at != NULL; i++)
		at = json_is_array(at) ? json_array_get(at, element(p->key[i])) : json_object_get(at, p->key[i]);
	if (json_is_object(at)) {
		if (v == NULL)
			json_object_del(at, last);
		else
			json_object_set(at, last, v);
	} else if (json_is_array(at)) {
		i = element(last);
		if (v == NULL)
			json_array_remove(at, i);
		else if (i < json_array_size(at))
			json_array_set(at, i, v);
		else
			json_array_append(at, v);
	}
	json_decref(v);
}

json_t *json_mix_make(const struct json_mix *m, const uint8_t **data, size_t *size)
{
	json_t *doc = json_deep_copy(json_array_get(m->docs, take(data, size) % json_array_size(m->docs)));
	unsigned n = take(data, size) % (MAX_CHANGES + 1);

	check(doc != NULL);
	for (; n > 0; n--) {
		const unsigned path = take_two(data, size);

		put(doc, &m->path[path % m->n_paths], take(data, size) % 8 == 0 ? NULL : take_value(m, data, size));
	}
	return doc;
}
