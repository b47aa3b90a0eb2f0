/* generation_config.h - fields of a model's generation_config.json (transformers' GenerationConfig) beyond sampling:
 * tokens that are never drawn, and what is not done here.
 *
 * Thread: any. Owner: the caller. */
#ifndef OD_MODEL_GENERATION_CONFIG_H
#define OD_MODEL_GENERATION_CONFIG_H

#include <jansson.h>

#include "common/model/sampler.h"

/* suppress_tokens, and those of bad_words_ids that are one token: each once, with a bias of minus infinity. config: the
 * file's object; NULL: none. *out: malloc'd, NULL if there are none. where: the file, for messages. */
OD_MUST_CHECK int od_generation_suppressed(struct od_logit_bias **out, size_t *n, const json_t *config, uint32_t vocab,
					   const char *where, struct od_err *err);
/* Logs a warning for each field that changes texts in transformers and is not done here. config: NULL ok. */
void od_generation_warn(const json_t *config, const char *where);

#endif
