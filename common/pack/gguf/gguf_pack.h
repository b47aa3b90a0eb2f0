/* gguf_pack.h - a GGUF file that is used where it lies, as an open pack (pack.h): tensors and experts are read from it,
 * and the small files of a pack are made from its metadata, into a folder of the cache.
 *
 * Thread: as od_pack_open. */
#ifndef OD_PACK_GGUF_PACK_H
#define OD_PACK_GGUF_PACK_H

#include "common/pack/pack_internal.h"

/* Fills p, which is empty but for its dir, the path of a GGUF file. */
OD_MUST_CHECK int od_gguf_pack_fill(struct od_pack *p, struct od_err *err);

#endif
