#include "common/pack/inflater.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/trace.h"
#include "common/pack/pack_internal.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct od_inflater {
	const struct od_pack *pack;
	enum od_form form;
	/* OD_FORM_PLAIN: */
	struct od_decoder *decoder;
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
	return od_staging_bytes(p, form) + od_decoder_bytes(p->shard_exponents) + sizeof(struct od_inflater);
}

static int alloc_staging(struct od_inflater *inf, struct od_err *err)
{
	const struct od_backend *be;
	int rc = od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, err); /* they all decode the same */

	if (rc != OD_OK)
		return rc;
	inf->staging = od_alloc(od_staging_bytes(inf->pack, inf->form));
	if (inf->staging == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an inflater of %" PRIu64 " bytes",
			       od_inflater_bytes(inf->pack, inf->form));
	return od_decoder_new(&inf->decoder, be, inf->pack->shard_exponents, err);
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

/* Chunks of one kind stand back to back: the bytes from one to another, that one included. */
static int read_run(const struct od_pack *p, const struct place *at, const struct od_chunk *first,
		    const struct od_chunk *last, uint8_t *buf, struct od_err *err)
{
	const uint64_t bytes = last->offset + last->stored_bytes - first->offset;
	int rc = od_file_pread(p->experts.fd, buf, bytes, first->offset, p->experts.path, err);

	return rc == OD_OK ? OD_OK : bad_chunk(p, at, first, err);
}

static int check_sum(const struct od_pack *p, const struct place *at, const struct od_chunk *c, const uint8_t *buf,
		     struct od_err *err)
{
	uint64_t found = XXH3_64bits(buf, c->stored_bytes);

	if (found == c->xxh3)
		return OD_OK;
	(void)od_fail(err, OD_ERR_CORRUPT, "checksum: expected %016" PRIx64 ", found %016" PRIx64, c->xxh3, found);
	return bad_chunk(p, at, c, err);
}

/* Where a shard's weights go in a slot of OD_FORM_PLAIN. */
static uint8_t *rows_at(const struct od_pack *p, const struct od_expert_entry *e, const struct od_shard *s, void *slot)
{
	uint64_t n_out, n_in;

	od_expert_mat_shape(&p->config, (enum od_expert_mat)s->mat, &n_out, &n_in);
	return (uint8_t *)slot + od_slot_offset(&p->config, e, s->mat) +
	       s->row_begin * n_in * od_dtype_bytes(e->dtype[s->mat]);
}

/* SM-chunks and E-chunks of the shards from at->shard to last. */
static int read_runs(const struct od_pack *p, const struct place *where, uint32_t last, uint8_t *sm, uint8_t *e,
		     struct od_err *err)
{
	const struct od_shard *s = od_pack_entry(p, where->m, where->expert)->x.shard;
	struct place at = *where;
	int rc;

	if (!od_pack_has_expert(p, at.m, at.expert))
		return od_fail(err, OD_ERR_MISSING, "%s: expert (%u, %u) is not here", p->dir, at.m, at.expert);
	at.chunk = "SM";
	rc = read_run(p, &at, &s[at.shard].sm, &s[last].sm, sm, err);
	at.chunk = "E";
	return rc == OD_OK ? read_run(p, &at, &s[at.shard].e, &s[last].e, e, err) : rc;
}

/* For weights that go to rows: SM to its upper half. */
static int read_rows(const struct od_pack *p, const struct place *at, uint8_t *rows, uint8_t *staging,
		     struct od_shard_bytes *b, struct od_err *err)
{
	const struct od_expert_entry *x = od_pack_entry(p, at->m, at->expert);
	const struct od_shard *s = &x->x.shard[at->shard];
	uint8_t *sm = od_codec_merges_in_place(x->dtype[s->mat]) ? rows + s->sm.raw_bytes : staging + staged_sm_at(p);

	*b = (struct od_shard_bytes){ .sm = sm, .e = staging };
	return read_runs(p, at, at->shard, sm, staging, err);
}

int od_shards_read(const struct od_pack *p, enum od_form form, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		   void *slot, uint8_t *staging, struct od_shard_bytes *b, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(p, m, expert);
	const struct od_shard *s = &e->x.shard[first];
	struct place at = { m, expert, first, NULL };
	int rc = OD_OK;

	if (form == OD_FORM_PLAIN) {
		for (uint32_t i = 0; rc == OD_OK && i < n; i++, at.shard++)
			rc = read_rows(p, &at, rows_at(p, e, &s[i], slot), staging + i * od_staging_bytes(p, form), &b[i], err);
		return rc;
	}
	for (uint32_t i = 0; i < n; i++)
		b[i] = (struct od_shard_bytes){ od_form_stored_at(e, &s[i].sm, slot), od_form_stored_at(e, &s[i].e, slot) };
	return read_runs(p, &at, first + n - 1, od_form_stored_at(e, &s[0].sm, slot), od_form_stored_at(e, &s[0].e, slot), err);
}

/* What was read is what was written; rows NULL: it stays as it is. */
static int finish_rows(struct od_inflater *inf, const struct place *where, const struct od_shard_bytes *b, uint8_t *rows,
		       struct od_err *err)
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
	rc = check_sum(inf->pack, &at, &s->sm, b->sm, err);
	at.chunk = "E";
	if (rc == OD_OK)
		rc = check_sum(inf->pack, &at, &s->e, b->e, err);
	if (rc != OD_OK)
		return rc;
	rc = od_coded_check(&coded, err);
	if (rc == OD_OK && rows != NULL)
		rc = od_decoder_weights(inf->decoder, &coded, x->dtype[s->mat], b->sm, rows, err);
	return rc == OD_OK ? OD_OK : bad_chunk(inf->pack, &at, &s->e, err);
}

int od_inflater_finish(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard,
		       const struct od_shard_bytes *b, void *slot, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct place at = { m, expert, shard, NULL };

	return finish_rows(inf, &at, b, inf->form == OD_FORM_PLAIN ? rows_at(inf->pack, e, &e->x.shard[shard], slot) : NULL,
			   err);
}

/* After reading ended with rc: the rest, the figures, or the reason. */
static int finish_load(struct od_inflater *inf, const struct place *at, const struct od_shard_bytes *b, uint8_t *rows,
		       int rc, struct od_err *why, uint64_t begin_ns, struct od_load_stats *stats, struct od_err *err)
{
	const struct od_shard *s = &od_pack_entry(inf->pack, at->m, at->expert)->x.shard[at->shard];
	uint64_t mid_ns = od_now_ns();

	od_trace_end("read", begin_ns, -1, at->m, at->expert);
	if (rc == OD_OK)
		rc = finish_rows(inf, at, b, rows, why);
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
	const struct place at = { m, expert, shard, NULL };
	uint64_t begin_ns = od_now_ns();
	struct od_shard_bytes b;
	struct od_err why;
	int rc = read_rows(inf->pack, &at, dst, inf->staging, &b, &why);

	return finish_load(inf, &at, &b, dst, rc, &why, begin_ns, stats, err);
}

int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, void *slot,
		     struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct place at = { m, expert, shard, NULL };
	uint64_t begin_ns = od_now_ns();
	struct od_shard_bytes b;
	struct od_err why;
	int rc = od_shards_read(inf->pack, inf->form, m, expert, shard, 1, slot, inf->staging, &b, &why);

	return finish_load(inf, &at, &b, inf->form == OD_FORM_PLAIN ? rows_at(inf->pack, e, &e->x.shard[shard], slot) : NULL,
			   rc, &why, begin_ns, stats, err);
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
	char *slots;
	struct od_expert *expert; /* [n_layers][n_experts] */
	struct od_inflater **inflater; /* while loading */
};

static int load_expert(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	struct od_expert_store *s = arg;
	const struct od_pack *p = s->pack;
	uint32_t m = (uint32_t)(item / p->config.n_experts), expert = (uint32_t)(item % p->config.n_experts);
	char *slot = s->slots + item * p->slot_bytes[s->form];

	for (uint32_t shard = 0; shard < p->expert[item].x.n_shards; shard++) {
		int rc = od_inflater_load(s->inflater[thread], m, expert, shard, slot, NULL, err);

		if (rc != OD_OK)
			return rc;
	}
	od_pack_bind(p, s->form, m, expert, slot, &s->expert[item]);
	*bytes = p->expert[item].x.bytes;
	return OD_OK;
}

int od_experts_load_all(struct od_expert_store **out, const struct od_pack *p, enum od_form form, unsigned n_threads,
			od_progress_fn *progress, void *arg, struct od_err *err)
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
	s->slots = od_alloc_array(p->manifest.n_experts, p->slot_bytes[form]);
	s->expert = calloc(p->manifest.n_experts, sizeof(*s->expert));
	if (s->slots == NULL || s->expert == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory for all experts of %s: %" PRIu64 " bytes", p->dir,
			     od_experts_need_bytes(p, form));
	else
		rc = od_inflaters_new(&s->inflater, n_threads, p, form, err);
	if (rc == OD_OK)
		rc = od_team_run(&job, err);
	od_inflaters_free(s->inflater, n_threads);
	s->inflater = NULL;
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
	od_free(s->slots);
	free(s->expert);
	free(s);
}

const struct od_expert *od_experts_get(const struct od_expert_store *s)
{
	return s->expert;
}

uint64_t od_experts_need_bytes(const struct od_pack *p, enum od_form form)
{
	return p->manifest.n_experts * (p->slot_bytes[form] + sizeof(struct od_expert));
}
