#include "deploy/plan/check_worker.h"

#include "common/base/clock.h"
#include "deploy/plan/check_findings.h"
#include "deploy/plan/check_fit.h"
#include "deploy/plan/check_run.h"

#include <string.h>

#define MIN_SAMPLES 3
#define MAX_SAMPLES 31
#define WAY_SAMPLES 15 /* RUNs of one size, to measure the link */
#define LEAST_WAY_SAMPLES 5
#define WAY_NS (300 * OD_NS_PER_MS)
#define LOAD_SHARE 0.25 /* loads end at this share of the budget, computations at the next, then comes the link */
#define COMPUTE_SHARE 0.7
#define MAX_CONFIGS 8
#define LINK_NS (20.0 * OD_NS_PER_MS) /* a message that takes so long is large enough */
#define LEAST_LINK_BYTES 65536u /* the smallest one; each further one is twice as large */
#define MAX_SIZES 10
#define JOINT_WORKERS 4 /* main sends to so many at once */
#define JOINT_ROUNDS 9
#define LEAST_LATENCY_NS 1e3 /* a shaped network may let a small message pass at once */
#define MAX_DOWN_NS (300.0 * OD_NS_PER_MS) /* rows that come back may take so much computation */

/* RUNs of one shape. */
struct run_shape {
	struct odp_run run;
	size_t n;
	double compute_ns[MAX_SAMPLES], rest_ns[MAX_SAMPLES]; /* rest: on the way, and in both programs */
};

struct worker_check {
	const struct odp_worker_check *o;
	struct odp_checked *c;
	struct odp_runs runs;
	const struct odm_member *member;
	uint64_t begin_ns;
	/* Resident experts of one layer, which are used in turn: the caches of a processor should not keep them. */
	uint32_t m;
	uint16_t expert[ODP_RUN_EXPERTS];
	size_t n_experts, turn;
	struct run_shape shape[MAX_CONFIGS];
	size_t n_shapes;
};

static bool is_over(const struct worker_check *w, double share)
{
	return (double)(od_now_ns() - w->begin_ns) > share * (double)w->o->budget_ns;
}

static uint8_t cost_of(const struct worker_check *w, uint32_t m, uint16_t expert)
{
	uint8_t cost;

	odm_members_cost(odp_meeting_members(w->o->meeting), w->member, m, &expert, 1, &cost);
	return cost;
}

/* ---- Loads ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	while (b != 0) {
		const uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Experts here and there, each once: what lies side by side on a disk may have been read ahead. */
static uint64_t stride_of(uint64_t n)
{
	uint64_t stride = n * 5 / 8 + 1;

	while (common_divisor(stride, n) != 1)
		stride++;
	return stride;
}

/* Time of a byte of each load. */
struct loads {
	double byte_ns[MAX_SAMPLES];
	size_t n;
};

static void note_load(struct loads *l, const struct odp_run_times *t)
{
	if (t->load_ns > 0 && t->loaded_bytes > 0 && l->n < MAX_SAMPLES)
		l->byte_ns[l->n++] = t->load_ns / t->loaded_bytes;
}

static int measure_loads(struct worker_check *w, struct loads *l, struct od_err *err)
{
	const struct od_config *cfg = w->o->cluster->config;
	const uint64_t n = (uint64_t)cfg->n_moe * cfg->n_experts, stride = stride_of(n);
	int rc = OD_OK;

	for (uint64_t i = 0; rc == OD_OK && i < n && l->n < MAX_SAMPLES; i++) {
		const uint64_t at = i * stride % n;
		struct odp_run run = { .m = (uint32_t)(at / cfg->n_experts),
				       .expert = { (uint16_t)(at % cfg->n_experts) },
				       .n_experts = 1,
				       .n_rows = 1,
				       .used = 1,
				       .last = true };
		struct odp_run_times t;

		if (l->n >= MIN_SAMPLES && is_over(w, LOAD_SHARE))
			break;
		if (cost_of(w, run.m, run.expert[0]) != ODM_COST_LOAD)
			continue;
		w->runs.step++;
		rc = odp_runs_do(&w->runs, &run, &t, err);
		if (rc == OD_OK)
			note_load(l, &t);
	}
	return rc;
}

/* ---- Computations ---- */

/* Experts of one layer that it holds, as many as there are slots for. */
static void choose_residents(struct worker_check *w)
{
	const struct od_config *cfg = w->o->cluster->config;
	const size_t most = w->member->slots < ODP_RUN_EXPERTS ? w->member->slots : ODP_RUN_EXPERTS;

	for (uint32_t m = 0; m < cfg->n_moe; m++) {
		uint16_t found[ODP_RUN_EXPERTS];
		size_t n = 0;

		for (uint32_t e = 0; e < cfg->n_experts && n < most; e++)
			if (cost_of(w, m, (uint16_t)e) != ODM_COST_LACKS)
				found[n++] = (uint16_t)e;
		if (n <= w->n_experts)
			continue;
		w->m = m;
		w->n_experts = n;
		memcpy(w->expert, found, n * sizeof(*found));
	}
}

static int load_residents(struct worker_check *w, struct loads *l, struct od_err *err)
{
	int rc = OD_OK;

	w->runs.step++;
	for (size_t i = 0; rc == OD_OK && i < w->n_experts; i++) {
		const struct odp_run run = {
			.m = w->m, .expert = { w->expert[i] }, .n_experts = 1, .n_rows = 1, .used = 1
		};
		struct odp_run_times t;

		rc = odp_runs_do(&w->runs, &run, &t, err);
		if (rc == OD_OK)
			note_load(l, &t);
	}
	return rc;
}

static void add_shape(struct worker_check *w, size_t n_experts, uint32_t rows)
{
	if (n_experts > w->n_experts || rows > w->runs.max_rows)
		return;
	w->shape[w->n_shapes++] =
		(struct run_shape){ .run = { .m = w->m, .n_experts = n_experts, .n_rows = rows, .used = rows } };
}

static void choose_shapes(struct worker_check *w)
{
	static const uint32_t rows[] = { 1, 2, 4, 16, 64 };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		add_shape(w, 1, rows[i]);
	add_shape(w, 2, 1);
	add_shape(w, 4, 1);
}

static int do_resident(struct worker_check *w, struct odp_run *run, struct odp_run_times *t, struct od_err *err)
{
	for (size_t i = 0; i < run->n_experts; i++)
		run->expert[i] = w->expert[(w->turn + i) % w->n_experts];
	w->turn = (w->turn + run->n_experts) % w->n_experts;
	return odp_runs_do(&w->runs, run, t, err);
}

/* All shapes in turn, so that what disturbs disturbs all. */
static int measure_shapes(struct worker_check *w, struct od_err *err)
{
	for (size_t round = 0; round < MAX_SAMPLES; round++) {
		if (round >= MIN_SAMPLES && is_over(w, COMPUTE_SHARE))
			break;
		for (size_t i = 0; i < w->n_shapes; i++) {
			struct run_shape *s = &w->shape[i];
			struct odp_run_times t;
			const int rc = do_resident(w, &s->run, &t, err);

			if (rc != OD_OK)
				return rc;
			if (!t.ready)
				continue;
			s->compute_ns[s->n] = t.compute_ns;
			s->rest_ns[s->n++] = t.round_ns - t.worker_ns;
		}
	}
	return OD_OK;
}

static void fit_shapes(struct worker_check *w)
{
	struct odp_timed p[MAX_CONFIGS];
	struct odp_roofline f;
	size_t n = 0;

	for (size_t i = 0; i < w->n_shapes; i++) {
		struct run_shape *s = &w->shape[i];

		if (s->n > 0)
			p[n++] = (struct odp_timed){ .operations = 1,
						     .weights = w->o->expert_weights * (double)s->run.n_experts,
						     .rows = s->run.used,
						     .ns = odp_median(s->compute_ns, s->n) };
	}
	if (n == 0)
		return;
	f = odp_fit_roofline(p, n);
	odp_roofline_anchor(&f, &p[0]);
	w->c->rates.fixed_ns = f.fixed_ns;
	w->c->rates.speed = f.speed;
	w->c->rates.many = f.many;
}

/* ---- Link ---- */

/* The time on the way of RUNs with so many rows, of which so many come back: the median of a few. */
static int time_on_way(struct worker_check *w, uint32_t n_rows, uint32_t used, double *ns, struct od_err *err)
{
	const uint64_t begin_ns = od_now_ns();
	double rest[WAY_SAMPLES];
	size_t n = 0;
	int rc = OD_OK;

	while (rc == OD_OK && n < WAY_SAMPLES && (n < LEAST_WAY_SAMPLES || od_now_ns() - begin_ns < WAY_NS)) {
		struct odp_run run = { .m = w->m, .n_experts = 1, .n_rows = n_rows, .used = used };
		struct odp_run_times t;

		rc = do_resident(w, &run, &t, err);
		if (rc == OD_OK)
			rest[n++] = t.round_ns - t.worker_ns;
	}
	*ns = rc == OD_OK ? odp_median(rest, n) : 0;
	return rc;
}

/* Rows that may come back without a long computation. */
static uint32_t rows_down(const struct worker_check *w)
{
	const double most = w->c->rates.many * MAX_DOWN_NS / OD_NS_PER_S / w->o->expert_weights;

	return most < 1 ? 1 : most < w->runs.max_rows ? (uint32_t)most : w->runs.max_rows;
}

/* RUNs of growing size, until one is on its way for long enough. Both directions together: what a layer waits for is
 * rows there and back. */
static int measure_link(struct worker_check *w, struct od_err *err)
{
	const double row_bytes = (double)w->runs.row_bytes;
	const uint32_t most_down = rows_down(w);
	double bytes[MAX_SIZES], ns[MAX_SIZES], bare_ns, byte_ns;
	struct odp_rates *r = &w->c->rates;
	struct run_shape *first = &w->shape[0];
	uint32_t rows = 1;
	size_t n = 0;

	if (first->n == 0)
		return OD_OK;
	bare_ns = odp_median(first->rest_ns, first->n);
	while (n < MAX_SIZES && rows < w->runs.max_rows && (n < 2 || (ns[n - 1] < LINK_NS && !is_over(w, 1)))) {
		const uint32_t asked = n == 0 ? (uint32_t)(LEAST_LINK_BYTES / row_bytes) + 1 : rows * 2;
		int rc;

		rows = asked < w->runs.max_rows ? asked : w->runs.max_rows;
		bytes[n] = (rows + (rows < most_down ? rows : most_down)) * row_bytes;
		rc = time_on_way(w, rows, rows < most_down ? rows : most_down, &ns[n], err);
		if (rc != OD_OK)
			return rc;
		n++;
	}
	byte_ns = n > 0 ? odp_fit_line(bytes, ns, n).slope : 0;
	/* A link that is too fast to tell carries at least what it did. */
	byte_ns = byte_ns > 0 || n == 0 ? byte_ns : ns[n - 1] / bytes[n - 1];
	r->link_rate = byte_ns > 0 ? OD_NS_PER_S / byte_ns : 0;
	r->latency_ns = bare_ns - 2 * row_bytes * byte_ns;
	r->latency_ns = r->latency_ns > LEAST_LATENCY_NS ? r->latency_ns : LEAST_LATENCY_NS;
	return OD_OK;
}

/* ---- All ---- */

static int measure(struct worker_check *w, struct od_err *err)
{
	struct loads loads = { .n = 0 };
	int rc;

	choose_residents(w);
	if (w->n_experts == 0) {
		odp_find(w->c, ODP_NOTE, "experts",
			 "start od-main once, and let it pull its share (od-main --serve-store); then check again",
			 "it holds no experts yet, so it was not measured");
		return OD_OK;
	}
	rc = measure_loads(w, &loads, err);
	if (rc == OD_OK)
		rc = load_residents(w, &loads, err);
	if (rc != OD_OK)
		return rc;
	if (loads.n > 0)
		w->c->rates.read_rate = OD_NS_PER_S / odp_median(loads.byte_ns, loads.n);
	choose_shapes(w);
	rc = measure_shapes(w, err);
	fit_shapes(w);
	if (rc == OD_OK)
		rc = measure_link(w, err);
	w->c->measured = rc == OD_OK && w->c->rates.speed > 0;
	return rc;
}

void odp_check_worker(struct odp_checked *c, const struct odp_worker_check *o)
{
	struct worker_check w = { .o = o, .c = c, .member = &c->facts.member, .begin_ns = od_now_ns() };
	struct od_err err = { 0 };
	int rc = odp_runs_open(&w.runs, odp_meeting_members(o->meeting), odp_meeting_zmq(o->meeting), o->cluster,
			       w.member, &err);

	c->data_port = rc == OD_OK;
	if (rc != OD_OK) {
		odp_find(c, ODP_WRONG, "data port",
			 "let its data port through the firewall; od-worker --data-port N makes it a fixed one", "%s",
			 err.msg);
	} else {
		rc = measure(&w, &err);
		if (rc != OD_OK)
			odp_find(c, ODP_WRONG, "work",
				 "look at its log, and check its disk and pack (od-pack verify) there",
				 "it could not be measured: %s", err.msg);
	}
	odp_runs_close(&w.runs);
	c->rates.took_ns = (double)(od_now_ns() - w.begin_ns);
}

/* ---- Main's port ---- */

/* Rows that the worker's link takes LINK_NS for. */
static uint32_t joint_rows(const struct worker_check *w)
{
	const double rows = w->c->rates.link_rate * LINK_NS / OD_NS_PER_S / (double)w->runs.row_bytes;

	return rows < 1 ? 1 : rows < w->runs.max_rows ? (uint32_t)rows : w->runs.max_rows;
}

/* One RUN to each, sent together: bytes a second. */
static int joint_round(struct worker_check *w, size_t n, double *rate, struct od_err *err)
{
	struct odp_run run[JOINT_WORKERS];
	double ns = 0, bytes = 0;
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		run[i] = (struct odp_run){ .m = w[i].m,
					   .expert = { w[i].expert[0] },
					   .n_experts = 1,
					   .n_rows = joint_rows(&w[i]),
					   .used = 1 };
		bytes += run[i].n_rows * (double)w[i].runs.row_bytes;
		rc = odp_runs_send(&w[i].runs, &run[i], err);
	}
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		struct odp_run_times t;
		double late_ns;

		rc = odp_runs_wait(&w[i].runs, &run[i], &t, err);
		late_ns = (double)(w[i].runs.sent_ns - w[0].runs.sent_ns);
		t.round_ns += late_ns - t.worker_ns - w[i].c->rates.latency_ns;
		ns = t.round_ns > ns ? t.round_ns : ns;
	}
	*rate = ns > 0 ? bytes / ns * OD_NS_PER_S : 0;
	return rc;
}

static int joint_rate(struct worker_check *w, size_t n, const struct odp_worker_check *o, double *rate,
		      struct od_err *err)
{
	double rates[JOINT_ROUNDS];
	struct loads loads = { .n = 0 };
	int rc = OD_OK;

	*rate = 0;
	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		rc = odp_runs_open(&w[i].runs, odp_meeting_members(o->meeting), odp_meeting_zmq(o->meeting), o->cluster,
				   w[i].member, err);
		if (rc != OD_OK)
			break;
		choose_residents(&w[i]);
		w[i].n_experts = w[i].n_experts > 1 ? 1 : w[i].n_experts;
		rc = w[i].n_experts > 0 ? load_residents(&w[i], &loads, err) : OD_ERR_MISSING;
	}
	for (size_t i = 0; rc == OD_OK && i < JOINT_ROUNDS; i++)
		rc = joint_round(w, n, &rates[i], err);
	if (rc == OD_OK)
		*rate = odp_median(rates, JOINT_ROUNDS);
	return rc;
}

double odp_check_main_link(struct odp_checked *const *worker, size_t n, const struct odp_worker_check *o)
{
	struct worker_check w[JOINT_WORKERS] = { 0 };
	double most = 0, rate;
	size_t n_joint = 0;
	struct od_err err;

	for (size_t i = 0; i < n; i++)
		most = worker[i]->rates.link_rate > most ? worker[i]->rates.link_rate : most;
	for (size_t i = 0; i < n && n_joint < JOINT_WORKERS; i++)
		if (worker[i]->measured && worker[i]->rates.link_rate >= most / 4) /* others would be waited for */
			w[n_joint++] =
				(struct worker_check){ .o = o, .c = worker[i], .member = &worker[i]->facts.member };
	if (n_joint > 1 && joint_rate(w, n_joint, o, &rate, &err) == OD_OK && rate > most)
		most = rate;
	for (size_t i = 0; i < n_joint; i++)
		odp_runs_close(&w[i].runs);
	return most;
}
