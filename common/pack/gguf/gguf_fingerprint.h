/* gguf_fingerprint.h - the fingerprint of a GGUF file that is used where it lies: SHA-256 of its headers, its sizes and
 * the first bytes of each tensor, of each expert in stacked ones. It is read in a moment, where a sum of all bytes
 * would take minutes; chunks have checksums of their own (gguf_sums.h).
 *
 * Thread: any. */
#ifndef OD_PACK_GGUF_FINGERPRINT_H
#define OD_PACK_GGUF_FINGERPRINT_H

#include "common/pack/gguf/gguf.h"
#include "common/pack/pack.h"

#define OD_GGUF_MARK "gguf1" /* it is summed, too: the way in which the fingerprint is made */
#define OD_GGUF_FIRST_BYTES 4096u /* bytes that are read of each tensor, and of each expert in one */

/* hex: with a NUL. At most one read of OD_GGUF_FIRST_BYTES for each tensor, or for each of its experts if there are at
 * most OD_MAX_EXPERTS; many in flight; none if the same unchanged files were the last ones that the process asked
 * for. */
OD_MUST_CHECK int od_gguf_fingerprint(const struct od_gguf *g, char hex[OD_FINGERPRINT_CHARS + 1], struct od_err *err);

#endif
