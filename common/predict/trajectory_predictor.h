/* trajectory_predictor.h - the experts of the earlier token that took the same way so far. Thread: as predictor.h. */
#ifndef OD_PREDICT_TRAJECTORY_PREDICTOR_H
#define OD_PREDICT_TRAJECTORY_PREDICTOR_H

#include "common/predict/predictor.h"

od_predictor_make_fn od_trajectory_new;

#endif
