/* recall_models.h - the weights of the true model and of its quantised copies, in this process's memory, or its GPU's.
 *
 * The weights are on a device of their own that never computes; each thread has its own device and uses these weights
 * (cpu_device.h).
 * Thread: immutable once open. Owner: recall_models_open's caller; the pack is borrowed. */
#ifndef OD_BENCH_RECALL_MODELS_H
#define OD_BENCH_RECALL_MODELS_H

#include "common/model/forward.h"
#include "tests/bench/live/recall_config.h"

struct recall_models;

/* Checks that n models and extra_bytes of other data fit into memory; else OD_ERR_NOMEM, with the numbers and the
 * advice. OD_ERR_MISSING names the od-pack command that makes a precision. */
OD_MUST_CHECK int recall_models_fit(const struct od_pack *p, const struct od_shadow_choice *wanted, size_t n,
				    uint64_t extra_bytes, const char *advice, struct od_err *err);

/* Loads the pack's own weights and each precision that a configuration names, if they fit together with extra_bytes. */
OD_MUST_CHECK int recall_models_open(struct recall_models **out, const struct od_pack *p,
				     const struct recall_configs *configs, const char *device, unsigned n_threads,
				     uint64_t extra_bytes, bool progress, struct od_err *err);
void recall_models_close(struct recall_models *m); /* NULL ok */

/* The weights of a configuration's shadow; c NULL: the true model's. */
const struct od_dense *recall_models_dense(const struct recall_models *m, const struct recall_config *c);
const struct od_expert *recall_models_experts(const struct recall_models *m, const struct recall_config *c);

#endif
