/* recall_record.h - a recording of the true model's run over one prompt, to compare any number of predictions with:
 * tokens, routes, router probabilities, KV rows, margins.
 *
 * It uses the same forward pass and weights as od-main --resident, greedy, to the end of the text: its tokens and
 * routes are bit-identical to od-main's.
 * Thread: a recorder and its device belong to one thread; the weights are shared. Owner: recall_recorder_new's caller.
 * All memory is allocated there; a recording is valid until the next one. */
#ifndef OD_BENCH_RECALL_RECORD_H
#define OD_BENCH_RECALL_RECORD_H

#include "common/model/forward.h"
#include "common/model/forward_open.h"
#include "common/model/sampler.h"
#include "tests/bench/live/bench_prompts.h"

struct recall_recording {
	const struct od_prompt *prompt;
	const char *finish; /* as odm_finish_name */
	uint32_t n_prompt, n_tokens; /* generated, EOS included */
	uint32_t n_steps; /* decode steps: the last token is not passed through the model */
	int32_t *token; /* [n_prompt + n_tokens] */
	float *token_margin; /* [n_tokens]: best logit minus the second */
	struct od_seq_state *state; /* on the recorder's device: rows of all positions; a replay sets its length */
	/* By position, [n_prompt + n_steps][n_moe]: */
	uint16_t *expert; /* [top_k], best first */
	float *probability; /* [n_experts] */
	float *margin;
	float *residual; /* [hidden]; NULL unless opts.residual */
};

struct recall_recorder_opts {
	struct od_forward_opts forward; /* max_rows: of a prompt's chunk; state: the recorder creates its own */
	const struct od_expert *experts; /* [n_moe][n_experts] */
	uint32_t positions; /* maximum of a prompt and its generated tokens */
	uint32_t ctx_tokens; /* generation ends there */
	uint32_t max_tokens; /* at least 2 */
	bool residual;
};

struct recall_recorder;
OD_MUST_CHECK int recall_recorder_new(struct recall_recorder **out, const struct recall_recorder_opts *o,
				      struct od_err *err);
void recall_recorder_free(struct recall_recorder *r); /* NULL ok */
uint64_t recall_recorder_bytes(const struct recall_recorder_opts *o); /* UINT64_MAX: the sum overflows */

/* *out is borrowed until the next call; its ids must be known (od_prompts_encode). */
OD_MUST_CHECK int recall_record(struct recall_recorder *r, const struct od_prompt *prompt,
				struct recall_recording **out, struct od_err *err);

#endif
