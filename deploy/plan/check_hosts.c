#include "deploy/plan/check_hosts.h"

#include "common/base/clock.h"
#include "common/base/timed_cond.h"
#include "common/net/endpoint.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOK_NS (20 * OD_NS_PER_MS)
#define PONG_NS OD_NS_PER_S

struct odp_meeting {
	const struct odm_cluster_opts *o;
	void *zmq;
	int changed_fd;
	uv_loop_t loop;
	uv_async_t stop, wake;
	pthread_t thread;
	bool has_loop, has_stop, has_thread;
	struct odm_members *members;
	pthread_mutex_t lock;
	pthread_cond_t heard;
	/* The loop thread's: the PING that is waited for. */
	uint64_t ping_sequence, pinged_ns;
	/* Under the lock: */
	uint64_t sequence;
	uint32_t position, n_heard;
	uint64_t *at_ns; /* [n_moe] */
	struct ping_order {
		bool ordered, answered;
		uint32_t member, padding;
		double ns;
	} ping;
};

struct odm_members *odp_meeting_members(struct odp_meeting *m)
{
	return m->members;
}

void *odp_meeting_zmq(struct odp_meeting *m)
{
	return m->zmq;
}

/* ---- Loop thread ---- */

static bool is_listened_to(const struct odp_meeting *m, const Od__Predict *p)
{
	for (size_t i = 0; i < p->n_rows; i++)
		if (p->rows[i]->sequence == m->sequence && p->rows[i]->position == m->position)
			return true;
	return false;
}

static void on_predict(void *arg, uint32_t member, const struct od_msg *msg)
{
	const uint64_t now_ns = od_now_ns();
	const Od__Predict *p = msg->header->predict;
	struct odp_meeting *m = arg;

	(void)member;
	pthread_mutex_lock(&m->lock);
	if (p->m < m->o->config->n_moe && m->at_ns[p->m] == 0 && is_listened_to(m, p)) {
		m->at_ns[p->m] = now_ns;
		m->n_heard++;
		pthread_cond_broadcast(&m->heard);
	}
	pthread_mutex_unlock(&m->lock);
}

/* Both times are taken on this thread. */
static void on_wake(uv_async_t *async)
{
	struct odp_meeting *m = async->data;
	struct ping_order ping;

	pthread_mutex_lock(&m->lock);
	ping = m->ping;
	m->ping.ordered = false;
	pthread_mutex_unlock(&m->lock);
	if (!ping.ordered)
		return;
	m->pinged_ns = od_now_ns();
	m->ping_sequence = odm_members_ping(m->members, ping.member, ping.padding);
}

static void on_pong(void *arg, uint32_t member, uint64_t sequence)
{
	const uint64_t now_ns = od_now_ns();
	struct odp_meeting *m = arg;

	pthread_mutex_lock(&m->lock);
	if (member == m->ping.member && sequence == m->ping_sequence) {
		m->ping.ns = (double)(now_ns - m->pinged_ns);
		m->ping.answered = true;
		pthread_cond_broadcast(&m->heard);
	}
	pthread_mutex_unlock(&m->lock);
}

static void on_stop(uv_async_t *async)
{
	struct odp_meeting *m = async->data;

	odm_members_stop(m->members);
	uv_close((uv_handle_t *)&m->wake, NULL);
	uv_close((uv_handle_t *)async, NULL);
}

static void *loop_thread(void *arg)
{
	struct odp_meeting *m = arg;

	uv_run(&m->loop, UV_RUN_DEFAULT);
	return NULL;
}

/* ---- Life ---- */

static int open_loop(struct odp_meeting *m, struct od_err *err)
{
	const struct odm_members_opts mo = { .cluster = m->o,
					     .zmq_context = m->zmq,
					     .changed_fd = m->changed_fd,
					     .message = on_predict,
					     .pong = on_pong,
					     .arg = m };
	int rc;

	if (uv_loop_init(&m->loop) != 0)
		return od_fail(err, OD_ERR_INTERNAL, "cannot create an event loop");
	m->has_loop = true;
	rc = odm_members_new(&m->members, &mo, &m->loop, err);
	if (rc != OD_OK)
		return rc;
	uv_async_init(&m->loop, &m->stop, on_stop);
	m->stop.data = m;
	uv_async_init(&m->loop, &m->wake, on_wake);
	m->wake.data = m;
	m->has_stop = true;
	if (pthread_create(&m->thread, NULL, loop_thread, m) != 0)
		return od_fail(err, OD_ERR_NOMEM, "cannot start the loop thread");
	pthread_setname_np(m->thread, "od-loop");
	m->has_thread = true;
	return OD_OK;
}

static int open_all(struct odp_meeting *m, struct od_err *err)
{
	m->at_ns = calloc(m->o->config->n_moe, sizeof(*m->at_ns));
	if (m->at_ns == NULL)
		return od_fail(err, OD_ERR_NOMEM, "hosts");
	m->changed_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (m->changed_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create an eventfd");
	m->zmq = od_zmq_context();
	if (m->zmq == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cannot create a ZeroMQ context");
	return open_loop(m, err);
}

int odp_meeting_open(struct odp_meeting **out, const struct odm_cluster_opts *o, struct od_err *err)
{
	struct odp_meeting *m = calloc(1, sizeof(*m));
	int rc;

	*out = NULL;
	if (m == NULL)
		return od_fail(err, OD_ERR_NOMEM, "hosts");
	m->o = o;
	m->changed_fd = -1;
	pthread_mutex_init(&m->lock, NULL);
	od_timed_cond_init(&m->heard);
	rc = open_all(m, err);
	if (rc != OD_OK) {
		odp_meeting_close(m);
		return rc;
	}
	*out = m;
	return OD_OK;
}

void odp_meeting_close(struct odp_meeting *m)
{
	if (m == NULL)
		return;
	if (m->has_thread) {
		uv_async_send(&m->stop);
		pthread_join(m->thread, NULL);
	} else if (m->has_stop) { /* the thread never started: take down here what it would have */
		on_stop(&m->stop);
		uv_run(&m->loop, UV_RUN_DEFAULT);
	}
	if (m->has_loop)
		uv_loop_close(&m->loop);
	odm_members_free(m->members);
	while (m->zmq != NULL && zmq_ctx_term(m->zmq) != 0 && errno == EINTR)
		; /* a signal: it is not done yet */
	if (m->changed_fd >= 0)
		close(m->changed_fd);
	pthread_cond_destroy(&m->heard);
	pthread_mutex_destroy(&m->lock);
	free(m->at_ns);
	free(m);
}

/* ---- Waiting ---- */

static bool is_decided(const struct odm_member_facts *f)
{
	return f->member.session != 0 || (f->refused_code != 0 && !f->told.welcomed);
}

void odp_meeting_wait(struct odp_meeting *m, uint64_t timeout_ns)
{
	const uint64_t until_ns = od_now_ns() + timeout_ns;
	bool decided = false;

	while (!decided && od_now_ns() < until_ns) {
		struct odm_member_facts f;

		decided = true;
		for (uint32_t i = 0; decided && odm_members_facts(m->members, i, &f); i++)
			decided = is_decided(&f);
		if (!decided)
			od_sleep_until(od_now_ns() + LOOK_NS);
	}
}

void odp_meeting_listen(struct odp_meeting *m, uint64_t sequence, uint32_t position)
{
	pthread_mutex_lock(&m->lock);
	m->sequence = sequence;
	m->position = position;
	m->n_heard = 0;
	memset(m->at_ns, 0, m->o->config->n_moe * sizeof(*m->at_ns));
	pthread_mutex_unlock(&m->lock);
}

bool odp_meeting_heard(struct odp_meeting *m, uint32_t n, uint64_t timeout_ns, uint64_t *at_ns)
{
	const uint64_t until_ns = od_now_ns() + timeout_ns;
	bool heard;

	pthread_mutex_lock(&m->lock);
	while (m->n_heard < n && od_timed_cond_wait(&m->heard, &m->lock, until_ns))
		;
	heard = m->n_heard >= n;
	memcpy(at_ns, m->at_ns, m->o->config->n_moe * sizeof(*at_ns));
	pthread_mutex_unlock(&m->lock);
	return heard;
}

bool odp_meeting_ping(struct odp_meeting *m, uint32_t member, uint32_t padding, double *ns)
{
	const uint64_t until_ns = od_now_ns() + PONG_NS;
	bool answered;

	pthread_mutex_lock(&m->lock);
	m->ping = (struct ping_order){ .ordered = true, .member = member, .padding = padding };
	uv_async_send(&m->wake);
	while (!m->ping.answered && od_timed_cond_wait(&m->heard, &m->lock, until_ns))
		;
	answered = m->ping.answered;
	*ns = m->ping.ns;
	pthread_mutex_unlock(&m->lock);
	return answered;
}
