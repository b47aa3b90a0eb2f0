#include "worker-node/loader.h"

#include "common/base/log.h"
#include "common/pack/expert_load.h"

#include <pthread.h>
#include <stdlib.h>

struct loader {
	struct odw_loaders *all;
	struct od_inflater *inflater;
	pthread_t thread;
};

struct odw_loaders {
	struct odw_schedule *schedule;
	struct odw_slots *slots;
	struct od_data_port *port;
	struct odw_puller *puller; /* NULL: none */
	unsigned n_started, n_made;
	struct loader loader[ODW_MAX_LOADERS];
};

static void *load_shards(void *arg)
{
	struct loader *l = arg;
	struct odw_loaders *all = l->all;
	struct odw_shard_job job;

	while (odw_schedule_next_shard(all->schedule, &job, true)) {
		struct od_load_stats stats = { 0 };
		struct od_err err = { 0 };
		int rc = OD_OK;

		if (!job.is_pace)
			rc = od_inflater_load(l->inflater, job.m, job.expert, job.shard,
					      odw_slots_at(all->slots, (unsigned)job.slot), &stats, &err);
		if (rc != OD_OK && all->puller != NULL)
			rc = odw_puller_missed(all->puller, job.m, job.expert, rc, &err);
		if (rc != OD_OK)
			od_log_limited(rc == OD_ERR_BUSY || rc == OD_ERR_MISSING ? OD_LOG_DEBUG : OD_LOG_ERROR, "expert %u of MoE layer %u cannot be loaded: %s", job.expert, job.m,
				       err.msg);
		if (odw_schedule_finish_shard(all->schedule, &job, stats.read_bytes, rc, &err))
			od_data_port_wake(all->port);
	}
	return NULL;
}

int odw_loaders_start(struct odw_loaders **out, const struct od_pack *pack, enum od_form form,
		      struct odw_schedule *schedule, struct odw_slots *slots, struct od_data_port *port,
		      struct odw_puller *puller, unsigned n_threads, struct od_err *err)
{
	struct odw_loaders *l;
	int rc = OD_OK;

	*out = NULL;
	if (n_threads == 0 || n_threads > ODW_MAX_LOADERS)
		return od_fail(err, OD_ERR_ARG, "load threads: expected 1 to %d, found %u", ODW_MAX_LOADERS, n_threads);
	l = calloc(1, sizeof(*l));
	if (l == NULL)
		return od_fail(err, OD_ERR_NOMEM, "load threads");
	l->schedule = schedule;
	l->slots = slots;
	l->port = port;
	l->puller = puller;
	for (; rc == OD_OK && l->n_made < n_threads; l->n_made += rc == OD_OK) {
		l->loader[l->n_made].all = l;
		rc = od_inflater_new(&l->loader[l->n_made].inflater, pack, form, err);
	}
	for (; rc == OD_OK && l->n_started < n_threads; l->n_started += rc == OD_OK) {
		struct loader *one = &l->loader[l->n_started];

		if (pthread_create(&one->thread, NULL, load_shards, one) != 0)
			rc = od_fail(err, OD_ERR_NOMEM, "cannot start load thread %u of %u", l->n_started + 1,
				     n_threads);
		else
			pthread_setname_np(one->thread, "od-load");
	}
	if (rc != OD_OK) {
		odw_loaders_stop(l);
		return rc;
	}
	*out = l;
	return OD_OK;
}

void odw_loaders_stop(struct odw_loaders *l)
{
	if (l == NULL)
		return;
	odw_schedule_stop(l->schedule);
	for (unsigned i = 0; i < l->n_started; i++)
		pthread_join(l->loader[i].thread, NULL);
	for (unsigned i = 0; i < l->n_made; i++)
		od_inflater_free(l->loader[i].inflater);
	free(l);
}
