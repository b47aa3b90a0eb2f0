#include "common/predict/recall.h"

#include <stdlib.h>
#include <string.h>

int od_recall_init(struct od_recall *r, uint32_t n_moe, uint32_t n_tokens, struct od_err *err)
{
	*r = (struct od_recall){ 0 };
	if (n_moe == 0 || n_tokens == 0) /* later layers and tokens count as the last one */
		return od_fail(err, OD_ERR_RANGE, "recall of %u layers and %u tokens", n_moe, n_tokens);
	r->n_moe = n_moe;
	r->n_tokens = n_tokens;
	r->layer = calloc(n_moe, sizeof(*r->layer));
	r->token = calloc(n_tokens, sizeof(*r->token));
	r->layer_rows = calloc(n_moe, sizeof(*r->layer_rows));
	if (r->layer == NULL || r->token == NULL || r->layer_rows == NULL) {
		od_recall_fini(r);
		return od_fail(err, OD_ERR_NOMEM, "recall of %u layers and %u tokens", n_moe, n_tokens);
	}
	return OD_OK;
}

void od_recall_fini(struct od_recall *r)
{
	free(r->layer);
	free(r->token);
	free(r->layer_rows);
	*r = (struct od_recall){ 0 };
}

void od_recall_reset(struct od_recall *r)
{
	memset(r->layer, 0, r->n_moe * sizeof(*r->layer));
	memset(r->token, 0, r->tokens_seen * sizeof(*r->token));
	r->tokens_seen = 0;
	r->all = (struct od_recall_cell){ 0 };
	memset(r->layer_rows, 0, r->n_moe * sizeof(*r->layer_rows));
	r->rows = (struct od_recall_rows){ 0 };
}

size_t od_recall_hits(const uint16_t *predicted, size_t n_predicted, const uint16_t *used, size_t n_used)
{
	size_t n = 0;

	for (size_t i = 0; i < n_used; i++) {
		for (size_t j = 0; j < n_predicted; j++) {
			if (predicted[j] == used[i]) {
				n++;
				break;
			}
		}
	}
	return n;
}

static void add_cell(struct od_recall_cell *c, size_t uses, size_t recalled)
{
	c->uses += uses;
	c->recalled += recalled;
}

static void add_rows(struct od_recall_rows *into, const struct od_recall_rows *from)
{
	into->seen += from->seen;
	into->in_time += from->in_time;
	into->late += from->late;
}

void od_recall_add_hits(struct od_recall *r, uint32_t layer, uint32_t token, size_t n_used, size_t hits, bool late)
{
	const struct od_recall_rows one = { .in_time = !late, .late = late };

	token = token < r->n_tokens ? token : r->n_tokens - 1;
	r->tokens_seen = token >= r->tokens_seen ? token + 1 : r->tokens_seen;
	add_cell(&r->all, n_used, hits);
	add_cell(&r->layer[layer], n_used, hits);
	add_cell(&r->token[token], n_used, hits);
	add_rows(&r->rows, &one);
	add_rows(&r->layer_rows[layer], &one);
}

void od_recall_add(struct od_recall *r, uint32_t layer, uint32_t token, const uint16_t *predicted, size_t n_predicted,
		   const uint16_t *used, size_t n_used, bool late)
{
	od_recall_add_hits(r, layer, token, n_used, od_recall_hits(predicted, n_predicted, used, n_used), late);
}

void od_recall_see(struct od_recall *r, uint32_t layer)
{
	r->rows.seen++;
	r->layer_rows[layer].seen++;
}

void od_recall_merge(struct od_recall *into, const struct od_recall *from)
{
	add_cell(&into->all, from->all.uses, from->all.recalled);
	for (uint32_t i = 0; i < from->n_moe; i++) {
		uint32_t at = i < into->n_moe ? i : into->n_moe - 1;

		add_cell(&into->layer[at], from->layer[i].uses, from->layer[i].recalled);
		add_rows(&into->layer_rows[at], &from->layer_rows[i]);
	}
	for (uint32_t i = 0; i < from->tokens_seen; i++) {
		uint32_t at = i < into->n_tokens ? i : into->n_tokens - 1;

		add_cell(&into->token[at], from->token[i].uses, from->token[i].recalled);
		into->tokens_seen = at >= into->tokens_seen ? at + 1 : into->tokens_seen;
	}
	add_rows(&into->rows, &from->rows);
}
