/* engine_report.h - what other threads see of the engine's work while it works (odm_engine_get_report).
 *
 * Thread: the engine thread. Owner: the engine. */
#ifndef ODM_ENGINE_REPORT_H
#define ODM_ENGINE_REPORT_H

#include "main-node/engine/engine.h"

/* Makes the report if the last one is half a second old, or `now`. */
void odm_engine_report_make(struct odm_engine *e, bool now);

#endif
