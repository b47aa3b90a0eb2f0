/* safetensors.h - reads the tensors of a checkpoint: one safetensors file, or shards with or without an index; or a
 * GGUF file, which gguf.h reads and which is a checkpoint here, too.
 *
 * Opening checks the headers: JSON, dtypes, shapes against byte ranges, ranges against the file size. As in the
 * reference implementation the tensors must cover a file's data exactly: overlaps, holes and trailing bytes are
 * refused. Data is read with pread in pieces, never mapped.
 * Thread: immutable after opening, any thread. Owner: od_checkpoint_open's caller. */
#ifndef OD_PACK_SAFETENSORS_H
#define OD_PACK_SAFETENSORS_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/compute/dtype.h"
#include "common/pack/sums.h"

#define OD_TENSOR_MAX_DIMS 8
#define OD_SAFETENSORS_HEADER_MAX 100000000u /* the format's own limit */

struct od_tensor {
	char *name;
	const char *dtype_name; /* as in the file, also for unsupported types */
	enum od_dtype dtype; /* 0: unsupported */
	uint32_t file; /* index into the checkpoint's files */
	uint32_t n_dims;
	uint64_t shape[OD_TENSOR_MAX_DIMS];
	uint64_t offset, bytes; /* from the start of the file */
};

struct od_checkpoint_file {
	char *name; /* within the folder */
	int fd;
	uint64_t size_bytes;
	int64_t mtime_ns;
	uint8_t header_sha256[OD_SHA256_BYTES];
};

struct od_checkpoint;

/* dir: a folder with model.safetensors; else model.safetensors.index.json and the files it names; else all
 * *.safetensors. Or a GGUF file, any file of a split one. */
OD_MUST_CHECK int od_checkpoint_open(struct od_checkpoint **out, const char *dir, struct od_err *err);
void od_checkpoint_close(struct od_checkpoint *c); /* NULL ok */

const char *od_checkpoint_dir(const struct od_checkpoint *c); /* as it was named */
/* The folder of its small files: its own, or of a GGUF file the one in a cache (gguf_folder.h). */
const char *od_checkpoint_folder(const struct od_checkpoint *c);
/* NULL: not a GGUF file. Tensor i there is tensor i here. */
const struct od_gguf *od_checkpoint_gguf(const struct od_checkpoint *c);
size_t od_checkpoint_n_files(const struct od_checkpoint *c);
const struct od_checkpoint_file *od_checkpoint_file(const struct od_checkpoint *c, size_t i);
/* Tensors are sorted by name (bytewise). */
size_t od_checkpoint_n_tensors(const struct od_checkpoint *c);
const struct od_tensor *od_checkpoint_tensor(const struct od_checkpoint *c, size_t i);
const struct od_tensor *od_checkpoint_find(const struct od_checkpoint *c, const char *name); /* NULL: none */

/* Reads len bytes of the tensor's data from byte `offset` on. */
OD_MUST_CHECK int od_checkpoint_read(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t offset,
				     void *buf, size_t len, struct od_err *err);

#endif
