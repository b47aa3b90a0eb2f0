/* model_list.h - od-pack list: the models of common/pack/models_folder.h as a table for people, or as JSON.
 *
 * Thread: any; opens the headers of GGUF files. */
#ifndef OD_PACK_MODEL_LIST_H
#define OD_PACK_MODEL_LIST_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base/status.h"

OD_MUST_CHECK int odp_model_list(bool json, FILE *out, struct od_err *err);

#endif
