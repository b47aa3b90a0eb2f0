/* engine_internal.h - the representation of the engine; only for main-node/engine. */
#ifndef ODM_ENGINE_INTERNAL_H
#define ODM_ENGINE_INTERNAL_H

#include <pthread.h>

#include "common/model/resident.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_load.h"
#include "main-node/node/local_nodes.h"
#include "main-node/engine/batch.h"
#include "main-node/engine/prefix/prefix_reuse.h"
#include "main-node/store/store_server.h"

struct odm_engine {
	struct odm_engine_opts opts;
	struct od_pack *pack;
	const struct od_config *config;
	/* [n_suppressed] tokens that the model's generation_config.json does not let be drawn */
	struct od_logit_bias *suppressed;
	size_t n_suppressed;
	struct od_device *device;
	enum od_form form; /* of experts here, or on the workers of --local */
	struct od_dense_store *dense;
	struct od_expert_store *experts; /* resident mode */
	struct od_tokenizer *tokenizer;
	struct od_state_pool *state;
	uint32_t n_pages, cache_pages; /* of state: for texts in progress, for ended ones */
	uint32_t n_snapshots; /* of fixed state */
	bool auto_ctx, any_ctx; /* the context was not asked for; even the least one does not fit */
	/* of a text that gives no limit, with its prompt, so that `parallel` of them fit; UINT64_MAX: any number */
	uint64_t fair_tokens;
	struct odm_reuse reuse;
	struct odm_expert_service *service;
	struct odm_store *store; /* NULL: none */
	struct odm_local *local; /* --local: the children */
	struct od_hosts hosts;
	struct od_keys *keys; /* NULL: none; its peers are the loop thread's once the cluster runs */
	size_t n_children;
	struct odm_batch batch;
	uint64_t last_step, last_sequence; /* the last numbers used; never reused */
	uint64_t counters[OD_N_COUNTERS]; /* of all sequences so far */
	uint64_t reported_ns;
	pthread_mutex_t report_lock;
	struct odm_report report; /* under report_lock */
};

/* Engine thread: makes the report if the last one is half a second old, or `now`. */
void odm_engine_publish(struct odm_engine *e, bool now);
uint64_t odm_page_bytes(const struct odm_engine *e); /* of the KV cache */

/* OD_OK: a text of this many positions fits when it is alone; else OD_ERR_NOMEM. */
OD_MUST_CHECK int odm_state_fits(const struct odm_engine *e, uint32_t positions, struct od_err *err);

/* Reads the hosts file, if there is one, and the keys that links to other machines need. */
OD_MUST_CHECK int odm_engine_open_keys(struct odm_engine *e, struct od_err *err);
/* For odm_cluster_opts.rekey; arg: the engine. */
OD_MUST_CHECK int odm_engine_rekey(void *arg, struct od_hosts *hosts, struct od_err *err);

#endif
