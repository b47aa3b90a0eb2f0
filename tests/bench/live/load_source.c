#include "tests/bench/live/load_source.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <unistd.h>

const char *const load_kind_names[] = { "cache", "disk", "direct", "paced", NULL };

/* Into the page cache. */
static int read_once(const struct load_source *s, const struct load_expert *e, struct od_err *err)
{
	const struct od_pack_expert *x = od_pack_expert(s->pack, e->m, e->expert);
	int rc = OD_OK;

	for (uint32_t i = 0; rc == OD_OK && i < x->n_shards; i++) {
		const struct od_shard *shard = &x->shard[i];
		void *buf = malloc((size_t)shard->sm.stored_bytes + shard->e.stored_bytes + 1);

		rc = buf != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for a chunk");
		if (rc == OD_OK)
			rc = od_pack_read_stored(s->pack, &shard->sm, buf, err);
		if (rc == OD_OK)
			rc = od_pack_read_stored(s->pack, &shard->e, buf, err);
		free(buf);
	}
	return rc;
}

static int settle_cache(struct load_source *s, struct od_err *err)
{
	if (s->kind != LOAD_CACHE)
		sync(); /* pages that are not on the disk yet would stay */
	for (size_t i = 0; i < s->n; i++) {
		const struct load_expert *e = &s->expert[i];
		int rc = OD_OK;

		if (s->kind == LOAD_CACHE)
			rc = read_once(s, e, err);
		else
			od_pack_drop_cached(s->pack, e->m, e->expert, 0,
					    od_pack_expert(s->pack, e->m, e->expert)->n_shards);
		if (rc != OD_OK)
			return rc;
	}
	return OD_OK;
}

int load_source_begin(struct load_source *s, struct od_err *err)
{
	s->pace.free_ns = 0;
	if (od_pack_read_direct(s->pack, s->kind == LOAD_DIRECT) != (s->kind == LOAD_DIRECT))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: its file system cannot be read past the page cache; leave direct out of "
			       "--source",
			       od_pack_dir(s->pack));
	return s->kind == LOAD_PACED ? OD_OK : settle_cache(s, err);
}

static const struct load_expert *find(const struct load_source *s, uint32_t m, uint32_t expert)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->expert[i].m == m && s->expert[i].expert == expert)
			return &s->expert[i];
	return NULL;
}

/* In memory the chunks of an expert stand one after the other, SM before E, shard by shard, each followed by readable
 * bytes. */
static uint64_t place_of(const struct od_chunk *c, uint64_t *end)
{
	const uint64_t at = *end;

	*end = od_round_up(at + c->stored_bytes, OD_PAD_BYTES) + OD_PAD_BYTES;
	return at;
}

static int read_memory(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		       const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		       struct od_err *err)
{
	const struct load_source *s = arg;
	const struct od_pack_expert *x = od_pack_expert(s->pack, m, expert);
	const struct load_expert *e = find(s, m, expert);
	uint64_t end = 0;

	(void)mem;
	(void)staging;
	if (e == NULL)
		return od_fail(err, OD_ERR_RANGE, "expert (%u, %u) is not in memory", m, expert);
	for (uint32_t i = 0; i < first + n; i++) {
		const uint64_t sm = place_of(&x->shard[i].sm, &end), coded = place_of(&x->shard[i].e, &end);

		if (i >= first)
			b[i - first] = (struct od_shard_bytes){ .sm = od_buf_ref(e->stored, sm),
								.e = od_buf_ref(e->stored, coded) };
	}
	return OD_OK;
}

void load_source_init(struct load_source *s)
{
	s->pace.pack = s->pack;
	s->pace.read = read_memory;
	s->pace.read_arg = s;
	pthread_mutex_init(&s->pace.lock, NULL);
}

int load_source_read(void *arg, uint32_t m, uint32_t expert, uint32_t first, uint32_t n,
		     const struct od_expert_mem *mem, struct od_ref staging, struct od_shard_bytes *b,
		     struct od_err *err)
{
	struct load_source *s = arg;

	if (s->kind == LOAD_PACED)
		return odw_paced_read(&s->pace, m, expert, first, n, mem, staging, b, err);
	return od_shards_read(s->pack, m, expert, first, n, mem, staging, b, err);
}

static int read_expert(const struct od_pack *pack, struct od_device *d, struct load_expert *e, struct od_err *err)
{
	const struct od_pack_expert *x = od_pack_expert(pack, e->m, e->expert);
	uint64_t end = 0;
	uint8_t *to;
	int rc;

	for (uint32_t i = 0; i < x->n_shards; i++) {
		(void)place_of(&x->shard[i].sm, &end);
		(void)place_of(&x->shard[i].e, &end);
	}
	rc = od_buf_new_shared(&e->stored, d, end, "an expert", err);
	if (rc != OD_OK)
		return rc;
	to = od_ref_stage(od_buf_ref(e->stored, 0));
	if (to == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the stage of an expert");
	end = 0;
	for (uint32_t i = 0; rc == OD_OK && i < x->n_shards; i++) {
		rc = od_pack_read_stored(pack, &x->shard[i].sm, to + place_of(&x->shard[i].sm, &end), err);
		if (rc == OD_OK)
			rc = od_pack_read_stored(pack, &x->shard[i].e, to + place_of(&x->shard[i].e, &end), err);
	}
	return rc;
}

int load_experts_read(const struct od_pack *pack, struct od_device *d, struct load_expert *expert, size_t n,
		      struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < n; i++)
		if (expert[i].stored == NULL)
			rc = read_expert(pack, d, &expert[i], err);
	return rc;
}

void load_experts_free(struct load_expert *expert, size_t n)
{
	if (expert != NULL)
		for (size_t i = 0; i < n; i++)
			od_buf_free(expert[i].stored);
}
