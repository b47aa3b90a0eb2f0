/* Loads, stores and copies: what a GPU would fault on ends the process. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/ptx/ptx_block.h"

/* Memory that the kernel before has yet to write must not be read, nor written where it may still read. */
static inline void check_waited(const struct gpu_blocks *blk, unsigned lane)
{
	if ((blk->warp[blk->warp_now].waited >> lane & 1) == 0)
		ptx_fail(blk, lane, "an access to global memory before griddepcontrol.wait");
}

static inline void check_shared(const struct gpu_blocks *blk, uint64_t at, unsigned n, unsigned lane)
{
	if (at < blk->shared_at || at + n > blk->shared_at + blk->n_shared)
		ptx_fail(blk, lane, "%u bytes at %lld of shared memory, which has %u", n,
			 (long long)at - blk->shared_at, blk->n_shared);
}

static inline uint64_t address_of(const struct ptx_insn *i, const unsigned char *base, unsigned lane)
{
	const uint64_t at =
		i->narrow ? ((const ptx_u32 *)(const void *)base)[lane] : ((const ptx_u64 *)(const void *)base)[lane];

	return at + (uint64_t)i->offset;
}

static bool is_shared(const struct gpu_blocks *blk, uint64_t a)
{
	return a - (uintptr_t)blk->shared < PTX_WINDOW;
}

/* Generic addresses are those of the host. n: bytes of all elements. */
static inline unsigned char *resolve(struct gpu_blocks *blk, const struct ptx_insn *i, uint64_t a, unsigned n,
				     unsigned lane)
{
	const bool write = i->op == PTX_ST;

	if ((a & (n - 1)) != 0) /* n is a power of two */
		ptx_fail(blk, lane, "an access to %u bytes at %#llx is not aligned", n, (unsigned long long)a);
	if (i->space == PTX_PARAM) {
		const uint64_t at = a - (uintptr_t)blk->args;

		if (at >= blk->k->args_bytes || n > blk->k->args_bytes - at)
			ptx_fail(blk, lane, "%u bytes at %lld of the argument, which has %zu", n, (long long)at,
				 blk->k->args_bytes);
		return (unsigned char *)(uintptr_t)a;
	}
	if (i->space == PTX_SHARED || is_shared(blk, a)) {
		if (i->space == PTX_GLOBAL || i->space == PTX_CONST)
			ptx_fail(blk, lane, "an address of shared memory is used as one of another memory");
		if (i->space != PTX_SHARED)
			a -= (uintptr_t)blk->shared;
		check_shared(blk, a, n, lane);
		if (write)
			ptx_note_write(blk, (uint32_t)a, n, lane, false);
		else
			ptx_note_read(blk, (uint32_t)a, n, lane);
		return blk->shared + a;
	}
	if (i->space != PTX_CONST) {
		check_waited(blk, lane);
		ptx_note_global(blk, a, n, lane, write);
	}
	return (unsigned char *)(uintptr_t)a;
}

static inline uint64_t get(const unsigned char *at, unsigned bytes)
{
	uint64_t v = 0; /* the processor is little-endian, as GPUs are */

	switch (bytes) {
	case 1: memcpy(&v, at, 1); break;
	case 2: memcpy(&v, at, 2); break;
	case 4: memcpy(&v, at, 4); break;
	default: memcpy(&v, at, 8); break;
	}
	return v;
}

void ptx_load(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask)
{
	const struct ptx_warp *w = &blk->warp[blk->warp_now];
	const unsigned char *base = ptx_source(blk, w, i->a);
	const unsigned n = (unsigned)i->bytes * i->n;
	uint64_t v[4];

	for (; mask != 0; mask &= mask - 1) {
		const unsigned lane = ptx_first(mask);
		const unsigned char *at = resolve(blk, i, address_of(i, base, lane), n, lane);

		for (unsigned j = 0; j < i->n; j++)
			v[j] = i->has_sign ? (uint64_t)(int8_t)at[j] : get(at + (size_t)j * i->bytes, i->bytes);
		for (unsigned j = 0; j < i->n; j++)
			if (i->wide)
				((ptx_u64 *)(void *)(w->registers + i->v[j]))[lane] = v[j];
			else
				((ptx_u32 *)(void *)(w->registers + i->v[j]))[lane] = (uint32_t)v[j];
	}
}

void ptx_store(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask)
{
	const struct ptx_warp *w = &blk->warp[blk->warp_now];
	const unsigned char *base = ptx_source(blk, w, i->a);
	const unsigned n = (unsigned)i->bytes * i->n;

	for (; mask != 0; mask &= mask - 1) {
		const unsigned lane = ptx_first(mask);
		unsigned char *at = resolve(blk, i, address_of(i, base, lane), n, lane);

		for (unsigned j = 0; j < i->n; j++) {
			const unsigned char *from = ptx_source(blk, w, i->v[j]);

			/* the low bytes */
			memcpy(at + (size_t)j * i->bytes, from + (size_t)lane * (i->wide ? 8 : 4), i->bytes);
		}
	}
}

void ptx_prefetch(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask)
{
	const unsigned char *base = ptx_source(blk, &blk->warp[blk->warp_now], i->a);

	for (; mask != 0; mask &= mask - 1) /* it has to be there */
		(void)*(const volatile unsigned char *)(uintptr_t)address_of(i, base, ptx_first(mask));
}

/* ---- Copies to shared memory ---- */

static void carry_out(const struct gpu_blocks *blk, struct ptx_copy *c)
{
	if (!c->done)
		memcpy(blk->shared + c->to, (const void *)(uintptr_t)c->from, c->bytes);
	c->done = true;
}

static void check_copy(const struct gpu_blocks *blk, const struct ptx_copy *c)
{
	check_waited(blk, c->lane);
	if (c->to % c->bytes != 0 || c->from % c->bytes != 0)
		ptx_fail(blk, c->lane, "a copy is not aligned to its size");
	if (is_shared(blk, c->from))
		ptx_fail(blk, c->lane, "a copy from shared memory");
	check_shared(blk, c->to, c->bytes, c->lane);
}

void ptx_begin_copies(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask)
{
	struct ptx_warp *w = &blk->warp[blk->warp_now];
	const unsigned char *from = ptx_source(blk, w, i->a);
	const ptx_u32 *to = (const ptx_u32 *)(const void *)ptx_source(blk, w, i->d);

	for (; mask != 0; mask &= mask - 1) {
		const unsigned lane = ptx_first(mask);
		struct ptx_copy c = { lane,	   i->bytes, w->group[lane],	       to[lane],
				      blk->pc_now, false,    address_of(i, from, lane) };

		check_copy(blk, &c);
		ptx_note_write(blk, c.to, c.bytes, lane, true);
		ptx_note_global(blk, c.from, c.bytes, lane, false);
		if (w->n_copies == w->room) {
			w->room = 2 * w->room + 256;
			w->copy = realloc(w->copy, w->room * sizeof(w->copy[0]));
			if (w->copy == NULL)
				gpu_host_fail("out of memory");
		}
		if (ptx_one_in(blk, 8))
			carry_out(blk, &c);
		w->copy[w->n_copies++] = c;
	}
}

void ptx_wait_copies(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask)
{
	struct ptx_warp *w = &blk->warp[blk->warp_now];
	const uint32_t n = (uint32_t)i->offset;
	uint32_t left = 0;

	for (uint32_t j = 0; j < w->n_copies; j++) {
		struct ptx_copy *c = &w->copy[j];

		if ((mask >> c->lane & 1) != 0 && c->group + n < w->group[c->lane]) {
			carry_out(blk, c);
			ptx_note_waited(blk, c);
		} else {
			w->copy[left++] = *c;
		}
	}
	w->n_copies = left;
}

void ptx_do_some_copies(struct gpu_blocks *blk)
{
	const struct ptx_warp *w = &blk->warp[blk->warp_now];

	for (uint32_t j = 0; j < w->n_copies; j++)
		if (ptx_one_in(blk, 2))
			carry_out(blk, &w->copy[j]);
}
