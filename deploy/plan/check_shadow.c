#include "deploy/plan/check_shadow.h"

#include "common/base/clock.h"
#include "deploy/plan/check_findings.h"
#include "deploy/plan/check_fit.h"
#include "main-node/cluster/data_link.h"
#include "main-node/step/step.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>

#define MIN_SAMPLES 3
#define MAX_SAMPLES 31
#define MAX_ROWS 16
#define ANSWER_NS (20 * OD_NS_PER_S) /* for the predictions of a step */
#define NS 1e9
#define PINGS 15 /* bare ones, and as many padded ones */

struct shadow_check {
	const struct odp_shadow_check *o;
	struct odp_checked *c;
	struct odm_link link;
	uint64_t begin_ns, step, sequence;
	uint32_t position;
	uint64_t *at_ns; /* [n_moe] */
	double first_ns[MAX_SAMPLES]; /* from STEP to the first prediction, of steps of one row */
	/* Time of a layer, with 1 row and with MAX_ROWS; a part's [i] is that of part[i - 1]. */
	double layer_ns[2][OD_MAX_SHADOWS][MAX_SAMPLES];
	size_t n[2];
};

/* ---- Roofline of a layer ---- */

static double product_ns(double weights, double rows, double speed, double many)
{
	const double few = weights / speed, much = weights * rows / many;

	return (few > much ? few : much) * NS;
}

double odp_layer_ns(const struct odp_layer_cost *l, double speed, double many, double rows)
{
	const double missed = pow(1 - (double)l->top_k / l->n_experts, rows);
	const double distinct = l->n_experts * (1 - missed), each = rows * l->top_k / distinct;

	return product_ns(l->dense_weights, rows, speed, many) +
	       distinct * product_ns(l->expert_weights, each, speed, many);
}

double odp_fit_many(const struct odp_layer_cost *l, double speed, double rows, double ns)
{
	double low = speed, high = speed * rows;

	if (odp_layer_ns(l, speed, high, rows) >= ns && odp_layer_ns(l, speed, low, rows) <= ns)
		return low;
	for (int i = 0; i < 60; i++) {
		const double middle = (low + high) / 2;

		if (odp_layer_ns(l, speed, middle, rows) > ns)
			low = middle;
		else
			high = middle;
	}
	return high;
}

/* ---- Messages ---- */

static int send_message(struct shadow_check *s, Od__Header *h, struct od_err *err)
{
	const uint64_t until_ns = od_now_ns() + ANSWER_NS;
	int rc;

	while ((rc = odm_link_send(&s->link, 0, h, NULL, 0)) == OD_ERR_BUSY && od_now_ns() < until_ns)
		od_sleep_until(od_now_ns() + OD_NS_PER_MS);
	return rc == OD_OK ? OD_OK : od_fail(err, rc, "its data port takes no %s", od_body_name(h->body_case));
}

/* A text without a prompt, whose rows the shadow computes alone. */
static int open_sequence(struct shadow_check *s, struct od_err *err)
{
	Od__SeqOpen body = OD__SEQ_OPEN__INIT;
	Od__Header h = OD__HEADER__INIT;

	do {
		randombytes_buf(&s->sequence, sizeof(s->sequence));
	} while (s->sequence == 0);
	body.sequence = s->sequence;
	body.own_state = true;
	body.top_p = 1;
	body.repetition_penalty = 1;
	h.body_case = OD__HEADER__BODY_SEQ_OPEN;
	h.seq_open = &body;
	s->position = 0;
	return send_message(s, &h, err);
}

static int close_sequence(struct shadow_check *s, struct od_err *err)
{
	Od__SeqClose body = OD__SEQ_CLOSE__INIT;
	Od__Header h = OD__HEADER__INIT;

	body.sequence = s->sequence;
	h.body_case = OD__HEADER__BODY_SEQ_CLOSE;
	h.seq_close = &body;
	return send_message(s, &h, err);
}

static int send_step(struct shadow_check *s, uint32_t n_rows, struct od_err *err)
{
	Od__StepRow row[MAX_ROWS], *list[MAX_ROWS];
	Od__Step body = OD__STEP__INIT;
	Od__Header h = OD__HEADER__INIT;

	for (uint32_t i = 0; i < n_rows; i++) {
		od__step_row__init(&row[i]);
		row[i].sequence = s->sequence;
		row[i].position = s->position + i;
		row[i].token = (int32_t)((s->position + i) * 7919u % s->o->cluster->config->vocab);
		list[i] = &row[i];
	}
	body.step = ++s->step;
	body.rows = list;
	body.n_rows = n_rows;
	h.body_case = OD__HEADER__BODY_STEP;
	h.step = &body;
	return send_message(s, &h, err);
}

/* ---- Steps ---- */

/* The layers [begin, end) of one shadow. False: it has too few layers with experts to tell. */
static bool layer_time(const struct shadow_check *s, uint32_t begin, uint32_t end, double *ns)
{
	const struct od_config *cfg = s->o->cluster->config;
	uint32_t first = UINT32_MAX, last = 0;

	for (uint32_t m = 0; m < cfg->n_moe; m++) {
		if (cfg->layer_of[m] < begin || cfg->layer_of[m] >= end)
			continue;
		first = first == UINT32_MAX ? m : first;
		last = m;
	}
	if (first >= last)
		return false;
	*ns = (double)(s->at_ns[last] - s->at_ns[first]) / (cfg->layer_of[last] - cfg->layer_of[first]);
	return true;
}

static int do_step(struct shadow_check *s, const struct odm_view *v, size_t kind, struct od_err *err)
{
	const struct odm_cluster_opts *o = s->o->cluster;
	const uint32_t n_rows = kind == 0 ? 1 : MAX_ROWS;
	uint64_t begin_ns;
	int rc = OD_OK;

	if (s->position + n_rows > o->ctx_tokens) {
		rc = close_sequence(s, err);
		if (rc == OD_OK)
			rc = open_sequence(s, err);
	}
	if (rc != OD_OK)
		return rc;
	odp_meeting_listen(s->o->meeting, s->sequence, s->position);
	begin_ns = od_now_ns();
	rc = send_step(s, n_rows, err);
	if (rc != OD_OK)
		return rc;
	if (!odp_meeting_heard(s->o->meeting, o->config->n_moe, ANSWER_NS, s->at_ns))
		return od_fail(err, OD_ERR_TIMEOUT, "no predictions of a step for %u s",
			       (unsigned)(ANSWER_NS / OD_NS_PER_S));
	if (kind == 0)
		s->first_ns[s->n[0]] = (double)(s->at_ns[0] - begin_ns);
	for (uint32_t i = 0; i <= v->n_parts; i++) {
		const struct odm_member *m = i == 0 ? &v->shadow : &v->part[i - 1];
		double *ns = &s->layer_ns[kind][i][s->n[kind]];

		if (!layer_time(s, m->first_layer, m->end_layer, ns)) /* all it has is the way from STEP on */
			*ns = (double)(s->at_ns[o->config->n_moe - 1] - begin_ns) / o->config->n_layers;
	}
	s->n[kind]++;
	s->position += n_rows;
	return OD_OK;
}

static int do_steps(struct shadow_check *s, const struct odm_view *v, struct od_err *err)
{
	/* As many rows as a step may have with one text. */
	const size_t kinds = MAX_ROWS <= s->o->cluster->decode_rows && MAX_ROWS < s->o->cluster->ctx_tokens ? 2 : 1;
	int rc = do_step(s, v, 0, err); /* the first one waits for buffers */

	s->n[0] = 0;
	for (size_t i = 0; rc == OD_OK && i < MAX_SAMPLES; i++) {
		if (i >= MIN_SAMPLES && od_now_ns() - s->begin_ns > s->o->budget_ns)
			break;
		for (size_t kind = 0; rc == OD_OK && kind < kinds; kind++)
			rc = do_step(s, v, kind, err);
	}
	return rc;
}

/* ---- Link ---- */

/* By PINGs, bare and with as much padding as there may be, in turns. */
static void measure_link(const struct shadow_check *s, struct odp_checked *c)
{
	double bare[PINGS], padded[PINGS], bare_ns, padded_ns;
	size_t n = 0;

	while (n < PINGS && odp_meeting_ping(s->o->meeting, c->facts.member.id, 0, &bare[n]) &&
	       odp_meeting_ping(s->o->meeting, c->facts.member.id, OD_MAX_PADDING, &padded[n]))
		n++;
	if (n == 0)
		return;
	bare_ns = odp_median(bare, n);
	padded_ns = odp_median(padded, n);
	c->rates.latency_ns = bare_ns;
	/* A link that is too fast to tell carries at least what it did. */
	c->rates.link_rate = 2.0 * OD_MAX_PADDING / (padded_ns > bare_ns ? padded_ns - bare_ns : padded_ns) * NS;
}

/* ---- All ---- */

static void fit(struct shadow_check *s, struct odp_checked *c, size_t i)
{
	const struct od_config *cfg = s->o->cluster->config;
	const struct odp_layer_cost cost = {
		.dense_weights = s->o->dense_weights,
		.expert_weights = s->o->expert_weights * cfg->n_moe / cfg->n_layers,
		.n_experts = cfg->n_experts,
		.top_k = cfg->top_k,
	};
	struct odp_rates *r = &c->rates;

	r->layer_ns = odp_median(s->layer_ns[0][i], s->n[0]);
	if (r->layer_ns <= 0)
		return;
	r->speed = (cost.dense_weights + cost.expert_weights * cost.top_k) / r->layer_ns * NS;
	r->many = s->n[1] > 0 ? odp_fit_many(&cost, r->speed, MAX_ROWS, odp_median(s->layer_ns[1][i], s->n[1])) : 0;
	c->measured = true;
}

static int attach(struct shadow_check *s, struct odm_view *v, struct od_err *err)
{
	int rc = odm_link_open(&s->link, odp_meeting_zmq(s->o->meeting), &v->shadow, err);

	if (rc != OD_OK)
		return rc;
	while ((rc = odm_link_attach(&s->link)) == OD_ERR_BUSY) {
		zmq_pollitem_t item = { .socket = s->link.socket, .events = ZMQ_POLLIN };

		zmq_poll(&item, 1, 10);
	}
	if (rc != OD_OK)
		return od_fail(err, rc, "no answer on its data port %u", v->shadow.data_port);
	return odm_link_send_parts(&s->link, 0, v->part, v->n_parts) == OD_OK ?
		       OD_OK :
		       od_fail(err, OD_ERR_BUSY, "its data port takes no messages");
}

void odp_check_shadow(struct odp_checked *c, struct odp_checked *const *part, struct odm_view *v,
		      const struct odp_shadow_check *o)
{
	struct shadow_check *s = calloc(1, sizeof(*s));
	struct od_err err = { 0 };
	int rc = OD_ERR_NOMEM;

	if (s != NULL) {
		*s = (struct shadow_check){ .o = o, .c = c, .begin_ns = od_now_ns() };
		s->at_ns = calloc(o->cluster->config->n_moe, sizeof(*s->at_ns));
	}
	if (s == NULL || s->at_ns == NULL) {
		odp_find(c, ODP_WRONG, "work", "", "no memory to measure it");
		free(s);
		return;
	}
	rc = attach(s, v, &err);
	c->data_port = rc == OD_OK;
	if (rc != OD_OK)
		odp_find(c, ODP_WRONG, "data port",
			 "let its data port through the firewall; od-shadow --data-port N makes it a fixed one", "%s",
			 err.msg);
	else if (open_sequence(s, &err) != OD_OK || do_steps(s, v, &err) != OD_OK)
		odp_find(c, ODP_WRONG, "work", "look at its log", "it could not be measured: %s", err.msg);
	for (uint32_t i = 0; i <= v->n_parts; i++) {
		measure_link(s, i == 0 ? c : part[i - 1]);
		if (s->n[0] > 0)
			fit(s, i == 0 ? c : part[i - 1], i);
	}
	if (rc == OD_OK && close_sequence(s, &err) != OD_OK)
		odp_find(c, ODP_NOTE, "work", "", "%s", err.msg);
	odm_link_close(&s->link);
	c->rates.took_ns = (double)(od_now_ns() - s->begin_ns);
	free(s->at_ns);
	free(s);
}
