/* blocks.h - the exact values of GGUF's formats of blocks (OD_BLOCK_FORMATS), as llama.cpp defines them: the oracle of
 * all other decoders. od_decode_q4_k and so on are what struct od_format's decode is; blocks need no alignment.
 *
 * Thread: pure functions. */
#ifndef OD_COMPUTE_BLOCKS_H
#define OD_COMPUTE_BLOCKS_H

#include <stddef.h>

#include "common/compute/formats/format_list.h"

#define OD_DECODE_BLOCKS(NAME, name, ...) void od_decode_##name(const void *blocks, size_t n, float *restrict out);
OD_BLOCK_FORMATS(OD_DECODE_BLOCKS)
#undef OD_DECODE_BLOCKS

#endif
