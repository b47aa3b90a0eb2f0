/* ptx_races.h - finds accesses of two threads to the same address, one of them a write, that no barrier orders.
 *
 * A race ends the process, whether or not it changed a result. Shared memory is watched by the byte, global memory by
 * the word: of accesses to less than a word only those are noticed that race with accesses to all of it. Blocks of a
 * grid are never ordered, launches always. Of the reads of an address only the last ones are remembered, so a write can
 * miss a race with an earlier read.
 * Thread: the one that runs the grid. */
#ifndef OD_TESTS_PTX_RACES_H
#define OD_TESTS_PTX_RACES_H

#include <stdbool.h>
#include <stdint.h>

struct gpu_blocks;
struct ptx_copy;
struct ptx_races;

struct ptx_races *ptx_races_new(void); /* NULL: no memory */
void ptx_races_free(struct ptx_races *r); /* NULL ok */
void ptx_races_begin_launch(struct ptx_races *r);
void ptx_races_barrier(struct ptx_races *r); /* all threads of the block have met, or a block begins */

/* An access by a lane of the running strand; at: an address in shared or global memory. */
void ptx_note_read(struct gpu_blocks *blk, uint32_t at, unsigned n, unsigned lane);
/* copied: cp.async begins */
void ptx_note_write(struct gpu_blocks *blk, uint32_t at, unsigned n, unsigned lane, bool copied);
void ptx_note_waited(struct gpu_blocks *blk, const struct ptx_copy *c);
void ptx_note_global(struct gpu_blocks *blk, uint64_t at, unsigned n, unsigned lane, bool write);

#endif
