/* Predicts by the earlier token that took the same way so far: fMoE (arXiv 2502.05370, expert maps; semantic and
 * trajectory search). A map holds all routers' probabilities of one token, layer by layer. The map of the token that
 * goes on is matched, as far as it is known, with stored ones by cosine, and the best match's later layers are
 * expected. Before layer 0 there is no way yet: then the token most like this one by its embedding is taken, of equal
 * ones the newest. Both reach AHEAD layers, the paper's prefetch distance.
 *
 * The store is a ring of the newest tokens, prompts included. The paper replaces the most redundant one; on talebook
 * that recalls as much with 1024 tokens (80.7 % against 80.8 %) and less with 256 (75.6 % against 77.4 %). Nor did the
 * mean of several matches do better than the best one alone.
 *
 * Tokens of all sequences lie in one store: a way is like another whoever goes it. A step's rows get entries when it
 * begins; those of a step that was given up are taken back, unless another step has got entries behind them by then.
 *
 * Cost per row: a pass over [store][n_experts] floats per layer, and once per step over [store][hidden], unless the
 * same token is in the store. */
#include "common/predict/trajectory_predictor.h"

#include "common/base/mem.h"
#include "common/compute/cpu/cpu.h"
#include "common/compute/formats/format.h"
#include "common/model/forward.h"
#include "common/predict/predictor_base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AHEAD 3
#define STORE_TOKENS 1024
#define STORE_BYTES ((size_t)32 << 20) /* a model with many experts gets fewer tokens */
#define NOBODY SIZE_MAX

/* A step's entries. */
struct claim {
	uint64_t number; /* entries have the number of the claim that they belong to; 0: none */
	size_t first, n; /* from the store's entry `first` on, of the last n rows of the step */
	uint32_t told; /* layers */
};

struct trajectory_predictor {
	struct od_predictor_base base;
	size_t n_moe, n_experts, hidden, capacity;
	float *map; /* [n_moe][capacity][n_experts] */
	float *length2; /* [capacity][n_moe]: of the map up to this layer, squared */
	int32_t *token; /* [capacity] */
	bool *complete; /* [capacity] */
	uint64_t *owner; /* [capacity]: number of the claim */
	size_t next; /* the oldest entry */
	uint64_t last_claim;
	struct claim claim[2]; /* for the step under way: a prompt's [1], another [0] */
	float *dot; /* [max_rows][capacity]: with the map so far */
	float *embedding; /* [capacity][hidden] */
	const struct od_backend *backend; /* for sums on the host */
	struct od_buf *buf; /* on the device: */
	/* [max_rows], [max_rows][hidden]: a step's tokens on their way to embeddings */
	struct od_ref info, x;
	struct od_buf *stored; /* [max_rows]: the tokens' rows of a table that stays in a file; else NULL */
	struct od_weight table; /* the model's, or these rows */
	struct od_row_info *rows; /* [max_rows] */
	float *row; /* [max_rows][hidden] */
};

static float *map_row(const struct trajectory_predictor *t, size_t layer, size_t entry)
{
	return t->map + (layer * t->capacity + entry) * t->n_experts;
}

static float cosine(float dot, float length2)
{
	return length2 > 0 ? dot / sqrtf(length2) : 0;
}

/* Reads the rows of the step's tokens from a table that stays in a file, and sends them to the device. */
static int read_stored(struct trajectory_predictor *t, const struct od_predict_step *s)
{
	const struct od_row_reader *reader = &t->base.o.dense->embed_reader;
	const size_t row_bytes = od_row_bytes(t->table.dtype, t->table.n_in);
	char *to = od_ref_stage(t->table.data);
	int rc = OD_OK;

	for (size_t r = 0; rc == OD_OK && r < s->n_rows; r++)
		rc = reader->read(reader->arg, (uint32_t)s->row[r].token, to + r * row_bytes, NULL);
	if (rc == OD_OK)
		od_ref_push(t->table.data, s->n_rows * row_bytes, OD_QUEUE_COMPUTE);
	return rc;
}

/* The embeddings of the step's tokens, to row. */
static int embed(struct trajectory_predictor *t, const struct od_predict_step *s)
{
	const struct od_predictor_opts *o = &t->base.o;
	const size_t n = s->n_rows;
	const bool in_file = t->stored != NULL;
	const struct od_op op = { .kind = OD_OP_EMBED,
				  .profile = o->profile,
				  .n_rows = (uint32_t)n,
				  .embed = { .table = &t->table, .rows = t->info, .x = t->x, .in_order = in_file } };
	int rc = in_file ? read_stored(t, s) : OD_OK;

	if (rc != OD_OK)
		return rc;
	for (size_t r = 0; r < n; r++)
		t->rows[r] = (struct od_row_info){ .token = s->row[r].token };
	od_device_put(o->device, OD_QUEUE_COMPUTE, t->info, t->rows, n * sizeof(*t->rows));
	od_device_run(o->device, OD_QUEUE_COMPUTE, &op);
	od_device_get(o->device, OD_QUEUE_COMPUTE, t->row, t->x, n * t->hidden * sizeof(float));
	return od_device_sync(o->device, NULL);
}

/* Drop the entries of a step that was given up, when they are the newest ones. */
static void take_back(struct trajectory_predictor *t, const struct claim *c)
{
	if (c->number != 0 && c->told < t->n_moe && (c->first + c->n) % t->capacity == t->next &&
	    t->owner[(t->next + t->capacity - 1) % t->capacity] == c->number)
		t->next = c->first;
}

/* The step's rows get the oldest entries; not whole, they are nobody's match yet. */
static void claim(struct trajectory_predictor *t, const struct od_predict_step *s)
{
	struct claim *c = &t->claim[s->prompt];
	const size_t n = s->n_rows < t->capacity ? s->n_rows : t->capacity;

	take_back(t, c);
	*c = (struct claim){ .number = ++t->last_claim, .first = t->next, .n = n };
	for (size_t i = 0; i < n; i++) {
		const size_t at = (c->first + i) % t->capacity, r = s->n_rows - n + i;

		t->complete[at] = false;
		t->owner[at] = c->number;
		t->token[at] = s->row[r].token;
		memcpy(t->embedding + at * t->hidden, t->row + r * t->hidden, t->hidden * sizeof(float));
	}
	t->next = (c->first + n) % t->capacity;
}

static void store(struct trajectory_predictor *t, const struct od_predict_step *s, uint32_t m,
		  const struct od_routed_row *rows)
{
	struct claim *c = &t->claim[s->prompt];

	c->told += c->told == m;
	for (size_t i = 0; i < c->n; i++) {
		const size_t at = (c->first + i) % t->capacity, r = s->n_rows - c->n + i;
		float *before = t->length2 + at * t->n_moe + m, *to = map_row(t, m, at);

		if (t->owner[at] != c->number)
			continue; /* a store that is small: it has gone to another step */
		memcpy(to, rows[r].probability, t->n_experts * sizeof(*to));
		*before = (m > 0 ? before[-1] : 0) + t->backend->dot(to, to, t->n_experts);
		t->complete[at] = c->told == t->n_moe;
	}
}

static size_t same_token(const struct trajectory_predictor *t, int32_t token)
{
	for (size_t back = 1; back <= t->capacity; back++) {
		size_t i = (t->next + t->capacity - back) % t->capacity;

		if (t->complete[i] && t->token[i] == token)
			return i;
	}
	return NOBODY;
}

static size_t most_alike_token(struct trajectory_predictor *t, const struct od_predict_step *s, size_t row)
{
	const float *own = t->row + row * t->hidden;
	size_t best = same_token(t, s->row[row].token);
	float of_best = 0;

	if (best != NOBODY)
		return best;
	for (size_t back = 1; back <= t->capacity; back++) {
		size_t i = (t->next + t->capacity - back) % t->capacity;
		const float *other = t->embedding + i * t->hidden;
		float likeness;

		if (!t->complete[i])
			continue;
		likeness = cosine(t->backend->dot(own, other, t->hidden), t->backend->dot(other, other, t->hidden));
		if (best == NOBODY || likeness > of_best) {
			best = i;
			of_best = likeness;
		}
	}
	return best;
}

static size_t most_alike_way(const struct trajectory_predictor *t, uint32_t m, const float *dot)
{
	size_t best = NOBODY;
	float of_best = 0;

	for (size_t back = 1; back <= t->capacity; back++) {
		size_t i = (t->next + t->capacity - back) % t->capacity;
		float likeness;

		if (!t->complete[i])
			continue;
		likeness = cosine(dot[i], t->length2[i * t->n_moe + m]);
		if (best == NOBODY || likeness > of_best) {
			best = i;
			of_best = likeness;
		}
	}
	return best;
}

/* The AHEAD layers from `from` on are expected to be those of an entry. */
static void say(struct trajectory_predictor *t, const struct od_predict_row *row, uint32_t from, size_t entry)
{
	if (entry != NOBODY)
		for (uint32_t m = from; m < from + AHEAD && m < t->n_moe; m++)
			od_predictor_say(&t->base, row, m, map_row(t, m, entry));
}

static void begin_step(struct od_predictor *p, const struct od_predict_step *s)
{
	struct trajectory_predictor *t = (struct trajectory_predictor *)p;

	/* When the device or the file fails, any prediction is as good as another: the forward pass hears of it
	 * at its next wait or read. */
	if (embed(t, s) != OD_OK)
		memset(t->row, 0, s->n_rows * t->hidden * sizeof(float));
	claim(t, s);
	if (s->prompt)
		return;
	memset(t->dot, 0, s->n_rows * t->capacity * sizeof(*t->dot));
	for (size_t r = 0; r < s->n_rows; r++)
		if (!s->row[r].quiet)
			say(t, &s->row[r], 0, most_alike_token(t, s, r));
}

static void routed(struct od_predictor *p, const struct od_predict_step *s, uint32_t m,
		   const struct od_routed_row *rows)
{
	struct trajectory_predictor *t = (struct trajectory_predictor *)p;

	for (size_t r = 0; !s->prompt && r < s->n_rows; r++) {
		float *dot = t->dot + r * t->capacity;

		if (s->row[r].quiet)
			continue;
		for (size_t i = 0; i < t->capacity; i++)
			dot[i] += t->backend->dot(rows[r].probability, map_row(t, m, i), t->n_experts);
		if (m + 1 < t->n_moe)
			say(t, &s->row[r], m + 1, most_alike_way(t, m, dot));
	}
	store(t, s, m, rows);
}

static void free_trajectory(struct od_predictor *p)
{
	struct trajectory_predictor *t = (struct trajectory_predictor *)p;

	od_free(t->map);
	od_free(t->length2);
	od_free(t->token);
	od_free(t->complete);
	od_free(t->owner);
	od_free(t->dot);
	od_free(t->embedding);
	od_buf_free(t->buf);
	od_buf_free(t->stored);
	od_free(t->rows);
	od_free(t->row);
	free(t);
}

static bool allocate(struct trajectory_predictor *t)
{
	t->map = od_alloc_array(t->capacity, t->n_moe * t->n_experts * sizeof(*t->map));
	t->length2 = od_alloc_array(t->capacity, t->n_moe * sizeof(*t->length2));
	t->token = od_alloc_array(t->capacity, sizeof(*t->token));
	t->complete = od_alloc_array(t->capacity, sizeof(*t->complete));
	t->owner = od_alloc_array(t->capacity, sizeof(*t->owner));
	t->dot = od_alloc_array(t->base.o.max_rows, t->capacity * sizeof(*t->dot));
	t->embedding = od_alloc_array(t->capacity, t->hidden * sizeof(*t->embedding));
	t->rows = od_alloc_array(t->base.o.max_rows, sizeof(*t->rows));
	t->row = od_alloc_array(t->base.o.max_rows, t->hidden * sizeof(*t->row));
	return t->map != NULL && t->length2 != NULL && t->token != NULL && t->complete != NULL && t->owner != NULL &&
	       t->dot != NULL && t->embedding != NULL && t->rows != NULL && t->row != NULL;
}

/* With its stage, so that a step allocates nothing. */
static int open_stored(struct trajectory_predictor *t, struct od_err *err)
{
	const uint64_t rows = t->base.o.max_rows;
	int rc = od_buf_new_shared(&t->stored, t->base.o.device, rows * od_row_bytes(t->table.dtype, t->table.n_in),
				   "a predictor's embeddings", err);

	if (rc != OD_OK)
		return rc;
	t->table.n_out = rows;
	t->table.data = od_buf_ref(t->stored, 0);
	return od_ref_stage(t->table.data) != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "a predictor's embeddings");
}

static int open_device(struct trajectory_predictor *t, struct od_err *err)
{
	const uint64_t rows = t->base.o.max_rows, x_at = od_round_up(rows * sizeof(struct od_row_info), 64);
	int rc = od_backend_cpu(&t->backend, OD_CPU_AUTO, OD_PROFILE_F32, err); /* they all give the same bits */

	if (rc == OD_OK)
		rc = od_buf_new(&t->buf, t->base.o.device, x_at + rows * t->hidden * sizeof(float),
				"a predictor's rows", err);
	t->info = od_buf_ref(t->buf, 0);
	t->x = od_buf_ref(t->buf, x_at);
	t->table = t->base.o.dense->embed;
	return rc == OD_OK && t->base.o.dense->embed_reader.read != NULL ? open_stored(t, err) : rc;
}

int od_trajectory_new(struct od_predictor **out, const struct od_predictor_opts *opts, struct od_err *err)
{
	struct trajectory_predictor *t = calloc(1, sizeof(*t));
	size_t fit = STORE_BYTES / ((size_t)opts->config->n_moe * opts->config->n_experts * sizeof(float));
	int rc;

	*out = NULL;
	if (t == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictor");
	t->base.o = *opts;
	t->base.p = (struct od_predictor){ .begin_step = begin_step, .routed = routed, .free = free_trajectory };
	t->n_moe = opts->config->n_moe;
	t->n_experts = opts->config->n_experts;
	t->hidden = opts->config->hidden;
	t->capacity = fit < 1 ? 1 : fit > STORE_TOKENS ? STORE_TOKENS : fit;
	rc = allocate(t) ? open_device(t, err) : od_fail(err, OD_ERR_NOMEM, "predictor");
	if (rc != OD_OK) {
		free_trajectory(&t->base.p);
		return rc;
	}
	*out = &t->base.p;
	return OD_OK;
}
