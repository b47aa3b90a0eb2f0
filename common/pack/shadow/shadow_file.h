/* shadow_file.h - opens a shadow's file and checks its header; only for common/pack.
 *
 * Thread: any. Owner: the caller; od_shadow_file_close is valid after any return. */
#ifndef OD_PACK_SHADOW_FILE_H
#define OD_PACK_SHADOW_FILE_H

#include "common/pack/pack_internal.h"
#include "common/pack/shadow/shadow_layout.h"

struct od_shadow_file {
	struct {
		char *path;
		int fd;
	} file;
	struct od_shadow_table table;
};

/* The precisions for which the pack has a file; its contents are not checked. */
OD_MUST_CHECK int od_shadow_present(const struct od_pack *p, unsigned *set, struct od_err *err);

/* OD_ERR_MISSING when there is none. */
OD_MUST_CHECK int od_shadow_file_open(struct od_shadow_file *f, const struct od_pack *p, enum od_precision precision,
				      struct od_err *err);
void od_shadow_file_close(struct od_shadow_file *f);

#endif
