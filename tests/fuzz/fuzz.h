/* fuzz.h - what all fuzzers need. */
#ifndef OD_FUZZ_H
#define OD_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Must hold whatever the input is; a finding, which says where, when it does not. */
#define check(good) check_at(good, #good, __FILE__, __LINE__)

static inline void check_at(int good, const char *text, const char *file, int line)
{
	if (good)
		return;
	fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
	abort();
}

#endif
