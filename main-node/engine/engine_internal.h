/* engine_internal.h - the representation of the engine; only for main-node/engine. */
#ifndef ODM_ENGINE_INTERNAL_H
#define ODM_ENGINE_INTERNAL_H

#include <pthread.h>

#include "main-node/engine/batch.h"
#include "main-node/engine/model.h"

struct odm_timeline;

struct odm_engine {
	struct odm_model *model;
	struct odm_expert_service *service;
	struct odm_timeline *timeline;
	struct odm_batch batch;
	uint64_t last_step, last_sequence; /* the last numbers used; never reused */
	uint64_t counters[OD_N_COUNTERS]; /* sums over all sequences so far */
	uint64_t reported_ns;
	pthread_mutex_t report_lock;
	struct odm_report report; /* under report_lock */
};

#endif
