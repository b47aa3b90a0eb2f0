/* Cache-aware routing (struct od_cache_prior): choices and weights against plain double arithmetic, which keeps a
 * text's experts by the time of their last use; the same bits in steps of any rows, alone and beside other texts; and
 * with lambda 0 those of the plain router. */
#include <math.h>
#include <string.h>

#include "tests/unit/device_util.h"
#include "tests/unit/tiny_model.h"

#define MAX_EXPERTS 64
#define MAX_K 8
#define N_TEXTS 3
#define LENGTH 150 /* rows of a text: more than two pages */
#define PAGES 3 /* a text has so many */
#define N_ROWS (N_TEXTS * LENGTH)
#define FAR 1e-5 /* doubles and floats agree on what is as far apart */

static struct od_device *device;

static int open_device(void **state)
{
	(void)state;
	device = device_new(OD_CPU_SCALAR, 2);
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	od_device_free(device);
	return 0;
}

struct shape {
	uint32_t n, k;
	struct od_router_spec way;
	struct od_cache_prior prior;
};

/* Row p of text t is row t * LENGTH + p. */
struct routed {
	float logits[N_ROWS * MAX_EXPERTS]; /* they become probabilities */
	uint16_t expert[N_ROWS * MAX_K];
	float weight[N_ROWS * MAX_K], margin[N_ROWS];
};

static float bias_of(uint32_t expert)
{
	return (float)tiny_draw(7, 3, expert, 1 << 16) / (float)(1 << 17);
}

/* Logits of a text drift, so that experts are used again; with few values most of them tie. */
static void draw_logits(const struct shape *s, bool tied, float *logits)
{
	for (uint32_t r = 0; r < N_ROWS; r++)
		for (uint32_t e = 0; e < s->n; e++) {
			const int limit = tied ? 2 : 1 << 18;
			const uint64_t of = (uint64_t)r * MAX_EXPERTS + e;

			logits[(size_t)r * s->n + e] =
				(float)(tiny_draw(1, 0, of, limit) + tiny_draw(2, r / 7, e, limit) / (tied ? 1 : 2)) /
				(float)(limit / 2);
		}
}

/* One step's operation over the given rows of texts. */
struct step {
	struct od_row_info info[N_ROWS];
	uint32_t row[N_ROWS], n;
};

static void add_row(struct step *s, uint32_t text, uint32_t position)
{
	s->info[s->n] = (struct od_row_info){ .table = text, .position = position };
	s->row[s->n++] = text * LENGTH + position;
}

struct routes_memory {
	struct od_buf *pages, *tables, *bias;
	struct od_stream recent;
};

/* dirt_byte: the byte that all rows consist of. */
static void open_memory(struct routes_memory *m, const struct shape *s, int dirt_byte)
{
	/* Pages of a text in any order among those of the others. */
	static const uint32_t table[N_TEXTS * PAGES] = { 4, 0, 7, 2, 8, 1, 3, 6, 5 };
	const size_t row = od_recent_bytes(s->prior.recent) + 12, bytes = sizeof(table) / 4 * (OD_KV_PAGE * row + 64);
	float bias[MAX_EXPERTS];
	void *dirt = malloc(bytes);

	assert_non_null(dirt);
	memset(dirt, dirt_byte, bytes);
	for (uint32_t e = 0; e < s->n; e++)
		bias[e] = bias_of(e);
	m->pages = buf_of(device, dirt, bytes);
	m->tables = buf_of(device, table, sizeof(table));
	m->bias = buf_of(device, bias, s->n * sizeof(*bias));
	m->recent = (struct od_stream){ .pages = od_buf_ref(m->pages, 0),
					.tables = od_buf_ref(m->tables, 0),
					.table_pages = PAGES,
					.page_bytes = OD_KV_PAGE * row + 64,
					.row_bytes = row,
					.dtype = OD_F32 };
	free(dirt);
}

static void close_memory(struct routes_memory *m)
{
	od_buf_free(m->pages);
	od_buf_free(m->tables);
	od_buf_free(m->bias);
}

static void run_step(const struct routes_memory *m, const struct shape *s, const struct step *step, const float *logits,
		     struct routed *out)
{
	const size_t n = step->n, each = s->n * sizeof(float);
	float *in = malloc(n * each), *weight = malloc(n * s->k * sizeof(*weight)), margin[N_ROWS];
	uint16_t *expert = malloc(n * s->k * sizeof(*expert));
	struct od_buf *buf[] = { NULL, buf_new(device, n * s->k * sizeof(*expert)),
				 buf_new(device, n * s->k * sizeof(*weight)), buf_new(device, n * sizeof(float)),
				 buf_of(device, step->info, n * sizeof(*step->info)) };
	struct od_op op = { .kind = OD_OP_ROUTE, .profile = OD_PROFILE_F32, .n_rows = step->n };

	assert_true(in != NULL && weight != NULL && expert != NULL);
	for (size_t i = 0; i < n; i++)
		memcpy(in + i * s->n, logits + (size_t)step->row[i] * s->n, each);
	buf[0] = buf_of(device, in, n * each);
	op.route = (struct od_op_route){ .logits = od_buf_ref(buf[0], 0),
					 .choice = od_buf_ref(buf[1], 0),
					 .weight = od_buf_ref(buf[2], 0),
					 .margin = od_buf_ref(buf[3], 0),
					 .bias = od_buf_ref(s->way.bias ? m->bias : NULL, 0),
					 .n_experts = s->n,
					 .top_k = s->k,
					 .hidden = 1,
					 .router = s->way,
					 .prior = s->prior };
	if (s->prior.recent > 0) {
		op.route.rows = od_buf_ref(buf[4], 0);
		op.route.recent = m->recent;
	}
	run_op(device, &op);
	get_at(device, in, op.route.logits, n * each);
	get_at(device, expert, op.route.choice, n * s->k * sizeof(*expert));
	get_at(device, weight, op.route.weight, n * s->k * sizeof(*weight));
	get_at(device, margin, op.route.margin, n * sizeof(*margin));
	for (size_t i = 0; i < n; i++) {
		const size_t r = step->row[i];

		memcpy(out->logits + r * s->n, in + i * s->n, each);
		memcpy(out->expert + r * s->k, expert + i * s->k, s->k * sizeof(*expert));
		memcpy(out->weight + r * s->k, weight + i * s->k, s->k * sizeof(*weight));
		out->margin[r] = margin[i];
	}
	for (size_t i = 0; i < sizeof(buf) / sizeof(buf[0]); i++)
		od_buf_free(buf[i]);
	free(in);
	free(weight);
	free(expert);
}

/* All rows of all texts, in steps that `order` makes. */
enum step_order { AT_ONCE, EACH_TEXT_ALONE, IN_TURN, RAGGED, N_ORDERS };

static void route_all(const struct shape *s, enum step_order order, const float *logits, struct routed *out)
{
	static struct routed rejected;
	static struct step step;
	struct routes_memory m;

	memset(out, 0, sizeof(*out));
	open_memory(&m, s, 0x11);
	switch (order) {
	case AT_ONCE:
	case N_ORDERS:
		step.n = 0;
		for (uint32_t t = 0; t < N_TEXTS; t++)
			for (uint32_t p = 0; p < LENGTH; p++)
				add_row(&step, t, p);
		run_step(&m, s, &step, logits, out);
		break;
	case EACH_TEXT_ALONE:
		for (uint32_t r = 0; r < N_ROWS; r++) {
			step.n = 0;
			add_row(&step, r / LENGTH, r % LENGTH);
			run_step(&m, s, &step, logits, out);
		}
		break;
	case IN_TURN: /* rows of texts alternate */
		step.n = 0;
		for (uint32_t p = 0; p < LENGTH; p++)
			for (uint32_t t = 0; t < N_TEXTS; t++)
				add_row(&step, t, p);
		run_step(&m, s, &step, logits, out);
		break;
	case RAGGED: /* chunks of different lengths, rejected rows before some of them */
		for (uint32_t p = 0, n; p < LENGTH; p += n) {
			n = 1 + (uint32_t)tiny_draw(3, 0, p, 20);
			n = n < LENGTH - p ? n : LENGTH - p;
			for (int draft = 1; draft >= 0; draft--) {
				step.n = 0;
				for (uint32_t t = 0; t < N_TEXTS; t++)
					for (uint32_t i = 0; i < n; i++) {
						add_row(&step, t, p + i);
						if (draft > 0) /* with another row's logits */
							step.row[step.n - 1] = (t * LENGTH + p + i + 5) % N_ROWS;
					}
				run_step(&m, s, &step, logits, draft > 0 ? &rejected : out);
			}
		}
		break;
	}
	close_memory(&m);
}

/* ---- Plain double arithmetic ---- */

struct doubles {
	double base[MAX_EXPERTS], score[MAX_EXPERTS], decides[MAX_EXPERTS];
	double mean; /* range */
	double used[MAX_EXPERTS]; /* when an expert was used last: a row's number, more for less weight; -1: never */
};

static void softmax(const double *x, uint32_t n, double *out)
{
	double most = x[0], sum = 0;

	for (uint32_t e = 0; e < n; e++)
		most = fmax(most, x[e]);
	for (uint32_t e = 0; e < n; e++)
		sum += exp(x[e] - most);
	for (uint32_t e = 0; e < n; e++)
		out[e] = exp(x[e] - most) / sum;
}

static uint32_t rank_of(const double *x, uint32_t n, uint32_t e)
{
	uint32_t before = 0;

	for (uint32_t i = 0; i < n; i++)
		before += x[i] > x[e] || (x[i] == x[e] && i < e);
	return before;
}

static void score_row(const struct shape *s, const float *logits, struct doubles *p)
{
	double x[MAX_EXPERTS];

	for (uint32_t e = 0; e < s->n; e++)
		x[e] = (double)logits[e];
	memcpy(p->score, x, sizeof(x));
	if (s->way.score == OD_SCORE_SOFTMAX)
		softmax(x, s->n, p->score);
	for (uint32_t e = 0; e < s->n; e++) {
		if (s->way.score == OD_SCORE_SIGMOID)
			p->score[e] = 1 / (1 + exp(-x[e]));
		p->base[e] =
			s->way.score == OD_SCORE_SOFTMAX ? x[e] : p->score[e] + (s->way.bias ? (double)bias_of(e) : 0);
	}
}

/* decides: base, as probabilities for a softmax; none outside of the best groups, of which those of kept experts are
 * some. Returns the least gap between groups. */
static double decide(const struct shape *s, struct doubles *p, const bool *kept)
{
	const uint32_t n_groups = s->way.n_groups, size = n_groups > 0 ? s->n / n_groups : 0;
	double worth[MAX_EXPERTS], gap = 1;

	if (s->way.score == OD_SCORE_SOFTMAX)
		softmax(p->decides, s->n, p->decides);
	for (uint32_t g = 0; g < n_groups; g++) {
		worth[g] = 0;
		for (uint32_t i = 0; i < size; i++) {
			if (rank_of(p->decides + g * size, size, i) < 1u + s->way.group_two)
				worth[g] += p->decides[g * size + i];
		}
		for (uint32_t i = 0; i < size; i++)
			worth[g] = kept != NULL && kept[g * size + i] ? 1e9 : worth[g];
	}
	for (uint32_t g = 0; g < n_groups; g++) {
		for (uint32_t h = 0; h < n_groups; h++)
			gap = g != h && worth[g] < 1e8 ? fmin(gap, fabs(worth[g] - worth[h])) : gap;
		for (uint32_t i = 0; i < size && rank_of(worth, n_groups, g) >= s->way.top_groups; i++)
			p->decides[g * size + i] = -1e9;
	}
	return gap;
}

/* expert [k]: the row's, first the kept ones. Returns the least difference that decided. */
static double choose(const struct shape *s, struct doubles *p, uint32_t row, uint16_t *expert)
{
	bool kept[MAX_EXPERTS] = { false };
	double most = p->base[0], least = p->base[0], gap, rest[MAX_EXPERTS];
	uint32_t n = 0;

	memcpy(p->decides, p->base, sizeof(p->base));
	gap = decide(s, p, NULL);
	memcpy(rest, p->decides, sizeof(rest));
	for (uint32_t i = 0; i < s->prior.keep; i++)
		for (uint32_t e = 0; e < s->n; e++) {
			const uint32_t at = rank_of(rest, s->n, e);

			if (at == i) {
				expert[n++] = (uint16_t)e;
				kept[e] = true;
			}
		}
	for (uint32_t e = 0; e < s->n; e++) {
		for (uint32_t i = 0; i < s->n; i++)
			gap = s->prior.keep > 0 && kept[e] && i != e ? fmin(gap, fabs(rest[e] - rest[i])) : gap;
		most = fmax(most, p->base[e]);
		least = fmin(least, p->base[e]);
	}
	p->mean = (p->mean * row + (most - least)) / (row + 1);
	for (uint32_t e = 0; e < s->n; e++) {
		const bool cached = p->used[e] >= 0 && rank_of(p->used, s->n, e) < s->prior.recent;

		p->decides[e] = p->base[e] + (cached || kept[e] ? (double)s->prior.lambda * p->mean : 0);
	}
	gap = fmin(gap, decide(s, p, kept));
	memcpy(rest, p->decides, sizeof(rest));
	for (uint32_t i = 0; i < n; i++)
		rest[expert[i]] = -2e9;
	for (uint32_t i = 0; n < s->k; i++)
		for (uint32_t e = 0; e < s->n; e++) {
			if (rank_of(rest, s->n, e) != i)
				continue;
			expert[n++] = (uint16_t)e;
			for (uint32_t j = 0; j < s->n; j++)
				gap = j != e ? fmin(gap, fabs(rest[e] - rest[j])) : gap;
			break;
		}
	return gap;
}

static void weigh(const struct shape *s, const struct doubles *p, const uint16_t *expert, double *weight)
{
	double chosen[MAX_K], sum = 0;

	for (uint32_t i = 0; i < s->k; i++)
		chosen[i] = p->score[expert[i]];
	if (s->way.score == OD_SCORE_LOGIT)
		softmax(chosen, s->k, chosen);
	for (uint32_t i = 0; i < s->k; i++)
		sum += chosen[i];
	for (uint32_t i = 0; i < s->k; i++)
		weight[i] = chosen[i] / (s->way.renormalise ? sum : 1) * (double)s->way.scale;
}

/* How many rows were far enough from a tie to say what must be chosen, and how many of their experts differ from the
 * plain router's. */
struct checked {
	uint32_t sure, moved;
};

static struct checked check_text(const struct shape *s, const float *logits, const struct routed *found, uint32_t text)
{
	struct doubles p = { .mean = 0 };
	struct checked c = { 0 };

	for (uint32_t e = 0; e < MAX_EXPERTS; e++)
		p.used[e] = -1;
	for (uint32_t row = 0; row < LENGTH; row++) {
		const size_t at = (size_t)text * LENGTH + row;
		const uint16_t *is = found->expert + at * s->k;
		uint16_t expert[MAX_K];
		double gap, weight[MAX_K], plain[MAX_EXPERTS];

		score_row(s, logits + at * s->n, &p);
		memcpy(p.decides, p.base, sizeof(p.base));
		(void)decide(s, &p, NULL);
		memcpy(plain, p.decides, sizeof(plain));
		gap = choose(s, &p, row, expert);
		if (gap > FAR) {
			c.sure++;
			assert_memory_equal(is, expert, s->k * sizeof(*expert));
		}
		weigh(s, &p, is, weight);
		for (uint32_t i = 0; i < s->k; i++) {
			assert_true(fabs(weight[i] - (double)found->weight[at * s->k + i]) < 1e-5);
			c.moved += rank_of(plain, s->n, is[i]) >= s->k;
			/* The expert of the most weight is the row's oldest; if two are equal, the better one. */
			p.used[is[i]] = row;
			for (uint32_t j = 0; j < s->k; j++)
				p.used[is[i]] +=
					(found->weight[at * s->k + j] > found->weight[at * s->k + i] ||
					 (found->weight[at * s->k + j] == found->weight[at * s->k + i] && j < i)) /
					(double)(2 * MAX_K);
		}
	}
	return c;
}

/* A renormalised softmax, the routers of DeepSeek-V3, DeepSeek-V2 and gpt-oss. */
#define SOFTMAX \
	{ \
		.renormalise = true, .scale = 1 \
	}
#define V3 \
	{ \
		.score = OD_SCORE_SIGMOID, .bias = true, .renormalise = true, .scale = 2.5f, .n_groups = 8, \
		.top_groups = 4, .group_two = true \
	}
#define V2 \
	{ \
		.scale = 16, .n_groups = 4, .top_groups = 2 \
	}
#define LOGIT \
	{ \
		.score = OD_SCORE_LOGIT, .scale = 1 \
	}

static const struct shape shapes[] = {
	{ 32, 4, SOFTMAX, { 16, 2, 0.2f } }, { 32, 4, SOFTMAX, { 16, 2, 0.05f } }, { 8, 2, SOFTMAX, { 4, 1, 0.3f } },
	{ 8, 1, SOFTMAX, { 4, 0, 0.5f } },   { 64, 8, SOFTMAX, { 5, 3, 0.2f } },   { 8, 8, SOFTMAX, { 3, 8, 1 } },
	{ 60, 4, SOFTMAX, { 60, 0, 1 } },    { 64, 8, V3, { 32, 2, 0.2f } },	   { 64, 8, V3, { 16, 8, 0.7f } },
	{ 64, 6, V2, { 32, 2, 0.3f } },	     { 32, 4, LOGIT, { 16, 2, 0.2f } },	   { 32, 4, LOGIT, { 1, 0, 0.2f } },
};

static float logits[N_ROWS * MAX_EXPERTS];
static struct routed one, other;

static void test_against_doubles(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct checked sum = { 0 };

		draw_logits(&shapes[i], false, logits);
		route_all(&shapes[i], AT_ONCE, logits, &one);
		for (uint32_t t = 0; t < N_TEXTS; t++) {
			const struct checked c = check_text(&shapes[i], logits, &one, t);

			sum.sure += c.sure;
			sum.moved += c.moved;
		}
		assert_true(sum.sure > N_ROWS * 9 / 10);
		/* something was preferred, unless all experts were or all chosen ones kept */
		if (shapes[i].prior.recent < shapes[i].n && shapes[i].prior.keep < shapes[i].k)
			assert_true(sum.moved > 0);
	}
}

static void test_any_steps(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int tied = 0; tied < 2; tied++) {
			draw_logits(&shapes[i], tied, logits);
			route_all(&shapes[i], AT_ONCE, logits, &one);
			for (int order = AT_ONCE + 1; order < N_ORDERS; order++) {
				route_all(&shapes[i], (enum step_order)order, logits, &other);
				assert_memory_equal(&one, &other, sizeof(one));
			}
		}
}

static void test_lambda_zero_is_off(void **state)
{
	static const struct od_router_spec mixer = { .score = OD_SCORE_MIXER, .band = 0.3f };

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) * 3; i++) {
		struct shape s = shapes[i / 3];

		s.prior.lambda = 0;
		s.way = i % 3 == 2 ? mixer : s.way;
		draw_logits(&s, i % 3 == 1, logits);
		route_all(&s, AT_ONCE, logits, &one);
		s.prior = (struct od_cache_prior){ 0 };
		route_all(&s, AT_ONCE, logits, &other);
		assert_memory_equal(&one, &other, sizeof(one));
	}
}

/* The band is that of the chosen expert's own score: by hand. */
static void test_mixer(void **state)
{
	static const struct shape s = {
		4, 2, { .score = OD_SCORE_MIXER, .band = 0.5f }, { .recent = 2, .keep = 1, .lambda = 0.5f }
	};
	/* Row 0 uses 0 and 1. Row 1: range 4, mean 3, so 0 and 1 are raised by 1.5, as is 3, the best. */
	static const float rows[] = { 2, 1, 0, 0, 2, 0, 3, 4 };
	static struct step step;
	struct routes_memory m;
	double both;

	(void)state;
	memset(logits, 0, sizeof(logits));
	memcpy(logits, rows, sizeof(rows));
	open_memory(&m, &s, 0x11);
	step.n = 0;
	add_row(&step, 0, 0);
	add_row(&step, 0, 1);
	run_step(&m, &s, &step, logits, &one);
	assert_int_equal(one.expert[0], 0);
	assert_int_equal(one.expert[1], 1);
	assert_int_equal(one.expert[2], 3);
	assert_int_equal(one.expert[3], 0); /* 3.5, before 2 with 3 */
	/* (4 - 3) / 4 and (4 - 2) / 4 are in the band, (4 - 0) / 4 is not. */
	both = exp(4) + exp(3) + exp(2);
	assert_true(fabs((double)one.weight[2] - exp(4) / both) < 1e-6);
	/* 0 has 2: (2 - 3) / 3 is in the band, 2 / 2 is not, and 3 was taken before. */
	assert_true(fabs((double)one.weight[3] - exp(2) / (exp(3) + exp(2))) < 1e-6);
	close_memory(&m);
}

/* Rows that a peer has sent may name experts that do not exist: they count as none. */
static void test_foreign_rows(void **state)
{
	const struct shape *s = &shapes[0];
	static struct step step;
	struct routes_memory m;

	(void)state;
	draw_logits(s, false, logits);
	open_memory(&m, s, 0x11); /* all experts of all rows are 0x1111 */
	step.n = 0;
	for (uint32_t p = 1; p < 9; p++)
		add_row(&step, 0, p);
	run_step(&m, s, &step, logits, &one);
	for (uint32_t r = 1; r < 9; r++)
		for (uint32_t i = 0; i < s->k; i++)
			assert_true(one.expert[r * s->k + i] < s->n);
	close_memory(&m);
}

/* Rows that name one expert again and again leave no others, and no row behind them is looked at. */
static void test_repeated_experts(void **state)
{
	const struct shape s = { 12, 3, { .score = OD_SCORE_SOFTMAX }, { .recent = 8, .keep = 1, .lambda = 0.3f } };
	static struct step step;
	struct routes_memory m;
	size_t at;
	uint16_t list[8];

	(void)state;
	for (uint32_t e = 0; e < s.n; e++)
		logits[s.n + e] = -(float)e;
	open_memory(&m, &s, 0);
	step.n = 0;
	add_row(&step, 0, 1);
	run_step(&m, &s, &step, logits, &one);
	at = 4 * m.recent.page_bytes + m.recent.row_bytes + offsetof(struct od_recent, expert);
	get_at(device, list, od_buf_ref(m.pages, at), sizeof(list));
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(list[i], i < 3 ? 2 - i : OD_NO_EXPERT); /* 0 to 2 are the best */
	close_memory(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_doubles),	   cmocka_unit_test(test_any_steps),
		cmocka_unit_test(test_lambda_zero_is_off), cmocka_unit_test(test_mixer),
		cmocka_unit_test(test_foreign_rows),	   cmocka_unit_test(test_repeated_experts),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
