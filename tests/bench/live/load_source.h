/* load_source.h - where od-bench load has experts read from: the pack's file, from the page cache, from its disk, or from
 * there past the page cache; or bytes that are in memory already and released by a clock (paced_reader.h), without a copy.
 *
 * Thread: load_source_read from any; the rest by the owner while nobody reads. Owner: the caller; the pack is borrowed. */
#ifndef OD_BENCH_LOAD_SOURCE_H
#define OD_BENCH_LOAD_SOURCE_H

#include "worker-node/load/paced_reader.h"

enum load_kind { LOAD_CACHE, LOAD_DISK, LOAD_DIRECT, LOAD_PACED };
extern const char *const load_kind_names[]; /* ends with NULL */

struct load_expert {
	uint32_t m, expert;
	struct od_buf *stored; /* its bytes in experts.bin, for LOAD_PACED; NULL: not read yet */
};

struct load_source {
	enum load_kind kind;
	struct od_pack *pack;
	enum od_form form;
	struct load_expert *expert; /* [n]: those that may be read */
	size_t n;
	struct odw_paced_reader pace; /* LOAD_PACED: the caller sets bytes_per_ns */
};

/* When the rest is set; the source stays where it is. */
void load_source_init(struct load_source *s);
/* Before every measurement: what is to be in the page cache is, what is not to be is not. */
OD_MUST_CHECK int load_source_begin(struct load_source *s, struct od_err *err);
odw_read_fn load_source_read; /* arg: the source */

/* Bytes of experts in memory for LOAD_PACED. */
OD_MUST_CHECK int load_experts_read(const struct od_pack *pack, struct od_device *d, struct load_expert *expert, size_t n,
				    struct od_err *err);
void load_experts_free(struct load_expert *expert, size_t n);

#endif
