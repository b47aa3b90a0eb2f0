#include "tests/bench/live/load_run.h"

#include "common/base/clock.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SESSION 1

/* ---- Loads ---- */

struct load_job {
	const struct load_case *c;
	struct od_schedule *s;
	struct od_schedule_item *item; /* [source->n] */
	sem_t *ready;
};

static void wake(void *arg)
{
	sem_post(arg);
}

static int ask(const struct load_job *j, size_t i, struct od_err *err)
{
	const struct load_expert *e = &j->c->source->expert[i];
	int rc;

	j->item[i] = (struct od_schedule_item){ .expert = e->expert, .rank = (uint32_t)i, .last = true };
	rc = od_schedule_run(j->s, SESSION, i, e->m, true, &j->item[i], 1);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "the schedule refuses expert (%u, %u)", e->m, e->expert);
}

/* One RUN more than there are slots is on its way, so that no slot waits for one. */
static int drive(const struct load_job *j, struct od_err *err)
{
	const size_t n = j->c->source->n, ahead = j->c->n_slots + 1;
	size_t n_asked = 0, n_done = 0;
	int rc = OD_OK;

	while (rc == OD_OK && n_done < n) {
		struct od_schedule_item *got;

		if (n_asked < n && n_asked - n_done < ahead) {
			rc = ask(j, n_asked++, err);
			continue;
		}
		got = od_schedule_take(j->s);
		if (got == NULL) {
			sem_wait(j->ready);
			continue;
		}
		n_done++;
		if (got->code != OD_OK)
			return od_fail(err, got->code, "%s", got->reason);
		od_schedule_done(j->s, got);
	}
	return rc;
}

static int run_loaders(const struct load_job *j, struct load_time *t, struct od_err *err)
{
	const struct load_case *c = j->c;
	const struct od_loader_opts opts = { .pack = c->source->pack,
					     .device = c->device,
					     .form = c->source->form,
					     .schedule = j->s,
					     .n_readers = c->n_readers,
					     .n_inflaters = c->n_inflaters,
					     .read = load_source_read,
					     .read_arg = c->source,
					     .wake = wake,
					     .wake_arg = j->ready };
	struct od_load_figures f;
	struct od_loaders *l;
	uint64_t begin_ns;
	int rc = od_loaders_start(&l, &opts, err);

	if (rc != OD_OK)
		return rc;
	od_schedule_begin(j->s, SESSION);
	begin_ns = od_now_ns();
	rc = drive(j, err);
	t->ns = od_now_ns() - begin_ns;
	od_schedule_end(j->s, SESSION);
	od_loaders_stop(l);
	od_schedule_figures(j->s, &f);
	t->read_bytes = f.c[OD_C_LOADED_BYTES];
	t->read_ns = f.c[OD_C_READ_NS];
	t->finish_ns = f.c[OD_C_FINISH_NS];
	return rc;
}

int load_run(const struct load_case *c, struct load_time *t, struct od_err *err)
{
	const struct od_pack *pack = c->source->pack;
	const struct od_config *cfg = od_pack_config(pack);
	const struct od_schedule_opts opts = { .n_moe = cfg->n_moe,
					       .n_experts = cfg->n_experts,
					       .n_slices = od_slices(c->device, od_pack_expert(pack, 0, 0)->n_shards),
					       .n_slots = c->n_slots,
					       .bufs = c->bufs,
					       .n_stages = od_loader_stages(c->n_readers, c->n_inflaters) };
	sem_t ready;
	struct load_job j = { .c = c, .ready = &ready };
	int rc = load_source_begin(c->source, err);

	*t = (struct load_time){ .weight_bytes = c->source->n * od_pack_expert_raw_bytes(pack) };
	sem_init(&ready, 0, 0);
	j.item = calloc(c->source->n, sizeof(*j.item));
	if (rc == OD_OK && j.item == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "loads");
	if (rc == OD_OK)
		rc = od_schedule_new(&j.s, &opts, err);
	if (rc == OD_OK)
		rc = run_loaders(&j, t, err);
	od_schedule_free(j.s);
	sem_destroy(&ready);
	free(j.item);
	return rc;
}

/* ---- The source alone ---- */

struct raw {
	const struct load_case *c;
	uint32_t n_shards, slice_shards, n_slices;
	_Atomic size_t next; /* slice of all experts */
	_Atomic uint64_t bytes, ns;
};

struct raw_reader {
	struct raw *all;
	struct od_expert_mem mem; /* memory of its own: slices of two experts would overlap in one slot */
	struct od_buf *staging;
	pthread_t thread;
	int rc;
	struct od_err err;
};

static int read_slice(struct raw_reader *r, size_t expert, uint32_t slice)
{
	const struct load_case *c = r->all->c;
	const struct load_expert *e = &c->source->expert[expert];
	const struct od_shard *s = od_pack_expert(c->source->pack, e->m, e->expert)->shard;
	const uint32_t first = slice * r->all->slice_shards, left = r->all->n_shards - first;
	const uint32_t n = left < r->all->slice_shards ? left : r->all->slice_shards;
	struct od_shard_bytes b[OD_SLICE_SHARDS];
	uint64_t begin_ns = od_now_ns();
	int rc = load_source_read(c->source, e->m, e->expert, first, n, &r->mem, od_buf_ref(r->staging, 0), b, &r->err);

	r->all->ns += od_now_ns() - begin_ns;
	for (uint32_t i = first; i < first + n; i++)
		r->all->bytes += (uint64_t)s[i].sm.stored_bytes + s[i].e.stored_bytes;
	return rc;
}

static void *read_raw(void *arg)
{
	struct raw_reader *r = arg;
	const struct raw *all = r->all;
	size_t i;

	while (r->rc == OD_OK && (i = r->all->next++) < all->c->source->n * all->n_slices)
		r->rc = read_slice(r, i / all->n_slices, (uint32_t)(i % all->n_slices));
	return NULL;
}

static int run_readers(const struct load_case *c, struct raw *raw, struct raw_reader *reader, struct load_time *t,
		       struct od_err *err)
{
	const uint64_t each = od_staging_bytes(c->source->pack, c->device, c->source->form);
	unsigned n = 0;
	uint64_t begin_ns;
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i < c->n_readers; i++) {
		reader[i].all = raw;
		rc = od_buf_new_shared(&reader[i].staging, c->device, each * raw->slice_shards, "a reader", err);
	}
	begin_ns = od_now_ns();
	for (; rc == OD_OK && n < c->n_readers; n += rc == OD_OK)
		if (pthread_create(&reader[n].thread, NULL, read_raw, &reader[n]) != 0)
			rc = od_fail(err, OD_ERR_NOMEM, "cannot start reader %u", n);
	for (unsigned i = 0; i < n; i++) {
		pthread_join(reader[i].thread, NULL);
		if (rc == OD_OK && reader[i].rc != OD_OK) {
			rc = reader[i].rc;
			*err = reader[i].err;
		}
	}
	t->ns = od_now_ns() - begin_ns;
	t->read_bytes = raw->bytes;
	t->read_ns = raw->ns;
	return rc;
}

int load_raw(const struct load_case *c, struct load_time *t, struct od_err *err)
{
	const uint32_t n_shards = od_pack_expert(c->source->pack, 0, 0)->n_shards;
	struct raw raw = { .c = c,
			   .n_shards = n_shards,
			   .slice_shards = od_slice_shards(c->device, n_shards),
			   .n_slices = od_slices(c->device, n_shards) };
	struct raw_reader *reader = calloc(c->n_readers, sizeof(*reader));
	int rc;

	*t = (struct load_time){ .weight_bytes = c->source->n * od_pack_expert_raw_bytes(c->source->pack) };
	if (reader == NULL)
		return od_fail(err, OD_ERR_NOMEM, "readers");
	for (unsigned i = 0; i < c->n_readers; i++)
		od_expert_bufs_fill(c->bufs, 0, &reader[i].mem);
	rc = load_source_begin(c->source, err);
	if (rc == OD_OK)
		rc = run_readers(c, &raw, reader, t, err);
	for (unsigned i = 0; i < c->n_readers; i++) {
		od_expert_bufs_put(c->bufs, 0, &reader[i].mem);
		od_buf_free(reader[i].staging);
	}
	free(reader);
	return rc;
}
