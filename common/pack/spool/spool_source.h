/* spool_source.h - the source of a spool: experts.bin as a spool of this pack has it, for the store and od-pack
 * --share. Of a pack it is the file. Of a GGUF file it is the layout that od_share_expert gives, filled with bytes of
 * the file.
 *
 * Thread: any; the buffer is the caller's. */
#ifndef OD_PACK_SPOOL_SOURCE_H
#define OD_PACK_SPOOL_SOURCE_H

#include "common/pack/pack.h"

/* The length of experts.bin. */
uint64_t od_spool_source_bytes(const struct od_pack *p);
/* Reads len bytes at offset. Of a GGUF file they must belong to one chunk (else OD_ERR_RANGE), and *xxh3 is the sum of
 * this chunk, which is read whole for that the first time. Of a pack *xxh3 is 0. */
OD_MUST_CHECK int od_spool_source_read(const struct od_pack *p, uint64_t offset, void *buf, size_t len, uint64_t *xxh3,
				       struct od_err *err);

#endif
