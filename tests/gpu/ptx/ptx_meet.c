/* Operations that threads do together: shuffles, votes, barriers of a warp and of the block; and the end of threads. */
#include "tests/gpu/ptx/ptx_block.h"

static const ptx_u32 *words(const struct gpu_blocks *blk, const struct ptx_warp *w, ptx_operand o)
{
	return (const ptx_u32 *)(const void *)ptx_source(blk, w, o);
}

/* The lane that a lane reads from, as the PTX manual says for shfl.sync; by and c: the operands b and c. false: its
 * own. */
static bool shuffled(enum ptx_op op, unsigned lane, uint32_t by, uint32_t c, unsigned *from)
{
	const uint32_t clamp = c & 31, segment = c >> 8 & 31;
	const int highest = (int)((lane & segment) | (clamp & ~segment));
	int at;

	by &= 31;
	if (op == PTX_SHFL_UP)
		at = (int)lane - (int)by;
	else if (op == PTX_SHFL_BFLY)
		at = (int)(lane ^ by);
	else
		at = (int)((lane & segment) | (by & ~segment));
	if (op == PTX_SHFL_UP ? at < highest : at > highest) {
		*from = lane;
		return false;
	}
	*from = (unsigned)at;
	return true;
}

/* Results for lanes that are at the same instruction; all lanes of the warp have brought their values. */
static void exchange(const struct gpu_blocks *blk, const struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
	ptx_u32 *d = (ptx_u32 *)(void *)(w->registers + i->d), *valid = (ptx_u32 *)(void *)(w->registers + i->valid);
	const ptx_u32 *by = words(blk, w, i->b), *c = words(blk, w, i->c);
	uint32_t all = 0;

	if (i->op == PTX_VOTE)
		for (unsigned lane = 0; lane < PTX_LANES; lane++)
			all |= (w->value[lane] & 1) << lane;
	for (; mask != 0; mask &= mask - 1) {
		const unsigned lane = ptx_first(mask);
		unsigned from;
		bool is_valid;

		if (i->op == PTX_VOTE) {
			d[lane] = all;
			continue;
		}
		is_valid = shuffled((enum ptx_op)i->op, lane, by[lane], c[lane], &from);
		d[lane] = w->value[from]; /* d may be b or c, which no later lane reads of this one */
		valid[lane] = is_valid;
	}
}

static void bring(const struct gpu_blocks *blk, struct ptx_warp *w, const struct ptx_insn *i, uint32_t mask)
{
	const ptx_u32 *members = words(blk, w, i->e);
	const ptx_u32 *value = i->op == PTX_BAR_WARP ? NULL : words(blk, w, i->a);

	for (; mask != 0; mask &= mask - 1) {
		const unsigned lane = ptx_first(mask);

		if (members[lane] != PTX_ALL)
			ptx_fail(blk, lane, "only lanes %08x do something together", members[lane]);
		if (value != NULL)
			w->value[lane] = value[lane];
	}
}

static void check_meeting(const struct gpu_blocks *blk, const struct ptx_warp *w, const struct ptx_insn *i,
			  uint32_t mask)
{
	const struct ptx_insn *other = w->at_meet != 0 ? &blk->code[w->pc[ptx_first(w->at_meet)]] : i;

	if (w->alive != PTX_ALL)
		ptx_fail(blk, ptx_first(mask), "lanes of its warp have ended, so they cannot do anything together");
	if (w->at_bar != 0)
		ptx_fail(blk, ptx_first(mask),
			 "lanes of its warp wait at a barrier of the block, while others meet in the warp");
	if (other->op != i->op)
		ptx_fail(blk, ptx_first(mask), "lanes of a warp do different things together (PTX lines %u and %u)",
			 i->line, other->line);
}

/* The strand stops. */
static void note_position(struct ptx_warp *w, uint32_t mask, uint32_t pc)
{
	for (; mask != 0; mask &= mask - 1)
		w->pc[ptx_first(mask)] = pc;
}

/* Lanes of mask that wait where its first one does. */
static uint32_t same_position(const struct ptx_warp *w, uint32_t mask)
{
	const uint32_t pc = w->pc[ptx_first(mask)];
	uint32_t same = 0;

	for (; mask != 0; mask &= mask - 1)
		if (w->pc[ptx_first(mask)] == pc)
			same |= mask & -mask;
	return same;
}

/* All lanes of the warp have come, at one instruction or more. */
static void complete(struct gpu_blocks *blk, struct ptx_warp *w)
{
	w->at_meet = 0;
	if (blk->code[w->pc[0]].op == PTX_BAR_WARP)
		w->syncs++;
	for (uint32_t left = PTX_ALL, same; left != 0; left &= ~same) {
		const uint32_t pc = w->pc[ptx_first(left)];

		same = same_position(w, left);
		if (blk->code[pc].op != PTX_BAR_WARP)
			exchange(blk, w, &blk->code[pc], same);
		ptx_go_on(blk, (struct ptx_strand){ blk->warp_now, same, pc + 1 });
	}
}

bool ptx_meet(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask)
{
	struct ptx_warp *w = &blk->warp[blk->warp_now];

	check_meeting(blk, w, i, mask);
	bring(blk, w, i, mask);
	if (mask == PTX_ALL && !ptx_one_in(blk, 4)) {
		if (i->op == PTX_BAR_WARP)
			w->syncs++;
		else
			exchange(blk, w, i, mask);
		return true;
	}
	note_position(w, mask, blk->pc_now);
	w->at_meet |= mask;
	if (w->at_meet == PTX_ALL)
		complete(blk, w);
	return false;
}

/* All threads that have not ended are at a barrier. */
static void open_barrier(struct gpu_blocks *blk)
{
	const uint32_t warp_now = blk->warp_now;

	blk->n_at = 0;
	ptx_races_barrier(blk->races);
	for (uint32_t i = 0; i < blk->n_warps; i++) {
		struct ptx_warp *w = &blk->warp[i];
		const uint32_t mask = w->at_bar;

		if (mask == 0)
			continue;
		blk->warp_now = i;
		blk->pc_now = w->pc[ptx_first(mask)];
		if (same_position(w, mask) != mask)
			ptx_fail(blk, ptx_first(mask & ~same_position(w, mask)),
				 "lanes of its warp are at different barriers");
		w->at_bar = 0;
		ptx_go_on(blk, (struct ptx_strand){ i, mask, blk->pc_now + 1 });
	}
	blk->warp_now = warp_now;
}

void ptx_barrier(struct gpu_blocks *blk, uint32_t mask)
{
	struct ptx_warp *w = &blk->warp[blk->warp_now];

	if (w->at_meet != 0)
		ptx_fail(blk, ptx_first(mask), "lanes of its warp wait for it to do something together");
	note_position(w, mask, blk->pc_now);
	w->at_bar |= mask;
	blk->n_at += (unsigned)__builtin_popcount(mask);
	if (blk->n_at == blk->n_alive)
		open_barrier(blk);
}

void ptx_end(struct gpu_blocks *blk, uint32_t mask)
{
	struct ptx_warp *w = &blk->warp[blk->warp_now];

	if (w->at_meet != 0)
		ptx_fail(blk, ptx_first(mask), "lanes of its warp wait for it, but it has ended");
	for (uint32_t j = 0; j < w->n_copies; j++)
		if ((mask >> w->copy[j].lane & 1) != 0)
			ptx_fail(blk, w->copy[j].lane, "it has ended, but has not waited for a copy to shared memory");
	w->alive &= ~mask;
	blk->n_alive -= (unsigned)__builtin_popcount(mask);
	if (blk->n_alive > 0 && blk->n_at == blk->n_alive)
		open_barrier(blk);
}
