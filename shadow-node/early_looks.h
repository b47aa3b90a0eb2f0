/* early_looks.h - what the routers ahead make of the shadow's rows while these are still layers before them. PREDICT
 * carries it along: main asks the same of the true row, and the difference shows what the shadow's has gone wrong by
 * (common/predict/want_policy.h).
 *
 * Thread: the emulator's. Owner: ods_early_init ... ods_early_fini by the caller. */
#ifndef ODS_EARLY_LOOKS_H
#define ODS_EARLY_LOOKS_H

#include "common/model/forward.h"
#include "common/predict/early_look.h"
#include "common/predict/prediction.h"

#define ODS_EARLY_ROWS 16u /* a step of more rows is a prompt's, of which nobody wants to know */

struct ods_early {
	struct od_early_look look;
	float *probability; /* [OD_MAX_EARLY layers][ODS_EARLY_ROWS][OD_MAX_EARLY leads][n_experts] */
};

uint64_t ods_early_bytes(const struct od_config *cfg);
OD_MUST_CHECK int ods_early_init(struct ods_early *e, const struct od_forward_opts *o, struct od_err *err);
void ods_early_fini(struct ods_early *e); /* one that is all zero, too */

/* Layer m's attention is through for all rows of the step. */
void ods_early_note(struct ods_early *e, const struct od_forward *f, uint32_t m, size_t n_rows);
/* Of the experts [n] of a row at layer m, out [leads][n] as struct od_prediction has them. Returns the leads: those of
 * the layers before m that were noted, OD_MAX_EARLY at most. */
size_t ods_early_of(const struct ods_early *e, uint32_t m, size_t row, size_t n_rows, const uint16_t *expert, size_t n,
		    float *out);

#endif
