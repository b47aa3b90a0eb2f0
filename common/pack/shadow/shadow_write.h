/* shadow_write.h - writes a shadow's records from the pack's weights, or compares them with an existing file.
 *
 * Thread: any; starts n_threads of its own. */
#ifndef OD_PACK_SHADOW_WRITE_H
#define OD_PACK_SHADOW_WRITE_H

#include "common/pack/load/expert_load.h"
#include "common/pack/shadow/shadow_layout.h"

struct od_shadow_job {
	const struct od_pack *pack;
	struct od_shadow_table *table; /* checksums are set when writing, checked otherwise */
	int fd;
	const char *path; /* its name for messages */
	bool check; /* compare with the file instead of writing */
	unsigned n_threads;
	od_progress_fn *progress; /* NULL ok */
	void *progress_arg;
	uint64_t done_bytes, all_bytes; /* where progress starts and ends; adds the records' bytes */
};

/* OD_ERR_RANGE: the precision cannot express a weight; err names its tensor and the precisions that can. With check
 * each byte of the records, including padding, must equal the newly quantised one, else OD_ERR_CORRUPT. The caller
 * writes or checks the header. */
OD_MUST_CHECK int od_shadow_run(const struct od_shadow_job *job, struct od_err *err);

#endif
