#include "common/pack/checksum.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

int od_check_xxh3(uint64_t found, uint64_t expected, struct od_err *err, const char *what, ...)
{
	char text[sizeof(err->msg)];
	va_list ap;

	if (found == expected)
		return OD_OK;
	va_start(ap, what);
	vsnprintf(text, sizeof(text), what, ap);
	va_end(ap);
	return od_fail(err, OD_ERR_CORRUPT, "%s: expected %016" PRIx64 ", found %016" PRIx64, text, expected, found);
}
