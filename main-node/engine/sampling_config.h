/* sampling_config.h - the default sampling: the model's generation_config.json, else greedy. Thread: any. */
#ifndef ODM_SAMPLING_CONFIG_H
#define ODM_SAMPLING_CONFIG_H

#include "common/model/sampler.h"
#include "common/text/tokenizer.h"
#include "common/pack/pack.h"

/* Makes DRY's settings fit for a sampler: its window is at most the context; *breakers, malloc'd and the caller's, are
 * the tokens of its texts. No text, or t NULL: it has no breakers. NULL while DRY is off. */
OD_MUST_CHECK int odm_sampling_dry(struct od_dry_opts *d, const struct od_tokenizer *t, uint32_t vocab, uint32_t ctx,
				   const char *const *text, size_t n_text, int32_t **breakers, struct od_err *err);
#define ODM_N_USUAL_BREAKERS 4
extern const char *const odm_usual_breakers[ODM_N_USUAL_BREAKERS]; /* texts, as in llama.cpp */
OD_MUST_CHECK int odm_sampling_defaults(struct od_sampler_opts *o, const struct od_pack *pack, struct od_err *err);

#endif
