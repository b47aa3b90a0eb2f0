/* What the cache of experts and the schedule tell each other (the rules: load_schedule.h, expert_cache.h). */
#include "worker-node/load_schedule_internal.h"

/* What is in a slot finds its new state there, what is in none at once. */
static void bring_about(struct odw_schedule *s, struct od_cache_changes changes)
{
	for (size_t i = 0; i < changes.n; i++) {
		const uint32_t m = odw_cache_layer(s->opts.cache, &changes.change[i]), expert = changes.change[i].expert;
		const struct expert *x = odw_expert_at(s, m, expert);

		if (x->slot != 0)
			odw_slot_settle(s, &s->slot[x->slot - 1]);
		else
			odw_cache_trim(s->opts.cache, m, expert);
	}
}

bool odw_hear_uses(struct odw_schedule *s)
{
	struct entry *e;
	bool any = false;

	TAILQ_FOREACH(e, &s->runs, order) {
		if (!e->unheard || odw_expert_of(s, e)->slot == 0)
			continue;
		e->unheard = false;
		any = true;
		bring_about(s, odw_cache_use(s->opts.cache, e->m, e->expert));
	}
	return any;
}

static void keep_nothing(struct odw_schedule *s)
{
	for (unsigned i = 0; i < s->n_table; i++) {
		if (s->slot[i].full)
			odw_slot_settle(s, &s->slot[i]);
	}
	for (uint32_t m = 0; m < s->opts.n_layers; m++) {
		for (uint32_t expert = 0; expert < s->opts.n_experts; expert++)
			odw_cache_trim(s->opts.cache, m, expert);
	}
}

void odw_schedule_place(struct odw_schedule *s, const struct od_share *share)
{
	pthread_mutex_lock(&s->lock);
	if (odw_cache_place(s->opts.cache, share)) {
		keep_nothing(s);
		odw_assign_slots(s);
		pthread_cond_signal(&s->to_plan);
	}
	pthread_mutex_unlock(&s->lock);
}

bool odw_schedule_next_plan(struct odw_schedule *s, struct odw_cache_uses *u)
{
	bool go_on;

	pthread_mutex_lock(&s->lock);
	while (!s->stop && !odw_cache_plan_is_due(s->opts.cache))
		pthread_cond_wait(&s->to_plan, &s->lock);
	go_on = !s->stop;
	if (go_on)
		odw_cache_uses(s->opts.cache, u);
	pthread_mutex_unlock(&s->lock);
	return go_on;
}

bool odw_schedule_wait_void(struct odw_schedule *s, uint64_t *seen)
{
	bool go_on;

	pthread_mutex_lock(&s->lock);
	while (!s->stop && s->n_voided == *seen)
		pthread_cond_wait(&s->to_plan, &s->lock);
	*seen = s->n_voided;
	go_on = !s->stop;
	pthread_mutex_unlock(&s->lock);
	return go_on;
}

bool odw_schedule_begin_cache(struct odw_schedule *s, uint64_t place, struct od_cache *policy)
{
	bool good;

	pthread_mutex_lock(&s->lock);
	good = odw_cache_begin(s->opts.cache, place, policy);
	pthread_mutex_unlock(&s->lock);
	return good;
}

void odw_schedule_set_plan(struct odw_schedule *s, uint64_t place, const struct od_cache_plan *plan)
{
	pthread_mutex_lock(&s->lock);
	bring_about(s, odw_cache_set_plan(s->opts.cache, place, plan));
	odw_assign_slots(s);
	pthread_mutex_unlock(&s->lock);
}

bool odw_schedule_cached(struct odw_schedule *s, uint64_t *told, uint8_t *states)
{
	uint64_t changes;

	pthread_mutex_lock(&s->lock);
	changes = odw_cache_changes(s->opts.cache);
	for (uint32_t m = 0; changes != *told && m < s->opts.n_layers; m++) {
		for (uint32_t expert = 0; expert < s->opts.n_experts; expert++)
			states[(size_t)m * s->opts.n_experts + expert] = (uint8_t)odw_cache_look(s->opts.cache, m, expert);
	}
	pthread_mutex_unlock(&s->lock);
	if (changes == *told)
		return false;
	*told = changes;
	return true;
}
