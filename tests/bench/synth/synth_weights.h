/* synth_weights.h - weights that look like a trained model's and are the same bytes on every machine.
 *
 * Each row has its own generator, seeded from (seed, tensor name, row): a tensor does not depend on the others,
 * on the split into files, or on the order of writing. A value is
 *   (sum of eight 16-bit uniforms - mean) * row scale * column gain
 * in single IEEE operations without libm: close to a Gaussian (support 4.9 sigma, kurtosis -0.15, which the varying
 * row scale compensates). The entropy of the exponents matches published models (ZipMoE, 2601.21198, section 3). One
 * column in 256 is an outlier of two to four times the size, as in trained models.
 * Thread: any; a generator belongs to one. */
#ifndef OD_SYNTH_WEIGHTS_H
#define OD_SYNTH_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "tests/bench/synth/synth_model.h"

struct synth_row;

/* A generator for rows of up to max_cols values. */
OD_MUST_CHECK int synth_row_new(struct synth_row **out, uint64_t max_cols, struct od_err *err);
void synth_row_free(struct synth_row *g); /* NULL ok */

/* Call before the first row of a tensor. t and its name are not kept. */
void synth_row_tensor(struct synth_row *g, uint64_t seed, enum od_dtype dtype, const struct synth_tensor *t);

/* Writes columns [begin, end) of a row, as dtype, little-endian. A row is generated from left to right: begin is 0 or
 * the previous call's end, so that a row longer than the caller's buffer can be written in pieces. Pieces of MXFP4's
 * codes are whole blocks; its scales are a block each. */
void synth_row_fill(struct synth_row *g, uint64_t row, uint64_t begin, uint64_t end, void *out);

uint16_t synth_f32_f16(float f); /* nearest even; finite values below 65520 only */
uint8_t synth_f32_f8(enum od_dtype t, float f); /* OD_F8_E4M3: below 464, OD_F8_E5M2: below 61440 */

#endif
