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
	*slot = (struct slot){ .state = ODW_VOID };
}

void odw_slot_vacate(struct odw_schedule *s, struct slot *slot)
{
	if (slot->state == ODW_LOADING && slot->next_part > 0)
		s->figures.cancelled_loads++;
	if (slot->state == ODW_RESIDENT && !slot->used)
		s->figures.unused_loads++;
	odw_expert_in(s, slot)->slot = 0;
	odw_pace_leave(&s->pace, (int)(slot - s->slot));
	if (odw_stages_drop(&s->stages, (int)(slot - s->slot)))
		pthread_cond_broadcast(&s->to_read);
	if (slot->n_users == 0) {
		slot_is_void(s, slot);
		return;
	}
	slot->state = ODW_DRAINING;
	s->n_draining++;
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

static struct slot *void_slot(struct odw_schedule *s)
{
	for (unsigned i = 0; i < s->opts.n_slots; i++) {
		if (s->slot[i].state == ODW_VOID)
			return &s->slot[i];
	}
	return NULL;
}

/* The slot that a RUN may take: that of the WANT with the greatest key; else, when no RUN holds or is promised a
 * slot (so nothing would ever move), of the kept expert with the greatest key. NULL: wait. */
static struct slot *victim_for_run(struct odw_schedule *s)
{
	bool runs_hold = s->n_draining > 0;
	const struct entry *worst = NULL, *first;
	enum need worst_need = NEED_RUN;
	struct slot *victim = NULL;

	for (unsigned i = 0; i < s->opts.n_slots; i++) {
		struct slot *slot = &s->slot[i];
		enum need need;

		if (slot->state == ODW_VOID || slot->state == ODW_DRAINING)
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
	struct slot *victim = NULL;

	for (unsigned i = 0; i < s->opts.n_slots; i++) {
		struct slot *slot = &s->slot[i];

		if (slot->state == ODW_VOID || slot->state == ODW_DRAINING)
			continue;
		if (odw_slot_need(s, slot, &first) == NEED_WANT && odw_compare_entry_layers(first, e) > 0 &&
		    odw_compare_entries(first, worst) > 0) {
			victim = slot;
			worst = first;
		}
	}
	return victim;
}

static void begin_load(struct odw_schedule *s, struct slot *slot, struct entry *e)
{
	*slot = (struct slot){ .state = ODW_LOADING, .m = e->m, .expert = e->expert };
	odw_expert_of(s, e)->slot = (uint8_t)(slot - s->slot + 1);
	pthread_cond_broadcast(&s->to_read);
}

/* One entry without a slot gets one, or the promise of one that drains. coming counts what drains and is not
 * promised yet in this pass. False: there is nothing for it. */
static bool give_slot(struct odw_schedule *s, struct entry *e, unsigned *coming)
{
	struct slot *slot = void_slot(s);

	if (slot == NULL && *coming == 0) {
		slot = e->in_runs ? victim_for_run(s) : victim_for_want(s, e);
		if (slot == NULL)
			return false;
		drop_kept(s, slot); /* its last entry takes the expert along */
		if (slot->state != ODW_VOID && slot->state != ODW_DRAINING)
			odw_slot_vacate(s, slot);
		*coming += slot->state == ODW_DRAINING;
	}
	odw_expert_of(s, e)->pass = s->pass;
	if (slot != NULL && slot->state == ODW_VOID)
		begin_load(s, slot, e);
	else
		--*coming;
	return true;
}

void odw_assign_slots(struct odw_schedule *s)
{
	struct entry_list *const list[] = { &s->runs, &s->wants };
	unsigned coming = s->n_draining;
	struct entry *e;

	s->pass++;
	if (s->pace.load_ns > 0) { /* another load may be more urgent than the one that has the path */
		pthread_cond_broadcast(&s->to_read);
		pthread_cond_broadcast(&s->to_finish);
	}
	for (int i = 0; i < 2; i++) {
		TAILQ_FOREACH(e, list[i], order) {
			const struct expert *x = odw_expert_of(s, e);

			if (x->slot == 0 && x->pass != s->pass && !give_slot(s, e, &coming))
				return;
		}
	}
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
	case ODW_LOAD_READ: return slot->next_part < s->opts.n_parts;
	case ODW_LOAD_FINISH: return odw_stages_read(&s->stages, (int)(slot - s->slot)) >= 0;
	case ODW_LOAD_PACE: return !slot->paced;
	}
	return false;
}

struct slot *odw_most_urgent_load(struct odw_schedule *s, enum odw_load_kind kind)
{
	const struct entry *best_first = NULL, *first;
	enum need best_need = NEED_WANT;
	struct slot *best = NULL;

	for (unsigned i = 0; i < s->opts.n_slots; i++) {
		struct slot *slot = &s->slot[i];
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
