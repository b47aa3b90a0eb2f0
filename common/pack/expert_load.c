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
	uint8_t *sm, *stored_e; /* one shard each */
};

/* Staging for the largest shard. Coded exponents are never longer than raw ones. */
static void staging(const struct od_pack *p, uint64_t *sm_bytes, uint64_t *e_bytes)
{
	*sm_bytes = *e_bytes = 0;
	for (size_t i = 0; i < p->manifest.n_experts; i++) {
		const struct od_pack_expert *x = &p->expert[i].x;

		for (uint32_t s = 0; s < x->n_shards; s++) {
			*sm_bytes = x->shard[s].sm.raw_bytes > *sm_bytes ? x->shard[s].sm.raw_bytes : *sm_bytes;
			*e_bytes = x->shard[s].e.raw_bytes > *e_bytes ? x->shard[s].e.raw_bytes : *e_bytes;
		}
	}
}

uint64_t od_inflater_bytes(const struct od_pack *p, enum od_form form)
{
	uint64_t sm, e;

	if (form == OD_FORM_PLANES)
		return sizeof(struct od_inflater);
	staging(p, &sm, &e);
	return sm + e + od_decoder_bytes(e) + sizeof(struct od_inflater);
}

static int alloc_staging(struct od_inflater *inf, struct od_err *err)
{
	const struct od_backend *be;
	uint64_t sm, e;
	int rc = od_backend_cpu(&be, OD_CPU_AUTO, OD_PROFILE_F32, err); /* they all decode the same */

	if (rc != OD_OK)
		return rc;
	staging(inf->pack, &sm, &e);
	inf->sm = od_alloc(sm);
	inf->stored_e = od_alloc(e);
	if (inf->sm == NULL || inf->stored_e == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an inflater of %" PRIu64 " bytes",
			       od_inflater_bytes(inf->pack, inf->form));
	return od_decoder_new(&inf->decoder, be, e, err);
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
	od_free(inf->sm);
	od_free(inf->stored_e);
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

static int read_chunk(const struct od_inflater *inf, const struct place *at, const struct od_chunk *c, uint8_t *buf,
		      struct od_err *err)
{
	int rc = od_file_pread(inf->pack->experts.fd, buf, c->stored_bytes, c->offset, inf->pack->experts.path, err);
	uint64_t found;

	if (rc != OD_OK)
		return bad_chunk(inf->pack, at, c, err);
	found = XXH3_64bits(buf, c->stored_bytes);
	if (found == c->xxh3)
		return OD_OK;
	(void)od_fail(err, OD_ERR_CORRUPT, "checksum: expected %016" PRIx64 ", found %016" PRIx64, c->xxh3, found);
	return bad_chunk(inf->pack, at, c, err);
}

/* Both chunks of a shard, with their checksums, to sm and e; e is checked. */
static int read_shard(const struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, uint8_t *sm,
		      uint8_t *e, struct od_coded *coded, struct od_load_stats *stats, struct od_err *err)
{
	const struct od_shard *s = &od_pack_entry(inf->pack, m, expert)->x.shard[shard];
	struct place at = { m, expert, shard, "SM" };
	uint64_t begin = od_now_ns();
	int rc;

	if (!od_pack_has_expert(inf->pack, m, expert))
		return od_fail(err, OD_ERR_MISSING, "%s: expert (%u, %u) is not here", inf->pack->dir, m, expert);
	rc = read_chunk(inf, &at, &s->sm, sm, err);
	at.chunk = "E";
	if (rc == OD_OK)
		rc = read_chunk(inf, &at, &s->e, e, err);
	od_trace_end("read", begin, -1, m, expert);
	if (rc != OD_OK)
		return rc;
	stats->read_bytes += (uint64_t)s->e.stored_bytes + s->sm.stored_bytes;
	stats->read_ns += od_now_ns() - begin;
	*coded = (struct od_coded){
		.codec = (enum od_codec)s->e.codec,
		.at = e,
		.bytes = s->e.stored_bytes,
		.n = s->e.raw_bytes,
		.row = s->e.raw_bytes / s->n_rows,
	};
	begin = od_now_ns();
	rc = od_coded_check(coded, err);
	stats->inflate_ns += od_now_ns() - begin;
	return rc == OD_OK ? OD_OK : bad_chunk(inf->pack, &at, &s->e, err);
}

/* The figures to the caller's, or the reason. */
static int finish(int rc, const struct od_load_stats *own, struct od_load_stats *stats, const struct od_err *why,
		  struct od_err *err)
{
	if (rc != OD_OK && err != NULL)
		*err = *why;
	if (rc != OD_OK || stats == NULL)
		return rc;
	stats->read_bytes += own->read_bytes;
	stats->read_ns += own->read_ns;
	stats->inflate_ns += own->inflate_ns;
	return OD_OK;
}

int od_inflater_rows(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, void *dst,
		     struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct od_shard *s = &e->x.shard[shard];
	const struct place at = { m, expert, shard, "E" };
	struct od_load_stats own = { 0 };
	struct od_coded coded;
	struct od_err why;
	int rc = read_shard(inf, m, expert, shard, inf->sm, inf->stored_e, &coded, &own, &why);
	uint64_t begin = od_now_ns();

	if (rc == OD_OK) {
		rc = od_decoder_weights(inf->decoder, &coded, e->dtype[s->mat], inf->sm, dst, &why);
		if (rc != OD_OK)
			rc = bad_chunk(inf->pack, &at, &s->e, &why);
		od_trace_end("inflate", begin, -1, m, expert);
		own.inflate_ns += od_now_ns() - begin;
	}
	return finish(rc, &own, stats, &why, err);
}

int od_inflater_load(struct od_inflater *inf, uint32_t m, uint32_t expert, uint32_t shard, void *slot,
		     struct od_load_stats *stats, struct od_err *err)
{
	const struct od_expert_entry *e = od_pack_entry(inf->pack, m, expert);
	const struct od_shard *s = &e->x.shard[shard];
	uint64_t n_out, n_in, at = od_slot_offset(&inf->pack->config, e, s->mat);
	struct od_load_stats own = { 0 };
	struct od_coded coded;
	struct od_err why;
	int rc;

	if (inf->form == OD_FORM_PLANES) {
		rc = read_shard(inf, m, expert, shard, od_form_stored_at(e, &s->sm, slot), od_form_stored_at(e, &s->e, slot),
				&coded, &own, &why);
		return finish(rc, &own, stats, &why, err);
	}
	od_expert_mat_shape(&inf->pack->config, (enum od_expert_mat)s->mat, &n_out, &n_in);
	at += s->row_begin * n_in * od_dtype_bytes(e->dtype[s->mat]);
	return od_inflater_rows(inf, m, expert, shard, (char *)slot + at, stats, err);
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
