#include "worker-node/pull/puller.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker-node/pull/pull_plan.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_ACTIVE 6
#define WINDOW_BYTES (8u << 20) /* asked for and not here yet, but for the last one asked for */
#define TICK_MS 100
#define SAVE_NS OD_NS_PER_S
#define PROGRESS_NS (10 * OD_NS_PER_S)
#define BUSY_NS (50 * OD_NS_PER_MS) /* the store's word */
#define STUCK_NS (10 * OD_NS_PER_S) /* until a disk that is full is tried again */
#define REST_NS (30 * OD_NS_PER_S) /* until an expert that could not be had is tried again */
#define AWAY_NS (5 * OD_NS_PER_S) /* a store that is away for longer is not waited for */
#define AGAIN_NS (30 * OD_NS_PER_S) /* an expert that is damaged again so soon is not waited for */
#define MAX_BAD_CHUNKS 3 /* in a row, of one expert */

enum chunk_state { LACKING, ASKED, DONE };

/* An expert that is being pulled. */
struct pull {
	uint32_t expert; /* ODW_NO_EXPERT: free */
	uint32_t serial, n_chunks, next, n_done, n_bad;
	bool urgent;
	uint8_t *chunk; /* [n_chunks] */
};

struct odw_puller {
	struct odw_puller_opts o;
	uint32_t per_layer;
	pthread_t thread;
	bool started;
	atomic_bool stop;
	int wake_fd;
	pthread_mutex_t lock; /* guards what follows */
	struct odw_pull_plan plan;
	struct od_err stuck; /* why nothing can be had at present; code OD_OK: it can */
	struct odw_pull_figures figures;
	uint64_t *lost_ns; /* [plan.n]: when it was last found damaged; 0: never */
	uint64_t *whole_ns; /* [plan.n]: when it was last pulled; 0: never */
	bool unsaved;
	/* The thread's own. */
	struct pull active[MAX_ACTIVE];
	uint32_t last_serial;
	uint64_t life, pause_ns, save_ns, said_ns, said_bytes;
	uint64_t said_goal; /* the goal that was logged as reached; 0: none yet */
};

static void wake(struct odw_puller *p)
{
	eventfd_write(p->wake_fd, 1); /* fails only when it is full of wakes already */
}

static bool has(const struct odw_puller *p, uint32_t expert)
{
	return od_pack_has_expert(p->o.pack, expert / p->per_layer, expert % p->per_layer);
}

/* Under the lock: an expert came (whole) or went. */
static void mark(struct odw_puller *p, uint32_t expert, bool whole)
{
	const uint32_t m = expert / p->per_layer, e = expert % p->per_layer;
	const uint64_t bytes = od_spool_expert_bytes(p->o.spool, m, e);

	if (has(p, expert) == whole)
		return;
	od_spool_mark(p->o.spool, m, e, whole);
	if (whole)
		p->whole_ns[expert] = od_now_ns();
	p->figures.whole_bytes += whole ? bytes : -bytes;
	p->figures.changes++;
	p->unsaved = true;
}

/* ---- what others say ---- */

void odw_puller_place(struct odw_puller *p, const struct od_share *share)
{
	uint32_t n_goal, n_too_many;
	char a[32], b[32];
	uint64_t bytes;
	bool changed;

	pthread_mutex_lock(&p->lock);
	changed = memcmp(&p->plan.share, share, sizeof(*share)) != 0;
	if (changed) {
		odw_pull_plan_share(&p->plan, share);
		p->figures.goal_bytes = p->plan.goal_bytes;
		p->unsaved = true;
	}
	n_goal = p->plan.n_goal;
	n_too_many = p->plan.n_too_many;
	bytes = p->plan.goal_bytes;
	pthread_mutex_unlock(&p->lock);
	if (!changed)
		return;
	od_log(OD_LOG_INFO, "spool %s: share of worker %u of %u in %u group%s: %u experts, %s", p->o.dir,
	       share->worker + 1, share->n_workers, share->n_groups, share->n_groups == 1 ? "" : "s", n_goal,
	       od_format_bytes(bytes, a, sizeof(a)));
	if (n_too_many > 0)
		od_log(OD_LOG_WARN,
		       "spool %s: --spool-limit %s leaves no room for %u more experts of this share; other "
		       "workers must hold them",
		       p->o.dir, od_format_bytes(p->o.limit_bytes, b, sizeof(b)), n_too_many);
	wake(p);
}

void odw_puller_fetch(struct odw_puller *p, uint32_t m, uint32_t expert)
{
	pthread_mutex_lock(&p->lock);
	if (odw_pull_plan_add(&p->plan, m * p->per_layer + expert))
		p->figures.goal_bytes = p->plan.goal_bytes;
	pthread_mutex_unlock(&p->lock);
}

/* Under the lock. */
static int absent(struct odw_puller *p, uint32_t expert, struct od_err *err)
{
	const struct odw_pull_plan *plan = &p->plan;

	if (has(p, expert))
		return od_fail(err, OD_ERR_BUSY, "it has just been pulled");
	if (!plan->goal[expert] && plan->share.n_workers > 0)
		return od_fail(err, OD_ERR_MISSING,
			       "it is not in the spool, and not in this worker's share or beyond its "
			       "--spool-limit");
	if (p->stuck.code != OD_OK) {
		*err = p->stuck;
		return err->code;
	}
	if (plan->rest_ns[expert] > od_now_ns())
		return od_fail(err, OD_ERR_IO, "it cannot be pulled now (see the worker's log)");
	if (plan->goal[expert])
		odw_pull_plan_urge(&p->plan, expert);
	return od_fail(err, OD_ERR_BUSY, "it is being pulled");
}

/* Under the lock: what was called whole is not. True: it is worth waiting for. */
static bool lose(struct odw_puller *p, uint32_t expert)
{
	const uint64_t now = od_now_ns();
	const bool again = p->lost_ns[expert] != 0 && now - p->lost_ns[expert] < AGAIN_NS;

	mark(p, expert, false);
	odw_pull_plan_lost(&p->plan, expert);
	p->lost_ns[expert] = now;
	return !again;
}

int odw_puller_missed(struct odw_puller *p, uint32_t m, uint32_t expert, uint64_t begin_ns, int code,
		      struct od_err *err)
{
	const uint32_t i = m * p->per_layer + expert;
	const bool bad = code == OD_ERR_CORRUPT || code == OD_ERR_IO || code == OD_ERR_FORMAT;
	const struct od_err why = *err;
	bool damaged;

	pthread_mutex_lock(&p->lock);
	damaged = bad && has(p, i) && begin_ns >= p->whole_ns[i];
	/* Bad and not whole, or pulled since: another part of it was found damaged before, or it makes room for
	 * others. */
	if (code == OD_ERR_MISSING || (bad && (!damaged || lose(p, i))))
		code = absent(p, i, err);
	pthread_mutex_unlock(&p->lock);
	if (damaged)
		od_log(OD_LOG_ERROR,
		       "spool %s: expert %u of MoE layer %u is damaged on disk and will be pulled again: %s", p->o.dir,
		       expert, m, why.msg);
	wake(p);
	return code;
}

void odw_puller_figures(struct odw_puller *p, struct odw_pull_figures *f)
{
	pthread_mutex_lock(&p->lock);
	*f = p->figures;
	pthread_mutex_unlock(&p->lock);
}

/* ---- trouble ---- */

static void set_stuck(struct odw_puller *p, int code, const char *text)
{
	bool changed;

	pthread_mutex_lock(&p->lock);
	changed = p->stuck.code != code || strcmp(p->stuck.msg, text) != 0;
	p->stuck.code = code;
	snprintf(p->stuck.msg, sizeof(p->stuck.msg), "%s", text);
	pthread_mutex_unlock(&p->lock);
	if (changed && code != OD_OK)
		od_log(OD_LOG_ERROR, "pulling is paused: %s", text);
	else if (changed)
		od_log(OD_LOG_INFO, "pulling goes on");
}

/* A disk that takes nothing more. */
static void disk_failed(struct odw_puller *p, const struct od_err *why)
{
	char text[sizeof(why->msg)];

	snprintf(text, sizeof(text), "%.500s; make room there, or set a smaller --spool-limit; what is there stays",
		 why->msg);
	set_stuck(p, why->code, text);
	p->pause_ns = od_now_ns() + STUCK_NS;
}

static void free_pull(struct pull *a)
{
	free(a->chunk);
	*a = (struct pull){ .expert = ODW_NO_EXPERT };
}

static void end_pull(struct odw_puller *p, struct pull *a, uint64_t rest_ns)
{
	pthread_mutex_lock(&p->lock);
	odw_pull_plan_end(&p->plan, a->expert, rest_ns);
	if (rest_ns == 0)
		mark(p, a->expert, true);
	pthread_mutex_unlock(&p->lock);
	free_pull(a);
}

static void give_up(struct odw_puller *p, struct pull *a, const char *why)
{
	od_log(OD_LOG_ERROR, "store %s: expert %u of MoE layer %u cannot be pulled: %s; trying again later",
	       odw_store_name(p->o.store), a->expert % p->per_layer, a->expert / p->per_layer, why);
	end_pull(p, a, od_now_ns() + REST_NS);
}

/* ---- asking ---- */

/* Counts what an earlier pull left on disk if it is good; sections without bytes count as there. */
static void recheck(struct odw_puller *p, struct pull *a)
{
	const uint32_t m = a->expert / p->per_layer, e = a->expert % p->per_layer;
	const struct od_pack_expert *x = od_pack_expert(p->o.pack, m, e);
	const bool begun = od_spool_has_data(p->o.spool, m, e);

	for (uint32_t c = 0; c < a->n_chunks; c++) {
		if (od_spool_chunk(x, c)->stored_bytes > 0 && !(begun && od_spool_has_chunk(p->o.spool, m, e, c)))
			continue;
		a->chunk[c] = DONE;
		a->n_done++;
	}
}

static void make_room(struct odw_puller *p, uint32_t for_expert)
{
	uint32_t victim;

	do {
		pthread_mutex_lock(&p->lock);
		victim = odw_pull_plan_victim(&p->plan, for_expert);
		if (victim != ODW_NO_EXPERT)
			mark(p, victim, false);
		pthread_mutex_unlock(&p->lock);
		if (victim != ODW_NO_EXPERT)
			od_spool_drop(p->o.spool, victim / p->per_layer, victim % p->per_layer);
	} while (victim != ODW_NO_EXPERT);
}

/* a is the plan's next expert. False: there is none, or no memory for it. */
static bool take_next(struct odw_puller *p, struct pull *a)
{
	pthread_mutex_lock(&p->lock);
	a->urgent = odw_pull_plan_urgent_waits(&p->plan);
	a->expert = odw_pull_plan_next(&p->plan, od_now_ns());
	pthread_mutex_unlock(&p->lock);
	if (a->expert == ODW_NO_EXPERT)
		return false;
	a->n_chunks = od_spool_n_chunks(od_pack_expert(p->o.pack, a->expert / p->per_layer, a->expert % p->per_layer));
	a->chunk = calloc(a->n_chunks, 1);
	a->serial = ++p->last_serial;
	if (a->chunk != NULL)
		return true;
	give_up(p, a, "no memory");
	return false;
}

/* The next expert of which something is to be asked for; NULL: there is none, or no room for one. */
static struct pull *begin_pull(struct odw_puller *p)
{
	struct pull *a = NULL;

	for (int i = 0; i < MAX_ACTIVE && a == NULL; i++)
		a = p->active[i].expert == ODW_NO_EXPERT ? &p->active[i] : NULL;
	while (a != NULL && !atomic_load(&p->stop) && take_next(p, a)) {
		make_room(p, a->expert);
		recheck(p, a);
		if (a->n_done < a->n_chunks)
			return a;
		end_pull(p, a, 0);
	}
	return NULL;
}

static bool has_todo(struct pull *a)
{
	while (a->next < a->n_chunks && a->chunk[a->next] != LACKING)
		a->next++;
	return a->expert != ODW_NO_EXPERT && a->next < a->n_chunks;
}

/* The urgent before the others, and in each the one that began first. */
static struct pull *choose(struct odw_puller *p)
{
	struct pull *best = NULL;
	bool waits;

	for (int i = 0; i < MAX_ACTIVE; i++) {
		struct pull *a = &p->active[i];

		if (has_todo(a) && (best == NULL || (a->urgent && !best->urgent) ||
				    (a->urgent == best->urgent && a->serial < best->serial)))
			best = a;
	}
	pthread_mutex_lock(&p->lock);
	waits = odw_pull_plan_urgent_waits(&p->plan);
	pthread_mutex_unlock(&p->lock);
	if (best == NULL || (waits && !best->urgent)) {
		struct pull *next = begin_pull(p);

		best = next != NULL ? next : best;
	}
	return best != NULL && has_todo(best) ? best : NULL;
}

static void ask(struct odw_puller *p)
{
	uint64_t open_bytes;
	struct pull *a;

	while (odw_store_open_fetches(p->o.store, &open_bytes) < OD_STORE_MAX_OPEN && open_bytes < WINDOW_BYTES &&
	       (a = choose(p)) != NULL) {
		const struct od_pack_expert *x =
			od_pack_expert(p->o.pack, a->expert / p->per_layer, a->expert % p->per_layer);
		const struct od_chunk *k = od_spool_chunk(x, a->next);

		if (odw_store_fetch(p->o.store, OD_STORE_EXPERTS, k->offset, k->stored_bytes,
				    (uint64_t)a->serial << 32 | a->next) != OD_OK)
			return;
		a->chunk[a->next] = ASKED;
	}
}

/* ---- what comes ---- */

static struct pull *find_pull(struct odw_puller *p, uint64_t tag, uint32_t *chunk)
{
	*chunk = (uint32_t)tag;
	for (int i = 0; i < MAX_ACTIVE; i++) {
		struct pull *a = &p->active[i];

		if (a->expert != ODW_NO_EXPERT && a->serial == tag >> 32 && *chunk < a->n_chunks &&
		    a->chunk[*chunk] == ASKED)
			return a;
	}
	return NULL;
}

/* To be asked for again. */
static void undo(struct pull *a, uint32_t c)
{
	a->chunk[c] = LACKING;
	a->next = c < a->next ? c : a->next;
}

static void on_bytes(struct odw_puller *p, struct pull *a, uint32_t c, const struct odw_fetched *f)
{
	const uint32_t m = a->expert / p->per_layer, e = a->expert % p->per_layer;
	struct od_err err;
	int rc = od_spool_put_chunk(p->o.spool, m, e, c, f->bytes, f->xxh3, &err);

	if (rc == OD_OK) {
		set_stuck(p, OD_OK, "");
		a->chunk[c] = DONE;
		a->n_bad = 0;
		pthread_mutex_lock(&p->lock);
		p->figures.pulled_bytes += od_spool_chunk(od_pack_expert(p->o.pack, m, e), c)->stored_bytes;
		pthread_mutex_unlock(&p->lock);
		if (++a->n_done == a->n_chunks)
			end_pull(p, a, 0);
		return;
	}
	undo(a, c);
	if (rc != OD_ERR_CORRUPT)
		disk_failed(p, &err);
	else if (++a->n_bad == MAX_BAD_CHUNKS)
		give_up(p, a, err.msg);
}

static void on_fetched(struct odw_puller *p, const struct odw_fetched *f)
{
	uint32_t c;
	struct pull *a = find_pull(p, f->tag, &c);

	if (a == NULL)
		return; /* the expert was given up */
	if (f->code == OD_OK) {
		on_bytes(p, a, c, f);
	} else if (f->code == OD_ERR_BUSY) {
		undo(a, c);
		p->pause_ns = od_now_ns() + BUSY_NS;
	} else {
		give_up(p, a, f->reason);
	}
}

/* ---- the thread ---- */

static void begin_life(struct odw_puller *p)
{
	if (p->life == odw_store_life(p->o.store))
		return;
	p->life = odw_store_life(p->o.store);
	for (int i = 0; i < MAX_ACTIVE; i++) {
		struct pull *a = &p->active[i];

		if (a->expert != ODW_NO_EXPERT)
			for (uint32_t c = 0; c < a->n_chunks; c++) {
				if (a->chunk[c] == ASKED)
					undo(a, c);
			}
	}
}

/* The store's pack is the one that the spool is filled from. */
static bool same_pack(struct odw_puller *p)
{
	uint8_t ours[OD_SHA256_BYTES];
	char text[400];

	if (od_spool_identity(p->o.spool, ours) &&
	    memcmp(ours, odw_store_info(p->o.store)->sums_sha256, sizeof(ours)) == 0) {
		if (p->stuck.code == OD_ERR_UNREACHABLE || p->stuck.code == OD_ERR_MISMATCH) /* ours alone to write */
			set_stuck(p, OD_OK, "");
		return true;
	}
	snprintf(text, sizeof(text), "store %.300s serves another pack than the one that this spool was filled from",
		 odw_store_name(p->o.store));
	set_stuck(p, OD_ERR_MISMATCH, text);
	p->pause_ns = od_now_ns() + STUCK_NS;
	odw_store_rest(p->o.store);
	return false;
}

static void note_absence(struct odw_puller *p)
{
	char text[400];

	if (odw_store_away_ns(p->o.store) < AWAY_NS || od_now_ns() < p->pause_ns)
		return;
	snprintf(text, sizeof(text), "store %.300s does not answer; is od-main --serve-store running there?",
		 odw_store_name(p->o.store));
	set_stuck(p, OD_ERR_UNREACHABLE, text);
}

static void save(struct odw_puller *p, bool now)
{
	struct od_share share;
	struct od_err err;
	bool due;

	pthread_mutex_lock(&p->lock);
	due = p->unsaved && (now || od_now_ns() >= p->save_ns);
	share = p->plan.share;
	if (due)
		p->unsaved = false; /* later changes are saved the next time */
	pthread_mutex_unlock(&p->lock);
	if (!due)
		return;
	p->save_ns = od_now_ns() + SAVE_NS;
	if (od_spool_save(p->o.spool, &share, &err) == OD_OK)
		return;
	p->save_ns += STUCK_NS;
	od_log_limited(OD_LOG_WARN, "%s; without it the next start must check experts again", err.msg);
	pthread_mutex_lock(&p->lock);
	p->unsaved = true;
	pthread_mutex_unlock(&p->lock);
}

/* Bytes of the goal that are here; the rest of the figures. */
static uint64_t goal_here(struct odw_puller *p, struct odw_pull_figures *f)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&p->lock);
	*f = p->figures;
	for (uint32_t i = 0; i < p->plan.n; i++) {
		if (p->plan.goal[i] && has(p, i))
			sum += od_spool_expert_bytes(p->o.spool, i / p->per_layer, i % p->per_layer);
	}
	pthread_mutex_unlock(&p->lock);
	return sum;
}

static void say_progress(struct odw_puller *p, bool idle)
{
	const uint64_t now = od_now_ns();
	struct odw_pull_figures f;
	char a[32], b[32];
	uint64_t here;
	double rate;

	if (p->said_ns == 0)
		p->said_ns = now;
	if (!idle && now - p->said_ns < PROGRESS_NS)
		return;
	here = goal_here(p, &f);
	if (here == f.goal_bytes && here != p->said_goal) {
		od_log(OD_LOG_INFO, "spool %s is complete: %s, of which %s were pulled", p->o.dir,
		       od_format_bytes(here, a, sizeof(a)), od_format_bytes(f.pulled_bytes, b, sizeof(b)));
		p->said_goal = here;
	}
	if (here == f.goal_bytes || now - p->said_ns < PROGRESS_NS)
		return;
	rate = (double)(f.pulled_bytes - p->said_bytes) / od_seconds(now - p->said_ns);
	od_log(OD_LOG_INFO, "pulled %s of %s (%.0f %%), %.0f MB/s, %.0f s left", od_format_bytes(here, a, sizeof(a)),
	       od_format_bytes(f.goal_bytes, b, sizeof(b)), 100.0 * (double)here / (double)f.goal_bytes, rate / 1e6,
	       (double)(f.goal_bytes - here) / (rate + 1));
	p->said_ns = now;
	p->said_bytes = f.pulled_bytes;
}

/* How long the thread may wait, in milliseconds; -1: until it is woken. */
static int work(struct odw_puller *p)
{
	const uint64_t now = od_now_ns();
	bool any = false;

	for (int i = 0; i < MAX_ACTIVE; i++)
		any = any || p->active[i].expert != ODW_NO_EXPERT;
	any = any || begin_pull(p) != NULL;
	if (!any) {
		pthread_mutex_lock(&p->lock);
		any = p->plan.next_rest_ns != UINT64_MAX;
		pthread_mutex_unlock(&p->lock);
		return any ? TICK_MS : -1;
	}
	if (now < p->pause_ns)
		return TICK_MS;
	odw_store_tick(p->o.store);
	begin_life(p);
	if (!odw_store_ready(p->o.store))
		note_absence(p);
	else if (odw_store_open_fetches(p->o.store, &(uint64_t){ 0 }) > 0 || same_pack(p))
		ask(p);
	return TICK_MS;
}

static void *pull_main(void *arg)
{
	struct odw_puller *p = arg;
	struct odw_fetched f;

	while (!atomic_load(&p->stop)) {
		int timeout = work(p);

		save(p, timeout < 0);
		say_progress(p, timeout < 0);
		odw_store_wait(p->o.store, p->wake_fd, timeout);
		while (odw_store_next(p->o.store, &f)) {
			on_fetched(p, &f);
			od_msg_fini(&f.msg);
		}
	}
	save(p, true);
	return NULL;
}

/* ---- life ---- */

static int open_plan(struct odw_puller *p, struct od_err *err)
{
	const struct od_share share = od_spool_share(p->o.spool);
	const uint64_t header = od_spool_header_bytes(p->o.spool), small = od_spool_small_bytes(p->o.spool);
	const uint64_t limit = p->o.limit_bytes;
	uint64_t least;
	int rc = odw_pull_plan_init(&p->plan, p->o.pack,
				    limit == UINT64_MAX ? limit : limit - (small < limit ? small : limit), header, err);

	if (rc != OD_OK)
		return rc;
	p->lost_ns = calloc(p->plan.n, sizeof(*p->lost_ns));
	p->whole_ns = calloc(p->plan.n, sizeof(*p->whole_ns));
	if (p->lost_ns == NULL || p->whole_ns == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to pull %u experts", p->plan.n);
	least = small + p->plan.disk_bytes + od_spool_expert_bytes(p->o.spool, 0, 0);
	if (least > limit)
		return od_fail(err, OD_ERR_ARG,
			       "--spool-limit: expected at least %" PRIu64 " bytes (small files, headers, one "
			       "expert), found %" PRIu64,
			       least, limit);
	for (uint32_t i = 0; i < p->plan.n; i++) {
		const uint32_t m = i / p->per_layer, e = i % p->per_layer;

		if (has(p, i))
			p->figures.whole_bytes += od_spool_expert_bytes(p->o.spool, m, e);
		if (has(p, i) || od_spool_has_data(p->o.spool, m, e))
			odw_pull_plan_keep(&p->plan, i);
	}
	if (od_share_good(&share))
		odw_puller_place(p, &share);
	return OD_OK;
}

int odw_puller_start(struct odw_puller **out, const struct odw_puller_opts *opts, struct od_err *err)
{
	struct odw_puller *p = calloc(1, sizeof(*p));
	int rc;

	*out = NULL;
	if (p == NULL) {
		od_spool_close(opts->spool);
		odw_store_close(opts->store);
		return od_fail(err, OD_ERR_NOMEM, "puller");
	}
	p->o = *opts;
	p->per_layer = od_pack_config(opts->pack)->n_experts;
	pthread_mutex_init(&p->lock, NULL);
	for (int i = 0; i < MAX_ACTIVE; i++)
		p->active[i].expert = ODW_NO_EXPERT;
	p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = p->wake_fd >= 0 ? open_plan(p, err) : od_fail_errno(err, OD_ERR_IO, "puller: cannot create an eventfd");
	if (rc == OD_OK && pthread_create(&p->thread, NULL, pull_main, p) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "cannot start the puller thread");
	if (rc != OD_OK) {
		odw_puller_stop(p);
		return rc;
	}
	pthread_setname_np(p->thread, "od-pull");
	p->started = true;
	*out = p;
	return OD_OK;
}

void odw_puller_stop(struct odw_puller *p)
{
	if (p == NULL)
		return;
	if (p->started) {
		atomic_store(&p->stop, true);
		wake(p);
		pthread_join(p->thread, NULL);
	}
	for (int i = 0; i < MAX_ACTIVE; i++)
		free_pull(&p->active[i]);
	odw_pull_plan_fini(&p->plan);
	free(p->lost_ns);
	free(p->whole_ns);
	odw_store_close(p->o.store);
	od_spool_close(p->o.spool);
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
