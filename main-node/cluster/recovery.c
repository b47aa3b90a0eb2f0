#include "main-node/cluster/recovery.h"

#include "common/base/log.h"
#include "main-node/cluster/members_links.h"
#include "main-node/cluster/members_look.h"

#include <stdio.h>
#include <string.h>

#define ROUND_NS (250 * OD_NS_PER_MS) /* period of probes: as often as heartbeats */
#define MAX_UNANSWERED 11 /* then a data socket is taken for dead: after 3 s */
/* Besides, for rows that are on their way: what goes to all workers shares main's line. 1.7 MB/s, a sixth of 100
 * Mbit. */
#define UNANSWERED_NS_PER_BYTE 600
#define MAX_RESENDS 2
/* A connection breaks now and then; a worker that loses RUNs all the time costs more than it does. So many answers make
 * good for a lost RUN, and for having been distrusted. */
#define FORGIVEN_AFTER 200
#define MAX_LOST 5 /* losses that are not forgiven */
#define REST_MS 50 /* between two rounds of asking for an expert that is being pulled */
/* An answer may take so long, and for each weight of the experts that are owed: a disk of 1 MB/s (BF16) that just is
 * not stuck, and a processor of 1 GFLOP/s. */
#define ANSWER_NS (60 * OD_NS_PER_S)
#define LOAD_NS_PER_WEIGHT 2000
#define RUN_NS_PER_WEIGHT 2 /* and row */
#define SAY_BUSY_ROUNDS 20 /* 5 s */
#define MAX_BUSY_ROUNDS 720 /* 3 minutes */
#define PULL_NS_PER_WEIGHT 16000 /* BF16 at 1 Mbit/s: the longest wait for experts that workers say they pull */
/* A worker is late after so much, and after a multiple of what its RUNs should take: sooner if it is known to be the
 * link. */
#define LATE_LINK_NS (100 * OD_NS_PER_MS)
#define LATE_LINK_TIMES 4
#define LATE_NS (1 * OD_NS_PER_S)
#define LATE_TIMES 8
#define LATE_LOOK_MS 50
#define SUSPENDED_NS (500 * OD_NS_PER_MS) /* between two looks: main itself was away */
#define MANY_ROWS 16 /* rows of a piece: a worker that computes one may not look at its data socket for seconds */

/* All pieces under way, one after the other: the one behind p, or the first one. NULL: there is no other. */
static struct odm_piece *next_piece(const struct odm_recovery *r, const struct odm_piece *p)
{
	size_t i = p != NULL ? (size_t)(p->work - r->work) : 0;
	size_t at = p != NULL ? (size_t)(p - p->work->piece) + 1 : 0;

	for (; i < ODM_HALVES; i++, at = 0)
		if (at < r->work[i].n)
			return &r->work[i].piece[at];
	return NULL;
}

static size_t n_done(const struct odm_recovery *r)
{
	size_t n = 0;

	for (size_t i = 0; i < ODM_HALVES; i++)
		n += r->work[i].n_done;
	return n;
}

/* Rows of the worker's largest unanswered piece. */
static uint32_t most_rows(const struct odm_recovery *r, uint32_t worker)
{
	const uint32_t a = odm_pieces_most_rows(&r->work[0], worker), b = odm_pieces_most_rows(&r->work[1], worker);

	return a > b ? a : b;
}

static bool is_owed(const struct odm_recovery *r, uint32_t worker)
{
	return most_rows(r, worker) > 0;
}

static struct odm_members *members(const struct odm_recovery *r)
{
	return odm_cluster_members(r->net->cluster);
}

void odm_recovery_begin(struct odm_recovery *r, const struct odm_step *step)
{
	r->step = step;
	r->rest_ns = r->unserved_ns = 0;
	r->busy_rounds = r->busy_lasts = 0;
	r->pull_rounds = 0;
	r->looked_ns = od_now_ns();
	r->round_ns = r->looked_ns + ROUND_NS;
}

int odm_recovery_timeout_ms(const struct odm_recovery *r)
{
	const uint64_t now = od_now_ns(), left = r->round_ns > now ? r->round_ns - now : 0;
	const int ms = (int)(left / OD_NS_PER_MS) + 1;

	return ms > LATE_LOOK_MS ? LATE_LOOK_MS : ms;
}

/* The next living worker for a piece: of the layer's group and then of the groups after it, those that have the expert
 * before those that lack it; each expert begins at another one, so that what a lost worker owed is spread. Dead ones
 * keep their positions in this order: a worker that dies between two attempts does not let one be passed over that was
 * not asked. */
static uint32_t candidate(struct odm_recovery *r, struct odm_piece *p)
{
	const struct odm_groups *g = &r->net->groups;
	uint32_t group = odm_group_of_layer(g, p->work->call->step, p->work->call->m), position = 0;

	for (uint32_t i = 0; i < 2 * g->n_groups; i++) {
		uint32_t at = (group + i) % g->n_groups, size = odm_group_size(g, at);

		for (uint32_t j = 0; j < size; j++) {
			uint32_t w = odm_group_worker(g, at, (p->expert + j) % size);

			if (position++ < p->n_passed ||
			    odm_worker_has(g, w, p->work->call->m, p->expert) != (i < g->n_groups) ||
			    r->net->link[w].watch.late || !odm_links_alive(r->net, w))
				continue;
			p->n_passed = position;
			return w;
		}
	}
	p->n_passed =
		position > p->n_passed ? position : p->n_passed; /* workers that last_resort has passed stay passed */
	return ODM_NOBODY;
}

/* Chooses among workers that get no experts because they are slow, and those that were late in this step: better than
 * none. */
static uint32_t last_resort(struct odm_recovery *r, struct odm_piece *p)
{
	const struct odm_links *net = r->net;
	const uint32_t n = net->view.n_workers, before = 2 * net->groups.n_workers;

	for (uint32_t i = p->n_passed > before ? p->n_passed - before : 0; i < n; i++) {
		const uint32_t w = (p->expert + i) % n;

		p->n_passed = before + i + 1;
		if ((w >= net->groups.n_workers || net->link[w].watch.late) && odm_links_alive(r->net, w))
			return w;
	}
	return ODM_NOBODY;
}

/* The first one. */
static uint32_t first_candidate(struct odm_recovery *r, struct odm_piece *p)
{
	p->n_passed = 0;
	p->coming = p->missing = false;
	return candidate(r, p);
}

static void move_piece(struct odm_recovery *r, struct odm_piece *p, uint32_t to)
{
	r->step->counters[OD_C_RECOVERED_RUNS] += p->state == ODM_PIECE_SENT;
	p->worker = to;
	p->state = ODM_PIECE_TODO;
	p->first_of = p->last = true; /* its neighbours may lie elsewhere now */
}

/* No worker of the view can run it: it waits for one that joins. */
static void set_aside(struct odm_recovery *r, struct odm_piece *p)
{
	move_piece(r, p, ODM_NOBODY);
	if (r->unserved_ns == 0)
		r->unserved_ns = od_now_ns() + ODM_RETURN_WAIT_NS;
}

/* To the first of its workers. */
static void begin_again(struct odm_recovery *r, struct odm_piece *p)
{
	uint32_t to = first_candidate(r, p);

	if (to == ODM_NOBODY)
		to = last_resort(r, p);
	if (to != ODM_NOBODY) {
		move_piece(r, p, to);
		return;
	}
	set_aside(r, p);
	odm_links_none_left(r->net, &r->unserved); /* for when none joins in time */
}

/* ---- Pieces that no worker can run ---- */

static bool is_held(const struct odm_piece *p)
{
	return p->worker == ODM_NOBODY && p->state != ODM_PIECE_DONE;
}

static size_t row_of(const struct odm_piece *p, uint32_t pair)
{
	return p->work->call->first + p->work->order[pair] / p->work->top_k;
}

static size_t part_of(const struct odm_step *step, size_t row)
{
	size_t i = 0;

	while (row >= step->part[i].first + step->part[i].n)
		i++;
	return i;
}

/* Draft rows, which plain decoding would perhaps never have. */
static bool only_drafts_held(const struct odm_recovery *r)
{
	const struct odm_step *step = r->step;

	for (const struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		for (uint32_t j = p->first; is_held(p) && j < p->first + p->count; j++)
			if (step->phase != ODM_DECODE || row_of(p, j) == step->part[part_of(step, row_of(p, j))].first)
				return false;
	return true;
}

static void drop(struct odm_recovery *r, struct odm_piece *p)
{
	const struct odm_step *step = r->step;

	for (uint32_t j = p->first; j < p->first + p->count; j++) {
		const size_t row = row_of(p, j), part = part_of(step, row);
		const uint32_t before = (uint32_t)(row - step->part[part].first);

		memset(p->work->call->y + (size_t)p->work->order[j] * r->hidden, 0, r->hidden * sizeof(float));
		if (step->valid[part] > before)
			step->valid[part] = before;
	}
	p->state = ODM_PIECE_DONE;
	p->work->n_done++;
}

static void drop_held(struct odm_recovery *r)
{
	od_log_limited(OD_LOG_WARN, "%s; only a draft needs it: the draft is cut", r->unserved.msg);
	for (struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		if (is_held(p))
			drop(r, p);
	r->unserved_ns = 0;
}

/* Workers have joined, and groups are others. What was set aside goes on; other pieces go on where they are, but their
 * next attempts begin with the first worker of the new order. */
static void begin_anew(struct odm_recovery *r)
{
	r->unserved_ns = 0;
	for (struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;) {
		p->n_passed = 0;
		if (is_held(p))
			begin_again(r, p);
	}
}

/* A worker that is away may be back within a while. */
int odm_recovery_serve(struct odm_recovery *r, struct od_err *err)
{
	bool awaited;

	if (r->unserved_ns == 0)
		return OD_OK;
	awaited = odm_members_awaited(members(r)); /* first: one that comes now is seen below */
	if (odm_links_join(r->net)) {
		begin_anew(r);
		return OD_OK;
	}
	if ((awaited || r->net->n_joining > 0) && od_now_ns() < r->unserved_ns)
		return OD_OK;
	if (only_drafts_held(r)) {
		drop_held(r);
		return OD_OK;
	}
	*err = r->unserved;
	return err->code;
}

static void say_moved(struct odm_recovery *r, uint32_t member, size_t n, uint32_t m)
{
	struct odm_member_stats st;
	char name[300] = "a worker";

	odm_members_stats(members(r), member, &st, name, sizeof(name));
	od_log(OD_LOG_WARN, "%s: other workers run its %zu expert%s of MoE layer %u", name, n, n > 1 ? "s" : "", m);
}

/* Everything that dead workers owe goes to others. */
void odm_recovery_move(struct odm_recovery *r)
{
	for (uint32_t w = 0; w < r->net->view.n_workers; w++) {
		const bool first = r->net->link[w].session != 0; /* not a later layer of the step */
		size_t n = 0;
		uint32_t m = 0;

		if (odm_links_alive(r->net, w))
			continue;
		/* It also forgets the session, so `first` was read before it. */
		odm_link_close(&r->net->link[w]);
		for (struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;) {
			if (p->worker != w || p->state == ODM_PIECE_DONE)
				continue;
			begin_again(r, p);
			n++;
			m = p->work->call->m;
		}
		if (first && n > 0)
			say_moved(r, r->net->link[w].member, n, m);
	}
}

/* ---- Workers that are late ---- */

/* It has nothing to do: what takes others so long does not take everybody so long. */
static bool somebody_is_idle(const struct odm_recovery *r)
{
	uint32_t w = 0;

	while (w < r->net->groups.n_workers &&
	       (r->net->link[w].watch.late || is_owed(r, w) || !odm_links_alive(r->net, w)))
		w++;
	return w < r->net->groups.n_workers;
}

/* Experts that a worker has not answered. */
static uint32_t debt_of(const struct odm_recovery *r, uint32_t worker)
{
	uint32_t n = 0;

	for (const struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		n += p->worker == worker && p->state == ODM_PIECE_SENT;
	return n;
}

static bool is_late(struct odm_recovery *r, uint32_t worker, uint64_t now)
{
	struct odm_link *l = &r->net->link[worker];
	const double age_ns = (double)(now - l->watch.moved_ns);
	const double expect_ns = l->watch.expect_ns[0] + l->watch.expect_ns[1];
	const uint32_t n = debt_of(r, worker);
	bool link;

	if (n == 0 || l->watch.late || age_ns < (double)LATE_LINK_NS + LATE_LINK_TIMES * expect_ns)
		return false;
	link = age_ns < (double)LATE_NS + LATE_TIMES * expect_ns;
	return odm_members_late(members(r), l->member, l->session, n, link ? 0 : age_ns, age_ns / (expect_ns + 1));
}

static void overtake(struct odm_recovery *r, uint32_t worker)
{
	struct odm_link *l = &r->net->link[worker];
	struct odm_member_stats st;
	char name[300] = "a worker";
	size_t n = 0;
	uint32_t m = 0;

	/* The mark comes first: no candidate is late, so none of its pieces comes back to it. */
	l->watch.late = true;
	l->held_bytes = 0;
	for (struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;) {
		const bool sent = p->state == ODM_PIECE_SENT;
		uint32_t to;

		if (p->worker != worker || p->state == ODM_PIECE_DONE)
			continue;
		to = first_candidate(r, p);
		if (to == ODM_NOBODY || !odm_worker_has(&r->net->groups, to, p->work->call->m, p->expert)) {
			p->n_passed = 0; /* No worker has been asked. */
			continue;
		}
		p->late_worker = worker;
		p->late_request = sent ? p->request : 0;
		move_piece(r, p, to);
		n++;
		m = p->work->call->m;
	}
	if (n == 0)
		return;
	odm_members_stats(members(r), l->member, &st, name, sizeof(name));
	od_log_limited(OD_LOG_WARN, "%s is late; other workers are asked for its %zu expert%s of MoE layer %u, too",
		       name, n, n > 1 ? "s" : "", m);
}

void odm_recovery_overtake(struct odm_recovery *r)
{
	const uint64_t now = od_now_ns(), away_ns = now - r->looked_ns;

	r->looked_ns = now;
	for (uint32_t w = 0; w < r->net->view.n_workers; w++) {
		if (away_ns > SUSPENDED_NS)
			r->net->link[w].watch.moved_ns += away_ns;
		else if (is_late(r, w, now) && somebody_is_idle(r))
			overtake(r, w);
	}
}

/* ---- Data sockets that do not answer ---- */

void odm_recovery_sent(struct odm_recovery *r, uint32_t worker, struct odm_piece **piece, size_t n)
{
	struct odm_link_watch *watch = &r->net->link[worker].watch;

	watch->state = ODM_LINK_UNKNOWN;
	watch->moved_ns = od_now_ns();
	for (size_t i = 0; i < n; i++)
		watch->most_rows = piece[i]->count > watch->most_rows ? piece[i]->count : watch->most_rows;
}

void odm_recovery_answered(struct odm_recovery *r, uint32_t worker, bool ran)
{
	struct odm_link *l = &r->net->link[worker];

	if (ran && ++l->watch.served == FORGIVEN_AFTER)
		odm_members_served(members(r), l->member, l->session);
	l->watch.lost -= ran && l->watch.lost > 0;
	l->watch.state = ODM_LINK_UNKNOWN;
	l->watch.resends = l->watch.quiet = 0;
	l->watch.moved_ns = od_now_ns();
	if (!is_owed(r, worker)) /* nor of earlier layers, which were through before this one began */
		l->watch.most_rows = 0;
}

void odm_recovery_first(struct odm_recovery *r, struct odm_piece *p, uint32_t worker)
{
	struct odm_link *other = p->worker != ODM_NOBODY ? &r->net->link[p->worker] : NULL;
	const bool sent = p->state == ODM_PIECE_SENT;

	if (p->worker == worker)
		return;
	p->worker = worker;
	p->state = ODM_PIECE_TODO; /* The other one does not owe it any more. */
	if (other == NULL || !sent || odm_pieces_open(p->work, p->request))
		return;
	other->held_bytes -= p->run_bytes < other->held_bytes ? p->run_bytes : other->held_bytes;
}

static bool others_live(struct odm_recovery *r, uint32_t worker)
{
	uint32_t i = 0;

	while (i < r->net->view.n_workers && (i == worker || !odm_links_alive(r->net, i)))
		i++;
	return i < r->net->view.n_workers;
}

/* It has read its data socket since it was idle, and still owes something: that, or the answer, went down with a broken
 * connection. */
static void resend(struct odm_recovery *r, uint32_t worker, const char *name)
{
	struct odm_link *l = &r->net->link[worker];

	if (!is_owed(r, worker))
		return;
	if (l->watch.resends == 0)
		l->watch.lost += FORGIVEN_AFTER;
	/* A slow text is better than none: the last worker stays. */
	if (l->watch.lost > MAX_LOST * FORGIVEN_AFTER && others_live(r, worker)) {
		odm_members_distrust(members(r), l->member, l->session,
				     "it loses RUNs again and again, and answers others");
		return;
	}
	if (l->watch.resends++ == MAX_RESENDS) {
		odm_members_distrust(members(r), l->member, l->session, "it is idle but does not answer its RUNs");
		return;
	}
	od_log_limited(OD_LOG_WARN, "%s lost its RUNs; sending them again", name);
	for (struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		/* Under the same number, so that whichever answer comes first counts. Pieces that went out together are
		 * asked for one by one: some of them may have been answered. */
		if (p->worker == worker && p->state == ODM_PIECE_SENT && r->send_again(r->arg, p) != OD_OK)
			return; /* tried again, or the worker is distrusted */
}

void odm_recovery_attached(struct odm_recovery *r, uint32_t worker)
{
	struct odm_link *l = &r->net->link[worker];
	struct odm_member_stats st;
	char name[300];

	if (!odm_members_stats(members(r), l->member, &st, name, sizeof(name)))
		return;
	if (l->watch.state == ODM_LINK_UNKNOWN) {
		l->watch.state = ODM_LINK_REACHED;
		l->watch.pongs = st.pongs;
	} else if (l->watch.state == ODM_LINK_IDLE) {
		l->watch.state = ODM_LINK_UNKNOWN;
		resend(r, worker, name);
	}
}

static unsigned most_unanswered(const struct odm_recovery *r)
{
	uint64_t bytes = 0;

	for (uint32_t w = 0; w < r->net->view.n_workers; w++)
		bytes += r->net->link[w].held_bytes;
	return MAX_UNANSWERED + (unsigned)(bytes * UNANSWERED_NS_PER_BYTE / ROUND_NS);
}

/* Rounds in which a worker that is busy all the time may answer nothing. */
static uint64_t most_quiet(const struct odm_recovery *r, uint32_t worker)
{
	uint64_t ns = ANSWER_NS;

	for (const struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		if (p->worker == worker && p->state == ODM_PIECE_SENT)
			ns += r->expert_weights * (LOAD_NS_PER_WEIGHT + (uint64_t)p->count * RUN_NS_PER_WEIGHT);
	return ns / ROUND_NS;
}

/* It answers probes and says it is at work, but does not do what it was asked: any bound of the work itself is a guess,
 * so this one is generous. */
static bool is_too_quiet(struct odm_recovery *r, uint32_t worker)
{
	struct odm_link *l = &r->net->link[worker];
	char why[100];

	l->watch.quiet = is_owed(r, worker) ? l->watch.quiet + 1 : 0;
	if (l->watch.quiet <= most_quiet(r, worker))
		return false;
	snprintf(why, sizeof(why), "it is busy and has not answered its RUNs for %u s",
		 (unsigned)(l->watch.quiet * ROUND_NS / OD_NS_PER_S));
	odm_members_distrust(members(r), l->member, l->session, why);
	return true;
}

static void probe(struct odm_recovery *r, uint32_t worker, unsigned most)
{
	struct odm_link *l = &r->net->link[worker];
	struct odm_link_watch *watch = &l->watch;
	struct odm_member_stats st;
	char name[300];

	if (l->session == 0 || !odm_members_stats(members(r), l->member, &st, name, sizeof(name)))
		return;
	r->pulled_bytes += st.c[OD_C_PULLED_BYTES];
	if (is_too_quiet(r, worker))
		return;
	if (!st.busy)
		watch->most_rows = most_rows(r, worker);
	if (watch->unanswered >= most && !(st.busy && watch->most_rows > MANY_ROWS)) {
		odm_members_distrust(members(r), l->member, l->session,
				     "it answers heartbeats, but not on its data port");
		return;
	}
	/* The first of two later heartbeats may have been on its way before. */
	if (watch->state == ODM_LINK_REACHED && st.pongs >= watch->pongs + 2) {
		watch->state = st.busy ? ODM_LINK_REACHED : ODM_LINK_IDLE;
		watch->pongs = st.pongs;
	}
	watch->unanswered++;
	odm_link_reattach(l);
}

/* Rounds in which workers may say BUSY and pull the experts that are missing. */
static uint64_t most_pulling(const struct odm_recovery *r)
{
	uint64_t ns = 0;

	for (const struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		ns += p->state != ODM_PIECE_DONE ? r->expert_weights * PULL_NS_PER_WEIGHT : 0;
	return MAX_BUSY_ROUNDS + ns / ROUND_NS;
}

/* BUSY is said while an expert is being pulled, or a queue is full: then pulling goes on, or something is answered.
 * Pulling is what workers say, so it has a bound of its own. */
static int check_busy(struct odm_recovery *r, bool pulled, struct od_err *err)
{
	if (n_done(r) != r->done_before)
		r->pull_rounds = 0;
	if (pulled || n_done(r) != r->done_before)
		r->busy_rounds = 0;
	r->done_before = n_done(r);
	if (r->busy_lasts == 0)
		return OD_OK;
	r->busy_lasts--;
	r->pull_rounds++;
	if (++r->busy_rounds == SAY_BUSY_ROUNDS)
		od_log_limited(OD_LOG_WARN, "%s; retrying", r->busy.msg);
	if (r->busy_rounds < MAX_BUSY_ROUNDS && r->pull_rounds < most_pulling(r))
		return OD_OK;
	return od_fail(err, OD_ERR_TIMEOUT, "no worker made progress for %u s: %s",
		       (unsigned)(r->pull_rounds * ROUND_NS / OD_NS_PER_S), r->busy.msg);
}

/* All at the same time, whether they owe anything or not: then however many died at one moment, all are known before
 * pieces move to one of them. */
int odm_recovery_probe(struct odm_recovery *r, struct od_err *err)
{
	const uint64_t now = od_now_ns(), pulled_before = r->pulled_bytes;
	const unsigned most = most_unanswered(r);

	if (now < r->round_ns)
		return OD_OK;
	r->round_ns = now + ROUND_NS;
	r->pulled_bytes = 0;
	for (uint32_t w = 0; w < r->net->view.n_workers; w++)
		probe(r, w, most);
	return check_busy(r, r->pulled_bytes != pulled_before, err);
}

/* ---- Workers that answer that they cannot ---- */

/* Asked once more after a rest: it is being pulled there, or at one of those that were asked. */
static void rest(struct odm_recovery *r, struct odm_piece *p, uint32_t to)
{
	move_piece(r, p, to);
	p->resting = true;
	if (r->rest_ns == 0)
		r->rest_ns = od_now_ns() + REST_MS * OD_NS_PER_MS;
}

void odm_recovery_end_rests(struct odm_recovery *r)
{
	if (r->rest_ns == 0 || od_now_ns() < r->rest_ns)
		return;
	r->rest_ns = 0;
	for (struct odm_piece *p = NULL; (p = next_piece(r, p)) != NULL;)
		p->resting = false;
}

/* All have been asked, and none has it. True: there will be another round. */
static bool ask_all_again(struct odm_recovery *r, struct odm_piece *p)
{
	uint32_t first;

	if (!p->coming && (p->fetch || !p->missing))
		return false;
	p->fetch = p->fetch || !p->coming;
	first = first_candidate(r, p);
	rest(r, p, first != ODM_NOBODY ? first : p->worker); /* none alive: odm_recovery_move handles that */
	return true;
}

void odm_recovery_failed(struct odm_recovery *r, struct odm_piece *p, const Od__ExpertResult *x)
{
	const bool lacks = x->code == OD_ERR_BUSY || x->code == OD_ERR_MISSING;
	const bool damaged = x->code == OD_ERR_CORRUPT || x->code == OD_ERR_IO || x->code == OD_ERR_FORMAT;
	const struct odm_link *l = &r->net->link[p->worker];
	const uint32_t m = p->work->call->m;
	char name[300] = "a worker", reason[300];
	struct odm_member_stats st;
	uint32_t to;

	od_peer_text(x->reason, reason, sizeof(reason));
	odm_members_stats(members(r), l->member, &st, name, sizeof(name));
	if (damaged)
		odm_members_damaged(members(r), l->member, l->session, m, p->expert);
	p->coming = p->coming || x->code == OD_ERR_BUSY;
	p->missing = p->missing || x->code == OD_ERR_MISSING;
	if (lacks) /* nothing was lost */
		p->state = ODM_PIECE_TODO;
	if (x->code == OD_ERR_BUSY) {
		r->busy_lasts = SAY_BUSY_ROUNDS;
		od_fail(&r->busy, OD_ERR_BUSY, "%s is busy and does not run expert %u of layer %u (%s)", name,
			p->expert, m, reason);
	}
	if (p->fetch && x->code == OD_ERR_BUSY) { /* one that pulls it is enough */
		rest(r, p, p->worker);
		return;
	}
	to = candidate(r, p);
	if (to == p->worker)
		to = candidate(r, p);
	if (to == ODM_NOBODY && ask_all_again(r, p))
		return;
	if (to == ODM_NOBODY)
		to = last_resort(r, p);
	if (to == ODM_NOBODY) {
		set_aside(r, p);
		od_fail(&r->unserved, OD_ERR_IO, "no worker can run expert %u of layer %u; the last was %s: %s",
			p->expert, m, name, reason);
		return;
	}
	od_log_limited(lacks ? OD_LOG_DEBUG : OD_LOG_WARN,
		       "%s cannot run expert %u of layer %u (%s); another worker will", name, p->expert, m, reason);
	move_piece(r, p, to);
}
