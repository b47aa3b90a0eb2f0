/* hub_fetch.h - fetches a model by its name or address into the folder of models (common/pack/models_folder.h).
 *
 * A GGUF file is used as it is; a checkpoint is packed, and removed when the pack has been verified. Until then all is
 * in NAME.part there, from where the next call goes on.
 * Thread: one; packing starts threads of its own. */
#ifndef OD_PACK_HUB_FETCH_H
#define OD_PACK_HUB_FETCH_H

#include "common/pack/write/pack_write.h"

struct odp_fetch_job {
	const char *address; /* odp_is_address */
	struct od_pack_job pack; /* how a checkpoint is packed; its note, progress and arg are used for all */
	void (*phase)(void *arg, const char *verb); /* progress begins anew: "fetching" */
};

/* name: what --pack takes, "" unless OD_OK. job->pack.kept: after a failure, the folder from which the next call goes
 * on. */
OD_MUST_CHECK int odp_fetch(const struct odp_fetch_job *job, char name[256], struct od_err *err);

#endif
