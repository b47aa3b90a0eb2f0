#include "common/compute/far/far_device.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_exec.h"
#include "common/compute/device_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNWRITTEN 0xa5 /* in the target of a get that has not been waited for */

struct far_buf {
	struct od_buf base; /* first; base.at: what must not be touched */
	char *secret;
	size_t mapped_bytes;
};

enum work_kind { WORK_PUT, WORK_GET, WORK_RUN, WORK_AFTER };

struct work {
	struct work *next;
	enum work_kind kind;
	struct od_ref at;
	const void *from;
	void *to;
	size_t n;
	struct od_op op;
	enum od_queue other;
	uint64_t ticket;
};

struct queue {
	struct work *first, **end;
	uint64_t given, done, wanted; /* wanted: a wait needs the work up to here */
	struct od_err failed;
	int rc; /* OD_OK: nothing has failed since the last report */
};

struct far_device {
	struct od_device base;
	struct od_cpu_exec exec;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	struct queue queue[OD_N_QUEUES];
	bool stop;
	pthread_t thread;
};

/* ---- memory ---- */

static void *secret(struct od_ref r)
{
	return r.buf == NULL ? NULL : ((struct far_buf *)r.buf)->secret + r.at;
}

static void unmap(struct far_buf *b)
{
	if (b->base.at != NULL)
		munmap(b->base.at, b->mapped_bytes);
	if (b->secret != NULL)
		munmap(b->secret, b->mapped_bytes);
	free(b);
}

static void *map_once(struct far_buf *b, int fd, int prot)
{
	void *at = mmap(NULL, b->mapped_bytes, prot, MAP_SHARED | MAP_NORESERVE, fd, 0);

	return at != MAP_FAILED ? at : NULL;
}

static int buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	struct far_buf *b = calloc(1, sizeof(*b));
	int fd = -1;

	*out = NULL;
	if (b != NULL && bytes <= SIZE_MAX / 2) {
		b->mapped_bytes = (size_t)od_round_up(bytes + OD_PAD_BYTES, (uint64_t)sysconf(_SC_PAGESIZE));
		fd = memfd_create("od-far", MFD_CLOEXEC);
	}
	if (fd >= 0 && ftruncate(fd, (off_t)b->mapped_bytes) == 0) {
		b->base.at = map_once(b, fd, PROT_NONE);
		b->secret = map_once(b, fd, PROT_READ | PROT_WRITE);
	}
	if (fd >= 0)
		close(fd);
	if (b == NULL || b->base.at == NULL || b->secret == NULL) {
		if (b != NULL)
			unmap(b);
		return od_fail(err, OD_ERR_NOMEM, "no memory for %s: %" PRIu64 " bytes", what, bytes);
	}
	b->base.device = d;
	b->base.bytes = bytes;
	*out = &b->base;
	return OD_OK;
}

static void *map(struct od_ref r)
{
	(void)r;
	return NULL;
}

/* ---- its own thread ---- */

/* Not under the lock. */
static int carry_out(struct far_device *f, const struct work *w, struct od_err *err)
{
	switch (w->kind) {
	case WORK_PUT: memcpy(secret(w->at), w->from, w->n); break;
	case WORK_GET: memcpy(w->to, secret(w->at), w->n); break;
	case WORK_RUN: return od_cpu_exec_run(&f->exec, &w->op, err);
	case WORK_AFTER: break;
	}
	return OD_OK;
}

/* Called with the lock held. Returns the queue to take work from next; NULL: no caller waits, so nothing is done yet. */
static struct queue *next_queue(struct far_device *f)
{
	struct queue *q = NULL;

	for (int i = 0; q == NULL && i < OD_N_QUEUES; i++)
		q = f->queue[i].done < f->queue[i].wanted ? &f->queue[i] : NULL;
	/* Tickets are older than what waits for them, so this ends. */
	while (q != NULL && q->first->kind == WORK_AFTER && f->queue[q->first->other].done < q->first->ticket)
		q = &f->queue[q->first->other];
	return q;
}

static void do_first(struct far_device *f, struct queue *q)
{
	struct work *w = q->first;
	struct od_err err = { 0 };
	int rc;

	q->first = w->next;
	if (q->first == NULL)
		q->end = &q->first;
	pthread_mutex_unlock(&f->lock);
	rc = carry_out(f, w, &err);
	free(w);
	pthread_mutex_lock(&f->lock);
	if (rc != OD_OK && q->rc == OD_OK) {
		q->rc = rc;
		q->failed = err;
	}
	q->done++;
	pthread_cond_broadcast(&f->changed);
}

static void *work(void *arg)
{
	struct far_device *f = arg;

	pthread_mutex_lock(&f->lock);
	while (!f->stop) {
		struct queue *q = next_queue(f);

		if (q != NULL)
			do_first(f, q);
		else
			pthread_cond_wait(&f->changed, &f->lock);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

/* ---- queues ---- */

static void give(struct od_device *d, enum od_queue q, const struct work *work)
{
	struct far_device *f = (struct far_device *)d;
	struct work *w = malloc(sizeof(*w));

	if (w == NULL)
		abort(); /* a device for tests */
	*w = *work;
	w->next = NULL;
	pthread_mutex_lock(&f->lock);
	*f->queue[q].end = w;
	f->queue[q].end = &w->next;
	f->queue[q].given++;
	pthread_mutex_unlock(&f->lock);
}

static void put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	give(d, q, &(struct work){ .kind = WORK_PUT, .at = to, .from = from, .n = n });
}

static void get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	memset(to, UNWRITTEN, n);
	give(d, q, &(struct work){ .kind = WORK_GET, .at = from, .to = to, .n = n });
}

static void run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	give(d, q, &(struct work){ .kind = WORK_RUN, .op = *op });
}

static void after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t t)
{
	give(d, q, &(struct work){ .kind = WORK_AFTER, .other = other, .ticket = t });
}

static uint64_t ticket(struct od_device *d, enum od_queue q)
{
	struct far_device *f = (struct far_device *)d;
	uint64_t t;

	pthread_mutex_lock(&f->lock);
	t = f->queue[q].given;
	pthread_mutex_unlock(&f->lock);
	return t;
}

static int wait_for(struct od_device *d, enum od_queue i, uint64_t t, struct od_err *err)
{
	struct far_device *f = (struct far_device *)d;
	struct queue *q = &f->queue[i];
	int rc;

	pthread_mutex_lock(&f->lock);
	assert(t <= q->given);
	q->wanted = q->wanted > t ? q->wanted : t;
	pthread_cond_broadcast(&f->changed);
	while (q->done < t)
		pthread_cond_wait(&f->changed, &f->lock);
	rc = q->rc;
	if (rc != OD_OK && err != NULL) {
		*err = q->failed;
		q->rc = OD_OK;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

static bool may_use(const struct work *w, const struct od_buf *b)
{
	const struct od_op *op = &w->op;

	switch (w->kind) {
	case WORK_PUT:
	case WORK_GET: return w->at.buf == b;
	case WORK_AFTER: return false;
	case WORK_RUN: break;
	}
	if (op->kind == OD_OP_COPY)
		return op->copy.from.buf == b || op->copy.to.buf == b;
	if (op->kind == OD_OP_MERGE)
		return op->merge.sm.buf == b || op->merge.e.buf == b || op->merge.to.buf == b;
	return true; /* the compute queue's, whose thread waits for what it has given before anything is freed */
}

/* Whoever frees has waited for all that might use the buffer. */
static void buf_free(struct od_buf *b)
{
	struct far_device *f = (struct far_device *)b->device;

	pthread_mutex_lock(&f->lock);
	for (int i = 0; i < OD_N_QUEUES; i++)
		for (const struct work *w = f->queue[i].first; w != NULL; w = w->next)
			if (may_use(w, b))
				abort();
	pthread_mutex_unlock(&f->lock);
	unmap((struct far_buf *)b);
}

/* ---- life ---- */

static void free_device(struct od_device *d)
{
	struct far_device *f = (struct far_device *)d;

	pthread_mutex_lock(&f->lock);
	f->stop = true;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	for (int i = 0; i < OD_N_QUEUES; i++)
		for (struct work *w = f->queue[i].first, *next; w != NULL; w = next) {
			next = w->next;
			free(w);
		}
	od_cpu_exec_fini(&f->exec);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static const struct od_device_ops ops = {
	.buf_new = buf_new,
	.buf_free = buf_free,
	.map = map,
	.put = put,
	.get = get,
	.run = run,
	.ticket = ticket,
	.wait = wait_for,
	.after = after,
	.free = free_device,
};

int od_device_far_new(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err)
{
	struct far_device *f = calloc(1, sizeof(*f));
	int rc;

	*out = NULL;
	if (f == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a device");
	f->exec.address = secret;
	rc = od_cpu_exec_init(&f->exec, cpu, n_threads, name, err);
	if (rc != OD_OK) {
		free(f);
		return rc;
	}
	f->base.ops = &ops;
	od_cpu_exec_describe(&f->exec, "far", &f->base);
	for (int i = 0; i < OD_N_QUEUES; i++)
		f->queue[i].end = &f->queue[i].first;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	if (pthread_create(&f->thread, NULL, work, f) != 0) {
		od_cpu_exec_fini(&f->exec);
		free(f);
		return od_fail(err, OD_ERR_NOMEM, "no thread for a device");
	}
	*out = &f->base;
	return OD_OK;
}
