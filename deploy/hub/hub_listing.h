/* hub_listing.h - the files of a repository, as the hub lists them: pages of JSON, which are hostile.
 *
 * Thread: one at a time. Owner: the caller. */
#ifndef OD_PACK_HUB_LISTING_H
#define OD_PACK_HUB_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum odp_sum_kind { ODP_SUM_NONE, ODP_SUM_GIT, ODP_SUM_SHA256 };

#define ODP_SUM_BYTES 32
struct odp_sum {
	enum odp_sum_kind kind; /* ODP_SUM_GIT: the SHA-1 that git knows a file by, 20 bytes */
	uint8_t bytes[ODP_SUM_BYTES];
};

struct odp_hub_file {
	char *path; /* safe (odp_is_safe_path), and no file has the path of another one */
	uint64_t bytes;
	struct odp_sum sum;
};

struct odp_listing {
	struct odp_hub_file *file; /* [n] */
	size_t n, cap;
};

/* Adds the files of a page: an array of objects with type, path, size and oid; large files also have lfs, with oid and
 * size. */
OD_MUST_CHECK int odp_listing_add(struct odp_listing *l, const char *json, size_t len, const char *where,
				  struct od_err *err);
/* When all pages are there: sorts by path, and refuses a path that is there twice. */
OD_MUST_CHECK int odp_listing_finish(struct odp_listing *l, const char *where, struct od_err *err);
const struct odp_hub_file *odp_listing_find(const struct odp_listing *l, const char *path); /* NULL: none */
void odp_listing_fini(struct odp_listing *l);

#endif
