/* id_table.h - maps 64-bit ids (of sequences) to small numbers below `most`, which index arrays. A hash table: find,
 * add and remove take constant time; nothing is allocated after od_id_table_init.
 *
 * Thread: one at a time. Owner: od_id_table_init ... od_id_table_fini by the caller. */
#ifndef OD_BASE_ID_TABLE_H
#define OD_BASE_ID_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_NO_NUMBER UINT32_MAX

struct od_id_table {
	uint32_t most, n;
	uint64_t *id; /* [most], by number */
	uint32_t *free; /* [most]: stack of the `most - n` unused numbers */
	uint32_t *cell; /* [mask + 1]: hash table of numbers, linear probing */
	size_t mask;
};

/* *t is empty unless OD_OK. */
OD_MUST_CHECK int od_id_table_init(struct od_id_table *t, uint32_t most, struct od_err *err);
void od_id_table_fini(struct od_id_table *t); /* all zero is fine */

uint32_t od_id_table_find(const struct od_id_table *t, uint64_t id); /* OD_NO_NUMBER: unknown id */
/* The id's number; an unknown id gets a free one, the first id 0. OD_NO_NUMBER: the table is full. */
uint32_t od_id_table_add(struct od_id_table *t, uint64_t id);
void od_id_table_remove(struct od_id_table *t, uint64_t id); /* an unknown id is fine */

#endif
