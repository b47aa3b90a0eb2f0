/* jinja_calls.h - functions of the language that are written in C: filters, tests, methods, globals; only for
 * common/text/jinja.
 *
 * Thread: the tables are constant. */
#ifndef OD_TEXT_JINJA_CALLS_H
#define OD_TEXT_JINJA_CALLS_H

#include "common/text/jinja/jinja_value.h"

#define JINJA_MAX_PARAMS 8

/* The arguments of one call. */
struct jinja_call {
	const struct jinja_value *pos;
	size_t n_pos;
	const struct jinja_dict *kw; /* NULL: none */
};

/* arg: one value for each name in params, absent where none was given. */
typedef struct jinja_value jinja_fn(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg,
				    const struct jinja_call *call);

struct jinja_function {
	const char *name;
	/* "old new count?": ? may be left out; "/" in front: no keywords; "*": any, the function looks itself. */
	const char *params;
	jinja_fn *fn;
};

/* self: the value before the bar of a filter or test, or the owner of a method; absent for globals. */
struct jinja_value jinja_call_function(struct jinja_job *j, const struct jinja_function *f, struct jinja_value self,
				       const struct jinja_call *call);
/* Ends the job unless there are min to max positional arguments and no others. */
void jinja_check_count(struct jinja_job *j, const char *what, const struct jinja_call *call, size_t min, size_t max);

/* NULL: there is none of that name. */
const struct jinja_function *jinja_find_filter(const struct jinja_str *name);
/* The table ends with NULL. */
const struct jinja_function *jinja_find_in(const struct jinja_function *table, const struct jinja_str *name);
/* Ends the job: there is no such filter or test (what), or none here. */
_Noreturn void jinja_fail_unknown(struct jinja_job *j, const char *what, const struct jinja_str *name);

/* For the definitions of filters, which all have these parameters and seldom use all of them. */
#define FILTER(name) \
	static struct jinja_value name(struct jinja_job *j, struct jinja_value self, const struct jinja_value *arg, \
				       const struct jinja_call *call)
#define UNUSED2(a, b) \
	do { \
		(void)(a); \
		(void)(b); \
	} while (0)

extern const struct jinja_function jinja_text_filters[], jinja_sequence_filters[], jinja_select_filters[];

/* ---- reading arguments ---- */
int64_t jinja_arg_int(struct jinja_job *j, struct jinja_value arg, int64_t fallback, const char *what);
/* must be a string */
const struct jinja_str *jinja_arg_str(struct jinja_job *j, struct jinja_value arg, const char *what);

#endif
