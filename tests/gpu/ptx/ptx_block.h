/* ptx_block.h - the block of threads that is being run: warps, strands, registers, shared memory.
 *
 * Lanes of a warp that are at the same instruction run as one: a strand. It runs until its lanes reach a barrier, meet
 * others of their warp, or end. Then another strand runs, a random one of those that are ready.
 * Thread: the one that runs the grid. Owner: gpu_blocks_free() frees all of it. */
#ifndef OD_TESTS_PTX_BLOCK_H
#define OD_TESTS_PTX_BLOCK_H

#include "tests/gpu/gpu_emulated_warps.h"
#include "tests/gpu/ptx/ptx_code.h"
#include "tests/gpu/ptx/ptx_races.h"

#define PTX_ALL 0xffffffffu /* lanes */
#define PTX_MOST_WARPS (GPU_HOST_THREADS / PTX_LANES)
#define PTX_WINDOW (64u << 10) /* bytes of the address space of shared memory */

struct ptx_strand {
	uint32_t warp, mask, pc;
};

struct ptx_copy { /* cp.async: carried out at any time before the wait for it */
	uint32_t lane, bytes, group, to; /* to: in shared memory */
	uint32_t pc;
	bool done;
	uint64_t from;
};

struct ptx_warp {
	uint32_t alive; /* lanes that have not ended */
	uint32_t at_bar, at_meet; /* lanes that wait for the block, for the warp */
	uint32_t waited; /* lanes that may access global memory: the kernel before has ended for them */
	uint32_t pc[PTX_LANES]; /* waiting lanes' */
	uint32_t value[PTX_LANES]; /* values that they bring to a shuffle or vote */
	uint32_t syncs; /* bar.warp.sync so far */
	uint32_t group[PTX_LANES]; /* the next copy's */
	struct ptx_copy *copy; /* not waited for */
	uint32_t n_copies, room;
	unsigned char *registers;
};

struct gpu_blocks {
	uint64_t random;
	const struct ptx_kernel *k;
	const struct ptx_insn *code;
	unsigned char *constants, *registers, *args, *shared; /* shared: [PTX_WINDOW] */
	size_t constants_room, registers_room, args_room;
	uint32_t shared_at, n_shared; /* the part of it that the launch has */
	unsigned n_threads, n_warps, n_alive, n_at; /* n_at: at the block's barrier */
	struct gpu_grid grid;
	uint32_t block; /* its number in the grid */
	struct ptx_warp warp[PTX_MOST_WARPS];
	struct ptx_strand ready[GPU_HOST_THREADS];
	unsigned n_ready;
	bool lockstep; /* lanes that part at a branch meet again as soon as they can */
	unsigned splits; /* one time in so many, lanes part where they go on after they met; 0: never */
	struct ptx_races *races;
	uint32_t warp_now, pc_now; /* the running strand's */
};

/* Operands are read and written as what the instruction says, whatever wrote them. */
typedef uint32_t ptx_u32 __attribute__((may_alias));
typedef uint64_t ptx_u64 __attribute__((may_alias));

static inline unsigned char *ptx_source(const struct gpu_blocks *blk, const struct ptx_warp *w, ptx_operand o)
{
	return o >= 0 ? w->registers + o : blk->constants + ~o;
}

static inline unsigned ptx_first(uint32_t mask)
{
	return (unsigned)__builtin_ctz(mask);
}

/* ptx_blocks.c */
uint32_t ptx_draw(struct gpu_blocks *blk);
bool ptx_one_in(struct gpu_blocks *blk, unsigned n); /* 0: never */
void ptx_push(struct gpu_blocks *blk, struct ptx_strand s); /* it is ready */
void ptx_go_on(struct gpu_blocks *blk, struct ptx_strand s); /* for lanes that have met: some may go on alone */
void ptx_tell_position(const struct gpu_blocks *blk, uint32_t pc, uint32_t block, unsigned thread);
/* A GPU would fault, or do anything: ends the process with the position. lane: of the strand that runs. */
_Noreturn void ptx_fail(const struct gpu_blocks *blk, unsigned lane, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ptx_execute.c */
void ptx_run_strand(struct gpu_blocks *blk, struct ptx_strand s);

/* ptx_memory.c; mask: lanes that do it */
void ptx_load(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask);
void ptx_store(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask);
void ptx_prefetch(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask);
void ptx_begin_copies(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask);
void ptx_wait_copies(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask);
void ptx_do_some_copies(struct gpu_blocks *blk);

/* ptx_meet.c */
/* A shuffle, vote or bar.warp.sync. true: the whole warp was there, and the strand goes on; else it has stopped. */
bool ptx_meet(struct gpu_blocks *blk, const struct ptx_insn *i, uint32_t mask);
/* These stop the strand. */
void ptx_barrier(struct gpu_blocks *blk, uint32_t mask);
void ptx_end(struct gpu_blocks *blk, uint32_t mask);

#endif
