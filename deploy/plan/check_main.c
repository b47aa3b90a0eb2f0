#include "deploy/plan/check_main.h"

#include "common/base/clock.h"
#include "deploy/plan/check_fit.h"

#include <stdlib.h>
#include <string.h>

#define MIN_SAMPLES 3
#define MAX_SAMPLES 31
#define MAX_ROWS 128
#define HEAD_ROWS 4 /* rows of the larger step of the head */

struct timed_step {
	uint32_t rows, head_rows; /* head_rows 0: the head is not timed */
	size_t n;
	double layers_ns[MAX_SAMPLES], head_ns[MAX_SAMPLES];
};

struct main_check {
	const struct odm_model *model;
	struct od_forward *forward;
	struct od_seq_state *seq;
	struct od_row row[MAX_ROWS];
	uint64_t number;
};

/* ---- Experts that give zeros ---- */

static unsigned needs(struct od_expert_runner *r, uint64_t step, uint32_t m)
{
	(void)r;
	(void)step;
	(void)m;
	return OD_FETCH_ROUTES | OD_FETCH_ROWS; /* as a cluster does */
}

struct zero_runner {
	struct od_expert_runner runner;
	size_t top_k, hidden;
};

static int submit(struct od_expert_runner *r, const struct od_moe_call *call, struct od_err *err)
{
	const struct zero_runner *z = (const struct zero_runner *)r;

	(void)err;
	memset(call->y, 0, call->n_rows * z->top_k * z->hidden * sizeof(float));
	return OD_OK;
}

/* ---- Weights ---- */

static double matrix_weights(const struct od_weight *w)
{
	return w->data.buf != NULL && w->n_out > 1 && w->n_in > 1 ? (double)w->n_out * (double)w->n_in : 0;
}

struct odp_dense_weights odp_dense_weights(const struct odm_model *model)
{
	const struct od_dense *d = od_dense_get(model->dense);
	struct odp_dense_weights w = { .head = (double)d->head.n_out * (double)d->head.n_in };

	w.layers = matrix_weights(&d->layer_project);
	for (uint32_t i = 0; i < model->config->n_layers; i++)
		for (size_t role = 0; role < OD_N_ROLES; role++)
			w.layers += matrix_weights(&d->layer[i].w[role]);
	return w;
}

/* ---- Steps ---- */

/* Nothing is committed: the next step begins at the same position. */
static int run_layers(struct main_check *c, struct timed_step *s, struct zero_runner *z, struct od_err *err)
{
	const uint64_t begin_ns = od_now_ns();
	int rc = od_forward_begin(c->forward, ++c->number, c->row, s->rows, err);

	while (rc == OD_OK && !od_forward_done(c->forward)) {
		od_forward_attention(c->forward);
		if (!od_forward_routed(c->forward))
			continue;
		rc = od_forward_fetch_for(c->forward, &z->runner, 0, err);
		if (rc == OD_OK)
			rc = od_forward_experts(c->forward, &z->runner, err);
	}
	if (rc == OD_OK)
		rc = od_device_sync(c->model->device, err);
	s->layers_ns[s->n] = (double)(od_now_ns() - begin_ns);
	return rc;
}

static int run_head(struct main_check *c, struct timed_step *s, struct od_err *err)
{
	const uint64_t begin_ns = od_now_ns();
	uint32_t row[HEAD_ROWS];
	float *logits;
	int rc;

	if (s->head_rows == 0)
		return OD_OK;
	for (uint32_t i = 0; i < s->head_rows; i++)
		row[i] = i;
	rc = od_forward_logits(c->forward, row, s->head_rows, &logits, err);
	s->head_ns[s->n] = (double)(od_now_ns() - begin_ns);
	return rc;
}

static int run_steps(struct main_check *c, struct timed_step *s, size_t n, uint64_t budget_ns, struct od_err *err)
{
	struct zero_runner z = { .runner = { .needs = needs, .submit = submit },
				 .top_k = c->model->config->top_k,
				 .hidden = c->model->config->hidden };
	const uint64_t until_ns = od_now_ns() + budget_ns;

	for (size_t round = 0; round < MAX_SAMPLES && (round < MIN_SAMPLES || od_now_ns() < until_ns); round++)
		for (size_t i = 0; i < n; i++) {
			int rc = run_layers(c, &s[i], &z, err);

			if (rc == OD_OK)
				rc = run_head(c, &s[i], err);
			if (rc != OD_OK)
				return rc;
			s[i].n++;
		}
	return OD_OK;
}

static void fit_steps(struct odp_rates *r, const struct odm_model *model, struct timed_step *s, size_t n)
{
	const struct odp_dense_weights w = odp_dense_weights(model);
	struct odp_timed p[ODP_FIT_MAX];
	struct odp_roofline f;
	size_t n_points = 0;

	for (size_t i = 0; i < n; i++) {
		p[n_points++] = (struct odp_timed){ .operations = model->config->n_layers,
						    .weights = w.layers,
						    .rows = s[i].rows,
						    .ns = odp_median(s[i].layers_ns, s[i].n) };
		if (s[i].head_rows > 0)
			p[n_points++] = (struct odp_timed){ .weights = w.head,
							    .rows = s[i].head_rows,
							    .ns = odp_median(s[i].head_ns, s[i].n) };
	}
	f = odp_fit_roofline(p, n_points);
	odp_roofline_anchor(&f, &p[0]);
	r->fixed_ns = f.fixed_ns;
	r->speed = f.speed;
	r->many = f.many;
	r->layer_ns = p[0].ns / model->config->n_layers;
	r->head_ns = n_points > 1 && s[0].head_rows == 1 ? p[1].ns : 0;
}

/* Steps of one text that begins with these rows. */
static size_t choose_steps(struct main_check *c, struct timed_step *s)
{
	static const uint32_t rows[] = { 1, 2, 4, 16, 64, MAX_ROWS };
	const uint32_t most = (uint32_t)odm_model_most_rows(c->model), ctx = od_state_pool_ctx(c->model->state);
	size_t n = 0;

	for (uint32_t i = 0; i < MAX_ROWS; i++)
		c->row[i] = (struct od_row){ .seq = c->seq,
					     .position = i,
					     .token = (int32_t)(i % c->model->config->vocab) };
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i] <= most && rows[i] <= ctx)
			s[n++] = (struct timed_step){ .rows = rows[i],
						      .head_rows = rows[i] == 1 || rows[i] == HEAD_ROWS ? rows[i] : 0 };
	return n;
}

int odp_check_main(struct odp_rates *r, const struct odm_model *model, uint64_t budget_ns, struct od_err *err)
{
	struct od_forward_opts fo = odm_model_forward_opts(model);
	struct main_check c = { .model = model };
	struct timed_step *s = calloc(ODP_FIT_MAX, sizeof(*s));
	const uint64_t begin_ns = od_now_ns();
	size_t n;
	int rc;

	fo.max_logits = HEAD_ROWS;
	rc = s != NULL ? od_forward_new(&c.forward, &fo, err) : od_fail(err, OD_ERR_NOMEM, "steps");
	if (rc == OD_OK)
		rc = od_seq_state_new(&c.seq, model->state, err);
	if (rc == OD_OK)
		rc = od_seq_state_promise(
			c.seq, MAX_ROWS < od_state_pool_ctx(model->state) ? MAX_ROWS : od_state_pool_ctx(model->state));
	if (rc == OD_OK) {
		n = choose_steps(&c, s);
		rc = run_steps(&c, s, n, budget_ns, err);
		if (rc == OD_OK)
			fit_steps(r, model, s, n);
	}
	od_forward_free(c.forward);
	od_seq_state_free(c.seq);
	free(s);
	r->took_ns = (double)(od_now_ns() - begin_ns);
	return rc;
}
