/* bench_list.h - values of options that are lists, divided by commas.
 *
 * An empty text is a list of one empty item. Errors name the option (without the dashes) and what was found.
 * Thread: any. Owner: plain data. */
#ifndef OD_BENCH_LIST_H
#define OD_BENCH_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_LIST_MAX 32
struct od_list {
	char *item[OD_LIST_MAX]; /* point into text */
	size_t n;
	char text[4096];
};

/* Any items, which may be empty. */
OD_MUST_CHECK int od_list_split(struct od_list *l, const char *option, const char *text, struct od_err *err);
/* "int8,nf4": indices into choices (which end with NULL), each once. *n is 0 unless OD_OK. */
OD_MUST_CHECK int od_list_choices(const char *option, const char *text, const char *const *choices,
				  int out[OD_LIST_MAX], size_t *n, struct od_err *err);
/* "1,4,16" */
OD_MUST_CHECK int od_list_numbers(const char *option, const char *text, uint64_t min, uint64_t max,
				  uint64_t out[OD_LIST_MAX], size_t *n, struct od_err *err);

#endif
