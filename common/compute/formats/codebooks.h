/* codebooks.h - the codebooks of GGUF's IQ formats: an entry has 8 or 4 weights, signed bytes, the first in the lowest.
 * Thread: constants. */
#ifndef OD_COMPUTE_CODEBOOKS_H
#define OD_COMPUTE_CODEBOOKS_H

#include <stdint.h>

extern const uint64_t od_iq2_xxs_grid[256], od_iq2_xs_grid[512], od_iq2_s_grid[1024], od_iq1_s_grid[2048];
extern const uint32_t od_iq3_xxs_grid[256], od_iq3_s_grid[512];

#endif
