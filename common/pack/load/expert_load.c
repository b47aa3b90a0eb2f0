#include "common/pack/load/expert_load.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/trace.h"
#include "common/compute/cards.h"
#include "common/compute/cpu/cpu.h"
#include "common/pack/checksum.h"
#include "common/pack/expert_sums.h"
#include "common/pack/load/device_check.h"
#include "common/pack/pack_internal.h"
#include "common/pack/team.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct od_inflater {
	const struct od_pack *pack;
	struct od_device *device;
	enum od_form form;
	struct od_buf *buf;
	struct od_ref staging; /* in it: one shard's, for od_inflater_load; nowhere: it needs none */
	/* OD_FORM_PLAIN: */
	struct od_decoder *decoder;
	struct od_ref e; /* in buf: exponents that were decoded */
	/* where the device maps nothing: what the host puts together; NULL: the pack has no such types */
	uint8_t *rows;
	bool lent; /* e or rows: queued work has not been waited for that reads them */
	/* Work of a slice that is put off while the next shard continues it: */
	struct {
		struct od_ref from, to;
		uint64_t n; /* 0: none */
	} copy[2]; /* E-chunks, SM-chunks */
	struct od_op merge; /* it comes after them; n_rows 0: none */
	uint64_t errors; /* queued work that reads e or rows has not been waited for */
};

/* Room for the place of a chunk in its page, so that it can be read past the page cache. */
static uint64_t page_room(const struct od_pack *p)
{
	return od_pack_as_bytes(p) ? OD_PAGE_BYTES : 0;
}

/* Where SM bytes begin in staging, when they have no buffer of their own. Coded exponents are never longer than raw
 * ones. */
static uint64_t staged_sm_at(const struct od_pack *p)
{
	return od_round_up(p->shard_exponents + page_room(p), OD_PAD_BYTES) + OD_PAD_BYTES;
}

uint64_t od_staging_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form)
{
	const uint64_t sm = od_device_shares(d) ? p->shard_apart_sm : p->shard_sm;

	if (form != OD_FORM_PLAIN && od_device_shares(d))
		return 0;
	return od_round_up(staged_sm_at(p) + sm, od_pack_as_bytes(p) ? OD_PAGE_BYTES : OD_PAD_BYTES);
}

static uint64_t buf_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form)
{
	return od_staging_bytes(p, d, form) + (form == OD_FORM_PLAIN ? p->shard_exponents : 0);
}

static uint64_t rows_bytes(const struct od_pack *p, const struct od_device *d)
{
	return od_device_shares(d) ? 0 : p->shard_host_rows;
}

uint64_t od_inflater_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form)
{
	if (form == OD_FORM_PLANES)
		return buf_bytes(p, d, form) + sizeof(struct od_inflater);
	return od_staged_bytes(d, buf_bytes(p, d, form)) + rows_bytes(p, d) + od_decoder_bytes() +
	       sizeof(struct od_inflater);
}

uint64_t od_inflater_card_bytes(const struct od_pack *p, const struct od_device *d, enum od_form form)
{
	return form == OD_FORM_PLANES || od_device_shares(d) ? 0 : od_buf_memory(d, buf_bytes(p, d, form));
}

/* OD_FORM_PLANES */
static int alloc_on_host(struct od_inflater *inf, struct od_err *err)
{
	const uint64_t bytes = buf_bytes(inf->pack, inf->device, inf->form);
	int rc = bytes > 0 ? od_buf_new_on_host(&inf->buf, inf->device, bytes, "an inflater", err) : OD_OK;

	inf->staging = od_buf_ref(inf->buf, 0);
	return rc;
}

/* OD_FORM_PLAIN */
static int alloc_staging(struct od_inflater *inf, struct od_err *err)
{
	const uint64_t rows = rows_bytes(inf->pack, inf->device);
	const struct od_backend *be;
	int rc = od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, err); /* they all decode the same */

	if (rc == OD_OK)
		rc = od_buf_new_shared(&inf->buf, inf->device, buf_bytes(inf->pack, inf->device, inf->form),
				       "an inflater", err);
	if (rc != OD_OK)
		return rc;
	inf->staging = od_buf_ref(inf->buf, 0);
	inf->e = od_buf_ref(inf->buf, od_staging_bytes(inf->pack, inf->device, inf->form));
	inf->rows = rows > 0 ? od_host_new(inf->device, rows) : NULL;
	if (od_ref_stage(inf->staging) == NULL || (rows > 0 && inf->rows == NULL))
		return od_fail(err, OD_ERR_NOMEM, "no memory for an inflater of %" PRIu64 " bytes",
			       od_inflater_bytes(inf->pack, inf->device, inf->form));
	return od_decoder_new(&inf->decoder, be, err);
}

int od_inflater_new(struct od_inflater **out, const struct od_pack *p, struct od_device *d, enum od_form form,
		    struct od_err *err)
{
	struct od_inflater *inf = calloc(1, sizeof(*inf));
	int rc;

	*out = NULL;
	if (inf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an inflater");
	inf->pack = p;
	inf->device = d;
	inf->form = form;
	rc = form == OD_FORM_PLAIN ? alloc_staging(inf, err) : alloc_on_host(inf, err);
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
	od_buf_free(inf->buf);
	if (inf->rows != NULL)
		od_host_free(inf->device, inf->rows, rows_bytes(inf->pack, inf->device));
	free(inf);
}

/* The chunk that a message is about. */
struct expert_chunk {
	uint32_t m, expert, shard;
	const char *chunk;
};

static int bad_chunk(const struct od_pack *p, const struct expert_chunk *at, const struct od_chunk *c,
		     struct od_err *err)
{
	const struct od_data_file *f = od_data_file(&p->experts, c->offset);
	const uint8_t mat = od_pack_expert(p, at->m, at->expert)->shard[at->shard].mat;

	if (od_pack_is_gguf(p))
		return od_fail_within(err, "%s: tensor %s, expert %u, at offset %" PRIu64, f->path,
				      od_expert_sums_tensor(p, at->m, (enum od_expert_mat)mat), at->expert,
				      c->offset - f->begin);
	return od_fail_within(err, "%s: expert (%u, %u) shard %u, %s-chunk at offset %" PRIu64, f->path, at->m,
			      at->expert, at->shard, at->chunk, c->offset);
}

static int check_sum(const struct od_pack *p, const struct expert_chunk *at, const struct od_chunk *c,
		     const uint8_t *buf, struct od_err *err)
{
	int rc = od_pack_check_chunk(p, at->m, at->expert, at->shard, c, buf, err);

	return rc == OD_OK ? OD_OK : bad_chunk(p, at, c, err);
}

/* Where a shard's weights go: the matrix in memory (mat_type.h) whose rows they are from the given one on; nowhere: the
 * shard stays as it is. And where it itself goes, if that has buffers. */
struct expert_target {
	struct od_ref memory;
	uint64_t n_rows, n_in, row;
	struct od_ref sm, e;
};

static struct expert_target rows_at(const struct od_pack *p, const struct od_expert_entry *e, const struct od_shard *s,
				    const struct od_expert_mem *mem)
{
	struct expert_target t = { .memory = mem->at[OD_BUF_PLAIN], .row = s->row_begin };

	od_expert_mat_shape(&p->config, (enum od_expert_mat)s->mat, &t.n_rows, &t.n_in);
	if (t.memory.buf != NULL)
		t.memory = od_ref_at(t.memory, od_plain_offset(&p->config, e, s->mat));
	if (mem->at[OD_BUF_SM].buf != NULL)
		t.sm = od_ref_at(mem->at[OD_BUF_SM], s->sm.offset - e->sm_offset);
	if (mem->at[OD_BUF_E].buf != NULL)
		t.e = od_ref_at(mem->at[OD_BUF_E], s->e.offset - e->e_offset);
	return t;
}

static struct od_ref weights_at(const struct expert_target *t, const struct od_mat_type *type)
{
	return od_ref_at(t->memory, t->row * od_mat_row_bytes(type, t->n_in));
}

/* True: slices are read to staging, which the device does not map, and go on from there. Not if chunks have buffers
 * beside the weights. */
static bool is_staged(const struct od_expert_mem *mem, struct od_ref staging)
{
	return staging.buf != NULL && !od_device_shares(od_buf_device(staging.buf)) &&
	       (mem->at[OD_BUF_PLAIN].buf == NULL || mem->at[OD_BUF_SM].buf == NULL);
}

/* True: chunks are read to buffers that lie in their pages as the regions do. */
static bool to_buffers(const struct od_expert_mem *mem, struct od_ref staging)
{
	return mem->at[OD_BUF_SM].buf != NULL && mem->at[OD_BUF_E].buf != NULL && !is_staged(mem, staging);
}

/* True: the chunk is rows of weights as they are in memory. */
static bool is_plain(const struct od_expert_entry *e, const struct od_shard *s)
{
	return od_codec_sm_bytes(od_entry_coding(e, s->mat)) == 0 && s->e.codec == OD_CODEC_RAW &&
	       e->type[s->mat].scale == 0;
}

/* True: the chunk is read past the page cache, in whole pages, to staging. */
static bool in_pages(const struct od_pack *p, const struct od_shard *s)
{
	return od_pack_as_bytes(p) && od_data_is_direct(&p->experts, s->e.offset);
}

/* Where a shard is read to: its SM-chunk, when it has no buffer, to the upper half of its rows if the host can. */
static struct od_shard_bytes destination(const struct od_pack *p, const struct od_expert_entry *e,
					 const struct od_shard *s, const struct expert_target *to,
					 struct od_ref staging)
{
	struct od_shard_bytes b = { .e = staging };

	if (to->sm.buf != NULL)
		b.sm = to->sm;
	else if (od_codec_merges_in_place(od_entry_coding(e, s->mat)) && od_ref_map(to->memory) != NULL)
		b.sm = od_ref_at(weights_at(to, &e->type[s->mat]), s->sm.raw_bytes);
	else
		b.sm = od_ref_at(staging, staged_sm_at(p));
	if (to->e.buf != NULL)
		b.e = to->e;
	else if (in_pages(p, s))
		b.e = od_ref_at(staging, s->e.offset % OD_PAGE_BYTES);
	else if (is_plain(e, s) && od_ref_map(to->memory) != NULL)
		b.e = weights_at(to, &e->type[s->mat]);
	return b;
}

uint64_t od_slice_layout(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
			 struct od_ref at, struct od_shard_bytes *b)
{
	const struct od_shard *s = &od_pack_entry(p, m, expert)->x.shard[first];
	uint64_t end = 0, sm = 0;

	for (uint32_t i = 0; i < n; i++) {
		/* Others must lie in their pages as in the file's, to be read past the page cache. */
		if (od_pack_as_bytes(p) && (i == 0 || s[i].e.offset != s[i - 1].e.offset + s[i - 1].e.stored_bytes))
			end = od_round_up(end, OD_PAGE_BYTES) + s[i].e.offset % OD_PAGE_BYTES;
		b[i] = (struct od_shard_bytes){ .e = od_ref_at(at, end) };
		end += s[i].e.stored_bytes;
	}
	end = od_round_up(end + OD_PAD_BYTES, OD_PAD_BYTES);
	for (uint32_t i = 0; i < n; i++) {
		b[i].sm = od_ref_at(at, end + sm);
		sm += s[i].sm.stored_bytes;
	}
	return od_round_up(end + sm + (sm > 0 ? OD_PAD_BYTES : 0), od_pack_as_bytes(p) ? OD_PAGE_BYTES : OD_PAD_BYTES);
}

/* True: the chunk `next` stands `bytes` behind the first one, in the file and in memory. */
static bool follows(const struct od_chunk *first, const struct od_shard_bytes *to, const struct od_chunk *next,
		    const struct od_shard_bytes *next_to, bool sm, uint64_t bytes)
{
	return next->offset == first->offset + bytes &&
	       (sm ? next_to->sm.at == to->sm.at + bytes : next_to->e.at == to->e.at + bytes);
}

/* Chunks of one kind that stand back to back are read at once. */
static int read_chunks(const struct od_pack *p, const struct expert_chunk *where, uint32_t n, bool sm, bool buffers,
		       const struct od_shard_bytes *b, struct od_err *err)
{
	const struct od_shard *s = &od_pack_entry(p, where->m, where->expert)->x.shard[where->shard];
	int rc = OD_OK;

	for (uint32_t i = 0, end; rc == OD_OK && i < n; i = end) {
		const struct expert_chunk at = { where->m, where->expert, where->shard + i, sm ? "SM" : "E" };
		const struct od_chunk *first = sm ? &s[i].sm : &s[i].e;
		const struct od_ref to = sm ? b[i].sm : b[i].e;
		uint8_t *host = od_ref_stage(to);
		uint64_t bytes = first->stored_bytes;

		for (end = i + 1; end < n && follows(first, &b[i], sm ? &s[end].sm : &s[end].e, &b[end], sm, bytes);
		     end++)
			bytes += sm ? s[end].sm.stored_bytes : s[end].e.stored_bytes;
		if (host == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for the stage of a buffer of %" PRIu64 " bytes",
				       od_buf_bytes(to.buf));
		/* Past the page cache go whole chunks of regions, to buffers, and those that lie as in their pages. */
		rc = od_data_read(&p->experts, buffers || in_pages(p, &s[i]), host, bytes, first->offset, err);
		if (rc != OD_OK)
			rc = bad_chunk(p, &at, first, err);
	}
	return rc;
}

/* Reads n shards from at->shard on to the destinations in b; buffers: these are in buffers of SM bytes and coded
 * exponents. */
static int read_shards(const struct od_pack *p, const struct expert_chunk *at, uint32_t n, bool buffers,
		       const struct od_shard_bytes *b, struct od_err *err)
{
	int rc;

	if (!od_pack_has_expert(p, at->m, at->expert))
		return od_fail(err, OD_ERR_MISSING, "%s: expert (%u, %u) is not in this folder", p->dir, at->m,
			       at->expert);
	rc = read_chunks(p, at, n, true, buffers, b, err);
	return rc == OD_OK ? read_chunks(p, at, n, false, buffers, b, err) : rc;
}

int od_shards_read(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		   const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);
	const enum od_form form = mem->at[OD_BUF_PLAIN].buf != NULL ? OD_FORM_PLAIN : OD_FORM_PLANES;
	const uint64_t each = staging.buf != NULL ? od_staging_bytes(p, od_buf_device(staging.buf), form) : 0;
	const struct expert_chunk at = { m, expert, first, NULL };

	if (is_staged(mem, staging))
		(void)od_slice_layout(p, m, expert, first, n, staging, b);
	for (uint32_t i = 0; !is_staged(mem, staging) && i < n; i++) {
		const struct od_shard *s = &e->x.shard[first + i];
		const struct expert_target to = rows_at(p, e, s, mem);

		b[i] = destination(p, e, s, &to, od_ref_at(staging, i * each));
	}
	return read_shards(p, &at, n, to_buffers(mem, staging), b, err);
}

/* ---- putting together ---- */

static void begin_finish(struct od_inflater *inf)
{
	inf->errors = od_device_load_errors(inf->device);
	inf->copy[0].n = inf->copy[1].n = 0;
	inf->merge.n_rows = 0;
}

static int wait_loads(struct od_inflater *inf, struct od_err *err)
{
	int rc = od_device_wait(inf->device, OD_QUEUE_LOADS, od_device_ticket(inf->device, OD_QUEUE_LOADS), err);

	inf->lent = false;
	/* Another thread's wait reported an error, which may have been of this one's work. */
	if (rc == OD_OK && od_device_load_errors(inf->device) != inf->errors)
		rc = od_fail(err, OD_ERR_IO, "%s: its load queue failed during the load", od_device_name(inf->device));
	return rc;
}

/* Before e and rows are written again. */
static int take_back(struct od_inflater *inf, struct od_err *err)
{
	return inf->lent ? wait_loads(inf, err) : OD_OK;
}

static void push(struct od_ref r, uint64_t n)
{
	od_ref_push(r, (size_t)n, OD_QUEUE_LOADS);
}

/* A shard that was found good. */
struct good_shard {
	const struct od_shard *s;
	const struct od_mat_type *type;
	enum od_dtype coding; /* od_entry_coding */
	const struct od_shard_bytes *b;
	const struct od_shard_bytes *place; /* where the device merges it */
	struct od_coded coded;
};

static bool continues(struct od_ref at, uint64_t n, struct od_ref next)
{
	return next.buf == at.buf && next.at == at.at + n;
}

static void flush_copy(struct od_inflater *inf, bool sm)
{
	const struct od_ref from = inf->copy[sm].from, to = inf->copy[sm].to;
	const uint64_t n = inf->copy[sm].n;

	inf->copy[sm].n = 0;
	if (n > 0 && from.buf == to.buf)
		push(from, n); /* there already, or from its stage */
	else if (n > 0)
		od_device_put(inf->device, OD_QUEUE_LOADS, to, od_ref_stage(from), (size_t)n);
}

/* Queues what was put off: copies, then the merge that reads what they bring. */
static void flush_later(struct od_inflater *inf)
{
	flush_copy(inf, false);
	flush_copy(inf, true);
	if (inf->merge.n_rows > 0)
		od_device_run(inf->device, OD_QUEUE_LOADS, &inf->merge);
	inf->merge.n_rows = 0;
}

/* sm: SM bytes, not exponents. */
static void send_bytes(struct od_inflater *inf, bool sm, struct od_ref from, struct od_ref to, uint64_t n)
{
	const uint64_t before = inf->copy[sm].n;

	if (n == 0)
		return;
	if (before > 0 && continues(inf->copy[sm].from, before, from) && continues(inf->copy[sm].to, before, to)) {
		inf->copy[sm].n += n;
		return;
	}
	flush_copy(inf, sm);
	inf->copy[sm].from = from;
	inf->copy[sm].to = to;
	inf->copy[sm].n = n;
}

static void send_shard(struct od_inflater *inf, const struct good_shard *g, struct od_ref sm, struct od_ref e)
{
	send_bytes(inf, true, g->b->sm, sm, g->s->sm.stored_bytes);
	send_bytes(inf, false, g->b->e, e, g->s->e.stored_bytes);
}

/* Makes b, a shard's merge, a part of a, the shards before it, if its rows and bytes follow theirs. */
static bool join_merges(struct od_op *a, const struct od_op *b)
{
	struct od_op_merge *x = &a->merge;
	const struct od_op_merge *y = &b->merge;
	const uint64_t n = (uint64_t)x->n * a->n_rows;
	const uint32_t rows = x->chunk_rows > 0 ? x->chunk_rows : a->n_rows;

	if (a->n_rows == 0 || x->planes != y->planes || x->n != y->n || !continues(x->to, 2 * n, y->to) ||
	    !continues(x->sm, n, y->sm) || !continues(x->e, x->e_bytes, y->e))
		return false;
	if (x->planes) {
		if (a->n_rows % rows != 0 || b->n_rows > rows || a->n_rows / rows == OD_MERGE_CHUNKS)
			return false;
		x->chunk_rows = rows;
		x->chunk_at[a->n_rows / rows] = (uint32_t)x->e_bytes;
	}
	x->e_bytes += y->e_bytes;
	a->n_rows += b->n_rows;
	return true;
}

/* BF16, by the device: planes and raw exponents as they are stored, the others decoded. */
static int merge_rows(struct od_inflater *inf, const struct good_shard *g, const struct expert_target *to,
		      struct od_err *err)
{
	struct od_op op = { .kind = OD_OP_MERGE,
			    .profile = OD_PROFILE_F32,
			    .n_rows = g->s->n_rows,
			    .merge = { .sm = g->place->sm,
				       .e = g->place->e,
				       .e_bytes = g->s->e.stored_bytes,
				       .to = weights_at(to, g->type),
				       .n = (uint32_t)to->n_in,
				       .planes = g->coded.codec == OD_CODEC_PLANES } };
	int rc;

	if (g->coded.codec == OD_CODEC_PLANES || g->coded.codec == OD_CODEC_RAW) {
		if (!join_merges(&inf->merge, &op)) {
			flush_later(inf);
			inf->merge = op;
		}
		send_shard(inf, g, g->place->sm, g->place->e);
	} else {
		flush_later(inf);
		rc = take_back(inf, err);
		if (rc == OD_OK)
			rc = od_decoder_exponents(inf->decoder, &g->coded, od_ref_stage(inf->e), err);
		if (rc != OD_OK)
			return rc;
		op.merge.e = inf->e;
		op.merge.e_bytes = g->coded.n;
		inf->lent = true;
		push(inf->e, g->coded.n);
		send_bytes(inf, true, g->b->sm, g->place->sm, g->s->sm.stored_bytes);
		inf->merge = op;
	}
	return OD_OK;
}

/* Weights, and what scales they have, to rows of a matrix that the host can write at memory. */
static int put_rows(struct od_inflater *inf, const struct good_shard *g, const struct expert_target *to,
		    uint8_t *memory, struct od_err *err)
{
	const uint64_t each = od_mat_row_bytes(g->type, to->n_in), codes = g->s->n_rows * each;
	uint8_t *weights = memory + to->row * each, *room = od_ref_stage(inf->e);
	const uint8_t *e;
	int rc;

	if (od_ref_stage(g->b->e) == weights)
		return OD_OK; /* it was read to its place */
	if (g->type->scale == 0)
		return od_decoder_weights(inf->decoder, &g->coded, g->coding, od_ref_stage(g->b->sm), room, weights,
					  err);
	rc = od_decoder_look(inf->decoder, &g->coded, room, &e, err);
	if (rc != OD_OK)
		return rc;
	memcpy(weights, e, codes);
	od_mat_put_scales(g->type, to->n_rows, to->n_in, memory, to->row, g->s->row_begin, g->s->n_rows, e + codes);
	return OD_OK;
}

bool od_expert_is_raw(const struct od_pack *p, uint32_t m, uint32_t expert)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);

	for (uint32_t i = 0; i < e->x.n_shards; i++) {
		const struct od_shard *s = &e->x.shard[i];

		if (od_codec_sm_bytes(od_entry_coding(e, s->mat)) != 0 || s->e.codec != OD_CODEC_RAW)
			return false;
	}
	return true;
}

void od_shards_put_raw(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		       const struct od_expert_mem *mem, const struct od_shard_bytes *b)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);

	for (uint32_t i = 0; i < n; i++) {
		const struct od_shard *s = &e->x.shard[first + i];
		const struct od_mat_type *type = &e->type[s->mat];
		const struct expert_target to = rows_at(p, e, s, mem);
		const uint64_t each = od_mat_row_bytes(type, to.n_in);
		const uint8_t *rows = od_ref_stage(b[i].e);
		uint8_t *memory = od_ref_stage(to.memory);

		memcpy(memory + to.row * each, rows, s->n_rows * each);
		od_mat_put_scales(type, to.n_rows, to.n_in, memory, to.row, s->row_begin, s->n_rows,
				  rows + s->n_rows * each);
	}
}

void od_shards_at(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		  const struct od_expert_mem *mem, struct od_shard_bytes *b)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);

	for (uint32_t i = 0; i < n; i++) {
		const struct expert_target to = rows_at(p, e, &e->x.shard[first + i], mem);

		b[i] = (struct od_shard_bytes){ .sm = to.sm, .e = to.e, .plain = to.memory, .checked = true };
	}
}

/* Rows [row, row + n) of a matrix that the host has, and what scales they have, to rows of the device's. */
static void send_plain(struct od_inflater *inf, const struct od_mat_type *type, const struct od_mat *from, uint64_t row,
		       const struct expert_target *to, uint64_t n)
{
	const uint64_t each = od_mat_row_bytes(type, to->n_in), scales = od_mat_scale_row_bytes(type, to->n_in);
	struct od_device *d = inf->device;
	struct od_weight w;

	od_weight_bind(&w, type, to->n_rows, to->n_in, to->memory);
	od_device_put(d, OD_QUEUE_LOADS, weights_at(to, type), (const char *)from->data + row * each, n * each);
	if (scales > 0)
		od_device_put(d, OD_QUEUE_LOADS, od_ref_at(w.scales.at, to->row * scales),
			      (const char *)from->scales.at + row * scales, n * scales);
	if (w.scales.divisor.buf != NULL && to->row == 0) /* as od_mat_put_scales */
		od_device_put(d, OD_QUEUE_LOADS, w.scales.divisor, from->scales.divisor, od_mat_divisor_bytes(type));
}

/* inf->rows, a matrix of their number, to the device. */
static void send_rows(struct od_inflater *inf, const struct good_shard *g, const struct expert_target *to)
{
	struct od_mat made;

	od_mat_bind(&made, g->type, g->s->n_rows, to->n_in, inf->rows);
	inf->lent = true;
	send_plain(inf, g->type, &made, 0, to, g->s->n_rows);
}

/* Types that the device does not put together. */
static int host_rows(struct od_inflater *inf, const struct good_shard *g, const struct expert_target *to,
		     struct od_err *err)
{
	const struct expert_target apart = { .n_rows = g->s->n_rows, .n_in = to->n_in };
	uint8_t *memory = od_ref_map(to->memory);
	int rc = take_back(inf, err);

	if (rc != OD_OK)
		return rc;
	if (memory != NULL)
		return put_rows(inf, g, to, memory, err);
	rc = put_rows(inf, g, &apart, inf->rows, err);
	if (rc == OD_OK)
		send_rows(inf, g, to);
	return rc;
}

static int queue_shard(struct od_inflater *inf, const struct good_shard *g, const struct expert_target *to,
		       struct od_err *err)
{
	if (to->memory.buf != NULL)
		return g->coding == OD_BF16 ? merge_rows(inf, g, to, err) : host_rows(inf, g, to, err);
	send_shard(inf, g, to->sm, to->e);
	return OD_OK;
}

static struct od_coded coded_of(const struct od_shard *s, const struct od_shard_bytes *b)
{
	return (struct od_coded){ .codec = (enum od_codec)s->e.codec,
				  .at = od_ref_stage(b->e),
				  .bytes = s->e.stored_bytes,
				  .n = s->e.raw_bytes,
				  .row = s->e.raw_bytes / s->n_rows };
}

/* Checks that the bytes read are those written. */
static int check_shard(const struct od_pack *p, const struct expert_chunk *where, const struct od_shard_bytes *b,
		       struct od_err *err)
{
	const struct od_shard *s = &od_pack_expert(p, where->m, where->expert)->shard[where->shard];
	const struct od_coded coded = coded_of(s, b);
	struct expert_chunk at = *where;
	int rc;

	at.chunk = "SM";
	rc = check_sum(p, &at, &s->sm, od_ref_stage(b->sm), err);
	at.chunk = "E";
	if (rc == OD_OK)
		rc = check_sum(p, &at, &s->e, coded.at, err);
	if (rc != OD_OK)
		return rc;
	rc = od_coded_check(&coded, err);
	return rc == OD_OK ? OD_OK : bad_chunk(p, &at, &s->e, err);
}

int od_shards_check(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		    struct od_shard_bytes *b, struct od_err *err)
{
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
		const struct expert_chunk at = { m, expert, first + i, NULL };

		rc = check_shard(p, &at, &b[i], err);
		b[i].checked = rc == OD_OK;
	}
	return rc;
}

/* From memory on the host that has the expert already. */
static void copy_plain(struct od_inflater *inf, const struct expert_chunk *where, const struct od_shard_bytes *b,
		       const struct expert_target *to)
{
	const struct od_expert_entry *x = od_pack_entry(inf->pack, where->m, where->expert);
	const struct od_shard *s = &x->x.shard[where->shard];
	const struct od_mat_type *type = &x->type[s->mat];
	struct od_mat whole;

	od_mat_bind(&whole, type, to->n_rows, to->n_in, od_ref_stage(b->plain));
	send_plain(inf, type, &whole, s->row_begin, to, s->n_rows);
}

/* Checks a shard if it has not been, then queues the work that puts it together. */
static int finish_shard(struct od_inflater *inf, const struct expert_chunk *where, const struct od_shard_bytes *b,
			const struct od_shard_bytes *place, const struct expert_target *to, struct od_err *err)
{
	const struct od_expert_entry *x = od_pack_entry(inf->pack, where->m, where->expert);
	const struct od_shard *s = &x->x.shard[where->shard];
	const struct good_shard g = {
		.s = s,
		.type = &x->type[s->mat],
		.coding = od_entry_coding(x, s->mat),
		.b = b,
		.place = place,
		.coded = coded_of(s, b),
	};
	const struct expert_chunk at = { where->m, where->expert, where->shard, "E" };
	int rc = b->checked ? OD_OK : check_shard(inf->pack, where, b, err);

	if (rc != OD_OK)
		return rc;
	rc = queue_shard(inf, &g, to, err);
	if (od_device_shares(inf->device)) /* while its bytes are in the CPU's caches */
		flush_later(inf);
	return rc == OD_OK ? OD_OK : bad_chunk(inf->pack, &at, &s->e, err);
}

/* After a failure too: what has been queued reads and writes memory that others will use. */
static int end_finish(struct od_inflater *inf, int rc, struct od_err *err)
{
	int done;

	if (rc == OD_OK)
		flush_later(inf);
	done = wait_loads(inf, rc == OD_OK ? err : NULL);
	return rc == OD_OK ? done : rc;
}

int od_inflater_finish(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		       const struct od_expert_mem *mem, struct od_ref staging, const struct od_shard_bytes *b,
		       struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	struct od_shard_bytes staged[OD_SLICE_SHARDS];
	const bool is_apart = is_staged(mem, staging);
	int rc = OD_OK;

	assert(n <= OD_SLICE_SHARDS);
	if (is_apart)
		(void)od_slice_layout(inf->pack, m, expert, first, n, staging, staged);
	begin_finish(inf);
	for (uint32_t i = 0; rc == OD_OK && i < n; i++) {
		const struct expert_chunk at = { m, expert, first + i, NULL };
		const struct expert_target to = rows_at(inf->pack, e, &e->x.shard[first + i], mem);

		if (b[i].plain.buf != NULL)
			copy_plain(inf, &at, &b[i], &to);
		else
			rc = finish_shard(inf, &at, &b[i], is_apart ? &staged[i] : &b[i], &to, err);
	}
	return end_finish(inf, rc, err);
}

/* ---- reading and finishing ---- */

/* mem: the buffers of what is read, if it has any. */
static int load_shard(struct od_inflater *inf, const struct expert_chunk *at, const struct od_expert_mem *mem,
		      const struct expert_target *to, struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, at->m, at->expert);
	const struct od_shard *s = &e->x.shard[at->shard];
	struct od_shard_bytes b;
	const uint64_t begin_ns = od_now_ns();
	uint64_t mid_ns;
	int rc;

	if (is_staged(mem, inf->staging))
		(void)od_slice_layout(inf->pack, at->m, at->expert, at->shard, 1, inf->staging, &b);
	else
		b = destination(inf->pack, e, s, to, inf->staging);
	rc = read_shards(inf->pack, at, 1, to_buffers(mem, inf->staging), &b, err);

	od_trace_end("read", begin_ns, -1, at->m, at->expert);
	mid_ns = od_now_ns(); /* behind the span, which ends only now: spans of a thread must not cross */
	begin_finish(inf);
	if (rc == OD_OK)
		rc = end_finish(inf, finish_shard(inf, at, &b, &b, to, err), err);
	if (rc != OD_OK)
		return rc;
	od_trace_end("inflate", mid_ns, -1, at->m, at->expert);
	if (stats != NULL) {
		stats->read_bytes += (uint64_t)s->e.stored_bytes + s->sm.stored_bytes;
		stats->read_ns += mid_ns - begin_ns;
		stats->inflate_ns += od_now_ns() - mid_ns;
	}
	return OD_OK;
}

int od_inflater_rows(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, struct od_ref to,
		     struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct od_shard *s = &e->x.shard[shard];
	const struct expert_chunk at = { m, expert, shard, NULL };
	const struct od_expert_mem none = { 0 };
	struct expert_target rows = rows_at(inf->pack, e, s, &none);

	rows.memory = to;
	rows.n_rows = s->n_rows;
	rows.row = 0;
	return load_shard(inf, &at, &none, &rows, NULL, err);
}

int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
		     const struct od_expert_mem *mem, struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct expert_chunk at = { m, expert, shard, NULL };
	const struct expert_target to = rows_at(inf->pack, e, &e->x.shard[shard], mem);
	struct od_err why;
	int rc = load_shard(inf, &at, mem, &to, stats, &why);

	if (rc != OD_OK && err != NULL)
		*err = why;
	return rc;
}

int od_expert_bias_read(const struct od_pack *p, uint32_t m, uint32_t expert, enum od_expert_mat bias, uint8_t *to,
			struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < e->x.n_shards; i++) {
		const struct od_chunk *c = &e->x.shard[i].e; /* raw */
		const struct expert_chunk at = { m, expert, i, "E" };

		if (e->x.shard[i].mat != bias)
			continue;
		rc = od_data_read(&p->experts, false, to, c->stored_bytes, c->offset, err);
		if (rc == OD_OK)
			rc = check_sum(p, &at, c, to, err);
		to += c->stored_bytes;
	}
	return rc;
}

void od_inflaters_free(struct od_inflater **inf, unsigned n)
{
	if (inf != NULL)
		for (unsigned i = 0; i < n; i++)
			od_inflater_free(inf[i]);
	free(inf);
}

int od_inflaters_new(struct od_inflater ***out, unsigned n, const struct od_pack *p, struct od_device *d,
		     enum od_form form, struct od_err *err)
{
	struct od_inflater **inf = calloc(n, sizeof(*inf));
	int rc = inf != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for %u inflaters", n);

	*out = NULL;
	for (unsigned i = 0; rc == OD_OK && i < n; i++)
		rc = od_inflater_new(&inf[i], p, d, form, err);
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
	struct od_expert *expert; /* [n_moe][n_experts]; of the layers that this process holds */
	struct od_buf *slots[OD_MAX_CARDS];
	uint64_t *begin; /* [n_moe]: bytes from the start of its card's slots to a layer's */
	/* The card that is being loaded. */
	size_t first; /* the expert that has its first slot */
	struct od_buf *now;
	struct od_inflater **inflater;
};

static int load_expert(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	struct od_expert_store *s = arg;
	const struct od_pack *p = s->pack;
	const size_t index = s->first + item;
	const uint32_t m = (uint32_t)(index / p->config.n_experts), expert = (uint32_t)(index % p->config.n_experts);
	const uint64_t at = s->begin[m] + expert * od_layer_slot_bytes(p, s->form, m);
	const struct od_expert_mem mem = od_layer_slot_mem(p, s->form, m, od_buf_ref(s->now, at));

	for (uint32_t shard = 0; shard < p->expert[index].x.n_shards; shard++) {
		int rc = od_inflater_load(s->inflater[thread], m, expert, shard, &mem, NULL, err);

		if (rc != OD_OK)
			return rc;
	}
	od_pack_bind(p, m, expert, &mem, &s->expert[index]);
	*bytes = p->expert[index].x.bytes;
	return OD_OK;
}

/* Experts of the layers that this process holds that belong on a card: [*first, *first + n). Returns n. */
static size_t card_experts(const struct od_pack *p, const struct od_device *d, unsigned card, size_t *first)
{
	const uint32_t low = od_device_card_begin(d, card), high = od_device_card_end(d, card);
	uint32_t begin, end;

	od_config_moe_held(&p->config, &begin, &end);
	while (begin < end && p->config.layer_of[begin] < low)
		begin++;
	while (begin < end && p->config.layer_of[end - 1] >= high)
		end--;
	*first = (size_t)begin * p->config.n_experts;
	return (size_t)(end - begin) * p->config.n_experts;
}

static uint64_t stored_bytes(const struct od_pack *p)
{
	size_t first, n = od_pack_held_experts(p, &first);
	uint64_t sum = 0;

	for (size_t i = first; i < first + n; i++)
		sum += p->expert[i].x.bytes;
	return sum;
}

/* Where the slots of each of a card's layers begin; returns the bytes of all. */
static uint64_t deal_slots(struct od_expert_store *s, size_t first, size_t n)
{
	const uint32_t n_experts = s->pack->config.n_experts;
	uint64_t bytes = 0;

	for (size_t m = first / n_experts; m < (first + n) / n_experts; m++) {
		s->begin[m] = bytes;
		bytes += n_experts * od_layer_slot_bytes(s->pack, s->form, (uint32_t)m);
	}
	return bytes;
}

static int load_card(struct od_expert_store *s, struct od_device *d, unsigned card, struct od_team_job *job,
		     struct od_err *err)
{
	struct od_device *on = od_device_card(d, card);
	size_t first;
	int rc;

	job->n_items = card_experts(s->pack, d, card, &first);
	s->first = first;
	if (job->n_items == 0)
		return OD_OK;
	rc = od_buf_new_shared(&s->slots[card], on, deal_slots(s, first, job->n_items), "all experts", err);
	if (rc != OD_OK)
		return rc;
	s->now = s->slots[card];
	rc = od_inflaters_new(&s->inflater, job->n_threads, s->pack, on, s->form, err);
	if (rc == OD_OK)
		rc = od_team_run(job, err);
	od_inflaters_free(s->inflater, job->n_threads);
	s->inflater = NULL;
	od_buf_drop_stage(s->now);
	if (rc == OD_OK)
		for (size_t i = first; i < first + job->n_items; i++)
			job->done_bytes += s->pack->expert[i].x.bytes;
	return rc;
}

int od_experts_load_all(struct od_expert_store **out, const struct od_pack *p, struct od_device *d, enum od_form form,
			unsigned n_threads, od_progress_fn *progress, void *arg, struct od_err *err)
{
	struct od_expert_store *s = calloc(1, sizeof(*s));
	struct od_team_job job = {
		.fn = load_expert,
		.arg = s,
		.n_threads = n_threads,
		.progress = progress,
		.progress_arg = arg,
		.all_bytes = stored_bytes(p),
	};
	int rc = OD_OK;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for experts");
	s->pack = p;
	s->form = form;
	s->expert = calloc(p->manifest.n_experts, sizeof(*s->expert));
	s->begin = calloc(p->config.n_moe, sizeof(*s->begin));
	if (s->expert == NULL || s->begin == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for %zu experts", p->manifest.n_experts);
	if (rc == OD_OK)
		rc = od_experts_check_device(p, d, err);
	for (unsigned i = 0; rc == OD_OK && i < od_device_cards(d); i++)
		rc = load_card(s, d, i, &job, err);
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
	for (unsigned i = 0; i < OD_MAX_CARDS; i++)
		od_buf_free(s->slots[i]);
	free(s->begin);
	free(s->expert);
	free(s);
}

const struct od_expert *od_experts_get(const struct od_expert_store *s)
{
	return s->expert;
}

uint64_t od_experts_need_bytes(const struct od_pack *p, enum od_form form)
{
	uint64_t bytes = p->manifest.n_experts * sizeof(struct od_expert);
	uint32_t begin, end;

	od_config_moe_held(&p->config, &begin, &end);
	for (uint32_t m = begin; m < end; m++)
		bytes += p->config.n_experts * od_layer_slot_bytes(p, form, m);
	return bytes;
}

void od_experts_split(const struct od_pack *p, enum od_form form, struct od_split *s)
{
	uint32_t begin, end;

	od_config_moe_held(&p->config, &begin, &end);
	od_split_add(&s->beside.bytes, p->manifest.n_experts * sizeof(struct od_expert));
	for (uint32_t m = begin; m < end; m++)
		od_split_add(&s->layer[p->config.layer_of[m]].bytes,
			     p->config.n_experts * od_layer_slot_bytes(p, form, m));
}
