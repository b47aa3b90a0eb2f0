/* Who gets which slot, and who has to leave one (the rules: load_schedule.h). */
#include "worker-node/load_schedule_internal.h"

enum need odw_slot_need(struct odw_schedule *s, const struct slot *slot, const struct entry **first)
{
	enum need need = NEED_WANT;
	const struct entry *e;

	*first = NULL;
	TAILQ_FOREACH(e, &odw_expert_in(s, slot)->entries, same) {
		enum need n = e->in_runs ? NEED_RUN : e->kept ? NEED_KEPT : NEED_WANT;

		if (*first == NULL || e->in_runs > (*first)->in_runs ||
		    (e->in_runs == (*first)->in_runs && odw_compare_entries(e, *first) < 0))
			*first = e;
		if (n > need)
			need = n;
	}
	return need;
}

static void slot_is_void(struct odw_schedule *s, struct slot *slot)
{
	s->n_draining -= slot->state == ODW_DRAINING;
	if (odw_expert_in(s, slot)->slot == 0) /* else it is being loaded elsewhere by now */
		odw_cache_keep(s->opts.cache, slot->m, slot->expert, &slot->mem, slot->whole);
	odw_bufs_put(s->opts.bufs, &slot->mem, ~0u);
	TAILQ_REMOVE(&s->busy, slot, link);
	s->n_busy--;
	*slot = (struct slot){ .state = ODW_VOID };
	TAILQ_INSERT_HEAD(&s->void_slots, slot, link);
	s->n_voided++;
	pthread_cond_signal(&s->to_plan);
}

void odw_slot_vacate(struct odw_schedule *s, struct slot *slot)
{
	if (slot->state == ODW_LOADING && slot->next_part > 0 && slot->read != 0)
		s->figures.cancelled_loads++;
	if (slot->state == ODW_RESIDENT && !slot->used && slot->read != 0)
		s->figures.unused_loads++;
	if (slot->state == ODW_LOADING)
		pthread_cond_broadcast(&s->cancelled);
	odw_expert_in(s, slot)->slot = 0;
	if (odw_stages_drop(&s->stages, (int)(slot - s->slot))) {
		pthread_cond_broadcast(&s->to_read);
		pthread_cond_broadcast(&s->to_finish);
	}
	if (slot->n_users == 0) {
		slot_is_void(s, slot);
		return;
	}
	slot->state = ODW_DRAINING;
	s->n_draining++;
}

/* Plain weights are kept full without what they were made from. */
static void keep_full(struct odw_schedule *s, struct slot *slot)
{
	if (slot->mem.at[OD_BUF_PLAIN] != NULL)
		odw_bufs_put(s->opts.bufs, &slot->mem, OD_SET_STORED);
	if (slot->full)
		return;
	slot->full = true;
	TAILQ_REMOVE(&s->busy, slot, link);
	s->n_busy--;
}

void odw_slot_settle(struct odw_schedule *s, struct slot *slot)
{
	if (slot->state == ODW_RESIDENT && odw_cache_look(s->opts.cache, slot->m, slot->expert) == OD_CACHE_F) {
		keep_full(s, slot);
		return;
	}
	if (slot->full) {
		slot->full = false;
		TAILQ_INSERT_TAIL(&s->busy, slot, link);
		s->n_busy++;
	}
	if (TAILQ_EMPTY(&odw_expert_in(s, slot)->entries))
		odw_slot_vacate(s, slot);
}

static void drop_kept(struct odw_schedule *s, struct slot *slot)
{
	struct entry *e, *next;

	for (e = TAILQ_FIRST(&odw_expert_in(s, slot)->entries); e != NULL; e = next) {
		next = TAILQ_NEXT(e, same);
		if (e->kept)
			odw_drop_entry(s, e);
	}
}

/* The slot that a RUN may take: that of the WANT with the greatest key; else, when no RUN holds or is promised a
 * slot (so nothing would ever move), of the kept expert with the greatest key. NULL: wait. */
static struct slot *victim_for_run(struct odw_schedule *s)
{
	bool runs_hold = s->n_draining > 0;
	const struct entry *worst = NULL, *first;
	enum need worst_need = NEED_RUN;
	struct slot *victim = NULL, *slot;

	TAILQ_FOREACH(slot, &s->busy, link) {
		enum need need;

		if (slot->state == ODW_DRAINING)
			continue;
		need = odw_slot_need(s, slot, &first);
		if (need == NEED_RUN) {
			runs_hold = true;
		} else if (victim == NULL || need < worst_need ||
			   (need == worst_need && odw_compare_entries(first, worst) > 0)) {
			victim = slot;
			worst = first;
			worst_need = need;
		}
	}
	return victim != NULL && worst_need == NEED_KEPT && runs_hold ? NULL : victim;
}

/* A WANT may only displace a WANT of a later layer or step: between those of one layer it would gain nothing. */
static struct slot *victim_for_want(struct odw_schedule *s, const struct entry *e)
{
	const struct entry *worst = e, *first;
	struct slot *victim = NULL, *slot;

	TAILQ_FOREACH(slot, &s->busy, link) {
		if (slot->state == ODW_DRAINING)
			continue;
		if (odw_slot_need(s, slot, &first) == NEED_WANT && odw_compare_entry_layers(first, e) > 0 &&
		    odw_compare_entries(first, worst) > 0) {
			victim = slot;
			worst = first;
		}
	}
	return victim;
}

static void begin_load(struct odw_schedule *s, struct entry *e)
{
	struct slot *slot = TAILQ_FIRST(&s->void_slots);

	TAILQ_REMOVE(&s->void_slots, slot, link);
	TAILQ_INSERT_TAIL(&s->busy, slot, link);
	s->n_busy++;
	slot->state = ODW_LOADING;
	slot->m = e->m;
	slot->expert = e->expert;
	slot->whole = odw_cache_take(s->opts.cache, e->m, e->expert, &slot->mem);
	slot->read = OD_SET_STORED & ~slot->whole;
	odw_bufs_fill(s->opts.bufs, &slot->mem);
	odw_expert_of(s, e)->slot = (uint32_t)(slot - s->slot + 1);
	pthread_cond_broadcast(slot->read != 0 ? &s->to_read : &s->to_finish);
}

/* One entry without a slot gets one, or the promise of one that drains. promised: so many in this pass. False: there is
 * nothing for it. */
static bool give_slot(struct odw_schedule *s, struct entry *e, unsigned *promised)
{
	while (s->n_busy - s->n_draining + *promised >= s->opts.n_slots) {
		struct slot *slot = e->in_runs ? victim_for_run(s) : victim_for_want(s, e);

		if (slot == NULL)
			return false;
		drop_kept(s, slot); /* its last entry takes the expert along */
		if (slot->state != ODW_VOID && slot->state != ODW_DRAINING)
			odw_slot_vacate(s, slot);
	}
	odw_expert_of(s, e)->pass = s->pass;
	if (s->n_busy < s->opts.n_slots)
		begin_load(s, e);
	else
		++*promised;
	return true;
}

static void give_slots(struct odw_schedule *s)
{
	struct entry_list *const list[] = { &s->runs, &s->wants };
	unsigned promised = 0;
	struct entry *e;

	s->pass++;
	for (int i = 0; i < 2; i++) {
		TAILQ_FOREACH(e, list[i], order) {
			const struct expert *x = odw_expert_of(s, e);

			if (x->slot == 0 && x->pass != s->pass && !give_slot(s, e, &promised))
				return;
		}
	}
}

void odw_assign_slots(struct odw_schedule *s)
{
	do
		give_slots(s);
	while (odw_hear_uses(s)); /* what the cache keeps full leaves room for another */
}

void odw_slot_user_leaves(struct odw_schedule *s, struct slot *slot)
{
	slot->n_users--;
	if (slot->state == ODW_DRAINING && slot->n_users == 0)
		slot_is_void(s, slot);
}

static bool has_job(const struct odw_schedule *s, const struct slot *slot, enum odw_load_kind kind)
{
	if (slot->state != ODW_LOADING)
		return false;
	switch (kind) {
	case ODW_LOAD_READ: return slot->read != 0 && slot->next_part < s->opts.n_parts;
	case ODW_LOAD_FINISH: return odw_needs_no_read(s, slot) || odw_stages_read(&s->stages, (int)(slot - s->slot)) >= 0;
	}
	return false;
}

struct slot *odw_most_urgent_load(struct odw_schedule *s, enum odw_load_kind kind)
{
	const struct entry *best_first = NULL, *first;
	enum need best_need = NEED_WANT;
	struct slot *best = NULL, *slot;

	TAILQ_FOREACH(slot, &s->busy, link) {
		enum need need;

		if (!has_job(s, slot, kind))
			continue;
		need = odw_slot_need(s, slot, &first);
		if (best == NULL || need > best_need ||
		    (need == best_need && odw_compare_entries(first, best_first) < 0)) {
			best = slot;
			best_need = need;
			best_first = first;
		}
	}
	return best;
}
