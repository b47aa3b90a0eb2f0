/* model_cost.h - what a model costs: weights that a row is multiplied with, bytes on disk, in memory and on the wire.
 *
 * From a pack, a GGUF file, a checkpoint's folder or a config.json alone (shape_pack.h). The tensors are those that the
 * model's family lists, so every family that od-pack takes can be planned.
 * Thread: any; immutable once open. Owner: odp_model_open's caller. */
#ifndef ODP_MODEL_COST_H
#define ODP_MODEL_COST_H

#include "common/pack/load/expert_form.h"
#include "common/pack/shadow/shadow_layout.h"
#include "common/pack/shape_pack.h"
#include "deploy/plan/sim.h"

struct odp_model {
	struct od_pack *pack; /* for all who count memory; without data unless source is OD_SHAPE_PACK */
	enum od_shape_source source;
	const struct od_config *config; /* the pack's */
	enum od_profile profile;
	struct odp_sim_block *block; /* [n_layers] */
	double dense_weights, head_weights; /* a token is multiplied with them on main */
	double expert_weights; /* one expert's */
	uint64_t dense_bytes, experts_bytes; /* as published */
	uint64_t expert_stored_bytes; /* A load reads them. */
	uint64_t kv_bytes; /* a position, in all layers */
	uint64_t fixed_bytes; /* a text's recurrent state */
	uint64_t row_bytes; /* a row's, in RUN and RESULT */
	bool has_planes; /* experts can stay compressed in memory */
};

/* *m is all zero unless OD_OK. */
OD_MUST_CHECK int odp_model_open(struct odp_model *m, const char *given, enum od_profile profile, struct od_err *err);
void odp_model_close(struct odp_model *m); /* all zero is fine */

/* Weights of the model, and those that a token uses. */
double odp_model_weights(const struct odp_model *m);
double odp_model_active_weights(const struct odp_model *m);
/* Bytes of a weight of the experts as published, with scales. */
double odp_model_expert_bytes(const struct odp_model *m);

/* The simulator's input; borrows m. form: of experts on workers. shadow: its precision; 0: there is no shadow. */
struct odp_sim_model odp_model_for_sim(const struct odp_model *m, enum od_form form, enum od_precision shadow);

#endif
