/* model.h - a model as main has it, without an expert service: its pack, a device with the dense weights, the memory of
 * texts, and what of ended texts is kept for others. The engine and its expert service both stand on it.
 *
 * Thread: the engine thread; what does not change after odm_model_load: any. Owner: odm_model_open's caller. */
#ifndef ODM_MODEL_H
#define ODM_MODEL_H

#include "common/model/forward_open.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_form.h"
#include "main-node/engine/engine.h"
#include "main-node/engine/reuse.h"
#include "main-node/engine/tier_plan.h"

struct odm_model {
	struct odm_engine_opts opts; /* with the chosen values filled in */
	struct od_pack *pack;
	const struct od_config *config;
	/* [n_suppressed] tokens that the model's generation_config.json does not let be drawn */
	struct od_logit_bias *suppressed;
	size_t n_suppressed;
	struct od_device *device;
	enum od_form form; /* form of experts here, or on the workers of --local */
	enum od_dense_choice dense_choice;
	/* OD_DENSE_STREAMED: for its ring and the weights that stay; memory of the process with which all would stay */
	uint64_t dense_bytes, dense_all_bytes;
	struct od_dense_store *dense;
	struct od_dense_figures dense_counted; /* in steps' counters so far */
	struct od_tokenizer *tokenizer; /* NULL: the pack has none */
	struct od_state_pool *state;
	uint32_t n_pages, cache_pages; /* pages of state for texts in progress, and for ended ones */
	uint32_t n_snapshots; /* snapshots of fixed state */
	bool shares_memory; /* pages take memory from kept experts when they are used, and give it back */
	bool auto_ctx, any_ctx; /* the context was not asked for; even the least one does not fit */
	/* Tokens of a text that gives no limit, with its prompt, so that `parallel` of them fit; UINT64_MAX: any
	 * number. */
	uint64_t fair_tokens;
	struct odm_reuse reuse;
	struct odm_tier_plan tiers; /* opts.tiered; else its limit alone, where the process has one */
};

/* Opens the pack alone. pack: as in odm_engine_opts. */
OD_MUST_CHECK int odm_model_open(struct odm_model **out, const char *pack, struct od_err *err);
/* Sets the pack's prior as the options ask. odm_model_load does it. */
OD_MUST_CHECK int odm_set_routing(struct od_pack *p, const struct odm_engine_opts *opts, struct od_err *err);
/* Once: opens a device, plans its memory and loads the dense weights. opts are copied; strings stay the caller's. */
OD_MUST_CHECK int odm_model_load(struct odm_model *m, const struct odm_engine_opts *opts, struct od_err *err);
void odm_model_close(struct odm_model *m); /* NULL ok */

size_t odm_model_most_rows(const struct odm_model *m); /* most rows of a step */
/* max_rows: as many as a step of either kind may have. Before the model is loaded: without weights and state, to count
 * memory. */
struct od_forward_opts odm_model_forward_opts(const struct odm_model *m);

#endif
