/* gpu_form.h - the rule for the form of experts on a GPU: planes where its memory is slow for its multiprocessors.
 *
 * A product of few rows lasts as long as reading its BF16 weights, 2 bytes each. Planes take 1.34 bytes a weight, but
 * instructions decode them. So planes are faster where a GPU decodes more weights a second than it reads as BF16.
 * Thread: any. */
#ifndef OD_COMPUTE_GPU_FORM_H
#define OD_COMPUTE_GPU_FORM_H

#include "common/compute/cuda/gpu_runtime.h"

/* False, too, where CUDA does not tell the speed of the memory. */
bool gpu_likes_planes(const struct gpu_about *about);

#endif
