#include "common/residency/read_mode.h"

#include "common/base/clock.h"
#include "common/pack/team.h"

#include <stdlib.h>

#define TIMED_EXPERTS 4
#define TIMED_NS (OD_NS_PER_S / 4) /* no expert is begun later */

const char *const od_read_mode_names[] = { "auto", "buffered", "direct", NULL };

/* The experts to read, and the way. */
struct sample {
	uint32_t shift;
	bool drop; /* from the disk, not from the page cache */
};

/* Parts of one expert, read at the same time. */
struct batch {
	const struct od_read_mode_opts *o;
	struct sample sample;
	uint32_t m, expert, n_slices;
	struct od_buf *staging; /* [n_slices][OD_SLICE_SHARDS] of od_staging_bytes */
	struct read_slice {
		uint32_t first, n;
		uint64_t bytes, ns; /* 0: it could not be read */
	} * slice;
};

struct read_time {
	uint64_t bytes, ns; /* ns: of all threads */
};

static int read_from_pack(const struct od_read_mode_opts *o, uint32_t m, uint32_t expert, const struct read_slice *p,
			  struct od_ref staging, struct od_err *err)
{
	struct od_shard_bytes b[OD_SLICE_SHARDS];

	if (o->read != NULL)
		return o->read(o->read_arg, m, expert, p->first, p->n, o->mem, staging, b, err);
	return od_shards_read(o->pack, m, expert, p->first, p->n, o->mem, staging, b, err);
}

static int read_slice(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	struct batch *b = arg;
	const struct od_read_mode_opts *o = b->o;
	const struct od_pack_expert *x = od_pack_expert(o->pack, b->m, b->expert);
	const uint64_t staging_bytes = od_staging_bytes(o->pack, o->device, o->form) * OD_SLICE_SHARDS;
	struct read_slice *p = &b->slice[item];
	uint64_t begin_ns = o->now_ns();

	(void)thread;
	if (read_from_pack(o, b->m, b->expert, p, od_buf_ref(b->staging, item * staging_bytes), err) == OD_OK) {
		for (uint32_t i = p->first; i < p->first + p->n; i++)
			p->bytes += (uint64_t)x->shard[i].sm.stored_bytes + x->shard[i].e.stored_bytes;
		p->ns = o->now_ns() - begin_ns;
	}
	*bytes = p->bytes;
	return OD_OK;
}

static void begin_slices(struct batch *b)
{
	const uint32_t n_shards = od_pack_expert(b->o->pack, b->m, b->expert)->n_shards,
		       each = od_slice_shards(b->o->device, n_shards);

	for (uint32_t i = 0; i < b->n_slices; i++) {
		struct read_slice *p = &b->slice[i];

		*p = (struct read_slice){ .first = i * each };
		p->n = n_shards - p->first < each ? n_shards - p->first : each;
		if (b->sample.drop)
			od_pack_drop_cached(b->o->pack, b->m, b->expert, p->first, p->n);
	}
}

static int time_batch(struct batch *b, struct read_time *t, struct od_err *err)
{
	const struct od_team_job job = {
		.fn = read_slice, .arg = b, .n_items = b->n_slices, .n_threads = b->o->n_readers
	};
	int rc;

	begin_slices(b);
	rc = od_team_run(&job, err);
	for (uint32_t i = 0; i < b->n_slices; i++) {
		t->bytes += b->slice[i].bytes;
		t->ns += b->slice[i].ns;
	}
	return rc;
}

/* The i-th of those to be looked at: they lie as far apart as they can, so that one is not read with another. */
static bool choose_expert(const struct od_pack *p, uint32_t i, uint32_t shift, uint32_t *m, uint32_t *expert)
{
	const struct od_config *cfg = od_pack_config(p);
	const uint64_t all = (uint64_t)cfg->n_moe * cfg->n_experts;

	for (uint64_t j = 0; j < all; j++) {
		uint64_t at = (i * all / TIMED_EXPERTS + shift + j) % all;

		*m = (uint32_t)(at / cfg->n_experts);
		*expert = (uint32_t)(at % cfg->n_experts);
		if (od_pack_has_expert(p, *m, *expert))
			return true;
	}
	return false;
}

/* The first batch finds memory that was never touched, and code that was never run: it counts only when it is alone. */
static int time_batches(struct batch *b, struct read_time *out, struct od_err *err)
{
	const uint64_t begin_ns = b->o->now_ns();
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < TIMED_EXPERTS; i++) {
		if ((i > 0 && b->o->now_ns() - begin_ns > TIMED_NS) ||
		    !choose_expert(b->o->pack, i, b->sample.shift, &b->m, &b->expert))
			break;
		if (i == 1)
			*out = (struct read_time){ 0 };
		rc = time_batch(b, out, err);
	}
	return rc;
}

/* As many slices as there are readers, as far as that goes. */
static uint32_t batch_slices(const struct od_read_mode_opts *o)
{
	const uint32_t n_slices = od_slices(o->device, od_pack_expert(o->pack, 0, 0)->n_shards);
	const uint64_t fit = OD_READ_MODE_BYTES / TIMED_EXPERTS / (od_pack_expert_stored_bytes(o->pack) / n_slices + 1);
	uint64_t n = o->n_readers < n_slices ? o->n_readers : n_slices;

	n = n < fit ? n : fit;
	return n > 0 ? (uint32_t)n : 1;
}

/* *ns_per_byte: of one thread; 0 when nothing could be read. */
static int time_reads(double *ns_per_byte, const struct od_read_mode_opts *o, struct sample sample, struct od_err *err)
{
	struct batch b = { .o = o, .sample = sample, .n_slices = batch_slices(o) };
	const uint64_t staging_bytes = b.n_slices * od_staging_bytes(o->pack, o->device, o->form) * OD_SLICE_SHARDS;
	struct read_time t = { 0 };
	int rc = OD_OK;

	b.slice = calloc(b.n_slices, sizeof(*b.slice));
	if (b.slice == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "no memory to time reads of %u parts", b.n_slices);
	if (rc == OD_OK && staging_bytes > 0)
		rc = od_buf_new_shared(&b.staging, o->device, staging_bytes, "parts to time", err);
	if (rc == OD_OK)
		rc = time_batches(&b, &t, err);
	*ns_per_byte = t.bytes > 0 ? (double)t.ns / (double)t.bytes : 0;
	od_buf_free(b.staging);
	free(b.slice);
	return rc;
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

/* Through the page cache, a share is found there. The other experts are read past it, since the disk may have a cache,
 * too. */
static int time_both(bool *direct, const struct od_read_mode_opts *o, double cached_share, struct od_err *err)
{
	double from_disk, cached = 0, past = 0;
	int rc = time_reads(&from_disk, o, (struct sample){ .drop = true }, err);

	if (rc == OD_OK)
		rc = time_reads(&cached, o, (struct sample){ 0 }, err);
	if (rc != OD_OK || !od_pack_read_direct(o->pack, true))
		return rc;
	rc = time_reads(&past, o, (struct sample){ .shift = 1, .drop = true }, err);
	*direct = rc == OD_OK && past > 0 && past < (1 - cached_share) * from_disk + cached_share * cached;
	return rc;
}

int od_read_mode_choose(bool *direct, const struct od_read_mode_opts *opts, struct od_err *err)
{
	struct od_read_mode_opts o = *opts;
	const uint64_t bytes = bytes_of_experts(o.pack);
	/* Weights of their own are read in pieces, wherever they go; so is what goes to a device from a stage. What has
	 * no SM-chunks goes through staging. */
	const bool can = o.form == OD_FORM_PLANES ? od_device_shares(o.device) : od_pack_as_bytes(o.pack);
	int rc = OD_OK;

	*direct = o.asked == OD_READ_DIRECT && can;
	if (o.now_ns == NULL)
		o.now_ns = od_now_ns;
	if (o.asked == OD_READ_AUTO && can && o.free_bytes < bytes)
		rc = time_both(direct, &o, (double)o.free_bytes / (double)bytes, err);
	*direct = od_pack_read_direct(o.pack, *direct);
	return rc;
}
