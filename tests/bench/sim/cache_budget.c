#include "tests/bench/sim/cache_budget.h"

#include "common/base/args.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int cache_budgets_parse(struct cache_budgets *b, const char *text, double published, uint64_t unit, struct od_err *err)
{
	struct od_list list;
	int rc = od_list_split(&list, "budget", text, err);

	b->n = list.n;
	for (size_t i = 0; rc == OD_OK && i < list.n; i++) {
		char *end, least[32];
		double percent = strtod(list.item[i], &end);
		const bool share = end != list.item[i] && strcmp(end, "%") == 0;
		uint64_t bytes = 0, whole;

		if (!share)
			rc = od_parse_size(list.item[i], &bytes, err);
		else if (percent > 0 && percent <= 100)
			bytes = (uint64_t)(published * percent / 100);
		whole = (bytes + unit / 2) / unit * unit;
		if (rc != OD_OK || whole == 0)
			return od_fail(err, OD_ERR_ARG,
				       "--budget: expected sizes, or shares above 0%% up to 100%%, of at least %s, "
				       "found \"%s\"",
				       od_format_bytes(unit, least, sizeof(least)), list.item[i]);
		b->budget[i] = (struct cache_budget){
			.bytes = whole,
			.percent = share && whole == bytes ? percent : 100 * (double)whole / published,
		};
	}
	return rc;
}
