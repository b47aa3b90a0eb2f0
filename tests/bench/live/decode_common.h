/* decode_common.h - shared by the measurements of od-bench decode: options, prompts, and the report of the engine.
 *
 * Thread: main(). Owner: strings of the options point into argv. */
#ifndef OD_BENCH_DECODE_COMMON_H
#define OD_BENCH_DECODE_COMMON_H

#include "main-node/node/engine_args.h"
#include "tests/bench/live/bench_prompts.h"
#include "tests/bench/micro/bandwidth.h"
#include "tests/bench/report/bench_table.h"

#define DECODE_WARM_UP_TOKENS 8

struct decode_options {
	struct odm_engine_args engine;
	const char *prompts; /* NULL: random ones */
	const char *parallel; /* list of numbers of texts; NULL: one text after another */
	uint64_t prompt_tokens, tokens, runs, seed;
	double temperature; /* negative: not given */
	double layer_time_ms; /* 0: not paced */
	int baseline; /* negative: not given */
	bool json, help;
};

/* Bytes of an expert's weights in memory. */
uint64_t decode_expert_bytes(const struct od_pack *p, enum od_form form);
/* Opens the measurement of the memory bandwidth where the engine computes, with a buffer of several times the
 * last-level cache. */
OD_MUST_CHECK int decode_open_membw(struct od_membw **out, const struct decode_options *o, const struct odm_engine *e,
				    struct od_err *err);

/* Call before the engine is opened: loads at most n prompts of the file; fewer than at_once is an error. */
OD_MUST_CHECK int decode_load_prompts(struct od_prompts *p, const struct decode_options *o, size_t n, size_t at_once,
				      struct od_err *err);
/* Call after it is opened: makes n random prompts, or tokenises those of the file. Checks that each fits into the
 * context with o->tokens. */
OD_MUST_CHECK int decode_make_prompts(struct od_prompts *p, const struct decode_options *o, size_t n,
				      const struct odm_engine *e, struct od_err *err);

/* Reports pack, profile, kernels, threads and runs. tokens: label of --tokens. */
void decode_report_engine(struct od_report *r, const struct decode_options *o, const struct odm_engine *e,
			  const char *tokens);
/* Reports the cluster, from the figures of one text. */
void decode_report_cluster(struct od_report *r, const struct decode_options *o, const struct odm_figures *f);

#endif
