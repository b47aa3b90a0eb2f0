/* shape_pack.h - a model that is not packed yet as an open pack without data: its tables have the sizes that od-pack
 * would write, so that whoever counts memory can count before a weight is there.
 *
 * Sizes of dense tensors are exact. Those of experts as stored depend on their bytes: they are the usual ones of the
 * format (docs/BENCHMARKS.md). Only sizes may be asked for; nothing can be read.
 * Thread: any. Owner: od_pack_open_shape's caller (od_pack_close). */
#ifndef OD_PACK_SHAPE_PACK_H
#define OD_PACK_SHAPE_PACK_H

#include "common/pack/pack.h"

/* How much is known of a model. */
enum od_shape_source {
	OD_SHAPE_PACK, /* a pack or a GGUF file: all */
	OD_SHAPE_CHECKPOINT, /* types of all tensors */
	OD_SHAPE_CONFIG, /* shapes; types as config.json says */
};

/* given: a pack or a GGUF file (od_pack_open), a checkpoint's folder, a config.json or a folder with nothing else of a
 * checkpoint. */
OD_MUST_CHECK int od_pack_open_shape(struct od_pack **out, const char *given, enum od_shape_source *source,
				     struct od_err *err);

/* Bytes on disk of a complete pack, also of one that is not there yet: dense.bin and experts.bin, or the GGUF file. */
uint64_t od_pack_disk_bytes(const struct od_pack *p);
/* A dense tensor; n_in 0: a vector. */
struct od_dense_size {
	enum od_role role;
	uint32_t layer;
	uint64_t n_out, n_in, bytes; /* bytes: as stored */
};
void od_pack_each_dense(const struct od_pack *p, void (*each)(void *arg, const struct od_dense_size *t), void *arg);

#endif
