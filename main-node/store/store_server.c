#include "main-node/store/store_server.h"

#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/endpoint.h"
#include "common/net/gate.h"
#include "common/pack/spool/spool_source.h"
#include "common/pack/sums.h"
#include "main-node/store/store_queue.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define NICE 10
#define MESSAGES_AT_ONCE 64
#define PIECES_AT_ONCE 8
#define WATCH_MS 1000 /* whether there are descriptors for those who connect */

struct store_file {
	int fd;
	char path[PATH_MAX];
};

struct odm_store {
	const struct od_pack *pack;
	struct od_host address;
	uint64_t session;
	uint8_t fingerprint[32], sums_sha256[32];
	struct store_file file[OD_STORE_EXPERTS]; /* small ones by number; fd -1: there is none */
	uint64_t bytes[OD_STORE_EXPERTS + 1]; /* length of each */
	pthread_t thread;
	bool started;
	sem_t opened; /* the thread has bound its socket, or failed */
	int open_rc;
	struct od_err open_err;
	atomic_bool stop;
	_Atomic uint64_t served_bytes;
	int wake_fd; /* a piece has left, or stop */
	void *context, *socket;
	struct od_gate *gate; /* NULL: no keys */
	const struct od_keys *keys; /* these two only while it opens */
	const struct od_hosts *hosts;
	struct odm_store_queue queue;
};

/* ---- files ---- */

static int open_file(struct odm_store *s, uint32_t number, const char *name, bool required, struct od_err *err)
{
	struct store_file *f = &s->file[number];
	int rc = od_path(f->path, sizeof(f->path), od_pack_folder(s->pack), name, err);

	if (rc != OD_OK || (!required && access(f->path, F_OK) != 0))
		return rc;
	return od_file_open(f->path, &f->fd, &s->bytes[number], err);
}

static int open_files(struct odm_store *s, struct od_err *err)
{
	int rc = open_file(s, OD_STORE_SUMS, OD_SUMS_NAME, true, err);

	for (uint32_t i = 0; rc == OD_OK && od_small_files[i].name != NULL; i++)
		rc = open_file(s, od_small_files[i].number, od_small_files[i].name, od_small_files[i].required, err);
	if (rc == OD_OK)
		s->bytes[OD_STORE_EXPERTS] = od_spool_source_bytes(s->pack);
	return rc == OD_OK ? od_sha256_file(s->file[OD_STORE_SUMS].path, s->sums_sha256, err) : rc;
}

/* ---- answers ---- */

static void wake(struct odm_store *s)
{
	eventfd_write(s->wake_fd, 1); /* fails only when it is full of wakes already */
}

/* A piece on its way; behind it the bytes. */
struct store_piece {
	struct odm_store *store;
	struct odm_store_worker *worker;
	uint64_t bytes;
	uint8_t data[];
};

/* On a ZeroMQ thread. */
static void piece_left(void *data, void *hint)
{
	struct store_piece *p = hint;
	struct odm_store *s = p->store;

	(void)data;
	odm_store_queue_done(p->worker, p->bytes);
	free(p);
	wake(s);
}

static int send(struct odm_store *s, const struct od_route *to, Od__Header *h, const struct od_out_frame *frame)
{
	h->session = s->session;
	return od_wire_send(s->socket, to, h, frame, frame != NULL);
}

static void send_refusal(struct odm_store *s, const struct od_route *to, uint64_t request, const struct od_err *why)
{
	Od__Header h = OD__HEADER__INIT;
	Od__Chunk body = OD__CHUNK__INIT;

	body.request = request;
	body.code = why->code;
	body.reason = (char *)why->msg;
	h.body_case = OD__HEADER__BODY_CHUNK;
	h.chunk = &body;
	if (send(s, to, &h, NULL) != OD_OK)
		return; /* it is gone, or asks again */
}

static void send_welcome(struct odm_store *s, const struct od_route *to)
{
	Od__Header h = OD__HEADER__INIT;
	Od__StoreWelcome body = OD__STORE_WELCOME__INIT;
	Od__StoreFile file[OD_STORE_EXPERTS + 1], *list[OD_STORE_EXPERTS + 1];

	for (uint32_t number = 0; number <= OD_STORE_EXPERTS; number++) {
		if (s->bytes[number] == 0)
			continue;
		od__store_file__init(&file[body.n_files]);
		file[body.n_files].file = number;
		file[body.n_files].bytes = s->bytes[number];
		list[body.n_files] = &file[body.n_files];
		body.n_files++;
	}
	body.files = list;
	body.session = s->session;
	body.fingerprint = (ProtobufCBinaryData){ sizeof(s->fingerprint), s->fingerprint };
	body.sums_sha256 = (ProtobufCBinaryData){ sizeof(s->sums_sha256), s->sums_sha256 };
	h.body_case = OD__HEADER__BODY_STORE_WELCOME;
	h.store_welcome = &body;
	if (send(s, to, &h, NULL) != OD_OK)
		return; /* it asks again */
}

static int read_piece(const struct odm_store *s, const struct odm_store_request *r, uint8_t *to, uint64_t *xxh3,
		      struct od_err *err)
{
	const struct store_file *f = &s->file[r->file];

	*xxh3 = 0;
	if (r->file == OD_STORE_EXPERTS)
		return od_spool_source_read(s->pack, r->offset, to, r->bytes, xxh3, err);
	return od_file_pread(f->fd, to, r->bytes, r->offset, f->path, err);
}

static void serve(struct odm_store *s, struct odm_store_worker *w, const struct odm_store_request *r)
{
	struct store_piece *p = malloc(sizeof(*p) + r->bytes);
	struct od_out_frame frame = { .len = r->bytes, .done = piece_left, .hint = p };
	Od__Header h = OD__HEADER__INIT;
	Od__Chunk body = OD__CHUNK__INIT;
	struct od_err err;
	int rc = p == NULL ? od_fail(&err, OD_ERR_NOMEM, "the store has no memory for %u bytes", r->bytes) :
			     read_piece(s, r, p->data, &body.xxh3, &err);

	body.request = r->request;
	h.body_case = OD__HEADER__BODY_CHUNK;
	h.chunk = &body;
	if (rc == OD_OK) {
		*p = (struct store_piece){ .store = s, .worker = w, .bytes = r->bytes };
		frame.bytes = p->data;
		rc = send(s, &w->route, &h, &frame);
		if (rc == OD_OK) {
			atomic_fetch_add(&s->served_bytes, r->bytes);
			return;
		}
		odm_store_queue_drop(w); /* it is gone: with what it had asked for */
	} else {
		od_log_limited(OD_LOG_ERROR, "store: %s", err.msg);
		send_refusal(s, &w->route, r->request, &err);
	}
	odm_store_queue_done(w, r->bytes);
	free(p);
}

/* ---- requests ---- */

static int check_fetch(const struct odm_store *s, const struct od_msg *m, struct od_err *err)
{
	if (m->header->session != s->session)
		return od_fail(err, OD_ERR_MISMATCH, "the store was restarted: send STORE_HELLO again");
	return od_store_check_fetch(m->header->fetch, m->n_frames, s->bytes, err);
}

static void on_fetch(struct odm_store *s, const struct od_msg *m)
{
	const Od__Fetch *f = m->header->fetch;
	const struct odm_store_request r = { f->request, f->offset, f->file, f->bytes };
	struct od_err err;
	int rc = check_fetch(s, m, &err);

	if (rc == OD_OK && odm_store_queue_add(&s->queue, &m->route, &r) != OD_OK)
		rc = od_fail(&err, OD_ERR_BUSY, "the store is busy: %d requests of %d workers at a time",
			     OD_STORE_MAX_OPEN, ODM_STORE_WORKERS);
	if (rc != OD_OK)
		send_refusal(s, &m->route, f->request, &err);
}

static void on_message(struct odm_store *s, const struct od_msg *m)
{
	char name[64];

	if (m->header->body_case == OD__HEADER__BODY_STORE_HELLO) {
		od_log(OD_LOG_DEBUG, "store: worker \"%s\" connected",
		       od_peer_text(m->header->store_hello->host_name, name, sizeof(name)));
		send_welcome(s, &m->route); /* to any version: it says which this is */
	} else if (m->header->version != OD_PROTOCOL_VERSION || m->header->body_case != OD__HEADER__BODY_FETCH) {
		od_log_limited(OD_LOG_WARN,
			       "store: dropped %s of protocol version %u: only STORE_HELLO and FETCH of %d belong "
			       "here",
			       od_body_name(m->header->body_case), m->header->version, OD_PROTOCOL_VERSION);
	} else {
		on_fetch(s, m);
	}
}

/* True: there may be more. */
static bool receive(struct odm_store *s)
{
	for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
		struct od_err err = { 0 };
		struct od_msg m;
		int rc = od_wire_recv(s->socket, true, &m, &err);

		if (rc == OD_ERR_PROTOCOL)
			od_log_limited(OD_LOG_WARN, "store: dropped %s", err.msg);
		else if (rc != OD_OK)
			return false;
		else
			on_message(s, &m);
		od_msg_fini(&m);
	}
	return true;
}

/* True: there is more that can be served now. */
static bool serve_some(struct odm_store *s)
{
	struct odm_store_request r;

	for (int i = 0; i < PIECES_AT_ONCE; i++) {
		struct odm_store_worker *w = odm_store_queue_take(&s->queue, &r);

		if (w == NULL)
			return false;
		serve(s, w, &r);
	}
	return true;
}

/* ---- the thread ---- */

int odm_store_admit(struct odm_store *s, const struct od_keys *keys, const struct od_hosts *hosts, struct od_err *err)
{
	uint8_t *key = malloc((keys->peers.n + hosts->n + 1) * OD_KEY_BYTES);
	size_t n = 0;
	int rc;

	if (key == NULL)
		return od_fail(err, OD_ERR_NOMEM, "store: keys");
	for (size_t i = 0; i < keys->peers.n; i++)
		memcpy(key + n++ * OD_KEY_BYTES, keys->peers.peer[i].key, OD_KEY_BYTES);
	for (size_t i = 0; i < hosts->n; i++) {
		if (hosts->host[i].has_key)
			memcpy(key + n++ * OD_KEY_BYTES, hosts->host[i].key, OD_KEY_BYTES);
	}
	rc = od_gate_admit(s->gate, key, n, "the hosts file or the peers file", err);
	free(key);
	return rc;
}

static int open_gate(struct odm_store *s, struct od_err *err)
{
	int rc = od_gate_new(&s->gate, s->context, &s->keys->own, err);

	return rc == OD_OK ? odm_store_admit(s, s->keys, s->hosts, err) : rc;
}

static int open_socket(struct odm_store *s, struct od_err *err)
{
	uint16_t port;
	int rc;

	s->context = od_zmq_context();
	if (s->context == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no ZeroMQ context: %s", zmq_strerror(errno));
	rc = s->keys != NULL ? open_gate(s, err) : OD_OK;
	if (rc == OD_OK)
		rc = od_bind_store(s->context, s->address.host, s->address.port, s->gate, &s->socket, &port, err);
	return rc == OD_OK && s->gate != NULL ? od_gate_start(s->gate, err) : rc;
}

static void *store_main(void *arg)
{
	struct odm_store *s = arg;
	uint64_t watch_ns = 0;
	bool more = false;

	/* Before the socket: ZeroMQ's I/O thread inherits it. On Linux this is the thread's own priority. */
	if (setpriority(PRIO_PROCESS, 0, NICE) != 0)
		od_log(OD_LOG_DEBUG, "store: cannot lower its priority: %s", strerror(errno));
	s->open_rc = open_socket(s, &s->open_err);
	sem_post(&s->opened);
	while (s->open_rc == OD_OK && !atomic_load(&s->stop)) {
		zmq_pollitem_t item[] = { { .socket = s->socket, .events = ZMQ_POLLIN },
					  { .fd = s->wake_fd, .events = ZMQ_POLLIN } };
		eventfd_t n;

		if (od_now_ns() >= watch_ns) {
			od_descriptors_watch();
			watch_ns = od_now_ns() + WATCH_MS * OD_NS_PER_MS;
		}
		if (zmq_poll(item, 2, more ? 0 : WATCH_MS) > 0 && item[1].revents != 0)
			eventfd_read(s->wake_fd, &n);
		more = receive(s);
		more = serve_some(s) || more;
	}
	od_gate_free(s->gate);
	od_close_socket(s->socket);
	while (s->context != NULL && zmq_ctx_term(s->context) != 0 && errno == EINTR)
		;
	return NULL;
}

static int start(struct odm_store *s, struct od_err *err)
{
	if (sodium_init() < 0)
		return od_fail(err, OD_ERR_INTERNAL, "no random numbers");
	do {
		randombytes_buf(&s->session, sizeof(s->session));
	} while (s->session == 0);
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->wake_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "store: no event descriptor");
	if (pthread_create(&s->thread, NULL, store_main, s) != 0)
		return od_fail(err, OD_ERR_NOMEM, "cannot start the store's thread");
	pthread_setname_np(s->thread, "od-store");
	s->started = true;
	while (sem_wait(&s->opened) != 0 && errno == EINTR)
		;
	if (s->open_rc != OD_OK)
		*err = s->open_err;
	return s->open_rc;
}

int odm_store_open(struct odm_store **out, const struct od_pack *pack, const char *address, const struct od_keys *keys,
		   const struct od_hosts *hosts, struct od_err *err)
{
	struct odm_store *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "store");
	s->pack = pack;
	s->keys = keys;
	s->hosts = hosts;
	s->wake_fd = -1;
	for (uint32_t i = 0; i < OD_STORE_EXPERTS; i++)
		s->file[i].fd = -1;
	sem_init(&s->opened, 0, 0);
	od_pack_fingerprint_bytes(pack, s->fingerprint);
	rc = od_store_address(&s->address, address, "--serve-store", err);
	if (rc == OD_OK)
		rc = open_files(s, err);
	if (rc == OD_OK)
		rc = start(s, err);
	if (rc != OD_OK) {
		odm_store_close(s);
		return rc;
	}
	od_log(OD_LOG_INFO, "the store listens on %s port %u", s->address.host, (unsigned)s->address.port);
	*out = s;
	return OD_OK;
}

uint64_t odm_store_served_bytes(const struct odm_store *s)
{
	return atomic_load(&s->served_bytes);
}

void odm_store_close(struct odm_store *s)
{
	if (s == NULL)
		return;
	if (s->started) {
		atomic_store(&s->stop, true);
		wake(s);
		pthread_join(s->thread, NULL);
	}
	for (uint32_t i = 0; i < OD_STORE_EXPERTS; i++) {
		if (s->file[i].fd >= 0)
			close(s->file[i].fd);
	}
	if (s->wake_fd >= 0)
		close(s->wake_fd);
	sem_destroy(&s->opened);
	free(s);
}
