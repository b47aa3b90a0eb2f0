/* parallel_texts.h - texts that one engine generates at the same time, and the decode steps that have rows of all of
 * them.
 *
 *   init -> (add -> work until all are done -> take -> clear) -> fini
 *
 * Thread: the engine's. Owner: the caller; prompts are borrowed until clear. */
#ifndef OD_BENCH_PARALLEL_TEXTS_H
#define OD_BENCH_PARALLEL_TEXTS_H

#include "main-node/engine/engine.h"
#include "tests/bench/live/bench_prompts.h"

struct parallel_texts;

struct parallel_text {
	struct parallel_texts *all;
	const struct od_prompt *prompt;
	struct odm_sequence *sequence; /* NULL: taken */
	uint64_t submitted_ns;
	uint64_t before,
		after; /* tokens that it had before the first decode step with a row of every text; after the last one.
				 * 0: not yet */
	struct odm_result r; /* when taken */
};

struct parallel_texts {
	struct odm_engine *engine;
	struct parallel_text *text; /* [most] */
	size_t n, most;
	/* Decode steps with a row of every text, since the first was added. */
	uint64_t steps;
	uint64_t experts; /* different experts of a step's rows, summed over layers and steps; only if counted */
	bool joint; /* the current decode step has a row of every text */
	uint64_t step;
	uint64_t *used; /* [n_moe][n_experts]: the last step that chose the expert; NULL: not counted */
};

/* At most `most` texts at a time. *t can be passed to parallel_texts_fini even on failure. */
OD_MUST_CHECK int parallel_texts_init(struct parallel_texts *t, struct odm_engine *e, size_t most, bool count_experts,
				      struct od_err *err);
void parallel_texts_fini(struct parallel_texts *t);

/* Submits one more text, which always has max_tokens (0: up to the end of the context). */
OD_MUST_CHECK int parallel_texts_add(struct parallel_texts *t, const struct od_prompt *p, uint64_t max_tokens,
				     const struct od_sampler_opts *sampling, struct od_err *err);
/* Does a piece of the engine's work; true: it was a decode step with a row of every text. */
bool parallel_texts_work(struct parallel_texts *t);
size_t parallel_texts_done(const struct parallel_texts *t); /* number of finished texts */
/* Takes the results of the finished texts. Returns OD_OK, or the error of the first text that failed. */
OD_MUST_CHECK int parallel_texts_take(struct parallel_texts *t, struct od_err *err);
/* Tokens of the taken texts in decode steps with a row of every text. */
uint64_t parallel_texts_joint_tokens(const struct parallel_texts *t);
/* Removes all texts; cancels unfinished ones. */
void parallel_texts_clear(struct parallel_texts *t);

#endif
