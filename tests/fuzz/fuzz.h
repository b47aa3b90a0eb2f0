/* fuzz.h - what all fuzzers need. */
#ifndef OD_FUZZ_H
#define OD_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Must hold whatever the input is; a finding when it does not. */
static inline void check(int good)
{
	if (!good)
		abort();
}

#endif
