/* load_stages.h - the parts of loads that are between their reading and their end: read, waiting for an inflater, or being
 * finished. Their number is the bound on reading ahead, and with slots of OD_FORM_PLAIN each has staging memory.
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
		uint32_t part;
	} at[ODW_MAX_STAGES];
};

void odw_stages_init(struct odw_stages *s, unsigned n);
/* For a part that is about to be read; there is a free one. */
unsigned odw_stages_take(struct odw_stages *s, int slot, uint32_t part);
void odw_stages_leave(struct odw_stages *s, unsigned stage);
/* Of the slot's parts that have been read, the first; -1: none. */
int odw_stages_read(const struct odw_stages *s, int slot);
/* Nobody will finish what has been read for this slot. True: some became free. */
bool odw_stages_drop(struct odw_stages *s, int slot);

#endif
