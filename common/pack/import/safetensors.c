#include "common/pack/import/safetensors.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/pack/gguf/gguf.h"
#include "common/pack/gguf/gguf_folder.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define INDEX_MAX_BYTES 100000000u
#define FILES_MAX 10000u

struct od_checkpoint {
	char *dir;
	struct od_gguf *gguf; /* it owns the files; NULL: safetensors */
	char *folder; /* a GGUF file's; else NULL */
	bool temporary; /* the folder goes with the checkpoint */
	struct od_checkpoint_file *file;
	size_t n_files, files_room;
	struct od_tensor *tensor;
	size_t n_tensors, tensors_room;
};

/* Types of the format. Those that we do not compute with may still belong to tensors that are left out. */
static const struct {
	const char *name;
	uint32_t bytes;
	enum od_dtype dtype;
} types[] = {
	{ "BF16", 2, OD_BF16 },
	{ "F16", 2, OD_F16 },
	{ "F32", 4, OD_F32 },
	{ "F64", 8, 0 },
	{ "I64", 8, 0 },
	{ "U64", 8, 0 },
	{ "I32", 4, 0 },
	{ "U32", 4, 0 },
	{ "I16", 2, 0 },
	{ "U16", 2, 0 },
	{ "I8", 1, OD_INT8 },
	{ "U8", 1, 0 },
	{ "BOOL", 1, 0 },
	{ "F8_E5M2", 1, OD_F8_E5M2 },
	{ "F8_E4M3", 1, OD_F8_E4M3 },
	{ "F8_E8M0", 1, OD_F8_E8M0 },
};

/* One file's header text while it is parsed. */
struct header {
	const char *file; /* path, for messages */
	const char *text;
	size_t len, pos;
	uint64_t data_bytes;
};

static bool grow(void **array, size_t n, size_t *room, size_t each)
{
	size_t want = *room == 0 ? 64 : *room * 2;
	void *p;

	if (n < *room)
		return true;
	p = reallocarray(*array, want, each);
	if (p == NULL)
		return false;
	*array = p;
	*room = want;
	return true;
}

static void skip_space(struct header *h)
{
	while (h->pos < h->len && strchr(" \t\r\n", h->text[h->pos]) != NULL && h->text[h->pos] != '\0')
		h->pos++;
}

static int bad_json(const struct header *h, const char *why, struct od_err *err)
{
	return od_fail(err, OD_ERR_FORMAT, "%s: header is not valid JSON: byte %zu: %s", h->file, h->pos, why);
}

static int expect_char(struct header *h, char c, struct od_err *err)
{
	char why[32];

	skip_space(h);
	if (h->pos < h->len && h->text[h->pos] == c) {
		h->pos++;
		return OD_OK;
	}
	snprintf(why, sizeof(why), "expected '%c'", c);
	return bad_json(h, why, err);
}

/* One value at a time, so that a header of 100 MB does not become a gigabyte of JSON nodes. */
static int next_value(struct header *h, json_t **out, struct od_err *err)
{
	json_error_t why;

	skip_space(h);
	*out = od_json_loadb(h->text + h->pos, h->len - h->pos,
			     JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &why);
	if (*out == NULL && why.text[0] == '\0')
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory to read its header", h->file);
	if (*out == NULL)
		return bad_json(h, why.text, err);
	h->pos += (size_t)why.position;
	return OD_OK;
}

/* "data_offsets": [begin, end] relative to the end of the header. */
static int read_range(struct od_tensor *t, const json_t *v, const struct header *h, struct od_err *err)
{
	const json_t *a = json_object_get(v, "data_offsets");
	json_int_t begin = json_integer_value(json_array_get(a, 0)), end = json_integer_value(json_array_get(a, 1));

	if (json_array_size(a) != 2 || !json_is_integer(json_array_get(a, 0)) || !json_is_integer(json_array_get(a, 1)))
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: field \"data_offsets\": expected two integers",
			       h->file, t->name);
	if (begin < 0 || end < begin || (uint64_t)end > h->data_bytes)
		return od_fail(err, OD_ERR_RANGE,
			       "%s: tensor %s: data_offsets [%lld, %lld] are outside the data: "
			       "expected at most %" PRIu64 " bytes (file cut short? download it again)",
			       h->file, t->name, (long long)begin, (long long)end, h->data_bytes);
	t->offset = 8 + h->len + (uint64_t)begin;
	t->bytes = (uint64_t)(end - begin);
	return OD_OK;
}

static int read_type(struct od_tensor *t, const json_t *v, uint32_t *bytes, const struct header *h, struct od_err *err)
{
	const char *name;
	int rc = od_json_str(v, "dtype", &name, h->file, err);

	*bytes = 0;
	if (rc != OD_OK)
		return od_fail_within(err, "tensor %s", t->name);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (strcmp(types[i].name, name) != 0)
			continue;
		t->dtype_name = types[i].name;
		t->dtype = types[i].dtype;
		*bytes = types[i].bytes;
		return OD_OK;
	}
	return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: unknown dtype \"%.32s\"", h->file, t->name, name);
}

static int read_shape(struct od_tensor *t, const json_t *v, uint64_t *count, const struct header *h, struct od_err *err)
{
	const json_t *a = json_object_get(v, "shape");
	uint64_t n = 1;

	*count = 0;
	if (!json_is_array(a) || json_array_size(a) > OD_TENSOR_MAX_DIMS)
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: field \"shape\": expected at most %d integers",
			       h->file, t->name, OD_TENSOR_MAX_DIMS);
	t->n_dims = (uint32_t)json_array_size(a);
	for (uint32_t i = 0; i < t->n_dims; i++) {
		const json_t *d = json_array_get(a, i);

		if (!json_is_integer(d) || json_integer_value(d) < 0)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: tensor %s: field \"shape\": dimension %u is not a "
				       "positive integer",
				       h->file, t->name, i);
		t->shape[i] = (uint64_t)json_integer_value(d);
		if (!od_mul(n, t->shape[i], &n))
			return od_fail(err, OD_ERR_RANGE, "%s: tensor %s: shape is too large", h->file, t->name);
	}
	*count = n;
	return OD_OK;
}

static int read_tensor(struct od_tensor *t, const json_t *v, const struct header *h, struct od_err *err)
{
	uint64_t count, want;
	uint32_t each;
	int rc;

	if (!json_is_object(v))
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: expected an object", h->file, t->name);
	rc = read_type(t, v, &each, h, err);
	if (rc == OD_OK)
		rc = read_shape(t, v, &count, h, err);
	if (rc == OD_OK)
		rc = read_range(t, v, h, err);
	if (rc != OD_OK)
		return rc;
	if (!od_mul(count, each, &want) || want != t->bytes)
		return od_fail(err, OD_ERR_SHAPE,
			       "%s: tensor %s: dtype %s and shape need %" PRIu64 " bytes, data_offsets "
			       "hold %" PRIu64,
			       h->file, t->name, t->dtype_name, want, t->bytes);
	return OD_OK;
}

static int add_tensor(struct od_checkpoint *c, const char *name, const json_t *v, const struct header *h,
		      struct od_err *err)
{
	struct od_tensor *t;

	if (!grow((void **)&c->tensor, c->n_tensors, &c->tensors_room, sizeof(*c->tensor)))
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %zu tensors", h->file, c->n_tensors + 1);
	t = &c->tensor[c->n_tensors];
	memset(t, 0, sizeof(*t));
	t->file = (uint32_t)(c->n_files - 1);
	t->name = strdup(name);
	if (t->name == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for tensor names", h->file);
	c->n_tensors++; /* from here closing frees it */
	return read_tensor(t, v, h, err);
}

static int read_entry(struct od_checkpoint *c, struct header *h, struct od_err *err)
{
	json_t *key, *value = NULL;
	int rc = next_value(h, &key, err);

	if (rc == OD_OK && !json_is_string(key))
		rc = bad_json(h, "expected a tensor name", err);
	if (rc == OD_OK)
		rc = expect_char(h, ':', err);
	if (rc == OD_OK)
		rc = next_value(h, &value, err);
	if (rc == OD_OK && strcmp(json_string_value(key), "__metadata__") != 0)
		rc = add_tensor(c, json_string_value(key), value, h, err);
	json_decref(value);
	json_decref(key);
	return rc;
}

static bool peek(struct header *h, char c)
{
	skip_space(h);
	return h->pos < h->len && h->text[h->pos] == c;
}

static int read_entries(struct od_checkpoint *c, struct header *h, struct od_err *err)
{
	int rc = expect_char(h, '{', err);
	bool more = rc == OD_OK && !peek(h, '}');

	while (more) {
		rc = read_entry(c, h, err);
		more = rc == OD_OK && peek(h, ',');
		if (more)
			h->pos++;
	}
	if (rc == OD_OK)
		rc = expect_char(h, '}', err);
	skip_space(h);
	if (rc == OD_OK && h->pos != h->len)
		rc = bad_json(h, "more text behind the object", err);
	return rc;
}

static int by_offset(const void *a, const void *b)
{
	const struct od_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Each byte of the data belongs to exactly one tensor. */
static int check_cover(struct od_checkpoint *c, size_t first, const struct header *h, struct od_err *err)
{
	uint64_t at = 8 + h->len, end = at + h->data_bytes;

	if (c->n_tensors > first) /* qsort must not see the NULL of an empty table */
		qsort(c->tensor + first, c->n_tensors - first, sizeof(*c->tensor), by_offset);
	for (size_t i = first; i < c->n_tensors; i++) {
		const struct od_tensor *t = &c->tensor[i];

		if (t->offset < at)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: tensor %s overlaps %s: it starts at offset %" PRIu64 ", %" PRIu64
				       " bytes too early",
				       h->file, t->name, c->tensor[i - 1].name, t->offset, at - t->offset);
		if (t->offset > at)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: %" PRIu64 " bytes before tensor %s belong to no tensor "
				       "(offset %" PRIu64 ")",
				       h->file, t->offset - at, t->name, at);
		at = t->offset + t->bytes;
	}
	if (at != end)
		return od_fail(err, OD_ERR_FORMAT, "%s: %" PRIu64 " bytes behind the last tensor belong to none",
			       h->file, end - at);
	return OD_OK;
}

static int read_header(struct od_checkpoint *c, const char *path, struct od_err *err)
{
	struct od_checkpoint_file *f = &c->file[c->n_files - 1];
	struct header h = { .file = path };
	size_t first = c->n_tensors;
	uint64_t len = 0;
	char *text;
	int rc;

	if (f->size_bytes < 8)
		return od_fail(err, OD_ERR_FORMAT, "%s: expected a safetensors file, found only %" PRIu64 " bytes",
			       path, f->size_bytes);
	rc = od_file_pread(f->fd, &len, 8, 0, path, err);
	if (rc != OD_OK)
		return rc;
	if (len > OD_SAFETENSORS_HEADER_MAX)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: header of %" PRIu64 " bytes, expected at most %u (not a "
			       "safetensors file?)",
			       path, len, OD_SAFETENSORS_HEADER_MAX);
	if (len > f->size_bytes - 8)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: cut short: header of %" PRIu64 " bytes, but the file has only %" PRIu64, path, len,
			       f->size_bytes);
	text = malloc(len + 1);
	if (text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for a header of %" PRIu64 " bytes", path, len);
	h.text = text;
	h.len = len;
	h.data_bytes = f->size_bytes - 8 - len;
	rc = od_file_pread(f->fd, text, len, 8, path, err);
	if (rc == OD_OK) {
		crypto_hash_sha256(f->header_sha256, (const unsigned char *)text, len);
		rc = read_entries(c, &h, err);
	}
	if (rc == OD_OK)
		rc = check_cover(c, first, &h, err);
	free(text);
	return rc;
}

static int add_file(struct od_checkpoint *c, const char *name, struct od_err *err)
{
	struct od_checkpoint_file *f;
	char path[PATH_MAX];
	struct stat st;
	int rc = od_path(path, sizeof(path), c->dir, name, err);

	if (rc != OD_OK)
		return rc;
	if (!grow((void **)&c->file, c->n_files, &c->files_room, sizeof(*c->file)))
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	f = &c->file[c->n_files];
	memset(f, 0, sizeof(*f));
	f->fd = -1;
	f->name = strdup(name);
	if (f->name == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	c->n_files++;
	rc = od_file_open(path, &f->fd, &f->size_bytes, err);
	if (rc != OD_OK)
		return rc;
	if (fstat(f->fd, &st) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot stat %s", path);
	f->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	return read_header(c, path, err);
}

static int by_string(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts names, opens each once. */
static int add_files(struct od_checkpoint *c, char **name, size_t n, struct od_err *err)
{
	int rc = OD_OK;

	qsort(name, n, sizeof(*name), by_string);
	for (size_t i = 0; i < n && rc == OD_OK; i++)
		if (i == 0 || strcmp(name[i], name[i - 1]) != 0)
			rc = add_file(c, name[i], err);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct od_tensor *)a)->name, ((const struct od_tensor *)b)->name);
}

static int sort_tensors(struct od_checkpoint *c, struct od_err *err)
{
	if (c->n_tensors == 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: the safetensors files hold no tensors", c->dir);
	qsort(c->tensor, c->n_tensors, sizeof(*c->tensor), by_name);
	for (size_t i = 1; i < c->n_tensors; i++) {
		const struct od_tensor *a = &c->tensor[i - 1], *b = &c->tensor[i];

		if (strcmp(a->name, b->name) == 0)
			return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s found twice: in %s and in %s", c->dir,
				       a->name, c->file[a->file].name, c->file[b->file].name);
	}
	return OD_OK;
}

/* A tensor is in the file that the index says. What a file has beside that is not the model's: some publishers use
 * files of another publication in part. What the index names and no file has is missing only if it is needed. */
static void drop_not_in_index(struct od_checkpoint *c, const json_t *map)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n_tensors; i++) {
		const char *file = json_string_value(json_object_get(map, c->tensor[i].name));

		if (file != NULL && strcmp(file, c->file[c->tensor[i].file].name) == 0)
			c->tensor[n++] = c->tensor[i];
		else
			free(c->tensor[i].name);
	}
	c->n_tensors = n;
}

/* All that the index names must be there: it is sorted, each once. */
static int check_listed(const struct od_checkpoint *c, const char *index, char **name, size_t n, struct od_err *err)
{
	const char *first = NULL;
	char path[PATH_MAX];
	size_t n_files = 0, n_missing = 0;
	int rc = OD_OK;

	qsort(name, n, sizeof(*name), by_string);
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		if (i > 0 && strcmp(name[i], name[i - 1]) == 0)
			continue;
		n_files++;
		rc = od_path(path, sizeof(path), c->dir, name[i], err);
		if (rc != OD_OK || od_file_there(path))
			continue;
		first = first != NULL ? first : name[i];
		n_missing++;
	}
	if (rc == OD_OK && first != NULL)
		rc = od_fail(
			err, OD_ERR_MISSING,
			"%s/%s is missing: %s lists %zu files, of which %zu %s not there; get the rest: hf download "
			"ORGANISATION/NAME --local-dir %s",
			c->dir, first, strrchr(index, '/') + 1, n_files, n_missing, n_missing == 1 ? "is" : "are",
			c->dir);
	return rc;
}

static int open_index(struct od_checkpoint *c, const char *path, struct od_err *err)
{
	json_t *root, *map, *file;
	const char *name;
	char **list = NULL;
	size_t n = 0;
	int rc = od_json_load(path, INDEX_MAX_BYTES, &root, err);

	if (rc != OD_OK)
		return rc;
	rc = od_json_obj(root, "weight_map", &map, path, err);
	if (rc != OD_OK)
		goto done;
	list = calloc(json_object_size(map) + 1, sizeof(*list));
	if (list == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
		goto done;
	}
	json_object_foreach(map, name, file)
	{
		const char *s = json_string_value(file);

		/* A file beside the index, not somewhere else on this machine. */
		if (s == NULL || s[0] == '\0' || strchr(s, '/') != NULL || strlen(s) != json_string_length(file)) {
			rc = od_fail(err, OD_ERR_FORMAT,
				     "%s: \"weight_map\": tensor %s: expected a file name, found %s", path, name,
				     s != NULL ? s : "no string");
			goto done;
		}
		list[n++] = (char *)s; /* borrowed from root */
	}
	rc = check_listed(c, path, list, n, err);
	if (rc == OD_OK)
		rc = add_files(c, list, n, err);
	if (rc == OD_OK) {
		drop_not_in_index(c, map);
		rc = sort_tensors(c, err);
	}
done:
	free(list);
	json_decref(root);
	return rc;
}

static bool has_suffix(const char *s, const char *suffix)
{
	size_t n = strlen(s), k = strlen(suffix);

	return n > k && strcmp(s + n - k, suffix) == 0;
}

static int open_all(struct od_checkpoint *c, struct od_err *err)
{
	DIR *d = opendir(c->dir);
	struct dirent *entry;
	char **list = NULL;
	size_t n = 0, room = 0;
	int rc = OD_OK;

	if (d == NULL)
		return od_fail_errno(err, OD_ERR_MISSING, "cannot open checkpoint folder %s", c->dir);
	while (rc == OD_OK && (entry = readdir(d)) != NULL) {
		if (!has_suffix(entry->d_name, ".safetensors"))
			continue;
		if (n >= FILES_MAX || !grow((void **)&list, n, &room, sizeof(*list)) ||
		    (list[n] = strdup(entry->d_name)) == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "%s: too many files", c->dir);
		else
			n++;
	}
	if (rc == OD_OK && n == 0)
		rc = od_fail(err, OD_ERR_MISSING, "%s: no %s, no %s and no other *.safetensors file there", c->dir,
			     SINGLE_NAME, INDEX_NAME);
	if (rc == OD_OK)
		rc = add_files(c, list, n, err);
	if (rc == OD_OK)
		rc = sort_tensors(c, err);
	for (size_t i = 0; i < n; i++)
		free(list[i]);
	free(list);
	closedir(d);
	return rc;
}

static int open_files(struct od_checkpoint *c, struct od_err *err)
{
	char single[PATH_MAX], index[PATH_MAX];
	int rc = od_path(single, sizeof(single), c->dir, SINGLE_NAME, err);

	if (rc == OD_OK)
		rc = od_path(index, sizeof(index), c->dir, INDEX_NAME, err);
	if (rc != OD_OK)
		return rc;
	if (od_file_there(single)) {
		rc = add_file(c, SINGLE_NAME, err);
		return rc == OD_OK ? sort_tensors(c, err) : rc;
	}
	return od_file_there(index) ? open_index(c, index, err) : open_all(c, err);
}

/* ---- a GGUF file ---- */

static int add_gguf_file(struct od_checkpoint *c, const struct od_gguf_file *f, struct od_err *err)
{
	struct od_checkpoint_file *to;

	if (!grow((void **)&c->file, c->n_files, &c->files_room, sizeof(*c->file)))
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", c->dir);
	to = &c->file[c->n_files++];
	*to = (struct od_checkpoint_file){
		.name = strdup(f->path), .fd = f->fd, .size_bytes = f->size_bytes, .mtime_ns = f->mtime_ns
	};
	memcpy(to->header_sha256, f->header_sha256, sizeof(to->header_sha256));
	return to->name != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: no memory", c->dir);
}

static int add_gguf_tensor(struct od_checkpoint *c, const struct od_gguf_tensor *t, struct od_err *err)
{
	struct od_tensor *to;

	if (!grow((void **)&c->tensor, c->n_tensors, &c->tensors_room, sizeof(*c->tensor)))
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory", c->dir);
	to = &c->tensor[c->n_tensors++];
	*to = (struct od_tensor){ .name = strdup(t->name),
				  .dtype_name = t->type_name,
				  .dtype = t->dtype,
				  .file = t->file,
				  .n_dims = t->n_dims,
				  .offset = t->offset,
				  .bytes = t->bytes };
	for (uint32_t i = 0; i < t->n_dims; i++)
		to->shape[i] = t->dim[t->n_dims - 1 - i];
	return to->name != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: no memory", c->dir);
}

static int open_gguf(struct od_checkpoint *c, struct od_err *err)
{
	int rc = od_gguf_open(&c->gguf, c->dir, err);

	for (size_t i = 0; rc == OD_OK && i < od_gguf_n_files(c->gguf); i++)
		rc = add_gguf_file(c, od_gguf_file(c->gguf, i), err);
	for (size_t i = 0; rc == OD_OK && i < od_gguf_n_tensors(c->gguf); i++)
		rc = add_gguf_tensor(c, od_gguf_tensor(c->gguf, i), err);
	return rc == OD_OK ? od_gguf_folder_of(c->dir, &c->folder, &c->temporary, err) : rc;
}

int od_checkpoint_open(struct od_checkpoint **out, const char *dir, struct od_err *err)
{
	struct od_checkpoint *c = calloc(1, sizeof(*c));
	int rc;

	*out = NULL;
	if (c != NULL)
		c->dir = strdup(dir);
	if (c == NULL || c->dir == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "checkpoint %s", dir);
	else
		rc = od_gguf_is(dir) ? open_gguf(c, err) : open_files(c, err);
	if (rc != OD_OK) {
		od_checkpoint_close(c);
		return rc;
	}
	*out = c;
	return OD_OK;
}

void od_checkpoint_close(struct od_checkpoint *c)
{
	if (c == NULL)
		return;
	for (size_t i = 0; i < c->n_files; i++) {
		if (c->gguf == NULL && c->file[i].fd >= 0)
			close(c->file[i].fd);
		free(c->file[i].name);
	}
	for (size_t i = 0; i < c->n_tensors; i++)
		free(c->tensor[i].name);
	free(c->file);
	free(c->tensor);
	if (c->temporary)
		od_gguf_folder_remove(c->folder);
	free(c->folder);
	od_gguf_close(c->gguf);
	free(c->dir);
	free(c);
}

const char *od_checkpoint_dir(const struct od_checkpoint *c)
{
	return c->dir;
}

const char *od_checkpoint_folder(const struct od_checkpoint *c)
{
	return c->gguf != NULL ? c->folder : c->dir;
}

const struct od_gguf *od_checkpoint_gguf(const struct od_checkpoint *c)
{
	return c->gguf;
}

size_t od_checkpoint_n_files(const struct od_checkpoint *c)
{
	return c->n_files;
}

const struct od_checkpoint_file *od_checkpoint_file(const struct od_checkpoint *c, size_t i)
{
	return &c->file[i];
}

size_t od_checkpoint_n_tensors(const struct od_checkpoint *c)
{
	return c->n_tensors;
}

const struct od_tensor *od_checkpoint_tensor(const struct od_checkpoint *c, size_t i)
{
	return &c->tensor[i];
}

const struct od_tensor *od_checkpoint_find(const struct od_checkpoint *c, const char *name)
{
	struct od_tensor key = { .name = (char *)name };

	return bsearch(&key, c->tensor, c->n_tensors, sizeof(*c->tensor), by_name);
}

int od_checkpoint_read(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t offset, void *buf, size_t len,
		       struct od_err *err)
{
	const struct od_checkpoint_file *f = &c->file[t->file];

	if (!od_within(offset, len, t->bytes))
		return od_fail(err, OD_ERR_RANGE, "%s: tensor %s has %" PRIu64 " bytes, wanted %zu at %" PRIu64,
			       f->name, t->name, t->bytes, len, offset);
	return od_file_pread(f->fd, buf, len, t->offset + offset, f->name, err);
}
