/* load_stages.h - the stages of loads: each holds one slice that is being read, waits for an inflater, or is being
 * finished. Their number bounds the read-ahead; each stage has staging memory unless slices are read to where they
 * stay.
 *
 * Thread: the schedule's, under its lock. Owner: the caller; plain data. */
#ifndef OD_RESIDENCY_LOAD_STAGES_H
#define OD_RESIDENCY_LOAD_STAGES_H

#include <stdbool.h>
#include <stdint.h>

#define OD_MAX_LOAD_STAGES 256

enum od_stage_state { OD_STAGE_FREE, OD_STAGE_READING, OD_STAGE_READ, OD_STAGE_FINISHING };

struct od_load_stages {
	unsigned n, n_free;
	struct od_load_stage {
		enum od_stage_state state;
		int slot;
		uint32_t slice;
	} at[OD_MAX_LOAD_STAGES];
};

void od_load_stages_init(struct od_load_stages *s, unsigned n);
/* Takes a stage for a slice that is about to be read; one is free. */
unsigned od_load_stages_take(struct od_load_stages *s, int slot, uint32_t slice);
void od_load_stages_leave(struct od_load_stages *s, unsigned stage);
/* The stage of the first read slice of the slot; -1: none. */
int od_load_stages_read(const struct od_load_stages *s, int slot);
/* Drops the slot's read slices: they will not be finished. True: stages became free. */
bool od_load_stages_drop(struct od_load_stages *s, int slot);

#endif
