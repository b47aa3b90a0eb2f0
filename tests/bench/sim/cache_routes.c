#include "tests/bench/sim/cache_routes.h"

#include <stdlib.h>
#include <string.h>

void cache_routes_fini(struct cache_routes *r)
{
	free(r->visit);
	free(r->expert);
	*r = (struct cache_routes){ 0 };
}

static int make_room(struct cache_routes *r, uint64_t visits, uint64_t uses, struct od_err *err)
{
	if (visits < SIZE_MAX / sizeof(*r->visit) && uses < SIZE_MAX / sizeof(*r->expert)) {
		r->visit = calloc(visits + 1, sizeof(*r->visit));
		r->expert = calloc(uses + 1, sizeof(*r->expert));
	}
	if (r->visit != NULL && r->expert != NULL)
		return OD_OK;
	cache_routes_fini(r);
	return od_fail(err, OD_ERR_NOMEM, "no memory for %llu routes", (unsigned long long)uses);
}

/* needed [n_experts] is cleared on the way. */
static void add_visit(struct cache_routes *r, uint64_t step, uint32_t m, bool *needed)
{
	struct cache_visit *v = &r->visit[r->n_visits];

	*v = (struct cache_visit){ .step = step, .m = m, .first = r->n_uses };
	for (uint32_t e = 0; e < r->n_experts; e++) {
		if (needed[e])
			r->expert[r->n_uses++] = (uint16_t)e;
		needed[e] = false;
	}
	v->n = (uint32_t)(r->n_uses - v->first);
	r->n_visits += v->n > 0;
}

/* ---- From a recording ---- */

struct conversion {
	struct cache_routes *r;
	const struct od_routes *from;
	bool *needed; /* [n_experts] */
	uint64_t step;
};

/* Steps of the recording that are one step here. */
static void add_step(struct conversion *c, const struct od_route_step *const *steps, size_t n)
{
	c->step++;
	if (steps[0]->prompt)
		return;
	c->r->n_decode_steps++;
	for (uint32_t m = 0; m < c->r->n_moe; m++) {
		for (size_t i = 0; i < n; i++) {
			const struct od_route_step *s = steps[i];
			const size_t row = (size_t)s->n_rows * c->r->top_k;

			if (m < s->n_moe)
				for (size_t k = 0; k < row; k++)
					c->needed[s->expert[m * row + k]] = true;
		}
		add_visit(c->r, c->step, m, c->needed);
	}
}

/* The next step of a sequence behind *at, of a prompt or not; NULL: there is none. */
static const struct od_route_step *next_step(const struct od_routes *from, uint64_t sequence, bool prompt, size_t *at)
{
	while (*at < from->n_steps) {
		const struct od_route_step *s = &from->step[(*at)++];

		if (s->row[0].sequence == sequence && s->prompt == prompt)
			return s;
	}
	return NULL;
}

static void add_batch(struct conversion *c, const uint64_t *sequence, uint32_t n, const struct od_route_step **together,
		      size_t *at)
{
	size_t n_together;

	for (uint32_t i = 0; i < n; i++) {
		at[i] = 0;
		while ((together[0] = next_step(c->from, sequence[i], true, &at[i])) != NULL)
			add_step(c, together, 1);
	}
	memset(at, 0, n * sizeof(*at));
	do {
		n_together = 0;
		for (uint32_t i = 0; i < n; i++) {
			together[n_together] = next_step(c->from, sequence[i], false, &at[i]);
			n_together += together[n_together] != NULL;
		}
		if (n_together > 0)
			add_step(c, together, n_together);
	} while (n_together > 0);
}

/* Distinct sequences in the order of their first step; 0: a step has several. */
static size_t list_sequences(const struct od_routes *from, uint64_t *sequence)
{
	size_t n = 0;

	for (size_t i = 0; i < from->n_steps; i++) {
		const struct od_route_step *s = &from->step[i];
		size_t k = n;

		for (uint32_t row = 1; row < s->n_rows; row++) {
			if (s->row[row].sequence != s->row[0].sequence)
				return 0;
		}
		while (k > 0 && sequence[k - 1] != s->row[0].sequence)
			k--;
		if (k == 0)
			sequence[n++] = s->row[0].sequence;
	}
	return n;
}

static int add_batches(struct conversion *c, uint32_t batch, struct od_err *err)
{
	uint64_t *sequence = calloc(c->from->n_steps + 1, sizeof(*sequence));
	const struct od_route_step **together = calloc((size_t)batch + 1, sizeof(*together));
	size_t *at = calloc(batch, sizeof(*at)), n = 0;
	int rc = OD_OK;

	if (sequence == NULL || together == NULL || at == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %u sequences at a time", batch);
	} else {
		n = list_sequences(c->from, sequence);
		if (n == 0 && c->from->n_steps > 0)
			rc = od_fail(err, OD_ERR_ARG,
				     "--batch: the recording has several sequences in a step already; "
				     "leave --batch out");
	}
	if (rc == OD_OK)
		for (size_t i = 0; i < n; i += batch)
			add_batch(c, sequence + i, (uint32_t)(n - i < batch ? n - i : batch), together, at);
	free(sequence);
	free(together);
	free(at);
	return rc;
}

static int convert(struct cache_routes *r, const struct od_routes *recorded, uint32_t batch, struct od_err *err)
{
	const struct od_route_head *h = &recorded->head;
	struct conversion c = { .r = r, .from = recorded };
	uint64_t uses = 0;
	int rc;

	*r = (struct cache_routes){ .n_moe = h->n_moe, .n_experts = h->n_experts, .top_k = h->top_k };
	for (size_t i = 0; i < recorded->n_steps; i++) {
		uint64_t rows = (uint64_t)recorded->step[i].n_rows * h->top_k;

		uses += h->n_moe * (rows < h->n_experts ? rows : h->n_experts);
	}
	rc = make_room(r, (uint64_t)recorded->n_steps * h->n_moe, uses, err);
	if (rc != OD_OK)
		return rc;
	c.needed = calloc(h->n_experts, sizeof(*c.needed));
	if (c.needed == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %u experts", h->n_experts);
	if (rc == OD_OK && batch > 1)
		rc = add_batches(&c, batch, err);
	if (rc == OD_OK && batch == 1)
		for (size_t i = 0; i < recorded->n_steps; i++) {
			const struct od_route_step *s = &recorded->step[i];

			add_step(&c, &s, 1);
		}
	free(c.needed);
	if (rc != OD_OK)
		cache_routes_fini(r);
	return rc;
}

int cache_routes_load(struct cache_routes *r, const char *path, uint32_t batch, struct od_err *err)
{
	struct od_routes recorded;
	int rc = od_routes_load(&recorded, path, err);

	if (rc != OD_OK)
		return rc;
	rc = convert(r, &recorded, batch, err);
	od_routes_fini(&recorded);
	return rc;
}
