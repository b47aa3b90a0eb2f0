#include "common/model/seq_state.h"

#include "common/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

struct od_state_pool {
	struct od_buf *pages;
	enum od_dtype dtype;
	uint32_t n_layers, ctx, n_sequences, open;
	uint32_t n_pages;
	uint32_t *spare; /* [n_pages]: unused pages; the next to be taken is the last */
	uint32_t n_spare;
	size_t row_bytes;
	uint64_t page_bytes; /* of one stream */
};

struct od_seq_state {
	struct od_state_pool *pool;
	uint32_t length, n_pages;
	uint32_t page[]; /* [pages of ctx] */
};

static enum od_dtype dtype_of(enum od_profile profile)
{
	return profile == OD_PROFILE_BF16 ? OD_BF16 : OD_F32;
}

uint32_t od_state_pages(uint32_t positions)
{
	return positions / OD_KV_PAGE + (positions % OD_KV_PAGE != 0);
}

static uint64_t row_bytes(const struct od_config *cfg, enum od_profile profile)
{
	return (uint64_t)od_config_kv_dim(cfg) * od_dtype_bytes(dtype_of(profile));
}

uint64_t od_state_pool_bytes(const struct od_config *cfg, enum od_profile profile, uint32_t ctx, uint32_t n)
{
	uint64_t bytes = row_bytes(cfg, profile);

	/* More than 64 bits can say is more than anybody has. */
	if (!od_mul(bytes, (uint64_t)OD_N_STREAMS * cfg->n_layers * OD_KV_PAGE, &bytes) ||
	    !od_mul(bytes, (uint64_t)od_state_pages(ctx) * n, &bytes) || !od_add(bytes, OD_PAD_BYTES, &bytes))
		return UINT64_MAX;
	return bytes;
}

int od_state_pool_new(struct od_state_pool **out, struct od_device *d, const struct od_config *cfg, enum od_profile profile,
		      uint32_t ctx, uint32_t n, struct od_err *err)
{
	uint64_t bytes = od_state_pool_bytes(cfg, profile, ctx, n), pages = (uint64_t)od_state_pages(ctx) * n;
	struct od_state_pool *p;
	int rc;

	*out = NULL;
	if (ctx == 0 || ctx > cfg->ctx_max)
		return od_fail(err, OD_ERR_RANGE, "context: expected 1 to %u positions (max_position_embeddings), found %u",
			       cfg->ctx_max, ctx);
	p = calloc(1, sizeof(*p));
	if (p != NULL && pages <= UINT32_MAX)
		p->spare = malloc(pages * sizeof(*p->spare) + 1);
	if (p == NULL || p->spare == NULL) {
		od_state_pool_free(p);
		return od_fail(err, OD_ERR_NOMEM, "keys and values of %u positions: %" PRIu64 " bytes", ctx, bytes);
	}
	p->dtype = dtype_of(profile);
	p->n_layers = cfg->n_layers;
	p->ctx = ctx;
	p->n_sequences = n;
	p->row_bytes = (size_t)row_bytes(cfg, profile);
	p->page_bytes = OD_KV_PAGE * p->row_bytes;
	p->n_pages = p->n_spare = (uint32_t)pages;
	rc = od_buf_new(&p->pages, d, bytes - OD_PAD_BYTES, "keys and values", err);
	if (rc != OD_OK) {
		od_state_pool_free(p);
		return rc;
	}
	for (uint32_t i = 0; i < p->n_pages; i++)
		p->spare[i] = p->n_pages - 1 - i;
	*out = p;
	return OD_OK;
}

void od_state_pool_free(struct od_state_pool *p)
{
	if (p == NULL)
		return;
	od_buf_free(p->pages);
	free(p->spare);
	free(p);
}

enum od_dtype od_state_pool_dtype(const struct od_state_pool *p)
{
	return p->dtype;
}

uint32_t od_state_pool_ctx(const struct od_state_pool *p)
{
	return p->ctx;
}

uint32_t od_state_pool_sequences(const struct od_state_pool *p)
{
	return p->n_sequences;
}

/* [n_layers][stream][n_pages][OD_KV_PAGE][row]. Pages are the innermost, so that attention reads one stream: were a page's
 * layers together, pages of a layer would lie a multiple of large powers of two apart and evict each other from the cache. */
static uint64_t stream_at(const struct od_state_pool *p, uint32_t layer, enum od_stream stream)
{
	return ((uint64_t)layer * OD_N_STREAMS + stream) * p->n_pages * p->page_bytes;
}

struct od_kv od_state_pool_kv(const struct od_state_pool *p, uint32_t layer)
{
	return (struct od_kv){
		.pages = od_buf_ref(p->pages, 0),
		.page_bytes = p->page_bytes,
		.k_at = stream_at(p, layer, OD_STREAM_K),
		.v_at = stream_at(p, layer, OD_STREAM_V),
		.k_row_bytes = p->row_bytes,
		.v_row_bytes = p->row_bytes,
		.dtype = p->dtype,
	};
}

int od_seq_state_new(struct od_seq_state **out, struct od_state_pool *p, struct od_err *err)
{
	struct od_seq_state *s;

	*out = NULL;
	if (p->open == p->n_sequences)
		return od_fail(err, OD_ERR_BUSY, "sequences: all %u that there is memory for are open", p->n_sequences);
	s = calloc(1, sizeof(*s) + od_state_pages(p->ctx) * sizeof(s->page[0]));
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "sequence");
	s->pool = p;
	p->open++;
	*out = s;
	return OD_OK;
}

void od_seq_state_free(struct od_seq_state *s)
{
	if (s == NULL)
		return;
	while (s->n_pages > 0)
		s->pool->spare[s->pool->n_spare++] = s->page[--s->n_pages];
	s->pool->open--;
	free(s);
}

uint32_t od_seq_state_ctx(const struct od_seq_state *s)
{
	return s->pool->ctx;
}

uint32_t od_seq_state_length(const struct od_seq_state *s)
{
	return s->length;
}

void od_seq_state_set_length(struct od_seq_state *s, uint32_t length)
{
	s->length = length;
}

struct od_state_pool *od_seq_state_pool(const struct od_seq_state *s)
{
	return s->pool;
}

void od_seq_state_reserve(struct od_seq_state *s, uint32_t n)
{
	assert(n <= s->pool->ctx);
	/* Each open sequence may have as many as ctx needs, so there is one. */
	while (s->n_pages < od_state_pages(n))
		s->page[s->n_pages++] = s->pool->spare[--s->pool->n_spare];
}

const uint32_t *od_seq_state_pages(const struct od_seq_state *s)
{
	return s->page;
}

uint32_t od_seq_state_n_pages(const struct od_seq_state *s)
{
	return s->n_pages;
}

struct od_ref od_seq_state_row(const struct od_seq_state *s, uint32_t layer, enum od_stream stream, uint32_t position)
{
	const struct od_state_pool *p = s->pool;

	assert(position / OD_KV_PAGE < s->n_pages && layer < p->n_layers);
	return od_buf_ref(p->pages, s->page[position / OD_KV_PAGE] * p->page_bytes + stream_at(p, layer, stream) +
					    position % OD_KV_PAGE * p->row_bytes);
}

size_t od_seq_state_row_bytes(const struct od_seq_state *s)
{
	return s->pool->row_bytes;
}
