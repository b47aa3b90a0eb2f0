#include "tests/blocks/decoders.h"

#include "common/compute/cpu/vec_avx512.h"

#include "common/compute/cpu/bytes_x86.h"
#include "common/compute/cpu/cpu_blocks.h"

od_decode_fn *blocks_avx512(enum od_dtype t)
{
	return decoder_of(t);
}
