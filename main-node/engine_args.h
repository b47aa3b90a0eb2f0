/* engine_args.h - the command-line options that make an engine, shared by od-main and od-bench.
 *
 * Thread: main(). Owner: the caller; strings point into argv. */
#ifndef ODM_ENGINE_ARGS_H
#define ODM_ENGINE_ARGS_H

#include "common/base/args.h"
#include "main-node/engine/engine.h"

#define ODM_ENGINE_ARGS_MAX 32

struct odm_engine_args {
	struct odm_engine_opts opts;
	uint64_t local, align_token, align_kv;
	int profile; /* index into od_profile_names */
	bool resident;
};

void odm_engine_args_defaults(struct odm_engine_args *a);
/* The engine's options alone, at most ODM_ENGINE_ARGS_MAX of them; returns how many. */
size_t odm_engine_args_table(struct odm_engine_args *a, struct od_arg *table);
/* The engine's options, but for those named in without (ends with NULL; NULL: all), then the program's own, which stand
 * for the engine's of the same name; positional arguments are refused. When *help has become true, usage and all options
 * go to standard output. */
OD_MUST_CHECK int odm_engine_args_parse(struct odm_engine_args *a, const char *const *without, const struct od_arg *own,
					size_t n_own, int argc, char **argv, const bool *help, const char *usage,
					struct od_err *err);
/* After parsing: a->opts is complete, or OD_ERR_ARG says what is missing or contradicts. */
OD_MUST_CHECK int odm_engine_args_finish(struct odm_engine_args *a, struct od_err *err);

#endif
