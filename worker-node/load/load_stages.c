#include "worker-node/load/load_stages.h"

void odw_stages_init(struct odw_stages *s, unsigned n)
{
	*s = (struct odw_stages){ .n = n, .n_free = n };
}

unsigned odw_stages_take(struct odw_stages *s, int slot, uint32_t slice)
{
	unsigned i = 0;

	while (s->at[i].state != ODW_STAGE_FREE)
		i++;
	s->at[i] = (struct odw_stage){ ODW_STAGE_READING, slot, slice };
	s->n_free--;
	return i;
}

void odw_stages_leave(struct odw_stages *s, unsigned stage)
{
	s->at[stage].state = ODW_STAGE_FREE;
	s->n_free++;
}

int odw_stages_read(const struct odw_stages *s, int slot)
{
	int first = -1;

	for (unsigned i = 0; i < s->n; i++) {
		const struct odw_stage *st = &s->at[i];

		if (st->state == ODW_STAGE_READ && st->slot == slot && (first < 0 || st->slice < s->at[first].slice))
			first = (int)i;
	}
	return first;
}

bool odw_stages_drop(struct odw_stages *s, int slot)
{
	bool any = false;

	for (unsigned i = 0; i < s->n; i++) {
		if (s->at[i].state == ODW_STAGE_READ && s->at[i].slot == slot) {
			odw_stages_leave(s, i);
			any = true;
		}
	}
	return any;
}
