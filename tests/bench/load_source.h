/* load_source.h - where od-bench load has experts read from: the pack's file, from the page cache, from its disk, or from
 * there past the page cache; or bytes that are in memory already and released by a clock, one request after another,
 * without a copy.
 *
 * Thread: load_source_read from any; the rest by the owner while nobody reads. Owner: the caller; the pack is borrowed. */
#ifndef OD_BENCH_LOAD_SOURCE_H
#define OD_BENCH_LOAD_SOURCE_H

#include <pthread.h>

#include "worker-node/loader.h"

enum load_kind { LOAD_CACHE, LOAD_DISK, LOAD_DIRECT, LOAD_PACED };
extern const char *const load_kind_names[]; /* ends with NULL */

struct load_expert {
	uint32_t m, expert;
	uint8_t *stored; /* its bytes in experts.bin, for LOAD_PACED; NULL: not read yet */
};

struct load_source {
	enum load_kind kind;
	double bytes_per_ns; /* LOAD_PACED */
	struct od_pack *pack;
	enum od_form form;
	struct load_expert *expert; /* [n]: those that may be read */
	size_t n;
	pthread_mutex_t lock;
	uint64_t free_ns; /* when the clock has released what was asked for so far */
};

/* Before every measurement: what is to be in the page cache is, what is not to be is not. */
OD_MUST_CHECK int load_source_begin(struct load_source *s, struct od_err *err);
odw_read_fn load_source_read; /* arg: the source */
void load_sleep_until(uint64_t ns); /* of od_now_ns */

/* Bytes of experts in memory for LOAD_PACED. */
OD_MUST_CHECK int load_experts_read(const struct od_pack *pack, struct load_expert *expert, size_t n, struct od_err *err);
void load_experts_free(struct load_expert *expert, size_t n);

#endif
