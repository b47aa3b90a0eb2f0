/* sum_mixer.h - for tests: a mixer whose layers keep fixed state, as recurrent ones do, made of the operations that
 * there are. With v of each row: state = keep state + v, y = out norm(state).
 *
 * In struct od_mixer, k_dim is the state's width and norm_eps counts. Tensors: OD_ROLE_V [k_dim][hidden] makes v,
 * OD_ROLE_KV_B [k_dim][k_dim] keeps, OD_ROLE_Q_NORM [k_dim], OD_ROLE_O [hidden][k_dim] is out. */
#ifndef OD_TESTS_SUM_MIXER_H
#define OD_TESTS_SUM_MIXER_H

#include "common/model/mixer.h"

extern const struct od_mixer_ops sum_mixer;

/* Five layers. Attention sees 4 positions: what was before them is known to the fixed state alone. Its layers have two
 * widths, one of them is dense, and the last layer of all is one. */
struct od_config sum_mixer_config(uint32_t vocab, uint32_t ctx);

#endif
