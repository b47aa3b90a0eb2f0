#include "worker-node/load_schedule_internal.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "worker-node/run_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys ---- */

int odw_compare_entry_layers(const struct entry *a, const struct entry *b)
{
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->m != b->m)
		return a->m < b->m ? -1 : 1;
	return 0;
}

int odw_compare_entries(const struct entry *a, const struct entry *b)
{
	int d = odw_compare_entry_layers(a, b);

	if (d != 0)
		return d;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->expert < b->expert ? -1 : a->expert > b->expert;
}

/* ---- Entries ---- */

static struct entry *find_entry(struct odw_schedule *s, uint64_t step, uint32_t m, uint32_t expert)
{
	struct entry *e;

	TAILQ_FOREACH(e, &odw_expert_at(s, m, expert)->entries, same) {
		if (e->step == step)
			return e;
	}
	return NULL;
}

/* By key, from the back: what comes later is mostly for later layers. */
static void put_in_order(struct entry_list *list, struct entry *e)
{
	struct entry *before = TAILQ_LAST(list, entry_list);

	while (before != NULL && odw_compare_entries(before, e) > 0)
		before = TAILQ_PREV(before, entry_list, order);
	if (before == NULL)
		TAILQ_INSERT_HEAD(list, e, order);
	else
		TAILQ_INSERT_AFTER(list, before, e, order);
}

static void take_out(struct odw_schedule *s, struct entry *e)
{
	TAILQ_REMOVE(e->in_runs ? &s->runs : &s->wants, e, order);
}

/* NULL: the queue is full. The caller puts it into runs or wants. */
static struct entry *new_entry(struct odw_schedule *s, uint64_t step, uint32_t m, uint32_t expert, uint32_t rank)
{
	struct entry *e = TAILQ_FIRST(&s->unused);

	if (e != NULL)
		TAILQ_REMOVE(&s->unused, e, order);
	else if (s->n_pool < ODW_MAX_ENTRIES)
		e = &s->pool[s->n_pool++];
	else
		return NULL;
	*e = (struct entry){ .step = step, .m = m, .expert = expert, .rank = rank };
	TAILQ_INIT(&e->items);
	TAILQ_INSERT_TAIL(&odw_expert_of(s, e)->entries, e, same);
	s->n_entries++;
	return e;
}

void odw_drop_entry(struct odw_schedule *s, struct entry *e)
{
	struct expert *x = odw_expert_of(s, e);

	take_out(s, e);
	TAILQ_REMOVE(&x->entries, e, same);
	TAILQ_INSERT_HEAD(&s->unused, e, order);
	s->n_entries--;
	if (TAILQ_EMPTY(&x->entries) && x->slot != 0)
		odw_slot_settle(s, &s->slot[x->slot - 1]);
}

/* ---- Items ---- */

static void item_is_over(struct odw_schedule *s, struct odw_item *item, int code, const char *reason)
{
	item->code = code;
	snprintf(item->reason, sizeof(item->reason), "%s", reason);
	TAILQ_INSERT_TAIL(&s->over, item, link);
}

static void items_are_over(struct odw_schedule *s, struct entry *e, int code, const char *reason)
{
	struct odw_item *item;

	while ((item = TAILQ_FIRST(&e->items)) != NULL) {
		TAILQ_REMOVE(&e->items, item, link);
		item_is_over(s, item, code, reason);
	}
}

/* ---- Sessions ---- */

static void drop_session(struct odw_schedule *s)
{
	struct odw_item *item;
	struct entry *e;

	TAILQ_FOREACH(item, &s->over, link)
		item->code = OD_ERR_CANCELLED;
	while ((e = TAILQ_FIRST(&s->runs)) != NULL) {
		items_are_over(s, e, OD_ERR_CANCELLED, "the session is over");
		odw_drop_entry(s, e);
	}
	while ((e = TAILQ_FIRST(&s->wants)) != NULL)
		odw_drop_entry(s, e);
	s->computing = NULL;
	s->session = 0;
	odw_step_marks_clear(s->marks);
}

void odw_schedule_begin(struct odw_schedule *s, uint64_t session)
{
	pthread_mutex_lock(&s->lock);
	drop_session(s);
	s->session = session;
	pthread_mutex_unlock(&s->lock);
}

void odw_schedule_end(struct odw_schedule *s, uint64_t session)
{
	pthread_mutex_lock(&s->lock);
	if (s->session == session)
		drop_session(s);
	pthread_mutex_unlock(&s->lock);
}

uint64_t odw_schedule_session(struct odw_schedule *s)
{
	uint64_t session;

	pthread_mutex_lock(&s->lock);
	session = s->session;
	pthread_mutex_unlock(&s->lock);
	return session;
}

/* ---- WANT and CLOSE ---- */

/* WANTs and kept experts of the step for m < below are void. */
static void void_below(struct odw_schedule *s, uint64_t step, uint32_t below)
{
	struct entry *e, *next;

	odw_step_marks_close(s->marks, step, below);
	for (e = TAILQ_FIRST(&s->wants); e != NULL; e = next) {
		next = TAILQ_NEXT(e, order);
		if (e->step == step && e->m < below)
			odw_drop_entry(s, e);
	}
}

/* What the newest version no longer names. */
static void void_older(struct odw_schedule *s, uint64_t step, uint32_t m, uint32_t version)
{
	struct entry *e, *next;

	for (e = TAILQ_FIRST(&s->wants); e != NULL; e = next) {
		next = TAILQ_NEXT(e, order);
		if (e->step == step && e->m == m && e->wanted && e->version != version)
			odw_drop_entry(s, e);
	}
}

/* False: the queue is full. */
static bool want_one(struct odw_schedule *s, uint64_t step, uint32_t m, uint32_t expert, uint32_t rank,
		     uint32_t version)
{
	struct entry *e = find_entry(s, step, m, expert);

	if (e != NULL && !e->wanted)
		return true; /* a RUN has it, or it is kept for one: that says more */
	if (e != NULL) {
		take_out(s, e);
		e->rank = rank;
	} else {
		e = new_entry(s, step, m, expert, rank);
	}
	if (e == NULL)
		return false;
	e->wanted = true;
	e->version = version;
	put_in_order(&s->wants, e);
	return true;
}

size_t odw_schedule_want(struct odw_schedule *s, uint64_t session, uint64_t step, uint32_t m, uint32_t version,
			 const uint32_t *experts, size_t n)
{
	size_t n_dropped = 0;

	pthread_mutex_lock(&s->lock);
	if (session == s->session && session != 0 && odw_step_marks_newer(s->marks, step, m, version)) {
		for (size_t i = 0; i < n; i++)
			n_dropped += !want_one(s, step, m, experts[i], (uint32_t)i, version);
		void_older(s, step, m, version);
		odw_assign_slots(s);
	}
	pthread_mutex_unlock(&s->lock);
	return n_dropped;
}

void odw_schedule_close(struct odw_schedule *s, uint64_t session, uint64_t step, uint32_t m)
{
	pthread_mutex_lock(&s->lock);
	if (session == s->session && session != 0) {
		void_below(s, step, m + 1);
		odw_assign_slots(s);
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- RUN ---- */

static bool is_in_state(struct odw_schedule *s, uint32_t m, uint32_t expert, enum odw_slot_state state)
{
	const struct expert *x = odw_expert_at(s, m, expert);

	return x->slot != 0 && s->slot[x->slot - 1].state == state;
}

static bool is_resident(struct odw_schedule *s, uint32_t m, uint32_t expert)
{
	return is_in_state(s, m, expert, ODW_RESIDENT);
}

static void run_one(struct odw_schedule *s, uint64_t step, uint32_t m, struct odw_item *item)
{
	struct entry *e = find_entry(s, step, m, item->expert);

	if (e == NULL || !e->in_runs) {
		/* One that is kept between RUNs is the same use. */
		const bool heard = s->opts.cache == NULL || item->prompt || (e != NULL && e->kept);

		if (e == NULL)
			e = new_entry(s, step, m, item->expert, item->rank);
		else
			take_out(s, e);
		e->unheard = !heard;
		e->in_runs = true;
		e->wanted = e->kept = false;
		e->rank = item->rank;
		put_in_order(&s->runs, e);
	}
	item->step = step;
	item->m = m;
	item->code = OD_OK;
	item->ready = is_resident(s, m, item->expert);
	item->cached = odw_cache_look(s->opts.cache, m, item->expert);
	item->slot = -1;
	item->load_ns = item->loaded_bytes = 0;
	TAILQ_INSERT_TAIL(&e->items, item, link);
	s->n_items++;
}

/* What loading an expert costs, as far as it is known. */
static bool learnt_costs(const struct odw_schedule *s, struct odw_expert_costs *c)
{
	const struct odw_load_figures *f = &s->figures;
	struct odw_part_times t = { f->loaded_bytes, f->read_ns, f->finishes, f->finish_ns };

	*c = (struct odw_expert_costs){ .n_parts = s->opts.n_parts, .n_inflaters = s->opts.n_inflaters };
	if (t.read_bytes == 0 || t.finishes == 0)
		t = s->opts.profile;
	if (s->opts.n_inflaters == 0 || s->opts.n_readers == 0 || t.read_bytes == 0 || t.finishes == 0)
		return false;
	c->read_ns = (uint64_t)((double)t.read_ns / (double)t.read_bytes * (double)s->opts.expert_bytes / s->opts.n_readers);
	c->finish_ns = t.finish_ns / t.finishes * s->opts.n_parts;
	c->sm_read_ns = odw_sm_ns(s, c->read_ns);
	return true;
}

/* As asked, while it is not known what loads and runs take. */
static void order_items(struct odw_schedule *s, uint32_t m, struct odw_item *item, size_t n)
{
	struct odw_run_load load[ODW_MAX_ORDERED];
	struct odw_expert_costs c;

	if (n < 2 || n > ODW_MAX_ORDERED || !learnt_costs(s, &c))
		return;
	for (size_t i = 0; i < n; i++) {
		const unsigned has = odw_cache_has(s->opts.cache, m, item[i].expert);
		const uint64_t inflate_ns = c.finish_ns / c.n_inflaters;
		uint64_t read_ns = 0;

		if (item[i].run_ns == 0)
			return;
		read_ns += has & OD_SET_SM ? 0 : c.sm_read_ns;
		read_ns += has & OD_SET_E ? 0 : c.read_ns - c.sm_read_ns;
		load[i] = (struct odw_run_load){ .resident = is_resident(s, m, item[i].expert), .read_ns = read_ns,
						 .load_ns = read_ns > inflate_ns ? read_ns : inflate_ns,
						 .run_ns = item[i].run_ns, .rank = item[i].rank };
	}
	odw_run_order(load, n);
	for (size_t i = 0; i < n; i++)
		item[i].rank = load[i].rank;
}

/* For the cache's plan. */
static void note_visit(struct odw_schedule *s, uint32_t m, const struct odw_item *item, size_t n)
{
	if (s->opts.cache == NULL || item[0].prompt)
		return;
	for (size_t i = 0; i < n; i++)
		s->visit[i] = (uint16_t)item[i].expert;
	odw_cache_visit(s->opts.cache, m, s->visit, n);
	if (odw_cache_plan_is_due(s->opts.cache))
		pthread_cond_signal(&s->to_plan);
}

int odw_schedule_run(struct odw_schedule *s, uint64_t session, uint64_t step, uint32_t m, bool closes,
		     struct odw_item *item, size_t n)
{
	int rc = OD_OK;

	pthread_mutex_lock(&s->lock);
	if (session != s->session || session == 0)
		rc = OD_ERR_CANCELLED;
	else if (n > ODW_MAX_ENTRIES - s->n_entries || n > ODW_MAX_ENTRIES - s->n_items)
		rc = OD_ERR_BUSY;
	if (rc == OD_OK) {
		order_items(s, m, item, n);
		note_visit(s, m, item, n);
		for (size_t i = 0; i < n; i++)
			run_one(s, step, m, &item[i]);
		void_below(s, step, closes ? m + 1 : m);
		odw_assign_slots(s);
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* A resident expert's first item; the slot is pinned. */
static struct odw_item *begin_item(struct odw_schedule *s, struct entry *e, struct slot *slot)
{
	struct odw_item *item = TAILQ_FIRST(&e->items);

	TAILQ_REMOVE(&e->items, item, link);
	item->slot = (int)(slot - s->slot);
	item->mem = slot->mem;
	if (!slot->told) {
		item->load_ns = slot->load_ns;
		item->loaded_bytes = slot->loaded_bytes;
	}
	slot->used = slot->told = true;
	slot->n_users++;
	e->computing = true;
	s->computing = e;
	return item;
}

struct odw_item *odw_schedule_take(struct odw_schedule *s)
{
	struct odw_item *item;
	struct entry *e;

	pthread_mutex_lock(&s->lock);
	item = TAILQ_FIRST(&s->over);
	if (item != NULL) {
		TAILQ_REMOVE(&s->over, item, link);
		s->n_items--;
	} else {
		TAILQ_FOREACH(e, &s->runs, order) {
			if (is_resident(s, e->m, e->expert)) {
				item = begin_item(s, e, &s->slot[odw_expert_of(s, e)->slot - 1]);
				break;
			}
		}
	}
	pthread_mutex_unlock(&s->lock);
	return item;
}

/* Frees the slot, or keeps it for further RUNs of the same (step, m). */
static void end_entry(struct odw_schedule *s, struct entry *e, bool last)
{
	e->computing = false;
	if (!TAILQ_EMPTY(&e->items))
		return;
	if (last || odw_step_marks_closed(s->marks, e->step, e->m)) {
		odw_drop_entry(s, e);
		return;
	}
	take_out(s, e);
	e->in_runs = false;
	e->kept = true;
	put_in_order(&s->wants, e);
}

void odw_schedule_done(struct odw_schedule *s, struct odw_item *item)
{
	pthread_mutex_lock(&s->lock);
	s->n_items--;
	odw_slot_user_leaves(s, &s->slot[item->slot]);
	if (s->computing != NULL)
		end_entry(s, s->computing, item->last);
	s->computing = NULL;
	odw_assign_slots(s);
	pthread_mutex_unlock(&s->lock);
}

void odw_schedule_tick(struct odw_schedule *s)
{
	pthread_mutex_lock(&s->lock);
	s->figures.progress++;
	pthread_mutex_unlock(&s->lock);
}

/* ---- Loading ---- */

static struct slot *next_to_read(struct odw_schedule *s)
{
	return s->stages.n_free > 0 ? odw_most_urgent_load(s, ODW_LOAD_READ) : NULL;
}

/* The part is the load's next one, whether it has to be read first or not. */
static struct odw_load_job begin_part(struct odw_schedule *s, struct slot *slot, enum odw_load_kind kind, uint64_t now_ns)
{
	const uint32_t part = slot->next_part++;

	if (part == 0)
		slot->begin_ns = now_ns;
	return (struct odw_load_job){ .kind = kind, .part = part,
				      .stage = odw_stages_take(&s->stages, (int)(slot - s->slot), part) };
}

static void begin_job(struct odw_schedule *s, struct slot *slot, struct odw_load_job *job, uint64_t now_ns)
{
	job->m = slot->m;
	job->expert = slot->expert;
	job->slot = (int)(slot - s->slot);
	job->begin_ns = now_ns;
	job->mem = slot->mem;
	job->read = slot->read;
	slot->n_users++;
}

bool odw_schedule_next_read(struct odw_schedule *s, struct odw_load_job *job, bool wait)
{
	struct slot *slot;
	uint64_t now_ns;

	pthread_mutex_lock(&s->lock);
	now_ns = s->opts.now_ns(); /* under the lock: another thread's moment must not lie behind ours */
	while ((slot = s->stop ? NULL : next_to_read(s)) == NULL && wait && !s->stop) {
		pthread_cond_wait(&s->to_read, &s->lock);
		now_ns = s->opts.now_ns();
	}
	if (slot != NULL) {
		*job = begin_part(s, slot, ODW_LOAD_READ, now_ns);
		begin_job(s, slot, job, now_ns);
	}
	pthread_mutex_unlock(&s->lock);
	return slot != NULL;
}

static struct slot *next_to_finish(struct odw_schedule *s, struct odw_load_job *job, uint64_t now_ns)
{
	struct slot *slot = odw_most_urgent_load(s, ODW_LOAD_FINISH);
	int stage = -1;

	if (slot != NULL && slot->read == 0) {
		*job = begin_part(s, slot, ODW_LOAD_FINISH, now_ns);
	} else if (slot != NULL) {
		stage = odw_stages_read(&s->stages, (int)(slot - s->slot));
		*job = (struct odw_load_job){ .kind = ODW_LOAD_FINISH, .part = s->stages.at[stage].part,
					      .stage = (unsigned)stage };
	}
	return slot;
}

bool odw_schedule_next_finish(struct odw_schedule *s, struct odw_load_job *job, bool wait)
{
	struct slot *slot;

	pthread_mutex_lock(&s->lock);
	while ((slot = s->stop ? NULL : next_to_finish(s, job, s->opts.now_ns())) == NULL && wait && !s->stop)
		pthread_cond_wait(&s->to_finish, &s->lock);
	if (slot != NULL) {
		begin_job(s, slot, job, s->opts.now_ns());
		s->stages.at[job->stage].state = ODW_STAGE_FINISHING;
	}
	pthread_mutex_unlock(&s->lock);
	return slot != NULL;
}

/* Nobody can have this expert: its RUNs are answered, its WANTs dropped. */
static void load_failed(struct odw_schedule *s, struct slot *slot, int code, const char *reason)
{
	struct expert *x = odw_expert_in(s, slot);
	struct entry *e;

	slot->next_part = 0; /* it does not count as cancelled */
	while ((e = TAILQ_FIRST(&x->entries)) != NULL) {
		items_are_over(s, e, code, reason);
		odw_drop_entry(s, e);
	}
}

static void one_ends(struct odw_schedule *s, struct slot *slot)
{
	if (++slot->ends < s->opts.n_parts)
		return;
	slot->state = ODW_RESIDENT;
	slot->whole = ~0u;
	slot->load_ns = s->opts.now_ns() - slot->begin_ns;
	if (slot->read != 0) {
		s->figures.loads++;
		s->figures.load_ns += slot->load_ns;
	}
	odw_slot_settle(s, slot);
}

/* What was read waits for an inflater, unless nobody wants it any more. */
static void leave_stage(struct odw_schedule *s, const struct odw_load_job *job, bool goes_on)
{
	if (job->kind == ODW_LOAD_READ && goes_on) {
		s->stages.at[job->stage].state = ODW_STAGE_READ;
		pthread_cond_signal(&s->to_finish);
	} else {
		odw_stages_leave(&s->stages, job->stage);
		pthread_cond_signal(&s->to_read);
		pthread_cond_signal(&s->to_finish); /* what needs no reading needs a stage, too */
	}
}

static void count_job(struct odw_schedule *s, const struct odw_load_job *job)
{
	const uint64_t ns = s->opts.now_ns() - job->begin_ns;

	s->figures.reads += job->kind == ODW_LOAD_READ;
	s->figures.read_ns += job->kind == ODW_LOAD_READ ? ns : 0;
	s->figures.finishes += job->kind == ODW_LOAD_FINISH;
	s->figures.finish_ns += job->kind == ODW_LOAD_FINISH ? ns : 0;
}

bool odw_schedule_end_job(struct odw_schedule *s, const struct odw_load_job *job, uint64_t read_bytes, int code,
			  const struct od_err *err)
{
	struct slot *slot = &s->slot[job->slot];
	const struct entry *first;
	bool wake;

	pthread_mutex_lock(&s->lock);
	s->figures.progress++;
	s->figures.loaded_bytes += read_bytes;
	count_job(s, job);
	leave_stage(s, job, slot->state == ODW_LOADING && code == OD_OK);
	if (slot->state == ODW_LOADING) {
		slot->loaded_bytes += read_bytes;
		if (code != OD_OK)
			load_failed(s, slot, code, err->msg);
		else if (job->kind != ODW_LOAD_READ)
			one_ends(s, slot);
	}
	wake = !TAILQ_EMPTY(&s->over) ||
	       (slot->state == ODW_RESIDENT && odw_slot_need(s, slot, &first) == NEED_RUN);
	odw_slot_user_leaves(s, slot);
	odw_assign_slots(s);
	pthread_mutex_unlock(&s->lock);
	return wake;
}

bool odw_schedule_wait_cancelled(struct odw_schedule *s, uint32_t m, uint32_t expert, uint64_t until_ns)
{
	const struct timespec until = { .tv_sec = (time_t)(until_ns / OD_NS_PER_S), .tv_nsec = (long)(until_ns % OD_NS_PER_S) };
	bool loading;
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	while ((loading = !s->stop && is_in_state(s, m, expert, ODW_LOADING)) && rc == 0)
		rc = pthread_cond_timedwait(&s->cancelled, &s->lock, &until);
	pthread_mutex_unlock(&s->lock);
	return !loading;
}

void odw_schedule_stop(struct odw_schedule *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->cancelled);
	pthread_cond_broadcast(&s->to_read);
	pthread_cond_broadcast(&s->to_finish);
	pthread_cond_broadcast(&s->to_plan);
	pthread_mutex_unlock(&s->lock);
}

/* ---- Looking ---- */

void odw_schedule_figures(struct odw_schedule *s, struct odw_load_figures *f)
{
	const struct slot *slot;

	pthread_mutex_lock(&s->lock);
	*f = s->figures;
	f->busy = !TAILQ_EMPTY(&s->runs) || !TAILQ_EMPTY(&s->over);
	TAILQ_FOREACH(slot, &s->busy, link)
		f->busy = f->busy || slot->state == ODW_LOADING;
	pthread_mutex_unlock(&s->lock);
}

bool odw_schedule_costs(struct odw_schedule *s, struct odw_expert_costs *c)
{
	bool known;

	pthread_mutex_lock(&s->lock);
	known = learnt_costs(s, c);
	pthread_mutex_unlock(&s->lock);
	return known;
}

struct odw_slot_view odw_schedule_look(struct odw_schedule *s, unsigned slot)
{
	struct odw_slot_view v;
	const struct entry *e;

	pthread_mutex_lock(&s->lock);
	v = (struct odw_slot_view){ .state = s->slot[slot].state, .full = s->slot[slot].full, .n_users = s->slot[slot].n_users,
				    .mem = s->slot[slot].mem };
	if (v.state == ODW_LOADING || v.state == ODW_RESIDENT) {
		v.m = s->slot[slot].m;
		v.expert = s->slot[slot].expert;
		TAILQ_FOREACH(e, &odw_expert_in(s, &s->slot[slot])->entries, same)
			v.entries++;
	}
	pthread_mutex_unlock(&s->lock);
	return v;
}

size_t odw_schedule_entries(struct odw_schedule *s)
{
	size_t n;

	pthread_mutex_lock(&s->lock);
	n = s->n_entries;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* ---- Life ---- */

static int make_tables(struct odw_schedule *s, struct od_err *err)
{
	const struct odw_schedule_opts *o = &s->opts;

	s->n_table = o->n_slots + o->most_full;
	s->slot = calloc(s->n_table, sizeof(*s->slot));
	s->visit = calloc(o->n_experts, sizeof(*s->visit));
	s->marks = odw_step_marks_new(o->n_layers);
	s->expert = od_alloc_array((size_t)o->n_layers * o->n_experts, sizeof(*s->expert));
	s->pool = od_alloc_array(ODW_MAX_ENTRIES, sizeof(*s->pool));
	if (s->slot == NULL || s->visit == NULL || s->marks == NULL || s->expert == NULL || s->pool == NULL)
		return od_fail(err, OD_ERR_NOMEM, "schedule of %u layers of %u experts", o->n_layers, o->n_experts);
	for (unsigned i = 0; i < s->n_table; i++)
		TAILQ_INSERT_TAIL(&s->void_slots, &s->slot[i], link);
	return OD_OK;
}

/* Waited for by the clock that od_now_ns reads. */
static void init_timed_cond(pthread_cond_t *cond)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

int odw_schedule_new(struct odw_schedule **out, const struct odw_schedule_opts *opts, struct od_err *err)
{
	struct odw_schedule *s;
	int rc;

	*out = NULL;
	if (opts->n_slots == 0 || opts->n_slots > ODW_MAX_SLOTS || opts->n_layers == 0 || opts->n_experts == 0 ||
	    opts->n_parts == 0 || opts->n_stages == 0 || opts->n_stages > ODW_MAX_STAGES)
		return od_fail(err, OD_ERR_ARG, "schedule: %u slots for %u layers of %u experts in %u parts, %u at a time",
			       opts->n_slots, opts->n_layers, opts->n_experts, opts->n_parts, opts->n_stages);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "schedule");
	s->opts = *opts;
	if (s->opts.now_ns == NULL)
		s->opts.now_ns = od_now_ns;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->to_read, NULL);
	pthread_cond_init(&s->to_plan, NULL);
	pthread_cond_init(&s->to_finish, NULL);
	init_timed_cond(&s->cancelled);
	odw_stages_init(&s->stages, opts->n_stages);
	TAILQ_INIT(&s->unused);
	TAILQ_INIT(&s->runs);
	TAILQ_INIT(&s->wants);
	TAILQ_INIT(&s->over);
	TAILQ_INIT(&s->void_slots);
	TAILQ_INIT(&s->busy);
	rc = make_tables(s, err);
	if (rc != OD_OK) {
		odw_schedule_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void odw_schedule_free(struct odw_schedule *s)
{
	if (s == NULL)
		return;
	free(s->slot);
	free(s->visit);
	odw_step_marks_free(s->marks);
	od_free(s->expert);
	od_free(s->pool);
	pthread_cond_destroy(&s->to_read);
	pthread_cond_destroy(&s->to_plan);
	pthread_cond_destroy(&s->to_finish);
	pthread_cond_destroy(&s->cancelled);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
