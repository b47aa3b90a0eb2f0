#include "main-node/serve/api/call_memory.h"

#include "common/base/id_table.h"
#include "main-node/serve/api/call_file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FILE_PER_MEMORY 2 /* bytes: a record has more than both texts */

struct call {
	char *id, *arguments;
};

struct odm_call_memory {
	pthread_mutex_t lock;
	struct od_id_table table; /* hashes of ids -> numbers of calls */
	struct call *call; /* [table.most], by number */
	uint32_t *order; /* [table.most], a ring of their numbers, the oldest first */
	uint32_t oldest; /* the oldest entry's index in order */
	size_t bytes, max_bytes;
	struct odm_call_file *file; /* NULL: none */
};

struct odm_call_memory *odm_call_memory_new(uint32_t max_calls, size_t max_bytes)
{
	struct odm_call_memory *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	pthread_mutex_init(&m->lock, NULL);
	m->max_bytes = max_bytes;
	m->call = calloc(max_calls, sizeof(*m->call));
	m->order = calloc(max_calls, sizeof(*m->order));
	if (m->call != NULL && m->order != NULL && od_id_table_init(&m->table, max_calls, NULL) == OD_OK)
		return m;
	odm_call_memory_free(m);
	return NULL;
}

static uint64_t hash_of(const char *id)
{
	return XXH3_64bits(id, strlen(id));
}

static size_t bytes_of(const struct call *c)
{
	return strlen(c->id) + strlen(c->arguments);
}

static void forget_oldest(struct odm_call_memory *m)
{
	struct call *c = &m->call[m->order[m->oldest]];

	m->bytes -= bytes_of(c);
	od_id_table_remove(&m->table, hash_of(c->id));
	free(c->id);
	free(c->arguments);
	*c = (struct call){ 0 };
	m->oldest = (m->oldest + 1) % m->table.most;
}

void odm_call_memory_free(struct odm_call_memory *m)
{
	if (m == NULL)
		return;
	odm_call_file_close(m->file);
	while (m->table.n > 0)
		forget_oldest(m);
	od_id_table_fini(&m->table);
	free(m->order);
	free(m->call);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

/* NULL: it is not remembered. The id is compared too, because two ids may have one hash. */
static struct call *find(struct odm_call_memory *m, const char *id)
{
	const uint32_t number = od_id_table_find(&m->table, hash_of(id));
	struct call *c = number != OD_NO_NUMBER ? &m->call[number] : NULL;

	return c != NULL && strcmp(c->id, id) == 0 ? c : NULL;
}

/* Takes both strings. */
static void add(struct odm_call_memory *m, char *id, char *arguments)
{
	const uint64_t hash = hash_of(id);
	struct call *c;
	uint32_t number;

	if (m->table.n == m->table.most)
		forget_oldest(m);
	number = od_id_table_find(&m->table, hash);
	if (number == OD_NO_NUMBER) {
		number = od_id_table_add(&m->table, hash);
		m->order[(m->oldest + m->table.n - 1) % m->table.most] = number;
	} else { /* the call keeps its position in the order */
		m->bytes -= bytes_of(&m->call[number]);
		free(m->call[number].id);
		free(m->call[number].arguments);
	}
	c = &m->call[number];
	*c = (struct call){ id, arguments };
	m->bytes += bytes_of(c);
	while (m->bytes > m->max_bytes)
		forget_oldest(m);
}

void odm_call_memory_put(struct odm_call_memory *m, const char *id, const char *arguments)
{
	char *own_id = strdup(id), *own_arguments = strdup(arguments);

	if (own_id == NULL || own_arguments == NULL) {
		free(own_id);
		free(own_arguments);
		return;
	}
	pthread_mutex_lock(&m->lock);
	add(m, own_id, own_arguments);
	if (m->file != NULL)
		odm_call_file_add(m->file, id, arguments);
	pthread_mutex_unlock(&m->lock);
}

static void put_read(void *arg, const char *id, const char *arguments)
{
	odm_call_memory_put(arg, id, arguments);
}

int odm_call_memory_use_file(struct odm_call_memory *m, const char *path, struct od_err *err)
{
	struct odm_call_file *file;
	int rc = odm_call_file_open(&file, path, FILE_PER_MEMORY * m->max_bytes, put_read, m, err);

	pthread_mutex_lock(&m->lock);
	m->file = file;
	pthread_mutex_unlock(&m->lock);
	return rc;
}

void odm_call_memory_leave_file(struct odm_call_memory *m)
{
	struct odm_call_file *file;

	pthread_mutex_lock(&m->lock);
	file = m->file;
	m->file = NULL;
	pthread_mutex_unlock(&m->lock);
	odm_call_file_close(file);
}

/* ---- Values ---- */

static bool same_value(const json_t *a, const json_t *b);

static bool same_members(const json_t *a, const json_t *b)
{
	const char *key;
	const json_t *v;

	if (json_object_size(a) != json_object_size(b))
		return false;
	json_object_foreach((json_t *)(uintptr_t)a, key, v)
	{
		const json_t *other = json_object_get(b, key);

		if (other == NULL || !same_value(v, other))
			return false;
	}
	return true;
}

static bool same_elements(const json_t *a, const json_t *b)
{
	if (json_array_size(a) != json_array_size(b))
		return false;
	for (size_t i = 0; i < json_array_size(a); i++)
		if (!same_value(json_array_get(a, i), json_array_get(b, i)))
			return false;
	return true;
}

/* 1 and 1.0 are the same: JavaScript has no other integers. */
static bool same_value(const json_t *a, const json_t *b)
{
	if (json_is_number(a) && json_is_number(b) && json_typeof(a) != json_typeof(b))
		return json_number_value(a) == json_number_value(b);
	if (json_is_object(a) && json_is_object(b))
		return same_members(a, b);
	if (json_is_array(a) && json_is_array(b))
		return same_elements(a, b);
	return json_equal(a, b) != 0;
}

/* Where the model makes the ids, another client's call may have had the same id. So the text counts only if the input
 * shows all of it: of two values of one name the first must not get into the prompt. */
static bool names_twice(const char *text)
{
	json_t *v = json_loads(
		text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
	const bool twice = v == NULL; /* it is valid: odm_json_value has parsed it */

	json_decref(v);
	return twice;
}

char *odm_call_memory_get(struct odm_call_memory *m, const char *id, const json_t *input)
{
	const struct call *c;
	char *text;
	json_t *value;

	if (m == NULL)
		return NULL;
	pthread_mutex_lock(&m->lock);
	c = find(m, id);
	text = c != NULL ? strdup(c->arguments) : NULL;
	pthread_mutex_unlock(&m->lock);
	value = text != NULL ? odm_json_value((struct odm_slice){ text, strlen(text) }) : NULL;
	if (value == NULL || !same_value(value, input) || names_twice(text)) {
		free(text);
		text = NULL;
	}
	json_decref(value);
	return text;
}

/* Writes text with a space behind each comma and colon between values; false: there is white space between values
 * already. */
static bool space_out(struct od_strbuf *out, struct odm_slice text)
{
	bool string = false;
	size_t from = 0;

	for (size_t i = 0; i < text.len; i++) {
		const char c = text.text[i];

		if (string && c == '\\')
			i++;
		else if (c == '"')
			string = !string;
		else if (!string && strchr(" \n\r\t", c) != NULL)
			return false;
		if (string || (c != ',' && c != ':'))
			continue;
		od_strbuf_append(out, text.text + from, i + 1 - from);
		od_strbuf_append(out, " ", 1);
		from = i + 1;
	}
	od_strbuf_append(out, text.text + from, text.len - from);
	return true;
}

void odm_call_memory_write(struct odm_call_memory *m, struct od_strbuf *out, const char *id, const json_t *input,
			   struct odm_slice source)
{
	char *written = id != NULL ? odm_call_memory_get(m, id, input) : NULL;
	struct od_strbuf spaced = { 0 };

	if (written != NULL)
		source = (struct odm_slice){ written, strlen(written) };
	else if (space_out(&spaced, source))
		source = (struct odm_slice){ spaced.text, spaced.len };
	out->failed = out->failed || spaced.failed;
	if (!spaced.failed)
		od_strbuf_append(out, source.text, source.len);
	od_strbuf_fini(&spaced);
	free(written);
}
