/* pack_info.h - prints the contents of a pack, as text or as JSON. Thread: any. */
#ifndef OD_PACK_PACK_INFO_H
#define OD_PACK_PACK_INFO_H

#include <stdbool.h>
#include <stdio.h>

#include "common/pack/pack.h"

OD_MUST_CHECK int od_pack_info(const struct od_pack *p, bool json, FILE *out, struct od_err *err);

#endif
