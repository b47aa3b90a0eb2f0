#include "common/compute/cuda/cuda_device.h"

#include "common/base/mem.h"
#include "common/compute/cuda/cuda_exec.h"
#include "common/compute/cuda/cuda_experts.h"
#include "common/compute/cuda/cuda_load.h"
#include "common/compute/cuda/cuda_products.h"
#include "common/compute/cuda/cuda_plugin.h"
#include "common/compute/cuda/gpu_form.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

void od_cuda_note(struct od_cuda_device *c, enum od_queue q, int error, const char *what)
{
	struct od_cuda_queue *u = &c->queue[q];
	const char *kernel = error != 0 && q == OD_QUEUE_COMPUTE ? gpu_failed_kernel(u->stream) : NULL;

	if (error == 0)
		return;
	if (q == OD_QUEUE_LOADS)
		atomic_fetch_add_explicit(&c->base.load_errors, 1, memory_order_relaxed);
	pthread_mutex_lock(&u->lock);
	if (u->rc == OD_OK)
		u->rc = od_fail(&u->failed, OD_ERR_IO, "%s: %s: %s", c->base.name, kernel != NULL ? kernel : what,
				gpu_error(error));
	pthread_mutex_unlock(&u->lock);
}

void od_cuda_fail(struct od_cuda_device *c, const char *what)
{
	struct od_cuda_queue *u = &c->queue[OD_QUEUE_COMPUTE];

	pthread_mutex_lock(&u->lock);
	if (u->rc == OD_OK)
		u->rc = od_fail(&u->failed, OD_ERR_UNSUPPORTED, "%s: %s", c->base.name, what);
	pthread_mutex_unlock(&u->lock);
}

void od_cuda_no_memory(struct od_cuda_device *c, const char *for_what, uint64_t bytes)
{
	struct od_cuda_queue *u = &c->queue[OD_QUEUE_COMPUTE];
	struct gpu_about about;

	gpu_look(c->gpu, &about);
	pthread_mutex_lock(&u->lock);
	if (u->rc == OD_OK)
		u->rc = od_fail(&u->failed, OD_ERR_NOMEM,
				"%s: no memory for %s: %" PRIu64 " bytes needed, %" PRIu64 " bytes free", c->base.name,
				for_what, bytes, about.free_bytes);
	pthread_mutex_unlock(&u->lock);
}

/* Looks for an error that a kernel reported. Later work may still run: a kernel writes kind last, and nothing while
 * kind is set. */
static void look_for_fault(struct od_cuda_device *c)
{
	struct od_cuda_queue *u = &c->queue[OD_QUEUE_COMPUTE];
	const uint32_t kind = __atomic_load_n(&c->fault->kind, __ATOMIC_ACQUIRE);
	struct gpu_fault f;

	if (kind == 0)
		return;
	f = *c->fault;
	__atomic_store_n(&c->fault->kind, 0, __ATOMIC_RELEASE);
	if (u->rc != OD_OK)
		return;
	if (kind == GPU_FAULT_RANGE)
		u->rc = od_fail(&u->failed, OD_ERR_RANGE, "expert: expected 0 to %u, found %u", f.n_experts - 1,
				f.expert);
	else
		u->rc = od_fail(&u->failed, OD_ERR_RANGE, "a row has expert %u twice", f.expert);
}

/* ---- memory ----
 *
 * On a GPU that has no memory of its own, shared buffers are pinned host memory, which both sides reach by the same
 * address: what a reader reads to a slot is where the GPU needs it (ZipMoE, arXiv 2601.21198, section 3.3). Such a GPU
 * does not cache pinned memory ("CUDA for Tegra", memory types), so what it reads more than once a step is in memory of
 * its own. */

static int no_memory(struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	struct gpu_about about;

	if (atomic_load(&d->lost))
		return od_fail(err, OD_ERR_IO, "%s: no memory for %s: the GPU is lost after a fault", d->name, what);
	gpu_look(((struct od_cuda_device *)d)->gpu, &about);
	return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %s: %" PRIu64 " MiB needed, %" PRIu64 " MiB free", d->name,
		       what, (bytes >> 20) + 1, about.free_bytes >> 20);
}

static int make_buf(struct od_buf **out, struct od_device *d, uint64_t bytes, bool shared, const char *what,
		    struct od_err *err)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;
	struct od_buf *b = calloc(1, sizeof(*b));

	*out = NULL;
	if (b != NULL && bytes <= UINT64_MAX / 2)
		b->at = shared ? gpu_alloc_host(c->gpu, bytes + OD_PAD_BYTES) : gpu_alloc(c->gpu, bytes + OD_PAD_BYTES);
	if (b == NULL || b->at == NULL) {
		free(b);
		return no_memory(d, bytes, what, err);
	}
	b->device = d;
	b->bytes = bytes;
	b->shared = shared;
	*out = b;
	return OD_OK;
}

static int buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	return make_buf(out, d, bytes, false, what, err);
}

static int buf_new_shared(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			  struct od_err *err)
{
	return make_buf(out, d, bytes, d->shares, what, err);
}

/* ---- sparse memory ----
 *
 * Addresses stay as they are, with memory and without, so that kernels, tables and graphs may hold them (vAttention,
 * arXiv 2405.04437, section 5). */

struct sparse_buf {
	struct od_buf base;
	pthread_mutex_t lock; /* guards has */
	uint64_t n_granules;
	bool has[]; /* [n_granules]: memory */
};

static int buf_new_sparse(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			  struct od_err *err)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;
	const uint64_t granule = d->granule_bytes,
		       n = bytes <= UINT64_MAX / 2 ? od_round_up(bytes + OD_PAD_BYTES, granule) / granule : 0;
	struct sparse_buf *s = n > 0 ? calloc(1, sizeof(*s) + n * sizeof(*s->has)) : NULL;

	*out = NULL;
	if (s != NULL)
		s->base.at = gpu_reserve(c->gpu, n * granule);
	if (s == NULL || s->base.at == NULL) {
		free(s);
		return od_fail(err, OD_ERR_NOMEM, "%s: no addresses for %s: %" PRIu64 " MiB", d->name, what,
			       (bytes >> 20) + 1);
	}
	pthread_mutex_init(&s->lock, NULL);
	s->base.device = d;
	s->base.bytes = bytes;
	s->base.sparse = true;
	s->n_granules = n;
	*out = &s->base;
	return OD_OK;
}

/* The first granule at or behind i that has memory, or has none; at most end. */
static uint64_t find_granule(const struct sparse_buf *s, uint64_t i, uint64_t end, bool has)
{
	while (i < end && s->has[i] != has)
		i++;
	return i;
}

/* Commits or releases n granules, none of which is so yet. Under the lock. */
static int change_granules(struct sparse_buf *s, uint64_t first, uint64_t n, bool has)
{
	struct od_cuda_device *c = (struct od_cuda_device *)s->base.device;
	const uint64_t granule = c->base.granule_bytes, bytes = n * granule;
	char *at = s->base.at + first * granule;

	if (has) {
		const int error = gpu_commit(c->gpu, at, bytes);

		if (error != 0)
			return error;
		atomic_fetch_add(&c->base.buffer_bytes, bytes);
	} else {
		gpu_release(c->gpu, at, bytes);
		atomic_fetch_sub(&c->base.buffer_bytes, bytes);
	}
	memset(s->has + first, has, n * sizeof(*s->has));
	return 0;
}

/* Changes granules in [first, end) that are not so yet. */
static int change_all(struct sparse_buf *s, uint64_t first, uint64_t end, bool has)
{
	int error = 0;

	pthread_mutex_lock(&s->lock);
	for (uint64_t next; error == 0 && (first = find_granule(s, first, end, !has)) < end; first = next) {
		next = find_granule(s, first, end, has);
		error = change_granules(s, first, next - first, has);
	}
	pthread_mutex_unlock(&s->lock);
	return error;
}

static int commit(struct od_ref from, uint64_t n, const char *what, struct od_err *err)
{
	struct sparse_buf *s = (struct sparse_buf *)from.buf;
	struct od_device *d = from.buf->device;
	uint64_t end;
	int error;

	if (!from.buf->sparse)
		return OD_OK;
	end = od_round_up(from.at + n, d->granule_bytes) / d->granule_bytes;
	assert(end <= s->n_granules);
	error = change_all(s, from.at / d->granule_bytes, end, true);
	if (error == 0)
		return OD_OK;
	/* At OD_ERR_NOMEM callers make others give memory back, which helps against no other error. */
	if (gpu_lacks_memory(error))
		return no_memory(d, n, what, err);
	return od_fail(err, OD_ERR_IO, "%s: memory for %s: %s", d->name, what, gpu_error(error));
}

static void release(struct od_ref from, uint64_t n)
{
	struct sparse_buf *s = (struct sparse_buf *)from.buf;
	const uint64_t granule = from.buf->device->granule_bytes, end = (from.at + n) / granule;

	if (from.buf->sparse)
		(void)change_all(s, od_round_up(from.at, granule) / granule, end < s->n_granules ? end : s->n_granules,
				 false);
}

static uint64_t free_now_bytes(struct od_device *d)
{
	struct gpu_about about;

	gpu_look(((struct od_cuda_device *)d)->gpu, &about);
	return about.free_bytes;
}

static void free_sparse(struct od_cuda_device *c, struct sparse_buf *s)
{
	(void)change_all(s, 0, s->n_granules, false);
	gpu_unreserve(c->gpu, s->base.at, s->n_granules * c->base.granule_bytes);
	pthread_mutex_destroy(&s->lock);
}

static void buf_free(struct od_buf *b)
{
	struct od_cuda_device *c = (struct od_cuda_device *)b->device;

	if (b->sparse)
		free_sparse(c, (struct sparse_buf *)b);
	else if (b->shared)
		gpu_free_host(c->gpu, b->at);
	else
		gpu_free(c->gpu, b->at);
	free(b);
	atomic_fetch_add(&c->n_freed, 1);
}

static void *map(struct od_ref r)
{
	return r.buf->shared ? od_cuda_at(r) : NULL;
}

static void *host_new(struct od_device *d, uint64_t bytes)
{
	return gpu_alloc_host(((struct od_cuda_device *)d)->gpu, bytes);
}

static void host_free(struct od_device *d, void *at)
{
	gpu_free_host(((struct od_cuda_device *)d)->gpu, at);
}

/* ---- queues ---- */

static void put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;

	od_cuda_begin(c, q);
	od_cuda_before_copy(c, q, od_cuda_at(to), n);
	od_cuda_note(c, q, gpu_copy(c->queue[q].stream, od_cuda_at(to), from, n, GPU_TO), "copy to the GPU");
	od_cuda_end(c, q);
}

static void get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;

	od_cuda_begin(c, q);
	od_cuda_before_copy(c, q, od_cuda_at(from), n);
	od_cuda_note(c, q, gpu_copy(c->queue[q].stream, to, od_cuda_at(from), n, GPU_FROM), "copy from the GPU");
	od_cuda_end(c, q);
}

static void run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;

	od_cuda_begin(c, q);
	od_cuda_run(c, q, op);
	od_cuda_end(c, q);
}

void od_cuda_begin(struct od_cuda_device *c, enum od_queue q)
{
	pthread_mutex_lock(&c->queue[q].order);
}

void od_cuda_end(struct od_cuda_device *c, enum od_queue q)
{
	c->queue[q].given++;
	pthread_mutex_unlock(&c->queue[q].order);
}

/* The event of a ticket: tickets are marked when they are drawn; of those that are forgotten a later one serves. NULL:
 * nothing was given. order held. */
static struct gpu_event *event_of(struct od_cuda_queue *u, uint64_t ticket)
{
	struct od_cuda_mark *found = NULL;

	for (size_t i = 0; i < OD_CUDA_MARKS; i++)
		if (u->mark[i].ticket >= ticket && u->mark[i].ticket > 0 &&
		    (found == NULL || u->mark[i].ticket < found->ticket))
			found = &u->mark[i];
	return found != NULL && ticket > 0 ? found->event : NULL;
}

static uint64_t ticket(struct od_device *d, enum od_queue q)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;
	struct od_cuda_queue *u = &c->queue[q];
	uint64_t t;

	pthread_mutex_lock(&u->order);
	t = u->given;
	if (t > 0 && u->mark[u->newest].ticket != t) {
		u->newest = (u->newest + 1) % OD_CUDA_MARKS;
		u->mark[u->newest].ticket = t;
		od_cuda_note(c, q, gpu_event_record(u->mark[u->newest].event, od_cuda_last(c, q)), "event");
	}
	pthread_mutex_unlock(&u->order);
	return t;
}

/* An error of work that was accepted ends the GPU's context. */
static void wait_event(struct od_cuda_device *c, enum od_queue q, struct gpu_event *e)
{
	const int error = gpu_event_wait(e);

	if (error != 0)
		atomic_store(&c->base.lost, true);
	od_cuda_note(c, q, error, "its work");
}

static int wait_for(struct od_device *d, enum od_queue q, uint64_t t, struct od_err *err)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;
	struct od_cuda_queue *u = &c->queue[q];
	struct gpu_event *e;
	int rc;

	pthread_mutex_lock(&u->order);
	e = event_of(u, t);
	pthread_mutex_unlock(&u->order);
	if (e != NULL)
		wait_event(c, q, e);
	pthread_mutex_lock(&u->lock);
	if (q == OD_QUEUE_COMPUTE)
		look_for_fault(c);
	rc = u->rc;
	if (rc != OD_OK && err != NULL) {
		*err = u->failed;
		u->rc = OD_OK;
	}
	pthread_mutex_unlock(&u->lock);
	return rc;
}

void od_cuda_finish(struct od_cuda_device *c)
{
	od_cuda_launched(c, gpu_event_record(c->finished, od_cuda_stream(c)), "event");
	wait_event(c, OD_QUEUE_COMPUTE, c->finished);
}

static void after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t t)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;
	struct gpu_event *e;

	pthread_mutex_lock(&c->queue[other].order);
	e = event_of(&c->queue[other], t);
	pthread_mutex_unlock(&c->queue[other].order);
	if (e == NULL)
		return;
	od_cuda_begin(c, q);
	c->queue[q].copies = true; /* merges follow it, too */
	od_cuda_note(c, q, gpu_stream_after(c->queue[q].stream, e), "event");
	od_cuda_end(c, q);
}

/* ---- life ---- */

static void free_queue(struct od_cuda_queue *u)
{
	for (size_t i = 0; i < OD_CUDA_MARKS; i++)
		gpu_event_free(u->mark[i].event);
	for (size_t i = 0; i < OD_CUDA_MERGES; i++)
		gpu_event_free(u->merge[i].done);
	gpu_event_free(u->copied);
	gpu_stream_free(u->merges);
	gpu_stream_free(u->stream);
	pthread_mutex_destroy(&u->lock);
	pthread_mutex_destroy(&u->order);
}

static void free_device(struct od_device *d)
{
	struct od_cuda_device *c = (struct od_cuda_device *)d;

	for (int q = 0; q < OD_N_QUEUES; q++)
		free_queue(&c->queue[q]);
	gpu_free(c->gpu, c->scratch);
	od_cuda_free_tables(c);
	gpu_event_free(c->finished);
	gpu_free_host(c->gpu, c->fault);
	gpu_close(c->gpu);
	free(c);
}

static int make_merges(struct od_cuda_device *c, struct od_cuda_queue *u)
{
	int error = gpu_stream_new(&u->merges, c->gpu, false);

	if (error == 0)
		error = gpu_event_new(&u->copied, c->gpu, true);
	for (size_t i = 0; error == 0 && i < OD_CUDA_MERGES; i++)
		error = gpu_event_new(&u->merge[i].done, c->gpu, true);
	return error;
}

static int make_queue(struct od_cuda_device *c, enum od_queue q, struct od_err *err)
{
	struct od_cuda_queue *u = &c->queue[q];
	int error = gpu_stream_new(&u->stream, c->gpu, q == OD_QUEUE_COMPUTE);

	/* Several loader threads wait at once, and the CPU has other work; the compute queue has one thread, which must
	 * go on at once. */
	for (size_t i = 0; error == 0 && i < OD_CUDA_MARKS; i++)
		error = gpu_event_new(&u->mark[i].event, c->gpu, q == OD_QUEUE_LOADS);
	if (error == 0 && q == OD_QUEUE_LOADS)
		error = make_merges(c, u);
	return error == 0 ? OD_OK : od_fail(err, OD_ERR_IO, "%s: %s", c->base.name, gpu_error(error));
}

static const struct od_device_ops ops = {
	.buf_new = buf_new,
	.buf_new_shared = buf_new_shared,
	.buf_new_sparse = buf_new_sparse,
	.buf_free = buf_free,
	.commit = commit,
	.release = release,
	.free_now_bytes = free_now_bytes,
	.map = map,
	.host_new = host_new,
	.host_free = host_free,
	.put = put,
	.get = get,
	.run = run,
	.supports = od_cuda_supports,
	.ticket = ticket,
	.wait = wait_for,
	.after = after,
	.free = free_device,
};

static int open_device(struct od_device **out, unsigned index, enum od_cpu cpu, unsigned n_threads, const char *name,
		       struct od_err *err)
{
	struct od_cuda_device *c = calloc(1, sizeof(*c));
	struct gpu_about about;
	int rc;

	(void)cpu;
	(void)n_threads;
	(void)name;
	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a device");
	rc = gpu_open(&c->gpu, index, err);
	if (rc != OD_OK) {
		free(c);
		return rc;
	}
	for (int q = 0; q < OD_N_QUEUES; q++) {
		pthread_mutex_init(&c->queue[q].lock, NULL);
		pthread_mutex_init(&c->queue[q].order, NULL);
	}
	gpu_look(c->gpu, &about);
	c->ops = ops;
	if (about.granule_bytes == 0) {
		c->ops.buf_new_sparse = NULL;
		c->ops.commit = NULL;
		c->ops.release = NULL;
		c->ops.free_now_bytes = NULL;
	}
	c->base.ops = &c->ops;
	snprintf(c->base.name, sizeof(c->base.name), "cuda:%u %.36s", index, about.name);
	for (size_t i = 0; i < 2; i++) {
		c->base.kernels[i] = "cuda";
		c->base.kernel_class[i] = OD_CLASS_FMA16;
	}
	c->base.shares = about.unified;
	c->base.likes_planes = gpu_likes_planes(&about);
	c->base.cache_bytes = about.cache_bytes;
	c->n_sm = about.n_sm;
	c->base.memory_bytes = about.free_bytes;
	c->base.used_bytes = about.total_bytes - about.free_bytes;
	c->base.own_bytes = OD_CUDA_SCRATCH_BYTES;
	c->base.page_bytes = about.page_bytes;
	c->base.granule_bytes = about.granule_bytes;
	for (int q = 0; rc == OD_OK && q < OD_N_QUEUES; q++)
		rc = make_queue(c, (enum od_queue)q, err);
	if (rc == OD_OK && gpu_event_new(&c->finished, c->gpu, false) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no event", c->base.name);
	if (rc == OD_OK) {
		c->scratch = gpu_alloc(c->gpu, OD_CUDA_SCRATCH_BYTES);
		if (c->scratch == NULL)
			rc = od_fail(err, OD_ERR_NOMEM,
				     "%s: too little memory: %" PRIu64 " bytes needed, %" PRIu64 " bytes free",
				     c->base.name, (uint64_t)OD_CUDA_SCRATCH_BYTES, about.free_bytes);
	}
	if (rc == OD_OK) {
		c->fault = gpu_alloc_host(c->gpu, sizeof(*c->fault));
		if (c->fault == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "%s: no host memory for copies: not even %zu bytes, pinned",
				     c->base.name, sizeof(*c->fault));
	}
	if (rc != OD_OK) {
		free_device(&c->base);
		return rc;
	}
	*out = &c->base;
	return OD_OK;
}

__attribute__((visibility("default"))) const struct od_cuda_plugin od_cuda_plugin = {
	.version = OD_CUDA_PLUGIN_VERSION,
	.open = open_device,
};
