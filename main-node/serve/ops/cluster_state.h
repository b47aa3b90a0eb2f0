/* cluster_state.h - /cluster: the model, the queue, what was counted, and all machines with what is wrong and what to
 * do about it, as JSON. No texts, tokens, paths or keys.
 *
 * Thread: the HTTP thread. */
#ifndef ODM_CLUSTER_STATE_H
#define ODM_CLUSTER_STATE_H

#include "main-node/serve/app.h"

extern const struct odm_endpoint odm_cluster_endpoint;

json_t *odm_cluster_state(const struct odm_app *app); /* NULL: out of memory */

#endif
