/* history_predictor.h - from the most similar earlier sequence. Thread: as predictor.h. */
#ifndef OD_BENCH_HISTORY_PREDICTOR_H
#define OD_BENCH_HISTORY_PREDICTOR_H

#include "common/predict/predictor.h"

od_predictor_make_fn od_history_new;

#endif
