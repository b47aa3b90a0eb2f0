/* sampling_config.h - how to sample when the user does not say: what the model's authors put into
 * generation_config.json, else greedy. Thread: any. */
#ifndef ODM_SAMPLING_CONFIG_H
#define ODM_SAMPLING_CONFIG_H

#include "common/model/sampler.h"
#include "common/pack/pack.h"

OD_MUST_CHECK int odm_sampling_defaults(struct od_sampler_opts *o, const struct od_pack *pack, struct od_err *err);

#endif
