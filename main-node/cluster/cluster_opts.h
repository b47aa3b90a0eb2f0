/* cluster_opts.h - the options of a cluster, which its members also read.
 *
 * Thread: immutable. Owner: the cluster keeps a copy; strings, config and hosts belong to the engine and must outlive
 * it. */
#ifndef ODM_CLUSTER_OPTS_H
#define ODM_CLUSTER_OPTS_H

#include <stdatomic.h>

#include "common/compute/backend.h"
#include "common/model/config.h"
#include "common/net/hosts.h"
#include "common/predict/predictor.h"

struct od_pack;

/* Alignment periods of the shadow in decode steps (OD-MoE, arXiv 2512.03927, section 3.2, T_i_KV_j); 0: never. The
 * rules are in shadow_link.h. */
struct odm_align {
	uint32_t token_period, kv_period;
};

struct odm_cluster_opts {
	const struct od_config *config;
	const struct od_pack *pack; /* main's; NULL: workers' copies are not compared with it (copy_check.h) */
	uint8_t fingerprint[32];
	enum od_profile profile;
	const char *kernel_class;
	bool mixed;
	uint32_t ctx_tokens;
	uint32_t max_rows; /* most rows of a step */
	uint32_t max_draft; /* draft rows of a text in a decode step; 0: no drafts */
	uint32_t decode_rows; /* limit of rows of a decode step, drafts included */
	uint32_t max_sequences; /* limit of open sequences; 0: 1 */
	uint32_t group_size; /* --group-size; 0: top-k */
	bool shadow; /* use the shadow's predictions; false: ignore PREDICTs */
	const struct od_predictor_kind *own; /* main's own predictor; with a shadow only its fallback; NULL: none */
	double hedge; /* budget of wasted loads over expert uses; 0: no hedges */
	struct odm_align align;
	const struct od_hosts *hosts;
	const char *hosts_path; /* read again on SIGHUP; NULL: never */
	const struct od_key_pair *own_keys; /* this node's keys, for hosts that have one; NULL: none */
	/* Loop thread: the hosts file was read again. Fills in the hosts' keys; not OD_OK: the cluster stays as it
	 * is. */
	int (*rekey)(void *arg, struct od_hosts *hosts, struct od_err *err);
	void *rekey_arg;
	/* Loop thread: whether the process of this host, which main started, has ended since the last call; *why says
	 * how. NULL: main started none. */
	bool (*ended)(void *arg, const struct od_host *host, char *why, size_t size);
	void *ended_arg;
	const atomic_bool *cancel; /* true: main is to end */
	bool looks; /* only asks and measures: workers keep what they have, and get no PLACE */
};

#endif
