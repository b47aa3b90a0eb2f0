/* hub_repo.h - a repository of the hub: its commit and its files, by the hub's API; and refusals in the user's words.
 *
 * The API: GET /api/models/ORG/NAME/revision/REV, /api/models/ORG/NAME/tree/COMMIT, /ORG/NAME/resolve/COMMIT/PATH.
 * Thread: one. Owner: the caller; what a repository points to is borrowed. */
#ifndef OD_PACK_HUB_REPO_H
#define OD_PACK_HUB_REPO_H

#include <stdbool.h>

#include "deploy/hub/hub_http.h"
#include "deploy/hub/hub_listing.h"
#include "deploy/hub/hub_name.h"

struct odp_repo {
	struct odp_http *http;
	const char *endpoint;
	bool has_token;
	struct odp_hub_name name;
	char address[256]; /* "hf://org/name", for messages */
	char site[200]; /* the endpoint, for messages */
	char commit[65]; /* the revision is this one now: all files are fetched from it */
	struct odp_listing files;
};

/* http, endpoint, has_token and name are set. After any return odp_repo_fini is valid. */
OD_MUST_CHECK int odp_repo_open(struct odp_repo *r, struct od_err *err);
void odp_repo_fini(struct odp_repo *r);
/* The address of a file; malloc'd, NULL without memory. */
char *odp_repo_url(const struct odp_repo *r, const char *path);
/* Puts a refusal (by its status and code) into words. Returns the code of *err. */
int odp_repo_refused(const struct odp_repo *r, const struct odp_http_answer *a, struct od_err *err);

#endif
