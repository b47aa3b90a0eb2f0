/* opened_engine.h - engines for tests, each with the node that it belongs to.
 *
 * Thread: one at a time. Owner: the test, until opened_engine_close. */
#ifndef OD_TEST_OPENED_ENGINE_H
#define OD_TEST_OPENED_ENGINE_H

#include "main-node/node/main_node.h"

/* As odm_main_node_open. */
OD_MUST_CHECK int opened_engine_open(struct odm_engine **out, const struct odm_main_opts *opts, struct od_err *err);
int opened_engine_close(struct odm_engine *e);

#endif
