#include "common/text/jinja/jinja_job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define BLOCK_BYTES ((size_t)64 << 10)
#define ALIGN 16u

struct jinja_block {
	struct jinja_block *next;
	size_t used, size;
	unsigned char *own; /* [size], 1: the template's text; NULL while parsing */
	_Alignas(ALIGN) char data[];
};

_Noreturn void jinja_fail(struct jinja_job *j, int code, const char *fmt, ...)
{
	char why[sizeof(j->err->msg)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	j->code = od_fail(j->err, code, "%s, line %u: %s", j->name, j->line, why);
	longjmp(j->leave, 1);
}

/* Each block is as large as all before it, or nearly: so there are few, and find() is fast. */
static size_t block_bytes(const struct jinja_job *j)
{
	const size_t left = j->max_bytes - j->used_bytes,
		     size = j->used_bytes > BLOCK_BYTES ? j->used_bytes : BLOCK_BYTES;

	return size < left ? size : left;
}

static struct jinja_block *new_block(struct jinja_job *j, size_t bytes)
{
	const size_t common = block_bytes(j), size = bytes > common / 4 ? bytes : common;
	struct jinja_block *b;

	if (size > j->max_bytes - j->used_bytes)
		jinja_fail(j, OD_ERR_RANGE, "the template needs more than %zu MiB of memory", j->max_bytes >> 20);
	b = malloc(sizeof(*b) + size);
	if (b == NULL)
		jinja_fail(j, OD_ERR_NOMEM, "no memory for the template");
	b->own = NULL;
	if (j->template != NULL && (b->own = calloc(size, 1)) == NULL) {
		free(b);
		jinja_fail(j, OD_ERR_NOMEM, "no memory for the template");
	}
	j->used_bytes += size;
	b->size = size;
	b->used = bytes;
	if (bytes > common / 4 && j->blocks != NULL) { /* goes on with what is left of the first one */
		b->next = j->blocks->next;
		j->blocks->next = b;
	} else {
		b->next = j->blocks;
		j->blocks = b;
	}
	return b;
}

static void *take(struct jinja_job *j, size_t bytes)
{
	struct jinja_block *b = j->blocks;
	size_t rounded;
	void *p;

	if (bytes > j->max_bytes)
		jinja_fail(j, OD_ERR_RANGE, "the template needs more than %zu MiB of memory", j->max_bytes >> 20);
	rounded = od_round_up(bytes, ALIGN);
	if (b == NULL || rounded > b->size - b->used)
		return new_block(j, rounded)->data;
	p = b->data + b->used;
	b->used += rounded;
	return p;
}

void *jinja_alloc(struct jinja_job *j, size_t bytes)
{
	void *p = take(j, bytes);

	jinja_charge(j, bytes / 256);
	memset(p, 0, bytes);
	return p;
}

void *jinja_alloc_array(struct jinja_job *j, size_t n, size_t each_bytes)
{
	uint64_t bytes;

	if (!od_mul(n, each_bytes, &bytes))
		bytes = SIZE_MAX;
	return jinja_alloc(j, bytes);
}

void jinja_grow(struct jinja_job *j, void *v, size_t n, size_t *cap, size_t each_bytes)
{
	size_t want = n < 4 ? 8 : 2 * n;
	void *old, *p;

	if (n < *cap)
		return;
	memcpy(&old, v, sizeof(old)); /* v points to a pointer of some type */
	p = jinja_alloc_array(j, want, each_bytes);
	if (n > 0)
		memcpy(p, old, n * each_bytes);
	memcpy(v, &p, sizeof(p));
	*cap = want;
}

void jinja_free_all(struct jinja_job *j)
{
	while (j->blocks != NULL) {
		struct jinja_block *b = j->blocks;

		j->blocks = b->next;
		free(b->own);
		free(b);
	}
}

/* ---- whose text a byte is ---- */

static struct jinja_block *find(const struct jinja_job *j, const char *p)
{
	struct jinja_block *b = j->blocks;

	while (b != NULL && (uintptr_t)p - (uintptr_t)b->data >= b->size)
		b = b->next;
	return b;
}

/* to is in the job's memory; len > 0. */
static void mark_as(struct jinja_job *j, const char *to, const char *from, size_t len)
{
	const struct jinja_block *b, *of;
	unsigned char *own;

	if (j->template == NULL)
		return;
	b = find(j, to);
	of = find(j, from);
	own = b->own + (to - b->data);
	if (of != NULL)
		memcpy(own, of->own + (from - of->data), len);
	else
		memset(own, find(j->template, from) != NULL, len);
}

void jinja_copy(struct jinja_job *j, char *to, const char *from, size_t len)
{
	if (len > 0) {
		memcpy(to, from, len);
		mark_as(j, to, from, len);
	}
}

void jinja_own(struct jinja_job *j, const char *p, size_t len)
{
	const struct jinja_block *b = find(j, p);

	if (b != NULL && b->own != NULL)
		memset(b->own + (p - b->data), 1, len);
}

const unsigned char *jinja_owned(const struct jinja_job *j, const char *p)
{
	const struct jinja_block *b = find(j, p);

	return b != NULL && b->own != NULL ? b->own + (p - b->data) : NULL;
}

void jinja_charge(struct jinja_job *j, uint64_t operations)
{
	if (operations > j->operations_left)
		jinja_fail(j, OD_ERR_RANGE, "the template takes too many operations");
	j->operations_left -= operations;
}

void jinja_enter(struct jinja_job *j)
{
	if (j->depth >= j->max_depth)
		jinja_fail(j, OD_ERR_RANGE, "nested or recursive more than %u deep", j->max_depth);
	j->depth++;
}

static void reserve(struct jinja_job *j, struct jinja_text *t, size_t more)
{
	size_t cap = t->cap > 0 ? 2 * t->cap : 128;
	char *p;

	if (t->max > 0 && (more > t->max || t->len > t->max - more))
		jinja_fail(j, OD_ERR_RANGE, "the rendered text is longer than %zu MiB", t->max >> 20);
	jinja_charge(j, more / JINJA_BYTES_PER_OPERATION);
	if (more <= t->cap - t->len)
		return;
	if (more > j->max_bytes)
		jinja_fail(j, OD_ERR_RANGE, "the template needs more than %zu MiB of memory", j->max_bytes >> 20);
	if (cap < t->len + more)
		cap = t->len + more;
	p = take(j, cap);
	jinja_copy(j, p, t->p, t->len);
	t->p = p;
	t->cap = cap;
}

void jinja_add(struct jinja_job *j, struct jinja_text *t, const char *p, size_t len)
{
	if (len == 0)
		return;
	reserve(j, t, len);
	jinja_copy(j, t->p + t->len, p, len);
	t->len += len;
}

void jinja_add_own(struct jinja_job *j, struct jinja_text *t, const char *p, size_t len)
{
	if (len == 0)
		return;
	reserve(j, t, len);
	memcpy(t->p + t->len, p, len);
	jinja_own(j, t->p + t->len, len);
	t->len += len;
}

void jinja_add_times(struct jinja_job *j, struct jinja_text *t, const char *p, size_t len, size_t times)
{
	uint64_t bytes;

	if (!od_mul(len, times, &bytes))
		bytes = SIZE_MAX;
	reserve(j, t, bytes);
	if (len > 0)
		for (size_t i = 0; i < times; i++)
			jinja_copy(j, t->p + t->len + i * len, p, len);
	t->len += bytes;
}

/* The last len bytes are whose the byte at `of` is. */
static void mark_last(struct jinja_job *j, const struct jinja_text *t, size_t len, const char *of)
{
	if (of != NULL)
		for (size_t i = t->len - len; i < t->len; i++)
			mark_as(j, t->p + i, of, 1);
}

void jinja_add_char(struct jinja_job *j, struct jinja_text *t, uint32_t c, const char *of)
{
	char b[4];
	size_t n = 1;

	if (c < 0x80) {
		b[0] = (char)c;
	} else if (c < 0x800) {
		b[0] = (char)(0xc0 | c >> 6);
		b[1] = (char)(0x80 | (c & 63));
		n = 2;
	} else if (c < 0x10000) {
		b[0] = (char)(0xe0 | c >> 12);
		b[1] = (char)(0x80 | (c >> 6 & 63));
		b[2] = (char)(0x80 | (c & 63));
		n = 3;
	} else {
		b[0] = (char)(0xf0 | c >> 18);
		b[1] = (char)(0x80 | (c >> 12 & 63));
		b[2] = (char)(0x80 | (c >> 6 & 63));
		b[3] = (char)(0x80 | (c & 63));
		n = 4;
	}
	jinja_add(j, t, b, n);
	mark_last(j, t, n, of);
}

/* Returns the bytes that it added. */
static size_t add_format(struct jinja_job *j, struct jinja_text *t, const char *fmt, va_list ap)
{
	va_list again;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	if (n > 0) {
		reserve(j, t, (size_t)n + 1);
		vsnprintf(t->p + t->len, (size_t)n + 1, fmt, again);
		t->len += (size_t)n;
	}
	va_end(again);
	return n > 0 ? (size_t)n : 0;
}

void jinja_addf_of(struct jinja_job *j, struct jinja_text *t, const char *of, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	mark_last(j, t, add_format(j, t, fmt, ap), of);
	va_end(ap);
}

void jinja_addf(struct jinja_job *j, struct jinja_text *t, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	n = add_format(j, t, fmt, ap);
	va_end(ap);
	if (n > 0)
		jinja_own(j, t->p + t->len - n, n);
}
