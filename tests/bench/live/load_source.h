/* load_source.h - the sources of od-bench load: the pack's file from the page cache, from disk, or from disk with
 * O_DIRECT; or bytes in memory that a clock releases (paced_reader.h), without a copy.
 *
 * Thread: load_source_read from any; the rest by the owner while there are no reads. Owner: the caller; the pack is
 * borrowed. */
#ifndef OD_BENCH_LOAD_SOURCE_H
#define OD_BENCH_LOAD_SOURCE_H

#include "worker-node/paced_reader.h"

enum load_kind { LOAD_CACHE, LOAD_DISK, LOAD_DIRECT, LOAD_PACED };
extern const char *const load_kind_names[]; /* ends with NULL */

struct load_expert {
	uint32_t m, expert;
	struct od_buf *stored; /* its chunks as stored, for LOAD_PACED; NULL: not read yet */
};

struct load_source {
	enum load_kind kind;
	struct od_pack *pack;
	enum od_form form;
	struct load_expert *expert; /* [n]: those that may be read */
	size_t n;
	struct odw_paced_reader pace; /* LOAD_PACED: the caller sets bytes_per_ns */
};

/* Call when the other fields are set; do not move the source afterwards. */
void load_source_init(struct load_source *s);
/* Call before every measurement: brings the experts into the page cache or evicts them from it, by kind. */
OD_MUST_CHECK int load_source_begin(struct load_source *s, struct od_err *err);
od_read_fn load_source_read; /* arg: the source */

/* Reads the experts' bytes into memory, for LOAD_PACED. */
OD_MUST_CHECK int load_experts_read(const struct od_pack *pack, struct od_device *d, struct load_expert *expert,
				    size_t n, struct od_err *err);
void load_experts_free(struct load_expert *expert, size_t n);

#endif
