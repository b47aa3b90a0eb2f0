/* copy_check.h - compares workers' copies of a GGUF file with main's, expert by expert, as workers report what they
 * have read. The fingerprint of such a file covers only the beginning of each expert, so copies may differ behind it.
 *
 * An expert that main has not read yet it reads for this, in a thread at low priority: first those that two workers
 * report differently. What was read once is known from then on, also after a restart (common/pack/gguf/gguf_sums.h).
 * Thread: one, the loop thread of main. Owner: the caller; the pack is borrowed. */
#ifndef ODM_COPY_CHECK_H
#define ODM_COPY_CHECK_H

#include "common/net/wire.h"
#include "common/pack/pack.h"

struct odm_copy_check;

/* *out NULL without an error: nothing is to be compared, because the fingerprint covers all checksums of the pack. */
OD_MUST_CHECK int odm_copy_check_new(struct odm_copy_check **out, const struct od_pack *pack, struct od_err *err);
void odm_copy_check_free(struct odm_copy_check *c); /* NULL ok; joins the thread */

/* A worker's reports. member: below OD_MAX_HOSTS. False: its copy differs from main's, and why says in what. A report
 * whose numbers are out of range is dropped and logged. */
OD_MUST_CHECK bool odm_copy_check_take(struct odm_copy_check *c, uint32_t member, const Od__Pong *p, char *why,
				       size_t size);
/* The next member whose copy differs from what main has read since its report; false: there is none now. */
OD_MUST_CHECK bool odm_copy_check_next(struct odm_copy_check *c, uint32_t *member, char *why, size_t size);
/* Its reports are void: it has a new session, or none. */
void odm_copy_check_forget(struct odm_copy_check *c, uint32_t member);

#endif
