#include "common/pack/gguf/gguf.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/compute/formats/format.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "GGUF"
#define VERSION_LEAST 2u
#define VERSION_MOST 3u
#define ALIGNMENT 32u /* where general.alignment says nothing */
#define MAX_ALIGNMENT 65536u
#define MAX_HEADER_BYTES (1u << 30)
#define MAX_FILES 4096u
#define MAX_NAME_BYTES 255u /* ggml allows 63 */
#define MAX_KEY_BYTES 65535u /* the format's own limit */
#define READ_BYTES (1u << 20)
#define AGAIN "; is the download complete? Get the file again"
#define DAMAGED "; the file is damaged, or its writer was wrong: get it again, or convert the model again"

/* ---- What ggml's types are here ---- */

#define PLAIN_TYPE(number, name, dtype, bytes) \
	{ \
		number, name, dtype, 1, bytes \
	}

struct ggml_type {
	uint32_t number;
	const char *name;
	int dtype; /* 0: none */
	uint32_t weights, bytes;
};

static const struct ggml_type types[] = { PLAIN_TYPE(0, "F32", OD_F32, 4), PLAIN_TYPE(1, "F16", OD_F16, 2),
					  PLAIN_TYPE(24, "I8", 0, 1),	   PLAIN_TYPE(25, "I16", 0, 2),
					  PLAIN_TYPE(26, "I32", 0, 4),	   PLAIN_TYPE(27, "I64", 0, 8),
					  PLAIN_TYPE(28, "F64", 0, 8),	   PLAIN_TYPE(30, "BF16", OD_BF16, 2),
#define BLOCK_TYPE(NAME, name, number, text, weights, bytes, rule, uses) \
	{ (number)-64, text, OD_##NAME, weights, bytes },
					  OD_BLOCK_FORMATS(BLOCK_TYPE)
#undef BLOCK_TYPE
};

/* Types that a file may have and nothing here reads. */
static const struct {
	uint32_t number;
	const char *name;
} refused[] = {
	{ 4, "Q4_2" },	      { 5, "Q4_3" },	    { 9, "Q8_1" },	{ 15, "Q8_K" },
	{ 31, "Q4_0_4_4" },   { 32, "Q4_0_4_8" },   { 33, "Q4_0_8_8" }, { 36, "IQ4_NL_4_4" },
	{ 37, "IQ4_NL_4_8" }, { 38, "IQ4_NL_8_8" }, { 41, "Q1_0" },	{ 42, "Q2_0" },
};

static const struct ggml_type *type_of(uint32_t number)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i].number == number)
			return &types[i];
	return NULL;
}

static const char *refused_name(uint32_t number)
{
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (refused[i].number == number)
			return refused[i].name;
	return NULL;
}

/* ---- One file's header ---- */

struct gguf_pair {
	const char *key;
	struct od_gguf_value v;
};

/* The header while it is read: as much of the file as was needed so far. */
struct gguf_header {
	const char *path;
	int fd;
	uint64_t size_bytes; /* the file's */
	uint8_t *bytes;
	size_t len, pos; /* read; parsed */
	char at[OD_GGUF_SHOWN_BYTES + 16]; /* " of key NAME" that is being read, for messages; or "" */
};

struct od_gguf {
	char *path;
	struct od_gguf_file *file;
	uint8_t **header; /* [n_files]: what names and metadata point into */
	size_t n_files;
	struct gguf_pair *pair; /* metadata of the first file, sorted by key */
	size_t n_pairs;
	struct od_gguf_tensor *tensor;
	size_t n_tensors;
};

static int cut(const struct gguf_header *h, uint64_t n, const char *what, struct od_err *err)
{
	return od_fail(err, OD_ERR_FORMAT,
		       "%s: cut short in its header: expected %s%s, %" PRIu64
		       " bytes at offset %zu, the file has %" PRIu64 AGAIN,
		       h->path, what, h->at, n, h->pos, h->size_bytes);
}

/* The next n bytes are in memory. What points into the header's memory must be made after the last call. */
static int need(struct gguf_header *h, uint64_t n, const char *what, struct od_err *err)
{
	uint64_t want;
	uint8_t *more;
	int rc;

	if (n <= h->len - h->pos)
		return OD_OK;
	if (n > h->size_bytes - h->pos)
		return cut(h, n, what, err);
	want = h->pos + n;
	if (want > MAX_HEADER_BYTES)
		return od_fail(err, OD_ERR_RANGE, "%s: a header of more than %u bytes: expected less", h->path,
			       MAX_HEADER_BYTES);
	want = want < h->len * 2 ? h->len * 2 : want;
	want = od_round_up(want, READ_BYTES);
	want = want < h->size_bytes ? want : h->size_bytes;
	more = realloc(h->bytes, want);
	if (more == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for its header", h->path);
	h->bytes = more;
	rc = od_file_pread(h->fd, h->bytes + h->len, want - h->len, h->len, h->path, err);
	h->len = rc == OD_OK ? want : h->len;
	return rc;
}

static int get_u32(struct gguf_header *h, uint32_t *out, const char *what, struct od_err *err)
{
	int rc = need(h, sizeof(*out), what, err);

	*out = 0;
	if (rc == OD_OK) {
		memcpy(out, h->bytes + h->pos, sizeof(*out));
		h->pos += sizeof(*out);
	}
	return rc;
}

static int get_u64(struct gguf_header *h, uint64_t *out, const char *what, struct od_err *err)
{
	int rc = need(h, sizeof(*out), what, err);

	*out = 0;
	if (rc == OD_OK) {
		memcpy(out, h->bytes + h->pos, sizeof(*out));
		h->pos += sizeof(*out);
	}
	return rc;
}

/* A string's length; the string is in memory, and h->pos is at its first byte. */
static int begin_string(struct gguf_header *h, uint64_t most, const char *what, uint64_t *len, struct od_err *err)
{
	const size_t at = h->pos;
	int rc = get_u64(h, len, what, err);

	if (rc == OD_OK && *len > most)
		rc = od_fail(err, OD_ERR_RANGE,
			     "%s: %s%s at offset %zu: expected at most %" PRIu64 " bytes, found %" PRIu64 DAMAGED,
			     h->path, what, h->at, at, most, *len);
	return rc == OD_OK ? need(h, *len, what, err) : rc;
}

/* Names and keys are shown, and compared as C strings: some visible ASCII. */
static int check_name(const struct gguf_header *h, const char *what, size_t at, size_t len, struct od_err *err)
{
	const uint8_t *text = h->bytes + at;

	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] > '~')
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: %s at offset %zu: expected letters, digits and signs of ASCII, found the "
				       "byte 0x%02x" DAMAGED,
				       h->path, what, at, text[i]);
	return len > 0 ? OD_OK :
			 od_fail(err, OD_ERR_FORMAT, "%s: %s at offset %zu: expected a text, found none" DAMAGED,
				 h->path, what, at);
}

static const uint8_t kind_bytes[OD_GGUF_N_KINDS] = {
	[OD_GGUF_U8] = 1,  [OD_GGUF_I8] = 1,  [OD_GGUF_U16] = 2, [OD_GGUF_I16] = 2,
	[OD_GGUF_U32] = 4, [OD_GGUF_I32] = 4, [OD_GGUF_F32] = 4, [OD_GGUF_BOOL] = 1,
	[OD_GGUF_U64] = 8, [OD_GGUF_I64] = 8, [OD_GGUF_F64] = 8,
};

static const char *const kind_names[OD_GGUF_N_KINDS] = { "uint8",  "int8",    "uint16", "int16",  "uint32",
							 "int32",  "float32", "bool",	"string", "array",
							 "uint64", "int64",   "float64" };

static int skip_string(struct gguf_header *h, struct od_err *err)
{
	uint64_t len;
	int rc = begin_string(h, MAX_HEADER_BYTES, "a string", &len, err);

	h->pos += rc == OD_OK ? len : 0;
	return rc;
}

static int skip_elements(struct gguf_header *h, enum od_gguf_kind of, uint64_t n, struct od_err *err)
{
	uint64_t bytes;
	int rc = OD_OK;

	if (of == OD_GGUF_STRING) {
		for (uint64_t i = 0; rc == OD_OK && i < n; i++)
			rc = skip_string(h, err);
		return rc;
	}
	if (!od_mul(n, kind_bytes[of], &bytes))
		bytes = UINT64_MAX;
	rc = need(h, bytes, "an array", err);
	h->pos += rc == OD_OK ? bytes : 0;
	return rc;
}

/* The kind of a value, or of an array's elements. */
static int get_kind(struct gguf_header *h, enum od_gguf_kind *out, bool in_array, struct od_err *err)
{
	const size_t at = h->pos;
	uint32_t kind;
	int rc = get_u32(h, &kind, "the kind of a value", err);

	*out = OD_GGUF_U8;
	if (rc != OD_OK)
		return rc;
	if (kind >= OD_GGUF_N_KINDS || (in_array && kind == OD_GGUF_ARRAY))
		return od_fail(err, OD_ERR_FORMAT, "%s: the kind%s at offset %zu: expected 0 to %u%s, found %u" DAMAGED,
			       h->path, h->at, at, OD_GGUF_N_KINDS - 1, in_array ? ", and no array in an array" : "",
			       kind);
	*out = (enum od_gguf_kind)kind;
	return OD_OK;
}

/* Offsets in the header, because its memory still moves. */
struct pair_at {
	size_t key, value;
	uint64_t key_len, n;
	enum od_gguf_kind kind, of;
};

static int parse_pair(struct gguf_header *h, struct pair_at *p, struct od_err *err)
{
	char shown[OD_GGUF_SHOWN_BYTES];
	int rc = begin_string(h, MAX_KEY_BYTES, "a key", &p->key_len, err);

	if (rc != OD_OK)
		return rc;
	p->key = h->pos;
	h->pos += p->key_len;
	p->n = 1;
	rc = check_name(h, "a key", p->key, p->key_len, err);
	snprintf(h->at, sizeof(h->at), " of key %s", od_gguf_shown((const char *)h->bytes + p->key, p->key_len, shown));
	if (rc == OD_OK)
		rc = get_kind(h, &p->kind, false, err);
	p->of = p->kind;
	if (rc == OD_OK && p->kind == OD_GGUF_ARRAY) {
		rc = get_kind(h, &p->of, true, err);
		if (rc == OD_OK)
			rc = get_u64(h, &p->n, "the length of an array", err);
	} else if (rc == OD_OK && p->kind == OD_GGUF_STRING) {
		rc = begin_string(h, MAX_HEADER_BYTES, "a string", &p->n, err);
		p->value = h->pos;
		h->pos += rc == OD_OK ? p->n : 0;
		return rc;
	}
	p->value = h->pos;
	return rc == OD_OK ? skip_elements(h, p->of, p->n, err) : rc;
}

/* Where a tensor's name is in the header; the rest is known at once. */
struct tensor_at {
	size_t name;
	struct od_gguf_tensor t;
};

static int parse_dims(struct gguf_header *h, const char *name, int name_len, struct od_gguf_tensor *t,
		      uint64_t *n_weights, struct od_err *err)
{
	int rc = get_u32(h, &t->n_dims, "a number of dimensions", err);

	*n_weights = 1;
	if (rc == OD_OK && (t->n_dims == 0 || t->n_dims > OD_GGUF_MAX_DIMS))
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %.*s: expected 1 to %d dimensions, found %u" DAMAGED,
			       h->path, name_len, name, OD_GGUF_MAX_DIMS, t->n_dims);
	for (uint32_t i = 0; i < OD_GGUF_MAX_DIMS; i++)
		t->dim[i] = 1;
	for (uint32_t i = 0; rc == OD_OK && i < t->n_dims; i++)
		rc = get_u64(h, &t->dim[i], "a dimension", err);
	for (uint32_t i = 0; rc == OD_OK && i < t->n_dims; i++)
		if (t->dim[i] == 0 || !od_mul(*n_weights, t->dim[i], n_weights))
			return od_fail(err, OD_ERR_RANGE,
				       "%s: tensor %.*s: found dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64
				       " x %" PRIu64
				       ": expected each to be at least 1, and fewer than 2^64 weights in all" DAMAGED,
				       h->path, name_len, name, t->dim[0], t->dim[1], t->dim[2], t->dim[3]);
	return rc;
}

static int parse_type(struct gguf_header *h, const char *name, int name_len, struct od_gguf_tensor *t,
		      uint64_t n_weights, struct od_err *err)
{
	const struct ggml_type *type;
	uint32_t number;
	int rc = get_u32(h, &number, "a tensor's type", err);

	if (rc != OD_OK)
		return rc;
	type = type_of(number);
	if (type == NULL && refused_name(number) != NULL)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: tensor %.*s is of type %s, which is not supported: take another quantisation of the model",
			h->path, name_len, name, refused_name(number));
	if (type == NULL)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: tensor %.*s is of type %u, which is unknown: expected one of ggml's types up to %u; a "
			"newer od-moe may know it, else the file is damaged",
			h->path, name_len, name, number, OD_DTYPE_LAST - 64);
	if (t->dim[0] % type->weights != 0)
		return od_fail(err, OD_ERR_SHAPE,
			       "%s: tensor %.*s: rows of %" PRIu64
			       " weights of type %s: expected a multiple of %u" DAMAGED,
			       h->path, name_len, name, t->dim[0], type->name, type->weights);
	t->type_name = type->name;
	t->dtype = (enum od_dtype)type->dtype;
	if (!od_mul(n_weights / type->weights, type->bytes, &t->bytes))
		return od_fail(err, OD_ERR_RANGE,
			       "%s: tensor %.*s: expected fewer than 2^64 bytes, found a "
			       "shape of %" PRIu64 " weights of type %s" DAMAGED,
			       h->path, name_len, name, n_weights, type->name);
	return OD_OK;
}

static int parse_tensor(struct gguf_header *h, struct tensor_at *out, struct od_err *err)
{
	uint64_t len, n_weights;
	char name[MAX_NAME_BYTES + 1];
	int rc = begin_string(h, MAX_NAME_BYTES, "a tensor's name", &len, err);

	if (rc != OD_OK)
		return rc;
	out->name = h->pos;
	memcpy(name, h->bytes + h->pos, len);
	h->pos += len;
	rc = check_name(h, "the name of a tensor", out->name, len, err);
	if (rc != OD_OK)
		return rc;
	rc = parse_dims(h, name, (int)len, &out->t, &n_weights, err);
	if (rc == OD_OK)
		rc = parse_type(h, name, (int)len, &out->t, n_weights, err);
	return rc == OD_OK ? get_u64(h, &out->t.offset, "a tensor's offset", err) : rc;
}

/* ---- A file ---- */

/* A file's header, with offsets in its memory. */
struct parsed {
	struct pair_at *pair;
	uint64_t n_pairs;
	struct tensor_at *tensor;
	uint64_t n_tensors;
};

/* n entries of at least `least` bytes each: more than a header has room for is refused before memory is taken. */
static int alloc_entries(const struct gguf_header *h, void **out, uint64_t n, uint64_t least, size_t each,
			 const char *what, struct od_err *err)
{
	const uint64_t most = (h->size_bytes < MAX_HEADER_BYTES ? h->size_bytes : MAX_HEADER_BYTES) / least;

	*out = NULL;
	if (n > most)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: its header says that it has %" PRIu64 " %s: expected at most %" PRIu64
			       " in a file of %" PRIu64 " bytes; the file is damaged: get it again",
			       h->path, n, what, most, h->size_bytes);
	*out = calloc(n + 1, each);
	return *out != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: no memory for %" PRIu64 " %s", h->path, n, what);
}

static int check_version(const struct gguf_header *h, uint32_t version, struct od_err *err)
{
	if (version >= VERSION_LEAST && version <= VERSION_MOST)
		return OD_OK;
	if (version != 0 && (version & 0xffffu) == 0)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: a GGUF file for big-endian machines: expected one for little-endian ones: take that "
			"one, or convert the model again",
			h->path);
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: GGUF version %u: expected %u or %u%s", h->path, version,
		       VERSION_LEAST, VERSION_MOST,
		       version < VERSION_LEAST ? "; convert the model again with a newer llama.cpp" :
						 "; a newer od-moe may read it");
}

static int parse_header(struct gguf_header *h, struct parsed *p, struct od_err *err)
{
	uint32_t version;
	int rc = need(h, sizeof(MAGIC) - 1, "the magic", err);

	if (rc == OD_OK && memcmp(h->bytes, MAGIC, sizeof(MAGIC) - 1) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: expected a GGUF file, found %02x %02x %02x %02x at its start",
			       h->path, h->bytes[0], h->bytes[1], h->bytes[2], h->bytes[3]);
	h->pos = sizeof(MAGIC) - 1;
	if (rc == OD_OK)
		rc = get_u32(h, &version, "the version", err);
	if (rc == OD_OK)
		rc = check_version(h, version, err);
	if (rc == OD_OK)
		rc = get_u64(h, &p->n_tensors, "the number of tensors", err);
	if (rc == OD_OK)
		rc = get_u64(h, &p->n_pairs, "the number of keys", err);
	if (rc == OD_OK)
		rc = alloc_entries(h, (void **)&p->pair, p->n_pairs, 13, sizeof(*p->pair), "keys", err);
	if (rc == OD_OK)
		rc = alloc_entries(h, (void **)&p->tensor, p->n_tensors, 33, sizeof(*p->tensor), "tensors", err);
	for (uint64_t i = 0; rc == OD_OK && i < p->n_pairs; i++) {
		h->at[0] = '\0';
		rc = parse_pair(h, &p->pair[i], err);
	}
	h->at[0] = '\0';
	for (uint64_t i = 0; rc == OD_OK && i < p->n_tensors; i++)
		rc = parse_tensor(h, &p->tensor[i], err);
	return rc;
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct gguf_pair *)a)->key, ((const struct gguf_pair *)b)->key);
}

/* Keys in memory that ends with a NUL: the length before the next string, or its kind, ends each; so copies. */
static int take_pairs(struct gguf_pair **out, const struct gguf_header *h, const struct parsed *p, struct od_err *err)
{
	uint64_t bytes = 0;
	struct gguf_pair *pair;
	char *text;

	for (uint64_t i = 0; i < p->n_pairs; i++)
		bytes += p->pair[i].key_len + 1; /* all are in the header, which is less than 1 GiB */
	pair = malloc((p->n_pairs + 1) * sizeof(*pair) + bytes);
	*out = pair;
	if (pair == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %" PRIu64 " keys", h->path, p->n_pairs);
	text = (char *)(pair + p->n_pairs + 1);
	for (uint64_t i = 0; i < p->n_pairs; i++) {
		const struct pair_at *a = &p->pair[i];

		memcpy(text, h->bytes + a->key, a->key_len);
		text[a->key_len] = '\0';
		pair[i] = (struct gguf_pair){ text, { a->kind, a->of, a->n, h->bytes + a->value } };
		text += a->key_len + 1;
	}
	qsort(pair, p->n_pairs, sizeof(*pair), by_key);
	for (uint64_t i = 1; i < p->n_pairs; i++)
		if (strcmp(pair[i].key, pair[i - 1].key) == 0)
			return od_fail(err, OD_ERR_FORMAT, "%s: key %s is there twice" DAMAGED, h->path, pair[i].key);
	return OD_OK;
}

static const struct od_gguf_value *find_pair(const struct gguf_pair *pair, size_t n, const char *key)
{
	const struct gguf_pair want = { .key = key };
	const struct gguf_pair *found = n > 0 ? bsearch(&want, pair, n, sizeof(*pair), by_key) : NULL;

	return found != NULL ? &found->v : NULL;
}

static int read_alignment(const struct gguf_header *h, const struct gguf_pair *pair, size_t n, uint64_t *out,
			  struct od_err *err)
{
	const struct od_gguf_value *v = find_pair(pair, n, "general.alignment");

	*out = ALIGNMENT;
	if (v == NULL)
		return OD_OK;
	*out = v->kind == OD_GGUF_U32 ? (uint64_t)od_gguf_int_at(v, 0) : 0;
	if (*out < 8 || *out > MAX_ALIGNMENT || (*out & (*out - 1)) != 0)
		return od_fail(
			err, OD_ERR_FORMAT,
			"%s: key general.alignment: expected a uint32, a power of two from 8 to %u, found %s %" PRId64
				DAMAGED,
			h->path, MAX_ALIGNMENT, kind_names[v->kind], od_gguf_int_at(v, 0));
	return OD_OK;
}

static int by_offset(const void *a, const void *b)
{
	const struct od_gguf_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Tensor i ends behind the file. Tensors stand one behind the other, so the file is cut short, or the tensor's
 * offset is wrong. due: where the next one is expected. */
static int beyond(const struct gguf_header *h, const struct od_gguf_tensor *t, size_t n, size_t i, uint64_t data_offset,
		  uint64_t due, struct od_err *err)
{
	uint64_t end = 0, begin;

	if (!od_add(data_offset, t[i].offset, &begin))
		begin = UINT64_MAX;
	if (begin != due && begin >= h->size_bytes)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: tensor %s begins at offset %" PRIu64 ": expected its %" PRIu64
			       " bytes within the file, which has %" PRIu64 DAMAGED,
			       h->path, t[i].name, begin, t[i].bytes, h->size_bytes);

	for (size_t k = i; k < n; k++)
		if (!od_add(data_offset, t[k].offset, &end) || !od_add(end, t[k].bytes, &end))
			end = UINT64_MAX;
	return od_fail(err, OD_ERR_RANGE,
		       "%s: cut short: %" PRIu64 " of %" PRIu64 " bytes are missing, from those of tensor %s on" AGAIN,
		       h->path, end - h->size_bytes, end, t[i].name);
}

/* Offsets from the file's start; every byte of a tensor is in the file, and no byte is in two. t: sorted by offset. */
static int check_extents(const struct gguf_header *h, struct od_gguf_tensor *t, size_t n, uint64_t data_offset,
			 uint64_t alignment, struct od_err *err)
{
	uint64_t end = data_offset, begin;

	for (size_t i = 0; i < n; i++) {
		const uint64_t due = od_round_up(end, alignment);

		if (t[i].offset % alignment != 0)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: tensor %s begins at %" PRIu64
				       " of the data: expected a multiple of %" PRIu64 DAMAGED,
				       h->path, t[i].name, t[i].offset, alignment);
		if (!od_add(data_offset, t[i].offset, &begin))
			begin = UINT64_MAX;
		if (begin < end)
			return od_fail(err, OD_ERR_FORMAT, "%s: tensors %s and %s overlap at offset %" PRIu64 DAMAGED,
				       h->path, t[i - 1].name, t[i].name, begin);
		if (!od_add(begin, t[i].bytes, &end) || end > h->size_bytes)
			return beyond(h, t, n, i, data_offset, due, err);
		t[i].offset = begin;
	}
	return OD_OK;
}

/* The tensors of the last file, behind those of the files before. */
static int take_tensors(struct od_gguf *g, struct gguf_header *h, const struct parsed *p, uint64_t data_offset,
			uint64_t alignment, struct od_err *err)
{
	struct od_gguf_tensor *all =
		reallocarray(g->tensor, g->n_tensors + p->n_tensors + 1, sizeof(*all)); /* counts are below 2^58 */
	struct od_gguf_tensor *mine;

	if (all == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %" PRIu64 " tensors", h->path, p->n_tensors);
	g->tensor = all;
	mine = all + g->n_tensors;
	for (uint64_t i = 0; i < p->n_tensors; i++) {
		mine[i] = p->tensor[i].t;
		mine[i].file = (uint32_t)(g->n_files - 1);
		mine[i].name = (const char *)h->bytes + p->tensor[i].name;
	}
	/* A number of dimensions follows each name; it was read, and its first byte is in the way. */
	for (uint64_t i = 0; i < p->n_tensors; i++) {
		uint64_t len;

		memcpy(&len, h->bytes + p->tensor[i].name - sizeof(len), sizeof(len));
		h->bytes[p->tensor[i].name + len] = '\0';
	}
	g->n_tensors += p->n_tensors;
	qsort(mine, p->n_tensors, sizeof(*mine), by_offset);
	return check_extents(h, mine, p->n_tensors, data_offset, alignment, err);
}

static void free_parsed(struct parsed *p)
{
	free(p->pair);
	free(p->tensor);
}

/* Opens a file and reads its header; *pair: its metadata, to free. */
static int add_file(struct od_gguf *g, const char *path, struct gguf_pair **pair, size_t *n_pairs, struct od_err *err)
{
	struct od_gguf_file *file = reallocarray(g->file, g->n_files + 1, sizeof(*file)), *f;
	uint8_t **header = reallocarray(g->header, g->n_files + 1, sizeof(*header));
	struct gguf_header h = { .path = path };
	struct parsed p = { 0 };
	uint64_t alignment;
	struct stat st;
	int rc;

	*pair = NULL;
	*n_pairs = 0;
	g->file = file != NULL ? file : g->file;
	g->header = header != NULL ? header : g->header;
	if (file == NULL || header == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	f = &g->file[g->n_files];
	*f = (struct od_gguf_file){ .path = strdup(path), .fd = -1 };
	g->header[g->n_files] = NULL;
	g->n_files++; /* closing frees them from here on */
	if (f->path == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	rc = od_file_open(path, &f->fd, &f->size_bytes, err);
	if (rc != OD_OK)
		return rc;
	if (fstat(f->fd, &st) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot stat %s", path);
	f->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	h.fd = f->fd;
	h.size_bytes = f->size_bytes;
	rc = parse_header(&h, &p, err);
	g->header[g->n_files - 1] = h.bytes; /* it moves no more */
	if (rc == OD_OK) {
		*n_pairs = p.n_pairs;
		rc = take_pairs(pair, &h, &p, err);
	}
	if (rc == OD_OK)
		rc = read_alignment(&h, *pair, p.n_pairs, &alignment, err);
	if (rc == OD_OK) {
		f->data_offset = od_round_up(h.pos, alignment);
		crypto_hash_sha256(f->header_sha256, h.bytes, h.pos);
		rc = take_tensors(g, &h, &p, f->data_offset, alignment, err);
	}
	free_parsed(&p);
	return rc;
}

/* ---- All files ---- */

struct gguf_split {
	uint64_t no, count, tensors; /* count 1: the file is not split */
};

static int read_split(const char *path, const struct gguf_pair *pair, size_t n, struct gguf_split *s,
		      struct od_err *err)
{
	static const char *const keys[] = { "split.no", "split.count", "split.tensors.count" };
	uint64_t *const to[] = { &s->no, &s->count, &s->tensors };

	*s = (struct gguf_split){ .count = 1 };
	if (find_pair(pair, n, keys[1]) == NULL)
		return OD_OK;
	for (size_t i = 0; i < 3; i++) {
		const struct od_gguf_value *v = find_pair(pair, n, keys[i]);

		if (v == NULL || v->kind == OD_GGUF_ARRAY || v->kind == OD_GGUF_STRING || od_gguf_int_at(v, 0) < 0)
			return od_fail(err, OD_ERR_FORMAT, "%s: %s: expected an integer that is not negative, found %s",
				       path, keys[i], v == NULL ? "none" : kind_names[v->kind]);
		*to[i] = (uint64_t)od_gguf_int_at(v, 0);
	}
	if (s->count <= 1) /* so says who split nothing */
		*s = (struct gguf_split){ .count = 1 };
	else if (s->count > MAX_FILES || s->no >= s->count)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: split.no %" PRIu64 " of split.count %" PRIu64
			       ": expected at most %u files, numbered from 0 on",
			       path, s->no, s->count, MAX_FILES);
	return OD_OK;
}

/* The name of file i of a split one: "NAME-00001-of-00003.gguf", counted from 1. False: path is not such a name. */
static bool name_of(const char *path, const struct gguf_split *s, uint64_t i, char *out, size_t size)
{
	char end[48], own[48];
	const size_t len = strlen(path);
	size_t n;

	snprintf(own, sizeof(own), "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", s->no + 1, s->count);
	snprintf(end, sizeof(end), "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", i + 1, s->count);
	n = strlen(own);
	if (len <= n || strcmp(path + len - n, own) != 0)
		return false;
	return (size_t)snprintf(out, size, "%.*s%s", (int)(len - n), path, end) < size;
}

/* File i of a split model of which file `first` was given. */
static int add_part(struct od_gguf *g, const char *given, const struct gguf_split *first, uint64_t i,
		    struct od_err *err)
{
	struct gguf_pair *pair = NULL;
	struct gguf_split s;
	char path[PATH_MAX];
	size_t n = 0;
	int rc;

	if (!name_of(given, first, i, path, sizeof(path)))
		return od_fail(err, OD_ERR_ARG,
			       "%s is file %" PRIu64 " of %" PRIu64 " of a split model: expected its name to end with "
			       "-%05" PRIu64 "-of-%05" PRIu64 ".gguf, to find the others beside it",
			       given, first->no + 1, first->count, first->no + 1, first->count);
	rc = add_file(g, path, &pair, &n, err);
	if (rc == OD_ERR_MISSING || (rc == OD_ERR_IO && !od_file_there(path)))
		rc = od_fail(err, OD_ERR_MISSING,
			     "%s is missing: file %" PRIu64 " of %" PRIu64
			     " of the model of %s; get all files of the model, into one folder",
			     path, i + 1, first->count, given);
	if (rc == OD_OK)
		rc = read_split(path, pair, n, &s, err);
	if (rc == OD_OK && (s.no != i || s.count != first->count || s.tensors != first->tensors))
		rc = od_fail(err, OD_ERR_MISMATCH,
			     "%s: it says that it is file %" PRIu64 " of %" PRIu64 " with %" PRIu64
			     " tensors in all: expected %" PRIu64 " of %" PRIu64 " with %" PRIu64
			     ", by its name and %s; get all files of the model again, of one publication",
			     path, s.no + 1, s.count, s.tensors, i + 1, first->count, first->tensors, given);
	if (i == 0) {
		g->pair = pair;
		g->n_pairs = n;
	} else {
		free(pair);
	}
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct od_gguf_tensor *)a)->name, ((const struct od_gguf_tensor *)b)->name);
}

static int sort_tensors(struct od_gguf *g, struct od_err *err)
{
	if (g->n_tensors == 0)
		return od_fail(
			err, OD_ERR_FORMAT,
			"%s: expected tensors, found none: this is a file with a vocabulary alone, or one that is "
			"damaged; name the file of the model",
			g->path);
	qsort(g->tensor, g->n_tensors, sizeof(*g->tensor), by_name);
	for (size_t i = 1; i < g->n_tensors; i++)
		if (strcmp(g->tensor[i].name, g->tensor[i - 1].name) == 0)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: tensor %s is there twice, at offsets %" PRIu64 " and %" PRIu64 DAMAGED,
				       g->file[g->tensor[i].file].path, g->tensor[i].name, g->tensor[i - 1].offset,
				       g->tensor[i].offset);
	return OD_OK;
}

/* Forgets the only file, to begin with the first one of several. */
static void forget_file(struct od_gguf *g)
{
	close(g->file[0].fd);
	free(g->file[0].path);
	free(g->header[0]);
	free(g->pair);
	free(g->tensor);
	g->pair = NULL;
	g->tensor = NULL;
	g->n_files = g->n_pairs = g->n_tensors = 0;
}

static int open_files(struct od_gguf *g, struct od_err *err)
{
	struct gguf_split s;
	int rc = add_file(g, g->path, &g->pair, &g->n_pairs, err);

	if (rc == OD_OK)
		rc = read_split(g->path, g->pair, g->n_pairs, &s, err);
	if (rc != OD_OK)
		return rc;
	if (s.count > 1) {
		forget_file(g);
		for (uint64_t i = 0; rc == OD_OK && i < s.count; i++)
			rc = add_part(g, g->path, &s, i, err);
		if (rc == OD_OK && g->n_tensors != s.tensors)
			rc = od_fail(err, OD_ERR_MISMATCH,
				     "%s: split.tensors.count: expected %" PRIu64 " tensors in %" PRIu64
				     " files, found %zu; get all files of the model again, of one publication",
				     g->path, s.tensors, s.count, g->n_tensors);
	}
	return rc == OD_OK ? sort_tensors(g, err) : rc;
}

int od_gguf_open(struct od_gguf **out, const char *path, struct od_err *err)
{
	struct od_gguf *g = calloc(1, sizeof(*g));
	int rc;

	*out = NULL;
	if (g == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	g->path = strdup(path);
	rc = g->path != NULL ? open_files(g, err) : od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	if (rc != OD_OK) {
		od_gguf_close(g);
		return rc;
	}
	*out = g;
	return OD_OK;
}

void od_gguf_close(struct od_gguf *g)
{
	if (g == NULL)
		return;
	for (size_t i = 0; i < g->n_files; i++) {
		if (g->file[i].fd >= 0)
			close(g->file[i].fd);
		free(g->file[i].path);
		free(g->header[i]);
	}
	free(g->file);
	free(g->header);
	free(g->pair);
	free(g->tensor);
	free(g->path);
	free(g);
}

bool od_gguf_is(const char *path)
{
	char magic[sizeof(MAGIC) - 1];
	struct od_err ignored;
	uint64_t size;
	bool is;
	int fd;

	if (od_file_open(path, &fd, &size, &ignored) != OD_OK)
		return false;
	is = size >= sizeof(magic) && od_file_pread(fd, magic, sizeof(magic), 0, path, &ignored) == OD_OK &&
	     memcmp(magic, MAGIC, sizeof(magic)) == 0;
	close(fd);
	return is;
}

const char *od_gguf_path(const struct od_gguf *g)
{
	return g->path;
}

size_t od_gguf_n_files(const struct od_gguf *g)
{
	return g->n_files;
}

const struct od_gguf_file *od_gguf_file(const struct od_gguf *g, size_t i)
{
	return &g->file[i];
}

size_t od_gguf_n_tensors(const struct od_gguf *g)
{
	return g->n_tensors;
}

const struct od_gguf_tensor *od_gguf_tensor(const struct od_gguf *g, size_t i)
{
	return &g->tensor[i];
}

const struct od_gguf_tensor *od_gguf_find(const struct od_gguf *g, const char *name)
{
	const struct od_gguf_tensor want = { .name = name };

	return bsearch(&want, g->tensor, g->n_tensors, sizeof(*g->tensor), by_name);
}

int od_gguf_read(const struct od_gguf *g, const struct od_gguf_tensor *t, uint64_t offset, void *buf, size_t len,
		 struct od_err *err)
{
	const struct od_gguf_file *f = &g->file[t->file];
	int rc;

	if (offset > t->bytes || len > t->bytes - offset)
		return od_fail(err, OD_ERR_RANGE, "%s: tensor %s: bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64,
			       f->path, t->name, offset, offset + len, t->bytes);
	rc = od_file_pread(f->fd, buf, len, t->offset + offset, f->path, err);
	return rc == OD_OK ? OD_OK : od_fail_within(err, "tensor %s", t->name);
}

/* ---- Metadata ---- */

const struct od_gguf_value *od_gguf_get(const struct od_gguf *g, const char *key)
{
	return find_pair(g->pair, g->n_pairs, key);
}

static int64_t sign_extended(const uint8_t *at, unsigned bytes, bool is_signed)
{
	uint64_t u = 0;

	memcpy(&u, at, bytes);
	if (is_signed && bytes < 8 && (u >> (8 * bytes - 1) & 1u) != 0)
		u |= ~(uint64_t)0 << 8 * bytes;
	return (int64_t)u;
}

static bool is_signed(enum od_gguf_kind k)
{
	return k == OD_GGUF_I8 || k == OD_GGUF_I16 || k == OD_GGUF_I32 || k == OD_GGUF_I64;
}

static bool is_integer(enum od_gguf_kind k)
{
	return is_signed(k) || k == OD_GGUF_U8 || k == OD_GGUF_U16 || k == OD_GGUF_U32 || k == OD_GGUF_U64;
}

int64_t od_gguf_int_at(const struct od_gguf_value *v, uint64_t i)
{
	const unsigned bytes = kind_bytes[v->of];

	if (i >= v->n || !(is_integer(v->of) || v->of == OD_GGUF_BOOL))
		return 0;
	return sign_extended(v->at + i * bytes, bytes, is_signed(v->of));
}

double od_gguf_number_at(const struct od_gguf_value *v, uint64_t i)
{
	double d = 0;
	float f = 0;

	if (i >= v->n)
		return 0;
	if (v->of == OD_GGUF_F64)
		memcpy(&d, v->at + i * sizeof(d), sizeof(d));
	else if (v->of == OD_GGUF_F32)
		memcpy(&f, v->at + i * sizeof(f), sizeof(f)), d = (double)f;
	else
		d = (double)od_gguf_int_at(v, i);
	return d;
}

const char *od_gguf_shown(const char *text, size_t len, char buf[OD_GGUF_SHOWN_BYTES])
{
	size_t n = 0;

	for (; n < len && n < OD_GGUF_SHOWN_BYTES - 1; n++)
		buf[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
	buf[n] = '\0';
	return buf;
}

const char *od_gguf_next_string(const uint8_t **at, size_t *len)
{
	uint64_t n;
	const char *text;

	memcpy(&n, *at, sizeof(n));
	text = (const char *)*at + sizeof(n);
	*at += sizeof(n) + n;
	*len = (size_t)n;
	return text;
}

static int wanted(const struct od_gguf *g, const char *key, const char *expected, const struct od_gguf_value **out,
		  struct od_err *err)
{
	*out = od_gguf_get(g, key);
	if (*out != NULL)
		return OD_OK;
	return od_fail(err, OD_ERR_MISSING, "%s: key %s is missing: expected %s" OD_GGUF_OTHER, g->file[0].path, key,
		       expected);
}

static int wrong_kind(const struct od_gguf *g, const char *key, const char *expected, const struct od_gguf_value *v,
		      struct od_err *err)
{
	return od_fail(err, OD_ERR_FORMAT, "%s: key %s: expected %s, found %s%s" OD_GGUF_OTHER, g->file[0].path, key,
		       expected, v->kind == OD_GGUF_ARRAY ? "an array of " : "", kind_names[v->of]);
}

int od_gguf_u64(const struct od_gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct od_err *err)
{
	const struct od_gguf_value *v;
	int rc = wanted(g, key, "an integer", &v, err);
	bool negative;

	*out = 0;
	if (rc != OD_OK)
		return rc;
	if (!is_integer(v->kind))
		return wrong_kind(g, key, "an integer", v, err);
	negative = is_signed(v->kind) && od_gguf_int_at(v, 0) < 0;
	*out = (uint64_t)od_gguf_int_at(v, 0);
	if (negative || *out < min || *out > max)
		rc = od_fail(err, OD_ERR_RANGE,
			     "%s: key %s: expected %" PRIu64 " to %" PRIu64 ", found %s%" PRIu64 OD_GGUF_OTHER,
			     g->file[0].path, key, min, max, negative ? "-" : "", negative ? -*out : *out);
	return rc;
}

int od_gguf_f64(const struct od_gguf *g, const char *key, double *out, struct od_err *err)
{
	const struct od_gguf_value *v;
	int rc = wanted(g, key, "a float", &v, err);

	*out = 0;
	if (rc != OD_OK)
		return rc;
	if (v->kind != OD_GGUF_F32 && v->kind != OD_GGUF_F64)
		return wrong_kind(g, key, "a float", v, err);
	*out = od_gguf_number_at(v, 0);
	return OD_OK;
}

int od_gguf_bool(const struct od_gguf *g, const char *key, bool *out, struct od_err *err)
{
	const struct od_gguf_value *v;
	int rc = wanted(g, key, "a bool", &v, err);

	*out = false;
	if (rc != OD_OK)
		return rc;
	if (v->kind != OD_GGUF_BOOL)
		return wrong_kind(g, key, "a bool", v, err);
	*out = od_gguf_int_at(v, 0) != 0;
	return OD_OK;
}

int od_gguf_str(const struct od_gguf *g, const char *key, const char **text, size_t *len, struct od_err *err)
{
	const struct od_gguf_value *v;
	int rc = wanted(g, key, "a string", &v, err);

	*text = "";
	*len = 0;
	if (rc != OD_OK)
		return rc;
	if (v->kind != OD_GGUF_STRING)
		return wrong_kind(g, key, "a string", v, err);
	if (memchr(v->at, '\0', v->n) != NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: key %s: expected a text without a NUL" OD_GGUF_OTHER,
			       g->file[0].path, key);
	*text = (const char *)v->at;
	*len = (size_t)v->n;
	return OD_OK;
}

int od_gguf_array(const struct od_gguf *g, const char *key, enum od_gguf_kind of, uint64_t n_least,
		  struct od_gguf_value *out, struct od_err *err)
{
	const struct od_gguf_value *v;
	char expected[64];
	int rc;

	snprintf(expected, sizeof(expected), "an array of %s", kind_names[of]);
	*out = (struct od_gguf_value){ .kind = OD_GGUF_ARRAY, .of = of };
	rc = wanted(g, key, expected, &v, err);
	if (rc != OD_OK)
		return rc;
	if (v->kind != OD_GGUF_ARRAY || (v->of != of && !(is_integer(v->of) && is_integer(of))))
		return wrong_kind(g, key, expected, v, err);
	if (v->n < n_least)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: key %s: expected at least %" PRIu64 " elements, found %" PRIu64 OD_GGUF_OTHER,
			       g->file[0].path, key, n_least, v->n);
	*out = *v;
	return OD_OK;
}
