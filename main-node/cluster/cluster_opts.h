/* cluster_opts.h - what the engine tells the cluster when it opens it; members read it, too.
 *
 * Owner: the cluster keeps a copy; strings, config and hosts are the engine's and outlive it. */
#ifndef ODM_CLUSTER_OPTS_H
#define ODM_CLUSTER_OPTS_H

#include <stdatomic.h>

#include "common/compute/backend.h"
#include "common/model/config.h"
#include "common/net/hosts.h"
#include "common/predict/predictor.h"

#define ODM_MAX_STEP_ROWS 256u /* of a STEP: the shadow hears nothing of steps with more */

/* How often the shadow is aligned (OD-MoE section 3.2, T_i_KV_j), in decode steps; 0: never. shadow_link.h has the
 * rules. */
struct odm_align {
	uint32_t token_period, kv_period;
};

struct odm_cluster_opts {
	const struct od_config *config;
	uint8_t fingerprint[32];
	enum od_profile profile;
	const char *kernel_class;
	bool mixed;
	uint32_t ctx_tokens;
	uint32_t max_rows; /* of a step */
	uint32_t max_sequences; /* open at a time; 0: 1 */
	uint32_t group_size; /* G as asked; 0: top-k */
	bool shadow;		     /* there is one and it predicts; else PREDICTs are ignored */
	const struct od_predictor_kind *own; /* main's own: beside a shadow it stands in; NULL: none */
	double hedge;		     /* budget of wasted loads over expert uses; 0: no hedges */
	struct odm_align align;
	const struct od_hosts *hosts;
	const char *hosts_path; /* read again on SIGHUP; NULL: never */
	const atomic_bool *cancel; /* main is asked to end */
};

#endif
