/* rivals.h - the predictors that od-bench compares: od-main's own, and others that only od-bench has.
 *
 * Thread: constants. */
#ifndef OD_BENCH_RIVALS_H
#define OD_BENCH_RIVALS_H

#include "common/predict/predictor.h"
#include "main-node/node/main_opts.h"

#define RIVALS 6
extern const struct od_predictor_kind rival_kinds[RIVALS];
extern const char *const rival_names[]; /* "shadow", "none", as in odm_predictor_names; then rival_kinds'; NULL */

/* NULL: no predictor has that name. */
const struct od_predictor_kind *rival_kind(const char *name);
/* Sets the engine's predictor to rival_names[index]. */
void rival_choose(struct odm_main_opts *o, int index);

#endif
