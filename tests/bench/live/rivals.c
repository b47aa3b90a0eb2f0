#include "tests/bench/live/rivals.h"

#include "common/predict/gate_predictor.h"
#include "common/predict/trajectory_predictor.h"
#include "tests/bench/live/history_predictor.h"
#include "tests/bench/live/popularity_predictor.h"
#include "tests/bench/live/random_predictor.h"

#include <string.h>

/* The routers of four layers ahead instead of one. */
static int multi_gate_new(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err)
{
	return od_gates_new(out, opts, 4, err);
}

const struct od_predictor_kind rival_kinds[RIVALS] = {
	{ "next-gate", od_next_gate_new }, { "multi-gate", multi_gate_new },	{ "popularity", od_popularity_new },
	{ "history", od_history_new },	   { "trajectory", od_trajectory_new }, { "random", od_random_new },
};
const char *const rival_names[] = { "shadow",  "none",	     "next-gate", "multi-gate", "popularity",
				    "history", "trajectory", "random",	  NULL };
_Static_assert(sizeof(rival_names) / sizeof(rival_names[0]) == ODM_PREDICT_OWN + RIVALS + 1, "a kind without a name");

const struct od_predictor_kind *rival_kind(const char *name)
{
	for (size_t i = 0; i < RIVALS; i++) {
		if (strcmp(rival_kinds[i].name, name) == 0)
			return &rival_kinds[i];
	}
	return NULL;
}

void rival_choose(struct odm_main_opts *o, int index)
{
	o->cluster.predictor = index < ODM_PREDICT_OWN ? index : ODM_PREDICT_OWN;
	o->cluster.own = index < ODM_PREDICT_OWN ? NULL : &rival_kinds[index - ODM_PREDICT_OWN];
}
