#include "main-node/node/main_opts.h"

#include "common/predict/predictor.h"

#define DEFAULT_HEDGE_PERCENT 5 /* docs/BENCHMARKS.md: nearly all that hedging can bring an INT8 shadow */

const char *const odm_predictor_names[] = { "shadow", "none", OD_PREDICTOR_NAMES, NULL };

void odm_main_opts_defaults(struct odm_main_opts *o)
{
	*o = (struct odm_main_opts){
		.mode = ODM_LOCAL,
		.cluster = { .predictor = ODM_PREDICTOR_AUTO, .hedge_percent = DEFAULT_HEDGE_PERCENT },
	};
	odm_engine_defaults(&o->engine);
}
