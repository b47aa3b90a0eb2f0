/* golden_file.h - a folder of golden outputs: golden.json and the logits files it names, made by an independent
 * implementation for one checkpoint. tests/golden/talebook/README.md describes the form.
 *
 * The folder is hostile input: every type, length and range is checked against the model before anything runs,
 * and a reason names file, entry, field, what was expected and found. Unknown fields are ignored.
 * Thread: immutable after loading; a golden_logits belongs to one. Owner: golden_load's caller. */
#ifndef OD_TESTS_BENCH_GOLDEN_FILE_H
#define OD_TESTS_BENCH_GOLDEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/config.h"

struct golden_text {
	char *bytes; /* UTF-8, may contain NUL; NULL: not given */
	size_t len;
};

/* Positions run through prompt and decode: [0, n_prompt) is the prompt, n_prompt + i the pass over token i. */
struct golden_entry {
	char *name; /* printable */
	struct golden_text prompt_text, greedy_text;
	int32_t *prompt; /* [n_prompt], at least one */
	size_t n_prompt;
	int32_t *greedy; /* [n_greedy], may be none */
	size_t n_greedy;
	bool ends_at_eos; /* the last token ends a text: whoever generates must stop there */
	bool passes_eos;  /* an earlier one does: the reference went on */
	double *token_margin; /* [n_greedy]: best minus second logit */
	size_t n_positions;   /* n_prompt + n_greedy - 1: the last token is not passed through the model */
	uint16_t *route;      /* [n_positions][n_layers][top_k], best first, all different */
	double *route_margin; /* [n_positions][n_layers]: k-th minus next router probability */
	char *logits_path;    /* [n_prompt][vocab] little-endian f32; NULL: none to compare */
};

struct golden {
	struct golden_entry *entry;
	size_t n_entries; /* at least one */
	uint32_t n_layers, top_k, vocab;
};

/* cfg: of the model that the folder must fit. *out is NULL unless OD_OK. */
OD_MUST_CHECK int golden_load(struct golden **out, const char *dir, const struct od_config *cfg, struct od_err *err);
void golden_free(struct golden *g); /* NULL ok */

static inline const uint16_t *golden_route(const struct golden *g, const struct golden_entry *e, size_t position,
					   uint32_t layer)
{
	return e->route + (position * g->n_layers + layer) * g->top_k;
}

static inline double golden_route_margin(const struct golden *g, const struct golden_entry *e, size_t position,
					 uint32_t layer)
{
	return e->route_margin[position * g->n_layers + layer];
}

/* Rows of one logits file, one at a time: 128 positions of Mixtral's vocabulary are 16 MB. */
struct golden_logits;
/* OD_ERR_SHAPE when the file is not n_prompt * vocab * 4 bytes. */
OD_MUST_CHECK int golden_logits_open(struct golden_logits **out, const struct golden *g, const struct golden_entry *e,
				     struct od_err *err);
void golden_logits_close(struct golden_logits *l); /* NULL ok */
/* *row: [vocab], borrowed until the next call. position < n_prompt. */
OD_MUST_CHECK int golden_logits_row(struct golden_logits *l, size_t position, const float **row, struct od_err *err);

#endif
