/* Prompts as OD-MoE's section 3.3 has them, for the testbed (od_moe_testbed.py): linked into od-main and the simulator
 * by the linker's --wrap. With $OD_LATE_PROMPTS set, a layer's experts are loaded when its router has chosen. Without
 * it the next layer's are loaded then, too, as od-main does it. */
#include "main-node/predict/prediction_wants.h"
#include "main-node/predict/predictions.h"

#include <stdlib.h>

void __real_odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m, uint32_t rows);
void __wrap_odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m, uint32_t rows);

void __wrap_odm_predictions_require_all(struct odm_predictions *p, uint64_t step, uint32_t m, uint32_t rows)
{
	if (getenv("OD_LATE_PROMPTS") == NULL)
		__real_odm_predictions_require_all(p, step, m, rows);
}
