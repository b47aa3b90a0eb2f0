/* gguf_metadata.h - a GGUF file of metadata and one tensor, made of a JSON object: strings, booleans, integers (u32),
 * reals (f32), and arrays of strings, integers (i32) or reals (f32).
 *
 * Thread: any. Owner: the caller. */
#ifndef OD_TESTS_GGUF_METADATA_H
#define OD_TESTS_GGUF_METADATA_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/strbuf.h"

static inline void gguf_put(struct od_strbuf *b, uint64_t value, size_t bytes)
{
	od_strbuf_append(b, (const char *)&value, bytes);
}

static inline void gguf_put_string(struct od_strbuf *b, const char *text, size_t len)
{
	gguf_put(b, len, 8);
	od_strbuf_append(b, text, len);
}

static inline unsigned gguf_type(const json_t *v, bool in_array)
{
	switch (json_typeof(v)) {
	case JSON_STRING: return 8;
	case JSON_ARRAY: return 9;
	case JSON_INTEGER: return in_array ? 5 : 4;
	case JSON_REAL: return 6;
	case JSON_TRUE:
	case JSON_FALSE: return 7;
	case JSON_OBJECT:
	case JSON_NULL: break;
	}
	abort();
}

static inline void gguf_put_value(struct od_strbuf *b, const json_t *v)
{
	const float real = (float)json_real_value(v);

	if (json_is_string(v))
		gguf_put_string(b, json_string_value(v), json_string_length(v));
	else if (json_is_boolean(v))
		gguf_put(b, json_is_true(v), 1);
	else if (json_is_integer(v))
		gguf_put(b, (uint64_t)json_integer_value(v), 4);
	else
		od_strbuf_append(b, (const char *)&real, sizeof(real));
}

static inline void gguf_make(struct od_strbuf *b, const json_t *metadata)
{
	const char *key;
	json_t *v, *item;
	size_t i;

	od_strbuf_append(b, "GGUF", 4);
	gguf_put(b, 3, 4); /* version */
	gguf_put(b, 1, 8); /* tensors */
	gguf_put(b, json_object_size(metadata), 8);
	json_object_foreach((json_t *)(uintptr_t)metadata, key, v)
	{
		gguf_put_string(b, key, strlen(key));
		gguf_put(b, gguf_type(v, false), 4);
		if (!json_is_array(v)) {
			gguf_put_value(b, v);
			continue;
		}
		gguf_put(b, json_array_size(v) > 0 ? gguf_type(json_array_get(v, 0), true) : 5, 4);
		gguf_put(b, json_array_size(v), 8);
		json_array_foreach(v, i, item) gguf_put_value(b, item);
	}
	gguf_put_string(b, "t", 1);
	gguf_put(b, 1, 4); /* dimensions */
	gguf_put(b, 1, 8);
	gguf_put(b, 0, 4); /* F32 */
	gguf_put(b, 0, 8);
	while (b->len % 32 != 0)
		gguf_put(b, 0, 1);
	gguf_put(b, 0, 4);
}

#endif
