/* decoders.h - the decoders of blocks that kernels of an instruction set have inside them (cpu_blocks.h), alone.
 *
 * Thread: pure functions. */
#ifndef OD_TESTS_BLOCKS_DECODERS_H
#define OD_TESTS_BLOCKS_DECODERS_H

#include "common/compute/formats/format.h"

od_decode_fn *blocks_avx2(enum od_dtype t);
od_decode_fn *blocks_avx512(enum od_dtype t);
od_decode_fn *blocks_neon(enum od_dtype t);

#endif
