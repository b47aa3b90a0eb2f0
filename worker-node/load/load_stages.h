/* load_stages.h - the stages of loads: each holds one slice that is being read, waits for an inflater, or is being
 * finished. Their number bounds the read-ahead; each stage has staging memory unless slices are read to where they
 * stay.
 *
 * Thread: the schedule's, under its lock. Owner: the caller; plain data. */
#ifndef ODW_LOAD_STAGES_H
#define ODW_LOAD_STAGES_H

#include <stdbool.h>
#include <stdint.h>

#define ODW_MAX_STAGES 256

enum odw_stage_state { ODW_STAGE_FREE, ODW_STAGE_READING, ODW_STAGE_READ, ODW_STAGE_FINISHING };

struct odw_stages {
	unsigned n, n_free;
	struct odw_stage {
		enum odw_stage_state state;
		int slot;
		uint32_t slice;
	} at[ODW_MAX_STAGES];
};

void odw_stages_init(struct odw_stages *s, unsigned n);
/* Takes a stage for a slice that is about to be read; one is free. */
unsigned odw_stages_take(struct odw_stages *s, int slot, uint32_t slice);
void odw_stages_leave(struct odw_stages *s, unsigned stage);
/* The stage of the first read slice of the slot; -1: none. */
int odw_stages_read(const struct odw_stages *s, int slot);
/* Drops the slot's read slices: they will not be finished. True: stages became free. */
bool odw_stages_drop(struct odw_stages *s, int slot);

#endif
