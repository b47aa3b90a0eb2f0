/* golden_file.h - a folder of golden outputs: golden.json and the binary files it names, made by an independent
 * implementation for one checkpoint. tests/golden/talebook/README.md describes the form.
 *
 * The folder is hostile input: every type, length and range is checked against the model before anything runs,
 * and a reason names file, entry, field, what was expected and found. Unknown fields are ignored.
 * The file lists all layers and the engine only those with experts, numbered by m: golden_load translates, and
 * everything here is indexed by m; messages name the file's layer.
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
	bool passes_eos; /* an earlier one does: the reference went on */
	double *token_margin; /* [n_greedy]: best minus second logit */
	size_t n_positions; /* n_prompt + n_greedy - 1: the last token is not passed through the model */
	uint16_t *route; /* [n_positions][n_moe][top_k], best first by the score that decides, all different */
	double *route_margin; /* [n_positions][n_moe]: k-th minus next score */
	float *route_weight; /* [n_positions][n_moe][top_k]: factors of the experts' outputs; NULL: not given */
	double logit_tolerance; /* accepted, as a part of the row's largest logit; 0: the file says nothing */
	char *logits_path; /* [n_prompt][vocab] little-endian f32; NULL: none to compare */
	char *decode_logits_path; /* [n_greedy][vocab]: what each greedy token was chosen from; NULL: none */
};

struct golden {
	struct golden_entry *entry;
	size_t n_entries; /* at least one */
	uint32_t n_moe, top_k, vocab;
	uint32_t *layer; /* [n_moe], rising: the layers with experts */
};

/* cfg: of the model that the folder must fit. A layer without experts has none in the file either. *out is NULL unless
 * OD_OK. */
OD_MUST_CHECK int golden_load(struct golden **out, const char *dir, const struct od_config *cfg, struct od_err *err);
void golden_free(struct golden *g); /* NULL ok */

static inline const uint16_t *golden_route(const struct golden *g, const struct golden_entry *e, size_t position,
					   uint32_t m)
{
	return e->route + (position * g->n_moe + m) * g->top_k;
}

/* Needs route_weight. */
static inline const float *golden_route_weight(const struct golden *g, const struct golden_entry *e, size_t position,
					       uint32_t m)
{
	return e->route_weight + (position * g->n_moe + m) * g->top_k;
}

static inline double golden_route_margin(const struct golden *g, const struct golden_entry *e, size_t position,
					 uint32_t m)
{
	return e->route_margin[position * g->n_moe + m];
}

/* Rows of one logits file, one at a time: 128 positions of Mixtral's vocabulary are 16 MB. */
struct golden_logits;
/* path: of an entry. OD_ERR_SHAPE when the file is not n_rows * vocab * 4 bytes. */
OD_MUST_CHECK int golden_logits_open(struct golden_logits **out, const char *path, size_t n_rows, uint32_t vocab,
				     struct od_err *err);
void golden_logits_close(struct golden_logits *l); /* NULL ok */
/* *out: [vocab], borrowed until the next call. row < n_rows. */
OD_MUST_CHECK int golden_logits_row(struct golden_logits *l, size_t row, const float **out, struct od_err *err);

#endif
