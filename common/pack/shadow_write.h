/* shadow_write.h - makes or checks a pack's INT8 shadow from the pack's own weights.
 * Thread: any; starts n_threads of its own. */
#ifndef OD_PACK_SHADOW_WRITE_H
#define OD_PACK_SHADOW_WRITE_H

#include "common/pack/expert_load.h"
#include "common/pack/manifest.h"

struct od_shadow_job {
	const struct od_pack *pack;
	struct od_int8_tensor *table; /* od_manifest_add_int8's; checksums are set when writing, checked otherwise */
	size_t n;
	int fd;		  /* of shadow-int8.bin */
	const char *path; /* its name for messages */
	bool check;	  /* compare what is there instead of writing */
	unsigned n_threads;
	od_progress_fn *progress; /* NULL ok */
	void *progress_arg;
	uint64_t done_bytes, all_bytes; /* where progress starts and ends; adds od_int8_tensor.bytes */
};

/* A weight that is infinite or no number is OD_ERR_RANGE and names its tensor. Checking: each byte of the file,
 * paddings included, must be what quantising now gives, else OD_ERR_CORRUPT. */
OD_MUST_CHECK int od_shadow_int8_run(const struct od_shadow_job *job, struct od_err *err);

#endif
