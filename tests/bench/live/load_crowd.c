#include "tests/bench/live/load_crowd.h"

#include <stdatomic.h>
#include <stdlib.h>

struct member {
	struct load_crowd *all;
	struct od_inflater *inflater;
	unsigned number;
	pthread_t thread;
	int rc;
	struct od_err err;
};

struct load_crowd {
	const struct od_pack *pack;
	const struct load_expert *e;
	struct od_expert_mem mem;
	atomic_bool stop;
	unsigned n, n_started;
	struct member member[]; /* [n] */
};

/* Every n-th shard, so that no two write to the same place. */
static void *finish_shards(void *arg)
{
	struct member *own = arg;
	struct load_crowd *c = own->all;
	const struct od_pack_expert *x = od_pack_expert(c->pack, c->e->m, c->e->expert);

	for (uint32_t i = own->number; own->rc == OD_OK && !atomic_load(&c->stop); i += c->n) {
		const struct od_shard *s;

		if (i >= x->n_shards)
			i = own->number;
		s = &x->shard[i];
		own->rc = od_inflater_finish(
			own->inflater, c->e->m, c->e->expert, i, 1,
			&(struct od_shard_bytes){ .sm = od_buf_ref(c->e->stored, s->sm.offset - x->offset),
						  .e = od_buf_ref(c->e->stored, s->e.offset - x->offset) },
			&c->mem, &own->err);
	}
	return NULL;
}

int load_crowd_start(struct load_crowd **out, unsigned n, const struct od_pack *pack, enum od_form form,
		     const struct load_expert *e, const struct od_expert_mem *mem, struct od_err *err)
{
	const uint32_t n_shards = od_pack_expert(pack, e->m, e->expert)->n_shards;
	struct load_crowd *c = calloc(1, sizeof(*c) + n * sizeof(c->member[0]));
	int rc = OD_OK;

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%u inflaters", n);
	c->pack = pack;
	c->e = e;
	c->mem = *mem;
	c->n = n < n_shards ? n : n_shards;
	for (unsigned i = 0; rc == OD_OK && i < c->n; i++) {
		c->member[i] = (struct member){ .all = c, .number = i };
		rc = od_inflater_new(&c->member[i].inflater, pack, od_buf_device(e->stored), form, err);
	}
	for (; rc == OD_OK && c->n_started < c->n; c->n_started += rc == OD_OK)
		if (pthread_create(&c->member[c->n_started].thread, NULL, finish_shards, &c->member[c->n_started]) != 0)
			rc = od_fail(err, OD_ERR_NOMEM, "cannot start inflater %u", c->n_started);
	if (rc != OD_OK) {
		(void)!load_crowd_stop(c, NULL);
		return rc;
	}
	*out = c;
	return OD_OK;
}

int load_crowd_stop(struct load_crowd *c, struct od_err *err)
{
	int rc = OD_OK;

	if (c == NULL)
		return OD_OK;
	atomic_store(&c->stop, true);
	for (unsigned i = 0; i < c->n; i++) {
		struct member *m = &c->member[i];

		if (i < c->n_started)
			pthread_join(m->thread, NULL);
		if (rc == OD_OK && m->rc != OD_OK) {
			rc = m->rc;
			if (err != NULL)
				*err = m->err;
		}
		od_inflater_free(m->inflater);
	}
	free(c);
	return rc;
}
