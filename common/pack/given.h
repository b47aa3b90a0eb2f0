/* given.h - what a user named as a checkpoint or as a pack, where it is neither: says what it is and what to do
 * instead. Looks at names and first bytes only; what is wrong inside is found by those who read it.
 *
 * Thread: any. */
#ifndef OD_PACK_GIVEN_H
#define OD_PACK_GIVEN_H

#include "common/base/status.h"

/* OD_OK: a folder with a config.json and *.safetensors files of which none is known to be missing, or a GGUF file.
 * other: what was named as the pack, for the case that the two were exchanged; NULL: nothing. */
OD_MUST_CHECK int od_given_checkpoint(const char *path, const char *other, struct od_err *err);
/* OD_OK: a folder that has at least one of the files that only packs have. */
OD_MUST_CHECK int od_given_pack(const char *path, struct od_err *err);

#endif
