#include "tests/bench/micro/gpu_work.h"

#include "common/base/mem.h"
#include "common/compute/planes.h"
#include "common/compute/quant.h"
#include "common/compute/scratch.h"
#include "common/pack/codec.h"
#include "tests/bench/synth/synth_weights.h"

#include <stdlib.h>
#include <string.h>

const struct gpu_shapes gpu_shapes_real = {
	.bytes = 512u << 20,
	.seed = 1,
	.wide_in = 4096,
	.wide_out = 14336,
	.fine_hidden = 2048,
	.fine_mid = 768,
	.fine_top_k = 8,
	.wide_top_k = 2,
	.context = 32768,
	.heads = 32,
	.kv_heads = 8,
	.head_dim = 128,
	.shard_weights = 512u << 10,
	.large_weights = 128u << 20,
};

const struct gpu_shapes gpu_shapes_tiny = {
	.bytes = 128u << 10,
	.seed = 1,
	.wide_in = 256,
	.wide_out = 96,
	.fine_hidden = 128,
	.fine_mid = 64,
	.fine_top_k = 2,
	.wide_top_k = 1,
	.context = 320,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 32,
	.shard_weights = 8u << 10,
	.large_weights = 16u << 10,
};

/* ---- memory of a set ---- */

struct gpu_owned {
	struct gpu_owned *next;
	struct od_buf *buf; /* or */
	void *host;
};

static struct gpu_owned *own(struct gpu_set *s)
{
	struct gpu_owned *o = calloc(1, sizeof(*o));

	if (o == NULL) {
		s->rc = od_fail(s->err, OD_ERR_NOMEM, "what a benchmark owns");
		return NULL;
	}
	o->next = s->owned;
	s->owned = o;
	return o;
}

/* These two do nothing more once something has failed: s->rc. */
static struct od_ref new_buf(struct gpu_set *s, uint64_t bytes)
{
	struct gpu_owned *o = s->rc == OD_OK ? own(s) : NULL;

	if (o == NULL)
		return (struct od_ref){ 0 };
	s->rc = od_buf_new(&o->buf, s->d, bytes, "a benchmark's operands (choose a smaller --size)", s->err);
	return od_buf_ref(o->buf, 0);
}

static void *new_host(struct gpu_set *s, size_t n, size_t each)
{
	struct gpu_owned *o = s->rc == OD_OK ? own(s) : NULL;

	if (o == NULL)
		return NULL;
	o->host = od_alloc_array(n, each);
	if (o->host == NULL)
		s->rc = od_fail(s->err, OD_ERR_NOMEM, "%zu times %zu bytes of host memory; choose a smaller --size", n,
				each);
	return o->host;
}

void gpu_set_close(struct gpu_set *s)
{
	for (struct gpu_owned *o = s->owned, *next; o != NULL; o = next) {
		next = o->next;
		od_buf_free(o->buf);
		od_free(o->host);
		free(o);
	}
	s->owned = NULL;
	s->n = 0;
}

static int put(struct gpu_set *s, struct od_ref to, const void *from, size_t n)
{
	od_device_put(s->d, OD_QUEUE_COMPUTE, to, from, n);
	return od_device_sync(s->d, s->err);
}

/* n bytes so many times, one behind the other. The device repeats them: what the host would have to make and to send is
 * gigabytes. */
static int put_each(struct gpu_set *s, struct od_ref to, const void *from, size_t n, size_t times)
{
	od_device_put(s->d, OD_QUEUE_COMPUTE, to, from, n);
	for (size_t done = 1, more; done < times; done += more) {
		more = times - done < done ? times - done : done;
		od_device_run(s->d, OD_QUEUE_COMPUTE,
			      &(struct od_op){ .kind = OD_OP_COPY,
					       .n_rows = 1,
					       .profile = OD_PROFILE_F32,
					       .copy = { .from = to, .to = od_ref_at(to, done * n), .n = more * n } });
	}
	return od_device_sync(s->d, s->err);
}

static uint64_t draw(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 32;
}

/* A buffer of n random floats; all of them from least to most. */
static struct od_ref random_floats(struct gpu_set *s, size_t n, float least, float most)
{
	const struct od_ref to = new_buf(s, n * sizeof(float));
	float *x = new_host(s, n, sizeof(*x));
	uint64_t seed = s->shapes->seed;

	for (size_t i = 0; s->rc == OD_OK && i < n; i++)
		x[i] = least + (most - least) * (float)draw(&seed) * 0x1p-32f;
	if (s->rc == OD_OK)
		s->rc = put(s, to, x, n * sizeof(*x));
	return to;
}

/* n random bytes in each of so many copies. */
static struct od_ref random_bytes(struct gpu_set *s, size_t n, size_t copies)
{
	const struct od_ref to = new_buf(s, (uint64_t)n * copies);
	uint32_t *x = new_host(s, n / sizeof(*x) + 1, sizeof(*x));
	uint64_t seed = s->shapes->seed;

	for (size_t i = 0; s->rc == OD_OK && i <= n / sizeof(*x); i++)
		x[i] = (uint32_t)draw(&seed);
	if (s->rc == OD_OK)
		s->rc = put_each(s, to, x, n, copies);
	return to;
}

/* ---- a matrix of weights, in host memory ---- */

struct gpu_work_sample {
	size_t n_out, n_in, n; /* n: weights */
	uint16_t *plain;
	uint8_t *sm, *e, *coded;
	size_t chunk_rows, n_chunks, coded_bytes;
	uint64_t *chunk_at;
};

static void encode(struct gpu_work_sample *m)
{
	m->coded_bytes = 0;
	for (size_t c = 0; c < m->n_chunks; c++) {
		const size_t row = c * m->chunk_rows, left = m->n_out - row;

		m->chunk_at[c] = m->coded_bytes;
		m->coded_bytes +=
			od_planes_encode(m->e + row * m->n_in, (left < m->chunk_rows ? left : m->chunk_rows) * m->n_in,
					 m->n_in, m->coded + m->coded_bytes);
	}
	m->coded_bytes = od_round_up(m->coded_bytes, OD_PAD_BYTES);
}

/* In all codings; chunks of planes have up to chunk_weights. */
static void make_sample(struct gpu_set *s, struct gpu_work_sample *m, size_t n_out, size_t n_in, size_t chunk_weights)
{
	const struct synth_tensor t = { .name = "gpu", .rows = n_out, .cols = n_in, .std = 0.02f };
	struct synth_row *rows = NULL;

	*m = (struct gpu_work_sample){ .n_out = n_out, .n_in = n_in, .n = n_out * n_in };
	m->chunk_rows = chunk_weights / n_in > 0 ? chunk_weights / n_in : 1;
	m->chunk_rows = m->chunk_rows < n_out ? m->chunk_rows : n_out;
	m->n_chunks = (n_out + m->chunk_rows - 1) / m->chunk_rows;
	m->plain = new_host(s, m->n, sizeof(*m->plain));
	m->sm = new_host(s, m->n, 1);
	m->e = new_host(s, m->n, 1);
	m->chunk_at = new_host(s, m->n_chunks, sizeof(*m->chunk_at));
	m->coded = new_host(s, m->n_chunks, od_planes_bound(m->chunk_rows * n_in, n_in) + OD_PAD_BYTES);
	if (s->rc == OD_OK)
		s->rc = synth_row_new(&rows, n_in, s->err);
	if (s->rc != OD_OK)
		return;
	synth_row_tensor(rows, s->shapes->seed, OD_BF16, &t);
	for (size_t r = 0; r < n_out; r++)
		synth_row_fill(rows, r, 0, n_in, m->plain + r * n_in);
	synth_row_free(rows);
	od_codec_split(OD_BF16, m->plain, m->n, m->sm, m->e);
	encode(m);
}

/* Places for as many matrices as s->shapes->bytes are, at least one. */
static size_t copies_for(const struct gpu_set *s, uint64_t each)
{
	return s->shapes->bytes > each ? (size_t)(s->shapes->bytes / each) : 1;
}

/* ---- works ---- */

static struct gpu_work *add_work(struct gpu_set *s, const char *key, const char *goal, size_t n_steps)
{
	struct gpu_work *w = &s->work[s->n++];

	*w = (struct gpu_work){ .key = key, .goal = goal, .queue = OD_QUEUE_COMPUTE, .n_steps = n_steps };
	w->step = new_host(s, n_steps, sizeof(*w->step));
	return w;
}

static void expect(struct gpu_work *w, struct od_ref result, size_t bytes, const void *value)
{
	w->result = result;
	w->result_bytes = bytes;
	w->expect = value;
}

static void open_copy(struct gpu_set *s)
{
	const uint64_t half = s->shapes->bytes / 2;
	const size_t piece = 1u << 20;
	const struct od_ref from = random_bytes(s, piece < half ? piece : half, piece < half ? half / piece : 1),
			    to = new_buf(s, half);
	struct gpu_work *w = add_work(s, "copy", NULL, 1);
	const uint64_t n = from.buf != NULL ? od_buf_bytes(from.buf) : 0;

	if (s->rc != OD_OK)
		return;
	w->step[0].op = (struct od_op){ .kind = OD_OP_COPY, .n_rows = 1, .copy = { .from = from, .to = to, .n = n } };
	w->moved_bytes = 2 * n;
	expect(w, to, n < piece ? n : piece, NULL);
}

/* Weights from SM bytes and exponents, or planes of them, with operations of some rows. */
static void add_recovery(struct gpu_set *s, const char *key, const char *goal, const struct gpu_work_sample *m,
			 bool planes)
{
	const size_t e_bytes = planes ? m->coded_bytes : m->n, copies = copies_for(s, 3 * m->n + e_bytes);
	const struct od_ref sm = new_buf(s, copies * m->n), e = new_buf(s, copies * e_bytes),
			    to = new_buf(s, copies * 2 * m->n);
	struct gpu_work *w = add_work(s, key, goal, copies * m->n_chunks);

	if (s->rc == OD_OK)
		s->rc = put_each(s, sm, m->sm, m->n, copies);
	if (s->rc == OD_OK)
		s->rc = put_each(s, e, planes ? m->coded : m->e, e_bytes, copies);
	for (size_t i = 0; s->rc == OD_OK && i < w->n_steps; i++) {
		const size_t which = i / m->n_chunks, c = i % m->n_chunks, row = c * m->chunk_rows,
			     left = m->n_out - row;
		const uint64_t weight = which * m->n + row * m->n_in;

		w->step[i].op = (struct od_op){ .kind = OD_OP_MERGE,
						.n_rows = (uint32_t)(left < m->chunk_rows ? left : m->chunk_rows),
						.merge = { .sm = od_ref_at(sm, weight),
							   .e = od_ref_at(e, planes ? which * e_bytes + m->chunk_at[c] :
										      weight),
							   .to = od_ref_at(to, 2 * weight),
							   .n = (uint32_t)m->n_in,
							   .planes = planes } };
	}
	w->moved_bytes = copies * (3 * m->n + e_bytes);
	w->bf16_bytes = copies * 2 * m->n;
	expect(w, od_ref_at(to, (copies - 1) * 2 * m->n), 2 * m->n, m->plain);
}

static void open_recovery(struct gpu_set *s)
{
	const struct gpu_shapes *o = s->shapes;
	struct gpu_work_sample large, shards;

	make_sample(s, &large, o->large_weights / o->wide_in, o->wide_in, o->large_weights);
	make_sample(s, &shards, o->large_weights / o->wide_in, o->wide_in, o->shard_weights);
	if (s->rc != OD_OK)
		return;
	add_recovery(s, "merge", "0.92 of copy", &large, false);
	add_recovery(s, "merge_shards", NULL, &shards, false);
	add_recovery(s, "merge_planes", "1500 GB/s of BF16", &large, true);
	add_recovery(s, "merge_planes_shards", NULL, &shards, true);
}

/* ---- products ---- */

/* Operands that products share. */
struct product {
	struct od_ref x, y;
	const struct gpu_work_sample *m;
	uint32_t n_rows;
};

static struct gpu_work *add_product(struct gpu_set *s, const struct product *p, const char *key, const char *goal,
				    struct od_weight *w, size_t copies)
{
	struct gpu_work *work = add_work(s, key, goal, copies);

	for (size_t i = 0; s->rc == OD_OK && i < copies; i++)
		work->step[i].op = (struct od_op){ .kind = OD_OP_LINEAR,
						   .n_rows = p->n_rows,
						   .linear = { .w = { &w[i] }, .x = p->x, .y = { p->y } } };
	work->bf16_bytes = copies * 2 * p->m->n * p->n_rows;
	expect(work, p->y, p->m->n_out * sizeof(float), NULL);
	return work;
}

static struct od_weight weight_of(const struct gpu_work_sample *m, enum od_dtype dtype, struct od_ref data)
{
	return (struct od_weight){ .dtype = dtype, .n_out = m->n_out, .n_in = m->n_in, .data = data };
}

/* *copies copies of the matrix. */
static struct od_weight *bf16_weights(struct gpu_set *s, const struct gpu_work_sample *m, size_t *copies)
{
	struct od_weight *w;
	struct od_ref data;

	*copies = copies_for(s, 2 * m->n);
	data = new_buf(s, *copies * 2 * m->n);
	w = new_host(s, *copies, sizeof(*w));
	if (s->rc == OD_OK)
		s->rc = put_each(s, data, m->plain, 2 * m->n, *copies);
	for (size_t i = 0; s->rc == OD_OK && i < *copies; i++)
		w[i] = weight_of(m, OD_BF16, od_ref_at(data, i * 2 * m->n));
	return w;
}

static void add_bf16(struct gpu_set *s, const struct product *p, const char *key)
{
	size_t copies;
	struct od_weight *w = bf16_weights(s, p->m, &copies);

	add_product(s, p, key, "0.90 of copy", w, copies)->moved_bytes = copies * 2 * p->m->n;
}

static void add_planes(struct gpu_set *s, const struct product *p, const char *key)
{
	const struct gpu_work_sample *m = p->m;
	const size_t copies = copies_for(s, m->n + m->coded_bytes);
	const struct od_ref sm = new_buf(s, copies * m->n), coded = new_buf(s, copies * m->coded_bytes);
	struct od_weight *w = new_host(s, copies, sizeof(*w));
	struct gpu_work *work;

	if (s->rc == OD_OK)
		s->rc = put_each(s, sm, m->sm, m->n, copies);
	if (s->rc == OD_OK)
		s->rc = put_each(s, coded, m->coded, m->coded_bytes, copies);
	for (size_t i = 0; s->rc == OD_OK && i < copies; i++) {
		w[i] = weight_of(m, OD_BF16, od_ref_at(sm, i * m->n));
		w[i].coded = od_ref_at(coded, i * m->coded_bytes);
		w[i].chunk_at = m->chunk_at;
		w[i].chunk_rows = m->chunk_rows;
	}
	work = add_product(s, p, key, "1.3 of BF16", w, copies);
	work->moved_bytes = copies * (m->n + m->coded_bytes);
	work->as_first = true;
}

/* INT8 with a scale for each row; NF4 with one for each 64 weights. */
static void add_quantised(struct gpu_set *s, const struct product *p, enum od_dtype dtype)
{
	const struct gpu_work_sample *m = p->m;
	const bool nf4 = dtype == OD_NF4;
	const size_t bytes = m->n_out * od_row_bytes(dtype, m->n_in), copies = copies_for(s, bytes);
	const size_t scales = m->n_out * (nf4 ? od_quant_groups(m->n_in) : 1);
	const struct od_ref data = random_bytes(s, bytes, copies), scale = random_floats(s, scales, 1e-4f, 4e-4f);
	struct od_weight *w = new_host(s, copies, sizeof(*w));

	for (size_t i = 0; s->rc == OD_OK && i < copies; i++) {
		w[i] = weight_of(m, dtype, od_ref_at(data, i * bytes));
		w[i].scale = scale;
	}
	add_product(s, p, nf4 ? "linear_nf4" : "linear_int8", nf4 ? "0.60 of copy" : "0.75 of copy", w, copies)
		->moved_bytes = copies * (bytes + scales * sizeof(float));
}

static void open_wide(struct gpu_set *s, bool down)
{
	const struct gpu_shapes *o = s->shapes;
	struct gpu_work_sample *m = new_host(s, 1, sizeof(*m));
	struct product p = { .m = m, .n_rows = 1 };

	if (s->rc == OD_OK)
		make_sample(s, m, down ? o->wide_in : o->wide_out, down ? o->wide_out : o->wide_in, o->shard_weights);
	if (s->rc != OD_OK)
		return;
	p.x = random_floats(s, m->n_in, -1, 1);
	p.y = new_buf(s, m->n_out * sizeof(float));
	add_bf16(s, &p, down ? "linear_down_bf16" : "linear_bf16");
	add_planes(s, &p, down ? "linear_down_planes" : "linear_planes");
	if (down)
		return;
	add_quantised(s, &p, OD_INT8);
	add_quantised(s, &p, OD_NF4);
}

/* Opens works of one row and of many: the first has the same bits. */
static void open_rows(struct gpu_set *s)
{
	static const struct {
		const char *key;
		uint32_t n;
	} rows[] = { { "rows_1", 1 }, { "rows_16", 16 }, { "rows_64", 64 }, { "rows_512", 512 } };
	const size_t last = sizeof(rows) / sizeof(rows[0]) - 1;
	const struct gpu_shapes *o = s->shapes;
	struct gpu_work_sample *m = new_host(s, 1, sizeof(*m));
	struct product p = { .m = m };
	struct od_weight *w;
	size_t copies;

	if (s->rc == OD_OK)
		make_sample(s, m, o->wide_out, o->wide_in, o->shard_weights);
	if (s->rc != OD_OK)
		return;
	p.x = random_floats(s, rows[last].n * m->n_in, -1, 1);
	p.y = new_buf(s, rows[last].n * m->n_out * sizeof(float));
	w = bf16_weights(s, m, &copies);
	for (size_t i = 0; i <= last; i++) {
		struct gpu_work *work;

		p.n_rows = rows[i].n;
		work = add_product(s, &p, rows[i].key, NULL, w, copies);
		work->moved_bytes = copies * (2 * m->n + rows[i].n * (m->n_in + m->n_out) * sizeof(float));
		work->as_first = i > 0;
	}
}

/* ---- experts ---- */

struct gpu_work_layer {
	uint32_t hidden, mid, top_k, n_experts;
	struct gpu_work_sample up, down; /* gate is as up */
	struct od_ref x, y, choice, scratch;
};

/* The matrices of all experts in one coding. */
static void fill_experts(struct gpu_set *s, const struct gpu_work_layer *l, struct od_expert *e, bool planes)
{
	for (int mat = 0; s->rc == OD_OK && mat < OD_N_EXPERT_MATS; mat++) {
		const struct gpu_work_sample *m = mat == OD_MAT_DOWN ? &l->down : &l->up;
		const uint64_t bytes = planes ? m->n : 2 * m->n;
		const struct od_ref data = new_buf(s, l->n_experts * bytes);
		const struct od_ref coded =
			planes ? new_buf(s, l->n_experts * (uint64_t)m->coded_bytes) : (struct od_ref){ 0 };

		if (s->rc == OD_OK)
			s->rc = put_each(s, data, planes ? (const void *)m->sm : m->plain, bytes, l->n_experts);
		if (s->rc == OD_OK && planes)
			s->rc = put_each(s, coded, m->coded, m->coded_bytes, l->n_experts);
		for (size_t i = 0; s->rc == OD_OK && i < l->n_experts; i++) {
			struct od_weight *w = &e[i].mat[mat];

			*w = weight_of(m, OD_BF16, od_ref_at(data, i * bytes));
			if (planes) {
				w->coded = od_ref_at(coded, i * m->coded_bytes);
				w->chunk_at = m->chunk_at;
				w->chunk_rows = m->chunk_rows;
			}
		}
	}
}

static uint64_t expert_bytes(const struct gpu_work_layer *l, bool planes)
{
	return planes ? 2 * (l->up.n + l->up.coded_bytes) + l->down.n + l->down.coded_bytes :
			2 * (2 * l->up.n + l->down.n);
}

/* A row after the other, each with other experts. */
static void add_experts(struct gpu_set *s, const struct gpu_work_layer *l, const char *key, const char *goal,
			bool planes)
{
	struct od_expert *e = new_host(s, l->n_experts, sizeof(*e));
	struct gpu_work *w = add_work(s, key, goal, l->n_experts / l->top_k);

	if (s->rc == OD_OK)
		fill_experts(s, l, e, planes);
	for (size_t i = 0; s->rc == OD_OK && i < w->n_steps; i++)
		w->step[i].op =
			(struct od_op){ .kind = OD_OP_EXPERTS,
					.n_rows = 1,
					.experts = { .expert = e,
						     .x = l->x,
						     .choice = od_ref_at(l->choice, i * l->top_k * sizeof(uint16_t)),
						     .y = l->y,
						     .scratch = l->scratch,
						     .n_experts = l->n_experts,
						     .top_k = l->top_k,
						     .hidden = l->hidden,
						     .act = { .kind = OD_ACT_SILU } } };
	w->moved_bytes = l->n_experts * expert_bytes(l, planes);
	w->bf16_bytes = l->n_experts * expert_bytes(l, false);
	w->as_first = planes;
	expect(w, l->y, (size_t)l->top_k * l->hidden * sizeof(float), NULL);
}

/* Step i: the experts i, i + steps, ... */
static void put_choices(struct gpu_set *s, struct gpu_work_layer *l)
{
	const uint32_t steps = l->n_experts / l->top_k;
	uint16_t *choice = new_host(s, l->n_experts, sizeof(*choice));

	l->choice = new_buf(s, l->n_experts * sizeof(*choice));
	for (uint32_t i = 0; s->rc == OD_OK && i < l->n_experts; i++)
		choice[i] = (uint16_t)(i / l->top_k + i % l->top_k * steps);
	if (s->rc == OD_OK)
		s->rc = put(s, l->choice, choice, l->n_experts * sizeof(*choice));
}

static void open_experts(struct gpu_set *s, bool fine)
{
	const struct gpu_shapes *o = s->shapes;
	struct gpu_work_layer l = { .hidden = fine ? o->fine_hidden : o->wide_in,
				    .mid = fine ? o->fine_mid : o->wide_out,
				    .top_k = fine ? o->fine_top_k : o->wide_top_k };
	const size_t sets = copies_for(s, 6ull * l.hidden * l.mid * l.top_k);

	l.n_experts = (uint32_t)(sets * l.top_k < UINT16_MAX ? sets : UINT16_MAX / l.top_k) * l.top_k;
	make_sample(s, &l.up, l.mid, l.hidden, o->shard_weights);
	make_sample(s, &l.down, l.hidden, l.mid, o->shard_weights);
	l.x = random_floats(s, l.hidden, -1, 1);
	l.y = new_buf(s, (uint64_t)l.top_k * l.hidden * sizeof(float));
	l.scratch = new_buf(s, od_experts_scratch_bytes(l.hidden, l.mid, l.n_experts, l.top_k, 1));
	put_choices(s, &l);
	if (s->rc != OD_OK)
		return;
	add_experts(s, &l, fine ? "experts_fine_bf16" : "experts_wide_bf16", fine ? "0.70 of copy" : "0.90 of copy",
		    false);
	add_experts(s, &l, fine ? "experts_fine_planes" : "experts_wide_planes", "1.3 of BF16", true);
}

/* ---- attention ---- */

/* A stream of BF16 for n_texts texts, each in pages of its own. */
static struct od_stream new_stream(struct gpu_set *s, struct od_ref tables, size_t n_texts)
{
	const struct gpu_shapes *o = s->shapes;
	struct od_stream k = { .tables = tables,
			       .table_pages = (o->context + OD_KV_PAGE - 1) / OD_KV_PAGE,
			       .dtype = OD_BF16,
			       .row_bytes = (uint64_t)o->kv_heads * o->head_dim * sizeof(uint16_t) };
	struct gpu_work_sample page;

	k.page_bytes = OD_KV_PAGE * k.row_bytes;
	make_sample(s, &page, OD_KV_PAGE, k.row_bytes / sizeof(uint16_t), OD_KV_PAGE);
	k.pages = new_buf(s, n_texts * k.table_pages * k.page_bytes);
	if (s->rc == OD_OK)
		s->rc = put_each(s, k.pages, page.plain, k.page_bytes, n_texts * k.table_pages);
	return k;
}

static struct od_ref new_tables(struct gpu_set *s, uint32_t n)
{
	const struct od_ref to = new_buf(s, n * sizeof(uint32_t));
	uint32_t *page = new_host(s, n, sizeof(*page));

	for (uint32_t i = 0; s->rc == OD_OK && i < n; i++)
		page[i] = n - 1 - i;
	if (s->rc == OD_OK)
		s->rc = put(s, to, page, n * sizeof(*page));
	return to;
}

static void open_attention(struct gpu_set *s)
{
	const struct gpu_shapes *o = s->shapes;
	const uint64_t q_n = (uint64_t)o->heads * o->head_dim,
		       text_bytes = 4ull * o->kv_heads * o->head_dim * o->context;
	const size_t n = copies_for(s, text_bytes);
	const struct od_ref tables = new_tables(s, (uint32_t)n * ((o->context + OD_KV_PAGE - 1) / OD_KV_PAGE));
	const struct od_ref q = random_floats(s, q_n, -1, 1), out = new_buf(s, q_n * sizeof(float));
	const struct od_ref rows = new_buf(s, n * sizeof(struct od_row_info));
	const struct od_stream keys = new_stream(s, tables, n), values = new_stream(s, tables, n);
	struct od_row_info *row = new_host(s, n, sizeof(*row));
	struct gpu_work *w = add_work(s, "attention", "0.80 of copy", n);

	for (uint32_t i = 0; s->rc == OD_OK && i < n; i++) {
		row[i] = (struct od_row_info){ .position = o->context - 1, .table = i };
		w->step[i].op = (struct od_op){ .kind = OD_OP_ATTEND, .n_rows = 1 };
		w->step[i].op.attend = (struct od_op_attend){ .rows = od_ref_at(rows, i * sizeof(*row)),
							      .q = q,
							      .out = out,
							      .keys = keys,
							      .values = values,
							      .n_heads = o->heads,
							      .n_kv_heads = o->kv_heads,
							      .k_dim = o->head_dim,
							      .v_dim = o->head_dim,
							      .scale = 0.088388348f,
							      .max_position = o->context - 1 };
	}
	if (s->rc == OD_OK)
		s->rc = put(s, rows, row, n * sizeof(*row));
	w->moved_bytes = n * text_bytes;
	expect(w, out, q_n * sizeof(float), NULL);
}

/* ---- loads ---- */

#define LOAD_SLOTS 4u /* slots that decoded weights go to in turn */

static void add_raw_loads(struct gpu_set *s, const struct gpu_work_sample *m)
{
	const size_t copies = copies_for(s, 2 * m->n);
	const struct od_ref to = new_buf(s, copies * 2 * m->n);
	struct gpu_work *w = add_work(s, "load_raw", NULL, copies);
	char *stage = s->rc == OD_OK ? od_ref_stage(to) : NULL;

	if (s->rc == OD_OK && stage == NULL)
		s->rc = od_fail(s->err, OD_ERR_NOMEM, "no stage; choose a smaller --size");
	for (size_t i = 0; s->rc == OD_OK && i < copies; i++) {
		memcpy(stage + i * 2 * m->n, m->plain, 2 * m->n);
		w->step[i] = (struct gpu_step){ .push = od_ref_at(to, i * 2 * m->n), .push_bytes = 2 * m->n };
	}
	w->queue = OD_QUEUE_LOADS;
	w->moved_bytes = w->bf16_bytes = copies * 2 * m->n;
	expect(w, od_ref_at(to, (copies - 1) * 2 * m->n), 2 * m->n, m->plain);
}

/* SM bytes and planes are pushed together, then decoded shard by shard. */
static void add_coded_loads(struct gpu_set *s, const struct gpu_work_sample *m)
{
	const size_t bytes = m->n + m->coded_bytes, copies = copies_for(s, bytes), steps = 1 + m->n_chunks;
	const struct od_ref from = new_buf(s, copies * bytes), to = new_buf(s, LOAD_SLOTS * 2 * m->n);
	struct gpu_work *w = add_work(s, "load_planes", "1.4 of raw", copies * steps);
	char *stage = s->rc == OD_OK ? od_ref_stage(from) : NULL;

	if (s->rc == OD_OK && stage == NULL)
		s->rc = od_fail(s->err, OD_ERR_NOMEM, "no stage; choose a smaller --size");
	for (size_t i = 0; s->rc == OD_OK && i < copies; i++) {
		const struct od_ref at = od_ref_at(from, i * bytes), slot = od_ref_at(to, i % LOAD_SLOTS * 2 * m->n);
		struct gpu_step *step = w->step + i * steps;

		memcpy(stage + i * bytes, m->sm, m->n);
		memcpy(stage + i * bytes + m->n, m->coded, m->coded_bytes);
		*step++ = (struct gpu_step){ .push = at, .push_bytes = bytes };
		for (size_t c = 0; c < m->n_chunks; c++, step++) {
			const size_t row = c * m->chunk_rows, left = m->n_out - row;

			step->op = (struct od_op){ .kind = OD_OP_MERGE,
						   .n_rows = (uint32_t)(left < m->chunk_rows ? left : m->chunk_rows),
						   .merge = { .sm = od_ref_at(at, row * m->n_in),
							      .e = od_ref_at(at, m->n + m->chunk_at[c]),
							      .e_bytes = (c + 1 < m->n_chunks ? m->chunk_at[c + 1] :
												m->coded_bytes) -
									 m->chunk_at[c],
							      .to = od_ref_at(slot, 2 * row * m->n_in),
							      .n = (uint32_t)m->n_in,
							      .planes = true } };
		}
	}
	w->queue = OD_QUEUE_LOADS;
	w->moved_bytes = copies * bytes;
	w->bf16_bytes = copies * 2 * m->n;
	expect(w, od_ref_at(to, (copies - 1) % LOAD_SLOTS * 2 * m->n), 2 * m->n, m->plain);
}

static void open_loads(struct gpu_set *s)
{
	const struct gpu_shapes *o = s->shapes;
	struct gpu_work_sample m;

	make_sample(s, &m, o->fine_mid, o->fine_hidden, o->shard_weights);
	if (s->rc != OD_OK)
		return;
	add_raw_loads(s, &m);
	add_coded_loads(s, &m);
}

/* ---- sets ---- */

int gpu_set_open(struct gpu_set *s, enum gpu_set_kind kind, struct od_device *d, const struct gpu_shapes *shapes,
		 struct od_err *err)
{
	*s = (struct gpu_set){ .d = d, .shapes = shapes, .err = err };
	switch (kind) {
	case GPU_SET_COPY: open_copy(s); break;
	case GPU_SET_RECOVERY: open_recovery(s); break;
	case GPU_SET_WIDE: open_wide(s, false); break;
	case GPU_SET_WIDE_DOWN: open_wide(s, true); break;
	case GPU_SET_ROWS: open_rows(s); break;
	case GPU_SET_WIDE_EXPERTS: open_experts(s, false); break;
	case GPU_SET_FINE_EXPERTS: open_experts(s, true); break;
	case GPU_SET_ATTENTION: open_attention(s); break;
	case GPU_SET_LOADS: open_loads(s); break;
	case GPU_N_SETS: break;
	}
	for (size_t i = 0; s->rc == OD_OK && i < s->n; i++)
		for (size_t k = 0; k < s->work[i].n_steps; k++)
			s->work[i].step[k].op.profile = OD_PROFILE_F32;
	return s->rc;
}
