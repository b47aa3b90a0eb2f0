/* schedule.h - what a worker loads next, into which slot, and which expert it computes next (prefetch and just-in-time
 * eviction after OD-MoE, arXiv 2512.03927, section 3.2).
 *
 * A slot holds one expert, from its load until nobody needs it any more. An entry is one expert asked for by one (step, m):
 * by a RUN (authoritative), by a WANT (advice), or kept between two RUNs of a (step, m) that both need it. Entries are
 * served RUNs first, then in the order of (step, m, rank). Who needs a slot when none is free takes one from another:
 * - A RUN takes the slot of the WANT that comes last in that order; a kept expert's only when no RUN holds a slot, because
 *   then nothing else would ever become free.
 * - A WANT takes the slot of a WANT of a later layer or step.
 * - Slots that the cache has pinned are never taken, and do not count: besides them there are n_slots. So some RUN always
 *   makes progress, with one slot, too.
 *
 * An expert's load takes what the cache has of it (expert_cache.h) and reads the rest; when the slot becomes free, its buffers
 * are offered to the cache. The cache is told of a use when its RUN has a slot, once for each (step, m). Experts that the
 * cache keeps ready to compute on are pinned in their slots.
 *
 * A load is a graph of jobs (ZipMoE, arXiv 2601.21198, section 3.2): each part is read, then finished. What has been read
 * waits in a stage (load_stages.h), so that reading goes on while others inflate. Readers and inflaters take jobs of the most
 * urgent load, in the order of its parts.
 *
 * Thread: a monitor, every function from any thread unless it says otherwise; no I/O and no callback under its lock. The
 * loop thread brings WANT, CLOSE and the session's ends, the engine thread RUNs, and takes items; readers and inflaters take
 * jobs; the planner of the cache plans.
 * Owner: items belong to the engine; from odw_schedule_run until they have been taken, and are done when they are to be
 * computed, they must stay where they are. */
#ifndef ODW_SCHEDULE_H
#define ODW_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/base/counters.h"
#include "worker-node/cache/expert_cache.h"

#define ODW_MAX_SLOTS 64
#define ODW_MAX_ENTRIES 65536u /* WANTs beyond are dropped, RUNs beyond are answered OD_ERR_BUSY */

struct odw_schedule;

/* What threads have spent on parts of experts. */
struct odw_part_times {
	uint64_t read_bytes, read_ns;
	uint64_t finishes, finish_ns;
};

/* What an expert of which nothing is cached costs: to read, with all readers at work; and one inflater, for all parts. */
struct odw_expert_costs {
	uint64_t read_ns, finish_ns;
	uint64_t sm_read_ns; /* of read_ns, for SM-chunks */
	uint32_t n_parts;
	unsigned n_inflaters;
};

struct odw_schedule_opts {
	uint32_t n_moe, n_experts; /* of MoE layers, per layer */
	uint32_t n_parts;	      /* that any expert is read in */
	unsigned n_slots;
	struct odw_bufs *bufs;		/* n_slots of what a slot has, and what the cache may keep; NULL: slots have no memory */
	struct odw_expert_cache *cache; /* NULL: none; with it: */
	uint32_t max_pinned;		/* slots that it can ever pin */
	unsigned n_stages; /* parts that are read or being read, and not finished: at most ODW_MAX_STAGES */
	/* For the order of loads; 0: they are loaded as asked for. */
	unsigned n_readers, n_inflaters;
	uint64_t expert_bytes, sm_bytes; /* that are read of one; of these, of SM-chunks */
	struct odw_part_times profile;	 /* counts until the first load (load_profile.h) */
	uint64_t (*now_ns)(void);	 /* NULL: od_now_ns; tests have their own */
};

/* One expert of one RUN. */
struct odw_item {
	uint32_t expert, rank; /* set by the engine, as what follows; the schedule may exchange ranks (run_order.h) */
	uint32_t n_rows;
	bool last, prompt;     /* prompt: the cache is not told of this use */
	uint64_t run_ns;       /* what running it will take, 0: not known */
	void *run;	       /* the engine's */

	uint64_t step; /* from here on set by the schedule */
	uint32_t m;
	bool ready;		    /* resident when the RUN arrived */
	enum od_cache_state cached; /* by the cache, when the RUN arrived */
	int slot;		    /* where it is resident, when code is OD_OK, and there: */
	struct od_expert_mem mem;
	int code; /* OD_ERR_CANCELLED: the session is over, nobody waits for an answer */
	char reason[512];
	uint64_t load_ns, loaded_bytes; /* of its load; 0 when an earlier RUN was given them */
	void *entry; /* the schedule's, as the next */
	TAILQ_ENTRY(odw_item) link;
};

/* What to do for a load: read a part, or finish one that was read. */
enum odw_load_kind { ODW_LOAD_READ, ODW_LOAD_FINISH };

struct odw_load_job {
	enum odw_load_kind kind;
	uint32_t m, expert, part;
	int slot;
	uint64_t begin_ns; /* when it was taken */
	unsigned stage; /* the same when a part is read and when it is finished; nobody else's until then */
	struct od_expert_mem mem;
	unsigned read; /* of OD_SET_STORED: what this load reads; the rest is in mem, and was checked when it was read */
};

struct odw_load_figures {
	uint64_t progress; /* grows with every job and odw_schedule_tick */
	bool busy;	   /* RUNs wait, are computed, or experts are being loaded */
	uint64_t c[OD_N_COUNTERS]; /* loads, reads and finishes, since the schedule was made */
};

OD_MUST_CHECK int odw_schedule_new(struct odw_schedule **out, const struct odw_schedule_opts *opts,
				   struct od_err *err);
void odw_schedule_free(struct odw_schedule *s); /* after loaders and engine have ended; NULL ok */

/* ---- What main asks for ---- */

/* A session begins empty; what an earlier one left is dropped. After the end its RUNs come back from
 * odw_schedule_take with OD_ERR_CANCELLED, its experts are gone. Calls with another session do nothing. */
void odw_schedule_begin(struct odw_schedule *s, uint64_t session);
void odw_schedule_end(struct odw_schedule *s, uint64_t session);
uint64_t odw_schedule_session(struct odw_schedule *s);

/* m and experts are in range, experts are unique, in order of rank. Versions that are not newer than what came
 * before, and layers that are closed, are ignored. Returns how many experts found no room in the queue. */
size_t odw_schedule_want(struct odw_schedule *s, uint64_t session, uint64_t step, uint32_t m, uint32_t version,
			 const uint32_t *experts, size_t n, bool prompt);
/* WANTs of the step up to layer m are dropped, and ignored if they come later. */
void odw_schedule_close(struct odw_schedule *s, uint64_t session, uint64_t step, uint32_t m);

/* n items of one RUN: all of them are taken, or none (OD_ERR_BUSY; OD_ERR_CANCELLED: the session is over). */
OD_MUST_CHECK int odw_schedule_run(struct odw_schedule *s, uint64_t session, uint64_t step, uint32_t m, bool closes,
				   struct odw_item *item, size_t n);

/* ---- The engine ---- */

/* The engine thread only; what it has taken is done before it takes again. The first item that is resident (code OD_OK: its slot stays until odw_schedule_done) or has failed
 * (any other code: it has ended, no odw_schedule_done); NULL: none. */
struct odw_item *odw_schedule_take(struct odw_schedule *s);
/* item[0] was taken. The next ones of its RUN that are resident too, or have failed too, follow it in order, as long as all of
 * them have at most max_rows rows and there are at most max. Returns how many there are, item[0] included. */
size_t odw_schedule_take_more(struct odw_schedule *s, struct odw_item **item, size_t max, uint64_t max_rows);
void odw_schedule_done(struct odw_schedule *s, struct odw_item *item);
void odw_schedule_tick(struct odw_schedule *s); /* progress that the schedule does not see */

/* ---- Readers and inflaters ---- */

/* The next part to read or to finish of the most urgent load that has one. With wait they sleep until there is one. False:
 * none, or stopped. */
OD_MUST_CHECK bool odw_schedule_next_read(struct odw_schedule *s, struct odw_load_job *job, bool wait);
OD_MUST_CHECK bool odw_schedule_next_finish(struct odw_schedule *s, struct odw_load_job *job, bool wait);
/* The job is done (OD_OK), or its part could not be had (err). True: the engine has something to take. */
OD_MUST_CHECK bool odw_schedule_end_job(struct odw_schedule *s, const struct odw_load_job *job, uint64_t read_bytes,
					int code, const struct od_err *err);
/* For a reader that takes its time: sleeps until that moment (of od_now_ns). True: at once, since the load was cancelled, or
 * the schedule is stopped. */
OD_MUST_CHECK bool odw_schedule_wait_cancelled(struct odw_schedule *s, uint32_t m, uint32_t expert, uint64_t until_ns);
/* There are no jobs from now on. */
void odw_schedule_stop(struct odw_schedule *s);

/* ---- The cache and its planner ---- */

/* Which worker this is. When the layers of its group are others than before, nothing is kept any more. */
void odw_schedule_place(struct odw_schedule *s, const struct od_share *share);
/* Sleeps until there is a plan to be made. False: stopped. */
OD_MUST_CHECK bool odw_schedule_next_plan(struct odw_schedule *s, struct odw_cache_uses *u);
/* Sleeps until a slot has become free since *seen (0 at first), which is set. False: stopped. */
OD_MUST_CHECK bool odw_schedule_wait_free(struct odw_schedule *s, uint64_t *seen);
/* As odw_cache_begin and odw_cache_set_plan: the cache keeps by this policy, by this plan, from now on. */
OD_MUST_CHECK bool odw_schedule_begin_cache(struct odw_schedule *s, uint64_t place, struct od_cache *policy);
void odw_schedule_set_plan(struct odw_schedule *s, uint64_t place, const struct od_cache_plan *plan);
/* What is kept of each expert, [n_moe][n_experts] of enum od_cache_state, if it has changed since *seen (which is set).
 * False: it has not. */
bool odw_schedule_cached(struct odw_schedule *s, uint64_t *seen, uint8_t *states);

/* ---- Looking ---- */

void odw_schedule_figures(struct odw_schedule *s, struct odw_load_figures *f);
/* As learnt from loads, before the first one as profiled. False: not known. */
bool odw_schedule_costs(struct odw_schedule *s, struct odw_expert_costs *c);

/* DRAINING: evicted, but readers, inflaters or the engine are still at work in it. */
enum odw_slot_state { ODW_FREE, ODW_LOADING, ODW_RESIDENT, ODW_DRAINING };
/* For tests and logs. */
struct odw_slot_view {
	enum odw_slot_state state;
	uint32_t m, expert;
	size_t entries;	  /* that ask for it; 0 when free or draining */
	bool pinned;	  /* by the cache */
	struct od_expert_mem mem;
	unsigned n_users; /* readers, inflaters and engine at work in it */
};
struct odw_slot_view odw_schedule_look(struct odw_schedule *s, unsigned slot); /* below n_slots + max_pinned */
size_t odw_schedule_entries(struct odw_schedule *s);

#endif
