/* dense_load.h - the dense weights of a pack, read into a device's memory and checked.
 * Thread: the one of the device's compute queue. */
#ifndef OD_PACK_DENSE_LOAD_H
#define OD_PACK_DENSE_LOAD_H

#include "common/pack/pack.h"

struct od_dense_store;

OD_MUST_CHECK int od_dense_load(struct od_dense_store **out, const struct od_pack *p, struct od_device *d, struct od_err *err);
void od_dense_free(struct od_dense_store *s);			 /* NULL ok */
const struct od_dense *od_dense_get(const struct od_dense_store *s); /* borrowed */
uint64_t od_dense_bytes(const struct od_dense_store *s);
/* What od_dense_load will take, before it does. */
uint64_t od_dense_need_bytes(const struct od_pack *p);
/* What a token reads of them: all, but of the embedding one row; one that is the head, too, is read as that besides. */
uint64_t od_dense_token_bytes(const struct od_pack *p);

#endif
