#include "tests/blocks/decoders.h"

#include "common/compute/cpu/vec_neon.h"

#include "common/compute/cpu/bytes_neon.h"
#include "common/compute/cpu/cpu_blocks.h"

od_decode_fn *blocks_neon(enum od_dtype t)
{
	return decoder_of(t);
}
