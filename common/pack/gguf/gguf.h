/* gguf.h - reads the headers of a GGUF file, or of all files of a split one: metadata and the list of tensors.
 *
 * Opening checks every length, count, type, shape and offset against the files' sizes. The bytes of tensors are read
 * with pread and never mapped. The format: llama.cpp's, versions 2 and 3, little-endian.
 * Thread: immutable after opening, any thread. Owner: od_gguf_open's caller. */
#ifndef OD_PACK_GGUF_H
#define OD_PACK_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/dtype.h"
#include "common/pack/sums.h"

#define OD_GGUF_MAX_DIMS 4

struct od_gguf;

struct od_gguf_tensor {
	const char *name;
	enum od_dtype dtype; /* 0: of a type that is not computed with here (integers, float64) */
	const char *type_name; /* as ggml calls it */
	uint32_t file; /* index of its file */
	uint32_t n_dims;
	uint64_t dim[OD_GGUF_MAX_DIMS]; /* the first is the length of a row; those behind n_dims are 1 */
	uint64_t offset, bytes; /* from the start of the file */
};

struct od_gguf_file {
	char *path;
	int fd;
	uint64_t size_bytes;
	int64_t mtime_ns;
	uint64_t data_offset; /* where the tensors' bytes begin: the header is before it */
	uint8_t header_sha256[OD_SHA256_BYTES]; /* the sum of the header, without the zeros behind it */
};

/* True: the file begins as a GGUF file does, whatever its name (Ollama's have no ending). */
bool od_gguf_is(const char *path);
/* path: the file, or any file of a split one, whose other files are found by their names. */
OD_MUST_CHECK int od_gguf_open(struct od_gguf **out, const char *path, struct od_err *err);
void od_gguf_close(struct od_gguf *g); /* NULL ok */

size_t od_gguf_n_files(const struct od_gguf *g);
const struct od_gguf_file *od_gguf_file(const struct od_gguf *g, size_t i);
/* Tensors are sorted by name (bytewise). */
size_t od_gguf_n_tensors(const struct od_gguf *g);
const struct od_gguf_tensor *od_gguf_tensor(const struct od_gguf *g, size_t i);
const struct od_gguf_tensor *od_gguf_find(const struct od_gguf *g, const char *name); /* NULL: none */
/* Reads len bytes of the tensor's data from byte `offset` on. */
OD_MUST_CHECK int od_gguf_read(const struct od_gguf *g, const struct od_gguf_tensor *t, uint64_t offset, void *buf,
			       size_t len, struct od_err *err);

/* ---- metadata: of the first file ---- */

/* Numbers as in the file. */
enum od_gguf_kind {
	OD_GGUF_U8,
	OD_GGUF_I8,
	OD_GGUF_U16,
	OD_GGUF_I16,
	OD_GGUF_U32,
	OD_GGUF_I32,
	OD_GGUF_F32,
	OD_GGUF_BOOL,
	OD_GGUF_STRING,
	OD_GGUF_ARRAY,
	OD_GGUF_U64,
	OD_GGUF_I64,
	OD_GGUF_F64,
	OD_GGUF_N_KINDS
};

/* A value: checked, in the memory of od_gguf. */
struct od_gguf_value {
	enum od_gguf_kind kind; /* OD_GGUF_ARRAY: see of */
	enum od_gguf_kind of; /* kind of an array's elements; never OD_GGUF_ARRAY */
	uint64_t n; /* elements of an array, bytes of a string; else 1 */
	const uint8_t
		*at; /* the first element, or byte; aligned to nothing; strings of an array have lengths between */
};

/* NULL: there is no such key. */
const struct od_gguf_value *od_gguf_get(const struct od_gguf *g, const char *key);
/* All below fail with the key's name: OD_ERR_MISSING, OD_ERR_FORMAT (another kind), OD_ERR_RANGE. Integers of any
 * width are taken, and an integer as a float is not. */
OD_MUST_CHECK int od_gguf_u64(const struct od_gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
			      struct od_err *err);
OD_MUST_CHECK int od_gguf_f64(const struct od_gguf *g, const char *key, double *out, struct od_err *err);
OD_MUST_CHECK int od_gguf_bool(const struct od_gguf *g, const char *key, bool *out, struct od_err *err);
/* *text is not NUL-terminated; it has no NUL. */
OD_MUST_CHECK int od_gguf_str(const struct od_gguf *g, const char *key, const char **text, size_t *len,
			      struct od_err *err);
/* An array of n_least or more elements of a kind. */
OD_MUST_CHECK int od_gguf_array(const struct od_gguf *g, const char *key, enum od_gguf_kind of, uint64_t n_least,
				struct od_gguf_value *out, struct od_err *err);
/* Elements of an array, or [0] of a value that is none: of integers, of numbers, of booleans. 0 where the kind has no
 * such meaning. */
int64_t od_gguf_int_at(const struct od_gguf_value *v, uint64_t i);
double od_gguf_number_at(const struct od_gguf_value *v, uint64_t i);
/* The advice about a file that is readable, but not as expected. */
#define OD_GGUF_OTHER "; take another file of the model, or convert the model again"
/* A text of the file for a message: its beginning, other bytes than visible ASCII as '?'. Returns buf. */
#define OD_GGUF_SHOWN_BYTES 65
const char *od_gguf_shown(const char *text, size_t len, char buf[OD_GGUF_SHOWN_BYTES]);
/* The next string of an array of strings; *at begins as v->at. */
const char *od_gguf_next_string(const uint8_t **at, size_t *len);

/* The path for messages: of the file that was opened. */
const char *od_gguf_path(const struct od_gguf *g);

#endif
