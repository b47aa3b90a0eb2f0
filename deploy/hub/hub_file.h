/* hub_file.h - fetches one file: to NAME.part, from where an interrupted run stopped, and renamed when its length and
 * checksum are right.
 *
 * Thread: one. Owner: the caller; everything in a job is borrowed. */
#ifndef OD_PACK_HUB_FILE_H
#define OD_PACK_HUB_FILE_H

#include "deploy/hub/hub_http.h"
#include "deploy/hub/hub_listing.h"

struct odp_file_job {
	const char *url, *dir, *name;
	uint64_t bytes;
	struct odp_sum sum;
	const char *etag, *modified; /* without a checksum: of the version that is wanted; "" or NULL: not told */
	void (*note)(void *arg, const char *text);
	/* n bytes more are there; or are not after all (a negative number). */
	void (*advance)(void *arg, int64_t n);
	void *arg;
};

/* Bytes that are there already: of the whole file, or of its part. */
uint64_t odp_file_have(const char *dir, const char *name, uint64_t bytes);
/* A whole file is taken as it is. OD_ERR_CORRUPT: the checksum is another one; the part is deleted. After other errors
 * it stays, and the next call goes on from there. */
OD_MUST_CHECK int odp_file_fetch(struct odp_http *h, const struct odp_file_job *job, struct odp_http_answer *answer,
				 struct od_err *err);

#endif
