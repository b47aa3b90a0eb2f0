#include "tests/fuzz/gguf_mix.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/compute/formats/format.h"
#include "tests/fuzz/fuzz.h"

#define MAX_BASES 32
#define MAX_ITEMS 256 /* keys or tensors of a header, with those that changes add */
#define MAX_CHANGES 16
#define MAX_DIMS 6
#define ALIGNMENT 32u

enum { KIND_STRING = 8, KIND_ARRAY = 9, N_KINDS = 13 };

/* A key: its value's bytes, of an array behind kind and count, of a string behind its length. */
struct mix_pair {
	uint8_t *key, *value;
	size_t key_len, value_len;
	uint64_t n; /* elements of an array */
	uint32_t kind, of;
	bool torn; /* bytes were overwritten: lengths within may be wrong */
};

struct mix_tensor {
	uint8_t *name;
	size_t name_len;
	uint64_t dim[MAX_DIMS], offset;
	uint32_t n_dims, type;
};

struct mix_header {
	struct mix_pair pair[MAX_ITEMS];
	struct mix_tensor tensor[MAX_ITEMS];
	size_t n_pairs, n_tensors;
	uint64_t more_pairs, more_tensors; /* added to the counts that the header says */
	uint32_t version;
};

struct gguf_mix {
	struct mix_header base[MAX_BASES];
	size_t n_bases;
};

/* ---- Bytes ---- */

struct bytes {
	uint8_t *at;
	size_t len, room;
};

static void put(struct bytes *b, const void *from, size_t n)
{
	if (b->len + n > b->room) {
		b->room = (b->len + n) * 2;
		b->at = realloc(b->at, b->room);
		check(b->at != NULL);
	}
	if (n > 0)
		memcpy(b->at + b->len, from, n);
	b->len += n;
}

static void put_text(struct bytes *b, const uint8_t *text, uint64_t len)
{
	put(b, &len, sizeof(len));
	put(b, text, len);
}

static uint64_t number(const uint8_t **at, size_t n)
{
	uint64_t v = 0;

	memcpy(&v, *at, n);
	*at += n;
	return v;
}

static uint8_t *copy_of(const uint8_t *from, size_t n)
{
	uint8_t *to = malloc(n + 1);

	check(to != NULL);
	if (n > 0)
		memcpy(to, from, n);
	return to;
}

/* ---- Headers ---- */

static const uint8_t kind_bytes[N_KINDS] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static size_t elements_bytes(const uint8_t *at, uint32_t of, uint64_t n)
{
	const uint8_t *end = at;

	if (of != KIND_STRING)
		return n * kind_bytes[of];
	for (uint64_t i = 0; i < n; i++)
		end += number(&end, 8);
	return (size_t)(end - at);
}

static const uint8_t *parse_pair(struct mix_pair *p, const uint8_t *at)
{
	p->key_len = number(&at, 8);
	p->key = copy_of(at, p->key_len);
	at += p->key_len;
	p->kind = p->of = (uint32_t)number(&at, 4);
	p->n = 1;
	if (p->kind == KIND_ARRAY) {
		p->of = (uint32_t)number(&at, 4);
		p->n = number(&at, 8);
	}
	p->value_len = p->kind == KIND_STRING ? number(&at, 8) : elements_bytes(at, p->of, p->n);
	p->value = copy_of(at, p->value_len);
	return at + p->value_len;
}

static const uint8_t *parse_tensor(struct mix_tensor *t, const uint8_t *at)
{
	t->name_len = number(&at, 8);
	t->name = copy_of(at, t->name_len);
	at += t->name_len;
	t->n_dims = (uint32_t)number(&at, 4);
	check(t->n_dims <= MAX_DIMS);
	for (uint32_t i = 0; i < t->n_dims; i++)
		t->dim[i] = number(&at, 8);
	t->type = (uint32_t)number(&at, 4);
	t->offset = number(&at, 8);
	return at;
}

static void parse(struct mix_header *h, const char *path)
{
	FILE *f = fopen(path, "rb");
	uint8_t *bytes = malloc(1 << 20);
	const uint8_t *at = bytes + 4;

	check(f != NULL && bytes != NULL && fread(bytes, 1, 1 << 20, f) < 1 << 20);
	h->version = (uint32_t)number(&at, 4);
	h->n_tensors = number(&at, 8);
	h->n_pairs = number(&at, 8);
	check(h->n_tensors < MAX_ITEMS - MAX_CHANGES && h->n_pairs < MAX_ITEMS - MAX_CHANGES);
	for (size_t i = 0; i < h->n_pairs; i++)
		at = parse_pair(&h->pair[i], at);
	for (size_t i = 0; i < h->n_tensors; i++)
		at = parse_tensor(&h->tensor[i], at);
	fclose(f);
	free(bytes);
}

struct gguf_mix *gguf_mix_new(const char *prefix)
{
	struct gguf_mix *m = calloc(1, sizeof(*m));
	char pattern[128];
	glob_t found;

	snprintf(pattern, sizeof(pattern), "tests/golden/gguf/%s*.gguf", prefix);
	check(m != NULL && glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc <= MAX_BASES);
	for (size_t i = 0; i < found.gl_pathc; i++)
		parse(&m->base[m->n_bases++], found.gl_pathv[i]);
	globfree(&found);
	return m;
}

/* The bytes of a tensor as long as they are sensible. */
static uint64_t tensor_bytes(const struct mix_tensor *t)
{
	const struct od_block b = od_block_of(t->type == 0  ? OD_F32 :
					      t->type == 1  ? OD_F16 :
					      t->type == 30 ? OD_BF16 :
							      (enum od_dtype)(t->type + 64));
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->n_dims && n < GGUF_MIX_MOST_BYTES; i++)
		n *= t->dim[i] < GGUF_MIX_MOST_BYTES ? t->dim[i] : GGUF_MIX_MOST_BYTES;
	n = b.weights > 0 ? n / b.weights * b.bytes : n * 8;
	return n < GGUF_MIX_MOST_BYTES ? n : GGUF_MIX_MOST_BYTES;
}

static uint64_t round_up(uint64_t n)
{
	return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Returns the bytes of data. */
static uint64_t place(struct mix_header *h)
{
	uint64_t at = 0;

	for (size_t i = 0; i < h->n_tensors; i++) {
		h->tensor[i].offset = at;
		at = round_up(at + tensor_bytes(&h->tensor[i]));
	}
	return at;
}

static struct bytes write_header(const struct mix_header *h)
{
	const uint64_t n_tensors = h->n_tensors + h->more_tensors, n_pairs = h->n_pairs + h->more_pairs;
	struct bytes b = { 0 };

	put(&b, "GGUF", 4);
	put(&b, &h->version, 4);
	put(&b, &n_tensors, 8);
	put(&b, &n_pairs, 8);
	for (size_t i = 0; i < h->n_pairs; i++) {
		const struct mix_pair *p = &h->pair[i];

		put_text(&b, p->key, p->key_len);
		put(&b, &p->kind, 4);
		if (p->kind == KIND_ARRAY) {
			put(&b, &p->of, 4);
			put(&b, &p->n, 8);
		}
		if (p->kind == KIND_STRING)
			put_text(&b, p->value, p->value_len);
		else
			put(&b, p->value, p->value_len);
	}
	for (size_t i = 0; i < h->n_tensors; i++) {
		const struct mix_tensor *t = &h->tensor[i];

		put_text(&b, t->name, t->name_len);
		put(&b, &t->n_dims, 4);
		put(&b, t->dim, 8 * (size_t)(t->n_dims < MAX_DIMS ? t->n_dims : MAX_DIMS));
		put(&b, &t->type, 4);
		put(&b, &t->offset, 8);
	}
	return b;
}

/* ---- Changes ---- */

/* A change: what (the low half of the byte; the high half a detail), two numbers, a value. Missing bytes are 0. */
struct change {
	uint8_t what, detail;
	uint16_t a, b;
	uint64_t v;
};

#define CHANGE_BYTES 13

static struct change take(const uint8_t **data, size_t *size)
{
	const size_t n = *size < CHANGE_BYTES ? *size : CHANGE_BYTES;
	uint8_t bytes[CHANGE_BYTES] = { 0 };
	const uint8_t *at = bytes + 1;
	struct change c;

	if (n > 0)
		memcpy(bytes, *data, n);
	*data += n;
	*size -= n;
	c.what = bytes[0] & 15;
	c.detail = bytes[0] >> 4;
	c.a = (uint16_t)number(&at, 2);
	c.b = (uint16_t)number(&at, 2);
	c.v = number(&at, 8);
	return c;
}

static uint64_t telling(uint64_t v)
{
	static const uint64_t numbers[] = { 0,
					    1,
					    2,
					    3,
					    4,
					    7,
					    8,
					    16,
					    31,
					    32,
					    255,
					    256,
					    1024,
					    4096,
					    65535,
					    1u << 20,
					    INT32_MAX,
					    UINT32_MAX,
					    (uint64_t)1 << 40,
					    INT64_MAX,
					    (uint64_t)1 << 63,
					    UINT64_MAX,
					    0x7fc00000 /* NaN, F32 */,
					    0x7f800000 /* infinite */,
					    0x7ff8000000000000 };

	return v < sizeof(numbers) / sizeof(numbers[0]) ? numbers[v] : v;
}

static struct mix_pair *pair_of(struct mix_header *h, uint16_t i)
{
	return &h->pair[i % h->n_pairs];
}

static struct mix_tensor *tensor_of(struct mix_header *h, uint16_t i)
{
	return &h->tensor[i % h->n_tensors];
}

static struct mix_pair copy_pair(const struct mix_pair *from)
{
	struct mix_pair p = *from;

	p.key = copy_of(from->key, from->key_len);
	p.value = copy_of(from->value, from->value_len);
	return p;
}

static struct mix_tensor copy_tensor(const struct mix_tensor *from)
{
	struct mix_tensor t = *from;

	t.name = copy_of(from->name, from->name_len);
	return t;
}

static void set_value(struct mix_pair *p, const void *bytes, size_t len)
{
	uint8_t *to = copy_of(bytes, len);

	free(p->value);
	p->value = to;
	p->value_len = len;
}

/* Element b of an array, or a value that is none, becomes v; of strings v's bytes up to the first zero. */
static void set_element(struct mix_pair *p, const struct change *c)
{
	const uint64_t v = telling(c->v), i = p->n > 0 ? c->b % p->n : 0;
	const uint8_t *at = p->value, *begin;
	struct bytes b = { 0 };
	size_t skip;

	if (p->kind == KIND_STRING) {
		set_value(p, &c->v, strnlen((const char *)&c->v, 8));
		return;
	}
	if (p->torn || p->n == 0 || p->of >= N_KINDS || p->of == KIND_ARRAY ||
	    elements_bytes(at, p->of, i + 1) > p->value_len)
		return;
	at += elements_bytes(at, p->of, i);
	begin = at;
	skip = elements_bytes(at, p->of, 1);
	put(&b, p->value, (size_t)(begin - p->value));
	if (p->of == KIND_STRING)
		put_text(&b, (const uint8_t *)&c->v, strnlen((const char *)&c->v, 8));
	else
		put(&b, &v, kind_bytes[p->of]);
	put(&b, begin + skip, p->value_len - (size_t)(begin + skip - p->value));
	set_value(p, b.at, b.len);
	free(b.at);
}

/* An array is cut to b elements. */
static void set_length(struct mix_pair *p, const struct change *c)
{
	uint64_t n;

	if (p->torn || p->kind != KIND_ARRAY || p->of >= N_KINDS || p->of == KIND_ARRAY || p->n > 1u << 16)
		return;
	n = c->b < p->n ? c->b : p->n;
	p->value_len = elements_bytes(p->value, p->of, n);
	p->n = n;
}

static void set_kind(struct mix_pair *p, const struct change *c)
{
	const uint64_t v = telling(c->v);

	p->kind = p->of = c->b % (N_KINDS + 1);
	p->n = 1;
	if (p->kind == KIND_ARRAY) {
		p->of = c->b / 16 % N_KINDS;
		p->n = 0;
	}
	set_value(p, &v,
		  p->kind == KIND_ARRAY			   ? 0 :
		  p->kind < N_KINDS && kind_bytes[p->kind] ? kind_bytes[p->kind] :
							     8);
}

static void set_word(struct mix_pair *p, const struct change *c)
{
	static const char *const words[] = {
		"llama",       "qwen2moe",     "qwen3moe",
		"deepseek2",   "gemma4",       "phimoe",
		"gpt2",	       "model",	       "yarn",
		"none",	       "default",      "qwen2",
		"deepseek-v3", "deepseek-llm", "tekken",
		"kimi-k2",     "gpt-4o",       "<unk>",
		"<0x41>",      "\xff\xfe",     "{% for m in messages %}{{ m.content }}{% endfor %}",
		"{% if",       "\xe2\x96\x81"
	};
	const char *word = words[c->b % (sizeof(words) / sizeof(words[0]))];

	p->kind = p->of = KIND_STRING;
	p->n = 1;
	set_value(p, word, strlen(word));
}

static void overwrite(uint8_t *at, size_t len, const struct change *c)
{
	const size_t where = len > 0 ? c->b % len : 0, n = 1 + c->detail % 8;

	memcpy(at + where, &c->v, n < len - where ? n : len - where);
}

static void change_pair(const struct gguf_mix *m, struct mix_header *h, const struct change *c)
{
	const struct mix_header *other = &m->base[c->v % m->n_bases];
	struct mix_pair *p = h->n_pairs > 0 ? pair_of(h, c->a) : NULL, added;

	if (c->what == 5 && h->n_pairs < MAX_ITEMS && other->n_pairs > 0) {
		h->pair[h->n_pairs++] = copy_pair(&other->pair[c->b % other->n_pairs]);
		return;
	}
	if (p == NULL)
		return;
	switch (c->what) {
	case 0: set_element(p, c); break;
	case 1: set_length(p, c); break;
	case 2: set_kind(p, c); break;
	case 3: set_word(p, c); break;
	case 4: /* another's value */
		added = copy_pair(&other->pair[c->b % other->n_pairs]);
		free(added.key);
		added.key = p->key;
		added.key_len = p->key_len;
		free(p->value);
		*p = added;
		break;
	case 6: /* gone */
		free(p->key);
		free(p->value);
		*p = h->pair[--h->n_pairs];
		break;
	case 7:
		p->torn = true;
		overwrite(c->detail & 8 ? p->key : p->value, c->detail & 8 ? p->key_len : p->value_len, c);
		break;
	}
}

static void change_tensor(const struct gguf_mix *m, struct mix_header *h, const struct change *c)
{
	const struct mix_header *other = &m->base[c->v % m->n_bases];
	struct mix_tensor *t = h->n_tensors > 0 ? tensor_of(h, c->a) : NULL, added;

	if (c->what == 12 && h->n_tensors < MAX_ITEMS) {
		h->tensor[h->n_tensors++] = copy_tensor(&other->tensor[c->b % other->n_tensors]);
		return;
	}
	if (t == NULL)
		return;
	switch (c->what) {
	case 8: t->dim[c->b % MAX_DIMS] = telling(c->v); break;
	case 9: t->type = c->b % 48; break;
	case 10: t->n_dims = c->b % (MAX_DIMS + 1); break;
	case 11: /* another's name */
		added = copy_tensor(&other->tensor[c->b % other->n_tensors]);
		free(t->name);
		t->name = added.name;
		t->name_len = added.name_len;
		break;
	case 13: /* gone */
		free(t->name);
		*t = h->tensor[--h->n_tensors];
		break;
	case 14: t->offset = c->detail & 1 ? telling(c->v) : c->v % GGUF_MIX_MOST_BYTES; break;
	}
}

static void change(const struct gguf_mix *m, struct mix_header *h, const struct change *c)
{
	if (c->what < 8)
		change_pair(m, h, c);
	else if (c->what < 15)
		change_tensor(m, h, c);
	else if (c->detail == 0)
		h->version = (uint32_t)telling(c->v);
	else if (c->detail & 1)
		h->more_pairs = telling(c->v);
	else
		h->more_tensors = telling(c->v);
}

static struct mix_header *copy_header(const struct mix_header *from)
{
	struct mix_header *h = malloc(sizeof(*h));

	check(h != NULL);
	*h = *from;
	for (size_t i = 0; i < h->n_pairs; i++)
		h->pair[i] = copy_pair(&from->pair[i]);
	for (size_t i = 0; i < h->n_tensors; i++)
		h->tensor[i] = copy_tensor(&from->tensor[i]);
	return h;
}

static void free_header(struct mix_header *h)
{
	for (size_t i = 0; i < h->n_pairs; i++) {
		free(h->pair[i].key);
		free(h->pair[i].value);
	}
	for (size_t i = 0; i < h->n_tensors; i++)
		free(h->tensor[i].name);
	free(h);
}

uint8_t *gguf_mix_make(const struct gguf_mix *m, const uint8_t **data, size_t *size, size_t *len, size_t *file_bytes)
{
	uint8_t first[2] = { 0 };
	const size_t n = *size < 2 ? *size : 2;
	struct mix_header *h;
	struct bytes b;
	uint64_t data_bytes;

	if (n > 0)
		memcpy(first, *data, n);
	*data += n;
	*size -= n;
	h = copy_header(&m->base[(first[0] & 63) % m->n_bases]);
	data_bytes = place(h);
	for (int i = 0; i < first[1] % (MAX_CHANGES + 1); i++) {
		const struct change c = take(data, size);

		change(m, h, &c);
		if (c.what < 14 && (first[0] & 64) == 0) /* offsets stay, if they are not what is changed */
			data_bytes = place(h);
	}
	b = write_header(h);
	free_header(h);
	*len = b.len;
	*file_bytes = round_up(b.len) + data_bytes;
	if (first[0] & 128) /* cut short */
		*file_bytes -= *file_bytes / (2 + first[1] / (MAX_CHANGES + 1));
	*file_bytes = *file_bytes < GGUF_MIX_MOST_BYTES ? *file_bytes : GGUF_MIX_MOST_BYTES;
	*len = *len < *file_bytes ? *len : *file_bytes;
	return b.at;
}
