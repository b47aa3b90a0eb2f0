#include "main-node/engine/reuse.h"

#include "common/compute/device.h"

#include <stdlib.h>
#include <string.h>

/* Files take so many times the memory of the cache: they are to hold the texts of days, not of minutes. */
#define FILES_PER_MEMORY 16

static void forget_snapshot(void *arg, uint32_t snapshot)
{
	const struct odm_reuse *u = arg;

	if (u->store != NULL)
		odm_prefix_store_forget(u->store, ODM_PREFIX_STATE, snapshot);
}

static void forget_page(void *arg, uint32_t page)
{
	const struct odm_reuse *u = arg;

	if (u->snapshots != NULL)
		odm_snapshots_drop(u->snapshots, page);
	if (u->store != NULL)
		odm_prefix_store_forget(u->store, ODM_PREFIX_PAGE, page);
}

static int open_files(struct odm_reuse *u, const struct odm_reuse_opts *o, struct od_err *err)
{
	const struct odm_prefix_store_opts so = {
		.dir = o->dir,
		.kind = o->kind,
		.pool = o->pool,
		.device = o->device,
		.limit_bytes = FILES_PER_MEMORY *
			       (o->cache_pages * o->page_bytes + o->n_snapshots * od_state_pool_fixed_bytes(o->pool)),
	};

	return odm_prefix_store_open(&u->store, &so, err);
}

int odm_reuse_open(struct odm_reuse *u, const struct odm_reuse_opts *o, struct od_err *err)
{
	int rc;

	u->pool = o->pool;
	u->device = o->device;
	if (o->cache_pages == 0)
		return OD_OK;
	od_state_pool_set_aside(o->pool, o->cache_pages);
	u->page = calloc(o->text_pages, sizeof(*u->page));
	u->snapshot = calloc(o->text_pages, sizeof(*u->snapshot));
	if (u->page == NULL || u->snapshot == NULL)
		return od_fail(err, OD_ERR_NOMEM, "prefix cache");
	rc = odm_prefix_cache_new(&u->cache, o->pool, o->n_pages + o->cache_pages, o->cache_pages, forget_page, u, err);
	if (rc == OD_OK && o->uses_free)
		odm_prefix_cache_use_free(u->cache);
	if (rc == OD_OK && o->n_snapshots > 0)
		rc = od_state_pool_set_snapshots(o->pool, o->device, o->n_snapshots, err);
	if (rc == OD_OK && o->n_snapshots > 0)
		rc = odm_snapshots_new(&u->snapshots, o->n_snapshots, o->n_pages + o->cache_pages, forget_snapshot, u,
				       err);
	return rc == OD_OK && o->dir != NULL ? open_files(u, o, err) : rc;
}

void odm_reuse_close(struct odm_reuse *u)
{
	odm_prefix_store_close(u->store);
	odm_prefix_cache_free(u->cache);
	odm_snapshots_free(u->snapshots);
	free(u->page);
	free(u->snapshot);
}

/* ---- At the begin of a text ---- */

/* Whole pages of what a text computes first, before the first row whose logits it needs: the last row always is one. */
static uint32_t most_pages(const struct odm_sequence *q)
{
	const uint32_t last = (uint32_t)q->n_prefill - 1, shown = odm_sequence_shows_from(q);

	return (shown < last ? shown : last) / OD_KV_PAGE;
}

/* Number of these pages that the other text begins with. */
static uint32_t common_pages(const struct odm_sequence *q, const struct odm_sequence *with)
{
	const size_t prompt = (size_t)most_pages(q) * OD_KV_PAGE, most = prompt < with->n_text ? prompt : with->n_text;
	size_t n = 0;

	while (n < most && q->text[n] == with->text[n])
		n++;
	return (uint32_t)(n / OD_KV_PAGE);
}

/* Pages that q could begin with when the text, which is being computed, has come so far; both begin with so many. */
static uint32_t coming_pages(struct odm_sequence *with, uint32_t common, bool fixed)
{
	uint32_t n = common;

	if (with->phase != ODM_IN_RESTORE && with->phase != ODM_IN_PREFILL)
		return 0;
	if (fixed) {
		n = odm_marks_coming(&with->marks, od_seq_state_length(with->state), common * OD_KV_PAGE) / OD_KV_PAGE;
		if (with->phase == ODM_IN_RESTORE && with->restore_end <= common && with->restore_end > n)
			n = with->restore_end;
		if (n < common && odm_marks_want(&with->marks, common * OD_KV_PAGE))
			n = common;
	}
	return n;
}

/* Returns how many pages the best donor will have, if it is still in prefill. */
static uint32_t find_donor(struct odm_sequence *first, bool fixed, const struct odm_sequence *q,
			   struct odm_reuse_pages *r)
{
	uint32_t coming = 0;

	for (struct odm_sequence *with = first; with != NULL; with = with->next) {
		uint32_t common, there, n;

		if (with->state == NULL || atomic_load(&with->cancelled) ||
		    od_seq_state_is_long(with->state) != odm_sequence_is_long(q))
			continue;
		common = common_pages(q, with);
		there = od_seq_state_length(with->state) / OD_KV_PAGE;
		/* coming_pages() may ask the text for one more snapshot, so it is asked only where that would help. */
		n = common > r->n ? coming_pages(with, common, fixed) : 0;
		coming = n > coming ? n : coming;
		if (common > there)
			common = there;
		if (common > r->n_donor) {
			r->n_donor = common;
			r->donor = with;
		}
	}
	return coming;
}

/* The pages of r, of which r->known are there, up to one that has a snapshot. */
static void cut_to_snapshot(const struct odm_snapshots *s, struct odm_reuse_pages *r)
{
	r->known = r->n;
	for (; r->n > 0; r->n--) {
		r->snapshot = odm_snapshots_of(s, r->page[r->n - 1]);
		if (r->snapshot != ODM_NO_SNAPSHOT)
			return;
	}
}

bool odm_reuse_find(const struct odm_reuse *u, struct odm_sequence *first, struct odm_sequence *q,
		    struct odm_reuse_pages *r)
{
	const bool fixed = od_state_pool_fixed_bytes(u->pool) > 0;
	uint32_t coming;

	*r = (struct odm_reuse_pages){ .snapshot = ODM_NO_SNAPSHOT };
	if (fixed && u->snapshots == NULL)
		return true;
	if (u->cache != NULL) {
		r->page = u->page;
		r->n = odm_prefix_cache_find(u->cache, odm_sequence_is_long(q), q->text, most_pages(q), u->page);
	}
	if (fixed)
		cut_to_snapshot(u->snapshots, r);
	coming = find_donor(first, fixed, q, r);
	/* With fixed state a text begins at a snapshot, so what a donor has behind it is only known. */
	if (fixed) {
		r->known = r->n_donor > r->known ? r->n_donor : r->known;
		r->n_donor = r->n_donor < r->n ? r->n_donor : r->n;
	} else if (r->n_donor > r->n) {
		r->page = od_seq_state_pages(r->donor->state);
		r->n = r->n_donor;
	}
	return coming <= r->n;
}

int odm_reuse_begin(const struct odm_reuse *u, struct odm_sequence *q, const struct odm_reuse_pages *r,
		    struct od_err *err)
{
	const uint32_t shown = odm_sequence_shows_from(q);
	const struct odm_marks_plan plan = { .n_prefill = (uint32_t)q->n_prefill,
					     .begin = r->n * OD_KV_PAGE,
					     .known = r->known * OD_KV_PAGE,
					     .fork = q->req.fork,
					     .n_forks = q->req.n_forks };

	odm_marks_plan(&q->marks, &plan);
	/* Texts that are asked about behind one prefix share what is before it. */
	if (shown < q->n_prefill && shown / OD_KV_PAGE > r->n)
		(void)odm_marks_want(&q->marks, shown / OD_KV_PAGE * OD_KV_PAGE);
	if (r->snapshot == ODM_NO_SNAPSHOT)
		return OD_OK;
	odm_snapshots_use(u->snapshots, r->snapshot);
	od_seq_state_load(q->state, r->snapshot);
	return od_device_sync(u->device, err); /* an error is this text's, not that of its first step */
}

/* Adds the first n pages of a text in progress to the cache. Returns the last one of them there. */
static uint32_t add_pages(const struct odm_reuse *u, const struct odm_sequence *q, uint32_t n)
{
	/* The cache writes its own numbers over those of pages that it has already; the text keeps its pages. */
	memcpy(u->page, od_seq_state_pages(q->state), n * sizeof(*u->page));
	odm_prefix_cache_add(u->cache, od_seq_state_is_long(q->state), q->text, n, u->page);
	return n > 0 ? u->page[n - 1] : ODM_NO_PAGE;
}

/* ---- Files ---- */

/* False: there is no room for a snapshot. */
static bool take_snapshot(const struct odm_reuse *u, struct odm_sequence *q)
{
	q->restore_snapshot =
		u->snapshots != NULL ? odm_snapshots_take(u->snapshots, ODM_NO_PAGE, q->id) : ODM_NO_SNAPSHOT;
	return u->snapshots == NULL || q->restore_snapshot != ODM_NO_SNAPSHOT;
}

static void give_snapshot_back(const struct odm_reuse *u, struct odm_sequence *q)
{
	if (q->restore_snapshot != ODM_NO_SNAPSHOT)
		odm_snapshots_give_back(u->snapshots, q->restore_snapshot);
	q->restore_snapshot = ODM_NO_SNAPSHOT;
}

bool odm_reuse_restore(const struct odm_reuse *u, struct odm_sequence *q, uint32_t n)
{
	struct odm_prefix_store *store = u->store;
	uint32_t end;

	if (store == NULL)
		return false;
	end = odm_prefix_store_find(store, odm_sequence_is_long(q), q->text, n, most_pages(q));
	if (end <= n || !take_snapshot(u, q))
		return false;
	/* The store's thread writes to these pages, so the text takes them now; its promise covers them. */
	if (od_seq_state_reserve(q->state, end * OD_KV_PAGE, NULL) != OD_OK) {
		give_snapshot_back(u, q);
		return false;
	}
	q->restore_end = end;
	q->restore = odm_prefix_store_read(store, odm_sequence_is_long(q), q->text, n, end,
					   od_seq_state_pages(q->state), q->restore_snapshot);
	if (q->restore == NULL)
		give_snapshot_back(u, q);
	return q->restore != NULL;
}

/* So many pages of the text are there. */
static void take_pages(struct odm_sequence *q, uint32_t end)
{
	const uint32_t before = od_seq_state_length(q->state);

	od_seq_state_set_length(q->state, end * OD_KV_PAGE);
	q->own[OD_C_RESTORED_TOKENS] += end * OD_KV_PAGE - before;
	if (q->r.n_tokens == 0)
		q->own[OD_C_SHARED_TOKENS] = end * OD_KV_PAGE;
	if (end * OD_KV_PAGE > before)
		odm_sequence_progress(q, end * OD_KV_PAGE);
}

/* All pages and their snapshot were read: the text goes on behind them, and so can others. */
static void take_snapshot_read(const struct odm_reuse *u, struct odm_sequence *q)
{
	const uint32_t snapshot = q->restore_snapshot;

	take_pages(q, q->restore_end);
	q->marks.begin = q->restore_end * OD_KV_PAGE;
	/* The state is loaded before the snapshot is the cache's: if the page has one, this one is given back. */
	od_seq_state_load(q->state, snapshot);
	q->restore_snapshot = ODM_NO_SNAPSHOT;
	if (odm_snapshots_keep(u->snapshots, snapshot, add_pages(u, q, q->restore_end), q->id,
			       q->restore_end * OD_KV_PAGE))
		odm_snapshots_use(u->snapshots, snapshot);
}

/* False: all that will come is there. */
static bool take_restored(const struct odm_reuse *u, struct odm_sequence *q)
{
	uint32_t end;
	bool state;
	const bool more = odm_prefix_read_goes_on(q->restore, &end, &state);

	if (q->restore_snapshot == ODM_NO_SNAPSHOT)
		take_pages(q, end);
	else if (!more && state)
		take_snapshot_read(u, q);
	return more;
}

/* Nothing is read to the text any more. */
static void close_restore(const struct odm_reuse *u, struct odm_sequence *q)
{
	if (q->restore == NULL)
		return;
	odm_prefix_read_close(q->restore); /* before the snapshot: a thread may still write to that */
	q->restore = NULL;
	if (u->snapshots != NULL)
		give_snapshot_back(u, q);
}

size_t odm_reuse_poll(const struct odm_reuse *u, struct odm_sequence *first)
{
	size_t n = 0;

	for (struct odm_sequence *q = first; q != NULL; q = q->next) {
		if (q->phase != ODM_IN_RESTORE)
			continue;
		if (take_restored(u, q)) {
			n++;
			continue;
		}
		close_restore(u, q);
		q->phase = ODM_IN_PREFILL;
	}
	return n;
}

void odm_reuse_wait(const struct odm_reuse *u)
{
	odm_prefix_store_wait(u->store);
}

/* ---- Its steps ---- */

void odm_reuse_step(const struct odm_reuse *u, struct odm_sequence *q, uint32_t end)
{
	if (u->snapshots != NULL)
		odm_marks_begin(&q->marks, u->snapshots, q->state, q->id, end, q->phase == ODM_IN_DECODE);
}

/* Values the snapshots of the text's first n pages, which are in u->page. The last one, those at its forks, and those
 * from which several texts began save what lies between them. The text has passed the others. */
static void value_path(const struct odm_reuse *u, const struct odm_sequence *q, uint32_t n)
{
	uint32_t wanted = ODM_NO_SNAPSHOT, wanted_end = 0, passed = ODM_NO_SNAPSHOT, passed_end = 0;
	size_t n_forks = q->req.n_forks;

	for (uint32_t i = n; i > 0; i--) {
		const uint32_t s = odm_snapshots_of(u->snapshots, u->page[i - 1]), end = i * OD_KV_PAGE;
		bool is_wanted = i == n;

		if (s == ODM_NO_SNAPSHOT)
			continue;
		for (; n_forks > 0 && q->req.fork[n_forks - 1] >= end; n_forks--)
			is_wanted = true;
		if (passed != ODM_NO_SNAPSHOT)
			odm_snapshots_pass(u->snapshots, passed, passed_end - end);
		passed = ODM_NO_SNAPSHOT;
		if (!is_wanted && odm_snapshots_uses(u->snapshots, s) < 2) {
			passed = s;
			passed_end = end;
			continue;
		}
		if (wanted != ODM_NO_SNAPSHOT)
			odm_snapshots_value(u->snapshots, wanted, wanted_end - end);
		wanted = s;
		wanted_end = end;
	}
	if (passed != ODM_NO_SNAPSHOT)
		odm_snapshots_pass(u->snapshots, passed, passed_end);
	if (wanted != ODM_NO_SNAPSHOT)
		odm_snapshots_value(u->snapshots, wanted, wanted_end);
}

static void keep_snapshot(const struct odm_reuse *u, struct odm_sequence *q, uint32_t length, uint32_t snapshot)
{
	const uint32_t page = add_pages(u, q, length / OD_KV_PAGE), n_prefill = (uint32_t)q->n_prefill;
	const bool is_new = odm_snapshots_keep(
		u->snapshots, snapshot, page, q->id,
		length - (length > n_prefill ? n_prefill / OD_KV_PAGE * OD_KV_PAGE : q->marks.begin));

	if (length == q->marks.last)
		value_path(u, q, length / OD_KV_PAGE);
	if (!is_new || length <= n_prefill)
		return;
	/* The answer's older snapshot goes when a newer one is kept: a next turn begins behind the newer one. */
	if (q->marks.answer != ODM_NO_PAGE)
		odm_snapshots_forget(u->snapshots, q->marks.answer, q->id);
	q->marks.answer = page;
}

void odm_reuse_stepped(const struct odm_reuse *u, struct odm_sequence *q)
{
	struct odm_marks *m = &q->marks;

	for (uint32_t i = 0; i < m->n_marks; i++) {
		if (m->mark[i].length <= od_seq_state_length(q->state))
			keep_snapshot(u, q, m->mark[i].length, m->mark[i].snapshot);
		else
			odm_snapshots_give_back(u->snapshots, m->mark[i].snapshot);
	}
	if (m->n_marks > 0)
		od_seq_state_unmark(q->state);
	m->n_marks = 0;
}

/* ---- At its end ---- */

/* Forgets what the text added while it was in progress: snapshots, and its first n pages. */
static void forget_text(const struct odm_reuse *u, const struct odm_sequence *q, uint32_t n)
{
	odm_snapshots_forget_all(u->snapshots, q->id);
	odm_prefix_cache_forget(u->cache, od_seq_state_is_long(q->state), q->text, q->marks.begin / OD_KV_PAGE, n,
				od_seq_state_pages(q->state));
}

void odm_reuse_keep(const struct odm_reuse *u, struct odm_sequence *q)
{
	uint32_t n;

	if (u->cache == NULL || q->state == NULL)
		return;
	/* Reading ends first: its thread would write to pages that another text gets when this one's are freed. */
	close_restore(u, q);
	odm_reuse_stepped(u, q);
	n = od_seq_state_length(q->state) / OD_KV_PAGE; /* tokens of committed rows are in the text */
	/* After an error the rows may hold what is no number. */
	if (q->err.code != OD_OK && q->err.code != OD_ERR_CANCELLED) {
		if (u->snapshots != NULL)
			forget_text(u, q, n);
		return;
	}
	(void)add_pages(u, q, n); /* before the snapshots: it leaves the cache's page numbers in u->page */
	for (uint32_t i = 0; u->snapshots != NULL && i < n; i++)
		u->snapshot[i] = odm_snapshots_of(u->snapshots, u->page[i]);
	if (u->store != NULL)
		odm_prefix_store_save(u->store, od_seq_state_is_long(q->state), q->text, n, u->page,
				      u->snapshots != NULL ? u->snapshot : NULL);
}

void odm_reuse_trim(const struct odm_reuse *u)
{
	if (u->cache != NULL)
		odm_prefix_cache_trim(u->cache);
}
