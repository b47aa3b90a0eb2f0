/* popularity_predictor.h - the experts that a layer has used most. Thread: as predictor.h. */
#ifndef OD_BENCH_POPULARITY_PREDICTOR_H
#define OD_BENCH_POPULARITY_PREDICTOR_H

#include "common/predict/predictor.h"

od_predictor_make_fn od_popularity_new;

#endif
