#include "common/residency/expert_bufs.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <stdlib.h>

struct kind {
	uint64_t bytes;
	size_t n, n_free, most; /* there, not in use, and how many there shall be */
	struct od_buf **all; /* [n] */
	struct od_buf **free; /* [n_free]; the last one put back is the next one taken, its pages being there */
};

struct od_expert_bufs {
	pthread_mutex_t lock;
	struct od_device *device;
	unsigned slot;
	struct kind kind[OD_N_EXPERT_BUFS];
};

uint64_t od_expert_buf_memory(const struct od_device *d, unsigned slot, enum od_expert_buf kind, uint64_t bytes)
{
	const bool has_stage = d != NULL && !od_device_shares(d) && od_expert_bufs_staged(slot, kind);

	return od_buf_memory(d, bytes) + (has_stage ? od_map_bytes(bytes) : 0);
}

uint64_t od_expert_bufs_memory(const struct od_device *d, unsigned slot, unsigned which,
			       const uint64_t bytes[OD_N_EXPERT_BUFS])
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		sum += (which & 1u << i) != 0 ? od_expert_buf_memory(d, slot, (enum od_expert_buf)i, bytes[i]) : 0;
	return sum;
}

int od_expert_bufs_new(struct od_expert_bufs **out, struct od_device *d, unsigned slot,
		       const uint64_t bytes[OD_N_EXPERT_BUFS], struct od_err *err)
{
	struct od_expert_bufs *b = calloc(1, sizeof(*b));

	*out = b;
	if (b == NULL)
		return od_fail(err, OD_ERR_NOMEM, "buffers of experts");
	pthread_mutex_init(&b->lock, NULL);
	b->device = d;
	b->slot = slot;
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		b->kind[i].bytes = bytes[i];
	return OD_OK;
}

void od_expert_bufs_free(struct od_expert_bufs *b)
{
	if (b == NULL)
		return;
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct kind *k = &b->kind[i];

		for (size_t j = 0; j < k->n; j++)
			od_buf_free(k->all[j]);
		free(k->all);
		free(k->free);
	}
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* Under the lock: one that is more than there shall be and not in use, out of the lists; NULL: none. */
static struct od_buf *take_surplus(struct kind *k)
{
	struct od_buf *buf;
	size_t i = 0;

	if (k->n <= k->most || k->n_free == 0)
		return NULL;
	buf = k->free[--k->n_free];
	while (k->all[i] != buf)
		i++;
	k->all[i] = k->all[--k->n];
	return buf;
}

bool od_expert_bufs_shrink(struct od_expert_bufs *b, const size_t n[OD_N_EXPERT_BUFS])
{
	bool done = true;

	pthread_mutex_lock(&b->lock);
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct kind *k = &b->kind[i];
		struct od_buf *buf;

		k->most = n[i] < k->most ? n[i] : k->most;
		while ((buf = take_surplus(k)) != NULL) {
			pthread_mutex_unlock(&b->lock);
			od_buf_free(buf);
			pthread_mutex_lock(&b->lock);
		}
		done = done && k->n <= k->most;
	}
	pthread_mutex_unlock(&b->lock);
	return done;
}

/* Places in the lists. */
static int make_room(struct od_expert_bufs *b, struct kind *k, size_t n, struct od_err *err)
{
	struct od_buf **all, **spare;

	pthread_mutex_lock(&b->lock);
	all = realloc(k->all, n * sizeof(*all));
	k->all = all != NULL ? all : k->all;
	spare = realloc(k->free, n * sizeof(*spare));
	k->free = spare != NULL ? spare : k->free;
	pthread_mutex_unlock(&b->lock);
	return all != NULL && spare != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%zu buffers of experts", n);
}

static int grow(struct od_expert_bufs *b, struct kind *k, size_t n, struct od_err *err)
{
	int rc = n > k->n ? make_room(b, k, n, err) : OD_OK; /* only this thread changes k->n */

	while (rc == OD_OK && k->n < n) {
		struct od_buf *buf;

		if (od_buf_new_shared(&buf, b->device, k->bytes, "an expert", err) != OD_OK)
			return od_fail_within(err, "buffer %zu of %zu", k->n + 1, n);
		if (od_expert_bufs_staged(b->slot, (enum od_expert_buf)(k - b->kind)) &&
		    od_ref_stage(od_buf_ref(buf, 0)) == NULL) {
			od_buf_free(buf);
			return od_fail(err, OD_ERR_NOMEM, "buffer %zu of %zu: no memory for its stage", k->n + 1, n);
		}
		pthread_mutex_lock(&b->lock);
		k->all[k->n++] = buf;
		k->free[k->n_free++] = buf;
		k->most = k->n;
		pthread_mutex_unlock(&b->lock);
	}
	return rc;
}

int od_expert_bufs_grow(struct od_expert_bufs *b, const size_t n[OD_N_EXPERT_BUFS], struct od_err *err)
{
	int rc = OD_OK;

	for (unsigned i = 0; rc == OD_OK && i < OD_N_EXPERT_BUFS; i++)
		rc = grow(b, &b->kind[i], n[i], err);
	return rc;
}

void od_expert_bufs_fill(struct od_expert_bufs *b, struct od_expert_mem *mem)
{
	if (b == NULL)
		return;
	pthread_mutex_lock(&b->lock);
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct kind *k = &b->kind[i];

		if ((b->slot & 1u << i) == 0 || mem->at[i].buf != NULL)
			continue;
		if (k->n_free == 0)
			abort(); /* whoever counts them has miscounted */
		mem->at[i] = od_buf_ref(k->free[--k->n_free], 0);
	}
	pthread_mutex_unlock(&b->lock);
}

void od_expert_bufs_put(struct od_expert_bufs *b, struct od_expert_mem *mem, unsigned which)
{
	if (b == NULL)
		return;
	pthread_mutex_lock(&b->lock);
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct kind *k = &b->kind[i];

		if ((which & 1u << i) == 0 || mem->at[i].buf == NULL)
			continue;
		k->free[k->n_free++] = mem->at[i].buf;
		mem->at[i] = (struct od_ref){ 0 };
	}
	pthread_mutex_unlock(&b->lock);
}
