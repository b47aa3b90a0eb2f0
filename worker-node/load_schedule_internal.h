/* load_schedule_internal.h - the schedule's own table, for load_schedule.c and slot_claims.c.
 * Thread: everything under the schedule's lock. */
#ifndef ODW_LOAD_SCHEDULE_INTERNAL_H
#define ODW_LOAD_SCHEDULE_INTERNAL_H

#include <pthread.h>

#include "worker-node/load_pace.h"
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
	struct item_list items;
	TAILQ_ENTRY(entry) order; /* in runs or wants, by key */
	TAILQ_ENTRY(entry) same;  /* of the same expert */
};
TAILQ_HEAD(entry_list, entry);

/* One expert of one layer: who asks for it and where it is. */
struct expert {
	struct entry_list entries;
	bool listed;	 /* entries is initialised (a table of all experts would be touched whole otherwise) */
	uint8_t slot;	 /* number + 1, 0: none */
	uint64_t pass;	 /* the pass of odw_assign_slots() that promised it a slot */
};

struct slot {
	enum odw_slot_state state;
	uint32_t m, expert;
	uint32_t next_part, ends; /* to be read; of n_ends that there will be */
	bool paced;	  /* it has had its time */
	unsigned n_users; /* readers, inflaters and the engine: a slot is void only after the last one left */
	bool used, told;  /* a RUN was computed with it; a RUN was told its load's figures */
	uint64_t begin_ns, load_ns, loaded_bytes;
};

struct odw_schedule {
	pthread_mutex_t lock;
	pthread_cond_t to_read, to_finish; /* there may be a part to read, or to finish; or stop */
	bool stop;
	struct odw_schedule_opts opts;
	struct odw_pace pace;
	struct odw_stages stages;
	uint32_t n_ends; /* of a load: one for each part, and with paced loads one more, when it has had its time */
	uint64_t session; /* 0: none */
	struct odw_step_marks *marks;
	struct expert *expert; /* [n_layers][n_experts] */
	struct slot slot[ODW_MAX_SLOTS];
	unsigned n_draining;
	uint64_t pass;

	struct entry *pool; /* [ODW_MAX_ENTRIES], touched as needed */
	struct entry_list unused;
	size_t n_pool, n_entries, n_items;
	struct entry_list runs, wants;
	struct item_list over;	 /* failed or cancelled items on their way to the engine */
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
void odw_slot_user_leaves(struct odw_schedule *s, struct slot *slot);
/* Brings slots to entries, after every change. The order of the lists is the order of the claims. */
void odw_assign_slots(struct odw_schedule *s);
/* The slot whose load is most urgent and has a job of this kind that nobody took yet. */
struct slot *odw_most_urgent_load(struct odw_schedule *s, enum odw_load_kind kind);

#endif
