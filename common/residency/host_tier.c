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

#define AS_SLICES (-1)

enum { EMPTY, FILLING, FULL };

/* A buffer of the card, for its loads, and one of the CPUs, over the same memory; NULL: they compute none. */
struct block {
	struct od_buf *card, *cpu;
};

struct place {
	size_t block; /* its number + 1; 0: the expert is in the file alone */
	uint64_t at;
};

struct od_host_tier {
	const struct od_pack *pack;
	struct od_device *device, *cpu;
	int form; /* enum od_form: an expert lies as in memory of this form. AS_SLICES: as slices of its load */
	uint32_t n_slices, slice_shards;
	struct place *place; /* [n_moe][n_experts] */
	_Atomic uint8_t *slice; /* [n_moe][n_experts][n_slices]: EMPTY, FILLING, FULL */
	struct block *block;
	size_t n_blocks, n_places;
	uint64_t block_bytes, pinned_bytes;
	_Atomic uint64_t served_bytes;
};

/* ---- Places ---- */

/* Bytes of an expert's first n slices, one behind the other. */
static uint64_t slices_bytes(const struct od_host_tier *t, uint32_t m, uint32_t expert, uint32_t n)
{
	const uint32_t n_shards = od_pack_expert(t->pack, m, expert)->n_shards;
	struct od_shard_bytes b[OD_SLICE_SHARDS];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += od_slice_layout(t->pack, m, expert, i * t->slice_shards,
					 od_shards_in_slice(i, t->slice_shards, n_shards), (struct od_ref){ 0 }, b);
	return bytes;
}

static uint64_t place_bytes(const struct od_host_tier *t, uint32_t m, uint32_t expert)
{
	return od_round_up(t->form == AS_SLICES ? slices_bytes(t, m, expert, t->n_slices) :
						  od_layer_slot_bytes(t->pack, (enum od_form)t->form, m) + OD_PAD_BYTES,
			   OD_PAGE_BYTES);
}

/* A form that needs no decoding, so that readers can put the bytes there and a load to the card takes them. */
static int form_of(const struct od_pack *p)
{
	const struct od_config *c = od_pack_config(p);

	if (od_pack_can_form(p, OD_FORM_PLANES, NULL) == OD_OK)
		return OD_FORM_PLANES;
	for (uint32_t m = 0; m < c->n_moe; m++)
		for (uint32_t i = 0; i < c->n_experts; i++)
			if (!od_expert_is_raw(p, m, i))
				return AS_SLICES;
	return OD_FORM_PLAIN;
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
	struct block *grown = realloc(t->block, (t->n_blocks + 1) * sizeof(*grown)), *b;

	if (grown == NULL)
		return false;
	t->block = grown;
	b = &t->block[t->n_blocks];
	*b = (struct block){ 0 };
	if (od_buf_new_on_host(&b->card, t->device, bytes, "stored experts", NULL) != OD_OK)
		return false;
	t->n_blocks++;
	if (t->form != AS_SLICES &&
	    od_buf_new_over(&b->cpu, t->cpu, od_ref_stage(od_buf_ref(b->card, 0)), bytes, NULL) != OD_OK)
		return false;
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
			left = od_buf_bytes(t->block[t->n_blocks - 1].card);
		}
		t->place[(size_t)m * c->n_experts + expert] = (struct place){ t->n_blocks, at };
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

int od_host_tier_new(struct od_host_tier **out, const struct od_pack *p, struct od_device *d, struct od_device *cpu,
		     uint64_t most_bytes, struct od_err *err)
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
	t->cpu = cpu;
	t->form = cpu != NULL ? form_of(p) : AS_SLICES;
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
	for (size_t i = 0; i < t->n_blocks; i++) {
		od_buf_free(t->block[i].cpu);
		od_buf_free(t->block[i].card);
	}
	free(t->block);
	free(t->slice);
	free(t->place);
	free(t);
}

uint64_t od_host_tier_served_bytes(const struct od_host_tier *t)
{
	return t != NULL ? atomic_load_explicit(&t->served_bytes, memory_order_relaxed) : 0;
}

int od_host_tier_form(const struct od_host_tier *t)
{
	return t != NULL ? t->form : AS_SLICES;
}

/* ---- Reading ---- */

/* The load of a slice. */
struct slice_load {
	uint32_t m, expert, first, n;
};

static const struct place *place_of(const struct od_host_tier *t, uint32_t m, uint32_t expert)
{
	return &t->place[(size_t)m * od_pack_config(t->pack)->n_experts + expert];
}

static _Atomic uint8_t *states_of(const struct od_host_tier *t, uint32_t m, uint32_t expert)
{
	return &t->slice[((size_t)m * od_pack_config(t->pack)->n_experts + expert) * t->n_slices];
}

/* Where an expert lies, for the card or for the CPUs. */
static struct od_expert_mem place_mem(const struct od_host_tier *t, uint32_t m, uint32_t expert, bool cpu)
{
	const struct place *p = place_of(t, m, expert);
	const struct block *b = &t->block[p->block - 1];

	return od_layer_slot_mem(t->pack, (enum od_form)t->form, m, od_buf_ref(cpu ? b->cpu : b->card, p->at));
}

bool od_host_tier_expert(const struct od_host_tier *t, uint32_t m, uint32_t expert, struct od_expert *w)
{
	_Atomic uint8_t *state = states_of(t, m, expert);
	struct od_expert_mem mem;

	if (place_of(t, m, expert)->block == 0)
		return false;
	for (uint32_t i = 0; i < t->n_slices; i++)
		if (atomic_load(&state[i]) != FULL)
			return false;
	mem = place_mem(t, m, expert, true);
	od_pack_bind(t->pack, m, expert, &mem, w);
	return true;
}

static struct od_ref slice_at(const struct od_host_tier *t, const struct slice_load *l)
{
	const struct place *p = place_of(t, l->m, l->expert);

	return od_buf_ref(t->block[p->block - 1].card,
			  p->at + slices_bytes(t, l->m, l->expert, l->first / t->slice_shards));
}

/* Where the slice lies in its place. */
static void lay_out(const struct od_host_tier *t, const struct slice_load *l, struct od_shard_bytes *b)
{
	struct od_expert_mem mem;

	if (t->form == AS_SLICES) {
		(void)od_slice_layout(t->pack, l->m, l->expert, l->first, l->n, slice_at(t, l), b);
		return;
	}
	mem = place_mem(t, l->m, l->expert, false);
	od_shards_at(t->pack, l->m, l->expert, l->first, l->n, &mem, b);
}

/* The slice is in its place. */
static int serve(struct od_host_tier *t, const struct slice_load *l, struct od_shard_bytes *b)
{
	const struct od_shard *s = &od_pack_expert(t->pack, l->m, l->expert)->shard[l->first];
	uint64_t bytes = 0;

	lay_out(t, l, b);
	for (uint32_t i = 0; i < l->n; i++) {
		b[i].checked = true;
		bytes += (uint64_t)s[i].sm.stored_bytes + s[i].e.stored_bytes;
	}
	atomic_fetch_add_explicit(&t->served_bytes, bytes, memory_order_relaxed);
	return OD_OK;
}

/* Bytes are read to where they stay; but plain weights are copied there from where the load reads them, because they
 * lie in their pages in another way than the file's. */
static int fill(struct od_host_tier *t, const struct slice_load *l, const struct od_expert_mem *mem,
		struct od_ref staging, struct od_shard_bytes *b, struct od_err *err)
{
	const bool plain = t->form == OD_FORM_PLAIN;
	struct od_expert_mem place = { 0 };
	int rc;

	if (t->form != AS_SLICES)
		place = place_mem(t, l->m, l->expert, false);
	if (!plain) {
		mem = &place;
		staging = t->form == AS_SLICES ? slice_at(t, l) : (struct od_ref){ 0 };
	}
	rc = od_shards_read(t->pack, l->m, l->expert, l->first, l->n, mem, staging, b, err);
	if (rc == OD_OK)
		rc = od_shards_check(t->pack, l->m, l->expert, l->first, l->n, b, err);
	if (rc == OD_OK && plain)
		od_shards_put_raw(t->pack, l->m, l->expert, l->first, l->n, &place, b);
	return rc;
}

int od_host_tier_read(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		      const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		      struct od_err *err)
{
	struct od_host_tier *t = arg;
	const struct slice_load l = { m, expert, first, n };
	_Atomic uint8_t *state = states_of(t, m, expert) + first / t->slice_shards;
	uint8_t empty = EMPTY;
	int rc;

	if (place_of(t, m, expert)->block == 0)
		return od_shards_read(t->pack, m, expert, first, n, mem, staging, b, err);
	if (atomic_load(state) == FULL)
		return serve(t, &l, b);
	if (!atomic_compare_exchange_strong(state, &empty, FILLING))
		return od_shards_read(t->pack, m, expert, first, n, mem, staging, b, err);
	rc = fill(t, &l, mem, staging, b, err);
	atomic_store(state, rc == OD_OK ? FULL : EMPTY);
	return rc;
}
