/* load_schedule_internal.h - the schedule's own table, for load_schedule.c, slot_claims.c and schedule_cache.c.
 * Thread: everything under the schedule's lock. */
#ifndef ODW_LOAD_SCHEDULE_INTERNAL_H
#define ODW_LOAD_SCHEDULE_INTERNAL_H

#include <pthread.h>

#include "worker-node/load_schedule.h"
#include "worker-node/load_stages.h"
#include "worker-node/slots.h"
#include "worker-node/step_marks.h"

TAILQ_HEAD(item_list, odw_item);

/* Asked for by one (step, m). It has items or is being computed (it stands in runs), else it is wanted or kept (it
 * stands in wants). */
struct entry {
	uint64_t step;
	uint32_t m, expert, rank, version;
	bool in_runs, wanted, kept, computing;
	bool unheard; /* a use that the cache has not heard of */
	struct item_list items;
	TAILQ_ENTRY(entry) order; /* in runs or wants, by key */
	TAILQ_ENTRY(entry) same;  /* of the same expert */
};
TAILQ_HEAD(entry_list, entry);

/* One expert of one layer: who asks for it and where it is. */
struct expert {
	struct entry_list entries;
	bool listed;	 /* entries is initialised (a table of all experts would be touched whole otherwise) */
	uint32_t slot;	 /* number + 1, 0: none */
	uint64_t pass;	 /* the pass of odw_assign_slots() that promised it a slot */
};

struct slot {
	TAILQ_ENTRY(slot) link; /* in void_slots or busy, or, when the cache keeps it full, in neither */
	enum odw_slot_state state;
	uint32_t m, expert;
	struct od_expert_mem mem;
	unsigned whole;	  /* buffers that hold what they should */
	unsigned read;	  /* of OD_SET_STORED: what its load reads */
	uint32_t next_part, ends; /* to be read; those that have been finished */
	bool full;	  /* resident, and the cache keeps it so */
	unsigned n_users; /* readers, inflaters and the engine: a slot is void only after the last one left */
	bool used, told;  /* a RUN was computed with it; a RUN was told its load's figures */
	uint64_t begin_ns, load_ns, loaded_bytes;
};
TAILQ_HEAD(slot_list, slot);

struct odw_schedule {
	pthread_mutex_t lock;
	pthread_cond_t to_read, to_finish; /* there may be a part to read, or to finish; or stop */
	pthread_cond_t to_plan;		   /* there may be a plan to make, or a slot void; or stop */
	pthread_cond_t cancelled;	   /* a load was; or stop */
	bool stop;
	struct odw_schedule_opts opts;
	struct odw_stages stages;
	uint64_t session; /* 0: none */
	struct odw_step_marks *marks;
	struct expert *expert; /* [n_layers][n_experts] */
	struct slot *slot;	  /* [n_table]: n_slots, and what the cache can keep full */
	unsigned n_table;
	struct slot_list void_slots, busy;
	unsigned n_busy;     /* more than n_slots when the cache ceased to keep one that is asked for */
	unsigned n_draining; /* of these */
	uint64_t n_voided;   /* slots, ever */
	uint64_t pass;

	struct entry *pool; /* [ODW_MAX_ENTRIES], touched as needed */
	struct entry_list unused;
	size_t n_pool, n_entries, n_items;
	struct entry_list runs, wants;
	struct item_list over;	 /* failed or cancelled items on their way to the engine */
	uint16_t *visit;	 /* [n_experts], scratch */
	struct entry *computing; /* whose item the engine has; NULL: none, or its session is over */
	struct odw_load_figures figures;
};

static inline struct expert *odw_expert_at(struct odw_schedule *s, uint32_t m, uint32_t expert)
{
	struct expert *x = &s->expert[(size_t)m * s->opts.n_experts + expert];

	if (!x->listed) {
		TAILQ_INIT(&x->entries);
		x->listed = true;
	}
	return x;
}

static inline struct expert *odw_expert_of(struct odw_schedule *s, const struct entry *e)
{
	return odw_expert_at(s, e->m, e->expert);
}

static inline struct expert *odw_expert_in(struct odw_schedule *s, const struct slot *slot)
{
	return odw_expert_at(s, slot->m, slot->expert);
}

/* All of its expert is here, and a part of it can be finished at once. */
static inline bool odw_needs_no_read(const struct odw_schedule *s, const struct slot *slot)
{
	return slot->read == 0 && slot->next_part < s->opts.n_parts && s->stages.n_free > 0;
}

/* Of the time that reading an expert takes, what its SM-chunks do. */
static inline uint64_t odw_sm_ns(const struct odw_schedule *s, uint64_t read_ns)
{
	if (s->opts.expert_bytes == 0)
		return 0;
	return (uint64_t)((double)read_ns * (double)s->opts.sm_bytes / (double)s->opts.expert_bytes);
}

/* By step and layer; then by rank and expert. */
int odw_compare_entry_layers(const struct entry *a, const struct entry *b);
int odw_compare_entries(const struct entry *a, const struct entry *b);
/* The entry is gone, and with it its expert when nobody else asks for it. */
void odw_drop_entry(struct odw_schedule *s, struct entry *e);

/* ---- slot_claims.c ---- */

/* What a slot's expert is needed for, from least to most binding. */
enum need { NEED_WANT, NEED_KEPT, NEED_RUN };

/* *first is the entry that makes it urgent: the first RUN if there is one, else the first of all. */
enum need odw_slot_need(struct odw_schedule *s, const struct slot *slot, const struct entry **first);
/* The expert leaves its slot, which is void at once, or when its last user leaves it. */
void odw_slot_vacate(struct odw_schedule *s, struct slot *slot);
/* After a change of who asks for its expert, or of the cache's word on it: it is kept full, or has to go, or neither. */
void odw_slot_settle(struct odw_schedule *s, struct slot *slot);
void odw_slot_user_leaves(struct odw_schedule *s, struct slot *slot);
/* Brings slots to entries, after every change, and lets the cache hear of RUNs that have one. The order of the lists is the
 * order of the claims. */
void odw_assign_slots(struct odw_schedule *s);
/* The slot whose load is most urgent and has a job of this kind that nobody took yet. */
struct slot *odw_most_urgent_load(struct odw_schedule *s, enum odw_load_kind kind);

/* ---- schedule_cache.c ---- */

/* Tells the cache of RUNs that have a slot and does what it says. True: there were such. */
bool odw_hear_uses(struct odw_schedule *s);

#endif
