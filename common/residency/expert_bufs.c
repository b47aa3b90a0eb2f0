#include "common/residency/expert_bufs.h"

#include "common/base/mem.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A buffer that is not in use. */
struct spare {
	struct od_ref at;
	uint64_t memory; /* 0: nothing was ever written, or all was released */
};

struct buf_kind {
	uint64_t bytes;
	uint64_t stride; /* from one to the next where they lie together */
	size_t n, n_free; /* there; not in use */
	struct od_buf **block; /* [n_blocks]: each has one buffer, or many that lie together */
	size_t n_blocks;
	/* [n_free]: first those without memory, then in order of their return. The last one of the right size is the
	 * next one taken: its pages are there, and in the CPU's caches. */
	struct spare *free;
	uint64_t *layer_bytes; /* [n_layers]: that an expert of the layer needs */
	uint64_t *layer_memory; /* [n_layers]: of a buffer that holds one; without its stage */
};

struct od_expert_bufs {
	pthread_mutex_t lock;
	struct od_device *device;
	unsigned slot;
	bool together, lends;
	uint64_t limit_bytes; /* UINT64_MAX: none */
	uint64_t taken_bytes; /* sum over all buffers */
	uint32_t n_layers; /* 1: all are alike */
	struct buf_kind kind[OD_N_EXPERT_BUFS];
};

/* Sizes go in steps of a sixteenth of the largest, so that experts of nearly the same size can follow each other in a
 * buffer: compressed layers differ by a few pages. */
#define SIZE_STEPS 16

static uint64_t in_steps(uint64_t bytes, uint64_t used)
{
	const uint64_t step = bytes / SIZE_STEPS + 1, rounded = (used + step - 1) / step * step;

	return rounded < bytes ? rounded : bytes;
}

bool od_expert_bufs_lend(const struct od_device *d, unsigned slot, const uint64_t bytes[OD_N_EXPERT_BUFS])
{
	bool lends = true;

	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		lends = lends && ((slot & 1u << i) == 0 || od_device_lends(d, bytes[i]));
	return lends;
}

static uint64_t memory_of(const struct od_device *d, bool lends, uint64_t bytes, uint64_t used)
{
	return lends ? od_buf_used_memory(d, bytes, used) : od_buf_memory(d, bytes);
}

uint64_t od_expert_bufs_memory(const struct od_device *d, unsigned slot, const uint64_t bytes[OD_N_EXPERT_BUFS],
			       const uint64_t used[OD_N_EXPERT_BUFS])
{
	const bool lends = od_expert_bufs_lend(d, slot, bytes);
	uint64_t sum = 0;

	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		sum += (slot & 1u << i) != 0 ? memory_of(d, lends, bytes[i], in_steps(bytes[i], used[i])) : 0;
	return sum;
}

static int measure_layers(struct od_expert_bufs *b, const struct od_expert_bufs_opts *o, struct od_err *err)
{
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct buf_kind *k = &b->kind[i];

		k->bytes = o->bytes[i];
		k->stride = b->lends ? od_buf_used_memory(o->device, k->bytes, k->bytes) : od_map_bytes(k->bytes);
		k->layer_bytes = calloc(b->n_layers, sizeof(*k->layer_bytes));
		k->layer_memory = calloc(b->n_layers, sizeof(*k->layer_memory));
		if (k->layer_bytes == NULL || k->layer_memory == NULL)
			return od_fail(err, OD_ERR_NOMEM, "buffers of the experts of %u layers", b->n_layers);
		for (uint32_t m = 0; m < b->n_layers; m++) {
			k->layer_bytes[m] = o->layer != NULL ? in_steps(k->bytes, o->layer[m].bytes[i]) : k->bytes;
			k->layer_memory[m] = memory_of(o->device, b->lends, k->bytes, k->layer_bytes[m]);
		}
	}
	return OD_OK;
}

/* Else the unused end of a buffer would lie in a huge page with the begin of the next one, and take memory. */
static bool all_alike(const struct od_expert_bufs *b)
{
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		for (uint32_t m = 1; m < b->n_layers; m++)
			if (b->kind[i].layer_memory[m] != b->kind[i].layer_memory[0])
				return false;
	return true;
}

void od_expert_bufs_free(struct od_expert_bufs *b)
{
	if (b == NULL)
		return;
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct buf_kind *k = &b->kind[i];

		for (size_t j = 0; j < k->n_blocks; j++)
			od_buf_free(k->block[j]);
		free(k->block);
		free(k->free);
		free(k->layer_bytes);
		free(k->layer_memory);
	}
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* A block of n buffers, which lie together if there are several. */
static int add_block(struct od_expert_bufs *b, struct buf_kind *k, size_t n, struct od_err *err)
{
	const bool sparse = b->lends && od_device_commits(b->device);
	struct od_buf *buf;
	uint64_t bytes;

	if (!od_mul(n - 1, k->stride, &bytes) || !od_add(bytes, k->bytes, &bytes))
		return od_fail(err, OD_ERR_RANGE, "%zu experts of %" PRIu64 " bytes", n, k->bytes);
	if ((sparse ? od_buf_new_sparse : od_buf_new_shared)(&buf, b->device, bytes, "an expert", err) != OD_OK)
		return od_fail_within(err, "buffer %zu of %zu", k->n_free + 1, k->n);
	k->block[k->n_blocks++] = buf;
	for (size_t i = 0; i < n; i++)
		k->free[k->n_free++] = (struct spare){ od_buf_ref(buf, i * k->stride), 0 };
	return OD_OK;
}

static int make_buffers(struct od_expert_bufs *b, struct buf_kind *k, size_t n, struct od_err *err)
{
	int rc = OD_OK;

	k->n = n;
	k->block = calloc(n, sizeof(*k->block));
	k->free = calloc(n, sizeof(*k->free));
	if (k->block == NULL || k->free == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu buffers of experts", n);
	while (rc == OD_OK && k->n_free < n)
		rc = add_block(b, k, b->together ? n : 1, err);
	return rc;
}

int od_expert_bufs_new(struct od_expert_bufs **out, const struct od_expert_bufs_opts *o, struct od_err *err)
{
	struct od_expert_bufs *b = calloc(1, sizeof(*b));
	int rc;

	*out = NULL;
	if (b == NULL)
		return od_fail(err, OD_ERR_NOMEM, "buffers of experts");
	pthread_mutex_init(&b->lock, NULL);
	b->device = o->device;
	b->slot = o->slot;
	b->n_layers = o->layer != NULL ? o->n_moe : 1;
	b->lends = od_expert_bufs_lend(o->device, o->slot, o->bytes);
	b->limit_bytes = o->limit_bytes > 0 && b->lends ? o->limit_bytes : UINT64_MAX;
	rc = measure_layers(b, o, err);
	if (rc == OD_OK)
		b->together = o->together && all_alike(b);
	for (unsigned i = 0; rc == OD_OK && i < OD_N_EXPERT_BUFS; i++)
		if ((o->slot & 1u << i) != 0)
			rc = make_buffers(b, &b->kind[i], o->n, err);
	if (rc != OD_OK) {
		od_expert_bufs_free(b);
		return rc;
	}
	*out = b;
	return OD_OK;
}

/* Takes one that held an expert of the same size if there is one, else the last one returned. */
static struct spare take_spare(struct buf_kind *k, uint64_t memory)
{
	size_t at = k->n_free - 1;
	struct spare spare;

	for (size_t i = k->n_free; i-- > 0 && k->free[i].memory > 0;)
		if (k->free[i].memory == memory) {
			at = i;
			break;
		}
	spare = k->free[at];
	memmove(&k->free[at], &k->free[at + 1], (--k->n_free - at) * sizeof(*k->free));
	return spare;
}

/* Releases all memory of the buffer that was returned first, if then all have `least` bytes. False: those not in use
 * have none. */
static bool release_one(struct od_expert_bufs *b, struct buf_kind *k, uint64_t least)
{
	size_t i = 0;

	while (i < k->n_free && k->free[i].memory == 0)
		i++;
	if (i == k->n_free || b->taken_bytes < least + k->free[i].memory)
		return false;
	od_ref_release(k->free[i].at, k->stride);
	b->taken_bytes -= k->free[i].memory;
	k->free[i].memory = 0;
	return true;
}

static void keep_limit(struct od_expert_bufs *b)
{
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
		while (b->taken_bytes > b->limit_bytes && release_one(b, &b->kind[i], 0))
			;
}

struct od_buf_sizes od_expert_bufs_fill(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem)
{
	struct od_buf_sizes had = { { 0 } };

	if (b == NULL)
		return had;
	pthread_mutex_lock(&b->lock);
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct buf_kind *k = &b->kind[i];
		const uint64_t memory = k->layer_memory[m % b->n_layers];
		struct spare spare;

		if ((b->slot & 1u << i) == 0)
			continue;
		if (k->n_free == 0)
			abort(); /* whoever counts them has miscounted */
		spare = take_spare(k, memory);
		if (spare.memory > memory)
			od_ref_release(od_ref_at(spare.at, memory), k->stride - memory);
		b->taken_bytes += memory - spare.memory;
		mem->at[i] = spare.at;
		had.bytes[i] = spare.memory < memory ? spare.memory : memory;
	}
	keep_limit(b);
	pthread_mutex_unlock(&b->lock);
	return had;
}

/* Behind all others, or, without memory, before those that have some. */
static void add_spare(struct buf_kind *k, struct spare spare)
{
	size_t at = spare.memory > 0 ? k->n_free : 0;

	while (at < k->n_free && k->free[at].memory == 0)
		at++;
	memmove(&k->free[at + 1], &k->free[at], (k->n_free++ - at) * sizeof(*k->free));
	k->free[at] = spare;
}

/* had NULL: all of their memory. */
static void take_back(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem, const struct od_buf_sizes *had)
{
	if (b == NULL)
		return;
	pthread_mutex_lock(&b->lock);
	for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++) {
		struct buf_kind *k = &b->kind[i];
		uint64_t memory = k->layer_memory[m % b->n_layers];

		if (mem->at[i].buf == NULL)
			continue;
		if (b->lends && had != NULL && had->bytes[i] < memory) {
			od_ref_release(od_ref_at(mem->at[i], had->bytes[i]), k->stride - had->bytes[i]);
			b->taken_bytes -= memory - had->bytes[i];
			memory = had->bytes[i];
		}
		add_spare(k, (struct spare){ mem->at[i], memory });
		mem->at[i] = (struct od_ref){ 0 };
	}
	keep_limit(b); /* it may have been lowered since */
	pthread_mutex_unlock(&b->lock);
}

void od_expert_bufs_put(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem)
{
	take_back(b, m, mem, NULL);
}

void od_expert_bufs_put_unused(struct od_expert_bufs *b, uint32_t m, struct od_expert_mem *mem,
			       const struct od_buf_sizes *had)
{
	take_back(b, m, mem, had);
}

void od_expert_bufs_set_limit(struct od_expert_bufs *b, uint64_t limit_bytes)
{
	bool more = true;

	pthread_mutex_lock(&b->lock);
	if (b->limit_bytes != UINT64_MAX)
		b->limit_bytes = limit_bytes;
	while (more && b->taken_bytes > b->limit_bytes) {
		more = false;
		for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
			more = more || release_one(b, &b->kind[i], 0);
		/* The others need not wait until all has been given back. */
		pthread_mutex_unlock(&b->lock);
		pthread_mutex_lock(&b->lock);
	}
	pthread_mutex_unlock(&b->lock);
}

bool od_expert_bufs_give_back(struct od_expert_bufs *b, uint64_t bytes, uint64_t least)
{
	uint64_t begin;
	bool more = true, any;

	pthread_mutex_lock(&b->lock);
	begin = b->taken_bytes;
	while (more && begin - b->taken_bytes < bytes) {
		more = false;
		for (unsigned i = 0; i < OD_N_EXPERT_BUFS; i++)
			more = release_one(b, &b->kind[i], least) || more;
	}
	any = b->taken_bytes < begin;
	pthread_mutex_unlock(&b->lock);
	return any;
}

uint64_t od_expert_bufs_taken(struct od_expert_bufs *b)
{
	uint64_t bytes;

	pthread_mutex_lock(&b->lock);
	bytes = b->taken_bytes;
	pthread_mutex_unlock(&b->lock);
	return bytes;
}
