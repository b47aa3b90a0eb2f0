#include "tests/bench/live/rivals.h"
#include "tests/unit/device_util.h"
#include "tests/unit/predictor_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/rank.h"
#include "tests/unit/config_util.h"

#define TOO_CLOSE 1e-5

uint32_t pw_draw(struct predictor_world *w, uint32_t n)
{
	w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(w->seed >> 33) % n;
}

float pw_real(struct predictor_world *w)
{
	return (float)pw_draw(w, 20001) / 10000.0f - 1;
}

static float *reals(struct predictor_world *w, size_t n)
{
	float *x = od_alloc_array(n, sizeof(*x));

	assert_non_null(x);
	for (size_t i = 0; i < n; i++)
		x[i] = pw_real(w);
	return x;
}

size_t pw_row(const struct predictor_world *w, uint64_t sequence, uint32_t position)
{
	size_t r = 0;

	while (r < w->step.n_rows && (w->row[r].sequence != sequence || w->row[r].position != position))
		r++;
	return r;
}

/* Every prediction, whoever made it, keeps the interface's promises. */
static void on_prediction(void *arg, const struct od_prediction *p)
{
	struct predictor_world *w = arg;
	struct pw_said *s = &w->said[w->n_said++];
	float sum = 0;

	assert_true(w->n_said <= PW_MAX_SAID);
	assert_false(w->step.prompt);
	assert_true(p->m < w->cfg.n_moe && (int64_t)p->m > w->heard);
	s->row = pw_row(w, p->sequence, p->position);
	assert_true(s->row < w->step.n_rows && !w->row[s->row].quiet);
	assert_int_equal(p->token, w->row[s->row].token);
	assert_false(p->stand_in);
	assert_in_range(p->n, w->cfg.top_k, od_prediction_candidates(&w->cfg));
	for (size_t i = 0; i < p->n; i++) {
		assert_true(p->expert[i] < w->cfg.n_experts);
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(p->expert[i], p->expert[j]);
		if (p->probability == NULL)
			continue;
		assert_true(p->probability[i] >= 0 && (i == 0 || p->probability[i] <= p->probability[i - 1]));
		sum += p->probability[i];
	}
	assert_true(sum < 1.0001f && (p->probability == NULL || p->n < w->cfg.n_experts || sum > 0.9999f));
	s->p = *p;
	memcpy(s->expert, p->expert, p->n * sizeof(*p->expert));
	s->p.expert = s->expert;
	if (p->probability != NULL) {
		memcpy(s->probability, p->probability, p->n * sizeof(*p->probability));
		s->p.probability = s->probability;
	}
}

static uint64_t room(size_t n)
{
	return od_round_up(n * sizeof(float) + OD_PAD_BYTES, OD_PAD_BYTES);
}

static struct od_ref put(struct predictor_world *w, const float *x, size_t n)
{
	struct od_ref at = od_buf_ref(w->weights, w->placed);

	put_at(w->device, at, x, n * sizeof(*x));
	w->placed += room(n);
	return at;
}

static int read_row(void *arg, uint32_t row, void *to, struct od_err *err)
{
	struct predictor_world *w = arg;

	(void)err;
	assert_true(row < w->cfg.vocab);
	memcpy(to, w->embed + (size_t)row * w->cfg.hidden, w->cfg.hidden * sizeof(float));
	w->n_read++;
	return OD_OK;
}

static void make_model(struct predictor_world *w)
{
	const struct od_config *c = &w->cfg;
	const size_t embed = (size_t)c->vocab * c->hidden, router = (size_t)c->n_experts * c->hidden;

	w->device = device_new(OD_CPU_SCALAR, 1);
	w->weights = buf_new(w->device, room(embed) + c->n_moe * (room(c->hidden) + room(router) + room(c->n_experts)));
	w->dense.layer = calloc(c->n_moe, sizeof(*w->dense.layer));
	w->norm = calloc(c->n_moe, sizeof(*w->norm));
	w->router = calloc(c->n_moe, sizeof(*w->router));
	w->bias = calloc(c->n_moe, sizeof(*w->bias));
	assert_true(w->dense.layer != NULL && w->norm != NULL && w->router != NULL && w->bias != NULL);
	w->embed = reals(w, embed);
	w->dense.embed = (struct od_weight){
		.dtype = OD_F32, .n_out = c->vocab, .n_in = c->hidden, .data = put(w, w->embed, embed)
	};
	for (uint32_t m = 0; m < c->n_moe; m++) {
		w->norm[m] = reals(w, c->hidden);
		w->router[m] = reals(w, router);
		w->dense.layer[m].w[OD_ROLE_FFN_NORM].data = put(w, w->norm[m], c->hidden);
		w->dense.layer[m].w[OD_ROLE_ROUTER] = (struct od_weight){
			.dtype = OD_F32, .n_out = c->n_experts, .n_in = c->hidden, .data = put(w, w->router[m], router)
		};
		if (!c->kind[0].router.bias)
			continue;
		w->bias[m] = reals(w, c->n_experts);
		w->dense.layer[m].w[OD_ROLE_ROUTER_BIAS].data = put(w, w->bias[m], c->n_experts);
	}
}

void pw_open(struct predictor_world *w, const char *kind, struct pw_shape shape)
{
	struct od_predictor_opts o = { .config = &w->cfg,
				       .dense = &w->dense,
				       .profile = OD_PROFILE_F32,
				       .max_rows = shape.max_rows,
				       .max_sequences = PW_MAX_SEQUENCES,
				       .emit = on_prediction,
				       .arg = w };
	struct od_err err;

	*w = (struct predictor_world){ .seed = 42, .max_rows = shape.max_rows, .heard = -1 };
	w->cfg = uniform_config((struct uniform){ .n_layers = shape.n_moe,
						  .n_experts = shape.n_experts,
						  .top_k = shape.top_k,
						  .hidden = shape.hidden,
						  .vocab = shape.vocab });
	if (shape.sigmoid)
		w->cfg.kind[0].router = (struct od_router_spec){ .score = OD_SCORE_SIGMOID, .bias = true, .scale = 1 };
	make_model(w);
	if (shape.in_file) {
		w->dense.embed.data = (struct od_ref){ 0 };
		w->dense.embed_reader = (struct od_row_reader){ .read = read_row, .arg = w };
	}
	o.device = w->device;
	w->row = calloc(shape.max_rows, sizeof(*w->row));
	w->prompt_row = calloc(shape.max_rows, sizeof(*w->prompt_row));
	w->residual = reals(w, shape.max_rows * shape.hidden);
	w->probability = reals(w, shape.max_rows * shape.n_experts);
	w->expert = calloc(shape.max_rows * shape.top_k, sizeof(*w->expert));
	w->rows = calloc(shape.max_rows, sizeof(*w->rows));
	w->said = calloc(PW_MAX_SAID, sizeof(*w->said));
	assert_true(w->row != NULL && w->prompt_row != NULL && w->expert != NULL && w->rows != NULL && w->said != NULL);
	for (size_t r = 0; r < shape.max_rows; r++)
		w->rows[r] =
			(struct od_routed_row){ w->residual + r * shape.hidden, w->probability + r * shape.n_experts,
						w->expert + r * shape.top_k };
	if (kind != NULL)
		assert_int_equal(rival_kind(kind)->make(&w->predictor, &o, &err), OD_OK);
}

void pw_close(struct predictor_world *w)
{
	od_predictor_free(w->predictor);
	od_free(w->embed);
	for (uint32_t m = 0; m < w->cfg.n_moe; m++) {
		od_free(w->norm[m]);
		od_free(w->bias[m]);
		od_free(w->router[m]);
	}
	free(w->norm);
	free(w->bias);
	free(w->router);
	free(w->dense.layer);
	od_buf_free(w->weights);
	od_device_free(w->device);
	free(w->row);
	free(w->prompt_row);
	od_free(w->residual);
	od_free(w->probability);
	free(w->expert);
	free(w->rows);
	free(w->said);
}

void pw_begin_rows(struct predictor_world *w, bool prompt, size_t n_rows, const struct od_predict_row *row)
{
	struct od_predict_row *own = prompt ? w->prompt_row : w->row;

	assert_true(n_rows <= w->max_rows);
	memcpy(own, row, n_rows * sizeof(*row));
	w->number += 3;
	w->step = (struct od_predict_step){ .step = w->number, .prompt = prompt, .n_rows = n_rows, .row = own };
	w->heard = -1;
	od_predictor_begin_step(w->predictor, &w->step);
}

void pw_begin(struct predictor_world *w, bool prompt, size_t n_rows, const int32_t *token)
{
	struct od_predict_row *row = calloc(n_rows + 1, sizeof(*row));

	assert_non_null(row);
	for (size_t r = 0; r < n_rows; r++)
		row[r] = (struct od_predict_row){ .sequence = w->sequence,
						  .position = 17 + (uint32_t)r,
						  .token = token != NULL ? token[r] :
									   (int32_t)pw_draw(w, w->cfg.vocab) };
	pw_begin_rows(w, prompt, n_rows, row);
	free(row);
}

void pw_draw_rows(struct predictor_world *w)
{
	for (size_t r = 0; r < w->step.n_rows; r++) {
		float sum = 0, *p = w->probability + r * w->cfg.n_experts;

		for (size_t i = 0; i < w->cfg.hidden; i++)
			w->residual[r * w->cfg.hidden + i] = 3 * pw_real(w);
		for (size_t e = 0; e < w->cfg.n_experts; e++) {
			p[e] = expf(3 * pw_real(w));
			sum += p[e];
		}
		for (size_t e = 0; e < w->cfg.n_experts; e++)
			p[e] /= sum;
	}
}

void pw_routed(struct predictor_world *w, uint32_t m)
{
	for (size_t r = 0; r < w->step.n_rows; r++)
		od_rank(w->probability + r * w->cfg.n_experts, w->cfg.n_experts, w->expert + r * w->cfg.top_k,
			w->cfg.top_k);
	w->heard = m;
	od_predictor_routed(w->predictor, &w->step, m, w->rows);
}

void pw_forget(struct predictor_world *w)
{
	w->n_said = 0;
}

const struct pw_said *pw_word(const struct predictor_world *w, size_t row, uint32_t m)
{
	for (size_t i = w->n_said; i-- > 0;) {
		if (w->said[i].row == row && w->said[i].p.m == m)
			return &w->said[i];
	}
	return NULL;
}

bool pw_best(const double *score, size_t n, size_t k, uint16_t *expert)
{
	bool taken[64] = { false }, clear = true;
	double last = 0;

	assert_true(n <= 64);
	for (size_t i = 0; i < k + (k < n); i++) {
		size_t best = SIZE_MAX;

		for (size_t e = 0; e < n; e++) {
			if (!taken[e] && (best == SIZE_MAX || score[e] > score[best]))
				best = e;
		}
		taken[best] = true;
		if (i < k)
			expert[i] = (uint16_t)best;
		else
			clear = last - score[best] > TOO_CLOSE;
		last = score[best];
	}
	return clear;
}

bool pw_same_set(const uint16_t *a, const uint16_t *b, size_t k)
{
	size_t common = 0;

	for (size_t i = 0; i < k; i++) {
		for (size_t j = 0; j < k; j++)
			common += a[i] == b[j];
	}
	return common == k;
}
