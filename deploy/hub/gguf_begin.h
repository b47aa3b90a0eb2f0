/* gguf_begin.h - what the first bytes of a GGUF file say of its model, before all of it is fetched.
 *
 * Thread: any. Owner: the caller; text points into nothing. */
#ifndef OD_PACK_GGUF_BEGIN_H
#define OD_PACK_GGUF_BEGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct odp_gguf_begin {
	char arch
		[65]; /* general.architecture, other bytes than letters, digits, '-' and '_' as '?'; "": not seen yet */
	bool complete; /* all metadata are within the bytes */
	bool has_experts; /* a key that ends with .expert_count is there and not 0 */
};

/* bytes: the beginning of the file. OD_ERR_FORMAT: it is no GGUF file. */
OD_MUST_CHECK int odp_gguf_begin_read(struct odp_gguf_begin *out, const uint8_t *bytes, size_t n, const char *where,
				      struct od_err *err);

#endif
