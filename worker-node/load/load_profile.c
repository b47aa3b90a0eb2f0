#include "worker-node/load/load_profile.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/pack/team.h"

#include <stdlib.h>

#define PROFILE_EXPERTS 4
#define PROFILE_NS (OD_NS_PER_S / 4) /* no expert is begun later */

const char *const odw_read_mode_names[] = { "auto", "buffered", "direct", NULL };

/* Which experts, and where from. */
struct sample {
	uint32_t shift;
	bool drop; /* from the disk, not from the page cache */
};

/* Parts of one expert, read at the same time. */
struct batch {
	const struct odw_profile_opts *o;
	struct sample sample;
	uint32_t m, expert, n_parts;
	struct od_buf *staging; /* [n_parts][ODW_PART_SHARDS] of od_staging_bytes */
	struct part {
		uint32_t first, n;
		struct od_shard_bytes bytes[ODW_PART_SHARDS];
		uint64_t read_bytes, read_ns; /* 0: it could not be read */
	} * part;
};

static int read_from_pack(const struct odw_profile_opts *o, uint32_t m, uint32_t expert, struct part *p,
			  struct od_ref staging, struct od_err *err)
{
	if (o->read != NULL)
		return o->read(o->read_arg, m, expert, p->first, p->n, OD_SET_STORED, o->mem, staging, p->bytes, err);
	return od_shards_read(o->pack, m, expert, p->first, p->n, OD_SET_STORED, o->mem, staging, p->bytes, err);
}

static int read_part(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	struct batch *b = arg;
	const struct odw_profile_opts *o = b->o;
	const struct od_pack_expert *x = od_pack_expert(o->pack, b->m, b->expert);
	const uint64_t staging_bytes = od_staging_bytes(o->pack, o->device, o->form) * ODW_PART_SHARDS;
	struct part *p = &b->part[item];
	uint64_t begin_ns = o->now_ns();

	(void)thread;
	if (read_from_pack(o, b->m, b->expert, p, od_buf_ref(b->staging, item * staging_bytes), err) == OD_OK) {
		for (uint32_t i = p->first; i < p->first + p->n; i++)
			p->read_bytes += (uint64_t)x->shard[i].sm.stored_bytes + x->shard[i].e.stored_bytes;
		p->read_ns = o->now_ns() - begin_ns;
	}
	*bytes = p->read_bytes;
	return OD_OK;
}

static void finish_part(const struct batch *b, const struct part *p, struct od_inflater *inf, struct odw_part_times *t)
{
	const struct odw_profile_opts *o = b->o;
	uint64_t begin_ns = o->now_ns();
	int rc = p->read_bytes > 0 ? OD_OK : OD_ERR_IO;
	struct od_err why; /* taken from the device, which would report it to the first load */

	if (rc == OD_OK)
		rc = od_inflater_finish(inf, b->m, b->expert, p->first, p->n, p->bytes, o->mem, &why);
	if (rc != OD_OK)
		return;
	t->finishes++;
	t->finish_ns += o->now_ns() - begin_ns;
	t->read_bytes += p->read_bytes;
	t->read_ns += p->read_ns;
}

static void begin_parts(struct batch *b)
{
	const uint32_t n_shards = od_pack_expert(b->o->pack, b->m, b->expert)->n_shards,
		       each = odw_part_shards(n_shards);

	for (uint32_t i = 0; i < b->n_parts; i++) {
		struct part *p = &b->part[i];

		*p = (struct part){ .first = i * each };
		p->n = n_shards - p->first < each ? n_shards - p->first : each;
		if (b->sample.drop)
			od_pack_drop_cached(b->o->pack, b->m, b->expert, p->first, p->n);
	}
}

static int time_batch(struct batch *b, struct od_inflater *inf, struct odw_part_times *t, struct od_err *err)
{
	const struct od_team_job job = {
		.fn = read_part, .arg = b, .n_items = b->n_parts, .n_threads = b->o->n_readers
	};
	int rc;

	begin_parts(b);
	rc = od_team_run(&job, err);
	*t = (struct odw_part_times){ 0 };
	for (uint32_t i = 0; rc == OD_OK && i < b->n_parts; i++)
		finish_part(b, &b->part[i], inf, t);
	return rc;
}

/* The i-th of those to be looked at: they lie as far apart as they can, so that one is not read with another. */
static bool choose_expert(const struct od_pack *p, uint32_t i, uint32_t shift, uint32_t *m, uint32_t *expert)
{
	const struct od_config *cfg = od_pack_config(p);
	const uint64_t all = (uint64_t)cfg->n_moe * cfg->n_experts;

	for (uint64_t j = 0; j < all; j++) {
		uint64_t at = (i * all / PROFILE_EXPERTS + shift + j) % all;

		*m = (uint32_t)(at / cfg->n_experts);
		*expert = (uint32_t)(at % cfg->n_experts);
		if (od_pack_has_expert(p, *m, *expert))
			return true;
	}
	return false;
}

/* The first batch finds memory that was never touched, and code that was never run: it counts only when it is alone. */
static int time_batches(struct batch *b, struct od_inflater *inf, struct odw_part_times *out, struct od_err *err)
{
	const uint64_t begin_ns = b->o->now_ns();
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < PROFILE_EXPERTS; i++) {
		struct odw_part_times t;

		if ((i > 0 && b->o->now_ns() - begin_ns > PROFILE_NS) ||
		    !choose_expert(b->o->pack, i, b->sample.shift, &b->m, &b->expert))
			break;
		rc = time_batch(b, inf, &t, err);
		if (i == 1)
			*out = (struct odw_part_times){ 0 };
		out->read_bytes += t.read_bytes;
		out->read_ns += t.read_ns;
		out->finishes += t.finishes;
		out->finish_ns += t.finish_ns;
	}
	return rc;
}

/* As many parts as there are readers, as far as that goes. */
static uint32_t batch_parts(const struct odw_profile_opts *o)
{
	const uint32_t n_parts = odw_parts(od_pack_expert(o->pack, 0, 0)->n_shards);
	const uint64_t fit = ODW_PROFILE_BYTES / PROFILE_EXPERTS / (od_pack_expert_stored_bytes(o->pack) / n_parts + 1);
	uint64_t n = o->n_readers < n_parts ? o->n_readers : n_parts;

	n = n < fit ? n : fit;
	return n > 0 ? (uint32_t)n : 1;
}

static int profile(struct odw_part_times *out, const struct odw_profile_opts *opts, struct sample sample,
		   struct od_err *err)
{
	struct odw_profile_opts o = *opts;
	struct batch b = { .o = &o, .sample = sample, .n_parts = batch_parts(opts) };
	const uint64_t bytes = b.n_parts * od_staging_bytes(o.pack, o.device, o.form) * ODW_PART_SHARDS;
	struct od_inflater *inf;
	int rc = od_inflater_new(&inf, o.pack, o.device, o.form, err);

	*out = (struct odw_part_times){ 0 };
	if (o.now_ns == NULL)
		o.now_ns = od_now_ns;
	b.part = calloc(b.n_parts, sizeof(*b.part));
	if (rc == OD_OK && b.part == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory to measure loads of %u parts", b.n_parts);
	if (rc == OD_OK && o.form == OD_FORM_PLAIN)
		rc = od_buf_new_shared(&b.staging, o.device, bytes, "parts to measure", err);
	else if (rc == OD_OK && bytes > 0)
		rc = od_buf_new_on_host(&b.staging, o.device, bytes, "parts to measure", err);
	if (rc == OD_OK)
		rc = time_batches(&b, inf, out, err);
	od_inflater_free(inf);
	od_buf_free(b.staging);
	free(b.part);
	return rc;
}

int odw_profile_loads(struct odw_part_times *out, const struct odw_profile_opts *o, struct od_err *err)
{
	return profile(out, o, (struct sample){ 0 }, err);
}

static uint64_t bytes_of_experts(const struct od_pack *p)
{
	const struct od_config *cfg = od_pack_config(p);
	uint64_t bytes = 0;

	for (uint32_t m = 0; m < cfg->n_moe; m++)
		for (uint32_t e = 0; e < cfg->n_experts; e++)
			bytes += od_pack_has_expert(p, m, e) ? od_pack_expert(p, m, e)->bytes : 0;
	return bytes;
}

static double ns_per_byte(const struct odw_part_times *t)
{
	return t->read_bytes > 0 ? (double)t->read_ns / (double)t->read_bytes : 0;
}

/* Of what is read through the page cache, a share is found there. *out: of the way that is faster. */
static int faster_way(struct odw_part_times *out, bool *direct, const struct odw_profile_opts *o, double cached_share,
		      struct od_err *err)
{
	struct odw_part_times cached = { 0 }, past = { 0 };
	double through_ns;
	int rc = profile(out, o, (struct sample){ .drop = true }, err);

	*direct = false;
	if (rc == OD_OK)
		rc = profile(&cached, o, (struct sample){ 0 }, err);
	if (rc != OD_OK || !od_pack_read_direct(o->pack, true))
		return rc;
	/* others: the disk may have a cache, too */
	rc = profile(&past, o, (struct sample){ .shift = 1, .drop = true }, err);
	through_ns = (1 - cached_share) * ns_per_byte(out) + cached_share * ns_per_byte(&cached);
	*direct = rc == OD_OK && past.read_bytes > 0 && ns_per_byte(&past) < through_ns;
	if (*direct)
		*out = past;
	return rc;
}

int odw_profile_read_mode(struct odw_part_times *out, bool *direct, const struct odw_profile_opts *o,
			  enum odw_read_mode asked, uint64_t free_bytes, struct od_err *err)
{
	const uint64_t bytes = bytes_of_experts(o->pack);
	/* Weights of their own are read in pieces, wherever they go; so is what goes to a device from a stage. */
	const bool can = o->mem->at[OD_BUF_SM].buf != NULL && (o->form == OD_FORM_PLAIN || od_device_shares(o->device));
	int rc;

	*direct = false;
	if (asked == ODW_READ_AUTO && can && free_bytes < bytes) {
		rc = faster_way(out, direct, o, (double)free_bytes / (double)bytes, err);
	} else {
		*direct = od_pack_read_direct(o->pack, asked == ODW_READ_DIRECT && can);
		rc = odw_profile_loads(out, o, err);
	}
	(void)od_pack_read_direct(o->pack, *direct);
	return rc;
}

/* Of all experts. */
static void stored_bytes(const struct od_pack *pack, double *sm, double *e)
{
	const struct od_config *cfg = od_pack_config(pack);
	const uint32_t n_shards = od_pack_expert(pack, 0, 0)->n_shards;

	*sm = *e = 0;
	for (uint32_t m = 0; m < cfg->n_moe; m++)
		for (uint32_t i = 0; i < cfg->n_experts; i++)
			for (uint32_t s = 0; s < n_shards; s++) {
				*sm += od_pack_expert(pack, m, i)->shard[s].sm.stored_bytes;
				*e += od_pack_expert(pack, m, i)->shard[s].e.stored_bytes;
			}
}

/* All experts are read in one piece after the other, so time goes by bytes: u is the SM-chunks' share of it. */
struct od_cache_cost odw_cache_cost(const struct od_pack *pack, const struct odw_expert_costs *costs)
{
	const uint32_t n_shards = od_pack_expert(pack, 0, 0)->n_shards;
	double sm, e, u_ns, e_ns;

	stored_bytes(pack, &sm, &e);
	u_ns = (double)costs->read_ns * sm / (sm + e) / OD_N_EXPERT_MATS;
	e_ns = (double)costs->read_ns * e / (sm + e) / OD_N_EXPERT_MATS;
	if (u_ns < 1) /* weights of 8 bits have no SM bytes; rho is relative to their time */
		u_ns = 1;
	return (struct od_cache_cost){ .u_ns = u_ns,
				       .rho = e_ns / u_ns,
				       .c_ns = (double)costs->finish_ns / n_shards,
				       .tensors = OD_N_EXPERT_MATS,
				       .chunks = (n_shards + OD_N_EXPERT_MATS - 1) / OD_N_EXPERT_MATS,
				       .inflaters = costs->n_inflaters };
}

struct od_cache_sizes odw_cache_sizes(const struct od_pack *pack, const struct od_device *d, enum od_form form)
{
	uint64_t bytes[OD_N_EXPERT_BUFS];
	double sm, e;

	for (int i = 0; i < OD_N_EXPERT_BUFS; i++)
		bytes[i] = odw_buf_memory(d, od_form_bufs(form), (enum od_expert_buf)i,
					  od_pack_buf_bytes(pack, (enum od_expert_buf)i));
	stored_bytes(pack, &sm, &e);
	if (sm == 0) { /* the empty buffer is there, and goes wherever the other one does */
		bytes[OD_BUF_E] += bytes[OD_BUF_SM];
		bytes[OD_BUF_SM] = 0;
	}
	return od_cache_sizes_of(bytes[OD_BUF_SM], bytes[OD_BUF_E], bytes[OD_BUF_PLAIN], form == OD_FORM_PLANES);
}
