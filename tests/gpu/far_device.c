#include "tests/gpu/far_device.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_exec.h"
#include "common/compute/device_internal.h"
#include "tests/gpu/late_queues.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNWRITTEN 0xa5 /* in the target of a get that has not been waited for, and in what was released */

struct far_buf {
	struct od_buf base; /* first; base.at: what must not be touched */
	char *secret;
	size_t mapped_bytes;
};

struct far_device {
	struct od_device base;
	struct od_cpu_exec exec;
	struct od_late *late; /* queues by their number */
};

enum work_kind { WORK_PUT, WORK_GET, WORK_RUN };

struct work {
	enum work_kind kind;
	struct far_device *f;
	struct od_ref at;
	const void *from;
	void *to;
	size_t n;
	struct od_op op;
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

/* ---- queues ---- */

static int carry_out(void *arg, struct od_err *err)
{
	const struct work *w = arg;

	switch (w->kind) {
	case WORK_PUT: memcpy(secret(w->at), w->from, w->n); break;
	case WORK_GET: memcpy(w->to, secret(w->at), w->n); break;
	case WORK_RUN: return od_cpu_exec_run(&w->f->exec, &w->op, err);
	}
	return OD_OK;
}

static void give(struct od_device *d, enum od_queue q, struct work w)
{
	w.f = (struct far_device *)d;
	od_late_give(w.f->late, q, carry_out, &w, sizeof(w));
}

static void put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	give(d, q, (struct work){ .kind = WORK_PUT, .at = to, .from = from, .n = n });
}

static void get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	memset(to, UNWRITTEN, n);
	give(d, q, (struct work){ .kind = WORK_GET, .at = from, .to = to, .n = n });
}

static void run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	give(d, q, (struct work){ .kind = WORK_RUN, .op = *op });
}

static void after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t t)
{
	od_late_after(((struct far_device *)d)->late, q, other, t);
}

static uint64_t ticket(struct od_device *d, enum od_queue q)
{
	return od_late_ticket(((struct far_device *)d)->late, q);
}

static int wait_for(struct od_device *d, enum od_queue q, uint64_t t, struct od_err *err)
{
	return od_late_wait(((struct far_device *)d)->late, q, t, err);
}

static bool may_use(const void *arg, const void *what)
{
	const struct work *w = arg;
	const struct od_buf *b = what;
	const struct od_op *op = &w->op;

	switch (w->kind) {
	case WORK_PUT:
	case WORK_GET: return w->at.buf == b;
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
	if (od_late_any(((struct far_device *)b->device)->late, may_use, b))
		abort();
	unmap((struct far_buf *)b);
}

/* The contents of the released part are lost. */
static void release(struct od_ref from, uint64_t n)
{
	memset(((struct far_buf *)from.buf)->secret + from.at, UNWRITTEN, n);
}

/* ---- life ---- */

static void free_device(struct od_device *d)
{
	struct far_device *f = (struct far_device *)d;

	od_late_free(f->late);
	od_cpu_exec_fini(&f->exec);
	free(f);
}

static const struct od_device_ops ops = {
	.buf_new = buf_new,
	.buf_free = buf_free,
	.release = release,
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
	rc = od_late_new(&f->late, 0, err);
	if (rc != OD_OK) {
		od_cpu_exec_fini(&f->exec);
		free(f);
		return rc;
	}
	f->base.ops = &ops;
	od_cpu_exec_describe(&f->exec, "far", &f->base);
	*out = &f->base;
	return OD_OK;
}
