/* sampling_config.h - the default sampling: the model's generation_config.json, else greedy. Thread: any. */
#ifndef ODM_SAMPLING_CONFIG_H
#define ODM_SAMPLING_CONFIG_H

#include "common/model/sampler.h"
#include "common/pack/pack.h"

OD_MUST_CHECK int odm_sampling_defaults(struct od_sampler_opts *o, const struct od_pack *pack, struct od_err *err);

#endif
