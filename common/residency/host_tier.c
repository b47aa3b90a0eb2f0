#include "common/residency/host_tier.h"

#include "common/base/args.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Pinned at a time: so much, or a part of all. Of what the system would pin less than that is left out. */
#define BLOCK_BYTES (256u << 20)
#define BLOCK_DIVISOR 16
/* Stays free to be pinned later: stages, and rows that steps send and fetch. */
#define SPARE_BYTES (64u << 20)

enum { EMPTY, FILLING, FULL };

struct od_host_tier {
	const struct od_pack *pack;
	struct od_device *device;
	uint32_t n_slices, slice_shards;
	struct od_ref *place; /* [n_moe][n_experts]; nowhere: in the file alone */
	_Atomic uint8_t *slice; /* [n_moe][n_experts][n_slices]: EMPTY, FILLING, FULL */
	struct od_buf **block;
	size_t n_blocks, n_places;
	uint64_t block_bytes, pinned_bytes;
	_Atomic uint64_t served_bytes;
};

/* ---- Places ---- */

static uint32_t shards_of(const struct od_host_tier *t, uint32_t slice, uint32_t n_shards)
{
	const uint32_t left = n_shards - slice * t->slice_shards;

	return left < t->slice_shards ? left : t->slice_shards;
}

/* Bytes of an expert's first n slices, one behind the other. */
static uint64_t slices_bytes(const struct od_host_tier *t, uint32_t m, uint32_t expert, uint32_t n)
{
	const uint32_t n_shards = od_pack_expert(t->pack, m, expert)->n_shards;
	struct od_shard_bytes b[OD_SLICE_SHARDS];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += od_slice_layout(t->pack, m, expert, i * t->slice_shards, shards_of(t, i, n_shards),
					 (struct od_ref){ 0 }, b);
	return bytes;
}

static uint64_t place_bytes(const struct od_host_tier *t, uint32_t m, uint32_t expert)
{
	return od_round_up(slices_bytes(t, m, expert, t->n_slices), OD_PAGE_BYTES);
}

static uint64_t all_bytes(const struct od_host_tier *t)
{
	const struct od_config *c = od_pack_config(t->pack);
	uint64_t bytes = 0;

	for (uint32_t m = 0; m < c->n_moe; m++)
		for (uint32_t i = 0; i < c->n_experts; i++)
			bytes += place_bytes(t, m, i);
	return bytes;
}

/* A block with room for n bytes at least, of most at most. False: the system pins no more. */
static bool add_block(struct od_host_tier *t, uint64_t n, uint64_t most)
{
	const uint64_t whole = t->block_bytes > n ? t->block_bytes / n * n : n; /* most experts are alike */
	const uint64_t bytes = whole < most ? whole : most;
	struct od_buf **grown = realloc(t->block, (t->n_blocks + 1) * sizeof(*grown));

	if (grown == NULL)
		return false;
	t->block = grown;
	if (od_buf_new_on_host(&t->block[t->n_blocks], t->device, bytes, "stored experts", NULL) != OD_OK)
		return false;
	t->n_blocks++;
	t->pinned_bytes += bytes;
	return true;
}

/* One expert of each layer after the other, so that layers have equally many. False: the system pins no more. */
static bool make_places(struct od_host_tier *t, uint64_t most_bytes, uint64_t all)
{
	const struct od_config *c = od_pack_config(t->pack);
	uint64_t at = 0, left = 0; /* in the last block */

	for (size_t i = 0; i < (size_t)c->n_moe * c->n_experts; i++) {
		const uint32_t m = (uint32_t)(i % c->n_moe), expert = (uint32_t)(i / c->n_moe);
		const uint64_t n = place_bytes(t, m, expert), limit = most_bytes - t->pinned_bytes;

		if (left < n && n > limit)
			return true;
		if (left < n) {
			if (!add_block(t, n, all < limit ? all : limit))
				return false;
			at = 0;
			left = od_buf_bytes(t->block[t->n_blocks - 1]);
		}
		t->place[(size_t)m * c->n_experts + expert] = od_buf_ref(t->block[t->n_blocks - 1], at);
		t->n_places++;
		at += n;
		left -= n;
		all -= n;
	}
	return true;
}

static void say(const struct od_host_tier *t, uint64_t all, bool refused)
{
	const struct od_config *c = od_pack_config(t->pack);
	char a[32], b[32];

	od_log(refused ? OD_LOG_WARN : OD_LOG_INFO,
	       "experts: %s of pinned host memory, of %s for all, hold %zu of %zu as they are stored%s%s",
	       od_format_bytes(t->pinned_bytes, a, sizeof(a)), od_format_bytes(all, b, sizeof(b)), t->n_places,
	       (size_t)c->n_moe * c->n_experts,
	       t->n_places < (size_t)c->n_moe * c->n_experts ? "; the others are read from the file" : "",
	       refused ? ". The system pins no more: raise its limit of locked memory (ulimit -l, the container, "
			 "or WSL's memory)" :
			 "");
}

int od_host_tier_new(struct od_host_tier **out, const struct od_pack *p, struct od_device *d, uint64_t most_bytes,
		     struct od_err *err)
{
	const struct od_config *c = od_pack_config(p);
	const size_t n = (size_t)c->n_moe * c->n_experts;
	const uint32_t n_shards = od_pack_expert(p, 0, 0)->n_shards;
	struct od_host_tier *t = calloc(1, sizeof(*t));
	struct od_buf *spare;
	uint64_t all;
	bool full;

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "a tier of host memory");
	t->pack = p;
	t->device = d;
	t->slice_shards = od_slice_shards(d, n_shards);
	t->n_slices = od_slices(d, n_shards);
	t->place = calloc(n, sizeof(*t->place));
	t->slice = calloc(n * t->n_slices, sizeof(*t->slice));
	if (t->place == NULL || t->slice == NULL) {
		od_host_tier_free(t);
		return od_fail(err, OD_ERR_NOMEM, "a tier of host memory for %zu experts", n);
	}
	all = all_bytes(t);
	full = od_buf_new_on_host(&spare, d, SPARE_BYTES, "later use", NULL) != OD_OK;
	t->block_bytes = all / BLOCK_DIVISOR < BLOCK_BYTES ? all / BLOCK_DIVISOR : BLOCK_BYTES;
	full = full || !make_places(t, most_bytes, all);
	od_buf_free(spare);
	say(t, all, full);
	if (t->n_places > 0) {
		*out = t;
		return OD_OK;
	}
	od_host_tier_free(t);
	return OD_OK;
}

void od_host_tier_free(struct od_host_tier *t)
{
	if (t == NULL)
		return;
	for (size_t i = 0; i < t->n_blocks; i++)
		od_buf_free(t->block[i]);
	free(t->block);
	free(t->slice);
	free(t->place);
	free(t);
}

uint64_t od_host_tier_served_bytes(const struct od_host_tier *t)
{
	return t != NULL ? atomic_load_explicit(&t->served_bytes, memory_order_relaxed) : 0;
}

/* ---- Reading ---- */

/* The slice is in its place. */
static int serve(struct od_host_tier *t, uint32_t m, uint32_t expert, uint32_t first, uint32_t n, struct od_ref at,
		 struct od_shard_bytes *b)
{
	const struct od_shard *s = &od_pack_expert(t->pack, m, expert)->shard[first];
	uint64_t bytes = 0;

	(void)od_slice_layout(t->pack, m, expert, first, n, at, b);
	for (uint32_t i = 0; i < n; i++) {
		b[i].checked = true;
		bytes += (uint64_t)s[i].sm.stored_bytes + s[i].e.stored_bytes;
	}
	atomic_fetch_add_explicit(&t->served_bytes, bytes, memory_order_relaxed);
	return OD_OK;
}

static int fill(struct od_host_tier *t, uint32_t m, uint32_t expert, uint32_t first, uint32_t n, struct od_ref at,
		struct od_shard_bytes *b, struct od_err *err)
{
	const struct od_expert_mem none = { 0 };
	int rc = od_shards_read(t->pack, m, expert, first, n, &none, at, b, err);

	return rc == OD_OK ? od_shards_check(t->pack, m, expert, first, n, b, err) : rc;
}

int od_host_tier_read(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		      const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		      struct od_err *err)
{
	struct od_host_tier *t = arg;
	const size_t i = (size_t)m * od_pack_config(t->pack)->n_experts + expert;
	const uint32_t slice = first / t->slice_shards;
	_Atomic uint8_t *state = &t->slice[i * t->n_slices + slice];
	struct od_ref at = t->place[i];
	uint8_t empty = EMPTY;
	int rc;

	if (at.buf == NULL)
		return od_shards_read(t->pack, m, expert, first, n, mem, staging, b, err);
	at = od_ref_at(at, slices_bytes(t, m, expert, slice));
	if (atomic_load(state) == FULL)
		return serve(t, m, expert, first, n, at, b);
	if (!atomic_compare_exchange_strong(state, &empty, FILLING))
		return od_shards_read(t->pack, m, expert, first, n, mem, staging, b, err);
	rc = fill(t, m, expert, first, n, at, b, err);
	atomic_store(state, rc == OD_OK ? FULL : EMPTY);
	return rc;
}
