#include "common/compute/device_internal.h"

#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/compute/cards.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MEMORY_LEFT 64u /* one byte in so many of a GPU's free memory is left free */

void od_device_free(struct od_device *d)
{
	if (d != NULL)
		d->ops->free(d);
}

const char *od_device_name(const struct od_device *d)
{
	return d->name;
}

const char *od_device_kernels(const struct od_device *d, enum od_profile profile)
{
	return d->kernels[profile - 1];
}

const char *od_device_kernel_class(const struct od_device *d, enum od_profile profile)
{
	return d->kernel_class[profile - 1];
}

bool od_device_likes_planes(const struct od_device *d, uint64_t bytes)
{
	return d->likes_planes && bytes > d->cache_bytes;
}

static uint64_t in_pages(const struct od_device *d, uint64_t bytes)
{
	return d->page_bytes > 0 && bytes > d->page_bytes / 2 ? od_round_up(bytes, d->page_bytes) : bytes;
}

uint64_t od_buf_memory(const struct od_device *d, uint64_t bytes)
{
	const uint64_t n = od_map_bytes(bytes);

	return d == NULL || d->shares ? n : in_pages(d, n);
}

bool od_device_commits(const struct od_device *d)
{
	return d != NULL && d->ops->commit != NULL;
}

bool od_device_lends(const struct od_device *d, uint64_t bytes)
{
	if (od_device_commits(d))
		return bytes > d->granule_bytes / 2;
	return d == NULL || d->ops->release != NULL;
}

uint64_t od_buf_used_memory(const struct od_device *d, uint64_t bytes, uint64_t used)
{
	if (!od_device_lends(d, bytes))
		return od_buf_memory(d, bytes);
	if (!od_device_commits(d))
		return od_map_used_bytes(bytes, used);
	return used > 0 ? od_device_granules(d, used + OD_PAD_BYTES) : 0;
}

uint64_t od_device_granules(const struct od_device *d, uint64_t n)
{
	return od_device_commits(d) ? od_round_up(n, d->granule_bytes) : n;
}

int od_ref_commit(struct od_ref from, uint64_t n, const char *what, struct od_err *err)
{
	const struct od_device *d = from.buf->device;

	return d->ops->commit != NULL ? d->ops->commit(from, n, what, err) : OD_OK;
}

void od_ref_release(struct od_ref from, uint64_t n)
{
	if (from.buf->device->ops->release != NULL)
		from.buf->device->ops->release(from, n);
}

static uint64_t taken_by(const struct od_buf *b)
{
	if (b->sparse)
		return 0;
	return b->shared ? b->bytes : in_pages(b->device, b->bytes + OD_PAD_BYTES);
}

/* Several cards as one make a buffer on one of them, which has counted it. */
static int counted(int rc, const struct od_buf *b, struct od_device *d)
{
	if (rc == OD_OK && b->device == d)
		atomic_fetch_add(&d->buffer_bytes, taken_by(b));
	return rc;
}

int od_buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	const int rc = d->ops->buf_new(out, d, bytes, what, err);

	return counted(rc, *out, d);
}

int od_buf_new_shared(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	struct od_device *card = od_device_card(d, 0);
	int rc;

	if (card->ops->buf_new_shared == NULL)
		return od_buf_new(out, card, bytes, what, err);
	rc = card->ops->buf_new_shared(out, card, bytes, what, err);
	return counted(rc, *out, card);
}

int od_buf_new_sparse(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	struct od_device *card = od_device_card(d, 0);
	int rc;

	if (card->ops->buf_new_sparse == NULL)
		return od_buf_new(out, card, bytes, what, err);
	rc = card->ops->buf_new_sparse(out, card, bytes, what, err);
	return counted(rc, *out, card);
}

static void *host_new(struct od_device *d, uint64_t bytes)
{
	if (bytes > SIZE_MAX / 2)
		return NULL;
	return d->ops->host_new != NULL ? d->ops->host_new(d, bytes + OD_PAD_BYTES) : od_map((size_t)bytes);
}

int od_buf_new_on_host(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	struct od_buf *b;

	if (d->shares)
		return od_buf_new_shared(out, d, bytes, what, err);
	*out = NULL;
	b = calloc(1, sizeof(*b));
	if (b != NULL) {
		*b = (struct od_buf){ .device = d, .bytes = bytes };
		atomic_store(&b->stage, host_new(d, bytes));
	}
	if (b == NULL || atomic_load(&b->stage) == NULL) {
		free(b);
		return od_fail(err, OD_ERR_NOMEM, "%s: no host memory for copies: %s: %" PRIu64 " MiB needed%s",
			       d->name, what, (bytes >> 20) + 1, d->ops->host_new != NULL ? ", pinned" : "");
	}
	*out = b;
	return OD_OK;
}

int od_buf_new_over(struct od_buf **out, struct od_device *d, void *at, uint64_t bytes, struct od_err *err)
{
	struct od_buf *b = calloc(1, sizeof(*b));

	*out = b;
	if (b == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a buffer");
	assert(d->maps);
	*b = (struct od_buf){ .device = d, .bytes = bytes, .at = at, .borrowed = true };
	return OD_OK;
}

void od_buf_free(struct od_buf *b)
{
	if (b == NULL)
		return;
	od_buf_drop_stage(b);
	if (b->at != NULL && !b->borrowed) {
		atomic_fetch_sub(&b->device->buffer_bytes, taken_by(b));
		b->device->ops->buf_free(b);
	} else {
		free(b);
	}
}

uint64_t od_buf_bytes(const struct od_buf *b)
{
	return b->bytes;
}

struct od_device *od_buf_device(const struct od_buf *b)
{
	return b->device;
}

void *od_ref_map(struct od_ref r)
{
	assert(r.at <= r.buf->bytes);
	return r.buf->device->ops->map(r);
}

bool od_device_maps(const struct od_device *d)
{
	return d->maps;
}

bool od_device_shares(const struct od_device *d)
{
	return d->shares;
}

uint64_t od_staged_bytes(const struct od_device *d, uint64_t n)
{
	return d->shares ? n : 2 * n;
}

uint64_t od_device_own_bytes(const struct od_device *d)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < od_device_cards(d); i++)
		sum += od_device_card((struct od_device *)d, i)->own_bytes;
	return sum;
}

void od_device_log_memory(const struct od_device *d)
{
	for (unsigned i = 0; i < od_device_cards(d); i++) {
		const struct od_device *card = od_device_card((struct od_device *)d, i);
		char own[32], before[32];

		if (card->memory_bytes > 0)
			od_log(OD_LOG_INFO,
			       "%s: this process has taken %s of its memory; %s were in use before, by the context of this process "
			       "and other programs",
			       card->name,
			       od_format_bytes(card->own_bytes + atomic_load(&card->buffer_bytes), own, sizeof(own)),
			       od_format_bytes(card->used_bytes, before, sizeof(before)));
	}
}

static uint64_t own_memory(const struct od_device *d)
{
	uint64_t sum = 0;

	if (!d->shares)
		for (unsigned i = 0; i < od_device_cards(d); i++)
			sum += od_device_card((struct od_device *)d, i)->memory_bytes;
	return sum;
}

uint64_t od_device_free_bytes(const struct od_device *d)
{
	const uint64_t own = own_memory(d);

	if (d->assumed_free_bytes > 0)
		return d->assumed_free_bytes;
	return own > 0 ? own - own / MEMORY_LEFT : od_available_ram_bytes();
}

void od_device_assume_free(struct od_device *d, uint64_t bytes)
{
	d->assumed_free_bytes = bytes;
}

bool od_device_has_memory(const struct od_device *d)
{
	return own_memory(d) > 0;
}

uint64_t od_device_free_now_bytes(struct od_device *d)
{
	return d->ops->free_now_bytes != NULL ? d->ops->free_now_bytes(d) : 0;
}

const char *od_device_memory_name(const struct od_device *d, char *text, size_t size)
{
	snprintf(text, size, "on %s", od_device_has_memory(d) ? d->name : "this machine");
	return text;
}

void *od_host_new(struct od_device *d, uint64_t bytes)
{
	void *at = host_new(d, bytes);

	if (at == NULL)
		od_log(OD_LOG_ERROR, "%s: no host memory for copies: %" PRIu64 " MiB needed%s", d->name,
		       (bytes >> 20) + 1, d->ops->host_new != NULL ? ", pinned" : "");
	return at;
}

void od_host_free(struct od_device *d, void *at, uint64_t bytes)
{
	if (at != NULL && d->ops->host_free != NULL)
		d->ops->host_free(d, at);
	else
		od_unmap(at, (size_t)bytes);
}

void *od_ref_stage(struct od_ref r)
{
	void *map = od_ref_map(r);
	char *stage, *none = NULL;

	if (map != NULL)
		return map;
	stage = atomic_load_explicit(&r.buf->stage, memory_order_acquire);
	if (stage == NULL) {
		stage = od_host_new(r.buf->device, r.buf->bytes);
		if (stage != NULL && !atomic_compare_exchange_strong(&r.buf->stage, &none, stage)) {
			od_host_free(r.buf->device, stage, r.buf->bytes); /* another thread was first */
			stage = none;
		}
	}
	return stage != NULL ? stage + r.at : NULL;
}

void od_ref_push(struct od_ref r, size_t n, enum od_queue q)
{
	const char *stage = atomic_load_explicit(&r.buf->stage, memory_order_acquire);

	if (stage != NULL)
		od_device_put(r.buf->device, q, r, stage + r.at, n);
}

void od_buf_drop_stage(struct od_buf *b)
{
	char *stage = atomic_exchange(&b->stage, NULL);

	od_host_free(b->device, stage, b->bytes);
}

void od_device_put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	assert((to.buf->device == d || od_device_cards(d) > 1) && n <= to.buf->bytes && to.at <= to.buf->bytes - n);
	d->ops->put(d, q, to, from, n);
}

void od_device_get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	assert((from.buf->device == d || od_device_cards(d) > 1) && n <= from.buf->bytes &&
	       from.at <= from.buf->bytes - n);
	d->ops->get(d, q, to, from, n);
}

void od_device_run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	assert(q == OD_QUEUE_COMPUTE || op->kind == OD_OP_COPY || op->kind == OD_OP_MERGE);
	d->ops->run(d, q, op);
}

uint64_t od_device_ticket(struct od_device *d, enum od_queue q)
{
	return d->ops->ticket(d, q);
}

int od_device_wait(struct od_device *d, enum od_queue q, uint64_t ticket, struct od_err *err)
{
	int rc;

	atomic_fetch_add_explicit(&d->waits, 1, memory_order_relaxed);
	rc = d->ops->wait(d, q, ticket, err);
	if (rc != OD_OK && q == OD_QUEUE_COMPUTE)
		atomic_fetch_add_explicit(&d->failures, 1, memory_order_relaxed);
	return rc;
}

void od_device_after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t ticket)
{
	d->ops->after(d, q, other, ticket);
}

uint64_t od_device_waits(const struct od_device *d)
{
	return atomic_load_explicit(&d->waits, memory_order_relaxed);
}

int od_device_failed(const struct od_device *d, struct od_err *why)
{
	for (unsigned i = 0; i < od_device_cards(d); i++) {
		const struct od_device *c = od_device_card((struct od_device *)d, i);

		if (atomic_load_explicit(&c->lost, memory_order_relaxed))
			return od_fail(why, OD_ERR_IO,
				       "%s is lost after a fault; it serves again when this program is started again",
				       c->name);
	}
	return OD_OK;
}

uint64_t od_device_failures(const struct od_device *d)
{
	return atomic_load_explicit(&d->failures, memory_order_relaxed);
}

uint64_t od_device_load_errors(const struct od_device *d)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < od_device_cards(d); i++)
		sum += atomic_load_explicit(&od_device_card((struct od_device *)d, i)->load_errors,
					    memory_order_relaxed);
	return sum;
}

int od_device_sync(struct od_device *d, struct od_err *err)
{
	return od_device_wait(d, OD_QUEUE_COMPUTE, od_device_ticket(d, OD_QUEUE_COMPUTE), err);
}

int od_fill_begin(struct od_fill *f, struct od_ref to, size_t n, struct od_err *err)
{
	*f = (struct od_fill){ .to = to, .n = n, .host = od_ref_map(to) };
	if (f->host != NULL)
		return OD_OK;
	f->staged = true;
	f->host = od_alloc(n);
	return f->host != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for a stage of %zu bytes", n);
}

int od_fill_end(struct od_fill *f, int rc, struct od_err *err)
{
	struct od_device *d = f->to.buf->device;

	if (rc == OD_OK && f->staged) {
		od_device_put(d, OD_QUEUE_COMPUTE, f->to, f->host, f->n);
		rc = od_device_sync(d, err);
	}
	if (f->staged)
		od_free(f->host);
	f->host = NULL;
	return rc;
}
