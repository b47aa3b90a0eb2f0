/* hub_token.h - the user's token of the hub, from where its own programs have it: $HF_TOKEN, else the file
 * $HF_TOKEN_PATH, $HF_HOME/token, $XDG_CACHE_HOME/huggingface/token or ~/.cache/huggingface/token.
 *
 * Thread: any. Owner: the caller frees *token. */
#ifndef OD_PACK_HUB_TOKEN_H
#define OD_PACK_HUB_TOKEN_H

#include "common/base/status.h"

/* *token is NULL where there is none. */
OD_MUST_CHECK int odp_hub_token(char **token, struct od_err *err);
/* $HF_ENDPOINT without slashes at its end, else https://huggingface.co; malloc'd. */
OD_MUST_CHECK int odp_hub_endpoint(char **endpoint, struct od_err *err);

#endif
