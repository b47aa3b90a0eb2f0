#include "common/residency/loader.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/trace.h"
#include "common/pack/load/device_check.h"

#include <pthread.h>
#include <stdlib.h>

struct inflating {
	struct od_loaders *all;
	struct od_inflater *inflater;
	pthread_t thread;
};

struct od_loaders {
	struct od_loader_opts o;
	unsigned n_stages, n_reading, n_inflating; /* threads that were started */
	/* Memory of all stages in one buffer: a GPU gives whole pages to each. NULL: they need none. */
	struct od_buf *staging;
	uint64_t stage_bytes;
	uint32_t n_shards, slice_shards;
	/* A stage has one thread at a time. */
	struct od_shard_bytes bytes[OD_MAX_LOAD_STAGES][OD_SLICE_SHARDS];
	uint64_t begin_ns[OD_MAX_LOAD_STAGES]; /* begin of the read that filled each */
	pthread_t reading[OD_MAX_LOADERS];
	struct inflating inflating[OD_MAX_LOADERS];
};

uint32_t od_slice_shards(const struct od_device *d, uint32_t n_shards)
{
	/* Slices enough for several threads at both ends; on a card, of a small expert, a matrix each. */
	const bool shares = od_device_shares(d);
	const uint32_t n = n_shards / (shares ? 16 : 3), most = shares ? 4 : OD_SLICE_SHARDS;

	return n < 1 ? 1 : n < most ? n : most;
}

uint32_t od_slices(const struct od_device *d, uint32_t n_shards)
{
	return (n_shards + od_slice_shards(d, n_shards) - 1) / od_slice_shards(d, n_shards);
}

uint32_t od_shards_in_slice(uint32_t slice, uint32_t slice_shards, uint32_t n_shards)
{
	const uint32_t left = n_shards - slice * slice_shards;

	return left < slice_shards ? left : slice_shards;
}

unsigned od_loader_stages(unsigned n_readers, unsigned n_inflaters)
{
	return n_readers + 2 * n_inflaters;
}
_Static_assert(3 * OD_MAX_LOADERS <= OD_MAX_LOAD_STAGES, "every stage has a place");

static uint64_t stage_bytes(const struct od_pack *pack, const struct od_device *d, enum od_form form)
{
	return od_round_up(od_staging_bytes(pack, d, form) * od_slice_shards(d, od_pack_expert(pack, 0, 0)->n_shards),
			   OD_PAGE_BYTES);
}

/* n_inflaters of `inflater` bytes, and the stages. */
static bool sum_bytes(uint64_t *sum, unsigned n_inflaters, uint64_t inflater, uint64_t stages)
{
	return od_mul(n_inflaters, inflater, sum) && od_add(*sum, stages, sum);
}

int od_loader_bytes(struct od_loader_memory *m, const struct od_pack *pack, const struct od_device *d,
		    enum od_form form, unsigned n_readers, unsigned n_inflaters, struct od_err *err)
{
	const uint64_t stage = stage_bytes(pack, d, form);
	const bool on_card = form == OD_FORM_PLAIN && !od_device_shares(d);
	uint64_t stages;

	if (od_mul(od_loader_stages(n_readers, n_inflaters), on_card ? od_staged_bytes(d, stage) : stage, &stages) &&
	    sum_bytes(&m->bytes, n_inflaters, od_inflater_bytes(pack, d, form), stages) &&
	    sum_bytes(&m->card_bytes, n_inflaters, od_inflater_card_bytes(pack, d, form),
		      on_card ? od_buf_memory(d, stages / 2) : 0))
		return OD_OK;
	*m = (struct od_loader_memory){ 0 };
	return od_fail(err, OD_ERR_RANGE, "%u read threads and %u load threads: too many together", n_readers,
		       n_inflaters);
}

/* of_pack: an error is of what was read, not of the device. */
static void end_job(struct od_loaders *l, const struct od_load_job *job, uint64_t read_bytes, bool of_pack, int rc,
		    struct od_err *err)
{
	if (rc != OD_OK && of_pack && l->o.missed != NULL)
		rc = l->o.missed(l->o.missed_arg, job->m, job->expert, l->begin_ns[job->stage], rc, err);
	if (rc != OD_OK)
		od_log_limited(rc == OD_ERR_BUSY || rc == OD_ERR_MISSING ? OD_LOG_DEBUG :
			       rc == OD_ERR_NOMEM			 ? OD_LOG_WARN :
									   OD_LOG_ERROR,
			       "expert %u of MoE layer %u cannot be loaded: %s", job->expert, job->m, err->msg);
	/* It comes last: from here on the stage may be another thread's. */
	if (od_schedule_end_job(l->o.schedule, job, read_bytes, rc, err))
		l->o.wake(l->o.wake_arg);
}

static int read_from_pack(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			  const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
			  struct od_err *err)
{
	const struct od_loaders *l = arg;

	return od_shards_read(l->o.pack, m, expert, first, n, mem, staging, b, err);
}

/* Shards [first, first + n) are the slice. */
static uint32_t shards_of_job(const struct od_loaders *l, const struct od_load_job *job, uint32_t *first)
{
	*first = job->slice * l->slice_shards;
	return od_shards_in_slice(job->slice, l->slice_shards, l->n_shards);
}

static struct od_ref stage_at(const struct od_loaders *l, unsigned i)
{
	return od_buf_ref(l->staging, i * l->stage_bytes);
}

static int commit_to_device(void *arg, const struct od_load_job *job, struct od_err *err)
{
	const struct od_loaders *l = arg;

	return od_expert_mem_commit(l->o.pack, job->m, &job->mem, err);
}

static void *read_slices(void *arg)
{
	struct od_loaders *l = arg;
	struct od_load_job job;

	while (od_schedule_next_read(l->o.schedule, &job, true)) {
		const struct od_shard *s = od_pack_expert(l->o.pack, job.m, job.expert)->shard;
		uint64_t begin_ns = od_now_ns(), bytes = 0;
		struct od_err err = { 0 };
		uint32_t first, n = shards_of_job(l, &job, &first);
		int rc;

		l->begin_ns[job.stage] = begin_ns;
		rc = l->o.commit(l->o.commit_arg, &job, &err);
		if (rc != OD_OK) {
			end_job(l, &job, 0, false, rc, &err);
			continue;
		}
		rc = l->o.read(l->o.read_arg, job.m, job.expert, first, n, &job.mem, stage_at(l, job.stage),
			       l->bytes[job.stage], &err);
		od_trace_end("read", begin_ns, -1, job.m, job.expert);
		for (uint32_t i = first; i < first + n; i++)
			bytes += s[i].sm.stored_bytes + s[i].e.stored_bytes;
		end_job(l, &job, rc == OD_OK ? bytes : 0, true, rc, &err);
	}
	return NULL;
}

static int finish_slice(struct inflating *own, const struct od_load_job *job, struct od_err *err)
{
	struct od_loaders *l = own->all;
	uint64_t begin_ns = od_now_ns();
	uint32_t first, n = shards_of_job(l, job, &first);
	const int rc = od_inflater_finish(own->inflater, job->m, job->expert, first, n, &job->mem,
					  stage_at(l, job->stage), l->bytes[job->stage], err);

	od_trace_end("inflate", begin_ns, -1, job->m, job->expert);
	return rc;
}

static void *finish_slices(void *arg)
{
	struct inflating *own = arg;
	struct od_load_job job;

	while (od_schedule_next_finish(own->all->o.schedule, &job, true)) {
		struct od_err err = { 0 };
		int rc = finish_slice(own, &job, &err);

		end_job(own->all, &job, 0, rc != OD_ERR_IO, rc, &err); /* it reads no file */
	}
	return NULL;
}

/* Address space, of which only what is read into becomes memory. */
static int make_stages(struct od_loaders *l, struct od_err *err)
{
	const char *what = "the stages of the load threads";
	uint64_t bytes;
	int rc;

	l->stage_bytes = stage_bytes(l->o.pack, l->o.device, l->o.form);
	bytes = l->n_stages * l->stage_bytes;
	if (bytes == 0)
		return OD_OK;
	rc = l->o.form == OD_FORM_PLAIN ? od_buf_new_shared(&l->staging, l->o.device, bytes, what, err) :
					  od_buf_new_on_host(&l->staging, l->o.device, bytes, what, err);
	if (rc == OD_OK && od_ref_stage(stage_at(l, 0)) == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %s", what);
	return rc;
}

static int start_threads(struct od_loaders *l, struct od_err *err)
{
	const char *what = "load";
	unsigned *n;

	for (n = &l->n_inflating; *n < l->o.n_inflaters; ++*n) {
		if (pthread_create(&l->inflating[*n].thread, NULL, finish_slices, &l->inflating[*n]) != 0)
			goto fail;
		pthread_setname_np(l->inflating[*n].thread, "od-inflate");
	}
	what = "read";
	for (n = &l->n_reading; *n < l->o.n_readers; ++*n) {
		if (pthread_create(&l->reading[*n], NULL, read_slices, l) != 0)
			goto fail;
		pthread_setname_np(l->reading[*n], "od-read");
	}
	return OD_OK;
fail:
	return od_fail(err, OD_ERR_NOMEM, "cannot start %s thread %u", what, *n + 1);
}

int od_loaders_start(struct od_loaders **out, const struct od_loader_opts *opts, struct od_err *err)
{
	struct od_loaders *l;
	int rc;

	*out = NULL;
	if (opts->n_readers == 0 || opts->n_readers > OD_MAX_LOADERS || opts->n_inflaters == 0 ||
	    opts->n_inflaters > OD_MAX_LOADERS)
		return od_fail(err, OD_ERR_ARG, "read and load threads: expected 1 to %d each, found %u and %u",
			       OD_MAX_LOADERS, opts->n_readers, opts->n_inflaters);
	l = calloc(1, sizeof(*l));
	if (l == NULL)
		return od_fail(err, OD_ERR_NOMEM, "load threads");
	l->o = *opts;
	if (l->o.read == NULL) {
		l->o.read = read_from_pack;
		l->o.read_arg = l;
	}
	if (l->o.commit == NULL) {
		l->o.commit = commit_to_device;
		l->o.commit_arg = l;
	}
	l->n_shards = od_pack_expert(opts->pack, 0, 0)->n_shards;
	l->slice_shards = od_slice_shards(opts->device, l->n_shards);
	l->n_stages = od_loader_stages(opts->n_readers, opts->n_inflaters);
	rc = od_experts_check_device(opts->pack, opts->device, err);
	if (rc == OD_OK)
		rc = make_stages(l, err);
	for (unsigned i = 0; rc == OD_OK && i < opts->n_inflaters; i++) {
		l->inflating[i].all = l;
		rc = od_inflater_new(&l->inflating[i].inflater, opts->pack, opts->device, opts->form, err);
	}
	if (rc == OD_OK)
		rc = start_threads(l, err);
	if (rc != OD_OK) {
		od_loaders_stop(l);
		return rc;
	}
	*out = l;
	return OD_OK;
}

void od_loaders_stop(struct od_loaders *l)
{
	if (l == NULL)
		return;
	od_schedule_stop(l->o.schedule);
	for (unsigned i = 0; i < l->n_reading; i++)
		pthread_join(l->reading[i], NULL);
	for (unsigned i = 0; i < l->n_inflating; i++)
		pthread_join(l->inflating[i].thread, NULL);
	for (unsigned i = 0; i < l->o.n_inflaters; i++)
		od_inflater_free(l->inflating[i].inflater);
	od_buf_free(l->staging);
	free(l);
}
