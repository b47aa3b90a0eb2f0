/* expert_write.h - writes an expert of a checkpoint to experts.bin in bounded memory, and checks one already written.
 *
 * Thread: one at a time per writer; arithmetic runs on its pool. Owner: od_expert_writer_new's caller. */
#ifndef OD_PACK_EXPERT_WRITE_H
#define OD_PACK_EXPERT_WRITE_H

#include "common/base/pool.h"
#include "common/pack/import/safetensors.h"
#include "common/pack/pack_layout.h"

struct od_expert_writer;

/* All arguments are borrowed. codec: for E-chunks that it makes smaller. fd and path: experts.bin. */
OD_MUST_CHECK int od_expert_writer_new(struct od_expert_writer **out, const struct od_checkpoint *source,
				       const struct od_config *cfg, enum od_codec codec, struct od_pool *pool, int fd,
				       const char *path, struct od_err *err);
void od_expert_writer_free(struct od_expert_writer *w); /* NULL ok */

/* Writes expert (m, expert) at offset; the header last, so that an interrupted expert has none. Fills *entry (its shard
 * table is borrowed until the next call) and *header_xxh3. */
OD_MUST_CHECK int od_expert_write(struct od_expert_writer *w, uint32_t m, uint32_t expert, uint64_t offset,
				  struct od_expert_entry *entry, uint64_t *header_xxh3, struct od_err *err);

/* Checks whether a complete and intact expert (m, expert) is at offset; outputs as od_expert_write, or an error. */
OD_MUST_CHECK int od_expert_recheck(struct od_expert_writer *w, uint32_t m, uint32_t expert, uint64_t offset,
				    uint64_t file_bytes, struct od_expert_entry *entry, uint64_t *header_xxh3,
				    struct od_err *err);

/* Checks the zeros after the SM region and after the E region of an expert. */
OD_MUST_CHECK int od_expert_check_padding(const struct od_expert_entry *e, int fd, const char *path,
					  struct od_err *err);
/* Checks that bytes [begin, end) of a file are zero. end - begin is less than 8 KiB. */
OD_MUST_CHECK int od_check_zeros(int fd, const char *path, uint64_t begin, uint64_t end, struct od_err *err);

#endif
