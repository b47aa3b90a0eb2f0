#include "common/residency/step_marks.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct mark {
	uint64_t step, used; /* used 0: free; else the time of the last touch */
	uint32_t below; /* layers under it are closed */
};

struct od_step_marks {
	uint32_t n_moe;
	uint64_t clock;
	struct mark mark[OD_MAX_STEPS];
	uint64_t *version; /* [OD_MAX_STEPS][n_moe]: version + 1, 0: none came */
};

struct od_step_marks *od_step_marks_new(uint32_t n_moe)
{
	struct od_step_marks *t = calloc(1, sizeof(*t));

	if (t == NULL)
		return NULL;
	t->n_moe = n_moe;
	t->version = od_alloc_array((size_t)n_moe * OD_MAX_STEPS, sizeof(*t->version));
	if (t->version == NULL) {
		od_step_marks_free(t);
		return NULL;
	}
	return t;
}

void od_step_marks_free(struct od_step_marks *t)
{
	if (t == NULL)
		return;
	od_free(t->version);
	free(t);
}

void od_step_marks_clear(struct od_step_marks *t)
{
	memset(t->mark, 0, sizeof(t->mark)); /* versions are cleared when a step takes its place */
}

static struct mark *find(struct od_step_marks *t, uint64_t step)
{
	for (unsigned i = 0; i < OD_MAX_STEPS; i++) {
		if (t->mark[i].used != 0 && t->mark[i].step == step)
			return &t->mark[i];
	}
	return NULL;
}

/* The step's mark, made from the one that was used least recently (a free one first) when there is none. */
static struct mark *touch(struct od_step_marks *t, uint64_t step)
{
	struct mark *k = find(t, step);

	if (k == NULL) {
		k = &t->mark[0];
		for (unsigned i = 1; i < OD_MAX_STEPS; i++) {
			if (t->mark[i].used < k->used)
				k = &t->mark[i];
		}
		*k = (struct mark){ .step = step };
		memset(t->version + (size_t)(k - t->mark) * t->n_moe, 0, t->n_moe * sizeof(*t->version));
	}
	k->used = ++t->clock;
	return k;
}

void od_step_marks_close(struct od_step_marks *t, uint64_t step, uint32_t below)
{
	struct mark *k = touch(t, step);

	if (below > k->below)
		k->below = below;
}

bool od_step_marks_closed(struct od_step_marks *t, uint64_t step, uint32_t m)
{
	const struct mark *k = find(t, step);

	return k != NULL && m < k->below;
}

bool od_step_marks_newer(struct od_step_marks *t, uint64_t step, uint32_t m, uint32_t version)
{
	struct mark *k = touch(t, step);
	uint64_t *newest = &t->version[(size_t)(k - t->mark) * t->n_moe + m];

	if (m < k->below || version + 1ull <= *newest)
		return false;
	*newest = version + 1ull;
	return true;
}
