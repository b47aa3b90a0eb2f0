#include "common/pack/inflater.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/trace.h"
#include "common/pack/checksum.h"
#include "common/pack/pack_internal.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct od_inflater {
	const struct od_pack *pack;
	enum od_form form;
	/* OD_FORM_PLAIN: */
	struct od_decoder *decoder;
	uint8_t *e;	  /* exponents that were decoded */
	uint8_t *staging; /* one shard's, for od_inflater_load */
};

/* Where SM bytes begin in staging, of types that cannot have them in their own place. Coded exponents are never longer
 * than raw ones. */
static uint64_t staged_sm_at(const struct od_pack *p)
{
	return od_round_up(p->shard_exponents, OD_PAD_BYTES) + OD_PAD_BYTES;
}

uint64_t od_staging_bytes(const struct od_pack *p, enum od_form form)
{
	return form == OD_FORM_PLAIN ? od_round_up(staged_sm_at(p) + p->shard_staged_sm, OD_PAD_BYTES) : 0;
}

uint64_t od_inflater_bytes(const struct od_pack *p, enum od_form form)
{
	if (form == OD_FORM_PLANES)
		return sizeof(struct od_inflater);
	return od_staging_bytes(p, form) + od_decoder_bytes() + p->shard_exponents + sizeof(struct od_inflater);
}

static int alloc_staging(struct od_inflater *inf, struct od_err *err)
{
	const struct od_backend *be;
	int rc = od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, err); /* they all decode the same */

	if (rc != OD_OK)
		return rc;
	inf->staging = od_alloc(od_staging_bytes(inf->pack, inf->form));
	inf->e = od_alloc(inf->pack->shard_exponents);
	if (inf->staging == NULL || inf->e == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an inflater of %" PRIu64 " bytes",
			       od_inflater_bytes(inf->pack, inf->form));
	return od_decoder_new(&inf->decoder, be, err);
}

int od_inflater_new(struct od_inflater **out, const struct od_pack *p, enum od_form form, struct od_err *err)
{
	struct od_inflater *inf = calloc(1, sizeof(*inf));
	int rc = OD_OK;

	*out = NULL;
	if (inf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an inflater");
	inf->pack = p;
	inf->form = form;
	if (form == OD_FORM_PLAIN)
		rc = alloc_staging(inf, err);
	if (rc != OD_OK) {
		od_inflater_free(inf);
		return rc;
	}
	*out = inf;
	return OD_OK;
}

void od_inflater_free(struct od_inflater *inf)
{
	if (inf == NULL)
		return;
	od_decoder_free(inf->decoder);
	od_free(inf->staging);
	od_free(inf->e);
	free(inf);
}

/* Which chunk a message is about. */
struct place {
	uint32_t m, expert, shard;
	const char *chunk;
};

static int bad_chunk(const struct od_pack *p, const struct place *at, const struct od_chunk *c, struct od_err *err)
{
	return od_fail_within(err, "%s: expert (%u, %u) shard %u, %s-chunk at offset %" PRIu64, p->experts.path, at->m,
			      at->expert, at->shard, at->chunk, c->offset);
}

static int check_sum(const struct od_pack *p, const struct place *at, const struct od_chunk *c, const uint8_t *buf,
		     struct od_err *err)
{
	int rc = od_check_xxh3(XXH3_64bits(buf, c->stored_bytes), c->xxh3, err, "checksum");

	return rc == OD_OK ? OD_OK : bad_chunk(p, at, c, err);
}

/* Where a shard's weights go: the matrix in memory (mat_type.h) whose rows they are from the given one on; NULL: nowhere,
 * the shard stays as it is. */
struct target {
	uint8_t *memory;
	uint64_t n_rows, n_in, row;
};

/* A buffer as the host may touch it. */
static uint8_t *host(const struct od_expert_mem *mem, enum od_expert_buf buf)
{
	return od_ref_stage(mem->at[buf]);
}

static int check_stages(const struct od_expert_mem *mem, struct od_err *err)
{
	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		if (mem->at[i].buf != NULL && host(mem, (enum od_expert_buf)i) == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for an expert's stage of %" PRIu64 " bytes",
				       od_buf_bytes(mem->at[i].buf));
	return OD_OK;
}

static struct target rows_at(const struct od_pack *p, const struct od_expert_entry *e, const struct od_shard *s,
			     const struct od_expert_mem *mem)
{
	struct target t = { .row = s->row_begin };

	od_expert_mat_shape(&p->config, (enum od_expert_mat)s->mat, &t.n_rows, &t.n_in);
	if (mem->at[OD_BUF_PLAIN].buf != NULL)
		t.memory = host(mem, OD_BUF_PLAIN) + od_plain_offset(&p->config, e, s->mat);
	return t;
}

static uint8_t *weights_at(const struct target *t, const struct od_mat_type *type)
{
	return t->memory != NULL ? t->memory + t->row * od_mat_row_bytes(type, t->n_in) : NULL;
}

/* Where a shard is read to: its SM-chunk, when it has no buffer, to the upper half of its rows. */
static struct od_shard_bytes places(const struct od_pack *p, const struct od_expert_entry *e, const struct od_shard *s,
				    const struct od_expert_mem *mem, const struct target *to, uint8_t *staging)
{
	struct od_shard_bytes b = { .e = staging };

	if (mem->at[OD_BUF_SM].buf != NULL)
		b.sm = host(mem, OD_BUF_SM) + (s->sm.offset - e->sm_offset);
	else if (od_codec_merges_in_place(e->type[s->mat].dtype))
		b.sm = weights_at(to, &e->type[s->mat]) + s->sm.raw_bytes;
	else
		b.sm = staging + staged_sm_at(p);
	if (mem->at[OD_BUF_E].buf != NULL)
		b.e = host(mem, OD_BUF_E) + (s->e.offset - e->e_offset);
	return b;
}

/* Past the page cache go whole parts of regions, to buffers that lie in their pages as the regions do. */
static int read_file(const struct od_pack *p, bool buffers, uint8_t *to, uint64_t bytes, uint64_t offset, struct od_err *err)
{
	const struct od_pack_file *f = &p->experts;

	if (buffers && f->direct_fd >= 0)
		return od_file_pread_direct(f->direct_fd, f->fd, to, bytes, offset, f->path, err);
	return od_file_pread(f->fd, to, bytes, offset, f->path, err);
}

/* Chunks of one kind stand back to back in the file; those that do so in memory, too, are read at once. */
static int read_chunks(const struct od_pack *p, const struct place *where, uint32_t n, bool sm, bool buffers,
		       const struct od_shard_bytes *b, struct od_err *err)
{
	const struct od_shard *s = &od_pack_entry(p, where->m, where->expert)->x.shard[where->shard];
	int rc = OD_OK;

	for (uint32_t i = 0, end; rc == OD_OK && i < n; i = end) {
		const struct place at = { where->m, where->expert, where->shard + i, sm ? "SM" : "E" };
		const struct od_chunk *first = sm ? &s[i].sm : &s[i].e;
		uint8_t *to = sm ? b[i].sm : b[i].e;
		uint64_t bytes = first->stored_bytes;

		for (end = i + 1; end < n && (sm ? b[end].sm : b[end].e) == to + bytes; end++)
			bytes += sm ? s[end].sm.stored_bytes : s[end].e.stored_bytes;
		rc = read_file(p, buffers, to, bytes, first->offset, err);
		if (rc != OD_OK)
			rc = bad_chunk(p, &at, first, err);
	}
	return rc;
}

/* Of n shards from at->shard on what has not been checked yet, each to where b says; buffers: that is in buffers of SM
 * bytes and coded exponents. */
static int read_shards(const struct od_pack *p, const struct place *at, uint32_t n, bool buffers,
		       const struct od_shard_bytes *b, struct od_err *err)
{
	int rc = OD_OK;

	if (b->checked != OD_SET_STORED && !od_pack_has_expert(p, at->m, at->expert))
		return od_fail(err, OD_ERR_MISSING, "%s: expert (%u, %u) is not here", p->dir, at->m, at->expert);
	if ((b->checked & OD_SET_SM) == 0)
		rc = read_chunks(p, at, n, true, buffers, b, err);
	if (rc == OD_OK && (b->checked & OD_SET_E) == 0)
		rc = read_chunks(p, at, n, false, buffers, b, err);
	return rc;
}

int od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		   unsigned which, const struct od_expert_mem *mem, uint8_t *staging, struct od_shard_bytes *b,
		   struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);
	const uint64_t each = od_staging_bytes(p, mem->at[OD_BUF_PLAIN].buf != NULL ? OD_FORM_PLAIN : OD_FORM_PLANES);
	const struct place at = { m, expert, first, NULL };
	int rc = check_stages(mem, err);

	for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
		const struct od_shard *s = &e->x.shard[first + i];
		const struct target to = rows_at(p, e, s, mem);

		b[i] = places(p, e, s, mem, &to, staging != NULL ? staging + i * each : NULL);
		b[i].checked = OD_SET_STORED & ~which;
	}
	if (rc != OD_OK)
		return rc;
	return read_shards(p, &at, n, mem->at[OD_BUF_SM].buf != NULL && mem->at[OD_BUF_E].buf != NULL, b, err);
}

/* ---- to the device, where it maps no memory ---- */

static void push_bytes(struct od_ref buf, uint64_t at, uint64_t n)
{
	od_ref_push(od_ref_at(buf, at), (size_t)n, OD_QUEUE_LOADS);
}

/* Rows [row, row + n) of a matrix in memory (mat_type.h): weights, then divisor and scales. */
static void push_rows(struct od_ref memory, const struct od_mat_type *t, uint64_t n_rows, uint64_t n_in, uint64_t row, uint64_t n)
{
	const uint64_t each = od_mat_row_bytes(t, n_in), scales = od_mat_scale_row_bytes(t, n_in);
	struct od_weight w;

	od_weight_bind(&w, t, n_rows, n_in, memory);
	push_bytes(w.data, row * each, n * each);
	if (t->scale == 0)
		return;
	push_bytes(w.scales.at, row * scales, n * scales);
	if (w.scales.divisor.buf != NULL)
		push_bytes(w.scales.divisor, 0, od_mat_divisor_bytes(t));
}

/* A finished shard; returns when it is there. */
static int push_shard(const struct od_expert_entry *e, const struct od_shard *s, const struct od_config *cfg,
		      const struct od_expert_mem *mem, struct od_err *err)
{
	struct od_device *d = NULL;
	uint64_t n_out, n_in;

	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		if (mem->at[i].buf != NULL && od_ref_map(mem->at[i]) == NULL)
			d = od_buf_device(mem->at[i].buf);
	if (d == NULL)
		return OD_OK;
	od_expert_mat_shape(cfg, (enum od_expert_mat)s->mat, &n_out, &n_in);
	if (mem->at[OD_BUF_SM].buf != NULL)
		push_bytes(mem->at[OD_BUF_SM], s->sm.offset - e->sm_offset, s->sm.stored_bytes);
	if (mem->at[OD_BUF_E].buf != NULL)
		push_bytes(mem->at[OD_BUF_E], s->e.offset - e->e_offset, s->e.stored_bytes);
	if (mem->at[OD_BUF_PLAIN].buf != NULL)
		push_rows(od_ref_at(mem->at[OD_BUF_PLAIN], od_plain_offset(cfg, e, s->mat)), &e->type[s->mat], n_out, n_in,
			  s->row_begin, s->n_rows);
	return od_device_wait(d, OD_QUEUE_LOADS, od_device_ticket(d, OD_QUEUE_LOADS), err);
}

/* The weights of a checked shard, and what scales they have, to where they go. */
static int put_rows(struct od_inflater *inf, const struct od_coded *coded, const struct od_mat_type *type,
		    const struct od_shard *s, const uint8_t *sm, const struct target *to, struct od_err *err)
{
	const uint64_t codes = s->n_rows * od_mat_row_bytes(type, to->n_in);
	const uint8_t *e;
	int rc;

	if (type->scale == 0)
		return od_decoder_weights(inf->decoder, coded, type->dtype, sm, inf->e, weights_at(to, type), err);
	rc = od_decoder_look(inf->decoder, coded, inf->e, &e, err);
	if (rc != OD_OK)
		return rc;
	memcpy(weights_at(to, type), e, codes);
	od_mat_put_scales(type, to->n_rows, to->n_in, to->memory, to->row, s->row_begin, s->n_rows, e + codes);
	return OD_OK;
}

/* What was read is what was written; to->memory NULL: it stays as it is. */
static int finish_rows(struct od_inflater *inf, const struct place *where, const struct od_shard_bytes *b,
		       const struct target *to, struct od_err *err)
{
	const struct od_expert_entry *x = od_pack_entry(inf->pack, where->m, where->expert);
	const struct od_shard *s = &x->x.shard[where->shard];
	const struct od_coded coded = {
		.codec = (enum od_codec)s->e.codec,
		.at = b->e,
		.bytes = s->e.stored_bytes,
		.n = s->e.raw_bytes,
		.row = s->e.raw_bytes / s->n_rows,
	};
	struct place at = *where;
	int rc;

	at.chunk = "SM";
	rc = (b->checked & OD_SET_SM) != 0 ? OD_OK : check_sum(inf->pack, &at, &s->sm, b->sm, err);
	at.chunk = "E";
	if (rc == OD_OK && (b->checked & OD_SET_E) == 0)
		rc = check_sum(inf->pack, &at, &s->e, b->e, err);
	if (rc != OD_OK)
		return rc;
	rc = (b->checked & OD_SET_E) != 0 ? OD_OK : od_coded_check(&coded, err);
	if (rc == OD_OK && to->memory != NULL)
		rc = put_rows(inf, &coded, &x->type[s->mat], s, b->sm, to, err);
	return rc == OD_OK ? OD_OK : bad_chunk(inf->pack, &at, &s->e, err);
}

int od_inflater_finish(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
		       const struct od_shard_bytes *b, const struct od_expert_mem *mem, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct place at = { m, expert, shard, NULL };
	const struct target to = rows_at(inf->pack, e, &e->x.shard[shard], mem);
	int rc = finish_rows(inf, &at, b, &to, err);

	return rc == OD_OK ? push_shard(e, &e->x.shard[shard], &inf->pack->config, mem, err) : rc;
}

/* After reading ended with rc: the rest, the figures, or the reason. */
static int finish_load(struct od_inflater *inf, const struct place *at, const struct od_shard_bytes *b,
		       const struct target *to, int rc, struct od_err *why, uint64_t begin_ns, struct od_load_stats *stats,
		       struct od_err *err)
{
	const struct od_shard *s = &od_pack_entry(inf->pack, at->m, at->expert)->x.shard[at->shard];
	uint64_t mid_ns = od_now_ns();

	od_trace_end("read", begin_ns, -1, at->m, at->expert);
	if (rc == OD_OK)
		rc = finish_rows(inf, at, b, to, why);
	if (rc != OD_OK) {
		if (err != NULL)
			*err = *why;
		return rc;
	}
	od_trace_end("inflate", mid_ns, -1, at->m, at->expert);
	if (stats != NULL) {
		stats->read_bytes += (uint64_t)s->e.stored_bytes + s->sm.stored_bytes;
		stats->read_ns += mid_ns - begin_ns;
		stats->inflate_ns += od_now_ns() - mid_ns;
	}
	return OD_OK;
}

int od_inflater_rows(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, void *dst,
		     struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct place at = { m, expert, shard, NULL };
	const struct od_shard *s = &e->x.shard[shard];
	const struct od_expert_mem none = { 0 };
	struct target to = rows_at(inf->pack, e, s, &none);
	uint64_t begin_ns = od_now_ns();
	struct od_shard_bytes b;
	struct od_err why;
	int rc;

	to.memory = dst;
	to.n_rows = s->n_rows;
	to.row = 0;
	b = places(inf->pack, e, s, &none, &to, inf->staging);
	rc = read_shards(inf->pack, &at, 1, false, &b, &why);
	return finish_load(inf, &at, &b, &to, rc, &why, begin_ns, stats, err);
}

int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
		     const struct od_expert_mem *mem, struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct place at = { m, expert, shard, NULL };
	uint64_t begin_ns = od_now_ns();
	struct od_shard_bytes b;
	struct od_err why;
	const struct target to = rows_at(inf->pack, e, &e->x.shard[shard], mem);
	int rc = od_shards_read(inf->pack, m, expert, shard, 1, OD_SET_STORED, mem, inf->staging, &b, &why);

	rc = finish_load(inf, &at, &b, &to, rc, &why, begin_ns, stats, err);
	return rc == OD_OK ? push_shard(e, &e->x.shard[shard], &inf->pack->config, mem, err) : rc;
}

void od_inflaters_free(struct od_inflater **inf, unsigned n)
{
	for (unsigned i = 0; inf != NULL && i < n; i++)
		od_inflater_free(inf[i]);
	free(inf);
}

int od_inflaters_new(struct od_inflater ***out, unsigned n, const struct od_pack *p, enum od_form form,
		     struct od_err *err)
{
	struct od_inflater **inf = calloc(n, sizeof(*inf));
	int rc = inf != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for %u inflaters", n);

	*out = NULL;
	for (unsigned i = 0; rc == OD_OK && i < n; i++)
		rc = od_inflater_new(&inf[i], p, form, err);
	if (rc != OD_OK) {
		od_inflaters_free(inf, n);
		return rc;
	}
	*out = inf;
	return OD_OK;
}

/* ---- all experts at once ---- */

struct od_expert_store {
	const struct od_pack *pack;
	enum od_form form;
	struct od_buf *slots;
	struct od_expert *expert; /* [n_moe][n_experts] */
	struct od_inflater **inflater; /* while loading */
};

static int load_expert(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	struct od_expert_store *s = arg;
	const struct od_pack *p = s->pack;
	uint32_t m = (uint32_t)(item / p->config.n_experts), expert = (uint32_t)(item % p->config.n_experts);
	const struct od_expert_mem mem = od_pack_slot_mem(p, s->form, od_buf_ref(s->slots, item * od_pack_slot_bytes(p, s->form)));

	for (uint32_t shard = 0; shard < p->expert[item].x.n_shards; shard++) {
		int rc = od_inflater_load(s->inflater[thread], m, expert, shard, &mem, NULL, err);

		if (rc != OD_OK)
			return rc;
	}
	od_pack_bind(p, m, expert, &mem, &s->expert[item]);
	*bytes = p->expert[item].x.bytes;
	return OD_OK;
}

int od_experts_load_all(struct od_expert_store **out, const struct od_pack *p, struct od_device *d, enum od_form form,
			unsigned n_threads, od_progress_fn *progress, void *arg, struct od_err *err)
{
	struct od_expert_store *s = calloc(1, sizeof(*s));
	struct od_team_job job = {
		.fn = load_expert,
		.arg = s,
		.n_items = p->manifest.n_experts,
		.n_threads = n_threads,
		.progress = progress,
		.progress_arg = arg,
		.all_bytes = p->manifest.experts_bytes,
	};
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for experts");
	s->pack = p;
	s->form = form;
	s->expert = calloc(p->manifest.n_experts, sizeof(*s->expert));
	if (s->expert == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %zu experts", p->manifest.n_experts);
	else
		rc = od_buf_new(&s->slots, d, p->manifest.n_experts * od_pack_slot_bytes(p, form), "all experts", err);
	if (rc == OD_OK)
		rc = od_inflaters_new(&s->inflater, n_threads, p, form, err);
	if (rc == OD_OK)
		rc = od_team_run(&job, err);
	od_inflaters_free(s->inflater, n_threads);
	s->inflater = NULL;
	if (s->slots != NULL)
		od_buf_drop_stage(s->slots);
	if (rc != OD_OK) {
		od_experts_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_experts_free(struct od_expert_store *s)
{
	if (s == NULL)
		return;
	od_buf_free(s->slots);
	free(s->expert);
	free(s);
}

const struct od_expert *od_experts_get(const struct od_expert_store *s)
{
	return s->expert;
}

uint64_t od_experts_need_bytes(const struct od_pack *p, enum od_form form)
{
	return p->manifest.n_experts * (od_pack_slot_bytes(p, form) + sizeof(struct od_expert));
}
