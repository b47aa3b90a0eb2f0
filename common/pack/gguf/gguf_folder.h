/* gguf_folder.h - the folder of a pack's small files that belongs to a GGUF file: config.json, the tokeniser's files
 * and generation_config.json, made from its metadata; and model.json and SHA256SUMS, for workers that pull their share.
 * The same bytes on every machine. Shadows that od-pack makes of it go there, too.
 *
 * It is in $CACHE_DIRECTORY (systemd), else /var/cache/od-moe, else $XDG_CACHE_HOME/od-moe or ~/.cache/od-moe: in the
 * first that can be written. Where none can be written, an existing folder is read, else a temporary one is made. The
 * folder's name has the file's fingerprint. Its files are used as they are; one that differs from SHA256SUMS is made
 * again.
 * Thread: any; processes may make one folder at the same time. */
#ifndef OD_PACK_GGUF_FOLDER_H
#define OD_PACK_GGUF_FOLDER_H

#include <jansson.h>

#include "common/pack/gguf/gguf.h"

/* *folder: malloc'd. *temporary: od_gguf_folder_remove it at the end. */
OD_MUST_CHECK int od_gguf_folder_make(const struct od_gguf *g, const char *fingerprint, const json_t *config,
				      char **folder, bool *temporary, struct od_err *err);
void od_gguf_folder_remove(const char *folder);
/* The folder of a file that is not open: for who needs nothing else of it. */
OD_MUST_CHECK int od_gguf_folder_of(const char *path, char **folder, bool *temporary, struct od_err *err);

#endif
