#include "common/compute/cpu/cpu_device.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu_exec.h"
#include "common/compute/device_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct cpu_device {
	struct od_device base;
	struct od_cpu_exec exec;
	_Atomic uint64_t given[OD_N_QUEUES]; /* calls that queued work; all of it is done */
	struct od_err failed[OD_N_QUEUES]; /* rc 0: nothing has */
	int rc[OD_N_QUEUES];
};

/* Large ones are whole pages straight from the kernel: they go back to it when they are freed, and files are read into
 * them past the page cache. */
#define MAPPED_BYTES (32u << 10)

static int new_buf(struct od_buf **out, struct od_device *d, uint64_t bytes, void *(*map)(size_t bytes),
		   const char *what, struct od_err *err)
{
	struct od_buf *b = calloc(1, sizeof(*b));

	*out = NULL;
	if (b != NULL && bytes <= SIZE_MAX / 2)
		b->at = bytes >= MAPPED_BYTES ? map((size_t)bytes) : od_alloc((size_t)bytes);
	if (b == NULL || b->at == NULL) {
		free(b);
		return od_fail(err, OD_ERR_NOMEM, "no memory for %s: %" PRIu64 " bytes", what, bytes);
	}
	b->device = d;
	b->bytes = bytes;
	*out = b;
	return OD_OK;
}

static int buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	return new_buf(out, d, bytes, od_map, what, err);
}

static int buf_new_sparse(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			  struct od_err *err)
{
	return new_buf(out, d, bytes, od_map_sparse, what, err);
}

static void buf_free(struct od_buf *b)
{
	if (b->bytes >= MAPPED_BYTES)
		od_unmap(b->at, b->bytes);
	else
		od_free(b->at);
	free(b);
}

static void release(struct od_ref from, uint64_t n)
{
	if (from.buf->bytes >= MAPPED_BYTES)
		od_map_release(from.buf->at + from.at, n);
}

static void *map(struct od_ref r)
{
	return r.buf->at + r.at;
}

static void *address(struct od_ref r)
{
	return r.buf == NULL ? NULL : r.buf->at + r.at;
}

static void put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	((struct cpu_device *)d)->given[q]++;
	memcpy(map(to), from, n);
}

static void get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	((struct cpu_device *)d)->given[q]++;
	memcpy(to, map(from), n);
}

static void run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	struct cpu_device *c = (struct cpu_device *)d;
	struct od_err err;
	int rc = od_cpu_exec_run(&c->exec, op, &err);

	c->given[q]++;
	if (rc == OD_OK || c->rc[q] != OD_OK)
		return;
	c->rc[q] = rc;
	c->failed[q] = err;
}

static uint64_t ticket(struct od_device *d, enum od_queue q)
{
	return ((struct cpu_device *)d)->given[q];
}

static int wait_for(struct od_device *d, enum od_queue q, uint64_t t, struct od_err *err)
{
	struct cpu_device *c = (struct cpu_device *)d;
	int rc = c->rc[q];

	assert(t <= c->given[q]);
	if (rc == OD_OK || err == NULL)
		return rc;
	*err = c->failed[q];
	c->rc[q] = OD_OK;
	return rc;
}

static void after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t t)
{
	(void)d;
	(void)q;
	(void)other;
	(void)t;
}

static void free_device(struct od_device *d)
{
	struct cpu_device *c = (struct cpu_device *)d;

	od_cpu_exec_fini(&c->exec);
	free(c);
}

static const struct od_device_ops ops = {
	.buf_new = buf_new,
	.buf_new_sparse = buf_new_sparse,
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

int od_device_cpu_new(struct od_device **out, enum od_cpu cpu, unsigned n_threads, const char *name, struct od_err *err)
{
	struct cpu_device *c = calloc(1, sizeof(*c));
	int rc;

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a device");
	c->base.ops = &ops;
	c->base.maps = c->base.shares = true;
	c->exec.address = address;
	rc = od_cpu_exec_init(&c->exec, cpu, n_threads, name, err);
	if (rc != OD_OK) {
		free(c);
		return rc;
	}
	od_cpu_exec_describe(&c->exec, "cpu", &c->base);
	*out = &c->base;
	return OD_OK;
}
