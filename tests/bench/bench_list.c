#include "tests/bench/bench_list.h"

#include "common/base/args.h"

#include <stdio.h>
#include <string.h>

int od_list_split(struct od_list *l, const char *option, const char *text, struct od_err *err)
{
	const size_t len = strlen(text);
	char *rest = l->text, *item;

	l->n = 0;
	if (len >= sizeof(l->text))
		return od_fail(err, OD_ERR_ARG, "--%s: expected less than %zu bytes", option, sizeof(l->text));
	memcpy(l->text, text, len + 1);
	while ((item = strsep(&rest, ",")) != NULL) {
		if (l->n == OD_LIST_MAX)
			return od_fail(err, OD_ERR_ARG, "--%s: expected at most %d items", option, OD_LIST_MAX);
		l->item[l->n++] = item;
	}
	return OD_OK;
}

/* "bf16, int8" */
static void join(char *buf, size_t size, const char *const *names)
{
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; names[i] != NULL && at < size; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%s", i > 0 ? ", " : "", names[i]);
}

int od_list_choices(const char *option, const char *text, const char *const *choices, int out[OD_LIST_MAX], size_t *n,
		    struct od_err *err)
{
	struct od_list list;
	char known[400];
	int rc = od_list_split(&list, option, text, err);

	*n = 0;
	if (rc != OD_OK)
		return rc;
	for (size_t at = 0; at < list.n; at++) {
		const char *item = list.item[at];
		int i = 0;

		while (choices[i] != NULL && strcmp(choices[i], item) != 0)
			i++;
		if (choices[i] == NULL) {
			join(known, sizeof(known), choices);
			return od_fail(err, OD_ERR_ARG,
				       "--%s: found \"%s\"; expected a list, divided by commas, of: %s", option, item,
				       known);
		}
		for (size_t k = 0; k < at; k++) {
			if (out[k] == i)
				return od_fail(err, OD_ERR_ARG, "--%s: \"%s\" is listed twice", option, item);
		}
		out[at] = i;
	}
	*n = list.n;
	return OD_OK;
}

int od_list_numbers(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t out[OD_LIST_MAX],
		    size_t *n, struct od_err *err)
{
	struct od_list list;
	int rc = od_list_split(&list, option, text, err);

	*n = list.n;
	for (size_t i = 0; rc == OD_OK && i < list.n; i++) {
		rc = od_parse_u64(list.item[i], min, max, &out[i], err);
		if (rc != OD_OK)
			return od_fail_within(err, "--%s", option);
	}
	return rc;
}
