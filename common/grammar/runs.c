#include "common/grammar/runs.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MASKS 24 /* longer tokens are few */
#define MAX_FIRST 4 /* bytes that may follow a run */

/* The way to a node: the rest of its last piece, and how many were begun. */
struct at {
	uint32_t re, pieces;
};

static bool add_tokens(struct od_runs *r, const struct od_vocab *v, uint32_t node, uint32_t pieces)
{
	for (uint32_t i = v->tokens[node]; i < v->tokens[node + 1]; i++) {
		const int32_t token = v->sorted[i];

		if (pieces <= MAX_MASKS) {
			r->mask[(pieces - 1) * r->mask_words + (size_t)token / 64] |= (uint64_t)1 << token % 64;
			continue;
		}
		if (!od_grow((void **)&r->longer, r->n_longer, 1, &r->cap_longer, sizeof(*r->longer)))
			return false;
		r->longer[r->n_longer++] = (struct od_run_token){ pieces, token };
	}
	return true;
}

static bool add_end(struct od_runs *r, uint32_t node, uint32_t pieces)
{
	if (!od_grow((void **)&r->end, r->n_ends, 1, &r->cap_ends, sizeof(*r->end)))
		return false;
	r->end[r->n_ends++] = (struct od_run_end){ pieces, node };
	return true;
}

static int walk(struct od_runs *r, const struct od_vocab *v, struct od_re_pool *p, uint32_t one,
		const struct od_byte_set *first, struct at *path)
{
	path[0] = (struct at){ OD_RE_EMPTY, 0 };
	for (uint32_t i = 0; i < v->n_nodes;) {
		const unsigned depth = v->depth[i];
		const struct at up = path[depth - 1];
		const bool whole = up.re == OD_RE_EMPTY;
		const uint32_t next = od_re_step(p, whole ? one : up.re, v->byte[i]);

		if (whole && od_byte_set_has(first, v->byte[i]) && !add_end(r, i, up.pieces))
			return OD_ERR_NOMEM;
		if (next == OD_RE_NONE || !od_re_live(p, next)) {
			i = v->skip[i];
			continue;
		}
		if (next != OD_RE_EMPTY && od_re_nullable(p, next))
			return OD_ERR_UNSUPPORTED; /* the piece may end or go on */
		path[depth] = (struct at){ next, up.pieces + whole };
		if (!add_tokens(r, v, i, path[depth].pieces))
			return OD_ERR_NOMEM;
		i++;
	}
	return OD_OK;
}

static int by_pieces(const void *a, const void *b)
{
	const struct od_run_token *x = a, *y = b;

	return x->pieces < y->pieces ? -1 : x->pieces > y->pieces;
}

int od_runs_new(struct od_runs **out, const struct od_vocab *v, struct od_re_pool *p, uint32_t one, uint32_t rest)
{
	struct od_byte_set first = { { 0 } };
	struct od_runs *r;
	struct at *path;
	int rc = OD_ERR_NOMEM;

	*out = NULL;
	od_re_first(p, rest, &first);
	if (od_re_nullable(p, rest) || od_byte_set_count(&first) > MAX_FIRST || od_re_nullable(p, one))
		return OD_ERR_UNSUPPORTED;
	r = calloc(1, sizeof(*r));
	path = calloc(v->max_depth + (size_t)1, sizeof(*path));
	if (r != NULL) {
		r->mask_words = (v->n_tokens + (size_t)63) / 64;
		r->n_masks = MAX_MASKS;
		r->mask = calloc(MAX_MASKS * r->mask_words, sizeof(*r->mask));
	}
	if (r != NULL && path != NULL && r->mask != NULL)
		rc = walk(r, v, p, one, &first, path);
	free(path);
	if (rc != OD_OK) {
		od_runs_free(r);
		return rc;
	}
	for (size_t i = r->mask_words; i < MAX_MASKS * r->mask_words; i++)
		r->mask[i] |= r->mask[i - r->mask_words];
	if (r->n_longer > 1)
		qsort(r->longer, r->n_longer, sizeof(*r->longer), by_pieces);
	*out = r;
	return OD_OK;
}

void od_runs_free(struct od_runs *r)
{
	if (r == NULL)
		return;
	free(r->mask);
	free(r->longer);
	free(r->end);
	free(r);
}

size_t od_runs_memory(const struct od_runs *r)
{
	return r == NULL ? 0 :
			   r->n_masks * r->mask_words * sizeof(*r->mask) + r->cap_longer * sizeof(*r->longer) +
				   r->cap_ends * sizeof(*r->end);
}

void od_runs_mask(const struct od_runs *r, uint32_t max, uint64_t *mask)
{
	const uint32_t n = max < r->n_masks ? max : r->n_masks;

	if (n == 0)
		memset(mask, 0, r->mask_words * sizeof(*mask));
	else
		memcpy(mask, r->mask + (n - 1) * r->mask_words, r->mask_words * sizeof(*mask));
	for (size_t i = 0; i < r->n_longer && r->longer[i].pieces <= max; i++)
		mask[r->longer[i].token / 64] |= (uint64_t)1 << r->longer[i].token % 64;
}
