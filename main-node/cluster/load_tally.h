/* load_tally.h - what one worker loaded between two moments, by its own counters, which it tells with every PONG.
 *
 * A moment is a PING: the control socket keeps its order, so the PONG counts everything that was asked for or given up
 * before it. A worker that was lost counts as far as it had said; one that comes back may count from 0 again.
 * Thread: pure; its owner's. */
#ifndef ODM_LOAD_TALLY_H
#define ODM_LOAD_TALLY_H

#include <stdbool.h>
#include <stdint.h>

struct odm_load_counts {
	uint64_t begun; /* loads, used or not */
	uint64_t extra; /* never used: no RUN was computed with them */
};

struct odm_load_moment {
	uint64_t ping; /* 0: none is waited for */
	bool known;
	struct odm_load_counts at;
};

struct odm_load_tally {
	struct odm_load_counts now;    /* as it last said */
	struct odm_load_counts before; /* between the moments, of earlier sessions */
	struct odm_load_moment begin, end;
};

/* A new session, whose PINGs count from 1. */
void odm_load_tally_session(struct odm_load_tally *t);
/* The PING of this number goes out now, to begin (and forget what was; 0: it is not there, so what a later session loads
 * counts) or to end. */
void odm_load_tally_begin(struct odm_load_tally *t, uint64_t ping);
void odm_load_tally_end(struct odm_load_tally *t, uint64_t ping);
void odm_load_tally_pong(struct odm_load_tally *t, uint64_t ping, const struct odm_load_counts *now);
bool odm_load_tally_waits(const struct odm_load_tally *t); /* for an answer */
/* From begin to end; to now while the end is not known. */
struct odm_load_counts odm_load_tally_between(const struct odm_load_tally *t);

#endif
