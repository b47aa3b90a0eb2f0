#include "main-node/cluster/cluster.h"

#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "common/net/endpoint.h"
#include "main-node/cluster/members_look.h"
#include "main-node/cluster/members_times.h"
#include "main-node/cluster/want_target.h"
#include "main-node/predict/predict_check.h"
#include "main-node/predict/prediction_wants.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_NS (10 * OD_NS_PER_S) /* at the start, for hosts that are missing */
#define MAX_CLOSES 256 /* queued; when there are more, a later one of the same step does their work */
#define MAX_NAMED 16
#define DETAIL_TOKENS (1u << 20) /* tokens of all sequences together: 24 bytes each */

struct close_request {
	uint64_t step;
	uint32_t m;
	bool everybody; /* does no harm: a CLOSE voids WANTs, not RUNs */
	uint32_t n; /* else: these members */
	uint32_t member[MAX_NAMED];
};

/* The layer of a decode step whose router spoke last, when, and how long the layer before waited for a load. */
struct reached {
	uint64_t step, ns, stall_ns;
	uint32_t m;
};

struct odm_cluster {
	struct odm_cluster_opts o;
	void *zmq;
	uv_loop_t loop;
	uv_async_t async;
	uv_check_t arrived; /* after each wake-up */
	uv_signal_t hangup;
	pthread_t thread;
	bool has_loop, has_async, has_thread;
	int changed_fd;
	uint64_t connect_by_ns;
	struct odm_members *members;
	struct odm_predictions *predictions;
	atomic_uint_fast64_t dropped_predicts; /* any thread reads it */
	/* Loop thread's own. */
	struct odm_view view;
	struct odm_groups groups;
	struct odm_want_target target;
	uint32_t *named; /* [n_experts]: a WANT's experts */
	uint32_t *slots; /* [OD_MAX_HOSTS]: of the view's workers */
	struct odm_deal_times *times; /* [OD_MAX_HOSTS]: of the view's workers */
	uint32_t *index; /* [OD_MAX_HOSTS]: in the view, by member's id */
	bool wants; /* they may have changed since this wake-up began */
	/* Requests of the engine thread. */
	pthread_mutex_t lock;
	struct close_request close[MAX_CLOSES];
	uint32_t n_close;
	struct reached reached;
	bool ask;
	bool stop;
};

struct odm_members *odm_cluster_members(struct odm_cluster *c)
{
	return c->members;
}

struct odm_predictions *odm_cluster_predictions(struct odm_cluster *c)
{
	return c->predictions;
}

uint64_t odm_cluster_dropped_predicts(const struct odm_cluster *c)
{
	return atomic_load(&c->dropped_predicts);
}

void *odm_cluster_zmq(struct odm_cluster *c)
{
	return c->zmq;
}

int odm_cluster_changed_fd(const struct odm_cluster *c)
{
	return c->changed_fd;
}

uint64_t odm_cluster_connect_by(const struct odm_cluster *c)
{
	return c->connect_by_ns;
}

const struct odm_cluster_opts *odm_cluster_opts(const struct odm_cluster *c)
{
	return &c->o;
}

struct odm_groups odm_cluster_groups(const struct odm_cluster *c, const struct odm_view *view)
{
	struct odm_groups g = odm_groups_make(view->n_few, c->o.group_size, c->o.config->top_k, c->o.config->n_moe);

	g.n_many = view->n_many;
	g.n_experts = c->o.config->n_experts;
	g.homes = odm_view_has_cache(view);
	g.still = odm_view_has_spool(view);
	if (g.homes && g.n_groups > 0)
		g.n_groups = 1;
	return g;
}

/* --- loop thread --- */

static void cost_of(void *arg, uint32_t worker, uint32_t m, const uint16_t *expert, size_t n, uint8_t *cost)
{
	const struct odm_cluster *c = arg;

	odm_members_cost(c->members, &c->view.worker[worker], m, expert, n, cost);
}

/* Only workers that RUNs can be sent to load anything. */
static void refresh_view(struct odm_cluster *c)
{
	uint32_t n = 0;

	if (odm_members_epoch(c->members) == c->view.epoch)
		return;
	odm_members_view(c->members, &c->view);
	for (uint32_t i = 0; i < c->view.n_workers; i++) {
		if (c->view.worker[i].attached)
			c->view.worker[n++] = c->view.worker[i];
	}
	c->view.n_workers = n;
	odm_view_count(&c->view);
	c->groups = odm_cluster_groups(c, &c->view);
	if (odm_view_has_costs(&c->view))
		c->groups.cost = cost_of;
	c->groups.cost_arg = c;
	c->groups.times = c->times;
	memset(c->index, 0xff, OD_MAX_HOSTS * sizeof(*c->index)); /* ODM_NOBODY */
	for (uint32_t i = 0; i < c->view.n_workers; i++) {
		c->slots[i] = c->view.worker[i].slots;
		c->index[c->view.worker[i].id] = i;
	}
}

static void send_want(struct odm_cluster *c, uint32_t index, const struct odm_want *w)
{
	const struct odm_want_lists *l = &c->target.list;
	Od__Want want = OD__WANT__INIT;
	Od__Header h = OD__HEADER__INIT;

	want.step = w->step;
	want.m = w->m;
	want.version = w->version;
	want.prompt = w->prompt;
	want.experts = c->named;
	for (uint32_t i = l->begin[index]; i < l->begin[index + 1]; i++)
		want.experts[want.n_experts++] = l->expert[i];
	h.body_case = OD__HEADER__BODY_WANT;
	h.want = &want;
	odm_members_send(c->members, c->view.worker[index].id, &h);
}

static void send_close(struct odm_cluster *c, uint32_t member, uint64_t step, uint32_t m)
{
	Od__Close body = OD__CLOSE__INIT;
	Od__Header h = OD__HEADER__INIT;

	body.step = step;
	body.m = m;
	h.body_case = OD__HEADER__BODY_CLOSE;
	h.close = &body;
	odm_members_send(c->members, member, &h);
}

/* Members' ids become indices of the view's workers. */
static void find_workers(const struct odm_cluster *c, uint32_t *worker, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (worker[i] != ODM_NOBODY)
			worker[i] = c->index[worker[i]];
}

/* Up to where the engine has come. */
static void take_reached(struct odm_cluster *c)
{
	struct reached r;

	pthread_mutex_lock(&c->lock);
	r = c->reached;
	pthread_mutex_unlock(&c->lock);
	if (r.ns != c->target.backlog.reached_ns)
		odm_backlog_reached(&c->target.backlog, r.step, r.m, c->o.config->n_moe, r.stall_ns, r.ns);
}

static void send_wants(struct odm_cluster *c)
{
	struct odm_want *w = &c->target.want;

	refresh_view(c);
	while (odm_predictions_take_want(c->predictions, w)) {
		/* A worker that joined since the version before may have come back, and knows nothing of it. */
		const bool joined = w->epoch != 0 && w->epoch != c->view.epoch;

		if (c->view.n_workers == 0)
			continue;
		take_reached(c);
		odm_members_times(c->members, c->view.worker, c->view.n_workers, c->times);
		find_workers(c, w->worker, w->n);
		find_workers(c, w->worker_before, w->n_before);
		odm_want_target_choose(&c->target, &c->groups, c->slots, od_now_ns());
		for (uint32_t i = 0; i < c->view.n_workers; i++) {
			if (odm_want_changed(&c->target, i) || (joined && odm_want_concerns(&c->target, i)))
				send_want(c, i, w);
		}
		for (size_t i = 0; i < w->n; i++)
			w->worker[i] = c->view.worker[w->worker[i]].id;
		w->epoch = c->view.epoch;
		if (odm_predictions_placed(c->predictions, w))
			continue;
		/* The router spoke meanwhile: its CLOSEs may not have met these, and RUNs ask for what is needed. */
		for (uint32_t i = 0; i < c->view.n_workers; i++) {
			if (odm_want_concerns(&c->target, i))
				send_close(c, c->view.worker[i].id, w->step, w->m);
		}
	}
}

static void send_closes(struct odm_cluster *c)
{
	struct close_request pending[MAX_CLOSES];
	uint32_t n;

	pthread_mutex_lock(&c->lock);
	n = c->n_close;
	memcpy(pending, c->close, n * sizeof(*pending));
	c->n_close = 0;
	pthread_mutex_unlock(&c->lock);
	refresh_view(c);
	for (uint32_t i = 0; i < n; i++) {
		if (pending[i].everybody)
			for (uint32_t w = 0; w < c->view.n_workers; w++)
				send_close(c, c->view.worker[w].id, pending[i].step, pending[i].m);
		if (!pending[i].everybody)
			for (uint32_t j = 0; j < pending[i].n; j++)
				send_close(c, pending[i].member[j], pending[i].step, pending[i].m);
	}
}

static void on_predict(void *arg, uint32_t member, const struct od_msg *msg)
{
	struct odm_cluster *c = arg;
	struct od_err err;

	if (odm_check_predict(msg->header->predict, c->o.config, c->o.decode_rows, &err) != OD_OK) {
		atomic_fetch_add(&c->dropped_predicts, 1);
		od_log_limited(OD_LOG_WARN, "dropped a PREDICT of member %u: %s", member, err.msg);
	} else if (c->o.shadow && odm_add_predict(c->predictions, msg->header->predict)) {
		c->wants = true;
	}
}

/* All that had arrived at this wake-up has been looked at: what changed more than once goes out once. */
static void on_arrived(uv_check_t *check)
{
	struct odm_cluster *c = check->data;

	if (c->wants)
		send_wants(c);
	c->wants = false;
}

static void on_async(uv_async_t *async)
{
	struct odm_cluster *c = async->data;
	bool stop, ask;

	pthread_mutex_lock(&c->lock);
	stop = c->stop;
	ask = c->ask;
	c->ask = false;
	pthread_mutex_unlock(&c->lock);
	send_closes(c);
	if (ask)
		odm_members_ask(c->members);
	c->wants = true;
	if (stop) {
		odm_members_stop(c->members);
		uv_close((uv_handle_t *)&c->arrived, NULL);
		uv_close((uv_handle_t *)&c->hangup, NULL);
		uv_close((uv_handle_t *)&c->async, NULL);
	}
}

static void reload_hosts(struct odm_cluster *c)
{
	struct od_hosts hosts;
	struct od_err err;

	if (od_hosts_load(&hosts, c->o.hosts_path, &err) != OD_OK) {
		od_log(OD_LOG_ERROR, "%s; the cluster is unchanged", err.msg);
		return;
	}
	if (!c->o.shadow)
		for (size_t i = 0; i < hosts.n; i++) {
			if (hosts.host[i].role == OD_NODE_SHADOW)
				od_log(OD_LOG_WARN,
				       "%s line %u: this shadow is not used: od-main was started without one; restart it",
				       c->o.hosts_path, hosts.host[i].line);
		}
	if (!c->o.shadow)
		od_hosts_without_shadow(&hosts);
	if (c->o.rekey != NULL && c->o.rekey(c->o.rekey_arg, &hosts, &err) != OD_OK)
		od_log(OD_LOG_ERROR, "%s; the cluster is unchanged", err.msg);
	else if (odm_members_follow(c->members, &hosts, &err) != OD_OK)
		od_log(OD_LOG_ERROR, "%s", err.msg);
	else
		od_log(OD_LOG_INFO, "%s read again: %zu hosts", c->o.hosts_path, hosts.n);
	od_hosts_fini(&hosts);
}

static void on_hangup(uv_signal_t *handle, int number)
{
	(void)number;
	od_notify_reloading();
	reload_hosts(handle->data);
	od_notify_reloaded();
}

static void *loop_thread(void *arg)
{
	struct odm_cluster *c = arg;

	uv_run(&c->loop, UV_RUN_DEFAULT);
	return NULL;
}

/* --- engine thread --- */

void odm_cluster_flush_wants(struct odm_cluster *c)
{
	uv_async_send(&c->async);
}

void odm_cluster_reached(struct odm_cluster *c, uint64_t step, uint32_t m, uint64_t stall_ns)
{
	const uint64_t now = od_now_ns();

	pthread_mutex_lock(&c->lock);
	c->reached = (struct reached){ .step = step, .m = m, .stall_ns = stall_ns, .ns = now };
	pthread_mutex_unlock(&c->lock);
}

void odm_cluster_ask(struct odm_cluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->ask = true;
	pthread_mutex_unlock(&c->lock);
	uv_async_send(&c->async);
}

static void queue_close(struct odm_cluster *c, const struct close_request *r)
{
	pthread_mutex_lock(&c->lock);
	if (c->n_close < MAX_CLOSES)
		c->close[c->n_close++] = *r;
	pthread_mutex_unlock(&c->lock);
	uv_async_send(&c->async);
}

void odm_cluster_close_step(struct odm_cluster *c, uint64_t step, uint32_t m)
{
	struct close_request r = { .step = step, .m = m, .everybody = true };

	queue_close(c, &r);
}

void odm_cluster_close_unused(struct odm_cluster *c, uint64_t step, uint32_t m, const bool *used_member)
{
	struct close_request r = { .step = step, .m = m };

	for (uint32_t e = 0; e < c->o.config->n_experts; e++) {
		uint32_t id = odm_predictions_where(c->predictions, step, m, (uint16_t)e);
		bool have = id == ODM_NOBODY || used_member[id];

		for (uint32_t i = 0; i < r.n && !have; i++)
			have = r.member[i] == id;
		if (!have && r.n == MAX_NAMED)
			r.everybody = true;
		else if (!have)
			r.member[r.n++] = id;
	}
	if (r.n > 0)
		queue_close(c, &r);
}

static int allocate(struct odm_cluster *c, struct od_err *err)
{
	int rc = odm_want_target_init(&c->target, c->o.config->n_experts, OD_MAX_HOSTS, err);

	if (rc != OD_OK)
		return rc;
	c->view.worker = calloc(OD_MAX_HOSTS, sizeof(*c->view.worker));
	c->named = calloc(c->o.config->n_experts, sizeof(*c->named));
	c->slots = calloc(OD_MAX_HOSTS, sizeof(*c->slots));
	c->times = calloc(OD_MAX_HOSTS, sizeof(*c->times));
	c->index = calloc(OD_MAX_HOSTS, sizeof(*c->index));
	if (c->view.worker == NULL || c->named == NULL || c->slots == NULL || c->times == NULL || c->index == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cluster");
	return OD_OK;
}

static int open_loop(struct odm_cluster *c, struct od_err *err)
{
	const struct odm_members_opts mo = {
		.cluster = &c->o,
		.zmq_context = c->zmq,
		.changed_fd = c->changed_fd,
		.message = on_predict,
		.arg = c,
	};
	int rc;

	if (uv_loop_init(&c->loop) != 0)
		return od_fail(err, OD_ERR_INTERNAL, "cannot create an event loop");
	c->has_loop = true;
	rc = odm_members_new(&c->members, &mo, &c->loop, err);
	if (rc != OD_OK)
		return rc;
	uv_async_init(&c->loop, &c->async, on_async);
	c->async.data = c;
	uv_check_init(&c->loop, &c->arrived);
	c->arrived.data = c;
	uv_check_start(&c->arrived, on_arrived);
	c->has_async = true;
	uv_signal_init(&c->loop, &c->hangup);
	c->hangup.data = c;
	if (c->o.hosts_path != NULL) {
		uv_signal_start(&c->hangup, on_hangup, SIGHUP);
		od_hangup_listened();
	}
	if (pthread_create(&c->thread, NULL, loop_thread, c) != 0)
		return od_fail(err, OD_ERR_NOMEM, "cannot start the loop thread");
	pthread_setname_np(c->thread, "od-loop");
	c->has_thread = true;
	return OD_OK;
}

/* Token indices that each sequence's recall is kept for. */
static uint32_t detail_tokens(const struct odm_cluster *c)
{
	const uint32_t share = DETAIL_TOKENS / c->o.max_sequences;

	return share < c->o.ctx_tokens ? share : c->o.ctx_tokens;
}

static int open_all(struct odm_cluster *c, struct od_err *err)
{
	const struct odm_predictions_opts po = {
		.n_moe = c->o.config->n_moe,
		.n_experts = c->o.config->n_experts,
		.top_k = c->o.config->top_k,
		.max_sequences = c->o.max_sequences,
		.max_rows = c->o.decode_rows,
		.max_draft = c->o.max_draft,
		.max_tokens = detail_tokens(c),
		.hedge = c->o.hedge,
	};
	int rc = allocate(c, err);

	if (rc != OD_OK)
		return rc;
	c->changed_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (c->changed_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create an eventfd");
	c->connect_by_ns = od_now_ns() + CONNECT_TIMEOUT_NS;
	c->zmq = od_zmq_context();
	if (c->zmq == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cannot create a ZeroMQ context");
	rc = odm_predictions_new(&c->predictions, &po, err);
	if (rc == OD_OK)
		rc = open_loop(c, err);
	if (rc == OD_OK)
		rc = odm_members_wait(c->members, CONNECT_TIMEOUT_NS, err);
	return rc;
}

int odm_cluster_open(struct odm_cluster **out, const struct odm_cluster_opts *opts, struct od_err *err)
{
	struct odm_cluster *c = calloc(1, sizeof(*c));
	int rc;

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cluster");
	c->o = *opts;
	c->o.max_sequences = opts->max_sequences > 0 ? opts->max_sequences : 1;
	c->changed_fd = -1;
	pthread_mutex_init(&c->lock, NULL);
	rc = open_all(c, err);
	if (rc != OD_OK) {
		odm_cluster_close(c);
		return rc;
	}
	*out = c;
	return OD_OK;
}

static void stop_loop(struct odm_cluster *c)
{
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_mutex_unlock(&c->lock);
	if (c->has_thread) {
		uv_async_send(&c->async);
		pthread_join(c->thread, NULL);
	} else if (c->has_async) { /* the thread never started: take down here what it would have */
		on_async(&c->async);
		uv_run(&c->loop, UV_RUN_DEFAULT);
	}
	if (c->has_loop)
		uv_loop_close(&c->loop);
}

void odm_cluster_close(struct odm_cluster *c)
{
	if (c == NULL)
		return;
	stop_loop(c);
	odm_members_free(c->members);
	odm_predictions_free(c->predictions);
	while (c->zmq != NULL && zmq_ctx_term(c->zmq) != 0 && errno == EINTR)
		; /* a signal: it is not done yet */
	if (c->changed_fd >= 0)
		close(c->changed_fd);
	pthread_mutex_destroy(&c->lock);
	free(c->view.worker);
	odm_want_target_fini(&c->target);
	free(c->named);
	free(c->slots);
	free(c->times);
	free(c->index);
	free(c);
}
