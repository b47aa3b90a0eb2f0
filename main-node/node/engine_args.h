/* engine_args.h - the command-line options that make an engine, shared by od-main and od-bench.
 *
 * Thread: main(). Owner: the caller; strings point into argv. */
#ifndef ODM_ENGINE_ARGS_H
#define ODM_ENGINE_ARGS_H

#include "common/base/args.h"
#include "main-node/node/main_opts.h"

#define ODM_ENGINE_ARGS_MAX 32

struct odm_engine_args {
	struct odm_main_opts opts;
	uint64_t local, align_token, align_kv;
	int profile; /* index into od_profile_names */
	const char *draft, *routing;
	bool resident;
};

void odm_engine_args_defaults(struct odm_engine_args *a);
/* Fills table [ODM_ENGINE_ARGS_MAX] with the engine's options; returns their number. */
size_t odm_engine_args_table(struct odm_engine_args *a, struct od_arg *table);
/* Parses the engine's options, except those named in without (ends with NULL; NULL: all), and the program's own, which
 * replace engine options of the same name. Positional arguments are refused. If *help becomes true, prints usage and
 * all options to standard output. */
OD_MUST_CHECK int odm_engine_args_parse(struct odm_engine_args *a, const char *const *without, const struct od_arg *own,
					size_t n_own, int argc, char **argv, const bool *help, const char *usage,
					struct od_err *err);
/* --routing alone, which odm_engine_args_finish completes with all others. */
OD_MUST_CHECK int odm_engine_args_routing(struct odm_engine_args *a, struct od_err *err);
/* After parsing: completes a->opts. OD_ERR_ARG names a missing or contradictory option. */
OD_MUST_CHECK int odm_engine_args_finish(struct odm_engine_args *a, struct od_err *err);

#endif
