#include "common/residency/load_stages.h"

void od_load_stages_init(struct od_load_stages *s, unsigned n)
{
	*s = (struct od_load_stages){ .n = n, .n_free = n };
}

unsigned od_load_stages_take(struct od_load_stages *s, int slot, uint32_t slice)
{
	unsigned i = 0;

	while (s->at[i].state != OD_STAGE_FREE)
		i++;
	s->at[i] = (struct od_load_stage){ OD_STAGE_READING, slot, slice };
	s->n_free--;
	return i;
}

void od_load_stages_leave(struct od_load_stages *s, unsigned stage)
{
	s->at[stage].state = OD_STAGE_FREE;
	s->n_free++;
}

int od_load_stages_read(const struct od_load_stages *s, int slot)
{
	int first = -1;

	for (unsigned i = 0; i < s->n; i++) {
		const struct od_load_stage *st = &s->at[i];

		if (st->state == OD_STAGE_READ && st->slot == slot && (first < 0 || st->slice < s->at[first].slice))
			first = (int)i;
	}
	return first;
}

bool od_load_stages_drop(struct od_load_stages *s, int slot)
{
	bool any = false;

	for (unsigned i = 0; i < s->n; i++) {
		if (s->at[i].state == OD_STAGE_READ && s->at[i].slot == slot) {
			od_load_stages_leave(s, i);
			any = true;
		}
	}
	return any;
}
