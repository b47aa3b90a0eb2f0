/* Remembers the last access to each address, and whether a barrier came between. */
#include "tests/gpu/ptx/ptx_races.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/ptx/ptx_block.h"

#define PAGE_WORDS 1024u
#define BUCKETS 65536u

/* block_sync numbers the barriers of all blocks, so it is never the same in two of them; 0: no access yet. */
struct access {
	uint32_t block_sync, warp_sync, pc;
	uint16_t thread;
	bool in_flight; /* a copy that was not waited for */
};

struct shared_byte {
	struct access writer, reader; /* the last ones */
	struct access other_lane, other_warp; /* the last readers before, of the same warp and of others */
};

struct global_access { /* launch 0: no access yet */
	uint32_t launch, block, block_sync, warp_sync, pc, thread;
};

struct global_word {
	struct global_access writer, reader, other; /* other: the last reader before that was another thread */
};

struct page {
	uint64_t number;
	struct page *next;
	struct global_word word[PAGE_WORDS];
};

struct ptx_races {
	uint32_t block_sync, launch;
	struct shared_byte *shared; /* [PTX_WINDOW] */
	struct page *bucket[BUCKETS], *last;
};

struct ptx_races *ptx_races_new(void)
{
	struct ptx_races *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	r->shared = calloc(PTX_WINDOW, sizeof(r->shared[0]));
	if (r->shared == NULL) {
		ptx_races_free(r);
		return NULL;
	}
	return r;
}

void ptx_races_free(struct ptx_races *r)
{
	if (r == NULL)
		return;
	for (uint32_t i = 0; i < BUCKETS; i++)
		while (r->bucket[i] != NULL) {
			struct page *p = r->bucket[i];

			r->bucket[i] = p->next;
			free(p);
		}
	free(r->shared);
	free(r);
}

void ptx_races_begin_launch(struct ptx_races *r)
{
	r->launch++;
}

void ptx_races_barrier(struct ptx_races *r)
{
	if (++r->block_sync == 0)
		gpu_host_fail("too many barriers to tell apart");
}

/* x: the access before. */
static _Noreturn void tell(const struct gpu_blocks *blk, const char *what, uint64_t at, unsigned thread,
			   const struct global_access *x)
{
	fprintf(stderr, "ptx: RACE: %s at %#llx\n", what, (unsigned long long)at);
	ptx_tell_position(blk, blk->pc_now, blk->block, thread);
	ptx_tell_position(blk, x->pc, x->block, x->thread);
	abort();
}

/* ---- Shared memory ---- */

static inline bool same_warp(uint32_t x, uint32_t y)
{
	return x / PTX_LANES == y / PTX_LANES;
}

static _Noreturn void tell_shared(const struct gpu_blocks *blk, const char *what, uint32_t at, unsigned thread,
				  const struct access *x)
{
	const struct global_access before = { .pc = x->pc, .block = blk->block, .thread = x->thread };

	tell(blk, what, at - blk->shared_at, thread, &before);
}

/* Whether what the thread does now comes after x in any order of threads. */
static inline bool ordered(const struct gpu_blocks *blk, const struct access *x, unsigned thread)
{
	if (x->block_sync != blk->races->block_sync || x->thread == thread)
		return true;
	return same_warp(x->thread, thread) && x->warp_sync != blk->warp[blk->warp_now].syncs;
}

static inline struct access now(const struct gpu_blocks *blk, unsigned thread, uint32_t pc)
{
	return (struct access){ blk->races->block_sync, blk->warp[blk->warp_now].syncs, pc, (uint16_t)thread, false };
}

void ptx_note_read(struct gpu_blocks *blk, uint32_t at, unsigned n, unsigned lane)
{
	const unsigned thread = blk->warp_now * PTX_LANES + lane;
	const struct access me = now(blk, thread, blk->pc_now);

	for (struct shared_byte *s = &blk->races->shared[at], *end = s + n; s < end; s++) {
		if (s->writer.in_flight)
			tell_shared(blk, "a read of what is being copied", at, thread, &s->writer);
		if (!ordered(blk, &s->writer, thread))
			tell_shared(blk, "a read after a write", at, thread, &s->writer);
		if (s->reader.thread != thread) {
			if (same_warp(s->reader.thread, thread))
				s->other_lane = s->reader;
			else
				s->other_warp = s->reader;
		}
		s->reader = me;
	}
}

void ptx_note_write(struct gpu_blocks *blk, uint32_t at, unsigned n, unsigned lane, bool copied)
{
	const unsigned thread = blk->warp_now * PTX_LANES + lane;
	struct access me = now(blk, thread, blk->pc_now);

	me.in_flight = copied;
	for (struct shared_byte *s = &blk->races->shared[at], *end = s + n; s < end; s++) {
		const struct access *readers[] = { &s->reader, &s->other_lane, &s->other_warp };

		if (s->writer.in_flight)
			tell_shared(blk, "a write to where a copy is under way", at, thread, &s->writer);
		if (!ordered(blk, &s->writer, thread))
			tell_shared(blk, "two writes", at, thread, &s->writer);
		for (unsigned i = 0; i < 3; i++)
			if (!ordered(blk, readers[i], thread))
				tell_shared(blk, "a write after a read", at, thread, readers[i]);
		s->writer = me;
	}
}

/* From now on it is a write of the thread that waited: others still need a barrier. */
void ptx_note_waited(struct gpu_blocks *blk, const struct ptx_copy *c)
{
	const struct access me = now(blk, blk->warp_now * PTX_LANES + c->lane, c->pc);

	for (struct shared_byte *s = &blk->races->shared[c->to], *end = s + c->bytes; s < end; s++)
		s->writer = me;
}

/* ---- Global memory ---- */

static struct page *find_page(struct ptx_races *r, uint64_t number)
{
	struct page **at = &r->bucket[number * 0x9e3779b97f4a7c15u >> 48], *p;

	if (r->last != NULL && r->last->number == number)
		return r->last;
	for (p = *at; p != NULL && p->number != number; p = p->next)
		;
	if (p == NULL) {
		p = calloc(1, sizeof(*p));
		if (p == NULL)
			gpu_host_fail("out of memory");
		p->number = number;
		p->next = *at;
		*at = p;
	}
	r->last = p;
	return p;
}

static inline bool global_ordered(const struct gpu_blocks *blk, const struct global_access *x, unsigned thread)
{
	const struct ptx_races *r = blk->races;

	if (x->launch != r->launch || (x->block == blk->block && x->thread == thread))
		return true;
	if (x->block != blk->block)
		return false;
	return x->block_sync != r->block_sync ||
	       (same_warp(x->thread, thread) && x->warp_sync != blk->warp[blk->warp_now].syncs);
}

static void note_word(struct gpu_blocks *blk, uint64_t word, unsigned thread, bool write, bool whole)
{
	const struct ptx_races *r = blk->races;
	struct global_word *g = &find_page(blk->races, word / PAGE_WORDS)->word[word % PAGE_WORDS];
	const struct global_access me = { r->launch,   blk->block, r->block_sync, blk->warp[blk->warp_now].syncs,
					  blk->pc_now, thread };

	if (!global_ordered(blk, &g->writer, thread))
		tell(blk, write ? "two writes to global memory" : "a read of global memory after a write", word * 4,
		     thread, &g->writer);
	if (blk->code[blk->pc_now].constant && g->writer.launch == r->launch)
		tell(blk, "a read with ld.nc of what the kernel has written", word * 4, thread, &g->writer);
	if (!write) {
		if (g->reader.thread != thread || g->reader.block != blk->block)
			g->other = g->reader;
		g->reader = me;
	} else if (whole) {
		for (const struct global_access *x = &g->reader; x <= &g->other; x++)
			if (!global_ordered(blk, x, thread))
				tell(blk, "a write to global memory after a read", word * 4, thread, x);
		g->writer = me;
	}
}

void ptx_note_global(struct gpu_blocks *blk, uint64_t at, unsigned n, unsigned lane, bool write)
{
	const unsigned thread = blk->warp_now * PTX_LANES + lane;

	note_word(blk, at / 4, thread, write, n >= 4);
	for (unsigned i = 1; i < n / 4; i++)
		note_word(blk, at / 4 + i, thread, write, true);
}
