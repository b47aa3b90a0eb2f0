#include "main-node/node/main_node.h"

#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/compute/device.h"
#include "main-node/cluster/cluster_service.h"
#include "main-node/cluster/wire_rows.h"
#include "main-node/engine/model.h"
#include "main-node/engine/pass_size.h"
#include "main-node/engine/resident_service.h"
#include "main-node/engine/tiered_service.h"
#include "main-node/node/local_nodes.h"
#include "main-node/node/node_keys.h"
#include "main-node/store/store_server.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

struct odm_main_node {
	struct odm_main_opts opts;
	struct odm_node_keys keys;
	struct odm_store *store; /* NULL: none */
	struct odm_local *local; /* --local: the children */
	size_t n_children; /* children that were started */
	struct odm_model *model;
	struct odm_engine *engine;
};

static bool has_cluster(const struct odm_main_node *n)
{
	return n->opts.mode == ODM_LOCAL || n->opts.mode == ODM_WORKERS;
}

/* Whether there is a shadow; without one there are no drafts of it. */
static int choose_predictor(struct odm_main_node *n, struct od_err *err)
{
	struct odm_cluster_args *a = &n->opts.cluster;
	struct odm_engine_opts *e = &n->opts.engine;
	bool shadow = false;

	if (n->opts.mode == ODM_LOCAL) /* it is started if it is to predict */
		shadow = a->predictor == ODM_PREDICT_SHADOW || a->predictor == ODM_PREDICTOR_AUTO;
	for (size_t i = 0; i < n->keys.hosts.n; i++)
		shadow = shadow || n->keys.hosts.host[i].role == OD_NODE_SHADOW;
	if (a->predictor == ODM_PREDICTOR_AUTO)
		a->predictor = shadow ? ODM_PREDICT_SHADOW : ODM_PREDICT_NONE;
	if (a->predictor == ODM_PREDICT_SHADOW && !shadow)
		return od_fail(err, OD_ERR_ARG, "--predictor shadow: %s names no shadow (a line \"shadow host:port\")",
			       a->hosts_path);
	if (a->predictor == ODM_PREDICT_SHADOW)
		return OD_OK;
	od_hosts_without_shadow(&n->keys.hosts); /* it would not be used, so it need not run */
	if (e->draft == ODM_DRAFT_SHADOW && e->draft_tokens > 0)
		return od_fail(err, OD_ERR_ARG,
			       "--draft %llu: there is no shadow to draft tokens; --draft lookup takes drafts from "
			       "the text itself",
			       (unsigned long long)e->draft_tokens);
	if (e->draft == ODM_DRAFT_SHADOW)
		e->draft = ODM_DRAFT_FORCED;
	return OD_OK;
}

static const struct od_predictor_kind *own_predictor(const struct odm_cluster_args *a)
{
	if (a->own != NULL)
		return a->own;
	if (a->predictor >= ODM_PREDICT_OWN)
		return &od_predictor_kinds[a->predictor - ODM_PREDICT_OWN];
	/* Beside a shadow the one that costs least: it has no history, so it need not listen while the shadow
	 * speaks. */
	return a->predictor == ODM_PREDICT_SHADOW && !a->no_stand_in ? &od_predictor_kinds[OD_NEXT_GATE] : NULL;
}

static void fill_cluster(struct odm_main_node *n, const struct odm_model *m, const struct od_forward_opts *fo,
			 struct odm_cluster_opts *co)
{
	const struct odm_engine_opts *e = &m->opts;
	const struct odm_cluster_args *a = &n->opts.cluster;
	const uint32_t run_rows = odm_wire_rows_most(m->config, e->profile);

	*co = (struct odm_cluster_opts){
		.config = m->config,
		.pack = m->pack,
		.profile = e->profile,
		.kernel_class = od_device_kernel_class(m->device, e->profile),
		.mixed = e->mixed,
		.ctx_tokens = (uint32_t)e->ctx_tokens,
		.max_sequences = (uint32_t)e->parallel,
		.max_draft = e->draft != ODM_DRAFT_OFF ? ODM_MAX_DRAFT : 0,
		.decode_rows = odm_pass_size_rows(m->config, (uint32_t)e->parallel),
		.max_rows = fo->max_rows < run_rows ? (uint32_t)fo->max_rows : run_rows,
		.group_size = (uint32_t)a->group_size,
		.align = a->align,
		.shadow = a->predictor == ODM_PREDICT_SHADOW,
		.own = own_predictor(a),
		.hedge = a->hedge_percent / 100,
		.hosts = &n->keys.hosts,
		.hosts_path = n->keys.hosts_path,
		.own_keys = n->keys.keys != NULL ? &n->keys.keys->own : NULL,
		.rekey = odm_node_keys_read_again,
		.rekey_arg = &n->keys,
		.ended = n->local != NULL ? odm_local_ended : NULL,
		.ended_arg = n->local,
		.cancel = e->cancel,
	};
	od_pack_fingerprint_bytes(m->pack, co->fingerprint);
}

static int open_cluster(struct odm_main_node *n, const struct odm_model *m, struct odm_expert_service **service,
			struct od_err *err)
{
	const struct od_forward_opts fo = odm_model_forward_opts(m);
	struct odm_cluster_opts co;
	struct odm_cluster *c;
	int rc = OD_OK;

	if (n->opts.mode == ODM_LOCAL) {
		rc = odm_local_start(&n->local, &n->opts, &n->keys.hosts, err);
		n->n_children = n->keys.hosts.n;
	}
	if (rc != OD_OK)
		return rc;
	fill_cluster(n, m, &fo, &co);
	rc = odm_cluster_open(&c, &co, err);
	return rc == OD_OK ? odm_cluster_service_new(service, c, &fo, err) : rc;
}

/* Opens links and predictions, before main waits for workers, who may have nothing of the pack yet. */
static int open_links(struct odm_main_node *n, const struct odm_model *m, struct od_err *err)
{
	struct odm_engine_opts *e = &n->opts.engine;
	const uint32_t run_rows = odm_wire_rows_most(m->config, e->profile);
	int rc;

	if (e->prefill_rows == 0)
		e->prefill_rows = ODM_DEFAULT_PREFILL_ROWS;
	if (has_cluster(n) && e->prefill_rows > run_rows)
		e->prefill_rows = run_rows; /* a layer is one RUN for a worker */
	rc = odm_node_keys_open(&n->keys, err);
	if (rc == OD_OK && n->opts.serve_store != NULL)
		rc = odm_store_open(&n->store, m->pack, n->opts.serve_store, n->keys.keys, &n->keys.hosts, err);
	n->keys.store = n->store;
	if (n->opts.mode == ODM_TIERED && e->draft == ODM_DRAFT_SHADOW) /* there is none */
		e->draft = ODM_DRAFT_FORCED;
	return rc == OD_OK && has_cluster(n) ? choose_predictor(n, err) : rc;
}

static int open_service(struct odm_main_node *n, struct odm_expert_service **service, struct od_err *err)
{
	const struct odm_cluster_args *a = &n->opts.cluster;
	const struct odm_tiered_opts to = {
		.own = a->predictor == ODM_PREDICTOR_AUTO ? &od_predictor_kinds[OD_NEXT_GATE] : own_predictor(a),
		.always = a->predictor != ODM_PREDICTOR_AUTO,
		.hedge = a->hedge_percent / 100,
	};

	switch (n->opts.mode) {
	case ODM_RESIDENT: return odm_resident_service_new(service, n->model, err);
	case ODM_TIERED: return odm_tiered_service_new(service, n->model, &to, err);
	case ODM_LOCAL:
	case ODM_WORKERS: break;
	}
	return open_cluster(n, n->model, service, err);
}

static int open_engine(struct odm_main_node *n, struct od_err *err)
{
	struct odm_expert_service *service = NULL;
	int rc = odm_model_open(&n->model, n->opts.engine.pack, err);

	if (rc == OD_OK)
		rc = open_links(n, n->model, err);
	if (rc == OD_OK)
		rc = odm_model_load(n->model, &n->opts.engine, err);
	if (rc == OD_OK)
		rc = open_service(n, &service, err);
	return rc == OD_OK ? odm_engine_open(&n->engine, n->model, service, err) : rc;
}

/* The children's events go behind ours, and their files away. */
static int close_trace(struct odm_main_node *n)
{
	char path[PATH_MAX];
	struct od_err err;
	int rc;

	if (!od_trace_on)
		return OD_OK;
	for (size_t i = 0; i < n->n_children; i++) {
		odm_local_trace_path(n->opts.trace, i, path, sizeof(path));
		if (od_trace_merge(path, &err) != OD_OK)
			od_log(OD_LOG_WARN, "%s", err.msg);
		unlink(path);
	}
	rc = od_trace_close(&err);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err.msg);
	return rc;
}

int odm_main_node_open(struct odm_main_node **out, const struct odm_main_opts *opts, struct od_err *err)
{
	struct odm_main_node *n = calloc(1, sizeof(*n));
	int rc;

	*out = NULL;
	if (n == NULL)
		return od_fail(err, OD_ERR_NOMEM, "engine");
	n->opts = *opts;
	n->opts.engine.resident = opts->mode == ODM_RESIDENT;
	n->opts.engine.tiered = opts->mode == ODM_TIERED;
	n->keys = (struct odm_node_keys){
		.hosts_path = opts->mode == ODM_WORKERS ? opts->cluster.hosts_path : NULL,
		.serve_store = opts->serve_store,
		.args = opts->keys,
	};
	rc = opts->trace == NULL ? OD_OK : od_trace_open(opts->trace, "main", err);
	if (rc == OD_OK)
		rc = open_engine(n, err);
	if (rc != OD_OK) {
		odm_main_node_close(n);
		return rc;
	}
	*out = n;
	return OD_OK;
}

int odm_main_node_close(struct odm_main_node *n)
{
	int rc;

	if (n == NULL)
		return OD_OK;
	odm_engine_close(n->engine); /* first: its service says BYE to the children */
	odm_local_stop(n->local);
	odm_store_close(n->store);
	rc = close_trace(n);
	odm_node_keys_fini(&n->keys);
	odm_model_close(n->model); /* the store has sent its pack */
	free(n);
	return rc;
}

struct odm_engine *odm_main_node_engine(const struct odm_main_node *n)
{
	return n != NULL ? n->engine : NULL;
}

int odm_main_node_reload_peers(struct odm_main_node *n, struct od_err *err)
{
	return odm_node_keys_reload(&n->keys, err);
}

uint64_t odm_main_node_served_bytes(const struct odm_main_node *n)
{
	return n->store != NULL ? odm_store_served_bytes(n->store) : 0;
}
