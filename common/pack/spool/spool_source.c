#include "common/pack/spool/spool_source.h"

#include "common/pack/expert_sums.h"
#include "common/pack/pack_internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* Bytes of each expert of MoE layer m in the spool. */
static uint64_t each_bytes(const struct od_pack *p, uint32_t m)
{
	uint64_t bytes;
	struct od_err ignored;

	/* 0 would be a model that no worker can pull (od_manifest_read refuses it). */
	return od_share_expert_bytes(&p->config, od_pack_entry(p, m, 0)->type, &bytes, &ignored) == OD_OK ? bytes : 0;
}

uint64_t od_spool_source_bytes(const struct od_pack *p)
{
	uint64_t sum = 0;

	if (p->sums == NULL)
		return p->manifest.experts_bytes;
	for (uint32_t m = 0; m < p->config.n_moe; m++)
		sum += each_bytes(p, m) * p->config.n_experts;
	return sum;
}

struct share_place {
	uint32_t m, expert, shard;
	uint64_t at; /* in the expert, then in the chunk */
};

static bool find_expert(const struct od_pack *p, uint64_t offset, struct share_place *out)
{
	*out = (struct share_place){ .at = offset };
	for (; out->m < p->config.n_moe; out->m++) {
		const uint64_t each = each_bytes(p, out->m);

		if (out->at < each * p->config.n_experts) {
			out->expert = (uint32_t)(out->at / each);
			out->at %= each;
			return true;
		}
		out->at -= each * p->config.n_experts;
	}
	return false;
}

/* The chunk that has bytes [offset, offset + len) of the spool. */
static bool find_chunk(const struct od_pack *p, uint64_t offset, size_t len, struct share_place *out)
{
	const uint64_t header = od_share_header_bytes(&p->config);
	const struct od_pack_expert *x;

	if (!find_expert(p, offset, out) || out->at < header)
		return false;
	x = od_pack_expert(p, out->m, out->expert);
	out->at -= header;
	while (out->shard < x->n_shards && out->at >= x->shard[out->shard].e.stored_bytes)
		out->at -= x->shard[out->shard++].e.stored_bytes;
	return out->shard < x->n_shards && len <= x->shard[out->shard].e.stored_bytes - out->at;
}

int od_spool_source_read(const struct od_pack *p, uint64_t offset, void *buf, size_t len, uint64_t *xxh3,
			 struct od_err *err)
{
	struct share_place place;
	const struct od_chunk *c;
	int rc;

	*xxh3 = 0;
	if (p->sums == NULL)
		return od_data_read(&p->experts, false, buf, len, offset, err);
	if (!find_chunk(p, offset, len, &place))
		return od_fail(err, OD_ERR_RANGE,
			       "%zu bytes at %" PRIu64 " of " OD_EXPERTS_NAME " are not in one chunk", len, offset);
	rc = od_expert_sums_chunk(p, place.m, place.expert, place.shard, xxh3, err);
	if (rc != OD_OK)
		return rc;
	c = &od_pack_expert(p, place.m, place.expert)->shard[place.shard].e;
	return od_data_read(&p->experts, false, buf, len, c->offset + place.at, err);
}
