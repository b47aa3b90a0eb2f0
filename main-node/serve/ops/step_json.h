/* step_json.h - recorded steps as JSON, for the page's timeline.
 *
 * Thread: the one that watches the timeline. */
#ifndef ODM_STEP_JSON_H
#define ODM_STEP_JSON_H

#include "main-node/step/timeline.h"

/* Takes all steps that are complete. malloc'd; NULL: there are none, or out of memory. */
char *odm_steps_json(struct odm_timeline *t, size_t *len);

#endif
