#include "deploy/plan/synthetic_routes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RING 64u /* positions whose logits are kept */
#define MAX_TEXTS 4096u
#define SAMPLES 2048 /* rows that the noise of a recall is found with */
#define HALVINGS 24
#define MARGIN_MEAN 1.2 /* a draft token's mean margin, in logits: talebook, INT8, greedy */
#define MARGIN_SLOPE 1.5 /* how much surer a token of a larger margin is: odm_outlook's second coefficient */

enum { FOR_POPULARITY, FOR_ROUTE, FOR_START, FOR_SHADOW, FOR_TOKEN, FOR_MARGIN, FOR_GUESS, FOR_SAMPLE, FOR_NEXT_GATE };

struct synthetic_text {
	uint32_t *tag; /* [n_moe][RING]: position + 1 */
	float *logit; /* [n_moe][RING][n_experts] */
};

struct odp_synthetic {
	struct odp_synthetic_opts o;
	double noise, gate_noise; /* standard deviation of the shadow's logits around main's, and of next-gate's */
	double right; /* first coefficient of a token's probability by its margin */
	float *popularity; /* [n_moe][n_experts] */
	float *row, *said, *probability; /* [n_experts]: scratch */
	struct synthetic_text text[MAX_TEXTS];
};

void odp_synthetic_defaults(struct odp_synthetic_opts *o, enum od_precision precision)
{
	const bool nf4 = precision == OD_PRECISION_NF4;

	o->skew = 0.3;
	o->locality = 0.25;
	o->recall = nf4 ? 0.956 : 0.996;
	o->gate_recall = 0.682;
	o->draft_right = nf4 ? 0.89 : 0.984;
}

/* ---- Random numbers: functions of what they are for ---- */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u; /* splitmix64 */
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t draw(const struct odp_synthetic *s, int what, uint64_t a, uint64_t b, uint64_t c)
{
	return mix(mix(mix(mix(s->o.seed * 16 + (uint64_t)what) + a) + b) + c);
}

static double uniform(uint64_t x)
{
	return ((double)(x >> 11) + 0.5) / 9007199254740992.0;
}

/* Nearly normal: the sum of four uniform numbers. */
static float gauss(uint64_t x)
{
	const uint64_t sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);

	return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

static void add_noise(float *x, size_t n, float scale, uint64_t key)
{
	for (size_t e = 0; e < n; e++)
		x[e] += scale * gauss(mix(key + e));
}

/* ---- Logits ---- */

static uint16_t *top(const float *x, size_t n_experts, size_t n, uint16_t *out)
{
	size_t have = 0;

	for (size_t e = 0; e < n_experts; e++) {
		size_t at = have < n ? have++ : n;

		if (at == n && x[e] <= x[out[n - 1]])
			continue;
		if (at == n)
			at--;
		for (; at > 0 && x[out[at - 1]] < x[e]; at--)
			out[at] = out[at - 1];
		out[at] = (uint16_t)e;
	}
	return out;
}

static int32_t main_token(void *arg, uint32_t text, uint32_t position)
{
	return (int32_t)(draw(arg, FOR_TOKEN, text, position, 0) & 0x3fffffff);
}

/* Room for a text's logits; the last one's when there are too many texts or no memory. */
static struct synthetic_text *text_of(struct odp_synthetic *s, uint32_t text)
{
	struct synthetic_text *t = &s->text[text % MAX_TEXTS];
	const size_t n = (size_t)s->o.n_moe * RING;

	if (t->tag == NULL)
		t->tag = calloc(n, sizeof(*t->tag));
	if (t->logit == NULL)
		t->logit = calloc(n * s->o.n_experts, sizeof(*t->logit));
	return t->tag != NULL && t->logit != NULL ? t : NULL;
}

/* The changing part of a row's logits: some of the row before, and something new. */
static void next_logits(const struct odp_synthetic *s, const float *before, float *out, uint32_t text,
			uint32_t position, int32_t token, uint32_t m)
{
	const float kept = (float)s->o.locality, added = (float)sqrt(1 - s->o.locality * s->o.locality);
	const uint64_t key = draw(s, FOR_ROUTE, (uint64_t)text << 32 | position, (uint32_t)token, m);

	for (uint32_t e = 0; e < s->o.n_experts; e++)
		out[e] = before != NULL ? kept * before[e] : 0;
	add_noise(out, s->o.n_experts, before != NULL ? added : 1, key);
}

/* The changing part of the logits of main's own token; NULL: no memory. */
static const float *true_logits(struct odp_synthetic *s, uint32_t text, uint32_t position, uint32_t m)
{
	struct synthetic_text *t = text_of(s, text);
	uint32_t from = position, *tag;
	float *logit;

	if (t == NULL)
		return NULL;
	tag = t->tag + (size_t)m * RING;
	logit = t->logit + (size_t)m * RING * s->o.n_experts;
	while (from > 0 && position - from < RING - 1 && tag[from % RING] != from + 1)
		from--;
	for (uint32_t at = from; at <= position; at++) {
		const bool follows = at > 0 && tag[(at - 1) % RING] == at;

		if (tag[at % RING] == at + 1)
			continue;
		next_logits(s, follows ? logit + (size_t)((at - 1) % RING) * s->o.n_experts : NULL,
			    logit + (size_t)(at % RING) * s->o.n_experts, text, at, main_token(s, text, at), m);
		tag[at % RING] = at + 1;
	}
	return logit + (size_t)(position % RING) * s->o.n_experts;
}

/* Into s->row. */
static void row_logits(struct odp_synthetic *s, uint32_t text, uint32_t position, int32_t token, uint32_t m)
{
	const float *popularity = s->popularity + (size_t)m * s->o.n_experts, *known;

	if (token == main_token(s, text, position)) {
		known = true_logits(s, text, position, m);
		if (known != NULL)
			memcpy(s->row, known, s->o.n_experts * sizeof(*s->row));
		else
			memset(s->row, 0, s->o.n_experts * sizeof(*s->row));
	} else {
		known = position > 0 ? true_logits(s, text, position - 1, m) : NULL;
		next_logits(s, known, s->row, text, position, token, m);
	}
	for (uint32_t e = 0; e < s->o.n_experts; e++)
		s->row[e] += popularity[e];
}

static void softmax(const float *x, float *to, size_t n)
{
	float most = x[0], sum = 0;

	for (size_t e = 1; e < n; e++)
		most = x[e] > most ? x[e] : most;
	for (size_t e = 0; e < n; e++)
		sum += to[e] = expf(x[e] - most);
	for (size_t e = 0; e < n; e++)
		to[e] /= sum;
}

/* ---- The source ---- */

static void used(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, uint16_t *expert,
		 const float **probability)
{
	struct odp_synthetic *s = arg;

	row_logits(s, text, position, token, m);
	top(s->row, s->o.n_experts, s->o.top_k, expert);
	if (probability == NULL)
		return;
	softmax(s->row, s->probability, s->o.n_experts);
	*probability = s->probability;
}

/* Main's logits of the row with this noise. */
static void predict_with(struct odp_synthetic *s, double noise, uint64_t key, struct odp_view *view)
{
	const size_t n = s->o.top_k + OD_MAX_RUNNERS_UP;

	add_noise(s->row, s->o.n_experts, (float)noise, key);
	view->n = (uint16_t)(n < s->o.n_experts ? n : s->o.n_experts);
	top(s->row, s->o.n_experts, view->n, view->expert);
	softmax(s->row, s->said, s->o.n_experts);
	for (size_t i = 0; i < view->n; i++)
		view->probability[i] = s->said[view->expert[i]];
}

static void predict(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, struct odp_view *view)
{
	struct odp_synthetic *s = arg;

	row_logits(s, text, position, token, m);
	predict_with(s, s->noise, draw(s, FOR_SHADOW, (uint64_t)text << 32 | position, (uint32_t)token, m), view);
}

static void next_gate(void *arg, uint32_t text, uint32_t position, int32_t token, uint32_t m, struct odp_view *view)
{
	struct odp_synthetic *s = arg;

	row_logits(s, text, position, token, m);
	predict_with(s, s->gate_noise, draw(s, FOR_NEXT_GATE, (uint64_t)text << 32 | position, (uint32_t)token, m),
		     view);
}

static double right_at(double a, double margin)
{
	return 1 / (1 + exp(-(a + MARGIN_SLOPE * log1p(margin))));
}

static double margin_of(uint64_t x)
{
	return -MARGIN_MEAN * log(uniform(x));
}

static int32_t guess(void *arg, uint32_t text, uint32_t position, float *margin)
{
	const struct odp_synthetic *s = arg;
	const double m = margin_of(draw(s, FOR_MARGIN, text, position, 0));
	const bool right = uniform(draw(s, FOR_GUESS, text, position, 0)) < right_at(s->right, m);
	const int32_t token = main_token(arg, text, position);

	*margin = (float)m;
	return right ? token : token ^ 1;
}

/* ---- Life ---- */

/* The recall of logits with this noise, of sampled rows. */
static double recall_with(struct odp_synthetic *s, double noise)
{
	const size_t k = s->o.top_k;
	uint16_t truth[OD_MAX_TOP_K], said[OD_MAX_TOP_K];
	size_t hits = 0;

	for (uint32_t i = 0; i < SAMPLES; i++) {
		const float *popularity = s->popularity + (size_t)(i % s->o.n_moe) * s->o.n_experts;

		memcpy(s->row, popularity, s->o.n_experts * sizeof(*s->row));
		add_noise(s->row, s->o.n_experts, 1, draw(s, FOR_SAMPLE, i, 0, 0));
		top(s->row, s->o.n_experts, k, truth);
		add_noise(s->row, s->o.n_experts, (float)noise, draw(s, FOR_SAMPLE, i, 1, 0));
		top(s->row, s->o.n_experts, k, said);
		for (size_t a = 0; a < k; a++)
			for (size_t b = 0; b < k; b++)
				hits += truth[a] == said[b];
	}
	return (double)hits / (double)(SAMPLES * k);
}

static double noise_for(struct odp_synthetic *s, double recall)
{
	double low = 0, high = 64;

	for (int i = 0; i < HALVINGS; i++) {
		const double middle = (low + high) / 2;

		*(recall_with(s, middle) >= recall ? &low : &high) = middle;
	}
	return recall >= 1 ? 0 : low;
}

/* The coefficient with which as many tokens are right as is asked for. */
static void find_right(struct odp_synthetic *s)
{
	double low = -40, high = 40;

	for (int i = 0; i < HALVINGS; i++) {
		double sum = 0;

		s->right = (low + high) / 2;
		for (uint32_t j = 0; j < SAMPLES; j++)
			sum += right_at(s->right, -MARGIN_MEAN * log((j + 0.5) / SAMPLES));
		*(sum >= s->o.draft_right * SAMPLES ? &high : &low) = s->right;
	}
	if (s->o.draft_right >= 1)
		s->right = HUGE_VAL;
	if (s->o.draft_right <= 0)
		s->right = -HUGE_VAL;
}

int odp_synthetic_new(struct odp_synthetic **out, const struct odp_synthetic_opts *o, struct od_err *err)
{
	struct odp_synthetic *s;

	*out = NULL;
	if (o->n_moe == 0 || o->top_k == 0 || o->top_k > OD_MAX_TOP_K || o->top_k > o->n_experts)
		return od_fail(err, OD_ERR_ARG, "synthetic routes: %u of %u experts", o->top_k, o->n_experts);
	if (!(o->locality >= 0 && o->locality < 1) || !(o->skew >= 0))
		return od_fail(err, OD_ERR_ARG,
			       "synthetic routes: locality %g and skew %g; expected 0 to below 1, and "
			       "at least 0",
			       o->locality, o->skew);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "synthetic routes");
	s->o = *o;
	s->popularity = calloc((size_t)o->n_moe * o->n_experts, sizeof(*s->popularity));
	s->row = calloc(o->n_experts, sizeof(*s->row));
	s->said = calloc(o->n_experts, sizeof(*s->said));
	s->probability = calloc(o->n_experts, sizeof(*s->probability));
	if (s->popularity == NULL || s->row == NULL || s->said == NULL || s->probability == NULL) {
		odp_synthetic_free(s);
		return od_fail(err, OD_ERR_NOMEM, "synthetic routes");
	}
	add_noise(s->popularity, (size_t)o->n_moe * o->n_experts, (float)o->skew, draw(s, FOR_POPULARITY, 0, 0, 0));
	if (o->like != NULL) {
		s->noise = o->like->noise;
		s->gate_noise = o->like->gate_noise;
		s->right = o->like->right;
	} else {
		s->noise = noise_for(s, o->recall);
		s->gate_noise = noise_for(s, o->gate_recall);
		find_right(s);
	}
	*out = s;
	return OD_OK;
}

void odp_synthetic_free(struct odp_synthetic *s)
{
	if (s == NULL)
		return;
	for (size_t i = 0; i < MAX_TEXTS; i++) {
		free(s->text[i].tag);
		free(s->text[i].logit);
	}
	free(s->popularity);
	free(s->row);
	free(s->said);
	free(s->probability);
	free(s);
}

struct odp_routes odp_synthetic_routes(struct odp_synthetic *s)
{
	return (struct odp_routes){
		.arg = s, .token = main_token, .guess = guess, .used = used, .predict = predict, .next_gate = next_gate
	};
}
