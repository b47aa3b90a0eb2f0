#include "common/predict/predictor.h"

#include "common/predict/gate_predictor.h"
#include "common/predict/trajectory_predictor.h"

const struct od_predictor_kind od_predictor_kinds[OD_N_PREDICTORS] = {
	{ "next-gate", od_next_gate_new },
	{ "trajectory", od_trajectory_new },
};
