#include "main-node/cluster/members_internal.h"

#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/timed_cond.h"
#include "common/net/endpoint.h"
#include "common/net/handshake.h"
#include "common/net/uv_socket.h"
#include "common/pack/share.h"
#include "main-node/cluster/welcome_check.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 50
#define PING_EVERY_TICKS 5 /* OD_PING_EVERY_NS */
#define HELLO_TIMEOUT_NS (2 * OD_NS_PER_S)
#define RETRY_BUSY_NS (500 * OD_NS_PER_MS)
#define RETRY_NEVER_NS (86400 * OD_NS_PER_S) /* longer than a process lives that only looks */
#define RETRY_LOST_NS (100 * OD_NS_PER_MS)
#define EXILE_S 5 /* exile of a distrusted worker; doubled each time in a row, for each may cost a step 3 s */
#define MAX_STRIKES 6

const char *odm_member_name(const struct member *m, char *buf, size_t size)
{
	snprintf(buf, size, strchr(m->host.host, ':') != NULL ? "%s [%s]:%u" : "%s %s:%u", od_node_names[m->host.role],
		 m->host.host, m->host.port);
	return buf;
}

/* Publishes a change of membership. */
static void publish(struct member *m, const char *why)
{
	struct odm_members *ms = m->ms;
	uint64_t one = 1;

	pthread_mutex_lock(&ms->lock);
	m->pub.session = m->state == M_READY ? m->session : 0;
	m->pub.attached = false;
	m->used = m->used || m->state == M_READY;
	m->stats.alive = m->state == M_READY;
	if (m->state == M_READY) {
		m->stats.pongs = 0;
		m->stats.busy = false;
	}
	snprintf(m->why, sizeof(m->why), "%s", why);
	m->distrusted = false;
	ms->epoch++;
	pthread_cond_broadcast(&ms->changed);
	pthread_mutex_unlock(&ms->lock);
	/* The engine is woken last, so it finds the new epoch, and the lock free. */
	if (write(ms->o.changed_fd, &one, sizeof(one)) < 0)
		return; /* the counter is full: the engine will wake anyway */
}

void odm_member_set_refused(struct member *m, int code)
{
	pthread_mutex_lock(&m->ms->lock);
	m->refused_code = code; /* after the reason: whoever waits looks at the reason when this is set */
	pthread_cond_broadcast(&m->ms->changed);
	pthread_mutex_unlock(&m->ms->lock);
}

void odm_member_set_why(struct member *m, const char *why)
{
	pthread_mutex_lock(&m->ms->lock);
	snprintf(m->why, sizeof(m->why), "%s", why);
	pthread_cond_broadcast(&m->ms->changed);
	pthread_mutex_unlock(&m->ms->lock);
}

static void end_watch(struct member *m)
{
	od_handshake_end(m->handshake, m->watched);
	m->handshake = m->watched = NULL;
}

/* Back to no socket: ZeroMQ sockets are recreated after a death, so that nothing queued reaches a successor. */
void odm_member_drop(struct member *m, uint64_t retry_after_ns, const char *why)
{
	const bool was_ready = m->state == M_READY, was_used = m->pub.session != 0;

	/* The watch ends first, because ending it takes the socket. publish() reads the state, so it comes last. */
	end_watch(m);
	od_uv_socket_close(m->socket);
	m->socket = NULL;
	m->state = M_CLOSED;
	m->retry_ns = od_now_ns() + retry_after_ns;
	m->last_session = m->session != 0 ? m->session : m->last_session;
	m->session = 0;
	if (was_ready) {
		publish(m, why);
		odm_member_tell_lost(m, was_used, why);
	} else {
		odm_member_set_why(m, why);
	}
}

static void send_hello(struct member *m)
{
	struct odm_members *ms = m->ms;
	const struct odm_cluster_opts *o = ms->o.cluster;
	Od__Hello hello = OD__HELLO__INIT;
	Od__Header h = OD__HEADER__INIT;
	char host_name[64] = "main";

	gethostname(host_name, sizeof(host_name) - 1);
	hello.role = (char *)od_node_names[m->host.role];
	hello.fingerprint.data = (uint8_t *)o->fingerprint;
	hello.fingerprint.len = sizeof(o->fingerprint);
	hello.profile = o->profile;
	hello.kernel_class = (char *)o->kernel_class;
	hello.mixed = o->mixed;
	hello.main_name = host_name;
	hello.ctx_tokens = o->ctx_tokens;
	hello.max_rows =
		m->host.role == OD_NODE_SHADOW && o->max_rows > ODM_MAX_STEP_ROWS ? ODM_MAX_STEP_ROWS : o->max_rows;
	hello.max_sequences = o->max_sequences;
	hello.main_id = ms->main_id;
	hello.recent_experts = o->config->prior.recent;
	hello.kept_experts = o->config->prior.keep;
	hello.lambda = o->config->prior.lambda;
	h.session = m->last_session; /* so that a daemon knows us again and does not wait for our silence */
	h.epoch = ms->epoch;
	h.body_case = OD__HEADER__BODY_HELLO;
	h.hello = &hello;
	if (od_uv_socket_send(m->socket, NULL, &h, NULL, 0) == OD_OK) {
		m->state = M_GREETED;
		m->since_ns = od_now_ns();
		m->greeted_wall_ns = odm_wall_clock_ns();
		(void)od_handshake_why(m->handshake); /* earlier failures do not count */
	}
}

void odm_member_ping(struct member *m, uint32_t padding)
{
	static const uint8_t zeros[OD_MAX_PADDING];
	Od__Ping ping = OD__PING__INIT;
	Od__Header h = OD__HEADER__INIT;

	ping.sequence = ++m->ping;
	ping.padding = (ProtobufCBinaryData){ .data = (uint8_t *)zeros, .len = padding };
	ping.answer_bytes = padding;
	pthread_mutex_lock(&m->ms->lock);
	odm_link_cost_sent(&m->cost, ping.sequence, padding, od_now_ns());
	pthread_mutex_unlock(&m->ms->lock);
	h.session = m->session;
	h.epoch = m->ms->epoch;
	h.body_case = OD__HEADER__BODY_PING;
	h.ping = &ping;
	if (od_uv_socket_send(m->socket, NULL, &h, NULL, 0) != OD_OK)
		return; /* the silence will tell */
}

/* Once a session: a lost worker misses hundreds of messages. */
static void tell_left_out(struct member *m, const Od__Header *h)
{
	char name[300];

	if (m->told_left_out)
		return;
	m->told_left_out = true;
	od_log_limited(OD_LOG_WARN, "%s: dropped %s: it is disconnected, or its send queue is full",
		       odm_member_name(m, name, sizeof(name)), od_body_name(h->body_case));
}

/* A worker's place follows from the hosts file, not from the connected members, so that its disk and cache contents do
 * not depend on hosts that are lost for a while. */
void odm_member_send_place(struct member *m)
{
	const struct odm_members *ms = m->ms;
	Od__Place place = OD__PLACE__INIT;
	Od__Header h = OD__HEADER__INIT;
	bool spool = false;

	if (m->host.role != OD_NODE_WORKER || m->state != M_READY || (!m->pub.spool && !m->pub.cache) ||
	    ms->o.cluster->looks)
		return;
	for (uint32_t i = 0; i < ms->n_listed; i++) {
		if (ms->listed[i] == m)
			place.worker = place.n_workers;
		place.n_workers += ms->listed[i]->host.role == OD_NODE_WORKER;
		spool = spool || ms->listed[i]->pub.spool;
	}
	/* Experts on disks belong to groups; caches have one group of all. */
	place.n_groups =
		spool ? od_share_groups(place.n_workers, ms->o.cluster->group_size, ms->o.cluster->config->top_k) : 1;
	h.session = m->session;
	h.epoch = ms->epoch;
	h.body_case = OD__HEADER__BODY_PLACE;
	h.place = &place;
	if (od_uv_socket_send(m->socket, NULL, &h, NULL, 0) != OD_OK)
		tell_left_out(m, &h);
}

/* A shadow of another class changes predictions, but no token. */
static void tell_mixed(const struct member *m, const char *theirs)
{
	const char *ours = m->ms->o.cluster->kernel_class;
	char name[300], class[40];

	if (m->host.role == OD_NODE_WORKER && strcmp(theirs, ours) != 0)
		od_log(OD_LOG_INFO,
		       "%s has kernel class %s, od-main %s (--mixed): which of them computes decides the last bits of results, "
		       "and so may change tokens",
		       odm_member_name(m, name, sizeof(name)), od_peer_text(theirs, class, sizeof(class)), ours);
}

/* It has begun a session, which main does not want. */
static void refuse_welcome(struct member *m, int code, const char *why)
{
	char name[300];

	if (!m->told)
		od_log(OD_LOG_WARN, "%s cannot be used: %s", odm_member_name(m, name, sizeof(name)), why);
	m->told = true;
	odm_member_attempt_failed(m, true, ODM_RETRY_REFUSED_NS, code == OD_ERR_MISMATCH ? code : OD_OK, why);
}

/* A worker whose copy of the model is not main's: it would give other results. Each new session of it is refused again,
 * by its reports. */
static void refuse_copy(struct member *m, const char *why)
{
	m->differed = true;
	odm_member_attempt_failed(m, true, ODM_RETRY_REFUSED_NS, OD_ERR_MISMATCH, why); /* it logs why */
	m->told = true;
}

static void on_welcome(struct member *m, const Od__Header *h)
{
	const Od__Welcome *w = h->welcome;
	char name[300], backend[256], host_name[sizeof(m->host_name)];
	struct od_err err;
	bool another;
	int rc;

	if (m->state != M_GREETED)
		return;
	od_peer_text(w->host_name, host_name, sizeof(host_name));
	rc = odm_check_welcome(w, m->host.role, m->ms->o.cluster, &err);
	if (rc != OD_OK) {
		refuse_welcome(m, rc, err.msg);
		return;
	}
	another = w->pid != m->pid || strcmp(host_name, m->host_name) != 0;
	if (another) { /* another process: it has done nothing wrong yet */
		m->strikes = 0;
		m->exile_ns = 0;
		m->on_trial = false;
	}
	m->pid = w->pid;
	if (m->ms->copies != NULL)
		odm_copy_check_forget(m->ms->copies, m->id);
	m->reported = false;
	m->session = w->session;
	m->state = M_READY;
	odm_member_attempt_succeeded(m);
	m->told_left_out = false;
	m->ping = 0; /* PINGs are numbered by session, and so are asked and answered below */
	odm_member_set_refused(m, 0);
	od_liveness_start(&m->live, od_now_ns());
	pthread_mutex_lock(&m->ms->lock);
	m->asked = m->answered = 0;
	odm_member_note_welcome(m, w);
	memcpy(m->host_name, host_name, sizeof(host_name));
	snprintf(m->pub.host, sizeof(m->pub.host), "%s", odm_member_address(m));
	m->pub.data_port = (uint16_t)w->data_port;
	m->stats.slots = m->pub.slots = w->slots;
	m->pub.first_layer = w->first_layer;
	m->pub.end_layer = w->end_layer != 0 ? w->end_layer : m->ms->o.cluster->config->n_layers;
	od_peer_text(w->precision, m->precision, sizeof(m->precision));
	m->pub.spool = w->spool;
	m->pub.sealed = w->sealed;
	m->pub.cache = w->cache_bytes > 0;
	m->pub.n_damaged = 0;
	memset(m->holds, 0, m->ms->holds_bytes);
	memset(m->cached, 0, m->ms->cached_bytes);
	odm_link_cost_begin(&m->cost, od_now_ns(), another);
	if (another)
		m->times = (struct odm_worker_times){ 0 };
	m->cache_experts = (uint32_t)(w->cache_experts < m->ms->cached_bytes ? w->cache_experts : m->ms->cached_bytes);
	m->told_ratio = 1;
	pthread_mutex_unlock(&m->ms->lock);
	odm_member_ping(m, 0); /* it is ours to use when its link is known: join */
	odm_member_send_place(m);
	od_log(OD_LOG_DEBUG, "%s connected (pid %u on %s, %s)", odm_member_name(m, name, sizeof(name)), w->pid,
	       host_name, od_peer_text(w->backend, backend, sizeof(backend)));
	tell_mixed(m, w->kernel_class);
}

static void on_refuse(struct member *m, const Od__Refuse *r)
{
	char name[300], why[400], field[40], reason[320];
	bool busy = r->code == OD_ERR_BUSY, named;

	pthread_mutex_lock(&m->ms->lock);
	odm_member_note_refuse(m, r);
	pthread_mutex_unlock(&m->ms->lock);
	od_peer_text(r->field, field, sizeof(field));
	od_peer_text(r->reason, reason, sizeof(reason));
	named = strncmp(reason, field, strlen(field)) == 0; /* most reasons begin with it */
	snprintf(why, sizeof(why), "refused%s%s: %s", named ? "" : ", field ", named ? "" : field, reason);
	if (!busy && !m->told)
		od_log(OD_LOG_WARN, "%s %s", odm_member_name(m, name, sizeof(name)), why);
	m->told = m->told || !busy;
	/* A main that only looks leaves the daemon to the other one, also when that comes back. */
	odm_member_attempt_failed(m, true,
				  !busy			  ? ODM_RETRY_REFUSED_NS :
				  m->ms->o.cluster->looks ? RETRY_NEVER_NS :
							    RETRY_BUSY_NS,
				  busy ? OD_ERR_BUSY : OD_ERR_MISMATCH, why);
}

/* The first PONG of a session is the baseline: main has not used the member yet. */
static void take_counters(struct member *m, const Od__Pong *p)
{
	uint64_t now[OD_N_COUNTERS], since[OD_N_COUNTERS];

	od_pong_get(p, now);
	od_counters_since(since, now, m->stats.c);
	if (m->answered > 0)
		od_counters_add(m->counted, since);
	memcpy(m->stats.c, now, sizeof(now));
	if (m->answered < m->asked && p->sequence >= m->asked)
		memcpy(m->at_ask, m->counted, sizeof(m->at_ask));
	m->answered = p->sequence > m->answered ? p->sequence : m->answered;
}

/* From now on it is used: it has answered, its link is known, and it is not exiled. */
static void join(struct member *m)
{
	if (m->pub.session != 0 || m->answered == 0 || m->exile_ns != 0 || !odm_member_measured(m))
		return;
	if (m->differed && !m->reported)
		return;
	m->differed = false;
	odm_members_weigh(m->ms); /* before main's first step */
	publish(m, "");
	odm_member_tell_back(m);
	odm_members_watch_shadows(m->ms);
}

static void on_pong(struct member *m, const Od__Pong *p)
{
	const bool first = m->answered == 0 && p->sequence > 0;
	char why[sizeof(m->why)];

	if (m->ms->copies != NULL && m->host.role == OD_NODE_WORKER &&
	    !odm_copy_check_take(m->ms->copies, m->id, p, why, sizeof(why))) {
		refuse_copy(m, why);
		return;
	}
	m->reported = m->reported || p->n_sums < OD_MAX_PONG_SUMS;
	od_liveness_pong(&m->live, od_now_ns(), p->progress, p->busy);
	pthread_mutex_lock(&m->ms->lock);
	m->stats.busy = p->busy;
	m->stats.pongs++;
	take_counters(m, p);
	odm_member_echo(m, p);
	if (p->holds.len == m->ms->holds_bytes)
		memcpy(m->holds, p->holds.data, p->holds.len);
	if (p->cached.len == m->ms->cached_bytes)
		memcpy(m->cached, p->cached.data, p->cached.len);
	pthread_cond_broadcast(&m->ms->changed);
	pthread_mutex_unlock(&m->ms->lock);
	m->told = m->told && (!first || m->differed);
	if (m->ms->o.pong != NULL && p->sequence > 0)
		m->ms->o.pong(m->ms->o.arg, m->id, p->sequence);
	join(m); /* it takes the lock again */
	odm_member_probe(m);
}

/* With a reason it has only ended the session: for one, main was suspended. A new one begins at once. */
static void on_bye(struct member *m, const Od__Bye *bye)
{
	char why[150], reason[120];
	const bool only = bye->reason[0] != '\0';

	snprintf(why, sizeof(why), "it sent BYE%s%s%s", only ? " (" : "",
		 od_peer_text(bye->reason, reason, sizeof(reason)), only ? ")" : "");
	odm_member_drop(m, only ? 0 : RETRY_LOST_NS, why);
}

static void on_message(void *arg, struct od_msg *msg)
{
	struct member *m = arg;
	const Od__Header *h = msg->header;
	struct od_err err;

	if (h->body_case == OD__HEADER__BODY_REFUSE) { /* read in any version: it says why */
		on_refuse(m, h->refuse);
		return;
	}
	if (od_check_version(h, &err) != OD_OK) {
		char why[400];

		snprintf(why, sizeof(why), "refused: %s", err.msg);
		odm_member_attempt_failed(m, true, ODM_RETRY_REFUSED_NS, OD_ERR_MISMATCH, why);
		return;
	}
	if (h->body_case == OD__HEADER__BODY_WELCOME) {
		on_welcome(m, h);
		return;
	}
	if (m->state != M_READY || h->session != m->session)
		return; /* an older incarnation's */
	od_liveness_heard(&m->live, od_now_ns());
	switch (h->body_case) {
	case OD__HEADER__BODY_PONG: on_pong(m, h->pong); break;
	case OD__HEADER__BODY_BYE: on_bye(m, h->bye); break;
	case OD__HEADER__BODY_PREDICT:
		if (m->host.role == OD_NODE_SHADOW)
			m->ms->o.message(m->ms->o.arg, m->id, msg);
		else
			od_log_limited(OD_LOG_WARN, "%s sent PREDICT, which a worker must not send", m->host.host);
		break;
	/* A daemon never sends these on the control socket. */
	case OD__HEADER__BODY__NOT_SET:
	case OD__HEADER__BODY_HELLO:
	case OD__HEADER__BODY_WELCOME:
	case OD__HEADER__BODY_REFUSE:
	case OD__HEADER__BODY_PING:
	case OD__HEADER__BODY_WANT:
	case OD__HEADER__BODY_CLOSE:
	case OD__HEADER__BODY_ATTACH:
	case OD__HEADER__BODY_ATTACHED:
	case OD__HEADER__BODY_RUN:
	case OD__HEADER__BODY_RESULT:
	case OD__HEADER__BODY_STEP:
	case OD__HEADER__BODY_STATE:
	case OD__HEADER__BODY_STATE_REQUEST:
	case OD__HEADER__BODY_SEQ_TRUNCATE:
	case OD__HEADER__BODY_SEQ_CLOSE:
	case OD__HEADER__BODY_SEQ_OPEN:
	case OD__HEADER__BODY_TOKENS:
	case OD__HEADER__BODY_TOKENS_REQUEST:
	case OD__HEADER__BODY_PARTS:
	case OD__HEADER__BODY_PART_OPEN:
	case OD__HEADER__BODY_PART_READY:
	case OD__HEADER__BODY_PART_RUN:
	case OD__HEADER__BODY_PART_LAYER:
	case OD__HEADER__BODY_PART_RESULT:
	case OD__HEADER__BODY_PART_STATE:
	case OD__HEADER__BODY_PART_COMMIT:
	case OD__HEADER__BODY_PLACE:
	case OD__HEADER__BODY_STORE_HELLO:
	case OD__HEADER__BODY_STORE_WELCOME:
	case OD__HEADER__BODY_FETCH:
	case OD__HEADER__BODY_CHUNK:
	case _OD__HEADER__BODY__CASE_IS_INT_SIZE:
		od_log_limited(OD_LOG_WARN, "%s sent %s, which a daemon must not send", m->host.host,
			       od_body_name(h->body_case));
		break;
	}
}

static void on_garbage(void *arg, const struct od_route *route, const struct od_err *why)
{
	struct member *m = arg;

	(void)route;
	od_log_limited(OD_LOG_WARN, "%s:%u sent a malformed message: %s", m->host.host, m->host.port, why->msg);
}

static void open_socket(struct member *m)
{
	static const struct od_uv_socket_ops ops = { .message = on_message, .garbage = on_garbage };
	struct odm_members *ms = m->ms;
	const struct od_curve curve = { .own = ms->o.cluster->own_keys, .server = m->host.key };
	char name[300], why[256];
	struct od_err err;
	void *socket;
	int rc;

	if (m->addresses.n == 0)
		return; /* its name is being resolved */
	if (odm_member_is_twin(m, why, sizeof(why))) {
		if (!m->told)
			od_log(OD_LOG_WARN, "%s is not used: %s", odm_member_name(m, name, sizeof(name)), why);
		m->told = true;
		odm_member_attempt_failed(m, true, ODM_RETRY_REFUSED_NS, OD_ERR_MISMATCH, why);
		return;
	}
	rc = od_connect_watched(ms->o.zmq_context, odm_member_address(m), m->host.port, m->host.has_key ? &curve : NULL,
				&socket, &m->handshake, &err);
	if (rc == OD_OK) {
		m->watched = socket;
		rc = od_uv_socket_new(&m->socket, ms->loop, socket, false, &ops, m, &err);
		if (rc != OD_OK) {
			end_watch(m);
			od_close_socket(socket);
		}
	}
	if (rc != OD_OK) {
		odm_member_attempt_failed(m, false, ODM_RETRY_REFUSED_NS, OD_OK, err.msg);
		return;
	}
	m->state = M_CONNECTING;
	m->silent = false;
	m->since_ns = od_now_ns();
}

static void check_ready(struct member *m, uint64_t now, bool ping)
{
	bool distrusted;
	char why[sizeof(m->why) + 50];

	pthread_mutex_lock(&m->ms->lock);
	distrusted = m->distrusted;
	if (distrusted)
		snprintf(why, sizeof(why), "%s; it is used again in %u s or later", m->why, EXILE_S << m->strikes);
	pthread_mutex_unlock(&m->ms->lock);
	if (distrusted) {
		m->exile_ns = now + ((uint64_t)EXILE_S << m->strikes) * OD_NS_PER_S;
		m->strikes += m->strikes < MAX_STRIKES;
		m->on_trial = true;
		/* The drop takes the lock, and writes m->why: so `why` is a copy, made under the lock above. */
		odm_member_drop(m, RETRY_LOST_NS, why);
		return;
	}
	/* A process that ends closes its connections at once. If it was only the connection, the next HELLO begins a
	 * new session. */
	if (od_handshake_why(m->handshake) != OD_HANDSHAKE_OPEN) {
		odm_member_drop(m, 0, "its connection has ended");
		return;
	}
	if (m->exile_ns != 0 && now >= m->exile_ns)
		m->exile_ns = 0;
	join(m);
	odm_member_probe(m);
	if (!ping)
		return;
	switch (od_liveness_check(&m->live, now)) {
	case OD_ALIVE: odm_member_ping(m, 0); break;
	case OD_SILENT: odm_member_drop(m, RETRY_LOST_NS, "no answer for 1.5 s"); break;
	case OD_STUCK: odm_member_drop(m, RETRY_LOST_NS, "it has work but made no progress for 3 s"); break;
	}
}

/* Keys that do not match need an operator, here or there. */
static void check_handshake(struct member *m, enum od_handshake how)
{
	const bool keys = m->host.has_key, final = how == OD_HANDSHAKE_REFUSED || how == OD_HANDSHAKE_UNLIKE;
	char name[300], key[OD_KEY_CHARS + 1], why[256];

	switch (how) {
	case OD_HANDSHAKE_OPEN:
	case OD_HANDSHAKE_UNREACHED:
	case OD_HANDSHAKE_ENDED: return;
	case OD_HANDSHAKE_REFUSED:
		snprintf(why, sizeof(why),
			 "it refuses this node's key %s: add it to the peers file there, and restart it or kill -HUP",
			 keys ? od_key_text(m->ms->o.cluster->own_keys->public_key, key) : "");
		break;
	case OD_HANDSHAKE_SILENT:
		m->silent = true;
		odm_member_set_why(
			m,
			"it takes the connection and says nothing; check that it is not stopped, and that it is an od-moe daemon");
		return;
	case OD_HANDSHAKE_BROKEN:
		if (!keys) {
			odm_member_set_why(
				m,
				"it ends the handshake; check that it is an od-moe daemon, and that it runs without keys, as main does");
			return;
		}
		snprintf(why, sizeof(why),
			 "it ended the handshake; check that its key is %s, as the hosts file or the peers file says",
			 od_key_text(m->host.key, key));
		break;
	case OD_HANDSHAKE_UNLIKE:
		snprintf(
			why, sizeof(why), "%s",
			keys ? "it runs without keys: start it with --key" :
			       "it runs with keys: leave out --insecure and give main its key (key= in the hosts file)");
		break;
	}
	if (!m->told)
		od_log(OD_LOG_WARN, "%s cannot be used: %s", odm_member_name(m, name, sizeof(name)), why);
	m->told = true;
	if (!final) { /* it may have been killed, or been slow: ZeroMQ tries again */
		odm_member_set_why(m, why);
		return;
	}
	odm_member_attempt_failed(m, true, ODM_RETRY_REFUSED_NS, OD_ERR_MISMATCH, why);
}

static void check_connecting(struct member *m, uint64_t now)
{
	static const char unreached[] = "cannot connect; check that it runs there, and its address and port";
	const enum od_handshake how = od_handshake_why(m->handshake);
	const bool failed = how > OD_HANDSHAKE_ENDED;

	if (how == OD_HANDSHAKE_UNREACHED)
		m->silent = false;
	if (failed)
		check_handshake(m, how);
	if (m->state != M_CONNECTING) /* check_handshake() has dropped it */
		return;
	if (odm_member_tries_another(m, now) || (m->addresses.n > 1 && (failed || how == OD_HANDSHAKE_UNREACHED))) {
		odm_member_attempt_failed(m, failed, RETRY_BUSY_NS, OD_OK, failed ? m->why : unreached);
	} else if (!failed && !m->told && !m->silent && now - m->since_ns > HELLO_TIMEOUT_NS) {
		odm_member_set_why(m, unreached); /* nothing was told: if it refuses main later, that is */
	}
}

/* A child of main: that it has ended is known before its silence says so. */
static void check_process(struct member *m)
{
	const struct odm_cluster_opts *o = m->ms->o.cluster;
	char name[300], why[sizeof(m->why)];

	if (o->ended == NULL || m->gone || !o->ended(o->ended_arg, &m->host, why, sizeof(why)))
		return;
	/* `gone` is set before the drop wakes the engine, which would else wait for it to come back. */
	pthread_mutex_lock(&m->ms->lock);
	m->gone = true;
	pthread_mutex_unlock(&m->ms->lock);
	if (m->state != M_READY && m->last_session != 0)
		od_log(OD_LOG_WARN, "%s does not come back: %s", odm_member_name(m, name, sizeof(name)), why);
	odm_member_drop(m, 0, why);
	odm_member_set_refused(m, OD_ERR_UNREACHABLE);
}

static void tick_member(struct member *m, uint64_t now, bool ping)
{
	check_process(m);
	odm_member_follow_name(m, now);
	switch (m->state) {
	case M_CLOSED:
		if (now >= m->retry_ns && !m->retired && !m->gone)
			open_socket(m);
		break;
	case M_CONNECTING:
		send_hello(m);
		if (m->state == M_CONNECTING)
			check_connecting(m, now);
		break;
	case M_GREETED:
		if (od_handshake_why(m->handshake) != OD_HANDSHAKE_OPEN)
			odm_member_attempt_failed(m, true, RETRY_LOST_NS, OD_OK,
						  "it ended the connection before it answered HELLO");
		else if (now - m->since_ns > HELLO_TIMEOUT_NS)
			odm_member_attempt_failed(
				m, true, RETRY_LOST_NS, OD_OK,
				"connected, but no answer to HELLO; check that it is an od-moe daemon");
		break;
	case M_READY: check_ready(m, now, ping); break;
	}
}

/* With what main has read of its own copy since. */
static void compare_copies(struct odm_members *ms)
{
	char why[sizeof(ms->member[0]->why)];
	uint32_t id;

	while (odm_copy_check_next(ms->copies, &id, why, sizeof(why))) {
		odm_copy_check_forget(ms->copies, id);
		if (id < ms->n && ms->member[id]->state == M_READY)
			refuse_copy(ms->member[id], why);
	}
}

static void on_tick(uv_timer_t *timer)
{
	struct odm_members *ms = timer->data;
	const uint64_t now = od_now_ns(), away_ns = now - ms->ticked_ns;
	/* main was stopped: are its sessions still alive? */
	const bool ping = ms->tick++ % PING_EVERY_TICKS == 0 || away_ns > OD_PING_EVERY_NS;

	ms->ticked_ns = now;
	if (ms->copies != NULL)
		compare_copies(ms);
	if (ping)
		od_descriptors_watch();
	for (uint32_t i = 0; i < ms->n && !ms->stopping; i++)
		tick_member(ms->member[i], now, ping);
	if (!ms->stopping)
		odm_members_probe(ms);
	if (ping && !ms->stopping)
		odm_members_weigh(ms);
	odm_members_tell(ms, now);
	odm_members_watch_shadows(ms);
}

void odm_member_say_bye(struct member *m, const char *reason)
{
	Od__Bye bye = OD__BYE__INIT;
	Od__Header h = OD__HEADER__INIT;

	bye.reason = (char *)reason;
	h.session = m->session;
	h.body_case = OD__HEADER__BODY_BYE;
	h.bye = &bye;
	if (m->state == M_READY && od_uv_socket_send(m->socket, NULL, &h, NULL, 0) != OD_OK)
		od_log(OD_LOG_DEBUG, "cannot send BYE to %s; it will end the session by timeout", m->host.host);
}

int odm_members_follow(struct odm_members *ms, const struct od_hosts *hosts, struct od_err *err)
{
	const int rc = odm_members_take_hosts(ms, hosts, err);

	for (uint32_t i = 0; i < ms->n; i++)
		odm_member_send_place(ms->member[i]);
	return rc;
}

int odm_members_new(struct odm_members **out, const struct odm_members_opts *opts, uv_loop_t *loop, struct od_err *err)
{
	const struct od_config *cfg = opts->cluster->config;
	struct odm_members *ms = calloc(1, sizeof(*ms));
	int rc;

	*out = NULL;
	if (ms == NULL || sodium_init() < 0) {
		free(ms);
		return od_fail(err, OD_ERR_NOMEM, "members");
	}
	ms->o = *opts;
	ms->loop = loop;
	ms->epoch = 1;
	ms->ticked_ns = od_now_ns();
	randombytes_buf(&ms->main_id, sizeof(ms->main_id));
	ms->cached_bytes = (size_t)cfg->n_moe * cfg->n_experts;
	ms->holds_bytes = (ms->cached_bytes + 7) / 8;
	ms->held = malloc(ms->holds_bytes);
	pthread_mutex_init(&ms->lock, NULL);
	od_timed_cond_init(&ms->changed);
	rc = ms->held != NULL ? odm_members_links_init(ms, err) : od_fail(err, OD_ERR_NOMEM, "members");
	if (rc == OD_OK && opts->cluster->pack != NULL)
		rc = odm_copy_check_new(&ms->copies, opts->cluster->pack, err);
	if (rc == OD_OK)
		rc = odm_members_follow(ms, opts->cluster->hosts, err);
	if (rc != OD_OK) {
		odm_members_free(ms);
		return rc;
	}
	/* The timer comes last: odm_members_free() does not close it, and its ticks need all of the above. */
	uv_timer_init(loop, &ms->timer);
	ms->timer.data = ms;
	uv_timer_start(&ms->timer, on_tick, 0, TICK_MS);
	*out = ms;
	return OD_OK;
}

void odm_members_stop(struct odm_members *ms)
{
	ms->stopping = true;
	for (uint32_t i = 0; i < ms->n; i++)
		odm_member_say_bye(ms->member[i], "main ends");
	usleep(20000); /* LINGER is 0: let ZeroMQ's thread send the BYEs first, so that the daemons are free at once */
	for (uint32_t i = 0; i < ms->n; i++) {
		end_watch(ms->member[i]);
		od_uv_socket_close(ms->member[i]->socket);
		ms->member[i]->socket = NULL;
	}
	uv_close((uv_handle_t *)&ms->timer, NULL);
}

void odm_members_free(struct odm_members *ms)
{
	if (ms == NULL)
		return;
	for (uint32_t i = 0; i < ms->n; i++)
		odm_member_free(ms->member[i]);
	odm_members_links_fini(ms);
	odm_copy_check_free(ms->copies);
	pthread_cond_destroy(&ms->changed);
	pthread_mutex_destroy(&ms->lock);
	free(ms->held);
	free(ms);
}

void odm_members_send(struct odm_members *ms, uint32_t id, Od__Header *header)
{
	struct member *m = id < ms->n ? ms->member[id] : NULL;

	if (m == NULL || m->state != M_READY)
		return;
	header->session = m->session;
	header->epoch = ms->epoch;
	if (od_uv_socket_send(m->socket, NULL, header, NULL, 0) != OD_OK)
		tell_left_out(m, header);
}

uint64_t odm_members_ping(struct odm_members *ms, uint32_t id, uint32_t padding)
{
	struct member *m = id < ms->n ? ms->member[id] : NULL;

	if (m == NULL || m->state != M_READY)
		return 0;
	odm_member_ping(m, padding);
	return m->ping;
}

void odm_members_ask(struct odm_members *ms)
{
	for (uint32_t i = 0; i < ms->n; i++) {
		struct member *m = ms->member[i];

		if (m->host.role != OD_NODE_WORKER)
			continue;
		pthread_mutex_lock(&ms->lock);
		memcpy(m->at_ask, m->counted, sizeof(m->at_ask));
		m->asked = m->ping + (m->state == M_READY); /* the number of the PING below */
		pthread_mutex_unlock(&ms->lock);
		if (m->state == M_READY)
			odm_member_ping(m, 0);
	}
	/* odm_members_counters() waits for this, so it is set when each member's `asked` is. */
	pthread_mutex_lock(&ms->lock);
	ms->asked = true;
	pthread_cond_broadcast(&ms->changed);
	pthread_mutex_unlock(&ms->lock);
}
