/* main_opts.h - the options of od-main as a node: those of its engine, of its cluster, and of the processes of --local.
 *
 * Thread: plain data. Owner: the caller; strings stay the caller's. */
#ifndef ODM_MAIN_OPTS_H
#define ODM_MAIN_OPTS_H

#include "common/base/args.h"
#include "common/net/keys.h"
#include "main-node/cluster/cluster_opts.h"
#include "main-node/engine/engine.h"

/* ODM_PREDICT_OWN + i: main's own predictor number i of od_predictor_kinds. */
enum odm_predictor { ODM_PREDICTOR_AUTO = -1, ODM_PREDICT_SHADOW, ODM_PREDICT_NONE, ODM_PREDICT_OWN };
extern const char *const odm_predictor_names[]; /* "shadow", "none", OD_PREDICTOR_NAMES, NULL */

enum odm_mode { ODM_RESIDENT, ODM_LOCAL, ODM_WORKERS, ODM_TIERED };

/* Used with ODM_LOCAL and ODM_WORKERS; predictor and hedge with ODM_TIERED, too. */
struct odm_cluster_args {
	const char *hosts_path; /* ODM_WORKERS */
	struct odm_align align; /* the shadow's */
	int predictor; /* index of odm_predictor_names; ODM_PREDICTOR_AUTO: the shadow if there is one */
	bool no_stand_in; /* to measure a shadow alone: main does not predict while the shadow is silent */
	const struct od_predictor_kind *own; /* with ODM_PREDICT_OWN: use this kind; NULL: the one of `predictor` */
	double hedge_percent; /* budget of wasted loads, percent of expert uses; 0: no hedges */
	uint64_t group_size; /* 0: top-k */
};

/* Used with ODM_LOCAL. */
struct odm_local_opts {
	uint32_t workers;
	struct od_arg_list worker_args, shadow_args; /* passed to each worker; to the shadow */
};

struct odm_main_opts {
	enum odm_mode mode;
	struct odm_engine_opts engine; /* resident, tiered: as mode says */
	struct odm_cluster_args cluster;
	struct odm_local_opts local;
	const char *trace; /* file for od_trace, to which --local adds the children's events; NULL: none */
	const char *serve_store; /* address from which workers can pull the pack; NULL: none */
	struct od_keys_args keys; /* for links to other machines: --workers, --serve-store */
};

void odm_main_opts_defaults(struct odm_main_opts *o);

#endif
