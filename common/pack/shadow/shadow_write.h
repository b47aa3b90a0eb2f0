/* shadow_write.h - a shadow's records from the pack's own weights: written, or compared with what is there.
 * Thread: any; starts n_threads of its own. */
#ifndef OD_PACK_SHADOW_WRITE_H
#define OD_PACK_SHADOW_WRITE_H

#include "common/pack/expert_load.h"
#include "common/pack/shadow/shadow_layout.h"

struct od_shadow_job {
	const struct od_pack *pack;
	struct od_shadow_table *table; /* checksums are set when writing, checked otherwise */
	int fd;
	const char *path; /* its name for messages */
	bool check;	  /* compare what is there instead of writing */
	unsigned n_threads;
	od_progress_fn *progress; /* NULL ok */
	void *progress_arg;
	uint64_t done_bytes, all_bytes; /* where progress starts and ends; adds the records' bytes */
};

/* A weight that the precision cannot express is OD_ERR_RANGE; the message has its tensor, and what could. Checking: each
 * byte of the records, paddings included, must be what quantising now gives, else OD_ERR_CORRUPT. The header is the
 * caller's. */
OD_MUST_CHECK int od_shadow_run(const struct od_shadow_job *job, struct od_err *err);

#endif
