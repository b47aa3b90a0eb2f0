/* pack_verify.h - every byte of a pack: checksums, decompression, paddings, fingerprint, each shadow; on
 * request against the checkpoint it was made from. Of a spool: what is there. One flipped bit anywhere is an error that says where.
 * Thread: any; starts n_threads of its own. Memory is bounded like od-pack's. */
#ifndef OD_PACK_PACK_VERIFY_H
#define OD_PACK_PACK_VERIFY_H

#include "common/pack/expert_load.h"

struct od_verify_job {
	const char *pack;
	const char *against; /* checkpoint folder; NULL: none */
	unsigned n_threads;
	od_progress_fn *progress; /* NULL ok */
	void *arg;
};

OD_MUST_CHECK int od_pack_verify(const struct od_verify_job *job, struct od_err *err);

#endif
