/* second_guess.h - the token that the shadow nearly chose when it ran ahead: what its first layers would need.
 *
 * A step that begins with another token than the shadow's guess has no prediction in time for its first layers. Main's
 * token is then nearly always the one that the shadow had second, by little. So a shadow that waits for main while it is
 * ahead runs that one's row too, through the first layers, and says so (struct od_prediction, token_gap). The run itself
 * always goes first, and its keys and values stay.
 * Thread: the emulator's. Owner: the emulator; no memory is taken later. */
#ifndef ODS_SECOND_GUESS_H
#define ODS_SECOND_GUESS_H

#include "common/model/forward.h"

#define ODS_SECOND_LAYERS 4   /* behind them the run that begins again is in time */
#define ODS_SECOND_MAX_GAP 1  /* logits: one that is less likely by more is not main's by quantisation */

struct ods_emulator;

struct ods_second {
	struct od_forward *forward; /* of one row */
	char *saved;		    /* [2][row_bytes]: the run's keys and values of one layer meanwhile */
	bool active, attended;	    /* attended: attention of the layer is done, its experts are not */
	int32_t token;
	float gap;
};

OD_MUST_CHECK int ods_second_init(struct ods_second *s, const struct od_forward_opts *o, size_t row_bytes,
				  struct od_err *err);
void ods_second_fini(struct ods_second *s); /* one that is all zero, too */
uint64_t ods_second_bytes(const struct od_forward_opts *o);

/* A run ahead has begun: is there a second guess worth running? */
void ods_second_begin(struct ods_emulator *e);
/* The next piece of it: the attention or the experts of a layer that the run is through. *did: there was one. */
OD_MUST_CHECK int ods_second_work(struct ods_emulator *e, bool *did, struct od_err *err);

#endif
