/* gate_predictor.h - the next layers' own routers, asked early. Thread: as predictor.h. */
#ifndef OD_PREDICT_GATE_PREDICTOR_H
#define OD_PREDICT_GATE_PREDICTOR_H

#include "common/predict/predictor.h"

od_predictor_make_fn od_next_gate_new; /* one layer ahead */
/* As od_next_gate_new, but each row goes to the routers of so many layers ahead. */
int od_gates_new(struct od_predictor **out, const struct od_predictor_opts *opts, uint32_t ahead, struct od_err *err);

#endif
