#include "main-node/cluster/link_cost.h"

#include "common/base/clock.h"

#include <string.h>

/* Probes. A token bucket lets some 3 KB pass at once, so smaller ones would not see a slow link. */
#define SMALL_PROBE 4096u
#define PROBE 8192u
#define LARGE_PROBE 16384u
#define QUICK_NS (20.0 * OD_NS_PER_MS) /* the next probe is larger */
#define LONG_NS (400.0 * OD_NS_PER_MS) /* the next probe is smaller: heartbeats wait behind it */
#define PROBE_EVERY_NS (1000 * OD_NS_PER_MS)
#define PROBE_SHARE 20 /* a slow link that is used has little time for probes: a twentieth */
#define PROBE_AGAIN_NS (150 * OD_NS_PER_MS) /* while it is passed over, or may be, or is new */
#define MEASURE_NS (600 * OD_NS_PER_MS)
#define GIVEN_UP_NS (2 * OD_NS_PER_S) /* until rows that were given up, and their answers, are through */
#define FEWEST_PROBES 2 /* before it is used */
#define MOST_PROBES 16
#define GOOD_ENOUGH 3 /* decisions, before it is used again */

/* Differences that do not count: what scheduling costs, and what no LAN falls short of. A busy machine shows in round
 * trips that differ much (jitter); processes that have just been started are slow without that, so only bytes count at
 * first. */
#define LATENCY_SLACK_NS (0.5 * OD_NS_PER_MS)
#define JITTERS 2.0
#define SETTLED_NS (1500 * OD_NS_PER_MS)
#define UNSETTLED_LATENCY_NS (60.0 * OD_NS_PER_MS)
#define UNSETTLED_BYTE_NS 200.0 /* 40 Mbit/s */
#define STALL_NS (150.0 * OD_NS_PER_MS) /* a packet that is sent again takes 200 ms */
#define MANY_STALLS 2 /* in the last round trips: then the link loses packets */
#define BYTE_SLACK_NS 20.0 /* 400 Mbit/s */
#define UNLIKE 1.5
#define LAG_NS (200.0 * OD_NS_PER_MS)
#define MARGIN 1.1
#define MARGIN_NS (0.1 * OD_NS_PER_MS)
#define STAYS_OUT 1.3 /* a passed-over worker comes back only if its estimate is below this times the others' */

#define PROMPT_ROWS 128 /* a prompt, to decide about all */
#define HEADER_BYTES 200.0

void odm_link_cost_begin(struct odm_link_cost *c, uint64_t now, bool another)
{
	bool passed[ODM_N_DEALS];

	memcpy(passed, c->passed, sizeof(passed));
	*c = (struct odm_link_cost){ .begun_ns = now, .probe_bytes = PROBE };
	if (!another)
		memcpy(c->passed, passed, sizeof(passed));
}

/* ---- Echoes ---- */

void odm_link_cost_sent(struct odm_link_cost *c, uint64_t sequence, uint32_t bytes, uint64_t now)
{
	if (c->given_up_ns != 0 && now - c->given_up_ns >= GIVEN_UP_NS)
		odm_link_cost_in_flight(c, 0);
	if (c->n_echoes == ODM_LINK_ECHOES) /* no answer for seconds: the oldest says how long */
		return;
	c->echo[c->n_echoes++] = (struct odm_link_echo){
		.sequence = sequence, .sent_ns = now, .bytes = bytes, .waits = c->run_bytes > 0
	};
	if (bytes > 0) {
		c->has_probe = true;
		c->probed_ns = now;
		c->bare_ns = 0;
	}
}

void odm_link_cost_in_flight(struct odm_link_cost *c, uint64_t bytes)
{
	c->run_bytes = bytes;
	c->given_up_ns = 0;
	for (uint32_t i = 0; i < c->n_echoes && bytes > 0; i++)
		c->echo[i].waits = true;
}

void odm_link_cost_give_up(struct odm_link_cost *c, uint64_t now)
{
	c->given_up_ns = now;
}

static double shortest(const double *of, uint32_t n)
{
	double least = n > 0 ? of[0] : 0;

	for (uint32_t i = 1; i < n; i++)
		least = of[i] < least ? of[i] : least;
	return least;
}

static void add_latency(struct odm_link_cost *c, double ns)
{
	c->latency[c->n_latencies++ % ODM_LATENCIES] = ns;
}

/* Where the machine is busy the bare PING may be late and the probe not, so that this seems to take no time. Such a
 * probe does not count, unless it says anyway that the link is fast. */
static void add_probe(struct odm_link_cost *c, double ns, double bytes)
{
	const uint32_t n = c->n_latencies < ODM_LATENCIES ? c->n_latencies : ODM_LATENCIES;
	const double best = shortest(c->latency, n);
	/* after a lost packet the bare PING is late like the probe, and no measure */
	const double bare = c->bare_ns > 0 && c->bare_ns < best + LAG_NS ? c->bare_ns : best;
	const double byte = ns > bare ? (ns - bare) / bytes : 0, most = ns > best ? (ns - best) / bytes : 0;

	c->probe_bytes = ns < QUICK_NS ? LARGE_PROBE : ns < LONG_NS ? PROBE : SMALL_PROBE;
	if (c->measured && most > 2 * byte + BYTE_SLACK_NS)
		return;
	c->byte[c->n_bytes++ % ODM_BYTE_TIMES] = byte;
	c->n_alone += c->measured && c->n_alone < ODM_BYTE_TIMES;
	c->fresh = true;
}

void odm_link_cost_echo(struct odm_link_cost *c, uint64_t sequence, size_t bytes, uint64_t now)
{
	while (c->n_echoes > 0 && c->echo[0].sequence <= sequence) {
		const struct odm_link_echo e = c->echo[0];
		const double ns = (double)(now - e.sent_ns);

		memmove(c->echo, c->echo + 1, --c->n_echoes * sizeof(*c->echo));
		if (e.bytes > 0)
			c->has_probe = false;
		if (e.sequence != sequence || e.waits)
			continue;
		if (e.bytes >
		    0) /* an answer that was padded with more than it was asked for makes the link no quicker */
			add_probe(c, ns, (double)e.bytes + (double)(bytes < e.bytes ? bytes : e.bytes));
		else if (!c->has_probe || e.sent_ns == c->probed_ns) { /* else it waited behind the probe */
			c->bare_ns = ns;
			add_latency(c, ns);
		}
	}
}

double odm_link_cost_latency(const struct odm_link_cost *c)
{
	const uint32_t n = c->n_latencies < ODM_LATENCIES ? c->n_latencies : ODM_LATENCIES;
	const double best = shortest(c->latency, n);
	double sum = 0;
	uint32_t stalls = 0;

	for (uint32_t i = 0; i < n; i++) {
		sum += c->latency[i];
		stalls += c->latency[i] > best + STALL_NS;
	}
	return n == ODM_LATENCIES && stalls >= MANY_STALLS ? sum / n : best;
}

/* By how much round trips differ, without the stalls. */
static double jitter(const struct odm_link_cost *c)
{
	const uint32_t n = c->n_latencies < ODM_LATENCIES ? c->n_latencies : ODM_LATENCIES;
	const double best = shortest(c->latency, n);
	double sum = 0;
	uint32_t smooth = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (c->latency[i] > best + STALL_NS)
			continue;
		sum += c->latency[i] - best;
		smooth++;
	}
	return smooth > 0 ? sum / smooth : 0;
}

static bool is_settled(const struct odm_link_cost *c, uint64_t now)
{
	return now - c->begun_ns > SETTLED_NS && c->n_latencies >= ODM_LATENCIES && c->n_alone >= ODM_BYTE_TIMES;
}

/* The second best of the last probes: one alone may have been lucky, and every one may have been late. */
double odm_link_cost_byte(const struct odm_link_cost *c)
{
	const uint32_t n = c->n_bytes < ODM_BYTE_TIMES ? c->n_bytes : ODM_BYTE_TIMES;
	double best = 0, second = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (i == 0 || c->byte[i] < best) {
			second = i == 0 ? c->byte[i] : best;
			best = c->byte[i];
		} else if (i == 1 || c->byte[i] < second) {
			second = c->byte[i];
		}
	}
	return second;
}

static double last_byte(const struct odm_link_cost *c)
{
	return c->byte[(c->n_bytes + ODM_BYTE_TIMES - 1) % ODM_BYTE_TIMES];
}

/* The last probe took clearly longer than those before, so more probes are sent soon. */
static bool is_doubtful(const struct odm_link_cost *c)
{
	return c->n_bytes > 0 && last_byte(c) > 2 * odm_link_cost_byte(c) + BYTE_SLACK_NS;
}

static bool looks_good(const struct odm_link_cost *c)
{
	return c->n_bytes > 0 && last_byte(c) < BYTE_SLACK_NS && odm_link_cost_latency(c) < 2 * LATENCY_SLACK_NS;
}

uint32_t odm_link_cost_due(const struct odm_link_cost *c, uint64_t now)
{
	const double took_ns = c->n_bytes > 0 ? 2 * last_byte(c) * c->probe_bytes : 0;
	const bool again = c->passed[ODM_DEAL_FEW] || is_doubtful(c) || c->n_alone < ODM_BYTE_TIMES;
	uint64_t every = !c->measured ? 0 : again ? PROBE_AGAIN_NS : PROBE_EVERY_NS;

	if (every == PROBE_EVERY_NS && took_ns * PROBE_SHARE > (double)every)
		every = (uint64_t)(took_ns * PROBE_SHARE);
	return !c->has_probe && c->n_latencies > 0 && now - c->probed_ns >= every ? c->probe_bytes : 0;
}

void odm_link_cost_check(struct odm_link_cost *c, uint64_t now)
{
	if (c->measured || c->n_latencies == 0)
		return;
	if (now - c->begun_ns > MEASURE_NS && c->n_bytes == 0 && c->has_probe) /* it takes this long, or longer */
		add_probe(c, (double)(now - c->probed_ns), c->probe_bytes);
	c->measured = c->n_bytes >= MOST_PROBES || (c->n_bytes >= FEWEST_PROBES && looks_good(c)) ||
		      (now - c->begun_ns > MEASURE_NS && c->n_bytes > 0);
}

double odm_link_cost_lag(const struct odm_link_cost *c, uint64_t now)
{
	const double byte = odm_link_cost_byte(c), before = (double)c->run_bytes;

	if (c->n_echoes == 0)
		return 0;
	return (double)(now - c->echo[0].sent_ns) - odm_link_cost_latency(c) - LAG_NS -
	       4 * byte * (before + 2 * c->echo[0].bytes);
}

/* ---- The decision ---- */

/* All links are compared with this one. */
struct quickest {
	double latency, byte;
	double jitter; /* the mean of all */
};

static struct quickest find_quickest(struct odm_link_cost **worker, uint32_t n)
{
	struct quickest q = { .latency = odm_link_cost_latency(worker[0]), .byte = odm_link_cost_byte(worker[0]) };

	for (uint32_t i = 0; i < n; i++) {
		const struct odm_link_cost *c = worker[i];
		const double latency = odm_link_cost_latency(c), byte = odm_link_cost_byte(c);

		q.latency = latency < q.latency ? latency : q.latency;
		q.byte = byte < q.byte ? byte : q.byte;
		q.jitter += jitter(c) / n;
	}
	return q;
}

static double beyond(double value, double best, double slack)
{
	return value > UNLIKE * best + slack ? value - best : 0;
}

/* Excess over the quickest, without small differences. */
static struct odm_link_excess compare(const struct odm_link_cost *c, const struct quickest *q, uint64_t now)
{
	const double noise = JITTERS * (jitter(c) > q->jitter ? jitter(c) : q->jitter);
	struct odm_link_excess e = { 0 };

	for (int k = 0; k < ODM_N_DEALS; k++)
		e.stays[k] = c->passed[k] ? STAYS_OUT : 1;
	if (is_settled(c, now)) {
		e.latency = beyond(odm_link_cost_latency(c), q->latency, LATENCY_SLACK_NS + noise);
		e.byte = beyond(odm_link_cost_byte(c), q->byte, BYTE_SLACK_NS + noise / (2 * LARGE_PROBE));
	} else {
		e.latency = beyond(odm_link_cost_latency(c), q->latency, UNSETTLED_LATENCY_NS);
		e.byte = beyond(shortest(c->byte, c->n_bytes < ODM_BYTE_TIMES ? c->n_bytes : ODM_BYTE_TIMES), q->byte,
				UNSETTLED_BYTE_NS);
	}
	return e;
}

/* A worker's share of a layer that n_workers share. */
struct cost_share {
	double n, pairs, rows; /* number of experts; of pairs of expert and row; of different rows */
};

static struct cost_share share_of(const struct odm_layer_shape *s, enum odm_deal_kind kind, uint32_t n_workers)
{
	const uint32_t asked = s->group_size > 0 ? s->group_size : s->top_k,
		       size = asked < n_workers ? asked : n_workers;
	const double all = (double)PROMPT_ROWS * s->top_k, pairs = all / n_workers, n = (s->top_k + size - 1) / size;

	if (kind == ODM_DEAL_FEW)
		return (struct cost_share){ n, n, 1 };
	return (struct cost_share){ (s->n_experts < all ? s->n_experts : all) / n_workers, pairs,
				    pairs < PROMPT_ROWS ? pairs : PROMPT_ROWS };
}

/* The time at which a worker ends its share. loads: number of experts that it must load. */
static double finish(const struct odm_layer_shape *s, const struct odm_link_excess *e, enum odm_deal_kind kind,
		     const struct cost_share *p, double loads)
{
	const double work = loads * s->expert.load + p->n * odm_expert_run_ns(&s->expert, p->pairs / p->n);
	const double link = e->latency + e->byte * (s->row_bytes * (p->rows + p->pairs) + 2 * HEADER_BYTES);

	return e->stays[kind] * link + work;
}

/* The time at which it ends the least that it can be dealt: one expert that need not be loaded. */
static double least(const struct odm_layer_shape *s, const struct odm_link_excess *e, enum odm_deal_kind kind)
{
	const double all = (double)PROMPT_ROWS * s->top_k, each = s->n_experts < all ? all / s->n_experts : 1,
		     pairs = kind == ODM_DEAL_FEW ? 1 : each;
	const struct cost_share one = { 1, pairs, pairs };

	return finish(s, e, kind, &one, 0);
}

/* The quickest first, equal ones in their order. */
static void sort(const struct odm_layer_shape *s, struct odm_link_excess *e, uint32_t n, enum odm_deal_kind kind)
{
	const struct cost_share share = share_of(s, kind, n);

	for (uint32_t i = 0; i < n; i++)
		e[i].key = finish(s, &e[i], kind, &share, share.n);
	for (uint32_t i = 1; i < n; i++) { /* nearly all are equal */
		const struct odm_link_excess one = e[i];
		uint32_t at = i;

		for (; at > 0 && e[at - 1].key > one.key; at--)
			e[at] = e[at - 1];
		e[at] = one;
	}
}

/* The time at which the first n have ended a layer. */
static double end_of(const struct odm_layer_shape *s, const struct odm_link_excess *e, uint32_t n,
		     enum odm_deal_kind kind)
{
	const struct cost_share share = share_of(s, kind, n);
	double end = 0;

	for (uint32_t i = 0; i < n; i++) {
		const double ns = finish(s, &e[i], kind, &share, share.n);

		end = ns > end ? ns : end;
	}
	return end;
}

/* Sorts them so that the first ones, whose number is returned, are worth it: those that can help. How much each gets
 * is up to dealing by finish times (placement.h). */
static uint32_t worth(const struct odm_layer_shape *s, struct odm_link_excess *e, uint32_t n, enum odm_deal_kind kind)
{
	double best;
	uint32_t most = 1;

	sort(s, e, n, kind);
	best = end_of(s, e, 1, kind);
	for (uint32_t p = 2; p <= n; p++) {
		const double end = end_of(s, e, p, kind);

		if (least(s, &e[p - 1], kind) <= MARGIN * best + MARGIN_NS)
			most = p;
		best = end < best ? end : best;
	}
	return most;
}

static void pass_over(struct odm_link_cost *c)
{
	c->passed[ODM_DEAL_FEW] = c->passed[ODM_DEAL_MANY] = true;
	c->good = 0;
}

void odm_link_cost_late(struct odm_link_cost *c)
{
	pass_over(c);
}

/* A worker that is passed over is used again after GOOD_ENOUGH good decisions in a row. needed: all are passed over. */
static bool decide(struct odm_link_cost *c, bool few, bool many, bool needed)
{
	const bool was[] = { c->passed[ODM_DEAL_FEW], c->passed[ODM_DEAL_MANY] };

	if (!few || last_byte(c) > 2 * odm_link_cost_byte(c) + UNSETTLED_BYTE_NS)
		c->good = 0;
	else if (c->fresh)
		c->good++;
	c->fresh = false;
	if (!few)
		pass_over(c);
	else if (c->good >= GOOD_ENOUGH || needed)
		c->passed[ODM_DEAL_FEW] = false;
	c->passed[ODM_DEAL_MANY] = c->passed[ODM_DEAL_FEW] || !many;
	return c->passed[ODM_DEAL_FEW] != was[ODM_DEAL_FEW] || c->passed[ODM_DEAL_MANY] != was[ODM_DEAL_MANY];
}

static bool all_passed(struct odm_link_cost **worker, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && worker[i]->passed[ODM_DEAL_FEW])
		i++;
	return i == n;
}

bool odm_link_cost_choose(const struct odm_layer_shape *s, struct odm_link_cost **worker, uint32_t n,
			  struct odm_link_excess *scratch, uint64_t now)
{
	bool changed = false, equal = true, needed;
	struct quickest q;
	uint32_t few = n, many = n;

	if (n == 0)
		return false;
	needed = all_passed(worker, n);
	q = find_quickest(worker, n);
	for (uint32_t i = 0; i < n; i++) {
		scratch[i] = compare(worker[i], &q, now);
		scratch[i].index = i;
		worker[i]->unlike = scratch[i].latency > 0 || scratch[i].byte > 0;
		equal = equal && !worker[i]->unlike;
		worker[i]->worth[ODM_DEAL_FEW] = worker[i]->worth[ODM_DEAL_MANY] = false;
	}
	if (!equal) {
		many = worth(s, scratch, n, ODM_DEAL_MANY);
		for (uint32_t i = 0; i < many; i++)
			worker[scratch[i].index]->worth[ODM_DEAL_MANY] = true;
		few = worth(s, scratch, n, ODM_DEAL_FEW);
		for (uint32_t i = 0; i < few; i++)
			worker[scratch[i].index]->worth[ODM_DEAL_FEW] = true;
	}
	for (uint32_t i = 0; i < n; i++)
		changed |= decide(worker[i], few == n || worker[i]->worth[ODM_DEAL_FEW],
				  many == n || worker[i]->worth[ODM_DEAL_MANY], needed);
	return changed;
}
