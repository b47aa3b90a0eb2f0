#include "common/base/id_table.h"

#include <stdlib.h>
#include <string.h>

int od_id_table_init(struct od_id_table *t, uint32_t most, struct od_err *err)
{
	size_t cells = 2; /* twice as many as ids at least, so that a search ends soon */

	while (cells < 2 * (size_t)most)
		cells *= 2;
	*t = (struct od_id_table){ .most = most, .mask = cells - 1 };
	t->id = calloc(most > 0 ? most : 1, sizeof(*t->id));
	t->free = calloc(most > 0 ? most : 1, sizeof(*t->free));
	t->cell = malloc(cells * sizeof(*t->cell));
	if (t->id == NULL || t->free == NULL || t->cell == NULL) {
		od_id_table_fini(t);
		return od_fail(err, OD_ERR_NOMEM, "table of %u ids", most);
	}
	memset(t->cell, 0xff, cells * sizeof(*t->cell)); /* OD_NO_NUMBER */
	for (uint32_t i = 0; i < most; i++)
		t->free[i] = most - 1 - i;
	return OD_OK;
}

void od_id_table_fini(struct od_id_table *t)
{
	free(t->id);
	free(t->free);
	free(t->cell);
	*t = (struct od_id_table){ 0 };
}

/* Ids count up: their product with this spreads them over all bits (Knuth's multiplicative hashing). */
static size_t home(const struct od_id_table *t, uint64_t id)
{
	return (size_t)((id * 0x9e3779b97f4a7c15u) >> 32) & t->mask;
}

/* The id's cell, or the free one where the search for it ends. */
static size_t cell_of(const struct od_id_table *t, uint64_t id)
{
	size_t at = home(t, id);

	while (t->cell[at] != OD_NO_NUMBER && t->id[t->cell[at]] != id)
		at = (at + 1) & t->mask;
	return at;
}

uint32_t od_id_table_find(const struct od_id_table *t, uint64_t id)
{
	return t->cell[cell_of(t, id)];
}

uint32_t od_id_table_add(struct od_id_table *t, uint64_t id)
{
	const size_t at = cell_of(t, id);
	uint32_t number = t->cell[at];

	if (number != OD_NO_NUMBER || t->n == t->most)
		return number;
	number = t->free[t->most - ++t->n];
	t->id[number] = id;
	t->cell[at] = number;
	return number;
}

void od_id_table_remove(struct od_id_table *t, uint64_t id)
{
	size_t at = cell_of(t, id);

	if (t->cell[at] == OD_NO_NUMBER)
		return;
	t->free[t->most - t->n--] = t->cell[at];
	t->cell[at] = OD_NO_NUMBER;
	/* No search may end in the gap: whoever stands behind it and is looked for before it moves there. */
	for (size_t next = (at + 1) & t->mask; t->cell[next] != OD_NO_NUMBER; next = (next + 1) & t->mask) {
		const size_t from = home(t, t->id[t->cell[next]]);

		if (((next - from) & t->mask) < ((next - at) & t->mask))
			continue;
		t->cell[at] = t->cell[next];
		t->cell[next] = OD_NO_NUMBER;
		at = next;
	}
}
