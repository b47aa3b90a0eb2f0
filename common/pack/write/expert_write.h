/* expert_write.h - one expert from a checkpoint into experts.bin, in bounded memory, and the check of one that is
 * already there. Thread: one at a time per writer; the arithmetic goes to its pool. */
#ifndef OD_PACK_EXPERT_WRITE_H
#define OD_PACK_EXPERT_WRITE_H

#include "common/base/pool.h"
#include "common/pack/import/safetensors.h"
#include "common/pack/pack_layout.h"

struct od_expert_writer;

/* Everything is borrowed. codec: of E-chunks that get smaller by it. fd and path: experts.bin. */
OD_MUST_CHECK int od_expert_writer_new(struct od_expert_writer **out, const struct od_checkpoint *source,
				       const struct od_config *cfg, enum od_codec codec, struct od_pool *pool, int fd,
				       const char *path, struct od_err *err);
void od_expert_writer_free(struct od_expert_writer *w); /* NULL ok */

/* Writes expert (m, expert) at offset; the header comes last, so that an interrupted one has none. What was
 * written is in *entry (borrowed shard table, valid until the next call) and *header_xxh3. */
OD_MUST_CHECK int od_expert_write(struct od_expert_writer *w, uint32_t m, uint32_t expert, uint64_t offset,
				  struct od_expert_entry *entry, uint64_t *header_xxh3, struct od_err *err);

/* Is a whole and unharmed expert (m, expert) at offset? Then as od_expert_write; else an error that says why not. */
OD_MUST_CHECK int od_expert_recheck(struct od_expert_writer *w, uint32_t m, uint32_t expert, uint64_t offset,
				    uint64_t file_bytes, struct od_expert_entry *entry, uint64_t *header_xxh3,
				    struct od_err *err);

/* The zeros behind the SM region and behind the E region of an expert. */
OD_MUST_CHECK int od_expert_check_padding(const struct od_expert_entry *e, int fd, const char *path,
					  struct od_err *err);
/* Bytes [begin, end) of a file are zero; what: for the message. end - begin is less than 8 KiB. */
OD_MUST_CHECK int od_check_zeros(int fd, const char *path, uint64_t begin, uint64_t end, struct od_err *err);

#endif
