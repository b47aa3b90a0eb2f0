/* id_table.h - small numbers for what has a 64-bit id (a sequence): each id that is in has a number below `most` of its
 * own, to index arrays with. Finding, adding and removing take constant time; nothing is allocated after the start.
 * Thread: its owner's. Owner: od_id_table_init ... od_id_table_fini by the caller. */
#ifndef OD_BASE_ID_TABLE_H
#define OD_BASE_ID_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_NO_NUMBER UINT32_MAX

struct od_id_table {
	uint32_t most, n;
	uint64_t *id;	/* [most], by number */
	uint32_t *free; /* [most]: numbers without an id; the last one is next, `most - n` of them */
	uint32_t *cell; /* [mask + 1]: a number, where its id is looked for, or behind that */
	size_t mask;
};

/* *t is empty unless OD_OK. */
OD_MUST_CHECK int od_id_table_init(struct od_id_table *t, uint32_t most, struct od_err *err);
void od_id_table_fini(struct od_id_table *t); /* one that is all zero, too */

uint32_t od_id_table_find(const struct od_id_table *t, uint64_t id); /* OD_NO_NUMBER: it is not in */
/* Its number, a free one if it was not in; OD_NO_NUMBER: the table is full. The first one gets 0. */
uint32_t od_id_table_add(struct od_id_table *t, uint64_t id);
void od_id_table_remove(struct od_id_table *t, uint64_t id); /* one that is not in, too */

#endif
