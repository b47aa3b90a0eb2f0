#include "tests/unit/naive_model.h"

#include <math.h>
#include <string.h>

#include "common/model/mixer.h"
#include "common/model/rope.h"
#include "tests/unit/device_util.h"

enum { WIDEST = NAIVE_WIDEST, MOST_HEADS = 8 };

/* A matrix or a vector on the host; w NULL: there is none. */
struct host_weight {
	double *w;
	size_t n_out, n_in;
};

static struct host_weight load(struct od_device *d, const struct od_weight *w)
{
	const size_t n = w->n_out * (w->n_in > 0 ? w->n_in : 1);
	struct host_weight h = { .n_out = w->n_out, .n_in = w->n_in };
	void *raw;

	if (w->data.buf == NULL)
		return h;
	assert_true(w->dtype == OD_F32 || w->dtype == OD_BF16 || w->dtype == OD_F16);
	raw = copy_at(d, w->data, n * od_dtype_bytes(w->dtype));
	h.w = malloc(n * sizeof(double));
	assert_non_null(h.w);
	for (size_t i = 0; i < n; i++)
		h.w[i] = w->dtype == OD_F32  ? (double)((float *)raw)[i] :
			 w->dtype == OD_BF16 ? (double)od_bf16_f32(((uint16_t *)raw)[i]) :
					       (double)od_f16_f32(((uint16_t *)raw)[i]);
	free(raw);
	return h;
}

static struct host_weight load_vector(struct od_device *d, struct od_ref data, uint32_t n)
{
	return load(d, &(struct od_weight){ .dtype = OD_F32, .n_out = n, .data = data });
}

struct host_layer {
	struct host_weight of[OD_N_ROLES];
};

static void load_layer(struct host_layer *h, const struct tiny_weights *w, uint32_t layer)
{
	for (int role = 0; role < OD_N_ROLES; role++)
		h->of[role] = load(w->device, &w->dense.layer[layer].w[role]);
}

static void free_layer(struct host_layer *h)
{
	for (int role = 0; role < OD_N_ROLES; role++)
		free(h->of[role].w);
}

static double dot(const double *a, const double *b, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* y = w x */
static void multiply(const struct host_weight *w, const double *x, double *y)
{
	for (size_t o = 0; o < w->n_out; o++)
		y[o] = dot(w->w + o * w->n_in, x, w->n_in);
}

static void linear(const struct host_layer *h, enum od_role role, const struct host_weight *bias, const double *x,
		   double *y)
{
	multiply(&h->of[role], x, y);
	for (size_t o = 0; bias != NULL && bias->w != NULL && o < bias->n_out; o++)
		y[o] += bias->w[o];
}

/* weight NULL: ones */
static void norm(double *u, const double *weight, size_t n, double eps)
{
	const double by = 1 / sqrt(dot(u, u, n) / (double)n + eps);

	for (size_t i = 0; i < n; i++)
		u[i] *= by * (weight != NULL ? weight[i] : 1);
}

/* The norm of the residual stream. */
static void norm_stream(const struct od_config *c, double *u, const struct host_weight *weight,
			const struct host_weight *bias)
{
	double mean = 0;

	if (c->norm == OD_NORM_RMS) {
		norm(u, weight->w, c->hidden, (double)c->rms_eps);
		return;
	}
	for (size_t i = 0; i < c->hidden; i++)
		mean += u[i] / c->hidden;
	for (size_t i = 0; i < c->hidden; i++)
		u[i] -= mean;
	norm(u, weight->w, c->hidden, (double)c->rms_eps);
	for (size_t i = 0; i < c->hidden; i++)
		u[i] += bias->w[i];
}

/* ---- mixers ---- */

void naive_turn(const struct od_rope *rope, uint32_t pair, uint32_t position, float *cosine, float *sine)
{
	float inv_freq[WIDEST], angle;

	od_rope_frequencies(rope, false, inv_freq);
	angle = (float)position * inv_freq[pair];
	*cosine = (float)(cos((double)angle) * (double)rope->magnitude);
	*sine = (float)(sin((double)angle) * (double)rope->magnitude);
}

static void turn(double *u, const struct od_rope *rope, uint32_t position)
{
	const uint32_t half = rope->dims / 2;

	for (uint32_t i = 0; i < half; i++) {
		const uint32_t first = rope->neighbours ? 2 * i : i, second = rope->neighbours ? 2 * i + 1 : half + i;
		const double x = u[first], y = u[second];
		float c, s;

		naive_turn(rope, i, position, &c, &s);
		u[first] = x * (double)c - y * (double)s;
		u[second] = x * (double)s + y * (double)c;
	}
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* Queries, keys and values of a position, head by head; gates of what attention gives. */
struct naive_model_heads {
	double q[MOST_HEADS][WIDEST], k[MOST_HEADS][WIDEST], v[MOST_HEADS][WIDEST], gate[MOST_HEADS][WIDEST];
};

static void norm_and_clip(const struct od_mixer *m, double *u, const double *weight, uint32_t n_heads, uint32_t dim)
{
	const uint32_t each = m->qk_norm == OD_QK_NORM_ROW ? n_heads * dim : dim;

	for (uint32_t at = 0; weight != NULL && at < n_heads * dim; at += each)
		norm(u + at, weight, each, (double)m->norm_eps);
	for (uint32_t i = 0; m->clip != 0 && i < n_heads * dim; i++)
		u[i] = fmax(fmin(u[i], (double)m->clip), -(double)m->clip);
}

static void split(double to[MOST_HEADS][WIDEST], const double *from, uint32_t n_heads, uint32_t dim)
{
	for (uint32_t i = 0; i < n_heads; i++)
		memcpy(to[i], from + (size_t)i * dim, dim * sizeof(double));
}

static void gqa_heads(const struct od_mixer *m, const struct od_rope *rope, const struct host_layer *h, const double *x,
		      uint32_t position, struct naive_model_heads *out)
{
	double q[2 * MOST_HEADS * WIDEST], k[MOST_HEADS * WIDEST], v[MOST_HEADS * WIDEST];

	linear(h, OD_ROLE_Q, &h->of[OD_ROLE_Q_BIAS], x, q);
	for (uint32_t i = 0; m->gated && i < m->n_heads; i++) { /* query and gate of each head in turn */
		memcpy(out->gate[i], q + (2 * (size_t)i + 1) * m->k_dim, m->k_dim * sizeof(*q));
		memmove(q + (size_t)i * m->k_dim, q + 2 * (size_t)i * m->k_dim, m->k_dim * sizeof(*q));
	}
	memset(k, 0, sizeof(k));
	memset(v, 0, sizeof(v));
	if (m->kv_of == 0) {
		linear(h, OD_ROLE_K, &h->of[OD_ROLE_K_BIAS], x, k);
		linear(h, m->v_is_k ? OD_ROLE_K : OD_ROLE_V, &h->of[OD_ROLE_V_BIAS], x, v);
	}
	for (uint32_t i = 0; m->v_norm && i < m->n_kv_heads; i++)
		norm(v + (size_t)i * m->v_dim, NULL, m->v_dim, (double)m->norm_eps);
	norm_and_clip(m, q, h->of[OD_ROLE_Q_NORM].w, m->n_heads, m->k_dim);
	norm_and_clip(m, k, h->of[OD_ROLE_K_NORM].w, m->n_kv_heads, m->k_dim);
	norm_and_clip(m, v, NULL, m->n_kv_heads, m->v_dim);
	split(out->q, q, m->n_heads, m->k_dim);
	for (uint32_t i = 0; i < m->n_heads; i++) { /* each query head with the kv head of its group */
		const uint32_t kv = i / (m->n_heads / m->n_kv_heads);

		memcpy(out->k[i], k + (size_t)kv * m->k_dim, m->k_dim * sizeof(double));
		memcpy(out->v[i], v + (size_t)kv * m->v_dim, m->v_dim * sizeof(double));
		turn(out->q[i], rope, position);
		turn(out->k[i], rope, position);
	}
}

/* A head's key is made of the latent, then comes the part that turns, which all heads share. */
static void mla_heads(const struct od_mixer *m, const struct od_rope *rope, const struct host_layer *h, const double *x,
		      uint32_t position, struct naive_model_heads *out)
{
	const uint32_t turning = m->k_dim - m->nope_dim;
	double q[MOST_HEADS * WIDEST], q_a[WIDEST], latent[2 * WIDEST], kv[2 * MOST_HEADS * WIDEST];

	if (m->q_rank > 0) {
		linear(h, OD_ROLE_Q_A, NULL, x, q_a);
		norm(q_a, h->of[OD_ROLE_Q_A_NORM].w, m->q_rank, (double)m->norm_eps);
		linear(h, OD_ROLE_Q_B, NULL, q_a, q);
	} else {
		linear(h, OD_ROLE_Q, NULL, x, q);
	}
	linear(h, OD_ROLE_KV_A, NULL, x, latent);
	norm(latent, h->of[OD_ROLE_KV_A_NORM].w, m->kv_rank, (double)m->norm_eps);
	turn(latent + m->kv_rank, rope, position);
	linear(h, OD_ROLE_KV_B, NULL, latent, kv);
	split(out->q, q, m->n_heads, m->k_dim);
	for (uint32_t i = 0; i < m->n_heads; i++) {
		const double *of_head = kv + (size_t)i * (m->nope_dim + m->v_dim);

		turn(out->q[i] + m->nope_dim, rope, position);
		memcpy(out->k[i], of_head, m->nope_dim * sizeof(double));
		memcpy(out->k[i] + m->nope_dim, latent + m->kv_rank, turning * sizeof(double));
		memcpy(out->v[i], of_head + m->nope_dim, m->v_dim * sizeof(double));
	}
}

/* Position p, when the heads of all up to it are known. */
static void attend(const struct od_mixer *m, const struct naive_model_heads *of, uint32_t p, double *out)
{
	const uint32_t first = m->window != 0 && p + 1 > m->window ? p + 1 - m->window : 0;

	memset(out, 0, (size_t)m->n_heads * m->v_dim * sizeof(*out));
	for (uint32_t i = 0; i < m->n_heads; i++) {
		double sum = 0;

		for (uint32_t j = first; j <= p; j++)
			sum += exp((double)m->scale * dot(of[p].q[i], of[j].k[i], m->k_dim));
		for (uint32_t j = first; j <= p; j++) {
			double share = exp((double)m->scale * dot(of[p].q[i], of[j].k[i], m->k_dim)) / sum;

			for (uint32_t d = 0; d < m->v_dim; d++)
				out[i * m->v_dim + d] += share * of[j].v[i][d];
		}
		for (uint32_t d = 0; m->gated && d < m->v_dim; d++)
			out[i * m->v_dim + d] *= sigmoid(of[p].gate[i][d]);
	}
}

/* A row's part in a gated delta rule: inputs of the convolution, then z, b and a of each head. */
struct delta_row {
	double q[MOST_HEADS][WIDEST], k[MOST_HEADS][WIDEST], v[MOST_HEADS][WIDEST], z[MOST_HEADS][WIDEST],
		b[MOST_HEADS], a[MOST_HEADS];
};

static void delta_inputs(const struct od_mixer *m, const struct host_layer *h, const double *x, struct delta_row *out)
{
	const uint32_t each = m->n_heads / m->n_kv_heads, k = m->k_dim, v = m->v_dim, keys = m->n_kv_heads * k;
	double all[4 * MOST_HEADS * WIDEST], ba[2 * MOST_HEADS], *at = all;

	if (!m->by_key_head) {
		linear(h, OD_ROLE_DELTA_QKV, NULL, x, all);
		split(out->q, all, m->n_kv_heads, k);
		split(out->k, all + keys, m->n_kv_heads, k);
		split(out->v, all + 2 * (size_t)keys, m->n_heads, v);
		linear(h, OD_ROLE_DELTA_Z, NULL, x, all);
		split(out->z, all, m->n_heads, v);
		linear(h, OD_ROLE_DELTA_B, NULL, x, out->b);
		linear(h, OD_ROLE_DELTA_A, NULL, x, out->a);
		return;
	}
	linear(h, OD_ROLE_DELTA_QKVZ, NULL, x, all);
	linear(h, OD_ROLE_DELTA_BA, NULL, x, ba);
	for (uint32_t key = 0; key < m->n_kv_heads; key++, at += 2 * (size_t)(k + each * v)) {
		split(&out->q[key], at, 1, k);
		split(&out->k[key], at + k, 1, k);
		split(&out->v[key * each], at + 2 * (size_t)k, each, v);
		split(&out->z[key * each], at + 2 * (size_t)k + (size_t)each * v, each, v);
		memcpy(out->b + key * each, ba + 2 * key * each, each * sizeof(*ba));
		memcpy(out->a + key * each, ba + (2 * key + 1) * each, each * sizeof(*ba));
	}
}

/* y [dim] of a head's inputs in rows up to p: its channels begin with `channel`; in: a head of the last row's. */
static void convolve(const struct od_mixer *m, const struct host_layer *h, const struct delta_row *rows, uint32_t p,
		     const double *in, uint32_t channel, uint32_t dim, double *y)
{
	const size_t at = (size_t)(in - (const double *)&rows[p]);
	const double *w = h->of[OD_ROLE_DELTA_CONV].w;
	const size_t channels = h->of[OD_ROLE_DELTA_CONV].n_out / m->conv;

	for (uint32_t d = 0; d < dim; d++) {
		double sum = 0;

		for (uint32_t back = 0; back < m->conv && back <= p; back++)
			sum += w[(m->conv - 1 - back) * channels + channel + d] *
			       ((const double *)&rows[p - back])[at + d];
		y[d] = sum * sigmoid(sum);
	}
}

static void unit_length(double *u, uint32_t n, double scale)
{
	const double by = scale / sqrt(dot(u, u, n) + 1e-6);

	for (uint32_t i = 0; i < n; i++)
		u[i] *= by;
}

static void delta_heads(const struct od_mixer *m, const struct host_layer *h, const struct delta_row *rows, uint32_t p,
			double state[MOST_HEADS][WIDEST][WIDEST], double *out)
{
	const uint32_t keys = m->n_kv_heads * m->k_dim;

	for (uint32_t i = 0; i < m->n_heads; i++, out += m->v_dim) {
		const uint32_t key = i / (m->n_heads / m->n_kv_heads);
		const double step = rows[p].a[i] + h->of[OD_ROLE_DELTA_DT_BIAS].w[i];
		const double decay = exp(-exp(h->of[OD_ROLE_DELTA_A_LOG].w[i]) * log1p(exp(step)));
		double q[WIDEST], k[WIDEST], v[WIDEST];

		convolve(m, h, rows, p, rows[p].q[key], key * m->k_dim, m->k_dim, q);
		convolve(m, h, rows, p, rows[p].k[key], keys + key * m->k_dim, m->k_dim, k);
		convolve(m, h, rows, p, rows[p].v[i], 2 * keys + i * m->v_dim, m->v_dim, v);
		unit_length(q, m->k_dim, 1 / sqrt((double)m->k_dim));
		unit_length(k, m->k_dim, 1);
		for (uint32_t d = 0; d < m->v_dim; d++) {
			double *s = state[i][d], known = 0;

			for (uint32_t c = 0; c < m->k_dim; c++)
				known += k[c] * (s[c] *= decay);
			for (uint32_t c = 0; c < m->k_dim; c++)
				s[c] += k[c] * (v[d] - known) * sigmoid(rows[p].b[i]);
			out[d] = dot(s, q, m->k_dim);
		}
		norm(out, h->of[OD_ROLE_DELTA_NORM].w, m->v_dim, (double)m->norm_eps);
		for (uint32_t d = 0; d < m->v_dim; d++)
			out[d] *= rows[p].z[i][d] * sigmoid(rows[p].z[i][d]);
	}
}

static void delta_mix(const struct od_config *c, const struct od_mixer *m, const struct host_layer *h, uint32_t n,
		      const double *x, double *y)
{
	struct delta_row *rows = calloc(n, sizeof(*rows));
	double(*state)[WIDEST][WIDEST] = calloc(MOST_HEADS, sizeof(*state)), out[MOST_HEADS * WIDEST];

	assert_true(rows != NULL && state != NULL);
	for (uint32_t p = 0; p < n; p++) {
		delta_inputs(m, h, x + (size_t)p * c->hidden, &rows[p]);
		delta_heads(m, h, rows, p, state, out);
		linear(h, OD_ROLE_DELTA_OUT, NULL, out, y + (size_t)p * c->hidden);
	}
	free(state);
	free(rows);
}

/* kept: [n_layers], the heads of layers that others share keys and values with; NULL: of this layer alone. */
static void mix(const struct od_config *c, uint32_t layer, const struct host_layer *h, uint32_t n, const double *x,
		double *y, struct naive_model_heads **kept)
{
	const struct od_layer_spec *l = od_config_layer(c, layer);
	const struct od_rope *rope = l->mixer == &od_mixer_delta ? NULL : &c->rope[l->mix.rope];
	struct naive_model_heads *of;
	double attended[MOST_HEADS * WIDEST];

	assert_true(l->mix.n_heads <= MOST_HEADS && l->mix.k_dim <= WIDEST && l->mix.v_dim <= WIDEST &&
		    l->mix.q_rank <= WIDEST && l->mix.kv_rank <= WIDEST);
	if (l->mixer == &od_mixer_delta) {
		delta_mix(c, &l->mix, h, n, x, y);
		return;
	}
	assert_true(l->mixer == &od_mixer_mla || l->mixer == &od_mixer_gqa);
	of = calloc(n, sizeof(*of));
	assert_non_null(of);
	for (uint32_t p = 0; p < n; p++) {
		if (l->mixer == &od_mixer_mla)
			mla_heads(&l->mix, rope, h, x + (size_t)p * c->hidden, p, &of[p]);
		else
			gqa_heads(&l->mix, rope, h, x + (size_t)p * c->hidden, p, &of[p]);
		if (l->mix.kv_of != 0) {
			assert_true(kept != NULL && l->mix.kv_of <= layer);
			memcpy(of[p].k, kept[l->mix.kv_of - 1][p].k, sizeof(of[p].k));
			memcpy(of[p].v, kept[l->mix.kv_of - 1][p].v, sizeof(of[p].v));
		}
		attend(&l->mix, of, p, attended);
		linear(h, OD_ROLE_O, &h->of[OD_ROLE_O_BIAS], attended, y + (size_t)p * c->hidden);
	}
	if (kept != NULL)
		kept[layer] = of;
	else
		free(of);
}

void naive_mix(const struct tiny_model *t, const struct tiny_weights *w, uint32_t layer, uint32_t n, const double *x,
	       double *y)
{
	struct host_layer h;

	load_layer(&h, w, layer);
	mix(&t->cfg, layer, &h, n, x, y, NULL);
	free_layer(&h);
}

/* ---- feed-forward networks ---- */

static double activated(enum od_act act, double g)
{
	assert_true(act == OD_ACT_SILU || act == OD_ACT_GELU);
	return act == OD_ACT_SILU ? g / (1 + exp(-g)) : g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}

/* y += by * down(act(gate x) * up x) */
static void add_ffn(enum od_act act, const struct host_weight mat[OD_N_EXPERT_MATS], const double *x, double by,
		    double *y)
{
	const size_t n = mat[OD_MAT_GATE].n_out, hidden = mat[OD_MAT_DOWN].n_out;
	double gate[WIDEST], up[WIDEST], out[WIDEST];

	assert_true(n <= WIDEST && hidden <= WIDEST);
	multiply(&mat[OD_MAT_GATE], x, gate);
	multiply(&mat[OD_MAT_UP], x, up);
	for (size_t i = 0; i < n; i++)
		up[i] *= activated(act, gate[i]);
	multiply(&mat[OD_MAT_DOWN], up, out);
	for (size_t i = 0; i < hidden; i++)
		y[i] += by * out[i];
}

/* No expert outside of the best groups is chosen. A group is worth its best expert, or its two best together. */
static void leave_groups(const struct od_router_spec *router, double *decides, uint32_t n)
{
	const uint32_t size = n / router->n_groups;
	double worth[WIDEST], first, second;

	for (uint32_t g = 0; g < router->n_groups; g++) {
		first = second = -INFINITY;
		for (uint32_t e = g * size; e < (g + 1) * size; e++) {
			second = fmax(second, fmin(first, decides[e]));
			first = fmax(first, decides[e]);
		}
		worth[g] = first + (router->group_two ? second : 0);
	}
	for (uint32_t g = 0; g < router->n_groups; g++) {
		uint32_t better = 0;

		for (uint32_t i = 0; i < router->n_groups; i++)
			better += worth[i] > worth[g];
		for (uint32_t i = 0; better >= router->top_groups && i < size; i++)
			decides[g * size + i] = -INFINITY;
	}
}

/* Computes for each expert the score that makes its weight, and the one that it is chosen by. */
static void scores(const struct od_config *c, const struct od_router_spec *router, const struct host_layer *h,
		   const double *x, double *score, double *decides)
{
	double all = 0;

	multiply(&h->of[OD_ROLE_ROUTER], x, score);
	for (uint32_t e = 0; e < c->n_experts; e++) {
		score[e] *= router->logit_scale != 0 ? (double)router->logit_scale : 1;
		all += exp(score[e]);
	}
	for (uint32_t e = 0; e < c->n_experts; e++) {
		score[e] = router->score == OD_SCORE_SIGMOID ? 1 / (1 + exp(-score[e])) : exp(score[e]) / all;
		decides[e] = score[e] + (router->bias ? h->of[OD_ROLE_ROUTER_BIAS].w[e] : 0);
	}
	if (router->n_groups > 0)
		leave_groups(router, decides, c->n_experts);
}

/* y += what the chosen experts of MoE layer m give. seen: what the router sees of the row, x: what the experts get */
static void add_experts(const struct od_config *c, const struct od_router_spec *router, const struct tiny_weights *w,
			uint32_t m, const struct host_layer *h, const double *seen, const double *x, double *y)
{
	double score[WIDEST], decides[WIDEST], chosen = 0;
	bool in[WIDEST] = { false };

	assert_true(c->n_experts <= WIDEST);
	scores(c, router, h, seen, score, decides);
	for (uint32_t e = 0; e < c->n_experts; e++) {
		uint32_t better = 0;

		for (uint32_t i = 0; i < c->n_experts; i++)
			better += decides[i] > decides[e];
		in[e] = better < c->top_k;
		chosen += in[e] ? score[e] : 0;
	}
	chosen = router->renormalise ? chosen + (double)router->sum_eps : 1;
	for (uint32_t e = 0; e < c->n_experts; e++) {
		const struct od_expert *expert = &w->experts[m * c->n_experts + e];
		const double factor = router->factors ? h->of[OD_ROLE_ROUTER_FACTORS].w[e] : 1;
		struct host_weight mat[OD_N_EXPERT_MATS];

		for (int i = 0; in[e] && i < OD_N_EXPERT_MATS; i++)
			mat[i] = load(w->device, &expert->mat[i]);
		if (in[e])
			add_ffn(c->act.kind, mat, x, score[e] / chosen * (double)router->scale * factor, y);
		for (int i = 0; in[e] && i < OD_N_EXPERT_MATS; i++)
			free(mat[i].w);
	}
}

/* to = the row x, normed by a role's weights */
static void norm_to(double *to, const struct od_config *c, const struct host_layer *h, enum od_role role,
		    const double *x)
{
	memcpy(to, x, c->hidden * sizeof(*x));
	norm(to, h->of[role].w, c->hidden, (double)c->rms_eps);
}

/* x += what follows the mixer */
static void feed_forward(const struct od_config *c, const struct od_layer_spec *l, const struct tiny_weights *w,
			 uint32_t m, const struct host_layer *h, double *x)
{
	double normed[WIDEST], seen[WIDEST], routed[WIDEST] = { 0 }, shared[WIDEST] = { 0 }, open = 1, score;

	memcpy(normed, x, c->hidden * sizeof(*x));
	norm_stream(c, normed, &h->of[OD_ROLE_FFN_NORM], &h->of[OD_ROLE_FFN_NORM_BIAS]);
	if (l->ffn == OD_FFN_DENSE) {
		add_ffn(c->act.kind, &h->of[OD_ROLE_FFN_GATE], normed, 1, x);
		return;
	}
	memcpy(seen, normed, c->hidden * sizeof(*seen));
	if (l->router.norm)
		norm_to(seen, c, h, OD_ROLE_ROUTER_NORM, x);
	add_experts(c, &l->router, w, m, h, seen, normed, routed);
	if (l->shared_gate) {
		multiply(&h->of[OD_ROLE_SHARED_SCORE], normed, &score);
		open = 1 / (1 + exp(-score));
	}
	if (l->sandwich)
		norm_to(normed, c, h, OD_ROLE_SHARED_NORM, x);
	if (l->shared_intermediate > 0)
		add_ffn(c->act.kind, &h->of[OD_ROLE_SHARED_GATE], normed, open, shared);
	if (l->sandwich) {
		norm(routed, h->of[OD_ROLE_EXPERTS_POST_NORM].w, c->hidden, (double)c->rms_eps);
		norm(shared, h->of[OD_ROLE_SHARED_POST_NORM].w, c->hidden, (double)c->rms_eps);
	}
	for (uint32_t i = 0; i < c->hidden; i++)
		routed[i] += shared[i];
	if (l->sandwich)
		norm(routed, h->of[OD_ROLE_FFN_POST_NORM].w, c->hidden, (double)c->rms_eps);
	for (uint32_t i = 0; i < c->hidden; i++)
		x[i] += routed[i];
}

/* x += what the layer makes of its own input, [layer_input] */
static void add_input(const struct od_config *c, const struct host_layer *h, const double *input, double *x)
{
	double gate[WIDEST], out[WIDEST];

	multiply(&h->of[OD_ROLE_INPUT_GATE], x, gate);
	for (uint32_t i = 0; i < c->layer_input; i++)
		gate[i] = activated(c->act.kind, gate[i]) * input[i];
	multiply(&h->of[OD_ROLE_INPUT_PROJECT], gate, out);
	norm(out, h->of[OD_ROLE_INPUT_POST_NORM].w, c->hidden, (double)c->rms_eps);
	for (uint32_t i = 0; i < c->hidden; i++)
		x[i] += out[i];
}

/* inputs [n_layers][layer_input] of a token, whose scaled embedding is x */
static void make_inputs(const struct od_config *c, const struct tiny_weights *w, int32_t token, const double *x,
			double *inputs)
{
	struct host_weight table = load(w->device, &w->dense.layer_embed),
			   project = load(w->device, &w->dense.layer_project);
	struct host_weight by = load_vector(w->device, w->dense.layer_project_norm, c->layer_input);
	const size_t n = (size_t)c->n_layers * c->layer_input;

	multiply(&project, x, inputs);
	for (size_t i = 0; i < n; i++)
		inputs[i] /= sqrt(c->hidden);
	for (uint32_t l = 0; l < c->n_layers; l++)
		norm(inputs + (size_t)l * c->layer_input, by.w, c->layer_input, (double)c->rms_eps);
	for (size_t i = 0; i < n; i++)
		inputs[i] = (inputs[i] + table.w[(size_t)token * n + i] * sqrt(c->layer_input)) / sqrt(2);
	free(table.w);
	free(project.w);
	free(by.w);
}

/* ---- the model ---- */

static void layer(const struct tiny_model *t, const struct tiny_weights *w, uint32_t i, double *x, const double *inputs,
		  struct naive_model_heads **kept)
{
	const struct od_config *c = &t->cfg;
	const struct od_layer_spec *l = od_config_layer(c, i);
	const size_t n = t->n_prompt * c->hidden;
	double *normed = calloc(n, sizeof(*normed)), *mixed = calloc(n, sizeof(*mixed));
	struct host_layer h;

	assert_true(normed != NULL && mixed != NULL);
	load_layer(&h, w, i);
	memcpy(normed, x, n * sizeof(*x));
	for (size_t p = 0; p < t->n_prompt; p++)
		norm_stream(c, normed + p * c->hidden, &h.of[OD_ROLE_ATTN_NORM], &h.of[OD_ROLE_ATTN_NORM_BIAS]);
	mix(c, i, &h, (uint32_t)t->n_prompt, normed, mixed, kept);
	for (size_t p = 0; l->sandwich && p < t->n_prompt; p++)
		norm(mixed + p * c->hidden, h.of[OD_ROLE_ATTN_POST_NORM].w, c->hidden, (double)c->rms_eps);
	for (size_t k = 0; k < n; k++)
		x[k] += mixed[k];
	for (size_t p = 0; p < t->n_prompt; p++) {
		feed_forward(c, l, w, c->m_of[i], &h, x + p * c->hidden);
		if (c->layer_input > 0)
			add_input(c, &h, inputs + (p * c->n_layers + i) * c->layer_input, x + p * c->hidden);
		for (size_t k = 0; l->scaled && k < c->hidden; k++)
			x[p * c->hidden + k] *= h.of[OD_ROLE_LAYER_SCALE].w[0];
	}
	free_layer(&h);
	free(normed);
	free(mixed);
}

double *naive_logits(const struct tiny_model *t, const struct tiny_weights *w)
{
	const struct od_config *c = &t->cfg;
	struct host_weight embed = load(w->device, &w->dense.embed), head = load(w->device, &w->dense.head);
	struct host_weight final_norm = load_vector(w->device, w->dense.final_norm, c->hidden);
	struct host_weight final_bias = load_vector(w->device, w->dense.final_norm_bias, c->hidden);
	struct host_weight head_bias = load_vector(w->device, w->dense.head_bias, c->vocab);
	double *x = calloc(t->n_prompt * c->hidden, sizeof(*x)),
	       *logits = calloc(t->n_prompt * c->vocab, sizeof(*logits));
	double *inputs = calloc(t->n_prompt * c->n_layers * c->layer_input + 1, sizeof(*inputs));
	struct naive_model_heads **kept = calloc(c->n_layers, sizeof(struct naive_model_heads *));

	assert_true(x != NULL && logits != NULL && inputs != NULL && kept != NULL && c->hidden <= WIDEST);
	for (size_t p = 0; p < t->n_prompt; p++)
		for (size_t k = 0; k < c->hidden; k++)
			x[p * c->hidden + k] = embed.w[(size_t)t->prompt[p] * c->hidden + k] *
					       (c->embed_scale != 0 ? (double)c->embed_scale : 1);
	for (size_t p = 0; c->layer_input > 0 && p < t->n_prompt; p++)
		make_inputs(c, w, t->prompt[p], x + p * c->hidden, inputs + p * c->n_layers * c->layer_input);
	for (uint32_t i = 0; i < c->n_layers; i++)
		layer(t, w, i, x, inputs, kept);
	for (uint32_t i = 0; i < c->n_layers; i++)
		free(kept[i]);
	free(kept);
	free(inputs);
	for (size_t p = 0; p < t->n_prompt; p++) {
		norm_stream(c, x + p * c->hidden, &final_norm, &final_bias);
		multiply(&head, x + p * c->hidden, logits + p * c->vocab);
		for (size_t i = 0; c->head_bias && i < c->vocab; i++)
			logits[p * c->vocab + i] += head_bias.w[i];
		for (size_t k = 0; c->logit_cap != 0 && k < c->vocab; k++)
			logits[p * c->vocab + k] =
				(double)c->logit_cap * tanh(logits[p * c->vocab + k] / (double)c->logit_cap);
	}
	free(embed.w);
	free(head.w);
	free(final_norm.w);
	free(final_bias.w);
	free(head_bias.w);
	free(x);
	return logits;
}
