/* spool_state.h - the file spool.state: which experts of a spool are complete, and for which share. Specified in
 * docs/PACK-FORMAT.md.
 *
 * The file is a hint: every chunk's checksum is still checked whenever it is read. An expert listed as absent may be on
 * disk in part or complete.
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

/* The caller sets fingerprint, n_moe, n_experts and the array whole; read fills share and whole. OD_ERR_MISSING: no
 * such file; OD_ERR_MISMATCH: it belongs to another model; OD_ERR_CORRUPT: it is damaged. */
OD_MUST_CHECK int od_spool_state_read(struct od_spool_state *s, const char *dir, struct od_err *err);
OD_MUST_CHECK int od_spool_state_write(const struct od_spool_state *s, const char *dir, struct od_err *err);

#endif
