#include "common/pack/shadow/shadow_write.h"

#include "common/base/file.h"
#include "common/compute/cpu/cpu_device.h"
#include "common/pack/checksum.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/pack_internal.h"
#include "common/pack/shadow/quant_rows.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Memory of one thread: a block of rows as published and quantised, a row as f32, the bytes for the file. */
struct bench {
	struct od_inflater *inflater;
	struct od_buf *rows;
	char *data;
	uint8_t *scales; /* the rows' scales, as in dense.bin */
	float *row;
	uint8_t *found;
};

struct run {
	const struct od_shadow_job *job;
	struct od_device *device; /* puts rows together where they can be looked at */
	struct bench *bench; /* [n_threads] */
};

/* One tensor on its way into the file. */
struct record {
	const struct run *run;
	struct bench *bench;
	struct od_disk_shadow_tensor *t;
	struct od_shadow_sections sections;
	char name[OD_NAME_BYTES];
	uint64_t at; /* bytes of the record that are done */
	XXH3_state_t *sum;
	/* The file behind the data, from tail_at on: a multiple of 64, so that what is aligned in the file is aligned
	 * here. */
	uint64_t tail_at;
	uint8_t *tail;
	float *scale; /* scales of all rows, in the tail */
};

/* A dense tensor of the shadow's table, as the pack has it. */
static const struct od_dense_tensor *dense_tensor(const struct od_pack *p, const struct od_shadow_table *table,
						  size_t index)
{
	for (size_t i = 0; i < p->manifest.n_dense; i++)
		if (p->manifest.dense[i].role == table->dense[index].role &&
		    p->manifest.dense[i].layer == table->dense[index].layer)
			return &p->manifest.dense[i];
	return NULL; /* both tables follow from one configuration */
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
		rc = od_fail(err, OD_ERR_CORRUPT,
			     "%s: tensor %s: byte at offset %" PRIu64 ": expected %02x, found %02x", job->path, r->name,
			     at + i, ((const uint8_t *)buf)[i], r->bench->found[i]);
	}
	return rc;
}

/* Names the value that the precision cannot hold, and a precision that can. */
static int refuse_row(const struct record *r, int why, uint64_t row, struct od_err *err)
{
	const char *name = od_precision_names[r->run->job->table->precision - 1];

	if (why == OD_ERR_UNSUPPORTED)
		return od_fail(err, OD_ERR_RANGE,
			       "tensor %s: row %" PRIu64 " holds a weight beyond 65504, the largest that %s "
			       "can express; int8 and nf4 can",
			       r->name, row, name);
	return od_fail(err, OD_ERR_RANGE,
		       "tensor %s: row %" PRIu64 " holds an infinity or NaN, which no quantised precision "
		       "can express, %s included; use od-shadow --precision bf16, which needs no shadow file",
		       r->name, row, name);
}

/* The bench's rows, which are the tensor's from row on. */
static int emit_rows(struct record *r, const struct od_mat_type *type, uint64_t row, uint64_t n_rows,
		     struct od_err *err)
{
	const enum od_precision precision = r->run->job->table->precision;
	struct bench *b = r->bench;
	struct od_mat rows;
	size_t bad;
	int rc;

	od_mat_bind(&rows, type, n_rows, r->t->n_in, od_ref_map(od_buf_ref(b->rows, 0)));
	rc = od_quant_rows(precision, &rows, b->data, r->scale + row * od_shadow_row_scales(precision, r->t->n_in),
			   b->row, &bad);

	if (rc != OD_OK)
		return refuse_row(r, rc, row + bad, err);
	return emit(r, b->data, n_rows * od_shadow_row_bytes(precision, r->t->n_in), err);
}

static int emit_dense(struct record *r, size_t index, struct od_err *err)
{
	const struct od_pack *p = r->run->job->pack;
	const struct od_dense_tensor *t = dense_tensor(p, r->run->job->table, index);
	const uint64_t step = od_shard_rows(r->t->n_out, r->t->n_in);
	int rc = OD_OK;

	od_dense_source_name(&p->config, t->role, t->layer, r->name);
	for (uint64_t row = 0; rc == OD_OK && row < r->t->n_out; row += step) {
		uint64_t n = step < r->t->n_out - row ? step : r->t->n_out - row;

		rc = od_dense_read_rows(p, t, row, n, od_ref_map(od_buf_ref(r->bench->rows, 0)), r->bench->scales, err);
		if (rc == OD_OK)
			rc = emit_rows(r, &t->type, row, n, err);
	}
	return rc;
}

static int emit_expert(struct record *r, size_t index, struct od_err *err)
{
	const struct od_pack *p = r->run->job->pack;
	const uint32_t mat = index % OD_N_EXPERT_MATS, which = (uint32_t)(index / OD_N_EXPERT_MATS);
	const uint32_t m = which / p->config.n_experts, expert = which % p->config.n_experts;
	const struct od_expert_entry *e = &p->expert[which];
	int rc = OD_OK;

	od_expert_source_name(&p->config, m, expert, (enum od_expert_mat)mat, r->name);
	for (uint32_t i = 0; rc == OD_OK && i < e->x.n_shards; i++) {
		const struct od_shard *s = &e->x.shard[i];

		if (s->mat != mat)
			continue;
		rc = od_inflater_rows(r->bench->inflater, m, expert, i, od_buf_ref(r->bench->rows, 0), err);
		if (rc == OD_OK)
			rc = emit_rows(r, &e->type[mat], s->row_begin, s->n_rows, err);
	}
	return rc;
}

/* The rest of the record: zeros, scales, zeros. */
static int emit_tail(struct record *r, struct od_err *err)
{
	const struct od_shadow_job *job = r->run->job;
	const struct od_shadow_sections *sections = &r->sections;
	uint64_t found;
	int rc;

	rc = emit(r, r->tail + (sections->data_bytes - r->tail_at), sections->bytes - sections->data_bytes, err);
	if (rc != OD_OK)
		return rc;
	found = XXH3_64bits_digest(r->sum);
	if (job->check)
		return od_check_xxh3(r->t->xxh3, found, err, "%s: tensor %s: checksum in the header", job->path,
				     r->name);
	r->t->xxh3 = found;
	return OD_OK;
}

static int record_init(struct record *r, struct od_err *err)
{
	const struct od_shadow_sections *sections = &r->sections;

	r->tail_at = sections->data_bytes / OD_PAD_BYTES * OD_PAD_BYTES;
	r->tail = od_alloc(sections->bytes - r->tail_at);
	r->sum = XXH3_createState();
	if (r->tail == NULL || r->sum == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to quantise");
	r->scale = (float *)(void *)(r->tail + (sections->scale_at - r->tail_at));
	XXH3_64bits_reset(r->sum);
	return OD_OK;
}

static int do_tensor(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	const struct run *run = arg;
	const struct od_shadow_table *table = run->job->table;
	struct record r = { .run = run, .bench = &run->bench[thread], .t = &table->tensor[item] };
	int rc;

	r.sections = od_shadow_sections(table->precision, r.t->n_out, r.t->n_in);
	rc = record_init(&r, err);
	if (rc == OD_OK && item < table->n_dense)
		rc = emit_dense(&r, item, err);
	else if (rc == OD_OK)
		rc = emit_expert(&r, item - table->n_dense, err);
	if (rc == OD_OK)
		rc = emit_tail(&r, err);
	*bytes = r.t->bytes;
	XXH3_freeState(r.sum);
	od_free(r.tail);
	return rc;
}

static void run_fini(struct run *run)
{
	for (unsigned i = 0; run->bench != NULL && i < run->job->n_threads; i++) {
		struct bench *b = &run->bench[i];

		od_inflater_free(b->inflater);
		od_buf_free(b->rows);
		od_free(b->scales);
		od_free(b->data);
		od_free(b->row);
		od_free(b->found);
	}
	free(run->bench);
	od_device_free(run->device);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static int run_init(struct run *run, const struct od_shadow_job *job, struct od_err *err)
{
	const struct od_shadow_table *table = job->table;
	uint64_t block = od_shard_max_memory(&job->pack->config), scales = 0, data = 0, found = 0, row = 0;
	int rc = OD_OK;

	*run = (struct run){ .job = job };
	for (size_t i = 0; i < table->n; i++) {
		const struct od_disk_shadow_tensor *t = &table->tensor[i];
		const struct od_shadow_sections sections = od_shadow_sections(table->precision, t->n_out, t->n_in);
		uint64_t n_rows = od_shard_rows(t->n_out, t->n_in);

		row = larger(row, t->n_in);
		if (i < table->n_dense) {
			const struct od_mat_type *type = &dense_tensor(job->pack, table, i)->type;

			block = larger(block, od_mat_memory_bytes(type, n_rows, t->n_in));
			scales = larger(scales, od_mat_bytes(type, t->n_in, 0, t->n_out) -
							t->n_out * od_mat_row_bytes(type, t->n_in));
		}
		data = larger(data, n_rows * od_shadow_row_bytes(table->precision, t->n_in));
		found = larger(found, larger(data, sections.bytes - sections.data_bytes));
	}
	run->bench = calloc(job->n_threads, sizeof(*run->bench));
	if (run->bench == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to quantise");
	rc = od_device_cpu_new(&run->device, OD_CPU_AUTO, 1, "od-quantise", err);
	for (unsigned i = 0; rc == OD_OK && i < job->n_threads; i++) {
		struct bench *b = &run->bench[i];

		b->scales = od_alloc(scales);
		b->data = od_alloc(data);
		b->row = od_alloc_array(row, sizeof(float));
		b->found = od_alloc(found);
		if (b->scales == NULL || b->data == NULL || b->row == NULL || b->found == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "no memory to quantise");
		else
			rc = od_buf_new(&b->rows, run->device, block, "rows", err);
		if (rc == OD_OK)
			rc = od_inflater_new(&b->inflater, job->pack, run->device, OD_FORM_PLAIN, err);
	}
	return rc;
}

int od_shadow_run(const struct od_shadow_job *job, struct od_err *err)
{
	struct run run;
	int rc = run_init(&run, job, err);

	if (rc == OD_OK) {
		const struct od_team_job team = {
			.fn = do_tensor,
			.arg = &run,
			.n_items = job->table->n,
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
