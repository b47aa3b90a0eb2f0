#include "common/pack/expert_sums.h"

#include "common/pack/checksum.h"
#include "common/pack/pack_internal.h"

#include <inttypes.h>
#include <stdlib.h>

bool od_expert_sums_apply(const struct od_pack *p)
{
	return p->sums != NULL || p->manifest.layer != NULL;
}

uint64_t od_expert_sums_state(const struct od_pack *p)
{
	return p->sums != NULL ? od_gguf_sums_learned(p->sums) : atomic_load(&p->n_changes);
}

/* 0: not known. */
static uint64_t chunk_sum(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard)
{
	if (p->sums != NULL)
		return od_gguf_sums_known(p->sums, od_pack_sum_index(p, m, expert, shard));
	/* The puller may replace it meanwhile (od_spool_put_chunk). */
	return __atomic_load_n(&od_pack_expert(p, m, expert)->shard[shard].e.xxh3, __ATOMIC_RELAXED);
}

bool od_expert_sums_get(const struct od_pack *p, uint32_t m, uint32_t expert, struct od_expert_sums *out)
{
	const struct od_pack_expert *x = od_pack_expert(p, m, expert);
	uint32_t i = 0;

	*out = (struct od_expert_sums){ 0 };
	if (!od_pack_has_expert(p, m, expert))
		return false;
	for (int mat = 0; mat < od_expert_tensors(&p->config); mat++) {
		for (; i < x->n_shards && x->shard[i].mat == mat; i++) {
			const uint64_t chain[2] = { out->xxh3[mat], chunk_sum(p, m, expert, i) };

			if (chain[1] == 0)
				return false;
			out->xxh3[mat] = XXH3_64bits(chain, sizeof(chain));
		}
	}
	return true;
}

int od_expert_sums_chunk(const struct od_pack *p, uint32_t m, uint32_t expert, uint32_t shard, uint64_t *xxh3,
			 struct od_err *err)
{
	const struct od_chunk *c = &od_pack_expert(p, m, expert)->shard[shard].e;
	uint8_t *buf;
	int rc;

	*xxh3 = chunk_sum(p, m, expert, shard);
	if (*xxh3 != 0)
		return OD_OK;
	buf = malloc(c->stored_bytes);
	rc = buf != NULL ? od_data_read(&p->experts, false, buf, c->stored_bytes, c->offset, err) :
			   od_fail(err, OD_ERR_NOMEM, "no memory for a chunk of %u bytes", c->stored_bytes);
	if (rc == OD_OK)
		rc = od_pack_check_chunk(p, m, expert, shard, c, buf, err);
	free(buf);
	*xxh3 = chunk_sum(p, m, expert, shard);
	return rc == OD_OK ? OD_OK :
			     od_fail_within(err, "%s: tensor %s, expert %u", od_data_path(&p->experts, c->offset),
					    od_expert_sums_tensor(p, m, od_pack_expert(p, m, expert)->shard[shard].mat),
					    expert);
}

const char *od_expert_sums_tensor(const struct od_pack *p, uint32_t m, enum od_expert_mat mat)
{
	return p->tensor[m].name[mat];
}
