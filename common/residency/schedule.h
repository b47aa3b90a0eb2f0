/* schedule.h - decides which expert is loaded next, into which slot, and which one is computed next (prefetch and
 * just-in-time eviction after OD-MoE, arXiv 2512.03927, section 3.2).
 *
 * A slot holds one expert, from its load until no entry needs it. An entry is one expert requested for one (step, m):
 * by a RUN (required), by a WANT (prefetch), or kept between two RUNs of the same (step, m). Entries are served RUNs
 * first, then in the order of (step, m, rank). If no slot is free, a victim is evicted:
 * - A RUN evicts the last WANT in that order; a kept expert only when no RUN holds a slot, because then no slot would
 *   ever become free.
 * - A WANT evicts a WANT of a later layer or step.
 * - Slots pinned by the cache are never victims and are not counted in n_slots.
 * Slots are counted in number and in bytes, since layers may differ in size. Nothing is evicted for an entry that would
 * not fit all the same. The largest expert fits when all other slots are free. So some RUN always makes progress, even
 * with one slot.
 *
 * A use is recorded in the cache (expert_cache.h) when the RUN has a slot, once per (step, m). Experts that the cache
 * keeps stay pinned in their slots.
 *
 * A load consists of jobs (ZipMoE, arXiv 2601.21198, section 3.2): each slice is read, then finished. A slice that has
 * been read waits in a stage (load_stages.h), so that reading and inflating overlap. Readers and inflaters take jobs of
 * the most urgent load first, in the order of its slices.
 *
 * Thread: any, unless stated otherwise (a monitor; no I/O and no callback under its lock). The loop thread adds WANT,
 * CLOSE and session ends; the engine thread adds RUNs and takes items; readers and inflaters take jobs.
 * Owner: the engine owns items; they must stay in place from od_schedule_run until they are taken and, if they are to
 * be computed, done. */
#ifndef OD_RESIDENCY_SCHEDULE_H
#define OD_RESIDENCY_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/base/counters.h"
#include "common/pack/load/expert_form.h"
#include "common/residency/expert_bufs.h"
#include "common/residency/expert_cache.h"

#define OD_MAX_SLOTS 1024 /* two layers of 512 experts */
#define OD_MAX_ENTRIES 65536u /* WANTs beyond are dropped, RUNs beyond are answered OD_ERR_BUSY */

struct od_schedule;

struct od_schedule_opts {
	uint32_t n_moe, n_experts; /* MoE layers; experts of a layer */
	uint32_t n_slices; /* slices per expert */
	unsigned n_slots;
	/* [n_moe]: memory of an expert of each layer in a slot; the slots together take at most slots_bytes. NULL:
	 * n_slots alone limits them. Borrowed */
	const uint64_t *slot_bytes;
	uint64_t slots_bytes;
	struct od_expert_bufs *bufs; /* buffers for all slots; NULL: slots have no memory */
	struct od_expert_cache *cache; /* NULL: none */
	uint32_t max_pinned; /* limit of slots that the cache pins */
	unsigned n_stages; /* at most OD_MAX_LOAD_STAGES */
	uint64_t (*now_ns)(void); /* NULL: od_now_ns; for tests */
};

/* One expert of one RUN. */
struct od_schedule_item {
	/* Set by the engine. */
	uint32_t expert, rank; /* the schedule permutes the ranks of a RUN */
	uint32_t n_rows;
	bool last, prompt; /* prompt: the use is not recorded in the cache; od-worker sets it for prefill */
	void *run; /* for the engine */

	/* Set by the schedule. */
	uint64_t step;
	uint32_t m;
	bool ready; /* resident when the RUN arrived */
	bool kept; /* the cache kept it when the RUN arrived */
	int slot; /* code OD_OK: where it is resident */
	struct od_expert_mem mem; /* code OD_OK: its memory there */
	int code; /* OD_ERR_CANCELLED: the session has ended; send no answer */
	char reason[512];
	/* its load's; 0 if reported to an earlier RUN. load_ns: time in which threads worked on it */
	uint64_t load_ns, loaded_bytes;
	void *entry;
	TAILQ_ENTRY(od_schedule_item) link;
};

/* A job of a load: read a slice, or finish a slice that has been read. */
enum od_load_kind { OD_LOAD_READ, OD_LOAD_FINISH };

struct od_load_job {
	enum od_load_kind kind;
	uint32_t m, expert, slice;
	int slot;
	uint64_t begin_ns; /* when the job was taken */
	unsigned stage; /* reserved for the slice from reading to finishing */
	struct od_expert_mem mem;
};

struct od_load_figures {
	uint64_t progress; /* grows with every job and od_schedule_tick */
	bool busy; /* RUNs are waiting or computed, or experts are being loaded */
	uint64_t c[OD_N_COUNTERS]; /* loads, reads and finishes, since the schedule was made */
	uint64_t loading_ns; /* time, since then, in which any slice was read or finished */
};

OD_MUST_CHECK int od_schedule_new(struct od_schedule **out, const struct od_schedule_opts *opts, struct od_err *err);
void od_schedule_free(struct od_schedule *s); /* after loaders and engine have ended; NULL ok */

/* ---- Requests of main ---- */

/* begin drops the state of an earlier session. After end od_schedule_take returns the session's RUNs with
 * OD_ERR_CANCELLED, and its experts are evicted. Calls with another session do nothing. */
void od_schedule_begin(struct od_schedule *s, uint64_t session);
void od_schedule_end(struct od_schedule *s, uint64_t session);
uint64_t od_schedule_session(struct od_schedule *s);

/* m and experts are in range; experts are unique, in order of rank. Ignores versions that are not newer than the last
 * one, and closed layers. Returns the number of experts dropped because the queue is full. */
size_t od_schedule_want(struct od_schedule *s, uint64_t session, uint64_t step, uint32_t m, uint32_t version,
			const uint32_t *experts, size_t n, bool prompt);
/* Drops the step's WANTs up to layer m; later ones are ignored. */
void od_schedule_close(struct od_schedule *s, uint64_t session, uint64_t step, uint32_t m);

/* Queues the n items of one RUN: all, or none (OD_ERR_BUSY; OD_ERR_CANCELLED: the session has ended). */
OD_MUST_CHECK int od_schedule_run(struct od_schedule *s, uint64_t session, uint64_t step, uint32_t m, bool closes,
				  struct od_schedule_item *item, size_t n);

/* ---- The engine ---- */

/* Engine thread only; it finishes taken items before it takes more. Returns the first item that is resident (code
 * OD_OK; its slot is held until od_schedule_done) or has failed (any other code; no od_schedule_done). NULL: none. */
struct od_schedule_item *od_schedule_take(struct od_schedule *s);
/* After od_schedule_take returned item[0]: takes further items of its RUN in order, while they are also resident (or,
 * if item[0] has failed, failed), up to max_rows rows and max items in all. Returns their number, item[0] included. */
size_t od_schedule_take_more(struct od_schedule *s, struct od_schedule_item **item, size_t max, uint64_t max_rows);
void od_schedule_done(struct od_schedule *s, struct od_schedule_item *item);
void od_schedule_tick(struct od_schedule *s); /* reports progress in the engine, for od_load_figures.progress */

/* ---- Readers and inflaters ---- */

/* Takes the next job, of the most urgent load that has one. wait: sleeps until there is one. False: none, or
 * stopped. */
OD_MUST_CHECK bool od_schedule_next_read(struct od_schedule *s, struct od_load_job *job, bool wait);
OD_MUST_CHECK bool od_schedule_next_finish(struct od_schedule *s, struct od_load_job *job, bool wait);
/* Ends a job: done (OD_OK), or failed (err). True: od_schedule_take has an item. */
OD_MUST_CHECK bool od_schedule_end_job(struct od_schedule *s, const struct od_load_job *job, uint64_t read_bytes,
				       int code, const struct od_err *err);
/* For paced readers: sleeps until until_ns (of od_now_ns). True: returned early, because the load was cancelled or the
 * schedule stopped. */
OD_MUST_CHECK bool od_schedule_wait_cancelled(struct od_schedule *s, uint32_t m, uint32_t expert, uint64_t until_ns);
/* Stops handing out jobs and wakes all waiting threads. */
void od_schedule_stop(struct od_schedule *s);

/* ---- The cache ---- */

/* Texts prefer the experts that they used last, or do not (od_expert_cache_favour_recent). If that changes, the cache
 * is emptied. */
void od_schedule_favour_recent(struct od_schedule *s, bool recent);
/* Sets the place in a cluster. The cache keeps experts of layers that the group still serves. */
void od_schedule_place(struct od_schedule *s, const struct od_share *share);
/* Divides memory anew: another budget of the cache, and other limits of the slots. The largest expert fits into
 * slots_bytes. n_slots and the experts that fit into the budget are together no more than n_slots and max_pinned of the
 * options. If more slots are in use than that, WANTs lose theirs now, and RUNs when they are done. */
void od_schedule_divide(struct od_schedule *s, uint64_t budget_bytes, unsigned n_slots, uint64_t slots_bytes);
/* Another budget of the cache: `bytes` less than it keeps now. job: for its expert; NULL: for others, not while the
 * pointers of od_schedule_all_pinned are in use. False: the cache keeps nothing, or the job's load is cancelled. */
bool od_schedule_keep_less(struct od_schedule *s, const struct od_load_job *job, uint64_t bytes);
/* Fills kept [n_moe][n_experts] with 0 or 1 if any has changed since *seen, and updates *seen. False: none has
 * changed. */
bool od_schedule_cached(struct od_schedule *s, uint64_t *seen, uint8_t *kept);

/* keeps [n]: whether the cache keeps each of the experts [n] of a layer. */
void od_schedule_keeps(struct od_schedule *s, uint32_t m, const uint16_t *experts, size_t n, bool *keeps);

/* For experts [n] of a layer that may be computed elsewhere. gain [n]: as od_expert_cache_gain; INFINITY: it has a
 * slot, loaded or being loaded. */
void od_schedule_gains(struct od_schedule *s, uint32_t m, const uint16_t *experts, size_t n, double *gain);
/* They are computed elsewhere in this step: uses for the cache. */
void od_schedule_used_elsewhere(struct od_schedule *s, uint64_t step, uint32_t m, const uint16_t *experts, size_t n);

/* Lists the experts of a layer that the cache does not keep and that recent steps have used with this probability at
 * least; 0: all. experts: room for all of the layer. Returns how many. */
size_t od_schedule_missing(struct od_schedule *s, uint32_t m, double least, uint32_t *experts);

/* True: the cache pins every expert; fills mem [n_moe][n_experts]. They stay until the place or the budget
 * changes. */
bool od_schedule_all_pinned(struct od_schedule *s, struct od_expert_mem *mem);

/* ---- Statistics ---- */

void od_schedule_figures(struct od_schedule *s, struct od_load_figures *f);

/* DRAINING: evicted, but still in use by readers, inflaters or the engine. */
enum od_slot_state { OD_SLOT_FREE, OD_SLOT_LOADING, OD_SLOT_RESIDENT, OD_SLOT_DRAINING };
/* For tests and logs. */
struct od_slot_view {
	enum od_slot_state state;
	uint32_t m, expert;
	size_t entries; /* entries that need it; 0 when free or draining */
	bool pinned; /* by the cache */
	struct od_expert_mem mem;
	unsigned n_users; /* readers, inflaters and engine that use it now */
};
struct od_slot_view od_schedule_look(struct od_schedule *s, unsigned slot); /* below n_slots + max_pinned */
size_t od_schedule_entries(struct od_schedule *s);

#endif
