/* spool_state.h - spool.state: which experts of a spool are whole, and whose share it is to become.
 *
 * The file is a note, not a proof: every chunk's checksum is checked whenever it is read. An expert that is noted as
 * absent may be there in part, or whole. docs/PACK-FORMAT.md specifies it.
 * Thread: any; one writer per folder (the spool's lock). */
#ifndef OD_PACK_SPOOL_STATE_H
#define OD_PACK_SPOOL_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/pack/share.h"

#define OD_SPOOL_STATE_NAME "spool.state"

struct od_spool_state {
	const char *fingerprint; /* hexadecimal, of the pack */
	struct od_share share;
	uint32_t n_moe, n_experts;
	uint8_t *whole; /* [n_moe][n_experts], 0 or 1 */
};

/* fingerprint, n_moe, n_experts and room at whole are the caller's; share and whole are filled. OD_ERR_MISSING: there
 * is no such file; OD_ERR_MISMATCH: it is another model's; OD_ERR_CORRUPT: it is damaged. */
OD_MUST_CHECK int od_spool_state_read(struct od_spool_state *s, const char *dir, struct od_err *err);
OD_MUST_CHECK int od_spool_state_write(const struct od_spool_state *s, const char *dir, struct od_err *err);

#endif
