#include "common/model/seq_state.h"

#include "common/base/mem.h"

#include <stdlib.h>

struct od_seq_state {
	char *rows; /* [n_layers][2: K, V][ctx][kv_dim] of dtype */
	enum od_dtype dtype;
	uint32_t n_layers, ctx, length;
	size_t row_bytes;
};

static enum od_dtype dtype_of(enum od_profile profile)
{
	return profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32;
}

uint64_t od_seq_state_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t ctx)
{
	uint64_t bytes = od_config_kv_dim(cfg) * od_dtype_bytes(dtype_of(profile));

	/* More than 64 bits can say is more than anybody has. */
	if (!od_mul(bytes, 2u * (uint64_t)cfg->n_layers, &bytes) || !od_mul(bytes, ctx, &bytes) ||
	    !od_add(bytes, sizeof(struct od_seq_state) + OD_PAD_BYTES, &bytes))
		return UINT64_MAX;
	return bytes;
}

int od_seq_state_new(struct od_seq_state **out, const struct od_config *cfg, enum od_profile profile, uint32_t ctx,
		     struct od_err *err)
{
	uint64_t bytes = od_seq_state_bytes(cfg, profile, ctx);
	struct od_seq_state *s;

	*out = NULL;
	if (ctx == 0 || ctx > cfg->ctx_max)
		return od_fail(err, OD_ERR_RANGE, "context: expected 1 to %u positions (max_position_embeddings), "
			       "found %u", cfg->ctx_max, ctx);
	s = calloc(1, sizeof(*s));
	if (s == NULL || bytes > SIZE_MAX / 2)
		goto fail;
	s->dtype = dtype_of(profile);
	s->n_layers = cfg->n_layers;
	s->ctx = ctx;
	s->row_bytes = od_config_kv_dim(cfg) * od_dtype_bytes(s->dtype);
	/* Untouched pages cost nothing, so a short text in a long context stays small. */
	s->rows = od_alloc((size_t)bytes - sizeof(*s) - OD_PAD_BYTES);
	if (s->rows == NULL)
		goto fail;
	*out = s;
	return OD_OK;
fail:
	od_seq_state_free(s);
	return od_fail(err, OD_ERR_NOMEM, "keys and values of %u positions: %llu bytes", ctx,
		       (unsigned long long)bytes);
}

void od_seq_state_free(struct od_seq_state *s)
{
	if (s == NULL)
		return;
	od_free(s->rows);
	free(s);
}

uint32_t od_seq_state_ctx(const struct od_seq_state *s)
{
	return s->ctx;
}

uint32_t od_seq_state_length(const struct od_seq_state *s)
{
	return s->length;
}

void od_seq_state_set_length(struct od_seq_state *s, uint32_t length)
{
	s->length = length;
}

void *od_seq_state_k(struct od_seq_state *s, uint32_t layer, uint32_t position)
{
	return s->rows + ((size_t)layer * 2 * s->ctx + position) * s->row_bytes;
}

void *od_seq_state_v(struct od_seq_state *s, uint32_t layer, uint32_t position)
{
	return s->rows + (((size_t)layer * 2 + 1) * s->ctx + position) * s->row_bytes;
}

enum od_dtype od_seq_state_dtype(const struct od_seq_state *s)
{
	return s->dtype;
}

size_t od_seq_state_row_bytes(const struct od_seq_state *s)
{
	return s->row_bytes;
}
