#include "tests/bench/live/child_args.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *const child_departure_names[] = { "late", "early", NULL };

void child_args_add(struct child_args *a, struct od_arg_list *to, const char *fmt, ...)
{
	va_list args;
	int n;

	if (a->n == CHILD_ARGS_MAX || to->n == OD_ARG_LIST_MAX)
		abort(); /* commands that call this refuse arguments of the user's for the same list */
	va_start(args, fmt);
	n = vsnprintf(a->text[a->n], sizeof(a->text[0]), fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(a->text[0]))
		abort(); /* numbers and names are shorter */
	to->value[to->n++] = a->text[a->n++];
}
