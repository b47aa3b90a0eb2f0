#include "common/pack/shadow_write.h"

#include "common/base/file.h"
#include "common/pack/inflater.h"
#include "common/pack/pack_internal.h"
#include "common/pack/quant_int8.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NAME_BYTES 256

/* What one thread needs: a block of rows as published and quantised, a row as f32, what the file holds. */
struct bench {
	struct od_inflater *inflater;
	char *rows;
	int8_t *q;
	float *row;
	uint8_t *found;
};

struct run {
	const struct od_shadow_job *job;
	struct bench *bench; /* [n_threads] */
};

/* One tensor on its way into the file. */
struct record {
	const struct run *run;
	struct bench *bench;
	struct od_int8_tensor *t;
	char name[NAME_BYTES];
	uint64_t at; /* bytes of the record that are done */
	XXH3_state_t *sum;
};

static const struct od_dense_tensor *find_dense(const struct od_pack *p, enum od_role role, uint32_t layer)
{
	for (size_t i = 0; i < p->manifest.n_dense; i++)
		if (p->manifest.dense[i].role == role && p->manifest.dense[i].layer == layer)
			return &p->manifest.dense[i];
	return NULL;
}

/* The next len bytes of the record: written, or compared with what the file has. */
static int emit(struct record *r, const void *buf, size_t len, struct od_err *err)
{
	const struct od_shadow_job *job = r->run->job;
	uint64_t at = r->t->offset + r->at;
	int rc;

	XXH3_64bits_update(r->sum, buf, len);
	r->at += len;
	if (!job->check)
		return od_file_pwrite(job->fd, buf, len, at, job->path, err);
	rc = od_file_pread(job->fd, r->bench->found, len, at, job->path, err);
	if (rc == OD_OK && memcmp(buf, r->bench->found, len) != 0) {
		size_t i = 0;

		while (((const uint8_t *)buf)[i] == r->bench->found[i])
			i++;
		rc = od_fail(err, OD_ERR_CORRUPT, "%s: INT8 of tensor %s: byte at offset %" PRIu64 ": expected %02x, "
			     "found %02x", job->path, r->name, at + i, ((const uint8_t *)buf)[i], r->bench->found[i]);
	}
	return rc;
}

static int emit_rows(struct record *r, enum od_dtype dtype, uint64_t row, uint64_t n_rows, float *scale,
		     struct od_err *err)
{
	struct bench *b = r->bench;
	size_t bad;

	if (od_quant_int8(dtype, b->rows, n_rows, r->t->n_in, b->q, scale + row, b->row, &bad) != OD_OK)
		return od_fail(err, OD_ERR_RANGE, "tensor %s: row %" PRIu64 " holds an infinity or NaN, which INT8 "
			       "cannot express (--shadow none leaves the shadow out)", r->name, row + bad);
	return emit(r, b->q, n_rows * r->t->n_in, err);
}

static int emit_attention(struct record *r, size_t index, float *scale, struct od_err *err)
{
	const struct od_pack *p = r->run->job->pack;
	const struct od_dense_tensor *t = find_dense(p, (enum od_role)(OD_ROLE_Q + index % 4), (uint32_t)(index / 4));
	const uint64_t step = od_shard_rows(r->t->n_out, r->t->n_in), row_bytes = r->t->n_in * od_dtype_bytes(t->dtype);
	int rc = OD_OK;

	p->config.family->dense_name(r->name, sizeof(r->name), t->role, t->layer);
	for (uint64_t row = 0; rc == OD_OK && row < r->t->n_out; row += step) {
		uint64_t n = step < r->t->n_out - row ? step : r->t->n_out - row;

		rc = od_file_pread(p->dense.fd, r->bench->rows, n * row_bytes, t->offset + row * row_bytes, p->dense.path,
				   err);
		if (rc == OD_OK)
			rc = emit_rows(r, t->dtype, row, n, scale, err);
	}
	return rc;
}

static int emit_expert(struct record *r, size_t index, float *scale, struct od_err *err)
{
	const struct od_pack *p = r->run->job->pack;
	const uint32_t mat = index % OD_N_EXPERT_MATS, which = (uint32_t)(index / OD_N_EXPERT_MATS);
	const uint32_t m = which / p->config.n_experts, expert = which % p->config.n_experts;
	const struct od_expert_entry *e = &p->expert[which];
	int rc = OD_OK;

	p->config.family->expert_name(r->name, sizeof(r->name), m, expert, (enum od_expert_mat)mat);
	for (uint32_t i = 0; rc == OD_OK && i < e->x.n_shards; i++) {
		const struct od_shard *s = &e->x.shard[i];

		if (s->mat != mat)
			continue;
		rc = od_inflater_rows(r->bench->inflater, m, expert, i, r->bench->rows, NULL, err);
		if (rc == OD_OK)
			rc = emit_rows(r, e->dtype[mat], s->row_begin, s->n_rows, scale, err);
	}
	return rc;
}

/* The rest of the record: zeros, scales, zeros. */
static int emit_tail(struct record *r, const uint8_t *tail, struct od_err *err)
{
	const struct od_shadow_job *job = r->run->job;
	uint64_t found;
	int rc = emit(r, tail, r->t->bytes - r->at, err);

	if (rc != OD_OK)
		return rc;
	found = XXH3_64bits_digest(r->sum);
	if (!job->check)
		r->t->xxh3 = found;
	else if (r->t->xxh3 != found)
		return od_fail(err, OD_ERR_CORRUPT, "%s: INT8 of tensor %s: checksum in model.json: expected %016" PRIx64
			       ", found %016" PRIx64, job->path, r->name, found, r->t->xxh3);
	return OD_OK;
}

static int do_tensor(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	const struct run *run = arg;
	const struct od_config *cfg = &run->job->pack->config;
	const size_t n_attn = od_int8_expert_index(cfg, 0, 0, OD_MAT_GATE);
	struct record r = { .run = run, .bench = &run->bench[thread], .t = &run->job->table[item] };
	uint64_t data = r.t->n_out * r.t->n_in, scale_at = od_int8_scale_offset(r.t->n_out, r.t->n_in) - data;
	uint8_t *tail = od_alloc(r.t->bytes - data);
	float *scale = malloc(r.t->n_out * sizeof(*scale));
	int rc;

	r.sum = XXH3_createState();
	if (tail == NULL || scale == NULL || r.sum == NULL) {
		rc = od_fail(err, OD_ERR_NOMEM, "no memory to quantise");
		goto done;
	}
	XXH3_64bits_reset(r.sum);
	if (item < n_attn)
		rc = emit_attention(&r, item, scale, err);
	else
		rc = emit_expert(&r, item - n_attn, scale, err);
	if (rc != OD_OK)
		goto done;
	memcpy(tail + scale_at, scale, r.t->n_out * sizeof(*scale));
	rc = emit_tail(&r, tail, err);
	*bytes = r.t->bytes;
done:
	XXH3_freeState(r.sum);
	od_free(tail);
	free(scale);
	return rc;
}

static void run_fini(struct run *run)
{
	for (unsigned i = 0; run->bench != NULL && i < run->job->n_threads; i++) {
		struct bench *b = &run->bench[i];

		od_inflater_free(b->inflater);
		od_free(b->rows);
		od_free(b->q);
		od_free(b->row);
		od_free(b->found);
	}
	free(run->bench);
}

static int run_init(struct run *run, const struct od_shadow_job *job, struct od_err *err)
{
	uint64_t block = OD_SHARD_WEIGHTS, row = 0, tail = 0;
	int rc = OD_OK;

	*run = (struct run){ .job = job };
	for (size_t i = 0; i < job->n; i++) {
		const struct od_int8_tensor *t = &job->table[i];

		row = t->n_in > row ? t->n_in : row;
		tail = t->bytes - t->n_out * t->n_in > tail ? t->bytes - t->n_out * t->n_in : tail;
	}
	block = row > block ? row : block;
	run->bench = calloc(job->n_threads, sizeof(*run->bench));
	if (run->bench == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to quantise");
	for (unsigned i = 0; rc == OD_OK && i < job->n_threads; i++) {
		struct bench *b = &run->bench[i];

		b->rows = od_alloc(block * sizeof(float));
		b->q = od_alloc(block);
		b->row = od_alloc_array(row, sizeof(float));
		b->found = od_alloc(block > tail ? block : tail);
		if (b->rows == NULL || b->q == NULL || b->row == NULL || b->found == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "no memory to quantise");
		else
			rc = od_inflater_new(&b->inflater, job->pack, err);
	}
	return rc;
}

int od_shadow_int8_run(const struct od_shadow_job *job, struct od_err *err)
{
	struct run run;
	int rc = run_init(&run, job, err);

	if (rc == OD_OK) {
		const struct od_team_job team = {
			.fn = do_tensor,
			.arg = &run,
			.n_items = job->n,
			.n_threads = job->n_threads,
			.progress = job->progress,
			.progress_arg = job->progress_arg,
			.done_bytes = job->done_bytes,
			.all_bytes = job->all_bytes,
		};

		rc = od_team_run(&team, err);
	}
	run_fini(&run);
	return rc;
}
