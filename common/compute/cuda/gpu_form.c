#include "common/compute/cuda/gpu_form.h"

/* Four schedulers of a multiprocessor each begin an instruction of 32 threads in a cycle, from compute capability 7.0
 * on. */
#define ISSUES_A_CYCLE 128u
/* Decoding and multiplying a weight of planes is 18.5 instructions. An H200 needs as long as for 48, because it waits,
 * two fifths of that at barriers: its 132 multiprocessors at 1.98 GHz compute experts of planes at 690 to 710 billion
 * weights a second (docs/BENCHMARKS.md, "GPU"). Other GPUs have not been measured. */
#define ISSUES_A_WEIGHT 48u
#define BF16_BYTES 2u

bool gpu_likes_planes(const struct gpu_about *about)
{
	const uint64_t decoded = about->n_sm * about->clock_hz * ISSUES_A_CYCLE / ISSUES_A_WEIGHT;

	return about->memory_bytes_per_s > 0 && decoded > about->memory_bytes_per_s / BF16_BYTES;
}
