/* pack_verify.h - checks every byte of a pack: checksums, decompression, padding, fingerprint, each shadow; on request
 * also against its checkpoint. Of a spool it checks the existing experts. A flipped bit is an error that names the
 * place. A GGUF file has no checksums: all of its weights are read, and what differs from an earlier reading is an
 * error (gguf_sums.h).
 *
 * Thread: any; starts n_threads of its own. Memory is bounded as in pack_write.h. */
#ifndef OD_PACK_PACK_VERIFY_H
#define OD_PACK_PACK_VERIFY_H

#include "common/pack/load/expert_load.h"

struct od_verify_job {
	const char *pack;
	const char *against; /* checkpoint; NULL: none */
	unsigned n_threads;
	od_progress_fn *progress; /* NULL ok */
	void *arg;
	struct od_verify_sums *sums; /* output, NULL ok */
};

/* All 0 unless it is a GGUF file. */
struct od_verify_sums {
	size_t known, now; /* checksums before and after */
	bool lost; /* no cache can be written: they are forgotten again */
};

OD_MUST_CHECK int od_pack_verify(const struct od_verify_job *job, struct od_err *err);

#endif
