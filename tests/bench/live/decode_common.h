/* decode_common.h - what the measurements of od-bench decode share: its options, its prompts, what they say of the engine.
 *
 * Thread: main(). Owner: strings of the options point into argv. */
#ifndef OD_BENCH_DECODE_COMMON_H
#define OD_BENCH_DECODE_COMMON_H

#include "main-node/engine_args.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/micro/bandwidth.h"
#include "tests/bench/report/bench_table.h"

#define DECODE_WARM_UP_TOKENS 8

struct decode_options {
	struct odm_engine_args engine;
	const char *prompts;  /* NULL: random ones */
	const char *parallel; /* numbers of texts; NULL: one text after the other */
	uint64_t prefill_beside; /* tokens of a prompt beside the texts; 0: none */
	uint64_t prompt_tokens, tokens, runs, seed;
	double temperature; /* negative: not given */
	int baseline;	    /* negative: not given */
	bool json, help;
};

unsigned decode_threads(const struct decode_options *o);
/* An expert's weights as they lie in memory. */
uint64_t decode_expert_bytes(const struct od_pack *p, enum od_form form);
/* Memory to read, several times the last-level cache. */
OD_MUST_CHECK int decode_open_membw(struct od_membw **out, const struct decode_options *o, struct od_err *err);

/* Before the engine is opened: at most n prompts of the file, and at least so many as are used at once. */
OD_MUST_CHECK int decode_load_prompts(struct od_prompts *p, const struct decode_options *o, size_t n, size_t at_once,
				      struct od_err *err);
/* Behind it: n random ones, or those of the file become tokens. Each fits into the context with o->tokens. */
OD_MUST_CHECK int decode_make_prompts(struct od_prompts *p, const struct decode_options *o, size_t n,
				      const struct odm_engine *e, struct od_err *err);

/* Pack, profile, kernels and threads; runs, and what --tokens are of one. */
void decode_report_engine(struct od_report *r, const struct decode_options *o, const struct odm_engine *e,
			  const char *tokens);
/* The cluster, by the figures of one text. */
void decode_report_cluster(struct od_report *r, const struct decode_options *o, const struct odm_figures *f);

#endif
