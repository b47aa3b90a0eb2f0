/* gguf_config.h - a model's configuration from a GGUF file's metadata and tensors: the object that the checkpoint's
 * config.json would be, as far as the families' parsers read it. docs/GGUF.md says what stands in no file and is taken
 * by architecture.
 *
 * Thread: any; pure functions of an open file. */
#ifndef OD_PACK_GGUF_CONFIG_H
#define OD_PACK_GGUF_CONFIG_H

#include <jansson.h>

#include "common/pack/gguf/gguf.h"

/* OD_ERR_UNSUPPORTED: no family here has this general.architecture. where: the file, for messages. */
OD_MUST_CHECK int od_gguf_check_arch(const char *where, const char *name, size_t len, struct od_err *err);
/* *out: the caller's to free; NULL unless OD_OK. The same object on every machine. OD_ERR_UNSUPPORTED: an unknown
 * architecture, a dense model, a file of projections; err lists what is supported. */
OD_MUST_CHECK int od_gguf_config(const struct od_gguf *g, json_t **out, struct od_err *err);

#endif
