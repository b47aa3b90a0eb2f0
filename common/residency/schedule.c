/* schedule.c - everything under one lock. In this order: entries and slots, who gets which slot, what main asks for,
 * the engine, loads, the cache. */
#include "common/residency/schedule.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/timed_cond.h"
#include "common/residency/load_stages.h"
#include "common/residency/step_marks.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ORDERED 192 /* experts of a RUN; those of a larger one keep their order */

TAILQ_HEAD(item_list, od_schedule_item);

/* Why an expert is needed, from least to most binding. */
enum schedule_claim { CLAIM_WANT, CLAIM_KEPT, CLAIM_RUN };

/* One expert requested for one (step, m). A RUN's entry has items, waiting or being computed. */
struct schedule_entry {
	enum schedule_claim claim;
	uint64_t step;
	uint32_t m, expert, rank, version;
	bool prompt;
	bool use_to_report; /* to the cache, when it has a slot */
	struct item_list items;
	TAILQ_ENTRY(schedule_entry) order; /* RUNs in runs, others in wants, by key; unused ones */
	TAILQ_ENTRY(schedule_entry) same; /* entries of one expert */
};
TAILQ_HEAD(entry_list, schedule_entry);

/* One expert of one layer: its entries and its slot. */
struct schedule_expert {
	struct entry_list entries;
	bool listed; /* entries is initialised (a table of all experts would be touched whole otherwise) */
	uint32_t slot; /* where it is loading or resident: number + 1; 0: nowhere */
	uint64_t round; /* the round of give_slots() that promised it a slot */
};

struct slot {
	TAILQ_ENTRY(slot) link; /* in free_slots or busy; in neither while pinned */
	enum od_slot_state state;
	uint32_t m, expert;
	struct od_expert_mem mem;
	struct od_buf_sizes had; /* memory that its buffers had when it got them */
	bool committed; /* they have all that its expert takes */
	bool pinned; /* resident, and the cache wants it to stay */
	bool prompt; /* loaded for one */
	uint32_t next_slice, n_finished;
	unsigned n_users; /* readers, inflaters and the engine: it becomes free when the last one has left */
	bool used, reported; /* a RUN was computed with it; a RUN was given its load's figures */
	/* Time in which threads worked on its load. Its slices also wait behind those of loads that go first: that says
	 * nothing about how fast this machine loads. */
	uint64_t load_ns;
	unsigned n_jobs; /* jobs of its load that threads have now */
	uint64_t since_ns; /* n_jobs is above 0 since then */
	uint64_t loaded_bytes;
};
TAILQ_HEAD(slot_list, slot);

/* Slots and the memory of their experts, compared with n_slots and slots_bytes. */
struct slot_use {
	unsigned n;
	uint64_t bytes;
};

struct od_schedule {
	pthread_mutex_t lock;
	pthread_cond_t to_read, to_finish; /* there may be a slice to read, or to finish; or stop */
	pthread_cond_t cancelled; /* a load has been cancelled; or stop */
	bool stop;
	struct od_schedule_opts opts;
	struct od_load_figures figures;
	unsigned n_jobs; /* jobs of loads that threads have now */
	uint64_t loading_since_ns; /* n_jobs was 0 until then, or loading_ns was counted */

	uint64_t session; /* 0: none */
	struct od_step_marks *marks;
	struct schedule_expert *expert; /* [n_moe][n_experts] */
	struct schedule_entry *pool; /* [OD_MAX_ENTRIES], touched as needed */
	size_t n_pool, n_entries, n_items;
	struct entry_list unused, runs, wants;
	struct item_list ended; /* failed or cancelled, on their way to the engine */
	struct item_list computing; /* items that the engine has, of this session */

	struct slot *slot; /* [n_table]: n_slots, and those that the cache can pin */
	unsigned n_table;
	struct slot_list free_slots, busy;
	struct slot_use in_use; /* busy ones; more than the limits when one that is asked for is no longer pinned */
	struct slot_use draining; /* draining ones among these */
	uint64_t round;
	struct od_load_stages stages;
};

static struct schedule_expert *expert_at(struct od_schedule *s, uint32_t m, uint32_t expert)
{
	struct schedule_expert *x = &s->expert[(size_t)m * s->opts.n_experts + expert];

	if (!x->listed) {
		TAILQ_INIT(&x->entries);
		x->listed = true;
	}
	return x;
}

static struct schedule_expert *expert_of(struct od_schedule *s, const struct schedule_entry *e)
{
	return expert_at(s, e->m, e->expert);
}

static struct schedule_expert *expert_in(struct od_schedule *s, const struct slot *slot)
{
	return expert_at(s, slot->m, slot->expert);
}

static int number_of(const struct od_schedule *s, const struct slot *slot)
{
	return (int)(slot - s->slot);
}

static bool is_in_state(struct od_schedule *s, uint32_t m, uint32_t expert, enum od_slot_state state)
{
	const struct schedule_expert *x = expert_at(s, m, expert);

	return x->slot != 0 && s->slot[x->slot - 1].state == state;
}

static int compare_layers(const struct schedule_entry *a, const struct schedule_entry *b)
{
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	return a->m < b->m ? -1 : a->m > b->m;
}

/* By step and layer, then by rank and expert. */
static int compare_entries(const struct schedule_entry *a, const struct schedule_entry *b)
{
	const int d = compare_layers(a, b);

	if (d != 0)
		return d;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->expert < b->expert ? -1 : a->expert > b->expert;
}

/* ---- Slots ---- */

/* An expert of layer m in a slot. */
static struct slot_use one_of(const struct od_schedule *s, uint32_t m)
{
	return (struct slot_use){ 1, s->opts.slot_bytes != NULL ? s->opts.slot_bytes[m] : 0 };
}

static struct slot_use plus(struct slot_use a, struct slot_use b)
{
	return (struct slot_use){ a.n + b.n, a.bytes + b.bytes };
}

static struct slot_use minus(struct slot_use a, struct slot_use b)
{
	return (struct slot_use){ a.n - b.n, a.bytes - b.bytes };
}

static bool fits(const struct od_schedule *s, struct slot_use u)
{
	return u.n <= s->opts.n_slots && u.bytes <= s->opts.slots_bytes;
}

/* Puts a slot into the list of busy ones, or takes it out. */
static void make_busy(struct od_schedule *s, struct slot *slot)
{
	TAILQ_INSERT_TAIL(&s->busy, slot, link);
	s->in_use = plus(s->in_use, one_of(s, slot->m));
}

static void make_idle(struct od_schedule *s, struct slot *slot)
{
	TAILQ_REMOVE(&s->busy, slot, link);
	s->in_use = minus(s->in_use, one_of(s, slot->m));
}

/* The most binding claim on a slot's expert. *first is the entry that makes it urgent: the first RUN if there is one,
 * else the first of all. */
static enum schedule_claim claim_on(struct od_schedule *s, const struct slot *slot, const struct schedule_entry **first)
{
	enum schedule_claim claim = CLAIM_WANT;
	const struct schedule_entry *e;

	*first = NULL;
	TAILQ_FOREACH(e, &expert_in(s, slot)->entries, same)
	{
		const bool is_run = e->claim == CLAIM_RUN,
			   first_is_run = *first != NULL && (*first)->claim == CLAIM_RUN;

		if (*first == NULL || is_run > first_is_run ||
		    (is_run == first_is_run && compare_entries(e, *first) < 0))
			*first = e;
		if (e->claim > claim)
			claim = e->claim;
	}
	return claim;
}

static void free_slot(struct od_schedule *s, struct slot *slot)
{
	if (slot->state == OD_SLOT_DRAINING)
		s->draining = minus(s->draining, one_of(s, slot->m));
	if (expert_in(s, slot)->slot == 0) /* else it is being loaded elsewhere by now */
		od_expert_cache_forget(s->opts.cache, slot->m, slot->expert);
	if (slot->committed)
		od_expert_bufs_put(s->opts.bufs, slot->m, &slot->mem);
	else
		od_expert_bufs_put_unused(s->opts.bufs, slot->m, &slot->mem, &slot->had);
	make_idle(s, slot);
	*slot = (struct slot){ .state = OD_SLOT_FREE };
	TAILQ_INSERT_HEAD(&s->free_slots, slot, link);
}

/* A load that no RUN has used. */
static void count_eviction(uint64_t *c, const struct slot *slot)
{
	const bool cancelled = slot->state == OD_SLOT_LOADING && slot->next_slice > 0;
	const bool unused = slot->state == OD_SLOT_RESIDENT && !slot->used;

	c[OD_C_CANCELLED_LOADS] += cancelled;
	c[OD_C_UNUSED_LOADS] += unused;
	c[OD_C_PROMPT_EXTRA_LOADS] += (cancelled || unused) && slot->prompt;
}

/* The expert leaves its slot, which is free at once, or when its last user leaves it. */
static void evict(struct od_schedule *s, struct slot *slot)
{
	if (slot->state == OD_SLOT_LOADING)
		pthread_cond_broadcast(&s->cancelled);
	count_eviction(s->figures.c, slot); /* it looks at the state, which changes below */
	expert_in(s, slot)->slot = 0; /* free_slot() tells the cache only of an expert without a slot */
	if (od_load_stages_drop(&s->stages, number_of(s, slot))) {
		pthread_cond_broadcast(&s->to_read);
		pthread_cond_broadcast(&s->to_finish);
	}
	if (slot->n_users == 0) {
		free_slot(s, slot);
		return;
	}
	/* A reader, an inflater or the engine still uses the memory; user_leaves() frees the slot. */
	slot->state = OD_SLOT_DRAINING;
	s->draining = plus(s->draining, one_of(s, slot->m));
}

/* After a change of who asks for its expert, or of how the cache wants to keep it: pinned, evicted, or neither. */
static void update_slot(struct od_schedule *s, struct slot *slot)
{
	if (slot->state == OD_SLOT_RESIDENT && od_expert_cache_keeps(s->opts.cache, slot->m, slot->expert)) {
		if (!slot->pinned)
			make_idle(s, slot);
		slot->pinned = true;
		return;
	}
	/* It is among the busy ones again before evict(), which takes it from there. */
	if (slot->pinned) {
		slot->pinned = false;
		make_busy(s, slot);
	}
	if (TAILQ_EMPTY(&expert_in(s, slot)->entries))
		evict(s, slot);
}

static void user_leaves(struct od_schedule *s, struct slot *slot)
{
	slot->n_users--;
	if (slot->state == OD_SLOT_DRAINING && slot->n_users == 0)
		free_slot(s, slot);
}

/* ---- Entries ---- */

static struct schedule_entry *find_entry(struct od_schedule *s, uint64_t step, uint32_t m, uint32_t expert)
{
	struct schedule_entry *e;

	TAILQ_FOREACH(e, &expert_at(s, m, expert)->entries, same)
	{
		if (e->step == step)
			return e;
	}
	return NULL;
}

/* By key. Its place is looked for behind `near`, an entry of the same list, if it belongs there; else (NULL, too) from
 * the back: what comes later is mostly for later layers. */
static void put_in_order(struct od_schedule *s, struct schedule_entry *e, struct schedule_entry *near)
{
	struct entry_list *list = e->claim == CLAIM_RUN ? &s->runs : &s->wants;
	struct schedule_entry *before, *next;

	if (near != NULL && compare_entries(near, e) <= 0) {
		for (before = near; (next = TAILQ_NEXT(before, order)) != NULL && compare_entries(next, e) <= 0;)
			before = next;
	} else {
		before = TAILQ_LAST(list, entry_list);
		while (before != NULL && compare_entries(before, e) > 0)
			before = TAILQ_PREV(before, entry_list, order);
	}
	if (before == NULL)
		TAILQ_INSERT_HEAD(list, e, order);
	else
		TAILQ_INSERT_AFTER(list, before, e, order);
}

static void take_out(struct od_schedule *s, struct schedule_entry *e)
{
	TAILQ_REMOVE(e->claim == CLAIM_RUN ? &s->runs : &s->wants, e, order);
}

/* NULL: the queue is full. The caller inserts the entry into its list. */
static struct schedule_entry *new_entry(struct od_schedule *s, uint64_t step, uint32_t m, uint32_t expert)
{
	struct schedule_entry *e = TAILQ_FIRST(&s->unused);

	if (e != NULL)
		TAILQ_REMOVE(&s->unused, e, order);
	else if (s->n_pool < OD_MAX_ENTRIES)
		e = &s->pool[s->n_pool++];
	else
		return NULL;
	*e = (struct schedule_entry){ .step = step, .m = m, .expert = expert };
	TAILQ_INIT(&e->items);
	TAILQ_INSERT_TAIL(&expert_of(s, e)->entries, e, same);
	s->n_entries++;
	return e;
}

/* Removes the entry, and evicts its expert when no other entry needs it. */
static void drop_entry(struct od_schedule *s, struct schedule_entry *e)
{
	struct schedule_expert *x = expert_of(s, e);

	take_out(s, e);
	TAILQ_REMOVE(&x->entries, e, same);
	TAILQ_INSERT_HEAD(&s->unused, e, order);
	s->n_entries--;
	if (TAILQ_EMPTY(&x->entries) && x->slot != 0)
		update_slot(s, &s->slot[x->slot - 1]);
}

static void drop_kept(struct od_schedule *s, struct slot *slot)
{
	struct schedule_entry *e, *next;

	for (e = TAILQ_FIRST(&expert_in(s, slot)->entries); e != NULL; e = next) {
		next = TAILQ_NEXT(e, same);
		if (e->claim == CLAIM_KEPT)
			drop_entry(s, e);
	}
}

static void end_items(struct od_schedule *s, struct schedule_entry *e, int code, const char *reason)
{
	struct od_schedule_item *item;

	while ((item = TAILQ_FIRST(&e->items)) != NULL) {
		TAILQ_REMOVE(&e->items, item, link);
		item->code = code;
		snprintf(item->reason, sizeof(item->reason), "%s", reason);
		TAILQ_INSERT_TAIL(&s->ended, item, link);
	}
}

/* ---- Who gets which slot ---- */

/* The slot that a RUN may take: that of the WANT with the greatest key; else of the kept expert with the greatest key,
 * when no RUN holds a slot or will have one that drains (so nothing would ever become free). NULL: wait. */
static struct slot *victim_for_run(struct od_schedule *s)
{
	bool runs_hold = s->draining.n > 0;
	const struct schedule_entry *worst = NULL, *first;
	enum schedule_claim worst_claim = CLAIM_RUN;
	struct slot *victim = NULL, *slot;

	TAILQ_FOREACH(slot, &s->busy, link)
	{
		enum schedule_claim claim;

		if (slot->state == OD_SLOT_DRAINING)
			continue;
		claim = claim_on(s, slot, &first);
		if (claim == CLAIM_RUN) {
			runs_hold = true;
		} else if (victim == NULL || claim < worst_claim ||
			   (claim == worst_claim && compare_entries(first, worst) > 0)) {
			victim = slot;
			worst = first;
			worst_claim = claim;
		}
	}
	return victim != NULL && worst_claim == CLAIM_KEPT && runs_hold ? NULL : victim;
}

/* A WANT may only displace a WANT of a later layer or step: between those of one layer it would gain nothing. */
static struct slot *victim_for_want(struct od_schedule *s, const struct schedule_entry *e)
{
	const struct schedule_entry *worst = e, *first;
	struct slot *victim = NULL, *slot;

	TAILQ_FOREACH(slot, &s->busy, link)
	{
		if (slot->state == OD_SLOT_DRAINING)
			continue;
		if (claim_on(s, slot, &first) == CLAIM_WANT && compare_layers(first, e) > 0 &&
		    compare_entries(first, worst) > 0) {
			victim = slot;
			worst = first;
		}
	}
	return victim;
}

/* Until the slots in use fit into lower limits. */
static void evict_wants(struct od_schedule *s)
{
	const struct schedule_entry before_all = { .step = 0 };
	struct slot *slot;

	while (!fits(s, minus(s->in_use, s->draining)) && (slot = victim_for_want(s, &before_all)) != NULL)
		evict(s, slot);
}

/* Would `use` fit when all that the entry may displace were gone? Else nothing is: where sizes differ, an expert could
 * lose its slot although that is not enough. */
static bool can_fit(struct od_schedule *s, const struct schedule_entry *e, struct slot_use use)
{
	const struct schedule_entry *first;
	const struct slot *slot;

	if (fits(s, use))
		return true;
	TAILQ_FOREACH(slot, &s->busy, link)
	{
		enum schedule_claim claim;

		if (slot->state == OD_SLOT_DRAINING)
			continue;
		claim = claim_on(s, slot, &first);
		if (e->claim == CLAIM_RUN ? claim != CLAIM_RUN : claim == CLAIM_WANT && compare_layers(first, e) > 0)
			use = minus(use, one_of(s, slot->m));
	}
	return fits(s, use);
}

static void begin_load(struct od_schedule *s, struct schedule_entry *e)
{
	struct slot *slot = TAILQ_FIRST(&s->free_slots);

	TAILQ_REMOVE(&s->free_slots, slot, link);
	slot->state = OD_SLOT_LOADING;
	slot->m = e->m;
	make_busy(s, slot);
	slot->expert = e->expert;
	slot->prompt = e->prompt;
	slot->had = od_expert_bufs_fill(s->opts.bufs, slot->m, &slot->mem);
	expert_of(s, e)->slot = (uint32_t)number_of(s, slot) + 1;
	pthread_cond_broadcast(&s->to_read);
}

/* One entry without a slot gets one, or the promise of what drains. promised: in this round. False: there is nothing
 * for it. */
static bool give_slot(struct od_schedule *s, struct schedule_entry *e, struct slot_use *promised)
{
	const struct slot_use one = one_of(s, e->m);

	if (!can_fit(s, e, plus(minus(s->in_use, s->draining), plus(*promised, one))))
		return false;
	while (!fits(s, plus(minus(s->in_use, s->draining), plus(*promised, one)))) {
		struct slot *slot = e->claim == CLAIM_RUN ? victim_for_run(s) : victim_for_want(s, e);

		if (slot == NULL)
			return false;
		drop_kept(s, slot); /* with its last entry it is evicted */
		if (slot->state != OD_SLOT_FREE && slot->state != OD_SLOT_DRAINING)
			evict(s, slot);
	}
	expert_of(s, e)->round = s->round;
	if (fits(s, plus(s->in_use, one)))
		begin_load(s, e);
	else
		*promised = plus(*promised, one);
	return true;
}

/* The order of the lists is the order of the claims. */
static void give_slots(struct od_schedule *s)
{
	struct entry_list *const list[] = { &s->runs, &s->wants };
	struct slot_use promised = { 0 };
	struct schedule_entry *e;

	s->round++;
	for (int i = 0; i < 2; i++) {
		TAILQ_FOREACH(e, list[i], order)
		{
			const struct schedule_expert *x = expert_of(s, e);

			if (x->slot == 0 && x->round != s->round && !give_slot(s, e, &promised))
				return;
		}
	}
}

/* Applies the cache's decisions about experts that are in slots. */
static void apply_changes(struct od_schedule *s, struct od_expert_changes changes)
{
	for (size_t i = 0; i < changes.n; i++) {
		const struct schedule_expert *x = expert_at(s, changes.change[i].m, changes.change[i].expert);

		if (x->slot != 0)
			update_slot(s, &s->slot[x->slot - 1]);
	}
}

/* Tells the cache of RUNs that have a slot by now. True: there were such. */
static bool report_uses(struct od_schedule *s)
{
	struct schedule_entry *e;
	bool any = false;

	TAILQ_FOREACH(e, &s->runs, order)
	{
		if (!e->use_to_report || expert_of(s, e)->slot == 0)
			continue;
		e->use_to_report = false;
		any = true;
		apply_changes(s, od_expert_cache_use(s->opts.cache, e->step, e->m, e->expert));
	}
	return any;
}

/* To be called after every change of entries or slots. */
static void assign_slots(struct od_schedule *s)
{
	do
		give_slots(s);
	while (report_uses(s)); /* pins of the cache leave room for another */
}

/* ---- Sessions ---- */

static void drop_session(struct od_schedule *s)
{
	struct od_schedule_item *item;
	struct schedule_entry *e;

	TAILQ_FOREACH(item, &s->ended, link)
	item->code = OD_ERR_CANCELLED;
	while ((e = TAILQ_FIRST(&s->runs)) != NULL) {
		/* Items leave first: a dropped entry may be used again. */
		end_items(s, e, OD_ERR_CANCELLED, "the session is over");
		drop_entry(s, e);
	}
	while ((e = TAILQ_FIRST(&s->wants)) != NULL)
		drop_entry(s, e);
	/* The engine still has these: od_schedule_done() lets go of the slot, and must not find an entry. */
	while ((item = TAILQ_FIRST(&s->computing)) != NULL) {
		TAILQ_REMOVE(&s->computing, item, link);
		item->entry = NULL;
	}
	s->session = 0;
	od_step_marks_clear(s->marks);
}

void od_schedule_begin(struct od_schedule *s, uint64_t session)
{
	pthread_mutex_lock(&s->lock);
	drop_session(s);
	od_expert_cache_new_session(s->opts.cache);
	s->session = session;
	pthread_mutex_unlock(&s->lock);
}

void od_schedule_end(struct od_schedule *s, uint64_t session)
{
	pthread_mutex_lock(&s->lock);
	if (s->session == session)
		drop_session(s);
	pthread_mutex_unlock(&s->lock);
}

uint64_t od_schedule_session(struct od_schedule *s)
{
	uint64_t session;

	pthread_mutex_lock(&s->lock);
	session = s->session;
	pthread_mutex_unlock(&s->lock);
	return session;
}

/* ---- WANT and CLOSE ---- */

/* Closes the step's WANTs for m < below, and drops what is kept for these layers. */
static void close_layers(struct od_schedule *s, uint64_t step, uint32_t below)
{
	struct schedule_entry *e, *next;

	od_step_marks_close(s->marks, step, below);
	for (e = TAILQ_FIRST(&s->wants); e != NULL; e = next) {
		next = TAILQ_NEXT(e, order);
		if (e->step == step && e->m < below)
			drop_entry(s, e);
	}
}

/* Drops the WANTs that the newest version no longer names. last: an entry of that layer, all of which lie together; or
 * NULL. */
static void drop_older_wants(struct od_schedule *s, uint64_t step, uint32_t m, uint32_t version,
			     struct schedule_entry *last)
{
	struct schedule_entry *e = last != NULL ? last : TAILQ_FIRST(&s->wants), *other;

	while (last != NULL && (other = TAILQ_PREV(e, entry_list, order)) != NULL && compare_layers(other, last) == 0)
		e = other;
	for (; e != NULL && (last == NULL || compare_layers(e, last) == 0); e = other) {
		other = TAILQ_NEXT(e, order);
		if (e->step == step && e->m == m && e->claim == CLAIM_WANT && e->version != version)
			drop_entry(s, e);
	}
}

/* *last: the entry of the WANT's expert before this one, or NULL; this one's from then on: lists are long, and ranks
 * rise. False: the queue is full. */
static bool want_one(struct od_schedule *s, uint64_t step, uint32_t m, uint32_t expert, uint32_t rank, uint32_t version,
		     bool prompt, struct schedule_entry **last)
{
	struct schedule_entry *e = find_entry(s, step, m, expert);

	if (e != NULL && e->claim != CLAIM_WANT)
		return true; /* a RUN has it, or it is kept for one: that is more binding */
	if (e != NULL)
		take_out(s, e); /* before its rank changes: the list is in the order of ranks */
	else
		e = new_entry(s, step, m, expert);
	if (e == NULL)
		return false;
	e->rank = rank;
	e->version = version;
	e->prompt = prompt;
	put_in_order(s, e, *last != e ? *last : NULL);
	*last = e;
	return true;
}

size_t od_schedule_want(struct od_schedule *s, uint64_t session, uint64_t step, uint32_t m, uint32_t version,
			const uint32_t *experts, size_t n, bool prompt)
{
	struct schedule_entry *last = NULL;
	size_t n_dropped = 0;

	pthread_mutex_lock(&s->lock);
	if (session == s->session && session != 0 && od_step_marks_newer(s->marks, step, m, version)) {
		for (size_t i = 0; i < n; i++)
			n_dropped += !want_one(s, step, m, experts[i], (uint32_t)i, version, prompt, &last);
		/* Experts that are wanted again have the new version by now, so they keep their slots. */
		drop_older_wants(s, step, m, version, last);
		assign_slots(s);
	}
	pthread_mutex_unlock(&s->lock);
	return n_dropped;
}

void od_schedule_close(struct od_schedule *s, uint64_t session, uint64_t step, uint32_t m)
{
	pthread_mutex_lock(&s->lock);
	if (session == s->session && session != 0) {
		close_layers(s, step, m + 1);
		assign_slots(s);
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- RUN ---- */

static void run_one(struct od_schedule *s, uint64_t step, uint32_t m, struct od_schedule_item *item)
{
	struct schedule_entry *e = find_entry(s, step, m, item->expert);

	if (e == NULL || e->claim != CLAIM_RUN) {
		/* One that is kept between RUNs is the same use. */
		const bool is_use = s->opts.cache != NULL && !item->prompt && (e == NULL || e->claim != CLAIM_KEPT);

		if (e == NULL)
			e = new_entry(s, step, m, item->expert);
		else
			take_out(s, e);
		e->claim = CLAIM_RUN;
		e->prompt = item->prompt;
		e->use_to_report = is_use;
		e->rank = item->rank;
		put_in_order(s, e, NULL);
	}
	item->rank = e->rank; /* an earlier RUN's, if that still waits */
	item->step = step;
	item->m = m;
	item->code = OD_OK;
	item->ready = is_in_state(s, m, item->expert, OD_SLOT_RESIDENT);
	item->kept = od_expert_cache_keeps(s->opts.cache, m, item->expert);
	item->slot = -1;
	item->load_ns = item->loaded_bytes = 0;
	TAILQ_INSERT_TAIL(&e->items, item, link);
	s->n_items++;
}

/* Experts that need no load go first, so that runs begin early, and of these the ones in slots, which other loads want;
 * then those with the most rows, so that the run after the last load is short. */
static void order_items(struct od_schedule *s, uint32_t m, struct od_schedule_item *item, size_t n)
{
	struct {
		uint32_t rank;
		bool resident, pinned;
	} of[MAX_ORDERED];

	if (n > MAX_ORDERED)
		return;
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && item[i].rank < item[i - 1].rank)
			return; /* od-main's ranks rise */
		of[i].resident = is_in_state(s, m, item[i].expert, OD_SLOT_RESIDENT);
		of[i].pinned = of[i].resident && s->slot[expert_at(s, m, item[i].expert)->slot - 1].pinned;
		of[i].rank = item[i].rank;
	}
	for (size_t i = 0; i < n; i++) {
		size_t before = 0;

		for (size_t j = 0; j < n; j++) {
			if (of[j].resident != of[i].resident)
				before += of[j].resident;
			else if (of[j].pinned != of[i].pinned)
				before += of[i].pinned;
			else if (!of[i].resident && item[j].n_rows != item[i].n_rows)
				before += item[j].n_rows > item[i].n_rows;
			else
				before += j < i;
		}
		item[i].rank = of[before].rank;
	}
}

int od_schedule_run(struct od_schedule *s, uint64_t session, uint64_t step, uint32_t m, bool closes,
		    struct od_schedule_item *item, size_t n)
{
	int rc = OD_OK;

	pthread_mutex_lock(&s->lock);
	if (session != s->session || session == 0)
		rc = OD_ERR_CANCELLED;
	else if (n > OD_MAX_ENTRIES - s->n_entries || n > OD_MAX_ENTRIES - s->n_items)
		rc = OD_ERR_BUSY;
	if (rc == OD_OK) {
		order_items(s, m, item, n);
		for (size_t i = 0; i < n; i++)
			run_one(s, step, m, &item[i]);
		/* The RUN has taken over its WANTs' entries, so closing does not evict what it needs. */
		close_layers(s, step, closes ? m + 1 : m);
		assign_slots(s);
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* ---- The engine ---- */

/* A resident expert's first item. Its slot stays while the engine uses it. */
static struct od_schedule_item *begin_item(struct od_schedule *s, struct schedule_entry *e, struct slot *slot)
{
	struct od_schedule_item *item = TAILQ_FIRST(&e->items);

	TAILQ_REMOVE(&e->items, item, link);
	item->slot = number_of(s, slot);
	item->mem = slot->mem;
	if (!slot->reported) {
		item->load_ns = slot->load_ns;
		item->loaded_bytes = slot->loaded_bytes;
	}
	slot->used = slot->reported = true;
	slot->n_users++;
	item->entry = e;
	TAILQ_INSERT_TAIL(&s->computing, item, link);
	return item;
}

static struct od_schedule_item *take_ended(struct od_schedule *s, struct od_schedule_item *item)
{
	TAILQ_REMOVE(&s->ended, item, link);
	s->n_items--;
	return item;
}

/* The item of an entry that the engine could compute now; NULL: none. */
static struct od_schedule_item *first_ready(struct od_schedule *s, const struct schedule_entry *e)
{
	return is_in_state(s, e->m, e->expert, OD_SLOT_RESIDENT) ? TAILQ_FIRST(&e->items) : NULL;
}

struct od_schedule_item *od_schedule_take(struct od_schedule *s)
{
	struct od_schedule_item *item;
	struct schedule_entry *e;

	pthread_mutex_lock(&s->lock);
	item = TAILQ_FIRST(&s->ended);
	if (item != NULL) {
		take_ended(s, item);
	} else {
		TAILQ_FOREACH(e, &s->runs, order)
		{
			if (first_ready(s, e) != NULL) {
				item = begin_item(s, e, &s->slot[expert_of(s, e)->slot - 1]);
				break;
			}
		}
	}
	pthread_mutex_unlock(&s->lock);
	return item;
}

static size_t take_more_ended(struct od_schedule *s, struct od_schedule_item **item, size_t max)
{
	struct od_schedule_item *at, *next;
	size_t n = 1;

	for (at = TAILQ_FIRST(&s->ended); at != NULL && n < max; at = next) {
		next = TAILQ_NEXT(at, link);
		if (at->run == item[0]->run)
			item[n++] = take_ended(s, at);
	}
	return n;
}

static size_t take_more_ready(struct od_schedule *s, struct od_schedule_item **item, size_t max, uint64_t max_rows)
{
	struct schedule_entry *e = item[0]->entry; /* items before it were not ready */
	uint64_t rows = item[0]->n_rows;
	size_t n = 1;

	while (n < max && (e = TAILQ_NEXT(e, order)) != NULL && compare_layers(e, item[0]->entry) == 0) {
		const struct od_schedule_item *at = first_ready(s, e);

		if (at == NULL || at->run != item[0]->run)
			continue;
		rows += at->n_rows;
		if (rows > max_rows)
			break;
		item[n++] = begin_item(s, e, &s->slot[expert_of(s, e)->slot - 1]);
	}
	return n;
}

size_t od_schedule_take_more(struct od_schedule *s, struct od_schedule_item **item, size_t max, uint64_t max_rows)
{
	size_t n = 1;

	pthread_mutex_lock(&s->lock);
	if (item[0]->code != OD_OK)
		n = take_more_ended(s, item, max);
	else if (item[0]->entry != NULL) /* else its session is over */
		n = take_more_ready(s, item, max, max_rows);
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* The expert is dropped, or kept for further RUNs of the same (step, m). */
static void end_entry(struct od_schedule *s, struct schedule_entry *e, bool last)
{
	if (!TAILQ_EMPTY(&e->items))
		return;
	if (last || od_step_marks_closed(s->marks, e->step, e->m)) {
		drop_entry(s, e);
		return;
	}
	take_out(s, e);
	e->claim = CLAIM_KEPT;
	put_in_order(s, e, NULL);
}

void od_schedule_done(struct od_schedule *s, struct od_schedule_item *item)
{
	pthread_mutex_lock(&s->lock);
	s->n_items--;
	user_leaves(s, &s->slot[item->slot]);
	if (item->entry != NULL) {
		TAILQ_REMOVE(&s->computing, item, link);
		end_entry(s, item->entry, item->last);
	}
	assign_slots(s);
	pthread_mutex_unlock(&s->lock);
}

void od_schedule_tick(struct od_schedule *s)
{
	pthread_mutex_lock(&s->lock);
	s->figures.progress++;
	pthread_mutex_unlock(&s->lock);
}

/* ---- Loads ---- */

static bool has_job(const struct od_schedule *s, const struct slot *slot, enum od_load_kind kind)
{
	if (slot->state != OD_SLOT_LOADING)
		return false;
	if (kind == OD_LOAD_READ)
		return slot->next_slice < s->opts.n_slices && s->stages.n_free > 0;
	return od_load_stages_read(&s->stages, number_of(s, slot)) >= 0;
}

/* The most urgent load that has a job of this kind; NULL: none. */
static struct slot *most_urgent_load(struct od_schedule *s, enum od_load_kind kind)
{
	const struct schedule_entry *best_first = NULL, *first;
	enum schedule_claim best_claim = CLAIM_WANT;
	struct slot *best = NULL, *slot;

	TAILQ_FOREACH(slot, &s->busy, link)
	{
		enum schedule_claim claim;

		if (!has_job(s, slot, kind))
			continue;
		claim = claim_on(s, slot, &first);
		if (best == NULL || claim > best_claim ||
		    (claim == best_claim && compare_entries(first, best_first) < 0)) {
			best = slot;
			best_claim = claim;
			best_first = first;
		}
	}
	return best;
}

static struct slot *wait_for_load(struct od_schedule *s, enum od_load_kind kind, bool wait)
{
	struct slot *slot;

	while ((slot = s->stop ? NULL : most_urgent_load(s, kind)) == NULL && wait && !s->stop)
		pthread_cond_wait(kind == OD_LOAD_READ ? &s->to_read : &s->to_finish, &s->lock);
	return slot;
}

/* A stage for the load's next slice. */
static unsigned begin_slice(struct od_schedule *s, struct slot *slot)
{
	return od_load_stages_take(&s->stages, number_of(s, slot), slot->next_slice++);
}

static void count_loading(struct od_schedule *s, uint64_t now_ns)
{
	if (s->n_jobs > 0)
		s->figures.loading_ns += now_ns - s->loading_since_ns;
	s->loading_since_ns = now_ns;
}

static void begin_job(struct od_schedule *s, struct slot *slot, enum od_load_kind kind, unsigned stage,
		      struct od_load_job *job)
{
	const uint64_t now_ns = s->opts.now_ns();

	count_loading(s, now_ns);
	s->n_jobs++;
	if (slot->n_jobs++ == 0)
		slot->since_ns = now_ns;
	*job = (struct od_load_job){ .kind = kind,
				     .m = slot->m,
				     .expert = slot->expert,
				     .slice = s->stages.at[stage].slice,
				     .slot = number_of(s, slot),
				     .begin_ns = now_ns,
				     .stage = stage,
				     .mem = slot->mem };
	slot->n_users++;
}

bool od_schedule_next_read(struct od_schedule *s, struct od_load_job *job, bool wait)
{
	struct slot *slot;

	pthread_mutex_lock(&s->lock);
	slot = wait_for_load(s, OD_LOAD_READ, wait);
	if (slot != NULL)
		begin_job(s, slot, OD_LOAD_READ, begin_slice(s, slot), job);
	pthread_mutex_unlock(&s->lock);
	return slot != NULL;
}

bool od_schedule_next_finish(struct od_schedule *s, struct od_load_job *job, bool wait)
{
	struct slot *slot;
	unsigned stage;

	pthread_mutex_lock(&s->lock);
	slot = wait_for_load(s, OD_LOAD_FINISH, wait);
	if (slot != NULL) {
		stage = (unsigned)od_load_stages_read(&s->stages, number_of(s, slot));
		s->stages.at[stage].state = OD_STAGE_FINISHING;
		begin_job(s, slot, OD_LOAD_FINISH, stage, job);
	}
	pthread_mutex_unlock(&s->lock);
	return slot != NULL;
}

/* The load failed: answers the expert's RUNs with the error and drops its WANTs. */
static void load_failed(struct od_schedule *s, struct slot *slot, int code, const char *reason)
{
	struct schedule_expert *x = expert_in(s, slot);
	struct schedule_entry *e;

	slot->next_slice = 0; /* it does not count as cancelled */
	while ((e = TAILQ_FIRST(&x->entries)) != NULL) {
		end_items(s, e, code, reason);
		drop_entry(s, e);
	}
}

static void slice_is_finished(struct od_schedule *s, struct slot *slot)
{
	if (++slot->n_finished < s->opts.n_slices)
		return;
	slot->state = OD_SLOT_RESIDENT;
	s->figures.c[OD_C_LOADS]++;
	s->figures.c[OD_C_LOAD_NS] += slot->load_ns;
	update_slot(s, slot);
}

/* The slice that was read waits for an inflater, unless the load was cancelled. */
static void leave_stage(struct od_schedule *s, const struct od_load_job *job, bool goes_on)
{
	if (job->kind == OD_LOAD_READ && goes_on) {
		s->stages.at[job->stage].state = OD_STAGE_READ;
		pthread_cond_signal(&s->to_finish);
	} else {
		od_load_stages_leave(&s->stages, job->stage);
		pthread_cond_signal(&s->to_read);
	}
}

static void count_job(struct od_schedule *s, struct slot *slot, const struct od_load_job *job)
{
	const uint64_t now_ns = s->opts.now_ns(), ns = now_ns - job->begin_ns;

	count_loading(s, now_ns);
	s->n_jobs--;
	if (--slot->n_jobs == 0)
		slot->load_ns += now_ns - slot->since_ns;
	s->figures.progress++;
	if (job->kind == OD_LOAD_READ) {
		s->figures.c[OD_C_READS]++;
		s->figures.c[OD_C_READ_NS] += ns;
	} else {
		s->figures.c[OD_C_FINISHES]++;
		s->figures.c[OD_C_FINISH_NS] += ns;
	}
}

bool od_schedule_end_job(struct od_schedule *s, const struct od_load_job *job, uint64_t read_bytes, int code,
			 const struct od_err *err)
{
	struct slot *slot = &s->slot[job->slot];
	const struct schedule_entry *first;
	bool wake;

	pthread_mutex_lock(&s->lock);
	s->figures.c[OD_C_LOADED_BYTES] += read_bytes;
	count_job(s, slot, job);
	leave_stage(s, job, slot->state == OD_SLOT_LOADING && code == OD_OK);
	slot->committed = slot->committed || code == OD_OK; /* before a slice is read */
	if (slot->state == OD_SLOT_LOADING) {
		slot->loaded_bytes += read_bytes;
		if (code != OD_OK)
			load_failed(s, slot, code, err->msg);
		else if (job->kind == OD_LOAD_FINISH)
			slice_is_finished(s, slot);
	}
	wake = !TAILQ_EMPTY(&s->ended) || (slot->state == OD_SLOT_RESIDENT && claim_on(s, slot, &first) == CLAIM_RUN);
	user_leaves(s, slot);
	assign_slots(s);
	pthread_mutex_unlock(&s->lock);
	return wake;
}

bool od_schedule_wait_cancelled(struct od_schedule *s, uint32_t m, uint32_t expert, uint64_t until_ns)
{
	bool loading, early = true;

	pthread_mutex_lock(&s->lock);
	while ((loading = !s->stop && is_in_state(s, m, expert, OD_SLOT_LOADING)) && early)
		early = od_timed_cond_wait(&s->cancelled, &s->lock, until_ns);
	pthread_mutex_unlock(&s->lock);
	return !loading;
}

void od_schedule_stop(struct od_schedule *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->cancelled);
	pthread_cond_broadcast(&s->to_read);
	pthread_cond_broadcast(&s->to_finish);
	pthread_mutex_unlock(&s->lock);
}

/* ---- The cache ---- */

/* Pinned slots are in no list, so they are looked for in the table. */
static void unpin_all(struct od_schedule *s)
{
	for (unsigned i = 0; i < s->n_table; i++) {
		if (s->slot[i].pinned)
			update_slot(s, &s->slot[i]);
	}
	assign_slots(s);
}

void od_schedule_favour_recent(struct od_schedule *s, bool recent)
{
	pthread_mutex_lock(&s->lock);
	if (od_expert_cache_favour_recent(s->opts.cache, recent))
		unpin_all(s);
	pthread_mutex_unlock(&s->lock);
}

void od_schedule_place(struct od_schedule *s, const struct od_share *share)
{
	pthread_mutex_lock(&s->lock);
	if (od_expert_cache_place(s->opts.cache, share))
		unpin_all(s);
	pthread_mutex_unlock(&s->lock);
}

bool od_schedule_all_pinned(struct od_schedule *s, struct od_expert_mem *mem)
{
	const size_t n = (size_t)s->opts.n_moe * s->opts.n_experts;
	size_t n_pinned = 0;

	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < s->n_table; i++) {
		const struct slot *slot = &s->slot[i];

		if (!slot->pinned)
			continue;
		mem[(size_t)slot->m * s->opts.n_experts + slot->expert] = slot->mem;
		n_pinned++;
	}
	pthread_mutex_unlock(&s->lock);
	return n_pinned == n;
}

/* Experts that are no longer kept stay while something asks for them: if only WANTs do, and slots have no room for
 * them, they leave now. */
static void set_budget(struct od_schedule *s, uint64_t bytes)
{
	apply_changes(s, od_expert_cache_set_budget(s->opts.cache, bytes));
	evict_wants(s);
	assign_slots(s);
}

void od_schedule_divide(struct od_schedule *s, uint64_t budget_bytes, unsigned n_slots, uint64_t slots_bytes)
{
	pthread_mutex_lock(&s->lock);
	s->opts.n_slots = n_slots;
	s->opts.slots_bytes = slots_bytes;
	set_budget(s, budget_bytes);
	pthread_mutex_unlock(&s->lock);
}

/* A job's expert is not pinned while it is loading, so not all experts are. */
bool od_schedule_keep_less(struct od_schedule *s, const struct od_load_job *job, uint64_t bytes)
{
	uint64_t kept;
	bool any;

	pthread_mutex_lock(&s->lock);
	kept = od_expert_cache_kept_bytes(s->opts.cache);
	any = kept > 0 && (job == NULL || s->slot[job->slot].state == OD_SLOT_LOADING);
	if (any)
		set_budget(s, kept > bytes ? kept - bytes : 0);
	pthread_mutex_unlock(&s->lock);
	return any;
}

bool od_schedule_cached(struct od_schedule *s, uint64_t *seen, uint8_t *kept)
{
	uint64_t changes;
	bool changed;

	pthread_mutex_lock(&s->lock);
	changes = od_expert_cache_changes(s->opts.cache);
	changed = changes != *seen;
	if (changed)
		for (uint32_t m = 0; m < s->opts.n_moe; m++) {
			for (uint32_t expert = 0; expert < s->opts.n_experts; expert++)
				kept[(size_t)m * s->opts.n_experts + expert] =
					od_expert_cache_keeps(s->opts.cache, m, expert);
		}
	pthread_mutex_unlock(&s->lock);
	*seen = changes;
	return changed;
}

void od_schedule_keeps(struct od_schedule *s, uint32_t m, const uint16_t *experts, size_t n, bool *keeps)
{
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < n; i++)
		keeps[i] = od_expert_cache_keeps(s->opts.cache, m, experts[i]);
	pthread_mutex_unlock(&s->lock);
}

void od_schedule_gains(struct od_schedule *s, uint32_t m, const uint16_t *experts, size_t n, double *gain)
{
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < n; i++)
		gain[i] = expert_at(s, m, experts[i])->slot != 0 ? INFINITY :
								   od_expert_cache_gain(s->opts.cache, m, experts[i]);
	pthread_mutex_unlock(&s->lock);
}

void od_schedule_used_elsewhere(struct od_schedule *s, uint64_t step, uint32_t m, const uint16_t *experts, size_t n)
{
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < n; i++)
		od_expert_cache_used_elsewhere(s->opts.cache, step, m, experts[i]);
	pthread_mutex_unlock(&s->lock);
}

size_t od_schedule_missing(struct od_schedule *s, uint32_t m, double least, uint32_t *experts)
{
	const struct od_expert_cache *c = s->opts.cache;
	size_t n = 0;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->opts.n_experts; i++)
		if (!od_expert_cache_keeps(c, m, i) && (least <= 0 || od_expert_cache_chance(c, m, i) >= least))
			experts[n++] = i;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* ---- Statistics ---- */

void od_schedule_figures(struct od_schedule *s, struct od_load_figures *f)
{
	const struct slot *slot;

	pthread_mutex_lock(&s->lock);
	count_loading(s, s->opts.now_ns());
	*f = s->figures;
	f->busy = !TAILQ_EMPTY(&s->runs) || !TAILQ_EMPTY(&s->ended);
	TAILQ_FOREACH(slot, &s->busy, link)
	f->busy = f->busy || slot->state == OD_SLOT_LOADING;
	pthread_mutex_unlock(&s->lock);
}

struct od_slot_view od_schedule_look(struct od_schedule *s, unsigned slot)
{
	const struct slot *at = &s->slot[slot];
	const struct schedule_entry *e;
	struct od_slot_view v;

	pthread_mutex_lock(&s->lock);
	v = (struct od_slot_view){ .state = at->state, .pinned = at->pinned, .n_users = at->n_users, .mem = at->mem };
	if (v.state == OD_SLOT_LOADING || v.state == OD_SLOT_RESIDENT) {
		v.m = at->m;
		v.expert = at->expert;
		TAILQ_FOREACH(e, &expert_in(s, at)->entries, same)
		v.entries++;
	}
	pthread_mutex_unlock(&s->lock);
	return v;
}

size_t od_schedule_entries(struct od_schedule *s)
{
	size_t n;

	pthread_mutex_lock(&s->lock);
	n = s->n_entries;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* ---- New and free ---- */

static int make_tables(struct od_schedule *s, struct od_err *err)
{
	const struct od_schedule_opts *o = &s->opts;

	s->n_table = o->n_slots + o->max_pinned;
	s->slot = calloc(s->n_table, sizeof(*s->slot));
	s->marks = od_step_marks_new(o->n_moe);
	s->expert = od_alloc_array((size_t)o->n_moe * o->n_experts, sizeof(*s->expert));
	s->pool = od_map_sparse(OD_MAX_ENTRIES * sizeof(*s->pool));
	if (s->slot == NULL || s->marks == NULL || s->expert == NULL || s->pool == NULL)
		return od_fail(err, OD_ERR_NOMEM, "schedule of %u layers of %u experts", o->n_moe, o->n_experts);
	for (unsigned i = 0; i < s->n_table; i++)
		TAILQ_INSERT_TAIL(&s->free_slots, &s->slot[i], link);
	return OD_OK;
}

static void init_lock(struct od_schedule *s)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->to_read, NULL);
	pthread_cond_init(&s->to_finish, NULL);
	od_timed_cond_init(&s->cancelled);
}

/* Else its RUN would never have a slot. */
static bool largest_fits(const struct od_schedule_opts *o)
{
	for (uint32_t m = 0; o->slot_bytes != NULL && m < o->n_moe; m++) {
		if (o->slot_bytes[m] > o->slots_bytes)
			return false;
	}
	return true;
}

int od_schedule_new(struct od_schedule **out, const struct od_schedule_opts *opts, struct od_err *err)
{
	struct od_schedule *s;
	int rc;

	*out = NULL;
	if (opts->n_slots == 0 || !largest_fits(opts) || opts->n_slots > OD_MAX_SLOTS || opts->n_moe == 0 ||
	    opts->n_experts == 0 || opts->n_slices == 0 || opts->n_stages == 0 || opts->n_stages > OD_MAX_LOAD_STAGES)
		return od_fail(err, OD_ERR_ARG,
			       "schedule: %u slots for %u layers of %u experts in %u parts, %u at a time",
			       opts->n_slots, opts->n_moe, opts->n_experts, opts->n_slices, opts->n_stages);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "schedule");
	s->opts = *opts;
	if (s->opts.now_ns == NULL)
		s->opts.now_ns = od_now_ns;
	init_lock(s);
	od_load_stages_init(&s->stages, opts->n_stages);
	TAILQ_INIT(&s->unused);
	TAILQ_INIT(&s->runs);
	TAILQ_INIT(&s->wants);
	TAILQ_INIT(&s->ended);
	TAILQ_INIT(&s->computing);
	TAILQ_INIT(&s->free_slots);
	TAILQ_INIT(&s->busy);
	rc = make_tables(s, err);
	if (rc != OD_OK) {
		od_schedule_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_schedule_free(struct od_schedule *s)
{
	if (s == NULL)
		return;
	free(s->slot);
	od_step_marks_free(s->marks);
	od_free(s->expert);
	od_unmap(s->pool, OD_MAX_ENTRIES * sizeof(*s->pool));
	pthread_cond_destroy(&s->to_read);
	pthread_cond_destroy(&s->to_finish);
	pthread_cond_destroy(&s->cancelled);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
